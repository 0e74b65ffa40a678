"""$setWindowFields, $fill and $densify: what they make of documents in order, and each way to be refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from replset.bson import DateTime, Decimal128, encode
from replset.errors import ReplError
from replset.query.pipeline import compile_pipeline
from replset.query.stages import densify
from tests.unit.query.test_stages import Doc, of, run

N: list[Doc] = [{"_id": number, "v": value} for number, value in enumerate([3, 1, None, 4, 10], 1)]
GROUPED: list[Doc] = [{"g": g, "t": t} for g, t in (("b", 2), ("a", 3), ("a", 1), ("b", 2), ("b", 5))]


def date(day: int, hour: int = 0) -> DateTime:
    return DateTime(int(datetime(2024, 1, day, hour, tzinfo=UTC).timestamp() * 1000))


# one function over N in the order of _id: its values
FUNCTIONS: list[tuple[Doc, list[Any]]] = [
    ({"$sum": "$v"}, [18] * 5),
    ({"$sum": "$v", "window": {"documents": ["unbounded", "current"]}}, [3, 4, 4, 8, 18]),
    ({"$sum": "$v", "window": {"documents": [-1, 1]}}, [4, 4, 5, 14, 14]),
    ({"$sum": "$v", "window": {"documents": [1, 2]}}, [1, 4, 14, 10, 0]),
    ({"$sum": "$v", "window": {"documents": [-9, -4]}}, [0, 0, 0, 0, 3]),
    ({"$sum": "$v", "window": {"documents": ["current", "unbounded"]}}, [18, 15, 14, 14, 10]),
    ({"$sum": "$v", "window": {"range": [-1, 0]}}, [3, 4, 1, 4, 14]),
    ({"$sum": "$v", "window": {"range": [0.5, 1.5]}}, [1, 0, 4, 10, 0]),
    ({"$sum": "$v", "window": {"documents": ["unbounded", "unbounded"]}}, [18] * 5),
    ({"$sum": "$v", "window": {"range": ["unbounded", "current"]}}, [3, 4, 4, 8, 18]),
    ({"$max": "$v", "window": {"documents": [-1, 0]}}, [3, 3, 1, 4, 10]),
    ({"$min": "$v", "window": {"documents": [-1, 0]}}, [3, 1, 1, 4, 4]),
    ({"$avg": "$v", "window": {"documents": [-1, 0]}}, [3.0, 2.0, 1.0, 4.0, 7.0]),
    ({"$push": "$v", "window": {"documents": [-1, 0]}}, [[3], [3, 1], [1, None], [None, 4], [4, 10]]),
    ({"$first": "$v", "window": {"documents": [-1, 0]}}, [3, 3, 1, None, 4]),
    ({"$count": {}, "window": {"documents": [-1, 0]}}, [1, 2, 2, 2, 2]),
    ({"$rank": {}}, [1, 2, 3, 4, 5]),
    ({"$documentNumber": {}}, [1, 2, 3, 4, 5]),
    ({"$shift": {"output": "$v", "by": 1, "default": -1}}, [1, None, 4, 10, -1]),
    ({"$shift": {"output": "$v", "by": -2}}, [None, None, 3, 1, None]),
    ({"$locf": "$v"}, [3, 1, 1, 4, 10]),
    ({"$linearFill": "$v"}, [3, 1, 2.5, 4, 10]),
    ({"$expMovingAvg": {"input": "$v", "N": 3}}, [3.0, 2.0, 2.0, 3.0, 6.5]),
    ({"$expMovingAvg": {"input": "$v", "alpha": 0.25}}, [3.0, 2.5, 2.5, 2.875, 4.65625]),
    ({"$derivative": {"input": "$_id"}, "window": {"documents": [-1, 0]}}, [None, 1.0, 1.0, 1.0, 1.0]),
    ({"$integral": {"input": "$_id"}, "window": {"documents": [-1, 0]}}, [0.0, 1.5, 2.5, 3.5, 4.5]),
    ({"$covariancePop": ["$_id", "$_id"], "window": {"documents": [-1, 0]}}, [0.0, 0.25, 0.25, 0.25, 0.25]),
    ({"$covarianceSamp": ["$_id", "$_id"], "window": {"documents": [-1, 0]}}, [None, 0.5, 0.5, 0.5, 0.5]),
]


@pytest.mark.parametrize(("function", "wanted"), FUNCTIONS, ids=[str(function) for function, _ in FUNCTIONS])
def test_functions(function: Doc, wanted: list[Any]) -> None:
    found = run([{"$setWindowFields": {"sortBy": {"_id": 1}, "output": {"x": function}}}], N[::-1])
    assert [document["_id"] for document in found] == [1, 2, 3, 4, 5]
    assert encode({"": [document["x"] for document in found]}) == encode({"": wanted})


RESULTS: list[tuple[Doc, list[Doc], list[Doc]]] = [
    (
        {
            "$setWindowFields": {
                "partitionBy": "$g",
                "sortBy": {"t": -1},
                "output": {"r": {"$rank": {}}, "d.e": {"$denseRank": {}}},
            }
        },
        GROUPED,
        [
            {"g": "a", "t": 3, "r": 1, "d": {"e": 1}},
            {"g": "a", "t": 1, "r": 2, "d": {"e": 2}},
            {"g": "b", "t": 5, "r": 1, "d": {"e": 1}},
            {"g": "b", "t": 2, "r": 2, "d": {"e": 2}},
            {"g": "b", "t": 2, "r": 2, "d": {"e": 2}},
        ],
    ),
    (
        {
            "$setWindowFields": {
                "sortBy": {"t": 1},
                "output": {"n": {"$sum": 1, "window": {"range": [-1, 0], "unit": "day"}}},
            }
        },
        [{"t": date(1)}, {"t": date(2)}, {"t": date(4)}, {"t": date(4, 5)}],
        [{"t": date(1), "n": 1}, {"t": date(2), "n": 2}, {"t": date(4), "n": 1}, {"t": date(4, 5), "n": 2}],
    ),
    (
        {
            "$setWindowFields": {
                "sortBy": {"t": 1},
                "output": {
                    "d": {"$derivative": {"input": "$v", "unit": "hour"}, "window": {"documents": ["unbounded", 0]}}
                },
            }
        },
        [{"t": date(1), "v": 0}, {"t": date(1, 2), "v": 10}],
        [{"t": date(1), "v": 0, "d": None}, {"t": date(1, 2), "v": 10, "d": 5.0}],
    ),
    # $fill
    (
        {"$fill": {"output": {"v": {"value": 0}}}},
        [{"v": None}, {"v": 5}, {"a": 1}],
        [{"v": 0}, {"v": 5}, {"a": 1, "v": 0}],
    ),
    (
        {"$fill": {"sortBy": {"t": 1}, "partitionByFields": ["g"], "output": {"v": {"method": "locf"}}}},
        [{"g": 1, "t": 2}, {"g": 1, "t": 1, "v": 7}, {"g": 2, "t": 1}],
        [{"g": 1, "t": 1, "v": 7}, {"g": 1, "t": 2, "v": 7}, {"g": 2, "t": 1, "v": None}],
    ),
    (
        {"$fill": {"sortBy": {"t": 1}, "output": {"v": {"method": "linear"}}}},
        [{"t": 0, "v": 10}, {"t": 5}, {"t": 20, "v": Decimal128("50")}, {"t": 21}],
        [{"t": 0, "v": 10}, {"t": 5, "v": Decimal128("20")}, {"t": 20, "v": Decimal128("50")}, {"t": 21, "v": None}],
    ),
    # $densify
    (
        {"$densify": {"field": "t", "range": {"step": 2, "bounds": "full"}}},
        [{"t": 6, "x": 1}, {"t": 1}, {"x": 2}],
        [{"x": 2}, {"t": 1}, {"t": 3}, {"t": 5}, {"t": 6, "x": 1}],
    ),
    (
        {"$densify": {"field": "t", "range": {"step": 1, "bounds": [2, 5]}}},
        [{"t": 1}, {"t": 3.5}, {"t": 4}, {"t": 9}],
        [{"t": 1}, {"t": 2}, {"t": 3}, {"t": 3.5}, {"t": 4}, {"t": 9}],
    ),
    (
        {"$densify": {"field": "t", "partitionByFields": ["g"], "range": {"step": 1, "bounds": "partition"}}},
        [{"g": "b", "t": 7}, {"g": "a", "t": 3}, {"g": "a", "t": 1}, {"g": "b", "t": 5}],
        [{"g": "a", "t": t} for t in (1, 2, 3)] + [{"g": "b", "t": t} for t in (5, 6, 7)],
    ),
    (
        {"$densify": {"field": "t", "partitionByFields": ["g"], "range": {"step": 2, "bounds": "full"}}},
        [{"g": "a", "t": 1}, {"g": "b", "t": 5}],
        [{"g": g, "t": t} for g in "ab" for t in (1, 3, 5)],
    ),
    (
        {
            "$densify": {
                "field": "t",
                "range": {"step": 1, "unit": "month", "bounds": [date(31), DateTime(date(31).ms + 1)]},
            }
        },
        [],
        [{"t": date(31)}],
    ),
    (
        {"$densify": {"field": "t", "range": {"step": 12, "unit": "hour", "bounds": "full"}}},
        [{"t": date(1)}, {"t": date(2)}],
        [{"t": date(1)}, {"t": date(1, 12)}, {"t": date(2)}],
    ),
]


@pytest.mark.parametrize(("stage", "documents", "wanted"), RESULTS, ids=[str(stage)[:80] for stage, _, _ in RESULTS])
def test_what_comes_out(stage: Doc, documents: list[Doc], wanted: list[Doc]) -> None:
    assert run([stage], documents) == wanted


def window(output: Any, **more: Any) -> Doc:
    return {"$setWindowFields": {"output": output, **more}}


SORTED: Doc = {"sortBy": {"a": 1}}
REFUSED: list[tuple[Any, int]] = [
    *of("$setWindowFields", (1, 9), ({}, 40414), ({"x": 1}, 40415)),
    (window(1), 14),
    (window({}, sortBy=1), 14),
    (window({"a": 1}), 9),
    (window({"a": {}}), 9),
    (window({"a": {"$sum": 1, "$avg": 1}}), 9),
    (window({"a": {"$nope": 1}}), 9),
    (window({"a": {"$mergeObjects": "$x"}}), 9),
    (window({"a": {"$sum": 1, "window": 1}}), 9),
    (window({"a": {"$sum": 1, "window": {"documents": [0]}}}, **SORTED), 9),
    (window({"a": {"$sum": 1, "window": {"documents": ["x", 0]}}}, **SORTED), 9),
    (window({"a": {"$sum": 1, "window": {"documents": [0.5, 1]}}}, **SORTED), 9),
    (window({"a": {"$sum": 1, "window": {"documents": [2, 1]}}}, **SORTED), 5339900),
    (window({"a": {"$sum": 1, "window": {"documents": [0, 1]}}}), 5339901),
    (window({"a": {"$sum": 1, "window": {"range": [0, 1]}}}), 5339902),
    (window({"a": {"$sum": 1, "window": {"range": [0, 1]}}}, sortBy={"a": -1}), 5339902),
    (window({"a": {"$sum": 1, "window": {"range": [0, 1], "documents": [0, 1]}}}, **SORTED), 9),
    (window({"a": {"$sum": 1, "window": {"range": [0, 1], "unit": "x"}}}, **SORTED), 9),
    (window({"a": {"$rank": {}}}), 5371602),
    (window({"a": {"$rank": 1}}, **SORTED), 5371603),
    (window({"a": {"$rank": {}, "window": {}}}, **SORTED), 5371601),
    (window({"a": {"$shift": {"output": 1}}}, **SORTED), 9),
    (window({"a": {"$shift": {"output": 1, "by": 1.5}}}, **SORTED), 9),
    (window({"a": {"$shift": {"output": 1, "by": 1, "default": "$x"}}}, **SORTED), 9),
    (window({"a": {"$expMovingAvg": {"input": "$x", "alpha": 1}}}, **SORTED), 9),
    (window({"a": {"$expMovingAvg": {"input": "$x", "N": 0}}}, **SORTED), 9),
    (window({"a": {"$derivative": {}}}, **SORTED), 9),
    (window({"a": {"$derivative": {"input": "$x", "unit": "month"}}}, **SORTED), 5490710),
    (window({"a": {"$covariancePop": "$x"}}, **SORTED), 9),
    *of("$fill", (1, 9), ({}, 6050203), ({"x": 1}, 40415), ({"output": {"a": 1}}, 6050200)),
    *of("$fill", ({"output": {"a": {"value": 1, "method": "locf"}}}, 6050201), ({"output": {"a": {"x": 1}}}, 40415)),
    ({"$fill": {"output": {"a": {"method": "x"}}}}, 6050202),
    ({"$fill": {"output": {"a": {"value": 1}}, "partitionBy": "$x", "partitionByFields": ["y"]}}, 6050204),
    *of("$densify", (1, 9), ({"x": 1}, 40415), ({"field": 1}, 14), ({"field": "a"}, 14)),
    ({"$densify": {"field": "a", "range": {"step": 0, "bounds": "full"}}}, 5733401),
    ({"$densify": {"field": "a", "range": {"step": 1, "bounds": "x"}}}, 5946802),
    ({"$densify": {"field": "a", "range": {"step": 1, "bounds": [1]}}}, 5733403),
    ({"$densify": {"field": "a", "range": {"step": 1, "bounds": [2, 1]}}}, 5733402),
    ({"$densify": {"field": "a", "range": {"step": 1, "bounds": 1}}}, 5733404),
    ({"$densify": {"field": "a", "range": {"step": 1, "unit": "day", "bounds": [1, 2]}}}, 5733409),
    ({"$densify": {"field": "a", "range": {"step": 1, "bounds": [1, "x"]}}}, 5733406),
    ({"$densify": {"field": "a", "range": {"step": 1, "bounds": [1, 2.5]}}}, 5876900),
    ({"$densify": {"field": "a", "range": {"step": 1, "bounds": ["x", "y"]}}}, 5946800),
    ({"$densify": {"field": "a", "range": {"step": 1, "bounds": [date(1), date(2)]}}}, 5733410),
    ({"$densify": {"field": "a", "range": {"step": 1, "bounds": "partition"}}}, 5733408),
    ({"$densify": {"field": "a", "range": {"step": 1, "unit": "x", "bounds": "full"}}}, 9),
    ({"$densify": {"field": "a", "range": {"step": 1.5, "unit": "day", "bounds": "full"}}}, 6586400),
]


@pytest.mark.parametrize(("stage", "code"), REFUSED, ids=[str(stage)[:90] for stage, _ in REFUSED])
def test_refused(stage: Any, code: int) -> None:
    with pytest.raises(ReplError) as failure:
        compile_pipeline([stage])
    assert failure.value.code == code, failure.value.message


FULL: Doc = {"field": "t", "range": {"step": 1, "bounds": "full"}}
FAILS: list[tuple[Any, list[Doc], int]] = [
    (window({}, partitionBy="$g"), [{"g": [1]}], 14),
    (window({"x": {"$sum": 1, "window": {"range": [0, 1]}}}, sortBy={"t": 1}), [{"t": "x"}], 5429414),
    (window({"x": {"$sum": 1, "window": {"range": [0, 1], "unit": "day"}}}, sortBy={"t": 1}), [{"t": 1}], 5429513),
    (window({"x": {"$linearFill": "$v"}}, sortBy={"t": 1}), [{"t": 1, "v": "x"}], 6050106),
    (window({"x": {"$linearFill": "$v"}}, sortBy={"t": 1}), [{"t": 1, "v": 1}, {"t": 1}, {"t": 1, "v": 1}], 6050106),
    ({"$densify": FULL}, [{"t": "x"}], 5733201),
    ({"$densify": FULL}, [{"t": date(1)}], 6053600),
    ({"$densify": FULL}, [{"t": 0}, {"t": 200}], 5897900),
]


@pytest.mark.parametrize(("stage", "documents", "code"), FAILS, ids=[str(stage)[:90] for stage, _, _ in FAILS])
def test_documents_that_fail(monkeypatch: pytest.MonkeyPatch, stage: Any, documents: list[Doc], code: int) -> None:
    monkeypatch.setattr(densify, "MAX_ADDED", 100)
    with pytest.raises(ReplError) as failure:
        run([stage], documents)
    assert failure.value.code == code, failure.value.message
