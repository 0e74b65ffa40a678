"""One running member: puts storage, core, replication, commands and sockets together. The HTTP port is not its own.

It is the `Kernel` of its operations. Of features it knows what feature.py says. Rules are elsewhere; what the core
wants done is in core_effects.py.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Final, Self, TypeVar

from replset.bson import ObjectId, ObjectIds
from replset.core.effects import NO_VOTE
from replset.core.messages import (
    ChainMismatch,
    ConnectionLost,
    DamageFound,
    DiskStalled,
    FetchProgress,
    LocalPosition,
    ProgressRequest,
    ReplyBody,
    RequestBody,
    ShutdownStarted,
)
from replset.core.node import Node
from replset.core.state import NodeState
from replset.errors import NotPrimaryOrSecondaryError, ShutdownInProgressError
from replset.ids import HostPort, Millis, OpTime
from replset.member.bootstrap import begin_expected_set
from replset.member.core_effects import CoreEffects
from replset.member.disk.data_replacement import DataReplacement
from replset.member.disk.durability import Durability
from replset.member.disk.durability_mark import DurabilityMark
from replset.member.disk.housekeeping import Housekeeper
from replset.member.disk.member_files import OpenData, open_data
from replset.member.disk.writer import Writer
from replset.member.feature import Feature, Features
from replset.member.net.connections import ConnectionSlots
from replset.member.net.credentials import Credentials
from replset.member.net.server import WireServer
from replset.member.net.transport import Transport
from replset.member.options import MemberOptions, exposure_warnings
from replset.member.outside import MemberPorts, StepSizes
from replset.member.peers import member_commands
from replset.member.peers.flows import Flows
from replset.member.peers.oplog_fetch import OplogFetches
from replset.member.peers.snapshot_server import SnapshotServer
from replset.member.positions import Positions
from replset.member.process.machine import BackgroundTasks, LimitedWorkers, Load, RecentLog, TrackedWorkers
from replset.member.shell import Shell, hand_over_primary
from replset.operations import fail_command, write_concern
from replset.operations.admission import Admission
from replset.operations.audit_trail import AuditTrail
from replset.operations.current_operations import Histogram
from replset.operations.dispatcher import Dispatcher
from replset.operations.fail_points import FailPoints
from replset.operations.flow_control import FlowControl
from replset.operations.history import History
from replset.operations.kernel import Kernel
from replset.operations.transactions import TransactionTable
from replset.operations.turns import Turns
from replset.operations.user_directory import UserDirectory
from replset.operations.waiters import Completion, Notifier, Topology, WaiterList
from replset.operations.write_concern import end_waits_in_vain, has_stored_default
from replset.replication.fetcher import Fetcher
from replset.replication.index_builder import IndexBuilder
from replset.replication.initial_sync import InitialSync
from replset.replication.ports import SetMemberClient
from replset.replication.rollback import Rollback
from replset.replication.rollback_list import RollbackList
from replset.replication.write_ops import WriteGroup
from replset.storage.store import Store

log = logging.getLogger("replset.member")
T = TypeVar("T")

KERNEL_COMMANDS = (
    *member_commands.COMMANDS,
    *fail_command.COMMANDS,
    *write_concern.COMMANDS,
)
"""Those that every member has, whatever its features."""
REFRESH_EVERY_S = 10
WATCH_EVERY_S = 1
CLIENT_THREADS = 8
HUGE_BODIES = 2
"""Bodies over 1 MiB on HTTP at once: each takes ten times its bytes while it is parsed, and three times until it is
answered."""

FEW: Final = 4
"""A group of so many writes, or fewer, that wait for other members is given to these before its sync begins."""


class RunningMember(Kernel):
    """See the module. `start` makes one; `broken` is done, with the reason, when the member must stop."""

    peer: Transport
    workers: LimitedWorkers
    evaluations: LimitedWorkers

    @classmethod
    async def start(
        cls,
        options: MemberOptions,
        ports: MemberPorts,
        *,
        credentials: Credentials | None = None,
        wire_slots: ConnectionSlots | None = None,
        audit: AuditTrail | None = None,
        steps: StepSizes | None = None,
        features: Sequence[Feature] = (),
    ) -> Self:
        """Open the files, finish what a crash interrupted, listen, and begin to take part.

        credentials: of the options' files; None: there are no such files. Raises ReplError (folder locked, files
        damaged) and OSError (port in use); nothing stays open then.
        """
        steps = steps or StepSizes()
        ids = ObjectIds(ports.rng)
        with ExitStack() as opened:
            data = await open_data(opened, options, ports.disk, ports.clock, ports.workers, ports.rng, steps.store)
            member = cls(
                options,
                ports,
                data,
                credentials=credentials or Credentials(),
                wire_slots=ConnectionSlots(options.max_connections, "wire") if wire_slots is None else wire_slots,
                audit=AuditTrail(None, ports.clock.wall_ms) if audit is None else audit,
                steps=steps,
                ids=ids,
                features=features,
            )
            await member.rollbacks.refresh()
            member._clear_leftovers()
            await member._server.start(options.listen)
            opened.pop_all()
        member._begin(data.damage)
        return member

    def __init__(
        self,
        options: MemberOptions,
        ports: MemberPorts,
        data: OpenData,
        *,
        credentials: Credentials,
        wire_slots: ConnectionSlots,
        audit: AuditTrail,
        steps: StepSizes,
        ids: ObjectIds,
        features: Sequence[Feature],
    ) -> None:
        """Use `start`."""
        super().__init__()
        self._set_outside(options, ports, credentials, audit, ids)
        self._is_started = False
        self._is_stopping = False
        self._features = Features()
        self._after_commit: list[Callable[[], None]] = []
        self.flows = Flows()
        self.add(self._features, self.flows)
        self._rolling_back = data.rolling_back
        self.fetches = OplogFetches(self, self._on_fetch_progress, self.flows)
        self._changes = Notifier(self._on_change)
        self.write_waiters = WaiterList()
        self._tasks = BackgroundTasks(self._break)
        self._open_storage(data, ports)
        self.node = self._make_node(data, options)
        if self.node.has_lost_data:
            log.error(
                "%s ends at %s, before %s: entries are lost",
                self.store.path,
                self.store.last_applied,
                self._member_file.durability_mark,
            )
        self._mark = DurabilityMark(self.context, self.node, self._member_file, self.durability)
        self._make_writing(steps)
        self._make_server(options, ports, credentials, wire_slots, features)
        self._make_replication(steps)
        self._make_core_loop()
        self.add(*(feature.options() for feature in features if feature.options), *options.of_features)
        made = (feature.part(self) for feature in features if feature.part is not None)
        self._features += [part for part in made if part is not None]
        self.add(*self._features)
        self._after_commit = [p.on_committed for p in self._features if p.listens_to_commits()]

    # --- its parts, in the order in which they are made ----------------------------------------------------------

    def _set_outside(
        self,
        options: MemberOptions,
        ports: MemberPorts,
        credentials: Credentials,
        audit: AuditTrail,
        ids: ObjectIds,
    ) -> None:
        """What others read of this member."""
        self.options = options
        self.keys = credentials.keys
        self.tls = credentials.tls
        self.audit = audit
        self.warnings = [*exposure_warnings(options), *credentials.warnings()]
        self.host = options.host
        self.http_address = options.http_address
        self.set_name = options.repl_set
        self.test_commands = options.enable_test_commands
        self.clock = ports.clock
        self.rng, self._core_rng = ports.rng, ports.core_rng
        self.fail_points = FailPoints(ports.rng)
        self.workers = LimitedWorkers(ports.workers, CLIENT_THREADS)
        self.evaluations = LimitedWorkers(ports.workers, 1)
        self._ids = ids
        self.topology = Topology(self.new_id(), ports.clock)
        self.started_at = ports.clock.now()
        self.shutting_down = False
        self.http_slots: ConnectionSlots | None = None
        self.awaited_members = ""
        self.broken: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.admission = Admission()
        self.turns = Turns(self.clock.now)
        self.slices = Turns(self.clock.now)
        self.one_export = asyncio.Lock()
        self.huge_bodies = asyncio.Semaphore(HUGE_BODIES)
        self.load = Load()
        self.add(options, credentials, audit, RecentLog())

    def _open_storage(self, data: OpenData, ports: MemberPorts) -> None:
        self._files = data.files
        self._member_file = data.files.member_file
        self._threads = TrackedWorkers(ports.workers)
        self.context = replace(
            data.context,
            workers=self._threads,
            on_report=lambda report: self.shell.feed(report),
            on_undone=self._on_undone,
            on_broken=self._break,
        )
        self.rollbacks = RollbackList(
            ports.disk, self._files.dbpath, self._threads, undecided=lambda: self.initial_sync.exported
        )
        self.durability = Durability(
            self.context,
            ports.sync_thread,
            on_moved=self._on_moved,
            on_synced=self.load.on_synced,
            on_stalled=lambda stalled: self.shell.feed(DiskStalled(stalled)),
            stall_after_ms=lambda: Millis(self.node.election_timeout_ms() // 2),
        )
        self.add(self.context, self._files, self._member_file, self.rollbacks, self.durability)

    def _holds_data_to_resync(self, data: OpenData) -> bool:
        """Whether a resync that was asked for has replaced nothing yet, and all that it was to replace is there."""
        file, newest = self._member_file, self.store.last_applied
        return file.initial_sync_requested and not data.damage and newest >= file.initial_sync_newest

    def _make_node(self, data: OpenData, options: MemberOptions) -> Node:
        return Node(
            NodeState(
                host=self.host,
                set_name=self.set_name,
                http_address=self.http_address,
                incarnation=self._member_file.incarnation,
                rng=self._core_rng,
                config=self._member_file.config,
                last_vote=self._member_file.last_vote or NO_VOTE,
                position=self.durability.position(),
                initial_sync_pending=self._member_file.initial_sync_pending,
                resync_requested=self._holds_data_to_resync(data),
                rollback_id=lambda: self.store.rollback_id,
                unacknowledged_rollbacks=lambda: self.rollbacks.unacknowledged,
                rolling_back=data.rolling_back,
                quarantine="" if self._member_file.initial_sync_pending else data.not_undone,
                oplog_only=self.store.oplog_only,
                durability_mark=self._member_file.durability_mark,
                wall_ms=self.clock.wall_ms,
                default_write_concern_set=lambda: has_stored_default(self.store),
                allow_multiple_arbiters=options.allow_multiple_arbiters,
                holds_role=lambda: any(part.holds_role() for part in self._features),
                expected=options.expected,
                is_overloaded=lambda: self.load.is_high,
            )
        )

    def _make_writing(self, steps: StepSizes) -> None:
        """What writes to the store and keeps it small: clients' writes, indexes, housekeeping."""
        self.history: History = History(self)
        self.transactions = TransactionTable(self)
        self.flow_control = FlowControl(self.clock, self.node.majority_lag)
        self._writer = Writer(
            self.context,
            self.node,
            self.rng,
            self._on_committed,
            self.transactions.held,
            self.flow_control,
            lambda: self.write_waiters.kept,
        )
        self._housekeeper = Housekeeper(
            self.context,
            lambda: self._effects.on_disk_space(),
            self.on_damage,
            self._mark.raise_for_checkpoint,
            self._oldest_needed,
            lambda: self.snapshots.needed(),
        )
        self.index_builder = IndexBuilder(
            self.context,
            busy=self._housekeeper.busy,
            leads_in=self.own_work_term,
            write=self._writer.write,
            options=steps.index_build,
        )
        self.add(self.history, self.transactions, self.flow_control, self._writer, self.index_builder)

    def _make_server(
        self,
        options: MemberOptions,
        ports: MemberPorts,
        credentials: Credentials,
        wire_slots: ConnectionSlots,
        features: Sequence[Feature],
    ) -> None:
        """What serves clients and other members."""
        self.snapshots: SnapshotServer = SnapshotServer(
            self.context,
            self.node,
            self.rng,
            self.flows,
            needed=lambda: oldest(part.needed_in_copies() for part in self._features),
        )
        self.users = UserDirectory(self, required=options.auth)
        self.add(self.fetches, self.snapshots, self.users)
        commands = [*KERNEL_COMMANDS, *(command for feature in features for command in feature.commands)]
        self.dispatcher = Dispatcher(self, commands)
        self.peer = Transport(
            ports.network,
            self.clock,
            self.host,
            self.keys,
            self.rng,
            self._on_connection_lost,
            certifies=credentials.certifies,
        )
        self._server = WireServer(
            ports.network,
            self.dispatcher,
            drops_inbound=self.peer.drops_inbound,
            drops_outbound=self.peer.drops_outbound,
            slots=wire_slots,
            cursors=self.dispatcher.cursors,
            admission=self.admission,
            turns=self.turns,
            certifies=credentials.certifies,
            needs_login=options.auth,
        )
        self.add(self.dispatcher, self.dispatcher.operations, self.peer, self._server)

    def _make_replication(self, steps: StepSizes) -> None:
        set_peer = SetMemberClient(self.peer, lambda: self.node.set_id)
        self.add(set_peer)
        self._fetcher = Fetcher(
            self.context,
            peer=self.peer,
            node=self.node,
            on_applied=self._on_committed,
            last_durable=lambda: self.durability.last_durable,
            document=lambda request: self._positions.fetch_document(request),
            awaits_commit_point=lambda: self._positions.is_awaited("commit point"),
            is_paused=lambda: self.fail_points.stops_replication,
            options=steps.fetch,
        )
        self._rollback = Rollback(self.context, peer=set_peer, node=self.node, on_undo_begins=self._mark.lower)
        replacement = DataReplacement(
            self.context,
            self._files,
            self.node,
            self._mark,
            self.durability,
            busy=self._housekeeper.busy,
            close_readers=self._close_readers,
            on_installed=self._on_data_replaced,
        )
        self.initial_sync: InitialSync = InitialSync(
            self.context,
            peer=set_peer,
            required=replacement.required,
            set_marker=replacement.set_marker,
            claim=replacement.claim,
            install=lambda copy: replacement.install(copy, self.initial_sync.progress),
            options=steps.initial_sync,
        )

        self.add(self._rollback.progress, self.initial_sync, self.initial_sync.progress)

    def _make_core_loop(self) -> None:
        """What runs the core and carries out what it decides."""
        self._effects: CoreEffects = CoreEffects(
            context=self.context,
            member_file=self._member_file,
            mark=self._mark,
            writer=self._writer,
            transactions=self.transactions,
            index_builder=self.index_builder,
            fetcher=self._fetcher,
            rollback=self._rollback,
            rollbacks=self.rollbacks,
            initial_sync=self.initial_sync,
            peer=self.peer,
            tasks=self._tasks,
            write_waiters=self.write_waiters,
            changes=self._changes,
            on_topology_changed=self._on_topology_changed,
            report_position=lambda: self._positions.report(),
        )
        self.shell = Shell(self.node, self._effects, self.clock, self._threads, self._break)
        self._positions: Positions = Positions(
            self.node, self.clock, self._fetcher, self._effects.send_request, self.shell.feed
        )
        self.on_awaited = self._positions.on_awaited
        self.add(self._positions)

    # --- life ----------------------------------------------------------------------------------------------------

    def _begin(self, damage: str) -> None:
        """Take part in the set. damage: what the start found wrong with the newest entries."""
        for warning in self.warnings:
            log.warning("%s", warning)
        self._is_started = True
        self.shell.start()
        if damage:
            self.on_damage(damage)
        for work in (
            self._positions.run(),
            self._housekeeper.run(),
            self.index_builder.run(),
            self._refresh(),
            self._watch_majority(),
            self._mark.run(),
            *(job for part in self._features for job in part.jobs()),
        ):
            self._tasks.start(work)
        if self.options.expect_members:
            self._tasks.start(begin_expected_set(self.options, self.node, self.ask_core, self._on_awaited_members))
        if self._rolling_back:
            self._tasks.start(self._effects.then_count_rollbacks(self._rollback.finish))

    def _clear_leftovers(self) -> None:
        """Remove what an earlier process left of copies that nobody needs any more."""
        self.snapshots.clear_leftovers()
        if not self._member_file.initial_sync_pending:
            self.initial_sync.clear_leftovers()

    async def hand_over(self) -> None:
        """Before stopping: a primary steps down to somebody who has everything, if there is anybody (map E15).

        Then hello answers 91, also to who waits for a change, so that clients go elsewhere; what runs here may end.
        """
        self.shell.feed(ShutdownStarted())
        try:
            await hand_over_primary(self.node, self.shell, self.host)
        except ShutdownInProgressError as error:
            log.warning("this primary could not hand over to another member: %s", error.message)
        for part in self._features:
            await part.hand_over()
        self.shutting_down = True
        self._on_topology_changed()
        await self._server.quiesce()

    async def stop(self) -> None:
        """Close everything in order; what is committed is synced by the store's closing checkpoint."""
        self._is_stopping = True
        self._writer.close()
        self.transactions.abort_all(lambda: ShutdownInProgressError("the member is shutting down"))
        self._fetcher.stop()
        await self.shell.close()
        self._tasks.cancel()
        await self._tasks.wait()
        for part in self._features:
            await part.close()
        await self._threads.wait()
        await self.durability.close()
        await self._close_readers()
        await self._server.close()
        await self.peer.close()
        self.context.write_queue.close()
        async with self._housekeeper.busy:
            self.store.close()
        self._mark.raise_at_close()
        self._files.close()

    def _break(self, error: BaseException) -> None:
        """Stop taking writes and set `broken` to the reason. With a broken disk or core nothing may be acknowledged."""
        self._writer.accept(None)
        if not self.broken.done() and not self._is_stopping:
            log.error("this member must stop: %s", error, exc_info=error)
            self.broken.set_result(f"{type(error).__name__}: {error}")

    async def _close_readers(self) -> None:
        await self.snapshots.close()
        self.dispatcher.cursors.close_all()

    async def _refresh(self) -> None:
        """Every ten seconds count rollbacks, which others acknowledge, and drop forgotten cursors and copies."""
        while True:
            await asyncio.sleep(REFRESH_EVERY_S)
            self.dispatcher.cursors.sweep()
            await self.snapshots.expire()
            await self.rollbacks.refresh()

    async def _watch_majority(self) -> None:
        """Every second end the waits for write concerns that are in vain, and slow writers or let them go."""
        while True:
            await asyncio.sleep(WATCH_EVERY_S)
            end_waits_in_vain(self)
            self.flow_control.adjust(self.node.flow_control_target_ms())

    # --- callbacks of the parts ----------------------------------------------------------------------------------

    def _on_committed(self, writes: int | None = None) -> None:
        """Handle the commit of a group. writes: how many it has; None: it is of applied entries."""
        if writes is not None and writes <= FEW and self._positions.awaited:
            self.fetches.look()
        self.durability.on_committed()
        self._on_moved()
        self._changes.notify()
        for on_committed in self._after_commit:
            on_committed()

    def _on_change(self) -> None:
        """Let the history and the other members' fetches look, before everybody else who waits for a change."""
        self.history.on_change()
        self.fetches.on_change()

    def _on_moved(self) -> None:
        """Report that last_applied or last_durable changed."""
        self.shell.feed(LocalPosition(self.durability.position()))
        self._fetcher.on_moved()
        self._positions.report()

    def _oldest_needed(self) -> OpTime | None:
        """The oldest entry that another member or a feature needs."""
        return oldest([self.node.oldest_needed(), *(part.needed() for part in self._features)])

    def own_work_term(self) -> int | None:
        return self._writer.term if all(part.does_own_work() for part in self._features) else None

    def _on_undone(self) -> None:
        """Close all cursors after a rollback. They would read entries and documents that the rollback removed."""
        self.dispatcher.cursors.close_all()
        self.durability.on_undone()
        self._on_moved()
        self._changes.notify()

    def _on_data_replaced(self) -> None:
        self._on_moved()
        self._changes.notify()

    def _on_connection_lost(self, host: HostPort) -> None:
        if self._is_started:
            self.shell.feed(ConnectionLost(host))

    def _on_awaited_members(self, reason: str) -> None:
        self.awaited_members = reason

    def _on_topology_changed(self) -> None:
        if self._is_started:
            for part in self._features:
                part.on_topology_changed()
        self.topology.on_changed()

    def on_damage(self, detail: str) -> None:
        log.error("%s", detail)
        self.shell.feed(DamageFound(detail))

    def on_chain_mismatch(self, at: OpTime) -> None:
        self.shell.feed(ChainMismatch(at))

    # --- for operations (Kernel) -------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        return self.context.store

    def new_id(self) -> ObjectId:
        return self._ids.make(self.clock.wall_ms() // 1000)

    def write(self, operation: Callable[[WriteGroup], T]) -> Awaitable[T]:
        return self._writer.write(operation)

    def submit(self, operation: Callable[[WriteGroup], Any], completion: Completion, *, waits: bool) -> None:
        self._writer.submit(operation, completion, waits=waits)

    async def ask_core(self, body: RequestBody) -> ReplyBody:
        if not self._is_started:  # it listens already, but the core does not know yet what it found on disk
            raise NotPrimaryOrSecondaryError("this member is starting")
        return await self.shell.ask(body)

    async def wait_for_change(self, timeout_ms: int | None) -> bool:
        return await self._changes.wait(timeout_ms)

    def _on_fetch_progress(self, progress: ProgressRequest) -> None:
        if self._is_started:
            self.shell.feed(FetchProgress(progress))

    # --- for the HTTP API ----------------------------------------------------------------------------------------

    @property
    def group_sizes(self) -> Histogram:
        return self._writer.group_sizes

    def queue_depths(self) -> dict[str, int]:
        """How much waits, by the name of the queue."""
        return {
            "clients": self._writer.queued,
            "store": len(self.context.write_queue),
            "threads": self.workers.waiting,
            "evaluations": self.evaluations.waiting,
        }

    async def free_bytes(self) -> float:
        """What is free on the disk of the data; not a number if the disk does not say."""
        disk, dbpath = self.context.disk, self.context.dbpath
        try:
            return await self._threads.run(lambda: disk.free_bytes(dbpath))
        except OSError:
            return math.nan


def oldest(positions: Iterable[OpTime | None]) -> OpTime | None:
    """The oldest of those that are there."""
    return min((at for at in positions if at is not None), default=None, key=lambda at: at.ts)
