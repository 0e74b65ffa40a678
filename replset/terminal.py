"""Runs a typer application and prints tables, for the command lines of replset and rollback-tools.

A member's own process does not import this file, since it imports typer and rich.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import rich.text
import typer
from rich.console import Console
from rich.table import Table

from replset.client import PASSWORD_FILE_VARIABLE, PASSWORD_VARIABLE, TLS_CA_VARIABLE, TLS_VARIABLE, USER_VARIABLE
from replset.errors import ReplError
from replset.text import printable

# typer brings click along under its own name or uses the installed one, by its version: ask it for the class.
_ClickException: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")
WITHOUT_MEMBERS = frozenset({"start", "cluster", "repair", "dump"})
_WIDTH_OF_A_FILE = 200


def run_app(app: typer.Typer, program: str, arguments: Sequence[str]) -> int:
    """Run one subcommand and return its exit status. Every failure is one line on standard error and status 2.

    The subcommand returns its status, or None for 0. Ctrl-C gives 130. A reader that closed the output gives 1.
    """
    try:
        command = typer.main.get_command(app)
        _add_connection_options(command, _connection_parameters())
        status = command(args=list(arguments), prog_name=program, standalone_mode=False)
        sys.stdout.flush()
    except typer.Abort:
        return 130
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        leave_broken_pipe()
        return 1
    except ReplError as error:
        return refuse(program, error.message)
    except OSError as error:
        return refuse(program, f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except _ClickException as error:
        return _misused(program, error)
    return int(status) if isinstance(status, int) else 0


def _connect_with_tls(asked: bool) -> None:
    if asked:
        os.environ[TLS_VARIABLE] = "1"


def _connect_with_ca(path: Path | None) -> None:
    if path is not None:
        os.environ[TLS_CA_VARIABLE] = str(path.expanduser().absolute())


def _connect_as(user: str | None) -> None:
    if user is not None:
        os.environ[USER_VARIABLE] = user


def _connect_with_password(path: Path | None) -> None:
    if path is not None:
        os.environ.pop(PASSWORD_VARIABLE, None)
        os.environ[PASSWORD_FILE_VARIABLE] = str(path.expanduser().absolute())


_connection = typer.Typer(add_completion=False)


@_connection.command()
def _connection_options(
    tls: Annotated[
        bool, typer.Option("--tls", help="connect to members with TLS (REPLSET_TLS)", callback=_connect_with_tls)
    ] = False,
    tls_ca: Annotated[
        Path | None,
        typer.Option(
            "--tls-ca", metavar="FILE", help="the CAs to believe, PEM (REPLSET_TLS_CA)", callback=_connect_with_ca
        ),
    ] = None,
    user: Annotated[
        str | None,
        typer.Option("--user", metavar="[DB/]NAME", help="log in as this user (REPLSET_USER)", callback=_connect_as),
    ] = None,
    password_file: Annotated[
        Path | None,
        typer.Option(
            "--password-file",
            metavar="FILE",
            help="with the user's password in its first line (REPLSET_PASSWORD_FILE, or REPLSET_PASSWORD itself)",
            callback=_connect_with_password,
        ),
    ] = None,
) -> None:
    """Hold the options of all commands that connect to members. They go to clients by the environment."""


def _connection_parameters() -> list[Any]:
    """Build the options; all commands share them, since to build them for each takes longer than many a command."""
    options: list[Any] = list(typer.main.get_command(_connection).params)
    for option in options:
        option.expose_value = False
    return options


def _add_connection_options(command: Any, options: list[Any]) -> None:
    """Add the options to every subcommand that connects to members."""
    for name, each in getattr(command, "commands", {}).items():
        if name in WITHOUT_MEMBERS:
            continue
        _add_connection_options(each, options)
        if not hasattr(each, "commands"):
            each.params.extend(options)


def refuse(program: str, reason: str) -> int:
    """Print why nothing is done, on one line, and return status 2."""
    echo(f"{program}: {' '.join(reason.split())}", err=True)
    return 2


def _misused(program: str, error: Any) -> int:
    """Report a wrong option or argument. Without any argument, print the help."""
    message = str(error.format_message())
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        print(message, file=sys.stderr)
        return 2
    command = context.command_path if context is not None else program
    return refuse(program, f"{message.rstrip('.')} (see `{command} --help`)")


def leave_broken_pipe() -> None:
    """Redirect standard output, which has no reader any more. Otherwise Python prints an error when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def echo(line: str, *, err: bool = False, nl: bool = True) -> None:
    """Print one line. Names and values in it may hold anything: see `printable`."""
    typer.echo(printable(line), err=err, nl=nl)


def echo_json(document: object) -> None:
    """Print a document as indented JSON, in ASCII where standard output can hold nothing else."""
    text = json.dumps(document, indent=2, ensure_ascii=not _speaks_utf8())
    typer.echo(printable(text, keep="\n"))  # a line end in a string is escaped already


def _speaks_utf8() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


class Text(rich.text.Text):
    """A text in one style, on one line: rich's own lets line ends and ESC through."""

    def __init__(self, text: str = "", style: str = "") -> None:
        super().__init__(printable(text), style)


class _Console(Console):
    """Prints strings, those in a table's cells too, as they are: without markup, and escaped."""

    def render_str(self, text: str, **options: Any) -> rich.text.Text:
        return super().render_str(printable(text), **options)


def console() -> Console:
    """Return a console as wide as the terminal. In a file or a pipe no line is folded at 80 columns."""
    width = None if sys.stdout.isatty() else _WIDTH_OF_A_FILE
    return _Console(width=width, markup=False, emoji=False, highlight=False)


def plain_table(*columns: str) -> Table:
    """Return a table without lines, whose cells are not folded."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table


def duration(ms: int) -> str:
    """Return a duration in its two largest units."""
    seconds = max(0, ms) // 1000
    for size, name, smaller, smaller_name in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            return f"{seconds // size} {name} {seconds % size // smaller} {smaller_name}"
    return f"{seconds} s"
