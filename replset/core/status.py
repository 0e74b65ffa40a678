"""What a node says of itself and the set when it is asked; values for `replSetGetStatus` (map A11)."""

from __future__ import annotations

from dataclasses import dataclass

from replset.core.member_state import MemberState
from replset.core.memory import Memory, Peer
from replset.core.messages import Position
from replset.core.remarks import Remark, remarks
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


def describe(m: Memory, now: Millis, reason: str, needed: int) -> Status | None:
    """The status, None while there is no configuration."""
    if m.config is None:
        return None
    ids = {member.host: int(member.id) for member in m.config.members}
    lines = []
    for member in sorted(m.config.members, key=lambda member: member.id):
        peer = m.peers.get(member.host)
        if member.host == m.host:
            lines.append(_own_line(m, now, ids))
        elif peer is not None:
            lines.append(_line(m, peer, now, ids))
    return Status(
        m.set_name,
        m.state,
        m.term,
        m.sync_source,
        -1 if m.sync_source is None else ids.get(m.sync_source, -1),
        m.settings.heartbeat_interval_ms,
        m.config.majority_vote_count,
        m.config.write_majority,
        len(m.config.voters),
        len(m.config.data_voters),
        m.commit_point,
        m.position,
        tuple(lines),
        _blocking(m, lines),
        m.quarantine,
        reason,
        needed,
        remarks(m, now),
    )


def _own_line(m: Memory, now: Millis, ids: dict[HostPort, int]) -> MemberStatus:
    member = m.self_member
    newly_added = member is not None and member.newly_added
    return MemberStatus(
        MemberId(ids[m.host]),
        m.host,
        True,
        m.state,
        True,
        m.is_named and not newly_added,
        newly_added,
        m.is_arbiter,
        None if m.is_arbiter else m.position,
        now - m.started_at,
        m.sync_source,
        -1 if m.sync_source is None else ids.get(m.sync_source, -1),
        m.election_wall_ms,
        0 if m.config is None else m.config.version,
        -1 if m.config is None else m.config.term,
        0,
        0,
        0,
        m.quarantine or m.damage,
        m.unacknowledged_rollbacks(),
        m.quarantine,
    )


def _line(m: Memory, peer: Peer, now: Millis, ids: dict[HostPort, int]) -> MemberStatus:
    member = None if m.config is None else m.config.member(peer.id)
    arbiter = member is not None and member.arbiter_only
    newly_added = member is not None and member.newly_added
    return MemberStatus(
        peer.id,
        peer.host,
        False,
        peer.state,
        peer.is_up,
        peer.is_up and m.is_peer_named(peer) and not newly_added and _has_config(m, peer),
        newly_added,
        arbiter,
        None if arbiter else peer.position,
        now - m.started_at,
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


def _has_config(m: Memory, peer: Peer) -> bool:
    """Whether the member has this node's configuration: until then its own judgement of its vote may be another."""
    return m.config is not None and (peer.config_version, peer.config_term) == m.config.version_and_term


def _blocking(m: Memory, lines: list[MemberStatus]) -> str:
    """Why the commit point stands still behind this primary's newest entry, naming the members (map D6)."""
    if m.config is None or m.state is not MemberState.PRIMARY or m.commit_point >= m.position.last_applied:
        return ""
    behind = [
        f"{line.host} ({line.state.name if line.healthy else 'not reachable'})"
        for line in lines
        if not line.arbiter and not line.is_self and line.position and line.position.last_durable <= m.commit_point
    ]
    if not behind:
        return ""
    return f"a majority write needs {m.config.write_majority} copies; not there yet: {', '.join(behind)}"
