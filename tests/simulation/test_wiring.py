"""The parts of a member are connected as they should be."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.kit.wiring import CHECKS


@pytest.mark.parametrize("check", [pytest.param(check, id=check.__name__) for check in CHECKS])
def test_a_member_is_wired(check: Callable[[], None]) -> None:
    check()
