"""createIndexes, dropIndexes, listIndexes: what they make, what they refuse, and their entries."""

from __future__ import annotations

from typing import Any

import pytest

from replset.bson import Binary, DateTime, Decimal128, RawDocument, encode, encode_key
from replset.features.collections.index_check import IndexCheck
from replset.features.scrub.corrections import correct
from replset.member.member import RunningMember
from replset.storage import indexes
from replset.storage.snapshot import Snapshot
from tests.rig import Client, Rig


def create(client: Client, *indexes: dict[str, Any], **options: object) -> dict[str, Any]:
    return client.run({"createIndexes": "c", "indexes": list(indexes), **options})


def listed(client: Client) -> list[dict[str, Any]]:
    return list(client.ok({"listIndexes": "c"})["cursor"]["firstBatch"][1:])


def insert(client: Client, *documents: dict[str, Any]) -> dict[str, Any]:
    return client.ok({"insert": "c", "documents": list(documents)})


def is_sound(member: RunningMember) -> bool:
    """Whether every index of test.c holds exactly what its documents say."""
    coll = member.store.collection("test.c")
    assert coll is not None
    for index in coll.indexes:
        check = IndexCheck(coll, index)
        with member.store.read() as snapshot:
            while check.next_slice(snapshot, 3):
                pass
        if check.missing or check.extra or index.position is not None:
            return False
    return True


A = {"key": {"a": 1}, "name": "a_1"}


def test_an_index_of_an_empty_collection_is_one_entry(client: Client, member: RunningMember) -> None:
    reply = create(client, A, {"key": {"b.c": -1, "d": 1.0}, "unique": 1, "sparse": True})
    assert (reply["numIndexesBefore"], reply["numIndexesAfter"]) == (1, 3)
    assert (reply["createdCollectionAutomatically"], reply["commitQuorum"]) == (True, "votingMembers")
    second = {"v": 2, "key": {"b.c": -1, "d": 1.0}, "name": "b.c_-1_d_1", "unique": True, "sparse": True}
    assert listed(client) == [{"v": 2, **A}, second]
    entries = client.entries()
    assert [entry["o"] for entry in entries[1:]] == [
        {"createIndexes": "c", "v": 2, **A},
        {"createIndexes": "c", **second},
    ]
    assert all(entry["ui"] == entries[0]["ui"] and entry["ns"] == "test.$cmd" for entry in entries)
    insert(client, {"_id": 1, "a": [1, 2]}, {"_id": 2})
    assert is_sound(member)


def test_which_flags_are_listed_when_they_are_false(client: Client) -> None:
    flags = {"unique": False, "hidden": False, "sparse": False, "background": 0}
    create(client, {**A, **flags, "partialFilterExpression": {"a": 1}})
    kept = {"sparse": False, "background": False, "partialFilterExpression": {"a": 1}}
    assert listed(client) == [{"v": 2, **A, **kept}]
    assert create(client, {**A, "partialFilterExpression": {"a": 1}})["numIndexesAfter"] == 2


def test_documents_are_indexed_by_a_build(client: Client, member: RunningMember) -> None:
    insert(client, *[{"_id": n, "a": n % 10} for n in range(100)])
    assert create(client, A)["numIndexesAfter"] == 2
    start, commit = client.entries()[-2:]
    build = start["o"]["indexBuildUUID"]
    assert isinstance(build, Binary)
    assert start["o"] == {"startIndexBuild": "c", "indexBuildUUID": build, "indexes": [{"v": 2, **A}]}
    assert commit["o"] == {"commitIndexBuild": "c", "indexBuildUUID": build, "indexes": [{"v": 2, **A}]}
    assert is_sound(member)
    client.ok({"delete": "c", "deletes": [{"q": {"a": 3}, "limit": 0}]})
    client.ok({"update": "c", "updates": [{"q": {"a": 4}, "u": {"$set": {"a": "x"}}, "multi": True}]})
    assert is_sound(member)
    reply = create(client, A)
    assert (reply["note"], reply["numIndexesBefore"]) == ("all indexes already exist", 2)


def test_a_build_finds_a_duplicate(client: Client, member: RunningMember) -> None:
    insert(client, {"_id": 1, "a": 5}, {"_id": 2, "a": 5})
    reply = create(client, {**A, "unique": True})
    assert (reply["code"], reply["keyPattern"], reply["keyValue"]) == (11000, {"a": 1}, {"a": 5})
    abort = client.entries()[-1]["o"]
    assert next(iter(abort)) == "abortIndexBuild"
    assert abort["cause"] == {"ok": False, "code": 11000, "codeName": "DuplicateKey", "errmsg": reply["errmsg"]}
    assert listed(client) == []
    assert client.ok({"drop": "c"})["nIndexesWas"] == 1


def test_unique(client: Client, member: RunningMember) -> None:
    create(client, {**A, "unique": True})
    insert(client, {"_id": 1, "a": [1, 2]}, {"_id": 2, "a": 3})
    error = insert(client, {"_id": 3, "a": [9, 2]})["writeErrors"][0]
    assert error["errmsg"] == "E11000 duplicate key error collection: test.c index: a_1 dup key: { a: 2 }"
    assert (error["code"], error["keyPattern"], error["keyValue"]) == (11000, {"a": 1}, {"a": 2})
    reply = client.ok({"update": "c", "updates": [{"q": {"_id": 2}, "u": {"$set": {"a": 1}}}]})
    assert reply["writeErrors"][0]["code"] == 11000
    client.ok({"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"a": [2, 7]}}}]})
    insert(client, {"_id": 4})
    assert insert(client, {"_id": 5, "a": None})["writeErrors"][0]["keyValue"] == {"a": None}
    assert is_sound(member)


@pytest.mark.parametrize("options", [{"sparse": True}, {"partialFilterExpression": {"a": {"$exists": True}}}])
def test_unique_with_documents_left_out(client: Client, member: RunningMember, options: dict[str, Any]) -> None:
    create(client, {**A, "unique": True, **options})
    assert "writeErrors" not in insert(client, {"_id": 1}, {"_id": 2}, {"_id": 3, "a": 1})
    assert insert(client, {"_id": 4, "a": 1})["writeErrors"][0]["code"] == 11000
    assert is_sound(member)


def test_parallel_arrays(client: Client, member: RunningMember) -> None:
    create(client, {"key": {"a": 1, "b": 1}})
    assert insert(client, {"_id": 1, "a": [1], "b": [2]})["writeErrors"][0]["code"] == 171
    client.ok({"dropIndexes": "c", "index": "a_1_b_1"})
    insert(client, {"_id": 1, "a": [1], "b": [2]})
    assert create(client, {"key": {"a": 1, "b": 1}})["code"] == 171
    assert listed(client) == []


@pytest.mark.parametrize(
    ("other", "code"),
    [
        ({"key": {"b": 1}, "name": "a_1"}, 86),
        ({**A, "unique": True}, 86),
        ({**A, "expireAfterSeconds": 5}, 85),
        ({"key": {"a": 1.0}, "name": "other"}, 85),
        ({"key": {"a": 1}, "name": "other", "expireAfterSeconds": 5}, 85),
        ({"key": {"a": 1}, "name": "other", "sparse": True}, 0),
        ({"key": {"a": -1}, "name": "other"}, 0),
        ({"key": {"a": 1}, "name": "other", "partialFilterExpression": {"b": 1}}, 0),
        ({**A, "background": True}, 0),
    ],
)
def test_conflicts(client: Client, other: dict[str, Any], code: int) -> None:
    create(client, A)
    assert create(client, other).get("code", 0) == code


@pytest.mark.parametrize(
    ("index", "code"),
    [
        ({"key": {}}, 67),
        ({"key": {"a": 0}}, 67),
        ({"key": {"a": True}}, 67),
        ({"key": {"a": "nonsense"}}, 67),
        ({"key": {"a..b": 1}}, 67),
        ({"key": {"": 1}}, 67),
        ({"key": {"$a": 1}}, 67),
        ({"key": {f"f{n}": 1 for n in range(33)}}, 67),
        ({"key": {"x" * 2100: 1}}, 67),
        ({"key": {"a": "text"}}, 238),
        ({"key": {"a": "2dsphere"}}, 238),
        ({"key": {"a": "hashed"}}, 238),
        ({"key": {"a.$**": 1}}, 238),
        ({**A, "name": ""}, 67),
        ({**A, "name": "*"}, 2),
        ({**A, "name": "_id_"}, 2),
        ({**A, "v": 3}, 67),
        ({**A, "unique": "yes"}, 14),
        ({**A, "nonsense": 1}, 197),
        ({**A, "storageEngine": {"x": 1}}, 238),
        ({**A, "prepareUnique": True}, 238),
        ({**A, "expireAfterSeconds": "5"}, 14),
        ({**A, "expireAfterSeconds": -1}, 67),
        ({**A, "expireAfterSeconds": 1 << 31}, 67),
        ({"key": {"a": 1, "b": 1}, "expireAfterSeconds": 5}, 67),
        ({**A, "partialFilterExpression": 5}, 14),
        ({**A, "partialFilterExpression": {"b": {"$nonsense": 1}}}, 2),
        ({**A, "partialFilterExpression": {"b": {"$ne": 1}}}, 67),
        ({**A, "partialFilterExpression": {"b": {"$exists": False}}}, 67),
        ({**A, "partialFilterExpression": {"$nor": [{"b": 1}]}}, 67),
        ({**A, "partialFilterExpression": {"b": 1}, "sparse": True}, 67),
    ],
)
def test_refused_indexes(client: Client, index: dict[str, Any], code: int) -> None:
    assert create(client, index)["code"] == code


@pytest.mark.parametrize(
    "index",
    [
        {**A, "hidden": True},
        {**A, "collation": {"locale": "simple"}},
        {**A, "v": 1},
        {**A, "expireAfterSeconds": 3.5},
        {"key": {"a.$id": 1}},
        {**A, "partialFilterExpression": {"$or": [{"b": {"$in": [1, 2]}}, {"$and": [{"c": {"$type": "int"}}]}]}},
    ],
)
def test_taken_indexes(client: Client, index: dict[str, Any]) -> None:
    assert create(client, index)["ok"] == 1.0


def test_at_most_64_indexes(client: Client) -> None:
    assert create(client, *[{"key": {f"f{n}": 1}} for n in range(63)])["numIndexesAfter"] == 64
    assert create(client, A)["code"] == 67


@pytest.mark.parametrize("quorum", [1, "majority", "votingMembers"])
def test_commit_quorum(client: Client, rig: Rig, quorum: object) -> None:
    insert(client, {"_id": 1})
    assert create(client, A, commitQuorum=quorum, writeConcern={"w": 1})["commitQuorum"] == quorum
    assert quorum != "majority" or rig.member().node.commit_point == rig.newest()


def test_a_commit_quorum_that_is_not_met(client: Client) -> None:
    insert(client, {"_id": 1})
    assert create(client, A, commitQuorum=2, writeConcern={"w": 1})["writeConcernError"]["code"] == 100


@pytest.mark.parametrize("quorum", [-1, 51, 1.5, True, {"a": 1}])
def test_no_commit_quorum(client: Client, quorum: object) -> None:
    assert create(client, A, commitQuorum=quorum)["code"] == 9


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ("a_1", ["b_1", "c_1"]),
        (["a_1", "c_1"], ["b_1"]),
        ({"b": 1.0}, ["a_1", "c_1"]),
        ("*", []),
        ([], ["a_1", "b_1", "c_1"]),
    ],
)
def test_drop_indexes(client: Client, given: object, left: list[str]) -> None:
    create(client, *[{"key": {name: 1}} for name in "abc"])
    assert client.ok({"dropIndexes": "c", "index": given})["nIndexesWas"] == 4
    assert [index["name"] for index in listed(client)] == left


def test_the_entry_of_a_drop(client: Client) -> None:
    create(client, A)
    client.ok({"deleteIndexes": "c", "index": "a_1"})
    entry = client.entries()[-1]
    assert (entry["o"], entry["o2"]) == ({"dropIndexes": "c", "index": "a_1"}, {"v": 2, **A})


@pytest.mark.parametrize(
    ("given", "code"),
    [("none", 27), ({"b": 1}, 27), ("_id_", 72), ({"_id": 1}, 72), (["a_1", "none"], 27), (5, 14), ([5], 14)],
)
def test_drops_that_are_refused(client: Client, given: object, code: int) -> None:
    create(client, A)
    assert client.code({"dropIndexes": "c", "index": given}) == code
    assert len(listed(client)) == 1


def test_other_refusals(client: Client) -> None:
    create(client, A, {**A, "name": "sparse", "sparse": True})
    assert client.code({"dropIndexes": "c", "index": {"a": 1}}) == 181
    assert client.code({"dropIndexes": "none", "index": "*"}) == 26
    assert client.code({"dropIndexes": "c"}) == 40414
    assert client.code({"createIndexes": "c", "indexes": []}) == 2
    assert client.code({"reIndex": "c"}) == 20


def test_an_update_of_many_stops_at_a_duplicate(client: Client, member: RunningMember) -> None:
    create(client, {**A, "unique": True})
    insert(client, *[{"_id": n, "a": n} for n in range(5)])
    reply = client.ok({"update": "c", "updates": [{"q": {}, "u": {"$set": {"a": 9}}, "multi": True}]})
    assert reply["writeErrors"][0]["code"] == 11000
    assert is_sound(member)


def test_a_replaced_array_leaves_no_entries(client: Client, member: RunningMember) -> None:
    create(client, {"key": {"a.b": 1}})
    insert(client, {"_id": 1, "a": [{"b": n} for n in range(20)]})
    client.ok({"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"a": {"b": DateTime(5)}}}}]})
    coll = member.store.collection("test.c")
    assert coll is not None
    with member.store.read() as snapshot:
        entries = snapshot.index_scan(coll.indexes[0], b"", None, limit=99)
    assert entries == [(encode_key(DateTime(5)), encode_key(1))]
    assert coll.indexes[0].multikey
    assert isinstance(coll.indexes[0].spec, RawDocument)


def test_a_direction_that_is_a_decimal_is_refused(client: Client) -> None:
    assert create(client, {"key": {"a": Decimal128("1")}, "name": "a"})["code"] == 67


def test_keys_of_a_large_array_are_made_when_it_changes(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    many = [f"item {number}" for number in range(1_000)]
    specs = [{"key": key, "name": name} for name, key in (("a", {"a": 1}), ("ab", {"a": 1, "b": 1}), ("b", {"b": 1}))]
    client.ok({"createIndexes": "c", "indexes": specs})
    client.ok({"insert": "c", "documents": [{"_id": 1, "a": many, "b": 1}]})
    made: list[str] = []
    make = indexes._keys

    def keys(index: indexes.Index, document: bytes) -> tuple[set[bytes], int]:
        made.append(index.name)
        return make(index, document)

    monkeypatch.setattr(indexes, "_keys", keys)
    for change, about in (
        ({"$set": {"z": 1}}, set()),
        ({"$set": {"b": 2}}, {"ab", "b"}),
        ({"$unset": {"b": 1}}, {"ab", "b"}),
        ({"$set": {"z": 2}}, set()),
        ({"$set": {"a.5": "other"}}, {"a", "ab"}),
        ({"$set": {"b": [2]}}, None),
    ):
        made.clear()
        client.run({"update": "c", "updates": [{"q": {"_id": 1}, "u": change}]})
        assert about is None or set(made) == about, change
        assert client.ok({"validate": "c"})["valid"]


def test_the_keys_of_one_document_in_all_indexes_are_limited(
    client: Client, member: RunningMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexes, "KEYS_MAX", 10)
    create(client, A, {"key": {"b": 1}, "name": "b_1"})
    insert(client, {"_id": 1, "a": list(range(5)), "b": list(range(5))})
    [error] = client.run({"insert": "c", "documents": [{"_id": 2, "a": [*range(6)], "b": [*range(5)]}]})["writeErrors"]
    assert (error["code"], "together" in error["errmsg"]) == (201, True)
    assert is_sound(member)


def test_the_values_of_one_document_in_all_indexes_are_limited(
    client: Client, member: RunningMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexes, "VALUES_MAX", 100)
    document = {"_id": 1, "a": [7] * 60, "padding": "x" * indexes.LARGE}
    create(client, A)
    insert(client, document)
    second = {"key": {"a": 1, "b": 1}, "name": "ab"}
    assert create(client, second)["code"] == 201  # by a build: its keys would be removed together with the others
    client.ok({"dropIndexes": "c", "index": "*"})
    client.ok({"delete": "c", "deletes": [{"q": {}, "limit": 0}]})
    create(client, A, second)
    [error] = client.run({"insert": "c", "documents": [document]})["writeErrors"]
    assert (error["code"], "together" in error["errmsg"]) == (201, True)
    assert is_sound(member)


def test_a_document_with_many_keys_is_read_once_in_a_slice(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    create(client, A)
    insert(client, {"_id": 1, "a": list(range(100))})
    read: list[bytes] = []
    get = Snapshot.get
    monkeypatch.setattr(Snapshot, "get", lambda *place: read.append(place[2]) or get(*place))
    for order in ({"a": 1}, {"a": -1}):
        reply = client.ok({"find": "c", "filter": {"a": {"$gte": 10}}, "hint": "a_1", "sort": order})
        assert [doc["_id"] for doc in reply["cursor"]["firstBatch"]] == [1]
    assert len(read) == 2


def test_a_document_that_is_corrected_is_found_by_each_of_its_keys(client: Client, member: RunningMember) -> None:
    """Also where the index had no document with several keys: its bounds are no more those of one value."""
    create(client, A)
    insert(client, {"_id": 1, "a": 5}, {"_id": 2, "a": 6})

    def found(query: object) -> list[object]:
        command = {"find": "c", "filter": {"a": query}, "hint": "a_1", "sort": {"_id": 1}}
        return [document["_id"] for document in client.ok(command)["cursor"]["firstBatch"]]

    for before, after in (({"a": 5}, {"a": [7, 9]}), ({"a": [7, 9]}, {"a": 6}), ({"a": 6}, None), (None, {"a": 5})):
        coll = member.store.collection("test.c")
        assert coll is not None
        old, new = (None if fields is None else encode({"_id": 1, **fields}) for fields in (before, after))
        with member.store.maintenance() as txn:
            correct(txn, coll, encode_key(1), old, new)
        is_array = after == {"a": [7, 9]}
        assert [found(7), found(9), found({"$gt": 8, "$lt": 8})] == [[1]] * 3 if is_array else [[]] * 3
        assert found({"$in": [5, 6]}) == ([2] if after is None or is_array else [1, 2])
        assert is_sound(member)
