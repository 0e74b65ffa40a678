"""`min` and `max` of find: the documents between two keys of the hinted index. And `returnKey`: the keys alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rig import Client
from tests.unit.features.test_transactions import Session

DOCS: list[dict[str, Any]] = [{"_id": n, "a": n % 10, "b": n, "t": [n % 3, 10 + n % 3]} for n in range(30)]
BY_A = sorted(DOCS, key=lambda doc: (doc["a"], -doc["b"]))
"""In the order of the index."""
BOTH = {"min": {"a": 3, "b": 13}, "max": {"a": 5, "b": 15}, "hint": {"a": 1, "b": -1}}
BETWEEN = [doc for doc in BY_A if (3, -13) <= (doc["a"], -doc["b"]) < (5, -15)]


@pytest.fixture(autouse=True)
def _filled(client: Client) -> None:
    client.ok({"insert": "c", "documents": DOCS})
    keys: list[dict[str, int]] = [{"a": 1, "b": -1}, {"t": 1}]
    indexes = [{"key": key, "name": "_".join(key)} for key in keys]
    client.ok({"createIndexes": "c", "indexes": indexes})


def found(client: Client | Session, **query: Any) -> list[Any]:
    return list(client.ok({"find": "c", **query})["cursor"]["firstBatch"])


def test_documents_between_two_keys(client: Client) -> None:
    assert found(client, **BOTH) == BETWEEN
    assert [doc["_id"] for doc in BETWEEN] == [13, 3, 24, 14, 4, 25]
    assert found(client, **{**BOTH, "max": {}}) == BY_A[BY_A.index(BETWEEN[0]) :]
    assert found(client, **{**BOTH, "min": None}) == BY_A[: BY_A.index(BETWEEN[-1]) + 1]
    assert found(client, **BOTH, filter={"b": {"$gt": 4}, "_id": {"$ne": 24}}, limit=2) == [DOCS[13], DOCS[14]]
    assert found(client, **BOTH, filter={"_id": 5}) == []
    assert found(client, **{**BOTH, "hint": "a_b"}, filter={"_id": 4}) == [DOCS[4]]


@pytest.mark.parametrize(
    ("sort", "is_sorted"), [({"a": -1, "b": 1}, True), ({"a": 1}, True), ({"b": 1}, False), ({"t": 1}, False)]
)
def test_sorted(client: Client, sort: dict[str, int], is_sorted: bool) -> None:
    in_order = found(client, filter={"_id": {"$in": [doc["_id"] for doc in BETWEEN]}}, sort={**sort, "_id": -1})
    key = [tuple(doc[path] for path in sort) for doc in in_order]
    assert [tuple(doc[path] for path in sort) for doc in found(client, **BOTH, sort=sort)] == key
    plan = client.ok({"explain": {"find": "c", **BOTH, "sort": sort}, "verbosity": "queryPlanner"})
    assert (plan["queryPlanner"]["winningPlan"]["stage"] == "FETCH") is is_sorted


def test_by_id_and_by_items(client: Client) -> None:
    between = {"min": {"_id": 7}, "max": {"_id": 10}, "hint": {"_id": 1}}
    assert found(client, **between) == DOCS[7:10]
    assert found(client, **between, sort={"_id": -1}) == DOCS[9:6:-1]
    items = found(client, min={"t": 2}, max={"t": 12}, hint={"t": 1})
    assert [doc["t"][0] for doc in items] == [2] * 10 + [0] * 10 + [1] * 10  # each once, at its first key from 2 on
    session = Session(client)
    session.ok({"insert": "c", "documents": [{"_id": 8.5, "a": 4, "b": 2}]})
    assert [doc["_id"] for doc in found(session, **between)] == [7, 8, 8.5, 9]
    assert [doc["_id"] for doc in found(session, **BOTH)] == [13, 3, 24, 14, 4, 8.5, 25]


def test_explain_names_the_keys(client: Client) -> None:
    plan = client.ok({"explain": {"find": "c", **BOTH}, "verbosity": "executionStats"})
    scan = plan["queryPlanner"]["winningPlan"]["inputStage"]
    assert (scan["stage"], scan["indexName"]) == ("IXSCAN", "a_b")
    inclusive = {"startKeyInclusive": True, "endKeyInclusive": False}
    assert scan["indexBounds"] == {"startKey": BOTH["min"], "endKey": BOTH["max"], **inclusive}
    assert plan["executionStats"]["totalKeysExamined"] == len(BETWEEN)


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({"min": {"a": 1, "b": 1}}, 51173),
        ({"min": {"a": 1, "b": 1}, "hint": {"$natural": 1}}, 291),
        ({"min": {"a": 1, "b": 1}, "hint": "a_b", "sort": {"$natural": 1}}, 291),
        ({"min": {"a": 1, "b": 1}, "hint": "gone"}, 2),
        ({"min": {"b": 1, "a": 1}, "hint": "a_b"}, 51174),
        ({"max": {"a": 1}, "hint": "a_b"}, 51174),
        ({"max": {"a": 1, "b": 1}, "hint": "_id_"}, 51174),
        ({"min": {"a": 2, "b": 1}, "max": {"a": 1, "b": 1}, "hint": "a_b"}, 51175),
        ({"min": {"_id": 1}, "max": {"_id": 1.0}, "hint": "_id_"}, 51175),
        ({"min": {"a": 1}, "max": {"b": 1}, "hint": "a_b"}, 51176),
        ({"min": 5, "hint": "a_b"}, 14),
    ],
)
def test_refused(client: Client, query: dict[str, Any], code: int) -> None:
    assert client.code({"find": "c", **query}) == code


def test_refused_where_there_is_no_index(client: Client) -> None:
    between = {"min": {"_id": 1}, "hint": {"_id": 1}}
    client.ok({"create": "v", "viewOn": "c"})
    assert client.code({"find": "v", **between}) == 168
    assert client.code({"find": "oplog.rs", "min": {"ts": 1}, "hint": {"ts": 1}}, "local") == 2
    assert client.ok({"find": "none", **between})["cursor"]["firstBatch"] == []


@pytest.mark.parametrize(
    ("query", "keys"),
    [
        ({"filter": {"_id": {"$gt": 27}}, "showRecordId": True}, [{"_id": 28}, {"_id": 29}]),
        ({"filter": {"_id": 5}, "projection": {"a": 1}}, [{"_id": 5}]),
        ({"filter": {"a": 4}, "limit": 2}, [{"a": 4, "b": 24}, {"a": 4, "b": 14}]),
        ({"filter": {"a": 4}, "sort": {"_id": 1}, "skip": 2}, [{"a": 4, "b": 24}]),
        ({"filter": {"t": {"$gte": 12}, "_id": {"$lt": 3}}, "hint": {"t": 1}}, [{"t": 12}]),
        ({"filter": {"$or": [{"_id": 3}, {"a": 4, "b": 4}]}}, [{"_id": 3}, {"a": 4, "b": 4}]),
        ({"filter": {"b": 7}}, [{}]),
    ],
    ids=str,
)
def test_keys_alone(client: Client, query: dict[str, Any], keys: list[Any]) -> None:
    assert found(client, **query, returnKey=True) == keys
    plan = client.ok({"explain": {"find": "c", **query, "returnKey": True}, "verbosity": "queryPlanner"})
    assert plan["queryPlanner"]["winningPlan"]["stage"] == "RETURN_KEY"


def test_keys_that_are_refused(client: Client) -> None:
    client.ok({"create": "v", "viewOn": "c", "pipeline": []})
    client.ok({"create": "capped", "capped": True, "size": 4096})
    assert client.code({"find": "v", "returnKey": True}) == 168
    assert client.code({"find": "capped", "tailable": True, "returnKey": True}) == 238
    assert client.code({"find": "c", "showRecordId": True}) == 238
    assert len(found(client, returnKey=False, showRecordId=False)) == len(DOCS)
