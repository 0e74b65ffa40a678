"""Until when a primary holds the role of a hook, and who may hold it still."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replset.core.messages import DrainFinished, HeartbeatReply, Request, StepUpRequest
from replset.core.role import holders, role_until, role_wait_ms
from replset.core.state import BEGINNING, NodeState
from replset.ids import Millis
from tests.simulation.core_kit.machine import host, members_of
from tests.unit.core.single_node import FROM_1, NOW, asked, grant, named, ready, shaped, single_node

HOOK_MS = 4_000


def leading(shape: str, *answered_ms: int | None) -> NodeState:
    """A primary that accepts writes. answered_ms: how long ago the others answered; None: one that it does not know."""
    state = single_node(config=shaped(shape))._state
    state.role_hook_ms, state.writable = HOOK_MS, True
    for number, ago in enumerate(answered_ms, 1):
        if ago is None:
            del state.peers[host(number)]
        else:
            peer = state.peers[host(number)]
            peer.answered_since, peer.incarnation = Millis(NOW - ago), f"i{number}"
    return state


@pytest.mark.parametrize(
    ("shape", "answered_ms", "held_ms_ago"),
    [
        pytest.param("P", [], 0, id="alone"),
        pytest.param("PS", [500], 500, id="both-of-two"),
        pytest.param("PSS", [300, 700], 300, id="the-faster-of-two-others"),
        pytest.param("PSS", [700, 300], 300, id="in-any-order"),
        pytest.param("PSSSS", [900, 100, 700, 300], 300, id="two-of-four-others"),
        pytest.param("PSSN", [300, 700, 0], 300, id="one-without-a-vote-does-not-count"),
        pytest.param("PSS", [None, 700], 700, id="one-of-two-is-unknown"),
    ],
)
def test_the_role_counts_from_the_answers_of_a_majority(
    shape: str, answered_ms: list[int | None], held_ms_ago: int
) -> None:
    assert role_until(leading(shape, *answered_ms), NOW) == NOW - held_ms_ago + HOOK_MS


def test_who_has_no_majority_or_accepts_no_writes_holds_nothing() -> None:
    assert role_until(leading("PSS", None, None), NOW) == BEGINNING, "fewer known than a majority"
    follower = leading("PSS", 300, 700)
    follower.writable = False
    assert role_until(follower, NOW) == BEGINNING
    alone = leading("P")
    alone.config = None
    assert role_until(alone, NOW) == BEGINNING


def test_a_voter_whose_disk_was_replaced_and_an_own_one_vouch_for_nothing() -> None:
    """Their answers came from another disk, which may have voted otherwise."""
    state = leading("PSS", 300, 700)
    state.peers[host(1)].incarnation = "another"
    assert role_until(state, NOW) == NOW - 700 + HOOK_MS
    state.incarnation = "another"
    assert role_until(state, NOW) == BEGINNING + HOOK_MS, "long over"


def test_who_may_hold_it_still() -> None:
    """Members with data that have not said in this term that they hold it no more."""
    state = leading("PSSA", 0, 0, 0)
    for number in (1, 2, 3):
        state.peers[host(number)].role_free_in = -1
    assert [peer.id for peer in holders(state)] == [1, 2]
    state.peers[host(1)].role_free_in = state.term
    state.peers[host(2)].role_free_in = state.term - 1
    assert [peer.id for peer in holders(state)] == [2]
    state.role_hook_ms = 0
    assert holders(state) == [], "without a hook there is no role"


@pytest.mark.parametrize("holds", [False, True])
def test_a_member_says_whether_it_holds_the_role(holds: bool) -> None:
    node = ready(config=named(*members_of(3)), holds_role=lambda: holds)
    answer = asked(node, replace(FROM_1, holds_role=holds))
    assert isinstance(answer, HeartbeatReply)
    assert answer.holds_role is holds
    assert node._state.peers[host(1)].role_free_in == (-1 if holds else 1)


def test_a_primary_waits_for_a_silent_holder_until_its_hook_has_ended_and_no_longer() -> None:
    node = ready(role_hook_ms=HOOK_MS)
    node.receive(Request(3, StepUpRequest(skip_dry_run=True)), NOW)
    grant(node, 1)
    for number in (1, 2):
        node.receive_heartbeat(number, holds_role=True)
    node.receive(DrainFinished(node.term), NOW)
    until = NOW + role_wait_ms(node._state)
    node.tick(Millis(until - 1))
    assert not node.writable
    node.tick(Millis(until))
    assert node.writable
