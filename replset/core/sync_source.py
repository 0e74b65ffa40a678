"""Which member this one syncs from, and when it leaves its source for another one (map R1 to R3).

The primary, unless another member is closer by more than CLOSER_MS. While a primary is known, another source must have
an entry of the present term: then its history is the primary's, and nobody has to roll back what came from it. Every
source but the primary must be ahead when it is chosen, so no two members can wait for each other.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from replset.core.member_state import MemberState
from replset.core.messages import Refused, SyncFromRequest
from replset.core.staleness import behind_ms
from replset.core.state import NEVER, NodeState, Peer
from replset.errors import ErrorCode
from replset.ids import HostPort, Millis, OpTime

CLOSER_MS = 5
"""By how much another member's ping must be shorter than that of the source (changeSyncSourceThresholdMillis)."""
RETURN_MS = 2
"""A member returns to the primary once that is at most so much farther than its source."""
MAX_CHANGES, CHANGES_WITHIN_MS = 3, 3_600_000
"""How often in an hour a member takes a closer source."""
MAX_LAG_MS = 30_000
"""How far behind the primary, or behind another source, a source may be (maxSyncSourceLagSecs)."""
DENIED_MS, TOO_STALE_MS = 10_000, 60_000


class LeaveReason(NamedTuple):
    """Why a source is left. for_closer: another one is closer; such changes are counted."""

    why: str
    for_closer: bool = False


class SyncSources:
    """Chooses the sync source of a secondary."""

    def __init__(self, node: NodeState) -> None:
        self.node = node
        self._denied: dict[HostPort, Millis] = {}  # not tried again before that
        self._too_stale: dict[HostPort, OpTime] = {}  # their oldest entry, while they are denied for it
        self._requested: HostPort | None = None  # by replSetSyncFrom, until that source is left
        self._changes: deque[Millis] = deque(maxlen=MAX_CHANGES)  # when a closer source was taken

    # --- replSetSyncFrom -----------------------------------------------------------------------------------------

    @property
    def requested(self) -> HostPort | None:
        return self._requested

    def on_request(self, request: SyncFromRequest) -> Refused | None:
        """Take the source that an administrator names, or say why not. The next tick goes there."""
        refusal = self._request_refusal(request.host)
        if refusal is None:
            self._requested = request.host
            self.allow(request.host)
        return refusal

    def _request_refusal(self, host: HostPort) -> Refused | None:
        node = self.node
        me = node.self_member
        if node.config is None or me is None:
            return Refused(ErrorCode.NOT_SECONDARY, "removed and uninitialized nodes do not sync")
        if me.arbiter_only:
            return Refused(ErrorCode.NOT_SECONDARY, "arbiters don't sync")
        if node.is_primary:
            return Refused(ErrorCode.NOT_SECONDARY, "primaries don't sync")
        target, peer = node.config.member_at(host), node.peers.get(host)
        if target is None:
            return Refused(ErrorCode.NODE_NOT_FOUND, f"could not find member {host} in the replica set")
        if host == node.host:
            return Refused(ErrorCode.INVALID_OPTIONS, "I cannot sync from myself")
        cannot = f"cannot sync from {host}: "
        for reason, holds in (
            ("it is an arbiter", target.arbiter_only),
            ("it does not build indexes", me.build_indexes and not target.build_indexes),
            ("it is not a voter", me.is_voter and not target.is_voter),
            ("it syncs from this member", peer is not None and self._leads_here(peer)),
            (
                "settings.chainingAllowed is false, and it is not the primary",
                not node.settings.chaining_allowed and target.id != node.primary_id,
            ),
        ):
            if holds:
                return Refused(ErrorCode.INVALID_OPTIONS, cannot + reason)
        if peer is None or not peer.is_up:
            return Refused(ErrorCode.HOST_UNREACHABLE, f"I cannot reach the requested member: {host}")
        return None

    # --- choosing ------------------------------------------------------------------------------------------------

    def choose(self) -> HostPort | None:
        """The source to take now; None: there is none.

        While no primary is known, a member that is ahead. If only a member that cannot be elected holds the newest
        entries, the voters would refuse everybody else. So the others fetch these entries first, and then one of them
        can win. For that chaining is always allowed, and a source without indexes too: its entries are the same.
        """
        node = self.node
        if node.quarantine:
            return None
        if self._requested is not None:
            peer = node.peers.get(self._requested)
            if peer is not None and peer.state.is_readable and not self._is_denied(peer):
                return peer.host
            self._requested = None
        primary = node.peer_of(node.primary_id)
        if primary is None:
            able = [peer for peer in node.sorted_peers() if self._is_able(peer) and not self._is_denied(peer)]
            return max(able, key=lambda peer: (peer.position.last_applied, -peer.id)).host if able else None
        if primary.state is MemberState.DOWN:
            return None
        usable = not self._is_denied(primary)
        if not node.settings.chaining_allowed:
            return primary.host if usable else None
        best = self._closest(fitting=True)
        if not usable:
            best = best or self._closest(fitting=False)
            return None if best is None else best.host
        return best.host if best is not None and _is_closer(best, primary) else primary.host

    def _closest(self, *, fitting: bool) -> Peer | None:
        """The closest member that is not the primary; None: there is none. fitting: among those that suit this one."""
        node = self.node
        able = [
            peer
            for peer in node.sorted_peers()
            if peer.id != node.primary_id
            and self._is_able(peer)
            and not self._is_denied(peer)
            and (not fitting or self._is_fitting(peer))
        ]
        return min(able, key=lambda peer: (peer.closeness_ms, peer.id), default=None)

    def _is_able(self, peer: Peer) -> bool:
        """Whether this member may sync from a secondary at all."""
        node = self.node
        newest = peer.position.last_applied
        me, it = node.self_member, None if node.config is None else node.config.member(peer.id)
        # A source whose newest entry is of a term before the one in which this member's commit point was committed may
        # lack committed entries, and what came from it would have to be rolled back. While there is a primary, entries
        # of an older term on a secondary may be of a history that is rolled back too. From a source that is not ahead
        # nothing comes: two members that follow each other would wait for ever. (Map R1.)
        return (
            peer.state is MemberState.SECONDARY
            and newest > node.position.last_applied
            and newest.term >= node.commit_term
            and (node.primary_id is None or newest.term == node.term)
            and me is not None
            and it is not None
            and (node.primary_id is None or self._has_our_indexes(peer))
            and not self._leads_here(peer)
        )

    def _has_our_indexes(self, peer: Peer) -> bool:
        """Whether the member builds indexes, or this one does not either."""
        me, it = self.node.self_member, None if self.node.config is None else self.node.config.member(peer.id)
        return me is not None and it is not None and (it.build_indexes or not me.build_indexes)

    def _is_fitting(self, peer: Peer) -> bool:
        """Whether a member suits this one as a source; where none does, one that is able is good enough."""
        node = self.node
        me, it = node.self_member, None if node.config is None else node.config.member(peer.id)
        primary = node.peer_of(node.primary_id)
        return (
            me is not None
            and it is not None
            and peer.is_measured
            and (it.is_voter or not me.is_voter)
            and not it.hidden
            and it.secondary_delay_secs <= me.secondary_delay_secs
            and (primary is None or behind_ms(node, peer.position, primary.position) <= MAX_LAG_MS)
        )

    def _leads_here(self, peer: Peer) -> bool:
        """Whether the sources of `peer`, one after the other, lead to this member or nowhere."""
        node = self.node
        seen: set[HostPort] = set()
        while peer.id != node.primary_id and peer.sync_source is not None:
            following = node.peers.get(peer.sync_source)
            if peer.sync_source == node.host or peer.host in seen:
                return True
            if following is None:
                return False
            seen.add(peer.host)
            peer = following
        return False

    # --- leaving -------------------------------------------------------------------------------------------------

    def reason_to_leave(self, host: HostPort) -> LeaveReason | None:
        """Why this member leaves its source now; None: it stays."""
        why = self._unfit(host)
        if why is not None:
            return LeaveReason(why)
        peer = self.node.peers[host]
        is_bound = self._requested is not None or not self.node.settings.chaining_allowed
        return None if is_bound or self.node.primary_id is None else self._closer_source(peer)

    def _unfit(self, host: HostPort) -> str | None:
        """Why a member is no good source any more, however close it is; None: it is one."""
        node = self.node
        peer = node.peers.get(host)
        if node.quarantine:
            return "this member keeps out of the set"
        if peer is None:
            return "it is no member any more"
        if self._requested not in (None, host):
            return f"replSetSyncFrom names {self._requested}"
        if peer.id == node.primary_id:
            return None
        if peer.state is not MemberState.SECONDARY:
            return f"it is {peer.state.name}"
        newest, primary = peer.position.last_applied, node.peer_of(node.primary_id)
        if newest.term < node.commit_term:
            return "it may lack committed entries"
        if newest <= node.position.last_applied and (peer.sync_source is None or self._leads_here(peer)):
            return "it is not ahead, and syncs from nobody else"
        if primary is None:
            return None
        if not node.settings.chaining_allowed:
            return "settings.chainingAllowed is false, and there is a primary"
        if newest.term < node.term:
            return "it has no entry of the primary's term"
        if not self._has_our_indexes(peer):
            return "it does not build indexes"
        if self._requested is None and not self._is_denied(primary):
            if primary.closeness_ms <= peer.closeness_ms + RETURN_MS:
                return "the primary is as close"
            if behind_ms(node, peer.position, primary.position) > MAX_LAG_MS:
                return f"it is more than {MAX_LAG_MS // 1000} s behind the primary"
        return None

    def _closer_source(self, source: Peer) -> LeaveReason | None:
        """Why a closer member is a better source than `source`; None: no member is. Each such change is counted."""
        node = self.node
        if not any(_is_closer(peer, source) for peer in node.peers.values()):
            return None
        recent = [at for at in self._changes if node.now - at < CHANGES_WITHIN_MS]
        best = self._closest(fitting=True)
        if len(recent) >= MAX_CHANGES or best is None or not _is_closer(best, source):
            return None
        why = f"{best.host} is closer, {best.closeness_ms} ms instead of {source.closeness_ms}"
        return LeaveReason(why, for_closer=True)

    def on_leaving(self, host: HostPort, reason: LeaveReason) -> None:
        """Note that the source is left. replSetSyncFrom holds until then."""
        node = self.node
        if reason.for_closer:
            self._changes.append(node.now)
        if self._requested == host:
            self._requested = None
        if node.primary_id is not None:
            node.journal("sync source", f"{host} is left: {reason.why}")

    # --- failures ------------------------------------------------------------------------------------------------

    def on_failed(self, host: HostPort, retry_at: Millis) -> None:
        """Do not try this source for a while; only until `retry_at` where there is no other one."""
        node = self.node
        if self._requested == host:
            self._requested = None
        self._denied[host] = Millis(node.now + DENIED_MS)
        if node.primary_id is None or (host == node.primary_host and self.choose() is None):
            self._denied[host] = retry_at

    def allow(self, host: HostPort) -> None:
        self._denied.pop(host, None)
        self._too_stale.pop(host, None)

    def deny_for_long(self, host: HostPort) -> None:
        """Do not try a source that begins behind what this member needs."""
        self._denied[host] = Millis(self.node.now + TOO_STALE_MS)

    def on_too_stale(self, host: HostPort, oldest: OpTime) -> HostPort | None:
        """Deny a source whose oldest entry is too new for this member. Return another one that may reach back."""
        self.deny_for_long(host)
        self._too_stale[host] = oldest
        return self.choose()

    def _is_denied(self, peer: Peer) -> bool:
        node = self.node
        oldest = self._too_stale.get(peer.host)
        if oldest is not None and oldest <= node.position.last_applied:
            self.allow(peer.host)  # this member has come far enough meanwhile
        return self._denied.get(peer.host, Millis(0)) > node.now

    def next_due(self) -> Millis:
        """When a source may be tried again."""
        return min((at for at in self._denied.values() if at > self.node.now), default=NEVER)


def _is_closer(peer: Peer, source: Peer) -> bool:
    return peer.is_measured and source.is_measured and peer.closeness_ms + CLOSER_MS < source.closeness_ms
