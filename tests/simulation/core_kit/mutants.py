"""Rules of the core broken on purpose, each for the seeds of the core alone to notice (see mutants.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from replset.config import Member, ReplSetConfig
from replset.core import reconfig, spares, state
from replset.core.election import Elections
from replset.core.follower import Follower
from replset.core.heartbeat import Heartbeats
from replset.core.leader import Leader
from replset.core.member_state import MemberState
from replset.core.messages import HeartbeatReply, ProgressRequest, Refused, Response, VoteRequest
from replset.core.reconfig import Reconfigs
from replset.core.spares import Spares
from replset.core.state import NodeState, Peer
from replset.core.voter_changes import VoterChanges
from replset.ids import OPTIME_NULL, Millis, OpTime
from tests.simulation.kit.kinds import CORE_ALONE
from tests.simulation.kit.mutant import Mutant

# --- configurations --------------------------------------------------------------------------------------------------


def config_changed_before_a_majority_has_it(patch: pytest.MonkeyPatch) -> None:
    """A configuration is changed before a majority has the one in force."""
    patch.setattr(NodeState, "is_config_committed", property(lambda _: True))


def config_changed_before_the_writes(patch: pytest.MonkeyPatch) -> None:
    """A configuration is changed before the writes of the term are on a majority."""
    patch.setattr(Reconfigs, "_is_oplog_committed", lambda *_: True)


def two_voters_at_once(patch: pytest.MonkeyPatch) -> None:
    """Two voters may come or go in one change."""
    real = reconfig.reconfig_refusal

    def refusal(*args: Any, **named: Any) -> Refused | None:
        found = real(*args, **named)
        return None if found is not None and "one voter" in found.reason else found

    patch.setattr(reconfig, "reconfig_refusal", refusal)


def vote_before_it_has_caught_up(patch: pytest.MonkeyPatch) -> None:
    """A newlyAdded member gets its vote before it has what the primary had."""
    patch.setattr(VoterChanges, "_elections_meet_commit_point", lambda *_: True)

    def promoted(self: VoterChanges, member: Member, peer: Peer) -> Member | None:
        node = self.node
        if node.config is None or (peer.config_version, peer.config_term) != node.config.version_and_term:
            return None
        is_able = peer.incarnation and peer.state is not MemberState.STARTUP
        return replace(member, newly_added=False, incarnation=peer.incarnation) if is_able else None

    patch.setattr(VoterChanges, "_with_vote", promoted)


def vote_passed_by_an_election(patch: pytest.MonkeyPatch) -> None:
    """Beside arbiters a vote is given although an election could then pass by what is committed."""
    patch.setattr(VoterChanges, "_elections_meet_commit_point", lambda *_: True)


def commits_alone_unknown_to_others(patch: pytest.MonkeyPatch) -> None:
    """A primary beside arbiters commits alone before a majority has the configuration that lets it."""
    real = Leader.update_commit_point

    def advance(self: Leader) -> None:
        with pytest.MonkeyPatch.context() as within:
            within.setattr(NodeState, "is_config_committed", property(lambda _: True))
            real(self)

    patch.setattr(Leader, "update_commit_point", advance)


def config_order_without_the_term(patch: pytest.MonkeyPatch) -> None:
    """Configurations are compared by version alone, so that one of an old primary wins over one of a new one."""
    patch.setattr(ReplSetConfig, "is_newer_than", lambda self, version, _term: self.version > version)


def agrees_to_a_fast_failover_unseen(patch: pytest.MonkeyPatch) -> None:
    """A member agrees to an election before the timeout although the primary refused it no connect."""
    patch.setattr(Elections, "_fast_refusal", lambda _: None)


def vote_by_an_older_config(patch: pytest.MonkeyPatch) -> None:
    """A vote is given to a candidate whose configuration is older than the voter's."""
    real = Elections.vote_refusal

    def vote_refusal(self: Elections, request: VoteRequest) -> str | None:
        with pytest.MonkeyPatch.context() as within:
            within.setattr(ReplSetConfig, "is_newer_than", lambda *_: False)
            return real(self, request)

    patch.setattr(Elections, "vote_refusal", vote_refusal)


# --- spares ----------------------------------------------------------------------------------------------------------


def arbiter_counted_as_a_copy(patch: pytest.MonkeyPatch) -> None:
    """A majority write counts arbiters as if they had the entry."""
    real = ReplSetConfig.__post_init__

    def init(self: ReplSetConfig) -> None:
        real(self)
        copies = max(1, self.write_majority - sum(voter.arbiter_only for voter in self.voters))
        object.__setattr__(self, "write_majority", copies)

    patch.setattr(ReplSetConfig, "__post_init__", init)


def spare_votes_before_writes_are_safe(patch: pytest.MonkeyPatch) -> None:
    """The vote of one that is gone goes to its spare before the writes so far are on enough of the others."""
    patch.setattr(VoterChanges, "is_safe", lambda *_: True)


def spare_replaced_without_copies(patch: pytest.MonkeyPatch) -> None:
    """Beside an arbiter one that is gone loses its vote before its spare has it: the primary commits alone."""
    patch.setattr(spares, "_commits_by_majority", lambda _: True)


def spare_votes_at_once(patch: pytest.MonkeyPatch) -> None:
    """A spare takes the vote of a member as soon as that is down."""
    real = Spares._begin

    def begin(self: Spares, config: ReplSetConfig) -> Member | None:
        for peer in self.node.peers.values():
            if peer.state is MemberState.DOWN:
                peer.state_since = peer.last_contact = peer.reported_at = Millis(-(1 << 40))
        return real(self, config)

    patch.setattr(Spares, "_begin", begin)


def vote_back_at_once(patch: pytest.MonkeyPatch) -> None:
    """One that was gone has its vote again as soon as it is up."""
    patch.setattr(Spares, "_is_back", lambda _self, _spare, peer: peer.state is MemberState.SECONDARY)


# --- lost disks ----------------------------------------------------------------------------------------------------


def lost_disks_wait_for_each_other(patch: pytest.MonkeyPatch) -> None:
    """A lost disk is set aside only once the writes are on as many members as if no other disk were lost."""
    patch.setattr(VoterChanges, "_has_lost_disk", lambda *_: False)


# --- what others say -------------------------------------------------------------------------------------------------


def any_term_accepted(patch: pytest.MonkeyPatch) -> None:
    """A term is taken however far it is above a member's own."""
    patch.setattr(state, "is_plausible_term", lambda *_: True)


def any_position_counted(patch: pytest.MonkeyPatch) -> None:
    """A position beyond everything that the primary wrote is counted."""

    def accept(_self: NodeState, peer: Peer, position: Any) -> None:
        peer.position = position

    patch.setattr(NodeState, "accept_position", accept)


def other_set_accepted(patch: pytest.MonkeyPatch) -> None:
    """Messages of another set of the same name are taken like those of the own set."""
    patch.setattr(NodeState, "is_other_set", lambda self, name, _id: name != self.set_name)


def stranger_accepted(patch: pytest.MonkeyPatch) -> None:
    """The term of a stranger is taken."""
    patch.setattr(NodeState, "is_member", lambda self, _host: self.config is not None)


def source_from_in_between_followed(patch: pytest.MonkeyPatch) -> None:
    """A member follows one that was away while what it knows to be committed was committed."""
    real = Leader.advance_commit_point
    patch.setattr(Leader, "advance_commit_point", lambda self, optime, _term: real(self, optime, 0))


def dry_run_beside_a_healthy_primary(patch: pytest.MonkeyPatch) -> None:
    """A dry run is granted to a member that cannot reach the primary, by voters that can."""
    patch.setattr(Elections, "_healthy_primary_refusal", lambda *_: None)


def arbiter_ignores_the_commit_point(patch: pytest.MonkeyPatch) -> None:
    """An arbiter votes for a candidate that lacks what the arbiter knows to be committed."""
    real = Elections.vote_refusal

    def vote_refusal(self: Elections, request: VoteRequest) -> str | None:
        node = self.node
        known, node.commit_point = node.commit_point, OPTIME_NULL if node.is_arbiter else node.commit_point
        try:
            return real(self, request)
        finally:
            node.commit_point = known

    patch.setattr(Elections, "vote_refusal", vote_refusal)


def arbiter_takes_no_commit_point(patch: pytest.MonkeyPatch) -> None:
    """An arbiter takes no commit point, since none is of the term of an entry that it has."""
    real = Heartbeats.accept_commit_point

    def accept(self: Heartbeats, optime: OpTime, term: int = 0) -> None:
        if not self.node.is_arbiter:
            real(self, optime, term)

    patch.setattr(Heartbeats, "accept_commit_point", accept)


def late_answer_taken(patch: pytest.MonkeyPatch) -> None:
    """A late answer to an earlier heartbeat is taken for the newest one."""
    real = Heartbeats.on_response

    def on_response(self: Heartbeats, response: Response) -> None:
        peer = self.node.peers.get(response.to)
        if peer is not None and isinstance(response.body, HeartbeatReply):
            peer.heartbeat_id = response.request_id
        real(self, response)

    patch.setattr(Heartbeats, "on_response", on_response)


def old_report_counted(patch: pytest.MonkeyPatch) -> None:
    """A report of progress from an earlier term counts, sent alone or with a fetch."""
    real = Heartbeats.on_progress

    def on_progress(self: Heartbeats, request: ProgressRequest) -> bool:
        return real(self, replace(request, term=max(request.term, self.node.term)))

    patch.setattr(Heartbeats, "on_progress", on_progress)


# --- witnesses -----------------------------------------------------------------------------------------------------


def witness_counted_before_its_sync(patch: pytest.MonkeyPatch) -> None:
    """A witness whose disk was emptied has its vote back at once, as an arbiter does, and votes without an oplog."""
    patch.setattr(VoterChanges, "_elections_meet_commit_point", lambda *_: True)
    must_sync, with_vote = NodeState.must_sync, VoterChanges._with_vote
    patch.setattr(NodeState, "must_sync", property(lambda self: must_sync.fget(self) and not self.is_witness))

    def promoted(self: VoterChanges, member: Member, peer: Peer) -> Member | None:
        if not member.witness or not peer.incarnation:
            return with_vote(self, member, peer)
        return replace(member, newly_added=False, incarnation=peer.incarnation)

    patch.setattr(VoterChanges, "_with_vote", promoted)


def witness_elected(patch: pytest.MonkeyPatch) -> None:
    """A witness starts elections as a data member does."""
    patch.setattr(Member, "is_electable", property(lambda self: not self.arbiter_only and not self.newly_added))


def witness_oplog_taken_for_data(patch: pytest.MonkeyPatch) -> None:
    """A witness that becomes a data member goes on with its oplog, and lacks the documents from before."""
    patch.setattr(NodeState, "has_wrong_kind_of_data", property(lambda _: False))


def witness_copied(patch: pytest.MonkeyPatch) -> None:
    """A member copies its data from a witness, which has none."""
    patch.setattr(Follower, "_can_be_copied", lambda *_: True)


def everybody_begins_the_expected_set(patch: pytest.MonkeyPatch) -> None:
    """Each of the members of --expect-members initiates, not the first of them alone."""
    patch.setattr(Reconfigs, "_expected_refusal", lambda *_: None)


CORE_MUTANTS = tuple(
    Mutant(break_rule, killers, verdict, CORE_ALONE)
    for break_rule, killers, verdict in (
        (config_changed_before_a_majority_has_it, (2, 22), "invariant 10"),
        (config_changed_before_the_writes, (4,), "invariant"),
        (two_voters_at_once, (41, 57, 81), "one voter at a time"),
        (vote_before_it_has_caught_up, (64,), "invariant"),
        (arbiter_counted_as_a_copy, (1, 12, 15), "invariant 3"),
        (commits_alone_unknown_to_others, (17, 47), "invariant 3"),
        (config_order_without_the_term, (0,), "followed by a newer one"),
        (any_term_accepted, (6,), "invariant 11"),
        (any_position_counted, (16,), "invariant 3"),
        (other_set_accepted, (7,), "invariant 11"),
        (stranger_accepted, (26,), "invariant 11"),
        (source_from_in_between_followed, (2, 6), "invariant 3"),
        (dry_run_beside_a_healthy_primary, (11,), "invariant 12"),
        (agrees_to_a_fast_failover_unseen, (81,), "invariant 12"),
        (vote_by_an_older_config, (26, 16), "invariant 27"),
        (arbiter_ignores_the_commit_point, (16, 31), "invariant 27"),
        (late_answer_taken, (0, 1, 2), "invariant 11"),
        (old_report_counted, (4, 6), "invariant 11"),
        (witness_counted_before_its_sync, (62,), "invariant 3"),
        (witness_elected, (29,), "invariant 16"),
        (witness_oplog_taken_for_data, (59, 64), "invariant 16"),
        (witness_copied, (104,), "invariant 16"),
    )
)

CORE_MUTANTS += tuple(
    Mutant(break_rule, kind=CORE_ALONE, test=f"tests/unit/core/{test}")
    for break_rule, test in (
        (lost_disks_wait_for_each_other, "test_partitions.py::test_two_lost_disks_do_not_wait_for_each_other"),
        (
            arbiter_takes_no_commit_point,
            "test_heartbeats.py::test_an_arbiter_takes_every_commit_point_and_passes_on_its_own",
        ),
        (
            vote_passed_by_an_election,
            "test_incarnations.py::test_a_vote_beside_an_arbiter_waits_for_what_was_committed_without_it",
        ),
        (everybody_begins_the_expected_set, "test_initiate.py::test_expected_members_never_make_two_sets"),
        (
            spare_votes_before_writes_are_safe,
            "test_spares.py::test_no_vote_moves_before_the_writes_of_the_term_are_on_disks",
        ),
        (spare_replaced_without_copies, "test_spares.py::test_in_no_step_are_there_fewer_copies"),
        (spare_votes_at_once, "test_spares.py::test_one_that_is_back_in_time_keeps_its_vote"),
        (vote_back_at_once, "test_spares.py::test_one_that_comes_and_goes_keeps_its_spare"),
    )
)
