"""`rollback-tools show MANIFEST`: shows everything about one rollback."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from replset.features.recovery.verify import verify_rollback
from replset.replication.rollback_manifest import FileKind, Manifest, verify_file
from replset.terminal import Text, console, echo, echo_json
from rollback_tools import manifest_source

MEANING = {
    FileKind.DOCUMENTS: "as they were on this member and are not any more",
    FileKind.BEFORE: "the same documents at the common point",
    FileKind.OPLOG: "the oplog entries that were removed",
}
WORDS = {"i": "inserted", "u": "updated", "d": "deleted", "c": "command", "n": "no-op"}


def show(
    manifest: Annotated[str, typer.Argument(help=manifest_source.HELP)],
    as_json: Annotated[bool, typer.Option("--json", help="the manifest, and what is wrong with its files")] = False,
) -> int:
    """What was lost, when, towards whom; its files, checked. Exit status 1 when a file is missing or damaged."""
    with manifest_source.local_manifest(manifest) as path:
        found = manifest_source.read_rollback(path)
        if found.from_mongod:
            checks = verify_rollback(path, found).files
            problems = {row.file.name: row.problems[0][1] if row.problems else None for row in checks}
        else:
            problems = {file.name: verify_file(path.parent, file) for file in found.files}
    if as_json:
        damaged = {name: problem for name, problem in problems.items() if problem}
        echo_json({**(mongod_document(found) if found.from_mongod else found.document()), "problems": damaged})
    else:
        _print(found, problems)
    return 1 if any(problems.values()) else 0


def mongod_document(manifest: Manifest) -> dict[str, object]:
    """What is known of a rollback of mongod's, as JSON: without what its files do not tell."""
    known = ("id", "reason", "when")
    document = manifest.document()
    rows = [{"name": file.name, "ns": file.ns, "count": file.count, "bytes": file.size} for file in manifest.files]
    return {**{name: document[name] for name in known}, "commonPoint": None, "files": rows}


def _facts(manifest: Manifest) -> list[tuple[str, str]]:
    if manifest.from_mongod:
        return [
            ("rollback", f"{manifest.id} ({manifest.reason})"),
            ("common point", 'unknown here: mongod\'s log has it ("Rollback common point")'),
            ("undone", "inserts and updates, as below; deletes and commands are not in mongod's files"),
        ]
    source = f" towards {manifest.source}" if manifest.source else ""
    operations = ", ".join(f"{count} {WORDS.get(op, op)}" for op, count in sorted(manifest.operations.items()))
    return [
        ("rollback", f"{manifest.id} ({manifest.state.value}, {manifest.reason}{source})"),
        ("member", f"{manifest.member} of {manifest.set_name}, {manifest.when}"),
        ("common point", f"{manifest.common_point}: the newest entry that stayed"),
        ("undone", f"{manifest.first} to {manifest.last}: {manifest.entries} entries ({operations})"),
    ]


def _print(manifest: Manifest, problems: dict[str, str | None]) -> None:
    for name, text in _facts(manifest):
        echo(f"{name:>13}  {text}")
    table = Table()
    for column in ("file", "namespace", "documents", "what it holds", "check"):
        table.add_column(column, overflow="fold")
    for file in manifest.files:
        problem = problems[file.name]
        verdict = Text(problem, "red") if problem else Text("ok", "green")
        table.add_row(file.name, file.ns, str(file.count), MEANING[file.kind], verdict)
    console().print(table)
