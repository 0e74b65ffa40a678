"""Shows how a query finds its documents: the reply of explain, and the tree of stages in it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from replset.bson import RawDocument
from replset.features.crud.filters import Filter
from replset.features.crud.hint import Hint, Limits
from replset.features.crud.oplog_cursor import OplogCursor
from replset.features.crud.plan import (
    ID_FIELDS,
    AnyOf,
    ById,
    ByIndex,
    ByKeys,
    Chosen,
    Natural,
    Plan,
    choose_plan,
    natural_direction,
)
from replset.features.crud.scan import Scan, pause
from replset.features.crud.tailing import Wanted
from replset.features.diagnostics.diagnostics import SERVER_VERSION
from replset.ids import OpTime
from replset.operations.command import CommandContext
from replset.operations.namespaces import OPLOG, namespace, refuse_view
from replset.operations.read_concern import open_collection, read_concern_of
from replset.query.bounds import FULL, Interval, Intervals, point
from replset.query.collation import Fold, with_version
from replset.query.conditions import condition_on, is_field, is_operators
from replset.query.sort import Sort
from replset.release import commit
from replset.storage.catalog import Collection
from replset.storage.indexes import ID_INDEX

VERBOSITY: Final = ("queryPlanner", "executionStats", "allPlansExecution")
Stage = dict[str, Any]


@dataclass(slots=True)
class Explained:
    """What is explained. outer: the stage on top of those that find documents, empty for none.

    limit: 0 for none. weight: see evaluation.py.
    """

    found: Filter
    weight: int
    sort: Sort | None = None
    hint: Hint | None = None
    skip: int = 0
    limit: int = 0
    projection: object = None
    returns_key: bool = False
    outer: str = ""


@dataclass(slots=True)
class _Counts:
    """What an execution took: documents that match, entries and documents that were looked at, milliseconds."""

    matched: int = 0
    keys: int = 0
    documents: int = 0
    took_ms: int = 0


async def explain_query(
    ctx: CommandContext, wanted: Explained, collection: str, verbosity: str, command: RawDocument
) -> dict[str, object]:
    """The reply. command: as it was sent."""
    coll, at = await open_collection(ctx, collection, read_concern_of(ctx))
    refuse_view(coll)  # writes; a read of a view is explained as a pipeline
    chosen = None if coll is None else choose_plan(coll, wanted.found, wanted.sort, wanted.hint)
    is_oplog = namespace(ctx.database, collection) == OPLOG
    if is_oplog:
        chosen = Chosen(Natural(natural_direction(wanted.sort, wanted.hint) < 0), True)
    reply: dict[str, object] = {
        "explainVersion": "1",
        "queryPlanner": {
            "namespace": namespace(ctx.database, collection),
            "indexFilterSet": False,
            "parsedQuery": _parsed(wanted.found.query),
            **_collation(wanted.found.fold),
            "maxIndexedOrSolutionsReached": False,
            "maxIndexedAndSolutionsReached": False,
            "maxScansToExplodeReached": False,
            "winningPlan": _stages(wanted, chosen, None),
            "rejectedPlans": [],
        },
    }
    if verbosity != "queryPlanner":
        counts = await (_execute_on_oplog(ctx, wanted) if is_oplog else _execute(ctx, wanted, coll, at, chosen))
        returned = 0 if wanted.outer in ("UPDATE", "DELETE") else counts.matched
        reply["executionStats"] = {
            "executionSuccess": True,
            "nReturned": 1 if wanted.outer == "COUNT" else returned,
            "executionTimeMillis": counts.took_ms,
            "totalKeysExamined": counts.keys,
            "totalDocsExamined": counts.documents,
            "executionStages": _stages(wanted, chosen, counts),
            **({"allPlansExecution": []} if verbosity == VERBOSITY[-1] else {}),
        }
    return with_command(ctx, reply, command)


def with_command(ctx: CommandContext, reply: dict[str, object], command: RawDocument) -> dict[str, object]:
    """Return the reply with the command as it was sent, and what all replies of explain have."""
    host, _, port = ctx.member.host.rpartition(":")
    return {
        **reply,
        "command": {**command.decode(), "$db": ctx.database},
        "serverInfo": {"host": host, "port": int(port), "version": SERVER_VERSION, "gitVersion": commit() or "none"},
        "serverParameters": {},
    }


async def _execute(
    ctx: CommandContext, wanted: Explained, coll: Collection | None, at: OpTime | None, chosen: Chosen | None
) -> _Counts:
    """Find the documents, and do nothing with them."""
    counts = _Counts()
    if coll is None or chosen is None:
        return counts
    found = wanted.found
    enough = wanted.skip + wanted.limit if wanted.limit and chosen.is_sorted else None
    began = ctx.member.clock.now()
    read = found.test()
    scan = Scan(ctx.member, coll, at, chosen.plan, max(wanted.weight, 1))
    pin = None if at is None else ctx.member.store.pin(at)
    try:
        while not scan.exhausted and (enough is None or counts.matched < enough):
            want = None if enough is None else enough - counts.matched
            counts.matched += len(await scan.next_slice(read, want))
            await pause(ctx)
    finally:
        if pin is not None:
            pin.release()
    counts.matched = max(0, counts.matched - wanted.skip)
    if wanted.limit:
        counts.matched = min(counts.matched, wanted.limit)
    is_natural = isinstance(chosen.plan, Natural)
    counts.keys, counts.documents = 0 if is_natural else scan.keys_examined, scan.documents_examined
    counts.took_ms = ctx.member.clock.now() - began
    return counts


async def _execute_on_oplog(ctx: CommandContext, wanted: Explained) -> _Counts:
    """Do as `_execute`. keys: rows of which only the columns were looked at."""
    began = ctx.member.clock.now()
    counts = _Counts()
    asked = Wanted(wanted.found.matcher, None, wanted.weight, skip=wanted.skip, limit=wanted.limit)
    backwards = natural_direction(wanted.sort, wanted.hint) < 0
    cursor = OplogCursor(ctx.member, wanted.found.query, asked, backwards=backwards, counts=wanted.outer == "COUNT")
    while not cursor.finished:
        counts.matched += len(await cursor.batch(partial(pause, ctx), None, None))
    counts.keys, counts.documents = cursor.heads_examined, cursor.entries_examined
    counts.took_ms = ctx.member.clock.now() - began
    return counts


# --- stages -----------------------------------------------------------------------------------------------------


def _stages(wanted: Explained, chosen: Chosen | None, counts: _Counts | None) -> Stage:
    """The tree of stages. counts: of the execution; None: without."""
    returned: Stage = {} if counts is None else {"nReturned": counts.matched}
    if chosen is None:
        return {"stage": "EOF", **returned}
    stage = _search(chosen.plan, wanted.found, counts)
    if wanted.hint is not None and wanted.hint.limits is not None:
        stage["inputStage"]["indexBounds"] = _limits(wanted.hint.limits)
    if not chosen.is_sorted and wanted.sort is not None:
        more = {"limitAmount": wanted.skip + wanted.limit} if wanted.limit else {}
        pattern = dict(wanted.sort.fields)
        stage = {"stage": "SORT", **returned, "sortPattern": pattern, "type": "simple", **more, "inputStage": stage}
    elif wanted.limit and not wanted.outer:
        stage = {"stage": "LIMIT", **returned, "limitAmount": wanted.limit, "inputStage": stage}
    if wanted.skip and not wanted.outer:
        stage = {"stage": "SKIP", **returned, "skipAmount": wanted.skip, "inputStage": stage}
    if wanted.returns_key:
        stage = {"stage": "RETURN_KEY", **returned, "inputStage": stage}
    elif wanted.projection:
        stage = {"stage": "PROJECTION_DEFAULT", **returned, "transformBy": wanted.projection, "inputStage": stage}
    match wanted.outer, counts:
        case "", _:
            return stage
        case "COUNT", _Counts():
            returned = {"nReturned": 1, "nCounted": counts.matched}
        case _, _Counts():
            returned = {"nReturned": 0, "nMatched": counts.matched}
    return {"stage": wanted.outer, **returned, "inputStage": stage}


def _search(plan: Plan, found: Filter, counts: _Counts | None) -> Stage:
    """The stages that find the documents."""
    returned: Stage = {} if counts is None else {"nReturned": counts.matched}
    documents = {} if counts is None else {**returned, "docsExamined": counts.documents}
    keys = {} if counts is None else {"nReturned": counts.keys, "keysExamined": counts.keys}
    filter_ = {"filter": _parsed(found.query)} if found.query else {}
    match plan:
        case Natural(backwards=backwards):
            return {"stage": "COLLSCAN", **filter_, **documents, "direction": _direction(backwards)}
        case ByKeys() if len(found.query) == 1 and len(plan.keys) == 1:
            return {"stage": "IDHACK", **documents, **({} if counts is None else {"keysExamined": counts.keys})}
        case ByKeys():
            values = found.matcher and (found.matcher.id_in or [found.matcher.id_equality])
            inner = _id_scan(tuple(point(value) for value in values or ()), False)
        case ById(bounds=bounds, backwards=backwards):
            inner = _id_scan(bounds, backwards)
        case ByIndex():
            inner = _index_scan(plan)
        case AnyOf(parts=parts):
            inner = {"stage": "OR", "inputStages": [_part(part) for part in parts]}
    return {"stage": "FETCH", **filter_, **documents, "inputStage": {**inner, **keys}}


def _limits(limits: Limits) -> dict[str, object]:
    low, high = ({path: cut.value for path, cut in cuts.items()} for cuts in limits)
    start = {"startKey": low, "startKeyInclusive": True} if low else {}
    return start | ({"endKey": high, "endKeyInclusive": False} if high else {})


def _part(part: ById | ByIndex) -> Stage:
    return _id_scan(part.bounds, part.backwards) if isinstance(part, ById) else _index_scan(part)


def _id_scan(bounds: Intervals | tuple[Interval, ...], backwards: bool) -> Stage:
    return {
        "stage": "IXSCAN",
        "keyPattern": dict(ID_FIELDS),
        "indexName": ID_INDEX,
        "isMultiKey": False,
        "multiKeyPaths": {"_id": []},
        "isUnique": True,
        "isSparse": False,
        "isPartial": False,
        "indexVersion": 2,
        "direction": _direction(backwards),
        "indexBounds": {"_id": [one.text for one in bounds]},
    }


def _index_scan(plan: ByIndex) -> Stage:
    index = plan.index
    directions = [direction * (-1 if plan.backwards else 1) for _, direction in index.fields]
    return {
        "stage": "IXSCAN",
        "keyPattern": index.key_pattern,
        "indexName": index.name,
        **_collation(index.fold),
        "isMultiKey": index.multikey,
        "multiKeyPaths": {
            path: [path] if index.multikey_fields >> number & 1 else [] for number, (path, _) in enumerate(index.fields)
        },
        "isUnique": index.unique,
        "isSparse": index.sparse,
        "isPartial": index.partial_filter is not None,
        "indexVersion": 2,
        "direction": _direction(plan.backwards),
        "indexBounds": {
            path: [one.text if way > 0 else one.text_backwards for one in (intervals if way > 0 else intervals[::-1])]
            for (path, _), intervals, way in zip(index.fields, _used(plan.bounds), directions, strict=True)
        },
    }


def _collation(fold: Fold | None) -> dict[str, object]:
    return {} if fold is None else {"collation": with_version(fold.spec)}


def _used(bounds: tuple[Intervals, ...]) -> tuple[Intervals, ...]:
    """The bounds that the scan uses: equalities, then one range."""
    for number, intervals in enumerate(bounds):
        if not all(one.is_point for one in intervals):
            return bounds[: number + 1] + (FULL,) * (len(bounds) - number - 1)
    return bounds


def _direction(backwards: bool) -> str:
    return "backward" if backwards else "forward"


def _parsed(query: dict[str, object]) -> dict[str, object]:
    """The filter with its parts named, as MongoDB shows it."""
    parts = [{name: _condition(name, value)} for name, value in query.items()]
    return parts[0] if len(parts) == 1 else {"$and": parts} if parts else {}


def _condition(name: str, value: object) -> object:
    wanted = condition_on(name, value)
    return wanted if not is_field(name) or is_operators(wanted) else {"$eq": wanted}
