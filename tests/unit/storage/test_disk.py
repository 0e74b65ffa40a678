"""The disk port on the real file system."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from replset.errors import InvariantError
from replset.storage.disk import RealDisk


@pytest.mark.parametrize(
    "touch",
    [
        pytest.param(lambda disk, path: disk.read_file(path), id="read_file"),
        pytest.param(lambda disk, path: disk.read_at(path, 0, 1), id="read_at"),
        pytest.param(lambda disk, path: disk.write_file(path, []), id="write_file"),
        pytest.param(lambda disk, path: disk.sync_file(path), id="sync_file"),
        pytest.param(lambda disk, path: disk.remove(path), id="remove"),
        pytest.param(lambda disk, path: disk.rename(path, path + "2"), id="rename-away"),
        pytest.param(lambda disk, path: disk.rename(path + "2", path), id="rename-over"),
    ],
)
def test_nothing_else_opens_a_file_that_sqlite_has_open(
    tmp_path: Path, touch: Callable[[RealDisk, str], object]
) -> None:
    disk, path = RealDisk(), str(tmp_path / "a.db")
    disk.write_file(path + "2", [b""])
    first, second = disk.connect(path), disk.connect(path)
    first.execute("CREATE TABLE t (x)")
    second.close()
    with pytest.raises(InvariantError, match="open in SQLite"):
        touch(disk, path)
    first.close()
    touch(disk, path)


def test_the_wal_handle_is_the_paths_inode(tmp_path: Path) -> None:
    disk, path = RealDisk(), str(tmp_path / "a.db-wal")
    disk.write_file(path, [b"one"])
    disk.sync_file(path)
    first = disk._wals[path]
    disk.sync_file(path)
    assert disk._wals == {path: first}
    os.rename(path, path + ".old")
    with pytest.raises(FileNotFoundError):
        disk.sync_file(path)
    Path(path).write_bytes(b"two")
    disk.sync_file(path)
    assert os.path.samestat(os.fstat(disk._wals[path].handle), os.stat(path))
    disk.remove(path)
    assert disk._wals == {}
    disk.write_file(path, [b"three"])
    disk.sync_file(path)
    disk.close()
    assert disk._wals == {}


def test_a_folder_is_synced_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a name that was made or renamed in it may be gone after a power cut."""
    synced, real = [], os.fsync

    def fsync(handle: int) -> None:
        synced.append(os.fstat(handle).st_ino)
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    RealDisk().sync_folder(str(tmp_path))
    assert synced == [tmp_path.stat().st_ino]


def test_read_only_connections_write_nothing(tmp_path: Path) -> None:
    disk, path = RealDisk(), str(tmp_path / "a.db")
    with pytest.raises(Exception, match="unable to open"):
        disk.connect(path, read_only=True)
    disk.connect(path).execute("CREATE TABLE t (x)")
    with pytest.raises(Exception, match="readonly"):
        disk.connect(path, read_only=True).execute("INSERT INTO t VALUES (1)")
