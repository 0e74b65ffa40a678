"""What fails on a disk or in SQLite, as the error that the rest of the member knows."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from replset.bson import encode
from replset.cli.offline import open_oplog
from replset.errors import (
    CappedPositionLostError,
    CorruptDataError,
    DataMismatchError,
    SnapshotCutError,
    StorageError,
)
from replset.features.crud.spill_file import SpillFile
from replset.ids import OpTime
from replset.oplog_entry import insert_entry, operation_of, transaction_entry
from replset.oplog_row import DamagedEntryError
from replset.storage import oplog, wal
from replset.storage.copies import check_database, copy_database, install_copy, open_copy
from replset.storage.store import Store
from replset.storage.txn import Txn
from tests.unit.storage.conftest import Driver, doc_of


class Failing:
    """A connection whose calls of one name fail, those of `execute` where the statement begins so."""

    def __init__(self, connection: Any, name: str, error: Exception, begins: str = "") -> None:
        self._connection, self._name, self._error, self._begins = connection, name, error, begins

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._connection, name)
        if name != self._name:
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            if not self._begins or str(arguments[0]).startswith(self._begins):
                raise self._error
            return found(*arguments, **options)

        return call


def fails(error: Exception) -> Callable[..., Any]:
    def fail(*_arguments: object, **_options: object) -> None:
        raise error

    return fail


def io_error() -> OSError:
    return OSError(errno.EIO, "input/output error")


# --- the store -------------------------------------------------------------------------------------------------------


def test_a_read_that_fails(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.apply(("create", "db.a"))
    store = driver.store
    with pytest.raises(StorageError, match="IOError"):
        store.query(fails(apsw.IOError("broken")))
    with store.read() as snapshot, pytest.raises(DataMismatchError):
        snapshot._execute("SELECT nothing", ())
    with pytest.raises(DataMismatchError), store.read() as snapshot:
        snapshot.connection.execute("SELECT nothing")
    cut_off = store.read()
    cut_off._cut = True
    with pytest.raises(SnapshotCutError), cut_off:
        raise apsw.InterruptError("interrupted")
    held = [store.read() for _ in range(20)]  # none is idle
    monkeypatch.setattr(store.readers, "_disk", Failing(driver.disk, "connect", apsw.CantOpenError("gone")))
    with pytest.raises(StorageError, match="CantOpenError"):
        store.read()
    for snapshot in held:
        snapshot.close()


def broken(store: Store, name: str, error: Exception, begins: str = "") -> Any:
    real = store._connection
    store._connection = Failing(real, name, error, begins)  # type: ignore[assignment]
    return real


def test_a_group_that_cannot_begin_or_be_taken_back(driver: Driver) -> None:
    store = driver.store
    real = broken(store, "execute", apsw.IOError("broken"), "BEGIN")
    with pytest.raises(StorageError, match="IOError"), store.group():
        raise AssertionError("it has not begun")
    store._connection = real
    broken(store, "execute", apsw.IOError("broken"), "ROLLBACK")
    with pytest.raises(StorageError, match="IOError"), store.group():
        raise ValueError("taken back")
    store._connection = real
    real.execute("ROLLBACK")
    driver.apply(("noop",))


def test_a_group_that_sqlite_gave_up_is_not_gone_on_with(driver: Driver) -> None:
    def give_up(txn: Txn) -> None:
        mark = txn.mark()
        txn.connection.execute("ROLLBACK")
        txn.revert_to(mark)

    with pytest.raises(StorageError, match="gave the transaction up"), driver.store.group() as txn:
        give_up(txn)
    driver.apply(("noop",))


def test_the_last_checkpoint(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """While somebody reads, what is committed is synced in the WAL; other errors are told."""
    store, synced = driver.store, list[str]()
    driver.apply(("noop",))
    real = broken(store, "wal_checkpoint", apsw.BusyError("read"))
    monkeypatch.setattr(store.wal, "sync", lambda: synced.append("wal"))
    store._last_checkpoint()
    assert synced == ["wal"]
    store._connection = real
    broken(store, "wal_checkpoint", apsw.IOError("broken"))
    with pytest.raises(StorageError, match="IOError"):
        store.close()
    real.close(True)


def test_the_wal(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    store = driver.store
    driver.apply(("noop",))
    real = store.wal._connection
    for error, expected in ((apsw.BusyError("read"), False), (apsw.IOError("broken"), StorageError)):
        monkeypatch.setattr(store.wal, "_connection", Failing(real, "wal_checkpoint", error))
        if expected is False:
            assert not store.wal.checkpoint()
            assert not store.wal.last_pass()
            assert store.wal.extent() is None
        else:
            with pytest.raises(StorageError):
                store.wal.checkpoint()
            with pytest.raises(StorageError):
                store.wal.extent()
    monkeypatch.setattr(store.wal, "_connection", real)
    monkeypatch.setattr(wal, "_salt_of", fails(io_error()))
    with pytest.raises(StorageError):
        store.wal.extent()


def test_how_much_a_store_has_behind_a_place(driver: Driver) -> None:
    driver.apply(*[("noop",)] * 5)
    places = [optime for optime, _ in driver.history[1:]]
    store = driver.store
    assert [store.entries_behind(at, most=3) for at in places] == [3, 3, 2, 1, 0]
    assert [store.entries_behind(at, most=9, until=places[2]) for at in places] == [2, 1, 0, 0, 0]
    assert store.has_disk_space()


# --- files -----------------------------------------------------------------------------------------------------------


def test_copies_on_a_failing_disk(driver: Driver, tmp_path: Path) -> None:
    driver.apply(("create", "db.a"), ("put", "db.a", 1, "x"))
    path = str(tmp_path / "copy.db")
    failing: Any = Failing(driver.disk, "sync_file", io_error())
    with pytest.raises(StorageError):
        copy_database(failing, driver.store.path, path, lambda: None)
    assert not driver.disk.exists(path), "nothing is left of it"
    copy_database(driver.disk, driver.store.path, path, lambda: None)
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(StorageError):
        install_copy(Failing(driver.disk, "rename", io_error()), other, path, rollback_id_before=0)  # type: ignore[arg-type]
    with pytest.raises(StorageError), open_copy(driver.disk, path) as connection:
        connection.execute("SELECT nothing")
    (tmp_path / "text.db").write_bytes(b"no database at all, and long enough to be read as a header" * 50)
    with pytest.raises(CorruptDataError):
        check_database(driver.disk, str(tmp_path / "text.db"), 10)
    with pytest.raises(CorruptDataError):
        open_oplog(tmp_path / "text.db").info()


def test_a_temporary_file_that_cannot_be_read(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    file = SpillFile(driver.store)
    place = file.append([b"one", b"two"])
    monkeypatch.setattr(driver.disk, "read_at", fails(io_error()), raising=False)
    with pytest.raises(StorageError):
        list(file.read(place))
    monkeypatch.undo()
    file.close()


# --- the oplog -------------------------------------------------------------------------------------------------------


def test_rows_that_are_gone_or_changed(driver: Driver) -> None:
    driver.apply(*[("noop",)] * 4)
    first, second, third, _ = (optime.ts for optime, _ in driver.history[1:])
    store = driver.store
    store.query(lambda connection: connection.execute("DELETE FROM oplog WHERE ts = ?", (first,)))
    with pytest.raises(CappedPositionLostError):
        store.oplog_rows_at([second, first], max_bytes=1 << 20)
    store.query(lambda connection: connection.execute("UPDATE oplog SET hash = hash + 1 WHERE ts = ?", (second,)))
    with pytest.raises(DamagedEntryError):
        store.oplog_rows_at([third, second], max_bytes=1 << 20)
    change = "UPDATE oplog SET op = CAST(x'ff' AS TEXT) WHERE ts = ?"
    store.query(lambda connection: connection.execute(change, (third,)))
    with pytest.raises(CorruptDataError, match="text that is none"):
        store.query(lambda connection: oplog.check_chain(connection, "", after_ts=third, limit=9))


def test_entries_of_a_collection_are_in_transactions_too(driver: Driver) -> None:
    """Whose bytes are none says nothing of any collection."""
    driver.apply(("create", "db.a"), ("create", "db.c"), ("put", "db.a", 1, "x"))
    with driver.store.group() as txn:
        at = txn.next_optime(1, driver.wall_ms)
        for number, names in enumerate((["db.a", "db.c"], ["db.c"])):
            at = OpTime(1, at.ts + 1)
            rows = [
                operation_of(insert_entry(ns, driver.coll(ns).uuid, doc_of(9 + number, "y"), at, driver.wall_ms))
                for ns in names
            ]
            entry = transaction_entry(rows, at, driver.wall_ms, b"")
            txn.append(entry, at, op="c", ns="admin.$cmd", wall_ms=driver.wall_ms)
        last = OpTime(1, at.ts + 1)
        txn.append(encode({"op": 1}), last, op="c", ns="admin.$cmd", wall_ms=driver.wall_ms)
    found = {}
    for ns in ("db.a", "db.c"):
        rows = driver.store.query(
            lambda connection, ns=ns: oplog.rows_after(connection, 0, limit=99, max_bytes=1 << 20, ns=ns)
        )
        found[ns] = [row.op for row in rows]
    assert found == {"db.a": ["i", "c"], "db.c": ["c", "c"]}
