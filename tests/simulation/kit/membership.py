"""What operators do in runs of `--changes`: hand over, change roles and settings, let an arbiter come and go.

With them come members that are gone for so long that a spare votes in their place.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tests.simulation.kit.administrators import Administrators
from tests.simulation.kit.cluster import SPARE_ARBITER
from tests.simulation.kit.machine import Machine

SWITCHES: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("chainingAllowed", (False, True)),
    ("fastFailover", (False, True)),
    ("catchUpTakeoverDelayMillis", (-1, 500, 3_000)),
    ("flowControlTargetLagSecs", (0, 1, 10)),
)


class Membership(Administrators):
    """Changes the set far more often than operators do."""

    def _step_up(self) -> None:
        """Somebody is asked to lead, whoever leads now."""
        name = self._rng.choice([machine.name for machine in self._cluster.members() if machine.bears_data])
        self._background(self._ask(name, {"replSetStepUp": 1, "skipDryRun": self._rng.random() < 0.5}))

    def _gone(self) -> None:
        """A member is away for so long that a spare takes its vote."""
        alive = self._cluster.alive()
        if alive:
            name = self._rng.choice(alive)
            self._cluster.kill(name)
            self._later(self._rng.uniform(5.0, 14.0), lambda: self._revive(name))

    def _maintenance(self) -> None:
        """A secondary serves no reads for a while."""
        primary = self._cluster.primary()
        others = [m.name for m in self._cluster.members() if m.bears_data and m.name != primary]
        if others:
            name = self._rng.choice(others)
            self._background(self._ask(name, {"replSetMaintenance": True}))
            self._later(self._rng.uniform(0.5, 5.0), lambda: self._end_maintenance(name))

    def _end_maintenance(self, name: str) -> None:
        self._background(self._ask(name, {"replSetMaintenance": False}))

    async def _end_all_maintenance(self) -> None:
        """Whatever became of the requests: no member is left in it."""
        for machine in self._cluster.members():
            reply: dict[str, Any] | None = {"ok": 1}
            while machine.bears_data and (reply is None or reply["ok"] == 1):
                reply = await self._ask(machine.name, {"replSetMaintenance": False})
                await asyncio.sleep(0.2)

    def _change_role(self) -> None:
        """A secondary is hidden or shown, or its priority changes, or it becomes 0.

        One without a vote becomes a spare, or is one no more; in a set with a delayed member the delay changes.
        """
        primary = self._cluster.primary()
        others = [m.name for m in self._cluster.members() if m.bears_data and m.name != primary]
        if primary is None or not others or self._reconfiguring:
            return
        host, priority = self._cluster.host(self._rng.choice(others)), self._rng.choice((0, 0.5, 1, 3))
        hidden = not priority and self._rng.random() < 0.7
        spare_after, delay = self._rng.choice((0, 1, 3)), self._rng.choice((0, 1, self._cluster.delay_s))

        def change(config: dict[str, Any]) -> str:
            member = next((row for row in config["members"] if row["host"] == host), None)
            if member is None or "spareFor" in member:
                return f"leave {host} as it is"
            if self._cluster.delay_s and not member["priority"]:
                member.pop("spareAfterSecs", None)
                member["secondaryDelaySecs"] = delay
                return f"delay {host} by {delay} s"
            if not member["votes"]:
                member["spareAfterSecs"] = spare_after
                return f"make {host} a spare after {spare_after} s"
            member["priority"], member["hidden"] = priority, hidden
            return f"give {host} priority {priority}{' and hide it' if hidden else ''}"

        self._reconfiguring = True
        self._background(self._reconfig(primary, change))

    def _switch(self) -> None:
        """A setting of elections, of sync sources or of flow control changes."""
        primary = self._cluster.primary()
        if primary is None or self._reconfiguring:
            return
        name, values = self._rng.choice(SWITCHES)
        value = self._rng.choice(values)

        def change(config: dict[str, Any]) -> str:
            config["settings"][name] = value
            return f"set {name} to {value}"

        self._reconfiguring = True
        self._background(self._reconfig(primary, change))

    def _arbiter(self) -> None:
        """The spare arbiter is added, or taken out again."""
        machine = self._cluster.machines.get(SPARE_ARBITER)
        if machine is None or self._reconfiguring or self._wiped or self._cluster.primary() is None:
            return
        self._reconfiguring = True
        self._background(self._bring_arbiter(machine) if machine.is_spare else self._take_arbiter_out(machine))

    async def _bring_arbiter(self, machine: Machine) -> None:
        cluster, row = self._cluster, {"host": machine.host, "arbiterOnly": True}
        if machine.process is None:
            cluster.start(machine.name)
        machine.is_spare = False
        try:
            while not self._is_named(machine, otherwise=False):
                leader = cluster.primary()
                if leader is not None:
                    cluster.trace.add(leader, f"is asked to add {row}")
                    await self._ask(leader, {"replSetAddMember": row, "maxTimeMS": 4_000})
                await asyncio.sleep(1.0)
        finally:
            self._reconfiguring = False

    async def _take_arbiter_out(self, machine: Machine) -> None:
        cluster = self._cluster
        try:
            while self._is_named(machine, otherwise=True):
                leader = cluster.primary()
                if leader is not None:
                    cluster.trace.add(leader, f"is asked to remove {machine.name}")
                    await self._ask(leader, {"replSetRemoveMember": str(machine.host), "maxTimeMS": 4_000})
                await asyncio.sleep(1.0)
            machine.is_spare = True
        finally:
            self._reconfiguring = False

    def _is_named(self, machine: Machine, *, otherwise: bool) -> bool:
        """Whether the primary's configuration has it. otherwise: the answer while there is no primary."""
        config = self._cluster.config()
        return otherwise if config is None else config.member_at(machine.host) is not None
