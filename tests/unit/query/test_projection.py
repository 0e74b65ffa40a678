"""Projections: the fields that they select, and their errors."""

from __future__ import annotations

from typing import Any

import pytest

from replset.bson import Decimal128, Int64, encode
from replset.errors import ReplError
from replset.query.projection import compile_projection

Doc = dict[str, Any]

DOC: Doc = {"_id": 1, "a": 1, "b": {"c": 2, "d": 3}, "e": [{"f": 1, "g": 2}, 5, [{"f": 3}, 4], {"g": 6}]}
NUMBERS: Doc = {"_id": 1, "x": 0, "n": [1, 2, 3, 4], "m": {"n": [1, 2, 3], "o": 1}}

# document, projection, what is shown
CASES: list[tuple[Doc, Doc, Doc]] = [
    (DOC, {"a": 1}, {"_id": 1, "a": 1}),
    (DOC, {"a": True, "_id": False}, {"a": 1}),
    (DOC, {"a": 5.5}, {"_id": 1, "a": 1}),
    (DOC, {"a": Int64(0), "b": Decimal128("0")}, {"_id": 1, "e": DOC["e"]}),
    (DOC, {"e": 0, "b": 0, "_id": 0}, {"a": 1}),
    (DOC, {"_id": 1}, {"_id": 1}),
    (DOC, {"_id": 0}, {"a": 1, "b": DOC["b"], "e": DOC["e"]}),
    (DOC, {"_id": 1, "e": 0, "b": 0}, {"_id": 1, "a": 1}),
    (DOC, {"b.c": 1}, {"_id": 1, "b": {"c": 2}}),
    (DOC, {"b": {"c": 1}}, {"_id": 1, "b": {"c": 2}}),
    (DOC, {"b.x": 1}, {"_id": 1, "b": {}}),
    (DOC, {"a.x": 1}, {"_id": 1}),
    (DOC, {"e.f": 1, "_id": 0}, {"e": [{"f": 1}, [{"f": 3}], {}]}),
    (DOC, {"e.f": 0, "b": 0, "a": 0}, {"_id": 1, "e": [{"g": 2}, 5, [{}, 4], {"g": 6}]}),
    (DOC, {"b.c": 0, "e": 0, "a.x": 0}, {"_id": 1, "a": 1, "b": {"d": 3}}),
    (DOC, {"zz": 1}, {"_id": 1}),
    (DOC, {"b.d": 1, "a": 1, "b.c": 1}, {"_id": 1, "a": 1, "b": {"c": 2, "d": 3}}),
    ({"a": 1, "_id": 2}, {"a": 1}, {"a": 1, "_id": 2}),
    ({"r": [{"$ref": "c", "$id": 2}]}, {"r.$id": 1}, {"r": [{"$id": 2}]}),
    ({"r": {"$ref": "c", "$id": 2}}, {"r.$id": 0}, {"r": {"$ref": "c"}}),
    ({"_id": {"x": 1, "y": 2}, "a": 1}, {"_id.x": 1, "a": 1}, {"_id": {"x": 1}, "a": 1}),
    ({"_id": {"x": 1, "y": 2}, "a": 1}, {"_id.x": 0}, {"_id": {"y": 2}, "a": 1}),
    # $slice
    (NUMBERS, {"n": {"$slice": 2}}, {**NUMBERS, "n": [1, 2]}),
    (NUMBERS, {"n": {"$slice": -3}}, {**NUMBERS, "n": [2, 3, 4]}),
    (NUMBERS, {"n": {"$slice": -9}}, NUMBERS),
    (NUMBERS, {"n": {"$slice": 0}}, {**NUMBERS, "n": []}),
    (NUMBERS, {"n": {"$slice": [1, 2]}}, {**NUMBERS, "n": [2, 3]}),
    (NUMBERS, {"n": {"$slice": [-3, 2]}}, {**NUMBERS, "n": [2, 3]}),
    (NUMBERS, {"n": {"$slice": [9, 2.9]}}, {**NUMBERS, "n": []}),
    (NUMBERS, {"n": {"$slice": 1e300}}, NUMBERS),
    (NUMBERS, {"n": {"$slice": float("nan")}}, {**NUMBERS, "n": []}),
    (NUMBERS, {"x": {"$slice": 1}}, NUMBERS),
    (NUMBERS, {"x": 1, "n": {"$slice": 1}}, {"_id": 1, "x": 0, "n": [1]}),
    (NUMBERS, {"x": 0, "n": {"$slice": 1}}, {"_id": 1, "n": [1], "m": NUMBERS["m"]}),
    (NUMBERS, {"_id": 0, "n": {"$slice": 1}}, {"x": 0, "n": [1], "m": NUMBERS["m"]}),
    (NUMBERS, {"m.n": {"$slice": 1}}, {**NUMBERS, "m": {"n": [1], "o": 1}}),
    (NUMBERS, {"x": 1, "m.n": {"$slice": 1}}, {"_id": 1, "x": 0, "m": {"n": [1]}}),
    # $elemMatch
    (NUMBERS, {"n": {"$elemMatch": {"$gt": 2}}}, {"_id": 1, "n": [3]}),
    (NUMBERS, {"n": {"$elemMatch": {"$gt": 9}}}, {"_id": 1}),
    (NUMBERS, {"n": {"$elemMatch": {"$gt": 2}}, "m": 1}, {"_id": 1, "m": NUMBERS["m"], "n": [3]}),
    (NUMBERS, {"n": {"$elemMatch": {"$gt": 2}}, "m": 0}, {"_id": 1, "x": 0, "n": [3]}),
    (NUMBERS, {"x": {"$elemMatch": {"$gt": 2}}}, {"_id": 1}),
    (DOC, {"e": {"$elemMatch": {"g": 6}}, "_id": 0}, {"e": [{"g": 6}]}),
    # computed
    (DOC, {"x": "$b.c"}, {"_id": 1, "x": 2}),
    (DOC, {"x": "$b.x", "a": 1}, {"_id": 1, "a": 1}),
    (DOC, {"_id": 0, "x": "text", "y": None, "z": ["$a", "$no"]}, {"x": "text", "y": None, "z": [1, None]}),
    (DOC, {"b": {"e": "$a", "c": 1}, "a": "$b.d"}, {"_id": 1, "b": {"c": 2, "e": 1}, "a": 3}),
    (DOC, {"_id": 0, "e.f": "$a"}, {"e": [{"f": 1}, {"f": 1}, [{"f": 1}, {"f": 1}], {"f": 1}]}),
    (DOC, {"_id": "$a", "a": {"$literal": 0}}, {"_id": 1, "a": 0}),
    (DOC, {"_id": 0, "b": {"x": {"y": "$no"}}}, {"b": {"x": {}}}),
]


@pytest.mark.parametrize(("doc", "spec", "shown"), CASES, ids=[str(spec) for _, spec, _ in CASES])
def test_shown(doc: Doc, spec: Doc, shown: Doc) -> None:
    before = encode(doc)
    project = compile_projection(spec)
    assert encode(project(doc)) == encode(shown), project(doc)
    needed = {name: value for name, value in doc.items() if project.fields is None or name in project.fields}
    assert encode(project(needed)) == encode(shown), project.fields
    assert encode(doc) == before


def test_no_projection_shows_all() -> None:
    assert compile_projection({}) is None
    assert compile_projection(None) is None


REFUSED: list[tuple[Doc, int, str]] = [
    ({"a": 1, "b": 0}, 31254, "Cannot do exclusion on field b in inclusion projection"),
    ({"a": 0, "b": 1}, 31253, "Cannot do inclusion on field b in exclusion projection"),
    ({"a": 1, "_id.x": 0}, 31254, "_id.x"),
    ({"a": 1, "a.b": 1}, 31249, "Path collision at a.b remaining portion b"),
    ({"a.b": 1, "a": 1}, 31250, "Path collision at a"),
    ({"a": {"b": {"c": 1}}, "a.b": 1}, 31250, "Path collision at a.b"),
    ({"": 1}, 40352, "empty string"),
    ({"a.": 1}, 40353, "must not end with a '.'"),
    ({"a..b": 1}, 15998, "empty strings"),
    ({"$a": 1}, 16410, "may not start with '$'"),
    ({"a.$b": 1}, 16410, "may not start with '$'"),
    ({"a.$ids": 1}, 16410, "may not start with '$'"),
    ({"a\0": 1}, 16411, "may not contain"),
    ({"a": {}}, 51270, "An empty sub-projection is not a valid value. Found empty object at path a"),
    ({"a": {"$slice": "x"}}, 31273, "$slice only supports numbers"),
    ({"a": {"$slice": [1]}}, 31272, "[skip, limit]"),
    ({"a": {"$slice": [1, 0]}}, 31259, "$slice limit must be positive"),
    ({"a": {"$slice": [1, "x"]}}, 31273, "$slice only supports numbers"),
    ({"a": {"$elemMatch": 1}}, 31274, "object required, but got int"),
    ({"a.b": {"$elemMatch": {"c": 1}}}, 31275, "Cannot use $elemMatch projection on a nested field"),
    ({"a": {"$elemMatch": {"$foo": 1}}}, 2, "unknown operator: $foo"),
    ({"a": {"$slice": 1, "b": 1}}, 2, "stands alone"),
    ({"a": {"b": 1, "$slice": 1}}, 16410, "may not start with '$'"),
    ({"a.$": 1}, 238, "the positional projection 'a.$'"),
    ({"a": 0, "b": "$c"}, 31252, "exclusion projection"),
    ({"b": "$c", "a": 0}, 31254, "Cannot do exclusion on field a"),
    ({"a": "$b", "a.c": 1}, 31249, "Path collision at a.c"),
    ({"a": {"$meta": "textScore"}}, 238, "$meta"),
]


@pytest.mark.parametrize(("spec", "code", "text"), REFUSED, ids=[str(spec) for spec, _, _ in REFUSED])
def test_refused(spec: Doc, code: int, text: str) -> None:
    with pytest.raises(ReplError) as caught:
        compile_projection(spec)
    assert (caught.value.code, text in caught.value.message) == (code, True), caught.value.message
