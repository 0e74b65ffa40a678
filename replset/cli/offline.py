"""Reads a member's oplog from another process, whether the member runs or not, by sqlite-utils.

Opens `mode=ro` and keeps no transaction longer than one page, so a running member's checkpoints are not held up.
Never for use inside a member's own process (see disk.py). For the command-line tools.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replset.errors import CappedPositionLostError, CorruptDataError, StorageError
from replset.ids import OPTIME_NULL, OpTime
from replset.oplog_row import READ_COLUMNS, OplogRow, TermSpan
from replset.storage import DATABASE_FILE
from replset.storage.schema import DATA_SCHEMA, load_sqlite_utils

if TYPE_CHECKING:
    from sqlite_utils import Database

_PAGE = 500


@dataclass(frozen=True, slots=True)
class OplogInfo:
    """first, last: optimes of the oldest and newest entry, OPTIME_NULL in an empty oplog. window_s: between them.

    entries: how many. bytes: of the entries alone. file_bytes: of the database file. trimmed_through: ts of the newest
    entry that was trimmed away, 0 for none. terms: first and last optime of every term.
    """

    first: OpTime
    last: OpTime
    first_wall_ms: int
    last_wall_ms: int
    window_s: int
    entries: int
    bytes: int
    file_bytes: int
    trimmed_through: int
    terms: tuple[TermSpan, ...]


def database_path(place: str | os.PathLike[str]) -> Path:
    """The database file of a dbpath, or `place` itself when it is a file. StorageError when there is none."""
    path = Path(place)
    found = path / DATABASE_FILE if path.is_dir() else path
    if not found.is_file():
        raise StorageError(f"no member's data at {place}: {found} does not exist")
    return found


class OfflineOplog:
    """One open file; a context manager."""

    def __init__(self, path: Path) -> None:
        """Use `open_oplog`."""
        self.path = path
        self._connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=10)
        self._db: Database = load_sqlite_utils()(self._connection)
        try:
            (version,) = self._one("PRAGMA user_version")
            (application_id,) = self._one("PRAGMA application_id")
        except StorageError:
            self.close()
            raise
        if application_id != DATA_SCHEMA.application_id or not 0 < version <= len(DATA_SCHEMA.steps):
            self.close()
            raise CorruptDataError(f"{path} is no member's database, or one of a newer version")

    def __enter__(self) -> OfflineOplog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    def newest(self) -> OpTime:
        """The newest optime; OPTIME_NULL in an empty oplog."""
        row = self._one("SELECT term, ts FROM oplog ORDER BY ts DESC LIMIT 1")
        return OPTIME_NULL if row is None else OpTime(*row)

    def info(self) -> OplogInfo:
        """Counts all entries: seconds on a large oplog."""
        first = self._one("SELECT term, ts, wall FROM oplog ORDER BY ts LIMIT 1") or (*OPTIME_NULL, 0)
        last = self._one("SELECT term, ts, wall FROM oplog ORDER BY ts DESC LIMIT 1") or (*OPTIME_NULL, 0)
        entries, size = self._one("SELECT count(*), total(length(entry)) FROM oplog")
        oldest, newest = OpTime(first[0], first[1]), OpTime(last[0], last[1])
        return OplogInfo(
            first=oldest,
            last=newest,
            first_wall_ms=first[2],
            last_wall_ms=last[2],
            window_s=max(0, last[2] - first[2]) // 1000,
            entries=entries,
            bytes=int(size),
            file_bytes=self.path.stat().st_size,
            trimmed_through=self._trimmed_through(),
            terms=tuple(
                TermSpan(OpTime(term, begin), None if end is None else OpTime(term, end))
                for term, begin, end in self._rows("SELECT term, first_ts, last_ts FROM terms ORDER BY term", [])
            ),
        )

    def rows(
        self, after: OpTime = OPTIME_NULL, *, limit: int | None = None, ns: str | None = None, op: str | None = None
    ) -> Iterator[OplogRow]:
        """Rows newer than `after`, oldest first; `ns` and `op` keep those that equal them.

        OPTIME_NULL: from the oldest there is. CappedPositionLostError when something after `after` was trimmed away.
        """
        if after != OPTIME_NULL and after.ts < self._trimmed_through():
            raise CappedPositionLostError(f"the oplog after {after} was trimmed away")
        filters = {"ns": ns, "op": op}
        wanted = {name: value for name, value in filters.items() if value is not None}
        where = "".join(f" AND {name} = ?" for name in wanted)
        sql = f"SELECT {READ_COLUMNS} FROM oplog WHERE ts > ?{where} ORDER BY ts LIMIT ?"
        place, left = after.ts, limit
        while left is None or left > 0:
            size = _PAGE if left is None else min(_PAGE, left)
            page = self._rows(sql, [place, *wanted.values(), size])
            for row in page:
                yield OplogRow._make(row)
            if len(page) < size:
                return
            place = page[-1][0]
            left = None if left is None else left - len(page)

    def newest_rows(self, count: int) -> list[OplogRow]:
        """The last `count` rows, oldest first."""
        sql = f"SELECT {READ_COLUMNS} FROM oplog ORDER BY ts DESC LIMIT ?"
        return [OplogRow._make(row) for row in reversed(self._rows(sql, [count]))]

    def _trimmed_through(self) -> int:
        row = self._one("SELECT value FROM meta WHERE name = 'trimmed_through'")
        return 0 if row is None else int(row[0])

    def _rows(self, sql: str, values: list[Any]) -> list[tuple[Any, ...]]:
        """All rows at once: the read transaction ends here."""
        try:
            return self._db.execute(sql, values).fetchall()
        except sqlite3.DatabaseError as error:
            raise _error(error, self.path) from error

    def _one(self, sql: str) -> Any:
        found = self._rows(sql, [])
        return found[0] if found else None


def open_oplog(place: str | os.PathLike[str]) -> OfflineOplog:
    """Open a dbpath, or a database file, read-only. StorageError, CorruptDataError."""
    path = database_path(place)
    try:
        return OfflineOplog(path)
    except sqlite3.DatabaseError as error:
        raise _error(error, path) from error


def _error(error: sqlite3.DatabaseError, path: Path) -> StorageError:
    if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_READONLY_ROLLBACK:  # a journal to be played back
        return StorageError(f"{path}: its member died in the middle of a write; start it once, then read")
    if isinstance(error, sqlite3.OperationalError):
        return StorageError(f"{path}: {error}")
    return CorruptDataError(f"{path} is damaged: {error}")
