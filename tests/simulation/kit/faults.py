"""What goes wrong in a seeded run: deaths, power cuts, partitions and bad links, one after the other, drawn."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
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
    pause: int = 2
    wipe: int = 1
    pause_s: tuple[float, float] = (0.5, 5.0)


class Faults:
    """Runs faults until `stop`, then puts everything right."""

    def __init__(self, cluster: SimCluster, mix: FaultMix | None = None) -> None:
        self._cluster = cluster
        self._mix = mix or FaultMix()
        self._rng: random.Random = cluster.rng_faults
        self._repairs: set[asyncio.Task[None]] = set()  # restarts and heals on their way
        self._wiped = False

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
            self._pause: mix.pause,
            self._wipe: mix.wipe,
        }
        ends = cluster.loop.time() + seconds
        while cluster.loop.time() < ends:
            await asyncio.sleep(self._rng.uniform(*mix.pause_s))
            fault = self._rng.choices(list(kinds), list(kinds.values()))[0]
            fault()
        for repair in sorted(self._repairs, key=hash):
            await repair
        cluster.network.faults = QUIET
        cluster.heal()

    def _later(self, seconds: float, do: Callable[[], None]) -> None:
        """Put something right again after a while."""

        async def wait() -> None:
            await asyncio.sleep(seconds)
            do()

        task = self._cluster.loop.create_task(wait())
        self._repairs.add(task)
        task.add_done_callback(self._repairs.discard)

    # --- deaths

    def _kill_one(self) -> None:
        self._kill(self._rng.choice(self._cluster.alive() or [""]), power_loss=False)

    def _kill_primary(self) -> None:
        self._kill(self._cluster.primary() or "", power_loss=self._rng.random() < 0.4)

    def _power_loss(self) -> None:
        self._kill(self._rng.choice(self._cluster.alive() or [""]), power_loss=True)

    def _power_loss_of_all(self) -> None:
        for name in self._cluster.alive():
            self._kill(name, power_loss=True)

    def _kill(self, name: str, *, power_loss: bool) -> None:
        if not name:
            return
        self._cluster.kill(name, power_loss=power_loss)
        self._later(self._rng.uniform(0.2, 7.0), lambda: self._cluster.restart(name))

    def _pause(self) -> None:
        """Half of the time it is the primary, which may think that it still is when it goes on."""
        primary = self._cluster.primary()
        alive = self._cluster.alive()
        if alive:
            name = primary if primary is not None and self._rng.random() < 0.5 else self._rng.choice(alive)
            self._cluster.pause(name, self._rng.uniform(0.5, 6.0))

    def _wipe(self) -> None:
        """Once a run: a member that is not primary, in a set that is well, comes back with an empty disk."""
        cluster = self._cluster
        primary = cluster.primary()
        if self._wiped or primary is None or not cluster.all_counted():
            return
        self._wiped = True
        name = self._rng.choice([name for name in cluster.machines if name != primary])
        cluster.kill(name, wipe=True)
        self._later(self._rng.uniform(0.2, 7.0), lambda: cluster.restart(name))

    # --- links

    def _isolate_primary(self) -> None:
        primary = self._cluster.primary()
        if primary is not None:
            self._cut_for_a_while([primary], "both")

    def _isolate_someone(self) -> None:
        names = list(self._cluster.machines)
        self._cut_for_a_while(self._rng.sample(names, self._rng.randrange(1, len(names))), "both")

    def _one_way(self) -> None:
        name = self._rng.choice(list(self._cluster.machines))
        self._cut_for_a_while([name], self._rng.choice(("in", "out")))

    def _cut_for_a_while(self, group: list[str], direction: str) -> None:
        self._cluster.cut(group, direction=direction)
        self._later(self._rng.uniform(0.5, 9.0), self._cluster.heal)

    def _bad_links(self) -> None:
        self._cluster.network.faults = BAD_LINKS
        self._cluster.trace.add("network", "bad links")
        self._later(self._rng.uniform(2.0, 6.0), self._good_links)

    def _good_links(self) -> None:
        self._cluster.network.faults = QUIET
        self._cluster.trace.add("network", "good links")
