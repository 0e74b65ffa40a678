"""Who is asked when, what an answer teaches, when a member counts as DOWN, who hears a higher term (map A3)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from replset.config import Settings
from replset.core.effects import CommitPointAdvanced, ConfigInstalled, LastVote, Persist, Send, StateChanged
from replset.core.member_state import MemberState
from replset.core.messages import (
    FetchProgress,
    HeartbeatReply,
    HeartbeatRequest,
    LocalPosition,
    MemberProgress,
    Position,
    ProgressReply,
    ProgressRequest,
    Request,
    Response,
    SourceBatch,
    StepUpRequest,
    VoteReply,
    VoteRequest,
)
from replset.core.state import NO_POSITION
from replset.core.status import MemberStatus
from replset.features.administration.remarks import find_remarks
from replset.ids import OPTIME_NULL, MemberId, Millis
from tests.simulation.core_kit.cluster import CoreCluster, running
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
    single_node,
)

CONFIG = named(*members_of(3))


def beats(node: SingleNode, since: int, state: MemberState = MemberState.SECONDARY) -> list[int]:
    """When member 1 is asked within 12 s when it answers every heartbeat at once, in `state`, as the others do."""
    found = []
    now = since
    while now < since + 12_000:
        for send in only(node.tick(Millis(now)), Send):
            if isinstance(send.body, HeartbeatRequest):
                if send.to == host(1):
                    found.append(now)
                number = int(send.to[1])
                node.receive_heartbeat(number, now=now, state=state if number == 1 else MemberState.SECONDARY)
        now += 50
    return found


@pytest.mark.parametrize(
    ("settings", "number", "arbiters", "expected"),
    [
        pytest.param(Settings(), 0, 0, 500, id="no-source-a-quarter"),
        pytest.param(Settings(election_timeout_ms=Millis(800)), 0, 0, 400, id="no-source-half-a-timeout"),
        pytest.param(Settings(), 2, 1, 2_000, id="arbiter"),
        pytest.param(Settings(election_timeout_ms=Millis(1_000)), 2, 1, 500, id="arbiter-half-a-timeout"),
    ],
)
def test_the_interval(settings: Settings, number: int, arbiters: int, expected: int) -> None:
    """Map H1."""
    config = named(*members_of(3, arbiters=arbiters), settings=settings)
    rows = [replace(member, priority=0.0) if member.id != 1 else member for member in config.members]
    node = single_node(number, config=replace(config, members=tuple(rows)))
    node.receive_heartbeat(0 if number else 2)
    node.receive_heartbeat(1)
    times = beats(node, NOW + 10_000)
    assert {later - earlier for earlier, later in pairwise(times[1:])} == {expected}


def test_the_interval_with_a_source_is_the_whole_one() -> None:
    """Map H1: shorter only for a non-primary without a sync source."""
    node = single_node(config=CONFIG)
    node.receive_heartbeat(1, state=MemberState.PRIMARY)
    node.receive_heartbeat(2)
    assert node.sync_source == host(1)
    times = beats(node, NOW + 500, state=MemberState.PRIMARY)
    assert {later - earlier for earlier, later in pairwise(times)} == {2_000}


def test_two_retries_at_once_then_down() -> None:
    """Map H1, H4."""
    node = single_node(config=CONFIG)
    node.receive_heartbeat(1, state=MemberState.PRIMARY)
    node.tick(Millis(NOW + 2_000))
    for attempt in range(3):
        effects = node.answer(1, HeartbeatRequest, None, NOW + 2_000 + attempt, "refused")
        again = [send for send in only(effects, Send) if send.to == host(1) and isinstance(send.body, HeartbeatRequest)]
        assert len(again) == (1 if attempt < 2 else 0)
        assert (node.peer_at(host(1)).state is MemberState.DOWN) is (attempt == 2)
    assert node.primary is None
    assert node.peer_at(host(1)).message == "refused"


def test_a_retry_has_what_is_left_of_the_timeout() -> None:
    """Map H4. Once it has passed there is none."""
    node = single_node(config=CONFIG)
    for failed_at, left_ms in ((2_000, [8_000]), (7_500, [2_500]), (10_000, [])):
        effects = node.answer(1, HeartbeatRequest, None, NOW + failed_at, "timed out")
        assert [send.timeout_ms for send in beats_to(effects, 1)] == left_ms
    assert node.peer_at(host(1)).state is MemberState.DOWN


# --- after a cut ------------------------------------------------------------------------------------------------

TIMED_OUT = "did not answer within 10000 ms"


def beats_to(effects: list[Any], number: int) -> list[Send]:
    return [s for s in only(effects, Send) if s.to == host(number) and isinstance(s.body, HeartbeatRequest)]


def run_with_member_2(node: SingleNode, since: int, until: int) -> None:
    """Let time pass, in which member 2 answers every heartbeat and member 1 none."""
    for now in range(since, until, 500):
        if beats_to(node.tick(Millis(now)), 2):
            node.receive_heartbeat(2, now=now, config_term=2, position=place(at(2)))


def leader_that_counts_member_1_as_down() -> SingleNode:
    """Member 0 leads term 2. Its heartbeat to member 1 has timed out, and the next one waits for its answer."""
    node = leading_three()
    run_with_member_2(node, NOW, NOW + 12_000)
    node.answer(1, HeartbeatRequest, None, NOW + 12_000, TIMED_OUT)
    run_with_member_2(node, NOW + 12_000, NOW + 17_000)
    assert node.state is MemberState.PRIMARY
    assert node.peer_at(host(1)).state is MemberState.DOWN
    return node


OWN_PLACE = MemberProgress(MemberId(1), "i1", place(at(2)))
MESSAGES = [
    pytest.param(Request(9, replace(FROM_1, term=2)), id="heartbeat"),
    pytest.param(Request(9, ProgressRequest(MemberId(1), 2, 1, 2, (OWN_PLACE,))), id="position"),
    pytest.param(FetchProgress(ProgressRequest(MemberId(1), 2, 1, 2, (OWN_PLACE,))), id="fetch"),
    pytest.param(Request(9, VoteRequest("rs0", 2, MemberId(1), "i1", 1, 2, at(2), True)), id="vote"),
]


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_of_a_member_that_counts_as_down_has_it_asked_at_once(message: Any) -> None:
    """The heartbeat under way waits on a connection that the cut has broken, up to its timeout of 10 s."""
    node = leader_that_counts_member_1_as_down()
    in_the_cut = node.open(1, HeartbeatRequest)
    effects = node.receive(message, Millis(NOW + 17_000))
    (asked_again,) = beats_to([*effects, *node.tick(Millis(NOW + 17_000))], 1)
    for later in range(17_100, 19_000, 100):
        node.receive(message, Millis(NOW + later))
        assert not beats_to(node.tick(Millis(NOW + later)), 1), "one heartbeat for many messages"
    node.receive_heartbeat(1, now=NOW + 19_000, config_term=2, position=place(at(2)))
    assert node.peer_at(host(1)).state is MemberState.SECONDARY
    assert MemberId(1) in node._state.in_sync
    late = Response(in_the_cut.request_id, host(1), None, TIMED_OUT, Millis(10_000))
    node.receive(late, Millis(NOW + 24_000))
    assert node.peer_at(host(1)).state is MemberState.SECONDARY
    assert asked_again.request_id != in_the_cut.request_id


def test_a_heartbeat_of_the_time_of_a_cut_takes_nobody_out_who_is_heard_again() -> None:
    node = leading_three()
    began = NOW + 2_000
    run_with_member_2(node, NOW, began + 9_000)
    fetch = FetchProgress(ProgressRequest(MemberId(1), 2, 1, 2, (OWN_PLACE,)))
    node.receive(fetch, Millis(began + 9_000))
    effects = node.answer(1, HeartbeatRequest, None, began + 10_000, TIMED_OUT)
    (again,) = beats_to(effects, 1)
    assert again.timeout_ms == 10_000
    node.receive_heartbeat(1, now=began + 10_100, config_term=2, position=place(at(2)))
    peer = node.peer_at(host(1))
    assert (peer.state, peer.state_since) == (MemberState.SECONDARY, NOW), "it was never DOWN"
    assert node._state.in_sync == {MemberId(0), MemberId(1), MemberId(2)}


def test_a_member_that_is_heard_and_never_answers_is_down_and_is_not_said_to_have_ended() -> None:
    node = leading_three()
    began = NOW + 2_000
    fetch = FetchProgress(ProgressRequest(MemberId(1), 2, 1, 2, (OWN_PLACE,)))
    for attempt in range(1, 4):
        run_with_member_2(node, NOW if attempt == 1 else began + 10_000 * attempt - 10_000, began + 10_000 * attempt)
        node.receive(fetch, Millis(began + 10_000 * attempt - 1))
        node.answer(1, HeartbeatRequest, None, began + 10_000 * attempt, TIMED_OUT)
        assert (node.peer_at(host(1)).state is MemberState.DOWN) is (attempt == 3)
    node.receive(fetch, Millis(began + 30_100))
    (remark,) = [one for one in find_remarks(node.known, Millis(began + 30_100)) if str(host(1)) in one.why]
    assert "runs and sends messages, and does not answer" in remark.why
    assert "start it again" not in remark.next_step


def test_ping_is_a_sliding_average() -> None:
    """Map H4: (4 * old + new) / 5."""
    node = single_node(config=CONFIG)
    node.receive_heartbeat(1)
    assert node.peer_at(host(1)).ping_ms == 2
    assert only(node.tick(Millis(NOW + 600)), Send)
    question = node.open(1, HeartbeatRequest)
    reply = asked(node, replace(FROM_1), NOW + 600)
    assert isinstance(reply, HeartbeatReply)
    node.receive(
        Response(question.request_id, host(1), replace(reply, incarnation="i1", member_id=MemberId(1)), "", Millis(52)),
        Millis(NOW + 652),
    )
    assert node.peer_at(host(1)).ping_ms == 12


def test_another_set_is_refused() -> None:
    """Map H3: 108."""
    assert asked(single_node(config=CONFIG), replace(FROM_1, set_name="other")).code == 108


def test_the_answer_brings_a_newer_config_only() -> None:
    """Map H3."""
    node = single_node(config=replace(CONFIG, version=5))
    older = asked(node, replace(FROM_1, config_version=4))
    same = asked(node, replace(FROM_1, config_version=5))
    assert older.config == node.config
    assert same.config is None


def test_a_newer_config_is_installed_durably() -> None:
    """Map H6."""
    node = single_node(config=CONFIG)
    newer = replace(CONFIG, version=2)
    effects = node.receive_heartbeat(1, config=newer, config_version=2)
    kinds = [type(effect) for effect in effects]
    assert kinds.index(Persist) < kinds.index(ConfigInstalled)
    assert node.config == newer
    older = replace(CONFIG, version=1)
    node.receive_heartbeat(2, config=older, config_version=1)
    assert node.config == newer


def test_a_member_that_learns_of_a_newer_config_asks_for_it() -> None:
    node = single_node(config=CONFIG)
    node.receive_heartbeat(1)
    effects = node.receive(Request(9, replace(FROM_1, config_version=2)), Millis(NOW + 1))
    assert host(1) in [send.to for send in only(effects, Send) if isinstance(send.body, HeartbeatRequest)]


def test_a_member_without_config_asks_a_member_that_has_one() -> None:
    node = single_node(3, config=None)
    assert [send.to for send in only(node.receive(Request(9, FROM_1), NOW), Send)] == [host(1)]
    not_mine = named(*members_of(3), version=1)
    node.receive_heartbeat(1, config=not_mine, config_version=1, config_term=1)
    assert node.config is None
    node.receive(Request(10, replace(FROM_1, config_version=2)), NOW)
    node.receive_heartbeat(1, config=named(*members_of(4), version=2), config_version=2, config_term=1)
    assert node.config is not None


def test_a_new_primary_takes_no_config_during_step_up() -> None:
    """Map H6: not while it catches up or drains."""
    cluster_config = named(*members_of(3))
    node = single_node(config=cluster_config)
    node.receive_heartbeat(1)
    node.receive_heartbeat(2)
    start_election(node)
    assert (node.state, node.writable) == (MemberState.PRIMARY, False)
    node.receive_heartbeat(1, config=replace(cluster_config, version=9), config_version=9)
    assert node.config == cluster_config


def test_who_was_primary_in_an_earlier_term_is_not_taken_for_the_primary() -> None:
    node = single_node(config=CONFIG)
    nothing = Position(OPTIME_NULL, OPTIME_NULL, 0, 0)
    node.receive_heartbeat(1, term=node.term - 1, state=MemberState.PRIMARY, position=nothing)
    peer = node.peer_at(host(1))
    assert peer is not None
    assert (peer.state, node.primary) == (MemberState.PRIMARY, None)
    node.tick(Millis(NOW + 2_000))
    node.receive_heartbeat(1, state=MemberState.PRIMARY)
    assert node.primary == MemberId(1)


@pytest.mark.parametrize("beyond", [1, 0])
def test_an_answer_that_names_a_later_term_than_its_own_changes_nothing(beyond: int) -> None:
    node = single_node(config=CONFIG)
    node.receive(LocalPosition(place(at(node.term, 5))), NOW)
    node.receive_heartbeat(1, commit_point=at(node.term, 3), commit_term=node.term + beyond)
    assert node.commit_term == (0 if beyond else node.term)
    peer = node.peer_at(host(1))
    assert peer is not None
    assert peer.position == (Position(OPTIME_NULL, OPTIME_NULL, 0, 0) if beyond else place(at(1)))


def start_election(node: SingleNode) -> None:
    node.receive(Request(3, StepUpRequest(skip_dry_run=True)), NOW)
    node.answer(1, VoteRequest, VoteReply(node.term, True, "", MemberId(1), "i1"))


# --- a higher term ---------------------------------------------------------------------------------------------------


def reported_by(kind: str, node: SingleNode) -> list[Any]:
    """Member 1 tells term 9 in one of the ways there are."""
    match kind:
        case "heartbeat":
            return node.receive(Request(9, replace(FROM_1, term=9)), NOW)
        case "heartbeat answer":
            return node.receive_heartbeat(1, term=9, position=place(at(9)))
        case "progress":
            row = MemberProgress(MemberId(1), "i1", place(at(2)))
            return node.receive(Request(9, ProgressRequest(MemberId(1), 9, 1, 2, (row,))), NOW)
        case "progress answer":
            return node.receive(Response(0, host(1), ProgressReply(9, False), "", Millis(1)), NOW)
        case "batch":
            return node.receive(SourceBatch(host(1), 9, at(2), False), NOW)
    raise AssertionError(kind)


@pytest.mark.parametrize("kind", ["heartbeat", "heartbeat answer", "progress", "progress answer", "batch"])
def test_every_report_carries_the_term_and_a_higher_one_is_taken_first(kind: str) -> None:
    """Whoever sees a higher term takes it first; a primary then steps down and counts nothing."""
    node = lead(single_node(config=CONFIG))
    node.receive(LocalPosition(place(at(2))), NOW)
    assert node.commit_point == OPTIME_NULL
    effects = reported_by(kind, node)
    assert node.term == 9
    assert node.state is MemberState.SECONDARY
    assert not node.writable
    assert not only(effects, CommitPointAdvanced)
    assert node.commit_point == OPTIME_NULL


def test_progress_of_an_older_term_does_not_count() -> None:
    node = lead(single_node(config=CONFIG))
    node.receive(LocalPosition(place(at(2))), NOW)
    row = MemberProgress(MemberId(1), "i1", place(at(2)))
    assert asked(node, ProgressRequest(MemberId(1), 1, 1, 1, (row,))) == ProgressReply(2, accepted=False)
    assert node.commit_point == OPTIME_NULL
    assert asked(node, ProgressRequest(MemberId(1), 2, 1, 2, (row,))) == ProgressReply(2, True, at(2), 2)
    assert node.commit_point == at(2)


def test_a_position_that_a_newer_one_has_overtaken_does_not_count() -> None:
    """A fetch and a report come on two connections. A write that waits for this member would wait for a heartbeat."""
    node = lead(single_node(config=CONFIG))
    node.receive(LocalPosition(place(at(2, 9))), NOW)

    def tell(*places: Position, incarnation: str = "i1") -> Position:
        for position in places:
            row = MemberProgress(MemberId(1), incarnation, position)
            node.receive(FetchProgress(ProgressRequest(MemberId(1), 2, 1, 2, (row,))), NOW)
        peer = node.peer_at(host(1))
        return peer.position

    assert tell(place(at(1, 7)), place(at(1, 5))) == place(at(1, 5)), "rolled back"
    assert tell(place(at(2, 8)), place(at(2, 7))) == place(at(2, 8))
    assert tell(place(at(2, 9), at(2, 8)), place(at(2, 8))) == place(at(2, 8)), "a crash took what was not synced"
    assert tell(place(at(2, 7)), incarnation="other") == place(at(2, 7)), "another disk"


def test_the_term_after_a_restart() -> None:
    """After a restart the term is the highest of last vote, newest entry and configuration."""
    assert single_node(config=CONFIG, position=place(at(7))).term == 7
    assert single_node(config=CONFIG, last_vote=LastVote(8, None)).term == 8
    assert single_node(config=replace(CONFIG, term=9)).term == 9


def test_the_newest_time_that_anybody_said_to_have_is_remembered() -> None:
    """Also of entries that are undone since: a session that read them may name their time."""
    node = leading_three()
    for later, number in ((2_000, 9), (4_000, 2)):
        node.tick(Millis(NOW + later))
        node.receive_heartbeat(1, now=NOW + later, config_term=2, position=place(at(1, number)))
        assert node.newest_ts == at(1, 9).ts
    for number in (20, 4):
        node.receive(LocalPosition(place(at(2, number), at(2, 3))), Millis(NOW + 4_000))
        assert node.newest_ts == at(2, 20).ts


# --- commit point on others ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mine", "told", "expected"),
    [
        pytest.param(at(2, 5), at(2, 4), at(2, 4), id="same-term"),
        pytest.param(at(2, 5), at(2, 9), at(2, 5), id="never-beyond-mine"),
        pytest.param(at(2, 5), at(1, 9), OPTIME_NULL, id="older-term"),
        pytest.param(at(2, 5), at(3, 1), OPTIME_NULL, id="newer-term"),
    ],
)
def test_a_commit_point_by_heartbeat(mine: Any, told: Any, expected: Any) -> None:
    """A commit point from a heartbeat is accepted only in the term of the member's own last_applied (map K2)."""
    node = single_node(config=CONFIG, position=place(mine))
    node.receive_heartbeat(1, commit_point=told, term=max(node.term, told.term))
    assert node.commit_point == expected


@pytest.mark.parametrize(("told", "expected"), [(at(3, 9), at(2, 5)), (at(1, 9), at(1, 9)), (at(2, 3), at(2, 3))])
def test_a_commit_point_from_the_sync_source(told: Any, expected: Any) -> None:
    """A commit point from the sync source is cut to what the member has, and needs a batch that matched its log."""
    node = single_node(config=CONFIG, position=place(at(2, 5)))
    node.receive_heartbeat(1, state=MemberState.PRIMARY)
    node.receive(SourceBatch(host(2), node.term, told, True), NOW)
    assert node.commit_point == OPTIME_NULL
    node.receive(SourceBatch(host(1), node.term, told, True), NOW)
    assert node.commit_point == expected


def test_an_arbiter_takes_every_commit_point_and_passes_on_its_own() -> None:
    """Map K2: a member passes on only its own commit point."""
    node = single_node(2, config=named(*members_of(3, arbiters=1)), position=place(OPTIME_NULL))
    node.receive_heartbeat(0, commit_point=at(7, 7), term=9)
    assert node.commit_point == at(7, 7)
    assert asked(node, FROM_1).commit_point == at(7, 7)


def test_the_commit_point_never_moves_back() -> None:
    """A running member's commit point never moves back."""
    node = single_node(config=CONFIG, position=place(at(1, 9)))
    node.receive_heartbeat(1, commit_point=at(1, 8))
    node.receive_heartbeat(2, commit_point=at(1, 3))
    assert node.commit_point == at(1, 8)
    node.receive(LocalPosition(place(at(1, 2))), NOW)
    assert node.commit_point == at(1, 8)


# --- liveness --------------------------------------------------------------------------------------------------------


def test_a_primary_that_reaches_no_majority_steps_down() -> None:
    """Map H5: a primary without a majority steps down."""
    node = leading_three()
    node.tick(Millis(NOW + 9_999))
    assert node.state is MemberState.PRIMARY
    effects = node.tick(Millis(NOW + 10_000))
    assert node.state is MemberState.SECONDARY
    kinds = [type(effect).__name__ for effect in effects]
    assert kinds.index("AcceptWrites") < kinds.index("StateChanged")
    assert only(effects, StateChanged)[-1].state is MemberState.SECONDARY


@pytest.mark.parametrize("by", ["heartbeat", "progress", "answer in initial sync"])
def test_any_message_keeps_a_member_up(by: str) -> None:
    """Map H5: any heartbeat in or out and any mention in a progress report."""
    node = leading_three()
    row = MemberProgress(MemberId(1), "i1", place(at(2)))
    for step in range(1, 30):
        now = Millis(NOW + step * 1_000)
        if by == "heartbeat":
            node.receive(Request(9, replace(FROM_1, term=2, config_term=2)), now)
        elif by == "progress":
            node.receive(Request(9, ProgressRequest(MemberId(1), 2, 1, 2, (row,))), now)
        node.tick(now)
        if by == "answer in initial sync" and step % 2 == 0:
            node.receive_heartbeat(1, state=MemberState.STARTUP2, position=place(OPTIME_NULL), now=now)
    assert node.state is MemberState.PRIMARY


def test_a_member_that_is_not_named_does_not_keep_a_primary() -> None:
    """A member is counted only while the configuration names its incarnation (docs/adr/0007)."""
    node = leading_three()
    for step in range(1, 12):
        now = Millis(NOW + step * 1_000)
        node.receive(Request(9, replace(FROM_1, term=2, config_term=2, incarnation="another")), now)
        node.tick(now)
    assert node.state is MemberState.SECONDARY


def test_a_member_that_does_not_have_the_configuration_is_not_shown_as_counted() -> None:
    """Who acts on "all are counted" must find the vote there too when the primary is gone a moment later."""
    cluster = running(3)
    leader = cluster.elect()
    other = next(machine for machine in cluster.machines.values() if machine is not leader)
    peer = leader.node.peer_at(other.host)
    assert peer is not None
    peer.config_version -= 1
    assert {member.host: member.counted for member in leader.node.status(cluster.now).members}[other.host] is False


def test_a_member_without_a_vote_counts_again_after_its_disk_was_replaced() -> None:
    """No configuration names its new incarnation: it has no vote to get back."""
    cluster = CoreCluster(4)
    rows = members_of(4)
    cluster.initiate(*rows[:3], replace(rows[3], votes=0, priority=0.0))
    cluster.until(cluster.is_quiet)
    leader, other = cluster.elect(), cluster[3]
    leader.write("a")
    other.wipe()
    cluster.run(3_000)

    def counted() -> list[bool]:
        views = [machine.node.status(cluster.now) for machine in (leader, other)]
        return [row.counted for view in views if view is not None for row in view.members if row.id == 3]

    other.boot()
    assert not any(counted())
    cluster.until(lambda: counted() == [True, True])
    assert other.disk.log == leader.disk.log


def test_the_status_names_all_members_and_which_one_blocks() -> None:
    cluster = running(3)
    leader = cluster.elect()
    status = leader.node.status(cluster.now)
    assert [member.state.name for member in status.members].count("PRIMARY") == 1
    assert [member.counted for member in status.members] == [True] * 3
    assert (status.majority_vote_count, status.write_majority, status.voters) == (2, 2, 3)
    assert status.blocking == ""
    for machine in cluster.machines.values():
        if machine is not leader:
            machine.crash()
    leader.write("blocked")
    cluster.run(300)
    blocked = leader.node.status(cluster.now)
    assert all(machine.host in blocked.blocking for machine in cluster.machines.values() if machine is not leader)
    assert blocked.blocking.count("(not reachable for 0 s)") == 2


def test_without_a_config_there_is_no_status() -> None:
    node = single_node(config=None)
    assert node.status(NOW) is None
    assert isinstance(asked(node, replace(FROM_1, config_version=-2)), HeartbeatReply)
    assert node.state is MemberState.STARTUP


def test_nothing_is_said_of_a_member_that_was_never_heard() -> None:
    node = single_node(config=CONFIG)
    row = node.status(NOW).members[1]
    assert row == MemberStatus(
        **{"id": MemberId(1), "host": host(1), "is_self": False, "state": MemberState.UNKNOWN, "healthy": False},
        **{"counted": False, "newly_added": False, "position": NO_POSITION, "uptime_ms": 0},
        **{"sync_source": None, "sync_source_id": -1, "election_wall_ms": None, "config_version": -2},
        **{"config_term": -1, "last_heartbeat_wall_ms": 0, "last_heartbeat_recv_wall_ms": 0, "ping_ms": 0},
        message="",
    )
    node.receive_heartbeat(1, sync_source=host(9))
    assert node.status(NOW).members[1].sync_source_id == -1, "that one is no member"
