"""What members ask each other: heartbeats, votes, progress, step-up, and the oplog with its copies."""

from __future__ import annotations

from replset.commands.command import Command, CommandContext
from replset.commands.messages import parse_request, reply_document
from replset.commands.oplog_serving import oplog_fetch, oplog_probe
from replset.commands.ports import Reply


async def ask(ctx: CommandContext) -> Reply:
    """replSetHeartbeat, replSetRequestVotes, replSetUpdatePosition, replSetStepUp: the core answers."""
    return reply_document(await ctx.member.ask_core(parse_request(ctx.body)))


async def fetch(ctx: CommandContext) -> Reply:
    return await oplog_fetch(ctx.member, ctx.body)


async def probe(ctx: CommandContext) -> Reply:
    return await oplog_probe(ctx.member, ctx.body)


async def snapshot(ctx: CommandContext) -> Reply:
    return await ctx.member.snapshots.serve(ctx.member, ctx.body)


async def rollback_id(ctx: CommandContext) -> Reply:
    return {"rbid": ctx.member.store.rollback_id}


COMMANDS = (
    Command("replSetHeartbeat", ask, fields=None, admin_only=True),
    Command("replSetRequestVotes", ask, fields=None, admin_only=True),
    Command("replSetUpdatePosition", ask, fields=None, admin_only=True),
    Command("replSetStepUp", ask, fields=frozenset({"skipDryRun"}), admin_only=True),
    Command("replSetOplogFetch", fetch, fields=None, admin_only=True),
    Command("replSetOplogProbe", probe, fields=None, admin_only=True),
    Command("replSetSnapshot", snapshot, fields=None, admin_only=True),
    Command("replSetGetRBID", rollback_id, admin_only=True),
)
