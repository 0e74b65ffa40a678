"""A member's database file, the member running or not, read through ADBC's SQLite driver.

Only ever in another process than the member's. Opens `mode=ro`; a read transaction lasts as long as one span is read.
A folder in which no member runs gets SQLite's -shm and an empty -wal beside the file. Where they cannot be made, a file
without a -wal is read as one that nobody writes (`immutable`); one with a -wal is refused, since half of it would be
missing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from adbc_driver_manager import Error as AdbcError
from adbc_driver_sqlite import dbapi

from replset.ids import OPTIME_NULL, OpTime
from replset.storage import DATA_APPLICATION_ID, DATABASE_FILE
from spark.columns import FIELDS, arrow_schema
from spark.oplog import (
    ALL,
    Bounds,
    EntryFilter,
    OplogError,
    ReadPosition,
    Span,
    one_line,
    rolled_back_error,
    trimmed_error,
)
from spark.readers.btree import table_borders
from spark.readers.pieces import Piece, cut
from spark.readers.shared_file import shared_file

_BATCH_ROWS = 16_384
_ENTRY_ROWS = 2_048
_LARGE_BYTES = 32 << 10
"""Entries above it are fetched one by one, so that a batch stays below some 64 MiB whatever they are."""
_BUSY_MS = 2_000
_BORDERS_PER_PART = 16
_TAIL_ROWS = 50_000
_TAIL_PIECES = 1_000


@dataclass(frozen=True, slots=True)
class SqliteOplog:
    """`path`: of the database file. pinned: the bounds to keep to."""

    name: str
    path: str
    pinned: Bounds | None = None

    def pin(self) -> SqliteOplog:
        return self if self.pinned else replace(self, pinned=self.bounds())

    def bounds(self) -> Bounds:
        if self.pinned:
            return self.pinned
        with self._open() as opened:
            oldest, newest, trimmed = opened.oldest(), opened.newest(), opened.trimmed_through()
            if newest.optime == OPTIME_NULL:
                return Bounds(trimmed_through=trimmed)
            rows = round(sum(piece.rows for piece in opened.pieces(oldest.ts, newest.optime.ts + 1, 1)))
            return Bounds(oldest, newest.optime, rows, trimmed, newest.chain)

    def count(self, span: Span) -> int:
        return round(sum(piece.rows for piece in self._pieces(span, 1)))

    def split(self, span: Span, parts: int) -> list[Span]:
        return cut(span, self._pieces(span, parts) if parts > 1 else [], parts)

    def read(self, span: Span, columns: Sequence[str], only: EntryFilter = ALL) -> Iterator[pa.RecordBatch]:
        if self.pinned:
            span = self.pinned.within(span)
        if span.first_ts >= span.end_ts:
            return
        with self._open() as opened:
            trimmed = opened.trimmed_through()
            if trimmed >= span.first_ts > 0:
                raise trimmed_error(self.name, trimmed)
            if self.pinned:
                opened.check(ReadPosition(self.pinned.newest, self.pinned.chain))
            yield from opened.read(span, columns, only)

    def follow(self, after: ReadPosition, limit: int) -> ReadPosition:
        with self._open() as opened:
            trimmed = opened.trimmed_through()
            if trimmed > after.optime.ts > 0:
                raise trimmed_error(self.name, trimmed)
            if after.optime.ts > trimmed:
                opened.check(after)
            return opened.ahead(after, limit)

    def between(self, after: ReadPosition, end: ReadPosition) -> SqliteOplog:
        first = OpTime(after.optime.term, after.optime.ts + 1)
        return replace(self, pinned=Bounds(first, end.optime, chain=end.chain))

    def _pieces(self, span: Span, parts: int) -> list[Piece]:
        with self._open() as opened:
            oldest, newest = opened.oldest().ts, opened.newest().optime.ts
            if self.pinned:
                oldest, newest = max(oldest, self.pinned.oldest.ts), min(newest, self.pinned.newest.ts)
            return opened.pieces(max(span.first_ts, oldest), min(span.end_ts, newest + 1), parts)

    @contextmanager
    def _open(self) -> Iterator[_OpenFile]:
        with open_database(self.name, self.path) as connection:
            yield _OpenFile(self.name, self.path, connection)


@dataclass(frozen=True, slots=True)
class _OpenFile:
    name: str
    path: str
    connection: dbapi.Connection

    def oldest(self) -> OpTime:
        row = self._first("SELECT term, ts FROM oplog ORDER BY ts LIMIT 1")
        return OpTime(*row) if row else OPTIME_NULL

    def newest(self) -> ReadPosition:
        row = self._first("SELECT term, ts, chain FROM oplog ORDER BY ts DESC LIMIT 1")
        return ReadPosition(OpTime(row[0], row[1]), row[2]) if row else ReadPosition(OPTIME_NULL, None)

    def trimmed_through(self) -> int:
        row = self._first("SELECT CAST(value AS INTEGER) FROM meta WHERE name = 'trimmed_through'")
        return row[0] if row else 0

    def check(self, mark: ReadPosition) -> None:
        """That this entry is still there, on the same history."""
        if mark.chain is not None:
            row = self._first("SELECT term, chain FROM oplog WHERE ts = ?", mark.optime.ts)
            if row != (mark.optime.term, mark.chain):
                raise rolled_back_error(self.name, mark.optime)

    def ahead(self, after: ReadPosition, limit: int) -> ReadPosition:
        """The entry `limit` behind this one, or the newest."""
        behind = "SELECT term, ts, chain FROM oplog WHERE ts > ? ORDER BY ts LIMIT ?"
        row = self._first(f"SELECT * FROM ({behind}) ORDER BY ts DESC LIMIT 1", after.optime.ts, limit)
        return ReadPosition(OpTime(row[0], row[1]), row[2]) if row else after

    def pieces(self, begin: int, end: int, parts: int) -> list[Piece]:
        """[begin, end) in pieces much smaller than a part, without a walk over the table."""
        if begin >= end:
            return []
        root = self._first("SELECT rootpage FROM sqlite_schema WHERE name = 'oplog'")
        borders = table_borders(self.path, root[0] if root else 0, begin, end - 1, _BORDERS_PER_PART * parts)
        pieces, start = [], begin
        for key in borders.keys:
            pieces.append(Piece(start, key + 1, borders.rows_between))
            start = key + 1
        return [*pieces, *self._tail(start, end, borders.rows_between)]

    def _tail(self, begin: int, end: int, rows: float) -> list[Piece]:
        """The pieces behind the last border: what is below the last page, about `rows`, and what only the -wal has."""
        with self.connection.cursor() as cursor:
            sql = "SELECT ts FROM oplog WHERE ts >= ? AND ts < ? ORDER BY ts LIMIT ?"
            cursor.execute(sql, [begin, end, _TAIL_ROWS])
            stamps = cursor.fetch_arrow_table().column(0).to_pylist()
        if not stamps:
            return []
        step = 1 + len(stamps) // _TAIL_PIECES
        firsts = stamps[::step]
        ends = [*firsts[1:], stamps[-1] + 1]
        pieces = [Piece(first, behind, step) for first, behind in zip(firsts, ends, strict=True)]
        pieces[-1] = pieces[-1]._replace(rows=1 + (len(stamps) - 1) % step)
        if len(stamps) == _TAIL_ROWS and stamps[-1] + 1 < end:
            left = max(rows - _TAIL_ROWS, self._rows_in_wal(stamps[-1]))
            pieces.append(Piece(stamps[-1] + 1, end, left))
        return pieces

    def _rows_in_wal(self, after: int) -> float:
        """At most, as large as the entries behind `after` are."""
        lengths = f"SELECT length(entry) AS bytes FROM oplog WHERE ts > {after} ORDER BY ts LIMIT 100"
        row = self._first(f"SELECT sum(bytes), count(*) FROM ({lengths})")
        return _size(self.path + "-wal") * row[1] / row[0] if row and row[1] else 0.0

    def read(self, span: Span, columns: Sequence[str], only: EntryFilter) -> Iterator[pa.RecordBatch]:
        with_entry = "entry" in columns
        asked = tuple(columns) if "ts" in columns or not with_entry else (*columns, "ts")
        where, values = _chosen(span, only)
        with self.connection.cursor() as cursor:
            rows = _ENTRY_ROWS if with_entry else _BATCH_ROWS
            cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": rows})
            cursor.execute(f"SELECT {', '.join(map(_expression, asked))} FROM oplog WHERE {where} ORDER BY ts", values)
            with cursor.fetch_record_batch() as batches:
                for batch in batches:
                    if batch.num_rows:
                        typed = self._typed(batch, columns)
                        yield from self._with_large(typed, batch.column(asked.index("ts"))) if with_entry else (typed,)

    def _typed(self, batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
        arrays = []
        for name, array in zip(columns, batch.columns, strict=False):
            if array.type != FIELDS[name]:  # the driver takes the type from what it finds
                reason = f"{self.path} is damaged: its column {name} holds {array.type} where {FIELDS[name]} should be"
                raise OplogError(self.name, reason)
            arrays.append(_empty_as_null(array) if name == "key" else array)
        return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))

    def _with_large(self, batch: pa.RecordBatch, stamps: pa.Array) -> Iterator[pa.RecordBatch]:
        """The batch with the entries put in that were too large for it, each in a batch of its own."""
        at = batch.schema.get_field_index("entry")
        large = pc.equal(pc.binary_length(batch.column(at)), 0)
        start = 0
        for number in pc.indices_nonzero(large).to_pylist() if large.true_count else ():
            if start < number:
                yield batch.slice(start, number - start)
            entry = self._first("SELECT entry FROM oplog WHERE ts = ?", stamps[number].as_py())
            if entry is None:
                raise OplogError(
                    self.name, f"{self.path} is damaged: it holds entries that it does not find by their ts"
                )
            yield batch.slice(number, 1).set_column(at, batch.schema.field(at), pa.array(entry, pa.binary()))
            start = number + 1
        if start < batch.num_rows:
            yield batch.slice(start)

    def _first(self, sql: str, *values: int) -> tuple[Any, ...] | None:
        with self.connection.cursor() as cursor:
            cursor.execute(sql, values or None)
            row: tuple[Any, ...] | None = cursor.fetchone()
            return row


def database_file(oplog: str) -> Path | None:
    """The database file of a dbpath, or the text itself when it is a file; None when there is none."""
    path = Path(oplog)
    found = path / DATABASE_FILE if path.is_dir() else path
    return found if found.is_file() else None


@contextmanager
def open_database(name: str, path: str) -> Iterator[dbapi.Connection]:
    """Open a member's database file to read it. All questions inside are answered from one state of the file.

    The driver's errors become OplogErrors.
    """
    try:
        if not Path(path).is_file():
            raise OplogError(name, f"{path} {'is no file' if Path(path).exists() else 'does not exist'}")
        with shared_file(path), _connect(name, path) as connection, connection.cursor() as cursor:
            cursor.execute("PRAGMA application_id")
            if cursor.fetchone() != (DATA_APPLICATION_ID,):
                raise OplogError(name, f"{path} is no member's database")
            yield connection
    except (AdbcError, pa.ArrowException, OSError) as error:
        raise OplogError(name, _reason(error, path)) from error


def _connect(name: str, path: str) -> dbapi.Connection:
    """A connection inside a transaction: the driver begins one at once."""
    uri = f"{Path(path).absolute().as_uri()}?mode=ro"
    try:
        return _connect_to(uri)
    except AdbcError as error:
        if "unable to open" not in str(error):
            raise
        if _size(f"{path}-wal"):
            raise OplogError(name, _UNREADABLE_WAL.format(path=path)) from error
        return _connect_to(f"{uri}&immutable=1")


def _connect_to(uri: str) -> dbapi.Connection:
    connection = dbapi.connect(uri)
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
            cursor.execute("SELECT count(*) FROM sqlite_schema")
            cursor.fetchone()
    except AdbcError:
        connection.close()
        raise
    return connection


def _expression(column: str) -> str:
    """How it is asked for. The driver takes a type from what it finds, so that nothing may be null or missing."""
    if column == "key":
        return "coalesce(key, x'') AS key"
    if column == "entry":
        return f"CASE WHEN length(entry) <= {_LARGE_BYTES} THEN entry ELSE x'' END AS entry"
    return column


def _chosen(span: Span, only: EntryFilter) -> tuple[str, list[int | str]]:
    """The condition and its values."""
    where = "ts >= ? AND ts < ?"
    values: list[int | str] = [span.first_ts, span.end_ts, *only.ns, *only.op]
    for column, wanted in (("ns", only.ns), ("op", only.op)):
        if wanted:
            where += f" AND {column} IN ({', '.join('?' * len(wanted))})"
    return where, values


def _empty_as_null(array: pa.Array) -> pa.Array:
    empty = pc.equal(pc.binary_length(array), 0)
    return pc.if_else(empty, pa.scalar(None, pa.binary()), array) if empty.true_count else array


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _reason(error: Exception, path: str) -> str:
    """The driver's error in one line that explains what is wrong with the file."""
    text = one_line(error).rpartition("query: ")[2].removeprefix("[SQLite] ")
    for sign, meaning in _MEANINGS.items():
        if sign in text:
            return f"{path} {meaning} ({text})"
    return f"{path}: {text}"


_MEANINGS = {
    "not a database": "is no member's database",
    "no such table": "is no member's database",
    "no such column": "is no member's database",
    "malformed": "is damaged",
    "readonly database": "was left by a member that died in the middle of a write; start it once, then read",
    "Type mismatch": "is damaged: a column holds another type than it should",
    "locked": "is locked by another process",
    "unable to open": "cannot be opened",
}
_UNREADABLE_WAL = (
    "{path} cannot be opened: its -wal holds entries that the file does not have yet, and the folder cannot be "
    "written; copy {path} and {path}-wal to a folder that can be"
)
