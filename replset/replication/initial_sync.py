"""Initial sync: one consistent copy of the source's database file, fetched in chunks and installed whole.

The marker in member.db is set first; while it is set the member neither votes nor acknowledges nor serves reads, and
whatever a crash leaves, the next start begins again. What the copy would replace is exported as a rollback before the
first byte is fetched. A transfer that broke goes on where it stopped as long as the source has that very copy
(`transfer.py`). A source that lacks what this member acknowledged or knows to be committed is refused, unless an
operator forces the copy. The other end is `commands/oplog_serving.py`; the swap of the files is the storage's.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import apsw

from replset.bson import RawDocument
from replset.core.messages import InitialSyncEnded, InitialSyncStarted
from replset.errors import (
    DamagedEntryError,
    ErrorCode,
    InvalidSyncSourceError,
    OutOfDiskSpaceError,
    RemoteProtocolError,
    ReplError,
    UnrecoverableRollbackError,
)
from replset.ids import OPTIME_NULL, HostPort, Millis, OpTime
from replset.oplog_row import OplogRow
from replset.replication.common_point import CommonPoint, NoCommonPointError
from replset.replication.context import MemberContext
from replset.replication.initial_sync_progress import FailedAttempt, InitialSyncProgress
from replset.replication.partial_copy import CopyRecord, PartialCopy
from replset.replication.ports import Peer
from replset.replication.protocol import ProbeReply, ProbeRequest, SnapshotReply, SnapshotRequest
from replset.replication.rollback import export_before_wipe, finish_rollbacks
from replset.replication.rollback_manifest import Manifest, RollbackState, settle_manifest
from replset.storage.copies import check_database
from replset.storage.disk import Disk
from replset.storage.oplog import is_in_history, newest_row, oldest_row, row_at
from replset.storage.sqlite import storage_error, transaction
from replset.storage.store import Store
from replset.storage.txn import write_meta
from replset.storage.undo import rollback_in_progress

log = logging.getLogger("replset.initial_sync")

CHECKED_ENTRIES = 1 << 60
"""Of a copy: all that it has. A damaged entry that is copied would be damaged on both."""
_COPY_FOR = "copy_for"  # meta of an installed copy: the id of the initial sync that it was fetched for
_UNREACHABLE = frozenset({ErrorCode.HOST_UNREACHABLE, ErrorCode.NETWORK_TIMEOUT})
_NOT_NOW = _UNREACHABLE | {
    ErrorCode.SHUTDOWN_IN_PROGRESS,
    ErrorCode.INTERRUPTED_AT_SHUTDOWN,
    ErrorCode.INTERRUPTED_BY_STATE_CHANGE,
    ErrorCode.NOT_PRIMARY_NO_SECONDARY_OK,
    ErrorCode.NOT_PRIMARY_OR_SECONDARY,
    ErrorCode.OUT_OF_DISK_SPACE,
}
"""Codes that say nothing about the copy: shutting down, a state that serves nothing for a while, a full disk."""
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


class InitialSyncMarker(NamedTuple):
    """What the marker in member.db says: whose initial sync it is, and as who this member goes on."""

    sync_id: str
    incarnation: str


class RequiredEntries(NamedTuple):
    """What a copy must hold. held: the newest entry of the data that it replaces, which this member may have
    acknowledged. committed: the newest entry that it knows to be committed.
    """

    held: OpTime
    committed: OpTime


def newest_entry_to_keep(store: Store) -> OpTime:
    """The newest entry that stays: a rollback that is not at its end takes back what lies behind its common point."""
    mark = rollback_in_progress(store)
    return store.last_applied if mark is None else mark.common_point


class CopyContents(NamedTuple):
    """Of an oplog: its newest and oldest entry, whether the commit point that was asked about is in it, and whether all
    that was exported is in its history.
    """

    newest: OpTime
    oldest: OpTime
    has_committed: bool
    holds_exported: bool = False


@dataclass(frozen=True, slots=True)
class InitialSyncOptions:
    """chunk_bytes: one answer. keep_chunks: synced and put on record after so many. attempts: of one chunk, before the
    attempt as a whole ends. spare_bytes: kept free. room_pause_ms: between two looks at a disk that is full.
    """

    chunk_bytes: int = 4 << 20
    keep_chunks: int = 16
    attempts: int = 5
    pause_ms: int = 500
    call_timeout_ms: int = 30_000
    spare_bytes: int = 64 << 20
    room_pause_ms: int = 1_000


class InitialSync:
    """Replaces this member's data by a copy of another member's."""

    def __init__(
        self,
        context: MemberContext,
        *,
        peer: Peer,
        known: Callable[[], RequiredEntries],
        set_marker: Callable[[RequiredEntries], Awaitable[InitialSyncMarker]],
        claim: Callable[[OpTime], Awaitable[str]],
        install: Callable[[str], Awaitable[None]],
        options: InitialSyncOptions | None = None,
    ) -> None:
        """known: also what an earlier attempt noted with the marker. set_marker: `MemberFile.begin_initial_sync`, and
        claim: `MemberFile.claim_copy`, each in a worker; claim returns the incarnation. install: given the path of a
        copy that passed its checks, closes the store, installs the copy (`install_copy`), opens it again and clears the
        marker.
        """
        self._context = context
        self._peer = peer
        self._copy = PartialCopy(context.disk, context.dbpath)
        self._known = known
        self._set_marker = set_marker
        self._claim = claim
        self._install = install
        self._options = options or InitialSyncOptions()
        self.progress = InitialSyncProgress()

    def clear_leftovers(self) -> None:
        """At start, when no marker is set: nothing of an earlier transfer is of use any more."""
        self._copy.discard()

    def forget(self) -> None:
        """The resync was given up: what came of the copy is of no use. For a worker."""
        try:
            self._copy.discard()
        except OSError as error:
            log.warning("%s", error)

    async def run(self, source: HostPort, reason: str, *, forced: bool = False) -> None:
        """One attempt; reports InitialSyncStarted once the marker is durable, and InitialSyncEnded.

        forced: the source may lack what this member acknowledged or knows to be committed.
        """
        known = self._known()
        began = self._context.clock.now()
        self.progress.begin(source, began, self._context.clock.wall_ms())
        try:
            if not forced:
                await self._ask_for_known(source, known)
            marker = await self._set_marker(known)
            self._context.on_report(InitialSyncStarted(marker.incarnation))
            exported = await self._export(source, reason, marker.sync_id, known.committed, forced)
            transfer = await self._fetch(source, marker.sync_id)
            try:
                newest = None if exported is None else self._context.store.oplog_row_at(exported.last)
                copy = await self._context.workers.run(lambda: self._check(marker.sync_id, known.committed, newest))
                if not forced:
                    _refuse_unless_reached(transfer.source, copy, known)
            except ReplError as error:
                if isinstance(error, DamagedEntryError):
                    await self._tell_damage(transfer.source, error)
                await self._give_up_unless_passing(transfer, error)
                raise
            if exported is not None and copy.holds_exported:
                await self._withdraw(exported)
            incarnation = await self._claim(copy.newest)
            if incarnation != marker.incarnation:
                self._context.on_report(InitialSyncStarted(incarnation))
            await self._install(self._copy.path)
        except (ReplError, OSError) as error:
            detail = error.message if isinstance(error, ReplError) else str(error)
            log.warning("initial sync from %s failed: %s", source, detail)
            self.progress.fail(FailedAttempt(source, self._context.clock.now() - began, detail))
            refused = isinstance(error, InvalidSyncSourceError)
            self._context.on_report(InitialSyncEnded(source, ok=False, detail=detail, refused=refused))
            return
        self.progress.succeed(self._context.clock.now(), self._context.clock.wall_ms())
        detail = f"{self.progress.copied} bytes in {self._context.clock.now() - began} ms"
        log.info("initial sync from %s done: %s", transfer.source, detail)
        holds_committed = _has_reached(copy, known)
        self._context.on_report(InitialSyncEnded(source, ok=True, detail=detail, holds_committed=holds_committed))
        await self._discard()
        await self._let_go(transfer)

    async def _ask_for_known(self, source: HostPort, known: RequiredEntries) -> None:
        """InvalidSyncSourceError: the source lacks what a copy must hold. Asked before anything is changed here."""
        if known == (OPTIME_NULL, OPTIME_NULL):
            return
        reply = ProbeReply.parse(await self._call(source, ProbeRequest([known.committed])))
        if len(reply.chains) != 1:
            raise RemoteProtocolError(f"{source} answered {len(reply.chains)} of 1 question")
        _refuse_unless_reached(source, CopyContents(reply.newest, reply.oldest, reply.chains[0] is not None), known)

    async def _export(
        self, source: HostPort, reason: str, sync_id: str, committed: OpTime, forced: bool
    ) -> Manifest | None:
        """Settle the rollbacks of this member and export what the copy would replace: what is not known to be
        committed, and before a forced copy all that the source does not have.
        """
        store = self._context.store
        await finish_rollbacks(self._context, self._context.on_undone)
        with store.read() as snapshot:
            if snapshot.meta(_COPY_FOR) == sync_id:
                return None  # this attempt's own copy, installed just before a crash: nothing of mine is in it
        common: OpTime | None = None
        if forced:
            try:
                common = await CommonPoint(self._peer, store, source).find(of_any_term=True)
            except (NoCommonPointError, UnrecoverableRollbackError):
                committed = OPTIME_NULL  # as far back as the undo reaches: what was committed here may not be there
        return await export_before_wipe(
            self._context,
            committed,
            reason,
            source,
            common=common,
        )

    # --- the copy -----------------------------------------------------------------------------------------------

    async def _fetch(self, source: HostPort, sync_id: str) -> CopyRecord:
        """Bring a source's copy here, verified and synced: what is left of the last transfer, or all of a new one."""
        transfer = await self._resume(source, sync_id) or await self._begin(source, sync_id)
        try:
            transfer = await self._await_copy(transfer)
            if not transfer.whole:
                await self._fetch_chunks(transfer)
                sealed, found = await self._context.workers.run(lambda: self._copy.seal(transfer))
                if not sealed.whole:
                    raise RemoteProtocolError(
                        f"the copy of {transfer.source} arrived with SHA-256 {found}, it was {transfer.sha256}"
                    )
                transfer = sealed
        except (ReplError, OSError) as error:
            await self._give_up_unless_passing(transfer, error)
            raise
        return transfer

    async def _resume(self, source: HostPort, sync_id: str) -> CopyRecord | None:
        """The last transfer if its source still has that very copy; None: begin anew.

        Raises when the source cannot be asked now, unless another one was chosen meanwhile.
        """
        transfer = await self._context.workers.run(lambda: self._copy.load(sync_id))
        if transfer is None:
            return None
        request = SnapshotRequest("begin", transfer.snapshot_id)
        try:
            if transfer.source == source:
                offer = await self._again(transfer, request)
            else:
                offer = await self._ask(transfer, request)
        except ReplError as error:
            if transfer.source == source and error.code in _NOT_NOW:
                raise
            log.info("the copy of %s is not to be had any more: %s", transfer.source, error.message)
            return None
        if transfer.size and not _is_same(transfer, offer):
            log.warning("%s has another copy under the name %s", transfer.source, transfer.snapshot_id)
            return None
        if transfer.kept:
            log.info("the copy of %s goes on: %d of %d bytes are here", transfer.source, transfer.kept, transfer.size)
        return transfer

    async def _begin(self, source: HostPort, sync_id: str) -> CopyRecord:
        """Have the source make a copy, and note which."""
        await self._wait_for_room(0)
        request = SnapshotRequest("begin")
        offer = SnapshotReply.parse(await self._call(source, request))
        transfer = CopyRecord(sync_id, source, offer.snapshot_id, offer.rollback_id)
        try:
            await self._context.workers.run(lambda: self._copy.begin(transfer))
        except OSError:
            await self._let_go(transfer)
            raise
        return transfer

    async def _await_copy(self, transfer: CopyRecord) -> CopyRecord:
        """Wait until the source has made it; with its size and checksum, on record."""
        if not transfer.size:
            request = SnapshotRequest("begin", transfer.snapshot_id)
            offer = await self._again(transfer, request)
            while not offer.ready:
                await asyncio.sleep(self._options.pause_ms / 1000)
                offer = await self._again(transfer, request)
            if offer.size <= 0:
                raise RemoteProtocolError(f"{transfer.source} offers a copy of {offer.size} bytes")
            transfer = replace(transfer, size=offer.size, sha256=offer.sha256)
            await self._context.workers.run(lambda: self._copy.save(transfer))
        self.progress.transfer(transfer.source, transfer.kept, self._context.clock.now())
        self.progress.total = transfer.size
        return transfer

    async def _fetch_chunks(self, transfer: CopyRecord) -> None:
        """All that is missing. When it breaks, what came is kept."""
        copied = transfer.kept
        step = self._options.chunk_bytes * self._options.keep_chunks
        try:
            while copied < transfer.size:
                await self._wait_for_room(transfer.size - copied)
                data = await self._chunk(transfer, copied)
                try:
                    await self._context.workers.run(lambda: self._copy.append(data, copied))  # noqa: B023  # awaited
                    copied += len(data)
                    self.progress.copied = copied
                    if copied - transfer.kept >= step:
                        transfer = await self._keep(transfer, copied)
                except OSError as error:
                    if error.errno not in _NO_ROOM:
                        raise
                    await self._pause_for_room(str(error))
        except (ReplError, OSError):
            await self._keep_if_possible(transfer, copied)
            raise

    async def _keep(self, transfer: CopyRecord, copied: int) -> CopyRecord:
        return await self._context.workers.run(lambda: self._copy.keep(transfer, copied))

    async def _keep_if_possible(self, transfer: CopyRecord, copied: int) -> None:
        try:
            await self._keep(transfer, copied)
        except OSError as error:
            log.warning("only %d bytes of the copy are kept: %s", transfer.kept, error)

    async def _chunk(self, transfer: CopyRecord, offset: int) -> bytes:
        """The next piece, of this copy and no other."""
        length = min(self._options.chunk_bytes, transfer.size - offset)
        reply = await self._again(transfer, SnapshotRequest("chunk", transfer.snapshot_id, offset, length))
        if not _is_same(transfer, reply):
            raise RemoteProtocolError(f"{transfer.source} sent a piece of another copy")
        if not reply.data or len(reply.data) > length:
            raise RemoteProtocolError(f"{transfer.source} sent {len(reply.data)} bytes of its copy instead of {length}")
        return reply.data

    async def _withdraw(self, exported: Manifest) -> None:
        """Nothing of it is lost: the copy holds it all. Until that was seen the files had to be there."""
        wall_ms = self._context.clock.wall_ms()
        await self._context.workers.run(
            lambda: settle_manifest(
                self._context.disk, self._context.dbpath, exported, RollbackState.ABANDONED, wall_ms
            )
        )

    def _check(self, sync_id: str, committed: OpTime, exported: OplogRow | None) -> CopyContents:
        """The copy is a sound database; what its oplog holds."""
        ends = name_copy(self._context.disk, self._copy.path, sync_id, committed, exported)
        check_database(self._context.disk, self._copy.path, CHECKED_ENTRIES)
        return ends

    # --- room ---------------------------------------------------------------------------------------------------

    async def _wait_for_room(self, needed: int) -> None:
        """Return once the disk takes `needed` bytes and has some left; nothing is given up while it does not."""
        while True:
            free = await self._context.workers.run(lambda: self._context.disk.free_bytes(self._context.dbpath))
            if free >= needed + self._options.spare_bytes:
                self.progress.waiting_for = ""
                return
            await self._pause_for_room(f"{needed} bytes are still to come, the disk has {free} left")

    async def once_there_is_room(self, work: Callable[[], Awaitable[None]]) -> None:
        """Try `work` until the disk has room for it: for what has no way back."""
        while True:
            try:
                await work()
            except OutOfDiskSpaceError as error:
                await self._pause_for_room(error.message)
            else:
                self.progress.waiting_for = ""
                return

    async def _pause_for_room(self, why: str) -> None:
        if not self.progress.waiting_for:
            log.warning("initial sync waits for room: %s", why)
        self.progress.waiting_for = f"room on the disk: {why}"
        await asyncio.sleep(self._options.room_pause_ms / 1000)

    # --- the source ---------------------------------------------------------------------------------------------

    async def _again(self, transfer: CopyRecord, request: SnapshotRequest) -> SnapshotReply:
        """Ask, a few times if the network fails."""
        for _ in range(self._options.attempts - 1):
            try:
                return await self._ask(transfer, request)
            except ReplError as error:
                if error.code not in _UNREACHABLE:
                    raise
            await asyncio.sleep(self._options.pause_ms / 1000)
        return await self._ask(transfer, request)

    async def _ask(self, transfer: CopyRecord, request: SnapshotRequest) -> SnapshotReply:
        """Ask once about this copy, which is void once its source rolled back."""
        reply = SnapshotReply.parse(await self._call(transfer.source, request))
        if reply.rollback_id != transfer.rollback_id:
            raise RemoteProtocolError(f"{transfer.source} rolled back while its copy was fetched")
        return reply

    async def _call(self, source: HostPort, request: SnapshotRequest | ProbeRequest) -> RawDocument:
        timeout_ms = Millis(self._options.call_timeout_ms)
        return await self._peer.call(source, request.document(), timeout_ms=timeout_ms)

    async def _give_up_unless_passing(self, transfer: CopyRecord, error: Exception) -> None:
        """Keep what is here for the next attempt if it may still be of use; else nobody has to keep the copy."""
        passing = isinstance(error, OSError) or (isinstance(error, ReplError) and error.code in _NOT_NOW)
        if passing and transfer.size:
            return
        await self._discard()
        await self._let_go(transfer)

    async def _tell_damage(self, source: HostPort, error: DamagedEntryError) -> None:
        """Asked for that entry, the source finds the damage itself; then it is no source any more."""
        with suppress(ReplError):
            await self._peer.call(
                source, ProbeRequest([error.at]).document(), timeout_ms=Millis(self._options.call_timeout_ms)
            )

    async def _discard(self) -> None:
        try:
            await self._context.workers.run(self._copy.discard)
        except OSError as error:
            log.warning("%s", error)

    async def _let_go(self, transfer: CopyRecord) -> None:
        try:
            await self._ask(transfer, SnapshotRequest("end", transfer.snapshot_id))
        except ReplError as error:
            log.info("%s keeps its copy until it expires: %s", transfer.source, error.message)


def _is_same(transfer: CopyRecord, reply: SnapshotReply) -> bool:
    return (reply.snapshot_id, reply.size, reply.sha256) == (transfer.snapshot_id, transfer.size, transfer.sha256)


def _has_reached(source: CopyContents, known: RequiredEntries) -> bool:
    """Whether it holds all that this member acknowledged or knows to be committed.

    A log whose newest entry is of a later term, or of the same one and not before, holds what was committed by the time
    of mine (Raft, 5.4.3), but for entries that only a later term committed: so the commit point itself must be there
    too, or lie before the oldest entry. The oplog is trimmed only before the commit point.
    """
    newest_reaches = source.newest >= max(known.held, known.committed)
    return newest_reaches and (
        source.has_committed or known.committed == OPTIME_NULL or known.committed.ts < source.oldest.ts
    )


def _refuse_unless_reached(source: HostPort, ends: CopyContents, known: RequiredEntries) -> None:
    if _has_reached(ends, known):
        return
    # Installed, such a copy would take back what this member acknowledged, and the commit point that it knows would
    # name an entry that may never have been committed: majority reads would show it.
    if ends.newest < known.held:
        lack = f"{source} is at {ends.newest}, behind {known.held}, the newest entry of this member"
    else:
        lack = f"{source} does not hold {known.committed}, which this member knows to be committed"
    raise InvalidSyncSourceError(f"{lack}; its data is not copied unless that is forced (replset resync --force)")


def name_copy(
    disk: Disk, path: str, sync_id: str, committed: OpTime = OPTIME_NULL, exported: OplogRow | None = None
) -> CopyContents:
    """Note in a fetched copy for which initial sync it is, so that a restart does not take it for data of its own.

    Returns what its oplog holds; OPTIME_NULL for the ends of an empty one. exported: the newest entry that was.
    """
    try:
        connection = disk.connect(path)
        try:
            connection.pragma("journal_mode", "delete")
            with transaction(connection):
                write_meta(connection, _COPY_FOR, sync_id)
            newest, oldest = newest_row(connection), oldest_row(connection)
            return CopyContents(
                OPTIME_NULL if newest is None else newest.optime,
                OPTIME_NULL if oldest is None else oldest.optime,
                row_at(connection, committed) is not None,
                exported is not None and is_in_history(connection, exported),
            )
        finally:
            connection.close(True)
    except apsw.Error as error:
        raise storage_error(error, path) from error
