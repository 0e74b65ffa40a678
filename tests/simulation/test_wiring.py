"""The parts of a member are connected as they should be; `test_mutants.py` takes each connection away."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.kit.wiring import CHECKS
from tests.simulation.kit.wiring_mutants import WIRING_MUTANTS


@pytest.mark.parametrize("check", [pytest.param(check, id=check.__name__) for check in CHECKS])
def test_a_member_is_wired(check: Callable[[], None]) -> None:
    check()


def test_each_check_has_its_mutant() -> None:
    assert sorted({number for _, number in WIRING_MUTANTS}) == list(range(len(CHECKS)))
