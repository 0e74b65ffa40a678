"""Snapshots: their connections, and what they say of versions and sizes."""

from __future__ import annotations

import pytest

from replset.errors import NamespaceNotFoundError
from tests.unit.storage.conftest import Driver, doc_of, key_of


def test_a_snapshot_that_is_closed_twice_gives_its_connection_back_once(driver: Driver) -> None:
    """Otherwise two snapshots would share one, and end each other's read."""
    snapshot = driver.store.read()
    snapshot.close()
    snapshot.close()
    with driver.store.read() as one, driver.store.read() as two:
        assert one.connection is not two.connection


def test_an_entrys_versions_of_a_document(driver: Driver) -> None:
    driver.apply(("create", "db.c"))
    for text in ("a", "b", "c"):
        driver.apply(("put", "db.c", 1, text))
    driver.apply(("delete", "db.c", 1))
    first, second, third, last = [optime.ts for optime, _ in driver.history[2:]]
    coll = driver.coll("db.c")
    a, b, c = (doc_of(1, text) for text in "abc")
    with driver.store.read() as snapshot:
        assert snapshot.versions_at(coll, key_of(1), first) == [None, a]
        assert snapshot.versions_at(coll, key_of(1), second) == [a, b]
        assert snapshot.versions_at(coll, key_of(1), third) == [b, c]
        assert snapshot.versions_at(coll, key_of(1), last) == [c, None]
        assert snapshot.versions_at(coll, key_of(1), third, number=1) == [], "it wrote the document once"
        assert snapshot.versions_at(coll, key_of(2), third) == [], "it wrote another one"
    driver.store.set_commit_point(driver.history[-1][0])
    pin = driver.store.pin(driver.history[3][0])
    driver.settle()
    pin.release()
    with driver.store.read() as snapshot:
        assert driver.store.pruned_through == second
        assert snapshot.versions_at(coll, key_of(1), second) == [], "what undo there was is gone"
        assert snapshot.versions_at(coll, key_of(1), third) == [b, c]


def test_a_collection_that_is_gone_has_no_versions_and_no_size(driver: Driver) -> None:
    driver.apply(("create", "db.c"), ("put", "db.c", 1, "a"))
    coll = driver.coll("db.c")
    with driver.store.read() as snapshot:
        assert snapshot.sizes(coll).count == 1
    driver.apply(("drop", "db.c"))
    driver.store.set_commit_point(driver.history[-1][0])
    driver.settle()
    with driver.store.read() as snapshot:
        with pytest.raises(NamespaceNotFoundError):
            snapshot.sizes(coll)
        assert snapshot.versions_at(coll, key_of(1), driver.history[2][0].ts) == []
