"""find, count and distinct of a view: each becomes a pipeline over the view's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial, wraps

from replset.bson import MAX_BSON_SIZE, decode
from replset.errors import BadValueError, ErrorCode, ReplError
from replset.features.aggregation.aggregate import run_of
from replset.features.aggregation.explain_pipeline import explain_pipeline
from replset.features.aggregation.pipeline_run import PipelineRun
from replset.features.crud import count_distinct, find
from replset.features.crud.get_more import first_batch
from replset.features.crud.let import variables_of
from replset.features.crud.scan import SLICE_DECODED, pause
from replset.ids import OpTime
from replset.operations import fields
from replset.operations.collations import command_fold
from replset.operations.command import Command, CommandContext, Handler
from replset.operations.cursors import FIRST_BATCH, Cursor
from replset.operations.evaluation import compiled, evaluate, read_statement, weight_of
from replset.operations.namespaces import collection_here, collection_of
from replset.operations.read_concern import confirm_linearizable
from replset.operations.replies import LargeReply
from replset.operations.request import Reply
from replset.query.distinct import Distinct
from replset.query.pipeline import compile_pipeline
from replset.query.stages.stage import Stage

_NOT_IN_VIEWS = frozenset({"$elemMatch", "$slice"})


def reads_views(run: Handler, on_view: Handler) -> Handler:
    """Return the handler of a command that `on_view` answers for a view, and `run` for a collection."""

    @wraps(run)
    async def handler(ctx: CommandContext) -> Reply:
        coll = collection_here(ctx, collection_of(ctx))
        return await (run(ctx) if coll is None or coll.view_on is None else on_view(ctx))

    return handler


async def _open(ctx: CommandContext, elements: list[object]) -> tuple[Cursor, OpTime | None]:
    """Return the cursor of these stages over the view that the command names, and the point to read at."""
    run, stages = await _compiled(ctx, elements)
    return await run.open(collection_of(ctx), stages), run.at


async def _compiled(ctx: CommandContext, elements: list[object]) -> tuple[PipelineRun, list[Stage]]:
    weight = weight_of(len(ctx.body.raw), elements)
    variables = await variables_of(ctx)
    run = run_of(ctx, weight, variables, command_fold(ctx))
    return run, await compiled(ctx.member, weight, lambda: compile_pipeline(elements, run.scope))


async def explain_on_view(ctx: CommandContext, verbosity: str) -> Reply:
    """Show how a find, count or distinct of a view runs."""
    run, stages = await _compiled(ctx, await _ELEMENTS[ctx.command.name](ctx))
    return await explain_pipeline(run, collection_of(ctx), stages, verbosity, ctx.body)


async def _find_elements(ctx: CommandContext, query: find.Query | None = None) -> list[object]:
    """Return the stages that a find of a view is."""
    body, name = ctx.body, ctx.name
    query = query or await find.parse_find(ctx)
    filter_, projection, sort = await read_statement(
        ctx.member, body, lambda: [fields.decoded(body, field, name) for field in ("filter", "projection", "sort")]
    )
    if query.tailable:
        raise _not_supported("tailable")
    if query.hint is not None and query.hint.limits is not None:
        raise _not_supported("min and max")
    if query.returns_key:
        raise _not_supported("returnKey")
    if query.sort is not None and query.sort.natural:
        raise _not_supported("a sort by $natural")
    for path, value in projection.items():
        if path.endswith(".$") or (isinstance(value, dict) and not _NOT_IN_VIEWS.isdisjoint(value)):
            raise _not_supported(f"the projection of {path:.80}")
    parts = {"$match": filter_, "$sort": sort, "$skip": query.skip, "$limit": query.limit, "$project": projection}
    return [{stage: spec} for stage, spec in parts.items() if spec]


async def find_on_view(ctx: CommandContext) -> Reply:
    """Documents of a view that match, in batches."""
    query = await find.parse_find(ctx)
    cursor, at = await _open(ctx, await _find_elements(ctx, query))
    cursor.keep_forever = query.keep_forever
    batch_size = fields.whole(ctx.body, "batchSize", ctx.name, FIRST_BATCH, least=0)
    return await first_batch(ctx, cursor, batch_size, at, is_only=query.single_batch)


def _not_supported(what: str) -> ReplError:
    return ReplError(f"{what} is not supported on a view", code=ErrorCode.INVALID_PIPELINE_OPERATOR)


async def _count_elements(ctx: CommandContext) -> list[object]:
    """Return the stages that a count of a view is."""
    body, name = ctx.body, ctx.name
    query = await read_statement(ctx.member, body, lambda: fields.decoded(body, "query", name))
    skip, limit = fields.whole(body, "skip", name, least=0), abs(fields.whole(body, "limit", name))
    parts = {"$match": query, "$skip": skip, "$limit": limit, "$count": "n"}
    return [{stage: spec} for stage, spec in parts.items() if spec]


async def count_on_view(ctx: CommandContext) -> Reply:
    """How many documents of a view match."""
    cursor, at = await _open(ctx, await _count_elements(ctx))
    number: object = 0
    async for rows in _slices(ctx, cursor):
        number = decode(rows[0])["n"]
    await confirm_linearizable(ctx)
    return count_distinct.with_time({"n": number}, at)


async def _distinct_elements(ctx: CommandContext) -> list[object]:
    """Return the stages before the values of a distinct are taken."""
    body, name = ctx.body, ctx.name
    key = fields.text(body, "key", name)
    if not key or "\0" in key:
        raise BadValueError("distinct.key must be the path of a field")
    return [{"$match": await read_statement(ctx.member, body, lambda: fields.decoded(body, "query", name))}]


async def distinct_on_view(ctx: CommandContext) -> Reply:
    """The different values of a field in the documents of a view that match; 17217 over 16 MiB."""
    cursor, at = await _open(ctx, await _distinct_elements(ctx))
    key = fields.text(ctx.body, "key", ctx.name)
    values = Distinct(key, command_fold(ctx))
    async for rows in _slices(ctx, cursor):
        while rows:
            _, looked_at = await evaluate(ctx.member, len(key), rows, lambda raw: values.add(decode(raw)))
            rows = rows[looked_at:]
            if values.size > MAX_BSON_SIZE:
                raise ReplError("distinct too big, 16mb cap", code=ErrorCode.DISTINCT_TOO_LARGE)
            await pause(ctx)
    await confirm_linearizable(ctx)
    reply = count_distinct.with_time({"values": values.values}, at)
    return reply if len(values.values) <= count_distinct.SMALL_REPLY else LargeReply(reply)


async def _slices(ctx: CommandContext, cursor: Cursor) -> AsyncIterator[list[bytes]]:
    """Give the documents of a cursor, some at once, and close it."""
    try:
        while not cursor.finished:
            rows = await cursor.batch(partial(pause, ctx), SLICE_DECODED, None)
            if rows:
                yield rows
            await pause(ctx)
    finally:
        cursor.close()


_ELEMENTS = {"find": _find_elements, "count": _count_elements, "distinct": _distinct_elements}
VIEW_READS: dict[str, Handler] = {"find": find_on_view, "count": count_on_view, "distinct": distinct_on_view}
COMMANDS: tuple[Command, ...] = tuple(
    replace(command, run=reads_views(command.run, VIEW_READS[command.name]))
    for command in (*find.COMMANDS, *count_distinct.COMMANDS)
    if command.name in VIEW_READS
)
"""They take the place of the commands that know collections alone."""
