"""A backup: a folder with `replset.db`, the copy of one member's database, and `backup.json`, which describes it.

`restore_backup` makes a new dbpath of it. docs/backup.md says what the restored member then does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from replset.bson import ObjectId
from replset.config import Member, ReplSetConfig, Settings
from replset.config.feature_version import LATEST
from replset.errors import BadValueError, CorruptDataError, OutOfDiskSpaceError, ReplError
from replset.ids import OPTIME_NULL, HostPort, MemberId, OpTime
from replset.manifest import Manifest
from replset.storage import DATABASE_FILE, LOCK_FILE, RESTORE_FILE
from replset.storage.copies import OPLOG_ONLY, install_copy, open_copy
from replset.storage.disk import Disk, file_sha256, read_chunks
from replset.storage.member_file import MEMBER_FILE, MemberFile
from replset.storage.sqlite import first_row
from replset.storage.store import lock_dbpath
from replset.storage.txn import read_meta

MANIFEST_FILE = "backup.json"
SPARE_BYTES = 64 << 20
"""Disk space that a restore leaves free beside the copy."""
_COPY_FILE = "restore.db"
_LONGEST_MANIFEST = 1 << 20


@dataclass(frozen=True, slots=True)
class BackupManifest(Manifest):
    """Describes a backup. set_id: settings.replicaSetId, in hex. newest: the newest entry in it, TERM:SECONDS:INC.

    size, sha256: of replset.db. made: UTC. config: the set's configuration at that time, for people.
    """

    what = "backup"
    set_name: str
    set_id: str
    member: str
    newest: str
    size: int
    sha256: str
    made: str
    config: dict[str, Any]


def read_manifest(disk: Disk, folder: str) -> BackupManifest:
    """Read and check the manifest of the backup in `folder`. BadValueError: there is none."""
    path = os.path.join(folder, MANIFEST_FILE)
    if not disk.exists(path):
        raise BadValueError(f"{folder} is no backup, or one that did not end: it has no {MANIFEST_FILE}")
    return BackupManifest.parse(disk.read_at(path, 0, _LONGEST_MANIFEST), path)


@dataclass(frozen=True, slots=True)
class NewSet:
    """Asks a restore for a member that begins a set of its own. host: under which the others will reach it."""

    name: str
    host: HostPort


def restore_backup(
    disk: Disk,
    folder: str,
    dbpath: str,
    new_set: NewSet | None,
    on_bytes: Callable[[int], None],
    bring_to_point: Callable[[], None] | None = None,
) -> BackupManifest:
    """Make `dbpath`, which is empty or missing, of the backup in `folder`. on_bytes: called with each size copied.
    bring_to_point: changes the database, which is whole then, before a member may start.

    A crash leaves the file `restoring` in it: no member starts there, and a restore begins anew. An error leaves the
    folder as it was. BadValueError: it holds something. CorruptDataError: the backup is not what was written.
    """
    manifest = read_manifest(disk, folder)
    disk.make_folder(dbpath)
    had_lock = LOCK_FILE in disk.list_folder(dbpath)
    lock = lock_dbpath(disk, dbpath)
    try:
        _check_empty(disk, dbpath)
        _check_space(disk, dbpath, manifest)
        marker = os.path.join(dbpath, RESTORE_FILE)
        disk.write_file(marker, [b"a restore into this folder has not ended\n"])
        disk.sync_file(marker)
        disk.sync_folder(dbpath)
        try:
            _fill(disk, os.path.join(folder, DATABASE_FILE), dbpath, manifest, new_set, on_bytes, bring_to_point)
        except (ReplError, OSError, KeyboardInterrupt):
            with suppress(OSError):
                _clear(disk, dbpath)
            raise
        disk.remove(marker)
        disk.sync_folder(dbpath)
        return manifest
    except (ReplError, OSError, KeyboardInterrupt):
        if not had_lock:
            with suppress(OSError):
                disk.remove(os.path.join(dbpath, LOCK_FILE))
        raise
    finally:
        lock.release()


def _check_empty(disk: Disk, dbpath: str) -> None:
    names = set(disk.list_folder(dbpath)) - {LOCK_FILE, "lost+found"}
    if RESTORE_FILE in names:
        _clear(disk, dbpath)  # what a crash left of an earlier restore
    elif names:
        raise BadValueError(f"{dbpath} is not empty ({min(names)} is there); a restore needs an empty folder")


def _clear(disk: Disk, dbpath: str) -> None:
    """Remove all that a restore makes; the marker last."""
    for name in disk.list_folder(dbpath):
        if name.startswith((_COPY_FILE, DATABASE_FILE, MEMBER_FILE)):
            disk.remove(os.path.join(dbpath, name))
    disk.sync_folder(dbpath)
    disk.remove(os.path.join(dbpath, RESTORE_FILE))
    disk.sync_folder(dbpath)


def _check_space(disk: Disk, dbpath: str, manifest: BackupManifest) -> None:
    free = disk.free_bytes(dbpath)
    if free < manifest.size + SPARE_BYTES:
        raise OutOfDiskSpaceError(f"the restore needs {manifest.size + SPARE_BYTES} bytes in {dbpath}, {free} are free")


def _fill(
    disk: Disk,
    source: str,
    dbpath: str,
    manifest: BackupManifest,
    new_set: NewSet | None,
    on_bytes: Callable[[int], None],
    bring_to_point: Callable[[], None] | None,
) -> None:
    copy = os.path.join(dbpath, _COPY_FILE)

    def chunks() -> Iterator[bytes]:
        for chunk in read_chunks(disk, source):
            yield chunk
            on_bytes(len(chunk))

    disk.write_file(copy, chunks())
    disk.sync_file(copy)
    if disk.size(copy) != manifest.size or file_sha256(disk, copy) != manifest.sha256:
        raise CorruptDataError(f"{source} is damaged: it is not what {MANIFEST_FILE} describes")
    file = MemberFile.open(disk, dbpath)
    try:
        install_copy(disk, dbpath, copy, rollback_id_before=0)
        newest = _newest_entry(disk, dbpath)
        if str(newest) != manifest.newest:
            raise CorruptDataError(f"{source} ends at {newest}, not at {manifest.newest} as {MANIFEST_FILE} says")
        if bring_to_point is not None:
            bring_to_point()
            newest = _newest_entry(disk, dbpath)
        if new_set is not None:
            file.save_config(_first_config(file, new_set, newest))
        file.end_initial_sync()
    finally:
        file.close()


def _newest_entry(disk: Disk, dbpath: str) -> OpTime:
    """Return the newest entry of the restored database, which has documents."""
    path = os.path.join(dbpath, DATABASE_FILE)
    with open_copy(disk, path) as connection:
        if read_meta(connection, OPLOG_ONLY):
            raise BadValueError(f"{path} is a witness's: it has no documents")
        row = first_row(connection, "SELECT term, ts FROM oplog ORDER BY ts DESC LIMIT 1")
    return OPTIME_NULL if row is None else OpTime(*row)


def _first_config(file: MemberFile, new_set: NewSet, newest: OpTime) -> ReplSetConfig:
    """Return the configuration of a set of this member alone.

    It has an id of its own, so the members of the old set refuse it, and it them. Its first election is for a term
    above that of every entry, so the oplog goes on where the backup ends.
    """
    own = Member(MemberId(0), new_set.host, incarnation=file.incarnation)
    set_id = ObjectId(os.urandom(12))
    settings = Settings(replica_set_id=set_id)
    return ReplSetConfig(new_set.name, 1, max(1, newest.term), (own,), settings, feature_version=LATEST)
