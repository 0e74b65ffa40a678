"""Reads a damaged BSON file to its end: past the damage, to the next byte at which a document begins."""

from __future__ import annotations

import mmap
import shutil
import tempfile
from collections.abc import Callable, Iterator
from struct import Struct
from typing import BinaryIO

from replset.bson import InvalidBSONError, validate
from replset.bson.limits import MAX_INTERNAL_SIZE

MIN_SIZE = 5
_int32 = Struct("<i").unpack_from


def documents(source: BinaryIO, on_skipped: Callable[[int, int, str], None]) -> Iterator[bytes]:
    """Yield the bytes of every sound document. Calls `on_skipped(from, to, why)` for each part that is not one.

    A document begins at a byte if it is sound and the file ends behind it, or something follows that can be a document.
    So a document nested in a damaged one does not count as a document. After damage, documents of 16 MiB and more are
    not found. Input from a pipe is copied to a temporary file first.
    """
    with tempfile.TemporaryFile() as copy:
        file = source
        if not source.seekable():
            shutil.copyfileobj(source, copy)
            copy.flush()
            file = copy
        if file.seek(0, 2) == 0:
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield from _documents(data, on_skipped)


def _documents(data: mmap.mmap, on_skipped: Callable[[int, int, str], None]) -> Iterator[bytes]:
    pos, end = 0, len(data)
    while pos < end:
        size = _size_at(data, pos)
        raw = data[pos : pos + size]
        problem = _problem(raw) if size else _bad_length(data, pos)
        if problem is None:
            yield raw
            pos += size
            continue
        after = _next_document(data, pos + 1)
        # If another document begins where this one ends, its length is right and only its inside is damaged. But if
        # whole documents reach over that end, the length is wrong: a nested document ends before the last byte.
        if size and _continues(data, pos + size) and not _documents_cover(data, after, pos + size):
            after = pos + size
        on_skipped(pos, after, problem)
        pos = after


def _size_at(data: mmap.mmap, pos: int) -> int:
    """The size of the document that begins here, judged by its length and its last byte; 0 when none does."""
    if pos + MIN_SIZE > len(data):
        return 0
    size = int(_int32(data, pos)[0])
    fits = MIN_SIZE <= size <= MAX_INTERNAL_SIZE and pos + size <= len(data)
    return size if fits and data[pos + size - 1] == 0 else 0


def _documents_cover(data: mmap.mmap, pos: int, end: int) -> bool:
    """Whether sound documents, one after the other, reach from `pos` to `end` or beyond."""
    begin = pos
    while pos < end:
        size = _size_at(data, pos)
        if not size or _problem(data[pos : pos + size]) is not None:
            return False
        pos += size
    return begin < end <= pos


def _continues(data: mmap.mmap, pos: int, hops: int = 1) -> bool:
    """Whether the file ends here, a sound document begins, or one begins of which only the inside is damaged."""
    if pos == len(data):
        return True
    size = _size_at(data, pos)
    if not size:
        return False
    return _problem(data[pos : pos + size]) is None or (hops > 0 and _continues(data, pos + size, hops - 1))


def _problem(raw: bytes) -> str | None:
    try:
        validate(raw)
    except InvalidBSONError as error:
        return error.message
    return None


def _bad_length(data: mmap.mmap, pos: int) -> str:
    if pos + 4 > len(data):
        return "the file ends inside a length"
    size = int(_int32(data, pos)[0])
    if not MIN_SIZE <= size <= MAX_INTERNAL_SIZE:
        return f"invalid BSONSize: {size} bytes"
    return "the file ends inside the document" if pos + size > len(data) else "the document does not end in a zero byte"


def _next_document(data: mmap.mmap, pos: int) -> int:
    """The next byte from `pos` on at which a document begins; the end of the file when there is none."""
    while True:
        zero = data.find(b"\0", pos + 3)  # the highest byte of a length below 16 MiB
        if zero < 0:
            return len(data)
        pos = zero - 3
        size = _size_at(data, pos)
        if size and _continues(data, pos + size) and _problem(data[pos : pos + size]) is None:
            return pos
        pos += 1
