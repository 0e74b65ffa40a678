"""Each rule that is broken on purpose is noticed by the run that is recorded for it."""

from __future__ import annotations

import pytest

from tests.simulation.kit.mutants import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", [pytest.param(m, id=f"{m.name} by {m.killed_by}") for m in MUTANTS])
def test_a_mutant_is_caught(mutant: Mutant) -> None:
    assert mutant.caught() is not None, f"nobody noticed {mutant.name}"
