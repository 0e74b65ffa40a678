"""A disk that fills up in an initial sync: the member waits for room, wherever it is, and does not stop."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.simulation.kit.machine import Machine
from tests.simulation.kit.scenarios import ScenarioRun, scenario_run


@contextmanager
def filled_up(seed: int, steps: int) -> Iterator[tuple[ScenarioRun, Machine]]:
    """A set, and a member whose disk took only so many steps of an initial sync from the first byte of the copy on."""
    with scenario_run(seed=seed) as scenario:
        cluster = scenario.cluster
        for _ in range(5):
            scenario.write(scenario.primary)
        machine = cluster.machines[scenario.others[0]]
        cluster.kill(machine.name, wipe=True)
        cluster.restart(machine.name)
        left = steps

        def fill() -> None:
            nonlocal left
            if left < steps or os.path.exists(os.path.join(machine.disk.folder, "initial-sync.db")):
                left -= 1
            if left < 0:
                cluster.on_step.remove(fill)
                machine.disk.is_full = True

        cluster.on_step.append(fill)
        cluster.run_until(lambda: machine.disk.is_full, 60, "the copy is under way and the disk fills up")
        yield scenario, machine


@pytest.mark.in_turns
@pytest.mark.parametrize("steps", range(80))
def test_a_disk_that_fills_up_at_any_moment_of_an_initial_sync_is_waited_for(steps: int) -> None:
    with filled_up(steps, steps) as (scenario, machine):
        scenario.cluster.run_for(10)
        scenario.cluster.check_unbroken()
        assert scenario.cluster.command(machine.name, {"replSetGetStatus": 1})["ok"] == 1.0
        machine.disk.is_full = False
        scenario.heal_all_and_judge()


@pytest.mark.in_turns
def test_the_status_shows_what_a_member_waits_for_after_the_swap() -> None:
    """The step at which the swap is under way moves when a member does more or less before it: so several are tried."""
    waited_for = set()
    for steps in range(80, 90):
        with filled_up(steps, steps) as (scenario, machine):
            scenario.cluster.run_for(10)
            status = scenario.cluster.command(machine.name, {"replSetGetStatus": 1, "initialSync": 1})
            waited_for.add(status.get("initialSyncStatus", {}).get("waitingFor", ""))
    texts = [text for text in waited_for if "replset.db" in text]
    assert texts, waited_for
    assert all("no space left on the disk" in text for text in texts)


@pytest.mark.in_turns
@pytest.mark.parametrize("steps", range(50, 80, 3))
def test_a_member_that_waits_for_disk_space_for_its_copy_can_be_stopped(steps: int) -> None:
    with filled_up(steps, steps) as (scenario, machine):
        cluster = scenario.cluster
        cluster.run_for(5)
        cluster.loop.create_task(cluster.stop(machine.name))
        cluster.run_until(lambda: machine.process is None, 30, "the member stops")
        machine.disk.is_full = False
        cluster.restart(machine.name)
        scenario.heal_all_and_judge()
