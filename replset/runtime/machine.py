"""The real machine behind the ports Clock and Workers. The network's is network.py, the disk's storage/disk.py."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from replset.ids import Millis

T = TypeVar("T")


class RealClock:
    """The machine's monotonic clock and its wall clock, in milliseconds."""

    def now(self) -> Millis:
        return Millis(time.monotonic_ns() // 1_000_000)

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


class RealWorkers:
    """A few threads: WAL sync, checkpoint, member file, snapshot, long reads. None of them queues for long."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=6, thread_name_prefix="replset")

    async def run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        self._pool.shutdown(wait=True)
