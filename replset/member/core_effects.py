"""Handles the core's effects: gives each to the part of the member that does it.

The shell (shell.py) calls it in the order of the effects. Finished work goes back to the core as a report.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

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
    RelayProgress,
    Send,
    StartFetching,
    StartInitialSync,
    StartRollback,
    StateChanged,
    StopFetching,
)
from replset.core.member_state import MemberState
from replset.core.messages import DiskStalled, DrainFinished, ReplyBody
from replset.errors import (
    ErrorCode,
    OutOfDiskSpaceError,
    PrimarySteppedDownError,
    ReplError,
    StorageError,
    StoreBusyError,
)
from replset.member.disk.durability_mark import DurabilityMark
from replset.member.disk.writer import Writer
from replset.member.peers.message_documents import parse_reply, request_document
from replset.member.process.machine import BackgroundTasks
from replset.operations.transactions import TransactionTable
from replset.operations.waiters import Notifier, WaiterList
from replset.replication.chain_check import compare_chains
from replset.replication.context import MemberContext
from replset.replication.fetcher import Fetcher
from replset.replication.index_builder import IndexBuilder
from replset.replication.initial_sync import InitialSync
from replset.replication.ports import MemberClient
from replset.replication.rollback import Rollback
from replset.replication.rollback_list import RollbackList
from replset.storage.member_file import JournalLine, MemberFile

log = logging.getLogger("replset.member")
UNUSUAL = frozenset({MemberState.RECOVERING, MemberState.ROLLBACK, MemberState.REMOVED})
"""States in which a member serves nobody. Somebody should know why."""
ALARMING = frozenset({"quarantined", "damage found", "chain differs", "data lost", "too stale", "rollback", "resync"})
NOT_REACHABLE = "is not reachable"
"""Events of the journal that are warnings in the log: somebody has to look, or a member is away."""


@dataclass(slots=True, kw_only=True)
class CoreEffects:
    """Implements `shell.EffectHandler` with the parts of one member."""

    context: MemberContext
    member_file: MemberFile
    mark: DurabilityMark
    writer: Writer
    transactions: TransactionTable
    index_builder: IndexBuilder
    fetcher: Fetcher
    rollback: Rollback
    rollbacks: RollbackList
    initial_sync: InitialSync
    peer: MemberClient
    tasks: BackgroundTasks
    write_waiters: WaiterList
    changes: Notifier
    on_topology_changed: Callable[[], None]
    report_position: Callable[[], None]
    _is_disk_full: bool = False
    _state: MemberState | None = None

    def handle_effect(self, effect: Effect) -> None:
        match effect:
            case StateChanged(state=state):
                if self._state is MemberState.STARTUP2 and state is not MemberState.STARTUP2:
                    self.initial_sync.progress.give_up()  # it is over already, unless a resync was given up
                self._log_state(effect)
                if state is not MemberState.PRIMARY:
                    self.write_waiters.fail_all(lambda: PrimarySteppedDownError("the primary stepped down"))
                    self.transactions.abort_all(_interrupted_by_stepdown)
                self.on_topology_changed()
                self.changes.notify()
            case ConfigInstalled(config):
                log.info(
                    "configuration version %d of term %d: %s",
                    *(config.version, config.term, ", ".join(str(member.host) for member in config.members)),
                )
                self.on_topology_changed()
            case AcceptWrites(accept, term):
                self.writer.accept(term if accept else None)
                if not accept:
                    self.index_builder.on_stepdown()
                    self.transactions.abort_all(_interrupted_by_stepdown)
                self.on_topology_changed()
            case CommitPointAdvanced(commit_point):
                store = self.context.store
                store.set_commit_point(min(commit_point, store.last_applied))
                self.write_waiters.release()
                self.changes.notify()
            case ProgressChanged():
                self.write_waiters.release()
            case RelayProgress():
                self.report_position()
            case StartFetching(source):
                log.info("entries are fetched from %s", source)
                self.fetcher.start(source)
            case StopFetching():
                self.fetcher.stop()
            case Drain(term):
                self.tasks.start(self._report_drained(term, self.fetcher.drain()))
            case AppendNoop(term, message):
                self.context.write_queue.submit(lambda: self._append_noop(term, message))
            case CompareChains(at, hosts):
                self.tasks.start(compare_chains(self.context, self.peer, at, hosts))
            case StartRollback(source):
                self.tasks.start(self.then_count_rollbacks(lambda: self.rollback.run(source)))
            case StartInitialSync(source, reason, forced, oplog_only, is_stale):
                self.fetcher.stop()
                run = partial(
                    self.initial_sync.run, source, reason, forced=forced, oplog_only=oplog_only, is_stale=is_stale
                )
                self.tasks.start(self.then_count_rollbacks(run))
            case _:
                raise TypeError(f"nothing handles {effect}")

    def _log_state(self, changed: StateChanged) -> None:
        if changed.state is self._state:
            return
        level = logging.WARNING if changed.state in UNUSUAL else logging.INFO
        before = "" if self._state is None else f", it was {self._state.name}"
        self._state = changed.state
        attributes = {"state": changed.state.name, "term": changed.term}
        text = "this member is %s in term %d%s"
        log.log(level, text, changed.state.name, changed.term, before, extra={"attr": attributes})

    async def send_request(self, send: Send) -> ReplyBody:
        reply = await self.peer.call(send.to, request_document(send.body), timeout_ms=send.timeout_ms)
        return parse_reply(send.body, reply)

    def save_record(self, record: PersistedRecord) -> None:
        match record:
            case LastVote():
                self.member_file.save_vote(record, self.mark.durable)
            case ReplSetConfig():
                self.member_file.save_config(record)
            case InitialSyncNotNeeded():
                self.member_file.end_initial_sync()
                self.initial_sync.discard_copy()

    def save_election_events(self, records: list[ElectionRecord]) -> None:
        for record in records:
            attributes = {"term": record.term, "event": record.event, "detail": record.detail}
            is_alarming = record.event in ALARMING or NOT_REACHABLE in record.detail
            level = logging.WARNING if is_alarming else logging.INFO
            text = "term %d: %s: %s"
            log.log(level, text, record.term, record.event, record.detail, extra={"attr": attributes})
        lines = [JournalLine(record.wall_ms, record.term, record.event, record.detail) for record in records]
        self.member_file.append_lines(lines)

    def on_disk_space(self) -> None:
        """Tell the core that a disk on which it could not write its first entry has space again."""
        if self._is_disk_full:
            self._is_disk_full = False
            self.context.on_report(DiskStalled(False))

    async def then_count_rollbacks(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work`, which may write a rollback's files, then count them again."""
        await work()
        await self.rollbacks.refresh()

    async def _report_drained(self, term: int, drained: asyncio.Future[None]) -> None:
        await drained
        self.context.on_report(DrainFinished(term))

    def _append_noop(self, term: int, message: str) -> None:
        try:
            self.writer.append_noop(term, message)
        except OutOfDiskSpaceError as error:
            log.warning("%s; this member cannot lead", error.message)
            self._is_disk_full = True
            asyncio.get_running_loop().call_soon(self.context.on_report, DiskStalled(True))
        except StoreBusyError:
            raise  # the write queue calls again
        except StorageError as error:
            self.context.on_broken(error)


def _interrupted_by_stepdown() -> ReplError:
    return ReplError("the primary stepped down", code=ErrorCode.INTERRUPTED_BY_STATE_CHANGE)
