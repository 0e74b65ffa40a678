"""Operators on types: $convert and its short forms, $type, and sizes, bits and parts of single values."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from replset.bson import Binary, DateTime, Decimal128, Int64, InvalidValueError, ObjectId, Timestamp, encode
from replset.bson.types import TYPE_BYTES, TYPE_NAMES
from replset.errors import BadValueError, FailedToParseError, TypeMismatchError
from replset.query.errors import show
from replset.query.expressions.compiler import Expression, Operator, Scope, fault, plain
from replset.query.expressions.date_text import iso_text, read_date
from replset.query.expressions.dates import ms_of
from replset.query.expressions.shared import NO_INPUT, conversion_failure, with_fallbacks
from replset.query.expressions.strings import double_text
from replset.query.expressions.time_zones import ZULU
from replset.query.numbers import DECIMAL128, INT32, INT64, to_decimal, whole_number
from replset.query.order import is_null, is_number, is_true, type_name
from replset.query.sizes import size_of

_NUMBER = re.compile(r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|inf|infinity|nan)", re.IGNORECASE | re.ASCII)
_INTEGER = re.compile(r"[+-]?\d{1,30}", re.ASCII)
_LONGEST_NUMBER: Final = 2_000
_NO_VALUE: Final = "in $convert with no onError value"
_NUMBERS: Final = ("double", "int", "long", "decimal")


def _overflow(value: object) -> Exception:
    return conversion_failure(f"Conversion would overflow target type {_NO_VALUE}: {show(value)}")


# --- to numbers ---------------------------------------------------------------------------------------------------


def _cut(value: Any) -> int:
    """Return a number without its fraction."""
    number = value.to_decimal() if type(value) is Decimal128 else value
    if number != number:
        raise conversion_failure(f"Attempt to convert NaN value to integer type {_NO_VALUE}")
    if abs(number) == math.inf:
        raise conversion_failure(f"Attempt to convert infinity value to integer type {_NO_VALUE}")
    if abs(number) >= 2 * INT64:
        raise _overflow(value)
    return int(number)


def _to_int(value: Any) -> int:
    number = _cut(value)
    if not -INT32 <= number < INT32:
        raise _overflow(value)
    return number


def _to_long(value: Any) -> Int64:
    number = _cut(value)
    if not -INT64 <= number < INT64:
        raise _overflow(value)
    return Int64(number)


def _to_double(value: Any) -> float:
    if type(value) is not Decimal128:
        return float(value)
    exact = value.to_decimal()
    found = float(exact)
    if exact.is_finite() and (math.isinf(found) or (exact != 0 and found == 0)):
        raise _overflow(value)
    return found


def _to_decimal(value: Any) -> Decimal128:
    return value if type(value) is Decimal128 else Decimal128.from_decimal(to_decimal(value))


def _check_number(text: str, pattern: re.Pattern[str]) -> None:
    if text.startswith("0x"):
        raise conversion_failure(f"Illegal hexadecimal input {_NO_VALUE}: {show(text)}")
    if len(text) > _LONGEST_NUMBER or not pattern.fullmatch(text):
        raise conversion_failure(f"Failed to parse number {show(text)} {_NO_VALUE}: Did not consume whole string.")


def _integer_in(text: str, limit: int, to: Callable[[int], object]) -> object:
    _check_number(text, _INTEGER)
    number = int(text)
    if not -limit <= number < limit:
        raise conversion_failure(f"Failed to parse number {show(text)} {_NO_VALUE}: Overflow")
    return to(number)


def _double_in(text: str) -> float:
    _check_number(text, _NUMBER)
    found = float(text)
    if math.isinf(found) and "inf" not in text.lower():
        raise conversion_failure(f"Failed to parse number {show(text)} {_NO_VALUE}: Out of range")
    return found


def _decimal_in(text: str) -> Decimal128:
    _check_number(text, _NUMBER)
    found = DECIMAL128.create_decimal(text)
    if found.is_infinite() and "inf" not in text.lower():
        raise conversion_failure(f"Failed to parse number {show(text)} {_NO_VALUE}: Conversion from string overflows")
    return Decimal128.from_decimal(found)


# --- to other types -----------------------------------------------------------------------------------------------


def _object_id_in(text: str) -> ObjectId:
    try:
        return ObjectId(text)
    except InvalidValueError as error:
        raise conversion_failure(f"Failed to parse objectId {show(text)} {_NO_VALUE}: {error}") from None


def _to_date(value: Any) -> DateTime:
    return DateTime(ms_of(value) or 0)


Conversion = Callable[[Any], object]


def _table() -> dict[tuple[str, str], Conversion]:
    """Return the conversions by the names of both types."""
    table: dict[tuple[str, str], Conversion] = {
        ("string", "double"): _double_in,
        ("string", "int"): lambda text: _integer_in(text, INT32, int),
        ("string", "long"): lambda text: _integer_in(text, INT64, Int64),
        ("string", "decimal"): _decimal_in,
        ("string", "objectId"): _object_id_in,
        ("string", "date"): lambda text: read_date(text, ZULU),
        ("double", "string"): lambda number: "-0" if not number and str(number) == "-0.0" else double_text(number),
        ("int", "string"): str,
        ("long", "string"): lambda number: str(int(number)),
        ("decimal", "string"): str,
        ("bool", "string"): lambda value: "true" if value else "false",
        ("objectId", "string"): str,
        ("date", "string"): lambda date: iso_text(date.ms),
        ("objectId", "date"): _to_date,
        ("timestamp", "date"): _to_date,
        ("date", "double"): lambda date: float(date.ms),
        ("date", "long"): lambda date: Int64(date.ms),
        ("date", "decimal"): lambda date: Decimal128(str(date.ms)),
        **{(number, "date"): lambda value: DateTime(_to_long(value)) for number in ("double", "long", "decimal")},
        **{(name, name): lambda value: value for name in (*_NUMBERS, "string", "objectId", "bool", "date")},
        **{(name, "bool"): is_true for name in TYPE_NAMES.values()},
    }
    targets: dict[str, Conversion] = {"double": _to_double, "int": _to_int, "long": _to_long, "decimal": _to_decimal}
    for source in (*_NUMBERS, "bool"):
        for target, change in targets.items():
            table.setdefault((source, target), change)
    return table


_CONVERSIONS: Final = _table()


def _convert(value: Any, to: Any) -> object:
    target = None if is_null(to) else _target(to)
    if is_null(value):
        return NO_INPUT
    if target is None:
        return None
    source = type_name(value)
    change = _CONVERSIONS.get((source, target))
    if change is None:
        raise conversion_failure(f"Unsupported conversion from {source} to {target} {_NO_VALUE}")
    return change(value)


def _target(to: Any) -> str:
    if isinstance(to, str):
        if to not in TYPE_BYTES and to != "missing":
            raise BadValueError(f"Unknown type name: {show(to)}")
        return to
    if not is_number(to):
        raise FailedToParseError(f"$convert's 'to' argument must be a string or number, but is {type_name(to)}")
    number = whole_number(to, INT32)
    if number is None:
        raise FailedToParseError("In $convert, numeric 'to' argument is not an integer")
    name = TYPE_NAMES.get(TYPE_BYTES["minKey"] if number == -1 else number)
    if name is None or number == TYPE_BYTES["minKey"]:
        raise FailedToParseError(f"In $convert, numeric value for 'to' does not correspond to a BSON type: {number}")
    return name


def _short_form(name: str, target: str) -> Operator:
    def convert(value: Any) -> object:
        result = _convert(value, target)
        return None if result is NO_INPUT else result

    unary = plain(name, convert)

    def build(argument: Any, scope: Scope) -> Expression:
        if type(argument) is list and len(argument) != 1:
            raise fault(50723, f"{name} requires a single argument, got {len(argument)}")
        return unary.build(argument, scope)

    return Operator(name, build)


# --- single values ------------------------------------------------------------------------------------------------


def _binary_size(value: Any) -> int:
    if isinstance(value, str):
        return len(value.encode(errors="surrogatepass"))
    if not isinstance(value, bytes | Binary):
        raise fault(51276, f"$binarySize requires a string or BinData argument, found: {type_name(value)}")
    return len(value)


def _bson_size(value: Any) -> int:
    if not isinstance(value, Mapping):
        raise fault(31393, f"$bsonSize requires a document input, found: {type_name(value)}")
    size_of(value)
    return len(encode(value))


def _of_timestamp(name: str, code: int, part: Callable[[Timestamp], int], value: Any) -> Int64:
    if type(value) is not Timestamp:
        raise fault(code, f"Argument to {name} must be a timestamp, but is {type_name(value)}")
    return Int64(part(value))


def _bitwise(name: str, start: int, step: Callable[[int, int], int], *values: Any) -> object:
    result, is_long = start, False
    for value in values:
        if type(value) is not int and type(value) is not Int64:
            raise TypeMismatchError(f"{name} only supports int and long operands, not {type_name(value)}")
        result, is_long = step(result, int(value)), is_long or type_name(value) == "long"
    return Int64(result) if is_long else result


def _bit_not(value: Any) -> object:
    if not is_number(value):
        raise fault(28765, f"$bitNot only supports numeric types, not {type_name(value)}")
    return _bitwise("$bitNot", -1, lambda all_ones, number: all_ones ^ number, value)


def _rand(argument: Any, _scope: Scope) -> Expression:
    if not isinstance(argument, Mapping) and argument != []:
        raise fault(10065, "invalid parameter: expected an object ($rand)")
    if argument:
        raise fault(3040501, "$rand does not currently accept arguments")
    return Expression(lambda _root, _variables: random.random())  # noqa: TID251


_SHORT_FORMS: Final = {
    "$toBool": "bool",
    "$toDate": "date",
    "$toDecimal": "decimal",
    "$toDouble": "double",
    "$toInt": "int",
    "$toLong": "long",
    "$toObjectId": "objectId",
    "$toString": "string",
}

OPERATORS: Final = (
    with_fallbacks("$convert", _convert, ("input", "to"), {}, (9, 9, 9), ("onNull", "onError")),
    *(_short_form(name, target) for name, target in _SHORT_FORMS.items()),
    plain("$type", type_name),
    plain("$isNumber", is_number),
    plain("$binarySize", _binary_size, null_if_null=True),
    plain("$bsonSize", _bson_size, null_if_null=True),
    plain("$tsSecond", partial(_of_timestamp, "$tsSecond", 5687301, lambda value: value.time), null_if_null=True),
    plain("$tsIncrement", partial(_of_timestamp, "$tsIncrement", 5687302, lambda value: value.inc), null_if_null=True),
    plain("$bitAnd", partial(_bitwise, "$bitAnd", -1, int.__and__), 0, None, null_if_null=True),
    plain("$bitOr", partial(_bitwise, "$bitOr", 0, int.__or__), 0, None, null_if_null=True),
    plain("$bitXor", partial(_bitwise, "$bitXor", 0, int.__xor__), 0, None, null_if_null=True),
    plain("$bitNot", _bit_not, null_if_null=True),
    Operator("$rand", _rand),
)
