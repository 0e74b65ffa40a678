"""findAndModify: what it changes and returns, each way to be refused, and a sorted search over several groups."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from replset.bson import ObjectId, RawDocument, decode, encode
from replset.features.all import COMMANDS
from replset.features.crud.search_batch import FirstMatches
from replset.member.member import RunningMember
from replset.operations.dispatcher import Dispatcher
from replset.operations.request import CommandRequest
from replset.replication.write_ops import WriteGroup
from tests.rig import Client, Rig

T = TypeVar("T")


@pytest.fixture(autouse=True)
def _some_documents(client: Client) -> None:
    client.ok({"insert": "c", "documents": [{"_id": i, "a": i % 2, "n": 10 - i, "tags": [i, 5]} for i in range(4)]})


def find_and_modify(client: Client, **options: Any) -> dict[str, Any]:
    return client.ok({"findAndModify": "c", **options})


def stored(client: Client) -> dict[Any, dict[str, Any]]:
    store = client.member.store
    coll = store.collection("test.c")
    assert coll is not None
    with store.read() as snapshot:
        return {(document := decode(doc))["_id"]: document for _, doc in snapshot.scan(coll)}


DOC_1 = {"_id": 1, "a": 1, "n": 9, "tags": [1, 5]}
FOUND = {"n": 1, "updatedExisting": True}
REPLIES: dict[str, tuple[dict[str, Any], dict[str, Any] | None, dict[str, Any]]] = {
    "the-old-document": ({"query": {"_id": 1}, "update": {"$inc": {"n": 1}}}, DOC_1, FOUND),
    "the-new-document": ({"query": {"_id": 1}, "update": {"$inc": {"n": 1}}, "new": True}, DOC_1 | {"n": 10}, FOUND),
    "nothing-changes": ({"query": {"_id": 1}, "update": {"$set": {"n": 9}}, "new": True}, DOC_1, FOUND),
    "a-replacement": ({"query": {"a": 1}, "update": {"z": 1}, "new": True}, {"_id": 1, "z": 1}, FOUND),
    "sorted": ({"query": {"a": 1}, "sort": {"n": 1}, "update": {"z": 1}, "new": True}, {"_id": 3, "z": 1}, FOUND),
    "sorted-by-two": ({"sort": {"a": -1, "n": -1}, "update": {"z": 1}, "new": True}, {"_id": 1, "z": 1}, FOUND),
    "only-some-fields": ({"query": {"_id": 1}, "update": {"z": 1}, "fields": {"n": 1, "_id": 0}}, {"n": 9}, FOUND),
    "fields-of-the-new": (
        {"query": {"_id": 1}, "update": {"$set": {"n": 0}}, "fields": {"n": 1}, "new": True},
        {"_id": 1, "n": 0},
        FOUND,
    ),
    "array-filters": (
        {
            "query": {"_id": 1},
            "update": {"$set": {"tags.$[x]": 0}},
            "arrayFilters": [{"x": {"$gt": 2}}],
            "fields": {"tags": 1},
            "new": True,
        },
        {"_id": 1, "tags": [1, 0]},
        FOUND,
    ),
    "none-found": ({"query": {"_id": 77}, "update": {"z": 1}}, None, {"n": 0, "updatedExisting": False}),
    "none-found-in-order": ({"query": {"n": 77}, "sort": {"n": 1}, "remove": True}, None, {"n": 0}),
    "an-upsert-that-finds": ({"query": {"_id": 1}, "update": {"$inc": {"n": 1}}, "upsert": True}, DOC_1, FOUND),
    "an-upsert": (
        {"query": {"_id": 77, "k": 1}, "update": {"$set": {"n": 1}}, "upsert": True},
        None,
        {"n": 1, "updatedExisting": False, "upserted": 77},
    ),
    "a-new-upsert": (
        {
            "query": {"_id": 77, "k": 1},
            "update": {"$set": {"n": 1}},
            "upsert": True,
            "new": True,
            "sort": {"n": 1},
            "fields": {"k": 0},
        },
        {"_id": 77, "n": 1},
        {"n": 1, "updatedExisting": False, "upserted": 77},
    ),
    "removed": ({"query": {"_id": 1}, "remove": True}, DOC_1, {"n": 1}),
    "removed-in-order": ({"query": {}, "sort": {"n": 1}, "remove": True, "fields": {"_id": 1}}, {"_id": 3}, {"n": 1}),
    "nothing-removed": ({"query": {"_id": 77}, "remove": True}, None, {"n": 0}),
    "null-options": (
        {"query": {"_id": 1}, "remove": True, "sort": None, "fields": None, "collation": None, "let": {}},
        DOC_1,
        {"n": 1},
    ),
}


@pytest.mark.parametrize(("options", "value", "result"), REPLIES.values(), ids=REPLIES)
def test_the_reply(client: Client, options: dict[str, Any], value: dict[str, Any] | None, result: Any) -> None:
    before = stored(client)
    reply = find_and_modify(client, **options)
    assert reply["value"] == value
    assert reply["lastErrorObject"] == result
    assert list(reply)[:2] == ["lastErrorObject", "value"]
    after = stored(client)
    changed = {_id for _id in before | after if before.get(_id) != after.get(_id)}
    assert len(changed) <= 1
    if options.get("remove"):
        assert len(before) - len(after) == result["n"]
    elif options.get("new") and value is not None and "fields" not in options:
        assert after[value["_id"]] == value


def test_an_upsert_makes_an_id_and_the_collection(client: Client) -> None:
    reply = client.ok({"findandmodify": "d", "query": {"k": 1}, "update": {"$set": {"n": 1}}, "upsert": True})
    assert isinstance(reply["lastErrorObject"]["upserted"], ObjectId)
    assert [entry["op"] for entry in client.entries()[-2:]] == ["c", "i"]


@pytest.mark.parametrize("options", [{"update": {"$inc": {"n": 1}}}, {"remove": True}])
def test_without_a_collection_there_is_nothing(client: Client, options: dict[str, Any]) -> None:
    reply = client.ok({"findAndModify": "missing", "sort": {"n": 1}, **options})
    assert reply["value"] is None
    assert reply["lastErrorObject"]["n"] == 0


REFUSALS: list[tuple[dict[str, Any], int]] = [
    ({}, 9),
    ({"remove": False}, 9),
    ({"remove": True, "update": {}}, 9),
    ({"remove": True, "upsert": True}, 9),
    ({"remove": True, "new": True}, 9),
    ({"remove": True, "arrayFilters": []}, 9),
    ({"update": [], "arrayFilters": []}, 9),
    ({"update": 5}, 9),
    ({"update": [{"$match": {"a": 1}}]}, 72),
    ({"update": {"$nonsense": {"a": 1}}}, 9),
    ({"update": {"$set": {"_id": 9}}, "query": {"_id": 1}}, 66),
    ({"update": {"$inc": {"tags": 1}}}, 14),
    ({"update": {"z": 1}, "query": {"$nonsense": 1}}, 2),
    ({"update": {"z": 1}, "query": 5}, 14),
    ({"update": {"z": 1}, "sort": {"n": 7}}, 15975),
    ({"update": {"z": 1}, "fields": {"a": 1, "n": 0}}, 31254),
    ({"update": {"z": 1}, "hint": "nonsense"}, 2),
    ({"update": {"z": 1}, "hint": 5}, 9),
    ({"update": {"z": 1}, "let": {"x": "$a"}}, 4890500),
    ({"update": {"z": 1}, "collation": {"locale": "simple", "strength": 1}}, 9),
    ({"update": {"z": 1}, "nonsense": 1}, 40415),
    ({"update": {"$set": {"_id": 1}}, "query": {"k": 1}, "upsert": True}, 11000),
]


@pytest.mark.parametrize(("options", "code"), REFUSALS)
def test_refusals(client: Client, options: dict[str, Any], code: int) -> None:
    before = client.entries()
    assert client.code({"findAndModify": "c", **options}) == code
    assert client.entries() == before


def test_a_duplicate_key_names_it(client: Client) -> None:
    reply = client.run(
        {"findAndModify": "c", "query": {"k": 1}, "update": {"$set": {"_id": 1}}, "upsert": True, "new": True}
    )
    assert (reply["code"], reply["keyPattern"], reply["keyValue"]) == (11000, {"_id": 1}, {"_id": 1})


def test_a_write_concern_that_is_not_met(client: Client, rig: Rig) -> None:
    rig.stop_disk()
    concern = {"w": "majority", "wtimeout": 1}
    reply = find_and_modify(client, query={"_id": 1}, update={"$inc": {"n": 1}}, writeConcern=concern)
    assert reply["writeConcernError"]["code"] == 64
    assert reply["value"] == DOC_1


def test_what_changes_nothing_waits_for_what_it_saw(client: Client, rig: Rig) -> None:
    before, change = client.entries(), {"query": {"_id": 1}, "update": {"$set": {"n": 9}}}
    reply = find_and_modify(client, **change)
    assert client.entries() == before
    assert reply["operationTime"] == before[-1]["ts"]
    rig.stop_disk()
    client.ok({"insert": "c", "documents": [{"_id": "newer"}], "writeConcern": {"w": 1}})
    assert "writeConcernError" in find_and_modify(client, **change, writeConcern={"w": "majority", "wtimeout": 1})


# --- over several groups -----------------------------------------------------------------------------------------


Act = Callable[[Callable[[dict[str, Any]], Awaitable[None]]], Awaitable[None]]


def between_groups(member: RunningMember, monkeypatch: pytest.MonkeyPatch, act: Act) -> None:
    """Call `act` before each group of the command that follows. It is given a function that runs other commands."""
    plain_write = member.write
    is_acting = False

    async def run(command: dict[str, Any]) -> None:
        request = CommandRequest("test", RawDocument(encode({**command, "$db": "test"})))
        reply = await Dispatcher(member, COMMANDS.values()).run(request)
        assert (decode(reply) if isinstance(reply, bytes) else reply)["ok"] == 1.0

    async def write(operation: Callable[[WriteGroup], T]) -> T:
        nonlocal is_acting
        if not is_acting:
            is_acting = True
            await act(run)
            is_acting = False
        return await plain_write(operation)

    monkeypatch.setattr(member, "write", write)


@pytest.mark.in_turns
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kept", [3, 100])
def test_the_first_in_order_at_the_moment_of_the_write(
    client: Client, member: RunningMember, monkeypatch: pytest.MonkeyPatch, seed: int, kept: int
) -> None:
    monkeypatch.setattr("replset.features.crud.search_batch.KEPT", kept)
    rng = random.Random(seed)
    client.ok({"delete": "c", "deletes": [{"q": {}, "limit": 0}]})
    client.ok({"insert": "c", "documents": [{"_id": i, "n": rng.randrange(300), "on": True} for i in range(700)]})
    wanted: list[Any] = []
    rounds = 0

    async def act(run: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
        nonlocal rounds
        rounds += 1
        for _ in range(rng.randrange(6) if rounds < 12 else 0):
            first = best()
            kind = rng.randrange(4)
            if kind == 0 and first is not None:
                await run({"delete": "c", "deletes": [{"q": {"_id": first}, "limit": 1}]})
            elif kind == 1 and first is not None:
                await run({"update": "c", "updates": [{"q": {"_id": first}, "u": {"$set": {"on": False}}}]})
            elif kind == 2:
                target, n = rng.randrange(700), rng.randrange(300)
                await run({"update": "c", "updates": [{"q": {"_id": target}, "u": {"$set": {"n": n}}}]})
            else:
                await run({"insert": "c", "documents": [{"n": rng.randrange(20), "on": True}]})
        wanted.append(best())

    def best() -> Any:
        matching = [(document["n"], str(_id)) for _id, document in stored(client).items() if document["on"]]
        least = min(matching)[0]
        return next(_id for _id, document in stored(client).items() if document["on"] and document["n"] == least)

    between_groups(member, monkeypatch, act)
    reply = find_and_modify(client, query={"on": True}, sort={"n": 1}, remove=True)
    assert len(wanted) >= 4
    assert reply["value"]["_id"] == wanted[-1]
    assert member.store.oldest_pin is None


def test_a_collection_made_anew_meanwhile(
    client: Client, member: RunningMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.ok({"insert": "c", "documents": [{"n": i} for i in range(500)]})
    rounds = 0

    async def act(run: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 2:
            await run({"drop": "c"})
            await run({"insert": "c", "documents": [{"_id": 9, "n": 3}]})

    between_groups(member, monkeypatch, act)
    assert find_and_modify(client, sort={"n": 1}, remove=True)["value"] == {"_id": 9, "n": 3}


def test_first_matches_keep_what_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replset.features.crud.search_batch.KEPT_BYTES", 10)
    matches = FirstMatches()
    assert (matches.first, matches.is_exhausted) == (None, False)
    for rank in (b"dddd", b"bbbb", b"cccc", b"aaaa"):
        matches.add(rank, rank[:1])
    assert matches.first == b"a"
    matches.add(b"eeee", b"a")  # it moves behind what was dropped
    assert matches.first == b"b"
    matches.forget([b"b", b"x"])
    assert (matches.first, matches.is_exhausted) == (None, True)
    matches.add(b"0", b"z")
    assert (matches.first, matches.is_exhausted) == (b"z", False)
