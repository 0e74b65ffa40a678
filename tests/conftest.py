"""For all tests: hypothesis without deadlines (the machines are shared), and what the inner loop leaves out."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("replset", deadline=None, print_blob=True)
settings.load_profile("replset")

os.environ["XDG_STATE_HOME"] = os.devnull  # no test is sent to the set of another one's --host

HERE = Path(__file__).parent
SLOW = {HERE / "property", HERE / "integration", HERE / "tools"}
"""Searches over many examples and real sets of processes; `./dev test --quick` leaves them to the full run."""


@pytest.fixture(autouse=True)
def logs_again() -> Iterator[None]:
    """A simulation switches the log off, for all that runs behind it in the process."""
    yield
    logging.getLogger("replset").setLevel(logging.NOTSET)


def pytest_collection_finish() -> None:
    """As `replset start` does. To look at thousands of tests takes the collector 0.2 s, as long as a search may."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent in SLOW:
            item.add_marker("slow")
    items.sort(key=lambda item: item.path.parent != HERE / "tools")  # the longest ones: none begins when all else ends
