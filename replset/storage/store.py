"""The replicated data of one member: documents, oplog, catalog and undo in DBPATH/replset.db.

One write connection, used on the event loop's thread only; a group of operations and its oplog and undo rows commit
in one transaction. Everything here is synchronous. `sync_wal`, `checkpoint`, `last_pass`, `snapshot_to` and snapshots
are for worker threads; all else belongs on the loop. The lock on the folder is `lock_dbpath`, taken before `open`.
Numbers of hash and chain are signed 64-bit everywhere.
"""

from __future__ import annotations

import logging
import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

import apsw

from replset.errors import CorruptDataError, OutOfDiskSpaceError, SnapshotCutError, StorageError, StoreBusyError
from replset.ids import OPTIME_NULL, OpTime, invariant
from replset.oplog_row import OplogRow, TermSpan
from replset.storage import copies, housekeeping, oplog, undo
from replset.storage.catalog import Catalog, Collection, load_catalog
from replset.storage.copies import CopyInfo
from replset.storage.disk import WAL_SUFFIX, Disk, Lock
from replset.storage.layout import DATABASE_FILE, LOCK_FILE
from replset.storage.schema import DATA_SCHEMA, check_schema, ensure_schema
from replset.storage.snapshot import Snapshot
from replset.storage.sqlite import check_sqlite_version, first_row, storage_error, transaction
from replset.storage.txn import Head, Txn, read_meta, write_meta
from replset.storage.undo import RollbackMark

log = logging.getLogger("replset.storage")

_BUSY_MS = 2000
_MAX_IDLE_READERS = 4


def lock_dbpath(disk: Disk, dbpath: str | os.PathLike[str]) -> Lock:
    """Make the folder when it is missing and take its lock; DbPathLockedError when another process holds it."""
    folder = os.fspath(dbpath)
    disk.make_folder(folder)
    return disk.lock(os.path.join(folder, LOCK_FILE))


ROW_BYTES = 700
"""What a row of the oplog takes in memory beside its entry: small entries are mostly that."""

RECHECK_ROWS, RECHECK_BYTES = 200, 256 << 10
"""A slice of the oplog that is compared with its hashes anew: about a millisecond."""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """oplog_max_bytes, oplog_min_retention_s: the oplog's head is trimmed when its entries take more than the first
    and are older than the second. snapshot_history_s: how long undo is kept for reads at old points.
    min_free_bytes: with less on the disk, groups are refused. checkpoint_bytes: WAL bytes between two checkpoints;
    wal_limit_bytes: above it the loop should hold commits for a last pass. tail_bytes: newest entries kept in memory.
    """

    oplog_max_bytes: int = 990 << 20
    oplog_min_retention_s: float = 0
    snapshot_history_s: int = 300
    min_free_bytes: int = 256 << 20
    checkpoint_bytes: int = 16 << 20
    wal_limit_bytes: int = 256 << 20
    cache_bytes: int = 64 << 20
    tail_bytes: int = 8 << 20


class Pin:
    """Keeps the undo for reads at one point until released. Cursors hold one of these, never a transaction."""

    def __init__(self, at: OpTime, release: Callable[[Pin], None]) -> None:
        self.at = at
        self._release = release

    def release(self) -> None:
        """Nothing happens the second time."""
        self._release(self)


class Group:
    """`with store.group() as txn:` one transaction. See Store.group."""

    __slots__ = ("_store", "_txn")

    def __init__(self, store: Store) -> None:
        self._store = store

    def __enter__(self) -> Txn:
        self._txn = self._store._begin()
        return self._txn

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._store._commit(self._txn)
        else:
            self._store._abort(error)


class Store:
    """See the module. Attributes to read: last_applied, last_wall_ms, chain, oldest, rollback_id, pruned_through."""

    def __init__(self, disk: Disk, dbpath: str, options: StoreOptions) -> None:
        """Use `Store.open`."""
        self.disk = disk
        self.dbpath = dbpath
        self.path = os.path.join(dbpath, DATABASE_FILE)
        self.options = options
        self.commit_point = OPTIME_NULL
        self._head = Head()
        self._catalog = Catalog([])
        self._in_group = False
        self._closed = False
        self._wal_pages = 0
        self._passed_pages = 0
        self._pins: set[Pin] = set()
        self._snapshots: set[Snapshot] = set()
        self._idle_readers: list[apsw.Connection] = []
        self._guard = threading.Lock()
        self._copy_limits: dict[object, int] = {}
        self._tail: list[OplogRow] = []
        self._tail_size = 0
        self.oplog_bytes = 0
        self.counted_bytes = 0
        self.undone_entries = 0
        """How many entries undo steps have taken back since this store was opened."""

    @classmethod
    def open(cls, disk: Disk, dbpath: str | os.PathLike[str], options: StoreOptions | None = None) -> Store:
        """Open or create; on return everything found is durable (a full checkpoint synced WAL and database).

        CorruptDataError names the file and what is wrong with it; StorageError otherwise.
        """
        check_sqlite_version()
        store = cls(disk, os.fspath(dbpath), options or StoreOptions())
        disk.make_folder(store.dbpath)
        try:
            store._connect()
        except (apsw.Error, OSError) as error:
            store._abandon()
            raise storage_error(error, store.path) from error
        except StorageError:
            store._abandon()
            raise
        return store

    def _connect(self) -> None:
        self._connection = connection = self.disk.connect(self.path)
        connection.set_busy_timeout(_BUSY_MS)
        check_schema(connection, DATA_SCHEMA, self.path)
        mode = connection.pragma("journal_mode", "wal")
        if mode != "wal":
            raise StorageError(f"{self.path}: the file system does not carry a WAL (journal_mode {mode})")
        connection.pragma("synchronous", "NORMAL")
        connection.pragma("cache_size", -(self.options.cache_bytes >> 10))
        connection.pragma("temp_store", "MEMORY")
        connection.pragma("journal_size_limit", self.options.wal_limit_bytes)
        connection.pragma("wal_autocheckpoint", 0)
        connection.set_wal_hook(self._on_commit)
        ensure_schema(connection, DATA_SCHEMA, self.path)
        # A write makes sure that the WAL exists, so that the folder's sync below covers its name: later commits are
        # synced through the file alone.
        with transaction(connection):
            opened = read_meta(connection, "opened")
            write_meta(connection, "opened", (opened if isinstance(opened, int) else 0) + 1)
        self._checkpointer = self.disk.connect(self.path)
        self._checkpointer.set_busy_timeout(100)
        self._checkpointer.pragma("synchronous", "FULL")
        self._checkpointer.pragma("wal_autocheckpoint", 0)
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        self.disk.sync_folder(self.dbpath)
        # From here on this connection is used on the loop, which never waits for a lock: see StoreBusyError.
        connection.set_busy_timeout(0)
        self._wal_pages = 0
        self._page_size = int(first_row(connection, "PRAGMA page_size")[0])
        self._load()

    def _abandon(self) -> None:
        for name in ("_checkpointer", "_connection"):
            connection = getattr(self, name, None)
            if connection is not None:
                connection.close(True)
        self._closed = True

    def _on_commit(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def _load(self) -> None:
        """Take everything that is kept in memory from the file."""
        connection = self._connection
        newest, oldest = oplog.newest_row(connection), oplog.oldest_row(connection)
        self._head = Head() if newest is None else Head(newest.optime, newest.wall_ms, newest.chain)
        self.oldest: OpTime = OPTIME_NULL if oldest is None else oldest.optime
        self.oldest_wall_ms: int = 0 if oldest is None else oldest.wall_ms
        self._catalog = Catalog(load_catalog(connection))
        self.rollback_id = self._int_meta("rollback_id", 1)
        self.pruned_through = self._int_meta("pruned_through", 0)
        self.trimmed_through = self._int_meta("trimmed_through", 0)
        noted = read_meta(connection, "commit_point")
        self._noted_commit_point = OPTIME_NULL if noted is None else OpTime.parse(str(noted))
        self._tail, self._tail_size = [], 0
        counted_to = self._int_meta("oplog_counted_to", 0)
        later = first_row(connection, "SELECT total(length(entry)) FROM oplog WHERE ts > ?", (counted_to,))[0]
        self.counted_bytes = self._int_meta("oplog_bytes", 0)
        self.oplog_bytes = self.counted_bytes + int(later)

    def _int_meta(self, name: str, default: int) -> int:
        value = read_meta(self._connection, name)
        if value is None:
            return default
        if not isinstance(value, int):
            raise CorruptDataError(f"{self.path}: meta {name} is no number")
        return value

    # --- where this member is

    @property
    def last_applied(self) -> OpTime:
        return self._head.optime

    @property
    def last_wall_ms(self) -> int:
        return self._head.wall_ms

    @property
    def chain(self) -> int:
        """The chain of the newest entry, signed 64-bit."""
        return self._head.chain

    # --- writing

    def has_room(self) -> bool:
        """Whether groups are taken: the disk has min_free_bytes left or more."""
        try:
            return self.disk.free_bytes(self.dbpath) >= self.options.min_free_bytes
        except OSError as error:
            raise storage_error(error, self.dbpath) from error

    def group(self) -> Group:
        """One transaction: `with store.group() as txn`. At its end it is committed, on an exception taken back.

        A failed COMMIT fails the group, and what is kept in memory is loaded from the file again. Raises
        OutOfDiskSpaceError before anything is done while the disk is nearly full; StorageError.
        """
        return Group(self)

    def _begin(self) -> Txn:
        invariant(not self._in_group and not self._closed, "one group at a time, on an open store")
        if not self.has_room():
            raise OutOfDiskSpaceError(
                f"writes are refused: the disk of {self.dbpath} has less than"
                f" {self.options.min_free_bytes >> 20} MiB free"
            )
        return self._begin_unchecked()

    def _begin_unchecked(self) -> Txn:
        """For what has to go on, or makes room, while the disk is nearly full: undo, pruning, trimming."""
        invariant(not self._in_group and not self._closed, "one group at a time, on an open store")
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except apsw.BusyError as error:
            raise StoreBusyError(f"{self.path}: another connection holds the write lock") from error
        except apsw.Error as error:
            raise storage_error(error, self.path) from error
        self._in_group = True
        return Txn(self._connection, self._catalog, self._head)

    def _commit(self, txn: Txn) -> None:
        try:
            rows = txn.flush()
            self._connection.execute("COMMIT")
        except BaseException as error:
            self._abort(error)
            raise
        self._in_group = False
        if rows:
            self._note_rows(rows)

    def _note_rows(self, rows: list[OplogRow]) -> None:
        newest = rows[-1]
        self._head = Head(newest.optime, newest.wall_ms, newest.chain)
        size = sum([len(row.entry) for row in rows])
        self.oplog_bytes += size
        if self.oldest is OPTIME_NULL:
            self.oldest, self.oldest_wall_ms = rows[0].optime, rows[0].wall_ms
        self._tail += rows
        self._tail_size += size + ROW_BYTES * len(rows)
        if self._tail_size > 2 * self.options.tail_bytes:
            self._shorten_tail()

    def _shorten_tail(self) -> None:
        kept, size = len(self._tail), 0
        while kept and size < self.options.tail_bytes:
            kept -= 1
            size += len(self._tail[kept].entry) + ROW_BYTES
        del self._tail[:kept]
        self._tail_size = size

    def _abort(self, error: BaseException) -> None:
        """Take the open transaction back; raises what an apsw.Error or OSError means."""
        self._in_group = False
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            newest = oplog.newest_row(self._connection)
            if self._head == (Head() if newest is None else Head(newest.optime, newest.wall_ms, newest.chain)):
                self._catalog = Catalog(load_catalog(self._connection))
            else:
                self._load()
        except apsw.Error as second:
            raise storage_error(second, self.path) from error
        if isinstance(error, apsw.Error | OSError):
            raise storage_error(error, self.path) from error

    def _run(self, work: Callable[[Txn], None]) -> None:
        """A transaction of the store's own: not refused on a full disk, and everything is loaded again if it fails."""
        txn = self._begin_unchecked()
        try:
            work(txn)
        except BaseException as error:
            self._abort(error)
            raise
        self._commit(txn)

    # --- collections

    def collection(self, ns: str) -> Collection | None:
        return self._catalog.by_ns.get(ns)

    def collection_by_uuid(self, uuid: bytes) -> Collection | None:
        """Also one that is dropped but not yet removed."""
        return self._catalog.by_uuid.get(uuid)

    def collections(self, database: str | None = None) -> list[Collection]:
        """In the order of their names."""
        found: Iterable[Collection] = self._catalog.by_ns.values()
        return sorted((c for c in found if database is None or c.database == database), key=lambda c: c.ns)

    def databases(self) -> list[str]:
        return sorted({c.database for c in self._catalog.by_ns.values()})

    def data_bytes(self) -> int:
        """Bytes of the database file's pages in use."""
        pages = [int(first_row(self._connection, f"PRAGMA {name}")[0]) for name in ("page_count", "freelist_count")]
        return (pages[0] - pages[1]) * self._page_size

    # --- reading

    def read(self) -> Snapshot:
        """A read transaction of what is committed now, on a connection of its own; use it in `with`.

        StorageError once the store is closed: a connection that is opened then would be in a file that is being
        replaced. The guard is held until the snapshot is known to `close`, which may come from another thread.
        """
        with self._guard:
            if self._closed:
                raise StorageError(f"{self.path} is closed: the member stops, or its data is being replaced")
            connection = self._idle_readers.pop() if self._idle_readers else None
            try:
                if connection is None:
                    connection = self.disk.connect(self.path)
                    connection.set_busy_timeout(_BUSY_MS)
                    connection.pragma("query_only", True)
                snapshot = Snapshot(connection, self.path, self._read_done)
            except apsw.Error as error:
                raise storage_error(error, self.path) from error
            self._snapshots.add(snapshot)
        return snapshot

    def _read_done(self, snapshot: Snapshot, fit: bool) -> None:
        connection = snapshot.connection
        with self._guard:
            self._snapshots.discard(snapshot)
            if fit and not self._closed and len(self._idle_readers) < _MAX_IDLE_READERS:
                self._idle_readers.append(connection)
                return
        connection.close(True)

    def get(self, coll: Collection, key: bytes) -> bytes | None:
        """The document as committed now, on the loop, without a transaction of its own."""
        invariant(not self._in_group, "reads never see an open group")
        try:
            row = first_row(self._connection, coll.sql_get, (key,))
        except apsw.Error as error:
            raise storage_error(error, self.path) from error
        return None if row is None else row[0]

    def pin(self, at: OpTime) -> Pin:
        """Keep the undo for reads at `at` until the pin is released."""
        pin = Pin(at, self._pins.discard)
        self._pins.add(pin)
        return pin

    @property
    def oldest_pin(self) -> OpTime | None:
        return min((pin.at for pin in self._pins), default=None, key=lambda at: at.ts)

    # --- oplog

    def oplog_after(self, after: OpTime, *, limit: int, max_bytes: int) -> list[OplogRow]:
        """Rows with ts > after.ts, oldest first, until `limit` rows or `max_bytes` of entries; the first one always.

        Rows from the disk are checked against hash and chain; a page ends before one that is damaged, and
        DamagedEntryError is raised where it would begin with one. OPTIME_NULL: from the oldest there is.
        CappedPositionLostError when something after `after` was trimmed away.
        """
        invariant(not self._in_group, "reads never see an open group")
        if after.ts >= self._head.optime.ts:
            return []
        tail = self._tail
        if tail and after.ts >= tail[0].ts:
            start = bisect_right(tail, after.ts, key=_ts_of)
            return _cut_to(tail[start : start + limit], max_bytes)
        if after != OPTIME_NULL and after.ts < self.trimmed_through:
            raise oplog.trimmed_error(after)
        try:
            rows = oplog.rows_after(self._connection, after.ts, limit=limit, max_bytes=max_bytes)
            return oplog.undamaged(self._connection, self.path, rows)
        except apsw.Error as error:
            raise storage_error(error, self.path) from error

    def oplog_row_at(self, optime: OpTime) -> OplogRow | None:
        """The row with exactly this optime."""
        return self._row(lambda connection: oplog.row_at(connection, optime))

    def sound_row_at(self, optime: OpTime) -> OplogRow | None:
        """As `oplog_row_at`, checked against its hash and the chain before it. DamagedEntryError."""
        row = self.oplog_row_at(optime)
        if row is not None:
            self._row(lambda connection: oplog.undamaged(connection, self.path, [row])[0])
        return row

    def recheck(self, after_ts: int) -> int:
        """Compare a slice of the oplog's rows behind after_ts with hash and chain, as the disk gives them now.

        Returns where the next slice begins, 0 at the end. CorruptDataError: the next row is not what was written.
        """
        invariant(not self._in_group, "reads never see an open group")
        try:
            return oplog.check_slice(self._connection, self.path, after_ts, limit=RECHECK_ROWS, max_bytes=RECHECK_BYTES)
        except apsw.Error as error:
            raise storage_error(error, self.path) from error

    def row_at_or_before(self, optime: OpTime) -> OplogRow | None:
        """The newest row with ts <= optime.ts, of whatever term."""
        return self._row(lambda connection: oplog.row_at_or_before(connection, optime.ts))

    def newest_row(self) -> OplogRow | None:
        return self._tail[-1] if self._tail else self._row(oplog.newest_row)

    def oldest_row(self) -> OplogRow | None:
        return self._row(oplog.oldest_row)

    def _row(self, find: Callable[[apsw.Connection], OplogRow | None]) -> OplogRow | None:
        invariant(not self._in_group, "reads never see an open group")
        try:
            return find(self._connection)
        except apsw.Error as error:
            raise storage_error(error, self.path) from error

    def terms(self) -> list[TermSpan]:
        """First and last optime of every term that ever had an entry here."""
        return oplog.term_spans(self._connection)

    # --- durability

    def sync_wal(self) -> None:
        """Make every commit so far durable. For a worker; the caller reads last_applied on the loop before it."""
        try:
            self.disk.sync_file(self.path + WAL_SUFFIX)
        except OSError as error:
            raise storage_error(error, self.path + WAL_SUFFIX) from error

    @property
    def wal_bytes(self) -> int:
        """Bytes of the WAL in use, not of its file."""
        return self._wal_pages * (self._page_size + 24)

    @property
    def needs_checkpoint(self) -> bool:
        pages = self._wal_pages
        if pages < self._passed_pages:
            self._passed_pages = 0
        return (pages - self._passed_pages) * self._page_size > self.options.checkpoint_bytes

    @property
    def needs_last_pass(self) -> bool:
        """The WAL is over its limit: hold commits, then run `cut_readers` and (in a worker) `last_pass`. A copy that is
        being made may let it grow further, see `snapshot_to`.
        """
        return self.wal_bytes > max(self.options.wal_limit_bytes, *tuple(self._copy_limits.values()), 0)

    def checkpoint(self) -> bool:
        """Fold the WAL into the database while commits go on. For a worker, never two at once.

        True when all of it was; then the next commit starts the WAL anew, if no reader is in it.
        """
        return self._checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE)

    def last_pass(self) -> bool:
        """As `checkpoint`, while the loop holds commits; True when the WAL starts anew with the next commit.

        The long part, folding and syncing, is a passive pass, which takes no lock that a writer needs: were it a
        restarting one, whoever writes meanwhile would find the store busy for as long as a slow disk syncs. Behind it
        only the readers at the WAL's end are left to wait for.
        """
        if not self._checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE):
            return False
        done = self._checkpoint(apsw.SQLITE_CHECKPOINT_RESTART)
        if done:
            self._wal_pages = self._passed_pages = 0
        return done

    def _checkpoint(self, mode: int) -> bool:
        try:
            pages, done = self._checkpointer.wal_checkpoint(mode=mode)
        except apsw.BusyError:
            return False
        except (apsw.Error, OSError) as error:
            raise storage_error(error, self.path) from error
        # Also what an old reader kept from being folded in: that is for the last pass, not for one pass after another.
        self._passed_pages = max(pages, 0)
        return pages == done

    def cut_readers(self) -> int:
        """End every open snapshot, so that the last pass can reach the WAL's end; returns how many there were."""
        with self._guard:
            snapshots = list(self._snapshots)
        for snapshot in snapshots:
            snapshot.cut()
        return len(snapshots)

    # --- keeping house

    def set_commit_point(self, optime: OpTime) -> None:
        """Never moves back."""
        self.commit_point = max(self.commit_point, optime)

    def noted_commit_point(self) -> OpTime:
        """The newest entry of this log that was known to be committed when that was last noted, in this life or an
        earlier one; OPTIME_NULL when the entry was taken back since.
        """
        noted = self._noted_commit_point
        return noted if noted.ts <= self.trimmed_through or self.oplog_row_at(noted) is not None else OPTIME_NULL

    def housekeeping(self, now_wall_ms: int) -> bool:
        """One bounded slice of pruning undo, trimming the oplog and removing dropped collections. True: more to do."""
        return housekeeping.run_slice(self, now_wall_ms)

    # --- rollback

    def undo_step(self, common_point: OpTime, *, stem: str, limit: int = 500, max_bytes: int = 4 << 20) -> bool:
        """Undo backwards towards `common_point`, some `limit` entries in one transaction, fewer when they or the
        documents that they touched are large. True: call again.

        stem: of the rollback's manifest. The first step notes (stem, common point) and raises the rollback id; the
        last one turns the note into the done mark. UnrecoverableRollbackError when the point is not to be reached.
        """
        return undo.step(self, common_point, stem, limit, max_bytes)

    def rollback_in_progress(self) -> RollbackMark | None:
        """What a start must finish before anything else: undo down to its common point."""
        return undo.in_progress(self._connection)

    def rollback_done_marks(self) -> list[RollbackMark]:
        """Rollbacks that are undone but whose manifest may still say planned."""
        return undo.done_marks(self._connection)

    def clear_rollback_done(self, stem: str) -> None:
        """The manifest says finished."""
        self._run(lambda txn: undo.clear_done(txn.connection, stem))

    # --- copies

    def snapshot_to(self, path: str, *, pause: Callable[[], None] | None = None) -> CopyInfo:
        """Write a consistent copy of everything to `path`, synced. For a worker; commits go on meanwhile.

        pause: called after each few MiB; it may wait (rate) or raise (space, cancelled), which removes the copy.
        The copy reads in one transaction, behind which the WAL cannot start anew. SnapshotCutError once the WAL is
        over its limit by as much as the database has: writing outruns copying, and the WAL must not fill the disk.
        """
        job = object()
        limit = self._copy_limits[job] = self.options.wal_limit_bytes + self.disk.size(self.path)

        def go_on() -> None:
            if self.wal_bytes > limit:
                raise SnapshotCutError(
                    f"the copy is given up: the WAL has grown to {self.wal_bytes >> 20} MiB behind it"
                )
            if pause is not None:
                pause()

        try:
            return copies.copy_database(self.disk, self.path, path, go_on)
        finally:
            del self._copy_limits[job]

    def close(self) -> None:
        """Close all connections, with a checkpoint; the lock stays the caller's. Open snapshots are cut off.

        Without room for the checkpoint what is committed stays in the WAL, synced, and the next start reads it there.
        """
        if self._closed:
            return
        with suppress(StorageError, OutOfDiskSpaceError):  # the next start counts, and knows an older commit point
            self._run(self._note_at_the_end)
        with self._guard:
            self._closed = True
        self._close_readers()
        try:
            self._checkpointer.close(True)
            self._connection.set_busy_timeout(_BUSY_MS)
            self._last_checkpoint()
            self._connection.close(True)
        except apsw.Error as error:
            raise storage_error(error, self.path) from error

    def _note_at_the_end(self, txn: Txn) -> None:
        housekeeping.note_oplog_bytes(self, txn)
        housekeeping.note_commit_point(self, txn)

    def _last_checkpoint(self) -> None:
        try:
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)  # its first step syncs the WAL
        except apsw.FullError:
            log.warning("%s is closed without a checkpoint: no space left on the disk", self.path)
            self._connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # or closing tries once more
        except apsw.BusyError:  # somebody still reads: what is committed stays in the WAL
            self.sync_wal()

    def _close_readers(self) -> None:
        with self._guard:
            readers, self._idle_readers = self._idle_readers, []
            snapshots = list(self._snapshots)
        for snapshot in snapshots:
            snapshot.cut()
            readers.append(snapshot.connection)
        for reader in readers:
            with suppress(apsw.Error):  # inside a call in another thread: closed when that thread ends its snapshot
                reader.close(True)


def _ts_of(row: OplogRow) -> int:
    return row.ts


def _cut_to(rows: list[OplogRow], max_bytes: int) -> list[OplogRow]:
    size = 0
    for index, row in enumerate(rows):
        size += len(row.entry)
        if size > max_bytes and index:
            return rows[:index]
    return rows
