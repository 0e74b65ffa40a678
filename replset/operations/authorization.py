"""Decides whether the sender of a command may run it. Every command and every HTTP route names what it needs."""

from __future__ import annotations

import ipaddress
from typing import Final

from replset.auth.roles import Action
from replset.errors import ErrorCode, ReplError
from replset.operations.kernel import Kernel
from replset.operations.request import ConnectionContext
from replset.operations.user_directory import UserDirectory

_BEFORE_ANY_USER: Final = frozenset({Action.CONFIGURE_SET, Action.SET_STATUS, Action.SET_CONFIG})
_FIRST_USER: Final = frozenset({Action.CREATE_USER, Action.GRANT_ROLE})


def is_allowed(member: Kernel, connection: ConnectionContext, action: Action, database: str = "") -> bool:
    """Whether the sender may do this. A member of the set may do all, and so may everybody without --auth."""
    users = member[UserDirectory]
    if not users.required or action is Action.OPEN or connection.is_member:
        return True
    if connection.login is None:
        return _is_excepted(member, connection, action, database)
    grants = users.grants(connection.login)
    return grants is not None and grants.allow(action, database)


def authorize(member: Kernel, connection: ConnectionContext, action: Action, database: str, what: str) -> None:
    """Raise 13 if the sender may not do this. what: the command or the path, for the message.

    The connection of a user who was dropped, or got another password, is closed: a driver then logs in anew, and its
    caller hears why that fails.
    """
    if is_allowed(member, connection, action, database):
        return
    if connection.login is None:
        raise ReplError(f"{what:.80} requires authentication", code=ErrorCode.UNAUTHORIZED)
    if member[UserDirectory].grants(connection.login) is None:
        connection.is_to_close = True
    place = f" on {database:.80}" if action.is_of_database else ""
    raise ReplError(
        f"not authorized{place} to execute {what:.80}: {connection.login} needs the privilege {action.value[0]}",
        code=ErrorCode.UNAUTHORIZED,
    )


def _is_excepted(member: Kernel, connection: ConnectionContext, action: Action, database: str) -> bool:
    """The localhost exception: until the set has a user, a client of the wire port on the member's own machine may make
    the set and, on its primary, the first user.
    """
    allowed = action in _BEFORE_ANY_USER or (action in _FIRST_USER and database == "admin")
    if not allowed or not connection.id or not _is_loopback(connection.peer):
        return False
    knows_all_users = member.node.config is None or member.node.writable  # an arbiter has none, and others may lag
    return knows_all_users and member[UserDirectory].has_none()


def _is_loopback(peer: str) -> bool:
    try:
        return ipaddress.ip_address(peer.rpartition(":")[0].strip("[]")).is_loopback
    except ValueError:
        return False
