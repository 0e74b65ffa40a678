"""Who keeps out of the way when entries are damaged or hash chains differ: the one that is outvoted, never the set."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from replset.core.effects import AcceptWrites, CompareChains, RecordElectionEvent, StartFetching, StartRollback
from replset.core.member_state import MemberState
from replset.core.messages import (
    ChainMismatch,
    ChainsCompared,
    DamageFound,
    HeartbeatRequest,
    RollbackEnded,
    SourceFailed,
    SourceProblem,
)
from replset.features.administration.remarks import find_remarks
from replset.ids import OPTIME_NULL, MemberId, Millis
from tests.simulation.core_kit.machine import host, members_of
from tests.unit.core.single_node import NOW, SingleNode, asked, at, lead, named, only, place, single_node

MINE = at(2, 5)
DAMAGE = DamageFound("replset.db: the oplog entry is not the one that was written")


def member(count: int = 3, arbiters: int = 0, **others: Any) -> SingleNode:
    """Member 0, at MINE, follows member 1; all the others are up unless `others` says so."""
    node = single_node(config=named(*members_of(count, arbiters=arbiters)), position=place(MINE))
    for number in range(1, count):
        state = MemberState.PRIMARY if number == 1 else MemberState.SECONDARY
        node.receive_heartbeat(number, state=MemberState.ARBITER if number >= count - arbiters else state, **others)
    return node


def leader(count: int) -> SingleNode:
    return lead(single_node(config=named(*members_of(count))))


def differs(node: SingleNode, now: int = NOW) -> list[Any]:
    problem = SourceFailed(host(1), SourceProblem.CHAIN_DIFFERS, "", 0, OPTIME_NULL, OPTIME_NULL)
    return node.receive(problem, Millis(now))


def compared(node: SingleNode, same: int, other: int, silent: int) -> list[Any]:
    return node.receive(ChainsCompared(MINE, same, other, silent, "they say"), NOW)


def test_a_member_whose_chain_differs_asks_all_data_bearing_members() -> None:
    node = member(4, arbiters=1)
    assert only(differs(node), CompareChains) == [CompareChains(MINE, (host(1), host(2)))]
    assert node.quarantine == ""


def test_it_asks_once_at_a_time_and_not_again_and_again() -> None:
    node = member()
    assert only(differs(node), CompareChains)
    assert not only(node.receive(ChainMismatch(MINE), NOW), CompareChains)
    compared(node, 1, 1, 1)
    assert not only(node.receive(ChainMismatch(MINE), NOW), CompareChains)
    assert only(node.receive(ChainMismatch(MINE), Millis(NOW + 20_000)), CompareChains)


@pytest.mark.parametrize(
    ("same", "other", "silent", "leaves"),
    [
        pytest.param(1, 2, 0, True, id="outvoted"),
        pytest.param(2, 1, 0, False, id="the-source-is-outvoted"),
        pytest.param(1, 1, 1, False, id="one-cannot-say"),
        pytest.param(1, 1, 0, True, id="nobody-can-say-who-is-right"),
    ],
)
def test_what_a_secondary_makes_of_the_answers(same: int, other: int, silent: int, leaves: bool) -> None:
    node = member(3 if same + other + silent == 3 else 2)
    differs(node)
    compared(node, same, other, silent)
    assert (node.state is MemberState.RECOVERING) is leaves
    assert bool(node.quarantine) is leaves


@pytest.mark.parametrize(
    ("same", "other", "silent", "leaves"), [(1, 2, 0, True), (2, 1, 0, False), (1, 1, 1, False), (1, 1, 0, False)]
)
def test_a_primary_leaves_only_when_it_is_outvoted(same: int, other: int, silent: int, leaves: bool) -> None:
    node = leader(3 if same + other + silent == 3 else 2)
    assert only(node.receive(ChainMismatch(node.position.last_applied), NOW), CompareChains)
    effects = compared(node, same, other, silent)
    assert (node.state is MemberState.RECOVERING) is leaves
    assert (AcceptWrites(False, node.term) in effects) is leaves


def test_outvoted_by_members_that_cannot_lead_it_serves_on_and_says_so() -> None:
    """As the only data member beside two witnesses: without it the set would have nobody."""
    rows = members_of(3)
    witnesses = [replace(row, witness=True, priority=0.0) for row in rows[1:]]
    node = lead(single_node(config=named(rows[0], *witnesses)))
    assert only(node.receive(ChainMismatch(node.position.last_applied), NOW), CompareChains)
    compared(node, 1, 2, 0)
    node.tick(Millis(NOW + 1))
    assert (node.state, node.quarantine) == (MemberState.PRIMARY, "")
    assert node.next_tick_at() > NOW + 1, "it looks again later, and not all the time"
    assert any("outvoted by members that cannot lead" in remark.why for remark in find_remarks(node.known, NOW))


def rolls_back(node: SingleNode, now: int) -> None:
    """The source has a newer term and not my newest entry."""
    node.tick(Millis(now))
    diverged = SourceFailed(host(1), SourceProblem.DIVERGED, "", node.term, at(3, 9), at(1))
    assert only(node.receive(diverged, Millis(now)), StartRollback)


COMMON = at(2, 3)
DIFFERS_THERE = RollbackEnded(host(1), False, True, False, "another chain", COMMON)


@pytest.mark.parametrize(("same", "other", "leaves"), [(1, 2, True), (2, 1, False)])
def test_a_rollback_that_finds_another_chain_asks_before_anybody_leaves(same: int, other: int, leaves: bool) -> None:
    node = member(term=3)
    rolls_back(node, NOW)
    assert only(node.receive(DIFFERS_THERE, NOW), CompareChains) == [CompareChains(COMMON, (host(1), host(2)))]
    assert node.quarantine == ""
    assert node.state is MemberState.SECONDARY
    node.receive(ChainsCompared(COMMON, same, other, 0, "they say"), NOW)
    assert bool(node.quarantine) is leaves


def test_an_answer_in_the_middle_of_the_next_rollback_is_asked_for_again() -> None:
    node = member(term=3)
    rolls_back(node, NOW)
    node.receive(DIFFERS_THERE, NOW)
    rolls_back(node, NOW + 1_000)
    node.receive(ChainsCompared(COMMON, 1, 2, 0, "they say"), Millis(NOW + 1_000))
    assert only(node.receive(DIFFERS_THERE, Millis(NOW + 1_000)), CompareChains)


def test_a_source_that_is_outvoted_is_not_left_for_good() -> None:
    node = member()
    differs(node)
    compared(node, 2, 1, 0)
    assert only(node.tick(Millis(NOW + 2_000)), StartFetching) == [StartFetching(host(1))]


def test_a_damaged_secondary_stays_in_recovering_and_reports_it() -> None:
    node = member()
    effects = node.receive(DAMAGE, NOW)
    assert node.state is MemberState.RECOVERING
    assert "damage found" in [line.record.event for line in only(effects, RecordElectionEvent)]
    told = asked(node, HeartbeatRequest("rs0", host(1), MemberId(1), 2, 1, 1, None, "i1"))
    assert getattr(told, "quarantine", None) == DAMAGE.detail


def test_a_damaged_primary_hands_over_to_those_who_can_go_on() -> None:
    node = leader(3)
    effects = node.receive(DAMAGE, NOW)
    assert AcceptWrites(False, node.term) in effects
    assert node.state is MemberState.RECOVERING
    assert not node.writable


def test_a_damaged_member_that_the_others_need_goes_on_and_reports_it() -> None:
    node = leader(2)
    node.receive(DAMAGE, NOW)
    assert node.state is MemberState.PRIMARY
    assert node.writable
    assert [line.message for line in node.status(NOW).members if line.is_self] == [DAMAGE.detail]


def test_a_damaged_member_leaves_once_the_others_are_back() -> None:
    node = member(quarantine="they are damaged too")
    node.receive(DAMAGE, NOW)
    assert node.state is MemberState.SECONDARY
    node.tick(Millis(NOW + 2_000))
    for number in (1, 2):
        node.receive_heartbeat(number, state=MemberState.SECONDARY, now=NOW + 2_000)
    assert node.state is MemberState.RECOVERING
