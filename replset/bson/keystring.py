"""Encodes values of all types as keys: bytes in MongoDB's order of the values.

Values that compare equal have equal keys: 1, 1.0, Int64(1) and Decimal128("1.00"); -0.0 and 0; every NaN; a Symbol and
its string. No key is a prefix of another key, so keys can be joined into compound keys. The first byte of a key is the
place of its type in the order (docs/bson.md shows the whole format):

numbers      30 NaN, 31 negative (all that follows complemented), 32 zero, 33 positive; then eight bytes: the largest
             double not above the magnitude, shifted left by one, and in the lowest bit whether something remains;
             if so the exact value follows: decimal exponent, digits, zero byte
strings      UTF-8 with 00 as 01 01 and 01 as 01 02, then 00
documents    per field: type, name, 00, key of the value; then 00. Arrays: keys of the items; then 00
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from struct import Struct
from typing import Any, Final

from replset.bson.decimal128 import Decimal128
from replset.bson.decoding import decode, read_value
from replset.bson.errors import InvalidBSONError
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

_MIN_KEY = b"\x0a"
_UNDEFINED = b"\x0f"
_NULL = b"\x14"
_NAN = b"\x1e"
_NEGATIVE = 31
_ZERO = b"\x20"
_POSITIVE = 33
_STRING = b"\x3c"
_OBJECT = b"\x46"
_ARRAY = b"\x50"
_BINARY = b"\x5a"
_OBJECT_ID = b"\x64"
_FALSE = b"\x6e\x00"
_TRUE = b"\x6e\x01"
_DATE = 120
_TIMESTAMP = 130
_REGEX = b"\x8c"
_DB_POINTER = b"\x96"
_CODE = b"\xa0"
_CODE_WITH_SCOPE = b"\xaa"
_MAX_KEY = b"\xf0"

_PIECE = 1 << 18
_EXACT_INT = 1 << 53
_ALL_ONES = (1 << 64) - 1
_INT64_BIAS = 1 << 63
_COMPLEMENT: Final = bytes(range(255, -1, -1))
_double_bytes = Struct(">d").pack
_read_uint64 = Struct(">Q").unpack
_tagged_uint64 = Struct(">BQ").pack
_tagged_uint32s = Struct(">BII").pack
_uint32 = Struct(">I").pack


def encode_key(value: object) -> bytes:
    """Return the key of any value that encode() takes, and of a RawDocument. InvalidBSONError for all others."""
    try:
        kind = type(value)
        if kind is ObjectId:
            return _OBJECT_ID + value._bytes  # type: ignore[attr-defined, no-any-return]
        return _KEYS[kind](value) if kind in _KEYS else _key(value, 0)
    except UnicodeEncodeError:
        raise InvalidBSONError("a lone surrogate in a string") from None


def is_document_of(key: bytes, document: bytes) -> bool:
    """Whether these bytes are a document whose `_id` has this key."""
    try:
        return encode_key(decode(document).get("_id")) == key
    except InvalidBSONError:
        return False


def encode_keys(values: Iterable[object]) -> bytes:
    """Return the keys of some values, one behind the other."""
    try:
        return b"".join([_KEYS[type(value)](value) if type(value) in _KEYS else _key(value, 0) for value in values])
    except UnicodeEncodeError:
        raise InvalidBSONError("a lone surrogate in a string") from None


def encode_key_of(data: bytes, kind: int, start: int, end: int) -> bytes:
    """Do as `encode_key` with the value of type `kind` at `start`, in a document whose last byte is at `end`."""
    if kind == 0x07 and start + 12 <= end:
        return _OBJECT_ID + data[start : start + 12]
    return encode_key(read_value(data, kind, start, end))


def _key(value: Any, depth: int) -> bytes:
    kind = type(value)
    if kind in _KEYS:
        return _KEYS[kind](value)
    if isinstance(value, Mapping):
        return _OBJECT + _fields_key(value, depth + 1)
    if isinstance(value, RawDocument):
        return _OBJECT + _fields_key(value.decode(), depth + 1)
    if isinstance(value, CodeWithScope):
        return _CODE_WITH_SCOPE + _escaped(value.code) + _fields_key(value.scope, depth + 1)
    for base, key in _BASES:
        if isinstance(value, base):
            return key(value)
    if isinstance(value, list | tuple):
        if depth >= MAX_DEPTH:
            raise InvalidBSONError(f"more than {MAX_DEPTH} levels of nesting")
        return _ARRAY + b"".join([_key(item, depth + 1) for item in value]) + b"\0"
    raise InvalidBSONError(f"a value of type {kind.__name__} has no BSON form")


def _fields_key(fields: Mapping[str, object], depth: int) -> bytes:
    """Encode the type, the name and the value of each field, in the order in which MongoDB compares them."""
    if depth > MAX_DEPTH:
        raise InvalidBSONError(f"more than {MAX_DEPTH} levels of nesting")
    parts: list[bytes] = []
    for name, value in fields.items():
        if not isinstance(name, str) or "\0" in name:
            raise InvalidBSONError("a field name is a string without zero bytes")
        key = _key(value, depth)
        kind = b"\x1e" if 30 <= key[0] <= 33 else key[:1]
        parts.append(kind + name.encode() + b"\0" + key)
    return b"".join(parts) + b"\0"


def _escaped(text: str) -> bytes:
    if len(text) > _PIECE:  # one call for all of it would let no other thread run for too long
        return b"".join([_escaped(text[at : at + _PIECE])[:-1] for at in range(0, len(text), _PIECE)]) + b"\0"
    return text.encode().replace(b"\1", b"\1\2").replace(b"\0", b"\1\1") + b"\0"


def _int_key(value: int) -> bytes:
    if value == 0:
        return _ZERO
    if 0 < value <= _EXACT_INT:
        return _tagged_uint64(_POSITIVE, _read_uint64(_double_bytes(value))[0] << 1)
    if -_EXACT_INT <= value < 0:
        return _tagged_uint64(_NEGATIVE, _ALL_ONES - (_read_uint64(_double_bytes(-value))[0] << 1))
    if not INT64_MIN <= value <= INT64_MAX:
        raise InvalidBSONError("an integer beyond 64 bits")
    return _exact_key(Decimal(value))


def _double_key(value: float) -> bytes:
    if value > 0:
        return _tagged_uint64(_POSITIVE, _read_uint64(_double_bytes(value))[0] << 1)
    if value < 0:
        return _tagged_uint64(_NEGATIVE, _ALL_ONES - (_read_uint64(_double_bytes(-value))[0] << 1))
    return _ZERO if value == 0 else _NAN


def _decimal_key(value: Decimal128) -> bytes:
    kind, negative, coefficient, _ = value.fields()
    if kind == "nan":
        return _NAN
    if kind == "infinity":
        return _double_key(-math.inf if negative else math.inf)
    return _exact_key(value.to_decimal()) if coefficient else _ZERO


def _exact_key(value: Decimal) -> bytes:
    """Return the key of a finite number that is not zero, of any precision. Decimal compares exactly in any context."""
    magnitude = value.copy_abs()
    below = float(magnitude)
    if Decimal(below) > magnitude:
        below = math.nextafter(below, 0.0)
    exact = Decimal(below) == magnitude
    key = _tagged_uint64(_POSITIVE, _read_uint64(_double_bytes(below))[0] << 1 | (not exact))
    if not exact:
        digits = "".join(map(str, magnitude.as_tuple().digits)).lstrip("0").rstrip("0")
        key += (magnitude.adjusted() + 0x8000).to_bytes(2, "big") + digits.encode() + b"\0"
    if value.is_signed():
        key = bytes((_NEGATIVE,)) + key[1:].translate(_COMPLEMENT)
    return key


def _binary_key(value: bytes) -> bytes:
    subtype = value.subtype if isinstance(value, Binary) else 0
    return _BINARY + _uint32(len(value)) + bytes((subtype,)) + bytes(value)


def _date_key(value: DateTime) -> bytes:
    return _tagged_uint64(_DATE, value.ms + _INT64_BIAS)


def _datetime_key(value: datetime) -> bytes:
    if value.tzinfo is None:
        raise InvalidBSONError("a datetime without a time zone")
    return _date_key(DateTime.from_datetime(value))


def _pointer_key(value: DBPointer) -> bytes:
    """Return the key of a DBPointer. MongoDB compares the length of the namespace first."""
    ns = value.ns.encode()
    return _DB_POINTER + _uint32(len(ns)) + ns + value.oid.binary


_KEYS: Final[dict[type, Callable[[Any], bytes]]] = {
    MinKey: lambda value: _MIN_KEY,
    Undefined: lambda value: _UNDEFINED,
    type(None): lambda value: _NULL,
    int: _int_key,
    Int64: _int_key,
    float: _double_key,
    Decimal128: _decimal_key,
    str: lambda value: _STRING + _escaped(value),
    Symbol: lambda value: _STRING + _escaped(value.text),
    Binary: _binary_key,
    bytes: _binary_key,
    uuid.UUID: lambda value: _binary_key(Binary.from_uuid(value)),
    ObjectId: lambda value: _OBJECT_ID + value.binary,
    bool: lambda value: _TRUE if value else _FALSE,
    DateTime: _date_key,
    datetime: _datetime_key,
    Timestamp: lambda value: _tagged_uint32s(_TIMESTAMP, value.time, value.inc),
    Regex: lambda value: _REGEX + _escaped(value.pattern) + _escaped(value.options),
    DBPointer: _pointer_key,
    Code: lambda value: _CODE + _escaped(value.code),
    MaxKey: lambda value: _MAX_KEY,
}
# For subclasses, enum members among them; bool never gets here.
_BASES: Final = list(_KEYS.items())
