"""A copy is consistent while writes go on; installing one is safe at every step."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from replset.errors import CorruptDataError, InvariantError, StorageError
from replset.ids import OPTIME_NULL
from replset.oplog_entry import noop_entry
from replset.storage.copies import OPLOG_ONLY, check_database, copy_oplog, install_copy, open_copy
from replset.storage.disk import RealDisk
from replset.storage.sqlite import rows_of
from replset.storage.store import Store, StoreOptions
from replset.storage.txn import read_meta
from replset.storage.undo import rollback_done_marks, undo_step
from tests.simulation.kit.disk import SimDisk

from .conftest import WALL, Driver


@pytest.fixture
def source(make_driver: Callable[..., Driver]) -> Driver:
    driver = make_driver("source")
    driver.apply(("create", "db.c"), *(("put", "db.c", number, "x" * 300) for number in range(200)))
    return driver


def test_a_copy_is_consistent_while_writes_go_on(
    source: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replset.storage.copies._PAGES_A_STEP", 8)
    expected, newest = source.documents(), source.store.last_applied
    path = str(tmp_path / "copy.db")
    pauses = 0

    def write() -> None:
        nonlocal pauses
        pauses += 1
        source.apply(*(("put", "db.c", number, "later") for number in range(pauses, 200, 3)))
        source.store.wal.checkpoint()

    info = source.store.copy_to(path, pause=write)
    assert pauses > 5
    data = Path(path).read_bytes()
    assert (info.size, info.sha256, info.newest) == (len(data), hashlib.sha256(data).hexdigest(), newest)
    assert sorted(os.listdir(tmp_path)) == ["copy.db", "source"]

    target = tmp_path / "target"
    target.mkdir()
    install_copy(RealDisk(), target, path, rollback_id_before=0)
    store = Store.open(RealDisk(), target, source.options)
    coll = store.collection("db.c")
    with store.read() as snapshot:
        assert dict(snapshot.scan(coll)) == expected["db.c"]
    assert store.last_applied == newest
    store.close()
    assert source.documents() == source.state


def test_a_copy_that_is_cancelled_leaves_nothing(source: Driver, tmp_path: Path) -> None:
    def cancel() -> None:
        raise StorageError("no room")

    with pytest.raises(StorageError, match="no room"):
        source.store.copy_to(str(tmp_path / "copy.db"), pause=cancel)
    assert os.listdir(tmp_path) == ["source"]
    source.apply(("put", "db.c", 1, "goes on"))


@pytest.mark.parametrize(("mine", "expected"), [(0, 3), (2, 3), (7, 8)])
def test_the_rollback_id_rises_above_both_and_rollbacks_done_are_emptied(
    source: Driver, tmp_path: Path, mine: int, expected: int
) -> None:
    undo_step(source.store, source.history[-2][0], stem="theirs")
    assert source.store.rollback_id == 2
    path = str(tmp_path / "copy.db")
    source.store.copy_to(path)
    install_copy(RealDisk(), tmp_path, path, rollback_id_before=mine)
    store = Store.open(RealDisk(), tmp_path, source.options)
    assert (store.rollback_id, rollback_done_marks(store)) == (expected, [])
    store.close()
    assert [mark.stem for mark in rollback_done_marks(source.store)] == ["theirs"]


def test_undo_and_pruned_through_stay_with_the_copied_data(source: Driver, tmp_path: Path) -> None:
    source.commit(source.history[100][0])
    path = str(tmp_path / "copy.db")
    source.store.copy_to(path)
    install_copy(RealDisk(), tmp_path, path, rollback_id_before=0)
    store = Store.open(RealDisk(), tmp_path, source.options)
    assert store.pruned_through == source.history[100][0].ts
    point, state = source.history[120]
    while undo_step(store, point, stem="r"):
        pass
    coll = store.collection("db.c")
    with store.read() as snapshot:
        assert dict(snapshot.scan(coll)) == state["db.c"]
    store.close()


class PowerLossError(BaseException):
    """Ends the work in the middle, so to speak."""


STEPS = ("remove", "rename", "sync_file", "sync_folder")


@pytest.mark.in_turns
@pytest.mark.parametrize("is_folded", [True, False])
@pytest.mark.parametrize("steps", range(12))
def test_a_death_while_a_database_is_replaced_leaves_one_that_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, is_folded: bool
) -> None:
    """Of a store that was closed on a full disk the first pages of the WAL are in the database, the others are not. Any
    other stays until the copy has its name.
    """
    disk, options = SimDisk(str(tmp_path / "disk")), StoreOptions(min_free_bytes=0)
    source = Store.open(disk, os.path.join(disk.folder, "source"), options)
    append(source, 3)
    dbpath = os.path.join(disk.folder, "data")
    old = Store.open(disk, dbpath, options)
    append(old, 200)
    disk.sync_folder(disk.folder)
    disk.is_full = not is_folded
    old.close()
    disk.is_full = False
    path, copy = os.path.join(dbpath, "replset.db"), os.path.join(dbpath, "copy.db")
    assert is_folded or disk.size(path + "-wal") > 0
    source.copy_to(copy)
    done: list[str] = []

    def counted(name: str, work: Callable[..., None]) -> Callable[..., None]:
        def step(*arguments: str) -> None:
            if len(done) == steps:
                raise PowerLossError
            done.append(name)
            work(*arguments)

        return step

    for name in STEPS:
        monkeypatch.setattr(disk, name, counted(name, getattr(disk, name)))
    with suppress(PowerLossError):
        install_copy(disk, dbpath, copy, rollback_id_before=1, check_entries=0)
    if len(done) < steps:
        assert done[-6:] == ["sync_file", "remove", "remove", "sync_folder", "rename", "sync_folder"] or not is_folded
    for seed in range(8):
        after = disk.crash(str(tmp_path / f"after {seed}"), random.Random(seed), power_loss=seed > 0)
        store = Store.open(after, os.path.join(after.folder, "data"), options)
        entries = len(store.oplog_after(OPTIME_NULL, limit=1_000, max_bytes=1 << 30))
        assert entries in ({3} if len(done) < steps else {3, 200} if is_folded else {0, 3, 200})
        store.close()
        after.close()


def append(store: Store, entries: int) -> None:
    """And synced."""
    for _ in range(entries):
        with store.group() as txn:
            optime = txn.next_optime(1, WALL)
            txn.append(noop_entry({"msg": "x" * 500}, optime, WALL), optime, op="n", ns="", wall_ms=WALL)
    store.wal.sync()


def test_a_copy_of_something_else_is_refused_before_anything_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "copy.db"
    disk = RealDisk()
    disk.connect(str(path)).execute("CREATE TABLE t (x)").connection.close()
    (tmp_path / "replset.db").write_bytes(b"mine")
    with pytest.raises(CorruptDataError, match="no copy of a member's database"):
        install_copy(disk, tmp_path, str(path), rollback_id_before=0)
    assert (tmp_path / "replset.db").read_bytes() == b"mine"


def test_quick_check_and_chain_check_find_damage(source: Driver, tmp_path: Path) -> None:
    path = str(tmp_path / "copy.db")
    source.store.copy_to(path)
    check_database(RealDisk(), path, 1000)
    connection = RealDisk().connect(path)
    newest = source.store.last_applied
    damage = "UPDATE oplog SET entry = CAST(x'%s' AS %s) WHERE ts = ?"
    connection.execute(damage % ("00", "BLOB"), (newest.ts - 5,))
    connection.close()
    check_database(RealDisk(), path, 3)
    with pytest.raises(CorruptDataError, match=r"hash"):
        check_database(RealDisk(), path, 1000)
    connection = RealDisk().connect(path)
    connection.execute(damage % ("FF", "TEXT"), (newest.ts - 5,))
    connection.close()
    with pytest.raises(CorruptDataError, match="hash"):
        check_database(RealDisk(), path, 1000)
    connection = RealDisk().connect(path)
    connection.execute("DELETE FROM oplog WHERE ts = ?", (newest.ts - 5,))
    connection.close()
    with pytest.raises(CorruptDataError, match=f"chain breaks at 1:{newest.seconds}:{newest.increment - 4}"):
        check_database(RealDisk(), path, 1000)
    with open(path, "r+b") as file:
        file.seek(4096 * 20)
        file.write(b"\xaa" * 4096 * 3)
    with pytest.raises(CorruptDataError, match="damaged"):
        check_database(RealDisk(), path, 1000)


def test_nothing_is_installed_over_an_open_store(source: Driver, tmp_path: Path) -> None:
    path = str(tmp_path / "copy.db")
    source.store.copy_to(path)
    with pytest.raises(InvariantError, match="open in SQLite"):
        install_copy(source.disk, source.folder, path, rollback_id_before=0)
    assert source.store.oplog_after(OPTIME_NULL, limit=1, max_bytes=1)


@pytest.mark.parametrize(
    ("committed", "entries", "copied"),
    [
        pytest.param(201, 0, 1, id="never-none"),
        pytest.param(191, 0, 11, id="all-from-the-commit-point-on"),
        pytest.param(191, 30, 30, id="so-many-bytes"),
        pytest.param(201, 30, 30, id="bytes-and-a-commit-point-behind-them"),
        pytest.param(0, 0, 201, id="nothing-is-committed"),
        pytest.param(201, 1_000, 201, id="as-many-as-there-are"),
    ],
)
def test_a_copy_for_a_witness_has_the_newest_entries(
    source: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, committed: int, entries: int, copied: int
) -> None:
    monkeypatch.setattr("replset.storage.copies._ROWS_A_STEP", 20)
    path, pauses = tmp_path / "copy.db", list[int]()
    path.write_bytes(b"of an earlier copy")
    undo_step(source.store, source.history[-1][0], stem="theirs")
    rows = source.store.oplog_after(OPTIME_NULL, limit=1_000, max_bytes=1 << 30)
    size = sum(len(row.entry) for row in rows[-entries:]) if entries else 0
    disk, at = source.disk, source.history[committed][0]
    copy_oplog(disk, str(source.folder / "replset.db"), str(path), at.ts, size, lambda: pauses.append(1))
    assert len(pauses) == -(-copied // 20)
    with open_copy(disk, str(path), read_only=True) as connection:
        found = [ts for (ts,) in rows_of(connection, "SELECT ts FROM oplog ORDER BY ts")]
        meta = {name: read_meta(connection, name) for name in ("trimmed_through", "rollback_id", OPLOG_ONLY)}
        before = None if copied == len(rows) else rows[-copied - 1].ts
        assert meta == {"trimmed_through": before, "rollback_id": source.store.rollback_id, OPLOG_ONLY: 1}
    assert found == [row.ts for row in rows[-copied:]]
