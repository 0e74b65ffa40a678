"""Rules broken on purpose: each mutant takes one rule out of the members, and some seed must notice.

A mutant that nobody notices means that nothing tests that rule. Each names the seeds that killed it, or a test;
`./dev sim --mutants` looks for such a seed anew, among the first five hundred of its kind.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from replset.bson import decode
from replset.core import leader, node
from replset.core.effects import Effect, LastVote, Persist
from replset.core.election import Elections
from replset.core.heartbeat import Heartbeats
from replset.core.leader import Leader
from replset.core.member_state import MemberState
from replset.core.messages import MemberProgress, ProgressRequest
from replset.core.node import Node
from replset.core.quorum import WriteConcern
from replset.core.state import NodeState
from replset.core.sync_source import SyncSources
from replset.features.crud import get_more, scan
from replset.ids import OPTIME_NULL, HostPort, MemberId, OpTime
from replset.member.disk.durability import Durability
from replset.operations import read_concern
from replset.operations.command import CommandContext
from replset.operations.read_concern import ReadConcern
from replset.operations.waiters import WaiterList
from replset.oplog_entry import OplogEntry
from replset.replication import applier
from replset.replication.fetcher import Fetcher
from replset.replication.protocol import FetchReply
from replset.replication.rollback_files import RollbackWriter
from replset.replication.rollback_manifest import FileKind
from replset.storage import retention
from replset.storage.catalog import Collection
from replset.storage.store import Store
from replset.storage.txn import Txn
from tests.simulation.core_kit.mutants import CORE_MUTANTS
from tests.simulation.kit import scenarios
from tests.simulation.kit.archive_mutants import ARCHIVE_MUTANTS
from tests.simulation.kit.consumer_mutants import CONSUMER_MUTANTS
from tests.simulation.kit.disk import SimDisk
from tests.simulation.kit.follow_mutants import FOLLOW_MUTANTS
from tests.simulation.kit.index_mutants import INDEX_MUTANTS
from tests.simulation.kit.kinds import CORE_ALONE, ROLLBACK_RUNS
from tests.simulation.kit.many import run_many
from tests.simulation.kit.member_mutants import MEMBER_MUTANTS
from tests.simulation.kit.mutant import Mutant
from tests.simulation.kit.session_mutants import SESSION_MUTANTS
from tests.simulation.kit.state_mutants import STATE_MUTANTS
from tests.simulation.kit.stream_mutants import STREAM_MUTANTS
from tests.simulation.kit.transaction_mutants import TRANSACTION_MUTANTS
from tests.simulation.kit.wiring import WIRING
from tests.simulation.kit.wiring_mutants import WIRING_MUTANTS


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


def undo_row_skipped(patch: pytest.MonkeyPatch) -> None:
    """An insert writes no undo row, so a rollback leaves the document."""
    real = Txn.insert_new

    def insert_new(self: Txn, coll: Collection, key: bytes, doc: bytes, ts: int) -> bool:
        done = real(self, coll, key, doc, ts)
        if done:
            self._undo.pop()
        return done

    patch.setattr(Txn, "insert_new", insert_new)


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


def majority_reads_of_anything(patch: pytest.MonkeyPatch) -> None:
    """A majority read shows what is applied, committed or not."""
    patch.setattr(read_concern, "newest_readable", lambda member, _level: member.store.last_applied)


def manifest_without_entries(patch: pytest.MonkeyPatch) -> None:
    """A rollback does not write the oplog entries that it takes away."""
    real = RollbackWriter.add

    def add(self: RollbackWriter, kind: FileKind, ns: str, uuid: Any, document: bytes) -> None:
        if kind is not FileKind.OPLOG:
            real(self, kind, ns, uuid, document)

    patch.setattr(RollbackWriter, "add", add)


def commands_not_in_the_files(patch: pytest.MonkeyPatch) -> None:
    """A rollback's files hold changes of documents, but no create and no drop."""
    real = RollbackWriter.add

    def add(self: RollbackWriter, kind: FileKind, ns: str, uuid: Any, document: bytes) -> None:
        if kind is not FileKind.OPLOG or decode(document)["op"] != "c":
            real(self, kind, ns, uuid, document)

    patch.setattr(RollbackWriter, "add", add)


def second_vote_in_a_term(patch: pytest.MonkeyPatch) -> None:
    """A member votes again in a term in which it has voted."""
    _never_refuse(patch, "this member has voted")


def vote_for_a_candidate_behind(patch: pytest.MonkeyPatch) -> None:
    """A member votes for a candidate that lacks entries which the member has."""
    _never_refuse(patch, "the candidate is at")


def _never_refuse(patch: pytest.MonkeyPatch, because: str) -> None:
    real = Elections.vote_refusal

    def vote_refusal(self: Elections, request: Any) -> str | None:
        refusal = real(self, request)
        return None if refusal is not None and refusal.startswith(because) else refusal

    patch.setattr(Elections, "vote_refusal", vote_refusal)


def waiter_released_too_early(patch: pytest.MonkeyPatch) -> None:
    """A majority write is acknowledged when the primary alone has it on its disk."""
    real = Node.is_satisfied

    def is_satisfied(self: Node, concern: WriteConcern, optime: OpTime) -> bool:
        if isinstance(concern.w, str):
            return self._state.is_primary and self._state.position.last_durable >= optime
        return real(self, concern, optime)

    patch.setattr(Node, "is_satisfied", is_satisfied)


def waiter_survives_its_term(patch: pytest.MonkeyPatch) -> None:
    """A majority write waits on after its primary stepped down, and another term's commit point releases it."""
    real = Node.is_satisfied

    def is_satisfied(self: Node, concern: WriteConcern, optime: OpTime) -> bool:
        if isinstance(concern.w, str):
            return self._state.commit_point >= optime
        return real(self, concern, optime)

    patch.setattr(Node, "is_satisfied", is_satisfied)
    patch.setattr(WaiterList, "fail_all", lambda *_: None)


def journaled_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    """`j: true` is acknowledged when the entry is committed, synced or not."""
    real = node.satisfied

    def satisfied(concern: WriteConcern, *args: Any) -> bool:
        return real(replace(concern, j=False), *args)

    patch.setattr(node, "satisfied", satisfied)


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


def positions_made_up(patch: pytest.MonkeyPatch) -> None:
    """A member passes on its own position as that of the members which follow it."""
    real = NodeState.relayed_progress

    def relayed_progress(self: NodeState) -> tuple[MemberProgress, ...]:
        return tuple(replace(row, position=self.position) for row in real(self))

    patch.setattr(NodeState, "relayed_progress", relayed_progress)


def ring_of_sources_lasts(patch: pytest.MonkeyPatch) -> None:
    """A member does not look where its source's own sources lead."""
    patch.setattr(SyncSources, "_leads_here", lambda *_: False)


def old_incarnation_passed_on(patch: pytest.MonkeyPatch) -> None:
    """A position that another member passes on counts for whatever incarnation it names."""
    real = Heartbeats._accept_progress

    def accept(self: Heartbeats, request: ProgressRequest, progress: MemberProgress) -> bool:
        return real(self, replace(request, sender_id=progress.member_id), progress)

    patch.setattr(Heartbeats, "_accept_progress", accept)


def misfitting_batch_applied(patch: pytest.MonkeyPatch) -> None:
    """A source that does not hold a member's newest entry is followed all the same, from wherever it goes on."""
    real = FetchReply.parse

    def parse(reply: Any) -> FetchReply:
        return replace(real(reply), matched=True)

    patch.setattr(FetchReply, "parse", staticmethod(parse))
    patch.setattr(Fetcher, "_mismatch", lambda *_: None)


def commit_point_of_another_history(patch: pytest.MonkeyPatch) -> None:
    """A commit point in a heartbeat is taken whatever the term of a member's own newest entry."""

    def accept(self: Heartbeats, optime: OpTime, term: int = 0) -> None:
        if self.node.state is not MemberState.PRIMARY:
            self._leader.advance_commit_point(min(optime, self.node.position.last_applied), term)

    patch.setattr(Heartbeats, "accept_commit_point", accept)


def linearizable_read_unproven(patch: pytest.MonkeyPatch) -> None:
    """A linearizable read is answered without asking a majority whether this member is still primary."""

    async def confirm(_ctx: object) -> None:
        pass

    patch.setattr(get_more, "confirm_linearizable", confirm)


def cluster_time_ignored(patch: pytest.MonkeyPatch) -> None:
    """A read with afterClusterTime does not wait for it."""
    real = read_concern.read_point

    async def read_point(ctx: CommandContext, concern: ReadConcern) -> OpTime | None:
        point = await real(ctx, replace(concern, after=None))
        await asyncio.sleep(0.001)  # a read that waits for the catalog asks again until it fits
        return point

    patch.setattr(scan, "read_point", read_point)


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


def delete_not_replicated(patch: pytest.MonkeyPatch) -> None:
    """A secondary adds a delete to its oplog and leaves the document."""
    real = applier.apply_effect

    def apply_effect(txn: Txn, entry: OplogEntry, ts: int, *changed: Any) -> bytes | None:
        return None if entry.op == "d" else real(txn, entry, ts, *changed)

    patch.setattr(applier, "apply_effect", apply_effect)


def leads_on_in_an_old_term(patch: pytest.MonkeyPatch) -> None:
    """A primary that learns of a higher term takes the term and stays primary."""
    patch.setattr(Leader, "step_down", lambda *_, **__: None)


MUTANTS: tuple[Mutant, ...] = (
    Mutant(vote_not_durable, (51,), "invariant 1", CORE_ALONE, (scenarios.vote_over_restart, "invariant 1")),
    Mutant(own_vote_counted_unsaved, (33, 37, 53), "invariant 1", CORE_ALONE),
    Mutant(second_vote_in_a_term, (9, 11, 6), "votes once in a term"),
    Mutant(
        vote_for_a_candidate_behind,
        (24, 2),
        "invariant 3",
        CORE_ALONE,
        (scenarios.candidate_behind, "invariant 3"),
    ),
    Mutant(commit_point_in_an_old_term, (48,), "its own term", CORE_ALONE, (scenarios.figure_eight, "its own term")),
    Mutant(commit_point_of_another_history, (1,), "invariant 3", CORE_ALONE),
    Mutant(undo_row_skipped, (4,), kind=ROLLBACK_RUNS),
    Mutant(durable_before_the_sync, (5, 0), "invariant 4"),
    Mutant(journaled_before_the_sync, (1, 14), "invariant 4"),
    Mutant(any_incarnation_votes, scenario=(scenarios.emptied_voter, "invariant 3")),
    Mutant(majority_reads_of_anything, (14,), "invariant 3"),
    Mutant(cluster_time_ignored, (1, 2), "invariant 3"),
    Mutant(linearizable_read_unproven, (25,), "invariant 7"),
    Mutant(waiter_released_too_early, (2, 9), "invariant 3"),
    Mutant(
        waiter_survives_its_term, test="tests/unit/features/test_concerns.py::test_a_stepdown_ends_every_wait_at_once"
    ),
    Mutant(
        positions_made_up,
        test="tests/simulation/test_chains.py::test_a_majority_counts_each_member_of_a_chain_for_what_it_has",
    ),
    Mutant(
        ring_of_sources_lasts,
        test="tests/simulation/test_chains.py::test_members_that_are_told_to_follow_each_other_do_not_for_long",
    ),
    Mutant(
        old_incarnation_passed_on,
        test="tests/unit/core/test_sync_source.py"
        "::test_a_position_of_another_incarnation_is_not_taken_from_who_passes_it_on",
    ),
    Mutant(equal_source_accepted, (13,), "invariant 9", CORE_ALONE, (scenarios.no_loop_of_sources, "invariant 9")),
    Mutant(misfitting_batch_applied, (1,), kind=ROLLBACK_RUNS),
    Mutant(manifest_without_entries, (15,), "invariant 4"),
    Mutant(commands_not_in_the_files, (0,), "invariant 4", ROLLBACK_RUNS),
    Mutant(rollback_files_not_synced, scenario=(scenarios.dark_after_a_rollback, "invariant 4")),
    Mutant(oplog_trimmed_too_far, (19, 2)),
    Mutant(delete_not_replicated, (0, 2, 1)),
    Mutant(leads_on_in_an_old_term, (5, 1), "invariant 1"),
    *CORE_MUTANTS,
    *MEMBER_MUTANTS,
    *STATE_MUTANTS,
    *SESSION_MUTANTS,
    *TRANSACTION_MUTANTS,
    *INDEX_MUTANTS,
    *CONSUMER_MUTANTS,
    *STREAM_MUTANTS,
    *ARCHIVE_MUTANTS,
    *FOLLOW_MUTANTS,
    *(Mutant(break_rule, (number,), "wiring: ", WIRING) for break_rule, number in WIRING_MUTANTS),
)
WITHIN = 500
LIMIT_S = 900.0  # for one mutant's seeds


def break_for_good(name: str) -> None:
    """In a process of its own: every run in it has this mutant."""
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    mutant.break_rule(pytest.MonkeyPatch())


def run_mutants(jobs: int = 1, only: str = "") -> int:
    """For `./dev sim --mutants`: each against the first seeds until one notices. 0: each is noticed."""
    missed = []
    for mutant in MUTANTS:
        if only not in mutant.name:
            continue
        ran, began, verdict = 0, time.monotonic(), ""
        if not mutant.killers:
            if mutant.test and mutant.is_caught_by_test():
                verdict = mutant.test
            elif mutant.scenario is not None and mutant.is_caught_in(*mutant.scenario):
                verdict = mutant.killed_by
            else:
                missed.append(mutant.name)
            print(f"{mutant.name}: {verdict or 'MISSED'}", flush=True)
            continue
        with closing(run_many(mutant.kind.first(WITHIN), jobs, mutant.name, mutant.kind)) as runs:
            for timed in runs:
                ran += 1
                error = timed.outcome.error
                if mutant.matches(error):
                    name = mutant.kind.run_name(timed.outcome.seed)
                    verdict = f"{name}, the {ran}. run: {(error or '').splitlines()[0]}"
                    break
                if time.monotonic() - began > LIMIT_S:
                    break
        if not verdict:
            missed.append(mutant.name)
        print(f"{mutant.name}: {verdict or f'MISSED in {ran} runs'}", flush=True)
    print(f"{len(missed)} missed: {', '.join(missed)}" if missed else "each mutant was caught")
    return 1 if missed else 0
