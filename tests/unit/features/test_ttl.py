"""TTL indexes: which documents expire, in slices, and only on a primary; and what an $out left behind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from replset.bson import DateTime, Int64, RawDocument, encode
from replset.features.aggregation.temporary import TEMPORARY, TemporaryCollections
from replset.features.indexes.ttl import TtlMonitor
from replset.member.member import RunningMember
from replset.replication.index_ops import do_drop_index, do_start_build
from replset.replication.write_ops import WriteGroup, do_create, do_drop
from tests.rig import Client, Rig
from tests.unit.replication.kit import indexes_are_sound

T = TypeVar("T")


def date(member: RunningMember, seconds: int) -> DateTime:
    return DateTime(member.clock.wall_ms() + seconds * 1000)


def expire(client: Client, after_s: int = 0, **options: Any) -> None:
    index = {"name": "a", "key": {"a": 1}, "expireAfterSeconds": after_s, **options}
    client.ok({"createIndexes": "c", "indexes": [index]})


def insert(client: Client, *documents: dict[str, Any]) -> None:
    client.ok({"insert": "c", "documents": list(documents)})


def left(client: Client) -> list[int]:
    return sorted(document["_id"] for document in client.ok({"find": "c"})["cursor"]["firstBatch"])


def work(rig: Rig, name: str = "a") -> None:
    rig.do(rig.member(name)[TtlMonitor].work(), name)


@pytest.mark.parametrize("direction", [1, -1])
def test_what_expires(rig: Rig, member: RunningMember, client: Client, direction: int) -> None:
    expire(client, 10, key={"a": direction})
    old, soon = date(member, -100), date(member, 50)
    insert(
        client,
        {"_id": 0, "a": old},
        {"_id": 1, "a": date(member, -10)},
        {"_id": 2, "a": date(member, 5)},
        {"_id": 3, "a": [soon, old, old]},
        {"_id": 4, "a": [soon, "x"]},
        {"_id": 5, "a": "2000-01-01"},
        {"_id": 6, "a": 5},
        {"_id": 7},
        {"_id": 8, "a": None},
        {"_id": 9, "a": DateTime(-(1 << 63))},
        {"_id": 10, "a": {"b": old}},
    )
    work(rig)
    assert left(client) == [2, 4, 5, 6, 7, 8, 10]
    assert indexes_are_sound(member.store)
    rig.wait(76)  # it looks by itself once a minute
    assert left(client) == [4, 5, 6, 7, 8, 10]


def test_what_a_transaction_holds_stays_for_now(rig: Rig, member: RunningMember, client: Client) -> None:
    expire(client)
    insert(client, {"_id": 1, "a": date(member, -5)}, {"_id": 2, "a": date(member, -5)})
    session = {"lsid": client.ok({"startSession": 1}, "admin")["id"], "txnNumber": Int64(1), "autocommit": False}
    statement = {"q": {"_id": 1}, "u": {"$set": {"held": True}}}
    client.ok({"update": "c", "updates": [statement], **session, "startTransaction": True})
    work(rig)
    assert left(client) == [1]
    client.ok({"abortTransaction": 1, **session}, "admin")
    work(rig)
    assert left(client) == []


def test_a_partial_index_expires_only_its_documents(rig: Rig, member: RunningMember, client: Client) -> None:
    expire(client, partialFilterExpression={"kind": "session"})
    insert(client, {"_id": 1, "a": date(member, -5)}, {"_id": 2, "a": date(member, -5), "kind": "session"})
    work(rig)
    assert left(client) == [1]


def test_many_are_deleted_in_slices_as_ordinary_deletes(rig: Rig, member: RunningMember, client: Client) -> None:
    expire(client)
    insert(client, *({"_id": n, "a": [date(member, -n), date(member, -n - 1)]} for n in range(1, 500)))
    groups = rig.groups()
    work(rig)
    assert left(client) == []
    assert rig.groups() > groups + 3
    assert [entry["op"] for entry in client.entries()[-499:]] == ["d"] * 499


@pytest.mark.parametrize("gone", ["index", "collection"])
def test_an_index_that_is_dropped_meanwhile_expires_nothing(
    rig: Rig, member: RunningMember, client: Client, gone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expire(client)
    insert(client, {"_id": 1, "a": date(member, -5)})

    real, coll = member.write, member.store.collection("test.c")
    assert coll is not None

    def after_a_drop(operation: Callable[[WriteGroup], T]) -> Awaitable[T]:
        def both(group: WriteGroup) -> T:
            if gone == "collection":
                do_drop(group, coll)
            else:
                do_drop_index(group, coll, coll.indexes[-1])
            return operation(group)

        return real(both)

    monkeypatch.setattr(member, "write", after_a_drop)
    work(rig)
    assert "d" not in [entry["op"] for entry in client.entries()]


def test_an_index_under_build_expires_nothing(rig: Rig, member: RunningMember, client: Client) -> None:
    insert(client, {"_id": 1, "a": date(member, -5)})
    index = RawDocument(encode({"v": 2, "name": "a", "key": {"a": 1}, "expireAfterSeconds": 0}))
    assert rig.write(lambda group: do_start_build(group, group.txn.catalog.by_ns["test.c"], [index]))
    work(rig)
    assert left(client) == [1]
    rig.wait(1)  # it is built
    work(rig)
    assert left(client) == []


def test_no_secondary_expires_anything(rig: Rig, member: RunningMember, client: Client) -> None:
    expire(client)
    insert(client, {"_id": 1, "a": date(member, -5)})
    rig.step_down(200)
    work(rig)
    rig.wait(70)
    assert "d" not in [entry["op"] for entry in client.entries()]
    rig.lead()
    rig.wait(61)
    assert left(client) == []


def test_temporary_collections_of_an_earlier_term_are_dropped(rig: Rig, member: RunningMember, client: Client) -> None:
    def make(name: str, **options: object) -> None:
        rig.write(lambda group: do_create(group, f"test.{name}", options))

    make("old", **{TEMPORARY: True})
    make("used")
    rig.step_down(1)
    rig.lead()
    make("new", **{TEMPORARY: True})
    rig.do(member[TemporaryCollections].work())
    assert sorted(coll.ns for coll in member.store.collections() if coll.ns.startswith("test.")) == [
        "test.new",
        "test.used",
    ]
