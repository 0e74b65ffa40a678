"""What commands write on a primary and what a secondary makes of their oplog is the same, byte for byte."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from replset.bson import DateTime, Decimal128, Int64, ObjectId
from replset.ids import OPTIME_NULL
from replset.member.member import RunningMember
from replset.replication.applier import apply_batch
from replset.storage.disk import RealDisk
from replset.storage.store import Store, StoreOptions
from tests.rig import Client

FIELDS = ("a", "b", "c.d", "c.e.f", "list", "list.1", "list.2.x", "g")
ROUNDS = 150


def a_value(rng: random.Random, depth: int = 0) -> Any:
    scalars = (
        rng.randint(-5, 5),
        Int64(rng.randint(0, 9)),
        rng.random(),
        -0.0,
        float("nan"),
        None,
        True,
        "text" * rng.randint(0, 20),
        DateTime(5),
        ObjectId("0" * 24),
        Decimal128("1.50"),
    )
    pick = rng.random()
    if depth < 2 and pick < 0.2:
        return {rng.choice("abcxyz"): a_value(rng, depth + 1) for _ in range(rng.randint(0, 4))}
    if depth < 2 and pick < 0.4:
        return [a_value(rng, depth + 1) for _ in range(rng.randint(0, 4))]
    return rng.choice(scalars)


def a_document(rng: random.Random) -> dict[str, Any]:
    return {rng.choice(("a", "b", "c", "list", "g", "h")): a_value(rng) for _ in range(rng.randint(0, 5))}


def a_change(rng: random.Random) -> dict[str, Any]:
    field = rng.choice(FIELDS)
    return rng.choice(
        (
            {"$set": {field: a_value(rng)}},
            {"$set": {"a": a_value(rng), "z": a_value(rng)}},
            {"$unset": {field: 1}},
            {"$inc": {field: rng.choice((1, Int64(2), 0.5))}},
            {"$push": {"list": {"$each": [a_value(rng), 1], "$slice": -4}}},
            {"$pull": {"list": {"$gte": 0}}},
            {"$addToSet": {"list": a_value(rng)}},
            {"$pop": {"list": rng.choice((1, -1))}},
            {"$rename": {"a": "b"}},
            {"$mul": {"a": 3}},
            {"$min": {"g": a_value(rng)}},
            {"$currentDate": {"g": {"$type": rng.choice(("date", "timestamp"))}}},
            a_document(rng),
        )
    )


def a_command(rng: random.Random) -> dict[str, Any]:
    coll, key = rng.choice("cd"), rng.randint(0, 12)
    query = rng.choice(({"_id": key}, {"a": {"$exists": True}}, {"_id": {"$in": [key, key + 1]}}, {}))
    kind = rng.random()
    if kind < 0.3:
        return {"insert": coll, "ordered": False, "documents": [{"_id": key, **a_document(rng)}, a_document(rng)]}
    if kind < 0.85:
        change = a_change(rng)
        multi = rng.random() < 0.3 and next(iter(change), "").startswith("$")
        return {"update": coll, "updates": [{"q": query, "u": change, "multi": multi, "upsert": rng.random() < 0.3}]}
    if kind < 0.97:
        return {"delete": coll, "deletes": [{"q": query, "limit": rng.choice((0, 1))}]}
    return {"drop": coll}


def contents(store: Store) -> dict[str, list[tuple[bytes, bytes]]]:
    with store.read() as snapshot:
        return {coll.ns: list(snapshot.scan(coll)) for coll in store.collections()}


@pytest.mark.parametrize("seed", range(8))
def test_a_secondary_ends_with_the_same_bytes(client: Client, member: RunningMember, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(ROUNDS):
        client.ok(a_command(rng))
    entries = [row.entry for row in member.store.oplog_after(OPTIME_NULL, limit=100_000, max_bytes=1 << 30)]
    other = Store.open(RealDisk(), tmp_path / "other", StoreOptions(min_free_bytes=0))
    try:
        done = 0
        while done < len(entries):
            done += apply_batch(other, entries, done, len(entries), lambda: False)
        assert contents(other) == contents(member.store)
        assert other.chain == member.store.chain
    finally:
        other.close()


@pytest.mark.parametrize("seed", range(3))
def test_every_earlier_state_can_be_read_back(client: Client, member: RunningMember, seed: int) -> None:
    rng = random.Random(seed)
    states: list[tuple[Any, dict[str, list[tuple[bytes, bytes]]]]] = []
    for name in ("c", "d"):
        client.ok({"create": name})
    for _ in range(40):
        command = a_command(rng)
        if "drop" not in command:
            client.ok(command)
            states.append((member.store.last_applied, contents(member.store)))
    for at, expected in states:
        with member.store.read() as snapshot:
            found = {coll.ns: list(snapshot.scan(coll, at)) for coll in member.store.collections()}
        assert found == expected
