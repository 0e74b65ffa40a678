"""Decodes documents with repeated field names so that an update of one field keeps them all."""

from __future__ import annotations

from replset.bson.decoding import decode, read_value
from replset.bson.encoding import encode
from replset.bson.raw import walk

_DOCUMENT, _ARRAY = 3, 4


class RepeatedName(str):
    """A name that stands in its document before. It equals no other name, so a dictionary keeps both.

    Paths find the first field of a name, as in MongoDB.
    """

    __slots__ = ()
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other


def decode_whole(data: bytes) -> dict[str, object]:
    """Do as `decode`, and lose no field: a name that comes again is a RepeatedName."""
    return with_repeated_names(decode(data), data)


def with_repeated_names(document: dict[str, object], data: bytes) -> dict[str, object]:
    """Do as `decode_whole` with what `decode` made of `data`."""
    # Only a lost field makes the bytes fewer.
    return document if len(encode(document)) == len(data) else _read_fields(data)


def _read_fields(data: bytes) -> dict[str, object]:
    fields: dict[str, object] = {}
    for name, kind, start, end in walk(data):
        fields[RepeatedName(name) if name in fields else name] = _read(data, kind, start, end)
    return fields


def _read(data: bytes, kind: int, start: int, end: int) -> object:
    if kind == _DOCUMENT:
        return _read_fields(data[start:end])
    if kind == _ARRAY:
        inner = data[start:end]
        return [_read(inner, *place) for _, *place in walk(inner)]
    return read_value(data, kind, start, end)
