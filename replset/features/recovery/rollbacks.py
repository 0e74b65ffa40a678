"""replSetGetRollbacks: lists the rollbacks of this member or of all members. It returns manifests, no files."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from replset.auth.roles import Action
from replset.bson import encode
from replset.errors import ReplError
from replset.ids import HostPort, Millis
from replset.operations import fields
from replset.operations.command import Command, CommandContext
from replset.operations.request import Reply
from replset.replication.rollback_list import RollbackList

MEMBER_TIMEOUT_MS = Millis(5_000)
FULL_BYTES = 4 << 20
"""Beyond this size a reply leaves out the lists of files, which are large with many namespaces."""


async def get_rollbacks(ctx: CommandContext) -> Reply:
    """The manifests of this member, oldest first. With `all`, those of every member, and the members that failed."""
    everywhere = fields.boolean(ctx.body, "all", ctx.name)
    own = [{**row, "member": str(ctx.member.host)} for row in await ctx.member[RollbackList].listed()]
    if not everywhere:
        return {"rollbacks": shorten(own)}
    config = ctx.member.node.config
    others = [] if config is None else [m.host for m in config.oplog_holders if m.host != ctx.member.host]
    answers = await asyncio.gather(*(_ask_member(ctx, host) for host in others))
    rows = [*own, *(row for found, _ in answers for row in found)]
    unreachable = {str(host): why for host, (_, why) in zip(others, answers, strict=True) if why}
    rows.sort(key=lambda row: (str(row["id"]), str(row["member"])))
    return {"rollbacks": shorten(rows), "unreachable": unreachable}


async def _ask_member(ctx: CommandContext, host: HostPort) -> tuple[list[dict[str, object]], str]:
    """Ask one member for its manifests. Returns them, or why it did not answer."""
    timeout_ms = MEMBER_TIMEOUT_MS
    if ctx.deadline is not None:
        timeout_ms = Millis(max(1, min(timeout_ms, ctx.deadline - ctx.member.clock.now())))
    try:
        reply = await ctx.member.peer.call(host, {"replSetGetRollbacks": 1}, timeout_ms=timeout_ms)
    except ReplError as error:
        return [], error.message
    rows = reply.get("rollbacks")
    if not isinstance(rows, list):
        return [], str(reply.get("errmsg", "it gave no list of rollbacks"))
    return [{"id": "", **row, "member": str(host)} for row in rows if isinstance(row, dict)], ""


def shorten(rows: Iterable[dict[str, object]]) -> list[dict[str, object]]:
    """Shorten rows after the first few MiB: `filesLeftOut`, the number of files, replaces `files`."""
    found, size = [], 0
    for row in rows:
        files = row.get("files")
        size += len(encode(row))
        if size > FULL_BYTES and isinstance(files, list):
            row = {**{name: value for name, value in row.items() if name != "files"}, "filesLeftOut": len(files)}
        found.append(row)
    return found


COMMANDS: tuple[Command, ...] = (
    Command("replSetGetRollbacks", get_rollbacks, frozenset({"all"}), admin_only=True, needs=Action.SET_STATUS),
)
