"""The core alone under faults: more schedules than whole members can go through."""

from __future__ import annotations

import pytest

from tests.simulation.kit.core_only import run_core_seed

QUICK = range(8)
SLOW = range(8, 60)


@pytest.mark.parametrize("seed", [*QUICK, *(pytest.param(seed, marks=pytest.mark.slow) for seed in SLOW)])
def test_the_core_holds(seed: int) -> None:
    world = run_core_seed(seed)
    assert len(world.committed) > 10
    assert world.primaries
