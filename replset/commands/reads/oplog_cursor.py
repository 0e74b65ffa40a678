"""Reads local.oplog.rs for find, beginning at the `ts` in the filter, and tails it for getMore (map O1, R4).

Only entries of committed transactions are seen, in the order of their `ts`, as the bytes that were written.
"""

from __future__ import annotations

from dataclasses import replace

from replset.auth.users import USERS_NS
from replset.bson import Timestamp, decode, encode
from replset.commands.namespaces import OPLOG
from replset.commands.ports import MemberPort
from replset.commands.reads.tailing import TailingCursor, Wanted
from replset.errors import BadValueError, CappedPositionLostError
from replset.ids import OPTIME_NULL, OpTime, pack_ts
from replset.oplog_row import OplogRow

PAGE_ENTRIES = 512
PAGE_BYTES = 4 << 20
PAGE_BACK = 64
END = OpTime(0, (1 << 63) - 1)


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


class OplogCursor(TailingCursor):
    """A position in the oplog. Nothing is kept for it: if its place is trimmed away, the cursor is lost (136)."""

    def __init__(self, member: MemberPort, query: dict[str, object], wanted: Wanted, *, backwards: bool) -> None:
        """backwards: newest first, as {$natural: -1} asks; then it cannot tail."""
        if backwards and wanted.tailable:
            raise BadValueError("cannot tail the oplog backwards")
        self._before: OpTime | None = END if backwards else None
        self._after = OPTIME_NULL if backwards else start_position(query)
        # A filter on ts alone is met by the position; `$gte` and `$gt` need no decoding of each entry.
        only_ts = set(query) == {"ts"} and isinstance(query["ts"], dict) and set(query["ts"]) <= {"$gt", "$gte"}
        if only_ts and self._after != OPTIME_NULL:
            wanted = replace(wanted, matcher=None, weight=wanted.weight if wanted.projection else 0)
        super().__init__(OPLOG, member, wanted)

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
        self._after = (await self._keep_rows(rows)).optime
        return True

    async def _read_page_back(self, before: OpTime) -> bool:
        """As `_read_page`, towards the oldest entry."""
        store = self._member.store
        rows: list[OplogRow] = []
        while len(rows) < PAGE_BACK and (row := store.row_at_or_before(before)) is not None:
            rows.append(row)
            before = OpTime(row.term, row.ts - 1)
        if rows:
            last = await self._keep_rows(rows)
            self._before = OpTime(last.term, last.ts - 1)
        return bool(rows)

    async def _keep_rows(self, rows: list[OplogRow]) -> OplogRow:
        """Keep those of `rows` that match; the last one that was looked at."""
        entries = [shown_entry(row) for row in rows]
        return rows[await self._keep(entries) - 1]


def shown_entry(row: OplogRow) -> bytes:
    """The entry as clients see it: of a user's document only the `_id`, for the rest holds keys."""
    if row.ns != USERS_NS:
        return row.entry
    shown = decode(row.entry)
    document = shown.get("o")
    shown["o"] = {"_id": document["_id"]} if isinstance(document, dict) and "_id" in document else {}
    return encode(shown)
