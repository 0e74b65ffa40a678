"""Inputs that seldom come: each is answered, and changes only what it must."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from replset.config import MAX_VERSION, ReplSetConfig, Settings
from replset.config.feature_version import LATEST
from replset.core.ages import OptimeAges
from replset.core.effects import (
    AcceptWrites,
    Effect,
    RecordElectionEvent,
    Reply,
    Send,
    StartInitialSync,
    StartRollback,
    StateChanged,
)
from replset.core.member_state import MemberState
from replset.core.messages import (
    ConnectionLost,
    DamageFound,
    DiskStalled,
    Done,
    HeartbeatReply,
    HeartbeatRequest,
    ReconfigRequest,
    Refused,
    Request,
    Response,
    RoleReleased,
    RollbackEnded,
    SourceFailed,
    SourceProblem,
    StepDownRequest,
    StepUpRequest,
    VoteReply,
    VoteRequest,
)
from replset.core.quorum import IN_SYNC, WriteConcern
from replset.core.state import NEVER, Peer
from replset.core.waiting import describe_delay
from replset.features.follower.followed import FollowProgress
from replset.ids import OPTIME_NULL, MemberId, Millis
from replset.replication.initial_sync_progress import InitialSyncProgress
from replset.replication.rollback_progress import RollbackProgress
from tests.simulation.core_kit.machine import host, members_of
from tests.unit.core.single_node import (
    CONFIG,
    FROM_1,
    NOW,
    SingleNode,
    asked,
    at,
    leading_three,
    named,
    only,
    place,
    ready,
    single_node,
    vote_requests,
)

TIMEOUT = Settings().election_timeout_ms


def journal(effects: list[Effect]) -> list[tuple[str, str]]:
    return [(effect.record.event, effect.record.detail) for effect in only(effects, RecordElectionEvent)]


def changed(config: ReplSetConfig, **fields_of_last: object) -> ReplSetConfig:
    """The next version of `config`, as a user sends it, with other fields in its last member."""
    rows = [replace(member, incarnation=None) for member in config.members]
    rows[-1] = replace(rows[-1], **fields_of_last)  # type: ignore[arg-type]
    return replace(config, version=config.version + 1, members=tuple(rows))


# --- elections -------------------------------------------------------------------------------------------------------


def test_an_election_ends_when_the_disk_of_its_candidate_hangs() -> None:
    node = ready()
    node.receive(Request(9, StepUpRequest(skip_dry_run=False)), NOW)
    effects = node.receive(DiskStalled(True), NOW)
    assert ("dry run lost", "it is not electable any more") in journal(effects)
    (reply,) = only(effects, Reply)
    assert reply == Reply(9, Refused(125, "election failed: it is not electable any more"))


def heard_of(node: SingleNode, now: int, **of_primary: object) -> None:
    """Member 2 is primary, and both others answer."""
    node.tick(Millis(now))
    told = {"state": MemberState.PRIMARY, "primary_id": MemberId(2), **of_primary}
    for number, row in ((2, told), (1, {})):
        if node._state.peers[host(number)].heartbeat_id is not None:
            node.receive_heartbeat(number, now, **row)


def refuses_connects(node: SingleNode, now: int) -> None:
    """The connection to member 2 breaks; fresh connects are refused."""
    node.receive(ConnectionLost(host(2)), Millis(now))
    node.tick(Millis(now))
    for _ in range(3):
        send = node.open(2, HeartbeatRequest)
        node.receive(Response(send.request_id, host(2), None, "gone", Millis(1), True), Millis(now))


def refuse_votes(node: SingleNode, now: int) -> None:
    for number in (1, 2):
        node.answer(number, VoteRequest, VoteReply(node.term, False, "no", MemberId(number), f"i{number}"), now)


def test_an_early_election_waits_for_the_one_that_is_under_way() -> None:
    node = ready()
    heard_of(node, NOW + 2_000)
    refuses_connects(node, NOW + 2_500)
    due = node._elections.fast.due
    assert NOW + 2_520 <= due <= NOW + 2_560
    node.receive(Request(9, StepUpRequest(skip_dry_run=False)), Millis(NOW + 2_510))
    assert not vote_requests(node.tick(due))
    assert due + 150 <= node._elections.fast.due < due + 300
    refuse_votes(node, due)
    assert {one.reason for one in vote_requests(node.tick(node._elections.fast.due))} == {"fastFailover"}


def test_a_primary_that_was_heard_again_is_asked_for_early_once_more_after_a_pause() -> None:
    """Three tries for one that is gone. If it was heard since, and refuses again, they begin anew, not too soon."""

    def tries(since: int, until: int) -> int:
        count = 0
        for now in range(since, until, 5):
            if any(one.reason == "fastFailover" for one in vote_requests(node.tick(Millis(now)))):
                count += 1
                refuse_votes(node, now)
        return count

    node = ready()
    heard_of(node, NOW + 2_000)
    refuses_connects(node, NOW + 2_500)
    assert tries(NOW + 2_500, NOW + 4_000) == 3
    began, since = node._elections.fast._began, NOW + 4_000
    for after, expected in ((19_000, 0), (25_000, 1)):
        for now in range(since, began + after, 500):
            heard_of(node, now)
        since = began + after
        refuses_connects(node, since)
        assert tries(since, since + 100) == expected
        since += 200


def test_a_takeover_is_given_up_when_the_primary_is_none_any_more() -> None:
    rows = members_of(3)
    node = single_node(config=named(replace(rows[0], priority=5.0), *rows[1:]))
    heard_of(node, NOW)
    due = node._elections.takeovers.due
    assert NOW + TIMEOUT <= due <= NOW + 1.15 * TIMEOUT
    now = due - 1_000
    heard_of(node, now)
    node.tick(Millis(now + 500))
    node._state.peers[host(2)].restart_heartbeat(Millis(now + 500))
    node.tick(Millis(now + 500))
    node.receive_heartbeat(2, now + 500)
    assert node.primary is None
    assert not vote_requests(node.tick(due))


def test_who_steps_down_by_itself_is_not_frozen() -> None:
    node = leading_three()
    asked(node, replace(FROM_1, term=node.term + 1, config_term=2))
    assert node.state is MemberState.SECONDARY
    assert node._state.frozen_until == 0


def test_a_stepdown_that_waits_is_done_when_another_member_ends_the_term() -> None:
    node = leading_three()
    node._state.position = place(at(2, 3))
    assert not only(node.receive(Request(9, StepDownRequest(60_000, 10_000, False)), NOW), Reply)
    effects = node.receive(Request(10, replace(FROM_1, term=node.term + 1, config_term=2)), NOW)
    assert [reply.body for reply in only(effects, Reply) if reply.request_id == 9] == [Done("it stepped down already")]


# --- configurations --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("given", [{"newly_added": True}, {"spare_for": MemberId(1)}])
def test_what_is_the_servers_to_set_is_refused(given: dict[str, object], force: bool) -> None:
    node = leading_three()
    assert asked(node, ReconfigRequest(changed(node.config, **given), force, 0)).code == 93


def test_no_forced_configuration_passes_the_highest_version() -> None:
    node = ready(config=named(*members_of(3), version=MAX_VERSION - 9_999))
    before = node.config
    effects = node.receive(Request(9, ReconfigRequest(replace(changed(before), version=1), True, 0)), NOW)
    assert [reply.body.code for reply in only(effects, Reply)] == [103]
    assert node.config is before


def test_a_primary_that_a_forced_configuration_makes_an_arbiter_ends_its_writes() -> None:
    node = leading_three()
    rows = members_of(3)
    forced = named(replace(rows[0], arbiter_only=True, priority=0.0), *rows[1:], version=20_000, term=-1)
    node._state.peers[host(1)].restart_heartbeat(NOW)
    node.tick(NOW)
    effects = node.receive_heartbeat(1, config=forced, config_version=20_000, config_term=-1)
    assert AcceptWrites(False, 2) in effects
    assert [one.state.name for one in only(effects, StateChanged)][-3:] == ["SECONDARY", "REMOVED", "ARBITER"]


def test_a_change_ends_when_its_time_is_over() -> None:
    node = leading_three()
    effects = node.receive(Request(9, ReconfigRequest(changed(node.config, priority=2.0), False, 1_000)), NOW)
    assert not only([*effects, *node.tick(Millis(NOW + 999))], Reply)
    assert node.next_tick_at() <= NOW + 1_000
    (refused,) = (reply.body for reply in only(node.tick(Millis(NOW + 1_000)), Reply))
    assert (refused.code, refused.reason[:11]) == (308, "out of time")


def test_a_change_is_refused_where_a_member_has_a_newer_configuration() -> None:
    node = leading_three()
    assert node.config is not None
    node.receive(Request(9, ReconfigRequest(changed(node.config, priority=2.0), False, 0)), NOW)
    newer = replace(node.config, version=node.config.version + 3)
    beat = asked(node, FROM_1)
    assert isinstance(beat, HeartbeatReply)
    told = replace(beat, member_id=MemberId(1), incarnation="i1", config=newer, config_version=newer.version)
    effects = node.answer(1, HeartbeatRequest, replace(told, state=MemberState.SECONDARY, primary_id=None))
    (refused,) = (reply.body for reply in only(effects, Reply) if reply.request_id == 9)
    assert (refused.code, "has a newer configuration" in refused.reason) == (103, True)


def test_nothing_is_known_without_a_configuration() -> None:
    node = single_node(config=None, initial_sync_pending=True, position=place(OPTIME_NULL))
    assert node.primary_host is None
    assert node.in_sync_hosts == []
    node.receive(DamageFound("an entry is another one"), NOW)
    assert (node.state, node.quarantine) == (MemberState.STARTUP, "")


def numbers_of(known: Any) -> dict[str, int]:
    """The numbers that are not 0, and the flags that are set."""
    values = {one.name: getattr(known, one.name) for one in fields(known)}
    return {name: value for name, value in values.items() if type(value) in (int, bool) and value}


def test_nothing_is_counted_at_the_beginning() -> None:
    peer = Peer(host(0), MemberId(0), Millis(0))
    assert numbers_of(peer) == {"config_version": -2, "config_term": -1, "reported_term": -1, "role_free_in": -1}
    node = single_node(config=None, start=False, allow_multiple_arbiters=False, position=place(OPTIME_NULL))
    assert numbers_of(node._state) == {"election_due": NEVER}
    assert not node._state.is_overloaded()
    assert not node._state.holds_role()
    for progress in (InitialSyncProgress(), RollbackProgress(), FollowProgress()):
        assert not numbers_of(progress)


def test_what_a_primary_knows_of_its_set() -> None:
    node = leading_three()
    assert node.in_sync_hosts == [host(number) for number in range(3)]
    assert node.feature_version == node.config.feature_version <= LATEST


# --- heartbeats ------------------------------------------------------------------------------------------------------


def test_the_answer_of_another_set_is_none() -> None:
    node = ready()
    node.tick(Millis(NOW + 2_000))
    node.receive_heartbeat(1, NOW + 2_000, set_name="rs1")
    row = node.status(Millis(NOW + 2_000)).members[1]
    assert (row.state, row.message) == (MemberState.DOWN, f"{host(1)} belongs to set 'rs1', not 'rs0'")


def test_all_members_are_asked_once_a_role_is_released() -> None:
    node = ready()
    effects = node.receive(RoleReleased(), Millis(NOW + 1))
    asked_members = [send.to for send in only(effects, Send) if isinstance(send.body, HeartbeatRequest)]
    assert asked_members == [host(1), host(2)]


def test_a_newer_term_takes_back_what_was_noted_behind_it() -> None:
    history = OptimeAges()
    for optime, now in ((at(1, 1), 0), (at(1, 5), 500), (at(1, 9), 1_000), (at(2, 4), 2_000)):
        history.note(optime, Millis(now))
    assert history.spans(Millis(2_000)) == [(2_000, 2_000, at(1, 1)), (0, 0, at(2, 4))]


# --- out of service --------------------------------------------------------------------------------------------------


def test_a_member_that_starts_in_quarantine_says_why() -> None:
    node = single_node(config=CONFIG, quarantine="it differs", start=False)
    assert ("quarantined", "it differs") in journal(node.start(NOW))


def test_a_witness_in_quarantine_copies_nothing_by_itself() -> None:
    rows = members_of(3)
    config = named(replace(rows[0], witness=True, priority=0.0), *rows[1:])
    config = replace(config, version=2)
    for quarantine, copies in (("", True), ("it differs", False)):
        node = single_node(config=CONFIG, quarantine=quarantine)
        node.receive_heartbeat(1, config=config, config_version=2)
        assert (node.state is MemberState.STARTUP2) is copies


def test_a_rollback_that_ends_after_its_member_was_removed_changes_no_state() -> None:
    node = single_node(config=CONFIG, position=place(at(2, 5)))
    heard_of(node, NOW, term=2)
    diverged = SourceFailed(host(2), SourceProblem.DIVERGED, "", 3, at(3, 9), at(1))
    assert only(node.receive(diverged, NOW), StartRollback)
    without = named(*members_of(3)[1:], version=2)
    node._state.peers[host(2)].restart_heartbeat(NOW)
    node.tick(NOW)
    node.receive_heartbeat(2, config=without, config_version=2, term=3)
    assert node.state is MemberState.REMOVED
    effects = node.receive(RollbackEnded(host(2), True, False, False, "undone"), NOW)
    assert node.state is MemberState.REMOVED
    assert not journal(effects)
    assert not only(effects, StartInitialSync)


def test_whom_a_write_in_sync_waits_for() -> None:
    """Where a majority has it, only for those in sync; a delayed member is named as one."""
    rows = members_of(4)
    config = named(*rows[:3], replace(rows[3], priority=0.0, secondary_delay_secs=60, hidden=True))
    node = ready(config=config)
    node.receive_heartbeat(3)
    assert describe_delay(node._state, config.members[3]) == "delayed by 60 s"
    node = leading_three()
    newest = at(2, 3)
    node._state.position = place(newest)
    state = node._state
    state.peers[host(1)].restart_heartbeat(NOW)
    node.tick(NOW)
    node.receive_heartbeat(1, position=place(newest), config_term=2)
    waits = [[one.host for one in node.members_waited_for(WriteConcern(IN_SYNC), newest)]]
    state.in_sync = frozenset({MemberId(0), MemberId(1)})
    waits.append([one.host for one in node.members_waited_for(WriteConcern(IN_SYNC), newest)])
    assert waits == [[host(2)], []]
