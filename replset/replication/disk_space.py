"""Waits while the disk is full: one helper for all work that must not fail only because of that."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from replset.errors import ReplError
from replset.storage.sqlite import is_disk_full

log = logging.getLogger("replset.disk_space")
T = TypeVar("T")

PAUSE_S = 1.0
"""Between two looks at a disk that is full."""


class Progress(Protocol):
    """What a waiting job shows in `replSetGetStatus`; empty while it does not wait."""

    waiting_for: str


async def retry_while_disk_full(
    work: Callable[[], Awaitable[T]],
    what: str,
    *,
    progress: Progress | None = None,
    may_wait: Callable[[], bool] = lambda: True,
    has_space: Callable[[], Awaitable[bool]] | None = None,
) -> T:
    """Return what `work` returns. While it fails because the disk is full, pause and call it again.

    work: leaves nothing half done when it fails, or continues with what it left. what: names the work in the log, once
    when it begins to wait and once when it goes on. may_wait: False: raise the error. has_space: asked after each
    pause; without it the work itself is tried. Other errors are raised.
    """
    is_waiting = False
    try:
        while True:
            try:
                result = await work()
            except (ReplError, OSError) as error:
                if not is_disk_full(error) or not may_wait():
                    raise
                why = error.message if isinstance(error, ReplError) else str(error)
                if not is_waiting:
                    log.warning("%s waits for disk space: %s", what, why)
                is_waiting = True
                if progress is not None:
                    progress.waiting_for = f"disk space: {why}"
            else:
                if is_waiting:
                    log.warning("%s goes on: there is disk space again", what)
                return result
            while True:
                await asyncio.sleep(PAUSE_S)
                if has_space is None or await has_space():
                    break
    finally:
        if is_waiting and progress is not None:
            progress.waiting_for = ""
