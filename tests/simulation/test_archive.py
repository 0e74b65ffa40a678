"""Members with an archive, whose segments are real: who writes it, and who goes on from it."""

from __future__ import annotations

from dataclasses import replace

from replset.commands.members.archive_lease import read_record
from replset.runtime.member import RunningMember
from tests.simulation.kit.archives import SimArchive
from tests.simulation.kit.environment import Environment
from tests.simulation.kit.scenarios import ScenarioRun, scenario_run

ARCHIVES = Environment(archives=True, oplog_bytes=2_000, history_s=1)


def reliable(scenario: ScenarioRun) -> SimArchive:
    archive = scenario.cluster.archive
    assert archive is not None
    archive.rest()
    return archive


def member(scenario: ScenarioRun, name: str) -> RunningMember:
    running = scenario.cluster.machines[name].running
    assert running is not None
    return running


def wait_archived(scenario: ScenarioRun, archive: SimArchive) -> None:
    newest = member(scenario, scenario.primary).store.last_applied
    scenario.cluster.run_until(lambda: archive.reaches(newest), 60, "all is archived")


def test_a_member_that_cannot_write_leaves_the_lease_to_another() -> None:
    with scenario_run(environment=replace(ARCHIVES, oplog_lagging_bytes=1 << 30)) as scenario:
        archive = reliable(scenario)
        scenario.write(scenario.primary)
        wait_archived(scenario, archive)
        running = member(scenario, scenario.primary)
        holder = read_record(running.store, str(running.node.set_id)).holder
        archive.broken = scenario.cluster.name_of(holder)
        for _ in range(3):
            scenario.write(scenario.primary)
        wait_archived(scenario, archive)
        scenario.heal_all_and_judge()


def test_a_stale_member_goes_on_from_segments() -> None:
    with scenario_run(environment=replace(ARCHIVES, oplog_lagging_bytes=6_000)) as scenario:
        archive, one = reliable(scenario), scenario.others[0]
        snapshots = member(scenario, scenario.primary).snapshots
        scenario.cluster.run_until(lambda: snapshots.needed() is None, 60, "no copy keeps the oplog")
        had = member(scenario, one).store.last_applied
        scenario.kill(one)
        while member(scenario, scenario.primary).store.oldest <= had:
            scenario.write(scenario.primary)
        wait_archived(scenario, archive)
        scenario.restart(one)
        scenario.cluster.run_until(scenario.cluster.converged, 60, "it has caught up")
        assert member(scenario, one).initial_sync_progress.began_wall_ms == 0
        scenario.heal_all_and_judge()
