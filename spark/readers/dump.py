"""A file of oplog entries: mongodump's `oplog.rs.bson`, `oplog.bson` or archive, a rollback's `local.oplog.rs.*.bson`.

They may be in any order, an entry may be there twice, and the file may be gzipped. A pass over the file notes what
each chunk of it holds, so that a span is read from the chunks that overlap with it; out of order, a span is sorted in
memory.
A gzipped file is unpacked anew from its beginning by each part that is read.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import BinaryIO, NamedTuple, cast

import pyarrow as pa

from replset.bson import InvalidBSONError
from replset.ids import OpTime
from spark.oplog import ALL, Bounds, EntryFilter, OplogError, Span
from spark.readers.mongodump import DamagedDumpError, dumped_entries
from spark.readers.pieces import InPieces, Piece, side_by_side
from spark.readers.rows import Row, batch_of, chosen, entry_optime, entry_row

_CHUNK_BYTES = 2 << 20
_BATCH_ROWS = 2_048
_BATCH_BYTES = 16 << 20
_GZIP = b"\x1f\x8b"


class Chunk(NamedTuple):
    """`size` bytes from `offset` with `rows` entries, the first and last by ts; rising: they are in this order."""

    offset: int
    size: int
    rows: int
    oldest: OpTime
    newest: OpTime
    rising: bool


class Index(NamedTuple):
    """Chunks in the file's order. size, changed: the file's own when they were noted (bytes; ns since 1970)."""

    chunks: tuple[Chunk, ...]
    size: int
    changed: int

    @property
    def in_order(self) -> bool:
        ends = all(one.newest.ts <= other.oldest.ts for one, other in pairwise(self.chunks))
        return ends and all(chunk.rising for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class DumpOplog(InPieces):
    """`pin` makes the index; without one each question makes it anew."""

    name: str
    path: str
    index: Index | None = None

    def pin(self) -> DumpOplog:
        return replace(self, index=self._index())

    def bounds(self) -> Bounds:
        chunks = self._index().chunks
        if not chunks:
            return Bounds()
        oldest = min((chunk.oldest for chunk in chunks), key=_ts_of)
        newest = max((chunk.newest for chunk in chunks), key=_ts_of)
        return Bounds(oldest, newest, sum(chunk.rows for chunk in chunks))

    def read(self, span: Span, columns: Sequence[str], only: EntryFilter = ALL) -> Iterator[pa.RecordBatch]:
        index = self._index()
        found = [chunk for chunk in index.chunks if chunk.oldest.ts < span.end_ts and chunk.newest.ts >= span.first_ts]
        with self._open() as file:
            state = os.fstat(file.fileno())
            if (state.st_size, state.st_mtime_ns) != (index.size, index.changed):
                raise OplogError(self.name, f"{self.path} was changed while it was read")
            rows = self._rows(file, found, span)
            if not index.in_order:
                rows = iter(sorted(rows, key=_ts_of))
            for some in _packed(chosen(rows, only)):
                yield batch_of(some, columns)

    def _rows(self, file: BinaryIO, chunks: Iterable[Chunk], span: Span) -> Iterator[Row]:
        for chunk in chunks:
            file.seek(chunk.offset)
            data, start = file.read(chunk.size), 0
            while start < len(data):
                end = start + int.from_bytes(data[start : start + 4], "little")
                try:
                    optime = entry_optime(data[start:end])
                    if span.first_ts <= optime.ts < span.end_ts:
                        yield entry_row(data[start:end])
                except InvalidBSONError as error:
                    raise self._damaged(chunk.offset + start, error) from error
                start = end

    def _pieces(self) -> list[Piece]:
        return side_by_side(Piece(chunk.oldest.ts, chunk.newest.ts + 1, chunk.rows) for chunk in self._index().chunks)

    def _index(self) -> Index:
        if self.index:
            return self.index
        with self._open() as file:
            state = os.fstat(file.fileno())
            try:
                return Index(tuple(self._chunks(file)), state.st_size, state.st_mtime_ns)
            except DamagedDumpError as error:
                raise OplogError(self.name, f"{self.path} {error}") from error

    def _chunks(self, file: BinaryIO) -> Iterator[Chunk]:
        """A chunk ends behind the entry that crosses _CHUNK_BYTES, and where other things than entries follow."""
        begin = end = 0
        optimes: list[OpTime] = []
        for offset, raw in dumped_entries(file):
            if optimes and (offset != end or end - begin >= _CHUNK_BYTES):
                yield _chunk(begin, end - begin, optimes)
                optimes = []
            try:
                optimes.append(entry_optime(raw))
            except InvalidBSONError as error:
                raise self._damaged(offset, error) from error
            if len(optimes) == 1:
                begin = offset
            end = offset + len(raw)
        if optimes:
            yield _chunk(begin, end - begin, optimes)

    def _damaged(self, offset: int, why: object) -> OplogError:
        return OplogError(self.name, f"{self.path} is damaged: the document at byte {offset}: {why}")

    @contextmanager
    def _open(self) -> Iterator[BinaryIO]:
        try:
            with open(self.path, "rb") as file:
                is_gzip = file.read(2) == _GZIP
                file.seek(0)
                if not is_gzip:
                    yield file
                    return
                with gzip.open(file) as unpacked:
                    yield cast(BinaryIO, unpacked)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise OplogError(self.name, f"{self.path} is damaged: it cannot be unpacked: {error}") from error
        except OSError as error:
            raise OplogError(self.name, f"{self.path}: {error.strerror or error}") from error


def _chunk(offset: int, size: int, optimes: Sequence[OpTime]) -> Chunk:
    stamps = [optime.ts for optime in optimes]
    rising = all(one <= other for one, other in pairwise(stamps))
    return Chunk(offset, size, len(optimes), min(optimes, key=_ts_of), max(optimes, key=_ts_of), rising)


def _packed(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Lists of rows, not empty, of at most some MiB."""
    some: list[Row] = []
    size = 0
    for row in rows:
        some.append(row)
        size += len(row.entry)
        if len(some) >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


def _ts_of(row: Row | OpTime) -> int:
    return row.ts
