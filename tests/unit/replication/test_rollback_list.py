"""Counting and listing what nobody has acknowledged."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from uuid import UUID

import pytest

from replset.bson import encode
from replset.ids import OpTime, pack_ts
from replset.oplog_entry import insert_entry
from replset.replication.rollback_files import RollbackWriter
from replset.replication.rollback_list import RollbackList, _documents
from replset.replication.rollback_manifest import (
    FileKind,
    Manifest,
    RollbackState,
    acknowledge,
    acknowledged,
    settle_manifest,
    utc_text,
)
from replset.storage.disk import RealDisk
from tests.unit.replication.kit import InlineWorkers
from tests.unit.replication.test_rollback_files import WALL_MS, manifest


def tally(dbpath: Path, disk: RealDisk | None = None) -> RollbackList:
    return RollbackList(disk or RealDisk(), str(dbpath), InlineWorkers())


def count(found: RollbackList) -> int:
    assert asyncio.run(found.refresh()) == found.unacknowledged
    return found.unacknowledged


@pytest.mark.parametrize(
    ("state", "counted"),
    [
        (RollbackState.PLANNED, 1),
        (RollbackState.FINISHED, 1),
        (RollbackState.EXPORTED, 1),
        (RollbackState.ABANDONED, 0),
    ],
)
def test_what_is_counted(tmp_path: Path, state: RollbackState, counted: int) -> None:
    RollbackWriter(RealDisk(), str(tmp_path), WALL_MS).write_manifest(manifest(state=state, files=()))
    assert count(tally(tmp_path)) == counted


def test_the_count_follows_what_happens_to_the_files(tmp_path: Path) -> None:
    disk, found = RealDisk(), tally(tmp_path)
    assert (count(found), asyncio.run(found.listed())) == (0, [])
    first, second = (RollbackWriter(disk, str(tmp_path), WALL_MS).write_manifest(manifest(files=())) for _ in range(2))
    assert count(found) == 2
    settle_manifest(disk, str(tmp_path), first, RollbackState.ABANDONED, WALL_MS)
    assert count(found) == 1, "planned came to nothing"
    settle_manifest(disk, str(tmp_path), second, RollbackState.FINISHED, WALL_MS)
    assert count(found) == 1
    acknowledge(disk, str(tmp_path / "rollback"), second.id, wall_ms=WALL_MS, by="anna")
    assert count(found) == 0
    (tmp_path / "rollback" / "rollback-2026-01-01T00-00-00.0.json").write_bytes(b"{")
    assert count(found) == 1, "a damaged one hides nothing"


def test_settled_manifests_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, found = RealDisk(), tally(tmp_path)
    made = RollbackWriter(disk, str(tmp_path), WALL_MS).write_manifest(manifest(state=RollbackState.FINISHED, files=()))
    assert count(found) == 1
    monkeypatch.setattr(found, "_read", None)
    assert count(found) == 1
    assert acknowledge(disk, str(tmp_path / "rollback"), made.id, wall_ms=WALL_MS, by="anna")
    assert count(found) == 0


def test_the_list_is_oldest_first_says_what_is_acknowledged_and_shows_broken_ones(tmp_path: Path) -> None:
    disk, folder = RealDisk(), tmp_path / "rollback"
    made = [RollbackWriter(disk, str(tmp_path), WALL_MS).write_manifest(manifest(files=())) for _ in range(11)]
    acknowledge(disk, str(folder), made[10].id, wall_ms=WALL_MS, by="anna")
    (folder / "rollback-2027-02-01T00-00-00.0.json").write_text("{", encoding="utf-8")
    rows = asyncio.run(tally(tmp_path).listed())
    assert [row["id"] for row in rows] == [*(one.id for one in made), "rollback-2027-02-01T00-00-00.0"]
    assert rows[0] == {**made[0].document(), "acknowledged": None}
    assert rows[10]["acknowledged"] == acknowledged(folder, made[10].id) == utc_text(WALL_MS)
    assert "rollback-2027-02-01T00-00-00.0.json is not a rollback manifest" in str(rows[11]["error"])
    assert json.dumps(rows)


def test_a_folder_that_cannot_be_read_leaves_the_count(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(RealDisk):
        ok = True

        def list_folder(self, path: str) -> list[str]:
            if not self.ok:
                raise OSError(5, "Input/output error", path)
            return super().list_folder(path)

    disk = Broken()
    RollbackWriter(disk, str(tmp_path), WALL_MS).write_manifest(manifest(files=()))
    found = tally(tmp_path, disk)
    assert count(found) == 1
    disk.ok = False
    assert count(found) == 1
    assert "cannot be counted" in caplog.text


# --- looking for entries ---------------------------------------------------------------------------------------------

UUID_A = UUID(int=7)


def at(number: int) -> OpTime:
    return OpTime(1, pack_ts(100, number))


def rolled_back(dbpath: Path, state: RollbackState, *numbers: int, ns: str = "db.a") -> Manifest:
    """The files of a rollback that took these entries away."""
    writer = RollbackWriter(RealDisk(), str(dbpath), WALL_MS)
    for number in numbers:
        entry = insert_entry(ns, UUID_A.bytes, encode({"_id": number}), at(number), WALL_MS)
        writer.add(FileKind.OPLOG, "oplog", None, entry)
    made = manifest(state=state, files=writer.finish(), first=at(numbers[0]), last=at(numbers[-1]))
    return writer.write_manifest(made)


def test_entries_are_found_in_the_files_of_rollbacks_that_took_place(tmp_path: Path) -> None:
    found = tally(tmp_path)
    first = rolled_back(tmp_path, RollbackState.FINISHED, 2, 4, 6)
    second = rolled_back(tmp_path, RollbackState.EXPORTED, 5, 7, ns="db.b")
    for state in (RollbackState.ABANDONED, RollbackState.PLANNED):
        rolled_back(tmp_path, state, 3, 5)

    def between(after: int, until: int, *names: bytes, most: int = 1 << 20) -> dict[str, list[int]]:
        rows, left_out = asyncio.run(found.entries_between(at(after).ts, at(until).ts, names, most))
        numbers = {one.id: [entry.optime.increment for entry in entries] for one, entries in rows}
        return numbers | {name: [-1] for name in left_out}

    assert between(0, 9, b"db.") == {first.id: [2, 4, 6], second.id: [5, 7]}
    assert between(0, 9, b"db.a", b"db.x") == {first.id: [2, 4, 6], second.id: []}
    assert between(2, 6, b"db.") == {first.id: [4, 6], second.id: [5]}
    assert between(2, 5, b"db.") == {first.id: [4], second.id: [5]}
    assert between(6, 7, b"db.") == {second.id: [7]}
    assert between(0, 1, b"db.") == between(7, 9, b"db.") == {}
    sizes = [sum(file.size for file in one.files) for one in (first, second)]
    assert between(0, 9, b"db.", most=sum(sizes)) == {first.id: [2, 4, 6], second.id: [5, 7]}
    assert between(0, 9, b"db.", most=sum(sizes) - 1) == {first.id: [2, 4, 6], second.id: [-1]}
    path = tmp_path / "rollback" / second.files[0].name
    path.write_bytes(path.read_bytes()[:-4] + b"\3\0\0\0")
    assert between(0, 9, b"db.")[first.id] == [2, 4, 6]
    path.write_bytes(b"\4\0\0\0" + path.read_bytes())
    assert between(0, 9, b"db.") == {first.id: [2, 4, 6], second.id: [-1]}


def test_which_rollbacks_have_an_entry(tmp_path: Path) -> None:
    """Between the first and the last one of a rollback there may be entries that it left alone."""
    found = tally(tmp_path)
    first = rolled_back(tmp_path, RollbackState.FINISHED, 2, 4, 6)
    second = rolled_back(tmp_path, RollbackState.PLANNED, 4, 5)
    rolled_back(tmp_path, RollbackState.ABANDONED, 2, 4)
    having = [[one.id for one in asyncio.run(found.with_entry(at(number)))] for number in range(1, 8)]
    assert having == [[], [first.id], [], [first.id, second.id], [second.id], [first.id], []]
    without = RollbackWriter(RealDisk(), str(tmp_path), WALL_MS).write_manifest(manifest(files=(), first=at(8)))
    assert without.id not in [one.id for one in asyncio.run(found.with_entry(at(8)))]


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5, 7, 30, 1_000])
def test_a_file_is_cut_into_its_documents_wherever_its_chunks_end(step: int) -> None:
    documents = [encode({}), encode({"a": 1}), encode({"b": "x" * 20}), encode({})]
    data = b"".join(documents)
    assert list(_documents((data[i : i + step] for i in range(0, len(data), step)), "x")) == documents
