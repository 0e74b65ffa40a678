"""The time that one evaluation may take in its thread.

A filter asks every item of every array, so its cost is a product of what a client chose: its own size, and that of the
document. Each loop over the items of an array calls `check_time`. On the event loop nothing limits an evaluation:
what runs there is small (commands/evaluation.py).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from replset.errors import MaxTimeMSExpiredError

LIMIT_S: Final = 5.0
"""For one document, or one filter or update that is compiled: several times what a plain change of 16 MiB takes."""


class _End(threading.local):
    """When the evaluation that runs in this thread has to be over, by time.perf_counter()."""

    at = math.inf


_end = _End()


@contextmanager
def time_limit(seconds: float = LIMIT_S) -> Iterator[None]:
    """MaxTimeMSExpiredError from `check_time` in this block, once it has taken so long."""
    before, _end.at = _end.at, min(_end.at, time.perf_counter() + seconds)
    try:
        yield
    finally:
        _end.at = before


def check_time() -> None:
    """MaxTimeMSExpiredError (50) when this thread's evaluation has taken too long."""
    if time.perf_counter() > _end.at:
        raise MaxTimeMSExpiredError(
            f"one document, or the filter or update itself, took over {LIMIT_S:.0f} s to evaluate; make it smaller"
        )
