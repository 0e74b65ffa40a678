"""How far a member's data may be behind what the set has, as this node knows it (map B2: maxStalenessSeconds)."""

from __future__ import annotations

from replset.core.state import NodeState, Peer
from replset.ids import OPTIME_NULL, HostPort


def lag_ms(node: NodeState, host: HostPort) -> int | None:
    """Return by how much the data of the member at `host` may be too old; None if it has no data, or is not known.

    The primary's newest entry is the measure, by its own clock. Without a primary it is the newest of a majority. A
    node that reaches neither cannot know what it lacks, so the age of its newest entry counts.
    """
    peer = node.peers.get(host)
    if peer is None and host != node.host:
        return None
    position = node.position if peer is None else peer.position
    if position.last_applied == OPTIME_NULL:
        return None
    newest, silent_ms = _newest_wall(node)
    if peer is not None:
        silent_ms = max(silent_ms, _silent_ms(node, peer))
    return max(0, newest - position.applied_wall_ms) + silent_ms


def _newest_wall(node: NodeState) -> tuple[int, int]:
    """Return the wall time of the newest entry that is known to be the set's, and how old this knowledge is (ms)."""
    own = node.position.applied_wall_ms
    if node.is_primary:
        return own, 0
    primary = node.peer_of(node.primary_id)
    if primary is not None and primary.is_up:
        return primary.position.applied_wall_ms, _silent_ms(node, primary)
    up = [peer for peer in node.peers.values() if peer.is_up]
    voters = {member.host for member in node.config.voters} if node.config is not None else set()
    reached = len(voters.intersection({node.host, *(peer.host for peer in up)}))
    if node.config is not None and reached >= node.config.majority_vote_count:
        return max(own, *(peer.position.applied_wall_ms for peer in up), 0), 0
    return max(own, node.wall_ms()), 0


def _silent_ms(node: NodeState, peer: Peer) -> int:
    """Return how long ago the peer's last answer came, 0 while its heartbeats come in time."""
    since = node.wall_ms() - peer.last_reply_wall_ms
    return since if since > 2 * node.settings.heartbeat_interval_ms else 0
