"""A disk that ends a sync with EIO: who could not sync its WAL stops, and what it had promised stays."""

from __future__ import annotations

import pytest

from tests.simulation.kit.cluster import Weather
from tests.simulation.kit.scenarios import Stage, staged


def failed_sync(stage: Stage, name: str) -> None:
    """One sync of the member's WAL fails, while it takes writes; then the disk works again."""
    cluster, machine = stage.cluster, stage.cluster.machines[name]
    disk = machine.disk
    disk.failing = frozenset({"sync"})
    write = stage.write(name, concern="journaled")
    disk.failing = frozenset()
    assert disk.failed
    assert not write.acknowledged, "it is on no disk"
    cluster.run_until(lambda: machine.life is None, 10, "the member stops")


@pytest.mark.parametrize("overlap", [0.0, 1.0])
def test_a_member_whose_wal_does_not_sync_stops(overlap: float) -> None:
    with staged(weather=Weather(overlap=overlap)) as stage:
        old = stage.primary
        assert stage.write(old).acknowledged
        failed_sync(stage, old)
        stage.cluster.run_until(lambda: stage.cluster.primary() not in (None, old), 20, "another primary")
        assert stage.write(stage.cluster.primary() or "").acknowledged
        stage.heal_all_and_judge()
