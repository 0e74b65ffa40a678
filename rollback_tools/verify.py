"""`rollback-tools verify MANIFEST`: checks every file of one rollback against its manifest, document by document."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Group
from rich.table import Table

from replset.features.recovery.verify import RollbackCheck, verify_rollback
from replset.long_work import LongWork
from replset.terminal import Text, console, echo, echo_json
from rollback_tools import manifest_source


def verify(
    manifest: Annotated[str, typer.Argument(help=manifest_source.HELP)],
    as_json: Annotated[bool, typer.Option("--json", help="JSON for scripts instead of a table")] = False,
) -> int:
    """Check sizes, SHA-256, counts, each document, and that entries and documents belong together. Of mongod's files:
    each document.

    Exit status 1 when anything is damaged; file and byte are named.
    """
    with LongWork("rollback-tools") as work, manifest_source.local_manifest(manifest, work) as path:
        rollback = manifest_source.read_rollback(path)
        work.begin("checking the files", sum(file.size for file in rollback.files), "B")
        found = verify_rollback(path, rollback, work.advance)
    if as_json:
        echo_json(found.document())
    else:
        _print(found)
    return 0 if found.is_sound else 1


def _print(found: RollbackCheck) -> None:
    out = console()
    table = Table()
    for column in ("file", "documents", "bytes", "check"):
        table.add_column(column, overflow="fold")
    for row in found.files:
        problems = [text if offset is None else f"byte {offset}: {text}" for offset, text in row.problems]
        verdict = Group(*(Text(text, "red") for text in problems)) if problems else Text("ok", "green")
        table.add_row(row.file.name, str(row.count), str(row.size), verdict)
    out.print(table)
    for text in found.problems:
        out.print(Text(text, "red"))
    if found.is_sound:
        echo(f"{found.id} is sound")
