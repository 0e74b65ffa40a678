"""The last pass of a checkpoint on a slow disk, a store that somebody else writes, and readers that keep the WAL."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from replset.errors import SnapshotCutError, StoreBusyError
from replset.ids import OPTIME_NULL
from replset.oplog_entry import noop_entry
from replset.storage.disk import RealDisk
from replset.storage.store import Store, StoreOptions

from .conftest import WALL, Driver

WAIT_S = 30
"""Only how long a test that fails takes to say so."""


class BlockedSyncs:
    """A SQLite VFS whose syncs outside of the main thread wait for `go`; `begun` says that one does."""

    def __init__(self) -> None:
        self.go, self.begun = threading.Event(), threading.Event()
        self.go.set()
        blocked = self

        class File(apsw.VFSFile):
            def xSync(self, flags: int) -> None:
                if threading.current_thread() is not threading.main_thread():
                    blocked.begun.set()
                    blocked.go.wait(WAIT_S)
                super().xSync(flags)

        class Vfs(apsw.VFS):
            def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
                return File("", name, flags)

        self.vfs = Vfs("blocked", "", maxpathname=0)

    def disk(self) -> RealDisk:
        class BlockedDisk(RealDisk):
            def connect(self, path: str, *, read_only: bool = False) -> apsw.Connection:
                connection = apsw.Connection(path, vfs="blocked")
                with self._guard:
                    self._connections.setdefault(os.path.abspath(path), weakref.WeakSet()).add(connection)
                return connection

        return BlockedDisk()


@pytest.fixture
def blocked() -> Iterator[BlockedSyncs]:
    made = BlockedSyncs()
    yield made
    made.go.set()
    made.vfs.unregister()


def append(store: Store, size: int = 100) -> None:
    with store.group() as txn:
        optime = txn.next_optime(1, WALL)
        txn.append(noop_entry({"msg": "x" * size}, optime, WALL), optime, op="n", ns="", wall_ms=WALL)


def test_a_slow_last_pass_locks_no_writer_out(tmp_path: Path, blocked: BlockedSyncs) -> None:
    store = Store.open(blocked.disk(), tmp_path, StoreOptions(min_free_bytes=0))
    for _ in range(20):
        append(store)
    blocked.go.clear()
    done: list[bool] = []
    worker = threading.Thread(target=lambda: done.append(store.wal.last_pass()))
    worker.start()
    assert blocked.begun.wait(WAIT_S)
    append(store)  # a secondary's page, a no-op, a step of undo: none of them finds the store locked
    blocked.go.set()
    worker.join(WAIT_S)
    assert done == [True]
    append(store)
    assert store.wal.size < 20_000, "the WAL began anew"
    store.close()


def test_a_store_with_another_writer_is_busy_and_not_broken(driver: Driver) -> None:
    other = apsw.Connection(driver.store.path)
    other.execute("BEGIN IMMEDIATE")
    before = driver.store.last_applied
    with pytest.raises(StoreBusyError, match="write lock"):
        append(driver.store)
    other.execute("ROLLBACK")
    other.close()
    assert driver.store.last_applied == before
    append(driver.store)
    assert driver.store.last_applied > before


def test_a_copy_that_writing_outruns_is_given_up_so_that_the_wal_starts_anew(
    make_driver: Callable[..., Driver], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replset.storage.copies._PAGES_A_STEP", 4)
    limit = 64 << 10
    driver = make_driver("source", StoreOptions(min_free_bytes=0, wal_limit_bytes=limit))
    store = driver.store
    for _ in range(30):
        append(store, 1000)
    store.wal.last_pass()
    allowed = limit + os.path.getsize(store.path)
    largest = 0

    def write() -> None:
        nonlocal largest
        for _ in range(10):
            append(store, 1000)
        largest = max(largest, store.wal.size)
        if limit < store.wal.size <= allowed:
            assert not store.wal.needs_last_pass, "commits are not held for a pass that the copy keeps from its end"

    with pytest.raises(SnapshotCutError, match="given up"):
        store.copy_to(str(tmp_path / "copy.db"), pause=write)
    assert allowed < largest < allowed + limit
    assert store.wal.needs_last_pass
    assert store.wal.last_pass()
    assert not os.path.exists(tmp_path / "copy.db")
    assert store.copy_to(str(tmp_path / "copy.db")).newest == store.last_applied != OPTIME_NULL
