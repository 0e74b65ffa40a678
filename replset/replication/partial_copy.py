"""The files of a copy that is being fetched: its bytes so far, and a record that names the copy.

The record says how much of the file is synced. After a broken connection, a kill or a power loss the transfer goes on
from there. Everything here blocks: it runs in a worker.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from replset.ids import HostPort
from replset.storage.disk import SHM_SUFFIX, WAL_SUFFIX, Disk, file_sha256

COPY_NAME = "initial-sync.db"
RECORD_NAME = "initial-sync.json"
BUILT_NAME = "initial-sync-built.db"
_JOURNAL_SUFFIX = "-journal"


@dataclass(frozen=True, slots=True)
class CopyRecord:
    """Names one copy at its source. The source must still have this very copy before more of it is fetched, since a
    file mixed of two copies would be no state of any member.

    sync_id: of the marker that it is fetched under. size, sha256 (hex): of the whole file; 0 and empty while the source
    still makes it. rollback_id: the source's when it made it. kept: bytes that are synced here. whole: all of them are,
    and their checksum was right; from then on the file is a database here, and its bytes may differ. oplog_only: it is
    for a witness and has no documents. compared: it is a frame (features/compared_copies), and the source compares its
    documents.
    """

    sync_id: str
    source: HostPort
    snapshot_id: str
    rollback_id: int
    size: int = 0
    sha256: str = ""
    kept: int = 0
    whole: bool = False
    oplog_only: bool = False
    compared: bool = False

    @classmethod
    def parse(cls, data: bytes) -> CopyRecord:
        """ValueError for what is no record."""
        found: dict[str, Any] = json.loads(data)
        try:
            transfer = cls(**found)
        except TypeError as error:
            raise ValueError(str(error)) from None
        kinds = {name: type(value) for name, value in asdict(transfer).items()}
        if kinds != {name: type(value) for name, value in asdict(_EXAMPLE).items()}:
            raise ValueError("a field of the wrong type")
        return replace(transfer, source=HostPort(transfer.source))


_EXAMPLE = CopyRecord("", HostPort(""), "", 0)


class PartialCopy:
    """The files of one transfer in the data folder."""

    def __init__(self, disk: Disk, dbpath: str) -> None:
        self._disk = disk
        self._dbpath = dbpath
        self.path = os.path.join(dbpath, COPY_NAME)
        self.built = os.path.join(dbpath, BUILT_NAME)
        """The database that is made of a frame and of one's own documents; at its end it takes the frame's place."""
        self._record = os.path.join(dbpath, RECORD_NAME)

    def load(self, sync_id: str) -> CopyRecord | None:
        """Return the transfer that can go on under this marker, with its file cut to what is kept; else None."""
        try:
            transfer = CopyRecord.parse(self._disk.read_file(self._record))
            if transfer.sync_id != sync_id:
                return None
            if transfer.whole:
                return transfer if self._disk.exists(self.path) else None
            here = self._disk.size(self.path) if self._disk.exists(self.path) else 0
            if here < transfer.kept:
                return None
            # What follows was written and not synced. After a power loss it may be anything, and the rest would be
            # joined to it.
            if here > transfer.kept:
                self._disk.truncate(self.path, transfer.kept)
        except (OSError, ValueError):
            return None
        return transfer

    def begin(self, transfer: CopyRecord) -> None:
        """Remove everything of another copy, and record this one."""
        self.discard()
        self._disk.write_file(self.path, [])
        self.save(transfer)

    def save(self, transfer: CopyRecord) -> None:
        """Write the record. It is durable on return, and so are the names of both files."""
        temporary = f"{self._record}.tmp"
        self._disk.write_file(temporary, [json.dumps(asdict(transfer)).encode()])
        self._disk.sync_file(temporary)
        self._disk.rename(temporary, self._record)
        self._disk.sync_folder(self._dbpath)

    def append(self, data: bytes, at: int) -> None:
        """Add what belongs at the offset `at`, the file's end. When that fails (OSError) nothing of it stays."""
        try:
            self._disk.write_file(self.path, [data], append=True)
        except OSError:
            with suppress(OSError):
                self._disk.truncate(self.path, at)
            raise

    def keep(self, transfer: CopyRecord, copied: int) -> CopyRecord:
        """Sync the first `copied` bytes, and record that."""
        if copied > transfer.kept:
            self._disk.sync_file(self.path)
            transfer = replace(transfer, kept=copied)
            self.save(transfer)
        return transfer

    def seal(self, transfer: CopyRecord) -> tuple[CopyRecord, str]:
        """Sync all bytes and read them back. Return the record, whole if the checksum is right, and the checksum."""
        self._disk.sync_file(self.path)
        found = file_sha256(self._disk, self.path)
        if found == transfer.sha256:
            transfer = replace(transfer, kept=transfer.size, whole=True)
            self.save(transfer)
        return transfer, found

    def replace_by_built(self) -> None:
        """Let the database that was built be the copy. In between nothing may go on with either: see CopyRecord."""
        self._disk.rename(self.built, self.path)
        self._disk.sync_folder(self._dbpath)

    def discard(self) -> None:
        """Remove everything of a transfer; also what SQLite left beside the copy, which a later one must not find."""
        leftovers = [self._record, f"{self._record}.tmp", self.path]
        leftovers += [self.path + suffix for suffix in (_JOURNAL_SUFFIX, WAL_SUFFIX, SHM_SUFFIX)]
        leftovers += [self.built + suffix for suffix in ("", _JOURNAL_SUFFIX, WAL_SUFFIX, SHM_SUFFIX)]
        found = [path for path in leftovers if self._disk.exists(path)]
        for path in found:
            self._disk.remove(path)
        if found:
            self._disk.sync_folder(self._dbpath)
