"""update and delete: what they change, what enters the oplog, and each way to be refused."""

from __future__ import annotations

from typing import Any

import pytest

from replset.bson import ObjectId, decode
from replset.member.member import RunningMember
from tests.rig import Client, Rig


@pytest.fixture(autouse=True)
def _some_documents(client: Client) -> None:
    client.ok({"insert": "c", "documents": [{"_id": i, "a": i % 2, "b": "x"} for i in range(4)]})


def stored(client: Client, ns: str = "test.c") -> list[dict[str, Any]]:
    store = client.member.store
    coll = store.collection(ns)
    if coll is None:
        return []
    with store.read() as snapshot:
        return [decode(doc) for _, doc in snapshot.scan(coll)]


def update(client: Client, *updates: dict[str, object], **more: Any) -> dict[str, Any]:
    return client.ok({"update": "c", "updates": list(updates), **more})


def test_one_by_id(client: Client) -> None:
    client.ok({"insert": "c", "documents": [{"_id": 20, "a": 1, "b": "x" * 50}]})
    reply = update(client, {"q": {"_id": 20}, "u": {"$set": {"a": 9}}})
    assert (reply["n"], reply["nModified"]) == (1, 1)
    entry = client.entries()[-1]
    assert (entry["op"], entry["o2"], entry["o"]) == ("u", {"_id": 20}, {"$v": 2, "diff": {"u": {"a": 9}}})
    assert stored(client)[-1] == {"_id": 20, "a": 9, "b": "x" * 50}
    assert reply["opTime"]["ts"] == entry["ts"]


def test_the_first_that_matches(client: Client) -> None:
    reply = update(client, {"q": {"a": 1}, "u": {"$inc": {"a": 5}}})
    assert (reply["n"], reply["nModified"]) == (1, 1)
    assert [doc["a"] for doc in stored(client)] == [0, 6, 0, 1]


def test_all_that_match(client: Client) -> None:
    reply = update(client, {"q": {"a": 1}, "u": {"$inc": {"a": 5}}, "multi": True})
    assert (reply["n"], reply["nModified"]) == (2, 2)
    assert [doc["a"] for doc in stored(client)] == [0, 6, 0, 6]


def test_several_ids(client: Client) -> None:
    reply = update(client, {"q": {"_id": {"$in": [3, 1, 77]}}, "u": {"$set": {"b": "y"}}, "multi": True})
    assert (reply["n"], reply["nModified"]) == (2, 2)


def test_a_replacement(client: Client) -> None:
    update(client, {"q": {"_id": 1}, "u": {"z": 1}})
    assert client.entries()[-1]["o"] == {"_id": 1, "z": 1}
    assert stored(client)[1] == {"_id": 1, "z": 1}


def test_what_changes_nothing_writes_nothing_but_waits_for_what_it_saw(client: Client, rig: Rig) -> None:
    before = client.entries()
    statement = {"q": {"_id": 1}, "u": {"$set": {"b": "x"}}}
    reply = update(client, statement)
    assert (reply["n"], reply["nModified"]) == (1, 0)
    assert client.entries() == before
    assert reply["operationTime"] == before[-1]["ts"]
    rig.stop_disk()
    update(client, {"q": {"_id": 2}, "u": {"$set": {"b": "y"}}}, writeConcern={"w": 1})
    assert "writeConcernError" in update(client, statement, writeConcern={"w": "majority", "wtimeout": 1})


def test_an_upsert_that_finds_nothing_inserts(client: Client) -> None:
    reply = update(client, {"q": {"_id": 9, "k": 1}, "u": {"$set": {"a": 3}, "$setOnInsert": {"s": 1}}, "upsert": True})
    assert (reply["n"], reply["nModified"], reply["upserted"]) == (1, 0, [{"index": 0, "_id": 9}])
    assert client.entries()[-1]["o"] == {"_id": 9, "k": 1, "a": 3, "s": 1}


def test_an_upsert_that_finds_updates(client: Client) -> None:
    reply = update(client, {"q": {"_id": 1}, "u": {"$setOnInsert": {"s": 1}, "$set": {"b": "z"}}, "upsert": True})
    assert (reply["n"], reply["nModified"]) == (1, 1)
    assert "upserted" not in reply
    assert "s" not in stored(client)[1]


def test_an_upsert_makes_an_id_in_front_and_the_collection(client: Client) -> None:
    reply = client.ok({"update": "new", "updates": [{"q": {"k": 1}, "u": {"v": 2}, "upsert": True}]})
    made = reply["upserted"][0]["_id"]
    assert isinstance(made, ObjectId)
    create, insert = client.entries()[-2:]
    assert create["o"]["create"] == "new"
    assert list(insert["o"]) == ["_id", "v"]


def test_an_upsert_whose_key_is_taken(client: Client) -> None:
    reply = update(client, {"q": {"_id": 1, "b": "other"}, "u": {"$set": {"c": 1}}, "upsert": True})
    assert reply["writeErrors"][0]["code"] == 11000
    assert reply["writeErrors"][0]["keyValue"] == {"_id": 1}


def test_without_upsert_a_missing_collection_stays_missing(client: Client) -> None:
    assert client.ok({"update": "new", "updates": [{"q": {}, "u": {"$set": {"a": 1}}}]})["n"] == 0
    assert client.member.store.collection("test.new") is None


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ({"q": {"_id": 1}, "u": {"$set": {"_id": 5}}}, 66),
        ({"q": {"_id": 1}, "u": {"$inc": {"b": 1}}}, 14),
        ({"q": {"_id": 1}, "u": {"$nonsense": {"b": 1}}}, 9),
        ({"q": {"_id": 1}, "u": {"$set": {"a": 1}, "$inc": {"a": 1}}}, 40),
        ({"q": {"$nonsense": 1}, "u": {"a": 1}}, 2),
        ({"q": {}, "u": {"a": 1}, "multi": True}, 9),
        ({"q": {}, "u": 5}, 9),
        ({"q": {}, "u": [{"$match": {"a": 1}}]}, 72),
        ({"q": {}, "u": [{"$set": {"a": {"$divide": ["$a", 0]}}}]}, 2),
        ({"q": {"$expr": {"$toInt": "x"}}, "u": {"$set": {"a": 1}}}, 241),
        ({"q": {"_id": 1}, "u": {"$set": {"a": "x" * (16 << 20)}}}, 17419),
        ({"q": {"_id": [1]}, "u": {"$set": {"a": 1}}, "upsert": True}, 53),
        ({"q": {"_id": {"x": {"$y": 1}}}, "u": {"$set": {"_id": {"$a": 1}}}, "upsert": True}, 66),
    ],
)
def test_a_statement_that_fails_is_a_write_error_and_leaves_nothing(
    client: Client, statement: dict[str, object], code: int
) -> None:
    before = stored(client)
    reply = client.ok({"update": "c"}, updates=[statement])
    assert [error["code"] for error in reply["writeErrors"]] == [code]
    assert reply["n"] == 0
    assert stored(client) == before


def test_a_failing_multi_update_is_undone_alone(client: Client) -> None:
    client.ok({"update": "c", "updates": [{"q": {"_id": 3}, "u": {"$set": {"a": "text"}}}]})
    before, entries = stored(client), len(client.entries())
    reply = client.ok(
        {
            "update": "c",
            "ordered": False,
            "updates": [
                {"q": {}, "u": {"$inc": {"a": 1}}, "multi": True},
                {"q": {"_id": 0}, "u": {"$set": {"b": "new"}}},
            ],
        }
    )
    assert [(error["index"], error["code"]) for error in reply["writeErrors"]] == [(0, 14)]
    assert (reply["n"], reply["nModified"]) == (1, 1)
    assert stored(client)[1:] == before[1:]
    assert len(client.entries()) == entries + 1


def test_an_ordered_update_stops_at_the_first_error(client: Client) -> None:
    reply = update(client, {"q": {}, "u": {"$x": {}}}, {"q": {"_id": 1}, "u": {"$set": {"b": "new"}}})
    assert [error["index"] for error in reply["writeErrors"]] == [0]
    assert stored(client)[1]["b"] == "x"


def test_a_large_multi_update_goes_in_bounded_groups(client: Client, member: RunningMember) -> None:
    client.ok({"insert": "big"}, documents=[{"_id": i, "a": 1} for i in range(450)])
    before = client.rig.groups()
    reply = client.ok({"update": "big", "updates": [{"q": {"a": 1}, "u": {"$set": {"a": 2}}, "multi": True}]})
    assert (reply["n"], reply["nModified"]) == (450, 450)
    assert client.rig.groups() - before == 3


def test_the_upsert_of_a_long_search_remembers_what_earlier_groups_found(client: Client) -> None:
    client.ok({"insert": "big"}, documents=[{"_id": i, "a": int(i == 0)} for i in range(450)])
    reply = client.ok(
        {"update": "big", "updates": [{"q": {"a": 1}, "u": {"$set": {"a": 2}}, "multi": True, "upsert": True}]}
    )
    assert (reply["n"], reply["nModified"]) == (1, 1)
    assert "upserted" not in reply


def test_positional_and_array_filters(client: Client) -> None:
    client.ok({"insert": "c", "documents": [{"_id": 8, "v": [1, 5, 9]}]})
    update(client, {"q": {"_id": 8, "v": 5}, "u": {"$set": {"v.$": 50}}})
    update(client, {"q": {"_id": 8}, "u": {"$inc": {"v.$[big]": 1}}, "arrayFilters": [{"big": {"$gt": 8}}]})
    assert stored(client)[-1]["v"] == [1, 51, 10]


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ({"update": "c"}, 40414),
        ({"update": "c", "updates": [{"u": {}}]}, 40414),
        ({"update": "c", "updates": [{"q": {}}]}, 40414),
        ({"update": "c", "updates": [{"q": 1, "u": {}}]}, 14),
        ({"update": "c", "updates": [{"q": {}, "u": {}, "x": 1}]}, 40415),
        ({"update": "c", "updates": [{"q": {}, "u": {}, "multi": "yes"}]}, 14),
        ({"update": "c", "updates": [{"q": {}, "u": {}}], "let": {"a": "$b"}}, 4890500),
        ({"update": "c", "updates": [{"q": {}, "u": {}, "c": {"a": 1}}]}, 51198),
        ({"update": "system.x", "updates": [{"q": {}, "u": {}}]}, 73),
        ({"delete": "c"}, 40414),
        ({"delete": "c", "deletes": [{"q": {}}]}, 40414),
        ({"delete": "c", "deletes": [{"q": {}, "limit": 2}]}, 9),
        ({"delete": "c", "deletes": [{"q": {}, "limit": "1"}]}, 14),
        ({"delete": "c", "deletes": [{"q": {}, "limit": 1, "x": 1}]}, 40415),
        ({"delete": "c", "deletes": []}, 16),
        ({"delete": "", "deletes": [{"q": {}, "limit": 1}]}, 73),
    ],
)
def test_refusals(client: Client, command: dict[str, object], code: int) -> None:
    entries = len(client.entries())
    assert client.code(command) == code
    assert len(client.entries()) == entries


# --- delete -----------------------------------------------------------------------------------------------------


def test_delete_the_first_that_matches(client: Client) -> None:
    reply = client.ok({"delete": "c", "deletes": [{"q": {"a": 1}, "limit": 1}]})
    assert reply["n"] == 1
    entry = client.entries()[-1]
    assert (entry["op"], entry["o"]) == ("d", {"_id": 1})
    assert [doc["_id"] for doc in stored(client)] == [0, 2, 3]


def test_delete_all_that_match_and_all_there_are(client: Client) -> None:
    assert client.ok({"delete": "c", "deletes": [{"q": {"a": 1}, "limit": 0}]})["n"] == 2
    assert client.ok({"delete": "c", "deletes": [{"q": {}, "limit": 0}]})["n"] == 2
    assert stored(client) == []


def test_delete_what_is_not_there(client: Client) -> None:
    entries = len(client.entries())
    assert client.ok({"delete": "c", "deletes": [{"q": {"_id": 77}, "limit": 1}]})["n"] == 0
    assert client.ok({"delete": "none", "deletes": [{"q": {}, "limit": 0}]})["n"] == 0
    assert len(client.entries()) == entries


def test_delete_in_bounded_groups(client: Client, member: RunningMember) -> None:
    client.ok({"insert": "big"}, documents=[{"_id": i} for i in range(450)])
    before = client.rig.groups()
    assert client.ok({"delete": "big", "deletes": [{"q": {}, "limit": 0}]})["n"] == 450
    assert client.rig.groups() - before == 3


def test_a_bad_filter_is_a_write_error(client: Client) -> None:
    reply = client.ok({"delete": "c", "deletes": [{"q": {"a": {"$nonsense": 1}}, "limit": 0}]})
    assert reply["writeErrors"][0]["code"] == 2


@pytest.mark.parametrize(
    ("hint", "code"),
    [
        ("_id_", 0),
        ({"_id": 1}, 0),
        ({"$natural": 1}, 0),
        ("a_1", 2),
        ({"a": 1}, 2),
        ({"_id": 5}, 2),
        ({"_id": 1, "a": 1}, 2),
    ],
    ids=str,
)
def test_a_hint_names_an_index_that_is_there(client: Client, hint: object, code: int) -> None:
    client.ok({"insert": "c"}, documents=[{"_id": 1, "a": 1}])
    updates = [{"q": {"a": 1}, "u": {"$set": {"b": 1}}, "hint": hint}, {"q": {"a": 1}, "u": {"$set": {"c": 1}}}]
    deletes = [{"q": {"a": 1}, "limit": 1, "hint": hint}]
    reply = client.ok({"update": "c", "ordered": False}, updates=updates)
    assert [error["code"] for error in reply.get("writeErrors", [])] == ([code] if code else [])
    assert reply["n"] == (1 if code else 2)
    reply = client.ok({"delete": "c"}, deletes=deletes)
    assert [error["code"] for error in reply.get("writeErrors", [])] == ([code] if code else [])
    assert reply["n"] == (0 if code else 1)


def test_a_hint_that_is_none_is_refused(client: Client) -> None:
    assert client.code({"delete": "c"}, deletes=[{"q": {}, "limit": 1, "hint": 5}]) == 9
    assert client.code({"update": "c"}, updates=[{"q": {}, "u": {}, "hint": True}]) == 9
