"""Keeps the newest oplog rows of a store in memory, since secondaries ask for these again and again."""

from __future__ import annotations

from bisect import bisect_right

from replset.oplog_row import OplogRow

ROW_BYTES = 700
"""What a row of the oplog takes in memory beside its entry: small entries are mostly that."""


class OplogTail:
    """Holds rows in order, without a gap up to the newest: at least `max_bytes` of them, at most twice as many."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.rows: list[OplogRow] = []
        self._size = 0

    def add(self, rows: list[OplogRow], entry_bytes: int) -> None:
        """Add committed rows. entry_bytes: of their entries."""
        self.rows += rows
        self._size += entry_bytes + ROW_BYTES * len(rows)
        if self._size > 2 * self._max_bytes:
            kept, size = len(self.rows), 0
            while kept and size < self._max_bytes:
                kept -= 1
                size += len(self.rows[kept].entry) + ROW_BYTES
            del self.rows[:kept]
            self._size = size

    def clear(self) -> None:
        self.rows, self._size = [], 0

    def after(self, ts: int, limit: int, max_bytes: int) -> list[OplogRow] | None:
        """Return rows newer than `ts`, as `oplog.rows_after`; None where rows before the first one are asked for."""
        if not self.rows or ts < self.rows[0].ts:
            return None
        start = bisect_right(self.rows, ts, key=lambda row: row.ts)
        found, size = self.rows[start : start + limit], 0
        for index, row in enumerate(found):
            size += len(row.entry)
            if size > max_bytes and index:
                return found[:index]
        return found
