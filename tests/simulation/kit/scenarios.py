"""Named stories, each run on whole members and judged by the checkers like any seeded run.

A scenario raises SimulationError when an invariant breaks or when the story cannot be told (somebody who should win
does not); it returns what its test looks at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from replset.core.member_state import MemberState
from tests.simulation.kit.checkers import Checkers, manifests
from tests.simulation.kit.cluster import FAIR, SimCluster, Weather, quiet_logs
from tests.simulation.kit.errors import SimulationError
from tests.simulation.kit.wire import NoAnswerError
from tests.simulation.kit.workload import Workload, Write


@dataclass(slots=True)
class Stage:
    """A running set with its checkers, and hands to play with it. The primary at the beginning is `primary`."""

    cluster: SimCluster
    checkers: Checkers
    workload: Workload
    primary: str = ""
    others: tuple[str, ...] = ()
    numbers: int = 0

    def write(self, name: str, kind: str = "insert", key: int | None = None, concern: str = "majority") -> Write:
        """One write of a client to `name`."""
        self.numbers += 1
        write = Write(
            self.numbers,
            kind,
            1000 + self.numbers if key is None else key,
            f"token-{self.numbers}-",
            concern,
            self.cluster.host(name),
            self.cluster.loop.now_ms,
        )
        client = self.cluster.client()
        self.cluster.run(self.workload.write(client, write))
        client.close()
        return write

    def expect(self, condition: bool, what: str) -> None:
        if not condition:
            raise SimulationError(f"the story cannot be told: {what}\n{self.cluster.summary()}")

    def step_up(self, name: str, *, wins: bool = True) -> None:
        """`name` stands for election at once, without a dry run."""
        with suppress(NoAnswerError):
            self.cluster.command(name, {"replSetStepUp": 1, "skipDryRun": True}, timeout_s=1.5)
        if wins:
            member = self.cluster.machines[name].running
            self.expect(member is not None and member.node.state is MemberState.PRIMARY, f"{name} wins")

    def when(self, condition: Callable[[], bool], do: Callable[[], None]) -> None:
        """Do something in the very step in which `condition` comes true."""

        def look() -> None:
            if condition():
                self.cluster.on_step.remove(look)
                do()

        self.cluster.on_step.append(look)

    def kill_after(self, name: str, state: MemberState, steps: int, *, power_loss: bool) -> list[bool]:
        """Kill `name` so many turns of the loop after it came into `state`; the list says if it was still in it."""
        machine = self.cluster.machines[name]
        still: list[bool] = []
        left = steps

        def look() -> None:
            nonlocal left
            member = machine.running
            if member is None or (left == steps and member.node.state is not state):
                return
            left -= 1
            if left < 0:
                self.cluster.on_step.remove(look)
                still.append(member.node.state is state)
                self.cluster.kill(name, power_loss=power_loss)

        self.cluster.on_step.append(look)
        return still

    def is_primary(self, name: str) -> bool:
        member = self.cluster.machines[name].running
        return member is not None and member.node.state is MemberState.PRIMARY

    def sees(self, one: str, other: str) -> bool:
        """Whether `one` heard from this life of `other`."""
        member, seen = self.cluster.machines[one].running, self.cluster.machines[other].running
        peer = None if member is None else member.node.peer_at(self.cluster.host(other))
        return seen is not None and peer is not None and peer.last_contact > seen.started_at and peer.is_up

    def cut_pair(self, one: str, other: str) -> None:
        self.cluster.network.cut(one, other)
        self.cluster.network.cut(other, one)

    def uncut_pair(self, one: str, other: str) -> None:
        self.cluster.network.uncut(one, other)
        self.cluster.network.uncut(other, one)

    def heal_all_and_judge(self) -> None:
        """Everybody well again, then every check."""
        self.cluster.heal()
        for name, machine in self.cluster.machines.items():
            if machine.life is None:
                self.cluster.restart(name)
        self.cluster.run_until(self.cluster.converged, 90, "converged")
        self.checkers.at_the_end()


@contextmanager
def staged(
    members: int = 3, arbiters: int = 0, seed: int = 1, weather: Weather = FAIR, **settings: object
) -> Iterator[Stage]:
    quiet_logs()
    with SimCluster(members, arbiters, seed=seed, weather=weather) as cluster:
        hosts = [machine.host for machine in cluster.machines.values()]
        workload = Workload(cluster.loop, hosts, cluster.random_for("workload"), cluster.client)
        stage = Stage(cluster, Checkers(cluster, workload.history), workload)
        cluster.initiate(settings=settings)
        stage.primary = cluster.primary() or ""
        stage.others = tuple(cluster.secondaries())
        yield stage


def failover_with_rollback() -> list[dict[str, Any]]:
    """A cut-off primary takes writes at w:1, the others go on without it; on rejoin it undoes them into files."""
    with staged() as stage:
        cluster, old = stage.cluster, stage.primary
        for _ in range(5):
            stage.expect(stage.write(old).acknowledged, "a majority write")
        kept, deleted = (stage.write(old).id for _ in range(2))
        cluster.cut([old])
        stage.expect(stage.write(old, concern="w1").acknowledged, "a doomed insert")
        stage.expect(stage.write(old, "update", kept, "journaled").acknowledged, "a doomed update")
        stage.expect(stage.write(old, "delete", deleted, "w1").acknowledged, "a doomed delete")
        cluster.run_until(lambda: cluster.primary() not in (None, old), 20, "another primary")
        stage.expect(stage.write(cluster.primary() or "").acknowledged, "a write on the new primary")
        stage.heal_all_and_judge()
        return manifests(cluster.machines[old].disk)


def stale_primary() -> Write:
    """A primary that is cut off, and does not know it yet, acknowledges nothing at w:majority."""
    with staged() as stage:
        old = stage.primary
        stage.write(old)
        stage.cluster.cut([old])
        write = stage.write(old)
        stage.heal_all_and_judge()
        return write


def figure_eight() -> None:
    """Raft, figure 8: an entry of an old term is on a majority, and yet another primary overwrites it.

    a writes alone and is cut off. b wins the next term, writes its own first entry, and is cut off. c fetches what a
    wrote; a wins again with its vote, and then c hears no more of a. Then b wins with the vote of c.
    """
    with staged(catchUpTimeoutMillis=0) as stage:
        cluster = stage.cluster
        a, (b, c) = stage.primary, stage.others
        cluster.cut([a])
        for _ in range(3):
            stage.expect(stage.write(a, concern="w1").acknowledged, "a write on a alone")
        stage.when(lambda: stage.is_primary(b) or stage.is_primary(c), lambda: stage.cut_pair(b, c))
        cluster.run_until(lambda: cluster.primaries_ever[-1] in (b, c), 10, "another wins")
        if stage.is_primary(c):
            b, c = c, b
        cluster.run_until(lambda: not stage.is_primary(b) and not stage.is_primary(a), 10, "both step down")
        stage.uncut_pair(a, c)
        mirrors = stage.checkers.mirrors
        stage.when(lambda: stage.is_primary(a), lambda: cluster.network.cut(a, c))
        cluster.run_until(lambda: stage.is_primary(a), 30, "a wins again")
        cluster.run_for(0.7)
        stage.expect(stage.is_primary(a), "a leads")
        stage.expect(
            mirrors[c].newest() == mirrors[a].entries[-2].optime, "c has what a wrote long ago, not its new entry"
        )
        stage.expect(mirrors[c].newest().term < mirrors[b].newest().term, "and that is older than what b has")
        cluster.cut([a])
        stage.uncut_pair(b, c)
        cluster.run_until(lambda: stage.is_primary(b), 30, "b wins again")
        stage.heal_all_and_judge()


def vote_over_restart() -> None:
    """A voter dies right after its vote made b primary, and c asks it for its vote in the same term."""
    with staged() as stage:
        cluster = stage.cluster
        a, (b, c) = stage.primary, stage.others
        stage.write(a)
        cluster.run_until(cluster.converged, 10, "all the same")
        cluster.cut([c])

        def cut_and_kill() -> None:
            cluster.cut([a])
            cluster.kill(a)

        stage.when(lambda: stage.is_primary(b), cut_and_kill)
        stage.step_up(b, wins=False)
        stage.expect(cluster.machines[a].life is None, "b has won and the voter is dead")
        cluster.kill(c)  # what a may have told it of the new term is lost on the way
        stage.uncut_pair(a, c)
        cluster.run_for(0.05)
        cluster.restart(a)
        cluster.restart(c)
        cluster.run_until(lambda: stage.sees(c, a), 5, "c sees the voter, which is back")
        stage.step_up(c, wins=False)
        cluster.run_for(1)
        stage.heal_all_and_judge()


def candidate_behind() -> None:
    """A member that missed a majority write stands for election, and must not win (nor be saved by a catch-up)."""
    with staged(catchUpTimeoutMillis=0) as stage:
        cluster = stage.cluster
        a, (b, c) = stage.primary, stage.others
        cluster.cut([c])
        stage.expect(stage.write(a).acknowledged, "a majority write without c")
        cluster.network.heal()
        cluster.cut([a])
        stage.step_up(c, wins=False)
        cluster.run_until(lambda: cluster.primary() in (b, c), 20, "another primary")
        stage.heal_all_and_judge()


def emptied_voter() -> None:
    """A majority write is on a and b; b is emptied and copies c, which missed the write: the two must not elect."""
    with staged(catchUpTimeoutMillis=0) as stage:
        cluster = stage.cluster
        a, (b, c) = stage.primary, stage.others
        cluster.cut([c])
        stage.expect(stage.write(a).acknowledged, "a majority write without c")
        cluster.kill(b, wipe=True)
        cluster.cut([a])
        stage.uncut_pair(b, c)
        cluster.restart(b)
        fresh = cluster.machines[b]
        cluster.run_until(
            lambda: fresh.running is not None and fresh.running.node.state is MemberState.SECONDARY, 30, "b copies c"
        )
        cluster.run_for(8)
        stage.heal_all_and_judge()


def journaled_then_dark() -> None:
    """The power of all goes in the moment in which a j:true write is acknowledged; disks are slow."""
    with staged(weather=Weather(worker_ms=60)) as stage:
        for _ in range(4):
            primary = stage.cluster.primary() or ""
            stage.expect(stage.write(primary, concern="journaled").acknowledged, "a journaled write")
            for name in stage.cluster.alive():
                stage.cluster.kill(name, power_loss=True)
            for name in stage.cluster.machines:
                stage.cluster.restart(name)
            stage.cluster.run_until(stage.cluster.converged, 60, "converged")
        stage.heal_all_and_judge()


def rollback_interrupted(after_steps: int, *, power_loss: bool) -> bool:
    """The member that rolls back dies some turns of the loop after it began. True: it was still rolling back."""
    with staged(seed=after_steps, weather=Weather(undo_step=1)) as stage:
        cluster, old = stage.cluster, stage.primary
        for _ in range(3):
            stage.write(old)
        kept = stage.write(old).id
        cluster.cut([old])
        for _ in range(4):
            stage.write(old, concern="journaled")
        stage.write(old, "update", kept, "journaled")
        cluster.run_until(lambda: cluster.primary() not in (None, old), 20, "another primary")
        stage.write(cluster.primary() or "")
        interrupted = stage.kill_after(old, MemberState.ROLLBACK, after_steps, power_loss=power_loss)
        cluster.heal()
        cluster.run_until(lambda: cluster.machines[old].life is None, 30, "the old primary rolls back and dies")
        cluster.restart(old)
        stage.heal_all_and_judge()
        return interrupted[0]


def initial_sync_interrupted(after_steps: int, *, power_loss: bool) -> bool:
    """A member with an empty disk dies some turns of the loop after its first sync began. True: it was in it."""
    with staged(seed=after_steps) as stage:
        cluster, fresh = stage.cluster, stage.others[0]
        for _ in range(3):
            stage.write(stage.primary)
        cluster.kill(fresh, wipe=True)
        interrupted = stage.kill_after(fresh, MemberState.STARTUP2, after_steps, power_loss=power_loss)
        cluster.restart(fresh)
        cluster.run_until(lambda: cluster.machines[fresh].life is None, 30, "the fresh member syncs and dies")
        cluster.restart(fresh)
        stage.write(stage.primary)
        stage.heal_all_and_judge()
        return interrupted[0]


Scenario = Callable[[], object]
SCENARIOS: dict[str, Scenario] = {
    "failover with rollback": failover_with_rollback,
    "stale primary": stale_primary,
    "figure eight": figure_eight,
    "vote over restart": vote_over_restart,
    "candidate behind": candidate_behind,
    "emptied voter": emptied_voter,
    "journaled, then dark": journaled_then_dark,
}
