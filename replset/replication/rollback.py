"""Rollback on rejoin: the common point, the files, the undo in bounded steps, and finishing after a crash.

Order is everything here. Files, folder and a planned manifest are durable before the first undo; the first step's
transaction writes the mark (manifest id, common point) and raises the rollback id; the last step's turns it into the
done mark; that is synced before the manifest is rewritten as finished. `settle` repairs whatever a crash left of this.
Whether to roll back at all, and with whom, is the core's decision.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from replset.core.messages import Report, RollbackEnded
from replset.errors import (
    HostUnreachableError,
    RemoteProtocolError,
    ReplError,
    StorageError,
    UnrecoverableRollbackError,
)
from replset.ids import OPTIME_NULL, HostPort, Millis, OpTime, invariant
from replset.replication.ports import Clock, Peer, Workers
from replset.replication.private_commands import ProbeReply, ProbeRequest
from replset.replication.rollback_files import (
    OPLOG_NS,
    FileKind,
    Manifest,
    RollbackState,
    RollbackWriter,
    manifests_on,
    settle_manifest,
    utc_text,
)
from replset.storage.disk import Disk
from replset.oplog_entry import OplogEntry
from replset.storage.catalog import Collection
from replset.storage.oplog import OplogRow
from replset.storage.snapshot import Snapshot
from replset.storage.store import Store

log = logging.getLogger("replset.rollback")

PROBE_POINTS = 16
PROBE_TIMEOUT_MS = Millis(10_000)
UNDO_STEP_ENTRIES = 200
PAGE_ENTRIES = 1_000
PAGE_BYTES = 4 << 20
TOUCHED_PAGE = 1_000


class SourceChangedError(ReplError):
    """The source broke off, rolled back itself or does not fit any more; nothing was undone yet (6)."""

    code = 6


class NoCommonPointError(ReplError):
    """The source's oplog begins after everything that the two have in common: too stale (120)."""

    code = 120


@dataclass(frozen=True, slots=True)
class Identity:
    """Who is rolling back, for the manifest."""

    set_name: str
    member: HostPort


class Rollback:
    """Runs one rollback at a time towards a source; the member is in ROLLBACK and nothing else writes meanwhile."""

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
        undone: Callable[[], None],
        report: Callable[[Report], None],
    ) -> None:
        """store: the one that is open now. commit_point: the core's. undone: called after each undo step (the
        store's newest entry moved back, its rollback id moved on). report: feeds the core.
        """
        self._peer = peer
        self._clock = clock
        self._workers = workers
        self._disk = disk
        self._dbpath = dbpath
        self._store = store
        self._identity = identity
        self._commit_point = commit_point
        self._undone = undone
        self._report = report

    async def run(self, source: HostPort) -> None:
        """Find the common point with `source`, write the files, undo, finish; reports RollbackEnded."""
        ended = await self._outcome(source)
        log.warning("rollback towards %s %s: %s", source, "done" if ended.ok else "not done", ended.detail)
        self._report(ended)

    async def _outcome(self, source: HostPort) -> RollbackEnded:
        try:
            detail = await self._roll_back(source)
        except NoCommonPointError as error:
            return RollbackEnded(source, ok=False, retry=False, too_stale=True, detail=error.message)
        except UnrecoverableRollbackError as error:
            return RollbackEnded(source, ok=False, retry=False, too_stale=False, detail=error.message)
        except (SourceChangedError, StorageError, OSError) as error:
            return RollbackEnded(source, ok=False, retry=True, too_stale=False, detail=str(error))
        return RollbackEnded(source, ok=True, retry=False, too_stale=False, detail=detail)

    async def _roll_back(self, source: HostPort) -> str:
        store = self._store()
        # A crash or a full disk may have left an earlier rollback half done: that one comes first.
        await settle(store, self._disk, self._dbpath, self._clock, self._workers, self._undone)
        common = await CommonPoint(self._peer, store, source).find()
        floor = max(self._commit_point(), OpTime(0, store.pruned_through), key=lambda optime: optime.ts)
        if common.ts < floor.ts:
            raise UnrecoverableRollbackError(
                f"the common point {common} with {source} lies before {floor}, which must stay"
            )
        newest = store.last_applied
        if common == newest:
            return f"nothing to undo: {source} holds {newest}"
        snapshot = store.read()
        written = Written(
            self._disk, self._dbpath, self._clock.wall_ms(), self._identity(), common, "rollback", source
        )
        manifest = await self._workers.run(lambda: written.write(snapshot, RollbackState.PLANNED))
        await undo(store, common, manifest.id, self._undone)
        await finish(store, self._disk, self._dbpath, self._clock, self._workers, manifest)
        return f"undid {manifest.entries} entries, {manifest.first} to {manifest.last}, to {common}: {manifest.id}"


# --- the common point -------------------------------------------------------------------------------------------


class CommonPoint:
    """Finds the newest entry that this member and `source` share, by bisection over my log with a few probes.

    Logs that share an entry (term, ts) share all before it, so "the source has it" holds up to the common point and
    not beyond. The answer is void unless the source's rollback id is the same in every reply.
    """

    def __init__(self, peer: Peer, store: Store, source: HostPort) -> None:
        self._peer = peer
        self._store = store
        self._source = source
        self._rollback_id: int | None = None

    async def find(self) -> OpTime:
        """The common point. SourceChangedError: try again. NoCommonPointError: too stale. UnrecoverableRollbackError:
        the chains there differ, or the source lacks what I know to be committed.
        """
        store = self._store
        mine, my_oldest = store.last_applied, store.oldest
        head = await self._probe([mine, my_oldest])
        if head.newest.term <= mine.term and head.chains[0] is None:
            raise SourceChangedError(f"{self._source} ends at {head.newest}, not in a later term than my {mine}")
        if head.chains[0] is not None:
            return self._agreed(mine, head.chains[0])
        if head.oldest.ts > mine.ts:
            raise NoCommonPointError(f"{self._source} begins at {head.oldest}, after my newest {mine}")
        low, low_chain = my_oldest, head.chains[1]
        if low_chain is None:
            low, low_chain = await self._first_shared(head.oldest)
        return await self._bisect(low, low_chain, mine)

    async def _first_shared(self, source_oldest: OpTime) -> tuple[OpTime, int]:
        """My oldest entry that the source can still have. It was trimmed there, or it never was."""
        rows = self._store.oplog_after(OpTime(0, source_oldest.ts - 1), limit=1, max_bytes=1)
        candidate = rows[0].optime if rows and source_oldest.ts > self._store.oldest.ts else None
        chain = None if candidate is None else (await self._probe([candidate])).chains[0]
        if candidate is None or chain is None:
            raise NoCommonPointError(f"{self._source} holds none of my entries; it begins at {source_oldest}")
        return candidate, chain

    async def _bisect(self, low: OpTime, low_chain: int, high: OpTime) -> OpTime:
        """low is shared, high is not."""
        while True:
            points = self._between(low, high)
            if not points:
                # The end of the search asks once more, so that the rollback id is checked behind everything.
                final = await self._probe([low])
                if final.chains[0] is None:
                    raise SourceChangedError(f"{self._source} does not hold {low} any more")
                return self._agreed(low, final.chains[0])
            reply = await self._probe(points)
            for point, chain in zip(points, reply.chains, strict=True):
                if chain is None:
                    high = point
                    break
                low, low_chain = point, chain

    def _between(self, low: OpTime, high: OpTime) -> list[OpTime]:
        """Up to PROBE_POINTS of my entries strictly between, spread over time; empty when there are none."""
        found: set[OpTime] = set()
        first = self._store.oplog_after(low, limit=1, max_bytes=1)
        if first and first[0].optime < high:
            found.add(first[0].optime)
        span = high.ts - low.ts
        for i in range(1, PROBE_POINTS):
            row = self._store.row_at_or_before(low.ts + span * i // PROBE_POINTS)
            if row is not None and low < row.optime < high:
                found.add(row.optime)
        return sorted(found)

    def _agreed(self, optime: OpTime, chain: int) -> OpTime:
        row = self._store.oplog_row_at(optime)
        invariant(row is not None, "the common point is an entry of mine")
        mine = row.chain if row is not None else 0
        if mine != chain:
            raise UnrecoverableRollbackError(
                f"at the common point {optime} the hash chain of {self._source} is {chain:016x}, mine {mine:016x}: "
                "corruption, not rollback"
            )
        return optime

    async def _probe(self, optimes: list[OpTime]) -> ProbeReply:
        try:
            reply = ProbeReply.parse(
                await self._peer.call(self._source, ProbeRequest(optimes).document(), timeout_ms=PROBE_TIMEOUT_MS)
            )
        except (HostUnreachableError, RemoteProtocolError) as error:
            raise SourceChangedError(f"{self._source}: {error.message}") from error
        except ReplError as error:
            raise SourceChangedError(f"{self._source} answers {error.code_name}: {error.message}") from error
        if len(reply.chains) != len(optimes):
            raise SourceChangedError(f"{self._source} answered {len(reply.chains)} of {len(optimes)} questions")
        if self._rollback_id is None:
            self._rollback_id = reply.rollback_id
        if reply.rollback_id != self._rollback_id:
            raise SourceChangedError(f"{self._source} rolled back while its log was compared with mine")
        return reply


# --- the files --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Written:
    """Writes everything behind `common` to files: what a rollback is about to undo, or a wipe to erase."""

    disk: Disk
    dbpath: str
    wall_ms: int
    identity: Identity
    common: OpTime
    reason: str
    source: HostPort | None

    def write(self, snapshot: Snapshot, state: RollbackState) -> Manifest:
        """In a worker thread: entries, documents, then the manifest, all synced. Ends the snapshot.

        OutOfDiskSpaceError and OSError: nothing is left behind.
        """
        writer = RollbackWriter(self.disk, self.dbpath, self.wall_ms)
        try:
            with snapshot:
                manifest = self._entries(snapshot, writer, state)
                self._documents(snapshot, writer)
            return writer.write_manifest(replace(manifest, files=writer.finish()))
        except BaseException:
            writer.discard()
            raise

    def _entries(self, snapshot: Snapshot, writer: RollbackWriter, state: RollbackState) -> Manifest:
        """The oplog's part; the manifest without files."""
        operations: Counter[str] = Counter()
        first: OplogRow | None = None
        last: OplogRow | None = None
        after = self.common
        while rows := snapshot.oplog_after(after, limit=PAGE_ENTRIES, max_bytes=PAGE_BYTES):
            for row in rows:
                writer.add(FileKind.OPLOG, OPLOG_NS, None, row.entry)
                operations[row.op] += 1
            first, last = first or rows[0], rows[-1]
            after = last.optime
        invariant(first is not None and last is not None, "something lies behind the common point")
        assert first is not None and last is not None  # noqa: S101, PT018  # for the type checker
        when = utc_text(self.wall_ms)
        return Manifest(
            id="",
            state=state,
            reason=self.reason,
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
        writer.add(FileKind.DOCUMENTS, coll.ns, uuid, now)
        if before is not None:
            writer.add(FileKind.BEFORE, coll.ns, uuid, before)
