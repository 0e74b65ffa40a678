"""A simulation's threads run one at a time: on one processor they hand over with an eighth less work."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def on_one_processor() -> Iterator[None]:
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    usual = os.sched_getaffinity(0)
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    os.sched_setaffinity(0, {sorted(usual)[worker % len(usual)]})
    yield
    os.sched_setaffinity(0, usual)
