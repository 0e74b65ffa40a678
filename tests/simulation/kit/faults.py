"""What goes wrong in a seeded run: deaths, power cuts, partitions and bad links, one after the other, drawn."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from tests.simulation.kit.cluster import SimCluster
from tests.simulation.kit.network import QUIET, LinkFaults

BAD_LINKS = LinkFaults(slow=0.05, slow_ms=600.0, stall=0.004, stall_ms=4_000.0)


@dataclass(frozen=True, slots=True)
class FaultMix:
    """Weights of the kinds of fault, and the seconds between two."""

    kill: int = 3
    power_loss: int = 2
    power_loss_of_all: int = 1
    isolate_primary: int = 3
    isolate_someone: int = 2
    one_way: int = 2
    kill_primary: int = 2
    bad_links: int = 2
    pause_s: tuple[float, float] = (1.0, 6.0)


class Faults:
    """Runs faults until `stop`, then puts everything right."""

    def __init__(self, cluster: SimCluster, mix: FaultMix | None = None) -> None:
        self._cluster = cluster
        self._mix = mix or FaultMix()
        self._rng: random.Random = cluster.rng_faults
        self._restarts: set[asyncio.Task[None]] = set()

    async def run(self, seconds: float) -> None:
        """Faults for so long; on return all members run, all links are whole."""
        cluster, mix = self._cluster, self._mix
        kinds = {
            self._kill_one: mix.kill,
            self._power_loss: mix.power_loss,
            self._power_loss_of_all: mix.power_loss_of_all,
            self._isolate_primary: mix.isolate_primary,
            self._isolate_someone: mix.isolate_someone,
            self._one_way: mix.one_way,
            self._kill_primary: mix.kill_primary,
            self._bad_links: mix.bad_links,
        }
        ends = cluster.loop.time() + seconds
        while cluster.loop.time() < ends:
            await asyncio.sleep(self._rng.uniform(*mix.pause_s))
            fault = self._rng.choices(list(kinds), list(kinds.values()))[0]
            await fault()
        cluster.network.faults = QUIET
        cluster.heal()
        for restart in sorted(self._restarts, key=hash):
            await restart

    # --- deaths

    async def _kill_one(self) -> None:
        self._kill(self._rng.choice(self._cluster.alive() or [""]), power_loss=False)

    async def _kill_primary(self) -> None:
        self._kill(self._cluster.primary() or "", power_loss=self._rng.random() < 0.4)

    async def _power_loss(self) -> None:
        self._kill(self._rng.choice(self._cluster.alive() or [""]), power_loss=True)

    async def _power_loss_of_all(self) -> None:
        for name in self._cluster.alive():
            self._kill(name, power_loss=True)

    def _kill(self, name: str, *, power_loss: bool) -> None:
        if not name:
            return
        self._cluster.kill(name, power_loss=power_loss)
        task = self._cluster.loop.create_task(self._restart_later(name, self._rng.uniform(0.2, 7.0)))
        self._restarts.add(task)
        task.add_done_callback(self._restarts.discard)

    async def _restart_later(self, name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._cluster.restart(name)

    # --- links

    async def _isolate_primary(self) -> None:
        primary = self._cluster.primary()
        if primary is not None:
            await self._cut_for_a_while([primary], "both")

    async def _isolate_someone(self) -> None:
        names = list(self._cluster.machines)
        await self._cut_for_a_while(self._rng.sample(names, self._rng.randrange(1, len(names))), "both")

    async def _one_way(self) -> None:
        name = self._rng.choice(list(self._cluster.machines))
        await self._cut_for_a_while([name], self._rng.choice(("in", "out")))

    async def _cut_for_a_while(self, group: list[str], direction: str) -> None:
        self._cluster.cut(group, direction=direction)
        await asyncio.sleep(self._rng.uniform(0.5, 9.0))
        self._cluster.heal()

    async def _bad_links(self) -> None:
        self._cluster.network.faults = BAD_LINKS
        self._cluster.trace.add("network", "bad links")
        await asyncio.sleep(self._rng.uniform(2.0, 6.0))
        self._cluster.network.faults = QUIET
        self._cluster.trace.add("network", "good links")
