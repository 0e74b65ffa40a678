"""Connections to other members where TLS is optional: which of them go on without it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from replset.ids import HostPort
from replset.member.net import network
from replset.member.net.network import RealNetwork
from replset.member.net.tls import MemberTls
from tests.certificates import Authority
from tests.unit.member.test_listening import LOOPS, run

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """As a member without TLS does, which reads an unknown opcode."""
    await reader.read(16)
    writer.transport.abort()


async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """As a member does that hangs."""
    await reader.read()
    writer.close()


async def with_server(serve: Serve, tls: MemberTls) -> tuple[int, str]:
    """Connect to what serves so. Return how many connections it had, and the error."""
    served = 0

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        served += 1
        await serve(reader, writer)

    reason = ""
    async with await asyncio.start_server(count, "127.0.0.1", 0) as server:
        address = HostPort(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        try:
            (await RealNetwork(tls=tls).connect(address, asyncio.Protocol)).abort()
        except ConnectionAbortedError as error:
            reason = error.strerror or str(error)
        await asyncio.sleep(0.05)  # for a connection that is not accepted yet
    return served, reason


@LOOPS
@pytest.mark.parametrize(
    ("serve", "is_optional", "served", "why"),
    [
        (hang_up, True, 2, ""),
        (hang_up, False, 1, "TLS: the other end closed the connection; it may have no TLS"),
        (say_nothing, True, 1, "handshake"),
    ],
    ids=["optional, none there", "required, none there", "hangs"],
)
def test_only_where_tls_is_optional_and_not_there_a_member_is_reached_without_it(
    loop: Callable[[], asyncio.AbstractEventLoop],
    serve: Serve,
    is_optional: bool,
    served: int,
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A member that hangs for longer than a handshake may speak TLS: what it is sent then must not be in the clear."""
    monkeypatch.setattr(network, "HANDSHAKE_S", 0.2)
    tls = MemberTls(Authority(tmp_path).issue(), "127.0.0.1", is_optional=is_optional)

    async def main() -> None:
        times, reason = await with_server(serve, tls)
        assert times == served
        assert why in reason
        assert bool(reason) is bool(why)

    run(loop, main())
