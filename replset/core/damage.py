"""What a member does about damaged oplog entries, and about hash chains that differ between members (docs/adr/0006).

An entry is damaged if its bytes do not match its own hash or chain. If two members have different chains at one entry,
each asks all members with data, and a member that a majority outvotes goes to RECOVERING. If none of the others could
ever lead, as beside witnesses, it counts as damaged instead: the set would have nobody left. A damaged member stays in
service while the others cannot elect a primary without it: its other entries and its documents are sound.
"""

from __future__ import annotations

from replset.config import Member
from replset.core.effects import CompareChains
from replset.core.follower import Follower
from replset.core.leader import Leader
from replset.core.member_state import MemberState
from replset.core.messages import ChainsCompared
from replset.core.quorum import has_majority
from replset.core.state import NEVER, NodeState
from replset.ids import Millis, OpTime

_HAS_OPLOG = frozenset({MemberState.PRIMARY, MemberState.SECONDARY, MemberState.RECOVERING})
_TAKES_PART = frozenset({MemberState.PRIMARY, MemberState.SECONDARY, MemberState.ARBITER})


class DamageMonitor:
    """Decides when a damaged or outvoted member leaves service."""

    def __init__(self, node: NodeState, leader: Leader, follower: Follower) -> None:
        self.node = node
        self._leader = leader
        self._follower = follower
        self._comparing = False
        self._compare_again_at = Millis(0)

    def tick(self) -> None:
        node = self.node
        if node.damage and not node.quarantine and self._is_in_use() and self._others_can_go_on():
            self._leave(node.damage)

    def next_due(self) -> Millis:
        node = self.node
        if not node.damage or node.quarantine or not self._is_in_use():
            return NEVER
        return Millis(node.now + node.settings.heartbeat_interval_ms)  # the others may come back

    def _is_in_use(self) -> bool:
        return self.node.state in (MemberState.PRIMARY, MemberState.SECONDARY)

    def _others_can_go_on(self) -> bool:
        """Whether a majority of the votes is up without this member, and somebody in it can lead."""
        node = self.node
        if node.config is None:
            return False
        votes, leaders = 0, 0
        for voter in node.config.voters:
            peer = node.peers.get(voter.host)
            if (
                peer is None
                or not node.peer_incarnation_matches(peer)
                or peer.quarantine
                or peer.state not in _TAKES_PART
            ):
                continue
            votes += 1
            leaders += voter.is_electable
        return has_majority(votes, len(node.config.voters)) and leaders > 0

    def _others(self) -> list[Member]:
        config = self.node.config
        return [] if config is None else [member for member in config.members if member.host != self.node.host]

    def _leave(self, why: str) -> None:
        """Go into quarantine. What only this member holds stays on its disk; a resync exports it first."""
        self._leader.step_down(why)
        self._follower.quarantine(why)

    # --- damage on this disk -------------------------------------------------------------------------------------

    def on_damage_found(self, detail: str) -> None:
        self._comparing = False
        node = self.node
        if node.damage != detail:
            node.damage = detail
            node.journal("damage found", detail)

    # --- different hash chains -----------------------------------------------------------------------------------

    def compare_chains(self, at: OpTime) -> None:
        """Ask the others for their hash chain at this entry; at most once in an election timeout."""
        node = self.node
        if node.config is None or self._comparing or node.quarantine or node.now < self._compare_again_at:
            return
        hosts = tuple(member.host for member in node.config.oplog_holders if member.host != node.host)
        if hosts and node.state in _HAS_OPLOG:
            self._comparing = True
            node.journal("chain differs", f"another member has another hash chain at {at}: asking all who hold data")
            node.emit(CompareChains(at, hosts))

    def on_chains_compared(self, found: ChainsCompared) -> None:
        node = self.node
        self._comparing = False
        if node.config is None or node.quarantine or node.state not in _HAS_OPLOG:
            return  # a rollback that finds the same difference asks again, at once
        self._compare_again_at = Millis(node.now + node.settings.election_timeout_ms)
        members = len(node.config.oplog_holders)
        majority = members // 2 + 1
        counted = f"{found.same} of {members} have this member's hash chain at {found.at}, {found.other} another one"
        if found.other >= majority and not any(other.is_electable for other in self._others()):
            self.on_damage_found(f"outvoted by members that cannot lead: {counted}; {found.detail}")
        # One primary wrote each entry, so of two members with different chains at one entry, one is wrong. A majority
        # that agrees holds what was committed. If the outvoted member led or were copied, its damaged entries would
        # become the set's. (docs/adr/0006.)
        elif found.other >= majority:
            self._leave(f"outvoted: {counted}; {found.detail}")
        elif found.same < majority and not found.silent and not node.is_primary:
            # No majority has either chain. One of the two members has to stay in service: the primary, which has the
            # newest writes.
            self._leave(f"undecided: {counted}; {found.detail}")
        else:
            node.journal("chains compared", f"{counted}; {found.silent} do not know; {found.detail}")
