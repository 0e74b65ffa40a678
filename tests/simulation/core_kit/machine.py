"""One member in memory: a core node, a log of (optime, text) with a durable part, and a member file.

It carries out the effects of its node in order. Effects behind a Persist wait until that is durable. Replication copies
log entries as they are.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from replset.config import Member, ReplSetConfig, Settings
from replset.core.effects import (
    NO_VOTE,
    AcceptWrites,
    AppendNoop,
    CommitPointAdvanced,
    ConfigInstalled,
    Drain,
    Effect,
    InitialSyncNotNeeded,
    LastVote,
    Persist,
    ProgressChanged,
    RecordElectionEvent,
    RelayProgress,
    Reply,
    Send,
    StartFetching,
    StartInitialSync,
    StartRollback,
    StateChanged,
    StopFetching,
    ends_writes,
)
from replset.core.member_state import MemberState
from replset.core.messages import (
    DrainFinished,
    FetchProgress,
    InitialSyncEnded,
    InitialSyncStarted,
    LocalPosition,
    Message,
    Position,
    ReplyBody,
    RollbackEnded,
    SourceBatch,
    SourceFailed,
    SourceProblem,
    VoteSaved,
)
from replset.core.node import Node
from replset.core.state import NodeState
from replset.ids import OPTIME_NULL, HostPort, MemberId, Millis, OpTime, pack_ts
from tests.simulation.core_kit.answers import check_journal, judge_of_answer
from tests.simulation.core_kit.state_checks import check_state

if TYPE_CHECKING:
    from tests.simulation.core_kit.cluster import CoreCluster

WALL = 1_700_000_000_000
FAST = Settings(heartbeat_interval_ms=Millis(200), heartbeat_timeout_secs=1, election_timeout_ms=Millis(1_000))
POLL_MS = 5
FETCH_TIMEOUT_MS = 500
Entry = tuple[OpTime, str]


def host(number: int) -> HostPort:
    return HostPort(f"m{number}:27017")


def config_of(*members: Member, settings: Settings = FAST, version: int = 1, term: int = 1) -> ReplSetConfig:
    return ReplSetConfig("rs0", version, term, members, settings)


def members_of(count: int, *, arbiters: int = 0, witnesses: int = 0) -> tuple[Member, ...]:
    """Members 0..count-1; the last `arbiters` of them are arbiters, the `witnesses` before these are witnesses."""
    leaders = count - arbiters - witnesses
    return tuple(
        Member(
            MemberId(n),
            host(n),
            arbiter_only=n >= count - arbiters,
            priority=1.0 if n < leaders else 0.0,
            witness=leaders <= n < count - arbiters,
        )
        for n in range(count)
    )


@dataclass
class CoreDisk:
    """What a crash leaves: the first `durable` entries of `log` always, the rest if only the process dies."""

    incarnation: str
    marker: bool = True
    requested: bool = False
    config: ReplSetConfig | None = None
    last_vote: LastVote | None = None
    log: list[Entry] = field(default_factory=list)
    durable: int = 0
    rollback_id: int = 1
    rollbacks: list[Entry] = field(default_factory=list)
    oplog_only: bool = False  # a witness's: without documents


class CoreMachine:
    """One member: its node, its disk, and the functions that carry out effects."""

    def __init__(self, cluster: CoreCluster, address: HostPort) -> None:
        self.cluster = cluster
        self.host = address
        self.disk = CoreDisk(cluster.new_incarnation())
        self.alive = False
        self.is_dark = False  # without power: what others send is not even refused
        self.start_number = 0
        self.source: HostPort | None = None
        self.accepting: int | None = None
        self.was_late = False  # after the last tick more was due; a change of the state may leave that to the next one
        self.states: list[MemberState] = []
        self.journal: list[str] = []
        self.answers: dict[int, ReplyBody] = {}
        self.effects: list[Effect] = []  # all that came out, for looking at their order
        self.boot()

    # --- start and stop ------------------------------------------------------------------------------------------

    def boot(self) -> None:
        disk = self.disk
        self.start_number += 1
        self.booted_at = self.cluster.now
        self.alive = True
        self.is_dark = False
        self.queue: deque[Effect] = deque()
        self.persisting = False
        self.source, self.accepting, self.session = None, None, 0
        self.asked: dict[int, tuple[CoreMachine, int, int]] = {}
        disk.durable = len(disk.log)
        self.node = Node(
            NodeState(
                host=self.host,
                set_name="rs0",
                http_address=f"http://{self.host}",
                incarnation=disk.incarnation,
                rng=random.Random(self.cluster.rng.random()),
                config=disk.config,
                last_vote=disk.last_vote or NO_VOTE,
                position=self.position(),
                initial_sync_pending=disk.marker,
                resync_requested=disk.requested,
                oplog_only=disk.oplog_only,
                rollback_id=lambda: self.disk.rollback_id,
                wall_ms=lambda: WALL + self.cluster.now,
                default_write_concern_set=lambda: self.cluster.default_write_concern_set,
                allow_multiple_arbiters=True,
                expected=self.cluster.expected.get(self.host, ()),
                role_hook_ms=self.cluster.role_hook_ms,
                holds_role=lambda: self.cluster.holds_role(self),
            )
        )
        self.committed = OPTIME_NULL
        self.said = MemberState.STARTUP
        self.configured = disk.config
        self.take(self.node.start(self.cluster.now))

    def crash(self, *, power: bool = False, kept: int = 0) -> None:
        """Kill the process; with `power` what was not synced is gone too, but for its first `kept` entries."""
        self.alive = False
        self.is_dark = power
        if not power:
            self.cluster.break_connections(self.host)
        if power:
            del self.disk.log[self.disk.durable + kept :]

    def wipe(self) -> None:
        """The disk is replaced by an empty one."""
        self.alive = False
        self.disk = CoreDisk(self.cluster.new_incarnation())

    # --- in and out ----------------------------------------------------------------------------------------------

    def position(self) -> Position:
        log, durable = self.disk.log, self.disk.durable
        applied = log[-1][0] if log else OPTIME_NULL
        synced = log[durable - 1][0] if durable else OPTIME_NULL
        return Position(applied, synced, 0, 0)

    def feed(self, message: Message) -> None:
        checkers = self.cluster.checkers
        known = checkers.sender_of_late_message(self, message)
        judge = judge_of_answer(self, message)
        effects = self.node.receive(message, self.cluster.now)
        if judge is not None:
            judge(effects)
        checkers.check_late_message(self, message, known)
        self.take(effects)

    def take(self, effects: list[Effect]) -> None:
        self.effects.extend(effects)
        self.check_effects(effects)
        self.said = check_journal(self, effects, self.said)
        for effect in effects:
            if ends_writes(effect):
                self.carry_out(effect)
                if isinstance(effect, AcceptWrites):
                    self.queue = deque(waiting for waiting in self.queue if not isinstance(waiting, AcceptWrites))
            else:
                self.queue.append(effect)
        self.pump()
        self.cluster.wake(self)

    def check_effects(self, effects: list[Effect]) -> None:
        """What the node takes for committed, and what it makes of its configuration, against all disks."""
        config, checkers = self.node.config, self.cluster.checkers
        configs = [known for known in (self.configured, config) if known is not None]
        for effect in effects:
            match effect:
                case CommitPointAdvanced(point):
                    checkers.check_commit_point(self, point, configs)
                case ConfigInstalled(installed):
                    if self.configured is not None:
                        checkers.check_reconfig(self, self.configured, installed)
                        for watch in self.cluster.on_reconfig:
                            watch(self, self.configured, installed)
                    self.configured = installed
        self.configured = config

    def pump(self) -> None:
        while self.queue and not self.persisting and self.alive:
            effect = self.queue.popleft()
            if isinstance(effect, Persist):
                self.persisting = True
                self.later(
                    self.cluster.persist_ms + self.cluster.stall_ms(), lambda effect=effect: self.persisted(effect)
                )
                for hook in [*self.cluster.on_persist]:
                    hook(self, effect.record)
            else:
                self.carry_out(effect)
        if self.alive:
            self.cluster.checkers.check_primary(self)
            check_state(self)

    def persisted(self, effect: Persist) -> None:
        match effect.record:
            case LastVote() as vote:
                self.cluster.checkers.on_vote(self, vote)
                self.disk.last_vote = vote
            case ReplSetConfig() as written:
                config = ReplSetConfig.parse(written.document(internal=True))
                self.disk.config = config
                self.cluster.checkers.on_config_saved(self, config)
            case InitialSyncNotNeeded():
                self.disk.marker = self.disk.requested = False
        self.persisting = False
        if isinstance(effect.record, LastVote):
            self.feed(VoteSaved(effect.record.term))
        self.pump()

    def carry_out(self, effect: Effect) -> None:
        node = self.node
        match effect:
            case Send():
                self.cluster.send(self, effect)
            case Reply(request_id, body):
                asked = self.asked.pop(request_id, None)
                if asked is None:
                    self.answers[request_id] = body
                else:
                    self.cluster.answer(self, asked, body)
            case StateChanged(state=state):
                if self.states[-1:] == [MemberState.ARBITER] and self.disk.log:
                    self.committed = OPTIME_NULL  # what it knew as an arbiter says nothing of its old entries
                self.states.append(state)
                self.cluster.note(self.host, f"{state.name} term {node.term}")
            case RecordElectionEvent(record=record):
                self.journal.append(f"{self.cluster.now} {record.event}: {record.detail}")
            case AppendNoop(term, text):
                if text == "initiating set" or (node.state is MemberState.PRIMARY and node.term == term):
                    self.append(term, text)
            case AcceptWrites(accept, term):
                self.accepting = term if accept else None
            case StartFetching(source):
                self.source = source
                self.session += 1
                self.later(POLL_MS, lambda session=self.session: self.fetch(session))
            case StopFetching():
                self.source = None
                self.session += 1
            case Drain(term):
                self.source = None
                self.session += 1
                self.later(1, lambda: self.feed(DrainFinished(term)))
            case StartRollback(source):
                self.later(20, lambda: self.roll_back(source))
            case StartInitialSync(source, forced=forced, oplog_only=oplog_only):
                self.later(10, lambda: self.begin_sync(source, forced, oplog_only))
            case CommitPointAdvanced(commit_point):
                assert commit_point > self.committed, "invariant 8: a running member's commit point never moves back"
                self.committed = commit_point
                self.cluster.note(self.host, f"commit point {commit_point}")
                self.cluster.checkers.on_commit(self)
            case RelayProgress():
                self.report()
            case ConfigInstalled() | ProgressChanged():
                pass

    def later(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Do it only until the process ends."""
        start_number = self.start_number
        self.cluster.at(delay_ms, lambda: action() if self.alive and self.start_number == start_number else None)

    # --- the log -------------------------------------------------------------------------------------------------

    def append(self, term: int, text: str) -> OpTime:
        last = self.disk.log[-1][0].ts if self.disk.log else 0
        optime = OpTime(term, max(last + 1, pack_ts((WALL + self.cluster.now) // 1000, 1)))
        self.cluster.on_append(self)
        self.disk.log.append((optime, text))
        self.moved()
        return optime

    def write(self, text: str) -> OpTime | None:
        """A client's write; None: not accepted here."""
        if not self.alive or not self.node.writable or self.accepting != self.node.term:
            return None
        return self.append(self.node.term, text)

    def moved(self) -> None:
        self.feed(LocalPosition(self.position()))
        self.report()
        count = len(self.disk.log)
        log = self.disk.log
        self.later(self.cluster.sync_ms + self.cluster.stall_ms(), lambda: self.synced(log, count))

    def synced(self, log: list[Entry], count: int) -> None:
        if log is self.disk.log and count <= len(log) and count > self.disk.durable:
            self.disk.durable = count
            self.feed(LocalPosition(self.position()))
            self.report()

    def report(self) -> None:
        request = self.node.progress_request()
        if request is not None and self.source is not None:
            self.cluster.send(self, Send(0, self.source, request, Millis(500)))

    def fetch(self, session: int) -> None:
        """One page, then the next one. Each request carries the position of the moment at which it was made."""
        cluster, address = self.cluster, self.source
        if session != self.session or address is None:
            return
        source = cluster.machines[address]
        mine = self.disk.log[-1] if self.disk.log else None
        progress = self.node.progress_request()
        answered: list[bool] = []

        def answer(then: Callable[[], None]) -> None:
            if not answered and session == self.session:
                answered.append(True)
                then()

        def back(then: Callable[[], None]) -> None:
            if cluster.passes(source.host, self.host):
                self.later(cluster.delay(), lambda: answer(then))

        def serve() -> None:
            node, log = source.node, source.disk.log
            if source.alive and progress is not None:
                source.feed(FetchProgress(progress))
            if not source.alive:
                back(lambda: self.fail(SourceProblem.UNREACHABLE, address))
            elif not node.serves_oplog:
                back(lambda: self.fail(SourceProblem.NOT_READABLE, address))
            elif mine is not None and mine not in log:
                history = (node.term, log[-1][0], log[0][0]) if log else (node.term, OPTIME_NULL, OPTIME_NULL)
                back(lambda: self.fail(SourceProblem.DIVERGED, address, *history))
            else:
                after = 0 if mine is None else log.index(mine) + 1
                batch = log[after : after + cluster.page()]
                point = min(node.commit_point, node.position.last_applied)
                found = SourceBatch(address, node.term, point, node.state is MemberState.PRIMARY, node.commit_term)
                back(lambda: self.apply(session, batch, found))

        self.later(FETCH_TIMEOUT_MS, lambda: answer(lambda: self.fail(SourceProblem.UNREACHABLE, address)))
        if cluster.passes(self.host, address):
            self.later(cluster.delay(), serve)

    def apply(self, session: int, batch: list[Entry], found: SourceBatch) -> None:
        if batch:
            self.disk.log = [*self.disk.log, *batch]
            self.moved()
        if session == self.session:
            self.feed(found)
        self.later(POLL_MS, lambda: self.fetch(session))

    def fail(
        self,
        problem: SourceProblem,
        address: HostPort,
        term: int = 0,
        newest: OpTime = OPTIME_NULL,
        oldest: OpTime = OPTIME_NULL,
    ) -> None:
        self.source = None
        self.session += 1
        self.feed(SourceFailed(address, problem, problem.value, term, newest, oldest))

    def serves(self, other: CoreMachine) -> bool:
        """Whether `other` can have more of this member than pages: a search for the common point, a copy."""
        return (
            self.alive and self.node.state is not MemberState.ROLLBACK and self.cluster.is_open(self.host, other.host)
        )

    def roll_back(self, address: HostPort) -> None:
        source = self.cluster.machines[address]
        if not source.serves(self):
            self.feed(RollbackEnded(address, False, True, False, "the source is gone"))
            return
        common = [entry for entry in self.disk.log if entry in source.disk.log]
        if not common:
            self.feed(RollbackEnded(address, False, False, True, "no common point"))
            return
        assert self.node.state in (MemberState.ROLLBACK, MemberState.REMOVED)  # none of them serves reads
        point = common[-1][0]
        undone = self.disk.log[len(common) :]
        self.cluster.checkers.check_rollback(self, undone, point)
        if point < self.committed:
            self.feed(RollbackEnded(address, False, False, False, "below the commit point"))
            return
        self.cluster.note(self.host, f"undoes {len(undone)} entries")
        self.cluster.done["undo steps"] += 1
        self.disk.rollbacks += undone
        self.disk.log = common
        self.disk.durable = min(self.disk.durable, len(common))
        self.disk.rollback_id += 1
        self.feed(LocalPosition(self.position()))
        self.feed(RollbackEnded(address, True, False, False, f"undone down to {point}"))

    def begin_sync(self, address: HostPort, forced: bool, oplog_only: bool) -> None:
        if not self.disk.marker:
            if not self.disk.log:
                self.disk.incarnation = self.cluster.new_incarnation()
            self.disk.marker = True
        self.disk.requested = self.node.is_resync_requested
        self.feed(InitialSyncStarted(self.disk.incarnation))
        self.later(self.cluster.copy_ms, lambda: self.end_sync(address, forced, oplog_only))

    def end_sync(self, address: HostPort, forced: bool, oplog_only: bool) -> None:
        source = self.cluster.machines[address]
        self.cluster.checkers.check_copy(self, source)
        if not source.serves(self) or not source.disk.log:
            self.feed(InitialSyncEnded(address, False, "the source is gone"))
            return
        held, committed = self.position().last_applied, self.node.commit_point
        newest = source.disk.log[-1][0]
        holds_committed = committed < source.disk.log[0][0] or committed in [optime for optime, _ in source.disk.log]
        reached = newest >= held and holds_committed
        if not reached and not forced:
            self.feed(InitialSyncEnded(address, False, "the source is behind", refused=True))
            return
        if newest < held:
            self.disk.incarnation = self.cluster.new_incarnation()
            self.feed(InitialSyncStarted(self.disk.incarnation))
        self.disk.rollbacks += [entry for entry in self.disk.log if entry not in source.disk.log]
        self.cluster.done["copies"] += 1
        self.disk.rollback_id = max(self.disk.rollback_id, source.disk.rollback_id) + 1
        self.disk.log = list(source.disk.log)
        self.disk.durable = len(self.disk.log)
        self.disk.marker = self.disk.requested = False
        self.disk.oplog_only = oplog_only
        if not reached:
            self.committed = OPTIME_NULL
        self.feed(LocalPosition(self.position()))
        self.feed(InitialSyncEnded(address, True, "copied", holds_committed=reached, oplog_only=oplog_only))
