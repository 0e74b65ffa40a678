"""The writes of a transaction in memory: an operation that fails leaves nothing of itself."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from replset.bson import RawDocument, encode
from replset.replication.held_keys import HeldKeys
from replset.replication.write_ops import WriteGroup
from replset.replication.write_set import WriteSet
from tests.unit.storage.conftest import WALL, Driver, doc_of, key_of

ONE, TWO = (bytes([number]) * 16 for number in (1, 2))


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    made = Driver(tmp_path / "data")
    made.apply(("create", "db.a"), ("put", "db.a", 1, "before"))
    yield made
    made.store.close()


def facts_of(writes: WriteSet) -> dict[str, object]:
    return {
        "documents": {uuid: dict(documents) for uuid, documents in writes._documents.items() if documents},
        "namespaces": writes.namespaces,
        "catalog": dict(writes.catalog.by_ns),
        "created": set(writes._created),
        "changes": list(writes._changes),
        "operations": (list(writes._operations), writes.appended_bytes),
        "written": writes._writes,
    }


def test_a_failed_operation_leaves_a_write_set_as_it_was(driver: Driver) -> None:
    held = HeldKeys()
    writes, coll = WriteSet(driver.store, held), driver.coll("db.a")

    def begin(group: WriteGroup) -> None:
        group.txn.put(coll, key_of(1), doc_of(1, "once"), ts=0, before=doc_of(1, "before"))
        group.txn.create_collection("db.new", ONE, {}, ts=0)

    def fail(group: WriteGroup) -> None:
        txn = group.txn
        txn.put(coll, key_of(1), doc_of(1, "twice"), ts=0, before=doc_of(1, "once"))
        txn.insert_new(coll, key_of(2), doc_of(2, "other"), 0)
        new = txn.catalog.by_ns["db.new"]
        for name in ("n", "m"):
            txn.create_index(new, RawDocument(encode({"v": 2, "key": {name: 1}, "name": name})), ts=0)
        txn.insert_new(new, key_of(3), doc_of(3, "new"), 0)
        txn.create_collection("db.newer", TWO, {}, ts=0)
        raise ValueError("after all of it")

    writes.run(begin, 1, WALL, random.Random(1))
    before = facts_of(writes)
    assert before["namespaces"] == ["db.a", "db.new"]
    with pytest.raises(ValueError, match="after all of it"):
        writes.run(fail, 1, WALL, random.Random(1))
    assert facts_of(writes) == before
    assert len(held) == 5, "what was held stays held: two names, three documents"
    writes.end()
    assert len(held) == 0
