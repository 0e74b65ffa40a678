"""Whose vote the primary takes or gives by itself, one voter at a time.

A voter that reports another incarnation has another disk and becomes `newlyAdded` (no vote). Once that is committed and
the member has reached the primary's newest entry of that moment (an arbiter: at once), the configuration names the new
incarnation and the member votes again. Beside arbiters a primary can commit alone; then the vote comes only when no
election can miss a committed entry, and the commit point waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from replset.config import Member, ReplSetConfig
from replset.core.member_state import MemberState
from replset.core.spares import Spares, without_vote
from replset.core.state import NO_POSITION, NodeState, Peer
from replset.ids import MemberId, Millis, OpTime

RECHECK_MS = 100


class VoterChanges:
    """The next change of a vote. is_oplog_committed: of `Reconfigs`, whether the writes before a change are safe."""

    def __init__(self, node: NodeState, is_oplog_committed: Callable[[ReplSetConfig | None, int], bool]) -> None:
        self.node = node
        self._is_oplog_committed = is_oplog_committed
        self._catch_up_targets: dict[MemberId, OpTime] = {}
        self._spares = Spares(node, self.is_safe)

    def on_step_up(self) -> None:
        self._catch_up_targets.clear()

    def next_change(self, config: ReplSetConfig) -> Member | None:
        """The first member whose vote changes now; None: none does."""
        for member in config.members:
            peer = self.node.peers.get(member.host)
            if peer is not None and member.votes and peer.is_up:
                changed = self.changed(member, peer)
                if changed is not None:
                    return changed
        return self._spares.changed(config)

    def changed(self, member: Member, peer: Peer) -> Member | None:
        """The member with its vote taken or given; None: its vote stays as it is for now."""
        return self._without_vote(member, peer) if member.is_voter else self._with_vote(member, peer)

    def _without_vote(self, member: Member, peer: Peer) -> Member | None:
        node = self.node
        if node.config is None or not peer.incarnation or peer.incarnation == member.incarnation:
            return None
        # The lost disk holds nothing any more, so the writes must be on a write majority of the other voters: of n - 1
        # voters, n // 2 have a member in every majority that can elect. To ask for a write majority of all n could wait
        # for ever. A second member that lost its disk holds nothing either and cannot vote, so it is left out of both
        # counts. Otherwise two lost disks would wait for each other.
        without = node.config.with_member(replace(member, newly_added=True))
        if not self._is_oplog_committed(without, sum(self._has_lost_disk(voter) for voter in without.oplog_voters)):
            return None
        node.journal("reconfig", f"{member.host} has another incarnation than the configuration names: newlyAdded")
        return replace(member, newly_added=True, incarnation=None)

    def _has_lost_disk(self, voter: Member) -> bool:
        """Whether the voter reports another incarnation than the configuration names."""
        peer = self.node.peers.get(voter.host)
        return peer is not None and bool(peer.incarnation) and peer.incarnation != voter.incarnation

    def _with_vote(self, member: Member, peer: Peer) -> Member | None:
        """The member with its vote, once it has what the primary had when newlyAdded was committed; None: not yet."""
        node = self.node
        if node.config is None or (peer.config_version, peer.config_term) != node.config.version_and_term:
            return None  # it may be a member of another set
        if not peer.incarnation or self._spares.must_wait(node.config, member, peer):
            return None
        voting = replace(member, newly_added=False, incarnation=peer.incarnation)
        if not self._is_committed_without_spared(node.config, voting):
            return None
        if peer.quarantine or self._has_second_name(peer):
            return None  # it is out of service, or it votes already under another host name
        if not member.arbiter_only:
            if peer.state not in (MemberState.SECONDARY, MemberState.RECOVERING):
                return None
            # With its vote a majority may need this member, and commits would wait until it has everything up to here.
            # The target is that of the first look, since a newest entry that moves on could not be reached. (Map C14.)
            target = self._catch_up_targets.setdefault(member.id, node.position.last_applied)
            if peer.position.last_applied < target or not peer.has_data:
                return None
        elif peer.state is not MemberState.ARBITER:
            return None
        if not self._elections_meet_commit_point(node.config.with_member(voting)):
            # Constant writes would move the commit point ahead of the member again and again.
            node.commit_point_paused = True
            peer.heartbeat_due = Millis(min(peer.heartbeat_due, node.now + RECHECK_MS))
            return None
        self._catch_up_targets.pop(member.id, None)
        node.journal("reconfig", f"{member.host} has caught up: it votes")
        return voting

    def _is_committed_without_spared(self, config: ReplSetConfig, voting: Member) -> bool:
        """Whether the writes before this change are on a write majority.

        Where a spare comes before its voter goes, that voter may be needed for the write majority, and is gone. Then it
        is that of the others with the spare. The voter was counted before and stays in every majority with one of them.
        """
        voter = config.member(voting.spare_for)
        if voter is None or not voter.is_voter:
            return self._is_oplog_committed(config, 0)
        return self.is_safe(without_vote(config, voter).with_member(voting))

    def _has_second_name(self, peer: Peer) -> bool:
        """Whether another member of the configuration is the same process."""
        node = self.node
        others = {other.incarnation for other in node.peers.values() if other is not peer}
        return peer.incarnation in others | {node.incarnation}

    def _elections_meet_commit_point(self, config: ReplSetConfig) -> bool:
        """Whether every majority of `config` includes a holder of the commit point, or every data-bearing voter is one.

        Otherwise voters without a committed entry could elect one of themselves, and the entry would be rolled back.
        """
        node = self.node
        journal = config.write_concern_majority_journal_default
        holders = sum(newest >= node.commit_point for newest in self._newest_of(config, journal))
        others = len(config.voters) - holders
        return holders == len(config.oplog_voters) or others < config.majority_vote_count

    def is_safe(self, config: ReplSetConfig) -> bool:
        """Whether every majority of `config` includes a holder of the commit point and of an entry of this term, and so
        of all that was ever committed.

        To voters a forced configuration (term -1) is older than a change of it that only an earlier primary has, and by
        that they could still elect. Then a write majority must have an entry of this term.
        """
        node = self.node
        if node.config is None or (node.config.term != node.term and not self._is_oplog_committed(node.config, 0)):
            return False
        newest_of_all = self._newest_of(config, journal=True)
        holders = sum(newest >= node.commit_point and newest.term == node.term for newest in newest_of_all)
        return len(config.voters) - holders < config.majority_vote_count

    def _newest_of(self, config: ReplSetConfig, journal: bool) -> list[OpTime]:
        """The newest entry of each voter of `config` whose incarnation it names; journal: on its disk."""
        node, found = self.node, []
        for member in config.oplog_voters:
            peer = node.peers.get(member.host)
            position = node.position if member.host == node.host else NO_POSITION if peer is None else peer.position
            if peer is None or peer.incarnation == member.incarnation:
                found.append(position.last_durable if journal else position.last_applied)
        return found
