"""One real member in this process, on a virtual clock: its commands, its wire port's connections, its HTTP API."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import quote

from api.app import create_app
from replset.bson import InvalidBSONError, RawDocument, decode, encode
from replset.errors import LONGEST_MESSAGE
from replset.features.all import PRIVATE
from replset.ids import HostPort
from replset.member.member import RunningMember
from replset.member.net.wire_connection import WireConnection
from replset.operations.request import CommandRequest, ConnectionContext, Source
from tests.simulation.kit.cluster import SimCluster

T = TypeVar("T")
PATIENCE_S = 100.0
"""Of virtual time; who is not answered by then hangs up."""
ERRORS = Path(__file__).parents[2] / "docs" / "errors.md"
KNOWN_CODES = frozenset(
    int(number)
    for row in re.findall(r"^\| (\d[\d, ]*) \|", ERRORS.read_text(encoding="utf-8"), re.MULTILINE)
    for number in row.split(",")
) - {1}
"""What docs/errors.md lists, but for InternalError."""


class OneMember:
    """The member and what can be asked of it. `renewed` says how often it had to be replaced by a new one."""

    def __init__(self) -> None:
        self._cluster: SimCluster | None = None
        self.renewed = 0
        self.open()

    def open(self) -> None:
        """A new set of one, primary."""
        self._cluster = SimCluster(members=1)
        self._cluster.initiate()
        self._connection = ConnectionContext(1, "127.0.0.1:1")
        self.app = create_app(self.member)

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    @property
    def cluster(self) -> SimCluster:
        assert self._cluster is not None
        return self._cluster

    @property
    def member(self) -> RunningMember:
        running = self.cluster.machines["a"].running
        assert running is not None, "the member runs"
        return running

    def in_time(self, work: Awaitable[T], seconds: float = PATIENCE_S) -> T | None:
        """What `work` gives; None when it takes longer."""

        async def wait() -> T | None:
            try:
                return await asyncio.wait_for(work, seconds)
            except TimeoutError:
                return None

        return self.cluster.run(wait())

    def ask(
        self,
        body: bytes,
        database: str = "test",
        sequences: dict[str, list[RawDocument]] | None = None,
        source: Source = "wire",
    ) -> dict[str, Any] | None:
        """The reply of the dispatcher; None when there is none in time."""
        document = RawDocument(body)
        with suppress(InvalidBSONError):  # what members ask each other comes from a member
            self._connection.member = HostPort("b:27017") if document.first_key in PRIVATE else None
        request = CommandRequest(database, document, sequences or {}, self._connection, source)
        reply = self.in_time(self.member.dispatcher.run(request))
        return None if reply is None else decode(reply if isinstance(reply, bytes) else encode(reply))

    def is_well(self) -> None:
        """It runs, nothing was left unhandled, and it answers. One that is not primary any more is replaced."""
        assert self.cluster.broken == []
        assert self.cluster.loop.unhandled == []
        reply = self.ask(encode({"ping": 1}))
        assert reply is not None
        assert reply["ok"] == 1.0, reply
        if not self.member.node.writable:
            self.close()
            self.open()
            self.renewed += 1

    def connect(self) -> Wire:
        return Wire(self)

    def http(self, method: str, path: str, query: bytes, headers: list[tuple[bytes, bytes]], body: bytes) -> Http:
        """One exchange with the API; an answer that does not end is broken off."""
        answer = Http()
        chunks = [body[: len(body) // 2], body[len(body) // 2 :]]

        async def receive() -> dict[str, Any]:
            if chunks:
                part = chunks.pop(0)
                return {"type": "http.request", "body": part, "more_body": bool(chunks)}
            await asyncio.sleep(5)
            return {"type": "http.disconnect"}

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": quote(path).encode(),
            "root_path": "",
            "query_string": query,
            "headers": [(b"host", b"localhost:28017"), (b"content-length", str(len(body)).encode()), *headers],
            "client": ("127.0.0.1", 5),
            "server": ("127.0.0.1", 28017),
        }
        app = cast("Callable[..., Awaitable[None]]", self.app)
        self.in_time(app(scope, receive, answer.send), 20)
        return answer


class Http:
    """An answer of the API."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode().lower(): value.decode("latin-1") for name, value in message["headers"]}
        else:
            self.body += message.get("body", b"")
            await asyncio.sleep(0)


class Wire(asyncio.Transport):
    """The client's end of one connection: a transport that keeps what the member writes."""

    def __init__(self, one: OneMember) -> None:
        super().__init__()
        self._loop = one.cluster.loop
        self.written = b""
        self.is_open = True
        self.reading = True

        async def open_it() -> WireConnection:
            protocol = WireConnection(one.member._server)
            protocol.connection_made(self)
            return protocol

        self.protocol = one.cluster.run(open_it())

    def feed(self, data: bytes) -> None:
        """What came from the client; on the loop. A real transport gives nothing while reading is paused."""
        if self.is_open:
            self.protocol.data_received(data)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self.is_open:
            self.written += bytes(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return not self.is_open

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._loop.call_soon(self.protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()


def known(reply: dict[str, Any], what: object) -> str:
    """A word for the reply; AssertionError when it is no clear answer."""
    if reply.get("ok") == 1.0:
        return "ok"
    code = reply.get("code")
    assert code in KNOWN_CODES, (code, reply.get("errmsg"), what)
    assert reply.get("codeName")
    assert 0 < len(reply["errmsg"]) <= LONGEST_MESSAGE, what
    return f"code {code}"


@contextmanager
def one_member() -> Iterator[OneMember]:
    one = OneMember()
    try:
        yield one
    finally:
        one.close()
