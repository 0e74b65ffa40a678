"""`rollback-tools diff MANIFEST --host HOST:PORT`: shows each lost write beside what the set has now."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Annotated

import typer

from replset.bson import decode
from replset.features.recovery.compare import Difference, RollbackDiff
from replset.features.recovery.live_set import LiveSet
from replset.features.recovery.lost_writes import CommandKind, LostCommand, LostDocument, LostKind, LostWrites
from replset.features.recovery.policy import MISSING, ConflictStatus, FieldRow, Side, Versions, field_rows
from replset.features.recovery.report import JsonReport
from replset.long_work import LongWork
from replset.terminal import echo
from replset.text import printable
from rollback_tools import manifest_source
from rollback_tools.bson_text import short

STATUS_COLOUR = {
    ConflictStatus.THERE: "bright_black",
    ConflictStatus.CLEAN: "green",
    ConflictStatus.CONFLICT: "red",
}
SIDE_COLOUR = {Side.LOST: "green", Side.LIVE: "cyan", Side.SAME: "bright_black", Side.BOTH: "red"}
STATUS_TEXT = {
    ConflictStatus.THERE: "in the set",
    ConflictStatus.CLEAN: "unchanged since the common point",
    ConflictStatus.CONFLICT: "in conflict",
}


def diff(
    manifest: Annotated[str, typer.Argument(help=manifest_source.HELP)],
    host: Annotated[str, typer.Option(help=manifest_source.HOST_HELP)] = "127.0.0.1:27017",
    common_point: Annotated[str, typer.Option(help=manifest_source.COMMON_POINT_HELP)] = "",
    as_json: Annotated[bool, typer.Option("--json", help="JSON for scripts instead of tables")] = False,
) -> int:
    """Each lost write beside what the set holds now, field by field.

    Exit status 0: the set has all of them. 1: something is lost.
    """
    with ExitStack() as stack:
        work = stack.enter_context(LongWork("rollback-tools"))
        path = stack.enter_context(manifest_source.local_manifest(manifest, work))
        work.begin("reading the files of the rollback")
        found = manifest_source.with_common_point(manifest_source.read_rollback(path), common_point)
        lost = stack.enter_context(LostWrites(path.parent, found))
        live = stack.enter_context(LiveSet(manifest_source.target_of(host), found.set_name or None))
        rollback_diff = RollbackDiff(lost, live)
        report = JsonReport(sys.stdout, rollback_diff.head(), "writes") if as_json else None
        work.begin("comparing with the set", rollback_diff.total, "lost writes")
        for difference in rollback_diff.run():
            work.on_row()
            if report is not None:
                report.row(difference.row())
            else:
                print_difference(difference)
        work.close()
        counts = rollback_diff.counts
        if report is not None:
            report.close({"counts": counts})
        else:
            parts = [
                f"{counts[status.value]} {STATUS_TEXT[status]}" for status in ConflictStatus if counts[status.value]
            ]
            echo("; ".join(parts) or "nothing was lost")
            manifest_source.tell_unknown(found, live)
    return 1 if counts["clean"] or counts["conflict"] else 0


def print_difference(found: Difference) -> None:
    if found.versions is not None and isinstance(found.lost, LostDocument):
        print_document(found.lost, found.versions, found.status)
    elif isinstance(found.lost, LostCommand):
        is_drop = found.lost.kind is CommandKind.DROP and found.status is ConflictStatus.CONFLICT
        text = "the set still has the collection" if is_drop else STATUS_TEXT[found.status]
        Printer().heading(printable(found.lost.ns), f"lost {printable(found.lost.name)}", text, found.status)


def print_document(row: LostDocument, versions: Versions, status: ConflictStatus, *, err: bool = False) -> None:
    """Print a heading, then a line for each field that is not the same in all versions."""
    printer = Printer(err=err)
    kind = row.kind.value if row.kind is not None else ""
    printer.heading(f"{printable(row.ns)} {short(row.id)}", f"lost {kind}", STATUS_TEXT[status], status)
    if status is ConflictStatus.THERE:
        return
    fields = [] if versions.lost is None else field_rows(versions)
    if versions.before is None and versions.kind is LostKind.WRITE:
        fields = [field for field in fields if field.side is not Side.SAME]  # two ways: what both have is no difference
    if fields and versions.live is not None:
        printer.fields(fields, before_known=versions.before_known or versions.before is not None)
    elif versions.kind is LostKind.DELETE:
        printer.line(f"    deleted; live now: {_document_text(versions.live)}")
    else:
        printer.line(f"    lost: {_document_text(versions.lost)}; not there now")


class Printer:
    """Prints lines to standard output or standard error, in colour on a terminal."""

    def __init__(self, *, err: bool = False) -> None:
        self._err = err
        self._colours = (sys.stderr if err else sys.stdout).isatty() and "NO_COLOR" not in os.environ

    def line(self, text: str) -> None:
        typer.echo(text, err=self._err, color=self._colours)

    def heading(self, subject: str, lost: str, text: str, status: ConflictStatus) -> None:
        self.line(f"{self._styled(subject, bold=True)}  {lost}  {self._styled(text, fg=STATUS_COLOUR[status])}")

    def fields(self, fields: Sequence[FieldRow], *, before_known: bool) -> None:
        """Print a table with a line for each field."""
        rows = [("field", "common point", "lost", "live now")]
        for field in fields:
            before = _cell(field.before) if before_known else "?"
            rows.append((printable(field.name), before, _cell(field.lost), _cell(field.live)))
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
