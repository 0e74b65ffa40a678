"""Adds and multiplies numbers of BSON's four types. The result has the type that MongoDB's rules give it."""

from __future__ import annotations

import decimal
import math
import operator
from collections.abc import Callable
from typing import Any, Final

from replset.bson import Decimal128, Int64

DECIMAL128 = decimal.Context(
    prec=34, rounding=decimal.ROUND_HALF_EVEN, Emin=-6143, Emax=6144, capitals=1, clamp=1, flags=[], traps=[]
)
INT32: Final = 1 << 31
INT64: Final = 1 << 63


def add(a: object, b: object) -> object:
    """Return the sum of two numbers. OverflowError beyond 64 bits; see `_result` for the type."""
    return _result(a, b, operator.add, DECIMAL128.add)


def multiply(a: object, b: object) -> object:
    """Return the product of two numbers. OverflowError beyond 64 bits; see `_result` for the type."""
    return _result(a, b, operator.mul, DECIMAL128.multiply)


def zero_like(number: object) -> object:
    """Return zero of the same type."""
    if type(number) is Decimal128:
        return Decimal128("0")
    return type(number)(0)  # type: ignore[call-arg]


def is_long(number: int) -> bool:
    """Return True if an int is stored with 64 bits."""
    return type(number) is Int64 or not -INT32 <= number < INT32


def to_stored_int(number: int, as_long: bool) -> int:
    """Return an int result: an int32 if it fits and `as_long` is False, else an int64. OverflowError beyond 64 bits."""
    if not -INT64 <= number < INT64:
        raise OverflowError
    return Int64(number) if as_long or is_long(number) else number


def _result(
    a: Any, b: Any, calculate: Callable[[Any, Any], Any], calculate_decimal: Callable[[Any, Any], Any]
) -> object:
    """Return a decimal if a number is one, else a double if one is one, else a long if one is or an int overflows."""
    if type(a) is Decimal128 or type(b) is Decimal128:
        return Decimal128.from_decimal(calculate_decimal(to_decimal(a), to_decimal(b)))
    if type(a) is float or type(b) is float:
        return calculate(float(a), float(b))
    return to_stored_int(calculate(int(a), int(b)), is_long(a) or is_long(b))


def to_decimal(number: Any) -> decimal.Decimal:
    """Return the number as a decimal. A double becomes a decimal of 15 digits, as in MongoDB."""
    if type(number) is Decimal128:
        return number.to_decimal()
    if type(number) is float:
        return decimal.Decimal(format(number, ".14e"))
    return decimal.Decimal(int(number))


def whole_number(value: Any, limit: int = INT64) -> int | None:
    """Return a number without a fraction as an int, None for every other value and for one beyond `limit`."""
    if type(value) is Decimal128:
        value = value.to_decimal()
        if not value.is_finite() or value.adjusted() > 19:
            return None
    elif type(value) is float:
        if not math.isfinite(value):
            return None
    elif not isinstance(value, int) or type(value) is bool:
        return None
    number = int(value)
    return number if number == value and -limit <= number < limit else None
