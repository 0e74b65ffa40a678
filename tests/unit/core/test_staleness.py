"""How far a member may be behind: by the primary's clock, by a majority's, and cut off by its own."""

from __future__ import annotations

import pytest

from replset.core.ages import OptimeAges
from replset.core.member_state import MemberState
from replset.core.messages import Position
from replset.core.staleness import lag_ms
from replset.core.state import NodeState
from replset.ids import OPTIME_NULL, HostPort, MemberId, Millis
from tests.simulation.core_kit.machine import WALL, host
from tests.unit.core.single_node import CONFIG, at, lead, shaped, single_node

NOW = Millis(1_000_000_000)


YEARS_MS = 3650 * 86_400_000


def place_of(written_ms: int, ahead_ms: int = 0) -> Position:
    """The position whose newest entry was written so long before now, by a wall clock that was ahead."""
    return Position(at(1, 1_000_000_000 - written_ms), OPTIME_NULL, WALL - written_ms + ahead_ms, 0)


def follower(
    own_ms: int, *, is_new: bool = False, ahead_ms: int = 0, **others: tuple[MemberState, int, int]
) -> NodeState:
    """Member 0 of three. Times are milliseconds before now: its own newest entry, and of each other member (`one`,
    `two`) its newest entry and its last answer. ahead_ms: of the clock that wrote its own newest entry. is_new: it has
    just been started.
    """
    state = single_node(config=CONFIG)._state
    state.now = NOW
    state.position = place_of(own_ms, ahead_ms)
    heard = {own_ms}
    for name, (member_state, written_ms, answered_ms) in others.items():
        peer = state.peers[host({"one": 1, "two": 2}[name])]
        peer.state = member_state
        peer.position = place_of(written_ms, ahead_ms if written_ms == own_ms else 0)
        peer.answered_since = Millis(NOW - answered_ms)
        if member_state is MemberState.PRIMARY:
            state.primary_id = peer.id
            heard.add(written_ms)
    state.ages = OptimeAges()
    for written_ms in (60_000, *sorted(heard, reverse=True)):
        state.ages.note(place_of(written_ms).last_applied, Millis(NOW - written_ms))
    if is_new:
        state.started_at = NOW
        state.ages.restart(state.position.last_applied, NOW)
    return state


P, S, DOWN = MemberState.PRIMARY, MemberState.SECONDARY, MemberState.DOWN
CASES: dict[str, tuple[NodeState, int]] = {
    "as-far-as-the-primary": (follower(5_000, one=(P, 5_000, 10), two=(S, 5_000, 10)), 0),
    "ahead-of-what-it-heard": (follower(3_000, one=(P, 5_000, 10), two=(S, 5_000, 10)), 0),
    "behind-since-the-primary-wrote": (follower(9_000, one=(P, 5_000, 10), two=(S, 9_000, 10)), 5_000),
    "behind-for-a-week-it-has-just-started": (
        follower(604_800_000, is_new=True, one=(P, 5_000, 10), two=(S, 9_000, 10)),
        604_795_000,
    ),
    "a-diverged-member-is-no-measure": (follower(5_000, one=(P, 5_000, 10), two=(S, 1_000, 10)), 0),
    "a-silent-primary": (follower(9_000, one=(P, 5_000, 7_000), two=(S, 9_000, 10)), 12_000),
    "no-primary-but-a-majority": (follower(9_000, one=(DOWN, 0, 60_000), two=(S, 6_000, 10)), 3_000),
    "cut-off": (follower(9_000, one=(DOWN, 0, 60_000), two=(DOWN, 0, 60_000)), 9_000),
    "cut-off-with-a-primary-once": (follower(9_000, one=(DOWN, 0, 60_000)), 9_000),
    "cut-off-with-entries-of-last-week": (follower(604_800_000, is_new=True, one=(DOWN, 0, 60_000)), 604_800_000),
}


@pytest.mark.parametrize(("state", "expected"), CASES.values(), ids=CASES)
def test_of_this_member(state: NodeState, expected: int) -> None:
    assert lag_ms(state, state.host) == expected


@pytest.mark.parametrize("ahead_ms", [3_600_000, YEARS_MS, -YEARS_MS])
def test_a_wall_clock_that_was_wrong_changes_no_lag(ahead_ms: int) -> None:
    """The clock of the primary was wrong when it wrote what this member has as its newest, and is right again."""
    behind = follower(9_000, ahead_ms=ahead_ms, one=(P, 5_000, 10), two=(S, 9_000, 10))
    assert lag_ms(behind, behind.host) == 5_000
    cut_off = follower(9_000, ahead_ms=ahead_ms, one=(DOWN, 9_000, 60_000), two=(DOWN, 9_000, 60_000))
    assert lag_ms(cut_off, cut_off.host) == 9_000


def test_of_others() -> None:
    state = follower(5_000, one=(P, 5_000, 10), two=(S, 9_000, 10))
    assert [lag_ms(state, host(number)) for number in (1, 2)] == [0, 5_000]
    state.peers[host(2)].answered_since = Millis(NOW - 6_000)
    assert lag_ms(state, host(2)) == 11_000
    state.position = state.peers[host(2)].position = Position(OPTIME_NULL, OPTIME_NULL, 0, 0)
    assert [lag_ms(state, one) for one in (host(0), host(2), HostPort("elsewhere:1"))] == [None, None, None]


def test_an_arbiter_with_old_entries_is_not_behind() -> None:
    state = single_node(config=shaped("PSA"))._state
    state.position = state.peers[host(1)].position = Position(at(3), at(3), WALL, 0)
    state.peers[host(2)].position = Position(at(1), at(1), WALL - 60_000, 0)
    assert lag_ms(state, host(2)) is None
    assert lag_ms(state, host(1)) is not None
    state.host = host(2)
    assert lag_ms(state, host(2)) is None


def test_a_primary_is_never_behind() -> None:
    node = lead(single_node(config=CONFIG))
    node._state.peers[host(1)].position = Position(at(9), at(9), WALL, 0)
    assert node.primary == MemberId(0)
    assert node.lag_ms() == 0
