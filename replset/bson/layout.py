"""Packs and unpacks a run of fields whose names, types and sizes are always the same, in one step.

Members send each other two such messages for each group of writes. To write and read them field by field took a fifth
of the Python calls of a write on one connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple

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
        self.struct: Final = _struct_of(parts)
        self.template: Final[list[Any]] = [part if isinstance(part, bytes) else 0 for part in parts]
        """What `struct` packs: constant bytes and values in turn."""
        self.values: Final = Struct("<" + "".join([f"{len(p)}x" if isinstance(p, bytes) else p.code for p in parts]))
        """Unpacks the values alone."""
        self.size: Final = self.struct.size
        """Bytes of the fields."""
        self.constant: Final = int.from_bytes(self.struct.pack(*self.template), "little")
        """The fields as a number, with 0 for each value. `mask`: 1 for each bit of them that is no value's."""
        ones = [b"\xff" * len(part) if isinstance(part, bytes) else 0 for part in parts]
        self.mask: Final = int.from_bytes(self.struct.pack(*ones), "little")

    def pack(self, *values: int) -> bytes:
        """Return the bytes of the fields. ValueError: not one value for each slot. struct.error: one does not fit."""
        items = self.template[:]
        items[1::2] = values
        return self.struct.pack(*items)

    def unpack(self, data: bytes, at: int) -> tuple[int, ...] | None:
        """Return the values of the fields that begin at `at`. None: other fields are there, or other types."""
        if len(data) - at < self.size:
            return None
        is_there = int.from_bytes(data[at : at + self.size], "little") & self.mask == self.constant
        return self.values.unpack_from(data, at) if is_there else None


class Form:
    """Bytes that are the same each time, but for numbers at known places."""

    __slots__ = ("_constant", "_mask", "_numbers")

    def __init__(self, example: bytes, marks: Sequence[int], codes: str) -> None:
        """example: such bytes, with `marks` as the numbers. codes: of `struct`, one for each number in its order."""
        mask, form, at = bytearray(b"\xff" * len(example)), "<", 0
        for mark, code in zip(marks, codes, strict=True):
            size = Struct(code).size
            start = example.index(mark.to_bytes(size, "little"), at)
            mask[start : start + size] = bytes(size)
            form += f"{start - at}x{code}"
            at = start + size
        self._numbers = Struct(form + f"{len(example) - at}x")
        self._mask = int.from_bytes(mask, "little")
        self._constant = int.from_bytes(example, "little") & self._mask

    def fits(self, data: bytes) -> bool:
        """Return whether `data` differs from the example in its numbers alone."""
        return len(data) == self._numbers.size and int.from_bytes(data, "little") & self._mask == self._constant

    def unpack(self, data: bytes) -> tuple[int, ...]:
        """Return the numbers in bytes that fit."""
        return self._numbers.unpack(data)

    def pack(self, *numbers: int) -> bytes:
        """Return the bytes with these numbers. struct.error: one does not fit."""
        packed = int.from_bytes(self._numbers.pack(*numbers), "little") | self._constant
        return packed.to_bytes(self._numbers.size, "little")


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
