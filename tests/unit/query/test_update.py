"""Updates: the document that each operator gives, byte for byte, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from replset.bson import DateTime, Decimal128, Int64, ObjectId, Regex, Timestamp, encode
from replset.errors import ReplError
from replset.query.match import compile_filter
from replset.query.update import compile_update, upsert_base

Doc = dict[str, Any]

NOW = DateTime(1_700_000_000_123)
TIMESTAMP = Timestamp(1_700_000_000, 7)
NAN = float("nan")


def updated(doc: Doc, update: object, *, query: Doc | None = None, filters: list[Any] | None = None, **how: Any) -> Doc:
    before = encode(doc)
    matcher = None if query is None else compile_filter(query)
    result = compile_update(update, array_filters=filters).apply(
        doc, now=NOW, timestamp=TIMESTAMP, matcher=matcher, **how
    )
    assert encode(doc) == before, "the input is never changed"
    return result


# before, update, after
CASES: list[tuple[Doc, Doc, Doc]] = [
    # $set
    ({"a": 1}, {"$set": {"a": 2}}, {"a": 2}),
    ({"a": 1, "b": 2}, {"$set": {"a": 1.0}}, {"a": 1.0, "b": 2}),
    ({}, {"$set": {"a.b.c": 1}}, {"a": {"b": {"c": 1}}}),
    ({"a": {"x": 1}}, {"$set": {"a.b": 1}}, {"a": {"x": 1, "b": 1}}),
    ({}, {"$set": {"b": 1, "a": 2}}, {"a": 2, "b": 1}),
    ({}, {"$set": {"10": 1, "9": 2, "a": 3}}, {"9": 2, "10": 1, "a": 3}),
    (
        {},
        {"$set": {"9": 1, "10": 2, "0001": 3, "-": 4, "0": 5, "a": 6}},
        {"-": 4, "0": 5, "0001": 3, "9": 1, "10": 2, "a": 6},
    ),
    ({}, {"$set": {"12345678902": 1, "9876543210": 2}}, {"9876543210": 2, "12345678902": 1}),
    ({}, {"$set": {"100": 1, "2b": 2, "1c": 3, "2a": 4}}, {"1c": 3, "2a": 4, "2b": 2, "100": 1}),
    ({}, {"$set": {"x.-": 1, "x.5": 2, "x-": 3}}, {"x": {"-": 1, "5": 2}, "x-": 3}),
    ({"a": [1, 2]}, {"$set": {"a.1": 9}}, {"a": [1, 9]}),
    ({"a": [1]}, {"$set": {"a.3": 9}}, {"a": [1, None, None, 9]}),
    ({"a": [{"b": 1}]}, {"$set": {"a.0.b": 2}}, {"a": [{"b": 2}]}),
    ({"a": [1]}, {"$set": {"a.2.b": 2}}, {"a": [1, None, {"b": 2}]}),
    ({}, {"$set": {"a.0": 1}}, {"a": {"0": 1}}),
    ({"a": 1}, {"$set": {"a": {"$weird": 1}}}, {"a": {"$weird": 1}}),
    ({"a": {"$id": 1}}, {"$set": {"a.$id": 2}}, {"a": {"$id": 2}}),
    ({"_id": 1, "a": 1}, {"$set": {"_id": 1.0, "a": 2}}, {"_id": 1, "a": 2}),
    ({"a": 1}, {"$set": {}}, {"a": 1}),
    # $unset
    ({"a": 1, "b": 2}, {"$unset": {"a": ""}}, {"b": 2}),
    ({"a": 1}, {"$unset": {"b": 1, "a.x": 1, "c.d": 1}}, {"a": 1}),
    ({"a": {"b": 1, "c": 2}}, {"$unset": {"a.b": 1}}, {"a": {"c": 2}}),
    ({"a": [1, 2, 3]}, {"$unset": {"a.1": 1}}, {"a": [1, None, 3]}),
    ({"a": [1]}, {"$unset": {"a.5": 1, "a.x": 1}}, {"a": [1]}),
    # $inc and $mul: the type of the result
    ({"a": 1}, {"$inc": {"a": 2}}, {"a": 3}),
    ({}, {"$inc": {"a": 2, "b.c": Int64(1)}}, {"a": 2, "b": {"c": Int64(1)}}),
    ({"a": 2**31 - 1}, {"$inc": {"a": 1}}, {"a": Int64(2**31)}),
    ({"a": -(2**31)}, {"$inc": {"a": -1}}, {"a": Int64(-(2**31) - 1)}),
    ({"a": Int64(1)}, {"$inc": {"a": 1}}, {"a": Int64(2)}),
    ({"a": 1}, {"$inc": {"a": Int64(1)}}, {"a": Int64(2)}),
    ({"a": Int64(2**31)}, {"$inc": {"a": -1}}, {"a": Int64(2**31 - 1)}),
    ({"a": 1}, {"$inc": {"a": 0.5}}, {"a": 1.5}),
    ({"a": 1.5}, {"$inc": {"a": Int64(1)}}, {"a": 2.5}),
    ({"a": 1}, {"$inc": {"a": Decimal128("0.10")}}, {"a": Decimal128("1.10")}),
    ({"a": Decimal128("1")}, {"$inc": {"a": 0.1}}, {"a": Decimal128("1.100000000000000")}),
    (
        {"a": Decimal128("9" * 34)},
        {"$inc": {"a": Decimal128("0.5")}},
        {"a": Decimal128("1.000000000000000000000000000000000E34")},
    ),
    ({"a": Decimal128("9E6144")}, {"$mul": {"a": 10}}, {"a": Decimal128("Infinity")}),
    ({"a": Decimal128("NaN")}, {"$inc": {"a": 1}}, {"a": Decimal128("NaN")}),
    ({"a": Decimal128("1E-6176")}, {"$mul": {"a": Decimal128("0.1")}}, {"a": Decimal128("0E-6176")}),
    ({"a": 1e308}, {"$mul": {"a": 10}}, {"a": float("inf")}),
    ({"a": 3}, {"$mul": {"a": 4}}, {"a": 12}),
    ({"a": 2**20}, {"$mul": {"a": 2**20}}, {"a": Int64(2**40)}),
    (
        {},
        {"$mul": {"a": 5, "b": 1.5, "c": Int64(2), "d": Decimal128("2")}},
        {"a": 0, "b": 0.0, "c": Int64(0), "d": Decimal128("0")},
    ),
    ({"a": [1, 2]}, {"$inc": {"a.0": 5}}, {"a": [6, 2]}),
    # $min, $max, across types too
    ({"a": 5}, {"$min": {"a": 3}}, {"a": 3}),
    ({"a": 5}, {"$min": {"a": 5.0}}, {"a": 5}),
    ({"a": 5}, {"$max": {"a": 3}}, {"a": 5}),
    ({"a": 5}, {"$max": {"a": "x"}}, {"a": "x"}),
    ({"a": 5}, {"$min": {"a": None}}, {"a": None}),
    ({}, {"$min": {"a": 5}, "$max": {"b": 5}}, {"a": 5, "b": 5}),
    # $rename
    ({"a": 1, "b": 2}, {"$rename": {"a": "c"}}, {"b": 2, "c": 1}),
    ({"a": 1, "b": 2}, {"$rename": {"a": "b"}}, {"b": 1}),
    ({"a": {"b": 1}}, {"$rename": {"a.b": "c.d"}}, {"a": {}, "c": {"d": 1}}),
    ({"a": 1}, {"$rename": {"x": "y", "a.q": "z"}}, {"a": 1}),
    ({"a": 1, "b": 2}, {"$rename": {"a": "x"}, "$set": {"b": 3}}, {"b": 3, "x": 1}),
    # $currentDate
    (
        {},
        {"$currentDate": {"a": True, "b": {"$type": "timestamp"}, "c": {"$type": "date"}}},
        {"a": NOW, "b": TIMESTAMP, "c": NOW},
    ),
    ({}, {"$currentDate": {"a": False}}, {"a": NOW}),
    # $setOnInsert does nothing to what is there
    ({"a": 1}, {"$setOnInsert": {"b": 1}}, {"a": 1}),
    # $bit
    ({"a": 13}, {"$bit": {"a": {"and": 10}}}, {"a": 8}),
    ({"a": 3}, {"$bit": {"a": {"or": Int64(4), "xor": 1}}}, {"a": Int64(6)}),
    ({}, {"$bit": {"a": {"or": 4}}}, {"a": 4}),
    # $push
    ({}, {"$push": {"a": 1}}, {"a": [1]}),
    ({"a": [1]}, {"$push": {"a": [2, 3]}}, {"a": [1, [2, 3]]}),
    ({"a": [1]}, {"$push": {"a": {"$each": [2, 3]}}}, {"a": [1, 2, 3]}),
    ({"a": [1, 4]}, {"$push": {"a": {"$each": [2, 3], "$position": 1}}}, {"a": [1, 2, 3, 4]}),
    ({"a": [1, 4]}, {"$push": {"a": {"$each": [3], "$position": -1}}}, {"a": [1, 3, 4]}),
    ({"a": [1]}, {"$push": {"a": {"$each": [0], "$position": -9}}}, {"a": [0, 1]}),
    ({"a": [1]}, {"$push": {"a": {"$each": [2], "$position": 9}}}, {"a": [1, 2]}),
    ({"a": [1]}, {"$push": {"a": {"$each": [2], "$position": Decimal128("0")}}}, {"a": [2, 1]}),
    ({"a": [1, 2]}, {"$push": {"a": {"$each": [3], "$slice": -2}}}, {"a": [2, 3]}),
    ({"a": [1, 2]}, {"$push": {"a": {"$each": [3], "$slice": 2.0}}}, {"a": [1, 2]}),
    ({"a": [1, 2]}, {"$push": {"a": {"$each": [], "$slice": 0}}}, {"a": []}),
    ({"a": [3, 1]}, {"$push": {"a": {"$each": [2], "$sort": 1}}}, {"a": [1, 2, 3]}),
    ({"a": [3, 1]}, {"$push": {"a": {"$each": ["x", None], "$sort": -1}}}, {"a": ["x", 3, 1, None]}),
    (
        {"a": [{"b": 2, "c": 1}, {"b": 1, "c": 1}]},
        {"$push": {"a": {"$each": [{"b": 2, "c": 0}, 5], "$sort": {"b": -1, "c": 1}, "$slice": 3}}},
        {"a": [{"b": 2, "c": 0}, {"b": 2, "c": 1}, {"b": 1, "c": 1}]},
    ),
    (
        {"a": [{"b": {"c": 2}}, {"b": {"c": 1}}]},
        {"$push": {"a": {"$each": [], "$sort": {"b.c": 1}}}},
        {"a": [{"b": {"c": 1}}, {"b": {"c": 2}}]},
    ),
    ({"a": [3]}, {"$push": {"a": {"$each": [1, 2], "$position": 0, "$sort": 1, "$slice": 2}}}, {"a": [1, 2]}),
    ({"a": {}}, {"$push": {"a.b": 1}}, {"a": {"b": [1]}}),
    # $addToSet
    ({"a": [1, 2]}, {"$addToSet": {"a": 2.0}}, {"a": [1, 2]}),
    ({"a": [1]}, {"$addToSet": {"a": {"$each": [1, 2, 2, 3]}}}, {"a": [1, 2, 3]}),
    ({}, {"$addToSet": {"a": {"$each": []}}}, {"a": []}),
    ({"a": [{"b": 1, "c": 2}]}, {"$addToSet": {"a": {"c": 2, "b": 1}}}, {"a": [{"b": 1, "c": 2}, {"c": 2, "b": 1}]}),
    ({"a": [1, 1]}, {"$addToSet": {"a": [1]}}, {"a": [1, 1, [1]]}),
    # $pull, $pullAll
    ({"a": [1, 2, 1.0, "1"]}, {"$pull": {"a": 1}}, {"a": [2, "1"]}),
    ({"a": [1, 5, 9]}, {"$pull": {"a": {"$gt": 1, "$lt": 9}}}, {"a": [1, 9]}),
    ({"a": [{"b": 1, "c": 2}, {"b": 2}, 5]}, {"$pull": {"a": {"b": 1}}}, {"a": [{"b": 2}, 5]}),
    ({"a": [{"b": [1, 5]}, {"b": [1]}]}, {"$pull": {"a": {"b": {"$gt": 4}}}}, {"a": [{"b": [1]}]}),
    ({"a": [[1, 2], 1, [2, 1]]}, {"$pull": {"a": [1, 2]}}, {"a": [1, [2, 1]]}),
    ({"a": ["xa", "b", Regex("^x")]}, {"$pull": {"a": Regex("^x")}}, {"a": ["b"]}),
    ({"a": [1, None]}, {"$pull": {"a": None}}, {"a": [1]}),
    ({"a": [1, 2, 3]}, {"$pull": {"a": {"$in": [1, 3]}}}, {"a": [2]}),
    ({"a": 1}, {"$pull": {"b": 1}}, {"a": 1}),
    ({"a": [{"$ref": "c", "$id": 1}, {"$id": 2}]}, {"$pull": {"a": {"$id": 1}}}, {"a": [{"$id": 2}]}),
    (
        {"a": [{"$ref": "c", "$id": 1}, {"$ref": "c"}]},
        {"$pull": {"a": {"$ref": "c", "$id": 1}}},
        {"a": [{"$ref": "c"}]},
    ),
    ({"a": [{"b": 1}, {"b": 2}, 1]}, {"$pull": {"a": {"$or": [{"b": 1}]}}}, {"a": [{"b": 2}, 1]}),
    ({"a": [1, 2, 3, 1]}, {"$pullAll": {"a": [1, 3.0]}}, {"a": [2]}),
    # $pop
    ({"a": [1, 2, 3]}, {"$pop": {"a": 1}}, {"a": [1, 2]}),
    ({"a": [1, 2, 3]}, {"$pop": {"a": -1.0}}, {"a": [2, 3]}),
    ({"a": []}, {"$pop": {"a": 1, "b": 1}}, {"a": []}),
    # $[]
    ({"a": [1, 2]}, {"$inc": {"a.$[]": 1}}, {"a": [2, 3]}),
    ({"a": [{"b": 1}, {"b": 2}]}, {"$set": {"a.$[].b": 0}}, {"a": [{"b": 0}, {"b": 0}]}),
    ({"a": [1, 2]}, {"$unset": {"a.$[]": 1}}, {"a": [None, None]}),
    ({"a": []}, {"$set": {"a.$[]": 1}}, {"a": []}),
    ({"a": [[1], [2]]}, {"$inc": {"a.$[].$[]": 1}}, {"a": [[2], [3]]}),
    # several operators at once
    (
        {"a": 1, "b": [1]},
        {"$inc": {"a": 1}, "$push": {"b": 2}, "$unset": {"c": 1}, "$set": {"d": 0}},
        {"a": 2, "b": [1, 2], "d": 0},
    ),
    # replacements
    ({"_id": 1, "a": 1}, {"b": 2}, {"_id": 1, "b": 2}),
    ({"_id": 1, "a": 1}, {"b": 2, "_id": 1}, {"_id": 1, "b": 2}),
    ({"_id": 1, "a": 1}, {}, {"_id": 1}),
    ({"_id": 1, "a": 1}, {"_id": 1.0, "b": {"$x": 1}}, {"_id": 1, "b": {"$x": 1}}),
]


@pytest.mark.parametrize(("before", "update", "after"), CASES, ids=[f"{d} {u}"[:90] for d, u, _ in CASES])
def test_apply(before: Doc, update: Doc, after: Doc) -> None:
    result = updated(before, update)
    assert encode(result) == encode(after), result


@pytest.mark.parametrize(
    ("before", "update"),
    [
        ({"_id": 1, "a": 1}, {"$set": {"a": 1}}),
        ({"_id": 1, "a": {"b": [1]}}, {"$set": {"a.b": [1]}, "$inc": {"a.c.d": 0, "e": 0}, "$unset": {"q": 1}}),
        ({"_id": 1, "a": [1]}, {"$pull": {"a": 5}, "$pop": {"b": 1}}),
        ({"_id": 1, "a": [1]}, {"$addToSet": {"a": 1}}),
        ({"_id": 1, "a": [1]}, {"$max": {"a.0": 1}}),
    ],
    ids=str,
)
def test_an_update_that_changes_nothing_gives_the_document_itself(before: Doc, update: Doc) -> None:
    if "$inc" in update:
        before = {**before, "a": {**before["a"], "c": {"d": 3}}, "e": 1.5}
    assert updated(before, update) is before


def test_what_an_update_does_not_touch_is_shared() -> None:
    before: Doc = {"_id": 1, "big": {"x": [1, 2, 3]}, "a": {"b": 1}}
    after = updated(before, {"$set": {"a.b": 2}})
    assert after["big"] is before["big"]
    assert after["a"] is not before["a"]


# before, filter, update, array filters, after
POSITIONAL: list[tuple[Doc, Doc, Doc, list[Any] | None, Doc]] = [
    ({"a": [1, 5, 5]}, {"a": 5}, {"$set": {"a.$": 6}}, None, {"a": [1, 6, 5]}),
    ({"a": [{"b": 1}, {"b": 2}]}, {"a.b": 2}, {"$inc": {"a.$.c": 1}}, None, {"a": [{"b": 1}, {"b": 2, "c": 1}]}),
    (
        {"a": [{"b": 1}, {"b": 2}]},
        {"a": {"$elemMatch": {"b": 2}}},
        {"$unset": {"a.$": 1}},
        None,
        {"a": [{"b": 1}, None]},
    ),
    ({"a": [5, {"b": [1]}]}, {"a.b": {"$exists": True}}, {"$set": {"a.$.c": 1}}, None, {"a": [5, {"b": [1], "c": 1}]}),
    ({"a": [1, 5, 9]}, {}, {"$set": {"a.$[x]": 0}}, [{"x": {"$gt": 3}}], {"a": [1, 0, 0]}),
    (
        {"a": [{"b": 1, "c": [1, 2]}, {"b": 2, "c": [1, 2]}]},
        {},
        {"$inc": {"a.$[x].c.$[y]": 10}},
        [{"x.b": 2}, {"y": {"$gte": 2}}],
        {"a": [{"b": 1, "c": [1, 2]}, {"b": 2, "c": [1, 12]}]},
    ),
    ({"a": [1, 2, 3]}, {}, {"$set": {"a.$[x]": 0}}, [{"$or": [{"x": 1}, {"x": 3}]}], {"a": [0, 2, 0]}),
    ({"a": [1]}, {}, {"$set": {"a.$[x]": 0}}, [{"x": 9}], {"a": [1]}),
]


@pytest.mark.parametrize(
    ("before", "query", "update", "filters", "after"), POSITIONAL, ids=[str(case[2]) for case in POSITIONAL]
)
def test_positional_paths(before: Doc, query: Doc, update: Doc, filters: list[Any] | None, after: Doc) -> None:
    assert encode(updated(before, update, query=query, filters=filters)) == encode(after)


# update, array filters, code, what the message says: refused before any document is seen
REFUSED: list[tuple[object, list[Any] | None, int, str]] = [
    ({"$foo": {"a": 1}}, None, 9, "Unknown modifier: $foo"),
    ({"$set": {"a": 1}, "b": 2}, None, 9, "Unknown modifier: b"),
    ({"b": 2, "$set": {"a": 1}}, None, 52, "The dollar ($) prefixed field '$set'"),
    ({"$set": 5}, None, 9, "Modifiers operate on fields but we found type int instead"),
    (5, None, 9, "Update argument must be either an object or an array"),
    ([{"$set": {"a": 1}}], [{"x": 1}], 9, "arrayFilters"),
    ([{"$match": {"a": 1}}], None, 72, "$match is not allowed"),
    ([{"$nonsense": 1}], None, 40324, "$nonsense"),
    ([{"$set": {"a": "$$v"}}], None, 17276, "v"),
    ([5], None, 14, "must be an object"),
    ({"$set": {"a": 1, "a.b": 2}}, None, 40, "Updating the path 'a.b' would create a conflict at 'a'"),
    ({"$set": {"a.b": 2}, "$inc": {"a": 1}}, None, 40, "Updating the path 'a' would create a conflict at 'a'"),
    ({"$set": {"a": 2}, "$unset": {"a": 1}}, None, 40, "Updating the path 'a' would create a conflict at 'a'"),
    ({"$rename": {"a": "b"}, "$set": {"b": 1}}, None, 40, "conflict at 'b'"),
    ({"$rename": {"a": "a.b"}}, None, 40, "conflict at 'a'"),
    ({"$set": {"": 1}}, None, 56, "An empty update path is not valid"),
    ({"$set": {"a..b": 1}}, None, 56, "The update path 'a..b' contains an empty field name"),
    ({"$set": {"a.": 1}}, None, 56, "empty field name"),
    ({"$set": {"$a": 1}}, None, 52, "The dollar ($) prefixed field '$a' in '$a' is not valid for storage"),
    ({"$set": {"a.$b": 1}}, None, 52, "The dollar ($) prefixed field '$b' in 'a.$b'"),
    ({"$set": {"$": 1}}, None, 2, "Cannot have positional (i.e. '$') element in the first position in path '$'"),
    ({"$set": {"$[].a": 1}}, None, 2, "Cannot have array filter identifier"),
    ({"$set": {"a.$.b.$": 1}}, None, 2, "Too many positional (i.e. '$') elements found in path 'a.$.b.$'"),
    ({"$set": {".".join("a" * 201): 1}}, None, 15, "more than 200 field names"),
    ({"$inc": {"a": "x"}}, None, 14, 'Cannot increment with non-numeric argument: {a: "x"}'),
    ({"$inc": {"a": True}}, None, 14, "Cannot increment with non-numeric argument"),
    ({"$mul": {"a": None}}, None, 14, "Cannot multiply with non-numeric argument: {a: null}"),
    ({"$rename": {"a": 1}}, None, 2, "The 'to' field for $rename must be a string: a: 1"),
    ({"$rename": {"a": "a"}}, None, 2, "The source and target field for $rename must differ"),
    ({"$rename": {"a.$": "b"}}, None, 2, "The source field for $rename may not be dynamic: a.$"),
    ({"$rename": {"a": "b.$[]"}}, None, 2, "The destination field for $rename may not be dynamic"),
    ({"$currentDate": {"a": 1}}, None, 2, "int is not valid type for $currentDate"),
    ({"$currentDate": {"a": {"$type": "x"}}}, None, 2, "required to be 'date' or 'timestamp'"),
    ({"$currentDate": {"a": {"foo": 1}}}, None, 2, "Unrecognized $currentDate option: foo"),
    ({"$bit": {"a": 1}}, None, 2, "The $bit modifier is not compatible with a int"),
    ({"$bit": {"a": {}}}, None, 2, "at least one bitwise operation"),
    ({"$bit": {"a": {"nor": 1}}}, None, 2, "only supports 'and', 'or', and 'xor', not 'nor'"),
    ({"$bit": {"a": {"and": 1.5}}}, None, 2, "must be an Integer(32/64 bit); a double is not"),
    ({"$push": {"a": {"$each": 1}}}, None, 2, "$each in $push must be an array but it was of type: int"),
    ({"$push": {"a": {"$each": [], "$foo": 1}}}, None, 2, "Unrecognized clause in $push: $foo"),
    (
        {"$push": {"a": {"$each": [], "$slice": "x"}}},
        None,
        2,
        "The value for $slice must be an integer value but was given type: string",
    ),
    ({"$push": {"a": {"$each": [], "$position": 1.5}}}, None, 2, "The value for $position must be an integer"),
    ({"$push": {"a": {"$each": [], "$position": NAN}}}, None, 2, "The value for $position must be an integer"),
    ({"$push": {"a": {"$each": [], "$slice": 1e300}}}, None, 2, "The value for $slice must be an integer"),
    ({"$push": {"a": {"$each": [], "$slice": Decimal128("NaN")}}}, None, 2, "The value for $slice must be an integer"),
    ({"$push": {"a": {"$each": [], "$sort": 2}}}, None, 2, "must be either 1 or -1"),
    ({"$push": {"a": {"$each": [], "$sort": "x"}}}, None, 2, "The $sort is invalid"),
    ({"$push": {"a": {"$each": [], "$sort": {}}}}, None, 2, "The $sort pattern is empty"),
    ({"$push": {"a": {"$each": [], "$sort": {"b": 0}}}}, None, 2, "must be either 1 or -1"),
    ({"$push": {"a": {"$each": [], "$sort": {"b..c": 1}}}}, None, 2, "empty part"),
    ({"$addToSet": {"a": {"$each": 1}}}, None, 14, "$each in $addToSet must be an array but it was of type int"),
    ({"$addToSet": {"a": {"$each": [], "$slice": 1}}}, None, 2, "Found unexpected fields after $each in $addToSet"),
    ({"$pull": {"a": {"$foo": 1}}}, None, 2, "unknown operator: $foo"),
    ({"$pull": {"a": {"b": {"$in": 5}}}}, None, 2, "$in needs an array"),
    ({"$pullAll": {"a": 1}}, None, 2, "$pullAll requires an array argument but was given a int"),
    ({"$pop": {"a": 2}}, None, 9, "$pop expects 1 or -1, found: 2"),
    ({"$pop": {"a": "x"}}, None, 9, 'Expected a number in: a: "x"'),
    ({"$set": {"a.$[x]": 1}}, None, 2, "No array filter found for identifier 'x' in path 'a.$[x]'"),
    ({"$set": {"a": 1}}, [{"x": 1}], 9, "The array filter for identifier 'x' was not used in the update"),
    (
        {"$set": {"a.$[x]": 1}},
        [{"x": 1}, {"x.b": 2}],
        9,
        "Found multiple array filters with the same top-level field name x",
    ),
    ({"$set": {"a.$[x]": 1}}, [{"x": 1, "y": 1}], 9, "Expected a single top-level field name, found 'x' and 'y'"),
    ({"$set": {"a.$[X]": 1}}, [{"X": 1}], 2, "beginning with a lowercase letter, found 'X'"),
    ({"$set": {"a.$[x]": 1}}, [{}], 9, "without a top-level field name"),
    ({"$set": {"a.$[x]": 1}}, [5], 14, "an array filter must be an object, not int"),
    ({"$set": {"a.$[x]": 1}}, [{"x": {"$foo": 1}}], 2, "unknown operator: $foo"),
    ({"a": 1}, [{"x": 1}], 9, "arrayFilters may not be specified for replacement-style updates"),
]


@pytest.mark.parametrize(("update", "filters", "code", "text"), REFUSED, ids=[str(case[0])[:70] for case in REFUSED])
def test_refused_when_compiled(update: object, filters: list[Any] | None, code: int, text: str) -> None:
    with pytest.raises(ReplError) as caught:
        compile_update(update, array_filters=filters)
    assert (caught.value.code, text in caught.value.message) == (code, True), caught.value.message


# before, update, code, what the message says: refused because of the document
FAILING: list[tuple[Doc, Doc, int, str]] = [
    (
        {"_id": 1, "a": "x"},
        {"$inc": {"a": 1}},
        14,
        "Cannot apply $inc to a value of non-numeric type. {_id: 1} has the field 'a' of non-numeric type string",
    ),
    ({"a": {"b": None}}, {"$mul": {"a.b": 1}}, 14, "has the field 'b' of non-numeric type null"),
    ({"_id": 1, "a": Int64(2**63 - 1)}, {"$inc": {"a": 1}}, 2, "Failed to apply $inc operations to current value"),
    ({"_id": 1, "a": Int64(-(2**63))}, {"$inc": {"a": -1}}, 2, "Failed to apply $inc"),
    ({"_id": 1, "a": Int64(2**62)}, {"$mul": {"a": 2}}, 2, "Failed to apply $mul"),
    ({"a": 5}, {"$set": {"a.b": 1}}, 28, "Cannot create field 'b' in element {a: 5}"),
    ({"a": None}, {"$set": {"a.b": 1}}, 28, "Cannot create field 'b' in element {a: null}"),
    ({"a": [1]}, {"$set": {"a.b": 1}}, 28, "Cannot create field 'b' in element {a: [1]}"),
    ({"a": [1]}, {"$set": {"a.0.b": 1}}, 28, "Cannot create field 'b' in element {0: 1}"),
    ({"a": [1]}, {"$set": {"a.999999999": 1}}, 2, "can't backfill more than 1500000 elements"),
    ({"_id": 1}, {"$set": {"_id": 2}}, 66, "immutable field '_id'"),
    ({"_id": 1}, {"$unset": {"_id": 1}}, 66, "immutable field '_id'"),
    ({"_id": {"a": 1}}, {"$set": {"_id.a": 2}}, 66, "immutable field '_id'"),
    ({"_id": 1}, {"$inc": {"_id": 1}}, 66, "immutable field '_id'"),
    ({"_id": 1}, {"$rename": {"_id": "x"}}, 66, "immutable field '_id'"),
    ({"_id": 1}, {"_id": 2}, 66, "found to have been altered to _id: 2"),
    (
        {"_id": 1, "a": [{"b": 1}]},
        {"$rename": {"a.0.b": "c"}},
        2,
        "The source field cannot be an array element, 'a.0.b' in doc with _id: 1 has an array field called 'a'",
    ),
    ({"_id": 1, "a": 1, "b": [1]}, {"$rename": {"a": "b.0"}}, 2, "The destination field cannot be an array element"),
    ({"a": 1, "b": 1}, {"$rename": {"a": "b.c"}}, 28, "Cannot create field 'c' in element {b: 1}"),
    (
        {"_id": 1, "a": 5},
        {"$push": {"a": 1}},
        2,
        "The field 'a' must be an array but is of type int in document {_id: 1}",
    ),
    (
        {"a": 5},
        {"$addToSet": {"a": 1}},
        2,
        "Cannot apply $addToSet to non-array field. Field named 'a' has non-array type int",
    ),
    ({"a": 5}, {"$pull": {"a": 1}}, 2, "Cannot apply $pull to a non-array value"),
    ({"a": 5}, {"$pullAll": {"a": [1]}}, 2, "Cannot apply $pull to a non-array value"),
    ({"a": 5}, {"$pop": {"a": 1}}, 14, "Path 'a' contains an element of non-array type 'int'"),
    ({"_id": 1, "a": 1.5}, {"$bit": {"a": {"and": 1}}}, 2, "Cannot apply $bit to a value of non-integral type"),
    ({"a": 5}, {"$set": {"a.$[]": 1}}, 2, "Cannot apply array updates to non-array element {a: 5}"),
    ({"a": {"b": 1}}, {"$set": {"a.$[]": 1}}, 2, "Cannot apply array updates to non-array element {a: {"),
    ({}, {"$set": {"a.$[]": 1}}, 2, "The path 'a' must exist in the document in order to apply array updates"),
    ({"a": [1]}, {"$set": {"a.$": 1}}, 2, "The positional operator did not find the match needed from the query"),
]


@pytest.mark.parametrize(("before", "update", "code", "text"), FAILING, ids=[f"{d} {u}"[:80] for d, u, _, _ in FAILING])
def test_refused_when_applied(before: Doc, update: Doc, code: int, text: str) -> None:
    with pytest.raises(ReplError) as caught:
        updated(before, update)
    assert (caught.value.code, text in caught.value.message) == (code, True), caught.value.message


# filter, update, the inserted document
UPSERTS: list[tuple[Doc, Doc, Doc]] = [
    ({"a": 1, "b": {"$gt": 5}}, {"$set": {"c": 1}}, {"a": 1, "c": 1}),
    ({"a": {"$eq": 1}, "_id": 7}, {"$setOnInsert": {"c": 1}}, {"_id": 7, "a": 1, "c": 1}),
    ({"$and": [{"a": 1}, {"b.c": 2}], "$or": [{"d": 3}]}, {"$set": {"e": 1}}, {"a": 1, "b": {"c": 2}, "d": 3, "e": 1}),
    ({"$or": [{"a": 1}, {"a": 2}], "$nor": [{"b": 1}]}, {"$set": {"c": 1}}, {"c": 1}),
    (
        {"a": {"$all": [1]}, "b": {"$all": [1, 2]}, "c": {"$in": [1, 2]}, "d": Regex("x")},
        {"$set": {"e": 1}},
        {"a": 1, "e": 1},
    ),
    ({"a": 1}, {"$inc": {"a": 2}}, {"a": 3}),
    ({"a": None}, {"$set": {"b": 1}}, {"a": None, "b": 1}),
    ({"a": [1]}, {"$push": {"a": 2}}, {"a": [1, 2]}),
    ({"a": {"$exists": False}}, {"$set": {"_id": 5, "b": 1}}, {"_id": 5, "b": 1}),
    ({"a": 1}, {"b": 2}, {"b": 2}),
    ({"_id": 3, "a": 1}, {"b": 2}, {"_id": 3, "b": 2}),
    ({"a": 1}, {"b": 2, "_id": 9}, {"_id": 9, "b": 2}),
    ({"a.0": 1}, {"$set": {"b": 1}}, {"a": {"0": 1}, "b": 1}),
    ({"a.b": 1, "a.c": 2}, {"$set": {"a.d": 3}}, {"a": {"b": 1, "c": 2, "d": 3}}),
]


@pytest.mark.parametrize(("query", "update", "inserted"), UPSERTS, ids=[f"{q} {u}"[:80] for q, u, _ in UPSERTS])
def test_upserts(query: Doc, update: Doc, inserted: Doc) -> None:
    compile_filter(query)
    base = upsert_base(query)
    assert encode(updated(base, update, query=query, is_insert=True)) == encode(inserted)


@pytest.mark.parametrize(
    ("query", "update", "code"),
    [
        ({"a": 1, "$and": [{"a": 2}]}, {"$set": {"b": 1}}, 54),
        ({"a": {"b": 1}, "a.b": 2}, {"$set": {"b": 1}}, 54),
        ({"_id.a": 1}, {"$set": {"b": 1}}, 111),
        ({"_id": 1}, {"$set": {"_id": 2}}, 66),
        ({"_id": 1}, {"_id": 2}, 66),
        ({"a": 1}, {"$set": {"_id": [1]}}, 53),
        ({"a": 1}, {"_id": Regex("x")}, 53),
        ({"a": [5]}, {"$set": {"a.$": 6}}, 2),
    ],
    ids=str,
)
def test_refused_upserts(query: Doc, update: Doc, code: int) -> None:
    compile_filter(query)
    with pytest.raises(ReplError) as caught:
        updated(upsert_base(query), update, query=query, is_insert=True)
    assert caught.value.code == code


def test_the_properties_of_an_update() -> None:
    assert compile_update({"a": 1}).is_replacement
    assert not compile_update({"$set": {"a": 1}}).is_replacement
    assert compile_update({"$set": {"a.$.b": 1}}).needs_position
    assert not compile_update({"$set": {"a.$[].b": 1}}).needs_position


def test_a_compiled_update_serves_many_documents() -> None:
    update = compile_update({"$push": {"a": {"$each": [3, 1], "$sort": 1}}, "$set": {"b": {"c": []}}})
    first = update.apply({"_id": 1, "a": [2]}, now=NOW, timestamp=TIMESTAMP)
    second = update.apply({"_id": ObjectId("0" * 24)}, now=NOW, timestamp=TIMESTAMP)
    assert first == {"_id": 1, "a": [1, 2, 3], "b": {"c": []}}
    assert second == {"_id": ObjectId("0" * 24), "a": [1, 3], "b": {"c": []}}


PIPELINES: list[tuple[list[Any], Doc, Doc]] = [
    ([], {"_id": 1, "a": 1}, {"_id": 1, "a": 1}),
    ([{"$set": {"b": {"$add": ["$a", "$$v"]}}}], {"_id": 1, "a": 1}, {"_id": 1, "a": 1, "b": 8}),
    ([{"$addFields": {"a.b": 1}}, {"$unset": "c"}], {"_id": 1, "a": {}, "c": 2}, {"_id": 1, "a": {"b": 1}}),
    ([{"$set": {"a": "$$REMOVE"}}], {"_id": 1, "a": 1}, {"_id": 1}),
    ([{"$project": {"a": 1}}], {"_id": 1, "b": 2, "a": 1}, {"_id": 1, "a": 1}),
    ([{"$project": {"a": 1, "_id": 0}}], {"_id": 1, "b": 2, "a": 1}, {"_id": 1, "a": 1}),
    ([{"$replaceWith": {"n": {"$size": "$l"}}}], {"_id": 1, "l": [1, 2]}, {"_id": 1, "n": 2}),
    ([{"$replaceRoot": {"newRoot": "$o"}}], {"_id": 1, "o": {"x": 1, "_id": 1.0}}, {"x": 1, "_id": 1}),
    ([{"$set": {"a": {"$literal": "$a"}}}], {"_id": 1}, {"_id": 1, "a": "$a"}),
    (
        [{"$replaceWith": {"$setField": {"field": {"$literal": "$x"}, "input": "$$ROOT", "value": 1}}}],
        {"_id": 1},
        {"_id": 1, "$x": 1},
    ),
]


@pytest.mark.parametrize(("stages", "before", "after"), PIPELINES, ids=[str(stages)[:70] for stages, _, _ in PIPELINES])
def test_pipelines(stages: list[Any], before: Doc, after: Doc) -> None:
    update = compile_update(stages, variables={"v": 7})
    assert not update.is_replacement
    raw = encode(before)
    assert encode(update.apply(before, now=NOW, timestamp=TIMESTAMP)) == encode(after)
    assert encode(before) == raw


def test_a_pipeline_that_inserts() -> None:
    update = compile_update([{"$set": {"n": {"$ifNull": ["$n", 0]}, "_id": "$k"}}])
    assert update.apply({"k": 5}, now=NOW, timestamp=TIMESTAMP, is_insert=True) == {"_id": 5, "k": 5, "n": 0}
    with pytest.raises(ReplError) as failure:
        update.apply({"_id": 1, "k": 5}, now=NOW, timestamp=TIMESTAMP)
    assert failure.value.code == 66
