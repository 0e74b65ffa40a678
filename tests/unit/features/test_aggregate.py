"""aggregate: the same answers as the stages one by one, whatever part a query does; batches, counts and refusals."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from replset.bson import Int64, decode, encode
from replset.features.aggregation import pipeline_run as pipelines
from replset.features.aggregation.pipeline_run import split_pipeline
from replset.query.pipeline import compile_pipeline
from replset.query.stages import group
from replset.query.stages.stage import Chain
from tests.rig import Client, Rig

DOCS: list[dict[str, Any]] = [{"_id": i, "a": i % 4, "n": (i * 37) % 50, "s": "x" * (i % 7)} for i in range(400)]


@pytest.fixture(autouse=True)
def _some_documents(client: Client) -> None:
    client.ok({"insert": "c", "documents": DOCS})


def aggregate(client: Client, *stages: dict[str, Any], batch_size: int | None = None, **more: Any) -> list[Any]:
    """All batches."""
    cursor: dict[str, Any] = {} if batch_size is None else {"batchSize": batch_size}
    found = client.ok({"aggregate": "c", "pipeline": list(stages), "cursor": cursor, **more})["cursor"]
    assert found["ns"] == "test.c"
    documents = list(found["firstBatch"])
    while found["id"]:
        more_size = {"batchSize": batch_size} if batch_size else {}
        found = client.ok({"getMore": Int64(found["id"]), "collection": "c", **more_size})["cursor"]
        documents += found["nextBatch"]
    return documents


DOUBLED = {"$concat": ["$$value", "$$value"]}
STAGES: list[dict[str, Any]] = [
    {"$match": {"a": {"$in": [1, 2]}}},
    {"$match": {"n": {"$gt": 10}}},
    {"$sort": {"n": -1, "_id": 1}},
    {"$sort": {"s": 1, "_id": -1}},
    {"$skip": 3},
    {"$limit": 40},
    {"$limit": 100},
    {"$project": {"n": 1, "a": 1}},
    {"$group": {"_id": "$a", "n": {"$sum": "$n"}}},
    {"$count": "n"},
]


@pytest.mark.in_turns
@pytest.mark.parametrize("seed", range(40))
def test_a_pipeline_is_its_stages_one_by_one(client: Client, seed: int) -> None:
    rng = random.Random(seed)
    stages = [rng.choice(STAGES) for _ in range(rng.randrange(6))]
    documents = DOCS
    for stage in stages:
        chain = Chain(compile_pipeline([stage]))
        found = [*chain.feed(map(encode, documents)), *chain.end()]
        documents = [decode(raw) for raw in found if raw is not None]
    assert aggregate(client, *stages, batch_size=rng.choice([None, 1, 7, 200])) == documents


SPLITS: list[tuple[list[dict[str, Any]], dict[str, Any], int]] = [
    ([], {}, 0),
    ([{"$match": {"a": 1}}, {"$match": {"n": 2}}], {"filter": {"$and": [{"a": 1}, {"n": 2}]}}, 0),
    (
        [{"$match": {"a": 1}}, {"$sort": {"n": 1}}, {"$skip": 1}, {"$limit": 2}, {"$project": {"n": 1}}],
        {"filter": {"a": 1}, "sort": {"n": 1}, "skip": 1, "limit": 2, "projection": {"n": 1}},
        0,
    ),
    ([{"$limit": 2}, {"$skip": 1}], {"limit": 2}, 1),
    ([{"$limit": 2}, {"$limit": 3}], {"limit": 2}, 1),
    ([{"$skip": 1}, {"$match": {"a": 1}}], {"skip": 1}, 1),
    ([{"$project": {"n": 1}}, {"$match": {"a": 1}}], {}, 2),
    ([{"$project": {"n": 1}}, {"$match": {"n": 1}}], {"filter": {"n": 1}, "projection": {"n": 1}}, 0),
    ([{"$sort": {"n": 1}}, {"$set": {"x": 1}}, {"$limit": 3}], {"sort": {"n": 1}, "limit": 3}, 1),
    ([{"$sort": {"n": 1}}, {"$sort": {"a": 1}}], {"sort": {"n": 1}}, 1),
    ([{"$match": {}}, {"$group": {"_id": 1}}, {"$match": {"a": 1}}], {}, 2),
]


@pytest.mark.parametrize(("stages", "query", "rest"), SPLITS)
def test_what_a_query_does(stages: list[dict[str, Any]], query: dict[str, Any], rest: int) -> None:
    part = split_pipeline(compile_pipeline(stages))
    shown = {name: getattr(part, name) for name in ("filter", "sort", "skip", "limit", "projection")}
    assert {name: value for name, value in shown.items() if value} == query
    assert len(part.rest) == rest


def test_count_documents(client: Client) -> None:
    count = {"$group": {"_id": 1, "n": {"$sum": 1}}}
    assert aggregate(client, {"$match": {}}, count) == [{"_id": 1, "n": 400}]
    assert aggregate(client, {"$match": {"a": 1}}, count) == [{"_id": 1, "n": 100}]
    assert aggregate(client, {"$match": {"a": 1}}, {"$skip": 20}, {"$limit": 30}, count) == [{"_id": 1, "n": 30}]
    assert aggregate(client, {"$match": {"a": 9}}, count) == []
    assert aggregate(client, {"$count": "n"}, {"$project": {"m": 1}}) == [{}]


def test_without_a_collection(client: Client) -> None:
    for stages in ([], [{"$match": {}}, {"$count": "n"}], [{"$match": {"a": 1}}, {"$group": {"_id": None}}]):
        cursor = client.ok({"aggregate": "missing", "pipeline": stages, "cursor": {}})["cursor"]
        assert cursor == {"firstBatch": [], "id": 0, "ns": "test.missing"}


def test_coll_stats(client: Client) -> None:
    (document,) = aggregate(client, {"$collStats": {"count": {}}}, {"$project": {"localTime": 0}})
    assert document == {"ns": "test.c", "host": "a:27017", "count": 400}
    stats = {"pipeline": [{"$collStats": {"count": {}}}, {"$group": {"_id": 1, "n": {"$sum": "$count"}}}], "cursor": {}}
    assert client.ok({"aggregate": "c", **stats})["cursor"]["firstBatch"] == [{"_id": 1, "n": 400}]
    assert client.code({"aggregate": "missing", **stats}) == 26


def test_what_mongosh_asks(client: Client) -> None:
    (document,) = aggregate(client, {"$collStats": {"storageStats": {"scale": 1}}})
    assert document["storageStats"]["count"] == 400
    stages = [{"$currentOp": {"allUsers": True, "idleConnections": False}}, {"$match": {"type": "op"}}]
    cursor = client.ok({"aggregate": 1, "pipeline": stages, "cursor": {}}, "admin")["cursor"]
    assert cursor["ns"] == "admin.$cmd.aggregate"
    assert cursor["firstBatch"][0]["type"] == "op"


def test_a_result_is_at_most_a_document(client: Client) -> None:
    large = {"$set": {"x": {"$reduce": {"input": {"$range": [0, 21]}, "initialValue": "xxxxxxxxx", "in": DOUBLED}}}}
    pipeline = [{"$limit": 1}, large]
    assert client.code({"aggregate": "c", "pipeline": pipeline, "cursor": {}}) == 10334
    counted = [*pipeline, {"$project": {"n": {"$strLenBytes": "$x"}}}]
    assert aggregate(client, *counted) == [{"_id": 0, "n": 9 << 21}]


def test_a_group_goes_to_disk_and_comes_back(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "MAX_BYTES", 20_000)
    monkeypatch.setattr(group, "_BLOCK_BYTES", 1000)
    stages = [{"$group": {"_id": "$_id", "s": {"$push": "$s"}}}, {"$sort": {"_id": 1}}]
    assert aggregate(client, *stages, batch_size=7) == [{"_id": row["_id"], "s": [row["s"]]} for row in DOCS]
    monkeypatch.setattr(pipelines, "SLICE_BYTES", 100)
    cursor = client.ok({"aggregate": "c", "pipeline": stages[:1], "cursor": {"batchSize": 1}})["cursor"]
    folder = Path(client.member.store.dbpath)
    assert list(folder.glob("spill-*"))
    client.ok({"killCursors": "c", "cursors": [Int64(cursor["id"])]})
    assert not list(folder.glob("spill-*"))
    assert client.code({"aggregate": "c", "pipeline": stages, "cursor": {}, "allowDiskUse": False}) == 292
    (_, explained, _) = client.ok({"explain": {"aggregate": "c", "pipeline": stages}})["stages"]
    assert explained["usedDisk"]


def test_documents_of_an_expression(client: Client) -> None:
    numbers = {"$map": {"input": {"$range": [0, 300]}, "in": {"n": "$$this"}}}
    for documents, count in (([{"n": 1}, {"n": {"$add": [1, 1]}}], 2), (numbers, 300), ([], 0)):
        command = {"aggregate": 1, "pipeline": [{"$documents": documents}], "cursor": {"batchSize": 1000}}
        cursor = client.ok(command)["cursor"]
        assert cursor["ns"] == "test.$cmd.aggregate"
        assert len(cursor["firstBatch"]) == count
    assert client.ok({**command, "pipeline": [{"$documents": numbers}, {"$count": "n"}]})["cursor"]["firstBatch"] == [
        {"n": 300}
    ]


def test_the_oplog_can_be_counted(client: Client) -> None:
    command = {"aggregate": "oplog.rs", "pipeline": [{"$match": {"op": "i"}}, {"$count": "n"}], "cursor": {}}
    assert client.ok(command, "local")["cursor"]["firstBatch"] == [{"n": 400}]
    command["pipeline"] = [{"$count": "n"}]
    assert client.ok(command, "local")["cursor"]["firstBatch"] == [{"n": client.begins_at + len(client.entries())}]


def test_a_majority_read_sees_its_point(client: Client, rig: Rig) -> None:
    rig.stop_disk()
    client.ok({"insert": "c", "documents": [{"_id": "later"}], "writeConcern": {"w": 1}})
    for stages in ([{"$count": "n"}], [{"$match": {"a": {"$exists": True}}}, {"$count": "n"}]):
        assert aggregate(client, *stages, readConcern={"level": "majority"}) == [{"n": 400}]


def test_an_open_cursor_holds_memory_until_it_ends(client: Client) -> None:
    cursor = client.ok({"aggregate": "c", "pipeline": STAGES[8:9], "cursor": {"batchSize": 1}})["cursor"]
    assert len(client.dispatcher.cursors) == 1
    assert client.ok({"killCursors": "c", "cursors": [Int64(cursor["id"])]})["cursorsKilled"] == [cursor["id"]]
    assert client.code({"getMore": Int64(cursor["id"]), "collection": "c"}) == 43


def test_large_results_end_in_the_thread(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "_SMALL_END", 0)
    assert len(aggregate(client, {"$group": {"_id": "$_id"}})) == 400


REFUSALS: list[tuple[dict[str, Any], int]] = [
    ({"aggregate": "c", "pipeline": []}, 9),
    ({"aggregate": "c", "cursor": {}}, 40414),
    ({"aggregate": "c", "pipeline": {}, "cursor": {}}, 14),
    ({"aggregate": "c", "pipeline": [], "cursor": 1}, 14),
    ({"aggregate": "c", "pipeline": [], "cursor": {"nonsense": 1}}, 40415),
    ({"aggregate": "c", "pipeline": [], "cursor": {"batchSize": -1}}, 51024),
    ({"aggregate": "c", "pipeline": [], "cursor": {}, "nonsense": 1}, 40415),
    ({"aggregate": "c", "pipeline": [{"$nope": 1}], "explain": True}, 40324),
    ({"explain": {"aggregate": "c", "pipeline": {}}}, 14),
    ({"explain": {"aggregate": "c", "pipeline": [], "nonsense": 1}}, 40415),
    ({"aggregate": "c", "pipeline": [], "cursor": {}, "let": {"x": "$a"}}, 4890500),
    ({"aggregate": "c", "pipeline": [], "cursor": {}, "collation": {"locale": "xx"}}, 2),
    ({"aggregate": "c", "pipeline": [], "cursor": {}, "hint": "nonsense"}, 2),
    ({"aggregate": "c", "pipeline": [], "cursor": {}, "writeConcern": {"w": 1}}, 72),
    ({"aggregate": "c", "pipeline": [{"$listSampledQueries": {}}], "cursor": {}}, 238),
    ({"aggregate": "c", "pipeline": [{"$nonsense": 1}], "cursor": {}}, 40324),
    ({"aggregate": 1, "pipeline": [{"$documents": [1]}], "cursor": {}}, 5858203),
    ({"aggregate": "c", "pipeline": [{"$documents": []}], "cursor": {}}, 73),
    ({"aggregate": 1, "pipeline": [{"$currentOp": {}}], "cursor": {}}, 73),
    ({"aggregate": "c", "pipeline": [{"$currentOp": {}}], "cursor": {}}, 73),
    ({"aggregate": "c", "pipeline": [{"$listSearchIndexes": {}}], "cursor": {}}, 31082),
    ({"aggregate": 1, "pipeline": [{"$match": {}}], "cursor": {}}, 73),
    ({"aggregate": 1.0, "pipeline": [], "cursor": {}}, 73),
    ({"aggregate": 2, "pipeline": [], "cursor": {}}, 9),
    ({"aggregate": "", "pipeline": [], "cursor": {}}, 73),
]


@pytest.mark.parametrize(("command", "code"), REFUSALS)
def test_refusals(client: Client, command: dict[str, Any], code: int) -> None:
    assert client.code(command) == code


def test_what_is_given_empty_is_not_refused(client: Client) -> None:
    options = {"let": {}, "collation": {"locale": "simple"}, "allowDiskUse": True, "hint": "_id_", "maxTimeMS": 9000}
    assert len(aggregate(client, **options)) == 400


COUNT = {"$group": {"_id": 1, "n": {"$sum": 1}}}
"""What the drivers' countDocuments sends."""


@pytest.mark.parametrize(
    ("hint", "expected"), [("sparse_1", [{"_id": 1, "n": 1}]), ({"$natural": 1}, [{"_id": 1, "n": 401}])]
)
def test_a_count_of_all_documents_follows_its_hint(client: Client, hint: Any, expected: list[Any]) -> None:
    client.ok({"createIndexes": "c", "indexes": [{"key": {"sparse": 1}, "name": "sparse_1", "sparse": True}]})
    client.ok({"insert": "c", "documents": [{"_id": -1, "sparse": 1}]})
    assert aggregate(client, {"$match": {}}, COUNT, hint=hint) == expected


def test_a_count_of_all_documents_refuses_an_absent_index(client: Client) -> None:
    assert client.code({"aggregate": "c", "pipeline": [{"$match": {}}, COUNT], "cursor": {}, "hint": "absent"}) == 2
