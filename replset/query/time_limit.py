"""Limits the time that one evaluation may take in its thread, and the parts that one statement may have.

A filter tests every item of every array. So its cost is the product of two sizes that a client chooses: that of the
filter and that of the document. Each loop over the items of an array calls `check_time`. On the event loop there is no
such limit, since only small evaluations run there (operations/evaluation.py).

Every loop over items, documents or values does so, in expressions, stages, projections and updates too. So an
evaluation also ends soon behind the command's `maxTimeMS`.

Each condition, expression and field of a statement is compiled into objects that take up to 1 KiB, many times its
bytes. What compiles one calls `count_part`. Without its limit one filter of 9 MB took a gigabyte, and the garbage
collector stopped the heartbeats for seconds.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from replset.errors import ErrorCode, MaxTimeMSExpiredError, ReplError

LIMIT_S: Final = 5.0
"""CPU seconds for one document, or for compiling one filter or update. A plain change of 16 MiB takes a fifth of it."""
POLL_S: Final = 0.01
"""How often an evaluation looks whether the time of its command is up."""
MOST_PARTS: Final = 100_000
"""Conditions, expressions and fields of one filter, update, projection or pipeline. The values of an `$in` are none."""


class _Limit(threading.local):
    """The CPU time that this thread's evaluation may use, and when to check next.

    is_time_up: whether the command's time is over; None if it has no limit. parts: that were compiled in this thread.
    """

    seconds = 0.0
    began = 0.0
    check_at = math.inf
    is_time_up: Callable[[], bool] | None = None
    parts = 0
    most_parts = math.inf


_limit = _Limit()


@contextmanager
def time_limit(is_time_up: Callable[[], bool] | None = None, seconds: float = LIMIT_S) -> Iterator[None]:
    """Make `check_time` raise MaxTimeMSExpiredError in this block once it has used `seconds` of CPU time.

    `count_part` raises ExceededMemoryLimit (146) there for the one after MOST_PARTS.

    is_time_up: also once this is true, asked every POLL_S; of the command's maxTimeMS.
    """
    _limit.seconds, _limit.began, _limit.is_time_up = seconds, time.thread_time(), is_time_up
    _limit.check_at = time.perf_counter() + _until_next_check(seconds)
    _limit.most_parts = _limit.parts + MOST_PARTS
    try:
        yield
    finally:
        _limit.check_at, _limit.is_time_up, _limit.most_parts = math.inf, None, math.inf


def _until_next_check(left_s: float) -> float:
    return left_s if _limit.is_time_up is None else min(left_s, POLL_S)


def check_time() -> None:
    """Raise MaxTimeMSExpiredError (50) when this thread's evaluation has taken too long.

    The CPU clock takes ten times as long to read as the wall clock, and it is never ahead of it. So it is read only
    when the limit may be reached by the wall clock.
    """
    now = time.perf_counter()
    if now < _limit.check_at:
        return
    if _limit.is_time_up is not None and _limit.is_time_up():
        raise MaxTimeMSExpiredError("operation exceeded time limit")
    left = _limit.began + _limit.seconds - time.thread_time()
    if left <= 0:
        raise MaxTimeMSExpiredError(
            f"one document, or the filter or update itself, took over {LIMIT_S:.0f} s to evaluate; make it smaller"
        )
    _limit.check_at = now + _until_next_check(left)


def count_part() -> None:
    """Count a condition, an expression or a field before it is compiled. 146 and 50, see `time_limit`."""
    check_time()
    _limit.parts += 1
    if _limit.parts > _limit.most_parts:
        raise ReplError(
            f"a filter, update, projection or pipeline has over {MOST_PARTS} conditions, expressions and fields;"
            " make it smaller",
            code=ErrorCode.EXCEEDED_MEMORY_LIMIT,
        )


def parts_compiled() -> int:
    """How many parts this thread has compiled so far."""
    return _limit.parts
