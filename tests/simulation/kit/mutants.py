"""Faults of several places at once, or of the disk, which `./dev mutate` does not make: a run must notice each.

That makes one small fault at a time, and its sample says how sharp the runs are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from replset.config import Member, ReplSetConfig
from replset.core import leader
from replset.core.effects import Effect, LastVote, Persist
from replset.core.election import Elections
from replset.core.leader import Leader
from replset.core.member_state import MemberState
from replset.core.state import NodeState, Peer
from replset.core.sync_source import SyncSources
from replset.core.voter_changes import VoterChanges
from replset.ids import OPTIME_NULL, HostPort, MemberId, OpTime
from replset.member.disk.durability import Durability
from replset.replication.held_keys import HeldKeys, Place
from replset.storage import retention, undo
from replset.storage.sqlite import rows_of
from replset.storage.store import Store
from replset.storage.txn import Txn, revert
from replset.storage.wal import Wal
from tests.simulation.kit import scenarios
from tests.simulation.kit.disk import SimDisk
from tests.simulation.kit.errors import SimulationError
from tests.simulation.kit.kinds import CORE_ALONE, ROLLBACK_RUNS, WHOLE, Kind

MOVED_WITHIN = 40


@dataclass(frozen=True, slots=True)
class Mutant:
    """A broken rule, and what caught it: seeds of a kind, or a scenario, or both.

    A change of the engine moves what a seed draws, so one that killed may do so no more. Then the next is tried, and
    after these the first ones of all. verdict: words that the checkers' answer to a seed must have; behind the scenario
    stand those that its answer must have.
    """

    break_rule: Callable[[pytest.MonkeyPatch], None]
    killers: tuple[int, ...] = ()
    verdict: str = "invariant"
    kind: Kind = WHOLE
    scenario: tuple[scenarios.Scenario, str] | None = None

    @property
    def name(self) -> str:
        return self.break_rule.__name__

    def is_caught_by_a_seed(self) -> bool:
        with pytest.MonkeyPatch.context() as patch:
            self.break_rule(patch)
            seeds = dict.fromkeys((*self.killers, *self.kind.first(MOVED_WITHIN)))
            return any(self.verdict in (self.kind.outcome(seed).error or "") for seed in seeds)

    def is_caught_by_its_scenario(self) -> bool:
        assert self.scenario is not None
        run, verdict = self.scenario
        with pytest.MonkeyPatch.context() as patch:
            self.break_rule(patch)
            try:
                run()
            except SimulationError as error:
                return verdict in str(error)
        return False


def vote_not_durable(patch: pytest.MonkeyPatch) -> None:
    """A vote is sent before it is on disk, and a restart forgets it."""
    real = NodeState.emit

    def emit(self: NodeState, *effects: Effect) -> None:
        real(self, *(e for e in effects if not (isinstance(e, Persist) and isinstance(e.record, LastVote))))

    patch.setattr(NodeState, "emit", emit)
    own_vote_counted_unsaved(patch)


def own_vote_counted_unsaved(patch: pytest.MonkeyPatch) -> None:
    """A candidate counts its own vote before that is on disk."""
    real = Elections._request_votes

    def ask(self: Elections, reason: str, *, dry_run: bool) -> None:
        real(self, reason, dry_run=dry_run)
        if not dry_run:
            self.on_vote_saved(self.node.term)

    patch.setattr(Elections, "_request_votes", ask)


def commit_point_in_an_old_term(patch: pytest.MonkeyPatch) -> None:
    """Entries of earlier terms are counted as committed without one of the primary's own term (Raft, 5.4.2)."""

    def commit_point(
        durable: Mapping[MemberId, OpTime], holders: list[MemberId], write_majority: int, term: int
    ) -> OpTime:
        newest_first = sorted((durable.get(holder, OPTIME_NULL) for holder in holders), reverse=True)
        return newest_first[write_majority - 1]

    patch.setattr(leader, "commit_point", commit_point)


def durable_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    """last_durable is reported as soon as an entry is committed in memory; the sync comes after it."""

    real = Durability.on_committed

    def on_committed(self: Durability) -> None:
        real(self)
        store = self._context.store
        if store.last_applied != self.last_durable:
            self.last_durable, self.durable_wall_ms = store.last_applied, store.last_wall_ms
            self._on_moved()

    patch.setattr(Durability, "on_committed", on_committed)


def any_incarnation_votes(patch: pytest.MonkeyPatch) -> None:
    """A member whose disk was emptied votes and is counted as soon as it has a copy."""
    on_vote_reply = Elections.on_vote_reply

    def counted(self: Elections, request_id: int, reply: Any, why_not: str) -> None:
        member = None if reply is None or self.node.config is None else self.node.config.member(reply.voter)
        named = reply if member is None else replace(reply, incarnation=member.incarnation)
        on_vote_reply(self, request_id, named, why_not)

    patch.setattr(Elections, "on_vote_reply", counted)

    def is_candidate(self: Elections, request: Any) -> bool:
        node = self.node
        is_member = node.config is not None and node.config.member(request.candidate) is not None
        return is_member and not node.is_other_set(request.set_name, request.set_id)

    patch.setattr(Elections, "_is_candidate", is_candidate)
    patch.setattr(
        NodeState, "incarnation_matches", property(lambda node: node.self_member is not None and not node.must_sync)
    )
    patch.setattr(NodeState, "peer_incarnation_matches", lambda _state, _peer: True)


def vote_for_a_candidate_behind(patch: pytest.MonkeyPatch) -> None:
    """A member votes for a candidate that lacks entries which the member has."""
    real = Elections.vote_refusal

    def vote_refusal(self: Elections, request: Any) -> str | None:
        refusal = real(self, request)
        return None if refusal is not None and refusal.startswith("the candidate is at") else refusal

    patch.setattr(Elections, "vote_refusal", vote_refusal)


def equal_source_accepted(patch: pytest.MonkeyPatch) -> None:
    """A member that knows no primary follows one that is not ahead of it, and that one may follow it."""
    real = SyncSources.choose

    def choose(self: SyncSources) -> HostPort | None:
        node = self.node
        chosen = real(self)
        if chosen is not None or node.quarantine or node.peer_of(node.primary_id) is not None:
            return chosen
        mine = node.position.last_applied
        peers = [peer for peer in node.sorted_peers() if peer.state is MemberState.SECONDARY]
        return next((peer.host for peer in peers if peer.position.last_applied >= mine), None)

    patch.setattr(SyncSources, "choose", choose)
    patch.setattr(SyncSources, "reason_to_leave", lambda *_: None)


def rollback_files_not_synced(patch: pytest.MonkeyPatch) -> None:
    """Rollback files are written but not synced before the undo, nor is their folder."""
    real_file, real_folder = SimDisk.sync_file, SimDisk.sync_folder

    def sync_file(self: SimDisk, path: str) -> None:
        if "/rollback/" not in path:
            real_file(self, path)

    def sync_folder(self: SimDisk, path: str) -> None:
        if not path.endswith("/rollback"):
            real_folder(self, path)

    patch.setattr(SimDisk, "sync_file", sync_file)
    patch.setattr(SimDisk, "sync_folder", sync_folder)


def oplog_trimmed_too_far(patch: pytest.MonkeyPatch) -> None:
    """The oplog is trimmed past the commit point."""
    real = retention._trim

    def trim(store: Store, *limits: Any) -> bool:
        kept, store.commit_point = store.commit_point, store.last_applied
        try:
            return real(store, *limits)
        finally:
            store.commit_point = kept

    patch.setattr(retention, "_trim", trim)


def undone_from_the_beginning(patch: pytest.MonkeyPatch) -> None:
    """A rollback restores a document's versions in the order in which they were written, the newest one last."""

    def undo_above(txn: Txn, floor: int) -> None:
        sql = "SELECT kind, coll, key, before, place FROM undo WHERE ts > ? ORDER BY ts, seq"
        for row in list(rows_of(txn.connection, sql, (floor,))):
            revert(txn.connection, txn.catalog, *row)
        txn.connection.execute("DELETE FROM undo WHERE ts > ?", (floor,))
        txn.connection.execute("DELETE FROM terms WHERE first_ts > ?", (floor,))

    patch.setattr(undo, "_undo_above", undo_above)


def wal_never_synced(patch: pytest.MonkeyPatch) -> None:
    """last_durable is reported after a sync that does nothing."""
    patch.setattr(Wal, "sync", lambda _wal: None)


def vote_before_it_has_caught_up(patch: pytest.MonkeyPatch) -> None:
    """A newlyAdded member gets its vote before it has what the primary had."""
    patch.setattr(VoterChanges, "_elections_meet_commit_point", lambda *_: True)

    def promoted(self: VoterChanges, member: Member, peer: Peer) -> Member | None:
        node = self.node
        if node.config is None or (peer.config_version, peer.config_term) != node.config.version_and_term:
            return None
        is_able = peer.incarnation and peer.state is not MemberState.STARTUP
        return replace(member, newly_added=False, incarnation=peer.incarnation) if is_able else None

    patch.setattr(VoterChanges, "_with_vote", promoted)


def commits_alone_unknown_to_others(patch: pytest.MonkeyPatch) -> None:
    """A primary beside arbiters commits alone before a majority has the configuration that lets it."""
    real = Leader.update_commit_point

    def advance(self: Leader) -> None:
        with pytest.MonkeyPatch.context() as within:
            within.setattr(NodeState, "is_config_committed", property(lambda _: True))
            real(self)

    patch.setattr(Leader, "update_commit_point", advance)


def arbiter_counted_as_a_copy(patch: pytest.MonkeyPatch) -> None:
    """A majority write counts arbiters as if they had the entry."""
    real = ReplSetConfig.__post_init__

    def init(self: ReplSetConfig) -> None:
        real(self)
        copies = max(1, self.write_majority - sum(voter.arbiter_only for voter in self.voters))
        object.__setattr__(self, "write_majority", copies)

    patch.setattr(ReplSetConfig, "__post_init__", init)


def witness_counted_before_its_sync(patch: pytest.MonkeyPatch) -> None:
    """A witness whose disk was emptied has its vote back at once, as an arbiter does, and votes without an oplog."""
    patch.setattr(VoterChanges, "_elections_meet_commit_point", lambda *_: True)
    must_sync, with_vote = NodeState.must_sync, VoterChanges._with_vote
    patch.setattr(NodeState, "must_sync", property(lambda self: must_sync.fget(self) and not self.is_witness))

    def promoted(self: VoterChanges, member: Member, peer: Peer) -> Member | None:
        if not member.witness or not peer.incarnation:
            return with_vote(self, member, peer)
        return replace(member, newly_added=False, incarnation=peer.incarnation)

    patch.setattr(VoterChanges, "_with_vote", promoted)


def held_documents_written(patch: pytest.MonkeyPatch) -> None:
    """A write outside of transactions does not wait for the one that holds its document."""

    def is_held(_self: HeldKeys, _place: Place) -> bool:
        return False

    patch.setattr(HeldKeys, "is_held", is_held)
    patch.setattr(HeldKeys, "check", lambda *_: None)


MUTANTS = (
    Mutant(vote_not_durable, (53, 51), "invariant", CORE_ALONE, (scenarios.vote_over_restart, "invariant")),
    Mutant(own_vote_counted_unsaved, (33, 37, 53), "invariant 1", CORE_ALONE),
    Mutant(commit_point_in_an_old_term, (48,), "its own term", CORE_ALONE, (scenarios.figure_eight, "its own term")),
    Mutant(durable_before_the_sync, (5, 0), "invariant 4"),
    Mutant(any_incarnation_votes, scenario=(scenarios.emptied_voter, "invariant 3")),
    Mutant(
        vote_for_a_candidate_behind,
        (24, 2),
        "invariant",
        CORE_ALONE,
        (scenarios.candidate_behind, "invariant"),
    ),
    Mutant(equal_source_accepted, (13,), "invariant 9", CORE_ALONE, (scenarios.no_loop_of_sources, "invariant 9")),
    Mutant(rollback_files_not_synced, scenario=(scenarios.dark_after_a_rollback, "invariant 4")),
    Mutant(oplog_trimmed_too_far, (19, 2)),
    Mutant(undone_from_the_beginning, (1, 3, 5), "", ROLLBACK_RUNS),
    Mutant(wal_never_synced, scenario=(scenarios.journaled_then_dark, "no disk did")),
    Mutant(vote_before_it_has_caught_up, (64,), "invariant", CORE_ALONE),
    Mutant(commits_alone_unknown_to_others, (17, 47), "invariant 3", CORE_ALONE),
    Mutant(arbiter_counted_as_a_copy, (1, 12, 15), "invariant 3", CORE_ALONE),
    Mutant(witness_counted_before_its_sync, (62,), "invariant 3", CORE_ALONE),
    Mutant(held_documents_written, (3, 1, 5)),
)
