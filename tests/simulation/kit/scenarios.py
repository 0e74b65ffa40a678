"""Named scenarios, each run on whole members and judged by the checkers like any seeded run.

A scenario raises SimulationError when an invariant breaks or when it cannot go on (a member that should win does
not); it returns its transcript: what was done, what was answered, and how members changed. Members have the
letters of the scenario in it, whatever their names in the run are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass, field

from replset.core.member_state import MemberState
from tests.simulation.kit.checkers import Checkers
from tests.simulation.kit.clients import ClientSite
from tests.simulation.kit.cluster import SimCluster, quiet_logs
from tests.simulation.kit.entries import manifests
from tests.simulation.kit.environment import DEFAULT_ENVIRONMENT, Environment
from tests.simulation.kit.errors import SimulationError
from tests.simulation.kit.machine import RunningNode
from tests.simulation.kit.wire import NoAnswerError
from tests.simulation.kit.workload import Workload, Write


@dataclass(slots=True)
class ScenarioRun:
    """A running set with its checkers, and the functions of a scenario. The primary at the beginning is `primary`."""

    cluster: SimCluster
    checkers: Checkers
    workload: Workload
    primary: str = ""
    others: tuple[str, ...] = ()
    numbers: int = 0
    letters: dict[str, str] = field(default_factory=dict)  # machine -> its letter in the transcript
    lines: list[str] = field(default_factory=list)
    states: dict[str, MemberState] = field(default_factory=dict)

    def note(self, line: str) -> None:
        """One line of the transcript; `{a}` in it becomes the letter of machine a."""
        self.lines.append(line)

    def set_letters(self, *names: str) -> None:
        """Which members are A, B, C and so on in the transcript."""
        self.letters = {name: letter for name, letter in zip(names, "ABCDEFG", strict=False)}

    def transcript(self) -> list[str]:
        return [line.format_map(self.letters) for line in self.lines]

    def watch(self) -> None:
        """From now on the transcript holds changes of members' states."""
        self.states = {row.name: row.node_state.state for row in self.cluster.running_nodes}
        self.cluster.on_change.append(self._note_state)

    def _note_state(self, row: RunningNode) -> None:
        before, now = self.states.get(row.name), row.node_state.state
        self.states[row.name] = now
        if before is now or now is MemberState.STARTUP:
            return
        if before is MemberState.PRIMARY:
            self.note(f"  {{{row.name}}} leads no more")
        elif now is MemberState.PRIMARY:
            self.note(f"  {{{row.name}}} is primary")
        elif now is MemberState.ROLLBACK:
            self.note(f"  {{{row.name}}} rolls back")
        elif now is MemberState.STARTUP2:
            self.note(f"  {{{row.name}}} copies")
        elif before in (MemberState.ROLLBACK, MemberState.STARTUP2):
            self.note(f"  {{{row.name}}} is {now.name.lower()} again")

    def cut(self, *names: str) -> None:
        """Cut the links between these members and the others."""
        self.cluster.cut(list(names))
        self.note(f"cut off: {_in_braces(names)}")

    def heal(self) -> None:
        self.cluster.heal()
        self.note("every link is whole")

    def kill(self, name: str, *, power_loss: bool = False, wipe: bool = False) -> None:
        self.cluster.kill(name, power_loss=power_loss, wipe=wipe)
        self.states.pop(name, None)
        self.note(f"{{{name}}} {'dies, its disk is emptied' if wipe else 'loses power' if power_loss else 'dies'}")

    def restart(self, name: str) -> None:
        self.cluster.restart(name)
        self.note(f"{{{name}}} starts")

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
        outcome = {"ok": "acknowledged", "fail": "refused"}.get(write.outcome, "no answer in time")
        self.note(f"{{{name}}} is asked to {kind} at {concern}: {outcome}")
        return write

    def expect(self, condition: bool, what: str) -> None:
        if not condition:
            raise SimulationError(f"the scenario cannot go on: {what}\n{self.cluster.summary()}")

    def step_up(self, name: str, *, wins: bool = True) -> None:
        """`name` starts an election at once, without a dry run."""
        self.note(f"{{{name}}} stands for election")
        with suppress(NoAnswerError):
            self.cluster.command(name, {"replSetStepUp": 1, "skipDryRun": True}, timeout_s=1.5)
        if wins:
            member = self.cluster.machines[name].running
            self.expect(member is not None and member.node.state is MemberState.PRIMARY, f"{name} wins")

    def step_up_meanwhile(self, name: str) -> None:
        """`name` is asked to start an election; the scenario goes on."""
        self.note(f"{{{name}}} stands for election")
        start_election = {"replSetStepUp": 1, "skipDryRun": True}

        async def ask() -> None:
            client = self.cluster.client()
            with suppress(NoAnswerError):
                await client.call(self.cluster.host(name), "admin", start_election, 1.5)
            client.close()

        self.cluster.loop.create_task(ask(), context=Context())

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
                self.kill(name, power_loss=power_loss)

        self.cluster.on_step.append(look)
        return still

    def is_primary(self, name: str) -> bool:
        return self.is_in(name, MemberState.PRIMARY)

    def sees(self, one: str, other: str) -> bool:
        """Whether `one` got a message from the present process of `other`."""
        member, seen = self.cluster.machines[one].running, self.cluster.machines[other].running
        peer = None if member is None else member.node.peer_at(self.cluster.host(other))
        return seen is not None and peer is not None and peer.last_contact > seen.started_at and peer.is_up

    def cut_pair(self, one: str, other: str) -> None:
        self.note(f"cut: {{{one}}} and {{{other}}}")
        self.cluster.network.cut(one, other)
        self.cluster.network.cut(other, one)

    def uncut_pair(self, one: str, other: str) -> None:
        self.note(f"whole again: {{{one}}} and {{{other}}}")
        self.cluster.network.uncut(one, other)
        self.cluster.network.uncut(other, one)

    def cut_one_way(self, source: str, target: str) -> None:
        self.note(f"{{{target}}} hears {{{source}}} no more")
        self.cluster.network.cut(source, target)

    def is_in(self, name: str, state: MemberState) -> bool:
        member = self.cluster.machines[name].running
        return member is not None and member.node.state is state

    def has_less(self, one: str, other: str) -> bool:
        mirrors = self.checkers.mirrors
        return mirrors[one].newest() < mirrors[other].newest()

    def ring(self) -> list[str]:
        """Members each of which follows the next, and the last one the first; empty when there are none."""
        sources = {row.name: row.node_state.sync_source for row in self.cluster.running_nodes}
        for name in sources:
            path = [name]
            while (source := sources.get(path[-1])) is not None and (after := self.cluster.name_of(source)) not in path:
                path.append(after)
            if source is not None:
                return path
        return []

    def heal_all_and_judge(self) -> list[str]:
        """Everybody well again, then every check; returns the transcript."""
        self.heal()
        for name, machine in self.cluster.machines.items():
            if machine.process is None:
                self.restart(name)
        self.cluster.run_until(self.cluster.converged, 90, "converged")
        self.checkers.at_the_end()
        self.note("everybody is well, and the same")
        for name in self.letters:
            for manifest in manifests(self.cluster.machines[name].disk):
                files = ", ".join(f"{file['count']} {file['kind']}" for file in manifest["files"])
                self.note(f"{{{name}}} rolled back {_counted(manifest['range']['operations'])}; in its files: {files}")
        return self.transcript()


def _in_braces(names: Iterable[str]) -> str:
    return ", ".join(f"{{{name}}}" for name in names)


def _counted(operations: dict[str, int]) -> str:
    return ", ".join(f"{count} {op}" for op, count in sorted(operations.items()))


@contextmanager
def scenario_run(
    members: int = 3,
    arbiters: int = 0,
    seed: int = 1,
    environment: Environment = DEFAULT_ENVIRONMENT,
    witnesses: int = 0,
    of_last_release: Collection[str] = (),
    **settings: object,
) -> Iterator[ScenarioRun]:
    quiet_logs()
    with SimCluster(
        members,
        arbiters,
        seed=seed,
        witnesses=witnesses,
        environment=environment,
        of_last_release=of_last_release,
    ) as cluster:
        hosts = [machine.host for machine in cluster.machines.values() if not machine.witness]
        workload = Workload(ClientSite(cluster.loop, hosts, cluster.random_for("workload"), cluster.client))
        scenario = ScenarioRun(cluster, Checkers(cluster, workload.history), workload)
        cluster.initiate(settings=settings)
        scenario.primary = cluster.primary() or ""
        scenario.others = tuple(cluster.secondaries())
        scenario.set_letters(scenario.primary, *scenario.others, *"vw"[:witnesses])
        scenario.note(f"{{{scenario.primary}}} is primary, {_in_braces(scenario.others)} follow")
        scenario.watch()
        yield scenario


def failover_with_rollback() -> list[str]:
    """A cut-off primary takes writes at w:1, the others go on without it; on rejoin it undoes them into files."""
    with scenario_run() as scenario:
        cluster, old = scenario.cluster, scenario.primary
        for _ in range(5):
            scenario.expect(scenario.write(old).acknowledged, "a majority write")
        kept, deleted = (scenario.write(old).id for _ in range(2))
        scenario.cut(old)
        scenario.expect(scenario.write(old, concern="w1").acknowledged, "an insert to roll back")
        scenario.expect(scenario.write(old, "update", kept, "journaled").acknowledged, "an update to roll back")
        scenario.expect(scenario.write(old, "delete", deleted, "w1").acknowledged, "a delete to roll back")
        cluster.run_until(lambda: cluster.primary() not in (None, old), 20, "another primary")
        scenario.expect(scenario.write(cluster.primary() or "").acknowledged, "a write on the new primary")
        return scenario.heal_all_and_judge()


def stale_primary() -> list[str]:
    """A primary that is cut off, and does not know it yet, acknowledges nothing at w:majority."""
    with scenario_run() as scenario:
        old = scenario.primary
        scenario.write(old)
        scenario.cut(old)
        scenario.expect(
            not scenario.write(old).acknowledged, "a majority write that nobody else has is not acknowledged"
        )
        return scenario.heal_all_and_judge()


def figure_eight() -> list[str]:
    """Raft, figure 8: an entry of an old term is on a majority, and yet another primary overwrites it.

    a writes alone and is cut off. b wins the next term, writes its own first entry, and is cut off. c fetches what a
    wrote; a wins again with its vote, and then c hears no more of a. Then b wins with the vote of c.
    """
    with scenario_run(catchUpTimeoutMillis=0) as scenario:
        cluster = scenario.cluster
        a, (b, c) = scenario.primary, scenario.others
        scenario.cut(a)
        for _ in range(3):
            scenario.expect(scenario.write(a, concern="w1").acknowledged, "a write on a alone")
        scenario.when(lambda: scenario.is_primary(b) or scenario.is_primary(c), lambda: scenario.cut_pair(b, c))
        cluster.run_until(lambda: cluster.primaries_ever[-1] in (b, c), 10, "another wins")
        if scenario.is_primary(c):
            b, c = c, b
            scenario.set_letters(a, b, c)
        cluster.run_until(lambda: not scenario.is_primary(b) and not scenario.is_primary(a), 10, "both step down")
        cluster.command(
            c, {"replSetFreeze": 120}
        )  # it votes; whether it starts an election before a does is not part of this scenario
        mirrors = scenario.checkers.mirrors
        cluster.command(a, {"replSetFreeze": 120})
        scenario.uncut_pair(a, c)
        cluster.run_until(lambda: mirrors[c].newest() == mirrors[a].newest(), 10, "c fetches what a wrote")
        scenario.when(lambda: scenario.is_primary(a), lambda: scenario.cut_one_way(a, c))
        cluster.command(a, {"replSetFreeze": 0})
        cluster.run_until(lambda: scenario.is_primary(a), 30, "a wins again")
        cluster.run_for(0.7)
        scenario.expect(scenario.is_primary(a), "a leads")
        scenario.expect(
            mirrors[c].newest() == mirrors[a].entries[-2].optime, "c has what a wrote long ago, not its new entry"
        )
        scenario.expect(mirrors[c].newest().term < mirrors[b].newest().term, "and that is older than what b has")
        scenario.cut(a)
        scenario.uncut_pair(b, c)
        cluster.run_until(lambda: scenario.is_primary(b), 30, "b wins again")
        return scenario.heal_all_and_judge()


def vote_over_restart() -> list[str]:
    """A voter dies right after its vote made b primary, and c asks it for its vote in the same term."""
    with scenario_run() as scenario:
        cluster = scenario.cluster
        a, (b, c) = scenario.primary, scenario.others
        scenario.write(a)
        cluster.run_until(cluster.converged, 10, "all the same")
        scenario.cut(c)

        def cut_and_kill() -> list[str]:
            scenario.cut(a)
            scenario.kill(a)

        scenario.when(lambda: scenario.is_primary(b), cut_and_kill)
        scenario.step_up(b, wins=False)
        scenario.expect(cluster.machines[a].process is None, "b has won and the voter is dead")
        scenario.kill(c)  # what a may have sent it of the new term is lost on the way
        scenario.uncut_pair(a, c)
        cluster.run_for(0.05)
        scenario.restart(a)
        scenario.restart(c)
        cluster.run_until(lambda: scenario.sees(c, a), 5, "c sees the voter, which is back")
        scenario.step_up(c, wins=False)
        cluster.run_for(1)
        return scenario.heal_all_and_judge()


def candidate_behind() -> list[str]:
    """A member that missed a majority write starts an election, and must not win (nor be saved by a catch-up)."""
    with scenario_run(environment=Environment(page_bytes=300), catchUpTimeoutMillis=0) as scenario:
        cluster = scenario.cluster
        a, (b, c) = scenario.primary, scenario.others
        scenario.cut(c)
        for _ in range(25):  # in pages of one entry each: c cannot have them all before it stands
            scenario.expect(scenario.write(a).acknowledged, "a majority write without c")
        scenario.kill(c)
        scenario.cut(a)
        scenario.uncut_pair(b, c)
        scenario.when(lambda: scenario.sees(c, b), lambda: scenario.step_up_meanwhile(c))
        scenario.restart(c)
        cluster.run_until(lambda: cluster.primary() in (b, c), 20, "another primary")
        return scenario.heal_all_and_judge()


def emptied_voter() -> list[str]:
    """A majority write is on a and b; b is emptied and copies c, which missed the write: the two must not elect."""
    with scenario_run(catchUpTimeoutMillis=0) as scenario:
        cluster = scenario.cluster
        a, (b, c) = scenario.primary, scenario.others
        scenario.cut(c)
        scenario.expect(scenario.write(a).acknowledged, "a majority write without c")
        scenario.kill(b, wipe=True)
        scenario.cut(a)
        scenario.uncut_pair(b, c)
        scenario.restart(b)
        fresh = cluster.machines[b]
        cluster.run_until(
            lambda: fresh.running is not None and fresh.running.node.state is MemberState.SECONDARY, 30, "b copies c"
        )
        cluster.run_for(8)
        return scenario.heal_all_and_judge()


def journaled_then_dark() -> list[str]:
    """The power of all goes in the moment in which a j:true write is acknowledged; disks are slow."""
    with scenario_run(environment=Environment(worker_ms=60)) as scenario:
        for _ in range(4):
            primary = scenario.cluster.primary() or ""
            scenario.expect(scenario.write(primary, concern="journaled").acknowledged, "a journaled write")
            for name in scenario.cluster.alive():
                scenario.kill(name, power_loss=True)
            for name in scenario.cluster.machines:
                scenario.restart(name)
            scenario.cluster.run_until(scenario.cluster.converged, 60, "converged")
        return scenario.heal_all_and_judge()


def dark_after_a_rollback() -> list[str]:
    """The old primary loses power in the very moment in which its rollback is over: its files must be there."""
    with scenario_run() as scenario:
        cluster, old = scenario.cluster, scenario.primary
        scenario.expect(scenario.write(old).acknowledged, "a majority write")
        scenario.cut(old)
        for _ in range(3):
            scenario.expect(scenario.write(old, concern="journaled").acknowledged, "an insert to roll back")
        cluster.run_until(lambda: cluster.primary() not in (None, old), 20, "another primary")
        scenario.expect(scenario.write(cluster.primary() or "").acknowledged, "a majority write of the second primary")

        def is_over() -> bool:
            return any("rolls back" in line for line in scenario.lines) and scenario.is_in(old, MemberState.SECONDARY)

        scenario.when(is_over, lambda: scenario.kill(old, power_loss=True))
        scenario.heal()
        cluster.run_until(lambda: cluster.machines[old].process is None, 20, "the rollback is over")
        return scenario.heal_all_and_judge()


def election_during_rollback() -> list[str]:
    """While the old primary rolls back, the one that it rolls back to dies, and the third is elected with its vote."""
    with scenario_run(environment=Environment(undo_step=1, worker_ms=60)) as scenario:
        cluster, old = scenario.cluster, scenario.primary
        scenario.expect(scenario.write(old).acknowledged, "a majority write")
        scenario.cut(old)
        for _ in range(6):
            scenario.expect(scenario.write(old, concern="w1").acknowledged, "an insert to roll back")
        cluster.run_until(lambda: cluster.primary() not in (None, old), 20, "another primary")
        second = cluster.primary() or ""
        third = next(name for name in scenario.others if name != second)
        scenario.set_letters(old, second, third)
        scenario.expect(scenario.write(second).acknowledged, "a majority write of the second primary")
        scenario.when(lambda: scenario.is_in(old, MemberState.ROLLBACK), lambda: scenario.kill(second))
        scenario.heal()
        cluster.run_until(lambda: cluster.machines[second].process is None, 20, "the rollback begins")
        scenario.step_up(third, wins=False)
        cluster.run_until(lambda: cluster.primary() == third, 60, "the third is elected")
        scenario.expect(scenario.write(third).acknowledged, "a majority write with the member that rolled back")
        return scenario.heal_all_and_judge()


def two_rollbacks_in_a_row() -> list[str]:
    """Of five: the first primary writes alone, then the second with only the first beside it; both are undone."""
    with scenario_run(members=5) as scenario:
        cluster, first = scenario.cluster, scenario.primary
        scenario.expect(scenario.write(first).acknowledged, "a majority write")
        scenario.cut(first)
        for _ in range(2):
            scenario.expect(scenario.write(first, concern="w1").acknowledged, "an insert to roll back")
        cluster.run_until(lambda: cluster.primary() not in (None, first), 20, "a second primary")
        second = cluster.primary() or ""
        others = [name for name in scenario.others if name != second]
        scenario.set_letters(first, second, *others)
        scenario.expect(scenario.write(second).acknowledged, "a majority write of the second primary")
        scenario.cut(second)
        scenario.uncut_pair(first, second)
        scenario.expect(scenario.write(second, concern="w1").acknowledged, "an insert on the second primary")
        rolled_back = scenario.checkers.mirrors[second].newest()
        mirror = scenario.checkers.mirrors[first]
        cluster.run_until(
            lambda: mirror.newest() >= rolled_back, 4, "the first rolls back, and has what the second wrote"
        )
        cluster.run_until(lambda: cluster.primary() in others, 20, "a third primary")
        scenario.expect(scenario.write(cluster.primary() or "").acknowledged, "a majority write of the third primary")
        return scenario.heal_all_and_judge()


def no_loop_of_sources() -> list[str]:
    """Three of seven are alone, without a primary: those behind follow the one ahead, never each other in a ring."""
    with scenario_run(members=7, environment=Environment(page_bytes=300)) as scenario:
        cluster, a = scenario.cluster, scenario.primary
        b, c, d = scenario.others[:3]
        rings: list[list[str]] = []
        cluster.on_step.append(lambda: rings.extend([ring] if (ring := scenario.ring()) else []))
        scenario.expect(scenario.write(a).acknowledged, "a majority write")
        cluster.run_until(cluster.converged, 10, "all the same")
        for name, links in ((b, (c, d)), (c, (d,)), (d, ())):
            scenario.cut(name)
            for _ in range(10):  # in pages of one entry each, so that who is behind stays so for a while
                scenario.write(a)
            for other in links:
                scenario.expect(scenario.has_less(name, other), f"{name} is behind {other}")
        scenario.cut_pair(b, d)
        scenario.uncut_pair(b, c)
        scenario.uncut_pair(c, d)
        newest = scenario.checkers.mirrors[d].newest()
        for name, source in ((c, d), (b, c)):
            mirror = scenario.checkers.mirrors[name]
            cluster.run_until(lambda mirror=mirror: mirror.newest() == newest, 20, f"{name} has all")  # type: ignore[misc]
            scenario.note(f"{{{name}}} has from {{{source}}} what {{{d}}} has")
        scenario.uncut_pair(b, d)
        cluster.run_for(5)
        scenario.expect(not rings, f"invariant 9, nobody follows himself: {rings[:1]}")
        outcome = scenario.heal_all_and_judge()
        scenario.expect(not rings, f"invariant 9, nobody follows himself: {rings[:1]}")
        return outcome


def rollback_interrupted(after_steps: int, *, power_loss: bool) -> bool:
    """The member that rolls back dies some turns of the loop after it began. True: it was still rolling back."""
    with scenario_run(seed=after_steps, environment=Environment(undo_step=1)) as scenario:
        cluster, old = scenario.cluster, scenario.primary
        for _ in range(3):
            scenario.write(old)
        kept = scenario.write(old).id
        scenario.cut(old)
        for _ in range(4):
            scenario.write(old, concern="journaled")
        scenario.write(old, "update", kept, "journaled")
        cluster.run_until(lambda: cluster.primary() not in (None, old), 20, "another primary")
        scenario.write(cluster.primary() or "")
        interrupted = scenario.kill_after(old, MemberState.ROLLBACK, after_steps, power_loss=power_loss)
        scenario.heal()
        cluster.run_until(lambda: cluster.machines[old].process is None, 30, "the old primary rolls back and dies")
        scenario.restart(old)
        scenario.heal_all_and_judge()
        return interrupted[0]


def initial_sync_interrupted(after_steps: int, *, power_loss: bool) -> bool:
    """A member with an empty disk dies some turns of the loop after its first sync began. True: it was in it."""
    with scenario_run(seed=after_steps) as scenario:
        cluster, fresh = scenario.cluster, scenario.others[0]
        for _ in range(3):
            scenario.write(scenario.primary)
        scenario.kill(fresh, wipe=True)
        interrupted = scenario.kill_after(fresh, MemberState.STARTUP2, after_steps, power_loss=power_loss)
        scenario.restart(fresh)
        cluster.run_until(lambda: cluster.machines[fresh].process is None, 30, "the fresh member syncs and dies")
        scenario.restart(fresh)
        scenario.write(scenario.primary)
        scenario.heal_all_and_judge()
        return interrupted[0]


Scenario = Callable[[], list[str]]
SCENARIOS: dict[str, Scenario] = {
    "failover with rollback": failover_with_rollback,
    "stale primary": stale_primary,
    "figure eight": figure_eight,
    "vote over restart": vote_over_restart,
    "candidate behind": candidate_behind,
    "emptied voter": emptied_voter,
    "journaled, then dark": journaled_then_dark,
    "dark after a rollback": dark_after_a_rollback,
    "election during rollback": election_during_rollback,
    "two rollbacks in a row": two_rollbacks_in_a_row,
    "no loop of sources": no_loop_of_sources,
}
