"""Encodes Python values as BSON bytes. A RawDocument is copied without decoding."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import chain, count
from struct import Struct
from typing import Any, Final, TypeAlias

from replset.bson.decimal128 import Decimal128
from replset.bson.errors import InvalidBSONError
from replset.bson.limits import MAX_DEPTH
from replset.bson.raw import RawDocument, RawDocuments
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

_int32 = Struct("<i").pack
_int64 = Struct("<q").pack
_double = Struct("<d").pack
_timestamp = Struct("<II").pack
_INDEX_NAMES: Final[list[bytes]] = [b"%d\0" % index for index in range(1000)]

_DOCUMENT_NAMES: Final[list[bytes]] = [b"\x03" + name for name in _INDEX_NAMES]

# Takes the element's name with its zero byte, and the value. Returns the whole element.
Writer: TypeAlias = Callable[[bytes, Any], bytes]


Document: TypeAlias = Mapping[str, object] | RawDocument
"""With its values, or as its bytes."""


def encode(document: Document) -> bytes:
    """Return `document` as BSON bytes.

    A plain int becomes int32 when it fits, else int64. InvalidBSONError names the path of a value without a BSON form:
    another type, an int beyond 64 bits, a zero byte in a name or regular expression, a lone surrogate, a datetime
    without a time zone, more than 200 levels.
    """
    if isinstance(document, RawDocument):
        return document.raw
    return _write_document(document, 1)


def _write_document(document: Mapping[str, object], depth: int) -> bytes:
    if depth > MAX_DEPTH:
        raise InvalidBSONError(f"more than {MAX_DEPTH} levels of nesting")
    parts: list[bytes] = []
    append = parts.append
    writers = _WRITERS
    key: str = ""
    try:
        for key, value in document.items():
            name = key.encode() + b"\0"
            if "\0" in key:
                raise InvalidBSONError("a zero byte in a name")
            kind = type(value)
            # Documents and arrays are encoded here, not through the table, to use one Python frame per level.
            if kind is dict:
                append(b"\x03" + name + _write_document(value, depth + 1))  # type: ignore[arg-type]
            elif kind is list:
                append(b"\x04" + name + _write_array(value, depth + 1))  # type: ignore[arg-type]
            elif kind in writers:
                append(writers[kind](name, value))
            else:
                append(_write_other(name, value, depth))
    except InvalidBSONError as error:
        raise error.with_parent(key) from None
    except UnicodeEncodeError:
        raise InvalidBSONError("a lone surrogate in a string or name", path=ascii(key)[1:-1]) from None
    except AttributeError:
        if isinstance(key, str):
            raise
        raise InvalidBSONError(f"a field name is a string, not {type(key).__name__}") from None
    body = b"".join(parts)
    return _int32(len(body) + 5) + body + b"\0"


def _write_array(items: list[object] | tuple[object, ...], depth: int) -> bytes:
    if depth > MAX_DEPTH:
        raise InvalidBSONError(f"more than {MAX_DEPTH} levels of nesting")
    parts: list[bytes] = []
    append = parts.append
    writers = _WRITERS
    index = 0
    try:
        for index, value in enumerate(items):
            name = _INDEX_NAMES[index] if index < 1000 else b"%d\0" % index
            kind = type(value)
            if kind is dict:
                append(b"\x03" + name + _write_document(value, depth + 1))  # type: ignore[arg-type]
            elif kind is list:
                append(b"\x04" + name + _write_array(value, depth + 1))  # type: ignore[arg-type]
            elif kind in writers:
                append(writers[kind](name, value))
            else:
                append(_write_other(name, value, depth))
    except InvalidBSONError as error:
        raise error.with_parent(str(index)) from None
    except UnicodeEncodeError:
        raise InvalidBSONError("a lone surrogate in a string", path=str(index)) from None
    body = b"".join(parts)
    return _int32(len(body) + 5) + body + b"\0"


def array_of(documents: Sequence[bytes]) -> bytes:
    """Return the array of these documents as its bytes; `documents_of` is the other direction."""
    names = chain(_DOCUMENT_NAMES, (b"\x03%d\0" % index for index in count(len(_DOCUMENT_NAMES))))
    body = b"".join(chain.from_iterable(zip(names, documents, strict=False)))
    return b"".join((_int32(len(body) + 5), body, b"\0"))


def with_fields(document: Document, fields: Mapping[str, object]) -> RawDocument:
    """Return the document with more fields behind its own. RawDocument: it has none of these yet."""
    if not isinstance(document, RawDocument):
        return RawDocument(_write_document({**document, **fields}, 1))
    return RawDocument(append_fields(document, _write_document(fields, 1)[4:-1]))


def append_fields(document: RawDocument, fields: bytes) -> bytes:
    """Return the bytes of the document with more fields, given as their bytes, behind its own."""
    raw = document.raw
    return b"".join((_int32(len(raw) + len(fields)), raw[4:-1], fields, b"\0"))


def _write_other(name: bytes, value: object, depth: int) -> bytes:
    """Encode mappings, tuples, code with scope, and subclasses of the plain types."""
    if isinstance(value, Mapping):
        return b"\x03" + name + _write_document(value, depth + 1)
    if isinstance(value, CodeWithScope):
        body = _text(value.code) + _write_document(value.scope, depth + 1)
        return b"\x0f" + name + _int32(len(body) + 4) + body
    for base, writer in _BASES:
        if isinstance(value, base):
            return writer(name, value)
    if isinstance(value, list | tuple):
        return b"\x04" + name + _write_array(value, depth + 1)
    raise InvalidBSONError(f"a value of type {type(value).__name__} has no BSON form")


def _text(text: str) -> bytes:
    data = text.encode()
    return _int32(len(data) + 1) + data + b"\0"


def _c_string(text: str) -> bytes:
    if "\0" in text:
        raise InvalidBSONError("a zero byte in a regular expression")
    return text.encode() + b"\0"


def _write_string(name: bytes, value: str) -> bytes:
    data = value.encode()
    return b"\x02" + name + _int32(len(data) + 1) + data + b"\0"


def _write_int(name: bytes, value: int) -> bytes:
    if -0x80000000 <= value <= 0x7FFFFFFF:
        return b"\x10" + name + _int32(value)
    if INT64_MIN <= value <= INT64_MAX:
        return b"\x12" + name + _int64(value)
    raise InvalidBSONError("an integer beyond 64 bits")


def _write_binary(name: bytes, value: bytes) -> bytes:
    return b"\x05" + name + _int32(len(value)) + b"\0" + value


def _write_subtyped(name: bytes, value: Binary) -> bytes:
    data = bytes(value)
    if value.subtype == 2:
        data = _int32(len(data)) + data
    return b"\x05" + name + _int32(len(data)) + bytes((value.subtype,)) + data


def _write_datetime(name: bytes, value: datetime) -> bytes:
    if value.tzinfo is None:
        raise InvalidBSONError("a datetime without a time zone")
    return b"\x09" + name + _int64(DateTime.from_datetime(value).ms)


_WRITERS: Final[dict[type, Writer]] = {
    float: lambda name, value: b"\x01" + name + _double(value),
    str: _write_string,
    bytes: _write_binary,
    Binary: _write_subtyped,
    uuid.UUID: lambda name, value: b"\x05" + name + b"\x10\0\0\0\x04" + value.bytes,
    Undefined: lambda name, value: b"\x06" + name,
    ObjectId: lambda name, value: b"\x07" + name + value._bytes,
    bool: lambda name, value: b"\x08" + name + (b"\x01" if value else b"\0"),
    DateTime: lambda name, value: b"\x09" + name + _int64(value._ms),
    datetime: _write_datetime,
    type(None): lambda name, value: b"\x0a" + name,
    Regex: lambda name, value: b"\x0b" + name + _c_string(value.pattern) + _c_string(value.options),
    DBPointer: lambda name, value: b"\x0c" + name + _text(value.ns) + value.oid.binary,
    Code: lambda name, value: b"\x0d" + name + _text(value.code),
    Symbol: lambda name, value: b"\x0e" + name + _text(value.text),
    int: _write_int,
    Timestamp: lambda name, value: b"\x11" + name + _timestamp(value[1], value[0]),
    Int64: lambda name, value: b"\x12" + name + _int64(value),
    Decimal128: lambda name, value: b"\x13" + name + value._bits,
    MinKey: lambda name, value: b"\xff" + name,
    MaxKey: lambda name, value: b"\x7f" + name,
    RawDocument: lambda name, value: b"\x03" + name + value.raw,
    RawDocuments: lambda name, value: b"\x04" + name + array_of(value),
}
# For subclasses, enum members among them; the order matters only where one is a subclass of another.
_BASES: Final[list[tuple[type, Writer]]] = [
    *((kind, writer) for kind, writer in _WRITERS.items() if kind not in (bytes, int)),
    (bytes, _write_binary),
    (int, _write_int),
]
