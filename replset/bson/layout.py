"""Packs and unpacks a run of fields whose names, types and sizes are always the same, in one step.

Members send each other two such messages for each group of writes. To write and read them field by field took a fifth
of the Python calls of a write on one connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Final, NamedTuple

from replset.bson.encoding import encode

_int32 = Struct("<i").pack


class Slot(NamedTuple):
    """The place of a value. kind: its BSON type byte. code: of `struct`."""

    kind: bytes
    code: str


BOOL: Final = Slot(b"\x08", "B")
"""0 or 1; another byte has to be refused by who unpacks it."""
DATE: Final = Slot(b"\x09", "q")
"""Milliseconds."""
INT32: Final = Slot(b"\x10", "i")
TIMESTAMP: Final = Slot(b"\x11", "Q")
"""Seconds * 2**32 + increment."""
INT64: Final = Slot(b"\x12", "q")


class Layout:
    """Fields in their order, some with a Slot in the place of the value."""

    def __init__(self, fields: Mapping[str, object]) -> None:
        """fields: as of a document; a nested one may have slots too."""
        parts = list(_parts(fields))
        self._struct = _struct_of(parts)
        self._constants = tuple(part for part in parts if isinstance(part, bytes))
        self.size: Final = self._struct.size
        """Bytes of the fields."""

    def pack(self, *values: int) -> bytes:
        """Return the bytes of the fields. ValueError: not one value for each slot. struct.error: one does not fit."""
        items: list[bytes | int] = [b""] * (2 * len(self._constants) - 1)
        items[0::2] = self._constants
        items[1::2] = values
        return self._struct.pack(*items)

    def unpack(self, data: bytes, at: int) -> tuple[int, ...] | None:
        """Return the values of the fields that begin at `at`. None: other fields are there, or other types."""
        if len(data) - at < self.size:
            return None
        items = self._struct.unpack_from(data, at)
        return items[1::2] if items[0::2] == self._constants else None


def _parts(fields: Mapping[str, object]) -> Iterable[bytes | Slot]:
    """Constant bytes and slots in turn, constant bytes first and last."""
    constant = b""
    for name, value in fields.items():
        if isinstance(value, Slot):
            yield constant + value.kind + name.encode() + b"\0"
            yield value
            constant = b""
        elif isinstance(value, Mapping):
            first, *rest = _parts(value)
            assert isinstance(first, bytes)
            head = b"\x03" + name.encode() + b"\0" + _int32(_struct_of((first, *rest)).size + 5)
            for part in (constant + head + first, *rest):
                if isinstance(part, bytes):
                    constant = part
                else:
                    yield constant
                    yield part
            constant += b"\0"
        else:
            constant += encode({name: value})[4:-1]
    yield constant


def _struct_of(parts: Iterable[bytes | Slot]) -> Struct:
    return Struct("<" + "".join([f"{len(part)}s" if isinstance(part, bytes) else part.code for part in parts]))


def document_of(*parts: bytes) -> bytes:
    """Return the document with these fields, given as their bytes."""
    body = b"".join(parts)
    return _int32(len(body) + 5) + body + b"\0"
