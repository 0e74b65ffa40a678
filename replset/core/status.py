"""What a node says of itself and the set when it is asked; values for `replSetGetStatus` (map A11)."""

from __future__ import annotations

from dataclasses import dataclass

from replset.core.member_state import MemberState
from replset.core.messages import Position
from replset.core.remarks import Remark, remarks
from replset.core.state import NodeState, Peer
from replset.ids import HostPort, MemberId, Millis, OpTime


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One member's line. Wall times in milliseconds, 0 for never.

    counted: it votes and counts for majorities, and knows so: it has the same configuration as this node.
    """

    id: MemberId
    host: HostPort
    is_self: bool
    state: MemberState
    healthy: bool
    counted: bool
    newly_added: bool
    arbiter: bool
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


@dataclass(frozen=True, slots=True)
class Status:
    """The set as this node sees it.

    blocking: who keeps the commit point from moving, in words, empty when nobody. remarks: what is wrong, what is next.
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
    quarantine: str
    election_reason: str
    election_votes_needed: int
    remarks: tuple[Remark, ...] = ()


def build_status(node: NodeState, now: Millis, reason: str, needed: int) -> Status | None:
    """The status, None while there is no configuration."""
    if node.config is None:
        return None
    ids = {member.host: int(member.id) for member in node.config.members}
    lines = []
    for member in sorted(node.config.members, key=lambda member: member.id):
        peer = node.peers.get(member.host)
        if member.host == node.host:
            lines.append(_own_line(node, now, ids))
        elif peer is not None:
            lines.append(_line(node, peer, now, ids))
    return Status(
        node.set_name,
        node.state,
        node.term,
        node.sync_source,
        -1 if node.sync_source is None else ids.get(node.sync_source, -1),
        node.settings.heartbeat_interval_ms,
        node.config.majority_vote_count,
        node.config.write_majority,
        len(node.config.voters),
        len(node.config.data_voters),
        node.commit_point,
        node.position,
        tuple(lines),
        _blocking(node, lines),
        node.quarantine,
        reason,
        needed,
        remarks(node, now),
    )


def _own_line(node: NodeState, now: Millis, ids: dict[HostPort, int]) -> MemberStatus:
    member = node.self_member
    newly_added = member is not None and member.newly_added
    return MemberStatus(
        MemberId(ids[node.host]),
        node.host,
        True,
        node.state,
        True,
        node.incarnation_matches and not newly_added,
        newly_added,
        node.is_arbiter,
        None if node.is_arbiter else node.position,
        now - node.started_at,
        node.sync_source,
        -1 if node.sync_source is None else ids.get(node.sync_source, -1),
        node.election_wall_ms,
        0 if node.config is None else node.config.version,
        -1 if node.config is None else node.config.term,
        0,
        0,
        0,
        node.quarantine or node.damage,
        node.unacknowledged_rollbacks(),
        node.quarantine,
    )


def _line(node: NodeState, peer: Peer, now: Millis, ids: dict[HostPort, int]) -> MemberStatus:
    member = None if node.config is None else node.config.member(peer.id)
    arbiter = member is not None and member.arbiter_only
    newly_added = member is not None and member.newly_added
    return MemberStatus(
        peer.id,
        peer.host,
        False,
        peer.state,
        peer.is_up,
        peer.is_up and node.peer_incarnation_matches(peer) and not newly_added and _has_config(node, peer),
        newly_added,
        arbiter,
        None if arbiter else peer.position,
        now - node.started_at,
        peer.sync_source,
        -1 if peer.sync_source is None else ids.get(peer.sync_source, -1),
        peer.election_wall_ms,
        peer.config_version,
        peer.config_term,
        peer.last_reply_wall_ms,
        peer.last_request_wall_ms,
        peer.ping_ms,
        peer.message,
        peer.unacknowledged_rollbacks,
        peer.quarantine,
    )


def _has_config(node: NodeState, peer: Peer) -> bool:
    """Whether the member has this node's configuration: until then its own judgement of its vote may be another."""
    return node.config is not None and (peer.config_version, peer.config_term) == node.config.version_and_term


def _blocking(node: NodeState, lines: list[MemberStatus]) -> str:
    """Why the commit point stands still behind this primary's newest entry, naming the members (map D6)."""
    if node.config is None or node.state is not MemberState.PRIMARY or node.commit_point >= node.position.last_applied:
        return ""
    behind = [
        f"{line.host} ({line.state.name if line.healthy else 'not reachable'})"
        for line in lines
        if not line.arbiter and not line.is_self and line.position and line.position.last_durable <= node.commit_point
    ]
    if not behind:
        return ""
    return f"a majority write needs {node.config.write_majority} copies; not there yet: {', '.join(behind)}"
