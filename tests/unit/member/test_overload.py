"""More than a member can take, on real loopback sockets: refused early, held no longer than needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from replset.bson import encode
from replset.member.net import wire_connection
from replset.operations.request import CommandRequest, Reply
from replset.wire.framing import encode_msg
from tests.unit.member.served import HELLO, SERVED, Served, ping, serving

ON_SOCKETS = True

OVERLOADED = (0.0, 462, ["SystemOverloadedError", "RetryableError"])


def large(number: int) -> dict[str, object]:
    return {"work": 1, "n": number, "pad": "x" * 1_000_000, "$db": "admin"}


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what a server counts has no event
        await asyncio.sleep(0.001)


def told(answer: Mapping[str, Any]) -> tuple[Any, ...]:
    return answer["ok"], answer["code"], answer["errorLabels"]


async def test_a_large_command_too_many_is_refused_and_heartbeats_pass() -> None:
    async with serving(most_held=1_500_000) as served:
        go_on = asyncio.Event()

        async def work(_: CommandRequest) -> Reply:
            await go_on.wait()
            return {"ok": 1.0}

        served.dispatcher.answers["work"] = work
        busy, other = await served.client(), await served.client()
        busy.send(large(1))
        await until(lambda: bool(served.dispatcher.asked))
        assert told(await other.ask(large(2))) == OVERLOADED
        assert (await other.ask(ping(3)))["n"] == 3
        assert [request.body.get("n") for request in served.dispatcher.asked] == [1, 3]
        go_on.set()
        assert (await busy.receive()).body.get("ok") == 1.0
        assert (await other.ask(large(4)))["ok"] == 1.0
        assert (served.admission.in_use, served.admission.refused) == (0, 1)


async def test_the_bytes_of_a_connection_are_released_when_it_closes() -> None:
    async with serving(most_held=1_500_000) as served:

        async def never(_: CommandRequest) -> Reply:
            await asyncio.Event().wait()
            return {"ok": 1.0}

        served.dispatcher.answers["work"] = never
        running, sending = await served.client(), await served.client()
        running.send(large(1))
        await until(lambda: bool(served.dispatcher.asked))
        running.writer.close()
        await until(lambda: not served.admission.in_use)
        sending.writer.write(encode_msg(1, 0, encode(large(2)))[:500_000])  # and the rest never comes
        await until(lambda: bool(served.admission.in_use))
        sending.writer.close()
        await until(lambda: not served.admission.in_use)


async def test_unread_answers_count_and_their_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_connection, "STALLED_S", 2.0)
    async with serving(most_held=1_000_000) as served:

        async def much(_: CommandRequest) -> Reply:
            return {"ok": 1.0, "pad": "x" * 15_000_000}

        served.dispatcher.answers["much"] = much
        slow, other, member = await served.client(), await served.client(), await served.client()
        await member.prove(SERVED)
        slow.send({"much": 1, "$db": "admin"})
        await until(lambda: bool(served.admission.is_full))
        assert told(await other.ask({"find": "c", "$db": "d"})) == OVERLOADED
        assert (await other.ask(HELLO))["ok"] == 1.0
        assert (await member.ask({"find": "c", "$db": "d"}))["ok"] == 1.0
        await until(lambda: not served.admission.in_use)
        assert (await other.ask({"find": "c", "$db": "d"}))["ok"] == 1.0
        assert served.server.connection_count == 2


async def test_a_find_that_is_answered_at_once_waits_for_its_client_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_connection, "STALLED_S", 2.0)
    async with serving(most_held=1_000_000) as served:
        slow, other = await served.client(), await served.client()
        await slow.ask(HELLO)
        served.dispatcher.find_reply = encode({"ok": 1.0, "pad": "x" * 15_000_000})
        slow.send({"find": "c", "$db": "d"})
        await until(lambda: bool(served.admission.is_full))
        assert told(await other.ask({"find": "c", "$db": "d"})) == OVERLOADED
        await until(lambda: not served.admission.in_use)
        assert served.server.connection_count == 1


@pytest.mark.parametrize("is_at_once", [False, True])
async def test_small_answers_that_nobody_reads_end_their_connection_too(
    is_at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are written at the end of the turn, when the connection has no command left that could wait for it."""
    monkeypatch.setattr(wire_connection, "STALLED_S", 0.3)
    async with serving() as served:
        pad = {"ok": 1.0, "pad": "x" * 60_000}

        async def much(_: CommandRequest) -> Reply:
            return pad

        served.dispatcher.answers["find"] = much
        served.dispatcher.find_reply = encode(pad) if is_at_once else None
        slow = await served.client()
        await slow.ask(HELLO)
        (connection,) = served.server.connections
        while connection.idle_since is not None:  # until an answer waits to be sent
            slow.send({"find": "c", "$db": "d"})
            await asyncio.sleep(0.005)
        await until(lambda: not served.server.connection_count)


async def test_a_client_that_leaves_while_it_reads_nothing_leaves_no_task() -> None:
    def tasks() -> list[str]:
        return [name for task in asyncio.all_tasks() if "WireConnection" in (name := repr(task.get_coro()))]

    async with serving() as served:

        async def much(_: CommandRequest) -> Reply:
            return {"ok": 1.0, "pad": "x" * 8_000_000}

        served.dispatcher.answers["find"] = much
        slow = await served.client()
        await slow.ask(HELLO)
        (connection,) = served.server.connections
        slow.send({"find": "c", "$db": "d"})
        await until(lambda: connection.idle_since is None and len(served.dispatcher.asked) == 2)
        await served.settled()  # the task waits for the client to read
        slow.writer.transport.abort()
        await until(lambda: not tasks())


async def test_answers_of_one_turn_go_out_before_they_are_many(served: Served) -> None:
    client = await served.client()
    await client.ask(HELLO)
    (connection,) = served.server.connections
    written: list[bytes] = []
    connection.write = written.append  # type: ignore[method-assign]
    served.server.send(connection, b"x" * 40_000)
    assert written == []
    served.server.send(connection, b"y" * 40_000)
    assert len(written) == 2


async def test_a_message_that_stops_coming_is_dropped_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_connection, "STALLED_S", 600.0)
    async with serving(most_held=1_500_000) as served:
        stalled, other = await served.client(), await served.client()
        stalled.writer.write(encode_msg(1, 0, encode(large(1)))[:100_000])
        await until(lambda: bool(served.admission.in_use))
        assert told(await other.ask(large(2))) == OVERLOADED
        assert told(await other.ask(large(2))) == OVERLOADED
        monkeypatch.setattr(wire_connection, "STALLED_S", 0.0)
        assert told(await other.ask(large(3))) == OVERLOADED
        assert await stalled.is_closed()
        assert (await other.ask(large(4)))["ok"] == 1.0
