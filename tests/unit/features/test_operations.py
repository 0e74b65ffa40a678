"""currentOp shows what runs, killOp ends it, top counts what it took."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from replset.bson import Int64, RawDocument, encode
from replset.ids import HostPort
from replset.member.member import RunningMember
from replset.operations import fail_command
from replset.operations.request import CommandRequest, ConnectionContext
from replset.operations.slow_operations import SlowReason, Work
from tests.rig import Client


def start(client: Client, command: dict[str, object], connection: ConnectionContext) -> asyncio.Task[Any]:
    request = CommandRequest("test", RawDocument(encode({**command, "$db": "test"})), {}, connection)
    task = client.rig.begin(client.dispatcher.run(request))
    client.rig.turn()
    return task


@pytest.fixture
def slow(client: Client) -> asyncio.Task[Any]:
    """A find that blocks until it is killed, of a client of its own."""
    data = {"failCommands": ["find"], "blockConnection": True, "blockTimeMS": 60_000}
    client.ok({"configureFailPoint": "failCommand", "mode": "alwaysOn", "data": data}, "admin")
    connection = ConnectionContext(9, "127.0.0.1:9999", app_name="slow")
    return start(client, {"find": "c", "filter": {"a": 1}, "comment": "mine"}, connection)


def rows(client: Client, **query: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.ok({"currentOp": 1, **query}, "admin")["inprog"]
    return found


def test_what_runs_is_shown_and_killed(client: Client, slow: asyncio.Task[Any]) -> None:
    (row,) = rows(client, **{"command.comment": "mine"})
    assert row["op"] == "query"
    assert row["ns"] == "test.c"
    assert row["appName"] == "slow"
    assert row["command"]["filter"] == {"a": 1}
    assert isinstance(row["secs_running"], Int64)
    assert len(rows(client)) == 2, "currentOp runs too"
    assert [other["op"] for other in rows(client, **{"$ownOps": True})] == ["command"]
    client.ok({"killOp": 1, "op": row["opid"]}, "admin")
    reply = client.decoded(slow)
    assert (reply["code"], reply["codeName"]) == (11601, "Interrupted")
    assert len(rows(client)) == 1
    assert not client.dispatcher.operations.running


def test_a_killed_command_leaves_its_task_usable(client: Client, slow: asyncio.Task[Any]) -> None:
    async def main() -> object:
        waiting = asyncio.ensure_future(twice())
        await asyncio.sleep(0)
        for operation_id in list(client.dispatcher.operations.running):
            client.dispatcher.operations.kill(operation_id)
        return await waiting

    async def twice() -> object:
        connection = ConnectionContext(9, "127.0.0.1:9999")
        find = CommandRequest("test", RawDocument(encode({"find": "c", "$db": "test"})), {}, connection)
        first = await client.dispatcher.run(find)
        assert isinstance(first, dict)
        assert first["code"] == 11601
        await asyncio.sleep(0)
        return await client.dispatcher.run(CommandRequest("test", RawDocument(encode({"ping": 1}))))

    reply = client.rig.do(main())
    assert isinstance(reply, dict)
    assert reply["ok"] == 1.0
    client.decoded(slow)


def test_a_client_that_leaves_as_its_command_is_killed_ends_it(client: Client, slow: asyncio.Task[Any]) -> None:
    """A connection that has ended would wait for ever for its next command."""

    async def main() -> None:
        (operation_id,) = client.dispatcher.operations.running
        client.dispatcher.operations.kill(operation_id)
        slow.cancel()  # before the task runs again
        await asyncio.wait([slow])

    client.rig.do(main())
    assert slow.cancelled()


def test_a_client_that_leaves_ends_its_command_without_an_answer(client: Client, slow: asyncio.Task[Any]) -> None:
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        client.decoded(slow)
    assert not client.dispatcher.operations.running


def test_killing_what_is_not_there(client: Client) -> None:
    assert client.ok({"killOp": 1, "op": 12345}, "admin")["info"] == "attempting to kill op"
    assert client.code({"killOp": 1}, "admin") == 40414
    assert client.code({"killOp": 1, "op": "x"}, "admin") == 14
    assert client.code({"killOp": 1, "op": 1}) == 13


def test_nobody_kills_itself(client: Client) -> None:
    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        operation = client.dispatcher.operations.begin(object(), task)  # type: ignore[arg-type]
        client.dispatcher.operations.kill(operation.id)
        await asyncio.sleep(0)
        assert not operation.is_killed

    client.rig.do(main())


def test_a_get_more_shows_what_opened_its_cursor(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.ok({"insert": "c", "documents": [{"_id": i} for i in range(5)]})
    cursor_id = client.ok({"find": "c", "batchSize": 2, "comment": "from find"})["cursor"]["id"]
    seen: list[dict[str, Any]] = []

    def look(ctx: fail_command.CommandContext) -> None:
        from replset.features.diagnostics.current_op import describe
        from replset.operations.current_operations import OperationTable

        running = ctx.member[OperationTable].running.values()
        seen.extend(describe(operation, client.member.clock.now()) for operation in running)

    client.ok({"configureFailPoint": "maxTimeNeverTimeOut", "mode": "alwaysOn"}, "admin")
    monkeypatch.setattr("replset.features.crud.get_more.fail_get_more", look)
    client.ok({"getMore": Int64(cursor_id), "collection": "c"})
    (row,) = seen
    assert (row["op"], row["ns"]) == ("getmore", "test.c")
    assert row["cursor"]["originatingCommand"]["comment"] == "from find"


def test_a_large_or_malformed_command_is_cut(client: Client) -> None:
    data = {"failCommands": ["find"], "blockConnection": True, "blockTimeMS": 60_000}
    client.ok({"configureFailPoint": "failCommand", "mode": "alwaysOn", "data": data}, "admin")
    connection = ConnectionContext(9, "127.0.0.1:9999")
    tasks = [start(client, {"find": "c", "filter": {"a": "x" * 5000}}, connection)]
    shown = rows(client, op="query")
    assert [row["command"]["find"] for row in shown] == [1]
    assert "bytes" in shown[0]["command"]["$truncated"]
    for task in tasks:
        task.cancel()


def test_top(client: Client, member: RunningMember) -> None:
    client.ok({"insert": "c", "documents": [{"_id": 1}]})
    client.ok({"find": "c"})
    client.ok({"find": "never"})
    client.ok({"distinct": "c", "key": "_id"})
    totals = client.ok({"top": 1}, "admin")["totals"]
    assert set(totals) == {"note", "test.c"}
    uses = totals["test.c"]
    assert {kind: use["count"] for kind, use in uses.items() if use["count"]} == {
        "total": 3,
        "readLock": 2,
        "writeLock": 1,
        "queries": 1,
        "insert": 1,
        "commands": 1,
    }
    assert all(isinstance(use["time"], Int64) for use in uses.values())


def slow_operation(client: Client, took_ms: int, work: Work, held_ms: int = 0, **command: object) -> None:
    """A command that took so long, with this work."""
    member, table = client.member, client.dispatcher.operations

    async def main() -> None:
        request = CommandRequest("shop", RawDocument(encode(command)), {}, ConnectionContext(7, "127.0.0.1:7"))
        ctx = client.dispatcher._begin(request)
        ctx.work = work
        task = asyncio.current_task()
        assert task is not None
        operation = table.begin(ctx, task)
        await asyncio.sleep(took_ms / 1000)
        member.flow_control.held_ms += held_ms
        table.end(operation)

    client.rig.do(main())


def test_a_slow_write_that_was_held_back_says_whom_it_waited_for(
    client: Client, member: RunningMember, caplog: pytest.LogCaptureFixture
) -> None:
    member.flow_control.waits_for = (HostPort("b:1"),)
    caplog.set_level("INFO", logger="replset.operations")
    work = Work(waits={SlowReason.WRITE_QUEUE: 390})
    slow_operation(client, 400, work, held_ms=900, insert="orders", documents=[{}])
    assert "insert shop.orders took 400 ms; flow control held writers back for 400 ms" in caplog.text
    assert "waits for b:1" in caplog.text
    assert work.waits == {SlowReason.FLOW_CONTROL: 400}
    client.rig.wait(2)
    waited = Work(waits={SlowReason.WRITE_CONCERN: 350})
    slow_operation(client, 400, waited, held_ms=10, insert="orders", documents=[{}])
    assert "it waited 350 ms for its write concern; flow control held writers back for 10 ms" in caplog.text


@pytest.mark.parametrize(
    ("work", "reason", "why"),
    [
        (Work(waits={SlowReason.WRITE_CONCERN: 190}), "write concern", "it waited 190 ms for its write concern"),
        (Work(waits={SlowReason.READ_CONCERN: 150}), "read concern", "it waited 150 ms for its read concern"),
        (Work(waits={SlowReason.WRITE_QUEUE: 120}), "write queue", "it waited 120 ms behind other writes"),
        (Work(waits={SlowReason.TRANSACTION: 101}), "transaction", "for a transaction that held the document"),
        (Work(documents=5_000, is_scan=True), "scan", "without an index; its filter names city, age; client"),
        (Work(keys=9_000, documents=5_000), "documents", "it looked at 5000 documents; client"),
        (Work(documents=5_000, is_scan=True, waits={SlowReason.WRITE_CONCERN: 120}), "write concern", "120 ms"),
        (Work(), "busy", "or the machine was busy"),
    ],
)
def test_a_slow_operation_says_why(
    client: Client, caplog: pytest.LogCaptureFixture, work: Work, reason: str, why: str
) -> None:
    caplog.set_level("INFO", logger="replset.operations")
    slow_operation(client, 200, work, find="people", filter={"city": "x", "age": {"$gt": 1}})
    assert why in caplog.text
    slow = client.dispatcher.operations.slow
    assert slow.counts == {reason: 1}
    (row,) = slow.rows
    assert (row.command, row.ns, row.took_ms, row.client) == ("find", "shop.people", 200, "127.0.0.1:7")


def test_a_second_has_one_line_and_the_next_one_counts_the_others(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="replset.operations")
    for took_ms in (99, 300, 300, 300, 600):
        slow_operation(client, took_ms, Work(), count="c")
    assert len(caplog.messages) == 2
    assert caplog.messages[1].endswith("(2 more since the last line)")
    assert len(client.dispatcher.operations.slow.rows) == 4, "99 ms are not slow"


def test_what_waits_because_its_client_asks_for_that_is_not_slow(client: Client) -> None:
    slow_operation(client, 9_000, Work(), hello=1)
    slow_operation(client, 9_000, Work(idle_ms=8_950), find="c")
    assert not client.dispatcher.operations.slow.rows


def test_commands_note_what_they_look_at_and_wait_for(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replset.operations.current_operations.SLOW_MS", 0)
    client.ok({"insert": "c", "documents": [{"_id": i, "a": i % 10} for i in range(300)]})
    client.ok({"createIndexes": "c", "indexes": [{"key": {"b": 1}, "name": "b"}]})
    work = {}
    for name, command in {
        "scan": {"find": "c", "filter": {"a": 1}, "batchSize": 500},
        "count": {"count": "c", "query": {"a": 1}},
        "index": {"find": "c", "filter": {"b": 1}},
        "update": {"update": "c", "updates": [{"q": {"a": 1}, "u": {"$set": {"b": 2}}, "multi": True}]},
        "by id": {"delete": "c", "deletes": [{"q": {"_id": 1}, "limit": 1}]},
    }.items():
        client.ok(command)
        work[name] = client.dispatcher.operations.slow.rows[-1].work
    assert [(name, row.documents, row.is_scan) for name, row in work.items()] == [
        ("scan", 300, True),
        ("count", 300, True),
        ("index", 0, False),
        ("update", 300, True),
        ("by id", 1, False),
    ]


def test_a_collection_s_name_cannot_make_a_line_of_the_log(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "replset.operations"):
        slow_operation(client, 700, Work(), insert="c\n2026-01-01 ERROR forged", documents=[{}])
    (line,) = caplog.messages
    assert line.startswith("slow operation: insert shop.c\\n2026-01-01 ERROR forged took 700 ms;")
