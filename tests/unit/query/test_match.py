"""Filters: the documents that each operator matches, and the errors with their codes."""

from __future__ import annotations

from typing import Any

import pytest

from replset.bson import (
    Binary,
    Code,
    DateTime,
    Decimal128,
    Int64,
    MaxKey,
    MinKey,
    ObjectId,
    Regex,
    Symbol,
    Timestamp,
    Undefined,
    encode,
)
from replset.errors import ReplError
from replset.query.match import compile_filter
from replset.query.order import MISSING

Doc = dict[str, Any]
NAN = float("nan")
OID = ObjectId("0123456789abcdeffedcba98")
OTHER_OID = ObjectId("0123456789abcdeffedcba99")

# filter, documents that it takes, documents that it does not take
CASES: list[tuple[Doc, list[Doc], list[Doc]]] = [
    ({}, [{}, {"a": 1}], []),
    ({"$comment": "x"}, [{}], []),
    # equality
    (
        {"a": 1},
        [{"a": 1}, {"a": 1.0}, {"a": Int64(1)}, {"a": Decimal128("1.0")}, {"a": [0, 1]}],
        [{"a": 2}, {"a": True}],
    ),
    ({"a": 1}, [], [{}, {"a": "1"}, {"a": None}, {"a": [[1]]}, {"a": {"a": 1}}, {"a": []}]),
    ({"a": Decimal128("1.5")}, [{"a": 1.5}, {"a": Decimal128("1.50")}], [{"a": 1}, {}]),
    ({"a": Int64(2**53 + 1)}, [{"a": Int64(2**53 + 1)}], [{"a": float(2**53)}, {"a": Decimal128("9007199254740992")}]),
    ({"a": True}, [{"a": True}, {"a": [True]}], [{"a": 1}, {"a": False}]),
    ({"a": "x"}, [{"a": "x"}, {"a": Symbol("x")}, {"a": ["y", "x"]}], [{"a": "X"}, {"a": Code("x")}, {"a": b"x"}]),
    ({"a": Symbol("x")}, [{"a": "x"}, {"a": Symbol("x")}], [{"a": "y"}]),
    ({"a": OID}, [{"a": OID}, {"a": [OID]}], [{"a": OTHER_OID}, {"a": str(OID)}]),
    ({"a": DateTime(5)}, [{"a": DateTime(5)}], [{"a": 5}, {"a": Timestamp(0, 5)}]),
    ({"a": Binary(b"x", 4)}, [{"a": Binary(b"x", 4)}], [{"a": Binary(b"x", 0)}]),
    ({"a": NAN}, [{"a": NAN}, {"a": Decimal128("NaN")}], [{"a": 1}, {}]),
    ({"a": -0.0}, [{"a": 0}, {"a": Decimal128("-0E+3")}], [{"a": False}]),
    # null is equal to null, undefined and nothing
    (
        {"a": None},
        [{"a": None}, {}, {"a": Undefined()}, {"a": [1, None]}],
        [{"a": 0}, {"a": []}, {"a": {}}, {"a": False}],
    ),
    (
        {"a.b": None},
        [{}, {"a": 1}, {"a": None}, {"a": {}}, {"a": {"b": None}}, {"a": [{"b": 1}, {}]}],
        [{"a": {"b": 1}}],
    ),
    ({"a.b": None}, [], [{"a": []}, {"a": [1]}, {"a": [{"b": 1}]}, {"a": [[]]}]),
    ({"a": {"$ne": None}}, [{"a": 1}, {"a": []}], [{}, {"a": None}, {"a": [None]}]),
    # documents and arrays as values
    ({"a": {"b": 1, "c": 2}}, [{"a": {"b": 1, "c": 2.0}}, {"a": [{"b": 1, "c": 2}]}], [{"a": {"c": 2, "b": 1}}]),
    ({"a": {"b": 1}}, [], [{"a": {"b": 1, "c": 2}}, {"a": {}}, {"a": [[{"b": 1}]]}]),
    ({"a": {}}, [{"a": {}}], [{"a": {"b": 1}}, {}]),
    (
        {"a": [1, 2]},
        [{"a": [1, 2]}, {"a": [[1, 2]]}, {"a": [1.0, Int64(2)]}],
        [{"a": [2, 1]}, {"a": [1]}, {"a": [1, 2, 3]}],
    ),
    ({"a": []}, [{"a": []}, {"a": [[]]}], [{"a": [1]}, {}]),
    ({"a": {"b": 1, "$gt": 2}}, [{"a": {"b": 1, "$gt": 2}}], [{"a": 3}]),
    # a DBRef as a value, and its names as those of fields
    ({"a": {"$ref": "c", "$id": 1}}, [{"a": {"$ref": "c", "$id": 1}}], [{"a": {"$id": 1, "$ref": "c"}}]),
    ({"a": {"$in": [{"$id": 1, "$ref": "c"}]}}, [{"a": {"$id": 1, "$ref": "c"}}], [{"a": {"$ref": "c", "$id": 1}}]),
    ({"a.$id": {"$in": [1]}}, [{"a": [{"$ref": "c", "$id": 1}]}], [{"a": [{"$ref": "c", "$id": 2}]}, {"a": {"id": 1}}]),
    ({"a": {"$elemMatch": {"$id": 1}}}, [{"a": [{"$id": 2}, {"$id": 1}]}], [{"a": [1]}, {"a": {"$id": 1}}]),
    (
        {"a": {"$elemMatch": {"$ref": "c", "$id": 1}}},
        [{"a": [{"$id": 1, "$db": "d", "$ref": "c"}]}],
        [{"a": [{"$ref": "c"}, {"$id": 1}]}],
    ),
    ({"a": {"$elemMatch": {"b": 1, "$db": "d"}}}, [{"a": [{"$db": "d", "b": 1}]}], [{"a": [{"b": 1}]}]),
    ({"a": {"$elemMatch": {"$or": [{"$id": 1}, {"b": 1}]}}}, [{"a": [{"$id": 1}]}], [{"a": [{"$id": 2}]}]),
    ({"a": {"$elemMatch": {"$id": {"$gt": 0}}}}, [{"a": [{"$id": {"$gt": 0}}]}], [{"a": [{"$id": 1}]}]),
    ({"a": {"$elemMatch": {"$jsonSchema": {"required": ["b"]}}}}, [{"a": [{"b": 1}]}], [{"a": [{}]}]),
    ({"a": {"$all": [{"$id": 1}]}}, [{"a": {"$id": 1}}, {"a": [{"$id": 1}]}], [{"a": [{"$id": 1, "b": 2}]}]),
    ({"$id": 1}, [{"$id": 1}, {"$id": [1]}], [{"id": 1}]),
    ({"a": {"$eq": {"b": 1}}}, [{"a": {"b": 1}}], [{"a": {"b": 2}}]),
    # paths
    ({"a.b": 1}, [{"a": {"b": 1}}, {"a": {"b": [1]}}, {"a": [{"b": 2}, {"b": 1}]}], [{"a": {"b": 2}}, {"a.b": 1}]),
    ({"a.b": 1}, [{"a": [{"b": [3, 1]}]}], [{"a": [[{"b": 1}]]}, {"a": 1}, {}]),
    ({"a.0": 1}, [{"a": [1, 2]}, {"a": {"0": 1}}, {"a": [{"0": 1}]}], [{"a": [2, 1]}, {"a": [[1]]}]),
    ({"a.0.b": 1}, [{"a": [{"b": 1}]}, {"a": {"0": {"b": 1}}}], [{"a": [{"b": 2}, {"b": 1}]}]),
    ({"a.1.b": 1}, [{"a": [0, [{"b": 1}]]}], [{"a": [[{"b": 1}], 0]}]),
    ({"a.00": 1}, [{"a": {"00": 1}}], [{"a": [1]}]),
    ({"a.b.c": 1}, [{"a": [{"b": [{"c": 1}]}]}], [{"a": [{"b": [[{"c": 1}]]}]}]),
    ({"": 1}, [{"": 1}], [{"a": 1}]),
    ({"a.": 1}, [{"a": {"": 1}}], [{"a": 1}]),
    # comparison, within a type class only
    ({"a": {"$gt": 1}}, [{"a": 2}, {"a": 1.5}, {"a": Decimal128("1.1")}, {"a": [0, 2]}], [{"a": 1}, {"a": "2"}, {}]),
    ({"a": {"$gt": 1}}, [], [{"a": None}, {"a": NAN}, {"a": True}, {"a": DateTime(9)}, {"a": [[2]]}]),
    ({"a": {"$gte": 1}}, [{"a": 1}, {"a": 1.0}], [{"a": 0.5}, {"a": NAN}]),
    ({"a": {"$lt": 1}}, [{"a": 0}, {"a": float("-inf")}], [{"a": 1}, {"a": NAN}, {"a": ""}, {"a": None}]),
    ({"a": {"$lt": Decimal128("1")}}, [{"a": 0}, {"a": 0.5}], [{"a": 1}, {"a": Decimal128("NaN")}]),
    ({"a": {"$lte": NAN}}, [{"a": NAN}], [{"a": 1}, {}]),
    ({"a": {"$gt": NAN}}, [], [{"a": NAN}, {"a": 1}]),
    ({"a": {"$gt": "b"}}, [{"a": "c"}, {"a": Symbol("c")}, {"a": "ba"}], [{"a": "b"}, {"a": "B"}, {"a": 9}]),
    ({"a": {"$gt": "\uffff"}}, [{"a": "\U00010000"}], [{"a": "\ud7ff"}]),
    ({"a": {"$gte": None}}, [{"a": None}, {}, {"a": Undefined()}], [{"a": 1}]),
    ({"a": {"$gt": None}}, [], [{"a": None}, {}, {"a": 1}]),
    ({"a": {"$gt": DateTime(5)}}, [{"a": DateTime(6)}], [{"a": 6}, {"a": Timestamp(6, 0)}]),
    ({"a": {"$lt": Timestamp(2, 1)}}, [{"a": Timestamp(1, 9)}, {"a": Timestamp(2, 0)}], [{"a": Timestamp(2, 1)}]),
    ({"a": {"$gt": False}}, [{"a": True}], [{"a": 1}, {"a": False}]),
    ({"a": {"$lt": OTHER_OID}}, [{"a": OID}], [{"a": OTHER_OID}, {"a": str(OID)}]),
    ({"a": {"$gt": [1, 2]}}, [{"a": [1, 3]}, {"a": [2]}, {"a": [[1, 3]]}], [{"a": [1, 2]}, {"a": 9}, {"a": [1]}]),
    ({"a": {"$gt": {"b": 1}}}, [{"a": {"b": 2}}, {"a": {"c": 1}}], [{"a": {"b": 1}}, {"a": 2}, {"a": {"a": 5}}]),
    ({"a": {"$gt": MinKey()}}, [{"a": 1}, {"a": None}, {}], [{"a": MinKey()}]),
    ({"a": {"$lt": MaxKey()}}, [{"a": 1}, {"a": "x"}, {}], [{"a": MaxKey()}]),
    ({"a": {"$lte": MinKey()}}, [{"a": MinKey()}], [{"a": 1}, {}]),
    ({"a": {"$gt": 1, "$lt": 5}}, [{"a": 2}, {"a": [0, 9]}], [{"a": 5}, {"a": 0}, {"a": [0]}]),
    ({"a.b": {"$gt": 1}}, [{"a": [{"b": 0}, {"b": 2}]}], [{"a": [{"b": 0}, {"c": 2}]}]),
    # $ne, $in, $nin
    ({"a": {"$ne": 1}}, [{"a": 2}, {}, {"a": [2]}], [{"a": 1}, {"a": [1, 2]}, {"a": 1.0}]),
    ({"a": {"$in": [1, "x", None]}}, [{"a": 1.0}, {"a": "x"}, {}, {"a": [5, "x"]}], [{"a": 2}, {"a": []}]),
    ({"a": {"$in": [[1, 2], {"b": 1}]}}, [{"a": [1, 2]}, {"a": [[1, 2]]}, {"a": {"b": 1}}], [{"a": 1}, {"a": [1]}]),
    ({"a": {"$in": [Regex("^x", "i"), 5]}}, [{"a": "Xy"}, {"a": 5}, {"a": Regex("^x", "i")}], [{"a": "yx"}, {}]),
    ({"a": {"$in": []}}, [], [{"a": 1}, {}]),
    ({"a": {"$in": [True]}}, [{"a": True}], [{"a": 1}]),
    ({"a": {"$nin": [1, None]}}, [{"a": 2}, {"a": []}], [{"a": 1}, {}, {"a": [2, 1]}]),
    ({"a": {"$nin": []}}, [{"a": 1}, {}], []),
    # logic
    ({"$and": [{"a": 1}, {"b": 2}]}, [{"a": 1, "b": 2}], [{"a": 1}, {"b": 2}]),
    ({"$or": [{"a": 1}, {"b": 2}]}, [{"a": 1}, {"b": 2}], [{"a": 2}]),
    ({"$nor": [{"a": 1}, {"b": 2}]}, [{"a": 2}], [{"a": 1}, {"b": 2}]),
    ({"a": 1, "$or": [{"b": 1}, {"c": 1}]}, [{"a": 1, "c": 1}], [{"a": 1}, {"b": 1}]),
    ({"$and": [{}]}, [{}], []),
    ({"a": {"$not": {"$gt": 1}}}, [{"a": 1}, {}, {"a": "x"}], [{"a": 2}, {"a": [0, 2]}]),
    ({"a": {"$not": {"$gt": 1, "$lt": 5}}}, [{"a": 1}, {"a": 6}], [{"a": 2}]),
    ({"a": {"$not": Regex("^x")}}, [{"a": "y"}, {}, {"a": 1}], [{"a": "xy"}]),
    ({"a": {"$not": {"$not": {"$eq": 1}}}}, [{"a": 1}], [{"a": 2}]),
    ({"$alwaysTrue": 1}, [{}], []),
    (
        {"$expr": {"$eq": ["$$ROOT", {"$literal": {"_id": 1, "a": {"$x": 2}}}]}},
        [{"_id": 1, "a": {"$x": 2}}, {"_id": Int64(1), "a": {"$x": 2.0}}],
        [{"_id": 1}, {"_id": 1, "a": {"$x": 2}, "b": 1}, {"a": {"$x": 2}, "_id": 1}, {"_id": 1, "a": {"$x": 3}}],
    ),
    ({"$alwaysFalse": 1}, [], [{}]),
    ({"$expr": {"$gt": ["$a", "$b"]}}, [{"a": 2, "b": 1}, {"a": [0], "b": 5}, {"a": 1}], [{"a": 1, "b": 1}, {"b": 0}]),
    ({"$expr": "$a"}, [{"a": "x"}, {"a": []}], [{"a": 0}, {"a": None}, {}]),
    ({"$or": [{"a": 1}, {"$expr": {"$eq": ["$b", 2]}}]}, [{"a": 1}, {"b": 2}], [{"b": [2]}, {}]),
    ({"$sampleRate": 1}, [{}], []),
    ({"$sampleRate": 0.0}, [], [{}]),
    # bits
    (
        {"a": {"$bitsAllSet": 5}},
        [{"a": 5}, {"a": 7.0}, {"a": -1}, {"a": [1, 13]}, {"a": b"\5"}],
        [{"a": 4}, {"a": "5"}],
    ),
    ({"a": {"$bitsAllSet": [0, 70]}}, [{"a": -1}, {"a": b"\1" + bytes(7) + b"\x40"}], [{"a": 1}, {"a": b"\1"}]),
    ({"a": {"$bitsAllClear": b"\6"}}, [{"a": 1}, {"a": Int64(8)}], [{"a": 2}, {"a": 1.5}, {"a": None}, {}]),
    ({"a": {"$bitsAnySet": Int64(6)}}, [{"a": 2}, {"a": 4}], [{"a": 1}, {"a": True}, {"a": 1e300}]),
    ({"a": {"$bitsAnyClear": [1, 2]}}, [{"a": 2}, {"a": 0}, {"a": b""}], [{"a": 6}, {"a": 7}]),
    ({"a": {"$bitsAnySet": [(1 << 31) - 1]}}, [{"a": -1}], [{"a": 1}, {"a": b"x"}]),
    # $exists, $type, $size
    ({"a": {"$exists": True}}, [{"a": None}, {"a": []}, {"a": Undefined()}], [{}]),
    ({"a": {"$exists": 0}}, [{}], [{"a": None}]),
    ({"a": {"$exists": None}}, [{}], [{"a": 1}]),
    ({"a": {"$exists": "x"}}, [{"a": 1}], [{}]),
    ({"a.b": {"$exists": True}}, [{"a": [{"c": 1}, {"b": 1}]}], [{"a": []}, {"a": 1}, {"a": [{"c": 1}]}]),
    ({"a": {"$type": "int"}}, [{"a": 1}, {"a": [1, "x"]}], [{"a": Int64(1)}, {"a": 1.0}, {"a": True}, {}]),
    ({"a": {"$type": "number"}}, [{"a": 1}, {"a": Int64(1)}, {"a": 1.0}, {"a": Decimal128("1")}], [{"a": "1"}]),
    ({"a": {"$type": 2}}, [{"a": "x"}], [{"a": Symbol("x")}]),
    ({"a": {"$type": ["string", 10.0]}}, [{"a": "x"}, {"a": None}], [{"a": 1}, {}]),
    ({"a": {"$type": "array"}}, [{"a": []}, {"a": [[1]]}], [{"a": 1}]),
    ({"a": {"$type": -1}}, [{"a": MinKey()}], [{"a": MaxKey()}]),
    ({"a": {"$type": "long"}}, [{"a": Int64(1)}, {"a": 2**40}], [{"a": 1}]),
    ({"a": {"$size": 2}}, [{"a": [1, 2]}], [{"a": [1]}, {"a": 2}, {}, {"a": [[1, 2]]}]),
    ({"a": {"$size": 0.0}}, [{"a": []}], [{}]),
    ({"a.b": {"$size": 1}}, [{"a": [{"b": [1]}]}], [{"a": [{"b": 1}]}]),
    # $all, $elemMatch
    ({"a": {"$all": [1, 2]}}, [{"a": [2, 3, 1]}], [{"a": [1]}, {"a": 1}, {}]),
    ({"a": {"$all": [1]}}, [{"a": 1}, {"a": [1]}], [{"a": 2}]),
    ({"a": {"$all": []}}, [], [{"a": []}, {}]),
    ({"a": {"$all": [[1, 2]]}}, [{"a": [1, 2]}, {"a": [[1, 2], 3]}], [{"a": [2, 1]}]),
    ({"a": {"$all": [Regex("^x"), "y"]}}, [{"a": ["y", "xx"]}], [{"a": ["y"]}]),
    (
        {"a": {"$all": [{"$elemMatch": {"b": 1}}, {"$elemMatch": {"b": 2}}]}},
        [{"a": [{"b": 2}, {"b": 1}]}],
        [{"a": [{"b": 1}]}],
    ),
    ({"a": {"$elemMatch": {"$gt": 1, "$lt": 5}}}, [{"a": [0, 2]}], [{"a": [0, 9]}, {"a": 2}, {"a": [[2]]}, {}]),
    (
        {"a": {"$elemMatch": {"b": 1, "c": 2}}},
        [{"a": [{"b": 1, "c": 2}]}],
        [{"a": [{"b": 1}, {"c": 2}]}, {"a": {"b": 1}}],
    ),
    ({"a": {"$elemMatch": {"$or": [{"b": 1}, {"c": 1}]}}}, [{"a": [{"c": 1}]}], [{"a": [{"d": 1}]}]),
    ({"a": {"$elemMatch": {"$not": {"$gt": 1}}}}, [{"a": [5, 1]}], [{"a": [5]}, {"a": []}]),
    ({"a": {"$elemMatch": {"$elemMatch": {"$eq": 1}}}}, [{"a": [[0, 1]]}], [{"a": [1]}]),
    ({"a": {"$elemMatch": {"0": 1}}}, [{"a": [[1, 2]]}], [{"a": [[2, 1]]}]),
    ({"a": {"$elemMatch": {}}}, [{"a": [{}]}], [{"a": []}, {"a": [1]}]),
    ({"a": {"$not": {"$elemMatch": {"$eq": 1}}}}, [{"a": [2]}, {}], [{"a": [1]}]),
    ({"a.b": {"$elemMatch": {"$eq": 1}}}, [{"a": [{"b": [1]}]}], [{"a": {"b": 1}}]),
    # $mod
    (
        {"a": {"$mod": [3, 1]}},
        [{"a": 4}, {"a": 4.9}, {"a": Decimal128("7.2")}, {"a": [3, 4]}],
        [{"a": 3}, {"a": "4"}, {}],
    ),
    ({"a": {"$mod": [3, -1]}}, [{"a": -4}], [{"a": 4}, {"a": NAN}, {"a": float("inf")}, {"a": Decimal128("1E+400")}]),
    ({"a": {"$mod": [3.9, 1.5]}}, [{"a": 4}], [{"a": 5}]),
    ({"a": {"$mod": [-3, 1]}}, [{"a": 4}], [{"a": -4}]),
    # regular expressions
    (
        {"a": Regex("^ab")},
        [{"a": "abc"}, {"a": Symbol("ab")}, {"a": ["x", "ab"]}, {"a": Regex("^ab")}],
        [{"a": "xab"}, {}],
    ),
    ({"a": {"$eq": Regex("^ab")}}, [{"a": Regex("^ab")}], [{"a": "abc"}]),
    ({"a": {"$regex": "AB", "$options": "i"}}, [{"a": "xab"}], [{"a": "a b"}]),
    ({"a": {"$options": "i", "$regex": "AB"}}, [{"a": "xab"}], [{"a": "a"}]),
    ({"a": {"$regex": Regex("AB", "i")}}, [{"a": "ab"}], [{"a": 5}]),
    ({"a": {"$regex": Regex("AB"), "$options": "i"}}, [{"a": "ab"}], [{"a": "a"}]),
    ({"a": {"$regex": "^b", "$options": "m"}}, [{"a": "a\nb"}], [{"a": "ab"}]),
    ({"a": {"$regex": "a.b", "$options": "s"}}, [{"a": "a\nb"}], [{"a": "ab"}]),
    ({"a": {"$regex": "a b # c", "$options": "x"}}, [{"a": "ab"}], [{"a": "a b"}]),
    ({"a": {"$regex": r"(?<year>\d{4})"}}, [{"a": "in 2024"}], [{"a": "24"}]),
    ({"a": {"$regex": "(?<!x)b"}}, [{"a": "ab"}], [{"a": "xb"}]),
    ({"a": {"$regex": r"^[[\]]$"}}, [{"a": "["}, {"a": "]"}], [{"a": "[["}]),
    ({"a": {"$regex": r"^[]x]$"}}, [{"a": "]"}, {"a": "x"}], [{"a": "["}]),
    ({"a": {"$regex": "é", "$options": "i"}}, [{"a": "É"}], [{"a": "e"}]),
]


@pytest.mark.parametrize(("query", "taken", "left"), CASES, ids=[str(query)[:70] for query, _, _ in CASES])
def test_matches(query: Doc, taken: list[Doc], left: list[Doc]) -> None:
    matcher = compile_filter(query)
    assert [doc for doc in taken if not (matcher.matches(doc) and matcher.matches_raw(encode(doc)))] == []
    assert [doc for doc in left if matcher.matches(doc) or matcher.matches_raw(encode(doc))] == []


# filter, code, what the message says
REFUSED: list[tuple[Doc, int, str]] = [
    ({"a": {"$foo": 1}}, 2, "unknown operator: $foo"),
    ({"a": {"$gt": 1, "b": 2}}, 2, "unknown operator: b"),
    ({"a": {"$id": 1}}, 2, "unknown operator: $id"),
    ({"a": {"$in": [{"$id": 1}]}}, 2, "cannot nest $ under $in"),
    ({"a": {"$elemMatch": {"$gt": 1, "$id": 2}}}, 2, "unknown top level operator: $gt"),
    ({"$foo": 1}, 2, "unknown top level operator: $foo"),
    ({"$gt": 1}, 2, "unknown top level operator: $gt"),
    ({"a": {"$and": [{"b": 1}]}}, 2, "unknown operator: $and"),
    ({"$and": {"a": 1}}, 2, "$and must be an array"),
    ({"$or": []}, 2, "must be a nonempty array"),
    ({"$nor": [1]}, 2, "entries need to be full objects"),
    ({"a": {"$in": 1}}, 2, "$in needs an array"),
    ({"a": {"$nin": {}}}, 2, "$nin needs an array"),
    ({"a": {"$in": [{"$gt": 1}]}}, 2, "cannot nest $ under $in"),
    ({"a": Undefined()}, 2, "cannot compare to undefined"),
    ({"a": {"$in": [Undefined()]}}, 2, "undefined"),
    ({"a": {"$ne": Regex("x")}}, 2, "Can't have regex as arg to $ne"),
    ({"a.b": {"$gt": Regex("x")}}, 2, "Can't have RegEx as arg to predicate over field 'a.b'"),
    ({"a": {"$not": 5}}, 2, "$not needs a regex or a document"),
    ({"a": {"$not": {}}}, 2, "$not cannot be empty"),
    ({"a": {"$not": {"b": 1}}}, 2, "unknown operator: b"),
    ({"a": {"$type": "foo"}}, 2, "Unknown type name alias: foo"),
    ({"a": {"$type": 20}}, 2, "Invalid numerical type code: 20"),
    ({"a": {"$type": 1.5}}, 2, "Invalid numerical type code: 1.5"),
    ({"a": {"$type": {}}}, 14, "type must be represented as a number or a string"),
    ({"a": {"$type": []}}, 9, "$type must match at least one type"),
    ({"a": {"$size": "2"}}, 2, "Expected a number in: $size"),
    ({"a": {"$size": 1.5}}, 2, "Expected an integer: $size"),
    ({"a": {"$size": -1}}, 2, "Expected a non-negative number in: $size: -1"),
    ({"a": {"$all": 1}}, 2, "$all needs an array"),
    ({"a": {"$all": [{"$gt": 1}]}}, 2, "no $ expressions in $all"),
    ({"a": {"$all": [{"$elemMatch": {"b": 1}}, 5]}}, 2, "$all/$elemMatch has to be consistent"),
    ({"a": {"$elemMatch": 1}}, 2, "$elemMatch needs an Object"),
    ({"a": {"$elemMatch": {"$foo": 1}}}, 2, "unknown operator: $foo"),
    ({"a": {"$mod": 1}}, 2, "needs to be an array"),
    ({"a": {"$mod": [1]}}, 2, "not enough elements"),
    ({"a": {"$mod": [1, 2, 3]}}, 2, "too many elements"),
    ({"a": {"$mod": [0.5, 2]}}, 2, "divisor cannot be 0"),
    ({"a": {"$mod": ["1", 2]}}, 2, "divisor not a number"),
    ({"a": {"$mod": [1, None]}}, 2, "remainder not a number"),
    ({"a": {"$mod": [NAN, 1]}}, 2, "divisor value is invalid"),
    ({"a": {"$regex": 1}}, 2, "$regex has to be a string"),
    ({"a": {"$regex": "x", "$options": 1}}, 2, "$options has to be a string"),
    ({"a": {"$options": "i"}}, 2, "$options needs a $regex"),
    ({"a": {"$regex": Regex("x", "i"), "$options": "i"}}, 51075, "both $regex and $options"),
    ({"a": {"$regex": "x", "$options": "z"}}, 51108, "invalid flag in regex options: z"),
    ({"a": {"$regex": "("}}, 51091, "Regular expression is invalid"),
    ({"a": {"$regex": "x\0"}}, 51091, "null byte"),
    ({"$alwaysTrue": 0}, 2, "$alwaysTrue must be"),
    ({".".join("a" * 250): 1}, 2, "FieldPath is too long"),
    ({"$expr": {"$eq": [1]}}, 16020, "$eq"),
    ({"$expr": {"$eq": ["$$ROOT", {"$literal": {}}], "$ne": [1, 2]}}, 15983, "exactly one field"),
    ({"$expr": {"$nonsense": 1}}, 168, "$nonsense"),
    ({"$expr": "$$nobody"}, 17276, "nobody"),
    ({"$or": [{"$expr": {"$divide": [1, 0]}}]}, 2, "$divide"),
    ({"a": {"$elemMatch": {"$and": [{"$expr": True}]}}}, 2, "top-level"),
    ({"$sampleRate": "x"}, 2, "numeric type"),
    ({"$sampleRate": 1.5}, 2, "in [0, 1]"),
    ({"$sampleRate": NAN}, 2, "in [0, 1]"),
    ({"$rand": {}}, 2, "unknown top level operator: $rand"),
    ({"$where": "1"}, 238, "$where"),
    ({"$text": {"$search": "x"}}, 238, "$text"),
    ({"$jsonSchema": {"a": 1}}, 9, "Unknown $jsonSchema keyword"),
    ({"a": {"$near": [1, 1]}}, 238, "$near"),
    ({"a": {"$geoWithin": {}}}, 238, "$geoWithin"),
    ({"a": {"$bitsAllSet": "x"}}, 2, "$bitsAllSet takes"),
    ({"a": {"$bitsAllSet": -1}}, 9, "$bitsAllSet"),
    ({"a": {"$bitsAnySet": 1.5}}, 9, "$bitsAnySet"),
    ({"a": {"$bitsAnyClear": ["x"]}}, 2, "$bitsAnyClear"),
    ({"a": {"$bitsAllClear": [-1]}}, 9, "$bitsAllClear"),
    ({"a": {"$bitsAllClear": [1 << 31]}}, 9, "$bitsAllClear"),
]


@pytest.mark.parametrize(("query", "code", "text"), REFUSED, ids=[str(query)[:70] for query, _, _ in REFUSED])
def test_refused(query: Doc, code: int, text: str) -> None:
    with pytest.raises(ReplError) as caught:
        compile_filter(query)
    assert (caught.value.code, text in caught.value.message) == (code, True), caught.value.message
    with pytest.raises(ReplError):
        compile_filter({"$and": [{"$or": [query]}]})


ID_LOOKUPS: list[tuple[Doc, object, list[object] | None]] = [
    ({}, MISSING, None),
    ({"a": 1}, MISSING, None),
    ({"_id": 1}, 1, None),
    ({"_id": None}, None, None),
    ({"_id": {"a": 1}}, {"a": 1}, None),
    ({"a": 2, "_id": OID}, OID, None),
    ({"_id": {"$eq": 5, "$gt": 1}}, 5, None),
    ({"_id": {"$gt": 5}}, MISSING, None),
    ({"_id": {"$not": {"$eq": 5}}}, MISSING, None),
    ({"_id": Regex("x")}, MISSING, None),
    ({"$and": [{"a": 1}, {"_id": 5}]}, 5, None),
    ({"$or": [{"_id": 5}]}, MISSING, None),
    ({"$nor": [{"_id": 5}]}, MISSING, None),
    ({"_id": {"$in": [1, 2]}}, MISSING, [1, 2]),
    ({"_id": {"$in": [1, Regex("x")]}}, MISSING, None),
    ({"_id": {"$nin": [1, 2]}}, MISSING, None),
    ({"_id.a": 1}, MISSING, None),
    ({"_id": {"$in": []}}, MISSING, []),
]


@pytest.mark.parametrize(("query", "equality", "one_of"), ID_LOOKUPS, ids=[str(query) for query, _, _ in ID_LOOKUPS])
def test_the_ids_that_a_filter_can_match(query: Doc, equality: object, one_of: list[object] | None) -> None:
    matcher = compile_filter(query)
    assert matcher.id_equality == equality
    assert matcher.id_in == one_of


POSITIONS: list[tuple[Doc, Doc, int | None]] = [
    ({"a": 5}, {"a": [4, 5]}, 1),
    ({"a": 5}, {"a": 5}, None),
    ({"a": 5}, {"a": [4]}, None),
    ({"a": {"$gt": 4, "$lt": 9}}, {"a": [1, 5]}, 0),
    ({"a.b": 1}, {"a": [{"b": 0}, {"b": 1}]}, 1),
    ({"a.b": 1}, {"a": [{"b": 0}, {"b": [5, 6, 1]}]}, 1),
    ({"a.b": {"$exists": True}}, {"a": [{"c": 0}, {"b": [5]}]}, 1),
    ({"a.b.c": {"$exists": True}}, {"a": [3, {"b": []}, {"b": [{"d": 1}, {"c": 1}]}]}, 2),
    ({"a.b": {"$elemMatch": {"$gt": 5}}}, {"a": [{"b": [1]}, {"b": [5]}, {"b": [6]}]}, 2),
    ({"x.b": {"$elemMatch": {"$gt": 5}}}, {"x": {"b": [1, 6]}}, 1),
    ({"a": {"$elemMatch": {"b": 1}}}, {"a": [{}, {}, {"b": 1}]}, 2),
    ({"a": {"$ne": 9}}, {"a": [1]}, None),
    ({"$or": [{"a": 1}, {"a": 2}]}, {"a": [0, 2]}, 1),
    ({"a": [1, 2]}, {"a": [1, 2]}, None),
    # an index in the path is none that matched; one below it is
    ({"a.1": 2}, {"a": [1, 2]}, None),
    ({"a.1.b": 2}, {"a": [{}, {"b": 2}]}, None),
    ({"a.1.b": 2}, {"a": [{}, {"b": [1, 1, 2]}]}, 2),
    ({"a.0.b": 2}, {"a": [[{"b": 1}, {"b": 2}]]}, 1),
]


@pytest.mark.parametrize(("query", "doc", "position"), POSITIONS, ids=[f"{q} {d}" for q, d, _ in POSITIONS])
def test_position_of_the_matching_item(query: Doc, doc: Doc, position: int | None) -> None:
    assert compile_filter(query).position(doc) == position


def test_a_filter_changes_neither_itself_nor_the_document() -> None:
    query: Doc = {"a": {"$in": [1, [2]]}, "$or": [{"b": {"$elemMatch": {"c": 1}}}]}
    doc: Doc = {"a": [1], "b": [{"c": 1}]}
    query_bytes, doc_bytes = encode(query), encode(doc)
    assert compile_filter(query).matches(doc)
    assert (encode(query), encode(doc)) == (query_bytes, doc_bytes)


def test_variables_are_looked_up_for_each_document() -> None:
    variables = {"v": 1}
    matcher = compile_filter({"$expr": {"$eq": ["$a", "$$v"]}}, variables)
    assert matcher.matches({"a": 1})
    variables["v"] = 2
    assert not matcher.matches({"a": 1})
    assert compile_filter({"$expr": {"$eq": ["$a", "$$v"]}}, variables, {"v"}).matches({"a": 2})
