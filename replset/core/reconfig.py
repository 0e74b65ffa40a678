"""Changing the configuration: initiate, safe and forced reconfig, and the primary's own changes (map C9 to C16).

A change needs the current configuration committed and the previous term's writes too (map C10, C11). The primary's own
changes keep votes where the data is: a voter that tells another incarnation first becomes `newlyAdded` (no vote);
once that is committed and the member has reached the primary's newest entry of that moment (an arbiter: at once), the
new incarnation is named and the vote given back. One voter at a time. Beside arbiters a primary can commit alone, so a
vote comes only where no election can pass by what is committed; the commit point waits for that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum

from replset.bson import ObjectId
from replset.config import MAX_VERSION, Member, ReplSetConfig
from replset.core.effects import AppendNoop, ConfigInstalled, InitialSyncNotNeeded, Persist
from replset.core.election import Elections
from replset.core.leader import Leader, Phase
from replset.core.member_state import MemberState
from replset.core.messages import (
    Done,
    HeartbeatReply,
    HeartbeatRequest,
    InitiateRequest,
    ReconfigRequest,
    Refused,
    Response,
)
from replset.core.quorum import commit_point
from replset.core.state import NEVER, NO_POSITION, NodeState, Peer
from replset.core.write_concern import implicit_default
from replset.errors import ErrorCode
from replset.ids import OPTIME_NULL, HostPort, MemberId, Millis, OpTime

LOOK_AGAIN_MS = 100
FIRST_TERM = 1  # of the initiate; the first election is for the next one
MANY_ARBITERS = "more than one arbiter needs --allow-multiple-arbiters on every member"


class ReconfigStage(Enum):
    """Where a requested change is."""

    WAITING = "waiting for the current configuration to be committed"
    CHECKING = "asking the members of the new configuration"
    PROPAGATING = "waiting for a majority to have the new configuration"


@dataclass(slots=True)
class PendingReconfig:
    """One change that somebody asked for. `pending`: request id -> host of the quorum check's open questions.

    made_of: version and term of the configuration that it changes, None when there was none.
    """

    request_id: int
    config: ReplSetConfig
    stage: ReconfigStage
    made_of: tuple[int, int] | None
    deadline: Millis = NEVER
    initiating: bool = False
    pending: dict[int, HostPort] = field(default_factory=dict)
    answers: dict[HostPort, HeartbeatReply] = field(default_factory=dict)
    failures: dict[HostPort, str] = field(default_factory=dict)


def reconfig_refusal(
    old: ReplSetConfig, new: ReplSetConfig, me: HostPort, *, force: bool, default_set: bool
) -> Refused | None:
    """Why `new` may not follow `old`, None when it may (map C10, C13, C15, C16). Changes nothing."""
    if new.set_name != old.set_name:
        return Refused(
            ErrorCode.NEW_CONFIG_INCOMPATIBLE, f"the set's name is {old.set_name!r} and cannot become {new.set_name!r}"
        )
    if not force and new.version <= old.version:
        return Refused(
            ErrorCode.NEW_CONFIG_INCOMPATIBLE,
            f"version {new.version} must be greater than the current one, {old.version}",
        )
    if new.settings.replica_set_id not in (None, old.settings.replica_set_id):
        return Refused(ErrorCode.NEW_CONFIG_INCOMPATIBLE, "settings.replicaSetId cannot change")
    for index, member in enumerate(new.members):
        before = old.member_at(member.host)
        if before is None:
            continue
        at = f"members.{index} ({member.host})"
        if before.id != member.id:
            return Refused(
                ErrorCode.NEW_CONFIG_INCOMPATIBLE, f"{at}: its _id is {before.id} and cannot become {member.id}"
            )
        if before.arbiter_only != member.arbiter_only:
            return Refused(
                ErrorCode.NEW_CONFIG_INCOMPATIBLE,
                f"{at}: arbiterOnly cannot change; remove the member, then add it again",
            )
        if before.build_indexes != member.build_indexes:
            return Refused(
                ErrorCode.NEW_CONFIG_INCOMPATIBLE,
                f"{at}: buildIndexes cannot change; remove the member, then add it again",
            )
    mine = new.member_at(me)
    if mine is None:
        return Refused(ErrorCode.NODE_NOT_FOUND, f"this member, {me}, is not in the new configuration")
    if not force and (mine.arbiter_only or mine.priority == 0):
        return Refused(ErrorCode.NODE_NOT_ELECTABLE, f"this member, {me}, must stay electable: it is the primary")
    before_voters = {member.id for member in old.members if member.votes}
    after_voters = {member.id for member in new.members if member.votes}
    # Another host under a voter's id is another disk: it begins as newlyAdded, so the voter that was there goes.
    gone = {member.host for member in old.voters} - {member.host for member in new.members if member.votes}
    if not force and (len(before_voters ^ after_voters) > 1 or len(gone) > 1):
        return Refused(ErrorCode.INVALID_CONFIG, "at most one voter may be added or removed at a time")
    if not default_set and implicit_default(old).w != implicit_default(new).w:
        return Refused(
            ErrorCode.NEW_CONFIG_INCOMPATIBLE,
            "this would change the implicit default write concern from "
            f"{{w: {implicit_default(old).w}}} to {{w: {implicit_default(new).w}}}; run setDefaultRWConcern first",
        )
    return None if force else _psa_refusal(old, new)


def _psa_refusal(old: ReplSetConfig, new: ReplSetConfig) -> Refused | None:
    """A new voter beside an arbiter could roll back majority writes at once: first priority 0, then more (map C15)."""
    was = [member for member in old.members if member.votes]
    old_holders = sum(member.bears_data for member in was)
    voters = [member for member in new.members if member.votes]
    is_psa = len(voters) == 3 and sum(member.arbiter_only for member in voters) == 1
    electable = sum(member.priority > 0 and member.bears_data for member in voters)
    if old_holders < len(was) // 2 + 1 and is_psa and electable > 1:
        return Refused(
            ErrorCode.NEW_CONFIG_INCOMPATIBLE,
            "from a primary and an arbiter to a primary, a secondary and an arbiter in one step is not safe: add the "
            "secondary with priority 0, let it catch up, then raise its priority",
        )
    return None


def completed(old: ReplSetConfig, new: ReplSetConfig, term: int) -> ReplSetConfig:
    """`new` with what users do not write: term, set id, incarnations; a voter that is new has no vote yet (map C14)."""
    members = []
    for member in new.members:
        before = old.member_at(member.host)
        if before is not None and before.votes == member.votes:
            members.append(replace(member, newly_added=before.newly_added, incarnation=before.incarnation))
        else:
            members.append(replace(member, newly_added=member.votes == 1, incarnation=None))
    settings = replace(new.settings, replica_set_id=old.settings.replica_set_id)
    return replace(new, term=term, members=tuple(members), settings=settings)


class Reconfigs:
    """The configuration of this member and every way in which it changes."""

    def __init__(self, node: NodeState, elections: Elections, leader: Leader) -> None:
        self.node = node
        self._elections = elections
        self._leader = leader
        self.check_request: Callable[[bool], HeartbeatRequest] | None = None  # set by the node
        self._change: PendingReconfig | None = None
        self._committed_at_install = OPTIME_NULL
        self._targets: dict[MemberId, OpTime] = {}

    # --- requests ------------------------------------------------------------------------------------------------

    def on_initiate(self, request_id: int, request: InitiateRequest) -> None:
        node = self.node
        refusal = self._initiate_refusal(request.config)
        if refusal is not None:
            node.reply(request_id, refusal)
            return
        set_id = ObjectId((node.wall_ms() // 1000).to_bytes(4, "big") + node.rng.getrandbits(64).to_bytes(8, "big"))
        config = replace(
            request.config, version=1, term=FIRST_TERM, settings=replace(request.config.settings, replica_set_id=set_id)
        )
        self._change = PendingReconfig(request_id, config, ReconfigStage.CHECKING, None, initiating=True)
        self._ask_members(self._change)

    def _initiate_refusal(self, config: ReplSetConfig) -> Refused | None:
        node = self.node
        if node.config is not None:
            return Refused(ErrorCode.ALREADY_INITIALIZED, "the set is initiated already")
        if self._change is not None:
            return Refused(ErrorCode.CONFIGURATION_IN_PROGRESS, "an initiate is under way already")
        if node.position.last_applied.term > FIRST_TERM:
            # Its member.db was lost, its data was not: a new set would take entries of another one for its own. In the
            # first term there is only what an initiate writes, and one that a crash ended may be done again.
            return Refused(
                ErrorCode.CANNOT_INITIALIZE_NODE_WITH_DATA,
                f"this member holds the data of a set, up to {node.position.last_applied}, and no configuration:"
                " where it is still a member, that set finds it and it copies its data anew; to make a new set, start"
                " it with an empty dbpath",
            )
        if config.set_name != node.set_name:
            return Refused(
                ErrorCode.INVALID_CONFIG, f"this member was started for set {node.set_name!r}, not {config.set_name!r}"
            )
        if config.version != 1:
            return Refused(
                ErrorCode.NEW_CONFIG_INCOMPATIBLE, f"the first configuration has version 1, not {config.version}"
            )
        if self._has_too_many_arbiters(config, None):
            return Refused(ErrorCode.BAD_VALUE, MANY_ARBITERS)
        if config.settings.replica_set_id is not None:
            return Refused(ErrorCode.INVALID_CONFIG, "settings.replicaSetId is the server's to set")
        if any(member.newly_added for member in config.members):
            return Refused(ErrorCode.INVALID_CONFIG, "newlyAdded is the server's to set")
        mine = config.member_at(node.host)
        if mine is None:
            return Refused(ErrorCode.NODE_NOT_FOUND, f"none of the members is this one, {node.host}")
        if not mine.is_electable:
            return Refused(
                ErrorCode.NODE_NOT_ELECTABLE, f"this member, {node.host}, must be electable to initiate the set"
            )
        return None

    def _has_too_many_arbiters(self, new: ReplSetConfig, old: ReplSetConfig | None) -> bool:
        """More than one needs a start option (map C6); those that are there already may stay."""
        count = sum(member.arbiter_only for member in new.members)
        before = 0 if old is None else sum(member.arbiter_only for member in old.members)
        return count > max(1, before) and not self.node.allow_multiple_arbiters

    def on_reconfig(self, request_id: int, request: ReconfigRequest) -> None:
        node = self.node
        refusal = self._request_refusal(request)
        if refusal is not None or node.config is None:
            node.reply(request_id, refusal or Refused(ErrorCode.NOT_YET_INITIALIZED, "the set is not initiated"))
            return
        config = completed(node.config, request.config, -1 if request.force else node.term)
        if request.force:
            self._force(request_id, config, max(node.config.version, request.config.version))
            return
        deadline = NEVER if request.max_time_ms <= 0 else Millis(node.now + request.max_time_ms)
        self._change = PendingReconfig(
            request_id, config, ReconfigStage.WAITING, node.config.version_and_term, deadline
        )
        self.advance()

    def _force(self, request_id: int, config: ReplSetConfig, version: int) -> None:
        """Install at once, whatever the others have (map C13). Whoever forces it is named in it."""
        node = self.node
        version += 10_000 + node.rng.randrange(100_000)
        if version > MAX_VERSION:
            node.reply(
                request_id,
                Refused(ErrorCode.NEW_CONFIG_INCOMPATIBLE, "the version would pass the highest one that there is"),
            )
            return
        mine = config.member_at(node.host)
        if mine is not None and mine.votes and not node.must_sync:
            config = config.with_member(replace(mine, newly_added=False, incarnation=node.incarnation))
        self.install(replace(config, version=version))
        node.reply(request_id, Done())

    def _request_refusal(self, request: ReconfigRequest) -> Refused | None:
        node = self.node
        if node.config is None:
            return Refused(ErrorCode.NOT_YET_INITIALIZED, "the set is not initiated")
        if self._change is not None:
            return Refused(ErrorCode.CONFIGURATION_IN_PROGRESS, "another reconfig is under way")
        if not request.force and not node.writable:
            return Refused(
                ErrorCode.NOT_WRITABLE_PRIMARY,
                f"only the primary can reconfigure; known primary: {node.primary_host or 'none'}",
            )
        if any(member.newly_added for member in request.config.members):
            return Refused(ErrorCode.INVALID_CONFIG, "newlyAdded is the server's to set")
        if self._has_too_many_arbiters(request.config, node.config):
            return Refused(ErrorCode.BAD_VALUE, MANY_ARBITERS)
        return reconfig_refusal(
            node.config, request.config, node.host, force=request.force, default_set=node.default_write_concern_set()
        )

    # --- a change on its way -------------------------------------------------------------------------------------

    def tick(self) -> None:
        node = self.node
        self.advance()
        waited, node.commit_point_paused = node.commit_point_paused, False
        if self._change is None:
            self._change_by_itself()
        if node.commit_point_paused and not waited:
            node.journal("reconfig", "majority writes wait for a member that is about to get its vote")

    def next_due(self) -> Millis:
        return NEVER if self._change is None else self._change.deadline

    def advance(self) -> None:
        """Take the change as far as it can go now."""
        node, change = self.node, self._change
        if change is None:
            return
        now_in_force = None if node.config is None else node.config.version_and_term
        if change.stage is not ReconfigStage.PROPAGATING and now_in_force != change.made_of:
            code = ErrorCode.ALREADY_INITIALIZED if change.initiating else ErrorCode.NEW_CONFIG_INCOMPATIBLE
            self._end(change, Refused(code, "another configuration came meanwhile"))
        elif not change.initiating and node.state is not MemberState.PRIMARY:
            self._end(
                change, Refused(ErrorCode.PRIMARY_STEPPED_DOWN, "this member stepped down before the change was done")
            )
        elif change.stage is ReconfigStage.WAITING and self.is_committed():
            change.stage = ReconfigStage.CHECKING
            self._ask_members(change)
        elif change.stage is ReconfigStage.PROPAGATING and self.node.is_config_committed:
            self._end(change, Done())
        elif node.now >= change.deadline:
            self._end(change, Refused(ErrorCode.CONFIG_NOT_COMMITTED_YET, f"out of time while {change.stage.value}"))

    def _end(self, change: PendingReconfig, answer: Done | Refused) -> None:
        self._change = None
        self.node.reply(change.request_id, answer)

    def _ask_members(self, change: PendingReconfig) -> None:
        """The quorum check: a heartbeat to every other member of the new configuration (map C12)."""
        node = self.node
        if self.check_request is None:
            return
        for member in change.config.members:
            if member.host != node.host:
                request = self.check_request(change.initiating)
                change.pending[node.send(member.host, request, node.settings.heartbeat_timeout_ms)] = member.host
        self._consider(change)

    def awaits(self, request_id: int) -> bool:
        return self._change is not None and request_id in self._change.pending

    def on_response(self, response: Response) -> None:
        change = self._change
        if change is None:
            return
        host = change.pending.pop(response.request_id)
        if isinstance(response.body, HeartbeatReply):
            self._elections.accept_term(host, response.body.term)
            change.answers[host] = response.body
        else:
            change.failures[host] = response.body.reason if isinstance(response.body, Refused) else response.error
            if isinstance(response.body, Refused):
                self._end(change, Refused(ErrorCode.NEW_CONFIG_INCOMPATIBLE, f"{host} refuses: {response.body.reason}"))
                return
        self.advance()  # a higher term may have ended it
        if self._change is change:
            self._consider(change)

    def _consider(self, change: PendingReconfig) -> None:
        veto = self._veto(change)
        if veto is not None:
            self._end(change, veto)
        elif change.initiating:
            self._consider_initiate(change)
        else:
            self._consider_reconfig(change)

    def _veto(self, change: PendingReconfig) -> Refused | None:
        node = self.node
        found = {node.incarnation: node.host}
        for host, answer in sorted(change.answers.items()):
            other = found.setdefault(answer.incarnation, host)
            if other != host:
                # One disk under two names would count twice for a majority.
                return Refused(ErrorCode.INVALID_CONFIG, f"the hosts {other} and {host} are the same member")
            if change.initiating:
                if answer.has_data or answer.config_version > 0:
                    return Refused(
                        ErrorCode.CANNOT_INITIALIZE_NODE_WITH_DATA, f"{host} holds data or a configuration already"
                    )
            elif answer.config is not None and node.config is not None and answer.config.newer_than(node.config):
                return Refused(
                    ErrorCode.NEW_CONFIG_INCOMPATIBLE,
                    f"{host} has a newer configuration (version {answer.config_version})",
                )
        return None

    def _consider_initiate(self, change: PendingReconfig) -> None:
        """Every other member must have answered, and be empty."""
        if change.pending:
            return
        if change.failures:
            host, why = min(change.failures.items())
            self._end(change, Refused(ErrorCode.NODE_NOT_FOUND, f"cannot reach {host}: {why}"))
            return
        node = self.node
        found = {host: answer.incarnation for host, answer in change.answers.items()}
        found[node.host] = node.incarnation
        members = tuple(replace(member, incarnation=found[member.host]) for member in change.config.members)
        # My data is the set's from here on; its first entry stands before the configuration does.
        node.initial_sync_pending = False
        node.emit(Persist(InitialSyncNotNeeded()), AppendNoop(FIRST_TERM, "initiating set"))
        self.install(replace(change.config, members=members))
        self._end(change, Done())

    def _consider_reconfig(self, change: PendingReconfig) -> None:
        """A majority of the new voters must answer with the data that has the vote, one electable member among them."""
        node, config = self.node, change.config
        told = {host: answer.incarnation for host, answer in change.answers.items()} | {node.host: node.incarnation}
        answered = {member.host for member in config.members if member.host in told}
        votes = sum(told.get(voter.host) == voter.incarnation for voter in config.voters)
        electable = any(member.host in answered and member.is_electable for member in config.members)
        if self._awaits_new_host(change):
            return
        if votes >= config.majority_vote_count and electable:
            change.pending.clear()
            change.stage = ReconfigStage.PROPAGATING
            self.install(config)
            node.emit(AppendNoop(node.term, "Reconfig set"))
            self.advance()
        elif not change.pending:
            lacking = [f"{host}: {why}" for host, why in sorted(change.failures.items())]
            lacking += [
                f"{voter.host}: it has other data than the one that has its vote"
                for voter in config.voters
                if voter.host in answered and told[voter.host] != voter.incarnation
            ]
            text = f"a majority of the new voters must answer: {'; '.join(lacking)}"
            self._end(change, Refused(ErrorCode.NODE_NOT_FOUND, text))

    def _awaits_new_host(self, change: PendingReconfig) -> bool:
        """Whether a host that was no member has not answered yet: it may be another name of one that is."""
        return any(not self.node.is_member(host) for host in change.pending.values())

    # --- committed? ----------------------------------------------------------------------------------------------

    def is_committed(self) -> bool:
        """Whether the next change may come: this configuration, and the writes before it, are on majorities (C11)."""
        return self.node.is_config_committed and self._is_oplog_committed(self.node.config)

    def _is_oplog_committed(self, config: ReplSetConfig | None, lost: int = 0) -> bool:
        """Whether an entry of my term, and with it all that came before the last change, is on a write majority.

        lost: data-bearing voters of `config` whose disk is known to be lost, so that they hold nothing.
        """
        node = self.node
        if config is None or self._leader.phase is not Phase.ACTIVE:
            return False
        holders = [member.id for member in config.data_voters]
        durable = {member_id: position.last_durable for member_id, position in node.positions().items()}
        needed = max(1, config.write_majority - lost)
        held = commit_point(durable, holders, needed, node.term) if holders else OPTIME_NULL
        return held != OPTIME_NULL and held >= self._committed_at_install

    # --- installing ----------------------------------------------------------------------------------------------

    def install(self, config: ReplSetConfig) -> None:
        """Make `config` the one in force; durable before anybody hears of it."""
        node = self.node
        node.emit(Persist(config))
        node.config = config
        node.term = max(node.term, config.term)
        self._committed_at_install = node.commit_point
        self._elections.end_round("the configuration changed")
        self.update_peers()
        node.emit(ConfigInstalled(config))
        node.restart_heartbeats()  # they hear of it at once, not with the next round; the primary counts who has it
        self._take_place()
        self._leader.on_progress_changed()

    def install_from_heartbeat(self, config: ReplSetConfig) -> None:
        """Another member has a newer one: take it, unless this primary is not done with stepping up (map H6)."""
        node = self.node
        if config.set_name != node.set_name or self._leader.phase in (Phase.CATCH_UP, Phase.DRAIN):
            return
        if node.config is not None and node.set_id != config.settings.replica_set_id:
            return  # another set of the same name: neither its members nor its history are mine
        if node.term_refusal(config.term) is not None:
            return
        if node.config is None and config.member_at(node.host) is None:
            return  # about to be added: the one that names me comes next
        if node.config is None or config.newer_than(node.config):
            self.install(config)

    def update_peers(self) -> None:
        """Know exactly the other members of the configuration."""
        node = self.node
        known = node.peers
        node.peers = {}
        for member in () if node.config is None else node.config.members:
            if member.host == node.host or node.self_member is None:
                continue  # who was removed asks nobody; it is asked when it is added again
            peer = known.get(member.host)
            if peer is None or peer.id != member.id:
                peer = Peer(member.host, member.id, node.now, heartbeat_due=node.now)
            node.peers[member.host] = peer
        if node.primary_id is not None and node.config is not None and node.config.member(node.primary_id) is None:
            node.set_primary(None)

    def _take_place(self) -> None:
        """Which state the configuration puts this member in."""
        node = self.node
        member = node.self_member
        if member is None:
            self._leader.step_down("it is not in the configuration any more")
            node.become(MemberState.REMOVED)
            return
        if node.state is MemberState.PRIMARY:
            if not member.is_electable:
                self._leader.step_down("the configuration makes it unelectable")
            return
        if node.state in (MemberState.STARTUP, MemberState.REMOVED):
            node.become(self.initial_state(member))
        node.push_election_timer()

    def initial_state(self, member: Member) -> MemberState:
        """The state in which a member of the configuration begins."""
        if member.arbiter_only:
            return MemberState.ARBITER
        if self.node.rolling_back:
            return MemberState.ROLLBACK
        if self.node.initial_sync_pending:
            return MemberState.STARTUP2
        return MemberState.RECOVERING if self.node.quarantine else MemberState.SECONDARY

    def on_step_up(self) -> None:
        """The term in the configuration moves at step-up (map E7)."""
        node = self.node
        self._targets.clear()
        # A forced configuration has no term until the next safe change: with one it would not be newer than itself.
        if node.config is not None and node.config.term not in (-1, node.term):
            self.install(replace(node.config, term=node.term))

    # --- the primary's own changes -------------------------------------------------------------------------------

    def _change_by_itself(self) -> None:
        node = self.node
        if not node.writable or node.config is None or not node.is_config_committed:
            return
        for member in node.config.members:
            peer = node.peers.get(member.host)
            if peer is None or member.votes == 0 or not peer.is_up:
                continue
            changed = self._demoted(member, peer) if member.is_voter else self._promoted(member, peer)
            if changed is not None:
                self.install(replace(node.config.with_member(changed), version=node.config.version + 1, term=node.term))
                node.emit(AppendNoop(node.term, "Reconfig set"))
                return

    def _demoted(self, member: Member, peer: Peer) -> Member | None:
        node = self.node
        if node.config is None or not peer.incarnation or peer.incarnation == member.incarnation:
            return None
        # The lost disk holds nothing any more, so what came before must be on a write majority of those who stay: of
        # n - 1 voters, the n // 2 that this means meet every election. Asking for one of all n could wait for ever.
        # Another one whose disk is lost as well holds nothing either, and cannot vote: without it on both sides of the
        # count, what is left still meets every election, and two lost disks do not wait for each other.
        without = node.config.with_member(replace(member, newly_added=True))
        if not self._is_oplog_committed(without, sum(self._has_lost_disk(voter) for voter in without.data_voters)):
            return None
        node.journal("reconfig", f"{member.host} has other data than the one that has its vote: newlyAdded")
        return replace(member, newly_added=True, incarnation=None)

    def _has_lost_disk(self, voter: Member) -> bool:
        """Whether the voter tells another incarnation than the one that has its vote."""
        peer = self.node.peers.get(voter.host)
        return peer is not None and bool(peer.incarnation) and peer.incarnation != voter.incarnation

    def _promoted(self, member: Member, peer: Peer) -> Member | None:
        """Give the vote (back) once the member has what I had when its newlyAdded was committed."""
        node = self.node
        if node.config is None or (peer.config_version, peer.config_term) != node.config.version_and_term:
            return None  # it does not take my configuration, so it may be a member of something else
        if not peer.incarnation or not self._is_oplog_committed(node.config):
            return None
        if peer.quarantine or self._is_somebody_else(peer):
            return None  # it keeps out of the set; or it has a vote already, under another name
        if not member.arbiter_only:
            if peer.state not in (MemberState.SECONDARY, MemberState.RECOVERING):
                return None
            target = self._targets.setdefault(member.id, node.position.last_applied)
            if peer.position.last_applied < target or not peer.has_data:
                return None
        elif peer.state is not MemberState.ARBITER:
            return None
        voting = replace(member, newly_added=False, incarnation=peer.incarnation)
        if not self._elections_meet_commit_point(node.config.with_member(voting)):
            node.commit_point_paused = True  # or who writes all the time would stay ahead of it for ever
            peer.heartbeat_due = Millis(min(peer.heartbeat_due, node.now + LOOK_AGAIN_MS))
            return None
        self._targets.pop(member.id, None)
        node.journal("reconfig", f"{member.host} has caught up: it votes")
        return voting

    def _is_somebody_else(self, peer: Peer) -> bool:
        """Whether another member of the configuration is the same process."""
        node = self.node
        others = {other.incarnation for other in node.peers.values() if other is not peer}
        return peer.incarnation in others | {node.incarnation}

    def _elections_meet_commit_point(self, config: ReplSetConfig) -> bool:
        """Whether `config` can elect nobody who lacks what is committed: too few voters would be left, or none of them
        holds data.
        """
        node = self.node
        journal = config.write_concern_majority_journal_default
        holders = 0
        for member in config.data_voters:
            peer = node.peers.get(member.host)
            place = node.position if member.host == node.host else NO_POSITION if peer is None else peer.position
            is_told = peer is None or peer.incarnation == member.incarnation
            holders += is_told and (place.last_durable if journal else place.last_applied) >= node.commit_point
        others = len(config.voters) - holders
        return holders == len(config.data_voters) or others < config.majority_vote_count
