"""Accumulators: in groups, in windows and as operators of expressions."""

from __future__ import annotations

import pickle
import statistics
from random import Random
from typing import Any

import pytest

from replset.bson import Decimal128, Int64, encode
from replset.errors import ReplError
from replset.query.expressions import accumulator_states as accumulators
from replset.query.expressions import compile_accumulator, compile_expression
from replset.query.order import MISSING

NAN, INF = float("nan"), float("inf")


def result_of(spec: Any, values: list[Any], group: dict[str, Any] | None = None) -> Any:
    """Return the result for documents `{v: value}`, with a pickled state in between."""
    accumulator = compile_accumulator(spec)
    state = accumulator.new(group or {})
    for value in values:
        document = {} if value is MISSING else value if isinstance(value, dict) else {"v": value}
        state.add(accumulator.argument.evaluate(document, {}))
        state = pickle.loads(pickle.dumps(state))
    assert state.memory_bytes > 0
    return state.result()


def of(operator: str, *rows: tuple[Any, ...]) -> list[Any]:
    """Rows that begin with this operator's argument."""
    return [({operator: argument}, *rest) for argument, *rest in rows]


MIXED: list[Any] = [3, "x", None, MISSING, 1.0, [2]]
DOCS = [{"k": 2, "v": "a"}, {"k": 1, "v": "b"}, {"k": 3}, {"k": 1, "v": "d"}, {"k": 3, "v": "e"}]
CASES: list[tuple[Any, list[Any], Any]] = [
    *of("$sum", ("$v", [], 0), ("$v", [1, 2, "x", None, MISSING], 3), ("$v", [1, Int64(2)], Int64(3))),
    *of("$sum", ("$v", [2**31 - 1, 1], 2**31), ("$v", [Int64(2**63 - 1), 1], 2.0**63), ("$v", [1, 0.5], 1.5)),
    ({"$sum": "$v"}, [1e100, 1.0, -1e100], 1.0),
    ({"$sum": "$v"}, [0.1, Decimal128("1"), 2], Decimal128("3.100000000000000005551115123125783")),
    *of("$sum", ("$v", [INF, 1], INF), ("$v", [INF, -INF], NAN)),
    *of("$sum", ("$v", [Decimal128("Infinity"), 1], Decimal128("Infinity")), (1, ["a", "b"], 2)),
    *of("$avg", ("$v", [], None), ("$v", ["x", 1, 2], 1.5), ("$v", [1, Decimal128("2")], Decimal128("1.5"))),
    ({"$min": "$v"}, MIXED, 1.0),
    *of("$max", ("$v", MIXED, [2]), ("$v", [None, MISSING], None)),
    *of("$first", ("$v", [MISSING, 1], None), ("$v", [2, 1], 2)),
    ({"$last": "$v"}, [2, 1], 1),
    ({"$push": "$v"}, MIXED, [3, "x", None, 1.0, [2]]),
    ({"$addToSet": "$v"}, [1, 2, 1.0, MISSING, None, None], [1, 2, None]),
    ({"$mergeObjects": "$v"}, [{"v": {"a": 1, "b": 1}}, {"v": None}, {}, {"v": {"a": 2}}], {"a": 2, "b": 1}),
    *of("$stdDevPop", ("$v", [], None), ("$v", [1, "x", 3], 1.0)),
    *of("$stdDevSamp", ("$v", [1], None), ("$v", [1, Decimal128("3")], 2.0**0.5)),
    ({"$stdDevPop": "$v"}, [1, INF], NAN),
    ({"$count": {}}, MIXED, 6),
    ({"$firstN": {"n": 2, "input": "$v"}}, [MISSING, 1, 2], [None, 1]),
    ({"$lastN": {"n": 2.0, "input": "$v"}}, [0, 1, 2], [1, 2]),
    ({"$minN": {"n": 2, "input": "$v"}}, [3, None, 1, 2], [1, 2]),
    *of("$maxN", ({"n": 2, "input": "$v"}, [3, None, 1, 2], [3, 2]), ({"n": 5, "input": "$v"}, [3, 1], [3, 1])),
    ({"$top": {"sortBy": {"k": 1}, "output": "$v"}}, DOCS, "b"),
    ({"$bottom": {"sortBy": {"k": 1}, "output": "$v"}}, DOCS, None),
    ({"$topN": {"n": 3, "sortBy": {"k": 1}, "output": "$v"}}, DOCS, ["b", "d", "a"]),
    ({"$topN": {"n": 2, "sortBy": {"k": -1, "v": 1}, "output": ["$k", "$v"]}}, DOCS, [[3, None], [3, "e"]]),
    ({"$bottomN": {"n": 3, "sortBy": {"k": 1}, "output": "$v"}}, DOCS, ["a", None, "e"]),
    (
        {"$percentile": {"input": "$v", "p": [0, 0.5, 0.95, 1], "method": "approximate"}},
        list(range(1, 101)),
        [1.0, 50.0, 95.0, 100.0],
    ),
    ({"$percentile": {"input": "$v", "p": [0.5], "method": "approximate"}}, ["x", NAN], [None]),
    ({"$median": {"input": "$v", "method": "approximate"}}, [3, 1, Decimal128("2"), "x"], 2.0),
    ({"$median": {"input": "$v", "method": "approximate"}}, [], None),
]


@pytest.mark.parametrize(("spec", "values", "wanted"), CASES)
def test_in_a_group(spec: Any, values: list[Any], wanted: Any) -> None:
    assert encode({"": result_of(spec, values)}) == encode({"": wanted})


def test_the_number_of_values_can_depend_on_the_group() -> None:
    assert result_of({"$firstN": {"n": {"$add": ["$k", 1]}, "input": "$v"}}, [1, 2, 3], {"k": 1}) == [1, 2]


EXPRESSIONS: list[tuple[Any, Any]] = [
    *of("$sum", ([], 0), ("$l", 6), (["$l", 5, "x"], 5), (["$l"], 6)),
    *of("$avg", ("$l", 2.0), ("$nowhere", None)),
    ({"$min": ["$l", 5]}, 5),
    ({"$max": "$l"}, 3),
    ({"$stdDevPop": [[1, 3]]}, 1.0),
    ({"$stdDevSamp": [5]}, None),
    ({"$firstN": {"n": 2, "input": "$l"}}, [3, 1]),
    ({"$lastN": {"n": 2, "input": "$l"}}, [1, 2]),
    ({"$minN": {"n": 2, "input": "$l"}}, [1, 2]),
    ({"$maxN": {"n": "$n", "input": "$l"}}, [3]),
    ({"$percentile": {"input": "$l", "p": [0.1, 0.9], "method": "approximate"}}, [1.0, 3.0]),
    ({"$percentile": {"input": 7, "p": [0.1], "method": "approximate"}}, [7.0]),
    ({"$median": {"input": ["$n", 9], "method": "approximate"}}, 1.0),
]


@pytest.mark.parametrize(("expression", "wanted"), EXPRESSIONS)
def test_as_an_operator(expression: Any, wanted: Any) -> None:
    found = compile_expression(expression).evaluate({"l": [3, 1, 2], "n": 1}, {})
    assert encode({"": found}) == encode({"": wanted})


@pytest.mark.parametrize("spec", [spec for spec, _, _ in CASES if "$first" not in spec][::2])
def test_a_window_gives_what_its_values_give(spec: Any) -> None:
    accumulator, rng = compile_accumulator(spec), Random(1)
    choices: list[Any] = [1, 2.5, Int64(3), -4, "x", None, MISSING, Decimal128("1.5"), INF]
    state, window = accumulator.new_window(), []
    for _ in range(60):
        if window and rng.random() < 0.4:
            state.remove(accumulator.argument.evaluate(window.pop(0), {}))
        else:
            value = rng.choice(choices)
            window.append({} if value is MISSING else {"k": 1, "v": {"a": 1} if "$mergeObjects" in spec else value})
            state.add(accumulator.argument.evaluate(window[-1], {}))
        again = result_of(spec, window)
        found = state.result()
        assert encode({"": found}) == encode({"": again}) or found == pytest.approx(again)


def test_percentiles_of_many_numbers_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accumulators, "_RUN", 16)
    rng = Random(2)
    numbers = [rng.choice([-0.0, 0.0, 1e300, -5e-324, rng.uniform(-9, 9)]) for _ in range(501)]
    state = accumulators.Percentile([0.0, 0.25, 0.5, 1.0])
    for number in numbers:
        state.add(number)
    least, *_, greatest = sorted(numbers)
    assert state.result() == [least, sorted(numbers)[125], statistics.median(numbers), greatest]


BROKEN = {"$divide": [1, 0]}
REFUSALS: list[tuple[Any, int]] = [
    (1, 40234),
    ({}, 40238),
    ({"$nonsense": 1}, 15952),
    ({"$accumulator": {}}, 238),
    ({"$sum": ["$v"]}, 40237),
    ({"$count": 1}, 14),
    ({"$mergeObjects": "$v"}, 40400),
    ({"$firstN": 1}, 5787801),
    *of("$minN", (1, 5787900), ({"x": 1}, 5787901), ({"n": "x", "input": 1}, 5787902)),
    *of("$minN", ({"n": 1.5, "input": 1}, 5787903), ({"input": 1}, 5787906), ({"n": 1}, 5787907)),
    ({"$minN": {"n": 0, "input": 1}}, 5787908),
    *of("$top", (1, 5788001), ({"n": 1}, 5788002)),
    ({"$topN": {"output": 1, "sortBy": {}}}, 5788003),
    *of("$top", ({"sortBy": {}}, 5788004), ({"output": 1}, 5788005), ({"output": 1, "sortBy": 1}, 10065)),
    ({"$percentile": 1}, 7429703),
    *of("$median", (1, 7436100), ({"input": 1, "method": "approximate", "p": [1]}, 40415), ({"input": 1}, 40414)),
    *of("$median", ({"input": 1, "method": 1}, 14), ({"input": 1, "method": "exact"}, 2)),
    ({"$percentile": {"input": 1, "method": "approximate", "p": "$v"}}, 7750300),
    ({"$percentile": {"input": 1, "method": "approximate", "p": []}}, 7750301),
    ({"$percentile": {"input": 1, "method": "approximate", "p": ["x"]}}, 7750302),
    ({"$percentile": {"input": 1, "method": "approximate", "p": [1.1]}}, 7750303),
]


@pytest.mark.parametrize(("spec", "code"), REFUSALS)
def test_refusals(spec: Any, code: int) -> None:
    with pytest.raises(ReplError) as failure:
        result_of(spec, [1])
    assert failure.value.code == code


@pytest.mark.parametrize(
    "spec", [{"$sum": BROKEN}, {"$maxN": {"n": BROKEN, "input": 1}}, {"$top": {"sortBy": {"k": 1}, "output": BROKEN}}]
)
def test_an_error_in_a_constant_needs_no_document(spec: Any) -> None:
    with pytest.raises(ReplError, match="zero"):
        compile_accumulator(spec)


@pytest.mark.parametrize(
    ("expression", "code"),
    [
        ({"$push": 1}, 168),
        ({"$firstN": {"n": 1, "input": 1}}, 5788200),
        ({"$percentile": 1}, 7436200),
        ({"$median": 1}, 7436201),
    ],
)
def test_refusals_of_operators(expression: Any, code: int) -> None:
    with pytest.raises(ReplError) as failure:
        compile_expression(expression)
    assert failure.value.code == code


@pytest.mark.parametrize("name", ["$push", "$addToSet", "$mergeObjects"])
def test_memory_is_limited(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(accumulators, "MAX_BYTES", 10_000)
    with pytest.raises(ReplError) as failure:
        result_of({name: "$v"}, [{"v": {f"f{number}": number}} for number in range(200)])
    assert failure.value.code == 146
