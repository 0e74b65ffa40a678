"""Runs tests with a rule broken, each in a process forked from this one, which has imported all that they share.

The name of a rule comes on each line of standard input; the answer is `failed` where its test failed with it.
"""

from __future__ import annotations

import gc
import os
import sys

import hypothesis  # noqa: F401 - tests/conftest.py needs it
import pytest

from tests.simulation.kit.mutants import MUTANTS

_NOTICED = 17


class _Verdict:
    """A pytest plugin. has_noticed: the test itself failed, not what prepares it."""

    has_noticed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.has_noticed |= report.failed and report.when == "call"


def run_test(name: str) -> int:
    """Run the test of the mutant of this name, in a process that ends with it."""
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    mutant.break_rule(pytest.MonkeyPatch())
    verdict = _Verdict()
    code = pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-p", "pytest_timeout", mutant.test], [verdict])
    return _NOTICED if code == pytest.ExitCode.TESTS_FAILED and verdict.has_noticed else 0


def main() -> None:
    """Answer until the input ends."""
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # they take longer to load than most of these tests
    answers = os.dup(1)
    os.dup2(2, 1)
    gc.freeze()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os._exit(run_test(line.strip()))
        _, status = os.waitpid(child, 0)
        os.write(answers, b"failed\n" if os.waitstatus_to_exitcode(status) == _NOTICED else b"held\n")


if __name__ == "__main__":
    main()
