"""Expressions: what each operator makes of its values, and each way to be refused."""

from __future__ import annotations

from typing import Any

import pytest

from replset.bson import encode
from replset.errors import ReplError
from replset.query.expressions import WHOLE, compile_expression
from replset.query.order import MISSING

DOC: dict[str, Any] = {
    "_id": 1,
    "a": 1,
    "n": None,
    "o": {"x": 1, "l": [{"y": 1}, {"y": 2}, {}, 5, [{"y": 3}]]},
    "s": "t",
}


def value_of(expression: Any, document: dict[str, Any] = DOC, **variables: Any) -> Any:
    return compile_expression(expression, variables).evaluate(document, variables)


def assert_same(found: Any, wanted: Any) -> None:
    """Assert that two values are the same, with their types."""
    if wanted is MISSING:
        assert found is MISSING
    else:
        assert encode({"": found}) == encode({"": wanted})


CASES: list[tuple[Any, Any]] = [
    (5, 5),
    ("$a", 1),
    ("$o.x", 1),
    ("$o.l.y", [1, 2]),
    ("$o.l.0", []),
    ("$s.x", MISSING),
    ("$nowhere", MISSING),
    ("$$ROOT.a", 1),
    ("$$CURRENT.o.x", 1),
    ("$$REMOVE", MISSING),
    ({"x": "$a", "gone": "$nowhere", "in": {"y": ["$nowhere", "$s"]}}, {"x": 1, "in": {"y": [None, "t"]}}),
    ({}, {}),
    ([], []),
    ({"$literal": {"$add": ["$a"]}}, {"$add": ["$a"]}),
    ({"$let": {"vars": {"v": "$o", "w": 2}, "in": ["$$v.x", "$$w", "$a"]}}, [1, 2, 1]),
    ({"$let": {"vars": {"v": 1}, "in": {"$let": {"vars": {"v": 2, "w": "$$v"}, "in": ["$$v", "$$w"]}}}}, [2, 1]),
    ({"$let": {"vars": {"CURRENT": "$o"}, "in": ["$x", "$$ROOT.a"]}}, [1, 1]),
    # comparison: a missing value comes before null
    ({"$eq": ["$a", 1.0]}, True),
    ({"$eq": ["$nowhere", None]}, False),
    ({"$lt": ["$nowhere", None]}, True),
    ({"$gt": ["x", 5]}, True),
    ({"$gte": [True, 99]}, True),
    ({"$ne": [[1, 2], [1, 2.0]]}, False),
    ({"$lte": [{"a": 1}, {"a": 2}]}, True),
    ({"$cmp": ["$a", 5]}, -1),
    ({"$cmp": [1, 1.0]}, 0),
    # what decides
    ({"$and": []}, True),
    ({"$and": [1, "x", []]}, True),
    ({"$and": [1, "$nowhere"]}, False),
    ({"$or": []}, False),
    ({"$or": [0, None, "$nowhere", 0.0]}, False),
    ({"$or": [0, ""]}, True),
    ({"$not": ["$n"]}, True),
    ({"$not": "$a"}, False),
    ({"$cond": ["$a", "yes", "no"]}, "yes"),
    ({"$cond": {"if": "$n", "then": "yes", "else": "$nowhere"}}, MISSING),
    ({"$ifNull": ["$n", "$nowhere", 3]}, 3),
    ({"$ifNull": ["$a", 3]}, 1),
    ({"$ifNull": ["$n", "$nowhere"]}, MISSING),
    ({"$switch": {"branches": [{"case": "$n", "then": 1}, {"case": "$a", "then": 2}]}}, 2),
    ({"$switch": {"branches": [{"case": "$n", "then": 1}], "default": "$s"}}, "t"),
]


@pytest.mark.parametrize(("expression", "wanted"), CASES, ids=[str(case[0])[:60] for case in CASES])
def test_what_comes_out(expression: Any, wanted: Any) -> None:
    assert_same(value_of(expression), wanted)


REFUSALS: list[tuple[Any, int]] = [
    ("$", 16872),
    ("$a.", 40353),
    ("$a..b", 15998),
    ("$a.$b", 16410),
    ("$$", 9),
    ("$$nobody", 17276),
    ("$$NOW", 51144),
    ({"$nonsense": 1}, 168),
    ({"$eq": [1, 1], "a": 1}, 15983),
    ({"a": 1, "$eq": 1}, 16410),
    ({"a.b": 1}, 16412),
    ({"$eq": [1]}, 16020),
    ({"$function": {}}, 238),
    ({"$accumulator": {}}, 238),
    ({"$let": 1}, 16874),
    ({"$let": {"vars": {}, "in": 1, "x": 1}}, 16875),
    ({"$let": {"vars": {}}}, 16876),
    ({"$let": {"vars": {"Big": 1}, "in": 1}}, 9),
    ({"$cond": [1, 2]}, 16020),
    ({"$cond": {"if": 1, "then": 1}}, 17082),
    ({"$cond": {"if": 1, "then": 1, "else": 1, "x": 1}}, 17083),
    ({"$ifNull": [1]}, 1257300),
    ({"$switch": 1}, 40060),
    ({"$switch": {"branches": 1}}, 40061),
    ({"$switch": {"branches": [1]}}, 40062),
    ({"$switch": {"branches": [{"x": 1}]}}, 40063),
    ({"$switch": {"branches": [{"then": 1}]}}, 40064),
    ({"$switch": {"branches": [{"case": 1}]}}, 40065),
    ({"$switch": {"branches": [{"case": 0, "then": 1}]}}, 40066),
    ({"$switch": {"x": 1}}, 40067),
    ({"$switch": {"branches": []}}, 40068),
]


@pytest.mark.parametrize(("expression", "code"), REFUSALS, ids=[str(case[0])[:60] for case in REFUSALS])
def test_refusals(expression: Any, code: int) -> None:
    with pytest.raises(ReplError) as failure:
        value_of(expression)
    assert failure.value.code == code


def test_paths_are_what_an_expression_looks_at() -> None:
    assert compile_expression({"x": "$a.b", "y": ["$c", "$$ROOT.d", 5]}).paths == {"a.b", "c", "d"}
    assert compile_expression({"$let": {"vars": {"v": "$a"}, "in": "$$v.b"}}).paths == {"a"}
    assert WHOLE in compile_expression("$$ROOT").paths
    assert WHOLE in compile_expression({"$let": {"vars": {"v": "$$CURRENT"}, "in": "$$v.b"}}).paths


def test_constants_are_folded() -> None:
    folded = compile_expression({"$cond": [{"$eq": [1, 1.0]}, {"a": [1]}, 2]})
    assert (folded.is_constant, folded.value, folded.paths) == (True, {"a": [1]}, frozenset())


@pytest.mark.parametrize("name", ["$not", "$ifNull", "$cond"])
def test_as_deep_as_a_document_can_be(name: str) -> None:
    deep: Any = "$a"
    for _ in range(98):
        deep = {name: [deep, 1, 1][: 1 if name == "$not" else 3]}
    encode({"": deep})
    assert value_of(deep) in (True, False, 1)
