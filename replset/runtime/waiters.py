"""Clients that wait: for a write concern, for an entry to be applied, for the commit point, for news in the oplog.

Every wait is a future. Conditions only ever become true for older optimes first, so each kind of wait is a heap
and a look costs nothing while its first element still waits. On leaving PRIMARY every write-concern waiter fails
at once (189); progress of another term never releases one, because none is left.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Hashable
from itertools import count

from replset.errors import ReplError
from replset.ids import OpTime


class Waiters:
    """Waits ordered by optime, grouped by a key whose condition is the same (`w`, `j`)."""

    def __init__(self) -> None:
        self._heaps: dict[
            Hashable, tuple[Callable[[OpTime], bool], list[tuple[OpTime, int, asyncio.Future[None]]]]
        ] = {}
        self._numbers = count()

    def add(self, key: Hashable, optime: OpTime, satisfied: Callable[[OpTime], bool]) -> asyncio.Future[None]:
        """Return a future that is done once `satisfied(optime)`; the same key always means the same condition."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if satisfied(optime):
            future.set_result(None)
            return future
        _, heap = self._heaps.setdefault(key, (satisfied, []))
        heapq.heappush(heap, (optime, next(self._numbers), future))
        return future

    def release(self) -> None:
        """Look at every kind of wait again, oldest first."""
        for key, (satisfied, heap) in list(self._heaps.items()):
            while heap:
                optime, _, future = heap[0]
                if not future.done():
                    if not satisfied(optime):
                        break
                    future.set_result(None)
                heapq.heappop(heap)
            if not heap:
                del self._heaps[key]

    def fail_all(self, error: Callable[[], ReplError]) -> None:
        """End every wait with an error of its own."""
        heaps = [heap for _, heap in self._heaps.values()]
        self._heaps.clear()
        for heap in heaps:
            for _, _, future in heap:
                if not future.done():
                    future.set_exception(error())

    def __len__(self) -> int:
        return sum(1 for _, heap in self._heaps.values() for _, _, future in heap if not future.done())


class Bell:
    """Wakes everybody who waits for "something new", without knowing what."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    def ring(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self, timeout_ms: int | None) -> bool:
        """Wait for the next ring; False when `timeout_ms` ran out first."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append(future)
        return await done_within(future, timeout_ms)


async def done_within(future: asyncio.Future[None], timeout_ms: int | None) -> bool:
    """Await `future` for at most `timeout_ms` (None: for ever); False on time-out. Its exception is raised."""
    if future.done() or timeout_ms is None:
        await future
        return True
    timer = asyncio.get_running_loop().call_later(timeout_ms / 1000, _expire, future)
    try:
        await future
    except _ExpiredError:
        return False
    finally:
        timer.cancel()
    return True


class _ExpiredError(Exception):
    """The timer of `done_within` fired."""


def _expire(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_exception(_ExpiredError())
