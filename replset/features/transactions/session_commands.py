"""The commands that begin and end sessions (map X4).

A member keeps nothing for a session but its open cursors, its transaction and its record. So a session need not be
known to be used: startSession only makes an id, and refreshSessions has nothing to do. Records expire by themselves
(`features/transactions/session_expiry.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from replset.auth.roles import Action
from replset.auth.users import Login
from replset.bson import Binary, RawDocument, encode
from replset.errors import BadValueError
from replset.operations import fields
from replset.operations.command import Command, CommandContext
from replset.operations.evaluation import read_statement
from replset.operations.request import Reply
from replset.operations.session_request import NOBODY, SESSION_MINUTES, parse_lsid, uid_of

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
    keys = await _each(ctx, _key_of(ctx))
    ctx.sessions.end(keys.__contains__)
    return {}


async def kill_all_sessions(ctx: CommandContext) -> Reply:
    """End the cursors and transactions of these users' sessions; without users of all sessions."""
    uids = await _each(ctx, _uid_of_user)
    ctx.sessions.end(lambda key: not uids or uid_of(key) in uids)
    return {}


async def kill_by_pattern(ctx: CommandContext) -> Reply:
    """End the cursors and transactions of the sessions that fit one of the patterns; without patterns of all."""
    key_of = _key_of(ctx)
    found = await _each(ctx, lambda pattern: _place_of_pattern(pattern, key_of))
    ctx.sessions.end(lambda key: not found or None in found or key in found or uid_of(key) in found)
    return {}


def _key_of(ctx: CommandContext) -> Callable[[RawDocument], bytes]:
    login = ctx.sender.login
    uid = NOBODY if login is None else login.uid
    return lambda session: parse_lsid(session.raw, uid)[0]


def _uid_of_user(user: RawDocument) -> bytes:
    name, database = (fields.text(user, field, "killAllSessions") for field in ("user", "db"))
    return bytes(Login(name, database).uid)


def _place_of_pattern(pattern: RawDocument, key_of: Callable[[RawDocument], bytes]) -> bytes | None:
    """The key of the session, or the uid of the user, that the pattern names; None: all sessions, b"": none."""
    fields.check_fields(pattern, _PATTERN, "killAllSessionsByPattern")
    lsid = fields.document(pattern, "lsid", "killAllSessionsByPattern")
    uid = pattern.get("uid")
    if lsid is not None:
        owner = lsid.get("uid")
        return key_of(lsid) if owner is None else parse_lsid(lsid.raw, _uid(owner))[0]
    if uid is not None:
        return bytes(_uid(uid))
    return None if len(pattern.raw) == 5 else b""


def _uid(value: object) -> Binary:
    if not isinstance(value, Binary) or len(value) != len(NOBODY):
        raise BadValueError(f"killAllSessionsByPattern: a uid is binary data of {len(NOBODY)} bytes")
    return value


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
