"""Lists all commands by their name, and holds listCommands, which shows the list. docs/commands.md describes each."""

from __future__ import annotations

from replset.auth.roles import Action
from replset.commands import fail_command, operations, write_concern
from replset.commands.admin import (
    backup,
    diagnostics,
    election_journal,
    hello,
    parameters,
    replset_admin,
    replset_status,
    rollbacks,
    server_status,
    write_state,
)
from replset.commands.catalog import collection_changes, collections, indexes, statistics
from replset.commands.command import Command, CommandContext
from replset.commands.member_port import Reply
from replset.commands.members import archive_lease, document_checks, member_commands
from replset.commands.pipelines import aggregate, view_reads
from replset.commands.reads import count_distinct, explain, find, get_more
from replset.commands.sessions import session_commands, transactions
from replset.commands.streams import consumer_commands, follow
from replset.commands.users import sasl, user_commands
from replset.commands.writes import apply_ops, delete, find_and_modify, insert, update

FAMILIES = (
    aggregate.COMMANDS,
    apply_ops.COMMANDS,
    archive_lease.COMMANDS,
    backup.COMMANDS,
    collection_changes.COMMANDS,
    collections.COMMANDS,
    consumer_commands.COMMANDS,
    count_distinct.COMMANDS,
    find.COMMANDS,
    find_and_modify.COMMANDS,
    follow.COMMANDS,
    get_more.COMMANDS,
    delete.COMMANDS,
    diagnostics.COMMANDS,
    document_checks.COMMANDS,
    election_journal.COMMANDS,
    explain.COMMANDS,
    fail_command.COMMANDS,
    hello.COMMANDS,
    indexes.COMMANDS,
    insert.COMMANDS,
    sasl.COMMANDS,
    member_commands.COMMANDS,
    operations.COMMANDS,
    parameters.COMMANDS,
    replset_admin.COMMANDS,
    replset_status.COMMANDS,
    rollbacks.COMMANDS,
    server_status.COMMANDS,
    session_commands.COMMANDS,
    transactions.COMMANDS,
    statistics.COMMANDS,
    update.COMMANDS,
    user_commands.COMMANDS,
    write_concern.COMMANDS,
    write_state.COMMANDS,
)


async def list_commands(_ctx: CommandContext) -> Reply:
    """All commands, each with the first line of its description."""
    return {
        "commands": {
            name: {
                "help": (command.run.__doc__ or "").partition("\n")[0],
                "adminOnly": command.admin_only,
                "where": command.where.value,
            }
            for name, command in sorted(COMMANDS.items())
        }
    }


COMMANDS: dict[str, Command] = {command.name: command for family in FAMILIES for command in family}
COMMANDS |= {command.name: command for command in view_reads.COMMANDS}
COMMANDS["listCommands"] = Command("listCommands", list_commands, needs=Action.LOGIN)
PRIVATE: frozenset[str] = frozenset(command.name for command in COMMANDS.values() if command.private)
"""Commands between members; the HTTP API does not serve them."""
