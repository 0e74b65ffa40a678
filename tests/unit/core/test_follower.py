"""Whom to sync from, when to roll back, when to copy everything anew, when to keep out of the way (map R1, Ro1, I1)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from replset.config import Settings
from replset.core.effects import (
    CompareChains,
    InitialSyncNotNeeded,
    Persist,
    RecordElectionEvent,
    Reply,
    StartFetching,
    StartInitialSync,
    StartRollback,
    StateChanged,
    StopFetching,
)
from replset.core.member_state import MemberState
from replset.core.messages import (
    ChainsCompared,
    HeartbeatRequest,
    InitialSyncEnded,
    InitialSyncStarted,
    LocalPosition,
    Refused,
    Request,
    ResyncRequest,
    RollbackEnded,
    SourceBatch,
    SourceFailed,
    SourceProblem,
)
from replset.features.administration.remarks import find_remarks
from replset.ids import OPTIME_NULL, MemberId, Millis, OpTime
from tests.simulation.core_kit.cluster import running
from tests.simulation.core_kit.machine import host, members_of
from tests.unit.core.single_node import NOW, SingleNode, asked, at, named, only, place, single_node, vote_requests

CONFIG = named(*members_of(3))
TIMEOUT = Settings().election_timeout_ms
MINE = at(2, 5)


def following(**fields: Any) -> SingleNode:
    """Member 0, at MINE, follows member 1."""
    node = single_node(**{"config": CONFIG, "position": place(MINE), **fields})
    node.receive_heartbeat(2)
    effects = node.receive_heartbeat(1, state=MemberState.PRIMARY)
    if node.state is MemberState.SECONDARY:
        assert only(effects, StartFetching) == [StartFetching(host(1))]
    return node


def failed(
    node: SingleNode, problem: SourceProblem, newest: OpTime = OPTIME_NULL, oldest: OpTime = OPTIME_NULL
) -> list[Any]:
    return node.receive(SourceFailed(host(1), problem, "because", newest.term, newest, oldest), NOW)


# --- the source ------------------------------------------------------------------------------------------------------


def test_the_primary_is_the_source_and_a_new_one_takes_its_place() -> None:
    node = following()
    node.tick(Millis(NOW + 2_000))
    effects = node.receive_heartbeat(2, state=MemberState.PRIMARY, term=3, now=NOW + 2_000)
    order = [effect for effect in effects if isinstance(effect, StopFetching | StartFetching)]
    assert order == [StopFetching(), StartFetching(host(2))]
    assert node.sync_source == host(2)


@pytest.mark.parametrize(
    ("state", "newest", "is_source"),
    [
        (MemberState.SECONDARY, MINE, False),
        (MemberState.SECONDARY, at(2, 6), True),
        *((state, at(2, 9), False) for state in (MemberState.STARTUP2, MemberState.ROLLBACK, MemberState.RECOVERING)),
    ],
)
def test_without_a_primary_a_member_that_is_ahead_is_the_source(
    state: MemberState, newest: OpTime, is_source: bool
) -> None:
    node = single_node(config=CONFIG, position=place(MINE))
    node.receive_heartbeat(1, state=state, position=place(newest))
    assert node.sync_source == (host(1) if is_source else None)
    if is_source:
        node.receive_heartbeat(2, position=place(at(2, 7)))
        assert node.sync_source == host(1)
        node.tick(Millis(NOW + 2_000))
        node.receive_heartbeat(2, state=MemberState.PRIMARY, now=NOW + 2_000)
        assert node.sync_source == host(2)


def test_an_unreachable_source_is_tried_again_after_a_pause() -> None:
    node = following()
    assert not only(failed(node, SourceProblem.UNREACHABLE), StartFetching)
    assert node.sync_source is None
    assert NOW < node.next_tick_at() <= NOW + 1_000
    assert only(node.tick(Millis(NOW + 1_000)), StartFetching) == [StartFetching(host(1))]


def test_another_source_is_tried_without_a_pause() -> None:
    node = following()
    failed(node, SourceProblem.UNREACHABLE)
    node.tick(Millis(NOW + 1))
    request = HeartbeatRequest("rs0", host(2), MemberId(2), 3, 1, 1, MemberId(2), "i2")
    asked(node, request, NOW + 2)
    assert node.sync_source == host(2)


def test_a_failure_of_another_source_changes_nothing() -> None:
    node = following()
    node.receive(SourceFailed(host(2), SourceProblem.UNREACHABLE, "", 0, OPTIME_NULL, OPTIME_NULL), NOW)
    assert node.sync_source == host(1)


def test_an_arbiter_fetches_nothing() -> None:
    node = single_node(
        2, config=named(*members_of(3, arbiters=1)), position=place(OPTIME_NULL), initial_sync_pending=True
    )
    assert node.state is MemberState.ARBITER
    effects = node.receive_heartbeat(0, state=MemberState.PRIMARY)
    assert not only(effects, StartFetching)
    assert not only(effects, StartInitialSync)
    assert node.progress_request() is None


# --- rollback --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("newest", "oldest", "rolls_back"),
    [
        pytest.param(at(3, 1), at(1, 1), True, id="higher-term"),
        pytest.param(at(3, 1), at(2, 5), True, id="higher-term-oldest-is-mine"),
        pytest.param(at(2, 9), at(1, 1), False, id="my-term-without-my-newest"),
        pytest.param(at(2, 1), at(1, 1), False, id="merely-behind"),
        pytest.param(at(1, 9), at(1, 1), False, id="lower-term"),
    ],
)
def test_rollback_only_towards_a_higher_term(newest: OpTime, oldest: OpTime, rolls_back: bool) -> None:
    """A member rolls back only towards a source whose newest entry has a higher term than its own newest."""
    node = following()
    effects = failed(node, SourceProblem.DIVERGED, newest, oldest)
    assert only(effects, StartRollback) == ([StartRollback(host(1))] if rolls_back else [])
    assert node.state is (MemberState.ROLLBACK if rolls_back else MemberState.SECONDARY)
    assert not only(effects, StartInitialSync)
    if rolls_back:
        kinds = [type(effect) for effect in effects]
        assert kinds.index(StateChanged) < kinds.index(StartRollback)


def test_no_rollback_towards_a_source_that_names_a_later_term_than_its_own() -> None:
    node = following()
    effects = node.receive(SourceFailed(host(1), SourceProblem.DIVERGED, "because", node.term, at(9), at(1)), NOW)
    assert not only(effects, StartRollback)
    assert (node.state, node.term) == (MemberState.SECONDARY, node.position.last_applied.term)


def test_after_a_rollback_it_is_secondary_and_follows_again() -> None:
    node = following()
    failed(node, SourceProblem.DIVERGED, at(3), at(1))
    node.tick(Millis(NOW + 2_000))
    node.receive_heartbeat(1, state=MemberState.PRIMARY)  # it leads term 3
    node.receive(LocalPosition(place(at(2, 1))), NOW)
    effects = node.receive(RollbackEnded(host(1), True, False, False, "undone"), NOW)
    assert node.state is MemberState.SECONDARY
    assert only(effects, StartFetching) == [StartFetching(host(1))]
    assert node.position.last_applied == at(2, 1)


@pytest.mark.parametrize("is_retried", [False, True])
def test_after_a_rollback_it_waits_a_whole_timeout_before_it_asks_for_votes(is_retried: bool) -> None:
    """However long ago it heard a primary; what it had behind the common point is gone or will be."""
    node = following()
    failed(node, SourceProblem.DIVERGED, at(3), at(1))
    node.tick(Millis(NOW + 2_000))
    node.receive_heartbeat(1, state=MemberState.PRIMARY)  # it leads term 3
    ended = NOW + TIMEOUT - 1
    node.receive(RollbackEnded(host(1), not is_retried, is_retried, False, "ended"), Millis(ended))
    assert not vote_requests(node.tick(Millis(ended + TIMEOUT - 1)))


def test_a_rollback_that_could_not_begin_is_tried_again() -> None:
    node = following()
    failed(node, SourceProblem.DIVERGED, at(3), at(1))
    node.tick(Millis(NOW + 2_000))
    node.receive_heartbeat(1, state=MemberState.PRIMARY)  # it leads term 3
    node.receive(RollbackEnded(host(1), False, True, False, "the source changed"), NOW)
    assert node.state is MemberState.SECONDARY
    assert only(node.tick(Millis(NOW + 1_000)), StartFetching) == [StartFetching(host(1))]


def test_a_refused_rollback_is_quarantined() -> None:
    """A refused rollback leaves the member in RECOVERING."""
    node = following()
    failed(node, SourceProblem.DIVERGED, at(3), at(1))
    node.receive(RollbackEnded(host(1), False, False, False, "below the commit point"), NOW)
    assert node.state is MemberState.RECOVERING
    assert "below the commit point" in node.quarantine
    for now in range(NOW, NOW + 60_000, 500):
        assert not only(node.tick(Millis(now)), StartFetching)
    assert "below the commit point" in node.quarantine


def test_a_rollback_without_a_common_point_is_a_resync() -> None:
    node = following()
    failed(node, SourceProblem.DIVERGED, at(3), at(1))
    effects = node.receive(RollbackEnded(host(1), False, False, True, "no common point"), NOW)
    assert node.state is MemberState.STARTUP2
    assert [effect.source for effect in only(effects, StartInitialSync)] == [host(1)]


def outvoted(node: SingleNode) -> list[Any]:
    """Its chain differs from the primary's, and the third member has the primary's."""
    failed(node, SourceProblem.CHAIN_DIFFERS, at(2, 9), at(1))
    return node.receive(ChainsCompared(MINE, 1, 2, 0, "because"), NOW)


def test_corruption_is_not_rolled_back() -> None:
    """A secondary whose chain differs stops applying; if outvoted it stays in RECOVERING (docs/adr/0006)."""
    node = following()
    effects = failed(node, SourceProblem.CHAIN_DIFFERS, at(3), at(1))
    assert not only(effects, StartRollback)
    assert only(effects, CompareChains) == [CompareChains(MINE, (host(1), host(2)))]
    assert node.state is MemberState.SECONDARY, "the damage may be the primary's"
    assert not only(outvoted(node), StartRollback)
    assert node.state is MemberState.RECOVERING
    assert "outvoted" in node.quarantine


def test_a_member_in_rollback_starts_no_election_serves_no_reads_and_stays_in_rollback_after_a_reconfig() -> None:
    """A configuration that comes in the middle does not turn it into a SECONDARY."""
    node = following()
    failed(node, SourceProblem.DIVERGED, at(3), at(1))
    without = named(*members_of(3)[1:], version=2)
    node.tick(Millis(NOW + 2_000))
    node.receive_heartbeat(1, config=without, config_version=2, now=NOW + 2_000)
    assert node.state is MemberState.REMOVED
    asked(node, HeartbeatRequest("rs0", host(1), MemberId(1), 2, 3, 1, None, "i1"), NOW + 3_000)
    node.receive_heartbeat(1, config=named(*members_of(3), version=3), config_version=3, now=NOW + 3_000)
    assert node.state is MemberState.ROLLBACK
    node.receive(RollbackEnded(host(1), True, False, False, "undone"), Millis(NOW + 4_000))
    assert node.state is MemberState.SECONDARY


def test_an_interrupted_rollback_without_disk_space_at_start_keeps_it_in_rollback_until_it_is_over() -> None:
    node = single_node(config=CONFIG, position=place(MINE), rolling_back=True)
    assert node.state is MemberState.ROLLBACK
    effects = node.receive_heartbeat(1, state=MemberState.PRIMARY)
    assert not only(effects, StartFetching)
    effects = node.receive(RollbackEnded(host(0), True, False, False, "finished"), NOW)
    assert node.state is MemberState.SECONDARY
    assert only(effects, StartFetching) == [StartFetching(host(1))]


def test_an_interrupted_rollback_before_an_initial_sync_ends_in_that_sync() -> None:
    node = single_node(config=CONFIG, position=place(MINE), rolling_back=True, initial_sync_pending=True)
    node.receive_heartbeat(1, state=MemberState.PRIMARY)
    assert node.state is MemberState.ROLLBACK
    effects = node.receive(RollbackEnded(host(0), True, False, False, "finished"), NOW)
    assert node.state is MemberState.STARTUP2
    assert [effect.source for effect in only(effects, StartInitialSync)] == [host(1)]


@pytest.mark.parametrize("is_rollback", [False, True])
def test_what_does_not_fit_the_disk_is_quarantined(is_rollback: bool) -> None:
    """Each further try would fail the same way. The remark names the command that replaces the data."""
    node = following()
    if is_rollback:
        failed(node, SourceProblem.DIVERGED, at(3), at(1))
        node.receive(RollbackEnded(host(1), False, False, False, "it cannot be undone", not_undone=True), NOW)
    else:
        failed(node, SourceProblem.NOT_APPLIED)
    assert node.state is MemberState.RECOVERING
    assert node.quarantine
    remark = next(one for one in find_remarks(node.known, NOW) if one.why.startswith(f"{host(0)} keeps out"))
    assert f"replset resync --host {host(0)}" in remark.next_step


def test_each_member_reports_its_unacknowledged_rollbacks_and_its_quarantine() -> None:
    node = following(unacknowledged_rollbacks=2)
    outvoted(node)
    told = asked(node, HeartbeatRequest("rs0", host(1), MemberId(1), 2, 1, 1, None, "i1"))
    assert told.unacknowledged_rollbacks == 2
    assert told.quarantine == node.quarantine
    node.tick(Millis(NOW + 2_000))
    node.receive_heartbeat(2, unacknowledged_rollbacks=7, quarantine="it differs", now=NOW + 2_000)
    status = node.status(Millis(NOW + 2_000))
    assert [(row.unacknowledged_rollbacks, row.quarantine) for row in status.members] == [
        (2, node.quarantine),
        (0, ""),
        (7, "it differs"),
    ]


# --- a resync that is asked for --------------------------------------------------------------------------------------


def test_a_resync_copies_the_primary_s_data() -> None:
    node = following()
    effects = node.receive(Request(5, ResyncRequest()), NOW)
    assert node.state is MemberState.STARTUP2
    assert [effect.source for effect in only(effects, StartInitialSync)] == [host(1)]
    assert only(effects, StopFetching) == [StopFetching()]
    assert not only(effects, Reply)  # the source is asked first whether it holds enough
    (reply,) = only(node.receive(InitialSyncStarted("i0"), NOW), Reply)
    assert str(host(1)) in reply.body.info
    assert "already" in asked(node, ResyncRequest()).info


def test_a_resync_ends_a_quarantine() -> None:
    node = following()
    outvoted(node)
    node.receive(Request(5, ResyncRequest()), NOW)
    node.receive(InitialSyncStarted("another"), NOW)
    node.receive(InitialSyncEnded(host(1), ok=True, detail="copied"), NOW)
    assert node.state is MemberState.SECONDARY
    assert node.quarantine == ""


def test_a_resync_without_a_source_is_refused_and_changes_nothing() -> None:
    node = single_node(config=CONFIG, position=place(MINE))
    assert asked(node, ResyncRequest()).code == 74
    assert node.state is MemberState.SECONDARY


def test_a_member_that_is_behind_is_not_copied() -> None:
    """It may lack what was acknowledged here; where two vote, nobody could be elected any more."""
    node = single_node(config=CONFIG, position=place(at(2, 5)))
    for number in (1, 2):
        node.receive_heartbeat(number, position=place(at(2, 4)))
    assert asked(node, ResyncRequest()).code == 119
    assert node.state is MemberState.SECONDARY
    assert node.progress_request() is not None
    node.tick(Millis(NOW + 2_000))
    node.receive_heartbeat(2, now=NOW + 2_000, position=place(at(2, 5)))
    effects = node.receive(Request(5, ResyncRequest()), Millis(NOW + 2_000))
    assert [effect.source for effect in only(effects, StartInitialSync)] == [host(2)]


def test_the_primary_of_the_term_is_copied_though_its_last_heartbeat_is_older_than_what_came_of_it() -> None:
    node = single_node(config=named(*members_of(3)), position=place(at(2, 5)))
    node.receive_heartbeat(1, state=MemberState.PRIMARY, term=2, position=place(at(2, 4)))
    effects = node.receive(Request(5, ResyncRequest()), NOW)
    assert [effect.source for effect in only(effects, StartInitialSync)] == [host(1)]


def test_a_member_that_is_behind_is_copied_by_force_if_the_others_can_elect_without_this_one() -> None:
    node = single_node(config=CONFIG, position=place(at(2, 5)))
    node.receive_heartbeat(1, position=place(at(2, 4)))
    answer = asked(node, ResyncRequest(force=True))
    assert answer.code == 119
    assert "replSetReconfig" in answer.reason
    assert node.state is MemberState.SECONDARY
    node.receive_heartbeat(2, position=place(at(2, 3)))
    effects = node.receive(Request(5, ResyncRequest(force=True)), NOW)
    assert [(sync.source, sync.forced) for sync in only(effects, StartInitialSync)] == [(host(1), True)]


def test_a_resync_that_the_source_refuses_changes_nothing() -> None:
    node = following()
    node.receive(Request(5, ResyncRequest()), NOW)
    effects = node.receive(InitialSyncEnded(host(1), ok=False, detail="it lacks 2:1", refused=True), NOW)
    assert [reply.body for reply in only(effects, Reply)] == [Refused(119, "it lacks 2:1")]
    assert not only(effects, Persist)  # no marker was set
    assert node.state is MemberState.SECONDARY
    assert node.progress_request() is not None
    assert not only(node.tick(Millis(NOW + 2_000)), StartInitialSync)


def test_a_refused_resync_leaves_a_quarantine_as_it_is() -> None:
    node = following()
    outvoted(node)
    why = node.quarantine
    node.receive(Request(5, ResyncRequest()), NOW)
    node.receive(InitialSyncStarted("i0"), NOW)
    effects = node.receive(InitialSyncEnded(host(1), ok=False, detail="it lacks 2:1", refused=True), NOW)
    assert [persist.record for persist in only(effects, Persist)] == [InitialSyncNotNeeded()]
    assert node.state is MemberState.RECOVERING
    assert node.quarantine == why


@pytest.mark.parametrize("restarted", [False, True], ids=["", "restarted"])
def test_a_resync_whose_source_is_gone_is_given_up_when_only_this_member_can_be_elected(restarted: bool) -> None:
    """Its own data is whole: waiting for a source that is as far, it would keep everybody from electing one."""
    cluster = running(3)
    leader = cluster.elect()
    mine, behind = (machine for machine in cluster.machines.values() if machine is not leader)
    cluster.isolate(cluster.number_of(behind))
    written = leader.write("committed")
    cluster.until(lambda: mine.node.commit_point == written)
    cluster.ask(cluster.number_of(mine), ResyncRequest())
    cluster.until(lambda: mine.disk.marker)
    leader.crash()
    if restarted:
        mine.crash()
        mine.boot()
    cluster.heal()
    cluster.until(lambda: cluster.primary in (mine, behind), 60_000)
    cluster.until(lambda: behind.disk.log == mine.disk.log)
    assert written in [optime for optime, _ in mine.disk.log]
    assert not mine.disk.marker
    assert any("resync given up" in line for line in mine.journal)


def test_the_resync_of_a_quarantined_member_is_not_given_up_after_a_restart() -> None:
    """The restart forgets why its data is not to be trusted."""
    node = following()
    outvoted(node)
    node.receive(Request(5, ResyncRequest()), NOW)
    assert node.state is MemberState.STARTUP2
    assert not node.is_resync_requested


def test_after_a_copy_that_lacks_what_was_committed_no_entry_of_it_is_taken_for_committed() -> None:
    node = following(position=place(at(2, 5)))
    node.receive(SourceBatch(host(1), 2, at(2, 5), True), NOW)
    assert node.commit_point == at(2, 5)
    node.receive(Request(5, ResyncRequest(force=True)), NOW)
    node.receive(InitialSyncStarted("i9"), NOW)
    node.receive(LocalPosition(place(at(2, 4))), NOW)
    node.receive(InitialSyncEnded(host(1), ok=True, detail="copied", holds_committed=False), NOW)
    assert node.state is MemberState.SECONDARY
    assert node.commit_point == OPTIME_NULL


def test_a_commit_point_that_arrives_while_the_data_is_replaced_is_not_taken() -> None:
    node = following(position=place(at(2, 5)))
    node.receive(Request(5, ResyncRequest()), NOW)
    node.tick(Millis(NOW + 2_000))
    node.receive_heartbeat(1, now=NOW + 2_000, state=MemberState.PRIMARY, term=2, commit_point=at(2, 5))
    assert node.commit_point == OPTIME_NULL


def test_members_that_do_not_resync() -> None:
    arbiter = single_node(2, config=named(*members_of(3, arbiters=1)))
    without_config = single_node(config=None)
    rolling_back = following()
    failed(rolling_back, SourceProblem.DIVERGED, at(3), at(1))
    alone = single_node(config=named(*members_of(1)), position=place(MINE))
    alone.tick(Millis(NOW + 60_000))
    assert alone.state is MemberState.PRIMARY
    for node, code, word in (
        (arbiter, 95, "arbiter"),
        (without_config, 94, "config"),
        (rolling_back, 95, "ROLLBACK"),
        (alone, 95, "primary"),
    ):
        before = node.state
        answer = asked(node, ResyncRequest(), NOW + 60_000)
        assert answer.code == code
        assert word in answer.reason
        assert node.state is before


# --- initial sync ----------------------------------------------------------------------------------------------------


def fresh() -> SingleNode:
    return single_node(config=CONFIG, position=place(OPTIME_NULL), initial_sync_pending=True)


def test_an_empty_member_copies_from_any_readable_member_with_data() -> None:
    """Any data-bearing member that is not in ROLLBACK is a source: the initiator is one, still SECONDARY."""
    node = fresh()
    assert node.state is MemberState.STARTUP2
    assert not only(node.receive_heartbeat(1, has_data=False), StartInitialSync)
    assert not only(node.receive_heartbeat(2, state=MemberState.ROLLBACK), StartInitialSync)
    node.tick(Millis(NOW + 1_000))
    node.receive_heartbeat(2, now=NOW + 1_000)
    assert [effect.source for effect in only(node.tick(Millis(NOW + 2_000)), StartInitialSync)] == [host(2)]
    assert not only(node.tick(Millis(NOW + 3_000)), StartInitialSync)


def test_the_primary_is_copied_from_first() -> None:
    node = fresh()
    node._follower._retry_at = Millis(NOW + 100)
    node.receive_heartbeat(1, position=place(at(9)))
    node.receive_heartbeat(2, state=MemberState.PRIMARY)
    assert [effect.source for effect in only(node.tick(Millis(NOW + 100)), StartInitialSync)] == [host(2)]


def test_a_finished_copy_makes_it_a_secondary_that_follows() -> None:
    node = fresh()
    node.receive_heartbeat(1, state=MemberState.PRIMARY)
    node.receive(InitialSyncStarted("i0"), NOW)
    node.receive(LocalPosition(place(at(1, 9))), NOW)
    effects = node.receive(InitialSyncEnded(host(1), True, "done"), NOW)
    assert node.state is MemberState.SECONDARY
    assert only(effects, StartFetching) == [StartFetching(host(1))]
    assert node.progress_request() is not None


def test_a_failed_copy_is_tried_again_after_a_pause() -> None:
    node = fresh()
    node.receive_heartbeat(1)
    assert not only(node.receive(InitialSyncEnded(host(1), False, "broken"), NOW), StartInitialSync)
    assert node.state is MemberState.STARTUP2
    assert len(only(node.tick(Millis(NOW + 1_000)), StartInitialSync)) == 1


@pytest.mark.parametrize(
    ("mine", "newest", "oldest"),
    [
        pytest.param(at(2, 5), at(3, 9), at(2, 6), id="the-window-has-passed"),
        pytest.param(at(2, 5), at(2, 9), at(2, 6), id="in-my-own-term"),
        pytest.param(OPTIME_NULL, at(2, 9), at(2, 6), id="no-data-without-a-marker"),
    ],
)
def test_too_stale_is_a_resync_not_a_rollback(mine: OpTime, newest: OpTime, oldest: OpTime) -> None:
    """Map Ro1: the source's oldest entry is newer than this member's newest."""
    node = following(position=place(mine))
    effects = failed(node, SourceProblem.DIVERGED, newest, oldest)
    assert not only(effects, StartRollback)
    sync = only(effects, StartInitialSync)
    assert len(sync) == 1
    assert "stale" in sync[0].reason
    assert node.state is MemberState.STARTUP2
    assert "too stale" not in [line.record.event for line in only(effects, RecordElectionEvent)], (
        "that is for who waits"
    )


def test_from_the_decision_to_resync_on_it_neither_votes_nor_acknowledges() -> None:
    """An incarnation is made anew with every initial-sync marker (docs/adr/0007)."""
    node = following()
    failed(node, SourceProblem.DIVERGED, at(3, 9), at(3, 6))
    assert node.progress_request() is None
    node.receive(InitialSyncStarted("new"), NOW)
    assert node.incarnation == "new"
    node.receive(LocalPosition(place(at(3, 9))), NOW)
    node.receive(InitialSyncEnded(host(1), True, ""), NOW)
    assert node.state is MemberState.SECONDARY
    assert node.progress_request() is None  # until the configuration names it
    renamed = CONFIG.with_member(replace(CONFIG.members[0], incarnation="new"))
    node.tick(Millis(NOW + 2_000))
    node.receive_heartbeat(1, config=replace(renamed, version=2), config_version=2, now=NOW + 2_000)
    assert node.progress_request() is not None
