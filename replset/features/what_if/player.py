"""Plays a set forward on a virtual clock: one core node for each member, their logs as optimes, and a network."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from replset.config import ReplSetConfig
from replset.core.effects import (
    AppendNoop,
    Drain,
    Effect,
    ElectionRecord,
    LastVote,
    Persist,
    RecordElectionEvent,
    RelayProgress,
    Reply,
    Send,
    StartFetching,
    StartRollback,
    StopFetching,
)
from replset.core.messages import (
    ConnectionLost,
    DrainFinished,
    FetchProgress,
    LocalPosition,
    MaintenanceRequest,
    Message,
    Position,
    ReplyBody,
    Request,
    RequestBody,
    Response,
    RollbackEnded,
    SourceBatch,
    SourceFailed,
    SourceProblem,
    VoteSaved,
)
from replset.core.node import Node
from replset.core.state import LASTING_TIMEOUTS, NodeState
from replset.ids import OPTIME_NULL, HostPort, Millis, OpTime

POLL_MS = 100
FETCH_TIMEOUT_MS = 5_000
RESTART_MS = 1_000
START = Millis(10_000_000)


@dataclass(frozen=True, slots=True)
class MemberNow:
    """What is known of one member now. counted: its data may vote. follows: it applies what its source has. empty: its
    disk has nothing, not even the configuration.
    """

    host: HostPort
    alive: bool
    newest: OpTime = OPTIME_NULL
    counted: bool = True
    syncing: bool = False
    quarantine: str = ""
    maintenance: bool = False
    follows: bool = True
    ping_ms: int = 1
    empty: bool = False


@dataclass(frozen=True, slots=True)
class SetNow:
    """What is known of a set now. cut: links that are broken already. wall_ms: the time there."""

    config: ReplSetConfig
    members: tuple[MemberNow, ...]
    primary: HostPort | None
    term: int
    commit_point: OpTime
    wall_ms: int
    cut: frozenset[frozenset[HostPort]] = frozenset()


class Machine:
    """One member: its node, its log, and what carries out the node's effects."""

    def __init__(self, play: Play, known: MemberNow) -> None:
        now, own = play.now, play.set.config.member_at(known.host)
        self.play, self.host, self.known, self.alive = play, known.host, known, known.alive
        arbiter = own is not None and own.arbiter_only and not known.empty
        self.log = [] if arbiter else [point for point in play.points if point <= known.newest]
        # Who is behind now is as far behind when it happens.
        self.follows = known.follows and known.newest >= play.points[-1]
        self.source: HostPort | None = None
        self.session = 0
        self.queue: deque[Effect] = deque()
        self.persisting = False
        self.planned = Millis(-1)
        self.journal: list[ElectionRecord] = []
        self.answers: dict[int, Callable[[ReplyBody], None]] = {}
        self.state = NodeState(
            host=self.host,
            set_name=play.set.config.set_name,
            http_address="",
            incarnation=self.host if known.counted else f"{self.host} anew",
            rng=random.Random(play.rng.random()),
            config=None if known.empty else play.set.config,
            last_vote=LastVote(0 if known.empty else play.set.term, None),
            position=self.position(),
            initial_sync_pending=known.syncing or known.empty,
            rollback_id=lambda: 1,
            wall_ms=lambda: play.set.wall_ms + play.now - START,
            default_write_concern_set=lambda: True,
            allow_multiple_arbiters=True,
            oplog_only=own is not None and own.witness,
        )
        self.state.quarantine = known.quarantine
        self.state.commit_point = play.set.commit_point if arbiter else min(play.set.commit_point, known.newest)
        self.state.commit_term = play.set.term
        self.node = Node(self.state)
        if self.alive:
            self.take(self.node.start(now))
            if known.maintenance:
                self.feed(Request(play.new_id(), MaintenanceRequest(on=True)))

    def position(self) -> Position:
        newest = self.log[-1] if self.log else OPTIME_NULL
        wall = newest.seconds * 1000
        return Position(newest, newest, wall, wall)

    def feed(self, message: Message) -> None:
        if self.alive:
            self.take(self.node.receive(message, self.play.now))

    def take(self, effects: list[Effect]) -> None:
        self.queue.extend(effects)
        self.pump()
        due = max(self.node.next_tick_at(), self.play.now + 1)
        if due < 1 << 61 and not self.play.now < self.planned <= due:
            self.planned = Millis(due)
            self.play.at(due - self.play.now, lambda: self.tick(Millis(due)))

    def tick(self, due: Millis) -> None:
        if self.alive and self.planned == due:
            self.planned = Millis(-1)
            self.take(self.node.tick(self.play.now))

    def pump(self) -> None:
        while self.queue and not self.persisting:
            effect = self.queue.popleft()
            if isinstance(effect, Persist):
                self.persisting = True
                self.play.at(self.play.rng.randint(1, 10), partial(self.persisted, effect))
            else:
                self.carry_out(effect)

    def persisted(self, effect: Persist) -> None:
        self.persisting = False
        if isinstance(effect.record, LastVote):
            self.feed(VoteSaved(effect.record.term))
        self.pump()

    def carry_out(self, effect: Effect) -> None:
        match effect:
            case Send():
                self.play.send(self, effect)
            case Reply(request_id, body) if request_id in self.answers:
                self.answers.pop(request_id)(body)
            case RecordElectionEvent(record):
                self.journal.append(record)
            case AppendNoop(term, _) if self.state.is_primary and self.state.term == term:
                self.append()
            case StartFetching(source):
                self.source = source
                self.session += 1
                self.play.at(1, partial(self.fetch, self.session))
            case StopFetching():
                self.stop_fetching()
            case Drain(term):
                self.stop_fetching()
                self.play.at(1, lambda: self.feed(DrainFinished(term)))
            case StartRollback(source):
                self.play.at(20, lambda: self.roll_back(source))
            case RelayProgress():
                self.report()
            case _:
                pass

    def stop_fetching(self) -> None:
        self.source = None
        self.session += 1

    def append(self) -> None:
        """Write one entry here, as a client's write or the first of a term."""
        newest = self.log[-1].ts if self.log else 0
        self.log.append(OpTime(self.state.term, newest + 1))
        self.feed(LocalPosition(self.position()))

    def report(self) -> None:
        request = self.node.progress_request()
        if request is not None and self.source is not None:
            self.play.send(self, Send(0, self.source, request, Millis(500)))

    def fetch(self, session: int) -> None:
        """Ask the source for what comes next, then again after a pause."""
        play, address = self.play, self.source
        if session != self.session or address is None or not self.alive:
            return
        source = play.machines.get(address)
        newest, progress = self.log[-1] if self.log else OPTIME_NULL, self.node.progress_request()
        done: list[bool] = []

        def back(then: Callable[[], None]) -> None:
            if not done and session == self.session and self.alive:
                done.append(True)
                then()

        def fail(
            problem: SourceProblem, term: int = 0, last: OpTime = OPTIME_NULL, first: OpTime = OPTIME_NULL
        ) -> None:
            self.stop_fetching()
            self.feed(SourceFailed(address, problem, problem.value, term, last, first))

        def serve() -> None:
            if source is None or not source.alive:
                play.at(1, lambda: back(lambda: fail(SourceProblem.UNREACHABLE)))
                return
            if progress is not None:
                source.feed(FetchProgress(progress))
            node, log = source.state, source.log
            if not source.node.serves_oplog:
                answer: Callable[[], None] = lambda: fail(SourceProblem.NOT_READABLE)  # noqa: E731
            elif newest != OPTIME_NULL and newest not in log:
                ends = (log[-1], log[0]) if log else (OPTIME_NULL, OPTIME_NULL)
                history = (node.term, *ends)
                answer = lambda: fail(SourceProblem.DIVERGED, *history)  # noqa: E731
            else:
                batch = [point for point in log if point > newest] if self.follows else []
                point = min(node.commit_point, log[-1] if log else OPTIME_NULL)
                found = SourceBatch(address, node.term, point, node.is_primary, node.commit_term)
                answer = lambda: self.apply(session, batch, found)  # noqa: E731
            if play.passes(address, self.host):
                play.at(play.delay(self, source), lambda: back(answer))

        play.at(FETCH_TIMEOUT_MS, lambda: back(lambda: fail(SourceProblem.UNREACHABLE)))
        if play.passes(self.host, address):
            play.at(play.delay(self, source), serve)

    def apply(self, session: int, batch: list[OpTime], found: SourceBatch) -> None:
        if batch:
            self.log += batch
            self.feed(LocalPosition(self.position()))
            self.report()
        if session == self.session:
            self.feed(found)
        self.play.at(POLL_MS, lambda: self.fetch(session))

    def roll_back(self, address: HostPort) -> None:
        source = self.play.machines[address]
        common = [point for point in self.log if point in source.log]
        if not common:
            self.feed(RollbackEnded(address, False, False, True, "no common point"))
            return
        self.log = common
        self.feed(LocalPosition(self.position()))
        self.feed(RollbackEnded(address, True, False, False, f"undone down to {common[-1]}"))


class Play:
    """The machines, the network and the clock of one play. The same seed gives the same play."""

    def __init__(self, known: SetNow, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = START
        members = tuple(replace(member, incarnation=member.host) for member in known.config.members)
        self.set = replace(known, config=replace(known.config, members=members))
        self.points = sorted({*(member.newest for member in known.members), known.commit_point} - {OPTIME_NULL})
        self.cut = set(known.cut)
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0
        self.machines: dict[HostPort, Machine] = {}
        for member in known.members:
            self.machines[member.host] = Machine(self, member)

    def new_id(self) -> int:
        self._number += 1
        return self._number

    def at(self, delay_ms: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay_ms, self.new_id(), action))

    def run(self, for_ms: int, until: Callable[[], object] = lambda: False) -> bool:
        """Run for so long, or until the condition holds. Return whether it did."""
        end = Millis(self.now + for_ms)
        while self._events and self._events[0][0] <= end:
            due, _, action = heapq.heappop(self._events)
            self.now = Millis(max(self.now, due))
            action()
            if until():
                return True
        self.now = end
        return False

    # --- the network ---------------------------------------------------------------------------------------------

    def passes(self, one: HostPort, other: HostPort) -> bool:
        return frozenset((one, other)) not in self.cut

    def delay(self, one: Machine, other: Machine | None) -> int:
        ping = max(one.known.ping_ms, 1 if other is None else other.known.ping_ms)
        return self.rng.randint(1, 2 + ping)

    def send(self, sender: Machine, send: Send) -> None:
        target, began = self.machines.get(send.to), self.now
        done: list[bool] = []

        def back(body: ReplyBody | None, error: str, refused: bool = False) -> None:
            if not done:
                done.append(True)
                sender.feed(Response(send.request_id, send.to, body, error, Millis(self.now - began), refused))

        def answer(body: ReplyBody) -> None:
            if self.passes(send.to, sender.host):
                self.at(self.delay(sender, target), lambda: back(body, ""))

        def deliver() -> None:
            if target is None or not target.alive:
                self.at(1, lambda: back(None, "connection refused", refused=True))
                return
            target.answers[number] = answer
            target.feed(Request(number, send.body))

        number = self.new_id()
        self.at(send.timeout_ms, lambda: back(None, "timed out"))
        if self.passes(sender.host, send.to):
            self.at(self.delay(sender, target), deliver)

    # --- what happens --------------------------------------------------------------------------------------------

    def ask(self, host: HostPort, body: RequestBody, then: Callable[[ReplyBody], None] = lambda body: None) -> None:
        number = self.new_id()
        self.machines[host].answers[number] = then
        self.machines[host].feed(Request(number, body))

    def kill(self, host: HostPort) -> None:
        """End the process: its connections break, and fresh connects are refused."""
        dead = self.machines[host]
        dead.alive = False
        for machine in self.machines.values():
            if machine.alive and self.passes(machine.host, host):
                self.at(self.delay(machine, dead), partial(machine.feed, ConnectionLost(host)))

    def lose_disk(self, host: HostPort) -> None:
        """End the process, and start it again on an empty disk."""
        self.kill(host)
        known = MemberNow(host, True, counted=False, empty=True, ping_ms=self.machines[host].known.ping_ms)
        self.at(RESTART_MS, lambda: self.machines.update({host: Machine(self, known)}))

    def add(self, host: HostPort) -> None:
        """A member that is to be added runs, and has nothing."""
        if host not in self.machines:
            self.machines[host] = Machine(self, MemberNow(host, True, counted=False, empty=True))

    def has_lasted(self) -> None:
        """Let the primary count as one that has been there for long, as the real one has."""
        for machine in self.machines.values():
            state, last = machine.state, machine.state.last_primary
            if last is not None:
                since = Millis(self.now - LASTING_TIMEOUTS * state.settings.election_timeout_ms)
                state.last_primary = replace(last, since=since, short_before=0)

    @property
    def leader(self) -> Machine | None:
        """Who takes writes, in the newest term."""
        leaders = [each for each in self.machines.values() if each.alive and each.state.writable]
        return max(leaders, key=lambda each: each.state.term, default=None)
