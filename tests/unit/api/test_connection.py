"""The HTTP port on real sockets: heads that are too large or never end, bodies that never come, slots."""

from __future__ import annotations

import asyncio
import contextlib
import email
import email.utils
import json
import re
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from api import connection, exchange, limits
from api.lines import BATCH_BYTES
from api.serve import HttpServer
from replset.bson import Int64, RawDocument, encode
from replset.ids import HostPort
from replset.member.net.connections import ConnectionSlots
from replset.operations import turns
from replset.operations.admission import MAX_BYTES_IN_USE
from replset.operations.request import CommandRequest, Reply
from replset.operations.turns import Turns
from tests.programs import free_port
from tests.unit.api.kit import Api

ON_SOCKETS = True
HEAD = b"GET /health HTTP/1.1\r\nhost: localhost\r\n"
POST = b"POST /v1/action/find HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


class Served:
    def __init__(self, api: Api, port: int, most: int) -> None:
        self.api, self.port = api, port
        self.slots = ConnectionSlots(most, "HTTP")
        self.turns = Turns(lambda: 0)
        admission = api.member.admission
        self.server = HttpServer(api.app, HostPort(f"127.0.0.1:{port}"), self.slots, admission, self.turns, 64)

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def answer(self, *pieces: bytes) -> bytes:
        """Everything that comes back until the server closes the connection."""
        reader, writer = await self.open()
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            async with asyncio.timeout(20):
                return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.close()


@pytest.fixture
def api(api: Api) -> Api:
    """Its member stands on a loop of its own, which does not go on: the test answers all commands."""
    found = {"id": 0, "ns": "shop.orders", "firstBatch": []}
    api.answers |= {"insert": {"ok": 1.0, "n": 1}, "find": {"ok": 1.0, "cursor": found}, "ping": {"ok": 1.0}}
    return api


@pytest.fixture
def served(api: Api, loop: asyncio.AbstractEventLoop) -> Iterator[Served]:
    context = serving(api)
    yield loop.run_until_complete(context.__aenter__())
    loop.run_until_complete(context.__aexit__(None, None, None))


@asynccontextmanager
async def serving(api: Api, most: int = 100) -> AsyncIterator[Served]:
    served = Served(api, free_port(), most)
    await served.server.start()
    try:
        yield served
    finally:
        await served.server.stop()


def status_of(answer: bytes) -> int:
    return int(answer.split()[1]) if answer else 0


@pytest.mark.parametrize(
    "extra",
    [
        pytest.param(b"x: " + b"y" * (connection.MAX_HEAD_BYTES + 1) + b"\r\n", id="one-large-header"),
        pytest.param(b"x: y\r\n" * (connection.MAX_HEADERS + 1), id="many-headers"),
        pytest.param((b"x: " + b"y" * 1000 + b"\r\n") * 70, id="large-in-all"),
    ],
)
async def test_a_head_that_is_too_large_is_refused(extra: bytes, served: Served) -> None:
    answer = await served.answer(HEAD + extra + b"\r\n")
    assert status_of(answer) == 431
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == 9


async def test_a_head_without_end_is_refused_long_before_it_is_large(api: Api, served: Served) -> None:
    reader, writer = await served.open()
    writer.write(HEAD + b"x: ")
    sent = 0
    try:
        while sent < 8 << 20:
            writer.write(b"y" * (64 << 10))
            await writer.drain()
            sent += 64 << 10
    except OSError:
        pass
    try:
        answer = await reader.read()
    except ConnectionResetError:
        answer = b""
    assert status_of(answer) in (0, 431)
    assert sent < 8 << 20 or answer
    assert api.member.admission.in_use == 0
    writer.close()


async def test_what_is_within_the_limits_is_served_also_in_small_pieces(served: Served) -> None:
    headers = b"".join(b"x%d: %s\r\n" % (number, b"y" * 600) for number in range(90))
    head = HEAD + headers + b"connection: close\r\n\r\n"
    pieces = [head[at : at + 5_000] for at in range(0, len(head), 5_000)]
    assert status_of(await served.answer(*pieces)) == 200
    twice = await served.answer(HEAD + b"\r\n" + HEAD + b"connection: close\r\n\r\n")
    assert twice.count(b" 200 OK") == 2, "requests in one go"


def answers_in(received: bytes) -> list[int]:
    """The statuses of all answers."""
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d+)", received)]


INSERT = POST.replace(b"find", b"insertOne")
DOCUMENT = b'{"database": "a", "collection": "b", "document": {"x": "%s"}}'
IN_CHUNKS = INSERT + b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n"
MANY_FORMS = [
    HEAD + b"\r\n",
    b"\r\n" + INSERT + b"content-length: %d\r\n\r\n" % len(DOCUMENT) + DOCUMENT,
    IN_CHUNKS % (len(DOCUMENT) + 4, DOCUMENT + b"\r\n\r\n") + b"\r\n",
    IN_CHUNKS % (len(DOCUMENT), DOCUMENT) + b"x: y\r\n\r\n",
    HEAD + b"content-length: 0\r\n\r\n",
]
"""Bodies of known length and in chunks, with an empty line and with trailers."""


@pytest.mark.parametrize("size", [1, 3, 100, 100_000])
async def test_requests_that_come_before_an_answer_are_parsed_one_by_one_however_they_are_cut(
    api: Api, size: int
) -> None:
    whole = b"".join(MANY_FORMS) + HEAD + b"connection: close\r\n\r\n"
    async with serving(api) as served:
        received = await served.answer(*[whole[at : at + size] for at in range(0, len(whole), size)])
        assert answers_in(received) == [200, 201, 201, 201, 200, 200]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - counts, no events
        await asyncio.sleep(0.01)


def held_app(api: Api, gate: asyncio.Event) -> list[str]:
    """Answer no request before the gate opens. Return the paths of those that have begun."""
    begun: list[str] = []
    routes = api.app

    async def waiting(scope: exchange.Scope, receive: exchange.Receive, send: exchange.Send) -> None:
        begun.append(scope["path"])
        await gate.wait()
        await routes(scope, receive, send)

    api.app = waiting
    return begun


async def test_a_request_waits_unparsed_and_counted_until_the_one_before_is_answered(api: Api) -> None:
    gate = asyncio.Event()
    begun = held_app(api, gate)
    async with serving(api) as served, asyncio.timeout(20):
        reader, writer = await served.open()
        writer.write((HEAD + b"\r\n") * 1000 + HEAD + b"connection: close\r\n\r\n")
        admission = api.member.admission
        await until(lambda: admission.in_use > 0)
        assert len(begun) == 1
        gate.set()
        assert answers_in(await reader.read()) == [200] * 1001
        assert admission.in_use == 0
        writer.close()


async def test_little_is_read_of_what_is_sent_ahead(api: Api) -> None:
    gate = asyncio.Event()
    held_app(api, gate)
    async with serving(api) as served, asyncio.timeout(20):
        _, writer = await served.open()
        writer.write((HEAD + b"\r\n") * 400_000)
        await until(lambda: api.member.admission.in_use > 0)
        for _ in range(1000):  # turns
            await asyncio.sleep(0)
        assert api.member.admission.in_use <= 1 << 20
        writer.transport.abort()
        gate.set()


async def test_who_sends_ahead_what_there_is_no_memory_for_gets_the_answer_under_way_and_no_more(api: Api) -> None:
    gate = asyncio.Event()
    begun = held_app(api, gate)
    async with serving(api) as served, asyncio.timeout(20):
        admission = api.member.admission
        admission.add(MAX_BYTES_IN_USE)
        sending, small = [await served.open() for _ in range(2)]
        for _, writer in (sending, small):
            writer.write(HEAD + b"\r\n")
        await until(lambda: len(begun) == 2)
        small[1].write(HEAD + b"connection: close\r\n\r\n")
        sending[1].write((HEAD + b"\r\n") * 1000)
        await until(lambda: admission.refused > 0)
        gate.set()
        assert answers_in(await small[0].read()) == [200, 200]
        with contextlib.suppress(ConnectionResetError):
            assert answers_in(await sending[0].read()) in ([], [200])
        await until(lambda: not len(served.slots))
        assert len(begun) == 3
        assert admission.in_use == MAX_BYTES_IN_USE
        for _, writer in (sending, small):
            writer.close()


async def test_a_turn_of_the_loop_answers_few_requests_over_all_connections(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "COMMANDS", 4)
    loop, turn, begun = asyncio.get_running_loop(), 0, Counter[int]()

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(next_turn)

    async def noting(scope: exchange.Scope, receive: exchange.Receive, send: exchange.Send) -> None:
        begun[turn] += 1
        await routes(scope, receive, send)

    routes, api.app = api.app, noting
    next_turn()
    async with serving(api) as served, asyncio.timeout(60):
        whole = (HEAD + b"\r\n") * 9 + HEAD + b"connection: close\r\n\r\n"
        for received in await asyncio.gather(*[served.answer(whole) for _ in range(30)]):
            assert answers_in(received) == [200] * 10
        assert max(begun.values()) <= 4
        assert sum(begun.values()) == 300


async def test_a_body_of_many_chunks_is_parsed_in_many_turns(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each chunk is a call, also of one byte; an empty line in a chunk is a step."""
    most, steps = 0, 0
    parse, feed = connection.HttpConnection._parse, connection.HttpConnection._feed

    def counted_parse(self: connection.HttpConnection) -> None:
        nonlocal most, steps
        steps = 0
        parse(self)
        most = max(most, steps)

    def counted_feed(self: connection.HttpConnection, piece: bytes) -> None:
        nonlocal steps
        steps += 1
        assert len(piece) <= connection.STEP_BYTES
        feed(self, piece)

    monkeypatch.setattr(connection.HttpConnection, "_parse", counted_parse)
    monkeypatch.setattr(connection.HttpConnection, "_feed", counted_feed)
    document = DOCUMENT % (b"x" * 20_000)
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in document) + b"4\r\n\r\n\r\n\r\n" * 100
    request = INSERT + b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    async with serving(api) as served:
        assert status_of(await served.answer(request)) == 201
    assert most == connection.STEPS
    assert api.member.admission.in_use == 0


LENGTH = b"content-length: %d\r\n"


@pytest.mark.parametrize(
    ("request_bytes", "status", "code", "text"),
    [
        pytest.param(b"GET /health HTTP/1.1\r\nhost x\r\n\r\n", 400, 9, "header token", id="header-without-colon"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400, 9, "malformed HTTP", id="tls"),
        pytest.param(b"GET /\xff HTTP/1.1\r\nhost: localhost\r\n\r\n", 400, 9, "malformed HTTP", id="path"),
        pytest.param(b"GET x:y:z HTTP/1.1\r\nhost: localhost\r\n\r\n", 400, 9, "malformed HTTP", id="target"),
        pytest.param(POST + LENGTH % 1 + LENGTH % 2 + b"\r\n", 400, 9, "Content-Length", id="two-lengths"),
        pytest.param(POST + b"content-length: 1x\r\n\r\n", 400, 9, "Content-Length", id="no-length"),
        pytest.param(
            POST + LENGTH % 2 + b"transfer-encoding: chunked\r\n\r\n{}", 400, 9, "Transfer-Encoding", id="both-lengths"
        ),
        pytest.param(
            POST + b"transfer-encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 501, 238, "chunked", id="gzip"
        ),
        pytest.param(
            POST + b"transfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            501,
            238,
            "gzip",
            id="twice",
        ),
        pytest.param(POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n", 400, 9, "chunk size", id="chunk-size"),
        pytest.param(POST + LENGTH % 10**12 + b"\r\n", 413, 10334, "is over", id="length-beyond-all-bounds"),
        pytest.param(POST + LENGTH % 10**30 + b"\r\n", 400, 9, "Content-Length", id="length-of-no-number"),
        pytest.param(
            POST + LENGTH % 10**8 + b"expect: 100-continue\r\n\r\n", 413, 10334, "is over", id="too-long-to-begin"
        ),
        pytest.param(
            POST + b"transfer-encoding: chunked\r\n\r\n0\r\n" + b"x: yyyyyyy\r\n" * 9_000,
            431,
            9,
            "64 KiB",
            id="trailers",
        ),
        pytest.param(
            POST + b"transfer-encoding: chunked\r\n\r\n1;x=" + b"y" * 99_000, 431, 9, "64 KiB", id="chunk-extension"
        ),
    ],
)
async def test_malformed_requests_get_an_error_document_and_the_connection_ends(
    api: Api, request_bytes: bytes, status: int, code: int, text: str
) -> None:
    async with serving(api) as served:
        head, _, body = (await served.answer(request_bytes)).partition(b"\r\n\r\n")
        assert status_of(head) == status
        assert b"content-type: application/json" in head
        error = json.loads(body)
        assert (error["ok"], error["code"]) == (0, code)
        assert text in error["errmsg"]
    assert api.command_names() == []
    assert api.member.admission.in_use == 0


async def test_an_answer_that_has_begun_is_not_mixed_with_the_error_of_its_body(api: Api) -> None:
    async def early(scope: exchange.Scope, receive: exchange.Receive, send: exchange.Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass

    api.app = early
    async with serving(api) as served, asyncio.timeout(10):
        reader, writer = await served.open()
        writer.write(POST + b"transfer-encoding: chunked\r\n\r\n")
        received = await reader.readuntil(b"begun")
        writer.write(b"zz\r\n")
        with contextlib.suppress(ConnectionResetError):
            received += await reader.read()
        assert answers_in(received) == [200]
        writer.close()


async def test_headers_behind_the_body_are_not_taken_for_those_of_the_head(api: Api) -> None:
    seen: list[tuple[bytes, bytes]] = []
    routes = api.app

    async def noting(scope: exchange.Scope, receive: exchange.Receive, send: exchange.Send) -> None:
        while (await receive())["more_body"]:
            pass
        seen.extend(scope["headers"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    api.app = noting
    request = IN_CHUNKS.replace(b"host:", b"connection: close\r\nhost:") % (len(DOCUMENT), DOCUMENT)
    async with serving(api) as served:
        assert status_of(await served.answer(request + b"authorization: Basic cm9vdDpyb290\r\n\r\n")) == 200
    api.app = routes
    assert [name for name, _ in seen] == [b"connection", b"host", b"content-type", b"transfer-encoding"]


async def test_a_fault_is_answered_with_an_error_document(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    async def broken(scope: exchange.Scope, receive: exchange.Receive, send: exchange.Send) -> None:
        raise ZeroDivisionError

    api.app = broken
    async with serving(api) as served:
        head, _, body = (await served.answer(HEAD + b"\r\n")).partition(b"\r\n\r\n")
    assert (status_of(head), json.loads(body)["codeName"]) == (500, "InternalError")


async def test_the_date_of_responses_moves(served: Served) -> None:
    request = HEAD + b"connection: close\r\n\r\n"
    dates = set()
    async with asyncio.timeout(10):
        while len(dates) < 2:
            fields = email.message_from_bytes((await served.answer(request)).partition(b"\r\n")[2])
            dates.add(email.utils.parsedate_to_datetime(fields["date"]))
            await asyncio.sleep(0.2)
    assert max(dates) - min(dates) <= timedelta(seconds=2)


@pytest.mark.parametrize(
    ("request_line", "status", "has_body"),
    [
        pytest.param(b"GET /health HTTP/1.0", 200, True, id="http-1.0"),
        pytest.param(b"HEAD /health HTTP/1.1\r\nconnection: close", 200, False, id="head"),
        pytest.param(b"GET /he%61lth HTTP/1.1\r\nconnection: close", 200, True, id="quoted"),
        pytest.param(b"GET http://localhost/health?a=b HTTP/1.1\r\nconnection: close", 200, True, id="absolute"),
        pytest.param(b"GET /nothing HTTP/1.1\r\nconnection: close", 404, True, id="unknown"),
        pytest.param(b"GET /health HTTP/1.1\r\nconnection: upgrade, close\r\nupgrade: h2c", 200, True, id="upgrade"),
    ],
)
async def test_forms_of_a_request(request_line: bytes, status: int, has_body: bool, served: Served) -> None:
    head, _, body = (await served.answer(request_line + b"\r\nhost: localhost\r\n\r\n")).partition(b"\r\n\r\n")
    assert (status_of(head), bool(body)) == (status, has_body)
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    assert {b"date", b"content-type", b"content-length"} <= fields.keys()
    assert fields.get(b"connection", b"close") == b"close"
    assert not has_body or int(fields[b"content-length"]) == len(body)


async def test_a_body_may_come_with_its_head_or_later(api: Api) -> None:
    body = b'{"database": "a", "collection": "b", "document": {"_id": 1}}'
    head = POST.replace(b"find", b"insertOne") + b"connection: close\r\n"
    counted = head + b"content-length: %d\r\n\r\n" % len(body)
    chunked = head + b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    waits = head + b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(body)
    async with serving(api) as served:
        for request in (counted + body, chunked):
            assert status_of(await served.answer(request)) == 201
        reader, writer = await served.open()
        writer.write(waits)
        async with asyncio.timeout(10):
            assert status_of(await reader.readuntil(b"\r\n\r\n")) == 100
            writer.write(body[:5])
            await asyncio.sleep(0.05)
            writer.write(body[5:])
            assert status_of(await reader.read()) == 201
        writer.close()
    assert api.command_names() == ["insert"] * 3


@pytest.mark.parametrize("size", [100, 100_000])
async def test_a_client_that_leaves_during_its_request_gives_its_slot_back(
    api: Api, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def wait(_request: CommandRequest) -> Reply:
        begun.set()
        await ended.wait()
        return {"ok": 0.0, "code": 1, "errmsg": "too late"}

    monkeypatch.setattr(api.member.dispatcher, "run", wait)
    body = json.dumps({"database": "a", "collection": "b", "filter": {"a": "x" * size}}).encode()
    async with serving(api) as served, asyncio.timeout(10):
        _, writer = await served.open()
        writer.write(POST + b"content-length: %d\r\n\r\n" % len(body) + body)
        await begun.wait()
        writer.close()
        while len(served.slots):  # noqa: ASYNC110 - a count, no event
            await asyncio.sleep(0.01)
        ended.set()


async def test_an_idle_connection_is_closed_and_a_used_one_stays(served: Served) -> None:
    served.server._server.config.timeout_keep_alive = 0.4
    opened = [await served.open() for _ in range(3)]
    for _, writer in opened:
        writer.write(HEAD + b"\r\n")
    reader, writer = opened[0]
    for _ in range(3):
        await asyncio.sleep(0.2)
        writer.write(HEAD + b"\r\n")
    await asyncio.sleep(0.1)
    assert len(served.slots) == 1, "the two others are closed"
    async with asyncio.timeout(10):
        assert (await reader.read()).count(b" 200 OK") == 4
    for _, writer in opened:
        writer.close()


async def test_a_request_that_is_not_sent_to_its_end_is_ended(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_S", 0.3)
    monkeypatch.setattr(connection, "BODY_REST_S", 0.3)
    monkeypatch.setattr(exchange, "STALLED_S", 0.3)
    monkeypatch.setattr(limits, "STALLED_S", 0.3)
    async with serving(api) as served:
        assert status_of(await served.answer(HEAD)) == 408
        assert await served.answer() == b"", "nothing at all was sent"
        for body in (b"", b'{"a"'):
            assert status_of(await served.answer(POST + b"content-length: 10\r\n\r\n" + body)) == 408
        assert status_of(await served.answer(POST + b"host: evil\r\ncontent-length: 99\r\n\r\n")) == 403
        assert len(served.slots) == 0


async def test_idle_connections_are_closed_for_new_ones_and_reserved_slots_serve_health(api: Api) -> None:
    async with serving(api, most=16) as served:
        opened = [await served.open() for _ in range(20)]
        assert status_of(await served.answer(HEAD + b"connection: close\r\n\r\n")) == 200
        gate: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        api.member.dispatcher.run = lambda _: gate  # type: ignore[method-assign, assignment, return-value]
        body = b'{"database": "a", "collection": "b"}'
        request = POST + b"content-length: %d\r\n\r\n%s" % (len(body), body)
        working = []
        for _ in range(14):
            working.append(await served.open())
            working[-1][1].write(request)
        async with asyncio.timeout(10):
            while sum(holder.idle_since is None for holder in served.slots._open) < 14:  # noqa: ASYNC110 - a count
                await asyncio.sleep(0.01)
        refused = await served.answer(request.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        assert status_of(refused) == 503
        assert status_of(await served.answer(HEAD + b"connection: close\r\n\r\n")) == 200
        gate.cancel()
        for _, writer in [*opened, *working]:
            writer.close()


async def test_health_is_served_beside_half_sent_bodies(api: Api) -> None:
    async with serving(api, most=16) as served:
        opened = [await served.open() for _ in range(14)]
        for _, writer in opened:
            writer.write(POST + b'content-length: 1000\r\n\r\n{"a"')
        async with asyncio.timeout(10):
            while sum(holder.idle_since is None for holder in served.slots._open) < 14:  # noqa: ASYNC110 - a count
                await asyncio.sleep(0.01)
        for _ in range(4):  # on the two slots that are kept
            opened.append(await served.open())
            opened[-1][1].write(POST + b'content-length: 1000\r\n\r\n{"a"')
            async with asyncio.timeout(10):
                assert status_of(await opened[-1][0].readuntil(b"\r\n\r\n")) == 503
        assert status_of(await served.answer(HEAD + b"connection: close\r\n\r\n")) == 200
        for _, writer in opened:
            writer.close()


def test_half_a_body_counts_from_its_first_byte(api: Api) -> None:
    """Small bodies are not counted, unless they are held while the rest does not come."""
    held = []

    async def receive() -> dict[str, Any]:
        held.append(api.member.admission.in_use)
        return {"type": "http.request", "body": b" " * 1000, "more_body": len(held) < 5}

    async def send(message: Any) -> None:
        held.append(api.member.admission.in_use)

    api.exchange(receive, send)
    assert held[:5] == [0, 1000, 2000, 3000, 4000]
    assert api.member.admission.in_use == 0


async def test_answers_that_the_client_does_not_read_count_and_end(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small answers, asked for again and again by one who reads none."""
    monkeypatch.setattr(connection, "STALLED_S", 0.5)
    async with serving(api) as served:
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", served.port))
        _, writer = await asyncio.open_connection(sock=raw, limit=1024)
        request = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"
        most = 0
        async with asyncio.timeout(25):
            while len(served.slots):
                writer.write(request * 50)
                await asyncio.sleep(0.05)
                most = max(most, api.member.admission.in_use)
                if most and writer.is_closing():
                    break
        assert most > 0, "what waits to be taken counts"
        assert api.member.admission.in_use == 0
        writer.close()


async def test_closed_connections_take_no_descriptors_of_later_ones(api: Api) -> None:
    async with serving(api, most=2) as served:
        served.slots.spare = 1
        for _ in range(10):
            assert status_of(await served.answer(HEAD + b"connection: close\r\n\r\n")) == 200


async def test_an_export_that_nobody_reads_counts_and_ends_with_its_cursor(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "STALLED_S", 0.5)
    batch = [RawDocument(encode({"_id": number, "x": "x" * 2_000})) for number in range(30)]
    found = {"id": Int64(77), "ns": "a.b", "firstBatch": batch, "nextBatch": batch}
    api.answers |= {name: {"ok": 1.0, "cursor": found} for name in ("find", "getMore")}
    body = b'{"database": "a", "collection": "b"}'
    head = POST + b"accept: application/x-ndjson\r\ncontent-length: %d\r\n\r\n" % len(body)
    async with serving(api) as served, asyncio.timeout(25):
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", served.port))
        _, writer = await asyncio.open_connection(sock=raw, limit=1024)
        writer.write(head + body)
        await until(lambda: len(api.command_names()) > 1)
        most = 0
        while len(served.slots):
            await asyncio.sleep(0.01)
            most = max(most, api.member.admission.in_use)
        assert 2 * BATCH_BYTES <= most <= 8 * BATCH_BYTES, "one batch, its lines, and what waits to be sent"
        await until(lambda: api.command_names()[-1] == "killCursors")
        assert api.member.admission.in_use == 0
        writer.close()


async def test_a_client_cannot_claim_another_address(api: Api) -> None:
    """The audit log and the list of operations name the address that the connection comes from."""
    seen: list[tuple[str, str]] = []
    routes = api.app

    async def noting(scope: exchange.Scope, receive: exchange.Receive, send: exchange.Send) -> None:
        seen.append((scope["client"][0], scope["scheme"]))
        await routes(scope, receive, send)

    api.app = noting
    claims = b"x-forwarded-for: 192.0.2.7\r\nx-forwarded-proto: https\r\nconnection: close\r\n\r\n"
    async with serving(api) as served:
        assert status_of(await served.answer(HEAD + claims)) == 200
    assert seen == [("127.0.0.1", "http")]
