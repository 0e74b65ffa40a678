"""applyOps: operations of an oplog as normal writes, once and again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from replset.bson import Binary, Int64, Timestamp, encode, encode_key
from replset.replication.write_ops import do_create, do_insert
from replset.storage.schema import SESSIONS_UUID
from tests.rig import Client

Document = dict[str, Any]
UUID = Binary(bytes(range(16)), 4)


def op(kind: str, o: Document, o2: Document | None = None, ns: str = "test.c", **more: object) -> Document:
    return {"op": kind, "ns": ns, "o": o, **({} if o2 is None else {"o2": o2}), **more}


def command(o: Document, **more: object) -> Document:
    return op("c", o, ns="test.$cmd", **more)


def documents(client: Client, name: str = "c") -> list[Document]:
    return list(client.ok({"find": name, "sort": {"_id": 1}})["cursor"]["firstBatch"])


HISTORY: Sequence[Document] = (
    command({"create": "c", "idIndex": {"v": 2, "key": {"_id": 1}, "name": "_id_"}}),
    op("i", {"_id": 1, "a": 1, "t": Timestamp(0, 0)}),
    op("i", {"_id": 2, "a": 1, "big": "x" * 20_000}),
    op("i", {"_id": 3}),
    op("u", {"$v": 2, "diff": {"u": {"a": 2}, "i": {"b": [1, 2]}}}, {"_id": 1}),
    op("u", {"$v": 2, "diff": {"sb": {"a": True, "u1": 9}}}, {"_id": 1}),
    op("u", {"$v": 1, "$set": {"a": 5}, "$unset": {"big": True}}, {"_id": 2}),
    op("u", {"_id": 3, "whole": True}, {"_id": 3}),
    op("i", {"_id": 4}),
    op("d", {"_id": 4}),
    op("n", {"msg": "x"}, ns=""),
    command({"create": "gone"}),
    op("i", {"_id": 1}, ns="test.gone"),
    command({"renameCollection": "test.gone", "to": "test.went", "stayTemp": False}),
    command({"drop": "went"}),
    command({"collMod": "c", "validator": {"_id": {"$lt": 10}}}),
    command({"applyOps": [op("i", {"_id": 5}), command({"applyOps": [op("i", {"_id": 6})]})]}),
)
RESULT = [
    {"_id": 1, "a": 2, "t": Timestamp(0, 0), "b": [1, 9]},
    {"_id": 2, "a": 5},
    {"_id": 3, "whole": True},
    {"_id": 5},
    {"_id": 6},
]


def test_a_history_gives_the_same_once_and_twice(client: Client) -> None:
    total = len(HISTORY) + 1  # the last one holds two
    reply = client.ok({"applyOps": list(HISTORY)}, "admin")
    assert (reply["applied"], reply["results"]) == (total, [True] * total)
    assert documents(client) == RESULT
    assert [entry["op"] for entry in client.entries()] == list("ciiiuuuuidcicc" + "cii")
    for one in HISTORY:
        client.ok({"applyOps": [one]}, "admin")
    assert documents(client) == RESULT


def test_each_entry_is_a_plain_one(client: Client) -> None:
    client.ok({"applyOps": [HISTORY[0], HISTORY[1]]}, "admin")
    create, insert = client.entries()
    assert create["o"] == {"create": "c", "idIndex": {"v": 2, "key": {"_id": 1}, "name": "_id_"}}
    assert (insert["op"], insert["ns"], insert["ui"], insert["o"]) == ("i", "test.c", create["ui"], HISTORY[1]["o"])


def test_a_uuid_is_kept(client: Client) -> None:
    client.ok({"applyOps": [command({"create": "c"}, ui=UUID), op("i", {"_id": 1}, ui=UUID)]}, "admin")
    (found,) = client.ok({"listCollections": 1})["cursor"]["firstBatch"]
    assert found["info"]["uuid"] == UUID
    client.ok({"applyOps": [command({"drop": "c"}), command({"create": "c"}, ui=UUID)]}, "admin")
    (again,) = client.ok({"listCollections": 1})["cursor"]["firstBatch"]
    assert again["info"]["uuid"] != UUID  # the dropped one has it still
    client.ok({"applyOps": [op("i", {"_id": 2}, ui=UUID)]}, "admin")
    assert documents(client) == [{"_id": 2}]


def test_updates_of_what_is_not_there(client: Client) -> None:
    client.ok({"create": "c"})
    difference = op("u", {"$v": 2, "diff": {"u": {"a": 2}}}, {"_id": 1})
    replacement = op("u", {"a": 1}, {"_id": 1})
    client.ok({"applyOps": [difference, op("d", {"_id": 9}), op("d", {"_id": 9}, ns="test.none")]}, "admin")
    client.ok({"applyOps": [replacement], "alwaysUpsert": False}, "admin")
    assert documents(client) == []
    client.ok({"applyOps": [replacement]}, "admin")
    assert documents(client) == [{"_id": 1, "a": 1}]


def test_the_first_failure_ends_it(client: Client) -> None:
    client.ok({"create": "c", "validator": {"_id": {"$lt": 9}}})
    operations = [op("i", {"_id": 1}), op("i", {"_id": 10}), op("i", {"_id": 2})]
    reply = client.run({"applyOps": operations}, "admin")
    assert (reply["code"], reply["applied"], reply["results"]) == (121, 2, [True, False])
    assert documents(client) == [{"_id": 1}]
    client.ok({"applyOps": operations, "bypassDocumentValidation": True}, "admin")
    assert [document["_id"] for document in documents(client)] == [1, 2, 10]


@pytest.mark.parametrize(
    ("operations", "code"),
    [
        (1, 14),
        ([1], 14),
        ([{"op": "i", "ns": "test.c"}], 40414),
        ([op("i", {"a": 1})], 2),
        ([op("u", {"$v": 2, "diff": {}})], 40414),
        ([op("x", {"_id": 1})], 9),
        ([op("i", {"_id": 1}, ns="test.none")], 26),
        ([op("i", {"_id": 1}, ns="local.oplog.rs")], 73),
        ([op("i", {"_id": [1]})], 53),
        ([op("i", {"_id": 1}, ui=Binary(b"short", 4))], 207),
        ([op("i", {"_id": 1}, ui="text")], 207),
        ([command({"nonsense": 1})], 238),
        ([command({"create": "d", "nonsense": 1})], 40415),
        ([command({"create": "d", "viewOn": ""})], 2),
        ([command({"renameCollection": "test.c", "to": "other.c"})], 238),
        ([op("u", {"$v": 2, "diff": {"x": 1}}, {"_id": 1})], 4728000),
    ],
)
def test_refusals(client: Client, operations: object, code: int) -> None:
    client.ok({"insert": "c", "documents": [{"_id": 1}]})
    reply = client.run({"applyOps": operations}, "admin")
    assert reply["ok"] == 0.0
    assert reply["code"] == code or code == 4728000, reply
    assert reply["code"] != 1


def test_nesting_has_an_end(client: Client) -> None:
    client.ok({"create": "c"})
    nested = op("i", {"_id": 1})
    for _ in range(20):
        nested = command({"applyOps": [nested]})
    assert client.code({"applyOps": [nested]}, "admin") == 9


@pytest.mark.parametrize("kind", ["i", "u", "d"])
def test_the_records_of_sessions_are_out_of_reach(client: Client, kind: str) -> None:
    lsid = {"id": Binary(bytes(range(16)), 4)}
    client.ok({"insert": "c", "documents": [{"_id": 1}], "lsid": lsid, "txnNumber": Int64(1)})
    find = {"find": "transactions"}
    (record,) = before = client.ok(find, "config")["cursor"]["firstBatch"]
    about, uuid = {"_id": record["_id"]}, Binary(SESSIONS_UUID, 4)
    made = op(kind, about, about if kind == "u" else None, ui=uuid, b=True)
    assert client.code({"applyOps": [made]}, "admin") == 73
    assert client.ok(find, "config")["cursor"]["firstBatch"] == before


@pytest.mark.parametrize("kind", ["i", "u", "d"])
@pytest.mark.parametrize(("ns", "code"), [("config.consumers", 73), ("config.follow", 73), ("admin.system.users", 13)])
def test_a_uuid_leads_to_no_collection_of_the_member_itself(client: Client, ns: str, code: int, kind: str) -> None:
    document = {"_id": "x", "a": 1}
    coll = client.rig.write(lambda group: do_create(group, ns))
    client.rig.write(lambda group: do_insert(group, coll, encode_key("x"), encode(document)))
    about = {"_id": "x", "a": 2}
    made = op(kind, about, about if kind == "u" else None, ui=Binary(coll.uuid, 4))
    assert client.code({"applyOps": [made]}, "admin") == code
    assert client.member.store.get(coll, encode_key("x")) == encode(document)


def test_what_each_set_has_for_itself_is_in_no_dump(client: Client) -> None:
    client.ok({"setDefaultRWConcern": 1, "defaultWriteConcern": {"w": 1}}, "admin")
    client.ok({"createUser": "ann", "pwd": "secret", "roles": []})
    written = client.entries()
    assert [entry["ns"] for entry in written if entry["op"] == "i"] == ["config.settings", "admin.system.users"]
    for db in ("config", "admin"):
        assert client.ok({"listCollections": 1}, db)["cursor"]["firstBatch"] == []
    client.ok({"dropUser": "ann"})
    before = client.member.store.last_applied
    for entry in written:  # as mongorestore --oplogReplay sends what was written during the dump
        op = {name: entry[name] for name in ("ts", "v", "op", "ns", "o")}
        client.ok({"applyOps": [{**op, "o2": entry.get("o2", {})}]}, "admin")
    assert client.member.store.last_applied == before


@pytest.mark.parametrize(
    "one",
    [
        op("u", {"_id": 5, "a": 1}, {"_id": 1}),
        op("u", {"_id": 5, "a": 1}, {"_id": 6}, b=True),
        op("u", {"$v": 2, "diff": {"u": {"_id": 5}}}, {"_id": 1}),
        op("u", {"$v": 2, "diff": {"d": {"_id": False}}}, {"_id": 1}),
        op("u", {"$v": 1, "$set": {"_id": 5}}, {"_id": 1}),
    ],
)
def test_an_id_is_never_changed(client: Client, one: Document) -> None:
    client.ok({"insert": "c", "documents": [{"_id": 1}]})
    assert client.run({"applyOps": [one]}, "admin")["code"] == 66
    assert documents(client) == [{"_id": 1}]
    assert client.ok({"validate": "c"})["valid"]


def test_the_number_of_operations_has_an_end(client: Client) -> None:
    nothing = {"op": "n", "o": {}}
    assert client.code({"applyOps": [nothing] * 100_001}, "admin") == 16
    assert client.ok({"applyOps": [nothing] * 2_000}, "admin")["results"] == [True] * 2_000
