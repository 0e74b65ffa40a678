"""count and distinct: one number, or one list, of the documents that match."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from replset.auth.roles import Action
from replset.bson import MAX_BSON_SIZE, decode
from replset.errors import BadValueError, ErrorCode, NotBuiltError, ReplError
from replset.features.crud.filters import Filter, filter_of
from replset.features.crud.hint import hint_of
from replset.features.crud.let import variables_of
from replset.features.crud.oplog_cursor import OplogCursor
from replset.features.crud.plan import ByIndex, choose_plan
from replset.features.crud.scan import Scan, pause, read_in_thread
from replset.features.crud.tailing import Wanted
from replset.ids import OpTime
from replset.operations import fields
from replset.operations.collations import command_fold
from replset.operations.command import Command, CommandContext, Where
from replset.operations.evaluation import SMALL_STATEMENT, compiled, read_statement, weight_of
from replset.operations.namespaces import OPLOG, collection_field, namespace
from replset.operations.read_concern import (
    confirm_linearizable,
    open_collection,
    read_concern_of,
    read_point,
    refuse_linearizable,
)
from replset.operations.replies import LargeReply
from replset.operations.request import Reply
from replset.optime import timestamp
from replset.query.distinct import Distinct
from replset.storage.catalog import Collection
from replset.storage.snapshot import Snapshot

SMALL_REPLY = 1000


async def count(ctx: CommandContext) -> Reply:
    """How many documents match."""
    body, name = ctx.body, ctx.name
    hint = hint_of(body, name)
    found, weight = await command_filter(ctx)
    skip = fields.whole(body, "skip", name, least=0)
    limit = abs(fields.whole(body, "limit", name))
    if namespace(ctx.database, collection_field(body, name)) == OPLOG:
        total = max(0, await _count_oplog(ctx, found, weight) - skip)
        return {"n": min(total, limit) if limit else total}
    coll, at = await _open(ctx)
    plan = None if coll is None else choose_plan(coll, found, None, hint).plan
    total = 0
    if coll is not None and found.matcher is None and not isinstance(plan, ByIndex):
        total = await read_in_thread(ctx, partial(Snapshot.count, coll=coll, at=at))
    elif isinstance(plan, ByIndex) and plan.is_exact and at is None:
        total = await read_in_thread(ctx, partial(_count_entries, plan=plan))
    elif coll is not None and plan is not None:

        def on_slice(matched: int) -> bool:
            nonlocal total
            total += matched
            return limit > 0 and total >= skip + limit

        await _walk(ctx, Scan(ctx.member, coll, at, plan, weight), found.test(), on_slice)
    await confirm_linearizable(ctx)
    total = max(0, total - skip)
    return with_time({"n": min(total, limit) if limit else total}, at)


async def _count_oplog(ctx: CommandContext, found: Filter, weight: int) -> int:
    concern = read_concern_of(ctx)
    refuse_linearizable(concern, OPLOG)
    point = await read_point(ctx, concern)
    if found.matcher is None:

        def count_all(snapshot: Snapshot) -> int:
            return snapshot.entries_after(0) - (0 if point is None else snapshot.entries_after(point.ts))

        return await read_in_thread(ctx, count_all)
    wanted = Wanted(found.matcher, None, weight)
    cursor = OplogCursor(ctx.member, found.query, wanted, backwards=False, is_majority=point is not None, counts=True)
    total = 0
    while not cursor.finished:
        total += len(await cursor.batch(partial(pause, ctx), SMALL_REPLY, None))
    return total


async def command_filter(ctx: CommandContext) -> tuple[Filter, int]:
    """The command's filter, and what its evaluation weighs."""
    body = ctx.body
    query = await read_statement(ctx.member, body, lambda: fields.decoded(body, "query", ctx.name))
    weight, fold = weight_of(len(body.raw), query), command_fold(ctx)
    variables = await variables_of(ctx)

    def compile_() -> Filter:
        found = filter_of(query, variables, fold)
        if weight > SMALL_STATEMENT:
            _ = found.bounds
        return found

    return await compiled(ctx.member, weight, compile_), weight


async def _open(ctx: CommandContext) -> tuple[Collection | None, OpTime | None]:
    collection = collection_field(ctx.body, ctx.name)
    if namespace(ctx.database, collection) == OPLOG:
        raise NotBuiltError(f"{ctx.name} on the oplog is not built yet")
    return await open_collection(ctx, collection, read_concern_of(ctx))


async def _walk(
    ctx: CommandContext,
    scan: Scan,
    read: Callable[[Sequence[bytes]], Iterable[Any]],
    on_slice: Callable[[int], bool],
) -> None:
    """Walk a collection in slices. on_slice: takes the number of documents found; True ends the walk.

    read: see `Scan.next_slice`. The undo for the read's point is kept until the walk ends.
    """
    pin = None if scan.at is None else ctx.member.store.pin(scan.at)
    try:
        is_over = False
        while not scan.exhausted and not is_over:
            is_over = on_slice(len(await scan.next_slice(read)))
            if not scan.exhausted:
                await pause(ctx)
    finally:
        if pin is not None:
            pin.release()


def with_time(reply: dict[str, object], at: OpTime | None) -> dict[str, object]:
    """Add the point that was read at."""
    if at is not None:
        reply["operationTime"] = timestamp(at.ts)
    return reply


def _count_entries(snapshot: Snapshot, plan: ByIndex) -> int:
    """The documents of a plan whose entries are exactly those that match."""
    return sum(snapshot.index_count(plan.index, low, high) for low, high in plan.ranges)


async def distinct(ctx: CommandContext) -> Reply:
    """The different values of a field in the documents that match; 17217 over 16 MiB."""
    body, name = ctx.body, ctx.name
    hint = hint_of(body, name)
    key = fields.text(body, "key", name)
    if not key or "\0" in key:
        raise BadValueError("distinct.key must be the path of a field")
    found, weight = await command_filter(ctx)
    values = Distinct(key, command_fold(ctx))

    def add(raw: bytes) -> None:
        document = decode(raw)
        if found.matches(document):
            values.add(document)

    coll, at = await _open(ctx)
    if coll is not None:

        def on_slice(_matched: int) -> bool:
            if values.size > MAX_BSON_SIZE:
                raise ReplError("distinct too big, 16mb cap", code=ErrorCode.DISTINCT_TOO_LARGE)
            return False

        own = None if ctx.transaction is None else ctx.transaction.write_set
        plan = choose_plan(coll, found, None, hint, in_transaction=own is not None).plan
        await _walk(ctx, Scan(ctx.member, coll, at, plan, weight, own), partial(map, add), on_slice)
    await confirm_linearizable(ctx)
    reply = with_time({"values": values.values}, at)
    if at is not None and ctx.transaction is None and read_concern_of(ctx).level == "snapshot":
        reply["atClusterTime"] = timestamp(at.ts)
    return reply if len(values.values) <= SMALL_REPLY else LargeReply(reply)


COMMANDS: tuple[Command, ...] = (
    Command(
        "count",
        count,
        frozenset({"query", "limit", "skip", "hint", "collation"}),
        where=Where.READABLE,
        read_concern=True,
        needs=Action.FIND,
    ),
    Command(
        "distinct",
        distinct,
        frozenset({"key", "query", "hint", "collation"}),
        where=Where.READABLE,
        read_concern=True,
        needs=Action.FIND,
    ),
)
