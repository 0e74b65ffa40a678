"""Closed-loop load: N connections, each sends its next write when the last was answered. Cheap on purpose."""

from __future__ import annotations

import abc
import asyncio
import json
import os
import struct
import time
from dataclasses import dataclass, field
from itertools import count
from typing import cast

from replset.bson import Binary, Int64, ObjectId, RawDocument, decode, encode

PAYLOAD = "x" * 190
"""Makes the document 256 bytes long with its fields."""


@dataclass(slots=True)
class Result:
    """Counts and latencies of one run."""

    writes: int = 0
    seconds: float = 0.0
    latencies_ms: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def per_second(self) -> float:
        return self.writes / self.seconds if self.seconds else 0.0

    def percentile(self, share: float) -> float:
        ordered = sorted(self.latencies_ms)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def a_document(number: int) -> dict[str, object]:
    return {"_id": ObjectId(number.to_bytes(12, "big")), "n": number & 0x7FFFFFFF, "who": "bench", "pad": PAYLOAD}


class _Client(asyncio.Protocol, abc.ABC):
    """One connection; subclasses know the protocol."""

    def __init__(self, numbers: count[int], result: Result, done: asyncio.Event) -> None:
        self.numbers, self.result, self.done = numbers, result, done
        self.buffer = b""
        self.began = 0.0
        self.counting = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.send()

    @abc.abstractmethod
    def request(self, number: int) -> bytes: ...

    @abc.abstractmethod
    def whole(self) -> int:
        """Length of the first answer in the buffer, 0 when it is not all there."""

    @abc.abstractmethod
    def good(self, answer: bytes) -> bool: ...

    def send(self) -> None:
        if self.transport is None or self.done.is_set():
            return
        self.began = time.perf_counter()
        self.transport.write(self.request(next(self.numbers)))

    def data_received(self, data: bytes) -> None:
        self.buffer = self.buffer + data if self.buffer else data
        length = self.whole()
        if not length:
            return
        answer, self.buffer = self.buffer[:length], self.buffer[length:]
        if self.good(answer):
            if self.counting:
                self.result.writes += 1
                self.result.latencies_ms.append((time.perf_counter() - self.began) * 1000)
        elif len(self.result.errors) < 5:
            self.result.errors.append(repr(answer[:400]))
        self.send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.is_set():
            self.result.errors.append(f"connection lost: {exc}")
        self.transport = None


class WireClient(_Client):
    """insert of one document by OP_MSG."""

    def __init__(self, concern: dict[str, object], numbers: count[int], result: Result, done: asyncio.Event) -> None:
        super().__init__(numbers, result, done)
        body = {"insert": "bench", "documents": [RawDocument(encode(a_document(0)))], "writeConcern": concern}
        self._before = b"\x00\x00\x00\x00\x00" + encode({**body, "$db": "bench"})
        self._at = self._before.index(b"\x07_id\x00") + 5

    def request(self, number: int) -> bytes:
        at = self._at
        message = b"".join((self._before[:at], number.to_bytes(12, "big"), self._before[at + 12 :]))
        return struct.pack("<iiii", len(message) + 16, number & 0x7FFFFFFF, 0, 2013) + message

    def whole(self) -> int:
        if len(self.buffer) < 4:
            return 0
        length = int.from_bytes(self.buffer[:4], "little")
        return length if len(self.buffer) >= length else 0

    def good(self, answer: bytes) -> bool:
        return b"\x10n\x00\x01\x00\x00\x00" in answer and b"writeConcernError" not in answer


class RetryableClient(WireClient):
    """As WireClient, with a session and a transaction number, as drivers send it."""

    def __init__(self, concern: dict[str, object], numbers: count[int], result: Result, done: asyncio.Event) -> None:
        super().__init__(concern, numbers, result, done)
        session = {"lsid": {"id": Binary(os.urandom(16), 4)}, "txnNumber": Int64(0)}
        self._before = b"\x00\x00\x00\x00\x00" + encode({**decode(self._before[5:]), **session})
        self._number_at = self._before.index(b"\x12txnNumber\x00") + 11
        self._numbers = count(1)

    def request(self, number: int) -> bytes:
        at, before = self._number_at, self._before
        self._before = b"".join((before[:at], next(self._numbers).to_bytes(8, "little"), before[at + 8 :]))
        return super().request(number)


class HttpClient(_Client):
    """POST /v1/action/insertOne."""

    def __init__(self, concern: dict[str, object], numbers: count[int], result: Result, done: asyncio.Event) -> None:
        super().__init__(numbers, result, done)
        document = {"_id": {"$oid": "0" * 24}, "n": 0, "who": "bench", "pad": PAYLOAD}
        body = {"database": "bench", "collection": "bench", "document": document, "writeConcern": concern}
        text = json.dumps(body, separators=(",", ":"))
        head = "POST /v1/action/insertOne HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(text)}\r\n\r\n"
        self._before, self._after = (head + text).split("0" * 24)

    def request(self, number: int) -> bytes:
        return f"{self._before}{number:024x}{self._after}".encode()

    def whole(self) -> int:
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return 0
        head = self.buffer[:end].lower()
        at = head.find(b"content-length:")
        length = int(head[at + 15 :].split(b"\r\n", 1)[0])
        return end + 4 + length if len(self.buffer) >= end + 4 + length else 0

    def good(self, answer: bytes) -> bool:
        return answer.startswith(b"HTTP/1.1 201")


async def run_load(
    kind: type[WireClient] | type[HttpClient],
    port: int,
    concern: dict[str, object],
    *,
    connections: int,
    seconds: float,
    warm_up_s: float,
    first: int,
) -> Result:
    """Load one member for `seconds` after a warm-up that is not counted. `first`: the first number of an _id."""
    loop = asyncio.get_running_loop()
    result, done, numbers = Result(), asyncio.Event(), count(first)
    clients: list[_Client] = []
    for _ in range(connections):
        _, opened = await loop.create_connection(lambda: kind(concern, numbers, result, done), "127.0.0.1", port)
        clients.append(opened)
    await asyncio.sleep(warm_up_s)
    for client in clients:
        client.counting = True
    began = time.perf_counter()
    await asyncio.sleep(seconds)
    result.seconds = time.perf_counter() - began
    for client in clients:
        client.counting = False
    done.set()
    await asyncio.sleep(0.3)
    for client in clients:
        if client.transport is not None:
            client.transport.close()
    return result
