"""Sessions, as far as clients need them to start and stop: ids are given out, nothing is kept.

hello has no logicalSessionTimeoutMinutes, so drivers open no sessions of their own and send no transaction numbers.
"""

from __future__ import annotations

from replset.bson import Binary
from replset.commands import fields
from replset.commands.command import Command, CommandContext
from replset.commands.ports import Reply


async def start_session(ctx: CommandContext) -> Reply:
    """A new session id."""
    bits = bytearray(ctx.member.rng.randbytes(16))
    bits[6] = bits[6] & 0x0F | 0x40
    bits[8] = bits[8] & 0x3F | 0x80
    return {"id": {"id": Binary(bytes(bits), 4)}, "timeoutMinutes": 30}


async def end_sessions(ctx: CommandContext) -> Reply:
    """Forget these sessions; there is nothing to forget."""
    kind = ctx.body.type_of(ctx.name)
    if kind != 4:
        raise fields.wrong_type(ctx.name, ctx.name, kind, "array")
    return {}


COMMANDS: tuple[Command, ...] = (
    Command("startSession", start_session),
    Command("endSessions", end_sessions),
    Command("refreshSessions", end_sessions),
    Command("killSessions", end_sessions),
    Command("killAllSessions", end_sessions),
)
