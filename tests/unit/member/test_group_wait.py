"""When a group waits for clients that come back: in a model of clients, each of which has one write on its way."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from replset.member.disk.group_wait import ENOUGH, MOST_GROUPS, MOST_MS, GroupWait
from tests.unit.replication.kit import TestClock


class Model:
    """Clients in front of a member that answers a group `answer_ms` after it began.

    groups: how many writes each had. waited: for how long each did, None if it did not.
    """

    def __init__(self, think: list[Callable[[], int]], answer_ms: int) -> None:
        """think: for each client, how many ms after an answer its next write comes."""
        self.clock = clock = TestClock()
        self.wait = GroupWait(clock)
        self.think = think
        self.answer_ms = answer_ms
        self.groups: list[int] = []
        self.waited: list[int | None] = []
        self._due = [clock.now() + ms() for ms in think]  # of each client's next write
        self._queue: list[int] = []
        self._answers: list[tuple[int, list[int]]] = []
        self._since: int | None = None

    def run(self, ms: int) -> None:
        for _ in range(ms):
            self.clock.ms += 1
            self._turn(self.clock.ms)

    def _turn(self, now: int) -> None:
        while self._answers and self._answers[0][0] <= now:
            for client in self._answers.pop(0)[1]:
                self._due[client] = now + self.think[client]()
        came = [client for client, due in enumerate(self._due) if 0 <= due <= now]
        for client in came:
            self._due[client] = -1
        self._queue += came
        ran_out = self._since is not None and now - self._since >= MOST_MS
        if not self._queue:
            return
        if not ran_out and not self.wait.is_enough(len(self._queue)):
            self._since = now if self._since is None else self._since
            return
        on_the_way = len(self._queue) + sum(len(group) for _, group in self._answers)
        self.wait.on_group(on_the_way)
        self.groups.append(len(self._queue))
        self.waited.append(None if self._since is None else now - self._since)
        self._answers.append((now + self.answer_ms, self._queue))
        self._queue, self._since = [], None


def spread(rng: random.Random, most_ms: int) -> Callable[[], int]:
    return lambda: rng.randint(0, most_ms)


@pytest.mark.parametrize("clients", [1, 2, 4, 16, 64])
def test_clients_that_write_again_at_once_end_up_in_one_group(clients: int) -> None:
    rng = random.Random(clients)
    model = Model([spread(rng, 2)] * clients, answer_ms=6)
    model.run(5_000)
    last = model.groups[-100:]
    assert sum(last) / len(last) > 0.9 * clients


def test_one_client_never_waits() -> None:
    model = Model([spread(random.Random(1), 20)], answer_ms=8)
    model.run(5_000)
    assert set(model.waited) == {None}


@pytest.mark.parametrize("clients", [2, 5, 40])
def test_clients_that_write_now_and_then_hardly_ever_wait(clients: int) -> None:
    rng = random.Random(clients)
    model = Model([lambda: int(rng.expovariate(1 / 40))] * clients, answer_ms=6)
    model.run(20_000)
    waits = [ms for ms in model.waited if ms]
    assert len(waits) < 0.15 * len(model.waited)
    assert max(waits) <= MOST_MS


def test_one_client_that_is_late_does_not_hold_the_others_back() -> None:
    def rate(slow: bool) -> float:
        rng = random.Random(7)
        model = Model([spread(rng, 1)] * 7 + [spread(rng, 60)] * slow, answer_ms=8)
        model.run(10_000)
        return sum(model.groups)

    assert rate(slow=True) > 0.8 * rate(slow=False)


def test_many_writes_are_enough_whatever_is_expected() -> None:
    wait = GroupWait(TestClock())
    wait.on_group(1000)
    assert not wait.is_enough(ENOUGH - 1)
    assert wait.is_enough(ENOUGH)


def test_waits_in_vain_become_rare_and_good_ones_make_them_frequent_again() -> None:
    clock = TestClock()
    wait = GroupWait(clock)
    wait.on_group(9)

    def groups_until_a_wait(ms: int, interval_ms: int = 40) -> int:
        """How many groups, one each `interval_ms`, do not wait before one waits for `ms`."""
        groups = 0
        clock.ms += interval_ms - ms
        while wait.is_enough(1):
            groups += 1
            wait.on_group(9)
            clock.ms += interval_ms - ms
        clock.ms += ms
        wait.on_group(9)
        return groups

    assert [groups_until_a_wait(MOST_MS) for _ in range(9)] == [0, 1, 2, 4, 8, 16, 32, 64, MOST_GROUPS]
    assert [groups_until_a_wait(3) for _ in range(3)] == [MOST_GROUPS, 0, 0]  # which halve it three times
    assert [groups_until_a_wait(MOST_MS) for _ in range(2)] == [0, 16]
    assert [groups_until_a_wait(3) for _ in range(8)] == [32, 0, 0, 0, 0, 0, 0, 0]
    assert [groups_until_a_wait(6, 11) for _ in range(5)] == [0, 0, 1, 0, 2]  # longer than half: the second counts
    assert [groups_until_a_wait(6, 12) for _ in range(5)] == [0, 0, 0, 0, 0]
