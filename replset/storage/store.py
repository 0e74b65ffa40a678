"""The replicated data of one member: documents, oplog, catalog and undo in DBPATH/replset.db.

One write connection, used on the event loop's thread only; a group of operations and its oplog and undo rows commit
in one transaction. Everything here is synchronous. `copy_to`, `read` and the WAL's sync and checkpoints (`wal`) are for
worker threads too; all else belongs on the loop. The lock on the folder is `lock_dbpath`, taken before `open`.
Numbers of hash and chain are signed 64-bit everywhere. Rollbacks use undo.py; retention.py removes old data.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import apsw

from replset.core.ages import OptimeAges
from replset.errors import CorruptDataError, OutOfDiskSpaceError, StorageError, StoreBusyError
from replset.ids import OPTIME_NULL, Millis, OpTime, invariant
from replset.oplog_row import OplogRow, StoredRow, TermSpan
from replset.storage import DATABASE_FILE, LOCK_FILE, copies, oplog
from replset.storage.catalog import SESSIONS, Catalog, Collection, load_catalog
from replset.storage.copies import CopyInfo
from replset.storage.disk import Disk, Lock
from replset.storage.index_build import rebuild_collated
from replset.storage.oplog import OplogTail
from replset.storage.readers import Readers
from replset.storage.schema import DATA_SCHEMA, check_schema, ensure_schema
from replset.storage.snapshot import Snapshot
from replset.storage.sqlite import BUSY_MS, check_sqlite_version, first_row, storage_error, transaction
from replset.storage.txn import NewestEntry, Txn, read_meta, write_meta
from replset.storage.wal import Wal, find_cut

log = logging.getLogger("replset.storage")
T = TypeVar("T")

RECHECK_ROWS, RECHECK_BYTES = 200, 256 << 10
"""A slice of the oplog that is compared with its hashes anew: about a millisecond."""
_SAVE_SIZE_EVERY = 64 << 20
SESSIONS_IN_MEMORY, LARGEST_SESSION = 10_000, 1_000
"""How many records of sessions are kept in memory, and how large one of them may be, in bytes."""


def lock_dbpath(disk: Disk, dbpath: str | os.PathLike[str]) -> Lock:
    """Make the folder when it is missing and take its lock; DbPathLockedError when another process holds it."""
    folder = os.fspath(dbpath)
    disk.make_folder(folder)
    return disk.lock(os.path.join(folder, LOCK_FILE))


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """oplog_max_bytes, oplog_min_retention_s: the oldest entries are trimmed when all take more than the first and
    they are older than the second. oplog_lagging_bytes: up to this size what another member needs stays.
    snapshot_history_s: how long undo is kept for reads at old points.
    min_free_bytes: with less on the disk, groups are refused. checkpoint_bytes: WAL bytes between two checkpoints;
    wal_limit_bytes: above it the loop should hold commits for a last pass. tail_bytes: newest entries kept in memory.
    """

    oplog_max_bytes: int = 990 << 20
    oplog_min_retention_s: float = 0
    oplog_lagging_bytes: int = 0
    snapshot_history_s: int = 300
    min_free_bytes: int = 256 << 20
    checkpoint_bytes: int = 16 << 20
    wal_limit_bytes: int = 256 << 20
    cache_bytes: int = 16 << 20
    tail_bytes: int = 8 << 20


class Pin:
    """Keeps the undo for reads at one point until released. Cursors hold one of these, never a transaction."""

    def __init__(self, at: OpTime, on_release: Callable[[Pin], None]) -> None:
        self.at = at
        self._on_release = on_release

    def release(self) -> None:
        """Give the undo free; the second time this does nothing."""
        self._on_release(self)


class Group:
    """The context of one group: see `Store.group`. A class, since each group on a fast path pays for it."""

    __slots__ = ("_store", "_txn")

    def __init__(self, store: Store) -> None:
        self._store = store

    def __enter__(self) -> Txn:
        self._txn = self._store._begin()
        return self._txn

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self._store._commit(self._txn)
        else:
            self._store._abort(error)


class Store:
    """See the module. Read also: oldest, rollback_id, pruned_through, trimmed_through (both a ts), oplog_bytes,
    commit_point, oplog_only (a witness's: it holds no documents); of the newest entry last_applied, last_wall_ms and
    chain (signed 64-bit).

    undone_entries: how many entries undo steps have taken back since this store was opened. ages: of the entries, and
    ages_saved_at, when they were saved last; None: not looked at yet. retention.py keeps both.
    """

    def __init__(self, disk: Disk, dbpath: str, options: StoreOptions) -> None:
        """Use `Store.open`."""
        self.disk = disk
        self.dbpath = dbpath
        self.path = os.path.join(dbpath, DATABASE_FILE)
        self.options = options
        self.commit_point = OPTIME_NULL
        self.wal = Wal(disk, self.path, options.checkpoint_bytes, options.wal_limit_bytes)
        self.readers = Readers(disk, self.path)
        self.tail = OplogTail(options.tail_bytes)
        self.oldest, self._oldest_wall_ms = OPTIME_NULL, 0
        self.rollback_id = 1
        self.pruned_through = self.trimmed_through = 0
        self.oplog_bytes = 0
        self.oplog_only = False
        self.undone_entries = 0
        self.ages = OptimeAges()
        self.ages_saved_at: Millis | None = None
        self._set_newest(NewestEntry())
        self._catalog = Catalog([])
        self._sessions: dict[bytes, bytes] = {}
        self._in_group = False
        self._closed = False
        self._pins: set[Pin] = set()
        self._saved_oplog_bytes = 0
        self._saved_commit_point = OPTIME_NULL
        self._connection = disk.connect(self.path)

    @classmethod
    def open(
        cls,
        disk: Disk,
        dbpath: str | os.PathLike[str],
        options: StoreOptions | None = None,
        checkpointed: str = "",
        mark: OpTime = OPTIME_NULL,
    ) -> Store:
        """Open or create; on return everything found is durable (a full checkpoint synced WAL and database).

        checkpointed: see `wal.find_cut`. mark: the durability mark. CorruptDataError names the file and what is wrong
        with it; StorageError otherwise.
        """
        check_sqlite_version()
        folder = os.fspath(dbpath)
        disk.make_folder(folder)
        store = None
        try:
            store = cls(disk, folder, options or StoreOptions())
            store._connect(checkpointed, mark)
        except (apsw.Error, OSError, StorageError) as error:
            if store is not None:
                store.wal.close()
                store._connection.close(True)
            if isinstance(error, StorageError):
                raise
            raise storage_error(error, os.path.join(folder, DATABASE_FILE)) from error
        return store

    def _connect(self, checkpointed: str, mark: OpTime) -> None:
        connection = self._connection
        connection.set_busy_timeout(BUSY_MS)
        check_schema(connection, DATA_SCHEMA, self.path)
        mode = connection.pragma("journal_mode", "wal")
        if mode != "wal":
            raise StorageError(f"{self.path}: the file system does not carry a WAL (journal_mode {mode})")
        cut = find_cut(self.disk, self.path, connection, checkpointed)
        if cut:
            # Nothing is written, so that the member can start again with the missing file.
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            if _newest_entry(connection).optime >= mark:
                # Nobody else would notice: the newest entries are there, and those in the middle are gone.
                raise CorruptDataError(cut)
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
        connection.pragma("synchronous", "NORMAL")
        connection.pragma("cache_size", -(self.options.cache_bytes >> 10))
        connection.pragma("temp_store", "MEMORY")
        connection.pragma("journal_size_limit", self.options.wal_limit_bytes)
        self.wal.count_pages(connection)
        ensure_schema(connection, DATA_SCHEMA, self.path)
        # A write makes sure that the WAL exists, so that the folder's sync below covers its name: later commits are
        # synced through the file alone.
        with transaction(connection):
            opened = read_meta(connection, "opened")
            write_meta(connection, "opened", (opened if isinstance(opened, int) else 0) + 1)
            rebuilt = rebuild_collated(connection)
        if rebuilt:
            log.info("built anew, since ICU is another one now: %s", ", ".join(rebuilt))
        self.wal.open()
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        self.disk.sync_folder(self.dbpath)
        # From here on this connection is used on the loop, which never waits for a lock: see StoreBusyError.
        connection.set_busy_timeout(0)
        self.wal.started_anew()
        self.reload()

    def reload(self) -> None:
        """Take everything that is kept in memory from the file."""
        connection = self._connection
        self._set_newest(_newest_entry(connection))
        self.ages.cut(self._newest.optime)
        self._set_oldest(oplog.oldest_row(connection))
        self._catalog = Catalog(load_catalog(connection))
        self.rollback_id = self._int_meta("rollback_id", 1)
        self.pruned_through = self._int_meta("pruned_through", 0)
        self.trimmed_through = self._int_meta("trimmed_through", 0)
        self.oplog_only = bool(self._int_meta(copies.OPLOG_ONLY, 0))
        saved = read_meta(connection, "commit_point")
        self._saved_commit_point = OPTIME_NULL if saved is None else OpTime.parse(str(saved))
        self.tail.clear()
        self._sessions.clear()
        counted_to = self._int_meta("oplog_counted_to", 0)
        later = first_row(connection, "SELECT total(length(entry)) FROM oplog WHERE ts > ?", (counted_to,))[0]
        self._saved_oplog_bytes = self._int_meta("oplog_bytes", 0)
        self.oplog_bytes = self._saved_oplog_bytes + int(later)

    def _set_newest(self, newest: NewestEntry) -> None:
        self._newest = newest
        self.last_applied, self.last_wall_ms, self.chain = newest.optime, newest.wall_ms, newest.chain

    def _set_oldest(self, row: OplogRow | None) -> None:
        self.oldest = OPTIME_NULL if row is None else row.optime
        self._oldest_wall_ms = 0 if row is None else row.wall_ms

    def _int_meta(self, name: str, default: int) -> int:
        value = read_meta(self._connection, name)
        if value is None:
            return default
        if not isinstance(value, int):
            raise CorruptDataError(f"{self.path}: meta {name} is no number")
        return value

    # --- writing

    def has_disk_space(self, *, reserve: int = 1) -> bool:
        """Whether groups are taken: the disk has min_free_bytes left or more. reserve: so many times as much."""
        try:
            return self.disk.free_bytes(self.dbpath) >= reserve * self.options.min_free_bytes
        except OSError as error:
            raise storage_error(error, self.dbpath) from error

    def group(self) -> Group:
        """Begin one transaction: `with store.group() as txn`. At its end it is committed, on an exception taken back.

        A failed COMMIT fails the group, and what is kept in memory is loaded from the file again. Raises
        OutOfDiskSpaceError before anything is done while the disk is nearly full; StorageError.
        """
        if not self.has_disk_space():
            raise OutOfDiskSpaceError(
                f"writes are refused: the disk of {self.dbpath} has less than"
                f" {self.options.min_free_bytes >> 20} MiB free"
            )
        return Group(self)

    def maintenance(self) -> Group:
        """Begin a `group`, also while the disk is nearly full: for undo, which must go on, and for what makes space."""
        return Group(self)

    def _begin(self) -> Txn:
        invariant(not self._in_group and not self._closed, "one group at a time, on an open store")
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except apsw.BusyError as error:
            raise StoreBusyError(f"{self.path}: another connection holds the write lock") from error
        except apsw.Error as error:
            raise storage_error(error, self.path) from error
        self._in_group = True
        return Txn(self._connection, self._catalog, self._newest, self._sessions)

    def _commit(self, txn: Txn) -> None:
        try:
            rows = txn.flush()
            self._connection.execute("COMMIT")
        except BaseException as error:
            self._abort(error)
            raise
        self._in_group = False
        if rows:
            self._add_rows(rows, txn.last)
        if txn.sessions:
            self._keep_sessions(txn.sessions)

    def _keep_sessions(self, records: Mapping[bytes, bytes | None]) -> None:
        """Keep committed records in memory: a session that writes once will write again."""
        kept = self._sessions
        if len(kept) + len(records) > SESSIONS_IN_MEMORY:
            kept.clear()
        for key, record in records.items():
            if record is None or len(record) > LARGEST_SESSION:
                kept.pop(key, None)
            else:
                kept[key] = record

    def _add_rows(self, rows: list[StoredRow], newest: OpTime) -> None:
        _, _, _, _, _, wall_ms, _, chain, _ = rows[-1]
        self._set_newest(NewestEntry(newest, wall_ms, chain))
        size = sum([len(row[8]) for row in rows])
        self.oplog_bytes += size
        if self.oldest is OPTIME_NULL:
            self._set_oldest(OplogRow._make(rows[0]))
        self.tail.add(rows, size)

    def _abort(self, error: BaseException) -> None:
        """Take the open transaction back; raises what an apsw.Error or OSError means."""
        self._in_group = False
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            # Only the file says whether a COMMIT that failed has taken effect. If it has, the newest entry in memory is
            # an old one: the next group would be chained to it and could use its timestamps again, and this member's
            # oplog would differ from every other. Then all is loaded. If the newest entry is the known one, no entry
            # was written, and only the catalog is loaded, which the operations changed in memory. A reload for each
            # group that is taken back (`LargeUpdateError`) would count up to 64 MiB of entries, and empty `tail`, from
            # which the others fetch.
            if self._newest == _newest_entry(self._connection):
                self._catalog = Catalog(load_catalog(self._connection))
            else:
                self.reload()
        except apsw.Error as second:
            raise storage_error(second, self.path) from error
        if isinstance(error, apsw.Error | OSError):
            raise storage_error(error, self.path) from error

    # --- collections

    def collection(self, ns: str) -> Collection | None:
        return self._catalog.by_ns.get(ns) or (SESSIONS if ns == SESSIONS.ns else None)

    def collection_by_uuid(self, uuid: bytes) -> Collection | None:
        """Return a collection, also one that is dropped but not yet removed."""
        return self._catalog.by_uuid.get(uuid)

    def copy_catalog(self) -> Catalog:
        """The collections as they are now, for a transaction."""
        return Catalog(list(self._catalog.by_uuid.values()))

    def collections(self, database: str | None = None) -> list[Collection]:
        """Return the collections in the order of their names."""
        found = self._catalog.by_ns.values()
        return sorted((c for c in found if database is None or c.database == database), key=lambda c: c.ns)

    def index_builds(self) -> list[tuple[Collection, bytes]]:
        """The index builds under way: the collection and the UUID of the build."""
        building = [self._catalog.by_uuid[uuid] for uuid in sorted(self._catalog.building)]
        return [(coll, build) for coll in building for build in coll.builds]

    def dropped_collections(self) -> list[Collection]:
        """Those that are dropped and not yet removed, the oldest drop first."""
        return self._catalog.dropped()

    def databases(self) -> list[str]:
        return sorted({c.database for c in self._catalog.by_ns.values()})

    def data_bytes(self) -> int:
        """Bytes of the database file's pages in use."""
        names = ("page_count", "freelist_count", "page_size")
        pages, unused, size = (int(first_row(self._connection, f"PRAGMA {name}")[0]) for name in names)
        return (pages - unused) * size

    # --- reading

    def read(self) -> Snapshot:
        """A read transaction of what is committed now, on a connection of its own; use it in `with`. StorageError."""
        return self.readers.read()

    def query(self, read: Callable[[apsw.Connection], T]) -> T:
        """What `read` gives of what is committed now, on the loop, without a transaction of its own."""
        invariant(not self._in_group, "reads never see an open group")
        try:
            return read(self._connection)
        except apsw.Error as error:
            raise storage_error(error, self.path) from error

    def get(self, coll: Collection, key: bytes) -> bytes | None:
        """The document with this key (encode_key of its `_id`) as committed now."""
        row = self.query(lambda connection: first_row(connection, coll.sql_get, (key,)))
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
        if after.ts >= self._newest.optime.ts:
            return []
        kept = self.tail.after(after.ts, limit, max_bytes)
        if kept is not None:
            return [OplogRow._make(row) for row in kept]
        # What followed `after` may be trimmed. A reader that went on with the oldest entry there is would lack the
        # entries in between for ever, and not know it.
        if after != OPTIME_NULL and after.ts < self.trimmed_through:
            raise oplog.trimmed_error(after)

        def read(connection: apsw.Connection) -> list[OplogRow]:
            rows = oplog.rows_after(connection, after.ts, limit=limit, max_bytes=max_bytes)
            return oplog.undamaged(connection, self.path, rows)

        return self.query(read)

    def entries_after(self, after: OpTime, *, limit: int, max_bytes: int) -> tuple[list[bytes], int | None]:
        """Return the entries of `oplog_after`, and the chain behind the last of them; None: there is none."""
        kept = None
        if after.ts < self._newest.optime.ts:
            kept = self.tail.after(after.ts, limit, max_bytes)
        rows = self.oplog_after(after, limit=limit, max_bytes=max_bytes) if kept is None else kept
        return [row[8] for row in rows], rows[-1][7] if rows else None

    def oplog_row_at(self, optime: OpTime) -> OplogRow | None:
        """The row with exactly this optime."""
        return self.query(lambda connection: oplog.row_at(connection, optime))

    def sound_row_at(self, optime: OpTime) -> OplogRow | None:
        """Return the row of `oplog_row_at`, checked against its hash and the chain before it. DamagedEntryError."""
        row = self.oplog_row_at(optime)
        if row is not None:
            self.query(lambda connection: oplog.undamaged(connection, self.path, [row]))
        return row

    def chain_at(self, optime: OpTime) -> int | None:
        """The chain at exactly this optime, None when it is not here. What is not in memory is checked as in
        `sound_row_at`.
        """
        kept = self.tail.row_at(optime.ts) if optime.ts > self.trimmed_through else None
        row = kept or self.sound_row_at(optime)
        return row[7] if row is not None and row[1] == optime.term else None

    def recheck(self, after_ts: int) -> int:
        """Compare a slice of the oplog's rows behind after_ts with hash and chain, as the disk gives them now.

        Returns where the next slice begins, 0 at the end. CorruptDataError: the next row is not what was written.
        """
        return self.query(
            lambda connection: oplog.check_slice(
                connection, self.path, after_ts, limit=RECHECK_ROWS, max_bytes=RECHECK_BYTES
            )
        )

    def oplog_heads(self, after_ts: int, until_ts: int, *, limit: int, backwards: bool) -> list[oplog.OplogHead]:
        """See `oplog.heads_between`."""
        return self.query(
            lambda connection: oplog.heads_between(connection, after_ts, until_ts, limit=limit, backwards=backwards)
        )

    def oplog_rows_at(self, places: Sequence[int], *, max_bytes: int) -> list[OplogRow]:
        """See `oplog.rows_at`."""
        return self.query(lambda connection: oplog.rows_at(connection, self.path, places, max_bytes))

    def row_at_or_before(self, optime: OpTime) -> OplogRow | None:
        """The newest row with ts <= optime.ts, of whatever term."""
        return self.query(lambda connection: oplog.row_at_or_before(connection, optime.ts))

    def entries_behind(self, position: OpTime, *, most: int, until: OpTime | None = None) -> int:
        """How many entries this member has behind `position`, up to its newest or to `until`; at most `most`."""
        newest = self.last_applied if until is None else min(until, self.last_applied)
        if position >= newest:
            return 0
        return self.query(lambda connection: oplog.count_between(connection, position.ts, newest.ts, most))

    def window_s(self) -> int:
        """How many seconds lie between the oldest entry and the newest, by wall time; 0 where that went back."""
        return max(0, self.last_wall_ms - self._oldest_wall_ms) // 1000

    def seconds_above_oldest(self, optime: OpTime) -> int:
        """How many seconds lie between the oldest entry and the first that is not older than `optime`, by wall time."""
        wall_ms = self.query(lambda connection: oplog.wall_ms_at(connection, optime.ts))
        return max(0, (self.last_wall_ms if wall_ms is None else wall_ms) - self._oldest_wall_ms) // 1000

    def newest_row(self) -> OplogRow | None:
        return self.query(oplog.newest_row)

    def newest_heads(self, limit: int) -> list[oplog.OplogHead]:
        """The newest rows without their entries, oldest first."""
        return self.query(lambda connection: oplog.newest_heads(connection, limit))

    def oldest_row(self) -> OplogRow | None:
        return self.query(oplog.oldest_row)

    def terms(self) -> list[TermSpan]:
        """First and last optime of every term that ever had an entry here."""
        return self.query(oplog.term_spans)

    def on_trimmed(self, through_ts: int, removed_bytes: int) -> None:
        """Call when entries up to `through_ts` were removed, and meta says so."""
        self.trimmed_through = through_ts
        self.oplog_bytes -= removed_bytes
        self._saved_oplog_bytes = self.oplog_bytes
        self._set_oldest(self.oldest_row())

    # --- commit point and size, in meta

    def set_commit_point(self, optime: OpTime) -> None:
        """Take over the commit point, which never moves back."""
        self.commit_point = max(self.commit_point, optime)

    def saved_commit_point(self) -> OpTime:
        """The newest entry of this log that was known to be committed when that was last saved, in this life or an
        earlier one; OPTIME_NULL when the entry was taken back since.
        """
        saved = self._saved_commit_point
        return saved if saved.ts <= self.trimmed_through or self.oplog_row_at(saved) is not None else OPTIME_NULL

    def save_oplog_bytes(self) -> bool:
        """Save the oplog's size when it has grown by 64 MiB: a start adds up only what came later. Else False."""
        if self.oplog_bytes - self._saved_oplog_bytes < _SAVE_SIZE_EVERY:
            return False
        with self.maintenance() as txn:
            self._write_oplog_bytes(txn)
        return True

    def save_commit_point(self) -> None:
        """Save the commit point when it has moved.

        The next start must know it: entries up to it must not be taken for lost, and a source that lacks them must not
        be copied.
        """
        if min(self.commit_point, self.last_applied) > self._saved_commit_point:
            with self.maintenance() as txn:
                self._write_commit_point(txn)

    def _write_commit_point(self, txn: Txn) -> None:
        point = min(self.commit_point, self.last_applied)
        if point > self._saved_commit_point:
            write_meta(txn.connection, "commit_point", str(point))
            self._saved_commit_point = point

    def _write_oplog_bytes(self, txn: Txn) -> None:
        write_meta(txn.connection, "oplog_bytes", self.oplog_bytes)
        write_meta(txn.connection, "oplog_counted_to", self.last_applied.ts)
        self._saved_oplog_bytes = self.oplog_bytes

    # --- copies

    def copy_to(
        self,
        path: str,
        *,
        pause: Callable[[], None] | None = None,
        oplog_bytes: int | None = None,
        hashed: bool = True,
    ) -> CopyInfo:
        """Write a consistent copy of everything to `path`, synced. For a worker; commits go on meanwhile.

        oplog_bytes: for a witness, only the newest entries, so many bytes, and at least those from the commit point on.
        pause: called after each few MiB; it may wait (rate) or raise (space, cancelled), which removes the copy.
        hashed: False for a copy that stays on this disk.
        The copy reads in one transaction, behind which the WAL cannot start anew. SnapshotCutError once the WAL is
        over its limit by as much as the database has.
        """
        with self.wal.allow_growth(self.disk.size(self.path)) as check_growth:

            def on_step() -> None:
                check_growth()
                if pause is not None:
                    pause()

            if oplog_bytes is not None:
                return copies.copy_oplog(self.disk, self.path, path, self.commit_point.ts, oplog_bytes, on_step)
            return copies.copy_database(self.disk, self.path, path, on_step, hashed=hashed)

    def close(self) -> None:
        """Close all connections, with a checkpoint; the lock stays the caller's. Open snapshots are cut off.

        Without space for the checkpoint what is committed stays in the WAL, synced, and the next start reads it there.
        """
        if self._closed:
            return
        # If these are not saved, the next start counts the bytes, and knows an older commit point.
        with suppress(StorageError, OutOfDiskSpaceError), self.maintenance() as txn:
            self._write_oplog_bytes(txn)
            self._write_commit_point(txn)
        self._closed = True
        self.readers.close()
        try:
            self.wal.close()
            self._connection.set_busy_timeout(BUSY_MS)
            self._last_checkpoint()
            self._connection.close(True)
        except apsw.Error as error:
            raise storage_error(error, self.path) from error

    def _last_checkpoint(self) -> None:
        try:
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)  # its first step syncs the WAL
        except apsw.FullError:
            log.warning("%s is closed without a checkpoint: no space left on the disk", self.path)
            self._connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # or closing tries once more
        except apsw.BusyError:  # somebody still reads: what is committed stays in the WAL
            self.wal.sync()


def _newest_entry(connection: apsw.Connection) -> NewestEntry:
    row = oplog.newest_row(connection)
    return NewestEntry() if row is None else NewestEntry(row.optime, row.wall_ms, row.chain)
