"""The recording disk loses what was not synced, and nothing else."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from replset.errors import DbPathLockedError
from tests.simulation.kit.disk import FileNode, SimDisk

NewFolder = Callable[[], str]


@pytest.fixture
def new_folder(tmp_path: Path) -> NewFolder:
    numbers = iter(range(10_000))
    return lambda: str(tmp_path / f"life-{next(numbers)}")


@pytest.fixture
def disk(new_folder: NewFolder) -> Iterator[SimDisk]:
    made = SimDisk(new_folder())
    yield made
    made.close()


class Database:
    """A table in WAL mode as the store uses SQLite: synchronous NORMAL, no checkpoints of SQLite's own."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.path = os.path.join(disk.folder, "t.db")
        self.connection = disk.connect(self.path)
        self.connection.pragma("journal_mode", "wal")
        self.connection.pragma("synchronous", "normal")
        self.connection.pragma("wal_autocheckpoint", 0)
        self.connection.execute("CREATE TABLE IF NOT EXISTS t (n INTEGER PRIMARY KEY, filler BLOB)")

    def insert(self, n: int) -> None:
        self.connection.execute("INSERT INTO t VALUES (?, zeroblob(900))", (n,))

    def rows(self) -> list[int]:
        return [n for (n,) in self.connection.execute("SELECT n FROM t ORDER BY n")]

    def sync(self) -> None:
        self.disk.sync_file(f"{self.path}-wal")

    def checkpoint(self, mode: str = "TRUNCATE") -> None:
        self.connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()

    def settle(self) -> None:
        """A first full checkpoint, which makes the names durable too."""
        self.checkpoint()
        self.disk.sync_folder(self.disk.folder)


def crashed(database: Database, folder: str, *, power_loss: bool, seed: int = 1) -> Database:
    """The database as the next life finds it; the old one is closed."""
    after = database.disk.crash(folder, random.Random(seed), power_loss=power_loss)
    database.disk.close()
    return Database(after)


def lose_all_unsynced(node: FileNode) -> bytearray:
    return bytearray(node.durable)


@pytest.mark.parametrize("restart_wal", [False, True], ids=["before-a-wal-restart", "after-a-wal-restart"])
def test_an_unsynced_write_is_gone_after_power_loss(
    disk: SimDisk, new_folder: NewFolder, monkeypatch: pytest.MonkeyPatch, restart_wal: bool
) -> None:
    monkeypatch.setattr(FileNode, "after_power_loss", lambda node, rng: lose_all_unsynced(node))
    database = Database(disk)
    database.settle()
    database.insert(1)
    if restart_wal:
        database.checkpoint("RESTART")
    database.insert(2)
    database.sync()
    database.insert(3)
    assert database.rows() == [1, 2, 3]
    after = crashed(database, new_folder(), power_loss=True)
    assert after.rows() == [1, 2]
    after.disk.close()


def test_a_killed_process_loses_nothing_but_power_loss_later_may(
    disk: SimDisk, new_folder: NewFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(disk)
    database.settle()
    database.insert(1)
    after = crashed(database, new_folder(), power_loss=False)
    assert after.rows() == [1]
    monkeypatch.setattr(FileNode, "after_power_loss", lambda node, rng: lose_all_unsynced(node))
    at_last = crashed(after, new_folder(), power_loss=True)
    assert at_last.rows() == []
    at_last.disk.close()


@pytest.mark.parametrize("seed", range(12))
def test_no_crash_corrupts_and_no_synced_row_is_lost(new_folder: NewFolder, seed: int) -> None:
    """Ten crashes a seed, 120 in all: writes, syncs and checkpoints through two connections, then death."""
    rng = random.Random(seed)
    database = Database(SimDisk(new_folder()))
    database.settle()
    synced: set[int] = set()
    numbers = iter(range(100_000))
    for _ in range(10):
        second = database.disk.connect(database.path)
        second.pragma("synchronous", "normal")
        for _ in range(rng.randrange(60)):
            draw = rng.random()
            if draw < 0.8:
                database.insert(next(numbers))
            elif draw < 0.92:
                database.sync()
                synced = set(database.rows())
            else:
                second.execute(f"PRAGMA wal_checkpoint({rng.choice(['PASSIVE', 'RESTART', 'TRUNCATE'])})").fetchall()
                synced = set(database.rows())
        before = database.rows()
        power_loss = rng.random() < 0.7
        second.close()
        database = crashed(database, new_folder(), power_loss=power_loss, seed=rng.randrange(1 << 30))
        assert database.connection.execute("PRAGMA quick_check").get == "ok"
        rows = database.rows()
        assert set(rows) >= synced
        assert rows == before[: len(rows)]
        assert power_loss or rows == before
    database.disk.close()


def test_the_record_and_the_real_files_agree(disk: SimDisk) -> None:
    database = Database(disk)
    for n in range(50):
        database.insert(n)
    database.checkpoint("PASSIVE")
    database.insert(99)
    names = [name for name in os.listdir(disk.folder) if not name.endswith("-shm")]
    assert sorted(names) == sorted(disk.tree.names)
    for name in names:
        node = disk.tree.names[name]
        assert isinstance(node, FileNode)
        assert bytes(node.written()) == Path(disk.folder, name).read_bytes()


def test_a_new_file_needs_its_own_sync_and_its_folders(disk: SimDisk, new_folder: NewFolder) -> None:
    def path(name: str) -> str:
        return os.path.join(disk.folder, name)

    for name in ("neither", "content", "both"):
        disk.write_file(path(name), [b"hello ", b"world"])
        if name != "neither":
            disk.sync_file(path(name))
        if name == "both":
            # The folder's sync keeps all names made so far; make the others again after it.
            disk.sync_folder(disk.folder)
    disk.write_file(path("late"), [b"x"])
    disk.sync_file(path("late"))
    outcomes: dict[str, set[bytes | None]] = {"neither": set(), "content": set(), "both": set(), "late": set()}
    for seed in range(60):
        after = disk.crash(new_folder(), random.Random(seed), power_loss=True)
        for name, seen in outcomes.items():
            target = os.path.join(after.folder, name)
            seen.add(after.read_file(target) if after.exists(target) else None)
        after.close()
    assert outcomes["both"] == outcomes["content"] == {b"hello world"}
    assert outcomes["late"] == {b"x", None}
    assert {b"", b"hello world"} < outcomes["neither"]
    assert None not in outcomes["neither"]


def test_a_rename_happens_as_a_whole(disk: SimDisk, new_folder: NewFolder) -> None:
    old, new = os.path.join(disk.folder, "manifest.json"), os.path.join(disk.folder, "manifest.json.tmp")
    disk.write_file(old, [b"planned"])
    disk.sync_file(old)
    disk.sync_folder(disk.folder)
    disk.write_file(new, [b"finished"])
    disk.sync_file(new)
    disk.rename(new, old)
    seen = set()
    for seed in range(40):
        after = disk.crash(new_folder(), random.Random(seed), power_loss=True)
        seen.add(after.read_file(os.path.join(after.folder, "manifest.json")))
        after.close()
    assert seen == {b"planned", b"finished"}


def test_a_new_folder_is_a_name_like_any_other(disk: SimDisk, new_folder: NewFolder) -> None:
    inner = os.path.join(disk.folder, "rollback")
    disk.make_folder(inner)
    disk.write_file(os.path.join(inner, "a"), [b"1"])
    disk.sync_file(os.path.join(inner, "a"))
    disk.sync_folder(inner)
    found = set()
    for seed in range(40):
        after = disk.crash(new_folder(), random.Random(seed), power_loss=True)
        found.add(after.exists(os.path.join(after.folder, "rollback", "a")))
        after.close()
    assert found == {True, False}


def test_the_dbpath_is_locked_until_the_process_dies(disk: SimDisk, new_folder: NewFolder) -> None:
    path = os.path.join(disk.folder, "replset.lock")
    held = disk.lock(path)
    with pytest.raises(DbPathLockedError):
        disk.lock(path)
    after = disk.crash(new_folder(), random.Random(1), power_loss=False)
    after.lock(os.path.join(after.folder, "replset.lock"))
    after.close()
    held.release()
    disk.lock(path).release()


def test_shared_memory_does_not_survive(disk: SimDisk, new_folder: NewFolder) -> None:
    database = Database(disk)
    database.insert(1)
    assert os.path.exists(f"{database.path}-shm")
    after = disk.crash(new_folder(), random.Random(1), power_loss=False)
    assert sorted(os.listdir(after.folder)) == ["t.db", "t.db-wal"]
    after.close()


def test_a_file_that_sqlite_has_open_is_not_touched_by_anything_else(disk: SimDisk) -> None:
    database = Database(disk)
    with pytest.raises(Exception, match="open in SQLite"):
        disk.read_file(database.path)
    database.connection.close()
    assert disk.read_file(database.path)


def test_unregistered_after_close(new_folder: NewFolder) -> None:
    made = SimDisk(new_folder())
    Database(made)
    before = len(apsw.vfs_names())
    made.close()
    assert len(apsw.vfs_names()) == before - 1


def test_what_a_failed_sync_should_have_covered_is_on_no_disk(tmp_path: Path) -> None:
    disk = SimDisk(str(tmp_path / "disk"))
    path = str(tmp_path / "disk" / "file")
    disk.write_file(path, [b"first"])
    disk.failing = frozenset({"sync"})
    with pytest.raises(OSError, match="input/output"):
        disk.sync_file(path)
    disk.failing = frozenset()
    disk.write_file(path, [b" second"], append=True)
    disk.sync_file(path)
    disk.sync_folder(disk.folder)
    assert disk.failed == {"file"}
    assert disk.read_file(path) == b"first second", "the process still sees it"
    after = disk.crash(str(tmp_path / "after"), random.Random(1), power_loss=True)
    assert after.read_file(str(tmp_path / "after" / "file")) == bytes(5) + b" second"
    disk.close()
    after.close()


def test_sqlite_learns_of_a_sync_that_failed(tmp_path: Path) -> None:
    disk = SimDisk(str(tmp_path / "disk"))
    connection = disk.connect(str(tmp_path / "disk" / "x.db"))
    connection.pragma("synchronous", "EXTRA")
    connection.execute("CREATE TABLE t (n)")
    disk.failing = frozenset({"sync"})
    with pytest.raises(apsw.IOError):
        connection.execute("INSERT INTO t VALUES (1)")
    disk.close()
