"""Makes of what the members say of themselves the set that is played, and checks that a deed can be done to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from replset.bson import DateTime
from replset.config import Member, ReplSetConfig, parse_host
from replset.errors import BadValueError, NodeNotFoundError
from replset.features.what_if.forecast import Deed, Kind, weights_of
from replset.features.what_if.player import MemberNow, SetNow
from replset.ids import OPTIME_NULL, HostPort, OpTime
from replset.optime import optime_or_none


def deed_of(known: SetNow, kind: Kind, hosts: list[str], others: list[str]) -> Deed:
    """Return the deed, if the set is such that it can be done. NodeNotFoundError, BadValueError."""
    members = [member.host for member in known.members]
    one, other = [parse_host(each) for each in hosts], [parse_host(each) for each in others]
    for each in (*one, *other):
        if each not in members:
            raise NodeNotFoundError(f"{each} is no member of the set ({', '.join(members)})")
    if kind == "cut":
        other = other or [each for each in members if each not in one]
        if not other or set(one) & set(other):
            raise BadValueError("a cut is between two sides that share no member")
    elif kind not in ("remove", "reconfig") and not _is_alive(known, one[0]):
        raise BadValueError(f"{one[0]} is not reachable already")
    if kind in ("remove", "reconfig") and known.primary is None:
        raise BadValueError("there is no primary, and only a primary changes the configuration")
    if kind == "remove" and known.primary == one[0]:
        raise BadValueError(f"{one[0]} is primary and cannot be removed: it would have to step down first")
    return Deed(kind, tuple(one), tuple(other))


def _is_alive(known: SetNow, host: HostPort) -> bool:
    return next(member.alive for member in known.members if member.host == host)


def set_of(
    config: ReplSetConfig, replies: Mapping[str, Mapping[str, Any]], answered: str
) -> tuple[SetNow, dict[OpTime, int], int]:
    """Put the replies together: the primary's for positions, each member's own for its state."""
    leaders = [name for name, reply in replies.items() for row in reply["members"] if _leads(row)]
    primary = max(leaders, key=lambda name: int(replies[name]["term"]), default=None)
    view = replies[primary or answered]
    rows = {row["name"]: row for row in view["members"]}
    behind: dict[OpTime, int] = {}
    members = []
    for member in config.members:
        row, own = rows.get(member.host, {}), replies.get(member.host)
        mine = row if own is None else next((each for each in own["members"] if each.get("self")), row)
        members.append(_member(member, row, mine, is_primary=member.host == primary, answers=own is not None))
        if members[-1].newest != OPTIME_NULL:
            behind[members[-1].newest] = int(row.get("entriesBehind", 0))
    marked = {row["name"] for row in view["members"] if row.get("newlyAdded")}
    config = replace(config, members=tuple(replace(each, newly_added=each.host in marked) for each in config.members))
    committed = optime_or_none(view.get("optimes", {}).get("lastCommittedOpTime")) or OPTIME_NULL
    waiting = max((count for point, count in behind.items() if point <= committed), default=0)
    broken = frozenset(
        frozenset((HostPort(name), HostPort(str(row["name"]))))
        for name, reply in replies.items()
        for row in reply["members"]
        if not row.get("health", 1) and row["name"] in replies
    )
    date = view.get("date")
    wall_ms = date.ms if isinstance(date, DateTime) else 0
    leader = None if primary is None else HostPort(primary)
    known = SetNow(config, tuple(members), leader, int(view["term"]), committed, wall_ms, broken)
    return known, weights_of(behind), waiting


def _leads(row: Mapping[str, Any]) -> bool:
    return bool(row.get("self")) and row["stateStr"] == "PRIMARY"


def _member(
    member: Member, row: Mapping[str, Any], mine: Mapping[str, Any], *, is_primary: bool, answers: bool
) -> MemberNow:
    state, alive = str(mine.get("stateStr", "")), answers or bool(row.get("health", 0))
    newest = optime_or_none(row.get("optime")) or optime_or_none(mine.get("optime")) or OPTIME_NULL
    quarantine = str(mine.get("quarantine") or (mine.get("infoMessage") if state == "RECOVERING" else "") or "")
    return MemberNow(
        member.host,
        alive,
        newest,
        counted=not alive or bool(mine.get("counted", True)) or bool(mine.get("newlyAdded")) or is_primary,
        syncing=state == "STARTUP2" or (alive and newest == OPTIME_NULL and member.holds_oplog),
        quarantine="" if mine.get("maintenanceMode") else quarantine,
        maintenance=bool(mine.get("maintenanceMode")),
        follows=member.secondary_delay_secs == 0,
        ping_ms=int(row.get("pingMs", 1)),
    )
