"""Prints replies as tables for a person at a terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rich.markup import escape
from rich.table import Table

from replset.bson import DateTime, to_ejson
from replset.optime import optime_or_none
from replset.terminal import console

STARTUP2 = 5
STYLE = {"PRIMARY": "bold green", "SECONDARY": "green", "ARBITER": "cyan", "ROLLBACK": "bold red", "RECOVERING": "red"}


def pretty(document: Mapping[str, object]) -> str:
    return json.dumps(json.loads(to_ejson(document)), indent=2, ensure_ascii=False)


def optime_text(value: object) -> str:
    """Return `{ts, t}` as TERM:SECONDS:INC, and "-" for the null optime or anything else."""
    optime = optime_or_none(value)
    return str(optime) if optime is not None and optime.seconds else "-"


def status(reply: Mapping[str, Any]) -> None:
    """Print the set as a table, with one line for each member, its lag behind the newest entry, and what is wrong."""
    out = console()
    newest = max((_millis(row.get("optimeDate")) for row in reply["members"]), default=0)
    table = Table(title=f"{reply['set']}, term {reply['term']}", title_justify="left")
    for column in ("member", "state", "votes for majority", "newest entry", "behind", "last heartbeat", "remarks"):
        table.add_column(column, overflow="fold")
    for row in reply["members"]:
        state = str(row["stateStr"])
        behind = "-"
        if _millis(row.get("optimeDate")):
            behind = f"{(newest - _millis(row['optimeDate'])) / 1000:.1f} s"
        last_heartbeat = "this member" if row.get("self") else _age(reply.get("date"), row.get("lastHeartbeat"))
        table.add_row(
            f"{row['_id']} {row['name']}",
            f"[{STYLE.get(state, 'yellow')}]{escape(state)}[/]",
            "yes" if row.get("counted") else "no",
            optime_text(row.get("optime")),
            behind,
            last_heartbeat,
            escape(str(row.get("infoMessage") or row.get("lastHeartbeatMessage") or "")),
        )
    out.print(table)
    for warning in reply.get("startupWarnings", ()):
        out.print(f"[yellow]this member was {escape(str(warning))}[/]", highlight=False)
    _print_rollbacks(reply)
    for remark in reply.get("remarks", ()):
        out.print(f"[bold yellow]{escape(str(remark['why']))}[/]", highlight=False)
        out.print(f"  next: {escape(str(remark['next']))}", highlight=False)
    optimes = reply.get("optimes", {})
    out.print(
        f"commit point {optime_text(optimes.get('lastCommittedOpTime'))}; a majority write needs "
        f"{reply.get('writeMajorityCount')} of {reply.get('writableVotingMembersCount')} copies",
        highlight=False,
    )


def _print_rollbacks(reply: Mapping[str, Any]) -> None:
    """Print the rollback that runs here, and the rollbacks that nobody has acknowledged."""
    out = console()
    running = reply.get("rollbackStatus")
    if running:
        out.print(f"[bold red]{escape(str(running['text']))}[/]", highlight=False)
    for row in reply["members"]:
        name = escape(str(row["name"]))
        count = row.get("unacknowledgedRollbacks")
        if count:
            text = f"{name}: {count} rollback{'s' if count > 1 else ''} not acknowledged"
            out.print(f"[yellow]{text}[/] (rollback-tools list DBPATH)", highlight=False)


def _millis(value: object) -> int:
    return value.ms if isinstance(value, DateTime) else 0


def _age(now: object, then: object) -> str:
    if not _millis(then):
        return "never"
    return f"{max(0, _millis(now) - _millis(then)) / 1000:.1f} s ago"
