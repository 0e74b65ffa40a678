"""Stories told by processes of their own, which need a session that no other test may share, beside the other tests.

They begin, one after the other, with the first Spark test of a run, and the tests that ask for them come last: on two
cores they cost the run next to no time. What a story that yields has set up stands until all tests are over; it is told
last, so as to stand no longer than it must.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from inspect import isgeneratorfunction
from pathlib import Path
from typing import Any

import pytest

Told = dict[str, Future[Any]]
_stories: dict[str, Callable[[Path], Any]] = {}


def told_beside(story: Callable[[Path], Any]) -> Any:
    """A fixture of this name: what `story` gave back or yields, told in a folder of its own. What it raises fails the
    tests.
    """
    name = story.__name__
    _stories[name] = story

    @pytest.fixture(scope="session", name=name)
    def told(beside: Told) -> Any:
        return beside[name].result()

    return told


def asks(item: pytest.Item) -> bool:
    """Whether the test waits for a story."""
    return bool(_asked([item]))


@contextmanager
def telling(items: Iterable[pytest.Item], folders: pytest.TempPathFactory) -> Iterator[Told]:
    """The stories that these tests ask for, begun. At the end none goes on."""
    asked = _asked(items)
    with ExitStack() as standing, ThreadPoolExecutor(1) as teller:

        def tell(story: Callable[[Path], Any], folder: Path) -> Any:
            if isgeneratorfunction(story):
                return standing.enter_context(contextmanager(story)(folder))
            return story(folder)

        told = sorted(
            (name for name in _stories if name in asked), key=lambda name: isgeneratorfunction(_stories[name])
        )
        yield {name: teller.submit(tell, _stories[name], folders.mktemp(name)) for name in told}
        teller.shutdown(cancel_futures=True)


def _asked(items: Iterable[pytest.Item]) -> set[str]:
    return {name for item in items for name in getattr(item, "fixturenames", ()) if name in _stories}
