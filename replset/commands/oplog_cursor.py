"""Reads local.oplog.rs for find, beginning at the `ts` in the filter, and tails it for getMore (map O1, R4).

Only entries of committed transactions are seen, in the order of their `ts`, as the bytes that were written.
"""

from __future__ import annotations

from replset.bson import Timestamp, decode, encode
from replset.commands.cursors import MAX_BATCH_BYTES, Cursor, Pause
from replset.commands.evaluation import evaluate
from replset.commands.namespaces import OPLOG
from replset.commands.ports import MemberPort
from replset.errors import BadValueError, CappedPositionLostError, CursorNotFoundError, NotPrimaryOrSecondaryError
from replset.ids import OPTIME_NULL, OpTime, pack_ts
from replset.oplog_row import OplogRow
from replset.query.match import Matcher
from replset.query.projection import Projection

PAGE_ENTRIES = 512
PAGE_BYTES = 4 << 20
PAGE_BACK = 64
END = OpTime(0, (1 << 63) - 1)
AWAIT_MS = 1_000


def start_position(query: dict[str, object]) -> OpTime:
    """Return the optime behind which entries can match: the filter's demand of `ts`, alone or in a top-level $and."""
    after = OPTIME_NULL
    for name, value in query.items():
        if name == "$and" and isinstance(value, list):
            after = max([after, *(start_position(part) for part in value if isinstance(part, dict))], key=_ts)
        elif name == "ts":
            wanted = value if isinstance(value, dict) else {"$eq": value}
            for operator, edge in wanted.items():
                if isinstance(edge, Timestamp) and operator in ("$gt", "$gte", "$eq"):
                    ts = pack_ts(edge.time, edge.inc)
                    after = max(after, OpTime(0, ts if operator == "$gt" else ts - 1), key=_ts)
    return after if after.ts > 0 else OPTIME_NULL


def _ts(optime: OpTime) -> int:
    return optime.ts


class OplogCursor(Cursor):
    """A position in the oplog. Nothing is kept for it: if its place is trimmed away, the cursor is lost (136)."""

    def __init__(
        self,
        member: MemberPort,
        query: dict[str, object],
        matcher: Matcher | None,
        projection: Projection | None,
        weight: int,
        *,
        tailable: bool,
        await_data: bool,
        backwards: bool,
        skip: int,
        limit: int,
    ) -> None:
        """weight: see evaluation.py. backwards: newest first, as {$natural: -1} asks; then it cannot tail."""
        super().__init__(OPLOG)
        self._member = member
        if backwards and tailable:
            raise BadValueError("cannot tail the oplog backwards")
        self._projection = projection
        self._before: OpTime | None = END if backwards else None
        self._after = OPTIME_NULL if backwards else start_position(query)
        # A filter on ts alone is met by the position; `$gte` and `$gt` need no decoding of each entry.
        only_ts = set(query) == {"ts"} and isinstance(query["ts"], dict) and set(query["ts"]) <= {"$gt", "$gte"}
        self._matcher = None if only_ts and self._after != OPTIME_NULL else matcher
        self._weight = weight if self._matcher or projection else 0
        self._tailable = tailable
        self.await_data = await_data
        self._skip = skip
        self._left: int | None = limit or None
        self._pending: list[bytes] = []
        self._began = False
        self._rollback_id: int | None = None

    async def batch(self, pause: Pause, limit: int | None, await_ms: int | None) -> list[bytes]:
        documents = await self._collect(pause, limit)
        is_first, self._began = not self._began, True
        if not documents and self.await_data and not is_first and not self.finished:
            deadline = self._member.clock.now() + (AWAIT_MS if await_ms is None else await_ms)
            while not documents and not self.finished and (left := deadline - self._member.clock.now()) > 0:
                await self._member.wait_for_change(left)
                documents = await self._collect(pause, limit)
        return documents

    async def _collect(self, pause: Pause, limit: int | None) -> list[bytes]:
        documents: list[bytes] = []
        size = 0
        while True:
            self._check()
            while self._pending and (limit is None or len(documents) < limit) and self._left != 0:
                raw = self._pending[-1]
                size += len(raw) + 16
                if size > MAX_BATCH_BYTES and documents:
                    return documents
                documents.append(self._pending.pop())
                if self._left is not None:
                    self._left -= 1
            if self._left == 0:
                self.finished = True
                return documents
            if self._pending or (limit is not None and len(documents) >= limit):
                return documents
            if not await self._read_page():
                self.finished = not self._tailable
                return documents
            await pause()

    def _check(self) -> None:
        """Raise an error if this member rolled back, or does not serve reads: the cursor must not mix two histories."""
        self.check_alive()
        state, rollback_id = self._member.node.state, self._member.store.rollback_id
        if not state.is_readable:
            raise NotPrimaryOrSecondaryError(f"the oplog is not read in state {state.name}")
        if self._rollback_id not in (None, rollback_id):
            raise CursorNotFoundError("the member rolled back: the cursor is closed")
        self._rollback_id = rollback_id

    async def _read_page(self) -> bool:
        """Fill `_pending`; False at the end of the oplog."""
        if self._before is not None:
            return await self._read_page_back(self._before)
        store = self._member.store
        after = self._after
        if not self._began and after.ts < store.trimmed_through:
            after = OPTIME_NULL  # a first read begins at the oldest entry there is
        rows = store.oplog_after(after, limit=PAGE_ENTRIES, max_bytes=PAGE_BYTES)
        if not rows:
            return False
        if self._began and after.ts < store.trimmed_through:
            raise CappedPositionLostError("the cursor's place in the oplog was trimmed away")
        self._after = (await self._keep(rows)).optime
        return True

    async def _read_page_back(self, before: OpTime) -> bool:
        """As `_read_page`, towards the oldest entry."""
        store = self._member.store
        rows: list[OplogRow] = []
        while len(rows) < PAGE_BACK and (row := store.row_at_or_before(before)) is not None:
            rows.append(row)
            before = OpTime(row.term, row.ts - 1)
        if rows:
            last = await self._keep(rows)
            self._before = OpTime(last.term, last.ts - 1)
        return bool(rows)

    async def _keep(self, rows: list[OplogRow]) -> OplogRow:
        """Fill `_pending` with those of `rows` that match; the last one that was looked at."""
        found, looked_at = await evaluate(
            self._member, self._weight, [row.entry for row in rows], self._shown_if_matched
        )
        self._check()  # a rollback meanwhile took away what was read
        skipped = min(self._skip, len(found))
        self._skip -= skipped
        found = found[skipped:]
        found.reverse()
        self._pending = found
        return rows[looked_at - 1]

    def _shown_if_matched(self, entry: bytes) -> bytes | None:
        matcher, projection = self._matcher, self._projection
        if matcher is None and projection is None:
            return entry
        document = decode(entry)
        if matcher is not None and not matcher.matches(document):
            return None
        return entry if projection is None else encode(projection(document))
