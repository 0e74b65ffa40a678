"""Each rule by which a vote is refused, in MongoDB's order (map E5), and that a vote is durable before it is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replset.config import Settings
from replset.core.effects import LastVote, Persist, Reply
from replset.core.election import Elections
from replset.core.member_state import MemberState
from replset.core.messages import Request, VoteReply, VoteRequest
from replset.core.node import Node
from replset.errors import InvariantError
from replset.ids import MemberId, Millis, OpTime
from tests.simulation.core_kit.machine import members_of
from tests.unit.core.single_node import NOW, asked, at, leading_three, named, only, place, ready, single_node

CONFIG = named(*members_of(3), version=4, term=1)
REQUEST = VoteRequest("rs0", 1, MemberId(1), "i1", 4, 1, at(1, 5), dry_run=False)


def voter(**fields: object) -> Node:
    return single_node(config=CONFIG, position=place(at(1, 5)), **fields)


def vote(node: Node, request: VoteRequest) -> VoteReply:
    answer = asked(node, request)
    assert isinstance(answer, VoteReply)
    return answer


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        pytest.param({"config_version": 3}, "is older than this", id="E5-1-config-version"),
        pytest.param({"config_term": 0, "config_version": 9}, "is older than this", id="E5-1-config-term"),
        pytest.param({"term": 0}, "term 0 is lower", id="E5-2-term"),
        pytest.param({"set_name": "other"}, "'other' is not 'rs0'", id="E5-3-set-name"),
        pytest.param({"last_applied": at(1, 4)}, "the candidate is at", id="E5-4-behind"),
        pytest.param({"last_applied": at(0, 9)}, "the candidate is at", id="E5-4-older-term"),
        pytest.param({"candidate_incarnation": "i9"}, "does not name the candidate", id="incarnation-of-candidate"),
        pytest.param({"candidate": MemberId(9)}, "does not name the candidate", id="candidate-unknown"),
    ],
)
def test_refusals(change: dict[str, object], says: str, dry_run: bool) -> None:
    answer = vote(voter(), replace(REQUEST, dry_run=dry_run, **change))
    assert not answer.granted
    assert says in answer.reason


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param({"config_version": 3}, {"term": 0}, id="config-before-term"),
        pytest.param({"term": 0}, {"set_name": "x"}, id="term-before-set-name"),
        pytest.param({"set_name": "x"}, {"last_applied": at(1, 1)}, id="set-name-before-freshness"),
    ],
)
def test_the_order_of_refusals(first: dict[str, object], second: dict[str, object]) -> None:
    alone = vote(voter(), replace(REQUEST, **first))
    assert vote(voter(), replace(REQUEST, **first, **second)).reason == alone.reason


def test_freshness_comes_before_the_vote_that_was_cast_and_a_dry_run_does_not_mind_it() -> None:
    node = voter(last_vote=LastVote(1, MemberId(2)))
    assert "this member at" in vote(node, replace(REQUEST, last_applied=at(1, 1))).reason
    assert "has voted" in vote(node, REQUEST).reason
    assert vote(node, replace(REQUEST, dry_run=True)).granted


def test_one_vote_per_term() -> None:
    node = voter()
    assert vote(node, replace(REQUEST, term=2)).granted
    second = vote(node, replace(REQUEST, term=2, candidate=MemberId(2), candidate_incarnation="i2"))
    assert not second.granted
    assert "has voted for member 1 in term 2" in second.reason
    assert vote(node, replace(REQUEST, term=3, candidate=MemberId(2), candidate_incarnation="i2")).granted


def test_a_vote_survives_a_restart() -> None:
    """Map E6: read at start."""
    node = voter(last_vote=LastVote(5, MemberId(2)))
    assert node.term == 5
    assert "has voted" in vote(node, replace(REQUEST, term=5)).reason


def test_a_dry_run_is_no_vote() -> None:
    node = voter()
    effects = node.receive(Request(1, replace(REQUEST, term=1, dry_run=True)), NOW)
    assert only(effects, Persist) == []
    assert only(effects, Reply)[0].body == VoteReply(1, True, "", MemberId(0), "i0")
    assert vote(node, replace(REQUEST, candidate=MemberId(2), candidate_incarnation="i2", term=1)).granted


def test_a_vote_is_durable_before_it_is_sent() -> None:
    """Votes and configurations are durable before they are sent or counted (docs/adr/0007)."""
    effects = voter().receive(Request(1, replace(REQUEST, term=2)), NOW)
    assert [type(effect) for effect in effects if isinstance(effect, Persist | Reply)] == [Persist, Reply]
    assert only(effects, Persist)[0].record == LastVote(2, MemberId(1))


def test_a_higher_term_is_taken_even_when_the_vote_is_refused() -> None:
    """Every report carries the sender's term; whoever sees a higher one takes it first."""
    node = voter()
    answer = vote(node, replace(REQUEST, term=7, last_applied=at(1, 1)))
    assert (answer.granted, answer.term, node.term) == (False, 7, 7)


def test_granting_pushes_the_election_timer_on() -> None:
    """Map H7."""
    node = voter()
    late = NOW + 9_999
    assert only(node.receive(Request(1, replace(REQUEST, term=2)), Millis(late)), Reply)[0].body.granted
    before = node.tick(Millis(late + 9_999))
    assert not [effect for effect in before if isinstance(getattr(effect, "body", None), VoteRequest)]


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        pytest.param(CONFIG, {"initial_sync_pending": True}, id="marker-set"),
        pytest.param(CONFIG, {"incarnation": "another"}, id="other-incarnation"),
        pytest.param(None, {}, id="no-configuration"),
        pytest.param(named(replace(members_of(3)[0], newly_added=True), *members_of(3)[1:], version=4), {}, id="C14"),
    ],
)
def test_a_member_votes_only_while_the_config_names_its_incarnation(config: object, fields: dict[str, object]) -> None:
    """A member votes, acknowledges and counts only while the configuration names its incarnation (docs/adr/0007)."""
    answer = vote(single_node(config=config, position=place(at(1, 5)), **fields), replace(REQUEST, term=2))
    assert not answer.granted
    assert "no vote" in answer.reason or not fields


# --- a healthy primary ------------------------------------------------------------------------------------------------

STANDING = replace(REQUEST, dry_run=True, reason="electionTimeout")


@pytest.mark.parametrize(
    ("change", "granted"),
    [
        pytest.param({}, False, id="election-timeout"),
        pytest.param({"reason": "priorityTakeover"}, True, id="takeover"),
        pytest.param({"reason": "stepUpRequest"}, True, id="step-up"),
        pytest.param({"reason": ""}, True, id="a-member-that-does-not-say"),
        pytest.param({"dry_run": False, "term": 2}, True, id="a-real-vote"),
        pytest.param({"candidate": MemberId(2), "candidate_incarnation": "i2"}, True, id="the-primary-itself"),
    ],
)
def test_a_dry_run_is_refused_while_a_primary_is_reachable(change: dict[str, object], granted: bool) -> None:
    node = voter()
    node.receive_heartbeat(2, state=MemberState.PRIMARY)
    answer = vote(node, replace(STANDING, **change))
    assert answer.granted is granted
    assert ("healthy primary" in answer.reason) is not granted


def test_a_primary_without_a_recent_heartbeat_does_not_count() -> None:
    """The candidate may have heard it one heartbeat earlier than this voter did."""
    node = voter()
    node.receive_heartbeat(2, state=MemberState.PRIMARY)
    late = NOW + node.election_timeout_ms() - Settings().heartbeat_interval_ms
    assert not asked(node, STANDING, late - 1).granted
    assert asked(node, STANDING, late).granted


def test_a_primary_refuses_it_too() -> None:
    node = leading_three()
    request = replace(STANDING, term=2, config_version=1, config_term=2, last_applied=at(2))
    assert "is a healthy primary" in vote(node, request).reason


def test_a_candidate_sends_the_reason_of_its_election() -> None:
    node = ready()
    node.tick(Millis(NOW + 12_000))
    assert node.open(1, VoteRequest).body.reason == "electionTimeout"


# --- arbiters --------------------------------------------------------------------------------------------------------


def arbiter(*, primary_priority: float = 1.0, state: MemberState = MemberState.PRIMARY) -> Node:
    """An arbiter (member 2) that heard from member 0 in `state`."""
    rows = members_of(3, arbiters=1)
    config = named(replace(rows[0], priority=primary_priority), *rows[1:], version=4, term=1)
    node = single_node(2, config=config, position=place(OpTime(0, 0)))
    node.receive_heartbeat(0, state=state, commit_point=at(1, 3))
    return node


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize(
    ("node", "granted"),
    [
        pytest.param(arbiter, False, id="equal-priority"),
        pytest.param(lambda: arbiter(primary_priority=2.0), False, id="higher-priority"),
        pytest.param(lambda: arbiter(primary_priority=0.5), True, id="lower-priority"),
        pytest.param(lambda: arbiter(state=MemberState.SECONDARY), True, id="no-primary"),
    ],
)
def test_an_arbiter_keeps_a_healthy_primary(node: object, granted: bool, dry_run: bool) -> None:
    """Map E5, last rule."""
    answer = vote(node(), replace(REQUEST, term=1 if dry_run else 2, dry_run=dry_run))
    assert answer.granted is granted
    assert ("healthy primary" in answer.reason) is not granted


def test_the_arbiters_rule_needs_the_same_configuration() -> None:
    assert vote(arbiter(), replace(REQUEST, term=2, config_version=5)).granted


def test_an_arbiter_refuses_a_candidate_that_lacks_what_is_committed() -> None:
    """Map K1: it echoes the commit point as its own place, so PAA and PSA keep what is committed."""
    node = arbiter(state=MemberState.SECONDARY)
    assert node.commit_point == at(1, 3)
    assert not vote(node, replace(REQUEST, term=2, last_applied=at(1, 2))).granted
    assert vote(node, replace(REQUEST, term=2, last_applied=at(1, 3))).granted


def test_a_stranger_of_the_set_does_not_raise_the_term() -> None:
    node = voter()
    vote(node, replace(REQUEST, term=9, set_name="other"))
    assert node.term == 1


@pytest.mark.parametrize("last_vote", [LastVote(1, MemberId(2)), LastVote(2, None)], ids=["in-this-term", "in-a-later"])
def test_no_second_vote_is_saved_if_the_refusal_fails(last_vote: LastVote, monkeypatch: pytest.MonkeyPatch) -> None:
    node = voter(last_vote=last_vote)
    monkeypatch.setattr(Elections, "vote_refusal", lambda *_: None)
    with pytest.raises(InvariantError, match="votes once"):
        vote(node, REQUEST)
    assert node._state.last_vote == last_vote
