"""`rollback-tools diff MANIFEST --host HOST:PORT`: each lost write at the common point, as lost, and as live now."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Annotated, Any

import typer

from replset.bson import decode
from replset.replication.lost_writes import LostDocument, LostKind, LostWrites
from replset.replication.put_back import (
    MISSING,
    Action,
    CommandKind,
    FieldRow,
    LostChange,
    Policy,
    Side,
    Standing,
    Versions,
    decide_change,
    field_rows,
    lost_changes,
    operators,
    path_text,
    standing_of,
)
from replset.replication.rollback_files import read_manifest
from rollback_tools import place
from rollback_tools.comparing import Comparing
from rollback_tools.live import Live
from rollback_tools.report import JsonReport, about, document, plain, printable, short

COLOUR = {Standing.THERE: "bright_black", Standing.CLEAN: "green", Standing.CONFLICT: "red"}
SIDE_COLOUR = {Side.LOST: "green", Side.LIVE: "cyan", Side.SAME: "bright_black", Side.BOTH: "red"}
SAYS = {
    Standing.THERE: "in the set",
    Standing.CLEAN: "unchanged since the common point",
    Standing.CONFLICT: "in conflict",
}


def diff(
    manifest: Annotated[str, typer.Argument(help=place.HELP)],
    host: Annotated[str, typer.Option(help="any member of the set, HOST:PORT of its wire port")] = "127.0.0.1:27017",
    as_json: Annotated[bool, typer.Option("--json", help="JSON for scripts instead of tables")] = False,
) -> int:
    """Each lost write beside what the set holds now, field by field.

    Exit status 0: the set has all of them. 1: something is lost.
    """
    with ExitStack() as stack:
        path = stack.enter_context(place.at_hand(manifest))
        found = read_manifest(path)
        lost = stack.enter_context(LostWrites(path.parent, found))
        live = stack.enter_context(Live(host, found.set_name))
        comparing = Comparing(lost, live, with_entries=True)
        head = {"id": found.id, "set": found.set_name, "state": found.state.value, "primary": live.primary}
        report = JsonReport(sys.stdout, head, "writes") if as_json else None
        counts: Counter[str] = Counter({standing.value: 0 for standing in Standing})
        changes = [change for change in lost_changes(lost) if change.optime > comparing.shared]
        collections = live.collections() if changes else {}
        for change in changes:
            decision = decide_change(Policy.OVERWRITE, change, collections)
            standing = Standing.CLEAN if decision.action is Action.LEAVE else decision.standing
            counts[standing.value] += 1
            if report is not None:
                report.row(change_row(change, standing))
            else:
                print_change(change, standing)
        for batch in comparing.batches():
            for row, versions in zip(batch, comparing.versions(batch), strict=True):
                standing = standing_of(versions)
                counts[standing.value] += 1
                if report is not None:
                    report.row(document_row(row, versions, standing))
                else:
                    print_document(row, versions, standing)
        if report is not None:
            report.close({"counts": counts})
        else:
            _sum_up(counts)
    return 1 if counts["clean"] or counts["conflict"] else 0


def _sum_up(counts: Counter[str]) -> None:
    parts = [f"{counts[standing.value]} {SAYS[standing]}" for standing in Standing if counts[standing.value]]
    typer.echo("; ".join(parts) or "nothing was lost")


# --- for scripts ------------------------------------------------------------------------------------------------


def document_row(row: LostDocument, versions: Versions, standing: Standing) -> dict[str, Any]:
    fields = field_rows(versions)
    return about(row) | {
        "standing": standing.value,
        "liveLastEntry": None if versions.live_last is None else str(versions.live_last),
        "beforeKnown": versions.before_known or versions.before is not None,
        "before": document(versions.before),
        "lost": document(versions.lost),
        "live": document(versions.live),
        "lostChange": change_between(versions.before, versions.lost),
        "liveChange": change_between(versions.before, versions.live),
        "fields": [
            {
                "path": list(field.path),
                **{
                    name: plain(value)
                    for name, value in (("before", field.before), ("lost", field.lost), ("live", field.live))
                    if value is not MISSING
                },
                "changedBy": field.side.value,
            }
            for field in fields
        ],
        "conflicts": [path_text(field.path) for field in fields if field.side is Side.BOTH],
    }


def change_between(before: bytes | None, after: bytes | None) -> Any:
    """`$set` and `$unset`; None where there are no two versions, they are the same, or it has no such form."""
    if before is None or after is None or before == after:
        return None
    change = operators(before, after)
    return None if change is None else plain(change)


def change_row(change: LostChange, standing: Standing) -> dict[str, Any]:
    return {
        "ns": change.ns,
        "class": "command",
        "command": change.name,
        "options": plain(dict(change.options)),
        "lastEntry": str(change.optime),
        "standing": standing.value,
    }


# --- for people -------------------------------------------------------------------------------------------------


def print_change(change: LostChange, standing: Standing) -> None:
    is_drop = change.kind is CommandKind.DROP and standing is Standing.CONFLICT
    says = "the set still has the collection" if is_drop else SAYS[standing]
    Printer().heading(printable(change.ns), f"lost {printable(change.name)}", says, standing)


def print_document(row: LostDocument, versions: Versions, standing: Standing, *, err: bool = False) -> None:
    """A heading, then a line for each field that is not the same in all versions."""
    printer = Printer(err=err)
    kind = row.kind.value if row.kind is not None else ""
    printer.heading(f"{printable(row.ns)} {short(row.id)}", f"lost {kind}", SAYS[standing], standing)
    if standing is Standing.THERE:
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

    def heading(self, about: str, lost: str, says: str, standing: Standing) -> None:
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
