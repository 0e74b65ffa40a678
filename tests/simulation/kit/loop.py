"""An asyncio event loop on virtual time.

Waiting costs nothing: where the real loop would sleep, this one moves its clock to the next timer. Tasks and futures
hash by their number, because asyncio keeps them in sets whose order would otherwise hang on memory addresses. A member
is a `Process`: its tasks inherit the process through a context variable, so that a kill ends all of them at once.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import weakref
from asyncio import base_events
from collections import deque
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any

STUCK_AFTER_STEPS = 500_000
DONE_TASKS_MAX = 20
"""So many a process keeps: what a task held should not live on for long."""
SOON = -1.0


class DeadlockError(Exception):
    """Nothing is scheduled and nobody can ever run again."""


class LivelockError(Exception):
    """The loop turns without virtual time moving on."""


class RealWaitError(Exception):
    """Code under test asked the loop for something that only the real machine has."""


class Process:
    """One run of one process, from its start to its death. `alive` False: whatever it still does reaches nobody."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.stopping = False
        self._tasks: list[SimTask] = []
        self._looks_at = DONE_TASKS_MAX

    def add(self, task: SimTask) -> None:
        self._tasks.append(task)
        if len(self._tasks) > self._looks_at:
            self._looks_at = len(self.tasks()) + DONE_TASKS_MAX

    def tasks(self) -> list[SimTask]:
        """Those that are not done, in the order in which they began. The others are let go."""
        self._tasks = [task for task in self._tasks if not task.done()]
        return self._tasks

    def __repr__(self) -> str:
        return f"Life({self.name}, {'alive' if self.alive else 'dead'})"


current_process: contextvars.ContextVar[Process | None] = contextvars.ContextVar("current_process", default=None)


class SimTask(asyncio.Task[Any]):
    """A task that hashes by its number in its loop."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class SimFuture(asyncio.Future[Any]):
    """A future that hashes by its number in its loop."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class SimHandle(asyncio.TimerHandle):
    """A callback to come, SOON or at a moment. It leaves out what the real ones do for debugging."""

    __slots__ = ()

    def __init__(
        self, when: float, callback: Callable[..., object], args: tuple[Any, ...], context: contextvars.Context | None
    ) -> None:
        self._when = when
        self._callback = callback
        self._args = args
        self._context = contextvars.copy_context() if context is None else context
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None

    def process(self) -> Process | None:
        return self._context.get(current_process)


def _ignore(_task: object) -> None:
    """In the place of asyncio's own note of every task, which costs a twentieth of a run: processes know theirs."""


_NOTES = [getattr(asyncio.tasks, name) for name in ("_all_tasks", "_scheduled_tasks") if hasattr(asyncio.tasks, name)]


class SimLoop(base_events.BaseEventLoop):
    """Virtual time in seconds from 0. `on_step` is called after every turn of the loop in which callbacks ran."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._paused: dict[Process, list[SimHandle]] = {}
        self._clock_resolution = 1e-7
        self._numbers = count(1)
        self._timers: list[tuple[float, int, SimHandle]] = []  # a heap: when, number, timer
        self._timer_numbers = count()
        self._stuck = 0
        self._tasks: list[weakref.ref[SimTask]] = []
        self._tasks_max = 100
        self.steps = 0
        self.on_step: Callable[[], None] | None = None
        self.unhandled: list[str] = []
        self.set_task_factory(self._make_task)
        self.set_exception_handler(self._note_unhandled)

    # --- time

    def time(self) -> float:
        return self._now

    @property
    def now_ms(self) -> int:
        return round(self._now * 1000)

    def run_forever(self) -> None:
        for note in _NOTES:
            note.add = _ignore
        try:
            super().run_forever()
        finally:
            for note in _NOTES:
                del note.add

    def _run_once(self) -> None:
        """One turn: jump to the next timer when nobody is ready, then run whoever is. As the real loop's, without
        sockets, and leaving out processes that are paused. DeadlockError when there is nothing to wait for.
        """
        timers = self._timers
        ready: deque[SimHandle] = self._ready
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if not ready and not self._stopping:
            if not timers:
                raise DeadlockError("nothing is scheduled: everybody waits for somebody else")
            self._now = max(self._now, timers[0][0])
            self._stuck = 0
        end = self._now + self._clock_resolution
        while timers and timers[0][0] < end:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled or (self._paused and self._holds_back(handle)):
                continue
            try:
                handle._context.run(handle._callback, *handle._args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # as asyncio's handles do
                message = f"Exception in callback {handle._callback}"
                self.call_exception_handler({"message": message, "exception": error})
        self.steps += 1
        self._stuck += 1
        if self._stuck > STUCK_AFTER_STEPS:
            raise LivelockError(f"{STUCK_AFTER_STEPS} turns at {self.now_ms} ms without waiting")
        if self.on_step is not None:
            self.on_step()

    # --- pauses

    def _holds_back(self, handle: SimHandle) -> bool:
        process = handle.process()
        held = None if process is None else self._paused.get(process)
        if held is None:
            return False
        held.append(handle)
        return True

    def pause(self, process: Process) -> None:
        """The process stands still: nothing of it runs, what arrives waits, time goes on."""
        self._paused.setdefault(process, [])

    def is_paused(self, process: Process) -> bool:
        return process in self._paused

    def resume(self, process: Process) -> None:
        """It goes on where it stood, with everything that came due or arrived meanwhile."""
        self._ready.extend(self._paused.pop(process, []))

    def run_in(
        self, process: Process, context: contextvars.Context, callback: Callable[..., object], *args: Any
    ) -> None:
        """Call into a process from outside, now, or when its pause ends."""
        if process in self._paused:
            self._paused[process].append(SimHandle(SOON, callback, args, context))
        elif process.alive:
            context.run(callback, *args)

    # --- tasks and futures

    def create_future(self) -> asyncio.Future[Any]:
        future = SimFuture(loop=self)
        future.number = next(self._numbers)
        return future

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], context: Any = None
    ) -> SimTask:
        number = next(self._numbers)
        task = SimTask(coroutine, loop=loop, name=f"sim-{number}", context=context)
        task.number = number
        process = current_process.get() if context is None else context.get(current_process)
        self._tasks.append(weakref.ref(task))
        if len(self._tasks) > self._tasks_max:
            self._tasks = [weakref.ref(found) for found in self.tasks()]
            self._tasks_max = 100 + 2 * len(self._tasks)
        if process is not None:
            process.add(task)
            if not process.alive:
                task.cancel()
        return task

    def tasks(self) -> list[SimTask]:
        """All that are not done, of whatever process."""
        found = [reference() for reference in self._tasks]
        return [task for task in found if task is not None and not task.done()]

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        """As the real loop's."""
        handle = SimHandle(SOON, callback, args, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        """There is one thread. asyncio itself calls this, to close an async generator that nobody holds any more."""
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        """As the real loop's; of two timers for one moment the earlier set one goes first."""
        timer = SimHandle(when, callback, args, context)
        process = timer.process()
        if process is not None and not process.alive:
            timer.cancel()
        else:
            heapq.heappush(self._timers, (when, next(self._timer_numbers), timer))
        return timer

    def kill(self, process: Process) -> None:
        """End a process: none of its timers and callbacks runs any more; its tasks are cancelled and reach nobody.

        The tasks still unwind (their `finally` blocks run) because Python must close them; the ports of a dead process
        swallow whatever they try.
        """
        process.alive = False
        self.resume(process)
        for timer in [*(row[2] for row in self._timers), *self._ready]:
            if timer._when is not SOON and timer.process() is process:
                timer.cancel()
        for task in process.tasks():
            task.cancel()

    def _note_unhandled(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        process = current_process.get()
        if process is not None and not process.alive:
            return
        error = context.get("exception")
        self.unhandled.append(f"{context.get('message')}: {type(error).__name__}: {error}")

    # --- what only the real machine has

    def _process_events(self, event_list: list[Any]) -> None:
        assert not event_list

    def _write_to_self(self) -> None:
        pass

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        raise RealWaitError(f"run_in_executor({func!r}): threads go through the Workers port")

    async def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        raise RealWaitError("create_connection: sockets go through the Network port")

    async def create_server(self, *args: Any, **kwargs: Any) -> Any:
        raise RealWaitError("create_server: sockets go through the Network port")
