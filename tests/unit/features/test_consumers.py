"""The commands on named consumers, and what of the oplog is kept for them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from replset.bson import DateTime, Int64, Timestamp, encode
from replset.errors import ErrorCode, NotWritablePrimaryError
from replset.features.consumers import consumer_commands, consumer_reads
from replset.features.consumers.consumer import MOST_OUTSTANDING
from replset.features.consumers.consumer_commands import LARGEST_FILTER
from replset.features.consumers.consumer_directory import CommittedFloor, ConsumerDirectory
from replset.ids import OPTIME_NULL, OpTime, pack_ts
from replset.member.member import RunningMember
from replset.operations.read_concern import append_at_least
from replset.operations.write_concern import WriteConcernFailure
from replset.oplog_row import OplogRow
from replset.query.change_tokens import Token, behind, in_front_of
from replset.storage.retention import remove_old_data
from tests.rig import Client, Rig, note_waits

TIMEOUT_MS = 5_000


def admin(client: Client, command: str, name: Any = "c", **more: Any) -> dict[str, Any]:
    return client.ok({f"replSetConsumer{command}": name, **more}, "admin")


def refused(client: Client, command: str, name: Any = "c", **more: Any) -> int:
    return client.code({f"replSetConsumer{command}": name, **more}, "admin")


def create(client: Client, **more: Any) -> None:
    client.ok({"create": "orders"}, "shop")
    admin(client, "Create", **{"ns": "shop.orders", "ackTimeoutMS": TIMEOUT_MS} | more)


def insert(client: Client, *ids: object, coll: str = "orders") -> None:
    client.ok({"insert": coll, "documents": [{"_id": one} for one in ids]}, "shop")


def read(client: Client, reader: str = "a", **more: Any) -> dict[str, Any]:
    return admin(client, "Read", reader=reader, **more)


def ids(reply: dict[str, Any]) -> list[object]:
    return [event["documentKey"]["_id"] for event in reply["events"]]


def tokens(reply: dict[str, Any]) -> list[str]:
    return [event["_id"]["_data"] for event in reply["events"]]


def ack(client: Client, reply: dict[str, Any], **more: Any) -> dict[str, Any]:
    return admin(client, "Ack", generation=reply["generation"], **more)


# --- one reader ---------------------------------------------------------------------------------------------------


def test_events_come_again_until_they_are_acknowledged(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    waited = note_waits(monkeypatch)
    create(client)
    insert(client, 1, 2, 3)
    first = read(client, maxEvents=2)
    assert ids(first) == [1, 2]
    assert ids(read(client, maxEvents=2)) == [1, 2]
    assert ids(read(client, after=first["next"], generation=first["generation"])) == [3]
    assert ids(read(client, after=first["next"], generation=7)) == [1, 2, 3], "it is of another generation"
    assert waited[-1][1].w == "majority"
    ack(client, first, token=tokens(first)[0])
    assert ids(read(client)) == [2, 3]
    rest = read(client)
    ack(client, rest, token=rest["next"])
    assert ids(read(client)) == []
    insert(client, 4)
    assert ids(read(client)) == [4]


def test_an_acknowledgement_that_no_majority_has_is_an_error(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    create(client)
    insert(client, 1)
    found = read(client)
    more = {"generation": found["generation"], "token": found["next"]}
    with monkeypatch.context() as patch:
        note_waits(patch, WriteConcernFailure(ErrorCode.WRITE_CONCERN_TIMEOUT, "too slow"))
        for _ in range(2):  # the second changes nothing, and yet it is waited for
            assert refused(client, "Ack", **more) == ErrorCode.WRITE_CONCERN_TIMEOUT
    ack(client, found, token=found["next"])


def test_a_filter_and_a_namespace_choose_events(client: Client) -> None:
    create(client, filter={"operationType": "insert", "fullDocument._id": {"$gte": 2}})
    admin(client, "Create", "db", ns="shop")
    admin(client, "Create", "all", ns="")
    insert(client, 1, 2)
    insert(client, 3, coll="other")
    client.ok({"delete": "orders", "deletes": [{"q": {"_id": 2}, "limit": 1}]}, "shop")
    client.ok({"insert": "x", "documents": [{"_id": 4}]}, "another")
    found = read(client)
    assert ids(found) == [2]
    assert ids(admin(client, "Read", "db", reader="a")) == [1, 2, 3, 2]
    assert ids(admin(client, "Read", "all", reader="a")) == [1, 2, 3, 2, 4]
    ack(client, found, token=found["next"])
    assert read(client)["next"] > found["next"]


@pytest.mark.parametrize(
    ("mode", "most", "most_bytes", "expected"),
    [
        *(("exclusive", 100, 10_000, [[1, 2], [3, 4, 5]]), ("shared", 100, 10_000, [[1], [2], [3, 4], [5]])),
        *((mode, 100, 1, [[1], [2], [3], [4], [5]]) for mode in ("failover", "shared")),
        *((mode, 2, 1 << 20, [[1, 2], [3, 4], [5]]) for mode in ("exclusive", "failover", "shared")),
        *((mode, 5, 1 << 20, [[1, 2, 3, 4, 5]]) for mode in ("exclusive", "shared")),
    ],
)
def test_replies_of_limited_size_give_each_event_once(
    client: Client, monkeypatch: pytest.MonkeyPatch, mode: str, most: int, most_bytes: int, expected: list[list[int]]
) -> None:
    """What a reply has no room for comes with the next one, at once."""
    create(client, mode=mode)
    for number, size in enumerate((100, 20_000, 4_000, 4_000, 4_000), 1):
        client.ok({"insert": "orders", "documents": [{"_id": number, "x": "x" * size}]}, "shop")
    first = read(client, maxEvents=1)
    acks = {"tokens": tokens(first)} if mode == "shared" else {"token": first["next"]}
    ack(client, first, **acks)
    monkeypatch.setattr(consumer_reads, "MOST_BYTES", most_bytes)
    admin(client, "Seek", to="oldest")
    found: list[list[object]] = []
    while (reply := read(client, maxEvents=most))["events"]:
        if events := [event for event in reply["events"] if event["operationType"] == "insert"]:
            found.append(ids({"events": events}))
        if mode == "shared":
            assert reply["outstanding"] == len(reply["events"])
            ack(client, reply, tokens=tokens(reply))
        else:
            ack(client, reply, token=reply["next"])
    assert found == expected


def test_what_a_filter_leaves_out_moves_the_position_now_and_then(client: Client, member: RunningMember) -> None:
    create(client, filter={"operationType": "delete"})
    insert(client, 1, 2)
    before = read(client)
    assert before["position"] < before["next"]
    client.rig.wait(10)
    assert read(client)["position"] >= before["next"]
    read(client)
    assert client.ok({"replSetConsumers": "c"}, "admin")["consumers"][0]["lagSecs"] == 0


def test_events_that_are_not_committed_are_not_shown(client: Client, rig: Rig) -> None:
    create(client)
    read(client)
    rig.stop_disk()
    client.ok({"insert": "orders", "documents": [{"_id": 1}], "writeConcern": {"w": 1}}, "shop")
    found = read(client)
    assert found["events"] == []
    later = str(behind(rig.newest()))
    assert refused(client, "Ack", generation=found["generation"], token=later) == ErrorCode.BAD_VALUE
    rig.start_disk()
    assert ids(read(client)) == [1]


def test_a_new_primary_waits_until_it_knows_that_what_was_read_is_committed(client: Client, rig: Rig) -> None:
    """Another member may know of a later commit point than the one that was elected."""
    create(client)
    insert(client, 1)
    found = read(client)
    rig.stop_disk()
    client.ok({"insert": "orders", "documents": [{"_id": 2}], "writeConcern": {"w": 1}}, "shop")
    token = str(behind(rig.newest()))
    acknowledging = {"replSetConsumerAck": "c", "generation": found["generation"], "token": token}
    assert client.code(acknowledging, "admin") == ErrorCode.BAD_VALUE, "it was never shown"
    rig.do(rig.lead_again())
    waiting = client.begin(acknowledging, "admin")
    rig.wait(1)
    assert not waiting.done()
    rig.start_disk()
    assert client.decoded(waiting)["position"] == token


def test_operations_of_a_transaction_come_in_order_and_one_by_one(client: Client) -> None:
    create(client)
    session: dict[str, Any] = {"lsid": {"id": _uuid()}, "txnNumber": Int64(1), "autocommit": False}
    documents = [{"_id": 1}, {"_id": 2}, {"_id": 3}]
    client.ok({"insert": "orders", "documents": documents, "startTransaction": True, **session}, "shop")
    client.ok({"commitTransaction": 1, **session}, "admin")
    first = read(client, maxEvents=1)
    ack(client, first, token=first["next"])
    assert (ids(first), ids(read(client))) == ([1], [2, 3])


def _uuid() -> object:
    from replset.bson import Binary

    return Binary(bytes(range(16)), 4)


# --- several readers ----------------------------------------------------------------------------------------------


def test_an_exclusive_consumer_has_one_reader(client: Client, member: RunningMember) -> None:
    create(client)
    insert(client, 1)
    mine = read(client, "a")
    reply = client.run({"replSetConsumerRead": "c", "reader": "b"}, "admin")
    assert (reply["code"], reply["holder"]) == (ErrorCode.CONSUMER_TAKEN, "a")
    client.rig.wait(TIMEOUT_MS / 1000)
    theirs = read(client, "b")
    assert ids(theirs) == [1]
    assert refused(client, "Ack", generation=mine["generation"], token=mine["next"]) == ErrorCode.CONSUMER_MOVED
    ack(client, theirs, token=theirs["next"])
    admin(client, "Nack", generation=theirs["generation"], leave=True)
    assert ids(read(client, "a")) == []


def test_a_failover_consumer_goes_to_the_next_reader(client: Client, member: RunningMember) -> None:
    create(client, mode="failover")
    insert(client, 1)
    assert ids(read(client, "a")) == [1]
    waiting = read(client, "b")
    assert (waiting["active"], waiting["holder"], waiting["events"]) == (False, "a", [])
    client.rig.wait(TIMEOUT_MS / 1000)
    assert ids(read(client, "b")) == [1]
    client.rig.do(client.rig.lead_again())  # another primary, or the same one again: it gives the holder a whole lease
    client.rig.wait(TIMEOUT_MS / 1000)
    assert read(client, "a")["active"] is False
    client.rig.wait(TIMEOUT_MS / 1000)
    assert read(client, "a")["active"] is True


def test_what_is_given_back_comes_again_later(client: Client, member: RunningMember) -> None:
    create(client)
    insert(client, 1)
    found = read(client)
    admin(client, "Nack", generation=found["generation"], delayMS=1_000)
    assert ids(read(client)) == []
    client.rig.wait(1)
    assert ids(read(client)) == [1]


def test_a_delay_outlives_the_primary_and_the_reader(client: Client, member: RunningMember) -> None:
    create(client)
    insert(client, 1, 2)
    found = read(client)
    admin(client, "Nack", generation=found["generation"], delayMS=1_000, leave=True, reader="a")
    assert ids(read(client, "b")) == []
    client.rig.do(client.rig.lead_again())
    assert ids(read(client, "b")) == [], "the next primary waits, too, from when it first looks"
    client.rig.wait(0.9)
    assert ids(read(client, "b")) == []
    client.rig.wait(0.2)
    found = read(client, "b")
    ack(client, found, token=tokens(found)[0])
    client.rig.do(client.rig.lead_again())
    assert ids(read(client, "b")) == [2], "it is over"


def test_a_shared_consumer_gives_each_event_to_one_reader(client: Client, member: RunningMember) -> None:
    create(client, mode="shared")
    insert(client, 1, 2, 3, 4)
    mine, theirs = read(client, "a", maxEvents=2), read(client, "b", maxEvents=1)
    assert (ids(mine), ids(theirs), theirs["outstanding"]) == ([1, 2], [3], 3)
    many = ["no token"] * (MOST_OUTSTANDING + 1)
    assert refused(client, "Ack", generation=mine["generation"], tokens=many) == ErrorCode.BAD_VALUE
    ack(client, theirs, tokens=tokens(theirs))
    ack(client, mine, tokens=tokens(mine)[:1])
    assert admin(client, "Nack", generation=mine["generation"], tokens=tokens(mine), delayMS=500)["n"] == 1
    assert ids(read(client, "b")) == [4]
    client.rig.wait(0.5)
    again = read(client, "b")
    assert (ids(again), again["deliveries"]) == ([2], [2])
    shown = client.ok({"replSetConsumers": 1}, "admin")["consumers"][0]
    assert (shown["outstanding"], shown["ackedAhead"]) == (2, 1)
    client.rig.do(
        client.rig.lead_again()
    )  # the next primary knows what is acknowledged, and nothing of what readers have
    assert ids(read(client, "a")) == [2, 4]
    assert admin(client, "Nack", generation=mine["generation"], reader="a", leave=True)["n"] == 2
    last = read(client, "c")
    ack(client, last, tokens=[event["_id"] for event in last["events"]])
    assert client.ok({"replSetConsumers": 1}, "admin")["consumers"][0]["ackedAhead"] == 0


def test_a_failed_acknowledgement_is_forgotten(
    client: Client, member: RunningMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(client, mode="shared")
    insert(client, 1, 2)
    found = read(client, "a")
    more = {"generation": found["generation"], "tokens": tokens(found)}

    async def fails(_operation: object) -> None:
        raise NotWritablePrimaryError()

    with monkeypatch.context() as patch:
        patch.setattr(member, "write", fails)
        assert refused(client, "Ack", **more) == ErrorCode.NOT_WRITABLE_PRIMARY
    client.rig.wait(TIMEOUT_MS / 1000)
    assert ids(read(client, "b")) == [1, 2]


# --- positions ----------------------------------------------------------------------------------------------------


def test_a_consumer_begins_and_seeks_where_it_is_told(client: Client, member: RunningMember) -> None:
    client.ok({"create": "orders"}, "shop")
    insert(client, 1)
    second = Timestamp(member.store.last_applied.seconds + 1, 1)
    client.rig.wait(2)
    insert(client, 2)
    begins: list[tuple[object, list[object]]] = [
        ("now", []),
        ("oldest", [1, 2]),
        (second, [2]),
        (DateTime(second.time * 1_000), [2]),
        (str(in_front_of(member.store.last_applied.ts)), [2]),
        ({"_data": str(behind(member.store.last_applied))}, []),
        (Timestamp(1, 1), [1, 2]),
    ]
    for number, (begin, expected) in enumerate(begins):
        admin(client, "Create", f"c{number}", ns="shop.orders", startAt=begin)
        assert ids(admin(client, "Read", f"c{number}", reader="a")) == expected, begin
        admin(client, "Seek", "c0", to=begin)
        assert ids(admin(client, "Read", "c0", reader="a")) == expected, begin


def test_a_seek_ends_what_was_read_before(client: Client) -> None:
    create(client, mode="shared")
    insert(client, 1, 2)
    found = read(client)
    ack(client, found, tokens=tokens(found))
    admin(client, "Seek", to="oldest")
    assert refused(client, "Ack", generation=found["generation"], tokens=tokens(found)) == ErrorCode.CONSUMER_MOVED
    assert [event["operationType"] for event in read(client)["events"]][-1] == "insert"


@pytest.mark.parametrize(
    ("command", "more", "code"),
    [
        ("Create", {"ns": "config.x"}, ErrorCode.INVALID_NAMESPACE),
        ("Create", {"ns": "shop.system.users"}, ErrorCode.INVALID_NAMESPACE),
        ("Create", {"ns": "shop."}, ErrorCode.INVALID_NAMESPACE),
        ("Create", {"mode": "key"}, ErrorCode.BAD_VALUE),
        ("Create", {"filter": {"$or": 1}}, ErrorCode.BAD_VALUE),
        ("Create", {"filter": {"a": "x" * 20_000}}, ErrorCode.BAD_VALUE),
        ("Create", {"mode": "shared"}, ErrorCode.NAMESPACE_EXISTS),
        ("Create", {"name": "a b"}, ErrorCode.BAD_VALUE),
        ("Create", {"name": "d", "startAt": "yesterday"}, ErrorCode.INVALID_RESUME_TOKEN),
        ("Create", {"name": "d", "startAt": Timestamp(4_000_000_000, 1)}, ErrorCode.BAD_VALUE),
        ("Read", {"reader": ""}, ErrorCode.BAD_VALUE),
        ("Read", {"reader": "a", "after": "x", "generation": 7}, ErrorCode.INVALID_RESUME_TOKEN),
        ("Read", {"reader": "a", "after": str(in_front_of(1))}, ErrorCode.MISSING_FIELD),
        ("Read", {"name": "unknown", "reader": "a"}, ErrorCode.CONSUMER_NOT_FOUND),
        ("Ack", {"generation": 7, "token": str(in_front_of(1))}, ErrorCode.CONSUMER_MOVED),
        ("Ack", {"generation": 7, "token": "x"}, ErrorCode.INVALID_RESUME_TOKEN),
        ("Nack", {"generation": 7}, ErrorCode.CONSUMER_MOVED),
        ("Remove", {"name": "unknown"}, ErrorCode.CONSUMER_NOT_FOUND),
    ],
)
def test_refusals(client: Client, command: str, more: dict[str, Any], code: int) -> None:
    create(client)
    given = dict(more)
    name = given.pop("name", "c")
    given = {"ns": "shop.orders", "ackTimeoutMS": TIMEOUT_MS} | given if command == "Create" else given
    assert refused(client, command, name, **given) == code


def test_texts_have_limits(client: Client) -> None:
    create(client)
    longest, rest = "n" * 128, "x" * (LARGEST_FILTER - len(encode({"a": ""})))
    for name in (longest, "A-1_b.C"):
        admin(client, "Create", name, ns="shop")
    for name in (longest + "n", "", "a/b", "a b"):
        assert refused(client, "Create", name, ns="shop") == ErrorCode.BAD_VALUE
    admin(client, "Create", "filtered", ns="shop", filter={"a": rest})
    assert refused(client, "Create", "larger", ns="shop", filter={"a": rest + "x"}) == ErrorCode.BAD_VALUE
    assert read(client, "r" * 128)["events"] == []
    assert refused(client, "Read", reader="r" * 129) == ErrorCode.BAD_VALUE
    for ns, database, collection in (("", "", ""), ("shop", "shop", ""), ("shop.a.b", "shop", "a.b")):
        admin(client, "Create", f"of-{ns}", ns=ns)
        found = client.member[ConsumerDirectory].find(f"of-{ns}")
        assert (found.database, found.collection) == (database, collection)
    for ns in (".orders", "shop.", "sh$op", "admin", "config", "local", "shop.system.views"):
        assert refused(client, "Create", "odd", ns=ns) == ErrorCode.INVALID_NAMESPACE, ns


def test_a_set_has_so_many_consumers(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were removed count no more."""
    monkeypatch.setattr(consumer_commands, "MOST_CONSUMERS", 2)
    for name in ("a", "b"):
        admin(client, "Create", name, ns="shop")
    for _ in range(2):
        assert refused(client, "Create", "c", ns="shop") == ErrorCode.OVERLOADED
        admin(client, "Create", "b", ns="shop")
        admin(client, "Remove", "b")
        admin(client, "Create", "b", ns="shop")


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
@pytest.mark.parametrize(("wait_ms", "limit", "ends_ms"), [(0, None, 0), (700, None, 700), (9_000, 1_000, 500)])
def test_a_read_waits_as_long_as_it_may(
    client: Client, mode: str, wait_ms: int, limit: int | None, ends_ms: int
) -> None:
    """By half of what the whole command may take, so that the answer comes. An event ends the wait."""
    create(client, mode=mode)
    read(client)
    loop, more = client.rig.cluster.loop, {} if limit is None else {"maxTimeMS": limit}
    before = loop.now_ms
    assert read(client, waitMS=wait_ms, **more)["events"] == []
    assert ends_ms <= loop.now_ms - before <= ends_ms + 50
    waiting = client.begin({"replSetConsumerRead": "c", "reader": "a", "waitMS": 20_000}, "admin")
    client.rig.wait(12)
    insert(client, 1)
    assert ids(client.decoded(waiting)) == [1]
    assert loop.now_ms - before < ends_ms + 13_000


def test_a_consumer_is_made_once_and_removed(client: Client) -> None:
    create(client, filter={"operationType": "insert"})
    insert(client, 1)
    admin(client, "Create", ns="shop.orders", ackTimeoutMS=TIMEOUT_MS, filter={"operationType": "insert"})
    assert ids(read(client)) == [1], "the position stays"
    before = read(client)
    admin(client, "Remove")
    assert client.ok({"replSetConsumers": 1}, "admin")["consumers"] == []
    create(client)
    assert refused(client, "Ack", generation=before["generation"], token=before["next"]) == ErrorCode.CONSUMER_MOVED
    assert client.code({"insert": "consumers", "documents": [{}]}, "config") == ErrorCode.INVALID_NAMESPACE


def test_a_consumer_made_again_has_a_generation_of_its_own(client: Client, member: RunningMember) -> None:
    """A clock was ahead, and millions of entries are of one second since."""
    for increment in (1_500_000, 9_000_000):
        optime = pack_ts(1_890_000_000, increment)
        client.rig.write(partial(append_at_least, after=optime))
        create(client)
        before = member[ConsumerDirectory].find("c").generation
        admin(client, "Remove")
        create(client)
        assert before < member[ConsumerDirectory].find("c").generation < 1 << 53
        admin(client, "Remove")
    assert member[ConsumerDirectory].all() == []
    assert member[ConsumerDirectory].needed() is None


# --- the oplog ----------------------------------------------------------------------------------------------------


def test_the_oplog_is_kept_for_a_consumer_up_to_a_limit(client: Client, member: RunningMember) -> None:
    create(client)
    store = member.store
    position = member[ConsumerDirectory].find("c").at
    insert(client, *range(50))
    store.options = _limits(store, 100, 1 << 20)
    assert member[ConsumerDirectory].needed() == position
    while remove_old_data(store, member.clock.now(), member[ConsumerDirectory].needed()):
        pass
    assert store.oldest.ts == position.ts
    assert len(ids(read(client))) == 50
    store.options = _limits(store, 100, 1_000)
    while remove_old_data(store, member.clock.now(), member[ConsumerDirectory].needed()):
        pass
    store.options = _limits(store, 1 << 20, 1 << 20)
    reply = client.run({"replSetConsumerRead": "c", "reader": "a"}, "admin")
    assert reply["code"] == ErrorCode.CHANGE_STREAM_HISTORY_LOST
    assert client.ok({"replSetConsumers": "c"}, "admin")["consumers"][0]["isLost"] is True
    admin(client, "Seek", to=reply["oldestToken"])
    left = ids(read(client))
    assert 0 < len(left) < 25
    assert left == list(range(50 - len(left), 50))


def test_behind_the_oplog_a_consumer_goes_on_from_the_archive(client: Client, member: RunningMember) -> None:
    create(client)
    insert(client, *range(20))
    store = member.store
    member.history.older = Archived(store.oplog_after(OPTIME_NULL, limit=1_000, max_bytes=1 << 30))
    store.options = _limits(store, 100, 0)
    while remove_old_data(store, member.clock.now(), member[ConsumerDirectory].needed()):
        pass
    assert store.trimmed_through > member[ConsumerDirectory].find("c").at.ts
    assert "isLost" not in client.ok({"replSetConsumers": "c"}, "admin")["consumers"][0]
    first = read(client, maxEvents=5)
    ack(client, first, token=first["next"])
    assert [*ids(first), *ids(read(client))] == list(range(20))
    admin(client, "Seek", to="oldest")
    assert len(ids(read(client))) == 20


class Archived:
    """An archive that holds these entries, from the first one on."""

    missing_through = 0

    def __init__(self, rows: list[OplogRow]) -> None:
        self._rows = rows
        self.oldest: OpTime | None = rows[0].optime

    async def after(self, position: OpTime, *, limit: int, max_bytes: int) -> list[OplogRow]:
        return [row for row in self._rows if row.ts > position.ts][:limit]


def _limits(store: Any, size: int, lagging: int) -> Any:
    from dataclasses import replace

    return replace(store.options, oplog_max_bytes=size, oplog_lagging_bytes=lagging, snapshot_history_s=0)


def test_nothing_is_needed_without_a_consumer(client: Client, member: RunningMember) -> None:
    assert member[ConsumerDirectory].needed() is None
    create(client)
    assert member[ConsumerDirectory].needed() is not None
    admin(client, "Remove")
    member[ConsumerDirectory].needed()
    assert member[ConsumerDirectory].needed() is None


def test_the_floor_follows_what_is_committed(member: RunningMember) -> None:
    """A position that may be taken back does not let anything go; one that is new keeps all from it on at once."""
    floor, store = CommittedFloor(), Any
    store = type("FakeStore", (), {"rollback_id": 1, "last_applied": OpTime(1, 100)})()
    assert floor.advance(store, OpTime(1, 99), OpTime(1, 50)) == OPTIME_NULL
    assert floor.advance(store, OpTime(1, 100), OpTime(1, 60)) == OpTime(1, 50)
    store.last_applied = OpTime(1, 110)
    assert floor.advance(store, OpTime(1, 105), OpTime(1, 70)) == OpTime(1, 50)
    assert floor.advance(store, OpTime(1, 105), OpTime(1, 40)) == OpTime(1, 40)
    assert floor.advance(store, OpTime(1, 110), OpTime(1, 80)) == OpTime(1, 70)
    store.rollback_id = 2
    assert floor.advance(store, OpTime(1, 109), OpTime(1, 70)) == OPTIME_NULL


def test_tokens_order_positions() -> None:
    assert str(in_front_of(pack_ts(5, 1))) < str(behind(OpTime(1, pack_ts(5, 1)))) < str(in_front_of(pack_ts(5, 2)))
    assert Token.parse(str(behind(OpTime(3, 9)))).read_after == OpTime(3, 9)
