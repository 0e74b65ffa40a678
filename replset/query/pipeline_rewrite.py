"""Rewrites a pipeline so that less work is left for its later stages, with the same result.

Conditions of a $match move in front of stages that leave their fields alone, down to the beginning, where they choose
an index; behind a $unionWith they move into both of its sides. A $limit and a $skip move in front of stages that make
one document of each, and a $sort learns how many documents they let through. A $lookup takes over the $unwind of its
array.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from replset.query.match import compile_filter
from replset.query.stages.basic import LimitStage, MatchStage, SkipStage, SortStage
from replset.query.stages.group import GroupStage
from replset.query.stages.joins import RANDOM, JoinStage, UnionWithStage, names_any
from replset.query.stages.projections import FieldsStage, ReplaceRootStage
from replset.query.stages.stage import Stage, StageScope
from replset.query.stages.unwind import UnwindStage

_COMPARISONS = frozenset({"$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$in", "$nin"})


def rewrite(stages: Sequence[Stage], scope: StageScope) -> list[Stage]:
    """Return the stages to run instead."""
    result: list[Stage] = []
    for stage in stages:
        if type(stage) is MatchStage:
            _put_match(result, stage, scope)
        elif isinstance(stage, LimitStage | SkipStage):
            place = len(result)
            while place and _makes_one_of_each(result[place - 1]):
                place -= 1
            result.insert(place, stage)
        else:
            before = result[-1] if result else None
            if not (isinstance(stage, UnwindStage) and isinstance(before, JoinStage) and before.unwound_by(stage)):
                result.append(stage)
    for number, stage in enumerate(result):
        if isinstance(stage, SortStage):
            stage.limit = _wanted(result[number + 1 :])
    return result


def _makes_one_of_each(stage: Stage) -> bool:
    is_join = isinstance(stage, JoinStage) and stage.unwind is None
    return is_join or isinstance(stage, FieldsStage | ReplaceRootStage)


def _wanted(stages: Iterable[Stage]) -> int:
    """Return how many documents in front of these stages are enough, 0 for all."""
    skipped = 0
    for stage in stages:
        if isinstance(stage, LimitStage):
            return skipped + stage.count
        if isinstance(stage, SkipStage):
            skipped += stage.count
        else:
            break
    return 0


def _put_match(stages: list[Stage], match: MatchStage, scope: StageScope) -> None:
    """Put each condition of a $match as far to the front as it may stand."""
    if not stages:
        stages.append(match)
        return
    by_place: dict[int, list[dict[str, object]]] = {}
    into_union: list[dict[str, object]] = []
    unions = [number for number, stage in enumerate(stages) if isinstance(stage, UnionWithStage)]
    for condition in _conditions(match.filter):
        place, moved = _place(stages, condition, scope)
        is_at_union = place - 1 in unions and _fields(moved, scope) is not None
        (into_union if is_at_union else by_place.setdefault(place, [])).append(moved)
    if by_place.keys() <= {len(stages)} and not into_union:
        stages.append(match)
        return
    for place in sorted(by_place, reverse=True):
        stages.insert(place, _match(by_place[place], scope))
    if into_union:  # of the last union: no condition stands in front of it, so this moves no other place
        union, first = cast("UnionWithStage", stages[unions[-1]]), stages[: unions[-1]]
        for side in (union.stages, first):
            _put_match(side, _match(into_union, scope), scope)
        union.shown = {"$unionWith": {"coll": union.source, "pipeline": [stage.shown for stage in union.stages]}}
        stages[: unions[-1]] = first


def _match(filters: list[dict[str, object]], scope: StageScope) -> MatchStage:
    return MatchStage(filters[0] if len(filters) == 1 else {"$and": filters}, scope)


def _fields(condition: dict[str, object], scope: StageScope) -> frozenset[str] | None:
    """Return the fields that a condition is about; None: it may not move."""
    return (
        None if names_any(condition, RANDOM) else compile_filter(condition, names=scope.names, fold=scope.fold).fields
    )


def _conditions(filter_: Mapping[str, object]) -> list[dict[str, object]]:
    """Return the conditions that all must hold."""
    found: list[dict[str, object]] = []
    for name, value in filter_.items():
        if name == "$and" and type(value) is list:
            for inner in value:
                found += _conditions(inner)
        else:
            found.append({name: value})
    return found


def _place(stages: list[Stage], condition: dict[str, object], scope: StageScope) -> tuple[int, dict[str, object]]:
    """Return in front of which stage the condition may stand, and the condition there."""
    names = _fields(condition, scope)
    found, moved = len(stages), condition
    if names is None:
        return found, moved
    for place in range(len(stages) - 1, -1, -1):
        stage = stages[place]
        if isinstance(stage, MatchStage):
            continue
        if isinstance(stage, GroupStage) and stage.by and condition.keys() == {"_id"} and _compares(condition["_id"]):
            condition, names = {stage.by: condition["_id"]}, frozenset({stage.by})
        elif not stage.keeps(names):
            break
        found, moved = place, condition
    return found, moved


def _compares(value: object) -> bool:
    """Whether a condition is the same for a missing field and for null."""
    if isinstance(value, Mapping):
        return bool(value) and value.keys() <= _COMPARISONS
    return type(value) in (str, int, float, bool, type(None))
