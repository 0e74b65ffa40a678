"""The real network behind the port `Network`: TCP on this machine's interfaces, with TLS or without."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable

from replset.ids import HostPort
from replset.member.net.connections import BACKLOG
from replset.member.net.listening import HANDSHAKE_S, ListeningSockets, always, bound_socket
from replset.member.net.tls import MemberTls


def split_host_port(address: HostPort) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


class RealNetwork:
    """TCP; asyncio and uvloop switch Nagle's delay off themselves."""

    def __init__(
        self, backlog: int = BACKLOG, tls: MemberTls | None = None, has_room: Callable[[int], bool] = always
    ) -> None:
        """has_room: see ListeningSockets."""
        self._has_room = has_room
        self._backlog = backlog
        self._tls = tls

    async def serve(self, address: HostPort, factory: Callable[[], asyncio.BaseProtocol]) -> ListeningSockets:
        """Listen on every address that the name in `address` stands for."""
        tls = self._tls
        name, port = split_host_port(address)
        found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
        with contextlib.ExitStack() as opened:
            sockets = [
                opened.enter_context(bound_socket(*one)) for one in dict.fromkeys((row[0], row[4]) for row in found)
            ]
            listening = ListeningSockets(
                sockets,
                factory,
                self._backlog,
                None if tls is None else lambda: tls.wire,
                tls_is_optional=tls is not None and tls.is_optional,
                has_room=self._has_room,
            )
            opened.pop_all()
        return listening

    async def connect(self, address: HostPort, factory: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        """Connect. OSError: nobody answers, or with TLS, the other end has no certificate for the name in `address`.

        Where TLS is optional, a member that does not speak it is reached without it.
        """
        host, port = split_host_port(address)
        loop = asyncio.get_running_loop()
        if self._tls is None:
            transport, _ = await loop.create_connection(factory, host, port)
            return transport
        try:
            transport, _ = await loop.create_connection(
                factory, host, port, ssl=self._tls.client, ssl_handshake_timeout=HANDSHAKE_S
            )
        except (ssl.SSLError, ConnectionResetError) as error:
            # A member without TLS closes the connection. One that takes too long for the handshake may have it.
            if not self._tls.is_optional or isinstance(error, ssl.SSLCertVerificationError):
                reason = str(error) or "the other end closed the connection; it may have no TLS"
                raise ConnectionAbortedError(errno.ECONNABORTED, f"TLS: {reason}") from error
            transport, _ = await loop.create_connection(factory, host, port)
        return transport
