"""The core of one member: `tick` and `receive` go in, an ordered list of effects comes out (docs/adr/0001).

It only routes: every rule is in another file. Time is an argument, randomness is handed in, and the few reads of the
outside are callables of the constructor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import assert_never

from replset.bson import ObjectId
from replset.config import ReplSetConfig
from replset.config.feature_version import LATEST, FeatureVersion
from replset.core.damage import DamageMonitor
from replset.core.durability_levels import concern_of_level
from replset.core.effects import AppendNoop, Effect
from replset.core.election import Elections
from replset.core.follower import Follower
from replset.core.heartbeat import Heartbeats
from replset.core.in_sync import in_sync_have, in_sync_refusal
from replset.core.leader import Leader
from replset.core.member_state import MemberState
from replset.core.messages import (
    AbortCatchUpRequest,
    ChainMismatch,
    ChainsCompared,
    ConnectionLost,
    DamageFound,
    DiskStalled,
    DrainFinished,
    FetchProgress,
    FreezeRequest,
    HeartbeatReply,
    HeartbeatRequest,
    InitialSyncEnded,
    InitialSyncStarted,
    InitiateRequest,
    LocalPosition,
    MaintenanceRequest,
    MemberProgress,
    Message,
    Position,
    ProgressReply,
    ProgressRequest,
    ReconfigRequest,
    Refused,
    Request,
    Response,
    ResyncRequest,
    RoleReleased,
    RollbackEnded,
    ShutdownStarted,
    SourceBatch,
    SourceFailed,
    SourceProblem,
    StepDownRequest,
    StepUpRequest,
    SyncFromRequest,
    VoteReply,
    VoteRequest,
    VoteSaved,
)
from replset.core.quorum import IN_SYNC, MAJORITY, WriteConcern, is_enough, satisfied
from replset.core.reconfig import Reconfigs
from replset.core.role import role_until
from replset.core.staleness import lag_ms
from replset.core.state import NodeState, Peer, shown_state
from replset.core.status import Status, build_status
from replset.core.stepdown import StepDowns
from replset.core.waiting import WaitedFor, in_vain, majority_lag, members_waited_for
from replset.ids import OPTIME_NULL, HostPort, MemberId, Millis, OpTime, invariant

SERVING = frozenset({MemberState.PRIMARY, MemberState.SECONDARY, MemberState.RECOVERING})


class Node:
    """Routes each input to the part that owns its rule. Callers change a node only through its inputs."""

    def __init__(self, state: NodeState) -> None:
        """state: what member.db and the store hold at start."""
        self._state = state
        self._leader = Leader(state, lambda: self._reconfigs.on_step_up())
        self._elections = Elections(state, self._leader)
        self._reconfigs = Reconfigs(state, self._elections, self._leader)
        self._heartbeats = Heartbeats(state, self._elections, self._leader, self._reconfigs)
        self._follower = Follower(state, self._leader)
        self._damage = DamageMonitor(state, self._leader, self._follower)
        self._stepdowns = StepDowns(state, self._leader)

    # --- inputs --------------------------------------------------------------------------------------------------

    def start(self, now: Millis) -> list[Effect]:
        """Start from what the files hold."""
        state = self._state
        state.now = state.started_at = now
        state.ages.note(state.position.last_applied, now)
        member = state.self_member
        if state.config is not None:
            if state.durability_mark != OPTIME_NULL:
                self._start_after_data_loss()
            elif member is not None and member.holds_oplog and not state.has_data and not state.initial_sync_pending:
                self._start_without_data(state.config)
            elif state.quarantine:
                state.journal("quarantined", state.quarantine)
            self._reconfigs.update_peers()
            state.become(MemberState.REMOVED if member is None else self._reconfigs.initial_state(member))
            state.push_election_timer()
        self._run_due()
        return self._take_effects()

    def _start_after_data_loss(self) -> None:
        """Start an initial sync, because the disk lost entries up to the durability mark.

        Others may have counted this member's copies for a majority write. If it voted, or became primary, without them,
        the write could be rolled back. So it copies anew as another incarnation; alone it waits for an operator.
        """
        state = self._state
        state.initial_sync_pending = True
        state.quarantine = (
            f"entries are lost: the durability mark is {state.durability_mark}, and this member's data ends at"
            f" {state.position.last_applied}. It copies the data of a member that has them; where there is none, bring"
            " back the missing file (replset.db-wal), or accept the loss with replset repair DBPATH --accept-data-loss"
        )
        state.journal("data lost", state.quarantine)

    def _start_without_data(self, config: ReplSetConfig) -> None:
        """Start where member.db has a configuration and the data file has no entry."""
        state = self._state
        if config.version_and_term == (1, 1) and state.term == 1:
            # The process died in replSetInitiate, between the configuration and the first entry.
            state.emit(AppendNoop(1, "initiating set"))
        else:
            # The data file was lost: the incarnation that the configuration names is not on this disk any more.
            state.initial_sync_pending = True

    def tick(self, now: Millis) -> list[Effect]:
        """Do what is due at `now`."""
        self._state.now = now
        self._run_due()
        return self._take_effects()

    def receive(self, message: Message, now: Millis) -> list[Effect]:
        """Handle a message: a request, a response, or a report of this member's own storage and replication."""
        state = self._state
        state.now = now
        match message:
            case Response():
                self._on_response(message)
            case Request(request_id, ProgressRequest() as progress) if progress.term == state.term:
                self._heartbeats.on_progress_request(request_id, progress)
                self._stepdowns.advance()
                return self._take_effects()  # no timer can have changed
            case FetchProgress(progress) if progress.term == state.term:
                self._heartbeats.on_progress(progress)
                self._stepdowns.advance()
                return self._take_effects()  # no timer can have changed
            case FetchProgress(progress):
                self._heartbeats.on_progress(progress)
            case ConnectionLost(host):
                self._heartbeats.on_connection_lost(host)
            case Request(request_id, body):
                self._on_request(request_id, body)
            case LocalPosition(position):
                # A batch is applied before it is reported. Other members would take a position that is sent with an
                # older term than its entry's for one in that older term's history.
                if position.last_applied.term > state.term:
                    self._elections.observe_term(position.last_applied.term)
                # Others count what is on disk here for majority writes. Behind a rollback or a copy an old value would
                # vouch for entries that are gone.
                invariant(position.last_durable <= position.last_applied, "what is on disk is applied")
                if position.last_applied < state.position.last_applied:
                    state.ages.cut(position.last_applied)
                state.position = position
                state.newest_ts = max(state.newest_ts, position.last_applied.ts)
                state.ages.note(position.last_applied, now)
                self._leader.on_progress_changed(position)
                self._leader.advance_catch_up()
                self._stepdowns.advance()
                return self._take_effects()  # no timer can have changed
            case SourceBatch(source, term) if term == state.term and state.is_member(source):
                self._follower.on_batch(message)
                return self._take_effects()  # no timer can be due earlier
            case SourceBatch():
                if self._elections.accept_term(message.source, message.term):
                    self._follower.on_batch(message)
            case SourceFailed():
                # A source whose newest entry is of a later term than its own contradicts itself. Believed, it would
                # start a rollback here towards a history that does not exist.
                is_true = message.newest.term <= message.term
                if not (self._elections.accept_term(message.source, message.term) and is_true):
                    message = replace(message, problem=SourceProblem.NOT_READABLE)
                self._follower.on_source_failed(message)
                if message.problem is SourceProblem.CHAIN_DIFFERS:
                    self._damage.compare_chains(state.position.last_applied)
            case DamageFound(detail):
                self._damage.on_damage_found(detail)
            case ChainMismatch(at):
                self._damage.compare_chains(at)
            case ChainsCompared():
                self._damage.on_chains_compared(message)
            case RollbackEnded():
                self._follower.on_rollback_ended(message)
                if message.chain_differs_at != OPTIME_NULL:
                    self._damage.compare_chains(message.chain_differs_at)
            case InitialSyncStarted():
                self._follower.on_initial_sync_started(message)
            case InitialSyncEnded():
                self._follower.on_initial_sync_ended(message)
            case DiskStalled(stalled):
                state.disk_stalled = stalled
            case VoteSaved(term):
                self._elections.on_vote_saved(term)
            case DrainFinished(term):
                self._leader.on_drain_finished(term)
            case ShutdownStarted():
                state.shutting_down = True
            case RoleReleased():
                state.restart_heartbeats()  # a new primary may wait for it
            case _:
                assert_never(message)
        self._run_due()
        return self._take_effects()

    def _on_request(self, request_id: int, body: object) -> None:
        match body:
            case HeartbeatRequest():
                self._heartbeats.on_request(request_id, body)
            case VoteRequest():
                self._elections.on_vote_request(request_id, body)
            case ProgressRequest():
                self._heartbeats.on_progress_request(request_id, body)
            case StepUpRequest():
                self._elections.on_step_up_request(request_id, body)
            case InitiateRequest():
                self._reconfigs.on_initiate(request_id, body)
            case ReconfigRequest():
                self._reconfigs.on_reconfig(request_id, body)
            case StepDownRequest():
                self._stepdowns.on_request(request_id, body)
            case AbortCatchUpRequest():
                self._leader.on_abort_catch_up(request_id)
            case FreezeRequest():
                self._stepdowns.on_freeze(request_id, body)
            case ResyncRequest():
                self._follower.on_resync(request_id, body)
            case SyncFromRequest():
                self._follower.on_sync_from(request_id, body)
            case MaintenanceRequest():
                self._follower.on_maintenance(request_id, body, is_candidate=self._elections.election is not None)

    def _on_response(self, response: Response) -> None:
        body = response.body
        if self._heartbeats.awaits(response.request_id):
            self._heartbeats.on_response(response)
        elif self._elections.awaits(response.request_id):
            why_not = body.reason if isinstance(body, Refused) else response.error
            self._elections.on_vote_reply(response.request_id, body if isinstance(body, VoteReply) else None, why_not)
        elif self._reconfigs.awaits(response.request_id):
            self._reconfigs.on_response(response)
        elif isinstance(body, VoteReply | ProgressReply | HeartbeatReply):
            is_accepted = self._elections.accept_term(response.to, body.term)
            if isinstance(body, ProgressReply) and is_accepted:
                self._heartbeats.on_progress_reply(body)

    def _run_due(self) -> None:
        """Let every part do what is due now."""
        self._heartbeats.tick()
        self._leader.tick()
        self._elections.tick()
        self._stepdowns.advance()
        self._reconfigs.tick()
        self._damage.tick()
        self._follower.tick()

    def _take_effects(self) -> list[Effect]:
        # Whoever is no primary any more must not take a write: the next primary would roll it back.
        state = self._state
        invariant(not state.writable or state.is_primary, "only a primary takes writes")
        effects, state.out = state.out, []
        return effects

    def next_tick_at(self) -> Millis:
        """The earliest deadline; a tick before it changes nothing."""
        return min(
            self._heartbeats.next_due(),
            self._leader.next_due(),
            self._elections.next_due(),
            self._stepdowns.next_due(),
            self._reconfigs.next_due(),
            self._follower.next_due(),
            self._damage.next_due(),
        )

    # --- reads: nothing below changes anything -------------------------------------------------------------------

    @property
    def config(self) -> ReplSetConfig | None:
        return self._state.config

    @property
    def state(self) -> MemberState:
        """The state as clients see it: a witness in service is ARBITER."""
        return self._state.shown_state

    @property
    def serves_oplog(self) -> bool:
        """Whether other members may read this one's oplog: not in ROLLBACK, where it shrinks, nor in STARTUP2."""
        return self._state.state in SERVING

    @property
    def follows_set(self) -> bool:
        """Whether it is PRIMARY or SECONDARY, a witness too: its oplog is the set's, but for its end."""
        return self._state.state.is_readable

    @property
    def is_witness(self) -> bool:
        return self._state.is_witness

    @property
    def term(self) -> int:
        return self._state.term

    @property
    def primary(self) -> MemberId | None:
        return self._state.primary_id

    @property
    def primary_host(self) -> HostPort | None:
        return self._state.primary_host

    @property
    def self_id(self) -> MemberId | None:
        return self._state.self_id

    @property
    def writable(self) -> bool:
        """PRIMARY, drained, and not stepping down: clients may write."""
        return self._state.writable

    @property
    def commit_point(self) -> OpTime:
        return self._state.commit_point

    @property
    def commit_term(self) -> int:
        """The term of the primary that committed what is behind `commit_point`."""
        return self._state.commit_term

    @property
    def set_id(self) -> ObjectId | None:
        """The id of the set in the configuration, None while there is none."""
        return self._state.set_id

    @property
    def position(self) -> Position:
        return self._state.position

    @property
    def sync_source(self) -> HostPort | None:
        return self._state.sync_source

    @property
    def incarnation(self) -> str:
        return self._state.incarnation

    @property
    def has_lost_data(self) -> bool:
        """Whether entries up to the durability mark are missing on this disk and have not been copied again."""
        return self._state.durability_mark != OPTIME_NULL

    @property
    def is_resync_requested(self) -> bool:
        """Whether the initial sync that is under way was asked for, and replaces data that is sound.

        Of a quarantined member it is not: after a restart, which forgets the quarantine, it must not be gone on with.
        """
        return self._follower.is_requested and not self._state.quarantine and not self._state.damage

    @property
    def rolling_back(self) -> bool:
        """Whether a rollback is under way, in whatever state this member is."""
        return self._state.rolling_back

    @property
    def maintenance(self) -> int:
        """How often replSetMaintenance was switched on; 0: not in maintenance mode."""
        return self._state.maintenance

    @property
    def quarantine(self) -> str:
        """Why this member is out of service, empty when it is not."""
        return self._state.quarantine

    def keep_role_for(self, role_hook_ms: Millis) -> None:
        """Say before `start` that something outside holds the role, and how long without a majority (role.py)."""
        self._state.role_hook_ms = role_hook_ms

    def role_until(self, now: Millis) -> Millis:
        """Until when this member may hold what its role hook gives to the primary; in the past: not at all."""
        return role_until(self._state, now)

    def peer_at(self, host: HostPort) -> Peer | None:
        """What is known of another member; for reading."""
        return self._state.peers.get(host)

    def http_address_of(self, host: HostPort) -> str | None:
        """The address of a member's HTTP API, as the member reports it."""
        if host == self._state.host:
            return self._state.http_address
        peer = self._state.peers.get(host)
        return peer.http_address or None if peer is not None else None

    def election_timeout_ms(self) -> Millis:
        return self._state.settings.election_timeout_ms

    def lag_ms(self) -> int | None:
        """By how much this member's data may be too old; None while it has none."""
        return lag_ms(self._state, self._state.host)

    @property
    def is_overloaded(self) -> bool:
        return self._state.is_overloaded()

    @property
    def newest_ts(self) -> int:
        """The newest timestamp of which this member knows that some member has or had an entry with it."""
        return self._state.newest_ts

    def measured_lag_ms(self, optime: OpTime, now: Millis) -> tuple[int, bool]:
        """For how long a member whose newest entry is at `optime` has lacked one of the set, as measured here.

        False: it may be longer, since this member has not listened for so long.
        """
        ages = self._state.ages
        return ages.lag_ms(optime, now), ages.covers(optime)

    def measured_age_ms(self, optime: OpTime, now: Millis) -> tuple[int, int | None]:
        """For how long the set has had the entry at `optime`; see `OptimeAges.age_ms`."""
        return self._state.ages.age_ms(optime, now)

    def flow_control_target_ms(self) -> int:
        """The lag of the majority from which on writers are slowed; 0: never."""
        return self._state.settings.flow_control_target_lag_secs * 1000

    @property
    def feature_version(self) -> FeatureVersion:
        """The set's; LATEST before there is a set."""
        config = self._state.config
        return LATEST if config is None else config.feature_version

    def follower_bytes_per_second(self) -> int:
        """settings.followerBytesPerSecond; 0: no limit."""
        return self._state.settings.follower_bytes_per_second

    def builds_indexes(self) -> bool:
        """Whether this member has the indexes of clients (`buildIndexes`)."""
        member = self._state.self_member
        return member is None or member.build_indexes

    def secondary_delay_ms(self) -> int:
        member = self._state.self_member
        return 0 if member is None else member.secondary_delay_secs * 1000

    @property
    def known(self) -> NodeState:
        """All that it knows, for reading."""
        return self._state

    def status(self, now: Millis) -> Status | None:
        """The set as this node sees it, None while there is no configuration."""
        return build_status(self._state, now, self._elections.last_reason, self._elections.last_needed)

    def oldest_needed(self) -> OpTime | None:
        """The newest entry of the member that is farthest behind, as far as this one knows; None: there is no other."""
        state = self._state
        members = () if state.config is None else state.config.members
        peers = [state.peers.get(member.host) for member in members if not member.arbiter_only]
        return min((peer.position.last_applied for peer in peers if peer is not None), default=None)

    def progress_request(self) -> ProgressRequest | None:
        """The replSetUpdatePosition to send upstream; None while this member must not acknowledge anything."""
        state = self._state
        member = state.self_member
        if state.config is None or member is None or state.must_sync or member.arbiter_only:
            return None
        if state.state is MemberState.STARTUP2:
            return None
        rows = state.relayed_progress()
        if not member.votes or member.incarnation == state.incarnation:  # else only heartbeats carry its position
            rows = (MemberProgress(member.id, state.incarnation, state.position), *rows)
        if not rows:
            return None
        return ProgressRequest(member.id, state.term, state.config.version, state.config.term, rows, state.set_id)

    def is_satisfied(self, concern: WriteConcern, optime: OpTime) -> bool:
        """Whether the entry at `optime` meets `concern` now.

        Only a primary answers True: after a stepdown the positions of others belong to another term's history, and the
        entry may be rolled back.
        """
        state = self._state
        if not state.is_primary:
            return False
        if concern.level_of:
            level = concern_of_level(state, concern.level_of)
            if level is not None:
                concern = replace(level, j=concern.j or level.j)
        if not isinstance(concern.w, int) and concern.w not in (MAJORITY, IN_SYNC):
            return self._has_tagged_holders(concern, optime)
        committed = state.commit_point
        if concern.j and isinstance(concern.w, str):
            committed = min(committed, self._leader.durable_commit_point())
        if concern.w == IN_SYNC and not in_sync_have(state, optime):
            return False
        return satisfied(concern, optime, state.position, state.document_positions, committed)

    def _has_tagged_holders(self, concern: WriteConcern, optime: OpTime) -> bool:
        state = self._state
        holders = {
            member_id
            for member_id, position in state.positions().items()
            if (position.last_durable if concern.j else position.last_applied) >= optime
        }
        return state.config is not None and is_enough(state.config, concern, holders)

    def in_vain(self, concern: WriteConcern) -> Refused | None:
        """Why it is in vain to wait for `concern`; None: it is not."""
        return in_vain(self._state, concern)

    def members_waited_for(self, concern: WriteConcern, optime: OpTime) -> list[WaitedFor]:
        """The members that lack the entry at `optime` and could help to meet `concern`."""
        return members_waited_for(self._state, concern, optime)

    def concern_of_level(self, ns: str) -> WriteConcern | None:
        """What a write to this namespace waits for by settings.durabilityLevels; None: the set's default."""
        return concern_of_level(self._state, ns)

    @property
    def lowered_levels(self) -> Mapping[str, int]:
        """The durability levels that are lowered now, by namespace."""
        return self._state.levels

    @property
    def in_sync_hosts(self) -> list[HostPort]:
        """The members that are in sync, on a primary."""
        members = () if self._state.config is None else self._state.config.members
        return [member.host for member in members if member.id in self._state.in_sync]

    def in_sync_refusal(self) -> str | None:
        """Why a primary must not apply a write that waits for other members (settings.minInSync); None: it may."""
        return in_sync_refusal(self._state) if self._state.writable else None

    def majority_lag(self) -> tuple[int, tuple[HostPort, ...]]:
        """How far in ms the write majority is behind this primary, and which members would have to catch up."""
        return majority_lag(self._state) if self._state.is_primary else (0, ())

    def member_progress(self) -> list[dict[str, object]]:
        """The position of each member, for the reply of a write that waited in vain."""
        state = self._state
        rows: list[dict[str, object]] = []
        for member in () if state.config is None else state.config.members:
            peer = state.peers.get(member.host)
            member_state = state.state if peer is None else peer.state
            position = state.position if peer is None else peer.position
            rows.append(
                {
                    "_id": int(member.id),
                    "host": member.host,
                    "state": shown_state(member, member_state).name,
                    "appliedOpTime": position.last_applied,
                    "durableOpTime": position.last_durable,
                }
            )
        return rows
