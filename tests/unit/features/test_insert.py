"""insert: what is stored, what enters the oplog, and each way to be refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from replset.bson import Int64, ObjectId, RawDocument, Regex, Timestamp, Undefined, encode
from replset.errors import OutOfDiskSpaceError
from replset.member.member import RunningMember
from replset.replication.write_ops import WriteGroup
from tests.rig import Client, Rig


def test_the_first_insert_creates_the_collection_in_the_oplog_too(client: Client) -> None:
    reply = client.ok({"insert": "c", "documents": [{"_id": 1, "a": 2}]})
    assert reply["n"] == 1
    create, insert = client.entries()
    assert (create["op"], create["ns"], create["o"]["create"]) == ("c", "test.$cmd", "c")
    assert create["o"]["idIndex"] == {"v": 2, "key": {"_id": 1}, "name": "_id_"}
    assert (insert["op"], insert["ns"], insert["o"]) == ("i", "test.c", {"_id": 1, "a": 2})
    assert create["ui"] == insert["ui"]
    assert reply["operationTime"] == insert["ts"] == reply["opTime"]["ts"]
    assert reply["electionId"] == ObjectId(f"7fffffff{client.member.node.term:016x}")
    assert reply["$clusterTime"]["clusterTime"] == insert["ts"]


def test_documents_come_from_a_sequence(client: Client) -> None:
    assert client.ok({"insert": "c"}, documents=[{"_id": 1}, {"_id": 2}])["n"] == 2


def test_an_id_is_made_and_moved_to_the_front(client: Client) -> None:
    client.ok({"insert": "c", "documents": [{"a": 1}, {"a": 1, "_id": 5}]})
    made, moved = (entry["o"] for entry in client.entries()[1:])
    assert list(made) == ["_id", "a"]
    assert isinstance(made["_id"], ObjectId)
    assert list(moved.items()) == [("_id", 5), ("a", 1)]


def test_ids_rise_in_the_order_in_which_they_are_made(client: Client) -> None:
    for number in range(10):
        client.ok({"insert": "c", "documents": [{"a": 2 * number}, {"a": 2 * number + 1}]})
    client.ok({"update": "c", "updates": [{"q": {"a": 20}, "u": {"$set": {"b": 1}}, "upsert": True}]})
    by_id = client.ok({"find": "c", "sort": {"_id": 1}})["cursor"]["firstBatch"]
    assert [one["a"] for one in by_id] == list(range(21))


def test_an_empty_timestamp_in_the_top_level_is_the_present(client: Client) -> None:
    client.ok(
        {"insert": "c", "documents": [{"_id": Timestamp(0, 0), "t": Timestamp(0, 0), "d": {"t": Timestamp(0, 0)}}]}
    )
    stored = client.entries()[-1]["o"]
    assert stored["t"].time == client.member.clock.wall_ms() // 1000
    assert stored == {"_id": Timestamp(0, 0), "t": stored["t"], "d": {"t": Timestamp(0, 0)}}


def test_an_empty_timestamp_stays_where_a_tool_asks_for_it(client: Client) -> None:
    document = {"_id": 1, "t": Timestamp(0, 0)}
    client.ok({"insert": "c", "documents": [document], "bypassEmptyTsReplacement": True})
    assert client.entries()[-1]["o"] == document
    assert client.code({"insert": "c", "documents": [document], "bypassEmptyTsReplacement": "x"}) == 14


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("upsert", [False, True])
def test_a_replacement_fills_empty_timestamps_too(client: Client, keeps: bool, upsert: bool) -> None:
    if not upsert:
        client.ok({"insert": "c", "documents": [{"_id": 1}]})
    replacement = {"t": Timestamp(0, 0), "d": {"t": Timestamp(0, 0)}}
    statements = [{"q": {"_id": 1}, "u": replacement, "upsert": upsert}]
    client.ok({"update": "c", **({"bypassEmptyTsReplacement": True} if keeps else {})}, updates=statements)
    (found,) = client.ok({"find": "c"})["cursor"]["firstBatch"]
    assert found["d"] == {"t": Timestamp(0, 0)}
    assert (found["t"] == Timestamp(0, 0)) is keeps
    assert keeps or found["t"].time == client.member.clock.wall_ms() // 1000


def test_a_duplicate_key_stops_an_ordered_insert(client: Client) -> None:
    reply = client.ok({"insert": "c", "documents": [{"_id": 1}, {"_id": Int64(1)}, {"_id": 2}]})
    assert reply["n"] == 1
    (error,) = reply["writeErrors"]
    assert (error["index"], error["code"]) == (1, 11000)
    assert (error["keyPattern"], error["keyValue"]) == ({"_id": 1}, {"_id": 1})
    assert "E11000 duplicate key error collection: test.c index: _id_" in error["errmsg"]
    assert len(client.entries()) == 2


def test_an_unordered_insert_goes_on(client: Client) -> None:
    reply = client.ok(
        {"insert": "c", "ordered": False, "documents": [{"_id": 1}, {"_id": 1}, {"_id": [1]}, {"_id": 2}]}
    )
    assert reply["n"] == 2
    assert [(error["index"], error["code"]) for error in reply["writeErrors"]] == [(1, 11000), (2, 53)]


@pytest.mark.parametrize("ordered", [True, False])
def test_documents_are_inserted_at_once_up_to_one_that_cannot_be(client: Client, ordered: bool) -> None:
    client.ok({"insert": "c", "documents": [{"_id": 3}]})
    ids: list[object] = [0, 1, 2, 3, 4, 4, Regex("x", ""), *range(5, 600)]
    reply = client.ok({"insert": "c", "ordered": ordered}, documents=[{"_id": id_} for id_ in ids])
    errors = [(error["index"], error["code"]) for error in reply["writeErrors"]]
    stored = [0, 1, 2] if ordered else [0, 1, 2, 4, *range(5, 600)]
    assert errors == ([(3, 11000)] if ordered else [(3, 11000), (5, 11000), (6, 53)])
    assert reply["n"] == len(stored)
    entries = client.entries()[2:]
    assert [entry["o"]["_id"] for entry in entries] == stored
    assert len({entry["ts"] for entry in entries}) == len(stored)


@pytest.mark.parametrize(
    "before",
    [
        pytest.param({"insert": "c", "documents": [{"_id": 0}]}, id="the-first-is-there"),
        pytest.param({"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}]}, id="an-index"),
        pytest.param({"create": "c", "capped": True, "size": 8 << 20}, id="capped"),
    ],
)
def test_more_than_a_group_takes_is_inserted_where_documents_need_a_look(
    client: Client, rig: Rig, before: dict[str, object]
) -> None:
    client.ok(before)
    documents = [{"_id": id_, "text": "x" * 300_000} for id_ in range(10)]
    rig.step_down_after(20)  # groups: it must not try for ever
    reply = client.ok({"insert": "c", "ordered": False}, documents=documents)
    assert reply["n"] + len(reply.get("writeErrors", [])) == 10


@pytest.mark.parametrize(
    ("document", "code"),
    [
        ({"_id": [1]}, 53),
        ({"_id": Regex("a", "")}, 53),
        ({"_id": Undefined()}, 53),
        ({"_id": {"$a": 1}}, 52),
        ({"_id": 1, "a": "x" * (16 << 20)}, 10334),
    ],
)
def test_a_document_that_cannot_be_is_a_write_error(client: Client, document: dict[str, object], code: int) -> None:
    reply = client.ok({"insert": "c"}, documents=[document])
    assert reply["n"] == 0
    assert [error["code"] for error in reply["writeErrors"]] == [code]
    assert client.entries() == []


def nested(levels: int) -> bytes:
    raw = b"\x05\0\0\0\0"
    for _ in range(levels - 1):
        raw = (len(raw) + 8).to_bytes(4, "little") + b"\x03a\0" + raw + b"\0"
    return raw


def test_nesting_beyond_200_levels_is_refused(client: Client) -> None:
    good = client.ok({"insert": "c", "documents": [{"_id": 1, "a": RawDocument(nested(190))}]})
    assert good["n"] == 1
    assert client.code({"insert": "c", "documents": [RawDocument(nested(201))]}) == 22


@pytest.mark.parametrize(
    ("command", "db", "code"),
    [
        ({"insert": "c"}, "test", 40414),
        ({"insert": "c", "documents": []}, "test", 16),
        ({"insert": "c", "documents": 1}, "test", 14),
        ({"insert": "c", "documents": [1]}, "test", 14),
        ({"insert": 1, "documents": [{}]}, "test", 14),
        ({"insert": "", "documents": [{}]}, "test", 73),
        ({"insert": "a$b", "documents": [{}]}, "test", 73),
        ({"insert": ".a", "documents": [{}]}, "test", 73),
        ({"insert": "a\0b", "documents": [{}]}, "test", 73),
        ({"insert": "x" * 300, "documents": [{}]}, "test", 73),
        ({"insert": "system.users", "documents": [{}]}, "test", 73),
        ({"insert": "oplog.rs", "documents": [{}]}, "local", 73),
        ({"insert": "settings", "documents": [{}]}, "config", 73),
        ({"insert": "c", "documents": [{}]}, "a.b", 73),
        ({"insert": "c", "documents": [{}]}, "", 73),
        ({"insert": "c", "documents": [{}]}, "x" * 64, 73),
        ({"insert": "c", "documents": [{}], "nonsense": 1}, "test", 40415),
        ({"insert": "c", "documents": [{}], "ordered": "yes"}, "test", 14),
        ({"insert": "c", "documents": [{}], "writeConcern": 1}, "test", 14),
        ({"insert": "c", "documents": [{}], "writeConcern": {"w": -1}}, "test", 9),
        ({"insert": "c", "documents": [{}], "writeConcern": {"w": 51}}, "test", 9),
        ({"insert": "c", "documents": [{}], "writeConcern": {"w": True}}, "test", 9),
        ({"insert": "c", "documents": [{}], "writeConcern": {"j": True, "fsync": True}}, "test", 9),
        ({"insert": "c", "documents": [{}], "writeConcern": {"x": 1}}, "test", 9),
        ({"insert": "c", "documents": [{}], "readConcern": {"level": "majority"}}, "test", 72),
        ({"insert": "c", "documents": [{}], "maxTimeMS": -1}, "test", 51024),
    ],
)
def test_refusals(client: Client, command: dict[str, object], db: str, code: int) -> None:
    try:
        assert client.code(command, db) == code
    finally:
        assert client.entries() == []


def test_a_secondary_refuses_and_tells_its_topology_version(client: Client, rig: Rig) -> None:
    rig.step_down()
    reply = client.run({"insert": "c", "documents": [{}]})
    assert (reply["code"], reply["codeName"]) == (10107, "NotWritablePrimary")
    topology = client.member.topology
    assert reply["topologyVersion"] == {"processId": topology.process_id, "counter": topology.counter}


def test_a_large_insert_takes_several_groups(client: Client, rig: Rig) -> None:
    before = rig.groups()
    assert client.ok({"insert": "c"}, documents=[{"_id": i} for i in range(1200)])["n"] == 1200
    assert rig.groups() - before == 3


def test_a_step_down_between_two_groups_says_what_is_applied(client: Client, rig: Rig) -> None:
    rig.step_down_after(1)
    reply = client.run({"insert": "c"}, documents=[{"_id": i} for i in range(1200)])
    assert (reply["code"], reply["n"]) == (189, 500)


def test_a_full_disk_between_two_groups_is_a_write_error_beside_what_is_applied(
    client: Client, member: RunningMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, calls = member.write, itertools.count()

    async def full(operation: Callable[[WriteGroup], Any]) -> Any:
        if next(calls):
            raise OutOfDiskSpaceError("full")
        return await write(operation)

    monkeypatch.setattr(member, "write", full)
    reply = client.ok({"insert": "c"}, documents=[{"_id": i} for i in range(1200)])
    assert reply["n"] == 500
    assert [(error["index"], error["code"]) for error in reply["writeErrors"]] == [(500, 14031)]
    assert client.ok({"count": "c"})["n"] == 500


def test_a_sequence_of_an_unknown_name_is_refused(client: Client) -> None:
    assert client.code({"insert": "c", "documents": [{}]}, nonsense=[{}]) == 40415


# --- write concern ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("concern", "code"),
    [
        (None, None),
        ({"w": 2}, 100),
        ({"w": 2.0, "wtimeout": 50}, 100),
        ({"w": "majority", "j": True, "wtimeout": 50}, 64),
        ({"j": True, "wtimeout": 50}, 64),
        ({"w": 1, "j": True, "wtimeout": 50}, 64),
        ({"w": "majority", "j": False, "wtimeout": 50}, 64),
        ({"w": 1}, 0),
        ({"w": 0}, 0),
    ],
)
def test_the_write_concern_that_is_waited_for(
    client: Client, rig: Rig, concern: dict[str, object] | None, code: int | None
) -> None:
    """Nothing gets to the disk of the only member. None: it waits without end."""
    rig.stop_disk()
    writing = client.begin({"insert": "c", "documents": [{"_id": 1}], **({"writeConcern": concern} if concern else {})})
    rig.wait(1)
    assert writing.done() is (code is not None)
    if code is not None:
        assert client.decoded(writing).get("writeConcernError", {}).get("code", 0) == code


def test_a_write_concern_error_stands_beside_the_result(client: Client, rig: Rig) -> None:
    rig.stop_disk()
    concern = {"w": "majority", "wtimeout": 5}
    reply = client.ok({"insert": "c", "documents": [{"_id": 1}], "writeConcern": concern})
    assert reply["n"] == 1
    error = reply["writeConcernError"]
    assert (error["code"], error["codeName"]) == (64, "WriteConcernTimeout")
    assert error["errInfo"]["wtimeout"] is True
    assert error["errInfo"]["writeConcern"] == {**concern, "provenance": "clientSupplied"}
    (row,) = error["errInfo"]["progress"]
    assert (row["_id"], row["appliedOpTime"]["ts"]) == (0, client.entries()[-1]["ts"])


@pytest.mark.parametrize(("w", "code"), [(4, 100), ("nearby", 79)])
def test_over_http_a_concern_that_can_never_be_met_is_refused_before(client: Client, w: object, code: int) -> None:
    command = {"insert": "c", "documents": [{"_id": 1}], "writeConcern": {"w": w}}
    assert client.code(command, source="http") == code
    assert client.entries() == []


def test_on_the_wire_it_is_applied(client: Client) -> None:
    reply = client.ok({"insert": "c", "documents": [{"_id": 1}], "writeConcern": {"w": 4}})
    assert reply["writeConcernError"]["code"] == 100
    assert "wtimeout" not in reply["writeConcernError"]["errInfo"]
    assert client.ok({"count": "c"})["n"] == 1


def test_raw_bytes_are_stored_as_they_came(client: Client, member: RunningMember) -> None:
    client.ok({"insert": "c", "documents": [{"_id": 1, "d": 1.5, "n": None}]})
    coll = member.store.collection("test.c")
    assert coll is not None
    with member.store.read() as snapshot:
        assert [doc for _, doc in snapshot.scan(coll)] == [encode({"_id": 1, "d": 1.5, "n": None})]
