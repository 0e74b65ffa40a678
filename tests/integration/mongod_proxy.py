"""A member behind a port that lets pass only what every mongod since 4.0 knows: commands, fields, and types of values.

So what works through it needs nothing of this product's own.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from replset.bson import RawDocument, decode, encode
from replset.wire.framing import FrameReader, WireMessage, encode_reply

EVERYWHERE = frozenset({"$db", "lsid", "$clusterTime", "$readPreference", "maxTimeMS", "comment"})
WRITE_FIELDS = "ordered bypassDocumentValidation writeConcern"
FIELDS = {
    "hello": "client saslSupportedMechs helloOk topologyVersion maxAwaitTimeMS",
    "saslStart": "mechanism payload options",
    "saslContinue": "conversationId payload",
    "listDatabases": "nameOnly filter authorizedDatabases",
    "listCollections": "filter nameOnly authorizedCollections cursor",
    "count": "query limit skip hint readConcern collation",
    "find": "filter sort projection hint skip limit batchSize singleBatch readConcern collation",
    "getMore": "collection batchSize",
    "killCursors": "cursors",
    "insert": f"documents {WRITE_FIELDS}",
    "update": f"updates {WRITE_FIELDS}",
    "delete": f"deletes {WRITE_FIELDS}",
}
STATEMENTS = {
    "updates": {"q", "u", "upsert", "multi", "collation", "arrayFilters"},
    "deletes": {"q", "limit", "collation"},
}
INSIDE = {"readConcern": {"level"}, "writeConcern": {"w", "j", "wtimeout"}, "options": {"skipEmptyExchange"}}
OPERATORS = {"$eq", "$gt", "$gte", "$lt", "$lte", "$in", "$expr", "$literal"}


def fault_of(message: WireMessage) -> str:
    """What a mongod would not know of this message; empty when there is nothing."""
    command = decode(message.body.raw)
    name = next(iter(command))
    if name not in FIELDS:
        return f"no such command: {name!r}"
    for field in command.keys() - EVERYWHERE - {name} - set(FIELDS[name].split()):
        return f"{name}.{field} is an unknown field"
    for field, known in INSIDE.items():
        if strange := set(command.get(field, ())) - known:
            return f"{name}.{field}: unknown {strange}"
    if name == "getMore" and message.body.type_of("getMore") != 0x12:
        return "getMore is no long"
    for field in message.sequences.keys() - set(FIELDS[name].split()):
        return f"{name}.{field} is an unknown field"
    for field, known in STATEMENTS.items():
        for row in [*message.sequences.get(field, []), *map(RawDocument, map(encode, command.get(field, [])))]:
            statement = decode(row.raw)
            if strange := statement.keys() - known:
                return f"{name}.{field}: unknown {strange}"
            if strange := set(operators_in(statement["q"])) - OPERATORS:
                return f"{name}.{field}: operators {strange}"
    if strange := set(operators_in(command.get("filter", {}))) - OPERATORS:
        return f"{name}.filter: operators {strange}"
    return ""


def operators_in(query: object) -> Iterator[str]:
    if isinstance(query, list):
        for item in query:
            yield from operators_in(item)
    elif isinstance(query, Mapping):
        for name, value in query.items():
            if name.startswith("$"):
                yield name
            if name != "$literal":
                yield from operators_in(value)


class MongodProxy:
    """passed: the names of the commands that passed. refused: why others did not."""

    def __init__(self, member: str) -> None:
        self._member = member
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self.host = f"127.0.0.1:{self.port}"
        self.names: dict[str, str] = {}
        self.passed: set[str] = set()
        self.refused: list[str] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        host, _, port = self._member.rpartition(":")
        reader = FrameReader()
        with client, socket.create_connection((host, int(port))) as member:
            answers = FrameReader()
            try:
                while data := client.recv(1 << 16):
                    raw = data
                    messages = list(reader.feed(data))
                    while not messages:
                        data = client.recv(1 << 16)
                        if not data:
                            return
                        raw += data
                        messages = list(reader.feed(data))
                    (message,) = messages  # a client that waits for each answer
                    client.sendall(self._answer(message, raw, member, answers))
            except OSError:
                return

    def _answer(self, message: WireMessage, raw: bytes, member: socket.socket, answers: FrameReader) -> bytes:
        for _ in message.cut():
            pass
        name = message.body.first_key or ""
        if fault := fault_of(message):
            self.refused.append(fault)
            return encode_reply(1, message, encode({"ok": 0.0, "code": 40415, "errmsg": fault}))
        self.passed.add(name)
        member.sendall(raw)
        while True:
            data = member.recv(1 << 16)
            if not data:
                raise OSError("the member closed the connection")
            for reply in answers.feed(data):
                return encode_reply(1, message, self._as_mongod(name, reply.body))

    def _as_mongod(self, name: str, body: RawDocument) -> bytes:
        """The reply, in which members have the addresses of their proxies."""
        if name != "hello":
            return body.raw
        reply: dict[str, Any] = decode(body.raw)
        for field in ("primary", "me"):
            if field in reply:
                reply[field] = self.names[reply[field]]
        reply["hosts"] = [self.names[host] for host in reply["hosts"]]
        return encode(reply)

    def close(self) -> None:
        self._listening.close()


@contextmanager
def proxies(members: list[str]) -> Iterator[list[MongodProxy]]:
    """A proxy in front of each member; each names the members by their proxies."""
    made = [MongodProxy(member) for member in members]
    for proxy in made:
        proxy.names = {member: other.host for member, other in zip(members, made, strict=True)}
    try:
        yield made
    finally:
        for proxy in made:
            proxy.close()
