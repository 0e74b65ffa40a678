"""The one gate in front of everything that writes the store: client groups, fetched pages, no-ops, undo, keeping house.

A checkpoint's last pass holds it, so that the WAL can be folded to its end. Who writes meanwhile waits in order, on the
loop, which goes on. A store that another process keeps busy is tried again; it is no broken store.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

from replset.errors import StoreBusyError

log = logging.getLogger("replset.gate")
T = TypeVar("T")

BUSY_PAUSE_S: Final = 0.02
WARN_AFTER: Final = 50
"""A store that is busy for so many tries, a second, is worth a line in the log."""


class WriteGate:
    """Open until `hold`. Works pass it one by one, in the order in which they came."""

    def __init__(self) -> None:
        self._works: deque[Callable[[], None]] = deque()
        self._held = False
        self._running = False
        self._closed = False
        self._pause: asyncio.TimerHandle | None = None
        self._tries = 0

    def hold(self) -> None:
        """Let nothing pass until `release`."""
        self._held = True

    def release(self) -> None:
        """Let pass what waits."""
        self._held = False
        self._pass()

    def close(self) -> None:
        """Forget what waits: the store is about to be closed for good."""
        self._closed = True
        self._works.clear()
        if self._pause is not None:
            self._pause.cancel()

    def submit(self, work: Callable[[], None]) -> None:
        """Run `work` at once, or behind what waits. It handles its own errors, but for StoreBusyError: then it is
        called again, and everything behind it waits.
        """
        if not self._closed:
            self._works.append(work)
            self._pass()

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
                if not done.done():  # what the work set off may have cancelled who waits for it
                    done.set_exception(error)
            else:
                if not done.done():
                    done.set_result(result)

        self.submit(run)
        return done.result() if done.done() else await done

    def _pass(self) -> None:
        if self._running or self._pause is not None:
            return
        self._running = True
        try:
            while self._works and not self._held:
                work = self._works[0]
                try:
                    work()
                except StoreBusyError as busy:
                    self._try_later(busy)
                    return
                except BaseException:
                    self._works.popleft()
                    raise
                if self._works:  # closing forgets them
                    self._works.popleft()
                self._tries = 0
        finally:
            self._running = False

    def _try_later(self, busy: StoreBusyError) -> None:
        self._tries += 1
        if self._tries % WARN_AFTER == 0:
            log.warning("writes wait: %s", busy.message)
        if not self._closed:
            self._pause = asyncio.get_running_loop().call_later(BUSY_PAUSE_S, self._again)

    def _again(self) -> None:
        self._pause = None
        self._pass()
