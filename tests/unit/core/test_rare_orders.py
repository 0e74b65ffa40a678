"""Rare orders of events in which a wrong answer would lose data, mix two histories, or hang."""

from __future__ import annotations

from dataclasses import replace

from replset.bson import ObjectId
from replset.config import Member
from replset.core.effects import AppendNoop, CommitPointAdvanced, Effect, LastVote, Persist, Reply, StartInitialSync
from replset.core.member_state import MemberState
from replset.core.messages import (
    HeartbeatReply,
    HeartbeatRequest,
    InitiateRequest,
    LocalPosition,
    Position,
    ReconfigRequest,
    Refused,
    Request,
    Response,
    VoteRequest,
)
from replset.core.quorum import WriteConcern
from replset.core.reconfig_rules import reconfig_refusal
from replset.ids import OPTIME_NULL, MemberId, Millis
from tests.simulation.core_kit.machine import config_of, host, members_of
from tests.unit.core.single_node import NOW, SingleNode, asked, at, lead, named, only, place, single_node

EMPTY = HeartbeatReply(
    set_name="rs0",
    term=0,
    state=MemberState.STARTUP,
    member_id=None,
    config_version=-2,
    config_term=-1,
    config=None,
    primary_id=None,
    position=place(OPTIME_NULL),
    commit_point=OPTIME_NULL,
    electable=False,
    election_wall_ms=None,
    sync_source=None,
    incarnation="i1",
    rollback_id=1,
    http_address="",
    has_data=False,
)


def late(node: SingleNode, request_id: int, body: HeartbeatReply) -> list[Effect]:
    return node.receive(Response(request_id, host(1), body, "", Millis(1)), NOW)


# --- a data file that is gone -----------------------------------------------------------------------------------------


def test_a_named_member_whose_data_file_is_gone_copies_it_anew() -> None:
    """replset.db was deleted, member.db was not: its vote is for data that it does not hold any more."""
    config = named(*members_of(3), term=3)
    node = single_node(config=config, last_vote=LastVote(3, MemberId(1)), position=place(OPTIME_NULL), start=False)
    assert not only(node.start(NOW), AppendNoop), "an entry of now would stand above all that the others have"
    assert node.state is MemberState.STARTUP2
    assert not asked(node, VoteRequest("rs0", 4, MemberId(1), "i1", 1, 3, at(3, 9), dry_run=False)).granted
    node.receive_heartbeat(1, state=MemberState.PRIMARY, term=4, position=place(at(3, 9)))
    assert only(node.tick(Millis(NOW + 1_000)), StartInitialSync)


def test_a_set_with_a_vote_was_initiated() -> None:
    """The configuration is still the first one, but it came to an election: the first entry was there."""
    vote = LastVote(2, MemberId(0))
    node = single_node(config=named(*members_of(3)), last_vote=vote, position=place(OPTIME_NULL), start=False)
    assert not only(node.start(NOW), AppendNoop)
    assert node.state is MemberState.STARTUP2


# --- terms ------------------------------------------------------------------------------------------------------------


def test_an_optime_is_sent_with_the_term_of_its_entry() -> None:
    """A batch of a new primary's is applied in several groups; a report after the first must not look like one of the
    term before, whose primary would count the place as one in its own history.
    """
    node = single_node(config=named(*members_of(3)))
    node.receive(LocalPosition(place(at(5))), NOW)
    assert node.progress_request().term == 5


# --- journalled majorities --------------------------------------------------------------------------------------------


def test_a_majority_that_asks_for_the_journal_waits_for_the_disks() -> None:
    """writeConcernMajorityJournalDefault false: the commit point moves with what is applied, j: true asks for more."""
    config = replace(named(*members_of(3)), write_concern_majority_journal_default=False)
    node = lead(single_node(config=config))
    entry = at(2)
    node.tick(Millis(NOW + 2_000))
    node.receive_heartbeat(1, NOW + 2_000, position=Position(entry, at(1), 0, 0), config_term=2)
    assert node.is_satisfied(WriteConcern("majority"), entry)
    assert not node.is_satisfied(WriteConcern("majority", j=True), entry)
    node.receive(LocalPosition(place(entry)), Millis(NOW + 2_001))
    assert not node.is_satisfied(WriteConcern("majority", j=True), entry), "one disk of three"
    node.tick(Millis(NOW + 4_000))
    node.receive_heartbeat(2, NOW + 4_000, position=place(entry), config_term=2)
    assert node.is_satisfied(WriteConcern("majority", j=True), entry)


# --- configurations ---------------------------------------------------------------------------------------------------


def test_an_initiate_ends_when_a_configuration_comes_meanwhile() -> None:
    node = single_node(config=None, initial_sync_pending=True, position=place(OPTIME_NULL))
    node.receive(Request(7, InitiateRequest(config_of(*members_of(2)))), NOW)
    check = node.open(1, HeartbeatRequest)
    theirs = named(*members_of(2))
    node.receive(Request(8, HeartbeatRequest("rs0", host(1), MemberId(1), 1, 1, 1, None, "i1")), NOW)
    brought = replace(EMPTY, term=1, config=theirs, config_version=1, config_term=1)
    effects = node.answer(1, HeartbeatRequest, brought)
    assert node.config == theirs
    effects += late(node, check.request_id, EMPTY)
    assert [type(reply.body) for reply in only(effects, Reply)] == [Refused]
    assert not only(effects, AppendNoop)
    assert [effect.record for effect in only(effects, Persist)] == [theirs]
    assert node.config == theirs


def test_a_reconfig_ends_when_a_forced_configuration_comes_meanwhile() -> None:
    """What was asked for was made of the configuration of that moment; a forced one has a higher version."""
    node = lead(single_node(config=named(*members_of(3))))
    wanted = replace(node.config, version=2, members=tuple(_plain(member) for member in node.config.members))
    node.receive(Request(7, ReconfigRequest(wanted, False, 0)), NOW)
    forced = replace(node.config, version=30_000, term=-1)
    node.tick(Millis(NOW + 2_000))
    effects = node.receive_heartbeat(
        1, NOW + 2_000, config=forced, config_version=30_000, config_term=-1, position=place(at(2))
    )
    effects += node.receive_heartbeat(1, NOW + 2_000, position=place(at(2)), config_version=30_000, config_term=-1)
    effects += node.receive_heartbeat(2, NOW + 2_000, position=place(at(2)), config_version=30_000, config_term=-1)
    assert [type(reply.body) for reply in only(effects, Reply) if reply.request_id == 7] == [Refused]
    assert node.config == forced


def _plain(member: Member) -> Member:
    return replace(member, incarnation=None)


def test_a_configuration_of_another_set_of_the_same_name_is_not_taken() -> None:
    """Two sets that were initiated apart have different ids; their histories must never meet (map C4)."""
    config = named(*members_of(3))
    mine = replace(config, settings=replace(config.settings, replica_set_id=ObjectId(b"a" * 12)))
    theirs = replace(mine, version=9, term=9, settings=replace(mine.settings, replica_set_id=ObjectId(b"b" * 12)))
    node = single_node(config=mine)
    node.receive_heartbeat(1, config=theirs, config_version=9, config_term=9, term=9)
    assert node.config == mine
    same = replace(theirs, settings=mine.settings)
    node.tick(Millis(NOW + 2_000))
    node.receive_heartbeat(1, NOW + 2_000, config=same, config_version=9, config_term=9, term=9)
    assert node.config == same


def test_a_member_that_does_not_take_the_configuration_gets_no_vote() -> None:
    rows = members_of(4)
    node = lead(single_node(config=named(*rows[:3], replace(rows[3], newly_added=True))))
    for number in (1, 2):
        node.tick(Millis(NOW + 2_000))
        node.receive_heartbeat(number, NOW + 2_000, position=place(at(2)), config_term=2)
    foreign = {"position": place(at(2)), "config_version": 5, "config_term": 1}
    node.tick(Millis(NOW + 4_000))
    assert not only(node.receive_heartbeat(3, NOW + 4_000, **foreign), Persist)
    node.tick(Millis(NOW + 6_000))
    assert only(node.receive_heartbeat(3, NOW + 6_000, position=place(at(2)), config_term=2), Persist)


def _swapped(count: int) -> tuple[Member, ...]:
    """Five members, of which the last `count` keep their ids and get other hosts."""
    rows = members_of(5)
    return tuple(replace(row, host=host(int(row.id) + 10)) if row.id >= 5 - count else row for row in rows)


def test_other_hosts_under_the_same_ids_are_voters_that_go() -> None:
    """Each of them becomes newlyAdded: a majority of the voters that stay need not meet one of those before."""
    old = named(*members_of(5))
    for count, refused in ((3, True), (2, True), (1, False)):
        new = replace(config_of(*_swapped(count)), version=2)
        assert (reconfig_refusal(old, new, host(0), force=False, default_set=True) is not None) == refused
        assert reconfig_refusal(old, new, host(0), force=True, default_set=True) is None


# --- an arbiter with an old oplog in its folder -----------------------------------------------------------------------


def test_what_an_arbiter_heard_commits_no_entry_of_an_old_oplog_in_its_folder() -> None:
    """Else its own old entries, which nobody has, would count as committed when it bears data again: a rollback of them
    would be refused, and its files would not name them.
    """
    rows = members_of(4)
    arbiter = replace(rows[3], arbiter_only=True, priority=0.0)
    node = single_node(3, config=named(*rows[:3], arbiter), position=place(at(3, 9)))
    assert node.state is MemberState.ARBITER
    effects = node.receive_heartbeat(0, state=MemberState.PRIMARY, term=5, commit_point=at(4, 2), commit_term=5)
    assert node.commit_point == at(4, 2)
    assert not only(effects, CommitPointAdvanced), "it would be stored beside the old oplog"
    for version, members in ((2, rows[:3]), (3, rows)):  # it is removed, and comes back with data
        now = Millis(NOW + version * 2_000)
        asked(node, HeartbeatRequest("rs0", host(0), MemberId(0), 5, version, 5, MemberId(0), "i0"), now)
        told = {"config": named(*members, version=version, term=5), "config_version": version, "config_term": 5}
        node.receive_heartbeat(0, now, term=5, **told)
    assert (node.state, node.commit_point) == (MemberState.SECONDARY, OPTIME_NULL)
