"""Programs that run in processes of their own beside the other tests, since they need a Spark session for themselves.

They begin, one after the other, with the first Spark test of a run, and the tests that wait for them come last: on two
cores they cost the run next to no time. What a program that yields has set up is there until all tests are over; such
a program runs last, so that it is there no longer than it must be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from inspect import isgeneratorfunction
from pathlib import Path
from typing import Any

import pytest

Background = dict[str, Future[Any]]
_programs: dict[str, Callable[[Path], Any]] = {}


def in_background(program: Callable[[Path], Any]) -> Any:
    """Make a fixture with the program's name and result. What it raises fails the tests that use it."""
    name = program.__name__
    _programs[name] = program

    @pytest.fixture(scope="session", name=name)
    def result(background: Background) -> Any:
        return background[name].result()

    return result


def waits_for_background(item: pytest.Item) -> bool:
    """Whether the test waits for a program."""
    return bool(_needed([item]))


@contextmanager
def background_programs(items: Iterable[pytest.Item], folders: pytest.TempPathFactory) -> Iterator[Background]:
    """Start the programs that these tests need. At the end all of them are stopped."""
    needed = _needed(items)
    with ExitStack() as open_contexts, ThreadPoolExecutor(1) as threads:

        def run(program: Callable[[Path], Any], folder: Path) -> Any:
            if isgeneratorfunction(program):
                return open_contexts.enter_context(contextmanager(program)(folder))
            return program(folder)

        ordered = sorted(
            (name for name in _programs if name in needed), key=lambda name: isgeneratorfunction(_programs[name])
        )
        yield {name: threads.submit(run, _programs[name], folders.mktemp(name)) for name in ordered}
        threads.shutdown(cancel_futures=True)


def _needed(items: Iterable[pytest.Item]) -> set[str]:
    return {name for item in items for name in getattr(item, "fixturenames", ()) if name in _programs}
