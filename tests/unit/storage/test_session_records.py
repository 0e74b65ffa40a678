"""Records of sessions have undo like documents, in rows that no index holds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from replset.bson import encode, encode_key
from replset.errors import SnapshotTooOldError
from replset.ids import OPTIME_NULL, OpTime
from replset.oplog_entry import noop_entry
from replset.storage.catalog import SESSIONS
from replset.storage.snapshot import _SESSION_CHANGES
from replset.storage.store import Store, StoreOptions
from replset.storage.txn import Txn
from tests.unit.storage.conftest import WALL, Driver

Records = dict[bytes, bytes]


def note(driver: Driver, changes: dict[bytes, bytes | None]) -> OpTime:
    """Change these records in one entry."""
    with driver.store.group() as txn:
        return change(txn, changes)


def change(txn: Txn, changes: dict[bytes, bytes | None]) -> OpTime:
    optime = txn.next_optime(1, WALL)
    for key, record in changes.items():
        txn.put_session(key, record, ts=optime.ts)
    txn.append(noop_entry({"msg": "x"}, optime, WALL), optime, op="n", ns="", wall_ms=WALL)
    return optime


def records_at(store: Store, at: OpTime | None) -> list[Records]:
    """As each way of reading shows them."""
    with store.read() as snapshot:
        by_key = dict(snapshot.scan(SESSIONS, at))
        natural = {key: doc for _, key, doc in snapshot.natural_scan(SESSIONS, at) if doc}
        alone = {key: doc for key in by_key if (doc := snapshot.get(SESSIONS, key, at)) is not None}
        assert snapshot.count(SESSIONS, at) == len(by_key)
    return [by_key, natural, alone]


KEYS = [encode_key(number) for number in range(4)]


def a_record(number: int, text: str) -> bytes:
    return encode({"_id": number, "text": text})


@pytest.fixture
def history(make_driver: Callable[..., Driver]) -> tuple[Driver, list[tuple[OpTime, Records]]]:
    driver = make_driver(options=StoreOptions(min_free_bytes=0))
    state: Records = {}
    points = []
    for round_number in range(5):
        changes: dict[bytes, bytes | None] = {
            KEYS[number]: a_record(number, f"{round_number}") for number in range(4) if number <= round_number
        }
        state = {**state, **{key: record for key, record in changes.items() if record is not None}}
        points.append((note(driver, changes), dict(state)))
    return driver, points


def test_they_are_read_as_they_were_at_a_point(history: tuple[Driver, list[tuple[OpTime, Records]]]) -> None:
    driver, points = history
    for at, state in points:
        assert records_at(driver.store, at) == [state] * 3
    assert records_at(driver.reopen(), points[1][0]) == [points[1][1]] * 3
    rows = driver.store.query(lambda connection: list(connection.execute("SELECT DISTINCT coll FROM undo")))
    assert rows == [(None,)]


def test_one_that_was_removed_later_is_read_at_the_point_too(
    history: tuple[Driver, list[tuple[OpTime, Records]]],
) -> None:
    """Also where it came back, or came and went in one group."""
    driver, points = history
    note(driver, {KEYS[0]: None, KEYS[2]: None})
    with driver.store.group() as txn:
        change(txn, {KEYS[1]: None, KEYS[2]: a_record(2, "again")})
        change(txn, {KEYS[1]: a_record(1, "again"), KEYS[2]: None})
    for at, state in points:
        assert records_at(driver.store, at) == [state] * 3


def test_a_rollback_brings_them_back(history: tuple[Driver, list[tuple[OpTime, Records]]]) -> None:
    driver, points = history
    note(driver, {KEYS[0]: None, KEYS[1]: a_record(1, "newer")})
    at, state = points[2]
    driver.undo_to(at, limit=1)
    assert records_at(driver.store, None) == [state] * 3
    driver.undo_to(OPTIME_NULL, limit=100)
    assert records_at(driver.store, None) == [{}] * 3


def test_an_operation_that_fails_alone_leaves_them(history: tuple[Driver, list[tuple[OpTime, Records]]]) -> None:
    driver, points = history
    _, state = points[-1]
    with driver.store.group() as txn:
        change(txn, {KEYS[0]: a_record(0, "kept")})
        mark = txn.mark()
        change(txn, {KEYS[0]: a_record(0, "lost"), KEYS[1]: None})
        txn.revert_to(mark)
        assert txn.session(KEYS[0]) == a_record(0, "kept")
    assert records_at(driver.store, None) == [{**state, KEYS[0]: a_record(0, "kept")}] * 3


def test_a_point_behind_which_too_much_was_written_is_refused(make_driver: Callable[..., Driver]) -> None:
    driver = make_driver(options=StoreOptions(min_free_bytes=0))
    first = note(driver, {KEYS[0]: a_record(0, "first")})
    with driver.store.group() as txn:
        for number in range(_SESSION_CHANGES):
            change(txn, {KEYS[1]: a_record(1, str(number))})
    assert records_at(driver.store, first) == [{KEYS[0]: a_record(0, "first")}] * 3
    note(driver, {KEYS[1]: a_record(1, "last")})
    with driver.store.read() as snapshot, pytest.raises(SnapshotTooOldError, match="newest 2000"):
        snapshot.get(SESSIONS, KEYS[0], first)


def test_few_records_are_kept_in_memory(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not there is read from the file, as a record that is too large for memory is."""
    monkeypatch.setattr("replset.storage.store.SESSIONS_IN_MEMORY", 3)
    store, large = driver.store, encode({"_id": 9, "text": "x" * 1_000})
    for number in range(3):
        note(driver, {KEYS[number]: a_record(number, "a")})
    assert sorted(store._sessions) == sorted(KEYS[:3])
    note(driver, {KEYS[3]: a_record(3, "a")})
    assert list(store._sessions) == KEYS[3:]
    note(driver, {KEYS[3]: large, KEYS[0]: None})
    assert not store._sessions
    with store.group() as txn:
        assert [txn.session(key) for key in KEYS] == [None, a_record(1, "a"), a_record(2, "a"), large]
