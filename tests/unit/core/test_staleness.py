"""How far a member may be behind: by the primary's clock, by a majority's, and cut off by its own."""

from __future__ import annotations

import pytest

from replset.core.member_state import MemberState
from replset.core.messages import Position
from replset.core.staleness import lag_ms
from replset.core.state import NodeState
from replset.ids import OPTIME_NULL, HostPort, MemberId
from tests.simulation.core_kit.machine import WALL, host
from tests.unit.core.single_node import CONFIG, at, lead, single_node

INTERVAL_MS = 2_000


def follower(own_ms: int, **others: tuple[MemberState, int, int]) -> NodeState:
    """Member 0 of three. Times are milliseconds before now: its own newest entry, and of each other member (`one`,
    `two`) its newest entry and its last answer.
    """
    state = single_node(config=CONFIG)._state
    state.position = Position(at(1), at(1), WALL - own_ms, 0)
    for name, (member_state, wall_ms, answered_ms) in others.items():
        peer = state.peers[host({"one": 1, "two": 2}[name])]
        peer.state = member_state
        peer.position = Position(at(1), at(1), WALL - wall_ms, 0)
        peer.last_reply_wall_ms = WALL - answered_ms
        if member_state is MemberState.PRIMARY:
            state.primary_id = peer.id
    return state


P, S, DOWN = MemberState.PRIMARY, MemberState.SECONDARY, MemberState.DOWN
CASES: dict[str, tuple[NodeState, int]] = {
    "as-far-as-the-primary": (follower(5_000, one=(P, 5_000, 10), two=(S, 5_000, 10)), 0),
    "ahead-of-what-it-heard": (follower(3_000, one=(P, 5_000, 10), two=(S, 5_000, 10)), 0),
    "behind-by-the-primarys-clock": (follower(9_000, one=(P, 5_000, 10), two=(S, 9_000, 10)), 4_000),
    "the-primarys-clock-is-ahead": (follower(-70_000, one=(P, -74_000, 10), two=(S, 0, 10)), 4_000),
    "a-diverged-member-is-no-measure": (follower(5_000, one=(P, 5_000, 10), two=(S, 1_000, 10)), 0),
    "a-silent-primary": (follower(9_000, one=(P, 5_000, 7_000), two=(S, 9_000, 10)), 11_000),
    "no-primary-but-a-majority": (follower(9_000, one=(DOWN, 0, 60_000), two=(S, 6_000, 10)), 3_000),
    "cut-off": (follower(9_000, one=(DOWN, 0, 60_000), two=(DOWN, 0, 60_000)), 9_000),
    "cut-off-with-a-primary-once": (follower(9_000, one=(DOWN, 0, 60_000)), 9_000),
}


@pytest.mark.parametrize(("state", "expected"), CASES.values(), ids=CASES)
def test_of_this_member(state: NodeState, expected: int) -> None:
    assert lag_ms(state, state.host) == expected


def test_of_others() -> None:
    state = follower(5_000, one=(P, 5_000, 10), two=(S, 9_000, 10))
    assert [lag_ms(state, host(number)) for number in (1, 2)] == [0, 4_000]
    state.peers[host(2)].last_reply_wall_ms = WALL - 6_000
    assert lag_ms(state, host(2)) == 10_000


def test_of_members_without_data_and_of_strangers() -> None:
    state = follower(5_000, one=(P, 5_000, 10))
    state.position = state.peers[host(2)].position = Position(OPTIME_NULL, OPTIME_NULL, 0, 0)
    assert [lag_ms(state, one) for one in (host(0), host(2), HostPort("elsewhere:1"))] == [None, None, None]


def test_a_primary_is_never_behind() -> None:
    node = lead(single_node(config=CONFIG))
    node._state.peers[host(1)].position = Position(at(9), at(9), WALL, 0)
    assert node.primary == MemberId(0)
    assert node.lag_ms() == 0
