"""Transactions: what they read and write, what stops them, and what their end leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from replset.bson import Binary, Int64, RawDocument, Timestamp, decode, encode
from replset.config import Settings
from replset.config.durability_rules import parse_rules
from replset.core.quorum import WriteConcern
from replset.errors import ErrorCode
from replset.features.crud import candidates
from replset.features.crud.find import FindCursor
from replset.features.crud.plan import Range
from replset.features.crud.search_batch import GROUP_DOCUMENTS
from replset.operations import in_transaction, transactions
from replset.operations.command import CommandContext
from replset.operations.cursors import Pause
from replset.operations.read_concern import ReadConcern
from replset.operations.request import CommandRequest
from replset.replication.write_ops import WriteGroup
from replset.storage import indexes
from replset.storage.catalog import SESSIONS
from replset.storage.indexes import Index
from tests.rig import Client, Rig, note_waits, step_down

Doc = dict[str, Any]
A, B = (Binary(bytes([number]) * 16, 4) for number in (1, 2))
CONFLICT, NO_SUCH, COMMITTED = 112, 251, 256


class Session:
    """A client's session and the number of its transaction."""

    def __init__(self, client: Client, session: Binary = A, number: int = 1) -> None:
        self.client = client
        self.fields: Doc = {"lsid": {"id": session}, "txnNumber": Int64(number), "autocommit": False}
        self.is_begun = False

    def begun(self, command: Mapping[str, object]) -> Doc:
        starts = {} if self.is_begun else {"startTransaction": True}
        self.is_begun = True
        return {**command, **self.fields, **starts}

    def run(self, command: Mapping[str, object], db: str = "test") -> Doc:
        return self.client.run(self.begun(command), db)

    def ok(self, command: Mapping[str, object], db: str = "test") -> Doc:
        reply = self.run(command, db)
        assert reply["ok"] == 1.0, reply
        assert "writeErrors" not in reply, reply
        return reply

    def code(self, command: Mapping[str, object], db: str = "test") -> int:
        return self.client.code(self.begun(command), db)

    def commit(self) -> Doc:
        return self.ok({"commitTransaction": 1}, "admin")

    def abort(self) -> Doc:
        return self.ok({"abortTransaction": 1}, "admin")


def find(query: Doc | None = None, name: str = "c", **more: object) -> Doc:
    return {"find": name, "filter": query or {}, **more}


def insert(*documents: Doc, name: str = "c") -> Doc:
    return {"insert": name, "documents": list(documents)}


def update(query: Doc, change: Doc, **more: object) -> Doc:
    return {"update": "c", "updates": [{"q": query, "u": change, **more}]}


def delete(query: Doc, limit: int = 0) -> Doc:
    return {"delete": "c", "deletes": [{"q": query, "limit": limit}]}


def batch(reply: Doc) -> list[Doc]:
    documents: list[Doc] = reply["cursor"]["firstBatch"]
    return documents


@pytest.fixture
def filled(client: Client) -> Client:
    client.ok(insert(*({"_id": n, "n": n} for n in range(1, 5))))
    return client


def read(client: Client) -> dict[object, object]:
    return {doc["_id"]: doc.get("n") for doc in batch(client.ok(find()))}


# --- what it reads and writes


def test_it_reads_its_own_writes_and_nobody_else_does(filled: Client) -> None:
    session = Session(filled)
    session.ok(update({"_id": 1}, {"$set": {"n": 10}}))
    session.ok(delete({"_id": 2}))
    session.ok(insert({"_id": 5, "n": 5}))
    assert session.ok(update({"n": {"$gte": 4}}, {"$inc": {"n": 100}}, multi=True))["nModified"] == 3
    inside = {doc["_id"]: doc["n"] for doc in batch(session.ok(find()))}
    assert inside == {1: 110, 3: 3, 4: 104, 5: 105}
    assert batch(session.ok(find({"_id": 5}))) == [{"_id": 5, "n": 105}]
    for first in ([], [{"$match": {"n": {"$gt": 3}}}]):
        counted = session.ok(
            {"aggregate": "c", "pipeline": [*first, {"$group": {"_id": 1, "n": {"$sum": 1}}}], "cursor": {}}
        )
        assert batch(counted) == [{"_id": 1, "n": 3 if first else 4}]
    assert batch(session.ok(find({"_id": 2}))) == []
    assert session.ok({"distinct": "c", "key": "n"})["values"] == [110, 3, 104, 105]
    assert read(filled) == {1: 1, 2: 2, 3: 3, 4: 4}
    before = len(filled.entries())
    session.commit()
    assert read(filled) == inside
    assert len(filled.entries()) == before + 1


def test_the_commit_is_one_entry_and_the_session_s_record(filled: Client) -> None:
    session = Session(filled)
    session.ok(insert({"_id": 9}))
    session.ok(update({"_id": 1}, {"$set": {"n": 7}}))
    session.ok(delete({"_id": 2}, 1))
    session.ok(insert({"_id": 1}, name="made"))
    session.commit()
    entry = filled.entries()[-1]
    assert (entry["op"], entry["ns"], entry["txnNumber"]) == ("c", "admin.$cmd", 1)
    assert entry["lsid"]["id"] == A
    assert entry["prevOpTime"] == {"ts": Timestamp(0, 0), "t": -1}
    operations = entry["o"]["applyOps"]
    assert [(one["op"], one["ns"]) for one in operations] == [
        ("i", "test.c"),
        ("u", "test.c"),
        ("d", "test.c"),
        ("c", "test.$cmd"),
        ("i", "test.made"),
    ]
    assert all({"ts", "t", "wall", "lsid"}.isdisjoint(one) for one in operations)
    store = filled.member.store
    (record,) = [decode(raw) for raw in stored(filled)]
    assert (record["txnNum"], record["state"]) == (1, "committed")
    assert record["lastWriteOpTime"]["ts"] == entry["ts"]
    assert store.collection("test.made") is not None


def stored(client: Client) -> list[bytes]:
    with client.member.store.read() as snapshot:
        return [raw for _, raw in snapshot.scan(SESSIONS)]


def test_it_reads_at_one_point(filled: Client) -> None:
    session = Session(filled)
    assert len(batch(session.ok(find()))) == 4
    filled.ok(insert({"_id": 6}))
    filled.ok(update({"_id": 1}, {"$set": {"n": 99}}))
    filled.ok({"create": "later"})
    filled.ok(insert({"_id": 1}, name="later"))
    assert {doc["_id"]: doc["n"] for doc in batch(session.ok(find()))} == {1: 1, 2: 2, 3: 3, 4: 4}
    assert batch(session.ok(find(name="later"))) == []
    assert batch(session.ok(find({"_id": {"$in": [1, 6]}}))) == [{"_id": 1, "n": 1}]
    session.commit()
    assert batch(filled.ok(find({"_id": 1})))[0]["n"] == 99


def test_a_cursor_reads_on_inside(filled: Client) -> None:
    session = Session(filled)
    reply = session.ok(find(batchSize=2))
    more = {"getMore": Int64(reply["cursor"]["id"]), "collection": "c"}
    filled.ok(insert({"_id": 6}))
    assert filled.code({**more, "lsid": {"id": B}}) == ErrorCode.CURSOR_OF_OTHER_SESSION
    assert [doc["_id"] for doc in session.ok(more)["cursor"]["nextBatch"]] == [3, 4]
    outside = filled.ok(find(batchSize=2))["cursor"]["id"]
    assert session.code({"getMore": Int64(outside), "collection": "c"}) == ErrorCode.CURSOR_WITHOUT_SESSION


def test_its_cursors_end_with_it(filled: Client) -> None:
    session = Session(filled)
    cursor = session.ok(find(batchSize=2))["cursor"]["id"]
    assert len(filled.dispatcher.cursors) == 1
    session.commit()
    assert len(filled.dispatcher.cursors) == 0
    assert filled.code({"getMore": Int64(cursor), "collection": "c"}) == 43


def test_an_abort_leaves_nothing(filled: Client) -> None:
    session, before = Session(filled), len(filled.entries())
    session.ok(insert({"_id": 9}))
    session.ok(insert({"_id": 9}, name="made"))
    session.abort()
    assert read(filled) == {1: 1, 2: 2, 3: 3, 4: 4}
    assert len(filled.entries()) == before
    assert filled.member.store.collection("test.made") is None
    assert filled.member.store.oldest_pin is None
    assert len(filled.member.transactions.held) == filled.member.transactions.open_count == 0
    assert session.code(find()) == NO_SUCH
    assert session.code({"commitTransaction": 1}, "admin") == NO_SUCH
    assert session.code({"abortTransaction": 1}, "admin") == NO_SUCH


def test_one_that_only_reads_writes_nothing(filled: Client) -> None:
    session, before = Session(filled), len(filled.entries())
    session.ok(find())
    session.commit()
    session.commit()
    assert len(filled.entries()) == before
    assert session.code(find()) == COMMITTED


def test_several_changes_of_a_document_are_undone_and_committed_in_order(filled: Client) -> None:
    session = Session(filled)
    session.ok(insert({"_id": 9, "n": 0}))
    for _ in range(3):
        session.ok(update({"_id": 9}, {"$inc": {"n": 1}}))
    session.ok(delete({"_id": 9}))
    session.ok(insert({"_id": 9, "n": 50}))
    session.ok(delete({"_id": 1}))
    session.commit()
    assert read(filled) == {2: 2, 3: 3, 4: 4, 9: 50}


# --- conflicts


def conflict(reply: Doc) -> bool:
    return bool(reply["code"] == CONFLICT and reply["errorLabels"] == ["TransientTransactionError"])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(update({"_id": 1}, {"$set": {"n": 7}}), update({"_id": 1}, {"$inc": {"n": 1}}), id="update"),
        pytest.param(delete({"_id": 1}), update({}, {"$inc": {"n": 1}}, multi=True), id="delete-update"),
        pytest.param(insert({"_id": 9}), insert({"_id": 9}), id="insert"),
        pytest.param(insert({"_id": 9}), update({"_id": 9}, {"$set": {"n": 1}}, upsert=True), id="upsert"),
        pytest.param(insert({"_id": 1}, name="made"), insert({"_id": 2}, name="made"), id="create"),
    ],
)
def test_two_transactions_do_not_write_the_same(filled: Client, first: Doc, second: Doc) -> None:
    one, two = Session(filled), Session(filled, B)
    two.ok(find())
    one.ok(first)
    assert conflict(two.run(second))
    assert two.code(find()) == NO_SUCH
    one.commit()


def test_what_was_written_after_its_point_is_not_written_over(filled: Client) -> None:
    for number, (plain, inside) in enumerate(
        [
            (update({"_id": 1}, {"$set": {"n": 7}}), update({"_id": 1}, {"$inc": {"n": 1}})),
            (delete({"_id": 2}), delete({"_id": 2})),
            (insert({"_id": 9}), insert({"_id": 9})),
            ({"create": "made"}, insert({"_id": 9}, name="made")),
            ({"drop": "made"}, insert({"_id": 9}, name="made")),
        ],
        1,
    ):
        session = Session(filled, number=number)
        session.ok(find())
        filled.ok(plain)
        assert conflict(session.run(inside)), plain


def test_a_collection_dropped_before_the_commit_is_a_conflict(filled: Client) -> None:
    session = Session(filled)
    session.ok(insert({"_id": 9}))
    filled.ok({"drop": "c"})
    assert conflict(session.run({"commitTransaction": 1}, "admin"))
    assert len(filled.member.transactions.held) == 0


@pytest.mark.parametrize(
    ("plain", "end", "expected"),
    [
        pytest.param(update({"_id": 1}, {"$inc": {"n": 1}}), "commit", {1: 8}, id="update-behind-commit"),
        pytest.param(update({"_id": 1}, {"$inc": {"n": 1}}), "abort", {1: 2}, id="update-behind-abort"),
        pytest.param(update({}, {"$inc": {"n": 1}}, multi=True), "commit", {1: 8, 2: 3, 4: 5}, id="multi"),
        pytest.param(update({"_id": 9}, {"$inc": {"n": 1}}, upsert=True), "commit", {9: 10}, id="upsert"),
        pytest.param(update({"_id": 9}, {"$inc": {"n": 1}}, upsert=True), "abort", {9: 1}, id="upsert-behind-abort"),
        pytest.param(delete({}), "commit", {}, id="delete"),
        pytest.param(insert({"_id": 8}, {"_id": 9, "n": 1}), "abort", {8: None, 9: 1}, id="insert"),
        pytest.param(
            {"applyOps": [{"op": op, "ns": "test.c", "o": {"_id": 7 if op == "i" else 1}} for op in "id"]},
            "commit",
            {7: None, 2: 2},
            id="applyOps",
        ),
        pytest.param({"drop": "c"}, "abort", {}, id="drop-does-not-wait"),
    ],
)
def test_a_plain_write_waits_for_the_end(filled: Client, plain: Doc, end: str, expected: Doc) -> None:
    session = Session(filled)
    session.ok(update({"_id": 1}, {"$set": {"n": 7}}))
    session.ok(insert({"_id": 9, "n": 9}))

    async def both() -> Doc:
        waiting = asyncio.ensure_future(send(filled, plain, "admin" if "applyOps" in plain else "test"))
        await asyncio.sleep(0.1)
        assert waiting.done() == ("drop" in plain)
        await send(filled, session.begun({f"{end}Transaction": 1}), "admin")
        return await waiting

    reply = filled.rig.do(both())
    assert reply["ok"] == 1
    assert "writeErrors" not in reply
    found = read(filled)
    assert {key: found.get(key) for key in expected} == expected
    if not expected:
        assert found == {}
    elif "applyOps" in plain:
        assert 1 not in found


def test_a_large_update_that_waits_in_its_midst_changes_each_document_once(filled: Client) -> None:
    """Its first groups are committed by then. If it began again it would change their documents twice."""
    held, session = 2 * GROUP_DOCUMENTS, Session(filled)
    filled.ok(insert(*({"_id": n, "n": n} for n in range(5, held + 1))))
    session.ok(update({"_id": held}, {"$set": {"n": held}, "$inc": {"more": 1}}))

    async def both() -> Doc:
        waiting = asyncio.ensure_future(send(filled, update({}, {"$inc": {"n": 1}}, multi=True)))
        for _ in range(60):
            await asyncio.sleep(0)
        assert filled.member.transactions._ended.waiting
        await send(filled, session.begun({"commitTransaction": 1}), "admin")
        return await waiting

    assert filled.rig.do(both())["nModified"] == held
    found = batch(filled.ok(find(batchSize=1_000)))
    assert {document["_id"]: document["n"] for document in found} == {n: n + 1 for n in range(1, held + 1)}


def test_a_plain_write_waits_no_longer_than_max_time_ms(filled: Client) -> None:
    session = Session(filled)
    session.ok(update({"_id": 1}, {"$set": {"n": 7}}))
    before = filled.rig.cluster.loop.now_ms
    assert filled.code({**update({"_id": 1}, {"$set": {"n": 8}}), "maxTimeMS": 20}) == 50
    assert 20 <= filled.rig.cluster.loop.now_ms - before < 30
    reply = filled.ok({**insert({"_id": 7}), "maxTimeMS": 20})
    assert reply["n"] == 1
    session.commit()


async def send(client: Client, command: Mapping[str, object], db: str = "test") -> Doc:
    body = RawDocument(encode({**command, "$db": db}))
    reply = await client.dispatcher.run(CommandRequest(db, body, {}, client.connection))
    return decode(reply if isinstance(reply, bytes) else encode(reply))


# --- unique indexes


def test_unique_indexes_hold_inside_and_at_the_commit(filled: Client) -> None:
    filled.ok({"createIndexes": "c", "indexes": [{"key": {"n": 1}, "name": "n_1", "unique": True}]})
    session = Session(filled)
    reply = session.run(insert({"_id": 9, "n": 1}))
    assert reply["writeErrors"][0]["code"] == 11000
    session = Session(filled, number=2)
    session.ok(update({"_id": 1}, {"$set": {"n": 70}}))
    session.ok(insert({"_id": 9, "n": 1}))
    assert session.run(insert({"_id": 10, "n": 70}))["writeErrors"][0]["code"] == 11000
    session = Session(filled, number=3)
    session.ok(insert({"_id": 9, "n": 90}))
    filled.ok(insert({"_id": 10, "n": 90}))
    assert conflict(session.run({"commitTransaction": 1}, "admin"))
    session = Session(filled, number=4)
    session.ok(update({"_id": 1}, {"$set": {"n": 70}}))
    session.ok(update({"_id": 2}, {"$set": {"n": 1}}))
    session.ok(update({"_id": 1}, {"$set": {"n": 2}}))
    session.commit()
    assert {key: value for key, value in read(filled).items() if key in (1, 2)} == {1: 2, 2: 1}


def test_the_values_of_a_document_under_indexes_are_limited_inside(
    filled: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [{"key": {"n": 1}, "name": "n"}, {"key": {"n": 1, "m": 1}, "name": "nm"}]
    filled.ok({"createIndexes": "c", "indexes": keys})
    monkeypatch.setattr(indexes, "VALUES_MAX", 100)
    session = Session(filled)
    [error] = session.run(insert({"_id": 9, "n": [7] * 60, "padding": "x" * indexes.LARGE}))["writeErrors"]
    assert (error["code"], "together" in error["errmsg"]) == (201, True)


@pytest.mark.parametrize("command", [find({"n": 3}), insert({"_id": 7, "n": 7}), update({"n": 3}, {"$set": {"x": 1}})])
def test_an_index_dropped_meanwhile_is_a_conflict(filled: Client, command: Doc) -> None:
    filled.ok({"createIndexes": "c", "indexes": [{"key": {"n": 1}, "name": "n_1", "unique": True}]})
    session = Session(filled)
    session.ok(find({"_id": 1}))
    filled.ok({"dropIndexes": "c", "index": "n_1"})
    reply = session.run(command)
    assert (reply.get("code"), reply.get("errorLabels")) == (CONFLICT, ["TransientTransactionError"]), reply
    assert not filled.member.transactions.held


def test_a_conflict_in_a_later_group_is_the_command_s_error(filled: Client) -> None:
    other, session = Session(filled, B), Session(filled)
    other.ok(insert({"_id": 1_599}))
    reply = session.run(insert(*({"_id": number} for number in range(1_000, 1_600))))
    assert (reply.get("code"), reply.get("errorLabels")) == (CONFLICT, ["TransientTransactionError"]), reply
    other.commit()


def test_a_database_that_differs_in_case_is_not_made_by_a_commit(filled: Client) -> None:
    session = Session(filled)
    session.ok(insert({"_id": 1}), "Data")
    filled.ok(insert({"_id": 1}), "data")
    assert session.code({"commitTransaction": 1}, "admin") == ErrorCode.DATABASE_DIFFER_CASE
    assert filled.member.store.collection("Data.c") is None


def test_an_ended_transaction_keeps_no_memory_and_no_cursor(filled: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    filled.ok({"createIndexes": "c", "indexes": [{"key": {"n": 1}, "name": "n_1", "unique": True}]})
    session = Session(filled)
    session.ok(insert({"_id": 7, "n": 7}))
    table = filled.member.transactions
    ((_, transaction),) = table._newest.items()
    batch_of = FindCursor.batch

    async def expires_meanwhile(
        cursor: FindCursor, pause: Pause, limit: int | None, await_ms: int | None
    ) -> list[bytes]:
        documents = await batch_of(cursor, pause, limit, await_ms)
        table._expire(transaction)
        return documents

    monkeypatch.setattr(FindCursor, "batch", expires_meanwhile)
    assert session.code(find(batchSize=1)) == ErrorCode.TRANSACTION_EXCEEDED_LIFETIME
    assert not filled.dispatcher.cursors._open
    assert filled.member.store.oldest_pin is None
    assert not transaction.write_set._keystrings
    assert not transaction.write_set.catalog.by_ns


def test_indexes_are_made_with_their_collection(filled: Client) -> None:
    spec = {"key": {"n": 1}, "name": "n_1", "unique": True}
    session = Session(filled)
    session.ok({"createIndexes": "made", "indexes": [spec]})
    session.ok(insert({"_id": 1, "n": 1}, name="made"))
    session.commit()
    assert [row["name"] for row in batch(filled.ok({"listIndexes": "made"}))] == ["_id_", "n_1"]
    assert filled.ok(insert({"_id": 2, "n": 1}, name="made"))["writeErrors"][0]["code"] == 11000
    session = Session(filled, number=2)
    session.ok({"create": "other"})
    session.ok({"createIndexes": "other", "indexes": [spec]})
    session.ok(insert({"_id": 1, "n": 1}, name="other"))
    assert session.run(insert({"_id": 2, "n": 1}, name="other"))["writeErrors"][0]["code"] == 11000
    assert Session(filled, number=3).code({"createIndexes": "c", "indexes": [spec]}) == 263
    assert Session(filled, number=4).code({"create": "c"}) == 48
    filled.ok({"create": "empty"})
    assert Session(filled, number=5).code({"createIndexes": "empty", "indexes": [spec]}) == 263
    assert [row["name"] for row in batch(filled.ok({"listIndexes": "empty"}))] == ["_id_"]


def test_an_index_finds_the_documents_as_the_transaction_sees_them(filled: Client) -> None:
    filled.ok({"createIndexes": "c", "indexes": [{"key": {"n": 1}, "name": "n_1"}]})
    session = Session(filled)
    session.ok(find())
    filled.ok(update({"_id": 3}, {"$set": {"n": 50}}))
    filled.ok(insert({"_id": 60, "n": 2}))
    session.ok(update({"n": 1}, {"$set": {"n": 3}}))
    session.ok(insert({"_id": 9, "n": 3}))
    session.ok(delete({"n": 4}))
    for hint in ({}, {"hint": {"n": 1}}, {"hint": {"$natural": 1}}):
        found = {doc["_id"] for doc in batch(session.ok(find({"n": {"$gte": 2, "$lt": 60}}, **hint)))}
        assert found == {1, 2, 3, 9}
    assert [doc["n"] for doc in batch(session.ok(find({}, sort={"n": -1})))] == [3, 3, 3, 2]
    assert conflict(session.run(update({"n": 3}, {"$inc": {"n": 1}}, multi=True)))


def test_many_own_documents_are_placed_in_an_index_once(filled: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    filled.ok({"createIndexes": "c", "indexes": [{"key": {"n": 1}, "name": "n_1"}]})
    session = Session(filled)
    session.ok(insert(*({"_id": number, "n": -number} for number in range(1_000, 2_000))))
    placed, first_key = list[bytes](), candidates.first_key

    def noted(index: Index, ranges: Sequence[Range], doc: bytes, backwards: bool) -> bytes | None:
        placed.append(doc)
        return first_key(index, ranges, doc, backwards)

    monkeypatch.setattr(candidates, "first_key", noted)
    cursor = session.ok(find({"n": {"$lt": 0}}, hint="n_1", batchSize=500))["cursor"]
    assert len(placed) == 1_000
    session.ok(update({"_id": {"$in": [1_999, 1_000]}}, {"$set": {"late": 1}}, multi=True))
    more = session.ok({"getMore": Int64(cursor["id"]), "collection": "c", "batchSize": 1_000})["cursor"]["nextBatch"]
    assert [doc["_id"] for doc in (*cursor["firstBatch"], *more)] == list(range(1_999, 999, -1))
    assert more[-1]["late"] == 1
    assert len(placed) == 1_002


# --- errors


@pytest.mark.parametrize(
    ("command", "db", "code"),
    [
        pytest.param({"count": "c"}, "test", 263, id="count"),
        pytest.param({"drop": "c"}, "test", 263, id="drop"),
        pytest.param({"listCollections": 1}, "test", 263, id="listCollections"),
        pytest.param(find(), "config", 263, id="config"),
        pytest.param(find(), "local", 263, id="local"),
        pytest.param(find(name="system.views"), "test", 263, id="system"),
        pytest.param({"killCursors": "c", "cursors": [Int64(1)]}, "test", 263, id="killCursors-first"),
        pytest.param({"commitTransaction": 1}, "admin", 263, id="commit-first"),
        pytest.param({**insert({"_id": 9}), "writeConcern": {"w": 1}}, "test", 72, id="writeConcern"),
        pytest.param({**find(), "readConcern": {"level": "linearizable"}}, "test", 72, id="linearizable"),
        pytest.param({**find(), "readConcern": {"level": "available"}}, "test", 72, id="available"),
    ],
)
def test_what_no_transaction_takes(filled: Client, command: Doc, db: str, code: int) -> None:
    session = Session(filled)
    assert session.code(command, db) == code
    assert session.code(find()) == NO_SUCH
    assert filled.member.transactions.open_count == 0


@pytest.mark.parametrize("level", ["local", "majority", "snapshot"])
def test_the_first_command_may_have_a_read_concern(filled: Client, level: str) -> None:
    session = Session(filled)
    session.ok({**insert({"_id": 9}), "readConcern": {"level": level}})
    assert session.code({**find(), "readConcern": {"level": level}}) == 72


def test_numbers_of_one_session(filled: Client) -> None:
    one = Session(filled, number=5)
    one.ok(insert({"_id": 9}))
    assert Session(filled, number=5).code(find()) == 117
    assert Session(filled, number=4).code(find()) == 225
    two = Session(filled, number=6)
    two.ok(insert({"_id": 9}))
    assert one.code(find()) == 225
    two.commit()
    assert two.commit()["ok"] == 1
    assert two.code({"abortTransaction": 1}, "admin") == COMMITTED
    assert two.code(find()) == COMMITTED
    assert Session(filled, number=6).code(find()) == 117
    late = Session(filled, number=7)
    late.is_begun = True
    assert late.code(find()) == NO_SUCH
    assert late.code({"commitTransaction": 1}, "admin") == NO_SUCH


def test_too_few_in_sync_refuse_the_commit_of_what_was_written_alone(
    filled: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = filled.member.node
    config = replace(node.config, settings=replace(node.config.settings, min_in_sync=2))
    monkeypatch.setattr(type(node), "config", property(lambda _: config))
    few = ["1 of 2 is in sync"]
    monkeypatch.setattr(node, "in_sync_refusal", lambda: few[0] if few else None)
    reader, writer = Session(filled), Session(filled, B)
    reader.ok(find())
    writer.ok(insert({"_id": 9}))
    end = {"commitTransaction": 1, "writeConcern": {"w": "majority"}}
    assert reader.ok(end, "admin")
    refused = writer.run(end, "admin")
    assert (refused["code"], refused["errorLabels"]) == (ErrorCode.NOT_ENOUGH_IN_SYNC, ["NoWritesPerformed"])
    assert filled.member.transactions.open_count == 0, "it holds no document any more"
    assert writer.code(end, "admin") == NO_SUCH
    few.clear()
    writer = Session(filled, B, number=2)
    writer.ok(insert({"_id": 9}))
    assert writer.ok(end, "admin")
    few.append("1 of 2 is in sync")
    assert writer.ok(end, "admin"), "it is committed: a commit that is repeated applies nothing"


def test_a_commit_waits_for_the_level_of_each_collection_that_it_wrote(
    filled: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = filled.member.node
    rules = parse_rules({"test.c": {"level": 2}, "test.log": {"level": 1}})
    config = replace(node.config, settings=Settings(durability_levels=rules))
    monkeypatch.setattr(type(node), "config", property(lambda _: config))
    levels = {"test.c": WriteConcern("majority", True), "test.log": WriteConcern(1, True)}
    monkeypatch.setattr(node, "concern_of_level", levels.get)
    session, waited = Session(filled), note_waits(monkeypatch)
    for name in ("log", "c", "plain"):
        session.ok(insert({"_id": 9}, name=name))
    waited.clear()
    session.commit()
    assert [(concern.w, concern.j) for _, concern in waited] == [("majority", True), (1, True), ("majority", None)]
    session = Session(filled, number=2)
    session.ok(insert({"_id": 10}))
    waited.clear()
    session.ok({"commitTransaction": 1, "writeConcern": {"w": 2}}, "admin")
    assert [concern.w for _, concern in waited] == [2]


def test_a_commit_is_known_from_the_record_alone(filled: Client) -> None:
    session = Session(filled)
    session.ok(insert({"_id": 9}))
    session.commit()
    filled.member.transactions.abort_all(lambda: ValueError())  # type: ignore[arg-type,return-value]
    entries = len(filled.entries())
    session.commit()
    assert len(filled.entries()) == entries
    assert session.code({"abortTransaction": 1}, "admin") == COMMITTED
    other = Session(filled, B)
    other.is_begun = True
    reply = other.run({"commitTransaction": 1}, "admin")
    assert (reply["code"], reply["errorLabels"]) == (NO_SUCH, ["TransientTransactionError"])


def test_a_stepdown_just_after_the_entry_was_written(filled: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    session, write = Session(filled), filled.member.write

    async def write_and_step_down(operation: Callable[[WriteGroup], Any]) -> Any:
        result = await write(operation)
        filled.member.transactions.abort_all(lambda: ValueError())  # type: ignore[arg-type,return-value]
        return result

    session.ok(insert({"_id": 9}))
    monkeypatch.setattr(filled.member, "write", write_and_step_down)
    session.commit()
    monkeypatch.undo()
    session.commit()
    assert batch(filled.ok(find({"_id": 9}))) == [{"_id": 9}]
    assert filled.member.transactions.open_count == 0


def test_an_error_aborts(filled: Client) -> None:
    session = Session(filled)
    session.ok(insert({"_id": 9}))
    reply = session.run(insert({"_id": 1}))
    assert reply["writeErrors"][0]["code"] == 11000
    assert session.code(find()) == NO_SUCH
    session = Session(filled, number=2)
    session.ok(insert({"_id": 9}))
    assert session.code(find({"$nonsense": 1})) == 2
    reply = session.run(find())
    assert (reply["code"], reply["errorLabels"]) == (NO_SUCH, ["TransientTransactionError"])
    assert read(filled) == {1: 1, 2: 2, 3: 3, 4: 4}


def test_a_step_down_aborts_all(filled: Client, rig: Rig) -> None:
    session = Session(filled)
    session.ok(insert({"_id": 9}))
    rig.step_down()
    reply = session.run(find())
    assert (reply["code"], reply["errorLabels"]) == (10107, ["TransientTransactionError"])
    reply = session.run({"commitTransaction": 1}, "admin")
    assert (reply["code"], reply["errorLabels"]) == (10107, ["RetryableWriteError"])


def test_none_begins_after_a_step_down_during_the_wait(filled: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps_down(ctx: CommandContext, concern: ReadConcern) -> None:
        await filled.dispatcher.run(filled.request(step_down(60), "admin"))

    monkeypatch.setattr(in_transaction, "read_point", steps_down)
    reply = Session(filled).run(insert({"_id": 9}))
    assert (reply.get("code"), reply.get("errorLabels")) == (10107, ["TransientTransactionError"]), reply
    assert filled.member.transactions.open_count == 0
    assert filled.member.store.oldest_pin is None


def test_a_commit_in_a_later_term_is_refused(filled: Client) -> None:
    """What it read may have been rolled back in between."""
    session = Session(filled)
    session.ok({"insert": "c", "documents": [{"_id": 90}]})
    (transaction,) = filled.member.transactions._newest.values()
    transaction.term -= 1
    assert session.code({"commitTransaction": 1}, "admin") == 10107


def test_the_newest_transactions_that_ended_are_remembered(filled: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their numbers are not used again. Those that are open are not among them."""
    monkeypatch.setattr(transactions, "MAX_ENDED", 3)

    def session(number: int) -> Session:
        return Session(filled, Binary(bytes([number]) * 16, 4))

    for number in (50, 51):
        session(number).ok(find())
    for number in range(5):
        ended = session(number)
        ended.ok(find())
        ended.abort()
    session(52).ok(find())
    again = [session(number).run(find()).get("code") for number in (4, 3, 2)]
    assert again == [ErrorCode.CONFLICTING_OPERATION_IN_PROGRESS] * 3
    assert session(0).run(find())["ok"] == 1.0


def test_it_lives_a_limited_time(filled: Client) -> None:
    filled.member.transactions.lifetime_s = 0.01
    session = Session(filled)
    session.ok(insert({"_id": 9}))
    filled.rig.wait(0.05)
    assert session.code({"commitTransaction": 1}, "admin") == NO_SUCH
    assert len(filled.member.transactions.held) == 0


def test_more_than_one_entry_holds_is_refused(filled: Client) -> None:
    session = Session(filled)
    session.ok(insert({"_id": 10, "filler": "x" * (9 << 20)}))
    reply = session.run(insert({"_id": 11, "filler": "x" * (9 << 20)}))
    found = reply["writeErrors"][0]["code"] if "writeErrors" in reply else reply["code"]
    assert found == 257
    assert session.code({"commitTransaction": 1}, "admin") == NO_SUCH


def test_more_writes_than_one_commit_has_time_for_are_refused(filled: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replset.replication.write_set.WRITES_MAX", 10)
    filled.ok({"createIndexes": "c", "indexes": [{"key": {"n": 1}, "name": "n"}]})
    fits = Session(filled, number=1)
    fits.ok(insert(*({"_id": number} for number in range(100, 105))))
    fits.commit()
    session = Session(filled, number=2)
    reply = session.run(insert(*({"_id": number} for number in range(200, 206))))
    found = reply["writeErrors"][0]["code"] if "writeErrors" in reply else reply["code"]
    assert found == 257
    assert session.code({"commitTransaction": 1}, "admin") == NO_SUCH


def test_the_keys_of_one_document_are_limited_before_the_commit(
    filled: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replset.storage.indexes.KEYS_MAX", 10)
    filled.ok({"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}, {"key": {"b": 1}, "name": "b"}]})
    fits = Session(filled, number=1)
    fits.ok(insert({"_id": 100, "a": list(range(5)), "b": list(range(5))}))
    fits.commit()
    session = Session(filled, number=2)
    reply = session.run(insert({"_id": 101, "a": list(range(6)), "b": list(range(5))}))
    found = reply["writeErrors"][0]["code"] if "writeErrors" in reply else reply["code"]
    assert found == 201
    assert session.code({"commitTransaction": 1}, "admin") == NO_SUCH
    one_more = Session(filled, number=3)
    one_more.ok(update({"_id": 100}, {"$push": {"a": 5}}))  # the ten that it has are none that it gets
    one_more.commit()


def test_all_together_take_limited_memory(filled: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replset.operations.transactions.MAX_MEMORY_BYTES", 10_000)
    one, two = Session(filled), Session(filled, B)
    one.ok(insert({"_id": 10, "filler": "x" * 6_000}))
    reply = two.run(insert({"_id": 11, "filler": "x" * 6_000}))
    assert reply["code"] == 462
    assert "TransientTransactionError" in reply["errorLabels"]
    one.commit()
    Session(filled, B, 2).ok(insert({"_id": 11, "filler": "x" * 6_000}))


def test_so_many_may_be_open(filled: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """20,000 of one insert each took a member from 113 to 236 MB, and they came in six seconds."""
    monkeypatch.setattr("replset.operations.transactions.MAX_OPEN", 1)
    one, two = Session(filled), Session(filled, B)
    one.ok(insert({"_id": 10}))
    reply = two.run(insert({"_id": 11}))
    assert reply["code"] == 462
    assert "TransientTransactionError" in reply["errorLabels"]
    Session(filled, number=2).ok(insert({"_id": 12}))  # the session's one before is aborted for it
    assert filled.member.transactions.open_count == 1
    assert Session(filled, B, 2).code(insert({"_id": 11})) == 462
    Session(filled, number=3).ok(insert({"_id": 13}))


# --- read concern snapshot outside of transactions


def test_the_keys_of_unique_indexes_count_as_memory(filled: Client) -> None:
    filled.ok({"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a_1", "unique": True, "sparse": True}]})
    session = Session(filled)
    session.ok(insert({"_id": 9, "a": list(range(1_000))}))
    table = filled.member.transactions
    assert table._memory_bytes > 400_000
    session.abort()
    assert table._memory_bytes == 0


def test_snapshot_reads_at_a_cluster_time(filled: Client) -> None:
    member = filled.member
    at = member.store.last_applied
    reply = filled.ok({**find(), "readConcern": {"level": "snapshot"}})
    when = reply["cursor"]["atClusterTime"]
    assert when == Timestamp(at.seconds, at.increment)
    filled.ok(update({"_id": 1}, {"$set": {"n": 7}}))
    filled.ok(delete({"_id": 2}))
    concern = {"readConcern": {"level": "snapshot", "atClusterTime": when}}
    assert {doc["_id"]: doc["n"] for doc in batch(filled.ok({**find(), **concern}))} == {1: 1, 2: 2, 3: 3, 4: 4}
    reply = filled.ok({"distinct": "c", "key": "n", **concern})
    assert (reply["values"], reply["atClusterTime"]) == ([1, 2, 3, 4], when)
    count = {"aggregate": "c", "pipeline": [{"$group": {"_id": 1, "n": {"$sum": 1}}}], "cursor": {}}
    cursor = filled.ok({**count, **concern})["cursor"]
    assert (cursor["firstBatch"], cursor["atClusterTime"]) == ([{"_id": 1, "n": 4}], when)
    first = filled.ok({**find(batchSize=2), **concern})["cursor"]
    assert member.store.oldest_pin == at
    more = filled.ok({"getMore": Int64(first["id"]), "collection": "c"})["cursor"]
    assert [doc["_id"] for doc in (*first["firstBatch"], *more["nextBatch"])] == [1, 2, 3, 4]
    assert more["atClusterTime"] == when
    assert member.store.oldest_pin is None
    assert filled.code({"count": "c", **concern}) == 72
    member.store.pruned_through = member.store.last_applied.ts
    assert filled.code({**find(), **concern}) == 239


@pytest.mark.parametrize(
    "concern",
    [
        pytest.param({"level": "local", "atClusterTime": Timestamp(1, 1)}, id="without-snapshot"),
        pytest.param(
            {"level": "snapshot", "atClusterTime": Timestamp(1, 1), "afterClusterTime": Timestamp(1, 1)}, id="both"
        ),
        pytest.param({"level": "snapshot", "atClusterTime": Timestamp(4_000_000_000, 1)}, id="future"),
    ],
)
def test_cluster_times_that_cannot_be(filled: Client, concern: Doc) -> None:
    assert filled.code({**find(), "readConcern": concern}) == 72
