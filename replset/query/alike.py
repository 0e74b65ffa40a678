"""Decodes the same fields of many documents at once, which is faster where documents have the same fields in order.

A `_Layout` is made of one document: the names and types of its fields, as regular expressions over the bytes. Documents
that they match, and whose lengths are what the expressions took for them, have been read as `decode_fields` reads them:
each name, type and length was looked at. All others go to `decode_fields`, which also raises what is to be raised.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import eq
from struct import unpack
from typing import Any, Final

from replset.bson.decoding import COUNTED_SIZE, FIXED_SIZE, decode_fields, reader_of
from replset.bson.errors import InvalidBSONError
from replset.bson.raw import walk
from replset.bson.values import Code, DateTime, Int64, Symbol

Column = Sequence[Any]
_TOGETHER: Final = 128
"""Documents that are decoded at once."""
_MOST_BYTES: Final = 256 << 10
"""How many bytes these have together: more are decoded one by one, since the next may not be wanted."""
_LEAST: Final = 4
_LEAST_AT_FIRST: Final = 16
"""An expression takes half a millisecond to compile."""
_MOST_FIELDS: Final = 50
_MOST_LAYOUTS: Final = 4
_TRIES: Final = 256
"""Documents that a layout is tried on before it must have fitted an eighth of them."""
_TEXTS: Final[Mapping[int, Callable[[str], Any] | None]] = {0x02: None, 0x0D: Code, 0x0E: Symbol}
_BEGUN_BY_LENGTH: Final = (0x03, 0x04, 0x05)
_ARRAY: Final = 0x04
_REGEX: Final = 0x0B
_TEXT_ARRAY_KIND: Final = 0x0204
"""Stands for an array whose items are strings."""
_END: Final = b"\\0"
_TEXT_ITEM: Final = rb"\x02[0-9]+\0(.{4})([^\0]*\0)"
_find_text_items = re.compile(_TEXT_ITEM + rb"|\0", re.DOTALL).findall
"""Gives length and text of each item of arrays of strings, one array behind the other, and empty ones at their ends."""
_TEXT_ARRAY: Final = b"((?:%s)*\\0)" % _TEXT_ITEM.replace(b"(", b"(?:")


def are_whole(raws: Sequence[bytes]) -> bool:
    """Whether each document has the length that it says, and its terminator, as `outer_end` checks it."""
    heads = b"".join([raw[:4] for raw in raws])
    return (
        len(heads) == 4 * len(raws)
        and _lengths([heads]) == tuple(map(len, raws))
        and not any([raw[-1] for raw in raws])
    )


class FieldsReader:
    """Decodes the fields of the top level with these names (as of `names_by_bytes`) of one document after the other."""

    def __init__(self, names: Mapping[bytes, str] | None) -> None:
        self._names = names
        self._layouts: list[_Layout] = []
        self._made = 0

    def documents(self, raws: Sequence[bytes]) -> Iterator[dict[str, Any]]:
        """Yield what `decode_fields` gives for each. InvalidBSONError when it comes to the document."""
        names = self._names
        for start in range(0, len(raws), _TOGETHER):
            part = raws[start : start + _TOGETHER]
            if len(part) < (_LEAST_AT_FIRST if not self._layouts else _LEAST) or sum(map(len, part)) > _MOST_BYTES:
                for raw in part:
                    yield decode_fields(raw, names)
                continue
            found = self._alike(part)
            if None not in found:
                yield from found  # type: ignore[misc]
                continue
            for raw, document in zip(part, found, strict=True):
                yield decode_fields(raw, names) if document is None else document

    def _alike(self, raws: Sequence[bytes]) -> list[dict[str, Any] | None]:
        """Return the documents, None for those that no layout fits."""
        found: list[dict[str, Any] | None] = [None] * len(raws)
        left: Sequence[int] = range(len(raws))
        number = 0
        while left:
            if number == len(self._layouts) and not self._learn(raws[left[0]]):
                break
            layout = self._layouts[number]
            documents = layout.documents(raws if len(left) == len(raws) else [raws[place] for place in left])
            if len(left) == len(raws):
                found = documents
            else:
                for place, document in zip(left, documents, strict=True):
                    found[place] = document
            left = [place for place in left if found[place] is None] if None in documents else ()
            layout.tried += len(documents)
            layout.fitted += len(documents) - documents.count(None)
            if layout.tried >= _TRIES and layout.fitted * 8 < layout.tried:
                self._layouts.remove(layout)
            else:
                number += 1
        return found

    def _learn(self, raw: bytes) -> bool:
        """Make the layout of a document. There are so many at most, also of those that were given up."""
        if self._made == _MOST_LAYOUTS:
            return False
        self._made += 1
        layout = _layout_of(raw, self._names)
        if layout is not None:
            self._layouts.append(layout)
        return layout is not None


class _UnlikeError(Exception):
    """Some documents do not have the layout. fits: which have, as far as one knows."""

    def __init__(self, fits: list[bool]) -> None:
        self.fits = fits


def _check(fits: list[bool]) -> None:
    if not all(fits):
        raise _UnlikeError(fits)


class _Segment:
    """What lies between two values that begin with their length.

    Its last group is the length of the value that ends it, of type `kind`; None for the last segment, which ends at the
    end of the document.
    """

    def __init__(self) -> None:
        self.source = b""
        self.groups = 0
        self.lengths: list[tuple[int, int]] = []
        """The groups that are lengths, and what they count beside the next group."""
        self.columns: list[tuple[str, int, int]] = []
        """Name and type of a wanted field, and its group; 0 for a value without bytes."""
        self.kind: int | None = None
        self.name: str | None = None
        """The name of the value that ends it, if it is wanted."""
        self.match: Callable[[bytes, int], re.Match[bytes] | None]

    def add(self, source: bytes, groups: int = 0) -> int:
        """Go on with a part of the expression. Return the number of its first group."""
        self.source += source
        self.groups += groups
        return self.groups - groups + 1

    def close(self) -> _Segment:
        pattern = re.compile(self.source, re.DOTALL)
        self.match = pattern.fullmatch if self.kind is None else pattern.match
        return self

    @property
    def is_end(self) -> bool:
        """Whether there is nothing but the terminator."""
        return self.source == _END


class _Layout:
    def __init__(self, segments: list[_Segment]) -> None:
        self._segments = segments
        self.tried = self.fitted = 0

    def documents(self, raws: Sequence[bytes]) -> list[dict[str, Any] | None]:
        """Return the documents decoded, None for those that do not fit."""
        try:
            return self._read(raws) if raws else []
        except _UnlikeError as unlike:
            some = iter(self.documents([raw for raw, fits in zip(raws, unlike.fits, strict=True) if fits]))
            return [next(some) if fits else None for fits in unlike.fits]

    def _read(self, raws: Sequence[bytes]) -> list[dict[str, Any] | None]:
        names: list[str] = []
        columns: list[Column] = []
        count = len(raws)
        starts: Sequence[int] = [0] * count
        for number, segment in enumerate(self._segments):
            if segment.is_end:
                _check([start + 1 == len(raw) and not raw[start] for start, raw in zip(starts, raws, strict=True)])
                break
            matches = list(map(segment.match, raws, starts))
            if None in matches:
                raise _UnlikeError([match is not None for match in matches])
            groups: list[Column] = list(zip(*[match.groups() for match in matches], strict=True))  # type: ignore[union-attr]
            if number == 0:
                _check_lengths(groups[0], raws)
            for group, more in segment.lengths:
                _check_lengths(groups[group - 1], groups[group], more)
            for name, kind, group in segment.columns:
                names.append(name)
                columns.append(_column(kind, groups[group - 1] if group else (), count))
            if segment.kind is not None:
                least, extra = COUNTED_SIZE[segment.kind]
                lengths = _lengths(groups[-1])
                if min(lengths) < least:
                    raise _UnlikeError([length >= least for length in lengths])
                begins = [match.end() - 4 for match in matches]  # type: ignore[union-attr]
                if segment.name is not None:
                    names.append(segment.name)
                    columns.append(_values(segment.kind, raws, begins))
                starts = [begin + length + extra for begin, length in zip(begins, lengths, strict=True)]
        return _documents(names, columns, count)


def _documents(names: Sequence[str], columns: Sequence[Column], count: int) -> list[dict[str, Any] | None]:
    match names:
        case []:
            return [{} for _ in range(count)]
        case [a]:
            return [{a: value} for value in columns[0]]
        case [a, b]:
            return [{a: first, b: second} for first, second in zip(*columns, strict=True)]
        case [a, b, c]:
            return [{a: first, b: second, c: third} for first, second, third in zip(*columns, strict=True)]
        case [a, b, c, d]:
            return [{a: w, b: x, c: y, d: z} for w, x, y, z in zip(*columns, strict=True)]
        case _:
            return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _lengths(column: Column) -> tuple[int, ...]:
    data = b"".join(column)
    return unpack(f"<{len(data) // 4}i", data)


def _check_lengths(column: Column, of: Sequence[bytes], more: int = 0) -> None:
    lengths = _lengths(column)
    wanted = tuple(map(len, of)) if not more else tuple([len(one) + more for one in of])
    if lengths != wanted:
        raise _UnlikeError(list(map(eq, lengths, wanted)))


def _values(kind: int, raws: Sequence[bytes], begins: Sequence[int]) -> Column:
    """Return the values of a type that begins with its length."""
    read = reader_of(kind)
    try:
        return [read(raw, begin, len(raw) - 1, 1)[0] for raw, begin in zip(raws, begins, strict=True)]
    except (InvalidBSONError, UnicodeDecodeError):
        raise _UnlikeError([False] * len(raws)) from None


def _column(kind: int, found: Column, count: int) -> Column:
    """Return the values of one field. found: their bytes."""
    if kind == _TEXT_ARRAY_KIND:
        return _text_arrays(found, count)
    if kind in _TEXTS:
        texts = _texts(found, count)
        make = _TEXTS[kind]
        return texts if make is None else list(map(make, texts))
    match kind:
        case 0x10:
            return _lengths(found)
        case 0x01:
            return unpack(f"<{count}d", b"".join(found))
        case 0x12:
            return list(map(Int64, unpack(f"<{count}q", b"".join(found))))
        case 0x09:
            return list(map(DateTime, unpack(f"<{count}q", b"".join(found))))
    read = reader_of(kind)
    if not found:
        return [read(b"", 0, 0, 1)[0]] * count
    try:
        return [read(value, 0, len(value), 1)[0] for value in found]
    except (InvalidBSONError, UnicodeDecodeError):
        raise _UnlikeError([False] * count) from None


def _texts(found: Column, count: int) -> list[str]:
    try:
        texts = b"".join(found).decode().split("\0")
    except UnicodeDecodeError:
        raise _UnlikeError([False] * count) from None
    texts.pop()
    return texts


def _text_arrays(found: Column, count: int) -> Column:
    items = _find_text_items(b"".join(found))
    texts = [text for _, text in items if text]
    if _lengths([length for length, _ in items]) != tuple(map(len, texts)):
        raise _UnlikeError([False] * count)
    values = _texts(texts, count)
    arrays = []
    begin = 0
    for number, end in enumerate([place for place, (_, text) in enumerate(items) if not text]):
        arrays.append(values[begin : end - number])
        begin = end - number
    return arrays


def _layout_of(raw: bytes, names: Mapping[bytes, str] | None) -> _Layout | None:
    """Return the layout of a document, None for one that has a field twice, a rare type or very many fields."""
    try:
        elements = walk(raw)
    except InvalidBSONError:
        return None
    if len(elements) > _MOST_FIELDS or len({name for name, *_ in elements}) < len(elements):
        return None
    segments = []
    segment = _Segment()
    segment.add(b"(.{4})", 1)
    for name, kind, start, end in elements:
        known = name.encode()
        wanted = name if names is None or known in names else None
        captures = wanted is not None
        segment.add(re.escape(bytes((kind,)) + known + b"\0"))
        size = FIXED_SIZE[kind]
        group: int | None = None
        if size == 0:
            group = 0
        elif size > 0:
            group = segment.add(b"(.{%d})" % size if captures else b".{%d}" % size, int(captures))
        elif kind in _TEXTS:
            group = segment.add(b"(.{4})([^\\0]*\\0)", 2)
            segment.lengths.append((group, 0))
            group += 1
        elif kind == _REGEX:
            source = b"[^\\0]*\\0[^\\0]*\\0"
            group = segment.add(b"(%s)" % source if captures else source, int(captures))
        elif kind == _ARRAY and captures and re.fullmatch(_TEXT_ARRAY, raw[start + 4 : end], re.DOTALL):
            group, kind = segment.add(b"(.{4})" + _TEXT_ARRAY, 2), _TEXT_ARRAY_KIND
            segment.lengths.append((group, 4))
            group += 1
        elif kind in _BEGUN_BY_LENGTH and not captures and end == len(raw) - 1:
            more = 4 - COUNTED_SIZE[kind][1]
            segment.lengths.append((segment.add(b"(.{4})(.+)", 2), more))
        elif kind in _BEGUN_BY_LENGTH:
            segment.add(b"(.{4})", 1)
            segment.kind, segment.name = kind, wanted
            segments.append(segment.close())
            segment = _Segment()
        else:
            return None
        if wanted is not None and group is not None:
            segment.columns.append((wanted, kind, group))
    segment.add(_END)
    segments.append(segment.close())
    return _Layout(segments)
