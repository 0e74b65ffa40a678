"""The state of one node: what it knows of itself, of the configuration and of every other member.

All parts of the core share one `NodeState`: they read and change it, and emit effects through it.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from replset.bson import ObjectId
from replset.config import Member, ReplSetConfig, Settings
from replset.config.feature_version import FeatureVersion
from replset.core.ages import OptimeAges
from replset.core.effects import Effect, ElectionRecord, LastVote, RecordElectionEvent, Reply, Send, StateChanged
from replset.core.election_metrics import ElectionMetrics
from replset.core.member_state import MemberState, is_legal
from replset.core.messages import (
    HeartbeatRequest,
    MemberProgress,
    Position,
    ProgressRequest,
    ReplyBody,
    StepUpRequest,
    VoteRequest,
    is_plausible_term,
)
from replset.ids import OPTIME_NULL, HostPort, MemberId, Millis, OpTime, invariant

NO_POSITION = Position(OPTIME_NULL, OPTIME_NULL, 0, 0)
NEVER = Millis(1 << 62)
BEGINNING = Millis(0)
NO_CONFIG_VERSION = -2
LASTING_TIMEOUTS = 6  # election timeouts, after which a primary has lasted
_ROUND_TRIPS, _ENOUGH_ROUND_TRIPS = 8, 5


@dataclass(slots=True)
class Peer:
    """What this member knows of another one. Times are of the core's clock, but for `*_wall_ms`.

    last_contact: the newest request or reply from that member.
    """

    host: HostPort
    id: MemberId
    last_contact: Millis
    state: MemberState = MemberState.UNKNOWN
    state_since: Millis = BEGINNING
    position: Position = NO_POSITION
    config_version: int = NO_CONFIG_VERSION
    config_term: int = -1
    incarnation: str = ""
    unacknowledged_rollbacks: int = 0
    quarantine: str = ""
    overloaded: bool = False
    release: FeatureVersion | None = None  # up to which it can run a set; None: it has not said so yet
    http_address: str = ""
    sync_source: HostPort | None = None
    election_wall_ms: int | None = None
    has_data: bool = False
    electable: bool = False  # as it reports itself
    ping_ms: int = 0
    round_trips: deque[int] = field(default_factory=lambda: deque(maxlen=_ROUND_TRIPS))  # the newest, in milliseconds
    closeness_ms: int = 0  # the shortest of them: a busy member is no farther away
    reported_at: Millis = BEGINNING  # a progress report or a fetch brought its position, in `reported_term`
    reported_term: int = -1
    message: str = ""
    last_reply_wall_ms: int = 0
    last_request_wall_ms: int = 0
    heartbeat_due: Millis = BEGINNING
    heartbeat_id: int | None = None
    failures: int = 0
    refused_at: Millis | None = None  # the newest fresh connect that it refused, since it last was heard as primary
    has_answered: bool = False  # or its heartbeat failed, since this member won the last election
    heartbeat_began: Millis = BEGINNING  # the first try of the heartbeat under way
    answered_since: Millis = BEGINNING  # when the newest heartbeat began that it answered
    role_free_in: int = -1  # the term in which it last said that it holds no primary's role (role.py)

    @property
    def is_up(self) -> bool:
        return self.state not in (MemberState.DOWN, MemberState.UNKNOWN)

    @property
    def is_measured(self) -> bool:
        """Whether enough heartbeats were answered to know how close it is."""
        return len(self.round_trips) >= _ENOUGH_ROUND_TRIPS

    def note_round_trip(self, round_trip_ms: int) -> None:
        self.ping_ms = round_trip_ms if not self.is_up else (4 * self.ping_ms + round_trip_ms) // 5
        self.round_trips.append(round_trip_ms)
        self.closeness_ms = min(self.round_trips)

    def set_incarnation(self, incarnation: str) -> None:
        """Note the incarnation of its data. Another one is another disk, so the old position is void."""
        if self.incarnation != incarnation:
            self.incarnation = incarnation
            self.position = NO_POSITION
            self.has_data = False

    def restart_heartbeat(self, now: Millis) -> None:
        """Send a heartbeat at once, and ignore the reply to one that is still under way."""
        self.heartbeat_id = None
        self.heartbeat_due = now

    def is_heard(self, now: Millis, settings: Settings) -> bool:
        """Whether it sent a message within the last heartbeat interval: it lives, whether it answers or not."""
        return now - self.last_contact < settings.heartbeat_interval_ms

    def on_message(self, now: Millis, settings: Settings) -> None:
        """Ask a member that counts as DOWN and has sent a message: it lives, and it says itself how it is.

        The heartbeat under way may wait on a connection that a cut has broken, until its time is over.
        """
        if self.state is MemberState.DOWN and now - self.heartbeat_began >= settings.heartbeat_interval_ms:
            self.restart_heartbeat(now)


@dataclass(frozen=True, slots=True)
class LastPrimary:
    """The newest primary that this member knew; it stays when that primary is gone.

    since: when this member learned of it. short_before: how many primaries before it, in a row, did not last.
    """

    id: MemberId
    term: int
    since: Millis
    short_before: int = 0

    def is_recent(self, now: Millis, settings: Settings) -> bool:
        """Whether it has not lasted yet: a minute by default."""
        return now - self.since < LASTING_TIMEOUTS * settings.election_timeout_ms


def shown_state(member: Member | None, state: MemberState) -> MemberState:
    """The state of `member` as clients see it."""
    is_witness = member is not None and member.witness
    return MemberState.ARBITER if is_witness and state is MemberState.SECONDARY else state


class Counted(NamedTuple):
    """Whose positions count, kept while what decides it stays the same. by: of this member's data, and incarnations."""

    config: ReplSetConfig | None
    peers: dict[HostPort, Peer]
    by: tuple[object, ...]
    members: list[tuple[MemberId, Peer | None]]
    """None: this member itself."""


@dataclass(slots=True)
class NodeState:
    """What one node knows. `out` collects the effects of the input that is being handled.

    rolling_back: an interrupted rollback is not finished; RollbackEnded follows. durability_mark: of member.db; null
    unless the disk lacks entries up to it (docs/storage.md). oplog_only: the disk holds a witness's oplog without
    documents, whatever the configuration makes of this member. expected: the hosts of --expect-members, sorted; the
    first of them makes the set. resync_requested: the initial sync that was under way was asked for, and the data that
    it was to replace is there and whole.
    """

    host: HostPort
    set_name: str
    http_address: str
    incarnation: str
    rng: random.Random
    config: ReplSetConfig | None
    last_vote: LastVote
    position: Position
    initial_sync_pending: bool
    rollback_id: Callable[[], int]
    wall_ms: Callable[[], int]
    default_write_concern_set: Callable[[], bool]
    allow_multiple_arbiters: bool = False
    unacknowledged_rollbacks: Callable[[], int] = lambda: 0
    is_overloaded: Callable[[], bool] = lambda: False
    role_hook_ms: int = 0  # see role.py; 0: this member has no role hook
    holds_role: Callable[[], bool] = lambda: False
    rolling_back: bool = False
    oplog_only: bool = False
    resync_requested: bool = False
    expected: tuple[HostPort, ...] = ()
    term: int = 0
    state: MemberState = MemberState.STARTUP
    primary_id: MemberId | None = None
    last_primary: LastPrimary | None = None
    election_metrics: ElectionMetrics = field(default_factory=ElectionMetrics)
    commit_point: OpTime = OPTIME_NULL
    commit_term: int = 0  # of the primary that committed it; the entry itself may be of an older term
    newer_features: FeatureVersion | None = None  # of a configuration that this release cannot run
    commit_point_paused: bool = False  # on a primary: until a member that has caught up has its vote
    writable: bool = False
    peers: dict[HostPort, Peer] = field(default_factory=dict)
    election_due: Millis = NEVER
    frozen_until: Millis = BEGINNING
    disk_stalled: bool = False
    shutting_down: bool = False
    quarantine: str = ""
    maintenance: int = 0  # how often replSetMaintenance was switched on: above 0 the member stays in RECOVERING
    durability_mark: OpTime = OPTIME_NULL
    damage: str = ""  # why an oplog entry on this disk is not what was written; "" while none is known
    election_wall_ms: int | None = None
    sync_source: HostPort | None = None
    newest_ts: int = 0  # of all entries that members said to have
    ages: OptimeAges = field(default_factory=OptimeAges)  # of the set's entries, as far as it hears of them
    in_sync: frozenset[MemberId] = frozenset()  # on a primary: see in_sync.py
    levels: dict[str, int] = field(default_factory=dict)  # lowered durability levels, by namespace
    started_at: Millis = BEGINNING
    now: Millis = BEGINNING
    out: list[Effect] = field(default_factory=list)
    last_request_id: int = 0
    _counted: Counted | None = field(default=None, init=False, repr=False, compare=False)
    _known_self: tuple[ReplSetConfig | None, Member | None] = field(
        default=(None, None), init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        """After a restart the term is the highest of last vote, newest entry and configuration."""
        # With a lower term this member could vote again in a term in which it has voted, or lead one that is over.
        config_term = 0 if self.config is None else self.config.term
        self.term = max(self.last_vote.term, self.position.last_applied.term, config_term)
        # A mark that the data reaches says that nothing is lost. During an initial sync the marker keeps the member
        # from voting, and what its copy must reach is saved with the marker.
        if self.initial_sync_pending or self.durability_mark <= self.position.last_applied:
            self.durability_mark = OPTIME_NULL

    # --- itself --------------------------------------------------------------------------------------------------

    @property
    def is_primary(self) -> bool:
        return self.state is MemberState.PRIMARY

    @property
    def self_member(self) -> Member | None:
        config, member = self._known_self
        if config is not self.config:  # asked some ten times for each write
            member = None if self.config is None else self.config.member_at(self.host)
            self._known_self = self.config, member
        return member

    @property
    def self_id(self) -> MemberId | None:
        member = self.self_member
        return None if member is None else member.id

    @property
    def settings(self) -> Settings:
        return Settings() if self.config is None else self.config.settings

    @property
    def set_id(self) -> ObjectId | None:
        """settings.replicaSetId, which differs between two sets of the same name."""
        return None if self.config is None else self.config.settings.replica_set_id

    @property
    def has_data(self) -> bool:
        return self.position.last_applied != OPTIME_NULL

    @property
    def is_arbiter(self) -> bool:
        member = self.self_member
        return member is not None and member.arbiter_only

    @property
    def is_witness(self) -> bool:
        member = self.self_member
        return member is not None and member.witness

    @property
    def shown_state(self) -> MemberState:
        """The state as clients see it: a witness in service is an arbiter to them, since it has no documents."""
        # Asked several times for each write: only a secondary may be shown as something else.
        return self.state if self.state is not MemberState.SECONDARY else shown_state(self.self_member, self.state)

    @property
    def must_sync(self) -> bool:
        """Whether the initial-sync marker is set: no vote, no acknowledgement, no read. Arbiters sync nothing.

        The same goes for a member whose disk is not of its kind: it was a witness before, and has no documents, or it
        is one now, and its documents are not kept up to date.
        """
        return (self.initial_sync_pending or self.has_wrong_kind_of_data) and not self.is_arbiter

    @property
    def has_wrong_kind_of_data(self) -> bool:
        """Whether this witness has documents, or this data member has none beside its oplog."""
        member = self.self_member
        return member is not None and self.has_data and self.oplog_only != member.witness

    @property
    def incarnation_matches(self) -> bool:
        """Whether the configuration names this member's incarnation. Only then does it vote and count.

        After a disk is replaced, the old votes and acknowledgements are gone. A member that voted twice in one term, or
        that counted for entries which it lost, could let committed writes be rolled back.
        """
        member = self.self_member
        return member is not None and member.incarnation == self.incarnation and not self.must_sync

    @property
    def is_electable(self) -> bool:
        member = self.self_member
        # The history of whoever wins becomes the set's. A member without data would have all entries rolled back, and
        # one in quarantine may be of another history. One whose disk has stopped could not keep what it writes. Without
        # its incarnation its own vote does not count (`Elections._win`). Frozen or about to stop, it would be primary
        # for a moment and hold up writes for another election.
        return (
            member is not None
            and member.is_electable
            and member.is_voter
            and self.incarnation_matches
            and self.has_data
            and self.state is MemberState.SECONDARY
            and self.now >= self.frozen_until
            and not self.disk_stalled
            and not self.shutting_down
            and not self.quarantine
        )

    # --- others --------------------------------------------------------------------------------------------------

    def is_other_set(self, set_name: str, set_id: ObjectId | None) -> bool:
        """Whether this name and id are of another set. An id that one side does not know yet (None) fits any."""
        own = self.set_id
        return set_name != self.set_name or (own is not None and set_id is not None and set_id != own)

    def is_member(self, host: HostPort) -> bool:
        """Whether the configuration has a member at `host`. Nobody else's messages change anything."""
        return self.config is not None and self.config.member_at(host) is not None

    def is_former_member(self, host: HostPort) -> bool:
        """Whether the last reconfig removed this host. It is asked for a newer configuration, for nothing else."""
        return self.config is not None and host in self.config.former_hosts

    def term_refusal(self, term: int) -> str | None:
        """Why this node does not accept another member's term; None: it does."""
        if is_plausible_term(self.term, term):
            return None
        return f"term {term} is too far above mine, {self.term}, to be true; `replset repair` puts such a term right"

    def accept_position(self, peer: Peer, position: Position) -> None:
        """Note another member's position, unless it cannot be true.

        A primary wrote every entry of its term, so no other member can hold one that the primary lacks. To count such a
        report would acknowledge writes that are on this disk alone. A member may be ahead in an older term: catch-up
        fetches those entries.
        """
        newest = max(position.last_applied, position.last_durable)
        if self.is_primary and newest.term >= self.term and newest > self.position.last_applied:
            return
        peer.position = position
        self.newest_ts = max(self.newest_ts, newest.ts)

    def peer_of(self, member_id: MemberId | None) -> Peer | None:
        for peer in self.peers.values():
            if peer.id == member_id:
                return peer
        return None

    def sorted_peers(self) -> list[Peer]:
        return sorted(self.peers.values(), key=lambda peer: peer.id)

    def peer_incarnation_matches(self, peer: Peer) -> bool:
        """Whether the configuration names the incarnation that this peer reports."""
        member = None if self.config is None else self.config.member(peer.id)
        return member is not None and bool(peer.incarnation) and member.incarnation == peer.incarnation

    @property
    def primary_host(self) -> HostPort | None:
        if self.config is None:
            return None
        member = self.config.member(self.primary_id)
        return None if member is None else member.host

    def serves(self, member: Member) -> bool:
        """Whether a member is this one, or a SECONDARY at its last word."""
        peer = self.peers.get(member.host)
        return member.host == self.host or (peer is not None and peer.state is MemberState.SECONDARY)

    def positions(self) -> dict[MemberId, Position]:
        """Positions that count: of voters whose incarnation matches, witnesses too, and of members without a vote.

        One process under two host names holds one copy, so each incarnation counts once.
        """
        data = self.initial_sync_pending, self.oplog_only, self.has_data, self.incarnation
        by = *data, *[peer.incarnation for peer in self.peers.values()]
        known = self._counted
        if known is None or known.config is not self.config or known.peers is not self.peers or known.by != by:
            known = self._counted = Counted(self.config, self.peers, by, self._find_counted())
        return {member_id: self.position if peer is None else peer.position for member_id, peer in known.members}

    def _find_counted(self) -> list[tuple[MemberId, Peer | None]]:
        found: list[tuple[MemberId, Peer | None]] = []
        counted = {self.incarnation}
        for member in () if self.config is None else self.config.oplog_holders:
            if member.host == self.host:
                if self.incarnation_matches or member.votes == 0:
                    found.append((member.id, None))
                continue
            peer = self.peers.get(member.host)
            if peer is None or peer.incarnation in counted:
                continue
            if self.peer_incarnation_matches(peer) or (member.votes == 0 and not member.newly_added):
                counted.add(peer.incarnation)
                found.append((member.id, peer))
        return found

    def document_positions(self) -> list[Position]:
        """Return those `positions` that are of members with documents: what `w: N` counts."""
        bearing = {member.id for member in self.config.data_bearing} if self.config is not None else set()
        return [position for member_id, position in self.positions().items() if member_id in bearing]

    @property
    def is_config_committed(self) -> bool:
        """Whether a majority of the voters has the current configuration, as far as this member knows (map C11)."""
        if self.config is None:
            return False
        holders = 0
        for voter in self.config.voters:
            peer = self.peers.get(voter.host)
            if voter.host == self.host:
                holders += 1
            elif peer is not None and (peer.config_version, peer.config_term) == self.config.version_and_term:
                # A member that has this configuration refuses its vote to a candidate with an older one. A member whose
                # disk was replaced has no vote to refuse.
                holders += self.peer_incarnation_matches(peer)
        return holders >= self.config.majority_vote_count

    def advertised_position(self) -> Position:
        """Position sent to other members; null during initial sync (map S5)."""
        return NO_POSITION if self.must_sync else self.position

    def relayed_progress(self) -> tuple[MemberProgress, ...]:
        """Positions that this member passes on to its source: of members that report to it (map R8).

        Only reports of this term, and of the last election timeout: what a member said before may not hold any more.
        """
        if self.is_primary:
            return ()
        since = self.now - self.settings.election_timeout_ms
        return tuple(
            MemberProgress(peer.id, peer.incarnation, peer.position)
            for peer in self.peers.values()
            if peer.reported_term == self.term
            and peer.reported_at >= since
            and peer.host != self.sync_source
            and peer.state in (MemberState.SECONDARY, MemberState.RECOVERING)
        )

    # --- effects -------------------------------------------------------------------------------------------------

    def emit(self, *effects: Effect) -> None:
        self.out.extend(effects)

    def send(
        self, to: HostPort, body: HeartbeatRequest | VoteRequest | ProgressRequest | StepUpRequest, timeout_ms: int
    ) -> int:
        """Emit a Send. Returns the id that its Response will have."""
        self.last_request_id += 1
        self.emit(Send(self.last_request_id, to, body, Millis(timeout_ms)))
        return self.last_request_id

    def heartbeat_request(self, *, check_empty: bool = False) -> HeartbeatRequest:
        """A heartbeat of this member. check_empty: the quorum check of replSetInitiate."""
        config = self.config
        return HeartbeatRequest(
            self.set_name,
            self.host,
            self.self_id,
            self.term,
            NO_CONFIG_VERSION if config is None else config.version,
            -1 if config is None else config.term,
            self.primary_id,
            self.incarnation,
            check_empty,
            self.set_id,
            self.expected if check_empty else (),
            self.holds_role(),
        )

    def reply(self, request_id: int, body: ReplyBody) -> None:
        self.emit(Reply(request_id, body))

    def journal(self, event: str, detail: str) -> None:
        self.emit(RecordElectionEvent(ElectionRecord(self.term, str(event), detail, self.wall_ms())))

    def name_of(self, member_id: MemberId | None) -> str:
        """Return the host of a member, for the journal; its id if the configuration does not have it."""
        member = None if self.config is None else self.config.member(member_id)
        return f"member {member_id}" if member is None else str(member.host)

    def become(self, state: MemberState) -> None:
        """Change to another member state; `member_state.py` says which changes are legal."""
        invariant(is_legal(self.state, state), f"no way from {self.state.name} to {state.name}")
        if self.state is not state:
            self.state = state
            self.emit_state()

    def emit_state(self) -> None:
        self.emit(StateChanged(self.state, self.term, self.primary_id))

    def set_primary(self, member_id: MemberId | None) -> None:
        self.note_primary(member_id)
        if self.primary_id != member_id:
            self.primary_id = member_id
            self.emit_state()

    def note_primary(self, member_id: MemberId | None) -> None:
        """Remember the newest primary, also when it is gone."""
        old = self.last_primary
        if member_id is None or (old is not None and (old.id, old.term) == (member_id, self.term)):
            return
        short = 0 if old is None or not old.is_recent(self.now, self.settings) else old.short_before + 1
        self.last_primary = LastPrimary(member_id, self.term, self.now, short)

    def restart_heartbeats(self) -> None:
        """Send a heartbeat to every member with the next tick, which follows at once."""
        for peer in self.peers.values():
            peer.restart_heartbeat(self.now)

    def push_election_timer(self) -> None:
        """Restart the election timer: one election timeout and up to 15 % more (map E1, H7)."""
        timeout = self.settings.election_timeout_ms
        self.election_due = Millis(self.now + timeout + int(self.rng.random() * timeout * 0.15))
