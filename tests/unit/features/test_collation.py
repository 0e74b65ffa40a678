"""Commands with a collation: what they find, in which order, and that no index misleads them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rig import Client

LOOSE = {"locale": "en_US", "strength": 2}


@pytest.fixture(autouse=True)
def _some_documents(client: Client) -> None:
    index = {"key": {"a": 1}, "name": "a"}
    client.ok({"createIndexes": "c", "indexes": [index]})
    client.ok({"insert": "c"}, documents=[{"_id": "x", "a": "b"}, {"_id": "Y", "a": "B"}, {"_id": 3, "a": "a"}])


def found(client: Client, **fields: Any) -> list[Any]:
    reply = client.ok({"find": "c", "collation": LOOSE, **fields})
    return [document["_id"] for document in reply["cursor"]["firstBatch"]]


@pytest.mark.parametrize(
    ("filter_", "ids"),
    [({"a": "b"}, ["x", "Y"]), ({"_id": "y"}, ["Y"]), ({"_id": {"$in": ["X", 3]}}, ["x", 3]), ({"_id": 3}, [3])],
)
def test_find(client: Client, filter_: dict[str, Any], ids: list[Any]) -> None:
    assert found(client, filter=filter_) == ids
    assert found(client, filter=filter_, hint="a") == sorted(ids, key=["Y", 3, "x"].index)
    command = {"count": "c", "query": filter_, "collation": LOOSE}
    assert client.ok(command)["n"] == client.ok({**command, "hint": "a"})["n"] == len(ids)


def test_a_sort_takes_no_index(client: Client) -> None:
    assert found(client, sort={"a": 1}) == [3, "x", "Y"]
    assert found(client, sort={"_id": 1}) == [3, "x", "Y"]
    assert found(client, sort={"a": 1}, hint="a") == [3, "Y", "x"]


def test_distinct(client: Client) -> None:
    assert client.ok({"distinct": "c", "key": "a", "collation": LOOSE})["values"] == ["b", "a"]


def test_writes(client: Client) -> None:
    change = {"q": {"a": "B"}, "u": {"$set": {"z": 1}}, "multi": True, "collation": LOOSE}
    assert client.ok({"update": "c", "updates": [change]})["nModified"] == 2
    one = {"q": {"_id": "y"}, "u": {"a": "c"}, "collation": LOOSE}
    assert client.ok({"update": "c", "updates": [one]})["nModified"] == 1
    taken = client.ok({"findAndModify": "c", "query": {"_id": "X"}, "remove": True, "collation": LOOSE})
    assert taken["value"]["_id"] == "x"
    assert client.ok({"delete": "c", "deletes": [{"q": {"_id": "y"}, "limit": 1, "collation": LOOSE}]})["n"] == 1


def test_changes_compare_by_the_collation(client: Client) -> None:
    pull = {"q": {"_id": "Y"}, "u": {"$addToSet": {"l": {"$each": ["x", "X"]}}}, "collation": LOOSE}
    item = {"q": {"_id": "Y"}, "u": {"$set": {"l.$[i]": "z"}}, "arrayFilters": [{"i": "X"}], "collation": LOOSE}
    stages = {"q": {"_id": "Y"}, "u": [{"$set": {"same": {"$eq": ["$a", "b"]}}}], "collation": LOOSE}
    assert client.ok({"update": "c", "updates": [pull, item, stages]})["nModified"] == 3
    taken = client.ok(
        {
            "findAndModify": "c",
            "query": {"$expr": {"$eq": ["$_id", "y"]}},
            "update": {"$pull": {"l": "Z"}},
            "fields": {"l": 1, "a": 1, "same": 1, "by": {"$eq": ["$a", "b"]}},
            "new": True,
            "collation": LOOSE,
        }
    )
    assert taken["value"] == {"_id": "Y", "a": "B", "l": [], "same": True, "by": True}
    statement = {"q": {"$expr": {"$eq": ["$a", "A"]}}, "limit": 1, "collation": LOOSE}
    assert client.ok({"delete": "c", "deletes": [statement]})["n"] == 1


def test_expressions_of_reads(client: Client) -> None:
    query = {"$expr": {"$eq": ["$a", "$$x"]}}
    assert found(client, filter=query, let={"x": "b"}) == ["x", "Y"]
    assert client.ok({"count": "c", "query": {"$expr": {"$gte": ["$a", "b"]}}, "collation": LOOSE})["n"] == 2
    command = {"find": "c", "filter": {"_id": 3}, "projection": {"x": {"$eq": ["$a", "A"]}}, "collation": LOOSE}
    assert client.ok(command)["cursor"]["firstBatch"] == [{"_id": 3, "x": True}]
    same = {"$eq": ["a", "A"]}
    assert found(client, filter={"$expr": "$$same"}, let={"same": same}) == ["x", "Y", 3]


def aggregated(client: Client, *stages: dict[str, Any], over: str = "c", db: str = "test", **fields: Any) -> list[Any]:
    command = {"aggregate": over, "pipeline": list(stages), "cursor": {}, "collation": LOOSE, **fields}
    reply = client.ok(command, db)
    return list(reply["cursor"]["firstBatch"])


def test_aggregate(client: Client) -> None:
    count = {"$group": {"_id": "$a", "n": {"$sum": 1}}}
    assert aggregated(client, {"$match": {"a": "B"}}, count) == [{"_id": "b", "n": 2}]
    assert aggregated(client, {"$match": {"a": "B"}}, count, hint="a") == [{"_id": "B", "n": 2}]
    assert aggregated(client, {"$sort": {"a": 1}}, {"$project": {"_id": 1}}) == [{"_id": 3}, {"_id": "x"}, {"_id": "Y"}]
    assert aggregated(client, {"$match": {"_id": "y"}}, {"$project": {"_id": 1}}) == [{"_id": "Y"}]
    assert aggregated(client, count, {"$match": {"_id": "B"}}, collation={"locale": "simple"}) == [{"_id": "B", "n": 1}]
    # The group of "b" and "B" shows "b", so nothing may be matched before they are counted together.
    assert aggregated(client, count, {"$match": {"_id": {"$regex": "^B"}}}) == []


def test_explain(client: Client) -> None:
    pipeline = [{"$match": {"a": "B"}}, {"$sort": {"a": 1}}]
    command = {"aggregate": "c", "pipeline": pipeline, "cursor": {}, "collation": LOOSE}
    shown = client.ok({"explain": command, "verbosity": "executionStats"})
    assert shown["executionStats"]["nReturned"] == 2
    assert shown["queryPlanner"]["winningPlan"]["stage"] == "SORT"
    assert shown["queryPlanner"]["winningPlan"]["inputStage"]["stage"] == "COLLSCAN"
    assert client.ok({"explain": {**command, "pipeline": [{"$match": {"a": "B"}}, {"$count": "n"}]}})["stages"]


@pytest.mark.parametrize("more", [{}, {"let": {}, "pipeline": []}], ids=["with-reads-ahead", "one-by-one"])
def test_joins(client: Client, more: dict[str, Any]) -> None:
    client.ok({"insert": "f"}, documents=[{"_id": 1, "b": "B"}, {"_id": 2, "b": "b"}, {"_id": 3, "b": "c"}])
    join = {"$lookup": {"from": "f", "localField": "a", "foreignField": "b", "as": "x", **more}}
    shown = {"$project": {"x": "$x._id"}}
    joined = [{"_id": "x", "x": [1, 2]}, {"_id": "Y", "x": [1, 2]}, {"_id": 3, "x": []}]
    assert aggregated(client, join, shown) == joined
    inner = {"$match": {"$expr": {"$eq": ["$b", "$$a"]}}}
    assert aggregated(
        client, {"$lookup": {"from": "f", "let": {"a": "$a"}, "pipeline": [inner], "as": "x"}}, shown
    ) == (joined)
    union = {"$unionWith": {"coll": "f", "pipeline": [{"$match": {"b": "B"}}]}}
    assert aggregated(client, {"$limit": 1}, union, {"$count": "n"}) == [{"n": 3}]
    facet = {"$facet": {"y": [{"$match": {"a": "B"}}, join, {"$count": "n"}]}}
    assert aggregated(client, facet) == [{"y": [{"n": 2}]}]


def test_a_search_in_a_graph(client: Client) -> None:
    client.ok({"insert": "g"}, documents=[{"_id": 1, "b": "A", "to": "x"}, {"_id": 2, "b": "X", "to": "a"}])
    search = {"from": "g", "startWith": "a", "connectFromField": "to", "connectToField": "b", "as": "x"}
    stages = [{"$limit": 1}, {"$graphLookup": search}, {"$project": {"_id": 0, "x": "$x._id"}}]
    assert aggregated(client, *stages) == [{"x": [1, 2]}]
    search["restrictSearchWithMatch"] = {"to": "X"}
    assert aggregated(client, *stages) == [{"x": [1]}]


def test_merge_finds_as_the_target_does(client: Client) -> None:
    client.ok({"insert": "t"}, documents=[{"_id": "y", "a": 1}])
    same = [{"$set": {"same": {"$eq": ["$$new.a", "b"]}}}]
    aggregated(client, {"$match": {"_id": "Y"}}, {"$merge": {"into": "t", "whenMatched": same}})
    aggregated(client, {"$match": {"_id": "Y"}}, {"$merge": {"into": "t", "whenMatched": same}})
    stored = client.ok({"find": "t", "sort": {"_id": 1}})["cursor"]["firstBatch"]
    assert stored == [{"_id": "Y", "a": "B", "same": False}, {"_id": "y", "a": 1}]
    client.ok({"createIndexes": "t", "indexes": [{"key": {"a": 1}, "name": "a", "unique": True}]})
    command = {"aggregate": "c", "pipeline": [{"$merge": {"into": "t", "on": "a"}}], "cursor": {}}
    assert client.code({**command, "collation": LOOSE}) == 51183


@pytest.mark.parametrize(
    "command",
    [
        {"find": "v"},
        {"count": "v"},
        {"distinct": "v", "key": "a"},
        {"aggregate": "v", "pipeline": [], "cursor": {}},
        {"explain": {"find": "v", "collation": LOOSE}},
        {"aggregate": "c", "pipeline": [{"$unionWith": "v"}], "cursor": {}},
        {
            "aggregate": "c",
            "pipeline": [{"$lookup": {"from": "v", "localField": "a", "foreignField": "a", "as": "x"}}],
            "cursor": {},
        },
    ],
)
def test_a_view_has_its_own(client: Client, command: dict[str, Any]) -> None:
    client.ok({"create": "v", "viewOn": "c", "pipeline": [{"$match": {"a": "b"}}]})
    if "explain" in command:
        assert client.code(command) == 167
        return
    assert client.code({**command, "collation": LOOSE}) == 167
    client.ok({**command, "collation": {"locale": "simple"}})


def test_the_oplog_is_filtered_by_it(client: Client) -> None:
    for query, many in (({"ns": "TEST.C", "op": "I"}, 3), ({"o.a": "b"}, 2), ({"$expr": {"$eq": ["$o.a", "A"]}}, 1)):
        command = {"find": "oplog.rs", "filter": query, "collation": LOOSE}
        assert len(client.ok(command, "local")["cursor"]["firstBatch"]) == many
        assert client.ok({"count": "oplog.rs", "query": query, "collation": LOOSE}, "local")["n"] == many
        counted = aggregated(client, {"$match": query}, {"$count": "n"}, over="oplog.rs", db="local")
        assert counted == [{"n": many}]
