"""LiveSet: finds the primary and follows it, reads, scans the oplog, and writes only what nobody has changed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest

from replset.bson import Binary, Int64, RawDocument, Timestamp, decode, encode, encode_key
from replset.errors import BadValueError, HostUnreachableError, ReplError
from replset.features.recovery import live_set
from replset.features.recovery.live_set import LiveSet, UnconfirmedError, Write
from replset.ids import OPTIME_NULL, OpTime, pack_ts
from replset.oplog_entry import command_entry, delete_entry, extra_fields, insert_entry, noop_entry
from replset.wire.framing import FrameReader, WireMessage, encode_reply

Answer = Callable[[dict[str, Any]], dict[str, Any] | None]
NS = "shop.orders"
UUID_OF_ORDERS = UUID(int=7).bytes


class FakeMember:
    """A wire port that answers commands by their name; None breaks the connection. `asked`: all but hello."""

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


def test_any_member_leads_to_the_primary() -> None:
    with members(2) as (secondary, primary):
        secondary.hello |= {"isWritablePrimary": False, "primary": primary.host}
        with LiveSet(secondary.host, "rs0") as live:
            assert live.primary == primary.host


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


def test_a_read_follows_the_primary_that_takes_over() -> None:
    with members(2) as (old, new):
        old.hello["hosts"] = [old.host, new.host]

        def step_down(command: dict[str, Any]) -> dict[str, Any]:
            old.hello |= {"isWritablePrimary": False, "primary": new.host}
            return {"ok": 0.0, "code": 10107, "errmsg": "not primary"}

        old.answers["find"] = step_down
        new.answers["find"] = once(cursor(encode({"_id": 1})))
        with LiveSet(old.host, "rs0", timeout_s=5) as live:
            assert live.documents(NS, [1]) == {encode_key(1): encode({"_id": 1})}
            assert live.primary == new.host


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


def test_collections(member: FakeMember) -> None:
    member.answers["listDatabases"] = once({"databases": [{"name": "local"}, {"name": "shop"}]})
    info = {"name": "orders", "info": {"uuid": Binary(UUID_OF_ORDERS, 4)}}
    member.answers["listCollections"] = once({"cursor": {"id": Int64(0), "firstBatch": [info]}})
    with LiveSet(member.host) as live:
        assert live.collections() == {NS: UUID_OF_ORDERS}


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


@pytest.mark.parametrize(("first", "there", "refused"), [(1, 5, False), (1, 6, True), (6, 6, False), (1, 0, True)])
def test_a_common_point_is_an_entry_of_the_set(member: FakeMember, first: int, there: int, refused: bool) -> None:
    """Unless the set's oplog begins after it: then nobody can tell."""

    def find(command: dict[str, Any]) -> dict[str, Any]:
        number = there if command["filter"] else first
        return cursor(*([noop_entry({"msg": "x"}, at(number), 0)] if number else []))

    member.answers["find"] = find
    with LiveSet(member.host) as live:
        live.check_common_point(OPTIME_NULL)
        if refused:
            with pytest.raises(BadValueError, match="the set's oplog has no entry 100:5"):
                live.check_common_point(OpTime(0, at(5).ts))
        else:
            live.check_common_point(OpTime(0, at(5).ts))


def at(number: int) -> OpTime:
    return OpTime(2, pack_ts(100, number))


def test_a_scan_notes_last_entries_and_goes_on_where_it_stopped(member: FakeMember) -> None:
    one, two = encode({"_id": 1}), encode({"_id": 2})
    log = [
        noop_entry({"msg": "x"}, at(1), 0),
        insert_entry(NS, UUID_OF_ORDERS, one, at(2), 0),
        insert_entry(NS, UUID_OF_ORDERS, two, at(3), 0),
        delete_entry(NS, UUID_OF_ORDERS, one, at(4), 0),
        command_entry("shop", UUID_OF_ORDERS, {"drop": "parts"}, at(5), 0),
    ]

    def find(command: dict[str, Any]) -> dict[str, Any]:
        after = command["filter"].get("ts", {}).get("$gt", Timestamp(0, 0))
        rows = [row for row in log if RawDocument(row).get("ts") > after]
        return cursor(*rows[: command.get("limit", 99)])

    member.answers["find"] = find
    wanted = frozenset({(NS, encode_key(1)), ("shop.parts", encode_key(1))})
    with LiveSet(member.host) as live:
        live.scan(at(1), wanted)
        assert live.oplog_is_complete
        assert live.last_entry((NS, encode_key(1))) == at(4)
        assert live.last_entry((NS, encode_key(2))) is None
        assert live.last_entry(("shop.parts", encode_key(1))) == at(5)
        log.append(insert_entry(NS, UUID_OF_ORDERS, one, at(6), 0))
        live.scan(at(1), wanted)
        assert live.last_entry((NS, encode_key(1))) == at(6)
        log.append(command_entry("shop", UUID_OF_ORDERS, {"renameCollection": NS, "to": "shop.parts"}, at(7), 0))
        live.scan(at(1), wanted)
        assert live.last_entry((NS, encode_key(1))) == live.last_entry(("shop.parts", encode_key(1))) == at(7)
    assert member.asked[-1]["filter"] == {"ts": {"$gt": Timestamp(100, 6)}}


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


def test_an_oplog_that_begins_later_is_not_complete(member: FakeMember) -> None:
    member.answers["find"] = once(cursor(noop_entry({"msg": "x"}, at(9), 0)), cursor())
    with LiveSet(member.host) as live:
        live.scan(at(1), frozenset())
        assert not live.oplog_is_complete


@pytest.mark.parametrize(("asked", "expected"), [(at(3), True), (at(2), False), (OPTIME_NULL, False)])
def test_whether_the_set_has_an_entry(member: FakeMember, asked: OpTime, expected: bool) -> None:
    member.answers["find"] = once(cursor(noop_entry({"msg": "x"}, at(3), 0)))
    with LiveSet(member.host) as live:
        assert live.has_entry(asked) is expected


# --- writing ----------------------------------------------------------------------------------------------------


def write(number: int, before: dict[str, object] | None, after: dict[str, object] | None) -> Write:
    documents = [None if fields is None else encode({"_id": number, **fields}) for fields in (before, after)]
    return Write(NS, encode({"_id": number}), documents[0], documents[1])


def test_writes_name_the_version_that_they_replace(member: FakeMember) -> None:
    for name in ("insert", "update", "delete"):
        member.answers[name] = once({"n": 1})
    writes = [write(1, {"a": 1}, {"a": 2}), write(2, None, {"a": 1}), write(3, {"a": 1}, None)]
    with LiveSet(member.host) as live:
        written = live.write(writes)
    assert (written.done, written.refused) == ({0, 1, 2}, {})
    insert, update, delete = member.asked
    assert insert["documents"] == [{"_id": 2, "a": 1}]
    seen = {"$expr": {"$eq": ["$$ROOT", {"$literal": {"_id": 1, "a": 1}}]}}
    assert update["updates"] == [{"q": {"_id": {"$eq": 1}, **seen}, "u": {"_id": 1, "a": 2}}]
    assert delete["deletes"][0]["limit"] == 1
    for command in member.asked:
        assert command["writeConcern"] == {"w": "majority", "wtimeout": 30_000}
        assert command["ordered"] is False
        assert "bypassEmptyTsReplacement" not in command, "an old mongod does not know it"


def test_an_empty_timestamp_is_written_as_it_was(member: FakeMember) -> None:
    for name in ("insert", "update", "delete"):
        member.answers[name] = once({"n": 1})
    empty = {"t": Timestamp(0, 0)}
    with LiveSet(member.host) as live:
        live.write([write(1, None, {"in": empty}), write(2, {"a": 1}, empty), write(3, empty, None)])
        live.write([write(1, None, empty)])
    assert [next(iter(command)) for command in member.asked if command.get("bypassEmptyTsReplacement")] == [
        "update",
        "insert",
    ]


def test_a_document_that_is_another_one_by_now_is_not_done(member: FakeMember) -> None:
    member.answers["update"] = once({"n": 1})
    member.answers["insert"] = once({"n": 1, "writeErrors": [{"index": 0, "code": 11000, "errmsg": "duplicate"}]})
    writes = [write(n, {"a": 1}, {"a": 2}) for n in (1, 2)] + [write(n, None, {"a": 1}) for n in (3, 4)]
    with LiveSet(member.host) as live:
        written = live.write(writes)
    assert (written.done, written.refused) == ({3}, {})


def test_refused_statements_are_reported(member: FakeMember) -> None:
    member.answers["insert"] = once({"n": 0, "writeErrors": [{"index": 0, "code": 20, "errmsg": "not here"}]})
    with LiveSet(member.host) as live:
        assert live.write([write(1, None, {})]).refused == {0: "20: not here"}


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


@pytest.mark.parametrize(("command", "code"), [("create", 48), ("drop", 26)])
def test_commands_that_somebody_else_did_before(member: FakeMember, command: str, code: int) -> None:
    member.answers[command] = once({"ok": 0.0, "code": code, "errmsg": "so it is"})
    with LiveSet(member.host) as live:
        if command == "create":
            live.create(NS, {"x": 1})
        else:
            live.drop(NS)
    assert member.asked[0][command] == "orders"
