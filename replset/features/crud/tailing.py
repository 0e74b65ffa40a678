"""Cursors that may tail: they stay open at the end, and with awaitData wait there for more (map O1).

What they read is in the subclasses: the oplog (oplog_cursor.py), or a capped collection, here.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from replset.bson import decode, encode
from replset.errors import (
    CappedPositionLostError,
    CursorNotFoundError,
    NotPrimaryOrSecondaryError,
    QueryPlanKilledError,
)
from replset.ids import OpTime
from replset.operations.cursors import Batch, Cursor, Pause
from replset.operations.evaluation import evaluate
from replset.operations.kernel import Kernel
from replset.operations.slow_operations import WORK
from replset.query.match import Matcher
from replset.query.projection import Projection
from replset.storage.catalog import Collection

AWAIT_MS = 1_000
PAGE_DOCUMENTS = 512
PAGE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a find asks of such a cursor. weight: see evaluation.py. limit 0: none."""

    matcher: Matcher | None
    projection: Projection | None
    weight: int
    tailable: bool = False
    await_data: bool = False
    skip: int = 0
    limit: int = 0
    keep_forever: bool = False


class TailingCursor(Cursor):
    """A position among documents that only grow at their end. Nothing is kept for it."""

    def __init__(self, ns: str, member: Kernel, wanted: Wanted) -> None:
        super().__init__(ns, keep_forever=wanted.keep_forever)
        self._member = member
        self._matcher = wanted.matcher
        self._projection = wanted.projection
        self._weight = wanted.weight
        self._tailable = wanted.tailable
        self.await_data = wanted.await_data
        self._skip = wanted.skip
        self._left: int | None = wanted.limit or None
        self._began = False
        self._rollback_id: int | None = None

    async def batch(self, pause: Pause, limit: int | None, await_ms: int | None) -> list[bytes]:
        documents = await self._collect(pause, limit)
        is_first, self._began = not self._began, True
        if not documents and self.await_data and not is_first and not self.finished:
            began = self._member.clock.now()
            deadline = began + (AWAIT_MS if await_ms is None else await_ms)
            while not documents and not self.finished and (left := deadline - self._member.clock.now()) > 0:
                await self._member.wait_for_change(left)
                documents = await self._collect(pause, limit)
            if (work := WORK.get()) is not None:
                work.idle_ms += self._member.clock.now() - began
        return documents

    async def _collect(self, pause: Pause, limit: int | None) -> list[bytes]:
        batch = Batch(self.batch_bytes, limit, self._left, skip=self._skip)
        self._check()
        rows = batch.want
        while batch.space != 0:
            if not await self._read_page(batch, rows):
                self.finished = not self._tailable
                break
            rows = None if rows is None else 2 * rows
            await pause()
            self._check()
        self._skip = batch.skip
        if self._left is not None:
            self._left -= len(batch.documents)
            self.finished |= self._left == 0
        return batch.documents

    def _check(self) -> None:
        """Raise an error if this member rolled back, or does not serve reads: the cursor must not mix two histories."""
        self.check_alive()
        state, rollback_id = self._member.node.state, self._member.store.rollback_id
        if not state.is_readable:
            raise NotPrimaryOrSecondaryError(f"{self.ns} is not read in state {state.name}")
        if self._rollback_id not in (None, rollback_id):
            raise CursorNotFoundError("the member rolled back: the cursor is closed")
        self._rollback_id = rollback_id

    @abstractmethod
    async def _read_page(self, batch: Batch, rows: int | None) -> bool:
        """Read on, and give what was read to `_add`; False at the end. rows: so many are enough; None: a whole page."""

    async def _add(self, batch: Batch, documents: list[bytes]) -> int:
        """Add those of `documents` that match, as long as there is room; return how many are done with."""
        found, looked_at = await evaluate(
            self._member, self._weight, documents, self._shown_if_matched, batch.want, batch.fits
        )
        self._check()  # a rollback meanwhile took away what was read
        batch.add(found)
        return looked_at

    def _shown_if_matched(self, raw: bytes) -> bytes | None:
        matcher, projection = self._matcher, self._projection
        if matcher is None and projection is None:
            return raw
        document = decode(raw)
        if matcher is not None and not matcher.matches(document):
            return None
        return raw if projection is None else encode(projection(document))


class CappedCursor(TailingCursor):
    """Tails a capped collection, in the order of inserts. Lost (136) if the document where it stands is removed."""

    def __init__(self, member: Kernel, coll: Collection, wanted: Wanted, *, is_majority: bool) -> None:
        """is_majority: only what is committed is seen."""
        super().__init__(coll.ns, member, wanted)
        self._coll = coll
        self._is_majority = is_majority
        self._place: int | None = None
        self._key = b""

    async def _read_page(self, batch: Batch, rows: int | None) -> bool:
        store = self._member.store
        known = store.collection_by_uuid(self._coll.uuid)
        if known is None or known.dropped_ts is not None or known.ns != self.ns:
            raise QueryPlanKilledError(f"collection dropped or renamed: {self.ns}")
        at: OpTime | None = min(self._member.node.commit_point, store.last_applied) if self._is_majority else None
        most, most_bytes = min(rows or PAGE_DOCUMENTS, PAGE_DOCUMENTS), min(batch.left_bytes, PAGE_BYTES)
        page: list[tuple[int, bytes, bytes]] = []
        size = 0
        with store.read() as snapshot:
            if self._place is not None and snapshot.place_of(self._coll, self._key) != self._place:
                raise CappedPositionLostError("the document where the cursor stands was removed from the collection")
            for row in snapshot.natural_scan(self._coll, at, after=self._place):
                if not row[2]:  # nothing that this read may see yet
                    break
                page.append(row)
                size += len(row[2])
                if len(page) == most or size > most_bytes:
                    break
        if not page:
            return False
        done = await self._add(batch, [doc for _, _, doc in page])
        if done:
            self._place, self._key, _ = page[done - 1]
        return True
