"""Rules of transactions and of reads at one moment, broken on purpose."""

from __future__ import annotations

import pytest

from replset.features.crud import scan
from replset.ids import OpTime
from replset.operations import read_concern, transactions
from replset.operations.command import CommandContext
from replset.operations.kernel import Kernel
from replset.operations.read_concern import ReadConcern
from replset.oplog_entry import OplogEntry
from replset.replication import applier
from replset.replication.held_keys import HeldKeys, Place
from replset.replication.write_ops import WriteGroup
from replset.replication.write_set import WriteSet
from replset.storage.catalog import Collection
from tests.simulation.kit.kinds import ROLLBACK_RUNS
from tests.simulation.kit.mutant import Mutant


def half_committed(patch: pytest.MonkeyPatch) -> None:
    """The primary commits a transaction without the last of its writes; the entry has them all."""
    real = WriteSet.commit

    def commit(self: WriteSet, group: WriteGroup, extra: bytes) -> bytes:
        if len(self._changes) > 1:
            self._changes.pop()
        return real(self, group, extra)

    patch.setattr(WriteSet, "commit", commit)


def half_replicated(patch: pytest.MonkeyPatch) -> None:
    """A secondary applies a transaction without the last of its writes."""
    real = applier.apply_effect

    def apply_effect(txn: object, entry: OplogEntry, ts: int, *changed: object) -> bytes | None:
        operations = entry.operations
        if len(operations) < 2:
            return real(txn, entry, ts, *changed)  # type: ignore[arg-type]
        for operation in operations[:-1]:
            real(txn, operation, ts, *changed)  # type: ignore[arg-type]
        return None

    patch.setattr(applier, "apply_effect", apply_effect)


def half_undone(patch: pytest.MonkeyPatch) -> None:
    """The commit of a transaction leaves out the undo row of its last write, so a rollback leaves that write."""
    real = WriteSet.commit

    def commit(self: WriteSet, group: WriteGroup, extra: bytes) -> bytes:
        entry = real(self, group, extra)
        if len(self._changes) > 1:
            group.txn._undo.pop()
        return entry

    patch.setattr(WriteSet, "commit", commit)


def conflict_with_a_transaction_missed(patch: pytest.MonkeyPatch) -> None:
    """Two open transactions may write the same document."""

    def hold(self: HeldKeys, uuid: bytes, key: bytes, holder: object) -> bool:
        self._holders[uuid, key] = holder
        return False

    patch.setattr(HeldKeys, "hold", hold)


def conflict_with_an_older_write_missed(patch: pytest.MonkeyPatch) -> None:
    """A transaction writes over what was written after it began."""
    patch.setattr(WriteSet, "_check_unchanged", lambda *_: None)


def held_documents_written(patch: pytest.MonkeyPatch) -> None:
    """A write outside of transactions does not wait for the one that holds its document."""

    def is_held(_self: HeldKeys, _place: Place) -> bool:
        return False

    patch.setattr(HeldKeys, "is_held", is_held)
    patch.setattr(HeldKeys, "check", lambda *_: None)


def transaction_reads_the_newest(patch: pytest.MonkeyPatch) -> None:
    """Each read inside of a transaction shows the newest state, not that of its beginning."""
    real = scan.open_collection

    async def open_collection(
        ctx: CommandContext, name: str, concern: ReadConcern
    ) -> tuple[Collection | None, OpTime | None]:
        coll, at = await real(ctx, name, concern)
        return coll, at if ctx.transaction is None else ctx.member.store.last_applied

    for module in (scan, transactions):
        patch.setattr(module, "open_collection", open_collection, raising=False)
    patch.setattr("replset.features.crud.find.open_collection", open_collection)


def cluster_time_of_snapshots_ignored(patch: pytest.MonkeyPatch) -> None:
    """A read with atClusterTime shows the newest committed state."""
    real = read_concern.read_point

    async def read_point(ctx: CommandContext, concern: ReadConcern) -> OpTime | None:
        return await real(ctx, ReadConcern(concern.level, concern.after))

    patch.setattr(scan, "read_point", read_point)


def unknown_commit_confirmed(patch: pytest.MonkeyPatch) -> None:
    """A commit that is sent again to another primary is answered as done, whatever that one knows of it."""
    real = transactions._was_committed

    def was_committed(member: Kernel, key: bytes, number: int) -> bool:
        return real(member, key, number) or key not in member.transactions._newest

    patch.setattr(transactions, "_was_committed", was_committed)


def unknown_commit_denied(patch: pytest.MonkeyPatch) -> None:
    """A commit that is sent again to another primary is answered as not done, whatever its record says."""
    patch.setattr(transactions, "_was_committed", lambda *_: False)


_TESTS = "tests/unit/features/test_transactions.py"
TRANSACTION_MUTANTS = (
    Mutant(half_committed, (1, 3, 5)),
    Mutant(half_replicated, (1, 3, 5)),
    Mutant(half_undone, (4, 0), kind=ROLLBACK_RUNS),
    Mutant(conflict_with_a_transaction_missed, (3, 5)),
    Mutant(conflict_with_an_older_write_missed, (3, 1, 5)),
    Mutant(held_documents_written, (3, 1, 5)),
    Mutant(transaction_reads_the_newest, (1, 3, 5), "invariant 14"),
    Mutant(cluster_time_of_snapshots_ignored, (1, 3, 5), "invariant 14"),
    Mutant(unknown_commit_confirmed, test=f"{_TESTS}::test_a_commit_is_known_from_the_record_alone"),
    Mutant(unknown_commit_denied, test=f"{_TESTS}::test_a_commit_is_known_from_the_record_alone"),
)
