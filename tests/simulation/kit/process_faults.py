"""Processes that die or stand still, wrong clocks, and faults at the moment when a member changes its state."""

from __future__ import annotations

from replset.core.member_state import MemberState
from replset.ids import OpTime
from replset.storage.undo import rollback_in_progress
from tests.simulation.kit.fault_base import FaultBase
from tests.simulation.kit.machine import RunningNode

CLOCK_JUMPS_MS = (-60_000, -2_000, -300, 300, 2_000, 60_000, 600_000)
HOUR_MS = 3_600_000
FAR_JUMPS_MS = tuple(sign * hours * HOUR_MS for sign in (1, 1, -1) for hours in (1, 24 * 30, 24 * 3650))


class ProcessFaults(FaultBase):
    """Kills and pauses members, at any moment or at a bad one."""

    def _kill_one(self) -> None:
        self._kill(self._rng.choice(self._cluster.alive() or [""]), power_loss=False)

    def _kill_primary(self) -> None:
        self._kill(self._cluster.primary() or "", power_loss=self._rng.random() < 0.4)

    def _power_loss(self) -> None:
        self._kill(self._rng.choice(self._cluster.alive() or [""]), power_loss=True)

    def _power_loss_of_all(self) -> None:
        for name in self._cluster.alive():
            self._kill(name, power_loss=True)

    def _pause(self) -> None:
        """Half of the time it is the primary, which may think that it still is when it goes on."""
        primary = self._cluster.primary()
        alive = self._cluster.alive()
        if alive:
            name = primary if primary is not None and self._rng.random() < 0.5 else self._rng.choice(alive)
            self._cluster.pause(name, self._rng.uniform(0.5, 6.0))

    def _clock_jump(self) -> None:
        """Somebody sets a wall clock wrong, and half of the time right again."""
        name, by_ms = self._rng.choice(list(self._cluster.machines)), self._rng.choice(CLOCK_JUMPS_MS)
        self._set_clock(name, by_ms)
        if self._rng.random() < 0.5:
            self._later(self._rng.uniform(0.5, 8.0), lambda: self._set_clock(name, -by_ms))

    def _far_clock(self) -> None:
        """A wall clock is wrong by an hour, a month or ten years for a while, half of the time the primary's."""
        primary = self._cluster.primary()
        names = list(self._cluster.machines)
        name = primary if primary is not None and self._rng.random() < 0.5 else self._rng.choice(names)
        by_ms = self._rng.choice(FAR_JUMPS_MS)
        self._jump(name, by_ms)
        self._later(self._rng.uniform(0.5, 8.0), lambda: self._jump(name, -by_ms))

    def _set_clock(self, name: str, by_ms: int) -> None:
        if not self._cluster.delay_s:  # as recorded seeds were drawn; `_far_clock` has no such exception
            self._jump(name, by_ms)

    def _jump(self, name: str, by_ms: int) -> None:
        self._cluster.machines[name].clock.jump(by_ms)
        self._cluster.trace.add(name, f"has its clock set by {by_ms} ms")

    def _strike_at_change(self) -> None:
        """The next member that comes into some state is hit in that very moment, or a little later."""
        state = self._rng.choice(
            (
                MemberState.PRIMARY,
                MemberState.PRIMARY,
                MemberState.ROLLBACK,
                MemberState.STARTUP2,
                MemberState.RECOVERING,
            )
        )
        fault = self._rng.choice(("kill", "power", "cut", "pause", "clock", "voters"))
        delay_s = self._rng.choice((0.0, 0.002, 0.02, 0.2))
        waiting = [True]

        def look(row: RunningNode) -> None:
            if waiting[0] and row.state is state and row.changed:
                end()
                self._later(delay_s, lambda: self._strike(row.name, fault))

        def end() -> None:
            if waiting[0]:
                waiting[0] = False
                self._cluster.loop.call_soon(self._cluster.on_change.remove, look)

        self._cluster.on_change.append(look)
        self._later(self._at_most(15.0), end)

    def _hit_undo(self) -> None:
        """The primary is cut off, so that it rolls back later. The next member that has done one undo step of
        several dies before the next step.
        """
        primary = self._cluster.primary()
        if primary is not None:
            self._cut_for_a_while([primary], "both", (4.0, 9.0))
        newest: dict[str, OpTime] = {}
        fault, delay_s = self._rng.choice(("kill", "power")), self._rng.choice((0.0, 0.0, 0.002, 0.02))
        waiting = [True]

        def look(row: RunningNode) -> None:
            member = row.machine.running
            if row.state is not MemberState.ROLLBACK or member is None or row.machine.arbiter:
                newest.pop(row.name, None)
                return
            now = member.store.last_applied
            before = newest.setdefault(row.name, now)
            newest[row.name] = now
            if waiting[0] and now < before and rollback_in_progress(member.store) is not None:
                end()
                self.done["struck between undo steps"] += 1
                self._later(delay_s, lambda: self._strike(row.name, fault))

        def end() -> None:
            if waiting[0]:
                waiting[0] = False
                self._cluster.loop.call_soon(self._cluster.on_change.remove, look)

        self._cluster.on_change.append(look)
        self._later(self._at_most(20.0), end)

    def _strike(self, name: str, fault: str) -> None:
        cluster = self._cluster
        if self._over or cluster.machines[name].process is None:
            return
        cluster.trace.add(name, f"is ambushed: {fault}")
        match fault:
            case "kill" | "power":
                self._kill(name, power_loss=fault == "power")
            case "cut":
                self._cut_for_a_while([name], self._rng.choice(("both", "in", "out")))
            case "pause":
                cluster.pause(name, self._rng.uniform(0.5, 4.0))
            case "clock":
                self._set_clock(name, self._rng.choice((-60_000, -2_000)))
            case _:
                others = [other for other in cluster.alive() if other != name]
                for other in self._rng.sample(others, min(len(others), 2)):
                    self._kill(other, power_loss=self._rng.random() < 0.5)
