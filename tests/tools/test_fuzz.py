"""Each target with the same few inputs every time; `./dev fuzz` goes on with new ones."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from tools.fuzz.kit import Target, run_long, run_short, stateless
from tools.fuzz.targets import TARGETS


@pytest.mark.night("a search for inputs; what it found is in the tables of the unit tests")
@pytest.mark.parametrize("name", TARGETS)
def test_no_input_breaks(name: str) -> None:
    outcomes = run_short(TARGETS[name])
    assert outcomes.total() >= TARGETS[name].short / 2
    assert len(outcomes) > 1, "inputs of more than one kind"


def breaks_at_seven(number: int) -> str:
    assert number != 7, "seven"
    return "fine"


def test_a_failure_is_reported_with_its_input() -> None:
    target = Target("numbers", st.integers(0, 9), lambda: stateless(breaks_at_seven), 100)
    with pytest.raises(AssertionError, match="seven") as caught:
        run_short(target)
    assert "input: 7" in caught.value.__notes__
    said: list[str] = []
    assert not run_long(target, 0.1, 5, said.append)
    assert "numbers: BROKEN in round 5" in said[0]
    assert "seven" in said[0]
    assert "input: 7" in said[0]


def test_a_long_run_ends_in_time_and_reports_its_outcomes() -> None:
    said: list[str] = []
    target = Target("numbers", st.integers(8, 9), lambda: stateless(breaks_at_seven), 100)
    assert run_long(target, 0.0001, 5, said.append)
    assert said[0].startswith("numbers: ")
    assert said[0].endswith(" fine")
