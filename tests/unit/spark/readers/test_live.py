"""The reader of a live member, against a stand-in for its HTTP API that can do at once what takes a set minutes."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from api.routes.oplog import row_fields
from replset.bson import encode
from replset.ids import OpTime
from replset.oplog_row import OplogRow, chained_rows
from spark.columns import COLUMNS
from spark.oplog import (
    EVERYTHING,
    START,
    Bounds,
    EntryFilter,
    OplogError,
    OplogRolledBackError,
    OplogTrimmedError,
    ReadPosition,
    Span,
)
from spark.readers import live
from spark.readers.live import LiveOplog
from tests.spark.kit import T0, insert

BEFORE_PAGE = Callable[["StandIn", int], None]


class StandIn:
    """A member with these rows. before_page: called with the number of the page (from 1) before it is answered."""

    def __init__(self, rows: list[OplogRow]) -> None:
        self.rows, self.trimmed_through, self.pages = rows, 0, 0
        self.before_page: BEFORE_PAGE = lambda _member, _page: None
        self.broken_answer: bytes | None = None
        self.stalls, self.done = False, Event()

    def trim(self, through: int) -> None:
        self.rows = [row for row in self.rows if row.ts > through]
        self.trimmed_through = through

    def answer(self, path: str, query: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        if path.endswith("/info"):
            ends = [str(self.rows[at].optime) if self.rows else None for at in (0, -1)]
            info = {"first": ends[0], "last": ends[1], "bytes": sum(len(row.entry) for row in self.rows)}
            return 200, {}, json.dumps(info).encode()
        assert path == "/v1/replset/oplog"
        self.pages += 1
        self.before_page(self, self.pages)
        after = OpTime.parse(query.get("after", "0:0:0"))
        if after.ts and after.ts < self.trimmed_through:
            return 400, {}, json.dumps({"ok": 0, "code": 136, "errmsg": "was trimmed away"}).encode()
        newer = [row for row in self.rows if row.ts > after.ts]
        page = newer[: int(query["limit"])]
        headers = {"x-replset-next": str(page[-1].optime)} if len(page) < len(newer) else {}
        return 200, headers, b"".join(encode(row_fields(row)) for row in page)


@pytest.fixture
def member() -> Iterator[StandIn]:
    stand_in = StandIn(history(100))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            try:
                status, headers, data = stand_in.answer(parts.path, {k: v[0] for k, v in parse_qs(parts.query).items()})
            except ConnectionAbortedError:
                self.close_connection = True
                return
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            if stand_in.stalls:
                self.wfile.write(data[:100])
                stand_in.done.wait(20)
                self.close_connection = True
                return
            self.wfile.write(data if stand_in.broken_answer is None else stand_in.broken_answer)
            self.close_connection = stand_in.broken_answer is not None

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        stand_in.url = f"http://127.0.0.1:{server.server_port}"
        yield stand_in
        server.shutdown()
        thread.join()


@pytest.fixture
def oplog(member: StandIn, monkeypatch: pytest.MonkeyPatch) -> LiveOplog:
    monkeypatch.setattr(live, "_PAGE_ROWS", 15)
    return LiveOplog("m1", member.url)


def history(count: int, *, others_from: int | None = None) -> list[OplogRow]:
    """others_from: from this number on another history, of term 2."""
    limit = count if others_from is None else others_from
    pending = [insert(n, ns=f"shop.c{n % 2}", per_second=10, term=1 if n < limit else 2) for n in range(count)]
    return chained_rows(pending, 0)


def rows_of(oplog: LiveOplog, span: Span = EVERYTHING, only: EntryFilter = EntryFilter()) -> list[dict[str, Any]]:  # noqa: B008
    return [row for batch in oplog.read(span, COLUMNS, only) for row in batch.to_pylist()]


def test_reading(member: StandIn, oplog: LiveOplog) -> None:
    expected = [dict(zip(COLUMNS, row, strict=True)) for row in member.rows]
    assert rows_of(oplog) == rows_of(oplog.pin()) == expected
    span = Span(member.rows[20].ts, member.rows[61].ts)
    assert rows_of(oplog, span) == rows_of(oplog.pin(), span) == expected[20:61]
    assert rows_of(oplog, span, EntryFilter(ns=("shop.c1",), op=("i",))) == expected[21:61:2]
    assert next(oplog.read(span, ("hash", "ts"))).schema.names == ["hash", "ts"]
    assert list(oplog.read(Span(5, 5), ("ts",))) == []


def test_bounds_and_parts(member: StandIn, oplog: LiveOplog) -> None:
    rows = member.rows
    bounds = oplog.bounds()
    assert bounds == Bounds(rows[0].optime, rows[-1].optime, bounds.rows, chain=rows[-1].chain)
    assert bounds.rows == pytest.approx(100, rel=0.1)
    ends = (bounds.oldest, bounds.newest)
    assert {type(number) for end in ends for number in (end.ts, end.term, bounds.chain)} == {int}, "Spark takes ints"
    pinned = oplog.pin()
    assert pinned.pin() is pinned
    found = [[row["ts"] for row in rows_of(pinned, part)] for part in pinned.split(EVERYTHING, 4)]
    assert [ts for part in found for ts in part] == [row.ts for row in rows]
    assert (len(found), max(map(len, found))) == (4, 30)
    assert pinned.count(Span(0, rows[50].ts)) == pytest.approx(50, abs=6)
    member.rows = []
    assert (oplog.bounds(), rows_of(oplog), oplog.split(EVERYTHING, 3)) == (Bounds(), [], [EVERYTHING])


def test_a_pinned_place_gives_nothing_newer(member: StandIn, oplog: LiveOplog) -> None:
    pinned = oplog.pin()
    member.rows = history(150)
    assert (len(rows_of(pinned)), len(rows_of(oplog))) == (100, 150)


def test_follow(member: StandIn, oplog: LiveOplog) -> None:
    marks = [ReadPosition(row.optime, row.chain) for row in member.rows]
    assert oplog.follow(START, 1) == marks[0]
    assert oplog.follow(marks[0], 40) == marks[40]
    assert oplog.follow(marks[40], 1000) == marks[99] == oplog.follow(marks[99], 5)
    found = rows_of(oplog.between(marks[10], marks[30]))
    assert [row["ts"] for row in found] == [row.ts for row in member.rows[11:31]]
    rows = member.rows
    member.trim(rows[30].ts)
    assert oplog.follow(marks[30], 1) == marks[31]
    with pytest.raises(OplogTrimmedError) as caught:
        oplog.follow(marks[29], 1)
    assert caught.value.through == rows[31].ts - 1
    with pytest.raises(OplogRolledBackError, match=str(rows[50].optime)):
        oplog.follow(ReadPosition(rows[50].optime, 5), 1)
    with pytest.raises(OplogRolledBackError, match="2:"):
        oplog.follow(ReadPosition(OpTime(2, rows[50].ts), rows[50].chain), 1)
    member.rows = rows[31:60]
    with pytest.raises(OplogRolledBackError, match=str(rows[70].optime)):
        oplog.follow(marks[70], 1)


def on_page(number: int, act: Callable[[StandIn], None]) -> BEFORE_PAGE:
    return lambda member, page: act(member) if page == number else None


def test_a_head_that_moves_away(member: StandIn, oplog: LiveOplog) -> None:
    pinned, rows = oplog.pin(), member.rows
    member.before_page = on_page(member.pages + 3, lambda member: member.trim(rows[50].ts))
    with pytest.raises(OplogTrimmedError, match=rf"m1: .* up to {T0 + 5}:1 were trimmed away"):
        rows_of(pinned)
    with pytest.raises(OplogTrimmedError):
        rows_of(pinned)
    assert len(rows_of(pinned, Span(rows[51].ts, EVERYTHING.end_ts))) == 49
    assert len(rows_of(oplog)) == 49


@pytest.mark.parametrize("page", [1, 2, 5])
def test_a_rollback_in_between(member: StandIn, oplog: LiveOplog, page: int) -> None:
    def roll_back(member: StandIn) -> None:
        member.rows = history(110, others_from=40)

    pinned = oplog.pin()
    member.before_page = on_page(member.pages + page, roll_back)
    with pytest.raises(OplogRolledBackError, match=r"m1: its entry .* the member rolled back"):
        rows_of(pinned)
    with pytest.raises(OplogRolledBackError):
        rows_of(pinned, Span(0, member.rows[10].ts))


def test_pages_that_do_not_follow_are_noticed_without_a_pin(member: StandIn, oplog: LiveOplog) -> None:
    def roll_back(member: StandIn) -> None:
        member.rows = history(110, others_from=10)

    member.before_page = on_page(3, roll_back)
    with pytest.raises(OplogRolledBackError):
        rows_of(oplog)


def error_text(oplog: LiveOplog) -> str:
    with pytest.raises(OplogError) as caught:
        rows_of(oplog)
    assert caught.value.name == "m1"
    assert "\n" not in caught.value.reason
    return caught.value.reason


def test_a_member_that_dies_in_the_middle(member: StandIn, oplog: LiveOplog) -> None:
    def die(_member: StandIn) -> None:
        raise ConnectionAbortedError

    member.before_page = on_page(3, die)
    assert error_text(oplog) == "the member went away while it was read"
    member.broken_answer = b"\x10"  # and then nothing
    assert "the member went away while it was read" in error_text(oplog)


def test_a_member_that_stops_in_the_middle_of_a_page(
    member: StandIn, oplog: LiveOplog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has sent the beginning and then hangs, its connection open."""
    monkeypatch.setattr(live, "_TIMEOUT_S", 0.2)
    member.before_page = on_page(2, lambda member: setattr(member, "stalls", True))
    assert error_text(oplog) == "the member did not answer within 0.2 s"
    member.done.set()


def test_what_is_no_member(member: StandIn, oplog: LiveOplog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "answer", lambda *_: (404, {}, b"<html>"))
    assert error_text(oplog) == "what answers there (404 Not Found) is no member's HTTP API"
    monkeypatch.setattr(member, "answer", lambda *_: (200, {}, b"<html>"))
    assert "answers what is no oplog" in error_text(oplog)
    monkeypatch.setattr(member, "answer", lambda *_: (200, {}, encode({"optime": "1:2:3"})))
    assert "answers what is no oplog" in error_text(oplog)
    for answer in (
        b"[]",
        b"5",
        b"{}",
        b'{"first": 5, "last": 6, "bytes": null}',
        b'{"first": 5, "last": 6, "bytes": 7}',
    ):
        monkeypatch.setattr(member, "answer", lambda *_, data=answer: (200, {}, data))
        with pytest.raises(OplogError, match=r"m1: http://127.0.0.1:[0-9]+ answers what is no oplog: "):
            oplog.bounds()
    refusal = json.dumps({"ok": 0, "code": 13436, "errmsg": "initial sync goes on"}).encode()
    monkeypatch.setattr(member, "answer", lambda *_: (503, {}, refusal))
    assert error_text(oplog) == "the member answers 503: initial sync goes on"


def test_nobody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(live, "_TIMEOUT_S", 0.2)
        assert "did not answer within" in error_text(LiveOplog("m1", url))
    assert error_text(LiveOplog("m1", url)) == f"nobody answers at {url}"


def test_no_such_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert error_text(LiveOplog("m1", "http://m7:1")).startswith("there is no host m7: ")


def test_another_protocol() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def talk() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"\x10\0\0\0 something else\r\n")

        thread = Thread(target=talk)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert error_text(LiveOplog("m1", url)) == f"{url} does not speak HTTP"
        thread.join()
