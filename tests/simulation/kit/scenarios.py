"""Named stories, each run on whole members and judged by the checkers like any seeded run.

A scenario raises SimulationError when an invariant breaks or when the story cannot be told (somebody who should win
does not); it returns its transcript: what was done, what was answered, and how members changed. Members have the
letters of the story in it, whoever plays them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass, field

from replset.core.member_state import MemberState
from tests.simulation.kit.checkers import Checkers, manifests
from tests.simulation.kit.cluster import FAIR, Live, SimCluster, Weather, quiet_logs
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
    letters: dict[str, str] = field(default_factory=dict)  # machine -> its letter in the transcript
    lines: list[str] = field(default_factory=list)
    states: dict[str, MemberState] = field(default_factory=dict)

    def say(self, line: str) -> None:
        """One line of the transcript; `{a}` in it becomes the letter of machine a."""
        self.lines.append(line)

    def cast(self, *names: str) -> None:
        """Who plays A, B, C and so on."""
        self.letters = {name: letter for name, letter in zip(names, "ABCDEFG", strict=False)}

    def transcript(self) -> list[str]:
        return [line.format_map(self.letters) for line in self.lines]

    def watch(self) -> None:
        """From now on the transcript tells what becomes of members."""
        self.states = {row.name: row.node_state.state for row in self.cluster.live}
        self.cluster.on_change.append(self._note_state)

    def _note_state(self, row: Live) -> None:
        before, now = self.states.get(row.name), row.node_state.state
        self.states[row.name] = now
        if before is now or now is MemberState.STARTUP:
            return
        if before is MemberState.PRIMARY:
            self.say(f"  {{{row.name}}} leads no more")
        elif now is MemberState.PRIMARY:
            self.say(f"  {{{row.name}}} is primary")
        elif now is MemberState.ROLLBACK:
            self.say(f"  {{{row.name}}} rolls back")
        elif now is MemberState.STARTUP2:
            self.say(f"  {{{row.name}}} copies")
        elif before in (MemberState.ROLLBACK, MemberState.STARTUP2):
            self.say(f"  {{{row.name}}} is {now.name.lower()} again")

    def cut(self, *names: str) -> None:
        """These hear the others no more, nor the others them."""
        self.cluster.cut(list(names))
        self.say(f"cut off: {_braced(names)}")

    def heal(self) -> None:
        self.cluster.heal()
        self.say("every link is whole")

    def kill(self, name: str, *, power_loss: bool = False, wipe: bool = False) -> None:
        self.cluster.kill(name, power_loss=power_loss, wipe=wipe)
        self.states.pop(name, None)
        self.say(f"{{{name}}} {'dies, its disk is emptied' if wipe else 'loses power' if power_loss else 'dies'}")

    def restart(self, name: str) -> None:
        self.cluster.restart(name)
        self.say(f"{{{name}}} starts")

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
        told = {"ok": "acknowledged", "fail": "refused"}.get(write.outcome, "no answer in time")
        self.say(f"{{{name}}} is asked to {kind} at {concern}: {told}")
        return write

    def expect(self, condition: bool, what: str) -> None:
        if not condition:
            raise SimulationError(f"the story cannot be told: {what}\n{self.cluster.summary()}")

    def step_up(self, name: str, *, wins: bool = True) -> None:
        """`name` stands for election at once, without a dry run."""
        self.say(f"{{{name}}} stands for election")
        with suppress(NoAnswerError):
            self.cluster.command(name, {"replSetStepUp": 1, "skipDryRun": True}, timeout_s=1.5)
        if wins:
            member = self.cluster.machines[name].running
            self.expect(member is not None and member.node.state is MemberState.PRIMARY, f"{name} wins")

    def step_up_meanwhile(self, name: str) -> None:
        """`name` is asked to stand for election; the story goes on."""
        self.say(f"{{{name}}} stands for election")
        stand = {"replSetStepUp": 1, "skipDryRun": True}

        async def ask() -> None:
            client = self.cluster.client()
            with suppress(NoAnswerError):
                await client.call(self.cluster.host(name), "admin", stand, 1.5)
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
        """Whether `one` heard from this life of `other`."""
        member, seen = self.cluster.machines[one].running, self.cluster.machines[other].running
        peer = None if member is None else member.node.peer_at(self.cluster.host(other))
        return seen is not None and peer is not None and peer.last_contact > seen.started_at and peer.is_up

    def cut_pair(self, one: str, other: str) -> None:
        self.say(f"cut: {{{one}}} and {{{other}}}")
        self.cluster.network.cut(one, other)
        self.cluster.network.cut(other, one)

    def uncut_pair(self, one: str, other: str) -> None:
        self.say(f"whole again: {{{one}}} and {{{other}}}")
        self.cluster.network.uncut(one, other)
        self.cluster.network.uncut(other, one)

    def cut_one_way(self, source: str, target: str) -> None:
        self.say(f"{{{target}}} hears {{{source}}} no more")
        self.cluster.network.cut(source, target)

    def is_in(self, name: str, state: MemberState) -> bool:
        member = self.cluster.machines[name].running
        return member is not None and member.node.state is state

    def has_less(self, one: str, other: str) -> bool:
        mirrors = self.checkers.mirrors
        return mirrors[one].newest() < mirrors[other].newest()

    def ring(self) -> list[str]:
        """Members each of which follows the next, and the last one the first; empty when there are none."""
        sources = {row.name: row.node_state.sync_source for row in self.cluster.live}
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
            if machine.life is None:
                self.restart(name)
        self.cluster.run_until(self.cluster.converged, 90, "converged")
        self.checkers.at_the_end()
        self.say("everybody is well, and the same")
        for name in self.letters:
            for manifest in manifests(self.cluster.machines[name].disk):
                files = ", ".join(f"{file['count']} {file['kind']}" for file in manifest["files"])
                self.say(f"{{{name}}} rolled back {_counted(manifest['range']['operations'])}; in its files: {files}")
        return self.transcript()


def _braced(names: Iterable[str]) -> str:
    return ", ".join(f"{{{name}}}" for name in names)


def _counted(operations: dict[str, int]) -> str:
    return ", ".join(f"{count} {op}" for op, count in sorted(operations.items()))


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
        stage.cast(stage.primary, *stage.others)
        stage.say(f"{{{stage.primary}}} is primary, {_braced(stage.others)} follow")
        stage.watch()
        yield stage


def failover_with_rollback() -> list[str]:
    """A cut-off primary takes writes at w:1, the others go on without it; on rejoin it undoes them into files."""
    with staged() as stage:
        cluster, old = stage.cluster, stage.primary
        for _ in range(5):
            stage.expect(stage.write(old).acknowledged, "a majority write")
        kept, deleted = (stage.write(old).id for _ in range(2))
        stage.cut(old)
        stage.expect(stage.write(old, concern="w1").acknowledged, "a doomed insert")
        stage.expect(stage.write(old, "update", kept, "journaled").acknowledged, "a doomed update")
        stage.expect(stage.write(old, "delete", deleted, "w1").acknowledged, "a doomed delete")
        cluster.run_until(lambda: cluster.primary() not in (None, old), 20, "another primary")
        stage.expect(stage.write(cluster.primary() or "").acknowledged, "a write on the new primary")
        return stage.heal_all_and_judge()


def stale_primary() -> list[str]:
    """A primary that is cut off, and does not know it yet, acknowledges nothing at w:majority."""
    with staged() as stage:
        old = stage.primary
        stage.write(old)
        stage.cut(old)
        stage.expect(not stage.write(old).acknowledged, "a majority write that nobody else has is not acknowledged")
        return stage.heal_all_and_judge()


def figure_eight() -> list[str]:
    """Raft, figure 8: an entry of an old term is on a majority, and yet another primary overwrites it.

    a writes alone and is cut off. b wins the next term, writes its own first entry, and is cut off. c fetches what a
    wrote; a wins again with its vote, and then c hears no more of a. Then b wins with the vote of c.
    """
    with staged(catchUpTimeoutMillis=0) as stage:
        cluster = stage.cluster
        a, (b, c) = stage.primary, stage.others
        stage.cut(a)
        for _ in range(3):
            stage.expect(stage.write(a, concern="w1").acknowledged, "a write on a alone")
        stage.when(lambda: stage.is_primary(b) or stage.is_primary(c), lambda: stage.cut_pair(b, c))
        cluster.run_until(lambda: cluster.primaries_ever[-1] in (b, c), 10, "another wins")
        if stage.is_primary(c):
            b, c = c, b
            stage.cast(a, b, c)
        cluster.run_until(lambda: not stage.is_primary(b) and not stage.is_primary(a), 10, "both step down")
        cluster.command(c, {"replSetFreeze": 120})  # it votes; whether it stands before a does is not this story's
        stage.uncut_pair(a, c)
        mirrors = stage.checkers.mirrors
        stage.when(lambda: stage.is_primary(a), lambda: stage.cut_one_way(a, c))
        cluster.run_until(lambda: stage.is_primary(a), 30, "a wins again")
        cluster.run_for(0.7)
        stage.expect(stage.is_primary(a), "a leads")
        stage.expect(
            mirrors[c].newest() == mirrors[a].entries[-2].optime, "c has what a wrote long ago, not its new entry"
        )
        stage.expect(mirrors[c].newest().term < mirrors[b].newest().term, "and that is older than what b has")
        stage.cut(a)
        stage.uncut_pair(b, c)
        cluster.run_until(lambda: stage.is_primary(b), 30, "b wins again")
        return stage.heal_all_and_judge()


def vote_over_restart() -> list[str]:
    """A voter dies right after its vote made b primary, and c asks it for its vote in the same term."""
    with staged() as stage:
        cluster = stage.cluster
        a, (b, c) = stage.primary, stage.others
        stage.write(a)
        cluster.run_until(cluster.converged, 10, "all the same")
        stage.cut(c)

        def cut_and_kill() -> list[str]:
            stage.cut(a)
            stage.kill(a)

        stage.when(lambda: stage.is_primary(b), cut_and_kill)
        stage.step_up(b, wins=False)
        stage.expect(cluster.machines[a].life is None, "b has won and the voter is dead")
        stage.kill(c)  # what a may have told it of the new term is lost on the way
        stage.uncut_pair(a, c)
        cluster.run_for(0.05)
        stage.restart(a)
        stage.restart(c)
        cluster.run_until(lambda: stage.sees(c, a), 5, "c sees the voter, which is back")
        stage.step_up(c, wins=False)
        cluster.run_for(1)
        return stage.heal_all_and_judge()


def candidate_behind() -> list[str]:
    """A member that missed a majority write stands for election, and must not win (nor be saved by a catch-up)."""
    with staged(weather=Weather(page_bytes=300), catchUpTimeoutMillis=0) as stage:
        cluster = stage.cluster
        a, (b, c) = stage.primary, stage.others
        stage.cut(c)
        for _ in range(25):  # in pages of one entry each: c cannot have them all before it stands
            stage.expect(stage.write(a).acknowledged, "a majority write without c")
        stage.kill(c)
        stage.cut(a)
        stage.uncut_pair(b, c)
        stage.when(lambda: stage.sees(c, b), lambda: stage.step_up_meanwhile(c))
        stage.restart(c)
        cluster.run_until(lambda: cluster.primary() in (b, c), 20, "another primary")
        return stage.heal_all_and_judge()


def emptied_voter() -> list[str]:
    """A majority write is on a and b; b is emptied and copies c, which missed the write: the two must not elect."""
    with staged(catchUpTimeoutMillis=0) as stage:
        cluster = stage.cluster
        a, (b, c) = stage.primary, stage.others
        stage.cut(c)
        stage.expect(stage.write(a).acknowledged, "a majority write without c")
        stage.kill(b, wipe=True)
        stage.cut(a)
        stage.uncut_pair(b, c)
        stage.restart(b)
        fresh = cluster.machines[b]
        cluster.run_until(
            lambda: fresh.running is not None and fresh.running.node.state is MemberState.SECONDARY, 30, "b copies c"
        )
        cluster.run_for(8)
        return stage.heal_all_and_judge()


def journaled_then_dark() -> list[str]:
    """The power of all goes in the moment in which a j:true write is acknowledged; disks are slow."""
    with staged(weather=Weather(worker_ms=60)) as stage:
        for _ in range(4):
            primary = stage.cluster.primary() or ""
            stage.expect(stage.write(primary, concern="journaled").acknowledged, "a journaled write")
            for name in stage.cluster.alive():
                stage.kill(name, power_loss=True)
            for name in stage.cluster.machines:
                stage.restart(name)
            stage.cluster.run_until(stage.cluster.converged, 60, "converged")
        return stage.heal_all_and_judge()


def dark_after_a_rollback() -> list[str]:
    """The old primary loses power in the very moment in which its rollback is over: its files must be there."""
    with staged() as stage:
        cluster, old = stage.cluster, stage.primary
        stage.expect(stage.write(old).acknowledged, "a majority write")
        stage.cut(old)
        for _ in range(3):
            stage.expect(stage.write(old, concern="journaled").acknowledged, "a doomed insert")
        cluster.run_until(lambda: cluster.primary() not in (None, old), 20, "another primary")
        stage.expect(stage.write(cluster.primary() or "").acknowledged, "a majority write of the second primary")

        def is_over() -> bool:
            return any("rolls back" in line for line in stage.lines) and stage.is_in(old, MemberState.SECONDARY)

        stage.when(is_over, lambda: stage.kill(old, power_loss=True))
        stage.heal()
        cluster.run_until(lambda: cluster.machines[old].life is None, 20, "the rollback is over")
        return stage.heal_all_and_judge()


def election_during_rollback() -> list[str]:
    """While the old primary rolls back, the one that it rolls back to dies, and the third is elected with its vote."""
    with staged(weather=Weather(undo_step=1, worker_ms=60)) as stage:
        cluster, old = stage.cluster, stage.primary
        stage.expect(stage.write(old).acknowledged, "a majority write")
        stage.cut(old)
        for _ in range(6):
            stage.expect(stage.write(old, concern="w1").acknowledged, "a doomed insert")
        cluster.run_until(lambda: cluster.primary() not in (None, old), 20, "another primary")
        second = cluster.primary() or ""
        third = next(name for name in stage.others if name != second)
        stage.cast(old, second, third)
        stage.expect(stage.write(second).acknowledged, "a majority write of the second primary")
        stage.when(lambda: stage.is_in(old, MemberState.ROLLBACK), lambda: stage.kill(second))
        stage.heal()
        cluster.run_until(lambda: cluster.machines[second].life is None, 20, "the rollback begins")
        stage.step_up(third, wins=False)
        cluster.run_until(lambda: cluster.primary() == third, 60, "the third is elected")
        stage.expect(stage.write(third).acknowledged, "a majority write with the member that rolled back")
        return stage.heal_all_and_judge()


def two_rollbacks_in_a_row() -> list[str]:
    """Of five: the first primary writes alone, then the second with only the first beside it; both are undone."""
    with staged(members=5) as stage:
        cluster, first = stage.cluster, stage.primary
        stage.expect(stage.write(first).acknowledged, "a majority write")
        stage.cut(first)
        for _ in range(2):
            stage.expect(stage.write(first, concern="w1").acknowledged, "a doomed insert")
        cluster.run_until(lambda: cluster.primary() not in (None, first), 20, "a second primary")
        second = cluster.primary() or ""
        others = [name for name in stage.others if name != second]
        stage.cast(first, second, *others)
        stage.expect(stage.write(second).acknowledged, "a majority write of the second primary")
        stage.cut(second)
        stage.uncut_pair(first, second)
        stage.expect(stage.write(second, concern="w1").acknowledged, "an insert on the second primary")
        doomed = stage.checkers.mirrors[second].newest()
        mirror = stage.checkers.mirrors[first]
        cluster.run_until(lambda: mirror.newest() >= doomed, 4, "the first rolls back, and has what the second wrote")
        cluster.run_until(lambda: cluster.primary() in others, 20, "a third primary")
        stage.expect(stage.write(cluster.primary() or "").acknowledged, "a majority write of the third primary")
        return stage.heal_all_and_judge()


def no_loop_of_sources() -> list[str]:
    """Three of seven are alone, without a primary: those behind follow the one ahead, never each other in a ring."""
    with staged(members=7, weather=Weather(page_bytes=300)) as stage:
        cluster, a = stage.cluster, stage.primary
        b, c, d = stage.others[:3]
        rings: list[list[str]] = []
        cluster.on_step.append(lambda: rings.extend([ring] if (ring := stage.ring()) else []))
        stage.expect(stage.write(a).acknowledged, "a majority write")
        cluster.run_until(cluster.converged, 10, "all the same")
        for name, links in ((b, (c, d)), (c, (d,)), (d, ())):
            stage.cut(name)
            for _ in range(10):  # in pages of one entry each, so that who is behind stays so for a while
                stage.write(a)
            for other in links:
                stage.expect(stage.has_less(name, other), f"{name} is behind {other}")
        stage.cut_pair(b, d)
        stage.uncut_pair(b, c)
        stage.uncut_pair(c, d)
        newest = stage.checkers.mirrors[d].newest()
        for name, source in ((c, d), (b, c)):
            mirror = stage.checkers.mirrors[name]
            cluster.run_until(lambda mirror=mirror: mirror.newest() == newest, 20, f"{name} has all")  # type: ignore[misc]
            stage.say(f"{{{name}}} has from {{{source}}} what {{{d}}} has")
        stage.uncut_pair(b, d)
        cluster.run_for(5)
        stage.expect(not rings, f"invariant 9, nobody follows himself: {rings[:1]}")
        told = stage.heal_all_and_judge()
        stage.expect(not rings, f"invariant 9, nobody follows himself: {rings[:1]}")
        return told


def rollback_interrupted(after_steps: int, *, power_loss: bool) -> bool:
    """The member that rolls back dies some turns of the loop after it began. True: it was still rolling back."""
    with staged(seed=after_steps, weather=Weather(undo_step=1)) as stage:
        cluster, old = stage.cluster, stage.primary
        for _ in range(3):
            stage.write(old)
        kept = stage.write(old).id
        stage.cut(old)
        for _ in range(4):
            stage.write(old, concern="journaled")
        stage.write(old, "update", kept, "journaled")
        cluster.run_until(lambda: cluster.primary() not in (None, old), 20, "another primary")
        stage.write(cluster.primary() or "")
        interrupted = stage.kill_after(old, MemberState.ROLLBACK, after_steps, power_loss=power_loss)
        stage.heal()
        cluster.run_until(lambda: cluster.machines[old].life is None, 30, "the old primary rolls back and dies")
        stage.restart(old)
        stage.heal_all_and_judge()
        return interrupted[0]


def initial_sync_interrupted(after_steps: int, *, power_loss: bool) -> bool:
    """A member with an empty disk dies some turns of the loop after its first sync began. True: it was in it."""
    with staged(seed=after_steps) as stage:
        cluster, fresh = stage.cluster, stage.others[0]
        for _ in range(3):
            stage.write(stage.primary)
        stage.kill(fresh, wipe=True)
        interrupted = stage.kill_after(fresh, MemberState.STARTUP2, after_steps, power_loss=power_loss)
        stage.restart(fresh)
        cluster.run_until(lambda: cluster.machines[fresh].life is None, 30, "the fresh member syncs and dies")
        stage.restart(fresh)
        stage.write(stage.primary)
        stage.heal_all_and_judge()
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
