"""Floors: what any server in Python and SQLite pays on this machine. Figures of two machines compare by them.

`echo` answers messages of an insert's size with uvloop and nothing else; `apsw_rows_per_s` commits groups of rows and
syncs the WAL after each. `python -m tools.bench.floors PORT` is the server.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import apsw
import uvloop

from replset.bson import encode
from replset.local_set import free_ports, wait_until
from replset.wire.framing import encode_msg
from tools.bench.subjects import answers

_REPLY = encode_msg(1, 0, encode({"n": 1, "electionId": b"x" * 12, "opTime": b"x" * 26, "ok": 1.0, "pad": b"x" * 60}))
"""As long as the answer to an insert."""


class Echo(asyncio.Protocol):
    """Answers each message with the same reply."""

    def __init__(self) -> None:
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data
        while len(buffer) >= 4 and len(buffer) >= (size := int.from_bytes(buffer[:4], "little")):
            self._transport.write(_REPLY)
            buffer = buffer[size:]
        self._buffer = buffer


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", port)
    await server.serve_forever()


class EchoSubject:
    """Lets the echo server be loaded, with the requests of the mode `w1`."""

    name = "echo"
    secondaries: Sequence[int] = ()

    def __init__(self, primary: int, port: int) -> None:
        self.primary = primary
        self.port = port

    def target(self, row: str) -> tuple[str, int] | None:
        return ("w1", self.port) if row == "floor" else None

    def member_messages(self) -> None:
        return None

    def settle(self) -> None:
        return None


@contextmanager
def running_echo() -> Iterator[EchoSubject]:
    (port,) = free_ports(1, 38117)
    process = subprocess.Popen([sys.executable, "-m", "tools.bench.floors", str(port)])
    try:
        wait_until(lambda: answers(port), 30, "the echo server")
        yield EchoSubject(process.pid, port)
    finally:
        process.terminate()
        process.wait()


def apsw_rows_per_s(group: int, seconds: float, folder: Path | None = None) -> float:
    """Return how many rows of 256 bytes become durable in a second, with one commit and sync for each `group`."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        connection = apsw.Connection(f"{place}/floor.db")
        connection.pragma("journal_mode", "wal")
        connection.pragma("synchronous", "off")
        connection.execute("CREATE TABLE rows (id BLOB PRIMARY KEY, doc BLOB) WITHOUT ROWID")
        wal = os.open(f"{place}/floor.db-wal", os.O_RDWR)
        document, written, began = b"x" * 244, 0, time.perf_counter()
        while (spent := time.perf_counter() - began) < seconds:
            rows = [(number.to_bytes(12, "big"), document) for number in range(written, written + group)]
            with connection:
                connection.executemany("INSERT INTO rows VALUES (?, ?)", rows)
            os.fdatasync(wal)
            written += group
        os.close(wal)
        connection.close()
        return written / spent


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
