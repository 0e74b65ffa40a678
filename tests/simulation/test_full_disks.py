"""A disk that fills up in an initial sync: the member waits for room, wherever it is, and does not stop."""

from __future__ import annotations

import os

import pytest

from tests.simulation.kit.scenarios import staged


@pytest.mark.parametrize("steps", range(80))
def test_a_disk_that_fills_up_at_any_moment_of_an_initial_sync_is_waited_for(steps: int) -> None:
    with staged(seed=steps) as stage:
        cluster = stage.cluster
        for _ in range(5):
            stage.write(stage.primary)
        name = stage.others[0]
        machine = cluster.machines[name]
        cluster.kill(name, wipe=True)
        cluster.restart(name)
        left = steps

        def fill() -> None:
            """So many steps after the first byte of the copy."""
            nonlocal left
            if left < steps or os.path.exists(os.path.join(machine.disk.folder, "initial-sync.db")):
                left -= 1
            if left < 0:
                cluster.on_step.remove(fill)
                machine.disk.is_full = True

        cluster.on_step.append(fill)
        cluster.run_until(lambda: machine.disk.is_full, 60, "the copy is under way and the disk fills up")
        cluster.run_for(10)
        cluster.check_unbroken()
        assert cluster.command(name, {"replSetGetStatus": 1, "initialSync": 1})["ok"] == 1.0
        machine.disk.is_full = False
        stage.heal_all_and_judge()
