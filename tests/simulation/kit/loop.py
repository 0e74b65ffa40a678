"""An asyncio event loop on virtual time.

Waiting costs nothing: where the real loop would sleep, this one moves its clock to the next timer. Tasks and futures
hash by their number, because asyncio keeps them in sets whose order would otherwise hang on memory addresses. A member
is a `Process`: its tasks inherit the process through a context variable, so that a kill ends all of them at once.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from asyncio import base_events
from collections import deque
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any

STUCK_AFTER_STEPS = 500_000


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
        self.tasks: set[SimTask] = set()

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


def _process_of(handle: asyncio.Handle) -> Process | None:
    context: contextvars.Context = handle._context  # type: ignore[attr-defined]
    return context.get(current_process)


class SimLoop(base_events.BaseEventLoop):
    """Virtual time in seconds from 0. `on_step` is called after every turn of the loop in which callbacks ran."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._paused: dict[Process, list[asyncio.Handle]] = {}
        self._clock_resolution = 1e-7
        self._numbers = count(1)
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []  # a heap: when, number, timer
        self._timer_numbers = count()
        self._stuck = 0
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

    def _run_once(self) -> None:
        """One turn: jump to the next timer when nobody is ready, then run whoever is. As the real loop's, without
        sockets, and leaving out processes that are paused. DeadlockError when there is nothing to wait for.
        """
        timers = self._timers
        ready: deque[asyncio.Handle] = self._ready
        while timers and timers[0][2]._cancelled:  # type: ignore[attr-defined]
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
            if not handle._cancelled and not (self._paused and self._holds_back(handle)):
                handle._run()
        self.steps += 1
        self._stuck += 1
        if self._stuck > STUCK_AFTER_STEPS:
            raise LivelockError(f"{STUCK_AFTER_STEPS} turns at {self.now_ms} ms without waiting")
        if self.on_step is not None:
            self.on_step()

    # --- pauses

    def _holds_back(self, handle: asyncio.Handle) -> bool:
        process = _process_of(handle)
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
            self._paused[process].append(asyncio.Handle(callback, args, self, context))
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
        if process is not None:
            process.tasks.add(task)
            task.add_done_callback(process.tasks.discard)
            if not process.alive:
                task.cancel()
        return task

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """As the real loop's; of two timers for one moment the earlier set one goes first."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        process = _process_of(timer)
        if process is not None and not process.alive:
            timer.cancel()
        else:
            heapq.heappush(self._timers, (when, next(self._timer_numbers), timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass  # it goes when its time comes

    def kill(self, process: Process) -> None:
        """End a process: none of its timers and callbacks runs any more; its tasks are cancelled and reach nobody.

        The tasks still unwind (their `finally` blocks run) because Python must close them; the ports of a dead process
        swallow whatever they try.
        """
        process.alive = False
        self.resume(process)
        for timer in [*(row[2] for row in self._timers), *self._ready]:
            if isinstance(timer, asyncio.TimerHandle) and _process_of(timer) is process:
                timer.cancel()
        for task in sorted(process.tasks, key=lambda task: task.number):
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
