"""Sizes, hashes and checks of collections."""

from __future__ import annotations

import hashlib

import pytest

from replset.bson import Int64, encode
from replset.features.collections import index_check, statistics
from replset.member.member import RunningMember
from replset.optime import timestamp
from replset.storage.indexes import Index
from replset.storage.snapshot import Snapshot
from tests.rig import Client

DOCUMENTS = [{"_id": number, "a": number % 3, "text": "x" * 100} for number in range(50)]
SIZE = sum(len(encode(document)) for document in DOCUMENTS)


@pytest.fixture
def filled(client: Client) -> Client:
    client.ok({"insert": "c", "documents": list(reversed(DOCUMENTS))})
    client.ok({"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a_1"}]})
    return client


@pytest.mark.parametrize("name", ["collStats", "collstats"])
def test_coll_stats(filled: Client, name: str) -> None:
    stats = filled.ok({name: "c"})
    assert (stats["ns"], stats["count"], stats["size"], stats["avgObjSize"]) == ("test.c", 50, SIZE, SIZE // 50)
    assert set(stats["indexSizes"]) == {"_id_", "a_1"}
    assert all(size >= 4096 for size in stats["indexSizes"].values())
    assert stats["totalIndexSize"] == sum(stats["indexSizes"].values())
    assert stats["storageSize"] >= SIZE
    assert stats["totalSize"] == stats["storageSize"] + stats["totalIndexSize"]
    assert (stats["nindexes"], stats["capped"], stats["scaleFactor"]) == (2, False, 1)
    assert filled.ok({name: "c", "scale": 1024})["size"] == SIZE // 1024


def test_a_collection_that_is_not_there_has_no_size(client: Client) -> None:
    stats = client.ok({"collStats": "none"})
    assert (stats["count"], stats["size"], stats["storageSize"], stats["nindexes"]) == (0, 0, 0, 0)
    assert "avgObjSize" not in stats
    assert client.code({"collStats": "none", "scale": 0}) == 51024


def test_the_oplog_has_a_size_and_a_limit(filled: Client, member: RunningMember) -> None:
    stats = filled.ok({"collStats": "oplog.rs"}, "local")
    assert stats["count"] == filled.begins_at + len(filled.entries())
    assert stats["size"] == member.store.oplog_bytes
    assert (stats["capped"], stats["maxSize"]) == (True, 990 << 20)


def test_db_stats(filled: Client) -> None:
    filled.ok({"insert": "d", "documents": [{"_id": 1}]})
    filled.ok({"insert": "e", "documents": [{"_id": 1}]}, "other")
    stats = filled.ok({"dbStats": 1})
    assert (stats["collections"], stats["objects"], stats["indexes"]) == (2, 51, 3)
    assert stats["dataSize"] == SIZE + len(encode({"_id": 1}))
    assert stats["totalSize"] == stats["storageSize"] + stats["indexSize"]
    assert isinstance(stats["objects"], Int64)
    assert isinstance(stats["dataSize"], float)
    assert filled.ok({"dbstats": 1}, "empty")["objects"] == 0


def test_list_databases_has_sizes_and_the_three_that_are_always_there(filled: Client) -> None:
    rows = {row["name"]: row for row in filled.ok({"listDatabases": 1}, "admin")["databases"]}
    assert set(rows) == {"admin", "config", "local", "test"}
    assert rows["test"]["sizeOnDisk"] >= SIZE
    assert [row["name"] for row in filled.ok({"listDatabases": 1, "nameOnly": True}, "admin")["databases"]] == [*rows]


def test_sizes_of_more_collections_than_are_read_at_once(filled: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "COLLECTIONS_AT_ONCE", 2)
    for number in range(3):
        filled.ok({"insert": f"more{number}", "documents": DOCUMENTS}, "other")
    walks: list[str] = []
    execute = Snapshot._execute
    monkeypatch.setattr(Snapshot, "_execute", lambda *given: walks.append(given[1]) or execute(*given))
    for most, count in ((1 << 30, 1), (0, 4)):  # in a small database one walk, else one for each collection
        monkeypatch.setattr(statistics, "BYTES_AT_ONCE", most)
        walks.clear()
        rows = {row["name"]: row["sizeOnDisk"] for row in filled.ok({"listDatabases": 1}, "admin")["databases"]}
        assert sum("dbstat" in sql for sql in walks) == count
        for database in ("test", "other"):
            assert rows[database] == filled.ok({"dbStats": 1}, database)["totalSize"]


def test_db_hash_is_an_md5_in_the_order_of_ids(filled: Client) -> None:
    reply = filled.ok({"dbHash": 1})
    assert reply["collections"] == {
        "c": hashlib.md5(b"".join(map(encode, DOCUMENTS)), usedforsecurity=False).hexdigest()
    }
    filled.ok({"insert": "d", "documents": [{"_id": 1}]})
    both = filled.ok({"dbHash": 1})
    assert set(both["collections"]) == set(both["uuids"]) == {"c", "d"}
    assert both["collections"]["c"] == reply["collections"]["c"]
    assert both["md5"] != reply["md5"]
    assert set(filled.ok({"dbhash": 1, "collections": ["d"]})["collections"]) == {"d"}


def test_validate(filled: Client, member: RunningMember) -> None:
    report = filled.ok({"validate": "c", "full": True, "scandata": False})
    assert (report["valid"], report["nrecords"], report["nIndexes"], report["errors"]) == (True, 50, 2, [])
    assert report["keysPerIndex"] == {"_id_": 50, "a_1": 50}
    coll = member.store.collection("test.c")
    assert coll is not None
    (index,) = coll.indexes
    with member.store.group() as txn:
        txn.connection.execute(f"DELETE FROM {index.table} WHERE key IN (SELECT key FROM {index.table} LIMIT 1)")
        txn.connection.execute(f"UPDATE {coll.table} SET doc = ? WHERE rowid = 1", (encode({"_id": "other"}),))
    report = filled.ok({"validate": "c"})
    assert not report["valid"]
    assert report["nInvalidDocuments"] == 1
    assert report["indexDetails"]["a_1"] == {"valid": False}
    assert report["missingIndexEntries"]
    assert len(report["errors"]) == 2
    assert filled.code({"validate": "none"}) == 26
    assert filled.code({"validate": "c", "repair": True}) == 238


def test_a_row_of_another_type_is_read_and_is_not_valid(filled: Client, member: RunningMember) -> None:
    """One bit of its header says that it is text: the bytes are there."""
    coll = member.store.collection("test.c")
    assert coll is not None
    before = filled.ok({"find": "c", "batchSize": 100})["cursor"]["firstBatch"]
    with member.store.group() as txn:
        txn.connection.execute(f"UPDATE {coll.table} SET doc = CAST(doc AS TEXT) WHERE rowid = 7")
    assert filled.ok({"find": "c", "batchSize": 100})["cursor"]["firstBatch"] == before
    assert len(filled.ok({"find": "c", "filter": {"_id": before[6]["_id"]}})["cursor"]["firstBatch"]) == 1
    report = filled.ok({"validate": "c"})
    assert (report["valid"], report["nInvalidDocuments"], len(report["corruptRecords"])) == (False, 1, 1)
    with member.store.group() as txn:
        txn.connection.execute(f"UPDATE {coll.table} SET doc = CAST(x'ff' AS TEXT) WHERE rowid = 7")
    assert filled.ok({"validate": "c"})["nInvalidDocuments"] == 1


def test_validate_of_documents_with_many_keys(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their keys are made once, not for each of their entries."""
    many = [{"_id": number, "a": list(range(number, 3_000, 3))} for number in range(3)]
    client.ok({"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}]})
    client.ok({"insert": "c", "documents": [*many, {"_id": 9, "a": 5}]})
    made: list[bytes] = []
    make = index_check.keys_of

    def keys_of(index: Index, document: bytes) -> list[bytes]:
        made.append(document)
        return make(index, document)

    monkeypatch.setattr(index_check, "keys_of", keys_of)
    monkeypatch.setattr(index_check, "KEYS_IN_SLICE", 500)
    report = client.ok({"validate": "c"})
    assert (report["valid"], report["keysPerIndex"]) == (True, {"_id_": 4, "a": 3_001})
    assert len(made) < 20


def test_what_rs_print_replication_info_reads(client: Client, member: RunningMember) -> None:
    """mongosh lists the collections of local, then takes sizes, the first and the last entry of the oplog."""
    client.ok({"insert": "c", "documents": [{"_id": 1}, {"_id": 2}]})
    listed = client.ok({"listCollections": 1, "nameOnly": True, "authorizedCollections": True}, "local")
    assert [row["name"] for row in listed["cursor"]["firstBatch"]] == ["oplog.rs"]
    pipeline = [{"$collStats": {"storageStats": {"scale": 1}}}]
    (row,) = client.ok({"aggregate": "oplog.rs", "pipeline": pipeline, "cursor": {}}, "local")["cursor"]["firstBatch"]
    stats = row["storageStats"]
    assert (stats["maxSize"], stats["size"]) == (member.store.options.oplog_max_bytes, member.store.oplog_bytes)
    found = [
        client.ok({"find": "oplog.rs", "sort": {"$natural": order}, "limit": 1}, "local")["cursor"]["firstBatch"][0]
        for order in (1, -1)
    ]
    assert [row["ts"] for row in found] == [timestamp(member.store.oldest.ts), client.entries()[-1]["ts"]]
