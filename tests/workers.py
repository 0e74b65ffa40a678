"""A pytest plugin: `--workers N` collects the tests once, and divides them among N forks of this process.

A fork has all modules and all tests already, so that what takes each worker of pytest-xdist a quarter of a minute is
done once. A worker asks for one group of tests after the other (see `groups`), so all end at about the same time.
"""

from __future__ import annotations

import atexit
import itertools
import os
import signal
import warnings
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

WORKER = "REPLSET_TEST_WORKER"
"""The variable with a worker's number: tests have ports and a processor by it."""
HERE = Path(__file__).parent
TOOLS = HERE / "tools"
APART = {HERE / "simulation", HERE / "property"}
"""Whose tests share no processes and no ports, and take long: each of them is a group."""
LONG = (HERE / "integration", HERE / "conformance", *sorted(APART))
END_S = 20


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workers", type=int, default=0, metavar="N", help="divide the tests among N processes")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    count: int = session.config.getoption("workers")
    if count < 2 or session.config.option.collectonly or session.testsfailed:
        return None
    run(session, groups(session.items), count)
    return True


def groups(items: list[pytest.Item]) -> list[list[pytest.Item]]:
    """The tests in the order in which they begin: those of a group in one process, one after the other.

    A module is a group. So are all tests of the tools: they measure, and use the same ports. Long tests come first, by
    turns some that wait for processes and timeouts and some that compute, so that all processors have work. The other
    modules follow, those with most tests first.
    """
    long: dict[Path, dict[object, list[pytest.Item]]] = {folder: {} for folder in LONG}
    others: dict[Path, list[pytest.Item]] = {}
    for item in items:
        folder = next((folder for folder in LONG if folder in item.path.parents), None)
        if folder is None:
            others.setdefault(TOOLS if TOOLS in item.path.parents else item.path, []).append(item)
        else:
            long[folder].setdefault(item if folder in APART else item.path, []).append(item)
    tools = others.pop(TOOLS, None)
    rows = [(n / len(part), group) for part in long.values() for n, group in enumerate(part.values())]
    by_turns = [group for _, group in sorted(rows, key=lambda row: row[0])]
    return [*([tools] if tools else []), *by_turns, *sorted(others.values(), key=len, reverse=True)]


def run(session: pytest.Session, groups: list[list[pytest.Item]], count: int) -> None:
    """Give the workers their groups, and report what comes from them, as if the tests ran here."""
    hook, config = session.config.hook, session.config
    base: Path = config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    workers: dict[Connection, int] = {}
    current: dict[Connection, str] = {}
    rest = iter(range(len(groups)))
    try:
        for number in range(count):
            here, there = Pipe()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Python 3.12: libraries have threads; none of them works yet
                pid = os.fork()
            if pid == 0:
                for other in (here, *workers):
                    other.close()
                _work(session, groups, there, number, base)
            there.close()
            workers[here], current[here] = pid, ""
        while workers:
            for worker in wait(list(workers)):
                assert isinstance(worker, Connection)
                try:
                    message = worker.recv()
                except EOFError:
                    _, status = os.waitpid(workers.pop(worker), 0)
                    if status != 0 or current[worker]:
                        name = current[worker] or "a worker"
                        _report(session, [_crash(name)], name)
                    continue
                if message is None:
                    worker.send(next(rest, -1))
                elif isinstance(message, str):
                    current[worker] = message
                else:
                    reports = [hook.pytest_report_from_serializable(config=config, data=data) for data in message]
                    _report(session, reports, current[worker])
                    current[worker] = ""
    finally:
        _end(workers)


def _report(session: pytest.Session, reports: list[Any], name: str) -> None:
    for report in reports:
        session.config.hook.pytest_runtest_logreport(report=report)
    session.config.hook.pytest_runtest_logfinish(nodeid=name, location=reports[-1].location)
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)


def _crash(name: str) -> pytest.TestReport:
    return pytest.TestReport(name, (name, None, name), {}, "failed", "the worker ended in this test", "call")


def _end(workers: dict[Connection, int]) -> None:
    """End those that still run: they end what their tests have begun; whoever does not is killed."""
    for pid in workers.values():
        os.kill(pid, signal.SIGINT)
    for worker, pid in workers.items():
        try:
            while worker.poll(END_S):
                worker.recv()
            os.kill(pid, signal.SIGKILL)
        except (EOFError, OSError):
            pass
        os.waitpid(pid, 0)


def _work(
    session: pytest.Session, groups: list[list[pytest.Item]], parent: Connection, number: int, base: Path
) -> None:
    """A worker's life, in the fork. It does not return."""
    status = 1
    try:
        _settle(session.config, parent, number, base)
        for item, following in itertools.pairwise(itertools.chain(_given(groups, parent), [None])):
            assert item is not None
            parent.send(item.nodeid)
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
        status = 0
    except KeyboardInterrupt:
        pass
    except BaseException as error:
        os.write(2, f"worker {number}: {error!r}\n".encode())
    finally:
        try:
            session._setupstate.teardown_exact(None)
            atexit._run_exitfuncs()
        finally:
            os._exit(status)


def _given(groups: list[list[pytest.Item]], parent: Connection) -> Iterator[pytest.Item]:
    while True:
        parent.send(None)
        index: int = parent.recv()
        if index < 0:
            return
        yield from groups[index]


def _settle(config: pytest.Config, parent: Connection, number: int, base: Path) -> None:
    """Make what the fork shares with its parent its own: the files of captured output, folders, the terminal."""
    os.environ[WORKER] = str(number)
    signal.signal(signal.SIGINT, _interrupt)
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    own = base / f"worker-{number}"
    own.mkdir(mode=0o700)
    config._tmp_path_factory._basetemp = own  # type: ignore[attr-defined]
    terminal = config.pluginmanager.unregister(name="terminalreporter")
    config.pluginmanager.register(SimpleNamespace(_tw=terminal._tw), "terminalreporter")  # for pytest-timeout
    config.pluginmanager.register(_Sender(config, parent))


def _interrupt(*_: object) -> None:
    """End this worker once: what ends its tests' processes is not interrupted by the parent's signal behind it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


class _Sender:
    """Sends the parent what a test's reports say, once for each test."""

    def __init__(self, config: pytest.Config, parent: Connection) -> None:
        self._config = config
        self._parent = parent
        self._reports: list[dict[str, Any] | None] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))

    def pytest_runtest_logfinish(self) -> None:
        self._parent.send(self._reports)
        self._reports = []
