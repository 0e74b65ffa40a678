"""LiveSet: finds the primary and follows it, reads, scans the oplog, and writes only what nobody has changed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest

from replset import target
from replset.bson import Binary, Int64, RawDocument, Timestamp, decode, encode, encode_key
from replset.errors import BadValueError, HostUnreachableError, ReplError
from replset.features.recovery import live_set
from replset.features.recovery.live_set import LiveSet, UnconfirmedError, Write
from replset.ids import OPTIME_NULL, OpTime, pack_ts
from replset.oplog_entry import command_entry, extra_fields, insert_entry, noop_entry
from replset.wire.framing import FrameReader, WireMessage, encode_reply
from tests.rig import Rig, a_set, rig_wire

Answer = Callable[[dict[str, Any]], dict[str, Any] | None]
NS = "shop.orders"
UUID_OF_ORDERS = UUID(int=7).bytes


class FakeMember:
    """A wire port that answers commands by their name; None breaks the connection. `asked`: all but hello.

    It says what only a mongod says, and breaks connections. All else a set of the simulator answers.
    """

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.answers: dict[str, Answer] = {}
        self.hello: dict[str, Any] = {}
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.host = "127.0.0.1:%d" % self._listening.getsockname()[1]  # noqa: UP031 - a port
        self.hello = {"isWritablePrimary": True, "setName": "rs0", "hosts": [self.host], "primary": self.host}
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        reader = FrameReader()
        with connection:
            while data := connection.recv(1 << 16):
                for message in reader.feed(data):
                    reply = self._answer(message)
                    if reply is None:
                        return
                    connection.sendall(encode_reply(9, message, encode(reply)))

    def _answer(self, message: WireMessage) -> dict[str, Any] | None:
        command = decode(message.body.raw)
        name = next(iter(command))
        if name == "hello":
            return {**self.hello, "ok": 1.0}
        for field, rows in message.sequences.items():
            command[field] = [decode(row.raw) for row in rows]
        self.asked.append(command)
        reply = self.answers.get(name, lambda command: {})(command)
        return None if reply is None else {"ok": 1.0, **reply}

    def close(self) -> None:
        self._listening.close()


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_set, "PAUSE_S", 0)


@contextmanager
def members(count: int = 1) -> Iterator[list[FakeMember]]:
    found = [FakeMember() for _ in range(count)]
    try:
        yield found
    finally:
        for member in found:
            member.close()


@pytest.fixture
def member() -> Iterator[FakeMember]:
    with members() as (found,):
        yield found


def once(*replies: dict[str, Any] | None) -> Answer:
    """One reply after the other, then the last one."""
    left = list(replies)
    return lambda command: left.pop(0) if len(left) > 1 else left[0]


def cursor(*rows: bytes, more: int = 0, name: str = "firstBatch") -> dict[str, Any]:
    return {"cursor": {"id": Int64(more), "ns": NS, name: [RawDocument(row) for row in rows]}}


# --- the primary --------------------------------------------------------------------------------------------------


def test_another_set_is_refused(member: FakeMember) -> None:
    member.hello["setName"] = "rs9"
    with pytest.raises(BadValueError, match=f"{member.host} is a member of rs9, the rollback was in rs0"):
        LiveSet(member.host, "rs0")


def test_a_wrong_address_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(seconds: float) -> None:
        raise AssertionError("it waits")

    monkeypatch.setattr("time.sleep", wait)
    with socket.socket() as silent:  # its port is taken, and nobody listens there
        silent.bind(("127.0.0.1", 0))
        with pytest.raises(HostUnreachableError, match="cannot be reached"):
            LiveSet(f"127.0.0.1:{silent.getsockname()[1]}", "rs0")


def test_members_that_name_each_other_as_primary_are_no_primary() -> None:
    """While a failover is under way each may know another one that was primary before."""
    with members(2) as (one, other):
        one.hello |= {"isWritablePrimary": False, "primary": other.host}
        other.hello |= {"isWritablePrimary": False, "primary": one.host}
        with pytest.raises(HostUnreachableError, match="knows no primary"):
            LiveSet(one.host, "rs0", timeout_s=0.01)


def test_no_primary_in_time(member: FakeMember) -> None:
    member.hello |= {"isWritablePrimary": False, "primary": None}
    with pytest.raises(HostUnreachableError, match="knows no primary"):
        LiveSet(member.host, "rs0", timeout_s=0.01)


def test_an_error_about_the_request_is_not_tried_again(member: FakeMember) -> None:
    member.answers["find"] = once({"ok": 0.0, "code": 2, "errmsg": "bad value"})
    with LiveSet(member.host) as live, pytest.raises(ReplError, match="bad value"):
        live.documents(NS, [1])
    assert len(member.asked) == 1


# --- reading ----------------------------------------------------------------------------------------------------


def test_documents_are_read_to_the_end_and_as_a_majority_has_them(member: FakeMember) -> None:
    rows = [encode({"_id": number}) for number in (1, 2)]
    member.answers["find"] = once(cursor(rows[0], more=5))
    member.answers["getMore"] = once(cursor(rows[1], name="nextBatch"))
    with LiveSet(member.host) as live:
        assert live.documents(NS, [1, 2, 3]) == {encode_key(1): rows[0], encode_key(2): rows[1]}
    find, more = member.asked
    assert (find["filter"], find["readConcern"]) == ({"_id": {"$in": [1, 2, 3]}}, {"level": "majority"})
    assert (more["getMore"], more["collection"], more["$db"]) == (5, "orders", "shop")


def test_a_lost_cursor_is_read_again(member: FakeMember) -> None:
    row = encode({"_id": 1})
    member.answers["find"] = once(cursor(row, more=5), cursor(row))
    member.answers["getMore"] = once({"ok": 0.0, "code": 43, "errmsg": "cursor not found"})
    with LiveSet(member.host, timeout_s=5) as live:
        assert live.documents(NS, [1]) == {encode_key(1): row}


def test_collections_of_a_mongod(member: FakeMember) -> None:
    """They come in several batches, views among them have no UUID, and those of `admin` have names too."""
    member.answers["listDatabases"] = once({"databases": [{"name": name} for name in ("admin", "local", "shop")]})
    orders, users = (Binary(UUID(int=number).bytes, 4) for number in (7, 8))
    pages = {
        "admin": [{"name": "system.users", "info": {"uuid": users}}],
        "shop": [{"name": "recent", "type": "view", "info": {"readOnly": True}}],
    }

    def first(command: dict[str, Any]) -> dict[str, Any]:
        database = command["$db"]
        more = Int64(database == "shop")
        return {"cursor": {"id": more, "ns": f"{database}.$cmd.listCollections", "firstBatch": pages[database]}}

    member.answers["listCollections"] = first
    member.answers["getMore"] = once(
        {"cursor": {"id": Int64(0), "nextBatch": [{"name": "orders", "info": {"uuid": orders}}]}}
    )
    with LiveSet(member.host) as live:
        assert live.collections(every=True) == {"admin.system.users": bytes(users), NS: bytes(orders)}
    assert member.asked[-1]["collection"] == "$cmd.listCollections"


@pytest.mark.parametrize(("database", "is_refused"), [("admin", False), ("config", False), ("shop", True)])
def test_collections_that_the_user_may_not_list(member: FakeMember, database: str, is_refused: bool) -> None:
    """Of mongod's own databases they are not needed."""
    member.answers["listDatabases"] = once({"databases": [{"name": database}]})
    member.answers["listCollections"] = once({"ok": 0.0, "code": 13, "errmsg": "not authorized"})
    with LiveSet(member.host) as live:
        if is_refused:
            with pytest.raises(ReplError, match="not authorized"):
                live.collections(every=True)
        else:
            assert live.collections(every=True) == {}


def at(number: int) -> OpTime:
    return OpTime(2, pack_ts(100, number))


def test_a_transaction_that_was_prepared_before_the_scan_leaves_it_incomplete(member: FakeMember) -> None:
    session = {"lsid": {"id": Binary(bytes(16), 4)}, "txnNumber": 1}
    applied = {"applyOps": [{"op": "i", "ns": NS, "ui": Binary(UUID_OF_ORDERS, 4), "o": {"_id": 1}}], "prepare": True}
    prepare = command_entry("admin", None, applied, at(2), 0, extra=extra_fields(session))
    commit = command_entry("admin", None, {"commitTransaction": 1}, at(3), 0, extra=extra_fields(session))
    for log, is_complete in (([prepare, commit], True), ([commit], False)):
        member.answers["find"] = lambda command, log=log: cursor(
            *([noop_entry({}, at(1), 0)] if "limit" in command else log)
        )
        with LiveSet(member.host) as live:
            live.scan(at(1), frozenset({(NS, encode_key(1))}))
            assert live.oplog_is_complete is is_complete
            assert live.last_entry((NS, encode_key(1))) == (at(2) if is_complete else None)


def test_entries_of_other_collections_need_no_id(member: FakeMember) -> None:
    log = [insert_entry("shop.log", UUID_OF_ORDERS, encode({"a": 1}), at(2), 0)]
    member.answers["find"] = lambda command: cursor(*([noop_entry({}, at(1), 0)] if "limit" in command else log))
    with LiveSet(member.host) as live:
        live.scan(at(1), frozenset({(NS, encode_key(1))}))


def test_it_looks_back_only_as_far_as_it_must(member: FakeMember) -> None:
    def back(seconds: int) -> OpTime:
        return OpTime(1, pack_ts(10_000 - seconds, 1))

    rows = [
        insert_entry(NS, UUID_OF_ORDERS, encode({"_id": n, "n": seconds}), back(seconds), 0)
        for n, seconds in ((3, 6000), (2, 1500), (1, 1400), (1, 100), (1, -5))
    ]
    log = [noop_entry({"msg": "first"}, back(8990), 0), *rows]
    spans: list[int] = []

    def find(command: dict[str, Any]) -> dict[str, Any]:
        if "limit" in command:
            return cursor(log[0])
        span = command["filter"]["ts"]
        spans.append(span["$lte"].time - span["$gt"].time)
        assert command["filter"]["ns"] == {"$in": ["admin.$cmd", "shop.$cmd", NS]}
        found = [row for row in log if span["$gt"] < decode(row)["ts"] <= span["$lte"]]
        return cursor(*[row for row in found if decode(row)["ns"] == NS])

    member.answers["find"] = find
    with LiveSet(member.host) as live:
        for wanted, versions, asked in (
            ([1], {1: {"_id": 1, "n": 100}}, [600]),
            ([1, 2], {1: {"_id": 1, "n": 100}, 2: {"_id": 2, "n": 1500}}, [600, 1200]),
            ([2, 4], {2: {"_id": 2, "n": 1500}}, [600, 1200, 2400, 4790]),
        ):
            spans.clear()
            found = live.versions_at(back(0), frozenset((NS, encode_key(n)) for n in wanted))
            assert {key[1]: decode(raw or b"") for key, raw in found.items()} == {
                encode_key(n): row for n, row in versions.items()
            }
            assert spans == asked
        assert live.versions_at(back(9001), frozenset({(NS, encode_key(1))})) == {}


# --- writing ----------------------------------------------------------------------------------------------------


def write(number: int, before: dict[str, object] | None, after: dict[str, object] | None) -> Write:
    documents = [None if fields is None else encode({"_id": number, **fields}) for fields in (before, after)]
    return Write(NS, encode({"_id": number}), documents[0], documents[1])


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        ({"n": 1, "writeConcernError": {"code": 64, "errmsg": "waiting timed out"}}, UnconfirmedError),
        ({"ok": 0.0, "code": 10107, "errmsg": "not primary"}, ReplError),
        (None, HostUnreachableError),
    ],
)
def test_a_write_is_never_sent_twice_by_itself(
    member: FakeMember, reply: dict[str, Any] | None, error: type[ReplError]
) -> None:
    member.answers["insert"] = once(reply)
    with LiveSet(member.host) as live, pytest.raises(error):
        live.write([write(1, None, {})])
    assert len(member.asked) == 1


def test_large_documents_go_in_messages_of_their_own(member: FakeMember, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_set, "LARGEST_STATEMENT", 5000)
    member.answers["insert"] = lambda command: {"n": len(command["documents"])}
    member.answers["update"] = once({"n": 1})
    writes = [write(n, None, {"text": "x" * 2000}) for n in range(3)]
    writes.append(write(8, None, {"text": "x" * 6000}))
    change = {"$set": {"text": "y"}}
    large = write(9, {"text": "x" * 4000}, {"text": "y"})
    writes.append(Write(NS, large.id_element, large.before, large.after, change))
    with LiveSet(member.host) as live:
        written = live.write(writes)
    assert written.done == {0, 1, 2, 4}
    assert "too large to be put back safely" in written.refused[3]
    assert [len(command["documents"]) for command in member.asked[:2]] == [2, 1]
    assert member.asked[2]["updates"][0]["u"] == change


def test_statements_fill_a_message_to_its_last_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of 100 bytes, two in one message of 200; none of 201."""
    monkeypatch.setattr(live_set, "LARGEST_STATEMENT", 200)
    rest = len(encode({"_id": 1, "x": ""}))
    writes = [
        write(number, None, {"x": "x" * (size - rest)})
        for number, size in enumerate((100, 100, 100, 100, 101, 200, 201))
    ]
    refused: dict[int, str] = {}
    parts = list(live_set._message_batches("insert", range(7), writes, refused))
    assert [[index for index, _ in part] for part in parts] == [[0, 1], [2, 3], [4], [5]]
    assert list(refused) == [6]
    assert "too large to be put back safely: 201 bytes" in refused[6]


@pytest.mark.parametrize(("spare", "is_whole"), [(1, True), (0, False)])
def test_two_versions_that_fit_are_sent_whole(monkeypatch: pytest.MonkeyPatch, spare: int, is_whole: bool) -> None:
    before, after = encode({"_id": 1, "a": 1}), encode({"_id": 1, "a": 2})
    monkeypatch.setattr(live_set, "LARGEST_STATEMENT", len(before) + len(after) + 4096 + spare)
    sent = decode(live_set.statement(Write(NS, encode({"_id": 1}), before, after, {"$set": {"a": 2}})))
    assert sent["u"] == ({"_id": 1, "a": 2} if is_whole else {"$set": {"a": 2}})


# --- a set of the simulator ---------------------------------------------------------------------------------------


class Live:
    """Three members, a connection to the set, and what is asked over it."""

    def __init__(self, rig: Rig, patch: pytest.MonkeyPatch) -> None:
        self.rig, self.asked = rig, rig_wire(rig, patch, target)
        self.set = LiveSet("b:27017", "rs0")

    def do(self, command: dict[str, Any], database: str = "shop") -> OpTime:
        self.rig.client(self.rig.cluster.primary() or "a").ok({**command, "writeConcern": {"w": 3}}, database)
        return self.rig.newest(self.rig.cluster.primary() or "a")

    def rows(self) -> list[dict[str, Any]]:
        return self.rig.client().ok({"find": "orders", "sort": {"_id": 1}}, "shop")["cursor"]["firstBatch"]


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    with a_set(3) as rig:
        yield Live(rig, monkeypatch)


def test_any_member_leads_to_the_primary_and_a_read_follows_it(live: Live) -> None:
    live.do({"insert": "orders", "documents": [{"_id": 1}]})
    assert live.set.primary == "a:27017"
    live.rig.step_down()
    live.rig.until(lambda: live.rig.cluster.primary() not in (None, "a"))
    assert live.set.documents(NS, [1, 2]) == {encode_key(1): encode({"_id": 1})}
    assert live.set.primary == f"{live.rig.cluster.primary()}:27017"


def test_collections_and_commands_that_somebody_else_did_before(live: Live) -> None:
    for _ in range(2):
        live.set.create(NS, {})
        coll = live.rig.member().store.collection(NS)
        assert live.set.collections() == {NS: coll.uuid}
    for _ in range(2):
        live.set.drop(NS)
        assert live.set.collections() == {}


def test_which_entries_the_set_has(live: Live) -> None:
    """A common point is one of them, unless the oplog begins after it: then nobody can tell."""
    there = live.do({"insert": "orders", "documents": [{"_id": 1}]})
    for optime in (there, OPTIME_NULL, OpTime(0, pack_ts(100, 5))):
        live.set.check_common_point(optime)
    gone = OpTime(there.term, there.ts + 1)
    for _ in range(2):
        with pytest.raises(BadValueError, match=f"the set's oplog has no entry {gone.seconds}:{gone.increment}"):
            live.set.check_common_point(gone)
        live.rig.wait(2)
        assert live.do({"delete": "orders", "deletes": [{"q": {}, "limit": 0}]}).seconds > gone.seconds
    assert [live.set.has_entry(one) for one in (there, gone, OpTime(0, there.ts), OPTIME_NULL)] == [True, *[False] * 3]


def test_a_scan_notes_last_entries_and_goes_on_where_it_stopped(live: Live) -> None:
    one, parts = (NS, encode_key(1)), ("shop.parts", encode_key(1))
    live.do({"create": "parts"})
    begin = live.do({"insert": "orders", "documents": [{"_id": 1}, {"_id": 2}]})
    deleted = live.do({"delete": "orders", "deletes": [{"q": {"_id": 1}, "limit": 1}]})
    dropped = live.do({"drop": "parts"})

    def found() -> list[OpTime | None]:
        live.set.scan(begin, frozenset({one, parts}))
        return [live.set.last_entry(key) for key in (one, (NS, encode_key(2)), parts)]

    assert found() == [deleted, None, dropped]
    assert live.set.oplog_is_complete
    again = live.do({"insert": "orders", "documents": [{"_id": 1}]})
    assert found() == [again, None, dropped]
    renamed = live.do({"renameCollection": NS, "to": "shop.parts"}, "admin")
    assert found() == [renamed, renamed, renamed]
    assert live.asked[-1]["filter"] == {"ts": {"$gt": Timestamp(again.seconds, again.increment)}}
    with LiveSet("a:27017") as other:
        other.scan(OpTime(0, pack_ts(1, 1)), frozenset())
        assert not other.oplog_is_complete


def test_writes_replace_the_version_that_they_name_and_no_other(live: Live) -> None:
    live.do({"insert": "orders", "documents": [{"_id": n, "a": 1} for n in (1, 3, 4, 5)]})
    live.do({"update": "orders", "updates": [{"q": {"_id": n}, "u": {"$set": {"b": 1}}} for n in (4, 5)]})
    live.asked.clear()
    done = live.set.write([write(1, {"a": 1}, {"a": 2}), write(2, None, {"a": 1}), write(3, {"a": 1}, None)])
    assert (done.done, done.refused) == ({0, 1, 2}, {})
    changed = [write(4, {"a": 1}, {"a": 2}), write(5, {"a": 1}, None), write(4, None, {"a": 3}), write(6, None, {})]
    done = live.set.write(changed)
    assert (done.done, done.refused) == ({3}, {})
    left = [{"_id": 1, "a": 2}, {"_id": 2, "a": 1}, *({"_id": n, "a": 1, "b": 1} for n in (4, 5)), {"_id": 6}]
    assert live.rows() == left
    for command in live.asked:
        assert command["writeConcern"] == {"w": "majority", "wtimeout": 30_000}
        assert command["ordered"] is False
        assert "bypassEmptyTsReplacement" not in command, "an old mongod does not know it"


def test_an_empty_timestamp_is_written_as_it_was(live: Live) -> None:
    empty = {"t": Timestamp(0, 0)}
    live.do({"insert": "orders", "documents": [{"_id": 2, "a": 1}]})
    live.set.write([write(1, None, empty), write(2, {"a": 1}, empty), write(3, None, {"in": empty})])
    assert live.rows() == [{"_id": 1, **empty}, {"_id": 2, **empty}, {"_id": 3, "in": empty}]


def test_refused_statements_are_reported(live: Live) -> None:
    live.do({"create": "orders", "validator": {"a": {"$exists": True}}})
    written = live.set.write([write(1, None, {}), write(2, None, {"a": 1})])
    assert (written.done, list(written.refused)) == ({1}, [0])
    assert written.refused[0].startswith("121: ")
