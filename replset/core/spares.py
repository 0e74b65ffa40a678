"""Hot spares: a member without a vote (`spareAfterSecs`) votes in the place of one that is gone, until it is back.

The spare that votes names the voter (`spareFor`). That one is `newlyAdded` meanwhile, so its votes and priority stay in
the configuration. One vote changes at a time, by the rules of every change (map C10, C11). First the one that is gone
loses its vote; where a primary beside arbiters could then commit alone, the spare gets its vote first. The other way
round, the voter has its vote again before the spare gives up its own. So no step leaves fewer copies than before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from replset.config import MAX_VOTERS, Member, ReplSetConfig
from replset.core.member_state import MemberState
from replset.core.state import NodeState, Peer


class Spares:
    """The next change of a spare or its voter. is_safe: whether all elections by a config keep what is committed."""

    def __init__(self, node: NodeState, is_safe: Callable[[ReplSetConfig], bool]) -> None:
        self.node = node
        self._is_safe = is_safe

    def changed(self, config: ReplSetConfig) -> Member | None:
        """The member whose vote is taken, or that becomes a spare for another one; None: nothing changes for now."""
        for spare in config.members:
            voter = config.member(spare.spare_for)
            if voter is not None:
                changed = self._exchange(config, spare, voter)
                if changed is not None:
                    return changed
        return self._begin(config)

    def _begin(self, config: ReplSetConfig) -> Member | None:
        """A spare that is well becomes `spareFor` a voter that has been gone for long enough."""
        node = self.node
        replaced = {member.spare_for for member in config.members}
        for voter in config.members:
            peer = node.peers.get(voter.host)
            is_own = voter.votes == 1 and voter.holds_oplog and voter.spare_for is None and voter.id not in replaced
            if peer is None or not is_own or peer.state is not MemberState.DOWN:
                continue
            # One that only this member cannot reach follows another, which passes its position on: it counts as before.
            silent_ms = node.now - max(peer.state_since, peer.last_contact, peer.reported_at)
            able = [
                spare
                for spare in config.members
                if 0 < spare.spare_after_secs * 1000 <= silent_ms and self._is_able(config, spare, voter)
            ]
            if able:
                spare = max(able, key=lambda member: (node.peers[member.host].position.last_applied, -member.id))
                node.journal("reconfig", f"{voter.host} is gone for {silent_ms // 1000} s: {spare.host} is its spare")
                return replace(spare, votes=1, newly_added=True, incarnation=None, spare_for=voter.id)
        return None

    def _is_able(self, config: ReplSetConfig, spare: Member, voter: Member) -> bool:
        """Whether the spare is well and not behind, and its vote in the place of the voter's lets majorities commit."""
        node, peer = self.node, self.node.peers.get(spare.host)
        if spare.votes or not spare.bears_data or peer is None or peer.quarantine or not peer.has_data:
            return False
        exchanged = without_vote(config, voter).with_member(replace(spare, votes=1))
        return (
            peer.state is MemberState.SECONDARY
            and peer.position.last_applied >= node.commit_point
            and _commits_by_majority(exchanged)
        )

    def _exchange(self, config: ReplSetConfig, spare: Member, voter: Member) -> Member | None:
        """The vote is taken from the one that is gone, or given back by the spare."""
        node, peer = self.node, self.node.peers.get(voter.host)
        is_up = voter.host == node.host or (peer is not None and peer.is_up)
        if voter.is_voter and not is_up:
            if not self._may_lose_vote(config, voter):
                return None
            node.journal("reconfig", f"{voter.host} is gone: its vote goes to {spare.host}")
            return replace(voter, newly_added=True, incarnation=None)
        makes_room = len(config.voters) >= MAX_VOTERS and peer is not None and self._is_back(spare, peer)
        if not voter.is_voter and not makes_room:
            return None
        if spare.is_voter and not self._may_lose_vote(config, spare):
            return None
        node.journal("reconfig", f"{voter.host} is back: {spare.host} is a spare again")
        # Somebody may have given it a priority meanwhile, and who has no vote has none.
        return replace(spare, votes=0, priority=0.0, newly_added=False, incarnation=None, spare_for=None)

    def _may_lose_vote(self, config: ReplSetConfig, member: Member) -> bool:
        without = without_vote(config, member)
        # `is_safe` is about what is committed by now. If afterwards a write needed fewer copies than an election needs
        # votes, voters that lack a later entry could elect one of themselves, and the entry would be rolled back.
        return _commits_by_majority(without) and self._is_safe(without)

    def _is_back(self, spare: Member, peer: Peer) -> bool:
        """Whether the voter has been well for as long as its spare waits: one that comes and goes keeps its spare."""
        well_ms = self.node.now - peer.state_since
        return peer.state is MemberState.SECONDARY and well_ms >= spare.spare_after_secs * 1000

    def must_wait(self, config: ReplSetConfig, member: Member, peer: Peer) -> bool:
        """Whether a member without a vote must not get one yet, for the sake of its spare or its voter."""
        spare = next((other for other in config.members if other.spare_for == member.id), None)
        voter = config.member(member.spare_for)
        if spare is None and voter is None:
            return False
        if len(config.voters) >= MAX_VOTERS:
            return True
        if spare is not None:
            return not self._is_back(spare, peer)
        return voter is not None and voter.is_voter and _commits_by_majority(without_vote(config, voter))


def without_vote(config: ReplSetConfig, member: Member) -> ReplSetConfig:
    """The configuration in which the member does not vote."""
    return config.with_member(replace(member, newly_added=True))


def _commits_by_majority(config: ReplSetConfig) -> bool:
    """Whether a majority write needs as many copies as an election needs votes. Beside many arbiters it needs fewer."""
    return len(config.oplog_voters) >= config.majority_vote_count
