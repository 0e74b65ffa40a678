"""Several core nodes in memory, under a virtual clock and with a network that delays, loses and cuts messages.

The checkers run after every event. The unit tests of the core use this set; `runs.py` runs it with random faults.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from replset.config import Member, ReplSetConfig, Settings
from replset.core.effects import LastVote, PersistedRecord, Send
from replset.core.messages import (
    ConnectionLost,
    FreezeRequest,
    InitiateRequest,
    ReconfigRequest,
    ReplyBody,
    Request,
    RequestBody,
    Response,
    StepDownRequest,
)
from replset.ids import HostPort, Millis
from tests.simulation.core_kit.checkers import CoreCheckers
from tests.simulation.core_kit.machine import FAST, CoreMachine, config_of, host, members_of
from tests.simulation.kit.errors import SimulationError

SENDS_MAX = 300
"""Messages of one member within a second; the busiest runs have 180."""


class CoreCluster:
    """The machines, the network between them, and the clock."""

    def __init__(
        self,
        count: int,
        *,
        seed: int = 1,
        latency_ms: tuple[int, int] = (1, 3),
        expected: Mapping[HostPort, tuple[HostPort, ...]] | None = None,
    ) -> None:
        """expected: the hosts of each member's --expect-members."""
        self.rng = random.Random(seed)
        self.now = Millis(1_000)
        self.latency_ms = latency_ms
        self.loss = 0.0  # of messages
        self.late = 0.0  # of messages: they take up to a second and a half
        self.stalls = 0.0  # of what a disk saves or syncs: it takes 300 ms more
        self.pages: tuple[int, ...] = ()  # how many entries a fetch may bring, one of them; none: all
        self.on_persist: list[Callable[[CoreMachine, PersistedRecord], None]] = []
        self.on_reconfig: list[Callable[[CoreMachine, ReplSetConfig, ReplSetConfig], None]] = []
        self.trace: list[str] = []
        self.done: Counter[str] = Counter()
        self.persist_ms = 2
        self.sync_ms = 3
        self.copy_ms = 50
        self.default_write_concern_set = False
        self.role_hook_ms = 0
        self.holds_role: Callable[[CoreMachine], bool] = lambda machine: False
        self.on_append: Callable[[CoreMachine], None] = lambda machine: None
        self.expected = dict(expected or {})
        self.cut: set[tuple[HostPort, HostPort]] = set()
        self.rejecting: set[tuple[HostPort, HostPort]] = set()  # cut, and connects are refused
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._incarnations = 0
        self._requests = 1_000_000
        self._sent: Counter[tuple[HostPort, int]] = Counter()  # messages by second
        self.asks: list[
            tuple[CoreMachine, int, int, RequestBody]
        ] = []  # what administrators asked for: of whom, its start
        self._waiting: dict[int, Callable[[ReplyBody | None, str], None]] = {}
        self.checkers = CoreCheckers()
        self.machines: dict[HostPort, CoreMachine] = {}
        for number in range(count):
            self.add(number)

    def add(self, number: int) -> CoreMachine:
        machine = self.machines[host(number)] = CoreMachine.__new__(CoreMachine)
        machine.__init__(self, host(number))  # type: ignore[misc]  # it looks itself up while it starts
        return machine

    def new_incarnation(self) -> str:
        self._incarnations += 1
        return f"i{self._incarnations}"

    def __getitem__(self, number: int) -> CoreMachine:
        return self.machines[host(number)]

    def note(self, who: str, what: str) -> None:
        self.trace.append(f"{self.now:>7} {who:<9} {what}")

    def begin_in_term(self, term: int) -> None:
        """As if the disks had voted in this term. For a set that is not initiated yet."""
        for machine in self.machines.values():
            machine.disk.last_vote, machine.node._state.term = LastVote(term, None), term

    # --- events --------------------------------------------------------------------------------------------------

    def at(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (self.now + max(0, delay_ms), self._sequence, action))

    def wake(self, machine: CoreMachine) -> None:
        """Call the node's tick when it is due."""
        due = machine.node.next_tick_at()
        if machine.alive and due < (1 << 61):
            planned = getattr(machine, "planned", None)
            if (
                planned is not None
                and planned[0] == machine.start_number
                and self.now <= planned[1] <= max(due, self.now)
            ):
                return
            when = max(due, self.now + 1)
            machine.planned = planned = (machine.start_number, when)  # type: ignore[attr-defined]
            machine.later(when - self.now, lambda: self._tick(machine, planned))

    def _tick(self, machine: CoreMachine, planned: tuple[int, int]) -> None:
        if machine.planned is not planned:  # type: ignore[attr-defined]
            return  # an earlier one was planned since
        if machine.node.next_tick_at() > self.now:
            machine.planned = None  # type: ignore[attr-defined]
            self.wake(machine)
            return
        machine.planned = None  # type: ignore[attr-defined]
        machine.take(machine.node.tick(self.now))
        is_late = machine.alive and machine.node.next_tick_at() < self.now
        if is_late and machine.was_late:
            raise SimulationError(f"{machine.host} did twice what was due at {self.now} ms, and has not done it all")
        machine.was_late = is_late

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
                lines = [
                    f"{machine.host} {line}" for machine in self.machines.values() for line in machine.journal[-12:]
                ]
                raise AssertionError("not in time:\n" + "\n".join([*self.summary(), *lines]))
            self.run(10)

    def summary(self) -> list[str]:
        return [
            f"{machine.host} {'up' if machine.alive else 'dead'} {machine.node.state.name} term {machine.node.term} "
            f"config {machine.node.config and machine.node.config.version_and_term} log {len(machine.disk.log)} "
            f"commit {machine.node.commit_point} source {machine.source} {machine.disk.incarnation}"
            for machine in self.machines.values()
        ]

    # --- network -------------------------------------------------------------------------------------------------

    def is_open(self, one: HostPort, other: HostPort) -> bool:
        return (one, other) not in self.cut and (other, one) not in self.cut

    def isolate(self, *numbers: int) -> None:
        """Cut these members off from all others, both ways."""
        inside = {host(number) for number in numbers}
        self.cut = {
            (one, other) for one in self.machines for other in self.machines if (one in inside) is not (other in inside)
        }

    def heal(self) -> None:
        self.cut = set()
        self.rejecting = set()

    def reject(self, one: HostPort, other: HostPort) -> None:
        """Cut the link of these two: their connections break, and fresh connects are refused."""
        self.rejecting = {(one, other), (other, one)}
        self.cut |= self.rejecting
        for near, far in sorted(self.rejecting):
            if self.machines[near].alive:
                self.machines[near].feed(ConnectionLost(far))

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

    def break_connections(self, dead: HostPort) -> None:
        """The process of `dead` is killed: the others' connections to it break, where no cut is between."""

        def notice(machine: CoreMachine, start_number: int) -> None:
            if machine.alive and machine.start_number == start_number and self.is_open(machine.host, dead):
                machine.feed(ConnectionLost(dead))

        for machine in self.machines.values():
            if machine.alive and machine.host != dead:
                self.at(self.delay(), lambda m=machine, n=machine.start_number: notice(m, n))

    def send(self, sender: CoreMachine, send: Send) -> None:
        start_number, began = sender.start_number, self.now
        self._sent[sender.host, self.now // 1000] += 1
        if self._sent[sender.host, self.now // 1000] > SENDS_MAX:
            raise SimulationError(f"invariant 28 broken: {sender.host} sends without a pause at {self.now} ms: {send}")
        target = self.machines.get(send.to)
        done: list[bool] = []

        def back(body: ReplyBody | None, error: str, *, refused: bool = False) -> None:
            if not done and sender.alive and sender.start_number == start_number:
                done.append(True)
                sender.feed(Response(send.request_id, send.to, body, error, Millis(self.now - began), refused))

        def deliver() -> None:
            if target is None or not target.alive:
                if (send.to, sender.host) not in self.cut and not (target is not None and target.is_dark):
                    self.at(1, lambda: back(None, "connection refused", refused=True))
                return
            self._requests += 1
            number = self._requests
            target.asked[number] = (sender, start_number, number)
            self._waiting[number] = back
            target.feed(Request(number, send.body))

        self.at(send.timeout_ms, lambda: back(None, "timed out"))
        if (sender.host, send.to) in self.rejecting:
            self.at(1, lambda: back(None, "connection refused", refused=True))
        if self.passes(sender.host, send.to):
            self.at(self.delay(), deliver)

    def answer(self, replier: CoreMachine, asked: tuple[CoreMachine, int, int], body: ReplyBody) -> None:
        asker, _, number = asked
        back = self._waiting.pop(number)
        if self.passes(replier.host, asker.host):
            self.at(self.delay(), lambda: back(body, ""))

    # --- administration ------------------------------------------------------------------------------------------

    def ask(self, number: int, body: RequestBody) -> int:
        """Put an administrator's request; its answer comes into `answer_of`."""
        self._requests += 1
        self.asks.append((self[number], self[number].start_number, self._requests, body))
        self[number].feed(Request(self._requests, body))
        return self._requests

    def unanswered_request(self) -> int:
        """The number of a request whose answer nobody waits for."""
        self._requests += 1
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
    def primary(self) -> CoreMachine | None:
        """Who takes writes, in the newest term."""
        leaders = [machine for machine in self.machines.values() if machine.alive and machine.node.writable]
        return max(leaders, key=lambda machine: machine.node.term, default=None)

    def elect(self, within_ms: int = 30_000) -> CoreMachine:
        self.until(lambda: self.primary is not None, within_ms)
        leader = self.primary
        assert leader is not None
        return leader

    def number_of(self, machine: CoreMachine) -> int:
        return int(machine.host[1:].split(":")[0])

    def all_counted(self) -> bool:
        """Every member of the configuration votes where it should, and the configuration is everybody's."""
        leader = self.primary
        if leader is None or leader.node.config is None:
            return False
        config = leader.node.config
        for member in config.members:
            machine = self.machines[member.host]
            if not machine.alive or machine.node.config != config or member.newly_added:
                return False
            if member.votes and member.incarnation != machine.disk.incarnation:
                return False
        return True

    def is_quiet(self) -> bool:
        """One primary that everybody knows, all logs equal, everything committed everywhere."""
        leader = self.primary
        if leader is None or not self.all_counted():
            return False
        for member in leader.node.config.members if leader.node.config else ():
            machine = self.machines[member.host]
            if machine.node.primary_host != leader.host or machine.node.term != leader.node.term:
                return False
            if not member.arbiter_only and machine.disk.log != leader.disk.log:
                return False
            if not member.arbiter_only and machine.node.commit_point != leader.disk.log[-1][0]:
                return False
        return True


# --- sets at rest, and changes of them --------------------------------------------------------------------------------


def running(count: int = 3, *, arbiters: int = 0, witnesses: int = 0, seed: int = 1, extra: int = 0) -> CoreCluster:
    """A set at rest; `extra` members are started but not in it."""
    cluster = CoreCluster(count + extra, seed=seed)
    cluster.initiate(*members_of(count, arbiters=arbiters, witnesses=witnesses))
    cluster.until(cluster.is_quiet)
    return cluster


def leader_number(cluster: CoreCluster) -> int:
    return cluster.number_of(cluster.elect())


def the_config(machine: CoreMachine) -> ReplSetConfig:
    assert machine.node.config is not None
    return machine.node.config


def change(cluster: CoreCluster, *members: Member, **options: Any) -> object:
    number = leader_number(cluster)
    return cluster.reconfig(number, cluster.user_config(number, *members), **options)
