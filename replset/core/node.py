"""One member's mind. `tick` and `receive` go in, an ordered list of effects comes out; every rule is in another file.

Pure: time is an argument, randomness is handed in, and the few reads of the outside are callables of the constructor.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import assert_never

from replset.bson import ObjectId
from replset.config import Member, ReplSetConfig
from replset.core.damage import Damage
from replset.core.effects import AppendNoop, Effect, LastVote
from replset.core.election import Elections
from replset.core.following import Following
from replset.core.heartbeat import Heartbeats
from replset.core.leading import Leading
from replset.core.member_state import MemberState
from replset.core.memory import Memory, Peer
from replset.core.messages import (
    ChainDoubted,
    ChainsCompared,
    DamageFound,
    DiskStalled,
    DrainFinished,
    FreezeRequest,
    HeartbeatReply,
    HeartbeatRequest,
    InitialSyncBegun,
    InitialSyncEnded,
    InitiateRequest,
    LocalPosition,
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
    RollbackEnded,
    ShutdownBegins,
    SourceBatch,
    SourceFailed,
    SourceProblem,
    StepDownRequest,
    StepUpRequest,
    VoteReply,
    VoteRequest,
    VoteSaved,
)
from replset.core.reconfig import Reconfigs
from replset.core.status import Status, describe
from replset.core.stepdown import StepDowns
from replset.core.write_concern import WriteConcern, satisfied
from replset.ids import OPTIME_NULL, HostPort, MemberId, Millis, OpTime


class Node:
    """See the module. Attributes and properties are for reading; nobody outside changes a node but by messages."""

    def __init__(
        self,
        *,
        host: HostPort,
        set_name: str,
        http_address: str,
        incarnation: str,
        rng: random.Random,
        config: ReplSetConfig | None,
        last_vote: LastVote | None,
        position: Position,
        initial_sync_pending: bool,
        rollback_id: Callable[[], int],
        wall_ms: Callable[[], int],
        default_write_concern_set: Callable[[], bool],
        allow_multiple_arbiters: bool = False,
        unacknowledged_rollbacks: Callable[[], int] = lambda: 0,
        rolling_back: bool = False,
        vouched: OpTime = OPTIME_NULL,
    ) -> None:
        """Everything that member.db and the store say at start. After a restart the term is the highest of last vote,
        newest entry and configuration. rolling_back: an interrupted rollback is not at its end; RollbackEnded follows.
        vouched: the durability mark; entries are lost where the newest one is before it.
        """
        vote = last_vote or LastVote(0, None)
        self._m = Memory(
            host=host,
            set_name=set_name,
            http_address=http_address,
            incarnation=incarnation,
            rng=rng,
            config=config,
            last_vote=vote,
            position=position,
            initial_sync_pending=initial_sync_pending,
            rollback_id=rollback_id,
            wall_ms=wall_ms,
            default_write_concern_set=default_write_concern_set,
            allow_multiple_arbiters=allow_multiple_arbiters,
            unacknowledged_rollbacks=unacknowledged_rollbacks,
            rolling_back=rolling_back,
            vouched=OPTIME_NULL if initial_sync_pending or vouched <= position.last_applied else vouched,
            term=max(vote.term, position.last_applied.term, 0 if config is None else config.term),
        )
        self._leading = Leading(self._m, lambda: self._reconfigs.on_leading())
        self._elections = Elections(self._m, self._leading)
        self._reconfigs = Reconfigs(self._m, self._elections, self._leading)
        self._heartbeats = Heartbeats(self._m, self._elections, self._leading, self._reconfigs)
        self._following = Following(self._m, self._leading)
        self._damage = Damage(self._m, self._leading, self._following)
        self._stepdowns = StepDowns(self._m, self._leading)
        self._reconfigs.check_request = lambda empty: self._heartbeats.request(check_empty=empty)

    # --- inputs --------------------------------------------------------------------------------------------------

    def start(self, now: Millis) -> list[Effect]:
        """Begin where the files left off."""
        m = self._m
        m.now = m.started_at = now
        member = m.self_member
        if m.config is not None:
            if m.vouched != OPTIME_NULL:
                self._begin_after_loss()
            elif member is not None and member.bears_data and not m.has_data and not m.initial_sync_pending:
                self._begin_without_data(m.config)
            self._reconfigs.meet_members()
            m.become(MemberState.REMOVED if member is None else self._reconfigs.place_of(member))
            m.push_election_timer()
        self._think()
        return self._take()

    def _begin_after_loss(self) -> None:
        """The disk lost entries that others may count on: with its vote, or as primary, a member without them could
        have the set forget what was acknowledged. It copies anew, as another incarnation; alone it waits for a person.
        """
        m = self._m
        m.initial_sync_pending = True
        m.quarantine = (
            f"entries are lost: this member vouched for all up to {m.vouched}, and its data ends at"
            f" {m.position.last_applied}. It copies the data of a member that has them; where there is none, bring back"
            " the missing file (replset.db-wal), or accept the loss with replset repair DBPATH --accept-data-loss"
        )
        m.journal("data lost", m.quarantine)

    def _begin_without_data(self, config: ReplSetConfig) -> None:
        """The files say that there must be entries, and there are none."""
        m = self._m
        if config.version_and_term == (1, 1) and m.term == 1:
            # It died between its configuration and the first entry that should stand before it.
            m.emit(AppendNoop(1, "initiating set"))
        else:
            # The data file was lost, the member file was not: what is named is data that is not here any more.
            m.initial_sync_pending = True

    def tick(self, now: Millis) -> list[Effect]:
        """Time has passed."""
        self._m.now = now
        self._think()
        return self._take()

    def receive(self, message: Message, now: Millis) -> list[Effect]:
        """Somebody said something, or finished something."""
        m = self._m
        m.now = now
        match message:
            case Response():
                self._on_response(message)
            case Request(request_id, ProgressRequest() as progress) if progress.term == m.term:
                self._heartbeats.on_progress(request_id, progress)
                self._stepdowns.advance()
                return self._take()  # as below
            case Request(request_id, body):
                self._on_request(request_id, body)
            case LocalPosition(position):
                # A batch is applied before it is reported: a place told in an earlier term than its entry's would be
                # taken for one in that term's history.
                self._elections.observe_term(position.last_applied.term)
                m.position = position
                self._leading.progress_moved()
                self._leading.advance_catch_up()
                self._stepdowns.advance()
                return self._take()  # the hot path: no timer can have changed
            case SourceBatch():
                if self._elections.hear_term(message.source, message.term):
                    self._following.on_batch(message)
            case SourceFailed():
                is_true = message.newest.term <= message.term
                if not (self._elections.hear_term(message.source, message.term) and is_true):
                    message = replace(message, problem=SourceProblem.NOT_READABLE)
                self._following.on_source_failed(message)
                if message.problem is SourceProblem.CHAIN_DIFFERS:
                    self._damage.compare(m.position.last_applied)
            case DamageFound(detail):
                self._damage.on_found(detail)
            case ChainDoubted(at):
                self._damage.compare(at)
            case ChainsCompared():
                self._damage.on_compared(message)
            case RollbackEnded():
                self._following.on_rollback_ended(message)
                if message.chain_differs_at != OPTIME_NULL:
                    self._damage.compare(message.chain_differs_at)
            case InitialSyncBegun():
                self._following.on_sync_begun(message)
            case InitialSyncEnded():
                self._following.on_sync_ended(message)
            case DiskStalled(stalled):
                m.disk_stalled = stalled
            case VoteSaved(term):
                self._elections.on_vote_saved(term)
            case DrainFinished(term):
                self._leading.on_drained(term)
            case ShutdownBegins():
                m.shutting_down = True
            case _:
                assert_never(message)
        self._think()
        return self._take()

    def _on_request(self, request_id: int, body: object) -> None:
        match body:
            case HeartbeatRequest():
                self._heartbeats.on_request(request_id, body)
            case VoteRequest():
                self._elections.on_vote_request(request_id, body)
            case ProgressRequest():
                self._heartbeats.on_progress(request_id, body)
            case StepUpRequest():
                self._elections.on_step_up_request(request_id, body)
            case InitiateRequest():
                self._reconfigs.on_initiate(request_id, body)
            case ReconfigRequest():
                self._reconfigs.on_reconfig(request_id, body)
            case StepDownRequest():
                self._stepdowns.on_request(request_id, body)
            case FreezeRequest():
                self._stepdowns.on_freeze(request_id, body)
            case ResyncRequest():
                self._following.on_resync(request_id, body)

    def _on_response(self, response: Response) -> None:
        body = response.body
        if self._heartbeats.is_asked(response.request_id):
            self._heartbeats.on_response(response)
        elif self._elections.is_asked(response.request_id):
            why_not = body.reason if isinstance(body, Refused) else response.error
            self._elections.on_vote_reply(response.request_id, body if isinstance(body, VoteReply) else None, why_not)
        elif self._reconfigs.is_asked(response.request_id):
            self._reconfigs.on_response(response)
        elif isinstance(body, VoteReply | ProgressReply | HeartbeatReply):
            self._elections.hear_term(response.to, body.term)

    def _think(self) -> None:
        """Whatever time or news make due."""
        self._heartbeats.tick()
        self._leading.tick()
        self._elections.tick()
        self._stepdowns.advance()
        self._reconfigs.tick()
        self._damage.tick()
        self._following.tick()

    def _take(self) -> list[Effect]:
        effects, self._m.out = self._m.out, []
        return effects

    def next_tick_at(self) -> Millis:
        """The earliest deadline; a tick before it changes nothing."""
        return min(
            self._heartbeats.next_due(),
            self._leading.next_due(),
            self._elections.next_due(),
            self._stepdowns.next_due(),
            self._reconfigs.next_due(),
            self._following.next_due(),
            self._damage.next_due(),
        )

    # --- answers: nothing below changes anything -----------------------------------------------------------------

    @property
    def config(self) -> ReplSetConfig | None:
        return self._m.config

    @property
    def state(self) -> MemberState:
        return self._m.state

    @property
    def term(self) -> int:
        return self._m.term

    @property
    def primary(self) -> MemberId | None:
        return self._m.primary_id

    @property
    def primary_host(self) -> HostPort | None:
        return self._m.primary_host

    @property
    def self_id(self) -> MemberId | None:
        return self._m.self_id

    @property
    def self_member(self) -> Member | None:
        return self._m.self_member

    @property
    def writable(self) -> bool:
        """PRIMARY, drained, and not stepping down: clients may write."""
        return self._m.writable

    @property
    def commit_point(self) -> OpTime:
        return self._m.commit_point

    @property
    def commit_term(self) -> int:
        """The term of the primary that committed what is behind `commit_point`."""
        return self._m.commit_term

    @property
    def set_id(self) -> ObjectId | None:
        """The id of the set in the configuration, None while there is none."""
        return self._m.set_id

    @property
    def position(self) -> Position:
        return self._m.position

    @property
    def sync_source(self) -> HostPort | None:
        return self._m.sync_source

    @property
    def incarnation(self) -> str:
        return self._m.incarnation

    @property
    def has_lost_data(self) -> bool:
        """Whether entries that this member vouched for are missing on its disk, and nothing has replaced it yet."""
        return self._m.vouched != OPTIME_NULL

    @property
    def rolling_back(self) -> bool:
        """Whether a rollback is under way, in whatever state this member is."""
        return self._m.rolling_back

    @property
    def quarantine(self) -> str:
        """Why this member keeps out of the way, empty when it does not."""
        return self._m.quarantine

    def peer_at(self, host: HostPort) -> Peer | None:
        """What is known of another member; for reading."""
        return self._m.peers.get(host)

    def http_address_of(self, host: HostPort) -> str | None:
        """Where a member's HTTP API is, as it said itself."""
        if host == self._m.host:
            return self._m.http_address
        peer = self._m.peers.get(host)
        return peer.http_address or None if peer is not None else None

    def election_timeout_ms(self) -> Millis:
        return self._m.settings.election_timeout_ms

    def secondary_delay_ms(self) -> int:
        member = self._m.self_member
        return 0 if member is None else member.secondary_delay_secs * 1000

    def status(self, now: Millis) -> Status | None:
        """The set as this node sees it, None while there is no configuration."""
        return describe(self._m, now, self._elections.last_reason, self._elections.last_needed)

    def progress_request(self) -> ProgressRequest | None:
        """What this member reports upstream now; None while it must not acknowledge anything."""
        m = self._m
        me = m.self_id
        if m.config is None or me is None or m.must_sync or m.is_arbiter or m.state is MemberState.STARTUP2:
            return None
        member = m.config.member(me)
        if member is not None and member.votes and not m.is_named:
            return None  # nothing of mine counts; how far I am is told in heartbeats
        own = MemberProgress(me, m.incarnation, m.position)
        return ProgressRequest(me, m.term, m.config.version, m.config.term, (own,), m.set_id)

    def is_satisfied(self, concern: WriteConcern, optime: OpTime) -> bool:
        """Whether the entry at `optime` meets `concern` by now. Only a primary says yes: after a stepdown the places of
        others are in another term's history.
        """
        m = self._m
        if not m.is_primary:
            return False
        if isinstance(concern.w, str):
            return m.commit_point >= optime and (not concern.j or self._leading.journalled() >= optime)
        return satisfied(concern, optime, m.position, m.positions().values(), m.commit_point)

    def progress_of(self) -> list[dict[str, object]]:
        """How far each member is, for people who wait: id, host, state and optimes as values."""
        m = self._m
        rows: list[dict[str, object]] = []
        for member in () if m.config is None else m.config.members:
            peer = m.peers.get(member.host)
            state = m.state if peer is None else peer.state
            position = m.position if peer is None else peer.position
            rows.append(
                {
                    "_id": int(member.id),
                    "host": member.host,
                    "state": state.name,
                    "appliedOpTime": position.last_applied,
                    "durableOpTime": position.last_durable,
                }
            )
        return rows
