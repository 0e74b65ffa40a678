"""find, getMore and killCursors on collections. The oplog's own cursors are in oplog_cursor.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from replset.bson import Int64, RawDocument, decode, encode
from replset.commands import fields
from replset.commands.command import Command, CommandContext, Where
from replset.commands.cursors import FIRST_BATCH, MAX_BATCH_BYTES, Cursor
from replset.commands.namespaces import OPLOG, collection_field, namespace
from replset.commands.oplog_cursor import OplogCursor
from replset.commands.ports import Reply
from replset.commands.read_concern import LINEARIZABLE, prove, read_concern_of, read_point, refuse_linearizable
from replset.commands.replies import timestamp
from replset.commands.scan import Row, Scan, breathe, matcher_of, open_collection
from replset.commands.write_batch import check_options
from replset.errors import BadValueError, NotPrimaryOrSecondaryError, ReplError, UnknownFieldError
from replset.ids import Millis, OpTime
from replset.query.match import Matcher
from replset.query.projection import Projection, compile_projection
from replset.query.sort import Sort, compile_sort
from replset.storage.store import Pin

SORT_BYTES = 100 << 20
SORT_MEMORY = 292
_NOT_BUILT = ("collation", "let", "min", "max", "returnKey", "showRecordId", "requestResumeToken", "resumeAfter")
_FIELDS = frozenset(
    {
        "filter",
        "sort",
        "projection",
        "skip",
        "limit",
        "batchSize",
        "singleBatch",
        "hint",
        "tailable",
        "awaitData",
        "oplogReplay",
        "noCursorTimeout",
        "allowPartialResults",
        "allowDiskUse",
        *_NOT_BUILT,
    }
)


@dataclass(slots=True)
class Query:
    """A find command, parsed and compiled. limit 0: none."""

    filter: dict[str, object]
    matcher: Matcher | None
    projection: Projection | None
    sort: Sort | None
    skip: int
    limit: int
    batch_size: int
    single_batch: bool
    tailable: bool
    await_data: bool
    keep_forever: bool


def parse_find(ctx: CommandContext) -> Query:
    """Raises for what is unknown, of the wrong type, out of range or not built."""
    body, name = ctx.body, ctx.name
    check_options(ctx, _NOT_BUILT)
    check_hint(ctx)
    query = fields.decoded(body, "filter", name)
    projection = fields.decoded(body, "projection", name)
    sort = fields.decoded(body, "sort", name)
    await_data = fields.boolean(body, "awaitData", name)
    tailable = fields.boolean(body, "tailable", name)
    if await_data and not tailable:
        raise BadValueError("Cannot set 'awaitData' without also setting 'tailable'", code=9)
    return Query(
        query,
        matcher_of(query),
        compile_projection(projection),
        compile_sort(sort) if sort and not _is_id_order(sort) else None,
        fields.whole(body, "skip", name, least=0),
        fields.whole(body, "limit", name, least=0),
        fields.whole(body, "batchSize", name, FIRST_BATCH, least=0),
        fields.boolean(body, "singleBatch", name),
        tailable,
        await_data,
        fields.boolean(body, "noCursorTimeout", name),
    )


def _is_id_order(sort: dict[str, object]) -> bool:
    """Documents come in the order of their `_id` anyway."""
    return sort in ({"_id": 1}, {"$natural": 1})


def check_hint(ctx: CommandContext) -> None:
    """There is one index to hint at, and the natural order."""
    hint = ctx.body.get("hint")
    known = hint is None or hint == "_id_" or (isinstance(hint, dict) and list(hint) in ([], ["_id"], ["$natural"]))
    if not known:
        raise BadValueError(
            "error processing query: planner returned error :: caused by :: hint provided does not"
            " correspond to an existing index"
        )


class FindCursor(Cursor):
    """Documents of one collection that match, in the order of their `_id` or sorted in memory."""

    def __init__(self, ns: str, scan: Scan, query: Query, pin: Pin | None) -> None:
        super().__init__(ns, keep_forever=query.keep_forever)
        self._scan = scan
        self._query = query
        self._pin = pin
        self._skip = query.skip
        self._left: int | None = query.limit or None
        self._waiting: list[Row] = []
        self._sorted = query.sort is None

    async def batch(self, ctx: CommandContext, limit: int | None, await_ms: int | None) -> list[bytes]:
        if not self._sorted:
            await self._sort(ctx)
        documents: list[bytes] = []
        size = slices = 0
        while True:
            room = None if limit is None else limit - len(documents)
            if self._left is not None and (room is None or self._left < room):
                room = self._left
            if room == 0:
                break
            if not self._waiting:
                if self._scan.exhausted:
                    break
                if slices:
                    await breathe(ctx)
                    self.check_alive()
                slices += 1
                self._waiting = self._next_rows(room)
                self._waiting.reverse()
                continue
            row = self._waiting[-1]
            raw = self._shape(row)
            size += len(raw) + 16
            if size > MAX_BATCH_BYTES and documents:
                return documents
            self._waiting.pop()
            documents.append(raw)
            if self._left is not None:
                self._left -= 1
        if self._left == 0 or (self._scan.exhausted and not self._waiting):
            self.finished = True
        return documents

    def _next_rows(self, room: int | None) -> list[Row]:
        rows = self._scan.next_slice(None if room is None else room + self._skip)
        if self._skip:
            skipped = min(self._skip, len(rows))
            self._skip -= skipped
            rows = rows[skipped:]
        return rows

    def _shape(self, row: Row) -> bytes:
        raw, document = row
        projection = self._query.projection
        if projection is None:
            return raw
        whole = decode(raw) if document is None else document
        return encode(projection(whole))

    async def _sort(self, ctx: CommandContext) -> None:
        """Take all documents, keep those that the limit lets through, order them. 292 over 100 MiB."""
        sort = self._query.sort
        if sort is None:
            return
        wanted = self._skip + self._left if self._left is not None else None
        kept: list[tuple[bytes | int, Row]] = []
        size = number = 0
        while not self._scan.exhausted:
            for raw, document in self._scan.next_slice():
                number -= 1
                if sort.natural:
                    kept.append((number, (raw, document)))  # only backwards comes here
                else:
                    kept.append((sort(decode(raw) if document is None else document), (raw, document)))
                size += len(raw)
            if wanted is not None and len(kept) > 2 * wanted + 1000:
                kept.sort(key=_sort_key)
                del kept[wanted:]
                size = sum(len(row[0]) for _, row in kept)
            if size > SORT_BYTES:
                raise ReplError(
                    f"Sort exceeded memory limit of {SORT_BYTES} bytes, but did not opt in to external sorting.",
                    code=SORT_MEMORY,
                )
            await breathe(ctx)
            self.check_alive()
        kept.sort(key=_sort_key)
        rows = [row for _, row in kept[self._skip : wanted]]
        rows.reverse()
        self._waiting, self._skip, self._sorted = rows, 0, True

    def close(self) -> None:
        super().close()
        if self._pin is not None:
            self._pin.release()
            self._pin = None


def _sort_key(pair: tuple[Any, Row]) -> Any:
    return pair[0]


# --- commands ---------------------------------------------------------------------------------------------------


async def find(ctx: CommandContext) -> Reply:
    """Documents that match, in batches."""
    query = parse_find(ctx)
    name = collection_field(ctx.body, ctx.name)
    ns = namespace(ctx.database, name)
    concern = read_concern_of(ctx)
    if ns == OPLOG:
        refuse_linearizable(concern, ns)
        if query.sort is not None and not query.sort.natural:
            raise UnknownFieldError("sorting the oplog other than by $natural is not built yet")
        oplog = OplogCursor(
            query.filter,
            query.matcher,
            query.projection,
            tailable=query.tailable,
            await_data=query.await_data,
            backwards=query.sort is not None,
            skip=query.skip,
            limit=query.limit,
        )
        return await _first_batch(ctx, oplog, query, None)
    if query.tailable:
        raise BadValueError(f"error processing query: tailable cursor requested on non capped collection {ns}")
    coll, at = await open_collection(ctx, name, concern)
    if coll is None:
        await prove(ctx)
        return _cursor_reply(0, ns, "firstBatch", [], at)
    pin = None if at is None else ctx.member.store.pin(at)
    cursor = FindCursor(ns, Scan(ctx.member, coll, at, query.matcher), query, pin)
    return await _first_batch(ctx, cursor, query, at)


async def _first_batch(ctx: CommandContext, cursor: Cursor, query: Query, at: OpTime | None) -> Reply:
    try:
        documents = await _proven_batch(ctx, cursor, query.batch_size, 0)
    except BaseException:
        cursor.close()
        raise
    if query.single_batch:
        cursor.close()
    cursor_id = 0 if cursor.finished else ctx.cursors.add(cursor)
    if cursor.finished:
        cursor.close()
    return _cursor_reply(cursor_id, cursor.ns, "firstBatch", documents, at)


async def _proven_batch(ctx: CommandContext, cursor: Cursor, limit: int | None, await_ms: int | None) -> list[bytes]:
    """The next batch, proven if the read is linearizable; getMores then have what is left of find's maxTimeMS."""
    documents = await cursor.batch(ctx, limit, await_ms)
    if ctx.linearizable_term is not None:
        await prove(ctx)
        cursor.check_alive()
        cursor.linearizable = True
        cursor.left_ms = None if ctx.deadline is None else max(0, ctx.deadline - ctx.member.clock.now())
    return documents


def _cursor_reply(cursor_id: int, ns: str, batch: str, documents: list[bytes], at: OpTime | None) -> dict[str, object]:
    cursor = {batch: [RawDocument(raw) for raw in documents], "id": Int64(cursor_id), "ns": ns}
    reply: dict[str, object] = {"cursor": cursor}
    if at is not None:
        reply["operationTime"] = timestamp(at.ts)
    return reply


async def get_more(ctx: CommandContext) -> Reply:
    """The next batch of a cursor. maxTimeMS is how long a tailing one waits for the first document."""
    body, name = ctx.body, ctx.name
    if body.type_of(name) != 18:
        raise fields.wrong_type(name, name, body.type_of(name), "long")
    cursor_id = fields.whole(body, name, name)
    ns = namespace(ctx.database, fields.text(body, "collection", name))
    batch_size = fields.whole(body, "batchSize", name, least=0)
    await_ms = fields.whole(body, "maxTimeMS", name, least=0) or None
    state = ctx.member.node.state
    if not state.is_readable:
        raise NotPrimaryOrSecondaryError(f"node is not in primary or secondary state: {state.name}")
    cursor = ctx.cursors.take(cursor_id, ns)
    ctx.deadline = None
    try:
        if cursor.linearizable:
            if cursor.left_ms is not None:
                ctx.deadline = Millis(ctx.member.clock.now() + cursor.left_ms)
            await read_point(ctx, LINEARIZABLE)
        documents = await _proven_batch(ctx, cursor, batch_size or None, await_ms)
    except BaseException:
        cursor.close()
        ctx.cursors.give_back(cursor_id, cursor)
        raise
    is_open = ctx.cursors.give_back(cursor_id, cursor)
    return _cursor_reply(cursor_id if is_open else 0, ns, "nextBatch", documents, None)


async def kill_cursors(ctx: CommandContext) -> Reply:
    """Close cursors."""
    ns = namespace(ctx.database, collection_field(ctx.body, ctx.name))
    ids = [fields.as_whole(value, "cursors", ctx.name) for value in fields.values(ctx.body, "cursors", ctx.name)]
    killed, missing = ctx.cursors.kill(ids, ns)
    return {
        "cursorsKilled": [Int64(cursor_id) for cursor_id in killed],
        "cursorsNotFound": [Int64(cursor_id) for cursor_id in missing],
        "cursorsAlive": [],
        "cursorsUnknown": [],
    }


COMMANDS: tuple[Command, ...] = (
    Command("find", find, _FIELDS, where=Where.READABLE, read_concern=True),
    Command("getMore", get_more, frozenset({"collection", "batchSize", "term", "lastKnownCommittedOpTime"})),
    Command("killCursors", kill_cursors, frozenset({"cursors"})),
)
