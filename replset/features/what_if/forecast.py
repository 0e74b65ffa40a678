"""What a set would do after one deed: many plays with other random delays, and what they have in common.

It says of the set at the end what `administration` says in the status, so it imports that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from statistics import median_low
from typing import Literal

from replset.config import ReplSetConfig
from replset.core.effects import ElectionEvent
from replset.core.messages import (
    Done,
    ReconfigRequest,
    Refused,
    ReplyBody,
    ShutdownStarted,
    StepDownRequest,
    StepUpRequest,
)
from replset.core.status import Remark
from replset.features.administration.remarks import find_remarks
from replset.features.what_if.player import Machine, Play, SetNow
from replset.ids import OPTIME_NULL, HostPort, OpTime

Kind = Literal["kill", "stop", "cut", "lose-disk", "remove", "reconfig"]
SETTLE_HEARTBEATS = 3
HORIZON_TIMEOUTS = 4
HAND_OVER_MS = 1_000
MOST_VOTES = 8
TOLD = (ElectionEvent.WON, ElectionEvent.VOTE_NOT_GRANTED, ElectionEvent.DRY_RUN_LOST, ElectionEvent.ELECTION_LOST)


@dataclass(frozen=True, slots=True)
class Deed:
    """What is done. hosts: one member, or those on one side of a cut, with `others` on the other one. A reconfig has
    none, and a config.
    """

    kind: Kind
    hosts: tuple[HostPort, ...] = ()
    others: tuple[HostPort, ...] = ()
    config: ReplSetConfig | None = None


@dataclass(slots=True)
class Forecast:
    """What the plays gave. leaders: who takes writes in the end, None for nobody, by number of plays. first: who took
    writes first, where that is another one. without_primary_ms: how long nobody else took writes, of each play in which
    somebody did. refused: why the primary takes no such configuration. lost: writes that the last leader lacks, of each
    play that has one.
    """

    plays: int = 0
    leaders: Counter[HostPort | None] = field(default_factory=Counter)
    first: Counter[HostPort] = field(default_factory=Counter)
    without_primary_ms: list[int] = field(default_factory=list)
    majority_writes: int = 0
    lost: list[int] = field(default_factory=list)
    votes: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    remarks: Counter[Remark] = field(default_factory=Counter)

    @property
    def leader(self) -> HostPort | None:
        """Who leads in the most plays."""
        return self.leaders.most_common(1)[0][0]

    def document(self) -> dict[str, object]:
        times = sorted(self.without_primary_ms)
        return {
            "plays": self.plays,
            "primary": self.leader,
            "primaries": {host or "none": count for host, count in self.leaders.most_common()},
            "firstPrimaries": dict(self.first.most_common()),
            "withoutPrimaryMillis": {"median": median_low(times), "worst": times[-1]} if times else None,
            "majorityWritesGoOn": self.majority_writes,
            "refused": dict(self.refused),
            "rolledBackWrites": {"median": median_low(self.lost), "most": max(self.lost)} if self.lost else None,
            "votes": [{"text": text, "plays": count} for text, count in self.votes.most_common()],
            "remarks": [{"why": each.why, "next": each.next_step} for each, _ in self.remarks.most_common(3)],
        }


def foresee(
    known: SetNow,
    deed: Deed,
    weights: Mapping[OpTime, int],
    plays: int = 100,
    is_over: Callable[[], bool] = lambda: False,
) -> Forecast:
    """Play the deed so many times, or until `is_over` behind a play. weights: how many entries each optime stands for
    that a member is at.
    """
    found = Forecast()
    for seed in range(plays):
        _play_once(Play(known, seed), deed, weights, found)
        if is_over():
            break
    return found


def _play_once(play: Play, deed: Deed, weights: Mapping[OpTime, int], found: Forecast) -> None:
    settings = play.set.config.settings
    heartbeat, timeout = settings.heartbeat_interval_ms, settings.election_timeout_ms
    # The nodes are built as after a restart. They hear of each other, and the present primary is put in its place.
    play.run(heartbeat)
    if play.set.primary is not None:
        play.ask(play.set.primary, StepUpRequest(skip_dry_run=True))
    play.run(SETTLE_HEARTBEATS * heartbeat + play.rng.randint(0, heartbeat))
    play.has_lasted()
    before, began = play.leader, play.now
    marks = {machine: len(machine.journal) for machine in play.machines.values()}
    for machine in play.machines.values():
        machine.follows = machine.known.follows
    _do(play, deed, found)
    # A primary that is cut off, dead or stopping takes no writes of the others any more.
    gone = deed.hosts if deed.kind != "cut" else _without_majority(play, deed)
    if before is None or before.host in gone:
        old = None if before is None else before.host

        def leads() -> bool:
            return (leader := play.leader) is not None and (leader.host != old or leader.state.term > old_term)

        old_term = 0 if before is None else before.state.term
        if play.run(HORIZON_TIMEOUTS * timeout, leads):
            found.without_primary_ms.append(play.now - began)
    first = play.leader
    play.run(HORIZON_TIMEOUTS * timeout if _may_be_replaced(play, first) else timeout * 3 // 2)
    last = play.leader
    found.plays += 1
    found.leaders[None if last is None else last.host] += 1
    if first is not None and first is not last:
        found.first[first.host] += 1
    if last is not None:
        last.append()
        mine = last.log[-1]
        found.majority_writes += play.run(timeout, lambda: last.state.commit_point >= mine)
        found.lost.append(sum(weights.get(point, 0) for point in play.points if point not in last.log))
    told = {
        f"{record.event} ({host}): {record.detail}"
        for host, machine in play.machines.items()
        for record in machine.journal[marks.get(machine, 0) :]
        if record.event in TOLD
    }
    found.votes.update(sorted(told))
    _look(play, last, found)


def _may_be_replaced(play: Play, leader: Machine | None) -> bool:
    """Whether a member that runs may take over by its priority."""
    config = play.set.config
    mine = None if leader is None else config.member_at(leader.host)
    return mine is not None and any(
        row.is_electable and row.priority > mine.priority and play.machines[row.host].alive for row in config.members
    )


def _look(play: Play, leader: Machine | None, found: Forecast) -> None:
    alive = [machine for machine in play.machines.values() if machine.alive and machine.state.self_member is not None]
    seen_by = leader or max(alive, key=lambda machine: machine.state.position.last_applied, default=None)
    if seen_by is not None:
        found.remarks.update(find_remarks(seen_by.state, play.now))


def _without_majority(play: Play, deed: Deed) -> tuple[HostPort, ...]:
    """The hosts of a cut that reach no majority of the voters."""
    voters, needed = {each.host for each in play.set.config.voters}, play.set.config.majority_vote_count
    sides = (set(deed.hosts), set(deed.others))
    alive = {host for host, machine in play.machines.items() if machine.alive}
    return tuple(host for mine, far in (sides, sides[::-1]) for host in mine if len((voters & alive) - far) < needed)


def _do(play: Play, deed: Deed, found: Forecast) -> None:
    match deed.kind:
        case "kill":
            play.kill(deed.hosts[0])
        case "stop":
            _stop(play, deed.hosts[0])
        case "lose-disk":
            play.lose_disk(deed.hosts[0])
        case "cut":
            play.cut |= {frozenset((one, other)) for one in deed.hosts for other in deed.others}
        case "remove" | "reconfig":
            _reconfigure(play, deed, found)


def _stop(play: Play, host: HostPort) -> None:
    """As a member does at SIGTERM: a primary hands over, and steps down by force where nobody can take over."""
    machine = play.machines[host]
    machine.feed(ShutdownStarted())
    if not machine.state.is_primary:
        play.kill(host)
        return

    def end(body: ReplyBody) -> None:
        if not isinstance(body, Done):
            play.ask(host, StepDownRequest(60_000, 0, force=True))
        play.at(100, lambda: play.kill(host))

    play.ask(host, StepDownRequest(60_000, HAND_OVER_MS, force=False), end)


def _reconfigure(play: Play, deed: Deed, found: Forecast) -> None:
    """The primary makes the new configuration, or the present one without a member."""
    leader = play.leader
    if leader is None or leader.state.config is None:
        return
    config = leader.state.config
    new = config if deed.config is None else deed.config
    members = tuple(replace(each, incarnation=None) for each in new.members if each.host not in deed.hosts)
    for each in members:
        play.add(each.host)

    def note(body: ReplyBody) -> None:
        if isinstance(body, Refused):
            found.refused[body.reason] += 1

    new = replace(new, version=config.version + 1, term=-1, members=members)
    play.ask(leader.host, ReconfigRequest(new, False, 0), note)


def weights_of(behind: Mapping[OpTime, int]) -> dict[OpTime, int]:
    """How many entries each optime stands for. behind: how many entries follow it in the primary's oplog."""
    points = sorted(behind)
    return {
        point: 1 if before is None else max(1, behind[before] - behind[point])
        for before, point in zip([None, *points], points, strict=False)
        if point != OPTIME_NULL
    }


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
