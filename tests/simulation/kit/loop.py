"""An asyncio event loop on virtual time.

Waiting costs nothing: where the real loop would sleep, this one moves its clock to the next timer. Tasks and futures
hash by their number, because asyncio keeps them in sets whose order would otherwise hang on memory addresses. A member
is a `Life`: what it starts inherits the life through a context variable, so that a kill can end all of it at once.
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


class Life:
    """One run of one process, from its start to its death. `alive` False: whatever it still does reaches nobody."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.stopping = False
        self.tasks: set[SimTask] = set()

    def __repr__(self) -> str:
        return f"Life({self.name}, {'alive' if self.alive else 'dead'})"


current_life: contextvars.ContextVar[Life | None] = contextvars.ContextVar("current_life", default=None)


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


def _life_of(handle: asyncio.Handle) -> Life | None:
    context: contextvars.Context = handle._context  # type: ignore[attr-defined]
    return context.get(current_life)


class SimLoop(base_events.BaseEventLoop):
    """Virtual time in seconds from 0. `on_step` is called after every turn of the loop in which callbacks ran."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._paused: dict[Life, list[asyncio.Handle]] = {}
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
        sockets, and leaving out lives that are paused. DeadlockError when there is nothing to wait for.
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
        life = _life_of(handle)
        held = None if life is None else self._paused.get(life)
        if held is None:
            return False
        held.append(handle)
        return True

    def pause(self, life: Life) -> None:
        """The process stands still: nothing of it runs, what arrives waits, time goes on."""
        self._paused.setdefault(life, [])

    def is_paused(self, life: Life) -> bool:
        return life in self._paused

    def resume(self, life: Life) -> None:
        """It goes on where it stood, with everything that came due or arrived meanwhile."""
        self._ready.extend(self._paused.pop(life, []))

    def run_in(self, life: Life, context: contextvars.Context, callback: Callable[..., object], *args: Any) -> None:
        """Call into a life from outside, now, or when its pause ends."""
        if life in self._paused:
            self._paused[life].append(asyncio.Handle(callback, args, self, context))
        elif life.alive:
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
        life = current_life.get() if context is None else context.get(current_life)
        if life is not None:
            life.tasks.add(task)
            task.add_done_callback(life.tasks.discard)
            if not life.alive:
                task.cancel()
        return task

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """As the real loop's; of two timers for one moment the earlier set one goes first."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        life = _life_of(timer)
        if life is not None and not life.alive:
            timer.cancel()
        else:
            heapq.heappush(self._timers, (when, next(self._timer_numbers), timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass  # it goes when its time comes

    def kill(self, life: Life) -> None:
        """End a life: none of its timers and callbacks runs any more; its tasks are cancelled and reach nobody.

        The tasks still unwind (their `finally` blocks run) because Python must close them; the ports of a dead life
        swallow whatever they try.
        """
        life.alive = False
        self.resume(life)
        for timer in [*(row[2] for row in self._timers), *self._ready]:
            if isinstance(timer, asyncio.TimerHandle) and _life_of(timer) is life:
                timer.cancel()
        for task in sorted(life.tasks, key=lambda task: task.number):
            task.cancel()

    def _note_unhandled(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        life = current_life.get()
        if life is not None and not life.alive:
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
