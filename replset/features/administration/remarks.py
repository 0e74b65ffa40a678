"""Remarks of `replSetGetStatus`: what is wrong with the set as this member sees it, and the command to run next."""

from __future__ import annotations

from replset.config import Member, ReplSetConfig
from replset.config.feature_version import newer_features
from replset.core.follower import ROLLBACK_REFUSED
from replset.core.member_state import MemberState
from replset.core.role import holders, role_wait_ms
from replset.core.state import NodeState, Peer
from replset.core.status import Remark
from replset.core.waiting import way_out
from replset.ids import INCREMENT_BITS, HostPort, Millis, OpTime


def find_remarks(node: NodeState, now: Millis) -> tuple[Remark, ...]:
    """All problems, the most important first; empty when there is none."""
    if node.config is None:
        return ()
    if node.self_member is None:
        return (_not_named(node, node.config),)
    found = [_no_primary(node, node.config, now) if node.primary_id is None else _no_majority(node, node.config)]
    found.append(_quarantined(node.host, node.state, node.quarantine))
    found += [_quarantined(peer.host, peer.state, peer.quarantine) for peer in node.sorted_peers()]
    if node.newer_features is not None:
        found.append(Remark(newer_features(node.newer_features), "replset --version; docs/upgrade.md"))
    if node.damage and not node.quarantine:
        found.append(_damaged(node))
    if node.maintenance:
        found.append(_in_maintenance(node))
    found.append(_role_not_released(node))
    found.append(_one_copy_of_documents(node, node.config))
    found += [_not_reached(node, peer) for peer in node.sorted_peers() if not peer.is_up and peer.message]
    found += [_replaced(node.config, member) for member in node.config.members if member.spare_for is not None]
    return tuple(remark for remark in found if remark is not None)


def _not_named(node: NodeState, config: ReplSetConfig) -> Remark:
    """This member was removed, or was started under another address than the configuration has."""
    others = ", ".join(str(member.host) for member in config.members)
    return Remark(
        f"{node.host} is not in the set's configuration (version {config.version}: {others}): it was removed, or it"
        " runs under another address than it was added with",
        f"to take it in again: replset add {node.host} --host {config.members[0].host}; if it is to be one of these"
        " addresses: start it with that --port and --advertise",
    )


def _in_maintenance(node: NodeState) -> Remark:
    times = "once" if node.maintenance == 1 else f"{node.maintenance} times"
    return Remark(
        f"{node.host} is in maintenance mode, switched on {times}: it serves no reads and cannot be elected",
        f"replset maintenance off --host {node.host}",
    )


def _role_not_released(node: NodeState) -> Remark | None:
    """A new primary waits for the release of an earlier one, or this member's own hook has not released."""
    if node.is_primary and not node.writable and (silent := holders(node)):
        hosts = ", ".join(peer.host for peer in silent)
        return Remark(
            f"{node.host} takes no writes yet: {hosts} may still hold what a role hook gives to the primary",
            f"wait: within {role_wait_ms(node) / 1000:g} s it takes writes in any case",
        )
    if not node.is_primary and node.holds_role():
        return Remark(
            f"{node.host} is not primary, and its role hook has not released the role",
            f"read the log of {node.host}; call its hook with `release` by hand if it fails",
        )
    return None


def _is_up(node: NodeState, member: Member) -> bool:
    peer = node.peers.get(member.host)
    return member.host == node.host or (peer is not None and peer.is_up)


def _is_named(node: NodeState, member: Member) -> bool:
    """Whether the configuration names the disk that this member has now."""
    peer = node.peers.get(member.host)
    incarnation = node.incarnation if member.host == node.host else "" if peer is None else peer.incarnation
    return member.incarnation == incarnation


def _no_primary(node: NodeState, config: ReplSetConfig, now: Millis) -> Remark:
    up = [member for member in config.voters if _is_up(node, member)]
    if len(up) < config.majority_vote_count:
        down = ", ".join(str(member.host) for member in config.voters if member not in up)
        return Remark(
            f"no primary: an election takes {config.majority_vote_count} of {len(config.voters)} votes, and only"
            f" {len(up)} voter{'' if len(up) == 1 else 's'} can be reached from {node.host} (not: {down})",
            "start these members again; if they are gone for good: replset conf, take them out of it, replset reconfig"
            " FILE --force --accept (acknowledged writes may be lost)",
        )
    voteless = [member for member in up if not _is_named(node, member)]
    if len(up) - len(voteless) < config.majority_vote_count:
        hosts = ", ".join(str(member.host) for member in voteless)
        return Remark(
            f"no primary: an election takes {config.majority_vote_count} of {len(config.voters)} votes, and {hosts} may"
            " not vote: its disk was replaced, and only a primary gives it its vote back",
            f"if no other voter returns: replset conf, take {hosts} out of it, replset reconfig FILE --force --accept"
            f" on the member with the newest entry (replset oplog info), then replset add {voteless[0].host}",
        )
    hindrances = [(each, _why_no_candidate(node, each, now)) for each in config.members if each.is_electable]
    reasons = [f"{member.host} {why}" for member, why in hindrances if why]
    able = [member for member, why in hindrances if not why]
    if able and node.settings.manual_failover:
        return _waits_for_step_up(node, able, reasons)
    if able:
        within = node.settings.election_timeout_ms * 1.15 / 1000
        waits = f" ({'; '.join(reasons)})" if reasons else ""
        return Remark(
            f"no primary: the next election begins within {within:g} s{waits}", f"replset status --host {node.host}"
        )
    return Remark(
        f"no primary: no member can be elected: {'; '.join(reasons) or 'none may, by priority and role'}",
        "correct that on one of them; `replset status --host` of that member says more",
    )


def _waits_for_step_up(node: NodeState, able: list[Member], reasons: list[str]) -> Remark:
    """Who could lead and what would be rolled back. A dead member counts with the newest entry that it told of."""
    applied = {host: peer.position.last_applied for host, peer in node.peers.items()}
    applied[node.host] = node.position.last_applied
    newest = max(applied.values())
    able = sorted(able, key=lambda member: (applied[member.host], member.priority, -member.id), reverse=True)
    told = [f"{member.host} ({_loss(node, applied[member.host], newest)})" for member in able]
    return Remark(
        f'no primary, and settings.failover is "manual": nobody stands by itself. These can lead: {", ".join(told)}'
        + (f"; these cannot: {'; '.join(reasons)}" if reasons else ""),
        f"replset step-up {able[0].host}",
    )


def _loss(node: NodeState, own: OpTime, newest: OpTime) -> str:
    if own >= newest:
        return "lacks no entry that is known of"
    behind = (newest.ts >> INCREMENT_BITS) - (own.ts >> INCREMENT_BITS)
    span = f"{behind} s" if behind > 0 else "less than 1 s"
    committed = ", also entries that a majority has" if own < node.commit_point else ""
    return f"lacks entries of {span}: has {own}, the newest known is {newest}{committed}"


def _why_no_candidate(node: NodeState, member: Member, now: Millis) -> str:
    """Why an electable member cannot be elected now; empty: it can."""
    if member.host == node.host:
        return _why_not_candidate_here(node, now) or _who_refuses(node, member)
    peer = node.peers.get(member.host)
    if peer is None or not peer.is_up:
        return "cannot be reached"
    if peer.quarantine:
        return "keeps out of the set"
    if peer.state is not MemberState.SECONDARY:
        return f"is {peer.state.name}"
    if not peer.electable:
        return "cannot be elected now (its disk is full or slow, or it is frozen)"
    return _who_refuses(node, member)


def _who_refuses(node: NodeState, member: Member) -> str:
    """Whose newest entries it lacks, if their votes are needed; empty: it can win.

    It fetches them at once. Where they are trimmed away, as a witness's may be, it waits for another member.
    """
    if node.config is None:
        return ""
    peers = node.peers
    newest = {host: peer.position.last_applied for host, peer in peers.items()} | {
        node.host: node.position.last_applied
    }
    up = [voter for voter in node.config.voters if _is_up(node, voter)]
    ahead = [voter.host for voter in up if voter.holds_oplog and newest[voter.host] > newest[member.host]]
    if len(up) - len(ahead) >= node.config.majority_vote_count:
        return ""
    return f"lacks the newest entries of {', '.join(ahead)}; if it cannot fetch them, start a member that has them"


def _why_not_candidate_here(node: NodeState, now: Millis) -> str:
    if node.quarantine:
        return "keeps out of the set"
    if node.state is not MemberState.SECONDARY:
        return f"is {node.state.name}"
    if node.disk_stalled:
        return "has no space on its disk, or its disk does not sync"
    if now < node.frozen_until:
        seconds = (node.frozen_until - now + 999) // 1000
        return f"is frozen for {seconds} s more, by freeze or step-down (replset freeze 0 --host {node.host} ends it)"
    return "" if node.is_electable else "has no vote: the configuration does not name its incarnation"


def _no_majority(node: NodeState, config: ReplSetConfig) -> Remark | None:
    """There is a primary, and too few members with data are up: majority writes wait (map D6)."""
    down = [member for member in config.oplog_voters if not _is_up(node, member)]
    copies = len(config.oplog_voters) - len(down)
    if copies >= config.write_majority:
        return None
    names = ", ".join(str(member.host) for member in down)
    return Remark(
        f"majority writes wait: they need {config.write_majority} copies, and {copies} of {len(config.oplog_voters)}"
        f" voting members with data can be reached (not: {names}); an arbiter holds no copy",
        way_out(node, config, down),
    )


def _one_copy_of_documents(node: NodeState, config: ReplSetConfig) -> Remark | None:
    """Majority writes go on with a witness, and only one reachable member has the documents."""
    bearing = [member for member in config.oplog_voters if member.bears_data]
    up = [member for member in bearing if _is_up(node, member)]
    if len(bearing) == len(config.oplog_voters) or len(up) != 1 or len(bearing) < 2:
        return None
    names = ", ".join(str(member.host) for member in bearing if member not in up)
    return Remark(
        f"only {up[0].host} has the documents of new majority writes; beside it a witness keeps their entries"
        f" (not reachable: {names})",
        f"start {names} again before the witness's oplog no longer reaches back to it",
    )


def _quarantined(host: HostPort, state: MemberState, why: str) -> Remark | None:
    if not why:
        return None
    if state is MemberState.STARTUP2:
        then = "it copies by itself once another member has what it lost; otherwise stop it: replset repair DBPATH"
    else:
        # A copy that lacks what a member knows to be committed is refused unless it is forced.
        force = " --force" if why.startswith(ROLLBACK_REFUSED) else ""
        then = f"after a look at what it exported: replset resync{force} --host {host}"
    return Remark(f"{host} keeps out of the set: {why}", then)


def _damaged(node: NodeState) -> Remark:
    """This member has damage, and the others cannot elect a primary without it."""
    return Remark(
        f"{node.host} holds damaged entries and serves on while the others need it: {node.damage}",
        f"oplog-spark verify DBPATH lists them; once the others can go on without it:"
        f" replset resync --host {node.host}",
    )


def _not_reached(node: NodeState, peer: Peer) -> Remark:
    if peer.last_contact > peer.state_since and peer.is_heard(node.now, node.settings):
        return Remark(
            f"{peer.host} runs and sends messages, and does not answer: {peer.message}",
            f"look at the network to it, and at the address that it listens on: replset status --host {peer.host}",
        )
    if peer.last_reply_wall_ms:
        return Remark(
            f"{peer.host} is not reachable: {peer.message}",
            f"start it again (replset start, replset cluster up), then: replset status --host {peer.host}",
        )
    return Remark(
        f"{peer.host} has not answered since this member was started: {peer.message}",
        f"start a member of set {node.set_name} with exactly this address (replset status --host {peer.host}); if the"
        f" address is wrong: replset remove {peer.host}, then replset add with the right one",
    )


def _replaced(config: ReplSetConfig, spare: Member) -> Remark | None:
    voter = config.member(spare.spare_for)
    if voter is None:
        return None
    return Remark(
        f"{spare.host} votes in the place of {voter.host}",
        f"start {voter.host}: it has its vote back after {spare.spare_after_secs} s in service; if it is gone for good:"
        f" replset remove {voter.host}, and the spare stays a voter",
    )
