"""The real machine behind the ports Clock and Workers, and how one member shares its threads.

Here are also the newest lines of the log, the tasks whose errors nobody awaits, and how a member notices that it has
more to do than it can. The real network is in network.py, the real disk in storage/disk.py.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Final, TypeAlias, TypeVar

from replset.ids import Millis
from replset.replication.ports import Workers

T = TypeVar("T")
_Job: TypeAlias = tuple[asyncio.AbstractEventLoop, Callable[[], None], Callable[[BaseException | None], None]]
SWITCH_S: Final = 0.0005
"""How long clients' work in a thread may keep the event loop waiting for its turn, while there is such work."""


class RealClock:
    """Reads the machine's monotonic clock and its wall clock, in milliseconds."""

    def __init__(self) -> None:
        self._wall_ahead_ms = 0

    def now(self) -> Millis:
        return Millis(time.monotonic_ns() // 1_000_000)

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self._wall_ahead_ms

    def set_wall_ahead(self, ahead_ms: int) -> None:
        self._wall_ahead_ms = ahead_ms


class RealWorkers:
    """Has threads for checkpoints, the member file and copies. Clients' work gets half of them (`LimitedWorkers`).

    So work that the set waits for never queues. The sync of the WAL has a thread of its own (`RealSyncThread`).
    """

    def __init__(self, threads: int = 16) -> None:
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="replset")

    async def run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        self._pool.shutdown(wait=True)


class RealSyncThread:
    """Is the thread of the WAL's sync. Its end is a callback, so the loop handles it in its next turn.

    No pool: a pool's futures cost more than the rest of the way to the thread and back.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def start(self, work: Callable[[], None], on_ended: Callable[[BaseException | None], None]) -> None:
        """See SyncThread.start. RuntimeError: it is closed, or the system gives no thread."""
        if self._closed:
            raise RuntimeError("the thread of the syncs has ended")
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="replset-sync", daemon=True)
            thread.start()
            self._thread = thread
        self._jobs.put((asyncio.get_running_loop(), work, on_ended))

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            loop, work, on_ended = job
            error: BaseException | None = None
            try:
                work()
            except BaseException as failure:
                error = failure
            with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
                loop.call_soon_threadsafe(on_ended, error)

    def close(self) -> None:
        """Return once what was started has ended."""
        self._closed = True
        self._jobs.put(None)
        if self._thread is not None:
            self._thread.join()


class TrackedWorkers:
    """Implements Workers and knows which work is under way, also when nobody awaits it any more.

    A thread cannot be cancelled. `wait` must return before files are closed or the folder's lock is given back, or a
    thread could write files that another process has already opened.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._under_way: set[asyncio.Task[object]] = set()

    async def run(self, work: Callable[[], T]) -> T:
        task = asyncio.get_running_loop().create_task(self._run(work))
        self._under_way.add(task)
        task.add_done_callback(self._on_ended)
        return await asyncio.shield(task)

    def _on_ended(self, task: asyncio.Task[object]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # whoever awaits it gets it; if that task was cancelled, nobody has to

    async def _run(self, work: Callable[[], T]) -> T:
        return await self._workers.run(work)

    async def wait(self) -> None:
        """Return once no thread works for this member."""
        while self._under_way:
            await asyncio.wait(list(self._under_way))


class _ShortTurns:
    """Threads take short turns while anybody is inside. Else they take Python's own: short ones cost a member that
    only writes a tenth of its CPU, since after each sync its thread interrupts the event loop.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._inside = 0
        self._usual_s = 0.0

    def __enter__(self) -> None:
        with self._guard:
            if not self._inside:
                self._usual_s = sys.getswitchinterval()
                sys.setswitchinterval(SWITCH_S)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._guard:
            self._inside -= 1
            if not self._inside:
                sys.setswitchinterval(self._usual_s)


short_turns: Final = _ShortTurns()


class LimitedWorkers:
    """Is the Workers port for clients' work. It limits their threads, so that a sync or a vote never waits for them."""

    def __init__(self, workers: Workers, limit: int) -> None:
        self._workers = workers
        self._free = asyncio.Semaphore(limit)
        self.waiting = 0
        """How much work waits for a thread."""

    async def run(self, work: Callable[[], T]) -> T:
        """Whoever gives up waiting frees no thread: the place stays taken until the work has ended."""
        self.waiting += 1
        try:
            await self._free.acquire()
        finally:
            self.waiting -= 1
        task = asyncio.get_running_loop().create_task(self._run(work))
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    async def _run(self, work: Callable[[], T]) -> T:
        def in_short_turns() -> T:
            with short_turns:
                return work()

        return await self._workers.run(in_short_turns)

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._free.release()
        if not task.cancelled():
            task.exception()  # marks the error as seen; whoever still waits gets it


HIGH_S: Final = 0.03
LOW_S: Final = 0.01
MOST_S: Final = 0.1
"""How much of one late beat counts: a single stall, however long, is no overload."""
WEIGHT: Final = 0.3
STALL_S: Final = 0.05
"""A beat that is later than this is counted as a stall."""
HIGH_SYNC_S: Final = 0.1
LOW_SYNC_S: Final = 0.03
MOST_SYNC_S: Final = 0.3
"""How much of one slow sync counts."""


class Load:
    """Averages how late the beats of the event loop are, each of about 20 ms, and how long the disk takes for a sync. A
    request waits for the loop several times, a write with a majority for the disk.

    late_s, sync_s: these averages. stalls: beats that were over 50 ms late. is_high: one of the averages passed what is
    high for it, and has not fallen below what is low since.
    """

    def __init__(self) -> None:
        self.late_s = self.sync_s = 0.0
        self.stalls = 0
        self._is_loop_late = self._is_disk_slow = False

    @property
    def is_high(self) -> bool:
        return self._is_loop_late or self._is_disk_slow

    def on_beat(self, late_s: float) -> None:
        """Note that a beat came `late_s` after it was due."""
        self.late_s += WEIGHT * (min(late_s, MOST_S) - self.late_s)
        self.stalls += late_s > STALL_S
        self._is_loop_late = self.late_s > (LOW_S if self._is_loop_late else HIGH_S)

    def on_synced(self, took_s: float) -> None:
        """Note how long a sync took. Also an idle set writes, and so syncs, every ten seconds."""
        self.sync_s += WEIGHT * (min(took_s, MOST_SYNC_S) - self.sync_s)
        self._is_disk_slow = self.sync_s > (LOW_SYNC_S if self._is_disk_slow else HIGH_SYNC_S)


class BackgroundTasks:
    """Starts coroutines, keeps them alive, and reports the error of each one that fails."""

    def __init__(self, on_error: Callable[[BaseException], None]) -> None:
        self._on_error = on_error
        self._tasks: dict[asyncio.Task[None], None] = {}

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` until it ends or `cancel` is called."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._on_done)

    def cancel(self) -> None:
        """Cancel every task; `wait` returns once they have ended."""
        for task in list(self._tasks):
            task.cancel()

    async def wait(self) -> None:
        """Return once every task has ended; errors go to `on_error` alone."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_error(error)


LONGEST_LINE: Final = 2_000


@dataclass(slots=True)
class RecentLog:
    """The newest lines of the process's log. total: how many there were. dropped: those that were not written."""

    lines: deque[str] = field(default_factory=lambda: deque(maxlen=1024))
    total: int = 0
    dropped: int = 0

    def add(self, line: str) -> None:
        self.total += 1
        self.lines.append(line[:LONGEST_LINE])
