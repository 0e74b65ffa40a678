"""The files of one member: the folder's lock, member.db and replset.db, and what a start does to them first."""

from __future__ import annotations

import logging
import os
import random
from contextlib import ExitStack
from dataclasses import dataclass, replace

from replset.config.feature_version import LATEST, newer_features
from replset.errors import InvalidReplicaSetConfigError, ReplError, StorageError
from replset.member.options import MONGODB_LAYOUT, MemberOptions
from replset.member.process.machine import TrackedWorkers
from replset.oplog_row import DamagedEntryError
from replset.replication.context import Identity, MemberContext
from replset.replication.ports import Clock, Workers
from replset.replication.rollback import NotUndoneError, finish_rollbacks
from replset.replication.write_queue import WriteQueue
from replset.storage import RESTORE_FILE, SPILL_PREFIX
from replset.storage.copies import check_database
from replset.storage.disk import Disk, Lock
from replset.storage.member_file import MemberFile
from replset.storage.sqlite import is_disk_full
from replset.storage.store import Store, StoreOptions, lock_dbpath

log = logging.getLogger("replset.member")

CHECKED_ENTRIES = 1_000
"""Newest oplog entries that a start checks against hash and chain."""


@dataclass(frozen=True, slots=True)
class MemberFiles:
    """Holds what is open in a dbpath. The store itself is in the member's context: an initial sync replaces it."""

    disk: Disk
    dbpath: str
    lock: Lock
    member_file: MemberFile
    store_options: StoreOptions

    def open_store(self) -> Store:
        """Open replset.db; what a crash left in its WAL is checkpointed, so all that it holds is durable."""
        options = self.with_limits(self.store_options)
        file = self.member_file
        # What an initial sync is going to replace need not be whole.
        checkpointed = "" if file.initial_sync_pending else file.checkpointed_wal
        return Store.open(self.disk, self.dbpath, options, checkpointed, file.durability_mark)

    def with_limits(self, options: StoreOptions) -> StoreOptions:
        """Return the options with the limits of the oplog that replSetResizeOplog set on this member."""
        size_mb, hours = self.member_file.oplog_limits
        if size_mb is not None:
            # What is kept for members that lag behind stays in proportion.
            share = options.oplog_lagging_bytes / options.oplog_max_bytes
            size = int(size_mb * (1 << 20))
            options = replace(options, oplog_max_bytes=size, oplog_lagging_bytes=int(size * share))
        return options if hours is None else replace(options, oplog_min_retention_s=hours * 3600)

    def close(self) -> None:
        """Close member.db and give the folder back. The store is closed before."""
        self.member_file.close()
        self.lock.release()


@dataclass(frozen=True, slots=True)
class OpenData:
    """What a member begins with. context: without its callbacks, since nobody else uses the files yet.

    rolling_back: a rollback that a crash interrupted waits for space on the disk. not_undone: why it cannot be
    finished; empty when it can. damage: see `find_damage`.
    """

    files: MemberFiles
    context: MemberContext
    rolling_back: bool
    not_undone: str
    damage: str


async def open_data(
    opened: ExitStack,
    options: MemberOptions,
    disk: Disk,
    clock: Clock,
    workers: Workers,
    rng: random.Random,
    defaults: StoreOptions,
) -> OpenData:
    """Open the files, finish what a crash interrupted, and look at the newest entries; `opened` closes the files."""
    files, store = open_files(opened, options, disk, rng, defaults)
    files.member_file.save_place()
    if note := place_note(files.member_file):
        log.warning("%s: %s", files.dbpath, note)
        files.member_file.append_journal(
            wall_ms=clock.wall_ms(), term=store.last_applied.term, event="other place", detail=note
        )
    context = MemberContext(
        disk=disk,
        dbpath=files.dbpath,
        clock=clock,
        workers=TrackedWorkers(workers),
        store=store,
        write_queue=WriteQueue(),
        identity=Identity(options.repl_set, options.host, options.rollback_layout == MONGODB_LAYOUT),
        on_report=_ignore,
        on_undone=_ignore,
        on_broken=_ignore,
    )
    not_undone, rolling_back = "", False
    try:
        rolling_back = not await finish_rollback(context)
    except NotUndoneError as error:
        not_undone = error.message
    is_copy = bool(files.member_file.moved_from)
    damage = await context.workers.run(lambda: find_damage(store) or (find_torn_page(disk, store) if is_copy else ""))
    return OpenData(files, context, rolling_back, not_undone, damage)


def _ignore(*_: object) -> None:
    """Do nothing."""


def remove_spill_files(disk: Disk, dbpath: str) -> None:
    """Remove the temporary files that a crash left. No query may run."""
    for name in disk.list_folder(dbpath):
        if name.startswith(SPILL_PREFIX):
            disk.remove(os.path.join(dbpath, name))


def open_files(
    opened: ExitStack, options: MemberOptions, disk: Disk, rng: random.Random, defaults: StoreOptions
) -> tuple[MemberFiles, Store]:
    """Lock the folder and open both databases; `opened` closes them again if the start fails later."""
    dbpath = str(options.dbpath)
    lock = lock_dbpath(disk, dbpath)
    opened.callback(lock.release)
    remove_spill_files(disk, dbpath)
    if disk.exists(os.path.join(dbpath, RESTORE_FILE)):
        raise StorageError(f"a restore into {dbpath} did not end: run replset restore again, or use an empty folder")
    member_file = MemberFile.open(
        disk, dbpath, new_incarnation=lambda: f"{rng.getrandbits(64):016x}", host=options.host
    )
    opened.callback(member_file.close)
    config = member_file.config
    if config is not None and config.set_name != options.repl_set:
        # Under another name this member would answer for a set whose members do not know it, with data of its own.
        raise InvalidReplicaSetConfigError(
            f"{dbpath} belongs to a member of set {config.set_name!r}, not {options.repl_set!r}; see --replSet"
        )
    if config is not None and config.feature_version > LATEST:
        raise StorageError(f"{dbpath}: {newer_features(config.feature_version)}")
    lagging_mb = 2 * options.oplog_size_mb if options.oplog_lagging_mb is None else options.oplog_lagging_mb
    store_options = replace(
        defaults,
        oplog_max_bytes=int(options.oplog_size_mb * (1 << 20)),
        oplog_lagging_bytes=int(lagging_mb * (1 << 20)),
        oplog_min_retention_s=options.oplog_min_retention_hours * 3600,
        snapshot_history_s=options.snapshot_history_secs,
        min_free_bytes=options.min_free_mb << 20,
    )
    files = MemberFiles(disk, dbpath, lock, member_file, store_options)
    store = files.open_store()
    opened.callback(store.close)
    return files, store


async def finish_rollback(context: MemberContext) -> bool:
    """Finish a rollback that a crash interrupted; False when the disk is too full for that now.

    The member then goes on with it while it runs, in ROLLBACK. NotUndoneError: it starts in quarantine.
    """
    try:
        await finish_rollbacks(context, lambda: None)
    except (ReplError, OSError) as error:
        if not is_disk_full(error):
            raise
        return False
    return True


def place_note(file: MemberFile) -> str:
    """Say that a dbpath is not where it was at the last start; empty when it is."""
    if file.moved_from:
        return (
            f"this dbpath belongs to {file.moved_from}, and this member is {file.host}: it is another member, which"
            " counts once the set has it under this address and it has caught up"
        )
    if file.is_other_file:
        return (
            "member.db is another file, or on another machine, than at the last start. If it is an older state (a"
            " restored snapshot, a copy) and the other members' are not, then this member has forgotten votes and"
            " acknowledgements: stop it and remove member.db, so that it counts only once it has caught up"
        )
    return ""


def find_torn_page(disk: Disk, store: Store) -> str:
    """Say what is wrong with the database as a whole: files that are copied while a member writes do not fit."""
    try:
        check_database(disk, store.path, 0)
    except StorageError as error:
        return error.message
    return ""


def find_damage(store: Store) -> str:
    """Say what is wrong with the newest entries, to which all later ones are chained; empty when nothing is."""
    try:
        with store.read() as snapshot:
            snapshot.check_newest(CHECKED_ENTRIES)
    except DamagedEntryError as error:
        return error.message
    return ""
