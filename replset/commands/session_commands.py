"""The commands that begin and end sessions (map X4).

A member keeps nothing for a session but its open cursors, its transaction and its record. So a session need not be
known to be used: startSession only makes an id, and refreshSessions has nothing to do. Records expire by themselves
(`runtime/session_expiry.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from replset.auth.roles import Action
from replset.bson import Binary, RawDocument, encode
from replset.commands import fields
from replset.commands.command import Command, CommandContext
from replset.commands.evaluation import read_statement
from replset.commands.ports import Reply
from replset.commands.sessions import NOBODY, SESSION_MINUTES, parse_lsid

T = TypeVar("T")
_PATTERN = frozenset({"lsid", "uid", "users", "roles"})


async def start_session(ctx: CommandContext) -> Reply:
    """A new session id."""
    bits = bytearray(ctx.member.rng.randbytes(16))
    bits[6] = bits[6] & 0x0F | 0x40
    bits[8] = bits[8] & 0x3F | 0x80
    return {"id": {"id": Binary(bytes(bits), 4)}, "timeoutMinutes": SESSION_MINUTES}


async def refresh_sessions(ctx: CommandContext) -> Reply:
    """Check the ids: there is nothing that would expire."""
    await _each(ctx, _key_of(ctx))
    return {}


async def end_sessions(ctx: CommandContext) -> Reply:
    """End the cursors and transactions of these sessions."""
    ctx.sessions.end(await _each(ctx, _key_of(ctx)))
    return {}


async def kill_all_sessions(ctx: CommandContext) -> Reply:
    """End the cursors and transactions of all sessions; of users' sessions none, since there are no users."""
    if not await _each(ctx, lambda user: True):
        ctx.sessions.end(None)
    return {}


async def kill_by_pattern(ctx: CommandContext) -> Reply:
    """End the cursors and transactions of the sessions that fit one of the patterns; without patterns of all."""
    keys = await _each(ctx, _pattern_key)
    ctx.sessions.end([key for key in keys if key] if keys and None not in keys else None)
    return {}


def _key_of(ctx: CommandContext) -> Callable[[RawDocument], bytes]:
    login = ctx.sender.login
    uid = NOBODY if login is None else login.uid
    return lambda session: parse_lsid(session.raw, uid)[0]


def _pattern_key(pattern: RawDocument) -> bytes | None:
    """The key of the session that the pattern names, None: all sessions, b"": a user's, so none."""
    fields.check_fields(pattern, _PATTERN, "killAllSessionsByPattern")
    lsid = fields.document(pattern, "lsid", "killAllSessionsByPattern")
    if lsid is not None:
        return parse_lsid(lsid.raw)[0]
    return None if len(pattern.raw) == 5 or pattern.get("uid") == NOBODY else b""


async def _each(ctx: CommandContext, read: Callable[[RawDocument], T]) -> frozenset[T]:
    """What `read` makes of each document in the command's array, each once. All of it in the thread if it is long."""

    def read_all() -> frozenset[T]:
        found: list[T] = []
        for number, value in enumerate(fields.values(ctx.body, ctx.name, ctx.name)):
            if not isinstance(value, dict):
                raise fields.wrong_type(ctx.name, f"{ctx.name}.{number}", None, "object")
            found.append(read(RawDocument(encode(value))))
        return frozenset(found)

    return await read_statement(ctx.member, ctx.body, read_all)


COMMANDS: tuple[Command, ...] = (
    Command("startSession", start_session, needs=Action.LOGIN),
    Command("endSessions", end_sessions, needs=Action.LOGIN),
    Command("refreshSessions", refresh_sessions, needs=Action.LOGIN),
    Command("killSessions", end_sessions, needs=Action.LOGIN),
    Command("killAllSessions", kill_all_sessions, needs=Action.KILL_SESSION),
    Command("killAllSessionsByPattern", kill_by_pattern, needs=Action.KILL_SESSION),
)
