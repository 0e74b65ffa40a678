"""Encodes a parsed JSON object as BSON in one step, for what documents over HTTP are mostly made of.

It takes half the time of `encode(from_ejson_value(value))`, to which it leaves all that is wrong or rare.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

from replset.bson.encoding import encode
from replset.bson.errors import ExtendedJSONError, InvalidValueError
from replset.bson.limits import MAX_DEPTH
from replset.bson.values import INT64_MAX, INT64_MIN, ObjectId
from replset.ejson import WRAPPERS, from_ejson_value

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
        return _document(value, 1) if WRAPPERS.isdisjoint(value) else None
    except (_RareError, ExtendedJSONError, InvalidValueError):
        return None


def _document(fields: dict[str, Any], depth: int) -> bytes:
    if depth > MAX_DEPTH:
        raise _RareError
    parts: list[bytes] = []
    for name, value in fields.items():
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
                parts += (b"\x03", key, b"\0", _document(value, depth + 1))
            else:
                parts.append(_wrapped(name, value))
        elif kind is list:  # in BSON a document whose names are the indexes
            items = {str(index): item for index, item in enumerate(value)}
            parts += (b"\x04", key, b"\0", _document(items, depth + 1))
        elif kind is float:
            parts += (b"\x01", key, b"\0", _double(value))
        elif value is None:
            parts += (b"\x0a", key, b"\0")
        else:
            parts += (b"\x08", key, b"\0\x01" if value else b"\0\0")
    body = b"".join(parts)
    return b"".join((_int32(len(body) + 5), body, b"\0"))


def _wrapped(name: str, value: dict[str, Any]) -> bytes:
    """Return the element of a type wrapper such as {$oid: "..."}."""
    if len(value) == 1 and type(value.get("$oid")) is str:
        return b"\x07%b\0%b" % (name.encode(), ObjectId(value["$oid"]).binary)
    if "$code" in value or "$binary" in value:  # these may hold documents
        raise _RareError
    return encode({name: from_ejson_value(value)})[4:-1]
