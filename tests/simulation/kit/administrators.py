"""What administrators do in the middle of a run: stop and start, step down, copy anew, change the configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.simulation.kit.cluster import SPARE
from tests.simulation.kit.fault_base import FaultBase

NOT_SAFE_TO_ADD = 103  # beside a primary and an arbiter a secondary comes with priority 0 at first


class Administrators(FaultBase):
    """Gives commands that change the set."""

    def _stop_cleanly(self) -> None:
        """SIGTERM, and a start some seconds later."""
        cluster, alive = self._cluster, self._cluster.alive()
        if alive:
            name, pause = self._rng.choice(alive), self._rng.uniform(0.2, 4.0)

            async def stop() -> None:
                if await cluster.stop(name):
                    await asyncio.sleep(pause)
                    self._revive(name)

            self._background(stop())

    def _step_down(self) -> None:
        primary = self._cluster.primary()
        if primary is not None:
            command = {"replSetStepDown": self._rng.choice((2, 10)), "secondaryCatchUpPeriodSecs": 1}
            self._background(self._ask(primary, {**command, "force": self._rng.random() < 0.3}))

    def _freeze(self) -> None:
        """A member must not start an election for a while; now and then it may again before that."""
        name, seconds = self._rng.choice(list(self._cluster.machines)), self._rng.choice((2, 8))
        self._background(self._ask(name, {"replSetFreeze": seconds}))
        if self._rng.random() < 0.3:
            self._later(1.0, lambda: self._background(self._ask(name, {"replSetFreeze": 0})))

    def _sync_from(self) -> None:
        """Members are told to fetch from one another, so that chains come, and now and then would be cycles."""
        names = [machine.name for machine in self._cluster.members() if not machine.arbiter]
        for name in self._rng.sample(names, min(2, len(names))):
            source = self._cluster.host(self._rng.choice(names))
            self._background(self._ask(name, {"replSetSyncFrom": source}))

    def _resync(self) -> None:
        """A secondary is asked to copy another member's data, in a set that is well and can do without its vote."""
        cluster = self._cluster
        primary, config = cluster.primary(), cluster.config()
        others = [machine.name for machine in cluster.members() if not machine.arbiter and machine.name != primary]
        if primary is None or config is None or self._wiped or self._reconfiguring or not cluster.all_counted():
            return
        if len(config.voters) - 1 >= config.majority_vote_count and others:
            self._background(self._ask(self._rng.choice(others), {"replSetResync": 1}))

    def _add_new(self) -> None:
        """The spare machine becomes a member, once a run, often on a copied dbpath; who adds it does not give up."""
        cluster = self._cluster
        spare = cluster.machines.get(SPARE)
        if spare is None or not spare.is_spare or self._reconfiguring or cluster.primary() is None:
            return
        spare.is_spare = False
        self._hosts.append(spare.host)
        self._copy_dbpath()
        cluster.start(SPARE)
        row: dict[str, object] = {"host": spare.host}
        if self._rng.random() < 0.3:
            row |= {"votes": 0, "priority": 0}
        self._reconfiguring = True
        self._background(self._add(row))

    def _copy_dbpath(self) -> None:
        """Somebody copied the dbpath of another member, which runs or died, or what a loss of power leaves of it."""
        cluster = self._cluster
        sound = [
            machine.name
            for machine in cluster.members()
            if machine.bears_data and machine.name != SPARE and machine.starts and not cluster.is_unsound(machine)
        ]
        rng = cluster.rng_copies
        if sound and rng.random() < 0.5:
            power_loss = cluster.journal_default and rng.random() < 0.5
            cluster.copy_dbpath(rng.choice(sound), SPARE, power_loss=power_loss)

    async def _add(self, row: dict[str, object]) -> None:
        try:
            while True:
                leader, config = self._cluster.primary(), self._cluster.config()
                if config is not None and config.member_at(self._cluster.host(SPARE)) is not None:
                    return
                if leader is not None:
                    self._cluster.trace.add(leader, f"is asked to add {row}")
                    reply = await self._ask(leader, {"replSetAddMember": row, "maxTimeMS": 4_000})
                    if reply is not None and reply.get("code") == NOT_SAFE_TO_ADD:
                        row["priority"] = 0
                await asyncio.sleep(1.0)
        finally:
            self._reconfiguring = False

    def _reconfigure(self) -> None:
        """Another priority, another election timeout, another catch-up."""
        primary = self._cluster.primary()
        if primary is None or self._reconfiguring:
            return
        draw = self._rng.random()
        names = [machine.name for machine in self._cluster.members()]
        name, priority = self._rng.choice(names), self._rng.choice((0.5, 1, 2, 5))
        timeout, catch_up = self._rng.choice((1_000, 2_000, 3_000)), self._rng.choice((-1, 0, 1_000))

        def change(config: dict[str, Any]) -> str:
            if draw < 0.5:
                member = next(m for m in config["members"] if m["host"] == self._cluster.host(name))
                if not member.get("arbiterOnly") and not member.get("witness") and member["votes"]:
                    member["priority"] = priority
                return f"give {name} priority {priority}"
            config["settings"]["electionTimeoutMillis"] = timeout
            config["settings"]["catchUpTimeoutMillis"] = catch_up
            return f"elect after {timeout} ms, catch up for {catch_up} ms"

        self._reconfiguring = True
        self._background(self._reconfig(primary, change))

    def _force_reconfig(self) -> None:
        """Another priority, by force, on any member that holds data, cut off from the others or not."""
        names = [machine.name for machine in self._cluster.members() if not machine.arbiter]
        at, name, priority = self._rng.choice(names), self._rng.choice(names), self._rng.choice((0.5, 1, 2, 5))

        def change(config: dict[str, Any]) -> str:
            member = next(m for m in config["members"] if m["host"] == self._cluster.host(name))
            if member["priority"]:
                member["priority"] = priority
            return f"give {name} priority {priority}, by force"

        self._background(self._change_config(at, change, force=True))

    def _remove_and_add(self) -> None:
        """A secondary is taken out of the set, and taken in again after a while."""
        cluster = self._cluster
        primary, config = cluster.primary(), cluster.config()
        others = [machine.name for machine in cluster.members() if not machine.arbiter and machine.name != primary]
        if primary is None or config is None or self._wiped or self._reconfiguring or len(others) < 2:
            return
        name, pause = self._rng.choice(others), self._rng.uniform(0.5, 5.0)
        self._reconfiguring = True
        self._background(self._take_out_and_in(primary, name, pause))

    async def _take_out_and_in(self, primary: str, name: str, pause: float) -> None:
        host = self._cluster.host(name)
        taken: list[dict[str, Any]] = []

        def take_out(config: dict[str, Any]) -> str:
            taken.extend(m for m in config["members"] if m["host"] == host)
            for member in taken:
                if member.pop("spareFor", None) is not None:  # it comes back as the spare that it was
                    member |= {"votes": 0, "priority": 0}
            config["members"] = [m for m in config["members"] if m["host"] != host]
            return f"remove {name}"

        def take_in(config: dict[str, Any]) -> str:
            if all(m["host"] != host for m in config["members"]):
                config["members"].append(taken[0])
            return f"add {name}"

        try:
            await self._change_config(primary, take_out)
            await asyncio.sleep(pause)
            while taken:
                leader = self._cluster.primary()
                config = self._cluster.config()
                if leader is not None and config is not None:
                    if config.member_at(host) is not None:
                        return
                    reply = await self._change_config(leader, take_in)
                    if reply is not None and "setDefaultRWConcern" in reply.get("errmsg", ""):
                        await self._ask(leader, {"setDefaultRWConcern": 1, "defaultWriteConcern": {"w": "majority"}})
                    if reply is not None and reply.get("code") == NOT_SAFE_TO_ADD:
                        taken[0]["priority"] = 0
                await asyncio.sleep(1.0)
        finally:
            self._reconfiguring = False

    def _change_votes(self) -> None:
        """A secondary loses its vote, or gets it back, by a safe reconfig."""
        primary = self._cluster.primary()
        others = [machine.name for machine in self._cluster.members() if machine.bears_data and machine.name != primary]
        if primary is not None and others and not self._wiped and not self._reconfiguring:
            self._reconfiguring = True
            host = self._cluster.host(self._rng.choice(others))

            def flip(config: dict[str, Any]) -> str:
                member = next(member for member in config["members"] if member["host"] == host)
                votes = 1 - member["votes"]
                member["votes"] = member["priority"] = votes
                return f"give {host} {votes} votes"

            self._background(self._reconfig(primary, flip))

    async def _reconfig(self, primary: str, change: Callable[[dict[str, Any]], str]) -> None:
        try:
            await self._change_config(primary, change)
        finally:
            self._reconfiguring = False

    async def _change_config(
        self, primary: str, change: Callable[[dict[str, Any]], str], *, force: bool = False
    ) -> dict[str, Any] | None:
        """Ask for the configuration, change it, and hand it in; change says what it did."""
        found = await self._ask(primary, {"replSetGetConfig": 1})
        if found is None or found["ok"] != 1:
            return found
        config = found["config"]
        summary = change(config)
        config["version"] += 1
        self._cluster.trace.add(primary, f"is asked to {summary}")
        return await self._ask(
            primary, {"replSetReconfig": config, **({"force": True} if force else {}), "maxTimeMS": 4_000}
        )
