"""Being primary: catch-up, drain, first entry of the term, commit point, losing the majority (map E7, E8, H5)."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from replset.core.effects import (
    AcceptWrites,
    AppendNoop,
    CommitPointMoved,
    Drain,
    ProgressMoved,
    StartFetching,
    StopFetching,
)
from replset.core.member_state import MemberState
from replset.core.memory import NEVER, Memory, Peer
from replset.core.quorum import commit_point, has_majority
from replset.ids import OPTIME_NULL, HostPort, Millis, OpTime

PERIODIC_NOOP_MS = 10_000


class Phase(Enum):
    """Where a primary is on its way to taking writes."""

    NONE = "not primary"
    CATCHING_UP = "catching up"
    DRAINING = "draining"
    LEADING = "leading"


class Leading:
    """What a primary does; nothing of it happens on others."""

    def __init__(self, memory: Memory, on_leading: Callable[[], None]) -> None:
        """`on_leading` is called once the first entry of the term is written (the step-up reconfig follows)."""
        self.m = memory
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
        m = self.m
        m.sync_source = None  # what was fetched is still applied: the drain ends it
        m.primary_id = m.self_id
        m.election_wall_ms = m.wall_ms()
        m.become(MemberState.PRIMARY)
        self.phase = Phase.CATCHING_UP
        self._began = m.now
        self._caught_up_from = None
        limit = m.settings.catch_up_timeout_ms
        self._catch_up_until = NEVER if limit < 0 else Millis(m.now + limit)
        for peer in m.sorted_peers():
            peer.last_contact = max(peer.last_contact, Millis(m.now - m.settings.election_timeout_ms // 2))
            peer.is_fresh = False
            peer.beat_now(m.now)
        self.advance_catch_up()

    def advance_catch_up(self) -> None:
        """Drain as soon as nobody who answers is ahead, or nobody ahead can be read, or the time is over (map E8)."""
        m = self.m
        if self.phase is not Phase.CATCHING_UP:
            return
        if m.now >= self._catch_up_until:
            self.end_catch_up("the time for it is over")
            return
        heard = [peer for peer in m.sorted_peers() if self._is_heard(peer)]
        # What was said before the election is old; who does not answer the round that began with it holds nobody up.
        if self._caught_up_from is None and m.now < self._answers_due() and any(not peer.is_fresh for peer in heard):
            return
        ahead = [peer for peer in heard if peer.is_up and peer.position.last_applied > m.position.last_applied]
        readable = [peer for peer in ahead if peer.state.is_readable]
        if not readable:
            self.end_catch_up("no reachable member is ahead")
            return
        if self._caught_up_from is None:
            best = max(readable, key=lambda peer: (peer.position.last_applied, -peer.id))
            self._caught_up_from = m.sync_source = best.host
            m.journal("catch-up", f"from {best.host}, which is at {best.position.last_applied}")
            m.emit(StartFetching(best.host))

    def _answers_due(self) -> Millis:
        return Millis(self._began + max(1, self.m.settings.election_timeout_ms // 5))

    def _is_heard(self, peer: Peer) -> bool:
        return self.m.now - peer.last_contact < self.m.settings.election_timeout_ms

    def end_catch_up(self, why: str) -> None:
        """Go on to the drain; a no-op outside of catch-up."""
        m = self.m
        if self.phase is Phase.CATCHING_UP:
            self.phase = Phase.DRAINING
            m.sync_source = None
            m.journal("draining", why)
            m.emit(Drain(m.term))

    def on_drained(self, term: int) -> None:
        m = self.m
        if self.phase is not Phase.DRAINING or term != m.term:
            return
        self.phase = Phase.LEADING
        self._last_entry_at = m.now
        m.writable = True
        m.emit(AppendNoop(m.term, "new primary"), AcceptWrites(True, m.term))
        m.journal("leading", "the first entry of the term is written; writes are accepted")
        self._on_leading()

    # --- being primary -------------------------------------------------------------------------------------------

    def tick(self) -> None:
        m = self.m
        if self.phase is Phase.NONE:
            return
        self.advance_catch_up()
        if not self._sees_majority():
            self.step_down("it cannot see a majority")
            return
        if m.disk_stalled:
            self.step_down("its disk does not sync")
            return
        if m.position.last_applied != self._last_entry:
            self._last_entry, self._last_entry_at = m.position.last_applied, m.now
        if m.writable and m.now - self._last_entry_at >= PERIODIC_NOOP_MS:
            self._last_entry_at = m.now
            m.emit(AppendNoop(m.term, "periodic noop"))

    def next_due(self) -> Millis:
        m = self.m
        if self.phase is Phase.NONE:
            return NEVER
        stale = min((peer.last_contact + m.settings.election_timeout_ms for peer in m.peers.values()), default=NEVER)
        # A member that is stale already says nothing new; look again with the next heartbeats.
        stale = stale if stale > m.now else m.now + m.settings.heartbeat_interval_ms
        due = stale
        if self.phase is Phase.CATCHING_UP:
            answers_due = self._answers_due()
            due = min(due, self._catch_up_until, answers_due if answers_due > m.now else NEVER)
        return Millis(min(due, self._last_entry_at + PERIODIC_NOOP_MS) if m.writable else due)

    def _sees_majority(self) -> bool:
        m = self.m
        if m.config is None:
            return False
        votes = 0
        for voter in m.config.voters:
            if voter.host == m.host:
                votes += m.is_named
                continue
            peer = m.peers.get(voter.host)
            votes += peer is not None and self._is_heard(peer) and m.is_peer_named(peer)
        return has_majority(votes, len(m.config.voters))

    def advance_commit_point(self) -> None:
        """Move the commit point to what enough voters hold on disk; it never moves back (map K1).

        Where arbiters make a write majority smaller than a majority of votes, those who do not have the configuration
        yet could elect somebody without what it takes for committed: it counts once a majority has it.
        """
        m = self.m
        if m.config is None or m.state is not MemberState.PRIMARY or m.commit_point_waits:
            return
        if m.config.write_majority < m.config.majority_vote_count and not m.is_config_committed:
            return
        holders = [member.id for member in m.config.data_voters]
        journal = m.config.write_concern_majority_journal_default
        durable = {
            member_id: position.last_durable if journal else position.last_applied
            for member_id, position in m.positions().items()
        }
        if holders:
            self.move_commit_point(commit_point(durable, holders, m.config.write_majority, m.term), m.term)

    def journalled(self) -> OpTime:
        """What of my term a write majority has on its disks; the commit point is no proof of it where the
        configuration's writeConcernMajorityJournalDefault is false.
        """
        m = self.m
        if m.config is None or m.config.write_concern_majority_journal_default:
            return m.commit_point
        holders = [member.id for member in m.config.data_voters]
        durable = {member_id: position.last_durable for member_id, position in m.positions().items()}
        return commit_point(durable, holders, m.config.write_majority, m.term) if holders else OPTIME_NULL

    def move_commit_point(self, optime: OpTime, term: int) -> None:
        """Move it forward. term: of the primary that committed it."""
        m = self.m
        if optime > m.commit_point:
            m.commit_point = optime
            m.commit_term = max(m.commit_term, term)
            m.emit(CommitPointMoved(optime))

    def progress_moved(self) -> None:
        if self.m.state is MemberState.PRIMARY:
            self.m.emit(ProgressMoved())
            self.advance_commit_point()

    # --- not being primary any more ------------------------------------------------------------------------------

    def step_down(self, why: str, freeze_ms: int = 0) -> None:
        """SECONDARY again, at once: no write is accepted from here on. A no-op on others."""
        m = self.m
        if m.state is not MemberState.PRIMARY:
            return
        self.phase = Phase.NONE
        m.writable = False
        m.election_wall_ms = None
        m.sync_source = None
        m.journal("stepped down", why)
        m.emit(AcceptWrites(False, m.term), StopFetching())
        if freeze_ms:
            m.frozen_until = Millis(m.now + freeze_ms)
        if m.primary_id == m.self_id:
            m.primary_id = None
        m.become(MemberState.SECONDARY)
        m.beat_all()
        m.push_election_timer()
