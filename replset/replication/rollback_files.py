"""The files of a rollback: everything after one entry, written before it is undone or erased by a copy.

The entries and documents go to BSON files in bounded pieces, and no existing file is overwritten.
`rollback_manifest.py` owns the manifest that names the files.
"""

from __future__ import annotations

import hashlib
import os
import string
from collections import Counter
from dataclasses import dataclass, field, replace
from uuid import UUID

from replset.ids import HostPort, OpTime, invariant
from replset.oplog_entry import COMMAND, OplogEntry
from replset.oplog_row import OplogRow, entry_hash
from replset.replication.context import MemberContext
from replset.replication.rollback_manifest import (
    FOLDER,
    OPLOG_NS,
    FileKind,
    Manifest,
    RollbackFile,
    RollbackState,
    store_manifest,
    sync_names,
    utc_text,
)
from replset.replication.rollback_progress import RollbackProgress
from replset.storage.catalog import Collection
from replset.storage.disk import Disk
from replset.storage.snapshot import Snapshot

PAGE_ENTRIES = 1_000
PAGE_BYTES = 4 << 20
TOUCHED_PAGE = 1_000
WRITTEN_PAGE = 20_000
_NAMED_ENTRIES_MAX = 20
_PLAIN = frozenset(string.ascii_letters + string.digits + "._-$")
_NAME_MAX = 180
_BUFFER_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class RollbackFiles:
    """Writes everything after `common` to files: what a rollback is about to undo, or a copy to erase."""

    context: MemberContext
    wall_ms: int
    common: OpTime
    reason: str
    source: HostPort | None
    progress: RollbackProgress = field(default_factory=RollbackProgress)

    def write(self, snapshot: Snapshot, state: RollbackState) -> Manifest:
        """Write entries, documents, then the manifest, all synced. Runs in a worker thread and ends the snapshot.

        The caller changes no data before this returns. So every write that is undone is in a file first, whenever the
        member stops. OutOfDiskSpaceError and OSError: the files are removed again, and nothing may be undone.
        """
        context = self.context
        layout = context.identity.mongodb_layout
        writer = RollbackWriter(context.disk, context.dbpath, self.wall_ms, mongodb_layout=layout)
        try:
            with snapshot:
                self.progress.entries = snapshot.entries_after(self.common.ts)
                manifest = self._entries(snapshot, writer, state)
                self._documents(snapshot, writer)
            return writer.write_manifest(replace(manifest, files=writer.finish()))
        except BaseException:
            writer.discard()
            raise

    def _entries(self, snapshot: Snapshot, writer: RollbackWriter, state: RollbackState) -> Manifest:
        """Write the oplog entries; returns the manifest without files.

        An entry that the disk has damaged is left out and named in the reason. Otherwise a restore would take it for
        what a client wrote. Its document is in the file of documents, as the member had it.
        """
        operations: Counter[str] = Counter()
        damaged: list[OpTime] = []
        first: OplogRow | None = None
        last: OplogRow | None = None
        after = self.common
        while rows := snapshot.oplog_after(after, limit=PAGE_ENTRIES, max_bytes=PAGE_BYTES):
            for row in rows:
                if entry_hash(row.entry) != row.hash:
                    damaged.append(row.optime)
                    continue
                self._add(writer, FileKind.OPLOG, OPLOG_NS, None, row.entry)
                operations[row.op] += 1
            self.progress.written = operations.total()
            first, last = first or rows[0], rows[-1]
            after = last.optime
        invariant(first is not None and last is not None, "there is an entry after the common point")
        assert first is not None and last is not None  # noqa: PT018  # for the type checker
        when = utc_text(self.wall_ms)
        return Manifest(
            id="",
            state=state,
            reason=self.reason + _left_out(damaged),
            set_name=self.context.identity.set_name,
            member=self.context.identity.member,
            when=when,
            source=self.source,
            common_point=self.common,
            first=first.optime,
            last=last.optime,
            first_wall_ms=first.wall_ms,
            last_wall_ms=last.wall_ms,
            entries=operations.total(),
            operations=operations,
            files=(),
            settled=when if state is RollbackState.EXPORTED else None,
            oplog_only=self.context.store.oplog_only,
        )

    def _documents(self, snapshot: Snapshot, writer: RollbackWriter) -> None:
        """Write each existing document that was written after the common point and differs from what it was then."""
        if self.common.ts < snapshot.pruned_through:
            self._current_documents(snapshot, writer)
            return
        place: tuple[bytes, bytes] | None = None
        while touched := snapshot.touched_after(self.common.ts, place, TOUCHED_PAGE):
            for uuid, key in touched:
                coll = snapshot.collection_by_uuid(uuid)
                if coll is not None and coll.dropped_ts is None:
                    self._document(snapshot, writer, coll, key)
            place = touched[-1]

    def _document(self, snapshot: Snapshot, writer: RollbackWriter, coll: Collection, key: bytes) -> None:
        now = snapshot.get(coll, key)
        before = snapshot.get(coll, key, self.common) if coll.created_ts <= self.common.ts else None
        if now is None or now == before:
            return
        uuid = UUID(bytes=coll.uuid)
        self._add(writer, FileKind.DOCUMENTS, coll.ns, uuid, now)
        self.progress.documents += 1
        if before is not None:
            self._add(writer, FileKind.BEFORE, coll.ns, uuid, before)

    def _current_documents(self, snapshot: Snapshot, writer: RollbackWriter) -> None:
        """Export from before the undo log begins: the documents' state at the common point is not known."""
        seen, renamed = self._from_commands(snapshot)
        place: tuple[str, bytes] | None = None
        while written := snapshot.written_after(self.common.ts, place, WRITTEN_PAGE):
            for ns, key in written:
                self._current_document(snapshot, writer, ns, key, renamed)
            place = written[-1]
        for ns, key_of_one in seen:
            if key_of_one is not None:
                self._current_document(snapshot, writer, ns, key_of_one, renamed)

    def _current_document(
        self, snapshot: Snapshot, writer: RollbackWriter, ns: str, key: bytes, renamed: dict[str, bytes]
    ) -> None:
        coll = snapshot.collection(ns) or snapshot.collection_by_uuid(renamed.get(ns, b""))
        now = None if coll is None or coll.dropped_ts is not None else snapshot.get(coll, key)
        if coll is not None and now is not None:
            self._add(writer, FileKind.DOCUMENTS, coll.ns, UUID(bytes=coll.uuid), now)
            self.progress.documents += 1

    def _from_commands(self, snapshot: Snapshot) -> tuple[set[tuple[str, bytes | None]], dict[str, bytes]]:
        """(namespace, key) of the documents of transactions, which no row names; and the UUIDs of collections that were
        renamed, by their old names.
        """
        after, seen, renamed = self.common, set[tuple[str, bytes | None]](), dict[str, bytes]()
        while rows := snapshot.oplog_after(after, limit=PAGE_ENTRIES, max_bytes=PAGE_BYTES, op=COMMAND):
            after = rows[-1].optime
            for row in rows:
                if entry_hash(row.entry) != row.hash:
                    continue
                entry = OplogEntry(row.entry)
                seen.update((one.ns, one.key()) for one in entry.operations)
                old = entry.o.get("renameCollection")
                if isinstance(old, str) and entry.ui is not None:
                    renamed[old] = entry.ui
        return seen, renamed

    def _add(self, writer: RollbackWriter, kind: FileKind, ns: str, uuid: UUID | None, document: bytes) -> None:
        writer.add(kind, ns, uuid, document)
        self.progress.size += len(document)


def _left_out(damaged: list[OpTime]) -> str:
    if not damaged:
        return ""
    named = ", ".join(str(optime) for optime in damaged[:_NAMED_ENTRIES_MAX])
    more = "" if len(damaged) <= _NAMED_ENTRIES_MAX else f" and {len(damaged) - _NAMED_ENTRIES_MAX} more"
    return f"; left out, damaged on this member's disk: {named}{more}"


# --- writing ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _OpenFile:
    name: str
    kind: FileKind
    ns: str
    uuid: UUID | None
    count: int = 0
    size: int = 0
    created: bool = False
    waiting: list[bytes] = field(default_factory=list)
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)

    def take(self, document: bytes) -> None:
        self.waiting.append(document)
        self.digest.update(document)
        self.size += len(document)
        self.count += 1


class RollbackWriter:
    """Writes the BSON files of one rollback and then its manifest. It blocks, so it runs in a worker thread.

    The files count only once the manifest exists. Until then `discard` removes them.
    """

    def __init__(self, disk: Disk, dbpath: str, wall_ms: int, *, mongodb_layout: bool = False) -> None:
        """mongodb_layout: also write documents as `UUID/removed.TIME.N.bson` (map Ro5), for MongoDB's tools."""
        self._disk = disk
        self._mongodb_layout = mongodb_layout
        self._removed: dict[UUID, _OpenFile] = {}
        self._dbpath = dbpath
        self._folder = os.path.join(dbpath, FOLDER)
        self._stamp = file_timestamp(wall_ms)
        self._open: dict[tuple[FileKind, str, UUID | None], _OpenFile] = {}
        self._bytes_waiting = 0
        self._manifest = ""

    def add(self, kind: FileKind, ns: str, uuid: UUID | None, document: bytes) -> None:
        """Add a document to the file of this collection; the first one creates the file."""
        file = self._open.get((kind, ns, uuid))
        if file is None:
            prefix = "before." if kind is FileKind.BEFORE else ""
            file = _OpenFile(self._free_name(f"{prefix}{escape_namespace(ns)}.", "bson"), kind, ns, uuid)
            self._open[kind, ns, uuid] = file
        file.take(document)
        self._bytes_waiting += len(document)
        if self._mongodb_layout and kind is FileKind.DOCUMENTS and uuid is not None:
            self._add_removed(ns, uuid, document)
        if self._bytes_waiting >= _BUFFER_BYTES:
            self._write_out()

    def _add_removed(self, ns: str, uuid: UUID, document: bytes) -> None:
        file = self._removed.get(uuid)
        if file is None:
            self._disk.make_folder(os.path.join(self._folder, str(uuid)))
            name = self._free_name(os.path.join(str(uuid), "removed."), "bson")
            file = self._removed[uuid] = _OpenFile(name, FileKind.DOCUMENTS, ns, uuid)
        file.take(document)
        self._bytes_waiting += len(document)

    def _files(self) -> list[_OpenFile]:
        return [*self._open.values(), *self._removed.values()]

    def _write_out(self) -> None:
        for file in self._files():
            if file.waiting:
                self._disk.write_file(os.path.join(self._folder, file.name), file.waiting, append=file.created)
                file.created = True
                file.waiting = []
        self._bytes_waiting = 0

    def _free_name(self, head: str, suffix: str) -> str:
        """`HEAD TIME.N.SUFFIX`, without the space, with the first N that is free: no file is ever overwritten."""
        if not self._disk.exists(self._folder):
            self._disk.make_folder(self._folder)
        taken = {file.name for file in self._open.values()}
        number = 0
        while True:
            name = f"{head}{self._stamp}.{number}.{suffix}"
            if name not in taken and not self._disk.exists(os.path.join(self._folder, name)):
                return name
            number += 1

    def finish(self) -> tuple[RollbackFile, ...]:
        """Write and sync every file and the folder; returns the rows of the manifest."""
        self._write_out()
        for file in self._removed.values():
            self._disk.sync_file(os.path.join(self._folder, file.name))
            self._disk.sync_folder(os.path.join(self._folder, str(file.uuid)))
        files = []
        for file in self._open.values():
            self._disk.sync_file(os.path.join(self._folder, file.name))
            digest = file.digest.hexdigest()
            files.append(RollbackFile(file.name, file.kind, file.ns, file.uuid, file.count, file.size, digest))
        sync_names(self._disk, self._dbpath)
        return tuple(sorted(files, key=lambda file: (file.kind.value, file.ns, file.name)))

    def write_manifest(self, manifest: Manifest) -> Manifest:
        """Give the manifest its id and write it, synced. From here on the files belong to it."""
        name = self._free_name("rollback-", "json")
        removed = tuple(sorted(file.name for file in self._removed.values()))
        named = replace(manifest, id=name.removesuffix(".json"), mongodb_files=removed)
        self._manifest = os.path.join(self._folder, name)
        store_manifest(self._disk, self._dbpath, named)
        self._manifest = ""
        self._open.clear()
        self._removed.clear()
        return named

    def discard(self) -> None:
        """After a failure, remove what was written, the manifest first. Does nothing after success.

        A manifest must not outlive its files: it would promise lost writes that are not there.
        """
        paths = [os.path.join(self._folder, file.name) for file in self._files()]
        if self._manifest:
            paths = [self._manifest, f"{self._manifest}.tmp", *paths]
        for path in paths:
            self._disk.remove(path)
        self._open.clear()
        self._removed.clear()


def file_timestamp(wall_ms: int) -> str:
    """Format a time for a file name: `YYYY-MM-DDTHH-MM-SS` in UTC."""
    return utc_text(wall_ms)[:19].replace(":", "-")


def escape_namespace(ns: str) -> str:
    """Turn a namespace into a part of a file name: percent-escaped, and if too long, cut and followed by a hash.

    `~` is used only before the hash, so no two namespaces get the same name.
    """
    parts = [
        character if character in _PLAIN else "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "replace"))
        for character in ns
    ]
    if parts and parts[0] == ".":
        parts[0] = "%2E"  # no hidden files
    if sum(map(len, parts)) <= _NAME_MAX:
        return "".join(parts)
    digest = hashlib.sha256(ns.encode("utf-8", "replace")).hexdigest()[:16]
    while sum(map(len, parts)) > _NAME_MAX - 17:
        parts.pop()
    return f"{''.join(parts)}~{digest}"
