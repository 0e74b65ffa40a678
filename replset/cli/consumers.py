"""`replset consumers`: lists, creates, resets, removes and reads the set's named consumers, and their parked events."""

from __future__ import annotations

import os
import re
import socket
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from replset.bson import DateTime, Timestamp
from replset.cli import calls
from replset.cli.host_option import Host
from replset.config import parse_host
from replset.ejson import from_ejson, to_ejson
from replset.errors import BadValueError, ErrorCode, ReplError, Trait
from replset.features.consumers.operations import Create, Mode, Unpark
from replset.operations.declared import help_of
from replset.terminal import console, duration, echo, plain_table

app = typer.Typer(help="Named consumers, which follow the set's changes.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help=help_of(Create, "name"))]
Place = Annotated[str, typer.Option(help="now, oldest, SECONDS:INC, a date as 2026-11-23T05:00:00Z, or a token")]
_CONSUMER_ELSEWHERE = (ErrorCode.CONSUMER_MOVED, ErrorCode.WRITE_CONCERN_TIMEOUT)
"""The errors after which `read --follow` goes on, too."""
WAIT_MS = 5_000


@app.command("list")
def list_consumers(
    host: Host, as_json: Annotated[bool, typer.Option("--json", help="JSON for scripts instead of a table")] = False
) -> None:
    """Show all consumers, how far each is behind, and who reads."""
    reply = calls.ask(host, {"replSetConsumers": 1})
    if as_json:
        echo(to_ejson({"consumers": reply["consumers"]}))
        return
    if not reply["consumers"]:
        echo("there are no consumers; `replset consumers create NAME` makes one")
        return
    kept = [kind for kind in ("held", "parked") if any(row.get(kind) for row in reply["consumers"])]
    table = plain_table("consumer", "follows", "mode", "behind", "history", "reader", *kept)
    for row in reply["consumers"]:
        left_s = row.get("fallsOffInSecs")
        history = "LOST" if row.get("isLost") else "-" if left_s is None else f"goes in {duration(left_s * 1000)}"
        reader = row["holder"] or (f"{row['outstanding']} events given" if row.get("outstanding") else "-")
        values = (row["name"], row["ns"] or "all databases", row["mode"], f"{row['lagSecs']} s", history, reader)
        table.add_row(*map(str, values), *(str(row.get(kind, "-")) for kind in kept))
    console().print(table)


@app.command()
def create(
    host: Host,
    name: Name,
    ns: Annotated[str, typer.Option(help=help_of(Create, "ns"))] = "",
    filter_: Annotated[str, typer.Option("--filter", help="which events, as Extended JSON")] = "{}",
    mode: Annotated[str, typer.Option(help=help_of(Create, "mode"))] = Mode.EXCLUSIVE.value,
    start_at: Place = "now",
    deliver_after: Annotated[str | None, typer.Option(help=help_of(Create, "deliver_after"))] = None,
    max_refusals: Annotated[int | None, typer.Option(help=help_of(Create, "max_refusals"))] = None,
) -> None:
    """Create a consumer. From then on the set keeps its oplog for it."""
    wanted = {"ns": ns, "filter": from_ejson(filter_), "mode": mode, "startAt": place_of(start_at)}
    newer = {"deliverAfter": deliver_after, "maxRefusals": max_refusals}
    wanted |= {name: value for name, value in newer.items() if value is not None}
    reply = calls.on_primary(host, {"replSetConsumerCreate": name, **wanted})
    echo(f"consumer {name} ({reply['mode']}) begins at {reply['optime']}")


@app.command()
def reset(host: Host, name: Name, to: Place) -> None:
    """Set where a consumer goes on. What readers have is not acknowledged any more."""
    reply = calls.on_primary(host, {"replSetConsumerSeek": name, "to": place_of(to)})
    echo(f"consumer {name} goes on at {reply['optime']}")


@app.command()
def remove(host: Host, name: Name) -> None:
    """Remove a consumer. What it held back of the oplog may go."""
    calls.on_primary(host, {"replSetConsumerRemove": name})
    echo(f"consumer {name} is gone")


@app.command()
def read(
    host: Host,
    name: Name,
    reader: Annotated[str | None, typer.Option(help="who reads; by default this machine and process")] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="wait for more, also through failovers")] = False,
    ack: Annotated[bool, typer.Option(help="acknowledge what was printed")] = True,
    from_: Annotated[
        str | None, typer.Option("--from", help="HOST:PORT where to read; the primary is asked first")
    ] = None,
) -> None:
    """Print the events behind the position, one JSON document a line. What is printed is acknowledged.

    A primary that is overloaded names a secondary. What that one has is read there.
    """
    reader = reader or f"{socket.gethostname()}-{os.getpid()}"
    begin: dict[str, object] = {}
    if from_ is not None:
        parse_host(from_, "--from")
    source: str | None = None
    while True:
        command = {"reader": reader, "waitMS": WAIT_MS if follow else 0, **begin}
        try:
            found = _read_at(source, name, command) if source and begin and ack else None
            if found is not None and not found["events"]:
                source, found = None, None  # the primary knows whether there is more, and that the reader lives
                command["waitMS"] = 0
            if found is None:
                found = calls.on_primary(host, {"replSetConsumerRead": name, **command})
                source = from_ or found.get("readFrom")
            begin = {"after": found["next"], "generation": found["generation"]} if "next" in found else {}
            for event in found["events"]:
                echo(to_ejson(event))
            if ack and found["events"]:
                _acknowledge(host, name, found)
        except ReplError as error:
            goes_on = error.has(Trait.RETRYABLE) or error.code in _CONSUMER_ELSEWHERE
            if not follow or not goes_on:
                raise
            begin = {}
            time.sleep(0.5)
            continue
        if not found["events"] and not follow:
            if found.get("active") is False:
                raise BadValueError(f"{found['holder']} reads consumer {name}")
            return


@app.command()
def parked(
    host: Host,
    name: Name,
    as_json: Annotated[bool, typer.Option("--json", help="each with its event and all reasons")] = False,
) -> None:
    """Show the events that were refused too often."""
    begin: dict[str, object] = {}
    while True:
        found = calls.on_primary(host, {"replSetConsumerParked": name, **begin})
        for row, event in zip(found["parked"], found["events"], strict=True):
            if as_json:
                echo(to_ejson({**row, "event": event}))
                continue
            last = row["reasons"][-1] if row["reasons"] else {"reason": "", "reader": ""}
            by = f", {last['reader']}" if last["reader"] else ""
            when = row["at"].to_datetime().isoformat(timespec="seconds")
            echo(f"{row['id']}  {when}  {row['refusals']} refusals{by}: {last['reason'] or 'no reason given'}")
        if "next" not in found:
            return
        begin = {"after": found["next"]}


Id = Annotated[str | None, typer.Argument(help=help_of(Unpark, "id"))]
All = Annotated[bool, typer.Option("--all", help=help_of(Unpark, "all"))]


@app.command()
def unpark(host: Host, name: Name, id_: Id = None, all_: All = False) -> None:
    """Give parked events to the readers again; their refusals are counted anew."""
    reply = calls.on_primary(host, {"replSetConsumerUnpark": name, **_which(id_, all_)})
    echo(f"consumer {name}: {reply['n']} given to its readers again")


@app.command()
def forget(host: Host, name: Name, id_: Id = None, all_: All = False) -> None:
    """Remove parked events."""
    reply = calls.on_primary(host, {"replSetConsumerForget": name, **_which(id_, all_)})
    echo(f"consumer {name}: {reply['n']} forgotten")


def _read_at(member: str, name: str, command: dict[str, object]) -> dict[str, Any] | None:
    """What a member gives to the holder of a consumer; None: it refuses, or is gone."""
    with suppress(ReplError):
        return calls.ask(member, {"replSetConsumerReadHere": name, **command})
    return None


def _which(id_: str | None, all_: bool) -> dict[str, object]:
    return ({"id": id_} if id_ is not None else {}) | ({"all": True} if all_ else {})


def _acknowledge(host: str, name: str, found: dict[str, Any]) -> None:
    tokens = [event["_id"]["_data"] for event in found["events"]]
    what = {"token": found["next"]} if "next" in found else {"tokens": tokens}
    calls.on_primary(host, {"replSetConsumerAck": name, "generation": found["generation"], **what})


def place_of(text: str) -> object:
    """What the commands take: `now`, `oldest`, a timestamp, a date or a token."""
    if text in ("now", "oldest") or re.fullmatch(r"[0-9A-Fa-f]{48}", text):
        return text
    if found := re.fullmatch(r"(\d{1,10}):(\d{1,10})", text):
        return Timestamp(int(found[1]), int(found[2]))
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise BadValueError(f"{text!r} is neither now nor oldest, SECONDS:INC, a date or a token") from None
    return DateTime(int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000))
