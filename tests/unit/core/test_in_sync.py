"""Who lacks what since when, who is in sync, whom a write waits for, and when the wait is in vain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from replset.config import ReplSetConfig, Settings
from replset.core.ages import MOST_SPANS, PRECISION, SPAN_MS, OptimeAges
from replset.core.effects import Effect, ProgressChanged, RecordElectionEvent
from replset.core.member_state import MemberState
from replset.core.messages import FetchProgress, LocalPosition, MemberProgress, ProgressRequest, Request
from replset.core.quorum import IN_SYNC, MAJORITY, WriteConcern
from replset.core.reconfig_rules import min_in_sync_refusal, reconfig_refusal
from replset.ids import MemberId, Millis, OpTime
from tests.simulation.core_kit.machine import host, members_of
from tests.unit.core.single_node import (
    NOW,
    SingleNode,
    at,
    lead,
    leading_three,
    named,
    only,
    place,
    ready,
    shaped,
    single_node,
)

NEXT = at(2, 2)


# --- lag -------------------------------------------------------------------------------------------------------------


def test_a_member_is_behind_since_it_lacks_an_entry_not_since_the_entry_before() -> None:
    history = OptimeAges()
    history.restart(at(1, 1), Millis(0))
    assert history.lag_ms(at(1, 1), Millis(60_000)) == 0
    for number in range(2, 12):  # entries of one span count from its beginning
        history.note(at(1, number), Millis(60_000 + number))
    assert [history.lag_ms(at(1, number), Millis(60_250)) for number in (1, 5, 11)] == [248, 248, 0]
    assert history.lag_ms(at(0, 9), Millis(60_250)) == 60_250


def test_a_long_history_forgets_details_and_never_says_too_little() -> None:
    history = OptimeAges()
    history.restart(at(1, 0), Millis(0))
    count = MOST_SPANS * 4
    for number in range(1, count):
        history.note(at(1, number), Millis(number * SPAN_MS))
    for number in range(0, count - 1, 37):
        now = Millis(count * SPAN_MS)
        lag_ms = now - (number + 1) * SPAN_MS
        assert lag_ms <= history.lag_ms(at(1, number), now) <= lag_ms + 2 * lag_ms // PRECISION + SPAN_MS
    assert len(history._spans) < MOST_SPANS
    assert history.lag_ms(at(1, count - 1), Millis(count * SPAN_MS)) == 0


def test_a_history_that_is_kept_over_a_restart_says_the_same_by_another_clock() -> None:
    history, now = OptimeAges(), Millis(MOST_SPANS * SPAN_MS)
    for number in range(1, MOST_SPANS - 1):
        history.note(at(1, number), Millis(number * SPAN_MS))
        history.note(at(2, number), Millis(number * SPAN_MS + SPAN_MS // 2))
    kept, again, later = history.spans(now), OptimeAges(), Millis(now + 5)
    assert len(kept) < MOST_SPANS // 4
    again.load(kept, later)
    for number in range(0, MOST_SPANS, 7):
        optime = at(1, number)
        assert again.lag_ms(optime, later) == history.lag_ms(optime, now)
        assert again.age_ms(optime, later) == history.age_ms(optime, now)
    assert again.spans(later) == kept


def test_spans_are_joined_once_they_are_old_beside_what_lies_between_them() -> None:
    history = OptimeAges()
    for number, noted_at in enumerate((4_900, 5_000, 9_950), 1):
        history.note(at(1, number), Millis(noted_at))
    assert history.spans(Millis(10_000)) == [(5_100, 5_100, at(1, 1)), (5_000, 5_000, at(1, 2)), (50, 50, at(1, 3))]
    assert history.spans(Millis(10_050)) == [(5_150, 5_050, at(1, 2)), (100, 100, at(1, 3))]


def test_an_entry_that_is_noted_again_is_as_old_as_before() -> None:
    """Each heartbeat notes the newest entry. A delayed member would wait for an idle set's newest one for ever."""
    history = OptimeAges()
    history.note(at(1, 1), Millis(0))
    for now in range(SPAN_MS, 5 * SPAN_MS, SPAN_MS // 4):
        history.note(at(1, 2), Millis(now))
    assert history.age_ms(at(1, 2), Millis(5 * SPAN_MS)) == (4 * SPAN_MS, 4 * SPAN_MS)
    assert history.older_than(4 * SPAN_MS, Millis(5 * SPAN_MS)) == at(1, 2)


# --- in sync ---------------------------------------------------------------------------------------------------------


def in_sync(node: SingleNode) -> set[int]:
    return {int(member) for member in node._state.in_sync}


def write(node: SingleNode, optime: OpTime, now: int) -> None:
    node.receive(LocalPosition(place(optime)), Millis(now))


def hears(node: SingleNode, number: int, optime: OpTime, now: int, **told: object) -> list[Effect]:
    """Member `number` answers a heartbeat at `now` and is at `optime`."""
    effects = node.tick(Millis(now))
    return [*effects, *node.receive_heartbeat(number, now, config_term=2, position=place(optime), **told)]


def test_who_lacks_entries_for_too_long_leaves_and_comes_back_when_it_has_caught_up() -> None:
    node = leading_three()
    assert in_sync(node) == {0, 1, 2}
    write(node, NEXT, NOW + 1_000)
    hears(node, 1, NEXT, NOW + 2_000)
    hears(node, 2, at(2), NOW + 2_000)
    assert in_sync(node) == {0, 1, 2}
    assert not node.is_satisfied(WriteConcern(IN_SYNC), NEXT)
    effects = []
    for later in range(4_000, 12_000, 2_000):
        effects += hears(node, 1, NEXT, NOW + later)
        effects += hears(node, 2, at(2), NOW + later)
    leaving = node.tick(Millis(NOW + 12_000))
    effects += leaving
    assert in_sync(node) == {0, 1}
    assert only(leaving, ProgressChanged), "who waits for those in sync is answered"
    lines = [effect.record for effect in only(effects, RecordElectionEvent)]
    assert [line.event for line in lines] == ["in sync"]
    assert "11.0 s behind" in lines[0].detail
    assert node.is_satisfied(WriteConcern(IN_SYNC), NEXT)
    hears(node, 2, NEXT, NOW + 14_000)
    assert in_sync(node) == {0, 1, 2}


@pytest.mark.parametrize("is_primary", [True, False])
def test_each_report_of_a_position_wakes_who_waits_on_the_primary(is_primary: bool) -> None:
    """Also one that moves no commit point: a write may wait for this very member."""
    node = leading_three() if is_primary else ready()
    here = MemberProgress(MemberId(2), "i2", place(at(2)))
    progress = ProgressRequest(MemberId(2), node.term, 1, node.term, (here,), None)
    reports: list[Callable[[], list[Effect]]] = [
        lambda: hears(node, 2, at(2), NOW + 2_000),
        lambda: node.receive(Request(9, progress), NOW),
        lambda: node.receive(FetchProgress(progress), NOW),
        lambda: node.receive(LocalPosition(place(at(2))), NOW),
    ]
    assert [bool(only(report(), ProgressChanged)) for report in reports] == [is_primary] * 4


def test_a_pause_puts_nobody_out_of_sync() -> None:
    node = leading_three()
    for later in range(2_000, 60_000, 2_000):
        for number in (1, 2):
            hears(node, number, at(2), NOW + later)
    write(node, NEXT, NOW + 60_000)
    node.tick(Millis(NOW + 60_001))
    assert in_sync(node) == {0, 1, 2}


@pytest.mark.parametrize("state", [MemberState.ROLLBACK, MemberState.RECOVERING, MemberState.STARTUP2])
def test_a_member_that_serves_nobody_is_not_in_sync(state: MemberState) -> None:
    node = leading_three()
    hears(node, 2, at(2), NOW + 2_000, state=state)
    assert in_sync(node) == {0, 1}


def test_in_sync_alone_acknowledges_nothing_that_a_majority_lacks() -> None:
    node = leading_three()
    node._state.in_sync = frozenset({node.self_id})
    write(node, NEXT, NOW)
    assert not node.is_satisfied(WriteConcern(IN_SYNC), NEXT)


def test_too_few_in_sync_refuse_writes_that_wait_for_others() -> None:
    node = lead(single_node(config=named(*members_of(3), settings=Settings(min_in_sync=3))))
    assert node.in_sync_refusal() is None
    hears(node, 2, at(2), NOW + 2_000, state=MemberState.RECOVERING)
    refusal = node.in_sync_refusal()
    assert refusal is not None
    assert "asks for 3 members in sync, and 2 are" in refusal
    assert f"{host(2)} (RECOVERING)" in refusal


def test_delayed_members_and_such_without_a_vote_are_never_in_sync() -> None:
    rows = members_of(4)
    config = named(
        rows[0],
        rows[1],
        replace(rows[2], secondary_delay_secs=60, priority=0.0),
        replace(rows[3], votes=0, priority=0.0),
    )
    assert in_sync(lead(single_node(config=config))) == {0, 1}


# --- whom a write waits for ------------------------------------------------------------------------------------------


def silent(node: SingleNode, number: int, now: int) -> None:
    """Member `number` has not answered its heartbeat for so long that it counts as DOWN."""
    peer = node._state.peers[host(number)]
    peer.state, peer.last_contact, peer.last_reply_wall_ms = MemberState.DOWN, Millis(now - 12_000), 1
    node._state.now = Millis(now)


def test_the_members_that_lack_the_entry_are_named_with_the_reason() -> None:
    node = leading_three()
    write(node, NEXT, NOW + 1_000)
    hears(node, 1, at(2), NOW + 2_500)
    silent(node, 2, NOW + 2_500)
    for w in (3, MAJORITY, IN_SYNC):
        waited = {row.host: row.why for row in node.members_waited_for(WriteConcern(w), NEXT)}
        assert waited == {host(1): "1.5 s behind", host(2): "not reachable for 12 s"}


@pytest.mark.parametrize(("w", "vain"), [(1, False), (2, False), (MAJORITY, False), (3, True)])
def test_a_wait_is_in_vain_when_too_few_can_be_reached(w: int | str, vain: bool) -> None:
    node = leading_three()
    silent(node, 2, NOW)
    refused = node.in_vain(WriteConcern(w))
    assert (refused is not None) is vain
    if refused is not None:
        assert refused.code == 100
        assert refused.reason == f"the write needs w: 3; it waits for {host(2)} (not reachable for 12 s);" + (
            f" start {host(2)} again"
        )


def test_no_wait_is_in_vain_while_a_member_restarts() -> None:
    node = leading_three()
    silent(node, 2, NOW)
    node._state.peers[host(2)].last_contact = Millis(NOW - 4_000)
    assert node.in_vain(WriteConcern(3)) is None


def test_beside_an_arbiter_the_way_out_is_the_vote_of_the_member_that_is_down() -> None:
    """Map D6: a primary, a secondary, an arbiter, and the secondary is down."""
    rows = members_of(3, arbiters=1)
    node = lead(single_node(config=named(*rows), default_write_concern_set=True))
    silent(node, 1, NOW)
    refused = node.in_vain(WriteConcern(MAJORITY))
    assert f"needs 2 of 2 voting members with data; it waits for {host(1)} (not reachable" in refused.reason
    assert f"replset reconfig --demote {host(1)}" in refused.reason


def test_the_majority_is_as_far_behind_as_its_slowest_member_that_is_up() -> None:
    node = leading_three()
    write(node, NEXT, NOW + 1_000)
    for number in (1, 2):
        hears(node, number, at(2), NOW + 5_000)
    assert node.majority_lag() == (4_000, (host(1), host(2)))
    silent(node, 2, NOW + 5_000)
    assert node.majority_lag() == (4_000, (host(1),))
    silent(node, 1, NOW + 5_000)
    assert node.majority_lag() == (0, ())


def test_the_member_with_the_id_0_may_be_the_slowest() -> None:
    config = named(*members_of(3))
    rows = tuple(replace(row, id=MemberId((row.id - 1) % 3)) for row in config.members)
    node = ready(config=replace(config, members=rows))
    node._state.state, node._state.ages = MemberState.PRIMARY, OptimeAges()
    node._state.ages.restart(at(1), Millis(0))
    node._state.ages.note(NEXT, Millis(NOW - 4_000))
    node._state.position = place(NEXT)
    assert node.majority_lag() == (4_000, (host(1), host(2)))


def test_no_writer_is_slowed_for_a_delayed_member() -> None:
    """It is behind on purpose: slower writes would bring it no nearer."""
    rows = members_of(3)
    node = lead(single_node(config=named(*rows[:2], replace(rows[2], secondary_delay_secs=60, priority=0.0))))
    write(node, at(2), NOW)
    write(node, NEXT, NOW + 1_000)
    for number in (1, 2):
        hears(node, number, at(2), NOW + 5_000)
    assert node.majority_lag() == (4_000, (host(1),))
    silent(node, 1, NOW + 5_000)
    assert node.state is MemberState.PRIMARY
    assert node.majority_lag() == (0, ())


@pytest.mark.parametrize(
    ("shape", "least", "refused"),
    [("PSS", 3, None), ("PSS", 4, "at most 3"), ("PSA", 2, None), ("PSA", 3, "at most 2"), ("PSSN", 4, "at most 3")],
)
def test_no_user_asks_for_more_in_sync_than_there_can_be(shape: str, least: int, refused: str | None) -> None:
    config = shaped(shape)
    asked = replace(config, version=2, settings=Settings(min_in_sync=least))
    for refusal in (
        min_in_sync_refusal(asked),
        reconfig_refusal(config, asked, host(0), force=False, default_set=True),
    ):
        assert (refusal is None) is (refused is None)
        assert refusal is None or (refusal.code, str(refused) in refusal.reason) == (2, True)
    assert ReplSetConfig.parse(asked.document(internal=True)), "whatever a primary exchanges, members can read it"
