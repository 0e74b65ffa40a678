"""`replset what-if`: what the set would do if a member died, stopped, was cut off or removed. It changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from replset.bson import DateTime
from replset.cli import calls
from replset.cli.host_option import AnyHost
from replset.cli.members import read_document
from replset.config import Member, ReplSetConfig, parse_host
from replset.errors import BadValueError, NodeNotFoundError, ReplError
from replset.features.what_if.forecast import Deed, Forecast, Kind, foresee, weights_of
from replset.features.what_if.player import MemberNow, SetNow
from replset.ids import OPTIME_NULL, HostPort, OpTime
from replset.optime import optime_or_none
from replset.terminal import echo, echo_json

app = typer.Typer(
    help="Play what the set would do now, on copies of its members' cores. It changes nothing.", no_args_is_help=True
)
Plays = Annotated[int, typer.Option(min=1, max=1000, help="how many plays, each with other random delays")]
Json = Annotated[bool, typer.Option("--json", help="JSON for scripts")]
MemberOfSet = Annotated[str, typer.Argument(metavar="HOST:PORT", help="as the configuration names it")]
MOST_VOTES = 8


@app.command()
def kill(member: MemberOfSet, host: AnyHost = None, plays: Plays = 100, json: Json = False) -> None:
    """The member's process dies (kill -9)."""
    _answer("kill", [member], [], host, plays, json=json)


@app.command()
def stop(member: MemberOfSet, host: AnyHost = None, plays: Plays = 100, json: Json = False) -> None:
    """The member is stopped in order (SIGTERM): a primary hands over first."""
    _answer("stop", [member], [], host, plays, json=json)


@app.command()
def cut(
    sides: Annotated[str, typer.Argument(metavar="HOST:PORT,...[/HOST:PORT,...]", help="the two sides of the cut")],
    host: AnyHost = None,
    plays: Plays = 100,
    json: Json = False,
) -> None:
    """The network between these members and the others breaks. Without `/` the others are all the rest."""
    one, _, other = sides.partition("/")
    _answer("cut", one.split(","), other.split(",") if other else [], host, plays, json=json)


@app.command("lose-disk")
def lose_disk(member: MemberOfSet, host: AnyHost = None, plays: Plays = 100, json: Json = False) -> None:
    """The member's process dies and comes back on an empty disk."""
    _answer("lose-disk", [member], [], host, plays, json=json)


@app.command()
def reconfig(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="the configuration as JSON; - for standard input")],
    host: AnyHost = None,
    plays: Plays = 100,
    json: Json = False,
) -> None:
    """The set gets this configuration (replset reconfig). Members that it adds run, and are empty."""
    config = ReplSetConfig.parse(read_document(file), keep=True)
    _answer("reconfig", [], [], host, plays, json=json, config=config)


@app.command()
def remove(member: MemberOfSet, host: AnyHost = None, plays: Plays = 100, json: Json = False) -> None:
    """The member is taken out of the configuration (replset remove)."""
    _answer("remove", [member], [], host, plays, json=json)


def _answer(
    kind: Kind,
    hosts: list[str],
    others: list[str],
    host: str | None,
    plays: int,
    *,
    json: bool,
    config: ReplSetConfig | None = None,
) -> None:
    known, weights, waiting = look(host)
    deed = replace(deed_of(known, kind, hosts, others), config=config)
    found = foresee(known, deed, weights, plays)
    if json:
        echo_json({**found.document(), "uncommittedWrites": waiting})
        return
    for line in story(deed, known, found, waiting):
        echo(line)


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


def look(host: str | None) -> tuple[SetNow, dict[OpTime, int], int]:
    """Ask every member that answers. Return the set as it is, what each optime stands for, and how many writes are not
    committed.
    """
    answered, reply = calls.ask_status(host)
    config = ReplSetConfig.parse(
        calls.ask(answered, {"replSetGetConfig": 1}, calls.ANSWER_WITHIN_S)["config"], keep=True
    )
    replies = {answered: reply}
    for member in config.members:
        with suppress(ReplError):
            own = calls.ask(member.host, {"replSetGetStatus": 1}, calls.ANSWER_WITHIN_S)
            replies[next((str(row["name"]) for row in own["members"] if row.get("self")), member.host)] = own
    return set_of(config, replies, answered)


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


def story(deed: Deed, known: SetNow, found: Forecast, waiting: int) -> Iterator[str]:
    """The forecast as lines."""
    what = f"{', '.join(deed.hosts)} from {', '.join(deed.others)}" if deed.others else ", ".join(deed.hosts)
    if deed.config is not None:
        what = f"to {', '.join(member.host for member in deed.config.members)}"
    yield f"what if: {deed.kind} {what} ({found.plays} plays; nothing is changed; the primary is {known.primary})"
    for leader, count in found.leaders.most_common():
        who = "NO PRIMARY" if leader is None else f"primary: {leader}{' as now' if leader == known.primary else ''}"
        yield f"{who}, in {count} of {found.plays}"
    for first, count in found.first.most_common():
        yield f"  before that {first} leads for a while, in {count} of {found.plays}"
    for reason, count in found.refused.most_common():
        yield f"the primary refuses it, in {count} of {found.plays}: {reason}"
    times = found.document()["withoutPrimaryMillis"]
    if isinstance(times, dict):
        yield f"without a primary: {times['median'] / 1000:.2f} s (median), {times['worst'] / 1000:.2f} s (worst)"
    yield f"majority writes go on: {_share(found.majority_writes, found.plays)}"
    lost = max(found.lost, default=0)
    yield f"writes beyond the commit point now: {waiting}; rolled back: {lost if found.lost else 'not known'} at most"
    for text, count in found.votes.most_common(MOST_VOTES):
        yield f"  {count:>4} of {found.plays}  {text}"
    for remark, _ in found.remarks.most_common(2):
        yield remark.why
        yield f"  next: {remark.next_step}"


def _share(count: int, plays: int) -> str:
    return "yes" if count == plays else f"in {count} of {plays}" if count else "NO"
