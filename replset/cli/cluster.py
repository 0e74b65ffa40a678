"""Has `replset cluster up|down|status`, which run a local set as separate processes."""

from __future__ import annotations

import contextlib
import os
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer

from replset.cli.start_options import all_options, variable_of
from replset.config import MAX_MEMBERS, MAX_VOTERS
from replset.core.member_state import MemberState
from replset.errors import ReplError
from replset.local_set import DEFAULT_FOLDER, LocalMember, LocalSet, LocalSetError, free_ports, wait_until
from replset.processes import lock_holder
from replset.terminal import echo, echo_json

app = typer.Typer(help="A local set as separate processes.", no_args_is_help=True)
Folder = Annotated[Path, typer.Option("--dir", help="folder of the set's files")]
OPLOG_SIZE = "--oplog-size-mb"
DEFAULT_NAME, DEFAULT_MEMBERS, DEFAULT_PORT = "rs0", 3, 27017
COMPLETE_WITHIN_S = 30


@app.command()
def up(
    members: Annotated[
        int | None, typer.Option(min=1, max=50, help="data-bearing members, of which at most 7 vote (3)")
    ] = None,
    arbiters: Annotated[int | None, typer.Option(min=0, max=6, help="members that vote, without data (0)")] = None,
    witnesses: Annotated[
        int | None, typer.Option(min=0, max=6, help="members that vote and keep the oplog, without documents (0)")
    ] = None,
    base_port: Annotated[
        int | None, typer.Option(min=1, max=60000, help="first wire port; the others follow (27017)")
    ] = None,
    folder: Folder = DEFAULT_FOLDER,
    name: Annotated[str | None, typer.Option(help="the set's name (rs0)")] = None,
    test_commands: Annotated[bool, typer.Option("--enable-test-commands", help="open fail points and cuts")] = False,
    oplog_size: Annotated[int | None, typer.Option(OPLOG_SIZE, min=1, help="size of each member's oplog (990)")] = None,
    election_timeout: Annotated[
        int | None, typer.Option("--election-timeout", metavar="MS", min=100, help="settings.electionTimeoutMillis")
    ] = None,
    heartbeat_interval: Annotated[
        int | None, typer.Option("--heartbeat-interval", metavar="MS", min=20, help="settings.heartbeatIntervalMillis")
    ] = None,
) -> None:
    """Start a set, restart what `down` stopped, or continue where an earlier `up` failed."""
    options = {"electionTimeoutMillis": election_timeout, "heartbeatIntervalMillis": heartbeat_interval}
    settings: dict[str, object] = {option: value for option, value in options.items() if value is not None}
    if (folder / "set.json").exists():
        local = LocalSet.load(folder)
        refuse_other_options(local, members, arbiters, witnesses, base_port, name, test_commands)
        refuse_other_settings(local, settings, oplog_size)
        if not local.initiated:
            local.leave_taken_ports()
    else:
        local = planned_set(
            folder.resolve(),
            name or DEFAULT_NAME,
            DEFAULT_MEMBERS if members is None else members,
            arbiters or 0,
            witnesses or 0,
            DEFAULT_PORT if base_port is None else base_port,
            [
                *(["--enable-test-commands"] if test_commands else []),
                *([OPLOG_SIZE, str(oplog_size)] if oplog_size is not None else []),
            ],
            settings,
        )
    from replset.features.all import OPTIONS  # with the storage, which no other command here needs

    if unused := sorted(name for field in all_options(OPTIONS) if (name := variable_of(field.name)) in os.environ):
        echo(f"not for the members of a local set: {', '.join(unused)}; see `replset start`", err=True)
    try:
        primary = bring_up(local)
        store_default(local, primary)
    except ReplError as error:
        raise LocalSetError(
            f"{error.message}; correct that, then `replset cluster up --dir {folder}` continues from here, and"
            f" `replset cluster down --dir {folder}` stops what runs"
        ) from error
    with contextlib.suppress(LocalSetError):  # a large initial sync goes on behind; the member is shown as starting
        wait_until(local.is_complete, COMPLETE_WITHIN_S, "all members to be in service")
    for member in local.members:
        echo(f"{member.name}  {member.host}  {member.http}  {state_of(member)}")


def planned_set(
    folder: Path,
    name: str,
    members: int,
    arbiters: int,
    witnesses: int,
    base_port: int,
    flags: list[str],
    settings: dict[str, object],
) -> LocalSet:
    """Make a new set. All of it is in `set.json` before the first process starts, so that another `up` can continue."""
    if arbiters + witnesses >= MAX_VOTERS or members + arbiters + witnesses > MAX_MEMBERS:
        raise LocalSetError(
            f"a set has at most {MAX_MEMBERS} members; at most {MAX_VOTERS} of them vote, all arbiters and witnesses"
            " and at least one member with data"
        )
    local = LocalSet(folder, name)
    local.base_port = base_port
    local.settings = settings
    local.stores_default = arbiters > 0
    if arbiters > 1:
        flags.append("--allow-multiple-arbiters")
    for number, port in enumerate(free_ports(members + arbiters + witnesses, base_port)):
        is_witness = number >= members + arbiters
        local.plan(port, flags=flags, arbiter=number >= members and not is_witness, witness=is_witness)
    return local


def bring_up(local: LocalSet) -> LocalMember:
    """Start the members that do not run, initiate the set if needed, and return its primary."""
    for member in local.members:
        if not member.is_running() and (pid := local.take_over(member)):
            echo(f"{member.name} runs already, started by hand as process {pid}: it is taken over")
    launched = [member for member in local.members if not member.is_running()]
    for member in launched:
        local.launch(member)
    for member in local.members:
        if member in launched:
            local.wait_until_answers(member)
        elif (pid := wait_until(member.answering_pid, 60, f"{member.name} to answer")) != member.pid:
            raise LocalSetError(f"another process than {member.name} answers on {member.host} (pid {pid})")
    if not local.has_config():
        local.initiate()
        if no_vote := [member.name for member in local.without_vote()]:
            echo(f"without a vote, since at most {MAX_VOTERS} members vote: {', '.join(no_vote)}")
    try:
        return local.wait_for_primary()
    except LocalSetError as error:
        raise LocalSetError(f"{error.message}{why_no_primary(local)}") from error


def store_default(local: LocalSet, primary: LocalMember) -> None:
    """Store majority as the default write concern of a new set, if its arbiters would make it {w: 1} (map C16, D7)."""
    if not local.stores_default:
        return
    found: dict[str, Any] = primary.command({"getDefaultRWConcern": 1})
    if found.get("defaultWriteConcernSource") == "implicit" and found["defaultWriteConcern"].get("w") == 1:
        command: dict[str, object] = {"setDefaultRWConcern": 1, "defaultWriteConcern": {"w": "majority"}}
        reply = primary.command(command, timeout_s=60)
        if reply.get("ok") != 1.0:
            raise LocalSetError(f"the default write concern could not be stored: {reply.get('errmsg')}")
        echo("the default write concern is {w: 'majority'}: with these arbiters it would have been {w: 1}")
    local.stores_default = False
    local.save()


def why_no_primary(local: LocalSet) -> str:
    """Return what a member's status reports as wrong, as the end of a message; empty: nothing."""
    with contextlib.suppress(ReplError):
        reply: dict[str, Any] = local.members[0].command({"replSetGetStatus": 1})
        return "".join(f": {remark['why']} (next: {remark['next']})" for remark in reply.get("remarks", ())[:1])
    return ""


def refuse_other_options(
    local: LocalSet,
    members: int | None,
    arbiters: int | None,
    witnesses: int | None,
    base_port: int | None,
    name: str | None,
    test_commands: bool,
) -> None:
    """Raise LocalSetError for an option that the set in the folder was not made with. It is not ignored."""
    has_arbiters = sum(member.arbiter for member in local.members)
    has_witnesses = sum(member.witness for member in local.members)
    made_with = {
        "--members": (members, len(local.members) - has_arbiters - has_witnesses),
        "--arbiters": (arbiters, has_arbiters),
        "--witnesses": (witnesses, has_witnesses),
        "--base-port": (base_port, local.base_port or base_port),
        "--name": (name, local.name),
    }
    for option, (given, current) in made_with.items():
        if given is not None and given != current:
            raise LocalSetError(
                f"{option} {given}: the set in {local.folder} was made with {current}; leave the option out, or make"
                " another set with --dir"
            )
    if test_commands and not all("--enable-test-commands" in member.flags for member in local.members):
        raise LocalSetError(f"--enable-test-commands: the set in {local.folder} was made without; make another one")


def refuse_other_settings(local: LocalSet, settings: dict[str, object], oplog_size: int | None) -> None:
    """Raise LocalSetError for a setting that the set was not made with: the configuration has it now."""
    for name, value in settings.items():
        if local.settings.get(name) != value:
            where = f"the set in {local.folder} was made with another value"
            raise LocalSetError(f"settings.{name} {value}: {where}; `replset reconfig` changes it")
    for member in local.members if oplog_size is not None else ():
        if (OPLOG_SIZE, str(oplog_size)) not in pairwise(member.flags):
            raise LocalSetError(f"{OPLOG_SIZE} {oplog_size}: the set in {local.folder} was made with another size")


@app.command()
def down(folder: Folder = DEFAULT_FOLDER) -> int:
    """Stop the set's processes; the files stay. Exit status 1: a process was not stopped."""
    local = LocalSet.load(folder)
    running = sum(member.is_running() for member in local.members)
    refused = local.stop_all()
    for reason in refused:
        echo(reason, err=True)
    echo(f"{running - sum(member.is_running() for member in local.members)} members stopped")
    return 1 if refused else 0


@app.command()
def status(
    folder: Folder = DEFAULT_FOLDER,
    as_json: Annotated[bool, typer.Option("--json", help="JSON for scripts instead of lines")] = False,
) -> int:
    """Show which processes run, and the state of each. Exit status 1: one does not run."""
    local = LocalSet.load(folder)
    rows: list[dict[str, object]] = [
        {"name": m.name, "host": m.host, "http": m.http, "pid": m.pid if m.is_running() else None, "state": state_of(m)}
        for m in local.members
    ]
    if as_json:
        echo_json({"set": local.name, "members": rows})
    else:
        for row in rows:
            echo(f"{row['name']}  {row['host']}  {row['http']}  pid {row['pid'] or '-'}  {row['state']}")
    return 0 if all(row["pid"] for row in rows) else 1


def state_of(member: LocalMember) -> str:
    """Return a word for people: primary, secondary, arbiter, witness, removed, starting, stopped; or what is wrong."""
    if not member.is_running():
        other = lock_holder(member.dbpath)
        return f"runs as process {other}, not started here" if other else "stopped"
    try:
        if wait_until(member.answering_pid, 3, "an answer") != member.pid:
            return "another process answers"
        hello = wait_until(lambda: member.command({"hello": 1}), 3, "an answer")
    except LocalSetError:
        return "does not answer"
    words = {
        "isWritablePrimary": "primary",
        "secondary": "secondary",
        "arbiterOnly": member.role_without_data or "arbiter",
    }
    if word := next((word for field, word in words.items() if hello.get(field)), ""):
        return word
    status = member.command({"replSetGetStatus": 1})
    return "removed" if status.get("myState") == MemberState.REMOVED else "starting"
