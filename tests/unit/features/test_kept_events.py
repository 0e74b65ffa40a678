"""Events of shared consumers that are held until their time, and parked after too many refusals."""

from __future__ import annotations

from typing import Any

import pytest

from replset.bson import DateTime, RawDocument
from replset.errors import ErrorCode, NotWritablePrimaryError
from replset.features.consumers import consumer_reads, kept_events
from replset.features.consumers.consumer_directory import ConsumerDirectory
from replset.member.member import RunningMember
from replset.operations.write_concern import WriteConcernFailure
from tests.rig import Client, note_waits
from tests.unit.features.test_consumers import TIMEOUT_MS, ack, admin, create, ids, insert, read, refused, tokens

LATER = {"mode": "shared", "deliverAfter": "sendAt"}
PARKING = {"mode": "shared", "maxRefusals": 2}


def insert_for(client: Client, member: RunningMember, **seconds: float) -> None:
    """Insert a document for each name, to be delivered after so many seconds."""
    wall_ms = member.clock.wall_ms()
    documents = [{"_id": name, "sendAt": DateTime(wall_ms + int(after * 1000))} for name, after in seconds.items()]
    client.ok({"insert": "orders", "documents": documents}, "shop")


def status(client: Client) -> dict[str, Any]:
    found: dict[str, Any] = client.ok({"replSetConsumers": "c"}, "admin")["consumers"][0]
    return found


def nack(client: Client, reply: dict[str, Any], **more: Any) -> dict[str, Any]:
    return admin(client, "Nack", generation=reply["generation"], tokens=tokens(reply), **more)


def parked(client: Client, **more: Any) -> dict[str, Any]:
    return admin(client, "Parked", **more)


# --- deliverAfter -------------------------------------------------------------------------------------------------


def test_an_event_is_given_once_its_time_is_over(client: Client, member: RunningMember) -> None:
    create(client, **LATER)
    insert_for(client, member, a=60, b=-1, c=20)
    insert(client, 1)
    first = read(client)
    assert ids(first) == ["b", 1]
    ack(client, first, tokens=tokens(first))
    assert (status(client)["held"], status(client)["parked"], status(client)["lagSecs"]) == (2, 0, 0)
    client.rig.wait(19)
    assert ids(read(client)) == []
    client.rig.wait(1)
    second = read(client)
    assert (ids(second), second["deliveries"]) == (["c"], [1])
    ack(client, second, tokens=tokens(second))
    assert (ids(read(client)), status(client)["held"]) == ([], 1)
    client.rig.wait(41)
    assert ids(read(client)) == ["a"]


def test_a_read_that_waits_gets_it_at_its_time(client: Client, member: RunningMember) -> None:
    create(client, **LATER)
    insert_for(client, member, a=3)
    begin = member.clock.now()
    assert ids(read(client, waitMS=10_000)) == ["a"]
    assert 3_000 <= member.clock.now() - begin < 4_000


def test_held_events_need_no_oplog_and_outlive_the_primary(client: Client, member: RunningMember) -> None:
    create(client, **LATER)
    insert_for(client, member, a=30, b=40)
    read(client)
    insert(client, 1)
    found = read(client)
    ack(client, found, tokens=tokens(found))
    assert member[ConsumerDirectory].find("c").at.ts >= member.store.oldest.ts
    assert member[ConsumerDirectory].find("c").acked == ()
    client.rig.do(client.rig.lead_again())
    client.rig.wait(30)
    mine = read(client)
    assert ids(mine) == ["a"]
    client.rig.do(client.rig.lead_again())
    ack(client, mine, tokens=tokens(mine))  # the primary that gave it is none any more
    client.rig.wait(10)
    assert ids(read(client)) == ["b"]


def test_a_document_that_changed_meanwhile_is_given_as_it_was(client: Client, member: RunningMember) -> None:
    """Its later events do not wait for it, and a drop neither."""
    create(client, **LATER)
    insert_for(client, member, a=5)
    client.ok({"update": "orders", "updates": [{"q": {"_id": "a"}, "u": {"$set": {"x": 1}}}]}, "shop")
    client.ok({"drop": "orders"}, "shop")
    first = read(client)
    assert [event["operationType"] for event in first["events"]] == ["update"]
    ack(client, first, tokens=tokens(first))
    drop = read(client)
    assert [event["operationType"] for event in drop["events"]] == ["drop"]
    ack(client, drop, tokens=tokens(drop))
    client.rig.wait(5)
    (event,) = read(client)["events"]
    assert (event["operationType"], set(event["fullDocument"])) == ("insert", {"_id", "sendAt"})


@pytest.mark.parametrize("value", [None, "tomorrow", 9e18, {"a": 1}, [DateTime(1 << 60)], DateTime(-1 << 60)])
def test_what_is_no_date_ahead_is_given_at_once(client: Client, value: object) -> None:
    create(client, **LATER)
    client.ok({"insert": "orders", "documents": [{"_id": 1, "sendAt": value}]}, "shop")
    assert ids(read(client)) == [1]


def test_the_date_may_be_deeper_and_as_far_as_dates_go(client: Client) -> None:
    create(client, mode="shared", deliverAfter="mail.at")
    documents = [{"_id": 1, "mail": {"at": DateTime((1 << 63) - 1)}}, {"_id": 2, "mail": 5}, {"_id": 3, "mail.at": 1}]
    client.ok({"insert": "orders", "documents": documents}, "shop")
    assert (ids(read(client)), status(client)["held"]) == ([2, 3], 1)


def test_a_filter_leaves_out_what_would_be_held(client: Client, member: RunningMember) -> None:
    create(client, **LATER, filter={"fullDocument._id": "b"})
    insert_for(client, member, a=5, b=5)
    read(client)
    assert status(client)["held"] == 1


def test_many_are_held_in_one_read_and_not_over_the_limit(
    client: Client, member: RunningMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the limit the consumer waits in front of the next one; the oplog is kept meanwhile."""
    monkeypatch.setattr(kept_events, "MOST_KEPT", 250)
    create(client, **LATER)
    insert_for(client, member, **{f"n{number:03}": 9 for number in range(260)})
    insert(client, 1)
    assert (ids(read(client)), status(client)["held"]) == ([], 250)
    assert ids(read(client, waitMS=1_000)) == []
    client.rig.wait(9)
    found = read(client, maxEvents=20)
    assert ids(found) == [f"n{number:03}" for number in range(20)]
    ack(client, found, tokens=tokens(found))
    seen: list[object] = []
    while (found := read(client))["events"]:
        seen += ids(found)
        ack(client, found, tokens=tokens(found))
    assert (seen[-1], len(seen), status(client)["held"]) == (1, 241, 0)


def test_a_hold_that_no_majority_has_is_done_again(
    client: Client, member: RunningMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(client, **LATER)
    insert_for(client, member, a=5, b=-1)
    with monkeypatch.context() as patch:
        note_waits(patch, WriteConcernFailure(ErrorCode.WRITE_CONCERN_TIMEOUT, "too slow"))
        assert refused(client, "Read", reader="a") == ErrorCode.WRITE_CONCERN_TIMEOUT

    async def fails(_operation: object) -> None:
        raise NotWritablePrimaryError()

    insert_for(client, member, c=5)
    with monkeypatch.context() as patch:
        patch.setattr(member, "write", fails)
        assert refused(client, "Read", reader="b") == ErrorCode.NOT_WRITABLE_PRIMARY
    assert ids(read(client, "a")) == ["b"]
    assert (ids(read(client, "a")), status(client)["held"]) == ([], 2)
    client.rig.wait(TIMEOUT_MS / 1000)
    assert sorted(map(str, ids(read(client, "b")))) == ["a", "b", "c"]


def test_an_event_that_is_too_large_to_be_held_is_parked(
    client: Client, member: RunningMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_events, "LARGEST_KEPT", 100)
    create(client, **LATER)
    insert_for(client, member, a=60)
    assert ids(read(client)) == []
    (row,) = (found := parked(client))["parked"]
    assert (row["tooLarge"], row["refusals"], "too large" in row["reasons"][0]["reason"]) == (True, 0, True)
    assert found["events"] == [{"_id": {"_data": row["id"]}}]
    assert refused(client, "Unpark", id=row["id"]) == ErrorCode.BAD_VALUE
    assert admin(client, "Unpark", all=True)["n"] == 0
    assert admin(client, "Forget", all=True)["n"] == 1


def test_what_is_acknowledged_is_not_held_by_a_primary_whose_clock_is_behind(
    client: Client, member: RunningMember
) -> None:
    create(client, **LATER)
    insert(client, 1)
    insert_for(client, member, a=-1, b=-1)
    found = read(client)
    ack(client, found, tokens=tokens(found)[1:2])
    client.rig.do(client.rig.lead_again())
    member.clock.set_wall_ahead(-60_000)
    first = read(client)
    assert (ids(first), status(client)["held"]) == ([1], 1)
    ack(client, first, tokens=tokens(first))
    client.rig.wait(61)
    assert ids(read(client)) == ["b"]


# --- maxRefusals --------------------------------------------------------------------------------------------------


def test_an_event_that_is_refused_too_often_is_parked(client: Client, member: RunningMember) -> None:
    create(client, **PARKING)
    insert(client, 1, 2)
    assert nack(client, read(client, "a", maxEvents=1), reason="no such street")["parked"] == 0
    again = read(client, "b", maxEvents=1)
    assert (ids(again), again["deliveries"]) == ([1], [2])
    assert nack(client, again, reason="still none")["parked"] == 1
    assert (status(client)["parked"], status(client)["held"]) == (1, 0)
    rest = read(client, "a")
    assert ids(rest) == [2], "it holds up nobody"
    ack(client, rest, tokens=tokens(rest))
    assert member[ConsumerDirectory].find("c").acked == ()
    found = parked(client)
    (row,) = found["parked"]
    assert (row["id"], row["refusals"], ids(found)) == (tokens(again)[0], 2, [1])
    assert [(one["reader"], one["reason"]) for one in row["reasons"]] == [("a", "no such street"), ("b", "still none")]
    assert found["events"][0] == again["events"][0]
    ack(client, again, tokens=tokens(again))
    assert status(client)["parked"] == 0, "its reader was slow, and has done it"


def test_silence_is_a_refusal_and_leaving_is_none(client: Client) -> None:
    create(client, **PARKING)
    insert(client, 1)
    for _ in range(2):
        assert ids(read(client)) == [1]
        client.rig.wait(TIMEOUT_MS / 1000)
    assert ids(read(client)) == []
    assert [one["reason"] for one in parked(client)["parked"][0]["reasons"]] == ["the reader was silent"] * 2
    insert(client, 2)
    for _ in range(3):
        found = read(client)
        assert ids(found) == [2]
        admin(client, "Nack", generation=found["generation"], reader="a", leave=True)


def test_parked_events_are_put_back_or_forgotten(client: Client) -> None:
    create(client, **PARKING)
    insert(client, 1, 2, 3)
    for _ in range(2):
        nack(client, read(client))
    rows = parked(client)["parked"]
    assert len(rows) == 3
    assert [row["id"] for row in parked(client, after=rows[0]["id"])["parked"]] == [row["id"] for row in rows[1:]]
    assert admin(client, "Unpark", id=rows[1]["id"])["n"] == 1
    assert refused(client, "Unpark", id=rows[1]["id"]) == ErrorCode.NO_SUCH_KEY
    assert admin(client, "Forget", id=rows[0]["id"])["n"] == 1
    found = read(client)
    assert (ids(found), found["deliveries"]) == ([2], [1])
    nack(client, found)
    client.rig.do(client.rig.lead_again())
    for _ in range(2):
        assert ids(read(client)) == [2], "its refusals are counted anew"
        nack(client, found)
    assert [row["id"] for row in parked(client)["parked"]] == [rows[1]["id"], rows[2]["id"]]
    assert admin(client, "Unpark", all=True)["n"] == 2
    last = read(client)
    assert sorted(map(str, ids(last))) == ["2", "3"]
    ack(client, last, tokens=tokens(last))
    assert (status(client)["held"], status(client)["parked"]) == (0, 0)
    assert ids(read(client)) == []
    for more in ({}, {"all": True, "id": rows[0]["id"]}, {"all": False}):
        assert refused(client, "Unpark", **more) == refused(client, "Forget", **more) == ErrorCode.BAD_VALUE


def test_pages_of_parked_events(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_events, "AT_ONCE", 4)
    create(client, **PARKING)
    insert(client, *range(10))
    for _ in range(2):
        nack(client, read(client))
    read(client)
    read(client)
    shown, more = list[object](), dict[str, Any]()
    while True:
        found = parked(client, **more)
        shown += ids(found)
        if "next" not in found:
            break
        more = {"after": found["next"]}
    assert shown == list(range(10))
    assert admin(client, "Unpark", all=True)["n"] == 10
    assert len(read(client)["events"]) == 10


def test_where_too_many_are_parked_events_come_again(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_events, "MOST_KEPT", 1)
    create(client, **PARKING)
    insert(client, 1, 2)
    for _ in range(2):
        nack(client, read(client, maxEvents=1))
    for _ in range(4):
        found = read(client)
        assert ids(found) == [2]
        nack(client, found)
    insert(client, 3)
    admin(client, "Unpark", all=True)
    assert ids(read(client)) == [1, 2, 3]


def test_what_was_acknowledged_meanwhile_is_not_parked(
    client: Client, member: RunningMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(client, **PARKING)
    insert(client, 1)
    found = read(client)
    nack(client, found)
    real = consumer_reads.EventSource.event

    async def event(self: Any, token: str, until: Any) -> Any:
        member[ConsumerDirectory].state.windows["c"].acknowledge([token])
        return await real(self, token, until)

    read(client)
    monkeypatch.setattr(consumer_reads.EventSource, "event", event)
    assert nack(client, found)["parked"] == 0
    assert parked(client)["parked"] == []


def test_a_parked_event_is_acknowledged_with_the_same_write(
    client: Client, member: RunningMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(client, **PARKING)
    insert(client, 1)
    nack(client, read(client))
    found = read(client)
    before = member.store.last_applied
    assert nack(client, found)["parked"] == 1
    rows = member.store.oplog_after(before, limit=100, max_bytes=1 << 20)
    namespaces = [row.ns for row in rows if row.op != "c"]
    assert kept_events.PARKED_NS in namespaces
    assert "config.consumers" in namespaces
    coll = member.store.collection(kept_events.PARKED_NS)
    assert coll is not None
    (row,) = member.store.query(lambda connection: kept_events.page(connection, coll, "c"))[0]
    assert RawDocument(row[1]).get("_id") == f"c/{tokens(found)[0]}"


# --- both ---------------------------------------------------------------------------------------------------------


def test_a_held_event_that_is_refused_is_parked(client: Client, member: RunningMember) -> None:
    create(client, **LATER, maxRefusals=1)
    insert_for(client, member, a=5)
    read(client)
    client.rig.wait(5)
    assert nack(client, read(client))["parked"] == 1
    assert (status(client)["held"], status(client)["parked"]) == (0, 1)


def test_removing_a_consumer_removes_what_is_kept(
    client: Client, member: RunningMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_events, "AT_ONCE", 2)
    admin(client, "Create", "c-2", ns="shop.orders", **LATER)
    create(client, **LATER, maxRefusals=1)
    insert_for(client, member, a=50, b=50, c=50, d=-1)
    nack(client, read(client))
    admin(client, "Read", "c-2", reader="a")
    admin(client, "Remove")
    create(client, **LATER, maxRefusals=1)
    assert (status(client)["held"], status(client)["parked"]) == (0, 0)
    assert kept_events.count(member.store, kept_events.HELD_NS, "c-2") == 3


def test_a_seek_leaves_what_is_kept(client: Client, member: RunningMember) -> None:
    create(client, **LATER)
    insert_for(client, member, a=50)
    read(client)
    admin(client, "Seek", to="oldest")
    read(client)
    assert status(client)["held"] == 1
    client.rig.wait(50)
    assert [event["documentKey"]["_id"] for event in read(client)["events"] if "documentKey" in event] == ["a"]


@pytest.mark.parametrize(
    ("command", "more", "code"),
    [
        ("Create", {"deliverAfter": "at"}, ErrorCode.BAD_VALUE),
        ("Create", {"maxRefusals": 1, "mode": "failover"}, ErrorCode.BAD_VALUE),
        ("Create", {"deliverAfter": "", "mode": "shared"}, ErrorCode.BAD_VALUE),
        ("Create", {"deliverAfter": "a..b", "mode": "shared"}, ErrorCode.BAD_VALUE),
        ("Create", {"deliverAfter": "a" * 257, "mode": "shared"}, ErrorCode.BAD_VALUE),
        ("Create", {"deliverAfter": 1, "mode": "shared"}, ErrorCode.TYPE_MISMATCH),
        ("Create", {"maxRefusals": 0, "mode": "shared"}, ErrorCode.NUMBER_OUT_OF_RANGE),
        ("Create", {"maxRefusals": 101, "mode": "shared"}, ErrorCode.NUMBER_OUT_OF_RANGE),
        ("Create", {"name": "c", "mode": "shared", "maxRefusals": 3}, ErrorCode.NAMESPACE_EXISTS),
        ("Nack", {"generation": 7, "reason": "x" * 1_025}, ErrorCode.BAD_VALUE),
        ("Parked", {"name": "unknown"}, ErrorCode.CONSUMER_NOT_FOUND),
        ("Unpark", {"name": "unknown", "all": True}, ErrorCode.CONSUMER_NOT_FOUND),
        ("Forget", {"name": "c", "id": "x"}, ErrorCode.INVALID_RESUME_TOKEN),
    ],
)
def test_refusals(client: Client, command: str, more: dict[str, Any], code: int) -> None:
    create(client, **PARKING)
    name = more.get("name", "d" if command == "Create" else "c")
    rest = {key: value for key, value in more.items() if key != "name"}
    given = {"ns": "shop.orders", "ackTimeoutMS": TIMEOUT_MS} | rest if command == "Create" else rest
    assert refused(client, command, name, **given) == code


def test_a_set_of_the_older_version_has_neither(client: Client) -> None:
    client.ok({"create": "orders"}, "shop")
    client.ok({"setFeatureCompatibilityVersion": "1.0", "confirm": True}, "admin")
    for options in (LATER, PARKING):
        assert refused(client, "Create", ns="shop.orders", **options) == ErrorCode.INVALID_OPTIONS
    create(client, mode="shared")
    client.ok({"setFeatureCompatibilityVersion": "1.1", "confirm": True}, "admin")
    admin(client, "Create", "later", ns="shop.orders", **LATER)
    lower = {"setFeatureCompatibilityVersion": "1.0", "confirm": True}
    assert client.run(lower, "admin")["errmsg"].count("consumer later has deliverAfter or maxRefusals") == 1
    admin(client, "Remove", "later")
    client.ok(lower, "admin")
