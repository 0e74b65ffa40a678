"""Accepts connections, many in one turn of the event loop.

uvloop's own server takes one connection a turn. A turn of a busy member takes a tenth of a second, so hundreds of
clients that connected at once, after a failover say, waited for half a minute, and health checks behind them.

A connection waits in the backlog while those that were accepted have all the descriptors that they may have.

With TLS a connection is given to its protocol after the handshake. Before, it is not counted as a client's. So the
number of those that have not ended their handshake is limited, and a client that is slow at it makes room for the next
one. TLS takes some 60 kB of a connection, from the first byte that its client sends. In one turn few handshakes begin:
each costs up to some milliseconds, depending on the key.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from replset.operations.repeated_warnings import RepeatedWarnings

log = logging.getLogger("replset.listening")

ACCEPTED_AT_ONCE: Final = 128
PAUSE_S: Final = 0.2
"""The pause after an accept for which the system had no room; the client waits in the backlog."""
HANDSHAKE_S: Final = 10.0
HANDSHAKES: Final = 512
"""Connections of one port that have not ended their handshake. Where descriptors are few, `has_room` allows fewer.

At most so many strangers make way in PATIENCE_S, so an honest client behind a full backlog of them waits for 2 s."""
BEGUN_AT_ONCE: Final = 8
"""Handshakes that begin in one turn of the event loop."""
PATIENCE_S: Final = 1.0
"""A handshake that takes longer is ended for a new connection, if there are as many as may be."""
FULL_PAUSE_S: Final = 0.01
TLS_HANDSHAKE: Final = b"\x16\x03"
"""How each TLS connection begins: a handshake record of version 3."""
WIRE_OPCODES: Final = (b"\xdd\x07\0\0", b"\xd4\x07\0\0")
"""OP_MSG and OP_QUERY. A message of 790 bytes begins as TLS does, but has one of these in its header."""
NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def always(_opening: int) -> bool:
    """Accept however many connections are open."""
    return True


class ListeningSockets:
    """Listens on `sockets`, which are bound, and makes a protocol of `factory` for each connection."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        factory: Callable[[], asyncio.BaseProtocol],
        backlog: int,
        tls: Callable[[], ssl.SSLContext] | None = None,
        *,
        tls_is_optional: bool = False,
        has_room: Callable[[int], bool] = always,
    ) -> None:
        """Begin to listen. tls: asked for each connection; None: no TLS. OSError: an address is in use.

        has_room: says whether a connection may be accepted, given the number of those that have no protocol yet.

        tls_is_optional: a connection whose first bytes are no TLS is served without it.
        """
        self._loop = asyncio.get_running_loop()
        self.sockets = list(sockets)
        self._factory = factory
        self._tls = tls
        self._tls_is_optional = tls_is_optional
        self._has_room = has_room
        self._opening: dict[asyncio.Task[None], float] = {}  # since when, the oldest first
        self._beginnings = asyncio.Semaphore(BEGUN_AT_ONCE)
        self._unopened = 0  # these and those that were cancelled and have their descriptor still
        self._repeated = RepeatedWarnings(log, self._loop.time)
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
        for task in list(self._opening):
            task.cancel()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            if not self._may_accept():
                self._pause(listening, FULL_PAUSE_S)
                return
            try:
                accepted, peer = listening.accept()
            except OSError as error:
                if error.errno in NO_ROOM:
                    log.warning("no connection can be accepted for %g s: %s", PAUSE_S, error.strerror)
                    self._pause(listening, PAUSE_S)
                if error.errno in NO_ROOM or isinstance(error, BlockingIOError):
                    return
                continue  # the client has left again
            task = self._loop.create_task(self._open(accepted, peer))
            self._opening[task] = self._loop.time()
            self._unopened += 1
            task.add_done_callback(partial(self._opened, accepted))

    def _may_accept(self) -> bool:
        """Whether there is a descriptor for a connection, and with TLS, whether one more handshake may begin."""
        if not self._has_room(self._unopened):
            if self._tls is not None:
                self._end_oldest()  # its descriptor is free in the next turn
            return False
        return self._tls is None or len(self._opening) < HANDSHAKES or self._end_oldest()

    def _end_oldest(self) -> bool:
        """End the oldest handshake if it has had its time."""
        if not self._opening:
            return False
        oldest, since = next(iter(self._opening.items()))
        if self._loop.time() - since < PATIENCE_S:
            return False
        del self._opening[oldest]
        oldest.cancel()
        return True

    def _opened(self, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        if task.cancelled():  # perhaps before it began, so that `_open` has not closed it
            accepted.close()
        self._opening.pop(task, None)
        self._unopened -= 1

    async def _open(self, accepted: socket.socket, peer: object) -> None:
        try:
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is None or not await self._begins_tls(accepted):
                await self._loop.connect_accepted_socket(self._factory, accepted)
            else:
                await self._beginnings.acquire()
                self._loop.call_soon(self._beginnings.release)
                self._wait_anew_for_client()
                await self._loop.connect_accepted_socket(
                    self._factory, accepted, ssl=self._tls(), ssl_handshake_timeout=HANDSHAKE_S
                )
        except OSError as error:  # the client has left again, or speaks no TLS
            accepted.close()
            if self._tls is not None:
                self._warn_of_handshake(peer, error)
        except BaseException:
            accepted.close()
            raise

    def _wait_anew_for_client(self) -> None:
        """Note that from now on the client is waited for, and no longer this member: its time begins again."""
        task = asyncio.current_task()
        if task is not None and self._opening.pop(task, None) is not None:
            self._opening[task] = self._loop.time()

    async def _begins_tls(self, accepted: socket.socket) -> bool:
        """Wait for the client's first bytes, which stay to be read. False: no TLS. TimeoutError: none came."""
        readable: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(accepted, _finish, readable)
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await readable
        except TimeoutError:
            raise TimeoutError(f"nothing was sent for {HANDSHAKE_S:g} s") from None
        finally:
            self._loop.remove_reader(accepted)
        if not self._tls_is_optional:
            return True
        head = accepted.recv(16, socket.MSG_PEEK)
        return head.startswith(TLS_HANDSHAKE) and head[12:] not in WIRE_OPCODES

    def _warn_of_handshake(self, peer: object, error: OSError) -> None:
        host = peer[0] if isinstance(peer, tuple) else peer
        self._repeated.warn("TLS", f"a TLS handshake with {host} failed: {error}")

    def _pause(self, listening: socket.socket, seconds: float) -> None:
        self._loop.remove_reader(listening)
        self._loop.call_later(seconds, self._go_on, listening)

    def _go_on(self, listening: socket.socket) -> None:
        if listening in self.sockets:
            self._loop.add_reader(listening, self._accept, listening)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


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
