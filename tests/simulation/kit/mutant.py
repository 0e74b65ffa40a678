"""A rule that is broken on purpose, and what notices it: seeds, a scenario, a test."""

from __future__ import annotations

import atexit
import functools
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE

import pytest

from tests.simulation.kit import scenarios
from tests.simulation.kit.errors import SimulationError
from tests.simulation.kit.kinds import WHOLE, Kind

Break = Callable[[pytest.MonkeyPatch], None]
MOVED_WITHIN = 40
ROOT = Path(__file__).parents[3]


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
        """Whether the test itself fails with it, in a process of its own, and not what prepares it."""
        server = _tests_with_broken_rules()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(f"{self.name}\n")
        server.stdin.flush()
        answer = server.stdout.readline()
        assert answer, "tests.simulation.kit.broken has ended"
        return answer == "failed\n"


@functools.cache
def _tests_with_broken_rules() -> subprocess.Popen[str]:
    """`broken.py`, which ends with this process at the latest."""
    command = [sys.executable, "-m", "tests.simulation.kit.broken"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    server = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, text=True)
    atexit.register(server.communicate)
    return server
