"""The real network behind the port `Network`: TCP on this machine's interfaces."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from replset.ids import HostPort


def split_host_port(address: HostPort) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


class RealNetwork:
    """TCP without Nagle's delay: commands are small and somebody waits for each."""

    async def serve(self, address: HostPort, factory: Callable[[], asyncio.Protocol]) -> asyncio.Server:
        host, port = split_host_port(address)
        loop = asyncio.get_running_loop()
        return await loop.create_server(lambda: _NoDelay(factory()), host, port, backlog=1024, reuse_address=True)

    async def connect(self, address: HostPort, factory: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        host, port = split_host_port(address)
        transport, _ = await asyncio.get_running_loop().create_connection(lambda: _NoDelay(factory()), host, port)
        return transport


class _NoDelay(asyncio.Protocol):
    """Sets TCP_NODELAY, then hands the connection over to the protocol inside."""

    def __init__(self, inner: asyncio.Protocol) -> None:
        self._inner = inner

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if isinstance(transport, asyncio.Transport):
            transport.set_protocol(self._inner)
        self._inner.connection_made(transport)
