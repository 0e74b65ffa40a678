"""Tasks that run beside the rest of a member and whose errors nobody awaits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


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
