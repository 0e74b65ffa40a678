"""replSetConfirmWrites: waits until writes that were acknowledged early are safe, many of them at once.

A producer sends writes with `w: 1` at full speed, keeps the optimes of their answers, and confirms them in batches. Any
member can be asked: what a majority has never leaves the set, so each member knows it from its own oplog and the commit
point. How many members have an entry only the primary counts, so that question is passed on to it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from replset.core.quorum import WriteConcern
from replset.errors import NotWritablePrimaryError, ReplError
from replset.features.administration.operations import ConfirmWrites
from replset.features.administration.write_state import describe_write, has_entry
from replset.ids import OPTIME_NULL, Millis, OpTime
from replset.message_fields import check_ok
from replset.operations.command import Command, CommandContext, declared
from replset.operations.kernel import Kernel
from replset.operations.request import Reply
from replset.operations.write_concern import wait_until_met

EXPLAINED: Final = 20
"""So many of the writes that are not confirmed are described as by replSetGetWriteState; the others are only named."""
A_TURN: Final = 50
"""Optimes that are looked up in one turn of the event loop."""
PASSED_ON_MS: Final = 2_000


async def confirm_writes(ctx: CommandContext, given: ConfirmWrites) -> Reply:
    """Return how many are safe, and what is known of each other one. It ends when all are, or when the time is over."""
    member, most = ctx.member, given.wait
    left_ms = given.timeout_ms if ctx.left_ms is None else min(given.timeout_ms, ctx.left_ms)
    end = Millis(member.clock.now() + left_ms)
    if most and not member.node.writable:
        return await _ask_primary(member, given, left_ms)
    optimes = sorted(set(given.optimes))
    if most:
        failure = await wait_until_met(member, max(optimes[-1], _begin_of_term(member)), WriteConcern(most), end)
        if failure is not None and failure.code in (79, 100):
            raise ReplError(failure.message, code=failure.code)
    else:
        await _until_committed(member, optimes[-1], end)
    left, begin = [], _begin_of_term(member)
    for number, optime in enumerate(optimes):
        if number % A_TURN == A_TURN - 1:
            await asyncio.sleep(0)
        if not _is_safe(member, optime, most, begin):
            left.append(optime)
    described = [await describe_write(ctx, optime) for optime in left[:EXPLAINED]]
    others: list[dict[str, object]] = [{"optime": str(optime)} for optime in left[EXPLAINED:]]
    return {"confirmed": len(optimes) - len(left), "notConfirmed": described + others}


async def _ask_primary(member: Kernel, given: ConfirmWrites, left_ms: int) -> Reply:
    primary = member.node.primary_host
    if primary is None:
        raise NotWritablePrimaryError()
    optimes = [str(optime) for optime in given.optimes]
    command = {"replSetConfirmWrites": optimes, "wait": f"members:{given.wait}", "timeoutMS": left_ms}
    reply = await member.peer.call(primary, command, timeout_ms=Millis(left_ms + PASSED_ON_MS))
    check_ok(reply)
    return {name: reply.get(name) for name in ("confirmed", "notConfirmed")}


async def _until_committed(member: Kernel, newest: OpTime, end: Millis) -> None:
    while min(member.node.commit_point, member.store.last_applied) < newest and not member.shutting_down:
        left_ms = end - member.clock.now()
        if left_ms <= 0 or not await member.wait_for_change(left_ms):
            return


def _is_safe(member: Kernel, optime: OpTime, most: int, begin: OpTime) -> bool:
    """begin: of the newest term. A member has an older entry for sure once it has that: one that is in an older term's
    history, and will roll it back, may be at a later optime without the entry.
    """
    if not member.node.follows_set or not has_entry(member.store, optime):
        return False  # what it rolls back now is still in its oplog
    if most:
        return member.node.is_satisfied(WriteConcern(most), max(optime, begin))
    return optime <= min(member.node.commit_point, member.store.last_applied)


def _begin_of_term(member: Kernel) -> OpTime:
    """Return the first entry of the newest term in this member's oplog."""
    spans = member.store.terms()
    return spans[-1].first if spans else OPTIME_NULL


COMMANDS: tuple[Command, ...] = (declared(ConfirmWrites, confirm_writes),)
