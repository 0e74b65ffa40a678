"""Changing the configuration: initiate, safe and forced reconfig (map C9 to C16).

A change needs the current configuration on a majority, and the writes before it too (map C10, C11). What may follow
what is in `reconfig_rules.py`; the primary's own changes are chosen in `voter_changes.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from replset.bson import ObjectId
from replset.config import MAX_VERSION, Member, ReplSetConfig
from replset.config.feature_version import FIELD, LATEST, newer_features
from replset.core.effects import AppendNoop, ConfigInstalled, InitialSyncNotNeeded, Persist
from replset.core.election import Elections
from replset.core.leader import Leader, Phase
from replset.core.member_state import MemberState
from replset.core.messages import (
    Done,
    HeartbeatReply,
    InitiateRequest,
    ReconfigRequest,
    Refused,
    Response,
)
from replset.core.quorum import commit_point
from replset.core.reconfig_rules import complete_config, min_in_sync_refusal, reconfig_refusal
from replset.core.state import NEVER, NodeState, Peer
from replset.core.voter_changes import VoterChanges
from replset.errors import ErrorCode
from replset.ids import OPTIME_NULL, HostPort, MemberId, Millis, invariant

FIRST_TERM = 1  # of the initiate; the first election is for the next one
MANY_ARBITERS = "more than one arbiter needs --allow-multiple-arbiters on every member"
SPARE_FOR_GIVEN = "spareFor is the server's to set: leave it out, with votes: 0 for a spare"


class ReconfigStage(Enum):
    """How far a requested change has come."""

    WAITING = "waiting for the current configuration to be committed"
    CHECKING = "asking the members of the new configuration"
    PROPAGATING = "waiting for a majority to have the new configuration"


@dataclass(slots=True)
class PendingReconfig:
    """A change by replSetInitiate or replSetReconfig. pending: request id -> host of the open quorum checks.

    based_on: version and term of the configuration that it changes, None when there was none.
    """

    request_id: int
    config: ReplSetConfig
    stage: ReconfigStage
    based_on: tuple[int, int] | None
    deadline: Millis = NEVER
    initiating: bool = False
    pending: dict[int, HostPort] = field(default_factory=dict)
    answers: dict[HostPort, HeartbeatReply] = field(default_factory=dict)
    failures: dict[HostPort, str] = field(default_factory=dict)


class Reconfigs:
    """Installs configurations and handles every way in which they change."""

    def __init__(self, node: NodeState, elections: Elections, leader: Leader) -> None:
        self.node = node
        self._elections = elections
        self._leader = leader
        self._change: PendingReconfig | None = None
        self._committed_at_install = OPTIME_NULL
        self._votes = VoterChanges(node, self._is_oplog_committed)

    # --- requests ------------------------------------------------------------------------------------------------

    def on_initiate(self, request_id: int, request: InitiateRequest) -> None:
        node = self.node
        refusal = self._initiate_refusal(request.config)
        if refusal is not None:
            node.reply(request_id, refusal)
            return
        set_id = ObjectId((node.wall_ms() // 1000).to_bytes(4, "big") + node.rng.getrandbits(64).to_bytes(8, "big"))
        settings = replace(request.config.settings, replica_set_id=set_id)
        config = replace(request.config, version=1, term=FIRST_TERM, settings=settings, former_hosts=())
        self._change = PendingReconfig(request_id, config, ReconfigStage.CHECKING, None, initiating=True)
        self._ask_members(self._change)

    def _initiate_refusal(self, config: ReplSetConfig) -> Refused | None:
        node = self.node
        if node.config is not None:
            return Refused(ErrorCode.ALREADY_INITIALIZED, "the set is initiated already")
        if self._change is not None:
            return Refused(ErrorCode.CONFIGURATION_IN_PROGRESS, "an initiate is under way already")
        if node.position.last_applied.term > FIRST_TERM:
            # Its member.db was lost, its data was not. A new set would mix the entries of an old set with its own. The
            # first term holds only what an initiate writes, so an initiate that a crash ended can be repeated.
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
        if (refusal := min_in_sync_refusal(config)) is not None:
            return refusal
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
        if any(member.spare_for is not None for member in config.members):
            return Refused(ErrorCode.INVALID_CONFIG, SPARE_FOR_GIVEN)
        if node.expected and (refusal := self._expected_refusal(config)) is not None:
            return refusal
        own = config.member_at(node.host)
        if own is None:
            return Refused(ErrorCode.NODE_NOT_FOUND, f"none of the members is this one, {node.host}")
        if not own.is_electable:
            return Refused(
                ErrorCode.NODE_NOT_ELECTABLE, f"this member, {node.host}, must be electable to initiate the set"
            )
        return None

    def _expected_refusal(self, config: ReplSetConfig) -> Refused | None:
        """Refuse any other beginning than that of --expect-members.

        All its members answer a check only if they were started with the same hosts, and only the first of these asks.
        So two members can never make two sets, whatever messages are lost and whoever starts when.
        """
        node = self.node
        if tuple(sorted(member.host for member in config.members)) != node.expected:
            return Refused(ErrorCode.NEW_CONFIG_INCOMPATIBLE, f"{node.host} {other_members_reason(node.expected)}")
        if node.host != node.expected[0]:
            return Refused(ErrorCode.NEW_CONFIG_INCOMPATIBLE, f"{node.expected[0]} makes this set (--expect-members)")
        return None

    def _has_too_many_arbiters(self, new: ReplSetConfig, old: ReplSetConfig | None) -> bool:
        """Whether the change adds an arbiter beyond the first without the start option for that (map C6)."""
        count = sum(member.arbiter_only for member in new.members)
        before = 0 if old is None else sum(member.arbiter_only for member in old.members)
        return count > max(1, before) and not self.node.allow_multiple_arbiters

    def on_reconfig(self, request_id: int, request: ReconfigRequest) -> None:
        node = self.node
        refusal = self._request_refusal(request)
        if refusal is not None or node.config is None:
            node.reply(request_id, refusal or Refused(ErrorCode.NOT_YET_INITIALIZED, "the set is not initiated"))
            return
        config = complete_config(node.config, request.config, -1 if request.force else node.term)
        if request.force:
            self._force(request_id, config, max(node.config.version, request.config.version))
            return
        deadline = NEVER if request.max_time_ms <= 0 else Millis(node.now + request.max_time_ms)
        self._change = PendingReconfig(
            request_id, config, ReconfigStage.WAITING, node.config.version_and_term, deadline
        )
        self.advance()

    def _force(self, request_id: int, config: ReplSetConfig, version: int) -> None:
        """Install at once, whatever the others have, and name this member's incarnation (map C13)."""
        node = self.node
        # Another member may be forced at the same time. If both made the same version, neither would be newer, and
        # members would keep different voters for ever. (Map C13.)
        version += 10_000 + node.rng.randrange(100_000)
        if version > MAX_VERSION:
            node.reply(
                request_id,
                Refused(ErrorCode.NEW_CONFIG_INCOMPATIBLE, "the version would pass the highest one that there is"),
            )
            return
        own = config.member_at(node.host)
        # The incarnations that the old configuration names may be lost, this member's too; then nobody could vote. What
        # an initial sync is about to replace must not count all the same.
        if own is not None and own.votes and not node.must_sync:
            config = config.with_member(replace(own, newly_added=False, incarnation=node.incarnation))
        self.install(replace(config, version=version))
        node.reply(request_id, Done())

    def _request_refusal(self, request: ReconfigRequest) -> Refused | None:
        node = self.node
        if node.config is None:
            return Refused(ErrorCode.NOT_YET_INITIALIZED, "the set is not initiated")
        if self._change is not None:
            return Refused(ErrorCode.CONFIGURATION_IN_PROGRESS, "another reconfig is under way")
        # Two members could otherwise change the same configuration, each by another voter. Majorities of the two
        # results need have no member in common, and each could elect a primary. (Map C10.)
        if not request.force and not node.writable:
            return Refused(
                ErrorCode.NOT_WRITABLE_PRIMARY,
                f"only the primary can reconfigure; known primary: {node.primary_host or 'none'}",
            )
        if any(member.newly_added for member in request.config.members):
            return Refused(ErrorCode.INVALID_CONFIG, "newlyAdded is the server's to set")
        if any(member.spare_for not in (None, _spare_for(node.config, member)) for member in request.config.members):
            return Refused(ErrorCode.INVALID_CONFIG, SPARE_FOR_GIVEN)
        if self._has_too_many_arbiters(request.config, node.config):
            return Refused(ErrorCode.BAD_VALUE, MANY_ARBITERS)
        return reconfig_refusal(
            node.config, request.config, node.host, force=request.force, default_set=node.default_write_concern_set()
        )

    # --- progress of a change ------------------------------------------------------------------------------------

    def tick(self) -> None:
        node = self.node
        self.advance()
        waited, node.commit_point_paused = node.commit_point_paused, False
        if self._change is None:
            self._automatic_change()
        if node.commit_point_paused and not waited:
            node.journal("reconfig", "majority writes wait for a member that is about to get its vote")
        if waited and not node.commit_point_paused:
            self._leader.update_commit_point()  # the member may be gone, and nothing else happen for seconds

    def next_due(self) -> Millis:
        return NEVER if self._change is None else self._change.deadline

    def advance(self) -> None:
        """Advance the requested change as far as it can go now."""
        node, change = self.node, self._change
        if change is None:
            return
        current = None if node.config is None else node.config.version_and_term
        # The change was checked against another configuration. On top of this one it could be two voters away from it,
        # so that majorities of old and new voters need have no member in common. (Map C10.)
        if change.stage is not ReconfigStage.PROPAGATING and current != change.based_on:
            code = ErrorCode.ALREADY_INITIALIZED if change.initiating else ErrorCode.NEW_CONFIG_INCOMPATIBLE
            self._end(change, Refused(code, "another configuration was installed meanwhile"))
        elif not change.initiating and node.state is not MemberState.PRIMARY:
            self._end(
                change, Refused(ErrorCode.PRIMARY_STEPPED_DOWN, "this member stepped down before the change was done")
            )
        elif change.stage is ReconfigStage.WAITING and (
            self.is_committed() or self._takes_a_vote_safely(change.config)
        ):
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
        """Send the quorum check: a heartbeat to every other member of the new configuration (map C12)."""
        node = self.node
        for member in change.config.members:
            if member.host != node.host:
                request = node.heartbeat_request(check_empty=change.initiating)
                change.pending[node.send(member.host, request, node.settings.heartbeat_timeout_ms)] = member.host
        self._check_answers(change)

    def awaits(self, request_id: int) -> bool:
        return self._change is not None and request_id in self._change.pending

    def on_response(self, response: Response) -> None:
        node, change = self.node, self._change
        if change is None:
            return
        host = change.pending.pop(response.request_id)
        if isinstance(response.body, HeartbeatReply):
            self._elections.accept_term(host, response.body.term)
            change.answers[host] = response.body
        else:
            refused = response.body if isinstance(response.body, Refused) else None
            change.failures[host] = response.error if refused is None else refused.reason
            # Of a set that has other keys. A known member that has lost its key may not hinder every other change.
            is_stranger = response.unproven and not change.initiating and not node.is_member(host)
            if refused is not None or is_stranger:
                why = f"{host} refuses: {change.failures[host]}"
                self._end(change, Refused(ErrorCode.NEW_CONFIG_INCOMPATIBLE, why))
                return
        self.advance()  # a higher term may have ended it
        if self._change is change:
            self._check_answers(change)

    def _check_answers(self, change: PendingReconfig) -> None:
        veto = self._veto(change)
        if veto is not None:
            self._end(change, veto)
        elif change.initiating:
            self._check_initiate(change)
        else:
            self._check_reconfig(change)

    def _veto(self, change: PendingReconfig) -> Refused | None:
        node = self.node
        found: dict[str, HostPort] = {}
        for host, incarnation in sorted(self._incarnations(change).items()):
            other = found.setdefault(incarnation, host)
            if other != host:
                # One disk under two names, or a copy of it, would count twice for a majority.
                return Refused(ErrorCode.INVALID_CONFIG, f"the hosts {other} and {host} are the same member")
        for host, answer in sorted(change.answers.items()):
            if change.initiating:
                # The host may be a member of another set. Two sets in one would take each other's entries, terms and
                # votes for their own. (Map C9.)
                if answer.has_data or answer.config_version > 0:
                    return Refused(
                        ErrorCode.CANNOT_INITIALIZE_NODE_WITH_DATA, f"{host} holds data or a configuration already"
                    )
            # Another primary has changed the configuration, and this one has not heard of it yet. Its own change would
            # be made beside that one, and majorities of the two need have no member in common. (Map C12.)
            elif (
                answer.config is not None
                and node.config is not None
                and answer.config.is_newer_than(*node.config.version_and_term)
            ):
                return Refused(
                    ErrorCode.NEW_CONFIG_INCOMPATIBLE,
                    f"{host} has a newer configuration (version {answer.config_version})",
                )
            elif (refusal := self._release_refusal(change.config, host, answer)) is not None:
                return refusal
        return None

    def _release_refusal(self, config: ReplSetConfig, host: HostPort, answer: HeartbeatReply) -> Refused | None:
        """Refuse a member that could not read what the set may write.

        One of the set that went back to an older release since may not hinder the changes that take it out.
        """
        node, needed = self.node, config.feature_version
        is_raised = node.config is not None and needed > node.config.feature_version
        if answer.release >= needed or (node.is_member(host) and not is_raised):
            return None
        why = f"{host} runs release {answer.release}, and the set's {FIELD} would be {needed}"
        return Refused(ErrorCode.NEW_CONFIG_INCOMPATIBLE, why)

    def _incarnations(self, change: PendingReconfig) -> dict[HostPort, str]:
        """The incarnation of each member of the new configuration, as it answered, or as it was known before."""
        node, members = self.node, change.config.members
        found = {member.host: member.incarnation or "" for member in members}
        found |= {host: peer.incarnation for host, peer in node.peers.items() if host in found and peer.incarnation}
        found |= {host: answer.incarnation for host, answer in change.answers.items()}
        found[node.host] = node.incarnation
        return {host: incarnation for host, incarnation in found.items() if incarnation}

    def _check_initiate(self, change: PendingReconfig) -> None:
        """Every other member must have answered, and be empty."""
        if change.pending:
            return
        # A host that did not answer may have data of its own, or be initiated too: see `_veto`.
        if change.failures:
            host, why = min(change.failures.items())
            self._end(change, Refused(ErrorCode.NODE_NOT_FOUND, f"cannot reach {host}: {why}"))
            return
        node = self.node
        found = {host: answer.incarnation for host, answer in change.answers.items()}
        found[node.host] = node.incarnation
        members = tuple(replace(member, incarnation=found[member.host]) for member in change.config.members)
        features = min([LATEST, *(answer.release for answer in change.answers.values())])
        # The first entry is written before the configuration is installed.
        node.initial_sync_pending = False
        node.emit(Persist(InitialSyncNotNeeded()), AppendNoop(FIRST_TERM, "initiating set"))
        self.install(replace(change.config, members=members, feature_version=features))
        self._elections.on_initiated()
        self._end(change, Done())

    def _check_reconfig(self, change: PendingReconfig) -> None:
        """A majority of the new voters must answer with their named incarnation, one of them electable."""
        node, config = self.node, change.config
        incarnations = {host: answer.incarnation for host, answer in change.answers.items()} | {
            node.host: node.incarnation
        }
        answered = {member.host for member in config.members if member.host in incarnations}
        votes = sum(incarnations.get(voter.host) == voter.incarnation for voter in config.voters)
        electable = any(member.host in answered and member.is_electable for member in config.members)
        if self._awaits_new_host(change):
            return
        # If a majority of the new voters cannot be reached, the new configuration can never be committed. Nor can the
        # change that would mend it, since that waits for the present one, and no primary sees a majority. (Map C12.)
        if votes >= config.majority_vote_count and electable:
            change.pending.clear()
            change.stage = ReconfigStage.PROPAGATING
            self._install_own(config)
            node.emit(AppendNoop(node.term, "Reconfig set"))
            self.advance()
        elif not change.pending:
            lacking = [f"{host}: {why}" for host, why in sorted(change.failures.items())]
            lacking += [
                f"{voter.host}: it has another incarnation than the configuration names"
                for voter in config.voters
                if voter.host in answered and incarnations[voter.host] != voter.incarnation
            ]
            text = f"a majority of the new voters must answer: {'; '.join(lacking)}"
            self._end(change, Refused(ErrorCode.NODE_NOT_FOUND, text))

    def _awaits_new_host(self, change: PendingReconfig) -> bool:
        """Whether a new host has not answered yet: it may be a second name of a member."""
        return any(not self.node.is_member(host) for host in change.pending.values())

    # --- is a change allowed -------------------------------------------------------------------------------------

    def is_committed(self) -> bool:
        """Whether the next change is safe: majorities have this configuration and the writes before it (map C11).

        Without this a primary could change the voters twice while an old majority still elects by the first
        configuration, and that majority could roll back committed writes.
        """
        return self.node.is_config_committed and self._is_oplog_committed(self.node.config)

    def _takes_a_vote_safely(self, config: ReplSetConfig) -> bool:
        """Whether `config` takes a vote, gives none, and no election by it can miss what was ever committed.

        Beside an arbiter the member that is gone may be needed for a write majority. If it was the primary, then the
        new one commits nothing in its term before that vote is taken.
        """
        node = self.node
        if node.config is None or not node.is_config_committed or self._leader.phase is not Phase.ACTIVE:
            return False
        before, after = ({voter.id for voter in each.voters} for each in (node.config, config))
        return after < before and self._votes.is_safe(config)

    def _is_oplog_committed(self, config: ReplSetConfig | None, lost: int = 0) -> bool:
        """Whether a write majority has an entry of this term, and with it all that came before the last change.

        lost: how many data-bearing voters of `config` are known to have lost their disk.
        """
        node = self.node
        if config is None or self._leader.phase is not Phase.ACTIVE:
            return False
        holders = [member.id for member in config.oplog_voters]
        durable = {member_id: position.last_durable for member_id, position in node.positions().items()}
        needed = max(1, config.write_majority - lost)
        point = commit_point(durable, holders, needed, node.term) if holders else OPTIME_NULL
        # What the configuration before had committed may be on too few of the present voters: after the next change,
        # some majority might have no member with it. An entry of this term behind that commit point has everything
        # before it in its history, and is now on a write majority of the present voters. (Map C11.)
        return point != OPTIME_NULL and point >= self._committed_at_install

    # --- installing ----------------------------------------------------------------------------------------------

    def install(self, config: ReplSetConfig) -> None:
        """Make `config` the current one. It is durable before any message mentions it (docs/adr/0007)."""
        node = self.node
        # A forced one is newer too: its version is far above. A member that went back to an older configuration could
        # vote by it, and a majority of the old voters could elect beside a majority of the new ones.
        invariant(
            node.config is None or config.is_newer_than(*node.config.version_and_term),
            "a configuration is followed by a newer one",
        )
        node.emit(Persist(config))
        node.config, node.newer_features = config, None
        node.term = max(node.term, config.term)
        self._committed_at_install = node.commit_point
        self._elections.end_round("the configuration changed")
        self.update_peers()
        node.emit(ConfigInstalled(config))
        node.restart_heartbeats()  # so that others learn of it at once
        self._update_member_state()
        self._leader.on_progress_changed()

    def _install_own(self, config: ReplSetConfig) -> None:
        """Install a change that this primary makes, not a forced one. What others made may be several changes on."""
        before = () if self.node.config is None else self.node.config.voters
        changed = {voter.host for voter in before} ^ {voter.host for voter in config.voters}
        # With two at once a majority of the old voters and one of the new could have no member in common.
        invariant(self.node.is_primary and len(changed) <= 1, "a primary changes one voter at a time")
        self.install(config)

    def install_from_heartbeat(self, config: ReplSetConfig | None) -> None:
        """Install another member's configuration if it is newer, unless this primary is still stepping up (map H6)."""
        node = self.node
        if config is None or config.set_name != node.set_name:
            return
        # Until the configuration has the new term (`on_step_up`), one that an earlier primary made, and nobody
        # committed, may be newer. This primary was elected by the voters of its own: under the other one it would lead
        # voters of whom no majority elected it. With its term, its own is the newer one.
        if self._leader.phase in (Phase.CATCH_UP, Phase.DRAIN, Phase.ROLE_WAIT):
            return
        if node.config is not None and node.set_id != config.settings.replica_set_id:
            return  # another set of the same name
        # A configuration only gives way to a newer one. After a damaged message with the highest term or version
        # nothing could be newer, and the set could never be changed again.
        if node.term_refusal(config.term) is not None:
            return
        if node.config is not None and not config.is_plausible_after(node.config.version):
            return
        if node.config is None and config.member_at(node.host) is None:
            return  # about to be added: the one that has this member comes next
        if node.config is not None and not config.is_newer_than(*node.config.version_and_term):
            return
        # Its entries may be of kinds that this release reads as something else.
        if config.feature_version > LATEST:
            if node.newer_features != config.feature_version:
                node.newer_features = config.feature_version
                node.journal("reconfig", newer_features(config.feature_version))
            return
        self.install(config)

    def update_peers(self) -> None:
        """Keep one Peer for every other member of the configuration."""
        node = self.node
        known = node.peers
        node.peers = {}
        for member in () if node.config is None else node.config.members:
            if member.host == node.host or node.self_member is None:
                continue  # a removed member asks nobody; the set asks it when it is added again
            peer = known.get(member.host)
            if peer is None or peer.id != member.id:
                peer = Peer(member.host, member.id, node.now, heartbeat_due=node.now)
            node.peers[member.host] = peer
        if node.primary_id is not None and node.config is not None and node.config.member(node.primary_id) is None:
            node.set_primary(None)

    def _update_member_state(self) -> None:
        """Change to the state that the configuration asks for."""
        node = self.node
        member = node.self_member
        is_arbiter = member is not None and member.arbiter_only
        if node.state is MemberState.ARBITER and not is_arbiter and node.position.last_applied != OPTIME_NULL:
            # An arbiter takes every commit point. If an old oplog is in its folder, and it bears data again, then that
            # one says nothing of its old entries: none of them may count as committed.
            node.commit_point, node.commit_term = OPTIME_NULL, 0
        if member is None:
            self._leader.step_down("it is not in the configuration any more")
            node.become(MemberState.REMOVED)
            return
        is_running = node.state not in (MemberState.STARTUP, MemberState.REMOVED)
        if is_running and member.arbiter_only != (node.state is MemberState.ARBITER):
            # It was removed, and added again with or without data, before it learned of the first change.
            self._leader.step_down("the configuration makes it another kind of member")
            node.become(MemberState.REMOVED)
        if node.state is MemberState.PRIMARY:
            if not member.is_electable:
                self._leader.step_down("the configuration makes it unelectable")
            return
        if node.state in (MemberState.STARTUP, MemberState.REMOVED):
            node.become(self.initial_state(member))
        node.push_election_timer()

    def initial_state(self, member: Member) -> MemberState:
        """The state in which a member of the configuration starts."""
        if member.arbiter_only:
            return MemberState.ARBITER
        if self.node.rolling_back:
            return MemberState.ROLLBACK
        if self.node.must_sync:
            return MemberState.STARTUP2
        return MemberState.RECOVERING if self.node.quarantine else MemberState.SECONDARY

    def on_step_up(self) -> None:
        """Give the configuration the new term (map E7)."""
        node = self.node
        self._votes.on_step_up()
        # The primary before may have made a configuration of the next version that nobody committed. This one makes the
        # same version. Without the term in it, members could not tell which of the two is newer, and would keep
        # different voters.
        # A forced configuration (term -1) keeps no term until the next safe change.
        if node.config is not None and node.config.term not in (-1, node.term):
            self.install(replace(node.config, term=node.term))

    # --- automatic changes ---------------------------------------------------------------------------------------

    def _automatic_change(self) -> None:
        node = self.node
        # As of a change by a user, see `is_committed`. What the entries must be on first differs from change to change,
        # see voter_changes.py and spares.py.
        if not node.writable or node.config is None or not node.is_config_committed:
            return
        if node.config.version >= MAX_VERSION:
            return  # what follows could not be read by anybody
        changed = self._votes.next_change(node.config)
        if changed is not None:
            self._install_own(
                replace(node.config.with_member(changed), version=node.config.version + 1, term=node.term)
            )
            node.emit(AppendNoop(node.term, "Reconfig set"))


def other_members_reason(expected: tuple[HostPort, ...]) -> str:
    """Say with which hosts a member was started that refuses to begin with others."""
    return f"was started with --expect-members {','.join(expected)}" if expected else "has no --expect-members"


def _spare_for(config: ReplSetConfig, member: Member) -> MemberId | None:
    """In whose place the member of this host votes now."""
    known = config.member_at(member.host)
    return None if known is None else known.spare_for
