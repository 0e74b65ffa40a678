"""Defines Decimal128: IEEE 754-2008 decimal floating point in its binary integer form (BID), stored as 16 bytes.

A finite value is (-1)**sign * coefficient * 10**exponent with at most 34 digits and an exponent from -6176 to
6111. Strings follow the Decimal128 section of the BSON specification. They are converted exactly or refused, never
rounded.
"""

from __future__ import annotations

import decimal
import re
from typing import NamedTuple

from replset.bson.errors import InvalidValueError

MAX_COEFFICIENT = 10**34 - 1
_MAX_DIGITS = 34
_BIAS = 6176
_MIN_EXPONENT = -6176
_MAX_EXPONENT = 6111
_SIGN = 1 << 127
_INFINITY = 0b11110 << 122
_NAN = 0b11111 << 122
_NUMBER = re.compile(r"([+-]?)(?:(\d+)(?:\.(\d*))?|\.(\d+))(?:[eE]([+-]?)(\d+))?", re.ASCII)
_SPECIAL = re.compile(r"([+-]?)(inf|infinity|nan)", re.ASCII | re.IGNORECASE)


class DecimalFields(NamedTuple):
    """The number that the bits encode. kind: "finite", "infinity" or "nan"."""

    kind: str
    negative: bool
    coefficient: int
    exponent: int


class Decimal128:
    """A BSON decimal. Two are equal when their 16 bytes are. So 1.0 and 1 are not equal, but their keys are.

    value: a decimal string, or 16 little-endian bytes, which are kept unchanged, canonical or not.
    Raises InvalidValueError for text that is not a decimal, or that 34 digits and the exponents cannot represent.
    """

    __slots__ = ("_bits",)

    def __init__(self, value: str | bytes) -> None:
        if isinstance(value, str):
            self._bits = _parse(value)
        elif isinstance(value, bytes) and len(value) == 16:
            self._bits = bytes(value)
        else:
            raise InvalidValueError(f"a Decimal128 takes a string or 16 bytes, not {value!r:.60}")

    @classmethod
    def from_decimal(cls, value: decimal.Decimal) -> Decimal128:
        """Return the Decimal128 with the digits and exponent of `value`. InvalidValueError when there is none."""
        if value.is_nan():
            return cls("NaN")
        return cls(str(value))

    @property
    def bid(self) -> bytes:
        """Return the 16 bytes that BSON stores, little-endian."""
        return self._bits

    def fields(self) -> DecimalFields:
        """Return sign, coefficient and exponent. A coefficient beyond 34 digits counts as 0, as IEEE 754 requires."""
        bits = int.from_bytes(self._bits, "little")
        negative = bool(bits & _SIGN)
        if bits & _NAN == _NAN:
            return DecimalFields("nan", negative, 0, 0)
        if bits & _NAN == _INFINITY:
            return DecimalFields("infinity", negative, 0, 0)
        if (bits >> 125) & 0b11 == 0b11:
            # The long form always means a coefficient above 34 digits. It is not canonical, so it counts as zero.
            return DecimalFields("finite", negative, 0, ((bits >> 111) & 0x3FFF) - _BIAS)
        coefficient = bits & ((1 << 113) - 1)
        exponent = ((bits >> 113) & 0x3FFF) - _BIAS
        return DecimalFields("finite", negative, coefficient if coefficient <= MAX_COEFFICIENT else 0, exponent)

    def to_decimal(self) -> decimal.Decimal:
        """Return exactly the same number as decimal.Decimal. NaN loses its sign and payload."""
        kind, negative, coefficient, exponent = self.fields()
        if kind == "nan":
            return decimal.Decimal("NaN")
        if kind == "infinity":
            return decimal.Decimal("-Infinity" if negative else "Infinity")
        return decimal.Decimal((int(negative), tuple(map(int, str(coefficient))), exponent))

    def __str__(self) -> str:
        kind, negative, coefficient, exponent = self.fields()
        if kind == "nan":
            return "NaN"
        sign = "-" if negative else ""
        if kind == "infinity":
            return sign + "Infinity"
        digits = str(coefficient)
        adjusted = exponent + len(digits) - 1
        if exponent > 0 or adjusted < -6:
            fraction = "." + digits[1:] if len(digits) > 1 else ""
            return f"{sign}{digits[0]}{fraction}E{adjusted:+d}"
        if exponent == 0:
            return sign + digits
        digits = digits.rjust(1 - exponent, "0")
        return f"{sign}{digits[:exponent]}.{digits[exponent:]}"

    def __repr__(self) -> str:
        return f"Decimal128('{self}')"

    def __eq__(self, other: object) -> bool:
        return self._bits == other._bits if isinstance(other, Decimal128) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._bits)

    def __reduce__(self) -> tuple[type[Decimal128], tuple[bytes]]:
        return Decimal128, (self._bits,)


def _parse(text: str) -> bytes:
    special = _SPECIAL.fullmatch(text)
    if special is not None:
        sign, word = special.groups()
        bits = _NAN if word.lower() == "nan" else _INFINITY | (_SIGN if sign == "-" else 0)
        return bits.to_bytes(16, "little")
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise InvalidValueError(f"not a decimal number: {text!r:.60}")
    sign, whole, fraction, bare_fraction, exponent_sign, exponent_digits = match.groups()
    after_point = (fraction if whole is not None else bare_fraction) or ""
    digits = ((whole or "") + after_point).lstrip("0")
    # Python refuses to read a huge exponent. Its first 20 digits are far beyond every limit already.
    exponent = int((exponent_digits or "0").lstrip("0")[:20] or "0")
    exponent = (-exponent if exponent_sign == "-" else exponent) - len(after_point)
    return _pack(sign == "-", digits, exponent, text)


def _pack(negative: bool, digits: str, exponent: int, text: str) -> bytes:
    """Return the bits of a number. It may move zeros between digits and exponent. digits: without leading zeros."""
    if not digits:
        exponent = min(max(exponent, _MIN_EXPONENT), _MAX_EXPONENT)
    excess = max(len(digits) - _MAX_DIGITS, _MIN_EXPONENT - exponent)
    if digits and excess > 0:
        kept = digits[:-excess] if excess < len(digits) else ""
        if not kept or digits[len(kept) :].strip("0"):
            raise InvalidValueError(f"a Decimal128 cannot hold {text!r:.60} exactly: more than 34 digits or too small")
        digits, exponent = kept, exponent + excess
    if exponent > _MAX_EXPONENT:
        padding = exponent - _MAX_EXPONENT
        if len(digits) + padding > _MAX_DIGITS:
            raise InvalidValueError(f"a Decimal128 cannot hold {text!r:.60}: too large")
        digits, exponent = digits + "0" * padding, _MAX_EXPONENT
    bits = int(digits or "0") | (exponent + _BIAS) << 113 | (_SIGN if negative else 0)
    return bits.to_bytes(16, "little")
