"""The parts of a member are connected as they should be, and each check notices when its connection is taken away."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.kit.wiring import CHECKS, WIRING
from tests.simulation.kit.wiring_mutants import WIRING_MUTANTS, Break


@pytest.mark.parametrize("check", [pytest.param(check, id=check.__name__) for check in CHECKS])
def test_a_member_is_wired(check: Callable[[], None]) -> None:
    check()


@pytest.mark.parametrize(
    ("break_rule", "number"),
    [pytest.param(*row, id=f"{row[0].__name__} by {CHECKS[row[1]].__name__}") for row in WIRING_MUTANTS],
)
def test_a_check_notices_when_its_connection_is_gone(break_rule: Break, number: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        break_rule(patch)
        error = WIRING.outcome(number).error
    assert error is not None
    assert error.startswith("wiring: "), error


def test_each_check_has_its_mutant() -> None:
    assert sorted({number for _, number in WIRING_MUTANTS}) == list(range(len(CHECKS)))
