"""`replset status`: one screen of the set as one member sees it, once or again and again."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.live import Live

from replset.bson import to_ejson
from replset.cli import calls, show
from replset.cli.host_option import AnyHost
from replset.errors import ReplError
from replset.terminal import Text, console, echo


def status(
    host: AnyHost = None,
    watch: Annotated[bool, typer.Option("--watch", help="show it again every two seconds, until Ctrl-C")] = False,
    json: Annotated[bool, typer.Option("--json", help="JSON for scripts instead of a table")] = False,
) -> None:
    """Show who is primary and why, the members, how far each is behind, what is wrong and what helps."""
    if json:
        echo(to_ejson(calls.ask_status(host)[1]))
    elif watch:
        watch_status(host)
    else:
        console().print(screen(host), soft_wrap=True)


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
    answered, reply = calls.ask_status(host)
    primary, config = None, None
    name = next((str(row["name"]) for row in reply["members"] if row["stateStr"] == "PRIMARY"), answered)
    with contextlib.suppress(ReplError):
        config = calls.ask(answered, {"replSetGetConfig": 1}, calls.ANSWER_WITHIN_S)["config"]
        primary = reply if name == answered else calls.ask(name, {"replSetGetStatus": 1}, calls.ANSWER_WITHIN_S)
    return show.screen(reply, primary, config)
