"""Filters on the oplog: what the columns answer is neither read nor decoded, and the result is that of the filter."""

from __future__ import annotations

from typing import Any

import pytest

from replset.bson import DateTime, Int64, Regex, Timestamp
from replset.features.crud import oplog_cursor
from replset.member.member import RunningMember
from replset.query.match import compile_filter
from replset.storage import oplog
from tests.rig import Client

Entry = dict[str, Any]


@pytest.fixture
def entries(client: Client, monkeypatch: pytest.MonkeyPatch) -> list[Entry]:
    """All entries of an oplog: inserts, updates and deletes in two collections, and commands."""
    monkeypatch.setattr(oplog_cursor, "PAGE_HEADS", 7)
    monkeypatch.setattr(oplog_cursor, "PAGE_ENTRIES", 3)
    for number in range(10):
        client.ok({"insert": f"c{number % 2}", "documents": [{"_id": number, "a": number}]})
        client.rig.wait(1)
    client.ok({"update": "c0", "updates": [{"q": {}, "u": {"$set": {"b": 1}}, "multi": True}]})
    client.ok({"delete": "c1", "deletes": [{"q": {"_id": {"$gte": 5}}, "limit": 0}]})
    return list(client.ok({"find": "oplog.rs", "batchSize": 1000}, "local")["cursor"]["firstBatch"])


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ts of each entry that is read."""
    found: list[int] = []
    rows_at, rows_after = oplog.rows_at, oplog.rows_after

    def noted(rows: list[Any]) -> list[Any]:
        found.extend(row.ts for row in rows)
        return rows

    monkeypatch.setattr(oplog, "rows_at", lambda *given: noted(rows_at(*given)))
    monkeypatch.setattr(oplog, "rows_after", lambda *given, **more: noted(rows_after(*given, **more)))
    return found


def filters(entries: list[Entry]) -> list[tuple[Entry, bool]]:
    """Filters, and whether the columns answer all of them."""
    low, high = entries[4], entries[14]
    return [
        ({"op": "d"}, True),
        ({"op": {"$in": ["d", "u"]}}, True),
        ({"ns": "test.c1"}, True),
        ({"ns": Regex("^test\\.c")}, True),
        ({"ns": {"$ne": "test.c1"}, "op": {"$nin": ["i"]}}, True),
        ({"ts": low["ts"]}, True),
        ({"ts": {"$in": [high["ts"], low["ts"]]}}, True),
        ({"ts": {"$gt": low["ts"], "$lte": high["ts"]}}, True),
        ({"ts": {"$lt": low["ts"]}}, True),
        ({"ts": {"$gt": Timestamp(0xFFFFFFFF, 0xFFFFFFFF)}}, True),
        ({"ts": 5}, True),
        ({"wall": {"$gte": low["wall"], "$lt": high["wall"]}}, True),
        ({"wall": {"$gt": DateTime(0)}, "t": {"$lt": Int64(1)}}, True),
        ({"$and": [{"op": "i"}, {"$and": [{"ns": "test.c0"}, {"ts": {"$gte": low["ts"]}}]}]}, True),
        ({"$or": [{"op": "d"}, {"ns": "test.c0", "ts": {"$lte": low["ts"]}}]}, True),
        ({"$nor": [{"op": "i"}, {"op": "c"}], "$comment": "x"}, True),
        ({"op": "i", "o.a": {"$gte": 4}}, False),
        ({"$or": [{"op": "d"}, {"o.a": 3}]}, False),
        ({"ns": "test.c1", "$or": [{"op": "d"}, {"o.a": 3}]}, False),
        ({"o._id": 3}, False),
        ({"$expr": {"$eq": ["$op", "d"]}}, False),
    ]


@pytest.mark.parametrize("number", range(21))
def test_a_filter_finds_what_it_matches_and_reads_no_more(
    client: Client, entries: list[Entry], read: list[int], number: int
) -> None:
    query, is_whole = filters(entries)[number]
    matches = compile_filter(query).matches
    expected = [entry for entry in entries if matches(entry)]
    for direction in (1, -1):
        for limits in ({}, {"skip": 1, "limit": 2}):
            wanted = expected[::direction][limits.get("skip", 0) :][: limits.get("limit")]
            read.clear()
            command = {"find": "oplog.rs", "filter": query, "sort": {"$natural": direction}, "batchSize": 1000}
            assert client.ok({**command, **limits}, "local")["cursor"]["firstBatch"] == wanted
            if is_whole:
                assert len(read) <= len(expected)
    read.clear()
    assert client.ok({"count": "oplog.rs", "query": query}, "local")["n"] == len(expected)
    assert not (read and is_whole)
    reply = client.ok({"explain": {"find": "oplog.rs", "filter": query}}, "local")["executionStats"]
    assert reply["nReturned"] == len(expected)
    assert (reply["totalDocsExamined"] == len(expected)) or not is_whole
    assert client.ok({"explain": {"count": "oplog.rs", "query": query}}, "local")["executionStats"]["executionStages"][
        "nCounted"
    ] == len(expected)
    pipeline = {"aggregate": "oplog.rs", "pipeline": [{"$match": query}], "cursor": {}}
    assert client.ok(pipeline, "local")["cursor"]["firstBatch"] == expected
    explained = client.ok({"explain": pipeline, "verbosity": "queryPlanner"}, "local")
    assert explained["queryPlanner"]["winningPlan"]["stage"] == "COLLSCAN"


def test_a_range_of_ts_is_all_that_is_looked_at(client: Client, entries: list[Entry]) -> None:
    query = {"ts": {"$gte": entries[4]["ts"], "$lt": entries[9]["ts"]}, "op": "i"}
    for direction in (1, -1):
        command = {"find": "oplog.rs", "filter": query, "sort": {"$natural": direction}}
        assert client.ok({"explain": command}, "local")["executionStats"]["totalKeysExamined"] == 5


def test_a_filtered_tail_goes_on(client: Client, member: RunningMember, entries: list[Entry], read: list[int]) -> None:
    command = {"find": "oplog.rs", "filter": {"ns": "test.c5", "op": "i"}, "tailable": True, "awaitData": True}
    cursor = client.ok(command, "local")["cursor"]
    assert cursor["firstBatch"] == []
    client.ok({"insert": "c4", "documents": [{"_id": 1}]})
    client.ok({"insert": "c5", "documents": [{"_id": 2}]})
    read.clear()
    more = client.ok({"getMore": Int64(cursor["id"]), "collection": "oplog.rs"}, "local")["cursor"]
    assert [entry["o"]["_id"] for entry in more["nextBatch"]] == [2]
    assert len(read) == 1
