"""The command lines as data: which subcommands there are, and their options and arguments with their help."""

from __future__ import annotations

from typing import Any

import typer

from replset.cli.administer import app


def _walk(command: Any, path: tuple[str, ...]) -> dict[tuple[str, ...], Any]:
    found = {path: command}
    for name, inner in getattr(command, "commands", {}).items():
        found |= _walk(inner, (*path, name))
    return found


def commands_of(application: typer.Typer) -> dict[tuple[str, ...], Any]:
    """Path of words -> the click command; () is the whole."""
    return _walk(typer.main.get_command(application), ())


_ALL = commands_of(app)
COMMANDS = [path for path in _ALL if path != ("start",)]
"""All but `start`, which is no typer command."""


def parameters_of(command: Any) -> dict[str, str]:
    """Each option (its long form) and argument (its metavar) -> its help."""
    found: dict[str, str] = {}
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            found[str(parameter.metavar or parameter.name).upper()] = getattr(parameter, "help", "") or ""
        elif "--help" not in parameter.opts:
            found[next(flag for flag in parameter.opts if flag.startswith("--"))] = parameter.help or ""
    return found


def options_of(path: tuple[str, ...]) -> dict[str, str]:
    return parameters_of(_ALL[path])
