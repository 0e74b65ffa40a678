"""Explains a pipeline: the query that it begins with, and its stages as they run after rewriting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from replset.bson import Int64, RawDocument
from replset.features.aggregation.pipeline_run import PipelineRun, split_pipeline
from replset.features.crud.explained import VERBOSITY, Explained, explain_query, with_command
from replset.features.crud.scan import pause
from replset.query.row import Row
from replset.query.stages.output import MergeStage, OutStage
from replset.query.stages.stage import ChainStage, SourceStage, Stage


class Tally(ChainStage):
    """Counts the documents that pass."""

    reads = frozenset()
    count = 0

    def take(self, row: Row) -> Iterable[Row]:
        self.count += 1
        return (row,)


async def explain_pipeline(
    run: PipelineRun, collection: str, stages: Sequence[Stage], verbosity: str, command: RawDocument
) -> dict[str, object]:
    """The reply: that of a find if a query does it all, else a list of stages. What would be written is not."""
    ctx = run.ctx
    output = stages[-1:] if stages and isinstance(stages[-1], OutStage | MergeStage) else []
    stages = stages[: len(stages) - len(output)]
    shown: list[Mapping[str, object]] = []
    query: list[Stage] = []
    if not (stages and isinstance(stages[0], SourceStage)):
        collection, stages = await run.through_views(collection, stages)
        part = split_pipeline(stages)
        found = await run.query_of(part)
        wanted = Explained(found.compiled, found.weight, found.sort, found.hint, part.skip, part.limit, part.projection)
        explained = await explain_query(ctx, wanted, collection, verbosity, command)
        if not part.rest and not output:
            return explained
        names = ("queryPlanner", "executionStats")
        shown.append({"$cursor": {name: explained[name] for name in names if name in explained}})
        query, stages = list(stages[: len(stages) - len(part.rest)]), part.rest
    tallies = [Tally() for _ in stages]
    if verbosity != VERBOSITY[0]:
        await _execute(run, collection, [*query, *(one for pair in zip(stages, tallies, strict=True) for one in pair)])
    for stage, tally in zip(stages, tallies, strict=True):
        is_run = verbosity != VERBOSITY[0]
        stats = {"nReturned": Int64(tally.count), "usedDisk": stage.used_disk} if is_run else {}
        shown.append({**stage.shown, **stats})
    shown += [stage.shown for stage in output]
    return with_command(ctx, {"explainVersion": "1", "stages": [dict(one) for one in shown]}, command)


async def _execute(run: PipelineRun, collection: str, stages: Sequence[Stage]) -> None:
    """Run the pipeline, and do nothing with its documents."""
    cursor = await run.open(collection, stages)
    try:
        while not cursor.finished:
            await cursor.batch(partial(pause, run.ctx), None, None)
    finally:
        cursor.close()
