"""The kit of the tests of commands itself."""

from __future__ import annotations

import asyncio
import itertools
import logging

import pytest

from tests import rig
from tests.simulation.kit import error_log
from tests.simulation.kit.errors import SimulationError


async def forever() -> None:
    for _ in itertools.count():
        await asyncio.sleep(1)


def test_a_set_that_has_ended_leaves_the_log_as_it_was() -> None:
    """Or the warnings that a later test looks for are not there."""
    levels = {name: logging.getLogger(name).level for name in error_log.LOGS}
    with rig.a_set():
        assert {logging.getLogger(name).level for name in error_log.LOGS} == {logging.ERROR}
    assert {name: logging.getLogger(name).level for name in error_log.LOGS} == levels


def test_what_never_ends_fails_and_says_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig, "MOST_TURNS", 1_000)
    with rig.a_set() as made:
        task = made.begin(forever())
        with pytest.raises(SimulationError, match=r"not ended after 1,000 turns of the loop: .*forever"):
            made.finish(task)
        task.cancel()
