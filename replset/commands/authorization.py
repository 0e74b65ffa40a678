"""Decides whether the sender of a command may run it. Every command and every HTTP route names what it needs."""

from __future__ import annotations

from replset.auth.roles import Action
from replset.commands.ports import ConnectionContext, MemberPort
from replset.errors import ErrorCode, ReplError


def is_allowed(member: MemberPort, connection: ConnectionContext, action: Action, database: str = "") -> bool:
    """Whether the sender may do this. A member of the set may do all, and so may everybody without --auth."""
    users = member.users
    if users is None or action is Action.OPEN or connection.is_member:
        return True
    grants = None if connection.login is None else users.grants(connection.login)
    return grants is not None and grants.allow(action, database)


def authorize(member: MemberPort, connection: ConnectionContext, action: Action, database: str, what: str) -> None:
    """Raise 13 if the sender may not do this. what: the command or the path, for the message."""
    if is_allowed(member, connection, action, database):
        return
    if connection.login is None:
        raise ReplError(f"{what} requires authentication", code=ErrorCode.UNAUTHORIZED)
    raise ReplError(
        f"not authorized on {database} to execute {what}: {connection.login} lacks {action.value[0]}",
        code=ErrorCode.UNAUTHORIZED,
    )
