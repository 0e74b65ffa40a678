"""Members with an archive, whose segments are real: who writes it, and who goes on from it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replset.features.archive.archive_lease import ArchiveRecord, read_record
from replset.features.archive.feature import ArchivePart
from replset.features.archive.files import ArchiveError
from replset.features.archive.jobs import WriteJob, Written
from replset.features.archive.write_segment import write_segment
from replset.member.feature import Features
from replset.member.member import RunningMember
from replset.replication.initial_sync_progress import InitialSyncProgress
from tests.simulation.kit.archives import ArchiveOfMachine, SimArchive
from tests.simulation.kit.environment import Environment
from tests.simulation.kit.scenarios import ScenarioRun, scenario_run

ARCHIVES = Environment(archives=True, oplog_bytes=2_000, history_s=1)
LAGGING_BYTES = 6_000


def reliable(scenario: ScenarioRun) -> SimArchive:
    archive = scenario.cluster.archive
    assert archive is not None
    archive.rest()
    return archive


def member(scenario: ScenarioRun, name: str) -> RunningMember:
    running = scenario.cluster.machines[name].running
    assert running is not None
    return running


def record_of(running: RunningMember) -> ArchiveRecord:
    return read_record(running.store, str(running.node.set_id))


def wait_archived(scenario: ScenarioRun, archive: SimArchive) -> None:
    newest = member(scenario, scenario.primary).store.last_applied
    scenario.cluster.run_until(lambda: archive.reaches(newest), 60, "all is archived")


def test_a_member_that_cannot_write_leaves_the_lease_to_another() -> None:
    with scenario_run(environment=replace(ARCHIVES, oplog_lagging_bytes=1 << 30)) as scenario:
        archive = reliable(scenario)
        scenario.write(scenario.primary)
        wait_archived(scenario, archive)
        archive.broken = scenario.cluster.name_of(record_of(member(scenario, scenario.primary)).holder)
        for _ in range(3):
            scenario.write(scenario.primary)
        wait_archived(scenario, archive)
        scenario.heal_all_and_judge()


@pytest.mark.parametrize("wrong_days", [-1, 1])
def test_a_holder_whose_wall_clock_is_wrong_goes_on(wrong_days: int) -> None:
    """It renews its lease in time, and the last entries need not wait until its clock gets there."""
    with scenario_run(environment=replace(ARCHIVES, oplog_lagging_bytes=1 << 30)) as scenario:
        archive, primary = reliable(scenario), member(scenario, scenario.primary)
        scenario.write(scenario.primary)
        wait_archived(scenario, archive)
        holder = record_of(primary).holder
        machine = scenario.cluster.machines[scenario.cluster.name_of(holder)]
        machine.clock.jump(wrong_days * 86_400_000)
        for _ in range(20):
            scenario.cluster.run_for(0.5)
            scenario.write(scenario.primary)
            assert record_of(primary).holder == holder
        wait_archived(scenario, archive)
        assert record_of(primary).holder == holder
        machine.clock.jump(-wrong_days * 86_400_000)
        scenario.heal_all_and_judge()


def test_a_stale_member_goes_on_from_segments() -> None:
    with scenario_run(environment=replace(ARCHIVES, oplog_lagging_bytes=LAGGING_BYTES)) as scenario:
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
        assert member(scenario, one)[InitialSyncProgress].began_wall_ms == 0
        scenario.heal_all_and_judge()


def test_a_segment_that_was_not_reported_leaves_no_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder wrote it and was cut off. Then the oplogs are trimmed beyond what the set's record names."""

    async def fails(_: ArchiveOfMachine, job: WriteJob) -> Written:
        raise ArchiveError("not now")

    with scenario_run(environment=replace(ARCHIVES, oplog_lagging_bytes=LAGGING_BYTES)) as scenario:
        archive, primary = reliable(scenario), member(scenario, scenario.primary)
        scenario.cluster.run_until(lambda: primary.snapshots.needed() is None, 60, "no copy keeps the oplog")
        scenario.write(scenario.primary)
        scenario.cluster.run_until(lambda: record_of(primary).through is not None, 60, "the record names a segment")
        with monkeypatch.context() as patch:
            patch.setattr(ArchiveOfMachine, "write", fails)
            reported = record_of(primary).through
            while primary.store.oplog_bytes < LAGGING_BYTES - 500:
                scenario.write(scenario.primary)
            assert reported is not None
            archiver = next(part.archiver for part in primary[Features] if isinstance(part, ArchivePart))
            assert archiver is not None
            job = replace(archiver._job(primary.store, record_of(primary)), max_bytes=1 << 20)
            written = primary.store.query(lambda connection: write_segment(archive.files, connection, job))
            assert written.segment is not None
            assert not written.is_gap
            while primary.store.trimmed_through <= reported.optime.ts:
                scenario.write(scenario.primary)
            assert primary.store.oldest <= written.segment.end.optime
            scenario.cluster.run_for(15)  # each member sees the gap, and the archive does not answer
        scenario.write(scenario.primary)
        wait_archived(scenario, archive)
        scenario.heal_all_and_judge()
