"""Groups: an entry, its effect and its undo rows commit in one transaction, or nothing of them does."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import apsw
import pytest
from xxhash import xxh3_64_intdigest

from replset.bson import MAX_ENTRY_SIZE, InvalidBSONError, RawDocument
from replset.errors import (
    DataMismatchError,
    InvariantError,
    NamespaceExistsError,
    OutOfDiskSpaceError,
    ReplError,
    StorageError,
)
from replset.ids import OPTIME_NULL, OpTime, pack_ts
from replset.oplog_entry import insert_entry
from replset.oplog_row import DamagedEntryError, OplogRow
from replset.storage.disk import RealDisk
from replset.storage.oplog import ROW_BYTES
from replset.storage.sqlite import first_row
from replset.storage.store import Store, StoreOptions
from replset.storage.txn import Txn
from replset.storage.undo import undo_step

from .conftest import WALL, Driver, doc_of, key_of


def raw(driver: Driver, sql: str) -> list[tuple[object, ...]]:
    """What is committed, seen by a connection of its own."""
    connection = driver.disk.connect(driver.store.path)
    try:
        return list(connection.execute(sql))
    finally:
        connection.close()


class BreakableFile(apsw.VFSFile):
    """A file of the machine's own VFS whose writes fail on demand."""

    def __init__(self, disk: BreakableDisk, name: object, flags: list[int]) -> None:
        self._disk = disk
        super().__init__("unix", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        if self._disk.failure is not None:
            raise self._disk.failure("a write failed")
        super().xWrite(data, offset)


class BreakableVfs(apsw.VFS):
    def __init__(self, disk: BreakableDisk) -> None:
        self._disk = disk
        super().__init__(f"breakable-{id(disk)}", "unix")

    def xOpen(self, name: object, flags: list[int]) -> BreakableFile:
        return BreakableFile(self._disk, name, flags)

    def excepthook(self, *_error: object) -> None:
        return


class BreakableDisk(RealDisk):
    """A real disk whose SQLite writes fail while `failure` is set, and whose free space can be told."""

    def __init__(self) -> None:
        super().__init__()
        self.failure: type[Exception] | None = None
        self.free = 1 << 40
        self._vfs = BreakableVfs(self)

    def connect(self, path: str, *, read_only: bool = False) -> apsw.Connection:
        return apsw.Connection(path, vfs=f"breakable-{id(self)}")

    def free_bytes(self, path: str) -> int:
        return self.free


def test_changed_keys_are_those_of_this_group_too(driver: Driver) -> None:
    """A search that goes on from group to group looks at them again, whoever changed them in its own group."""
    driver.apply(("create", "db.c"), ("put", "db.c", 1, "a"))
    seen = driver.store.last_applied.ts
    driver.apply(("put", "db.c", 2, "a"))
    with driver.store.group() as txn:
        driver.run(txn, "put", "db.c", 3, "a")
        driver.run(txn, "delete", "db.c", 1)
        coll = txn.catalog.by_ns["db.c"]
        assert txn.changed_keys(coll, seen) == {key_of(1), key_of(2), key_of(3)}
        assert txn.changed_keys(coll, txn.last.ts) == set()


def test_an_entry_its_effect_and_its_undo_commit_in_one_transaction(driver: Driver) -> None:
    with driver.store.group() as txn:
        driver.run(txn, "create", "db.c")
        driver.run(txn, "put", "db.c", 1, "a")
        assert raw(driver, "SELECT count(*) FROM oplog") == [(0,)]
        assert raw(driver, "SELECT count(*) FROM catalog") == [(0,)]
    assert raw(driver, "SELECT op, ns FROM oplog ORDER BY ts") == [("c", "db.$cmd"), ("i", "db.c")]
    assert raw(driver, "SELECT kind, key, before FROM undo ORDER BY ts") == [
        ("create", None, None),
        ("doc", key_of(1), None),
    ]
    assert driver.documents() == driver.state


def test_an_exception_takes_the_whole_group_back(driver: Driver) -> None:
    driver.apply(("create", "db.c"), ("put", "db.c", 1, "a"))
    head = driver.store.last_applied, driver.store.chain

    def fail() -> None:
        with driver.store.group() as txn:
            coll = driver.coll("db.c")
            optime = txn.next_optime(1, WALL)
            txn.put(coll, key_of(1), doc_of(1, "b"), ts=optime.ts, before=txn.get(coll, key_of(1)))
            txn.create_collection("db.other", b"o" * 16, {}, ts=optime.ts)
            txn.append(b"entry", optime, op="u", ns="db.c", key=key_of(1), wall_ms=WALL)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (driver.store.last_applied, driver.store.chain) == head
    assert driver.store.collection("db.other") is None
    assert driver.documents() == driver.state
    driver.apply(("put", "db.c", 2, "after"))
    assert driver.documents() == driver.state


def test_a_failing_operation_is_undone_by_savepoint_and_fails_alone(driver: Driver) -> None:
    driver.apply(("create", "db.c"), ("put", "db.c", 1, "a"), ("put", "db.c", 2, "b"))
    before = driver.documents()

    def fail(txn: Txn) -> None:
        coll = driver.coll("db.c")
        mark = txn.mark()
        try:
            optime = txn.next_optime(1, WALL)
            txn.put(coll, key_of(1), doc_of(1, "changed"), ts=optime.ts, before=before["db.c"][key_of(1)])
            txn.remove(coll, key_of(2), ts=optime.ts, before=before["db.c"][key_of(2)])
            assert txn.insert_new(coll, key_of(3), doc_of(3, "new"), optime.ts)
            other = txn.create_collection("db.other", b"o" * 16, {}, ts=optime.ts)
            txn.put(other, key_of(1), doc_of(1, "x"), ts=optime.ts, before=None)
            txn.drop_collection(coll, ts=optime.ts)
            txn.set_meta("name", "value")
            txn.append(b"entry", optime, op="u", ns="db.c", key=key_of(1), wall_ms=WALL)
            txn.create_collection("db.other", b"p" * 16, {}, ts=optime.ts)
        except NamespaceExistsError:
            txn.revert_to(mark)
            raise

    with driver.store.group() as txn:
        with pytest.raises(NamespaceExistsError):
            fail(txn)
        assert txn.meta("name") is None
        driver.run(txn, "put", "db.c", 4, "the next one in the same group")
    assert driver.documents() == driver.state
    assert len(raw(driver, "SELECT ts FROM oplog")) == 4
    assert raw(driver, "SELECT count(*) FROM undo") == [(4,)]


def test_insert_new_refuses_a_key_that_is_there(driver: Driver) -> None:
    driver.apply(("create", "db.c"), ("put", "db.c", 1, "a"))
    with driver.store.group() as txn:
        ts = txn.next_optime(1, WALL).ts
        txn.append(b"entry", OpTime(1, ts), op="n", ns="", wall_ms=WALL)
        assert not txn.insert_new(driver.coll("db.c"), key_of(1), doc_of(1, "b"), ts)
        assert txn.insert_new(driver.coll("db.c"), key_of(2), doc_of(2, "b"), ts)
        assert not txn.insert_new(driver.coll("db.c"), key_of(2), doc_of(2, "c"), ts)
    assert driver.documents()["db.c"] == {key_of(1): doc_of(1, "a"), key_of(2): doc_of(2, "b")}


def test_put_and_remove_fail_the_group_when_the_document_is_not_there(driver: Driver) -> None:
    """It is the disk that lost it; the member goes on."""
    driver.apply(("create", "db.c"))
    coll = driver.coll("db.c")
    with pytest.raises(DataMismatchError), driver.store.group() as txn:
        txn.put(coll, key_of(1), doc_of(1, "a"), ts=txn.next_optime(1, WALL).ts, before=b"x")
    with pytest.raises(DataMismatchError), driver.store.group() as txn:
        txn.remove(coll, key_of(1), ts=txn.next_optime(1, WALL).ts, before=b"x")


def test_scan_goes_by_keys_and_allows_writes_behind_it(driver: Driver) -> None:
    driver.apply(("create", "db.c"), *(("put", "db.c", number, "x") for number in range(600)))
    coll = driver.coll("db.c")
    seen = []
    with driver.store.group() as txn:
        driver.run(txn, "noop")
        for key, doc in txn.scan(coll):
            seen.append(key)
            txn.remove(coll, key, ts=txn.last.ts, before=doc)
        assert list(txn.scan(coll)) == []
    assert seen == [key_of(number) for number in range(600)]


@pytest.mark.parametrize("failure", [apsw.IOError, apsw.FullError])
def test_a_failed_commit_fails_the_group_and_reloads_chain_head_and_ts(
    tmp_path: Path, failure: type[Exception]
) -> None:
    disk = BreakableDisk()
    store = Store.open(disk, tmp_path, StoreOptions(min_free_bytes=0))
    entry = b"e" * 40
    with store.group() as txn:
        txn.create_collection("db.c", b"u" * 16, {}, ts=1)
        txn.append(entry, OpTime(1, 1), op="c", ns="db.$cmd", wall_ms=1)
    head = store.last_applied, store.last_wall_ms, store.chain, store.oplog_bytes

    def create_second() -> None:
        with store.group() as txn:
            txn.create_collection("db.d", b"v" * 16, {}, ts=2)
            txn.append(entry, OpTime(2, 2), op="c", ns="db.$cmd", wall_ms=2)

    disk.failure = failure
    expected = OutOfDiskSpaceError if failure is apsw.FullError else StorageError
    with pytest.raises(expected, match=r"replset\.db"):
        create_second()
    disk.failure = None

    assert (store.last_applied, store.last_wall_ms, store.chain, store.oplog_bytes) == head
    assert [coll.ns for coll in store.collections()] == ["db.c"]
    with store.group() as txn:
        assert txn.next_optime(2, 0) == OpTime(2, 2)
        txn.append(entry, OpTime(2, 2), op="c", ns="db.$cmd", wall_ms=2)
    with store.read() as snapshot:
        assert snapshot.check_chain(0, 10) == 2
    store.close()


class FailingCommits:
    """A connection whose COMMIT takes effect and then raises."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> object:
        return getattr(self._connection, name)

    def execute(self, sql: str, *arguments: object) -> object:
        found = self._connection.execute(sql, *arguments)  # type: ignore[arg-type]
        if sql == "COMMIT":
            raise apsw.IOError("a commit failed")
        return found


def test_behind_a_failed_commit_that_took_effect_the_next_group_goes_on(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.apply(("create", "db.c"), ("put", "db.c", 1, "a"))
    with monkeypatch.context() as patched:
        patched.setattr(driver.store, "_connection", FailingCommits(driver.store._connection))
        with pytest.raises(StorageError, match="a commit failed"):
            driver.apply(("create", "db.d"), ("put", "db.d", 2, "b"))
    assert driver.store.last_applied == driver.history[-1][0]
    driver.apply(("put", "db.d", 3, "c"))
    with driver.store.read() as snapshot:
        assert snapshot.check_chain(0, 10) == driver.store.last_applied.ts
    assert [raw_ts for (raw_ts,) in raw(driver, "SELECT ts FROM oplog")] == [at.ts for at, _ in driver.history[1:]]


def test_writes_are_refused_while_the_disk_is_nearly_full_before_anything_is_damaged(tmp_path: Path) -> None:
    disk = BreakableDisk()
    store = Store.open(disk, tmp_path, StoreOptions(min_free_bytes=100 << 20, snapshot_history_s=0))
    for ts in (1, 2):
        with store.group() as txn:
            txn.append(b"entry", OpTime(1, ts), op="n", ns="", wall_ms=1)
    disk.free = (100 << 20) - 1
    with pytest.raises(OutOfDiskSpaceError, match="100 MiB"), store.group():
        pytest.fail("the group must not begin")
    assert store.last_applied == OpTime(1, 2)
    assert not undo_step(store, OpTime(1, 1), stem="r")  # what must go on goes on
    disk.free = 100 << 20
    with store.group() as txn:
        txn.append(b"entry", OpTime(2, 5), op="n", ns="", wall_ms=1)
    store.close()


def test_hash_and_chain_are_as_designed(driver: Driver) -> None:
    driver.apply(("create", "db.c"), ("put", "db.c", 1, "a"))
    driver.apply(*(("put", "db.c", number, "b") for number in range(20)))
    chain = 0
    for row in driver.store.oplog_after(OPTIME_NULL, limit=100, max_bytes=1 << 30):
        hashed = xxh3_64_intdigest(row.entry)
        chain = xxh3_64_intdigest(chain.to_bytes(8, "little") + hashed.to_bytes(8, "little"))
        assert (row.hash % 2**64, row.chain % 2**64) == (hashed, chain)
    assert driver.store.chain % 2**64 == chain


def test_the_next_optime_takes_the_wall_clocks_second_and_never_goes_back(driver: Driver) -> None:
    with driver.store.group() as txn:
        first = txn.next_optime(1, 5_999)
        assert first == OpTime(1, pack_ts(5, 1))
        txn.append(b"entry", first, op="n", ns="", wall_ms=5_999)
        assert txn.next_optime(1, 5_999) == OpTime(1, pack_ts(5, 2))
        assert txn.next_optime(2, 3_000) == OpTime(2, pack_ts(5, 2))
        assert txn.next_optime(1, 6_000) == OpTime(1, pack_ts(6, 1))
    assert driver.store.last_applied == first


@pytest.mark.parametrize("optime", [OpTime(1, 5), OpTime(1, 4), OpTime(0, 6)])
def test_entries_only_move_forward(driver: Driver, optime: OpTime) -> None:
    with driver.store.group() as txn:
        txn.append(b"entry", OpTime(1, 5), op="n", ns="", wall_ms=1)
    with pytest.raises(InvariantError), driver.store.group() as txn:
        txn.append(b"entry", optime, op="n", ns="", wall_ms=1)


@pytest.mark.parametrize("place", [-1, 1])
def test_an_undo_row_without_its_entry_fails_the_group(driver: Driver, place: int) -> None:
    """A rollback would take the change back with another entry, or never."""
    driver.apply(("create", "db.c"))
    before = raw(driver, "SELECT ts FROM oplog"), raw(driver, "SELECT ts FROM undo")

    def insert() -> None:
        with driver.store.group() as txn:
            optime = txn.next_optime(1, WALL)
            txn.insert_new(driver.coll("db.c"), key_of(1), doc_of(1, "a"), optime.ts + place)
            txn.append(b"entry", optime, op="i", ns="db.c", key=key_of(1), wall_ms=WALL)

    with pytest.raises(InvariantError, match="undo row"):
        insert()
    assert (raw(driver, "SELECT ts FROM oplog"), raw(driver, "SELECT ts FROM undo")) == before
    assert driver.documents() == driver.state


def test_a_run_of_inserts_moves_forward_too(driver: Driver) -> None:
    driver.apply(("create", "db.c"))
    at = driver.store.last_applied
    row = (at.ts, at.term, "i", "db.c", key_of(1), WALL, b"entry")
    with pytest.raises(InvariantError, match="behind the newest"), driver.store.group() as txn:
        txn.insert_run(driver.coll("db.c"), [(key_of(1), doc_of(1, "a"))], [row])
    assert driver.store.last_applied == at
    assert driver.documents() == driver.state


def test_an_entry_is_at_most_16_mib(driver: Driver) -> None:
    with pytest.raises(ReplError) as caught, driver.store.group() as txn:
        txn.append(bytes(16 << 20) + bytes(20000), OpTime(1, 5), op="n", ns="", wall_ms=1)
    assert caught.value.code == 257
    assert driver.store.last_applied == OPTIME_NULL
    largest = insert_entry("db.c", bytes(16), doc_of(1, ""), OpTime(1, 5), WALL)
    room = MAX_ENTRY_SIZE - len(largest)
    largest = insert_entry("db.c", bytes(16), doc_of(1, "x" * room), OpTime(1, 5), WALL)
    assert len(largest) == MAX_ENTRY_SIZE
    with driver.store.group() as txn:
        txn.append(largest, OpTime(1, 5), op="i", ns="db.c", wall_ms=WALL)
    assert driver.store.last_applied == OpTime(1, 5)


def test_first_and_last_optime_of_each_term_are_kept(driver: Driver) -> None:
    for term, ts in ((1, 1), (1, 2), (2, 3), (4, 4), (4, 5)):
        with driver.store.group() as txn:
            txn.append(b"entry", OpTime(term, ts), op="n", ns="", wall_ms=1)
    with driver.store.group() as txn:
        txn.append(b"entry", OpTime(5, 6), op="n", ns="", wall_ms=1)
        txn.append(b"entry", OpTime(6, 7), op="n", ns="", wall_ms=1)
    spans = [(span.first, span.last) for span in driver.reopen().terms()]
    assert spans == [
        (OpTime(1, 1), OpTime(1, 2)),
        (OpTime(2, 3), OpTime(2, 3)),
        (OpTime(4, 4), OpTime(4, 5)),
        (OpTime(5, 6), OpTime(5, 6)),
        (OpTime(6, 7), None),
    ]


def test_one_group_at_a_time_and_reads_never_see_an_open_group(driver: Driver) -> None:
    driver.apply(("create", "db.c"))
    with driver.store.group():
        with pytest.raises(InvariantError):
            driver.store.group().__enter__()
        with pytest.raises(InvariantError):
            driver.store.get(driver.coll("db.c"), key_of(1))
        with pytest.raises(InvariantError):
            driver.store.oldest_row()


def test_oplog_reads(driver: Driver) -> None:
    driver.apply(("create", "db.c"), *(("put", "db.c", number, "x") for number in range(10)))
    store = driver.store
    in_memory = store.oplog_after(OPTIME_NULL, limit=100, max_bytes=1 << 30)
    first, third, newest = in_memory[0], in_memory[2], in_memory[-1]
    for reopened in (False, True):
        again = driver.reopen() if reopened else store
        assert again.oplog_after(OPTIME_NULL, limit=100, max_bytes=1 << 30) == in_memory
        assert again.oplog_after(first.optime, limit=2, max_bytes=1 << 30) == in_memory[1:3]
        two = len(in_memory[1].entry) + len(in_memory[2].entry)
        assert again.oplog_after(first.optime, limit=9, max_bytes=two) == in_memory[1:3]
        assert again.oplog_after(first.optime, limit=9, max_bytes=1) == in_memory[1:2]
        assert again.oplog_after(newest.optime, limit=9, max_bytes=1) == []
        assert again.oplog_row_at(third.optime) == third
        assert again.oplog_row_at(OpTime(9, third.ts)) is None
        assert again.row_at_or_before(OpTime(9, third.ts + 0)) == third
        assert again.row_at_or_before(OpTime(1, first.ts - 1)) is None
        assert (again.oldest_row(), again.newest_row()) == (first, newest)
        assert (again.oldest, again.last_applied) == (first.optime, newest.optime)
        assert again.oplog_bytes == sum(len(row.entry) for row in in_memory)
    with driver.store.read() as snapshot:
        assert snapshot.oplog_after(OPTIME_NULL, limit=3, max_bytes=1 << 30, ns="db.c", op="i") == in_memory[1:4]
        assert snapshot.newest == newest.optime
    assert newest.key == key_of(9)


@pytest.mark.parametrize("column", ["hash", "chain", "op", "ns", "key", "entry"])
def test_a_column_of_another_type_stops_no_read_and_no_start(driver: Driver, column: str) -> None:
    """One bit of a row's header makes a float of a number, text of bytes, and bytes of text."""
    driver.apply(("create", "db.c"), *(("put", "db.c", number, "x") for number in range(6)))
    ts = driver.store.last_applied.ts - 2
    made = {"hash": "REAL", "chain": "REAL", "op": "BLOB", "ns": "BLOB"}
    kind = made.get(column, "TEXT")
    driver.store._connection.execute(f"UPDATE oplog SET {column} = CAST({column} AS {kind}) WHERE ts = ?", (ts,))
    reopened = driver.reopen()
    damage, rows = "", list[OplogRow]()
    with reopened.read() as snapshot:
        try:
            snapshot.check_newest(5)
        except DamagedEntryError as error:
            damage = error.message
    with suppress(DamagedEntryError):
        while len(rows) < 7:
            after = rows[-1].optime if rows else OPTIME_NULL
            rows += reopened.oplog_after(after, limit=10, max_bytes=1 << 20)
    assert len(rows) == (4 if damage else 7)
    assert bool(damage) == (column in ("hash", "chain")), "the bytes of the others are there"
    assert all(isinstance(row.entry, bytes) and isinstance(row.ns, str) for row in rows)


@pytest.mark.parametrize(
    ("table", "column", "kind"),
    [("catalog", "ns", "BLOB"), ("catalog", "options", "TEXT"), ("undo", "before", "TEXT"), ("undo", "place", "REAL")],
)
def test_names_and_older_documents_of_another_type_are_read(driver: Driver, table: str, column: str, kind: str) -> None:
    driver.apply(("create", "db.c"), *(("put", "db.c", number % 3, f"x{number}") for number in range(6)))
    driver.apply(("delete", "db.c", 1))
    driver.store._connection.execute(f"UPDATE {table} SET {column} = CAST({column} AS {kind})")
    driver.reopen()
    assert driver.documents() == driver.state
    point, before = driver.history[4]
    with driver.store.read() as snapshot:
        coll = driver.coll("db.c")
        assert {key: snapshot.get(coll, key, point) for key in before["db.c"]} == before["db.c"]
    driver.undo_to(point)
    assert driver.documents() == before


def test_a_document_that_its_row_says_is_nothing_is_not_passed_over(driver: Driver) -> None:
    """One bit makes NULL of some sizes, and the table says that there is none."""
    driver.apply(("create", "db.c"), ("put", "db.c", 1, "x"), ("put", "db.c", 2, "x"))
    table, path = driver.coll("db.c").table, driver.store.path
    driver.store.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_schema SET sql = replace(sql, 'doc BLOB NOT NULL', 'doc BLOB')")
        connection.commit()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"UPDATE {table} SET doc = NULL WHERE key = ?", (key_of(1),))
        connection.commit()
    driver.reopen()
    with driver.store.read() as snapshot:
        coll = driver.coll("db.c")
        assert snapshot.mistyped(coll, b"", b"\xff") == {key_of(1)}
        assert all(doc for _, doc in snapshot.scan(coll)), "who reads takes nothing for a document that is gone"
        with pytest.raises(InvalidBSONError):
            RawDocument(dict(snapshot.scan(coll))[key_of(1)])


def test_the_memory_of_the_newest_entries_is_bounded(make_driver: Callable[..., Driver]) -> None:
    driver = make_driver(options=StoreOptions(min_free_bytes=0, tail_bytes=2000))
    driver.apply(("create", "db.c"))
    for number in range(100):
        driver.apply(("put", "db.c", number, "x" * 100))
    assert len(driver.store.tail.rows) < 2100 // ROW_BYTES, "small entries are mostly what Python adds to them"
    rows = driver.store.oplog_after(OPTIME_NULL, limit=1000, max_bytes=1 << 30)
    assert len(rows) == 101
    start = rows[90].optime
    assert driver.store.oplog_after(start, limit=1000, max_bytes=1 << 30) == rows[91:]
    kept = len(driver.store.tail.rows)
    for index in (100, 101 - kept, 100 - kept, 0):  # in memory up to the second
        row = rows[index]
        assert driver.store.chain_at(row.optime) == row.chain
        assert driver.store.chain_at(OpTime(9, row.ts)) is None
    assert driver.store.chain_at(OpTime(1, rows[-1].ts + 1)) is None


def test_catalog_questions(driver: Driver) -> None:
    driver.apply(("create", "b.two"), ("create", "a.one"), ("create", "b.one"))
    for again in (False, True):
        store = driver.reopen() if again else driver.store
        assert [coll.ns for coll in store.collections()] == ["a.one", "b.one", "b.two"]
        assert [coll.name for coll in store.collections("b")] == ["one", "two"]
        assert store.databases() == ["a", "b"]
        assert store.collection("a.none") is None
        found = store.collection("a.one")
        assert store.collection_by_uuid(found.uuid) is found
        assert store.data_bytes() > 0


def test_what_is_removed_counts_for_nothing_though_the_file_keeps_its_size(driver: Driver) -> None:
    driver.apply(("create", "db.c"), *(("put", "db.c", number, "x" * 10_000) for number in range(50)))
    store, full = driver.store, driver.store.data_bytes()
    connection = store._connection
    assert full == first_row(connection, "PRAGMA page_count")[0] * first_row(connection, "PRAGMA page_size")[0]
    driver.apply(*(("delete", "db.c", number) for number in range(50)))
    store.set_commit_point(store.last_applied)
    driver.settle()
    assert store.data_bytes() < full


def test_get_reads_what_is_committed(driver: Driver) -> None:
    driver.apply(("create", "db.c"), ("put", "db.c", 1, "a"))
    assert driver.store.get(driver.coll("db.c"), key_of(1)) == doc_of(1, "a")
    assert driver.store.get(driver.coll("db.c"), key_of(2)) is None


def test_the_entry_travels_as_the_bytes_it_came_in(driver: Driver) -> None:
    entry = insert_entry("db.c", b"u" * 16, doc_of(1, "x"), OpTime(1, 5), 1)
    with driver.store.group() as txn:
        txn.append(entry, OpTime(1, 5), op="i", ns="db.c", key=key_of(1), wall_ms=1)
    driver.reopen()
    assert driver.store.newest_row().entry == entry


def test_timestamps_stay_positive_and_ordered_beyond_2038(driver: Driver) -> None:
    for wall_ms in (2**31 * 1000 - 1000, 2**31 * 1000, 2**32 * 1000 - 1000):
        driver.wall_ms = wall_ms
        driver.apply(("noop",))
    optimes = [row.optime for row in driver.reopen().oplog_after(OPTIME_NULL, limit=9, max_bytes=1 << 30)]
    assert [optime.seconds for optime in optimes] == [2**31 - 1, 2**31, 2**32 - 1]
    assert all(0 < optime.ts < 2**63 for optime in optimes)


def test_a_disk_that_does_not_answer_is_a_storage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = RealDisk()
    store = Store.open(disk, tmp_path)

    def fail(_path: str) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(disk, "free_bytes", fail)
    with pytest.raises(StorageError, match="Input/output"):
        store.group().__enter__()
    store.close()


def test_a_start_knows_what_was_committed_and_how_large_the_oplog_is(driver: Driver) -> None:
    driver.apply(("create", "db.c"), *(("put", "db.c", number, "x") for number in range(20)))
    store = driver.store
    store.set_commit_point(driver.history[15][0])
    oplog_bytes = store.oplog_bytes
    assert store.saved_commit_point() < store.commit_point, "it is not saved at each move"
    reopened = driver.reopen()
    assert reopened.saved_commit_point() == driver.history[15][0]
    assert reopened.oplog_bytes == oplog_bytes
