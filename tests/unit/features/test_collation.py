"""Commands with a collation: what they find, in which order, and that no index misleads them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rig import Client

LOOSE = {"locale": "en_US", "strength": 2}


@pytest.fixture(autouse=True)
def _some_documents(client: Client) -> None:
    index = {"key": {"a": 1}, "name": "a"}
    client.ok({"createIndexes": "c", "indexes": [index]})
    client.ok({"insert": "c"}, documents=[{"_id": "x", "a": "b"}, {"_id": "Y", "a": "B"}, {"_id": 3, "a": "a"}])


def found(client: Client, **fields: Any) -> list[Any]:
    reply = client.ok({"find": "c", "collation": LOOSE, **fields})
    return [document["_id"] for document in reply["cursor"]["firstBatch"]]


@pytest.mark.parametrize(
    ("filter_", "ids"),
    [({"a": "b"}, ["x", "Y"]), ({"_id": "y"}, ["Y"]), ({"_id": {"$in": ["X", 3]}}, ["x", 3]), ({"_id": 3}, [3])],
)
def test_find(client: Client, filter_: dict[str, Any], ids: list[Any]) -> None:
    assert found(client, filter=filter_) == ids
    assert found(client, filter=filter_, hint="a") == sorted(ids, key=["Y", 3, "x"].index)
    assert client.ok({"count": "c", "query": filter_, "collation": LOOSE})["n"] == len(ids)


def test_a_sort_takes_no_index(client: Client) -> None:
    assert found(client, sort={"a": 1}) == [3, "x", "Y"]
    assert found(client, sort={"_id": 1}) == [3, "x", "Y"]
    assert found(client, sort={"a": 1}, hint="a") == [3, "Y", "x"]


def test_distinct(client: Client) -> None:
    assert client.ok({"distinct": "c", "key": "a", "collation": LOOSE})["values"] == ["b", "a"]


def test_writes(client: Client) -> None:
    change = {"q": {"a": "B"}, "u": {"$set": {"z": 1}}, "multi": True, "collation": LOOSE}
    assert client.ok({"update": "c", "updates": [change]})["nModified"] == 2
    one = {"q": {"_id": "y"}, "u": {"a": "c"}, "collation": LOOSE}
    assert client.ok({"update": "c", "updates": [one]})["nModified"] == 1
    taken = client.ok({"findAndModify": "c", "query": {"_id": "X"}, "remove": True, "collation": LOOSE})
    assert taken["value"]["_id"] == "x"
    assert client.ok({"delete": "c", "deletes": [{"q": {"_id": "y"}, "limit": 1, "collation": LOOSE}]})["n"] == 1


@pytest.mark.parametrize(
    "command",
    [
        {"find": "c", "filter": {"$expr": {"$eq": ["$a", "b"]}}},
        {"find": "c", "projection": {"x": {"$eq": ["$a", "b"]}}},
        {"aggregate": "c", "pipeline": [], "cursor": {}},
        {"findAndModify": "c", "update": [{"$set": {"a": 1}}]},
    ],
)
def test_what_is_not_built(client: Client, command: dict[str, Any]) -> None:
    assert client.code({**command, "collation": LOOSE}) == 238


@pytest.mark.parametrize("name", ["find", "count"])
def test_the_oplog_is_read_without(client: Client, name: str) -> None:
    assert client.code({name: "oplog.rs", "collation": LOOSE}, "local") == 238
