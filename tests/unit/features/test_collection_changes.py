"""create with options, renameCollection, collMod, capped collections and names."""

from __future__ import annotations

from typing import Any

import pytest

from replset.bson import Int64, decode
from tests.rig import Client, Rig

Document = dict[str, Any]


def options(client: Client, name: str = "c") -> Document:
    (found,) = client.ok({"listCollections": 1, "filter": {"name": name}})["cursor"]["firstBatch"]
    return dict(found["options"])


# --- create -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({}, {}),
        ({"capped": True, "size": 100_000, "max": 5}, {"capped": True, "size": 100_096, "max": 5}),
        ({"capped": True, "size": 1}, {"capped": True, "size": 4096}),
        ({"capped": False, "size": 100}, {}),
        ({"validator": {"a": 1}}, {"validator": {"a": 1}}),
        (
            {"validationAction": "warn", "validator": {"a": {"$gt": 1}}, "validationLevel": "moderate"},
            {"validator": {"a": {"$gt": 1}}, "validationLevel": "moderate", "validationAction": "warn"},
        ),
        ({"validator": {}}, {}),
        ({"idIndex": {"v": 2, "key": {"_id": 1}, "name": "_id_"}, "collation": {"locale": "simple"}}, {}),
        ({"storageEngine": {"wiredTiger": {"configString": "x"}}, "indexOptionDefaults": {}, "autoIndexId": True}, {}),
        ({"changeStreamPreAndPostImages": {"enabled": False}}, {}),
        ({"changeStreamPreAndPostImages": {"enabled": True}}, {"changeStreamPreAndPostImages": {"enabled": True}}),
    ],
)
def test_options_are_kept_and_shown(client: Client, given: Document, kept: Document) -> None:
    client.ok({"create": "c", **given})
    assert options(client) == kept
    assert list(options(client)) == list(kept)
    client.ok({"create": "c", **given})  # the same again
    assert client.code({"create": "c", "capped": True, "size": 8192}) == 48
    assert len(client.entries()) == 1


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"capped": True}, 72),
        ({"capped": True, "size": 0}, 51024),
        ({"capped": True, "size": 1 << 51}, 51024),
        ({"capped": True, "size": 4096, "max": 1 << 31}, 51024),
        ({"capped": "yes"}, 14),
        ({"validator": {"$nonsense": 1}}, 2),
        ({"validator": {"$expr": {"$gt": ["$a"]}}}, 16020),
        ({"validator": {"$jsonSchema": {"properties": 1}}}, 14),
        ({"validator": {"$jsonSchema": {"$ref": "x"}}}, 9),
        ({"validator": {"$jsonSchema": {"nonsense": 1}}}, 9),
        ({"validator": 1}, 14),
        ({"validationLevel": "loose"}, 2),
        ({"validationAction": 1}, 14),
        ({"timeseries": {"timeField": "t"}}, 238),
        ({"clusteredIndex": {"key": {"_id": 1}, "unique": True}}, 238),
        ({"encryptedFields": {"fields": []}}, 238),
        ({"changeStreamPreAndPostImages": {"x": True}}, 40415),
        ({"autoIndexId": False}, 72),
        ({"idIndex": {"key": {"a": 1}, "name": "a_1"}}, 2),
    ],
)
def test_options_that_cannot_be(client: Client, given: Document, code: int) -> None:
    assert client.code({"create": "c", **given}) == code
    assert client.entries() == []


def test_a_database_that_differs_in_case(client: Client) -> None:
    client.ok({"insert": "c", "documents": [{}]}, "Shop")
    for database in ("shop", "SHOP", "Admin", "LOCAL"):
        reply = client.run({"insert": "c", "documents": [{}]}, database)
        assert (reply["code"], reply["codeName"]) == (13297, "DatabaseDifferCase"), database
    client.ok({"insert": "C", "documents": [{}]}, "Shop")
    client.ok({"dropDatabase": 1}, "Shop")
    client.ok({"create": "c"}, "shop")


# --- capped collections -----------------------------------------------------------------------------------------


def ids(client: Client) -> list[int]:
    """In natural order."""
    with client.member.store.read() as snapshot:
        coll = snapshot.collection("test.c")
        assert coll is not None
        return [decode(doc)["_id"] for _, _, doc in snapshot.natural_scan(coll)]


def test_a_capped_collection_keeps_the_newest(client: Client) -> None:
    client.ok({"create": "c", "capped": True, "size": 1 << 20, "max": 3})
    client.ok({"insert": "c", "documents": [{"_id": number} for number in (9, 8, 7, 6, 5)]})
    assert ids(client) == [7, 6, 5]
    assert [entry["op"] for entry in client.entries()[1:]] == ["i", "i", "i", "i", "d", "i", "d"]
    client.ok({"delete": "c", "deletes": [{"q": {"_id": 6}, "limit": 1}]})
    client.ok({"insert": "c", "documents": [{"_id": 4}]})
    assert ids(client) == [7, 5, 4]
    client.ok({"update": "c", "updates": [{"q": {"_id": 7}, "u": {"$set": {"grown": "x" * 1000}}}]})
    client.ok({"update": "c", "updates": [{"q": {"_id": 3}, "u": {"$set": {"a": 1}}, "upsert": True}]})
    assert ids(client) == [5, 4, 3]


def test_a_capped_collection_keeps_to_its_size(client: Client) -> None:
    client.ok({"create": "c", "capped": True, "size": 4096})
    for number in range(20):
        client.ok({"insert": "c", "documents": [{"_id": number, "text": "x" * 1000}]})
    assert ids(client) == [17, 18, 19]
    client.ok({"insert": "c", "documents": [{"_id": 20, "text": "x" * 10_000}]})
    assert ids(client) == [20]  # the newest stays, even alone too large
    client.ok({"collMod": "c", "cappedSize": 1 << 20, "cappedMax": 2})
    client.ok({"insert": "c", "documents": [{"_id": number} for number in (30, 31, 32)]})
    assert ids(client) == [31, 32]
    assert options(client) == {"capped": True, "size": 1 << 20, "max": 2}


def test_what_fails_in_a_capped_collection_counts_for_nothing(client: Client) -> None:
    client.ok({"create": "c", "capped": True, "size": 1 << 20, "max": 2})
    client.ok({"insert": "c", "documents": [{"_id": 1}, {"_id": 2}]})
    assert client.ok({"insert": "c", "documents": [{"_id": 2}, {"_id": 3}]})["writeErrors"][0]["code"] == 11000
    assert ids(client) == [1, 2]


# --- renameCollection -------------------------------------------------------------------------------------------


def rename(source: str, to: str, **more: object) -> Document:
    return {"renameCollection": source, "to": to, **more}


def test_a_rename_keeps_documents_and_options(client: Client) -> None:
    client.ok({"create": "c", "validator": {"_id": {"$lt": 9}}})
    client.ok({"insert": "c", "documents": [{"_id": 1}]})
    client.ok(rename("test.c", "test.d"), "admin")
    assert client.ok({"count": "c"})["n"] == 0
    assert client.ok({"find": "d"})["cursor"]["firstBatch"] == [{"_id": 1}]
    assert options(client, "d") == {"validator": {"_id": {"$lt": 9}}}
    entry = client.entries()[-1]
    assert (entry["ns"], entry["ui"]) == ("test.$cmd", client.entries()[0]["ui"])
    assert entry["o"] == {"renameCollection": "test.c", "to": "test.d", "stayTemp": False}
    client.ok({"create": "c"})
    assert client.code(rename("test.c", "test.d"), "admin") == 48
    client.ok(rename("test.c", "test.d", dropTarget=True), "admin")
    assert client.ok({"count": "d"})["n"] == 0
    assert client.entries()[-1]["o"]["dropTarget"] == entry["ui"]


@pytest.mark.parametrize(
    ("command", "db", "code"),
    [
        (rename("test.c", "test.d"), "test", 13),
        (rename("test.none", "test.d"), "admin", 26),
        (rename("test.c", "test.c"), "admin", 20),
        (rename("test.c", "other.c"), "admin", 238),
        (rename("test", "test.c"), "admin", 73),
        (rename("test.c", "test."), "admin", 73),
        (rename("test.c", "test.a$b"), "admin", 73),
        (rename("test.c", "test.system.x"), "admin", 73),
        (rename("local.oplog.rs", "local.x"), "admin", 73),
        ({"renameCollection": "test.c"}, "admin", 40414),
        ({"renameCollection": 1, "to": "test.d"}, "admin", 14),
        (rename("test.c", "test.d", dropTarget="yes"), "admin", 14),
        (rename("test.c", "test.d", nonsense=1), "admin", 40415),
    ],
)
def test_refused_renames(client: Client, command: Document, db: str, code: int) -> None:
    client.ok({"create": "c"})
    assert client.code(command, db) == code


def test_no_rename_during_an_index_build(client: Client, rig: Rig) -> None:
    client.ok({"insert": "c", "documents": [{"_id": 1, "a": 1}]})
    building = client.begin({"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a_1"}]})
    rig.turn()
    assert not building.done()
    assert client.code(rename("test.c", "test.d"), "admin") == 12587
    assert client.decoded(building)["ok"] == 1.0


def test_a_cursor_does_not_survive_a_rename(client: Client) -> None:
    client.ok({"insert": "c", "documents": [{} for _ in range(5)]})
    cursor = client.ok({"find": "c", "batchSize": 2})["cursor"]["id"]
    client.ok(rename("test.c", "test.d"), "admin")
    assert client.code({"getMore": cursor, "collection": "c"}) == 175


# --- collMod ----------------------------------------------------------------------------------------------------


def test_coll_mod_changes_the_validator(client: Client) -> None:
    client.ok({"create": "c"})
    client.ok({"collMod": "c", "validationLevel": "moderate", "validator": {"a": 1}})
    assert options(client) == {"validator": {"a": 1}, "validationLevel": "moderate"}
    entry = client.entries()[-1]
    assert entry["o"] == {"collMod": "c", "validator": {"a": 1}, "validationLevel": "moderate"}
    assert entry["o2"] == {"collectionOptions_old": {}}
    client.ok({"collMod": "c", "validator": {}})
    assert options(client) == {"validationLevel": "moderate"}
    client.ok({"insert": "c", "documents": [{"a": 2}]})


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"viewOn": "d"}, 72),
        ({"pipeline": []}, 72),
        ({"expireAfterSeconds": 5}, 72),
        ({"timeseries": {}}, 72),
        ({"cappedSize": 5000}, 72),
        ({"validationLevel": "x"}, 2),
        ({"changeStreamPreAndPostImages": {"enabled": "x"}}, 14),
        ({"dryRun": True}, 238),
        ({"index": {}}, 72),
        ({"index": {"name": "a_1"}}, 72),
        ({"index": {"name": "a_1", "keyPattern": {"a": 1}, "hidden": True}}, 72),
        ({"index": {"name": "a_1", "hidden": True}}, 27),
        ({"index": {"name": "_id_", "hidden": True}}, 2),
        ({"index": {"name": "a_1", "unique": True}}, 238),
        ({"index": {"name": "a_1", "nonsense": True}}, 40415),
        ({"nonsense": True}, 40415),
    ],
)
def test_refused_coll_mods(client: Client, given: Document, code: int) -> None:
    client.ok({"create": "c"})
    assert client.code({"collMod": "c", **given}) == code
    assert len(client.entries()) == 1


def test_no_ttl_index_on_a_capped_collection(client: Client) -> None:
    client.ok({"create": "c", "capped": True, "size": 4096})
    spec = {"key": {"a": 1}, "name": "a_1"}
    assert client.code({"createIndexes": "c", "indexes": [{**spec, "expireAfterSeconds": 5}]}) == 67
    client.ok({"createIndexes": "c", "indexes": [spec]})
    assert client.code({"collMod": "c", "index": {"name": "a_1", "expireAfterSeconds": 5}}) == 72


def test_coll_mod_needs_a_collection(client: Client) -> None:
    assert client.code({"collMod": "c", "validator": {"a": 1}}) == 26


def test_coll_mod_hides_an_index(client: Client) -> None:
    client.ok({"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a_1"}]})
    reply = client.ok({"collMod": "c", "index": {"name": "a_1", "hidden": True}})
    assert (reply["hidden_old"], reply["hidden_new"]) == (False, True)
    assert "hidden_new" not in client.ok({"collMod": "c", "index": {"name": "a_1", "hidden": True}})
    reply = client.ok({"collMod": "c", "index": {"keyPattern": {"a": 1}, "expireAfterSeconds": 60.0, "hidden": False}})
    assert (reply["expireAfterSeconds_new"], reply["hidden_new"]) == (Int64(60), False)
    _, changed = client.ok({"listIndexes": "c"})["cursor"]["firstBatch"]
    assert changed == {"v": 2, "key": {"a": 1}, "name": "a_1", "expireAfterSeconds": 60}
