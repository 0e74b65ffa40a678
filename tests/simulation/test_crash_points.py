"""A member dies at every named step of docs/storage.md, "Crash points", and the set comes back right."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from replset.core.effects import LastVote
from replset.ids import OPTIME_NULL, OpTime
from replset.storage.member_file import MemberFile
from replset.storage.oplog import check_chain
from tests.simulation.kit.checkers import Checkers
from tests.simulation.kit.clients import ClientSite
from tests.simulation.kit.cluster import SETTINGS, SimCluster, quiet_logs
from tests.simulation.kit.crash_images import CrashImages, at_every_disk_step, expect_vote
from tests.simulation.kit.crash_points import CRASH_POINTS, CrashPoint, Phase, at_point
from tests.simulation.kit.environment import DEFAULT_ENVIRONMENT, Environment
from tests.simulation.kit.loop import current_process
from tests.simulation.kit.scenarios import ScenarioRun, scenario_run
from tests.simulation.kit.workload import Workload, Write

pytestmark = pytest.mark.in_turns

SMALL_STEPS = Environment(undo_step=2)
SMALL_WAL = Environment(checkpoint_bytes=8_000, oplog_bytes=6_000, history_s=1)
SHORT_OPLOG = Environment(oplog_bytes=2_000, history_s=1, chunk_bytes=2_048)
CONCERNS = ("w1", "journaled", "majority")
KINDS = pytest.mark.parametrize("power_loss", [False, True], ids=["killed", "power-lost"])


def points(*, of_the_beginning: bool) -> pytest.MarkDecorator:
    found = [point for point in CRASH_POINTS if (point.phase is Phase.INITIATE) is of_the_beginning]
    return pytest.mark.parametrize("point", [pytest.param(point, id=point.title) for point in found])


# --- stories: what the set does while one of its members is to die -------------------------------------------------


def write_at_once(scenario: ScenarioRun, times: int = 1, target: str = "") -> None:
    """Clients that write side by side; nobody waits for their answers."""
    cluster = scenario.cluster
    host = cluster.host(target or cluster.primary() or scenario.primary)

    async def one(write: Write) -> None:
        client = cluster.client()
        await scenario.workload.write(client, write)
        client.close()

    for concern in CONCERNS * times:
        scenario.numbers += 1
        number = scenario.numbers
        write = Write(number, "insert", 1000 + number, f"token-{number}-", concern, host, cluster.loop.now_ms)
        cluster.loop.create_task(one(write))


def ask_at_once(scenario: ScenarioRun, name: str, command: dict[str, object]) -> None:
    """One command to a member; nobody waits for the answer."""
    cluster = scenario.cluster

    async def one() -> None:
        client = cluster.client()
        await client.call(cluster.host(name), "admin", command, 8.0)

    cluster.loop.create_task(one())


@dataclass(frozen=True, slots=True)
class CrashCase:
    """prepare: brings the set to where it begins and says who is to die; go: lets it begin, without waiting."""

    prepare: Callable[[ScenarioRun], str]
    go: Callable[[ScenarioRun, str], object]
    environment: Environment = DEFAULT_ENVIRONMENT


def leads(scenario: ScenarioRun) -> str:
    for concern in CONCERNS:
        scenario.write(scenario.primary, concern=concern)
    return scenario.primary


def follows(scenario: ScenarioRun) -> str:
    leads(scenario)
    return scenario.others[0]


def is_emptied(scenario: ScenarioRun) -> str:
    name = follows(scenario)
    scenario.cluster.kill(name, wipe=True)
    return name


def is_cut_off_with_entries_of_its_own(scenario: ScenarioRun) -> str:
    cluster, old = scenario.cluster, scenario.primary
    kept, deleted = (scenario.write(old).id for _ in range(2))
    cluster.cut([old])
    for _ in range(3):
        scenario.write(old, concern="journaled")
    scenario.write(old, "update", kept, "journaled")
    scenario.write(old, "delete", deleted, "journaled")
    cluster.run_until(lambda: cluster.primary() not in (None, old), 20, "another primary")
    scenario.write(cluster.primary() or "")
    return old


def died_in_a_rollback(scenario: ScenarioRun) -> str:
    old = is_cut_off_with_entries_of_its_own(scenario)
    (point,) = (p for p in CRASH_POINTS if p.phase is Phase.ROLLBACK and p.name == "the first undo step is done")
    with dies_at(scenario, old, point, power_loss=False):
        scenario.cluster.heal()
        wait_for_death(scenario, old, point)
    return old


def is_left_behind(scenario: ScenarioRun) -> str:
    """With entries of its own, while the oplogs of the others no longer reach back to where it was."""
    old = is_cut_off_with_entries_of_its_own(scenario)
    cluster = scenario.cluster
    for _ in range(4):
        write_at_once(scenario, 3)
        cluster.run_for(0.4)
    newest = cluster.machines[old].running
    assert newest is not None
    mine = newest.store.last_applied
    for name in scenario.others:
        member = cluster.machines[name].running
        scenario.expect(member is not None and member.store.oldest.ts > mine.ts, f"the oplog of {name} is trimmed")
    return old


def serves_a_copy(scenario: ScenarioRun) -> str:
    """The one member that an emptied one can reach."""
    name = is_emptied(scenario)
    scenario.cut_pair(name, scenario.others[1])
    return scenario.primary


def leads_under_load(scenario: ScenarioRun, _victim: str) -> None:
    async def load() -> None:
        for _ in range(60):
            if scenario.cluster.machines[_victim].process is None:
                return
            write_at_once(scenario, target=_victim)
            await asyncio.sleep(0.1)

    scenario.cluster.loop.create_task(load())


def reconfigure(scenario: ScenarioRun, victim: str) -> None:
    config = scenario.cluster.command(victim, {"replSetGetConfig": 1})["config"]
    config["version"] += 1
    config["settings"]["heartbeatTimeoutSecs"] = 3
    ask_at_once(scenario, victim, {"replSetReconfig": config})


def reconfigure_primary(scenario: ScenarioRun, _victim: str) -> None:
    reconfigure(scenario, scenario.primary)


def start_election(scenario: ScenarioRun, _victim: str) -> None:
    ask_at_once(scenario, scenario.others[0], {"replSetStepUp": 1, "skipDryRun": True})


def shut_down(scenario: ScenarioRun, victim: str) -> None:
    write_at_once(scenario)
    scenario.cluster.loop.create_task(scenario.cluster.stop(victim))


def third(scenario: ScenarioRun) -> str:
    """Neither the primary nor who stands for election."""
    leads(scenario)
    return scenario.others[1]


CRASH_CASES: dict[Phase, CrashCase] = {
    Phase.FIRST_START: CrashCase(is_emptied, lambda scenario, victim: scenario.cluster.restart(victim)),
    Phase.START: CrashCase(died_in_a_rollback, lambda scenario, victim: scenario.cluster.restart(victim), SMALL_STEPS),
    Phase.COMMIT: CrashCase(leads, lambda scenario, _: write_at_once(scenario)),
    Phase.APPLY: CrashCase(follows, lambda scenario, _: write_at_once(scenario)),
    Phase.CONFIG: CrashCase(leads, reconfigure),
    Phase.CONFIG_APPLIED: CrashCase(follows, reconfigure_primary),
    Phase.CHECKPOINT: CrashCase(leads, leads_under_load, SMALL_WAL),
    Phase.ROLLBACK: CrashCase(
        is_cut_off_with_entries_of_its_own, lambda scenario, _: scenario.cluster.heal(), SMALL_STEPS
    ),
    Phase.INITIAL_SYNC: CrashCase(is_left_behind, lambda scenario, _: scenario.cluster.heal(), SHORT_OPLOG),
    Phase.SOURCE: CrashCase(
        serves_a_copy, lambda scenario, _: scenario.cluster.restart(scenario.others[0]), SHORT_OPLOG
    ),
    Phase.CANDIDATE: CrashCase(follows, start_election),
    Phase.VOTER: CrashCase(third, start_election),
    Phase.SHUTDOWN: CrashCase(leads, shut_down),
}


# --- dying, and what must hold afterwards ---------------------------------------------------------------------------


@contextmanager
def dies_at(scenario: ScenarioRun, victim: str, point: CrashPoint, *, power_loss: bool) -> Iterator[None]:
    """Within the block the member dies when it comes to the point."""

    def die() -> None:
        scenario.cluster.kill(victim, power_loss=power_loss)
        raise asyncio.CancelledError  # nothing more is done, not even until the next wait

    with at_point(scenario.cluster, victim, point, die):
        yield


def wait_for_death(scenario: ScenarioRun, victim: str, point: CrashPoint) -> None:
    machine = scenario.cluster.machines[victim]
    scenario.cluster.run_until(lambda: machine.process is None, 30, f"{victim} comes to {point.title}")


@contextmanager
def saved_votes() -> Iterator[dict[str, LastVote]]:
    """The last vote that each member saved, by name: what it may have told others."""
    votes: dict[str, LastVote] = {}
    save_vote = MemberFile.save_vote

    def noting(file: MemberFile, vote: LastVote, durable: Callable[[], OpTime] | None = None) -> None:
        save_vote(file, vote, durable)
        process = current_process.get()
        if process is not None and process.alive:
            votes[process.name[0]] = vote

    MemberFile.save_vote = noting  # type: ignore[method-assign]
    try:
        yield votes
    finally:
        MemberFile.save_vote = save_vote  # type: ignore[method-assign]


def chains_are_whole(cluster: SimCluster) -> None:
    for name, machine in cluster.machines.items():
        path = os.path.join(machine.disk.folder, "replset.db")
        connection = machine.disk.reader(path)
        assert connection is not None, name
        check_chain(connection, path, after_ts=OPTIME_NULL.ts, limit=1_000_000)


def go_on_without(scenario: ScenarioRun, victim: str) -> None:
    """The others elect a primary and go on; what the dead member alone held will have to be rolled back."""
    cluster = scenario.cluster
    cluster.heal()
    cluster.run_until(lambda: cluster.primary() not in (None, victim), 40, "the others have a primary")
    scenario.expect(scenario.write(cluster.primary() or "").acknowledged, "the others take a majority write")


def is_well(scenario: ScenarioRun) -> None:
    """Everybody is back; a new majority write is taken; every check."""
    cluster = scenario.cluster
    cluster.heal()
    cluster.run_until(cluster.converged, 90, "converged")
    scenario.expect(scenario.write(cluster.primary() or "").acknowledged, "a majority write at the end")
    cluster.run_until(cluster.converged, 90, "converged again")
    scenario.checkers.at_the_end()
    chains_are_whole(cluster)


@KINDS
@points(of_the_beginning=False)
def test_a_member_that_dies_there_comes_back_right(point: CrashPoint, power_loss: bool) -> None:
    crash_case = CRASH_CASES[point.phase]
    with saved_votes() as votes, scenario_run(environment=crash_case.environment) as scenario:
        scenario.cluster.on_wipe.append(lambda name: votes.pop(name, None) and None)
        victim = crash_case.prepare(scenario)
        with dies_at(scenario, victim, point, power_loss=power_loss):
            crash_case.go(scenario, victim)
            wait_for_death(scenario, victim, point)
        if not power_loss and point.phase is not Phase.SOURCE:  # there the others cannot elect anybody
            go_on_without(scenario, victim)
        scenario.cluster.restart(victim)
        machine = scenario.cluster.machines[victim]
        scenario.cluster.run_until(lambda: machine.started or bool(scenario.cluster.broken), 10, f"{victim} is up")
        scenario.cluster.check_unbroken()
        assert machine.member is not None
        expect_vote(machine.member._member_file.last_vote, votes.get(victim))
        is_well(scenario)


@KINDS
@points(of_the_beginning=True)
def test_a_set_that_dies_at_its_beginning_can_begin(point: CrashPoint, power_loss: bool) -> None:
    quiet_logs()
    with SimCluster(3, seed=1) as cluster:
        workload = Workload(ClientSite(cluster.loop, [], cluster.random_for("workload"), cluster.client))
        scenario = ScenarioRun(cluster, Checkers(cluster, workload.history), workload)
        for name in cluster.machines:
            cluster.start(name)
        cluster.run_until(lambda: all(machine.started for machine in cluster.machines.values()), 10, "all started")
        members = [{"_id": n, "host": machine.host} for n, machine in enumerate(cluster.machines.values())]
        initiate: dict[str, object] = {
            "replSetInitiate": {"_id": "rs0", "version": 1, "members": members, "settings": dict(SETTINGS)}
        }
        with dies_at(scenario, "a", point, power_loss=power_loss):
            ask_at_once(scenario, "a", initiate)
            wait_for_death(scenario, "a", point)
        cluster.restart("a")
        cluster.run_until(lambda: cluster.machines["a"].started, 10, "a is up")
        reply = cluster.command("a", initiate, timeout_s=30)
        assert reply["ok"] == 1 or reply["codeName"] == "AlreadyInitialized", reply
        is_well(scenario)


@pytest.mark.parametrize("phase", list(CRASH_CASES))
def test_a_start_after_a_death_at_any_step_of_the_disk_finds_all_that_was_promised(phase: Phase) -> None:
    crash_case = CRASH_CASES[phase]
    with saved_votes() as votes, scenario_run(environment=crash_case.environment) as scenario:
        cluster = scenario.cluster
        cluster.on_wipe.append(lambda name: votes.pop(name, None) and None)
        victim = crash_case.prepare(scenario)
        machine = cluster.machines[victim]
        images = CrashImages(cluster, scenario.checkers, victim, votes)
        with at_every_disk_step(cluster, victim, images.take):
            crash_case.go(scenario, victim)
            cluster.run_for(1)
            cluster.run_until(lambda: machine.process is None or cluster.converged(), 30, "the story is over")
        assert len(images.steps) > 10, images.steps
        if machine.process is None:
            cluster.restart(victim)
        is_well(scenario)


def test_the_steps_are_the_documented_ones() -> None:
    """The table in docs/storage.md, row by row."""
    text = (Path(__file__).parents[2] / "docs" / "storage.md").read_text(encoding="utf-8")
    section = text[text.index("## Crash points") : text.index("## Measured")]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")][2:]
    documented = [(phase, name) for phase, names, _ in rows for name in names.split("; ")]
    assert documented == [(point.phase.value, point.name) for point in CRASH_POINTS]
