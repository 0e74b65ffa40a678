"""Initial sync: one consistent copy of the source's database file, fetched in chunks and installed whole.

The marker in member.db is set first; while it is set the member neither votes nor acknowledges nor serves reads, and
whatever a crash leaves, the next start begins again. What the copy would replace is exported as a rollback before the
first byte is fetched. The other end is `commands/oplog_serving.py`; the swap of the files is the storage's.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

import apsw

from replset.core.messages import InitialSyncBegun, InitialSyncEnded, Report
from replset.errors import OutOfDiskSpaceError, RemoteProtocolError, ReplError
from replset.ids import OPTIME_NULL, HostPort, Millis, OpTime
from replset.replication.ports import Clock, Peer, Workers
from replset.replication.private_commands import SnapshotReply, SnapshotRequest
from replset.replication.rollback import Identity, export_before_wipe, settle
from replset.storage.disk import Disk, file_sha256
from replset.storage.oplog import newest_row
from replset.storage.sqlite import storage_error
from replset.storage.store import Store
from replset.storage.txn import write_meta

log = logging.getLogger("replset.initial_sync")

COPY_NAME = "initial-sync.db"
_COPY_FOR = "copy_for"  # meta of an installed copy: the id of the initial sync that it was fetched for


class Marker(NamedTuple):
    """What the marker in member.db says: whose initial sync it is, and as who this member goes on."""

    sync_id: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class InitialSyncOptions:
    """chunk_bytes: one answer. attempts: of one chunk, while the copy lives at the source. spare_bytes: kept free."""

    chunk_bytes: int = 4 << 20
    attempts: int = 5
    pause_ms: int = 500
    call_timeout_ms: int = 30_000
    spare_bytes: int = 64 << 20


class InitialSync:
    """Replaces this member's data by a copy of another member's."""

    def __init__(
        self,
        *,
        peer: Peer,
        clock: Clock,
        workers: Workers,
        disk: Disk,
        dbpath: str,
        store: Callable[[], Store],
        identity: Callable[[], Identity],
        commit_point: Callable[[], OpTime],
        set_marker: Callable[[], Awaitable[Marker]],
        claim: Callable[[OpTime], Awaitable[str]],
        install: Callable[[str], Awaitable[None]],
        undone: Callable[[], None],
        report: Callable[[Report], None],
        options: InitialSyncOptions | None = None,
    ) -> None:
        """store: the one that is open now. commit_point: the core's. set_marker: `MemberFile.begin_initial_sync`, and
        claim: `MemberFile.claim_copy`, each in a worker; claim returns the incarnation. install: given the copy's
        path, closes the store, installs the copy (`install_copy`), opens it again and clears the marker. undone: see
        Rollback. report: feeds the core.
        """
        self._peer = peer
        self._clock = clock
        self._workers = workers
        self._disk = disk
        self._dbpath = dbpath
        self._store = store
        self._identity = identity
        self._commit_point = commit_point
        self._set_marker = set_marker
        self._claim = claim
        self._install = install
        self._undone = undone
        self._report = report
        self._options = options or InitialSyncOptions()
        self.bytes_total = 0
        self.bytes_copied = 0

    async def run(self, source: HostPort, reason: str) -> None:
        """One attempt; reports InitialSyncBegun once the marker is durable, and InitialSyncEnded."""
        began = self._clock.now()
        try:
            marker = await self._set_marker()
            self._report(InitialSyncBegun(marker.incarnation))
            await self._export(source, reason, marker.sync_id)
            copy = await self._fetch(source)
            newest = await self._workers.run(lambda: name_copy(self._disk, copy, marker.sync_id))
            incarnation = await self._claim(newest)
            if incarnation != marker.incarnation:
                self._report(InitialSyncBegun(incarnation))
            await self._install(copy)
        except (ReplError, OSError) as error:
            detail = error.message if isinstance(error, ReplError) else str(error)
            log.warning("initial sync from %s failed: %s", source, detail)
            await self._workers.run(self._remove_copy)
            self._report(InitialSyncEnded(source, ok=False, detail=detail))
            return
        detail = f"{self.bytes_copied} bytes in {self._clock.now() - began} ms"
        log.info("initial sync from %s done: %s", source, detail)
        self._report(InitialSyncEnded(source, ok=True, detail=detail))

    async def _export(self, source: HostPort, reason: str, sync_id: str) -> None:
        """Settle the rollbacks of this member and export what the copy would replace."""
        store = self._store()
        await settle(store, self._disk, self._dbpath, self._clock, self._workers, self._undone)
        with store.read() as snapshot:
            if snapshot.meta(_COPY_FOR) == sync_id:
                return  # this attempt's own copy, installed just before a crash: nothing of mine is in it
        await export_before_wipe(
            store,
            self._disk,
            self._dbpath,
            self._workers,
            self._clock.wall_ms(),
            self._identity(),
            self._commit_point(),
            reason,
            source,
        )

    # --- the copy -----------------------------------------------------------------------------------------------

    async def _fetch(self, source: HostPort) -> str:
        """Bring the source's copy here, verified and synced; its path."""
        path = os.path.join(self._dbpath, COPY_NAME)
        await self._workers.run(self._remove_copy)
        offer = await self._ask(source, SnapshotRequest("begin"))
        try:
            while not offer.ready:
                await asyncio.sleep(self._options.pause_ms / 1000)
                offer = await self._again(source, offer, SnapshotRequest("begin", offer.snapshot_id))
            self.bytes_total, self.bytes_copied = offer.size, 0
            await self._fetch_chunks(source, offer, path)
        finally:
            await self._let_go(source, offer)
        return path

    def _remove_copy(self) -> None:
        """The file of an attempt that did not come to its end."""
        try:
            self._disk.remove(os.path.join(self._dbpath, COPY_NAME))
        except OSError as error:
            log.warning("%s", error)

    async def _fetch_chunks(self, source: HostPort, offer: SnapshotReply, path: str) -> None:
        free = await self._workers.run(lambda: self._disk.free_bytes(self._dbpath))
        if free < offer.size + self._options.spare_bytes:
            raise OutOfDiskSpaceError(f"the copy takes {offer.size} bytes, the disk has {free} left")
        while self.bytes_copied < offer.size:
            length = min(self._options.chunk_bytes, offer.size - self.bytes_copied)
            request = SnapshotRequest("chunk", offer.snapshot_id, self.bytes_copied, length)
            data = (await self._again(source, offer, request)).data
            if not data or len(data) > length:
                raise RemoteProtocolError(f"{source} sent {len(data)} bytes of its copy instead of {length}")
            append = self.bytes_copied > 0
            await self._workers.run(lambda: self._disk.write_file(path, [data], append=append))  # noqa: B023  # awaited
            self.bytes_copied += len(data)
        found = await self._workers.run(lambda: self._seal(path))
        if found != offer.sha256:
            raise RemoteProtocolError(f"the copy of {source} arrived with SHA-256 {found}, it was {offer.sha256}")

    def _seal(self, path: str) -> str:
        """Sync the copy and its name, and read it back for its checksum."""
        self._disk.sync_file(path)
        self._disk.sync_folder(self._dbpath)
        return file_sha256(self._disk, path)

    async def _again(self, source: HostPort, offer: SnapshotReply, request: SnapshotRequest) -> SnapshotReply:
        """Ask, a few times if the network fails; the copy is void once the source rolled back."""
        attempt = 1
        while True:
            try:
                reply = await self._ask(source, request)
            except ReplError as error:
                if error.code not in _RETRIABLE or attempt == self._options.attempts:
                    raise
                attempt += 1
                await asyncio.sleep(self._options.pause_ms / 1000)
                continue
            if reply.rollback_id != offer.rollback_id:
                raise RemoteProtocolError(f"{source} rolled back while its copy was fetched")
            return reply

    async def _ask(self, source: HostPort, request: SnapshotRequest) -> SnapshotReply:
        timeout_ms = Millis(self._options.call_timeout_ms)
        return SnapshotReply.parse(await self._peer.call(source, request.document(), timeout_ms=timeout_ms))

    async def _let_go(self, source: HostPort, offer: SnapshotReply) -> None:
        try:
            await self._ask(source, SnapshotRequest("end", offer.snapshot_id))
        except ReplError as error:
            log.info("%s keeps its copy until it expires: %s", source, error.message)


def name_copy(disk: Disk, path: str, sync_id: str) -> OpTime:
    """Note in a fetched copy for which initial sync it is, so that a restart does not take it for data of its own.

    Returns its newest optime, OPTIME_NULL of an empty one.
    """
    try:
        connection = disk.connect(path)
        try:
            connection.pragma("journal_mode", "delete")
            with connection:
                write_meta(connection, _COPY_FOR, sync_id)
            newest = newest_row(connection)
            return OPTIME_NULL if newest is None else newest.optime
        finally:
            connection.close(True)
    except apsw.Error as error:
        raise storage_error(error, path) from error


_RETRIABLE = frozenset({6, 89})  # HostUnreachable, NetworkTimeout
