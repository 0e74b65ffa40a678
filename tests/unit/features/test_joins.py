"""$lookup, $graphLookup and $unionWith: a naive join as the measure, views, points of reading, and what is refused."""

from __future__ import annotations

import random
from typing import Any

import pytest

from replset.bson import Int64, Regex
from replset.features.aggregation import run_joins
from tests.rig import Client
from tests.unit.features.test_transactions import Session

Doc = dict[str, Any]


def run(client: Client, over: object, *stages: Doc, batch_size: int | None = None, **more: Any) -> list[Any]:
    """All batches."""
    cursor = {} if batch_size is None else {"batchSize": batch_size}
    reply = client.ok({"aggregate": over, "pipeline": list(stages), "cursor": cursor, **more})["cursor"]
    documents = list(reply["firstBatch"])
    while reply["id"]:
        reply = client.ok({"getMore": Int64(reply["id"]), "collection": over})["cursor"]
        documents += reply["nextBatch"]
    return documents


def insert(client: Client, name: str, documents: list[Doc]) -> None:
    client.ok({"insert": name, "documents": documents})


def lookup(**more: Any) -> Doc:
    return {"$lookup": {"from": "f", "localField": "a", "foreignField": "b", "as": "x", **more}}


VALUES = [1, 2.0, "s", None, [], [1, 2], [[1]], [None], {"c": 1}, Regex("s", "")]


def joined(local: Doc, foreign: list[Doc]) -> list[Doc]:
    """What belongs to a document, by the manual: equal to the local value or to one of its items; none counts as null.

    A foreign document has the values at its path: the field, and each of its items.
    """
    value = local.get("a")
    wanted = (value or [None]) if isinstance(value, list) else [value]

    def has(document: Doc) -> bool:
        theirs = document.get("b")
        found = [theirs, *theirs] if isinstance(theirs, list) else [theirs]
        return any(same(one, other) for one in wanted for other in found)

    return [document for document in foreign if has(document)]


def same(one: Any, other: Any) -> bool:
    return one == other and isinstance(one, bool) == isinstance(other, bool)


@pytest.mark.parametrize("seed", range(8))
def test_lookup_joins_like_the_naive_join(client: Client, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    if seed >= 6:
        monkeypatch.setattr(run_joins, "MOST_ASKED", 0)  # one read for each document
    local = [{"_id": i} | ({"a": rng.choice(VALUES[:-1])} if rng.random() < 0.9 else {}) for i in range(30)]
    foreign = [{"_id": i} | ({"b": rng.choice(VALUES[:-1])} if rng.random() < 0.9 else {}) for i in range(30)]
    insert(client, "c", local)
    insert(client, "f", foreign)
    if seed % 2:
        client.ok({"createIndexes": "f", "indexes": [{"key": {"b": 1}, "name": "b_1"}]})
    found = run(client, "c", lookup(), batch_size=rng.choice([None, 1, 7]))
    by_id = [{**one, "x": sorted(one["x"], key=lambda doc: doc["_id"])} for one in found]
    assert by_id == [{**one, "x": joined(one, foreign)} for one in local]
    unwind = {"path": "$x", "preserveNullAndEmptyArrays": seed % 3 > 0, "includeArrayIndex": "i"}
    one_by_one = run(client, "c", lookup(), {"$unwind": unwind}, batch_size=rng.choice([None, 1, 7]))
    assert one_by_one == run(client, "c", lookup(), {"$redact": "$$KEEP"}, {"$unwind": unwind})


def test_lookup_paths(client: Client) -> None:
    insert(client, "c", [{"_id": 1, "p": [{"k": 1}, {"k": [2, 5]}, 3]}, {"_id": 2, "p": {"k": 3}, "o": {"y": 1}}])
    insert(client, "f", [{"_id": k, "q": {"r": k}} for k in range(4)])
    stage = lookup(localField="p.k", foreignField="q.r", **{"as": "o.x"})
    found = run(client, "c", stage, {"$project": {"o.x._id": 1, "o.y": 1}})
    assert found == [{"_id": 1, "o": {"x": [{"_id": 1}, {"_id": 2}]}}, {"_id": 2, "o": {"y": 1, "x": [{"_id": 3}]}}]


def test_a_regular_expression_joins_as_a_value(client: Client) -> None:
    insert(client, "c", [{"_id": 1, "a": [Regex("s", ""), 1]}])
    insert(client, "f", [{"_id": 1, "b": "s"}, {"_id": 2, "b": Regex("s", "")}, {"_id": 3, "b": 1}])
    assert [doc["_id"] for doc in run(client, "c", lookup())[0]["x"]] == [2, 3]


def test_lookup_with_a_pipeline(client: Client) -> None:
    insert(client, "c", [{"_id": i, "a": i % 3, "n": i} for i in range(6)])
    insert(client, "f", [{"_id": i, "b": i % 3, "m": i} for i in range(9)])
    pipeline = [
        {"$match": {"$expr": {"$gt": ["$m", "$$n"]}}},
        {"$sort": {"m": -1}},
        {"$limit": 2},
        {"$project": {"m": 1}},
    ]
    found = run(client, "c", lookup(let={"n": "$n"}, pipeline=pipeline))
    for one in found:
        ids = sorted((i for i in range(9) if i % 3 == one["a"] and i > one["n"]), reverse=True)[:2]
        assert one["x"] == [{"_id": i, "m": i} for i in ids]
    free = {"$lookup": {"from": "f", "as": "x", "pipeline": [{"$count": "n"}]}}
    assert run(client, "c", free, {"$limit": 1})[0]["x"] == [{"n": 9}]
    nested = {"$lookup": {"from": "f", "let": {"k": "$$a"}, "as": "y", "pipeline": [
        {"$match": {"$expr": {"$eq": ["$m", "$$k"]}}}, {"$addFields": {"outer": "$$a"}}]}}  # fmt: skip
    deep = {"$lookup": {"from": "f", "let": {"a": "$a"}, "as": "x", "pipeline": [{"$match": {"_id": 0}}, nested]}}
    assert [one["x"][0]["y"][0]["outer"] for one in run(client, "c", deep)] == [0, 1, 2, 0, 1, 2]


def test_lookup_with_an_expression_uses_an_index(client: Client) -> None:
    insert(client, "c", [{"_id": i, "a": i} for i in range(20)])
    insert(client, "f", [{"_id": i, "b": i} for i in range(20)])
    client.ok({"createIndexes": "f", "indexes": [{"key": {"b": 1}, "name": "b_1"}]})
    inner = [{"$match": {"$expr": {"$eq": ["$b", "$$k"]}}}]
    found = run(client, "c", {"$lookup": {"from": "f", "let": {"k": "$a"}, "pipeline": inner, "as": "x"}})
    assert all(one["x"] == [{"_id": one["a"], "b": one["a"]}] for one in found)
    (used,) = (row["accesses"]["ops"] for row in run(client, "f", {"$indexStats": {}}) if row["name"] == "b_1")
    assert used == 1


def test_the_variables_of_the_command_reach_inner_pipelines(client: Client) -> None:
    insert(client, "c", [{"_id": i, "a": i} for i in range(5)])
    insert(client, "f", [{"_id": i, "b": i} for i in range(5)])
    inner = [{"$match": {"$expr": {"$gte": ["$b", "$$least"]}}}, {"$project": {"_id": 1}}]
    for stage in (lookup(pipeline=inner), {"$unionWith": {"coll": "f", "pipeline": inner}}):
        found = run(client, "c", stage, let={"least": 3})
        ids = [one["_id"] for doc in found for one in doc.get("x", [])] or [doc["_id"] for doc in found[5:]]
        assert ids == [3, 4]


def test_lookup_remembers_equal_questions(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    insert(client, "c", [{"_id": i, "a": i % 3} for i in range(30)])
    insert(client, "f", [{"_id": i, "b": i % 3} for i in range(3)])
    reads = []
    read = run_joins.JoinCursor._read
    monkeypatch.setattr(run_joins.JoinCursor, "_read", lambda *given: reads.append(1) or read(*given))
    assert all(one["x"] == [{"_id": one["a"], "b": one["a"]}] for one in run(client, "c", lookup()))
    assert len(reads) == 1
    run(client, "c", lookup(pipeline=[]))
    assert len(reads) == 4
    run(client, "c", lookup(pipeline=[{"$sample": {"size": 1}}]))
    assert len(reads) == 34
    monkeypatch.setattr(run_joins, "KNOWN_BYTES", 0)
    assert all(one["x"] == [{"_id": one["a"], "b": one["a"]}] for one in run(client, "c", lookup()))
    assert len(reads) == 65


def test_union_with(client: Client) -> None:
    insert(client, "c", [{"_id": i} for i in range(3)])
    insert(client, "f", [{"_id": 10 + i, "b": i} for i in range(300)])
    assert len(run(client, "c", {"$unionWith": "f"}, batch_size=2)) == 303
    some = {"$unionWith": {"coll": "f", "pipeline": [{"$match": {"b": {"$lt": 2}}}, {"$project": {"_id": 1}}]}}
    assert run(client, "c", some) == [{"_id": i} for i in (0, 1, 2, 10, 11)]
    assert run(client, "none", {"$unionWith": "f"}, {"$unionWith": "c"}, {"$count": "n"}) == [{"n": 303}]
    assert run(client, "c", {"$unionWith": "none"}, {"$limit": 2}) == [{"_id": 0}, {"_id": 1}]


def test_conditions_behind_a_union_choose_indexes_on_both_sides(client: Client) -> None:
    for name in ("c", "f"):
        insert(client, name, [{"_id": f"{name}{i}", "a": i} for i in range(20)])
        client.ok({"createIndexes": name, "indexes": [{"key": {"a": 1}, "name": "a_1"}]})
    client.ok({"create": "v", "viewOn": "f", "pipeline": [{"$match": {"a": {"$lt": 9}}}]})
    at_most = {"$match": {"$expr": {"$lte": ["$a", "$$most"]}, "a": {"$gt": 6}}}
    found = run(client, "c", {"$unionWith": "f"}, {"$unionWith": "v"}, at_most, let={"most": 9})
    assert [one["_id"] for one in found] == ["c7", "c8", "c9", "f7", "f8", "f9", "f7", "f8"]
    for name in ("c", "f"):
        used = {row["name"]: row["accesses"]["ops"] for row in run(client, name, {"$indexStats": {}})}
        assert used["a_1"] == 1


PEOPLE = [
    {"_id": 1, "name": "Dev"},
    {"_id": 2, "name": "Eliot", "boss": "Dev"},
    {"_id": 3, "name": "Ron", "boss": ["Eliot"]},
    {"_id": 4, "name": "Andrew", "boss": "Eliot", "left": True},
    {"_id": 5, "name": "Asya", "boss": "Ron"},
    {"_id": 6, "name": "Loop", "boss": "Loop"},
]


@pytest.mark.parametrize(
    ("more", "chains"),
    [
        ({}, {"Asya": ["Ron", "Eliot", "Dev"], "Dev": [], "Loop": ["Loop"]}),
        ({"maxDepth": 0}, {"Asya": ["Ron"], "Dev": [], "Loop": ["Loop"]}),
        ({"maxDepth": Int64(1)}, {"Asya": ["Ron", "Eliot"], "Dev": [], "Loop": ["Loop"]}),
        ({"restrictSearchWithMatch": {"name": {"$ne": "Eliot"}}}, {"Asya": ["Ron"], "Andrew": []}),
        ({"startWith": "$name", "connectFromField": "name", "connectToField": "boss"},
         {"Dev": ["Eliot", "Ron", "Andrew", "Asya"], "Asya": []}),
    ],
)  # fmt: skip
def test_graph_lookup(client: Client, more: Doc, chains: dict[str, list[str]]) -> None:
    insert(client, "p", PEOPLE)
    spec = {"from": "p", "startWith": "$boss", "connectFromField": "boss", "connectToField": "name", "as": "x", **more}
    if "startWith" not in more:
        spec["restrictSearchWithMatch"] = {"name": {"$exists": True}, **more.get("restrictSearchWithMatch", {})}
    found = {one["name"]: one["x"] for one in run(client, "p", {"$graphLookup": {**spec, "depthField": "d"}})}
    for name, chain in chains.items():
        assert sorted(one["name"] for one in found[name]) == sorted(chain)
    if not more:
        assert {one["name"]: one["d"] for one in found["Asya"]} == {"Ron": 0, "Eliot": 1, "Dev": 2}


def test_views_can_be_joined_and_can_join(client: Client) -> None:
    insert(client, "c", [{"_id": i, "a": i} for i in range(4)])
    insert(client, "f", [{"_id": i, "b": i} for i in range(4)])
    client.ok({"create": "big", "viewOn": "f", "pipeline": [{"$match": {"b": {"$gte": 2}}}]})
    client.ok({"create": "both", "viewOn": "c", "pipeline": [lookup(**{"from": "big"})]})
    client.ok({"createIndexes": "f", "indexes": [{"key": {"b": 1}, "name": "b_1"}]})
    assert [len(one["x"]) for one in run(client, "both")] == [0, 0, 1, 1]
    client.ok({"create": "more", "viewOn": "f", "pipeline": [{"$set": {"n": "$b"}}]})
    assert [one["x"][0]["n"] for one in run(client, "c", lookup(**{"from": "more"}))] == [0, 1, 2, 3]
    assert run(client, "more", {"$match": {"b": 3}}) == [{"_id": 3, "b": 3, "n": 3}]
    (used,) = (row["accesses"]["ops"] for row in run(client, "f", {"$indexStats": {}}) if row["name"] == "b_1")
    assert used == 3  # by the index, although a view lies in between
    assert client.ok({"count": "both", "query": {"x": []}})["n"] == 2
    assert run(client, "c", {"$unionWith": "big"}, {"$count": "n"}) == [{"n": 6}]
    graph = {"from": "big", "startWith": "$a", "connectFromField": "none", "connectToField": "b", "as": "x"}
    assert [len(one["x"]) for one in run(client, "c", {"$graphLookup": graph})] == [0, 0, 1, 1]
    assert client.code({"collMod": "big", "viewOn": "f", "pipeline": [{"$unionWith": "both"}]}) == 5


def test_joins_within_a_transaction_and_at_a_point(client: Client) -> None:
    insert(client, "c", [{"_id": 1, "a": 1}])
    insert(client, "f", [{"_id": 1, "b": 1}])
    session = Session(client)
    session.ok({"insert": "f", "documents": [{"_id": 2, "b": 1}]})
    command = {"aggregate": "c", "pipeline": [lookup()], "cursor": {}}
    assert len(session.ok(command)["cursor"]["firstBatch"][0]["x"]) == 2
    session.abort()
    client.rig.stop_disk()
    client.ok({"insert": "f", "documents": [{"_id": 3, "b": 1}], "writeConcern": {"w": 1}})
    for level, number in (("local", 2), ("majority", 1), ("snapshot", 1)):
        found = run(client, "c", lookup(), readConcern={"level": level})
        assert len(found[0]["x"]) == number


def test_a_merge_reads_all_its_collections_as_of_its_beginning(client: Client) -> None:
    insert(client, "c", [{"_id": i} for i in range(5)])
    client.ok({"aggregate": "c", "pipeline": [{"$unionWith": "d"}, {"$merge": "d"}], "cursor": {}})
    grow = [{"$unionWith": "d"}, {"$project": {"_id": 0, "n": "$_id"}}, {"$merge": "d"}]
    client.ok({"aggregate": "c", "pipeline": grow, "cursor": {}})
    assert client.ok({"count": "d"})["n"] == 15


def test_documents_in_the_place_of_a_collection(client: Client) -> None:
    insert(client, "c", [{"_id": i, "a": i} for i in range(3)])
    made = {"$documents": [{"b": 1, "s": "one"}, {"b": 2, "s": "two"}]}
    spec = {"localField": "a", "foreignField": "b", "as": "x", "pipeline": [made, {"$project": {"b": 0}}]}
    assert [one["x"] for one in run(client, "c", {"$lookup": spec})] == [[], [{"s": "one"}], [{"s": "two"}]]
    union = {"$unionWith": {"pipeline": [made, {"$limit": 1}]}}
    assert run(client, "c", {"$match": {"_id": 0}}, union) == [{"_id": 0, "a": 0}, {"b": 1, "s": "one"}]
    assert run(client, 1, made, {"$unionWith": "c"}, {"$count": "n"}) == [{"n": 5}]


def test_a_facet_that_reads(client: Client) -> None:
    insert(client, "c", [{"_id": i, "a": i} for i in range(300)])
    insert(client, "f", [{"_id": i, "b": i} for i in range(3)])
    facet = {"sum": [{"$count": "n"}], "join": [lookup(), {"$match": {"x.b": {"$lt": 3}}}, {"$count": "n"}], "none": []}
    found = run(client, "c", {"$facet": {**facet, "none": [{"$unionWith": "f"}, {"$skip": 302}]}})
    assert found == [{"sum": [{"n": 300}], "join": [{"n": 3}], "none": [{"_id": 2, "b": 2}]}]


def test_an_array_over_16_mib(client: Client) -> None:
    insert(client, "c", [{"_id": 1, "a": 1}])
    for number in range(5):
        insert(client, "f", [{"_id": number, "b": 1, "s": "x" * (4 << 20)}])
    command = {"aggregate": "c", "pipeline": [lookup()], "cursor": {}}
    assert client.code(command) == 4568
    found = run(client, "c", lookup(), {"$unwind": {"path": "$x", "includeArrayIndex": "i"}}, {"$unset": "x.s"})
    assert found == [{"_id": 1, "a": 1, "x": {"_id": i, "b": 1}, "i": i} for i in range(5)]
    client.ok({"update": "c", "updates": [{"q": {}, "u": {"$set": {"s": "x" * (12 << 20)}}}]})
    client.ok({"delete": "f", "deletes": [{"q": {"_id": {"$gt": 1}}, "limit": 0}]})
    assert client.code(command) == 10334


def test_the_names_of_a_dbref_join_like_others(client: Client) -> None:
    insert(client, "f", [{"_id": number, "back": {"$ref": "c", "$id": 10 + number}} for number in range(3)])
    insert(client, "c", [{"_id": 11, "r": [{"$ref": "f", "$id": 1}, {"$ref": "f", "$id": 2}]}])
    client.ok({"createIndexes": "f", "indexes": [{"key": {"back.$id": 1}, "name": "b"}]})
    assert [one["_id"] for one in run(client, "c", lookup(localField="r.$id", foreignField="_id"))[0]["x"]] == [1, 2]
    assert [one["_id"] for one in run(client, "c", lookup(localField="_id", foreignField="back.$id"))[0]["x"]] == [1]
    graph = {"from": "f", "startWith": "$_id", "connectFromField": "back.$id", "connectToField": "back.$id", "as": "x"}
    assert [one["_id"] for one in run(client, "c", {"$graphLookup": graph})[0]["x"]] == [1]


@pytest.mark.parametrize(
    ("stage", "code"),
    [
        ({"$lookup": 5}, 9),
        (lookup(**{"as": ""}), 9),
        (lookup(more=1), 9),
        (lookup(localField=5), 9),
        (lookup(localField=""), 9),
        (lookup(let={}), 9),
        (lookup(**{"from": {"db": "x", "coll": "y"}}), 9),
        ({"$lookup": {"from": "f", "as": "x"}}, 9),
        ({"$lookup": {"as": "x", "pipeline": []}}, 9),
        (lookup(let={"A": 1}, pipeline=[]), 9),
        (lookup(pipeline=[{"$out": "d"}]), 51047),
        (lookup(pipeline=[{"$addFields": {"x": "$$none"}}]), 17276),
        (lookup(**{"from": "a$b"}), 73),
        ({"$unionWith": 5}, 9),
        ({"$unionWith": {"coll": "f", "x": 1}}, 40415),
        ({"$unionWith": {"pipeline": []}}, 9),
        ({"$graphLookup": 5}, 9),
        ({"$graphLookup": {"from": "f"}}, 40105),
        ({"$graphLookup": {"from": "f", "x": 1}}, 40104),
        ({"$graphLookup": {"from": 5}}, 40103),
    ],
)
def test_refusals(client: Client, stage: Doc, code: int) -> None:
    insert(client, "c", [{"_id": 1, "a": 1}])
    assert client.code({"aggregate": "c", "pipeline": [stage], "cursor": {}}) == code


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"maxDepth": "x"}, 40100),
        ({"maxDepth": -1}, 40101),
        ({"maxDepth": 0.5}, 40102),
        ({"restrictSearchWithMatch": 5}, 40185),
        ({"restrictSearchWithMatch": {"$nope": 1}}, 2),
        ({"connectToField": "$a"}, 16410),
        ({"connectToField": "a.$b"}, 16410),
    ],
)
def test_refusals_of_graph_lookup(client: Client, more: Doc, code: int) -> None:
    spec = {"from": "f", "startWith": "$a", "connectFromField": "a", "connectToField": "b", "as": "x", **more}
    assert client.code({"aggregate": "c", "pipeline": [{"$graphLookup": spec}], "cursor": {}}) == code


def test_twenty_pipelines_within_each_other(client: Client) -> None:
    pipeline: list[Doc] = []
    for _ in range(21):
        pipeline = [{"$unionWith": {"coll": "c", "pipeline": pipeline}}]
    assert client.code({"aggregate": "c", "pipeline": pipeline, "cursor": {}}) == 232


@pytest.mark.parametrize("seed", range(4))
def test_graph_lookup_reaches_what_a_naive_search_reaches(client: Client, seed: int) -> None:
    rng = random.Random(seed)
    count = 12
    nodes: list[Doc] = [{"_id": i, "to": [rng.randrange(count) for _ in range(rng.randrange(3))]} for i in range(count)]
    for node in nodes:
        if len(node["to"]) == 1:
            node["to"] = node["to"][0]
    insert(client, "g", nodes)
    most = rng.choice([None, 0, 1, 3])
    spec = {"from": "g", "startWith": "$to", "connectFromField": "to", "connectToField": "_id", "as": "x"}
    spec |= {"depthField": "d"} | ({} if most is None else {"maxDepth": most})
    for one in run(client, "g", {"$graphLookup": spec}):
        depths: dict[int, int] = {}
        edge = links(one)
        depth = 0
        while edge and (most is None or depth <= most):
            reached = {i for i in edge if i not in depths}
            depths |= dict.fromkeys(reached, depth)
            edge = {link for i in reached for link in links(nodes[i])}
            depth += 1
        assert {found["_id"]: found["d"] for found in one["x"]} == depths


def links(node: Doc) -> set[int]:
    return set(node["to"] if isinstance(node["to"], list) else [node["to"]])
