"""What members ask each other: heartbeats, votes, progress and the handoff go to the core; the oplog is served."""

from __future__ import annotations

from replset.bson import ObjectId
from replset.commands import oplog_serving
from replset.commands.command import Command, CommandContext
from replset.commands.messages import parse_request, reply_document
from replset.commands.ports import Reply
from replset.core.heartbeat import SET_NAMES_DIFFER
from replset.core.messages import Refused
from replset.errors import RemoteProtocolError, ReplError


async def ask_core(ctx: CommandContext) -> Reply:
    """Put the request to the core; its refusal is an error reply."""
    answer = await ctx.member.ask_core(parse_request(ctx.body))
    if isinstance(answer, Refused):
        raise ReplError(answer.reason, code=answer.code)
    return reply_document(answer)


def _refuse_other_set(ctx: CommandContext) -> None:
    """Another set of the same name may have this address in its configuration: its members must not take this oplog for
    that of their own set, nor copy it over their data.
    """
    theirs, mine = ctx.body.get("setId"), ctx.member.node.set_id
    if theirs is not None and not isinstance(theirs, ObjectId):
        raise RemoteProtocolError("field 'setId' is not an ObjectId")
    if theirs != mine and None not in (theirs, mine):
        raise ReplError(f"this member belongs to the set with id {mine}, not {theirs}", code=SET_NAMES_DIFFER)


async def oplog_fetch(ctx: CommandContext) -> Reply:
    """Entries of the oplog behind a given one, as soon as there are some."""
    _refuse_other_set(ctx)
    return await oplog_serving.oplog_fetch(ctx.member, ctx.body)


async def oplog_probe(ctx: CommandContext) -> Reply:
    """Which of the given entries are here, and the hash chain at each."""
    _refuse_other_set(ctx)
    return await oplog_serving.oplog_probe(ctx.member, ctx.body)


async def snapshot(ctx: CommandContext) -> Reply:
    """One step of copying the database: begin, chunk, end."""
    _refuse_other_set(ctx)
    return await ctx.member.snapshots.serve(ctx.member, ctx.body)


async def get_rbid(ctx: CommandContext) -> Reply:
    """The rollback id: it grows with every rollback of this member."""
    return {"rbid": ctx.member.store.rollback_id}


COMMANDS: tuple[Command, ...] = (
    Command("replSetHeartbeat", ask_core, None, admin_only=True),
    Command("replSetRequestVotes", ask_core, None, admin_only=True),
    Command("replSetUpdatePosition", ask_core, None, admin_only=True),
    Command("replSetStepUp", ask_core, frozenset({"skipDryRun"}), admin_only=True),
    Command("replSetOplogFetch", oplog_fetch, None, admin_only=True),
    Command("replSetOplogProbe", oplog_probe, None, admin_only=True),
    Command("replSetSnapshot", snapshot, None, admin_only=True),
    Command("replSetGetRBID", get_rbid, admin_only=True),
)
