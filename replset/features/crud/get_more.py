"""Answers with the batches of a cursor: the first one, getMore and killCursors."""

from __future__ import annotations

from functools import partial

from replset.auth.roles import Action
from replset.bson import Int64, RawDocument
from replset.errors import BadValueError, NotPrimaryOrSecondaryError, ReplError
from replset.features.crud.scan import pause
from replset.ids import Millis, OpTime
from replset.operations import fields
from replset.operations.command import Command, CommandContext
from replset.operations.current_operations import SHOWN_BYTES
from replset.operations.cursors import FIRST_BATCH, NOBODY, SMALL_COMMAND, Cursor, Opener
from replset.operations.fail_command import check_max_time, fail_get_more
from replset.operations.namespaces import collection_field, cursor_namespace
from replset.operations.read_concern import LINEARIZABLE, confirm_linearizable, read_point
from replset.operations.request import Reply
from replset.operations.stable_api import NO_API, api_parameters
from replset.operations.statement_memory import memory_of
from replset.optime import timestamp


async def first_batch(
    ctx: CommandContext, cursor: Cursor, batch_size: int, at: OpTime | None, *, is_only: bool = False
) -> Reply:
    """Answer with the cursor's first batch, and keep the cursor if there is more to come and it is not the only one."""
    try:
        if is_only:  # what is left out here never comes
            documents = await _confirmed_batch(ctx, cursor, batch_size, 0)
        else:
            with ctx.cursors.space_for_batch(cursor, ctx.request.batch_bytes):
                documents = await _confirmed_batch(ctx, cursor, batch_size, 0)
            if not cursor.finished:
                size = len(ctx.body.raw)
                cursor.command_bytes = memory_of(size, ctx.work) if size > SMALL_COMMAND else 0
                cursor.count_kept(ctx.cursors)
    except BaseException:
        cursor.close()
        raise
    if is_only:
        cursor.close()
    cursor_id = 0
    if cursor.finished:
        cursor.close()
    else:
        cursor.opener = _opener(ctx)
        cursor.left_ms = _left_ms(ctx)
        cursor.command = ctx.body if len(ctx.body.raw) <= SHOWN_BYTES else None
        cursor_id = ctx.cursors.add(cursor, ctx.connection.owner)
        if ctx.transaction is not None:
            ctx.transaction.on_end.append(partial(ctx.cursors.end, cursor_id, cursor))
    return _cursor_reply(cursor_id, cursor, "firstBatch", documents, at)


async def _confirmed_batch(ctx: CommandContext, cursor: Cursor, limit: int | None, await_ms: int | None) -> list[bytes]:
    """The next batch, proven if the read is linearizable."""
    documents = await cursor.batch(partial(pause, ctx), limit, await_ms)
    if ctx.linearizable_term is not None:
        await confirm_linearizable(ctx)
        cursor.check_alive()
        cursor.linearizable = True
    return documents


def _opener(ctx: CommandContext) -> Opener:
    session, api, user = ctx.session, api_parameters(ctx.body, ctx.name), _user_of(ctx)
    if session is None:
        return NOBODY if api == NO_API and not user else Opener(api=api, user=user)
    return Opener(session.key, session.txn_number, api, user)


def _user_of(ctx: CommandContext) -> str:
    """Who sends the command; empty without a login."""
    login = ctx.sender.login
    return "" if login is None else str(login)


def _left_ms(ctx: CommandContext) -> int | None:
    """What is left of maxTimeMS; None: no limit."""
    return None if ctx.deadline is None else max(0, ctx.deadline - ctx.member.clock.now())


def _cursor_reply(
    cursor_id: int, cursor: Cursor, batch: str, documents: list[bytes], at: OpTime | None
) -> dict[str, object]:
    shown: dict[str, object] = {batch: [RawDocument(raw) for raw in documents]}
    if cursor.resume_token is not None:
        shown["postBatchResumeToken"] = cursor.resume_token
    if cursor.snapshot_at is not None:
        shown["atClusterTime"] = timestamp(cursor.snapshot_at.ts)
    reply: dict[str, object] = {"cursor": shown | {"id": Int64(cursor_id), "ns": cursor.ns}}
    if at is not None:
        reply["operationTime"] = timestamp(at.ts)
    return reply


async def get_more(ctx: CommandContext) -> Reply:
    """The next batch of a cursor, within what is left of find's maxTimeMS.

    Its own maxTimeMS is how long an awaitData cursor waits for the first document; on others it is refused (2).
    """
    body, name = ctx.body, ctx.name
    if body.type_of(name) != 18:
        raise fields.wrong_type(name, name, body.type_of(name), "long")
    cursor_id = fields.whole(body, name, name)
    ns = cursor_namespace(ctx.database, fields.text(body, "collection", name))
    ctx.is_change_stream = ctx.cursors.is_change_stream(cursor_id)
    batch_size = fields.whole(body, "batchSize", name, least=0)
    await_ms = fields.whole(body, "maxTimeMS", name, least=0) or None
    state = ctx.member.node.state
    if not state.is_readable:
        raise NotPrimaryOrSecondaryError(f"node is not in primary or secondary state: {state.name}")
    cursor = ctx.cursors.take(cursor_id, ns)
    try:
        cursor.opener.check_same(_opener(ctx), cursor_id)
        if "maxTimeMS" in body and not cursor.await_data:
            raise BadValueError("cannot set maxTimeMS on getMore command for a non-awaitData cursor")
    except ReplError:
        ctx.cursors.give_back(cursor_id, cursor)
        raise
    ctx.opened_by = cursor.command
    waits = cursor.left_ms is None or cursor.await_data
    ctx.deadline = None if waits else Millis(ctx.member.clock.now() + (cursor.left_ms or 0))
    try:
        if ctx.member.fail_points.active:
            fail_get_more(ctx)
            check_max_time(ctx)
        if not cursor.await_data and not 0 < batch_size <= FIRST_BATCH:
            # Else a small command of another client waits for the large batches of all. Who awaits data reads little.
            await ctx.member.slices.take()
            ctx.check_deadline()
        if cursor.linearizable:
            await read_point(ctx, LINEARIZABLE)
        with ctx.cursors.space_for_batch(cursor, ctx.request.batch_bytes):
            documents = await _confirmed_batch(ctx, cursor, batch_size or None, await_ms)
        if not cursor.finished:
            cursor.count_kept(ctx.cursors)
        cursor.left_ms = _left_ms(ctx)
    except BaseException:
        cursor.close()
        ctx.cursors.give_back(cursor_id, cursor)
        raise
    is_open = ctx.cursors.give_back(cursor_id, cursor)
    return _cursor_reply(cursor_id if is_open else 0, cursor, "nextBatch", documents, None)


async def kill_cursors(ctx: CommandContext) -> Reply:
    """Close cursors."""
    ns = cursor_namespace(ctx.database, collection_field(ctx.body, ctx.name))
    ids = [fields.as_whole(value, "cursors", ctx.name) for value in fields.values(ctx.body, "cursors", ctx.name)]
    killed, missing = ctx.cursors.kill(ids, ns, _user_of(ctx))
    return {
        "cursorsKilled": [Int64(cursor_id) for cursor_id in killed],
        "cursorsNotFound": [Int64(cursor_id) for cursor_id in missing],
        "cursorsAlive": [],
        "cursorsUnknown": [],
    }


COMMANDS: tuple[Command, ...] = (
    Command("getMore", get_more, frozenset({"collection", "batchSize", "lastKnownCommittedOpTime"}), needs=Action.FIND),
    Command("killCursors", kill_cursors, frozenset({"cursors"}), needs=Action.LOGIN),
)
