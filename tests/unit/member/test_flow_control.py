"""Writers are slowed while the majority is too far behind, and let go when it has caught up (map X1, D10)."""

from __future__ import annotations

from dataclasses import dataclass, field

from replset.core.ages import OptimeAges
from replset.ids import HostPort, Millis, OpTime
from replset.operations.flow_control import LEAST_PER_S, FlowControl

TARGET_MS = 10_000
SLOW = HostPort("b:27017")


class Clock:
    def __init__(self) -> None:
        self.time = Millis(1_000)

    def now(self) -> Millis:
        return self.time


@dataclass
class Follower:
    """A majority that applies so many bytes in a second. Optimes are bytes of the oplog."""

    applies: int
    clock: Clock
    written: int = 0
    applied: int = 0
    history: OptimeAges = field(default_factory=OptimeAges)

    def lag(self) -> tuple[int, tuple[HostPort, ...]]:
        lag_ms = self.history.lag_ms(OpTime(1, self.applied), self.clock.time)
        return (lag_ms, (SLOW,)) if lag_ms else (0, ())


def run(flow: FlowControl, follower: Follower, seconds: int, wants: int, target_ms: int = TARGET_MS) -> list[int]:
    """Write 1 KiB at a time for so many seconds; return what was written in each."""
    written = []
    for _ in range(seconds):
        before, end = follower.written, follower.clock.time + 1_000
        while follower.clock.time < end:
            wait_s = flow.wait_s()
            if not wait_s:
                flow.on_written(1_024)
                follower.written += 1_024
                follower.history.note(OpTime(1, follower.written), follower.clock.time)
                wait_s = 1_024 / wants
            follower.clock.time = Millis(follower.clock.time + max(1, round(wait_s * 1000)))
        written.append(follower.written - before)
        follower.applied = min(follower.written, follower.applied + follower.applies)
        flow.adjust(target_ms)
    return written


def test_a_majority_that_keeps_up_slows_nobody() -> None:
    clock = Clock()
    follower = Follower(1_000_000, clock)
    flow = FlowControl(clock, follower.lag)
    run(flow, follower, 60, wants=500_000)
    assert (flow.per_second, flow.held_ms, flow.times_lagged) == (None, 0, 0)


def test_writers_are_slowed_to_what_the_majority_applies_and_let_go_afterwards() -> None:
    clock = Clock()
    follower = Follower(150_000, clock)
    flow = FlowControl(clock, follower.lag)
    run(flow, follower, 60, wants=500_000)
    assert (flow.is_lagged, flow.waits_for) == (True, (SLOW,))
    written = run(flow, follower, 240, wants=500_000)
    assert flow.lag_ms < 2 * TARGET_MS
    assert 100_000 < sum(written) / len(written) < 200_000
    assert min(written) >= LEAST_PER_S // 2
    follower.applies = 2_000_000
    run(flow, follower, 30, wants=500_000)
    assert not flow.is_lagged
    assert run(flow, follower, 5, wants=500_000)[-1] > 400_000


def test_zero_switches_it_off_at_once() -> None:
    clock = Clock()
    follower = Follower(0, clock)
    flow = FlowControl(clock, follower.lag)
    run(flow, follower, 30, wants=500_000)
    assert flow.is_lagged
    flow.adjust(0)
    assert not flow.is_lagged
    run(flow, follower, 30, wants=500_000, target_ms=0)
    assert not flow.is_lagged


def test_a_large_group_is_paid_for_by_waiting_but_not_for_ever() -> None:
    clock = Clock()
    flow = FlowControl(clock, lambda: (20_000, (SLOW,)))
    flow.adjust(TARGET_MS)
    flow.on_written(64 << 20)
    began = clock.time
    while wait_s := flow.wait_s():
        clock.time = Millis(clock.time + max(1, round(wait_s * 1000)))
    assert 1_500 <= clock.time - began <= 2_200
    assert flow.held_ms >= 1_500


def test_a_member_that_was_away_and_catches_up_does_not_stop_writers() -> None:
    clock = Clock()
    follower = Follower(2_000_000, clock)
    is_up = True
    flow = FlowControl(clock, lambda: follower.lag() if is_up else (0, ()))
    run(flow, follower, 60, wants=500_000)
    is_up, follower.applies = False, 0
    run(flow, follower, 300, wants=500_000)
    is_up, follower.applies = True, 2_000_000
    written = run(flow, follower, 60, wants=500_000)
    assert flow.times_lagged == 1
    assert min(written) > 300_000


def test_a_member_that_is_away_for_a_moment_does_not_lift_the_limit() -> None:
    clock = Clock()
    follower = Follower(150_000, clock)
    is_up = True
    flow = FlowControl(clock, lambda: follower.lag() if is_up else (0, ()))
    run(flow, follower, 120, wants=500_000)
    assert flow.is_lagged
    is_up = False
    run(flow, follower, 2, wants=500_000)
    is_up = True
    run(flow, follower, 10, wants=500_000)
    assert sum(run(flow, follower, 30, wants=500_000)) < 30 * 300_000
