"""The serving side of replication: replSetOplogFetch, replSetOplogProbe and replSetSnapshot.

The server keeps no state for those who tail it: each fetch names the entry behind which it wants to go on. Only copies
for an initial sync are kept, until they are fetched or expire.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from replset.bson import RawDocument
from replset.core.member_state import MemberState
from replset.errors import (
    BadValueError,
    CursorNotFoundError,
    DamagedEntryError,
    ErrorCode,
    HostUnreachableError,
    NotPrimaryOrSecondaryError,
    OutOfDiskSpaceError,
    ReplError,
)
from replset.ids import OPTIME_NULL, Millis, OpTime
from replset.oplog_row import OplogRow
from replset.replication.ports import Clock, Workers
from replset.replication.protocol import (
    FetchReply,
    FetchRequest,
    ProbeReply,
    ProbeRequest,
    SnapshotReply,
    SnapshotRequest,
)
from replset.storage.disk import Disk
from replset.storage.store import Store

log = logging.getLogger("replset.oplog_serving")

PAGE_ENTRIES = 5_000
MAX_PAGE_BYTES = 16 << 20
MAX_AWAIT_MS = 30_000
MAX_PROBES = 1_000
MAX_CHUNK_BYTES = 8 << 20
SERVING = frozenset({MemberState.PRIMARY, MemberState.SECONDARY, MemberState.RECOVERING})
"""States whose oplog others may read. In ROLLBACK it shrinks, in STARTUP2 it is about to be replaced."""


class NodeAnswers(Protocol):
    """What serving reads of the core's `Node`."""

    @property
    def state(self) -> MemberState: ...

    @property
    def term(self) -> int: ...

    @property
    def commit_point(self) -> OpTime: ...

    @property
    def commit_term(self) -> int: ...


class ServingPort(Protocol):
    """What serving needs of the member."""

    @property
    def node(self) -> NodeAnswers: ...

    @property
    def store(self) -> Store: ...

    async def wait_for_change(self, timeout_ms: int) -> bool:
        """Return at the next commit, commit-point move, state change or rollback; False when the time ran out."""
        ...

    def on_damage(self, detail: str) -> None:
        """An entry of this member's is not the one that was written: it was not served."""
        ...

    def on_chain_doubt(self, at: OpTime) -> None:
        """Another member has another hash chain at this entry of mine."""
        ...


def _refuse_unless_serving(port: ServingPort) -> None:
    state = port.node.state
    if state not in SERVING:
        raise NotPrimaryOrSecondaryError(f"this member is in {state.name}, its oplog is not to be read")


async def oplog_fetch(port: ServingPort, body: RawDocument) -> dict[str, object]:
    """replSetOplogFetch: what follows `after`, as soon as there is something."""
    request = FetchRequest.parse(body)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + min(request.max_await_ms, MAX_AWAIT_MS) / 1000
    while True:
        _refuse_unless_serving(port)
        reply = fetch_now(port, request)
        left_ms = int((deadline - loop.time()) * 1000)
        if left_ms <= 0 or has_news(reply, request) or not await port.wait_for_change(left_ms):
            return reply.document()


def has_news(reply: FetchReply, request: FetchRequest) -> bool:
    """Is there anything in it that the asker does not know yet?"""
    return bool(
        reply.entries
        or not reply.matched
        or reply.commit_point > request.known_commit_point
        or request.known_rollback_id not in (-1, reply.rollback_id)
        or reply.term > request.term
    )


def fetch_now(port: ServingPort, request: FetchRequest) -> FetchReply:
    """The answer of this moment; never waits. DamagedEntryError: what comes next is damaged here."""
    store, node = port.store, port.node
    after = request.after
    newest, oldest = store.last_applied, store.oldest
    matched, prev_chain = False, 0
    rows: list[OplogRow] = []
    if after == newest and after != OPTIME_NULL:
        matched, prev_chain = True, store.chain
    else:
        with _telling_damage(port):
            row = store.sound_row_at(after)
            if row is not None:
                matched, prev_chain = True, row.chain
                max_bytes = max(1, min(request.max_bytes, MAX_PAGE_BYTES))
                rows = store.oplog_after(after, limit=PAGE_ENTRIES, max_bytes=max_bytes)
    if matched and prev_chain != request.chain:
        port.on_chain_doubt(after)
    return FetchReply(
        matched,
        [found.entry for found in rows],
        after,
        prev_chain,
        rows[-1].chain if rows else prev_chain,
        store.rollback_id,
        node.term,
        node.state.value,
        node.state is MemberState.PRIMARY,
        newest,
        oldest,
        min(node.commit_point, newest),
        node.commit_term,
    )


@contextmanager
def _telling_damage(port: ServingPort) -> Iterator[None]:
    try:
        yield
    except DamagedEntryError as error:
        port.on_damage(error.message)
        raise


async def oplog_probe(port: ServingPort, body: RawDocument) -> dict[str, object]:
    """replSetOplogProbe: which of these entries are here, and the hash chain at each."""
    request = ProbeRequest.parse(body)
    if len(request.optimes) > MAX_PROBES:
        raise BadValueError(f"at most {MAX_PROBES} optimes in one probe, not {len(request.optimes)}")
    _refuse_unless_serving(port)
    store = port.store
    with _telling_damage(port):
        rows = [store.sound_row_at(optime) for optime in request.optimes]
    return ProbeReply(
        [None if row is None else row.chain for row in rows],
        store.rollback_id,
        port.node.term,
        store.last_applied,
        store.oldest,
    ).document()


# --- copies for initial sync ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SnapshotOptions:
    """max_copies: at a time. expire_ms: a copy that nobody asked about so long goes. spare_bytes: kept free.

    bytes_per_s: what one copy may take of the network and the disk, so that the set's own traffic goes on.
    """

    max_copies: int = 2
    expire_ms: int = 600_000
    spare_bytes: int = 256 << 20
    bytes_per_s: int = 200 << 20


@dataclass(slots=True)
class _Copy:
    path: str
    rollback_id: int
    used_at: Millis
    ready: bool = False
    size: int = 0
    sha256: str = ""
    failure: str = ""
    sent_until: float = 0.0  # loop time until which what was sent uses up the rate
    making: asyncio.Task[None] | None = field(default=None, repr=False)


class SnapshotServer:
    """Makes copies of the database file and serves them by id, offset and length until they expire."""

    def __init__(
        self,
        *,
        clock: Clock,
        rng: random.Random,
        workers: Workers,
        disk: Disk,
        dbpath: str,
        options: SnapshotOptions | None = None,
    ) -> None:
        self._clock = clock
        self._rng = rng
        self._workers = workers
        self._disk = disk
        self._dbpath = dbpath
        self._folder = os.path.join(dbpath, "snapshots")
        self._options = options or SnapshotOptions()
        self._copies: dict[str, _Copy] = {}

    def clear_leftovers(self) -> None:
        """At start: remove the copies of an earlier run; nobody can ask for them any more."""
        if self._disk.exists(self._folder):
            for name in self._disk.list_folder(self._folder):
                self._disk.remove(os.path.join(self._folder, name))

    async def serve(self, port: ServingPort, body: RawDocument) -> dict[str, object]:
        """replSetSnapshot: one step."""
        request = SnapshotRequest.parse(body)
        await self.expire()
        match request.step:
            case "begin" if not request.snapshot_id:
                return self._offer(*self._begin(port)).document()
            case "begin":
                return self._offer(request.snapshot_id, self._find(port, request.snapshot_id)).document()
            case "chunk":
                return (await self._chunk(port, request)).document()
            case "end":
                copy = self._copies.pop(request.snapshot_id, None)
                if copy is not None:
                    await self._remove(copy)
                return SnapshotReply(request.snapshot_id, False, 0, "", port.store.rollback_id).document()
            case _:
                raise BadValueError(f"step {request.step!r} is none of begin, chunk, end")

    async def expire(self) -> None:
        """Remove copies that nobody asked about for long."""
        now = self._clock.now()
        for snapshot_id, copy in list(self._copies.items()):
            if now - copy.used_at > self._options.expire_ms and (copy.making is None or copy.making.done()):
                del self._copies[snapshot_id]
                await self._remove(copy)

    async def close(self) -> None:
        """Forget every copy; waits for one that is being made."""
        copies = list(self._copies.values())
        self._copies.clear()
        for copy in copies:
            await self._remove(copy)

    # --- one step each ------------------------------------------------------------------------------------------

    def _begin(self, port: ServingPort) -> tuple[str, _Copy]:
        _refuse_unless_serving(port)
        if port.store.last_applied == OPTIME_NULL:
            raise NotPrimaryOrSecondaryError("this member holds no data to copy")
        if len(self._copies) >= self._options.max_copies:
            raise ReplError(
                f"{len(self._copies)} copies are being served already; try again later",
                code=ErrorCode.CONFLICTING_OPERATION_IN_PROGRESS,
            )
        snapshot_id = f"{self._rng.getrandbits(64):016x}"
        path = os.path.join(self._folder, f"{snapshot_id}.db")
        copy = self._copies[snapshot_id] = _Copy(path, port.store.rollback_id, self._clock.now())
        needed = port.store.data_bytes() + self._options.spare_bytes
        copy.making = asyncio.get_running_loop().create_task(self._make(port.store, copy, needed))
        return snapshot_id, copy

    async def _make(self, store: Store, copy: _Copy, needed: int) -> None:
        try:
            await self._workers.run(lambda: self._make_file(store, copy, needed))
        except (ReplError, OSError) as error:
            copy.failure = str(error)
            log.warning("a copy for an initial sync failed: %s", error)

    def _make_file(self, store: Store, copy: _Copy, needed: int) -> None:
        """In a worker thread: space, copy, checksum."""
        self._disk.make_folder(self._folder)
        free = self._disk.free_bytes(self._dbpath)
        if free < needed:
            raise OutOfDiskSpaceError(f"a copy needs {needed} bytes, the disk has {free} left")
        info = store.copy_to(copy.path, pause=self._look_at_the_disk)
        copy.size, copy.sha256 = info.size, info.sha256
        copy.ready = True

    def _look_at_the_disk(self) -> None:
        """Between two pieces of a copy: it must never be what fills the disk."""
        if self._disk.free_bytes(self._dbpath) < self._options.spare_bytes:
            raise OutOfDiskSpaceError("the disk is nearly full")

    def _offer(self, snapshot_id: str, copy: _Copy) -> SnapshotReply:
        if copy.failure:
            raise ReplError(f"the copy could not be made: {copy.failure}")
        copy.used_at = self._clock.now()
        return SnapshotReply(snapshot_id, copy.ready, copy.size, copy.sha256, copy.rollback_id)

    def _find(self, port: ServingPort, snapshot_id: str) -> _Copy:
        """The copy; void once this member rolled back, since it may hold what was undone."""
        _refuse_unless_serving(port)
        copy = self._copies.get(snapshot_id)
        if copy is None:
            raise CursorNotFoundError(f"no copy {snapshot_id!r} here: it expired, or it never was")
        if copy.rollback_id != port.store.rollback_id:
            raise CursorNotFoundError(f"copy {snapshot_id} is void: this member rolled back")
        return copy

    async def _chunk(self, port: ServingPort, request: SnapshotRequest) -> SnapshotReply:
        copy = self._find(port, request.snapshot_id)
        offer = self._offer(request.snapshot_id, copy)
        if not copy.ready or not 0 <= request.offset < copy.size or request.length <= 0:
            raise BadValueError(f"no such part of the copy: {request.length} bytes from {request.offset}")
        length = min(request.length, MAX_CHUNK_BYTES)
        await self._keep_to_the_rate(copy, length)
        try:
            data = await self._workers.run(lambda: self._disk.read_at(copy.path, request.offset, length))
        except OSError as error:
            raise HostUnreachableError(f"the copy cannot be read: {error}") from error
        return SnapshotReply(offer.snapshot_id, True, offer.size, offer.sha256, port.store.rollback_id, data)

    async def _keep_to_the_rate(self, copy: _Copy, length: int) -> None:
        now = asyncio.get_running_loop().time()
        copy.sent_until = max(copy.sent_until, now) + length / self._options.bytes_per_s
        if copy.sent_until - now > 0.05:
            await asyncio.sleep(copy.sent_until - now - 0.05)

    async def _remove(self, copy: _Copy) -> None:
        if copy.making is not None and not copy.making.done():
            await asyncio.wait([copy.making])
        await self._workers.run(lambda: self._disk.remove(copy.path))
