"""The core alone under faults: more schedules than whole members can go through."""

from __future__ import annotations

import pytest

from tests.simulation.kit.core_runs import run_core

QUICK = range(8)
SLOW = range(8, 60)


@pytest.mark.parametrize("seed", [*QUICK, *(pytest.param(seed, marks=pytest.mark.slow) for seed in SLOW)])
def test_the_core_holds(seed: int) -> None:
    outcome = run_core(seed)
    assert outcome.error is None, outcome.report()
    assert outcome.counts["entries committed"] > 10
    assert outcome.counts["terms"]


def test_a_seed_gives_the_same_trace() -> None:
    assert run_core(1).digest == run_core(1).digest != run_core(2).digest
