"""Types and comparison: BSON type names and numbers, comparison within a type class, equality byte for byte.

Comparisons go by encode_key, whose first byte is the type class; the common pairs of Python types, for which
Python orders as BSON does, are compared directly.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from enum import Enum
from struct import Struct
from typing import Any, Final, Literal

from replset.bson import (
    Binary,
    Code,
    CodeWithScope,
    DateTime,
    DBPointer,
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
    encode_key,
)


class Missing(Enum):
    """The value of a field that is not there."""

    MISSING = "missing"


MISSING: Final = Missing.MISSING

Predicate = Callable[[object], bool]
"""Asks one value, or MISSING."""

Comparison = Literal["$gt", "$gte", "$lt", "$lte"]

TYPE_NAMES: Final[dict[int, str]] = {
    -1: "minKey",
    1: "double",
    2: "string",
    3: "object",
    4: "array",
    5: "binData",
    6: "undefined",
    7: "objectId",
    8: "bool",
    9: "date",
    10: "null",
    11: "regex",
    12: "dbPointer",
    13: "javascript",
    14: "symbol",
    15: "javascriptWithScope",
    16: "int",
    17: "timestamp",
    18: "long",
    19: "decimal",
    127: "maxKey",
}
TYPE_NUMBERS: Final[dict[str, int]] = {name: number for number, name in TYPE_NAMES.items()}
NUMBER_TYPES: Final = frozenset({1, 16, 18, 19})

_TYPES: Final[dict[type, int]] = {
    MinKey: -1,
    float: 1,
    str: 2,
    dict: 3,
    list: 4,
    Binary: 5,
    bytes: 5,
    Undefined: 6,
    ObjectId: 7,
    bool: 8,
    DateTime: 9,
    type(None): 10,
    Regex: 11,
    DBPointer: 12,
    Code: 13,
    Symbol: 14,
    CodeWithScope: 15,
    Timestamp: 17,
    Int64: 18,
    Decimal128: 19,
    MaxKey: 127,
}
_INT32: Final = 1 << 31
# Python's == and < agree with BSON's between two values of one of these types.
_NATIVE: Final = frozenset({str, int, Int64, float, bool, ObjectId, DateTime, Timestamp})
_PLAIN_NUMBERS: Final = frozenset({int, Int64, float})
_double = Struct("<d").pack
_MIN_KEY_KEY: Final = encode_key(MinKey())
_MAX_KEY_KEY: Final = encode_key(MaxKey())
_NULL_KEY: Final = encode_key(None)
_NUMBER_CLASSES: Final = frozenset({31, 32, 33})
_OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


def type_number(value: object) -> int:
    """BSON's number of the type that `value` is stored as; a plain int is int or long by its size."""
    kind = type(value)
    if kind is int:
        return 16 if -_INT32 <= value < _INT32 else 18  # type: ignore[operator]
    number = _TYPES.get(kind)
    if number is None:
        if isinstance(value, Mapping):
            return 3
        return 4 if isinstance(value, list | tuple) else 2
    return number


def type_name(value: object) -> str:
    """MongoDB's name of the type of `value`, `missing` for MISSING."""
    return "missing" if value is MISSING else TYPE_NAMES[type_number(value)]


def is_number(value: object) -> bool:
    return type(value) in _PLAIN_NUMBERS or type(value) is Decimal128


def is_null(value: object) -> bool:
    """What null equals: null, undefined and nothing at all."""
    return value is None or value is MISSING or type(value) is Undefined


def is_true(value: object) -> bool:
    """Truth as MongoDB takes it in $exists and projections: all but false, zero, null and undefined."""
    if type(value) is Decimal128:
        kind, _, coefficient, _ = value.fields()
        return kind != "finite" or coefficient != 0
    if type(value) in _PLAIN_NUMBERS or type(value) is bool:
        return bool(value)
    return not is_null(value)


def equals(operand: object) -> Predicate:
    """Asks whether a value equals `operand`: 1 is 1.0, documents with their order of fields, null also what is missing.

    Arrays are compared as a whole; looking into them is the path's business.
    """
    if operand is None:
        return is_null
    kind = type(operand)
    key = encode_key(operand)
    if kind in _PLAIN_NUMBERS and operand == operand:

        def equals_number(value: object) -> bool:
            if type(value) in _PLAIN_NUMBERS:
                return value == operand
            return type(value) is Decimal128 and encode_key(value) == key

        return equals_number
    if kind in _NATIVE and kind is not float:
        other = Symbol if kind is str else None

        def equals_native(value: object) -> bool:
            if type(value) is kind:
                return value == operand
            return other is not None and type(value) is other and encode_key(value) == key

        return equals_native
    return lambda value: value is not MISSING and encode_key(value) == key


def compares(name: Comparison, operand: object) -> Predicate:
    """Asks whether a value is $gt, $gte, $lt or $lte `operand`, within its type class only.

    NaN is only $gte and $lte NaN. Null is $gte and $lte what null equals. MinKey and MaxKey compare with all types.
    """
    holds = _OPERATORS[name]
    or_equal = name in ("$gte", "$lte")
    if operand is None:
        return is_null if or_equal else lambda value: False
    kind = type(operand)
    key = encode_key(operand)
    if key in (_MIN_KEY_KEY, _MAX_KEY_KEY):
        return lambda value: holds(_NULL_KEY if value is MISSING else encode_key(value), key)
    type_class = _type_class(key)

    def compares_keys(value: object) -> bool:
        if value is MISSING:
            return False
        other = encode_key(value)
        return _type_class(other) == type_class and holds(other, key)

    if operand != operand:  # NaN, whose class holds nothing but NaN
        return compares_keys
    if kind in _PLAIN_NUMBERS:
        return lambda value: holds(value, operand) if type(value) in _PLAIN_NUMBERS else compares_keys(value)
    if kind in _NATIVE:
        return lambda value: holds(value, operand) if type(value) is kind else compares_keys(value)
    return compares_keys


def _type_class(key: bytes) -> int:
    """One number for all keys that compare with each other; NaN (30) compares with NaN alone."""
    return 33 if key[0] in _NUMBER_CLASSES else key[0]


def identical(a: Any, b: Any) -> bool:
    """Whether two values have the same BSON bytes: types of numbers, order of fields and bits of doubles included."""
    kind = type(a)
    if a is b:
        return True
    if kind is not type(b):
        return _encodes_alike(a, b)
    if kind is dict:
        return len(a) == len(b) and all(
            name == other and identical(value, value_b)
            for (name, value), (other, value_b) in zip(a.items(), b.items(), strict=True)
        )
    if kind is list:
        return len(a) == len(b) and all(map(identical, a, b))
    if kind is float:
        return _double(a) == _double(b)
    if kind in _TYPES or kind is int:
        return a == b if kind is not CodeWithScope else _encodes_alike(a, b)
    return _encodes_alike(a, b)


def _encodes_alike(a: object, b: object) -> bool:
    return type_number(a) == type_number(b) and encode({"": a}) == encode({"": b})
