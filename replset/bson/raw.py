"""Reads single fields of a document from its bytes, without decoding the rest."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from sys import maxsize

from replset.bson.decoding import (
    COUNTED_SIZE,
    FIXED_SIZE,
    bad_text,
    decode,
    inner_end,
    name_end,
    outer_end,
    read_value,
    unreadable_element,
    value_end,
)
from replset.bson.errors import InvalidBSONError

_DOCUMENT = 0x03
_read_int32 = Struct("<i").unpack_from


def walk(data: bytes) -> list[tuple[str, int, int, int]]:
    """Return the top level of `data` in order: (name, type byte, start of the value, end of the value).

    Its lengths and names are checked, nested values are not. InvalidBSONError names the offset of an error.
    """
    last = outer_end(data)
    pos = 4
    elements: list[tuple[str, int, int, int]] = []
    append = elements.append
    find = data.find
    fixed_size = FIXED_SIZE
    try:
        while pos < last:
            kind = data[pos]
            end = find(0, pos + 1, last)
            if end < 0:
                raise unreadable_element(kind, pos)
            start = end + 1
            size = fixed_size[kind]
            after = start + size if size >= 0 and start + size <= last else value_end(data, kind, start, last, pos)
            append((data[pos + 1 : end].decode(), kind, start, after))
            pos = after
    except UnicodeDecodeError as error:
        raise bad_text(data, pos, error) from None
    return elements


def documents_of(array: bytes) -> list[bytes]:
    """Return the documents of an array as their bytes, without a look into them. InvalidBSONError: one is none."""
    last = outer_end(array)
    pos = 4
    documents: list[bytes] = []
    find, read_size = array.find, int.from_bytes
    while pos < last:
        start = find(0, pos + 1, last) + 1 or name_end(array, pos + 1, last)
        if array[pos] != 0x03:
            raise InvalidBSONError("an element of the array is no document", offset=pos)
        end = start + read_size(array[start : start + 4], "little")
        if end - start < 5 or end > last or array[end - 1]:
            inner_end(array, start, last)  # says what is wrong
        documents.append(array[start:end])
        pos = end
    return documents


class RawDocuments(list[bytes]):
    """Documents as their bytes. encode() makes an array of them, and copies each without a look into it."""

    __slots__ = ()


class RawDocument:
    """A document as its bytes. Only the outer length and the terminator are checked at once; the rest when it is read.

    The first access to a field indexes the top level. Of fields with the same name the last counts, as in decode().
    Two are equal when their bytes are. Methods raise InvalidBSONError when the bytes are malformed.
    """

    __slots__ = ("_index", "raw")

    def __init__(self, data: bytes | memoryview) -> None:
        if not isinstance(data, bytes):
            data = bytes(data)
        outer_end(data)
        self.raw: bytes = data
        self._index: dict[bytes, tuple[int, int, int]] | None = None

    @classmethod
    def of_own(cls, data: bytes) -> RawDocument:
        """Return the document with these bytes, which this process has just made: they are not checked."""
        made = cls.__new__(cls)
        made.raw, made._index = data, None
        return made

    def has_at_most(self, most: int) -> bool:
        """Return whether the top level has at most `most` fields. More of them take no longer than `most`."""
        if self._index is None:
            index, end = _index_of(self.raw, most)
            if end < len(self.raw) - 1:
                return False
            self._index = index
        return len(self._index) <= most

    def _build_index(self) -> dict[bytes, tuple[int, int, int]]:
        """Return type byte, start and end of each value, by name."""
        self._index, _ = _index_of(self.raw)
        return self._index

    def get(self, name: str, default: object = None) -> object:
        """Return the decoded value of the field, `default` when there is no such field."""
        index = self._index
        if index is None:
            index = self._build_index()
        place = index.get(name.encode())
        if place is None:
            return default
        return read_value(self.raw, place[0], place[1], place[2])

    def get_string(self, name: str) -> str | None:
        """Return the string in the field, None when it is absent or of another type, however large."""
        place = (self._index or self._build_index()).get(name.encode())
        if place is None or place[0] != 2:
            return None
        found = read_value(self.raw, *place)
        assert isinstance(found, str)
        return found

    def get_raw(self, name: str) -> bytes | None:
        """Return the bytes of the document or array in the field, None when it is absent or of another type."""
        place = (self._index or self._build_index()).get(name.encode())
        if place is None or place[0] not in (3, 4):
            return None
        return self.raw[place[1] : place[2]]

    def type_of(self, name: str) -> int | None:
        """Return the BSON type byte of the field, None when it is absent."""
        place = (self._index or self._build_index()).get(name.encode())
        return None if place is None else place[0]

    def size_of(self, name: str) -> int:
        """Return the number of bytes of the field's value, 0 when it is absent."""
        place = (self._index or self._build_index()).get(name.encode())
        return 0 if place is None else place[2] - place[1]

    def has_only(self, names: frozenset[bytes]) -> bool:
        """Return whether `names` has the name of every field of the top level."""
        return names.issuperset(self._index or self._build_index())

    def keys(self) -> list[str]:
        """Return the names of the top level in order, each once."""
        try:
            return [name.decode() for name in (self._index or self._build_index())]
        except UnicodeDecodeError as error:
            raise bad_text(self.raw, 4, error) from None

    def items(self) -> Iterator[tuple[str, object]]:
        """Yield names and decoded values one by one."""
        for name in self.keys():
            yield name, self.get(name)

    @property
    def first_key(self) -> str | None:
        """Return the first name, which is the command's name in a command; None when the document is empty."""
        if len(self.raw) == 5:
            return None
        end = self.raw.find(0, 5)
        try:
            return self.raw[5:end].decode()
        except UnicodeDecodeError as error:
            raise bad_text(self.raw, 4, error) from None

    def top_level(self) -> dict[str, object]:
        """Decode the top level. Documents in it, and arrays of documents, stay bytes, which encode() copies."""
        return {name: self._shallow(name) for name in self.keys()}

    def _shallow(self, name: str) -> object:
        raw = self.get_raw(name)
        if raw is None:
            return self.get(name)
        if self.type_of(name) == _DOCUMENT:
            return RawDocument(raw)
        try:
            return RawDocuments(documents_of(raw))
        except InvalidBSONError:  # something else is in the array
            return self.get(name)

    def decode(self) -> dict[str, object]:
        return decode(self.raw)

    def __contains__(self, name: str) -> bool:
        return name.encode() in (self._index or self._build_index())

    def __eq__(self, other: object) -> bool:
        return self.raw == other.raw if isinstance(other, RawDocument) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.raw)

    def __repr__(self) -> str:
        return f"RawDocument({self.raw!r:.120})"


def _index_of(data: bytes, most: int = maxsize) -> tuple[dict[bytes, tuple[int, int, int]], int]:
    """Return type byte, start and end of the first `most` values of the top level, by name; and where the last ends."""
    last = len(data) - 1
    pos = 4
    index: dict[bytes, tuple[int, int, int]] = {}
    find = data.find
    fixed_size = FIXED_SIZE
    counted_size = COUNTED_SIZE
    for _ in range(most):
        if pos >= last:
            break
        kind = data[pos]
        end = find(0, pos + 1, last)
        if end < 0:
            raise unreadable_element(kind, pos)
        start = end + 1
        size = fixed_size[kind]
        if size >= 0:
            after = start + size
        elif kind in counted_size and start + 4 <= last:
            least, extra = counted_size[kind]
            (length,) = _read_int32(data, start)
            after = start + length + extra if length >= least else value_end(data, kind, start, last, pos)
        else:
            after = value_end(data, kind, start, last, pos)
        if after > last:
            raise InvalidBSONError("a value that is longer than its document", offset=start)
        index[data[pos + 1 : end]] = (kind, start, after)
        pos = after
    return index, pos
