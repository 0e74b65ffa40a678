"""`replset history`: every version of one document that a member still knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from replset.bson import ExtendedJSONError
from replset.cli import calls
from replset.cli.consumers import place_of
from replset.cli.host_option import Host
from replset.cli.why import clock
from replset.ejson import from_ejson_value, load_json, to_ejson
from replset.features.history.operations import DocumentHistory
from replset.operations.declared import help_of
from replset.terminal import echo

LONGEST_LINE = 200
MOST_IN_ANSWER = 1_000


def history(
    host: Host,
    ns: Annotated[str, typer.Argument(metavar="DB.COLL", help="the collection")],
    id_: Annotated[str, typer.Argument(metavar="ID", help="the _id as Extended JSON; what is none is a string")],
    at: Annotated[
        str | None, typer.Option(help="only the version of this moment: SECONDS:INC, or a date as 2026-11-23T05:00:00Z")
    ] = None,
    field: Annotated[str, typer.Option(help=help_of(DocumentHistory, "field"))] = "",
    archive: Annotated[bool, typer.Option("--archive", help=help_of(DocumentHistory, "archive"))] = False,
    json: Annotated[bool, typer.Option("--json", help="one JSON document a line")] = False,
) -> None:
    """Show every version of one document: when, by which session, what changed, and which rollback took one away."""
    command: dict[str, object] = {"replSetDocumentHistory": ns, "id": id_of(id_), "field": field, "archive": archive}
    command["limit"] = MOST_IN_ANSWER
    if at is not None:
        command["at"] = place_of(at)
    replies = answers(host, command)
    if at is not None:
        replies = iter(of_moment(list(replies)))
    is_empty = True
    for reply in replies:
        for version in reply["versions"]:
            is_empty = False
            for line in [to_ejson(version)] if json else lines_of(version):
                echo(line)
    for line in [] if json else notes_on(reply, is_empty=is_empty):
        echo(line)


def id_of(text: str) -> object:
    try:
        return from_ejson_value(load_json(text))
    except ExtendedJSONError:
        return text


def answers(host: str, command: dict[str, object]) -> Iterator[dict[str, Any]]:
    """All pages of the history, oldest first."""
    after: dict[str, object] = {}
    while True:
        reply = calls.ask(host, command | after)
        yield reply
        if reply["next"] is None:
            return
        after = {"after": reply["next"]}


def of_moment(replies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The newest version of all these pages, as one."""
    versions = [version for reply in replies for version in reply["versions"]]
    return [replies[-1] | {"versions": versions[-1:]}]


def lines_of(version: Mapping[str, Any]) -> list[str]:
    """One version for people."""
    head = f"{clock(version['wall'])}  {version['operation']}  {version['optime']}"
    if "lsid" in version:
        head += f"  session {version['lsid']['id'].hex()}"
    if "txnNumber" in version:
        head += f" {'transaction' if version.get('inTransaction') else 'write'} {version['txnNumber']}"
    lines = [head]
    if "rolledBack" in version:
        lines.append(f"    taken away by {version['rolledBack']['rollback']}")
    elif not version["committed"]:
        lines.append("    not committed yet")
    lines += [f"    {_change(row)}" for row in version.get("changes", ())]
    if version.get("changesUnknown"):
        lines.append("    another document took its place; what it was is not known any more")
    if version["operation"] in ("insert", "replace") and "document" in version:
        lines.append(f"    {_short(version['document'])}")
    return lines


def _change(row: Mapping[str, Any]) -> str:
    old = f" {_short(row['from'])}" if "from" in row else ""
    if row.get("removed"):
        return f"{row['field']}:{old} removed"
    if "newSize" in row:
        return f"{row['field']}: cut to {row['newSize']} elements"
    return f"{row['field']}:{old} -> {_short(row['to'])}" if "to" in row else f"{row['field']}: changed"


def _short(value: object) -> str:
    text = to_ejson(value)
    return text if len(text) <= LONGEST_LINE else f"{text[:LONGEST_LINE]}… ({len(text)} characters)"


def notes_on(reply: Mapping[str, Any], *, is_empty: bool) -> Iterator[str]:
    if is_empty:
        yield f"no version is known; the oplog of this member begins at {reply['oldest']}"
    if "archivedSince" in reply:
        yield f"the archive reaches back to {reply['archivedSince']}: --archive shows that too"
    for rollback in reply.get("rollbacksNotRead", ()):
        yield f"not all was read of {rollback}: rollback-tools show it"
