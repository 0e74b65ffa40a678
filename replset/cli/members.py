"""The subcommands that change the configuration: initiate, add, add-arbiter, add-witness, remove, reconfig."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from replset.cli import calls
from replset.cli.changes import NotAcceptedError, check_effect, with_members, without_member
from replset.cli.host_option import Host
from replset.cli.plans import keep_default, run_plan, with_vote
from replset.config import ReplSetConfig, parse_host
from replset.ejson import from_ejson
from replset.errors import BadValueError, ErrorCode, HostUnreachableError, ReplError
from replset.features.administration.reconfig_effect import describe_effect
from replset.local_set import DEFAULT_FOLDER, LocalMember, LocalSet, LocalSetError
from replset.terminal import echo

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
            echo("the set is initiated already")
            return
        raise
    echo(reply.get("info2") or "initiated; the first election follows")


def add(
    member: NewMember,
    host: Host,
    priority: Annotated[float | None, typer.Option(help="0 to 1000; 0: never primary")] = None,
    votes: Annotated[int | None, typer.Option(help="0 or 1")] = None,
    hidden: Annotated[bool, typer.Option("--hidden", help="clients do not see it (needs --priority 0)")] = False,
    delay: Annotated[int, typer.Option(min=0, help="seconds that it stays behind (needs --priority 0)")] = 0,
    tag: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="a tag; may be repeated")] = None,
    spare_after: Annotated[
        int, typer.Option(min=0, help="seconds until it votes in the place of one that is gone; no vote of its own")
    ] = 0,
    no_build_indexes: Annotated[
        bool, typer.Option("--no-build-indexes", help="it builds no index but _id's (needs --priority 0)")
    ] = False,
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
    if delay:
        options["secondaryDelaySecs"] = delay
    if tag:
        options["tags"] = tags_of(tag)
    if spare_after:
        options = {**options, "spareAfterSecs": spare_after, "votes": votes or 0, "priority": priority or 0}
    if no_build_indexes:
        options["buildIndexes"] = False
    rows = [options] if arbiter is None else [options, {"host": arbiter, "arbiterOnly": True}]
    add_all(host, rows, wait, if_needed, accept)


def add_arbiter(
    member: NewMember,
    host: Host,
    start: Annotated[
        Path | None, typer.Option(metavar="DIR", help="start its process on this machine too, with its files there")
    ] = None,
    key_file: Annotated[
        Path | None, typer.Option("--key-file", help="the set's key, for --start (the key of the set in this folder)")
    ] = None,
    wait: Wait = 0,
    if_needed: IfNeeded = False,
    accept: Accept = False,
) -> None:
    """Add an arbiter: a vote without data."""
    rows: list[dict[str, Any]] = [{"host": member, "arbiterOnly": True}]
    if start is None:
        add_all(host, rows, wait, if_needed, accept)
        return
    check_startable(member, start)
    missing = missing_rows(host, rows, if_needed, accept)
    name = str(calls.ask(host, {"replSetGetConfig": 1})["config"]["_id"])
    echo(start_arbiter(host, member, start, name, key_file, auth=calls.asks_for_logins(host)))
    if not missing:
        echo(f"{member} is in the set already")
        return
    try:
        add_all(host, rows, wait, if_needed, accept, judged=True)
    except ReplError as error:
        raise ReplError(f"{error.message}; its process runs, and the same command adds it later") from error


def add_witness(
    member: NewMember, host: Host, wait: Wait = 0, if_needed: IfNeeded = False, accept: Accept = False
) -> None:
    """Add a witness: a vote, and a disk that holds the entries for majority writes, without documents."""
    add_all(host, [{"host": member, "witness": True}], wait, if_needed, accept)


def remove(
    member: Annotated[str, typer.Argument(metavar="HOST:PORT", help="as the configuration names it")],
    host: Host,
    accept: Accept = False,
) -> None:
    """Take a member out of the set; its files stay where they are."""
    config = calls.counted_config(host)
    if effect := check_effect(config, without_member(config, parse_host(member)), accept=accept):
        echo(effect)
    calls.print_result(calls.on_primary(host, {"replSetRemoveMember": member}), f"{member} is removed")


def reconfig(
    host: Host,
    file: Annotated[Path | None, typer.Argument(help="the new configuration as JSON, - for standard input")] = None,
    plan: Annotated[
        Path | None, typer.Option(metavar="FILE", help="as many safe steps as the new configuration needs")
    ] = None,
    demote: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="take this member's vote and priority away")
    ] = None,
    restore: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="give it vote and priority back, once it has caught up")
    ] = None,
    priority: Annotated[float, typer.Option(help="for --restore")] = 1,
    force: Annotated[bool, typer.Option("--force", help="without a majority: may lose acknowledged writes")] = False,
    accept: Accept = False,
) -> None:
    """Install an edited configuration, whose version is raised for you; or plan the steps to it and do them."""
    if sum(given is not None for given in (file, plan, demote, restore)) != 1:
        raise BadValueError("give one of FILE, --plan FILE, --demote HOST:PORT, --restore HOST:PORT")
    if force and file is None and demote is None:
        raise BadValueError("--force goes with FILE or --demote: a plan takes only steps that a majority agrees to")
    if plan is not None:
        run_plan(host, ReplSetConfig.parse(read_document(plan), keep=True), accept=accept)
    elif restore is not None:
        run_plan(host, with_vote(calls.counted_config(host), restore, 1, priority), accept=accept)
    elif demote is not None:
        demote_member(host, demote, force=force, accept=accept)
    elif file is not None:
        install_file(host, file, force=force, accept=accept)


def install_file(host: str, file: Path, *, force: bool, accept: bool) -> None:
    """Install the configuration in a file with one reconfig."""
    document = read_document(file)
    current = calls.counted_config(host)
    document["version"] = int(current["version"]) + 1
    if not force:
        keep_default(host, ReplSetConfig.parse(current, keep=True), ReplSetConfig.parse(document, keep=True))
    if effect := check_effect(current, document, accept=accept):
        echo(effect)
    command: dict[str, object] = {"replSetReconfig": document, "force": force}
    reply = calls.ask(host, command) if force else calls.on_primary(host, command)
    calls.print_result(reply, f"configuration {document['version']} is in force")


def demote_member(host: str, member: str, *, force: bool, accept: bool) -> None:
    """Take the vote and the priority of a member away. If it is down, fewer members may fail already: no --accept."""
    current = calls.counted_config(host)
    target = with_vote(current, member, 0, 0)
    known = ReplSetConfig.parse(current, keep=True).member_at(parse_host(member))
    rows = calls.ask(host, {"replSetGetStatus": 1})["members"]
    is_down = any(row["name"] == parse_host(member) and not row["health"] for row in rows)
    if force:
        check_effect(current, target.document(), accept=accept)
        command: dict[str, object] = {"replSetReconfig": target.document(), "force": True}
        calls.print_result(calls.on_primary(host, command), f"{member} has no vote any more")
    else:
        run_plan(host, target, accept=accept or is_down, within_ms=5_000 if is_down else 60_000)
    again = "" if known is None or known.priority in (0, 1) else f" --priority {known.priority:g}"
    echo(f"when it is back: replset reconfig --restore {member}{again}")


def tags_of(given: list[str]) -> dict[str, str]:
    """Return NAME=VALUE texts as a document."""
    for text in given:
        if not text.partition("=")[0] or "=" not in text:
            raise BadValueError(f"--tag {text!r:.60} is not NAME=VALUE")
    return {text.partition("=")[0]: text.partition("=")[2] for text in given}


def add_all(
    host: str, rows: list[dict[str, Any]], wait_s: int, if_needed: bool, accept: bool, *, judged: bool = False
) -> None:
    """Add members one after the other; the effect of all of them is shown, and accepted, before the first.

    Waits up to `wait_s` for them to answer, for a primary, and for an earlier change to be done. judged: the effect was
    shown before.
    """
    unreachable = {str(row["host"]): why for row in rows if (why := why_unreachable(str(row["host"]), wait_s))}
    for reason in unreachable.values():
        if not accept:
            raise NotAcceptedError(f"{reason}; start it first (--wait SECONDS waits for it), or add it with --accept")
    deadline = time.monotonic() + wait_s
    missing = rows if judged else calls.until_done(deadline, lambda: missing_rows(host, rows, if_needed, accept))
    for reason in unreachable.values():
        echo(reason)
    for row in rows:
        member = str(row["host"])
        if row not in missing:
            echo(f"{member} is in the set already")
            continue
        reply = calls.until_done(deadline, lambda: calls.on_primary(host, {"replSetAddMember": row}))  # noqa: B023
        kind = kind_of(row)
        done = f"{member} is added" + ("" if kind == "data member" else f" as {kind}")
        if member in unreachable:
            done += ", not reachable yet"
        elif not row.get("arbiterOnly"):
            copied = "the oplog" if row.get("witness") else "the data"
            done += f"; it copies {copied}" + ("" if row.get("votes") == 0 else ", then it votes")
        if reply.get("info"):
            echo(reply["info"])
        echo(done)


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
    known = {str(row["host"]): row for row in config["members"]}
    missing = []
    for row in rows:
        there = known.get(parse_host(str(row["host"]))) if if_needed else None
        if there is None:
            missing.append(row)
        elif kind_of(there) != kind_of(row):
            raise BadValueError(
                f"{row['host']} is in the set already as {kind_of(there)}, not as {kind_of(row)}; replset remove"
                f" {row['host']}, then add it again"
            )
    after = with_members(config, missing)
    effect = check_effect(config, after, accept=accept)
    if any(row.get("arbiterOnly") or row.get("witness") for row in missing):
        effect = describe_effect(ReplSetConfig.parse(config, keep=True), ReplSetConfig.parse(after, keep=True))
    if effect:
        echo(effect)
    return missing


def kind_of(row: Mapping[str, Any]) -> str:
    return "arbiter" if row.get("arbiterOnly") else "witness" if row.get("witness") else "data member"


def read_document(path: Path) -> dict[str, object]:
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ReplError(f"cannot read {path}: {error}") from error
    try:
        return from_ejson(text)
    except ReplError as error:
        raise ReplError(f"{path}: {error.message}") from error


LOOPBACK = ("127.0.0.1", "localhost")


def check_startable(arbiter: str, folder: Path) -> None:
    """Raise LocalSetError unless `arbiter` is a loopback address."""
    name, _, port = parse_host(arbiter).rpartition(":")
    if name not in LOOPBACK:
        raise LocalSetError(
            f"--start starts an arbiter on a loopback address, and {name} is none: run it there with `replset start"
            f" --replSet NAME --dbpath {folder} --port {port} --bind-ip {name} --key-file FILE`"
            " and what else the others have, then add it without --start"
        )


def start_arbiter(host: str, arbiter: str, folder: Path, set_name: str, key_file: Path | None, *, auth: bool) -> str:
    """Start `arbiter` with its files in `folder`, unless its process runs already. Return how to stop it.

    host: a member of the set. If it belongs to the set in `replset-data`, the arbiter becomes part of that set.
    Otherwise `folder` becomes a set of its own for `replset cluster`. auth: the set asks clients for logins.
    """
    name, _, port_text = parse_host(arbiter).rpartition(":")
    port = int(port_text)
    local = _set_of(host, folder, set_name)
    member = next((member for member in local.members if member.port == port), None)
    if member is None:
        flags = ["--advertise", name] if name != LOOPBACK[0] else []
        if key_file is not None:
            flags += ["--key-file", str(key_file.resolve())]
        if auth:
            flags.append("--auth")
        member = _planned(local, port, folder.resolve(), flags)
    if not member.is_running():
        local.start(member)
    return f"{member.name} runs as process {member.pid}; `replset cluster down --dir {local.folder}` stops it"


def _set_of(host: str, folder: Path, set_name: str) -> LocalSet:
    if (DEFAULT_FOLDER / "set.json").exists():
        local = LocalSet.load(DEFAULT_FOLDER)
        if any(member.host == parse_host(host) for member in local.members):
            return local
    if (folder / "set.json").exists():
        return LocalSet.load(folder)
    local = LocalSet(folder.resolve(), set_name)
    local.initiated = True  # the others are not in this folder
    return local


def _planned(local: LocalSet, port: int, folder: Path, flags: list[str]) -> LocalMember:
    """Add the arbiter to `set.json`, before its process starts."""
    name = f"m{len(local.members) + 1}"
    dbpath = folder if local.members else folder / name
    member = LocalMember(name, port, dbpath, dbpath.with_name(f"{dbpath.name}.log"), arbiter=True, flags=flags)
    local.members.append(member)
    local.folder.mkdir(parents=True, exist_ok=True)
    local.save()
    return member
