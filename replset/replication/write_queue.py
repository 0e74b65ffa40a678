"""Lets one writer at a time at the store: client groups, fetched pages, no-ops, undo, and removing old data.

The last pass of a checkpoint pauses the queue, so that the WAL can be copied to its end. Writers then wait in order,
and the event loop goes on. When another process keeps the store busy, the write is tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

from replset.errors import StoreBusyError

log = logging.getLogger("replset.write_queue")
T = TypeVar("T")

BUSY_PAUSE_S: Final = 0.02
WARN_AFTER: Final = 50
"""Tries of a busy store, one second in all, before a line in the log."""


class WriteQueue:
    """Runs writes one by one, in the order in which they came, unless it is paused."""

    def __init__(self) -> None:
        self._writes: deque[Callable[[], None]] = deque()
        self._paused = False
        self._running = False
        self._closed = False
        self._retry: asyncio.TimerHandle | None = None
        self._tries = 0

    def __len__(self) -> int:
        """Return how many writes wait."""
        return len(self._writes)

    def pause(self) -> None:
        """Run nothing until `resume`."""
        self._paused = True

    def resume(self) -> None:
        """Run what waits."""
        self._paused = False
        self._run_all()

    def close(self) -> None:
        """Drop what waits: the store is about to be closed for good."""
        self._closed = True
        self._writes.clear()

    def submit(self, write: Callable[[], None]) -> None:
        """Run `write` at once, or behind what waits.

        It handles its own errors, except StoreBusyError: then it is called again, and everything behind it waits.
        """
        if not self._closed:
            self._writes.append(write)
            self._run_all()

    async def write(self, work: Callable[[], T]) -> T:
        """Run `work`, which ends with the transaction committed, and return its result or raise its error.

        A task that is cancelled while it waits here has not run it, and never will.
        """
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def run() -> None:
            if done.done():
                return
            try:
                result = work()
            except StoreBusyError:
                raise
            except Exception as error:
                if not done.done():  # the work may have cancelled the task that waits for it
                    done.set_exception(error)
            else:
                if not done.done():
                    done.set_result(result)

        self.submit(run)
        return done.result() if done.done() else await done

    def _run_all(self) -> None:
        if self._running or self._retry is not None:
            return
        self._running = True
        try:
            while self._writes and not self._paused:
                try:
                    self._writes[0]()
                except StoreBusyError as busy:
                    self._retry_later(busy)
                    return
                except BaseException:
                    self._writes.popleft()
                    raise
                if self._writes:  # `close` empties the queue
                    self._writes.popleft()
                self._tries = 0
        finally:
            self._running = False

    def _retry_later(self, busy: StoreBusyError) -> None:
        self._tries += 1
        if self._tries % WARN_AFTER == 0:
            log.warning("writes wait: %s", busy.message)
        if not self._closed:
            self._retry = asyncio.get_running_loop().call_later(BUSY_PAUSE_S, self._on_retry)

    def _on_retry(self) -> None:
        self._retry = None
        self._run_all()
