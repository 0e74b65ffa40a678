"""Key encoding: one table in MongoDB's order of all values, and the groups that are equal."""

from __future__ import annotations

import math
import uuid
from datetime import UTC, datetime
from itertools import pairwise

import pytest

from replset.bson import (
    MAX_DEPTH,
    Binary,
    Code,
    CodeWithScope,
    DateTime,
    DBPointer,
    Decimal128,
    Int64,
    InvalidBSONError,
    MaxKey,
    MinKey,
    ObjectId,
    RawDocument,
    Regex,
    Symbol,
    Timestamp,
    Undefined,
    encode,
    encode_key,
)
from tests.keys import compare

OID = ObjectId("0123456789abcdeffedcba98")


def alone(*values: object) -> list[list[object]]:
    """Each is a step of its own."""
    return [[value] for value in values]


# Rising, every step; a list is a group of equals.
ASCENDING: list[list[object]] = [
    *alone(MinKey(), Undefined(), None),
    [math.nan, -math.nan, Decimal128("NaN"), Decimal128("-NaN")],
    [-math.inf, Decimal128("-Infinity")],
    *alone(Decimal128("-9E+6144"), Decimal128("-2E+308"), -1.7976931348623157e308),
    [Decimal128("-9223372036854775809")],
    [-(2**63), Int64(-(2**63)), -(2.0**63), Decimal128("-9223372036854775808")],
    [-(2**63) + 1, Decimal128("-9223372036854775807")],
    [-(2**53) - 1, Decimal128("-9007199254740993")],
    [-(2**53), -(2.0**53)],
    *alone(-1.5, Decimal128("-1.1000000000000000888"), Decimal128("-1.100000000000000088"), Decimal128("-1.1")),
    [-1, -1.0, Int64(-1), Decimal128("-1"), Decimal128("-1.000")],
    *alone(-0.1, Decimal128("-0.1"), -5e-324, Decimal128("-1E-400"), Decimal128("-1E-6176")),
    [0, 0.0, -0.0, Int64(0), Decimal128("0"), Decimal128("-0"), Decimal128("0E+6111"), Decimal128("0E-6176")],
    *alone(Decimal128("1E-6176"), Decimal128("2E-6176"), Decimal128("1E-400"), Decimal128("4.9E-324"), 5e-324),
    *alone(Decimal128("5E-324"), Decimal128("0.1"), 0.1, Decimal128("0.10000000000000000556")),
    [0.5, Decimal128("0.5"), Decimal128("0.500")],
    [1, 1.0, Int64(1), Decimal128("1"), Decimal128("1.0"), Decimal128("0.1E+1")],
    *alone(Decimal128("1.0000000000000000000001"), Decimal128("1.00000000000000000000012")),
    *alone(Decimal128("1.0000000000000000000002"), 1.0000000000000002, 2),
    [100, Decimal128("1E+2")],
    *alone(2**31, 2**53 - 1),
    [2**53, 2.0**53],
    [2**53 + 1, Decimal128("9007199254740993")],
    [Decimal128("9007199254740993.5")],
    [2**53 + 2, 2.0**53 + 2],
    [2**60, 2.0**60],
    [2**60 + 1],
    [2**63 - 1, Decimal128("9223372036854775807")],
    [2.0**63, Decimal128("9223372036854775808")],
    *alone(1e300, 1.7976931348623157e308, Decimal128("1.8E+308")),
    [Decimal128("1E+6144"), Decimal128("10E+6143")],
    [math.inf, Decimal128("Infinity")],
    ["", Symbol("")],
    *alone("\0", "\0\0", "\0a", "\1", "A"),
    ["a", Symbol("a")],
    *alone("a\0", "a\0b", "a\1", "aa", "b", "é", "\uffff"),
    ["\U00010000"],  # after U+FFFF: UTF-8 order, not UTF-16's
    [{}, RawDocument(encode({}))],
    [{"z": None}],
    [{"a": 1}, {"a": 1.0}, RawDocument(encode({"a": 1}))],
    *alone({"a": 1, "b": 1}, {"a": 2}, {"ab": 0}, {"b": 0}, {"a": ""}, {"a": "x"}, {"a": "x", "b": None}),
    *alone({"a": "x\0"}, {"a": {}}, {"a": {"b": 1}}, [], [None], [None, None]),
    [[1], [1.0], (1,)],
    *alone([1, 0], [1, "a"], [2], ["a"], ["a", 1], ["a\0"], [[]]),
    [b"", Binary(b"", 0)],
    *alone(Binary(b"", 5), b"b", Binary(b"a", 5), b"aa"),
    [Binary(uuid.UUID(int=1).bytes, 4), uuid.UUID(int=1)],
    *alone(ObjectId(bytes(12)), OID, False, True, DateTime(-(2**63)), DateTime(-1)),
    [DateTime(0), datetime(1970, 1, 1, tzinfo=UTC)],
    *alone(DateTime(2**63 - 1), Timestamp(0, 1), Timestamp(1, 0), Timestamp(1, 2**32 - 1), Timestamp(2**32 - 1, 0)),
    *alone(Regex("a", ""), Regex("a", "i"), Regex("aa", ""), DBPointer("b", OID)),
    *alone(DBPointer("c", ObjectId(bytes(12))), DBPointer("aa", ObjectId(bytes(12))), Code(""), Code("a"), Code("b")),
    *alone(CodeWithScope("a", {}), CodeWithScope("a", {"x": 1}), CodeWithScope("b", {}), MaxKey()),
]


def test_the_whole_order() -> None:
    keys = [[encode_key(value) for value in group] for group in ASCENDING]
    for group, group_keys in zip(ASCENDING, keys, strict=True):
        assert len(set(group_keys)) == 1, group
    for (low, low_keys), (high, high_keys) in pairwise(zip(ASCENDING, keys, strict=True)):
        assert low_keys[0] < high_keys[0], (low, high)


def test_no_key_is_a_prefix_of_another() -> None:
    keys = sorted(encode_key(group[0]) for group in ASCENDING)
    for low, high in pairwise(keys):
        assert not high.startswith(low)


@pytest.mark.parametrize("wrap", [lambda value: [value], lambda value: {"a": value}, lambda value: [1, [value, 2]]])
def test_the_order_holds_inside_arrays_and_documents(wrap: object) -> None:
    keys = [encode_key(wrap(group[0])) for group in ASCENDING]
    if wrap({}) == {"a": {}}:
        # In documents, too: type, then name, then value; with one name the order of the values.
        assert keys == sorted(keys)
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)


def test_compare() -> None:
    assert compare(1, 1.0) == 0
    assert compare(1, "a") == -1
    assert compare("b", "a") == 1
    assert compare({"a": 1}, {"a": Int64(1)}) == 0


def test_documents_compare_type_then_name_then_value() -> None:
    assert compare({"b": 1}, {"a": "x"}) == -1  # numbers before strings, whatever the names
    assert compare({"a": 9}, {"b": 1}) == -1
    assert compare({"a": 1, "b": 2}, {"b": 2, "a": 1}) == -1  # the order of fields counts
    assert compare({"a": 1}, {"a": 1, "b": MinKey()}) == -1


def test_joined_keys_order_as_tuples() -> None:
    names = ["", "a", "a\0", "ab", "b"]
    pairs = [(name, number) for name in names for number in (-1, 0, 1)]
    joined = [encode_key(name) + encode_key(number) for name, number in pairs]
    assert joined == sorted(joined)


def test_hot_types_are_short() -> None:
    assert len(encode_key(OID)) == 13
    assert len(encode_key("abc")) == 5
    assert len(encode_key(42)) == 9
    assert len(encode_key(0)) == 1


def nested(levels: int, array: bool) -> object:
    """levels: documents or arrays, the outermost counted."""
    value: object = [] if array else {}
    for _ in range(levels - 1):
        value = [value] if array else {"a": value}
    return value


@pytest.mark.parametrize("array", [True, False])
def test_nesting_limit(array: bool) -> None:
    assert encode_key(nested(MAX_DEPTH, array)) > encode_key(nested(MAX_DEPTH - 1, array))
    with pytest.raises(InvalidBSONError, match="more than 200 levels"):
        encode_key(nested(MAX_DEPTH + 1, array))


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {1, 2},
        2**63,
        -(2**63) - 1,
        "\ud800",
        ["\ud800"],
        {"a": object()},
        {"a\0": 1},
        {1: 1},
        datetime(2020, 1, 1),  # noqa: DTZ001 - the case
    ],
)
def test_what_has_no_key(value: object) -> None:
    with pytest.raises(InvalidBSONError):
        encode_key(value)
