"""Which members are in sync, as a primary sees them. It follows Kafka's in-sync replicas.

No safety rests on it: `w: "inSync"` asks for a majority besides.
"""

from __future__ import annotations

from replset.config import Member
from replset.core.state import NodeState
from replset.core.waiting import describe_delay
from replset.ids import MemberId, OpTime


def update_in_sync(node: NodeState, *, is_new_primary: bool = False) -> bool:
    """Take out who lacks entries older than `inSyncLagSecs`, or is gone; take in who is back within half of that.

    A new primary counts every member that is up; who does not catch up leaves later. Returns whether the set changed.
    """
    if node.config is None:
        return False
    before, positions, found = node.in_sync, node.positions(), set()
    limit_ms = node.settings.in_sync_lag_secs * 1000
    for member in node.config.in_sync_voters:
        position = positions.get(member.id)
        if position is None or not node.serves(member):
            continue
        lag_ms = 0 if member.host == node.host else node.ages.lag_ms(position.last_durable, node.now)
        if is_new_primary or lag_ms <= (limit_ms if member.id in before else limit_ms // 2):
            found.add(member.id)
    node.in_sync = frozenset(found)
    if not is_new_primary:
        _write_journal(node, node.config.members, before)
    return node.in_sync != before


def _write_journal(node: NodeState, members: tuple[Member, ...], before: frozenset[MemberId]) -> None:
    for member in members:
        if member.id in node.in_sync - before:
            node.journal("in sync", f"{member.host} is in sync")
        elif member.id in before - node.in_sync:
            node.journal("in sync", f"{member.host} is not in sync any more: {describe_delay(node, member)}")


def in_sync_have(node: NodeState, optime: OpTime) -> bool:
    """Whether all members in sync have the entry at `optime` on their disks."""
    positions = node.positions()
    return all(member in positions and positions[member].last_durable >= optime for member in node.in_sync)


def in_sync_refusal(node: NodeState) -> str | None:
    """Why a write that waits for other members must not be applied now, by `settings.minInSync`; None: it may."""
    least = node.settings.min_in_sync
    if least <= len(node.in_sync) or node.config is None:
        return None
    absent = [
        f"{member.host} ({describe_delay(node, member)})"
        for member in node.config.in_sync_voters
        if member.id not in node.in_sync
    ]
    return (
        f"settings.minInSync asks for {least} members in sync, and {len(node.in_sync)} are"
        f" (not: {', '.join(absent)}); nothing was applied"
    )
