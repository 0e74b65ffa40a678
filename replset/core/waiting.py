"""Whom a write or the whole set waits for, in words, and whether the wait is in vain (map D6, D9, D10)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from replset.config import Member, ReplSetConfig
from replset.core.member_state import MemberState
from replset.core.messages import Refused
from replset.core.quorum import IN_SYNC, MAJORITY, WriteConcern, is_enough, number_of, tag_counts
from replset.core.state import NodeState
from replset.errors import ErrorCode
from replset.ids import HostPort, MemberId, OpTime


@dataclass(frozen=True, slots=True)
class WaitedFor:
    """A member that lacks an entry, and why, in words."""

    host: HostPort
    why: str


def describe_delay(node: NodeState, member: Member) -> str:
    """Why a member may lack the newest entries: it is down, in another state, or behind."""
    peer = node.peers.get(member.host)
    if peer is None:
        return "its disk has not synced it yet" if member.host == node.host else "not reachable"
    if not peer.is_up:
        silent_s = (node.now - peer.last_contact) // 1000
        return f"not reachable for {silent_s} s" if peer.last_reply_wall_ms else "not reachable"
    if peer.state is not MemberState.SECONDARY:
        return peer.state.name
    if member.newly_added or (member.votes and not node.peer_incarnation_matches(peer)):
        return "its data is not counted yet"
    if member.secondary_delay_secs:
        return f"delayed by {member.secondary_delay_secs} s"
    return f"{node.ages.lag_ms(peer.position.last_durable, node.now) / 1000:.1f} s behind"


def members_waited_for(node: NodeState, concern: WriteConcern, optime: OpTime) -> list[WaitedFor]:
    """Return the members that lack the entry at `optime` and could help to meet `concern`."""
    config = node.config
    if config is None:
        return []
    on_disk = concern.j or concern.w in (MAJORITY, IN_SYNC)
    holders = {
        member_id
        for member_id, position in node.positions().items()
        if (position.last_durable if on_disk else position.last_applied) >= optime
    }
    members = [member for member in _could_help(config, concern) if member.id not in holders]
    if concern.w == IN_SYNC and is_enough(config, concern, holders):
        members = [member for member in members if member.id in node.in_sync]
    return [WaitedFor(member.host, describe_delay(node, member)) for member in members]


def _could_help(config: ReplSetConfig, concern: WriteConcern) -> tuple[Member, ...]:
    number = number_of(config, concern)
    if number is not None:
        return number.members
    tags = {tag for tag, _ in tag_counts(config, concern) or ()}
    return tuple(member for member in config.data_bearing if not tags or not tags.isdisjoint(member.tags))


def in_vain(node: NodeState, concern: WriteConcern) -> Refused | None:
    """Why it is in vain to wait for `concern` now: too few members could be reached of late. None: it is not.

    A member counts as reachable for half an election timeout after its last message, so that a restart fails no write.
    """
    config = node.config
    for peer in node.peers.values():  # a plain loop: it runs for every majority write
        if not peer.is_up:
            break
    else:
        return None
    if config is None:
        return None
    reachable = _reachable(node, config)
    if is_enough(config, concern, reachable):
        return None
    down = [member for member in _could_help(config, concern) if member.id not in reachable]
    names = ", ".join(f"{member.host} ({describe_delay(node, member)})" for member in down)
    asked = _asked(config, concern)
    return Refused(
        ErrorCode.UNSATISFIABLE_WRITE_CONCERN, f"{asked}; it waits for {names}; {way_out(node, config, down)}"
    )


def _reachable(node: NodeState, config: ReplSetConfig) -> set[MemberId]:
    """Return the members with an oplog that are up, or were within half an election timeout."""
    since = node.now - node.settings.election_timeout_ms // 2
    peers = node.peers
    return {
        member.id
        for member in config.oplog_holders
        if member.host == node.host
        or ((peer := peers.get(member.host)) is not None and (peer.is_up or peer.last_contact > since))
    }


def _asked(config: ReplSetConfig, concern: WriteConcern) -> str:
    if concern.w in (MAJORITY, IN_SYNC):
        return f"a majority write needs {config.write_majority} of {len(config.oplog_voters)} voting members with data"
    return f"the write needs w: {concern.document()['w']!r}"


def way_out(node: NodeState, config: ReplSetConfig, down: list[Member]) -> str:
    """What to do about members that are down: start them, or take the vote of one, if majority writes go on then."""
    names = " and ".join(str(member.host) for member in down)
    reachable, majority = _reachable(node, config), WriteConcern(MAJORITY)
    for member in () if is_enough(config, majority, reachable) else down:
        without = config.with_member(replace(member, votes=0, priority=0.0))
        if member.is_voter and member.bears_data and is_enough(without, majority, reachable):
            return (
                f"start {names} again; until it is back, replset reconfig --demote {member.host} lets majority writes"
                f" go on without it, and --restore {member.host} ends that"
            )
    return f"start {names} again"


def majority_lag(node: NodeState) -> tuple[int, tuple[HostPort, ...]]:
    """How far in ms the write majority is behind this primary's newest entry, and which members would have to catch up.

    Members that are down do not count: no slowing of writers brings them back (map D10). Nor do delayed members, which
    are behind on purpose.
    """
    if node.config is None:
        return 0, ()
    positions = node.positions()
    lags = sorted(
        (0 if member.host == node.host else node.ages.lag_ms(positions[member.id].last_durable, node.now), member.id)
        for member in node.config.oplog_voters
        if member.id in positions and node.serves(member) and not member.secondary_delay_secs
    )
    needed = min(node.config.write_majority, len(lags))
    if not needed or not lags[needed - 1][0]:
        return 0, ()
    behind = {member_id for lag_ms, member_id in lags[needed - 1 :] if lag_ms}
    return lags[needed - 1][0], tuple(member.host for member in node.config.members if member.id in behind)
