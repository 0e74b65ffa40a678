"""For all tests: hypothesis without deadlines (the machines are shared), and which tests `./dev test` leaves out."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import logging
import os
import shutil
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from replset import long_work
from tests import examples

if TYPE_CHECKING:
    from tests.simulation.kit.clock import SimClock
    from tests.simulation.kit.loop import SimLoop

settings.load_profile(examples.IN_ALL)

os.environ["XDG_STATE_HOME"] = os.devnull  # no test is sent to the set of another one's --host
long_work.LINE_EVERY_S = 3600.0  # on a busy machine a command would print a line more

pytest_plugins = ("tests.costs",)

HERE = Path(__file__).parent
MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 8 << 30:  # a sync there takes no time
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
TURNS = 10
TOOLS = HERE / "tools"
APART = {HERE / "simulation", HERE / "property"}
"""Whose tests share no processes and no ports: a module of another folder stays with one worker."""
LONG = (TOOLS, HERE / "integration", HERE / "conformance", *sorted(APART))


@pytest.fixture(autouse=True)
def logs_again() -> Iterator[None]:
    """A simulation switches the log off, for all that runs behind it in the process."""
    yield
    logging.getLogger("replset").setLevel(logging.NOTSET)


@pytest.fixture
def loop(request: pytest.FixtureRequest) -> Iterator[asyncio.AbstractEventLoop]:
    """The loop of an async test: in virtual time, or a real one where the module says ON_SOCKETS."""
    from tests.simulation.kit.loop import SimLoop

    if getattr(request.module, "ON_SOCKETS", False):
        with asyncio.Runner() as runner:
            yield runner.get_loop()
        return
    with contextlib.closing(SimLoop()) as sim:
        yield sim
        assert sim.unhandled == []


@pytest.fixture
def clock(loop: SimLoop) -> SimClock:
    """The virtual time of an async test."""
    from tests.simulation.kit.clock import SimClock

    return SimClock(loop)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is `async def` runs in its loop. In virtual time a wait takes none of the machine's."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    loop = pyfuncitem._request.getfixturevalue("loop")
    limit_s = 30 if getattr(pyfuncitem.module, "ON_SOCKETS", False) else 86_400
    loop.run_until_complete(asyncio.wait_for(pyfuncitem.obj(**arguments), limit_s))
    return True


def pytest_collection_finish() -> None:
    """As `replset start` does. To look at thousands of tests takes the collector 0.2 s, as long as a search may."""
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("day") is not None:
        settings.load_profile(examples.OF_THE_DAY)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--day",
        type=int,
        metavar="N",
        help="without the tests marked `night`, and of those marked `in_turns` a tenth, by this number",
    )


@pytest.hookimpl(hookwrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    yield  # -m takes away what is not selected
    day = config.getoption("day")
    if day is not None:
        chosen = set(of_the_day(items, day))
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = [item for item in items if item in chosen]
    workers: int = getattr(config, "workerinput", {}).get("workercount", 1)
    if workers > 1:
        items[:] = dealt(items, workers)


def of_the_day(items: list[pytest.Item], day: int) -> Iterator[pytest.Item]:
    """Yield those that `./dev test` runs at the commit of this number. Ten commits in a row run all tests `in_turns`.

    A table's rows take turns, so that each commit runs a tenth of them, and one of ten at least.
    """
    rows: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("in_turns")
        if item.get_closest_marker("night"):
            continue
        if mark is not None:
            together = mark.kwargs.get("together", "")
            table = together or item.nodeid.partition("[")[0]
            turn = zlib.crc32(table.encode()) + rows[table]
            rows[table] += not together
            if turn % TURNS != day % TURNS:
                continue
        yield item


def dealt(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """In the order in which `--dist worksteal` gives each worker its share, one after the other's.

    A share begins with long tests, by turns some that wait for processes and timeouts and some that compute, so that
    all processors have work. It ends with short ones, which others take over best. The first worker begins with the
    tools: one after the other, since they measure, and use the same ports.
    """
    parts: dict[Path, dict[object, list[pytest.Item]]] = {folder: {} for folder in LONG}
    short: list[pytest.Item] = []
    for item in items:
        folder = next((folder for folder in LONG if folder in item.path.parents), None)
        if folder is None:
            short.append(item)
        else:
            parts[folder].setdefault(item if folder in APART else item.path, []).append(item)
    order = [item for group in parts[TOOLS].values() for item in group]
    for worker in range(workers):
        own = {folder: list(part.values())[worker::workers] for folder, part in parts.items()}
        rows = [(n / len(own[folder]), group) for folder in LONG[1:] for n, group in enumerate(own[folder])]
        by_turns = [group for _, group in sorted(rows, key=lambda row: row[0])]
        share = [item for group in by_turns for item in group]
        end = len(items) * (worker + 1) // workers
        take = max(0, end - len(order) - len(share))
        order += [*share, *short[:take]]
        del short[:take]
    return order + short
