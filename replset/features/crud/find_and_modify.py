"""findAndModify: changes, replaces or removes one document and returns it, as it was or as it is then.

With a sort the document is the first one of the order at the moment of the write (search_batch.py). The command is a
batch of one statement: an update or a delete.
"""

from __future__ import annotations

from replset.auth.roles import Action
from replset.bson import RawDocument
from replset.errors import FailedToParseError
from replset.features.crud.delete import DeleteBatch
from replset.features.crud.hint import hint_of
from replset.features.crud.insert import KEEP_TIMESTAMPS
from replset.features.crud.let import let_of, variables_of
from replset.features.crud.search_batch import ReturnedDocument, SearchStatement
from replset.features.crud.update import UpdateBatch, UpdateStatement, may_grow
from replset.features.crud.write_batch import run_groups
from replset.operations import fields
from replset.operations.collations import command_fold
from replset.operations.command import Command, CommandContext, Where
from replset.operations.evaluation import UNBOUNDED, compiled, read_statement, weight_of
from replset.operations.replies import write_times
from replset.operations.request import Reply
from replset.operations.write_concern import also_if_it_fails, wait_for_write_concern, write_concern_of
from replset.query.match import compile_filter
from replset.query.projection import compile_find_projection
from replset.query.sort import compile_sort

_FIELDS = frozenset(
    {
        *("query", "sort", "remove", "update", "new", "upsert", "fields", "arrayFilters", "hint", "collation", "let"),
        *("bypassDocumentValidation", KEEP_TIMESTAMPS),
    }
)


async def find_and_modify(ctx: CommandContext) -> Reply:
    """Change or remove one document and return it."""
    body, name, member = ctx.body, ctx.name, ctx.member
    _check_options(body, name)
    parts = await read_statement(
        member, body, lambda: [fields.decoded(body, field, name) for field in ("query", "sort", "fields")]
    )
    query, sort, projection = parts
    change = await read_statement(member, body, lambda: body.get("update"))
    weight = weight_of(len(body.raw), query, change, projection, let_of(body))
    if may_grow(change):
        weight = UNBOUNDED
    fold = command_fold(ctx)
    is_new = fields.boolean(body, "new", name)
    variables = await variables_of(ctx)

    def compile_() -> ReturnedDocument:
        matcher = compile_filter(query, variables, fold=fold) if projection else None
        shown = compile_find_projection(projection, variables, matcher, fold)
        return ReturnedDocument(compile_sort(sort, fold) if sort else None, shown, is_new)

    returned = await compiled(member, weight, compile_)
    hint = hint_of(body, name)
    batch: UpdateBatch | DeleteBatch
    if fields.boolean(body, "remove", name):
        batch = DeleteBatch(
            ctx, [SearchStatement(query, False, hint, weight, fold=fold)], returned, variables=variables
        )
    else:
        filters = [] if fields.is_absent(body, "arrayFilters") else fields.values(body, "arrayFilters", name)
        upsert = fields.boolean(body, "upsert", name)
        statement = UpdateStatement(query, False, hint, weight, change, upsert, filters, {}, fold=fold)
        batch = UpdateBatch(ctx, [statement], returned, variables=variables)
    return await _run(batch, returned)


def _check_options(body: RawDocument, name: str) -> None:
    """Refuse options that do not go together (9), or are not built."""
    has_update = "update" in body
    if not fields.boolean(body, "remove", name):
        if not has_update:
            raise FailedToParseError("Either an update or remove=true must be specified")
        if body.type_of("update") == 4 and "arrayFilters" in body:
            raise FailedToParseError("Cannot specify arrayFilters and a pipeline update")
        return
    if has_update:
        raise FailedToParseError("Cannot specify both an update and remove=true")
    if fields.boolean(body, "upsert", name):
        raise FailedToParseError("Cannot specify both upsert=true and remove=true ")
    if fields.boolean(body, "new", name):
        raise FailedToParseError(
            "Cannot specify both new=true and remove=true; 'remove' always returns the deleted document"
        )
    if "arrayFilters" in body:
        raise FailedToParseError("Cannot specify arrayFilters and remove=true")


async def _run(batch: UpdateBatch | DeleteBatch, returned: ReturnedDocument) -> Reply:
    ctx = batch.ctx
    concern = write_concern_of(ctx)
    store = ctx.member.store
    # A sorted search over several groups looks again at what was written meanwhile. It finds that in the undo.
    pin = None if returned.sort is None else store.pin(store.last_applied)
    try:
        async with also_if_it_fails(ctx, concern):
            await run_groups(batch)
    finally:
        if pin is not None:
            pin.release()
    failure = await wait_for_write_concern(ctx, batch.optime, concern)
    result: dict[str, object] = {"n": batch.n}
    if isinstance(batch, UpdateBatch):
        result["updatedExisting"] = batch.n > 0 and not batch.upserted
        if batch.upserted:
            result["upserted"] = batch.upserted[0]["_id"]
    value = None if returned.value is None else RawDocument(returned.value)
    reply: dict[str, object] = {"lastErrorObject": result, "value": value}
    if failure is not None:
        reply["writeConcernError"] = failure
    return reply | write_times(batch.optime, batch.term)


COMMANDS: tuple[Command, ...] = (
    Command(
        "findAndModify",
        find_and_modify,
        _FIELDS,
        aliases=("findandmodify",),
        where=Where.PRIMARY,
        write_concern=True,
        retryable=True,
        needs=Action.UPDATE,
    ),
)
