"""What is wrong with the set as this member sees it: why, and the command that comes next. For people, in `status`."""

from __future__ import annotations

from dataclasses import dataclass

from replset.config import Member, ReplSetConfig
from replset.core.following import ROLLBACK_REFUSED
from replset.core.member_state import MemberState
from replset.core.memory import Memory, Peer
from replset.ids import HostPort, Millis


@dataclass(frozen=True, slots=True)
class Remark:
    """why: what is wrong, in a sentence. then: what to do next, a command wherever there is one."""

    why: str
    then: str


def remarks(m: Memory, now: Millis) -> tuple[Remark, ...]:
    """What a person should know and do, the most important first; empty when nothing is wrong."""
    if m.config is None:
        return ()
    if m.self_member is None:
        return (_not_named(m, m.config),)
    found = [_no_primary(m, m.config, now) if m.primary_id is None else _no_majority(m, m.config)]
    found.append(_quarantined(m.host, m.state, m.quarantine))
    found += [_quarantined(peer.host, peer.state, peer.quarantine) for peer in m.sorted_peers()]
    if m.damage and not m.quarantine:
        found.append(_damaged(m))
    found += [_not_reached(m, peer) for peer in m.sorted_peers() if not peer.is_up and peer.message]
    return tuple(remark for remark in found if remark is not None)


def _not_named(m: Memory, config: ReplSetConfig) -> Remark:
    """Removed, or started under another address than the configuration has."""
    others = ", ".join(str(member.host) for member in config.members)
    return Remark(
        f"{m.host} is not in the set's configuration (version {config.version}: {others}): it was removed, or it runs"
        " under another address than it was added with",
        f"to take it in again: replset add {m.host} --host {config.members[0].host}; if it is to be one of these"
        " addresses: start it with that --port and --advertise",
    )


def _is_up(m: Memory, member: Member) -> bool:
    peer = m.peers.get(member.host)
    return member.host == m.host or (peer is not None and peer.is_up)


def _no_primary(m: Memory, config: ReplSetConfig, now: Millis) -> Remark:
    up = [member for member in config.voters if _is_up(m, member)]
    if len(up) < config.majority_vote_count:
        down = ", ".join(str(member.host) for member in config.voters if member not in up)
        return Remark(
            f"no primary: an election takes {config.majority_vote_count} of {len(config.voters)} votes, and only"
            f" {len(up)} voters can be reached from {m.host} (not: {down})",
            "start these members again; if they are gone for good: replset conf, take them out of it, replset reconfig"
            " FILE --force --accept (acknowledged writes may be lost)",
        )
    reasons = [
        f"{member.host} {why}"
        for member in config.members
        if member.is_electable and (why := _why_not_standing(m, member, now))
    ]
    if len(reasons) < sum(member.is_electable for member in config.members):
        within = m.settings.election_timeout_ms * 1.15 / 1000
        waits = f" ({'; '.join(reasons)})" if reasons else ""
        return Remark(
            f"no primary: the next election begins within {within:g} s{waits}", f"replset status --host {m.host}"
        )
    return Remark(
        f"no primary: no member stands for election: {'; '.join(reasons) or 'none may, by priority and role'}",
        "mend that on one of them; `replset status --host` of that member says more",
    )


def _why_not_standing(m: Memory, member: Member, now: Millis) -> str:
    """Why an electable member does not stand for election now; empty: it does."""
    if member.host == m.host:
        return _why_i_do_not_stand(m, now)
    peer = m.peers.get(member.host)
    if peer is None or not peer.is_up:
        return "cannot be reached"
    if peer.quarantine:
        return "keeps out of the set"
    if peer.state is not MemberState.SECONDARY:
        return f"is {peer.state.name}"
    return "" if peer.electable else "does not stand now (its disk is full or slow, or it is frozen)"


def _why_i_do_not_stand(m: Memory, now: Millis) -> str:
    if m.quarantine:
        return "keeps out of the set"
    if m.state is not MemberState.SECONDARY:
        return f"is {m.state.name}"
    if m.disk_stalled:
        return "has no room on its disk, or its disk does not sync"
    if now < m.frozen_until:
        seconds = (m.frozen_until - now + 999) // 1000
        return f"does not stand for {seconds} s more, by freeze or step-down (replset freeze 0 --host {m.host} ends it)"
    return "" if m.is_electable else "has no vote: the configuration does not name its data"


def _no_majority(m: Memory, config: ReplSetConfig) -> Remark | None:
    """A primary leads, and too few members with data are there: majority writes wait. The arbiter's trap (map D6)."""
    down = [member for member in config.data_voters if not _is_up(m, member)]
    copies = len(config.data_voters) - len(down)
    if copies >= config.write_majority:
        return None
    names = ", ".join(str(member.host) for member in down)
    return Remark(
        f"majority writes wait: they need {config.write_majority} copies, and {copies} of {len(config.data_voters)}"
        f" voting members with data can be reached (not: {names}); an arbiter holds no copy",
        f"start {names} again; should it stay away: replset remove {down[0].host} --accept",
    )


def _quarantined(host: HostPort, state: MemberState, why: str) -> Remark | None:
    if not why:
        return None
    if state is MemberState.STARTUP2:
        then = "it copies by itself once another member has what it lost; else stop it: replset repair DBPATH"
    else:
        # A copy that lacks what a member knows to be committed is refused unless it is forced.
        force = " --force" if why.startswith(ROLLBACK_REFUSED) else ""
        then = f"when what it exported is looked at: replset resync{force} --host {host}"
    return Remark(f"{host} keeps out of the set: {why}", then)


def _damaged(m: Memory) -> Remark:
    """It serves on because the others cannot do without it."""
    return Remark(
        f"{m.host} holds damaged entries and serves on while the others need it: {m.damage}",
        f"oplog-spark verify DBPATH lists them; once the others can go on without it: replset resync --host {m.host}",
    )


def _not_reached(m: Memory, peer: Peer) -> Remark:
    if peer.last_reply_wall_ms:
        return Remark(
            f"{peer.host} is not reachable: {peer.message}",
            f"start it again (replset start, replset cluster up), then: replset status --host {peer.host}",
        )
    return Remark(
        f"{peer.host} has not answered since this member was started: {peer.message}",
        f"start a member of set {m.set_name} with exactly this address (replset status --host {peer.host}); if the"
        f" address is wrong: replset remove {peer.host}, then replset add with the right one",
    )
