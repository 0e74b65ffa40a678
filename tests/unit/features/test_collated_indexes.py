"""Indexes and collections with a collation: what they hold and refuse, which queries use them, and what is shown."""

from __future__ import annotations

from typing import Any

import icu
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replset.bson import Undefined, encode_key
from replset.features.collections.index_check import IndexCheck
from replset.member.member import RunningMember
from replset.query import collation
from replset.query.collation import Fold, fold_of
from replset.query.sort import compile_sort
from tests.rig import Client, a_set
from tests.unit.features.test_transactions import Session

LOOSE: dict[str, Any] = {"locale": "en_US", "strength": 2}
WHOLE = {
    **{"locale": "en_US", "caseLevel": False, "caseFirst": "off", "strength": 2, "numericOrdering": False},
    **{"alternate": "non-ignorable", "maxVariable": "punct", "normalization": False, "backwards": False},
}
SHOWN = {**WHOLE, "version": icu.ICU_VERSION}
A = {"key": {"a": 1}, "name": "a"}
LONG = "x" * 262_145


def create(client: Client, *indexes: dict[str, Any]) -> dict[str, Any]:
    return client.run({"createIndexes": "c", "indexes": list(indexes)})


def insert(client: Client, *documents: dict[str, Any]) -> dict[str, Any]:
    return client.run({"insert": "c"}, documents=list(documents))


def listed(client: Client) -> list[dict[str, Any]]:
    return list(client.ok({"listIndexes": "c"})["cursor"]["firstBatch"])


def found(client: Client, **fields: Any) -> list[Any]:
    return [one["_id"] for one in client.ok({"find": "c", **fields})["cursor"]["firstBatch"]]


def scan_of(client: Client, **fields: Any) -> dict[str, Any]:
    """The stage that finds the documents."""
    stage: dict[str, Any] = client.ok({"explain": {"find": "c", **fields}})["queryPlanner"]["winningPlan"]
    while "inputStage" in stage:
        stage = stage["inputStage"]
    return stage


def is_sound(member: RunningMember, ns: str = "test.c") -> bool:
    """Whether every index holds exactly what the documents say."""
    coll = member.store.collection(ns)
    assert coll is not None
    for index in coll.indexes:
        check = IndexCheck(coll, index)
        with member.store.read() as snapshot:
            while check.next_slice(snapshot, 3):
                pass
        if check.missing or check.extra or index.position is not None:
            return False
    return True


# --- indexes


@pytest.mark.parametrize("documents", [[], [{"a": "x"}]])
def test_an_index_is_listed_with_the_whole_collation(client: Client, documents: list[dict[str, Any]]) -> None:
    insert(client, {"_id": 0}, *documents)
    create(client, {**A, "unique": True, "collation": LOOSE})
    assert listed(client)[1:] == [{"v": 2, **A, "unique": True, "collation": SHOWN}]
    stored = [entry["o"] for entry in client.entries() if "collation" in str(entry["o"])]
    assert stored
    assert all("version" not in str(o) for o in stored)  # each member shows its own


@pytest.mark.parametrize("is_built", [False, True])
def test_a_unique_index_refuses_what_is_equal_by_it(client: Client, member: RunningMember, is_built: bool) -> None:
    if is_built:
        insert(client, {"_id": 1, "a": "Abc"})
    create(client, {**A, "unique": True, "collation": LOOSE})
    if not is_built:
        insert(client, {"_id": 1, "a": "Abc"})
    error = insert(client, {"_id": 2, "a": "aBC"})["writeErrors"][0]
    key = icu.Collator.createInstance(icu.Locale("en_US"))
    key.setStrength(icu.Collator.SECONDARY)
    digits = key.getSortKey("abc")[:-1].hex()
    assert error["code"] == 11000
    assert (error["keyPattern"], error["keyValue"]) == ({"a": 1}, {"a": digits})
    assert (error["hexEncoded"], error["collation"]) == ([True], SHOWN)
    assert error["errmsg"].startswith(
        'E11000 duplicate key error collection: test.c index: a collation: { locale: "en_US", caseLevel: false,'
    )
    assert error["errmsg"].endswith(f'dup key: {{ a: "0x{digits}" }}')
    assert insert(client, {"_id": 2, "a": "\u00e4bc"}, {"_id": 3, "a": 5})["n"] == 2
    number = insert(client, {"_id": 4, "a": 5})["writeErrors"][0]
    assert (number["keyValue"], "hexEncoded" in number) == ({"a": 5}, False)
    assert client.ok({"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"a": "ABC"}}}]})["n"] == 1
    assert is_sound(member)


def test_a_build_finds_a_duplicate(client: Client) -> None:
    insert(client, {"_id": 1, "a": "x"}, {"_id": 2, "a": "X"})
    assert create(client, {**A, "unique": True, "collation": LOOSE})["code"] == 11000
    assert create(client, {**A, "unique": True})["ok"] == 1


def test_indexes_of_one_key(client: Client) -> None:
    create(client, A)
    assert create(client, {**A, "collation": LOOSE})["code"] == 86
    assert create(client, {**A, "name": "b", "collation": LOOSE})["ok"] == 1
    assert create(client, {**A, "name": "c", "collation": {**LOOSE, "version": "57.1"}})["code"] == 85
    assert create(client, {**A, "name": "b", "collation": LOOSE})["note"] == "all indexes already exist"
    assert client.code({"dropIndexes": "c", "index": {"a": 1}}) == 181
    assert client.code({"collMod": "c", "index": {"keyPattern": {"a": 1}, "hidden": True}}) == 181
    client.ok({"dropIndexes": "c", "index": "a"})
    client.ok({"dropIndexes": "c", "index": {"a": 1}})


@pytest.mark.parametrize(
    ("index", "code"),
    [
        ({**A, "collation": {"locale": "xx"}}, 2),
        ({**A, "collation": {"strength": 1}}, 40414),
        ({**A, "collation": LOOSE, "v": 1}, 67),
        ({"key": {"_id": 1}, "name": "_id_", "collation": LOOSE}, 2),
    ],
)
def test_refused(client: Client, index: dict[str, Any], code: int) -> None:
    assert create(client, index)["code"] == code


def test_a_partial_filter_has_the_collation(client: Client) -> None:
    partial = {"partialFilterExpression": {"b": {"$gt": "m"}}}
    create(client, {**A, "unique": True, "collation": LOOSE, **partial})
    insert(client, {"_id": 1, "a": 1, "b": "N"}, {"_id": 2, "a": 1, "b": "M"})
    assert insert(client, {"_id": 3, "a": 1, "b": "n"})["writeErrors"][0]["code"] == 11000
    assert scan_of(client, filter={"a": 1, "b": "Z"}, collation=LOOSE)["stage"] == "IXSCAN"
    assert scan_of(client, filter={"a": 1, "b": "Z"})["stage"] == "COLLSCAN"
    assert found(client, filter={"a": 1, "b": "n"}, collation=LOOSE) == [1]


# --- which queries use one


@pytest.fixture
def words(client: Client) -> Client:
    create(client, {**A, "collation": LOOSE})
    insert(client, *({"_id": n, "a": a} for n, a in enumerate(["b", "B", "a", 5, {"x": "Q"}, ["C", 7]])))
    return client


@pytest.mark.parametrize(
    ("query", "ids", "uses"),
    [
        ({"filter": {"a": "B"}, "collation": LOOSE}, [0, 1], True),
        ({"filter": {"a": "B"}}, [1], False),
        ({"filter": {"a": "B"}, "collation": {"locale": "simple"}}, [1], False),
        ({"filter": {"a": "B"}, "collation": {"locale": "en_US"}}, [1], False),
        ({"filter": {"a": 5}}, [3], True),
        ({"filter": {"a": {"$gt": 4}}, "collation": {"locale": "fr"}}, [3, 5], True),
        ({"filter": {"a": {"x": "q"}}, "collation": LOOSE}, [4], True),
        ({"filter": {"a": {"x": "q"}}}, [], False),
        ({"filter": {"a": {"$in": [5, "A"]}}, "collation": LOOSE}, [3, 2], True),
        ({"filter": {"a": {"$in": [5, "A"]}}}, [3], False),
        ({"filter": {"a": "c"}, "collation": LOOSE}, [5], True),
        ({"filter": {"a": {"$regex": "^b"}}, "collation": LOOSE}, [0], True),
        ({"filter": {"a": {"$regex": "^b"}}}, [0], False),
        ({"filter": {"a": {"$gte": "b"}}, "collation": LOOSE}, [0, 1, 5], True),
        ({"filter": {"$or": [{"a": "B"}, {"a": 5}]}, "collation": LOOSE}, [0, 1, 3], True),
        ({"filter": {"a": "B"}, "hint": "a"}, [1], True),
    ],
)
def test_which_queries_use_it(words: Client, query: dict[str, Any], ids: list[int], uses: bool) -> None:
    assert found(words, **query) == ids
    scan = scan_of(words, **query)
    assert (scan["stage"] != "COLLSCAN") == uses
    if "hint" in query:
        assert scan["indexBounds"] == {"a": ["[MinKey, MaxKey]"]}
    assert words.ok({"count": "c", "query": query["filter"], **{n: query[n] for n in query if n != "filter"}})[
        "n"
    ] == len(ids)


def test_a_sort(words: Client) -> None:
    assert found(words, sort={"a": 1}, collation=LOOSE) == [3, 5, 2, 0, 1, 4]
    assert scan_of(words, sort={"a": 1}, collation=LOOSE)["stage"] == "IXSCAN"
    assert scan_of(words, sort={"a": 1})["stage"] == "COLLSCAN"
    assert found(words, sort={"a": 1}, hint="a", filter={"_id": {"$lt": 3}}) == [1, 2, 0]


def test_what_is_shown(words: Client) -> None:
    """No folded key is shown as a value, but by explain."""
    scan = scan_of(words, filter={"a": "B"}, collation=LOOSE)
    assert scan["collation"] == SHOWN
    assert scan["indexBounds"]["a"][0].startswith("[CollationKey(0x")
    keys = words.ok({"find": "c", "filter": {"a": "b"}, "returnKey": True, "collation": LOOSE})
    assert keys["cursor"]["firstBatch"] == [{"a": "b"}, {"a": "B"}]
    assert words.ok({"distinct": "c", "key": "a", "query": {"a": "b"}, "collation": LOOSE})["values"] == ["b"]


def test_min_and_max(words: Client) -> None:
    limits = {"min": {"a": "A"}, "max": {"a": "C"}, "hint": "a"}
    assert found(words, collation=LOOSE, **limits) == [2, 0, 1]
    assert words.code({"find": "c", **limits}) == 51174
    assert found(words, min={"a": 5}, max={"a": 6}, hint="a") == [3]


def test_writes_find_by_it(words: Client, member: RunningMember) -> None:
    change = {"q": {"a": "B"}, "u": {"$set": {"a": "Z"}}, "multi": True, "collation": LOOSE}
    assert words.ok({"update": "c", "updates": [change]})["nModified"] == 2
    assert words.ok({"delete": "c", "deletes": [{"q": {"a": "z"}, "limit": 0, "collation": LOOSE}]})["n"] == 2
    taken = words.ok({"findAndModify": "c", "query": {}, "sort": {"a": -1}, "remove": True, "collation": LOOSE})
    assert taken["value"]["_id"] == 4
    assert is_sound(member)


# --- long strings


def test_a_string_that_is_too_long(client: Client, member: RunningMember) -> None:
    insert(client, {"_id": 1, "a": LONG})
    assert create(client, {**A, "collation": LOOSE})["code"] == 201
    client.ok({"delete": "c", "deletes": [{"q": {}, "limit": 0}]})
    create(client, {**A, "collation": LOOSE})
    assert insert(client, {"_id": 1, "a": LONG})["writeErrors"][0]["code"] == 201
    wide = ["\ufdfa" * 14_563] * 2  # ICU takes as long for each character as for 18 letters
    assert insert(client, {"_id": 1, "a": wide})["writeErrors"][0]["code"] == 201
    assert insert(client, {"_id": 0, "a": wide[:1]})["n"] == 1
    assert insert(client, {"_id": 1, "a": "x" * 262_144})["n"] == 1
    change = {"q": {"_id": 1}, "u": {"$set": {"a": LONG}}}
    assert client.run({"update": "c", "updates": [change]})["writeErrors"][0]["code"] == 201
    two = {"key": {"a": 1, "b": 1}, "name": "two", "collation": LOOSE}
    assert create(client, two)["code"] == 201  # both indexes together
    client.ok({"delete": "c", "deletes": [{"q": {}, "limit": 0}]})
    create(client, two)
    assert insert(client, {"_id": 2, "a": "x" * 200_000})["writeErrors"][0]["code"] == 201
    create(client, {"key": {"b": 1}, "name": "p", "collation": LOOSE, "partialFilterExpression": {"p": {"$gt": "a"}}})
    assert insert(client, {"_id": 2, "p": LONG})["writeErrors"][0]["code"] == 201
    assert is_sound(member)


@pytest.mark.parametrize("field", ["a", "p"])
def test_a_string_that_its_collation_refuses(client: Client, monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    """One error of the one document, whether the string is to be a key or is compared by the partial filter."""
    create(client, {**A, "collation": LOOSE, "partialFilterExpression": {"p": {"$gt": "a"}}})
    monkeypatch.setattr(collation, "LONGEST", 10)
    errors = insert(client, {"_id": 1, "p": "b", field: "b" * 11}, {"_id": 2, "p": "b"})["writeErrors"]
    assert [(error["index"], error["code"]) for error in errors] == [(0, 201)]
    assert client.run({"update": "c", "updates": [{"q": {"_id": 2}, "u": {"$set": {field: "b" * 11}}}]})["n"] == 0


# --- collections


@pytest.fixture
def people(client: Client) -> Client:
    client.ok({"create": "c", "collation": LOOSE})
    insert(client, {"_id": "Ann", "a": "x"}, {"_id": "bob", "a": "X"}, {"_id": 3, "a": "y"})
    return client


def test_a_collection_is_listed_with_its_collation(people: Client) -> None:
    (row,) = people.ok({"listCollections": 1})["cursor"]["firstBatch"]
    id_index = {"v": 2, "key": {"_id": 1}, "name": "_id_", "collation": SHOWN}
    assert (row["options"], row["idIndex"]) == ({"collation": SHOWN}, id_index)
    assert listed(people) == [id_index]
    assert people.ok({"create": "c", "collation": {**LOOSE, "version": "57.1"}, "idIndex": id_index})
    assert people.code({"create": "c"}) == 48
    assert people.code({"create": "d", "collation": LOOSE, "idIndex": {**id_index, "collation": {"locale": "fr"}}}) == 2
    people.ok({"collMod": "c", "validationLevel": "off"})
    people.ok({"renameCollection": "test.c", "to": "test.d"}, "admin")
    people.ok({"createIndexes": "d", "indexes": [A]})
    assert people.ok({"drop": "d"})["nIndexesWas"] == 2


def test_ids_that_are_equal_are_duplicates(people: Client, member: RunningMember) -> None:
    error = insert(people, {"_id": "ANN"})["writeErrors"][0]
    assert (error["code"], error["keyPattern"], error["collation"]) == (11000, {"_id": 1}, SHOWN)
    assert insert(people, {"_id": "Ann"})["writeErrors"][0]["errmsg"] == error["errmsg"]
    upsert = {"q": {"a": "none"}, "u": {"$setOnInsert": {"_id": "BOB"}}, "upsert": True}
    assert people.run({"update": "c", "updates": [upsert]})["writeErrors"][0]["code"] == 11000
    assert people.ok({"delete": "c", "deletes": [{"q": {"_id": "ANN"}, "limit": 1}]})["n"] == 1
    assert insert(people, {"_id": "ANN"})["n"] == 1
    assert is_sound(member)
    checked = people.ok({"validate": "c"})
    assert (checked["valid"], checked["nIndexes"], checked["keysPerIndex"]) == (True, 1, {"_id_": 3})


@pytest.mark.parametrize(
    ("query", "ids", "index"),
    [
        ({"filter": {"_id": "ANN"}}, ["Ann"], "_id_"),
        ({"filter": {"_id": "ANN"}, "collation": {"locale": "simple"}}, [], None),
        ({"filter": {"_id": "Ann"}, "collation": {"locale": "simple"}}, ["Ann"], None),
        ({"filter": {"_id": 3}}, [3], None),
        ({"filter": {"_id": {"$in": ["BOB", 3]}}}, [3, "bob"], "_id_"),
        ({"filter": {}, "sort": {"_id": -1}}, ["bob", "Ann", 3], "_id_"),
        ({"filter": {}, "sort": {"_id": 1}, "collation": {"locale": "simple"}}, [3, "Ann", "bob"], "_id_"),
        ({"filter": {"a": "X"}}, ["Ann", "bob"], None),
        ({"filter": {"_id": "ANN"}, "hint": "_id_"}, ["Ann"], "_id_"),
        ({"filter": {"_id": "Ann"}, "hint": "_id_", "collation": {"locale": "fr"}}, ["Ann"], "_id_"),
    ],
)
def test_commands_use_its_collation(people: Client, query: dict[str, Any], ids: list[Any], index: str | None) -> None:
    assert found(people, **query) == ids
    assert scan_of(people, **query).get("indexName") == index


def test_prepared_commands_use_its_collation(people: Client) -> None:
    for _ in range(3):
        assert people.ok({"update": "c", "updates": [{"q": {"_id": "BOB"}, "u": {"$inc": {"n": 1}}}]})["n"] == 1
    assert people.ok({"find": "c", "filter": {"_id": "Bob"}, "limit": 1})["cursor"]["firstBatch"][0]["n"] == 3
    assert people.ok({"count": "c", "query": {"_id": "BOB"}})["n"] == 1
    assert people.ok({"distinct": "c", "key": "a"})["values"] == ["x", "y"]
    assert people.ok({"findAndModify": "c", "query": {"_id": "BOB"}, "remove": True})["value"]["n"] == 3


def test_indexes_take_its_collation(people: Client) -> None:
    simple = {**A, "name": "simple", "collation": {"locale": "simple"}}
    create(people, A, simple, {"key": {"_id": 1}, "name": "_id_", "collation": LOOSE})
    assert [one.get("collation") for one in listed(people)] == [SHOWN, SHOWN, None]
    assert scan_of(people, filter={"a": "X"})["indexName"] == "a"
    assert scan_of(people, filter={"a": "X"}, collation={"locale": "simple"})["indexName"] == "simple"
    assert scan_of(people, filter={"a": "X"}, hint={"a": 1}, collation={"locale": "simple"})["indexName"] == "simple"
    assert create(people, {"key": {"_id": 1}, "collation": {"locale": "simple"}})["code"] == 2
    assert people.ok({"dropIndexes": "c", "index": "*"})["nIndexesWas"] == 3
    assert len(listed(people)) == 1
    assert insert(people, {"_id": "ANN"})["writeErrors"][0]["code"] == 11000


def test_a_validator_has_its_collation(client: Client) -> None:
    client.ok({"create": "c", "collation": LOOSE, "validator": {"a": {"$in": ["yes", "no"]}}})
    assert insert(client, {"_id": 1, "a": "YES"})["n"] == 1
    assert insert(client, {"_id": 2, "a": "maybe"})["writeErrors"][0]["code"] == 121


def pipe(client: Client, *stages: dict[str, Any], of: str = "c", **more: Any) -> list[Any]:
    reply = client.ok({"aggregate": of, "pipeline": list(stages), "cursor": {}, **more})
    return list(reply["cursor"]["firstBatch"])


def test_an_aggregation_has_the_collation_of_its_collection(people: Client) -> None:
    create(people, A)
    group = {"$group": {"_id": "$a", "n": {"$sum": 1}}}
    assert pipe(people, {"$match": {"a": "X"}}, group) == [{"_id": "x", "n": 2}]
    assert len(pipe(people, group, collation={"locale": "simple"})) == 3
    assert pipe(people, {"$match": {"$expr": {"$eq": ["$_id", "$$name"]}}}, let={"name": "ANN"})[0]["_id"] == "Ann"
    plan = people.ok({"explain": {"aggregate": "c", "pipeline": [{"$match": {"a": "X"}}], "cursor": {}}})
    assert "'indexName': 'a'" in str(plan)
    assert pipe(people, {"$match": {"_id": "ANN"}}, {"$out": "d"}) == []
    assert people.ok({"count": "d", "query": {"_id": "ANN"}})["n"] == 0  # a new one has none
    people.ok({"drop": "d"})
    people.ok({"create": "d", "collation": LOOSE})
    pipe(people, {"$out": "d"})
    assert insert(people, {"_id": "ANN"})["writeErrors"]
    assert people.run({"insert": "d"}, documents=[{"_id": "ANN"}])["writeErrors"]


def test_a_merge_needs_an_index_of_its_collation(people: Client) -> None:
    merge = {"$merge": {"into": "d", "on": "a"}}
    people.ok({"createIndexes": "d", "indexes": [{**A, "unique": True}]})
    command = {"aggregate": "c", "pipeline": [{"$match": {"_id": 3}}, {"$set": {"a": "Y"}}, merge], "cursor": {}}
    assert people.code(command) == 51183
    people.ok({"createIndexes": "d", "indexes": [{**A, "name": "loose", "unique": True, "collation": LOOSE}]})
    people.ok({"insert": "d"}, documents=[{"_id": 3, "a": "y", "z": 1}])
    people.ok(command)
    assert people.ok({"find": "d"})["cursor"]["firstBatch"] == [{"_id": 3, "a": "Y", "z": 1}]
    people.ok({"create": "e", "collation": LOOSE})
    people.ok({"insert": "e"}, documents=[{"_id": "ann", "z": 1}])
    into = {"aggregate": "c", "pipeline": [{"$merge": "e"}], "cursor": {}}
    assert people.code(into) == 66  # found by the collation, and its _id would change
    people.ok({"update": "e", "updates": [{"q": {}, "u": {"_id": "ann", "z": 2}}]})
    people.ok({"delete": "e", "deletes": [{"q": {"_id": "ANN"}, "limit": 1}]})
    people.ok(into)
    people.ok(into)
    assert people.ok({"count": "e"})["n"] == 3


@pytest.fixture
def views(people: Client) -> Client:
    people.ok({"create": "v", "viewOn": "c", "pipeline": [{"$match": {"a": "X"}}], "collation": LOOSE})
    people.ok({"create": "plain", "viewOn": "c", "pipeline": [{"$match": {"a": "X"}}]})
    return people


def test_a_view_has_a_collation_of_its_own(views: Client) -> None:
    rows = {row["name"]: row for row in views.ok({"listCollections": 1})["cursor"]["firstBatch"]}
    assert (rows["v"]["options"]["collation"], "collation" in rows["plain"]["options"]) == (SHOWN, False)
    for name, n in (("v", 2), ("plain", 1)):
        assert len(views.ok({"find": name})["cursor"]["firstBatch"]) == n
        assert views.ok({"count": name})["n"] == n
        assert len(pipe(views, {"$match": {}}, of=name)) == n
        assert len(views.ok({"distinct": name, "key": "a"})["values"]) == 1
    assert len(views.ok({"find": "v", "filter": {"_id": "ANN"}, "collation": LOOSE})["cursor"]["firstBatch"]) == 1
    views.ok({"collMod": "v", "viewOn": "c", "pipeline": [{"$match": {"a": "Y"}}]})
    assert views.ok({"count": "v"})["n"] == 1


@pytest.mark.parametrize(
    "command",
    [
        {"find": "v", "collation": {"locale": "fr"}},
        {"find": "v", "collation": {"locale": "simple"}},
        {"count": "plain", "collation": LOOSE},
        {"distinct": "plain", "key": "a", "collation": LOOSE},
        {"aggregate": "plain", "pipeline": [], "cursor": {}, "collation": LOOSE},
        {"aggregate": "c", "pipeline": [{"$unionWith": "plain"}], "cursor": {}},
        {"create": "w", "viewOn": "v"},
        {"create": "w", "viewOn": "v", "collation": {"locale": "fr"}},
        {"create": "w", "viewOn": "c", "pipeline": [{"$unionWith": "plain"}], "collation": LOOSE},
        {"collMod": "v", "viewOn": "plain", "pipeline": []},
    ],
)
def test_what_differs_from_a_view_is_refused(views: Client, command: dict[str, Any]) -> None:
    assert views.code(command) == 167
    assert len(pipe(views, {"$unionWith": "v"})) == 5
    views.ok({"create": "w", "viewOn": "v", "collation": LOOSE})


def test_a_change_stream_does_not_take_it(people: Client) -> None:
    stream = {"$changeStream": {"startAtOperationTime": people.ok({"ping": 1})["operationTime"]}}
    match = {"$match": {"fullDocument.a": "Q"}}
    command = {"aggregate": "c", "pipeline": [stream, match], "cursor": {}}
    cursor = people.ok(command)["cursor"]
    insert(people, {"_id": 7, "a": "q"}, {"_id": 8, "a": "Q"})
    rows = [*cursor["firstBatch"], *people.ok({"getMore": cursor["id"], "collection": "c"})["cursor"]["nextBatch"]]
    assert [row["documentKey"]["_id"] for row in rows] == [8]


# --- in a set


def test_a_secondary_has_the_same_indexes() -> None:
    with a_set(2) as rig:
        client = rig.client()
        client.ok({"create": "c", "collation": LOOSE})
        insert(client, {"_id": "x", "a": "A"}, {"_id": "y", "a": "b"})
        create(client, {**A, "unique": True}, {**A, "name": "plain", "collation": {"locale": "simple"}})
        assert "writeErrors" in insert(client, {"_id": "X"})
        insert(client, {"_id": "z", "a": "C"})
        rig.until(lambda: rig.newest("b") == rig.newest())
        assert is_sound(rig.member("b"))
        anywhere = {"$readPreference": {"mode": "nearest"}}
        for command in ({"listIndexes": "c"}, {"listCollections": 1}, {"dbHash": 1}):
            replies = [rig.client(name).ok({**command, **anywhere}) for name in "ab"]
            assert replies[0].get("cursor") == replies[1].get("cursor")
            assert replies[0].get("md5") == replies[1].get("md5")
        assert rig.client("b").ok({"find": "c", "filter": {"a": "B"}, **anywhere})["cursor"]["firstBatch"]
        rig.cluster.kill("b", wipe=True)
        insert(client, {"_id": "q", "a": "D"})
        rig.cluster.restart("b")
        rig.until(lambda: rig.cluster.machines["b"].running is not None and rig.newest("b") == rig.newest())
        assert is_sound(rig.member("b"))
        assert rig.client("b").ok({"find": "c", "filter": {"_id": "Q"}, **anywhere})["cursor"]["firstBatch"]


def test_a_set_whose_members_may_be_of_1_0_has_none(client: Client, member: RunningMember) -> None:
    client.ok({"setFeatureCompatibilityVersion": "1.0", "confirm": True}, "admin")
    assert client.code({"create": "c", "collation": LOOSE}) == 72
    assert create(client, {**A, "collation": LOOSE})["code"] == 67
    created = {"op": "c", "ns": "test.$cmd", "o": {"create": "c", "collation": LOOSE}}
    assert client.code({"applyOps": [created]}) == 72
    client.ok({"setFeatureCompatibilityVersion": "1.1", "confirm": True}, "admin")
    client.ok({"create": "c", "collation": LOOSE})
    assert client.code({"setFeatureCompatibilityVersion": "1.0", "confirm": True}, "admin") == 344


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_transaction(people: Client, member: RunningMember, is_committed: bool) -> None:
    create(people, {**A, "unique": False})
    session = Session(people)
    session.ok({"insert": "c", "documents": [{"_id": "Cid", "a": "Q"}]})
    assert session.ok({"find": "c", "filter": {"a": "q"}})["cursor"]["firstBatch"] == [{"_id": "Cid", "a": "Q"}]
    assert session.ok({"find": "c", "filter": {"_id": "ANN"}})["cursor"]["firstBatch"][0]["_id"] == "Ann"
    session.ok({"create": "d", "collation": LOOSE})
    session.ok({"insert": "d", "documents": [{"_id": "x"}]})
    if is_committed:
        session.ok({"commitTransaction": 1}, "admin")
        assert is_sound(member, "test.d")
        assert people.run({"insert": "d"}, documents=[{"_id": "X"}])["writeErrors"][0]["code"] == 11000
    else:
        error = session.run({"insert": "d", "documents": [{"_id": "X"}]})["writeErrors"][0]
        assert error["code"] == 11000
    assert is_sound(member)


# --- that a query finds what a scan finds

VALUES = st.one_of(
    st.text("aAbB\u00e4 -\u00c4\u0301", max_size=3),
    st.integers(0, 2),
    st.none(),
    st.lists(st.text("aAb", max_size=2), max_size=2),
    st.fixed_dictionaries({"x": st.text("aA", max_size=1)}),
)
OPERANDS = VALUES.filter(lambda value: not isinstance(value, list))
CONDITIONS = st.one_of(
    OPERANDS.map(lambda value: {"$eq": value}),
    st.tuples(st.sampled_from(["$gt", "$gte", "$lt", "$lte"]), OPERANDS).map(lambda pair: {pair[0]: pair[1]}),
    st.lists(VALUES, max_size=3).map(lambda values: {"$in": values}),
    st.sampled_from([{"$exists": True}, {"$regex": "^a"}, {"$ne": "a"}]),
)
FILTERS = st.dictionaries(st.sampled_from(["a", "b", "_id"]), CONDITIONS, max_size=2)
COLLATIONS = st.one_of(
    st.just({"locale": "simple"}),
    st.builds(
        lambda locale, strength, shifted: {"locale": locale, "strength": strength, "alternate": shifted},
        st.sampled_from(["en", "sv"]),
        st.integers(1, 3),
        st.sampled_from(["shifted", "non-ignorable"]),
    ),
)
SORTS = st.sampled_from([{}, {"a": 1}, {"a": -1, "b": 1}, {"_id": 1}])


DOCUMENTS = st.fixed_dictionaries({"a": VALUES, "b": OPERANDS})


def keys_by(fold: Fold | None, value: object) -> set[bytes]:
    """The keys of a value in a unique index."""
    items = value if isinstance(value, list) and value else [Undefined() if value == [] else value]
    return {encode_key(item if fold is None else fold(item)) for item in items}


@pytest.mark.in_turns
def test_an_index_changes_no_answer() -> None:
    """A unique index refuses what is equal by its collation, and with any index, hinted or not, a query finds what it
    finds by a scan of the same documents.
    """
    with a_set() as rig:
        client, member = rig.client(), rig.member()

        @given(
            documents=st.lists(DOCUMENTS, max_size=8),
            own=COLLATIONS,
            default=COLLATIONS,
            unique=st.booleans(),
            queries=st.lists(st.tuples(FILTERS, SORTS, st.one_of(st.none(), COLLATIONS)), min_size=1, max_size=6),
            changed=DOCUMENTS,
        )
        @settings(deadline=None, max_examples=50)
        def check(
            documents: list[dict[str, Any]],
            own: dict[str, Any],
            default: dict[str, Any],
            unique: bool,
            queries: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any] | None]],
            changed: dict[str, Any],
        ) -> None:
            for name in ("c", "plain"):
                client.run({"drop": name})
                client.ok({"create": name, "collation": default})
            index = {"key": {"a": 1}, "name": "u", "unique": unique, "collation": own}
            create(client, {"key": {"a": 1, "b": -1}, "name": "ab", "collation": own}, index)
            fold, taken = fold_of(own), set()
            for number, document in enumerate(documents):
                one, keys = {"_id": f"{'aA'[number % 2]}{number}", **document}, keys_by(fold, document["a"])
                is_taken = unique and not taken.isdisjoint(keys)
                assert ("writeErrors" in insert(client, one)) == is_taken
                if not is_taken:
                    taken |= keys
                    client.ok({"insert": "plain"}, documents=[one])
            change = {"q": {"_id": "a0"}, "u": {"$set": changed}}
            if "writeErrors" not in client.run({"update": "c", "updates": [change]}):
                client.ok({"update": "plain", "updates": [change]})
            for name in ("c", "plain"):
                client.ok({"delete": name, "deletes": [{"q": {"_id": "A1"}, "limit": 1}]})
            assert is_sound(member)
            for filter_, sort, collation in queries:
                query = {"filter": filter_, "sort": sort, **({} if collation is None else {"collation": collation})}
                of_query = fold_of(default if collation is None else collation)
                place = compile_sort(sort, of_query)
                wanted = client.ok({"find": "plain", **query, "hint": {"$natural": 1}})["cursor"]["firstBatch"]
                for hint in ({}, {"hint": "ab"}, {"hint": "u"}):
                    rows = client.ok({"find": "c", **query, **hint})["cursor"]["firstBatch"]
                    assert sorted(row["_id"] for row in rows) == sorted(row["_id"] for row in wanted)
                    assert list(map(place, rows)) == list(map(place, wanted)) or not sort

        check()
