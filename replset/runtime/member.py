"""One running member: puts storage, core, replication, commands and sockets together. The HTTP port is not its own.

It implements what commands need (`commands/ports.MemberPort`), what serving the oplog needs, and carries the core's
effects out (`shell.Hands`). Rules are elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Literal, TypeVar

from replset.bson import ObjectId, Timestamp
from replset.commands.dispatcher import Dispatcher
from replset.commands.messages import parse_reply, request_document
from replset.commands.oplog_serving import SnapshotServer
from replset.commands.waiters import Notifier, WaiterList
from replset.commands.write_concern import stored_default
from replset.config import ReplSetConfig
from replset.core.effects import (
    AcceptWrites,
    AppendNoop,
    CommitPointAdvanced,
    CompareChains,
    ConfigInstalled,
    Drain,
    Effect,
    ElectionRecord,
    InitialSyncNotNeeded,
    LastVote,
    PersistedRecord,
    ProgressChanged,
    Send,
    StartFetching,
    StartInitialSync,
    StartRollback,
    StateChanged,
    StopFetching,
)
from replset.core.member_state import MemberState
from replset.core.messages import (
    ChainMismatch,
    DamageFound,
    DiskStalled,
    DrainFinished,
    LocalPosition,
    ReplyBody,
    RequestBody,
    ShutdownStarted,
    StepDownRequest,
)
from replset.core.node import Node
from replset.errors import (
    DamagedEntryError,
    InvalidReplicaSetConfigError,
    NotPrimaryOrSecondaryError,
    OutOfDiskSpaceError,
    PrimarySteppedDownError,
    ReplError,
    ShutdownInProgressError,
    StorageError,
    StoreBusyError,
)
from replset.ids import OPTIME_NULL, HostPort, Millis, OpTime
from replset.key_file import Keys
from replset.replication.chain_check import compare_chains
from replset.replication.context import Identity, MemberContext
from replset.replication.disk_space import retry_while_disk_full
from replset.replication.fetcher import Fetcher
from replset.replication.initial_sync import InitialSync, InitialSyncMarker, RequiredEntries, newest_entry_to_keep
from replset.replication.initial_sync_progress import InitialSyncProgress
from replset.replication.ports import Clock, Network, SetPeer, Workers
from replset.replication.progress import ProgressReporter
from replset.replication.rollback import Rollback, finish_rollbacks
from replset.replication.rollback_list import RollbackList
from replset.replication.rollback_progress import RollbackProgress
from replset.replication.write_ops import WriteGroup
from replset.replication.write_queue import WriteQueue
from replset.runtime.admission import Admission
from replset.runtime.connections import Slots
from replset.runtime.durability import Durability
from replset.runtime.housekeeping import Housekeeper
from replset.runtime.machine import KeptWorkers, LimitedWorkers
from replset.runtime.options import MONGODB_LAYOUT, MemberOptions
from replset.runtime.server import WireServer
from replset.runtime.shell import Shell
from replset.runtime.transport import Transport
from replset.runtime.writer import Writer
from replset.storage.copies import install_copy
from replset.storage.disk import Disk
from replset.storage.member_file import JournalLine, MemberFile
from replset.storage.sqlite import is_disk_full
from replset.storage.store import Store, StoreOptions, lock_dbpath

log = logging.getLogger("replset.member")
T = TypeVar("T")

INSECURE = "started with --insecure-members: anybody who reaches the wire port can speak as a member of the set"
HAND_OVER_S = 10
LOOK_EVERY_S = 10
MARK_EVERY_S = 1
CHECKED_ENTRIES = 1_000
"""Newest oplog entries that a start checks against hash and chain."""
CLIENT_THREADS = 8


class RunningMember:
    """See the module. `start` opens files and sockets; `broken` is done, with the reason, when the member must stop."""

    def __init__(
        self,
        options: MemberOptions,
        *,
        network: Network,
        disk: Disk,
        clock: Clock,
        workers: Workers,
        rng: random.Random,
        keys: Keys | None = None,
        sync_workers: Workers | None = None,
    ) -> None:
        """keys: of `options.key_file`. sync_workers: the thread of the WAL's sync alone; None: one of `workers`."""
        self.options = options
        self.keys = keys
        self.warnings = [INSECURE] if options.insecure_members else []
        self.host = options.host
        self.http_address = options.http_address
        self.set_name = options.repl_set
        self.test_commands = options.enable_test_commands
        self.clock = clock
        self._threads = KeptWorkers(workers)
        self._sync_thread = KeptWorkers(sync_workers or workers)
        self.workers = LimitedWorkers(workers, CLIENT_THREADS)
        self.evaluations = LimitedWorkers(workers, 1)
        self.admission = Admission()
        self.wire_slots = Slots(options.max_connections, "wire")
        self.rng = rng
        self.process_id = ObjectId.generate(clock.wall_ms() // 1000, rng)
        self.topology_counter = 0
        self.shutting_down = False
        self.started_at = clock.now()
        self._disk = disk
        self._network = network
        self._dbpath = str(options.dbpath)
        self._changes = Notifier()
        self._topology = Notifier()
        self.write_waiters = WaiterList()
        self.rollbacks = RollbackList(disk, self._dbpath, self._threads)
        self._unsettled = False
        self._write_queue = WriteQueue()
        self._replacing = False  # the data, by a copy
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._begun = False
        self.broken: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.dispatcher = Dispatcher(self)

    # --- life ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the files, finish what a crash interrupted, listen, and begin to take part.

        Raises ReplError (folder locked, files damaged) and OSError (port in use); nothing is touched then.
        """
        with ExitStack() as opened:
            self._open_files(opened)
            self._unsettled = not await self._finished_rollback()
            damage = await self._threads.run(self._damage_found)
            await self.rollbacks.refresh()
            self._build()
            self.peer = Transport(self._network, self.clock, self.host, self.keys, self.rng)
            self._server = WireServer(
                self._network,
                self.dispatcher,
                drops_inbound=self.peer.drops_inbound,
                drops_outbound=self.peer.drops_outbound,
                slots=self.wire_slots,
                cursors=self.dispatcher.cursors,
                admission=self.admission,
                needs_proof=self.keys is not None,
            )
            self._connect_parts()
            await self._server.start(self.options.listen)
            opened.pop_all()
        for warning in self.warnings:
            log.warning("%s", warning)
        self._begun = True
        self.shell.start()
        if damage:
            self.on_damage(damage)
        for work in (
            self.durability.run(),
            self._progress.run(),
            self._housekeeper.run(),
            self._look_around(),
            self._raise_mark(),
        ):
            self._spawn(work)
        if self._unsettled:
            self._spawn(self._then_counted(self._rollback.finish))

    async def _finished_rollback(self) -> bool:
        """Whether what a crash left of a rollback is at its end; if it needs room it goes on once others are heard."""
        try:
            await finish_rollbacks(self.context, lambda: None)
        except (ReplError, OSError) as error:
            if not is_disk_full(error):
                raise
            return False
        return True

    def _damage_found(self) -> str:
        """What is wrong with the newest entries, to which all later ones are chained; empty when nothing is."""
        try:
            with self.store.read() as snapshot:
                snapshot.check_newest(CHECKED_ENTRIES)
        except DamagedEntryError as error:
            return error.message
        return ""

    def _open_files(self, opened: ExitStack) -> None:
        """The lock and both databases; at the end of opening, all that they hold is durable. `opened` closes them."""
        self._lock = lock_dbpath(self._disk, self._dbpath)
        opened.callback(self._lock.release)
        self._file = MemberFile.open(
            self._disk, self._dbpath, new_incarnation=lambda: f"{self.rng.getrandbits(64):016x}"
        )
        opened.callback(self._file.close)
        self._refuse_another_sets_files()
        self.context = MemberContext(
            disk=self._disk,
            dbpath=self._dbpath,
            clock=self.clock,
            workers=self._threads,
            store=self._open_store(),
            write_queue=self._write_queue,
            identity=Identity(self.set_name, self.host, self.options.rollback_layout == MONGODB_LAYOUT),
            on_report=lambda report: self.shell.feed(report),
            on_undone=self._undone,
            on_broken=self._break,
        )
        opened.callback(self.store.close)

    def _refuse_another_sets_files(self) -> None:
        """Under another name this member would answer for a set whose members do not know it, with data of its own."""
        config = self._file.config
        if config is not None and config.set_name != self.set_name:
            raise InvalidReplicaSetConfigError(
                f"{self._dbpath} belongs to a member of set {config.set_name!r}, not {self.set_name!r}; see --replSet"
            )

    def _open_store(self) -> Store:
        options = self.options
        return Store.open(
            self._disk,
            self._dbpath,
            StoreOptions(
                oplog_max_bytes=int(options.oplog_size_mb * (1 << 20)),
                oplog_min_retention_s=options.oplog_min_retention_hours * 3600,
                snapshot_history_s=options.snapshot_history_secs,
                min_free_bytes=options.min_free_mb << 20,
            ),
        )

    def _build(self) -> None:
        """The parts that stand on the store and the core."""
        self.durability = Durability(
            lambda: self.store,
            self.clock,
            self._sync_thread,
            self._moved,
            lambda stalled: self.shell.feed(DiskStalled(stalled)),
            lambda: Millis(self.node.election_timeout_ms() // 2),
        )
        self.durability.opened()
        self.node = Node(
            host=self.host,
            set_name=self.set_name,
            http_address=self.http_address,
            incarnation=self._file.incarnation,
            rng=self.rng,
            config=self._file.config,
            last_vote=self._file.last_vote,
            position=self.durability.position(),
            initial_sync_pending=self._file.initial_sync_pending,
            rollback_id=lambda: self.store.rollback_id,
            unacknowledged_rollbacks=lambda: self.rollbacks.unacknowledged,
            rolling_back=self._unsettled,
            durability_mark=self._file.durability_mark,
            wall_ms=self.clock.wall_ms,
            default_write_concern_set=self._default_is_set,
            allow_multiple_arbiters=self.options.allow_multiple_arbiters,
        )
        if self.node.has_lost_data:
            log.error(
                "%s ends at %s, before %s: entries are lost",
                self.store.path,
                self.store.last_applied,
                self._file.durability_mark,
            )
        self._file.durable = self._durable
        self.shell = Shell(self.node, self, self.clock, self._threads, self._break)
        self._writer = Writer(
            lambda: self.store,
            self._write_queue,
            self.clock,
            self.rng,
            lambda: self.node.primary_host,
            self._committed,
            self._break,
        )
        self._housekeeper = Housekeeper(
            lambda: self.store, self.clock, self._threads, self._write_queue, self._on_room, self.on_damage
        )
        self.snapshots = SnapshotServer(
            clock=self.clock, rng=self.rng, workers=self._threads, disk=self._disk, dbpath=self._dbpath
        )
        self.snapshots.clear_leftovers()

    def _default_is_set(self) -> bool:
        """Whether the set has a default write concern of its own; no while the data is just being replaced."""
        try:
            return stored_default(self.store) is not None
        except ReplError:
            return False

    def _connect_parts(self) -> None:
        """Replication: needs the peers."""
        set_peer = SetPeer(self.peer, lambda: self.node.set_id)

        self._fetcher = Fetcher(self.context, peer=set_peer, node=self.node, on_applied=self._committed)
        self._progress = ProgressReporter(
            clock=self.clock,
            source=lambda: self.node.sync_source,
            request=self.node.progress_request,
            exchange=self.exchange,
            interval_ms=lambda: Millis(self.node.election_timeout_ms() // 2),
            report=lambda response: self.shell.feed(response),
        )
        self._rollback = Rollback(self.context, peer=set_peer, node=self.node, on_undo_begins=self._lower_mark)
        self.initial_sync = InitialSync(
            self.context,
            peer=set_peer,
            required=self._required_entries,
            set_marker=self._set_marker,
            claim=self._claim_copy,
            install=self._install,
        )
        if not self._file.initial_sync_pending:
            self.initial_sync.clear_leftovers()

    async def hand_over(self) -> None:
        """Before stopping: a primary steps down to somebody who has everything, if there is anybody (map E15)."""
        self.shutting_down = True
        self._topology_changed()
        self.shell.feed(ShutdownStarted())
        try:
            await self._hand_over()
        except ShutdownInProgressError as error:
            log.warning("nobody was handed the primary's place: %s", error.message)

    async def _hand_over(self) -> None:
        for _ in range(HAND_OVER_S):
            if self.node.state is not MemberState.PRIMARY:
                break
            config = self.node.config
            others = () if config is None else (m for m in config.members if m.is_electable and m.host != self.host)
            heirs = [peer for m in others if (peer := self.node.peer_at(m.host)) is not None and peer.is_up]
            if not heirs:
                break
            await self.shell.ask(StepDownRequest(60_000, 1_000, force=False))
        if self.node.state is MemberState.PRIMARY:
            await self.shell.ask(StepDownRequest(60_000, 0, force=True))
        await asyncio.sleep(0.05)  # the request to the heir is on its way

    async def stop(self) -> None:
        """Close everything in order; what is committed is synced by the store's closing checkpoint."""
        self._stopping = True
        self._writer.close()
        self._fetcher.stop()
        await self.shell.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._threads.idle()
        await self._sync_thread.idle()
        await self.snapshots.close()
        self.dispatcher.cursors.close_all()
        await self._server.close()
        await self.peer.close()
        self._write_queue.close()
        async with self.durability.busy, self._housekeeper.busy:
            self.store.close()
        self._raise_mark_at_the_end()
        self._file.close()
        self._lock.release()

    def _raise_mark_at_the_end(self) -> None:
        """Closing the store has synced all that it holds."""
        if self._durable() != OPTIME_NULL:
            self._file.durable = lambda: self.store.last_applied
            with suppress(OutOfDiskSpaceError):
                self._file.raise_mark()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._break(error)

    def _break(self, error: BaseException) -> None:
        """The member must stop: nothing may be promised any more."""
        self._writer.accept(None)
        if not self.broken.done() and not self._stopping:
            log.error("this member must stop: %s", error, exc_info=error)
            self.broken.set_result(f"{type(error).__name__}: {error}")

    # --- moves ---------------------------------------------------------------------------------------------------

    def _committed(self) -> None:
        """A group was committed here, by a client's write or by applying."""
        self.durability.committed()
        self._moved()
        self._changes.notify()

    def _moved(self) -> None:
        """last_applied or last_durable moved."""
        self.shell.feed(LocalPosition(self.durability.position()))
        self.write_waiters.release()
        self._progress.notify()

    def _undone(self) -> None:
        """A rollback took entries away: no cursor may go on in what is not there any more."""
        self.dispatcher.cursors.close_all()
        self.durability.undone()
        self._moved()
        self._changes.notify()

    def _on_room(self) -> None:
        if self._disk_full:
            self._disk_full = False
            self.shell.feed(DiskStalled(False))

    _disk_full = False

    # --- the core's effects (shell.Hands) ------------------------------------------------------------------------

    def carry_out(self, effect: Effect) -> None:
        match effect:
            case StateChanged(state=state):
                if state is not MemberState.PRIMARY:
                    self.write_waiters.fail_all(lambda: PrimarySteppedDownError("the primary stepped down"))
                self._topology_changed()
                self._changes.notify()
            case ConfigInstalled():
                self._topology_changed()
            case AcceptWrites(accept, term):
                self._writer.accept(term if accept else None)
                self._topology_changed()
            case CommitPointAdvanced(commit_point):
                self.store.set_commit_point(min(commit_point, self.store.last_applied))
                self.write_waiters.release()
                self._changes.notify()
            case ProgressChanged():
                self.write_waiters.release()
            case StartFetching(source):
                self._fetcher.start(source)
                self._progress.notify()
            case StopFetching():
                self._fetcher.stop()
            case Drain(term):
                self._spawn(self._drain(term, self._fetcher.drain()))
            case AppendNoop(term, message):
                self._write_queue.submit(lambda: self._append_noop(term, message))
            case CompareChains(at, hosts):
                self._spawn(compare_chains(self.context, self.peer, at, hosts))
            case StartRollback(source):
                self._spawn(self._then_counted(lambda: self._rollback.run(source)))
            case StartInitialSync(source, reason, forced):
                self._fetcher.stop()
                self._spawn(self._then_counted(lambda: self.initial_sync.run(source, reason, forced=forced)))
            case _:
                raise TypeError(f"no hand for {effect}")

    async def exchange(self, send: Send) -> ReplyBody:
        reply = await self.peer.call(send.to, request_document(send.body), timeout_ms=send.timeout_ms)
        return parse_reply(send.body, reply)

    def save(self, record: PersistedRecord) -> None:
        match record:
            case LastVote():
                self._file.save_vote(record)
            case ReplSetConfig():
                self._file.save_config(record)
            case InitialSyncNotNeeded():
                self._file.end_initial_sync()
                self.initial_sync.discard_copy()

    def note(self, records: list[ElectionRecord], wall_ms: int) -> None:
        for record in records:
            log.info("term %d: %s: %s", record.term, record.event, record.detail)
        self._file.append_lines([JournalLine(wall_ms, record.term, record.event, record.detail) for record in records])

    async def _drain(self, term: int, drained: asyncio.Future[None]) -> None:
        await drained
        self.shell.feed(DrainFinished(term))

    def _append_noop(self, term: int, message: str) -> None:
        if message != "initiating set" and (self.node.state is not MemberState.PRIMARY or self.node.term != term):
            return  # it no longer leads that term: the entry would only have to be rolled back
        document: dict[str, object] = {"msg": message}
        if message == "new primary":
            document |= {"member": self.node.self_id, "host": self.host}
        elif message == "periodic noop":
            point = self.node.commit_point
            document["commitPoint"] = {"ts": Timestamp(point.seconds, point.increment), "t": point.term}
        elif message == "Reconfig set" and self.node.config is not None:
            document["version"] = self.node.config.version
        try:
            self._writer.append_noop(term, document)
            if message == "initiating set":
                # On disk before the configuration that follows is, or a power cut could leave a member that must have
                # data and has none. Nobody is served yet, so the loop may wait.
                self.store.wal.sync()
        except OutOfDiskSpaceError as error:
            log.warning("%s; this member cannot lead", error.message)
            self._disk_full = True
            asyncio.get_running_loop().call_soon(self.shell.feed, DiskStalled(True))
        except StoreBusyError:
            raise  # the write queue calls again
        except StorageError as error:
            self._break(error)

    def _topology_changed(self) -> None:
        self.topology_counter += 1
        self._topology.notify()

    # --- rollback and initial sync -------------------------------------------------------------------------------

    async def _then_counted(self, work: Callable[[], Awaitable[None]]) -> None:
        """`work`, which may have written a rollback's files."""
        await work()
        await self.rollbacks.refresh()

    async def _look_around(self) -> None:
        """A tool in another process may acknowledge a rollback; clients may have forgotten cursors."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self.dispatcher.cursors.sweep()
            await self.rollbacks.refresh()

    # --- the durability mark -------------------------------------------------------------------------------------

    def _durable(self) -> OpTime:
        """What member.db may say that this member holds: nothing that is just being undone or replaced."""
        if self._replacing or self.node.rolling_back or self.node.has_lost_data:
            return OPTIME_NULL
        return self.durability.last_durable

    async def _raise_mark(self) -> None:
        """Note in member.db what is durable, at most once a second: a WAL that is lost later is missed by that."""
        while True:
            await asyncio.sleep(MARK_EVERY_S)
            if self._durable() > self._file.durability_mark and not self._file.initial_sync_pending:
                with suppress(OutOfDiskSpaceError):  # the next second tries again
                    await self._threads.run(self._file.raise_mark)

    async def _lower_mark(self, to: OpTime) -> None:
        """Before an undo. A mark above what is left would look like a lost WAL to a start after a crash."""
        await self._threads.run(lambda: self._file.lower_mark(to))

    def _required_entries(self) -> RequiredEntries:
        file = self._file
        return RequiredEntries(
            max(
                newest_entry_to_keep(self.store),
                file.initial_sync_newest,
                file.durability_mark if self.node.has_lost_data else OPTIME_NULL,
            ),
            max(self.node.commit_point, file.initial_sync_committed, self.store.saved_commit_point()),
        )

    async def _set_marker(self, required: RequiredEntries) -> InitialSyncMarker:
        newest, committed, rollback_id = required.newest, required.committed, self.store.rollback_id
        lost = self.node.has_lost_data
        sync_id = await self._threads.run(
            lambda: self._file.begin_initial_sync(
                newest=newest, committed=committed, rollback_id=rollback_id, data_lost=lost
            )
        )
        return InitialSyncMarker(sync_id, self._file.incarnation)

    async def _claim_copy(self, newest: OpTime) -> str:
        return await self._threads.run(lambda: self._file.claim_copy(newest))

    async def _install(self, copy: str) -> None:
        """Put the copy in the place of the data. Once the store is closed, a full disk is waited for, and any other
        failure stops the member.
        """
        self._replacing = True
        async with self.durability.busy, self._housekeeper.busy:
            await self.snapshots.close()
            self.dispatcher.cursors.close_all()
            floor = max(self.store.rollback_id, self._file.rollback_id_floor)

            async def install() -> None:
                await self._threads.run(
                    lambda: install_copy(self._disk, self._dbpath, copy, rollback_id_before=floor, check_entries=0)
                )

            async def clear_marker() -> None:
                await self._threads.run(self._file.end_initial_sync)

            async def open_again() -> None:
                self.context.store = self._open_store()

            try:
                self.store.close()
                for step in (install, clear_marker, open_again):
                    await retry_while_disk_full(step, "installing the copy", progress=self.initial_sync.progress)
            except (ReplError, OSError) as error:
                self._break(error)
                raise
            self.durability.opened()
            self._replacing = False
        self._moved()
        self._changes.notify()

    # --- for commands (MemberPort) -------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        return self.context.store

    @property
    def command_line(self) -> tuple[Sequence[str], dict[str, object]]:
        parsed: dict[str, object] = {
            "net": {"bindIp": self.options.bind_ip, "port": self.options.port},
            "replication": {"replSet": self.set_name},
            "storage": {"dbPath": self._dbpath},
        }
        if self.test_commands:
            parsed["setParameter"] = {"enableTestCommands": "1"}
        argv = ["replset", "start", "--replSet", self.set_name, "--dbpath", self._dbpath]
        return [*argv, "--port", str(self.options.port)], parsed

    @property
    def connection_count(self) -> int:
        return self._server.connection_count

    @property
    def rollback_progress(self) -> RollbackProgress:
        return self._rollback.progress

    @property
    def initial_sync_progress(self) -> InitialSyncProgress:
        return self.initial_sync.progress

    async def write(self, operation: Callable[[WriteGroup], T]) -> T:
        return await self._writer.write(operation)

    async def ask_core(self, body: RequestBody) -> ReplyBody:
        if not self._begun:  # it listens already, but the core does not know yet what it found on disk
            raise NotPrimaryOrSecondaryError("this member is starting")
        return await self.shell.ask(body)

    async def wait_for_change(self, timeout_ms: int | None) -> bool:
        return await self._changes.wait(timeout_ms)

    def on_damage(self, detail: str) -> None:
        log.error("%s", detail)
        self.shell.feed(DamageFound(detail))

    def on_chain_doubt(self, at: OpTime) -> None:
        self.shell.feed(ChainMismatch(at))

    async def wait_topology_change(self, counter: int, timeout_ms: int) -> None:
        deadline = self.clock.now() + timeout_ms
        while self.topology_counter == counter:
            left = deadline - self.clock.now()
            if left <= 0 or not await self._topology.wait(left):
                return

    def cut(self, hosts: Sequence[HostPort], direction: Literal["both", "in", "out"]) -> None:
        self.peer.cut(hosts, direction)

    def delay(self, hosts: Sequence[HostPort], delay_ms: int) -> None:
        self.peer.delay(hosts, Millis(delay_ms))

    def set_wall_clock_ahead(self, ahead_ms: int) -> None:
        self.clock.set_wall_ahead(ahead_ms)

    # --- for the HTTP API ----------------------------------------------------------------------------------------

    @property
    def rollback_folder(self) -> str:
        return os.path.join(self._dbpath, "rollback")

    def http_address_of(self, host: HostPort) -> str | None:
        return self.node.http_address_of(host)
