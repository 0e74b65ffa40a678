"""How far a member's data may be behind what the set has, as this node knows it (map B2: maxStalenessSeconds).

It is measured (`ages.py`), as far as this node has listened for so long. For what was before, the wall times of entries
count, which a clock that was wrong once falsifies.
"""

from __future__ import annotations

from replset.core.messages import Position
from replset.core.state import NodeState, Peer
from replset.ids import OPTIME_NULL, HostPort


def lag_ms(node: NodeState, host: HostPort) -> int | None:
    """Return by how much the data of the member at `host` may be too old; None if it has no data, or is not known.

    An arbiter that once was another member still has that one's old entries, and they count for nothing.

    The primary's newest entry is the measure. Without a primary it is the newest of a majority. A node that reaches
    neither cannot know what it lacks, so the age of its newest entry counts.
    """
    peer = node.peers.get(host)
    if peer is None and host != node.host:
        return None
    position = node.position if peer is None else peer.position
    member = None if node.config is None else node.config.member_at(host)
    if position.last_applied == OPTIME_NULL or (member is not None and member.arbiter_only):
        return None
    newest, silent_ms = _newest(node)
    if peer is not None:
        silent_ms = max(silent_ms, _silent_ms(node, peer))
    return (_age_ms(node, position) if newest is None else behind_ms(node, position, newest)) + silent_ms


def behind_ms(node: NodeState, position: Position, newest: Position) -> int:
    """Return for how long a member at `position` has lacked entries that one at `newest` has."""
    if position.last_applied >= newest.last_applied:
        return 0
    lag_ms = node.ages.lag_ms(position.last_applied, node.now)
    if lag_ms and node.ages.covers(position.last_applied):
        return lag_ms
    return max(lag_ms, newest.applied_wall_ms - position.applied_wall_ms)


def _age_ms(node: NodeState, position: Position) -> int:
    _, at_most = node.ages.age_ms(position.last_applied, node.now)
    if at_most is not None:
        return at_most
    return max(0, node.wall_ms() - position.applied_wall_ms, node.now - node.started_at)


def _newest(node: NodeState) -> tuple[Position | None, int]:
    """Return the newest position that is known to be the set's, and how old this knowledge is (ms); None: unknown."""
    if node.is_primary:
        return node.position, 0
    primary = node.peer_of(node.primary_id)
    if primary is not None and primary.is_up:
        return primary.position, _silent_ms(node, primary)
    up = [peer for peer in node.peers.values() if peer.is_up]
    voters = {member.host for member in node.config.voters} if node.config is not None else set()
    reached = len(voters.intersection({node.host, *(peer.host for peer in up)}))
    if node.config is None or reached < node.config.majority_vote_count:
        return None, 0
    return max((node.position, *(peer.position for peer in up)), key=lambda position: position.last_applied), 0


def _silent_ms(node: NodeState, peer: Peer) -> int:
    """Return how long ago the heartbeat began that the peer answered last, 0 while its answers come in time."""
    since = node.now - peer.answered_since
    return since if since > 2 * node.settings.heartbeat_interval_ms else 0
