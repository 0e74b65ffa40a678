"""Sends commands to other members, on pooled connections (the port `MemberClient`).

A connection carries one command at a time, and concurrent calls use one connection each. So a fetch that waits for new
entries never delays a heartbeat. On each new connection both ends first prove that they are members. A test cut drops
or delays the messages to and from named hosts, without an error, as a network would. It does not affect clients'
connections.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Literal, cast

from replset.bson import Binary, Document, RawDocument
from replset.errors import (
    ConnectRefusedError,
    HostUnreachableError,
    NothingSentError,
    RemoteProtocolError,
    UnprovenMemberError,
)
from replset.ids import HostPort, Millis
from replset.key_file import NONCE_BYTES, Handshake, Keys
from replset.member.net.tls import Certifies, needs_no_certificate
from replset.replication.ports import Clock, Network
from replset.wire.framing import FrameReader, WireMessage, encode_request, message_ids
from replset.wire.message_version import FIELDS, other_messages

MAX_IDLE = 6


class Transport:
    """See the module."""

    def __init__(
        self,
        network: Network,
        clock: Clock,
        local_host: HostPort,
        keys: Keys,
        rng: random.Random,
        on_lost: Callable[[HostPort], None] = lambda _: None,
        certifies: Certifies = needs_no_certificate,
    ) -> None:
        """keys: by which members prove themselves. on_lost: called when the other end breaks a connection.

        certifies: says of a connection's TLS whether the other end has shown a member's certificate.
        """
        self._certifies = certifies
        self._on_lost = on_lost
        self._keys = keys
        self._rng = rng
        self._network = network
        self._clock = clock
        self._local_host = local_host
        self._idle: dict[HostPort, list[_PeerConnection]] = {}
        self._in_use: dict[_PeerConnection, None] = {}
        self._cut_in: frozenset[HostPort] = frozenset()
        self._cut_out: frozenset[HostPort] = frozenset()
        self._delayed: frozenset[HostPort] = frozenset()
        self._delay_ms = 0
        self._waits: set[asyncio.Future[None]] = set()
        self._closed = False

    # --- calling -------------------------------------------------------------------------------------------------

    async def call(
        self,
        host: HostPort,
        command: Document,
        *,
        timeout_ms: Millis,
        database: str = "admin",
    ) -> RawDocument:
        """See MemberClient.call. NothingSentError, one of its HostUnreachableErrors, where no connection came about."""
        deadline = self._clock.now() + timeout_ms
        if host in self._cut_out:
            await self._wait_while_cut(host, deadline)
        connection: _PeerConnection | None = None
        try:
            if host not in self._delayed:
                connection = self._take_idle(host)
            if connection is None:
                async with asyncio.timeout(max(1, timeout_ms) / 1000):
                    if host in self._delayed:
                        await asyncio.sleep(self._delay_ms / 1000)
                    connection = self._take_idle(host) or await self._connect(host)
            reply = await connection.call(command, database, max(1, deadline - self._clock.now()) / 1000)
        except TimeoutError:
            kind = NothingSentError if connection is None else HostUnreachableError
            raise kind(f"{host} did not answer within {timeout_ms} ms") from None
        except OSError as error:
            kind = NothingSentError if connection is None else HostUnreachableError
            if connection is None and isinstance(error, ConnectionRefusedError):
                kind = ConnectRefusedError
            elif connection is None and isinstance(error, PermissionError) and error.errno is None:  # ours, see prove
                kind = UnprovenMemberError
            raise kind(f"{host} cannot be reached: {error.strerror or error}") from error
        finally:
            if connection is not None:
                self._give_back(connection)
        if host in self._cut_in:
            await self._wait_while_cut(host, deadline)
        return reply

    def _take_idle(self, host: HostPort) -> _PeerConnection | None:
        """A connection that is open and not in use; None: there is none."""
        idle = self._idle.get(host)
        while idle:
            connection = idle.pop()
            if connection.is_fit:
                self._in_use[connection] = None
                return connection
            connection.abort()
        return None

    async def _connect(self, host: HostPort) -> _PeerConnection:
        connection = _PeerConnection(host, self._local_host, self._on_broken_by_other)
        try:
            await self._network.connect(host, lambda: connection)
            certified = connection.is_certified_by(self._certifies)
            if not certified and not self._keys.is_secret:
                raise PermissionError("its certificate is not one of a member (same O, OU and DC)")
            await connection.prove(self._keys.on(certified=certified), self._rng.randbytes(NONCE_BYTES))
        except ValueError as error:  # what a resolver makes of a name that cannot be one, as a..b
            raise OSError(f"no address can have this name: {error}") from error
        except BaseException:
            connection.abort()
            raise
        if self._closed:
            connection.abort()
            raise ConnectionAbortedError("this member is shutting down")
        self._in_use[connection] = None
        return connection

    def _give_back(self, connection: _PeerConnection) -> None:
        self._in_use.pop(connection, None)
        idle = self._idle.setdefault(connection.host, [])
        if connection.is_fit and len(idle) < MAX_IDLE and not self._closed:
            idle.append(connection)
        else:
            connection.abort()

    def _on_broken_by_other(self, host: HostPort) -> None:
        """Give up the idle connections too. The process may be gone; the next call finds out by a fresh connect."""
        for connection in self._idle.pop(host, ()):
            connection.abort()
        if not self._closed:
            self._on_lost(host)

    async def close(self) -> None:
        """Break every connection; calls under way fail."""
        self._closed = True
        for connection in [*self._in_use, *(row for rows in self._idle.values() for row in rows)]:
            connection.abort()
        self._idle.clear()
        self._end_waits()

    # --- cuts (tests only) ---------------------------------------------------------------------------------------

    def cut(self, hosts: Sequence[HostPort], direction: Literal["both", "in", "out"]) -> None:
        """From now on drop traffic with exactly these hosts, that way; no hosts: heal."""
        named = frozenset(hosts)
        self._cut_in = named if direction in ("both", "in") else frozenset()
        self._cut_out = named if direction in ("both", "out") else frozenset()
        self._delayed = frozenset()
        self._end_waits()

    def delay(self, hosts: Sequence[HostPort], delay_ms: Millis) -> None:
        """From now on calls to exactly these hosts leave so much later; cuts end."""
        self.cut((), "both")
        self._delayed, self._delay_ms = frozenset(hosts), delay_ms

    def drops_inbound(self, host: HostPort) -> bool:
        """Whether a test cut drops the commands of the member at `host`."""
        return host in self._cut_in

    def drops_outbound(self, host: HostPort) -> bool:
        """Whether a test cut drops the replies to the member at `host`."""
        return host in self._cut_out

    async def _wait_while_cut(self, host: HostPort, deadline: int) -> None:
        """Wait until the deadline, as for an answer that does not come. A change of the cuts ends the wait at once."""
        loop = asyncio.get_running_loop()
        wait: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(max(1, deadline - self._clock.now()) / 1000, _finish, wait)
        self._waits.add(wait)
        try:
            await wait
        finally:
            timer.cancel()
            self._waits.discard(wait)
        raise HostUnreachableError(f"{host} did not answer (cut off by replSetTestCut)")

    def _end_waits(self) -> None:
        for wait in list(self._waits):
            _finish(wait)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _give_up(answer: asyncio.Future[WireMessage]) -> None:
    if not answer.done():
        answer.set_exception(TimeoutError())


class _PeerConnection(asyncio.Protocol):
    """Is one connection to another member. It carries one command at a time."""

    def __init__(self, host: HostPort, local_host: HostPort, on_broken_by_other: Callable[[HostPort], None]) -> None:
        self.host = host
        self._on_broken_by_other = on_broken_by_other
        self._local_host = local_host
        self._reader = FrameReader()
        self._ids = message_ids()
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[WireMessage] | None = None
        self._answers_to = 0
        self._broken = False

    @property
    def is_fit(self) -> bool:
        """Open, and not waiting for an answer that somebody gave up on."""
        return not self._broken and self._answer is None and self._transport is not None

    def is_certified_by(self, certifies: Certifies) -> bool:
        """Whether the other end has shown a member's certificate, or needs none."""
        return self._transport is not None and certifies(self._transport.get_extra_info("ssl_object"))

    async def call(self, command: Document, database: str, timeout_s: float | None = None) -> RawDocument:
        """Send and wait; OSError when the connection breaks, TimeoutError after so long (None: the caller sees to it).

        A call that ended without an answer leaves the connection unfit.
        """
        if self._transport is None or self._broken:
            raise ConnectionResetError("the connection is closed")
        loop = asyncio.get_running_loop()
        self._answers_to = next(self._ids)
        answer: asyncio.Future[WireMessage] = loop.create_future()
        self._answer = answer
        timer = None if timeout_s is None else loop.call_later(timeout_s, _give_up, answer)
        try:
            self._transport.write(encode_request(self._answers_to, command, database))
            message = await answer
        finally:
            if timer is not None:
                timer.cancel()
        self._answer = None
        return message.body

    async def prove(self, keys: Keys, nonce: bytes) -> None:
        """Prove to the other end that this member knows a key, and let it prove the same. PermissionError."""
        begin = {"replSetProve": 1, "member": self._local_host, "address": self.host, "nonce": Binary(nonce), **FIELDS}
        answer = await self.call(begin, "admin")
        if refusal := other_messages(answer, self.host):
            raise PermissionError(refusal)
        their_nonce = self._binary(answer, "nonce")
        handshake = Handshake(self._local_host, self.host, nonce, their_nonce)
        proofs = [Binary(proof) for proof in keys.proofs("asking", handshake)]
        reply = await self.call({"replSetProve": 2, "proofs": proofs}, "admin")
        # Whoever took a member's address over could otherwise answer as that member: hand out oplog entries and
        # configurations that are none of the set's.
        if not keys.accept(handshake, self._binary(reply, "proof")):
            raise PermissionError("it did not prove that it knows a key of this member's key file")

    def _binary(self, reply: RawDocument, name: str) -> bytes:
        value = reply.get(name)
        if reply.get("ok") == 1 and isinstance(value, Binary):
            return bytes(value)
        raise PermissionError(f"no proof of membership: {reply.get('errmsg')}")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            messages = self._reader.feed(data)
        except RemoteProtocolError as error:
            self._break(ConnectionAbortedError(error.message))
            return
        for message in messages:
            if message.response_to == self._answers_to and self._answer is not None and not self._answer.done():
                self._answer.set_result(message)

    def connection_lost(self, exc: Exception | None) -> None:
        was_broken = self._broken
        self._break(ConnectionResetError("the connection broke"))
        if not was_broken:
            self._on_broken_by_other(self.host)

    def abort(self) -> None:
        self._break(ConnectionAbortedError("closed"))

    def _break(self, error: OSError) -> None:
        self._broken = True
        if self._transport is not None:
            self._transport.abort()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
