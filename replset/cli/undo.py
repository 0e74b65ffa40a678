"""`replset undo`: takes back what was written in a span of the oplog, a dry run first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from replset.cli import calls
from replset.cli.consumers import place_of
from replset.cli.host_option import Host
from replset.ejson import from_ejson, to_ejson
from replset.features.undo.operations import Undo
from replset.operations.declared import help_of
from replset.terminal import console, echo, plain_table

MOST_SHOWN = 20
PATIENCE_S = 3_600.0
SHOWN = ("id", "applied", "to", "collections", "told", "left")


def undo(
    host: Host,
    first: Annotated[
        str | None, typer.Option("--from", metavar="OPTIME|TIME", help=help_of(Undo, "first") + " as a date")
    ] = None,
    last: Annotated[
        str | None, typer.Option("--to", metavar="OPTIME|TIME", help=help_of(Undo, "last") + " as a date")
    ] = None,
    ns: Annotated[list[str] | None, typer.Option(metavar="DB[.COLL]", help=help_of(Undo, "ns"))] = None,
    match: Annotated[str | None, typer.Option(metavar="FILTER", help=help_of(Undo, "match"))] = None,
    session: Annotated[str, typer.Option(metavar="ID", help=help_of(Undo, "session"))] = "",
    policy: Annotated[
        str, typer.Option(help=help_of(Undo, "policy") + ": skip, overwrite, keep-newer or merge")
    ] = "skip",
    redo: Annotated[str, typer.Option(metavar="ID", help=help_of(Undo, "redo"))] = "",
    apply: Annotated[bool, typer.Option("--apply", help=help_of(Undo, "apply"))] = False,
    json: Annotated[bool, typer.Option("--json", help="JSON for scripts")] = False,
) -> int:
    """Take back what was written from one moment to another. Without --apply: say what that would do.

    Exit status 1: something is left as it is; the lines say what and why.
    """
    command: dict[str, object] = {"replSetUndo": 1, "policy": policy, "apply": apply, "session": session, "redo": redo}
    command |= {name: _moment(text) for name, text in (("from", first), ("to", last)) if text is not None}
    command |= {"ns": ns} if ns else {}
    command |= {"match": from_ejson(match)} if match is not None else {}
    reply = calls.on_primary(host, command, timeout_s=PATIENCE_S)
    for line in [to_ejson({name: reply[name] for name in SHOWN})] if json else _lines(reply):
        echo(line)
    return 1 if any(row["left"] for row in reply["collections"]) else 0


def _moment(text: str) -> object:
    """An optime as `replset history` prints it, SECONDS:INC, or a date."""
    return text if re.fullmatch(r"\d+:\d+:\d+", text) else place_of(text)


def _lines(reply: Mapping[str, Any]) -> Iterator[str]:
    rows = reply["collections"]
    if not rows:
        yield "nothing was written there in that span"
        return
    changed = "changed" if reply["applied"] else "would change"
    table = plain_table("collection", changed, "unchanged", "left as it is")
    for row in rows:
        table.add_row(*(str(row[name]) for name in ("ns", "changed", "unchanged", "left")))
    console().print(table)
    yield from reply["told"]
    shown = reply["left"][:MOST_SHOWN]
    yield from (f"left: {row['ns']} {to_ejson(row['_id'])}: {row['reason']}" for row in shown)
    if more := sum(row["left"] for row in rows) - len(shown):
        yield f"left: {more} more"
    undone = f"undone; replset undo --redo {reply['id']} takes that back"
    yield undone if reply["applied"] else "nothing is written; --apply writes it"
