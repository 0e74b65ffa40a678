"""What a primary does: catch-up, drain, first entry of the term, commit point, stepdown (map E7, E8, H5)."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from operator import attrgetter

from replset.core.durability_levels import update_levels
from replset.core.effects import (
    AcceptWrites,
    AppendNoop,
    CommitPointAdvanced,
    Drain,
    ElectionEvent,
    ProgressChanged,
    StartFetching,
    StopFetching,
)
from replset.core.in_sync import update_in_sync
from replset.core.member_state import MemberState
from replset.core.messages import Done, Position, Refused
from replset.core.quorum import commit_point, has_majority
from replset.core.role import holders, role_wait_ms
from replset.core.state import NEVER, NodeState, Peer
from replset.errors import ErrorCode
from replset.ids import OPTIME_NULL, HostPort, Millis, OpTime, invariant

PERIODIC_NOOP_MS = 10_000
_PROGRESS_CHANGED = ProgressChanged()
_LAST_DURABLE: Callable[[Position], OpTime] = attrgetter("last_durable")
_LAST_APPLIED: Callable[[Position], OpTime] = attrgetter("last_applied")


class Phase(Enum):
    """How far a primary has come since it won the election. ACTIVE: it has written the first entry of its term."""

    NOT_PRIMARY = "not primary"
    CATCH_UP = "catch-up"
    DRAIN = "drain"
    ROLE_WAIT = "waiting for the release of the role"
    ACTIVE = "active"


class Leader:
    """The primary's part of a node. On other members it does nothing."""

    def __init__(self, node: NodeState, on_step_up: Callable[[], None]) -> None:
        """on_step_up: called when the first entry of the term is written; the term in the configuration follows."""
        self.node = node
        self._on_step_up = on_step_up
        self.phase = Phase.NOT_PRIMARY
        self._began = Millis(0)
        self._catch_up_until = NEVER
        self._source: HostPort | None = None
        self._last_entry: OpTime = OPTIME_NULL
        self._last_entry_at = Millis(0)

    # --- step-up -------------------------------------------------------------------------------------------------

    def step_up(self) -> None:
        """Become PRIMARY after a won election. The member is writable only after catch-up and drain."""
        node = self.node
        # Whoever leads a term has given its own vote of that term to itself. A vote for another member could make that
        # one primary of the same term, and both would acknowledge majority writes.
        last = node.last_vote
        invariant(last.term == node.term and last.candidate == node.self_id, "a primary has voted for itself")
        node.sync_source = None  # the drain applies what is fetched already
        node.primary_id = node.self_id
        node.note_primary(node.self_id)
        node.election_wall_ms = node.wall_ms()
        node.become(MemberState.PRIMARY)
        node.ages.restart(node.position.last_applied, node.now)
        update_in_sync(node, is_new_primary=True)
        self.phase = Phase.CATCH_UP
        self._began = node.now
        self._source = None
        limit = node.settings.catch_up_timeout_ms
        self._catch_up_until = NEVER if limit < 0 else Millis(node.now + limit)
        for peer in node.sorted_peers():
            peer.last_contact = max(peer.last_contact, Millis(node.now - node.settings.election_timeout_ms // 2))
            peer.has_answered = False
            peer.restart_heartbeat(node.now)
        self.advance_catch_up()

    def advance_catch_up(self) -> None:
        """Begin the drain when no reachable member is ahead, or none that is ahead can be read, or the time is over.

        Without catch-up the entries that only another member holds would be rolled back there, although this primary
        could have fetched them (map E8).
        """
        node = self.node
        if self.phase is not Phase.CATCH_UP:
            return
        if node.now >= self._catch_up_until:
            self.end_catch_up("the time for it is over")
            return
        in_contact = [peer for peer in node.sorted_peers() if self._has_contact(peer)]
        # Positions from before the election may be old, so every member is asked again. Who does not answer within a
        # fifth of an election timeout is not waited for.
        is_round_open = self._source is None and node.now < self._answers_due()
        if is_round_open and any(not peer.has_answered for peer in in_contact):
            return
        ahead = [peer for peer in in_contact if peer.is_up and peer.position.last_applied > node.position.last_applied]
        readable = [peer for peer in ahead if peer.state.is_readable]
        if not readable:
            self.end_catch_up("no reachable member is ahead")
            return
        # A member that comes back meanwhile may be ahead of all that the source had.
        if all(peer.host != self._source for peer in readable):
            if self._source is not None:
                node.emit(StopFetching())
            best = max(readable, key=lambda peer: (peer.position.last_applied, -peer.id))
            self._source = node.sync_source = best.host
            node.election_metrics.on_catch_up(best.position.last_applied)
            node.journal("catch-up", f"from {best.host}, which is at {best.position.last_applied}")
            node.emit(StartFetching(best.host))

    def _answers_due(self) -> Millis:
        return Millis(self._began + max(1, self.node.settings.election_timeout_ms // 5))

    def _has_contact(self, peer: Peer) -> bool:
        return self.node.now - peer.last_contact < self.node.settings.election_timeout_ms

    def end_catch_up(self, why: str) -> None:
        """Go on to the drain. Does nothing outside of catch-up."""
        node = self.node
        if self.phase is Phase.CATCH_UP:
            self.phase = Phase.DRAIN
            node.sync_source = None
            node.journal(ElectionEvent.DRAINING, why)
            # What is fetched and not applied yet comes before the first entry of the new term, since an oplog only goes
            # forward. Left out, it would be rolled back on the members that have it, although this one had it too. (Map
            # E7.)
            node.emit(Drain(node.term))

    def on_abort_catch_up(self, request_id: int) -> None:
        """Answer a replSetAbortPrimaryCatchUp. What was not fetched is rolled back where it is."""
        node = self.node
        if self.phase is Phase.CATCH_UP:
            self.end_catch_up("replSetAbortPrimaryCatchUp")
            node.reply(request_id, Done())
        else:
            node.reply(request_id, Refused(ErrorCode.ILLEGAL_OPERATION, "this member is not in catch-up mode"))

    def on_drain_finished(self, term: int) -> None:
        node = self.node
        # A drain of an earlier term may end after this member lost and won again. What it fetched since may not be
        # applied.
        if self.phase is not Phase.DRAIN or term != node.term:
            return
        self.phase = Phase.ROLE_WAIT
        if waited_for := ", ".join(peer.host for peer in holders(node)):
            most_s = (self._role_wait_until() - node.now) / 1000
            node.journal("role", f"writes wait until {waited_for} released the primary's role, {most_s:.1f} s at most")
        self.advance_role_wait()

    def _role_wait_until(self) -> Millis:
        return Millis(self._began + role_wait_ms(self.node))

    def advance_role_wait(self) -> None:
        """Accept writes once no other member can hold what its role hook gave it (role.py); without a hook at once."""
        node = self.node
        if self.phase is not Phase.ROLE_WAIT or (holders(node) and node.now < self._role_wait_until()):
            return
        # The first entry of the term follows the newest one here. Behind an entry of a later term it would break the
        # order of the oplog, by which voters judge who holds more.
        invariant(node.position.last_applied.term <= node.term, "a primary has no entry of a later term")
        self.phase = Phase.ACTIVE
        self._last_entry_at = node.now
        node.writable = True
        node.emit(AppendNoop(node.term, "new primary"), AcceptWrites(True, node.term))
        node.election_metrics.on_new_term(node.wall_ms())
        node.journal(ElectionEvent.LEADING, "the first entry of the term is written; writes are accepted")
        self._on_step_up()

    # --- a primary at work ---------------------------------------------------------------------------------------

    def tick(self) -> None:
        node = self.node
        if self.phase is Phase.NOT_PRIMARY:
            return
        self.advance_catch_up()
        self.advance_role_wait()
        # On the other side of a cut a majority may have elected another primary. This one could commit nothing, and
        # would go on to acknowledge w: 1 writes that are rolled back when the cut has healed. (Map H5.)
        if not self._sees_majority():
            self.step_down("it cannot see a majority")
            return
        # Heartbeats need no disk, so the others would keep this primary for as long as its disk hangs, and every write
        # that waits for that disk would wait as long.
        if node.disk_stalled:
            self.step_down("its disk does not sync")
            return
        has_new_levels = update_levels(node)
        if update_in_sync(node) or has_new_levels:
            node.emit(ProgressChanged())
        if node.position.last_applied != self._last_entry:
            self._last_entry, self._last_entry_at = node.position.last_applied, node.now
        if node.writable and node.now - self._last_entry_at >= PERIODIC_NOOP_MS:
            self._last_entry_at = node.now
            node.emit(AppendNoop(node.term, "periodic noop"))

    def next_due(self) -> Millis:
        node = self.node
        if self.phase is Phase.NOT_PRIMARY:
            return NEVER
        stale = min(
            (peer.last_contact + node.settings.election_timeout_ms for peer in node.peers.values()), default=NEVER
        )
        # A member that is stale already changes nothing more; look again with the next heartbeats.
        stale = stale if stale > node.now else node.now + node.settings.heartbeat_interval_ms
        due = stale
        if self.phase is Phase.CATCH_UP:
            answers_due = self._answers_due()
            due = min(due, self._catch_up_until, answers_due if answers_due > node.now else NEVER)
        if self.phase is Phase.ROLE_WAIT:
            due = min(due, self._role_wait_until())
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
            votes += peer is not None and self._has_contact(peer) and node.peer_incarnation_matches(peer)
        return has_majority(votes, len(node.config.voters))

    def update_commit_point(self) -> None:
        """Advance the commit point to the newest entry that enough voters hold on disk (map K1).

        With arbiters a write majority can be smaller than a majority of votes. Voters without the current configuration
        could then elect a member that lacks a committed entry. So the commit point waits until a majority of
        the voters has the configuration.
        """
        node = self.node
        if node.config is None or node.state is not MemberState.PRIMARY or node.commit_point_paused:
            return
        if node.config.write_majority < node.config.majority_vote_count and not node.is_config_committed:
            return
        holders = [member.id for member in node.config.oplog_voters]
        counted = self._counted
        durable = {member_id: counted(position) for member_id, position in node.positions().items()}
        point = commit_point(durable, holders, node.config.write_majority, node.term) if holders else OPTIME_NULL
        # Two others may name entries of this term that this primary never wrote: they did so before it won, or hold the
        # history of another primary of the same term, after a forced reconfig. Nothing is committed by that.
        if point <= node.position.last_applied:
            self.advance_commit_point(point, node.term)

    def durable_commit_point(self) -> OpTime:
        """The newest entry of this term that a write majority has on disk.

        It differs from the commit point where writeConcernMajorityJournalDefault is false: the commit point then counts
        entries that are applied and not yet synced.
        """
        node = self.node
        if node.config is None or node.config.write_concern_majority_journal_default:
            return node.commit_point
        holders = [member.id for member in node.config.oplog_voters]
        durable = {member_id: position.last_durable for member_id, position in node.positions().items()}
        return commit_point(durable, holders, node.config.write_majority, node.term) if holders else OPTIME_NULL

    def advance_commit_point(self, optime: OpTime, term: int) -> None:
        """Advance the commit point; it never moves back. term: of the primary that committed `optime`."""
        node = self.node
        if optime > node.commit_point:
            # A commit point without its entry here would show readers, and a restart, what a later rollback may take.
            # An arbiter has no entries. On a primary only an entry of its own term commits (Raft, 5.4.2).
            invariant(
                node.is_arbiter or optime <= node.position.last_applied, "a member has the entry at its commit point"
            )
            is_primary = node.is_primary
            invariant(not is_primary or optime.term == node.term, "a primary commits entries of its own term")
            node.commit_point = optime
            node.commit_term = max(node.commit_term, term)
            if is_primary:
                node.election_metrics.on_committed(optime, node.wall_ms)
            if not node.is_arbiter:  # it says nothing of an old oplog in an arbiter's folder, so it is not stored there
                node.emit(CommitPointAdvanced(optime))

    def on_progress_changed(self, moved: Position | None = None) -> None:
        """moved: the only position that changed, None: any may have. One that is not beyond the commit point cannot
        move that.
        """
        node = self.node
        if node.state is MemberState.PRIMARY:
            before = node.commit_point
            if moved is None or self._counted(moved) > before:
                self.update_commit_point()
            if node.commit_point is before:  # else CommitPointAdvanced says it
                node.emit(_PROGRESS_CHANGED)

    @property
    def _counted(self) -> Callable[[Position], OpTime]:
        """Gives of a member's position the newest entry that counts for the commit point.

        What counts is on disk. An entry in the memory of a majority is gone if these members lose their power together,
        and the member that still has it may then be outvoted. A set may accept that
        (writeConcernMajorityJournalDefault: false).
        """
        config = self.node.config
        journal = config is None or config.write_concern_majority_journal_default
        return _LAST_DURABLE if journal else _LAST_APPLIED

    def step_down(self, why: str, freeze_ms: int = 0) -> None:
        """Become SECONDARY at once. No write is accepted from here on. Does nothing on other members."""
        node = self.node
        if node.state is not MemberState.PRIMARY:
            return
        self.phase = Phase.NOT_PRIMARY
        node.writable = False
        node.election_wall_ms = None
        node.in_sync, node.levels = frozenset(), {}
        node.sync_source = None
        node.journal(ElectionEvent.STEPPED_DOWN, why)
        # Writes end before anybody learns of the stepdown. One that was taken later would be in no other member's
        # history, and be rolled back after it was acknowledged.
        node.emit(AcceptWrites(False, node.term), StopFetching())
        if freeze_ms:
            node.frozen_until = Millis(node.now + freeze_ms)
        if node.primary_id == node.self_id:
            node.primary_id = None
        node.become(MemberState.SECONDARY)
        node.restart_heartbeats()
        node.push_election_timer()
