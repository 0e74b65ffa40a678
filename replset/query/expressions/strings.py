"""Operators on strings. What searches with regular expressions is in regexes.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from replset.bson import Code, DateTime, Decimal128, Symbol, Timestamp
from replset.query.errors import show
from replset.query.expressions.compiler import fault, named, plain, spend
from replset.query.expressions.date_text import iso_text
from replset.query.expressions.shared import index_argument
from replset.query.numbers import INT32, whole_number
from replset.query.order import is_null, is_number, type_name

_BLANKS: Final = "\0 \t\n\v\f\r\u00a0\u1680" + "".join(map(chr, range(0x2000, 0x200B)))
_STRING_BYTES: Final = 60
"""What Python takes for a short string in an array."""


def concat(*values: Any) -> object:
    for value in values:
        if is_null(value):
            return None
        if not isinstance(value, str):
            raise fault(16702, f"$concat only supports strings, not {type_name(value)}")
    spend(sum(map(len, values)))
    return "".join(values)


def as_text(value: Any) -> str:
    """Return a value as $toLower, $substr and others take it: numbers and dates as text, null as nothing."""
    if isinstance(value, str):
        return value
    if is_null(value):
        return ""
    if type(value) is float:
        return double_text(value)
    if is_number(value):
        return str(value) if type(value) is Decimal128 else str(int(value))
    if type(value) is DateTime:
        return iso_text(value.ms)
    if type(value) in (Code, Symbol):
        return str(value)
    if type(value) is Timestamp:
        return f"{datetime.fromtimestamp(value.time, UTC):%b %e %H:%M:%S}:{value.inc:x}"
    raise fault(16007, f"can't convert from BSON type {type_name(value)} to String")


def double_text(value: float) -> str:
    """Return a double as MongoDB prints it, with up to 16 digits."""
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return "NaN" if value != value else f"{value:.16g}"


def encoded(value: object) -> bytes:
    return as_text(value).encode(errors="surrogatepass")


def _change_case(change: Callable[[bytes], bytes], value: object) -> str:
    """Change the letters A to Z alone, as MongoDB does."""
    return change(encoded(value)).decode(errors="surrogatepass")


def strcasecmp(a: object, b: object) -> int:
    left, right = encoded(a).upper(), encoded(b).upper()
    return (left > right) - (left < right)


def substr_bytes(text: object, start: Any, length: Any) -> str:
    data = encoded(text)
    for code, what, number in ((16034, "starting index", start), (16035, "length", length)):
        if not is_number(number) or type(number) is Decimal128:
            raise fault(code, f"$substrBytes:  {what} must be a numeric type (is BSON type {type_name(number)})")
    begin, count = _cut(start), _cut(length)
    if begin < 0:
        raise fault(50752, f"$substrBytes:  starting index must be non-negative (got: {begin})")
    end = len(data) if count < 0 else begin + count
    for code, place, what in ((28656, begin, "starting"), (28657, end, "ending")):
        if place < len(data) and data[place] & 0xC0 == 0x80:
            raise fault(code, f"$substrBytes:  Invalid range, {what} index is in the middle of a UTF-8 character.")
    return data[begin:end].decode(errors="surrogatepass")


def _cut(number: float) -> int:
    return 0 if number != number else int(max(-(1 << 62), min(1 << 62, number)))


def substr_cp(text: object, start: object, length: object) -> str:
    found = as_text(text)
    begin = _index("starting index", start, 34450, 34451, 34455)
    return found[begin : begin + _index("length", length, 34452, 34453, 34454)]


def _index(what: str, value: object, no_number: int, no_int: int, negative: int) -> int:
    if not is_number(value):
        raise fault(no_number, f"$substrCP: {what} must be a numeric type (is BSON type {type_name(value)})")
    number = whole_number(value, INT32)
    if number is None:
        raise fault(no_int, f"$substrCP: {what} cannot be represented as a 32-bit integral value: {show(value)}")
    if number < 0:
        raise fault(negative, f"$substrCP: {what} must be a nonnegative integer.")
    return number


def _length(name: str, code: int, length: Callable[[str], int], value: object) -> int:
    if not isinstance(value, str):
        raise fault(code, f"{name} requires a string argument, found: {type_name(value)}")
    return length(value)


def split(text: Any, separator: Any) -> object:
    for code, value, place in ((40085, text, "first"), (40086, separator, "second")):
        if not isinstance(value, str):
            raise fault(
                code, f"$split requires a string as its {place} argument, found: {type_name(value)} {show(value)}"
            )
    if not separator:
        raise fault(40087, "$split requires a non-empty separator")
    spend(len(text) + text.count(separator) * _STRING_BYTES)
    return text.split(separator)


def _index_of(name: str, codes: tuple[int, int], in_bytes: bool, text: Any, part: Any, *limits: object) -> object:
    if is_null(text):
        return None
    for code, value, place in zip(codes, (text, part), ("first", "second"), strict=True):
        if not isinstance(value, str):
            raise fault(code, f"{name} requires a string as the {place} argument, found: {type_name(value)}")
    bounds = [index_argument(name, what, value) for what, value in zip(("starting", "ending"), limits, strict=False)]
    if in_bytes:
        text, part = encoded(text), encoded(part)
    return text.find(part, *bounds)


def _trim(name: str, strip: Callable[[str, str], str], text: Any, chars: Any) -> object:
    if is_null(text):
        return None
    if not isinstance(text, str):
        raise fault(50699, f"{name} requires its input to be a string, got {show(text)} (of type {type_name(text)})")
    if is_null(chars):
        return None
    if not isinstance(chars, str):
        raise fault(50700, f"{name} requires 'chars' to be a string, got {show(chars)} (of type {type_name(chars)})")
    return strip(text, chars)


def _replace(name: str, limit: int, text: Any, part: Any, replacement: Any) -> object:
    """Replace the first places of a string, with limit -1 all."""
    values = {"input": (51746, text), "find": (51745, part), "replacement": (51744, replacement)}
    for field, (code, value) in values.items():
        if not is_null(value) and not isinstance(value, str):
            raise fault(code, f"{name} requires that '{field}' be a string, found: {show(value)}")
    if any(is_null(value) for _, value in values.values()):
        return None
    places = text.count(part) if limit < 0 else limit
    spend(len(text) + places * len(replacement))
    return text.replace(part, replacement, limit)


_REPLACEMENT: Final = {"input": 51749, "find": 51748, "replacement": 51747}
"""The arguments, and the code of the error if one is not given."""
_TRIMS: Final = {"$trim": str.strip, "$ltrim": str.lstrip, "$rtrim": str.rstrip}

OPERATORS: Final = (
    plain("$concat", concat, 0, None),
    plain("$toLower", partial(_change_case, bytes.lower)),
    plain("$toUpper", partial(_change_case, bytes.upper)),
    plain("$strcasecmp", strcasecmp, 2),
    plain("$substr", substr_bytes, 3),
    plain("$substrBytes", substr_bytes, 3),
    plain("$substrCP", substr_cp, 3),
    plain("$strLenBytes", partial(_length, "$strLenBytes", 34473, lambda text: len(encoded(text)))),
    plain("$strLenCP", partial(_length, "$strLenCP", 34471, len)),
    plain("$split", split, 2, null_if_null=True),
    plain("$indexOfBytes", partial(_index_of, "$indexOfBytes", (40091, 40092), True), 2, 4),
    plain("$indexOfCP", partial(_index_of, "$indexOfCP", (40093, 40094), False), 2, 4),
    *(
        named(name, partial(_trim, name, strip), ("input",), {"chars": _BLANKS}, 50696, 50694, 50695)
        for name, strip in _TRIMS.items()
    ),
    *(
        named(name, partial(_replace, name, limit), tuple(_REPLACEMENT), None, 51751, 51750, _REPLACEMENT)
        for name, limit in (("$replaceOne", 1), ("$replaceAll", -1))
    ),
)
