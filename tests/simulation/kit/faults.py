"""What goes wrong in a seeded run: deaths, power cuts, partitions and bad links, one after the other, drawn."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import apsw

from replset.bson import ObjectId
from replset.commands.messages import request_document
from replset.core.member_state import MemberState
from replset.core.messages import HeartbeatRequest, MemberProgress, Position, ProgressRequest, VoteRequest
from replset.ids import HostPort, OpTime
from replset.storage.undo import rollback_in_progress
from tests.simulation.kit.cluster import FORGED_TERMS, SET_NAME, SPARE, DamagedEntry, Machine, RunningNode, SimCluster
from tests.simulation.kit.disk import PLENTY
from tests.simulation.kit.errors import SimulationError
from tests.simulation.kit.network import QUIET, LinkFaults
from tests.simulation.kit.wire import NoAnswerError

SMALL_OPLOG = 64 << 10
REPAIRED_WITHIN_S = 60.0
"""After the last fault; what takes longest is an administrator who waits for a primary."""
STOPS_WITHIN_S = 25.0
"""After a sync that failed; work in a thread takes its time on a slow disk."""
BAD_LINKS = LinkFaults(slow=0.05, slow_ms=600.0, stall=0.004, stall_ms=4_000.0)


NOT_SAFE_TO_ADD = 103  # beside a primary and an arbiter a secondary comes with priority 0 at first
CLOCK_JUMPS_MS = (-60_000, -2_000, -300, 300, 2_000, 60_000, 600_000)


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
    clock_jump: int = 0
    slow_disk: int = 0
    out_of_space: int = 0
    resend_message: int = 0
    lasting_one_way: int = 0
    make_too_stale: int = 0
    reconfigure: int = 0
    remove_and_add: int = 0
    strike_at_change: int = 0
    hit_undo: int = 0
    resync: int = 0
    freeze: int = 0
    bridge: int = 0
    add_new: int = 0
    failing_disk: int = 0
    damage_entry: int = 0
    stranger: int = 0
    wipe_two: int = 0
    lose_wal: int = 0
    lose_pages: int = 0
    force_reconfig: int = 0
    pause_s: tuple[float, float] = (0.5, 5.0)


OLD_KINDS = (
    *("kill", "power_loss", "power_loss_of_all", "isolate_primary", "isolate_someone", "one_way", "kill_primary"),
    *("bad_links", "pause", "stop_cleanly", "step_down", "disk_full", "change_votes", "wipe"),
)
NEW_KINDS = (
    *("clock_jump", "slow_disk", "out_of_space", "resend_message", "lasting_one_way", "make_too_stale", "reconfigure"),
    *("remove_and_add", "strike_at_change"),
)


NEWER_KINDS = (
    "hit_undo",
    "resync",
    "freeze",
    "bridge",
    "add_new",
    "failing_disk",
    "damage_entry",
    "stranger",
    "wipe_two",
)
NEWEST_KINDS = ("lose_wal",)
RARE_KINDS = ("lose_pages", "force_reconfig")
"""In one run of ten each, by a generator of their own: recorded seeds stay as they were drawn."""
VOTE_CHANGES = ("change_votes", "remove_and_add", "add_new")


NO_FAULTS = FaultMix(**dict.fromkeys(OLD_KINDS + NEW_KINDS + NEWER_KINDS + NEWEST_KINDS + RARE_KINDS, 0))  # type: ignore[arg-type]


def draw_mix(rng: random.Random) -> FaultMix:
    """Some kinds are left out of a run, some come often: what never happens together in an average run does in one."""
    chosen = {name: rng.choice((0, 1, 1, 2, 4)) for name in OLD_KINDS + NEW_KINDS}
    chosen["resend_message"] *= 2
    chosen["strike_at_change"] *= 2
    if not any(chosen.values()):
        chosen["kill"] = 1
    chosen |= {name: rng.choice((0, 0, 1, 1, 2)) for name in NEWER_KINDS}
    chosen["hit_undo"] *= 2
    pause_s = rng.choice(((0.5, 5.0), (0.2, 2.0), (1.0, 7.0)))
    chosen |= {name: rng.choice((0, 0, 1, 1, 2)) for name in NEWEST_KINDS}
    return FaultMix(**chosen, pause_s=pause_s)  # type: ignore[arg-type]


def draw_rare(rng: random.Random, mix: FaultMix) -> FaultMix:
    """Damaged pages and forced configurations. Where configurations are forced no votes change: then all of them have
    the same majorities, and every invariant still holds, whichever configuration wins.
    """
    rare = {name: 4 for name in RARE_KINDS if rng.random() < 0.1}
    if "force_reconfig" in rare:
        rare |= dict.fromkeys(VOTE_CHANGES, 0)
    return replace(mix, **rare)


class Faults:
    """Runs faults until `stop`, then puts everything right."""

    def __init__(self, cluster: SimCluster, mix: FaultMix | None = None, hosts: list[HostPort] | None = None) -> None:
        """hosts: where clients go; a member that is added joins them."""
        self._cluster = cluster
        self._hosts = [] if hosts is None else hosts
        self._mix = mix or FaultMix()
        self._rng: random.Random = cluster.rng_faults
        self._repairs: set[asyncio.Task[None]] = set()  # restarts and heals on their way
        self._wiped = False
        self._reconfiguring = False
        self._over = False
        self._ends = 0.0
        self.done: Counter[str] = Counter()
        cluster.on_disk_death.append(self._later_revived)

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
            self._clock_jump: mix.clock_jump,
            self._slow_disk: mix.slow_disk,
            self._out_of_space: mix.out_of_space,
            self._resend_message: mix.resend_message,
            self._lasting_one_way: mix.lasting_one_way,
            self._make_too_stale: mix.make_too_stale,
            self._reconfigure: mix.reconfigure,
            self._remove_and_add: mix.remove_and_add,
            self._strike_at_change: mix.strike_at_change,
            self._hit_undo: mix.hit_undo,
            self._resync: mix.resync,
            self._freeze: mix.freeze,
            self._bridge: mix.bridge,
            self._add_new: mix.add_new,
            self._failing_disk: mix.failing_disk,
            self._damage_entry: mix.damage_entry,
            self._stranger: mix.stranger,
            self._wipe_two: mix.wipe_two,
            self._lose_wal: mix.lose_wal,
            self._lose_pages: mix.lose_pages,
            self._force_reconfig: mix.force_reconfig,
        }
        self._ends = cluster.loop.time() + seconds
        while cluster.loop.time() < self._ends:
            await asyncio.sleep(self._rng.uniform(*mix.pause_s))
            fault = self._rng.choices(list(kinds), list(kinds.values()))[0]
            self.done[fault.__name__[1:]] += 1
            fault()
        self._over = True
        ends = cluster.loop.time() + REPAIRED_WITHIN_S
        while self._repairs:
            for repair in (await asyncio.wait(self._repairs, timeout=1.0))[0]:
                repair.result()
            if cluster.loop.time() > ends:
                raise SimulationError(f"not put right within {REPAIRED_WITHIN_S:g} s\n{cluster.summary()}")
        cluster.network.faults = QUIET
        cluster.heal()
        if cluster.damaged_entry is not None:
            await self._repair_damage(cluster.damaged_entry)
        for name in sorted(cluster.damaged):
            await self._empty(name)
        for machine in cluster.members():
            if machine.may_have_lost_data:
                await self._copy_anew(machine)

    def _later(self, seconds: float, do: Callable[[], None]) -> None:
        """Put something right again after a while."""

        async def wait() -> None:
            await asyncio.sleep(seconds)
            do()

        task = self._cluster.loop.create_task(wait())
        self._repairs.add(task)
        task.add_done_callback(self._repairs.discard)

    def _at_most(self, seconds: float) -> float:
        """No longer than the faults go on."""
        return max(0.0, min(seconds, self._ends - self._cluster.loop.time()))

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
        self._cluster.kill(name, power_loss=power_loss and self._cluster.journal_default)
        self._later(self._rng.uniform(0.2, 7.0), lambda: self._revive(name))

    def _revive(self, name: str) -> None:
        """Start it again, unless somebody did, or when there is no disk space yet: then later."""
        machine = self._cluster.machines[name]
        if machine.disk.is_full:
            self._later(1.0, lambda: self._revive(name))
        elif machine.process is None:
            self._cluster.restart(name)

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
            if member is not None and member.node.quarantine:
                await self._ask(damaged_entry.name, {"replSetResync": 1})
            elif member is not None:
                with suppress(apsw.BusyError, apsw.ThreadingViolationError, apsw.FullError):
                    sql = "UPDATE oplog SET entry = ? WHERE ts = ? AND entry != ?"
                    member.store._connection.execute(sql, (damaged_entry.entry, damaged_entry.ts, damaged_entry.entry))
                    await asyncio.sleep(3)
                    if not member.node.quarantine:
                        return
            await asyncio.sleep(1)
        raise SimulationError(f"{damaged_entry.name} is still damaged\n{self._cluster.summary()}")

    def _stranger(self) -> None:
        """A stranger sends a message as a member: of a term that cannot be, of entries that nobody has, or for another
        set of the same name. Positions and terms that could be true are for members with a key only.
        """
        cluster = self._cluster
        rows = [row for row in cluster.running_nodes if row.node.config is not None]
        if not rows:
            return
        row = self._rng.choice(rows)
        node, config = row.node, row.node.config
        assert config is not None
        claimed = self._rng.choice(config.members)
        term = self._rng.choice(((1 << 63) - 1, (1 << 63) - 2, 1 << 53, node.term + (1 << 21)))  # nobody believes it
        newest = OpTime(node.term, node.position.last_applied.ts + (1_000 << 31))
        kinds = ["heartbeat", "votes", "another set"] + ["position"] * cluster.environment.keyed
        kind = self._rng.choice(kinds)
        version, config_term, incarnation = config.version, config.term, claimed.incarnation or ""
        set_id = config.settings.replica_set_id
        body: HeartbeatRequest | VoteRequest | ProgressRequest
        if kind == "votes":
            body = VoteRequest(
                SET_NAME, term, claimed.id, incarnation, version, config_term, newest, False, "forged", set_id
            )
        elif kind == "position":
            place = Position(newest, newest, 0, 0)
            progress = tuple(MemberProgress(m.id, m.incarnation or "", place) for m in config.members)
            body = ProgressRequest(claimed.id, node.term, version, config_term, progress, set_id)
        else:
            if kind == "another set":
                term, set_id = node.term + FORGED_TERMS, ObjectId(self._rng.randbytes(12))
            body = HeartbeatRequest(
                SET_NAME, claimed.host, claimed.id, term, version, config_term, None, incarnation, False, set_id
            )
        cluster.trace.add(row.name, f"hears a stranger: {kind} {term}")
        self._background(self._send_forged(row.name, request_document(body)))

    async def _send_forged(self, name: str, document: dict[str, object]) -> None:
        await self._ask(name, document)

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

    def _clock_jump(self) -> None:
        """Somebody sets a wall clock wrong, and half of the time right again."""
        name, by_ms = self._rng.choice(list(self._cluster.machines)), self._rng.choice(CLOCK_JUMPS_MS)
        self._set_clock(name, by_ms)
        if self._rng.random() < 0.5:
            self._later(self._rng.uniform(0.5, 8.0), lambda: self._set_clock(name, -by_ms))

    def _set_clock(self, name: str, by_ms: int) -> None:
        if self._cluster.has_delayed:
            return  # it would be delayed by as much as clocks are wrong
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

    def _make_too_stale(self) -> None:
        """A member is away while the others write more than their oplogs keep."""
        cluster = self._cluster
        primary = cluster.primary()
        behind = [name for name in cluster.alive() if name != primary and not cluster.machines[name].arbiter]
        if primary is None or not behind or cluster.environment.oplog_bytes > SMALL_OPLOG:
            return
        name = self._rng.choice(behind)
        if self._rng.random() < 0.5:
            cluster.kill(name)
            self._later(self._rng.uniform(3.0, 7.0), lambda: self._revive(name))
        else:
            self._cut_for_a_while([name], "both", (3.0, 7.0))
        documents = 2 * cluster.environment.oplog_bytes // 900
        self._background(self._fill(primary, documents))

    async def _fill(self, primary: str, documents: int) -> None:
        """Inserts that nobody is promised, but that every member must agree on."""
        client = self._cluster.client()
        padding = "x" * 800
        for at in range(0, documents, 10):
            batch = [{"_id": f"fill{self._cluster.loop.now_ms}-{n}", "padding": padding} for n in range(at, at + 10)]
            try:
                await client.call(self._cluster.host(primary), "app", {"insert": "scratch0", "documents": batch}, 4.0)
            except NoAnswerError:
                break
        client.close()

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
        """The spare machine becomes a member, once a run; who adds it does not give up."""
        cluster = self._cluster
        spare = cluster.machines.get(SPARE)
        if spare is None or not spare.is_spare or self._reconfiguring or cluster.primary() is None:
            return
        spare.is_spare = False
        self._hosts.append(spare.host)
        cluster.start(SPARE)
        row: dict[str, object] = {"host": spare.host}
        if self._rng.random() < 0.3:
            row |= {"votes": 0, "priority": 0}
        self._reconfiguring = True
        self._background(self._add(row))

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
                if not member.get("arbiterOnly") and member["votes"]:
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
                    if reply is not None and reply.get("code") == NOT_SAFE_TO_ADD:
                        taken[0]["priority"] = 0
                await asyncio.sleep(1.0)
        finally:
            self._reconfiguring = False

    def _change_votes(self) -> None:
        """A secondary loses its vote, or gets it back, by a safe reconfig."""
        primary = self._cluster.primary()
        others = [
            machine.name for machine in self._cluster.members() if not machine.arbiter and machine.name != primary
        ]
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

    def _lasting_one_way(self) -> None:
        """One member does not hear one other one for long, while everybody else hears both."""
        source, target = self._rng.sample(list(self._cluster.machines), 2)
        network = self._cluster.network
        network.cut(source, target)
        self._cluster.trace.add("network", f"nothing from {source} reaches {target}")

        def uncut() -> None:
            network.uncut(source, target)
            self._cluster.trace.add("network", f"{target} hears {source} again")

        self._later(self._at_most(self._rng.uniform(8.0, 25.0)), uncut)

    def _bridge(self) -> None:
        """Two members do not hear each other for long, while everybody else hears both."""
        one, other = self._rng.sample(list(self._cluster.machines), 2)
        network = self._cluster.network
        network.cut(one, other)
        network.cut(other, one)
        self._cluster.trace.add("network", f"{one} and {other} do not hear each other")

        def whole() -> None:
            network.uncut(one, other)
            network.uncut(other, one)
            self._cluster.trace.add("network", f"{one} and {other} hear each other again")

        self._later(self._at_most(self._rng.uniform(8.0, 25.0)), whole)

    def _cut_for_a_while(self, group: list[str], direction: str, seconds: tuple[float, float] = (0.5, 9.0)) -> None:
        self._cluster.cut(group, direction=direction)
        self._later(self._rng.uniform(*seconds), self._cluster.heal)

    def _resend_message(self) -> None:
        """A message of one member to another one comes twice, now or much later."""
        heard = self._cluster.network.recent_messages()
        if heard:
            message, wait = self._rng.choice(heard), self._rng.choice((0.0, 0.5, 3.0, 10.0))

            async def again() -> None:
                await asyncio.sleep(wait)
                await self._cluster.network.resend_message(message)

            self._background(again())

    def _bad_links(self) -> None:
        self._cluster.network.faults = BAD_LINKS
        self._cluster.trace.add("network", "bad links")
        self._later(self._rng.uniform(2.0, 6.0), self._good_links)

    def _good_links(self) -> None:
        self._cluster.network.faults = QUIET
        self._cluster.trace.add("network", "good links")
