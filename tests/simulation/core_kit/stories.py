"""Stories: what happens to small sets of cores, told line by line, with all that each core does and says.

`transcripts/` holds how each went. A core that decides otherwise, later or in another order tells another story.
`REWRITE_TRANSCRIPTS=1 pytest tests/unit/core/test_stories.py` writes them anew; read the difference.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from replset.config import Member, Settings
from replset.config.durability_rules import DurabilityRule
from replset.core.effects import (
    AcceptWrites,
    AppendNoop,
    CommitPointAdvanced,
    ConfigInstalled,
    Drain,
    Effect,
    InitialSyncNotNeeded,
    LastVote,
    Persist,
    ProgressChanged,
    RecordElectionEvent,
    RelayProgress,
    Reply,
    Send,
    StateChanged,
)
from replset.core.messages import (
    AbortCatchUpRequest,
    DamageFound,
    DiskStalled,
    Done,
    FreezeRequest,
    HeartbeatReply,
    HeartbeatRequest,
    MaintenanceRequest,
    ProgressReply,
    ProgressRequest,
    ReconfigRequest,
    Refused,
    RequestBody,
    ResyncRequest,
    ShutdownStarted,
    StepDownRequest,
    StepUpRequest,
    SyncFromRequest,
    VoteReply,
    VoteRequest,
)
from replset.core.quorum import MAJORITY, WriteConcern
from replset.features.administration.remarks import find_remarks
from replset.ids import MemberId
from tests.simulation.core_kit.cluster import CoreCluster, running
from tests.simulation.core_kit.machine import FAST, CoreMachine, host, members_of

FOLDER = Path(__file__).parent / "transcripts"


class Story:
    """One set, and the lines of what happens to it."""

    def __init__(self, cluster: CoreCluster, *, heartbeats: bool = False) -> None:
        self.cluster = cluster
        self.lines: list[str] = []
        self._heartbeats = heartbeats
        self._began = cluster.now
        self._written = 0
        for machine in cluster.machines.values():
            self.listen(machine)

    def listen(self, machine: CoreMachine) -> None:
        take = machine.take

        def tells(effects: list[Effect]) -> None:
            self._tell(machine, effects)
            take(effects)

        machine.take = tells  # type: ignore[method-assign]

    def _tell(self, machine: CoreMachine, effects: list[Effect]) -> None:
        for effect in effects:
            if (text := self._told(effect)) is not None:
                self.say(f"{machine.host} {text}")

    def say(self, text: str) -> None:
        self.lines.append(f"{self.cluster.now - self._began:>6} {text}".replace(":27017", ""))

    def _told(self, effect: Effect) -> str | None:
        match effect:
            case Send(to=to, body=HeartbeatRequest() as body, timeout_ms=within):
                return f"asks {to} within {within}: {body.primary_id}" if self._heartbeats else None
            case Send(to=to, body=VoteRequest() as body, timeout_ms=within):
                kind = "a dry run" if body.dry_run else "its vote"
                return f"asks {to} for {kind} in {body.term}, {body.reason}, at {body.last_applied}, within {within}"
            case Send(body=ProgressRequest()) | Reply(body=HeartbeatReply() | ProgressReply()):
                return None
            case Reply(body=VoteReply(term, granted, reason)):
                return f"votes in {term}: {'yes' if granted else reason}"
            case Reply(body=Done(info)):
                return f"has done it {info}".rstrip()
            case Reply(body=Refused(code, reason)):
                return f"refuses ({int(code)}): {reason}"
            case StateChanged(state, term, primary):
                return f"is {state.name} in {term}, primary {primary}"
            case Persist(LastVote(term, candidate)):
                return f"saves its vote for {candidate} in {term}"
            case Persist(InitialSyncNotNeeded()):
                return "saves that it needs no copy"
            case Persist(record) | ConfigInstalled(record):
                text = "saves" if isinstance(effect, Persist) else "installs"
                rows = [_row(member) for member in record.members]  # type: ignore[union-attr]
                return f"{text} {record.version_and_term}: {' '.join(rows)}"  # type: ignore[union-attr]
            case RecordElectionEvent(record=record):
                return f"{record.event}: {record.detail}"
            case CommitPointAdvanced(point):
                return f"knows that {point} is committed"
            case AppendNoop(term, message):
                return f"writes {message!r} in {term}"
            case AcceptWrites(accept, term):
                return f"{'takes' if accept else 'ends'} writes of {term}"
            case Drain(term):
                return f"drains for {term}"
            case ProgressChanged() | RelayProgress():
                return None
            case _:
                return str(effect)

    def run(self, for_ms: int) -> None:
        self.cluster.run(for_ms)

    def write(self, machine: CoreMachine, count: int = 1) -> None:
        for _ in range(count):
            self._written += 1
            self.say(f"{machine.host} is asked to write: {machine.write(str(self._written))}")

    def ask(self, machine: CoreMachine, body: RequestBody, for_ms: int = 0) -> None:
        self.say(f"{machine.host} is told {type(body).__name__}")
        self.cluster.ask(self.cluster.number_of(machine), body)
        self.run(for_ms)

    def change(self, machine: CoreMachine, *members: Member, settings: Settings | None = None, for_ms: int = 0) -> None:
        config = self.cluster.user_config(self.cluster.number_of(machine), *members)
        self.ask(machine, ReconfigRequest(replace(config, settings=settings or config.settings), False, 5_000), for_ms)

    def kill(self, machine: CoreMachine, *, power: bool = False) -> None:
        self.say(f"{machine.host} {'loses its power' if power else 'is killed'}")
        machine.crash(power=power)

    def start(self, machine: CoreMachine) -> None:
        self.say(f"{machine.host} starts")
        machine.boot()

    def cut(self, *machines: CoreMachine) -> None:
        self.say(f"cut off: {' '.join(machine.host for machine in machines)}")
        self.cluster.isolate(*map(self.cluster.number_of, machines))

    def heal(self) -> None:
        self.say("all links are whole")
        self.cluster.heal()

    def look(self) -> None:
        """What each core would tell an operator."""
        self.say("what they say:")
        for machine in self.cluster.machines.values():
            status = machine.node.status(self.cluster.now) if machine.alive else None
            if status is None:
                continue
            source = status.sync_source_id
            self.say(f"{machine.host} {status.state.name} in {status.term}, source {source}, {status.commit_point}")
            for row in status.members:
                position, healthy = row.position, "healthy" if row.healthy else "not healthy"
                self.say(
                    f"  {row.id} {row.state.name} {healthy} {'counted' if row.counted else 'not counted'}"
                    f" {position and position.last_applied} {position and position.last_durable}"
                    f" lag {row.lag_ms} source {row.sync_source_id} ping {row.ping_ms} up {row.uptime_ms} {row.message}"
                )
            for text in (
                status.blocking,
                *(f"{one.why} -> {one.next_step}" for one in find_remarks(machine.node.known, self.cluster.now)),
            ):
                if text:
                    self.say(f"  {text}")

    def ask_concerns(self, machine: CoreMachine) -> None:
        newest = machine.position().last_applied
        for w in (1, 2, 3, MAJORITY):
            for j in (None, False, True):
                concern = WriteConcern(w, j)
                waits = ", ".join(f"{row.host} ({row.why})" for row in machine.node.members_waited_for(concern, newest))
                met = "is met" if machine.node.is_satisfied(concern, newest) else f"waits for {waits}"
                self.say(f"  w {w}, j {j} {met}; in vain: {machine.node.in_vain(concern)}")


def _row(member: Member) -> str:
    marks = (("arbiter", member.arbiter_only), ("new", member.newly_added), ("hidden", member.hidden))
    given = [name for name, holds in marks if holds]
    if member.spare_for is not None:
        given.append(f"for-{member.spare_for}")
    return "-".join([f"{member.id}", member.incarnation or "?", f"{member.votes}", f"{member.priority:g}", *given])


def _others(cluster: CoreCluster) -> Iterator[CoreMachine]:
    leader = cluster.elect()
    return (machine for machine in cluster.machines.values() if machine is not leader)


# --- stories ---------------------------------------------------------------------------------------------------------


def a_set_begins() -> Story:
    """Three members make a set, elect and write."""
    story = Story(CoreCluster(3))
    story.cluster.initiate(*members_of(3))
    story.cluster.until(story.cluster.is_quiet)
    story.write(story.cluster.elect(), 2)
    story.run(100)
    story.look()
    return story


def heartbeats() -> Story:
    """How often a primary, a secondary and an arbiter ask, at rest and without a primary."""
    story = Story(running(3, arbiters=1), heartbeats=True)
    story.run(700)
    story.kill(story.cluster.elect())
    story.run(1_500)
    story.look()
    return story


def the_primary_dies() -> Story:
    """Its process is gone, so a fresh connect is refused; it comes back later, and with it a second try."""
    cluster = running(3)
    story, leader = Story(cluster), cluster.elect()
    story.write(leader, 2)
    story.run(50)
    story.kill(leader)
    story.run(600)
    story.start(leader)
    story.run(700)
    story.kill(cluster.elect(), power=True)
    story.run(2_500)
    story.look()
    return story


def the_primary_is_cut_off() -> Story:
    """It steps down, the others elect; what it wrote alone is rolled back."""
    cluster = running(3, seed=3)
    story, leader = Story(cluster), cluster.elect()
    story.cut(leader)
    story.write(leader, 2)
    story.ask_concerns(leader)
    story.run(1_900)
    story.look()
    story.write(cluster.elect(), 2)
    story.run(100)
    story.heal()
    story.run(1_500)
    story.look()
    return story


def takeovers() -> Story:
    """Three members and an arbiter, one of a higher priority; a hand-over; a freeze; a step-up; a stepdown."""
    cluster = running(4, arbiters=1, seed=5)
    story, leader = Story(cluster), cluster.elect()
    first, second, *_ = _others(cluster)
    rows = [replace(row, priority=3.0 if row.host == first.host else row.priority) for row in members_of(4, arbiters=1)]
    story.change(leader, *rows, for_ms=2_500)
    story.ask(cluster.elect(), StepDownRequest(2_000, 1_000, False, second.host), 500)
    story.look()
    story.ask(leader, FreezeRequest(3_000))
    story.ask(leader, StepUpRequest(False))
    story.ask(leader, FreezeRequest(0))
    story.ask(leader, StepUpRequest(True), 500)
    story.ask(leader, AbortCatchUpRequest())
    story.ask(leader, StepDownRequest(1_000, 0, True), 2_500)
    story.look()
    return story


def a_primary_catches_up() -> Story:
    """What the primary before had written, and its successor had not, is fetched before the successor writes."""
    cluster = running(3, seed=7)
    story, leader = Story(cluster), cluster.elect()
    one, other = _others(cluster)
    story.cut(one)
    story.write(leader, 3)
    story.run(60)
    story.heal()
    cluster.cut = {(leader.host, one.host), (one.host, leader.host)}
    story.kill(leader)
    story.ask(one, StepUpRequest(True), 1_500)
    story.ask(other, StepUpRequest(True), 1_500)
    story.start(leader)
    cluster.heal()
    story.run(1_500)
    story.look()
    return story


def members_come_and_go() -> Story:
    """A new member gets its vote once it has the data; a vote is taken, an arbiter added, a member removed."""
    cluster = running(3, extra=2, seed=2)
    cluster.default_write_concern_set = True
    story, leader = Story(cluster), cluster.elect()
    new, arbiter = (Member(MemberId(number), host(number)) for number in (3, 4))
    rows = members_of(3)
    story.change(leader, *rows, new, for_ms=1_500)
    story.change(leader, *rows, new, replace(arbiter, arbiter_only=True, priority=0.0), for_ms=1_000)
    last = next(row for row in rows if row.host != leader.host)
    rest = [row for row in (*rows, new) if row is not last]
    story.change(leader, *rest, replace(last, votes=0, priority=0.0, hidden=True), for_ms=1_000)
    story.change(leader, *rest, for_ms=1_000)
    story.change(leader, *rest[:1], for_ms=200)
    story.look()
    return story


def a_disk_is_replaced() -> Story:
    """Its vote is void until it has a copy and the primary names its data; then somebody asks for a resync."""
    cluster = running(3, seed=4)
    story, leader = Story(cluster), cluster.elect()
    one, other = _others(cluster)
    story.write(leader, 2)
    story.run(50)
    story.say(f"{one.host} gets an empty disk")
    one.wipe()
    story.start(one)
    story.run(1_500)
    story.ask(other, ResyncRequest(), 500)
    story.cut(other)
    story.write(leader, 2)
    story.run(100)
    story.kill(leader)
    story.ask(one, ResyncRequest(), 100)
    story.ask(one, ResyncRequest(force=True), 100)
    story.look()
    story.heal()
    story.start(leader)
    story.run(3_000)
    story.look()
    return story


def members_fall_behind() -> Story:
    """Members in sync, the least of them, and levels of durability that go down and up again."""
    cluster = running(3, seed=6)
    story, leader = Story(cluster), cluster.elect()
    levels = {"db": DurabilityRule(2, 0, 1, 0)}
    settings = replace(FAST, in_sync_lag_secs=1, min_in_sync=2, durability_levels=levels)
    story.change(leader, settings=settings, for_ms=500)
    one, other = _others(cluster)
    for machine in (one, other):
        cluster.cut |= {(leader.host, machine.host), (machine.host, leader.host)}
        story.write(leader, 2)
        story.run(600)
        story.say(f"in sync: {sorted(leader.node._state.in_sync)}; levels: {leader.node._state.levels}")
        story.ask_concerns(leader)
    story.look()
    story.heal()
    story.run(3_000)
    story.write(cluster.elect())
    story.run(500)
    story.look()
    return story


def sources() -> Story:
    """A member follows another one that is closer, or that somebody names, and comes back."""
    cluster = running(4, seed=8)
    story, leader = Story(cluster), cluster.elect()
    one, other, last = _others(cluster)
    story.ask(other, SyncFromRequest(one.host), 300)
    story.ask(one, SyncFromRequest(other.host), 300)
    story.write(leader)
    story.run(300)
    story.kill(one)
    story.run(800)
    story.start(one)
    cluster.cut = {(leader.host, last.host), (last.host, leader.host)}
    story.run(3_000)
    story.write(cluster.elect())
    story.run(300)
    story.look()
    story.heal()
    story.run(1_500)
    story.look()
    return story


def members_out_of_service() -> Story:
    """Maintenance, a disk that hangs, damage, a shutdown."""
    cluster = running(3, seed=9)
    story, leader = Story(cluster), cluster.elect()
    one, other = _others(cluster)
    story.ask(one, MaintenanceRequest(True), 300)
    story.ask(one, StepUpRequest(True))
    story.look()
    story.ask(one, MaintenanceRequest(False), 300)
    story.say(f"the disk of {leader.host} hangs")
    leader.feed(DiskStalled(True))
    story.run(2_500)
    leader.feed(DiskStalled(False))
    story.say(f"{other.host} finds damage")
    other.feed(DamageFound("an entry is not what was written"))
    story.run(1_500)
    story.look()
    story.ask(other, ResyncRequest(), 1_000)
    last = cluster.elect()
    story.say(f"{last.host} is about to stop")
    last.feed(ShutdownStarted())
    story.run(1_500)
    story.look()
    return story


def manual_failover() -> Story:
    """Nobody stands by itself; an operator chooses."""
    cluster = running(3, seed=10)
    story, leader = Story(cluster), cluster.elect()
    story.change(leader, settings=replace(FAST, manual_failover=True), for_ms=500)
    one, other = _others(cluster)
    story.cut(other)
    story.write(leader, 2)
    story.run(50)
    story.heal()
    story.kill(leader)
    story.run(3_000)
    story.look()
    story.ask(other, StepUpRequest(False), 1_000)
    story.ask(one, StepUpRequest(False), 1_000)
    story.look()
    return story


def a_witness() -> Story:
    """A primary, a secondary and a witness; the secondary goes, then the primary."""
    cluster = running(3, witnesses=1, seed=11)
    story, leader = Story(cluster), cluster.elect()
    other = next(machine for machine in _others(cluster) if machine.node.state.name == "SECONDARY")
    story.kill(other)
    story.write(leader, 2)
    story.run(1_500)
    story.look()
    story.kill(leader)
    story.start(other)
    story.run(2_500)
    story.look()
    return story


def a_spare() -> Story:
    """A voter is gone for a second, and a spare votes in its place until it is back."""
    cluster = running(3, extra=1, seed=12)
    story, leader = Story(cluster), cluster.elect()
    spare = Member(MemberId(3), host(3), votes=0, priority=0.0, spare_after_secs=1)
    story.change(leader, *members_of(3), spare, for_ms=1_500)
    one, _, _ = _others(cluster)
    story.kill(one)
    story.run(4_500)
    story.look()
    story.start(one)
    story.run(3_000)
    story.look()
    return story


STORIES: dict[str, Callable[[], Story]] = {
    story.__name__: story
    for story in (
        *(a_set_begins, heartbeats, the_primary_dies, the_primary_is_cut_off, takeovers, a_primary_catches_up),
        *(members_come_and_go, a_disk_is_replaced, members_fall_behind, sources, members_out_of_service),
        *(manual_failover, a_witness, a_spare),
    )
}


def transcript_of(name: str) -> str:
    story = STORIES[name]
    return "\n".join([inspect.getdoc(story) or "", "", *story().lines, ""])
