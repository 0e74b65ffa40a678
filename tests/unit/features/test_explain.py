"""Which plan a command uses, as explain shows it, and hints."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rig import Client

INDEXES: list[dict[str, object]] = [
    {"key": {"a": 1}, "name": "a_1"},
    {"key": {"b": 1, "c": -1}, "name": "b_1_c_-1"},
    {"key": {"t": 1}, "name": "t_1"},
    {"key": {"s": 1}, "name": "s_1", "sparse": True},
    {"key": {"p": 1}, "name": "p_1", "partialFilterExpression": {"a": {"$gt": 5}}},
    {"key": {"h": 1}, "name": "h_1", "hidden": True},
    {"key": {"t": 1, "a": 1}, "name": "t_1_a_1"},
]


@pytest.fixture
def filled(client: Client) -> Client:
    documents = [
        {"_id": n, "a": n % 10, "b": n % 3, "c": n, "t": [n % 4, 9], "p": n, "h": n, **({"s": n} if n % 2 else {})}
        for n in range(40)
    ]
    client.ok({"insert": "c", "documents": documents})
    client.ok({"createIndexes": "c", "indexes": INDEXES})
    return client


def stages(stage: dict[str, Any]) -> list[str]:
    """The names of the stages from the top, with the index or the direction."""
    backward = "backward" if stage.get("direction") == "backward" else ""
    names = [" ".join(filter(None, [stage["stage"], stage.get("indexName"), backward]))]
    for inner in [stage["inputStage"]] if "inputStage" in stage else stage.get("inputStages", []):
        names += stages(inner)
    return names


def plan_of(client: Client, command: dict[str, Any]) -> list[str]:
    reply = client.ok({"explain": command, "verbosity": "queryPlanner"})
    assert "executionStats" not in reply
    return stages(reply["queryPlanner"]["winningPlan"])


@pytest.mark.parametrize(
    ("find", "expected"),
    [
        ({}, ["COLLSCAN"]),
        ({"sort": {"$natural": -1}}, ["COLLSCAN backward"]),
        ({"filter": {"x": 1}}, ["COLLSCAN"]),
        ({"filter": {"_id": 3}}, ["IDHACK"]),
        ({"filter": {"_id": 3, "a": 3}}, ["FETCH", "IXSCAN _id_"]),
        ({"filter": {"_id": {"$in": [3, 4]}}}, ["FETCH", "IXSCAN _id_"]),
        ({"filter": {"_id": {"$gt": 3}}}, ["FETCH", "IXSCAN _id_"]),
        ({"sort": {"_id": -1}}, ["FETCH", "IXSCAN _id_ backward"]),
        ({"filter": {"a": 3}}, ["FETCH", "IXSCAN a_1"]),
        ({"filter": {"a": {"$ne": 3}}}, ["COLLSCAN"]),
        ({"filter": {"a": 3, "b": 1}}, ["FETCH", "IXSCAN a_1"]),
        ({"filter": {"a": 3, "b": 1, "c": 1}}, ["FETCH", "IXSCAN b_1_c_-1"]),
        ({"filter": {"a": {"$gt": 3}, "b": 1}}, ["FETCH", "IXSCAN b_1_c_-1"]),
        ({"filter": {"b": 1}, "sort": {"c": 1}}, ["FETCH", "IXSCAN b_1_c_-1 backward"]),
        ({"filter": {"b": {"$gt": 1}}, "sort": {"c": 1}}, ["SORT", "FETCH", "IXSCAN b_1_c_-1"]),
        ({"sort": {"b": -1, "c": 1}}, ["FETCH", "IXSCAN b_1_c_-1 backward"]),
        ({"sort": {"b": 1, "c": 1}}, ["SORT", "COLLSCAN"]),
        ({"sort": {"t": 1}}, ["FETCH", "IXSCAN t_1"]),
        ({"filter": {"t": 3}, "sort": {"t": 1}}, ["SORT", "FETCH", "IXSCAN t_1"]),
        ({"filter": {"t": 3}, "sort": {"a": 1}}, ["FETCH", "IXSCAN t_1_a_1"]),
        ({"filter": {"s": 3}}, ["FETCH", "IXSCAN s_1"]),
        ({"filter": {"s": None}}, ["COLLSCAN"]),
        ({"sort": {"s": 1}}, ["SORT", "COLLSCAN"]),
        ({"filter": {"p": 7}}, ["COLLSCAN"]),
        ({"filter": {"p": 7, "a": {"$gte": 6}}}, ["FETCH", "IXSCAN p_1"]),
        ({"filter": {"h": 7}}, ["COLLSCAN"]),
        ({"filter": {"$or": [{"a": 1}, {"b": 2}]}}, ["FETCH", "OR", "IXSCAN a_1", "IXSCAN b_1_c_-1"]),
        ({"filter": {"$or": [{"a": 1}, {"x": 2}]}}, ["COLLSCAN"]),
        ({"filter": {"a": 1}, "hint": "t_1"}, ["FETCH", "IXSCAN t_1"]),
        ({"filter": {"a": 1}, "hint": {"b": 1, "c": -1}}, ["FETCH", "IXSCAN b_1_c_-1"]),
        ({"filter": {"a": 1}, "hint": {"$natural": -1}}, ["COLLSCAN backward"]),
        ({"filter": {"$expr": {"$eq": ["$a", 3]}}}, ["FETCH", "IXSCAN a_1"]),
        ({"filter": {"$expr": {"$and": [{"$eq": [3, "$b"]}, {"$lt": [5, "$c"]}]}}}, ["FETCH", "IXSCAN b_1_c_-1"]),
        ({"filter": {"$expr": {"$gte": ["$a", "$$v"]}}, "let": {"v": 30}}, ["FETCH", "IXSCAN a_1"]),
        ({"filter": {"$expr": {"$gte": ["$a", {"$add": [1, 2]}]}}}, ["COLLSCAN"]),
        ({"filter": {"$expr": {"$eq": ["$t", 3]}}}, ["FETCH", "IXSCAN t_1"]),
        ({"filter": {"$expr": {"$gt": ["$t", 3]}}}, ["COLLSCAN"]),
        ({"filter": {"$expr": {"$gt": ["$s", 3]}}}, ["FETCH", "IXSCAN s_1"]),
        ({"filter": {"$expr": {"$lt": ["$s", 3]}}}, ["COLLSCAN"]),
        ({"filter": {"p": 7, "$expr": {"$gte": ["$a", 6]}}}, ["FETCH", "IXSCAN a_1"]),
        ({"filter": {"$expr": {"$eq": ["$_id", 5]}}}, ["FETCH", "IXSCAN _id_"]),
        ({"filter": {"a": 1}, "limit": 2, "skip": 1}, ["SKIP", "LIMIT", "FETCH", "IXSCAN a_1"]),
    ],
)
def test_the_plan_of_a_find(filled: Client, find: dict[str, Any], expected: list[str]) -> None:
    assert plan_of(filled, {"find": "c", **find}) == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ({"find": "none"}, ["EOF"]),
        ({"count": "c", "query": {"a": 1}}, ["COUNT", "FETCH", "IXSCAN a_1"]),
        ({"distinct": "c", "key": "a", "query": {"a": 1}}, ["FETCH", "IXSCAN a_1"]),
        ({"update": "c", "updates": [{"q": {"a": 1}, "u": {"$set": {"a": 2}}}]}, ["UPDATE", "FETCH", "IXSCAN a_1"]),
        ({"delete": "c", "deletes": [{"q": {"a": 1}, "limit": 0}]}, ["DELETE", "FETCH", "IXSCAN a_1"]),
        (
            {"findAndModify": "c", "query": {"b": 1}, "sort": {"c": -1}, "remove": True},
            ["DELETE", "FETCH", "IXSCAN b_1_c_-1"],
        ),
    ],
)
def test_the_plan_of_other_commands(filled: Client, command: dict[str, Any], expected: list[str]) -> None:
    assert plan_of(filled, command) == expected


def test_execution_statistics(filled: Client) -> None:
    reply = filled.ok({"explain": {"find": "c", "filter": {"a": 3, "c": {"$gt": 10}}}, "verbosity": "executionStats"})
    found = reply["executionStats"]
    assert (found["nReturned"], found["totalKeysExamined"], found["totalDocsExamined"]) == (3, 4, 4)
    assert found["executionStages"]["inputStage"]["indexBounds"] == {"a": ["[3, 3]"]}
    natural = filled.ok({"explain": {"find": "c", "filter": {"a": 3}, "limit": 2, "hint": {"$natural": 1}}})
    found = natural["executionStats"]
    assert (found["nReturned"], found["totalKeysExamined"], found["totalDocsExamined"]) == (2, 0, 14)
    before = filled.ok({"find": "c"})["cursor"]["firstBatch"]
    delete = filled.ok({"explain": {"delete": "c", "deletes": [{"q": {"a": 3}, "limit": 0}]}})["executionStats"]
    assert (delete["nReturned"], delete["executionStages"]["nMatched"]) == (0, 4)
    assert filled.ok({"find": "c"})["cursor"]["firstBatch"] == before


@pytest.mark.parametrize(
    ("condition", "shown"),
    [
        ({"$gt": 3}, ["(3, inf.0]"]),
        ({"$lte": 3}, ["[-inf.0, 3]"]),
        ({"$gte": "x"}, ['["x", {})']),
        ({"$in": [2, 1]}, ["[1, 1]", "[2, 2]"]),
        ({"$gte": 2, "$lt": 5}, ["[2, 5)"]),
        ({"$exists": True}, ["[MinKey, MaxKey]"]),
    ],
)
def test_bounds_are_shown_as_mongodb_does(filled: Client, condition: dict[str, object], shown: list[str]) -> None:
    reply = filled.ok({"explain": {"find": "c", "filter": {"a": condition}, "hint": "a_1"}})
    assert reply["queryPlanner"]["winningPlan"]["inputStage"]["indexBounds"] == {"a": shown}


@pytest.mark.parametrize("hint", ["no_such", {"x": 1}, {"a": -1}, {"_id": -1}, "h_1"])
@pytest.mark.parametrize(
    "command",
    [
        {"find": "c"},
        {"count": "c"},
        {"distinct": "c", "key": "a"},
        {"findAndModify": "c", "query": {}, "remove": True},
        {"explain": {"find": "c"}},
    ],
)
def test_a_hint_on_no_index_is_an_error(filled: Client, command: dict[str, Any], hint: object) -> None:
    if "explain" in command:
        assert filled.code({"explain": {**command["explain"], "hint": hint}}) == 2
    else:
        assert filled.code({**command, "hint": hint}) == 2


def test_a_hint_in_a_write(filled: Client) -> None:
    update = {"q": {"a": 1}, "u": {"$set": {"x": 1}}, "multi": True}
    reply = filled.ok({"update": "c", "updates": [{**update, "hint": "no_such"}]})
    assert (reply["n"], reply["writeErrors"][0]["code"]) == (0, 2)
    reply = filled.ok({"delete": "c", "deletes": [{"q": {"a": 1}, "limit": 0, "hint": {"x": 1}}]})
    assert (reply["n"], reply["writeErrors"][0]["code"]) == (0, 2)
    assert filled.ok({"update": "c", "updates": [{**update, "hint": "b_1_c_-1"}]})["n"] == 4
    assert filled.ok({"update": "none", "updates": [{**update, "hint": "no_such"}]})["n"] == 0


def test_a_hint_on_a_sparse_or_partial_index_shows_what_it_holds(filled: Client) -> None:
    assert filled.ok({"count": "c", "hint": "s_1"})["n"] == 20
    assert len(filled.ok({"find": "c", "hint": "p_1"})["cursor"]["firstBatch"]) == 16


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ({"explain": 1}, 14),
        ({"explain": {"ping": 1}}, 59),
        ({"explain": {"find": "c"}, "verbosity": "all"}, 9),
        ({"explain": {"find": "c", "nonsense": 1}}, 40415),
        ({"explain": {"find": "c", "filter": {"$nonsense": 1}}}, 2),
        ({"explain": {"delete": "c", "deletes": [{"q": {}, "limit": 0}, {"q": {}, "limit": 0}]}}, 16),
    ],
)
def test_refusals(filled: Client, command: dict[str, object], code: int) -> None:
    assert filled.code(command) == code


def test_a_pipeline(filled: Client) -> None:
    """What a query can do is in the query, the other stages follow with what came out of each."""
    pipeline = [
        {"$sort": {"c": -1}},
        {"$addFields": {"x": {"$add": ["$c", 1]}}},
        {"$match": {"a": 5, "x": {"$gt": 20}}},
        {"$group": {"_id": "$b"}},
        {"$sortByCount": "$_id"},
    ]
    reply = filled.ok({"aggregate": "c", "pipeline": pipeline, "explain": True})
    first, *rest = reply["stages"]
    planner = first["$cursor"]["queryPlanner"]
    assert stages(planner["winningPlan"]) == ["SORT", "FETCH", "IXSCAN a_1"]
    assert [next(iter(stage)) for stage in rest] == ["$addFields", "$match", "$group", "$sortByCount", "$sort"]
    assert rest[1] == {"$match": {"x": {"$gt": 20}}}
    reply = filled.ok({"explain": {"aggregate": "c", "pipeline": pipeline, "cursor": {}}})
    assert [stage["nReturned"] for stage in reply["stages"][1:]] == [4, 2, 2, 2, 2]
    assert reply["stages"][0]["$cursor"]["executionStats"]["totalDocsExamined"] == 4


def test_a_pipeline_that_is_a_query(filled: Client) -> None:
    command = {"aggregate": "c", "pipeline": [{"$match": {"a": 5}}, {"$limit": 2}, {"$project": {"a": 1}}]}
    reply = filled.ok({"explain": command, "verbosity": "executionStats"})
    assert stages(reply["queryPlanner"]["winningPlan"]) == ["PROJECTION_DEFAULT", "LIMIT", "FETCH", "IXSCAN a_1"]
    assert reply["executionStats"]["nReturned"] == 2


def test_a_pipeline_that_writes_is_not_run(filled: Client) -> None:
    reply = filled.ok({"explain": {"aggregate": "c", "pipeline": [{"$match": {"a": 5}}, {"$out": "d"}]}})
    assert [next(iter(stage)) for stage in reply["stages"]] == ["$cursor", "$out"]
    assert filled.ok({"count": "d"})["n"] == 0


def test_a_pipeline_over_a_view_and_joins(filled: Client) -> None:
    filled.ok({"create": "v", "viewOn": "c", "pipeline": [{"$match": {"a": 5}}]})
    lookup = {"$lookup": {"from": "c", "localField": "a", "foreignField": "a", "as": "same"}}
    reply = filled.ok({"explain": {"aggregate": "v", "pipeline": [lookup, {"$unwind": "$same"}]}})
    assert stages(reply["stages"][0]["$cursor"]["queryPlanner"]["winningPlan"]) == ["FETCH", "IXSCAN a_1"]
    assert [stage["nReturned"] for stage in reply["stages"][1:]] == [16]
