"""Members whose oplog is read: a file, and a stand-in for the HTTP API that can do at once what takes a set minutes."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from api.routes.oplog import row_fields
from replset.bson import Int64, decode, encode
from replset.features.archive.archive import Archive
from replset.features.archive.files import FolderFiles
from replset.features.archive.segments import ArchiveInfo, Position
from replset.ids import OPTIME_NULL, OpTime, pack_ts
from replset.oplog_entry import noop_entry
from replset.oplog_row import CHAIN_START, OplogRow, chained_rows
from spark.columns import COLUMNS
from spark.oplog import ALL, EVERYTHING, EntryFilter, Oplog, Span
from spark.readers import live
from spark.readers.live import LiveOplog
from spark.readers.sqlite import SqliteOplog
from spark.readers.wire import WireOplog
from tests.spark.kit import insert, trim, write_rows
from tests.unit.test_target import Mongod


def history(count: int, *, others_from: int | None = None) -> list[OplogRow]:
    """Ten a second, inserts into two collections and a no-op. others_from: from this number on of term 2."""
    limit = count if others_from is None else others_from
    pending = [insert(n, ns=f"shop.c{n % 2}", per_second=10, term=1 if n < limit else 2) for n in range(count)]
    ts, wall = pending[7][0], pending[7][5]
    pending[7] = (ts, 1, "n", "", None, wall, noop_entry({"msg": "x"}, OpTime(1, ts), wall))
    return chained_rows(pending, CHAIN_START)


def rows_of(oplog: Oplog, span: Span = EVERYTHING, only: EntryFilter = ALL) -> list[dict[str, Any]]:
    return [row for batch in oplog.read(span, COLUMNS, only) for row in batch.to_pylist()]


def stamps(oplog: Oplog, span: Span = EVERYTHING, only: EntryFilter = ALL) -> list[int]:
    return [ts for batch in oplog.read(span, ("ts",), only) for ts in batch.column(0).to_pylist()]


def archived(folder: Path, rows: list[OplogRow], *ranges: tuple[int, int]) -> str:
    """The address of an archive whose segments hold these ranges of the rows."""
    archive = Archive.of_set(FolderFiles(str(folder)), ArchiveInfo("rs0", "f" * 24, "a1"), "")
    for first, end in ranges:
        before = (
            Position(rows[first - 1].optime, rows[first - 1].chain) if first else Position(OPTIME_NULL, CHAIN_START)
        )
        archive.add(rows[first:end], before, member="m:1", written="")
    return str(folder)


def mongodump_archive(*blocks: tuple[str, list[bytes]], ended: bool = True) -> bytes:
    """What `mongodump --archive` writes of these blocks, each of a namespace DB.COLL, which may come again."""
    namespaces = list(dict.fromkeys(ns for ns, _ in blocks))
    end = b"\xff\xff\xff\xff"

    def header(ns: str, **fields: object) -> bytes:
        database, _, collection = ns.partition(".")
        return encode({"db": database, "collection": collection, **fields})

    about = {"concurrent_collections": 4, "version": "0.1", "server_version": "7.0.12", "tool_version": "100.9.4"}
    parts = [b"\x6d\xe2\x99\x81", encode(about), *(header(ns, metadata="{}", size=0) for ns in namespaces), end]
    for ns, documents in blocks:
        parts += [header(ns, EOF=False, CRC=Int64(0)), *documents, end]
    for ns in namespaces if ended else ():
        parts += [header(ns, EOF=True, CRC=Int64(77)), end]
    return b"".join(parts)


def descriptors_of(path: Path | str) -> list[Path]:
    return [fd for fd in Path("/proc/self/fd").iterdir() if os.path.realpath(fd) == os.path.realpath(path)]


class FileMember:
    """A member's file with these rows."""

    def __init__(self, folder: Path, rows: list[OplogRow]) -> None:
        self.folder = write_rows(folder, rows)
        self.oplog = SqliteOplog("m1", str(folder / "replset.db"))

    @property
    def rows(self) -> list[OplogRow]:
        with closing(sqlite3.connect(self.oplog.path)) as connection:
            return [OplogRow._make(row) for row in connection.execute("SELECT * FROM oplog ORDER BY ts")]

    @rows.setter
    def rows(self, rows: list[OplogRow]) -> None:
        with closing(sqlite3.connect(self.oplog.path)) as connection:
            connection.execute("DELETE FROM oplog")
            connection.executemany("INSERT INTO oplog VALUES (?,?,?,?,?,?,?,?,?)", rows)
            connection.commit()

    def trim(self, through: int) -> None:
        trim(self.folder, through)


class StandIn:
    """A member with these rows. before_page: called with the number of the page (from 1) before it is answered."""

    def __init__(self, rows: list[OplogRow]) -> None:
        self.rows, self.trimmed_through, self.pages = rows, 0, 0
        self.before_page: Callable[[StandIn, int], None] = lambda _member, _page: None
        self.broken_answer: bytes | None = None
        self.stalls, self.done = False, Event()
        self.oplog: LiveOplog

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


class WireStandIn(Mongod):
    """A mongod with these rows in its oplog, whose cursors die with their connection. before: called with each command;
    ConnectionError breaks its connection.
    """

    def __init__(self, rows: list[OplogRow]) -> None:
        super().__init__([])
        self.rows = rows
        self.before: Callable[[dict[str, Any]], object] = lambda _command: None
        self.oplog = WireOplog("m1", f"mongodb://{self.host}")
        self._cursors: dict[int, list[bytes]] = {}

    def trim(self, through: int) -> None:
        self.rows = [row for row in self.rows if row.ts > through]

    def _answer(self, command: dict[str, Any], scram: list[Any]) -> dict[str, Any]:
        self.before(command)
        match next(iter(command)):
            case "count":
                return {"ok": 1.0, "n": len(self.rows)}
            case "find":
                found = [row.entry for row in self.rows if self._is_wanted(row, command.get("filter", {}))]
                if command.get("sort") == {"$natural": -1}:
                    found.reverse()
                left = found[command.get("skip", 0) :][: command.get("limit") or None]
                return self._batch(command, "firstBatch", len(self.asked), left)
            case "getMore" if command["getMore"] in self._cursors:
                return self._batch(command, "nextBatch", command["getMore"], self._cursors.pop(command["getMore"]))
            case "getMore":
                return {"ok": 0.0, "code": 43, "errmsg": "cursor id not found"}
            case "killCursors":
                for number in command["cursors"]:
                    del self._cursors[number]
        return super()._answer(command, scram)

    def _batch(self, command: dict[str, Any], field: str, number: int, left: list[bytes]) -> dict[str, Any]:
        size = command.get("batchSize", 101)
        if left[size:]:
            self._cursors[number] = left[size:]
        batch = [decode(raw) for raw in left[:size]]
        return {"ok": 1.0, "cursor": {"id": Int64(number if left[size:] else 0), "ns": "local.oplog.rs", field: batch}}

    def _is_wanted(self, row: OplogRow, query: dict[str, Any]) -> bool:
        stamps = {name: pack_ts(at.time, at.inc) for name, at in query.get("ts", {}).items()}
        return (
            stamps.get("$gte", 0) <= row.ts < stamps.get("$lt", EVERYTHING.end_ts)
            and row.ts > stamps.get("$gt", 0)
            and row.ns in query.get("ns", {"$in": [row.ns]})["$in"]
            and row.op in query.get("op", {"$in": [row.op]})["$in"]
        )


@contextmanager
def wire_stand_in(rows: list[OplogRow]) -> Iterator[WireStandIn]:
    member = WireStandIn(rows)
    try:
        yield member
    finally:
        member.close()


@contextmanager
def stand_in(rows: list[OplogRow]) -> Iterator[StandIn]:
    member = StandIn(rows)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            try:
                status, headers, data = member.answer(parts.path, {k: v[0] for k, v in parse_qs(parts.query).items()})
            except ConnectionAbortedError:
                self.close_connection = True
                return
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            if member.stalls:
                self.wfile.write(data[:100])
                member.done.wait(20)
                self.close_connection = True
                return
            self.wfile.write(data if member.broken_answer is None else member.broken_answer)
            self.close_connection = member.broken_answer is not None

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        member.oplog = LiveOplog("m1", f"http://127.0.0.1:{server.server_port}")
        try:
            yield member
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def member(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """A hundred rows, fifteen a page."""
    monkeypatch.setattr(live, "_PAGE_ROWS", 15)
    with stand_in(history(100)) as made:
        yield made
