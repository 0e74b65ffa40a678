"""`rollback-tools list DBPATH`: lists the rollbacks of one member, or of all members, oldest first."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from replset.client import http_url
from replset.errors import CorruptDataError, ReplError
from replset.features.recovery import mongod_files
from replset.replication.rollback_manifest import (
    FileKind,
    Manifest,
    acknowledged,
    id_order,
    is_manifest_name,
    read_manifest,
    rollback_folder,
)
from replset.terminal import Text, console, echo, echo_json
from rollback_tools import manifest_source

Row = dict[str, Any]
HELP = (
    "a member's or a mongod's dbpath, or its rollback folder; http://HOST:PORT: those of all members, as that one lists"
    " them"
)

STATE_STYLE = {"finished": "green", "exported": "cyan", "planned": "bold yellow", "abandoned": "dim"}
MEANING = {
    "planned": "planned: not settled yet; start the member, or it was stopped in the middle",
    "abandoned": "abandoned: nothing was undone",
}


def list_rollbacks(
    dbpath: Annotated[str, typer.Argument(help=HELP)],
    as_json: Annotated[bool, typer.Option("--json", help="JSON for scripts instead of a table")] = False,
) -> int:
    """What this member's rollbacks took: when, how much, and where it is written.

    Exit status 1 when a manifest cannot be read; the others are listed all the same.
    """
    is_remote = manifest_source.is_remote(dbpath)
    if is_remote:
        rows, damaged = manifest_source.list_remote(dbpath)
    elif Path(dbpath).is_dir():
        folder = rollback_folder(dbpath)
        if files := mongod_files.files_in(folder):
            return _list_mongods(folder, files, as_json=as_json)
        rows, damaged = read_folder(folder)
    else:
        raise ReplError(f"{dbpath} is not a folder")
    if as_json:
        echo_json({"rollbacks": rows, "damaged": damaged})
    elif not rows:
        echo("no rollbacks on any member" if is_remote else f"no rollbacks in {dbpath}")
    elif is_remote:
        _print_all_members(rows)
    else:
        _print_member(rows, rollback_folder(dbpath))
    for reason in damaged.values():
        echo(f"rollback-tools: {reason}", err=True)
    return 1 if damaged else 0


def _list_mongods(folder: Path, files: list[mongod_files.MongodFile], *, as_json: bool) -> int:
    """List what mongod wrote, without opening a file: also encrypted ones are told of."""
    rows = [
        {
            "id": stamp,
            "commonPoint": None,
            "files": [
                {
                    "name": file.path.relative_to(folder).as_posix(),
                    "ns": file.collection,
                    "bytes": file.path.stat().st_size,
                    "encrypted": file.is_encrypted,
                }
                for file in group
            ],
        }
        for stamp, group in ((stamp, list(group)) for stamp, group in groupby(files, key=lambda file: file.stamp))
    ]
    if as_json:
        echo_json({"rollbacks": rows, "damaged": {}})
        return 0
    cells = []
    for row in rows:
        size = sum(file["bytes"] for file in row["files"])
        encrypted = sum(file["encrypted"] for file in row["files"])
        readable = Text(f"{encrypted} encrypted, not to be read here", "red") if encrypted else Text("yes", "green")
        names = ", ".join(dict.fromkeys(str(file["ns"]) for file in row["files"]))
        cells.append([row["id"], "unknown", str(len(row["files"])), str(size), names, readable])
    _print_table(("rollback of mongod", "common point", "files", "bytes", "collections", "readable"), cells)
    echo(f"See one: rollback-tools show {folder / rows[-1]['id']}")
    return 0


def read_folder(folder: Path) -> tuple[list[Row], dict[str, str]]:
    """The manifests of a folder as documents, oldest first; and file name -> error for those that cannot be read."""
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
    found.sort(key=lambda manifest: id_order(manifest.id))
    return [{**row.document(), "acknowledged": acknowledged(folder, row.id)} for row in found], damaged


def _print_all_members(rows: list[Row]) -> None:
    columns = ("member", "rollback", "state", "common point", "undone", "entries", "acknowledged")
    _print_table(columns, [[str(row["member"]), *_start(row), _end(row)] for row in rows])
    newest = rows[-1]
    if newest.get("httpAddress"):
        address = f"{http_url(newest['httpAddress'])}{manifest_source.ROUTE}/{newest['id']}"
        echo(f"See one: rollback-tools show {address}")


def _print_member(rows: list[Row], folder: Path) -> None:
    columns = ("rollback", "state", "common point", "undone", "entries", "documents", "namespaces", "acknowledged")
    cells: list[list[str | Text]] = []
    for row in rows:
        rollback, state, *start = _start(row)
        lost = [file for file in row["files"] if file["kind"] == FileKind.DOCUMENTS.value]
        documents = str(sum(file["count"] for file in lost))
        namespaces = ", ".join(sorted({file["ns"] for file in lost})) or "-"
        styled = Text(state, STATE_STYLE.get(state, "red"))
        cells.append([rollback, styled, *start, documents, namespaces, _end(row)])
    _print_table(columns, cells)
    for state, meaning in MEANING.items():
        if any(row["state"] == state for row in rows):
            echo(meaning)
    newest = folder / f"{rows[-1]['id']}.json"
    echo(f"See one: rollback-tools show {newest}")


def _start(row: Row) -> list[str]:
    """The cells of both tables: rollback, state, common point, what was undone, entries."""
    span = row["range"]
    cells = (row["id"], row["state"], row["commonPoint"], f"{span['first']} to {span['last']}", span["entries"])
    return [str(cell) for cell in cells]


def _end(row: Row) -> str:
    return str(row["acknowledged"] or "-")


def _print_table(columns: tuple[str, ...], rows: Sequence[Sequence[str | Text]]) -> None:
    table = Table()
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console().print(table)
