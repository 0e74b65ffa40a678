"""What a member believes of another one: no term, place or configuration by which one message could end a set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from replset.bson import ObjectId
from replset.config import MAX_VERSION
from replset.core.effects import CommitPointAdvanced, Reply, Send, StartFetching, StartRollback
from replset.core.member_state import MemberState
from replset.core.messages import (
    MAX_TERM,
    MAX_TERM_JUMP,
    HeartbeatReply,
    HeartbeatRequest,
    LocalPosition,
    MemberProgress,
    ProgressReply,
    ProgressRequest,
    Refused,
    Request,
    Response,
    SourceBatch,
    SourceFailed,
    SourceProblem,
    StepUpRequest,
    VoteReply,
    VoteRequest,
)
from replset.ids import OPTIME_NULL, HostPort, MemberId, Millis
from tests.simulation.core_kit.machine import host, members_of
from tests.unit.core.single_node import (
    FROM_1,
    NOW,
    SingleNode,
    asked,
    at,
    lead,
    leading_three,
    named,
    only,
    place,
    ready,
    single_node,
)

MINE, THEIRS = ObjectId(b"a" * 12), ObjectId(b"b" * 12)
CONFIG = named(*members_of(3))
WITH_ID = replace(CONFIG, settings=replace(CONFIG.settings, replica_set_id=MINE))


def leading() -> SingleNode:
    """Member 0 leads term 2 of the set MINE; its newest entry is not committed yet."""
    node = lead(single_node(config=WITH_ID))
    node.receive(LocalPosition(place(at(2))), NOW)
    return node


def by_heartbeat(node: SingleNode, term: int, **changes: Any) -> list[Any]:
    return node.receive(Request(9, replace(FROM_1, term=term, **changes)), NOW)


def by_heartbeat_reply(node: SingleNode, term: int, **changes: Any) -> list[Any]:
    return node.receive_heartbeat(1, term=term, **changes)


def by_config(node: SingleNode, term: int) -> list[Any]:
    config = replace(WITH_ID, version=9, term=term)
    return node.receive_heartbeat(1, config=config, config_version=9, config_term=term, term=term)


def by_position(node: SingleNode, term: int) -> list[Any]:
    return node.receive_heartbeat(1, position=place(at(term)))


def by_vote_request(node: SingleNode, term: int, **changes: Any) -> list[Any]:
    request = VoteRequest("rs0", term, MemberId(1), "i1", 9, 9, at(9), dry_run=False)
    return node.receive(Request(9, replace(request, **changes)), NOW)


def by_dry_run(node: SingleNode, term: int) -> list[Any]:
    return by_vote_request(node, term, dry_run=True)


def by_progress(node: SingleNode, term: int, **changes: Any) -> list[Any]:
    row = MemberProgress(MemberId(1), "i1", place(at(2)))
    return node.receive(Request(9, ProgressRequest(MemberId(1), term, 1, 2, (row,))._replace(**changes)), NOW)


def by_progress_reply(node: SingleNode, term: int) -> list[Any]:
    return node.receive(Response(0, host(1), ProgressReply(term, False), "", Millis(1)), NOW)


def by_batch(node: SingleNode, term: int) -> list[Any]:
    return node.receive(SourceBatch(host(1), term, at(2), False), NOW)


def by_failure(node: SingleNode, term: int) -> list[Any]:
    return node.receive(SourceFailed(host(1), SourceProblem.DIVERGED, "", term, at(term), at(1)), NOW)


WAYS = (
    *(by_heartbeat, by_heartbeat_reply, by_config, by_position, by_vote_request, by_dry_run, by_progress),
    *(by_progress_reply, by_batch, by_failure),
)
ABSURD = [(1 << 63) - 1, (1 << 63) - 2, MAX_TERM, 2 + MAX_TERM_JUMP + 1]


@pytest.mark.parametrize("term", ABSURD)
@pytest.mark.parametrize("tell", WAYS)
def test_a_term_that_cannot_be_true_changes_nothing(tell: Callable[[SingleNode, int], list[Any]], term: int) -> None:
    node = leading()
    tell(node, term)
    assert (node.term, node.state, node.writable) == (2, MemberState.PRIMARY, True)
    assert node.config.version == 1


@pytest.mark.parametrize("tell", [way for way in WAYS if way is not by_position])
def test_the_largest_term_jump_that_is_accepted(tell: Callable[[SingleNode, int], list[Any]]) -> None:
    node = leading()
    tell(node, 2 + MAX_TERM_JUMP)
    assert node.term == 2 + MAX_TERM_JUMP
    assert node.state is MemberState.SECONDARY


@pytest.mark.parametrize("term", ABSURD)
def test_a_vote_reply_with_such_a_term_is_no_vote(term: int) -> None:
    node = ready()
    node.receive(Request(3, StepUpRequest(skip_dry_run=True)), NOW)
    node.answer(1, VoteRequest, VoteReply(term, True, "", MemberId(1), "i1"))
    assert (node.term, node.state) == (2, MemberState.SECONDARY)
    node.answer(2, VoteRequest, VoteReply(2, True, "", MemberId(2), "i2"))
    assert node.state is MemberState.PRIMARY


def test_the_refusal_names_the_reason_and_what_to_do() -> None:
    node = leading()
    (reply,) = only(by_heartbeat(node, MAX_TERM), Reply)
    assert "replset repair" in reply.body.reason
    node.receive_heartbeat(1, term=MAX_TERM)
    peer = node.peer_at(host(1))
    assert peer.state is MemberState.DOWN
    assert str(MAX_TERM) in peer.message


def test_a_member_in_no_term_yet_takes_that_of_its_set() -> None:
    """A new member of an old set; and one that is added by a forced configuration, which has no term."""
    node = single_node(3, config=None, position=place(at(0)))
    node.receive(Request(9, replace(FROM_1, term=MAX_TERM_JUMP * 9, config_term=-1)), NOW)
    forced = named(*members_of(4), version=20_000, term=-1)
    node.receive_heartbeat(1, config=forced, config_version=20_000, config_term=-1, term=MAX_TERM_JUMP * 9)
    assert node.term == 0
    node.tick(NOW)
    node.receive_heartbeat(1, term=MAX_TERM_JUMP * 9)
    assert node.term == MAX_TERM_JUMP * 9


@pytest.mark.parametrize(("version", "taken"), [(MAX_VERSION, 1), (20_000, 20_000)])
def test_a_version_that_cannot_be_true_is_not_taken(version: int, taken: int) -> None:
    """A version never falls either. After the highest one no change could follow."""
    node = leading()
    config = replace(WITH_ID, version=version, term=2)
    node.receive_heartbeat(1, config=config, config_version=version, config_term=2)
    assert node.config.version == taken


@pytest.mark.parametrize("term", [MAX_TERM, (1 << 63) - 1])
def test_a_member_at_the_last_term_starts_no_election(term: int) -> None:
    node = ready(position=place(at(term)))
    for number in (1, 2):
        node.receive_heartbeat(number)
    assert "replset repair" in asked(node, StepUpRequest(skip_dry_run=True)).reason
    assert node.term == term


# --- places ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [at(2, 9), at(2, 2)])
def test_a_position_beyond_the_primary_s_oplog_does_not_count(ahead: Any) -> None:
    """A place beyond mine in my term is not counted, by progress or by heartbeat; a true one is."""
    node = leading()
    row = MemberProgress(MemberId(1), "i1", place(ahead))
    effects = node.receive(Request(9, ProgressRequest(MemberId(1), 2, 1, 2, (row,))), NOW)
    node.tick(Millis(NOW + 2_000))
    effects += node.receive_heartbeat(2, NOW + 2_000, position=place(ahead))
    assert not only(effects, CommitPointAdvanced)
    assert [row["appliedOpTime"] for row in node.member_progress()][1:] == [at(1), at(1)]
    by_progress(node, 2)
    assert node.commit_point == at(2)


def test_a_position_beyond_the_term_of_its_message_is_not_taken() -> None:
    node = ready()
    row = MemberProgress(MemberId(2), "i2", place(at(7)))
    node.receive(Request(9, ProgressRequest(MemberId(1), 1, 1, 1, (row,))), NOW)
    assert [row["appliedOpTime"] for row in node.member_progress()] == [at(1)] * 3
    assert not only(node.tick(Millis(NOW + 1)), StartFetching)


def test_a_position_of_an_older_term_is_caught_up_with() -> None:
    """What a new primary lacks is of an older term than its own: that is a true place."""
    node = ready()
    node.receive(Request(3, StepUpRequest(skip_dry_run=True)), NOW)
    node.answer(1, VoteRequest, VoteReply(2, True, "", MemberId(1), "i1"))
    node.receive_heartbeat(1, position=place(at(1, 5)))
    assert only(node.receive_heartbeat(2), StartFetching) == [StartFetching(host(1))]


# --- strangers -------------------------------------------------------------------------------------------------------

STRANGER = HostPort("stranger:27017")


def test_a_stranger_is_not_asked_for_its_configuration() -> None:
    """Nor is its progress counted, nor its term."""
    node = leading()
    effects = by_heartbeat(node, 2, sender=STRANGER, sender_id=None, config_version=99)
    assert not [send for send in only(effects, Send) if send.to == STRANGER]
    effects = by_progress(node, 2, sender_id=MemberId(9))
    assert only(effects, Reply)[0].body == ProgressReply(2, accepted=False)
    assert not only(effects, CommitPointAdvanced)
    by_heartbeat(node, 9, sender=STRANGER, sender_id=None)
    by_progress(node, 9, sender_id=MemberId(9))
    by_vote_request(node, 9, candidate=MemberId(9))
    by_vote_request(node, 9, candidate_incarnation="another")
    node.receive(Response(0, STRANGER, ProgressReply(9, False), "", Millis(1)), NOW)
    node.receive(SourceBatch(STRANGER, 9, at(2), True), NOW)
    node.receive(SourceFailed(STRANGER, SourceProblem.DIVERGED, "", 9, at(9), at(1)), NOW)
    assert (node.term, node.state) == (2, MemberState.PRIMARY)


@pytest.mark.parametrize(("set_id", "is_asked"), [(MINE, True), (THEIRS, False)])
def test_a_removed_member_is_asked_for_a_newer_configuration_alone(set_id: ObjectId, is_asked: bool) -> None:
    """The removal may never have been committed. Its term still counts only with the configuration that it answers."""
    node = lead(single_node(config=replace(WITH_ID, former_hosts=(STRANGER,))))
    effects = by_heartbeat(node, 2, sender=STRANGER, sender_id=None, set_id=MINE)
    effects += by_heartbeat(node, 9, sender=STRANGER, sender_id=None, set_id=MINE)
    assert not [send for send in only(effects, Send) if send.to == STRANGER]
    effects = by_heartbeat(node, 9, sender=STRANGER, sender_id=None, set_id=set_id, config_version=1, config_term=9)
    assert bool([send for send in only(effects, Send) if send.to == STRANGER]) is is_asked
    assert (node.term, node.state) == (2, MemberState.PRIMARY)


# --- another set of the same name ------------------------------------------------------------------------------------


def test_every_request_names_its_set() -> None:
    node = leading()
    heartbeat = node.open(1, HeartbeatRequest).body
    vote = node.open(1, VoteRequest).body
    progress = node.progress_request()
    assert [heartbeat.set_id, vote.set_id, progress.set_id] == [MINE] * 3


@pytest.mark.parametrize("tell", [by_heartbeat, by_vote_request, by_progress])
def test_another_set_of_the_same_name_deposes_nobody(tell: Callable[..., list[Any]]) -> None:
    node = leading()
    effects = tell(node, 9, set_id=THEIRS)
    assert (node.term, node.state, node.commit_point) == (2, MemberState.PRIMARY, OPTIME_NULL)
    (reply,) = only(effects, Reply)
    body = reply.body
    assert isinstance(body, Refused) or (isinstance(body, VoteReply) and not body.granted and body.term == 2)
    tell(node, 9, set_id=MINE)
    assert node.term == 9


def test_an_answer_from_another_set_counts_as_no_answer() -> None:
    node = leading()
    node.answer(1, HeartbeatRequest, Refused(108, "this member belongs to another set"))
    assert node.peer_at(host(1)).state is MemberState.DOWN


def test_a_request_without_a_set_id_is_taken() -> None:
    """A member of before, or one without a configuration."""
    node = leading()
    assert isinstance(only(by_heartbeat(node, 2), Reply)[0].body, HeartbeatReply)


# --- whom to roll back to --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("committed_in", "follows"), [(2, True), (3, True), (4, False)])
def test_a_source_from_a_term_before_the_commit_is_not_followed(committed_in: int, follows: bool) -> None:
    """An entry of an old term may be committed later, through a higher one. A source whose newest entry is of a term in
    between may lack it, however far ahead it is.
    """
    node = single_node(config=CONFIG, position=place(at(2, 5)))
    node.receive_heartbeat(1, state=MemberState.PRIMARY, term=4)
    node.receive(SourceBatch(host(1), 4, at(2, 5), True, committed_in), NOW)
    assert node.commit_point == at(2, 5)
    node.tick(Millis(NOW + 2_000))
    node.receive_heartbeat(2, NOW + 2_000, position=place(at(3, 9)))
    effects = node.receive_heartbeat(1, NOW + 2_000, state=MemberState.SECONDARY, position=place(at(2, 5)))
    assert (StartFetching(host(2)) in effects) is follows
    assert (node.sync_source == host(2)) is follows


def test_a_source_that_lacks_what_is_committed_is_left() -> None:
    node = single_node(config=CONFIG, position=place(at(2, 5)))
    node.receive_heartbeat(1, state=MemberState.PRIMARY, term=4)
    node.receive(SourceBatch(host(1), 4, at(4, 1), True), NOW)
    effects = node.receive(SourceFailed(host(1), SourceProblem.DIVERGED, "", 4, at(3, 9), at(1)), NOW)
    assert not only(effects, StartRollback)
    assert node.state is MemberState.SECONDARY
    assert node.sync_source is None


def test_the_term_of_a_commit_is_passed_on() -> None:
    node = leading_three()
    answer = asked(node, replace(FROM_1, term=2))
    assert (answer.commit_point, answer.commit_term) == (at(2), 2)
