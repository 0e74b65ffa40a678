"""Several nodes in memory under a virtual clock: messages take time, may be cut, members may die or lose their disk.

Each member has a log of (optime, text), a durable part of it, and a member file; the effects of its node are carried
out in order, and those behind a Persist wait until it is durable. Replication is a plain copy of log entries. After
every event the invariants of the core are checked: one primary per term, one vote per member and term, a commit point
that never moves back, one committed history that no rollback touches. `tests/simulation/kit/core_runs.py` plays with it
by chance.
"""

from __future__ import annotations

import heapq
import random
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from replset.config import Member, ReplSetConfig, Settings
from replset.core.effects import (
    AcceptWrites,
    AppendNoop,
    BecomeState,
    CommitPointMoved,
    ConfigInstalled,
    Drain,
    Effect,
    InitialSyncNotNeeded,
    Journal,
    LastVote,
    Persist,
    PersistedRecord,
    ProgressMoved,
    Reply,
    Send,
    StartFetching,
    StartInitialSync,
    StartRollback,
    StopFetching,
)
from replset.core.member_state import MemberState
from replset.core.messages import (
    DrainFinished,
    FreezeRequest,
    InitialSyncBegun,
    InitialSyncEnded,
    InitiateRequest,
    LocalPosition,
    Message,
    Position,
    ReconfigRequest,
    ReplyBody,
    Request,
    RequestBody,
    Response,
    RollbackEnded,
    SourceBatch,
    SourceFailed,
    SourceProblem,
    StepDownRequest,
    VoteSaved,
)
from replset.core.node import Node
from replset.ids import OPTIME_NULL, HostPort, MemberId, Millis, OpTime, pack_ts

WALL = 1_700_000_000_000
FAST = Settings(heartbeat_interval_ms=Millis(200), heartbeat_timeout_secs=1, election_timeout_ms=Millis(1_000))
POLL_MS = 5
FETCH_TIMEOUT_MS = 500
Entry = tuple[OpTime, str]


def host(number: int) -> HostPort:
    return HostPort(f"m{number}:27017")


def config_of(*members: Member, settings: Settings = FAST, version: int = 1, term: int = 1) -> ReplSetConfig:
    return ReplSetConfig("rs0", version, term, members, settings)


def members_of(count: int, *, arbiters: int = 0) -> tuple[Member, ...]:
    """Members 0..count-1; the last `arbiters` of them are arbiters."""
    return tuple(
        Member(MemberId(n), host(n), arbiter_only=n >= count - arbiters, priority=0.0 if n >= count - arbiters else 1.0)
        for n in range(count)
    )


@dataclass
class Disk:
    """What survives a crash. `log` up to `durable` entries always, the rest if the process alone dies."""

    incarnation: str
    marker: bool = True
    config: ReplSetConfig | None = None
    last_vote: LastVote | None = None
    log: list[Entry] = field(default_factory=list)
    durable: int = 0
    rollback_id: int = 1
    rollbacks: list[Entry] = field(default_factory=list)


class Box:
    """One member: its node, its disk, and the hands that carry effects out."""

    def __init__(self, cluster: Cluster, address: HostPort) -> None:
        self.cluster = cluster
        self.host = address
        self.disk = Disk(cluster.new_incarnation())
        self.alive = False
        self.life = 0
        self.source: HostPort | None = None
        self.accepting: int | None = None
        self.states: list[MemberState] = []
        self.journal: list[str] = []
        self.answers: dict[int, ReplyBody] = {}
        self.effects: list[Effect] = []  # all that came out, for looking at their order
        self.boot()

    # --- life ----------------------------------------------------------------------------------------------------

    def boot(self) -> None:
        disk = self.disk
        self.life += 1
        self.alive = True
        self.queue: deque[Effect] = deque()
        self.persisting = False
        self.source, self.accepting, self.session = None, None, 0
        self.asked: dict[int, tuple[Box, int, int]] = {}
        disk.durable = len(disk.log)
        self.node = Node(
            host=self.host,
            set_name="rs0",
            http_address=f"http://{self.host}",
            incarnation=disk.incarnation,
            rng=random.Random(self.cluster.rng.random()),
            config=disk.config,
            last_vote=disk.last_vote,
            position=self.position(),
            initial_sync_pending=disk.marker,
            rollback_id=lambda: self.disk.rollback_id,
            wall_ms=lambda: WALL + self.cluster.now,
            default_write_concern_set=lambda: self.cluster.default_write_concern_set,
            allow_multiple_arbiters=True,
        )
        self.committed = OPTIME_NULL
        self.take(self.node.start(self.cluster.now))

    def crash(self, *, power: bool = False, kept: int = 0) -> None:
        """Kill the process; with `power` what was not synced is gone too, but for its first `kept` entries."""
        self.alive = False
        if power:
            del self.disk.log[self.disk.durable + kept :]

    def wipe(self) -> None:
        """The disk is replaced by an empty one."""
        self.alive = False
        self.disk = Disk(self.cluster.new_incarnation())

    # --- in and out ----------------------------------------------------------------------------------------------

    def position(self) -> Position:
        log, durable = self.disk.log, self.disk.durable
        applied = log[-1][0] if log else OPTIME_NULL
        synced = log[durable - 1][0] if durable else OPTIME_NULL
        return Position(applied, synced, 0, 0)

    def feed(self, message: Message) -> None:
        self.take(self.node.receive(message, self.cluster.now))

    def take(self, effects: list[Effect]) -> None:
        self.effects.extend(effects)
        self.queue.extend(effects)
        self.pump()
        self.cluster.wake(self)

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
            self.cluster.check(self)

    def persisted(self, effect: Persist) -> None:
        match effect.record:
            case LastVote() as vote:
                self.cluster.vote_cast(self, vote)
                self.disk.last_vote = vote
            case ReplSetConfig() as config:
                self.disk.config = config
            case InitialSyncNotNeeded():
                self.disk.marker = False
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
            case BecomeState(state=state):
                self.states.append(state)
                self.cluster.note(self.host, f"{state.name} term {node.term}")
            case Journal(record=record):
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
            case StartInitialSync(source):
                self.later(10, lambda: self.begin_sync(source))
            case CommitPointMoved(commit_point):
                assert commit_point > self.committed, "invariant 8: a running member's commit point never moves back"
                self.committed = commit_point
                self.cluster.note(self.host, f"commit point {commit_point}")
                self.cluster.check_history(self)
            case ConfigInstalled() | ProgressMoved():
                pass

    def later(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Do it in this life only."""
        life = self.life
        self.cluster.at(delay_ms, lambda: action() if self.alive and self.life == life else None)

    # --- the log -------------------------------------------------------------------------------------------------

    def append(self, term: int, text: str) -> OpTime:
        last = self.disk.log[-1][0].ts if self.disk.log else 0
        optime = OpTime(term, max(last + 1, pack_ts((WALL + self.cluster.now) // 1000, 1)))
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
        """One page, then the next one."""
        cluster, address = self.cluster, self.source
        if session != self.session or address is None:
            return
        source = cluster.boxes[address]
        mine = self.disk.log[-1] if self.disk.log else None
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
            if not source.alive:
                back(lambda: self.fail(SourceProblem.UNREACHABLE, address))
            elif node.state not in (MemberState.PRIMARY, MemberState.SECONDARY, MemberState.RECOVERING):
                back(lambda: self.fail(SourceProblem.NOT_READABLE, address))
            elif mine is not None and mine not in log:
                told = (node.term, log[-1][0], log[0][0]) if log else (node.term, OPTIME_NULL, OPTIME_NULL)
                back(lambda: self.fail(SourceProblem.DIVERGED, address, *told))
            else:
                after = 0 if mine is None else log.index(mine) + 1
                batch = log[after : after + cluster.page()]
                point = min(node.commit_point, node.position.last_applied)
                found = SourceBatch(address, node.term, point, node.state is MemberState.PRIMARY)
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

    def serves(self, other: Box) -> bool:
        """Whether `other` can have more of this member than pages: a search for the common point, a copy."""
        return (
            self.alive and self.node.state is not MemberState.ROLLBACK and self.cluster.is_open(self.host, other.host)
        )

    def roll_back(self, address: HostPort) -> None:
        source = self.cluster.boxes[address]
        if not source.serves(self):
            self.feed(RollbackEnded(address, False, True, False, "the source is gone"))
            return
        common = [entry for entry in self.disk.log if entry in source.disk.log]
        if not common:
            self.feed(RollbackEnded(address, False, False, True, "no common point"))
            return
        assert self.node.state is MemberState.ROLLBACK
        point = common[-1][0]
        undone = self.disk.log[len(common) :]
        self.cluster.check_undone(self, undone, point)
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

    def begin_sync(self, address: HostPort) -> None:
        if not self.disk.marker:
            self.disk.incarnation = self.cluster.new_incarnation()
            self.disk.marker = True
        self.feed(InitialSyncBegun(self.disk.incarnation))
        self.later(self.cluster.copy_ms, lambda: self.end_sync(address))

    def end_sync(self, address: HostPort) -> None:
        source = self.cluster.boxes[address]
        if not source.serves(self) or not source.disk.log:
            self.feed(InitialSyncEnded(address, False, "the source is gone"))
            return
        self.disk.rollbacks += [entry for entry in self.disk.log if entry not in source.disk.log]
        self.cluster.done["copies"] += 1
        self.disk.rollback_id = max(self.disk.rollback_id, source.disk.rollback_id) + 1
        self.disk.log = list(source.disk.log)
        self.disk.durable = len(self.disk.log)
        self.disk.marker = False
        self.feed(LocalPosition(self.position()))
        self.feed(InitialSyncEnded(address, True, "copied"))


class Cluster:
    """Boxes, the network between them, and the clock."""

    def __init__(self, count: int, *, seed: int = 1, latency_ms: tuple[int, int] = (1, 3)) -> None:
        self.rng = random.Random(seed)
        self.now = Millis(1_000)
        self.latency_ms = latency_ms
        self.loss = 0.0  # of messages
        self.late = 0.0  # of messages: they take up to a second and a half
        self.stalls = 0.0  # of what a disk saves or syncs: it takes 300 ms more
        self.pages: tuple[int, ...] = ()  # how many entries a fetch may bring, one of them; none: all
        self.on_persist: list[Callable[[Box, PersistedRecord], None]] = []
        self.trace: list[str] = []
        self.done: Counter[str] = Counter()
        self.persist_ms = 2
        self.sync_ms = 3
        self.copy_ms = 50
        self.default_write_concern_set = False
        self.cut: set[tuple[HostPort, HostPort]] = set()
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._incarnations = 0
        self._requests = 1_000_000
        self._waiting: dict[int, Callable[[ReplyBody | None, str], None]] = {}
        self.primaries: dict[int, tuple[HostPort, int]] = {}
        self.votes: dict[tuple[HostPort, str, int], MemberId | None] = {}
        self.committed_log: list[Entry] = []
        self.committed_in: dict[OpTime, int] = {}  # the term of the commit point that covered it first
        self.exempt = False  # a forced reconfig voids the invariants
        self.boxes: dict[HostPort, Box] = {}
        for number in range(count):
            self.add(number)

    def add(self, number: int) -> Box:
        box = self.boxes[host(number)] = Box.__new__(Box)
        box.__init__(self, host(number))  # type: ignore[misc]  # it looks itself up while it starts
        return box

    def new_incarnation(self) -> str:
        self._incarnations += 1
        return f"i{self._incarnations}"

    def __getitem__(self, number: int) -> Box:
        return self.boxes[host(number)]

    def note(self, who: str, what: str) -> None:
        self.trace.append(f"{self.now:>7} {who:<9} {what}")

    # --- events --------------------------------------------------------------------------------------------------

    def at(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (self.now + max(0, delay_ms), self._sequence, action))

    def wake(self, box: Box) -> None:
        """Call the node's tick when it is due."""
        due = box.node.next_tick_at()
        if box.alive and due < (1 << 61):
            planned = getattr(box, "planned", None)
            if planned is not None and planned[0] == box.life and self.now < planned[1] <= due:
                return
            when = max(due, self.now + 1)
            box.planned = (box.life, when)  # type: ignore[attr-defined]
            box.later(when - self.now, lambda: self._tick(box))

    def _tick(self, box: Box) -> None:
        if box.node.next_tick_at() > self.now:
            box.planned = None  # type: ignore[attr-defined]
            self.wake(box)
            return
        box.planned = None  # type: ignore[attr-defined]
        box.take(box.node.tick(self.now))

    def run(self, for_ms: int) -> None:
        end = self.now + for_ms
        while self._events and self._events[0][0] <= end:
            due, _, action = heapq.heappop(self._events)
            self.now = Millis(max(self.now, due))
            action()
        self.now = Millis(end)

    def until(self, condition: Callable[[], object], within_ms: int = 30_000) -> None:
        """Run until `condition` holds; fails with everybody's journal when it does not in time."""
        end = self.now + within_ms
        while not condition():
            if self.now >= end:
                lines = [f"{box.host} {line}" for box in self.boxes.values() for line in box.journal[-12:]]
                raise AssertionError("not in time:\n" + "\n".join([*self.summary(), *lines]))
            self.run(10)

    def summary(self) -> list[str]:
        return [
            f"{box.host} {'up' if box.alive else 'dead'} {box.node.state.name} term {box.node.term} "
            f"config {box.node.config and box.node.config.version_and_term} log {len(box.disk.log)} "
            f"commit {box.node.commit_point} source {box.source} {box.disk.incarnation}"
            for box in self.boxes.values()
        ]

    # --- network -------------------------------------------------------------------------------------------------

    def is_open(self, one: HostPort, other: HostPort) -> bool:
        return (one, other) not in self.cut and (other, one) not in self.cut

    def isolate(self, *numbers: int) -> None:
        """Cut these members off from all others, both ways."""
        inside = {host(number) for number in numbers}
        self.cut = {
            (one, other) for one in self.boxes for other in self.boxes if (one in inside) is not (other in inside)
        }

    def heal(self) -> None:
        self.cut = set()

    def delay(self) -> int:
        if self.late and self.rng.random() < self.late:
            return self.rng.randint(10, 1_500)
        return self.rng.randint(*self.latency_ms)

    def stall_ms(self) -> int:
        return 300 if self.stalls and self.rng.random() < self.stalls else 0

    def page(self) -> int:
        return self.rng.choice(self.pages) if self.pages else 1 << 30

    def passes(self, one: HostPort, other: HostPort) -> bool:
        return (one, other) not in self.cut and self.rng.random() >= self.loss

    def send(self, sender: Box, send: Send) -> None:
        life, began = sender.life, self.now
        target = self.boxes.get(send.to)
        done: list[bool] = []

        def back(body: ReplyBody | None, error: str) -> None:
            if not done and sender.alive and sender.life == life:
                done.append(True)
                sender.feed(Response(send.request_id, send.to, body, error, Millis(self.now - began)))

        def deliver() -> None:
            if target is None or not target.alive:
                if (send.to, sender.host) not in self.cut:
                    self.at(1, lambda: back(None, "connection refused"))
                return
            self._requests += 1
            number = self._requests
            target.asked[number] = (sender, life, number)
            self._waiting[number] = back
            target.feed(Request(number, send.body))

        self.at(send.timeout_ms, lambda: back(None, "timed out"))
        if self.passes(sender.host, send.to):
            self.at(self.delay(), deliver)

    def answer(self, replier: Box, asked: tuple[Box, int, int], body: ReplyBody) -> None:
        asker, _, number = asked
        back = self._waiting.pop(number)
        if self.passes(replier.host, asker.host):
            self.at(self.delay(), lambda: back(body, ""))

    # --- administration ------------------------------------------------------------------------------------------

    def ask(self, number: int, body: RequestBody) -> int:
        """Put an administrator's request; its answer comes into `answer_of`."""
        self._requests += 1
        self[number].feed(Request(self._requests, body))
        return self._requests

    def answer_of(self, number: int, request: int) -> ReplyBody | None:
        return self[number].answers.get(request)

    def ask_and_wait(self, number: int, body: RequestBody, within_ms: int = 30_000) -> ReplyBody:
        request = self.ask(number, body)
        self.until(lambda: self.answer_of(number, request) is not None, within_ms)
        answer = self.answer_of(number, request)
        assert answer is not None
        return answer

    def initiate(self, *members: Member, settings: Settings = FAST) -> ReplyBody:
        return self.ask_and_wait(0, InitiateRequest(config_of(*members, settings=settings, term=-1)))

    def reconfig(self, number: int, config: ReplSetConfig, *, force: bool = False, max_time_ms: int = 0) -> ReplyBody:
        return self.ask_and_wait(number, ReconfigRequest(config, force, max_time_ms))

    def step_down(self, number: int, *, seconds: int = 60, catch_up: int = 10, force: bool = False) -> ReplyBody:
        return self.ask_and_wait(number, StepDownRequest(seconds * 1000, catch_up * 1000, force))

    def freeze(self, number: int, seconds: int) -> ReplyBody:
        return self.ask_and_wait(number, FreezeRequest(seconds * 1000))

    def user_config(self, number: int, *members: Member) -> ReplSetConfig:
        """What a user would send: the current version + 1, nothing that users do not see."""
        config = self[number].node.config
        assert config is not None
        plain = tuple(replace(member, newly_added=False, incarnation=None) for member in members or config.members)
        return replace(config, version=config.version + 1, term=-1, members=plain)

    # --- looking -------------------------------------------------------------------------------------------------

    @property
    def primary(self) -> Box | None:
        """Who takes writes, in the newest term."""
        leaders = [box for box in self.boxes.values() if box.alive and box.node.writable]
        return max(leaders, key=lambda box: box.node.term, default=None)

    def elect(self, within_ms: int = 30_000) -> Box:
        self.until(lambda: self.primary is not None, within_ms)
        leader = self.primary
        assert leader is not None
        return leader

    def number_of(self, box: Box) -> int:
        return int(box.host[1:].split(":")[0])

    def all_counted(self) -> bool:
        """Every member of the configuration votes where it should, and the configuration is everybody's."""
        leader = self.primary
        if leader is None or leader.node.config is None:
            return False
        config = leader.node.config
        for member in config.members:
            box = self.boxes[member.host]
            if not box.alive or box.node.config != config or member.newly_added:
                return False
            if member.votes and member.incarnation != box.disk.incarnation:
                return False
        return True

    def is_quiet(self) -> bool:
        """One primary that everybody knows, all logs equal, everything committed everywhere."""
        leader = self.primary
        if leader is None or not self.all_counted():
            return False
        for member in leader.node.config.members if leader.node.config else ():
            box = self.boxes[member.host]
            if box.node.primary_host != leader.host or box.node.term != leader.node.term:
                return False
            if not member.arbiter_only and box.disk.log != leader.disk.log:
                return False
            if not member.arbiter_only and box.node.commit_point != leader.disk.log[-1][0]:
                return False
        return True

    # --- invariants ----------------------------------------------------------------------------------------------

    def vote_cast(self, box: Box, vote: LastVote) -> None:
        key = (box.host, box.disk.incarnation, vote.term)
        if vote.candidate is not None:
            before = self.votes.setdefault(key, vote.candidate)
            assert before == vote.candidate, f"invariant 1: {box.host} voted twice in term {vote.term}"

    def check(self, box: Box) -> None:
        node = box.node
        if node.state is MemberState.PRIMARY and not self.exempt:
            leader, me = self.primaries.setdefault(node.term, (box.host, box.life)), (box.host, box.life)
            assert leader == me, f"invariant 1: two primaries in term {node.term}, {leader} and {me} (member, life)"
        if node.state is MemberState.PRIMARY and node.commit_point.term == node.term and not self.exempt:
            self.check_committed(box)

    def check_committed(self, box: Box) -> None:
        """A primary has what it says is committed."""
        log, point = box.disk.log, box.node.commit_point
        place = bisect_right(log, point, key=lambda entry: entry[0])
        assert place, f"invariant 3: {box.host} commits {point}, its log is empty up to there"
        assert log[place - 1][0] == point, f"invariant 3: {box.host} commits {point}, which it does not have"

    def check_history(self, box: Box) -> None:
        """What this member knows to be committed goes on from what was committed before."""
        if self.exempt:
            return
        log, known = box.disk.log, self.committed_log
        place = bisect_right(log, box.node.commit_point, key=lambda entry: entry[0])
        for mine, theirs in zip(log[:place], known, strict=False):
            assert mine == theirs, f"invariant 3: {box.host} commits {mine} where {theirs} was committed"
        for entry in log[len(known) : place]:
            known.append(entry)
            self.committed_in[entry[0]] = box.node.commit_point.term

    def check_undone(self, box: Box, undone: list[Entry], down_to: OpTime) -> None:
        if self.exempt:
            return
        below = f"{box.host} would roll back to {down_to}, below its commit point {box.committed}"
        assert down_to >= box.committed, f"invariant 3: {below}"
        # Who has nothing of the term in which an entry was committed was not counted for it: its copy may go.
        newest = undone[-1][0].term if undone else 0
        lost = [entry for entry in undone if self.committed_in.get(entry[0], newest + 1) <= newest]
        assert not lost, f"invariant 3: {box.host} rolls back {lost[0]}, which was committed"
        self.done["uncounted copies undone"] += sum(entry[0] in self.committed_in for entry in undone)


# --- sets at rest, and changes of them --------------------------------------------------------------------------------


def running(count: int = 3, *, arbiters: int = 0, seed: int = 1, extra: int = 0) -> Cluster:
    """A set at rest; `extra` members are started but not in it."""
    cluster = Cluster(count + extra, seed=seed)
    cluster.initiate(*members_of(count, arbiters=arbiters))
    cluster.until(cluster.is_quiet)
    return cluster


def leader_number(cluster: Cluster) -> int:
    return cluster.number_of(cluster.elect())


def the_config(box: Box) -> ReplSetConfig:
    assert box.node.config is not None
    return box.node.config


def change(cluster: Cluster, *members: Member, **options: Any) -> object:
    number = leader_number(cluster)
    return cluster.reconfig(number, cluster.user_config(number, *members), **options)
