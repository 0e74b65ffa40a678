"""What a secondary does: follow a sync source, roll back, copy everything anew (map R1, Ro1, I1).

Which source it takes, sync_source.py decides. When a source lacks this member's newest entry, the member rolls back
towards it only if the source's newest entry is of a higher term: such a source holds all that was committed before
(Raft, 5.4.3). A source whose newest entry is of a lower term than the one in which this member's commit point was
committed may lack committed entries. The member leaves it and tries again later. Entries also come
from a witness; a copy of the data never does.
"""

from __future__ import annotations

from replset.core.effects import (
    InitialSyncNotNeeded,
    Persist,
    StartFetching,
    StartInitialSync,
    StartRollback,
    StopFetching,
)
from replset.core.leader import Leader
from replset.core.member_state import MemberState
from replset.core.messages import (
    Done,
    InitialSyncEnded,
    InitialSyncStarted,
    MaintenanceRequest,
    Refused,
    ResyncRequest,
    RollbackEnded,
    SourceBatch,
    SourceFailed,
    SourceProblem,
    SyncFromRequest,
)
from replset.core.quorum import has_majority
from replset.core.staleness import behind_ms
from replset.core.state import NEVER, NodeState, Peer
from replset.core.sync_source import SyncSources
from replset.errors import ErrorCode
from replset.ids import OPTIME_NULL, HostPort, Millis, OpTime, invariant

MAX_RETRY_MS = 1_000
NO_SOURCE_RETRY_MS = 100
ROLLBACK_REFUSED = "rollback refused: "
"""How a quarantine after a refused rollback begins: the set has lost what this member knows to be committed."""
_TOO_STALE = "too stale"
_ASKED_FOR = "asked for"
_NO_SOURCE = "no member whose data could be copied is known"


class Follower:
    """The follower's part of a node: sync source, rollback, initial sync and resync."""

    def __init__(self, node: NodeState, leader: Leader) -> None:
        self.node = node
        self._leader = leader
        self.sources = SyncSources(node)
        self._retry_at = Millis(0)
        self._is_copying = False  # an initial sync runs
        self._has_marker = node.resync_requested  # the one that runs, or ran last, has set its marker
        self.is_requested = node.resync_requested  # by replSetResync: the data that it replaces is whole
        self._resync_request: tuple[int, HostPort] | None = None  # answered once the marker is set, or it is refused
        self._is_forced = False
        self._no_source_since: Millis | None = None
        self._too_stale = _ASKED_FOR if node.resync_requested else ""

    def tick(self) -> None:
        node = self.node
        if node.has_wrong_kind_of_data and node.state in (MemberState.SECONDARY, MemberState.RECOVERING):
            self._replace_wrong_kind_of_data()
        if node.state is MemberState.SECONDARY and node.maintenance:
            node.become(MemberState.RECOVERING)
        if node.state is MemberState.STARTUP2:
            self._sync_initially()
        elif node.state in (MemberState.SECONDARY, MemberState.RECOVERING):
            self._follow()
        elif node.state in (MemberState.REMOVED, MemberState.ARBITER) and node.sync_source is not None:
            self._stop()

    def _replace_wrong_kind_of_data(self) -> None:
        """Sync as a new member does: this one was removed from the set and added again as a witness, or was one.

        A witness's oplog goes on where its documents would not. Taken for a data member's, it would lose every write
        that came while it was a witness.
        """
        node = self.node
        if node.quarantine:
            return  # the operator's word comes first: replSetResync
        what = "this member is a witness now" if node.is_witness else "this member was a witness and has no documents"
        node.journal("resync", what)
        self._stop()
        self._too_stale = what
        node.become(MemberState.STARTUP2)

    def next_due(self) -> Millis:
        node = self.node
        if node.state in (MemberState.SECONDARY, MemberState.RECOVERING):
            return self.sources.next_due()
        return self._retry_at if node.state is MemberState.STARTUP2 and self._retry_at > node.now else NEVER

    def _next_try(self) -> Millis:
        """When to try again: after a quarter of a heartbeat interval, at most a second."""
        return Millis(self.node.now + min(MAX_RETRY_MS, max(1, self.node.settings.heartbeat_interval_ms // 4)))

    # --- the oplog -----------------------------------------------------------------------------------------------

    def on_sync_from(self, request_id: int, request: SyncFromRequest) -> None:
        """replSetSyncFrom: an initial sync takes this source with its next attempt."""
        refusal = self.sources.on_request(request)
        own = self.node.position
        behind = 0 if refusal else behind_ms(self.node, self.node.peers[request.host].position, own)
        warning = f"requested member {request.host} is more than 10 seconds behind us" if behind > 10_000 else ""
        self.node.reply(request_id, refusal or Done(warning))

    def on_maintenance(self, request_id: int, request: MaintenanceRequest, *, is_candidate: bool) -> None:
        """replSetMaintenance: in RECOVERING the member goes on to fetch, acknowledge and vote."""
        node = self.node
        if node.self_member is None or node.is_arbiter or node.is_primary or is_candidate:
            why = (
                "this member is running for election" if is_candidate else f"{node.state.name} has no maintenance mode"
            )
            node.reply(request_id, Refused(ErrorCode.NOT_SECONDARY, why))
            return
        if not request.on and not node.maintenance:
            node.reply(request_id, Refused(ErrorCode.OPERATION_FAILED, "already out of maintenance mode"))
            return
        node.maintenance += 1 if request.on else -1
        if not node.maintenance and not node.quarantine and node.state is MemberState.RECOVERING:
            node.become(MemberState.SECONDARY)
        node.reply(request_id, Done())

    def _follow(self) -> None:
        node = self.node
        if node.sync_source is not None:
            reason = self.sources.reason_to_leave(node.sync_source)
            if reason is None:
                return
            self.sources.on_leaving(node.sync_source, reason)
            self._stop()
        source = self.sources.choose()
        if source is not None:
            # A member that reads its own oplog would take itself for a source without news, and never look for another.
            invariant(source != node.host and not node.is_primary, "a member follows another one, a primary none")
            node.sync_source = source
            node.emit(StartFetching(source))

    def _stop(self) -> None:
        if self.node.sync_source is not None:
            self.node.sync_source = None
            self.node.emit(StopFetching())

    def on_batch(self, batch: SourceBatch) -> None:
        """A batch matched the log: take over the source's commit point, as far as its entries are here (map K2)."""
        node = self.node
        if batch.source != node.sync_source:
            return
        if batch.source_is_primary and batch.term == node.term and batch.source == node.primary_host:
            node.push_election_timer()
        if node.state is not MemberState.PRIMARY:
            # The batch continued this member's own oplog, so everything up to its newest entry here is the source's
            # history, in whatever term. A heartbeat proves no such thing (`Heartbeats.accept_commit_point`). A commit
            # point beyond that entry would name one that is not here, and that a later rollback may replace.
            term = max(batch.commit_term, batch.commit_point.term)
            self._leader.advance_commit_point(min(batch.commit_point, node.position.last_applied), term)

    def on_source_failed(self, failed: SourceFailed) -> None:
        node = self.node
        if failed.source != node.sync_source:
            return
        node.sync_source = None
        self.sources.on_failed(failed.source, self._next_try())
        if node.state is MemberState.PRIMARY:
            self._leader.end_catch_up(f"{failed.source}: {failed.detail}")
            return
        if failed.problem is SourceProblem.DIVERGED:
            self._on_diverged(failed)
        elif failed.problem is SourceProblem.NOT_APPLIED:
            # Another source has the same entry. Without it no later one may be applied.
            self.quarantine(failed.detail)

    def _on_diverged(self, failed: SourceFailed) -> None:
        node = self.node
        own = node.position.last_applied
        if failed.newest.term < node.commit_term:
            # The source was away while this member's commit point was committed, so it may lack committed entries. To
            # roll back or copy towards it could take the last copies of a majority write from the set.
            return
        # The source has no entry as old as this member's newest, so the two have no entry to compare. To undo on a
        # guess could take back committed entries, and to go on behind the gap would leave out what was written in it.
        # If only the term of the source's oldest entry is later, the oplogs may overlap, and the search for the common
        # point decides.
        if failed.oldest > own and failed.oldest.ts > own.ts:
            if node.has_data and self.sources.on_too_stale(failed.source, failed.oldest) is not None:
                return  # another one may reach back farther
            why = f"{_TOO_STALE}: the oldest entry of {failed.source} is {failed.oldest}, this member's newest {own}"
            self._on_too_stale(failed.source, why)
        # A source whose newest entry is of a higher term has everything that was committed up to this member's newest
        # entry (Raft, 5.4.3). A source that is only behind in the same term may lack entries of this member that a
        # majority has: to roll back towards it would take them away. It is left for another one. (Map Ro1.)
        elif failed.newest.term > own.term and node.state in (MemberState.SECONDARY, MemberState.RECOVERING):
            node.journal("rollback", f"the newest entry {own} is not in the history of {failed.source}")
            node.rolling_back = True
            node.become(MemberState.ROLLBACK)
            node.emit(StartRollback(failed.source))

    def _on_too_stale(self, host: HostPort, why: str) -> None:
        """Copy everything anew; wait if only a witness, or a member without this one's indexes, is there.

        A data member that comes back may have the entries that are trimmed away there. Until then this member's data
        and vote are of more use than an initial sync without a source.
        """
        node = self.node
        source = self._choose_sync_source(forced=False) or host
        if self._can_be_copied(source):
            self._resync(source, why)
            return
        self.sources.deny_for_long(host)
        node.journal("too stale", f"{why}; it has not all documents and indexes, and no member that has them is there")
        if node.state is MemberState.ROLLBACK:
            node.become(MemberState.STARTUP2 if node.must_sync else MemberState.SECONDARY)

    # --- rollback ------------------------------------------------------------------------------------------------

    def on_rollback_ended(self, ended: RollbackEnded) -> None:
        node = self.node
        node.rolling_back = False
        if node.state is not MemberState.ROLLBACK:
            return
        node.journal("rollback ended", ended.detail)
        if ended.ok:
            self.sources.allow(ended.source)
        else:
            self.sources.on_failed(ended.source, self._next_try())
        if ended.ok or ended.retry:
            node.become(MemberState.STARTUP2 if node.must_sync else MemberState.SECONDARY)
            node.push_election_timer()
        elif ended.too_stale:
            self._on_too_stale(ended.source, f"{_TOO_STALE}: {ended.detail}")
        else:
            self.quarantine(ended.detail if ended.not_undone else ROLLBACK_REFUSED + ended.detail)

    def quarantine(self, why: str) -> None:
        """Go to RECOVERING, fetch nothing and wait for an operator. Nothing is undone or deleted."""
        node = self.node
        node.quarantine = why
        node.journal("quarantined", why)
        self._stop()
        node.become(MemberState.RECOVERING)

    def on_resync(self, request_id: int, request: ResyncRequest) -> None:
        """replSetResync: replace this member's data; also the way out of a quarantine. Answered once it has begun."""
        node = self.node
        refusal = self._resync_refusal()
        if refusal is not None:
            node.reply(request_id, refusal)
        elif node.state is MemberState.STARTUP2:
            self._is_forced = self._is_forced or request.force
            node.reply(request_id, Done("this member copies another one's data already"))
        else:
            source = self._choose_sync_source(forced=request.force)
            refusal = self._source_refusal(source, request)
            if source is None or refusal is not None:
                node.reply(request_id, refusal or Refused(ErrorCode.NODE_NOT_FOUND, _NO_SOURCE))
                return
            self.is_requested, self._is_forced, self._resync_request = True, request.force, (request_id, source)
            self._resync(source, "forced" if request.force else _ASKED_FOR)

    def _source_refusal(self, source: HostPort | None, request: ResyncRequest) -> Refused | None:
        """Why no other member's data may replace this member's; None: `source` may."""
        node = self.node
        behind = self._choose_sync_source(forced=True)
        if behind is None:
            return Refused(ErrorCode.NODE_NOT_FOUND, _NO_SOURCE)
        peer = node.peers[behind]
        lack = f"{behind} is at {peer.position.last_applied}, this member holds {self._required_optime()}"
        if source is None:
            return Refused(
                ErrorCode.INVALID_SYNC_SOURCE,
                f"{lack}: its copy may lack what was acknowledged here; wait until it has caught up, or use force to"
                " keep what is missing in a rollback file only",
            )
        if request.force and not self._reaches(peer) and not self._others_can_elect():
            # After such a copy the member is another incarnation, and only a primary can give it its vote back. If the
            # others are no majority, there would never be a primary.
            return Refused(
                ErrorCode.INVALID_SYNC_SOURCE,
                f"{lack}: with such a copy its vote is void, and the others elect no primary without it; take its vote"
                " away first (replSetReconfig with force on another member)",
            )
        return None

    def _others_can_elect(self) -> bool:
        node = self.node
        if node.config is None:
            return False
        peers = [node.peers.get(voter.host) for voter in node.config.voters]
        votes = sum(peer is not None and peer.is_up and node.peer_incarnation_matches(peer) for peer in peers)
        return has_majority(votes, len(node.config.voters))

    def _resync_refusal(self) -> Refused | None:
        node = self.node
        if node.config is None:
            return Refused(ErrorCode.NOT_YET_INITIALIZED, "no replset config has been received")
        if node.state is MemberState.PRIMARY:
            return Refused(ErrorCode.NOT_SECONDARY, "the primary's data is what others copy; step it down first")
        if node.state is MemberState.ARBITER:
            return Refused(ErrorCode.NOT_SECONDARY, "an arbiter holds no data")
        if node.state in (MemberState.SECONDARY, MemberState.RECOVERING, MemberState.STARTUP2):
            return None
        return Refused(ErrorCode.NOT_SECONDARY, f"this member is in {node.state.name}; try again once it is not")

    # --- initial sync --------------------------------------------------------------------------------------------

    def _resync(self, source: HostPort, why: str) -> None:
        node = self.node
        node.journal("resync", why)
        self._stop()
        if node.state is not MemberState.STARTUP2:
            node.become(MemberState.STARTUP2)
        self._too_stale = why
        self._start_sync(source, why)

    def _sync_initially(self) -> None:
        node = self.node
        if self._is_copying or node.now < self._retry_at:
            return
        source = self._choose_sync_source(forced=self._is_forced)
        if source is None:
            self._retry_at = min(self._next_try(), Millis(node.now + NO_SOURCE_RETRY_MS))
            if self._no_source_since is None:
                self._no_source_since = node.now
            elif self.is_requested and self._may_block_election(self._no_source_since):
                self._give_up("no reachable member holds what this member acknowledged")
            return
        self._start_sync(source, self._too_stale or "this member has no data yet")

    def _may_block_election(self, since: Millis) -> bool:
        """Whether for an election timeout other members are up and none is primary: they may lack this vote or data."""
        node = self.node
        waited = node.now - since >= node.settings.election_timeout_ms
        return waited and node.primary_id is None and any(peer.is_up for peer in node.peers.values())

    def _give_up(self, why: str) -> None:
        """End a requested resync, whose old data is still whole; the member goes on with that data.

        While it waits for a source it neither votes nor starts an election. If the source died, this member may be the
        only one with the newest committed entries. Then nobody else could be elected, and no source would ever come.
        """
        node = self.node
        node.journal("resync given up", why)
        if self._has_marker:
            node.emit(Persist(InitialSyncNotNeeded()))
        node.initial_sync_pending = False
        self._end_sync()
        node.become(MemberState.RECOVERING if node.quarantine else MemberState.SECONDARY)
        node.push_election_timer()

    def _end_sync(self) -> None:
        self.is_requested = self._is_forced = self._has_marker = False
        self._too_stale = ""
        self._no_source_since = None
        self._retry_at = self.node.now

    def _required_optime(self) -> OpTime:
        """The optime that a copy must reach: this member may have acknowledged everything up to it."""
        return max(self.node.position.last_applied, self.node.commit_point, self.node.durability_mark)

    def _reaches(self, peer: Peer) -> bool:
        """Whether the peer's log reaches the required optime, as far as this member knows.

        A copy of a member that is behind would take back entries that this member acknowledged, and a majority write
        could be lost. A primary holds every entry of its own term. The initial sync asks the source again, and checks
        the copy before it is installed.
        """
        required, node = self._required_optime(), self.node
        return peer.position.last_applied >= required or (peer.id == node.primary_id and required.term == node.term)

    def _choose_sync_source(self, *, forced: bool) -> HostPort | None:
        """The one that replSetSyncFrom names, else the primary, else the readable member with the newest entry."""
        node = self.node
        able = [peer for peer in node.sorted_peers() if peer.has_data and peer.state.is_readable]
        able = [peer for peer in able if self._can_be_copied(peer.host)]
        able = [peer for peer in able if forced or self._reaches(peer)]
        if not able:
            return None

        def fitness(peer: Peer) -> tuple[bool, bool, object, int]:
            is_requested = peer.host == self.sources.requested
            return (is_requested, peer.state is MemberState.PRIMARY, peer.position.last_applied, -peer.id)

        return max(able, key=fitness).host

    def _can_be_copied(self, host: HostPort) -> bool:
        """Whether the member at `host` has documents, which a witness has not, and all the indexes of this one."""
        me, it = self.node.self_member, None if self.node.config is None else self.node.config.member_at(host)
        return it is not None and it.bears_data and (it.build_indexes or me is None or not me.build_indexes)

    def _start_sync(self, source: HostPort, why: str) -> None:
        self._is_copying = True
        self._no_source_since = None
        self.node.initial_sync_pending = True  # no vote and no acknowledgement, even before the marker is saved
        self.node.journal("initial sync", f"from {source}: {why}")
        self.node.emit(StartInitialSync(source, why, self._is_forced, self.node.is_witness, self._is_stale()))

    def _is_stale(self) -> bool:
        """Whether this member's documents are sound, only too old. What somebody asked for is a copy of everything."""
        node = self.node
        is_sound = not node.quarantine and not node.damage and node.durability_mark == OPTIME_NULL
        return self._too_stale.startswith(_TOO_STALE) and not self.is_requested and is_sound

    def on_initial_sync_started(self, begun: InitialSyncStarted) -> None:
        node = self.node
        node.incarnation = begun.incarnation
        node.initial_sync_pending = True
        self._has_marker = True
        if self._resync_request is not None:
            source = self._resync_request[1]
            self._answer_resync(Done(f"this member exports what only it has, and copies the data of {source}"))

    def on_initial_sync_ended(self, ended: InitialSyncEnded) -> None:
        node = self.node
        self._is_copying = False
        node.journal("initial sync ended", ended.detail)
        if not ended.ok:
            self._retry_at = self._next_try()
            self._answer_resync(
                Refused(ErrorCode.INVALID_SYNC_SOURCE if ended.refused else ErrorCode.NODE_NOT_FOUND, ended.detail)
            )
            if self.is_requested and node.state is MemberState.STARTUP2 and (ended.refused or not self._has_marker):
                self._give_up(ended.detail)
            return
        node.initial_sync_pending = False
        node.oplog_only = ended.oplog_only
        node.quarantine = node.damage = ""
        node.durability_mark = OPTIME_NULL
        self._end_sync()
        if not ended.holds_committed:
            # The new data lacks what was known to be committed. Other entries at or below the old commit point may not
            # be committed, so a majority read must not show them.
            node.commit_point, node.commit_term = OPTIME_NULL, 0
        if node.state is MemberState.STARTUP2 and not node.must_sync:
            node.become(MemberState.SECONDARY)
            node.push_election_timer()

    def _answer_resync(self, answer: Done | Refused) -> None:
        if self._resync_request is not None:
            self.node.reply(self._resync_request[0], answer)
            self._resync_request = None
