"""Lists the rollbacks on this member's disk and counts those that nobody has acknowledged.

A tool in another process may acknowledge one at any time. So the count is as old as the last `refresh`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence

from replset.bson import MAX_INTERNAL_SIZE
from replset.errors import CorruptDataError, ReplError
from replset.ids import OpTime
from replset.oplog_entry import OplogEntry
from replset.replication.ports import Workers
from replset.replication.rollback_manifest import (
    ACK_SUFFIX,
    FOLDER,
    FileKind,
    Manifest,
    RollbackState,
    acknowledge,
    acknowledged,
    id_order,
    is_manifest_name,
)
from replset.storage.disk import Disk, read_chunks
from replset.storage.sqlite import storage_error

log = logging.getLogger("replset.rollback")


class RollbackList:
    """unacknowledged: the number of rollbacks and exports, with damaged manifests, without abandoned ones."""

    def __init__(self, disk: Disk, dbpath: str, workers: Workers, *, undecided: Callable[[], str] = lambda: "") -> None:
        """undecided: the id of what an initial sync under way has exported; its copy may hold all of that."""
        self._disk = disk
        self.folder = os.path.join(dbpath, FOLDER)
        self._workers = workers
        self._undecided = undecided
        self._abandoned: set[str] = set()
        self._settled: set[str] = set()
        self.unacknowledged = 0

    async def refresh(self) -> int:
        """Read the folder and return the count; the last known count when the folder cannot be read."""
        try:
            self.unacknowledged = await self._workers.run(self._count)
        except ReplError as error:
            log.warning("the rollbacks of this member cannot be counted: %s", error.message)
        return self.unacknowledged

    async def acknowledge(self, rollback_id: str, *, wall_ms: int, by: str) -> bool:
        """Note that a person knows of a rollback. False when that was noted before. StorageError."""
        is_new = await self._workers.run(lambda: self._note(rollback_id, wall_ms, by))
        await self.refresh()
        return is_new

    def _note(self, rollback_id: str, wall_ms: int, by: str) -> bool:
        try:
            return acknowledge(self._disk, self.folder, rollback_id, wall_ms=wall_ms, by=by)
        except OSError as error:
            raise storage_error(error, self.folder) from error

    def _count(self) -> int:
        names = self._names()
        noted = {name.removesuffix(ACK_SUFFIX) for name in names if name.endswith(ACK_SUFFIX)}
        noted.add(self._undecided())
        open_ones = [name for name in names if is_manifest_name(name) and name.removesuffix(".json") not in noted]
        return sum(not self._is_abandoned(name) for name in open_ones)

    def _names(self) -> list[str]:
        try:
            return self._disk.list_folder(self.folder) if self._disk.exists(self.folder) else []
        except OSError as error:
            raise storage_error(error, self.folder) from error

    def _is_abandoned(self, name: str) -> bool:
        """A settled manifest is read only once, because nothing changes it."""
        if name not in self._settled:
            try:
                manifest = self._read(name)
            except (CorruptDataError, OSError):
                return False
            if manifest.state is not RollbackState.PLANNED:
                self._settled.add(name)
            if manifest.state is RollbackState.ABANDONED:
                self._abandoned.add(name)
        return name in self._abandoned

    def _read(self, name: str) -> Manifest:
        return Manifest.parse(self._disk.read_file(os.path.join(self.folder, name)), name)

    async def listed(self) -> list[dict[str, object]]:
        """Every manifest as a document, oldest first, with `acknowledged`: the time, or None.

        A manifest that cannot be read has `error` instead. StorageError when the folder cannot be read.
        """
        return await self._workers.run(self._list)

    def _list(self) -> list[dict[str, object]]:
        found: list[dict[str, object]] = []
        for name in filter(is_manifest_name, self._names()):
            stem = name.removesuffix(".json")
            try:
                row = self._read(name).document()
            except (CorruptDataError, OSError) as error:
                row = {"id": stem, "error": str(error)}
            found.append({**row, "acknowledged": acknowledged(self.folder, stem)})
        return sorted(found, key=lambda row: id_order(str(row["id"])))

    async def with_entry(self, optime: OpTime) -> list[Manifest]:
        """The manifests of the rollbacks that have this oplog entry, oldest first, abandoned ones left out.

        A file that cannot be read is passed over. StorageError when the folder cannot be read.
        """
        return await self._workers.run(lambda: self._find(optime))

    def _find(self, optime: OpTime) -> list[Manifest]:
        found: list[Manifest] = []
        for name in filter(is_manifest_name, self._names()):
            try:
                manifest = self._read(name)
                is_candidate = manifest.first <= optime <= manifest.last
                if is_candidate and manifest.state is not RollbackState.ABANDONED and self._has(manifest, optime):
                    found.append(manifest)
            except (ReplError, OSError) as error:
                log.warning("%s cannot be searched for %s: %s", name, optime, error)
        return sorted(found, key=lambda manifest: id_order(manifest.id))

    async def entries_between(
        self, after_ts: int, until_ts: int, names: Sequence[bytes], most_bytes: int
    ) -> tuple[list[tuple[Manifest, list[OplogEntry]]], list[str]]:
        """The entries in this range that rollbacks took away and whose bytes have one of these names, by rollback.

        Also the ids of those that were not read: they would be more than `most_bytes`, or are damaged. StorageError.
        """
        return await self._workers.run(lambda: self._entries_between(after_ts, until_ts, names, most_bytes))

    def _entries_between(
        self, after_ts: int, until_ts: int, names: Sequence[bytes], most_bytes: int
    ) -> tuple[list[tuple[Manifest, list[OplogEntry]]], list[str]]:
        found: list[tuple[Manifest, list[OplogEntry]]] = []
        left_out: list[str] = []
        for name in sorted(filter(is_manifest_name, self._names()), key=lambda name: id_order(name[: -len(".json")])):
            try:
                manifest = self._read(name)
                file = next((file for file in manifest.files if file.kind is FileKind.OPLOG), None)
                is_outside = manifest.last.ts <= after_ts or manifest.first.ts > until_ts
                if is_outside or file is None or manifest.state in (RollbackState.ABANDONED, RollbackState.PLANNED):
                    continue
                most_bytes -= file.size
                if most_bytes < 0:
                    left_out.append(manifest.id)
                    continue
                chunks = read_chunks(self._disk, os.path.join(self.folder, file.name))
                entries = [
                    OplogEntry(raw) for raw in _documents(chunks, file.name) if any(name in raw for name in names)
                ]
                found.append((manifest, [entry for entry in entries if after_ts < entry.optime.ts <= until_ts]))
            except (ReplError, OSError) as error:
                log.warning("%s cannot be searched: %s", name, error)
                left_out.append(name.removesuffix(".json"))
        return found, left_out

    def _has(self, manifest: Manifest, optime: OpTime) -> bool:
        """Whether the oplog file has the entry: between first and last there may be entries of another history."""
        path = next((file.name for file in manifest.files if file.kind is FileKind.OPLOG), None)
        if path is None or optime in (manifest.first, manifest.last):
            return path is not None
        chunks = read_chunks(self._disk, os.path.join(self.folder, path))
        return any(OplogEntry(raw).optime == optime for raw in _documents(chunks, path))


def _documents(chunks: Iterable[bytes], name: str) -> Iterator[bytes]:
    """Cut a BSON file, which comes in chunks, into its documents. CorruptDataError where none begins."""
    data = b""
    for chunk in chunks:
        data, at = data + chunk, 0
        while len(data) - at >= 4:
            size = int.from_bytes(data[at : at + 4], "little")
            if not 5 <= size <= MAX_INTERNAL_SIZE:
                raise CorruptDataError(f"{name} is damaged: no document has {size} bytes")
            if len(data) - at < size:
                break
            yield data[at : at + size]
            at += size
        data = data[at:]
