"""`replset status`: one screen of the set as one member sees it, once or again and again."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table

from replset.bson import DateTime
from replset.cli import calls
from replset.cli.host_option import AnyHost
from replset.cli.why import clock, reason_of
from replset.ejson import to_ejson
from replset.errors import ReplError
from replset.optime import optime_or_none
from replset.terminal import Text, console, duration, echo, plain_table


def status(
    host: AnyHost = None,
    watch: Annotated[bool, typer.Option("--watch", help="show it again every two seconds, until Ctrl-C")] = False,
    json: Annotated[bool, typer.Option("--json", help="JSON for scripts instead of a table")] = False,
) -> None:
    """Show who is primary and why, the members, how far each is behind, what is wrong and what helps."""
    if json:
        echo(to_ejson(calls.ask_status(host)[1]))
    elif watch:
        watch_status(host)
    else:
        console().print(screen(host), soft_wrap=True)


def watch_status(host: str | None) -> None:
    """Show the screen until Ctrl-C. A set that does not answer is shown as that."""
    out = console()
    with Live(console=out, screen=sys.stdout.isatty(), auto_refresh=False) as live:
        while True:
            try:
                shown = screen(host)
            except ReplError as error:
                shown = Text(error.message, "bold red")
            live.update(shown, refresh=True)
            time.sleep(2)


def screen(host: str | None) -> RenderableType:
    """Return the screen as the first member that answers sees it, with what only the primary knows."""
    answered, reply = calls.ask_status(host)
    primary, config = None, None
    name = next((str(row["name"]) for row in reply["members"] if row["stateStr"] == "PRIMARY"), answered)
    with contextlib.suppress(ReplError):
        config = calls.ask(answered, {"replSetGetConfig": 1}, calls.ANSWER_WITHIN_S)["config"]
        primary = reply if name == answered else calls.ask(name, {"replSetGetStatus": 1}, calls.ANSWER_WITHIN_S)
    return screen_of(reply, primary, config)


STYLE = {
    "DOWN": "bold red",
    "PRIMARY": "bold green",
    "SECONDARY": "green",
    "ARBITER": "cyan",
    "WITNESS": "cyan",
    "ROLLBACK": "bold red",
    "RECOVERING": "red",
}
SOON_S = 24 * 3600
SHOWN_ENTRIES = 1000
"""How many entries behind a member are counted."""


def optime_text(value: object) -> str:
    """Return `{ts, t}` as TERM:SECONDS:INC, and "-" for the null optime or anything else."""
    optime = optime_or_none(value)
    return str(optime) if optime is not None and optime.seconds else "-"


def screen_of(
    reply: Mapping[str, Any], primary: Mapping[str, Any] | None = None, config: Mapping[str, Any] | None = None
) -> RenderableType:
    """Return the set as one screen: the primary, the members, what blocks majority writes, what is wrong.

    primary: the primary's own reply. Only it knows why it leads, how many entries the others lack, and what blocks.
    """
    known = primary or reply
    own = next((row["name"] for row in reply["members"] if row.get("self")), "a member")
    lines = [Text(f"{reply['set']}, term {reply['term']}, as {own} sees it at {clock(reply.get('date'))} UTC")]
    lines += _leadership(reply, known)
    parts: list[RenderableType] = [*lines, _members(reply, known)]
    parts += _notes(reply, config or {})
    parts += [Text(f"this member was {warning}", "yellow") for warning in reply.get("startupWarnings", ())]
    parts += _rollbacks(reply)
    parts.append(_majority_writes(known))
    parts += _consumers(known)
    if following := known.get("following"):
        parts.append(Text(f"follows {following['setName']}: {age_of_newest(following['lagSecs'])}"))
    # The primary alone sees who falls off its oplog and whom writers are slowed for.
    remarks = {str(remark["why"]): remark["next"] for remark in (*reply.get("remarks", ()), *known.get("remarks", ()))}
    for why, following in remarks.items():
        parts += [Text(why, "bold yellow"), Text(f"  next: {following}")]
    return Group(*parts)


def _leadership(reply: Mapping[str, Any], known: Mapping[str, Any]) -> Iterator[Text]:
    """Who is primary since when and why. Without one the remarks say why there is none."""
    row = next((row for row in reply["members"] if row["stateStr"] == "PRIMARY"), None)
    if any(row["stateStr"] == "REMOVED" for row in reply["members"] if row.get("self")):
        yield Text("REMOVED: this member is not in the set's configuration, and knows no primary", "bold red")
        return
    if row is None:
        yield Text("NO PRIMARY: writes are refused", "bold red")
        return
    since = _millis(row.get("electionDate"))
    text = f"primary: {row['name']}"
    if since:
        text += f" since {clock(row['electionDate'])} ({duration(_millis(reply.get('date')) - since)})"
    reason = known.get("electionCandidateMetrics", {}).get("lastElectionReason")
    yield Text(f"{text}: {reason_of(str(reason))}" if reason else text, "bold green")


def _members(reply: Mapping[str, Any], known: Mapping[str, Any]) -> Table:
    table = plain_table("member", "state", "behind", "entries", "syncs from", "heard")
    newest = max((_millis(row.get("optimeDate")) for row in known["members"]), default=0)
    entries = {row["name"]: row.get("entriesBehind", "-") for row in known["members"]}
    for row in reply["members"]:
        state = str(row["stateStr"]) if row.get("health", 1) else "DOWN"
        if row.get("witness") and state == "ARBITER":
            state = "WITNESS"
        has_data = bool(_millis(row.get("optimeDate")))
        count = entries.get(row["name"], "-") if has_data else "-"
        table.add_row(
            str(row["name"]),
            Text(state, STYLE.get(state, "yellow")),
            f"{max(0, newest - _millis(row['optimeDate'])) / 1000:.1f} s" if has_data else "-",
            f"{count}{'+' if isinstance(count, int) and count >= SHOWN_ENTRIES else ''}",
            str(row.get("syncSourceHost") or "-") if state != "DOWN" else "-",
            "-" if row.get("self") else _age(reply.get("date"), row.get("lastHeartbeat")),
        )
    return table


def _notes(reply: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[Text]:
    """One line for each member that is not like the others."""
    roles = {row["host"]: role_of(row) for row in config.get("members", ())}
    for row in reply["members"]:
        role = roles.get(row["name"], "")
        waits = "waits for its vote" if row.get("newlyAdded") else ""
        is_counted = row.get("counted") or waits or "no vote" in role or not row.get("health", 1)
        counts = "" if is_counted else "is not counted for majorities"
        notes = "; ".join(filter(None, (role, waits, counts, str(row.get("infoMessage") or ""))))
        if notes:
            yield Text(f"{row['name']}: {notes}")


def role_of(row: Mapping[str, Any]) -> str:
    """Return what distinguishes a member by its configuration; empty: nothing."""
    priority, delay = row.get("priority", 1), int(row.get("secondaryDelaySecs", 0))
    is_plain = row.get("arbiterOnly") or row.get("witness")
    parts = {
        "witness": bool(row.get("witness")),
        "hidden": bool(row.get("hidden")),
        f"{delay} s delayed": delay > 0,
        "without indexes": row.get("buildIndexes") is False,
        f"priority {priority}": priority != 1 and not is_plain,
        "no vote": row.get("votes") == 0,
    }
    return ", ".join(text for text, holds in parts.items() if holds)


def _majority_writes(known: Mapping[str, Any]) -> Text:
    """What keeps the commit point from moving and since when, or that nothing does."""
    needs = f"{known.get('writeMajorityCount')} of {known.get('writableVotingMembersCount')} copies"
    committed = optime_text(known.get("optimes", {}).get("lastCommittedOpTime"))
    if not known.get("blocking"):
        return Text(f"commit point {committed}; a majority write needs {needs}")
    since = known.get("blockingSince")
    age = f" for {duration(_millis(known.get('date')) - _millis(since))}, since {clock(since)}" if since else ""
    return Text(f"MAJORITY WRITES WAIT{age}: {known['blocking']}; commit point {committed}", "bold red")


def _rollbacks(reply: Mapping[str, Any]) -> Iterator[Text]:
    """The rollback that runs here, and the rollbacks that nobody has acknowledged."""
    if reply.get("rollbackStatus"):
        yield Text(str(reply["rollbackStatus"]["text"]), "bold red")
    for row in reply["members"]:
        count = row.get("unacknowledgedRollbacks")
        if count:
            text = f"{row['name']}: {count} rollback{'s' if count > 1 else ''} not acknowledged"
            yield Text(f"{text} (rollback-tools list DBPATH)", "yellow")


def age_of_newest(lag_s: int | None) -> str:
    """How far a set is behind the one that it follows."""
    return "no entry has come yet" if lag_s is None else f"its newest entry that came is {lag_s} s old"


def _consumers(known: Mapping[str, Any]) -> Iterator[Text]:
    """How far each named consumer is behind, and when its history goes."""
    for row in known.get("consumers", ()):
        text = f"consumer {row['name']} ({row['mode']}, {row['ns'] or 'all databases'}): {row['lagSecs']} s behind"
        if row["holder"]:
            text += f", read by {row['holder']}"
        text += "".join(f", {row[kind]} {kind}" for kind in ("held", "parked") if row.get(kind))
        left_s = row.get("fallsOffInSecs")
        if row.get("isLost"):
            yield Text(f"{text}; THE HISTORY THAT IT NEEDS IS GONE", "bold red")
        elif left_s is not None and left_s < SOON_S:
            yield Text(f"{text}; its history goes in {duration(left_s * 1000)}", "yellow" if row["lagSecs"] else "")
        else:
            yield Text(text)


def _millis(value: object) -> int:
    return value.ms if isinstance(value, DateTime) else 0


def _age(now: object, then: object) -> str:
    if not _millis(then):
        return "never"
    return duration(_millis(now) - _millis(then))
