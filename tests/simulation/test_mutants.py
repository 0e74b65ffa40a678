"""Each rule that is broken on purpose is noticed by the run that is recorded for it."""

from __future__ import annotations

import pytest

from tests.simulation.kit.mutants import MUTANTS, Mutant

pytestmark = pytest.mark.night(
    "whether the runs notice what they should; a change to the product fails in the runs themselves"
)


@pytest.mark.parametrize("mutant", [pytest.param(m, id=m.name) for m in MUTANTS if m.killers])
def test_a_seed_notices(mutant: Mutant) -> None:
    assert mutant.is_caught_by_a_seed()


@pytest.mark.parametrize("mutant", [pytest.param(m, id=m.name) for m in MUTANTS if m.scenario is not None])
def test_a_scenario_notices(mutant: Mutant) -> None:
    assert mutant.is_caught_by_its_scenario()
