"""Compares the documents of members, range by range, each range as of one optime that all of them have committed.

A range is compared by its digest. Only where the digests differ are the hashes of its documents fetched. Nothing is
kept for this while documents are written, so it costs writers no more than a reader does.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from replset.errors import ErrorCode, ReplError
from replset.features.scrub.document_ranges import Give, RangeReply, RangeRequest, RangeRow, read_own
from replset.ids import OPTIME_NULL, HostPort, Millis, OpTime
from replset.replication.context import MemberContext
from replset.replication.ports import MemberClient
from replset.storage.catalog import SESSIONS

ANSWER_WITHIN_MS = Millis(10_000)


@dataclass(frozen=True, slots=True)
class Difference:
    """One document that not all members have alike. rows: what each member has that answered; None: no document."""

    ns: str
    key: bytes
    rows: Mapping[HostPort, RangeRow | None]

    @property
    def id(self) -> object:
        """The document's `_id`, of the first member that can read it."""
        return next((row.id for row in self.rows.values() if row is not None and row.id is not None), None)

    def hash_of(self, host: HostPort) -> int | None:
        """Of the document that this member has; None: it has none, or did not answer."""
        row = self.rows.get(host)
        return None if row is None else row.hash


@dataclass(frozen=True, slots=True)
class ComparedRange:
    """What one step found. request: of the range, with the optime. next: where the next range begins; None: that was
    the last one. documents, size: of this member. failed: the members that could not be compared, and why.
    """

    request: RangeRequest
    next: bytes | None
    documents: int
    size: int
    differing: Sequence[Difference] = ()
    failed: Mapping[HostPort, str] = field(default_factory=dict)


@dataclass(slots=True)
class ScrubStatus:
    """What a member knows from comparing its documents with the primary's in the background.

    passes: over all collections. ended_wall_ms: when the newest of them ended. documents: compared in this pass.
    differing: of the newest pass and of this one, by namespace and key.
    """

    passes: int = 0
    ended_wall_ms: int = 0
    documents: int = 0
    differing: dict[tuple[str, bytes], Difference] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """The differing documents in a few words; empty when there are none."""
        if not self.differing:
            return ""
        counts = Counter(ns for ns, _ in self.differing)
        return ", ".join(f"{count} of {ns}" for ns, count in sorted(counts.items()))

    def on_compared(self, compared: ComparedRange) -> None:
        """Forget the documents of a range that are alike now on all members."""
        if compared.failed:
            return
        request, still = compared.request, {one.key for one in compared.differing}
        for ns, key in list(self.differing):
            is_within = ns == request.ns and key >= request.low and (compared.next is None or key < compared.next)
            if is_within and key not in still:
                del self.differing[ns, key]


class DocumentCheck:
    """Compares this member's documents with those of others."""

    def __init__(self, context: MemberContext, peer: MemberClient) -> None:
        self._context = context
        self._peer = peer

    def namespaces(self) -> list[str]:
        """The collections whose documents are compared. Records of sessions change with every write."""
        return [coll.ns for coll in self._context.store.collections() if coll.uuid != SESSIONS.uuid]

    async def read_own(self, request: RangeRequest) -> RangeReply:
        """See document_ranges.read_own."""
        return await read_own(self._context, request)

    async def compare(
        self, ns: str, low: bytes, hosts: Sequence[HostPort], reached: OpTime | None = None
    ) -> ComparedRange:
        """Compare the next range from the key `low` on with `hosts`. ReplError: this member cannot be read now.

        reached: how far all of them are. Delayed ones are compared as of then, while that state can be read here.
        """
        store = self._context.store
        newest = min(store.commit_point, store.last_applied)
        at, chain = newest, None
        if reached is not None and store.pruned_through <= reached.ts:
            at = min(newest, reached)
            chain = store.chain_at(at)
        if chain is None and newest != OPTIME_NULL:
            at, chain = newest, store.chain_at(newest)
        if chain is None:
            raise ReplError("nothing is committed yet that could be compared", code=ErrorCode.SNAPSHOT_UNAVAILABLE)
        request = RangeRequest(ns, at, chain, low)
        mine = await read_own(self._context, request)
        request = replace(request, high=mine.end)
        replies, failed = await self._ask(hosts, request)
        if all((one.end, one.count, one.digest) == (None, mine.count, mine.digest) for one in replies.values()):
            return ComparedRange(request, mine.end, mine.count, mine.size, failed=failed)
        request = replace(request, give=Give.HASHES)
        mine = await read_own(self._context, request)
        replies, more_failed = await self._ask(list(replies), request)
        replies = {self._context.identity.member: mine, **replies}
        ends = [one.end for one in replies.values() if one.end is not None]
        upto = min(ends) if ends else request.high
        differing = find_differences(ns, replies, upto)
        return ComparedRange(request, upto, mine.count, mine.size, differing, failed | more_failed)

    async def documents(self, host: HostPort, request: RangeRequest, key: bytes) -> RangeRow | None:
        """Fetch one document, as it was at the optime of `request`; None: it was not there. ReplError."""
        one = replace(request, low=key, high=key + b"\0", give=Give.DOCUMENTS)
        is_own = host == self._context.identity.member
        reply = await (read_own(self._context, one) if is_own else self._read(host, one))
        return reply.rows[0] if reply.rows else None

    async def _ask(
        self, hosts: Sequence[HostPort], request: RangeRequest
    ) -> tuple[dict[HostPort, RangeReply], dict[HostPort, str]]:
        answers = await asyncio.gather(*(self._read(host, request) for host in hosts), return_exceptions=True)
        replies: dict[HostPort, RangeReply] = {}
        failed: dict[HostPort, str] = {}
        for host, answer in zip(hosts, answers, strict=True):
            if isinstance(answer, RangeReply):
                replies[host] = answer
            elif isinstance(answer, ReplError):
                failed[host] = answer.message
            else:
                raise answer
        return replies, failed

    async def _read(self, host: HostPort, request: RangeRequest) -> RangeReply:
        return RangeReply.parse(await self._peer.call(host, request.document(), timeout_ms=ANSWER_WITHIN_MS))


def find_differences(ns: str, replies: Mapping[HostPort, RangeReply], upto: bytes | None) -> list[Difference]:
    """Return the documents before the key `upto` that not all members have alike, in the order of their keys."""
    by_host = {
        host: {row.key: row for row in reply.rows if upto is None or row.key < upto} for host, reply in replies.items()
    }
    keys = sorted({key for rows in by_host.values() for key in rows})
    found = []
    for key in keys:
        rows = {host: rows.get(key) for host, rows in by_host.items()}
        if len({None if row is None else row.hash for row in rows.values()}) > 1:
            found.append(Difference(ns, key, rows))
    return found
