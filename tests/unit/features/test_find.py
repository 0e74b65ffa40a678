"""find, getMore, killCursors, count and distinct: now, at a point, in batches, and each way to be refused."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from replset.bson import Int64, Timestamp
from replset.ids import Millis
from replset.member.member import RunningMember
from tests.rig import Client, Rig

FAST = {"writeConcern": {"w": 1}}
SECONDARY_OK = {"$readPreference": {"mode": "secondaryPreferred"}}


@pytest.fixture(autouse=True)
def _some_documents(client: Client) -> None:
    client.ok({"insert": "c"}, documents=[{"_id": i, "a": i % 3, "t": str(i)} for i in range(300)])


def ids(reply: dict[str, Any], batch: str = "firstBatch") -> list[Any]:
    return [doc["_id"] for doc in reply["cursor"][batch]]


def test_batches_until_the_end(client: Client) -> None:
    reply = client.ok({"find": "c"})
    assert (ids(reply), reply["cursor"]["ns"]) == (list(range(101)), "test.c")
    cursor = reply["cursor"]["id"]
    assert isinstance(cursor, Int64)
    assert cursor > 0
    reply = client.ok({"getMore": cursor, "collection": "c", "batchSize": 150})
    assert (ids(reply, "nextBatch"), reply["cursor"]["id"]) == (list(range(101, 251)), cursor)
    reply = client.ok({"getMore": cursor, "collection": "c"})
    assert (ids(reply, "nextBatch"), reply["cursor"]["id"]) == (list(range(251, 300)), 0)
    assert client.code({"getMore": cursor, "collection": "c"}) == 43


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ({"filter": {"_id": 5}}, [5]),
        ({"filter": {"_id": 5.0}}, [5]),
        ({"filter": {"_id": 5, "a": 0}}, []),
        ({"filter": {"_id": {"$in": [7, 3, 7, 999]}}}, [3, 7]),
        ({"filter": {"a": 2}, "limit": 3}, [2, 5, 8]),
        ({"filter": {"a": 2}, "skip": 2, "limit": 2}, [8, 11]),
        ({"skip": 298}, [298, 299]),
        ({"skip": 1000}, []),
        ({"sort": {"_id": -1}, "limit": 2}, [299, 298]),
        ({"sort": {"$natural": -1}, "limit": 2}, [299, 298]),
        ({"sort": {"_id": 1}, "limit": 2}, [0, 1]),
        ({"sort": {"a": -1, "_id": -1}, "limit": 3}, [299, 296, 293]),
        ({"sort": {"a": 1, "_id": -1}, "skip": 1, "limit": 2}, [294, 291]),
        ({"filter": {"_id": {"$gte": 297}}}, [297, 298, 299]),
        ({"hint": "_id_", "limit": 1}, [0]),
        ({"hint": {"$natural": 1}, "limit": 1}, [0]),
        ({"hint": {"$natural": -1}, "limit": 2}, [299, 298]),
        ({"hint": {"$natural": -1}, "filter": {"a": 2}, "skip": 1, "limit": 2}, [296, 293]),
        ({"hint": {"$natural": -1}, "sort": {"_id": 1}, "limit": 1}, [0]),
        ({"hint": {"$natural": -1}, "filter": {"_id": {"$in": [7, 3, 999, 5]}}}, [7, 5, 3]),
        ({"hint": {"_id": 1}, "limit": 1}, [0]),
        ({"filter": {}, "batchSize": 2, "singleBatch": True}, [0, 1]),
    ],
)
def test_what_is_found(client: Client, command: dict[str, object], expected: list[int]) -> None:
    reply = client.ok({"find": "c", **command})
    assert ids(reply) == expected
    assert reply["cursor"]["id"] == 0
    assert len(client.dispatcher.cursors) == 0


def test_backwards_in_batches_and_at_a_point(client: Client, rig: Rig) -> None:
    rig.stop_disk()
    client.ok({"delete": "c", **FAST}, deletes=[{"q": {"_id": {"$in": [298, 150]}}, "limit": 0}])
    client.ok({"insert": "c", **FAST}, documents=[{"_id": 1000}])
    for concern, expected in (
        ({"level": "majority"}, list(range(299, -1, -1))),
        ({}, [1000, 299, *(n for n in range(297, -1, -1) if n != 150)]),
    ):
        reply = client.ok({"find": "c", "sort": {"$natural": -1}, "readConcern": concern, "batchSize": 90})
        found = ids(reply)
        while reply["cursor"]["id"]:
            reply = client.ok({"getMore": reply["cursor"]["id"], "collection": "c", "batchSize": 90})
            found += ids(reply, "nextBatch")
        assert found == expected


def test_a_sorted_find_goes_on_in_later_batches(client: Client) -> None:
    reply = client.ok({"find": "c", "sort": {"_id": -1}, "batchSize": 200})
    assert ids(reply) == list(range(299, 99, -1))
    more = {"getMore": reply["cursor"]["id"], "collection": "c"}
    assert client.code({**more, "readConcern": {"level": "majority"}}) == 72
    reply = client.ok({**more, "readConcern": {"level": "snapshot"}})  # PyMongo repeats that of its session
    assert ids(reply, "nextBatch") == list(range(99, -1, -1))


def test_an_empty_first_batch_opens_the_cursor(client: Client) -> None:
    reply = client.ok({"find": "c", "batchSize": 0})
    assert ids(reply) == []
    assert ids(client.ok({"getMore": reply["cursor"]["id"], "collection": "c", "batchSize": 2}), "nextBatch") == [0, 1]


def test_a_limit_over_several_batches(client: Client) -> None:
    reply = client.ok({"find": "c", "limit": 5, "batchSize": 3})
    reply = client.ok({"getMore": reply["cursor"]["id"], "collection": "c", "batchSize": 3})
    assert (ids(reply, "nextBatch"), reply["cursor"]["id"]) == ([3, 4], 0)


def test_a_batch_keeps_to_16_mib(client: Client) -> None:
    client.ok({"insert": "big"}, documents=[{"_id": i, "x": "x" * (6 << 20)} for i in range(4)])
    reply = client.ok({"find": "big"})
    assert ids(reply) == [0, 1]
    reply = client.ok({"getMore": reply["cursor"]["id"], "collection": "big"})
    assert ids(reply, "nextBatch") == [2, 3]


def test_a_projection_and_a_collection_that_is_not_there(client: Client) -> None:
    reply = client.ok({"find": "c", "filter": {"_id": 4}, "projection": {"t": 1, "_id": 0}})
    assert reply["cursor"]["firstBatch"] == [{"t": "4"}]
    reply = client.ok({"find": "none"})
    assert (reply["cursor"]["firstBatch"], reply["cursor"]["id"]) == ([], 0)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ({"find": 1}, 14),
        ({"find": "a$b"}, 73),
        ({"find": "c", "filter": 1}, 14),
        ({"find": "c", "filter": {"a": {"$nonsense": 1}}}, 2),
        ({"find": "c", "filter": {"$where": "1"}}, 238),
        ({"find": "c", "limit": -1}, 51024),
        ({"find": "c", "skip": -1}, 51024),
        ({"find": "c", "skip": 1.5}, 2),
        ({"find": "c", "batchSize": "2"}, 14),
        ({"find": "c", "sort": {"a": 0}}, 15975),
        ({"find": "c", "projection": {"a": 1, "b": 0}}, 31254),
        ({"find": "c", "hint": "other"}, 2),
        ({"find": "c", "tailable": True}, 2),
        ({"find": "c", "awaitData": True}, 9),
        ({"find": "c", "collation": {"locale": "xx"}}, 2),
        ({"find": "c", "let": {"a": "$b"}}, 4890500),
        ({"find": "c", "let": {"A": 1}}, 9),
        ({"find": "c", "let": 1}, 14),
        ({"find": "c", "nonsense": 1}, 40415),
        ({"find": "c", "writeConcern": {"w": 1}}, 72),
        ({"find": "c", "readConcern": {"level": "best"}}, 9),
        ({"find": "c", "readConcern": {"level": 1}}, 14),
        ({"find": "c", "readConcern": {"x": 1}}, 40415),
        ({"find": "c", "readConcern": {"afterClusterTime": 1}}, 14),
        ({"find": "c", "readConcern": {"afterClusterTime": Timestamp(4_000_000_000, 1)}}, 72),
        ({"find": "c", "$readPreference": {"mode": "best"}}, 9),
        ({"find": "c", "$readPreference": 1}, 14),
        ({"getMore": 5, "collection": "c"}, 14),
        ({"getMore": Int64(5), "collection": "c"}, 43),
        ({"getMore": Int64(5)}, 40414),
        ({"killCursors": "c"}, 40414),
        ({"count": "c", "query": 1}, 14),
        ({"count": "c", "nonsense": 1}, 40415),
        ({"distinct": "c"}, 40414),
        ({"distinct": "c", "key": 1}, 14),
        ({"distinct": "c", "key": ""}, 2),
    ],
)
def test_refusals(client: Client, command: dict[str, object], code: int) -> None:
    assert client.code(command) == code


def test_sorting_more_than_fits_uses_the_disk(
    client: Client, member: RunningMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replset.query.sorter.MAX_BYTES", 1000)
    assert client.code({"find": "c", "sort": {"a": 1}, "allowDiskUse": False}) == 292
    for more in ({}, {"skip": 3}, {"limit": 4}):
        found = client.ok({"find": "c", "sort": {"a": 1, "_id": -1}, "batchSize": 1000, **more})["cursor"]["firstBatch"]
        documents = client.ok({"find": "c", "batchSize": 1000})["cursor"]["firstBatch"]
        documents.sort(key=lambda document: (document.get("a", 0), -document["_id"]))
        assert found == documents[more.get("skip", 0) :][: more.get("limit", 1000)]
    assert not [name for name in member.store.disk.list_folder(member.store.dbpath) if name.startswith("spill-")]


def test_max_time_ends_a_long_find(client: Client, member: RunningMember, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replset.features.crud.scan.SLICE_DECODED", 10)
    now, calls = member.clock.now, itertools.count()
    monkeypatch.setattr(member.clock, "now", lambda: Millis(now() + 20 * next(calls)))
    assert client.code({"find": "c", "filter": {"a": 99}, "maxTimeMS": 30}) == 50


# --- cursors ----------------------------------------------------------------------------------------------------


def open_cursor(client: Client, **more: object) -> Int64:
    cursor: Int64 = client.ok({"find": "c", "batchSize": 1, **more})["cursor"]["id"]
    return cursor


def test_kill_cursors(client: Client) -> None:
    cursor = open_cursor(client)
    reply = client.ok({"killCursors": "c", "cursors": [cursor, Int64(9)]})
    assert (reply["cursorsKilled"], reply["cursorsNotFound"]) == ([cursor], [9])
    assert client.code({"getMore": cursor, "collection": "c"}) == 43


def test_a_cursor_belongs_to_its_collection(client: Client) -> None:
    assert client.code({"getMore": open_cursor(client), "collection": "other"}) == 13


def test_an_idle_cursor_expires(client: Client, rig: Rig) -> None:
    idle, kept = open_cursor(client), open_cursor(client, noCursorTimeout=True)
    rig.wait(11 * 60)
    assert client.code({"getMore": idle, "collection": "c"}) == 43
    client.ok({"getMore": kept, "collection": "c"})


def test_a_cursor_on_a_dropped_collection_is_killed(client: Client) -> None:
    cursor = open_cursor(client)
    client.ok({"drop": "c"})
    assert client.code({"getMore": cursor, "collection": "c"}) == 175


def test_a_cursor_in_use_is_not_shared(client: Client) -> None:
    cursor = open_cursor(client)
    client.dispatcher.cursors.take(cursor, "test.c")
    assert client.code({"getMore": cursor, "collection": "c"}) == 237


# --- where and at which point -----------------------------------------------------------------------------------


def test_a_secondary_answers_only_when_it_may(client: Client, rig: Rig) -> None:
    commands: list[dict[str, object]]
    commands = [{"find": "c"}, {"count": "c"}, {"distinct": "c", "key": "a"}, {"listCollections": 1}]
    rig.step_down()
    for command in commands:
        assert client.code(command) == 13435
        assert client.code({**command, "$readPreference": {"mode": "primary"}}) == 13435
        client.ok({**command, **SECONDARY_OK})
    client.ok({"replSetMaintenance": True}, "admin")
    for command in commands:
        reply = client.run({**command, **SECONDARY_OK})
        assert reply["code"] == 13436
        assert "topologyVersion" in reply


def test_a_majority_read_sees_the_commit_point_and_its_cursor_stays_there(client: Client, rig: Rig) -> None:
    committed = rig.newest()
    rig.stop_disk()
    client.ok({"insert": "c", "documents": [{"_id": 300}], **FAST})
    client.ok({"update": "c", "updates": [{"q": {"_id": 250}, "u": {"$set": {"a": "new"}}}], **FAST})
    client.ok({"delete": "c", "deletes": [{"q": {"_id": 299}, "limit": 1}], **FAST})
    majority = {"readConcern": {"level": "majority"}}
    reply = client.ok({"find": "c", "batchSize": 200, **majority})
    assert reply["operationTime"] == Timestamp(committed.seconds, committed.increment)
    assert client.ok({"find": "c", "filter": {"_id": 250}, **majority})["cursor"]["firstBatch"][0]["a"] == 1
    assert "new" not in client.ok({"distinct": "c", "key": "a", **majority})["values"]
    rig.start_disk()
    assert client.ok({"find": "c", "filter": {"_id": 250}, **majority})["cursor"]["firstBatch"][0]["a"] == "new"
    assert client.ok({"count": "c", **majority})["n"] == 300
    rest = client.ok({"getMore": reply["cursor"]["id"], "collection": "c"})
    documents = reply["cursor"]["firstBatch"] + rest["cursor"]["nextBatch"]
    assert [doc["_id"] for doc in documents] == list(range(300))
    assert documents[250]["a"] == 1


def test_a_majority_read_of_a_younger_collection_waits_for_its_creation(client: Client, rig: Rig) -> None:
    rig.stop_disk()
    client.ok({"insert": "young", "documents": [{"_id": 1}], **FAST})
    reading = client.begin({"find": "young", "readConcern": {"level": "majority"}})
    rig.turn()
    assert not reading.done()
    rig.start_disk()
    assert ids(client.decoded(reading)) == [1]


def test_after_cluster_time_is_waited_for(client: Client, rig: Rig) -> None:
    rig.step_down()
    later = {"afterClusterTime": Timestamp(1_700_000_009, 7)}
    find = {"find": "c", "limit": 1, "readConcern": later, "maxTimeMS": 200, "$readPreference": {"mode": "nearest"}}
    began = rig.cluster.loop.now_ms
    assert client.code(find) == 50
    assert rig.cluster.loop.now_ms - began == 200


# --- count and distinct -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "n"),
    [
        ({}, 300),
        ({"query": {}}, 300),
        ({"query": {"a": 1}}, 100),
        ({"query": {"a": 1}, "limit": 7}, 7),
        ({"query": {"a": 1}, "limit": -7}, 7),
        ({"query": {"a": 1}, "skip": 95}, 5),
        ({"query": {"a": 1}, "skip": 95, "limit": 2}, 2),
        ({"skip": 290, "limit": 20}, 10),
        ({"query": {"_id": 3}}, 1),
        ({"skip": 400}, 0),
    ],
)
def test_count(client: Client, command: dict[str, object], n: int) -> None:
    assert client.ok({"count": "c", **command})["n"] == n


def test_distinct(client: Client) -> None:
    assert client.ok({"distinct": "c", "key": "a"})["values"] == [0, 1, 2]
    assert client.ok({"distinct": "c", "key": "a", "query": {"_id": {"$gt": 298}}})["values"] == [2]
    assert client.ok({"distinct": "none", "key": "a"})["values"] == []
    assert client.ok({"count": "none"})["n"] == 0


# --- the oplog --------------------------------------------------------------------------------------------------


def test_the_oplog_can_be_read(client: Client) -> None:
    create, first, second = client.entries()[:3]
    from_here = {"ts": {"$gte": create["ts"]}}
    reply = client.ok({"find": "oplog.rs", "filter": from_here, "limit": 2}, "local")
    assert reply["cursor"]["firstBatch"] == [create, first]
    reply = client.ok({"find": "oplog.rs", "filter": {"ts": {"$gt": first["ts"]}, "op": "i"}, "limit": 1}, "local")
    assert reply["cursor"]["firstBatch"] == [second]
    assert client.code({"find": "oplog.rs", "sort": {"op": 1}}, "local") == 238


def test_the_oplog_backwards(client: Client) -> None:
    for order in ({"sort": {"$natural": -1}}, {"hint": {"$natural": -1}}):
        reply = client.ok({"find": "oplog.rs", "limit": 2, "projection": {"o": 1}, **order}, "local")
        assert [entry["o"]["_id"] for entry in reply["cursor"]["firstBatch"]] == [299, 298]
    reply = client.ok({"find": "oplog.rs", "sort": {"$natural": -1}, "batchSize": 1000}, "local")
    assert reply["cursor"]["firstBatch"][:301] == client.entries()[::-1]


def test_tailing_the_oplog(client: Client) -> None:
    newest = client.entries()[-1]["ts"]
    command = {"find": "oplog.rs", "filter": {"ts": {"$gte": newest}}, "tailable": True, "awaitData": True}
    reply = client.ok(command, "local")
    cursor = reply["cursor"]["id"]
    assert [entry["o"]["_id"] for entry in reply["cursor"]["firstBatch"]] == [299]
    empty = client.ok({"getMore": cursor, "collection": "oplog.rs", "maxTimeMS": 100}, "local")
    assert (empty["cursor"]["nextBatch"], empty["cursor"]["id"]) == ([], cursor)
    client.ok({"insert": "c", "documents": [{"_id": 1000}]})
    more = client.ok({"getMore": cursor, "collection": "oplog.rs"}, "local")
    assert [entry["o"]["_id"] for entry in more["cursor"]["nextBatch"]] == [1000]
    client.dispatcher.cursors.close_all()
    assert client.code({"getMore": cursor, "collection": "oplog.rs"}, "local") == 43
