"""The asking end of the wire port on real loopback sockets: pooling, time limits, broken connections, cuts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from replset.bson import RawDocument, encode
from replset.errors import ConnectRefusedError, HostUnreachableError, NothingSentError
from replset.ids import HostPort, Millis
from replset.key_file import Keys
from replset.member.net.connections import ConnectionSlots
from replset.member.net.network import RealNetwork
from replset.member.net.server import WireServer
from replset.member.net.transport import MAX_IDLE, Transport
from replset.member.process.machine import RealClock
from replset.operations.admission import Admission
from replset.operations.request import CommandRequest, Reply
from replset.operations.turns import Turns
from replset.replication.ports import Listener
from tests.unit.member.served import QUIET_TURNS, answer_proof

ME = HostPort("127.0.0.1:27998")
LONG = Millis(10_000)
SHORT = Millis(80)
ON_SOCKETS = True
NEVER = Millis(600_000)


class CountingNetwork:
    """The real network; counts the connections that it opened, and picks the port to listen on."""

    def __init__(self) -> None:
        self._real = RealNetwork()
        self.opened = 0
        self.address = HostPort("127.0.0.1:0")
        self.connected: asyncio.Event | None = None

    async def serve(self, address: HostPort, factory: Callable[[], asyncio.BaseProtocol]) -> Listener:
        server = await self._real.serve(address, factory)
        self.address = HostPort(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        return server

    async def connect(self, address: HostPort, factory: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        if self.connected is not None:
            await self.connected.wait()
        self.opened += 1
        return await self._real.connect(address, factory)


class Answers:
    """Echoes `n`. `slow` waits until `go_on`; `never` for ever; `drop` breaks all connections."""

    def __init__(self) -> None:
        self.asked: list[CommandRequest] = []
        self.address: Callable[[], HostPort] = lambda: ME
        self.go_on = asyncio.Event()
        self.server: WireServer | None = None
        self.waiting = 0

    def at_once(self, body: RawDocument) -> None:
        """None of its commands runs without a task."""

    async def run(self, request: CommandRequest) -> Reply:
        proof = None if self.server is None else answer_proof(request, self.address())
        if proof is not None:
            return proof
        self.asked.append(request)
        match request.body.first_key:
            case "slow":
                self.waiting += 1
                await self.go_on.wait()
            case "never":
                await asyncio.Event().wait()
            case "drop" if self.server is not None:
                for connection in list(self.server.connections):
                    connection.end()
        return encode({"ok": 1.0, "n": request.body.get("n")})

    def names(self) -> list[str]:
        return [str(request.body.first_key) for request in self.asked]


class World:
    """One server at `host`, and a transport that calls it."""

    def __init__(self) -> None:
        self.network = CountingNetwork()
        self.answers = Answers()
        self.dropped_in: set[str] = set()
        self.dropped_out: set[str] = set()
        self.server = WireServer(
            self.network,
            self.answers,
            drops_inbound=self.dropped_in.__contains__,
            drops_outbound=self.dropped_out.__contains__,
            slots=ConnectionSlots(100, "wire"),
            admission=Admission(),
            turns=Turns(RealClock().now),
        )
        self.answers.server, self.answers.address = self.server, lambda: self.host
        self.clock = RealClock()
        self.lost: list[HostPort] = []
        self.transport = Transport(self.network, self.clock, ME, Keys.public(), random.Random(1), self.lost.append)

    @property
    def host(self) -> HostPort:
        return self.network.address

    async def call(self, name: str, n: int = 0, timeout_ms: Millis = LONG) -> dict[str, Any]:
        reply = await self.transport.call(self.host, {name: 1, "n": n}, timeout_ms=timeout_ms)
        return reply.decode()


async def turns() -> None:
    """Let the loop turn often enough for whatever is on its way over loopback."""
    for _ in range(QUIET_TURNS):
        await asyncio.sleep(0)


@pytest.fixture
def w(loop: asyncio.AbstractEventLoop) -> Iterator[World]:
    made = World()
    loop.run_until_complete(made.server.start(HostPort("127.0.0.1:0")))
    yield made
    loop.run_until_complete(made.transport.close())
    loop.run_until_complete(made.server.close())


async def test_calls_in_turn_share_a_connection_that_proves_its_member(w: World) -> None:
    for n in range(20):
        assert await w.call("ping", n) == {"ok": 1.0, "n": n}
    assert w.network.opened == 1
    assert w.answers.names() == ["ping"] * 20
    assert all(request.connection.member == ME for request in w.answers.asked)


async def test_a_waiting_call_blocks_no_other(w: World) -> None:
    slow = asyncio.ensure_future(w.call("slow", 1))
    while w.answers.waiting == 0:  # noqa: ASYNC110 - a count, no event
        await asyncio.sleep(0.005)
    assert (await w.call("ping", 2))["n"] == 2
    assert not slow.done()
    w.answers.go_on.set()
    assert (await slow)["n"] == 1
    assert w.network.opened == 2


async def test_only_so_many_idle_connections_are_kept(w: World) -> None:
    calls = [asyncio.ensure_future(w.call("slow", n)) for n in range(MAX_IDLE + 4)]
    while w.answers.waiting < len(calls):  # noqa: ASYNC110 - a count, no event
        await asyncio.sleep(0.005)
    w.answers.go_on.set()
    assert sorted([(await call)["n"] for call in calls]) == list(range(MAX_IDLE + 4))
    while w.server.connection_count > MAX_IDLE:  # noqa: ASYNC110 - the server has no event for it
        await asyncio.sleep(0.005)
    assert w.server.connection_count == MAX_IDLE


async def test_the_database_goes_along(w: World) -> None:
    await w.transport.call(w.host, {"ping": 1}, timeout_ms=LONG, database="shop")
    await w.transport.call(w.host, {"ping": 1}, timeout_ms=LONG)
    assert [request.database for request in w.answers.asked] == ["shop", "admin"]


async def test_no_server_listens(w: World) -> None:
    host = w.host
    await w.server.close()
    with pytest.raises(ConnectRefusedError, match=str(host)):
        await w.transport.call(host, {"ping": 1}, timeout_ms=LONG)


@pytest.mark.parametrize("name", ["a..b", "x" * 300])
async def test_a_name_that_no_machine_can_have_is_a_member_that_cannot_be_reached(name: str, w: World) -> None:
    """A configuration may hold it; anything but HostUnreachableError would stop the member that calls it."""
    with pytest.raises(NothingSentError, match="cannot be reached"):
        await w.transport.call(HostPort(f"{name}:27017"), {"ping": 1}, timeout_ms=LONG)


async def test_an_answer_that_does_not_come_in_time(w: World) -> None:
    before = w.clock.now()
    with pytest.raises(HostUnreachableError, match=f"did not answer within {SHORT} ms") as caught:
        await w.call("never", timeout_ms=SHORT)
    assert not isinstance(caught.value, NothingSentError), "it was sent; who knows what became of it"
    assert w.clock.now() - before >= SHORT
    assert (await w.call("ping", 3))["n"] == 3
    assert w.network.opened == 2, "a connection that owes an answer is not used again"


async def test_connecting_counts_against_the_time_too(w: World) -> None:
    w.network.connected = asyncio.Event()
    with pytest.raises(NothingSentError, match="did not answer within") as caught:
        await w.call("ping", timeout_ms=SHORT)
    assert not isinstance(caught.value, ConnectRefusedError), "silence is no refusal"


async def test_a_connection_that_breaks_under_a_call(w: World) -> None:
    with pytest.raises(HostUnreachableError, match="cannot be reached") as caught:
        await w.call("drop")
    assert not isinstance(caught.value, NothingSentError)
    assert (await w.call("ping", 4))["n"] == 4


async def test_a_connection_that_broke_while_idle_is_replaced(w: World) -> None:
    await w.call("ping")
    for connection in list(w.server.connections):
        connection.end()
    await turns()
    assert (await w.call("ping", 5))["n"] == 5
    assert w.network.opened == 2


async def test_a_break_by_the_other_end_is_reported_and_ends_the_idle_connections_too(w: World) -> None:
    slow = asyncio.ensure_future(w.call("slow"))
    while w.answers.waiting == 0:  # noqa: ASYNC110 - a count, no event
        await asyncio.sleep(0.005)
    await w.call("ping")  # on a second connection, which is idle then
    next(iter(w.server.connections)).end()
    with pytest.raises(HostUnreachableError):
        await slow
    assert set(w.lost) == {w.host}
    await w.call("ping")
    assert w.network.opened == 3


async def test_a_connection_that_this_end_closes_is_not_reported(w: World) -> None:
    with pytest.raises(HostUnreachableError):
        await w.call("never", timeout_ms=SHORT)
    await w.call("ping")
    await w.transport.close()
    await turns()
    assert w.lost == []


async def test_a_cancelled_call_leaves_its_connection(w: World) -> None:
    call = asyncio.ensure_future(w.call("never"))
    while "never" not in w.answers.names():  # noqa: ASYNC110 - a list, no event
        await asyncio.sleep(0.005)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (await w.call("ping", 6))["n"] == 6
    assert w.network.opened == 2


async def test_closing_fails_the_calls_under_way_and_those_that_come(w: World) -> None:
    call = asyncio.ensure_future(w.call("never"))
    while "never" not in w.answers.names():  # noqa: ASYNC110 - a list, no event
        await asyncio.sleep(0.005)
    await w.transport.close()
    with pytest.raises(HostUnreachableError):
        await call
    with pytest.raises(HostUnreachableError, match="shutting down"):
        await w.call("ping")


# --- cuts -------------------------------------------------------------------------------------------------------


async def test_cut_out_nothing_leaves_and_the_time_runs_out(w: World) -> None:
    await w.call("ping")
    w.transport.cut([w.host], "out")
    before = w.clock.now()
    with pytest.raises(HostUnreachableError, match="cut off"):
        await w.call("lost", timeout_ms=SHORT)
    assert w.clock.now() - before >= SHORT - 1, "a cut is silence, no refusal"
    assert "lost" not in w.answers.names()
    assert w.transport.drops_outbound(w.host)
    assert not w.transport.drops_inbound(w.host)


async def test_cut_in_the_command_arrives_and_its_answer_does_not(w: World) -> None:
    await w.call("ping")
    w.transport.cut([w.host], "in")
    with pytest.raises(HostUnreachableError, match="cut off"):
        await w.call("heard", timeout_ms=SHORT)
    assert "heard" in w.answers.names()
    assert w.transport.drops_inbound(w.host)
    assert not w.transport.drops_outbound(w.host)


async def test_delayed_calls_leave_late_and_within_their_time(w: World) -> None:
    w.transport.delay([w.host], SHORT)
    before = w.clock.now()
    assert (await w.call("ping", 7))["n"] == 7
    assert w.clock.now() - before >= SHORT - 1
    with pytest.raises(HostUnreachableError, match="within"):
        await w.call("late", timeout_ms=Millis(SHORT // 2))
    assert "late" not in w.answers.names()
    w.transport.delay([w.host], NEVER)
    w.transport.cut([], "both")
    await w.call("ping")


async def test_a_cut_is_for_the_named_hosts_alone(w: World) -> None:
    w.transport.cut([HostPort("127.0.0.1:1")], "both")
    assert (await w.call("ping", 7))["n"] == 7
    assert not w.transport.drops_inbound(w.host)


async def test_calls_work_at_once_after_healing(w: World) -> None:
    w.transport.cut([w.host], "both")
    call = asyncio.ensure_future(w.call("lost", timeout_ms=NEVER))
    await turns()
    w.transport.cut([], "both")
    with pytest.raises(HostUnreachableError):
        await call
    assert (await w.call("ping", 8))["n"] == 8


async def test_a_peer_that_drops_messages_does_not_answer(w: World) -> None:
    await w.call("ping")
    w.dropped_in.add(ME)
    with pytest.raises(HostUnreachableError, match="did not answer within"):
        await w.call("lost", timeout_ms=SHORT)
    w.dropped_in.clear()
    assert (await w.call("ping", 9))["n"] == 9
