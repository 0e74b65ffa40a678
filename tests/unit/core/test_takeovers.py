"""Takeovers: by priority and to catch up, and how often one member may take over (map E9, E10)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from replset.config import Member, Settings
from replset.core.effects import RecordElectionEvent, Reply
from replset.core.member_state import MemberState
from replset.core.messages import (
    AbortCatchUpRequest,
    Done,
    HeartbeatRequest,
    Refused,
    Request,
    StepUpRequest,
    VoteReply,
    VoteRequest,
)
from replset.errors import ErrorCode
from replset.ids import MemberId, Millis, OpTime, pack_ts
from tests.simulation.core_kit.cluster import CoreCluster
from tests.simulation.core_kit.machine import members_of
from tests.unit.core.single_node import (
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
    single_node,
    vote_requests,
)

TIMEOUT = 10_000


def follower(settings: Settings | None = None, *, priority: float = 1.0, **fields: Any) -> SingleNode:
    """Member 0 of three, in term 2; member 1 is primary."""
    rows: list[Member] = list(members_of(3))
    rows[0] = replace(rows[0], priority=priority)
    node = single_node(config=named(*rows, settings=settings or Settings(), term=2), **fields)
    hear(node, NOW)
    return node


def hear(node: SingleNode, now: int, **of_primary: Any) -> None:
    node.tick(Millis(now))
    told = {"state": MemberState.PRIMARY, "primary_id": MemberId(1), "term": 2, "config_term": 2} | of_primary
    for number, row in ((1, told), (2, {"term": 2, "config_term": 2})):
        if node._state.peers[node.open(number, object).to].heartbeat_id is not None:
            node.receive_heartbeat(number, now, **row)


def until_it_asks(node: SingleNode, limit_ms: int, **of_primary: Any) -> tuple[int, str]:
    """When it asks for votes, and why; (0, "") if it does not."""
    for now in range(NOW, NOW + limit_ms, 100):
        requests = vote_requests(node.tick(Millis(now)))
        if requests:
            return now - NOW, requests[0].reason
        hear(node, now, **of_primary)
    return 0, ""


AHEAD = {"position": place(at(1, 9))}
BEHIND = {"position": place(at(1, 5))}


@pytest.mark.parametrize("delay_ms", [0, 1, 30_000])
def test_a_member_ahead_of_a_primary_that_does_not_catch_up_takes_over(delay_ms: int) -> None:
    settings = Settings(catch_up_takeover_delay_ms=delay_ms)
    when, reason = until_it_asks(follower(settings, **AHEAD), 60_000, **BEHIND)
    assert reason == "catchupTakeover"
    assert delay_ms <= when <= delay_ms + 4_000


@pytest.mark.parametrize(
    ("settings", "fields", "of_primary"),
    [
        pytest.param(Settings(catch_up_takeover_delay_ms=-1), AHEAD, BEHIND, id="switched-off"),
        pytest.param(Settings(), BEHIND, BEHIND, id="not-ahead"),
        pytest.param(Settings(), {"position": place(at(2, 1))}, BEHIND, id="has-an-entry-of-the-term"),
        pytest.param(Settings(), {**AHEAD, "incarnation": "another"}, BEHIND, id="not-electable"),
    ],
)
def test_who_does_not_take_over_to_catch_up(settings: Settings, fields: Any, of_primary: Any) -> None:
    assert until_it_asks(follower(settings, **fields), 60_000, **of_primary) == (0, "")


def test_a_primary_that_caught_up_meanwhile_is_left_alone() -> None:
    node = follower(**AHEAD)
    hear(node, NOW + 100, **BEHIND)
    for now in range(NOW + 2_000, NOW + 60_000, 100):
        assert not vote_requests(node.tick(Millis(now)))
        hear(node, now, position=place(at(2, 10)))


@pytest.mark.parametrize(
    ("priorities", "of_primary", "reason"),
    [
        pytest.param((5.0, 1.0, 1.0), BEHIND, "priorityTakeover", id="highest-and-ahead"),
        pytest.param((5.0, 1.0, 5.0), BEHIND, "priorityTakeover", id="shares-the-highest-and-ahead"),
        pytest.param((5.0, 1.0, 7.0), BEHIND, "catchupTakeover", id="second-and-ahead"),
        pytest.param((1.0, 1.0, 1.0), BEHIND, "catchupTakeover", id="same-and-ahead"),
        pytest.param((5.0, 1.0, 1.0), AHEAD, "priorityTakeover", id="highest"),
        pytest.param((5.0, 1.0, 7.0), AHEAD, "priorityTakeover", id="second"),
        pytest.param((1.0, 1.0, 1.0), AHEAD, "", id="same"),
    ],
)
def test_the_highest_priority_comes_before_catching_up(
    priorities: tuple[float, ...], of_primary: Any, reason: str
) -> None:
    rows = [replace(row, priority=priority) for row, priority in zip(members_of(3), priorities, strict=True)]
    node = single_node(config=named(*rows, term=2), **AHEAD)
    hear(node, NOW)
    assert until_it_asks(node, 60_000, **of_primary)[1] == reason


def test_a_member_far_behind_waits_with_its_priority() -> None:
    late = follower(priority=5.0, position=place(OpTime(2, pack_ts(1_700_000_000, 1))))
    assert until_it_asks(late, 60_000, position=place(OpTime(2, pack_ts(1_700_000_003, 1)))) == (0, "")


@pytest.mark.parametrize(
    ("newest", "behind_ms", "fresh"),
    [
        pytest.param(OpTime(2, pack_ts(100, 1)), 60_000, True, id="same"),
        pytest.param(OpTime(2, pack_ts(102, 9)), 2_000, True, id="two-seconds"),
        pytest.param(OpTime(2, pack_ts(102, 9)), 2_001, False, id="more-than-two-seconds"),
        pytest.param(OpTime(2, pack_ts(9_999_999, 1)), 2_000, True, id="by-a-clock-that-was-ahead"),
        pytest.param(OpTime(2, pack_ts(100, 99_999)), 2_000, True, id="many-within-one-second-of-such-a-clock"),
        pytest.param(OpTime(2, pack_ts(100, 2)), 2_001, False, id="few-within-it"),
        pytest.param(OpTime(3, pack_ts(100, 2)), 0, False, id="another-term"),
    ],
)
def test_the_freshness_window(newest: OpTime, behind_ms: int, fresh: bool) -> None:
    node = follower(priority=5.0, position=place(OpTime(2, pack_ts(100, 1))))
    heard = NOW + 2_500
    hear(node, heard, position=place(newest), term=newest.term)
    node._state.now = Millis(heard + behind_ms)
    assert node._elections.takeovers._is_fresh() is fresh


# --- how often -------------------------------------------------------------------------------------------------------


def take_over(node: SingleNode, now: int, *, dry_run: bool) -> VoteReply:
    request = VoteRequest("rs0", node.term, MemberId(2), "i2", 1, 2, at(1), dry_run, "priorityTakeover")
    request = request if dry_run else replace(request, term=node.term + 1)
    node.tick(Millis(now))
    reply = asked(node, request, now)
    assert isinstance(reply, VoteReply)
    return reply


def test_voters_let_a_member_take_over_less_and_less_often() -> None:
    """Also if it has restarted meanwhile and knows of nothing."""
    node = follower()
    now = NOW
    for pause in (0, 60_000, 120_000, 240_000, 480_000):
        if pause:
            assert "may again after" in take_over(node, now + pause - 1_000, dry_run=True).reason
        now += pause
        assert take_over(node, now, dry_run=True).granted
        assert take_over(node, now, dry_run=False).granted
    assert take_over(node, now + 3_600_000, dry_run=True).granted  # an hour later all is forgotten


def test_a_member_that_took_over_counts_too() -> None:
    node = follower(priority=5.0)
    _, reason = until_it_asks(node, 30_000)
    assert reason == "priorityTakeover"
    grant(node, 1)
    assert node.term == 3
    assert node._state.self_id in node._elections.takeovers._done


def test_it_is_the_voters_who_end_a_flap() -> None:
    node = follower(priority=5.0)
    node._elections.takeovers.note(MemberId(0))
    events: list[str] = []
    for now in range(NOW, NOW + 40_000, 100):
        effects = node.tick(Millis(now))
        events += [line.record.detail for line in only(effects, RecordElectionEvent)]
        assert not vote_requests(effects)
        hear(node, now)
    assert any("member 0 took over" in detail for detail in events)


def refuse(node: SingleNode, now: int) -> None:
    """Let both others refuse their votes."""
    for number in (1, 2):
        reply = VoteReply(node.term, False, "newer", MemberId(number), f"i{number}")
        node.answer(number, VoteRequest, reply, now)


def elections_of(node: SingleNode, since: int, limit_ms: int) -> list[tuple[int, str]]:
    """(milliseconds, reason) of each dry run after `since`; the others refuse each."""
    found: list[tuple[int, str]] = []
    for now in range(since, since + limit_ms, 10):
        if requests := vote_requests(node.tick(Millis(now))):
            found.append((now - since, requests[0].reason))
            refuse(node, now)
    return found


def end_the_primary(node: SingleNode, reason: str) -> int:
    """It stands in a new term: when."""
    if reason == "priorityTakeover":
        until_it_asks(node, 30_000)
        grant(node, 2)
    else:
        node.receive(Request(3, StepUpRequest(skip_dry_run=reason == "stepUpRequestSkipDryRun")), node._state.now)
        if reason == "stepUpRequest":
            grant(node, 2)
    assert node._elections.election is not None
    assert not node._elections.election.dry_run
    return int(node._state.now)


def ended_in_vain(node: SingleNode, reason: str) -> int:
    """It ends the primary and finds no majority: when."""
    now = end_the_primary(node, reason)
    refuse(node, now)
    return now


@pytest.mark.parametrize("reason", ["priorityTakeover", "stepUpRequest", "stepUpRequestSkipDryRun"])
def test_who_ended_a_primary_in_vain_stands_again_a_few_times_before_the_timeout(reason: str) -> None:
    node = follower(priority=5.0)
    tries = elections_of(node, ended_in_vain(node, reason), 2 * TIMEOUT)
    soon = [when for when, why in tries if why == "standsAgain"]
    assert [why for _, why in tries] == ["standsAgain"] * 3 + ["electionTimeout"] * (len(tries) - 3)
    assert all(150 <= later - before <= 310 for before, later in pairwise([0, *soon]))
    assert TIMEOUT <= tries[3][0] <= 1.2 * TIMEOUT


def test_who_ended_a_primary_in_vain_asks_the_others_at_once_what_they_have() -> None:
    node = follower(priority=5.0)
    now = end_the_primary(node, "stepUpRequestSkipDryRun")
    for number in (1, 2):
        node.receive_heartbeat(number, now)
    before = len(node.sent)
    refuse(node, now)
    assert [type(send.body) for send in node.sent[before:]] == [HeartbeatRequest] * 2


def test_who_ended_a_primary_in_vain_leaves_the_next_one_alone() -> None:
    node = follower(priority=5.0)
    now = ended_in_vain(node, "stepUpRequestSkipDryRun")
    node.tick(Millis(now))
    node.receive_heartbeat(1, now, state=MemberState.PRIMARY, primary_id=MemberId(1), config_term=2)
    assert node._state.primary_id == 1
    assert elections_of(node, now, 1_000) == []


def test_who_ended_a_primary_in_vain_leaves_the_candidate_alone_that_it_votes_for() -> None:
    node = follower(priority=5.0)
    now = ended_in_vain(node, "stepUpRequestSkipDryRun")
    assert take_over(node, now, dry_run=False).granted
    assert elections_of(node, now, 1_000) == []


def test_who_was_elected_meanwhile_does_not_stand_again_when_it_leads_no_more() -> None:
    node = follower(priority=5.0)
    now = ended_in_vain(node, "stepUpRequestSkipDryRun")
    node.receive(Request(4, StepUpRequest(skip_dry_run=True)), now)
    grant(node, 2)
    assert node.state is MemberState.PRIMARY
    node.receive_heartbeat(1, now, term=node.term + 1)
    assert node.state is MemberState.SECONDARY
    assert elections_of(node, now, 1_000) == []


def test_the_next_try_is_made_when_it_is_due() -> None:
    node = follower(priority=5.0)
    ended_in_vain(node, "stepUpRequestSkipDryRun")
    due = node._elections._again_due
    assert node.next_tick_at() <= due
    assert vote_requests(node.tick(due))


def without_a_primary() -> SingleNode:
    node = follower(priority=5.0)
    hear(node, NOW + 2_000, state=MemberState.SECONDARY, primary_id=None)
    node._state.primary_id = None
    return node


def test_a_dry_run_that_is_lost_ends_no_primary() -> None:
    node = without_a_primary()
    node.receive(Request(3, StepUpRequest(skip_dry_run=False)), node._state.now)
    now = int(node._state.now)
    refuse(node, now)
    assert elections_of(node, now, 1_000) == []


def test_who_stood_after_a_timeout_and_lost_waits_for_the_next_one() -> None:
    node = without_a_primary()
    while not vote_requests(node.tick(Millis(node._state.now + 100))):
        for number in (1, 2):
            if node._state.peers[node.open(number, object).to].heartbeat_id is not None:
                node.receive_heartbeat(number, node._state.now)
    assert node._elections.last_reason == "electionTimeout"
    now = int(node._state.now)
    grant(node, 2)
    refuse(node, now)
    assert elections_of(node, now, TIMEOUT - 1) == []


@pytest.mark.parametrize("state", [MemberState.PRIMARY, MemberState.SECONDARY])
def test_a_voter_with_contact_to_a_primary_refuses_who_stands_again(state: MemberState) -> None:
    node = follower()
    hear(node, NOW + 2_000, state=state)
    request = VoteRequest("rs0", node.term, MemberId(2), "i2", 1, 2, at(1), True, "standsAgain")
    answer = asked(node, request, NOW + 2_000)
    assert isinstance(answer, VoteReply)
    assert answer.granted is (state is MemberState.SECONDARY)


def test_a_takeover_from_a_primary_that_always_writes_makes_no_long_outage() -> None:
    """The primary has newer entries than the candidate at any time, as those have that follow it more closely."""
    cluster = CoreCluster(3)
    rows = [replace(row, priority=float(1 + 4 * (row.id == 2))) for row in members_of(3)]
    cluster.initiate(*members_of(3))
    first = cluster.elect()
    cluster.until(cluster.all_counted)
    assert first is not cluster[2]
    cluster.reconfig(cluster.number_of(first), cluster.user_config(0, *rows))
    taken: list[int] = []

    def write() -> None:
        leader = cluster.primary
        if leader is not None and leader.write("x") is not None:
            taken.append(cluster.now)
        cluster.at(1, write)

    write()
    cluster.until(lambda: cluster.primary is cluster[2], 5_000)
    cluster.run(500)
    timeout = cluster[2].node._state.settings.election_timeout_ms
    assert max(after - before for before, after in pairwise(taken)) < timeout // 2


# --- the end of catch-up ---------------------------------------------------------------------------------------------


def test_catch_up_is_aborted_on_request() -> None:
    node = single_node(config=named(*members_of(3)))
    assert asked(node, AbortCatchUpRequest()) == Refused(
        ErrorCode.ILLEGAL_OPERATION, "this member is not in catch-up mode"
    )
    assert isinstance(asked(leading_three(), AbortCatchUpRequest()), Refused)


def test_a_primary_in_catch_up_drains_at_once_when_it_is_aborted() -> None:
    node = lead(single_node(config=named(*members_of(3))))
    node._leader.phase = type(node._leader.phase).CATCH_UP
    effects = node.receive(Request(7, AbortCatchUpRequest()), NOW)
    assert only(effects, Reply) == [Reply(7, Done())]
    assert node._leader.phase.value == "drain"
    assert [one.record.detail for one in only(effects, RecordElectionEvent)] == ["replSetAbortPrimaryCatchUp"]


def test_takeovers_of_long_ago_make_no_pause_longer() -> None:
    node = follower()
    takeovers, me = node._elections.takeovers, MemberId(0)
    state = node._state
    for now in [NOW] * 5 + [NOW + 200 * TIMEOUT]:
        state.now = Millis(now)
        takeovers.note(me)
    for after, refuses in ((359, True), (360, False)):
        state.now = Millis(NOW + after * TIMEOUT)
        assert (takeovers.refusal(me) is not None) is refuses
