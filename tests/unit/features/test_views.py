"""Views: their definitions, reads of them, what is refused, and what the oplog says."""

from __future__ import annotations

from typing import Any

import pytest

from replset.bson import Int64
from replset.features.collections import view_options
from tests.rig import Client, Rig
from tests.unit.features.test_transactions import Session

DOCS: list[dict[str, Any]] = [{"_id": i, "a": i % 4, "n": i} for i in range(300)]
ODD = [doc for doc in DOCS if doc["a"] in (1, 3)]


@pytest.fixture(autouse=True)
def _a_view(client: Client) -> None:
    client.ok({"insert": "c", "documents": DOCS})
    client.ok({"create": "odd", "viewOn": "c", "pipeline": [{"$match": {"a": {"$in": [1, 3]}}}]})
    client.ok({"create": "few", "viewOn": "odd", "pipeline": [{"$match": {"n": {"$lt": 20}}}, {"$project": {"n": 1}}]})


def found(client: Client, command: dict[str, Any]) -> list[Any]:
    """All batches of a find or an aggregate."""
    reply = client.ok(command)["cursor"]
    documents = list(reply["firstBatch"])
    name = next(iter(command.values()))
    assert reply["ns"] == f"test.{name}"
    while reply["id"]:
        reply = client.ok({"getMore": Int64(reply["id"]), "collection": name})["cursor"]
        documents += reply["nextBatch"]
    return documents


def test_find_count_distinct_and_aggregate(client: Client) -> None:
    assert found(client, {"find": "odd"}) == ODD
    assert found(client, {"find": "odd", "filter": {"_id": 3}}) == [DOCS[3]]
    assert found(client, {"find": "odd", "filter": {"_id": 2}}) == []
    assert found(client, {"find": "odd", "sort": {"_id": -1}, "skip": 1, "limit": 2, "projection": {"n": 1}}) == [
        {"_id": 297, "n": 297},
        {"_id": 295, "n": 295},
    ]
    assert found(client, {"find": "few", "batchSize": 3}) == [{"_id": doc["_id"], "n": doc["n"]} for doc in ODD[:10]]
    assert client.ok({"count": "odd"})["n"] == 150
    assert client.ok({"count": "odd", "query": {"a": 5}})["n"] == 0
    assert client.ok({"count": "odd", "query": {"n": {"$gte": 290}}, "skip": 1, "limit": 3})["n"] == 3
    assert client.ok({"distinct": "odd", "key": "a"})["values"] == [1, 3]
    assert found(client, {"aggregate": "few", "pipeline": [{"$count": "n"}], "cursor": {}}) == [{"n": 10}]
    assert found(client, {"aggregate": "odd", "pipeline": [{"$count": "n"}], "cursor": {}}) == [{"n": 150}]


def test_variables_are_the_readers_and_not_the_views(client: Client) -> None:
    above = {"$expr": {"$gt": ["$n", "$$least"]}}
    assert len(found(client, {"find": "few", "filter": above, "let": {"least": 10}})) == 5
    pipeline = {
        "aggregate": "few",
        "pipeline": [{"$match": above}, {"$count": "n"}],
        "cursor": {},
        "let": {"least": 10},
    }
    assert found(client, {**pipeline, "let": {"least": 10}}) == [{"n": 5}]
    assert client.code({"create": "v", "viewOn": "c", "pipeline": [{"$match": above}]}) == 17276


def test_a_view_follows_its_collection_and_its_definition(client: Client) -> None:
    client.ok({"insert": "c", "documents": [{"_id": 1000, "a": 1, "n": 1000}]})
    assert client.ok({"count": "odd"})["n"] == 151
    client.ok({"collMod": "odd", "viewOn": "c", "pipeline": [{"$match": {"a": 2}}]})
    assert client.ok({"distinct": "odd", "key": "a"})["values"] == [2]
    client.ok({"collMod": "odd", "pipeline": []})
    assert client.ok({"count": "odd"})["n"] == 301
    client.ok({"drop": "c"})
    assert found(client, {"find": "odd"}) == []


def test_lists_and_the_oplog(client: Client) -> None:
    assert client.ok({"listCollections": 1, "filter": {"name": "odd"}})["cursor"]["firstBatch"] == [
        {
            "name": "odd",
            "type": "view",
            "options": {"viewOn": "c", "pipeline": [{"$match": {"a": {"$in": [1, 3]}}}]},
            "info": {"readOnly": True},
        }
    ]
    names = client.ok({"listCollections": 1, "nameOnly": True, "filter": {"type": "view"}})["cursor"]["firstBatch"]
    assert names == [{"name": "few", "type": "view"}, {"name": "odd", "type": "view"}]
    stats = client.ok({"dbStats": 1})
    assert (stats["collections"], stats["views"]) == (1, 2)
    assert list(client.ok({"dbHash": 1})["collections"]) == ["c"]
    created = next(entry["o"] for entry in client.entries() if entry["o"].get("create") == "odd")
    assert created == {"create": "odd", "viewOn": "c", "pipeline": [{"$match": {"a": {"$in": [1, 3]}}}]}
    assert client.ok({"drop": "few"})["ns"] == "test.few"
    client.ok({"dropDatabase": 1})
    assert client.ok({"listCollections": 1})["cursor"]["firstBatch"] == []


@pytest.mark.parametrize(
    "command",
    [
        {"findAndModify": "odd", "query": {}, "remove": True},
        {"createIndexes": "odd", "indexes": [{"key": {"a": 1}, "name": "a_1"}]},
        {"dropIndexes": "odd", "index": "*"},
        {"listIndexes": "odd"},
        {"collStats": "odd"},
        {"validate": "odd"},
        {"aggregate": "odd", "pipeline": [{"$collStats": {"count": {}}}], "cursor": {}},
    ],
)
def test_what_no_view_takes(client: Client, command: dict[str, Any]) -> None:
    assert client.code(command) == 166


@pytest.mark.parametrize(
    "command",
    [
        {"insert": "odd", "documents": [{"a": 1}, {"a": 3}]},
        {"update": "odd", "updates": [{"q": {}, "u": {"$set": {"a": 1}}}, {"q": {"_id": 0}, "u": {}, "upsert": True}]},
        {"delete": "odd", "deletes": [{"q": {}, "limit": 0}, {"q": {}, "limit": 1}]},
    ],
)
def test_a_write_to_a_view_is_an_error_of_its_statements(client: Client, command: dict[str, Any]) -> None:
    """mongoimport counts write errors as documents that failed; of an error of the command it says nothing."""
    for ordered, failed in ((True, [0]), (False, [0, 1])):
        reply = client.ok({**command, "ordered": ordered})
        assert reply["n"] == 0
        assert [(error["index"], error["code"]) for error in reply["writeErrors"]] == [(index, 166) for index in failed]


def test_apply_ops_makes_and_changes_views(client: Client) -> None:
    made = {"op": "c", "ns": "test.$cmd", "o": {"create": "w", "viewOn": "c", "pipeline": [{"$match": {"_id": 1}}]}}
    changed = {"op": "c", "ns": "test.$cmd", "o": {"collMod": "odd", "viewOn": "w", "pipeline": []}}
    client.ok({"applyOps": [made, made, changed]}, "admin")
    assert found(client, {"find": "odd"}) == [DOCS[1]]
    cycle = {"op": "c", "ns": "test.$cmd", "o": {"collMod": "w", "viewOn": "odd", "pipeline": []}}
    assert client.run({"applyOps": [cycle]}, "admin")["code"] == 5


def test_other_refusals(client: Client) -> None:
    assert client.code({"renameCollection": "test.odd", "to": "test.x"}, "admin") == 166
    assert client.code({"renameCollection": "test.c", "to": "test.odd", "dropTarget": True}, "admin") == 166
    reply = client.run({"applyOps": [{"op": "i", "ns": "test.odd", "o": {"_id": 1}}]}, "admin")
    assert reply["code"] == 166
    for part in ({"tailable": True}, {"sort": {"$natural": 1}}, {"projection": {"a": {"$slice": 1}}}):
        assert client.code({"find": "odd", **part}) == 168


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ({"create": "v", "viewOn": ""}, 2),
        ({"create": "v", "viewOn": "a$b"}, 73),
        ({"create": "v", "viewOn": 5}, 14),
        ({"create": "v", "viewOn": "c", "pipeline": {}}, 14),
        ({"create": "v", "viewOn": "c", "pipeline": [{"$nope": 1}]}, 40324),
        ({"create": "v", "viewOn": "c", "pipeline": [{"$collStats": {}}]}, 167),
        ({"create": "v", "viewOn": "c", "capped": True, "size": 4096}, 72),
        ({"create": "v", "viewOn": "c", "pipeline": [{"$match": {"a": "x" * (256 << 10)}}]}, 195),
        ({"create": "v", "pipeline": []}, 72),
        ({"create": "v", "viewOn": "v"}, 5),
        ({"create": "odd", "viewOn": "c"}, 48),
        ({"create": "c", "viewOn": "d"}, 48),
        ({"create": "odd"}, 48),
        ({"collMod": "odd", "viewOn": "few"}, 5),
        ({"collMod": "odd", "validator": {"a": 1}}, 72),
        ({"collMod": "c", "viewOn": "d", "pipeline": []}, 72),
    ],
)
def test_definitions_that_are_refused(client: Client, command: dict[str, Any], code: int) -> None:
    assert client.code(command) == code


def test_views_lie_on_at_most_twenty_views(client: Client) -> None:
    for number in range(1, 21):
        client.ok({"create": f"v{number}", "viewOn": f"v{number + 1}"})
    for name, on in (("v21", "v22"), ("v0", "v1")):
        assert client.code({"create": name, "viewOn": on}) == 165
    client.ok({"create": "middle", "viewOn": "v10"})
    client.ok({"insert": "v21", "documents": [{"_id": 1}]})
    assert found(client, {"find": "v1"}) == [{"_id": 1}]


def test_a_database_has_not_too_many_views(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_options, "MOST_VIEWS", 3)
    for number in range(2):
        client.ok({"create": f"v{number}", "viewOn": "c"})
    assert client.code({"create": "v2", "viewOn": "c"}) == 195
    monkeypatch.setattr(view_options, "MOST_VIEWS", 99)
    monkeypatch.setattr(view_options, "MOST_BYTES", 20)
    assert client.code({"collMod": "v1", "pipeline": []}) == 195


def test_in_a_transaction_views_are_read_and_not_made(client: Client) -> None:
    session = Session(client)
    session.ok({"insert": "c", "documents": [{"_id": "mine", "a": 1, "n": 1}]})
    assert session.ok({"find": "odd", "filter": {"_id": "mine"}})["cursor"]["firstBatch"][0]["n"] == 1
    assert session.code({"create": "v", "viewOn": "c"}) == 263


def test_a_committed_view_is_read_at_the_commit_point(client: Client, rig: Rig) -> None:
    rig.stop_disk()
    client.ok({"insert": "c", "documents": [{"_id": "later", "a": 1, "n": 0}], "writeConcern": {"w": 1}})
    assert client.ok({"count": "odd", "readConcern": {"level": "majority"}})["n"] == 150
    client.ok({"create": "new", "viewOn": "c", "writeConcern": {"w": 1}})
    assert client.code({"find": "new", "readConcern": {"level": "majority"}, "maxTimeMS": 1}) == 50


def test_explain_of_a_view_shows_the_query_on_its_collection(client: Client) -> None:
    client.ok({"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a_1"}]})
    for command in (
        {"find": "odd"},
        {"aggregate": "odd", "pipeline": [], "cursor": {}},
        {"distinct": "odd", "key": "n"},
    ):
        plan = client.ok({"explain": command, "verbosity": "executionStats"})
        assert plan["queryPlanner"]["namespace"] == "test.c"
        assert plan["queryPlanner"]["winningPlan"]["inputStage"]["indexName"] == "a_1"
        assert plan["executionStats"]["nReturned"] == 150
    (cursor, count) = client.ok({"explain": {"count": "odd", "query": {"n": {"$lt": 9}}}})["stages"]
    assert cursor["$cursor"]["queryPlanner"]["winningPlan"]["stage"] == "FETCH"
    assert "$count" in count or "$group" in count
    assert client.code({"explain": {"delete": "odd", "deletes": [{"q": {}, "limit": 1}]}}) == 166
