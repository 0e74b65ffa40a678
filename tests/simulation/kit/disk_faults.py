"""Disks that are full, slow or failing, that lose or change data, and members that come back with an empty one."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from functools import partial

import apsw

from tests.simulation.kit.disk import PLENTY
from tests.simulation.kit.errors import SimulationError
from tests.simulation.kit.fault_base import REPAIRED_WITHIN_S, FaultBase
from tests.simulation.kit.machine import DamagedEntry, Machine

STOPS_WITHIN_S = 25.0
"""After a sync that failed; work in a thread takes its time on a slow disk."""


class DiskFaults(FaultBase):
    """Harms disks; who has lost data copies anew."""

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
        name = self._rng.choice([machine.name for machine in cluster.members() if machine.name != primary])
        cluster.kill(name, wipe=True)
        self._later(self._rng.uniform(0.2, 7.0), lambda: self._revive(name))

    def _wipe_two(self) -> None:
        """Once a run: two members at once come back with empty disks, in a set that is well and keeps a majority."""
        cluster = self._cluster
        primary, config = cluster.primary(), cluster.config()
        others = [machine.name for machine in cluster.members() if machine.name != primary and not machine.arbiter]
        if self._wiped or self._reconfiguring or config is None or len(others) < 2 or not cluster.all_counted():
            return
        if len(config.voters) - 2 < config.majority_vote_count:
            return
        self._wiped = True
        for name in self._rng.sample(others, 2):
            cluster.kill(name, wipe=True)
            self._later(self._rng.uniform(0.2, 7.0), partial(self._revive, name))

    def _lose_wal(self) -> None:
        """Once a run: a member that is not primary dies, and its WAL is gone or cut when it starts again. It has to
        find out, and copies anew. Not where threads overlap: a checkpoint that was under way needs its WAL.
        """
        cluster = self._cluster
        primary, config = cluster.primary(), cluster.config()
        others = [machine for machine in cluster.members() if machine.name != primary and not machine.arbiter]
        if self._wiped or self._reconfiguring or config is None or not others or not cluster.all_counted():
            return
        if len(config.voters) - 1 < config.majority_vote_count or cluster.environment.overlap:
            return
        self._wiped = True
        machine, part = self._rng.choice(others), self._rng.choice((0.0, self._rng.random()))
        cluster.kill(machine.name)
        disk, path = machine.disk, os.path.join(machine.disk.folder, "replset.db-wal")
        if disk.exists(path):
            disk.truncate(path, int(disk.size(path) * part))
            cluster.trace.add(machine.name, f"has {part:.0%} of its WAL left")
            machine.state_at_death = None
            machine.may_have_lost_data = True
            for look in cluster.on_wal_loss:
                look(machine.name)
        self._later(self._rng.uniform(0.2, 7.0), lambda: self._revive(machine.name))

    def _damage_entry(self) -> None:
        """Once a run: a byte of a committed oplog entry changes on the disk of a member whose vote the others can do
        without. Nobody may take it over, and only that member may be found damaged.
        """
        cluster = self._cluster
        config = cluster.config()
        held = [machine for machine in cluster.members() if not machine.arbiter]
        if self._wiped or self._reconfiguring or config is None or not held or not cluster.all_counted():
            return
        machine, draw = self._rng.choice(held), self._rng.random()
        if machine.running is None or len(config.voters) - 1 < config.majority_vote_count:
            return
        store = machine.running.store
        sql = "SELECT ts, entry FROM oplog WHERE ts <= ? AND op != 'n' ORDER BY ts"
        try:
            rows = store._connection.execute(sql, (store.commit_point.ts,)).fetchall()
            if not rows or store._connection.in_transaction:
                return
            ts, entry = rows[int(draw * len(rows))]
            at = self._rng.randrange(4, len(entry) - 1)
            changed = entry[:at] + bytes((entry[at] ^ (1 << self._rng.randrange(8)),)) + entry[at + 1 :]
            store._connection.execute("UPDATE oplog SET entry = ? WHERE ts = ?", (changed, ts))
        except (apsw.BusyError, apsw.ThreadingViolationError, apsw.FullError):
            return  # a thread holds the lock, or the disk is full
        store.tail.clear()
        self._wiped = True
        cluster.damaged_entry = DamagedEntry(machine.name, ts, entry)
        cluster.trace.add(machine.name, f"has a changed byte in its entry {ts}")

    async def _copy_anew(self, machine: Machine) -> None:
        """An administrator has a member copied anew whose cut WAL broke the chain in the middle of its oplog. It found
        that itself; where only the newest entries are lost it copies by itself.
        """
        ends = self._cluster.loop.time() + REPAIRED_WITHIN_S
        while machine.running is None or machine.running.node.quarantine:
            if self._cluster.loop.time() > ends:
                raise SimulationError(f"{machine.name} stays in quarantine\n{self._cluster.summary()}")
            await self._ask(machine.name, {"replSetResync": 1})
            await asyncio.sleep(1)

    async def _repair_damage(self, damaged_entry: DamagedEntry) -> None:
        """An administrator has the damaged member copied anew, once it says so; what nobody noticed is put right."""
        machine = self._cluster.machines[damaged_entry.name]
        ends = self._cluster.loop.time() + REPAIRED_WITHIN_S
        while self._cluster.loop.time() < ends:
            member = machine.running
            if not await self._copied_anew(machine) and member is not None:
                with suppress(apsw.BusyError, apsw.ThreadingViolationError, apsw.FullError):
                    sql = "UPDATE oplog SET entry = ? WHERE ts = ? AND entry != ?"
                    member.store._connection.execute(sql, (damaged_entry.entry, damaged_entry.ts, damaged_entry.entry))
                    await asyncio.sleep(3)
                    if not member.node.quarantine:
                        return
            await asyncio.sleep(1)
        raise SimulationError(f"{damaged_entry.name} is still damaged\n{self._cluster.summary()}")

    async def _copied_anew(self, machine: Machine) -> bool:
        """Have a member in quarantine copied anew. False: it is in none."""
        if machine.running is None or not machine.running.node.quarantine:
            return False
        await self._ask(machine.name, {"replSetResync": 1})
        return True

    def _disk_full(self) -> None:
        """The disk is full for a while: writes are refused, nothing is damaged."""
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

    def _slow_disk(self) -> None:
        """One machine's disk takes many times as long for a while; at worst longer than an election timeout."""
        name = self._rng.choice(list(self._cluster.machines))
        machine, slowness = self._cluster.machines[name], self._rng.choice((5.0, 30.0, 200.0))
        machine.slowness = slowness
        self._cluster.trace.add(name, f"has a disk {slowness:.0f} times as slow")

        def fast_again() -> None:
            machine.slowness = 1.0
            self._cluster.trace.add(name, "has its fast disk again")

        self._later(self._rng.uniform(1.0, 8.0), fast_again)

    def _out_of_space(self) -> None:
        """No file grows for a while: commits fail, and a start may. A running member has to wait for disk space."""
        alive = self._cluster.alive()
        if not alive:
            return
        name = self._rng.choice(alive)
        machine = self._cluster.machines[name]
        disk = machine.disk
        if disk.is_full:
            return
        disk.is_full = machine.may_not_start = True
        self._cluster.trace.add(name, "is out of space")

        def make_room() -> None:
            disk.is_full = machine.disk.is_full = False
            self._cluster.trace.add(name, "has space again")
            self._later(1.0, settle)  # a start that failed a moment ago may only now say so

        def settle() -> None:
            if not machine.disk.is_full:
                machine.may_not_start = False
                self._revive(name)

        self._later(self._rng.uniform(0.5, 5.0), make_room)

    def _lose_pages(self) -> None:
        """Once a run: the disk of a member that is not primary loses pages of its database. SQLite says so to whoever
        reads one, and the member ends, at once or when it starts again; then its disk is emptied.
        """
        cluster = self._cluster
        primary, config = cluster.primary(), cluster.config()
        others = [machine for machine in cluster.members() if machine.name != primary and not machine.arbiter]
        if self._wiped or self._reconfiguring or config is None or not others or not cluster.all_counted():
            return
        machine = self._rng.choice(others)
        if len(config.voters) - 1 < config.majority_vote_count or machine.running is None:
            return
        path = os.path.join(machine.disk.folder, "replset.db")
        pages = machine.disk.damage_pages(path, self._rng, self._rng.choice((1, 3, 1_000)))
        if not pages:
            return
        self._wiped = True
        cluster.damaged.add(machine.name)
        cluster.trace.add(machine.name, f"has lost the pages {pages}")
        if self._rng.random() < 0.5:
            self._kill(machine.name, power_loss=False)

    async def _empty(self, name: str) -> None:
        """An administrator empties the disk of a damaged member, once the others are well, and starts it again."""
        cluster = self._cluster
        ends = cluster.loop.time() + REPAIRED_WITHIN_S
        if cluster.primary() == name:
            cluster.kill(name)  # SQLite still has all pages in its memory, so that nobody noticed
        while cluster.primary() in (None, name) or not cluster.all_counted(but=name):
            if cluster.loop.time() > ends:
                raise SimulationError(f"{name} is still damaged\n{cluster.summary()}")
            await asyncio.sleep(0.5)
        if name in cluster.damaged:
            self._revive(name)
            cluster.kill(name, wipe=True)
            cluster.start(name)

    def _failing_disk(self) -> None:
        """Syncs of one machine end with EIO for a while, or writes too. Whoever could not sync its WAL has to stop: it
        does not know what is on the disk any more.
        """
        alive = self._cluster.alive()
        if not alive or not self._cluster.journal_default:
            return
        name = self._rng.choice(alive)
        machine = self._cluster.machines[name]
        disk, process = machine.disk, machine.process
        if disk.is_full:
            return
        disk.failing = self._rng.choice((frozenset({"sync"}), frozenset({"sync", "write"})))
        self._cluster.trace.add(name, "has a disk that fails")

        def works_again() -> None:
            disk.failing = frozenset()

        def must_be_over() -> None:
            if machine.process is process and "replset.db-wal" in disk.unsynced and not self._cluster.is_paused(name):
                raise SimulationError(f"{name} goes on after a sync of its WAL failed")

        self._later(self._rng.uniform(0.1, 3.0), works_again)
        self._later(STOPS_WITHIN_S, must_be_over)

    def _later_revived(self, name: str) -> None:
        self.done["ended by its disk"] += 1
        if name in self._cluster.damaged:
            self._background(self._empty(name))
            return
        self._later(self._rng.uniform(0.2, 5.0), lambda: self._revive(name))
