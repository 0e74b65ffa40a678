"""Walks a collection for a filter, in slices that fit between two heartbeats, at one read point or as it is now.

Documents are read on the event loop, a few megabytes at once. Filters and projections are evaluated there or in the
thread (evaluation.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import TypeVar

from replset.errors import CursorNotFoundError, QueryPlanKilledError, SnapshotCutError
from replset.features.crud.candidates import Candidate, OverlayView, SnapshotView, View, source_of
from replset.features.crud.plan import ByKeys, Natural, Plan, index_names
from replset.ids import OpTime
from replset.operations.command import CommandContext
from replset.operations.cursors import FIRST_BATCH
from replset.operations.evaluation import evaluate_all
from replset.operations.kernel import Kernel
from replset.operations.slow_operations import WORK
from replset.replication.write_set import WriteSet
from replset.storage.catalog import Collection
from replset.storage.snapshot import Snapshot

T = TypeVar("T")
SLICE_DECODED = 256
"""Documents that are decoded and matched before others get a turn: about 3 ms."""
SLICE_RAW = 1024
SLICE_BYTES = 4 << 20
FIRST_SLICE_BYTES = 256 << 10
"""Of the first slice, which has no more documents than a usual first batch either. Other slices wait for each other."""
FETCH_MS = 10
"""What one slice may take to find its documents."""


class Scan:
    """A position in the documents of one collection that match a filter.

    at: the point of the read, None for the newest state of each moment. Between slices nothing is held but the position
    (candidates.py).
    """

    def __init__(
        self,
        member: Kernel,
        coll: Collection,
        at: OpTime | None,
        plan: Plan,
        weight: int,
        own: WriteSet | None = None,
    ) -> None:
        """weight: of what the caller evaluates; 0: nothing, so nothing is decoded. own: of a transaction."""
        self._member = member
        self._rollback_id = member.store.rollback_id
        self._coll = coll
        self._weight = weight
        self._limit = SLICE_DECODED if weight else SLICE_RAW
        self._source = source_of(plan)
        if (work := WORK.get()) is not None:
            work.indexes.update((coll.uuid, name) for name in index_names(plan))
        self._is_whole = isinstance(plan, Natural)
        self._only_key = plan.keys[0] if isinstance(plan, ByKeys) and len(plan.keys) == 1 else None
        self._own = own
        self.at = at
        self.exhausted = False
        self._mean_bytes = 1
        """A document's size in the last slice: a slice of few bytes must not read rows that it leaves out again."""
        self.keys_examined = self.documents_examined = 0

    async def next_slice(
        self,
        read: Callable[[Sequence[bytes]], Iterable[T | None]],
        want: int | None = None,
        most_bytes: int = SLICE_BYTES,
        fits: Callable[[T], bool] | None = None,
    ) -> list[T]:
        """Go on for one slice, until `want` documents match (None: all of the slice). Sets `exhausted` at the end.

        read: what the caller wants of each document, None when it does not look for it; it decodes and matches.
        most_bytes: of documents that are read, however many match. fits: see `evaluate`; the next slice begins with the
        document that did not fit.

        CursorNotFoundError after a rollback; SnapshotTooOldError; 175 when the collection or the index was dropped
        since (unless the read is at an older point).
        """
        most, most_bytes = self._limit, min(most_bytes, SLICE_BYTES)
        if not self.keys_examined:
            most, most_bytes = FIRST_BATCH, min(most_bytes, FIRST_SLICE_BYTES)
            if self._is_whole and self._weight:
                await self._member.slices.take()  # before the other slices `pause` does it
        self._check()
        fetched, is_last = self._fetch(most if want is None or self._weight else min(want, most), most_bytes)
        documents = [raw for _, _, raw in fetched if raw is not None]
        found, looked_at = await evaluate_all(self._member, self._weight, documents, read, want, fits)
        self._check()  # a rollback meanwhile may have taken away what was read
        is_all = looked_at == len(documents)
        done = len(fetched)
        if not is_all:
            done = [0, *(number for number, (_, _, raw) in enumerate(fetched, 1) if raw is not None)][looked_at]
        if done:
            self._source.advance(fetched[done - 1])
        self.keys_examined += done
        self.documents_examined += looked_at
        if (work := WORK.get()) is not None:
            work.keys += 0 if self._is_whole else done
            work.documents += looked_at
            work.is_scan |= self._is_whole
        self.exhausted = is_last and is_all
        return found

    def _check(self) -> None:
        store = self._member.store
        if store.rollback_id != self._rollback_id:
            raise CursorNotFoundError("the member rolled back: what was being read does not exist any more")
        if self.at is None and self._own is None:
            known = store.collection_by_uuid(self._coll.uuid)
            if known is None or known.dropped_ts is not None:
                raise QueryPlanKilledError(f"collection dropped: {self._coll.ns}")
            if known.ns != self._coll.ns:
                raise QueryPlanKilledError(f"collection renamed: {self._coll.ns}")

    def _fetch(self, limit: int, most_bytes: int) -> tuple[list[Candidate], bool]:
        """The next candidates, and whether they are the last."""
        store = self._member.store
        if self._only_key is not None and self.at is None and self._own is None:
            return [(self._only_key, self._only_key, store.get(self._coll, self._only_key))], True
        fetched: list[Candidate] = []
        size = 0
        until = self._member.clock.now() + FETCH_MS
        with store.read() as snapshot:
            rows = min(limit, most_bytes // self._mean_bytes + 1)
            view: View = SnapshotView(snapshot, self._coll, self.at, rows)
            if self._own is not None:
                view = OverlayView(view, self._own)
            for page in self._source.pages(view):
                sizes = [len(raw or b"") for _, _, raw in page]
                if size + sum(sizes) > most_bytes:
                    # A page may bring megabytes, and hundreds of cursors would keep what their batches do not take.
                    last = bisect_right(list(accumulate(sizes)), most_bytes - size)
                    page, sizes = page[: last + 1], sizes[: last + 1]
                fetched += page
                size += sum(sizes)
                if len(fetched) >= limit or size > most_bytes or self._member.clock.now() >= until:
                    self._mean_bytes = size // len(fetched) + 1
                    return fetched, False
        return fetched, True


async def pause(ctx: CommandContext) -> None:
    """Let other clients run between two slices. Raises MaxTimeMSExpiredError when maxTimeMS is over.

    The slices of all commands together take a part of each turn of the event loop. Hundreds of commands that each took
    one in every turn would keep new ones waiting for seconds.
    """
    ctx.check_deadline()
    await ctx.member.slices.wait(0)


async def read_in_thread(ctx: CommandContext, read: Callable[[Snapshot], T]) -> T:
    """Return `read` of a snapshot, in a thread; again when a checkpoint cut the snapshot off."""
    store = ctx.member.store

    def work() -> T:
        with store.read() as snapshot:
            return read(snapshot)

    while True:
        try:
            return await ctx.member.workers.run(work)
        except SnapshotCutError:
            await pause(ctx)
