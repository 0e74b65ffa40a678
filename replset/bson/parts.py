"""Decodes the part of a document that some paths need, and refuses a part with too many values before it is decoded.

A document of 16 MiB may hold over a million values. To decode them, or to make keys of them, takes seconds and hundreds
of megabytes, while to count them up to a limit takes some milliseconds.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from struct import Struct
from typing import Any, Final, TypeAlias

from replset.bson.decoding import FIXED_SIZE, outer_end, read_value, unreadable_element, value_end
from replset.bson.errors import InvalidBSONError

PathTree: TypeAlias = "Mapping[bytes, PathTree | None]"
"""Field names, and what is needed below them; None: all of it."""

_DOCUMENT: Final = 0x03
_ARRAY: Final = 0x04
_CODE_WITH_SCOPE: Final = 0x0F
_read_int32 = Struct("<i").unpack_from


class TooManyValuesError(Exception):
    """The part of the document has more values than the caller wants to read."""


def path_tree(paths: Iterable[Sequence[str]]) -> PathTree:
    """Return the tree of paths, each given as its field names."""
    tree: dict[bytes, Any] = {}
    for path in paths:
        below: dict[bytes, Any] | None = tree
        for name in path[:-1]:
            below = None if below is None else below.setdefault(name.encode(), {})
        if below is not None:
            below[path[-1].encode()] = None
    return tree


def decode_part(data: bytes, tree: PathTree, most: int) -> dict[str, object]:
    """Decode what the paths of `tree` need of a document; other fields are left out.

    Where a path goes on, an item of an array that is no document becomes null. TooManyValuesError: more than `most`
    values would be read, fields and items that are passed over among them. InvalidBSONError as decode().
    """
    part = _Part(data, most)
    return part.fields(4, outer_end(data), tree)


def count_part(data: bytes, tree: PathTree, most: int) -> int:
    """Return how many values `decode_part` would read. TooManyValuesError: more than `most`."""
    part = _Part(data, most, decodes=False)
    part.fields(4, outer_end(data), tree)
    return most - part.left


def raw_fields(data: bytes, names: Container[bytes], most: int) -> dict[bytes, bytes]:
    """Return the type byte and the bytes of some fields of the top level, by name. TooManyValuesError as above."""
    part = _Part(data, most)
    pos, last = 4, outer_end(data)
    found: dict[bytes, bytes] = {}
    while pos < last:
        _, end, start, after = part.next(pos, last)
        if (name := data[pos + 1 : end]) in names:
            found[name] = data[pos : pos + 1] + data[start:after]
        pos = after
    return found


class _Part:
    """One pass over a document. left: values that may still be read."""

    __slots__ = ("data", "decodes", "left")

    def __init__(self, data: bytes, most: int, *, decodes: bool = True) -> None:
        self.data = data
        self.left = most
        self.decodes = decodes

    def fields(self, pos: int, last: int, tree: PathTree) -> dict[str, object]:
        """Read the fields from `pos` to the end of their document at `last`."""
        data = self.data
        found: dict[str, object] = {}
        while pos < last:
            kind, end, start, after = self.next(pos, last)
            name = data[pos + 1 : end]
            if name in tree:
                found[name.decode()] = self._value(kind, start, after, tree[name])
            pos = after
        return found

    def _items(self, pos: int, last: int, tree: PathTree) -> list[object]:
        found: list[object] = []
        while pos < last:
            kind, _, start, after = self.next(pos, last)
            found.append(self.fields(start + 4, after - 1, tree) if kind == _DOCUMENT else None)
            pos = after
        return found

    def next(self, pos: int, last: int) -> tuple[int, int, int, int]:
        """Return the type of the element at `pos`, the end of its name, and the start and the end of its value."""
        self.left -= 1
        if self.left < 0:
            raise TooManyValuesError
        data = self.data
        kind = data[pos]
        end = data.find(0, pos + 1, last)
        if end < 0:
            raise unreadable_element(kind, pos)
        start = end + 1
        size = FIXED_SIZE[kind]
        after = start + size if size >= 0 and start + size <= last else value_end(data, kind, start, last, pos)
        return kind, end, start, after

    def _value(self, kind: int, start: int, after: int, tree: PathTree | None) -> object:
        if tree is not None and kind == _DOCUMENT:
            return self.fields(start + 4, after - 1, tree)
        if tree is not None and kind == _ARRAY and not any(name.isdigit() for name in tree):
            return self._items(start + 4, after - 1, tree)
        if kind in (_DOCUMENT, _ARRAY, _CODE_WITH_SCOPE):
            self._count_all(kind, start, after)
        return read_value(self.data, kind, start, after) if self.decodes else None

    def _count_all(self, kind: int, start: int, after: int) -> None:
        """Count what is in a document or an array, at all levels."""
        data, find = self.data, self.data.find
        left = self.left
        pos = self._inside(kind, start)
        while pos < after:
            kind = data[pos]
            if not kind:  # the end of a document
                pos += 1
                continue
            left -= 1
            if left < 0:
                raise TooManyValuesError
            end = find(0, pos + 1, after)
            if end < 0:
                raise unreadable_element(kind, pos)
            start = end + 1
            size = FIXED_SIZE[kind]
            if size >= 0:
                pos = start + size
            elif kind in (_DOCUMENT, _ARRAY, _CODE_WITH_SCOPE):
                pos = self._inside(kind, start)
            else:
                pos = value_end(data, kind, start, after, pos)
        self.left = left

    def _inside(self, kind: int, start: int) -> int:
        """Return where the elements of a document, an array or a scope begin."""
        if kind != _CODE_WITH_SCOPE:
            return start + 4
        if start + 8 > len(self.data):
            raise InvalidBSONError("truncated value", offset=start)
        (length,) = _read_int32(self.data, start + 4)
        if length < 0:
            raise InvalidBSONError(f"bad string length {length}", offset=start + 4)
        return int(start + 8 + length + 4)
