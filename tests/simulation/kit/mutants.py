"""Rules broken on purpose: each mutant takes one rule out of the members, and a recorded run must notice.

A mutant that no checker notices means that the simulation does not test that rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from replset.core import leading
from replset.core.effects import LastVote
from replset.core.election import Elections
from replset.core.memory import Memory
from replset.ids import OPTIME_NULL, MemberId, OpTime
from replset.replication.rollback_files import FileKind, RollbackWriter
from replset.runtime.durability import Durability
from replset.runtime.member import RunningMember
from replset.storage.catalog import Collection
from replset.storage.txn import Txn
from tests.simulation.kit import scenarios
from tests.simulation.kit.errors import SimulationError
from tests.simulation.kit.runs import run_seed

Break = Callable[[pytest.MonkeyPatch], None]


def vote_not_durable(patch: pytest.MonkeyPatch) -> None:
    """A vote is told before it is on disk, and a restart forgets it."""
    real = RunningMember.save

    def save(self: RunningMember, record: Any) -> None:
        if not isinstance(record, LastVote):
            real(self, record)

    patch.setattr(RunningMember, "save", save)


def commit_point_in_an_old_term(patch: pytest.MonkeyPatch) -> None:
    """Entries of earlier terms are counted as committed without one of the primary's own term (Raft, 5.4.2)."""

    def commit_point(
        durable: Mapping[MemberId, OpTime], holders: list[MemberId], write_majority: int, term: int
    ) -> OpTime:
        newest_first = sorted((durable.get(holder, OPTIME_NULL) for holder in holders), reverse=True)
        return newest_first[write_majority - 1]

    patch.setattr(leading, "commit_point", commit_point)


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
    """last_durable is told as soon as an entry is committed in memory; the sync comes behind it."""

    async def run(self: Durability) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            store = self._store()
            self.last_durable, self.durable_wall_ms = store.last_applied, store.last_wall_ms
            self._on_moved()
            async with self.busy:
                await self._workers.run(store.sync_wal)

    patch.setattr(Durability, "run", run)


def any_incarnation_votes(patch: pytest.MonkeyPatch) -> None:
    """A member whose disk was emptied votes and is counted as soon as it has copied somebody."""
    real = Elections.vote_refusal

    def vote_refusal(self: Elections, request: Any) -> str | None:
        refusal = real(self, request)
        return None if refusal is not None and "does not name" in refusal else refusal

    patch.setattr(Elections, "vote_refusal", vote_refusal)
    patch.setattr(Memory, "is_named", property(lambda m: m.self_member is not None and not m.must_sync))
    patch.setattr(Memory, "is_peer_named", lambda _m, _peer: True)


def majority_reads_of_anything(patch: pytest.MonkeyPatch) -> None:
    """A majority read shows what is applied, committed or not."""
    patch.setattr(RunningMember, "_read_point", lambda self, _level: self.store.last_applied)


def manifest_without_entries(patch: pytest.MonkeyPatch) -> None:
    """A rollback does not write the oplog entries that it takes away."""
    real = RollbackWriter.add

    def add(self: RollbackWriter, kind: FileKind, ns: str, uuid: Any, document: bytes) -> None:
        if kind is not FileKind.OPLOG:
            real(self, kind, ns, uuid, document)

    patch.setattr(RollbackWriter, "add", add)


def seeded(seeds: range) -> Callable[[], None]:
    """Run these until one fails."""

    def run() -> None:
        for seed in seeds:
            error = run_seed(seed).error
            if error is not None:
                raise SimulationError(error)

    return run


@dataclass(frozen=True, slots=True)
class Mutant:
    """A broken rule, the run that notices, and words of its verdict."""

    break_rule: Break
    recorded: str
    run: Callable[[], object]
    verdict: str

    @property
    def name(self) -> str:
        return self.break_rule.__name__

    def caught(self) -> str | None:
        """What the checkers said; None when nobody noticed."""
        with pytest.MonkeyPatch.context() as patch:
            self.break_rule(patch)
            try:
                self.run()
            except SimulationError as error:
                return str(error)
        return None


MUTANTS = (
    Mutant(vote_not_durable, "scenario: vote over restart", scenarios.vote_over_restart, "invariant 1 broken"),
    Mutant(commit_point_in_an_old_term, "scenario: figure eight", scenarios.figure_eight, "invariant 3 broken"),
    Mutant(
        undo_row_skipped, "scenario: failover with rollback", scenarios.failover_with_rollback, "invariant 5 broken"
    ),
    Mutant(undo_row_skipped, "seed 11 (or one of the next)", seeded(range(11, 17)), "invariant"),
    Mutant(
        durable_before_the_sync, "scenario: journaled, then dark", scenarios.journaled_then_dark, "invariant 4 broken"
    ),
    Mutant(durable_before_the_sync, "seed 17 (or one of the next)", seeded(range(17, 27)), "invariant 4 broken"),
    Mutant(any_incarnation_votes, "scenario: emptied voter", scenarios.emptied_voter, "invariant 3 broken"),
    Mutant(majority_reads_of_anything, "seed 400 (or one of the next)", seeded(range(400, 410)), "invariant 3 broken"),
    Mutant(
        manifest_without_entries,
        "scenario: failover with rollback",
        scenarios.failover_with_rollback,
        "neither in the set nor in a rollback file",
    ),
)


def run_mutants(jobs: int = 1, only: str = "") -> int:
    """For `./dev sim --mutants`: 0 when each is caught, and by its own verdict."""
    missed = 0
    for mutant in MUTANTS:
        verdict = mutant.caught()
        is_right = verdict is not None and mutant.verdict in verdict
        missed += not is_right
        told = "not caught" if verdict is None else verdict.splitlines()[0]
        print(f"{mutant.name} by {mutant.recorded}: {'caught: ' if is_right else 'MISSED: '}{told}")
    return 1 if missed else 0
