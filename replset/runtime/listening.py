"""Accepts connections, many in one turn of the event loop.

uvloop's own server takes one connection a turn. A turn of a busy member takes a tenth of a second, so hundreds of
clients that connected at once, after a failover say, waited for half a minute, and health checks behind them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final

log = logging.getLogger("replset.listening")

ACCEPTED_AT_ONCE: Final = 128
PAUSE_S: Final = 0.2
"""After an accept for which the system had no room; the client waits in the backlog."""
NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class ListeningSockets:
    """Listens on `sockets`, which are bound, and makes a protocol of `factory` for each connection."""

    def __init__(self, sockets: Sequence[socket.socket], factory: Callable[[], asyncio.Protocol], backlog: int) -> None:
        """Begin to listen. OSError: an address is in use."""
        self._loop = asyncio.get_running_loop()
        self.sockets = list(sockets)
        self._factory = factory
        self._opening: set[asyncio.Task[None]] = set()
        for one in self.sockets:
            one.setblocking(False)
            one.listen(backlog)
        for one in self.sockets:
            self._loop.add_reader(one, self._accept, one)

    def close(self) -> None:
        """Stop listening. Connections that are open stay open."""
        for one in self.sockets:
            self._loop.remove_reader(one)
            one.close()
        self.sockets.clear()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted, _ = listening.accept()
            except OSError as error:
                if error.errno in NO_ROOM:
                    self._pause(listening, error)
                if error.errno in NO_ROOM or isinstance(error, BlockingIOError):
                    return
                continue  # the client has left again
            task = self._loop.create_task(self._open(accepted))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        with contextlib.suppress(OSError):  # the client has left again
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(self._factory, accepted)
            return
        accepted.close()

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        log.warning("no connection can be accepted for %g s: %s", PAUSE_S, error.strerror)
        self._loop.remove_reader(listening)
        self._loop.call_later(PAUSE_S, self._go_on, listening)

    def _go_on(self, listening: socket.socket) -> None:
        if listening in self.sockets:
            self._loop.add_reader(listening, self._accept, listening)


def bound_socket(family: int, address: Any) -> socket.socket:
    """Return a socket that is bound to the address. OSError: it is in use, or is no address of this machine."""
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound
