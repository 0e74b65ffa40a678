"""Each rule that is broken on purpose is noticed by the run that is recorded for it."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from tests.simulation.kit.mutant import Mutant
from tests.simulation.kit.mutants import MUTANTS

NIGHT = pytest.mark.night(
    "whether the runs notice what they should; a change to the product fails in the runs themselves"
)
DOCUMENT = Path(__file__).parents[2] / "docs" / "simulation.md"
ROWS = [f"| {(inspect.getdoc(m.break_rule) or '').rstrip('.')} | {m.killed_by} |" for m in MUTANTS]


@NIGHT
@pytest.mark.parametrize("mutant", [pytest.param(m, id=f"{m.name} by {m.killed_by}") for m in MUTANTS if m.killers])
def test_a_mutant_is_caught(mutant: Mutant) -> None:
    assert mutant.caught_by() is not None, f"nobody noticed {mutant.name}"


@NIGHT
@pytest.mark.parametrize("mutant", [pytest.param(m, id=m.name) for m in MUTANTS if m.scenario is not None])
def test_a_scenario_notices_it_too(mutant: Mutant) -> None:
    assert mutant.scenario is not None
    assert mutant.is_caught_in(*mutant.scenario)


@NIGHT
@pytest.mark.parametrize("mutant", [pytest.param(m, id=m.name) for m in MUTANTS if m.test])
def test_a_test_fails_with_it(mutant: Mutant) -> None:
    assert mutant.is_caught_by_test(), f"{mutant.test} does not notice {mutant.name}"


def test_each_mutant_has_a_run_that_notices_and_a_name_of_its_own() -> None:
    assert all(mutant.killers or mutant.scenario or mutant.test for mutant in MUTANTS)
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_the_documentation_lists_each_mutant_and_what_caught_it() -> None:
    listed = [row for row in DOCUMENT.read_text().splitlines() if row in ROWS]
    assert listed == ROWS
