"""The set as one node sees it: the values of `replSetGetStatus` (map A11)."""

from __future__ import annotations

from dataclasses import dataclass, field

from replset.config import Member
from replset.config.feature_version import LATEST, FeatureVersion
from replset.core.election_metrics import ElectionMetrics
from replset.core.member_state import MemberState
from replset.core.messages import Position
from replset.core.staleness import lag_ms
from replset.core.state import NodeState, Peer, shown_state
from replset.core.waiting import describe_delay
from replset.ids import HostPort, MemberId, Millis, OpTime

NO_MEMBER = MemberId(-1)
"""The `_id` in the row of a member that is in no configuration."""


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One member of the set. Wall times are in milliseconds, 0 for never.

    counted: the member votes and counts for majorities, and has the same configuration as this node. Without a vote it
    counts for `w: N` whatever its incarnation is, which no configuration renews. lag_ms: see `staleness.py`.
    overloaded: it has more to do than it can, and reads should go elsewhere. state: as clients see it, so a witness in
    service is ARBITER. release: the newest featureCompatibilityVersion that it can run; None: it has not said so yet.
    """

    id: MemberId
    host: HostPort
    is_self: bool
    state: MemberState
    healthy: bool
    counted: bool
    newly_added: bool
    position: Position | None
    uptime_ms: int
    sync_source: HostPort | None
    sync_source_id: int
    election_wall_ms: int | None
    config_version: int
    config_term: int
    last_heartbeat_wall_ms: int
    last_heartbeat_recv_wall_ms: int
    ping_ms: int
    message: str
    unacknowledged_rollbacks: int = 0
    quarantine: str = ""
    lag_ms: int | None = None
    overloaded: bool = False
    release: FeatureVersion | None = None
    witness: bool = False


@dataclass(frozen=True, slots=True)
class Status:
    """The set as this node sees it.

    blocking: which members keep the commit point from advancing; empty when none does.
    """

    set_name: str
    state: MemberState
    term: int
    sync_source: HostPort | None
    sync_source_id: int
    heartbeat_interval_ms: Millis
    majority_vote_count: int
    write_majority: int
    voters: int
    writable_voters: int
    commit_point: OpTime
    position: Position
    members: tuple[MemberStatus, ...]
    blocking: str
    election_reason: str
    election_votes_needed: int
    elections: ElectionMetrics = field(default_factory=ElectionMetrics)


@dataclass(frozen=True, slots=True)
class Remark:
    """One problem. why: what is wrong, in a sentence. next_step: what to do, a command wherever there is one."""

    why: str
    next_step: str


def build_status(node: NodeState, now: Millis, reason: str, needed: int) -> Status | None:
    """The status, None while there is no configuration."""
    if node.config is None:
        return None
    ids = {member.host: int(member.id) for member in node.config.members}
    members = sorted(node.config.members, key=lambda member: member.id)
    # A removed member is in no configuration, and still has a state.
    rows = [] if node.self_member else [_member_status(node, Member(NO_MEMBER, node.host), None, now, ids)]
    for member in members:
        peer = node.peers.get(member.host)
        if member.host == node.host or peer is not None:
            rows.append(_member_status(node, member, None if member.host == node.host else peer, now, ids))
    return Status(
        node.set_name,
        node.shown_state,
        node.term,
        node.sync_source,
        -1 if node.sync_source is None else ids.get(node.sync_source, -1),
        node.settings.heartbeat_interval_ms,
        node.config.majority_vote_count,
        node.config.write_majority,
        len(node.config.voters),
        len(node.config.oplog_voters),
        node.commit_point,
        node.position,
        tuple(rows),
        _blocking(node),
        reason,
        needed,
        node.election_metrics,
    )


def _member_status(
    node: NodeState, member: Member, peer: Peer | None, now: Millis, ids: dict[HostPort, int]
) -> MemberStatus:
    """peer: None for this member itself."""
    own_version = (0, -1) if node.config is None else node.config.version_and_term
    if peer is None:
        about: NodeState | Peer = node
        state, is_up, version = node.shown_state, True, own_version
        counted = node.incarnation_matches or (member.votes == 0 and not node.must_sync)
        heard, message = (0, 0, 0), node.quarantine or node.damage
        rollbacks, overloaded = node.unacknowledged_rollbacks(), node.is_overloaded()
    else:
        about = peer
        state, is_up, version = shown_state(member, peer.state), peer.is_up, (peer.config_version, peer.config_term)
        # Until the member has this node's configuration it may judge its own vote otherwise.
        counted = is_up and version == own_version and (node.peer_incarnation_matches(peer) or member.votes == 0)
        heard, message = (peer.last_reply_wall_ms, peer.last_request_wall_ms, peer.ping_ms), peer.message
        rollbacks, overloaded = peer.unacknowledged_rollbacks, peer.overloaded
    return MemberStatus(
        member.id,
        about.host,
        peer is None,
        state,
        is_up,
        counted and not member.newly_added,
        member.newly_added,
        None if member.arbiter_only else about.position,
        now - node.started_at,
        about.sync_source,
        -1 if about.sync_source is None else ids.get(about.sync_source, -1),
        about.election_wall_ms,
        *version,
        *heard,
        message,
        rollbacks,
        about.quarantine,
        lag_ms(node, about.host),
        overloaded,
        LATEST if peer is None else peer.release,
        member.witness,
    )


def _blocking(node: NodeState) -> str:
    """Which members keep a primary's commit point behind its newest entry (map D6); empty when none does."""
    if node.config is None or node.state is not MemberState.PRIMARY or node.commit_point >= node.position.last_applied:
        return ""
    behind = [
        f"{member.host} ({describe_delay(node, member)})"
        for member in node.config.oplog_voters
        if (peer := node.peers.get(member.host)) is not None and peer.position.last_durable <= node.commit_point
    ]
    if not behind:
        return ""
    return f"a majority write needs {node.config.write_majority} copies; not there yet: {', '.join(behind)}"
