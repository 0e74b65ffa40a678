"""A client of the wire protocol over the simulated network; its framing is its own, not the code under test."""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Mapping
from typing import Any

from replset.bson import decode, encode
from replset.ids import HostPort
from tests.simulation.kit.network import NetworkPort

_OP_MSG = 2013
_MESSAGE = struct.Struct("<iiiiIB")


class NoAnswerError(Exception):
    """No connection, a broken one, or no reply in time: what became of the command is unknown unless `unsent`."""

    def __init__(self, reason: str, *, unsent: bool = False) -> None:
        super().__init__(reason)
        self.unsent = unsent


class _Stream(asyncio.Protocol):
    """One connection; one command at a time."""

    def __init__(self) -> None:
        self.transport: Any = None
        self._buffer = bytearray()
        self._answer: asyncio.Future[bytes] | None = None
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= _MESSAGE.size:
            length, _, _, code, _, kind = _MESSAGE.unpack_from(self._buffer)
            if len(self._buffer) < length:
                return
            if (code, kind) != (_OP_MSG, 0):
                raise AssertionError(f"a reply with opcode {code}, section {kind}")
            body = bytes(self._buffer[_MESSAGE.size : length])
            del self._buffer[:length]
            if self._answer is not None and not self._answer.done():
                self._answer.set_result(body)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(NoAnswerError(f"connection lost: {exc}"))

    async def ask(self, request: bytes) -> bytes:
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self._answer


class SimClient:
    """Keeps one connection to each host it talks to; commands to one host go one after the other."""

    def __init__(self, network: NetworkPort) -> None:
        self._network = network
        self._streams: dict[HostPort, _Stream] = {}
        self._request_ids = itertools.count(1)

    async def call(
        self, host: HostPort, database: str, command: Mapping[str, object], timeout_s: float = 8.0
    ) -> dict[str, Any]:
        """The reply document, ok or not. NoAnswerError when there is none."""
        return decode(await self.ask(host, database, command, timeout_s))

    async def ask(self, host: HostPort, database: str, command: Mapping[str, object], timeout_s: float) -> bytes:
        """As `call`; the bytes of the document."""
        body = encode({**command, "$db": database})
        request = _MESSAGE.pack(_MESSAGE.size + len(body), next(self._request_ids), 0, _OP_MSG, 0, 0) + body
        try:
            stream = await asyncio.wait_for(self._stream(host), timeout_s)
        except (OSError, TimeoutError) as error:
            raise NoAnswerError(f"no connection to {host}: {error}", unsent=True) from None
        try:
            return await asyncio.wait_for(stream.ask(request), timeout_s)
        except TimeoutError:
            self.forget(host)
            raise NoAnswerError(f"no reply from {host} in {timeout_s} s") from None
        except NoAnswerError:
            self.forget(host)
            raise

    async def _stream(self, host: HostPort) -> _Stream:
        stream = self._streams.get(host)
        if stream is None or stream.lost:
            stream = _Stream()
            await self._network.connect(host, lambda: stream)
            self._streams[host] = stream
        return stream

    def forget(self, host: HostPort) -> None:
        """Close the connection to `host`; a late reply must not be taken for the next one's."""
        stream = self._streams.pop(host, None)
        if stream is not None and not stream.lost:
            stream.transport.close()

    def close(self) -> None:
        for host in list(self._streams):
            self.forget(host)
