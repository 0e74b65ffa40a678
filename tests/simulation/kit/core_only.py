"""The core alone, without bytes and disks: nodes, a log that is a list, and messages that are values.

Several times faster than whole members, so it goes through many more schedules. What it leaves out (codec, files,
SQLite, the applying) whole members bring in. `core_runs` plays with them.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from replset.config import ReplSetConfig
from replset.core.effects import (
    AcceptWrites,
    AppendNoop,
    BecomeState,
    CommitPointMoved,
    Drain,
    Effect,
    LastVote,
    Persist,
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
    InitialSyncBegun,
    InitialSyncEnded,
    LocalPosition,
    Message,
    Position,
    Request,
    Response,
    RollbackEnded,
    SourceBatch,
    SourceFailed,
    SourceProblem,
    VoteSaved,
)
from replset.core.node import Node
from replset.ids import OPTIME_NULL, HostPort, Millis, OpTime
from tests.simulation.kit.errors import SimulationError


@dataclass(slots=True)
class Held:
    """What a member's disk holds. durable: so many entries of the log survive a loss of power."""

    log: list[OpTime] = field(default_factory=list)
    durable: int = 0
    vote: LastVote | None = None
    config: ReplSetConfig | None = None
    incarnation: str = ""
    pending: bool = True
    rollback_id: int = 1


@dataclass(slots=True)
class World:
    """Time, links and everything that must hold."""

    rng: random.Random
    now: int = 0
    events: list[tuple[int, int, Callable[[], None]]] = field(default_factory=list)
    sequence: Any = field(default_factory=count)
    members: dict[HostPort, CoreMember] = field(default_factory=dict)
    cuts: set[tuple[HostPort, HostPort]] = field(default_factory=set)
    loss: float = 0.0
    slow_disk: float = 0.0
    primaries: dict[int, tuple[HostPort, int]] = field(default_factory=dict)
    committed: list[OpTime] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    on_persist: list[Callable[[CoreMember], None]] = field(default_factory=list)

    def at(self, delay: float, event: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.now + max(0, round(delay)), next(self.sequence), event))

    def run_for(self, ms: int) -> None:
        ends = self.now + ms
        while self.events and self.events[0][0] <= ends:
            self.now, _, event = heapq.heappop(self.events)
            event()
        self.now = ends

    def note(self, who: str, what: str) -> None:
        self.trace.append(f"{self.now:>7} {who:<4} {what}")

    def fail(self, invariant: str, why: str) -> None:
        raise SimulationError(f"invariant {invariant} broken at {self.now} ms: {why}")

    def deliver(self, source: HostPort, target: HostPort, do: Callable[[], None]) -> None:
        """Bring a message over, late, or not at all."""
        delay = self.rng.uniform(1, 10) if self.rng.random() > 0.05 else self.rng.uniform(10, 1500)
        if self.rng.random() < self.loss:
            return

        def arrive() -> None:
            if (source, target) not in self.cuts:
                do()

        self.at(delay, arrive)

    def commit(self, member: CoreMember, point: OpTime) -> None:
        """A commit point: everything up to it in this member's log stays for ever, in this order."""
        prefix = [entry for entry in member.held.log if entry <= point]
        for mine, theirs in zip(prefix, self.committed, strict=False):
            if mine != theirs:
                self.fail("3", f"{member.host} commits {mine} where {theirs} was committed")
        self.note(member.host, f"commit point {point}, log {len(prefix)} of {len(member.held.log)}")
        self.committed.extend(prefix[len(self.committed) :])


class CoreMember:
    """One member: a node and what its shell would do."""

    def __init__(self, world: World, host: HostPort, *, arbiter: bool) -> None:
        self.world = world
        self.host = host
        self.arbiter = arbiter
        self.held = Held(incarnation=f"{host}-0")
        self.life = 0
        self.alive = False
        self.wipes = 0

    # --- life and death

    def start(self) -> None:
        world, held = self.world, self.held
        self.life += 1
        self.alive = True
        self.effects: deque[Effect] = deque()
        self.persisting = self.busy = False
        self.accepts = 0  # the term in which clients may write
        self.session = 0
        self.answers: dict[int, Callable[[Any], None]] = {}
        self.next_request = 0
        self.due = -1
        self.commit_point = OPTIME_NULL
        held.durable = len(held.log)
        self.node = Node(
            host=self.host,
            set_name="rs0",
            http_address="",
            incarnation=held.incarnation,
            rng=random.Random(world.rng.getrandbits(64)),
            config=held.config,
            last_vote=held.vote,
            position=self.position(),
            initial_sync_pending=held.pending,
            rollback_id=lambda: held.rollback_id,
            wall_ms=lambda: world.now,
            default_write_concern_set=lambda: False,
            allow_multiple_arbiters=True,
        )
        self.take(self.node.start(Millis(world.now)))

    def die(self, *, power_loss: bool, wipe: bool = False) -> None:
        self.alive = False
        held = self.held
        if power_loss:
            del held.log[self.world.rng.randrange(held.durable, len(held.log) + 1) :]
        if wipe:
            self.wipes += 1
            self.held = Held(incarnation=f"{self.host}-w{self.wipes}")
        self.world.note(self.host, "wiped" if wipe else "power lost" if power_loss else "killed")

    def later(self, delay: float, do: Callable[[], None]) -> None:
        """Do it if this life still lasts."""
        life = self.life

        def go() -> None:
            if self.alive and self.life == life:
                do()

        self.world.at(delay, go)

    # --- the shell

    def position(self) -> Position:
        log, durable = self.held.log, self.held.durable
        return Position(log[-1] if log else OPTIME_NULL, log[durable - 1] if durable else OPTIME_NULL, 0, 0)

    def feed(self, message: Message) -> None:
        self.take(self.node.receive(message, Millis(self.world.now)))

    def take(self, effects: list[Effect]) -> None:
        self.effects.extend(effects)
        self.pump()
        self.watch()
        due = self.node.next_tick_at()
        if due < 1 << 60 and (self.due < self.world.now or due < self.due):
            self.due = max(due, self.world.now + 1)
            self.later(self.due - self.world.now, self.tick)

    def tick(self) -> None:
        self.due = -1
        self.take(self.node.tick(Millis(self.world.now)))

    def pump(self) -> None:
        if self.busy:
            return
        self.busy = True
        while self.effects and not self.persisting:
            self.carry_out(self.effects.popleft())
        self.busy = False

    def watch(self) -> None:
        node, world = self.node, self.world
        if node.state is MemberState.PRIMARY:
            first = world.primaries.setdefault(node.term, (self.host, self.life))
            if first != (self.host, self.life):
                world.fail("1", f"{first} and {(self.host, self.life)} are both primary in term {node.term}")
        if node.commit_point < self.commit_point:
            world.fail("8", f"{self.host}'s commit point went back from {self.commit_point} to {node.commit_point}")
        if node.commit_point != self.commit_point:
            self.commit_point = node.commit_point
            if not self.arbiter:
                world.commit(self, node.commit_point)

    def carry_out(self, effect: Effect) -> None:
        world, held = self.world, self.held
        match effect:
            case Persist(record):
                self.persisting = True
                for hook in [*world.on_persist]:
                    hook(self)
                self.later(
                    world.rng.uniform(0, 6) + (world.rng.random() < world.slow_disk) * 300, lambda: self.save(record)
                )
            case Send():
                self.send(effect)
            case Reply(request_id, body):
                answer = self.answers.pop(request_id, None)
                if answer is not None:
                    answer(body)
            case BecomeState(state, term, primary):
                world.note(self.host, f"{state.name} term {term} primary {primary}")
            case StopFetching():
                self.session += 1
            case StartFetching(source):
                self.session += 1
                self.fetch(source, self.session)
            case Drain(term):
                self.session += 1
                self.later(world.rng.uniform(0, 3), lambda: self.feed(DrainFinished(term)))
            case AppendNoop(term, _):
                self.append(term)
            case AcceptWrites(accept, term):
                self.accepts = term if accept else 0
            case CommitPointMoved():
                pass
            case StartRollback(source):
                self.later(world.rng.uniform(5, 60), lambda: self.roll_back(source))
            case StartInitialSync(source):
                if not held.pending:
                    self.wipes += 1
                    held.pending, held.incarnation = True, f"{self.host}-s{self.wipes}"
                self.later(world.rng.uniform(0, 5), lambda: self.feed(InitialSyncBegun(held.incarnation)))
                self.later(world.rng.uniform(20, 900), lambda: self.copy(source))
            case _:
                pass

    def save(self, record: object) -> None:
        if isinstance(record, LastVote):
            self.held.vote = record
        elif isinstance(record, ReplSetConfig):
            self.held.config = record
        else:
            self.held.pending = False
        self.persisting = False
        if isinstance(record, LastVote):
            self.feed(VoteSaved(record.term))
        self.take([])

    def send(self, effect: Send) -> None:
        world = self.world
        done = False

        def answered(body: Any) -> None:
            nonlocal done
            if not done:
                done = True
                self.feed(Response(effect.request_id, effect.to, body, "" if body else "no answer", Millis(5)))

        self.ask(effect.to, effect.body, lambda body: self.later(0, lambda: answered(body)))
        self.later(effect.timeout_ms, lambda: answered(None))
        if not world.members[effect.to].alive:
            self.later(1, lambda: answered(None))

    def ask(self, to: HostPort, body: Any, answered: Callable[[Any], None]) -> None:
        world, there = self.world, self.world.members[to]

        def arrive() -> None:
            if there.alive:
                there.next_request += 1
                there.answers[there.next_request] = lambda reply: world.deliver(to, self.host, lambda: answered(reply))
                there.feed(Request(there.next_request, body))

        world.deliver(self.host, to, arrive)

    # --- the log

    def append(self, term: int) -> OpTime:
        log = self.held.log
        optime = OpTime(term, max(self.world.now << 31, log[-1].ts + 1 if log else 1))
        if log and term < log[-1].term:
            self.world.fail("2", f"{self.host} appends {optime} behind {log[-1]}")
        log.append(optime)
        self.moved()
        return optime

    def moved(self) -> None:
        """The log grew: tell the core, sync, report."""
        rng = self.world.rng
        self.feed(LocalPosition(self.position()))
        covered, held, rollback_id = len(self.held.log), self.held, self.held.rollback_id

        def synced() -> None:
            if held is self.held and rollback_id == held.rollback_id and covered > held.durable:
                held.durable = covered
                self.feed(LocalPosition(self.position()))
                self.report()

        self.later(rng.uniform(0.5, 8) + (rng.random() < self.world.slow_disk) * 500, synced)
        self.report()

    def report(self) -> None:
        request, primary = self.node.progress_request(), self.node.primary_host
        if request is not None and primary is not None and primary != self.host and self.node.sync_source is not None:
            self.ask(
                primary,
                request,
                lambda reply: self.later(0, lambda: self.feed(Response(0, primary, reply, "", Millis(5)))),
            )

    def fetch(self, source: HostPort, session: int) -> None:
        """One page, then the next."""
        world, there = self.world, self.world.members[source]
        after = self.held.log[-1] if self.held.log else OPTIME_NULL
        answered = False

        def done(do: Callable[[], None]) -> None:
            nonlocal answered
            if not answered and session == self.session:
                answered = True
                do()

        def serve() -> None:
            if not there.alive:
                return
            log = list(there.held.log)
            node = there.node
            readable = node.state in (MemberState.PRIMARY, MemberState.SECONDARY)
            facts = (node.term, node.commit_point, node.state is MemberState.PRIMARY)
            limit = world.rng.choice((1, 3, 100))
            world.deliver(
                source, self.host, lambda: self.later(0, lambda: done(lambda: page(log, readable, facts, limit)))
            )

        def page(log: list[OpTime], readable: bool, facts: tuple[int, OpTime, bool], limit: int) -> None:
            term, commit_point, is_primary = facts
            newest, oldest = (log[-1], log[0]) if log else (OPTIME_NULL, OPTIME_NULL)
            if not readable:
                self.feed(SourceFailed(source, SourceProblem.NOT_READABLE, "", term, newest, oldest))
            elif after not in log:
                self.feed(SourceFailed(source, SourceProblem.DIVERGED, "", term, newest, oldest))
            elif (self.held.log[-1] if self.held.log else OPTIME_NULL) == after:
                start = log.index(after) + 1
                news = log[start : start + limit]
                self.held.log.extend(news)
                if news:
                    self.moved()
                if session == self.session:
                    self.feed(SourceBatch(source, term, commit_point, is_primary))
                if session == self.session:
                    self.later(
                        world.rng.uniform(1, 60), lambda: session == self.session and self.fetch(source, session)
                    )

        world.deliver(self.host, source, serve)
        failed = SourceFailed(source, SourceProblem.UNREACHABLE, "", 0, OPTIME_NULL, OPTIME_NULL)
        self.later(1500, lambda: done(lambda: self.feed(failed)))

    def roll_back(self, source: HostPort) -> None:
        there, held, world = self.world.members[source], self.held, self.world
        if not there.alive or (self.host, source) in world.cuts or there.node.state is MemberState.ROLLBACK:
            self.feed(RollbackEnded(source, ok=False, retry=True, too_stale=False, detail="broke"))
            return
        theirs = set(there.held.log)
        kept = 0
        while kept < len(held.log) and held.log[kept] in theirs:
            kept += 1
        common = held.log[kept - 1] if kept else OPTIME_NULL
        if common < self.node.commit_point:
            world.fail("3", f"{self.host} would roll back to {common}, below its commit point {self.node.commit_point}")
        for undone in held.log[kept:]:
            if undone in world.committed:
                world.fail("3", f"{self.host} rolls back {undone}, which was committed")
        world.note(self.host, f"undoes {len(held.log) - kept} entries")
        world.done["undo steps"] += 1
        del held.log[kept:]
        held.durable = min(held.durable, kept)
        held.rollback_id += 1
        self.feed(LocalPosition(self.position()))
        self.feed(RollbackEnded(source, ok=True, retry=False, too_stale=False, detail=""))

    def copy(self, source: HostPort) -> None:
        there = self.world.members[source]
        if not there.alive or (self.host, source) in self.world.cuts or there.node.state is MemberState.ROLLBACK:
            self.feed(InitialSyncEnded(source, ok=False, detail="broke"))
            return
        self.world.done["copies"] += 1
        self.held.log = list(there.held.log)
        self.held.durable = len(self.held.log)
        self.held.rollback_id = max(self.held.rollback_id, there.held.rollback_id) + 1
        self.held.pending = False
        self.feed(LocalPosition(self.position()))
        self.feed(InitialSyncEnded(source, ok=True, detail=""))
