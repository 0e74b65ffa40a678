"""The serving end of the wire port on real loopback sockets."""

from __future__ import annotations

import asyncio
import gc
import logging
import struct
from collections.abc import Callable
from typing import Any

import pytest

from replset.auth.users import Login
from replset.bson import MAX_MESSAGE_SIZE, Int64, ObjectId, RawDocument, encode
from replset.errors import InvariantError
from replset.member.net import server
from replset.member.net.wire_connection import MOST_FIELDS, TURN
from replset.operations.command import PROVE
from replset.operations.evaluation import SMALL_STATEMENT
from replset.operations.request import CommandRequest, Reply
from replset.wire import framing
from replset.wire.framing import CHECKSUM_PRESENT, EXHAUST_ALLOWED, MORE_TO_COME, OP_QUERY, crc32c, encode_msg
from tests.unit.member.served import HELLO, OTHER, PATIENCE_S, SERVED, Client, Dispatcher, Served, ping, serving

ON_SOCKETS = True


async def test_commands_of_one_connection_are_answered_in_order_and_one_at_a_time(served: Served) -> None:
    client = await served.client()
    sent = [client.send(ping(number)) for number in range(200)]
    answers = [await client.receive() for _ in sent]
    assert [answer.response_to for answer in answers] == sent
    assert [answer.body.get("n") for answer in answers] == list(range(200))
    assert served.dispatcher.most_at_once == 1


async def test_a_find_that_is_answered_at_once_stays_behind_what_was_sent_before_it(served: Served) -> None:
    client = await served.client()
    find = {"find": "c", "$db": "d"}
    await client.ask(ping(0))
    served.dispatcher.find_reply = encode({"ok": 1.0, "n": -1})
    assert (await client.ask(find))["n"] == -1
    assert served.dispatcher.names == ["ping"]
    go_on = asyncio.Event()

    async def slow(_: CommandRequest) -> Reply:
        await go_on.wait()
        return {"ok": 1.0}

    served.dispatcher.answers["slow"] = slow
    first = client.send({"slow": 1, "$db": "admin"})
    await served.settled()
    second = client.send(find)
    await served.settled()
    go_on.set()
    assert [(await client.receive()).response_to for _ in range(2)] == [first, second]


async def test_connections_do_not_wait_for_each_other(served: Served) -> None:
    go_on = asyncio.Event()

    async def slow(_: CommandRequest) -> Reply:
        await go_on.wait()
        return {"ok": 1.0}

    served.dispatcher.answers["slow"] = slow
    first, second = await served.client(), await served.client()
    first.send({"slow": 1, "$db": "admin"})
    assert (await second.ask(ping(1)))["n"] == 1
    go_on.set()
    assert (await first.receive()).body.get("ok") == 1.0


async def test_a_request_says_who_asks_and_with_what(served: Served) -> None:
    client = await served.client()
    await client.ask({"ping": 1, "$db": "shop"})
    (request,) = served.dispatcher.asked
    host, port = client.writer.get_extra_info("sockname")
    assert request.database == "shop"
    assert request.source == "wire"
    assert request.connection.peer == f"{host}:{port}"
    assert not request.connection.is_member
    other = await served.client()
    await other.ask(ping(1))
    assert served.dispatcher.asked[1].connection.id != request.connection.id


async def test_a_reply_in_bytes_goes_out_as_it_is(served: Served) -> None:
    async def quick(_: CommandRequest) -> Reply:
        return encode({"ok": 1.0, "n": 12})

    served.dispatcher.answers["quick"] = quick
    assert await (await served.client()).ask({"quick": 1, "$db": "a"}) == {"ok": 1.0, "n": 12}


async def test_a_command_without_a_database_is_refused_by_its_code(served: Served) -> None:
    client = await served.client()
    assert (await client.ask({"ping": 1}))["code"] == 40571
    assert (await client.ask({"ping": 1, "$db": 5}))["code"] == 40571
    assert served.dispatcher.asked == []


def bson(elements: bytes) -> bytes:
    """A document with a right outer length, whatever is inside."""
    return struct.pack("<i", 5 + len(elements)) + elements + b"\0"


MALFORMED = {
    "a-name-that-is-no-text": bson(b"\x10\xff\xfe\0\1\0\0\0"),
    "a-name-without-end": bson(b"\x10abc"),
    "an-unknown-type": bson(b"\x77ping\0abc"),
    "a-value-beyond-its-document": bson(b"\x02ping\0" + struct.pack("<i", 1 << 30) + b"abc\0"),
    "a-hello-cut-off": bson(b"\x10hello\0\1\0"),
    "a-database-that-is-no-text": bson(b"\x10ping\0\1\0\0\0\x02$db\0\3\0\0\0\xff\xfe\0"),
}


@pytest.mark.parametrize("flags", [0, EXHAUST_ALLOWED], ids=["plain", "exhaust"])
@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
async def test_a_malformed_body_is_answered_and_the_connection_goes_on(body: bytes, flags: int, served: Served) -> None:
    client = await served.client()
    client.writer.write(encode_msg(7, 0, body, flags=flags))
    answer = await client.receive()
    assert answer.response_to == 7
    assert answer.body.get("ok") == 0.0
    assert (answer.body.get("code"), answer.body.get("codeName")) == (22, "InvalidBSON")
    assert (await client.ask(ping(1)))["n"] == 1
    assert served.dispatcher.names == ["ping"]


async def test_a_malformed_unacknowledged_message_is_not_answered(served: Served) -> None:
    client = await served.client()
    client.writer.write(encode_msg(7, 0, MALFORMED["an-unknown-type"], flags=MORE_TO_COME))
    assert (await client.ask(ping(1)))["n"] == 1


async def test_a_reply_without_a_bson_form_is_an_error_instead(served: Served) -> None:
    async def odd(_: CommandRequest) -> Reply:
        return {"ok": 1.0, "value": object()}

    served.dispatcher.answers["odd"] = odd
    client = await served.client()
    assert (await client.ask({"odd": 1, "$db": "a"}))["code"] == 22
    assert (await client.ask(ping(1)))["n"] == 1


def test_a_broken_invariant_closes_its_connection_and_is_reported() -> None:
    """Nobody may wait for ever for an answer that will not come, and what broke must not go unnoticed."""

    async def main() -> list[object]:
        heard: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context.get("exception")))
        async with serving() as served:

            async def broken(_: CommandRequest) -> Reply:
                raise InvariantError("two and two are four")

            served.dispatcher.answers["broken"] = broken
            client, other = await served.client(), await served.client()
            client.send({"broken": 1, "$db": "a"})
            assert await client.is_closed()
            assert (await other.ask(ping(1)))["n"] == 1
        gc.collect()
        return heard

    heard = asyncio.run(asyncio.wait_for(main(), 30))
    assert [str(error) for error in heard] == ["two and two are four"]


async def test_a_command_that_is_cancelled_from_inside_closes_its_connection(served: Served) -> None:
    async def waits_for_what_is_given_up(_: CommandRequest) -> Reply:
        given_up: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        given_up.cancel()
        return await given_up

    served.dispatcher.answers["broken"] = waits_for_what_is_given_up
    client = await served.client()
    client.send({"broken": 1, "$db": "a"})
    assert await client.is_closed()


async def test_an_unacknowledged_write_runs_and_is_not_answered(served: Served) -> None:
    client = await served.client()
    client.send({"insert": "orders", "$db": "shop"}, flags=MORE_TO_COME)
    assert (await client.ask(ping(1)))["n"] == 1
    assert served.dispatcher.names == ["insert", "ping"]


async def test_a_reply_that_is_too_large_is_an_error_instead(served: Served) -> None:
    async def huge(_: CommandRequest) -> Reply:
        return struct.pack("<i", MAX_MESSAGE_SIZE) + bytes(MAX_MESSAGE_SIZE - 4)

    served.dispatcher.answers["huge"] = huge
    client = await served.client()
    assert (await client.ask({"huge": 1, "$db": "a"}))["code"] == 10334
    assert (await client.ask(ping(2)))["n"] == 2


async def test_an_old_hello_is_answered_in_the_old_form(served: Served) -> None:
    client = await served.client()
    payload = struct.pack("<i", 4) + b"admin.$cmd\0" + struct.pack("<ii", 0, -1) + encode({"ismaster": 1, "n": 3})
    client.writer.write(struct.pack("<iiii", 16 + len(payload), 77, 0, OP_QUERY) + payload)
    answer = await client.receive()
    assert (answer.response_to, answer.body.get("n")) == (77, 3)
    (request,) = served.dispatcher.asked
    assert request.legacy
    assert request.database == "admin"


async def test_bytes_that_are_no_message_end_the_connection_and_no_other(served: Served) -> None:
    bad, good = await served.client(), await served.client()
    bad.writer.write(struct.pack("<iiii", 20, 1, 0, 4711) + b"oops")
    assert await bad.is_closed()
    assert (await good.ask(ping(1)))["n"] == 1
    assert served.server.connection_count == 1


async def test_a_client_that_goes_away_ends_the_command_it_waits_for(served: Served) -> None:
    started = asyncio.Event()

    async def forever(_: CommandRequest) -> Reply:
        started.set()
        await asyncio.Event().wait()
        return {}

    served.dispatcher.answers["forever"] = forever
    client = await served.client()
    client.send({"forever": 1, "$db": "a"})
    await started.wait()
    client.writer.close()
    async with asyncio.timeout(PATIENCE_S):
        await served.dispatcher.cancelled.wait()


async def test_an_unacknowledged_command_runs_after_its_sender_has_gone(served: Served) -> None:
    """A burst of w: 0 writes and a close: MongoDB runs all that came before the close."""
    total, done = 50, asyncio.Event()

    async def write(request: CommandRequest) -> Reply:
        await asyncio.sleep(0.001)
        if request.body.get("n") == total - 1:
            done.set()
        return {"ok": 1.0}

    served.dispatcher.answers["write"] = write
    client = await served.client()
    for number in range(total):
        client.send({"write": 1, "n": number, "$db": "a"}, flags=MORE_TO_COME)
    client.writer.close()
    await asyncio.wait_for(done.wait(), PATIENCE_S)
    assert [request.body.get("n") for request in served.dispatcher.asked] == list(range(total))
    async with asyncio.timeout(PATIENCE_S):
        while served.server.connection_count:  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0.01)


async def test_a_command_that_its_sender_waits_for_ends_all_behind_it_when_it_goes(served: Served) -> None:
    async def forever(_: CommandRequest) -> Reply:
        await asyncio.Event().wait()
        return {}

    served.dispatcher.answers["forever"] = forever
    client = await served.client()
    client.send({"write": 1, "$db": "a"}, flags=MORE_TO_COME)
    client.send({"forever": 1, "$db": "a"})
    client.send({"write": 1, "$db": "a"}, flags=MORE_TO_COME)
    while "forever" not in served.dispatcher.names:  # noqa: ASYNC110 - a count, no event
        await asyncio.sleep(0.01)
    client.writer.close()
    await asyncio.wait_for(served.dispatcher.cancelled.wait(), PATIENCE_S)
    assert served.dispatcher.names == ["write", "forever"]


async def test_closing_the_server_ends_unacknowledged_commands_too(served: Served) -> None:
    async def forever(_: CommandRequest) -> Reply:
        await asyncio.Event().wait()
        return {}

    served.dispatcher.answers["forever"] = forever
    client = await served.client()
    client.send({"forever": 1, "$db": "a"}, flags=MORE_TO_COME)
    async with asyncio.timeout(PATIENCE_S):
        while not served.dispatcher.running:  # noqa: ASYNC110 - a count, no event
            await asyncio.sleep(0.01)
        client.writer.close()
        await served.settled()
        assert served.dispatcher.running == 1
        await served.server.close()
    assert served.dispatcher.running == 0


async def test_closed_connections_take_no_descriptors_of_later_ones() -> None:
    async with serving(max_connections=2) as served:
        served.server.slots.spare = 1
        for number in range(10):
            client = await served.client()
            assert (await client.ask(ping(number)))["n"] == number
            client.writer.close()


async def test_for_more_connections_than_allowed_the_longest_idle_one_is_closed() -> None:
    async with serving(max_connections=2) as served:
        first, second = await served.client(), await served.client()
        await first.ask(ping(1))
        await second.ask(ping(2))
        third = await served.client()
        assert (await third.ask(ping(3)))["n"] == 3
        assert await first.is_closed()
        assert (await second.ask(ping(4)))["n"] == 4
        assert served.server.connection_count == 2


async def test_members_and_status_have_reserved_slots() -> None:
    async with serving(max_connections=16) as served:
        served.dispatcher.answers["slow"] = lambda _: asyncio.Event().wait()  # type: ignore[assignment, return-value]
        for _ in range(14):
            (await served.client()).send({"slow": 1, "$db": "admin"})
        while served.dispatcher.running < 14:  # noqa: ASYNC110 - a count, no event
            await asyncio.sleep(0.01)
        member, watcher = await served.client(), await served.client()
        await member.prove(SERVED)
        assert (await member.ask({"replSetRequestVotes": 1, "$db": "admin"}))["ok"] == 1.0
        assert (await watcher.ask({"replSetGetStatus": 1, "$db": "admin"}))["ok"] == 1.0
        client = await served.client()
        assert await watcher.is_closed(), "both kept slots are taken: the idle one makes room"
        assert (await client.ask({"find": "a", "$db": "shop"}))["code"] == 462
        assert await client.is_closed()
        waiting = {"topologyVersion": {"counter": Int64(1)}, "maxAwaitTimeMS": 10_000}
        assert (await (await served.client()).ask({**HELLO, **waiting}))["code"] == 462, "it would stay for good"
        assert served.dispatcher.running == 14, "nobody who works was let go"


async def test_nothing_more_is_read_while_too_much_waits(served: Served) -> None:
    go_on = asyncio.Event()

    async def slow(request: CommandRequest) -> Reply:
        await go_on.wait()
        return {"ok": 1.0, "n": request.body.get("n")}

    served.dispatcher.answers["slow"] = slow
    client = await served.client()
    total, padding = 400, "x" * 65536
    sending = asyncio.ensure_future(_flood(client, total, padding))
    await served.settled()
    assert not sending.done(), "26 MB were taken in though nothing was answered"
    assert len(served.dispatcher.asked) == 1
    go_on.set()
    for number in range(total):
        assert (await client.receive()).body.get("n") == number
    await sending


async def test_large_commands_that_wait_are_bounded_in_bytes(served: Served) -> None:
    go_on = asyncio.Event()

    async def slow(request: CommandRequest) -> Reply:
        await go_on.wait()
        return {"ok": 1.0, "n": request.body.get("n")}

    served.dispatcher.answers["slow"] = slow
    client = await served.client()
    total, padding = 20, "x" * (2 << 20)
    sending = asyncio.ensure_future(_flood(client, total, padding))
    await served.settled()
    assert not sending.done(), "40 MiB were taken in though nothing was answered"
    go_on.set()
    for number in range(total):
        assert (await client.receive()).body.get("n") == number
    await sending


async def test_many_commands_at_once_do_not_block_the_loop(served: Served) -> None:
    """Answered without a pause they would hold up heartbeats; here nothing may see more than a few go by."""
    client, total = await served.client(), 600
    client.writer.write(b"".join(encode_msg(number, 0, encode(ping(number))) for number in range(1, total + 1)))
    seen, most = 0, 0
    while seen < total:
        await asyncio.sleep(0)
        done = len(served.dispatcher.asked)
        most, seen = max(most, done - seen), done
    assert most <= 2 * TURN
    assert [(await client.receive()).response_to for _ in range(total)] == list(range(1, total + 1))


async def _flood(client: Client, total: int, padding: str) -> None:
    for number in range(total):
        client.send({"slow": 1, "n": number, "padding": padding, "$db": "a"})
        await client.writer.drain()


# --- exhaust hello ----------------------------------------------------------------------------------------------


class Topology:
    """Answers hello when `change` is called, with a counter that grows."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.counter, self.process = 0, ObjectId(bytes(12))
        self.known: list[object] = []
        self._changed = asyncio.Event()
        self.fails = False
        dispatcher.answers["hello"] = self._hello

    def change(self) -> None:
        self.counter += 1
        self._changed.set()

    async def _hello(self, request: CommandRequest) -> Reply:
        version = request.body.get("topologyVersion")
        if isinstance(version, dict):
            self.known.append(version["counter"])
            await self._changed.wait()
            self._changed.clear()
        if self.fails:
            return {"ok": 0.0, "code": 91}
        return {"ok": 1.0, "topologyVersion": {"processId": self.process, "counter": Int64(self.counter)}}


def exhaust_hello(topology: Topology) -> dict[str, object]:
    version = {"processId": topology.process, "counter": Int64(topology.counter)}
    return {"hello": 1, "topologyVersion": version, "maxAwaitTimeMS": 10_000, "$db": "admin"}


async def test_an_exhaust_hello_streams_each_change_and_chains_its_replies(served: Served) -> None:
    topology, client = Topology(served.dispatcher), await served.client()
    before = client.send(exhaust_hello(topology), flags=EXHAUST_ALLOWED)
    for counter in (1, 2, 3):
        topology.change()
        answer = await client.receive()
        assert answer.more_to_come
        assert answer.response_to == before
        assert RawDocument(answer.body.get_raw("topologyVersion") or b"").get("counter") == counter
        before = answer.request_id
    assert topology.known[:3] == [0, 1, 2], "each round waits for news behind what was told last"
    topology.fails = True
    topology.change()
    last = await client.receive()
    assert not last.more_to_come
    assert (await client.ask(ping(1)))["n"] == 1


async def test_without_the_flag_a_waiting_hello_is_answered_once(served: Served) -> None:
    topology, client = Topology(served.dispatcher), await served.client()
    client.send(exhaust_hello(topology))
    topology.change()
    assert not (await client.receive()).more_to_come
    assert await client.receives_nothing()


@pytest.mark.parametrize("patience", [0, -1, None, "soon"])
async def test_a_hello_that_waits_for_nothing_is_no_stream(patience: object, served: Served) -> None:
    """It would answer for ever without letting the event loop go."""
    topology, client = Topology(served.dispatcher), await served.client()
    topology.change()
    client.send({**exhaust_hello(topology), "maxAwaitTimeMS": patience}, flags=EXHAUST_ALLOWED)
    assert not (await client.receive()).more_to_come
    assert (await client.ask(ping(1)))["n"] == 1


# --- exhaust getMore --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [EXHAUST_ALLOWED, 0])
async def test_an_exhaust_get_more_streams_until_its_cursor_ends(flags: int, served: Served) -> None:
    left = [3, 2, 1]

    async def get_more(_: CommandRequest) -> Reply:
        batch = left.pop(0)
        return {"cursor": {"nextBatch": [{"n": batch}], "id": Int64(7 if left else 0), "ns": "a.b"}, "ok": 1.0}

    served.dispatcher.answers["getMore"] = get_more
    client = await served.client()
    before = client.send({"getMore": Int64(7), "collection": "b", "$db": "a"}, flags=flags)
    for more in (True, True, False) if flags else (False,):
        answer = await client.receive()
        assert (answer.more_to_come, answer.response_to) == (more, before)
        before = answer.request_id
    assert (await client.ask(ping(1)))["n"] == 1
    assert len(left) == (0 if flags else 2)


async def test_a_tailing_cursor_at_its_end_does_not_stream(served: Served) -> None:
    async def get_more(_: CommandRequest) -> Reply:
        return {"cursor": {"nextBatch": [], "id": Int64(7), "ns": "a.b"}, "ok": 1.0}

    served.dispatcher.answers["getMore"] = get_more
    client = await served.client()
    client.send({"getMore": Int64(7), "$db": "a"}, flags=EXHAUST_ALLOWED)
    assert not (await client.receive()).more_to_come


async def test_an_error_ends_a_stream_and_a_client_that_leaves_too(served: Served) -> None:
    asked = 0

    async def get_more(_: CommandRequest) -> Reply:
        nonlocal asked
        asked += 1
        if asked == 3:
            return {"ok": 0.0, "code": 43}
        return {"cursor": {"nextBatch": [{}], "id": Int64(7), "ns": "a.b"}, "ok": 1.0}

    served.dispatcher.answers["getMore"] = get_more
    client = await served.client()
    client.send({"getMore": Int64(7), "$db": "a"}, flags=EXHAUST_ALLOWED)
    assert [(await client.receive()).more_to_come for _ in range(3)] == [True, True, False]
    asked = -(1 << 30)
    client.send({"getMore": Int64(7), "$db": "a"}, flags=EXHAUST_ALLOWED)
    await client.receive()
    client.writer.transport.abort()
    await asyncio.wait_for(until(lambda: not served.server.connection_count), PATIENCE_S)


# --- checksums --------------------------------------------------------------------------------------------------


async def test_a_checksum_is_verified_and_given_back(served: Served) -> None:
    client, other = await served.client(), await served.client()
    for padding in ("", "x" * 100_000):
        frame = encode_msg(9, 0, encode({**ping(5), "padding": padding}) + bytes(4), flags=CHECKSUM_PRESENT)[:-4]
        client.writer.write(frame + struct.pack("<I", crc32c(frame)))
        answer = await client.receive()
        assert (answer.body.get("n"), answer.has_checksum) == (5, True)
        list(answer.verify())
    client.writer.write(frame + struct.pack("<I", crc32c(frame) ^ 1))
    assert await client.is_closed()
    assert (await other.ask(ping(1)))["n"] == 1
    assert len(served.dispatcher.asked) == 3, "the damaged command is not run"


# --- fail points ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [0, EXHAUST_ALLOWED, MORE_TO_COME])
async def test_a_fail_point_closes_the_connection_instead_of_the_reply(flags: int, served: Served) -> None:
    async def fails(request: CommandRequest) -> Reply:
        request.connection.is_to_close = True
        return {"ok": 0.0, "code": 50985}

    served.dispatcher.answers["ping"] = fails
    client, other = await served.client(), await served.client()
    client.send(ping(1), flags=flags)
    assert await client.is_closed()
    assert (await other.ask(HELLO))["ok"] == 1.0


# --- shutting down ----------------------------------------------------------------------------------------------


async def test_quiesce_waits_for_the_commands_of_clients(served: Served) -> None:
    go_on = asyncio.Event()

    async def slow(_: CommandRequest) -> Reply:
        await go_on.wait()
        return {"ok": 1.0}

    served.dispatcher.answers["slow"] = slow
    await served.server.quiesce()
    client = await served.client()
    client.send({"slow": 1, "$db": "a"})
    await until(lambda: served.dispatcher.running > 0)
    waiting = asyncio.ensure_future(served.server.quiesce())
    await served.settled()
    assert not waiting.done()
    go_on.set()
    await waiting
    assert (await client.receive()).body.get("ok") == 1.0


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0.005)


# --- cuts -------------------------------------------------------------------------------------------------------


async def member_client(served: Served) -> Client:
    client = await served.client()
    await client.prove(SERVED)
    return client


async def test_a_proof_makes_the_connection_a_members(served: Served) -> None:
    client = await member_client(served)
    await client.ask(ping(1))
    assert served.dispatcher.asked[-1].connection.member == OTHER


async def test_a_message_of_a_cut_off_member_does_not_arrive(served: Served) -> None:
    member, client = await member_client(served), await served.client()
    served.dropped_in.add(OTHER)
    member.send(ping(1))
    assert await member.receives_nothing()
    assert served.dispatcher.names == [PROVE, PROVE]
    assert (await client.ask(ping(2)))["n"] == 2, "clients stay connected"
    served.dropped_in.clear()
    assert (await member.ask(ping(3)))["n"] == 3


async def test_an_answer_to_a_cut_off_member_is_not_sent(served: Served) -> None:
    member = await member_client(served)
    served.dropped_out.add(OTHER)
    member.send(ping(1))
    assert await member.receives_nothing()
    assert served.dispatcher.names == [PROVE, PROVE, "ping"], "the command itself ran"


@pytest.mark.parametrize("commands", [0, 1])
def test_closing_ends_every_connection_and_its_command(commands: int, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving() as served:

            async def forever(_: CommandRequest) -> Reply:
                await asyncio.Event().wait()
                return {}

            served.dispatcher.answers["forever"] = forever
            client = await served.client()
            await client.ask(ping(1))
            for _ in range(commands):
                client.send({"forever": 1, "$db": "a"})
            while served.dispatcher.running < commands:  # noqa: ASYNC110 - a count, no event
                await asyncio.sleep(0.01)
            await served.server.close()
            assert await client.is_closed()
            assert served.server.connection_count == 0
            assert served.dispatcher.running == 0
            with pytest.raises(OSError, match=r"refused|Connect call failed"):
                await served.client()

    with caplog.at_level(logging.ERROR):
        asyncio.run(asyncio.wait_for(main(), 30))
    assert caplog.records == []


class Cursors:
    """The table of cursors, as far as the server knows it."""

    def __init__(self) -> None:
        self.left: list[tuple[str, bytes]] = []

    def has_of(self, owner: tuple[str, bytes]) -> bool:
        return True

    def client_left(self, owner: tuple[str, bytes]) -> None:
        self.left.append(owner)


async def test_cursors_end_with_the_last_connection_of_their_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LEFT_S", 600.0)
    async with serving() as served:
        cursors = served.server._cursors = Cursors()
        driver = RawDocument(encode({"driver": "x"}))

        async def hello(request: CommandRequest) -> Reply:
            request.connection.metadata = driver
            return {"ok": 1.0}

        served.dispatcher.answers["hello"] = hello
        first, second, nameless = await served.client(), await served.client(), await served.client()
        await first.ask(HELLO)
        await second.ask(HELLO)
        await nameless.ask(ping(1))

        async def leave(client: Any, gone: int) -> None:
            client.writer.close()
            async with asyncio.timeout(PATIENCE_S):
                while len(cursors.left) < gone:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

        owner = ("127.0.0.1", driver.raw)
        await leave(first, 0)
        await leave(second, 0)
        await until(lambda: owner in served.server._left)
        again = await served.client()
        await again.ask(HELLO)
        served.server._end_cursors_of(owner, cursors)  # the time is over
        await leave(nameless, 1)
        assert [metadata for _, metadata in cursors.left] == [b""], "the driver came back in time"
        monkeypatch.setattr(server, "LEFT_S", 0.0)
        await leave(again, 2)
        assert cursors.left[1] == owner


# --- many documents in one message ------------------------------------------------------------------------------------


def insert(rows: bytes) -> bytes:
    section = b"\1" + struct.pack("<i", 4 + len(b"documents\0") + len(rows)) + b"documents\0" + rows
    return encode_msg(1, 0, encode({"insert": "c", "$db": "d"}) + section)


async def test_a_message_of_many_documents_does_not_block_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0

    class Counted(RawDocument):
        def __init__(self, raw: bytes) -> None:
            nonlocal made
            made += 1
            super().__init__(raw)

    monkeypatch.setattr(framing, "RawDocument", Counted)
    async with serving() as served:
        client = await served.client()
        client.writer.write(insert(encode({}) * 100_000))
        waiting = asyncio.ensure_future(client.receive())
        seen = most = 0
        while not waiting.done():
            await asyncio.sleep(0)
            most, seen = max(most, made - seen), made
        assert (await waiting).body.get("ok") == 1.0
        assert len(served.dispatcher.asked[0].sequences["documents"]) == 100_000
        assert seen >= 100_000, "all of them were counted"
        assert most <= framing.SLICE + 2, "of one turn, and the bodies of the message and of its answer"


async def test_more_documents_than_a_command_takes_are_refused(served: Served) -> None:
    client = await served.client()
    client.writer.write(insert(encode({}) * 300_000))
    assert (await client.receive()).body.get("code") == 16
    assert (await client.ask(ping(1)))["n"] == 1


async def test_a_command_of_more_fields_than_any_takes_is_refused_after_a_look_at_some(served: Served) -> None:
    """To look at each of a million held the event loop for two seconds."""
    client = await served.client()
    many = {"ping": 1, "$db": "admin", **dict.fromkeys(map(str, range(MOST_FIELDS)), "x" * 20)}
    assert (await client.ask(many))["code"] == 40415
    assert served.dispatcher.asked == []
    few = {"ping": 1, "$db": "admin", **dict.fromkeys(map(str, range(MOST_FIELDS - 2)), "x" * 20)}
    assert (await client.ask(few))["ok"] == 1
    damaged = encode({"ping": 1, "a": "x" * SMALL_STATEMENT}).replace(b"\x02a", b"\x7ea")
    client.writer.write(encode_msg(9, 0, damaged))
    assert (await client.receive()).body.get("code") == 22


async def test_a_malformed_document_among_many_ends_the_connection(served: Served) -> None:
    client = await served.client()
    client.writer.write(insert(encode({}) * 20_000 + bytes(9)))
    assert await client.is_closed()
    assert served.dispatcher.asked == []


async def test_before_a_login_nothing_large_is_read(served: Served) -> None:
    served.server.needs_login = True
    client = await served.client()
    for size in (1 << 20, 40 << 20):
        refused = await client.ask({"insert": "c", "padding": "x" * size, "$db": "shop"})
        assert (refused["code"], served.admission.in_use) == (13, 0)
    assert served.dispatcher.asked == []
    assert (await client.ask({"hello": 1, "$db": "admin"}))["ok"] == 1
    served.dispatcher.asked[0].connection.login = Login("ann", "admin")
    assert (await client.ask({"insert": "c", "padding": "x" * (1 << 20), "$db": "shop"}))["ok"] == 1
