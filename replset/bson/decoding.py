"""Decodes BSON bytes into Python values, and validates them without making values.

It reads all that the BSON specification allows, also deprecated types, and refuses the rest with the offset of the
wrong element. Of fields with the same name in one document the last value counts, in the place of the first. The names
of array items are read and dropped, whatever they are, as MongoDB does. Nothing beyond the document's length is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from struct import Struct
from typing import Final, TypeAlias

from replset.bson.decimal128 import Decimal128
from replset.bson.errors import InvalidBSONError
from replset.bson.limits import MAX_DEPTH
from replset.bson.values import (
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

_read_int32 = Struct("<i").unpack_from
_read_int64 = Struct("<q").unpack_from
_read_timestamp = Struct("<II").unpack_from
_read_double = Struct("<d").unpack_from
_new_int = int.__new__
_new_tuple = tuple.__new__
_new_object_id = ObjectId.__new__
_new_date = DateTime.__new__

# (bytes, position of the value, position of the terminator of the document around it, depth of that document).
Reader: TypeAlias = Callable[[bytes, int, int, int], tuple[object, int]]


def decode(data: bytes | memoryview) -> dict[str, object]:
    """Decode the document that fills `data`. InvalidBSONError names the offset of an error."""
    if not isinstance(data, bytes):
        data = bytes(data)
    return _read_fields(data, 4, outer_end(data), 1)


def outer_end(data: bytes) -> int:
    """Return the position of the terminator of the document that fills `data`. InvalidBSONError when none does."""
    size = len(data)
    if size < 5:
        raise InvalidBSONError(f"a document has at least 5 bytes, not {size}", offset=0)
    (length,) = _read_int32(data)
    if length != size:
        raise InvalidBSONError(f"the document's length says {length}, but there are {size} bytes", offset=0)
    if data[size - 1]:
        raise InvalidBSONError("the document does not end in a zero byte", offset=size - 1)
    return size - 1


def inner_end(data: bytes, pos: int, last: int) -> int:
    """Return the position of the terminator of the document at `pos`, which must end before `last`."""
    if pos + 5 > last:
        raise InvalidBSONError("truncated document", offset=pos)
    (length,) = _read_int32(data, pos)
    end: int = pos + length - 1
    if length < 5 or end >= last:
        raise InvalidBSONError(f"bad document length {length}", offset=pos)
    if data[end]:
        raise InvalidBSONError("the document does not end in a zero byte", offset=end)
    return end


def name_end(data: bytes, pos: int, last: int) -> int:
    """Return the position of the zero byte that ends the C string at `pos`."""
    end = data.find(0, pos, last)
    if end < 0:
        raise InvalidBSONError("a name without an end", offset=pos)
    return end


def bad_text(data: bytes, pos: int, error: UnicodeDecodeError) -> InvalidBSONError:
    """Return the error for bad UTF-8. error: from a text in `data` at or after `pos` that a zero byte follows."""
    return InvalidBSONError("bad UTF-8", offset=data.find(error.object + b"\0", pos) + error.start)


def too_deep(offset: int) -> InvalidBSONError:
    return InvalidBSONError(f"more than {MAX_DEPTH} levels of nesting", offset=offset)


def unknown_type(kind: int, offset: int) -> InvalidBSONError:
    if kind == 0:
        return InvalidBSONError("a zero byte ends the document before its length does", offset=offset)
    return InvalidBSONError(f"unknown type 0x{kind:02x}", offset=offset)


def unreadable_element(kind: int, pos: int) -> InvalidBSONError:
    """Return the error for an element at `pos` whose name has no end. An unknown type is reported first."""
    if kind not in _TABLE:
        return unknown_type(kind, pos)
    return InvalidBSONError("a name without an end", offset=pos + 1)


def _read_fields(data: bytes, pos: int, last: int, depth: int) -> dict[str, object]:
    if depth > MAX_DEPTH:
        raise too_deep(pos - 4)
    fields: dict[str, object] = {}
    find = data.find
    readers = _READERS
    try:
        while pos < last:
            kind = data[pos]
            reader = readers[kind]
            if reader is None:
                raise unknown_type(kind, pos)
            end = find(0, pos + 1, last)
            if end < 0:
                raise InvalidBSONError("a name without an end", offset=pos + 1)
            name = data[pos + 1 : end].decode()
            pos = end + 1
            # Documents and arrays are decoded here, not through the table, to use one Python frame per level.
            if kind == 3:
                end = inner_end(data, pos, last)
                fields[name] = _read_fields(data, pos + 4, end, depth + 1)
                pos = end + 1
            elif kind == 4:
                end = inner_end(data, pos, last)
                fields[name] = _read_items(data, pos + 4, end, depth + 1)
                pos = end + 1
            else:
                fields[name], pos = reader(data, pos, last, depth)
    except UnicodeDecodeError as error:
        raise bad_text(data, pos, error) from None
    return fields


def _read_items(data: bytes, pos: int, last: int, depth: int) -> list[object]:
    if depth > MAX_DEPTH:
        raise too_deep(pos - 4)
    items: list[object] = []
    append = items.append
    find = data.find
    readers = _READERS
    try:
        while pos < last:
            kind = data[pos]
            reader = readers[kind]
            if reader is None:
                raise unknown_type(kind, pos)
            end = find(0, pos + 1, last)
            if end < 0:
                raise InvalidBSONError("a name without an end", offset=pos + 1)
            data[pos + 1 : end].decode()
            pos = end + 1
            if kind == 3:
                end = inner_end(data, pos, last)
                append(_read_fields(data, pos + 4, end, depth + 1))
                pos = end + 1
            elif kind == 4:
                end = inner_end(data, pos, last)
                append(_read_items(data, pos + 4, end, depth + 1))
                pos = end + 1
            else:
                item, pos = reader(data, pos, last, depth)
                append(item)
    except UnicodeDecodeError as error:
        raise bad_text(data, pos, error) from None
    return items


def _truncated(pos: int) -> InvalidBSONError:
    return InvalidBSONError("truncated value", offset=pos)


def _double(data: bytes, pos: int, last: int, depth: int) -> tuple[object, int]:
    end = pos + 8
    if end > last:
        raise _truncated(pos)
    return _read_double(data, pos)[0], end


def _string(data: bytes, pos: int, last: int, depth: int) -> tuple[str, int]:
    start = pos + 4
    if start >= last:
        raise _truncated(pos)
    (length,) = _read_int32(data, pos)
    end = start + length
    if length < 1 or end > last:
        raise InvalidBSONError(f"bad string length {length}", offset=pos)
    if data[end - 1]:
        raise InvalidBSONError("the string does not end in a zero byte", offset=end - 1)
    return data[start : end - 1].decode(), end


def _binary(data: bytes, pos: int, last: int, depth: int) -> tuple[object, int]:
    start = pos + 5
    if start > last:
        raise _truncated(pos)
    (length,) = _read_int32(data, pos)
    end = start + length
    if length < 0 or end > last:
        raise InvalidBSONError(f"bad binary length {length}", offset=pos)
    subtype = data[pos + 4]
    if subtype == 2:
        if length < 4 or _read_int32(data, start)[0] != length - 4:
            raise InvalidBSONError("bad inner length of a binary of subtype 2", offset=start)
        start += 4
    return Binary(data[start:end], subtype), end


def _object_id(data: bytes, pos: int, last: int, depth: int) -> tuple[ObjectId, int]:
    end = pos + 12
    if end > last:
        raise _truncated(pos)
    value = _new_object_id(ObjectId)
    value._bytes = data[pos:end]
    return value, end


def _bool(data: bytes, pos: int, last: int, depth: int) -> tuple[object, int]:
    if pos >= last:
        raise _truncated(pos)
    byte = data[pos]
    if byte > 1:
        raise InvalidBSONError(f"a boolean is 0 or 1, not {byte}", offset=pos)
    return byte == 1, pos + 1


def _date(data: bytes, pos: int, last: int, depth: int) -> tuple[object, int]:
    end = pos + 8
    if end > last:
        raise _truncated(pos)
    value = _new_date(DateTime)
    (value._ms,) = _read_int64(data, pos)
    return value, end


def _regex(data: bytes, pos: int, last: int, depth: int) -> tuple[object, int]:
    middle = name_end(data, pos, last)
    end = name_end(data, middle + 1, last)
    options = "".join(sorted(data[middle + 1 : end].decode()))
    return Regex(data[pos:middle].decode(), options), end + 1


def _db_pointer(data: bytes, pos: int, last: int, depth: int) -> tuple[object, int]:
    ns, pos = _string(data, pos, last, depth)
    oid, pos = _object_id(data, pos, last, depth)
    return DBPointer(ns, oid), pos


def _code(data: bytes, pos: int, last: int, depth: int) -> tuple[object, int]:
    text, pos = _string(data, pos, last, depth)
    return Code(text), pos


def _symbol(data: bytes, pos: int, last: int, depth: int) -> tuple[object, int]:
    text, pos = _string(data, pos, last, depth)
    return Symbol(text), pos


def _code_with_scope(data: bytes, pos: int, last: int, depth: int) -> tuple[object, int]:
    if pos + 4 > last:
        raise _truncated(pos)
    (length,) = _read_int32(data, pos)
    end = pos + length
    if length < 14 or end > last:
        raise InvalidBSONError(f"bad length {length} of code with scope", offset=pos)
    code, scope_at = _string(data, pos + 4, end, depth)
    scope_end = inner_end(data, scope_at, end)
    if scope_end + 1 != end:
        raise InvalidBSONError("the scope ends before the code with scope does", offset=scope_at)
    return CodeWithScope(code, _read_fields(data, scope_at + 4, scope_end, depth + 1)), end


def _int32(data: bytes, pos: int, last: int, depth: int) -> tuple[object, int]:
    end = pos + 4
    if end > last:
        raise _truncated(pos)
    return _read_int32(data, pos)[0], end


def _timestamp(data: bytes, pos: int, last: int, depth: int) -> tuple[object, int]:
    end = pos + 8
    if end > last:
        raise _truncated(pos)
    inc, time = _read_timestamp(data, pos)
    return _new_tuple(Timestamp, (time, inc)), end


def _int64(data: bytes, pos: int, last: int, depth: int) -> tuple[object, int]:
    end = pos + 8
    if end > last:
        raise _truncated(pos)
    return _new_int(Int64, _read_int64(data, pos)[0]), end


def _decimal(data: bytes, pos: int, last: int, depth: int) -> tuple[object, int]:
    end = pos + 16
    if end > last:
        raise _truncated(pos)
    return Decimal128(data[pos:end]), end


def _document(data: bytes, pos: int, last: int, depth: int) -> tuple[object, int]:
    end = inner_end(data, pos, last)
    return _read_fields(data, pos + 4, end, depth + 1), end + 1


def _array(data: bytes, pos: int, last: int, depth: int) -> tuple[object, int]:
    end = inner_end(data, pos, last)
    return _read_items(data, pos + 4, end, depth + 1), end + 1


def _constant(value: object) -> Reader:
    """Return the reader of a type whose values have no bytes."""
    return lambda data, pos, last, depth: (value, pos)


_TABLE: Final[dict[int, Reader]] = {
    0x01: _double,
    0x02: _string,
    0x03: _document,
    0x04: _array,
    0x05: _binary,
    0x06: _constant(Undefined()),
    0x07: _object_id,
    0x08: _bool,
    0x09: _date,
    0x0A: _constant(None),
    0x0B: _regex,
    0x0C: _db_pointer,
    0x0D: _code,
    0x0E: _symbol,
    0x0F: _code_with_scope,
    0x10: _int32,
    0x11: _timestamp,
    0x12: _int64,
    0x13: _decimal,
    0x7F: _constant(MaxKey()),
    0xFF: _constant(MinKey()),
}
_READERS: Final[list[Reader | None]] = [_TABLE.get(kind) for kind in range(256)]


def reader_of(kind: int) -> Reader:
    """Return what decodes values of a known type."""
    return _TABLE[kind]


def read_value(data: bytes, kind: int, pos: int, last: int) -> object:
    """Decode the value of type `kind` at `pos`, in a top level that ends at `last`."""
    try:
        return _TABLE[kind](data, pos, last, 1)[0]
    except UnicodeDecodeError as error:
        raise bad_text(data, pos, error) from None


def names_by_bytes(*sets: Iterable[str] | None) -> Mapping[bytes, str] | None:
    """Return the names of all sets as decode_fields takes them; None if a set is None, which stands for all names."""
    found: dict[bytes, str] = {}
    for names in sets:
        if names is None:
            return None
        found.update((name.encode(), name) for name in names)
    return found


def decode_fields(data: bytes, names: Mapping[bytes, str] | None) -> dict[str, object]:
    """Decode the fields of the top level with these names alone, by their bytes; None: all of them.

    InvalidBSONError as decode(), but the values of other fields are not looked at.
    """
    if names is None:
        return decode(data)
    last = outer_end(data)
    pos = 4
    fields: dict[str, object] = {}
    find = data.find
    fixed_size = FIXED_SIZE
    try:
        while pos < last:
            kind = data[pos]
            end = find(0, pos + 1, last)
            if end < 0:
                raise unreadable_element(kind, pos)
            name = names.get(data[pos + 1 : end])
            start = end + 1
            size = fixed_size[kind]
            if name is not None and kind in _TABLE:
                fields[name], pos = _TABLE[kind](data, start, last, 1)
            elif size >= 0 and start + size <= last:
                pos = start + size
            else:
                pos = value_end(data, kind, start, last, pos)
    except UnicodeDecodeError as error:
        raise bad_text(data, pos, error) from None
    return fields


# What walk() and validate() need: bytes of a value of fixed size, or -1; and for values that begin with their
# length, the least length and the bytes that the length does not count.
_FIXED_SIZES: Final[dict[int, int]] = {
    0x01: 8,
    0x06: 0,
    0x07: 12,
    0x08: 1,
    0x09: 8,
    0x0A: 0,
    0x10: 4,
    0x11: 8,
    0x12: 8,
    0x13: 16,
    0x7F: 0,
    0xFF: 0,
}
FIXED_SIZE: Final[list[int]] = [_FIXED_SIZES.get(kind, -1) for kind in range(256)]
COUNTED_SIZE: Final[dict[int, tuple[int, int]]] = {
    0x02: (1, 4),
    0x03: (5, 0),
    0x04: (5, 0),
    0x05: (0, 5),
    0x0C: (1, 16),
    0x0D: (1, 4),
    0x0E: (1, 4),
    0x0F: (14, 0),
}


def value_end(data: bytes, kind: int, pos: int, last: int, element: int) -> int:
    """Return the end of the value of type `kind` at `pos`, which must end by `last`. Only its length is read.

    element: the position of the type byte, for the message about an unknown type.
    """
    size = FIXED_SIZE[kind]
    if size >= 0:
        end = pos + size
        if end > last:
            raise _truncated(pos)
        return end
    counted = COUNTED_SIZE.get(kind)
    if counted is not None:
        if pos + 4 > last:
            raise _truncated(pos)
        (length,) = _read_int32(data, pos)
        end = pos + length + counted[1]
        if length < counted[0] or end > last:
            raise InvalidBSONError(f"bad length {length}", offset=pos)
        return int(end)
    if kind not in _TABLE:
        raise unknown_type(kind, element)
    middle = name_end(data, pos, last)  # a regular expression
    return name_end(data, middle + 1, last) + 1


def validate(data: bytes) -> None:
    """Check everything that decode() checks, with the same InvalidBSONError, without making values."""
    _check_fields(data, 4, outer_end(data), 1)


def _check_fields(data: bytes, pos: int, last: int, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise too_deep(pos - 4)
    find = data.find
    fixed_size = FIXED_SIZE
    readers = _READERS
    try:
        while pos < last:
            kind = data[pos]
            reader = readers[kind]
            if reader is None:
                raise unknown_type(kind, pos)
            end = find(0, pos + 1, last)
            if end < 0:
                raise InvalidBSONError("a name without an end", offset=pos + 1)
            data[pos + 1 : end].decode()
            pos = end + 1
            size = fixed_size[kind]
            if size >= 0:
                if pos + size > last:
                    raise _truncated(pos)
                if kind == 8 and data[pos] > 1:
                    raise InvalidBSONError(f"a boolean is 0 or 1, not {data[pos]}", offset=pos)
                pos += size
            elif kind == 3 or kind == 4:
                end = inner_end(data, pos, last)
                _check_fields(data, pos + 4, end, depth + 1)
                pos = end + 1
            else:
                pos = reader(data, pos, last, depth)[1]
    except UnicodeDecodeError as error:
        raise bad_text(data, pos, error) from None
