"""What is reported durable is there after the process was killed; nothing half-done is. Checkpoints, and the lock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from replset.bson import decode
from replset.errors import CorruptDataError, DbPathLockedError, StorageError
from replset.ids import OPTIME_NULL
from replset.oplog_entry import OplogEntry
from replset.storage import LOCK_FILE, wal
from replset.storage.disk import RealDisk
from replset.storage.member_file import MemberFile
from replset.storage.sqlite import check_sqlite_version
from replset.storage.store import Store, StoreOptions, lock_dbpath

from .conftest import Driver, key_of

WRITER = """
import sys
from replset.bson import encode, encode_key
from replset.ids import OpTime
from replset.oplog_entry import insert_entry, noop_entry
from replset.storage.disk import RealDisk
from replset.storage.retention import remove_old_data
from replset.storage.store import Store, StoreOptions, lock_dbpath

folder, checkpoints = sys.argv[1], sys.argv[2] == "checkpoints"
disk = RealDisk()
lock = lock_dbpath(disk, folder)
store = Store.open(disk, folder, StoreOptions(min_free_bytes=0, snapshot_history_s=0))
with store.group() as txn:
    coll = store.collection("db.c")
    if coll is None:
        coll = txn.create_collection("db.c", b"u" * 16, {}, ts=1)
        txn.append(noop_entry({"msg": "first"}, OpTime(1, 1), 0), OpTime(1, 1), op="n", ns="", wall_ms=0)
number = store.last_applied.ts
while True:
    with store.group() as txn:
        for _ in range(7):
            number += 1
            optime = txn.next_optime(1, 0)
            doc = encode({"_id": number, "pad": "x" * 200})
            txn.insert_new(coll, encode_key(number), doc, optime.ts)
            txn.append(insert_entry("db.c", coll.uuid, doc, optime, 0), optime, op="i", ns="db.c", key=b"k", wall_ms=0)
    covered = store.last_applied
    if number % 5 == 0:
        store.wal.sync()
        print(covered.ts, flush=True)
    if checkpoints and number % 3 == 0:
        store.wal.checkpoint()
        store.set_commit_point(covered)
        remove_old_data(store, 0)
"""


def start_writer(folder: Path, mode: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", WRITER, str(folder), mode], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("mode", ["plain", "checkpoints"])
def test_kill_at_any_moment_loses_nothing_durable_and_leaves_nothing_half_done(tmp_path: Path, mode: str) -> None:
    reported = 0
    for reports in (3, 11, 24):
        process = start_writer(tmp_path, mode)
        for _ in range(reports):
            reported = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split("\n")
        process.wait()
        process.stdout.close()
        reported = max([reported, *(int(line) for line in rest[:-1] if line)])

        store = Store.open(RealDisk(), tmp_path, StoreOptions(min_free_bytes=0))
        assert store.last_applied.ts >= reported
        check_whole(store)
        store.close()


def check_whole(store: Store) -> None:
    """One entry and then groups of seven, whole; documents are exactly the inserts of the oplog."""
    rows = store.oplog_after(OPTIME_NULL, limit=1 << 20, max_bytes=1 << 30)
    assert [row.ts for row in rows] == list(range(1, len(rows) + 1))
    assert len(rows) % 7 == 1
    coll = store.collection("db.c")
    inserted = {OplogEntry(row.entry).o.raw for row in rows[1:]}
    with store.read() as snapshot:
        assert {doc for _, doc in snapshot.scan(coll)} == inserted
        assert snapshot.check_chain(0, 1 << 20) == rows[-1].ts
    assert decode(rows[-1].entry)["o"]["_id"] == len(rows)


def test_a_second_process_on_the_same_dbpath_is_refused(tmp_path: Path) -> None:
    process = start_writer(tmp_path, "plain")
    process.stdout.readline()
    disk = RealDisk()
    with pytest.raises(DbPathLockedError, match=f"pid {process.pid}"):
        lock_dbpath(disk, tmp_path)
    process.kill()
    process.wait()
    process.stdout.close()
    lock = lock_dbpath(disk, tmp_path)
    with pytest.raises(DbPathLockedError, match=f"pid {os.getpid()}"):
        lock_dbpath(RealDisk(), tmp_path)
    lock.release()
    lock_dbpath(disk, tmp_path).release()


class CountingDisk(RealDisk):
    """Notes which files were synced."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: list[str] = []

    def sync_file(self, path: str) -> None:
        super().sync_file(path)
        self.synced.append(os.path.basename(path))

    def sync_folder(self, path: str) -> None:
        super().sync_folder(path)
        self.synced.append("folder")


def test_the_wal_is_synced_through_the_disk_and_its_name_before(tmp_path: Path) -> None:
    disk = CountingDisk()
    store = Store.open(disk, tmp_path, StoreOptions(min_free_bytes=0))
    assert disk.synced == ["folder"]
    assert disk.exists(f"{store.path}-wal")
    with store.group() as txn:
        txn.append(b"entry", txn.next_optime(1, 0), op="n", ns="", wall_ms=0)
    store.wal.sync()
    assert disk.synced == ["folder", "replset.db-wal"]
    store.close()
    with pytest.raises(StorageError, match="wal"):
        store.wal.sync()  # closed: the WAL is gone, and nobody must take that for a success


def test_open_ends_with_a_full_checkpoint(make_driver: Callable[..., Driver]) -> None:
    driver = make_driver()
    driver.apply(("create", "db.c"), *(("put", "db.c", number, "x" * 500) for number in range(200)))
    wal = f"{driver.store.path}-wal"
    assert os.path.getsize(wal) > 100_000
    again = Store.open(driver.disk, driver.folder, driver.options)
    assert os.path.getsize(wal) == 0
    again.close()


def test_a_last_pass_lets_the_wal_start_anew(make_driver: Callable[..., Driver]) -> None:
    options = StoreOptions(min_free_bytes=0, checkpoint_bytes=100_000, wal_limit_bytes=300_000)
    driver = make_driver(options=options)
    store = driver.store
    driver.apply(("create", "db.c"))
    assert not store.wal.needs_checkpoint
    number = 0
    snapshot = None
    while not store.wal.needs_last_pass:
        number += 1
        driver.apply(("put", "db.c", number, "x" * 500))
        if store.wal.needs_checkpoint:
            assert store.wal.checkpoint() == (snapshot is None)
            assert not store.wal.needs_checkpoint
            snapshot = snapshot or store.read()  # an old reader: it keeps the WAL from starting anew
    assert store.wal.size > 300_000
    assert store.readers.cut() > 0
    assert store.wal.last_pass()
    driver.apply(("put", "db.c", 0, "x"))
    assert store.wal.size < 50_000
    assert not store.wal.needs_last_pass
    snapshot.close()
    assert driver.documents() == driver.state
    driver.reopen()
    assert driver.documents() == driver.state


def test_a_reader_in_the_wal_leaves_the_last_pass_unfinished(driver: Driver) -> None:
    driver.apply(("create", "db.c"), ("put", "db.c", 1, "x"))
    with driver.store.read() as snapshot:
        driver.apply(("put", "db.c", 2, "x"))
        assert not driver.store.wal.last_pass()
        assert snapshot.get(driver.coll("db.c"), key_of(2)) is None
    assert driver.store.wal.last_pass()


def test_a_closed_store_opens_no_file_again(tmp_path: Path) -> None:
    """Nor does it make a WAL beside a database that is just being replaced."""
    store = Store.open(RealDisk(), tmp_path, StoreOptions(min_free_bytes=0))
    store.close()
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(StorageError):
        store.read()
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_commits_go_on_beside_a_checkpoint_and_readers_come_and_go(driver: Driver) -> None:
    driver.apply(("create", "db.c"))
    snapshots = [driver.store.read() for _ in range(8)]
    for number in range(50):
        driver.apply(("put", "db.c", number, "x"))
        driver.store.wal.checkpoint()
    for snapshot in snapshots:
        snapshot.close()
    assert len(driver.store.readers._idle) == 4
    assert driver.documents() == driver.state


def damaged(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(b"\xff" * 4096)


@pytest.mark.parametrize("offset", [0, 4096], ids=["header", "schema-and-tables"])
def test_a_damaged_file_is_corrupt_data_with_name_and_reason(make_driver: Callable[..., Driver], offset: int) -> None:
    driver = make_driver()
    driver.apply(("create", "db.c"), *(("put", "db.c", number, "x" * 500) for number in range(100)))
    driver.store.close()
    damaged(driver.folder / "replset.db", offset)
    with pytest.raises(CorruptDataError, match=r"replset\.db is damaged: .+"):
        Store.open(RealDisk(), driver.folder, driver.options)


@pytest.mark.parametrize("version", ["3.51.2", "3.40.0", "3.7.17"])
def test_an_old_sqlite_is_refused_in_one_line(version: str) -> None:
    with pytest.raises(StorageError) as caught:
        check_sqlite_version(version)
    assert version in caught.value.message
    assert "3.51.3" in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("opened", [Store, MemberFile])
def test_nothing_is_made_by_an_old_sqlite(
    opened: type[Store | MemberFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apsw, "sqlitelibversion", lambda: "3.40.0")
    with pytest.raises(StorageError, match=r"SQLite 3\.40\.0 is too old"):
        opened.open(RealDisk(), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} <= {LOCK_FILE}


def test_the_loops_connection_waits_for_no_lock(make_driver: Callable[..., Driver]) -> None:
    assert make_driver().store._connection.pragma("busy_timeout") == 0


@pytest.mark.parametrize("version", ["3.51.3", "3.52.0", "4.0.0", None])
def test_a_new_sqlite_is_taken(version: str | None) -> None:
    assert check_sqlite_version(version) is None


def after_a_crash(driver: Driver, folder: Path, part: float) -> Path:
    """Copy the files as a crash leaves them, with that part of the WAL, and return the new folder."""
    folder.mkdir()
    for name in ("replset.db", "replset.db-wal"):
        data = (driver.folder / name).read_bytes()
        (folder / name).write_bytes(data[: int(len(data) * part)] if name.endswith("-wal") else data)
    return folder


def test_a_wal_that_is_cut_behind_its_checkpoint_is_noticed(driver: Driver, tmp_path: Path) -> None:
    """The newest entries may be in the database then, and only older ones of what is left of the WAL in the way."""
    driver.apply(("create", "db.c"))
    for number in range(200):
        driver.apply(("put", "db.c", number, "x" * 500))
    store = driver.store
    extent = store.wal.extent()
    assert extent
    assert store.wal.checkpoint()
    for place, part in enumerate((0.3, 0.9)):
        cut = after_a_crash(driver, tmp_path / f"cut{place}", part)
        before = {file.name: file.read_bytes() for file in cut.iterdir()}
        with pytest.raises(CorruptDataError, match="was cut"):
            Store.open(RealDisk(), cut, driver.options, extent)
        assert {name: (cut / name).read_bytes() for name in before} == before, "it starts again with the missing file"
    for name, part in (("whole", 1.0), ("gone", 0.0)):
        again = Store.open(RealDisk(), after_a_crash(driver, tmp_path / name, part), driver.options, extent)
        assert again.last_applied == store.last_applied
        again.close()


def test_a_wal_that_began_anew_since_is_not_compared(driver: Driver, tmp_path: Path) -> None:
    driver.apply(("create", "db.c"))
    for number in range(50):
        driver.apply(("put", "db.c", number, "x" * 500))
    extent = driver.store.wal.extent()
    assert extent
    assert driver.store.wal.checkpoint()
    driver.apply(("put", "db.c", 50, "x"))
    assert driver.store.wal.extent() != extent
    again = Store.open(RealDisk(), after_a_crash(driver, tmp_path / "again", 1.0), driver.options, extent)
    assert again.last_applied == driver.store.last_applied
    again.close()


def test_a_wal_whose_loss_the_mark_notices_is_opened(driver: Driver, tmp_path: Path) -> None:
    """The member says then what is lost, and copies anew; a lone one waits for a person."""
    driver.apply(("create", "db.c"))
    for number in range(50):
        driver.apply(("put", "db.c", number, "x" * 500))
    store = driver.store
    extent = store.wal.extent()
    assert extent
    cut = after_a_crash(driver, tmp_path / "cut", 0.3)  # nothing was copied into the database yet
    again = Store.open(RealDisk(), cut, driver.options, extent, store.last_applied)
    assert again.last_applied < store.last_applied
    again.close()
    assert not (cut / "replset.db-wal").exists()


def test_what_another_connection_holds_of_the_wal_is_not_known(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was noted before stays then."""
    driver.apply(("noop",))
    assert driver.store.wal.extent()

    def held(_connection: apsw.Connection) -> int:
        raise apsw.BusyError

    monkeypatch.setattr(wal, "_pages_of", held)
    assert driver.store.wal.extent() is None
