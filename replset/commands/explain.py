"""explain: which plan a command uses, and with verbosity executionStats what it costs. Nothing is written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from replset.auth.roles import Action
from replset.bson import RawDocument, decode
from replset.commands import count_distinct, delete, fields, find, find_and_modify, update
from replset.commands.command import GENERIC_FIELDS, Command, CommandContext, Where
from replset.commands.count_distinct import command_filter
from replset.commands.delete import parse_delete
from replset.commands.diagnostics import SERVER_VERSION
from replset.commands.evaluation import compiled, read_statement, weight_of
from replset.commands.filters import Filter, filter_of
from replset.commands.find import parse_find
from replset.commands.hint import Hint, hint_of
from replset.commands.namespaces import OPLOG, collection_field, namespace
from replset.commands.plan import ID_FIELDS, ID_INDEX, AnyOf, ById, ByIndex, ByKeys, Chosen, Natural, Plan, choose_plan
from replset.commands.ports import Reply
from replset.commands.read_concern import read_concern_of
from replset.commands.scan import Scan, open_collection, pause
from replset.commands.search_batch import SearchStatement
from replset.commands.update import parse_update
from replset.commands.write_batch import read_statements
from replset.errors import BadValueError, CommandNotFoundError, ErrorCode, FailedToParseError, NotBuiltError
from replset.ids import OpTime
from replset.query.bounds import FULL, Interval, Intervals, point
from replset.query.conditions import is_operators
from replset.query.sort import Sort, compile_sort
from replset.storage.catalog import Collection

_VERBOSITY: Final = ("queryPlanner", "executionStats", "allPlansExecution")
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
    outer: str = ""


@dataclass(slots=True)
class _Counts:
    """Of an execution: documents that match, entries and documents that were looked at, milliseconds."""

    matched: int = 0
    keys: int = 0
    documents: int = 0
    took_ms: int = 0


async def explain(ctx: CommandContext) -> Reply:
    """Show how a find, count, distinct, update, delete or findAndModify finds its documents."""
    inner = fields.document(ctx.body, ctx.name, ctx.name)
    verbosity = fields.text(ctx.body, "verbosity", ctx.name, _VERBOSITY[-1])
    if verbosity not in _VERBOSITY:
        raise FailedToParseError(f"verbosity string must be one of {{{', '.join(map(repr, _VERBOSITY))}}}")
    name = "" if inner is None else inner.first_key or ""
    if inner is None or name not in _PARSERS:
        if name == "aggregate":
            raise NotBuiltError("explain of aggregate is not built yet")
        raise CommandNotFoundError(f"Explain failed due to unknown command: {name}")
    command, parse = _PARSERS[name]
    fields.check_fields(inner, (command.fields or frozenset()) | GENERIC_FIELDS | {name}, command.name)
    inside = replace(ctx, request=replace(ctx.request, body=inner), name=name)
    if namespace(ctx.database, collection_field(inner, name)) == OPLOG:
        raise NotBuiltError("explain on the oplog is not built yet")
    return await explain_query(ctx, await parse(inside), collection_field(inner, name), verbosity, inner)


async def explain_query(
    ctx: CommandContext, wanted: Explained, collection: str, verbosity: str, command: RawDocument
) -> dict[str, object]:
    """The reply. command: as it was sent."""
    coll, at = await open_collection(ctx, collection, read_concern_of(ctx))
    if coll is not None and coll.view_on is not None:
        raise NotBuiltError("explain of a view is not built yet; explain an aggregate over its collection")
    chosen = None if coll is None else choose_plan(coll, wanted.found, wanted.sort, wanted.hint)
    reply: dict[str, object] = {
        "explainVersion": "1",
        "queryPlanner": {
            "namespace": namespace(ctx.database, collection),
            "indexFilterSet": False,
            "parsedQuery": _parsed(wanted.found.query),
            "maxIndexedOrSolutionsReached": False,
            "maxIndexedAndSolutionsReached": False,
            "maxScansToExplodeReached": False,
            "winningPlan": _stages(wanted, chosen, None),
            "rejectedPlans": [],
        },
    }
    if verbosity != "queryPlanner":
        counts = await _execute(ctx, wanted, coll, at, chosen)
        returned = 0 if wanted.outer in ("UPDATE", "DELETE") else counts.matched
        reply["executionStats"] = {
            "executionSuccess": True,
            "nReturned": 1 if wanted.outer == "COUNT" else returned,
            "executionTimeMillis": counts.took_ms,
            "totalKeysExamined": counts.keys,
            "totalDocsExamined": counts.documents,
            "executionStages": _stages(wanted, chosen, counts),
            **({"allPlansExecution": []} if verbosity == _VERBOSITY[-1] else {}),
        }
    host, _, port = ctx.member.host.rpartition(":")
    return {
        **reply,
        "command": {**command.decode(), "$db": ctx.database},
        "serverInfo": {"host": host, "port": int(port), "version": SERVER_VERSION, "gitVersion": "none"},
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

    def is_match(raw: bytes) -> bool | None:
        return True if found.matcher is None or found.matches(decode(raw)) else None

    began = ctx.member.clock.now()
    scan = Scan(ctx.member, coll, at, chosen.plan, is_match, max(wanted.weight, 1))
    pin = None if at is None else ctx.member.store.pin(at)
    try:
        while not scan.exhausted and (enough is None or counts.matched < enough):
            counts.matched += len(await scan.next_slice(None if enough is None else enough - counts.matched))
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


# --- stages -----------------------------------------------------------------------------------------------------


def _stages(wanted: Explained, chosen: Chosen | None, counts: _Counts | None) -> Stage:
    """The tree of stages. counts: of the execution; None: without."""
    returned: Stage = {} if counts is None else {"nReturned": counts.matched}
    if chosen is None:
        return {"stage": "EOF", **returned}
    stage = _search(chosen.plan, wanted.found, counts)
    if not chosen.is_sorted and wanted.sort is not None:
        more = {"limitAmount": wanted.skip + wanted.limit} if wanted.limit else {}
        pattern = dict(wanted.sort.fields)
        stage = {"stage": "SORT", **returned, "sortPattern": pattern, "type": "simple", **more, "inputStage": stage}
    elif wanted.limit and not wanted.outer:
        stage = {"stage": "LIMIT", **returned, "limitAmount": wanted.limit, "inputStage": stage}
    if wanted.skip and not wanted.outer:
        stage = {"stage": "SKIP", **returned, "skipAmount": wanted.skip, "inputStage": stage}
    if wanted.projection:
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
    parts = [
        {name: value if name.startswith("$") or is_operators(value) else {"$eq": value}}
        for name, value in query.items()
    ]
    return parts[0] if len(parts) == 1 else {"$and": parts} if parts else {}


# --- commands ---------------------------------------------------------------------------------------------------


async def _find(ctx: CommandContext) -> Explained:
    query = await parse_find(ctx)
    projection = fields.decoded(ctx.body, "projection", ctx.name)
    return Explained(query.compiled, query.weight, query.sort, query.hint, query.skip, query.limit, projection)


async def _count(ctx: CommandContext) -> Explained:
    found, weight = await command_filter(ctx)
    skip, limit = (fields.whole(ctx.body, name, ctx.name) for name in ("skip", "limit"))
    return Explained(found, weight, None, hint_of(ctx.body, ctx.name), skip, abs(limit), outer="COUNT")


async def _distinct(ctx: CommandContext) -> Explained:
    found, weight = await command_filter(ctx)
    return Explained(found, weight, None, hint_of(ctx.body, ctx.name))


async def _write(
    ctx: CommandContext, name: str, parse: Callable[[RawDocument, str], SearchStatement], outer: str
) -> Explained:
    documents = await read_statements(ctx, name)
    if len(documents) != 1:
        raise BadValueError("explained write batches must be of size 1", code=ErrorCode.INVALID_LENGTH)
    statement = await read_statement(ctx.member, documents[0], lambda: parse(documents[0], f"{ctx.name}.{name}"))
    found = await compiled(ctx.member, statement.weight, lambda: filter_of(statement.query))
    return Explained(found, statement.weight, None, statement.hint, limit=0 if statement.multi else 1, outer=outer)


async def _update(ctx: CommandContext) -> Explained:
    return await _write(ctx, "updates", parse_update, "UPDATE")


async def _delete(ctx: CommandContext) -> Explained:
    return await _write(ctx, "deletes", parse_delete, "DELETE")


async def _find_and_modify(ctx: CommandContext) -> Explained:
    body, name = ctx.body, ctx.name
    query, sort = await read_statement(
        ctx.member, body, lambda: [fields.decoded(body, field, name) for field in ("query", "sort")]
    )
    weight = weight_of(len(body.raw), query)
    found = await compiled(ctx.member, weight, lambda: filter_of(query))
    outer = "DELETE" if fields.boolean(body, "remove", name) else "UPDATE"
    return Explained(found, weight, compile_sort(sort) if sort else None, hint_of(body, name), limit=1, outer=outer)


_Parser = Callable[[CommandContext], Awaitable[Explained]]
_BY_COMMAND: dict[str, _Parser] = {
    "find": _find,
    "count": _count,
    "distinct": _distinct,
    "update": _update,
    "delete": _delete,
    "findAndModify": _find_and_modify,
}
_PARSERS: dict[str, tuple[Command, _Parser]] = {
    name: (command, _BY_COMMAND[command.name])
    for family in (find, count_distinct, update, delete, find_and_modify)
    for command in family.COMMANDS
    if command.name in _BY_COMMAND
    for name in (command.name, *command.aliases)
}

COMMANDS: tuple[Command, ...] = (
    Command("explain", explain, frozenset({"verbosity"}), where=Where.READABLE, read_concern=True, needs=Action.FIND),
)
