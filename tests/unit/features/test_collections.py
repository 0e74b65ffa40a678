"""create, drop, dropDatabase, the lists, and indexes as far as there are any."""

from __future__ import annotations

import pytest

from replset.bson import Binary
from replset.errors import OutOfDiskSpaceError
from replset.member.member import RunningMember
from tests.rig import Client, Rig


def test_create_and_drop_enter_the_oplog(client: Client) -> None:
    client.ok({"create": "c"})
    client.ok({"create": "c"})
    client.ok({"insert": "c", "documents": [{"_id": 1}]})
    assert client.ok({"drop": "c"})["ns"] == "test.c"
    assert client.ok({"drop": "c"})["ok"] == 1.0
    create, _, drop = client.entries()
    assert (create["op"], create["o"]["create"]) == ("c", "c")
    assert (drop["op"], drop["ns"], drop["o"], drop["ui"]) == ("c", "test.$cmd", {"drop": "c"}, create["ui"])
    assert client.ok({"count": "c"})["n"] == 0


def test_a_name_can_be_used_again(client: Client) -> None:
    client.ok({"create": "c"})
    client.ok({"drop": "c"})
    client.ok({"create": "c"})
    first, _, second = client.entries()
    assert first["ui"] != second["ui"]


def test_drop_database(client: Client) -> None:
    for name in ("a", "b"):
        client.ok({"create": name})
    client.ok({"create": "a"}, "other")
    assert client.ok({"dropDatabase": 1})["dropped"] == "test"
    assert "dropped" not in client.ok({"dropDatabase": 1})
    assert [entry["o"] for entry in client.entries()[-3:]] == [{"drop": "a"}, {"drop": "b"}, {"dropDatabase": 1}]
    assert client.member.store.databases() == ["other"]


def test_list_collections(client: Client) -> None:
    client.ok({"create": "a"})
    client.ok({"create": "b.c"})
    cursor = client.ok({"listCollections": 1, "cursor": {}})["cursor"]
    assert (cursor["id"], cursor["ns"]) == (0, "test.$cmd.listCollections")
    first = cursor["firstBatch"][0]
    assert (first["name"], first["type"], first["options"]) == ("a", "collection", {})
    assert isinstance(first["info"]["uuid"], Binary)
    assert first["idIndex"] == {"v": 2, "key": {"_id": 1}, "name": "_id_"}
    only = client.ok({"listCollections": 1, "filter": {"name": "b.c"}, "nameOnly": True})["cursor"]["firstBatch"]
    assert only == [{"name": "b.c", "type": "collection"}]
    local = client.ok({"listCollections": 1}, "local")["cursor"]["firstBatch"]
    assert [doc["name"] for doc in local] == ["oplog.rs"]


def test_list_databases(client: Client) -> None:
    client.ok({"create": "a"}, "z")
    reply = client.ok({"listDatabases": 1}, "admin")
    assert [row["name"] for row in reply["databases"]] == ["admin", "config", "local", "z"]
    assert reply["totalSize"] > 0
    reply = client.ok({"listDatabases": 1, "nameOnly": True, "filter": {"name": "z"}}, "admin")
    assert reply["databases"] == [{"name": "z"}]


ID = {"key": {"_id": 1}, "name": "_id_"}


@pytest.mark.parametrize(
    ("index", "options"),
    [
        (ID, {}),
        ({**ID, "v": 2, "ns": "test.c", "collation": {"locale": "simple"}}, {}),
        ({**ID, "key": {"_id": 1.0}}, {}),
        ({**ID, "nonsense": 1}, {"ignoreUnknownIndexOptions": True}),
    ],
)
def test_the_index_on_id_is_there(client: Client, index: dict[str, object], options: dict[str, object]) -> None:
    reply = client.ok({"createIndexes": "c", "indexes": [index], **options})
    assert (reply["numIndexesBefore"], reply["numIndexesAfter"]) == (1, 1)


def test_indexes(client: Client) -> None:
    reply = client.ok({"createIndexes": "c", "indexes": [{"key": {"_id": 1}, "name": "_id_"}]})
    assert reply["createdCollectionAutomatically"] is True
    assert client.ok({"listIndexes": "c"})["cursor"]["firstBatch"] == [{"v": 2, "key": {"_id": 1}, "name": "_id_"}]


def test_every_listed_collection_answers_for_its_indexes(client: Client) -> None:
    client.ok({"create": "c"})
    for db in ("test", "local"):
        for one in client.ok({"listCollections": 1}, db)["cursor"]["firstBatch"]:
            found = client.ok({"listIndexes": one["name"]}, db)["cursor"]["firstBatch"]
            assert [index["name"] for index in found] == ([] if one["name"] == "oplog.rs" else ["_id_"])


def test_a_write_concern_error_of_create(client: Client, rig: Rig) -> None:
    rig.stop_disk()
    assert (
        client.ok({"create": "c", "writeConcern": {"w": "majority", "wtimeout": 5}})["writeConcernError"]["code"] == 64
    )


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ({"create": "c", "capped": True, "size": 4096}, 48),
        ({"createIndexes": "c", "indexes": [{"key": {"n": 1}, "name": "n", "sparse": True}]}, 86),
        ({"collMod": "c", "index": {"name": "absent", "hidden": True}}, 27),
        ({"findAndModify": "c", "query": {"_id": 2}, "update": {"$inc": {"s": 1}}}, 14),
    ],
)
def test_a_command_that_fails_waits_for_its_write_concern_too(
    client: Client, command: dict[str, object], code: int
) -> None:
    client.ok({"createIndexes": "c", "indexes": [{"key": {"n": 1}, "name": "n"}]})
    client.ok({"insert": "c", "documents": [{"_id": 2, "s": "text"}]})
    reply = client.run({**command, "writeConcern": {"w": 9}})
    assert (reply["code"], reply["writeConcernError"]["code"]) == (code, 100)
    assert "writeConcernError" not in client.run({**command, "writeConcern": {"w": 1}})


def test_commands_of_a_group_that_fails_have_an_error_each(
    client: Client, member: RunningMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OutOfDiskSpaceError("the disk is full")

    async def write(_operation: object) -> None:
        raise full

    monkeypatch.setattr(member, "write", write)
    assert client.run({"create": "c", "writeConcern": {"w": 9}})["writeConcernError"]["code"] == 100
    assert "writeConcernError" not in client.run({"create": "c", "writeConcern": {"w": 1}})


@pytest.mark.parametrize(
    ("command", "db", "code"),
    [
        ({"create": ""}, "test", 73),
        ({"create": "system.x"}, "test", 73),
        ({"create": 1}, "test", 14),
        ({"create": "c", "timeseries": {"timeField": "t"}}, "test", 238),
        ({"create": "c", "nonsense": 1}, "test", 40415),
        ({"create": "c"}, "config", 73),
        ({"drop": "oplog.rs"}, "local", 73),
        ({"dropDatabase": 2}, "test", 2),
        ({"dropDatabase": 1}, "local", 20),
        ({"listCollections": 1}, "a b", 73),
        ({"listCollections": 1, "filter": {"$nonsense": 1}}, "test", 2),
        ({"listDatabases": 1}, "test", 13),
        ({"listIndexes": "none"}, "test", 26),
        ({"createIndexes": "c", "indexes": [{"name": "a_1"}]}, "test", 40414),
        ({"createIndexes": "c", "indexes": [{**ID, "unique": False}]}, "test", 197),
        ({"createIndexes": "c", "indexes": [{**ID, "unique": True}]}, "test", 197),
        ({"createIndexes": "c", "indexes": [{**ID, "sparse": True}]}, "test", 197),
        ({"createIndexes": "c", "indexes": [{**ID, "expireAfterSeconds": 10}]}, "test", 197),
        ({"createIndexes": "c", "indexes": [{**ID, "partialFilterExpression": {"a": 1}}]}, "test", 197),
        ({"createIndexes": "c", "indexes": [{**ID, "hidden": True}], "ignoreUnknownIndexOptions": True}, "test", 197),
        ({"createIndexes": "c", "indexes": [{**ID, "nonsense": 1}]}, "test", 197),
        ({"createIndexes": "c", "indexes": [{**ID, "collation": {"locale": "fr"}}]}, "test", 2),
        ({"createIndexes": "c", "indexes": [{**ID, "name": "mine"}]}, "test", 85),
        ({"createIndexes": "c", "indexes": [{**ID, "name": ""}]}, "test", 9),
        ({"createIndexes": "c", "indexes": [{**ID, "name": 5}]}, "test", 14),
        ({"createIndexes": "c", "indexes": [{**ID, "v": 9}]}, "test", 67),
        ({"createIndexes": "c", "indexes": [{"key": {"_id": -1}, "name": "_id_"}]}, "test", 2),
        ({"createIndexes": "c", "indexes": [{"key": {"_id": "hashed"}, "name": "h"}]}, "test", 238),
        ({"createIndexes": "c", "indexes": [ID], "ignoreUnknownIndexOptions": "yes"}, "test", 14),
    ],
)
def test_refusals(client: Client, command: dict[str, object], db: str, code: int) -> None:
    assert client.code(command, db) == code


def test_a_secondary_refuses(client: Client, rig: Rig) -> None:
    rig.step_down()
    for command in ({"create": "c"}, {"drop": "c"}, {"dropDatabase": 1}):
        assert client.code(command) == 10107
