"""Real threads of which one runs at a time, and only while the loop waits for it: they overlap in virtual time.

A job stops at steps of the disk (`step`), in the middle of a checkpoint, a copy or a transaction, with whatever locks
it holds in SQLite then; the loop goes on meanwhile and resumes it at a drawn moment. Who runs when is drawn, so a seed
gives the same run again.
"""

from __future__ import annotations

import contextvars
import random
import threading
from _thread import allocate_lock
from collections.abc import Callable
from typing import Any

from tests.simulation.kit.errors import SimulationError

STOPS_MAX = 4
HANGS_AFTER_S = 120.0
"""Of real time: a run fails then, and does not stand still for ever."""
_here = threading.local()


def _held_lock() -> Any:
    """A lock that one thread takes to wait, and another gives back to wake it."""
    lock = allocate_lock()
    lock.acquire()
    return lock


class _Thread:
    """A thread that does one job after the other: to start one costs as much as to hand over four times."""

    def __init__(self) -> None:
        self._job: Job | None = None
        self._has_job = _held_lock()
        threading.Thread(target=self._serve, daemon=True).start()

    def do(self, job: Job) -> None:
        self._job = job
        self._has_job.release()

    def _serve(self) -> None:
        while True:
            self._has_job.acquire()
            job, self._job = self._job, None
            assert job is not None
            _here.job = job
            job.body()
            _here.job = None
            _idle.append(self)
            job.stopped.release()
            del job  # what it holds must not live on until the next one


_idle: list[_Thread] = []


class Job:
    """One piece of work in a thread. After each `go_on` it is `done`, or waits for so many more seconds."""

    def __init__(self, work: Callable[[], Any], rng: random.Random, longest_s: float, *, stops: bool = True) -> None:
        """longest_s: of one stop. stops: at steps of the disk, and not for locks only."""
        self._work = work
        self._rng = rng
        self._longest_s = longest_s
        self._stops = rng.choice((0, 1, 2, STOPS_MAX)) if stops else 0
        self._context = contextvars.copy_context()
        self._may_run = _held_lock()
        self.stopped = _held_lock()
        self._thread: _Thread | None = None
        self.done = False
        self.abandoned = False
        self.waits_s = 0.0
        self.waits_for: SimLock | None = None
        self.result: Any = None
        self.error: BaseException | None = None

    def go_on(self) -> None:
        """Let it run until its next stop or its end; for the loop's thread."""
        if self.waits_for is not None and self.waits_for.is_held and not self.abandoned:
            return  # it would only look, and wait as long again
        if self._thread is None:
            self._thread = _idle.pop() if _idle else _Thread()
            self._thread.do(self)
        else:
            self._may_run.release()
        if not self.stopped.acquire(timeout=HANGS_AFTER_S):
            raise SimulationError("a thread waits for something that is no step of the disk and no lock")

    def to_the_end(self) -> None:
        """Its process is dead: no more stops."""
        self.abandoned = True
        while not self.done:
            self.go_on()

    def body(self) -> None:
        """All of it; for its thread."""
        try:
            self.result = self._context.run(self._work)
        except BaseException as error:  # whatever it is: the loop waits for this thread
            self.error = error
        del self._work, self._context  # what they hold goes while the loop waits, and not beside it
        self.done = True

    def stop(self, seconds: float) -> None:
        """Wait so long in virtual time; for the job's own thread."""
        if self.abandoned:
            return
        self.waits_s = seconds
        self.stopped.release()
        self._may_run.acquire()

    def draw_stop(self) -> None:
        """Now and then a step of the disk takes its time."""
        if self._stops and self._rng.random() < 0.3:
            self._stops -= 1
            self.stop(self._rng.uniform(0.0, self._longest_s))


def current_job() -> Job | None:
    """The job in whose thread this is; None on the loop."""
    return getattr(_here, "job", None)


def step() -> None:
    """A step of the disk: whoever else may run now does."""
    job = current_job()
    if job is not None:
        job.draw_stop()


def sleep(microseconds: int) -> int:
    """SQLite waits for a lock. On the loop nobody could ever give it back meanwhile, and all clients would wait too."""
    job = current_job()
    if job is None:
        raise SimulationError(f"the loop waits {microseconds} us for a lock of SQLite's")
    job.stop(microseconds / 1_000_000)
    return microseconds


class SimLock:
    """threading.Lock among jobs and the loop, which must not wait for it: all clients would wait too."""

    def __init__(self) -> None:
        self.is_held = False
        self._holder: Job | None = None

    def acquire(self) -> bool:
        while self.is_held:
            job = current_job()
            if job is not None and not job.abandoned:
                job.waits_for = self
                job.stop(0.001)
                job.waits_for = None
            elif self._holder is None:
                raise SimulationError("a lock is taken twice on the loop")
            elif job is not None:
                self._holder.to_the_end()
            else:
                raise SimulationError("the loop waits for a lock that a thread holds while its disk works")
        self.is_held, self._holder = True, current_job()
        return True

    def release(self) -> None:
        self.is_held, self._holder = False, None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class _Threading:
    """The module `threading` with locks of the simulation."""

    Lock = SimLock

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)


SIM_THREADING = _Threading()
