"""The write-ahead log of a store: makes it durable and moves it into the database file (checkpoints).

`sync`, `checkpoint` and `last_pass` are for worker threads; all else belongs on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import apsw

from replset.errors import SnapshotCutError
from replset.storage.disk import WAL_SUFFIX, Disk
from replset.storage.sqlite import first_row, storage_error

_SALT_AT, _SALT_BYTES = 16, 8
"""Where the salt is in the WAL's header (SQLite's file format, section 4.1)."""


class Wal:
    """Counts the pages of one open store's WAL, and checkpoints them on a connection of its own."""

    def __init__(self, disk: Disk, path: str, checkpoint_bytes: int, limit_bytes: int) -> None:
        """path: of the database. See StoreOptions for the two sizes."""
        self._disk = disk
        self._path = path
        self._checkpoint_bytes = checkpoint_bytes
        self._limit_bytes = limit_bytes
        self._connection: apsw.Connection | None = None
        self._page_size = 0
        self._pages = 0
        self._passed_pages = 0
        self._copy_limits: list[int] = []

    def count_pages(self, connection: apsw.Connection) -> None:
        """Count what `connection` commits."""

        def on_commit(_connection: apsw.Connection, _name: str, pages: int) -> int:
            self._pages = pages
            return apsw.SQLITE_OK

        connection.pragma("wal_autocheckpoint", 0)
        connection.set_wal_hook(on_commit)

    def open(self) -> None:
        """Connect for checkpoints."""
        self._connection = self._disk.connect(self._path)
        self._connection.set_busy_timeout(100)
        self._connection.pragma("synchronous", "FULL")
        self._connection.pragma("wal_autocheckpoint", 0)
        self._page_size = int(first_row(self._connection, "PRAGMA page_size")[0])

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close(True)

    def extent(self) -> str | None:
        """Which WAL this is and how many pages it has, as `SALT:PAGES`; empty while it has none. See `find_cut`.

        None: another connection holds what tells it, so that what was noted before stays.
        """
        assert self._connection is not None
        try:
            pages, salt = _pages_of(self._connection), _salt_of(self._disk, self._path)
        except apsw.BusyError:
            return None
        except (apsw.Error, OSError) as error:
            raise storage_error(error, self._path + WAL_SUFFIX) from error
        return f"{salt}:{pages}" if salt and pages > 0 else ""

    def sync(self) -> None:
        """Make every commit so far durable. The caller reads last_applied on the loop before it."""
        try:
            self._disk.sync_file(self._path + WAL_SUFFIX)
        except OSError as error:
            raise storage_error(error, self._path + WAL_SUFFIX) from error

    @property
    def size(self) -> int:
        """Bytes of the WAL in use, not of its file."""
        return self._pages * (self._page_size + 24)

    @property
    def needs_checkpoint(self) -> bool:
        pages = self._pages
        if pages < self._passed_pages:
            self._passed_pages = 0
        return (pages - self._passed_pages) * self._page_size > self._checkpoint_bytes

    @property
    def needs_last_pass(self) -> bool:
        """Whether the WAL is over its limit: hold commits, cut the readers, and run `last_pass` in a worker.

        A copy that is being made may let it grow further, see `allow_growth`.
        """
        return self.size > max([self._limit_bytes, *self._copy_limits])

    def checkpoint(self) -> bool:
        """Copy the WAL into the database while commits go on. Never two at once.

        True when all of it was; then the next commit starts the WAL anew, if no reader is in it.
        """
        return self._checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE)

    def last_pass(self) -> bool:
        """Checkpoint while the loop holds commits; True when the WAL starts anew with the next commit.

        The long part, copying and syncing, is a passive pass, which takes no lock that a writer needs: with a
        restarting one, whoever writes meanwhile would find the store busy for as long as a slow disk syncs. After it
        only the readers at the WAL's end are left to wait for.
        """
        if not self._checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE):
            return False
        done = self._checkpoint(apsw.SQLITE_CHECKPOINT_RESTART)
        if done:
            self.started_anew()
        return done

    def started_anew(self) -> None:
        """Note that the WAL is empty, or will be with the next commit."""
        self._pages = self._passed_pages = 0

    def _checkpoint(self, mode: int) -> bool:
        assert self._connection is not None
        try:
            pages, done = self._connection.wal_checkpoint(mode=mode)
        except apsw.BusyError:
            return False
        except (apsw.Error, OSError) as error:
            raise storage_error(error, self._path) from error
        # Also what an old reader kept out of the database: that is for the last pass, not for one pass after another.
        self._passed_pages = max(pages, 0)
        return pages == done

    @contextmanager
    def allow_growth(self, by_bytes: int) -> Iterator[Callable[[], None]]:
        """Let the WAL grow over its limit by so much while a copy reads, which keeps it from starting anew.

        Gives a check that raises SnapshotCutError above that: then writing outruns copying, and without the check the
        WAL would fill the disk.
        """
        limit = self._limit_bytes + by_bytes

        def check() -> None:
            if self.size > limit:
                raise SnapshotCutError(f"the copy is given up: the WAL has grown to {self.size >> 20} MiB behind it")

        self._copy_limits.append(limit)
        try:
            yield check
        finally:
            self._copy_limits.remove(limit)


def find_cut(disk: Disk, path: str, connection: apsw.Connection, checkpointed: str) -> str:
    """Say what is wrong if pages are gone from the WAL of the database at `path` that a checkpoint copied; else empty.

    checkpointed: `Wal.extent` before the last one. What is left of a WAL that was cut would replace newer pages of the
    database by older ones, and entries and documents in the middle would be gone. A WAL that is not there, or a later
    one, says nothing.
    """
    salt, _, pages = checkpointed.partition(":")
    if not salt or salt != _salt_of(disk, path):
        return ""
    left = _pages_of(connection)
    if left >= int(pages):
        return ""
    return (
        f"{path}{WAL_SUFFIX} was cut: it has {left} pages, and {pages} when they were copied into {path}, which is not"
        " whole without them. Bring the file back, or empty the folder, and the member copies its data anew"
    )


def _pages_of(connection: apsw.Connection) -> int:
    pages, _ = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
    return int(pages)


def _salt_of(disk: Disk, path: str) -> str:
    """What tells a WAL from the one before it in the same file; empty where there is none."""
    wal = path + WAL_SUFFIX
    return disk.read_at(wal, _SALT_AT, _SALT_BYTES).hex() if disk.exists(wal) else ""
