"""Walks a collection for a filter, in slices that fit between two heartbeats, at one read point or as it is now.

Documents are read on the event loop, a few megabytes at once. Filters and projections are evaluated there or in the
thread (evaluation.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from replset.bson import encode_key
from replset.commands.command import CommandContext
from replset.commands.evaluation import evaluate
from replset.commands.namespaces import namespace
from replset.commands.ports import MemberPort
from replset.commands.read_concern import ReadConcern, read_point
from replset.errors import CatalogChangedError, CursorNotFoundError, ErrorCode, ReplError
from replset.ids import OpTime
from replset.query.match import Matcher, compile_filter
from replset.query.order import MISSING
from replset.query.sort import sort_by_key
from replset.replication.write_set import WriteSet
from replset.storage.catalog import Collection

T = TypeVar("T")
SLICE_DECODED = 128
"""Documents that are decoded and matched before others get a turn: about 3 ms."""
SLICE_RAW = 1024
SLICE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Filter:
    """A compiled filter. matcher: None for the empty one, which every document matches undecoded.

    keys: those of the only documents that can match, the first one last; None when the filter does not name them.
    """

    matcher: Matcher | None
    keys: list[bytes] | None

    def matches(self, document: dict[str, object]) -> bool:
        return self.matcher is None or self.matcher.matches(document)


def filter_of(query: dict[str, object]) -> Filter:
    """Raises what compile_filter raises."""
    if not query:
        return Filter(None, None)
    matcher = compile_filter(query)
    if matcher.id_equality is not MISSING:
        return Filter(matcher, [encode_key(matcher.id_equality)])
    if matcher.id_in is None:
        return Filter(matcher, None)
    keys = sort_by_key([(key, key) for key in {encode_key(value) for value in matcher.id_in}])
    keys.reverse()
    return Filter(matcher, keys)


class Scan(Generic[T]):
    """A position in the documents of one collection that match a filter.

    at: the point of the read, None for the newest state of each moment. Between slices nothing is held: the position
    is the last key that was seen.
    """

    def __init__(
        self,
        member: MemberPort,
        coll: Collection,
        at: OpTime | None,
        keys: list[bytes] | None,
        read: Callable[[bytes], T | None],
        weight: int,
        backwards: bool = False,
        own: WriteSet | None = None,
    ) -> None:
        """keys: see Filter. read: what the caller wants of a document, None when it does not look for this one; it
        decodes and matches. weight: of what `read` evaluates; 0 for nothing, then documents are not even decoded.
        backwards: the last document first.
        """
        self._own = own
        self._member = member
        self._rollback_id = member.store.rollback_id
        self._coll = coll
        self._read = read
        self._weight = weight
        self._limit = SLICE_DECODED if weight else SLICE_RAW
        self._after: bytes | None = None
        self._keys = keys[:: -1 if backwards else 1] if keys is not None else None
        self._backwards = backwards
        self.at = at
        self.exhausted = False

    async def next_slice(self, want: int | None = None) -> list[T]:
        """Go on for one slice, until `want` documents match (None: all of the slice). Sets `exhausted` at the end.

        CursorNotFoundError after a rollback; SnapshotTooOldError; 175 when the collection was dropped since (unless
        the read is at an older point).
        """
        self._check()
        wanted_keys: list[bytes] = []
        if self._keys is None:
            fetched, is_last = self._walk(want)
        else:
            fetched, wanted_keys = self._by_keys(self._keys, want)
            is_last = len(wanted_keys) == len(self._keys)
        documents = [raw for _, raw in fetched]
        found, looked_at = await evaluate(self._member, self._weight, documents, self._read, want)
        self._check()  # a rollback meanwhile may have taken away what was read
        if looked_at:
            self._after = fetched[looked_at - 1][0]
        is_all = looked_at == len(fetched)
        if self._keys is not None:
            done = len(wanted_keys) if is_all or self._after is None else wanted_keys.index(self._after) + 1
            del self._keys[len(self._keys) - done :]
        self.exhausted = is_last and is_all
        return found

    def _check(self) -> None:
        store = self._member.store
        if store.rollback_id != self._rollback_id:
            raise CursorNotFoundError("the member rolled back: what was being read does not exist any more")
        if self.at is None:
            known = store.collection_by_uuid(self._coll.uuid)
            if known is None or known.dropped_ts is not None:
                raise ReplError(f"collection dropped: {self._coll.ns}", code=ErrorCode.QUERY_PLAN_KILLED)
            if known.ns != self._coll.ns:
                raise ReplError(f"collection renamed: {self._coll.ns}", code=ErrorCode.QUERY_PLAN_KILLED)

    def _by_keys(self, keys: list[bytes], want: int | None) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
        """Return (key, document) of those that exist, and the keys that were looked up."""
        store = self._member.store
        if self.at is None and len(keys) == 1:
            only = store.get(self._coll, keys[0])
            return ([] if only is None else [(keys[0], only)]), keys
        wanted_keys = keys[-(SLICE_DECODED if want is None else min(want, SLICE_DECODED)) :]
        wanted_keys.reverse()
        fetched: list[tuple[bytes, bytes]] = []
        size = 0
        with store.read() as snapshot:
            for number, key in enumerate(wanted_keys):
                raw = (
                    snapshot.get(self._coll, key, self.at)
                    if self._own is None
                    else self._own.get_from(snapshot, self._coll, key)
                )
                if raw is not None:
                    fetched.append((key, raw))
                    size += len(raw)
                    if size > SLICE_BYTES:
                        return fetched, wanted_keys[: number + 1]
        return fetched, wanted_keys

    def _walk(self, want: int | None) -> tuple[list[tuple[bytes, bytes]], bool]:
        """(key, document) of the next ones, and whether they are the last."""
        limit = self._limit if want is None or self._weight else min(want, self._limit)
        fetched: list[tuple[bytes, bytes]] = []
        size = 0
        with self._member.store.read() as snapshot:
            pairs = (
                snapshot.scan(self._coll, self.at, after_key=self._after, limit=limit, backwards=self._backwards)
                if self._own is None
                else self._own.scan_from(snapshot, self._coll, self._after or b"", limit)
            )
            for pair in pairs:
                fetched.append(pair)
                size += len(pair[1])
                if size > SLICE_BYTES:
                    return fetched, False
        return fetched, len(fetched) < limit


async def open_collection(
    ctx: CommandContext, name: str, concern: ReadConcern
) -> tuple[Collection | None, OpTime | None]:
    """Wait until the read may begin: the collection (None: there is none) and the point to read at (None: now)."""
    ns = namespace(ctx.database, name)
    if ctx.transaction is not None:
        return ctx.transaction.write_set.collection(ns), ctx.transaction.at
    at = await read_point(ctx, concern)
    while at is not None:
        try:
            with ctx.member.store.read() as snapshot:
                return snapshot.collection(ns, at), at
        except CatalogChangedError as changed:
            if concern.at is not None:
                raise
            at = await read_point(ctx, replace(concern, after=changed.until))
    return ctx.member.store.collection(ns), None


async def pause(ctx: CommandContext) -> None:
    """Let other clients run between two slices. Raises MaxTimeMSExpiredError when maxTimeMS is over."""
    ctx.check_deadline()
    await asyncio.sleep(0)
