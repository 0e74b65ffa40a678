"""Each target with the same few inputs every time; `./dev fuzz` goes on with new ones."""

from __future__ import annotations

import pytest

from tests.fuzz.kit import run_short
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_breaks(name: str) -> None:
    told = run_short(TARGETS[name])
    assert told.total() >= TARGETS[name].short / 2
    assert len(told) > 1, "inputs of more than one kind"
