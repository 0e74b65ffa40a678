"""Compares values as MongoDB does: equality, order within a class of types, and equality byte for byte.

Comparisons use encode_key, whose first byte is the class of types. Two values of one common Python type, which Python
orders as BSON does, are compared directly.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from enum import Enum
from struct import Struct
from typing import Any, Final, Literal

from replset.bson import (
    CodeWithScope,
    DateTime,
    Decimal128,
    Int64,
    MaxKey,
    MinKey,
    ObjectId,
    Symbol,
    Timestamp,
    Undefined,
    encode,
    encode_key,
)
from replset.bson.types import VALUE_TYPES, type_byte
from replset.bson.types import type_name as bson_type_name


class Missing(Enum):
    """The value of a field that does not exist."""

    MISSING = "missing"


MISSING: Final = Missing.MISSING

Predicate = Callable[[object], bool]
"""Tests one value, or MISSING."""

Comparison = Literal["$gt", "$gte", "$lt", "$lte"]

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


def type_name(value: object) -> str:
    """Return MongoDB's name for the type of `value`, `missing` for MISSING."""
    return "missing" if value is MISSING else bson_type_name(value)


def is_number(value: object) -> bool:
    return type(value) in _PLAIN_NUMBERS or type(value) is Decimal128


def is_null(value: object) -> bool:
    """Return True for what null equals: null, undefined and a missing field."""
    return value is None or value is MISSING or type(value) is Undefined


def is_true(value: object) -> bool:
    """Return True for every value but false, zero, null and undefined, as MongoDB does in $exists and projections."""
    if type(value) is Decimal128:
        kind, _, coefficient, _ = value.fields()
        return kind != "finite" or coefficient != 0
    if type(value) in _PLAIN_NUMBERS or type(value) is bool:
        return bool(value)
    return not is_null(value)


def equals(operand: object) -> Predicate:
    """Return the test for equality with `operand`.

    1 equals 1.0. Documents are equal with the same order of fields. Null equals a missing field too. Arrays are
    compared as a whole; the caller searches in them.
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
    """Return the test for $gt, $gte, $lt or $lte `operand`, within its class of types only.

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

    if operand != operand:  # NaN is alone in its class
        return compares_keys
    if kind in _PLAIN_NUMBERS:
        return lambda value: holds(value, operand) if type(value) in _PLAIN_NUMBERS else compares_keys(value)
    if kind in _NATIVE:
        return lambda value: holds(value, operand) if type(value) is kind else compares_keys(value)
    return compares_keys


def _type_class(key: bytes) -> int:
    """Return one number for all keys that compare with each other. NaN (30) compares with NaN alone."""
    return 33 if key[0] in _NUMBER_CLASSES else key[0]


def identical(a: Any, b: Any) -> bool:
    """Return True if two values have the same BSON bytes: types of numbers, order of fields and bits of doubles."""
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
    if kind in VALUE_TYPES or kind is int:
        return a == b if kind is not CodeWithScope else _encodes_alike(a, b)
    return _encodes_alike(a, b)


def _encodes_alike(a: object, b: object) -> bool:
    return type_byte(a) == type_byte(b) and encode({"": a}) == encode({"": b})
