"""Pipelines that begin with documents about the member: $indexStats, $collStats, $currentOp, lists of sessions."""

from __future__ import annotations

from typing import Any

import pytest

from replset.bson import Binary, Int64
from tests.rig import Client
from tests.unit.features.test_transactions import A, B, Session

LSID = {"id": Binary(b"s" * 16, 4)}


def run(client: Client, over: object, *stages: dict[str, Any], db: str = "test", **more: Any) -> list[Any]:
    reply = client.ok({"aggregate": over, "pipeline": list(stages), "cursor": {}, **more}, db)
    return list(reply["cursor"]["firstBatch"])


def test_index_stats_count_the_commands_that_used_an_index(client: Client) -> None:
    client.ok({"insert": "c", "documents": [{"_id": i, "a": i, "b": i} for i in range(10)]})
    client.ok({"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a_1"}, {"key": {"b": 1}, "name": "b_1"}]})
    client.ok({"find": "c", "filter": {"a": 5}})
    client.ok({"aggregate": "c", "pipeline": [{"$match": {"a": {"$gt": 5}}}], "cursor": {}})
    client.ok({"update": "c", "updates": [{"q": {"a": 5}, "u": {"$set": {"x": 1}}}]})
    client.ok({"delete": "c", "deletes": [{"q": {"_id": 5}, "limit": 1}]})
    client.ok({"find": "c", "filter": {"x": 5}})
    rows = run(client, "c", {"$indexStats": {}})
    assert {row["name"]: row["accesses"]["ops"] for row in rows} == {"_id_": 1, "a_1": 3, "b_1": 0}
    assert rows[1]["key"] == {"a": 1}
    assert rows[1]["spec"]["name"] == "a_1"
    assert run(client, "none", {"$indexStats": {}}) == []


def test_documents_come_in_batches_of_16_mib(client: Client) -> None:
    made = {"$map": {"input": {"$range": [0, 18]}, "in": {"i": "$$this", "s": {"$concat": ["$$k"] * 5}}}}
    command = {"aggregate": 1, "pipeline": [{"$documents": made}], "let": {"k": "x" * 200_000}, "cursor": {}}
    cursor = client.ok(command)["cursor"]
    more = client.ok({"getMore": Int64(cursor["id"]), "collection": "$cmd.aggregate"})["cursor"]
    assert [row["i"] for row in cursor["firstBatch"]] == list(range(16))
    assert [row["i"] for row in more["nextBatch"]] == [16, 17]
    large = {"s": {"$concat": ["$$k"] * 84}}
    assert client.code({**command, "pipeline": [{"$documents": [large]}]}) == 10334


def test_latency_stats(client: Client) -> None:
    client.ok({"insert": "c", "documents": [{"_id": 1}]})
    client.ok({"find": "c", "filter": {"x": 1}})
    (row,) = run(client, "c", {"$collStats": {"latencyStats": {}, "count": {}}})
    assert (row["count"], row["latencyStats"]["reads"]["ops"], row["latencyStats"]["writes"]["ops"]) == (1, 1, 1)


def test_local_sessions(client: Client) -> None:
    client.ok({"insert": "c", "documents": [{"_id": i} for i in range(5)]})
    assert run(client, 1, {"$listLocalSessions": {}}, db="admin") == []
    (row,) = run(client, 1, {"$listLocalSessions": {}}, lsid=LSID)
    assert row["_id"]["id"] == LSID["id"]
    client.ok({"find": "c", "batchSize": 2, "lsid": {"id": A}})
    Session(client, B).ok({"insert": "c", "documents": [{"_id": "b"}]})
    ids = {
        row["_id"]["id"] for row in run(client, 1, {"$listLocalSessions": {"allUsers": True}}, db="admin", lsid=LSID)
    }
    assert ids == {A, B, LSID["id"]}
    dummy = [{"$limit": 1}, {"$addFields": {"dummy": "x"}}, {"$project": {"_id": 0, "dummy": 1}}]
    client.ok({"endSessions": [{"id": A}]})
    assert {row["_id"]["id"] for row in run(client, 1, {"$listLocalSessions": {}})} == {B, LSID["id"]}
    assert run(client, 1, {"$listLocalSessions": {}}, *dummy, lsid=LSID) == [{"dummy": "x"}]


def test_sessions_that_have_written(client: Client) -> None:
    retryable = {"lsid": {"id": A}, "txnNumber": Int64(1)}
    client.ok({"insert": "c", "documents": [{"_id": 1}], **retryable})
    client.dispatcher.sessions.recent.clear()  # as on another member
    rows = run(client, "system.sessions", {"$listSessions": {}}, db="config", lsid=LSID)
    assert [row["_id"]["id"] for row in rows] == [LSID["id"], A]
    assert all("lastUse" in row for row in rows)


def test_current_op_shows_idle_cursors(client: Client) -> None:
    client.ok({"insert": "c", "documents": [{"_id": i} for i in range(5)]})
    cursor = client.ok({"find": "c", "batchSize": 2})["cursor"]["id"]
    assert [row["type"] for row in run(client, 1, {"$currentOp": {}}, db="admin")] == ["op"]
    rows = run(client, 1, {"$currentOp": {"idleCursors": True, "allUsers": True}}, {"$sort": {"type": 1}}, db="admin")
    assert rows[0]["cursor"]["cursorId"] == cursor
    assert rows[0]["cursor"]["originatingCommand"]["find"] == "c"


@pytest.mark.parametrize(
    ("over", "stage", "code"),
    [
        (1, {"$indexStats": {}}, 73),
        ("c", {"$indexStats": {"x": 1}}, 28803),
        ("c", {"$listLocalSessions": {}}, 73),
        ("c", {"$listSessions": {}}, 73),
        (1, {"$listLocalSessions": 5}, 14),
        (1, {"$listLocalSessions": {"x": 1}}, 40415),
        (1, {"$listLocalSessions": {"allUsers": True, "users": [{"user": "u", "db": "d"}]}}, 9),
        (1, {"$listLocalSessions": {"users": ["u"]}}, 14),
        ("c", {"$collStats": {"latencyStats": {"histograms": True}}}, 238),
    ],
)
def test_refusals(client: Client, over: object, stage: dict[str, Any], code: int) -> None:
    assert client.code({"aggregate": over, "pipeline": [stage], "cursor": {}}) == code
