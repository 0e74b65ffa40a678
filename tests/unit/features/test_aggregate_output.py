"""$out and $merge: what they write, every mode of $merge, what is refused, and what an error or a stepdown leaves."""

from __future__ import annotations

from typing import Any

import pytest

from replset.bson import Binary, Int64
from replset.errors import NotWritablePrimaryError
from replset.features.aggregation import run_output as aggregate_output
from replset.ids import HostPort
from tests.rig import Client, Rig, a_set
from tests.unit.features.test_transactions import Session

DOCS: list[dict[str, Any]] = [{"_id": i, "a": i % 4, "n": i} for i in range(1200)]


@pytest.fixture(autouse=True)
def _some_documents(client: Client) -> None:
    client.ok({"insert": "c", "documents": DOCS})


def pipe(*stages: dict[str, Any], over: object = "c", **more: Any) -> dict[str, Any]:
    return {"aggregate": over, "pipeline": list(stages), "cursor": {}, **more}


def all_of(client: Client, name: str, db: str = "test") -> list[Any]:
    found = client.ok({"find": name, "sort": {"_id": 1}, "batchSize": 5000}, db)
    return list(found["cursor"]["firstBatch"])


def names(client: Client, db: str = "test") -> list[str]:
    return [row["name"] for row in client.ok({"listCollections": 1}, db)["cursor"]["firstBatch"]]


# --- $out


def test_out_replaces_a_collection_and_keeps_its_indexes(client: Client) -> None:
    client.ok({"insert": "d", "documents": [{"_id": "old", "n": 5}]})
    client.ok({"createIndexes": "d", "indexes": [{"key": {"n": 1}, "name": "n_1", "unique": True}]})
    reply = client.ok(pipe({"$match": {"a": 1}}, {"$out": "d"}))
    assert reply["cursor"] == {"firstBatch": [], "id": Int64(0), "ns": "test.c"}
    assert all_of(client, "d") == [doc for doc in DOCS if doc["a"] == 1]
    assert [index["name"] for index in client.ok({"listIndexes": "d"})["cursor"]["firstBatch"]] == ["_id_", "n_1"]
    assert names(client) == ["c", "d"]
    options = client.ok({"listCollections": 1, "filter": {"name": "d"}})["cursor"]["firstBatch"][0]["options"]
    assert options == {}


def test_out_makes_an_empty_collection_and_one_in_another_database(client: Client) -> None:
    client.ok(pipe({"$match": {"a": 9}}, {"$out": "none"}))
    client.ok(pipe({"$match": {"_id": 7}}, {"$out": {"db": "other", "coll": "x"}}))
    client.ok(pipe({"$out": "c"}))
    assert names(client) == ["c", "none"]
    assert all_of(client, "x", "other") == [DOCS[7]]
    assert all_of(client, "c") == DOCS


def test_an_out_that_fails_leaves_the_collection(client: Client) -> None:
    client.ok({"insert": "d", "documents": [{"_id": "old", "a": 0}]})
    client.ok({"createIndexes": "d", "indexes": [{"key": {"a": 1}, "name": "a_1", "unique": True}]})
    reply = client.run(pipe({"$out": "d"}))
    assert (reply["code"], reply["keyPattern"]) == (11000, {"a": 1})
    assert all_of(client, "d") == [{"_id": "old", "a": 0}]
    assert names(client) == ["c", "d"]


def test_an_out_keeps_a_validator(client: Client) -> None:
    client.ok({"create": "d", "validator": {"a": {"$lt": 3}}})
    assert client.code(pipe({"$out": "d"})) == 121
    client.ok(pipe({"$out": "d"}, bypassDocumentValidation=True))
    assert len(all_of(client, "d")) == 1200
    assert client.run({"insert": "d", "documents": [{"a": 3}]})["writeErrors"][0]["code"] == 121


def test_a_stepdown_within_an_out(client: Client, rig: Rig) -> None:
    rig.step_down_after(2)
    assert client.code(pipe({"$out": "d"})) in (NotWritablePrimaryError.code, 189)
    anywhere = {"listCollections": 1, "$readPreference": {"mode": "nearest"}}
    left = [row["name"] for row in client.ok(anywhere)["cursor"]["firstBatch"]]
    assert sum(name.startswith("tmp.agg_out.") for name in left) == 1
    rig.lead()
    rig.until(lambda: not any("tmp.agg_out." in coll.ns for coll in rig.member().store.collections()))
    assert names(client) == ["c"]


@pytest.mark.parametrize("stages", [[{"$out": "d"}], [{"$match": {"a": 9}}, {"$out": "d"}], [{"$merge": "d"}]])
def test_no_output_goes_on_in_another_term(
    client: Client, rig: Rig, stages: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it wrote before may be rolled back, and the write concern of the last write would not cover it."""
    monkeypatch.setattr(aggregate_output, "BATCH", 100)  # one group each
    client.ok({"insert": "d", "documents": [{"_id": "old"}]})
    write = rig.member().write

    async def write_and_lead_again(operation: Any) -> Any:
        result = await write(operation)
        await rig.lead_again()
        return result

    monkeypatch.setattr(rig.member(), "write", write_and_lead_again)
    assert client.code(pipe(*stages)) in (NotWritablePrimaryError.code, 189)
    assert {"_id": "old"} in all_of(client, "d")


# --- $merge

OLD = [{"_id": 1, "k": 1, "a": "old", "b": "old"}, {"_id": 3, "k": 3, "a": "old"}]
NEW = [{"_id": 1, "k": 1, "a": "new"}, {"_id": 2, "k": 2, "a": "new"}]
FIRST, SECOND = NEW


@pytest.mark.parametrize(
    ("matched", "not_matched", "expected"),
    [
        ("replace", "insert", [FIRST, SECOND, OLD[1]]),
        ("replace", "discard", [FIRST, OLD[1]]),
        ("merge", "insert", [{**OLD[0], "a": "new"}, SECOND, OLD[1]]),
        ("merge", "discard", [{**OLD[0], "a": "new"}, OLD[1]]),
        ("keepExisting", "insert", [OLD[0], SECOND, OLD[1]]),
        ([{"$addFields": {"was": "$a", "b": "$$new.a"}}], "insert",
         [{"_id": 1, "k": 1, "a": "old", "b": "new", "was": "old"}, SECOND, OLD[1]]),
        ([{"$project": {"a": 1}}], "discard", [{"_id": 1, "a": "old"}, OLD[1]]),
        ("fail", "insert", 11000),
        ("replace", "fail", 13113),
        ("merge", "fail", 13113),
        ([], "fail", 13113),
        ("fail", "discard", 51189),
        ("keepExisting", "fail", 51189),
        ("nonsense", "insert", 2),
        ([{"$match": {}}], "insert", 72),
        (5, "insert", 51191),
    ],
)  # fmt: skip
def test_the_modes_of_merge(client: Client, matched: Any, not_matched: str, expected: Any) -> None:
    client.ok({"insert": "new", "documents": NEW})
    client.ok({"insert": "d", "documents": OLD})
    command = pipe({"$merge": {"into": "d", "whenMatched": matched, "whenNotMatched": not_matched}}, over="new")
    if isinstance(expected, int):
        assert client.code(command) == expected
    else:
        assert client.ok(command)["cursor"]["firstBatch"] == []
        assert all_of(client, "d") == expected


def test_merge_by_other_fields(client: Client) -> None:
    client.ok({"insert": "new", "documents": [{"_id": "x", "k": 1, "a": "new"}, {"_id": "y", "k": 9}]})
    client.ok({"insert": "d", "documents": OLD})
    by_k = {"into": {"db": "test", "coll": "d"}, "on": "k", "whenMatched": "merge"}
    command = pipe({"$project": {"_id": 0}}, {"$merge": by_k}, over="new")
    assert client.code(command) == 51183
    client.ok({"createIndexes": "d", "indexes": [{"key": {"k": 1}, "name": "k_1", "unique": True}]})
    client.ok(command)
    assert client.ok({"count": "d"})["n"] == 3
    assert all_of(client, "d")[0] == {**OLD[0], "a": "new"}
    assert client.code(pipe({"$merge": by_k}, over="new")) == 66  # the _id would change
    assert client.code(pipe({"$project": {"k": 0, "_id": 0}}, {"$merge": by_k}, over="new")) == 51132


def test_merge_with_let(client: Client) -> None:
    client.ok({"insert": "d", "documents": [{"_id": 5, "n": 1}]})
    merge = {"into": "d", "let": {"more": "$n"}, "whenMatched": [{"$set": {"n": {"$add": ["$n", "$$more"]}}}]}
    client.ok(pipe({"$match": {"_id": 5}}, {"$merge": merge}))
    assert all_of(client, "d") == [{"_id": 5, "n": 6}]


def test_a_merge_does_not_read_what_it_writes(client: Client) -> None:
    client.ok(pipe({"$project": {"_id": 0}}, {"$merge": "c"}))
    assert client.ok({"count": "c"})["n"] == 2400
    client.ok(pipe({"$group": {"_id": "$a", "n": {"$sum": "$n"}}}, {"$merge": {"into": "sums"}}))
    assert len(all_of(client, "sums")) == 4


def test_merge_keeps_to_a_validator_and_writes_no_views(client: Client) -> None:
    client.ok({"create": "d", "validator": {"a": {"$lt": 3}}})
    assert client.code(pipe({"$merge": "d"})) == 121
    client.ok({"create": "v", "viewOn": "d"})
    assert client.code(pipe({"$merge": "v"})) == 166
    assert client.code(pipe({"$out": "v"})) == 166


@pytest.mark.parametrize(
    ("stages", "code"),
    [
        ([{"$out": 5}], 16990),
        ([{"$out": {"coll": "d", "x": 1}}], 40415),
        ([{"$out": {"db": "test"}}], 40414),
        ([{"$out": {"coll": "d", "timeseries": {}}}], 238),
        ([{"$out": {"db": "config", "coll": "d"}}], 73),
        ([{"$out": "system.x"}], 73),
        ([{"$out": "d"}, {"$match": {}}], 40601),
        ([{"$facet": {"a": [{"$out": "d"}]}}], 40600),
        ([{"$merge": 5}], 51182),
        ([{"$merge": {}}], 40414),
        ([{"$merge": {"into": 5}}], 51178),
        ([{"$merge": {"into": "d", "on": 5}}], 51186),
        ([{"$merge": {"into": "d", "on": []}}], 51187),
        ([{"$merge": {"into": "d", "on": [5]}}], 51134),
        ([{"$merge": {"into": "d", "on": ["a", "a"]}}], 31465),
        ([{"$merge": {"into": "d", "let": {}}}], 51199),
        ([{"$merge": {"into": "d", "let": {"new": "$a"}, "whenMatched": []}}], 51273),
        ([{"$merge": {"into": "d", "more": 1}}], 40415),
    ],
)
def test_refusals(client: Client, stages: list[dict[str, Any]], code: int) -> None:
    assert client.code(pipe(*stages)) == code


def test_other_refusals(client: Client, rig: Rig) -> None:
    client.ok({"create": "capped", "capped": True, "size": 4096})
    assert client.code(pipe({"$out": "capped"})) == 17152
    assert client.code(pipe(writeConcern={"w": 1})) == 72
    assert client.code(pipe({"$out": "d"}, readConcern={"level": "linearizable"})) == 72
    session = Session(client)
    assert session.code(pipe({"$out": "d"})) == 263
    rig.step_down()
    assert client.code(pipe({"$merge": "d"}, **{"$readPreference": {"mode": "nearest"}})) == 10107


def test_a_secondary_has_the_primary_run_it() -> None:
    with a_set(2) as rig:
        primary, client = rig.client(), rig.client("b")
        primary.ok({"insert": "c", "documents": DOCS[:4]})
        command = pipe({"$out": "d"}, lsid={"id": Binary(b"s" * 16, 4)}, **{"$readPreference": {"mode": "secondary"}})
        assert client.ok(command)["cursor"] == {"firstBatch": [], "id": Int64(0), "ns": "test.c"}
        assert all_of(primary, "d") == DOCS[:4]
        primary.ok({"createIndexes": "d", "indexes": [{"key": {"a": 1}, "name": "a", "unique": True}]})
        primary.ok({"insert": "c", "documents": DOCS[4:5]})
        reply = client.run(command)
        assert (reply["code"], reply["keyPattern"]) == (11000, {"a": 1})
        client.connection.member = HostPort("a:27017")
        assert client.code(command) == 10107


def test_the_write_concern_is_that_of_the_last_write(client: Client, rig: Rig) -> None:
    client.ok(pipe({"$merge": "d"}, writeConcern={"w": "majority"}))
    assert rig.member().node.commit_point == rig.newest()
