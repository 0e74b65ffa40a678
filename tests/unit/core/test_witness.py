"""A witness: it votes by its entries, is counted for the commit point, is a source of entries, and never of data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from replset.config import Member, ReplSetConfig, Tolerance
from replset.core.effects import StartFetching, StartInitialSync, StartRollback
from replset.core.member_state import MemberState
from replset.core.messages import (
    Done,
    HeartbeatRequest,
    InitialSyncEnded,
    InitialSyncStarted,
    LocalPosition,
    Position,
    RollbackEnded,
    SourceFailed,
    SourceProblem,
    VoteRequest,
)
from replset.core.quorum import WriteConcern, implicit_default, unsatisfiable
from replset.core.reconfig_rules import reconfig_refusal
from replset.ids import OPTIME_NULL, MemberId, Millis, OpTime
from tests.simulation.core_kit.cluster import change, leader_number, running, the_config
from tests.simulation.core_kit.machine import CoreMachine, host, members_of
from tests.unit.core.single_node import NOW, SingleNode, asked, at, named, only, place, single_node

PSW = named(*members_of(3, witnesses=1))
WITNESS = 2
MINE = at(1, 5)
LATER = Millis(NOW + 1_000)


def witness(**fields: object) -> SingleNode:
    return single_node(WITNESS, **{"config": PSW, "position": place(MINE), "oplog_only": True, **fields})


def grants(node: SingleNode, last_applied: OpTime, config_version: int = 1) -> bool:
    """Whether `node` would vote for member 1, in a dry run."""
    incarnation = None if node.config is None else node.config.members[1].incarnation
    request = VoteRequest(
        "rs0", node.term, MemberId(1), incarnation or "", config_version, 1, last_applied, dry_run=True
    )
    answer = asked(node, request)
    return answer.granted


# --- what it counts for ----------------------------------------------------------------------------------------------


def test_it_counts_for_the_majority_and_not_for_a_number() -> None:
    assert (PSW.write_majority, PSW.tolerance) == (2, Tolerance(majority_writes=1, elections=1))
    assert implicit_default(PSW).w == "majority"
    assert unsatisfiable(PSW, WriteConcern(2)) is None
    assert unsatisfiable(PSW, WriteConcern(3)) is not None


def test_a_write_on_primary_and_witness_is_committed_and_is_not_on_two() -> None:
    cluster = running(3, witnesses=1)
    leader = cluster.elect()
    second = next(machine for machine in cluster.machines.values() if machine is not leader and not is_witness(machine))
    second.crash()
    optime = leader.write("x")
    assert optime is not None
    cluster.until(lambda: leader.node.is_satisfied(WriteConcern("majority"), optime))
    assert not leader.node.is_satisfied(WriteConcern(2), optime)
    second.boot()
    cluster.until(lambda: leader.node.is_satisfied(WriteConcern(2), optime))


def is_witness(machine: CoreMachine) -> bool:
    return machine.node.is_witness


@pytest.mark.parametrize("lost", range(3))
def test_any_one_member_may_go_and_majority_writes_go_on(lost: int) -> None:
    cluster = running(3, witnesses=1)
    cluster[lost].crash(power=True)
    cluster.until(lambda: cluster.primary is not None and cluster.primary is not cluster[lost])
    leader = cluster.elect()
    assert not leader.node.is_witness
    optime = leader.write("after")
    assert optime is not None
    cluster.until(lambda: leader.node.is_satisfied(WriteConcern("majority"), optime))


def test_what_only_the_witness_has_of_a_dead_primary_comes_from_it_before_anybody_leads() -> None:
    """The last majority write was acknowledged by primary and witness alone, and the secondary was away meanwhile."""
    cluster = running(3, witnesses=1)
    leader = cluster.elect()
    second = next(machine for machine in cluster.machines.values() if machine is not leader and not is_witness(machine))
    cluster.isolate(cluster.number_of(second))
    optime = leader.write("x")
    assert optime is not None
    cluster.until(lambda: leader.node.is_satisfied(WriteConcern("majority"), optime))
    leader.crash()
    cluster.heal()
    cluster.until(lambda: cluster.primary is second)
    assert optime in [entry for entry, _ in second.disk.log]


def test_it_votes_by_its_own_entries_as_a_data_member_does() -> None:
    node = witness()
    assert not grants(node, at(1, 4))
    assert grants(node, MINE)


# --- how it looks from outside ---------------------------------------------------------------------------------------


def test_others_see_an_arbiter_and_members_see_a_secondary() -> None:
    node = witness()
    assert node.state is MemberState.ARBITER
    assert node.serves_oplog
    status = node.status(NOW)
    own = status.members[WITNESS]
    assert (status.state, own.state, own.witness) == (MemberState.ARBITER, MemberState.ARBITER, True)
    assert own.position == place(MINE)
    heartbeat = HeartbeatRequest("rs0", host(0), MemberId(0), 1, 1, 1, None, "i0")
    reply = node._heartbeats.reply(heartbeat)
    assert (reply.state, reply.electable, reply.position) == (MemberState.SECONDARY, False, place(MINE))
    other = single_node(config=PSW)
    other.receive_heartbeat(WITNESS, position=place(MINE))
    seen = other.status(NOW)
    assert (seen.members[WITNESS].state, seen.members[WITNESS].witness) == (MemberState.ARBITER, True)
    assert other.member_progress()[WITNESS]["state"] == "ARBITER"


def test_it_never_starts_an_election() -> None:
    node = witness()
    for number in (0, 1):
        node.receive_heartbeat(number)
    node.tick(Millis(NOW + 60_000))
    assert node._elections.election is None
    assert not node._state.is_electable


# --- its beginning ---------------------------------------------------------------------------------------------------


def test_it_begins_with_a_copy_of_the_oplog_alone() -> None:
    node = single_node(WITNESS, config=PSW, position=place(OPTIME_NULL), initial_sync_pending=True)
    assert node.state is MemberState.STARTUP2
    node.receive_heartbeat(0, state=MemberState.PRIMARY, position=place(MINE))
    assert only(node.tick(LATER), StartInitialSync)[0].oplog_only
    assert node._state.advertised_position().last_applied == OPTIME_NULL
    assert not grants(node, MINE)
    node.receive(InitialSyncStarted(f"i{WITNESS}"), NOW)
    node.receive(LocalPosition(place(MINE)), NOW)
    node.receive(InitialSyncEnded(host(0), True, "", oplog_only=True), NOW)
    assert node.state is MemberState.ARBITER
    assert node.sync_source == host(0)


def test_nobody_copies_a_witness() -> None:
    node = single_node(0, config=PSW, position=place(OPTIME_NULL), initial_sync_pending=True)
    node.receive_heartbeat(WITNESS, position=place(at(1, 9)))
    assert not only(node.tick(LATER), StartInitialSync)
    node.receive_heartbeat(1, position=place(MINE), now=LATER)
    assert [sync.source for sync in only(node.tick(Millis(LATER + 1_000)), StartInitialSync)] == [host(1)]


@pytest.mark.parametrize("was_witness", [True, False])
def test_a_member_that_comes_back_as_the_other_kind_syncs_anew(was_witness: bool) -> None:
    """It votes and acknowledges nothing from the very configuration on that makes it the other kind."""
    kinds = named(*members_of(3, witnesses=0 if was_witness else 1), version=2)
    node = single_node(
        WITNESS, config=PSW if was_witness else named(*members_of(3)), position=place(MINE), oplog_only=was_witness
    )
    node.receive_heartbeat(1, position=place(MINE))
    effects = node.receive_heartbeat(
        0, state=MemberState.PRIMARY, position=place(MINE), config=kinds, config_version=2, config_term=1
    )
    assert node.state is MemberState.STARTUP2
    assert node.progress_request() is None
    assert not grants(node, MINE, 2)
    syncs = only(effects, StartInitialSync) or only(
        node.receive_heartbeat(0, state=MemberState.PRIMARY, position=place(MINE), config_version=2), StartInitialSync
    )
    assert [sync.oplog_only for sync in syncs] == [not was_witness]


KINDS = {"data": members_of(3), "witness": PSW.members, "arbiter": members_of(3, arbiters=1)}


@pytest.mark.parametrize("new", KINDS)
@pytest.mark.parametrize("old", KINDS)
def test_a_member_that_was_removed_and_added_learns_only_of_the_second_change(old: str, new: str) -> None:
    fresh = {"position": place(OPTIME_NULL), "initial_sync_pending": True}
    fields: dict[str, Any] = fresh if old == "arbiter" else {"position": place(MINE), "oplog_only": old == "witness"}
    node = single_node(WITNESS, config=named(*KINDS[old]), **fields)
    told: dict[str, Any] = {"state": MemberState.PRIMARY, "position": place(MINE)}
    told |= {"config_version": 2, "config_term": 1}
    node.receive_heartbeat(0, config=named(*KINDS[new], version=2), **told)
    node.receive_heartbeat(0, **told)
    found, follows = node._state.state, node.sync_source is not None
    if new == "arbiter":
        assert (found, follows) == (MemberState.ARBITER, False)
    elif new == old:
        assert (found, follows) == (MemberState.SECONDARY, True)
    else:
        assert (found, follows) == (MemberState.STARTUP2, False)


def test_an_arbiter_that_cannot_be_reached_is_removed_and_added_as_a_witness() -> None:
    cluster = running(3, arbiters=1)
    cluster.default_write_concern_set = True
    leader = cluster[leader_number(cluster)]
    cluster.isolate(WITNESS)
    assert isinstance(change(cluster, *rows_of(leader)[:2]), Done)
    assert isinstance(change(cluster, *rows_of(leader), replace(PSW.members[WITNESS], incarnation=None)), Done)
    cluster.heal()
    cluster.until(cluster.is_quiet)
    assert cluster[WITNESS].disk.oplog_only
    assert not the_config(leader).members[WITNESS].newly_added


def test_an_initial_sync_of_the_wrong_kind_is_followed_by_another_one() -> None:
    """The configuration changed while the copy was fetched."""
    node = single_node(WITNESS, config=PSW, position=place(OPTIME_NULL), initial_sync_pending=True)
    node.receive_heartbeat(0, state=MemberState.PRIMARY, position=place(MINE))
    node.receive(LocalPosition(place(MINE)), NOW)
    effects = node.receive(InitialSyncEnded(host(0), True, "", oplog_only=False), NOW)
    assert node.state is MemberState.STARTUP2
    assert [sync.oplog_only for sync in only(effects, StartInitialSync)] == [True]


# --- as a source -----------------------------------------------------------------------------------------------------


def test_without_a_primary_entries_are_fetched_from_it() -> None:
    node = single_node(config=PSW, position=place(MINE))
    effects = node.receive_heartbeat(WITNESS, position=place(at(1, 9)))
    assert only(effects, StartFetching) == [StartFetching(host(WITNESS))]


def test_a_data_member_rolls_back_towards_it() -> None:
    node = single_node(config=PSW, position=place(MINE))
    node.receive_heartbeat(WITNESS, position=place(at(3, 9)), term=3)
    effects = node.receive(source_failed(newest=at(3, 9), oldest=at(1)), NOW)
    assert only(effects, StartRollback) == [StartRollback(host(WITNESS))]


def source_failed(newest: OpTime, oldest: OpTime) -> SourceFailed:
    return SourceFailed(host(WITNESS), SourceProblem.DIVERGED, "because", newest.term, newest, oldest)


def test_too_stale_for_the_witness_a_member_waits_with_its_data_and_its_vote() -> None:
    node = single_node(config=PSW, position=place(MINE))
    node.receive_heartbeat(WITNESS, position=place(at(1, 9)))
    effects = node.receive(source_failed(newest=at(1, 9), oldest=at(1, 7)), NOW)
    assert not only(effects, StartInitialSync)
    assert (node.state, node.sync_source) == (MemberState.SECONDARY, None)
    effects = node.receive_heartbeat(1, state=MemberState.PRIMARY, position=place(at(1, 9)))
    assert only(effects, StartFetching) == [StartFetching(host(1))]


def test_a_rollback_that_finds_no_common_point_with_the_witness_waits_too() -> None:
    node = single_node(config=PSW, position=place(MINE))
    node.receive_heartbeat(WITNESS, position=place(at(3, 9)), term=3)
    node.receive(source_failed(newest=at(3, 9), oldest=at(1)), NOW)
    effects = node.receive(RollbackEnded(host(WITNESS), False, False, True, "no common point"), NOW)
    assert not only(effects, StartInitialSync)
    assert node.state is MemberState.SECONDARY


# --- its vote ------------------------------------------------------------------------------------------------------


def test_a_new_witness_gets_its_vote_once_it_has_what_the_primary_had() -> None:
    cluster = running(2, extra=1)
    leader = cluster[leader_number(cluster)]
    added = members_of(3, witnesses=1)[WITNESS]
    cluster.copy_ms = 2_000
    assert isinstance(change(cluster, *rows_of(leader), added), Done)
    assert the_config(leader).member(MemberId(WITNESS)).newly_added
    cluster.until(cluster.is_quiet)
    assert cluster[WITNESS].disk.oplog_only
    assert cluster[WITNESS].disk.log == leader.disk.log


def rows_of(machine: CoreMachine) -> tuple[Member, ...]:
    return tuple(replace(row, incarnation=None) for row in the_config(machine).members)


def test_a_witness_with_an_emptied_disk_loses_its_vote_and_gets_it_back() -> None:
    cluster = running(3, witnesses=1)
    cluster[WITNESS].wipe()
    cluster[WITNESS].boot()
    leader = cluster.elect()
    cluster.until(lambda: the_config(leader).members[WITNESS].newly_added)
    cluster.until(cluster.is_quiet)
    assert the_config(leader).members[WITNESS].incarnation == cluster[WITNESS].disk.incarnation


def test_it_rolls_back_what_the_set_does_not_have() -> None:
    """An entry of a primary that was cut off with the witness is on no other member."""
    cluster = running(5, witnesses=1)
    leader = cluster.elect()
    cluster.isolate(cluster.number_of(leader), 4)
    leader.write("lost")
    cluster.until(lambda: cluster[4].disk.log[-1][1] == "lost")
    cluster.until(lambda: cluster.primary is not None and cluster.primary is not leader)
    leader.crash()
    cluster.heal()
    cluster.until(lambda: "lost" in [text for _, text in cluster[4].disk.rollbacks])
    assert cluster[4].disk.oplog_only


# --- configurations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("force", [True, False])
def test_a_member_cannot_change_its_kind_in_one_step(force: bool) -> None:
    other = replace(PSW.members[WITNESS], witness=False)
    refusal = reconfig_refusal(PSW, replace(PSW.with_member(other), version=2), host(0), force=force, default_set=True)
    assert (refusal.code, "witness cannot change" in refusal.reason) == (103, True)


def test_a_configuration_without_the_field_loads_as_ever() -> None:
    document = PSW.document(internal=True)
    assert ReplSetConfig.parse(document) == PSW
    assert [row.get("witness") for row in document["members"]] == [None, None, True]


def test_positions_of_a_witness_count_only_once_the_configuration_names_its_disk() -> None:
    node = single_node(config=PSW, position=place(MINE))
    node.receive_heartbeat(WITNESS, position=place(MINE), incarnation="another")
    assert MemberId(WITNESS) not in node._state.positions()
    node.tick(Millis(NOW + 2_000))
    node.receive_heartbeat(WITNESS, position=place(MINE), now=NOW + 2_000)
    assert node._state.positions()[MemberId(WITNESS)] == place(MINE)
    assert Position(MINE, MINE, 0, 0) in node._state.document_positions()
    assert len(node._state.document_positions()) == 1 + (MemberId(1) in node._state.positions())
