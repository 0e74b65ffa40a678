"""The real network behind the port `Network`: TCP on this machine's interfaces."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from replset.ids import HostPort
from replset.runtime.connections import BACKLOG


def split_host_port(address: HostPort) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


class RealNetwork:
    """TCP; asyncio and uvloop switch Nagle's delay off themselves."""

    def __init__(self, backlog: int = BACKLOG) -> None:
        self._backlog = backlog

    async def serve(self, address: HostPort, factory: Callable[[], asyncio.Protocol]) -> asyncio.Server:
        host, port = split_host_port(address)
        loop = asyncio.get_running_loop()
        return await loop.create_server(factory, host, port, backlog=self._backlog, reuse_address=True)

    async def connect(self, address: HostPort, factory: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        host, port = split_host_port(address)
        transport, _ = await asyncio.get_running_loop().create_connection(factory, host, port)
        return transport
