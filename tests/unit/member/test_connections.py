"""How many connections both ports take on: within the descriptors, idle ones first to go, slots kept for members."""

from __future__ import annotations

import resource

import pytest

from replset.cli.descriptors import raise_descriptor_limit, share_descriptors
from replset.member.net.connections import RESERVED_SLOTS, ConnectionSlots


class One:
    """A connection that is idle since then, or at work."""

    def __init__(self, slots: ConnectionSlots, idle_since: float | None) -> None:
        self.idle_since = idle_since
        self.closed = False
        self.has_slot = slots.take(self)

    def close_idle(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("limit", "wire", "http", "spare"),
    [(1024, 576, 192, 32), (256, 144, 48, 8), (64, 36, 12, 2), (20_000, 4096, 4096, 128)],
)
def test_both_ports_share_the_descriptors(limit: int, wire: int, http: int, spare: int) -> None:
    wires, https = ConnectionSlots(4096), ConnectionSlots(4096)
    share_descriptors(limit, wires, https)
    assert (wires.most, https.most) == (wire, http)
    assert wires.spare == https.spare == spare
    assert wires.most + https.most <= limit - min(256, limit // 4)


def test_fewer_than_fit_are_left_as_they_were_asked_for() -> None:
    wires, https = ConnectionSlots(10), ConnectionSlots(4096)
    share_descriptors(1024, wires, https)
    assert wires.most == 10
    assert wires.most + https.most <= 768


def test_the_longest_idle_connection_is_closed() -> None:
    slots = ConnectionSlots(3)
    ones = [One(slots, 5.0), One(slots, 3.0), One(slots, None)]
    newcomer = One(slots, 9.0)
    assert newcomer.has_slot
    assert [one.closed for one in ones] == [False, True, False]
    assert (len(slots), slots.closed_idle) == (3, 1)


class Counted(One):
    """Counts how often it is asked."""

    asked = 0

    def __init__(self, slots: ConnectionSlots, idle_since: float | None) -> None:
        self._idle_since = idle_since
        super().__init__(slots, idle_since)

    @property
    def idle_since(self) -> float | None:
        Counted.asked += 1
        return self._idle_since

    @idle_since.setter
    def idle_since(self, since: float | None) -> None:
        self._idle_since = since


@pytest.mark.parametrize("idle", [True, False])
def test_thousands_that_come_when_all_slots_are_taken_do_not_each_look_at_all(idle: bool) -> None:
    slots = ConnectionSlots(2000)
    ones = [Counted(slots, float(number) if idle else None) for number in range(2000)]
    Counted.asked = 0
    more = [Counted(slots, float(number) if idle else None) for number in range(2000, 4000)]
    assert Counted.asked < 100_000
    assert len(slots) == (2000 - RESERVED_SLOTS if idle else 2000)
    if idle:
        assert sum(one.closed for one in ones) >= 1900
        assert not more[-1].closed


def test_a_connection_that_was_used_meanwhile_is_not_the_longest_idle() -> None:
    slots = ConnectionSlots(3)
    first, second, third = (One(slots, float(number)) for number in range(3))
    fourth = One(slots, 3.0)
    assert first.closed
    second.idle_since = 9.0
    fifth = One(slots, 4.0)
    assert [one.closed for one in (second, third, fourth, fifth)] == [False, True, False, False]
    third.idle_since, fourth.idle_since, fifth.idle_since = None, None, None
    sixth = One(slots, 10.0)
    assert second.closed
    assert sixth.has_slot


def test_a_connection_in_use_is_not_closed_and_some_slots_are_reserved() -> None:
    slots = ConnectionSlots(1000)
    at_work = [One(slots, None) for _ in range(1000 - RESERVED_SLOTS)]
    assert not any(slots.is_reserved(one) for one in at_work)
    kept = [One(slots, None) for _ in range(RESERVED_SLOTS)]
    assert all(slots.is_reserved(one) for one in kept)
    assert not One(slots, None).has_slot
    assert len(slots) == 1000
    for one in at_work[:RESERVED_SLOTS]:
        slots.release(one)
        slots.release(one)
    assert not any(slots.is_reserved(one) for one in kept), "there is room for all again"
    assert not any(one.closed for one in [*at_work, *kept])


def test_one_log_line_warns_of_few_free_slots(caplog: pytest.LogCaptureFixture) -> None:
    slots = ConnectionSlots(2, "wire")
    for since in range(50):
        One(slots, float(since))
    (record,) = caplog.records
    assert "connections are open on the wire port" in record.getMessage()


def test_the_limit_is_raised_to_what_the_system_allows() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 200), hard))
        limit = raise_descriptor_limit()
        assert limit > 200 or hard <= 200
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == limit
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
