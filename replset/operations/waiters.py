"""Lists of waiting clients: `WaiterList` for write concerns, `Notifier` for everything else that a member waits for;
the wait of drivers for a change of role, and of members that copy data until the rate allows more.

A condition of a write concern becomes true for older optimes first, so each condition has a heap of its waiters, and a
check costs nothing while the oldest one still waits.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

from replset.bson import Int64, ObjectId
from replset.errors import ReplError
from replset.ids import OPTIME_NULL, OpTime
from replset.replication.ports import Clock

_SWEEP_FROM = 64


class Completion(Protocol):
    """Whoever waits for something: a future, or an object that goes on at once, in the turn in which it is told."""

    def done(self) -> bool:
        """Whether it waits no more: it is passed over."""
        ...

    def set_result(self, result: Any) -> None: ...

    def set_exception(self, error: Any, /) -> None: ...


class _Heap:
    """The waiters of one key, oldest optime first. Waiters that timed out stay in `rows` until a sweep removes them."""

    __slots__ = ("is_satisfied", "newest", "rows", "sweep_at")

    def __init__(self, is_satisfied: Callable[[OpTime], bool]) -> None:
        self.is_satisfied = is_satisfied
        self.rows: list[tuple[OpTime, int, Completion]] = []
        self.newest = OPTIME_NULL  # of all that waited since it was empty
        self.sweep_at = _SWEEP_FROM

    def push(self, row: tuple[OpTime, int, Completion]) -> None:
        heapq.heappush(self.rows, row)
        self.newest = max(self.newest, row[0])
        if len(self.rows) >= self.sweep_at:
            self.rows = sorted(row for row in self.rows if not row[2].done())
            self.sweep_at = max(_SWEEP_FROM, 2 * len(self.rows))


class WaiterList:
    """Clients that wait for a write concern, ordered by optime and grouped by their condition (`w`, `j`)."""

    def __init__(self) -> None:
        self._heaps: dict[Hashable, _Heap] = {}
        self._numbers = count()
        self._joined: tuple[object, _Heap] | None = None  # whom `join` joins

    def add(
        self,
        key: Hashable,
        optime: OpTime,
        is_satisfied: Callable[[OpTime], bool],
        completion: Completion,
        condition: object = None,
    ) -> None:
        """End the wait once `is_satisfied(optime)`, maybe at once. One key always means one condition.

        condition: an object that others may give to `join` from now on.
        """
        if is_satisfied(optime):
            completion.set_result(None)
            return
        heap = self._heaps.get(key)
        if heap is None:
            heap = self._heaps[key] = _Heap(is_satisfied)
        heap.push((optime, next(self._numbers), completion))
        self._joined = (condition, heap)

    def join(self, condition: object, optime: OpTime, completion: Completion) -> bool:
        """Wait with whoever was added last, if that was with this very object and it still waits; return whether so.

        What is asked before a wait holds for both, so the writes of one group that wait for the same ask it once.
        """
        if self._joined is None or self._joined[0] is not condition:
            return False
        heap = self._joined[1]
        if not heap.rows or optime < heap.newest:
            return False
        heap.push((optime, next(self._numbers), completion))
        return True

    def release(self) -> None:
        """End every wait whose condition is true now. The member calls it when a position or the commit point moved."""
        if not self._heaps:
            return
        for key, heap in list(self._heaps.items()):
            rows, all_end = heap.rows, False
            while rows:
                optime, _, waiter = rows[0]
                if not waiter.done():
                    if not all_end and not heap.is_satisfied(optime):
                        break
                    # Those of one group mostly end together.
                    all_end = all_end or optime == heap.newest or heap.is_satisfied(heap.newest)
                    waiter.set_result(None)
                heapq.heappop(rows)
            if not rows:
                del self._heaps[key]

    def fail_all(self, error: Callable[[], ReplError]) -> None:
        """End every wait with an error of its own."""
        heaps, self._joined = list(self._heaps.values()), None
        self._heaps.clear()
        for heap in heaps:
            for _, _, waiter in heap.rows:
                if not waiter.done():
                    waiter.set_exception(error())

    def fail_where(self, error: Callable[[Hashable], Callable[[], ReplError] | None]) -> None:
        """End the waits of each key that has an error."""
        self._joined = None
        for key in list(self._heaps):
            failure = error(key)
            for _, _, waiter in () if failure is None else self._heaps.pop(key).rows:
                if failure is not None and not waiter.done():
                    waiter.set_exception(failure())

    def __len__(self) -> int:
        return sum(1 for heap in self._heaps.values() for _, _, waiter in heap.rows if not waiter.done())

    @property
    def kept(self) -> int:
        """Return how many waiters are in memory, including those that timed out and are not swept yet."""
        return sum(len(heap.rows) for heap in self._heaps.values())


class Notifier:
    """Wakes everybody who waits for the next change, whatever it is."""

    def __init__(self, on_notify: Callable[[], None] | None = None) -> None:
        """on_notify: called at each `notify`, before anybody wakes."""
        self._waiting: dict[asyncio.Future[None], None] = {}  # in the order of arrival
        self._on_notify = on_notify

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def notify(self) -> None:
        if self._on_notify is not None:
            self._on_notify()
        waiting, self._waiting = self._waiting, {}
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self, timeout_ms: int | None) -> bool:
        """Wait for the next `notify`; False when `timeout_ms` ran out first."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = None
        try:
            return await done_within(future, timeout_ms)
        finally:
            self._waiting.pop(future, None)


async def done_within(future: asyncio.Future[Any], timeout_ms: int | None) -> bool:
    """Await `future` for at most `timeout_ms` (None: for ever). False on time-out; an exception of it is raised."""
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


def _expire(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(_ExpiredError())


class Topology:
    """counter: grows with each change of state, configuration, primary or writability. process_id: made at start."""

    def __init__(self, process_id: ObjectId, clock: Clock) -> None:
        self.process_id = process_id
        self.counter = 0
        self._clock = clock
        self._changes = Notifier()

    def document(self) -> dict[str, object]:
        """Return it as topologyVersion."""
        return {"processId": self.process_id, "counter": Int64(self.counter)}

    def on_changed(self) -> None:
        self.counter += 1
        self._changes.notify()

    async def wait(self, counter: int, timeout_ms: int) -> None:
        """Return when the counter is not `counter` any more, or after `timeout_ms`."""
        deadline = self._clock.now() + timeout_ms
        while self.counter == counter:
            left = deadline - self._clock.now()
            if left <= 0 or not await self._changes.wait(left):
                return


@dataclass(slots=True)
class ByteRate:
    """What was sent to one member. It uses up the rate until `sent_until`, in the loop's time."""

    sent_until: float = -math.inf

    def begin(self) -> None:
        """After more than a second without use, the rate has nothing to give before another second is over.

        Whoever sends up to a second's bytes at once calls this first, or the first second would carry them twice.
        """
        now = asyncio.get_running_loop().time()
        if self.sent_until < now - 1:
            self.sent_until = now + 1

    def spend(self, size: int, bytes_per_s: int) -> None:
        """Note that `size` bytes are sent."""
        self.sent_until = max(self.sent_until, asyncio.get_running_loop().time()) + size / bytes_per_s

    async def wait(self, most_s: float, *, spare_s: float = 0.0) -> bool:
        """Wait until what was sent before, but for `spare_s`, fits the rate. Return False if `most_s` was too short."""
        left = self.sent_until - asyncio.get_running_loop().time() - spare_s
        if left > 0:
            await asyncio.sleep(min(left, most_s))
        return left <= most_s
