"""A set with every guard on (key file, users, TLS), and what an intruder says to it. Nothing may change the set."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil
import pymongo
import pytest
from pymongo import WriteConcern

from replset.auth.scram import ClientExchange
from replset.bson import Binary, encode
from replset.cli.local_set import HTTP_OFFSET, LocalMember, LocalSetError, wait_until
from replset.client import TLS_CA_VARIABLE, WireClient
from replset.runtime.net.tls import TlsFiles
from replset.wire.framing import encode_msg
from tests.certificates import Authority, flags_of
from tests.integration.conftest import FAST, next_ports
from tests.integration.forked import ForkedSet, running_set

ROOT, PASSWORD = "root", "correct horse"
READER = "reader"
MOST_MORE_BYTES = 64 << 20
"""What a member's memory may be above what it was before, for SQLite's cache and what the allocator keeps."""
WITHIN_S = 20.0


@dataclass
class GuardedSet:
    """Three members; their CA and files. memory: of each process before the first attempt."""

    local: ForkedSet
    ca: Authority
    files: TlsFiles
    memory: list[int] = field(default_factory=list)

    @cached_property
    def primary(self) -> LocalMember:
        host = wait_until(lambda: self.hello(self.local.members[0]).get("primary"), 60, "a primary")
        return next(member for member in self.local.members if member.host == host)

    @cached_property
    def root(self) -> pymongo.MongoClient[dict[str, Any]]:
        return pymongo.MongoClient(
            f"mongodb://{self.primary.host}/?replicaSet={self.local.name}&tls=true&tlsCAFile={self.ca.ca}",
            username=ROOT,
            password=PASSWORD,
            serverSelectionTimeoutMS=20_000,
        )

    def hello(self, member: LocalMember) -> dict[str, Any]:
        reply: dict[str, Any] = member.command({"hello": 1})
        return reply

    def leads(self) -> tuple[object, ...]:
        """Who leads, in which term, and who is in the set, as each member says it."""
        rows = [self.hello(member) for member in self.local.members]
        return tuple((row.get("primary"), row.get("electionId"), tuple(row.get("hosts", ()))) for row in rows)

    def used_bytes(self) -> list[int]:
        return [psutil.Process(member.pid).memory_info().rss for member in self.local.members]

    def check_healthy(self, before: tuple[object, ...]) -> None:
        """All members run, the same one leads in the same term, a write reaches all of them, and memory is back."""
        for member in self.local.members:
            assert member.is_running(), member.last_log_line()
        assert self.leads() == before
        orders = self.root.shop.get_collection("orders", write_concern=WriteConcern(w=3, wtimeout=10_000))
        orders.insert_one({})
        bounds = [size + MOST_MORE_BYTES for size in self.memory]
        wait_until(
            lambda: all(size <= most for size, most in zip(self.used_bytes(), bounds, strict=True)),
            WITHIN_S,
            f"the memory to be back at {self.memory}",
        )

    # --- what an intruder has ------------------------------------------------------------------------------------

    def plain(self, member: LocalMember | None = None, *, http: bool = False, timeout_s: float = 15) -> socket.socket:
        """A TCP connection, before any handshake."""
        port = (member or self.primary).port + (HTTP_OFFSET if http else 0)
        return socket.create_connection(("127.0.0.1", port), timeout=timeout_s)

    def secured(self, member: LocalMember | None = None, *, http: bool = False) -> ssl.SSLSocket:
        """A connection with TLS, by a client that believes the set's CA."""
        context = ssl.create_default_context(cafile=str(self.ca.ca))
        return context.wrap_socket(self.plain(member, http=http), server_hostname="127.0.0.1")

    def ask(self, request: bytes, member: LocalMember | None = None) -> tuple[int, bytes]:
        """Send bytes to the HTTP port and read to the end of the connection. Returns the first status, 0 for none."""
        with self.secured(member, http=True) as connection:
            with contextlib.suppress(OSError):
                connection.sendall(request)
            data = read_all(connection)
        head = data.split(b"\r\n", 1)[0].split()
        return (int(head[1]) if len(head) > 1 and head[0].startswith(b"HTTP/") else 0), data

    def http(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        member: LocalMember | None = None,
    ) -> tuple[int, bytes]:
        """One request with just these headers, its path as it is written here."""
        port = (member or self.primary).port + HTTP_OFFSET
        given = {
            "host": f"127.0.0.1:{port}",
            "connection": "close",
            "content-length": str(len(body)),
            **(headers or {}),
        }
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items())]
        return self.ask("\r\n".join([*lines, "", ""]).encode("latin-1") + body, member)

    def wire(self, member: LocalMember | None = None) -> WireClient:
        return WireClient((member or self.primary).host)


@contextlib.contextmanager
def guarded_set(folder: Path) -> Iterator[GuardedSet]:
    """Start the set, make its users, and warm it up. It ends with the block."""
    ca = Authority(folder)
    files = ca.issue()
    with pytest.MonkeyPatch.context() as patch, running_set(folder / "set") as local:
        patch.setenv(TLS_CA_VARIABLE, str(ca.ca))
        for port in next_ports(3):
            local.plan(port, flags=[*flags_of(files), "--auth", "--enable-test-commands"])
        made = GuardedSet(local, ca, files)
        for member in local.members:
            local.begin(member)
        for member in local.members:
            wait_until(lambda member=member: answers(member), 60, f"{member.name} to answer")
        local.initiate(FAST)
        _make_users(made)
        wait_until(lambda: len({row[0] for row in made.leads()}) == 1, 60, "all to know the primary")
        orders = made.root.shop.get_collection("orders", write_concern=WriteConcern(w=3, wtimeout=60_000))
        for number in range(100):
            orders.insert_one({"_id": number, "pad": "x" * 1000})
        made.memory = made.used_bytes()
        yield made
        made.root.close()


def answers(member: LocalMember) -> bool:
    if not member.is_running():
        raise LocalSetError(f"{member.name} did not start: {member.last_log_line()}")
    return member.command({"hello": 1}).get("ok") == 1.0


def _make_users(made: GuardedSet) -> None:
    """The first one by the localhost exception, the other as root."""
    user: dict[str, object] = {"createUser": ROOT, "pwd": PASSWORD, "roles": ["root"]}
    wait_until(lambda: made.primary.command(user).get("ok") == 1.0, 60, "the first user")
    made.root.admin.command({"createUser": READER, "pwd": PASSWORD, "roles": [{"role": "read", "db": "shop"}]})


def read_all(connection: socket.socket, most: int = 4 << 20) -> bytes:
    """Read until the other end closes; an error ends it too."""
    parts = b""
    with contextlib.suppress(OSError):
        while len(parts) < most and (data := connection.recv(1 << 16)):
            parts += data
    return parts


def is_closed(connection: socket.socket) -> bool:
    """Whether the member closes the connection without an answer."""
    return read_all(connection) == b""


def log_in(client: WireClient, user: str = ROOT, password: str = PASSWORD, database: str = "admin") -> dict[str, Any]:
    """Log in on this connection; return the last reply."""
    exchange = ClientExchange(user, password, os.urandom(24))
    reply = start(client, exchange.first(), database)
    if reply["ok"] != 1.0:
        return reply
    reply = go_on(client, exchange.final(bytes(reply["payload"])), reply["conversationId"], database)
    if reply["ok"] == 1.0:
        exchange.check(bytes(reply["payload"]))
        if not reply["done"]:
            reply = go_on(client, b"", reply["conversationId"], database)
    return reply


def start(client: WireClient, payload: bytes, database: str = "admin", **more: object) -> dict[str, Any]:
    command = {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": Binary(payload), **more}
    return client.command(database, command)


def go_on(client: WireClient, payload: bytes, conversation: object = 1, database: str = "admin") -> dict[str, Any]:
    return client.command(database, {"saslContinue": 1, "conversationId": conversation, "payload": Binary(payload)})


def frame(body: bytes, *, code: int = 2013, length: int | None = None) -> bytes:
    """A message of the wire port whose head may lie."""
    return struct.pack("<iiii", 16 + len(body) if length is None else length, 7, 0, code) + body


def message(document: Mapping[str, object], *, flags: int = 0) -> bytes:
    return encode_msg(7, 0, encode({**document, "$db": "admin"}), flags=flags)
