"""A rollback waits for room wherever the disk is full, and nothing is undone unrecorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from replset.errors import OutOfDiskSpaceError
from replset.ids import HostPort
from replset.replication import rollback as rollback_module
from replset.replication.context import Identity
from replset.replication.rollback_files import RollbackWriter
from replset.replication.rollback_manifest import FileKind, RollbackState, list_manifests, verify_file
from replset.storage.disk import RealDisk
from replset.storage.undo import rollback_done_marks
from tests.unit.replication.diverged import (
    DISK_OPERATIONS,
    Crash,
    diverge,
    run_rollback,
    stamp_of,
    two_members,
)
from tests.unit.replication.kit import MINE, SOURCE, Member


class FullDisk(RealDisk):
    """Full from its n-th operation on, until `left` tries have failed; SQLite's own files are not touched."""

    def __init__(self, full_at: int) -> None:
        super().__init__()
        self.operations = 0
        self.full_at = full_at
        self.left = 3
        self.on_full: Callable[[], None] = lambda: None

    def _step(self, path: str) -> None:
        self.operations += 1
        if self.operations >= self.full_at and self.left:
            self.left -= 1
            self.on_full()
            raise OSError(28, "No space left on device", path)

    def write_file(self, path: str, chunks: Iterable[bytes], *, append: bool = False) -> None:
        data = b"".join(chunks)
        try:
            self._step(path)
        except OSError:
            super().write_file(path, [data[: len(data) // 2]], append=append)
            raise
        super().write_file(path, [data], append=append)

    def sync_file(self, path: str) -> None:
        self._step(path)
        super().sync_file(path)

    def rename(self, source: str, target: str) -> None:
        self._step(source)
        super().rename(source, target)

    def sync_folder(self, path: str) -> None:
        self._step(path)
        super().sync_folder(path)

    def make_folder(self, path: str) -> None:
        self._step(path)
        super().make_folder(path)


@pytest.mark.parametrize("operation", range(1, DISK_OPERATIONS + 1))
def test_a_full_disk_is_waited_for_and_nothing_is_undone_unrecorded(
    source: Member, mine: Member, operation: int, caplog: pytest.LogCaptureFixture
) -> None:
    at_common = mine.everything()
    diverge(source, mine)
    everything = mine.everything()
    disk = FullDisk(operation)
    seen: list[tuple[bool, list[RollbackState]]] = []

    def look() -> None:
        manifests = list_manifests(mine.dbpath)
        seen.append((mine.everything() == everything, [manifest.state for manifest in manifests]))

    disk.on_full = look
    mine.context.disk = disk
    assert run_rollback(mine).ok
    assert len(mine.reports) == 1
    assert mine.broken == []
    assert disk.left == 0
    undone_already = operation > DISK_OPERATIONS - 6
    for untouched, states in seen:
        assert untouched is not undone_already
        assert untouched or states in ([RollbackState.PLANNED], [RollbackState.FINISHED])
    assert mine.everything() == at_common
    (manifest,) = list_manifests(mine.dbpath)
    assert manifest.state is RollbackState.FINISHED
    folder = mine.folder / "rollback"
    assert all(verify_file(folder, file) is None for file in manifest.files)
    assert {path.name for path in folder.iterdir()} == {f"{manifest.id}.json", *(file.name for file in manifest.files)}
    assert sum("rollback waits" in record.message for record in caplog.records) == 1, "said once"
    assert sum("rollback goes on" in record.message for record in caplog.records) == 1
    assert (mine.rollback.progress.running, mine.rollback.progress.waiting_for) == (False, "")


@pytest.mark.parametrize("name", ["undo_step", "sync", "clear_rollback_done"])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_database_that_cannot_grow_is_waited_for(
    source: Member, mine: Member, monkeypatch: pytest.MonkeyPatch, name: str, nth: int
) -> None:
    monkeypatch.setattr(rollback_module, "UNDO_STEP_ENTRIES", 4)
    at_common = mine.everything()
    diverge(source, mine)
    owner: Any = mine.store.wal if name == "sync" else rollback_module
    real = getattr(owner, name)
    calls = 0
    texts: list[str] = []

    def failing(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if nth <= calls < nth + 3:
            texts.append(mine.rollback.progress.text())
            raise OutOfDiskSpaceError("replset.db: no space left on the disk")
        return real(*arguments, **named)

    monkeypatch.setattr(owner, name, failing)
    assert run_rollback(mine).ok
    assert mine.everything() == at_common
    (manifest,) = list_manifests(mine.dbpath)
    assert manifest.state is RollbackState.FINISHED
    assert rollback_done_marks(mine.store) == []
    assert [text for text in texts if "waits for disk space: replset.db" in text] == texts[1:]


def test_files_are_begun_anew_once_the_disk_takes_what_they_had_come_to(source: Member, mine: Member) -> None:
    diverge(source, mine)
    disk = FullDisk(4)
    disk.left = 1
    free = [0, 0, (1 << 20) - 1, 1 << 40]
    disk.free_bytes = lambda path: free.pop(0)
    mine.context.disk = disk
    assert run_rollback(mine).ok
    assert free == []


def test_a_start_without_room_finishes_an_interrupted_rollback_later(
    source: Member, mine: Member, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollback_module, "UNDO_STEP_ENTRIES", 4)
    at_common = mine.everything()
    diverge(source, mine)
    steps = iter((None, Crash))

    def undone() -> None:
        if error := next(steps):
            raise error

    mine.context.on_undone = undone
    with pytest.raises(Crash):
        asyncio.run(mine.rollback.run(SOURCE))
    again = mine.reborn(tmp_path / "left")
    disk = FullDisk(1)
    again.context.disk = disk
    asyncio.run(again.rollback.finish())
    (ended,) = again.reports
    assert ended.ok
    assert again.everything() == at_common
    assert [manifest.state for manifest in list_manifests(again.dbpath)] == [RollbackState.FINISHED]


def test_a_full_disk_in_the_middle_of_mongodb_s_layout(tmp_path: Path) -> None:
    """Every operation on its files fails once; at the end they are what the plain ones are."""
    operation = 0
    while True:
        operation += 1
        folder = tmp_path / str(operation)
        source, mine = two_members(folder)
        diverge(source, mine)
        disk = FullDisk(operation)
        disk.left = 1
        mine.context.disk = disk
        mine.context.identity = Identity("rs0", HostPort(MINE), mongodb_layout=True)
        assert run_rollback(mine).ok
        (manifest,) = list_manifests(mine.dbpath)
        documents = [file for file in manifest.files if file.kind is FileKind.DOCUMENTS]
        assert sorted(manifest.mongodb_files) == sorted(
            f"{file.uuid}/removed.{stamp_of(manifest)}.0.bson" for file in documents
        )
        for file in documents:
            (path,) = (mine.folder / "rollback" / str(file.uuid)).iterdir()
            assert path.read_bytes() == (mine.folder / "rollback" / file.name).read_bytes()
        if disk.left:
            break
    assert operation > DISK_OPERATIONS + 6


def test_a_read_that_is_cut_off_undoes_nothing_and_is_tried_again(
    source: Member, mine: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    diverge(source, mine)
    everything = mine.everything()
    add = RollbackWriter.add

    def cutting(self: RollbackWriter, kind: FileKind, ns: str, uuid: UUID | None, document: bytes) -> None:
        add(self, kind, ns, uuid, document)
        mine.store.readers.cut()

    with monkeypatch.context() as patched:
        patched.setattr(RollbackWriter, "add", cutting)
        ended = run_rollback(mine)
    assert (ended.ok, ended.retry) == (False, True)
    assert mine.everything() == everything
    assert list((mine.folder / "rollback").iterdir()) == []
    assert run_rollback(mine).ok
