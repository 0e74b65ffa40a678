"""The kit of the tests of commands itself."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from tests import rig
from tests.simulation.kit.errors import SimulationError


async def forever() -> None:
    for _ in itertools.count():
        await asyncio.sleep(1)


def test_what_never_ends_fails_and_says_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig, "MOST_TURNS", 1_000)
    with rig.a_set() as made:
        task = made.begin(forever())
        with pytest.raises(SimulationError, match=r"not ended after 1,000 turns of the loop: .*forever"):
            made.finish(task)
        task.cancel()
