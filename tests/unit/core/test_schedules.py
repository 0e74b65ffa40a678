"""Random schedules of cuts, crashes, power losses, lost disks, stepdowns and reconfigs; each must end well.

The kit checks after every event that there is one primary per term, one vote per member and term, a commit point that
never moves back, and one committed history. At the end everything heals, and within a minute the set must have one
primary, equal logs, and all that was ever committed.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import replace

import pytest

from replset.config import Member, ReplSetConfig
from replset.core.effects import Persist, Reply, Send
from replset.core.messages import Done, FreezeRequest, ReconfigRequest, Refused, StepDownRequest
from replset.errors import ReplError
from replset.ids import MemberId
from tests.unit.core.kit import Box, Cluster, host, members_of

SHAPES = ((3, 0), (3, 1), (5, 0), (5, 1), (4, 0), (2, 0), (5, 2), (1, 0))
ACTIONS = (
    *("write",) * 4,
    *("run",) * 2,
    *("isolate", "one way", "heal", "crash", "power", "restart", "lose disk", "step down", "reconfig", "freeze"),
)


class Schedule:
    """One seed: a set of some shape, and what happens to it."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.size, arbiters = self.rng.choice(SHAPES)
        latency = self.rng.choice([3, 40])
        self.cluster = Cluster(self.size, seed=seed, latency_ms=(1, latency))
        self.cluster.default_write_concern_set = True
        self.cluster.persist_ms = self.rng.choice([0, 2, 30])
        self.cluster.sync_ms = self.rng.choice([1, 5, 60])
        self.writes = 0
        answer = self.cluster.initiate(*self._rows(arbiters))
        assert isinstance(answer, Done)
        self.cluster.until(self.cluster.is_quiet, 60_000)
        self.cluster.loss = self.rng.choice([0.0, 0.0, 0.05])

    def _rows(self, arbiters: int) -> tuple[Member, ...]:
        rows = []
        for row in members_of(self.size):
            if row.id >= self.size - arbiters:
                rows.append(replace(row, arbiter_only=True, priority=0.0))
            else:
                rows.append(replace(row, priority=float(self.rng.choice([0, 1, 1, 2]) if row.id else 1)))
        return tuple(rows)

    def run(self) -> None:
        for _ in range(self.rng.randint(10, 40)):
            self.step(self.rng.choice(ACTIONS), self.rng.randrange(self.size))
            self.cluster.run(self.rng.choice([1, 5, 20, 200, 1_500]))
        self.end_well()

    def step(self, action: str, number: int) -> None:
        cluster, rng = self.cluster, self.rng
        box = cluster[number]
        match action:
            case "write":
                for writer in cluster.boxes.values():
                    self.writes += 1
                    writer.write(f"{self.seed}.{self.writes}")
            case "isolate":
                cluster.isolate(*rng.sample(range(self.size), rng.randint(1, max(1, self.size // 2))))
            case "one way":
                cluster.cut.add((host(rng.randrange(self.size)), box.host))
            case "heal":
                cluster.heal()
            case "crash" | "power" if box.alive:
                box.crash(power=action == "power")
            case "restart" if not box.alive:
                box.boot()
            case "lose disk" if self._may_lose_disk(box):
                box.wipe()
                cluster.run(50)
                box.boot()
            case "step down" if box.alive:
                cluster.ask(number, StepDownRequest(1_000, rng.choice([0, 500]), rng.random() < 0.3))
            case "reconfig" if box.alive and box.node.config is not None:
                self._reconfig(number, box.node.config)
            case "freeze" if box.alive:
                cluster.ask(number, FreezeRequest(rng.choice([0, 1_000])))

    def _may_lose_disk(self, box: Box) -> bool:
        """One disk of at least three voters, all up, all named, and somebody else can lead; on even seeds only."""
        config = box.node.config
        if self.seed % 2 or config is None or not self.cluster.all_counted() or len(config.voters) < 3:
            return False
        others = any(member.is_electable and member.host != box.host for member in config.voters)
        return others and all(other.alive for other in self.cluster.boxes.values())

    def _reconfig(self, number: int, config: ReplSetConfig) -> None:
        rows = list(config.members)
        place = self.rng.randrange(len(rows))
        row = rows[place]
        if row.arbiter_only:
            return
        votes = self.rng.choice([0, 1]) if row.id != MemberId(0) and self.seed % 2 else row.votes
        rows[place] = replace(row, votes=votes, priority=float(self.rng.choice([0, 1, 2])) if votes else 0.0)
        try:
            wanted = ReplSetConfig.parse(self.cluster.user_config(number, *rows).document())
        except ReplError:
            return  # nobody electable left
        self.cluster.ask(number, ReconfigRequest(wanted, False, 2_000))

    def end_well(self) -> None:
        cluster = self.cluster
        cluster.loss = 0.0
        cluster.heal()
        for box in cluster.boxes.values():
            if not box.alive:
                box.boot()
        cluster.until(cluster.is_quiet, 60_000)
        log = cluster.elect().disk.log
        assert log[: len(cluster.committed_log)] == cluster.committed_log


@pytest.mark.parametrize("seed", range(60))
def test_schedules(seed: int) -> None:
    """DESIGN, invariants 1, 2, 3 and 8, on the core alone."""
    Schedule(seed).run()


def trace(seed: int) -> str:
    schedule = Schedule(seed)
    schedule.run()
    seen = hashlib.sha256()
    for box in schedule.cluster.boxes.values():
        for effect in box.effects:
            if isinstance(effect, Persist | Send | Reply):
                seen.update(repr(effect).encode())
    return seen.hexdigest()


def test_a_seed_gives_the_same_run_again() -> None:
    """The core draws only from the Random handed in, and depends on no order of a set."""
    assert trace(4) == trace(4)
    assert trace(4) != trace(5)


def test_the_kit_sees_a_broken_rule() -> None:
    """A member that forgets its vote across a restart: the check that guards all schedules fails on it."""
    schedule = Schedule(1)
    cluster = schedule.cluster
    box = cluster.elect()
    last = box.disk.last_vote
    assert last is not None
    with pytest.raises(AssertionError, match="voted twice"):
        cluster.vote_cast(box, replace(last, candidate=MemberId(99)))


def test_a_refused_reconfig_changes_nothing() -> None:
    schedule = Schedule(3)
    cluster = schedule.cluster
    leader = cluster.elect()
    config = leader.node.config
    assert config is not None
    answer = cluster.reconfig(cluster.number_of(leader), config)
    assert isinstance(answer, Refused)
    assert leader.node.config == config
