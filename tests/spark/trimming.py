"""A member whose capped oplog gives up its oldest entries while it is read."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from spark.places import ALL, Bounds, Mark, Only, Place, Span
from spark.readers.sqlite import SqlitePlace


@dataclass(frozen=True, slots=True)
class LaterTrimmed:
    """The entries up to `through` go when its bounds are asked for after it was pinned; at_once: as soon as it was."""

    place: SqlitePlace
    through: int
    at_once: bool = False

    @property
    def name(self) -> str:
        return self.place.name

    def pin(self) -> Place:
        pinned = self.place.pin()
        if self.at_once:
            self._trim()
        return pinned

    def bounds(self) -> Bounds:
        self._trim()
        return self.place.bounds()

    def count(self, span: Span) -> int:
        return self.place.count(span)

    def split(self, span: Span, parts: int) -> list[Span]:
        return self.place.split(span, parts)

    def read(self, span: Span, columns: Sequence[str], only: Only = ALL) -> Iterator[pa.RecordBatch]:
        return self.place.read(span, columns, only)

    def follow(self, after: Mark, limit: int) -> Mark:
        return self.place.follow(after, limit)

    def between(self, after: Mark, end: Mark) -> Place:
        return self.place.between(after, end)

    def _trim(self) -> None:
        with closing(sqlite3.connect(self.place.path)) as connection:
            connection.execute("DELETE FROM oplog WHERE ts <= ?", (self.through,))
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('trimmed_through', ?)", (self.through,))
            connection.commit()
