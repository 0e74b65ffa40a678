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
from tests.simulation.kit.cluster import FAIR, SETTINGS, SimCluster, Weather, quiet_logs
from tests.simulation.kit.crash_images import Album, at_every_disk_step, expect_vote
from tests.simulation.kit.crash_points import CRASH_POINTS, CrashPoint, Phase, at_point
from tests.simulation.kit.loop import current_life
from tests.simulation.kit.scenarios import Stage, staged
from tests.simulation.kit.workload import Workload, Write

SMALL_STEPS = Weather(undo_step=2)
SMALL_WAL = Weather(checkpoint_bytes=8_000, oplog_bytes=6_000, history_s=1)
SHORT_OPLOG = Weather(oplog_bytes=2_000, history_s=1, chunk_bytes=2_048)
CONCERNS = ("w1", "journaled", "majority")
KINDS = pytest.mark.parametrize("power_loss", [False, True], ids=["killed", "power-lost"])


def points(*, of_the_beginning: bool) -> pytest.MarkDecorator:
    found = [point for point in CRASH_POINTS if (point.phase is Phase.INITIATE) is of_the_beginning]
    return pytest.mark.parametrize("point", [pytest.param(point, id=point.title) for point in found])


# --- stories: what the set does while one of its members is to die -------------------------------------------------


def write_at_once(stage: Stage, times: int = 1, target: str = "") -> None:
    """Clients that write side by side; nobody waits for their answers."""
    cluster = stage.cluster
    host = cluster.host(target or cluster.primary() or stage.primary)

    async def one(write: Write) -> None:
        client = cluster.client()
        await stage.workload.write(client, write)
        client.close()

    for concern in CONCERNS * times:
        stage.numbers += 1
        number = stage.numbers
        write = Write(number, "insert", 1000 + number, f"token-{number}-", concern, host, cluster.loop.now_ms)
        cluster.loop.create_task(one(write))


def ask_at_once(stage: Stage, name: str, command: dict[str, object]) -> None:
    """One command to a member; nobody waits for the answer."""
    cluster = stage.cluster

    async def one() -> None:
        client = cluster.client()
        await client.call(cluster.host(name), "admin", command, 8.0)

    cluster.loop.create_task(one())


@dataclass(frozen=True, slots=True)
class Story:
    """prepare: brings the set to where it begins and says who is to die; go: lets it begin, without waiting."""

    prepare: Callable[[Stage], str]
    go: Callable[[Stage, str], object]
    weather: Weather = FAIR


def leads(stage: Stage) -> str:
    for concern in CONCERNS:
        stage.write(stage.primary, concern=concern)
    return stage.primary


def follows(stage: Stage) -> str:
    leads(stage)
    return stage.others[0]


def is_emptied(stage: Stage) -> str:
    name = follows(stage)
    stage.cluster.kill(name, wipe=True)
    return name


def is_cut_off_with_entries_of_its_own(stage: Stage) -> str:
    cluster, old = stage.cluster, stage.primary
    kept, deleted = (stage.write(old).id for _ in range(2))
    cluster.cut([old])
    for _ in range(3):
        stage.write(old, concern="journaled")
    stage.write(old, "update", kept, "journaled")
    stage.write(old, "delete", deleted, "journaled")
    cluster.run_until(lambda: cluster.primary() not in (None, old), 20, "another primary")
    stage.write(cluster.primary() or "")
    return old


def died_in_a_rollback(stage: Stage) -> str:
    old = is_cut_off_with_entries_of_its_own(stage)
    (point,) = (p for p in CRASH_POINTS if p.phase is Phase.ROLLBACK and p.name == "the first undo step is done")
    with deadly(stage, old, point, power_loss=False):
        stage.cluster.heal()
        wait_for_death(stage, old, point)
    return old


def is_left_behind(stage: Stage) -> str:
    """With entries of its own, while the oplogs of the others no longer reach back to where it was."""
    old = is_cut_off_with_entries_of_its_own(stage)
    cluster = stage.cluster
    for _ in range(4):
        write_at_once(stage, 3)
        cluster.run_for(0.4)
    newest = cluster.machines[old].running
    assert newest is not None
    mine = newest.store.last_applied
    for name in stage.others:
        member = cluster.machines[name].running
        stage.expect(member is not None and member.store.oldest.ts > mine.ts, f"the oplog of {name} is trimmed")
    return old


def serves_a_copy(stage: Stage) -> str:
    """The one member that an emptied one can reach."""
    name = is_emptied(stage)
    stage.cut_pair(name, stage.others[1])
    return stage.primary


def leads_under_load(stage: Stage, _victim: str) -> None:
    async def load() -> None:
        for _ in range(60):
            if stage.cluster.machines[_victim].life is None:
                return
            write_at_once(stage, target=_victim)
            await asyncio.sleep(0.1)

    stage.cluster.loop.create_task(load())


def reconfigure(stage: Stage, victim: str) -> None:
    config = stage.cluster.command(victim, {"replSetGetConfig": 1})["config"]
    config["version"] += 1
    config["settings"]["heartbeatTimeoutSecs"] = 3
    ask_at_once(stage, victim, {"replSetReconfig": config})


def reconfigure_primary(stage: Stage, _victim: str) -> None:
    reconfigure(stage, stage.primary)


def stand(stage: Stage, _victim: str) -> None:
    ask_at_once(stage, stage.others[0], {"replSetStepUp": 1, "skipDryRun": True})


def shut_down(stage: Stage, victim: str) -> None:
    write_at_once(stage)
    stage.cluster.loop.create_task(stage.cluster.stop(victim))


def third(stage: Stage) -> str:
    """Neither the primary nor who stands for election."""
    leads(stage)
    return stage.others[1]


STORIES: dict[Phase, Story] = {
    Phase.FIRST_START: Story(is_emptied, lambda stage, victim: stage.cluster.restart(victim)),
    Phase.START: Story(died_in_a_rollback, lambda stage, victim: stage.cluster.restart(victim), SMALL_STEPS),
    Phase.COMMIT: Story(leads, lambda stage, _: write_at_once(stage)),
    Phase.APPLY: Story(follows, lambda stage, _: write_at_once(stage)),
    Phase.CONFIG: Story(leads, reconfigure),
    Phase.CONFIG_APPLIED: Story(follows, reconfigure_primary),
    Phase.CHECKPOINT: Story(leads, leads_under_load, SMALL_WAL),
    Phase.ROLLBACK: Story(is_cut_off_with_entries_of_its_own, lambda stage, _: stage.cluster.heal(), SMALL_STEPS),
    Phase.INITIAL_SYNC: Story(is_left_behind, lambda stage, _: stage.cluster.heal(), SHORT_OPLOG),
    Phase.SOURCE: Story(serves_a_copy, lambda stage, _: stage.cluster.restart(stage.others[0]), SHORT_OPLOG),
    Phase.CANDIDATE: Story(follows, stand),
    Phase.VOTER: Story(third, stand),
    Phase.SHUTDOWN: Story(leads, shut_down),
}


# --- dying, and what must hold afterwards ---------------------------------------------------------------------------


@contextmanager
def deadly(stage: Stage, victim: str, point: CrashPoint, *, power_loss: bool) -> Iterator[None]:
    """Within the block the member dies when it comes to the point."""

    def die() -> None:
        stage.cluster.kill(victim, power_loss=power_loss)
        raise asyncio.CancelledError  # nothing more is done, not even until the next wait

    with at_point(stage.cluster, victim, point, die):
        yield


def wait_for_death(stage: Stage, victim: str, point: CrashPoint) -> None:
    machine = stage.cluster.machines[victim]
    stage.cluster.run_until(lambda: machine.life is None, 30, f"{victim} comes to {point.title}")


@contextmanager
def saved_votes() -> Iterator[dict[str, LastVote]]:
    """The last vote that each member saved, by name: what it may have told others."""
    votes: dict[str, LastVote] = {}
    save_vote = MemberFile.save_vote

    def noting(file: MemberFile, vote: LastVote, durable: Callable[[], OpTime] | None = None) -> None:
        save_vote(file, vote, durable)
        life = current_life.get()
        if life is not None and life.alive:
            votes[life.name[0]] = vote

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


def go_on_without(stage: Stage, victim: str) -> None:
    """The others elect a primary and go on; what the dead member alone held will have to be rolled back."""
    cluster = stage.cluster
    cluster.heal()
    cluster.run_until(lambda: cluster.primary() not in (None, victim), 40, "the others have a primary")
    stage.expect(stage.write(cluster.primary() or "").acknowledged, "the others take a majority write")


def is_well(stage: Stage) -> None:
    """Everybody is back; a new majority write is taken; every check."""
    cluster = stage.cluster
    cluster.heal()
    cluster.run_until(cluster.converged, 90, "converged")
    stage.expect(stage.write(cluster.primary() or "").acknowledged, "a majority write at the end")
    cluster.run_until(cluster.converged, 90, "converged again")
    stage.checkers.at_the_end()
    chains_are_whole(cluster)


@KINDS
@points(of_the_beginning=False)
def test_a_member_that_dies_there_comes_back_right(point: CrashPoint, power_loss: bool) -> None:
    story = STORIES[point.phase]
    with saved_votes() as votes, staged(weather=story.weather) as stage:
        stage.cluster.on_wipe.append(lambda name: votes.pop(name, None) and None)
        victim = story.prepare(stage)
        with deadly(stage, victim, point, power_loss=power_loss):
            story.go(stage, victim)
            wait_for_death(stage, victim, point)
        if not power_loss and point.phase is not Phase.SOURCE:  # there the others cannot elect anybody
            go_on_without(stage, victim)
        stage.cluster.restart(victim)
        machine = stage.cluster.machines[victim]
        stage.cluster.run_until(lambda: machine.started or bool(stage.cluster.broken), 10, f"{victim} is up")
        stage.cluster.check_unbroken()
        assert machine.member is not None
        expect_vote(machine.member._member_file.last_vote, votes.get(victim))
        is_well(stage)


@KINDS
@points(of_the_beginning=True)
def test_a_set_that_dies_at_its_beginning_can_begin(point: CrashPoint, power_loss: bool) -> None:
    quiet_logs()
    with SimCluster(3, seed=1) as cluster:
        workload = Workload(cluster.loop, [], cluster.random_for("workload"), cluster.client)
        stage = Stage(cluster, Checkers(cluster, workload.history), workload)
        for name in cluster.machines:
            cluster.start(name)
        cluster.run_until(lambda: all(machine.started for machine in cluster.machines.values()), 10, "all started")
        members = [{"_id": n, "host": machine.host} for n, machine in enumerate(cluster.machines.values())]
        initiate: dict[str, object] = {
            "replSetInitiate": {"_id": "rs0", "version": 1, "members": members, "settings": dict(SETTINGS)}
        }
        with deadly(stage, "a", point, power_loss=power_loss):
            ask_at_once(stage, "a", initiate)
            wait_for_death(stage, "a", point)
        cluster.restart("a")
        cluster.run_until(lambda: cluster.machines["a"].started, 10, "a is up")
        reply = cluster.command("a", initiate, timeout_s=30)
        assert reply["ok"] == 1 or reply["codeName"] == "AlreadyInitialized", reply
        is_well(stage)


@pytest.mark.parametrize("phase", list(STORIES))
def test_a_start_after_a_death_at_any_step_of_the_disk_finds_all_that_was_promised(phase: Phase) -> None:
    story = STORIES[phase]
    with saved_votes() as votes, staged(weather=story.weather) as stage:
        cluster = stage.cluster
        cluster.on_wipe.append(lambda name: votes.pop(name, None) and None)
        victim = story.prepare(stage)
        machine = cluster.machines[victim]
        album = Album(cluster, stage.checkers, victim, votes)
        with at_every_disk_step(cluster, victim, album.take):
            story.go(stage, victim)
            cluster.run_for(1)
            cluster.run_until(lambda: machine.life is None or cluster.converged(), 30, "the story is over")
        assert len(album.steps) > 10, album.steps
        if machine.life is None:
            cluster.restart(victim)
        is_well(stage)


def test_the_steps_are_the_documented_ones() -> None:
    """The table in docs/storage.md, row by row."""
    text = (Path(__file__).parents[2] / "docs" / "storage.md").read_text(encoding="utf-8")
    section = text[text.index("## Crash points") : text.index("## Measured")]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")][2:]
    documented = [(phase, name) for phase, names, _ in rows for name in names.split("; ")]
    assert documented == [(point.phase.value, point.name) for point in CRASH_POINTS]
