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

pytest_plugins = ("tests.costs", "tests.workers")

MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 8 << 30:  # a sync there takes no time
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
TURNS = 10


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
