"""A rule that is broken on purpose, and what notices it: seeds, a scenario, a test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.simulation.kit import scenarios
from tests.simulation.kit.errors import SimulationError
from tests.simulation.kit.kinds import WHOLE, Kind

Break = Callable[[pytest.MonkeyPatch], None]
MOVED_WITHIN = 40
ROOT = Path(__file__).parents[3]
BROKEN_RULE = "REPLSET_BROKEN_RULE"
"""The environment variable that names for `broken.py` the rule to break in a run of a test."""
_TESTS_FAILED = 1


@dataclass(frozen=True, slots=True)
class Mutant:
    """A broken rule, and what caught it: seeds of a kind, the first of which is documented, maybe a scenario as well;
    or a test, `tests/unit/x/test_y.py::test_z`.

    A change of the engine moves what a seed draws, so one that killed may do so no more. Then the next is tried, and
    after these the first ones of all. verdict: words that the checkers' answer to a seed must have; behind the scenario
    stand those that its answer must have.
    """

    break_rule: Break
    killers: tuple[int, ...] = ()
    verdict: str = "invariant"
    kind: Kind = WHOLE
    scenario: tuple[scenarios.Scenario, str] | None = None
    test: str = ""

    @property
    def name(self) -> str:
        return self.break_rule.__name__

    @property
    def killed_by(self) -> str:
        noticed = [self.kind.run_name(self.killers[0])] if self.killers else []
        if self.scenario is not None:
            noticed.append(self.scenario[0].__name__.replace("_", " "))
        if self.test:
            noticed.append(f"`{self.test.rpartition('/')[2]}`")
        return "; ".join(noticed)

    def caught_by(self) -> int | None:
        """The seed that noticed; None when none did."""
        with pytest.MonkeyPatch.context() as patch:
            self.break_rule(patch)
            for seed in dict.fromkeys((*self.killers, *self.kind.first(MOVED_WITHIN))):
                if self.matches(self.kind.outcome(seed).error):
                    return seed
        return None

    def matches(self, error: str | None) -> bool:
        return error is not None and self.verdict in error

    def is_caught_in(self, scenario: scenarios.Scenario, verdict: str) -> bool:
        with pytest.MonkeyPatch.context() as patch:
            self.break_rule(patch)
            try:
                scenario()
            except SimulationError as error:
                return verdict in str(error)
        return False

    def is_caught_by_test(self) -> bool:
        """Whether the test fails with it, in a process of its own: not for want of the test, nor in collecting it."""
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", BROKEN_PLUGIN, self.test]
        environment = {**os.environ, BROKEN_RULE: self.name, "PYTHONPATH": str(ROOT)}
        run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        last = run.stdout.rstrip().rpartition("\n")[2]
        return run.returncode == _TESTS_FAILED and " failed" in last and " error" not in last


BROKEN_PLUGIN = "tests.simulation.kit.broken"
