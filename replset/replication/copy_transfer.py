"""Fetches a copy of the source's database file in chunks. A transfer that broke goes on where it stopped.

That holds as long as the source has that very copy; else a new one is begun. The other end is
`member/peers/snapshot_server.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from replset.bson import Document, RawDocument
from replset.errors import ErrorCode, OutOfDiskSpaceError, RemoteProtocolError, ReplError, Trait
from replset.ids import HostPort, Millis, OpTime
from replset.replication.context import MemberContext
from replset.replication.disk_space import retry_while_disk_full
from replset.replication.initial_sync_progress import InitialSyncProgress
from replset.replication.partial_copy import CopyRecord, PartialCopy
from replset.replication.ports import MemberClient
from replset.replication.protocol import ProbeRequest, SnapshotReply, SnapshotRequest

log = logging.getLogger("replset.initial_sync")
T = TypeVar("T")

COMPARED_OPLOG_BYTES = 16 << 20
"""How much of the source's oplog comes with a frame, or a hundredth of the data if that is more; and at least all from
the commit point on.
"""
_UNREACHABLE = frozenset({ErrorCode.HOST_UNREACHABLE, ErrorCode.NETWORK_TIMEOUT})


@dataclass(frozen=True, slots=True)
class InitialSyncOptions:
    """chunk_bytes: one answer. keep_chunks: synced and recorded after so many. attempts: of one chunk, before the
    attempt as a whole ends. spare_bytes: kept free on the disk.
    """

    chunk_bytes: int = 4 << 20
    keep_chunks: int = 16
    attempts: int = 5
    pause_ms: int = 500
    call_timeout_ms: int = 30_000
    spare_bytes: int = 64 << 20


class CopyTransfer:
    """Brings a source's copy into the data folder, one transfer at a time."""

    def __init__(
        self, context: MemberContext, peer: MemberClient, progress: InitialSyncProgress, options: InitialSyncOptions
    ) -> None:
        self._context = context
        self._peer = peer
        self._progress = progress
        self.options = options
        self.copy = PartialCopy(context.disk, context.dbpath)

    async def fetch(self, source: HostPort, sync_id: str, *, oplog_only: bool, compare: bool) -> CopyRecord:
        """Fetch a copy, verified and synced: the rest of the last transfer, or all of a new one.

        oplog_only: for a witness, without documents. compare: only the frame, if the source knows what that is.
        """
        record = await self._resume(source, sync_id, oplog_only, compare) or await self._begin(
            source, sync_id, oplog_only, compare
        )
        try:
            record = await self._await_copy(record)
            if not record.whole:
                await self._fetch_chunks(record)
                sealed, found = await self._run(lambda: self.copy.seal(record))
                if not sealed.whole:
                    raise RemoteProtocolError(
                        f"the copy of {record.source} arrived with SHA-256 {found}, it was {record.sha256}"
                    )
                record = sealed
        except (ReplError, OSError) as error:
            await self.discard_unless_temporary(record, error)
            raise
        return record

    async def compare(self, record: CopyRecord, question: Document) -> RawDocument:
        """Ask about the documents of the copy whose frame is here; again a few times if the network fails."""
        for attempt in range(self.options.attempts):
            try:
                answer = await self.call(record.source, question)
                break
            except ReplError as error:
                if error.code not in _UNREACHABLE or attempt == self.options.attempts - 1:
                    raise
            await asyncio.sleep(self.options.pause_ms / 1000)
        self._progress.on_compared(len(answer.raw))
        if self._progress.is_line_due(self._context.clock.now()):
            log.info("%s", self._progress.text(self._context.clock.now()))
        return answer

    async def call(self, source: HostPort, question: Document) -> RawDocument:
        clock, timeout_ms = self._context.clock, Millis(self.options.call_timeout_ms)
        try:
            reply = await self._peer.call(source, question, timeout_ms=timeout_ms)
        except ReplError as error:
            if error.code in _UNREACHABLE:
                self._progress.on_unreachable(clock.now(), clock.wall_ms())
            raise
        self._progress.on_answer(clock.now())
        return reply

    async def report_damage(self, source: HostPort, at: OpTime) -> None:
        """Ask the source for the damaged entry: it then finds the damage itself, and is no source any more."""
        with suppress(ReplError):
            await self.call(source, ProbeRequest([at]).document())

    async def discard_unless_temporary(self, record: CopyRecord, error: Exception) -> None:
        """Keep what is here for the next attempt if it may still be of use; else neither side keeps anything."""
        if not is_temporary(error) or not record.size:
            await self.discard(record)

    async def discard(self, record: CopyRecord) -> None:
        """Remove the files here, and let the source remove its copy."""
        try:
            await self._run(self.copy.discard)
        except OSError as error:
            log.warning("%s", error)
        await self._release(record)

    async def _release(self, record: CopyRecord) -> None:
        try:
            await self._ask(record, SnapshotRequest("end", record.snapshot_id))
        except ReplError as error:
            log.info("%s keeps its copy until it expires: %s", record.source, error.message)

    async def _resume(self, source: HostPort, sync_id: str, oplog_only: bool, compare: bool) -> CopyRecord | None:
        """Return the last transfer if its source still has that very copy; None: begin anew.

        Raises when the source cannot be asked now, unless another one was chosen meanwhile.
        """
        record = await self._run(lambda: self.copy.load(sync_id))
        if record is None:
            return None
        # This member became a witness meanwhile, or is none any more; or it must not use its own documents any more.
        if record.oplog_only != oplog_only or (record.compared and not compare):
            await self.discard(record)
            return None
        request = SnapshotRequest("begin", record.snapshot_id)
        is_chosen = record.source == source
        try:
            offer = await (self._ask_repeatedly(record, request) if is_chosen else self._ask(record, request))
        except ReplError as error:
            if is_chosen and is_temporary(error):
                raise
            log.info("the copy of %s cannot be fetched any more: %s", record.source, error.message)
            return None
        # Joined with what is here, the rest of another copy would give a file of two moments. Its SHA-256 would show
        # that, but only after everything was fetched.
        if record.size and not _is_same(record, offer):
            log.warning("%s has another copy under the name %s", record.source, record.snapshot_id)
            return None
        if record.kept:
            log.info("the copy of %s goes on: %d of %d bytes are here", record.source, record.kept, record.size)
        return record

    async def _begin(self, source: HostPort, sync_id: str, oplog_only: bool, compare: bool) -> CopyRecord:
        """Have the source make a copy, and record which."""
        await self._wait_for_space(0)
        options = self._context.store.options
        oplog_bytes = max(options.oplog_max_bytes, options.oplog_lagging_bytes) if oplog_only else None
        if compare:
            oplog_bytes = max(COMPARED_OPLOG_BYTES, self._context.store.data_bytes() // 100)
        request = SnapshotRequest("begin", oplog_bytes=oplog_bytes, compare=compare)
        offer = SnapshotReply.parse(await self.call(source, request.document()))
        record = CopyRecord(
            sync_id, source, offer.snapshot_id, offer.rollback_id, oplog_only=oplog_only, compared=offer.compared
        )
        try:
            await self._run(lambda: self.copy.begin(record))
        except OSError:
            await self._release(record)
            raise
        return record

    async def _await_copy(self, record: CopyRecord) -> CopyRecord:
        """Wait until the source has made it, and record its size and checksum."""
        if not record.size:
            request = SnapshotRequest("begin", record.snapshot_id)
            offer = await self._ask_repeatedly(record, request)
            while not offer.ready:
                self._log_progress()
                await asyncio.sleep(self.options.pause_ms / 1000)
                offer = await self._ask_repeatedly(record, request)
            if offer.size <= 0:
                raise RemoteProtocolError(f"{record.source} offers a copy of {offer.size} bytes")
            record = replace(record, size=offer.size, sha256=offer.sha256)
            await self._run(lambda: self.copy.save(record))
        self._progress.begin_transfer(record.source, record.kept, record.size, self._context.clock.now())
        return record

    async def _fetch_chunks(self, record: CopyRecord) -> None:
        """Fetch all that is missing. When the transfer breaks, what came is kept."""
        step = self.options.chunk_bytes * self.options.keep_chunks
        try:
            while self._progress.copied < record.size:
                copied = self._progress.copied
                await self._wait_for_space(record.size - copied)
                data = await self._fetch_chunk(record, copied)
                await self._when_disk_has_space(lambda: self.copy.append(data, copied))  # noqa: B023  # awaited
                self._progress.copied = copied = copied + len(data)
                self._log_progress()
                if copied - record.kept >= step:
                    record = await self._when_disk_has_space(lambda: self.copy.keep(record, copied))  # noqa: B023
        except (ReplError, OSError):
            try:
                await self._run(lambda: self.copy.keep(record, self._progress.copied))
            except OSError as error:
                log.warning("only %d bytes of the copy are kept: %s", record.kept, error)
            raise

    def _log_progress(self) -> None:
        now = self._context.clock.now()
        if self._progress.is_line_due(now):
            log.info(
                "%s", self._progress.text(now) if self._progress.total else f"{self._progress.source} makes a copy"
            )

    async def _fetch_chunk(self, record: CopyRecord, offset: int) -> bytes:
        """Return the next chunk, of this copy and no other."""
        length = min(self.options.chunk_bytes, record.size - offset)
        reply = await self._ask_repeatedly(record, SnapshotRequest("chunk", record.snapshot_id, offset, length))
        if not _is_same(record, reply):
            raise RemoteProtocolError(f"{record.source} sent a piece of another copy")
        if not reply.data or len(reply.data) > length:
            raise RemoteProtocolError(f"{record.source} sent {len(reply.data)} bytes of its copy instead of {length}")
        return reply.data

    async def _ask_repeatedly(self, record: CopyRecord, request: SnapshotRequest) -> SnapshotReply:
        """Ask, and again a few times if the network fails."""
        for _ in range(self.options.attempts - 1):
            try:
                return await self._ask(record, request)
            except ReplError as error:
                if error.code not in _UNREACHABLE:
                    raise
            await asyncio.sleep(self.options.pause_ms / 1000)
        return await self._ask(record, request)

    async def _ask(self, record: CopyRecord, request: SnapshotRequest) -> SnapshotReply:
        """Ask once about this copy.

        A source that has rolled back since may have copied entries that are undone now, so its copy is refused.
        """
        reply = SnapshotReply.parse(await self.call(record.source, request.document()))
        if reply.rollback_id != record.rollback_id:
            raise RemoteProtocolError(f"{record.source} rolled back while its copy was fetched")
        return reply

    # --- disk

    async def _run(self, work: Callable[[], T]) -> T:
        return await self._context.workers.run(work)

    async def _when_disk_has_space(self, work: Callable[[], T]) -> T:
        return await retry_while_disk_full(lambda: self._run(work), "initial sync", progress=self._progress)

    async def _wait_for_space(self, needed: int) -> None:
        """Return once the disk takes `needed` bytes and has some left; nothing is given up while it does not."""

        def check() -> None:
            free = self._context.disk.free_bytes(self._context.dbpath)
            if free < needed + self.options.spare_bytes:
                raise OutOfDiskSpaceError(f"{needed} bytes are still to come, the disk has {free} left")

        await self._when_disk_has_space(check)


def is_temporary(error: Exception) -> bool:
    """Whether the error says nothing about the copy: a member away or in a state that serves nothing, a full disk."""
    if isinstance(error, ReplError):
        return error.has(Trait.RETRYABLE) or error.code == ErrorCode.OUT_OF_DISK_SPACE
    return isinstance(error, OSError)


def _is_same(record: CopyRecord, reply: SnapshotReply) -> bool:
    return (reply.snapshot_id, reply.size, reply.sha256) == (record.snapshot_id, record.size, record.sha256)
