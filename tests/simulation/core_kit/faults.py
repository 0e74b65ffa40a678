"""More faults, for two seeds in five: forged messages, strangers, two lost disks, long broken links, scenarios.

A forged message must change nothing; this file checks that at once. `checkers.py` checks the rest.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from replset.bson import ObjectId
from replset.config import ReplSetConfig
from replset.core.member_state import MemberState
from replset.core.messages import (
    MAX_TERM,
    MAX_TERM_JUMP,
    HeartbeatRequest,
    MemberProgress,
    Position,
    ProgressRequest,
    ReconfigRequest,
    Request,
    RequestBody,
    ResyncRequest,
    StepUpRequest,
    VoteRequest,
)
from replset.errors import ReplError
from replset.ids import HostPort, MemberId, OpTime
from tests.simulation.core_kit.machine import CoreMachine, host
from tests.simulation.kit.errors import SimulationError

if TYPE_CHECKING:
    from tests.simulation.core_kit.runs import CoreRun

OTHER_SET = ObjectId(b"another set ")
STRANGER = HostPort("stranger:27017")
SHAPES_OF_DISKS = ((3, 1), (3, 1), (5, 1), (5, 2), (5, 0))
SHAPES_OF_VOTES = ((5, 0), (5, 1), (4, 0), (3, 1), (3, 1))
FORGERIES = ("forged term", "forged place", "other set", "stranger")
SCENARIOS = ("in between", "broken link")
OF_DISKS = (*("lose disk",) * 4, *("lose two",) * 3, "resync", *FORGERIES, *SCENARIOS)
OF_VOTES = (*("two voters",) * 3, *("cut reconfig",) * 4, "resync", *FORGERIES, *SCENARIOS)
QUIET_WITHIN_MS = 8_000
SETTLED_MS = 2_500
LINK_BROKEN_MS = 5_000


class CoreFaults:
    """Draws from a generator of its own, so that the other seeds stay what they are."""

    def __init__(self, run: CoreRun) -> None:
        self.run = run
        self.rng = random.Random(f"{run.seed} more")

    @property
    def cluster(self):  # type: ignore[no-untyped-def]
        return self.run.cluster

    def shape(self) -> tuple[int, int]:
        """Members, and how many of them are arbiters. Even seeds lose disks, odd ones move votes."""
        return self.rng.choice(SHAPES_OF_VOTES if self.run.seed % 2 else SHAPES_OF_DISKS)

    def draw(self) -> None:
        kind = self.rng.choice(OF_VOTES if self.run.seed % 2 else OF_DISKS)
        done = {
            "lose disk": self._lose_disk,
            "lose two": self._lose_two,
            "resync": self._resync,
            "two voters": self._two_voters,
            "cut reconfig": self._cut_reconfig,
            "in between": self._in_between,
            "broken link": self._broken_link,
        }.get(kind, lambda: self._forge(kind))()
        if done:
            self.cluster.done[f"fault {kind}"] += 1
            self.cluster.note("fault", kind)

    def end(self) -> None:
        """Run the two last scenarios, each in a set at rest: the voters must refuse the candidate."""
        for scenario in (self._older_config, self._behind_the_arbiter):
            if self._is_calm() and scenario():
                name = scenario.__name__.strip("_").replace("_", " ")
                self.cluster.done[f"fault {name}"] += 1
                self.cluster.note("fault", name)

    def _any(self) -> CoreMachine:
        return self.cluster[self.rng.randrange(self.run.size)]

    # --- lies --------------------------------------------------------------------------------------------------------

    def _forge(self, kind: str) -> bool:
        machine = self.cluster.primary if self.rng.random() < 0.5 else self._any()
        if machine is None or not machine.alive or machine.node.config is None:
            return False
        config, node = machine.node.config, machine.node
        machine.take(node.tick(self.cluster.now))  # what is due anyway
        member = self.rng.choice(config.members)
        set_id, term = config.settings.replica_set_id, node.term + self.rng.randint(1, 5)
        sender: HostPort = member.host
        place = node.position
        match kind:
            case "forged term":
                term = self.rng.choice(((1 << 63) - 1, (1 << 63) - 2, MAX_TERM, node.term + MAX_TERM_JUMP + 1))
            case "forged place":
                ahead = OpTime(node.term, place.last_applied.ts + self.rng.choice((1, 1 << 31)))
                term, place = node.term, Position(ahead, ahead, 0, 0)
                if node.state is not MemberState.PRIMARY:
                    return False
            case "other set":
                set_id = OTHER_SET
            case "stranger":
                sender, member = STRANGER, replace(member, id=MemberId(99), incarnation="strange")
        version = config.version + self.rng.choice((0, 1, 10))
        rows = tuple(MemberProgress(m.id, m.incarnation or "", place) for m in config.members)
        bodies: list[RequestBody] = [ProgressRequest(member.id, term, version, config.term, rows, set_id)]
        if kind != "forged place":
            incarnation = member.incarnation or ""
            bodies += [
                HeartbeatRequest(
                    "rs0", sender, member.id, term, version, config.term, None, incarnation, False, set_id
                ),
                VoteRequest(
                    "rs0", term, member.id, incarnation, version, config.term, place.last_applied, False, "", set_id
                ),
            ]
        self._must_change_nothing(kind, machine, self.rng.choice(bodies))
        return True

    def _must_change_nothing(self, kind: str, machine: CoreMachine, body: RequestBody) -> None:
        node = machine.node

        def state() -> list[object]:
            return [node.term, node.state, node.config, node.commit_point, machine.disk.last_vote]

        before = state()
        machine.feed(Request(self.cluster.unanswered_request(), body))
        if state() != before:
            name = type(body).__name__
            raise SimulationError(f"invariant 11 broken: {kind}: {name} of {body} makes {before} {state()}")

    # --- disks, votes ------------------------------------------------------------------------------------------------

    def _lose_disk(self) -> bool:
        machine = self._any()
        if not self.run.may_lose(machine):
            return False
        self.run.stop(machine, wipe=True)
        return True

    def _lose_two(self) -> bool:
        machines = [self.cluster[number] for number in self.rng.sample(range(self.run.size), 2)]
        if not self.run.may_lose(*machines):
            return False
        for machine in machines:
            self.run.stop(machine, wipe=True)
        return True

    def _resync(self) -> bool:
        number = self.rng.randrange(self.run.size)
        if not self.cluster[number].alive or self.cluster[number] is self.cluster.primary:
            return False
        self.cluster.ask(number, ResyncRequest())
        return True

    def _two_voters(self) -> bool:
        """Request a change of two members' votes; it must be refused."""
        primary = self.cluster.primary
        if primary is None or primary.node.config is None:
            return False
        rows = list(primary.node.config.members)
        able = [place for place, row in enumerate(rows) if not row.arbiter_only and row.host != primary.host]
        for place in self.rng.sample(able, min(2, len(able))):
            votes = 1 - rows[place].votes
            rows[place] = replace(rows[place], votes=votes, priority=float(votes), hidden=False)
        return self._reconfigure(primary, rows)

    def _reconfigure(self, primary: CoreMachine, rows: list[object]) -> bool:
        number = self.cluster.number_of(primary)
        try:
            wanted = ReplSetConfig.parse(self.cluster.user_config(number, *rows).document())
        except ReplError:
            return False  # nobody electable left, or nobody who votes
        self.cluster.ask(number, ReconfigRequest(wanted, False, 2_000))
        return True

    def _cut_reconfig(self) -> bool:
        """A member loses its vote, is hidden, or has it back; the primary is cut off or dies meanwhile."""
        primary = self.cluster.primary
        if primary is None or primary.node.config is None:
            return False
        rows = list(primary.node.config.members)
        place = self.rng.randrange(len(rows))
        row = rows[place]
        if row.arbiter_only or row.host == primary.host:
            return False
        votes = 1 - row.votes
        rows[place] = replace(row, votes=votes, priority=float(votes), hidden=not votes and self.rng.random() < 0.5)
        if not self._reconfigure(primary, rows):
            return False
        before = primary.node.config
        if self.rng.random() < 0.5:
            self._wait(lambda: primary.node.config is not before, 100, 1)  # nobody else has it yet
        else:
            self.cluster.run(self.rng.randint(0, 4 * self.cluster.persist_ms + 40))
        if self.rng.random() < 0.5 and primary.alive:
            self.run.stop(primary)
        else:
            self.cluster.isolate(self.cluster.number_of(primary))
        return True

    # --- scenarios ---------------------------------------------------------------------------------------------

    def _is_calm(self) -> bool:
        """Whether all links and members are up and no requested change is open."""
        self.run.repair_all()
        self.run.is_paused = True
        self.cluster.run(SETTLED_MS)
        return self._wait(self.cluster.is_quiet, QUIET_WITHIN_MS)

    def _wait(self, condition: Callable[[], object], within_ms: int, step_ms: int = 10) -> bool:
        end = self.cluster.now + within_ms
        while not condition() and self.cluster.now < end:
            self.cluster.run(step_ms)
        return bool(condition())

    def _broken_link(self) -> bool:
        """The link between the primary and one member breaks for long, and nothing else: there is no other primary."""
        is_calm = self._is_calm()
        self.run.is_paused = False
        leader = self.cluster.primary
        config = None if leader is None else leader.node.config
        if not is_calm or leader is None or config is None or len(config.voters) < 3:
            return False
        mine = config.member_at(leader.host)
        if mine is None or any(row.priority > mine.priority for row in config.members):
            return False  # somebody is about to take over
        term = leader.node.term
        other = self.rng.choice([row.host for row in config.members if row.host != leader.host])
        if random.Random(f"{self.run.seed} link {self.cluster.now}").random() < 0.5:
            self.cluster.reject(leader.host, other)
        else:
            self.cluster.cut = {(leader.host, other), (other, leader.host)}
        self.cluster.run(LINK_BROKEN_MS)
        self.cluster.heal()
        if leader.node.state is not MemberState.PRIMARY or leader.node.term != term:
            raise SimulationError(f"invariant 12 broken: {leader.host} led term {term}, its link to {other} broke")
        return True

    def _in_between(self) -> bool:
        try:
            return self.run.size == 5 and self._is_calm() and self._run_in_between()
        finally:
            self.run.is_paused = False

    def _run_in_between(self) -> bool:
        """Entries of an old term are committed through a higher one, while somebody had a term in between alone; a
        member that has only some of them then meets that one.
        """
        cluster = self.cluster
        leader = cluster.elect()
        old = cluster.number_of(leader)
        bearing = [m.host for m in leader.node.config.oplog_voters if m.host != leader.host]
        if not bearing:  # the others have lost their votes
            return False
        late = cluster.number_of(cluster.machines[self.rng.choice(bearing)])
        others = [number for number in range(5) if number not in (old, late)]
        self._partition([old], [late], others)
        for number in range(5):
            leader.write(f"{self.run.seed} alone {cluster.now} {number}")

        def leads(number: int) -> bool:
            node, log = cluster[number].node, cluster[number].disk.log
            return node.state is MemberState.PRIMARY and bool(log)

        if not self._wait(lambda: any(leads(number) for number in others), 4_000, 1):
            return False
        between = next(number for number in others if leads(number))
        others.remove(between)
        self._partition([old], [late], [between], others)
        node, disk = cluster[between].node, cluster[between].disk
        if not self._wait(lambda: disk.log[-1][0].term == node.term, 1_000):
            return False
        newest = disk.log[-1][0]
        if not self._wait(lambda: node.state is MemberState.SECONDARY, 4_000):
            return False
        self._partition([old, *others], [late], [between])
        if not self._wait(lambda: any(b.node.commit_point > newest for b in cluster.machines.values()), 8_000):
            return False
        pages, cluster.pages = cluster.pages, (1,)
        had, here = cluster[late].disk.log[-1][0], cluster[late]
        self._partition([old, *others, late], [between])
        self._wait(lambda: here.disk.log[-1][0] > had and here.node.commit_point == here.disk.log[-1][0], 2_000, 1)
        self._partition([old, *others], [late, between])
        cluster.run(3_000)
        cluster.pages = pages
        cluster.heal()
        return True

    def _older_config(self) -> bool:
        """A bare majority, an arbiter among it, has a changed configuration. Who has not heard of it stands where with
        that arbiter's vote it would have a majority.
        """
        cluster = self.cluster
        leader = cluster.primary
        voters = [] if leader is None else [v for v in leader.node.config.voters if v.host != leader.host]
        arbiters, able = [v for v in voters if v.arbiter_only], [v for v in voters if v.is_electable]
        if leader is None or len(voters) % 2 or not arbiters or not able:
            return False
        arbiter, candidate = self.rng.choice(arbiters), self.rng.choice(able)
        rest = [v for v in voters if v not in (arbiter, candidate)]
        beside = self.rng.sample(rest, len(rest) // 2)
        numbers = [cluster.number_of(cluster.machines[v.host]) for v in (arbiter, *beside)]
        old = cluster.number_of(leader)
        self._partition([old, *numbers], [number for number in range(self.run.size) if number not in (old, *numbers)])
        before, rows = leader.node.config, list(leader.node.config.members)
        place = rows.index(candidate)
        rows[place] = replace(candidate, priority=candidate.priority + 1)
        if not self._reconfigure(leader, rows):
            return False
        machines = [leader, *(cluster[number] for number in numbers)]
        if not self._wait(lambda: all(machine.disk.config.version > before.version for machine in machines), 900, 1):
            return False
        self._partition([old, *numbers[1:]], [n for n in range(self.run.size) if n not in (old, *numbers[1:])])
        cluster.ask(cluster.number_of(cluster.machines[candidate.host]), StepUpRequest(True))
        cluster.run(SETTLED_MS)
        return True

    def _behind_the_arbiter(self) -> bool:
        """Somebody who lacks what an arbiter knows to be committed asks for its vote once the primary is gone."""
        cluster = self.cluster
        leader = cluster.primary
        voters = [] if leader is None else [v for v in leader.node.config.voters if v.host != leader.host]
        arbiters, able = [v for v in voters if v.arbiter_only], [v for v in voters if v.is_electable]
        if leader is None or not arbiters or not able:
            return False
        late = cluster.machines[self.rng.choice(able).host]
        number, asked = cluster.number_of(late), cluster.machines[self.rng.choice(arbiters).host]
        self._partition([number], [other for other in range(self.run.size) if other != number])
        leader.write(f"{self.run.seed} committed {cluster.now}")
        if not self._wait(lambda: asked.node.commit_point > late.disk.log[-1][0], 500, 1):
            return False
        self.run.stop(leader)
        self._wait(lambda: asked.node.peer_at(leader.host).state is MemberState.DOWN, 400, 1)
        cluster.heal()
        cluster.ask(number, StepUpRequest(True))
        cluster.run(SETTLED_MS)
        return True

    def _partition(self, *groups: list[int]) -> None:
        group_of = {host(number): group for group, numbers in enumerate(groups) for number in numbers}
        machines = self.cluster.machines
        self.cluster.cut = {(a, b) for a in machines for b in machines if group_of[a] != group_of[b]}
