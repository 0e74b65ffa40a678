"""A member whose capped oplog gives up its oldest entries while it is read."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from spark.oplog import ALL, Bounds, EntryFilter, Oplog, ReadPosition, Span
from spark.readers.sqlite import SqliteOplog


@dataclass(frozen=True, slots=True)
class LaterTrimmed:
    """The entries up to `through` go when its bounds are asked for after it was pinned; at_once: as soon as it was."""

    oplog: SqliteOplog
    through: int
    at_once: bool = False

    @property
    def name(self) -> str:
        return self.oplog.name

    def pin(self) -> Oplog:
        pinned = self.oplog.pin()
        if self.at_once:
            self._trim()
        return pinned

    def bounds(self) -> Bounds:
        self._trim()
        return self.oplog.bounds()

    def count(self, span: Span) -> int:
        return self.oplog.count(span)

    def split(self, span: Span, parts: int) -> list[Span]:
        return self.oplog.split(span, parts)

    def read(self, span: Span, columns: Sequence[str], only: EntryFilter = ALL) -> Iterator[pa.RecordBatch]:
        return self.oplog.read(span, columns, only)

    def follow(self, after: ReadPosition, limit: int) -> ReadPosition:
        return self.oplog.follow(after, limit)

    def between(self, after: ReadPosition, end: ReadPosition) -> Oplog:
        return self.oplog.between(after, end)

    def _trim(self) -> None:
        with closing(sqlite3.connect(self.oplog.path)) as connection:
            connection.execute("DELETE FROM oplog WHERE ts <= ?", (self.through,))
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('trimmed_through', ?)", (self.through,))
            connection.commit()
