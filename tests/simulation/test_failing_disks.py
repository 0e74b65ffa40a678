"""A disk that ends a sync with EIO: who could not sync its WAL stops, and what it had promised stays."""

from __future__ import annotations

import pytest

from tests.simulation.kit.environment import Environment
from tests.simulation.kit.scenarios import ScenarioRun, scenario_run


def failed_sync(scenario: ScenarioRun, name: str) -> None:
    """One sync of the member's WAL fails, while it takes writes; then the disk works again."""
    cluster, machine = scenario.cluster, scenario.cluster.machines[name]
    disk = machine.disk
    disk.failing = frozenset({"sync"})
    write = scenario.write(name, concern="journaled")
    disk.failing = frozenset()
    assert disk.failed
    assert not write.acknowledged, "it is on no disk"
    cluster.run_until(lambda: machine.process is None, 10, "the member stops")


@pytest.mark.parametrize("overlap", [0.0, 1.0])
def test_a_member_whose_wal_does_not_sync_stops(overlap: float) -> None:
    with scenario_run(environment=Environment(overlap=overlap)) as scenario:
        old = scenario.primary
        assert scenario.write(old).acknowledged
        failed_sync(scenario, old)
        scenario.cluster.run_until(lambda: scenario.cluster.primary() not in (None, old), 20, "another primary")
        assert scenario.write(scenario.cluster.primary() or "").acknowledged
        scenario.heal_all_and_judge()
