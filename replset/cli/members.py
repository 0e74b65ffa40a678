"""The subcommands that change the configuration: initiate, add, add-arbiter, remove, reconfig."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from replset.bson import from_ejson
from replset.cli import calls
from replset.cli.changes import NotAcceptedError, check_effect, effect_of, with_members, without_member
from replset.cli.host_option import Host
from replset.config import ReplSetConfig, parse_host
from replset.errors import ErrorCode, HostUnreachableError, ReplError

Wait = Annotated[int, typer.Option("--wait", metavar="SECONDS", help="wait so long for the members to answer")]
IfNeeded = Annotated[bool, typer.Option("--if-needed", help="it is no error when it is done already")]
NewMember = Annotated[str, typer.Argument(metavar="HOST:PORT", help="as the other members are to reach it")]
Accept = Annotated[
    bool, typer.Option("--accept", help="do it although fewer members may fail then, or the new one does not answer")
]


def initiate(
    host: Host,
    members: Annotated[list[str] | None, typer.Argument(help="HOST:PORT of each member; none: this one alone")] = None,
    config: Annotated[Path | None, typer.Option("--config", help="a whole configuration as a JSON file")] = None,
    wait: Wait = 0,
    if_needed: IfNeeded = False,
) -> None:
    """Make a new set of empty members; the set's name is the one that HOST was started with."""
    document: dict[str, object] = {}
    if config is not None:
        document = read_document(config)
    elif members:
        document["members"] = [{"_id": number, "host": member} for number, member in enumerate(members)]
    for member in [host, *(members or [])]:
        calls.wait_for_answer(member, wait)
    try:
        reply = calls.ask(host, {"replSetInitiate": document}, timeout_s=60)
    except calls.CommandFailedError as error:
        if if_needed and error.code == ErrorCode.ALREADY_INITIALIZED:
            typer.echo("the set is initiated already")
            return
        raise
    typer.echo(reply.get("info2") or "initiated; the first election follows")


def add(
    member: NewMember,
    host: Host,
    priority: Annotated[float | None, typer.Option(help="0 to 1000; 0: never primary")] = None,
    votes: Annotated[int | None, typer.Option(help="0 or 1")] = None,
    hidden: Annotated[bool, typer.Option("--hidden", help="clients do not see it (needs --priority 0)")] = False,
    arbiter: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="and then this arbiter")] = None,
    wait: Wait = 0,
    if_needed: IfNeeded = False,
    accept: Accept = False,
) -> None:
    """Add a data-bearing member; it votes once it has caught up."""
    options: dict[str, object] = {"host": member}
    if priority is not None:
        options["priority"] = priority
    if votes is not None:
        options["votes"] = votes
    if hidden:
        options["hidden"] = True
    rows = [options] if arbiter is None else [options, {"host": arbiter, "arbiterOnly": True}]
    add_all(host, rows, wait, if_needed, accept)


def add_arbiter(
    member: NewMember, host: Host, wait: Wait = 0, if_needed: IfNeeded = False, accept: Accept = False
) -> None:
    """Add an arbiter: a vote without data."""
    add_all(host, [{"host": member, "arbiterOnly": True}], wait, if_needed, accept)


def remove(
    member: Annotated[str, typer.Argument(metavar="HOST:PORT", help="as the configuration names it")],
    host: Host,
    accept: Accept = False,
) -> None:
    """Take a member out of the set; its files stay where they are."""
    config = calls.counted_config(host)
    if effect := check_effect(config, without_member(config, parse_host(member)), accept=accept):
        typer.echo(effect)
    calls.print_result(calls.on_primary(host, {"replSetRemoveMember": member}), f"{member} is removed")


def reconfig(
    file: Annotated[Path, typer.Argument(help="the new configuration as JSON, - for standard input")],
    host: Host,
    force: Annotated[bool, typer.Option("--force", help="without a majority: may lose acknowledged writes")] = False,
    accept: Accept = False,
) -> None:
    """Install an edited configuration; its version is raised for you."""
    document = read_document(file)
    current = calls.counted_config(host)
    document["version"] = int(current["version"]) + 1
    if effect := check_effect(current, document, accept=accept):
        typer.echo(effect)
    command: dict[str, object] = {"replSetReconfig": document, "force": force}
    reply = calls.ask(host, command) if force else calls.on_primary(host, command)
    calls.print_result(reply, f"configuration {document['version']} is in force")


def add_all(host: str, rows: list[dict[str, Any]], wait_s: int, if_needed: bool, accept: bool) -> None:
    """Add members one after the other; the effect of all of them is shown, and accepted, before the first.

    Waits up to `wait_s` for them to answer, for a primary, and for an earlier change to be done.
    """
    unreachable = {str(row["host"]): why for row in rows if (why := why_unreachable(str(row["host"]), wait_s))}
    for reason in unreachable.values():
        if not accept:
            raise NotAcceptedError(f"{reason}; start it first (--wait SECONDS waits for it), or add it with --accept")
        typer.echo(f"{reason}; it is added nevertheless")
    deadline = time.monotonic() + wait_s
    missing = calls.until_done(deadline, lambda: missing_rows(host, rows, if_needed, accept))
    for row in rows:
        member = str(row["host"])
        if row not in missing:
            typer.echo(f"{member} is in the set already")
            continue
        reply = calls.until_done(deadline, lambda: calls.on_primary(host, {"replSetAddMember": row}))  # noqa: B023
        done = f"{member} is added as arbiter" if row.get("arbiterOnly") else f"{member} is added"
        if member in unreachable:
            done += ", not reachable yet"
        elif not row.get("arbiterOnly"):
            done += "; it copies the data, then it votes"
        if reply.get("info"):
            typer.echo(reply["info"])
        typer.echo(done)


def why_unreachable(host: str, wait_s: int) -> str:
    """Return why `host` does not answer within `wait_s`; empty: it answers."""
    try:
        calls.wait_for_answer(host, wait_s)
    except HostUnreachableError as error:
        return error.message
    return ""


def missing_rows(host: str, rows: list[dict[str, Any]], if_needed: bool, accept: bool) -> list[dict[str, Any]]:
    """Return the rows to add, after the check of how many members may then fail."""
    config = calls.counted_config(host)
    known = {str(row["host"]) for row in config["members"]}
    missing = [row for row in rows if not if_needed or parse_host(str(row["host"])) not in known]
    after = with_members(config, missing)
    effect = check_effect(config, after, accept=accept)
    if any(row.get("arbiterOnly") for row in missing):
        effect = effect_of(ReplSetConfig.parse(config), ReplSetConfig.parse(after))
    if effect:
        typer.echo(effect)
    return missing


def read_document(path: Path) -> dict[str, object]:
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ReplError(f"cannot read {path}: {error}") from error
    try:
        return from_ejson(text)
    except ReplError as error:
        raise ReplError(f"{path}: {error.message}") from error
