"""Expressions outside pipelines: $expr and `let`, find's projection, updates by a pipeline and their constants."""

from __future__ import annotations

from typing import Any

import pytest

from replset.bson import DateTime, Timestamp
from tests.rig import Client

TEXT = "long enough for a difference to be shorter " * 2
DOCUMENTS: list[dict[str, Any]] = [
    {"_id": 1, "a": 1, "l": [1, 5, 9]},
    {"_id": 2, "a": 2, "l": [4, 4], "text": TEXT},
    {"_id": 3, "a": 3, "o": {"l": [{"x": 1, "y": "one"}, {"x": 2, "y": "two"}]}},
]


@pytest.fixture
def filled(client: Client) -> Client:
    client.ok({"insert": "e", "documents": DOCUMENTS})
    return client


def found(client: Client, **find: Any) -> list[Any]:
    batch = client.ok({"find": "e", **find})["cursor"]["firstBatch"]
    assert isinstance(batch, list)
    return batch


def ids(client: Client, **find: Any) -> list[Any]:
    return [document["_id"] for document in found(client, **find)]


def test_filters_with_variables(filled: Client) -> None:
    let = {"low": 1, "high": {"$add": ["$$low", 1]}}
    query = {"$expr": {"$and": [{"$gt": ["$a", "$$low"]}, {"$lte": ["$a", "$$high"]}]}}
    assert ids(filled, filter=query, let=let) == [2]
    assert ids(filled, filter={"$expr": {"$in": [5, {"$ifNull": ["$l", []]}]}}) == [1]
    assert filled.ok({"count": "e", "query": {"$expr": {"$lt": ["$a", 3]}}})["n"] == 2
    assert filled.ok({"distinct": "e", "key": "a", "query": {"$expr": {"$lt": ["$a", 3]}}})["values"] == [1, 2]
    pipeline = [{"$match": query}, {"$project": {"v": "$$high", "_id": 0}}]
    assert filled.ok({"aggregate": "e", "pipeline": pipeline, "cursor": {}, "let": let})["cursor"]["firstBatch"] == [
        {"v": 2}
    ]


def test_the_time_is_the_same_for_the_whole_command(filled: Client) -> None:
    shown = found(filled, projection={"now": "$$NOW", "ts": "$$CLUSTER_TIME", "_id": 0})
    assert len({(one["now"], one["ts"]) for one in shown}) == 1
    assert isinstance(shown[0]["now"], DateTime)
    assert isinstance(shown[0]["ts"], Timestamp)


def test_projections(filled: Client) -> None:
    assert found(filled, filter={"_id": 1}, projection={"n": {"$size": "$l"}, "k": "$$k"}, let={"k": "x"}) == [
        {"_id": 1, "n": 3, "k": "x"}
    ]
    assert found(filled, filter={"l": {"$gt": 3}}, projection={"l.$": 1}) == [
        {"_id": 1, "l": [5]},
        {"_id": 2, "l": [4]},
    ]
    assert found(filled, filter={"o.l.x": 2}, projection={"o.l.$": 1, "a": 1}) == [
        {"_id": 3, "a": 3, "o": {"l": [{"x": 2, "y": "two"}]}}
    ]
    shown = filled.ok({"findAndModify": "e", "query": {"l": 9}, "update": {"$inc": {"a": 1}}, "fields": {"l.$": 1}})
    assert shown["value"] == {"_id": 1, "l": [9]}


@pytest.mark.parametrize(
    ("find", "code"),
    [
        ({"filter": {"a": 1}, "projection": {"l.$": 1}}, 51246),
        ({"projection": {"l.$": 1}}, 51246),
        ({"projection": {"l.$": 1, "o.$": 1}}, 31276),
        ({"projection": {"l.$.x": 1}}, 31394),
        ({"projection": {"l.$": 0}}, 31395),
        ({"projection": {"l.$": {"$add": [1, 2]}}}, 31271),
        ({"projection": {"l.$": 1, "o": {"$elemMatch": {"x": 1}}}}, 31255),
        ({"filter": {"$expr": {"$eq": ["$a", "$$v"]}}}, 17276),
        ({"filter": {"$expr": {"$divide": ["$a", 0]}}}, 2),
        ({"projection": {"x": {"$toInt": "$o"}}}, 241),
        ({"projection": {"x": {"$meta": "textScore"}}}, 238),
    ],
)
def test_refusals(filled: Client, find: dict[str, Any], code: int) -> None:
    assert filled.code({"find": "e", **find}) == code


def update(client: Client, query: dict[str, Any], change: object, let: object = None, **more: Any) -> dict[str, Any]:
    command = {"update": "e", "updates": [{"q": query, "u": change, **more}], **({} if let is None else {"let": let})}
    reply = client.ok(command)
    assert "writeErrors" not in reply, reply
    return reply


def test_a_pipeline_changes_documents_and_is_logged_as_a_difference(filled: Client) -> None:
    change = [{"$set": {"sum": {"$add": ["$a", "$$k", "$$c"]}}}, {"$unset": ["l"]}]
    query = {"$expr": {"$lt": ["$a", "$$k"]}}
    reply = update(filled, query, change, {"k": 3}, multi=True, c={"c": 10})
    assert (reply["n"], reply["nModified"]) == (2, 2)
    assert found(filled, filter={"_id": {"$lt": 3}}) == [
        {"_id": 1, "a": 1, "sum": 14},
        {"_id": 2, "a": 2, "text": TEXT, "sum": 15},
    ]
    entry = filled.entries()[-1]
    assert entry["op"] == "u"
    assert entry["o"] == {"$v": 2, "diff": {"d": {"l": False}, "i": {"sum": 15}}}


def test_a_pipeline_that_changes_nothing(filled: Client) -> None:
    entries = len(filled.entries())
    reply = update(filled, {"_id": 1}, [{"$set": {"a": {"$abs": "$a"}}}])
    assert (reply["n"], reply["nModified"]) == (1, 0)
    assert len(filled.entries()) == entries


def test_a_pipeline_upserts(filled: Client) -> None:
    change = [{"$set": {"n": {"$add": [{"$ifNull": ["$n", 0]}, 1]}, "literal": "$$c"}}]
    reply = update(filled, {"_id": 9, "k": "x"}, change, upsert=True, c={"c": "$a"})
    assert reply["upserted"] == [{"index": 0, "_id": 9}]
    update(filled, {"_id": 9}, change, upsert=True, c={"c": "$a"})
    assert found(filled, filter={"_id": 9}) == [{"_id": 9, "k": "x", "n": 2, "literal": "$a"}]


def test_find_and_modify_with_a_pipeline(filled: Client) -> None:
    command = {
        "findAndModify": "e",
        "query": {"$expr": {"$eq": ["$a", "$$v"]}},
        "update": [{"$replaceWith": {"was": "$a", "by": "$$v"}}],
        "new": True,
        "fields": {"was": 1, "by": 1, "twice": {"$multiply": ["$was", "$$v"]}},
        "let": {"v": 2},
    }
    assert filled.ok(command)["value"] == {"_id": 2, "was": 2, "by": 2, "twice": 4}


def test_delete_with_a_variable(filled: Client) -> None:
    deletes = [{"q": {"$expr": {"$gte": ["$a", "$$v"]}}, "limit": 0}]
    assert filled.ok({"delete": "e", "deletes": deletes, "let": {"v": 2}})["n"] == 2
    assert ids(filled) == [1]


def test_a_validator_with_an_expression(client: Client) -> None:
    client.ok({"create": "v", "validator": {"$expr": {"$lt": ["$low", "$high"]}}})
    client.ok({"insert": "v", "documents": [{"_id": 1, "low": 1, "high": 2}]})
    reply = client.ok({"insert": "v", "documents": [{"_id": 2, "low": 3, "high": 2}]})
    assert reply["writeErrors"][0]["code"] == 121
