"""What storage relies on holds on the real disk and on the simulated one alike."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from replset.errors import DbPathLockedError, InvariantError
from replset.storage.disk import Disk, RealDisk, file_sha256
from tests.simulation.kit.disk import SimDisk


@pytest.fixture(params=["real", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    made: RealDisk | SimDisk = RealDisk() if request.param == "real" else SimDisk(str(tmp_path))
    yield made
    made.close()


def test_files_are_written_read_and_added_to(disk: Disk, tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    disk.write_file(path, [b"one", b"two"])
    disk.write_file(path, [b"three"], append=True)
    disk.sync_file(path)
    assert disk.read_file(path) == b"onetwothree"
    assert (disk.read_at(path, 3, 3), disk.read_at(path, 8, 100)) == (b"two", b"ree")
    assert disk.size(path) == 11
    disk.truncate(path, 4)
    disk.write_file(path, [b"!"], append=True)
    assert disk.read_file(path) == b"onet!"
    disk.write_file(path, [b"new"])
    assert disk.read_file(path) == b"new"
    assert file_sha256(disk, path) == "11507a0e2f5e69d5dfa40a62a1bd7b6ee57e6bcd85c67c9b8431b36fff21c437"


def test_names_come_and_go(disk: Disk, tmp_path: Path) -> None:
    folder = str(tmp_path / "x" / "y")
    disk.make_folder(folder)
    disk.make_folder(folder)
    first, second = os.path.join(folder, "1"), os.path.join(folder, "2")
    disk.write_file(first, [b"1"])
    disk.write_file(second, [b"2"])
    assert disk.list_folder(folder) == ["1", "2"]
    disk.rename(first, second)
    disk.sync_folder(folder)
    assert (disk.list_folder(folder), disk.read_file(second), disk.exists(first)) == (["2"], b"1", False)
    disk.remove(second)
    disk.remove(second)
    assert disk.list_folder(folder) == []
    assert disk.free_bytes(folder) > 0


def test_what_is_not_there_is_file_not_found(disk: Disk, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    for read in (disk.read_file, disk.size, disk.sync_file, disk.list_folder):
        with pytest.raises(FileNotFoundError):
            read(missing)
    with pytest.raises(apsw.CantOpenError):
        disk.connect(missing, read_only=True)


def test_two_connections_in_wal_mode_see_each_other(disk: Disk, tmp_path: Path) -> None:
    path = str(tmp_path / "t.db")
    one, two = disk.connect(path), disk.connect(path)
    assert one.pragma("journal_mode", "wal") == "wal"
    one.execute("CREATE TABLE t (n)")
    one.execute("INSERT INTO t VALUES (1)")
    assert two.execute("SELECT n FROM t").fetchall() == [(1,)]
    disk.sync_file(f"{path}-wal")
    with pytest.raises(InvariantError, match="open in SQLite"):
        disk.read_file(path)
    one.close()
    two.close()
    assert disk.list_folder(str(tmp_path)) == ["t.db"]
    assert disk.read_file(path).startswith(b"SQLite format 3")


def test_a_lock_is_held_by_one(disk: Disk, tmp_path: Path) -> None:
    path = str(tmp_path / "replset.lock")
    held = disk.lock(path)
    with pytest.raises(DbPathLockedError):
        disk.lock(path)
    held.release()
    disk.lock(path).release()
