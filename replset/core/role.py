"""Who may hold what a role hook gives to the primary, such as a floating address (docs/hooks.md).

A primary holds it only for `role_hook_ms` after a majority has answered it. A new primary accepts no write before every
other member has said that it holds it no more, or until none can: after that time, as much for the release, and a
tenth for clocks that run at different rates.
"""

from __future__ import annotations

from replset.core.state import BEGINNING, NodeState, Peer
from replset.ids import Millis


def holders(node: NodeState) -> list[Peer]:
    """Return the members that may hold the role of an earlier primary: they have not denied it in this term."""
    if not node.role_hook_ms or node.config is None:
        return []
    bearing = {member.id for member in node.config.data_bearing}
    return [peer for peer in node.sorted_peers() if peer.id in bearing and peer.role_free_in != node.term]


def role_wait_ms(node: NodeState) -> int:
    """Return how long after its election a primary waits for holders that do not answer."""
    return 2 * node.role_hook_ms + node.role_hook_ms // 5


def role_until(node: NodeState, now: Millis) -> Millis:
    """Return until when this member may hold the role; a time in the past if it accepts no writes.

    The time counts from when the requests were sent that a majority answered. A voter that has elected another primary
    since would have answered with the higher term.
    """
    if not node.writable or node.config is None:
        return BEGINNING
    times: list[Millis] = []
    for voter in node.config.voters:
        peer = node.peers.get(voter.host)
        if voter.host == node.host:
            times.append(now if node.incarnation_matches else BEGINNING)
        elif peer is not None:
            times.append(peer.answered_since if node.peer_incarnation_matches(peer) else BEGINNING)
    times.sort(reverse=True)
    needed = node.config.majority_vote_count
    return BEGINNING if len(times) < needed else Millis(times[needed - 1] + node.role_hook_ms)
