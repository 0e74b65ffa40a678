"""`rollback-tools list DBPATH`: the rollbacks of one member, oldest first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from replset.errors import CorruptDataError, ReplError
from replset.replication.rollback_manifest import (
    FileKind,
    Manifest,
    acknowledged,
    id_order,
    is_manifest_name,
    read_manifest,
    rollback_folder,
)
from replset.terminal import console
from rollback_tools import manifest_source

HELP = "a member's dbpath, or its rollback folder; http://HOST:PORT: those of all members, as that one lists them"

STATE_STYLE = {"finished": "green", "exported": "cyan", "planned": "bold yellow", "abandoned": "dim"}
MEANING = {
    "planned": "[bold yellow]planned[/]: not settled yet; start the member, or it was stopped in the middle",
    "abandoned": "[dim]abandoned[/]: nothing was undone",
}


def list_rollbacks(
    dbpath: Annotated[str, typer.Argument(help=HELP)],
    as_json: Annotated[bool, typer.Option("--json", help="JSON for scripts instead of a table")] = False,
) -> int:
    """What this member's rollbacks took: when, how much, and where it is written.

    Exit status 1 when a manifest cannot be read; the others are listed all the same.
    """
    if manifest_source.is_remote(dbpath):
        return _list_all_members(dbpath, as_json)
    if not Path(dbpath).is_dir():
        raise ReplError(f"{dbpath} is not a folder")
    folder = rollback_folder(dbpath)
    manifests, damaged = read_all(folder)
    if as_json:
        rows = [{**row.document(), "acknowledged": acknowledged(folder, row.id)} for row in manifests]
        document = {"rollbacks": rows, "damaged": damaged}
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
    elif manifests:
        _print(manifests, folder)
    else:
        typer.echo(f"no rollbacks in {dbpath}")
    for reason in damaged.values():
        typer.echo(f"rollback-tools: {reason}", err=True)
    return 1 if damaged else 0


def _list_all_members(address: str, as_json: bool) -> int:
    """As one member lists the rollbacks of all."""
    rows = manifest_source.list_remote(address)
    damaged = {str(row["id"]): str(row["error"]) for row in rows if "error" in row}
    sound = [row for row in rows if "error" not in row]
    if as_json:
        typer.echo(json.dumps({"rollbacks": sound, "damaged": damaged}, indent=2, ensure_ascii=False))
    elif sound:
        _print_rows(sound)
    else:
        typer.echo("no rollbacks on any member")
    for reason in damaged.values():
        typer.echo(f"rollback-tools: {reason}", err=True)
    return 1 if damaged else 0


def _print_rows(rows: list[dict[str, Any]]) -> None:
    out = console()
    table = Table()
    for column in ("member", "rollback", "state", "common point", "undone", "entries", "acknowledged"):
        table.add_column(column, overflow="fold")
    for row in rows:
        span = row["range"]
        undone = f"{span['first']} to {span['last']}"
        cells = (row["member"], row["id"], row["state"], row["commonPoint"], undone, span["entries"])
        table.add_row(*(escape(str(cell)) for cell in cells), escape(str(row["acknowledged"] or "-")))
    out.print(table)
    newest = rows[-1]
    if newest.get("httpAddress"):
        address = f"http://{newest['httpAddress']}{manifest_source.ROUTE}/{newest['id']}"
        out.print(f"See one: rollback-tools show {escape(address)}", highlight=False, soft_wrap=True)


def read_all(folder: Path) -> tuple[list[Manifest], dict[str, str]]:
    """The manifests of a folder, oldest first; and file name -> what is wrong, of those that cannot be read."""
    found: list[Manifest] = []
    damaged: dict[str, str] = {}
    for path in sorted(folder.iterdir()):
        if not is_manifest_name(path.name):
            continue
        try:
            found.append(read_manifest(path))
        except CorruptDataError as error:
            damaged[path.name] = error.message
        except OSError as error:
            damaged[path.name] = f"{path.name} cannot be read: {error.strerror}"
    return sorted(found, key=lambda manifest: id_order(manifest.id)), damaged


def _print(manifests: list[Manifest], folder: Path) -> None:
    out = console()
    table = Table()
    for column in ("rollback", "state", "common point", "undone", "entries", "documents", "namespaces", "acknowledged"):
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
            escape(", ".join(sorted({file.ns for file in lost})) or "-"),
            escape(acknowledged(folder, manifest.id) or "-"),
        )
    out.print(table)
    for state, meaning in MEANING.items():
        if any(manifest.state.value == state for manifest in manifests):
            out.print(meaning)
    newest = escape(str(folder / f"{manifests[-1].id}.json"))
    out.print(f"See one: rollback-tools show {newest}", highlight=False, soft_wrap=True)
