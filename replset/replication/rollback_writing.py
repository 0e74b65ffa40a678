"""Everything behind an entry, written to rollback files: what is about to be undone, or wiped."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from uuid import UUID

from replset.ids import HostPort, OpTime, invariant
from replset.oplog_row import OplogRow, entry_hash
from replset.replication.rollback_files import (
    OPLOG_NS,
    FileKind,
    Manifest,
    RollbackState,
    RollbackWriter,
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
_NAMED_ENTRIES = 20


@dataclass(frozen=True, slots=True)
class Identity:
    """Who is rolling back, for the manifest. mongodb_layout: whether its files are in MongoDB's layout too."""

    set_name: str
    member: HostPort
    mongodb_layout: bool = False


@dataclass(frozen=True, slots=True)
class Writing:
    """Writes everything behind `common` to files: what a rollback is about to undo, or a wipe to erase."""

    disk: Disk
    dbpath: str
    wall_ms: int
    identity: Identity
    common: OpTime
    reason: str
    source: HostPort | None
    progress: RollbackProgress = field(default_factory=RollbackProgress)

    def write(self, snapshot: Snapshot, state: RollbackState) -> Manifest:
        """In a worker thread: entries, documents, then the manifest, all synced. Ends the snapshot.

        OutOfDiskSpaceError and OSError: nothing is left behind.
        """
        layout = self.identity.mongodb_layout
        writer = RollbackWriter(self.disk, self.dbpath, self.wall_ms, mongodb_layout=layout)
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
        """The oplog's part; the manifest without files.

        An entry that the disk has changed is left out and named in the reason: written as it is, it would be taken for
        what a client wrote. Its document is in the documents' file, as the member held it.
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
        invariant(first is not None and last is not None, "something lies behind the common point")
        assert first is not None and last is not None  # noqa: PT018  # for the type checker
        when = utc_text(self.wall_ms)
        return Manifest(
            id="",
            state=state,
            reason=self.reason + _left_out(damaged),
            set_name=self.identity.set_name,
            member=self.identity.member,
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
        )

    def _documents(self, snapshot: Snapshot, writer: RollbackWriter) -> None:
        """Each document that is here, was written behind the common point and differs from what it was there."""
        if self.common.ts < snapshot.pruned_through:
            self._documents_as_they_are(snapshot, writer)
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

    def _documents_as_they_are(self, snapshot: Snapshot, writer: RollbackWriter) -> None:
        """For an export from before what the undo knows: what the documents were at the common point is gone."""
        place: tuple[str, bytes] | None = None
        while written := snapshot.written_after(self.common.ts, place, WRITTEN_PAGE):
            for ns, key in written:
                coll = snapshot.collection(ns)
                now = None if coll is None else snapshot.get(coll, key)
                if coll is not None and now is not None:
                    self._add(writer, FileKind.DOCUMENTS, ns, UUID(bytes=coll.uuid), now)
                    self.progress.documents += 1
            place = written[-1]

    def _add(self, writer: RollbackWriter, kind: FileKind, ns: str, uuid: UUID | None, document: bytes) -> None:
        writer.add(kind, ns, uuid, document)
        self.progress.size += len(document)


def _left_out(damaged: list[OpTime]) -> str:
    if not damaged:
        return ""
    named = ", ".join(str(optime) for optime in damaged[:_NAMED_ENTRIES])
    more = "" if len(damaged) <= _NAMED_ENTRIES else f" and {len(damaged) - _NAMED_ENTRIES} more"
    return f"; left out, damaged on this member's disk: {named}{more}"
