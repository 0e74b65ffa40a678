"""Indexes with a collation in a store: undone with what made them, and made anew where ICU is another one."""

from __future__ import annotations

import logging

import icu
import pytest

from replset.bson import RawDocument, encode, encode_key
from replset.features.collections.index_check import IndexCheck
from replset.query.collation import fold_of
from replset.storage.indexes import ICU_VERSION
from replset.storage.txn import Txn, read_meta
from tests.unit.storage.conftest import Driver

NS = "db.c"
FOLD = fold_of({"locale": "en", "strength": 2})
assert FOLD is not None
COLLATION = FOLD.spec
SPEC = RawDocument(encode({"v": 2, "key": {"a": 1}, "name": "a", "unique": True, "collation": COLLATION}))


def step(driver: Driver, txn: Txn) -> int:
    """Append an entry; return its ts."""
    driver._noop(txn, txn.next_optime(driver.term, driver.wall_ms))
    return txn.last.ts


def create(driver: Driver, *words: str) -> None:
    with driver.store.group() as txn:
        txn.create_collection(NS, b"c" * 16, {"collation": COLLATION}, ts=step(driver, txn))
        txn.create_index(driver.coll(NS), SPEC, ts=step(driver, txn))
    with driver.store.group() as txn:
        for word in words:
            coll = driver.coll(NS)
            assert txn.insert_new(coll, encode_key(word), encode({"_id": word, "a": word}), step(driver, txn))


def rows(driver: Driver, name: str = "a") -> list[tuple[bytes, bytes]]:
    table = next(index.table for index in driver.coll(NS).indexes if index.name == name)
    return driver.store.query(lambda db: list(db.execute(f"SELECT * FROM {table}")))


def is_sound(driver: Driver) -> bool:
    for index in driver.coll(NS).indexes:
        check = IndexCheck(driver.coll(NS), index)
        with driver.store.read() as snapshot:
            while check.next_slice(snapshot, 10):
                pass
        if check.missing or check.extra or not check.entries:
            return False
    return True


def made_by_another_icu(driver: Driver) -> None:
    """As if the entries had been made by an ICU with other sort keys."""
    with driver.store.maintenance() as txn:
        txn.connection.execute("UPDATE meta SET value = '1.0' WHERE name = ?", (ICU_VERSION,))
        for (table,) in list(txn.connection.execute("SELECT 'i_' || id FROM indexes")):
            txn.connection.execute(f"UPDATE {table} SET keystring = keystring || x'01'")


def test_the_index_on_id_is_undone_with_its_collection(driver: Driver) -> None:
    with driver.store.group() as txn:
        step(driver, txn)
    before = driver.store.last_applied
    create(driver, "x", "Y")
    assert [index.name for index in driver.coll(NS).indexes] == ["_id_", "a"]
    assert is_sound(driver)
    middle = driver.store.last_applied
    with driver.store.group() as txn:
        doc = encode({"_id": "Y", "a": "z"})
        txn.put(
            driver.coll(NS),
            encode_key("Y"),
            doc,
            ts=step(driver, txn),
            before=txn.get(driver.coll(NS), encode_key("Y")),
        )
    driver.undo_to(middle)
    assert is_sound(driver)
    driver.undo_to(before)
    assert driver.store.collections() == []
    driver.reopen()
    create(driver, "x")
    assert is_sound(driver)


def test_another_icu_makes_the_entries_anew(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    create(driver, "x", "Y")
    known = rows(driver), rows(driver, "_id_")
    made_by_another_icu(driver)
    assert not is_sound(driver)
    with caplog.at_level(logging.INFO, "replset.storage"):
        driver.reopen()
    assert "built anew, since ICU is another one now: _id_, a" in caplog.messages
    assert (rows(driver), rows(driver, "_id_")) == known
    assert is_sound(driver)
    assert driver.store.query(lambda db: read_meta(db, ICU_VERSION)) == icu.ICU_VERSION
    caplog.clear()
    driver.reopen()
    assert caplog.messages == []


def test_duplicates_by_another_icu_stay(driver: Driver) -> None:
    create(driver)
    with driver.store.group() as txn:  # as a secondary applies them
        for word in ("x", "X"):
            assert txn.insert_new(
                driver.coll(NS), encode_key(word), encode({"_id": word, "a": word}), step(driver, txn)
            )
    made_by_another_icu(driver)
    driver.reopen()
    assert is_sound(driver)
    assert len(rows(driver)) == 2


def test_a_dropped_index_is_filled_when_its_drop_is_undone(driver: Driver) -> None:
    create(driver, "x", "Y")
    before = driver.store.last_applied
    with driver.store.group() as txn:
        txn.drop_index(driver.coll(NS).indexes[1], ts=step(driver, txn))
    with driver.store.group() as txn:
        assert txn.insert_new(driver.coll(NS), encode_key("z"), encode({"_id": "z", "a": "z"}), step(driver, txn))
    made_by_another_icu(driver)
    driver.reopen()
    driver.undo_to(before)
    assert len(driver.coll(NS).indexes) == 2
    assert is_sound(driver)


def test_a_build_begins_anew(driver: Driver) -> None:
    create(driver, "x", "Y")
    with driver.store.group() as txn:
        other = RawDocument(encode({**SPEC.decode(), "name": "b"}))
        txn.create_index(driver.coll(NS), other, build=b"b" * 16, ts=step(driver, txn))
        txn.connection.execute("UPDATE indexes SET position = ? WHERE build IS NOT NULL", (encode_key("x"),))
    made_by_another_icu(driver)
    driver.reopen()
    assert driver.coll(NS).indexes[2].position == b""


def test_a_locale_that_this_icu_does_not_have(driver: Driver) -> None:
    """Another member's ICU has it. What the primary accepted is applied here too."""
    with driver.store.group() as txn:
        txn.create_collection(NS, b"c" * 16, {"collation": {**COLLATION, "locale": "xx"}}, ts=step(driver, txn))
        assert txn.insert_new(driver.coll(NS), encode_key("x"), encode({"_id": "x"}), step(driver, txn))
    driver.reopen()
    fold = driver.coll(NS).fold
    assert fold is not None
    assert (fold.spec["locale"], fold == FOLD) == ("xx", False)
    assert is_sound(driver)
