"""`replset what-if`: what the set would do if a member died, stopped, was cut off or removed. It changes nothing."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from replset.cli import calls
from replset.cli.host_option import AnyHost
from replset.cli.members import read_document
from replset.config import ReplSetConfig
from replset.errors import ReplError
from replset.features.what_if.forecast import Kind, foresee, story
from replset.features.what_if.player import SetNow
from replset.features.what_if.situation import deed_of, set_of
from replset.ids import OpTime
from replset.terminal import echo, echo_json

app = typer.Typer(
    help="Play what the set would do now, on copies of its members' cores. It changes nothing.", no_args_is_help=True
)
Plays = Annotated[int, typer.Option(min=1, max=1000, help="how many plays, each with other random delays")]
Json = Annotated[bool, typer.Option("--json", help="JSON for scripts")]
MemberOfSet = Annotated[str, typer.Argument(metavar="HOST:PORT", help="as the configuration names it")]


@app.command()
def kill(member: MemberOfSet, host: AnyHost = None, plays: Plays = 100, json: Json = False) -> None:
    """The member's process dies (kill -9)."""
    _answer("kill", [member], [], host, plays, json=json)


@app.command()
def stop(member: MemberOfSet, host: AnyHost = None, plays: Plays = 100, json: Json = False) -> None:
    """The member is stopped in order (SIGTERM): a primary hands over first."""
    _answer("stop", [member], [], host, plays, json=json)


@app.command()
def cut(
    sides: Annotated[str, typer.Argument(metavar="HOST:PORT,...[/HOST:PORT,...]", help="the two sides of the cut")],
    host: AnyHost = None,
    plays: Plays = 100,
    json: Json = False,
) -> None:
    """The network between these members and the others breaks. Without `/` the others are all the rest."""
    one, _, other = sides.partition("/")
    _answer("cut", one.split(","), other.split(",") if other else [], host, plays, json=json)


@app.command("lose-disk")
def lose_disk(member: MemberOfSet, host: AnyHost = None, plays: Plays = 100, json: Json = False) -> None:
    """The member's process dies and comes back on an empty disk."""
    _answer("lose-disk", [member], [], host, plays, json=json)


@app.command()
def reconfig(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="the configuration as JSON; - for standard input")],
    host: AnyHost = None,
    plays: Plays = 100,
    json: Json = False,
) -> None:
    """The set gets this configuration (replset reconfig). Members that it adds run, and are empty."""
    config = ReplSetConfig.parse(read_document(file), keep=True)
    _answer("reconfig", [], [], host, plays, json=json, config=config)


@app.command()
def remove(member: MemberOfSet, host: AnyHost = None, plays: Plays = 100, json: Json = False) -> None:
    """The member is taken out of the configuration (replset remove)."""
    _answer("remove", [member], [], host, plays, json=json)


def _answer(
    kind: Kind,
    hosts: list[str],
    others: list[str],
    host: str | None,
    plays: int,
    *,
    json: bool,
    config: ReplSetConfig | None = None,
) -> None:
    known, weights, waiting = look(host)
    deed = replace(deed_of(known, kind, hosts, others), config=config)
    found = foresee(known, deed, weights, plays)
    if json:
        echo_json({**found.document(), "uncommittedWrites": waiting})
        return
    for line in story(deed, known, found, waiting):
        echo(line)


def look(host: str | None) -> tuple[SetNow, dict[OpTime, int], int]:
    """Ask every member that answers. Return the set as it is, what each optime stands for, and how many writes are not
    committed.
    """
    answered, reply = calls.ask_status(host)
    config = ReplSetConfig.parse(
        calls.ask(answered, {"replSetGetConfig": 1}, calls.ANSWER_WITHIN_S)["config"], keep=True
    )
    replies = {answered: reply}
    for member in config.members:
        with suppress(ReplError):
            own = calls.ask(member.host, {"replSetGetStatus": 1}, calls.ANSWER_WITHIN_S)
            replies[next((str(row["name"]) for row in own["members"] if row.get("self")), member.host)] = own
    return set_of(config, replies, answered)
