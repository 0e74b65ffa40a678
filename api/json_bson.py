"""Encodes a parsed JSON object as BSON in one step, for what documents over HTTP are mostly made of.

It takes half the time of `encode(from_ejson_value(value))`, to which it leaves all that is wrong or rare.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count, islice
from struct import Struct
from typing import Any

from replset.bson.encoding import encode
from replset.bson.errors import ExtendedJSONError, InvalidValueError
from replset.bson.limits import MAX_DEPTH
from replset.bson.values import INT64_MAX, INT64_MIN, ObjectId
from replset.ejson import WRAPPERS, from_ejson_value

_SLICE = 1_000
"""Fields that become bytes together."""
_int32 = Struct("<i").pack
_int64 = Struct("<q").pack
_double = Struct("<d").pack


class _RareError(Exception):
    """The object is wrong, or holds something rare."""


def bson_from_json(value: dict[str, Any]) -> bytes | None:
    """Return encode(from_ejson_value(value)); None when the object is no document, or wrong, or holds something rare.

    value: as orjson parses it.
    """
    try:
        return _document(value.items(), len(value), 1) if WRAPPERS.isdisjoint(value) else None
    except (_RareError, ExtendedJSONError, InvalidValueError):
        return None


def _document(fields: Iterable[tuple[str, Any]], size: int, depth: int) -> bytes:
    if depth > MAX_DEPTH:
        raise _RareError
    if size <= _SLICE:
        body = _elements(fields, depth)
    else:  # the parts of all of its fields would take ten times as much as their bytes
        rest = iter(fields)
        body = b"".join([_elements(islice(rest, _SLICE), depth) for _ in range(0, size, _SLICE)])
    return b"".join((_int32(len(body) + 5), body, b"\0"))


def _elements(fields: Iterable[tuple[str, Any]], depth: int) -> bytes:
    parts: list[bytes] = []
    for name, value in fields:
        key, kind = name.encode(), type(value)
        if 0 in key:
            raise _RareError
        if kind is str:
            text = value.encode()
            parts += (b"\x02", key, b"\0", _int32(len(text) + 1), text, b"\0")
        elif kind is int:
            if -0x80000000 <= value <= 0x7FFFFFFF:
                parts += (b"\x10", key, b"\0", _int32(value))
            elif INT64_MIN <= value <= INT64_MAX:
                parts += (b"\x12", key, b"\0", _int64(value))
            else:
                raise _RareError
        elif kind is dict:
            if WRAPPERS.isdisjoint(value):
                parts += (b"\x03", key, b"\0", _document(value.items(), len(value), depth + 1))
            else:
                parts.append(_wrapped(name, value))
        elif kind is list:  # in BSON a document whose names are the indexes
            items = zip(map(str, count()), value, strict=False)
            parts += (b"\x04", key, b"\0", _document(items, len(value), depth + 1))
        elif kind is float:
            parts += (b"\x01", key, b"\0", _double(value))
        elif value is None:
            parts += (b"\x0a", key, b"\0")
        else:
            parts += (b"\x08", key, b"\0\x01" if value else b"\0\0")
    return b"".join(parts)


def _wrapped(name: str, value: dict[str, Any]) -> bytes:
    """Return the element of a type wrapper such as {$oid: "..."}."""
    if len(value) == 1 and type(value.get("$oid")) is str:
        return b"\x07%b\0%b" % (name.encode(), ObjectId(value["$oid"]).binary)
    if "$code" in value or "$binary" in value:  # these may hold documents
        raise _RareError
    return encode({name: from_ejson_value(value)})[4:-1]
