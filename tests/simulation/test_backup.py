"""A member whose disk is lost comes back from a backup: it catches up from the oplog, and does not count before."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from replset.core.member_state import MemberState
from replset.features.backup.backup_folder import BackupManifest, restore_backup
from replset.ids import OpTime
from replset.member.member import RunningMember
from replset.replication.initial_sync_progress import InitialSyncProgress
from replset.storage import DATABASE_FILE
from tests.simulation.kit.cluster import SimCluster
from tests.simulation.kit.scenarios import Scenario, scenario_run

Backup = tuple[bytes, bytes]
"""backup.json, and replset.db."""


def member(cluster: SimCluster, name: str) -> RunningMember:
    running = cluster.machines[name].running
    assert running is not None
    return running


def back_up(scenario: Scenario, name: str) -> Backup:
    """What `POST /v1/replset/backup` gives, once all of it is committed."""
    running, disk = member(scenario.cluster, name), scenario.cluster.machines[name].disk
    path = os.path.join(disk.folder, "copy.db")
    info = running.store.copy_to(path)
    scenario.cluster.run_until(lambda: running.node.commit_point >= info.newest, 30)
    manifest = BackupManifest("rs0", "", running.host, str(info.newest), info.size, info.sha256, "", {})
    data = disk.read_file(path)
    disk.remove(path)
    return manifest.encode(), data


def restore(scenario: Scenario, name: str, backup: Backup) -> None:
    """Put the backup on the member's new, empty disk, and start it."""
    disk = scenario.cluster.machines[name].disk
    place = os.path.join(disk.folder, "lost+found")  # which a restore leaves alone
    disk.make_folder(place)
    for file, data in zip(("backup.json", DATABASE_FILE), backup, strict=True):
        disk.write_file(os.path.join(place, file), [data])
    restore_backup(disk, place, disk.folder, None, lambda _size: None)
    for file in disk.list_folder(place):
        disk.remove(os.path.join(place, file))
    scenario.restart(name)


@pytest.mark.parametrize("is_primary", [False, True])
def test_it_fetches_what_came_since_and_gets_its_vote_back(is_primary: bool) -> None:
    with scenario_run(seed=7) as scenario:
        cluster = scenario.cluster
        one = scenario.primary if is_primary else scenario.others[0]
        for _ in range(20):
            scenario.write(scenario.primary)
        backup = back_up(scenario, scenario.others[1])
        for _ in range(20):
            scenario.write(scenario.primary)
        before = member(cluster, one).node.incarnation
        scenario.kill(one, wipe=True)
        cluster.run_until(lambda: cluster.primary() not in (None, one), 60)
        restore(scenario, one, backup)
        cluster.run_until(cluster.all_counted, 60)
        restored = member(cluster, one)
        assert restored.node.incarnation != before
        assert restored[InitialSyncProgress].began_wall_ms == 0
        scenario.heal_all_and_judge()


@pytest.mark.in_turns
def test_it_neither_votes_nor_counts_for_what_its_lost_disk_had() -> None:
    """The other holder of a majority write dies meanwhile: nobody may lead without that write."""
    with scenario_run(seed=8) as scenario:
        cluster, (one, other) = scenario.cluster, scenario.others
        backup = back_up(scenario, one)
        scenario.cut(other)
        scenario.write(scenario.primary)  # on the primary and on `one`
        scenario.kill(one, wipe=True)
        scenario.kill(scenario.primary)
        scenario.heal()
        restore(scenario, one, backup)
        cluster.run_for(30)
        assert cluster.primary() is None
        assert member(cluster, one).node.state is not MemberState.PRIMARY
        scenario.restart(scenario.primary)
        scenario.heal_all_and_judge()


def test_one_from_a_backup_that_is_too_old_copies_anew() -> None:
    with scenario_run(seed=9) as scenario:
        cluster, one = scenario.cluster, scenario.others[0]
        backup = back_up(scenario, one)
        scenario.kill(one, wipe=True)
        for machine in cluster.machines.values():
            if machine.running is not None:
                store = machine.running.store
                store.options = replace(store.options, oplog_max_bytes=2_000, oplog_lagging_bytes=0)
        for _ in range(60):
            scenario.write(scenario.primary)
        newest = OpTime.parse(BackupManifest.parse(backup[0], "it").newest)
        holders = [member(cluster, name) for name in (scenario.primary, scenario.others[1])]
        cluster.run_until(lambda: all(one.store.oldest > newest for one in holders), 120, "the oplogs are trimmed")
        restore(scenario, one, backup)
        cluster.run_until(cluster.all_counted, 60)
        assert member(cluster, one)[InitialSyncProgress].began_wall_ms > 0
        scenario.heal_all_and_judge()
