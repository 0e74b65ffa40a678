"""Standing, winning, catching up: one test a rule (map A4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from replset.config import Settings
from replset.core.effects import (
    AcceptWrites,
    AppendNoop,
    Drain,
    ElectionEvent,
    LastVote,
    Persist,
    RecordElectionEvent,
    Send,
    StartFetching,
    StateChanged,
    StopFetching,
)
from replset.core.member_state import MemberState
from replset.core.messages import (
    DiskStalled,
    Done,
    DrainFinished,
    LocalPosition,
    MemberProgress,
    ProgressRequest,
    Request,
    ShutdownStarted,
    SourceFailed,
    SourceProblem,
    StepDownRequest,
    StepUpRequest,
    VoteSaved,
)
from replset.ids import OPTIME_NULL, MemberId, Millis
from tests.simulation.core_kit.cluster import CoreCluster, running
from tests.simulation.core_kit.machine import config_of, host, members_of
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


def until_election_starts(node: SingleNode, limit: int = 30_000) -> tuple[int, list[Any]]:
    """Tick by tick, the others answering heartbeats, until it asks for votes: when, and the effects."""
    for now in range(NOW, NOW + limit, 10):
        effects = node.tick(Millis(now))
        if vote_requests(effects):
            return now - NOW, effects
        for send in only(effects, Send):
            node.receive_heartbeat(int(send.to[1]), now=now)
    raise AssertionError("it does not stand")


# --- standing --------------------------------------------------------------------------------------------------------


def test_the_timer_is_drawn_at_random() -> None:
    """Map E1: election timeout + up to 15 %."""
    drawn = {until_election_starts(ready_with_seed(seed))[0] for seed in range(12)}
    assert min(drawn) >= 10_000
    assert max(drawn) <= 11_510
    assert len(drawn) > 6


def ready_with_seed(seed: int) -> SingleNode:
    node = single_node(config=CONFIG, start=False)
    node._state.rng.seed(seed)
    node.start(NOW)
    for number in (1, 2):
        node.receive_heartbeat(number)
    return node


def test_a_dry_run_first_and_only_then_a_new_term() -> None:
    """Map E3."""
    node = ready()
    _, effects = until_election_starts(node)
    assert [request.dry_run for request in vote_requests(effects)] == [True, True]
    assert node.term == 1
    assert not only(effects, Persist)
    effects = grant(node, 1)
    assert [request.dry_run for request in vote_requests(effects)] == [False, False]
    assert node.term == 2


def test_the_candidates_own_vote_is_durable_before_anybody_is_asked() -> None:
    """Votes are durable before they are sent or counted, the candidate's own included (docs/adr/0007)."""
    node = ready()
    until_election_starts(node)
    effects = grant(node, 1)
    assert only(effects, Persist)[0].record == LastVote(2, MemberId(0))
    assert next(type(one) for one in effects if isinstance(one, Persist | Send | StateChanged)) is Persist


def test_a_majority_of_voters_wins() -> None:
    node = ready()
    until_election_starts(node)
    grant(node, 1)
    assert node.state is MemberState.SECONDARY
    grant(node, 2)
    assert node.state is MemberState.PRIMARY
    assert node.primary == MemberId(0)


def test_a_vote_of_another_incarnation_is_not_counted() -> None:
    """A member votes and is counted only while the configuration names its incarnation (docs/adr/0007)."""
    node = ready()
    until_election_starts(node)
    grant(node, 1, incarnation="another")
    assert node.term == 1
    grant(node, 2)
    assert node.term == 2


def test_a_lost_dry_run_changes_nothing() -> None:
    node = ready()
    until_election_starts(node)
    for number in (1, 2):
        effects = grant(node, number, granted=False, reason="no")
    assert (node.term, node.state) == (1, MemberState.SECONDARY)
    assert "dry run lost" in [journal.record.event for journal in only(effects, RecordElectionEvent)]
    assert any("no" in journal.record.detail for journal in only(effects, RecordElectionEvent))


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"position": place(OPTIME_NULL)}, id="no-data"),
        pytest.param({"incarnation": "another"}, id="not-named"),
        pytest.param({"initial_sync_pending": True}, id="marker-set"),
        pytest.param({"config": named(*(replace(row, priority=0.0) for row in members_of(3)))}, id="priority-0"),
        pytest.param({"config": named(*members_of(4)[1:])}, id="not-in-the-configuration"),
    ],
)
def test_members_that_start_no_election(fields: dict[str, Any]) -> None:
    """Map E2."""
    node = single_node(**{"config": CONFIG, **fields})
    found = []
    for now in range(NOW, NOW + 25_000, 50):
        effects = node.tick(Millis(now))
        found += vote_requests(effects)
        for send in only(effects, Send):
            node.receive_heartbeat(int(send.to[1]), now=now)
    assert found == []
    assert asked(node, StepUpRequest(skip_dry_run=True), NOW + 25_000).code == 125


def test_without_a_majority_in_reach_no_member_starts_an_election() -> None:
    """Map E2."""
    node = single_node(config=CONFIG)
    assert not vote_requests(node.tick(Millis(NOW + 11_600)))
    node.receive_heartbeat(1, now=NOW + 11_600)
    _, effects = NOW, node.tick(Millis(NOW + 23_200))
    assert vote_requests(effects)


@pytest.mark.parametrize("message", [DiskStalled(True), ShutdownStarted()])
def test_a_stalled_disk_or_a_shutdown_starts_no_election(message: Any) -> None:
    """A member whose disk finished no sync for half an election timeout does not stand; nor does one shutting down."""
    node = ready()
    node.receive(message, NOW)
    assert not vote_requests(node.tick(Millis(NOW + 11_600)))


def test_a_stalled_disk_ends_a_primary() -> None:
    node = leading_three()
    effects = node.receive(DiskStalled(True), NOW)
    assert AcceptWrites(False, 2) in effects
    assert node.state is MemberState.SECONDARY


def test_one_member_elects_itself_at_once() -> None:
    """Map E15."""
    node = single_node(config=named(*members_of(1)), start=False)
    effects = node.start(NOW)
    assert node.state is MemberState.PRIMARY
    assert node.term == 2
    leads = next(place for place, effect in enumerate(effects) if getattr(effect, "state", None) is MemberState.PRIMARY)
    assert any(isinstance(effect, Persist) for effect in effects[:leads])
    cluster = CoreCluster(1)
    cluster.initiate(*members_of(1), settings=Settings())
    cluster.until(lambda: cluster.primary, 50)


def test_a_member_alone_leads_once_its_own_vote_is_durable() -> None:
    """Else power that goes in this moment lets it lead twice in one term."""
    node = single_node(config=named(*members_of(1)), start=False)
    node.disk_is_fast = False
    effects = node.start(NOW)
    assert LastVote(2, MemberId(0)) in [persist.record for persist in only(effects, Persist)]
    assert (node.term, node.state) == (2, MemberState.SECONDARY)
    assert not only(node.receive(VoteSaved(1), NOW), AcceptWrites)
    assert node.state is MemberState.SECONDARY
    node.receive(VoteSaved(2), NOW)
    assert node.state is MemberState.PRIMARY


def test_a_campaign_ends_when_the_member_may_not_lead_any_more() -> None:
    """A rollback that begins in the middle of a dry run must not end in a primary."""
    node = single_node(config=CONFIG)
    node.receive_heartbeat(1, state=MemberState.PRIMARY)
    node.receive_heartbeat(2)
    node.receive(Request(3, StepUpRequest(skip_dry_run=False)), NOW)
    node.receive(SourceFailed(host(1), SourceProblem.DIVERGED, "", 1, at(1), at(1)), NOW)
    assert node.state is MemberState.SECONDARY
    node._state.sync_source = host(1)
    node.receive(SourceFailed(host(1), SourceProblem.DIVERGED, "", 2, at(2), at(1)), NOW)
    assert node.state is MemberState.ROLLBACK
    grant(node, 1)
    grant(node, 2)
    assert node.state is MemberState.ROLLBACK


def test_a_new_config_ends_a_campaign() -> None:
    node = ready()
    until_election_starts(node)
    node.receive(Request(8, StepDownRequest(0, 0, force=False)), NOW)
    node.receive(Request(9, replace(FROM_1, config_version=2)), NOW)
    node.tick(Millis(NOW + 1_000))
    node.receive_heartbeat(1, config=replace(CONFIG, version=2), config_version=2)
    assert not vote_requests(grant(node, 1))
    assert node.term == 1


# --- becoming primary ------------------------------------------------------------------------------------------------


def elected(**heard: Any) -> SingleNode:
    """Member 0 has just won term 2; the others' newest answers say `heard`."""
    node = single_node(config=CONFIG)
    for number in (1, 2):
        node.receive_heartbeat(number, **heard)
    node.receive(Request(3, StepUpRequest(skip_dry_run=True)), NOW)
    grant(node, 1)
    assert node.state is MemberState.PRIMARY
    return node


def test_winning_asks_everybody_and_drains_before_writes() -> None:
    """Map E7: primary at once, writable only after catch-up, drain and the first entry of the term."""
    node = elected()
    assert not node.writable
    assert not only(node.receive_heartbeat(1), Drain)
    assert only(node.receive_heartbeat(2), Drain) == [Drain(2)]
    assert not node.receive(DrainFinished(1), NOW), "of another term"
    assert not node.writable
    effects = node.receive(DrainFinished(2), NOW)
    assert node.writable
    kinds = [effect for effect in effects if isinstance(effect, AppendNoop | AcceptWrites)]
    assert kinds == [AppendNoop(2, "new primary"), AcceptWrites(True, 2)]


def test_catch_up_fetches_what_another_member_has() -> None:
    """Map E8: the newest known optime of a fresh heartbeat round is the target."""
    node = elected()
    node.receive_heartbeat(1)
    effects = node.receive_heartbeat(2, position=place(at(1, 9)))
    assert only(effects, StartFetching) == [StartFetching(host(2))]
    assert not only(effects, Drain)
    assert node.status(NOW).elections.candidate.catch_up_target == at(1, 9)
    effects = node.receive(LocalPosition(place(at(1, 9))), NOW)
    assert only(effects, Drain) == [Drain(2)]


def test_catch_up_goes_on_from_another_member_that_is_ahead() -> None:
    """Its entries would be rolled back, and the set would take no writes until the time for catch-up is over."""
    node = elected()
    node.receive_heartbeat(1)
    node.receive_heartbeat(2, position=place(at(1, 9)))
    later = Millis(NOW + 2_000)
    node.tick(later)
    effects = node.receive_heartbeat(1, position=place(at(1, 12)), now=later)
    assert not only(effects, StartFetching), "the source is still ahead"
    effects = node.receive(LocalPosition(place(at(1, 9))), later)
    assert (only(effects, StopFetching), only(effects, StartFetching)) == ([StopFetching()], [StartFetching(host(1))])
    assert node.sync_source == host(1)
    assert not only(effects, Drain)
    assert node.status(NOW).elections.candidate.catch_up_target == at(1, 12)
    assert only(node.receive(LocalPosition(place(at(1, 12))), later), Drain) == [Drain(2)]


def test_catch_up_ends_when_the_source_fails() -> None:
    node = elected()
    node.receive_heartbeat(1)
    node.receive_heartbeat(2, position=place(at(1, 9)))
    effects = node.receive(SourceFailed(host(2), SourceProblem.DIVERGED, "", 1, at(1, 9), at(1)), NOW)
    assert only(effects, Drain) == [Drain(2)]


def test_catch_up_ends_at_its_timeout() -> None:
    """Map E8: catchUpTimeoutMillis."""
    settings = Settings(catch_up_timeout_ms=500)
    node = single_node(config=named(*members_of(3), settings=settings))
    node.receive_heartbeat(1)
    node.receive_heartbeat(2)
    node.receive(Request(3, StepUpRequest(skip_dry_run=True)), NOW)
    grant(node, 1)
    node.receive_heartbeat(1)
    node.receive_heartbeat(2, position=place(at(1, 9)))
    assert node.next_tick_at() == NOW + 500
    assert only(node.tick(Millis(NOW + 500)), Drain) == [Drain(2)]


def test_catch_up_ignores_old_heartbeats() -> None:
    """Map E8: what was heard before the election is no reason to wait, nor to drain."""
    node = elected(position=place(at(1, 9)))
    assert node.sync_source is None
    node.receive_heartbeat(1)
    assert only(node.receive_heartbeat(2), Drain) == [Drain(2)]


def test_the_commit_point_does_not_move_before_the_first_entry_of_the_term() -> None:
    """Map E7, K1: the commit point moves only once it reaches the current term."""
    node = lead(single_node(config=CONFIG))
    for number in (1, 2):
        node.receive_heartbeat(number, position=place(at(1)), config_term=2)
    node.receive(LocalPosition(place(at(2))), NOW)
    assert node.commit_point == OPTIME_NULL
    node.tick(Millis(NOW + 2_000))
    node.receive_heartbeat(1, position=place(at(2)), config_term=2, now=NOW + 2_000)
    assert node.commit_point == at(2)


def test_an_idle_primary_writes_a_no_op_each_ten_seconds() -> None:
    """Map O4."""
    node = leading_three()
    found = []
    for step in range(1, 60):
        now = Millis(NOW + step * 500)
        effects = node.tick(now)
        for send in only(effects, Send):
            node.receive_heartbeat(int(send.to[1]), position=place(at(2)), config_term=2, now=now)
        if AppendNoop(2, "periodic noop") in effects:
            found.append(now - NOW)
    assert found == [10_000, 20_000]


# --- priorities ------------------------------------------------------------------------------------------------------


def test_a_member_of_higher_priority_takes_over() -> None:
    """Map E9."""
    cluster = CoreCluster(3)
    rows = [replace(row, priority=float(1 + 4 * (row.id == 2))) for row in members_of(3)]
    cluster.initiate(*rows)
    cluster.until(lambda: cluster.primary is cluster[2], 20_000)
    cluster.until(cluster.is_quiet)
    assert any("priorityTakeover" in line for line in cluster[2].journal)


def test_an_unelectable_member_that_is_ahead_is_synced_from() -> None:
    """Nobody else can win against its votes, and it cannot stand: without this nobody could ever lead."""
    cluster = CoreCluster(3)
    rows = members_of(3)
    cluster.initiate(rows[0], rows[1], replace(rows[2], priority=0.0))
    cluster.until(cluster.is_quiet)
    leader = cluster.elect()
    behind = cluster[1] if leader is cluster[0] else cluster[0]
    cluster.cut = {(behind.host, leader.host), (leader.host, behind.host)}
    for number in range(5):
        leader.write(f"w{number}")
        cluster.run(20)
    assert cluster[2].disk.log == leader.disk.log
    assert behind.disk.log != leader.disk.log
    leader.crash()
    cluster.cut = set()
    cluster.until(lambda: cluster.primary is behind)
    assert [entry[1] for entry in behind.disk.log[-6:-1]] == [f"w{number}" for number in range(5)]


# --- whole sets ------------------------------------------------------------------------------------------------------


def test_a_dead_primary_is_replaced_within_the_timeouts() -> None:
    cluster = running(3)
    old = cluster.elect()
    old.crash()
    began = cluster.now
    cluster.until(lambda: cluster.primary)
    assert cluster.now - began < 2 * 1_150 + 500


@pytest.mark.in_turns
def test_a_leader_does_not_flap() -> None:
    """Nobody's timer fires while the primary answers."""
    cluster = running(5)
    leader = cluster.elect()
    for number in range(200):
        leader.write(f"w{number}")
        cluster.run(100)
    assert cluster.elect() is leader
    assert leader.node.term == 2


def test_a_cut_off_primary_steps_down_and_rolls_back() -> None:
    cluster = running(3)
    old = cluster.elect()
    cluster.isolate(cluster.number_of(old))
    doomed = old.write("doomed")
    cluster.until(lambda: old.node.state is MemberState.SECONDARY, 3_000)
    cluster.until(lambda: cluster.primary, 5_000)
    cluster.elect().write("kept")
    cluster.heal()
    cluster.until(cluster.is_quiet)
    assert [entry[0] for entry in old.disk.rollbacks] == [doomed]
    assert MemberState.ROLLBACK in old.states


def test_the_initiator_alone_holds_data_until_the_others_have_copied() -> None:
    """The others copy the data of any data-bearing member that is not in ROLLBACK, and vote then."""
    cluster = CoreCluster(3)
    cluster.copy_ms = 4_000
    cluster.initiate(*members_of(3))
    cluster.run(3_000)
    assert [machine.node.state for machine in cluster.machines.values()] == [
        MemberState.SECONDARY,
        MemberState.STARTUP2,
        MemberState.STARTUP2,
    ]
    assert not cluster.checkers.votes
    cluster.until(cluster.is_quiet)
    assert config_of(*members_of(3)).majority_vote_count == 2


def test_a_progress_report_lets_a_stepdown_go_on_at_once() -> None:
    node = leading_three()
    node.receive(LocalPosition(place(at(2, 2))), NOW)
    node.receive(Request(5, StepDownRequest(60_000, 5_000, False)), NOW)
    assert node.state is MemberState.PRIMARY
    row = MemberProgress(MemberId(1), "i1", place(at(2, 2)))
    effects = node.receive(Request(6, ProgressRequest(MemberId(1), 2, 1, 2, (row,))), NOW)
    assert node.state is MemberState.SECONDARY
    assert Done() in [getattr(effect, "body", None) for effect in effects]


def test_the_journal_names_who_was_asked_and_who_granted() -> None:
    node = ready()
    lines = [line.record for line in only(until_election_starts(node)[1], RecordElectionEvent)]
    lines += [line.record for line in only(grant(node, 2), RecordElectionEvent)]
    text = f"electionTimeout: asking {host(1)}, {host(2)}; 2 of 3 votes needed"
    assert [(line.event, line.detail) for line in lines] == [
        ("dry run", text),
        ("election", f"{text}; the dry run was granted by {host(0)}, {host(2)}"),
    ]


def test_the_journal_tells_each_step_from_the_vote_to_the_first_write() -> None:
    cluster = CoreCluster(3)
    cluster.initiate(*members_of(3))
    leader = cluster.elect()
    steps = [line.partition(" ")[2].partition(":")[0] for line in leader.journal]
    won = steps.index(ElectionEvent.WON)
    assert steps[won : won + 3] == [ElectionEvent.WON, ElectionEvent.DRAINING, ElectionEvent.LEADING]
