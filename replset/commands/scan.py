"""Walking a collection for a filter, in slices that fit between two heartbeats, at one point or as it is now."""

from __future__ import annotations

import asyncio

from replset.bson import decode, encode_key
from replset.commands.command import CommandContext
from replset.commands.namespaces import namespace
from replset.commands.ports import MemberPort
from replset.commands.read_concern import ReadConcern, read_point
from replset.errors import CatalogChangedError, CursorNotFoundError, ReplError
from replset.ids import OpTime
from replset.query.match import Matcher, compile_filter
from replset.query.order import MISSING
from replset.query.regex import begin_turn, turn_is_over
from replset.storage.catalog import Collection
from replset.storage.snapshot import Snapshot

SLICE_DECODED = 128
"""Documents decoded and matched without giving others a turn: some 3 ms."""
SLICE_RAW = 1024
SLICE_BYTES = 4 << 20
QUERY_PLAN_KILLED = 175

Row = tuple[bytes, dict[str, object] | None]
"""A document's bytes, and decoded where matching needed that."""


def matcher_of(query: dict[str, object]) -> Matcher | None:
    """The compiled filter; None for the empty one, which every document matches undecoded."""
    return compile_filter(query) if query else None


def candidate_keys(matcher: Matcher | None) -> list[bytes] | None:
    """The keys of the only documents that can match, in order; None when the filter does not name them."""
    if matcher is None:
        return None
    if matcher.id_equality is not MISSING:
        return [encode_key(matcher.id_equality)]
    if matcher.id_in is not None:
        return sorted({encode_key(value) for value in matcher.id_in})
    return None


class Scan:
    """A position in the documents of one collection that match a filter.

    at: the point of the read, None for the newest state of each moment. Between slices nothing is held: the position
    is the last key that was seen.
    """

    __slots__ = ("_after", "_coll", "_keys", "_matcher", "_member", "_rollback_id", "at", "exhausted")

    def __init__(self, member: MemberPort, coll: Collection, at: OpTime | None, matcher: Matcher | None) -> None:
        self._member = member
        self._rollback_id = member.store.rollback_id
        self._coll = coll
        self._matcher = matcher
        self._after: bytes | None = None
        self._keys = candidate_keys(matcher)
        if self._keys is not None:
            self._keys.reverse()
        self.at = at
        self.exhausted = False

    def next_slice(self, want: int | None = None) -> list[Row]:
        """Go on for one slice, until `want` documents match (None: all of the slice). Sets `exhausted` at the end.

        CursorNotFoundError after a rollback; SnapshotTooOldError; 175 when the collection was dropped since (unless
        the read is at an older point).
        """
        begin_turn()
        store = self._member.store
        if store.rollback_id != self._rollback_id:
            raise CursorNotFoundError("the member rolled back: what was being read does not exist any more")
        if self.at is None:
            known = store.collection_by_uuid(self._coll.uuid)
            if known is None or known.dropped_ts is not None:
                raise ReplError(f"collection dropped: {self._coll.ns}", code=QUERY_PLAN_KILLED)
            if self._keys is not None and len(self._keys) == 1:
                return self._point_read(self._keys.pop())
        with store.read() as snapshot:
            return self._by_keys(snapshot, want) if self._keys is not None else self._walk(snapshot, want)

    def _point_read(self, key: bytes) -> list[Row]:
        self.exhausted = True
        raw = self._member.store.get(self._coll, key)
        row = None if raw is None else self._match(raw)
        return [] if row is None else [row]

    def _match(self, raw: bytes) -> Row | None:
        matcher = self._matcher
        if matcher is None:
            return raw, None
        document = decode(raw)
        return (raw, document) if matcher.matches(document) else None

    def _by_keys(self, snapshot: Snapshot, want: int | None) -> list[Row]:
        keys = self._keys or []
        rows: list[Row] = []
        for _ in range(SLICE_DECODED):
            if not keys or len(rows) == want or turn_is_over():
                break
            raw = snapshot.get(self._coll, keys.pop(), self.at)
            row = None if raw is None else self._match(raw)
            if row is not None:
                rows.append(row)
        self.exhausted = not keys
        return rows

    def _walk(self, snapshot: Snapshot, want: int | None) -> list[Row]:
        rows: list[Row] = []
        limit = SLICE_RAW if self._matcher is None else SLICE_DECODED
        seen = size = 0
        for key, raw in snapshot.scan(self._coll, self.at, after_key=self._after, limit=limit):
            self._after = key
            seen += 1
            size += len(raw)
            row = self._match(raw)
            if row is not None:
                rows.append(row)
            if len(rows) == want or size > SLICE_BYTES or turn_is_over():
                return rows
        self.exhausted = seen < limit
        return rows


async def open_collection(
    ctx: CommandContext, name: str, concern: ReadConcern
) -> tuple[Collection | None, OpTime | None]:
    """Wait until the read may begin: the collection (None: there is none) and the point to read at (None: now)."""
    ns = namespace(ctx.database, name)
    at = await read_point(ctx, concern)
    while at is not None:
        try:
            with ctx.member.store.read() as snapshot:
                return snapshot.collection(ns, at), at
        except CatalogChangedError as changed:
            at = await ctx.member.wait_for_read("majority", changed.until, ctx.deadline)
    return ctx.member.store.collection(ns), None


async def breathe(ctx: CommandContext) -> None:
    """Between two slices: let others run, and stop when maxTimeMS is over."""
    ctx.check_deadline()
    await asyncio.sleep(0)
