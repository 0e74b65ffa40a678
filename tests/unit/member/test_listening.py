"""Listening sockets: many connections in one turn of the loop, and none is lost when the system has no room."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
import struct
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest
import uvloop

from replset.member.net import listening
from replset.member.net.connections import ConnectionSlots
from replset.member.net.listening import ListeningSockets, bound_socket

CLIENTS = 100


class Greeter(asyncio.Protocol):
    """Says hello to whoever connects."""

    made = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        Greeter.made += 1
        cast("asyncio.Transport", transport).write(b"hello")
        transport.close()


def run(loop: Callable[[], asyncio.AbstractEventLoop], main: Coroutine[Any, Any, None]) -> None:
    Greeter.made = 0
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(asyncio.wait_for(main, 20))


def connected(address: Any, count: int) -> list[socket.socket]:
    return [socket.create_connection(address) for _ in range(count)]


async def greet(client: socket.socket) -> bytes:
    client.setblocking(False)
    with client:
        return await asyncio.get_running_loop().sock_recv(client, 10)


LOOPS = pytest.mark.parametrize("loop", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])


@LOOPS
def test_many_clients_are_accepted_in_a_few_turns(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def main() -> None:
        bound = bound_socket(socket.AF_INET, ("127.0.0.1", 0))
        address = bound.getsockname()
        server = ListeningSockets([bound], Greeter, 1024)
        clients = connected(address, CLIENTS)
        turns = 0
        while Greeter.made < CLIENTS:
            turns += 1
            await asyncio.sleep(0)
        assert turns < CLIENTS / 2
        assert await asyncio.gather(*map(greet, clients)) == [b"hello"] * CLIENTS
        server.close()
        with pytest.raises(ConnectionRefusedError):
            connected(address, 1)

    run(loop, main())


class Idler(asyncio.Protocol):
    """Says hello, then waits for its client. It has a slot as the wire port's connections have one."""

    idle_since = 0.0

    def __init__(self, slots: ConnectionSlots) -> None:
        self._slots = slots

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        assert self._slots.take(self)
        self._transport.write(b"hello")

    def connection_lost(self, exc: Exception | None) -> None:
        self._slots.give_back_descriptor()
        self._slots.release(self)

    def close_idle(self) -> None:
        self._slots.release(self)
        self._transport.abort()


@LOOPS
def test_of_many_that_wait_only_as_many_are_accepted_as_have_descriptors(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """A file that is opened in any turn of the loop finds a descriptor, and who waited longest comes first."""
    slots = ConnectionSlots(10, "wire")
    slots.spare = 2

    async def main() -> None:
        bound = bound_socket(socket.AF_INET, ("127.0.0.1", 0))
        server = ListeningSockets([bound], lambda: Idler(slots), 1024, has_room=slots.has_room)
        clients = connected(bound.getsockname(), CLIENTS)
        before, most = open_sockets(), 0
        last = asyncio.ensure_future(greet(clients.pop()))
        while not last.done():
            await asyncio.sleep(0)
            most = max(most, open_sockets())
        server.close()
        for client in clients:
            client.close()
        assert last.result() == b"hello"
        assert 10 <= most - before <= 12
        assert slots.closed_idle == CLIENTS - len(slots)
        for _ in range(20):  # turns, in which the others' ends are seen
            await asyncio.sleep(0.001)
        assert slots.has_room(11), "each descriptor was given back"

    run(loop, main())


def open_sockets() -> int:
    """Return how many descriptors of this process are sockets."""
    number = 0
    for one in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of this very list
            number += os.readlink(f"/proc/self/fd/{one}").startswith("socket:")
    return number


@LOOPS
def test_handshakes_count_as_descriptors_until_they_have_ended(
    loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strangers that begin no handshake make room for who comes after them, within the descriptors."""
    monkeypatch.setattr(listening, "PATIENCE_S", 0.001)
    slots = ConnectionSlots(10, "wire")
    slots.spare = 2

    async def main() -> None:
        bound = bound_socket(socket.AF_INET, ("127.0.0.1", 0))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server = ListeningSockets(
            [bound], lambda: Idler(slots), 1024, lambda: context, tls_is_optional=True, has_room=slots.has_room
        )
        clients = connected(bound.getsockname(), CLIENTS)
        before, most = open_sockets(), 0
        clients[-1].sendall(b"GET / HTTP/1.1\r\n\r\n")
        last = asyncio.ensure_future(greet(clients.pop()))
        while not last.done():
            await asyncio.sleep(0)
            most = max(most, open_sockets())
        server.close()
        for client in clients:
            client.close()
        assert last.result() == b"hello"
        assert most - before <= 12

    run(loop, main())


CLIENT_HELLO = b"\x16\x03\x01\x02\0" + bytes(512)


@LOOPS
def test_few_handshakes_begin_in_one_turn_and_none_before_the_client_sends(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """Each takes memory and time for a key's signature, a hundred at once as much as an election timeout."""
    begun = 0

    def context() -> ssl.SSLContext:
        nonlocal begun
        begun += 1
        return ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    async def main() -> None:
        bound = bound_socket(socket.AF_INET, ("127.0.0.1", 0))
        server = ListeningSockets([bound], Greeter, 1024, context)
        clients = connected(bound.getsockname(), CLIENTS)
        for _ in range(20):  # turns
            await asyncio.sleep(0.001)
        assert begun == 0
        for client in clients:
            client.sendall(CLIENT_HELLO)
        most = seen = 0
        while begun < CLIENTS:
            await asyncio.sleep(0)
            most, seen = max(most, begun - seen), begun
        assert most <= listening.BEGUN_AT_ONCE
        server.close()
        for client in clients:
            client.close()

    run(loop, main())


@LOOPS
def test_a_handshake_that_has_begun_has_its_own_time(
    loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crowd at the port makes a member slow to begin. The client, which cannot help it, is not ended for it."""
    monkeypatch.setattr(listening, "HANDSHAKES", 3)
    monkeypatch.setattr(listening, "PATIENCE_S", 0)

    async def main() -> None:
        bound = bound_socket(socket.AF_INET, ("127.0.0.1", 0))
        server = ListeningSockets([bound], Greeter, 16, lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        begun, silent = connected(bound.getsockname(), 2)
        while len(server._opening) < 2:  # noqa: ASYNC110 - a count, no event
            await asyncio.sleep(0)
        begun.sendall(CLIENT_HELLO[:5])
        tasks = list(server._opening)
        while list(server._opening) == tasks:  # noqa: ASYNC110 - an order, no event
            await asyncio.sleep(0)
        (late,) = connected(bound.getsockname(), 1)
        assert await greet(silent) == b"", "it has waited longest for its client"
        assert next(iter(server._opening)) is tasks[0]
        server.close()
        begun.close()
        late.close()

    run(loop, main())


@LOOPS
def test_a_connection_that_is_given_up_at_once_is_closed(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def main() -> None:
        bound = bound_socket(socket.AF_INET, ("127.0.0.1", 0))
        server = ListeningSockets([bound], lambda: Idler(ConnectionSlots(10)), 8)
        (client,) = connected(bound.getsockname(), 1)
        server._accept(bound)
        server.close()
        assert await greet(client) == b""

    run(loop, main())


class Full(socket.socket):
    """Has no room at first, and then a client that has left again."""

    errors: list[int]

    def accept(self) -> tuple[socket.socket, Any]:
        if self.errors:
            raise OSError(self.errors.pop(0), "no")
        return super().accept()


@LOOPS
def test_a_client_waits_while_the_system_has_no_room(
    loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "PAUSE_S", 0.01)

    async def main() -> None:
        full = Full(socket.AF_INET, socket.SOCK_STREAM)
        full.errors = [errno.EMFILE, errno.ENFILE, errno.ECONNABORTED]
        full.bind(("127.0.0.1", 0))
        server = ListeningSockets([full], Greeter, 16)
        (client,) = connected(full.getsockname(), 1)
        assert await greet(client) == b"hello"
        assert not full.errors
        full.errors = [errno.EMFILE]
        (client,) = connected(full.getsockname(), 1)
        await asyncio.sleep(0.005)
        server.close()
        await asyncio.sleep(0.02)  # the pause ends on a closed socket
        client.close()

    run(loop, main())


HELLO_OF_790_BYTES = struct.pack("<iiii", 790, 1, 0, 2013) + bytes(774)


@LOOPS
@pytest.mark.parametrize(
    ("first_bytes", "is_tls"),
    [(b"GET / HTTP/1.1\r\n\r\n", False), (HELLO_OF_790_BYTES, False), (CLIENT_HELLO, True)],
    ids=["http", "a message that begins as TLS does", "TLS"],
)
def test_where_tls_is_optional_the_first_bytes_tell(
    loop: Callable[[], asyncio.AbstractEventLoop], first_bytes: bytes, is_tls: bool
) -> None:
    async def main() -> None:
        bound = bound_socket(socket.AF_INET, ("127.0.0.1", 0))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server = ListeningSockets([bound], Greeter, 16, lambda: context, tls_is_optional=True)
        (client,) = connected(bound.getsockname(), 1)
        client.sendall(first_bytes)
        answer = await greet(client)
        assert (answer == b"hello") is not is_tls, answer
        server.close()

    run(loop, main())


@LOOPS
def test_where_tls_is_optional_a_client_that_sends_nothing_is_closed(
    loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listening, "HANDSHAKE_S", 0.1)

    async def main() -> None:
        bound = bound_socket(socket.AF_INET, ("127.0.0.1", 0))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server = ListeningSockets([bound], Greeter, 16, lambda: context, tls_is_optional=True)
        (client,) = connected(bound.getsockname(), 1)
        assert await greet(client) == b""
        server.close()

    run(loop, main())
    assert "127.0.0.1 failed: nothing was sent for 0.1 s" in caplog.text


def test_an_address_in_use() -> None:
    with bound_socket(socket.AF_INET, ("127.0.0.1", 0)) as first:
        first.listen()
        with pytest.raises(OSError, match="in use"):
            bound_socket(socket.AF_INET, first.getsockname())
