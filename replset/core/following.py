"""Following: whom to sync from, when to roll back, when to copy everything anew (map R1, Ro1, I1).

Members sync from the primary. A source that does not hold my newest entry is rolled back to only when its newest entry
is of a higher term than mine: then it holds all that was committed before (Raft, 5.4.3).
"""

from __future__ import annotations

from replset.core.effects import StartFetching, StartInitialSync, StartRollback, StopFetching
from replset.core.leading import Leading
from replset.core.member_state import MemberState
from replset.core.memory import NEVER, Memory, Peer
from replset.core.messages import (
    Done,
    InitialSyncBegun,
    InitialSyncEnded,
    Refused,
    RollbackEnded,
    SourceBatch,
    SourceFailed,
    SourceProblem,
)
from replset.ids import HostPort, Millis

MAX_RETRY_MS = 1_000
NODE_NOT_FOUND, NOT_YET_INITIALIZED, NOT_SECONDARY = 74, 94, 95


class Following:
    """What a member that is not primary does to keep up."""

    def __init__(self, memory: Memory, leading: Leading) -> None:
        self.m = memory
        self._leading = leading
        self._retry_at = Millis(0)
        self._failed: HostPort | None = None  # the pause is for this source; another one is tried at once
        self._syncing = False  # an initial sync runs
        self._too_stale = ""

    def tick(self) -> None:
        m = self.m
        if m.state is MemberState.STARTUP2:
            self._sync_initially()
        elif m.state in (MemberState.SECONDARY, MemberState.RECOVERING):
            self._follow_primary()
        elif m.state in (MemberState.REMOVED, MemberState.ARBITER) and m.sync_source is not None:
            self._stop()

    def next_due(self) -> Millis:
        m = self.m
        waiting = m.state in (MemberState.SECONDARY, MemberState.RECOVERING, MemberState.STARTUP2)
        return self._retry_at if waiting and self._retry_at > m.now else NEVER

    def _later(self) -> Millis:
        """When to try again: soon, but not at once."""
        return Millis(self.m.now + min(MAX_RETRY_MS, max(1, self.m.settings.heartbeat_interval_ms // 4)))

    # --- the oplog -----------------------------------------------------------------------------------------------

    def choose_source(self) -> HostPort | None:
        """The primary. While none is known: a member that is ahead of me, so that what only it has can still win an
        election where it cannot stand itself. None: nobody.
        """
        m = self.m
        if m.quarantine:
            return None
        peer = m.peer_of(m.primary_id)
        if peer is not None:
            return None if peer.state is MemberState.DOWN else peer.host
        mine = m.position.last_applied
        ahead = [
            peer
            for peer in m.sorted_peers()
            if peer.state is MemberState.SECONDARY and peer.position.last_applied > mine
        ]
        if m.sync_source in [peer.host for peer in ahead]:
            return m.sync_source
        return max(ahead, key=lambda peer: (peer.position.last_applied, -peer.id)).host if ahead else None

    def _follow_primary(self) -> None:
        m = self.m
        source = self.choose_source()
        if source != m.sync_source:
            self._stop()
        if source is not None and m.sync_source is None and (m.now >= self._retry_at or source != self._failed):
            m.sync_source = source
            m.emit(StartFetching(source))

    def _stop(self) -> None:
        if self.m.sync_source is not None:
            self.m.sync_source = None
            self.m.emit(StopFetching())

    def on_batch(self, batch: SourceBatch) -> None:
        """A batch matched my log: the source's commit point is mine as far as I have its entries (map K2)."""
        m = self.m
        if batch.source != m.sync_source:
            return
        if batch.source_is_primary and batch.term == m.term and batch.source == m.primary_host:
            m.push_election_timer()
        if m.state is not MemberState.PRIMARY:
            self._leading.move_commit_point(min(batch.commit_point, m.position.last_applied))
        if m.state is MemberState.RECOVERING and not m.quarantine:
            m.become(MemberState.SECONDARY)
        self._leading.advance_catch_up()

    def on_source_failed(self, failed: SourceFailed) -> None:
        m = self.m
        if failed.source != m.sync_source:
            return
        m.sync_source = None
        self._failed = failed.source
        self._retry_at = self._later()
        if m.state is MemberState.PRIMARY:
            self._leading.end_catch_up(f"{failed.source}: {failed.detail}")
            return
        if failed.problem is SourceProblem.CHAIN_DIFFERS:
            self._quarantine(f"the oplog differs from that of {failed.source}: {failed.detail}")
        elif failed.problem is SourceProblem.DIVERGED:
            self._on_diverged(failed)

    def _on_diverged(self, failed: SourceFailed) -> None:
        m = self.m
        mine = m.position.last_applied
        if failed.oldest > mine and failed.oldest.ts > mine.ts:
            self._resync(
                failed.source, f"too stale: the oldest entry of {failed.source} is {failed.oldest}, my newest {mine}"
            )
        elif failed.newest.term > mine.term and m.state in (MemberState.SECONDARY, MemberState.RECOVERING):
            m.journal("rollback", f"my newest entry {mine} is not in the history of {failed.source}")
            m.rolling_back = True
            m.become(MemberState.ROLLBACK)
            m.emit(StartRollback(failed.source))

    # --- rollback ------------------------------------------------------------------------------------------------

    def on_rollback_ended(self, ended: RollbackEnded) -> None:
        m = self.m
        m.rolling_back = False
        if m.state is not MemberState.ROLLBACK:
            return
        m.journal("rollback ended", ended.detail)
        self._retry_at = m.now if ended.ok else self._later()
        if ended.ok or ended.retry:
            m.become(MemberState.STARTUP2 if m.initial_sync_pending else MemberState.SECONDARY)
            m.push_election_timer()
        elif ended.too_stale:
            self._resync(ended.source, f"too stale: {ended.detail}")
        else:
            self._quarantine(f"rollback refused: {ended.detail}")

    def _quarantine(self, why: str) -> None:
        """Stay out of the way, say so, and wait for a person; nothing is undone or thrown away."""
        m = self.m
        m.quarantine = why
        m.journal("quarantined", why)
        self._stop()
        m.become(MemberState.RECOVERING)

    def on_resync(self, request_id: int) -> None:
        """A person wants this member's data replaced; also the way out of a quarantine."""
        m = self.m
        refusal = self._resync_refusal()
        source = self._choose_sync_source()
        if refusal is not None:
            m.reply(request_id, refusal)
        elif m.state is MemberState.STARTUP2:
            m.reply(request_id, Done("this member copies another one's data already"))
        elif source is None:
            m.reply(request_id, Refused(NODE_NOT_FOUND, "no member whose data could be copied is known"))
        else:
            self._resync(source, "asked for")
            m.reply(request_id, Done(f"this member exports what only it has, and copies the data of {source}"))

    def _resync_refusal(self) -> Refused | None:
        m = self.m
        if m.config is None:
            return Refused(NOT_YET_INITIALIZED, "no replset config has been received")
        if m.state is MemberState.PRIMARY:
            return Refused(NOT_SECONDARY, "the primary's data is what others copy; step it down first")
        if m.state is MemberState.ARBITER:
            return Refused(NOT_SECONDARY, "an arbiter holds no data")
        if m.state in (MemberState.SECONDARY, MemberState.RECOVERING, MemberState.STARTUP2):
            return None
        return Refused(NOT_SECONDARY, f"this member is in {m.state.name}; try again once it is not")

    # --- initial sync --------------------------------------------------------------------------------------------

    def _resync(self, source: HostPort, why: str) -> None:
        m = self.m
        m.journal("resync", why)
        self._stop()
        if m.state is not MemberState.STARTUP2:
            m.become(MemberState.STARTUP2)
        self._too_stale = why
        self._start_sync(source, why)

    def _sync_initially(self) -> None:
        m = self.m
        if self._syncing or m.now < self._retry_at:
            return
        source = self._choose_sync_source()
        if source is None:
            self._retry_at = self._later()
            return
        self._start_sync(source, self._too_stale or "this member has no data yet")

    def _choose_sync_source(self) -> HostPort | None:
        """The primary, else the data-bearing member that is furthest and readable (the initiator at first)."""
        m = self.m
        able = [peer for peer in m.sorted_peers() if peer.has_data and peer.state.is_readable]
        if not able:
            return None

        def fitness(peer: Peer) -> tuple[bool, object, int]:
            return (peer.state is MemberState.PRIMARY, peer.position.last_applied, -peer.id)

        return max(able, key=fitness).host

    def _start_sync(self, source: HostPort, why: str) -> None:
        self._syncing = True
        self.m.initial_sync_pending = True  # before the marker is: no vote and no acknowledgement from here on
        self.m.journal("initial sync", f"from {source}: {why}")
        self.m.emit(StartInitialSync(source, why))

    def on_sync_begun(self, begun: InitialSyncBegun) -> None:
        m = self.m
        m.incarnation = begun.incarnation
        m.initial_sync_pending = True

    def on_sync_ended(self, ended: InitialSyncEnded) -> None:
        m = self.m
        self._syncing = False
        m.journal("initial sync ended", ended.detail)
        if not ended.ok:
            self._retry_at = self._later()
            return
        m.initial_sync_pending = False
        self._too_stale = ""
        m.quarantine = ""
        self._retry_at = m.now
        if m.state is MemberState.STARTUP2:
            m.become(MemberState.SECONDARY)
            m.push_election_timer()
