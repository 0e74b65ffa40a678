"""A warning that others can cause as often as they like takes few lines of the log."""

from __future__ import annotations

import logging

import pytest

from replset.operations.repeated_warnings import EVERY_S, MOST_CAUSES, RepeatedWarnings


class World:
    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.now_s = 0.0
        self.warnings = RepeatedWarnings(logging.getLogger("test"), lambda: self.now_s)
        self._caplog = caplog

    def lines(self) -> list[str]:
        found = [record.message for record in self._caplog.records]
        self._caplog.clear()
        return found


def test_once_for_each_cause_then_seldom_with_a_count(caplog: pytest.LogCaptureFixture) -> None:
    world = World(caplog)
    for _ in range(5):
        world.warnings.warn("a", "a fails")
        world.warnings.warn("b", "b fails")
    assert world.lines() == ["a fails", "b fails"]
    world.now_s = EVERY_S
    world.warnings.warn("a", "a fails")
    world.warnings.warn("a", "a fails")
    assert world.lines() == ["a fails (and 4 times more since the last line)"]


def test_a_clock_that_goes_back_silences_nothing(caplog: pytest.LogCaptureFixture) -> None:
    world = World(caplog)
    world.now_s = 1e9
    world.warnings.warn("a", "a fails")
    world.now_s = 0
    world.warnings.warn("a", "a fails")
    assert len(world.lines()) == 2


def test_the_causes_that_are_kept_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    world = World(caplog)
    for number in range(10 * MOST_CAUSES):
        world.warnings.warn(str(number), "fails")
    assert len(world.warnings._causes) == MOST_CAUSES
