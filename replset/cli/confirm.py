"""`replset confirm`: waits until writes that were acknowledged early are safe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from replset.cli import calls
from replset.cli.host_option import Host
from replset.ejson import to_ejson
from replset.features.administration.operations import MAJORITY, ConfirmWrites
from replset.operations.declared import help_of
from replset.terminal import echo

MARGIN_S = 10.0


def confirm(
    host: Host,
    optimes: Annotated[
        list[str], typer.Argument(metavar="OPTIME...", help="TERM:SECONDS:INC, as the writes' answers named them")
    ],
    wait: Annotated[str, typer.Option(help=help_of(ConfirmWrites, "wait"))] = MAJORITY,
    timeout: Annotated[float, typer.Option(min=0, max=60, help="seconds to wait")] = 10.0,
    json: Annotated[bool, typer.Option("--json", help="print the answer as JSON")] = False,
) -> None:
    """Wait until writes are safe, and tell what became of the others. Status 1: some are not."""
    command = {"replSetConfirmWrites": optimes, "wait": wait, "timeoutMS": round(timeout * 1000)}
    reply = calls.ask(host, command, timeout_s=timeout + MARGIN_S)
    for line in [to_ejson({name: reply[name] for name in ("confirmed", "notConfirmed")})] if json else lines_of(reply):
        echo(line)
    if reply["notConfirmed"]:
        raise typer.Exit(1)


def lines_of(reply: dict[str, Any]) -> Iterator[str]:
    number = reply["confirmed"]
    yield f"{number} write{'' if number == 1 else 's'} confirmed"
    for row in reply["notConfirmed"]:
        yield f"{row['optime']}  {row['state']}: {row['why']}" if "state" in row else f"{row['optime']}  not confirmed"
