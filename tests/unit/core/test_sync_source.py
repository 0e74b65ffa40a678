"""Which source a secondary takes, when it leaves it, and what it passes on of its followers (map R1 to R3, R8)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from replset.config import Settings
from replset.core.effects import (
    CommitPointAdvanced,
    RecordElectionEvent,
    RelayProgress,
    StartFetching,
    StartInitialSync,
    StopFetching,
)
from replset.core.member_state import MemberState
from replset.core.messages import (
    Done,
    FetchProgress,
    HeartbeatRequest,
    LocalPosition,
    MaintenanceRequest,
    MemberProgress,
    ProgressRequest,
    Response,
    SourceBatch,
    SourceFailed,
    SourceProblem,
    SyncFromRequest,
)
from replset.core.quorum import WriteConcern
from replset.ids import OPTIME_NULL, MemberId, Millis, OpTime
from tests.simulation.core_kit.cluster import CoreCluster
from tests.simulation.core_kit.machine import host, members_of
from tests.unit.core.single_node import NOW, SingleNode, asked, at, lead, named, only, place, single_node

CONFIG = named(*members_of(3))
FOUR = named(*members_of(4))
MINE, NEWER = at(2, 5), at(2, 9)


def beat(node: SingleNode, number: int, round_trip_ms: int, times: int = 5, now: int = NOW, **told: Any) -> list[Any]:
    """Member `number` answers so many heartbeats after `round_trip_ms` each."""
    effects: list[Any] = []
    for _ in range(times):
        node._state.peers[host(number)].restart_heartbeat(Millis(now))
        node.tick(Millis(now))
        real = node.receive

        def late(message: Any, at: Millis, real: Any = real) -> Any:
            if isinstance(message, Response):
                message = replace(message, round_trip_ms=Millis(round_trip_ms))
            return real(message, at)

        node.receive = late
        effects += node.receive_heartbeat(number, now, **told)
        node.receive = real
    return effects


def far_from_the_primary(**fields: Any) -> SingleNode:
    """Member 0 follows member 1, the primary, 40 ms away; member 2 is 1 ms away."""
    node = single_node(**{"config": CONFIG, "position": place(MINE), **fields})
    beat(node, 1, 40, state=MemberState.PRIMARY, position=place(NEWER), primary_id=MemberId(1))
    assert node.sync_source == host(1)
    return node


# --- closer sources --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("round_trip_ms", "position", "changes"),
    [
        pytest.param(1, NEWER, True, id="closer-and-ahead"),
        pytest.param(1, MINE, False, id="not-ahead"),
        pytest.param(35, NEWER, False, id="closer-by-5-ms-only"),
        pytest.param(34, NEWER, True, id="closer-by-6-ms"),
        pytest.param(1, at(1, 9), False, id="of-an-older-term"),
    ],
)
def test_a_closer_member_that_is_ahead_is_the_source(round_trip_ms: int, position: OpTime, changes: bool) -> None:
    node = far_from_the_primary()
    beat(node, 2, round_trip_ms, position=place(position))
    assert node.sync_source == host(2 if changes else 1)


@pytest.mark.parametrize(("behind_ms", "changes"), [(30_000, True), (30_001, False)])
def test_a_closer_member_that_is_far_behind_is_no_source(behind_ms: int, changes: bool) -> None:
    node = far_from_the_primary()
    ahead = OpTime(2, NEWER.ts + 1)
    node._state.ages.restart(NEWER, Millis(NOW - 60_000))
    node._state.ages.note(ahead, Millis(NOW - behind_ms))
    beat(node, 1, 40, times=1, state=MemberState.PRIMARY, position=place(ahead))
    beat(node, 2, 1, position=place(NEWER))
    assert node.sync_source == host(2 if changes else 1)


def test_a_few_heartbeats_say_nothing_of_closeness() -> None:
    node = far_from_the_primary()
    beat(node, 2, 1, times=4, position=place(NEWER))
    assert node.sync_source == host(1)


def test_a_busy_primary_is_no_farther_away() -> None:
    """The shortest of the newest round trips counts: load makes some of them longer."""
    node = single_node(config=CONFIG, position=place(MINE))
    for round_trip_ms in (60, 2, 50, 70, 90):
        beat(node, 1, round_trip_ms, times=1, state=MemberState.PRIMARY, position=place(NEWER))
    beat(node, 2, 1, position=place(NEWER))
    assert node.sync_source == host(1)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"hidden": True, "priority": 0.0}, id="hidden"),
        pytest.param({"votes": 0, "priority": 0.0}, id="no-voter"),
        pytest.param({"secondary_delay_secs": 60, "priority": 0.0}, id="delayed"),
        pytest.param({"build_indexes": False, "priority": 0.0}, id="without-indexes"),
    ],
)
def test_members_that_do_not_suit_as_source(changes: dict[str, Any]) -> None:
    rows = members_of(3)
    node = far_from_the_primary(config=named(rows[0], rows[1], replace(rows[2], **changes)))
    beat(node, 2, 1, position=place(NEWER))
    assert node.sync_source == host(1)


NO_INDEXES = named(*members_of(2), replace(members_of(3)[2], build_indexes=False, priority=0.0))


def test_without_a_primary_entries_are_fetched_from_a_member_without_indexes() -> None:
    """Nobody else may have the newest committed entries. It cannot be elected, and refuses its vote without them."""
    node = single_node(config=NO_INDEXES, position=place(MINE))
    assert only(node.receive_heartbeat(2, position=place(NEWER)), StartFetching) == [StartFetching(host(2))]
    node.receive_heartbeat(1, state=MemberState.PRIMARY, position=place(NEWER), primary_id=MemberId(1))
    assert node.sync_source == host(1)


def knows_of_term(term: int) -> SingleNode:
    """A member that knows no primary, and that entries of this term are committed which it may not have."""
    return single_node(config=CONFIG, position=place(MINE), commit_term=term)


@pytest.mark.parametrize(("term", "follows"), [(2, True), (3, False)])
def test_who_was_away_while_entries_were_committed_is_no_source(term: int, follows: bool) -> None:
    """It may lack them, and whoever follows it would add others in their place."""
    node = knows_of_term(term)
    node.receive_heartbeat(2, position=place(NEWER))
    assert (node.sync_source == host(2)) is follows


def test_a_source_that_may_lack_committed_entries_is_left() -> None:
    node = knows_of_term(2)
    node.receive_heartbeat(2, position=place(NEWER))
    node.receive_heartbeat(1, term=3, position=place(MINE), commit_point=MINE, commit_term=3)
    beat(node, 2, 1, times=1, position=place(NEWER))
    assert node.sync_source is None


def test_too_stale_for_a_member_without_indexes_nothing_is_copied() -> None:
    node = single_node(config=NO_INDEXES, position=place(MINE))
    node.receive_heartbeat(2, position=place(NEWER))
    failed = SourceFailed(host(2), SourceProblem.DIVERGED, "", NEWER.term, NEWER, at(2, 8))
    effects = node.receive(failed, NOW)
    assert not only(effects, StartInitialSync)
    assert node.state is MemberState.SECONDARY
    assert "too stale" in [line.record.event for line in only(effects, RecordElectionEvent)]


def test_what_only_a_member_without_indexes_has_of_a_dead_primary_is_fetched_before_anybody_leads() -> None:
    cluster = CoreCluster(3)
    cluster.initiate(*members_of(2), replace(members_of(3)[2], build_indexes=False, priority=0.0))
    cluster.until(cluster.is_quiet)
    leader = cluster.elect()
    second = cluster[1 - cluster.number_of(leader)]
    cluster.isolate(cluster.number_of(second))
    optime = leader.write("x")
    assert optime is not None
    cluster.until(lambda: leader.node.is_satisfied(WriteConcern("majority"), optime))
    leader.crash()
    cluster.heal()
    cluster.until(lambda: cluster.primary is second)
    assert optime in [entry for entry, _ in second.disk.log]


def test_a_member_that_follows_this_one_is_no_source() -> None:
    node = far_from_the_primary(config=FOUR)
    beat(node, 3, 1, position=place(MINE), sync_source=host(0))
    beat(node, 2, 1, position=place(NEWER), sync_source=host(3))
    assert node.sync_source == host(1)


def test_three_closer_sources_an_hour() -> None:
    node = far_from_the_primary()
    for number in range(5):
        beat(node, 2, 1, position=place(NEWER))
        assert node.sync_source == host(2 if number < 3 else 1)
        beat(node, 2, 40, times=8, position=place(NEWER))
        assert node.sync_source == host(1)


def chained(**fields: Any) -> SingleNode:
    """Member 0 follows member 2, which follows member 1, the primary."""
    node = far_from_the_primary(**fields)
    beat(node, 2, 1, position=place(NEWER), sync_source=host(1))
    assert node.sync_source == host(2)
    return node


def test_a_chain_ends_at_the_primary_whatever_that_follows() -> None:
    """A primary that catches up may follow this member for a moment."""
    node = far_from_the_primary()
    primary = {"state": MemberState.PRIMARY, "primary_id": MemberId(1), "position": place(NEWER)}
    beat(node, 1, 50, term=2, sync_source=host(0), **primary)
    beat(node, 2, 1, position=place(NEWER), sync_source=host(1))
    assert node.sync_source == host(2)


# --- leaving a source ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "leaves"),
    [
        pytest.param({}, False, id="it-goes-on"),
        pytest.param({"position": place(MINE)}, False, id="not-ahead-with-a-source"),
        pytest.param({"position": place(MINE), "sync_source": None}, True, id="not-ahead-without-a-source"),
        pytest.param({"position": place(MINE), "sync_source": host(0)}, True, id="not-ahead-and-a-cycle"),
        pytest.param({"state": MemberState.RECOVERING}, True, id="not-readable"),
    ],
)
def test_when_a_source_is_left(told: dict[str, Any], leaves: bool) -> None:
    node = chained()
    beat(node, 2, 1, times=1, **{"position": place(NEWER), "sync_source": host(1), **told})
    assert node.sync_source == host(1 if leaves else 2)


@pytest.mark.parametrize(("behind_ms", "leaves"), [(30_000, False), (30_001, True)])
def test_a_source_far_behind_the_primary_is_left(behind_ms: int, leaves: bool) -> None:
    node = chained()
    ahead = OpTime(2, NEWER.ts + 1)
    node._state.ages.restart(NEWER, Millis(NOW - 60_000))
    node._state.ages.note(ahead, Millis(NOW - behind_ms))
    beat(node, 1, 40, times=1, state=MemberState.PRIMARY, position=place(ahead))
    assert node.sync_source == host(1 if leaves else 2)


def test_without_chaining_the_primary_is_the_only_source() -> None:
    node = far_from_the_primary(config=replace(CONFIG, settings=Settings(chaining_allowed=False)))
    beat(node, 2, 1, position=place(NEWER))
    assert node.sync_source == host(1)
    answer = asked(node, SyncFromRequest(host(2)))
    assert (answer.code, "chainingAllowed" in answer.reason) == (72, True)


def test_chaining_that_is_switched_off_ends_a_chain() -> None:
    node = chained()
    off = replace(CONFIG, version=2, settings=Settings(chaining_allowed=False))
    beat(node, 1, 40, times=1, state=MemberState.PRIMARY, position=place(NEWER), config=off, config_version=2)
    node.tick(Millis(NOW + 1))
    assert node.sync_source == host(1)


def test_a_source_that_fails_is_left_for_the_primary_and_comes_back_after_ten_seconds() -> None:
    node = chained()
    effects = node.receive(SourceFailed(host(2), SourceProblem.UNREACHABLE, "", 0, OPTIME_NULL, OPTIME_NULL), NOW)
    assert only(effects, StartFetching) == [StartFetching(host(1))]
    node.tick(Millis(NOW + 9_999))
    assert node.sync_source == host(1)
    node.tick(Millis(NOW + 10_000))
    assert node.sync_source == host(2)


def test_while_the_primary_fails_another_member_that_is_ahead_serves() -> None:
    node = single_node(config=CONFIG, position=place(MINE))
    beat(node, 2, 1, position=place(NEWER), sync_source=host(1))
    beat(node, 1, 1, state=MemberState.PRIMARY, position=place(NEWER))
    assert node.sync_source == host(1)
    node.receive(SourceFailed(host(1), SourceProblem.UNREACHABLE, "", 0, OPTIME_NULL, OPTIME_NULL), NOW)
    assert node.sync_source == host(2)
    node.tick(Millis(NOW + 9_999))
    assert node.sync_source == host(2)
    node.tick(Millis(NOW + 10_000))
    assert node.sync_source == host(1)


def test_too_stale_for_one_source_is_not_too_stale_for_all() -> None:
    """Another member may have a longer oplog. Only when none reaches back, everything is copied anew."""
    node = single_node(config=CONFIG, position=place(MINE))
    beat(node, 2, 1, position=place(NEWER))
    beat(node, 1, 1, state=MemberState.PRIMARY, position=place(NEWER))

    def too_stale(number: int) -> list[Any]:
        return node.receive(SourceFailed(host(number), SourceProblem.DIVERGED, "", 2, NEWER, at(2, 7)), NOW)

    effects = too_stale(1)
    assert only(effects, StartFetching) == [StartFetching(host(2))]
    assert not only(effects, StartInitialSync)
    assert [effect.source for effect in only(too_stale(2), StartInitialSync)] == [host(1)]


@pytest.mark.parametrize(("number", "serves"), [(6, False), (7, True), (8, True)])
def test_a_source_serves_again_once_this_member_has_its_oldest_entry(number: int, serves: bool) -> None:
    node = single_node(config=CONFIG, position=place(MINE))
    beat(node, 2, 1, position=place(NEWER))
    beat(node, 1, 1, state=MemberState.PRIMARY, position=place(NEWER))
    node.receive(SourceFailed(host(1), SourceProblem.DIVERGED, "", 2, NEWER, at(2, 7)), NOW)
    assert node.sync_source == host(2)
    node.receive(LocalPosition(place(at(2, number))), NOW)
    node.receive(SourceFailed(host(2), SourceProblem.UNREACHABLE, "", 0, OPTIME_NULL, OPTIME_NULL), NOW)
    assert (node.sync_source == host(1)) is serves


# --- replSetSyncFrom -------------------------------------------------------------------------------------------------


def test_sync_from_takes_a_member_that_is_no_closer_and_stays_there() -> None:
    node = far_from_the_primary()
    beat(node, 2, 60, position=place(MINE), sync_source=host(1))
    assert asked(node, SyncFromRequest(host(2))) == Done()
    assert node.sync_source == host(2)
    beat(node, 2, 60, position=place(NEWER), sync_source=host(1))
    assert node.sync_source == host(2)
    node.receive(SourceFailed(host(2), SourceProblem.UNREACHABLE, "", 0, OPTIME_NULL, OPTIME_NULL), NOW)
    node.tick(Millis(NOW + 20_000))
    assert node.sync_source == host(1)


@pytest.mark.parametrize(("behind_ms", "warns"), [(10_000, False), (10_001, True)])
def test_sync_from_warns_of_a_member_that_is_behind(behind_ms: int, warns: bool) -> None:
    newer = OpTime(2, MINE.ts + 1)
    node = far_from_the_primary(position=place(newer))
    node._state.ages.restart(MINE, Millis(NOW - 60_000))
    node._state.ages.note(newer, Millis(NOW - behind_ms))
    beat(node, 2, 1, position=place(MINE), sync_source=host(1))
    assert ("more than 10 seconds behind" in asked(node, SyncFromRequest(host(2))).info) == warns


@pytest.mark.parametrize(
    ("target", "changes", "code"),
    [
        pytest.param(0, {}, 72, id="itself"),
        pytest.param(9, {}, 74, id="no-member"),
        pytest.param(2, {"arbiter_only": True, "priority": 0.0}, 72, id="an-arbiter"),
        pytest.param(2, {"votes": 0, "priority": 0.0}, 72, id="no-voter"),
        pytest.param(2, {"build_indexes": False, "priority": 0.0}, 72, id="without-indexes"),
        pytest.param(2, {}, 6, id="not-reachable"),
    ],
)
def test_sync_from_is_refused(target: int, changes: dict[str, Any], code: int) -> None:
    rows = members_of(3)
    node = far_from_the_primary(config=named(rows[0], rows[1], replace(rows[2], **changes)))
    assert asked(node, SyncFromRequest(host(target))).code == code
    assert node.sync_source == host(1)


# --- positions that are passed on ------------------------------------------------------------------------------------


def report(number: int, position: OpTime, *, by: int | None = None, term: int = 2, incarnation: str = "") -> Any:
    """The position of member `number`, sent by itself or by member `by`."""
    row = MemberProgress(MemberId(number), incarnation or f"i{number}", place(position))
    return FetchProgress(ProgressRequest(MemberId(number if by is None else by), term, 1, 1, (row,)))


def relayed(node: SingleNode) -> dict[int, OpTime]:
    request = node.progress_request()
    return {int(row.member_id): row.position.last_durable for row in request.progress if row.member_id != 0}


def middle() -> SingleNode:
    """Member 0 follows member 1, the primary; member 2 follows member 0."""
    node = far_from_the_primary()
    beat(node, 2, 1, position=place(at(2, 3)), sync_source=host(0))
    return node


def test_a_member_that_syncs_from_this_one_is_no_source_for_it() -> None:
    """Two that wait for each other get no entries."""
    answer = asked(middle(), SyncFromRequest(host(2)))
    assert (answer.code, answer.reason) == (72, f"cannot sync from {host(2)}: it syncs from this member")


def test_a_member_passes_on_the_position_of_who_follows_it() -> None:
    node = middle()
    assert relayed(node) == {}
    assert only(node.receive(report(2, at(2, 4)), NOW), RelayProgress) == [RelayProgress()]
    assert relayed(node) == {2: at(2, 4)}
    assert not only(node.receive(report(2, at(2, 4)), NOW), RelayProgress)  # nothing new


def test_what_was_reported_long_ago_or_in_another_term_is_not_passed_on() -> None:
    node = middle()
    node.receive(report(2, at(2, 4)), NOW)
    node.tick(Millis(NOW + 10_001))
    assert relayed(node) == {}
    node.receive(report(2, at(2, 4)), NOW + 10_001)
    assert relayed(node) == {2: at(2, 4)}
    request = HeartbeatRequest("rs0", host(1), MemberId(1), 3, 1, 1, MemberId(1), "i1")
    asked(node, request, NOW + 10_002)
    assert relayed(node) == {}


def leading_term_two() -> SingleNode:
    """Member 0 leads; its own newest entry is not on its disk yet, so it takes both others to commit it."""
    node = lead(single_node(config=CONFIG))
    for number in (1, 2):
        node.receive_heartbeat(number, config_term=2, position=place(at(1)))
    return node


def test_a_primary_commits_by_positions_that_were_passed_on() -> None:
    node = leading_term_two()
    own = node.position.last_applied
    node.receive(report(1, own), NOW)
    assert only(node.receive(report(2, own, by=1), NOW), CommitPointAdvanced) == [CommitPointAdvanced(own)]


def test_a_position_of_another_incarnation_is_not_taken_from_who_passes_it_on() -> None:
    """The member has lost its disk meanwhile; an old report must neither count nor bring the incarnation back."""
    node = leading_term_two()
    own = node.position.last_applied
    node.receive(report(1, own), NOW)
    beat(node, 2, 1, times=1, config_term=2, position=place(OPTIME_NULL), incarnation="fresh")
    assert not only(node.receive(report(2, own, by=1), NOW), CommitPointAdvanced)
    assert node.peer_at(host(2)).incarnation == "fresh"


def test_who_passes_a_position_on_does_not_vouch_for_contact() -> None:
    node = leading_term_two()
    later = Millis(NOW + 4_000)
    node.receive(report(2, at(1), by=1), later)
    assert node.peer_at(host(2)).last_contact < later


# --- maintenance mode ------------------------------------------------------------------------------------------------


def test_maintenance_mode_nests_and_lasts_through_batches() -> None:
    node = far_from_the_primary()
    for _ in range(2):
        assert asked(node, MaintenanceRequest(True)) == Done()
        assert node.state is MemberState.RECOVERING
    node.receive(SourceBatch(host(1), 2, OPTIME_NULL, True), NOW)
    assert asked(node, MaintenanceRequest(False)) == Done()
    assert (node.state, node.maintenance) == (MemberState.RECOVERING, 1)
    assert asked(node, MaintenanceRequest(False)) == Done()
    assert (node.state, node.maintenance) == (MemberState.SECONDARY, 0)
    assert node.sync_source == host(1)
    assert asked(node, MaintenanceRequest(False)).code == 96


def test_stop_and_start_are_in_order() -> None:
    node = far_from_the_primary()
    effects = beat(node, 2, 1, position=place(NEWER))
    order = [effect for effect in effects if isinstance(effect, StopFetching | StartFetching)]
    assert order == [StopFetching(), StartFetching(host(2))]
