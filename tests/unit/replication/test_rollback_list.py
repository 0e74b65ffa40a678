"""Counting and listing what nobody has acknowledged."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from replset.replication.rollback_files import RollbackWriter
from replset.replication.rollback_list import RollbackList
from replset.replication.rollback_manifest import RollbackState, acknowledge, acknowledged, settle_manifest, utc_text
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
