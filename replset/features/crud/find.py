"""find on collections, and the cursor of a query. The oplog's own cursors are in oplog_cursor.py."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from replset.auth.roles import Action
from replset.auth.users import AUTH_SCHEMA, USERS_NS
from replset.bson import decode, encode
from replset.errors import BadValueError, ErrorCode, InvalidOptionsError, NotBuiltError, StorageError
from replset.features.crud.candidates import index_key
from replset.features.crud.filters import Filter, filter_of
from replset.features.crud.find_by_id import begin_find, find_by_id, looks_simple, reply_of
from replset.features.crud.get_more import first_batch
from replset.features.crud.hint import Hint, bad_hint, hint_of, limits_of
from replset.features.crud.let import let_of, variables_of
from replset.features.crud.oplog_cursor import OplogCursor
from replset.features.crud.plan import choose_plan, natural_direction
from replset.features.crud.scan import SLICE_BYTES, SLICE_DECODED, Scan
from replset.features.crud.spill_file import SpillFile
from replset.features.crud.tailing import CappedCursor, Wanted
from replset.ids import OpTime
from replset.operations import fields
from replset.operations.authorization import authorize
from replset.operations.collations import command_fold
from replset.operations.command import AtOnce, Command, CommandContext, Where
from replset.operations.cursors import FIRST_BATCH, Batch, Cursor, CursorTable, DocumentsCursor, Pause
from replset.operations.evaluation import (
    SMALL_STATEMENT,
    compiled,
    evaluate,
    evaluate_all,
    read_statement,
    run_in_thread,
    weight_of,
)
from replset.operations.kernel import Kernel
from replset.operations.namespaces import OPLOG, collection_of, namespace
from replset.operations.read_concern import (
    ReadConcern,
    collection_at,
    open_collection,
    read_concern_of,
    read_point,
    refuse_linearizable,
)
from replset.operations.request import Reply
from replset.operations.user_directory import users_of
from replset.query.collation import Fold
from replset.query.projection import Projection, compile_find_projection
from replset.query.sort import Sort, compile_sort
from replset.query.sorter import Sorter, Spill
from replset.replication.write_set import WriteSet
from replset.storage.catalog import Collection
from replset.storage.store import Pin

REPLSET_CONFIG = "local.system.replset"
AUTH_VERSION = "admin.system.version"
MADE_UP = (REPLSET_CONFIG, AUTH_VERSION, USERS_NS)
"""What has no collection that clients can read: its documents are made, or read, for each find."""
_SMALL_SORT = 2 << 20
"""Bytes that the event loop sorts."""
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
        "min",
        "max",
        "returnKey",
        "showRecordId",
        "tailable",
        "awaitData",
        "noCursorTimeout",
        "collation",
        "allowDiskUse",
        "let",
    }
)


@dataclass(slots=True)
class Query:
    """A find command, parsed and compiled. limit 0: none. weight: see evaluation.py.

    returns_key: it shows the keys of the index that it uses, not the documents.
    """

    filter: dict[str, object]
    compiled: Filter
    projection: Projection | None
    sort: Sort | None
    hint: Hint | None
    weight: int
    skip: int
    limit: int
    single_batch: bool = False
    tailable: bool = False
    await_data: bool = False
    keep_forever: bool = False
    returns_key: bool = False
    spill: Spill | None = None


async def parse_find(ctx: CommandContext) -> Query:
    """Raises for what is unknown, of the wrong type, out of range or not built."""
    body, name = ctx.body, ctx.name
    fold = command_fold(ctx)
    (filter_, projection, sort), limits = await read_statement(
        ctx.member,
        body,
        lambda: (
            [fields.decoded(body, field, name) for field in ("filter", "projection", "sort")],
            limits_of(body, name, fold),
        ),
    )
    await_data = fields.boolean(body, "awaitData", name)
    tailable = fields.boolean(body, "tailable", name)
    if await_data and not tailable:
        raise BadValueError("Cannot set 'awaitData' without also setting 'tailable'", code=ErrorCode.FAILED_TO_PARSE)

    skip, limit = fields.whole(body, "skip", name, least=0), fields.whole(body, "limit", name, least=0)
    variables = await variables_of(ctx)
    query = await make_query(ctx, filter_, projection, sort, skip, limit, variables, fold=fold)
    if limits is not None:
        query.hint = (query.hint or Hint())._replace(limits=limits)
    query.single_batch = fields.boolean(body, "singleBatch", name)
    query.tailable, query.await_data = tailable, await_data
    query.keep_forever = fields.boolean(body, "noCursorTimeout", name)
    query.returns_key = fields.boolean(body, "returnKey", name)
    if query.returns_key:
        query.projection, query.weight = None, max(query.weight, len(body.raw))
    elif fields.boolean(body, "showRecordId", name):
        raise NotBuiltError("find.showRecordId without returnKey, which hides the record's id, is not built yet")
    return query


async def make_query(
    ctx: CommandContext,
    filter_: dict[str, object],
    projection: dict[str, object],
    sort: dict[str, object],
    skip: int,
    limit: int,
    variables: Mapping[str, Any],
    *,
    of_inner: int | None = None,
    fold: Fold | None = None,
) -> Query:
    """Compile the parts of a query. of_inner: the weight of a query that the command's hint is not about.

    fold: of the command's collation.
    """
    hint = hint_of(ctx.body, ctx.name) if of_inner is None else None
    size = len(ctx.body.raw) if of_inner is None else of_inner
    weight = weight_of(size, filter_, projection, let_of(ctx.body))

    def compile_() -> tuple[Filter, Projection | None, Sort | None]:
        found = filter_of(filter_, variables, fold)
        if weight > SMALL_STATEMENT:
            _ = found.bounds
        shown = compile_find_projection(projection, variables, found.matcher, fold)
        return found, shown, compile_sort(sort, fold) if sort else None

    found, shown, order = await compiled(ctx.member, weight, compile_)
    is_sorted = order is not None and not order.natural
    weight = weight if filter_ or projection or is_sorted else 0
    return Query(filter_, found, shown, order, hint, weight, skip, limit, spill=spill_of(ctx))


def spill_of(ctx: CommandContext) -> Spill | None:
    """Return what opens temporary files. None if the command says allowDiskUse: false."""
    return partial(SpillFile, ctx.member.store) if fields.boolean(ctx.body, "allowDiskUse", ctx.name, True) else None


class FindCursor(Cursor):
    """Documents of one collection that match, in the order of their plan or sorted in memory."""

    def __init__(
        self,
        member: Kernel,
        table: CursorTable,
        coll: Collection,
        at: OpTime | None,
        query: Query,
        own: WriteSet | None = None,
    ) -> None:
        super().__init__(coll.ns, keep_forever=query.keep_forever)
        self._member = member
        self._table = table
        self._query = query
        self._pin: Pin | None = None if at is None else member.store.pin(at)
        self._skip = query.skip
        self._left: int | None = query.limit or None
        self._waiting: list[bytes] = []
        """What a sorted find has read and not shown, the next document last."""
        found, projection = query.compiled, query.projection
        self._reader = found.reader(() if projection is None else projection.fields)
        plan, is_sorted = choose_plan(coll, query.compiled, query.sort, query.hint, in_transaction=own is not None)
        self._key_shown = partial(index_key, plan) if query.returns_key else None
        self._scan = Scan(member, coll, at, plan, query.weight, own)
        self._to_sort = None if is_sorted else Scan(member, coll, at, plan, query.weight, own)
        self._sort_reader = found.reader(() if query.sort is None else query.sort.reads)
        self._sorter = Sorter(query.spill, "Sort", query.skip + query.limit if query.limit else 0)
        self._ordered: Iterator[bytes] | None = None
        """What a sorted find has still to show."""
        self._is_ordered_out = False

    async def batch(self, pause: Pause, limit: int | None, await_ms: int | None) -> list[bytes]:
        if self._to_sort is not None and self._ordered is None:
            self._ordered = await self._sort(pause, self._to_sort)
        batch = Batch(self.batch_bytes, limit, self._left, skip=self._skip)
        slices = 0
        while batch.fill(self._waiting) and not self._is_at_end():
            if slices:
                await pause()
                self.check_alive()
            slices += 1
            if self._ordered is not None:
                self._waiting = (await self._next_ordered(self._ordered, batch))[::-1]
            else:
                batch.add(await self._scan.next_slice(self._matching, batch.want, batch.left_bytes, batch.fits))
            self.check_alive()
        self._skip = batch.skip
        if self._left is not None:
            self._left -= len(batch.documents)
        if self._left == 0 or (self._is_at_end() and not self._waiting):
            self.finished = True
        return batch.documents

    def _is_at_end(self) -> bool:
        return self._scan.exhausted if self._ordered is None else self._is_ordered_out

    async def _next_ordered(self, ordered: Iterator[bytes], batch: Batch) -> list[bytes]:
        """The next documents in order, some more bytes than fit."""
        count = SLICE_DECODED if batch.space is None else min(batch.space, SLICE_DECODED)
        most_bytes = min(SLICE_BYTES, batch.left_bytes)

        def work() -> list[bytes]:
            found: list[bytes] = []
            size = 0
            for raw in ordered:
                found.append(raw)
                size += len(raw)
                if len(found) == count or size > most_bytes:
                    break
            else:
                self._is_ordered_out = True
            return found

        is_large = self._sorter.memory_bytes > _SMALL_SORT or self._sorter.spilled_runs
        documents = await run_in_thread(self._member, work) if is_large else work()
        shown: list[bytes] = []
        while documents:
            found, looked_at = await evaluate_all(self._member, self._query.weight, documents, self._shown)
            shown += found
            documents = documents[looked_at:]
        if self._is_ordered_out:
            self._sorter.close()
        self._table.set_memory(self, self._sorter.memory_bytes)
        return shown

    def _matching(self, raws: Sequence[bytes]) -> Iterable[bytes | None]:
        """What is shown of each document that matches, None for others."""
        matcher, projection = self._query.compiled.matcher, self._query.projection
        if matcher is None:
            return self._shown(raws)
        documents = self._query.compiled.matching(raws, self._reader)
        if projection is not None:
            return (None if document is None else encode(projection(document)) for document in documents)
        shown = self._key_shown
        pairs = zip(raws, documents, strict=True)
        if shown is not None:
            return (None if document is None else encode(shown(raw)) for raw, document in pairs)
        return (None if document is None else raw for raw, document in pairs)

    def _shown(self, raws: Sequence[bytes]) -> Iterable[bytes]:
        shown, projection = self._key_shown, self._query.projection
        if shown is not None:
            return (encode(shown(raw)) for raw in raws)
        return raws if projection is None else map(encode, map(projection, self._reader.documents(raws)))

    def _keyed(self, raws: Sequence[bytes]) -> Iterable[tuple[bytes, bytes] | None]:
        """Each document that matches, behind its key in the sort."""
        sort, found = self._query.sort, self._query.compiled
        assert sort is not None
        for raw, document in zip(raws, found.matching(raws, self._sort_reader), strict=True):
            yield None if document is None else (sort(document), raw)

    async def _sort(self, pause: Pause, scan: Scan) -> Iterator[bytes]:
        """All documents that the limit lets through, in order."""
        sorter = self._sorter

        while not scan.exhausted:
            found = await scan.next_slice(self._keyed)
            if sorter.memory_bytes > _SMALL_SORT and sorter.is_long_work(found):
                try:
                    await run_in_thread(self._member, partial(sorter.add_all, found))
                except StorageError:
                    self.check_alive()  # killed meanwhile, with its temporary file
                    raise
            else:
                sorter.add_all(found)
            self._table.set_memory(self, sorter.memory_bytes)
            await pause()
            self.check_alive()
        skip, self._skip = self._skip, 0
        return islice(sorter.rows(), skip, None)

    def count_kept(self, table: CursorTable) -> None:
        table.set_memory(self, self._sorter.memory_bytes + sum(map(len, self._waiting)))

    def close(self) -> None:
        super().close()
        self._sorter.close()
        if self._pin is not None:
            self._pin.release()
            self._pin = None


# --- commands ---------------------------------------------------------------------------------------------------


async def find(ctx: CommandContext) -> Reply:
    """Documents that match, in batches."""
    only = find_by_id(ctx)
    if only is not None:
        return only
    body, name = ctx.body, ctx.name
    query = await parse_find(ctx)
    batch_size = fields.whole(body, "batchSize", name, FIRST_BATCH, least=0)
    cursor, at = await open_cursor(ctx, query)
    return await first_batch(ctx, cursor, batch_size, at, is_only=query.single_batch)


async def open_cursor(
    ctx: CommandContext,
    query: Query,
    collection: str | None = None,
    *,
    at_once: bool = False,
    point: OpTime | None = None,
) -> tuple[Cursor, OpTime | None]:
    """Return the cursor of a query on a collection (the command's), and the point to read at (None: now).

    at_once: all of it is read as of this moment, whatever is written while it is read. point: to read at, of a command
    outside of a transaction; None: that of the read concern.
    """
    name = collection_of(ctx) if collection is None else collection
    ns = f"{ctx.database}.{name}"
    ns = ns if ns in MADE_UP else namespace(ctx.database, name)
    concern = read_concern_of(ctx)
    limits = None if query.hint is None else query.hint.limits
    if limits is not None and (query.tailable or ns in (OPLOG, *MADE_UP)):
        raise bad_hint()
    if query.returns_key and (query.tailable or ns in (OPLOG, *MADE_UP)):
        raise NotBuiltError("find.returnKey is not built yet for the oplog and for tailable cursors")
    if ns == OPLOG:
        refuse_linearizable(concern, ns)
        if query.sort is not None and not query.sort.natural:
            raise NotBuiltError("sorting the oplog other than by $natural is not built yet")
        backwards = natural_direction(query.sort, query.hint) < 0
        point = await read_point(ctx, concern)
        return OplogCursor(
            ctx.member, query.filter, _wanted(query), backwards=backwards, is_majority=point is not None
        ), None
    if ns in MADE_UP:
        return DocumentsCursor(ns, await _made_up(ctx, ns, query)), None
    if query.tailable and (ctx.transaction is not None or concern.level not in ("local", "majority")):
        raise InvalidOptionsError("a tailable cursor has read concern local, available or majority")
    at = point
    if point is not None and ctx.transaction is None:
        coll = collection_at(ctx, ns, point)
    else:
        coll, at = await open_collection(ctx, name, concern)
    if at_once and at is None:
        at = ctx.member.store.last_applied
    if query.tailable and coll is not None:
        return _tail_of(ctx, coll, query, concern), at
    snapshot_at = at if concern.level == "snapshot" and ctx.transaction is None else None
    if coll is None:
        documents = DocumentsCursor(ns, [])
        documents.snapshot_at = snapshot_at
        return documents, at
    cursor = FindCursor(
        ctx.member, ctx.cursors, coll, at, query, None if ctx.transaction is None else ctx.transaction.write_set
    )
    cursor.snapshot_at = snapshot_at
    return cursor, at


async def _made_up(ctx: CommandContext, ns: str, query: Query) -> list[bytes]:
    """The documents that match, in the order of their `_id`. 13: the keys of users are for who may make backups."""
    member, config = ctx.member, ctx.member.node.config
    if ns == USERS_NS:
        authorize(member, ctx.sender, Action.BACKUP, ctx.database, f"find of {ns}")
        documents = await member.workers.run(lambda: users_of(member.store))
    elif ns == AUTH_VERSION:
        documents = [encode({"_id": "authSchema", "currentVersion": AUTH_SCHEMA})]
        version = str(member.node.feature_version)
        documents.append(encode({"_id": "featureCompatibilityVersion", "version": version}))
    else:
        documents = [] if config is None else [encode(config.document())]

    def shown(raw: bytes) -> bytes | None:
        document = decode(raw)
        if not query.compiled.matches(document):
            return None
        return encode(document if query.projection is None else query.projection(document))

    found: list[bytes] = []
    while documents:
        more, looked_at = await evaluate(member, query.weight, documents, shown)
        found += more
        documents = documents[looked_at:]
    return found[query.skip :][: query.limit or None]


def _tail_of(ctx: CommandContext, coll: Collection, query: Query, concern: ReadConcern) -> CappedCursor:
    """The cursor that tails a capped collection. BadValueError for other collections and other orders."""
    if coll.capped is None:
        raise BadValueError(f"error processing query: tailable cursor requested on non capped collection {coll.ns}")
    is_sorted = query.sort is not None and not query.sort.natural
    if is_sorted or natural_direction(query.sort, query.hint) < 0:
        raise BadValueError("cannot use tailable option with a sort other than {$natural: 1}")
    return CappedCursor(ctx.member, coll, _wanted(query), is_majority=concern.level == "majority")


def _wanted(query: Query) -> Wanted:
    return Wanted(
        query.compiled.matcher,
        query.projection,
        query.weight,
        query.tailable,
        query.await_data,
        query.skip,
        query.limit,
        query.keep_forever,
    )


COMMANDS: tuple[Command, ...] = (
    Command(
        "find",
        find,
        _FIELDS,
        where=Where.READABLE,
        read_concern=True,
        at_once=AtOnce(begin_find, looks_simple),
        prepared_read=reply_of,
        needs=Action.FIND,
    ),
)
