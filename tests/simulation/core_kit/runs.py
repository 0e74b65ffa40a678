"""One seeded run of the core alone: faults and writes, then all links heal and the set must recover in time.

The checkers run after every event. This file draws the faults and looks for rings of members that follow each other.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from dataclasses import replace

from replset.config import MAX_GIVEN_VERSION, Member, ReplSetConfig
from replset.core.effects import PersistedRecord
from replset.core.member_state import MemberState
from replset.core.messages import MAX_TERM, MAX_TERM_JUMP, Done, FreezeRequest, ReconfigRequest, StepDownRequest
from replset.core.reconfig import ReconfigStage
from replset.errors import ReplError
from replset.ids import HostPort
from tests.simulation.core_kit.changes import CoreChanges
from tests.simulation.core_kit.cluster import CoreCluster
from tests.simulation.core_kit.faults import CoreFaults
from tests.simulation.core_kit.kind_changes import KindChanges
from tests.simulation.core_kit.machine import CoreMachine, host, members_of
from tests.simulation.core_kit.orders import check_order, check_refusals
from tests.simulation.core_kit.rest import check_rest
from tests.simulation.kit.errors import SimulationError
from tests.simulation.kit.runs import Outcome

CORE = "--core"
CORE_CHANGES = "--core-changes"
SHAPES = ((3, 0), (3, 0), (3, 1), (3, 1), (5, 0), (5, 1), (4, 0), (2, 0), (5, 2), (1, 0))
"""Members, and how many of them are arbiters."""
FAULTS = (
    *("kill", "power", "kill primary", "power of all", "while it saves", "lose disk", "lose disk"),
    *("isolate", "isolate primary", "one way", "heal", "heal", "loss", "late", "stalls"),
    *("step down", "freeze", "reconfig", "cut in reconfig"),
)
FAULTS_MS = 30_000
WELL_WITHIN_MS = 60_000
ARBITERS_KNOW_WITHIN_MS = 5_000
NEAR_BOUNDS = 0.2
"""In so many runs the terms begin near the highest one, and in so many the version of the configuration does."""
TERMS_LEFT = 4 * MAX_TERM_JUMP  # nobody believes the highest one yet
ORDERS = 2
RING_CHECK_MS = 100
RING_CHECKS_MAX = 20
"""A ring stays until a member gives up on a source that it does not reach, half a second each; two are too long."""


def run_core_changes(seed: int) -> Outcome:
    """Run one seed in which operators change the set all the time."""
    return run_core(seed, CORE_CHANGES)


def run_core(seed: int, option: str = CORE) -> Outcome:
    """Run one seed to its end or to the first broken invariant."""
    run = CoreRun(seed, option)
    error: str | None = None
    try:
        run.run()
    except Exception as broken:  # whatever stops a run is its verdict
        error = f"{type(broken).__name__}: {broken}"
    return run.outcome(error)


class CoreRun:
    """One seed: a set of some shape, and what happens to it."""

    def __init__(self, seed: int, option: str = CORE) -> None:
        self.seed = seed
        self.option = option
        self.rng = rng = random.Random(seed)
        self.loses_disks, self.moves_votes = not seed % 2, bool(seed % 2)
        self.size, self.arbiters = rng.choice(SHAPES)
        self.witnesses = 0
        self.more: CoreFaults | CoreChanges | None = None
        if option == CORE_CHANGES:
            self.more = CoreChanges(self)
        elif seed % 5 in (1, 2):
            self.more = CoreFaults(self)
        if self.more is not None:
            self.size, self.arbiters = self.more.shape()
        self.kinds = KindChanges(self) if option == CORE and seed % 5 == 4 else None
        if self.kinds is not None:
            self.size, self.arbiters, self.witnesses = self.kinds.shape()
        self.members = self.size
        if isinstance(self.more, CoreChanges):
            self.witnesses = self.more.witnesses()
            self.size += self.more.extra()
        self.cluster = CoreCluster(self.size, seed=seed, latency_ms=(1, rng.choice((3, 40))))
        self.cluster.default_write_concern_set = True
        if isinstance(self.more, CoreChanges):
            self.cluster.on_reconfig.append(self.more.watch_spares)
        self.cluster.persist_ms = rng.choice((0, 2, 30))
        self.cluster.sync_ms = rng.choice((1, 5, 60))
        self.cluster.pages = rng.choice(((), (1, 3, 100)))
        self.writes = 0
        self.is_over = False
        self.is_paused = False
        self._rings: Counter[frozenset[HostPort]] = Counter()

    def run(self) -> None:
        """Two phases: faults and writes, then everything whole and well in time; fails when something breaks."""
        cluster = self.cluster
        bounds = random.Random(f"{self.seed} bounds")
        if bounds.random() < NEAR_BOUNDS:
            cluster.begin_in_term(MAX_TERM - TERMS_LEFT)
        answer = cluster.initiate(*self._rows())
        if not isinstance(answer, Done):
            raise SimulationError(f"initiate: {answer}")
        cluster.until(cluster.is_quiet, WELL_WITHIN_MS)
        if bounds.random() < NEAR_BOUNDS:
            self._give_version(MAX_GIVEN_VERSION - bounds.randint(0, 3))
        self._write()
        self._check_rings()
        ends = cluster.now + FAULTS_MS
        weights = [self.rng.choice((0, 1, 1, 2, 4)) for _ in FAULTS]  # some never, some often: so that they meet
        while cluster.now < ends:
            cluster.run(self.rng.choice((5, 50, 300, 1_000, 3_000)))
            self._fault(self.rng.choices(FAULTS, weights)[0])
            if self.more is not None:
                self.more.draw()
            if self.kinds is not None:
                self.kinds.draw()
        if self.more is not None:
            self.more.end()
        self.is_over = True
        self.repair_all()
        healed = cluster.now
        cluster.until(cluster.is_quiet, WELL_WITHIN_MS)
        cluster.done["ms until well"] = cluster.now - healed
        cluster.until(self._arbiters_know_commit_point, ARBITERS_KNOW_WITHIN_MS)
        log = cluster.elect().disk.log
        if log[: len(cluster.checkers.committed_log)] != cluster.checkers.committed_log:
            raise SimulationError("invariant 3 broken at the end: committed entries are missing")
        check_rest(cluster)
        check_refusals(cluster)
        orders = random.Random(f"{self.seed} orders")
        for _ in range(ORDERS):
            check_order(cluster, orders)
            check_rest(cluster)

    def _give_version(self, version: int) -> None:
        """An operator gives the configuration this version."""
        cluster = self.cluster
        number = cluster.number_of(cluster.elect())
        answer = cluster.reconfig(number, replace(cluster.user_config(number), version=version))
        if not isinstance(answer, Done):
            raise SimulationError(f"reconfig: {answer}")
        cluster.until(cluster.is_quiet, WELL_WITHIN_MS)

    def _arbiters_know_commit_point(self) -> bool:
        """Whether each arbiter in the set knows what is committed."""
        node = self.cluster.elect().node
        arbiters = [row.host for row in node.config.members if row.arbiter_only] if node.config else []
        return all(self.cluster.machines[address].node.commit_point == node.commit_point for address in arbiters)

    def outcome(self, error: str | None) -> Outcome:
        cluster, counts = self.cluster, self.cluster.done
        counts["simulated seconds"] = cluster.now // 1000
        counts["terms"] = len(cluster.checkers.primaries)
        counts["entries committed"] = len(cluster.checkers.committed_log)
        counts["uncounted copies undone"] = cluster.checkers.uncounted_undone
        facts = (
            f"{self.members - self.arbiters}+{self.arbiters} members, {self.witnesses} of them witnesses,"
            f" {cluster.now / 1000:.0f} s, {counts['terms']} terms,"
            f" {counts['entries committed']} entries committed, {counts['undo steps']} undo steps,"
            f" {counts['copies']} copies"
        )
        digest = hashlib.sha256("\n".join(cluster.trace).encode()).hexdigest()
        return Outcome(self.seed, error, digest, tuple(cluster.trace), facts, counts, self.option)

    def _rows(self) -> tuple[Member, ...]:
        rows = members_of(self.members, arbiters=self.arbiters, witnesses=self.witnesses)
        drawn = tuple(
            row if not row.bears_data or not row.id else replace(row, priority=float(self.rng.choice((0, 1, 1, 2))))
            for row in rows
        )
        return self.more.rows(drawn) if isinstance(self.more, CoreChanges) else drawn

    def _write(self) -> None:
        """From now on somebody writes wherever writes are accepted, now and then; not when all shall be quiet."""
        for machine in () if self.is_paused else self.cluster.machines.values():
            if self.rng.random() < 0.7:
                self.writes += 1
                machine.write(f"{self.seed}.{self.writes}")
        if not self.is_over:
            self.cluster.at(self.rng.randint(5, 200), self._write)

    def repair_all(self) -> None:
        """Every link, every member; nothing more waits to happen."""
        cluster = self.cluster
        cluster.loss = cluster.late = cluster.stalls = 0.0
        cluster.on_persist.clear()
        cluster.heal()
        for machine in cluster.machines.values():
            if not machine.alive:
                machine.boot()

    # --- faults --------------------------------------------------------------------------------------------------

    def _fault(self, kind: str) -> None:
        cluster, rng = self.cluster, self.rng
        number = rng.randrange(self.size)
        machine, primary = cluster[number], cluster.primary
        cluster.done[f"fault {kind}"] += 1
        match kind:
            case "kill" | "power" if machine.alive:
                self.stop(machine, power=kind == "power")
            case "kill primary" if primary is not None:
                self.stop(primary, power=rng.random() < 0.5)
            case "power of all":
                for one in cluster.machines.values():
                    if one.alive:
                        self.stop(one, power=True)
            case "while it saves" if self._lose_power_while_saving not in cluster.on_persist:
                cluster.on_persist.append(self._lose_power_while_saving)
            case "cut in reconfig" if self._cut_in_reconfig not in cluster.on_persist:
                cluster.on_persist.append(self._cut_in_reconfig)
            case "lose disk" if self.may_lose(machine):
                self.stop(machine, wipe=True)
                if primary is not None and primary is not machine and rng.random() < 0.5:
                    cluster.isolate(cluster.number_of(primary))
            case "isolate":
                cluster.isolate(*rng.sample(range(self.size), rng.randint(1, max(1, self.size // 2))))
            case "isolate primary" if primary is not None:
                cluster.isolate(cluster.number_of(primary))
            case "one way":
                cluster.cut.add((host(rng.randrange(self.size)), machine.host))
            case "heal":
                cluster.heal()
            case "loss":
                cluster.loss = rng.choice((0.0, 0.05, 0.2))
            case "late":
                cluster.late = rng.choice((0.0, 0.05))
            case "stalls":
                cluster.stalls = rng.choice((0.0, 0.1, 0.4))
            case "step down" if machine.alive:
                cluster.ask(number, StepDownRequest(1_000, rng.choice((0, 500)), rng.random() < 0.3))
            case "freeze" if machine.alive:
                cluster.ask(number, FreezeRequest(rng.choice((0, 1_000))))
            case "reconfig" if primary is not None and primary.node.config is not None:
                self._reconfig(cluster.number_of(primary), primary.node.config)
            case _:
                cluster.done[f"fault {kind}"] -= 1
                return
        cluster.note("fault", f"{kind} {machine.host}")

    def stop(self, machine: CoreMachine, *, power: bool = False, wipe: bool = False) -> None:
        """It comes back at once, as a supervisor sees to, or after a while."""
        machine.crash(power=power, kept=self.rng.randint(0, len(machine.disk.log) - machine.disk.durable))
        if wipe:
            machine.wipe()
        self.cluster.note(machine.host, "loses its disk" if wipe else "loses its power" if power else "is killed")
        at_once = self.rng.random() < 0.4
        self.cluster.at(
            self.rng.randint(10, 300 if at_once else 4_000), lambda: None if machine.alive else machine.boot()
        )

    def _lose_power_while_saving(self, machine: CoreMachine, _record: PersistedRecord) -> None:
        """The next member that saves something loses its power before that is on disk, or right after."""
        self.cluster.on_persist.remove(self._lose_power_while_saving)
        delay = self.rng.randint(0, self.cluster.persist_ms + 4)
        self.cluster.at(delay, lambda: self.stop(machine, power=True) if machine.alive and not self.is_over else None)

    def _cut_in_reconfig(self, machine: CoreMachine, record: PersistedRecord) -> None:
        """A primary that changes the configuration is cut off when few or all have heard of it."""
        before = machine.disk.config
        if not isinstance(record, ReplSetConfig) or before is None or machine.node.state is not MemberState.PRIMARY:
            return
        gives_vote = len(record.voters) > len(before.voters)
        if not gives_vote and self.rng.random() < 0.5:
            return
        self.cluster.on_persist.remove(self._cut_in_reconfig)
        delay = self.rng.randint(0, self.rng.choice((5, 50, 500)))
        self.cluster.at(delay, lambda: None if self.is_over else self.cluster.isolate(self.cluster.number_of(machine)))

    def may_lose(self, *machines: CoreMachine) -> bool:
        """A majority has named everybody's data, and others can lead; never where votes move, or one is about to.

        The members that answered a primary's check of a change may not lose a disk before it is on one: where the new
        configuration needs them all, only an operator could bring a primary back (docs/core.md). A member that begins
        to be copied anew counts as one that has lost its data: its vote is void until a primary counts it again.
        """
        changes = [one.node._reconfigs._change for one in self.cluster.machines.values() if one.alive]
        if any(change is not None and change.stage is not ReconfigStage.WAITING for change in changes):
            return False
        configs = [one.disk.config for one in self.cluster.machines.values() if one.disk.config is not None]
        if not self.loses_disks or not all(machine.alive for machine in machines) or not configs:
            return False
        up = [one for one in self.cluster.machines.values() if one.alive]
        copied = {one.host for one in up if one.node.state is MemberState.STARTUP2}
        lost = {machine.host for machine in machines} | copied
        newest = max(configs, key=lambda config: config.version_and_term[::-1])
        named = {member.host: member.incarnation for member in newest.voters}
        return (
            lost <= named.keys()
            and 2 * configs.count(newest) > len(newest.members)
            and all(named[voter] == self.cluster.machines[voter].disk.incarnation for voter in named)
            and not any(member.newly_added for member in newest.members)
            and len(newest.voters) - len(lost) >= newest.majority_vote_count
            and any(member.is_electable and member.host not in lost for member in newest.voters)
        )

    def _reconfig(self, number: int, config: ReplSetConfig) -> None:
        """Another priority for somebody; where votes move a vote taken or given, too."""
        rows = list(config.members)
        place = self.rng.randrange(len(rows))
        row = rows[place]
        if not row.bears_data:
            return
        votes = self.rng.choice((0, 1)) if row.id and self.moves_votes else row.votes
        rows[place] = replace(row, votes=votes, priority=float(self.rng.choice((0, 1, 2))) if votes else 0.0)
        try:
            wanted = ReplSetConfig.parse(self.cluster.user_config(number, *rows).document())
        except ReplError:
            return  # nobody electable left
        self.cluster.ask(number, ReconfigRequest(wanted, False, 2_000))

    # --- rings ---------------------------------------------------------------------------------------------------

    def _check_rings(self) -> None:
        """From now on: a ring of members each of which follows the next one passes; it brings nobody anything."""
        found = rings(self.cluster)
        self._rings = Counter({ring: self._rings[ring] + 1 for ring in found})
        for ring, looks in self._rings.items():
            if looks > RING_CHECKS_MAX:
                raise SimulationError(f"invariant 9 broken at {self.cluster.now} ms: {sorted(ring)} follow each other")
        self.cluster.at(RING_CHECK_MS, self._check_rings)


def rings(cluster: CoreCluster) -> set[frozenset[HostPort]]:
    """Members each of which follows the next one, and the last one the first."""
    found = set()
    for start in cluster.machines:
        path: list[HostPort] = []
        at: HostPort | None = start
        while at is not None and at not in path:
            path.append(at)
            machine = cluster.machines[at]
            at = machine.node.sync_source if machine.alive else None
        if at is not None:
            found.add(frozenset(path[path.index(at) :]))
    return found
