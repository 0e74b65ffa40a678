"""Incarnations (docs/adr/0007): an emptied disk loses its vote and gets it back; who is not named promises nothing."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from replset.core.effects import CommitPointAdvanced, Persist, RecordElectionEvent, Send
from replset.core.member_state import MemberState
from replset.core.messages import (
    DrainFinished,
    HeartbeatRequest,
    LocalPosition,
    Request,
    StepUpRequest,
    VoteReply,
    VoteRequest,
)
from replset.core.quorum import WriteConcern
from replset.ids import OPTIME_NULL, MemberId, Millis
from tests.simulation.core_kit.cluster import leader_number, running, the_config
from tests.simulation.core_kit.machine import host, members_of
from tests.unit.core.single_node import NOW, SingleNode, asked, at, lead, named, only, place, single_node


def test_a_wiped_member_loses_its_vote_and_gets_it_back() -> None:
    """Another incarnation makes a member newlyAdded; the primary names it and gives the vote back (docs/adr/0007)."""
    cluster = running(3)
    leader = cluster.elect()
    leader.write("before")
    cluster.until(cluster.is_quiet)
    wiped = next(machine for machine in cluster.machines.values() if machine is not leader)
    before = the_config(leader).version
    wiped.wipe()
    cluster.copy_ms = 2_000
    wiped.boot()
    cluster.until(lambda: the_config(leader).version == before + 1)
    member = the_config(leader).member_at(wiped.host)
    assert (member.newly_added, member.is_voter, member.incarnation) == (True, False, None)
    cluster.until(cluster.is_quiet)
    member = the_config(leader).member_at(wiped.host)
    assert (member.newly_added, member.incarnation) == (False, wiped.disk.incarnation)
    assert the_config(leader).version == before + 2
    assert leader.node.term == 2  # no election is needed or waited for


def test_a_wiped_arbiter_too() -> None:
    cluster = running(3, arbiters=1)
    leader = cluster.elect()
    cluster[2].wipe()
    cluster[2].boot()
    cluster.until(cluster.is_quiet)
    assert the_config(leader).version == 3


def test_a_wiped_secondary_of_psa_comes_back_even_after_an_election() -> None:
    """The write majority is then waited for among those who stay, or it could not come back at all."""
    cluster = running(3, arbiters=1)
    leader = cluster.elect()
    other = cluster[1] if leader is cluster[0] else cluster[0]
    other.wipe()
    cluster.run(1)
    leader.crash()
    leader.boot()
    cluster.elect()
    other.boot()
    cluster.until(cluster.is_quiet)


def test_a_lost_disk_counts_for_nothing() -> None:
    """Heartbeats and progress carry the incarnation; a new one voids older values (docs/adr/0007)."""
    node = single_node(config=named(*members_of(3)))
    node.receive_heartbeat(1, position=place(at(1, 9)))
    assert node.peer_at(host(1)).position == place(at(1, 9))
    asked(node, HeartbeatRequest("rs0", host(1), MemberId(1), 1, 1, 1, None, "another"))
    peer = node.peer_at(host(1))
    assert (peer.position, peer.incarnation) == (place(OPTIME_NULL), "another")


def test_a_disk_that_the_configuration_does_not_name_commits_nothing() -> None:
    """Neither entries nor configurations, however far its copy is by now."""
    node = lead(single_node(config=named(*members_of(3))))
    node.receive(LocalPosition(place(at(2))), NOW)
    node.tick(Millis(NOW + 2_000))
    node.receive_heartbeat(1, NOW + 2_000, position=place(at(2)), incarnation="another")
    assert node.commit_point < at(2)
    assert not node._state.is_config_committed
    node.receive_heartbeat(2, NOW + 2_000, position=place(at(2)))
    assert node.commit_point == at(2)


def test_one_voter_at_a_time() -> None:
    """Map C10, C11: one voter at a time."""
    cluster = running(5)
    leader = cluster.elect()
    wiped = [machine for machine in cluster.machines.values() if machine is not leader][:2]
    seen: list[int] = []
    for machine in wiped:
        machine.wipe()
        machine.boot()
    for _ in range(4_000):
        cluster.run(1)
        voters = len(the_config(leader).voters)
        if not seen or seen[-1] != voters:
            seen.append(voters)
        if len(seen) > 2 and cluster.all_counted():
            break
    assert all(abs(one - other) == 1 for one, other in pairwise(seen))
    assert seen[0] == seen[-1] == 5
    cluster.until(cluster.is_quiet)


def test_the_marker_keeps_a_member_from_voting_and_acknowledging() -> None:
    """While the initial-sync marker is set, a member gives no vote, no acknowledgement and no read."""
    node = single_node(config=named(*members_of(3)), initial_sync_pending=True, position=place(at(1, 5)))
    assert node.state is MemberState.STARTUP2
    assert node.progress_request() is None
    reply = asked(node, HeartbeatRequest("rs0", host(1), MemberId(1), 1, 1, 1, None, "i1"))
    assert reply.position == place(OPTIME_NULL)
    assert not reply.electable


def test_a_member_that_is_not_named_acknowledges_nothing() -> None:
    """An unnamed incarnation does not count, by its own judgement and by everybody's (docs/adr/0007)."""
    assert single_node(config=named(*members_of(3)), incarnation="another").progress_request() is None
    assert single_node(config=named(*members_of(3))).progress_request() is not None


def test_the_vote_comes_with_what_the_primary_had_when_newly_added_was_committed() -> None:
    """The vote comes once the member has reached what the primary had when newlyAdded was committed (docs/adr/0007)."""
    rows = members_of(4)
    node = lead(single_node(config=named(*rows[:3], replace(rows[3], newly_added=True))))
    node.receive(LocalPosition(place(at(2, 5))), NOW)

    def hear(number: int, entry: int, now: int, **told: Any) -> bool:
        """Whether that made the primary give the vote."""
        node.tick(Millis(now))
        effects = node.receive_heartbeat(number, position=place(at(2, entry)), config_term=2, now=now, **told)
        return bool(only(effects, Persist))

    hear(1, 5, NOW + 2_000)
    hear(2, 5, NOW + 2_000)
    assert not hear(3, 4, NOW + 2_000)
    node.receive(LocalPosition(place(at(2, 9))), Millis(NOW + 2_100))
    assert not hear(3, 4, NOW + 4_000)
    assert not hear(3, 9, NOW + 6_000, state=MemberState.STARTUP2)
    assert hear(3, 5, NOW + 8_000)
    member = node.config.member(MemberId(3)) if node.config else None
    assert (member.newly_added, member.incarnation) == (False, "i3")


@pytest.mark.parametrize(
    ("told", "votes"),
    [
        pytest.param({}, True, id="caught-up"),
        pytest.param({"quarantine": "the oplog differs", "state": MemberState.RECOVERING}, False, id="in-quarantine"),
        pytest.param({"incarnation": "i1"}, False, id="another-name-of-a-voter"),
        pytest.param({"incarnation": "i0"}, False, id="another-name-of-the-primary"),
    ],
)
def test_members_that_get_no_vote(told: dict[str, Any], votes: bool) -> None:
    """A quarantined member follows nobody; one process under two names would count twice for a majority."""
    rows = members_of(4)
    node = lead(single_node(config=named(*rows[:3], replace(rows[3], newly_added=True))))
    for number in (1, 2):
        node.tick(Millis(NOW + 2_000))
        node.receive_heartbeat(number, NOW + 2_000, position=place(at(2)), config_term=2)
    effects = node.receive_heartbeat(3, NOW + 2_000, position=place(at(2)), config_term=2, **told)
    assert bool(only(effects, Persist)) is votes


def test_a_copy_under_two_names_counts_once() -> None:
    """Also for w: 2, where members without a vote count."""
    rows = members_of(3)
    node = lead(single_node(config=named(*rows[:2], replace(rows[2], votes=0, priority=0.0))))
    node.receive(LocalPosition(place(at(2))), NOW)
    node.tick(Millis(NOW + 2_000))
    node.receive_heartbeat(2, NOW + 2_000, position=place(at(2)), incarnation="i0")
    assert not node.is_satisfied(WriteConcern(2), at(2))
    node.tick(Millis(NOW + 4_000))
    node.receive_heartbeat(2, NOW + 4_000, position=place(at(2)))
    assert node.is_satisfied(WriteConcern(2), at(2))


def lead_beside_newly_added() -> SingleNode:
    """The primary of a set with a member that is newlyAdded and an arbiter; alone it has committed three entries."""
    rows = members_of(3, arbiters=1)
    node = single_node(config=named(rows[0], replace(rows[1], newly_added=True), rows[2]))
    node.receive_heartbeat(1)
    node.receive_heartbeat(2, state=MemberState.ARBITER)
    node.receive(Request(3, StepUpRequest(skip_dry_run=True)), NOW)
    node.answer(2, VoteRequest, VoteReply(node.term, True, "", MemberId(2), "i2"))
    node.receive_heartbeat(1)
    node.receive_heartbeat(2, state=MemberState.ARBITER)
    node.receive(DrainFinished(2), NOW)
    node.receive(LocalPosition(place(at(2, 3))), NOW)
    return node


def test_a_vote_beside_an_arbiter_waits_for_what_was_committed_without_it() -> None:
    """With its vote the member and the arbiter elect."""
    node = lead_beside_newly_added()
    journal: list[str] = []

    def hear(entry: int, now: int) -> bool:
        """Whether the vote was given when the member was heard to have this entry."""
        node.tick(Millis(now))
        node.receive_heartbeat(2, state=MemberState.ARBITER, config_term=2, position=place(OPTIME_NULL), now=now)
        effects = node.receive_heartbeat(1, position=place(at(2, entry)), config_term=2, now=now)
        journal.extend(line.record.detail for line in only(effects, RecordElectionEvent))
        return bool(only(effects, Persist))

    assert not hear(2, NOW + 2_000)  # it lacks what was there when newlyAdded was committed
    node.receive(LocalPosition(place(at(2, 4))), Millis(NOW + 3_000))
    assert node.commit_point == at(2, 4)
    assert not hear(3, NOW + 4_000)  # it has that, and lacks what was committed since
    assert host(1) in [send.to for send in only(node.tick(Millis(NOW + 4_100)), Send)]  # soon asked again
    node.receive(LocalPosition(place(at(2, 5))), Millis(NOW + 5_000))
    assert node.commit_point == at(2, 4)  # or it might never have all of it
    assert hear(4, NOW + 6_000)
    assert journal == [
        "majority writes wait for a member that is about to get its vote",
        "m1:27017 has caught up: it votes",
    ]
    node.receive_heartbeat(1, position=place(at(2, 4)), config_version=2, config_term=2, now=NOW + 6_001)
    assert node.commit_point == at(2, 4)
    node.receive_heartbeat(1, position=place(at(2, 5)), config_version=2, config_term=2, now=NOW + 8_000)
    assert node.commit_point == at(2, 5)


def test_majority_writes_go_on_at_once_when_the_member_gets_no_vote_after_all() -> None:
    """Nothing else need happen then that would look at the commit point again."""
    node = lead_beside_newly_added()
    for entry, now in ((2, NOW + 2_000), (3, NOW + 4_000)):
        node.tick(Millis(now))
        node.receive_heartbeat(2, state=MemberState.ARBITER, config_term=2, position=place(OPTIME_NULL), now=now)
        node.receive_heartbeat(1, position=place(at(2, entry)), config_term=2, now=now)
        node.receive(LocalPosition(place(at(2, entry + 2))), Millis(now + 1))
    assert node.commit_point == at(2, 4)  # it waits for the member
    node.tick(Millis(NOW + 4_100))
    effects = node.receive_heartbeat(
        1, state=MemberState.RECOVERING, quarantine="the oplog differs", config_term=2, now=NOW + 4_100
    )
    assert (node.commit_point, only(effects, CommitPointAdvanced)) == (at(2, 5), [CommitPointAdvanced(at(2, 5))])


def test_a_change_that_would_leave_the_majority_to_an_emptied_disk_is_refused() -> None:
    """The quorum check counts a voter only by the data that has its vote: else nobody could be elected afterwards."""
    cluster = running()
    number = leader_number(cluster)
    emptied, other = (n for n in range(3) if n != number)
    cluster[emptied].crash()
    cluster[emptied].wipe()
    cluster[emptied].boot()
    rows = [
        replace(member, votes=0, priority=0.0) if member.id == other else member
        for member in cluster.user_config(number).members
    ]
    answer = cluster.reconfig(number, cluster.user_config(number, *rows))
    assert answer.code == 74
    assert "another incarnation" in answer.reason
    cluster.until(cluster.all_counted)
