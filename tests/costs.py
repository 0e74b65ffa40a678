"""A pytest plugin: what each test costs, kept by each run, so that the next cut of the suite needs no research.

`--within S` begins no test any more after S seconds, and says so.

Costs are seconds of processor, of the process that runs the test and of its children that have ended (those that its
fork server began, too), and seconds of the wall. They are shown by folder at the end of a run, and written to
`.venv/.costs-NAME.json`, where NAME is that of `--costs`. Nothing is asserted about them.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COST = "cost"
SHOWN = 12
"""How many of the dearest tests are shown."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--within", metavar="S", type=float, default=0.0, help="begin no test after so many seconds")
    parser.addoption("--costs", metavar="NAME", default="", help="keep what each test costs in .venv/.costs-NAME.json")


def pytest_configure(config: pytest.Config) -> None:
    if seconds := config.getoption("within"):
        config.pluginmanager.register(Within(seconds))
    if name := config.getoption("costs"):
        config.pluginmanager.register(Costs(name))


class Within:
    """Passes over the tests that would begin too late. It reports none, so none is counted."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds
        self._seconds = seconds

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        return time.monotonic() > self._until or None

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if time.monotonic() > self._until:
            terminalreporter.line(f"after {self._seconds:g} s no test was begun any more; ./dev test runs them all")


class Costs:
    def __init__(self, name: str) -> None:
        self._path = ROOT / ".venv" / f".costs-{name}.json"
        self._began = (0.0, 0.0)
        self._tests: dict[str, tuple[float, float]] = {}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        self._began = _now()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
        report = yield
        if call.when == "teardown":
            processor, wall = _now()
            item.user_properties.append((COST, [processor - self._began[0], wall - self._began[1]]))
            report.user_properties = item.user_properties
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            for processor, wall in (cost for name, cost in report.user_properties if name == COST):
                self._tests[report.nodeid] = (processor, wall)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._tests:
            return
        self._path.write_text(json.dumps(self._tests, indent=1))
        folders: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
        for name, (processor, wall) in self._tests.items():
            row = folders[name.partition("::")[0].rpartition("/")[0]]
            row[0], row[1], row[2] = row[0] + 1, row[1] + processor, row[2] + wall
        terminalreporter.section("costs by folder: tests, seconds of processor, of the wall")
        for folder, (tests, processor, wall) in sorted(folders.items(), key=lambda row: -row[1][1]):
            terminalreporter.line(f"{folder:32} {tests:6} {processor:8.1f} {wall:8.1f}")
        terminalreporter.section(f"the dearest tests; all are in {self._path.relative_to(ROOT)}")
        for name, (processor, wall) in sorted(self._tests.items(), key=lambda row: -row[1][0])[:SHOWN]:
            terminalreporter.line(f"{processor:8.1f} {wall:8.1f}  {name}")


def _now() -> tuple[float, float]:
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    return own + _of_fork_server(), time.monotonic()


def _of_fork_server() -> float:
    """Its processor time and that of its children that have ended; 0 where there is none."""
    pid = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
