"""The SQLite version that a member needs, small helpers for reading rows, and SQLite's failures as ReplErrors."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import apsw

from replset.errors import CorruptDataError, DataMismatchError, OutOfDiskSpaceError, StorageError, SyncFailedError

MIN_SQLITE = (3, 51, 3)
"""The oldest SQLite that may be used: before it, two connections could reset one WAL twice and lose commits."""
BUSY_MS = 2000
"""How long a connection that may wait waits for another connection's lock."""
_FAILED_SYNCS = (apsw.SQLITE_IOERR_FSYNC, apsw.SQLITE_IOERR_DIR_FSYNC)
PAGE_ROWS = 256
PAGE_BYTES = 256 << 10


def check_sqlite_version(found: str | None = None) -> None:
    """Raise StorageError when the SQLite that apsw brings is older than MIN_SQLITE. found: for tests."""
    found = found or apsw.sqlitelibversion()
    if tuple(int(part) for part in found.split(".")[:3]) < MIN_SQLITE:
        needed = ".".join(map(str, MIN_SQLITE))
        raise StorageError(
            f"SQLite {found} is too old: a member needs {needed} or newer (it comes with apsw; upgrade that)"
        )


def storage_error(error: Exception, path: str) -> StorageError | OutOfDiskSpaceError:
    """What an apsw.Error or OSError on the database `path` means to the rest of the member."""
    if isinstance(error, apsw.FullError) or is_disk_full(error):
        return OutOfDiskSpaceError(f"{path}: no space left on the disk")
    if isinstance(error, apsw.CorruptError | apsw.NotADBError | apsw.FormatError):
        return CorruptDataError(f"{path} is damaged: {error}")
    if isinstance(error, apsw.ConstraintError | apsw.MismatchError | apsw.SQLError):  # a row or a table too many or few
        return DataMismatchError(f"{path}: {type(error).__name__}: {error}")
    if getattr(error, "extendedresult", None) in _FAILED_SYNCS:
        return SyncFailedError(f"{path}: could not be synced: {error}")
    return StorageError(f"{path}: {type(error).__name__}: {error}")


def is_disk_full(error: BaseException) -> bool:
    """Whether the disk, or this user's quota, is full: what failed may succeed once there is space."""
    if isinstance(error, OutOfDiskSpaceError):
        return True
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def is_about_the_disk(error: Exception) -> bool:
    """Whether the machine failed: the disk, the file as a whole or the memory.

    Every other error of work on accepted entries is about what they meet in this member's file. It comes again at each
    start, so it must not end the member.
    """
    if isinstance(error, DataMismatchError):
        return False
    return isinstance(error, OSError | MemoryError | StorageError) or is_disk_full(error)


@contextmanager
def transaction(connection: apsw.Connection) -> Iterator[None]:
    """All of the block or nothing of it. Keeps the block's own error: on a full disk SQLite rolls back by itself."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def rows_of(connection: apsw.Connection, sql: str, values: tuple[Any, ...] = ()) -> Any:
    """An iterator of row tuples. Any, since only the schema knows their types."""
    return connection.execute(sql, values)


def first_row(connection: apsw.Connection, sql: str, values: tuple[Any, ...] = ()) -> Any:
    """The first row as a tuple, or None."""
    return next(connection.execute(sql, values), None)


def page_of(
    connection: apsw.Connection, sql: str, values: tuple[Any, ...], rows: int = PAGE_ROWS
) -> tuple[list[Any], bool]:
    """One page of rows, the document as the last column, from a SELECT with `LIMIT ?` at its end; and whether there may
    be more.

    Ends early behind PAGE_BYTES, so that a reader who wants no more of large documents has not read more.
    """
    page: list[Any] = []
    size = 0
    cursor = rows_of(connection, sql, (*values, rows))
    for row in cursor:
        page.append(row)
        size += len(row[-1])
        if size > PAGE_BYTES:
            cursor.close(True)
            return page, True
    return page, len(page) == rows
