"""Readers off the primary: the holder of a consumer reads at a secondary, fenced by generation, holder and lag."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from replset.bson import Int64
from replset.core.member_state import MemberState
from replset.errors import ErrorCode
from replset.features.consumers import consumer_reads
from replset.features.consumers.consumer_directory import ConsumerDirectory
from replset.storage.retention import remove_old_data
from tests.rig import Rig, a_set
from tests.unit.features.test_consumers import ack, admin, create, ids, insert, read, refused, tokens

TIMEOUT_MS = 20_000


@pytest.fixture
def rig() -> Iterator[Rig]:
    with a_set(3) as made:
        client = made.client()
        create(client, mode="failover", ackTimeoutMS=TIMEOUT_MS)
        insert(client, 1, 2, 3, 4)
        yield made


def read_here(rig: Rig, found: dict[str, Any], name: str = "b", **more: Any) -> dict[str, Any]:
    return admin(rig.client(name), "ReadHere", **place(found) | more)


def refused_here(rig: Rig, found: dict[str, Any], name: str = "b", **more: Any) -> int:
    return refused(rig.client(name), "ReadHere", **place(found) | more)


def place(found: dict[str, Any]) -> dict[str, Any]:
    return {"reader": "a", "generation": found["generation"], "after": found["next"], "waitMS": 2_000}


def overload(rig: Rig, *names: str) -> None:
    for name in names:
        for _ in range(20):
            rig.member(name).load.on_beat(0.1)
    rig.wait(3)  # the others hear of it by heartbeats


# --- what a secondary gives ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_the_holder_reads_on_at_any_member(rig: Rig, name: str) -> None:
    client = rig.client()
    first = read(client, maxEvents=1)
    second = read_here(rig, first, name, maxEvents=2)
    assert (ids(first), ids(second)) == ([1], [2, 3])
    assert second["generation"] == first["generation"]
    ack(client, second, token=second["next"])
    assert ids(read_here(rig, second, name)) == [4]
    assert ids(read(client)) == [4]


def test_it_waits_for_events_as_long_as_the_lease_allows(rig: Rig) -> None:
    client, other = rig.client(), rig.client("b")
    found = read(client)
    waiting = other.begin({"replSetConsumerReadHere": "c", **place(found)}, "admin")
    rig.wait(0.5)
    assert not waiting.done()
    insert(client, 5)
    assert ids(other.decoded(waiting)) == [5]
    rest = read_here(rig, found, after=read(client)["next"], waitMS=0)
    before = rig.member("b").clock.now()
    assert ids(read_here(rig, rest, waitMS=30_000)) == []
    assert 0 <= rig.member("b").clock.now() - before - TIMEOUT_MS // 3 < 100


def test_what_is_acknowledged_does_not_come_again(rig: Rig) -> None:
    client = rig.client()
    first = read(client, maxEvents=1)
    rest = read(client, after=first["next"], generation=first["generation"])
    ack(client, rest, token=tokens(rest)[1])
    rig.wait(3)
    assert ids(read_here(rig, first)) == [4], "its position is ahead of `after`"


def test_an_acknowledgement_renews_the_lease_also_one_that_comes_twice(rig: Rig) -> None:
    client = rig.client()
    found = read(client, maxEvents=1)
    ack(client, found, token=found["next"])
    for _ in range(3):
        rig.wait(TIMEOUT_MS / 1000 * 0.6)
        read_here(rig, found, waitMS=0)
        ack(client, found, token=found["next"])
        assert read(client, "z")["active"] is False
    rig.wait(TIMEOUT_MS / 1000 * 0.6)
    read_here(rig, found, waitMS=0)  # this renews nothing
    rig.wait(TIMEOUT_MS / 1000 * 0.6)
    assert read(client, "z")["active"] is True


def test_events_that_no_majority_has_are_not_shown(rig: Rig) -> None:
    client = rig.client()
    found = read(client)
    rig.cluster.cut(["a", "b"])
    with_b = {"insert": "orders", "documents": [{"_id": 5}], "writeConcern": {"w": 2}}
    client.ok(with_b, "shop")
    rig.wait(1)
    assert ids(read_here(rig, found)) == [5], "two of three have it"
    found = read(client)
    rig.cluster.heal()
    rig.cluster.cut(["a"])
    client.ok({"insert": "orders", "documents": [{"_id": 6}], "writeConcern": {"w": 1}}, "shop")
    assert ids(read_here(rig, found, "a", waitMS=0)) == []


# --- what it refuses ----------------------------------------------------------------------------------------------


def taken_by_another(rig: Rig, found: dict[str, Any]) -> None:
    admin(rig.client(), "Nack", generation=found["generation"], leave=True)
    assert read(rig.client(), "z")["active"] is True
    rig.wait(3)


def sought(rig: Rig, _: dict[str, Any]) -> None:
    admin(rig.client(), "Seek", to="oldest")
    rig.wait(3)


def removed(rig: Rig, _: dict[str, Any]) -> None:
    admin(rig.client(), "Remove")
    rig.wait(3)


def made_again(rig: Rig, _: dict[str, Any]) -> None:
    admin(rig.client(), "Remove")
    admin(rig.client(), "Create", mode="failover")
    rig.wait(3)


def delayed(rig: Rig, found: dict[str, Any]) -> None:
    admin(rig.client(), "Nack", generation=found["generation"], delayMS=1_000)
    rig.wait(3)


def cut_off(rig: Rig, _: dict[str, Any]) -> None:
    rig.cluster.cut(["b"])
    rig.wait(TIMEOUT_MS / 1000 + 10)


def not_readable(rig: Rig, _: dict[str, Any]) -> None:
    rig.client("b").ok({"replSetMaintenance": True}, "admin")
    rig.until(lambda: rig.member("b").node.state is MemberState.RECOVERING)


def nothing(_: Rig, __: dict[str, Any]) -> None: ...


MOVED, BEHIND = ErrorCode.CONSUMER_MOVED, ErrorCode.READ_PREFERENCE_NOT_SATISFIED
NOT_READABLE = ErrorCode.NOT_PRIMARY_OR_SECONDARY
REFUSALS: dict[str, tuple[Callable[[Rig, dict[str, Any]], None], dict[str, Any], int]] = {
    "newer-generation": (taken_by_another, {}, MOVED),
    "position-set": (sought, {}, MOVED),
    "made-again": (made_again, {}, MOVED),
    "removed": (removed, {}, BEHIND),
    "other-holder": (nothing, {"reader": "z"}, MOVED),
    "older-generation-here": (nothing, {"generation": Int64(1 << 52)}, BEHIND),
    "given-back-for-later": (delayed, {}, BEHIND),
    "cut-off": (cut_off, {}, BEHIND),
    "not-readable": (not_readable, {}, NOT_READABLE),
    "no-token": (nothing, {"after": "x"}, ErrorCode.INVALID_RESUME_TOKEN),
}


@pytest.mark.parametrize(("change", "more", "code"), REFUSALS.values(), ids=REFUSALS)
def test_refusals(rig: Rig, change: Callable[..., None], more: dict[str, Any], code: int) -> None:
    found = read(rig.client(), maxEvents=1)
    assert ids(read_here(rig, found)) == [2, 3, 4]
    change(rig, found)
    assert refused_here(rig, found, **more) == code
    if code == BEHIND and change not in (removed, delayed):
        assert ids(read(rig.client(), after=found["next"], generation=found["generation"])) == [2, 3, 4]


def test_a_shared_consumer_is_read_at_the_primary_alone(rig: Rig) -> None:
    client = rig.client()
    admin(client, "Create", "s", ns="shop.orders", mode="shared")
    found = admin(client, "Read", "s", reader="a")
    rig.wait(3)
    reply = rig.client("b").run(
        {"replSetConsumerReadHere": "s", "reader": "a", "generation": found["generation"], "after": found["position"]},
        "admin",
    )
    assert (reply["code"], "only the primary" in reply["errmsg"]) == (ErrorCode.BAD_VALUE, True)


def test_a_secondary_that_lacks_the_claim_waits_for_it(rig: Rig) -> None:
    """It was made while this one heard nothing; the copy of before is older than the reader's generation."""
    client, other = rig.client(), rig.client("b")
    rig.wait(3)
    rig.cluster.cut(["b"])
    found = read(client, maxEvents=1)
    waiting = other.begin({"replSetConsumerReadHere": "c", **place(found), "waitMS": 30_000}, "admin")
    rig.wait(1)
    assert not waiting.done()
    rig.cluster.heal()
    assert ids(other.decoded(waiting)) == [2, 3, 4]


def test_a_claim_that_is_not_committed_counts_not_yet(rig: Rig) -> None:
    client = rig.client()
    found = read(client, maxEvents=1)
    admin(client, "Nack", generation=found["generation"], leave=True)
    rig.wait(3)
    rig.cluster.cut(["a"])
    taking = client.begin({"replSetConsumerRead": "c", "reader": "z", "waitMS": 0}, "admin")
    rig.wait(1)
    assert rig.member()[ConsumerDirectory].find("c").holder == "z"
    assert ids(read_here(rig, found, "a")) == [2, 3, 4], "a majority has the former reader"
    taking.cancel()


def test_history_that_is_gone_there(rig: Rig) -> None:
    client = rig.client()
    found = read(client, maxEvents=1)
    ack(client, found, token=found["next"])
    insert(client, *range(10, 30))
    rig.wait(3)
    store = rig.member("b").store
    assert rig.member("b")[ConsumerDirectory].needed() == rig.member()[ConsumerDirectory].needed(), "kept there, too"
    store.options = replace(store.options, oplog_max_bytes=100, oplog_lagging_bytes=0, snapshot_history_s=0)
    while remove_old_data(store, rig.member("b").clock.now(), None):
        pass
    reply = rig.client("b").run({"replSetConsumerReadHere": "c", **place(found)}, "admin")
    assert (reply["code"], "oldestToken" in reply) == (ErrorCode.CHANGE_STREAM_HISTORY_LOST, True)
    assert len(ids(read(client))) == 23


# --- who is named -------------------------------------------------------------------------------------------------


def test_an_overloaded_primary_names_the_secondary(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    client = rig.client()
    assert "readFrom" not in read(client)
    overload(rig, "a")
    found = read(client, maxEvents=1)
    named = found["readFrom"]
    assert named in ("b:27017", "c:27017")
    assert ids(read_here(rig, found, named[0])) == [2, 3, 4]
    overload(rig, named[0])
    assert read(client)["readFrom"] == {"b:27017": "c:27017", "c:27017": "b:27017"}[named]
    overload(rig, "b", "c")
    assert "readFrom" not in read(client), "the others are no better"
    admin(client, "Create", "s", ns="shop.orders", mode="shared")
    monkeypatch.setattr(consumer_reads, "other_readers", lambda *_: ["b:27017"])
    assert "readFrom" in read(client)
    assert "readFrom" not in admin(client, "Read", "s", reader="a")


def test_a_slow_disk_counts_as_overload(rig: Rig) -> None:
    for _ in range(3):
        rig.member().load.on_synced(0.3)
    rig.wait(3)
    assert rig.member("b").node.status(rig.member("b").clock.now()).members[0].overloaded  # type: ignore[union-attr]
    assert "readFrom" in read(rig.client())


# --- change streams and exports -----------------------------------------------------------------------------------


def test_a_secondary_serves_change_streams_and_exports_while_the_primary_is_overloaded(rig: Rig) -> None:
    nearest = {"$readPreference": {"mode": "nearest"}}
    client, other = rig.client(), rig.client("b")
    watch: dict[str, Any] = {"aggregate": "orders", "pipeline": [{"$changeStream": {}}], "cursor": {}, **nearest}
    cursor = other.ok(watch, "shop")["cursor"]
    overload(rig, "a")
    insert(client, 5, 6)
    rig.wait(1)
    batch = other.ok({"getMore": cursor["id"], "collection": "orders", "maxTimeMS": 1_000}, "shop")["cursor"]
    assert [event["documentKey"]["_id"] for event in batch["nextBatch"]] == [5, 6]
    export = other.ok({"find": "orders", "sort": {"_id": 1}, **nearest}, "shop")["cursor"]["firstBatch"]
    assert [document["_id"] for document in export] == [1, 2, 3, 4, 5, 6]
