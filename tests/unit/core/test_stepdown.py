"""Stepping down, freeze and step up, as administrators ask for them (map E11, E13, E14)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replset.core.effects import AcceptWrites, Send, StateChanged
from replset.core.member_state import MemberState
from replset.core.messages import (
    Done,
    DrainFinished,
    FreezeRequest,
    LocalPosition,
    Refused,
    Request,
    StepDownRequest,
    StepUpRequest,
)
from replset.ids import Millis
from tests.simulation.core_kit.cluster import running
from tests.simulation.core_kit.machine import host, members_of
from tests.unit.core.single_node import (
    CONFIG,
    FROM_1,
    NOW,
    SingleNode,
    asked,
    at,
    grant,
    lead,
    leading_three,
    named,
    only,
    place,
    ready,
    single_node,
    vote_requests,
)


def following(node: SingleNode, one: int = 1, two: int = 1) -> None:
    """The others are at entries `one` and `two` of term 2."""
    node.receive_heartbeat(1, position=place(at(2, one)), config_term=2)
    node.receive_heartbeat(2, position=place(at(2, two)), config_term=2)


def leading(one: int = 1, two: int = 1) -> SingleNode:
    """Member 0 leads term 2 and is at its entry 3; the others are at these."""
    node = lead(single_node(config=CONFIG))
    node.receive(LocalPosition(place(at(2, 3))), NOW)
    following(node, one, two)
    return node


def next_round(node: SingleNode, now: int = NOW + 2_000) -> None:
    node.tick(Millis(now))


@pytest.mark.parametrize(
    "request_",
    [StepDownRequest(-1, 0, False), StepDownRequest(10_000, -1, False), StepDownRequest(1_000, 2_000, False)],
)
def test_bad_stepdowns(request_: StepDownRequest) -> None:
    """Map E11."""
    assert asked(leading_three(), request_).code == 2


@pytest.mark.parametrize("force", [False, True])
def test_a_stepdown_asks_the_best_caught_up_member_to_step_up_unless_it_is_forced(force: bool) -> None:
    """Map E11, E12: highest priority, lowest index on ties."""
    rows = [replace(row, priority=float(1 + (row.id == 2))) for row in members_of(3)]
    node = lead(single_node(config=named(*rows)))
    node.receive(LocalPosition(place(at(2))), NOW)
    following(node)
    effects = node.receive(Request(5, StepDownRequest(60_000, 10_000, force)), NOW)
    asks = [send for send in only(effects, Send) if isinstance(send.body, StepUpRequest)]
    expected = [] if force else [(host(2), StepUpRequest(skip_dry_run=True))]
    assert [(send.to, send.body) for send in asks] == expected
    assert node.state is MemberState.SECONDARY
    assert Done() in [getattr(effect, "body", None) for effect in effects]
    assert not vote_requests(node.tick(Millis(NOW + 59_999)))


@pytest.mark.parametrize(
    "told",
    [
        pytest.param({"electable": False}, id="frozen"),
        pytest.param({"state": MemberState.RECOVERING, "electable": False}, id="in-maintenance"),
    ],
)
def test_a_stepdown_asks_nobody_who_cannot_stand_now(told: dict[str, object]) -> None:
    """As the old primary, frozen for a minute by its own stepdown: it would refuse, and nobody would lead."""
    node = leading_three()
    following(node)
    next_round(node)
    node.receive_heartbeat(1, position=place(at(2, 1)), config_term=2, **told)
    node.receive_heartbeat(2, position=place(at(2, 1)), config_term=2)
    effects = node.receive(Request(5, StepDownRequest(60_000, 10_000, False)), Millis(NOW + 2_000))
    asks = [send for send in only(effects, Send) if isinstance(send.body, StepUpRequest)]
    assert [send.to for send in asks] == [host(2)]


def test_a_stepdown_waits_until_a_member_can_stand() -> None:
    node = leading_three()
    following(node)
    next_round(node)
    for other in (1, 2):
        node.receive_heartbeat(other, position=place(at(2, 1)), config_term=2, electable=False)
    node.receive(Request(5, StepDownRequest(60_000, 10_000, False)), Millis(NOW + 2_000))
    assert node.state is MemberState.PRIMARY
    next_round(node, NOW + 4_000)
    node.receive_heartbeat(1, NOW + 4_000, position=place(at(2, 1)), config_term=2)
    assert node.state is MemberState.SECONDARY


def test_a_stepdown_waits_for_others_and_takes_no_writes_meanwhile() -> None:
    """Map E11."""
    node = leading(2, 1)
    effects = node.receive(Request(5, StepDownRequest(60_000, 5_000, False)), NOW)
    assert AcceptWrites(False, 2) in effects
    assert not node.writable
    assert node.state is MemberState.PRIMARY
    next_round(node)
    following(node, 3, 1)
    node.tick(Millis(NOW + 2_001))
    assert node.state is MemberState.SECONDARY


def test_one_stepdown_at_a_time() -> None:
    node = leading_three()
    node.receive(LocalPosition(place(at(2, 2))), NOW)
    node.receive(Request(5, StepDownRequest(60_000, 5_000, False)), NOW)
    assert asked(node, StepDownRequest(60_000, 5_000, False)).code == 109
    assert node.state is MemberState.PRIMARY, "the first one still waits"


def test_a_stepdown_gives_up_at_its_deadline_and_takes_writes_again() -> None:
    """Map E11: 262."""
    node = leading()
    node.receive(Request(5, StepDownRequest(60_000, 5_000, False)), NOW)
    next_round(node)
    following(node)
    effects = node.tick(Millis(NOW + 5_000))
    answers = [getattr(effect, "body", None) for effect in effects]
    assert [answer.code for answer in answers if isinstance(answer, Refused)] == [262]
    assert AcceptWrites(True, 2) in effects
    assert node.writable


def test_a_hand_over_waits_for_the_member_that_was_asked_for() -> None:
    node = leading(3, 1)
    node.receive(Request(5, StepDownRequest(60_000, 5_000, False, host(2))), NOW)
    assert node.state is MemberState.PRIMARY
    next_round(node)
    following(node, 3, 3)
    node.tick(Millis(NOW + 2_001))
    assert node.state is MemberState.SECONDARY
    assert {send.to for send in node.sent if isinstance(send.body, StepUpRequest)} == {host(2)}


@pytest.mark.parametrize("electable", [True, False])
def test_a_hand_over_to_a_member_that_does_not_catch_up_is_given_up(electable: bool) -> None:
    node = leading(3, 1)
    node._state.peers[host(2)].electable = electable
    node.receive(Request(5, StepDownRequest(60_000, 1_000, False, host(2))), NOW)
    effects = node.tick(Millis(NOW + 1_000))
    refusals = [body for body in (getattr(effect, "body", None) for effect in effects) if isinstance(body, Refused)]
    (refusal,) = refusals
    why = "has not, or no write majority has, caught up" if electable else "cannot be elected now"
    assert (refusal.code, refusal.reason.startswith(f"{host(2)} {why}")) == (262, True)
    assert node.writable


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        pytest.param(StepDownRequest(60_000, 0, True, host(2)), 2, id="with-force"),
        pytest.param(StepDownRequest(60_000, 0, False, host(0)), 74, id="itself"),
        pytest.param(StepDownRequest(60_000, 0, False, host(9)), 74, id="a-stranger"),
        pytest.param(StepDownRequest(60_000, 0, False, host(1)), 104, id="not-electable"),
    ],
)
def test_whom_a_primary_does_not_hand_over_to(request_: StepDownRequest, code: int) -> None:
    rows = [replace(row, priority=float(row.id != 1)) for row in members_of(3)]
    node = lead(single_node(config=named(*rows)))
    assert asked(node, request_).code == code
    assert node.writable


def test_force_steps_down_at_the_deadline_without_a_successor() -> None:
    node = leading()
    effects = node.receive(Request(5, StepDownRequest(60_000, 0, True)), NOW)
    assert node.state is MemberState.SECONDARY
    assert not [send for send in only(effects, Send) if isinstance(send.body, StepUpRequest)]


def test_a_stepdown_needs_an_electable_secondary() -> None:
    """Map E11: a majority that has everything is not enough."""
    rows = members_of(3)
    node = lead(single_node(config=named(rows[0], *(replace(row, priority=0.0) for row in rows[1:]))))
    node.receive(LocalPosition(place(at(2))), NOW)
    following(node)
    assert asked(node, StepDownRequest(60_000, 0, False)).code == 262


def test_leaving_primary_ends_writes_before_anything_else() -> None:
    """On leaving PRIMARY every waiting client gets an error at once."""
    node = leading_three()
    effects = node.receive(Request(9, replace(FROM_1, term=9)), NOW)
    kinds = [effect for effect in effects if isinstance(effect, AcceptWrites | StateChanged)]
    assert kinds[0] == AcceptWrites(False, 2)
    assert kinds[1] == StateChanged(MemberState.SECONDARY, 2, None)
    assert kinds[-1] == StateChanged(MemberState.SECONDARY, 9, None)


# --- freeze and step up ----------------------------------------------------------------------------------------------


def test_freeze() -> None:
    """Map E13."""
    node = ready()
    assert asked(node, FreezeRequest(20_000)) == Done("")
    assert not vote_requests(node.tick(Millis(NOW + 12_000)))
    for number in (1, 2):
        node.receive_heartbeat(number, now=NOW + 12_000)
    assert asked(node, FreezeRequest(0), NOW + 12_000) == Done("unfrozen")
    node.tick(Millis(NOW + 13_000))
    for number in (1, 2):
        node.receive_heartbeat(number, now=NOW + 13_000)
    assert vote_requests(node.tick(Millis(NOW + 24_000)))
    assert asked(leading_three(), FreezeRequest(1_000)).code == 95


def test_a_primary_that_steps_down_does_not_begin_to_take_writes() -> None:
    """The stepdown waits for the others, and the primary ends its catch-up meanwhile."""
    node = single_node(config=CONFIG, position=place(at(1, 3)))
    for number in (1, 2):
        node.receive_heartbeat(number)
    node.receive(Request(3, StepUpRequest(skip_dry_run=True)), NOW)
    grant(node, 1)
    for number in (1, 2):
        node.receive_heartbeat(number)
    assert node.state is MemberState.PRIMARY
    node.receive(Request(5, StepDownRequest(60_000, 1_000, False)), NOW)
    effects = node.receive(DrainFinished(2), NOW)
    assert [effect.accept for effect in only(effects, AcceptWrites)] == [True, False]
    assert not node.writable
    effects = node.tick(Millis(NOW + 1_000))
    assert [effect.accept for effect in only(effects, AcceptWrites)] == [True]
    assert node.writable


def test_a_single_member_leads_again_when_its_freeze_ends() -> None:
    """Map E15."""
    node = single_node(config=named(*members_of(1)))
    node.receive(DrainFinished(2), NOW)
    node.receive(Request(5, StepDownRequest(3_000, 0, True)), NOW)
    assert node.state is MemberState.SECONDARY
    assert node.next_tick_at() == NOW + 3_000
    node.tick(Millis(NOW + 2_999))
    assert node.state is MemberState.SECONDARY
    node.tick(Millis(NOW + 3_000))
    assert node.state is MemberState.PRIMARY


def test_step_up_is_answered_when_the_election_has_ended() -> None:
    """Map E14."""
    cluster = running(3)
    leader = cluster.elect()
    other = next(number for number in range(3) if cluster[number] is not leader)
    assert cluster.ask_and_wait(other, StepUpRequest(skip_dry_run=False)) == Done()
    cluster.until(lambda: cluster.primary is cluster[other])
    assert leader.node.state is MemberState.SECONDARY
    lost = cluster.ask(other, StepUpRequest(skip_dry_run=False))
    assert cluster.answer_of(other, lost) == Done()
    node = ready()
    node.receive(Request(5, StepUpRequest(skip_dry_run=False)), NOW)
    grant(node, 1, granted=False, reason="no")
    effects = grant(node, 2, granted=False, reason="no")
    answers = [getattr(effect, "body", None) for effect in effects]
    assert [answer.code for answer in answers if isinstance(answer, Refused)] == [125]
