"""A write of one document whose head was sent before is answered, byte for byte, as the usual way answers it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from api.app import create_app
from api.prepared import PreparedActions
from api.serve import HttpServer
from replset.bson import encode
from replset.ids import HostPort
from replset.member.net.connections import ConnectionSlots
from tests.rig import Rig, a_set
from tests.unit.features.test_prepared import Prepared, called, without_times

HOST = "host: a:80"
JSON = "content-type: application/json"


class Transport(asyncio.Transport):
    """Keeps what the member writes."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 5), "sockname": ("127.0.0.1", 80)})
        self.written = b""
        self.closed = False

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0


class Http:
    """One connection to a member's HTTP port."""

    def __init__(self, rig: Rig, *, is_prepared: bool = True) -> None:
        self.rig = rig
        self.transport = Transport()
        rig.do(self._connect(is_prepared))

    async def _connect(self, is_prepared: bool) -> None:
        member = self.rig.member()
        actions = PreparedActions(member) if is_prepared else None
        slots, app = ConnectionSlots(9, "HTTP"), create_app(member, ["a"])
        server = HttpServer(app, HostPort("a:80"), slots, member.admission, member.turns, 9, None, actions)._server
        server.config.load()
        self.protocol: Any = server.config.http_protocol_class(
            config=server.config, server_state=server.server_state, app_state={}
        )
        self.protocol.connection_made(self.transport)

    def receive(self, *pieces: bytes) -> None:
        async def work() -> None:
            for piece in pieces:
                self.protocol.data_received(piece)
                await asyncio.sleep(0)

        self.rig.do(work())

    def answers(self, count: int) -> list[tuple[int, dict[str, str], Any]]:
        """Wait for so many answers: status, headers and body of each."""
        self.rig.until(lambda: self.transport.closed or len(self._split()) >= count)
        return self._split()

    def _split(self) -> list[tuple[int, dict[str, str], Any]]:
        rest, found = self.transport.written, []
        while b"\r\n\r\n" in rest:
            head, _, rest = rest.partition(b"\r\n\r\n")
            status, *lines = head.decode().split("\r\n")
            headers = dict(line.split(": ", 1) for line in lines)
            size = int(headers["content-length"])
            if len(rest) < size:
                break
            body, rest = rest[:size], rest[size:]
            is_json = "json" in headers["content-type"]
            found.append((int(status.split()[1]), headers, json.loads(body) if is_json else body))
        return found

    def leave(self) -> None:
        async def work() -> None:
            self.protocol.connection_lost(None)

        self.rig.do(work())


def post(body: object, *headers: str, path: str = "/v1/action/insertOne") -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    length = f"Content-Length: {len(data)}"
    lines = [f"POST {path} HTTP/1.1", *(headers or (HOST, JSON))]
    lines = [length if line.startswith("Content-Length") else line for line in lines]
    lines += [] if length in lines else [length]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def doc(document: object, **more: object) -> dict[str, object]:
    return {"database": "test", "collection": "c", "document": document, **more}


def act(name: str, **fields: object) -> bytes:
    return post({"database": "test", "collection": "c", **fields}, path=f"/v1/action/{name}")


def insert(*keys: object) -> list[bytes]:
    return [post(doc({"_id": key, "n": 0})) for key in keys]


MAJORITY = {"writeConcern": {"w": "majority"}}
CASES: dict[str, list[bytes]] = {
    "plain": [post(doc({"_id": n, "a": "x" * n})) for n in range(4)],
    "majority": [post(doc({"_id": n}, **MAJORITY)) for n in range(4)],
    "without _id": [post(doc({"n": n})) for n in range(3)],
    "extended": [post(doc({"_id": {"$oid": "0123456789abcdef0123456" + str(n)}, "d": {"$numberDecimal": "1.5"}}))
                 for n in range(3)],
    "an _id that is there": [post(doc({"_id": n % 2})) for n in range(5)],
    "an _id that cannot be": [post(doc({"_id": value})) for value in (1, [1], 2)],
    "w: 0": [post(doc({"_id": n}, writeConcern={"w": 0})) for n in range(3)],
    "w: 1 and j": [post(doc({"_id": n}, writeConcern={"w": 1, "j": True})) for n in range(3)],
    "a limit": [post(doc({"_id": n}, writeConcern={"w": "majority", "wtimeout": 9})) for n in range(3)],
    "never to be met": [post(doc({"_id": n}, writeConcern={"w": w})) for n, w in enumerate((1, 3, "none", 1))],
    "maxTimeMS": [post(doc({"_id": n}, maxTimeMS=1000)) for n in range(3)],
    "malformed bodies": [
        *[post(doc({"_id": n})) for n in range(2)],
        *[post(body) for body in (b"{", b"", b"[]", b'{"database": "test", "database": "x"}', doc(5), doc({"$x": 1}),
                                  {"collection": "c", "document": {}}, doc({"_id": 7}, more=1), doc({"_id": 8}))],
    ],
    "a system collection": [post({**doc({"_id": n}), "collection": c})
                            for n, c in enumerate(("c", "system.x", "", "c"))],
    "in canonical form": [post(doc({"_id": n}), HOST, JSON, "accept: application/ejson; canonical=true")
                          for n in (1, 2, 3)],
    "in BSON": [post(encode(doc({"_id": n})), HOST, "content-type: application/bson", "accept: application/bson")
                for n in (1, 2, 3)],
    "a key": [post(doc({"_id": n}), HOST, JSON, "Idempotency-Key: k") for n in (1, 1, 2)],
    "another host": [post(doc({"_id": n}), host, JSON) for n, host in enumerate((HOST, HOST, "host: evil", HOST))],
    "another site's page": [post(doc({"_id": n}), HOST, JSON, origin)
                            for n, origin in enumerate(("x: 1", "x: 1", "origin: http://evil", "x: 1"))],
    "another host behind the length": [
        post(doc({"_id": n}), "Content-Length: 0", host, JSON)
        for n, host in enumerate((HOST, HOST, "host: evil", HOST))
    ],
    "another type": [post(doc({"_id": n}), HOST, kind)
                     for n, kind in enumerate((JSON, JSON, "content-type: text/plain"))],
    "with a query": [post(doc({"_id": n}), path=f"/v1/action/insertOne{query}")
                     for n, query in enumerate(("?forward=false", "?forward=false", "?forward=no", ""))],
    "other actions": [post({"database": "test", "collection": "c", "documents": [{}]}, path="/v1/action/insertMany")
                      for _ in range(2)],
    "by fields of other kinds": [post({**doc({"_id": n}), "collection": c}) for n, c in enumerate(("c", "c", 5, None))],
    "too large for the event loop": [post(doc({"_id": n, "x": "y" * size}))
                                     for n, size in enumerate((1, 1, 40_000, 1))],
    "updates": [*insert(0, 1, 2, 3), *(act("updateOne", filter={"_id": n}, update={"$inc": {"n": n}}, **MAJORITY)
                                       for n in range(4))],
    "updates that come last": [*insert(0, 1, 2), *(act("updateOne", update={"$set": {"n": n}}, filter={"_id": n})
                                                   for n in range(4))],
    "updates by other fields": [*insert(0, 1, 2), *(act("updateOne", filter=f, update={"$set": {"n": 5}})
                                                    for f in ({"_id": 0}, {"n": 0}, {"_id": {"$gt": 0}}, {}))],
    "updates with an upsert": [act("updateOne", filter={"_id": n}, update={"$set": {"n": 5}}, upsert=True)
                               for n in (0, 1, 1)],
    "updates that fail": [*insert(0, 1), *(act("updateOne", filter={"_id": 0}, update=u)
                                           for u in ({"$set": {"n": 1}}, {"$set": {"_id": 5}}, {"$no": 1}, {"n": 1},
                                                     [{"$set": {"n": 7}}], {"$set": {"n": 2}}))],
    "replacements": [*insert(0, 1, 2), *(act("replaceOne", filter={"_id": n}, replacement={"new": "x" * n}, **MAJORITY)
                                         for n in range(4))],
    "deletes": [*insert(0, 1, 2, 3), *(act("deleteOne", filter={"_id": n}) for n in (0, 1, 1, 2, 9))],
    "deletes by other fields": [*insert(0, 1, 2), *(act("deleteOne", filter=f) for f in ({"_id": 0}, {"n": 0}, {}))],
    "all kinds in turn": [request for n in range(4) for request in (
        *insert(n), act("updateOne", filter={"_id": n}, update={"$set": {"n": 7}}),
        act("replaceOne", filter={"_id": n}, replacement={"n": 8}), act("deleteOne", filter={"_id": n}))],
    "bodies that are odd in their documents": [
        *insert(0), *[post(body, HOST, JSON) for body in (
            b'{"database": "test", "collection": "c", "document": {"_id": 1}}',
            b'{"database": "test", "collection": "c", "document": {"_id": 2}, "document": {"_id": 3}}',
            b'{"database": "test", "collection": "c", "document": {"_id": 4, "_id": 5}}',
            b'{"database": "test", "collection": "c", "document": {"a": "}"}, "writeConcern": {"w": 1}}',
            b'{"database": "test", "collection": "c", "document": {"_id": 6}} }',
            b'{"database": "test", "collection": "c", "document": 6}',
            b'{"database": "test", "collection": "c", "document": }',
            b'{"database": "test", "collection": "c", "document":   {"_id": "\xc3\xa9"}  }',
            b'{"database": "test", "collection": "c", "document": {"_id": {"$oid": "x"}}}',
            b'{"database": "test", "collection": "c", "document": {"_id": 7}}')],
    ],
}  # fmt: skip


def run(requests: list[bytes], *, is_prepared: bool) -> tuple[list[Any], list[Any], int]:
    """Send the requests one after the other; the answers, the entries, and how many were taken by their head."""
    with a_set() as rig:
        prepared, http, client = Prepared(rig), Http(rig, is_prepared=is_prepared), rig.client()
        for count, request in enumerate(requests, 1):
            http.receive(request)
            http.answers(count)
        answers = [
            (status, {**headers, "date": ""}, plain(body)) for status, headers, body in http.answers(len(requests))
        ]
        used = {key: row[0] for key, row in rig.member().dispatcher.operations.used.items()}
        counts = [rig.member().dispatcher.counts.get(name) for name in ("insert", "update", "delete")]
        return answers, [*without_times(client.entries()), used, counts], prepared.count


def plain(body: Any) -> Any:
    """The body without what depends on the time and on drawn numbers."""
    if isinstance(body, bytes):
        return len(body)
    text = re.sub(r'"[0-9a-f]{24}"', '"id"', json.dumps(body))
    return re.sub(r'"t": [0-9]+, "i": [0-9]+', '"t": 0', re.sub(r"\d+:\d+:\d+", "optime", text))


@pytest.mark.parametrize("name", CASES)
def test_answers_and_entries_are_those_of_the_usual_way(name: str) -> None:
    answers, entries, taken = run(CASES[name], is_prepared=True)
    usual_answers, usual_entries, none = run(CASES[name], is_prepared=False)
    assert answers == usual_answers
    assert entries == usual_entries
    assert none == 0
    assert not taken or name not in ("w: 0", "a limit", "maxTimeMS", "a key", "with a query", "other actions")
    assert taken >= 2 or name not in (
        "plain",
        "majority",
        "without _id",
        "extended",
        "in BSON",
        "w: 1 and j",
        "deletes",
    )
    assert taken >= 5 or name not in ("updates", "updates that come last", "replacements")
    assert taken >= 12 or name != "all kinds in turn"


def test_requests_ahead_are_answered_in_order() -> None:
    with a_set() as rig:
        prepared, http = Prepared(rig), Http(rig)
        http.receive(post(doc({"_id": 1})))
        http.answers(1)
        find = post({"database": "test", "collection": "c"}, path="/v1/action/find")
        http.receive(post(doc({"_id": 2})), find + post(doc({"_id": 3})), find)
        answers = http.answers(5)
        assert prepared.count >= 1
        assert [status for status, _, _ in answers] == [201, 201, 200, 201, 200]
        assert [len(body["documents"]) for _, _, body in answers if "documents" in body] == [2, 3]


def test_a_request_in_pieces_or_with_more_goes_the_usual_way() -> None:
    with a_set() as rig:
        prepared, http = Prepared(rig), Http(rig)
        http.receive(post(doc({"_id": 1})))
        http.answers(1)
        request = post(doc({"_id": 2}))
        http.receive(request[:30], request[30:-5], request[-5:])
        http.answers(2)
        http.receive(post(doc({"_id": 3})) + post(doc({"_id": 4})))
        assert [status for status, _, _ in http.answers(4)] == [201] * 4
        assert prepared.count == 1, "the last one, which was alone when the one before it was answered"


def test_what_comes_in_a_turn_that_is_full_is_taken_by_its_head_in_a_later_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with a_set() as rig:
        prepared, http, turns = Prepared(rig), Http(rig), rig.member().turns
        http.receive(post(doc({"_id": 1})))
        http.answers(1)
        waiting: list[Callable[[], None]] = []
        monkeypatch.setattr(turns, "has_room", lambda: False)
        monkeypatch.setattr(turns, "call", lambda _size, go_on: waiting.append(go_on))
        http.receive(post(doc({"_id": 2})))
        rig.wait(0.1)
        assert prepared.count == 0
        monkeypatch.undo()
        rig.do(called(waiting))
        assert [status for status, _, _ in http.answers(2)] == [201, 201]
        assert prepared.count == 1
        http.receive(post(doc({"_id": 2})), post(doc({"_id": 3})))
        assert [status for status, _, _ in http.answers(4)][2:] == [409, 201]


def test_a_client_that_leaves_and_a_server_that_ends() -> None:
    with a_set() as rig:
        http, other = Http(rig), Http(rig)
        for one, key in ((http, 1), (other, 2)):
            one.receive(post(doc({"_id": key}, **MAJORITY)))
            one.answers(1)
        rig.stop_disk()
        http.receive(post(doc({"_id": 3}, **MAJORITY)))
        other.receive(post(doc({"_id": 4}, **MAJORITY)))
        rig.wait(0.1)
        assert len(rig.member().dispatcher.operations.running) == 2
        http.leave()

        async def shutdown() -> None:
            other.protocol.shutdown()

        rig.do(shutdown())
        assert len(rig.member().dispatcher.operations.running) == 1
        assert not other.transport.closed
        rig.start_disk()
        assert [status for status, _, _ in other.answers(2)] == [201, 201]
        rig.until(lambda: other.transport.closed)


def test_a_connection_that_is_to_end_ends_behind_an_insert_that_goes_the_usual_way() -> None:
    with a_set() as rig:
        http = Http(rig)
        http.receive(post(doc({"_id": 1})))
        http.answers(1)
        queue = rig.member().context.write_queue
        queue.pause()
        http.receive(post(doc({"_id": 1})))  # it is there: the usual way gives the error

        async def end() -> None:
            http.protocol.shutdown()
            queue.resume()

        rig.do(end())
        rig.until(lambda: http.transport.closed)
        status, headers, _ = http.answers(2)[1]
        assert (status, headers["connection"]) == (409, "close")


def test_an_insert_is_shown_with_its_client_and_ended_by_killop() -> None:
    with a_set() as rig:
        http, client = Http(rig), rig.client()
        http.receive(post(doc({"_id": 1}, **MAJORITY)))
        http.answers(1)
        rig.stop_disk()
        http.receive(post(doc({"_id": 2}, **MAJORITY)))
        rig.wait(0.1)
        (row,) = [row for row in client.ok({"currentOp": 1}, "admin")["inprog"] if row["op"] == "insert"]
        assert (row["ns"], row["client"]) == ("test.c", "127.0.0.1:5")
        client.ok({"killOp": 1, "op": row["opid"]}, "admin")
        status, _, body = http.answers(2)[1]
        assert (status, body["code"]) == (504, 11601)
        rig.start_disk()


def test_a_member_that_leads_no_more_answers_as_the_usual_way() -> None:
    with a_set() as rig:
        http = Http(rig)
        http.receive(post(doc({"_id": 1})))
        http.answers(1)
        rig.step_down(1)
        http.receive(post(doc({"_id": 2})))
        assert http.answers(2)[1][0] == 503
        rig.lead()
        http.receive(post(doc({"_id": 2})))
        assert http.answers(3)[2][0] == 201
