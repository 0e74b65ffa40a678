"""Keeps the newest oplog rows of a store in memory, since secondaries ask for these again and again."""

from __future__ import annotations

from bisect import bisect_right

from replset.oplog_row import OplogRow, StoredRow

ROW_BYTES = 400
"""What a row of the oplog takes in memory beside its entry: small entries are mostly that."""
DROP_PARTS = 32
"""The part of all rows that is dropped at once, a few hundred: more would hold the event loop."""


class OplogTail:
    """Holds rows in order, without a gap up to the newest: about `max_bytes` of them.

    They are plain tuples: the garbage collector stops to follow these, and would go through thousands of named ones
    again and again.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.rows: list[StoredRow] = []
        self._places: list[int] = []  # the ts of each row
        self._size = 0

    def add(self, rows: list[StoredRow], entry_bytes: int) -> None:
        """Add committed rows. entry_bytes: of their entries."""
        self.rows += rows
        self._places += [row[0] for row in rows]
        self._size += entry_bytes + ROW_BYTES * len(rows)
        if self._size > self._max_bytes + self._max_bytes // DROP_PARTS:
            dropped, size = 0, self._size
            while size > self._max_bytes:
                size -= len(self.rows[dropped][8]) + ROW_BYTES
                dropped += 1
            del self.rows[:dropped], self._places[:dropped]
            self._size = size

    def clear(self) -> None:
        self.rows, self._places, self._size = [], [], 0

    def row_at(self, ts: int) -> OplogRow | None:
        """The row with this `ts`, None when it is not in memory."""
        if not self.rows or ts < self.rows[0][0]:
            return None
        row = self.rows[bisect_right(self._places, ts) - 1]
        return OplogRow._make(row) if row[0] == ts else None

    def after(self, ts: int, limit: int, max_bytes: int) -> list[StoredRow] | None:
        """Return rows newer than `ts`, as `oplog.rows_after`; None where rows before the first one are asked for."""
        if not self.rows or ts < self.rows[0][0]:
            return None
        start = bisect_right(self._places, ts)
        found, size = self.rows[start : start + limit], 0
        for index, row in enumerate(found):
            size += len(row[8])
            if size > max_bytes and index:
                return found[:index]
        return found
