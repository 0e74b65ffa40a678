"""Threads: the work runs on the loop, in one piece, at a drawn moment; or in a thread that overlaps with the loop."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable
from typing import TypeVar

from replset.member.disk.durability import Sync
from tests.simulation.kit.loop import Process, SimLoop
from tests.simulation.kit.threads import Job

T = TypeVar("T")
SLOWEST = 10
"""How many times as long as most work a tenth of it takes."""
LONGEST_S = 20.0
"""However slow a disk is: longer than any election timeout, and shorter than a set may take to be well again."""


class SimWorkers:
    """The Workers port of one process. The work is done even when nobody awaits it any more, as in a thread.

    longest_ms: from the call until the work is done; of a tenth of the calls SLOWEST times as much. Its result is known
    up to a millisecond later. overlap: how many of the calls stop at steps of the disk on their way.
    """

    def __init__(
        self,
        loop: SimLoop,
        process: Process,
        rng: random.Random,
        longest_ms: float = 4.0,
        slowness: Callable[[], float] = lambda: 1.0,
        overlap: float = 0.0,
    ) -> None:
        """slowness: how many times as long as ever it takes now."""
        self._loop = loop
        self._process = process
        self._rng = rng
        self._longest_ms = longest_ms
        self._slowness = slowness
        self._overlap = overlap
        self._rng_threads = random.Random(rng.getrandbits(64)) if overlap else rng
        self._jobs: dict[Job, None] = {}

    async def run(self, work: Callable[[], T]) -> T:
        if not self._process.alive:
            raise asyncio.CancelledError
        if isinstance(work, Sync):
            work.begun = True  # the drawn time is what its disk takes
        slow = SLOWEST if self._rng.random() < 0.1 else 1
        before, after = (self._rng.uniform(0.05, limit) / 1000 for limit in (self._longest_ms * slow, slow))
        before = min(before * self._slowness(), LONGEST_S)
        done: asyncio.Future[T] = self._loop.create_future()
        context = contextvars.copy_context()
        if self._overlap:
            job = Job(work, self._rng_threads, before, stops=self._rng_threads.random() < self._overlap)
            self._jobs[job] = None
            begins = before * self._rng_threads.random()
            self._loop.call_later(begins, self._go_on, job, done, after, context=context)
        else:
            self._loop.call_later(before, self._do, work, done, after, context=context)
        return await done

    def start(self, work: Callable[[], None], on_ended: Callable[[BaseException | None], None]) -> None:
        """The port SyncThread."""

        async def run() -> None:
            error: BaseException | None = None
            try:
                await self.run(work)
            except Exception as failure:
                error = failure
            on_ended(error)

        self._loop.create_task(run())

    def _go_on(self, job: Job, done: asyncio.Future[T], after: float) -> None:
        if not self._process.alive:
            return  # `abandon` ends it
        if not job.done:
            job.go_on()
        if not job.done:
            self._loop.call_later(job.waits_s, self._go_on, job, done, after)
            return
        self._jobs.pop(job, None)
        if job.error is not None:
            self._loop.call_later(after, _fail, done, job.error)
        else:
            self._loop.call_later(after, _succeed, done, job.result)

    def abandon(self) -> None:
        """The process is dead: what its threads still do reaches nobody."""
        for job in self._jobs:
            job.to_the_end()
        self._jobs.clear()

    def _do(self, work: Callable[[], T], done: asyncio.Future[T], after: float) -> None:
        if not self._process.alive:
            return
        try:
            result = work()
        except Exception as error:
            self._loop.call_later(after, _fail, done, error)
            return
        self._loop.call_later(after, _succeed, done, result)


def _fail(done: asyncio.Future[T], error: BaseException) -> None:
    if not done.done():
        done.set_exception(error)


def _succeed(done: asyncio.Future[T], result: T) -> None:
    if not done.done():
        done.set_result(result)
