"""All commands by their name. docs/commands.md describes each of them; a test compares the two."""

from __future__ import annotations

from replset.commands import between_members, diagnostics, insert
from replset.commands.command import Command

COMMANDS: dict[str, Command] = {
    command.name: command
    for family in (between_members.COMMANDS, diagnostics.COMMANDS, insert.COMMANDS)
    for command in family
}
