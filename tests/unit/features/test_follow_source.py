"""What a set that follows another one asks of its primary."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from replset.bson import RawDocument, decode, encode
from replset.errors import BadValueError, ErrorCode, HostUnreachableError, ReplError
from replset.features.consumers.consumer_directory import ConsumerDirectory
from replset.features.follower import follow_source
from replset.features.follower.follow_source import OwnHistory, SourceSet
from replset.ids import OPTIME_NULL, OpTime
from replset.oplog_entry import OplogEntry
from replset.query.change_tokens import behind
from tests.rig import Client, Rig


class Connection:
    """Answers every command in the same way."""

    def __init__(self, reply: dict[str, Any]) -> None:
        self.reply = reply
        self.is_open = True

    def ask(self, database: str, document: dict[str, object]) -> RawDocument:
        return RawDocument(encode(self.reply))

    def close(self) -> None:
        self.is_open = False


def asked(reply: dict[str, Any]) -> tuple[SourceSet, Connection]:
    source, connection = SourceSet(["a:1"], "site1"), Connection(reply)
    source._client = connection  # type: ignore[assignment]
    return source, connection


def test_an_answer_keeps_the_connection() -> None:
    source, connection = asked({"ok": 1.0, "n": 5})
    assert source.command({"ping": 1}).get("n") == 5
    assert connection.is_open


@pytest.mark.parametrize(("code", "expected"), [(13, 13), (None, 1)])
def test_a_refusal_ends_the_connection_and_says_whose_it_is(code: int | None, expected: int) -> None:
    source, connection = asked({"ok": 0.0, "errmsg": "no"} | ({} if code is None else {"code": code}))
    with pytest.raises(ReplError, match="site1: no") as refusal:
        source.command({"ping": 1})
    assert (refusal.value.code, connection.is_open) == (expected, False)


# --- who is asked ---------------------------------------------------------------------------------------------------


class Net:
    """Hosts and what each says of itself; one that is not in it cannot be reached."""

    def __init__(self, **hellos: dict[str, Any]) -> None:
        self.hellos = hellos
        self.opened: list[str] = []
        self.closed: list[str] = []

    def connect(self, host: str, *, timeout_s: float, login: object) -> Any:
        net = self

        class Wire:
            def command(self, database: str, document: dict[str, object]) -> dict[str, Any]:
                assert (database, document, timeout_s) == ("admin", {"hello": 1}, 3)
                return net.hellos[host]

            def ask(self, _database: str, _document: dict[str, object]) -> RawDocument:
                return RawDocument(encode({"ok": 1.0, "from": host}))

            def close(self) -> None:
                net.closed.append(host)

        self.opened.append(host)
        if host not in self.hellos:
            raise HostUnreachableError(f"{host} is away")
        return Wire()


def hello(*hosts: str, name: str = "site1", leads: bool = False) -> dict[str, Any]:
    return {"setName": name, "isWritablePrimary": leads} | ({"hosts": list(hosts)} if hosts else {})


@pytest.mark.parametrize(
    ("hellos", "opened", "closed", "answer"),
    [
        ({"a": hello("a", "b", leads=True)}, "a", "", "a"),
        ({"a": hello("c", "b", "a"), "b": hello("c", "b", "a", leads=True)}, "ab", "a", "b"),
        ({"b": hello("a", "c", "b"), "c": hello("d", "c", leads=True)}, "abc", "b", "c"),
        ({"a": hello("b", "c"), "b": hello("a", "c"), "c": hello("a", "b")}, "abc", "abc", "no member of site1"),
        ({}, "ab", "", "a is away"),
        ({"b": hello()}, "ab", "b", "a is away"),
        ({"a": hello(name="site2", leads=True)}, "a", "a", "a is a member of site2, not of site1"),
        ({"a": {}}, "a", "a", "a is a member of no set"),
    ],
)
def test_the_primary_is_found_from_any_member(
    monkeypatch: pytest.MonkeyPatch, hellos: dict[str, Any], opened: str, closed: str, answer: str
) -> None:
    """Each is asked once, those first that were named."""
    net = Net(**hellos)
    monkeypatch.setattr(follow_source, "WireClient", net.connect)
    source = SourceSet(["a", "b"], "site1", timeout_s=3)
    if len(answer) == 1:
        assert [source.command({"ping": 1}).get("from") for _ in range(2)] == [answer, answer]
    else:
        with pytest.raises(ReplError, match=answer):
            source.command({"ping": 1})
    assert ("".join(net.opened), "".join(net.closed)) == (opened, closed)
    source.close()
    source.close()
    assert "".join(net.closed) == closed + (answer if len(answer) == 1 else "")


def test_a_source_is_known_by_the_first_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net(a=hello("a", "b"), b=hello("b", "c", leads=True))
    monkeypatch.setattr(follow_source, "WireClient", net.connect)
    source = SourceSet(["a"], timeout_s=3)
    source.command({"ping": 1})
    assert (source.set_name, source.hosts) == ("site1", ["a", "b", "c"])
    net.hellos = {"a": hello("a", leads=True)}
    source.close()
    source.command({"ping": 1})
    assert net.opened == ["a", "b", "a"]


# --- what it says -----------------------------------------------------------------------------------------------------


@pytest.fixture
def source(client: Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[SourceSet]:
    """A whole member as the set that is followed."""

    class Wire:
        def command(self, database: str, document: dict[str, object]) -> dict[str, Any]:
            return client.run(document, database)

        def ask(self, database: str, document: dict[str, object]) -> RawDocument:
            return RawDocument(encode(client.run(document, database)))

        def close(self) -> None:
            pass

    monkeypatch.setattr(follow_source, "WireClient", lambda *_, **__: Wire())
    source = SourceSet(["a"])
    yield source
    source.close()


def raw_entries(client: Client) -> list[bytes]:
    return [row.entry for row in client.member.store.oplog_after(OPTIME_NULL, limit=1_000, max_bytes=1 << 30)]


def numbers(entries: list[bytes]) -> list[object]:
    return [OplogEntry(raw).o.get("_id") for raw in entries]


def test_a_source_shows_what_is_committed(client: Client, rig: Rig, source: SourceSet) -> None:
    client.ok({"insert": "c", "documents": [{"_id": number} for number in range(3)]})
    entries = raw_entries(client)
    at = OplogEntry(entries[-3]).optime
    rig.stop_disk()
    client.ok({"insert": "c", "documents": [{"_id": 3}], "writeConcern": {"w": 1}})
    assert numbers(source.entries_after(at)) == [1, 2]
    assert [decode(raw)["_id"] for raw in source.find("test.c", {}, 2)] == [0, 1]
    assert [decode(raw)["_id"] for raw in source.find("test.c", {}, 2, newest_first=True)] == [2, 1]
    assert [decode(raw)["_id"] for raw in source.find("test.c", {"_id": {"$gte": 2}}, 5)] == [2]
    assert [source.has(raw) for raw in (entries[-1], raw_entries(client)[-1])] == [True, False]
    rig.start_disk()
    assert numbers(source.entries_after(at)) == [1, 2, 3]
    with pytest.raises(ReplError) as lost:
        source.entries_after(OpTime(9, at.ts))
    assert lost.value.code == ErrorCode.CAPPED_POSITION_LOST


def test_a_copy_begins_at_the_newest_entry_that_both_have(client: Client, source: SourceSet) -> None:
    client.ok({"insert": "c", "documents": [{"_id": number} for number in range(3)]})
    entries = raw_entries(client)
    own = entries[-1].replace(b"test.c", b"test.d")
    found = [OplogEntry(raw).optime for raw in entries]
    assert source.find_start(OwnHistory("site2", entries, True)) == found[-1]
    assert source.find_start(OwnHistory("site2", entries[:-2], True)) == found[-3]
    assert source.find_start(OwnHistory("site2", [], False)) == found[0]
    for newest, why in (([*entries[:-1], own], "an entry of its own"), ([], "no copy")):
        with pytest.raises(BadValueError, match=why):
            source.find_start(OwnHistory("site2", newest, True))


def test_the_source_keeps_what_its_consumer_needs(client: Client, source: SourceSet) -> None:
    client.ok({"insert": "c", "documents": [{"_id": number} for number in range(4)]})
    *_, first, second, third, fourth = (OplogEntry(raw).optime for raw in raw_entries(client))

    def position() -> str:
        return client.member[ConsumerDirectory].find("f").position

    for step, at, then in (
        *((source.keep_from, second, second), (source.keep_from, third, second), (source.keep_from, first, first)),
        *((source.acknowledge, third, third), (source.acknowledge, second, third), (source.keep_from, third, third)),
    ):
        step("f", at)
        assert position() == str(behind(then))
    client.ok({"replSetConsumerRemove": "f"}, "admin")
    source.acknowledge("f", fourth)
    assert position() == str(behind(fourth))


@pytest.mark.parametrize("fails", [False, True])
def test_what_blocks_runs_beside_the_event_loop(fails: bool) -> None:
    def work(number: int) -> int:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        if fails:
            raise HostUnreachableError("a is away")
        return number + 1

    asked = SourceSet(["a"]).run(work, 4)
    if fails:
        with pytest.raises(HostUnreachableError, match="a is away"):
            asyncio.run(asked)
    else:
        assert asyncio.run(asked) == 5
