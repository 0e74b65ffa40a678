"""Reading a damaged BSON file to its end: past what is damaged, to the next place where a document begins."""

from __future__ import annotations

import mmap
import shutil
import tempfile
from collections.abc import Callable, Iterator
from struct import Struct
from typing import BinaryIO

from replset.bson import InvalidBSONError, validate
from replset.bson.limits import MAX_INTERNAL_SIZE

SMALLEST = 5
_int32 = Struct("<i").unpack_from


def documents(source: BinaryIO, skipped: Callable[[int, int, str], None]) -> Iterator[bytes]:
    """Yield the bytes of every document that is sound; `skipped(from, to, why)` tells each part that is not.

    A place counts as the beginning of a document when that is sound and something that can be one follows, or nothing:
    documents inside of damaged ones do not pass for documents. Documents of 16 MiB and more are not found behind
    damage. What comes from a pipe is copied to a temporary file first.
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
            yield from _documents(data, skipped)


def _documents(data: mmap.mmap, skipped: Callable[[int, int, str], None]) -> Iterator[bytes]:
    pos, end = 0, len(data)
    while pos < end:
        size = _size_at(data, pos)
        raw = data[pos : pos + size]
        problem = _problem(raw) if size else _bad_length(data, pos)
        if problem is None:
            yield raw
            pos += size
            continue
        after = _next(data, pos + 1)
        # A length that leads to another document is right, and only the inside is damaged, unless whole documents reach
        # over its end: what is inside of a document ends before its last byte.
        if size and _leads_on(data, pos + size) and not _fill(data, after, pos + size):
            after = pos + size
        skipped(pos, after, problem)
        pos = after


def _size_at(data: mmap.mmap, pos: int) -> int:
    """The size of the document that begins here, by its length and its last byte; 0 when none does."""
    if pos + SMALLEST > len(data):
        return 0
    size = int(_int32(data, pos)[0])
    fits = SMALLEST <= size <= MAX_INTERNAL_SIZE and pos + size <= len(data)
    return size if fits and data[pos + size - 1] == 0 else 0


def _fill(data: mmap.mmap, pos: int, end: int) -> bool:
    """Whether sound documents, one behind the other, reach from `pos` to `end` or beyond."""
    begin = pos
    while pos < end:
        size = _size_at(data, pos)
        if not size or _problem(data[pos : pos + size]) is not None:
            return False
        pos += size
    return begin < end <= pos


def _leads_on(data: mmap.mmap, pos: int, hops: int = 1) -> bool:
    """Whether the file ends here or a sound document begins, or one follows whose inside only is damaged."""
    if pos == len(data):
        return True
    size = _size_at(data, pos)
    if not size:
        return False
    return _problem(data[pos : pos + size]) is None or (hops > 0 and _leads_on(data, pos + size, hops - 1))


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
    if not SMALLEST <= size <= MAX_INTERNAL_SIZE:
        return f"invalid BSONSize: {size} bytes"
    return "the file ends inside the document" if pos + size > len(data) else "the document does not end in a zero byte"


def _next(data: mmap.mmap, pos: int) -> int:
    """The next place from `pos` on where a document begins, the file's end when there is none."""
    while True:
        zero = data.find(b"\0", pos + 3)  # the highest byte of a length below 16 MiB
        if zero < 0:
            return len(data)
        pos = zero - 3
        size = _size_at(data, pos)
        if size and _leads_on(data, pos + size) and _problem(data[pos : pos + size]) is None:
            return pos
        pos += 1
