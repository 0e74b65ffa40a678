"""Whole members: a primary, a secondary and a witness, whichever of the three is lost; a member that changes kind."""

from __future__ import annotations

import os
from typing import Any

import pytest

from replset.cli.repair import accept_loss
from replset.storage.member_file import MemberFile
from tests.simulation.kit.clock import EPOCH_MS
from tests.simulation.kit.entries import manifests
from tests.simulation.kit.scenarios import ScenarioRun, scenario_run

WITNESS = "v"


@pytest.mark.parametrize("power_loss", [False, True])
@pytest.mark.parametrize("lost", ["primary", "secondary", "witness"])
def test_majority_writes_go_on_without_any_one_of_the_three(lost: str, power_loss: bool) -> None:
    with scenario_run(2, witnesses=1) as scenario:
        cluster = scenario.cluster
        names = {"primary": scenario.primary, "secondary": scenario.others[0], "witness": WITNESS}
        scenario.expect(scenario.write(scenario.primary).acknowledged, "a majority write")
        scenario.kill(names[lost], power_loss=power_loss)
        cluster.run_until(lambda: cluster.primary() not in (None, names[lost]), 20, "a primary")
        for _ in range(3):
            scenario.expect(scenario.write(cluster.primary() or "").acknowledged, "a majority write without it")
        scenario.heal_all_and_judge()


@pytest.mark.parametrize("seed", range(1, 6))
def test_a_secondary_fetches_from_the_witness_what_the_dead_primary_had_acknowledged(seed: int) -> None:
    with scenario_run(2, seed=seed, witnesses=1) as scenario:
        cluster, (other,) = scenario.cluster, scenario.others
        scenario.cut(other)
        for _ in range(5):
            scenario.expect(scenario.write(scenario.primary).acknowledged, "on primary and witness")
        optime = scenario.checkers.mirrors[WITNESS].newest()
        scenario.kill(scenario.primary, power_loss=True)
        view = cluster.command(WITNESS, {"replSetGetWriteState": str(optime)}, "admin")
        assert (view["ok"], view["holds"]) == (1, True)
        scenario.heal()
        cluster.run_until(lambda: cluster.primary() == other, 30, "the secondary leads")
        scenario.checkers.majority_writes_are_on(other)
        scenario.heal_all_and_judge()


def test_what_only_the_witness_got_of_a_primary_is_rolled_back_into_its_file() -> None:
    """A primary that is cut off together with one witness of two writes at w:1; the others elect another one."""
    with scenario_run(3, witnesses=2) as scenario:
        cluster, old = scenario.cluster, scenario.primary
        scenario.cut(old, WITNESS)
        write = scenario.write(old, concern="w1")
        scenario.expect(write.acknowledged, "a write that the others never get")
        cluster.run_until(lambda: not scenario.has_less(WITNESS, old), 5, "the witness has it")
        cluster.run_until(lambda: cluster.primary() not in (None, old), 20, "another primary")
        scenario.expect(scenario.write(cluster.primary() or "").acknowledged, "a majority write there")
        scenario.heal_all_and_judge()
        (manifest,) = manifests(cluster.machines[WITNESS].disk)
        assert {file["kind"] for file in manifest["files"]} == {"oplog"}


@pytest.mark.parametrize("name", [WITNESS, "secondary"])
def test_a_member_that_comes_back_as_the_other_kind_copies_anew(name: str) -> None:
    """With the disk that it has: a former witness lacks the documents, a former data member would let them grow old."""
    with scenario_run(2, witnesses=1) as scenario:
        cluster = scenario.cluster
        name = scenario.others[0] if name == "secondary" else name
        machine, copies = cluster.machines[name], scenario.checkers.copies
        scenario.expect(scenario.write(scenario.primary).acknowledged, "a majority write")
        assert change(scenario, {"replSetRemoveMember": str(machine.host)})["ok"] == 1
        scenario.expect(scenario.write(scenario.primary).acknowledged, "a write that it does not get")
        machine.witness = not machine.witness
        added = {"host": str(machine.host), **({"witness": True} if machine.witness else {})}
        assert change(scenario, {"replSetAddMember": added})["ok"] == 1
        scenario.heal_all_and_judge()
        assert scenario.checkers.copies > copies
        member = machine.running
        assert member is not None
        assert member.store.oplog_only is machine.witness
        reads = {"find": "orders", "$readPreference": {"mode": "secondaryPreferred"}}
        reply = cluster.command(name, reads, "shop")
        assert (reply["ok"], reply.get("code")) == ((0, 13436) if machine.witness else (1, None))


def test_a_lone_data_member_gets_back_from_the_witness_what_its_disk_lost() -> None:
    """Its WAL is gone. An operator lets it go on with what is there, and it is not elected before it has all again."""
    with scenario_run(1, witnesses=1) as scenario:
        cluster, name = scenario.cluster, scenario.primary
        machine = cluster.machines[name]
        for number in range(10):
            if number == 5 and machine.running is not None:
                machine.running.store.wal.last_pass()  # the first ones are in the database itself
            scenario.expect(scenario.write(name).acknowledged, "a majority write")
        cluster.run_for(2)  # the durability mark is raised now and then
        scenario.kill(name)
        machine.may_have_lost_data, machine.state_at_death = True, None
        machine.disk.remove(os.path.join(machine.disk.folder, "replset.db-wal"))
        scenario.restart(name)
        cluster.run_until(lambda: machine.running is not None, 10, "it runs")
        assert machine.running is not None
        assert machine.running.node.has_lost_data
        left = machine.running.store.last_applied
        scenario.kill(name)
        file = MemberFile.open(machine.disk, machine.disk.folder)
        accept_loss(machine.disk, machine.disk.folder, file, left, EPOCH_MS)
        file.close()
        scenario.restart(name)
        cluster.run_until(lambda: cluster.primary() == name, 60, "it leads again")
        scenario.checkers.majority_writes_are_on(name)


def change(scenario: ScenarioRun, command: dict[str, object]) -> dict[str, Any]:
    return scenario.cluster.command(scenario.primary, command, timeout_s=30)
