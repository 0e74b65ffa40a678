"""Compiles aggregation pipelines: the table of the stages, and what holds for a pipeline as a whole.

A new stage is a class in `stages/` and a row in STAGES. A stage that reads collections is a `ReadingStage` and has a
row in `features/aggregation/pipeline_run.py` too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from replset.errors import ErrorCode, ReplError, TypeMismatchError
from replset.query.errors import not_built
from replset.query.pipeline_names import NOT_BUILT_STAGES
from replset.query.pipeline_rewrite import rewrite
from replset.query.stages import sources
from replset.query.stages.basic import (
    CountStage,
    LimitStage,
    MatchStage,
    SampleStage,
    SkipStage,
    SortStage,
)
from replset.query.stages.changes import ChangeStreamStage, SplitStage
from replset.query.stages.densify import DensifyStage
from replset.query.stages.facet import compile_facet
from replset.query.stages.group import BucketAutoStage, compile_bucket, compile_group, compile_sort_by_count
from replset.query.stages.joins import GraphLookupStage, LookupStage, UnionWithStage
from replset.query.stages.output import MergeStage, OutStage
from replset.query.stages.projections import (
    AddFieldsStage,
    ProjectStage,
    RedactStage,
    UnsetStage,
    compile_replace_root,
    compile_replace_with,
)
from replset.query.stages.stage import Stage, StageScope
from replset.query.stages.unwind import UnwindStage
from replset.query.stages.window import compile_fill, compile_window

MAX_STAGES: Final = 1000


@dataclass(frozen=True, slots=True)
class StageRow:
    """How a stage is compiled and where it may stand.

    is_first, is_last: it must be the first or the last of the pipeline at the top. not_inside: the stages in whose
    pipelines it may not be.
    """

    compile: Callable[[object, StageScope], Stage | list[Stage]]
    is_first: bool = False
    is_last: bool = False
    not_inside: frozenset[str] = frozenset()


_FACET: Final = frozenset({"$facet"})
_INNER: Final = frozenset({"$facet", "$lookup", "$unionWith"})
STAGES: Final[dict[str, StageRow]] = {
    "$addFields": StageRow(AddFieldsStage),
    "$bucket": StageRow(compile_bucket),
    "$bucketAuto": StageRow(BucketAutoStage),
    "$changeStream": StageRow(ChangeStreamStage, is_first=True, not_inside=_INNER),
    "$changeStreamSplitLargeEvent": StageRow(SplitStage, not_inside=_INNER),
    "$collStats": StageRow(sources.CollStatsStage, is_first=True, not_inside=_FACET),
    "$count": StageRow(CountStage),
    "$currentOp": StageRow(sources.CurrentOpStage, is_first=True, not_inside=_FACET),
    "$densify": StageRow(DensifyStage),
    "$documents": StageRow(sources.DocumentsStage, is_first=True, not_inside=_FACET),
    "$facet": StageRow(compile_facet, not_inside=_FACET),
    "$fill": StageRow(compile_fill),
    "$group": StageRow(compile_group),
    "$graphLookup": StageRow(GraphLookupStage),
    "$indexStats": StageRow(sources.IndexStatsStage, is_first=True, not_inside=_FACET),
    "$limit": StageRow(LimitStage),
    "$listLocalSessions": StageRow(sources.ListLocalSessionsStage, is_first=True, not_inside=_INNER),
    "$listSessions": StageRow(sources.ListSessionsStage, is_first=True, not_inside=_INNER),
    "$lookup": StageRow(LookupStage),
    "$match": StageRow(MatchStage),
    "$merge": StageRow(MergeStage, is_last=True, not_inside=_INNER),
    "$out": StageRow(OutStage, is_last=True, not_inside=_INNER),
    "$project": StageRow(ProjectStage),
    "$redact": StageRow(RedactStage),
    "$replaceRoot": StageRow(compile_replace_root),
    "$replaceWith": StageRow(compile_replace_with),
    "$sample": StageRow(SampleStage),
    "$set": StageRow(AddFieldsStage),
    "$setWindowFields": StageRow(compile_window),
    "$skip": StageRow(SkipStage),
    "$sort": StageRow(SortStage),
    "$sortByCount": StageRow(compile_sort_by_count),
    "$unionWith": StageRow(UnionWithStage),
    "$unset": StageRow(UnsetStage),
    "$unwind": StageRow(UnwindStage),
}


def compile_pipeline(elements: object, scope: StageScope | None = None) -> list[Stage]:
    """Return the stages. 40324 for an unknown one, 238 for one that is not built, 40601 and 40602 for a wrong place.

    scope: with the caller's variables. Raises what the stages raise, too.
    """
    scope = scope or StageScope(compile_pipeline)
    if type(elements) is not list:
        raise TypeMismatchError("'pipeline' must be an array of stages")
    if len(elements) > MAX_STAGES:
        raise ReplError(f"Pipeline length must be no longer than {MAX_STAGES} stages", code=ErrorCode.PIPELINE_TOO_LONG)
    stages: list[Stage] = []
    for number, element in enumerate(elements):
        found = _compile_stage(*stage_of(element), scope, number, len(elements))
        stages += found if isinstance(found, list) else [found]
    return rewrite(stages, scope)


def _compile_stage(name: str, spec: object, scope: StageScope, number: int, count: int) -> Stage | list[Stage]:
    if name in NOT_BUILT_STAGES:
        raise not_built(f"the stage {name}")
    if name not in STAGES:
        raise unknown_stage(name)
    row = STAGES[name]
    if scope.inside in row.not_inside:
        is_facet = scope.inside == "$facet"
        raise ReplError(
            f"{name} is not allowed to be used within a {scope.inside} stage",
            code=ErrorCode.STAGE_NOT_IN_FACET if is_facet else ErrorCode.STAGE_NOT_IN_LOOKUP,
        )
    compiled = row.compile(spec, scope)
    (compiled[0] if isinstance(compiled, list) else compiled).shown = {name: spec}
    if row.is_first and number > 0:
        raise ReplError(f"{name} is only valid as the first stage in a pipeline", code=ErrorCode.STAGE_MUST_BE_FIRST)
    if row.is_last and (number < count - 1 or scope.depth):
        raise ReplError(f"{name} can only be the final stage in the pipeline", code=ErrorCode.STAGE_MUST_BE_LAST)
    return compiled


def stage_of(element: object) -> tuple[str, object]:
    """Return the name and the argument of an element of a pipeline."""
    if not isinstance(element, Mapping):
        raise TypeMismatchError("Each element of the 'pipeline' array must be an object")
    if len(element) != 1:
        raise ReplError(
            "A pipeline stage specification object must contain exactly one field.",
            code=ErrorCode.STAGE_NOT_ONE_FIELD,
        )
    ((name, spec),) = element.items()
    return name, spec


def unknown_stage(name: str) -> ReplError:
    return ReplError(f"Unrecognized pipeline stage name: '{name:.80}'", code=ErrorCode.UNRECOGNIZED_PIPELINE_STAGE)
