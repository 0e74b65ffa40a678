"""Limits the time that one evaluation may take in its thread.

A filter tests every item of every array. So its cost is the product of two sizes that a client chooses: that of the
filter and that of the document. Each loop over the items of an array calls `check_time`. On the event loop there is no
such limit, since only small evaluations run there (commands/evaluation.py).
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
"""CPU seconds for one document, or for compiling one filter or update. A plain change of 16 MiB takes a fifth of it."""


class _Limit(threading.local):
    """The CPU time that this thread's evaluation may use, and when to check it next."""

    seconds = 0.0
    began = 0.0
    check_at = math.inf


_limit = _Limit()


@contextmanager
def time_limit(seconds: float = LIMIT_S) -> Iterator[None]:
    """Make `check_time` raise MaxTimeMSExpiredError in this block once it has used `seconds` of CPU time."""
    _limit.seconds, _limit.began = seconds, time.thread_time()
    _limit.check_at = time.perf_counter() + seconds
    try:
        yield
    finally:
        _limit.check_at = math.inf


def check_time() -> None:
    """Raise MaxTimeMSExpiredError (50) when this thread's evaluation has taken too long.

    The CPU clock takes ten times as long to read as the wall clock, and it is never ahead of it. So it is read only
    when the limit may be reached by the wall clock.
    """
    now = time.perf_counter()
    if now < _limit.check_at:
        return
    left = _limit.began + _limit.seconds - time.thread_time()
    if left <= 0:
        raise MaxTimeMSExpiredError(
            f"one document, or the filter or update itself, took over {LIMIT_S:.0f} s to evaluate; make it smaller"
        )
    _limit.check_at = now + left
