"""replSetWhatIf: the forecast of `replset what-if`, made by a member.

It begins with this member's own replSetGetStatus, so it imports that operation of another feature. The other members
are asked for the same, as replSetGetElections asks them: whoever may see the status of this member may see theirs.
"""

from __future__ import annotations

import asyncio
from typing import Final

from replset.bson import RawDocument, encode
from replset.errors import NotYetInitializedError, ReplError
from replset.features.administration.replset_status import get_status
from replset.features.what_if.operations import WhatIf
from replset.features.what_if.plays import LIMIT_S, Plays
from replset.ids import HostPort, Millis
from replset.member.feature import Feature
from replset.operations.command import CommandContext, declared
from replset.operations.request import Reply

MEMBER_TIMEOUT_MS: Final = Millis(3_000)


async def what_if(ctx: CommandContext, given: WhatIf) -> Reply:
    member, config = ctx.member, ctx.member.node.config
    if config is None:
        raise NotYetInitializedError("no replset config has been received")
    own = await get_status(ctx)
    replies = {member.host: RawDocument(own if isinstance(own, bytes) else encode(own))}
    silent: dict[str, str] = {}

    async def ask(host: HostPort) -> None:
        try:
            reply = await member.peer.call(host, {"replSetGetStatus": 1}, timeout_ms=MEMBER_TIMEOUT_MS)
        except ReplError as error:
            silent[host] = error.message
            return
        if reply.get("ok") == 1:
            replies[host] = reply
        else:
            silent[host] = str(reply.get("errmsg"))

    await asyncio.gather(*(ask(each.host) for each in config.members if each.host != member.host))
    job = {"config": config.document(), "replies": replies, "view": member.host}
    limit_s = LIMIT_S if ctx.left_ms is None else min(LIMIT_S, ctx.left_ms / 1000)
    began = member.clock.now()
    found = await member[Plays].run({**job, "deed": given.deed, "host": given.host, "plays": given.plays}, limit_s)
    ctx.work.idle_ms += member.clock.now() - began  # nobody else was kept waiting: it is no slow operation
    code = found.get("code")
    if isinstance(code, int):
        raise ReplError(str(found.get("errmsg")), code=code)
    return {**found.decode(), "unreachable": silent}


WHAT_IF: Final = Feature("what_if", (declared(WhatIf, what_if),), Plays)
