"""Makes copies of the database for an initial sync, and installs them on another member. A witness gets the oplog
alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

import apsw

from replset.errors import CorruptDataError, ErrorCode, ReplError
from replset.ids import OPTIME_NULL, OpTime
from replset.oplog_row import READ_COLUMNS
from replset.storage import DATABASE_FILE, oplog
from replset.storage.disk import SHM_SUFFIX, WAL_SUFFIX, Disk, file_sha256
from replset.storage.schema import DATA_SCHEMA, SESSIONS_UUID, collection_table
from replset.storage.sqlite import first_row, rows_of, storage_error, transaction
from replset.storage.txn import INDEX, read_meta, write_meta

_PAGES_A_STEP = 1024
_ROWS_A_STEP = 1000
OPLOG_ONLY = "oplog_only"
"""meta of a witness's database: 1. A member goes by this, not by its role, to know whether there are documents."""


@dataclass(frozen=True, slots=True)
class CopyInfo:
    """size: bytes. sha256: hex digits. newest: the newest entry in the copy."""

    size: int
    sha256: str
    newest: OpTime


def copy_database(
    disk: Disk, source_path: str, path: str, pause: Callable[[], None] | None, *, hashed: bool = True
) -> CopyInfo:
    """See Store.copy_to. One read transaction from beginning to end, so commits meanwhile do not show."""

    def fill(source: apsw.Connection, target: apsw.Connection) -> None:
        with target.backup("main", source, "main") as backup:
            while not backup.done:
                backup.step(_PAGES_A_STEP)
                if pause is not None:
                    pause()

    return _copy(disk, source_path, path, fill, hashed=hashed)


def copy_oplog(
    disk: Disk, source_path: str, path: str, committed_ts: int, max_bytes: int, pause: Callable[[], None]
) -> CopyInfo:
    """See Store.copy_to: a database for a witness, without documents.

    It has the newest entries, `max_bytes` of them, and always those from the commit point on: every rollback ends there
    or above, and looks for its common point in them.
    """

    def fill(source: apsw.Connection, target: apsw.Connection) -> None:
        _make_schema(source, target)
        with transaction(target):
            _fill_oplog(source, target, committed_ts, max_bytes, pause)
            for name in ("rollback_id", "commit_point"):
                write_meta(target, name, read_meta(source, name))

    return _copy(disk, source_path, path, fill)


def copy_frame(
    disk: Disk,
    source_path: str,
    path: str,
    committed_ts: int,
    needed_ts: int,
    max_bytes: int,
    pause: Callable[[], None],
) -> CopyInfo:
    """Write everything of a copy but documents and index entries, for a member that has most of these (differences.py).

    Of the oplog as in `copy_oplog`, and all from needed_ts on; of the undo what a rollback to the commit point or above
    needs. ReplError: that changes an index, which has another number on each member.
    """

    def fill(source: apsw.Connection, target: apsw.Connection) -> None:
        pruned = read_meta(source, "pruned_through")
        floor = max(committed_ts, pruned if isinstance(pruned, int) else 0)
        if first_row(source, "SELECT 1 FROM undo WHERE ts > ? AND kind = ? LIMIT 1", (floor, INDEX)) is not None:
            raise ReplError("an index was changed a moment ago", code=ErrorCode.CONFLICTING_OPERATION_IN_PROGRESS)
        _make_schema(source, target)
        with transaction(target):
            for table in ("catalog", "indexes", "capped", "meta"):
                _copy_rows(source, target, table, "", ())
            for table in ("undo", "name_changes"):
                _copy_rows(source, target, table, "WHERE ts > ?", (floor,))
            _fill_oplog(source, target, min(committed_ts, needed_ts), max_bytes, pause)
            size, newest = first_row(target, "SELECT total(length(entry)), max(ts) FROM oplog")
            for name, value in (("pruned_through", floor), ("oplog_bytes", int(size)), ("oplog_counted_to", newest)):
                write_meta(target, name, value)

    return _copy(disk, source_path, path, fill)


def _fill_oplog(
    source: apsw.Connection, target: apsw.Connection, committed_ts: int, max_bytes: int, pause: Callable[[], None]
) -> None:
    """Copy the newest entries and all terms, and note that there are no documents."""
    first, size = 0, 0
    for ts, length in rows_of(source, "SELECT ts, length(entry) FROM oplog ORDER BY ts DESC"):
        size += length
        if size > max_bytes and ts < committed_ts:
            break
        first = ts
    rows = rows_of(source, f"SELECT {READ_COLUMNS} FROM oplog WHERE ts >= ? ORDER BY ts", (first,))
    while batch := list(islice(rows, _ROWS_A_STEP)):
        target.executemany("INSERT INTO oplog VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", batch)
        pause()
    _copy_rows(source, target, "terms", "", ())
    before = first_row(source, "SELECT max(ts) FROM oplog WHERE ts < ?", (first,))[0]
    write_meta(target, "trimmed_through", before or read_meta(source, "trimmed_through"))
    write_meta(target, OPLOG_ONLY, 1)


def _copy_rows(
    source: apsw.Connection, target: apsw.Connection, table: str, where: str, values: tuple[int, ...]
) -> None:
    for row in rows_of(source, f"SELECT * FROM {table} {where}", values):
        target.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)


def _make_schema(source: apsw.Connection, target: apsw.Connection) -> None:
    """Make the source's tables and indexes, but for those of its collections and their indexes."""
    sql = (
        "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL AND type IN ('table', 'index')"
        " AND (tbl_name = ? OR tbl_name NOT GLOB 'd_*' AND tbl_name NOT GLOB 'i_*') ORDER BY type = 'index'"
    )
    for (statement,) in list(rows_of(source, sql, (collection_table(SESSIONS_UUID),))):
        target.execute(statement)
    for name in ("application_id", "user_version"):
        target.pragma(name, source.pragma(name))


@contextmanager
def open_copy(disk: Disk, path: str, *, read_only: bool = False) -> Iterator[apsw.Connection]:
    """Open a file that is no member's database yet or any more. Its errors become StorageErrors."""
    try:
        connection = disk.connect(path, read_only=read_only)
        try:
            yield connection
        finally:
            connection.close(True)
    except (apsw.Error, OSError) as error:
        raise storage_error(error, path) from error


def _copy(
    disk: Disk,
    source_path: str,
    path: str,
    fill: Callable[[apsw.Connection, apsw.Connection], None],
    *,
    hashed: bool = True,
) -> CopyInfo:
    """Have `fill` write the file at `path` from one read transaction of the source; sync it. hashed: or no SHA-256."""
    disk.remove(path)
    source = disk.connect(source_path)
    try:
        target = disk.connect(path)
        try:
            target.pragma("journal_mode", "off")
            target.pragma("synchronous", "off")  # synced once, below
            source.execute("BEGIN")
            row = first_row(source, "SELECT term, ts FROM oplog ORDER BY ts DESC LIMIT 1")
            fill(source, target)
        finally:
            target.close(True)
        disk.sync_file(path)
        disk.sync_folder(os.path.dirname(path))
        sha256 = file_sha256(disk, path) if hashed else ""
        return CopyInfo(disk.size(path), sha256, OPTIME_NULL if row is None else OpTime(*row))
    except BaseException as error:
        disk.remove(path)
        if isinstance(error, apsw.Error | OSError):
            raise storage_error(error, path) from error
        raise
    finally:
        if source.in_transaction:
            source.execute("ROLLBACK")
        source.close(True)


def install_copy(
    disk: Disk,
    dbpath: str | os.PathLike[str],
    copy_path: str,
    *,
    rollback_id_before: int,
    check_entries: int = 1000,
    keep_indexes: bool = True,
) -> None:
    """Put a copy in the place of the database. The store is closed, the marker in member.db is set, the lock held.

    rollback_id_before: the store's before this sync, 0 for none. A crash at any moment leaves the old database, the
    copy, or no database, and the marker says that it is not to be trusted. CorruptDataError when the copy does not pass
    its checks; check_entries 0: it did before. keep_indexes: False for a member with buildIndexes: false.
    """
    folder = os.fspath(dbpath)
    path = os.path.join(folder, DATABASE_FILE)
    try:
        _prepare_copy(disk, copy_path, rollback_id_before, keep_indexes)
        disk.sync_file(copy_path)
        if disk.exists(path + WAL_SUFFIX) and disk.size(path + WAL_SUFFIX):
            # It was closed without a whole checkpoint (a full disk): some of its pages are in the WAL alone. Without
            # that it may not open at all, and a start after a crash would end here for ever. Without any database a
            # start makes an empty one, and the marker has it copied; what only this one held was exported before.
            disk.remove(path)
            disk.sync_folder(folder)
        disk.remove(path + WAL_SUFFIX)
        disk.remove(path + SHM_SUFFIX)
        disk.sync_folder(folder)
        disk.rename(copy_path, path)
        disk.sync_folder(folder)
    except (apsw.Error, OSError) as error:
        raise storage_error(error, copy_path) from error
    if check_entries:
        check_database(disk, path, check_entries)


def _prepare_copy(disk: Disk, copy_path: str, rollback_id_before: int, keep_indexes: bool) -> None:
    """Change the copy before it replaces the database: raise the rollback id above both, drop the source's marks.

    Indexes that are not kept are hidden, and their entries removed little by little (retention.py). No rollback brings
    one back: it would lack what was written meanwhile.
    """
    with open_copy(disk, copy_path) as connection:
        # No WAL beside the copy: its name changes, and only the one file is moved.
        connection.pragma("journal_mode", "delete")
        if connection.pragma("application_id") != DATA_SCHEMA.application_id:
            raise CorruptDataError(f"{copy_path} is no copy of a member's database")
        with transaction(connection):
            theirs = read_meta(connection, "rollback_id")
            # If the id stayed the same, whoever compares its oplog with this member's meanwhile would take answers
            # about the old data and about the copy for answers about one oplog (`CommonPoint`).
            write_meta(connection, "rollback_id", max(theirs if isinstance(theirs, int) else 1, rollback_id_before) + 1)
            write_meta(connection, "rollbacks_done", None)
            if not keep_indexes:
                connection.execute("UPDATE indexes SET dropped_ts = 0")
                connection.execute("DELETE FROM undo WHERE kind = ?", (INDEX,))
    disk.remove(copy_path + WAL_SUFFIX)
    disk.remove(copy_path + SHM_SUFFIX)


def check_database(disk: Disk, path: str, entries: int) -> None:
    """SQLite's quick_check, and the chain over the newest `entries`; CorruptDataError. For a worker."""
    with open_copy(disk, path) as connection:
        (found,) = first_row(connection, "PRAGMA quick_check(1)")
        if found != "ok":
            raise CorruptDataError(f"{path} is damaged: {found}")
        row = first_row(connection, "SELECT ts FROM oplog ORDER BY ts DESC LIMIT 1 OFFSET ?", (entries,)) or (0,)
        oplog.check_chain(connection, path, after_ts=row[0], limit=entries)
