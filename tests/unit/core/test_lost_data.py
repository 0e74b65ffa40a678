"""A member whose newest entry is before its durability mark: it does not count, and copies everything anew."""

from __future__ import annotations

import pytest

from replset.core.effects import RecordElectionEvent, StartInitialSync
from replset.core.member_state import MemberState
from replset.core.messages import InitialSyncEnded, InitialSyncStarted, VoteRequest
from replset.ids import MemberId, Millis, OpTime
from tests.simulation.core_kit.machine import host, members_of
from tests.unit.core.single_node import NOW, SingleNode, asked, at, named, only, place, single_node

CONFIG = named(*members_of(3))
HAS, MARK = at(2, 5), at(2, 9)


def after_loss(count: int = 3) -> SingleNode:
    return single_node(config=named(*members_of(count)), position=place(HAS), durability_mark=MARK)


def test_the_message_names_what_is_missing_and_what_to_do() -> None:
    node = single_node(config=CONFIG, position=place(HAS), durability_mark=MARK, start=False)
    (line,) = [
        journal.record for journal in only(node.start(NOW), RecordElectionEvent) if journal.record.event == "data lost"
    ]
    for text in (str(HAS), str(MARK), "--accept-data-loss"):
        assert text in line.detail
        assert text in node.quarantine
    assert node.state is MemberState.STARTUP2
    assert node.has_lost_data


def test_it_does_not_vote_start_an_election_or_report_progress() -> None:
    node = after_loss()
    assert not asked(node, VoteRequest("rs0", 3, MemberId(1), "i1", 1, 1, at(2, 20), dry_run=False)).granted
    assert node.progress_request() is None
    alone = after_loss(1)
    for second in range(1, 60):
        alone.tick(Millis(NOW + 1_000 * second))
    assert alone.state is MemberState.STARTUP2


def test_it_copies_only_from_a_member_that_reaches_the_mark() -> None:
    node = after_loss()
    effects = node.receive_heartbeat(1, position=place(at(2, 8)))
    effects += node.tick(Millis(NOW + 1_000))
    assert not only(effects, StartInitialSync)
    effects = node.tick(Millis(NOW + 2_000)) + node.receive_heartbeat(2, position=place(MARK), now=NOW + 2_000)
    effects += node.tick(Millis(NOW + 3_500))
    assert [effect.source for effect in only(effects, StartInitialSync)] == [host(2)]
    node.receive(InitialSyncStarted("another"), Millis(NOW + 3_600))
    node.receive(InitialSyncEnded(host(2), ok=True, detail="copied"), Millis(NOW + 3_700))
    assert node.state is MemberState.SECONDARY
    assert not node.has_lost_data
    assert node.quarantine == ""


@pytest.mark.parametrize(
    ("mark", "pending"),
    [(HAS, False), (at(2, 4), False), (at(1, 9), False), pytest.param(MARK, True, id="copies-anyway")],
)
def test_nothing_is_lost(mark: OpTime, pending: bool) -> None:
    node = single_node(config=CONFIG, position=place(HAS), durability_mark=mark, initial_sync_pending=pending)
    assert node.state is (MemberState.STARTUP2 if pending else MemberState.SECONDARY)
    assert (node.has_lost_data, node.quarantine) == (False, "")
