"""Follower: whom to sync from, when to roll back, when to copy everything anew (map R1, Ro1, I1).

Members sync from the primary. A source that does not hold my newest entry is rolled back to only when its newest entry
is of a higher term than mine: then it holds all that was committed before that term (Raft, 5.4.3). Entries of an old
term may be committed later, through a higher one. So a source whose newest entry is of a lower term than the one in
which my commit point was committed is left alone: it may lack what I know to be committed.
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
    Refused,
    ResyncRequest,
    RollbackEnded,
    SourceBatch,
    SourceFailed,
    SourceProblem,
)
from replset.core.quorum import has_majority
from replset.core.state import NEVER, NodeState, Peer
from replset.errors import ErrorCode
from replset.ids import OPTIME_NULL, HostPort, Millis, OpTime

MAX_RETRY_MS = 1_000
ROLLBACK_REFUSED = "rollback refused: "
"""How a quarantine begins that a rollback led to: what this member knows to be committed is not in the set any more."""
_NOBODY = "no member whose data could be copied is known"


class Follower:
    """What a member that is not primary does to keep up."""

    def __init__(self, node: NodeState, leader: Leader) -> None:
        self.node = node
        self._leader = leader
        self._retry_at = Millis(0)
        self._failed: HostPort | None = None  # the pause is for this source; another one is tried at once
        self._syncing = False  # an initial sync runs
        self._has_marker = False  # the one that runs, or ran last, has set its marker
        self._asked_for = False  # somebody asked for this resync; the data that it replaces is sound
        self._resync_request: tuple[int, HostPort] | None = None  # answered once the marker is set, or it is refused
        self._forced = False
        self._no_source_since: Millis | None = None
        self._too_stale = ""

    def tick(self) -> None:
        node = self.node
        if node.state is MemberState.STARTUP2:
            self._sync_initially()
        elif node.state in (MemberState.SECONDARY, MemberState.RECOVERING):
            self._follow_primary()
        elif node.state in (MemberState.REMOVED, MemberState.ARBITER) and node.sync_source is not None:
            self._stop()

    def next_due(self) -> Millis:
        node = self.node
        waiting = node.state in (MemberState.SECONDARY, MemberState.RECOVERING, MemberState.STARTUP2)
        return self._retry_at if waiting and self._retry_at > node.now else NEVER

    def _later(self) -> Millis:
        """When to try again: soon, but not at once."""
        return Millis(self.node.now + min(MAX_RETRY_MS, max(1, self.node.settings.heartbeat_interval_ms // 4)))

    # --- the oplog -----------------------------------------------------------------------------------------------

    def choose_source(self) -> HostPort | None:
        """The primary. While none is known: a member that is ahead of me, so that what only it has can still win an
        election where it cannot stand itself. None: nobody.
        """
        node = self.node
        if node.quarantine:
            return None
        peer = node.peer_of(node.primary_id)
        if peer is not None:
            return None if peer.state is MemberState.DOWN else peer.host
        mine = node.position.last_applied
        ahead = [
            peer
            for peer in node.sorted_peers()
            if peer.state is MemberState.SECONDARY
            and peer.position.last_applied > mine
            and peer.position.last_applied.term >= node.commit_term
        ]
        if node.sync_source in [peer.host for peer in ahead]:
            return node.sync_source
        return max(ahead, key=lambda peer: (peer.position.last_applied, -peer.id)).host if ahead else None

    def _follow_primary(self) -> None:
        node = self.node
        source = self.choose_source()
        if source != node.sync_source:
            self._stop()
        if source is not None and node.sync_source is None and (node.now >= self._retry_at or source != self._failed):
            node.sync_source = source
            node.emit(StartFetching(source))

    def _stop(self) -> None:
        if self.node.sync_source is not None:
            self.node.sync_source = None
            self.node.emit(StopFetching())

    def on_batch(self, batch: SourceBatch) -> None:
        """A batch matched my log: the source's commit point is mine as far as I have its entries (map K2)."""
        node = self.node
        if batch.source != node.sync_source:
            return
        if batch.source_is_primary and batch.term == node.term and batch.source == node.primary_host:
            node.push_election_timer()
        if node.state is not MemberState.PRIMARY:
            term = max(batch.commit_term, batch.commit_point.term)
            self._leader.advance_commit_point(min(batch.commit_point, node.position.last_applied), term)
        if node.state is MemberState.RECOVERING and not node.quarantine:
            node.become(MemberState.SECONDARY)
        self._leader.advance_catch_up()

    def on_source_failed(self, failed: SourceFailed) -> None:
        node = self.node
        if failed.source != node.sync_source:
            return
        node.sync_source = None
        self._failed = failed.source
        self._retry_at = self._later()
        if node.state is MemberState.PRIMARY:
            self._leader.end_catch_up(f"{failed.source}: {failed.detail}")
            return
        if failed.problem is SourceProblem.DIVERGED:
            self._on_diverged(failed)

    def _on_diverged(self, failed: SourceFailed) -> None:
        node = self.node
        mine = node.position.last_applied
        if failed.newest.term < node.commit_term:
            return  # it was away while what I know to be committed was committed: nothing of mine goes for it
        if failed.oldest > mine and failed.oldest.ts > mine.ts:
            self._resync(
                failed.source, f"too stale: the oldest entry of {failed.source} is {failed.oldest}, my newest {mine}"
            )
        elif failed.newest.term > mine.term and node.state in (MemberState.SECONDARY, MemberState.RECOVERING):
            node.journal("rollback", f"my newest entry {mine} is not in the history of {failed.source}")
            node.rolling_back = True
            node.become(MemberState.ROLLBACK)
            node.emit(StartRollback(failed.source))

    # --- rollback ------------------------------------------------------------------------------------------------

    def on_rollback_ended(self, ended: RollbackEnded) -> None:
        node = self.node
        node.rolling_back = False
        if node.state is not MemberState.ROLLBACK:
            return
        node.journal("rollback ended", ended.detail)
        self._retry_at = node.now if ended.ok else self._later()
        if ended.ok or ended.retry:
            node.become(MemberState.STARTUP2 if node.initial_sync_pending else MemberState.SECONDARY)
            node.push_election_timer()
        elif ended.too_stale:
            self._resync(ended.source, f"too stale: {ended.detail}")
        else:
            self.quarantine(ROLLBACK_REFUSED + ended.detail)

    def quarantine(self, why: str) -> None:
        """Stay out of the way, say so, and wait for a person; nothing is undone or thrown away."""
        node = self.node
        node.quarantine = why
        node.journal("quarantined", why)
        self._stop()
        node.become(MemberState.RECOVERING)

    def on_resync(self, request_id: int, request: ResyncRequest) -> None:
        """A person wants this member's data replaced; also the way out of a quarantine. Answered once it has begun."""
        node = self.node
        refusal = self._resync_refusal()
        if refusal is not None:
            node.reply(request_id, refusal)
        elif node.state is MemberState.STARTUP2:
            self._forced = self._forced or request.force
            node.reply(request_id, Done("this member copies another one's data already"))
        else:
            source = self._choose_sync_source(forced=request.force)
            refusal = self._source_refusal(source, request)
            if source is None or refusal is not None:
                node.reply(request_id, refusal or Refused(ErrorCode.NODE_NOT_FOUND, _NOBODY))
                return
            self._asked_for, self._forced, self._resync_request = True, request.force, (request_id, source)
            self._resync(source, "forced" if request.force else "asked for")

    def _source_refusal(self, source: HostPort | None, request: ResyncRequest) -> Refused | None:
        """Why this member's data is not to be replaced by that of anybody in sight."""
        node = self.node
        behind = self._choose_sync_source(forced=True)
        if behind is None:
            return Refused(ErrorCode.NODE_NOT_FOUND, _NOBODY)
        peer = node.peers[behind]
        lack = f"{behind} is at {peer.position.last_applied}, this member holds {self._floor()}"
        if source is None:
            return Refused(
                ErrorCode.INVALID_SYNC_SOURCE,
                f"{lack}: its copy may lack what was acknowledged here; wait until it has caught up, or use force to"
                " keep what is missing in a rollback file only",
            )
        if request.force and not self._reaches(peer) and not self._others_can_elect():
            # The copy makes this member another incarnation, which a primary has to name anew. A set whose others are
            # no majority would have no primary, and so nobody who could.
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
        if self._syncing or node.now < self._retry_at:
            return
        source = self._choose_sync_source(forced=self._forced)
        if source is None:
            self._retry_at = self._later()
            if self._no_source_since is None:
                self._no_source_since = node.now
            elif self._asked_for and self._is_vote_missed(self._no_source_since):
                self._give_up("nobody can be reached who holds what this member acknowledged")
            return
        self._start_sync(source, self._too_stale or "this member has no data yet")

    def _is_vote_missed(self, since: Millis) -> bool:
        """Whether others are there, and no primary among them, for an election timeout: my vote, or my data, may be
        what they lack.
        """
        node = self.node
        waited = node.now - since >= node.settings.election_timeout_ms
        return waited and node.primary_id is None and any(peer.is_up for peer in node.peers.values())

    def _give_up(self, why: str) -> None:
        """End a resync that was asked for; the data is still whole, and this member goes on with it.

        While it waits for a source it neither votes nor stands. If the source died, this member may be the only one
        that holds the newest committed entries: without this nobody could be elected, and no source would ever come.
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
        self._asked_for = self._forced = self._has_marker = False
        self._too_stale = ""
        self._no_source_since = None
        self._retry_at = self.node.now

    def _floor(self) -> OpTime:
        """What a copy must reach: the newest entry here, which this member may have acknowledged; also one that was."""
        return max(self.node.position.last_applied, self.node.commit_point, self.node.durability_mark)

    def _reaches(self, peer: Peer) -> bool:
        """Whether this member's log reaches mine, as far as is known: what I hold of its term came from the primary.

        A copy of a member that is behind would take back what I acknowledged, and name an entry as committed that is
        not. The initial sync asks the source itself, and looks into the copy before it is installed.
        """
        floor = self._floor()
        return peer.position.last_applied >= floor or (peer.id == self.node.primary_id and floor.term == self.node.term)

    def _choose_sync_source(self, *, forced: bool) -> HostPort | None:
        """The primary, else the data-bearing member that is furthest and readable (the initiator at first)."""
        node = self.node
        able = [peer for peer in node.sorted_peers() if peer.has_data and peer.state.is_readable]
        able = [peer for peer in able if forced or self._reaches(peer)]
        if not able:
            return None

        def fitness(peer: Peer) -> tuple[bool, object, int]:
            return (peer.state is MemberState.PRIMARY, peer.position.last_applied, -peer.id)

        return max(able, key=fitness).host

    def _start_sync(self, source: HostPort, why: str) -> None:
        self._syncing = True
        self._no_source_since = None
        self.node.initial_sync_pending = True  # before the marker is: no vote and no acknowledgement from here on
        self.node.journal("initial sync", f"from {source}: {why}")
        self.node.emit(StartInitialSync(source, why, self._forced))

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
        self._syncing = False
        node.journal("initial sync ended", ended.detail)
        if not ended.ok:
            self._retry_at = self._later()
            self._answer_resync(
                Refused(ErrorCode.INVALID_SYNC_SOURCE if ended.refused else ErrorCode.NODE_NOT_FOUND, ended.detail)
            )
            if self._asked_for and node.state is MemberState.STARTUP2 and (ended.refused or not self._has_marker):
                self._give_up(ended.detail)
            return
        node.initial_sync_pending = False
        node.quarantine = node.damage = ""
        node.durability_mark = OPTIME_NULL
        self._end_sync()
        if not ended.holds_committed:
            # What was known as committed is not in this data: an entry of it that stands at or below that optime may
            # never have been committed, and must not be shown to a majority read.
            node.commit_point, node.commit_term = OPTIME_NULL, 0
        if node.state is MemberState.STARTUP2:
            node.become(MemberState.SECONDARY)
            node.push_election_timer()

    def _answer_resync(self, answer: Done | Refused) -> None:
        if self._resync_request is not None:
            self.node.reply(self._resync_request[0], answer)
            self._resync_request = None
