"""aggregate: runs a pipeline over the documents of a collection. How it runs is in pipelines.py."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from replset.auth.roles import Action
from replset.bson import RawDocument
from replset.errors import (
    FailedToParseError,
    InvalidNamespaceError,
    InvalidOptionsError,
    NotBuiltError,
)
from replset.features.aggregation import run_sources as aggregate_sources
from replset.features.aggregation.explain_pipeline import explain_pipeline
from replset.features.aggregation.pipeline_run import Opener, PipelineRun, split_pipeline
from replset.features.aggregation.run_joins import open_facet, open_graph_lookup, open_lookup, open_union
from replset.features.aggregation.run_output import authorize_output, run_on_primary, write_merge, write_out
from replset.features.aggregation.run_sources import NEEDS, WITHOUT_COLLECTION, check_collection
from replset.features.change_streams.change_stream import ChangeStreams
from replset.features.crud.explained import VERBOSITY
from replset.features.crud.find import MADE_UP, spill_of
from replset.features.crud.get_more import first_batch
from replset.features.crud.let import let_of, variables_of
from replset.features.crud.scan import read_in_thread
from replset.operations import fields
from replset.operations.authorization import authorize
from replset.operations.collations import default_fold
from replset.operations.command import Command, CommandContext, Where
from replset.operations.cursors import FIRST_BATCH, DocumentsCursor
from replset.operations.evaluation import compiled, read_statement, weight_of
from replset.operations.known_fields import unknown_command
from replset.operations.namespaces import OPLOG, collection_field, collection_here, namespace
from replset.operations.read_concern import open_collection, read_concern_of
from replset.operations.request import Reply
from replset.operations.write_concern import wait_for_write_concern, write_concern_of
from replset.query.collation import Fold
from replset.query.pipeline import compile_pipeline, stage_of, unknown_stage
from replset.query.pipeline_names import COLLECTIONLESS_STAGES
from replset.query.stages.changes import ChangeStreamStage, check_change_stream
from replset.query.stages.facet import ReadingFacetStage
from replset.query.stages.joins import GraphLookupStage, LookupStage, UnionWithStage
from replset.query.stages.output import MergeStage, OutStage
from replset.query.stages.stage import Run, Stage
from replset.query.views import collections_named
from replset.storage.snapshot import Snapshot


async def aggregate(ctx: CommandContext) -> Reply:
    """Run a pipeline over a collection, and answer in batches."""
    body, name = ctx.body, ctx.name
    if fields.boolean(body, "explain", name):
        return await explain_aggregate(ctx, VERBOSITY[0])
    batch_size = _batch_size(body, name)
    run, stages = await _compiled(ctx)
    if stages and isinstance(stages[0], ChangeStreamStage):
        streams = ctx.member.get(ChangeStreams)
        if streams is None:
            raise unknown_stage("$changeStream")
        cursor, at = await streams.open(ctx, stages, run.weight)
        return await first_batch(ctx, cursor, batch_size, at)
    last = stages[-1] if stages else None
    if isinstance(last, OutStage | MergeStage):
        return await _write(run, stages, last)
    if "writeConcern" in body:
        raise InvalidOptionsError("aggregate takes a writeConcern only with $out or $merge")
    part = split_pipeline(stages)
    counter = part.counter
    if counter is not None and _is_counted_as_a_whole(ctx):
        count = await _count(run)
        cursor = await run.over(DocumentsCursor(_namespace(ctx), []), part.rest)
        counter.take_count(count)
    else:
        cursor = await run.open(_collection(ctx), stages)
    return await first_batch(ctx, cursor, batch_size, run.at)


async def explain_aggregate(ctx: CommandContext, verbosity: str) -> Reply:
    """Show how the pipeline of the command runs."""
    run, stages = await _compiled(ctx)
    if stages and isinstance(stages[0], ChangeStreamStage):
        raise NotBuiltError("explain of a change stream is not built yet")
    if stages and isinstance(stages[-1], OutStage | MergeStage):
        authorize_output(ctx, stages[-1])
    return await explain_pipeline(run, _collection(ctx), stages, verbosity, ctx.body)


async def _compiled(ctx: CommandContext) -> tuple[PipelineRun, list[Stage]]:
    """Check the command and compile its pipeline."""
    body, name, member = ctx.body, ctx.name, ctx.member
    pipeline = await read_statement(member, body, lambda: fields.values(body, "pipeline", name))
    # Events are no documents of the collection: its collation is not for them.
    of_collection = None if "$changeStream" in names_of(pipeline)[:1] else default_fold(ctx)
    fold = fields.collation(body, name, of_collection)
    _authorize(ctx, pipeline)
    _check_target(ctx, pipeline)
    weight = weight_of(len(body.raw), pipeline, let_of(body))
    variables = await variables_of(ctx)
    run = run_of(ctx, weight, variables, fold)
    stages = await compiled(member, weight, lambda: compile_pipeline(pipeline, run.scope))
    check_change_stream(names_of(pipeline))
    return run, stages


async def _write(run: PipelineRun, stages: list[Stage], last: OutStage | MergeStage) -> Reply:
    """Run a pipeline that writes, whole, and answer without documents."""
    ctx, run.writes = run.ctx, True
    authorize_output(ctx, last)
    if read_concern_of(ctx).level == "linearizable":
        raise InvalidOptionsError("$out and $merge do not go with read concern level 'linearizable'")
    if not ctx.member.node.writable:
        return await run_on_primary(ctx)
    concern = write_concern_of(ctx)
    cursor = await run.open(_collection(ctx), stages)
    reply = await first_batch(ctx, cursor, 0, None)
    if run.written is not None and isinstance(reply, dict):
        failure = await wait_for_write_concern(ctx, run.written, concern)
        reply |= {} if failure is None else {"writeConcernError": failure}
    return reply


def _collection(ctx: CommandContext) -> str:
    """Return the collection that the pipeline begins with, empty for none."""
    return collection_field(ctx.body, ctx.name) if ctx.body.type_of(ctx.name) == 2 else ""


def run_of(ctx: CommandContext, weight: int, variables: Mapping[str, Any], fold: Fold | None) -> PipelineRun:
    """Return what opens the cursors of the command. fold: of its collation."""
    return PipelineRun(ctx, weight, Run(variables, spill=spill_of(ctx), rng=ctx.member.rng), OPENERS, fold)


def _batch_size(body: RawDocument, name: str) -> int:
    """Return the size of the first batch."""
    options = fields.document(body, "cursor", name)
    if options is None:
        raise FailedToParseError("The 'cursor' option is required, except for aggregate with the explain argument")
    fields.check_fields(options, frozenset({"batchSize"}), "aggregate.cursor")
    return fields.whole(options, "batchSize", "cursor", FIRST_BATCH, least=0)


def _authorize(ctx: CommandContext, pipeline: list[object]) -> None:
    """Raise 13 if the sender may not do what the first stage does; some ask by themselves."""
    first = stage_of(pipeline[0])[0] if pipeline else ""
    needs = NEEDS.get(first, Action.FIND)
    if needs is not Action.LOGIN:
        authorize(ctx.member, ctx.sender, needs, ctx.database, ctx.name)
    if any(True for _ in collections_named(pipeline)):
        authorize(ctx.member, ctx.sender, Action.FIND, ctx.database, ctx.name)


def _check_target(ctx: CommandContext, pipeline: list[object]) -> None:
    """Refuse a stage that needs a collection where there is none, and the other way round."""
    body, name = ctx.body, ctx.name
    names = names_of(pipeline)
    if "$listSearchIndexes" in names:
        raise unknown_command("listSearchIndexes")
    first = names[0] if names else ""
    if body.type_of(name) == 2:
        check_collection(first, f"{ctx.database}.{body.get(name)}")
        return
    if body.type_of(name) not in (1, 16, 18, 19) or fields.as_whole(body.get(name), name, name) != 1:
        raise FailedToParseError("Invalid command format: the 'aggregate' field must specify a collection name or 1")
    if first == "$currentOp":
        if ctx.database != "admin":
            raise InvalidNamespaceError("$currentOp must be run against the 'admin' database with {aggregate: 1}")
        return
    if first in WITHOUT_COLLECTION or first == "$changeStream":
        return
    if first in COLLECTIONLESS_STAGES:
        raise NotBuiltError(f"the stage {first} is not built yet")
    raise InvalidNamespaceError(f"{{aggregate: 1}} is not valid for '{first:.80}'; a collection is required.")


def names_of(pipeline: list[object]) -> list[str]:
    """Return the names of the stages."""
    return [stage_of(element)[0] for element in pipeline]


def _namespace(ctx: CommandContext) -> str:
    return namespace(ctx.database, collection_field(ctx.body, ctx.name))


def _is_counted_as_a_whole(ctx: CommandContext) -> bool:
    """Whether `_count` sees what the command sees: not the writes of its transaction, no chosen snapshot, and no index.

    An index that is sparse or partial has fewer documents, and one that is absent is an error.
    """
    coll = collection_here(ctx, collection_field(ctx.body, ctx.name))
    is_plain = ctx.transaction is None and read_concern_of(ctx).level != "snapshot" and "hint" not in ctx.body
    if coll is not None and coll.view_on is not None:
        return False
    return is_plain and _namespace(ctx) not in (OPLOG, *MADE_UP)


async def _count(run: PipelineRun) -> int:
    """Return how many documents the collection has, without reading them."""
    ctx = run.ctx
    coll, run.at = await open_collection(ctx, collection_field(ctx.body, ctx.name), read_concern_of(ctx))
    return 0 if coll is None else await read_in_thread(ctx, partial(Snapshot.count, coll=coll, at=run.at))


OPENERS: Final[Mapping[type[Stage], Opener]] = {
    **aggregate_sources.OPENERS,
    GraphLookupStage: open_graph_lookup,
    LookupStage: open_lookup,
    MergeStage: write_merge,
    ReadingFacetStage: open_facet,
    OutStage: write_out,
    UnionWithStage: open_union,
}

COMMANDS: tuple[Command, ...] = (
    Command(
        "aggregate",
        aggregate,
        frozenset(
            {"pipeline", "cursor", "explain", "hint", "collation", "allowDiskUse", "bypassDocumentValidation", "let"}
        ),
        where=Where.READABLE,
        read_concern=True,
        write_concern=True,
        needs=Action.LOGIN,
    ),
)
