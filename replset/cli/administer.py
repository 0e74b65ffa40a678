"""The subcommands that look after a set: status, initiate, add, remove, reconfig, step-down, and others."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from replset.bson import from_ejson, to_ejson
from replset.cli import cluster, oplog, show
from replset.cli.changes import NotAcceptedError, check_effect, effect_of, with_members, without_member
from replset.cli.host_option import Host
from replset.cli.repair import repair as repair_dbpath
from replset.client import WireClient
from replset.config import ReplSetConfig, parse_host
from replset.errors import BadValueError, ErrorCode, HostUnreachableError, ReplError
from replset.terminal import run_app

T = TypeVar("T")
app = typer.Typer(
    help="A MongoDB-style replica set: run members and look after them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich's tables show a type for flags, which take none
    context_settings={"max_content_width": 110},
)
app.add_typer(cluster.app, name="cluster")
app.add_typer(oplog.app, name="oplog")

AsJson = Annotated[bool, typer.Option("--json", help="JSON for scripts instead of a table")]
Wait = Annotated[int, typer.Option("--wait", metavar="SECONDS", help="wait so long for the members to answer")]
IfNeeded = Annotated[bool, typer.Option("--if-needed", help="it is no error when it is done already")]
NewMember = Annotated[str, typer.Argument(metavar="HOST:PORT", help="as the other members are to reach it")]
Accept = Annotated[
    bool, typer.Option("--accept", help="do it although fewer members may fail then, or the new one does not answer")
]
DEFAULT_CATCH_UP_S = 10


class CommandFailedError(ReplError):
    """A member answered ok: 0; `code` is its code."""


def run(arguments: Sequence[str]) -> int:
    """Run one subcommand and return its exit status."""
    return run_app(app, "replset", arguments)


@app.command()
def start() -> None:
    """Run one member until SIGTERM (`replset start --help` lists its options)."""


@app.command()
def status(host: Host, json: AsJson = False) -> None:
    """Show the members, their states, how far each is behind, and what is wrong."""
    try:
        reply = ask(host, {"replSetGetStatus": 1})
    except CommandFailedError as error:
        if error.code != ErrorCode.NOT_YET_INITIALIZED:
            raise
        hint = f"make a set: replset initiate --host {host}; or have it added: replset add {host} --host MEMBER"
        raise CommandFailedError(f"{error.message}; {hint}", code=ErrorCode.NOT_YET_INITIALIZED) from error
    if json:
        typer.echo(to_ejson(reply))
    else:
        show.status(reply)


@app.command()
def conf(host: Host) -> None:
    """Print the configuration as JSON (edit it and give it to `reconfig`)."""
    typer.echo(show.pretty(ask(host, {"replSetGetConfig": 1})["config"]))


@app.command()
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
        wait_for_answer(member, wait)
    try:
        reply = ask(host, {"replSetInitiate": document}, timeout_s=60)
    except CommandFailedError as error:
        if if_needed and error.code == ErrorCode.ALREADY_INITIALIZED:
            typer.echo("the set is initiated already")
            return
        raise
    typer.echo(reply.get("info2") or "initiated; the first election follows")


@app.command()
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


@app.command("add-arbiter")
def add_arbiter(
    member: NewMember, host: Host, wait: Wait = 0, if_needed: IfNeeded = False, accept: Accept = False
) -> None:
    """Add an arbiter: a vote without data."""
    add_all(host, [{"host": member, "arbiterOnly": True}], wait, if_needed, accept)


@app.command()
def remove(
    member: Annotated[str, typer.Argument(metavar="HOST:PORT", help="as the configuration names it")],
    host: Host,
    accept: Accept = False,
) -> None:
    """Take a member out of the set; its files stay where they are."""
    config = counted_config(host)
    if effect := check_effect(config, without_member(config, parse_host(member)), accept=accept):
        typer.echo(effect)
    print_result(on_primary(host, {"replSetRemoveMember": member}), f"{member} is removed")


@app.command()
def reconfig(
    file: Annotated[Path, typer.Argument(help="the new configuration as JSON, - for standard input")],
    host: Host,
    force: Annotated[bool, typer.Option("--force", help="without a majority: may lose acknowledged writes")] = False,
    accept: Accept = False,
) -> None:
    """Install an edited configuration; its version is raised for you."""
    document = read_document(file)
    current = counted_config(host)
    document["version"] = int(current["version"]) + 1
    if effect := check_effect(current, document, accept=accept):
        typer.echo(effect)
    command: dict[str, object] = {"replSetReconfig": document, "force": force}
    reply = ask(host, command) if force else on_primary(host, command)
    print_result(reply, f"configuration {document['version']} is in force")


@app.command("step-down")
def step_down(
    host: Host,
    seconds: Annotated[int, typer.Option(min=1, help="how long it may not be elected again")] = 60,
    catch_up: Annotated[
        int | None, typer.Option(min=0, help="seconds to wait for an electable secondary (10, at most --seconds)")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="step down even if nobody caught up")] = False,
) -> None:
    """Let the primary hand over to a secondary that has everything."""
    waits = min(DEFAULT_CATCH_UP_S, seconds) if catch_up is None else catch_up
    if waits > seconds and not force:
        raise BadValueError(f"--catch-up {waits} is longer than --seconds {seconds}: it would wait beyond its end")
    command: dict[str, object] = {
        "replSetStepDown": seconds,
        "secondaryCatchUpPeriodSecs": 0 if force else waits,
        "force": force,
    }
    print_result(on_primary(host, command, timeout_s=waits + 30), "the primary stepped down")


@app.command()
def freeze(
    seconds: Annotated[int, typer.Argument(help="0 ends it")],
    host: Host,
) -> None:
    """Keep this member from becoming a candidate for a while."""
    print_result(
        ask(host, {"replSetFreeze": seconds}),
        f"{host} does not become a candidate for {seconds} s" if seconds else "unfrozen",
    )


@app.command()
def resync(
    host: Host,
    wait: Annotated[int, typer.Option("--wait", metavar="SECONDS", help="return once it has its data again")] = 0,
    force: Annotated[
        bool, typer.Option("--force", help="also of a member that lacks what this one acknowledged or knows committed")
    ] = False,
) -> None:
    """Export what only this member has, then replace its data by another member's. This ends a quarantine."""
    print_result(
        ask(host, {"replSetResync": 1, **({"force": True} if force else {})}), f"{host} copies another member's data"
    )
    deadline = time.monotonic() + wait
    while wait:
        state = state_of(host)
        if state == "SECONDARY":
            typer.echo(f"{host} is SECONDARY again")
            return
        if time.monotonic() > deadline:
            raise ReplError(f"{host} is {state} after {wait} s (see `replset status --host {host}`)")
        time.sleep(0.2)


@app.command()
def repair(
    dbpath: Annotated[Path, typer.Argument(help="the data folder of a member that does not run")],
    term: Annotated[int | None, typer.Option(help="put it into this term; nothing: only show what it holds")] = None,
    accept_data_loss: Annotated[
        bool, typer.Option("--accept-data-loss", help="go on without the entries that its disk lost")
    ] = False,
) -> None:
    """Show what a stopped member's files hold; correct a term, accept a loss (docs/core.md, docs/storage.md)."""
    for line in repair_dbpath(dbpath, term, accept_data_loss):
        typer.echo(line)


def state_of(host: str) -> str:
    """Return the state that a member reports, or its error while its data is being replaced."""
    try:
        members = ask(host, {"replSetGetStatus": 1})["members"]
    except CommandFailedError as error:
        return f"in an unknown state ({error.message})"
    return next((str(row["stateStr"]) for row in members if row.get("self")), "unknown")


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
    missing = until_done(deadline, lambda: missing_rows(host, rows, if_needed, accept))
    for row in rows:
        member = str(row["host"])
        if row not in missing:
            typer.echo(f"{member} is in the set already")
            continue
        reply = until_done(deadline, lambda: on_primary(host, {"replSetAddMember": row}))  # noqa: B023
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
        wait_for_answer(host, wait_s)
    except HostUnreachableError as error:
        return error.message
    return ""


def missing_rows(host: str, rows: list[dict[str, Any]], if_needed: bool, accept: bool) -> list[dict[str, Any]]:
    """Return the rows to add, after the check of how many members may then fail."""
    config = counted_config(host)
    known = {str(row["host"]) for row in config["members"]}
    missing = [row for row in rows if not if_needed or parse_host(str(row["host"])) not in known]
    after = with_members(config, missing)
    effect = check_effect(config, after, accept=accept)
    if any(row.get("arbiterOnly") for row in missing):
        effect = effect_of(ReplSetConfig.parse(config), ReplSetConfig.parse(after))
    if effect:
        typer.echo(effect)
    return missing


def until_done(deadline: float, action: Callable[[], T]) -> T:
    """Repeat `action` until it succeeds or the deadline has passed. NotAcceptedError is raised at once."""
    while True:
        try:
            return action()
        except NotAcceptedError:
            raise
        except ReplError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.5)


def counted_config(host: str) -> dict[str, Any]:
    """Return the current configuration, with newlyAdded where a member has no vote yet."""
    config: dict[str, Any] = ask(host, {"replSetGetConfig": 1})["config"]
    waiting = {row["_id"] for row in ask(host, {"replSetGetStatus": 1})["members"] if row.get("newlyAdded")}
    for row in config["members"]:
        if row["_id"] in waiting:
            row["newlyAdded"] = True
    return config


def wait_for_answer(host: str, wait_s: int) -> None:
    """Return when `host` answers. After `wait_s` seconds raise its error."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            ask(host, {"ping": 1}, timeout_s=5)
            return
        except HostUnreachableError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.2)


# --- commands to members -----------------------------------------------------------------------------------------


def ask(host: str, command: dict[str, object], timeout_s: float = 30.0) -> dict[str, Any]:
    """Run `command` on `host`; an error reply becomes a ReplError that names the host."""
    with WireClient(host, timeout_s=timeout_s) as client:
        reply: dict[str, Any] = client.command("admin", command)
    if reply.get("ok") != 1.0:
        text = f"{host}: {reply.get('errmsg')} ({reply.get('codeName')}, {reply.get('code')})"
        raise CommandFailedError(text, code=int(reply.get("code", 1)))
    return reply


def on_primary(host: str, command: dict[str, object], timeout_s: float = 60.0) -> dict[str, Any]:
    """Run `command` on the primary that `host` knows of."""
    hello = ask(host, {"hello": 1})
    primary = hello.get("primary")
    if primary is None:
        raise HostUnreachableError(f"{host} knows no primary (see `replset status --host {host}`)")
    return ask(str(primary), command, timeout_s=timeout_s)


def read_document(path: Path) -> dict[str, object]:
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ReplError(f"cannot read {path}: {error}") from error
    try:
        return from_ejson(text)
    except ReplError as error:
        raise ReplError(f"{path}: {error.message}") from error


def print_result(reply: dict[str, Any], otherwise: str) -> None:
    typer.echo(reply.get("info") or otherwise)
