"""`replset cluster up|down|status`: a local set as separate processes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from replset.cli.local_set import LocalSet, LocalSetError, free_ports, wait_until

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
def status(folder: Folder = DEFAULT_FOLDER) -> int:
    """Which processes run, and what state each is in. Exit status 1 when one does not run."""
    local = LocalSet.load(folder)
    for member in local.members:
        state = "stopped"
        if member.is_running():
            try:
                hello = wait_until(lambda member=member: member.command({"hello": 1}), 3, "an answer")  # type: ignore[misc]
                state = next(
                    (word for word in ("isWritablePrimary", "secondary", "arbiterOnly") if hello.get(word)), "starting"
                )
                state = {"isWritablePrimary": "primary", "arbiterOnly": "arbiter"}.get(state, state)
            except LocalSetError:
                state = "does not answer"
        typer.echo(f"{member.name}  {member.host}  {member.http}  pid {member.pid or '-'}  {state}")
    return 0 if all(member.is_running() for member in local.members) else 1
