"""The real network behind the port `Network`: TCP on this machine's interfaces."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

from replset.ids import HostPort
from replset.runtime.connections import BACKLOG
from replset.runtime.listening import ListeningSockets, bound_socket


def split_host_port(address: HostPort) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


class RealNetwork:
    """TCP; asyncio and uvloop switch Nagle's delay off themselves."""

    def __init__(self, backlog: int = BACKLOG) -> None:
        self._backlog = backlog

    async def serve(self, address: HostPort, factory: Callable[[], asyncio.Protocol]) -> ListeningSockets:
        """Listen on every address that the name in `address` stands for."""
        name, port = split_host_port(address)
        found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
        with contextlib.ExitStack() as opened:
            sockets = [
                opened.enter_context(bound_socket(*one)) for one in dict.fromkeys((row[0], row[4]) for row in found)
            ]
            listening = ListeningSockets(sockets, factory, self._backlog)
            opened.pop_all()
        return listening

    async def connect(self, address: HostPort, factory: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        host, port = split_host_port(address)
        transport, _ = await asyncio.get_running_loop().create_connection(factory, host, port)
        return transport
