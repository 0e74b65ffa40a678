"""Reads and writes MongoDB Extended JSON v2, canonical and relaxed.

Reading takes both forms, also mixed in one document. A JSON object with the key of a type wrapper ($oid, $date, ...)
must be that wrapper and nothing else. Other keys that begin with $, such as $gt, $regex or $ref, are ordinary keys.
JSON integers become int32 or int64 by size, and doubles beyond 64 bits. Equal keys are refused. The options of a
regular expression are sorted when read and when written, as the BSON corpus requires.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Final

import orjson

from replset.bson.decimal128 import Decimal128
from replset.bson.errors import ExtendedJSONError, InvalidBSONError, InvalidValueError, shown_path
from replset.bson.limits import MAX_DEPTH
from replset.bson.raw import RawDocument
from replset.bson.values import (
    INT64_MAX,
    INT64_MIN,
    Binary,
    Code,
    CodeWithScope,
    DateTime,
    DBPointer,
    Int64,
    MaxKey,
    MinKey,
    ObjectId,
    Regex,
    Symbol,
    Timestamp,
    Undefined,
)

_INT32_MIN, _INT32_MAX = -0x80000000, 0x7FFFFFFF
_YEAR_10000_MS = 253_402_300_800_000
_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"(\s*:)?', re.DOTALL)
"""Matches a string of JSON; the group is there behind a key."""
_SPACE = re.compile(rb'"[ \t\n\r]')
"""Matches a space without which each key is followed by a colon at once."""
_INTEGER = re.compile(r"-?\d{1,20}", re.ASCII)
_DOUBLE = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_SPECIAL_DOUBLES: Final = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}
_DATE_TEXT = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?(?:Z|([+-])(\d\d):?(\d\d))", re.ASCII
)
_HEX_SUBTYPE = re.compile(r"[0-9a-fA-F]{1,2}", re.ASCII)


def from_ejson(text: str | bytes) -> dict[str, object]:
    """Parse `text` into a document. ExtendedJSONError names line and column, or the path of the wrong value."""
    value = load_json(text)
    if not isinstance(value, dict):
        raise ExtendedJSONError(f"a document is a JSON object, not {_json_type(value)}")
    document = _read(value, 1)
    if not isinstance(document, dict):
        raise ExtendedJSONError("a document is a JSON object, not a type wrapper")
    return document


def load_json(text: str | bytes) -> Any:
    """Parse JSON to Python values. ExtendedJSONError: it is malformed, or an object has one key twice."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ExtendedJSONError(f"malformed JSON: {error}") from None
    # orjson takes the last of equal keys. What the others said, a filter or a condition perhaps, would be lost.
    data, keys = text.encode() if isinstance(text, str) else text, _count_keys(value)
    is_plain = data.count(b'":') == keys and _SPACE.search(data) is None
    if not is_plain and sum(map(bool, _STRINGS.findall(data))) != keys:
        try:
            json.loads(text, object_pairs_hook=_refuse_equal_keys)
        except RecursionError:
            raise ExtendedJSONError("a key is there twice in one object") from None
    return value


def _count_keys(value: object) -> int:
    count, left = 0, [value]
    for item in left:  # it grows meanwhile
        if type(item) is dict:
            count += len(item)
            left += [inner for inner in item.values() if type(inner) is dict or type(inner) is list]
        elif type(item) is list:
            left += item
    return count


def _refuse_equal_keys(fields: list[tuple[str, object]]) -> None:
    names: set[str] = set()
    for name, _ in fields:
        if name in names:
            raise ExtendedJSONError(f"the key {name[:80]!r} is there twice in one object")
        names.add(name)


def from_ejson_value(value: object) -> object:
    """Convert a parsed JSON value (dict, list, str, int, float, bool, None) to the BSON value that it represents."""
    return _read(value, 1)


def to_ejson(value: object, canonical: bool = False) -> str:
    """Return a value, usually a document, as one line of Extended JSON. InvalidBSONError when it has no BSON form.

    canonical: keeps every type. Otherwise relaxed: plain numbers, and dates from 1970 to 9999 as ISO text.
    """
    plain = _write(value, canonical, 0)
    try:
        text = orjson.dumps(plain).decode()
    except TypeError:
        # Too deep for orjson (scopes nest twice as deep in JSON as in BSON), or a lone surrogate.
        text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidBSONError("a lone surrogate in a string or name") from None
    # JavaScript takes these two characters as line ends. They occur in strings only.
    return text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def to_ejson_value(value: object, canonical: bool = False) -> Any:
    """Return the same JSON as to_ejson as Python values, not as text."""
    return _write(value, canonical, 0)


# ---- writing


def _write(value: Any, canonical: bool, depth: int) -> Any:
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return value
    if kind is dict:
        if depth >= MAX_DEPTH:
            raise InvalidBSONError(f"more than {MAX_DEPTH} levels of nesting")
        fields: dict[str, object] = {}
        for name, field in value.items():
            if not isinstance(name, str) or "\0" in name:
                raise InvalidBSONError("a field name is a string without zero bytes")
            fields[name] = _write(field, canonical, depth + 1)
        return fields
    if kind is list or kind is tuple:
        if depth >= MAX_DEPTH:
            raise InvalidBSONError(f"more than {MAX_DEPTH} levels of nesting")
        return [_write(item, canonical, depth + 1) for item in value]
    writer = _WRITERS.get(kind)
    if writer is not None:
        return writer(value, canonical)
    if isinstance(value, CodeWithScope):
        return {"$code": value.code, "$scope": _write(dict(value.scope), canonical, depth)}
    if isinstance(value, RawDocument):
        return _write(value.decode(), canonical, depth)
    if isinstance(value, Mapping):
        return _write(dict(value), canonical, depth)
    for base, writer in _WRITERS.items():
        if isinstance(value, base):
            return writer(value, canonical)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, list | tuple):
        return _write(list(value), canonical, depth)
    raise InvalidBSONError(f"a value of type {kind.__name__} has no BSON form")


def _write_int(value: int, canonical: bool) -> object:
    if not INT64_MIN <= value <= INT64_MAX:
        raise InvalidBSONError("an integer beyond 64 bits")
    if not canonical:
        return int(value)
    return {"$numberInt" if _INT32_MIN <= value <= _INT32_MAX else "$numberLong": int.__repr__(value)}


def _write_int64(value: Int64, canonical: bool) -> object:
    return {"$numberLong": int.__repr__(value)} if canonical else int(value)


def _write_double(value: float, canonical: bool) -> object:
    if math.isfinite(value):
        return {"$numberDouble": _double_text(value)} if canonical else float(value)
    return {"$numberDouble": "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}


def _double_text(value: float) -> str:
    """Return the shortest text of a double, with an exponent from 1E+06 on and below 0.0001, as MongoDB's tools do."""
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        return repr(float(value))
    number = Decimal(repr(float(value)))
    digits = "".join(map(str, number.as_tuple().digits)).rstrip("0")
    fraction = "." + digits[1:] if len(digits) > 1 else ""
    return f"{'-' if value < 0 else ''}{digits[0]}{fraction}E{number.adjusted():+03d}"


def _write_date(value: DateTime, canonical: bool) -> object:
    if canonical or not 0 <= value.ms < _YEAR_10000_MS:
        return {"$date": {"$numberLong": str(value.ms)}}
    timespec = "milliseconds" if value.ms % 1000 else "seconds"
    return {"$date": value.to_datetime().replace(tzinfo=None).isoformat(timespec=timespec) + "Z"}


def _write_datetime(value: datetime, canonical: bool) -> object:
    try:
        return _write_date(DateTime.from_datetime(value), canonical)
    except InvalidValueError as error:
        raise InvalidBSONError(error.message) from None


def _write_binary(value: bytes, canonical: bool) -> object:
    subtype = value.subtype if isinstance(value, Binary) else 0
    return {"$binary": {"base64": base64.b64encode(value).decode(), "subType": f"{subtype:02x}"}}


def _write_regex(value: Regex, canonical: bool) -> object:
    if "\0" in value.pattern or "\0" in value.options:
        raise InvalidBSONError("a zero byte in a regular expression")
    return {"$regularExpression": {"pattern": value.pattern, "options": "".join(sorted(value.options))}}


_WRITERS: Final[dict[type, Callable[[Any, bool], object]]] = {
    bool: lambda value, canonical: value,
    Int64: _write_int64,
    int: _write_int,
    float: _write_double,
    Decimal128: lambda value, canonical: {"$numberDecimal": str(value)},
    ObjectId: lambda value, canonical: {"$oid": str(value)},
    DateTime: _write_date,
    datetime: _write_datetime,
    Timestamp: lambda value, canonical: {"$timestamp": {"t": value.time, "i": value.inc}},
    Binary: _write_binary,
    bytes: _write_binary,
    uuid.UUID: lambda value, canonical: _write_binary(Binary.from_uuid(value), canonical),
    Regex: _write_regex,
    Code: lambda value, canonical: {"$code": value.code},
    Symbol: lambda value, canonical: {"$symbol": value.text},
    DBPointer: lambda value, canonical: {"$dbPointer": {"$ref": value.ns, "$id": {"$oid": str(value.oid)}}},
    Undefined: lambda value, canonical: {"$undefined": True},
    MinKey: lambda value, canonical: {"$minKey": 1},
    MaxKey: lambda value, canonical: {"$maxKey": 1},
}


# ---- reading


class _Refusal(Exception):
    """A value is wrong. `path` is built while the exception rises, so that good input costs nothing."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []

    def with_parent(self, name: str) -> _Refusal:
        self.path.append(name)
        return self


def _read(value: object, depth: int) -> object:
    try:
        return _read_value(value, depth)
    except _Refusal as refusal:
        where = shown_path(".".join(reversed(refusal.path)))
        raise ExtendedJSONError(f"{refusal.reason} at '{where}'" if where else refusal.reason) from None


def _read_value(value: object, depth: int) -> object:
    """Convert one value. depth: its level. It uses one Python frame per level, two where scopes nest."""
    kind = type(value)
    if kind is str or kind is bool or value is None or kind is float:
        return value
    if kind is int:
        return _read_int(value)  # type: ignore[arg-type]
    name = ""
    try:
        if isinstance(value, dict):
            for name in value:
                if name[:1] == "$" and name in WRAPPERS:
                    if name in ("$code", "$scope") and len(value) == 2:
                        name = "$scope"  # for the path of what is wrong inside it
                        scope = _read_value(value.get(name), depth)
                        name = "$code"
                        return _code_with_scope(value, scope)
                    return _read_wrapper(value, name)
            if depth > MAX_DEPTH:
                raise _Refusal(f"more than {MAX_DEPTH} levels of nesting")
            fields: dict[str, object] = {}
            for name, field in value.items():
                if "\0" in name:
                    raise _Refusal("a zero byte in a name")
                fields[name] = _read_value(field, depth + 1)
            return fields
        if isinstance(value, list):
            if depth > MAX_DEPTH:
                raise _Refusal(f"more than {MAX_DEPTH} levels of nesting")
            items: list[object] = []
            for index, item in enumerate(value):
                name = str(index)
                items.append(_read_value(item, depth + 1))
            return items
    except _Refusal as refusal:
        raise refusal.with_parent(name) from None
    raise _Refusal(f"a value of type {kind.__name__} is no JSON")


def _read_int(value: int) -> int | float:
    if _INT32_MIN <= value <= _INT32_MAX:
        return value
    if INT64_MIN <= value <= INT64_MAX:
        return Int64(value)
    try:
        return float(value)
    except OverflowError:
        raise _Refusal("a number beyond the range of doubles") from None


def _code_with_scope(value: dict[str, object], scope: object) -> CodeWithScope:
    """Return code with scope from an object of two keys. scope: its converted $scope, None when it has none."""
    if set(value) != {"$code", "$scope"}:
        raise _mixed_keys(value, "$code" if "$code" in value else "$scope")
    if not isinstance(scope, dict):
        raise _Refusal("$scope takes a document")
    return CodeWithScope(_text(value["$code"], "$code"), scope)


def _mixed_keys(value: dict[str, object], wrapper: str) -> _Refusal:
    others = ", ".join(sorted(set(value) - {wrapper})) or "nothing"
    return _Refusal(f"{wrapper} does not go with {others:.100}")


def _read_wrapper(value: dict[str, object], wrapper: str) -> object:
    if value.keys() == {"$binary", "$type"}:  # version 1 of Extended JSON
        return _binary(value["$binary"], value["$type"])
    if len(value) != 1 or wrapper == "$scope":
        raise _mixed_keys(value, wrapper)
    content = value[wrapper]
    if wrapper == "$binary" and isinstance(content, str):
        return dict(value)  # half of that old form is an ordinary document; the BSON corpus says so
    try:
        return _READERS[wrapper](content)
    except InvalidValueError as error:
        raise _Refusal(f"bad {wrapper}: {error.message}") from None


def _text(value: object, wrapper: str) -> str:
    if not isinstance(value, str):
        raise _Refusal(f"{wrapper} takes a string, not {_json_type(value)}")
    return value


def _parts(value: object, wrapper: str, *names: str) -> list[object]:
    if not isinstance(value, dict) or set(value) != set(names):
        raise _Refusal(f"{wrapper} takes an object of just {' and '.join(names)}")
    return [value[name] for name in names]


def _integer(value: object, wrapper: str, least: int, most: int) -> int:
    text = _text(value, wrapper)
    if _INTEGER.fullmatch(text) is None or not least <= int(text) <= most:
        raise _Refusal(f"{wrapper} takes an integer from {least} to {most} as a string, not {text!r:.60}")
    return int(text)


def _int64(value: object) -> Int64:
    return Int64(_integer(value, "$numberLong", INT64_MIN, INT64_MAX))


def _double(value: object) -> float:
    text = _text(value, "$numberDouble")
    if text in _SPECIAL_DOUBLES:
        return _SPECIAL_DOUBLES[text]
    number = float(text) if _DOUBLE.fullmatch(text) else math.inf
    if not math.isfinite(number):
        raise _Refusal(f"$numberDouble takes a double as a string, not {text!r:.60}")
    return number


def _binary(data: object, subtype: object) -> Binary:
    base64_text = _text(data, "base64 of $binary")
    subtype_text = _text(subtype, "subType of $binary")
    if _HEX_SUBTYPE.fullmatch(subtype_text) is None:
        raise _Refusal(f"subType of $binary takes one or two hex digits, not {subtype_text!r:.60}")
    try:
        return Binary(base64.b64decode(base64_text, validate=True), int(subtype_text, 16))
    except (binascii.Error, ValueError):
        raise _Refusal("base64 of $binary is not base64") from None


def _uuid(value: object) -> Binary:
    text = _text(value, "$uuid")
    if re.fullmatch(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", text, re.ASCII) is None:
        raise _Refusal(f"$uuid takes 8-4-4-4-12 hex digits, not {text!r:.60}")
    return Binary.from_uuid(uuid.UUID(text))


def _timestamp(value: object) -> Timestamp:
    parts = _parts(value, "$timestamp", "t", "i")
    for part in parts:
        if type(part) is not int or not 0 <= part <= 0xFFFFFFFF:
            raise _Refusal(f"t and i of $timestamp take integers from 0 to {0xFFFFFFFF}")
    return Timestamp(*parts)  # type: ignore[arg-type]


def _regex(value: object) -> Regex:
    pattern, options = (_text(part, "$regularExpression") for part in _parts(value, "$regularExpression", *_REGEX))
    if "\0" in pattern or "\0" in options:
        raise _Refusal("a zero byte in $regularExpression")
    return Regex(pattern, "".join(sorted(options)))


_REGEX: Final = ("pattern", "options")


def _db_pointer(value: object) -> DBPointer:
    ns, oid = _parts(value, "$dbPointer", "$ref", "$id")
    return DBPointer(_text(ns, "$ref of $dbPointer"), _oid(_parts(oid, "$id of $dbPointer", "$oid")[0]))


def _oid(value: object) -> ObjectId:
    return ObjectId(_text(value, "$oid"))


def _date(value: object) -> DateTime:
    if isinstance(value, dict):
        return DateTime(_int64(_parts(value, "$date", "$numberLong")[0]))
    text = _text(value, "$date")
    match = _DATE_TEXT.fullmatch(text)
    if match is None:
        raise _Refusal(f"$date takes an ISO 8601 date with a time and a zone, not {text!r:.60}")
    year, month, day, hour, minute, second, fraction, sign, zone_hours, zone_minutes = match.groups()
    zone: timezone = UTC
    try:
        if sign is not None:
            offset = timedelta(hours=int(zone_hours), minutes=int(zone_minutes))
            zone = timezone(-offset if sign == "-" else offset)
        whole = datetime(int(year), int(month), int(day), int(hour), int(minute), int(second or 0), tzinfo=zone)
    except ValueError as error:
        raise _Refusal(f"bad $date {text!r}: {error}") from None
    return DateTime(DateTime.from_datetime(whole).ms + int((fraction or "").ljust(3, "0")[:3]))


def _constant(wrapper: str, expected: object, result: object) -> Callable[[object], object]:
    def read(value: object) -> object:
        if type(value) is not type(expected) or value != expected:
            raise _Refusal(f"{wrapper} takes {json.dumps(expected)} only")
        return result

    return read


_READERS: Final[dict[str, Callable[[object], object]]] = {
    "$oid": _oid,
    "$symbol": lambda value: Symbol(_text(value, "$symbol")),
    "$numberInt": lambda value: _integer(value, "$numberInt", _INT32_MIN, _INT32_MAX),
    "$numberLong": _int64,
    "$numberDouble": _double,
    "$numberDecimal": lambda value: Decimal128(_text(value, "$numberDecimal")),
    "$binary": lambda value: _binary(*_parts(value, "$binary", "base64", "subType")),
    "$uuid": _uuid,
    "$code": lambda value: Code(_text(value, "$code")),
    "$timestamp": _timestamp,
    "$regularExpression": _regex,
    "$dbPointer": _db_pointer,
    "$date": _date,
    "$minKey": _constant("$minKey", 1, MinKey()),
    "$maxKey": _constant("$maxKey", 1, MaxKey()),
    "$undefined": _constant("$undefined", True, Undefined()),
}
WRAPPERS: Final = frozenset({*_READERS, "$scope"})
"""Keys that make a JSON object a type wrapper."""


def _json_type(value: object) -> str:
    if value is None:
        return "null"
    names = {
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "an array",
        dict: "an object",
    }
    return names.get(type(value), type(value).__name__)
