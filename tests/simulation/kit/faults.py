"""What goes wrong in a seeded run: deaths, power cuts, partitions and bad links, one after the other, drawn."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from replset.ids import HostPort
from tests.simulation.kit.cluster import SimCluster
from tests.simulation.kit.disk import PLENTY
from tests.simulation.kit.network import QUIET, LinkFaults
from tests.simulation.kit.wire import NoAnswerError

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
    stop_cleanly: int = 1
    step_down: int = 1
    disk_full: int = 1
    change_votes: int = 2
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
        self._reconfiguring = False

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
            self._stop_cleanly: mix.stop_cleanly,
            self._step_down: mix.step_down,
            self._disk_full: mix.disk_full,
            self._change_votes: mix.change_votes,
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
        if self._wiped or self._reconfiguring or primary is None or not cluster.all_counted():
            return
        config = cluster.config()
        if config is None or len(config.voters) - 1 < config.majority_vote_count:
            return  # without that voter's data nobody could be elected any more: a person's decision, not a fault
        self._wiped = True
        name = self._rng.choice([name for name in cluster.machines if name != primary])
        cluster.kill(name, wipe=True)
        self._later(self._rng.uniform(0.2, 7.0), lambda: cluster.restart(name))

    def _disk_full(self) -> None:
        """The disk has no room for a while: writes are refused, nothing is damaged."""
        alive = self._cluster.alive()
        if not alive:
            return
        name = self._rng.choice(alive)
        disk = self._cluster.machines[name].disk
        disk.free = 0
        self._cluster.trace.add(name, "has a full disk")

        def make_room() -> None:
            disk.free = PLENTY
            self._cluster.trace.add(name, "has room again")

        self._later(self._rng.uniform(1.0, 6.0), make_room)

    # --- administrators

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._cluster.loop.create_task(work)
        self._repairs.add(task)
        task.add_done_callback(self._repairs.discard)

    def _stop_cleanly(self) -> None:
        """SIGTERM, and a start some seconds later."""
        cluster, alive = self._cluster, self._cluster.alive()
        if alive:
            name, pause = self._rng.choice(alive), self._rng.uniform(0.2, 4.0)

            async def stop() -> None:
                if await cluster.stop(name):
                    await asyncio.sleep(pause)
                    cluster.restart(name)

            self._background(stop())

    def _step_down(self) -> None:
        primary = self._cluster.primary()
        if primary is not None:
            command = {"replSetStepDown": self._rng.choice((2, 10)), "secondaryCatchUpPeriodSecs": 1}
            self._background(self._ask(primary, {**command, "force": self._rng.random() < 0.3}))

    def _change_votes(self) -> None:
        """A secondary loses its vote, or gets it back, by a safe reconfig."""
        primary = self._cluster.primary()
        others = [name for name, m in self._cluster.machines.items() if not m.arbiter and name != primary]
        if primary is not None and others and not self._wiped and not self._reconfiguring:
            self._reconfiguring = True
            self._background(self._reconfig(primary, self._cluster.host(self._rng.choice(others))))

    async def _reconfig(self, primary: str, host: HostPort) -> None:
        try:
            await self._flip_vote(primary, host)
        finally:
            self._reconfiguring = False

    async def _flip_vote(self, primary: str, host: HostPort) -> None:
        found = await self._ask(primary, {"replSetGetConfig": 1})
        if found is None or found["ok"] != 1:
            return
        config = found["config"]
        member = next(member for member in config["members"] if member["host"] == host)
        votes = 1 - member["votes"]
        member["votes"] = member["priority"] = votes
        config["version"] += 1
        self._cluster.trace.add(primary, f"is asked to give {host} {votes} votes")
        await self._ask(primary, {"replSetReconfig": config, "maxTimeMS": 4_000})

    async def _ask(self, name: str, command: dict[str, Any]) -> dict[str, Any] | None:
        client = self._cluster.client()
        try:
            return await client.call(self._cluster.host(name), "admin", command, 6.0)
        except NoAnswerError:
            return None
        finally:
            client.close()

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
