"""`replset cluster up|down|status`: a local set as separate processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from replset.cli.local_set import LocalMember, LocalSet, LocalSetError, free_ports, wait_until

app = typer.Typer(help="A local set as separate processes.", no_args_is_help=True)
Folder = Annotated[Path, typer.Option("--dir", help="folder of the set's files")]
DEFAULT_FOLDER = Path("replset-data")


@app.command()
def up(
    members: Annotated[int, typer.Option(min=1, max=50, help="data-bearing members")] = 3,
    arbiters: Annotated[int, typer.Option(min=0, max=7, help="members that vote and hold no data")] = 0,
    base_port: Annotated[int, typer.Option(min=1, max=60000, help="first wire port; the others follow")] = 27017,
    folder: Folder = DEFAULT_FOLDER,
    name: Annotated[str, typer.Option(help="the set's name")] = "rs0",
    test_commands: Annotated[bool, typer.Option("--enable-test-commands", help="open replSetTestCut")] = False,
) -> None:
    """Start a set, or start again what `down` stopped."""
    if (folder / "set.json").exists():
        local = LocalSet.load(folder)
        for member in local.members:
            if not member.is_running():
                local.start(member)
    else:
        folder = folder.resolve()
        local = LocalSet(folder, name)
        flags = ["--enable-test-commands"] if test_commands else []
        if arbiters > 1:
            flags.append("--allow-multiple-arbiters")
        for number, port in enumerate(free_ports(members + arbiters, base_port)):
            local.add(port, flags=flags, arbiter=number >= members)
        local.initiate()
    primary = local.wait_for_primary()
    for member in local.members:
        role = "primary" if member is primary else "arbiter" if member.arbiter else "secondary"
        typer.echo(f"{member.name}  {member.host}  {member.http}  {role}")


@app.command()
def down(folder: Folder = DEFAULT_FOLDER) -> None:
    """Stop the set's processes; its files stay."""
    local = LocalSet.load(folder)
    running = sum(member.is_running() for member in local.members)
    local.stop_all()
    typer.echo(f"{running} members stopped")


@app.command()
def status(
    folder: Folder = DEFAULT_FOLDER,
    as_json: Annotated[bool, typer.Option("--json", help="JSON for scripts instead of lines")] = False,
) -> int:
    """Which processes run, and what state each is in. Exit status 1 when one does not run."""
    local = LocalSet.load(folder)
    rows: list[dict[str, object]] = [
        {"name": m.name, "host": m.host, "http": m.http, "pid": m.pid if m.is_running() else None, "state": state_of(m)}
        for m in local.members
    ]
    if as_json:
        typer.echo(json.dumps({"set": local.name, "members": rows}, indent=2))
    else:
        for row in rows:
            typer.echo(f"{row['name']}  {row['host']}  {row['http']}  pid {row['pid'] or '-'}  {row['state']}")
    return 0 if all(row["pid"] for row in rows) else 1


def state_of(member: LocalMember) -> str:
    """One word for people: primary, secondary, arbiter, starting, stopped; or that it does not answer."""
    if not member.is_running():
        return "stopped"
    try:
        hello = wait_until(lambda: member.command({"hello": 1}), 3, "an answer")
    except LocalSetError:
        return "does not answer"
    words = {"isWritablePrimary": "primary", "secondary": "secondary", "arbiterOnly": "arbiter"}
    return next((word for field, word in words.items() if hello.get(field)), "starting")
