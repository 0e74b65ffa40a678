"""What all simulated clients have in common: each is a task with a generator of its own, until `stop`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, Protocol

from replset.ids import HostPort
from tests.simulation.kit.loop import SimLoop
from tests.simulation.kit.wire import SimClient


class NewClient(Protocol):
    """As `SimCluster.client`."""

    def __call__(self, *, together: bool = False) -> SimClient: ...


class ClientSite(NamedTuple):
    """Where clients run, and which members they know."""

    loop: SimLoop
    hosts: list[HostPort]
    rng: random.Random
    new_client: NewClient


class Clients:
    """primary: the member that answered one of them as a primary last, until it answers otherwise.

    pause_ms: how long one of them waits between two operations, from and to.
    """

    def __init__(self, site: ClientSite, pause_ms: tuple[int, int]) -> None:
        self._loop, self._hosts, self._rng, self._new_client = site
        self._pause_ms = pause_ms
        self._stopped = False
        self._tasks: list[asyncio.Task[None]] = []
        self.primary: HostPort | None = None

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

    def _target(self, rng: random.Random, how_often: float) -> HostPort:
        """The primary so often; else a member that may think that it is."""
        return self.primary if self.primary and rng.random() < how_often else rng.choice(self._hosts)

    def _note_primary(self, target: HostPort, *, leads: bool) -> None:
        """Note what an answer of `target`, or none, says of it."""
        if leads:
            self.primary = target
        elif self.primary == target:
            self.primary = None
