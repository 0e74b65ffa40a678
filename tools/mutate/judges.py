"""Who judges a mutation: the tests that run its line, then simulated runs. Each in a process of its own.

The process is a fork of one that has imported pytest and what else is not ours, so that a trial costs little but the
tests. In it the module is loaded from the mutated code; the files stay as they are.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from types import CodeType, ModuleType

from tools.importers import ROOT, TOPS, distance, importing_tests, module_of
from tools.mutate.mutations import Mutation, mutated_code
from tools.mutate.record import LAYERS, Record
from tools.mutate.runs import Run, begin, outcome_of

TESTS_S = 40
"""Seconds of processor for the tests of one mutation."""
FIRST = 20
"""So many tests are collected and run before all others."""
SEEDS: tuple[tuple[str, str, range], ...] = (
    ("replset/core", "core", range(12)),
    ("replset/core", "core-changes", range(8)),
    ("replset/features/change_streams", "streams", range(2)),
    ("replset", "", range(4)),
    ("replset", "rollbacks", range(16, 18)),
    ("replset/features/archive", "archive", range(2, 4)),
    ("replset/features/consumers", "consumers", range(2, 5)),
    ("replset/features/follower", "follow", range(10, 11)),
    ("replset", "changes", range(9, 10)),
    ("replset/replication", "stale", range(1, 3)),
    ("replset/storage", "stale", range(1, 2)),
    ("replset/replication", "concerns", range(5, 6)),
)
"""Which simulated runs a mutation in a folder is given, by their kind, the cheaper ones first."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """by: what noticed the mutation, a test or a run; "": nothing did. why: of that, what is known."""

    mutation: Mutation
    by: str
    why: str = ""

    @property
    def is_caught(self) -> bool:
        return bool(self.by)


# --- which tests ----------------------------------------------------------------------------------------------------


def chosen_tests(record: Record, path: str, line: int) -> dict[str, float]:
    """Return the tests that judge a mutation of this line, the closest and cheapest first, with their seconds.

    They are those that run the line, as many as TESTS_S allows. Where none is known to, as for what runs at import,
    they are the files of tests that import the module.
    """
    found = record.tests_of(path, line)
    if not found:
        found = {name: record.seconds_of(name) for name in importing_tests(path, LAYERS) if name in record.files}
    order = sorted(found, key=lambda name: (distance(path, ROOT / name.partition("::")[0]), found[name]))
    sums = accumulate(found[name] for name in order)
    return {
        name: found[name] for name, seconds in zip(order, sums, strict=True) if seconds <= TESTS_S or name == order[0]
    }


# --- one trial ------------------------------------------------------------------------------------------------------


class _MutatedModule(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, name: str, path: Path, code: CodeType) -> None:
        self._name, self._path, self._code = name, path, code

    def find_spec(self, fullname: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        return importlib.util.spec_from_file_location(fullname, self._path, loader=self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(self._code, module.__dict__)


def import_what_is_not_ours() -> None:
    """Import once what each trial would import again."""
    for name in (
        "pytest",
        "hypothesis",
        "apsw",
        "orjson",
        "xxhash",
        "fastapi",
        "httptools",
        "uvicorn",
        "uvloop",
        "yaml",
    ):
        importlib.import_module(name)
    for name in ("sqlite_utils", "typer", "rich.table", "prometheus_client", "psutil", "regex", "pyarrow.parquet"):
        importlib.import_module(name)
    ours = [name for name in sys.modules if name.partition(".")[0] in (*TOPS[:-1], "tests")]
    assert not ours, f"a trial would not load {ours} anew"


def trial(mutation: Mutation | None, work: Callable[[], str], limit_s: float) -> str:
    """Return what `work` says in a fork of this process in which the mutation is made; "": it noticed nothing.

    A process that ends otherwise, or takes longer than `limit_s`, has noticed it too.
    """
    source, target = os.pipe()
    pid = os.fork()
    if pid == 0:
        _run_and_exit(mutation, work, limit_s, target)
    os.close(target)
    deadline = time.monotonic() + limit_s * 20  # of the wall: for what waits for ever, however busy the machine is
    text = b""
    os.set_blocking(source, False)
    while True:
        with contextlib.suppress(BlockingIOError):
            text += os.read(source, 1 << 16)
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > deadline:
            _kill_group(pid)
            os.waitpid(pid, 0)
            status = signal.SIGKILL
            break
        time.sleep(0.02)
    with contextlib.suppress(BlockingIOError):
        while more := os.read(source, 1 << 16):
            text += more
    os.close(source)
    _kill_group(pid)  # what it may have started
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
        return text.decode()
    return text.decode() or f"ended with status {status}"


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _run_and_exit(mutation: Mutation | None, work: Callable[[], str], limit_s: float, target: int) -> None:
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for handle in (0, 1, 2):
            os.dup2(null, handle)
        seconds = int(limit_s) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))  # a loop that collects must not take all memory
        if mutation is not None:
            path = ROOT / mutation.path
            code = mutated_code(path, mutation.number)
            sys.meta_path.insert(0, _MutatedModule(module_of(mutation.path), path, code))
        os.write(target, work().encode())
        os._exit(0)
    except BaseException as error:
        os.write(target, f"{type(error).__name__}".encode())
        os._exit(1)


def by_tests(tests: Sequence[str]) -> str:
    """Run these until the first failure and return the name of what failed."""
    import pytest

    failed: list[str] = []

    class Failures:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed:
                failed.append(report.nodeid)

        def pytest_collectreport(self, report: pytest.CollectReport) -> None:
            if report.failed:
                failed.append(f"collection of {report.nodeid}")

    os.chdir(ROOT)
    # Else pytest's own hook would load the product, as it does with all that comes with a plugin, and no fault with it.
    options = ["-x", "-q", "--assert=plain", *(f"-pno:{name}" for name in ("cacheprovider", "faulthandler", "xdist"))]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of plugins, since what is not ours is imported
    for some in (tests[:FIRST], tests[FIRST:]):
        status = pytest.main([*options, *some], plugins=[Failures()]) if some else pytest.ExitCode.OK
        if failed:
            return failed[0]
        if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return f"pytest: {status!r}"
    return ""


def by_simulation(runs: Iterable[Run]) -> str:
    """Carry out these runs until one does not hold, and return its name and why."""
    begin()
    return next(filter(None, map(outcome_of, runs)), "")


def seeds_of(path: str) -> list[Run]:
    """Return the runs for a module of this path where it is not recorded which ones execute its lines."""
    return [(kind, seed) for folder, kind, seeds in SEEDS if path.startswith(folder) for seed in seeds]
