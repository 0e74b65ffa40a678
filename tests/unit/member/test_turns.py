"""What the clients of the wire port take of one turn of the event loop together."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import pytest

from replset.bson import encode
from replset.member.net import server as wire_server
from replset.member.net.wire_connection import TURN
from replset.operations.command import PROVE
from replset.operations.request import CommandRequest, Reply
from replset.operations.turns import BYTES, COMMANDS, TIME_MS, Turns
from replset.wire.framing import encode_msg
from tests.unit.member.served import SERVED, Client, Served, ping

ON_SOCKETS = True


class World:
    """Clients that run commands without a pause, on a clock that only they move on."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.turns = Turns(lambda: self.now_ms)
        self.ran: list[str] = []

    async def client(self, name: str, commands: int, size: int = 50, cost_ms: int = 0) -> None:
        for _ in range(commands):
            if self.turns.has_room():
                self.turns.count(size)
            else:
                await self.turns.wait(size)
            self.ran.append(name)
            self.now_ms += cost_ms

    def caller(self, name: str, commands: int, size: int = 50, cost_ms: int = 0) -> None:
        """As `client`, without a task: it waits before each command."""

        def go_on() -> None:
            self.ran.append(name)
            self.now_ms += cost_ms
            if commands > 1:
                self.caller(name, commands - 1, size, cost_ms)

        self.turns.call(size, go_on)

    async def most_in_a_turn(self, *clients: Coroutine[Any, Any, None]) -> int:
        all_of_them = asyncio.gather(*clients)
        most = before = 0
        while not all_of_them.done():
            await asyncio.sleep(0)
            most, before = max(most, len(self.ran) - before), len(self.ran)
        return most


@pytest.mark.parametrize(
    ("size", "cost_ms", "expected"),
    [
        pytest.param(50, 0, COMMANDS, id="many"),
        pytest.param(BYTES // 8, 0, 8, id="large"),
        pytest.param(2 * BYTES, 0, 1, id="one-that-is-too-large-alone"),
        pytest.param(50, 2, TIME_MS // 2, id="slow"),
        pytest.param(50, 5 * TIME_MS, 1, id="one-that-is-too-slow-alone"),
    ],
)
async def test_a_turn_is_bounded_over_all_clients(size: int, cost_ms: int, expected: int) -> None:
    world = World()
    clients = [world.client(str(number), 20, size, cost_ms) for number in range(100)]
    assert await world.most_in_a_turn(*clients) == expected
    assert len(world.ran) == 2000


@pytest.mark.parametrize(("cost_ms", "expected"), [(0, COMMANDS), (2, TIME_MS // 2), (5 * TIME_MS, 1)])
async def test_a_turn_is_bounded_over_those_that_wait_and_those_that_are_called(cost_ms: int, expected: int) -> None:
    world = World()
    for number in range(200):
        world.caller(f"called {number}", 5, cost_ms=cost_ms)
    clients = [world.client(str(number), 5, cost_ms=cost_ms) for number in range(200)]
    assert await world.most_in_a_turn(*clients) == expected
    while len(world.ran) < 2000:  # noqa: ASYNC110 - a count, no event
        await asyncio.sleep(0)
    assert sorted(Counter(world.ran).values()) == [5] * 400


async def test_those_that_wait_and_those_that_are_called_in_turn_share_one_turn() -> None:
    """Else a queue of both would go on by two commands in each turn."""
    world = World()

    async def one(number: int) -> None:
        if not number:
            assert world.turns.has_room()
            for _ in range(COMMANDS):
                world.turns.count(1)
        if number % 2:
            world.caller(str(number), 1)
        else:
            await world.client(str(number), 1)

    tasks = [asyncio.ensure_future(one(number)) for number in range(COMMANDS)]
    turns = 0
    while len(world.ran) < len(tasks):
        turns += 1
        await asyncio.sleep(0)
    assert turns <= 10


async def test_who_comes_later_waits_for_one_command_of_each_before() -> None:
    world = World()
    greedy = asyncio.gather(*(world.client(str(number), 1000) for number in range(50)))
    await asyncio.sleep(0)
    before = len(world.ran)
    await world.client("late", 1)
    assert len(world.ran) - before <= 50 + COMMANDS
    greedy.cancel()


@pytest.mark.parametrize("cost_ms", [0, 1, 3])
async def test_who_waits_goes_on_in_the_order_in_which_they_came(cost_ms: int) -> None:
    world = World()
    names = [str(number) for number in range(3 * COMMANDS)]
    await asyncio.gather(*(world.client(name, 1, cost_ms=cost_ms) for name in names))
    assert world.ran == names


@pytest.mark.parametrize("cost_ms", [0, 1, 3])
async def test_who_is_called_goes_on_in_the_order_in_which_they_came(cost_ms: int) -> None:
    world = World()
    names = [str(number) for number in range(3 * COMMANDS)]
    for name in names:
        world.caller(name, 1, cost_ms=cost_ms)
    while len(world.ran) < len(names):  # noqa: ASYNC110 - a count, no event
        await asyncio.sleep(0)
    assert world.ran == names


@pytest.mark.parametrize("waited", range(5))
async def test_one_that_leaves_when_its_turn_comes_is_not_waited_for(waited: int) -> None:
    """Before, while and after it is woken."""
    world = World()
    leaving = asyncio.ensure_future(world.client("a", 1))
    assert world.turns.has_room()
    for _ in range(COMMANDS):
        world.turns.count(1)
    for _ in range(waited):
        await asyncio.sleep(0)
    leaving.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert world.turns.has_room()


async def test_clients_that_leave_while_they_wait_hold_up_nobody() -> None:
    world = World()
    greedy = [asyncio.ensure_future(world.client(str(number), 1000)) for number in range(50)]
    await asyncio.sleep(0)
    last = asyncio.ensure_future(world.client("last", 2))
    await asyncio.sleep(0)
    for one in greedy[::2]:
        one.cancel()
    await asyncio.sleep(0)
    for one in greedy[1::2]:
        one.cancel()
    async with asyncio.timeout(10):
        await last
        await world.client("later", 2 * COMMANDS)


# --- on the wire port -------------------------------------------------------------------------------------------

CROWD, EACH = 60, 200
FLOOD = b"".join(encode_msg(number, 0, encode(ping(number))) for number in range(1, EACH + 1))


async def crowd(served: Served) -> list[Client]:
    clients = [await served.client() for _ in range(CROWD)]
    for client in clients:
        client.writer.write(FLOOD)
    return clients


async def test_a_crowd_of_clients_leaves_the_turn_to_others(served: Served) -> None:
    clients = await crowd(served)
    most = seen = 0
    while seen < CROWD * EACH:
        await asyncio.sleep(0)
        done = len(served.dispatcher.asked)
        most, seen = max(most, done - seen), done
    assert most <= 2 * COMMANDS < CROWD * TURN
    for client in clients:
        assert [(await client.receive()).response_to for _ in range(EACH)] == list(range(1, EACH + 1))


async def test_a_ping_beside_a_crowd_waits_for_one_command_of_each(served: Served) -> None:
    honest = await served.client()
    await honest.ask(ping(0))
    await crowd(served)
    while len(served.dispatcher.asked) < CROWD * 10:  # noqa: ASYNC110 - a count, no event
        await asyncio.sleep(0)
    honest.send({"ping": 1, "honest": 1, "$db": "admin"})
    before = len(served.dispatcher.asked)
    await honest.receive()
    since = served.dispatcher.asked[before:]
    place = next(number for number, request in enumerate(since) if request.body.get("honest"))
    assert place <= 4 * COMMANDS


async def test_a_find_that_is_answered_at_once_takes_its_part_of_the_turn(served: Served) -> None:
    client = await served.client()
    await client.ask(ping(0))
    served.dispatcher.find_reply = encode({"ok": 1.0})
    counted: list[int] = []
    served.turns.count = counted.append
    find = {"find": "c", "$db": "d"}
    await client.ask(find)
    assert counted == [len(encode_msg(1, 0, encode(find)))]
    served.turns.has_room = lambda: False  # type: ignore[method-assign]

    async def wait(size: int) -> None:
        counted.append(size)
        await asyncio.Event().wait()

    served.turns.wait = wait  # type: ignore[method-assign]
    client.send(find)
    assert await client.receives_nothing()
    assert counted == counted[:1] * 2


async def test_a_member_does_not_wait_behind_clients(served: Served) -> None:
    member, client = await served.client(), await served.client()
    await member.prove(SERVED)
    served.turns.has_room = lambda: False  # type: ignore[method-assign]

    async def wait(_: int) -> None:
        await asyncio.Event().wait()

    served.turns.wait = wait  # type: ignore[method-assign]
    client.send(ping(1))
    for number in range(3 * TURN):
        member.send({"replSetHeartbeat": 1, "n": number, "$db": "admin"})
    assert [(await member.receive()).body.get("n") for _ in range(3 * TURN)] == list(range(3 * TURN))
    assert served.dispatcher.names.count("ping") == 0
    assert served.dispatcher.names.count(PROVE) == 2


async def test_what_a_client_sends_ahead_is_not_taken_in(served: Served) -> None:
    """A crowd that sends ahead fills the system's buffers and not the member's memory."""

    async def never(_: CommandRequest) -> Reply:
        await asyncio.Event().wait()
        return {}

    served.dispatcher.answers["slow"] = never
    client = await served.client()
    frame = encode_msg(1, 0, encode({"slow": 1, "pad": "x" * 100, "$db": "admin"}))
    client.writer.write(frame * 10_000)
    while not served.dispatcher.asked:  # noqa: ASYNC110 - a count, no event
        await asyncio.sleep(0)
    await served.settled()
    assert served.server.traffic.bytes_in <= 2 * wire_server.READ_BYTES
