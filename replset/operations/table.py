"""Lists all commands by their name, and holds listCommands, which shows the list. docs/commands.md describes each."""

from __future__ import annotations

from replset.auth.roles import Action
from replset.features.administration import (
    apply_ops,
    election_journal,
    parameters,
    replset_admin,
    replset_status,
    write_state,
)
from replset.features.aggregation import aggregate, view_reads
from replset.features.archive import archive_lease
from replset.features.backup import backup
from replset.features.collections import collection_changes, collections, statistics
from replset.features.consumers import consumer_commands
from replset.features.crud import count_distinct, delete, find, find_and_modify, get_more, insert, update
from replset.features.diagnostics import diagnostics, explain, hello, server_status
from replset.features.follower import follow
from replset.features.indexes import indexes
from replset.features.recovery import rollbacks
from replset.features.scrub import document_checks
from replset.features.transactions import session_commands
from replset.features.users import sasl, user_commands
from replset.member.peers import member_commands
from replset.operations import current_operations as operations
from replset.operations import fail_command, transactions, write_concern
from replset.operations.command import Command, CommandContext
from replset.operations.member_port import Reply

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
