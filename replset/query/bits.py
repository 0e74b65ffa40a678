"""Tests the bits of numbers and binary values: $bitsAllSet and its like in filters."""

from __future__ import annotations

import math
from typing import Any, Final

from replset.errors import BadValueError, FailedToParseError
from replset.query.errors import show
from replset.query.order import Predicate, is_number, type_name

_MAX_POSITION: Final = (1 << 31) - 1
_SIGN_BIT: Final = 63
_SIGN: Final = 1 << _SIGN_BIT


def bits_predicate(name: str, operand: object) -> Predicate:
    """Return the test of $bitsAllSet, $bitsAllClear, $bitsAnySet or $bitsAnyClear.

    operand: positions in an array, or a mask: a whole number of at least 0, or binary. A value matches if it is a whole
    number of up to 64 bits, whose sign counts for the bits beyond, or binary, of which the bits beyond are clear.
    """
    positions = sorted({_position(name, one) for one in operand}) if type(operand) is list else None
    mask = _mask(name, operand) if positions is None else sum(1 << one for one in positions if one < _SIGN_BIT)
    has_beyond = mask >> _SIGN_BIT if positions is None else positions[-1:] >= [_SIGN_BIT]
    number_mask = (mask & (_SIGN - 1)) | (_SIGN if has_beyond else 0)
    wants_all, wants_set = name.startswith("$bitsAll"), name.endswith("Set")

    def holds(value: object) -> bool:
        if positions is not None and isinstance(value, bytes):  # a mask of the last position could be very long
            found = (_is_set(value, one) is wants_set for one in positions)
            return all(found) if wants_all else any(found)
        bits = _bits(value)
        if bits is None:
            return False
        wanted = mask if isinstance(value, bytes) else number_mask
        both = bits & wanted  # takes the time of the shorter of the two
        if wants_all:
            return both == (wanted if wants_set else 0)
        return both != (0 if wants_set else wanted)

    return holds


def _is_set(value: bytes, position: int) -> bool:
    return position // 8 < len(value) and bool(value[position // 8] >> position % 8 & 1)


def _bits(value: Any) -> int | None:
    """Return the bits of a value: of a number 64, of which the last is its sign. None for a value of another type."""
    if isinstance(value, bytes):
        return int.from_bytes(value, "little")
    if isinstance(value, float):
        if not math.isfinite(value) or value != int(value):
            return None
        value = int(value)
    if not isinstance(value, int) or type(value) is bool:
        return None
    return value & (2 * _SIGN - 1) if -_SIGN <= value < _SIGN else None


def _mask(name: str, operand: Any) -> int:
    if isinstance(operand, bytes):
        return int.from_bytes(operand, "little")
    if not is_number(operand):
        raise BadValueError(f"{name} takes an Array, a number, or a BinData but received: {show(operand)}")
    bits = _bits(operand)
    if bits is None or bits >= _SIGN:
        raise FailedToParseError(f"Expected a non-negative integer in: {name}: {show(operand)}")
    return bits


def _position(name: str, value: Any) -> int:
    if not is_number(value):
        raise BadValueError(f"bit positions of {name} must be an integer but got: {type_name(value)} {show(value)}")
    number = _bits(value)
    if number is None or number > _MAX_POSITION:
        raise FailedToParseError(f"bit positions of {name} must be >= 0 and 32-bit integers but got: {show(value)}")
    return number
