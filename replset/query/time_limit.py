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
"""Of the CPU, for one slice: one document, or one filter or update that is compiled. A plain change of 16 MiB takes a
fifth of that."""


class _Limit(threading.local):
    """Of the evaluation that runs in this thread: what it may use of the CPU, and when to look at that next."""

    seconds = 0.0
    began = 0.0
    look_at = math.inf


_limit = _Limit()


@contextmanager
def time_limit(seconds: float = LIMIT_S) -> Iterator[None]:
    """MaxTimeMSExpiredError from `check_time` in this block, once it has used so much of the CPU."""
    _limit.seconds, _limit.began = seconds, time.thread_time()
    _limit.look_at = time.perf_counter() + seconds
    try:
        yield
    finally:
        _limit.look_at = math.inf


def check_time() -> None:
    """MaxTimeMSExpiredError (50) when this thread's evaluation has taken too long.

    Reading the clock of the CPU costs ten times as much as the other one, which is never behind it: it is looked at
    when it can have run out.
    """
    now = time.perf_counter()
    if now < _limit.look_at:
        return
    left = _limit.began + _limit.seconds - time.thread_time()
    if left <= 0:
        raise MaxTimeMSExpiredError(
            f"one document, or the filter or update itself, took over {LIMIT_S:.0f} s to evaluate; make it smaller"
        )
    _limit.look_at = now + left
