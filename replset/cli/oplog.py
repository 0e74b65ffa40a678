"""Has `replset oplog tail|info`, which read a live member's oplog over HTTP, or that of a dbpath, in use or not."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import typer
from rich.table import Table

from replset.bson import DateTime, RawDocument
from replset.cli.host_option import Host
from replset.cli.offline import open_oplog
from replset.client import HttpClient, WireClient
from replset.ejson import from_ejson_value, to_ejson
from replset.errors import BadValueError, ReplError
from replset.ids import OPTIME_NULL, OpTime, pack_ts
from replset.terminal import console, echo

app = typer.Typer(help="Look at the oplog.", no_args_is_help=True)
Place = Annotated[Path | None, typer.Argument(help="a dbpath, or its database file; without it --host is used")]
PAGE = 500
FIRST_LOOK_BACK_S = 30
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@app.command()
def info(
    host: Host,
    place: Place = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON for scripts instead of a table")] = False,
) -> None:
    """Show first and last entry, the time between them, entries and bytes."""
    facts = offline_info(place) if place is not None else http_of(host).get("/v1/replset/oplog/info")
    shown = {name: value for name, value in facts.items() if name not in ("ok", "operationTime", "$clusterTime")}
    if as_json:
        echo(to_ejson(shown))
        return
    table = Table(show_header=False)
    for name, value in shown.items():
        table.add_row(name, str(value))
    console().print(table)


@app.command()
def tail(
    host: Host,
    place: Place = None,
    lines: Annotated[int, typer.Option("-n", "--lines", min=1, help="how many of the newest entries")] = 10,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="then print new entries as they come")] = False,
    after: Annotated[str | None, typer.Option(help="begin after this optime (TERM:SECONDS:INC)")] = None,
    ns: Annotated[str | None, typer.Option(help="only this namespace")] = None,
    op: Annotated[str | None, typer.Option(help="only this operation: i, u, d, c or n")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON document a line")] = False,
) -> None:
    """Print the newest entries, oldest first."""
    if after is not None:
        try:
            OpTime.parse(after)
        except ValueError as error:
            raise BadValueError(f"--after: {error}") from None
    source = _Offline(place) if place is not None else _Live(http_of(host))
    position = after
    rows = source.newest(lines, ns, op) if after is None else source.after(after, ns, op)
    for row in rows:
        position = row["optime"]
        echo(to_ejson(row["entry"]) if as_json else line_of(row))
    while follow:
        time.sleep(0.5)
        for row in source.after(position or str(OPTIME_NULL), ns, op):
            position = row["optime"]
            echo(to_ejson(row["entry"]) if as_json else line_of(row))


def line_of(row: dict[str, Any]) -> str:
    """Return one entry as a line for people: optime, wall clock, operation, namespace, what it does."""
    entry = row["entry"]
    wall = entry.get("wall")
    when = (EPOCH + timedelta(milliseconds=wall.ms)).strftime("%H:%M:%S.%f")[:-3] if isinstance(wall, DateTime) else "-"
    what = {"o": entry.get("o"), **({"o2": entry["o2"]} if "o2" in entry else {})}
    text = to_ejson(what["o"]) if "o2" not in what else f"{to_ejson(what['o2'])} {to_ejson(what['o'])}"
    return f"{row['optime']:<24} {when} {entry.get('op')} {entry.get('ns') or '-':<24} {text}"


def http_of(host: str) -> HttpClient:
    """Return the HTTP address that the member at `host` reports in hello."""
    with WireClient(host) as client:
        hello = client.command("admin", {"hello": 1})
    address = hello.get("httpAddress")
    if not isinstance(address, str):
        raise ReplError(f"{host} does not report the address of its HTTP API")
    return HttpClient(address)


def offline_info(place: Path) -> dict[str, Any]:
    with open_oplog(place) as oplog:
        found = oplog.info()
    return {
        "first": str(found.first),
        "last": str(found.last),
        "windowSecs": found.window_s,
        "entries": found.entries,
        "bytes": found.bytes,
    }


class _Offline:
    """Reads the oplog in a file."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def newest(self, lines: int, ns: str | None, op: str | None) -> list[dict[str, Any]]:
        with open_oplog(self._place) as oplog:
            if ns is None and op is None:
                return [self._row(row) for row in oplog.newest_rows(lines)]
        return list(deque(self.after(None, ns, op), lines))

    def after(self, after: str | None, ns: str | None, op: str | None) -> Iterator[dict[str, Any]]:
        position = OPTIME_NULL if after is None else OpTime.parse(after)
        with open_oplog(self._place) as oplog:
            for row in oplog.rows(position, ns=ns, op=op):
                yield self._row(row)

    @staticmethod
    def _row(row: Any) -> dict[str, Any]:
        return {"optime": str(row.optime), "entry": RawDocument(row.entry).decode()}


class _Live:
    """Reads the oplog of a live member over HTTP."""

    def __init__(self, http: HttpClient) -> None:
        self._http = http

    def newest(self, lines: int, ns: str | None, op: str | None) -> list[dict[str, Any]]:
        """Search back in time, ten times as far in each step, so that a long oplog is not read from its start."""
        info = self._http.get("/v1/replset/oplog/info")
        if info["first"] is None:
            return []
        first, last = OpTime.parse(info["first"]), OpTime.parse(info["last"])
        back_s = FIRST_LOOK_BACK_S
        while last.seconds - back_s > first.seconds:
            found = deque(self.after(str(OpTime(last.term, pack_ts(last.seconds - back_s, 0))), ns, op), lines)
            if len(found) == lines:
                return list(found)
            back_s *= 10
        return list(deque(self.after(None, ns, op), lines))

    def after(self, after: str | None, ns: str | None, op: str | None) -> Iterator[dict[str, Any]]:
        position = after
        while True:
            wanted = {"after": position, "limit": PAGE, "ns": ns, "op": op}
            query = urlencode({name: value for name, value in wanted.items() if value is not None})
            page = self._http.get(f"/v1/replset/oplog?{query}")
            for row in page["entries"]:
                entry = from_ejson_value(row["entry"])
                yield {"optime": row["optime"], "entry": entry if isinstance(entry, dict) else {}}
            position = page["next"]
            if position is None:
                return
