"""Serves copies of the database file, to members that sync for the first time (replSetSnapshot) and for backups.

A witness gets a copy with the oplog alone, and serves none. A member that is too stale gets the frame of a copy, and
compares its documents with the copy itself, which stays here. A copy is kept until the other member has fetched it, or
until it expires.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from replset.bson import RawDocument
from replset.core.node import Node
from replset.errors import (
    BadValueError,
    CursorNotFoundError,
    ErrorCode,
    HostUnreachableError,
    NotPrimaryOrSecondaryError,
    OutOfDiskSpaceError,
    ReplError,
)
from replset.ids import OPTIME_NULL, HostPort, Millis, OpTime
from replset.member.peers.flows import Flow, Flows
from replset.operations.waiters import ByteRate
from replset.replication.context import MemberContext
from replset.replication.protocol import SnapshotReply, SnapshotRequest
from replset.storage.copies import CopyInfo, copy_frame, open_copy
from replset.storage.store import Store

log = logging.getLogger("replset.snapshot_server")

MAX_CHUNK_BYTES = 8 << 20
BACKUP_EXPIRE_MS = 60_000
"""A copy for a backup is read at once, by the request that had it made."""
CATCH_UP_MS = 5_000
"""How long the entries behind a copy stay at least, once it was fetched."""
LONGEST_WAIT_S = 20
"""Of one request for a chunk, which at most takes a second by itself: the other member waits for it for 30 s."""


def check_serves_oplog(node: Node) -> None:
    """Raise NotPrimaryOrSecondaryError if other members must not read this member's oplog and data now."""
    if not node.serves_oplog:
        raise NotPrimaryOrSecondaryError(f"this member is in {node.state.name}: its oplog must not be read")


@dataclass(frozen=True, slots=True)
class SnapshotOptions:
    """Limits on copies for initial syncs.

    max_copies: at a time. expire_ms: a copy without a request for so long is removed. bytes_per_s: limit of one copy,
    unless settings.followerBytesPerSecond is lower, so that the set's own traffic keeps its share of network and disk.
    """

    max_copies: int = 2
    expire_ms: int = 600_000
    bytes_per_s: int = 200 << 20


@dataclass(slots=True)
class ServedCopy:
    """path: of the file that is sent. compared: of the whole copy beside a frame; empty for any other copy. needed_ts:
    consumers need the entries from there on. in_use: held while it is open, so that nobody removes it then. asked_by:
    None where it is not known, and for a backup. began, begins_at: when it was asked for, and the newest entry then;
    None where nobody is to catch up from there.
    """

    path: str
    rollback_id: int
    used_at: Millis
    expire_ms: int
    asked_by: HostPort | None
    began: Millis
    begins_at: OpTime | None
    ready: bool = False
    size: int = 0
    sha256: str = ""
    newest: OpTime = OPTIME_NULL
    failure: str = ""
    compared: str = ""
    needed_ts: int = 0
    in_use: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)
    rate: ByteRate = field(default_factory=ByteRate)
    making: asyncio.Task[None] | None = field(default=None, repr=False)


class SnapshotServer:
    """Makes copies of the database file and serves them by id, offset and length until they expire."""

    def __init__(
        self,
        context: MemberContext,
        node: Node,
        rng: random.Random,
        flows: Flows,
        options: SnapshotOptions | None = None,
        needed: Callable[[], OpTime | None] = lambda: None,
    ) -> None:
        """needed: the oldest entry that a named consumer needs; None: there is no consumer."""
        self._context = context
        self._node = node
        self._rng = rng
        self._folder = os.path.join(context.dbpath, "snapshots")
        self._flows = flows
        self._options = options or SnapshotOptions()
        self._needed = needed
        self.other_steps: dict[str, Callable[[RawDocument], Awaitable[dict[str, object]]]] = {}
        """Of the feature that compares: without it a member that asks for a frame gets a whole copy."""
        self._copies: dict[str, ServedCopy] = {}
        self._fetched: list[tuple[Millis, OpTime, HostPort | None]] = []
        """Until when the entries behind a copy stay after its end, where it begins, and who asked for it."""

    def clear_leftovers(self) -> None:
        """Remove the copies of an earlier run of this member; nobody can ask for them any more."""
        if self._context.disk.exists(self._folder):
            for name in self._context.disk.list_folder(self._folder):
                self._context.disk.remove(os.path.join(self._folder, name))

    async def serve(self, body: RawDocument, asked_by: HostPort | None = None) -> RawDocument | dict[str, object]:
        """Answer replSetSnapshot: one step of copying the database (begin, chunk, end), or a feature's.

        asked_by: the member that copies; None: not known.
        """
        other = self.other_steps.get(SnapshotRequest.step_of(body))
        if other is not None:
            return await other(body)
        request = SnapshotRequest.parse(body)
        if request.step == "begin" and not request.snapshot_id:
            self._give_up_copies(asked_by)
        await self.expire()
        match request.step:
            case "begin" if not request.snapshot_id:
                compare = request.compare and bool(self.other_steps)
                return self.offer(*self._begin(request.oplog_bytes, compare, asked_by)).document()
            case "begin":
                return self.offer(request.snapshot_id, self.find(request.snapshot_id)).document()
            case "chunk":
                return (await self.chunk(request.snapshot_id, request.offset, request.length)).document()
            case "end":
                await self.end(request.snapshot_id)
                return SnapshotReply(request.snapshot_id, False, 0, "", self._context.store.rollback_id).document()
            case _:
                raise BadValueError(f"step {request.step!r} is none of begin, chunk, end")

    async def copy_for_backup(self) -> tuple[str, CopyInfo]:
        """Make a copy and return its id and what is in it. `chunk` reads it, `end` removes it."""
        await self.expire()
        snapshot_id, copy = self._begin(None, False, None)
        copy.expire_ms, copy.begins_at = BACKUP_EXPIRE_MS, None  # it holds what a backup needs
        if copy.making is not None:
            await asyncio.shield(copy.making)
        try:
            self.offer(snapshot_id, copy)
        except ReplError:
            await self.end(snapshot_id)
            raise
        return snapshot_id, CopyInfo(copy.size, copy.sha256, copy.newest)

    def keep(self, snapshot_id: str) -> None:
        """Let the copy not expire yet. CursorNotFoundError: it is gone, or void since this member rolled back."""
        self.offer(snapshot_id, self.find(snapshot_id))

    async def end(self, snapshot_id: str) -> None:
        """Remove a copy, if it is there."""
        copy = self._copies.pop(snapshot_id, None)
        if copy is not None:
            now = self._context.clock.now()
            if copy.ready and copy.begins_at is not None:
                until = Millis(now + max(CATCH_UP_MS, now - copy.began))
                self._fetched.append((until, copy.begins_at, copy.asked_by))
            await self._remove(copy)

    def needed(self) -> OpTime | None:
        """From which entry on the oplog must reach members that copy from here, or have just copied; None: none do.

        They get as long again for catching up as the copy took. A member that was killed has until its copy expires: it
        goes on with it when it is back.
        """
        now = self._context.clock.now()
        self._fetched = [row for row in self._fetched if row[0] > now]
        copied = [copy.begins_at for copy in self._copies.values() if copy.begins_at is not None]
        return min((*copied, *(at for _, at, _ in self._fetched)), default=None, key=lambda at: at.ts)

    async def expire(self) -> None:
        """Remove the copies that nobody has asked for in their `expire_ms`.

        The member may have fetched all of it, and still check it or fill its indexes. So the entries behind the copy
        stay as after any other end: trimmed, they would leave that member too stale once it is done.
        """
        now = self._context.clock.now()
        for snapshot_id, copy in list(self._copies.items()):
            if now - copy.used_at > copy.expire_ms and (copy.making is None or copy.making.done()):
                await self.end(snapshot_id)

    async def close(self) -> None:
        """Remove every copy. A copy that is being made is waited for."""
        copies = list(self._copies.values())
        self._copies.clear()
        for copy in copies:
            await self._remove(copy)

    # --- one step each ------------------------------------------------------------------------------------------

    def _give_up_copies(self, asked_by: HostPort | None) -> None:
        """Let what a member copied before expire: it begins anew, so it has nothing of that any more."""
        for copy in self._copies.values():
            if asked_by is not None and copy.asked_by == asked_by:
                copy.expire_ms, copy.begins_at = -1, None
        self._fetched = [row for row in self._fetched if asked_by is None or row[2] != asked_by]

    def _begin(self, oplog_bytes: int | None, compare: bool, asked_by: HostPort | None) -> tuple[str, ServedCopy]:
        check_serves_oplog(self._node)
        if self._context.store.oplog_only:
            raise NotPrimaryOrSecondaryError("this member is a witness: it has no documents to copy")
        if self._context.store.last_applied == OPTIME_NULL:
            raise NotPrimaryOrSecondaryError("this member holds no data to copy")
        if len(self._copies) >= self._options.max_copies:
            raise ReplError(
                f"{len(self._copies)} copies are being served already; try again later",
                code=ErrorCode.CONFLICTING_OPERATION_IN_PROGRESS,
            )
        snapshot_id = f"{self._rng.getrandbits(64):016x}"
        path = os.path.join(self._folder, f"{snapshot_id}.db")
        store, now = self._context.store, self._context.clock.now()
        copy = self._copies[snapshot_id] = ServedCopy(
            path, store.rollback_id, now, self._options.expire_ms, asked_by, now, store.last_applied
        )
        if compare:
            copy.compared = os.path.join(self._folder, f"{snapshot_id}-compared.db")
            needed = self._needed()
            copy.needed_ts = store.last_applied.ts if needed is None else needed.ts
        size = 0 if oplog_bytes is None else 2 * min(store.oplog_bytes, oplog_bytes)
        size += store.data_bytes() if compare or oplog_bytes is None else 0
        size += store.options.min_free_bytes  # a copy must not end the writes to this member
        copy.making = asyncio.get_running_loop().create_task(self._make(store, copy, size, oplog_bytes))
        return snapshot_id, copy

    async def _make(self, store: Store, copy: ServedCopy, needed: int, oplog_bytes: int | None) -> None:
        try:
            await self._context.workers.run(lambda: self._make_file(store, copy, needed, oplog_bytes))
            copy.used_at = self._context.clock.now()
        except (ReplError, OSError) as error:
            copy.failure = str(error)
            log.warning("a copy for an initial sync failed: %s", error)

    def _make_file(self, store: Store, copy: ServedCopy, needed: int, oplog_bytes: int | None) -> None:
        """Check the space, copy the file and compute its checksum, in a worker thread."""
        self._context.disk.make_folder(self._folder)
        free = self._context.disk.free_bytes(self._context.dbpath)
        if free < needed:
            raise OutOfDiskSpaceError(f"a copy needs {needed} bytes, the disk has {free} left")
        if copy.compared:
            committed_ts = store.commit_point.ts
            store.copy_to(copy.compared, pause=self._check_disk_space, hashed=False)
            with open_copy(self._context.disk, copy.compared) as connection:
                connection.pragma("journal_mode", "delete")  # no WAL beside it: from here on it is only read
            pause, most = self._check_disk_space, oplog_bytes or 0
            info = copy_frame(self._context.disk, copy.compared, copy.path, committed_ts, copy.needed_ts, most, pause)
        else:
            info = store.copy_to(copy.path, pause=self._check_disk_space, oplog_bytes=oplog_bytes)
        copy.size, copy.sha256, copy.newest = info.size, info.sha256, info.newest
        copy.ready = True

    def _check_disk_space(self) -> None:
        """Stop the copy before writes are refused; called between two pieces of it."""
        if not self._context.store.has_disk_space():
            raise OutOfDiskSpaceError("the disk is nearly full")

    def offer(self, snapshot_id: str, copy: ServedCopy) -> SnapshotReply:
        if copy.failure:
            raise ReplError(f"the copy could not be made: {copy.failure}")
        copy.used_at = self._context.clock.now()
        compared = bool(copy.compared)
        return SnapshotReply(snapshot_id, copy.ready, copy.size, copy.sha256, copy.rollback_id, compared=compared)

    def find(self, snapshot_id: str) -> ServedCopy:
        """Return the copy with this id, if it may still be used.

        A copy that was made before a rollback of this member holds entries that were undone. A member that starts from
        it would keep writes that the set has lost, so the copy is refused.
        """
        check_serves_oplog(self._node)
        copy = self._copies.get(snapshot_id)
        if copy is None:
            raise CursorNotFoundError(f"no copy {snapshot_id!r} here: it expired, or it never was")
        if copy.rollback_id != self._context.store.rollback_id:
            raise CursorNotFoundError(f"copy {snapshot_id} is void: this member rolled back")
        return copy

    async def chunk(self, snapshot_id: str, offset: int, length: int) -> SnapshotReply:
        """Read a part of a copy, at the rate of one copy."""
        copy = self.find(snapshot_id)
        offer = self.offer(snapshot_id, copy)
        if not copy.ready or not 0 <= offset < copy.size or length <= 0:
            raise BadValueError(f"no such part of the copy: {length} bytes from {offset}")
        bytes_per_s = self.bytes_per_s()
        length = min(length, MAX_CHUNK_BYTES, bytes_per_s)
        copy.rate.spend(length, bytes_per_s)
        flow = self.flow_of(copy)
        await flow.wait_for(copy.rate, LONGEST_WAIT_S, spare_s=0.05)
        flow.note(length, bytes_per_s)
        try:
            data = await self._context.workers.run(lambda: self._context.disk.read_at(copy.path, offset, length))
        except OSError as error:
            raise HostUnreachableError(f"the copy cannot be read: {error}") from error
        return SnapshotReply(snapshot_id, True, offer.size, offer.sha256, self._context.store.rollback_id, data)

    def flow_of(self, copy: ServedCopy) -> Flow:
        config = self._node.config
        member = None if config is None or copy.asked_by is None else config.member_at(copy.asked_by)
        return self._flows.of(None if member is None else member.id)

    def bytes_per_s(self) -> int:
        return min(self._options.bytes_per_s, self._node.follower_bytes_per_second() or self._options.bytes_per_s)

    async def _remove(self, copy: ServedCopy) -> None:
        if copy.making is not None and not copy.making.done():
            await asyncio.wait([copy.making])
        async with copy.in_use:
            for path in filter(None, (copy.path, copy.compared)):
                await self._context.workers.run(lambda path=path: self._context.disk.remove(path))  # type: ignore[misc]
