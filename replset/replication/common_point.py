"""Finds the common point: the newest entry that two members share, to which a rollback goes back."""

from __future__ import annotations

from contextlib import suppress

from replset.errors import ErrorCode, HostUnreachableError, RemoteProtocolError, ReplError, UnrecoverableRollbackError
from replset.ids import OPTIME_NULL, HostPort, Millis, OpTime, invariant
from replset.replication.ports import MemberClient
from replset.replication.protocol import FetchRequest, ProbeReply, ProbeRequest
from replset.storage.store import Store

PROBE_POINTS = 16
PROBE_TIMEOUT_MS = Millis(10_000)


class SourceChangedError(ReplError, code=ErrorCode.HOST_UNREACHABLE):
    """The source cannot be reached, rolled back itself or does not fit any more; nothing was undone yet (6)."""


class NoCommonPointError(ReplError, code=ErrorCode.OPLOG_START_MISSING):
    """The source's oplog begins after everything that the two have in common: too stale (120)."""


class ChainDiffersError(UnrecoverableRollbackError):
    """At the entry `at`, which both hold, the source has another hash chain: one of the two is damaged (127)."""

    def __init__(self, message: str, at: OpTime) -> None:
        super().__init__(message)
        self.at = at


class CommonPoint:
    """Finds the newest entry that this member and `source` share, by bisection over my log with a few probes.

    Logs that share an entry (term, ts) share all before it, so "the source has it" holds up to the common point and
    not beyond. The answer is void unless the source's rollback id is the same in every reply.
    """

    def __init__(self, peer: MemberClient, store: Store, source: HostPort) -> None:
        self._peer = peer
        self._store = store
        self._source = source
        self._rollback_id: int | None = None

    async def find(self, *, of_any_term: bool = False) -> OpTime:
        """Return the common point. of_any_term: also with a source whose newest entry is not of a later term than mine.

        SourceChangedError: try again. NoCommonPointError: too stale. ChainDiffersError: the chains there differ, and
        the source has got a message about it.
        """
        store = self._store
        mine, my_oldest = store.last_applied, store.oldest
        head = await self._probe([mine, my_oldest])
        # The core chose this source for its higher term, and it has none any more: it rolled back meanwhile, or lost
        # its disk. It may lack entries that a majority has, and to roll back towards it would take them away. (Raft,
        # 5.4.3; map Ro1.)
        if head.newest.term <= mine.term and head.chains[0] is None and not of_any_term:
            raise SourceChangedError(f"{self._source} ends at {head.newest}, not in a later term than my {mine}")
        if head.chains[0] is not None:
            return await self._agreed(mine, head.chains[0])
        # What the two share is trimmed there, if there is anything. Without a common point nobody knows which entries
        # are not in the set's history, so none is undone: the caller exports and copies.
        if head.oldest.ts > mine.ts:
            raise NoCommonPointError(f"{self._source} begins at {head.oldest}, after my newest {mine}")
        low = my_oldest if head.chains[1] is not None else await self._first_shared(head.oldest)
        return await self._bisect(low, mine)

    async def _first_shared(self, source_oldest: OpTime) -> OpTime:
        """Return my oldest entry that the source can still have. NoCommonPointError when it has none."""
        rows = self._store.oplog_after(OpTime(0, source_oldest.ts - 1), limit=1, max_bytes=1)
        candidate = rows[0].optime if rows and source_oldest.ts > self._store.oldest.ts else None
        chain = None if candidate is None else (await self._probe([candidate])).chains[0]
        if candidate is None or chain is None:
            raise NoCommonPointError(f"{self._source} holds none of my entries; it begins at {source_oldest}")
        return candidate

    async def _bisect(self, low: OpTime, high: OpTime) -> OpTime:
        """Search between `low`, which is shared, and `high`, which is not."""
        while True:
            points = self._between(low, high)
            if not points:
                # The end of the search asks once more, so that the rollback id is checked behind everything.
                final = await self._probe([low])
                if final.chains[0] is None:
                    raise SourceChangedError(f"{self._source} does not hold {low} any more")
                return await self._agreed(low, final.chains[0])
            reply = await self._probe(points)
            for point, chain in zip(points, reply.chains, strict=True):
                if chain is None:
                    high = point
                    break
                low = point

    def _between(self, low: OpTime, high: OpTime) -> list[OpTime]:
        """Return up to PROBE_POINTS of my entries strictly between, spread over time; empty when there are none."""
        found: set[OpTime] = set()
        first = self._store.oplog_after(low, limit=1, max_bytes=1)
        if first and first[0].optime < high:
            found.add(first[0].optime)
        span = high.ts - low.ts
        for i in range(1, PROBE_POINTS):
            row = self._store.row_at_or_before(OpTime(0, low.ts + span * i // PROBE_POINTS))
            if row is not None and low < row.optime < high:
                found.add(row.optime)
        return sorted(found)

    async def _agreed(self, optime: OpTime, chain: int) -> OpTime:
        row = self._store.sound_row_at(optime)
        invariant(row is not None, "the common point is an entry of mine")
        mine = row.chain if row is not None else 0
        if mine != chain:
            # A fetch names the chain here, a probe does not. So the source too compares its chain with the others': it
            # may be the damaged member, and no other member would inform it.
            request = FetchRequest(optime, mine, 1, 0, 0, OPTIME_NULL, -1)
            with suppress(ReplError):
                await self._peer.call(self._source, request.document(), timeout_ms=PROBE_TIMEOUT_MS)
            raise ChainDiffersError(
                f"at the common point {optime} the hash chain of {self._source} is {chain}, mine {mine}", optime
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
        # An answer from before the source's rollback and one from after are about two histories. Together they could
        # give a common point that is not the newest shared entry: entries that the set has would be undone here, or
        # others kept that it does not have. (Map Ro1.)
        if reply.rollback_id != self._rollback_id:
            raise SourceChangedError(f"{self._source} rolled back while its log was compared with mine")
        return reply
