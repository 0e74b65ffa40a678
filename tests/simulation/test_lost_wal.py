"""A WAL that is lost or cut between two lives of a member: it says so, and is not believed until it has all again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from replset.cli.repair import accept_loss
from replset.core.member_state import MemberState
from replset.ids import OPTIME_NULL
from replset.member.disk import durability_mark
from replset.member.member import RunningMember
from replset.storage.member_file import MemberFile
from tests.simulation.kit.clock import EPOCH_MS
from tests.simulation.kit.cluster import SimCluster
from tests.simulation.kit.scenarios import scenario_run

DOCS = {"insert": "docs", "writeConcern": {"w": "majority"}}


def member(cluster: SimCluster, name: str) -> RunningMember:
    running = cluster.machines[name].running
    assert running is not None
    return running


def lose_wal(cluster: SimCluster, name: str, keep: float) -> None:
    """The member dies, and only so much of its WAL is there when it starts again."""
    cluster.kill(name)
    machine = cluster.machines[name]
    machine.may_have_lost_data = True
    machine.state_at_death = None  # what goes here is not the death's doing
    path = os.path.join(machine.disk.folder, "replset.db-wal")
    if keep:
        machine.disk.truncate(path, int(machine.disk.size(path) * keep))
    else:
        machine.disk.remove(path)
    cluster.restart(name)
    cluster.run_until(lambda: machine.running is not None, 10, f"{name} runs again")


def accept(cluster: SimCluster) -> None:
    """What `replset repair DBPATH --accept-data-loss` does to the stopped member of a set of one."""
    left = member(cluster, "a").store.last_applied
    cluster.kill("a")
    machine = cluster.machines["a"]
    file = MemberFile.open(machine.disk, machine.disk.folder)
    accept_loss(machine.disk, machine.disk.folder, file, left, EPOCH_MS)
    file.close()
    machine.may_have_lost_data = False
    cluster.restart("a")


@pytest.mark.parametrize("keep", [0.5, 0])
def test_a_single_member_waits_until_an_operator_accepts_the_loss(keep: float) -> None:
    with SimCluster(1, seed=1) as cluster:
        cluster.initiate()
        cluster.run_until(lambda: cluster.primary() == "a", 60)
        for number in range(50):
            if number == 20:
                member(cluster, "a").store.wal.last_pass()
            assert cluster.command("a", {**DOCS, "documents": [{"_id": number}]}, "app")["ok"] == 1.0
        held = member(cluster, "a").store.last_applied
        cluster.run_for(2)
        lose_wal(cluster, "a", keep)
        lost = member(cluster, "a")
        assert lost.store.last_applied < held
        cluster.run_for(60)
        assert cluster.primary() is None
        (row,) = cluster.command("a", {"replSetGetStatus": 1})["members"]
        assert "entries are lost" in row["infoMessage"]
        assert str(held) in row["infoMessage"]
        assert "data lost" in [line.event for line in lost._member_file.journal(10)]
        accept(cluster)
        cluster.run_until(lambda: cluster.primary() == "a", 60)
        cluster.check_unbroken()


def test_a_wal_that_is_cut_behind_a_checkpoint_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint has copied the newest documents into the database; their entries go with the WAL."""
    monkeypatch.setattr(durability_mark, "RAISE_EVERY_S", 600)  # the mark is raised for the checkpoint alone
    with SimCluster(1, seed=3) as cluster:
        cluster.initiate()
        cluster.run_until(lambda: cluster.primary() == "a", 60)
        here = member(cluster, "a")
        wal = here.store.wal
        number = passed = 0
        while not wal.needs_checkpoint:
            number, passed = number + 1, wal._passed_pages
            assert cluster.command("a", {"insert": "docs", "documents": [{"_id": number}]}, "app")["ok"] == 1.0
        cluster.run_until(lambda: wal._passed_pages != passed, 10)
        held = here.store.last_applied
        lose_wal(cluster, "a", 0.2)
        assert member(cluster, "a").store.last_applied < held
        (row,) = cluster.command("a", {"replSetGetStatus": 1})["members"]
        assert "entries are lost" in row["infoMessage"]


def test_a_single_member_that_lost_everything_begins_anew_after_the_loss_is_accepted() -> None:
    """No checkpoint yet: with its WAL all is gone, and there is nobody whose data it could copy."""
    with SimCluster(1, seed=2) as cluster:
        cluster.initiate()
        cluster.run_until(lambda: cluster.primary() == "a", 60)
        assert cluster.command("a", {**DOCS, "documents": [{"_id": 1}]}, "app")["ok"] == 1.0
        held = member(cluster, "a").store.last_applied
        cluster.run_for(2)
        lose_wal(cluster, "a", 0)
        assert member(cluster, "a").store.last_applied == OPTIME_NULL
        cluster.run_for(60)
        assert member(cluster, "a").node.state is MemberState.STARTUP2
        accept(cluster)
        cluster.run_until(lambda: cluster.primary() == "a", 60)
        lone = member(cluster, "a")
        assert lone.store.oldest.ts > held.ts
        assert lone.store.oldest.term >= held.term
        (line,) = [line for line in lone._member_file.journal(20) if line.event == "data loss accepted"]
        assert "everything" in line.detail
        assert str(held) in line.detail
        assert cluster.command("a", {"count": "docs"}, "app")["n"] == 0
        assert cluster.command("a", {**DOCS, "documents": [{"_id": 2}]}, "app")["ok"] == 1.0
        cluster.kill("a")
        cluster.restart("a")
        cluster.run_until(lambda: cluster.primary() == "a", 60)
        cluster.check_unbroken()


@pytest.mark.parametrize("keep", [0.4, 0])
def test_a_member_of_a_set_copies_anew_and_gets_its_vote_back(keep: float) -> None:
    with scenario_run(seed=2) as scenario:
        cluster, one = scenario.cluster, scenario.others[0]
        for _ in range(20):
            scenario.write(scenario.primary)
        cluster.run_for(2)
        before = member(cluster, one).node.incarnation
        lose_wal(cluster, one, keep)
        assert member(cluster, one).node.has_lost_data
        assert member(cluster, one).node.state is MemberState.STARTUP2
        cluster.run_until(lambda: member(cluster, one).node.state is MemberState.SECONDARY, 60, "it copied anew")
        assert member(cluster, one).node.incarnation != before
        assert member(cluster, one).node.quarantine == ""
        cluster.run_until(cluster.all_counted, 60)
        cluster.machines[one].may_have_lost_data = False
        scenario.kill(one)
        scenario.restart(one)
        scenario.heal_all_and_judge()


def test_a_primary_that_lost_its_wal_does_not_lead_what_is_left() -> None:
    with scenario_run(seed=3) as scenario:
        cluster, old = scenario.cluster, scenario.primary
        for _ in range(20):
            scenario.write(old)
        cluster.run_for(2)
        lose_wal(cluster, old, 0)
        cluster.run_until(lambda: cluster.primary() in scenario.others, 60, "another member leads")
        scenario.heal_all_and_judge()


def test_a_rollback_that_is_cut_off_is_no_loss() -> None:
    """The mark is lowered before the first step, so a start in the middle finds nothing missing."""
    for steps in (0, 3, 10, 40):
        with scenario_run(seed=4) as scenario:
            cluster, old = scenario.cluster, scenario.primary
            scenario.cut(old)
            for _ in range(5):
                scenario.write(old, concern="w1")
            cluster.run_until(lambda: cluster.primary() in scenario.others, 60)  # noqa: B023
            cluster.run_for(2)
            assert member(cluster, old)._member_file.durability_mark == member(cluster, old).store.last_applied
            scenario.kill_after(old, MemberState.ROLLBACK, steps, power_loss=True)
            scenario.heal()
            cluster.run_until(lambda: cluster.machines[old].process is None, 60)  # noqa: B023
            scenario.restart(old)
            scenario.heal_all_and_judge()


def test_the_mark_is_what_was_synced_and_a_clean_stop_brings_it_up(tmp_path: Path) -> None:
    with scenario_run(seed=5) as scenario:
        cluster, one = scenario.cluster, scenario.others[0]
        scenario.write(scenario.primary)
        running = member(cluster, one)
        cluster.run_until(
            lambda: running._member_file.durability_mark == running.durability.last_durable != OPTIME_NULL, 10
        )
        scenario.write(scenario.primary)
        last = running.store.last_applied
        assert cluster.run(cluster.stop(one))
        assert running._member_file.durability_mark >= last
        scenario.restart(one)
        scenario.heal_all_and_judge()
