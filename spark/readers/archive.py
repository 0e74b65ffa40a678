"""The archive of a set's oplog, and behind it the live oplog of a member, as one.

Segments may overlap, and each entry is read one time. What is before a gap counts as trimmed. The bytes of every
segment that is read are compared with the hash of its manifest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from replset.errors import CappedPositionLostError, ReplError
from replset.features.archive.archive import Archive
from replset.features.archive.files import Files, open_files
from replset.features.archive.segments import Segment
from replset.ids import OPTIME_NULL, OpTime
from replset.oplog_row import next_chain
from spark.columns import arrow_schema
from spark.oplog import (
    ALL,
    Bounds,
    EntryFilter,
    GrowingOplog,
    Oplog,
    OplogError,
    ReadPosition,
    Span,
    one_line,
    rolled_back_error,
    trimmed_error,
)
from spark.readers.parquet import columns_for, rows_in
from spark.readers.pieces import InPieces, Piece

_BATCH_ROWS = 16_384
_ENTRY_ROWS = 2_048
_THREADS = 8


class Part(NamedTuple):
    """What of a segment is read: entries with first_ts <= ts < end_ts."""

    segment: Segment
    first_ts: int
    end_ts: int

    @property
    def piece(self) -> Piece:
        first, last = self.segment.name
        return Piece(self.first_ts, self.end_ts, self.segment.rows * (self.end_ts - self.first_ts) / (last + 1 - first))


class Pinned(NamedTuple):
    """parts: of the archive, rising. live: what is newer, None: nothing is."""

    parts: tuple[Part, ...]
    live: Oplog | None
    bounds: Bounds


@dataclass(frozen=True, slots=True)
class ArchivedOplog(InPieces):
    """`address`: of the archive. live: a member's oplog that goes on behind it; None: the archive alone."""

    name: str
    address: str
    live: Oplog | None = None
    pinned: Pinned | None = None

    def pin(self) -> ArchivedOplog:
        return self if self.pinned else replace(self, pinned=self._now())

    def bounds(self) -> Bounds:
        return self._now().bounds

    def read(self, span: Span, columns: Sequence[str], only: EntryFilter = ALL) -> Iterator[pa.RecordBatch]:
        now = self._now()
        end_ts = now.parts[-1].end_ts if now.parts else 0
        with self._errors():
            files = open_files(self.address)
            for part in now.parts:
                chosen = Span(max(part.first_ts, span.first_ts), min(part.end_ts, span.end_ts))
                if chosen.first_ts < chosen.end_ts:
                    table = _table(files, part.segment, chosen, columns, only)
                    yield from table.to_batches(_ENTRY_ROWS if "entry" in columns else _BATCH_ROWS)
        if now.live is not None and span.end_ts > end_ts:
            yield from now.live.read(Span(max(span.first_ts, end_ts), span.end_ts), columns, only)

    def follow(self, after: ReadPosition, limit: int) -> ReadPosition:
        """A batch ends with a segment, or in the live oplog."""
        for segment in self._behind(after):
            after, limit = ReadPosition(*segment.end), limit - segment.rows
            if limit <= 0:
                return after
        live = self._growing()
        is_ahead = live is not None and live.bounds().newest.ts > after.optime.ts
        return live.follow(after, limit) if live is not None and is_ahead else after

    def between(self, after: ReadPosition, end: ReadPosition) -> ArchivedOplog:
        segments = takewhile(lambda segment: segment.name.first_ts <= end.optime.ts, self._behind(after))
        clipped = ((max(part.first_ts, after.optime.ts + 1), part) for part in _parts(list(segments))[0])
        parts = tuple(Part(part.segment, first, min(part.end_ts, end.optime.ts + 1)) for first, part in clipped)
        reached = ReadPosition(*parts[-1].segment.end) if parts else after
        live = self._growing() if reached.optime.ts < end.optime.ts else None
        bounds = Bounds(OpTime(after.optime.term, after.optime.ts + 1), end.optime, chain=end.chain)
        return replace(self, pinned=Pinned(parts, None if live is None else live.between(reached, end), bounds))

    def _behind(self, after: ReadPosition) -> Iterator[Segment]:
        """The segments that hold the entries behind this one, and follow it."""
        with self._errors():
            try:
                archive = Archive.open(self.address)
                segment = archive.after(after.optime)
                if segment is not None and after.chain is not None and not _follows(archive, segment, after):
                    raise rolled_back_error(self.name, after.optime)
                while segment is not None:
                    yield segment
                    segment = archive.after(segment.end.optime)
            except CappedPositionLostError as error:
                raise trimmed_error(self.name, self.bounds().trimmed_through) from error

    def _growing(self) -> GrowingOplog | None:
        if self.live is not None and not isinstance(self.live, GrowingOplog):
            raise OplogError(
                self.name, f"{self.live.name} does not grow; give the archive alone, or a member behind it"
            )
        return self.live

    def _pieces(self) -> list[Piece]:
        now = self._now()
        pieces = [part.piece for part in now.parts]
        if now.live is not None:
            first_ts, end_ts = pieces[-1].end_ts if pieces else 0, now.bounds.newest.ts + 1
            pieces.append(Piece(first_ts, end_ts, now.live.count(Span(first_ts, end_ts))))
        return pieces

    def _now(self) -> Pinned:
        if self.pinned:
            return self.pinned
        with self._errors():
            archive = Archive.open(self.address)
            with ThreadPoolExecutor(_THREADS) as threads:
                segments = list(threads.map(archive.segment, archive.names()))
        parts, trimmed_through = _parts(segments)
        live = None if self.live is None else self.live.pin()
        if live is not None and not self._goes_on(live, parts):
            live = None
        return Pinned(tuple(parts), live, _bounds(parts, trimmed_through, live))

    def _goes_on(self, live: Oplog, parts: Sequence[Part]) -> bool:
        """Whether the live oplog has newer entries. OplogError: they do not continue the archive."""
        bounds = live.bounds()
        if not parts or bounds.newest.ts < parts[-1].end_ts:
            return not parts and bounds.newest != OPTIME_NULL
        last = parts[-1].segment.end
        is_held = bounds.oldest.ts <= last.optime.ts
        span = Span(last.optime.ts, last.optime.ts + 1) if is_held else Span(bounds.oldest.ts, bounds.oldest.ts + 1)
        rows = [row for batch in live.read(span, ("hash", "chain")) for row in batch.to_pylist()]
        if not rows or rows[0]["chain"] is None:  # a dump keeps no chain
            is_same = is_held and bool(rows)
        elif is_held:
            is_same = rows[0]["chain"] == last.chain
        else:
            is_same = rows[0]["chain"] == next_chain(last.chain, rows[0]["hash"])
        if not is_same:
            raise OplogError(
                self.name, f"the oplog of {live.name} does not continue the archive, which ends at {last.optime}"
            )
        return True

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OplogError:
            raise
        except ReplError as error:
            raise OplogError(self.name, error.message) from error
        except (OSError, pa.ArrowException) as error:
            raise OplogError(self.name, f"{self.address}: {one_line(error)}") from error


def _follows(archive: Archive, segment: Segment, after: ReadPosition) -> bool:
    """Whether the segment holds this entry, or begins right behind it."""
    if segment.name.first_ts > after.optime.ts:
        entries = [] if segment.before is None else [tuple(segment.before)]
    else:
        entries = [(row.optime, row.chain) for row in archive.rows(segment)]
    return tuple(after) in entries


def _parts(segments: Sequence[Segment]) -> tuple[list[Part], int]:
    """What to read of each segment, behind the last gap; and the ts up to which entries are missing."""
    parts: list[Part] = []
    reached = trimmed_through = 0
    for segment in segments:
        first_ts, last_ts = segment.name
        if last_ts <= reached:
            continue
        before_ts = first_ts - 1 if segment.before is None else segment.before.optime.ts
        if first_ts > reached and before_ts > reached:
            parts, trimmed_through = [], before_ts
        parts.append(Part(segment, max(first_ts, reached + 1), last_ts + 1))
        reached = last_ts
    return parts, trimmed_through


def _bounds(parts: Sequence[Part], trimmed_through: int, live: Oplog | None) -> Bounds:
    newer = Bounds() if live is None else live.bounds()
    if not parts:
        return newer
    rows = round(sum(part.piece.rows for part in parts))
    oldest, last = OpTime.parse(parts[0].segment.first), parts[-1].segment.end
    if live is None:
        return Bounds(oldest, last.optime, rows, trimmed_through, last.chain)
    rows += live.count(Span(last.optime.ts + 1, newer.newest.ts + 1))
    return Bounds(oldest, newer.newest, rows, trimmed_through, newer.chain)


def _table(files: Files, segment: Segment, span: Span, columns: Sequence[str], only: EntryFilter) -> pa.Table:
    """The chosen rows of a segment. ReplError: its bytes are not what was written."""
    data = files.read(segment.file)
    if data is None or hashlib.sha256(data).hexdigest() != segment.sha256:
        raise OplogError(segment.file, "it is missing" if data is None else "it is damaged: its hash differs")
    table = pq.read_table(pa.BufferReader(data), columns=columns_for(columns, only), use_threads=False)
    return rows_in(table, span, only).select(columns).cast(arrow_schema(columns))
