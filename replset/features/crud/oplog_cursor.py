"""Reads local.oplog.rs for find and count, and tails it for getMore (map O1, R4).

Only entries of committed transactions are seen, in the order of their `ts`, as the bytes that were written. Conditions
on `ts`, `t`, `op`, `ns` and `wall` are decided by the columns of the table: entries that they leave out are not read.
"""

from __future__ import annotations

from dataclasses import replace

from replset.auth.users import USERS_NS
from replset.bson import decode, encode
from replset.errors import BadValueError, CappedPositionLostError
from replset.features.crud.oplog_filter import OplogFilter, head_document, oplog_filter
from replset.features.crud.tailing import TailingCursor, Wanted
from replset.ids import OPTIME_NULL, OpTime
from replset.operations.cursors import Batch
from replset.operations.evaluation import SMALL_STATEMENT, UNBOUNDED, TimeSlice, is_small, run_in_thread
from replset.operations.kernel import Kernel
from replset.operations.namespaces import OPLOG
from replset.oplog_row import OplogRow
from replset.query.match import Matcher

PAGE_ENTRIES = 512
PAGE_BYTES = 4 << 20
PAGE_BACK = 64
PAGE_HEADS = 2000
LEAST_HEADS = 100
"""Heads beyond the entries that are wanted, some of which do not match."""
_HEAD_BYTES = 200


class OplogCursor(TailingCursor):
    """A position in the oplog. Nothing is kept for it: if its place is trimmed away, the cursor is lost (136).

    heads_examined, entries_examined: rows of which the columns were looked at, and entries that were read.
    """

    def __init__(
        self,
        member: Kernel,
        query: dict[str, object],
        wanted: Wanted,
        *,
        backwards: bool,
        is_majority: bool = False,
        counts: bool = False,
    ) -> None:
        """backwards: newest first, as {$natural: -1} asks; then it cannot tail. is_majority: only what is committed is
        seen. counts: the documents only count, so that they may be empty.
        """
        if backwards and wanted.tailable:
            raise BadValueError("cannot tail the oplog backwards")
        compiles = wanted.weight <= SMALL_STATEMENT or wanted.weight == UNBOUNDED
        matcher = wanted.matcher
        found = OplogFilter() if matcher is None else oplog_filter(query, compiles=compiles, fold=matcher.fold)
        if found.is_whole:
            wanted = replace(wanted, matcher=None)
        self._heads = found.heads
        # A filter on ts alone, as of those who tail, is met by the position: all entries from there on are wanted.
        if (
            set(query) == {"ts"}
            and isinstance(query["ts"], dict)
            and set(query["ts"]) <= {"$gt", "$gte"}
            and found.after
        ):
            self._heads = None
        self._heads_weight = wanted.weight
        self._backwards = backwards
        self._is_majority = is_majority
        self._counts = counts and found.is_whole
        self._after, self._until = found.after, found.until
        self.heads_examined = self.entries_examined = 0
        if wanted.matcher is None and wanted.projection is None:
            wanted = replace(wanted, weight=0)
        super().__init__(OPLOG, member, wanted)

    async def _read_page(self, batch: Batch, rows: int | None) -> bool:
        """See TailingCursor. The end is that of the oplog, or of what can match."""
        store = self._member.store
        if not self._backwards and self._after < store.trimmed_through:
            if self._began:
                raise CappedPositionLostError("the cursor's place in the oplog was trimmed away")
            self._after = 0  # a first read begins at the oldest entry there is
        until = min(self._until, self._member.node.commit_point.ts) if self._is_majority else self._until
        if self._after >= until:
            return False
        if self._heads is not None:
            return await self._read_by_heads(batch, rows, self._heads, until)
        page = self._rows_back(until, rows) if self._backwards else self._rows(until, rows, batch.left_bytes)
        if page and (done := await self._add_rows(batch, page)):
            self._advance(page[done - 1].ts)
        return bool(page)

    def _advance(self, ts: int) -> None:
        """Go on behind this entry."""
        if self._backwards:
            self._until = ts - 1
        else:
            self._after = ts

    def _rows(self, until: int, most: int | None, most_bytes: int) -> list[OplogRow]:
        after = OpTime(0, self._after) if self._after else OPTIME_NULL
        limit, max_bytes = min(most or PAGE_ENTRIES, PAGE_ENTRIES), min(most_bytes, PAGE_BYTES)
        rows = self._member.store.oplog_after(after, limit=limit, max_bytes=max_bytes)
        return [row for row in rows if row.ts <= until]

    def _rows_back(self, until: int, most: int | None) -> list[OplogRow]:
        rows: list[OplogRow] = []
        before = until
        while len(rows) < min(most or PAGE_BACK, PAGE_BACK):
            row = self._member.store.row_at_or_before(OpTime(0, before))
            if row is None or row.ts <= self._after:
                break
            rows.append(row)
            before = row.ts - 1
        return rows

    async def _read_by_heads(self, batch: Batch, most: int | None, matcher: Matcher, until: int) -> bool:
        """Do as `_read_page`: look at the columns of the next rows, and read the entries that they do not leave out."""
        store = self._member.store
        limit = PAGE_HEADS if most is None else min(PAGE_HEADS, most + LEAST_HEADS)
        heads = store.oplog_heads(self._after, until, limit=limit, backwards=self._backwards)
        if not heads:
            return False

        def work() -> tuple[list[int], int]:
            time_slice = TimeSlice(self._member.clock)
            found: list[int] = []
            looked_at = 0
            for head in heads:
                looked_at += 1
                if matcher.matches(head_document(head)):
                    found.append(head.optime.ts)
                if time_slice.is_over():
                    break
            return found, looked_at

        is_on_loop = is_small(self._heads_weight, _HEAD_BYTES)
        found, looked_at = work() if is_on_loop else await run_in_thread(self._member, work)
        self._check()  # a rollback meanwhile took away what was read
        last = heads[looked_at - 1].optime.ts
        if self._counts:
            done = await self._add(batch, [b""] * len(found))
        else:
            enough = min(most or PAGE_ENTRIES, PAGE_ENTRIES)
            rows = store.oplog_rows_at(found[:enough], max_bytes=min(batch.left_bytes, PAGE_BYTES))
            done = await self._add_rows(batch, rows)
        if done < len(found):
            if not done:
                return True
            last = found[done - 1]
        self.heads_examined += sum(
            head.optime.ts >= last if self._backwards else head.optime.ts <= last for head in heads
        )
        self._advance(last)
        return True

    async def _add_rows(self, batch: Batch, rows: list[OplogRow]) -> int:
        """Add the entries of those of `rows` that match; how many are done with."""
        done = await self._add(batch, [shown_entry(row) for row in rows])
        self.entries_examined += done
        return done


def shown_entry(row: OplogRow) -> bytes:
    """The entry as clients see it: of a user's document only the `_id`, for the rest holds keys."""
    if row.ns != USERS_NS:
        return row.entry
    shown = decode(row.entry)
    document = shown.get("o")
    shown["o"] = {"_id": document["_id"]} if isinstance(document, dict) and "_id" in document else {}
    return encode(shown)
