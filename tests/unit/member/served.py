"""A wire server on real loopback sockets, with a dispatcher that the test answers for, and its clients."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from replset.auth.roles import Action
from replset.bson import Binary, RawDocument, encode
from replset.ids import HostPort
from replset.key_file import NONCE_BYTES, Handshake, Keys
from replset.member.net.connections import ConnectionSlots
from replset.member.net.listening import ListeningSockets
from replset.member.net.network import RealNetwork
from replset.member.net.server import WireServer
from replset.member.process.machine import RealClock
from replset.operations.admission import MAX_BYTES_IN_USE, Admission
from replset.operations.command import PROVE, Command, CommandContext
from replset.operations.request import CommandRequest, Reply
from replset.operations.turns import Turns
from replset.operations.waiters import Completion
from replset.wire.framing import FrameReader, WireMessage, encode_msg

HELLO = {"hello": 1, "$db": "admin"}
OTHER = "127.0.0.1:27999"
SERVED = HostPort("127.0.0.1:0")
"""The name of a server whose dispatcher is the one below."""
PATIENCE_S = 10
QUIET_TURNS = 100
"""Turns of the loop in which nothing comes, before a test believes that nothing comes. Loopback takes one or two."""


async def _never(_ctx: CommandContext) -> Reply:
    raise AssertionError("the dispatcher below answers")


FIND = Command("find", _never, needs=Action.OPEN)


class Dispatcher:
    """Answers {ok: 1, n: <n of the command>}; commands named in `answers` answer as the test says."""

    def __init__(self) -> None:
        self.asked: list[CommandRequest] = []
        self.answers: dict[str, Callable[[CommandRequest], Awaitable[Reply]]] = {}
        self.find_reply: bytes | None = None
        """What a find is answered before the task of its connection runs."""
        self.running = 0
        self.most_at_once = 0
        self.cancelled = asyncio.Event()

    def at_once(self, body: RawDocument) -> Command | None:
        return FIND if self.find_reply is not None and body.raw.startswith(b"find\0", 5) else None

    def begin(self, command: Command, request: CommandRequest, waiter: Completion) -> bool:
        waiter.set_result(self.find_reply)
        return True

    async def run(self, request: CommandRequest) -> Reply:
        self.asked.append(request)
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        try:
            answer = self.answers.get(request.body.first_key or "")
            if answer is not None:
                return await answer(request)
            return answer_proof(request, SERVED) or {"ok": 1.0, "n": request.body.get("n")}
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        finally:
            self.running -= 1

    @property
    def names(self) -> list[str | None]:
        return [request.body.first_key for request in self.asked]


def answer_proof(request: CommandRequest, address: HostPort) -> Reply | None:
    """Answer a proof as a member without a key file; None: it is another command."""
    body, connection = request.body, request.connection
    if body.first_key != PROVE:
        return None
    if body.get(PROVE) == 1:
        nonce = bytes(NONCE_BYTES)
        connection.handshake = Handshake(HostPort(str(body.get("member"))), address, bytes(body.get("nonce")), nonce)
        return {"ok": 1.0, "nonce": Binary(nonce)}
    assert connection.handshake is not None
    connection.member = connection.handshake.asking
    proof = Keys.public().answer(connection.handshake, [bytes(each) for each in body.get("proofs")])
    assert proof is not None
    return {"ok": 1.0, "proof": Binary(proof)}


class Client:
    """A raw connection: frames out, messages in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self._frames = FrameReader()
        self._got: list[WireMessage] = []
        self._ids = itertools.count(1)

    def send(self, command: Mapping[str, object], *, flags: int = 0) -> int:
        request_id = next(self._ids)
        self.writer.write(encode_msg(request_id, 0, encode(command), flags=flags))
        return request_id

    async def receive(self) -> WireMessage:
        async with asyncio.timeout(PATIENCE_S):
            while not self._got:
                data = await self._reader.read(1 << 16)
                assert data, "the server closed the connection"
                self._got += self._frames.feed(data)
        return self._got.pop(0)

    async def ask(self, command: Mapping[str, object]) -> dict[str, Any]:
        request_id = self.send(command)
        answer = await self.receive()
        assert answer.response_to == request_id
        return answer.body.decode()

    async def prove(self, address: HostPort) -> None:
        """Prove to the member at `address` that this is the one at OTHER."""
        step = {PROVE: 1, "member": OTHER, "address": address, "nonce": Binary(bytes(NONCE_BYTES)), "$db": "admin"}
        theirs = bytes((await self.ask(step))["nonce"])
        proofs = Keys.public().proofs("asking", Handshake(HostPort(OTHER), address, bytes(NONCE_BYTES), theirs))
        await self.ask({PROVE: 2, "proofs": [Binary(proof) for proof in proofs], "$db": "admin"})

    async def is_closed(self) -> bool:
        """Wait until the server closes the connection."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await self._reader.read() == b""
        except ConnectionResetError:
            return True

    async def receives_nothing(self) -> bool:
        """Whether nothing comes, nor the end of the connection."""
        reading = asyncio.ensure_future(self._reader.read(1))
        for _ in range(QUIET_TURNS):
            await asyncio.sleep(0)
        was_waiting = reading.cancel()
        await asyncio.sleep(0)
        return was_waiting


class Served:
    """A listening server and the cuts that it asks about."""

    def __init__(self, max_connections: int = 100, most_held: int = MAX_BYTES_IN_USE) -> None:
        self.admission = Admission(most_held)
        self.turns = Turns(RealClock().now)
        self.dispatcher = Dispatcher()
        self.dropped_in: set[str] = set()
        self.dropped_out: set[str] = set()
        self.clients: list[Client] = []
        self.address = HostPort("127.0.0.1:0")
        slots = ConnectionSlots(max_connections, "wire")
        network = RealNetwork(has_room=slots.has_room)

        class Listening:
            """RealNetwork, on a port that the system picks."""

            @staticmethod
            async def serve(address: HostPort, factory: Callable[[], asyncio.BaseProtocol]) -> ListeningSockets:
                server = await network.serve(address, factory)
                self.address = HostPort(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
                return server

        self.server = WireServer(
            Listening(),
            self.dispatcher,
            drops_inbound=self.dropped_in.__contains__,
            drops_outbound=self.dropped_out.__contains__,
            slots=slots,
            admission=self.admission,
            turns=self.turns,
        )

    async def settled(self) -> None:
        """Let the loop turn until the server has taken in all that it takes in."""
        still, before = 0, -1
        while still < QUIET_TURNS:
            await asyncio.sleep(0)
            now = self.server.traffic.bytes_in
            still, before = (still + 1 if now == before else 0), now

    async def client(self) -> Client:
        host, _, port = self.address.rpartition(":")
        client = Client(*await asyncio.open_connection(host, int(port)))
        self.clients.append(client)
        return client


@asynccontextmanager
async def serving(**options: Any) -> Any:
    served = Served(**options)
    await served.server.start(served.address)
    try:
        yield served
    finally:
        await served.server.close()
        for client in served.clients:
            client.writer.close()
            try:
                await client.writer.wait_closed()
            except OSError:
                continue


def ping(number: int) -> dict[str, object]:
    return {"ping": 1, "n": number, "$db": "admin"}
