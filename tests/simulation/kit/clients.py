"""What all simulated clients have in common: each is a task with a generator of its own, until `stop`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from replset.ids import HostPort
from tests.simulation.kit.loop import SimLoop
from tests.simulation.kit.wire import SimClient


class Clients:
    """pause_ms: how long one of them waits between two operations, from and to."""

    def __init__(
        self,
        loop: SimLoop,
        hosts: list[HostPort],
        rng: random.Random,
        new_client: Callable[[], SimClient],
        pause_ms: tuple[int, int],
    ) -> None:
        self._loop = loop
        self._hosts = hosts
        self._rng = rng
        self._new_client = new_client
        self._pause_ms = pause_ms
        self._stopped = False
        self._tasks: list[asyncio.Task[None]] = []

    def _launch(self, client: Callable[[random.Random], Coroutine[Any, Any, None]]) -> None:
        self._tasks.append(self._loop.create_task(client(random.Random(self._rng.getrandbits(64)))))

    async def stop(self) -> None:
        """Let what is under way end, then return."""
        self._stopped = True
        for task in self._tasks:
            await task

    async def _pause(self, rng: random.Random) -> None:
        low, high = self._pause_ms
        await asyncio.sleep(rng.uniform(low, high) / 1000)
