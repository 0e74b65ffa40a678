"""Elections before the timeout: only where fresh connects to the primary are refused, and not again and again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from replset.config import ReplSetConfig, Settings
from replset.core.effects import RecordElectionEvent, Send
from replset.core.member_state import MemberState
from replset.core.messages import ConnectionLost, HeartbeatRequest, Response, VoteReply, VoteRequest
from replset.ids import MemberId, Millis
from tests.simulation.core_kit.cluster import CoreCluster
from tests.simulation.core_kit.machine import CoreMachine, host, members_of
from tests.unit.core.single_node import NOW, SingleNode, asked, at, grant, named, only, ready, vote_requests

DEFAULT = Settings()
OFF = replace(DEFAULT, fast_failover=False)
TIMEOUT = DEFAULT.election_timeout_ms


def running(count: int, *, arbiters: int = 0, settings: Settings = DEFAULT, seed: int = 1) -> CoreCluster:
    """A set at rest with these timeouts."""
    cluster = CoreCluster(count, seed=seed)
    cluster.initiate(*members_of(count, arbiters=arbiters), settings=settings)
    cluster.until(cluster.is_quiet)
    return cluster


def ms_without_primary(cluster: CoreCluster, gone: CoreMachine) -> int:
    began = cluster.now
    cluster.until(lambda: any(m.alive and m.node.writable for m in cluster.machines.values() if m is not gone))
    return cluster.now - began


# --- whole sets ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "arbiters"), [(3, 0), (3, 1), (4, 0), (5, 0), (5, 2), (7, 0)])
@pytest.mark.parametrize("seed", range(4))
def test_a_killed_primary_is_replaced_within_a_second(count: int, arbiters: int, seed: int) -> None:
    """With the default election timeout of ten seconds."""
    cluster = running(count, arbiters=arbiters, seed=seed)
    leader = cluster.elect()
    cluster.run(seed * 400)  # somewhere between two heartbeats
    leader.crash()
    assert ms_without_primary(cluster, leader) < 1_000
    leader.boot()
    cluster.until(cluster.is_quiet)


def cut_off(cluster: CoreCluster, leader: CoreMachine) -> None:
    cluster.isolate(cluster.number_of(leader))


def without_power(_cluster: CoreCluster, leader: CoreMachine) -> None:
    leader.crash(power=True)


@pytest.mark.parametrize("end", [cut_off, without_power])
def test_silence_is_left_to_the_election_timeout(end: Callable[[CoreCluster, CoreMachine], None]) -> None:
    cluster = running(3)
    leader = cluster.elect()
    end(cluster, leader)
    assert ms_without_primary(cluster, leader) > TIMEOUT - DEFAULT.heartbeat_interval_ms


@pytest.mark.in_turns
@pytest.mark.parametrize("count", [3, 5])
def test_a_link_that_refuses_changes_no_primary(count: int) -> None:
    """One member's connects to the primary are refused, as by a firewall; the others hear it and do not agree."""
    cluster = running(count)
    leader = cluster.elect()
    term, deaf = leader.node.term, next(machine for machine in cluster.machines.values() if machine is not leader)
    cluster.reject(leader.host, deaf.host)
    for number in range(60):
        cluster.run(1_000)
        assert leader.write(f"{number}")
    assert (cluster.primary, leader.node.term) == (leader, term)
    assert 1 <= len([line for line in deaf.journal if "dry run: fastFailover" in line]) <= 3
    cluster.heal()
    cluster.until(cluster.is_quiet)


def test_without_the_setting_the_timeout_rules() -> None:
    cluster = running(3, settings=OFF)
    leader = cluster.elect()
    leader.crash()
    assert ms_without_primary(cluster, leader) > TIMEOUT - DEFAULT.heartbeat_interval_ms


@pytest.mark.in_turns
def test_primaries_that_do_not_last_are_replaced_ever_more_slowly() -> None:
    """Each primary dies as soon as it leads: the first is replaced at once, the next ones after their timeout."""
    cluster = running(5)
    waits = []
    for _ in range(4):
        leader = cluster.elect()
        leader.crash()
        waits.append(ms_without_primary(cluster, leader))
        leader.boot()
        cluster.until(cluster.is_quiet)
    assert waits[0] < 1_000
    assert min(waits[1:]) > TIMEOUT - DEFAULT.heartbeat_interval_ms
    cluster.run(8 * TIMEOUT)  # one that lasts
    leader = cluster.elect()
    leader.crash()
    assert ms_without_primary(cluster, leader) < 1_000


def test_a_new_set_has_a_primary_as_soon_as_the_others_can_vote() -> None:
    cluster = CoreCluster(3)
    began = cluster.now
    cluster.initiate(*members_of(3), settings=DEFAULT)
    cluster.elect()
    assert cluster.now - began < 1_500
    assert cluster.number_of(cluster.elect()) == 0


def test_the_member_that_initiated_asks_at_the_usual_interval_once_it_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = running(3)
    leader, sent, send_on = cluster.elect(), [], cluster.send

    def send(sender: CoreMachine, message: Send) -> None:
        sent.append((sender, message.body))
        send_on(sender, message)

    monkeypatch.setattr(cluster, "send", send)
    cluster.run(10 * DEFAULT.heartbeat_interval_ms)
    heartbeats = [body for sender, body in sent if sender is leader and isinstance(body, HeartbeatRequest)]
    assert cluster.number_of(leader) == 0
    assert 18 <= len(heartbeats) <= 22


# --- one member ------------------------------------------------------------------------------------------------------


def test_primaries_that_did_not_last_are_counted_while_they_follow_each_other() -> None:
    """Each further one is waited for longer; one that lasted begins the count anew."""
    node, now, counted = following(), NOW + 2_000, []
    for number, lasts_ms in enumerate((1_000, 1_000, 1_000, 8 * TIMEOUT, 1_000)):
        now += lasts_ms
        who = 1 + number % 2
        node.receive_heartbeat(who, now, state=MemberState.PRIMARY, primary_id=MemberId(who), term=node.term + 1)
        last = node._state.last_primary
        assert last is not None
        counted.append(last.short_before)
    assert counted == [0, 1, 2, 0, 1]


def following(**settings: bool) -> SingleNode:
    """Member 0 of three; member 2 is primary."""
    node = ready(config=named(*members_of(3), settings=replace(DEFAULT, **settings)))
    node.tick(Millis(NOW + 2_000))
    node.receive_heartbeat(2, NOW + 2_000, state=MemberState.PRIMARY, primary_id=MemberId(2))
    node.receive_heartbeat(1, NOW + 2_000)
    return node


def refuse(node: SingleNode, now: int, *, refused: bool = True) -> None:
    """The connection to the primary breaks; the heartbeat that follows cannot connect."""
    node.receive(ConnectionLost(host(2)), Millis(now))
    node.tick(Millis(now))
    for _ in range(3):
        send = node.open(2, HeartbeatRequest)
        node.receive(Response(send.request_id, host(2), None, "gone", Millis(1), refused), Millis(now))


LATER = NOW + 2_500
REQUEST = VoteRequest("rs0", 1, MemberId(1), "i1", 1, 1, at(1), True, "fastFailover")


def answer(node: SingleNode, **changes: object) -> VoteReply:
    reply = asked(node, replace(REQUEST, **changes), LATER)
    assert isinstance(reply, VoteReply)
    return reply


def test_a_voter_agrees_if_it_was_refused_too() -> None:
    node = following()
    refuse(node, LATER)
    assert answer(node).granted


def test_a_voter_that_has_no_refusal_asks_the_primary_at_once() -> None:
    node = following()
    before = len(node.sent)
    reply = asked(node, REQUEST, NOW + 2_001)  # long before the next heartbeat is due
    assert isinstance(reply, VoteReply)
    assert "has not refused" in reply.reason
    assert node.open(2, HeartbeatRequest) in node.sent[before:]


@pytest.mark.parametrize(("is_on", "refused", "says"), [(True, False, "not refused"), (False, True, "fastFailover is")])
def test_a_time_out_is_no_refusal_and_the_setting_may_be_off(is_on: bool, refused: bool, says: str) -> None:
    node = following(fast_failover=is_on)
    refuse(node, LATER, refused=refused)
    assert says in answer(node).reason


def test_a_primary_refuses_and_a_primary_that_is_heard_again_too() -> None:
    node = following()
    refuse(node, LATER - 100)
    node.tick(Millis(LATER))
    beat = HeartbeatRequest("rs0", host(2), MemberId(2), 1, 1, 1, MemberId(2), "i2")
    assert asked(node, beat, LATER)
    assert "has not refused" in answer(node).reason
    planned = following()
    refuse(planned, LATER)
    assert asked(planned, beat, LATER)
    assert not vote_requests(planned.tick(Millis(LATER + 400)))


def test_the_vote_itself_is_given_by_the_same_rules_as_any_other() -> None:
    """A refused connect gives nobody a vote: neither to a member that is behind nor twice in a term."""
    node = following()
    refuse(node, LATER)
    assert "the candidate is at" in answer(node, dry_run=False, term=2, last_applied=at(0)).reason
    assert answer(node, dry_run=False, term=2).granted
    again = answer(node, dry_run=False, term=2, candidate=MemberId(2), candidate_incarnation="i2")
    assert "has voted for member 1 in term 2" in again.reason


def asks_at(node: SingleNode, since: int, until: int) -> list[int]:
    """When it asks for votes in a dry run that the others refuse."""
    found = []
    for now in range(since, until, 5):
        requests = vote_requests(node.tick(Millis(now)))
        if requests and requests[0].reason == "fastFailover":
            found.append(now - since)
            for number in (1, 2):
                reply = VoteReply(node.term, False, "no", MemberId(number), f"i{number}")
                node.answer(number, VoteRequest, reply, now)
    return found


def test_it_asks_three_times_and_leaves_the_rest_to_the_timeout() -> None:
    node = following()
    refuse(node, LATER)
    times = asks_at(node, LATER, LATER + 5_000)
    assert len(times) == 3
    assert times[0] <= 20 + 40 + 5
    assert all(150 <= later - sooner <= 310 for sooner, later in pairwise(times))
    assert node._state.election_due < NOW + 2_000 + 1.15 * TIMEOUT  # the tries have not put it off


def test_members_of_higher_priority_ask_first() -> None:
    members = members_of(3)
    config = named(members[0], replace(members[1], priority=2.0), members[2])
    node = ready(config=config)
    node.tick(Millis(NOW + 2_000))
    node.receive_heartbeat(2, NOW + 2_000, state=MemberState.PRIMARY, primary_id=MemberId(2))
    node.receive_heartbeat(1, NOW + 2_000)
    refuse(node, LATER)
    assert 100 <= asks_at(node, LATER, LATER + 1_000)[0] <= 145


def test_it_wins_by_votes_alone() -> None:
    node = following()
    refuse(node, LATER)
    node.tick(Millis(LATER + 65))
    assert node.state is MemberState.SECONDARY
    grant(node, 1)  # in the dry run
    assert (node.term, node.state) == (2, MemberState.SECONDARY)
    effects = grant(node, 1)
    assert node.state is MemberState.PRIMARY
    won = [line.record.detail for line in only(effects, RecordElectionEvent) if line.record.event == "won"]
    assert won[0].startswith("fastFailover")


def test_a_member_that_just_voted_leaves_the_other_candidate_its_time() -> None:
    node = following()
    refuse(node, LATER)
    assert answer(node, dry_run=False, term=2).granted
    assert not vote_requests(node.tick(Millis(LATER + 100)))


def test_who_cannot_be_elected_does_not_ask() -> None:
    node = ready(config=named(*(replace(row, priority=float(row.id > 0)) for row in members_of(3))))
    node.tick(Millis(NOW + 2_000))
    node.receive_heartbeat(2, NOW + 2_000, state=MemberState.PRIMARY, primary_id=MemberId(2))
    refuse(node, LATER)
    assert not asks_at(node, LATER, LATER + 2_000)


def test_a_connection_that_breaks_after_each_answer_is_no_reason_for_a_storm() -> None:
    node = following()
    sent = len(node.sent)
    for now in range(LATER, LATER + 1_000, 5):
        node.receive(ConnectionLost(host(2)), Millis(now))
        node.tick(Millis(now))
        if node.sent[-1].to == host(2) and node._state.peers[host(2)].heartbeat_id is not None:
            node.receive_heartbeat(2, now, state=MemberState.PRIMARY, primary_id=MemberId(2))
    assert len(node.sent) - sent <= 15


# --- the setting -----------------------------------------------------------------------------------------------------


def test_the_setting_is_shown_only_where_it_is_off() -> None:
    on = named(*members_of(3))
    assert "fastFailover" not in on.settings.document()
    assert ReplSetConfig.parse(on.document(internal=True)).settings.fast_failover
    off = replace(on, settings=OFF)
    assert off.settings.document()["fastFailover"] is False
    assert not ReplSetConfig.parse(off.document(internal=True)).settings.fast_failover
