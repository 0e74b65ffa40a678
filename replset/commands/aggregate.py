"""aggregate: runs a pipeline over the documents of a collection.

What the pipeline begins with and a query can do ($match, $sort, $skip, $limit, $project) becomes a query and reads
through find's cursor, with its indexes and limits. The rest is a chain of stages over what that cursor gives.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from replset.auth.roles import Action
from replset.bson import DateTime, RawDocument, encode
from replset.commands import fields
from replset.commands.authorization import authorize
from replset.commands.command import Command, CommandContext, Where
from replset.commands.count_distinct import count_in_worker
from replset.commands.cursors import FIRST_BATCH, MAX_BATCH_BYTES, Cursor, CursorTable, DocumentsCursor, Pause
from replset.commands.evaluation import compiled, evaluate, read_statement, run_in_thread, weight_of
from replset.commands.find import REPLSET_CONFIG, first_batch, make_query, open_cursor
from replset.commands.namespaces import OPLOG, collection_field, namespace
from replset.commands.operations import current_operations
from replset.commands.ports import MemberPort, Reply
from replset.commands.read_concern import read_concern_of
from replset.commands.scan import SLICE_DECODED, open_collection
from replset.commands.statistics import collection_stats
from replset.commands.unbuilt import unknown_command
from replset.errors import FailedToParseError, InvalidNamespaceError, NamespaceNotFoundError, NotBuiltError
from replset.ids import OpTime
from replset.query.pipeline import (
    Chain,
    CollStatsStage,
    CurrentOpStage,
    LimitStage,
    MatchStage,
    ProjectStage,
    SkipStage,
    SortStage,
    Stage,
    compile_pipeline,
    stage_of,
)
from replset.query.pipeline_names import COLLECTIONLESS_STAGES
from replset.storage.snapshot import Snapshot

_SMALL_END = 1 << 20
"""Bytes that stages kept, of which the event loop makes the results."""


@dataclass(slots=True)
class QueryPart:
    """The part of a pipeline that a query does, and the stages behind it."""

    filter: dict[str, object] = field(default_factory=dict)
    sort: dict[str, object] = field(default_factory=dict)
    skip: int = 0
    limit: int = 0
    projection: dict[str, object] = field(default_factory=dict)
    rest: list[Stage] = field(default_factory=list)

    @property
    def counts_all(self) -> bool:
        """Whether all that is asked of the collection is how many documents it has."""
        is_everything = not (self.filter or self.skip or self.limit)
        return is_everything and bool(self.rest) and self.rest[0].only_counts


def split_pipeline(stages: list[Stage]) -> QueryPart:
    """Return the query that the first stages are. A query filters, sorts, skips, limits and projects in this order."""
    part = QueryPart()
    filters: list[dict[str, object]] = []
    order: tuple[type[Stage], ...] = (MatchStage, SortStage, SkipStage, LimitStage, ProjectStage)
    place = 0
    for number, stage in enumerate(stages):
        kind = type(stage)
        if kind not in order[place:]:
            part.rest = stages[number:]
            break
        # A second $match goes on with the first, every other stage stands once.
        place = order.index(kind) + (kind is not MatchStage)
        if isinstance(stage, MatchStage):
            filters.append(stage.filter)
        elif isinstance(stage, SortStage):
            part.sort = stage.spec
        elif isinstance(stage, SkipStage):
            part.skip = stage.count
        elif isinstance(stage, LimitStage):
            part.limit = stage.count
        elif isinstance(stage, ProjectStage):
            part.projection = stage.spec
    part.filter = filters[0] if len(filters) == 1 else {"$and": filters} if filters else {}
    return part


class AggregateCursor(Cursor):
    """What comes out of a chain of stages over the documents of another cursor."""

    def __init__(self, member: MemberPort, table: CursorTable, source: Cursor, chain: Chain, weight: int) -> None:
        super().__init__(source.ns)
        self.snapshot_at = source.snapshot_at
        self._member = member
        self._table = table
        self._source = source
        self._chain = chain
        self._weight = weight
        self._waiting: list[bytes] = []
        """What came out and is still to be answered, the first document last."""
        self._is_over = False

    async def batch(self, pause: Pause, limit: int | None, await_ms: int | None) -> list[bytes]:
        documents: list[bytes] = []
        size = 0
        while limit is None or len(documents) < limit:
            if not self._waiting:
                if self._is_over:
                    break
                await self._go_on(pause)
                continue
            size += len(self._waiting[-1]) + 16
            if size > MAX_BATCH_BYTES and documents:
                return documents
            documents.append(self._waiting.pop())
        self.finished = self._is_over and not self._waiting
        return documents

    async def _go_on(self, pause: Pause) -> None:
        """Feed the next documents, or end the chain behind the last."""
        chain, member = self._chain, self._member
        found: list[bytes] = []
        if not self._source.finished and not chain.is_full:
            rows = await self._source.batch(pause, SLICE_DECODED, None)
            while rows and not chain.is_full:
                results, looked_at = await evaluate(member, self._weight, rows, chain.take)
                found += [raw for result in results for raw in result]
                rows = rows[looked_at:]
                await pause()
                self.check_alive()
        if self._source.finished or chain.is_full:
            is_small = chain.memory_bytes <= _SMALL_END
            found += chain.end() if is_small else await run_in_thread(member, chain.end)
            self._is_over = True
            self._source.close()
        self.check_alive()
        self._waiting = found[::-1]
        kept = 0 if self._is_over else chain.memory_bytes
        self._table.set_memory(self, kept + sum(map(len, found)))

    def close(self) -> None:
        super().close()
        self._source.killed = self.killed
        self._source.close()


async def aggregate(ctx: CommandContext) -> Reply:
    """Run a pipeline over a collection, and answer in batches."""
    body, name, member = ctx.body, ctx.name, ctx.member
    batch_size = _check_options(body, name)
    pipeline = await read_statement(member, body, lambda: fields.values(body, "pipeline", name))
    _authorize(ctx, pipeline)
    _check_target(ctx, pipeline)
    weight = weight_of(len(body.raw), pipeline)
    stages = await compiled(member, weight, lambda: compile_pipeline(pipeline))
    at: OpTime | None = None
    if stages and isinstance(stages[0], CollStatsStage):
        source, rest = await _stats_cursor(ctx, stages[0]), stages[1:]
    elif stages and isinstance(stages[0], CurrentOpStage):
        source, rest = await _operations_cursor(ctx), stages[1:]
    else:
        part = split_pipeline(stages)
        rest = part.rest
        query = await make_query(ctx, part.filter, part.projection, part.sort, part.skip, part.limit)
        if part.counts_all and _is_counted_as_a_whole(ctx):
            source, at = await _counted(ctx, rest[0])
        else:
            source, at = await open_cursor(ctx, query)
    cursor = AggregateCursor(member, ctx.cursors, source, Chain(rest), weight) if rest else source
    return await first_batch(ctx, cursor, batch_size, at)


def _check_options(body: RawDocument, name: str) -> int:
    """Return the size of the first batch."""
    fields.check_collation(body, name)
    if fields.boolean(body, "explain", name):
        raise NotBuiltError("aggregate.explain is not built yet")
    options = fields.document(body, "cursor", name)
    if options is None:
        raise FailedToParseError("The 'cursor' option is required, except for aggregate with the explain argument")
    fields.check_fields(options, frozenset({"batchSize"}), "aggregate.cursor")
    return fields.whole(options, "batchSize", "cursor", FIRST_BATCH, least=0)


def _authorize(ctx: CommandContext, pipeline: list[object]) -> None:
    """Raise 13 if the sender may not do what the first stage does; $currentOp asks by itself."""
    first = stage_of(pipeline[0])[0] if pipeline else ""
    if first != "$currentOp":
        needs = Action.COLL_STATS if first == "$collStats" else Action.FIND
        authorize(ctx.member, ctx.sender, needs, ctx.database, ctx.name)


def _check_target(ctx: CommandContext, pipeline: list[object]) -> None:
    """Refuse a stage that needs a collection where there is none, and the other way round."""
    body, name = ctx.body, ctx.name
    names = [stage_of(element)[0] for element in pipeline]
    if "$listSearchIndexes" in names:
        raise unknown_command("listSearchIndexes")
    first = names[0] if names else ""
    if body.type_of(name) == 2:
        if first == "$currentOp":
            raise InvalidNamespaceError("$currentOp must be run against the 'admin' database with {aggregate: 1}")
        return
    if body.type_of(name) not in (1, 16, 18, 19) or fields.as_whole(body.get(name), name, name) != 1:
        raise FailedToParseError("Invalid command format: the 'aggregate' field must specify a collection name or 1")
    if first == "$currentOp":
        if ctx.database != "admin":
            raise InvalidNamespaceError("$currentOp must be run against the 'admin' database with {aggregate: 1}")
        return
    if first in COLLECTIONLESS_STAGES:
        raise NotBuiltError(f"the stage {first} is not built yet")
    raise InvalidNamespaceError(f"{{aggregate: 1}} is not valid for '{first:.80}'; a collection is required.")


def _namespace(ctx: CommandContext) -> str:
    return namespace(ctx.database, collection_field(ctx.body, ctx.name))


def _is_counted_as_a_whole(ctx: CommandContext) -> bool:
    """Whether `_counted` sees what the command sees: not the writes of its transaction, and no chosen snapshot."""
    is_plain = ctx.transaction is None and read_concern_of(ctx).level != "snapshot"
    return is_plain and _namespace(ctx) not in (OPLOG, REPLSET_CONFIG)


async def _counted(ctx: CommandContext, stage: Stage) -> tuple[Cursor, OpTime | None]:
    """Give the stage the number of documents, without reading them. The cursor that comes before it is empty."""
    coll, at = await open_collection(ctx, collection_field(ctx.body, ctx.name), read_concern_of(ctx))
    if coll is not None:
        stage.take_count(await count_in_worker(ctx, partial(Snapshot.count, coll=coll, at=at)))
    return DocumentsCursor(_namespace(ctx), []), at


async def _stats_cursor(ctx: CommandContext, stage: CollStatsStage) -> Cursor:
    ns = _namespace(ctx)
    document: dict[str, object] = {
        "ns": ns,
        "host": ctx.member.host,
        "localTime": DateTime(ctx.member.clock.wall_ms()),
    }
    if stage.has_count and ns != OPLOG and ctx.member.store.collection(ns) is None:
        raise NamespaceNotFoundError(
            f"Unable to retrieve count in $collStats stage :: caused by :: Collection [{ns}] not found."
        )
    if stage.scale or stage.has_count:
        stats = await collection_stats(ctx, ns, stage.scale or 1)
        document |= {"storageStats": stats} if stage.scale else {}
        document |= {"count": stats["count"]} if stage.has_count else {}
    return DocumentsCursor(ns, [encode(document)])


async def _operations_cursor(ctx: CommandContext) -> Cursor:
    operations = await current_operations(ctx, {})
    return DocumentsCursor(f"{ctx.database}.$cmd.aggregate", [encode(operation) for operation in operations])


COMMANDS: tuple[Command, ...] = (
    Command(
        "aggregate",
        aggregate,
        frozenset({"pipeline", "cursor", "explain", "hint", "collation"}),
        where=Where.READABLE,
        read_concern=True,
        needs=Action.LOGIN,
    ),
)
