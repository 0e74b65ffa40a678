"""Tailable and awaitData cursors on capped collections."""

from __future__ import annotations

from typing import Any

import pytest

from replset.bson import Int64, Timestamp
from tests.rig import Client, Rig

TAIL: dict[str, Any] = {"tailable": True}
AWAIT: dict[str, Any] = {"tailable": True, "awaitData": True}


@pytest.fixture
def capped(client: Client) -> Client:
    client.ok({"create": "log", "capped": True, "size": 100_000, "max": 5})
    return client


def insert(client: Client, *ids: int) -> None:
    client.ok({"insert": "log", "documents": [{"_id": number, "even": number % 2 == 0} for number in ids]})


def tail(client: Client, **options: Any) -> tuple[int, list[int]]:
    cursor = client.ok({"find": "log", **TAIL, **options})["cursor"]
    return cursor["id"], [row["_id"] for row in cursor["firstBatch"]]


def more(client: Client, cursor_id: int, **options: Any) -> list[int]:
    cursor = client.ok({"getMore": Int64(cursor_id), "collection": "log", **options})["cursor"]
    assert cursor["id"] == cursor_id
    return [row["_id"] for row in cursor["nextBatch"]]


def test_a_tail_goes_on_with_what_is_inserted_in_its_order(capped: Client) -> None:
    insert(capped, 9, 3)
    cursor_id, first = tail(capped)
    assert first == [9, 3]
    assert more(capped, cursor_id) == []
    insert(capped, 7, 1)
    assert more(capped, cursor_id, batchSize=1) == [7]
    assert more(capped, cursor_id) == [1]
    assert more(capped, cursor_id) == []


def test_an_empty_collection_is_tailed_too(capped: Client) -> None:
    cursor_id, first = tail(capped)
    assert (cursor_id != 0, first) == (True, [])
    insert(capped, 1)
    assert more(capped, cursor_id) == [1]


def test_filter_projection_skip_and_limit(capped: Client) -> None:
    insert(capped, 0, 1, 2)
    cursor_id, first = tail(capped, filter={"even": True}, projection={"_id": 1}, skip=1, limit=2)
    assert first == [2]
    insert(capped, 3, 4)
    cursor = capped.ok({"getMore": Int64(cursor_id), "collection": "log"})["cursor"]
    assert cursor["nextBatch"] == [{"_id": 4}]
    assert cursor["id"] == 0, "the limit is reached"


def test_a_tail_whose_document_is_removed_is_lost(capped: Client) -> None:
    insert(capped, 1, 2)
    cursor_id, _ = tail(capped)
    insert(capped, *range(3, 20))
    assert capped.code({"getMore": Int64(cursor_id), "collection": "log"}) == 136
    assert capped.code({"getMore": Int64(cursor_id), "collection": "log"}) == 43


def test_await_data_waits_for_documents(capped: Client, rig: Rig) -> None:
    insert(capped, 1)
    cursor_id, _ = tail(capped, **AWAIT)
    before = rig.cluster.loop.now_ms
    assert more(capped, cursor_id, maxTimeMS=500) == []
    assert rig.cluster.loop.now_ms == before + 500
    waiting = capped.begin({"getMore": Int64(cursor_id), "collection": "log", "maxTimeMS": 500})
    rig.turn()
    insert(capped, 2)
    assert [row["_id"] for row in capped.decoded(waiting)["cursor"]["nextBatch"]] == [2]
    assert rig.cluster.loop.now_ms < before + 700


def test_a_drop_ends_a_tail(capped: Client) -> None:
    insert(capped, 1)
    cursor_id, _ = tail(capped)
    capped.ok({"drop": "log"})
    assert capped.code({"getMore": Int64(cursor_id), "collection": "log"}) == 175


def test_a_majority_tail_sees_only_what_is_committed(capped: Client, rig: Rig) -> None:
    insert(capped, 1)
    cursor_id, first = tail(capped, readConcern={"level": "majority"})
    assert first == [1]
    rig.stop_disk()
    capped.ok({"insert": "log", "documents": [{"_id": 2}], "writeConcern": {"w": 1}})
    assert more(capped, cursor_id) == []
    rig.start_disk()
    assert more(capped, cursor_id) == [2]


@pytest.mark.parametrize("query", [{}, {"ts": {"$gt": Timestamp(1, 1)}}, {"op": "i"}, {"o.even": False}])
def test_the_oplog_is_shown_to_a_majority_read_as_far_as_it_is_committed(
    capped: Client, rig: Rig, query: dict[str, Any]
) -> None:
    """Also with conditions on columns and on the entries, in either direction, and to who tails it."""
    rig.stop_disk()
    capped.ok({"insert": "log", "documents": [{"_id": 1, "even": False}], "writeConcern": {"w": 1}})

    def found(level: str, **more: Any) -> list[Any]:
        command = {"find": "oplog.rs", "filter": query, "readConcern": {"level": level}, **more}
        return [entry["o"].get("_id") for entry in capped.ok(command, "local")["cursor"]["firstBatch"]]

    for backwards in ({}, {"sort": {"$natural": -1}}):
        local, committed = found("local", **backwards), found("majority", **backwards)
        assert (1 in local, committed) == (True, [one for one in local if one != 1])
        counted = {"count": "oplog.rs", "query": query, "readConcern": {"level": "majority"}}
        assert capped.ok(counted, "local")["n"] == len(committed)
    command = {"find": "oplog.rs", "filter": query, "readConcern": {"level": "majority"}, **TAIL}
    cursor_id = capped.ok(command, "local")["cursor"]["id"]
    get_more = {"getMore": Int64(cursor_id), "collection": "oplog.rs"}
    assert capped.ok(get_more, "local")["cursor"]["nextBatch"] == []
    rig.start_disk()
    assert [entry["o"]["_id"] for entry in capped.ok(get_more, "local")["cursor"]["nextBatch"]] == [1]


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ({"find": "plain", **TAIL}, 2),
        ({"find": "log", "awaitData": True}, 9),
        ({"find": "log", **TAIL, "sort": {"a": 1}}, 2),
        ({"find": "log", **TAIL, "sort": {"$natural": -1}}, 2),
        ({"find": "log", **TAIL, "readConcern": {"level": "linearizable"}}, 72),
    ],
)
def test_refusals(capped: Client, command: dict[str, Any], code: int) -> None:
    capped.ok({"create": "plain"})
    assert capped.code(command) == code


def test_a_collection_that_is_not_there_has_no_tail(client: Client) -> None:
    assert tail(client) == (0, [])


def test_the_entries_of_the_oplog_are_counted(capped: Client) -> None:
    insert(capped, *range(5))
    entries = capped.entries()
    assert capped.ok({"count": "oplog.rs"}, "local")["n"] == capped.begins_at + len(entries)
    inserts = {"op": "i", "ts": {"$gte": entries[1]["ts"]}}
    assert capped.ok({"count": "oplog.rs", "query": inserts}, "local")["n"] == 5
    assert capped.ok({"count": "oplog.rs", "query": {"op": "i"}, "skip": 1, "limit": 3}, "local")["n"] == 3
    assert capped.code({"distinct": "oplog.rs", "key": "op"}, "local") == 238
