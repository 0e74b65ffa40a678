"""`rollback-tools diff MANIFEST --host HOST:PORT`: each lost write at the common point, as lost, and as live now."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Annotated

import typer

from replset.bson import decode
from replset.recovery.diff import Difference, RollbackDiff
from replset.recovery.live_set import LiveSet
from replset.recovery.lost_writes import LostDocument, LostKind, LostWrites
from replset.recovery.policy import (
    MISSING,
    CommandKind,
    ConflictStatus,
    FieldRow,
    LostChange,
    Side,
    Versions,
    field_rows,
    path_text,
)
from replset.recovery.report import JsonReport
from replset.replication.rollback_manifest import read_manifest
from rollback_tools import manifest_source
from rollback_tools.text import printable, short

COLOUR = {ConflictStatus.THERE: "bright_black", ConflictStatus.CLEAN: "green", ConflictStatus.CONFLICT: "red"}
SIDE_COLOUR = {Side.LOST: "green", Side.LIVE: "cyan", Side.SAME: "bright_black", Side.BOTH: "red"}
SAYS = {
    ConflictStatus.THERE: "in the set",
    ConflictStatus.CLEAN: "unchanged since the common point",
    ConflictStatus.CONFLICT: "in conflict",
}


def diff(
    manifest: Annotated[str, typer.Argument(help=manifest_source.HELP)],
    host: Annotated[str, typer.Option(help="any member of the set, HOST:PORT of its wire port")] = "127.0.0.1:27017",
    as_json: Annotated[bool, typer.Option("--json", help="JSON for scripts instead of tables")] = False,
) -> int:
    """Each lost write beside what the set holds now, field by field.

    Exit status 0: the set has all of them. 1: something is lost.
    """
    with ExitStack() as stack:
        path = stack.enter_context(manifest_source.local_manifest(manifest))
        found = read_manifest(path)
        lost = stack.enter_context(LostWrites(path.parent, found))
        live = stack.enter_context(LiveSet(host, found.set_name))
        diffing = RollbackDiff(lost, live)
        report = JsonReport(sys.stdout, diffing.head(), "writes") if as_json else None
        for difference in diffing.run():
            if report is not None:
                report.row(difference.row())
            else:
                print_difference(difference)
        counts = diffing.counts
        if report is not None:
            report.close({"counts": counts})
        else:
            _sum_up(counts)
    return 1 if counts["clean"] or counts["conflict"] else 0


def _sum_up(counts: Counter[str]) -> None:
    parts = [f"{counts[standing.value]} {SAYS[standing]}" for standing in ConflictStatus if counts[standing.value]]
    typer.echo("; ".join(parts) or "nothing was lost")


# --- for people -------------------------------------------------------------------------------------------------


def print_difference(found: Difference) -> None:
    if isinstance(found.lost, LostChange):
        print_change(found.lost, found.standing)
    elif found.versions is not None:
        print_document(found.lost, found.versions, found.standing)


def print_change(change: LostChange, standing: ConflictStatus) -> None:
    is_drop = change.kind is CommandKind.DROP and standing is ConflictStatus.CONFLICT
    says = "the set still has the collection" if is_drop else SAYS[standing]
    Printer().heading(printable(change.ns), f"lost {printable(change.name)}", says, standing)


def print_document(row: LostDocument, versions: Versions, standing: ConflictStatus, *, err: bool = False) -> None:
    """A heading, then a line for each field that is not the same in all versions."""
    printer = Printer(err=err)
    kind = row.kind.value if row.kind is not None else ""
    printer.heading(f"{printable(row.ns)} {short(row.id)}", f"lost {kind}", SAYS[standing], standing)
    if standing is ConflictStatus.THERE:
        return
    fields = [] if versions.lost is None else field_rows(versions)
    if fields:
        printer.fields(fields, before_known=versions.before_known)
    elif versions.kind is LostKind.DELETE:
        printer.line(f"    deleted; live now: {_document_text(versions.live)}")
    else:
        printer.line(f"    lost: {_document_text(versions.lost)}; not there now")


class Printer:
    """Lines to standard output or standard error, in colour on a terminal."""

    def __init__(self, *, err: bool = False) -> None:
        self._err = err
        self._colours = (sys.stderr if err else sys.stdout).isatty() and "NO_COLOR" not in os.environ

    def line(self, text: str) -> None:
        typer.echo(text, err=self._err, color=self._colours)

    def heading(self, about: str, lost: str, says: str, standing: ConflictStatus) -> None:
        self.line(f"{self._styled(about, bold=True)}  {lost}  {self._styled(says, fg=COLOUR[standing])}")

    def fields(self, fields: Sequence[FieldRow], *, before_known: bool) -> None:
        """A table with a line for each field."""
        rows = [("field", "common point", "lost", "live now")]
        for field in fields:
            before = _cell(field.before) if before_known else "?"
            rows.append((printable(path_text(field.path)), before, _cell(field.lost), _cell(field.live)))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for number, row in enumerate(rows):
            name, *cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            head = self._styled(name, fg=SIDE_COLOUR[fields[number - 1].side]) if number else name
            self.line(f"  {'    '.join([head, *cells])}".rstrip())

    def _styled(self, text: str, *, fg: str | None = None, bold: bool = False) -> str:
        return typer.style(text, fg=fg, bold=bold or None) if self._colours else text


def _cell(value: object) -> str:
    return "-" if value is MISSING else short(value)


def _document_text(raw: bytes | None) -> str:
    return "nothing" if raw is None else short(decode(raw), 200)
