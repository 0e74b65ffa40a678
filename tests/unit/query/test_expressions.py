"""Expressions: what each operator makes of its values, and each way to be refused."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from replset.bson import DateTime, Decimal128, Int64, encode
from replset.errors import MaxTimeMSExpiredError, ReplError
from replset.operations.evaluation import UNBOUNDED, weight_of
from replset.query import sizes
from replset.query.expressions import OPERATORS, WHOLE, compile_expression, compiler
from replset.query.order import MISSING
from replset.query.projection import compile_projection
from replset.query.time_limit import time_limit

DOC: dict[str, Any] = {
    "_id": 1,
    "a": 1,
    "n": None,
    "o": {"x": 1, "l": [{"y": 1}, {"y": 2}, {}, 5, [{"y": 3}]]},
    "s": "t",
    "r": [{"$ref": "c", "$id": 1}, {"$id": 2}],
}


def value_of(expression: Any, document: dict[str, Any] = DOC, **variables: Any) -> Any:
    return compile_expression(expression, variables).evaluate(document, variables)


def assert_same(found: Any, wanted: Any) -> None:
    """Assert that two values are the same, with their types."""
    if wanted is MISSING:
        assert found is MISSING
    else:
        assert encode({"": found}) == encode({"": wanted})


def of(operator: str, *rows: tuple[Any, ...]) -> list[Any]:
    """Rows that begin with this operator's argument."""
    return [({operator: argument}, *rest) for argument, *rest in rows]


BROKEN = {"$divide": [1, 0]}
CASES: list[tuple[Any, Any]] = [
    (5, 5),
    ("$a", 1),
    ("$o.x", 1),
    ("$o.l.y", [1, 2]),
    ("$o.l.0", []),
    ("$s.x", MISSING),
    ("$r.$id", [1, 2]),
    ("$$ROOT.r.$ref", ["c"]),
    ({"a": 1, "$id": "$a"}, {"a": 1, "$id": 1}),
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
    *of("$eq", (["$a", 1.0], True), (["$nowhere", None], False)),
    ({"$lt": ["$nowhere", None]}, True),
    ({"$gt": ["x", 5]}, True),
    ({"$gte": [True, 99]}, True),
    ({"$ne": [[1, 2], [1, 2.0]]}, False),
    ({"$lte": [{"a": 1}, {"a": 2}]}, True),
    ({"$eq": ["$o.l.y", [1, 2.0]]}, True),
    ({"$ne": ["$o.l.y", {"$literal": [1]}]}, True),
    ({"$gt": ["$a", {"$literal": {"a": 1}}]}, False),
    ({"$lt": ["$nowhere", []]}, True),
    *of("$cmp", (["$a", 5], -1), ([1, 1.0], 0)),
    # what decides
    *of("$and", ([], True), ([1, "x", []], True), ([1, "$nowhere"], False)),
    *of("$or", ([], False), ([0, None, "$nowhere", 0.0], False), ([0, ""], True)),
    *of("$not", (["$n"], True), ("$a", False)),
    *of("$cond", (["$a", "yes", "no"], "yes"), ({"if": "$n", "then": "yes", "else": "$nowhere"}, MISSING)),
    *of("$ifNull", (["$n", "$nowhere", 3], 3), (["$a", 3], 1), (["$n", "$nowhere"], MISSING)),
    ({"$switch": {"branches": [{"case": "$n", "then": 1}, {"case": "$a", "then": 2}]}}, 2),
    ({"$switch": {"branches": [{"case": "$n", "then": 1}], "default": "$s"}}, "t"),
    # what can never be reached raises nothing, and a constant that decides is enough
    ({"$switch": {"branches": [{"case": 0, "then": BROKEN}, {"case": "$a", "then": 2}]}}, 2),
    ({"$switch": {"branches": [{"case": 1, "then": 2}, {"case": BROKEN, "then": BROKEN}]}}, 2),
    ({"$switch": {"branches": [{"case": "$n", "then": 1}, {"case": 1, "then": "$s"}], "default": 5}}, "t"),
    ({"$and": [{"$divide": [1, "$s"]}, 0]}, False),
    ({"$or": [{"$divide": [1, "$s"]}, 1]}, True),
    # arithmetic: the widest type counts
    *of("$add", ([], 0), ([1, 2**31 - 1], 2**31), ([Int64(1), 2], Int64(3)), ([Int64(2**63 - 1), 1], 2.0**63)),
    *of("$add", ([1, 0.5], 1.5), ([0.1, Decimal128("1")], Decimal128("1.100000000000000005551115123125783"))),
    *of("$add", ([Decimal128("1"), 0.1], Decimal128("1.100000000000000")), ([DateTime(5), 1.6], DateTime(7))),
    ({"$add": [1, "$n", "x"]}, None),
    *of("$subtract", ([Int64(-(2**63)), 1], -(2.0**63)), ([DateTime(7), DateTime(5)], Int64(2))),
    *of("$subtract", ([DateTime(7), 2.9], DateTime(5)), (["$nowhere", 1], None)),
    *of("$multiply", ([2**31 - 1, 2], 2**32 - 2), ([2**40, 2**40], 2.0**80), (["$a", "$n"], None)),
    *of("$divide", ([1, 4], 0.25), ([Decimal128("1"), 3], Decimal128("0." + "3" * 34))),
    *of("$mod", ([-7, 3], -1), ([7.5, -2], 1.5), ([7, 2.0], 1), ([7, Int64(2)], Int64(1))),
    ({"$mod": [Decimal128("7.5"), 2]}, Decimal128("1.5")),
    *of("$abs", (-(2**31), 2**31), (Decimal128("-" + "9" * 34), Decimal128("9" * 34)), ("$n", None)),
    *of("$ceil", (-0.5, -0.0), (Decimal128("1.2"), Decimal128("2"))),
    *of("$floor", (Decimal128("-1.5"), Decimal128("-2")), (Int64(5), Int64(5))),
    *of("$round", ([2.5], 2.0), ([1.298, 100], 1.298), ([1234567, -3], 1235000)),
    *of("$round", ([Decimal128("1.25"), 1], Decimal128("1.2")), ([1.5, "$n"], None)),
    ({"$round": [Decimal128("1.298"), 100]}, Decimal128("1.298000000000000000000000000000000")),
    *of("$trunc", ([-1.77, 1], -1.7), ([Int64(1999), -3], Int64(1000))),
    *of("$pow", ([2, 62], 2**62), ([2, 63], 2.0**63), ([2, -1], 0.5), ([-1, Int64(10**18 + 1)], Int64(-1))),
    *of("$pow", ([0, 0], 1), ([-8.0, 0.5], float("nan"))),
    ({"$pow": [Decimal128("2"), 0.5]}, Decimal128("1.414213562373095048801688724209698")),
    *of("$exp", (0, 1.0), (1000, float("inf")), (Decimal128("1"), Decimal128("2.718281828459045235360287471352662"))),
    *of("$sqrt", (25, 5.0), (Decimal128("2"), Decimal128("1.414213562373095048801688724209698"))),
    *of("$ln", (1, 0.0), (Decimal128("NaN"), Decimal128("NaN"))),
    *of("$log", ([100, 10], 2.0), ([65, Decimal128("8")], Decimal128("2.007455937676151502755710694582028"))),
    ({"$log": [float("nan"), 10]}, float("nan")),
    ({"$log10": Decimal128("1000")}, Decimal128("3")),
    *of("$sin", (0, 0.0), (Decimal128("1"), Decimal128("0.8414709848078965066525023216302990"))),
    ({"$cos": Decimal128("1")}, Decimal128("0.5403023058681397174009366074429766")),
    ({"$tan": Decimal128("1")}, Decimal128("1.557407724654902230506974807458360")),
    ({"$asin": Decimal128("0.5")}, Decimal128("0.5235987755982988730771072305465838")),
    ({"$acos": Decimal128("-1")}, Decimal128("3.141592653589793238462643383279503")),
    ({"$atan": Decimal128("Infinity")}, Decimal128("1.570796326794896619231321691639751")),
    ({"$atan2": [1, -1.0]}, 2.356194490192345),
    ({"$atan2": [Decimal128("1"), -1]}, Decimal128("2.356194490192344928846982537459627")),
    *of("$sinh", (-5000, float("-inf")), (Decimal128("1"), Decimal128("1.175201193643801456882381850595601"))),
    ({"$cosh": Decimal128("1")}, Decimal128("1.543080634815243778477905620757062")),
    ({"$tanh": Decimal128("0.5")}, Decimal128("0.4621171572600097585023184836436725")),
    ({"$asinh": Decimal128("2")}, Decimal128("1.443635475178810342493276740273105")),
    ({"$acosh": Decimal128("2")}, Decimal128("1.316957896924816708625046347307968")),
    *of("$atanh", (1, float("inf")), (Decimal128("0.5"), Decimal128("0.5493061443340548456976226184612629"))),
    ({"$degreesToRadians": 180}, 3.141592653589793),
    ({"$radiansToDegrees": Decimal128("0")}, Decimal128("0E-88")),
    # arrays
    *of("$arrayElemAt", ([[1, 2, 3], -1], 3), ([[1, 2, 3], 3.0], MISSING), (["$n", 3], None)),
    ({"$first": [[1, 2]]}, 1),
    *of("$last", ("$o.l.y", 2), ([[]], MISSING)),
    *of("$concatArrays", ([], []), ([[1], [[2]], []], [1, [2]]), ([[1], "$n"], None)),
    *of("$in", ([2.0, "$o.l.y"], True), (["$nowhere", [None]], False)),
    *of("$indexOfArray", ([[1, 2, 1], 1.0], 0), ([[1, 2, 1], 1, 1], 2), ([[1, 2, 1], 1, 1, 2], -1), (["$n", 1], None)),
    *of("$isArray", ([[1]], True), ("$a", False)),
    *of("$range", ([0, 5, 2], [0, 2, 4]), ([5, 0, -3], [5, 2]), ([0, 5, -1], [])),
    ({"$reverseArray": [[1, 2]]}, [2, 1]),
    ({"$size": [[1, 2]]}, 2),
    *of("$slice", ([[1, 2, 3], 2], [1, 2]), ([[1, 2, 3], -2], [2, 3]), ([[1, 2, 3], -5, 2], [1, 2])),
    *of("$slice", ([[1, 2, 3], 1, 5], [2, 3]), ([[1, 2, 3], 0], []), ([[1, 2, 3], 0, "$n"], None)),
    ({"$map": {"input": "$o.l.y", "in": {"$add": ["$$this", "$a"]}}}, [2, 3]),
    ({"$map": {"input": "$o.l", "as": "i", "in": "$$i.y"}}, [1, 2, None, None, [3]]),
    ({"$map": {"input": "$n", "in": 1}}, None),
    (
        {"$map": {"input": [1, 2], "in": {"$map": {"input": [5], "as": "b", "in": ["$$this", "$$b"]}}}},
        [[[1, 5]], [[2, 5]]],
    ),
    ({"$filter": {"input": [1, 2, 3], "cond": {"$gte": ["$$this", 2]}}}, [2, 3]),
    ({"$filter": {"input": [1, 2, 3], "as": "i", "cond": "$$i", "limit": 2}}, [1, 2]),
    ({"$filter": {"input": [1, 2], "cond": True, "limit": "$n"}}, [1, 2]),
    ({"$filter": {"input": "$nowhere", "cond": True}}, None),
    ({"$reduce": {"input": [1, 2, 3], "initialValue": 10, "in": {"$subtract": ["$$value", "$$this"]}}}, 4),
    ({"$reduce": {"input": [], "initialValue": "$nowhere", "in": 1}}, MISSING),
    ({"$reduce": {"input": "$n", "initialValue": 1, "in": 1}}, None),
    ({"$sortArray": {"input": [3, "a", 1.0, None, [0]], "sortBy": 1}}, [None, 1.0, 3, "a", [0]]),
    ({"$sortArray": {"input": [1, 3, 2], "sortBy": -1}}, [3, 2, 1]),
    (
        {"$sortArray": {"input": [{"a": 2}, {"a": 1, "b": 1}, {"a": 1}, 5], "sortBy": {"a": 1, "b": 1}}},
        [5, {"a": 1}, {"a": 1, "b": 1}, {"a": 2}],
    ),
    ({"$zip": {"inputs": [[1, 2, 3], ["a", "b"]]}}, [[1, "a"], [2, "b"]]),
    ({"$zip": {"inputs": [[1, 2], ["a"]], "useLongestLength": True}}, [[1, "a"], [2, None]]),
    ({"$zip": {"inputs": [[1, 2], ["a"]], "useLongestLength": True, "defaults": [0, "$s"]}}, [[1, "a"], [2, "t"]]),
    ({"$zip": {"inputs": [[1], "$n"]}}, None),
    # sets come sorted
    *of("$setUnion", ([[3, 1], [2, 1.0]], [1, 2, 3]), ([[1], "$n"], None)),
    *of("$setIntersection", ([[3, 1, 2], [2.0, 3, 3]], [2, 3]), ([], [])),
    *of("$setDifference", ([[3, 1, 3, 2], [1]], [3, 2]), ([[1], "$nowhere"], None)),
    *of("$setEquals", ([[1, 2], [2, 1, 1.0]], True), ([[1, 2], [2]], False)),
    ({"$setIsSubset": [[1, 1], [2, 1]]}, True),
    *of("$allElementsTrue", ([[1, True, "x"]], True), ([[1, None]], False)),
    *of("$anyElementTrue", ([[0, None, False]], False), ([[0, "x"]], True)),
    # documents
    *of("$mergeObjects", ([{"x": 1, "y": 2}, "$n", {"x": 3}], {"x": 3, "y": 2}), ("$o.l.0", {})),
    ({"$mergeObjects": [[{"x": 1}, {"y": 2}]]}, {"x": 1, "y": 2}),
    ({"$objectToArray": {"x": 1, "y": "$a"}}, [{"k": "x", "v": 1}, {"k": "y", "v": 1}]),
    ({"$arrayToObject": [[["x", 1], ["y", 2], ["x", 3]]]}, {"x": 3, "y": 2}),
    *of("$arrayToObject", ([[{"k": "x.y", "v": 1}]], {"x.y": 1}), ("$n", None)),
    *of("$getField", ("s", "t"), ({"$literal": "$s"}, MISSING), ({"field": "x", "input": "$o"}, 1)),
    *of("$getField", ({"field": "x", "input": "$n"}, None), ({"field": "x", "input": 5}, MISSING)),
    ({"$setField": {"field": "a.b", "input": {"x": 1}, "value": "$a"}}, {"x": 1, "a.b": 1}),
    ({"$setField": {"field": {"$literal": "$x"}, "input": {"x": 1}, "value": 2}}, {"x": 1, "$x": 2}),
    ({"$setField": {"field": "x", "input": {"x": 1, "y": 2}, "value": "$$REMOVE"}}, {"y": 2}),
    ({"$setField": {"field": "x", "input": "$n", "value": 2}}, None),
    ({"$unsetField": {"field": "x", "input": {"x": 1, "y": 2}}}, {"y": 2}),
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
    ({"": 1}, 15998),
    ({"$id": 1}, 168),
    ({"$eq": [1]}, 16020),
    ({"$function": {}}, 238),
    ({"$accumulator": {}}, 238),
    *of("$let", (1, 16874), ({"vars": {}, "in": 1, "x": 1}, 16875), ({"in": 1}, 16876), ({"vars": {}}, 16877)),
    *of("$let", ({"vars": 1, "in": 1}, 10065), ({"vars": {"Big": 1}, "in": 1}, 9)),
    *of("$cond", ([1, 2], 16020), ({"if": 1, "then": 1}, 17082), ({"if": 1, "then": 1, "else": 1, "x": 1}, 17083)),
    ({"$ifNull": [1]}, 1257300),
    *of("$switch", (1, 40060), ({"branches": 1}, 40061), ({"branches": [1]}, 40062)),
    *of("$switch", ({"branches": [{"x": 1}]}, 40063), ({"branches": [{"then": 1}]}, 40064)),
    *of("$switch", ({"branches": [{"case": 1}]}, 40065), ({"branches": [{"case": "$n", "then": 1}]}, 40066)),
    ({"$switch": {"branches": [{"case": 0, "then": 1}]}}, 40069),
    ({"$switch": {"branches": [{"case": 0, "then": {"$nonsense": 1}}], "default": 1}}, 168),
    ({"$switch": {"branches": [{"case": 1, "then": 1}], "default": BROKEN}}, 2),
    ({"$cond": [1, 2, BROKEN]}, 2),
    ({"$and": [0, BROKEN]}, 2),
    ({"$ifNull": [1, BROKEN]}, 2),
    *of("$switch", ({"x": 1}, 40067), ({"branches": []}, 40068)),
    *of("$add", (["x", None], 14), ([DateTime(1), DateTime(1)], 16612), ([DateTime(1), float("inf")], 15)),
    ({"$add": [DateTime(2**63 - 1), 1]}, 15),
    *of("$subtract", ([1, "x"], 14), ([1, DateTime(1)], 14), ([DateTime(-(2**63)), DateTime(1)], 15)),
    ({"$subtract": [DateTime(1), Decimal128("NaN")]}, 15),
    ({"$multiply": ["x"]}, 14),
    (BROKEN, 2),
    *of("$divide", ([1, Decimal128("0")], 2), ([1, "x"], 14)),
    *of("$mod", ([1, 0.0], 16610), ([1, Decimal128("0")], 5733415), ([1, "x"], 16611)),
    *of("$abs", ("x", 28765), (Int64(-(2**63)), 28680)),
    *of("$round", ("x", 51081), ([1, 0.5], 51082), ([1, 101], 51083), ([Int64(2**63 - 1), -1], 51080)),
    ({"$round": [1, 2, 3]}, 28667),
    *of("$pow", (["x", 1], 28762), ([1, "x"], 28763), ([0, -1], 28764)),
    *of("$sqrt", (-1, 28714), (Decimal128("-1"), 28714)),
    ({"$ln": 0}, 28766),
    ({"$log10": Decimal128("-1")}, 28761),
    *of("$log", (["x", 1], 28756), ([1, "x"], 28757), ([0, 2], 28758), ([2, 1], 28759)),
    *of("$sin", (float("inf"), 50989), (Decimal128("1E+41"), 50989)),
    ({"$acos": 1.5}, 50989),
    ({"$acosh": Decimal128("0.5")}, 50989),
    *of("$atan2", (["x", 1], 51044), ([1, "x"], 51045)),
    ({"$arrayElemAt": [1, 1]}, 28689),
    ({"$first": 1}, 28689),
    *of("$arrayElemAt", ([[1], "x"], 28690), ([[1], 0.5], 28691)),
    ({"$concatArrays": [1]}, 28664),
    ({"$in": [1, 1]}, 40081),
    *of("$indexOfArray", ([1, 1], 40090), ([[], 1, "x"], 40096), ([[], 1, -1], 40097)),
    *of("$range", (["x", 1], 34443), ([0.5, 1], 34444), ([0, "x"], 34445), ([0, 2**31], 34446), ([0, 1, "x"], 34447)),
    *of("$range", ([0, 1, 0.5], 34448), ([0, 1, 0], 34449), ([0, 2**31 - 1], 146)),
    ({"$reverseArray": 1}, 34435),
    ({"$size": "$nowhere"}, 17124),
    *of("$slice", ([1, 1], 28724), ([[], "x"], 28725), ([[], 0.5], 28726), ([[], 1, "x"], 28727)),
    *of("$slice", ([[], 1, 0.5], 28728), ([[], 1, 0], 28729)),
    *of("$map", (1, 16878), ({"x": 1}, 16879), ({"in": 1}, 16880), ({"input": 1}, 16882)),
    *of("$map", ({"input": 1, "in": 1}, 16883), ({"input": 1, "as": "1", "in": 1}, 9)),
    ({"$map": {"input": 1, "as": "i", "in": "$$this"}}, 17276),
    *of("$filter", (1, 28646), ({"x": 1}, 28647), ({"cond": 1}, 28648), ({"input": 1}, 28650)),
    *of("$filter", ({"input": 1, "cond": 1}, 28651), ({"input": [1], "cond": 1, "limit": 0.5}, 327391)),
    ({"$filter": {"input": [1], "cond": 1, "limit": 0}}, 327392),
    *of("$reduce", (1, 40075), ({"x": 1}, 40076), ({"initialValue": 1, "in": 1}, 40077)),
    *of("$reduce", ({"input": 1, "in": 1}, 40078), ({"input": 1, "initialValue": 1}, 40079)),
    ({"$reduce": {"input": 1, "initialValue": 1, "in": 1}}, 40080),
    *of("$sortArray", (1, 2942500), ({"x": 1}, 2942501), ({"sortBy": 1}, 2942502), ({"input": []}, 2942503)),
    *of("$sortArray", ({"input": 1, "sortBy": 1}, 2942504), ({"input": [], "sortBy": {}}, 2942505)),
    *of("$sortArray", ({"input": [], "sortBy": {"a": 2}}, 2942505), ({"input": [], "sortBy": 2}, 2942506)),
    ({"$sortArray": {"input": [], "sortBy": "x"}}, 2942507),
    *of("$zip", (1, 34460), ({"inputs": 1}, 34461), ({"inputs": [[1]], "defaults": 1}, 34462)),
    *of("$zip", ({"inputs": [[1]], "useLongestLength": 1}, 34463), ({"x": 1}, 34464), ({}, 34465)),
    ({"$zip": {"inputs": [[1]], "defaults": [1]}}, 34466),
    *of("$zip", ({"inputs": [[1]], "useLongestLength": True, "defaults": [1, 2]}, 34467), ({"inputs": [1]}, 34468)),
    ({"$setUnion": [1]}, 17043),
    ({"$setIntersection": [1]}, 17047),
    *of("$setDifference", ([1, []], 17048), ([[], 1], 17049)),
    *of("$setEquals", ([1, []], 17044), ([[]], 17045)),
    *of("$setIsSubset", ([1, []], 17046), ([[], 1], 17042)),
    ({"$allElementsTrue": "$n"}, 17040),
    ({"$anyElementTrue": 1}, 17041),
    ({"$mergeObjects": 1}, 40400),
    ({"$objectToArray": 1}, 40390),
    *of("$arrayToObject", (1, 40386), ([[{"k": "x", "v": 1}, 1]], 40391), ([[{"k": "x"}]], 40392)),
    *of("$arrayToObject", ([[{"k": "x", "w": 1}]], 40393), ([[{"k": 1, "v": 1}]], 40394), ([[[1, 1]]], 40395)),
    *of("$arrayToObject", ([[["x", 1], 1]], 40396), ([[["x"]]], 40397), ([[1]], 40398), ([[["x\0", 1]]], 4940400)),
    *of("$getField", ({"field": "x", "y": 1}, 3041701), ({"input": 1}, 3041702), ({"field": "x"}, 3041703)),
    *of("$getField", ("$s", 5654600), ({"$add": ["$a"]}, 5654601), (1, 5654602)),
    *of("$setField", (1, 4161100), ({"x": 1}, 4161101)),
    ({"$unsetField": {"field": "x", "input": {}, "value": 1}}, 4161101),
    *of("$setField", ({"input": 1, "value": 1}, 4161102), ({"field": "x", "input": 1}, 4161103)),
    ({"$setField": {"field": "x", "input": 1, "value": 1}}, 4161105),
    ({"$setField": {"field": {"$add": ["$a"]}, "input": 1, "value": 1}}, 4161106),
    ({"$setField": {"field": 1, "input": 1, "value": 1}}, 4161107),
    *of("$setField", ({"field": "$x", "input": 1, "value": 1}, 4161108), ({"field": "x", "value": 1}, 4161109)),
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


def test_each_part_is_compiled_once() -> None:
    def calls(name: str, depth: int) -> int:
        deep: Any = "$a"
        for _ in range(depth):
            deep = {name: ["$s", [deep, 1]]}
        count = 0

        def on_event(_frame: object, event: str, _argument: object) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(on_event)
        try:
            with suppress(ReplError):
                compile_expression(deep)
        finally:
            sys.setprofile(None)
        return count

    assert [name for name in OPERATORS if calls(name, 12) > 3 * calls(name, 6) + 100] == []


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_as_deep_as_a_document_can_be(name: str) -> None:
    deep: Any = "$a"
    for _ in range(197):
        deep = {name: deep}
    encode({"": deep})
    with suppress(ReplError):
        on_a_deep_stack(200, lambda: value_of(deep))


def on_a_deep_stack(frames: int, work: Callable[[], Any]) -> Any:
    return on_a_deep_stack(frames - 1, work) if frames else work()


TWICE = {"$reduce": {"input": {"$range": [0, 60]}, "initialValue": "x", "in": ["$$value", "$$value"]}}
"""An array of a quintillion strings, made of sixty small ones."""


@pytest.mark.parametrize(
    "expression",
    [
        {"$eq": [TWICE, 1]},
        {"$in": [TWICE, [1]]},
        {"$setUnion": [[TWICE]]},
        {"$bsonSize": {"x": TWICE}},
        {"$sortArray": {"input": TWICE, "sortBy": 1}},
        {"$max": [TWICE, 1]},
        {
            "$reduce": {
                "input": {"$range": [0, 60]},
                "initialValue": [1],
                "in": {"$concatArrays": ["$$value", "$$value"]},
            }
        },
        {"$reduce": {"input": {"$range": [0, 60]}, "initialValue": "x", "in": {"$concat": ["$$value", "$$value"]}}},
        {"$map": {"input": {"$range": [0, 2_000]}, "in": {"$range": [0, 2_000]}}},
    ],
    ids=str,
)
def test_a_short_expression_cannot_take_memory_without_limit(monkeypatch: pytest.MonkeyPatch, expression: Any) -> None:
    monkeypatch.setattr(sizes, "MAX_BYTES", 1 << 20)
    monkeypatch.setattr(compiler, "MAX_BYTES", 1 << 20)
    with pytest.raises(ReplError) as failure:
        value_of(expression)
    assert failure.value.code == 146


def test_the_time_of_an_evaluation_is_limited() -> None:
    counting = {"$reduce": {"input": {"$range": [0, 1_000_000]}, "initialValue": "$a", "in": {"$add": ["$$value", 1]}}}
    with pytest.raises(MaxTimeMSExpiredError), time_limit(seconds=0.05):
        value_of(counting)


def test_a_value_cannot_have_more_levels_than_a_document() -> None:
    deep = {"$reduce": {"input": {"$range": [0, 5000]}, "initialValue": "$a", "in": ["$$value"]}}
    for expression in ({"$eq": [deep, 1]}, {"$bsonSize": {"x": deep}}):
        with pytest.raises(ReplError) as failure:
            value_of(expression)
        assert failure.value.code == 15


def test_a_large_value_is_no_constant() -> None:
    large = compile_expression({"$range": [0, 100_000]})
    assert not large.is_constant
    assert len(large.evaluate({}, {})) == 100_000


def test_a_large_value_can_be_named_in_a_message() -> None:
    with pytest.raises(ReplError, match=r"\[\[\["):
        value_of({"$switch": {"branches": [{"case": False, "then": 1}], "default": {"$mergeObjects": [TWICE, TWICE]}}})


def test_a_projection_cannot_make_a_document_without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "MAX_BYTES", 1 << 20)
    for spec in ({"x": TWICE}, {"x": {"y": ["$a", TWICE]}}):
        projection = compile_projection(spec)
        assert projection is not None
        with pytest.raises(ReplError) as failure:
            projection({"a": 1})
        assert failure.value.code == 146


def test_a_statement_with_loops_is_of_unknown_cost() -> None:
    assert weight_of(100, {"$expr": {"$gt": [{"$reduce": {}}, 1]}}) == UNBOUNDED
    assert weight_of(100, [{"$set": {"x": {"$add": ["$a", {"$let": {}}]}}}]) == UNBOUNDED
    assert weight_of(100, {"$expr": {"$gt": ["$a", 1]}}) == 100
