"""explain: which plan a command uses, and with verbosity executionStats what it costs. Nothing is written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from replset.auth.roles import Action
from replset.bson import RawDocument
from replset.errors import BadValueError, CommandNotFoundError, ErrorCode, FailedToParseError, NotBuiltError
from replset.features.aggregation import aggregate
from replset.features.aggregation.aggregate import explain_aggregate
from replset.features.aggregation.view_reads import VIEW_READS, explain_on_view
from replset.features.crud import count_distinct, delete, find, find_and_modify, update
from replset.features.crud.count_distinct import command_filter
from replset.features.crud.delete import parse_delete
from replset.features.crud.explained import VERBOSITY, Explained, explain_query
from replset.features.crud.filters import filter_of
from replset.features.crud.find import parse_find
from replset.features.crud.hint import hint_of
from replset.features.crud.let import variables_of
from replset.features.crud.search_batch import SearchStatement
from replset.features.crud.update import parse_update
from replset.features.crud.write_batch import read_statements
from replset.operations import fields
from replset.operations.collations import command_fold, default_fold
from replset.operations.command import GENERIC_FIELDS, Command, CommandContext, Where
from replset.operations.evaluation import compiled, read_statement, weight_of
from replset.operations.namespaces import OPLOG, collection_field, collection_here, namespace
from replset.operations.request import Reply
from replset.query.collation import Fold
from replset.query.sort import compile_sort


async def explain(ctx: CommandContext) -> Reply:
    """Show how a command finds its documents, and of an aggregate the stages too."""
    inner = fields.document(ctx.body, ctx.name, ctx.name)
    verbosity = fields.text(ctx.body, "verbosity", ctx.name, VERBOSITY[-1])
    if verbosity not in VERBOSITY:
        raise FailedToParseError(f"verbosity string must be one of {{{', '.join(map(repr, VERBOSITY))}}}")
    name = "" if inner is None else inner.first_key or ""
    if inner is None or name not in _COMMANDS:
        raise CommandNotFoundError(f"Explain failed due to unknown command: {name}")
    command = _COMMANDS[name]
    fields.check_fields(inner, (command.fields or frozenset()) | GENERIC_FIELDS | {name}, command.name)
    inside = replace(ctx, request=replace(ctx.request, body=inner), name=name)
    if command.name == "aggregate":
        return await explain_aggregate(inside, verbosity)
    inside.command, inside.collection = command, collection_field(inner, name)
    coll = collection_here(inside, inside.collection)
    if coll is not None and coll.view_on is not None and command.name in VIEW_READS:
        return await explain_on_view(inside, verbosity)
    parse = _PARSERS[command.name]
    if namespace(ctx.database, collection_field(inner, name)) == OPLOG and command.name not in ("find", "count"):
        raise NotBuiltError(f"{command.name} on the oplog is not built yet")
    return await explain_query(ctx, await parse(inside), collection_field(inner, name), verbosity, inner)


# --- commands ---------------------------------------------------------------------------------------------------


async def _find(ctx: CommandContext) -> Explained:
    query = await parse_find(ctx)
    projection = fields.decoded(ctx.body, "projection", ctx.name)
    explained = Explained(query.compiled, query.weight, query.sort, query.hint, query.skip, query.limit, projection)
    explained.returns_key = query.returns_key
    return explained


async def _count(ctx: CommandContext) -> Explained:
    found, weight = await command_filter(ctx)
    skip, limit = (fields.whole(ctx.body, name, ctx.name) for name in ("skip", "limit"))
    return Explained(found, weight, None, hint_of(ctx.body, ctx.name), skip, abs(limit), outer="COUNT")


async def _distinct(ctx: CommandContext) -> Explained:
    found, weight = await command_filter(ctx)
    return Explained(found, weight, None, hint_of(ctx.body, ctx.name))


async def _write(
    ctx: CommandContext, name: str, parse: Callable[[RawDocument, str, Fold | None], SearchStatement], outer: str
) -> Explained:
    documents = await read_statements(ctx, name)
    if len(documents) != 1:
        raise BadValueError("explained write batches must be of size 1", code=ErrorCode.INVALID_LENGTH)
    place, default = f"{ctx.name}.{name}", default_fold(ctx)
    statement = await read_statement(ctx.member, documents[0], lambda: parse(documents[0], place, default))
    compile_ = partial(filter_of, statement.query, await variables_of(ctx), statement.fold)
    found = await compiled(ctx.member, statement.weight, compile_)
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
    fold = command_fold(ctx)
    found = await compiled(ctx.member, weight, partial(filter_of, query, await variables_of(ctx), fold))
    outer = "DELETE" if fields.boolean(body, "remove", name) else "UPDATE"
    return Explained(
        found, weight, compile_sort(sort, fold) if sort else None, hint_of(body, name), limit=1, outer=outer
    )


_Parser = Callable[[CommandContext], Awaitable[Explained]]
_PARSERS: dict[str, _Parser] = {
    "find": _find,
    "count": _count,
    "distinct": _distinct,
    "update": _update,
    "delete": _delete,
    "findAndModify": _find_and_modify,
}
_COMMANDS: dict[str, Command] = {
    name: command
    for family in (aggregate, find, count_distinct, update, delete, find_and_modify)
    for command in family.COMMANDS
    if command.name in _PARSERS or command.name == "aggregate"
    for name in (command.name, *command.aliases)
}

COMMANDS: tuple[Command, ...] = (
    Command("explain", explain, frozenset({"verbosity"}), where=Where.READABLE, read_concern=True, needs=Action.FIND),
)
