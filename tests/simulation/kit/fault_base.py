"""What every kind of fault needs: to draw, to kill and start again, to cut off, and to put right later."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from replset.ids import HostPort
from tests.simulation.kit.cluster import SimCluster
from tests.simulation.kit.wire import NoAnswerError

REPAIRED_WITHIN_S = 60.0
"""After the last fault; what takes longest is an administrator who waits for a primary."""


class FaultBase:
    """Knows the cluster, and what is on its way to be put right."""

    def __init__(self, cluster: SimCluster, hosts: list[HostPort] | None) -> None:
        """hosts: where clients go; a member that is added joins them."""
        self._cluster = cluster
        self._hosts = [] if hosts is None else hosts
        self._rng: random.Random = cluster.rng_faults
        self._rng_copies = cluster.random_for("full copies")
        self._rng_rows = cluster.random_for("rows of a disk")
        self._repairs: set[asyncio.Task[None]] = set()  # restarts and heals on their way
        self._wiped = False
        self._reconfiguring = False
        self._over = False
        self._ends = 0.0
        self.done: Counter[str] = Counter()

    def _later(self, seconds: float, do: Callable[[], None]) -> None:
        """Put something right again after a while."""

        async def wait() -> None:
            await asyncio.sleep(seconds)
            do()

        task = self._cluster.loop.create_task(wait())
        self._repairs.add(task)
        task.add_done_callback(self._repairs.discard)

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._cluster.loop.create_task(work)
        self._repairs.add(task)
        task.add_done_callback(self._repairs.discard)

    def _at_most(self, seconds: float) -> float:
        """No longer than the faults go on."""
        return max(0.0, min(seconds, self._ends - self._cluster.loop.time()))

    def _kill(self, name: str, *, power_loss: bool) -> None:
        if not name:
            return
        self._cluster.kill(name, power_loss=power_loss and self._cluster.journal_default)
        self._later(self._rng.uniform(0.2, 7.0), lambda: self._revive(name))

    def _revive(self, name: str) -> None:
        """Start it again, unless somebody did, or when there is no disk space yet: then later."""
        machine = self._cluster.machines[name]
        if machine.disk.is_full:
            self._later(1.0, lambda: self._revive(name))
        elif machine.process is None:
            self._cluster.restart(name)

    def _cut_for_a_while(self, group: list[str], direction: str, seconds: tuple[float, float] = (0.5, 9.0)) -> None:
        self._cluster.cut(group, direction=direction)
        self._later(self._rng.uniform(*seconds), self._cluster.heal)

    async def _ask(self, name: str, command: dict[str, Any], database: str = "admin") -> dict[str, Any] | None:
        client = self._cluster.client()
        try:
            return await client.call(self._cluster.host(name), database, command, 6.0)
        except NoAnswerError:
            return None
        finally:
            client.close()
