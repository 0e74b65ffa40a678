"""settings.failover "manual": no member stands by itself, an operator's step-up works, all else stays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from replset.config import Settings
from replset.config.settings import parse_settings
from replset.core.member_state import MemberState
from replset.core.messages import Done, Refused, StepUpRequest
from replset.errors import BadValueError, TypeMismatchError
from replset.features.administration.remarks import find_remarks
from replset.ids import Millis
from tests.simulation.core_kit.cluster import FAST, CoreCluster
from tests.simulation.core_kit.machine import CoreMachine, host, members_of
from tests.unit.core.single_node import CONFIG, NOW, at, named, place, single_node, vote_requests
from tests.unit.core.test_takeovers import AHEAD, BEHIND, follower, until_it_asks

STEP_UP = StepUpRequest(skip_dry_run=False)
TIMEOUTS = 20


def running(count: int, **settings: Any) -> CoreCluster:
    cluster = CoreCluster(count)
    cluster.initiate(*members_of(count), settings=replace(FAST, manual_failover=True, **settings))
    cluster.until(cluster.is_quiet)
    return cluster


def without_leader(count: int = 3, **settings: Any) -> tuple[CoreCluster, CoreMachine, CoreMachine]:
    """A set whose primary has crashed, that primary, and another member."""
    cluster = running(count, **settings)
    leader = cluster.elect()
    leader.crash()
    other = next(machine for machine in cluster.machines.values() if machine is not leader)
    cluster.run(TIMEOUTS * FAST.election_timeout_ms)
    return cluster, leader, other


# --- the setting -----------------------------------------------------------------------------------------------------


def test_the_configuration_keeps_it() -> None:
    manual = parse_settings({"failover": "manual"})
    assert manual.manual_failover
    assert parse_settings(manual.document()) == manual
    assert manual.document()["failover"] == "manual"
    for document in ({}, {"failover": "automatic"}):
        assert parse_settings(document) == Settings()
    assert "failover" not in Settings().document()


@pytest.mark.parametrize(
    ("value", "error"), [("Manual", BadValueError), ("", BadValueError), (True, TypeMismatchError)]
)
def test_another_value_is_refused(value: object, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"settings\.failover"):
        parse_settings({"failover": value})


# --- what makes a member stand ---------------------------------------------------------------------------------------


def stands_after_a_timeout(settings: Settings) -> bool:
    node = single_node(config=named(*members_of(3), settings=settings))
    node.receive_heartbeat(1, now=NOW + 11_000)
    asked = bool(vote_requests(node.tick(Millis(NOW + 11_600))))
    assert asked or node.next_tick_at() > NOW + 11_600
    return asked


def stands_by_priority(settings: Settings) -> bool:
    return until_it_asks(follower(settings, priority=2.0), 40_000)[1] == "priorityTakeover"


def stands_to_catch_up(settings: Settings) -> bool:
    return until_it_asks(follower(settings, **AHEAD), 60_000, **BEHIND)[1] == "catchupTakeover"


def stands_where_connects_are_refused(settings: Settings) -> bool:
    cluster = CoreCluster(3)
    cluster.initiate(*members_of(3), settings=replace(settings, fast_failover=True))
    cluster.until(cluster.is_quiet)
    leader = cluster.elect()
    leader.crash()
    cluster.run(2_000)
    return cluster.primary not in (None, leader)


def stands_alone_after_a_restart(settings: Settings) -> bool:
    cluster = CoreCluster(1)
    cluster.initiate(*members_of(1), settings=settings)
    cluster[0].crash() if cluster.elect() else None
    cluster[0].boot()
    cluster.run(2 * settings.election_timeout_ms)
    return cluster.primary is not None


@pytest.mark.parametrize(
    "stands",
    [
        stands_after_a_timeout,
        stands_by_priority,
        stands_to_catch_up,
        stands_where_connects_are_refused,
        stands_alone_after_a_restart,
    ],
)
def test_nothing_but_an_operator_makes_a_member_stand(stands: Callable[[Settings], bool]) -> None:
    assert stands(Settings())
    assert not stands(Settings(manual_failover=True))


# --- whole sets ------------------------------------------------------------------------------------------------------


def test_nobody_leads_until_step_up_and_the_old_primary_follows() -> None:
    cluster, old, other = without_leader()
    assert cluster.primary is None
    assert isinstance(cluster.ask_and_wait(cluster.number_of(other), STEP_UP), Done)
    assert cluster.elect() is other
    old.boot()
    cluster.until(cluster.is_quiet)
    assert cluster.primary is other
    assert old.node.state is MemberState.SECONDARY


def test_a_primary_that_was_cut_off_is_fenced() -> None:
    cluster = running(3)
    old = cluster.elect()
    cluster.isolate(cluster.number_of(old))
    cluster.run(TIMEOUTS * FAST.election_timeout_ms)
    assert old.node.state is MemberState.SECONDARY
    other = next(machine for machine in cluster.machines.values() if machine is not old)
    assert isinstance(cluster.ask_and_wait(cluster.number_of(old), STEP_UP), Refused)
    assert isinstance(cluster.ask_and_wait(cluster.number_of(other), STEP_UP), Done)
    cluster.heal()
    cluster.until(cluster.is_quiet)
    assert cluster.primary is other


def test_a_planned_hand_over_works() -> None:
    cluster = running(3)
    old = cluster.elect()
    assert isinstance(cluster.step_down(cluster.number_of(old)), Done)
    cluster.until(lambda: cluster.primary not in (None, old))


@pytest.mark.parametrize("force", [False, True])
def test_automatic_again(force: bool) -> None:
    """By the new primary, or by force while nobody leads."""
    cluster, _old, other = without_leader()
    number = cluster.number_of(other)
    if not force:
        cluster.ask_and_wait(number, STEP_UP)
        cluster.until(lambda: other.node.writable)
    config = replace(cluster.user_config(number), settings=FAST)
    assert isinstance(cluster.reconfig(number, config, force=force), Done)
    assert cluster.elect() is not None
    if not force:
        _old.boot()
        cluster.until(cluster.is_quiet)
        other.crash()
        cluster.until(lambda: cluster.primary not in (None, other))


def test_the_only_voter_waits_and_says_so() -> None:
    cluster = running(1)
    cluster[0].crash()
    cluster[0].boot()
    cluster.run(TIMEOUTS * FAST.election_timeout_ms)
    (remark,) = find_remarks(cluster[0].node.known, cluster.now)
    assert remark.next_step == f"replset step-up {host(0)}"
    assert isinstance(cluster.ask_and_wait(0, STEP_UP), Done)
    assert cluster.elect() is cluster[0]


# --- what status says ------------------------------------------------------------------------------------------------


def test_status_names_the_best_member_and_what_each_lacks() -> None:
    """The dead primary, member 1, told of entry 9; this member has entry 5 and member 2 entry 7."""
    node = single_node(config=replace(CONFIG, settings=Settings(manual_failover=True)), position=place(at(1, 5)))
    node.receive_heartbeat(1, state=MemberState.PRIMARY, position=place(at(1, 9)))
    node.receive_heartbeat(2, position=place(at(1, 7)))
    node._state.peers[host(1)].state = MemberState.DOWN
    node._state.primary_id = None
    remark = find_remarks(node.known, NOW)[0]
    assert remark.next_step == f"replset step-up {host(2)}"
    assert f"the newest known is {at(1, 9)}" in remark.why
    assert f"{host(2)} (lacks entries of less than 1 s: has {at(1, 7)}" in remark.why
    assert 'settings.failover is "manual"' in remark.why
