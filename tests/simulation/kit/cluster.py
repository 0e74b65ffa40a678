"""A replica set of whole members on virtual time: start, kill, take the power, cut, heal; and a trace of it all.

Everything random comes from one seed, each concern with its own generator, so that a new draw in one does not shift
the others.
"""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import logging
import os
import random
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from replset.config import ReplSetConfig
from replset.core.member_state import MemberState
from replset.errors import CorruptDataError
from replset.features.archive import archive_lease, archiver
from replset.features.archive.feature import ArchiveOptions
from replset.features.compared_copies import differences
from replset.features.crud import insert, search_batch, write_batch
from replset.ids import HostPort
from replset.member import options as member_options
from replset.member.options import MemberOptions
from replset.replication import rollback
from replset.storage import member_file, store
from tests.simulation.kit import archives
from tests.simulation.kit.archives import SimArchive
from tests.simulation.kit.clock import SimClock
from tests.simulation.kit.disk import SimDisk
from tests.simulation.kit.environment import (
    DEFAULT_ENVIRONMENT,
    SEGMENT_BYTES,
    SESSION_TIMEOUT_MS,
    Environment,
    step_sizes,
)
from tests.simulation.kit.error_log import ErrorLog
from tests.simulation.kit.errors import SimulationError
from tests.simulation.kit.loop import Process, SimLoop, current_process
from tests.simulation.kit.machine import DamagedEntry, Machine, RunningNode
from tests.simulation.kit.network import NetworkPort, SimNetwork
from tests.simulation.kit.releases import is_loopback, last_release
from tests.simulation.kit.threads import SIM_THREADING
from tests.simulation.kit.trace import Trace
from tests.simulation.kit.wire import SimClient
from tests.simulation.kit.workers import SimWorkers

T = TypeVar("T")
SET_NAME, OTHER_SET_NAME = "rs0", "rs1"
ARCHIVE_SECS = 2.0
CONVERGES_WITHIN_S = 90.0
SPARE = "n"
SPARE_ARBITER = "z"
FORGED_TERMS = 1_000
"""So far above its own a member hears another set's term; no run has half as many elections."""
GUARDED = (member_file, store)
"""Modules whose locks the loop and its threads share."""
SETTINGS: dict[str, object] = {
    "electionTimeoutMillis": 2_000,
    "heartbeatIntervalMillis": 500,
    "heartbeatTimeoutSecs": 2,
}
MANY_STEPS = 1_000
FASTEST_FOLDER = "/dev/shm" if os.path.isdir("/dev/shm") else None


def _this_tree(module: str) -> Any:
    return importlib.import_module(f"replset.{module}")


class SimCluster:
    """Use as a context manager. `members` data-bearing ones named a, b, c...; arbiters x, y...; witnesses v, w; a
    spare one n.
    """

    def __init__(
        self,
        members: int = 3,
        arbiters: int = 0,
        seed: int = 0,
        *,
        witnesses: int = 0,
        environment: Environment = DEFAULT_ENVIRONMENT,
        spare: bool = False,
        spare_arbiter: bool = False,
        options: Mapping[str, Mapping[str, object]] | None = None,
        journal_default: bool = True,
        expect_members: tuple[str, ...] = (),
        beside: SimCluster | None = None,
        left_out: Collection[str] = (),
        of_last_release: Collection[str] = (),
    ) -> None:
        """beside: the set at another site, on the same network, with other names: h, i... and o, p; close it first.
        spare: one more machine, which is no member until it is added. options: of members, in the configuration.
        journal_default: writeConcernMajorityJournalDefault. expect_members: an option of every member. left_out:
        features that members start without. of_last_release: the machines that run it until a test says otherwise.
        """
        self.seed = f"{seed}" if beside is None else f"{seed} site 2"
        self._beside = beside
        self.set_name = SET_NAME if beside is None else OTHER_SET_NAME
        self.loop = SimLoop() if beside is None else beside.loop
        self.environment = environment
        self._options = options or {}
        self.delay_s = max((int(str(row.get("secondaryDelaySecs", 0))) for row in self._options.values()), default=0)
        self.journal_default = journal_default
        self.expect_members = expect_members
        self._undo_step_before, rollback.UNDO_STEP_ENTRIES = rollback.UNDO_STEP_ENTRIES, environment.undo_step
        self._statements_before, insert.GROUP_STATEMENTS = insert.GROUP_STATEMENTS, environment.group_statements
        search_batch.GROUP_STATEMENTS = write_batch.GROUP_STATEMENTS = environment.group_statements
        self._answers_before = differences.SPANS_MAX, differences.ROWS_BYTES
        differences.SPANS_MAX, differences.ROWS_BYTES = environment.answer_spans, environment.answer_bytes
        for module in GUARDED:
            module.threading = SIM_THREADING  # type: ignore[attr-defined]
        self._is_loopback_before, member_options.is_loopback = member_options.is_loopback, is_loopback
        self.rng_faults = self.random_for("faults")
        self.rng_crashes = self.random_for("crashes")
        self.rng_releases = self.random_for("releases")
        self.rng_copies = self.random_for("copied dbpaths")
        self.network = SimNetwork(self.loop, self.random_for("network")) if beside is None else beside.network
        self._left_out = left_out
        self.archive = SimArchive(self.random_for("archive")) if environment.archives else None
        self._lease_before, archive_lease.LEASE_MS = archive_lease.LEASE_MS, archives.LEASE_MS  # type: ignore[misc]
        archiver.LEASE_MS = archives.LEASE_MS  # type: ignore[misc]
        self.root = tempfile.mkdtemp(prefix="replset-sim-", dir=FASTEST_FOLDER)
        self.trace = Trace(self.loop, self.root) if beside is None else beside.trace
        self.machines: dict[str, Machine] = {}
        for n in range(members + arbiters):
            bearing, others = ("abcdefg", "xyz") if beside is None else ("hijklm", "opq")
            name = bearing[n] if n < members else others[n - members]
            self.machines[name] = self._new_machine(name, arbiter=n >= members)
        for name in "vw"[:witnesses]:
            self.machines[name] = self._new_machine(name, arbiter=False, witness=True)
        if spare:
            self.machines[SPARE] = self._new_machine(SPARE, arbiter=False)
            self.machines[SPARE].is_spare = True
        if spare_arbiter:
            self.machines[SPARE_ARBITER] = self._new_machine(SPARE_ARBITER, arbiter=True)
            self.machines[SPARE_ARBITER].is_spare = True
        for name in of_last_release:
            self.machines[name].is_of_last_release = True
        self.clients = Process("clients")
        self.broken: list[str] = []
        self.primaries_ever: list[str] = []  # who became primary, in order
        self.elections: Counter[str] = Counter()  # how many of these stood for which reason
        self.resyncs = 0  # how often a member that had data began to copy anew
        self.running_nodes: list[RunningNode] = []  # members that are up
        self.on_change: list[
            Callable[[RunningNode], None]
        ] = []  # its state, term, primary, commit point or disk changed
        self.on_step: list[Callable[[], None]] = []
        self.on_many_steps: list[Callable[[], None]] = []
        self._next_many = MANY_STEPS
        self.damaged_entry: DamagedEntry | None = None
        self.damaged: set[str] = set()  # members whose database lost pages: no judge reads it until it is a copy
        self.auto_repair: bool | None = None  # see Plan
        self.rotted: set[str] = set()  # who was rotten
        self.rotten = ""  # the member whose disk changed documents, until that is put right
        self.on_wipe: list[Callable[[str], None]] = []
        self.on_wal_loss: list[Callable[[str], None]] = []
        self.on_disk_death: list[Callable[[str], None]] = []  # a member ended because its disk failed
        self.loop.on_step = self._step if beside is None else self._step_of_both
        self._closing: list[SimDisk] = []
        self._errors = ErrorLog(self._note_error)
        self._errors.begin()

    def _note_error(self, process: str, text: str) -> None:
        machine = next((m for m in self.machines.values() if m.process and m.process.name == process), None)
        if machine is not None and not self.is_unsound(machine):
            self.broken.append(f"{machine.name} logs an error: {text}")

    def random_for(self, concern: str) -> random.Random:
        """A generator of its own for each concern; strings seed it the same under every PYTHONHASHSEED."""
        return random.Random(f"{self.seed} {concern}")

    def _new_machine(self, name: str, *, arbiter: bool, witness: bool = False) -> Machine:
        rng, skew = self.random_for(f"machine {name}"), self.environment.skew_ms
        clock = SimClock(self.loop, offset_ms=rng.randrange(-skew, skew), drift=rng.uniform(-0.0005, 0.0005))
        disk = SimDisk(os.path.join(self.root, name, "0"))
        # The dbpath's own name is there for good: the machine had it before the member came.
        return Machine(name, HostPort(f"{name}:27017"), arbiter, witness, clock, rng, disk)

    def __enter__(self) -> SimCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- running

    def run(self, work: Awaitable[T]) -> T:
        """Drive the loop until `work` is done. What it starts belongs to no member."""

        async def body() -> T:
            return await work

        return self.loop.run_until_complete(body())

    def run_for(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    def run_until(self, condition: Callable[[], bool], within_s: float, what: str = "") -> None:
        """Look every 50 ms; SimulationError when it does not come true in time."""

        async def wait() -> None:
            ends = self.loop.time() + within_s
            while not condition():
                if self.loop.time() > ends:
                    name = what or getattr(condition, "__name__", "the condition")
                    raise SimulationError(f"not within {within_s:g} s: {name}\n{self.summary()}")
                await asyncio.sleep(0.05)

        self.run(wait())

    def _step_of_both(self) -> None:
        assert self._beside is not None
        self._beside._step()
        self._step()

    def _step(self) -> None:
        for row in self.running_nodes:
            state = row.node_state
            if state.state is not row.state or state.term != row.term or state.primary_id != row.primary:
                self._note_state(row)
                row.changed = True
            elif state.commit_point is row.point and not row.machine.disk.changed:
                continue
            row.point = state.commit_point
            for look_at in self.on_change:
                look_at(row)
            row.changed = False
        for look in self.on_step:
            look()
        if self.loop.steps >= self._next_many:
            self._next_many = self.loop.steps + MANY_STEPS
            for look in self.on_many_steps:
                look()

    # --- one member

    def start(self, name: str) -> None:
        """Start the member's process on the disk that its machine has now."""
        machine = self.machines[name]
        assert machine.process is None, f"{name} runs already"
        machine.starts += 1
        if self.environment.mixed:  # the first one keeps the set at what the last release can run
            is_first = machine.starts == 1 and name == next(iter(self.machines))
            machine.is_of_last_release = is_first or self.rng_releases.random() < 0.5
        process = machine.process = Process(f"{name}{machine.starts}")
        machine.started = False
        code = last_release if machine.is_of_last_release else _this_tree
        archived: dict[str, Any] = {"of_features": (ArchiveOptions(archive_secs=ARCHIVE_SECS),)}
        if machine.is_of_last_release:  # it has one class of options
            archived = {"archive_secs": ARCHIVE_SECS}
        options = code("member.options").MemberOptions(
            repl_set=self.set_name,
            dbpath=Path(machine.disk.folder),
            port=27017,
            bind_ip=name,
            enable_test_commands=True,
            oplog_size_mb=self.environment.oplog_bytes / (1 << 20),
            oplog_lagging_mb=self.environment.oplog_lagging_bytes / (1 << 20),
            snapshot_history_secs=self.environment.history_s,
            min_free_mb=1,
            allow_multiple_arbiters=True,
            expect_members=self.expect_members,
            **archived,
        )
        context = contextvars.copy_context()
        context.run(current_process.set, process)
        task = self.loop.create_task(self._boot(machine, process, options, code), context=context)
        task.add_done_callback(lambda done: self._started(machine, process, done))
        by = " of the last release" if machine.is_of_last_release else ""
        self.trace.add(name, f"starts, life {machine.starts}{by}")

    async def _boot(
        self, machine: Machine, process: Process, options: MemberOptions, code: Callable[[str], Any]
    ) -> None:
        rng = random.Random(machine.rng.getrandbits(64))
        workers = SimWorkers(
            self.loop, process, rng, self.environment.worker_ms, lambda: machine.slowness, self.environment.overlap
        )
        machine.workers = workers
        member_rng = random.Random(machine.rng.getrandbits(64))
        ports = code("member.outside").MemberPorts(
            self.network.port(machine.name, process),
            machine.disk,
            machine.clock,
            workers,
            member_rng,
            member_rng,
            workers,
        )
        features = code("features.all").all_features(
            None if self.archive is None else self.archive.port(machine),
            segment_bytes=SEGMENT_BYTES,
            session_timeout_ms=SESSION_TIMEOUT_MS,
        )
        keys = code("key_file").Keys(["c2ltdWxhdGlvbg=="]) if self.environment.keyed else None
        machine.member = await code("member.member").RunningMember.start(
            options,
            ports,
            credentials=code("member.net.credentials").Credentials(keys),
            steps=step_sizes(self.environment),
            features=[feature for feature in features if feature.name not in self._left_out],
        )

    def _started(self, machine: Machine, process: Process, task: asyncio.Task[None]) -> None:
        if machine.process is not process:
            return
        if task.cancelled() or task.exception() is not None:
            error = "cancelled" if task.cancelled() else task.exception()
            if machine.may_not_start:
                self.trace.add(machine.name, f"cannot start: {error}")
                self.kill(machine.name)
                return
            if machine.may_have_lost_data and isinstance(error, CorruptDataError):
                # Its WAL was cut behind a checkpoint that had copied only some of the pages into the database.
                self.damaged.add(machine.name)
            if self._has_bad_disk(machine):
                self._end_by_its_disk(machine, f"cannot start: {error}")
                return
            self.broken.append(f"{machine.name} could not start: {type(error).__name__}: {error}")
            return
        machine.started = True
        assert machine.member is not None
        node = machine.member.node
        if node.has_lost_data and not machine.may_have_lost_data:
            self.broken.append(f"{machine.name} says that its disk lost entries, and no disk did")
        self.running_nodes.append(RunningNode(machine.name, machine, node, node._state))
        machine.member.broken.add_done_callback(lambda why: self._broke(machine, process, why))

    def _broke(self, machine: Machine, process: Process, why: asyncio.Future[Any]) -> None:
        if machine.process is not process or why.cancelled():
            return
        if self._has_bad_disk(machine):
            self._end_by_its_disk(machine, f"stops itself: {why.result()}")
            return
        self.broken.append(f"{machine.name} stopped itself: {why.result()}")

    def _has_bad_disk(self, machine: Machine) -> bool:
        return bool(machine.disk.failed) or machine.name in self.damaged

    def is_unsound(self, machine: Machine) -> bool:
        """Whether a test has changed or lost what is on its disk."""
        changed = machine.name in (self.rotten, self.damaged_entry and self.damaged_entry.name)
        return changed or machine.may_have_lost_data or machine.disk.is_full or self._has_bad_disk(machine)

    def _end_by_its_disk(self, machine: Machine, how: str) -> None:
        """Its disk failed, and it ends as it should; what the disk did not take is gone, as with the power."""
        self.trace.add(machine.name, how)
        self.kill(machine.name, power_loss=True)
        for look in self.on_disk_death:
            look(machine.name)

    def kill(self, name: str, *, power_loss: bool = False, wipe: bool = False) -> None:
        """The process dies at once, or its machine loses power; with `wipe` the next process finds an empty disk."""
        machine = self.machines[name]
        process, member = machine.process, machine.running
        assert process is not None, f"{name} is dead already"
        if member is None:
            machine.lost_power |= power_loss
        else:
            machine.lost_power = power_loss
            machine.durable_at_death = member.node.position.last_durable
            machine.state_at_death = member.node.state
            machine.database_at_death = machine.disk.tree.names.get("replset.db")
        self.trace.add(name, "is wiped" if wipe else "loses power" if power_loss else "is killed")
        self.loop.kill(process)
        self.network.die(process, silently=power_loss)
        dead_disk = machine.dead_disk = machine.disk
        folder = os.path.join(self.root, name, str(machine.starts))
        if wipe:
            self.damaged.discard(name)
            machine.state_at_death = None
            machine.disk = SimDisk(folder)
            for look in self.on_wipe:
                look(name)
        else:
            machine.disk = dead_disk.crash(folder, self.rng_crashes, power_loss=power_loss)
            machine.disk.is_full = dead_disk.is_full
        dead_disk.is_full, dead_disk.failing = False, frozenset()  # what a dead process still writes does not matter
        if machine.workers is not None:
            machine.workers.abandon()
        machine.process = machine.member = machine.workers = None
        self.running_nodes = [row for row in self.running_nodes if row.name != name]
        machine.started = False
        self._closing.append(dead_disk)
        self.loop.call_later(0.5, self._close_disk, dead_disk, context=contextvars.Context())

    def copy_dbpath(self, source: str, target: str, *, power_loss: bool = False) -> None:
        """Put a copy of one machine's disk in the place of another's; the member of that one does not run.

        power_loss: of what a loss of power would leave of it, as a copy of the storage below may be.
        """
        machine = self.machines[target]
        assert machine.process is None, f"{target} runs"
        machine.disk.close()
        folder = os.path.join(self.root, target, "copied")
        machine.disk = self.machines[source].disk.crash(folder, self.rng_copies, power_loss=power_loss)
        self.trace.add(target, f"gets a copy of the disk of {source}")

    def _close_disk(self, disk: SimDisk) -> None:
        if disk in self._closing:
            self._closing.remove(disk)
            disk.close()
            shutil.rmtree(disk.folder)

    async def stop(self, name: str) -> bool:
        """SIGTERM: the member hands over, closes everything and ends. False: it died on the way."""
        machine = self.machines[name]
        process, member = machine.process, machine.running
        if process is None or member is None or process.stopping:
            return False
        process.stopping = True
        self.trace.add(name, "is asked to stop")
        context = contextvars.copy_context()
        context.run(current_process.set, process)

        async def end() -> None:
            await member.hand_over()
            await member.stop()

        task = self.loop.create_task(end(), context=context)
        await asyncio.wait([task])
        if machine.process is not process:
            return False
        if task.cancelled() or task.exception() is not None:
            if self._has_bad_disk(machine):
                self._end_by_its_disk(machine, f"could not stop: {task.exception()!r}")
            else:
                self.broken.append(f"{name} could not stop: {task.exception()!r}")
            return False
        self.kill(name)
        return True

    def pause(self, name: str, seconds: float) -> None:
        """The process stands still for a while (SIGSTOP, a stalled machine), then goes on as if nothing had been."""
        process = self.machines[name].process
        assert process is not None, f"{name} is dead"
        self.trace.add(name, f"pauses for {seconds:.1f} s")
        self.loop.pause(process)
        self.loop.call_later(seconds, self.loop.resume, process, context=contextvars.Context())

    def is_paused(self, name: str) -> bool:
        process = self.machines[name].process
        return process is not None and self.loop.is_paused(process)

    def restart(self, name: str) -> None:
        self.start(name)

    def alive(self) -> list[str]:
        return [name for name, machine in self.machines.items() if machine.process is not None]

    # --- the network

    def cut(self, group: list[str], *, direction: str = "both") -> None:
        """Cut `group` off from the other members. direction: both | in (they hear nothing) | out."""
        for inside in group:
            for outside in self.machines:
                if outside not in group:
                    if direction in ("both", "out"):
                        self.network.cut(inside, outside)
                    if direction in ("both", "in"):
                        self.network.cut(outside, inside)
        self.trace.add("network", f"cut {','.join(group)} {direction}")

    def heal(self) -> None:
        self.network.heal()
        self.trace.add("network", "healed")

    def client_port(self, *, together: bool = False) -> NetworkPort:
        return self.network.port("client", self.clients, together=together)

    def client(self, *, together: bool = False) -> SimClient:
        """together: what several of these send at one moment arrives in one turn of a member."""
        return SimClient(self.client_port(together=together))

    def host(self, name: str) -> HostPort:
        return self.machines[name].host

    def name_of(self, host: HostPort) -> str:
        return host.partition(":")[0]

    def command(self, name: str, command: Mapping[str, object], database: str = "admin", timeout_s: float = 8.0) -> Any:
        """One command from a client, for scenarios; the reply document."""

        async def ask() -> dict[str, Any]:
            client = self.client()
            try:
                return await client.call(self.host(name), database, command, timeout_s)
            finally:
                client.close()

        return self.run(ask())

    # --- the set

    def initiate(
        self, *, settings: Mapping[str, object] | None = None, priorities: Mapping[str, float] | None = None
    ) -> None:
        """Start everybody, initiate through the first member, wait until all are counted and one is primary."""
        for machine in self.members():
            self.start(machine.name)
        self.run_until(lambda: all(m.started for m in self.members()) or bool(self.broken), 10, "all started")
        self.check_unbroken()
        members = []
        for n, machine in enumerate(self.members()):
            member: dict[str, object] = {"_id": n, "host": str(machine.host), **self._options.get(machine.name, {})}
            if machine.arbiter:
                member["arbiterOnly"] = True
            elif machine.witness:
                member["witness"] = True
            elif priorities and machine.name in priorities:
                member["priority"] = priorities[machine.name]
            members.append(member)
        config = {"_id": self.set_name, "version": 1, "members": members, "settings": self._settings(settings)}
        if not self.journal_default:
            config["writeConcernMajorityJournalDefault"] = False
        first = next(iter(self.machines))
        reply = self.command(first, {"replSetInitiate": config}, timeout_s=30)
        if reply["ok"] != 1:
            raise SimulationError(f"replSetInitiate: {reply}")
        self.run_until(self.all_counted, 60, "everybody is counted and one is primary")

    def _settings(self, settings: Mapping[str, object] | None) -> dict[str, object]:
        return {**SETTINGS, "catchUpTimeoutMillis": self.environment.catch_up_ms, **(settings or {})}

    def all_counted(self, *, but: str = "") -> bool:
        """One writable primary; everybody is a secondary or arbiter with a vote and a named incarnation. but: a member
        whose state does not matter; while it is gone nobody who was added may be able to get a vote.
        """
        self.check_unbroken()
        primary = self.primary()
        if primary is None:
            return False
        states = {MemberState.PRIMARY, MemberState.SECONDARY, MemberState.ARBITER}
        config = self.config()
        if config is None or (not but and any(member.newly_added for member in config.members)):
            return False
        if any(member.incarnation is None for member in config.voters):
            return False
        return all(m.running is not None and m.running.node.state in states for m in self.members() if m.name != but)

    def members(self) -> list[Machine]:
        """All machines but a spare one that nobody has added yet."""
        return [machine for machine in self.machines.values() if not machine.is_spare]

    def primary(self) -> str | None:
        """The writable primary of the newest term, if there is one."""
        found = [
            (m.running.node.term, name)
            for name, m in self.machines.items()
            if m.running is not None and m.running.node.writable
        ]
        return max(found)[1] if found else None

    def config(self) -> ReplSetConfig | None:
        """The primary's configuration."""
        primary = self.primary()
        member = None if primary is None else self.machines[primary].running
        return None if member is None else member.node.config

    def secondaries(self) -> list[str]:
        primary = self.primary()
        return [name for name, m in self.machines.items() if name != primary and m.bears_data]

    def converged(self) -> bool:
        """One writable primary, everybody well, all data-bearing members at one optime, which is committed."""
        if not self.all_counted():
            return False
        data = [m.running for m in self.members() if m.running is not None and not m.arbiter]
        positions = {member.node.position.last_applied for member in data}
        points = {member.node.commit_point for member in data}
        return len(positions) == 1 and points == positions

    def check_unbroken(self) -> None:
        if self.broken:
            raise SimulationError("; ".join(self.broken))

    # --- the trace

    def _note_state(self, row: RunningNode) -> None:
        """Note a member's state, term and known primary, which changed."""
        state = row.node_state
        if state.state is MemberState.STARTUP2 and row.state not in (None, MemberState.STARTUP, MemberState.STARTUP2):
            self.resyncs += 1
        row.state, row.term, row.primary = state.state, state.term, state.primary_id
        if row.state is MemberState.PRIMARY and self.primaries_ever[-1:] != [row.name]:
            self.primaries_ever.append(row.name)
            if row.machine.running is not None:
                self.elections[row.machine.running.node._elections.last_reason] += 1
        self.trace.add(row.name, f"{row.state.name} term {row.term} primary {row.primary}")

    def summary(self) -> str:
        """How every member stands, for a failure's message."""
        lines = []
        for name, machine in self.machines.items():
            member = machine.running
            if member is None:
                lines.append(f"{name}: {'starting' if machine.process else 'dead'}")
                continue
            node = member.node
            lines.append(
                f"{name}: {node.state.name} term {node.term} applied {node.position.last_applied}"
                f" durable {node.position.last_durable} commit {node.commit_point} primary {node.primary}"
                f" config {None if node.config is None else (node.config.version, node.config.term)}"
            )
        return "\n".join(lines)

    # --- the end

    def close(self) -> None:
        """End every process, close every disk, remove the folders."""
        self._errors.close()
        rollback.UNDO_STEP_ENTRIES = self._undo_step_before
        archive_lease.LEASE_MS = archiver.LEASE_MS = self._lease_before  # type: ignore[misc]
        insert.GROUP_STATEMENTS = search_batch.GROUP_STATEMENTS = self._statements_before
        write_batch.GROUP_STATEMENTS = self._statements_before
        differences.SPANS_MAX, differences.ROWS_BYTES = self._answers_before
        for module in GUARDED:
            module.threading = threading  # type: ignore[attr-defined]
        member_options.is_loopback = self._is_loopback_before
        self.loop.on_step = None if self._beside is None else self._beside._step
        for machine in self.machines.values():
            if machine.process is not None:
                self.loop.kill(machine.process)
                self.network.die(machine.process, silently=False)
                if machine.workers is not None:
                    machine.workers.abandon()
                self._closing.append(machine.disk)
        self.clients.alive = False
        for task in self.loop.tasks():
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0.3))
        for disk in list(self._closing):
            self._close_disk(disk)
        for machine in self.machines.values():
            machine.disk.close()
        if self._beside is None:
            self.loop.close()
        shutil.rmtree(self.root, ignore_errors=True)


def quiet_logs() -> None:
    """Members log every fault that they survive; a simulation makes thousands."""
    logging.getLogger("replset").setLevel(logging.CRITICAL)
