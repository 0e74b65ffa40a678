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

_SWEEP_FROM = 64


class _Heap:
    """The waits of one key, oldest first. `rows` may hold some that are done; `sweep_at` rows are too many of them."""

    __slots__ = ("rows", "satisfied", "sweep_at")

    def __init__(self, satisfied: Callable[[OpTime], bool]) -> None:
        self.satisfied = satisfied
        self.rows: list[tuple[OpTime, int, asyncio.Future[None]]] = []
        self.sweep_at = _SWEEP_FROM

    def push(self, row: tuple[OpTime, int, asyncio.Future[None]]) -> None:
        heapq.heappush(self.rows, row)
        if len(self.rows) >= self.sweep_at:  # those that timed out behind one that still waits
            self.rows = sorted(row for row in self.rows if not row[2].done())
            self.sweep_at = max(_SWEEP_FROM, 2 * len(self.rows))


class Waiters:
    """Waits ordered by optime, grouped by a key whose condition is the same (`w`, `j`)."""

    def __init__(self) -> None:
        self._heaps: dict[Hashable, _Heap] = {}
        self._numbers = count()

    def add(self, key: Hashable, optime: OpTime, satisfied: Callable[[OpTime], bool]) -> asyncio.Future[None]:
        """Return a future that is done once `satisfied(optime)`; the same key always means the same condition."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if satisfied(optime):
            future.set_result(None)
            return future
        heap = self._heaps.get(key)
        if heap is None:
            heap = self._heaps[key] = _Heap(satisfied)
        heap.push((optime, next(self._numbers), future))
        return future

    def release(self) -> None:
        """Look at every kind of wait again, oldest first."""
        for key, heap in list(self._heaps.items()):
            rows, satisfied = heap.rows, heap.satisfied
            while rows:
                optime, _, future = rows[0]
                if not future.done():
                    if not satisfied(optime):
                        break
                    future.set_result(None)
                heapq.heappop(rows)
            if not rows:
                del self._heaps[key]

    def fail_all(self, error: Callable[[], ReplError]) -> None:
        """End every wait with an error of its own."""
        heaps = list(self._heaps.values())
        self._heaps.clear()
        for heap in heaps:
            for _, _, future in heap.rows:
                if not future.done():
                    future.set_exception(error())

    def __len__(self) -> int:
        return sum(1 for heap in self._heaps.values() for _, _, future in heap.rows if not future.done())

    @property
    def kept(self) -> int:
        """How many waits are in memory, those included that timed out and are not swept yet."""
        return sum(len(heap.rows) for heap in self._heaps.values())


class Bell:
    """Wakes everybody who waits for "something new", without knowing what."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], None] = {}  # in the order they came

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def ring(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self, timeout_ms: int | None) -> bool:
        """Wait for the next ring; False when `timeout_ms` ran out first."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = None
        try:
            return await done_within(future, timeout_ms)
        finally:
            self._waiting.pop(future, None)


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
