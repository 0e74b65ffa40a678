"""`replset status`: one screen of the set as one member sees it, once or again and again."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from replset.bson import to_ejson
from replset.cli import calls, show
from replset.cli.local_set import DEFAULT_HOST, known_hosts
from replset.errors import ErrorCode, HostUnreachableError, ReplError
from replset.terminal import console

ANSWER_WITHIN_S = 3.0


def status(
    host: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            envvar="REPLSET_HOST",
            show_envvar=False,
            help="a member of the set (REPLSET_HOST, the first that answers of the set in this folder, else"
            " 127.0.0.1:27017)",
        ),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="show it again every two seconds, until Ctrl-C")] = False,
    json: Annotated[bool, typer.Option("--json", help="JSON for scripts instead of a table")] = False,
) -> None:
    """Show who is primary and why, the members, how far each is behind, what is wrong and what helps."""
    if json:
        typer.echo(to_ejson(ask_status(host)[1]))
    elif watch:
        watch_status(host)
    else:
        console().print(screen(host), highlight=False, soft_wrap=True)


def watch_status(host: str | None) -> None:
    """Show the screen until Ctrl-C. A set that does not answer is shown as that."""
    out = console()
    with Live(console=out, screen=sys.stdout.isatty(), auto_refresh=False) as live:
        while True:
            try:
                shown = screen(host)
            except ReplError as error:
                shown = Text(error.message, "bold red")
            live.update(shown, refresh=True)
            time.sleep(2)


def screen(host: str | None) -> RenderableType:
    """Return the screen as the first member that answers sees it, with what only the primary knows."""
    answered, reply = ask_status(host)
    primary, config = None, None
    name = next((str(row["name"]) for row in reply["members"] if row["stateStr"] == "PRIMARY"), answered)
    with contextlib.suppress(ReplError):
        config = calls.ask(answered, {"replSetGetConfig": 1}, ANSWER_WITHIN_S)["config"]
        primary = reply if name == answered else calls.ask(name, {"replSetGetStatus": 1}, ANSWER_WITHIN_S)
    return show.screen(reply, primary, config)


def ask_status(host: str | None) -> tuple[str, dict[str, Any]]:
    """Return the status of `host`, or of the first member of this folder's set that answers, with its address."""
    hosts = [host] if host is not None else known_hosts() or [DEFAULT_HOST]
    silent: list[str] = []
    for each in hosts:
        try:
            return each, calls.ask(each, {"replSetGetStatus": 1}, ANSWER_WITHIN_S)
        except HostUnreachableError as error:
            silent.append(error.message)
        except calls.CommandFailedError as error:
            if error.code != ErrorCode.NOT_YET_INITIALIZED:
                raise
            hint = f"make a set: replset initiate --host {each}; or have it added: replset add {each} --host MEMBER"
            raise calls.CommandFailedError(f"{error.message}; {hint}", code=ErrorCode.NOT_YET_INITIALIZED) from error
    raise HostUnreachableError("; ".join(silent) if len(silent) == 1 else f"no member answers: {'; '.join(silent)}")
