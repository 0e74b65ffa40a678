"""Finer rules of a member's storage, replication and commands, each broken on purpose. See `mutants.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import apsw
import pytest

from replset.bson import RawDocument
from replset.core import node
from replset.core.ages import OptimeAges
from replset.core.in_sync import in_sync_have
from replset.core.quorum import IN_SYNC, WriteConcern
from replset.errors import StorageError
from replset.features.crud.write_batch import Batch
from replset.features.scrub import document_check, document_repair
from replset.features.scrub.auto_repair import AutoRepair
from replset.features.scrub.document_check import Difference
from replset.features.scrub.document_repair import DocumentRepair
from replset.ids import OPTIME_NULL, Millis, OpTime, pack_ts
from replset.member.disk import member_files
from replset.member.peers.message_documents import progress_document
from replset.member.positions import Positions
from replset.replication import (
    difference_copy,
    fetcher,
    initial_sync,
    rollback,
)
from replset.replication.difference_copy import DifferenceCopy
from replset.replication.fetcher import Fetcher
from replset.replication.write_queue import WriteQueue
from replset.storage import copies, oplog, retention, store, undo
from replset.storage.catalog import Collection
from replset.storage.snapshot import Snapshot
from replset.storage.sqlite import rows_of
from replset.storage.store import Store
from replset.storage.txn import Txn, revert
from replset.storage.wal import Wal
from tests.simulation.kit import scenarios
from tests.simulation.kit.kinds import ROLLBACK_RUNS, STALE_RUNS
from tests.simulation.kit.mutant import Mutant


def ages_by_optimes(patch: pytest.MonkeyPatch) -> None:
    """How old an entry is, is read from the seconds of its optime."""

    def older_than(self: OptimeAges, age_ms: int, now: Millis) -> OpTime:
        newest = self._spans[-1].newest if self._spans else OPTIME_NULL
        return OpTime(newest.term, max(0, newest.ts - pack_ts(age_ms // 1000, 0)))

    patch.setattr(OptimeAges, "older_than", older_than)


def differing_documents_overlooked(patch: pytest.MonkeyPatch) -> None:
    """What a disk changed is compared, and taken for the same: it stays as it is."""
    patch.setattr(document_check, "find_differences", lambda *_: [])


def every_member_is_the_majority(patch: pytest.MonkeyPatch) -> None:
    """A repair takes this member's own documents for right."""
    real = document_repair.majority_version

    def majority_version(difference: Difference, members: int) -> tuple[bool, int | None]:
        row = next(iter(difference.rows.values()))  # its own comes first
        return real(difference, members)[0], None if row is None else row.hash

    patch.setattr(document_repair, "majority_version", majority_version)


def repaired_without_a_bound(patch: pytest.MonkeyPatch) -> None:
    """A member takes over by itself as many documents as differ, and also where another member differs too."""

    async def choose(_: AutoRepair, _ns: str, wanted: Sequence[Difference]) -> Sequence[Difference]:
        return wanted

    patch.setattr(AutoRepair, "choose", choose)


def nothing_kept_of_what_was_there(patch: pytest.MonkeyPatch) -> None:
    """Documents are replaced by the majority's, and no file has what was there."""

    async def keep_all(*_: object) -> list[str]:
        return []

    patch.setattr(DocumentRepair, "_keep_all", keep_all)


def two_means_one(patch: pytest.MonkeyPatch) -> None:
    """`w: 2` is answered as soon as the primary alone has it."""
    real = node.satisfied

    def satisfied(concern: WriteConcern, *args: Any) -> bool:
        return real(concern if isinstance(concern.w, str) else replace(concern, w=1), *args)

    patch.setattr(node, "satisfied", satisfied)


def others_need_not_sync(patch: pytest.MonkeyPatch) -> None:
    """`w: 2` with `j: true` counts another member that has the entry, synced or not."""
    real = node.satisfied

    def satisfied(concern: WriteConcern, optime: OpTime, own: Any, *args: Any) -> bool:
        if isinstance(concern.w, int) and concern.w > 1 and concern.j:
            return own.last_durable >= optime and real(replace(concern, j=False), optime, own, *args)
        return real(concern, optime, own, *args)

    patch.setattr(node, "satisfied", satisfied)


def in_sync_needs_no_majority(patch: pytest.MonkeyPatch) -> None:
    """`w: "inSync"` is answered once all members in sync have the write, a majority or not."""
    real = node.Node.is_satisfied

    def is_satisfied(self: node.Node, concern: WriteConcern, optime: OpTime) -> bool:
        if concern.w == IN_SYNC:
            return self._state.is_primary and in_sync_have(self._state, optime)
        return real(self, concern, optime)

    patch.setattr(node.Node, "is_satisfied", is_satisfied)


def batch_waits_for_its_first_group(patch: pytest.MonkeyPatch) -> None:
    """A command of several groups is acknowledged when the first of them is."""
    real = Batch.__call__

    def call(self: Batch, writing: Any) -> bool:
        first = self.optime
        done = real(self, writing)
        if first != OPTIME_NULL:
            self.optime = first
        return done

    patch.setattr(Batch, "__call__", call)


def wall_clock_orders_entries(patch: pytest.MonkeyPatch) -> None:
    """An entry's optime comes from the wall clock alone, also when that is behind the newest entry."""
    patch.setattr(Txn, "next_optime", lambda self, term, wall_ms: OpTime(term, pack_ts(wall_ms // 1000, 1)))


def undone_from_the_beginning(patch: pytest.MonkeyPatch) -> None:
    """A rollback restores a document's versions in the order in which they were written, the newest one last."""

    def undo_above(txn: Txn, floor: int) -> None:
        sql = "SELECT kind, coll, key, before, place FROM undo WHERE ts > ? ORDER BY ts, seq"
        for row in list(rows_of(txn.connection, sql, (floor,))):
            revert(txn.connection, txn.catalog, *row)
        txn.connection.execute("DELETE FROM undo WHERE ts > ?", (floor,))
        txn.connection.execute("DELETE FROM terms WHERE first_ts > ?", (floor,))

    patch.setattr(undo, "_undo_above", undo_above)


def deletes_cannot_be_undone(patch: pytest.MonkeyPatch) -> None:
    """A delete writes no undo row."""
    real = Txn.remove

    def remove(self: Txn, coll: Collection, key: bytes, *, ts: int, before: bytes) -> None:
        real(self, coll, key, ts=ts, before=before)
        self._undo.pop()

    patch.setattr(Txn, "remove", remove)


def undo_keeps_the_new_document(patch: pytest.MonkeyPatch) -> None:
    """The undo row of an update holds the document as it is after it."""
    real = Txn.put

    def put(self: Txn, coll: Collection, key: bytes, doc: bytes, *, ts: int, before: bytes | None) -> None:
        real(self, coll, key, doc, ts=ts, before=before)
        if before is not None:
            self._undo[-1] = (*self._undo[-1][:-1], doc)

    patch.setattr(Txn, "put", put)


def renames_cannot_be_undone(patch: pytest.MonkeyPatch) -> None:
    """A rename writes no undo row."""
    real = Txn.rename_collection

    def rename(self: Txn, coll: Collection, ns: str, *, ts: int) -> None:
        real(self, coll, ns, ts=ts)
        self._undo.pop()

    patch.setattr(Txn, "rename_collection", rename)


def drops_cannot_be_undone(patch: pytest.MonkeyPatch) -> None:
    """A drop writes no undo row."""
    real = Txn.drop_collection

    def drop_collection(self: Txn, coll: Collection, *, ts: int) -> None:
        real(self, coll, ts=ts)
        self._undo.pop()

    patch.setattr(Txn, "drop_collection", drop_collection)


def undo_in_progress_unmarked(patch: pytest.MonkeyPatch) -> None:
    """A rollback does not note that it has begun: a start between two steps does not finish it."""
    real = undo.write_meta

    def write_meta(connection: apsw.Connection, name: str, value: Any) -> None:
        if name != undo._IN_PROGRESS:
            real(connection, name, value)

    patch.setattr(undo, "write_meta", write_meta)


def rollback_id_stays(patch: pytest.MonkeyPatch) -> None:
    """A rollback does not raise the rollback id."""
    real = undo.write_meta

    def write_meta(connection: apsw.Connection, name: str, value: Any) -> None:
        if name != "rollback_id":
            real(connection, name, value)

    patch.setattr(undo, "write_meta", write_meta)


def manifest_stays_planned(patch: pytest.MonkeyPatch) -> None:
    """A rollback that is undone is not finished: its manifest stays in the state planned."""

    async def finish_rollbacks(*_args: Any) -> list[Any]:
        return []

    patch.setattr(rollback, "finish_rollbacks", finish_rollbacks)
    patch.setattr(member_files, "finish_rollbacks", finish_rollbacks)


def undo_pruned_past_the_commit_point(patch: pytest.MonkeyPatch) -> None:
    """Retention prunes undo rows of entries that a rollback may still have to take away."""
    real = retention._prune

    def prune(store: Store) -> bool:
        kept, store.commit_point = store.commit_point, store.last_applied
        try:
            return real(store)
        finally:
            store.commit_point = kept

    patch.setattr(retention, "_prune", prune)


def pins_ignored(patch: pytest.MonkeyPatch) -> None:
    """Retention prunes the undo that an open cursor reads by."""
    patch.setattr(Store, "oldest_pin", property(lambda _store: None))


def old_point_shows_the_present(patch: pytest.MonkeyPatch) -> None:
    """A read at the commit point shows documents as they are now."""
    prepare = Snapshot._prepare

    def at_present(self: Snapshot, coll: Collection, at: OpTime | None) -> None:
        prepare(self, coll, at)

    patch.setattr(Snapshot, "_prepare", at_present)


def drain_skipped(patch: pytest.MonkeyPatch) -> None:
    """A new primary takes writes before it has applied what it had fetched."""

    def drain(_self: Fetcher) -> asyncio.Future[None]:
        drained: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        drained.set_result(None)
        return drained

    patch.setattr(Fetcher, "drain", drain)


def failed_sync_survived(patch: pytest.MonkeyPatch) -> None:
    """A sync of the WAL that failed is tried again, as if the kernel still had what it could not write."""
    real = Wal.sync

    def sync(self: Wal) -> None:
        for _ in range(1_000):
            with suppress(StorageError):
                real(self)
                return

    patch.setattr(Wal, "sync", sync)


def cut_wal_taken_for_whole(patch: pytest.MonkeyPatch) -> None:
    """A start takes what is left of a WAL for all of it, whatever a checkpoint had copied from it."""
    patch.setattr(store, "find_cut", lambda *_: "")


def entries_served_unread(patch: pytest.MonkeyPatch) -> None:
    """Entries are served from the disk without a look at their hashes."""
    patch.setattr(oplog, "undamaged", lambda _connection, _path, rows: rows)


def replaced_without_an_export(patch: pytest.MonkeyPatch) -> None:
    """An initial sync replaces data without exporting what no other member may have."""

    async def export_before_wipe(*_args: Any, **_kwargs: Any) -> None:
        return None

    patch.setattr(initial_sync, "export_before_wipe", export_before_wipe)


def wal_never_synced(patch: pytest.MonkeyPatch) -> None:
    """last_durable is reported after a sync that does nothing."""
    patch.setattr(Wal, "sync", lambda _wal: None)


def fetch_vouches_for_unsynced(patch: pytest.MonkeyPatch) -> None:
    """The position on a fetch says of what is applied that it is synced."""

    def document(positions: Positions) -> RawDocument | None:
        progress = positions._node.progress_request()
        if progress is None:
            return None
        rows = [
            replace(row, position=replace(row.position, last_durable=row.position.last_applied))
            for row in progress.progress
        ]
        return progress_document(replace(progress, progress=tuple(rows)))

    patch.setattr(Positions, "document", document)


def chain_not_compared(patch: pytest.MonkeyPatch) -> None:
    """A page that continues the newest optime is applied, whatever history its chain is of."""
    real = Fetcher._mismatch

    def misfit(self: Fetcher, source: Any, page: Any) -> Any:
        return real(self, source, replace(page, prev_chain=self._context.store.chain))

    patch.setattr(Fetcher, "_mismatch", misfit)


def delay_ignored(patch: pytest.MonkeyPatch) -> None:
    """A delayed member applies what it fetched at once."""

    async def ripe(_self: Fetcher, _session: Any, page: Any, _start: int) -> int:
        return len(page.entries)

    patch.setattr(fetcher.Fetcher, "_wait_for_delay", ripe)


def last_pass_locks_writers_out(patch: pytest.MonkeyPatch) -> None:
    """The last pass of a checkpoint holds SQLite's write lock while it syncs; the write queue runs, the loop waits."""

    def last_pass(self: Wal) -> bool:
        done = self._checkpoint(apsw.SQLITE_CHECKPOINT_RESTART)
        if done:
            self.started_anew()
        return done

    real = Store._connect

    def connect(self: Store) -> None:
        real(self)
        self._connection.set_busy_timeout(2_000)

    patch.setattr(Wal, "last_pass", last_pass)
    patch.setattr(Store, "_connect", connect)
    patch.setattr(WriteQueue, "pause", lambda _queue: None)


def alike_without_a_look(patch: pytest.MonkeyPatch) -> None:
    """A member that was too stale takes its documents for the source's."""

    async def compare(_self: DifferenceCopy, _record: Any, _uuid: bytes) -> None:
        return

    patch.setattr(DifferenceCopy, "_compare", compare)


def what_came_is_believed(patch: pytest.MonkeyPatch) -> None:
    """Documents that came for a stale member are not compared with the source's digests."""
    real = difference_copy.put_rows
    patch.setattr(difference_copy, "put_rows", lambda *args: real(*args[:-1], {}))


def frame_comes_without_undo(patch: pytest.MonkeyPatch) -> None:
    """What a stale member fetches holds no undo of what is not committed yet."""
    real = copies._copy_rows

    def copy_rows(source: Any, target: Any, table: str, *args: Any) -> None:
        if table != "undo":
            real(source, target, table, *args)

    patch.setattr(copies, "_copy_rows", copy_rows)


UNDO = "tests/unit/storage/test_undo.py"
RETENTION = "tests/unit/storage/test_retention.py"
THREADS = "tests/simulation/test_threads.py"
SYNC = "tests/unit/replication/test_initial_sync.py"
FETCHER = "tests/unit/replication/test_fetcher.py"
AUTO = "tests/unit/replication/test_auto_repair.py"
DIFFERENCES = "tests/unit/replication/test_difference_copy.py"

MEMBER_MUTANTS = (
    Mutant(two_means_one, (1, 2, 3), "invariant 4"),
    Mutant(others_need_not_sync, (1, 2, 3), "invariant 4"),
    Mutant(
        in_sync_needs_no_majority,
        test="tests/unit/core/test_in_sync.py::test_in_sync_alone_acknowledges_nothing_that_a_majority_lacks",
    ),
    Mutant(batch_waits_for_its_first_group, (15,), "invariant 4"),
    Mutant(wall_clock_orders_entries, (0,), "only move forward"),
    Mutant(undone_from_the_beginning, (1, 3, 5), "", ROLLBACK_RUNS),
    Mutant(deletes_cannot_be_undone, (2, 14), "invariant", ROLLBACK_RUNS),
    Mutant(undo_keeps_the_new_document, (1,), "invariant"),
    Mutant(drops_cannot_be_undone, (4, 1), "invariant", ROLLBACK_RUNS),
    Mutant(renames_cannot_be_undone, (4,), "invariant", ROLLBACK_RUNS),
    Mutant(undo_in_progress_unmarked, test=f"{UNDO}::test_the_first_step_marks_the_rollback_and_raises_the_id_once"),
    Mutant(rollback_id_stays, test=f"{UNDO}::test_the_first_step_marks_the_rollback_and_raises_the_id_once"),
    Mutant(manifest_stays_planned, (0, 1), "invariant 4", ROLLBACK_RUNS),
    Mutant(undo_pruned_past_the_commit_point, test=f"{RETENTION}::test_undo_is_kept_until_the_commit_point"),
    Mutant(pins_ignored, test=f"{RETENTION}::test_undo_is_kept_for_the_oldest_open_snapshot"),
    Mutant(old_point_shows_the_present, (14, 2), "invariant 3"),
    Mutant(drain_skipped, test=f"{FETCHER}::test_drain_applies_all_that_was_fetched_and_reports_nothing"),
    Mutant(
        failed_sync_survived, test="tests/simulation/test_failing_disks.py::test_a_member_whose_wal_does_not_sync_stops"
    ),
    Mutant(
        cut_wal_taken_for_whole,
        test="tests/unit/storage/test_durability.py::test_a_wal_that_is_cut_behind_its_checkpoint_is_noticed",
    ),
    Mutant(replaced_without_an_export, test=f"{SYNC}::test_what_would_be_lost_is_exported_first"),
    Mutant(wal_never_synced, scenario=(scenarios.journaled_then_dark, "no disk did")),
    Mutant(fetch_vouches_for_unsynced, (1,), "invariant 4"),
    Mutant(chain_not_compared, test=f"{FETCHER}::test_another_chain_at_my_newest_entry_is_corruption"),
    Mutant(delay_ignored, test=f"{FETCHER}::test_a_delayed_member_holds_entries_back"),
    Mutant(
        entries_served_unread,
        test="tests/simulation/test_damage.py::test_a_primary_with_a_damaged_entry_hands_over_and_spreads_nothing",
    ),
    Mutant(ages_by_optimes, (510_004,), "invariant 22"),
    Mutant(differing_documents_overlooked, (4,), "still differ"),
    Mutant(
        every_member_is_the_majority,
        test="tests/unit/replication/test_document_check.py::test_a_row_that_lost_its_bytes_is_put_right",
    ),
    Mutant(repaired_without_a_bound, test=f"{AUTO}::test_more_than_the_bound_in_an_hour_stops_it_until_all_are_alike"),
    Mutant(
        nothing_kept_of_what_was_there,
        test=f"{AUTO}::test_a_process_that_ends_behind_the_file_leaves_the_old_version",
    ),
    Mutant(alike_without_a_look, (0, 1), "", STALE_RUNS),
    Mutant(what_came_is_believed, test=f"{DIFFERENCES}::test_wrong_documents_are_noticed_and_everything_is_copied"),
    Mutant(frame_comes_without_undo, test=f"{DIFFERENCES}::test_what_is_not_committed_yet_can_be_taken_back"),
    Mutant(last_pass_locks_writers_out, test=f"{THREADS}::test_no_loop_waits_for_a_checkpoint_on_a_slow_disk"),
)
