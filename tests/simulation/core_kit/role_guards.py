"""The guards of role hooks, one beside each core, and what they promise: never two holders, and no first write of a
primary while another member holds the role. A guard does what features/role_hook/guard.py does, on the virtual clock.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from replset.core.messages import RoleReleased
from replset.ids import HostPort
from tests.simulation.core_kit.cluster import CoreCluster
from tests.simulation.core_kit.machine import CoreMachine

POLL_MS = 20
CALL_MS = (5, 60, 300)


@dataclass
class Guard:
    """holds: what the outside sees, an address say. until, told: from the member's last word. ends_at: of the call of
    the hook under way, and whether it is a gain.
    """

    holds: bool = False
    until: int = 0
    start_number: int = 0
    is_gain: bool = False
    ends_at: int | None = None
    must_release: bool = True  # at each start of the process, first of all
    said: int = field(default=-1)  # the start number for which the release is known to the member


class RoleGuards:
    """Watches a cluster of cores whose members all have a role hook."""

    def __init__(self, cluster: CoreCluster, hook_ms: int) -> None:
        self.cluster = cluster
        self.hook_ms = hook_ms
        self.rng = random.Random(f"{hook_ms} {cluster.rng.random()}")
        self.guards: dict[HostPort, Guard] = {}
        self.gains = 0
        cluster.role_hook_ms = hook_ms
        cluster.holds_role = self.holds_role
        cluster.on_append = self.check_append
        for machine in cluster.machines.values():
            machine.boot()
        self._poll()

    def guard(self, machine: CoreMachine) -> Guard:
        return self.guards.setdefault(machine.host, Guard())

    def holds_role(self, machine: CoreMachine) -> bool:
        """What the member says of itself: it does until its guard has said otherwise, in this run of the process."""
        return self.guard(machine).said != machine.start_number

    def on_power_loss(self, machine: CoreMachine) -> None:
        """The whole machine is gone, and with it the guard and what it held."""
        self.guards[machine.host] = Guard()

    def check_append(self, writer: CoreMachine) -> None:
        if writer.node.writable and writer.accepting != writer.node.term:  # the first entry of its term
            for machine in self.cluster.machines.values():
                held = machine is not writer and self.guard(machine).holds
                assert not held, f"{writer.host} writes in term {writer.node.term} while {machine.host} has the role"

    def _poll(self) -> None:
        for machine in self.cluster.machines.values():
            if machine.alive and machine.is_dark:
                self.on_power_loss(machine)
            self._step(machine, self.guard(machine))
        holding = [host for host, guard in self.guards.items() if guard.holds]
        assert len(holding) <= 1, f"two members hold the role at {self.cluster.now}: {holding}"
        self.cluster.at(POLL_MS, self._poll)

    def _step(self, machine: CoreMachine, guard: Guard) -> None:
        now = self.cluster.now
        if machine.alive and guard.start_number != machine.start_number:
            guard.start_number, guard.must_release, guard.until = machine.start_number, True, 0
        if machine.alive:
            guard.until = machine.node.role_until(now)
            if guard.until > now:
                guard.said = -1
        wanted = machine.alive and guard.until > now and not guard.must_release
        if guard.ends_at is not None and guard.is_gain and not wanted:
            guard.ends_at = None  # the gain is broken off; what it had done is released
            guard.must_release = True
        if guard.ends_at is not None:
            if now < guard.ends_at:
                return
            guard.ends_at = None
            if not guard.is_gain:
                guard.holds = guard.must_release = False
        if wanted and not guard.holds:
            guard.holds, guard.is_gain, guard.ends_at = True, True, now + self.rng.choice(CALL_MS)
            self.gains += 1
        elif not wanted and (guard.holds or guard.must_release):
            guard.is_gain, guard.ends_at = False, now + min(self.hook_ms, self.rng.choice(CALL_MS))
        elif machine.alive and not wanted and guard.said != machine.start_number and guard.ends_at is None:
            guard.said = machine.start_number
            machine.feed(RoleReleased())
