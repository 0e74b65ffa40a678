"""A rollback that dies or fails at any step is finished or forgotten."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from replset.bson import decode
from replset.ids import OpTime
from replset.replication import rollback as rollback_module
from replset.replication.common_point import CommonPoint
from replset.replication.rollback import NotUndoneError, finish_rollbacks
from replset.replication.rollback_manifest import FileKind, RollbackState, list_manifests, read_manifest, verify_file
from replset.storage.store import Store
from replset.storage.undo import rollback_done_marks, rollback_in_progress, undo_step
from tests.unit.replication.diverged import (
    DISK_OPERATIONS,
    NS,
    OTHER,
    SOURCE,
    Crash,
    FailingDisk,
    crash_around_step,
    diverge,
    reopened,
    run_rollback,
    two_members,
)
from tests.unit.replication.kit import synced


def crash_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, operation: int = 0, step: int = 0) -> int:
    """Roll back with a crash at one disk operation or around one undo step, restart, finish and check everything.

    operation 0 and step 0: no crash; returns how many operations there are. Negative step: before it commits.
    """
    monkeypatch.setattr(rollback_module, "UNDO_STEP_ENTRIES", 4)
    source, mine = two_members(tmp_path)
    at_common, log_at_common = mine.everything(), mine.oplog()
    common = diverge(source, mine)
    at_newest, undone = mine.everything(), mine.oplog()[len(log_at_common) :]
    disk = FailingDisk()
    disk.fail_at = operation
    mine.context.disk = disk
    crash_around_step(mine, step, monkeypatch)
    try:
        asyncio.run(mine.rollback.run(SOURCE))
    except Crash:
        again = reopened(mine, tmp_path, mine.network)
    else:
        assert operation == step == 0
        return disk.operations

    begun = rollback_in_progress(again.store) is not None or rollback_done_marks(again.store) != []
    changed = again.oplog() != log_at_common + undone
    asyncio.run(finish_rollbacks(again.context, lambda: None))
    states = [manifest.state for manifest in list_manifests(again.dbpath)]
    if again.store.last_applied == common:
        assert again.everything() == at_common
        assert states == [RollbackState.FINISHED]
        if not begun:
            assert changed  # all of it was over, the manifest included
    else:
        assert not begun
        assert again.everything() == at_newest, "nothing was undone, so nothing may be missing"
        assert again.oplog() == log_at_common + undone
        assert states in ([], [RollbackState.ABANDONED])
    asyncio.run(again.rollback.run(SOURCE))
    assert again.everything() == at_common
    assert again.oplog() == log_at_common
    finished = [m for m in list_manifests(again.dbpath) if m.state is RollbackState.FINISHED]
    (manifest,) = finished
    assert all(verify_file(again.folder / "rollback", file) is None for file in manifest.files)
    (log_file,) = [file for file in manifest.files if file.kind is FileKind.OPLOG]
    assert again.rollback_file(log_file.name) == [decode(entry) for entry in undone]
    assert {file.ns for file in manifest.files if file.kind is FileKind.DOCUMENTS} == {NS, OTHER, "app.new"}
    assert rollback_done_marks(again.store) == []
    again.close()
    return disk.operations


def test_how_many_disk_operations_a_rollback_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert crash_at(tmp_path, monkeypatch) == DISK_OPERATIONS


@pytest.mark.parametrize("operation", range(1, DISK_OPERATIONS + 1))
def test_a_crash_at_any_disk_operation_is_finished_or_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: int
) -> None:
    crash_at(tmp_path, monkeypatch, operation=operation)


@pytest.mark.parametrize("step", [-1, 1, -2, 2, 3, -4, 4])
def test_a_crash_around_any_undo_step_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    crash_at(tmp_path, monkeypatch, step=step)


def test_a_planned_manifest_without_a_committed_step_is_abandoned(tmp_path: Path) -> None:
    source, mine = two_members(tmp_path)
    diverge(source, mine)
    common = asyncio.run(CommonPoint(mine.network, mine.store, SOURCE).find())
    planned = asyncio.run(mine.rollback._write(common, RollbackState.PLANNED, "rollback", SOURCE))
    (settled,) = asyncio.run(finish_rollbacks(mine.context, lambda: None))
    assert settled.state is RollbackState.ABANDONED
    assert read_manifest(mine.folder / "rollback" / f"{planned.id}.json") == settled
    assert asyncio.run(finish_rollbacks(mine.context, lambda: None)) == []


def test_a_damaged_manifest_of_an_earlier_rollback_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, mine = two_members(tmp_path)
    at_common = mine.everything()
    diverge(source, mine)
    damaged = mine.folder / "rollback" / "rollback-2020-01-01T00-00-00.0.json"
    damaged.parent.mkdir()
    damaged.write_bytes(b"{")
    assert asyncio.run(finish_rollbacks(mine.context, lambda: None)) == []
    assert run_rollback(mine).ok
    assert mine.everything() == at_common
    assert mine.broken == []
    assert damaged.read_bytes() == b"{"
    assert damaged.name in caplog.text


def test_a_storage_failure_in_the_middle_stops_the_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, mine = two_members(tmp_path)
    diverge(source, mine)
    monkeypatch.setattr(rollback_module, "UNDO_STEP_ENTRIES", 4)
    steps = iter([None, OSError(5, "Input/output error")])

    def failing(store: Store, common: OpTime, *, stem: str, limit: int = 0) -> bool:
        error = next(steps)
        if error is not None:
            raise error
        return undo_step(store, common, stem=stem, limit=limit)

    monkeypatch.setattr(rollback_module, "undo_step", failing)
    asyncio.run(mine.rollback.run(SOURCE))
    assert [type(error) for error in mine.broken] == [OSError]
    assert mine.reports == []


@pytest.mark.parametrize("when", ["at once", "after a step"])
def test_a_rollback_that_cannot_be_undone_ends_nothing_and_a_copy_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Its undo is not what was written. At each start it would fail the same way."""
    monkeypatch.setattr(rollback_module, "UNDO_STEP_ENTRIES", 4)
    source, mine = two_members(tmp_path)
    common = diverge(source, mine)
    order = "DESC" if when == "at once" else "ASC"
    sql = f"SELECT ts, seq FROM undo WHERE ts > ? AND kind = 'doc' ORDER BY ts {order} LIMIT 1"
    with mine.store.maintenance() as txn:
        (row,) = txn.connection.execute(sql, (common.ts,)).fetchall()
        txn.connection.execute("UPDATE undo SET kind = 'dob' WHERE ts = ? AND seq = ?", row)
    ended = run_rollback(mine)
    assert (ended.ok, ended.retry, ended.not_undone) == (False, False, True)
    assert mine.broken == []
    again = reopened(mine, tmp_path, mine.network)
    if when == "after a step":
        with pytest.raises(NotUndoneError):
            asyncio.run(finish_rollbacks(again.context, lambda: None))
    assert synced(again, "a resync", forced=True).ok
    assert again.everything() == source.everything()
    assert RollbackState.PLANNED not in {manifest.state for manifest in list_manifests(again.dbpath)}
    assert asyncio.run(finish_rollbacks(again.context, lambda: None)) == []


def test_no_error_of_a_rollback_ends_the_member_at_each_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, mine = two_members(tmp_path)
    diverge(source, mine)
    before = mine.everything()

    def fail(*_: object) -> None:
        raise TypeError("a row is none")

    monkeypatch.setattr(rollback_module.RollbackFiles, "write", fail)
    ended = run_rollback(mine)
    assert (ended.ok, ended.not_undone) == (False, True)
    assert "a row is none" in ended.detail
    assert mine.broken == []
    assert mine.everything() == before
