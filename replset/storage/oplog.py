"""Reads rows of the oplog table, checks the hash chain over them, and keeps the newest ones in memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, NamedTuple

import apsw

from replset.bson import InvalidBSONError
from replset.errors import CappedPositionLostError, CorruptDataError
from replset.ids import OpTime
from replset.oplog_entry import OplogEntry
from replset.oplog_row import (
    READ_COLUMNS,
    DamagedEntryError,
    OplogRow,
    StoredRow,
    TermSpan,
    entry_hash,
    first_damaged,
    next_chain,
)
from replset.storage.sqlite import first_row, rows_of

_HEAD_COLUMNS = "CAST(term AS INTEGER), ts, CAST(op AS TEXT), CAST(ns AS TEXT), CAST(wall AS INTEGER)"


def newest_row(connection: apsw.Connection) -> OplogRow | None:
    return _one(connection, f"SELECT {READ_COLUMNS} FROM oplog ORDER BY ts DESC LIMIT 1", ())


class OplogHead(NamedTuple):
    """What a row says without its entry."""

    optime: OpTime
    op: str
    ns: str
    wall_ms: int


def newest_heads(connection: apsw.Connection, limit: int) -> list[OplogHead]:
    """Read the newest rows without their entries, oldest first."""
    sql = f"SELECT {_HEAD_COLUMNS} FROM oplog ORDER BY ts DESC LIMIT ?"
    rows = rows_of(connection, sql, (limit,))
    return [OplogHead(OpTime(term, ts), op, ns, wall_ms) for term, ts, op, ns, wall_ms in rows][::-1]


def heads_between(
    connection: apsw.Connection, after_ts: int, until_ts: int, *, limit: int, backwards: bool
) -> list[OplogHead]:
    """Read the first rows with after_ts < ts <= until_ts, without their entries. backwards: the last, newest first."""
    order = "DESC" if backwards else "ASC"
    sql = f"SELECT {_HEAD_COLUMNS} FROM oplog WHERE ts > ? AND ts <= ? ORDER BY ts {order} LIMIT ?"
    rows = rows_of(connection, sql, (after_ts, until_ts, limit))
    return [OplogHead(OpTime(term, ts), op, ns, wall_ms) for term, ts, op, ns, wall_ms in rows]


def rows_at(connection: apsw.Connection, path: str, places: Iterable[int], max_bytes: int) -> list[OplogRow]:
    """Read the rows with these ts, in their order, until `max_bytes` of entries; the first one always.

    Each is checked against its hash: DamagedEntryError. CappedPositionLostError: one was trimmed away.
    """
    rows: list[OplogRow] = []
    size = 0
    for ts in places:
        row = _one(connection, f"SELECT {READ_COLUMNS} FROM oplog WHERE ts = ?", (ts,))
        if row is None:
            raise CappedPositionLostError("an entry that is read was trimmed away")
        if entry_hash(row.entry) != row.hash:
            raise _damaged(path, row, "hash")
        rows.append(row)
        size += len(row.entry)
        if size > max_bytes:
            break
    return rows


def ts_further_on(connection: apsw.Connection, after_ts: int, rows: int) -> int | None:
    """The ts so many rows behind `after_ts`; None: there are no more than that."""
    row = first_row(connection, "SELECT ts FROM oplog WHERE ts > ? ORDER BY ts LIMIT 1 OFFSET ?", (after_ts, rows - 1))
    return None if row is None else int(row[0])


def places_about(
    connection: apsw.Connection, ns: str, key: bytes, *, after_ts: int, until_ts: int, limit: int
) -> list[int]:
    """The ts of the first entries in this range that may be about one document: its own, transactions that name its
    collection, and commands on its database.

    Columns in front of the entry decide, so the bytes of entries are not read, but those of transactions.
    """
    sql = (
        "SELECT ts FROM oplog WHERE ts > ? AND ts <= ? AND (key = ? AND ns = ?"
        " OR op = 'c' AND (ns = ? OR ns = 'admin.$cmd' AND instr(entry, ?))) ORDER BY ts LIMIT ?"
    )
    commands = f"{ns.partition('.')[0]}.$cmd"
    return [ts for (ts,) in rows_of(connection, sql, (after_ts, until_ts, key, ns, commands, ns.encode(), limit))]


def oldest_row(connection: apsw.Connection) -> OplogRow | None:
    return _one(connection, f"SELECT {READ_COLUMNS} FROM oplog ORDER BY ts LIMIT 1", ())


def wall_ms_at(connection: apsw.Connection, ts: int) -> int | None:
    """The wall time of the first row with this ts or a later one."""
    row = first_row(connection, "SELECT wall FROM oplog WHERE ts >= ? ORDER BY ts LIMIT 1", (ts,))
    return None if row is None else int(row[0])


def walls_behind(connection: apsw.Connection, ts: int) -> list[tuple[int, int]]:
    """The ts and the wall time of the next rows behind this ts."""
    sql = "SELECT ts, wall FROM oplog WHERE ts > ? ORDER BY ts LIMIT 10000"
    return [(ts, wall_ms) for ts, wall_ms in rows_of(connection, sql, (ts,))]


def row_at(connection: apsw.Connection, optime: OpTime) -> OplogRow | None:
    """The row with exactly this optime."""
    row = _one(connection, f"SELECT {READ_COLUMNS} FROM oplog WHERE ts = ?", (optime.ts,))
    return row if row is not None and row.term == optime.term else None


def is_in_history(connection: apsw.Connection, theirs: OplogRow) -> bool:
    """Whether this log holds another member's row, with the same chain, or held it before it was trimmed.

    The entries of one term are one primary's, so a log that held a later entry of that term had all before it. The
    terms that a log ever had, with their last entries, stay when it is trimmed.
    """
    oldest = oldest_row(connection)
    if oldest is None:
        return False
    if theirs.ts < oldest.ts:
        span = next((span for span in term_spans(connection) if span.first.term == theirs.term), None)
        return span is not None and (span.last is None or theirs.ts <= span.last.ts)
    row = row_at(connection, theirs.optime)
    return row is not None and row.chain == theirs.chain


def row_at_or_before(connection: apsw.Connection, ts: int) -> OplogRow | None:
    return _one(connection, f"SELECT {READ_COLUMNS} FROM oplog WHERE ts <= ? ORDER BY ts DESC LIMIT 1", (ts,))


def count_between(connection: apsw.Connection, after_ts: int, up_to_ts: int, most: int) -> int:
    """The number of rows with after_ts < ts <= up_to_ts, at most `most`."""
    sql = "SELECT count(*) FROM (SELECT 1 FROM oplog WHERE ts > ? AND ts <= ? LIMIT ?)"
    return int(first_row(connection, sql, (after_ts, up_to_ts, most))[0])


def _one(connection: apsw.Connection, sql: str, bindings: tuple[int, ...]) -> OplogRow | None:
    row = first_row(connection, sql, bindings)
    return None if row is None else OplogRow._make(row)


def trimmed_error(after: OpTime) -> CappedPositionLostError:
    return CappedPositionLostError(f"the oplog after {after} was trimmed away")


def rows_after(
    connection: apsw.Connection,
    after_ts: int,
    *,
    limit: int,
    max_bytes: int,
    ns: str | None = None,
    op: str | None = None,
) -> list[OplogRow]:
    """Rows with ts > after_ts, oldest first, until `limit` rows or `max_bytes` of entries; the first one always.

    ns: only entries of this namespace, and transactions that write in it.
    """
    conditions: list[str] = ["ts > ?"]
    values: list[object] = [after_ts]
    if ns is not None:
        conditions.append("(ns = ? OR op = 'c' AND ns = 'admin.$cmd')")
        values.append(ns)
    if op is not None:
        conditions.append("op = ?")
        values.append(op)
    sql = f"SELECT {READ_COLUMNS} FROM oplog WHERE {' AND '.join(conditions)} ORDER BY ts LIMIT ?"
    rows: list[OplogRow] = []
    size = 0
    cursor = rows_of(connection, sql, (*values, limit if ns is None else -1))
    for values_of_row in cursor:
        row = OplogRow._make(values_of_row)
        if ns is not None and row.ns != ns and not _writes_in(row.entry, ns):
            continue
        size += len(row.entry)
        if rows and (size > max_bytes or len(rows) == limit):
            cursor.close(True)
            break
        rows.append(row)
    return rows


def _writes_in(entry: bytes, ns: str) -> bool:
    """Whether the entry is a transaction's, and one of its operations is in this namespace."""
    try:
        return any(operation.ns == ns for operation in OplogEntry(entry).operations)
    except InvalidBSONError:
        return False


def undamaged(connection: apsw.Connection, path: str, rows: list[OplogRow]) -> list[OplogRow]:
    """These rows, which follow each other, up to the first that is damaged. DamagedEntryError when that is the first.

    Bytes that the disk has changed must not reach another member, which would apply, acknowledge and pass them on.
    """
    if not rows:
        return rows
    previous = first_row(
        connection, "SELECT CAST(chain AS INTEGER) FROM oplog WHERE ts < ? ORDER BY ts DESC LIMIT 1", (rows[0].ts,)
    )
    damaged = first_damaged(rows, None if previous is None else previous[0])
    if damaged == 0:
        raise _damaged(path, rows[0], "hash or chain")
    return rows if damaged is None else rows[:damaged]


def check_slice(connection: apsw.Connection, path: str, after_ts: int, *, limit: int, max_bytes: int) -> int:
    """Re-hash the next rows with ts > after_ts, oldest first; the ts of the last sound one, 0 when none is left.

    CorruptDataError where the first of them is not what was written.
    """
    try:
        rows = undamaged(connection, path, rows_after(connection, after_ts, limit=limit, max_bytes=max_bytes))
    except UnicodeDecodeError as error:
        raise CorruptDataError(f"{path}: the oplog holds text that is none: {error}") from error
    return rows[-1].ts if rows else 0


def _damaged(path: str, row: OplogRow, what: str) -> DamagedEntryError:
    return DamagedEntryError(
        f"{path}: the oplog entry {row.optime} is not the one that was written ({what})", row.optime
    )


def check_chain(connection: apsw.Connection, path: str, *, after_ts: int, limit: int) -> int | None:
    """Re-hash up to `limit` entries from the first row with ts >= after_ts on. Returns the ts of the last row checked,
    None when only one or none was left. The first row is taken as the base.

    CorruptDataError names the optime where hash or chain is not what the bytes give.
    """
    sql = f"SELECT {READ_COLUMNS} FROM oplog WHERE ts >= ? ORDER BY ts LIMIT ?"
    try:
        return _check_rows(rows_of(connection, sql, (after_ts, limit + 1)), path)
    except UnicodeDecodeError as error:
        raise CorruptDataError(f"{path}: the oplog holds text that is none: {error}") from error


def _check_rows(rows: Iterable[tuple[Any, ...]], path: str) -> int | None:
    previous: OplogRow | None = None
    checked: int | None = None
    for values in rows:
        row = OplogRow._make(values)
        if entry_hash(row.entry) != row.hash:
            raise _damaged(path, row, "hash")
        if previous is not None:
            if next_chain(previous.chain, row.hash) != row.chain:
                raise DamagedEntryError(f"{path}: the oplog's chain breaks at {row.optime}", row.optime)
            checked = row.ts
        previous = row
    return checked


def term_spans(connection: apsw.Connection) -> list[TermSpan]:
    """All terms that ever had an entry here, oldest first."""
    return [
        TermSpan(OpTime(term, first), None if last is None else OpTime(term, last))
        for term, first, last in rows_of(connection, "SELECT term, first_ts, last_ts FROM terms ORDER BY term")
    ]


ROW_BYTES = 400
"""What a row of the oplog takes in memory beside its entry: small entries are mostly that."""
DROP_PARTS = 32
"""The part of all rows that is dropped at once, a few hundred: more would hold the event loop."""


class OplogTail:
    """Holds the newest rows, since secondaries ask for these again and again.

    In order, without a gap up to the newest: about `max_bytes` of them.

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

    def row_at(self, ts: int) -> StoredRow | None:
        """The row with this `ts`, None when it is not in memory."""
        if not self.rows or ts < self.rows[0][0]:
            return None
        row = self.rows[bisect_right(self._places, ts) - 1]
        return row if row[0] == ts else None

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
