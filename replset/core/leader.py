"""Being primary: catch-up, drain, first entry of the term, commit point, losing the majority (map E7, E8, H5)."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from replset.core.effects import (
    AcceptWrites,
    AppendNoop,
    CommitPointAdvanced,
    Drain,
    ProgressChanged,
    StartFetching,
    StopFetching,
)
from replset.core.member_state import MemberState
from replset.core.quorum import commit_point, has_majority
from replset.core.state import NEVER, NodeState, Peer
from replset.ids import OPTIME_NULL, HostPort, Millis, OpTime

PERIODIC_NOOP_MS = 10_000


class Phase(Enum):
    """Where a primary is on its way to taking writes."""

    NONE = "not primary"
    CATCHING_UP = "catching up"
    DRAINING = "draining"
    LEADING = "leading"


class Leader:
    """What a primary does; nothing of it happens on others."""

    def __init__(self, node: NodeState, on_leading: Callable[[], None]) -> None:
        """`on_leading` is called once the first entry of the term is written (the step-up reconfig follows)."""
        self.node = node
        self._on_leading = on_leading
        self.phase = Phase.NONE
        self._began = Millis(0)
        self._catch_up_until = NEVER
        self._caught_up_from: HostPort | None = None
        self._last_entry: OpTime = OPTIME_NULL
        self._last_entry_at = Millis(0)

    # --- becoming primary ----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The election is won: PRIMARY at once, writable only after catch-up and drain."""
        node = self.node
        node.sync_source = None  # what was fetched is still applied: the drain ends it
        node.primary_id = node.self_id
        node.election_wall_ms = node.wall_ms()
        node.become(MemberState.PRIMARY)
        self.phase = Phase.CATCHING_UP
        self._began = node.now
        self._caught_up_from = None
        limit = node.settings.catch_up_timeout_ms
        self._catch_up_until = NEVER if limit < 0 else Millis(node.now + limit)
        for peer in node.sorted_peers():
            peer.last_contact = max(peer.last_contact, Millis(node.now - node.settings.election_timeout_ms // 2))
            peer.is_fresh = False
            peer.restart_heartbeat(node.now)
        self.advance_catch_up()

    def advance_catch_up(self) -> None:
        """Drain as soon as nobody who answers is ahead, or nobody ahead can be read, or the time is over (map E8)."""
        node = self.node
        if self.phase is not Phase.CATCHING_UP:
            return
        if node.now >= self._catch_up_until:
            self.end_catch_up("the time for it is over")
            return
        heard = [peer for peer in node.sorted_peers() if self._is_heard(peer)]
        # What was said before the election is old; who does not answer the round that began with it holds nobody up.
        if self._caught_up_from is None and node.now < self._answers_due() and any(not peer.is_fresh for peer in heard):
            return
        ahead = [peer for peer in heard if peer.is_up and peer.position.last_applied > node.position.last_applied]
        readable = [peer for peer in ahead if peer.state.is_readable]
        if not readable:
            self.end_catch_up("no reachable member is ahead")
            return
        if self._caught_up_from is None:
            best = max(readable, key=lambda peer: (peer.position.last_applied, -peer.id))
            self._caught_up_from = node.sync_source = best.host
            node.journal("catch-up", f"from {best.host}, which is at {best.position.last_applied}")
            node.emit(StartFetching(best.host))

    def _answers_due(self) -> Millis:
        return Millis(self._began + max(1, self.node.settings.election_timeout_ms // 5))

    def _is_heard(self, peer: Peer) -> bool:
        return self.node.now - peer.last_contact < self.node.settings.election_timeout_ms

    def end_catch_up(self, why: str) -> None:
        """Go on to the drain; a no-op outside of catch-up."""
        node = self.node
        if self.phase is Phase.CATCHING_UP:
            self.phase = Phase.DRAINING
            node.sync_source = None
            node.journal("draining", why)
            node.emit(Drain(node.term))

    def on_drain_finished(self, term: int) -> None:
        node = self.node
        if self.phase is not Phase.DRAINING or term != node.term:
            return
        self.phase = Phase.LEADING
        self._last_entry_at = node.now
        node.writable = True
        node.emit(AppendNoop(node.term, "new primary"), AcceptWrites(True, node.term))
        node.journal("leading", "the first entry of the term is written; writes are accepted")
        self._on_leading()

    # --- being primary -------------------------------------------------------------------------------------------

    def tick(self) -> None:
        node = self.node
        if self.phase is Phase.NONE:
            return
        self.advance_catch_up()
        if not self._sees_majority():
            self.step_down("it cannot see a majority")
            return
        if node.disk_stalled:
            self.step_down("its disk does not sync")
            return
        if node.position.last_applied != self._last_entry:
            self._last_entry, self._last_entry_at = node.position.last_applied, node.now
        if node.writable and node.now - self._last_entry_at >= PERIODIC_NOOP_MS:
            self._last_entry_at = node.now
            node.emit(AppendNoop(node.term, "periodic noop"))

    def next_due(self) -> Millis:
        node = self.node
        if self.phase is Phase.NONE:
            return NEVER
        stale = min(
            (peer.last_contact + node.settings.election_timeout_ms for peer in node.peers.values()), default=NEVER
        )
        # A member that is stale already says nothing new; look again with the next heartbeats.
        stale = stale if stale > node.now else node.now + node.settings.heartbeat_interval_ms
        due = stale
        if self.phase is Phase.CATCHING_UP:
            answers_due = self._answers_due()
            due = min(due, self._catch_up_until, answers_due if answers_due > node.now else NEVER)
        return Millis(min(due, self._last_entry_at + PERIODIC_NOOP_MS) if node.writable else due)

    def _sees_majority(self) -> bool:
        node = self.node
        if node.config is None:
            return False
        votes = 0
        for voter in node.config.voters:
            if voter.host == node.host:
                votes += node.incarnation_matches
                continue
            peer = node.peers.get(voter.host)
            votes += peer is not None and self._is_heard(peer) and node.peer_incarnation_matches(peer)
        return has_majority(votes, len(node.config.voters))

    def update_commit_point(self) -> None:
        """Move the commit point to what enough voters hold on disk; it never moves back (map K1).

        Where arbiters make a write majority smaller than a majority of votes, those who do not have the configuration
        yet could elect somebody without what it takes for committed: it counts once a majority has it.
        """
        node = self.node
        if node.config is None or node.state is not MemberState.PRIMARY or node.commit_point_paused:
            return
        if node.config.write_majority < node.config.majority_vote_count and not node.is_config_committed:
            return
        holders = [member.id for member in node.config.data_voters]
        journal = node.config.write_concern_majority_journal_default
        durable = {
            member_id: position.last_durable if journal else position.last_applied
            for member_id, position in node.positions().items()
        }
        if holders:
            self.advance_commit_point(commit_point(durable, holders, node.config.write_majority, node.term), node.term)

    def durable_commit_point(self) -> OpTime:
        """What of my term a write majority has on its disks; the commit point is no proof of it where the
        configuration's writeConcernMajorityJournalDefault is false.
        """
        node = self.node
        if node.config is None or node.config.write_concern_majority_journal_default:
            return node.commit_point
        holders = [member.id for member in node.config.data_voters]
        durable = {member_id: position.last_durable for member_id, position in node.positions().items()}
        return commit_point(durable, holders, node.config.write_majority, node.term) if holders else OPTIME_NULL

    def advance_commit_point(self, optime: OpTime, term: int) -> None:
        """Move it forward. term: of the primary that committed it."""
        node = self.node
        if optime > node.commit_point:
            node.commit_point = optime
            node.commit_term = max(node.commit_term, term)
            node.emit(CommitPointAdvanced(optime))

    def on_progress_changed(self) -> None:
        if self.node.state is MemberState.PRIMARY:
            self.node.emit(ProgressChanged())
            self.update_commit_point()

    # --- not being primary any more ------------------------------------------------------------------------------

    def step_down(self, why: str, freeze_ms: int = 0) -> None:
        """SECONDARY again, at once: no write is accepted from here on. A no-op on others."""
        node = self.node
        if node.state is not MemberState.PRIMARY:
            return
        self.phase = Phase.NONE
        node.writable = False
        node.election_wall_ms = None
        node.sync_source = None
        node.journal("stepped down", why)
        node.emit(AcceptWrites(False, node.term), StopFetching())
        if freeze_ms:
            node.frozen_until = Millis(node.now + freeze_ms)
        if node.primary_id == node.self_id:
            node.primary_id = None
        node.become(MemberState.SECONDARY)
        node.restart_heartbeats()
        node.push_election_timer()
