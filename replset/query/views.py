"""Says which collections a pipeline reads beside its own, and whether views can be built on one another so. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from replset.errors import ErrorCode, ReplError

MAX_DEPTH: Final = 20
"""Views on views, and pipelines inside of pipelines."""
_FROM: Final = frozenset({"$lookup", "$graphLookup"})
NOT_IN_VIEWS: Final = frozenset(
    {
        "$changeStream",
        "$changeStreamSplitLargeEvent",
        "$collStats",
        "$currentOp",
        "$documents",
        "$indexStats",
        "$listLocalSessions",
        "$listSessions",
    }
    | {"$merge", "$out"}
)
"""Stages that write, or that read something else than the documents of a collection."""


def collections_named(pipeline: object) -> Iterator[str]:
    """Give the names of the collections that the stages read by themselves, inner pipelines included.

    The pipeline need not be well-formed.
    """
    for stage in pipeline if isinstance(pipeline, list) else ():
        for name, spec in stage.items() if isinstance(stage, Mapping) else ():
            if name == "$unionWith" and isinstance(spec, str):
                yield spec
            elif not isinstance(spec, Mapping):
                continue
            elif name == "$facet":
                for inner in spec.values():
                    yield from collections_named(inner)
            elif name in _FROM or name == "$unionWith":
                source = spec.get("from" if name in _FROM else "coll")
                if isinstance(source, str):
                    yield source
                yield from collections_named(spec.get("pipeline"))


def refuse_stages(pipeline: Iterable[object]) -> None:
    """Raise 167 for a stage that a view cannot have, whether inside of another one or not."""
    for stage in pipeline:
        for name, spec in stage.items() if isinstance(stage, Mapping) else ():
            if name in NOT_IN_VIEWS:
                raise ReplError(
                    f"The aggregation stage {name} cannot be used in a view definition",
                    code=ErrorCode.OPTION_NOT_SUPPORTED_ON_VIEW,
                )
            inner: list[object] = []
            if isinstance(spec, Mapping):
                inner = list(spec.values()) if name == "$facet" else [spec.get("pipeline")]
            for one in inner:
                if isinstance(one, list):
                    # Inside of $lookup and $unionWith, $documents takes the place of the collection.
                    refuse_stages(one[1:] if one and isinstance(one[0], Mapping) and "$documents" in one[0] else one)


def check_dependencies(sources: Mapping[str, frozenset[str]], name: str) -> None:
    """Raise 5 if the view `name` reads itself, and 165 if it makes a chain of more than 20 views.

    sources: by the name of each view of the database, the new one included, what it reads.
    """
    depths: dict[str, int] = {}
    _depth(sources, name, (), depths)
    for one in sources:
        if one not in depths:
            _depth(sources, one, (), depths)


def _depth(sources: Mapping[str, frozenset[str]], name: str, above: tuple[str, ...], depths: dict[str, int]) -> int:
    """How many views lie one on another from `name` down; 0 for a collection. above: those that led here."""
    if name not in sources:
        return 0
    if name in above:
        way = " => ".join((*above[above.index(name) :], name))
        raise ReplError(f"View cycle detected: {way:.500}", code=ErrorCode.GRAPH_CONTAINS_CYCLE)
    if name not in depths:
        if len(above) >= MAX_DEPTH:
            raise too_deep()
        below = (_depth(sources, one, (*above, name), depths) for one in sorted(sources[name]))
        depths[name] = 1 + max(below, default=0)
    if len(above) + depths[name] > MAX_DEPTH:
        raise too_deep()
    return depths[name]


def too_deep() -> ReplError:
    return ReplError(
        f"View depth too deep or view cycle detected; maximum depth is {MAX_DEPTH}",
        code=ErrorCode.VIEW_DEPTH_LIMIT_EXCEEDED,
    )
