"""A find by `_id` is answered without a query and a cursor, and its answer is the same as with them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from replset.bson import Binary, DateTime, Decimal128, Int64, ObjectId, RawDocument, decode, encode, encode_key
from replset.member.member import RunningMember
from replset.operations.request import CommandRequest
from tests.rig import Client

OID = ObjectId("0123456789abcdef01234567")
IDS: list[Any] = [OID, "text", "tёxt", "", 1, 2.5, Int64(1 << 40), True, DateTime(5), Binary(b"x", 4), {"a": 1}, None]


def replies(client: Client, command: dict[str, Any], db: str = "test") -> tuple[bytes, bytes]:
    """The reply as the client gets it, and that of the general way, which a `skip` asks for."""
    found = []
    for extra in ({}, {"skip": 0}):
        body = RawDocument(encode({**command, **extra, "$db": db}))
        reply = client.reply(CommandRequest(db, body, {}, client.connection))
        assert isinstance(reply, bytes if not extra and is_simple(command) else dict)
        found.append(reply if isinstance(reply, bytes) else encode(reply))
    return found[0], found[1]


def is_simple(command: dict[str, Any]) -> bool:
    kinds = (ObjectId, str, int, float, DateTime)
    return isinstance(command["filter"].get("_id"), kinds) and command.get("limit", 1) >= 0


@pytest.fixture
def filled(client: Client) -> Client:
    client.ok({"insert": "c", "documents": [{"_id": value, "n": n} for n, value in enumerate(IDS)]})
    return client


@pytest.mark.parametrize("value", [*IDS, 1.0, Decimal128("2.5"), False, "none", 7, ObjectId(bytes(12))])
@pytest.mark.parametrize("more", [{}, {"limit": 1, "singleBatch": True}, {"batchSize": 1, "comment": "why"}])
def test_answers_as_the_general_way(filled: Client, value: Any, more: dict[str, Any]) -> None:
    first, second = replies(filled, {"find": "c", "filter": {"_id": value}, **more})

    assert first == second


def test_over_http_too(filled: Client) -> None:
    body = RawDocument(encode({"find": "c", "filter": {"_id": OID}, "limit": 1, "singleBatch": True}))
    request = CommandRequest("test", body, {}, filled.connection, "http")

    assert isinstance(filled.reply(request), bytes)


def test_a_filter_that_is_an_array_is_refused(filled: Client) -> None:
    command = encode({"find": "c", "filter": {"_id": 1}, "$db": "test"})
    body = RawDocument(command.replace(b"\x03filter\0", b"\x04filter\0"))
    reply = filled.reply(CommandRequest("test", body, {}, filled.connection))

    assert isinstance(reply, dict)
    assert reply["code"] == 14


def test_of_a_collection_that_is_not_there(filled: Client) -> None:
    first, second = replies(filled, {"find": "other", "filter": {"_id": OID}})

    assert first == second
    assert decode(first)["cursor"] == {"firstBatch": [], "id": 0, "ns": "test.other"}  # type: ignore[comparison-overlap]


@pytest.mark.parametrize("more", [{"limit": -1}, {"batchSize": -1}, {"limit": "1"}, {"singleBatch": "yes"}])
def test_errors_are_those_of_the_general_way(filled: Client, more: dict[str, Any]) -> None:
    command = {"find": "c", "filter": {"_id": OID}, **more}

    assert filled.code(command) == filled.code({**command, "skip": 0})


def test_no_document_with_batch_size_zero(filled: Client) -> None:
    reply = filled.ok({"find": "c", "filter": {"_id": OID}, "batchSize": 0})

    assert reply["cursor"]["firstBatch"] == []
    assert reply["cursor"]["id"] != 0


def test_malformed_filter(filled: Client) -> None:
    good = encode({"find": "c", "filter": {"_id": "text"}, "$db": "test"})
    bad = good.replace(b"\x05\0\0\0text\0", b"\x06\0\0\0text\0")
    reply = filled.rig.do(filled.dispatcher.run(CommandRequest("test", RawDocument(bad), {}, filled.connection)))

    assert isinstance(reply, dict)
    assert reply["code"] == 22


def test_other_members_of_local_are_found_the_general_way(filled: Client) -> None:
    reply = filled.ok({"find": "system.replset", "filter": {"_id": "rs0"}}, "local")

    assert [row["_id"] for row in reply["cursor"]["firstBatch"]] == ["rs0"]


def request_of(client: Client, command: dict[str, Any]) -> CommandRequest:
    return CommandRequest("test", RawDocument(encode({**command, "$db": "test"})), {}, client.connection)


def at_once(client: Client, command: dict[str, Any]) -> bytes | None:
    """Return the reply that the command gets without a task; None: it needs one."""
    request = request_of(client, command)
    row = client.dispatcher.at_once(request.body)
    waiter: asyncio.Future[bytes] = client.rig.cluster.loop.create_future()
    if row is None or not client.dispatcher.begin(row, request, waiter):
        assert not waiter.done()
        return None
    return waiter.result()


def test_is_answered_at_once_with_the_same_reply_and_counts(filled: Client) -> None:
    command = {"find": "c", "filter": {"_id": OID}, "lsid": {"id": Binary(bytes(16), 4)}}
    dispatcher = filled.dispatcher
    later = filled.rig.do(dispatcher.run(request_of(filled, command)))

    assert at_once(filled, command) == later
    assert dispatcher.counts["find"] == 2
    assert dispatcher.operations.used["test", "c", "find"][0] == 2


@pytest.mark.parametrize(
    "command",
    [
        {"find": "c", "filter": {"n": 1}},
        {"find": "c", "filter": {"_id": OID}, "sort": {"n": 1}},
        {"find": "c", "filter": {"_id": OID}, "lsid": 5},
        {"find": "", "filter": {"_id": OID}},
        {"find": "c", "filter": {"_id": OID}, "nonsense": 1},
    ],
)
def test_others_are_not_answered_at_once_and_not_counted_twice(filled: Client, command: dict[str, Any]) -> None:
    assert at_once(filled, command) is None

    filled.run(command)

    assert filled.dispatcher.counts["find"] == 1


@pytest.mark.parametrize(
    ("command", "begins"),
    [
        ({"find": "c", "filter": {"_id": OID}}, True),
        ({"find": "c", "filter": {"_id": OID, "n": 1}}, True),
        ({"find": "c", "filter": {"n": 1}}, False),
        ({"find": "c", "filter": {"_id": {"$gt": 1}}}, False),
        ({"find": "c", "filter": {"_id": None}}, False),
        ({"find": "c", "filter": {}}, False),
        ({"find": "c"}, False),
        ({"find": "c", "filter": "x"}, False),
        ({"find": "c", "filter": {"_id": OID}, "sort": {"n": 1}}, False),
    ],
)
def test_is_only_begun_at_once_where_it_may_come_to_an_end(
    filled: Client, command: dict[str, Any], begins: bool
) -> None:
    """Else all checks of the command would be made twice."""
    assert (filled.dispatcher.at_once(request_of(filled, command).body) is not None) is begins


def test_a_secondary_answers_only_who_allows_it(filled: Client) -> None:
    filled.rig.step_down()
    command = {"find": "c", "filter": {"_id": OID}}

    assert at_once(filled, command) is None
    assert filled.code(command) == 13435
    assert at_once(filled, {**command, "$readPreference": {"mode": "nearest"}})


@pytest.mark.parametrize("damage", ["x'00'", "doc || x'00'", "substr(doc, 1, length(doc) - 1)"])
def test_what_is_no_document_any_more_is_an_error_and_no_reply_that_nobody_can_read(
    client: Client, member: RunningMember, damage: str
) -> None:
    client.ok({"insert": "c", "documents": [{"_id": 1, "x": "a"}, {"_id": 2}]})
    table = member.store.collection("test.c").table
    member.store._connection.execute(f"UPDATE {table} SET doc = {damage} WHERE key = ?", (encode_key(1),))
    for query in ({"_id": 1}, {}, {"x": "a"}):
        assert client.code({"find": "c", "filter": query}) == 22
    assert client.ok({"find": "c", "filter": {"_id": 2}})["cursor"]["firstBatch"] == [{"_id": 2}]
