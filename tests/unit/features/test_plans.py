"""Any query with any set of indexes gives the documents that it gives without, in the order of its sort.

Compared with `hint: {$natural: 1}`: now, at an earlier point, while documents change, and after a rollback.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from replset.bson import Binary, DateTime, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp, Undefined, encode_key
from replset.member.member import RunningMember
from replset.storage.undo import undo_step
from tests.rig import Client

BAD_VALUE = 2
NATURAL = {"hint": {"$natural": 1}}
MAJORITY = {"readConcern": {"level": "majority"}}
PLAIN: list[Any] = [
    None, 0, 1, 2, 2.5, Int64(3), float("nan"), -1, "", "a", "ab", "b", True, False, Undefined(), MinKey(), MaxKey(),
    DateTime(5), ObjectId("0123456789abcdef01234567"), Regex("a", ""), {"b": 1}, {"b": 1, "c": 2}, {"b": [1, 2]}, {},
    {"$ref": "f", "$id": 1},
]  # fmt: skip
ARRAYS: list[Any] = [
    [], [1], [1, 2], [2, "a", None], [[1]], [[1, 2], 3], [[]], [Undefined()],
    [{"b": 1}, {"b": 2}], [{"b": 1, "c": 2}, {"b": 2, "c": 1}], [{"b": [1, 2]}, 1], [{}], [{"c": 1}], [[{"b": 1}]],
    [{"$ref": "f", "$id": 1}, {"$ref": "f", "$id": 2}],
]  # fmt: skip
PATHS = ["a", "a", "b", "c", "a.b", "a.c", "b.b", "a.0", "a.b.c", "_id", "a.$id"]
KEYS: list[dict[str, object]] = [
    {"a": 1}, {"a": -1}, {"b": 1}, {"c": -1}, {"a.b": 1}, {"a": 1, "b": 1}, {"a": 1, "b": -1}, {"b": 1, "a": 1, "c": 1},
    {"a.b": 1, "a.c": 1}, {"a.b": -1, "c": 1}, {"c": 1, "a.b": 1}, {"a": 1, "_id": 1}, {"a.0": 1}, {"b": -1, "c": -1},
    {"a.$id": 1}, {"a.$ref": 1, "a.$id": -1},
]  # fmt: skip
OPTIONS: list[dict[str, object]] = [
    {}, {}, {}, {"sparse": True}, {"partialFilterExpression": {"b": {"$gt": 0}}},
    {"partialFilterExpression": {"b": {"$exists": True}}}, {"partialFilterExpression": {"c": 1, "b": {"$lte": 2}}},
    {"partialFilterExpression": {"a": {"$type": "number"}}}, {"partialFilterExpression": {"a.b": None}},
]  # fmt: skip
SORTS: list[dict[str, object]] = [
    {"a": 1}, {"a": -1}, {"a": 1, "b": 1}, {"a": -1, "b": -1}, {"b": 1}, {"c": 1}, {"a.b": 1}, {"b": 1, "a": 1},
    {"a.b": 1, "a.c": 1}, {"_id": 1}, {"_id": -1}, {"c": -1, "b": -1}, {"a.b": -1, "c": 1}, {"a.$id": 1},
]  # fmt: skip


class Draw:
    """Random documents, filters and changes, from one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.of_expressions = random.Random(seed)

    def value(self) -> Any:
        return self.rng.choice(ARRAYS if self.rng.random() < 0.3 else PLAIN)

    def document(self, number: int) -> dict[str, Any]:
        fields = {name: self.value() for name in "abc" if self.rng.random() < 0.75}
        return {"_id": number, **fields}

    def operators(self) -> Any:
        rng = self.rng
        match rng.randrange(14):
            case 0 | 1 | 2:
                return self.value()
            case 3:
                return {"$in": [self.value() for _ in range(rng.randrange(4))]}
            case 4 | 5:
                value = self.value()
                return {rng.choice(["$gt", "$gte", "$lt", "$lte"]): 1 if isinstance(value, Regex) else value}
            case 6:
                return {"$gte": rng.choice([0, 1, "a"]), "$lt": rng.choice([2, 3, "b"])}
            case 7:
                return {"$exists": rng.random() < 0.5}
            case 8:
                return {"$ne": rng.choice([None, 1, "a"])}
            case 9:
                return {"$regex": rng.choice(["^a", "^a+", "a", "^ab?", "^"])}
            case 10:
                items = [
                    {"b": 1},
                    {"b": 1, "c": 1},
                    {"$gt": 0, "$lt": 2},
                    {"b": None},
                    {"$id": 1},
                    {"$ref": "f", "$id": 2},
                ]
                return {"$elemMatch": rng.choice(items)}
            case 11:
                return {"$all": [self.value() for _ in range(1, 3)]}
            case 12:
                return {rng.choice(["$type", "$size"]): 2}
            case _:
                return {"$not": {"$gt": 1}}

    def filter(self, depth: int = 0) -> dict[str, Any]:
        rng = self.rng
        found = {rng.choice(PATHS): self.operators() for _ in range(rng.choice([0, 1, 1, 2, 3]))}
        if depth == 0 and rng.random() < 0.3:
            found[rng.choice(["$or", "$or", "$and", "$nor"])] = [self.filter(1) or {"a": 1} for _ in range(2)]
        return found

    def expression(self, depth: int = 0) -> Any:
        """A comparison of a field with a value, in one order or the other, or several of them."""
        rng = self.of_expressions
        if depth == 0 and rng.random() < 0.3:
            return {rng.choice(["$and", "$or"]): [self.expression(1) for _ in range(2)]}
        value = rng.choice(ARRAYS if rng.random() < 0.2 else PLAIN)
        operands = [f"${rng.choice(PATHS)}", {"$literal": value}]
        return {rng.choice(["$eq", "$eq", "$gt", "$gte", "$lt", "$lte"]): operands[:: rng.choice([1, -1])]}

    def with_expression(self, query: dict[str, Any]) -> dict[str, Any]:
        match self.of_expressions.randrange(6):
            case 0 | 1:
                return {**query, "$expr": self.expression()}
            case 2:
                return {"$expr": self.expression()}
            case 3 if query:
                return {"$or": [query, {"$expr": self.expression()}]}
        return query


def fill(client: Client, draw: Draw) -> None:
    client.ok({"create": "c"})
    for number in range(6):
        spec = {"key": draw.rng.choice(KEYS), "name": f"i{number}", **draw.rng.choice(OPTIONS)}
        client.run({"createIndexes": "c", "indexes": [spec]})
    for number in range(40):
        client.run({"insert": "c", "documents": [draw.document(number)]})  # refused if an index cannot take its arrays


def change(client: Client, draw: Draw, times: int = 8, numbers: range = range(45), **more: Any) -> None:
    for _ in range(times):
        number = draw.rng.choice(numbers)
        match draw.rng.randrange(4):
            case 0:
                client.run({"delete": "c", "deletes": [{"q": {"_id": number}, "limit": 1}], **more})
            case 1:
                client.run({"insert": "c", "documents": [draw.document(number)], **more})
            case _:
                u = {"$set": {draw.rng.choice("abc"): draw.value()}}
                client.run({"update": "c", "updates": [{"q": {"_id": number}, "u": u}], **more})


def found_by(client: Client, command: dict[str, Any], on_batch: Any = None) -> list[bytes]:
    """The documents of a find, as keys, through getMores."""
    cursor = client.ok({"find": "c", **command})["cursor"]
    documents = cursor["firstBatch"]
    while cursor["id"]:
        if on_batch is not None:
            on_batch()
        cursor = client.ok({"getMore": cursor["id"], "collection": "c", "batchSize": 4})["cursor"]
        documents += cursor["nextBatch"]
    return [encode_key(doc) for doc in documents]


def check(client: Client, command: dict[str, Any]) -> None:
    """The same documents with indexes as without, each once; with a sort in the same order."""
    natural = client.run({"find": "c", **command, **NATURAL})
    if natural["ok"] != 1.0:
        assert client.run({"find": "c", **command})["ok"] != 1.0
        return
    expected, found = found_by(client, {**command, **NATURAL}), found_by(client, command)
    assert sorted(found) == sorted(expected), command
    if "_id" in command.get("sort", {}):
        assert found == expected, command


def commands(draw: Draw, count: int) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for _ in range(count):
        command: dict[str, Any] = {"filter": draw.with_expression(draw.filter())}
        if draw.rng.random() < 0.4:
            command["sort"] = {**draw.rng.choice(SORTS), "_id": draw.rng.choice([1, -1])}
        made.append(command)
    return made


@pytest.mark.in_turns
@pytest.mark.parametrize("seed", range(6))
def test_a_query_gives_the_same_documents_with_indexes(client: Client, member: RunningMember, seed: int) -> None:
    draw = Draw(seed)
    fill(client, draw)
    for command in commands(draw, 60):
        check(client, command)
        count = {"count": "c", "query": command["filter"]}
        assert client.run(count).get("n") == client.run({**count, **NATURAL}).get("n"), command
    point = member.store.last_applied
    before = found_by(client, NATURAL)
    client.rig.stop_disk()
    change(client, draw, 30, writeConcern={"w": 1})
    for command in commands(draw, 40):
        check(client, command)
        check(client, {**command, **MAJORITY})
    while undo_step(member.store, point, stem="r", limit=3):
        pass
    assert found_by(client, NATURAL) == before
    for command in commands(draw, 30):
        check(client, command)


@pytest.mark.in_turns
@pytest.mark.parametrize("seed", range(6))
def test_a_cursor_at_a_point_sees_no_change(
    client: Client, member: RunningMember, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr("replset.storage.snapshot._CHANGES", 3)
    monkeypatch.setattr("replset.features.crud.candidates.PAGE_ROWS", 2 + seed % 3)
    monkeypatch.setattr("replset.features.crud.scan.SLICE_DECODED", 1 + seed % 4)
    draw = Draw(100 + seed)
    fill(client, draw)
    for command in commands(draw, 20):
        change(client, draw, 3)
        command = {**command, **MAJORITY}
        if client.run({"find": "c", **command})["ok"] != 1.0:
            continue
        expected = found_by(client, {**command, **NATURAL})
        found = found_by(client, {**command, "batchSize": 2}, lambda: change(client, draw, 3))
        assert sorted(found) == sorted(expected), command
        if "_id" in command.get("sort", {}):
            assert found == expected, command


@pytest.mark.parametrize("was", [{"a": [1, 2], "b": [1, 2]}, {"a": [3, 1]}, {"a": Regex("a", "")}])
def test_an_index_that_was_made_later_serves_no_read_of_before(
    client: Client, member: RunningMember, was: dict[str, Any]
) -> None:
    """It may not be able to hold what a document was then."""
    client.ok({"insert": "c", "documents": [{"_id": 1, **was}, {"_id": 2, "a": 2, "b": 1}]})
    at = member.store.last_applied
    client.ok({"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"a": 9, "b": 9}}}]})
    client.ok({"createIndexes": "c", "indexes": [{"key": {"a": 1, "b": 1}, "name": "a_b"}]})
    concern = {"level": "snapshot", "atClusterTime": Timestamp(at.seconds, at.increment)}
    command = {"find": "c", "filter": {"a": was["a"]}, "readConcern": concern}
    assert client.ok(command)["cursor"]["firstBatch"] == [{"_id": 1, **was}]
    assert client.code({**command, "hint": "a_b"}) == BAD_VALUE


class InTransaction:
    """The client's commands, inside of one transaction after the other: an error ends one."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.number = 0
        self.is_begun = False

    def run(self, command: dict[str, Any]) -> dict[str, Any]:
        starts = {} if self.is_begun else {"startTransaction": True}
        self.number += not self.is_begun
        lsid = {"lsid": {"id": Binary(b"1" * 16, 4)}, "txnNumber": Int64(self.number), "autocommit": False}
        reply = self.client.run({**command, **lsid, **starts})
        self.is_begun = reply["ok"] == 1.0 and "writeErrors" not in reply
        return reply

    def ok(self, command: dict[str, Any]) -> dict[str, Any]:
        reply = self.run(command)
        assert reply["ok"] == 1.0, reply
        return reply


@pytest.mark.in_turns
@pytest.mark.parametrize("seed", range(6))
def test_a_transaction_finds_its_own_documents_through_indexes(client: Client, seed: int) -> None:
    draw = Draw(200 + seed)
    fill(client, draw)
    inside: Any = InTransaction(client)
    for command in commands(draw, 40):
        change(inside, draw, 2, range(0, 45, 2))
        natural = inside.run({"find": "c", **command, **NATURAL})
        if natural["ok"] != 1.0 or not inside.is_begun:
            continue
        expected = found_by(inside, {**command, **NATURAL})
        found = found_by(inside, {**command, "batchSize": 3})
        assert sorted(found) == sorted(expected), command
        if "_id" in command.get("sort", {}):
            assert found == expected, command
        change(client, draw, 1, range(1, 45, 2))  # outside: the transaction does not see it
        assert found_by(inside, {**command, **NATURAL}) == expected


def numbers(client: Client, count: int = 30) -> None:
    client.ok({"insert": "c", "documents": [{"_id": n, "a": n % 10, "t": [n % 3, n % 4]} for n in range(count)]})
    client.ok({"createIndexes": "c", "indexes": [{"key": {key: 1}, "name": key} for key in ("a", "t")]})


@pytest.mark.parametrize(
    ("q", "u"),
    [
        ({"a": {"$gte": 0}}, {"$inc": {"a": 3}}),
        ({"t": {"$gte": 0}}, {"$inc": {"a": 3}, "$push": {"t": 9}}),
        ({"$or": [{"a": {"$gte": 3}}, {"t": {"$gte": 0}}]}, {"$inc": {"a": 3}}),
        ({"a": {"$gte": 0}}, {"$inc": {"a": -3}}),
    ],
)
def test_an_update_that_moves_documents_in_its_index_changes_each_once(
    client: Client, monkeypatch: pytest.MonkeyPatch, q: dict[str, object], u: dict[str, Any]
) -> None:
    monkeypatch.setattr("replset.features.crud.search_batch.GROUP_DOCUMENTS", 4)
    numbers(client)
    reply = client.ok({"update": "c", "updates": [{"q": q, "u": u, "multi": True}]})
    assert (reply["n"], reply["nModified"]) == (30, 30)
    documents = client.ok({"find": "c", "filter": {}})["cursor"]["firstBatch"]
    assert [doc["a"] for doc in documents] == [n % 10 + u["$inc"]["a"] for n in range(30)]


def test_a_delete_through_an_index_takes_all(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replset.features.crud.search_batch.GROUP_DOCUMENTS", 4)
    numbers(client)
    assert client.ok({"delete": "c", "deletes": [{"q": {"t": {"$gte": 1}}, "limit": 0}]})["n"] == 27
    assert client.ok({"count": "c"})["n"] == 3


def test_count_does_not_trust_bounds_that_were_left_out(client: Client) -> None:
    client.ok({"insert": "c", "documents": [{"_id": n, "a": n % 20, "b": n} for n in range(300)]})
    client.ok({"createIndexes": "c", "indexes": [{"key": {"a": 1, "b": 1}, "name": "ab"}]})
    query = {"a": {"$in": list(range(200))}, "b": {"$in": list(range(200))}}
    assert client.ok({"count": "c", "query": query})["n"] == 200


@pytest.mark.parametrize("direction", [1, -1])
def test_ranges_without_entries_end_a_slice_but_lose_nothing(
    client: Client, monkeypatch: pytest.MonkeyPatch, direction: int
) -> None:
    monkeypatch.setattr("replset.features.crud.candidates._EMPTY_RANGES", 2)
    monkeypatch.setattr("replset.features.crud.scan.FETCH_MS", 0)
    client.ok({"insert": "c", "documents": [{"_id": n, "a": n * 7 % 100} for n in range(0, 100, 3)]})
    client.ok({"createIndexes": "c", "indexes": [{"key": {"a": direction}, "name": "a"}]})
    command = {"find": "c", "filter": {"a": {"$in": list(range(-40, 200))}}, "batchSize": 3}
    for sort in (1, -1):
        found = found_by(client, {**command, "sort": {"a": sort}})
        assert found == found_by(client, {**command, "sort": {"a": sort}, "hint": {"$natural": 1}})
        assert len(found) == 34


def test_a_read_at_a_point_may_pause_among_documents_of_later(client: Client, member: RunningMember) -> None:
    client.ok({"insert": "c", "documents": [{"_id": n} for n in range(5)]})
    at = member.store.last_applied
    client.ok({"insert": "c", "documents": [{"_id": n} for n in range(5, 100)]})
    coll = member.store.collection("test.c")
    assert coll is not None
    for backwards in (False, True):
        with member.store.read() as snapshot:
            rows = list(snapshot.natural_scan(coll, at, backwards=backwards, rows=10))
            by_key = list(snapshot.scan(coll, at, backwards=backwards, rows=10, pauses=True))
        for found in ([doc for _, _, doc in rows], [doc for _, doc in by_key]):
            assert len([doc for doc in found if doc]) == 5
            assert len([doc for doc in found if not doc]) >= 8
