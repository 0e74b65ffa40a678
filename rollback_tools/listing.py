"""`rollback-tools list DBPATH`: the rollbacks of one member, oldest first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from replset.errors import ReplError
from replset.replication.rollback_files import FileKind, list_manifests

STATE_STYLE = {"finished": "green", "exported": "cyan", "planned": "bold yellow", "abandoned": "dim"}


def list_rollbacks(
    dbpath: Annotated[Path, typer.Argument(help="a member's dbpath, or its rollback folder")],
    as_json: Annotated[bool, typer.Option("--json", help="JSON for scripts instead of a table")] = False,
) -> None:
    """What this member's rollbacks took: when, how much, and where it is written."""
    if not dbpath.is_dir():
        raise ReplError(f"{dbpath} is not a folder")
    manifests = list_manifests(dbpath)
    if as_json:
        typer.echo(json.dumps({"rollbacks": [manifest.document() for manifest in manifests]}, indent=2))
        return
    if not manifests:
        typer.echo(f"no rollbacks in {dbpath}")
        return
    console = Console()
    table = Table()
    for column in ("rollback", "state", "common point", "undone", "entries", "documents", "namespaces"):
        table.add_column(column, overflow="fold")
    for manifest in manifests:
        lost = [file for file in manifest.files if file.kind is FileKind.DOCUMENTS]
        state = manifest.state.value
        table.add_row(
            manifest.id,
            f"[{STATE_STYLE.get(state, 'red')}]{escape(state)}[/]",
            str(manifest.common_point),
            f"{manifest.first} to {manifest.last}",
            str(manifest.entries),
            str(sum(file.count for file in lost)),
            escape(", ".join(sorted({file.ns for file in lost}))),
        )
    console.print(table)
