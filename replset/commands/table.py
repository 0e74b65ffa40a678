"""All commands by their name. docs/commands.md describes each of them; a test compares the two."""

from __future__ import annotations

from replset.commands import (
    collections,
    count_distinct,
    delete,
    diagnostics,
    find,
    hello,
    insert,
    member_commands,
    replset_admin,
    replset_status,
    rollbacks,
    server_status,
    sessions,
    update,
    write_concern,
)
from replset.commands.command import Command

FAMILIES = (
    collections.COMMANDS,
    count_distinct.COMMANDS,
    find.COMMANDS,
    delete.COMMANDS,
    diagnostics.COMMANDS,
    hello.COMMANDS,
    insert.COMMANDS,
    member_commands.COMMANDS,
    replset_admin.COMMANDS,
    replset_status.COMMANDS,
    rollbacks.COMMANDS,
    server_status.COMMANDS,
    sessions.COMMANDS,
    update.COMMANDS,
    write_concern.COMMANDS,
)
COMMANDS: dict[str, Command] = {command.name: command for family in FAMILIES for command in family}
PRIVATE: frozenset[str] = frozenset(command.name for command in COMMANDS.values() if command.private)
"""What members ask each other; over HTTP nobody knows these."""
