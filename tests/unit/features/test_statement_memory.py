"""Large filters and updates wait for each other where they do not fit in memory together; all others go on."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace
from typing import Any

import pytest

from replset.bson import RawDocument, encode
from replset.errors import BadValueError, ErrorCode
from replset.features.crud.write_batch import parse_in_slices
from replset.member.member import RunningMember
from replset.operations import statement_memory
from replset.operations.command import CommandContext
from replset.operations.current_operations import SLOW_MS
from replset.operations.evaluation import SMALL_STATEMENT, compiled, read_statement
from replset.operations.request import Reply
from replset.operations.slow_operations import WORK, Work
from replset.operations.statement_memory import COMPILED, LARGE, LONGEST_WAIT_MS, PART_BYTES, StatementMemory
from replset.query.match import compile_filter
from tests.rig import Client, Rig

VALUES = {"n": {"$in": list(range(3_000))}}
SIZE = len(encode({"q": VALUES}))
"""Of a statement that is counted, about."""
MAJORITY = {"w": "majority"}


@pytest.fixture(autouse=True)
def _documents(client: Client) -> None:
    client.ok({"insert": "c"}, documents=[{"_id": number, "n": number} for number in range(3)])


def room_for(count: float, monkeypatch: pytest.MonkeyPatch, size: int = SIZE) -> None:
    """Let so many of these statements fit, decoded."""
    monkeypatch.setattr(statement_memory, "MOST_BYTES", int(count * COMPILED * size))


def begin_update(client: Client, rig: Rig, query: dict[str, Any] = VALUES) -> asyncio.Task[Reply]:
    """A write with a large filter, which is done but waits for the disk."""
    rig.stop_disk()
    command = {"update": "c", "updates": [{"q": query, "u": {"$inc": {"a": 1}}}], "writeConcern": MAJORITY}
    task = client.begin(command)
    rig.wait(0.5)
    assert not task.done()
    return task


def find(**more: object) -> dict[str, Any]:
    return {"find": "c", "filter": VALUES, **more}


def test_one_that_does_not_fit_waits_for_the_one_before(
    client: Client, rig: Rig, member: RunningMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    room_for(1.5, monkeypatch)
    first = begin_update(client, rig)
    second = client.begin(find())
    rig.wait(1)
    assert not second.done()
    assert client.ok({"find": "c", "filter": {"n": 1}})["cursor"]["firstBatch"] == [{"_id": 1, "n": 1}]
    rows = [{"_id": 9, "pad": "x" * SIZE}]
    assert client.ok({"insert": "c", "writeConcern": {"w": 1}}, documents=rows)["n"] == 1  # is not decoded
    assert client.ok({"insert": "c", "documents": [{**rows[0], "_id": 10}], "writeConcern": {"w": 1}})["n"] == 1
    rig.start_disk()
    assert client.decoded(first)["nModified"] == 1
    assert len(client.decoded(second)["cursor"]["firstBatch"]) == 3
    slow = member.dispatcher.operations.slow.rows[-1]
    assert (slow.command, slow.reason) == ("find", "memory")
    assert slow.took_ms >= SLOW_MS
    assert client.ok(find())["ok"] == 1.0


def test_those_that_fit_together_run_together(client: Client, rig: Rig) -> None:
    begin_update(client, rig)
    assert len(client.ok(find())["cursor"]["firstBatch"]) == 3
    rig.start_disk()


def test_a_batch_of_small_statements_counts_by_its_bytes(
    client: Client, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.stop_disk()
    monkeypatch.setattr(statement_memory, "MOST_BYTES", 8_000_000)
    for name in ("a", "b"):
        updates = [{"q": {"_id": 1}, "u": {"$set": {name: number}}} for number in range(1_000)]
        client.begin({"update": "c", "writeConcern": MAJORITY}, updates=updates)
        rig.wait(0.5)
    (found,) = client.ok({"find": "c", "filter": {"_id": 1}})["cursor"]["firstBatch"]
    assert (found["a"], found["b"]) == (999, 999)
    rig.start_disk()


@pytest.mark.parametrize(
    ("more", "code", "after_s"),
    [({"maxTimeMS": 2_000}, 50, 2), ({}, 462, LONGEST_WAIT_MS / 1000), ({"maxTimeMS": 60_000}, 462, 10)],
)
def test_a_wait_ends(
    client: Client, rig: Rig, monkeypatch: pytest.MonkeyPatch, more: dict[str, int], code: int, after_s: float
) -> None:
    room_for(1.5, monkeypatch)
    begin_update(client, rig)
    second = client.begin(find(**more))
    rig.wait(after_s - 0.5)
    assert not second.done()
    rig.wait(1)
    reply = client.decoded(second)
    assert reply["code"] == code
    if code == ErrorCode.OVERLOADED:
        assert reply["errorLabels"] == ["SystemOverloadedError", "RetryableError"]
    third = client.begin(find())
    rig.start_disk()
    assert client.decoded(third)["ok"] == 1.0


def test_one_that_waits_can_be_killed_and_the_next_goes_on(
    client: Client, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    room_for(1.5, monkeypatch)
    begin_update(client, rig)
    waiting = client.begin(find())
    rig.wait(0.5)
    third = client.begin(find())
    rig.wait(0.5)
    rows = client.ok({"currentOp": 1}, "admin")["inprog"]
    finds = [row["opid"] for row in rows if "find" in row["command"]]
    client.ok({"killOp": 1, "op": min(finds)}, "admin")
    assert client.decoded(waiting)["code"] == ErrorCode.INTERRUPTED
    rig.start_disk()
    assert client.decoded(third)["ok"] == 1.0


def test_usual_statements_do_not_wait_for_very_large_ones(
    client: Client, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    room_for(1.5, monkeypatch)
    huge = {"n": {"$in": [0, 1, "x" * LARGE]}}
    begin_update(client, rig, huge)
    assert len(client.ok(find())["cursor"]["firstBatch"]) == 3
    other = client.begin({"find": "c", "filter": huge})
    rig.wait(1)
    assert not other.done()
    rig.start_disk()
    assert client.decoded(other)["ok"] == 1.0


def test_a_single_one_always_fits(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    room_for(0.1, monkeypatch)
    assert len(client.ok(find())["cursor"]["firstBatch"]) == 3


@pytest.mark.parametrize(
    ("filter_", "least", "most"),
    [
        ({"$or": [{"n": number} for number in range(100)]}, 200 * PART_BYTES, 300 * PART_BYTES),
        ({"$or": [{"n": number} for number in range(1_500)]}, 3_000 * PART_BYTES, 3_500 * PART_BYTES),
        ({"n": {"$in": list(range(200))}}, 200 * COMPILED, 50_000),
        (VALUES, COMPILED * SIZE, 1.2 * COMPILED * SIZE),
    ],
)
def test_an_open_cursor_counts_what_is_compiled_of_its_command(
    client: Client, member: RunningMember, filter_: dict[str, Any], least: float, most: float
) -> None:
    client.ok({"find": "c", "filter": filter_, "batchSize": 1})
    assert least <= member.admission.in_use <= most


def test_what_a_join_compiles_for_each_document_is_counted_once(client: Client, member: RunningMember) -> None:
    client.ok({"insert": "c"}, documents=[{"_id": number, "n": number} for number in range(10, 110)])
    match = {"$match": {"$expr": {"$eq": ["$n", "$$wanted"]}}}
    join = {"$lookup": {"from": "c", "let": {"wanted": "$n"}, "pipeline": [match], "as": "found"}}
    command = {"aggregate": "c", "pipeline": [join, {"$match": {"pad": {"$ne": "x" * 1_000}}}]}
    in_use = []
    for size in (1, 90):
        cursor = client.ok({**command, "cursor": {"batchSize": size}})["cursor"]["id"]
        in_use.append(member.admission.in_use)
        client.ok({"killCursors": "c", "cursors": [cursor]})
    assert in_use[1] - in_use[0] < 50 * PART_BYTES  # also documents that it has read


def test_the_parts_of_a_statement_are_known_once_it_is_compiled(client: Client, rig: Rig) -> None:
    """Eight filters of many branches were let in by their bytes, and took 600 MB once they were compiled."""
    member, work = client.member, Work()
    statement = RawDocument(encode(VALUES))

    async def read() -> None:
        WORK.set(work)
        await read_statement(member, statement, statement.decode)
        assert work.parts is None
        await compiled(member, len(statement.raw), lambda: compile_filter(VALUES))
        assert work.parts == 1
        for _ in range(3):  # as a join does for each document
            await compiled(member, 10, lambda: compile_filter({"a": 1, "b": 1}))
        assert work.parts == 2

    rig.do(read())


@pytest.mark.parametrize(("size", "parts"), [(10, 0), (SMALL_STATEMENT, None)])
def test_small_statements_of_a_batch_have_no_parts_to_speak_of(
    client: Client, rig: Rig, size: int, parts: int | None
) -> None:
    command = client.dispatcher.commands["delete"]
    ctx = client.dispatcher.context_of(client.request({"delete": "c"}), command, "delete")
    documents = [RawDocument(encode({"a": "x" * length})) for length in (size, 1)]
    assert rig.do(parse_in_slices(ctx, documents, len_of)) == [len(document.raw) for document in documents]
    assert ctx.work.parts == parts


def len_of(document: RawDocument) -> int:
    return len(document.raw)


@pytest.mark.parametrize(
    ("command", "sequences", "size"),
    [
        ({"find": "c", "filter": {"a": "x" * 900}}, {}, 900),
        ({"insert": "c", "documents": [{"a": "x" * 900}]}, {}, 0),
        ({"insert": "c"}, {"documents": [{"a": "x" * 900}]}, 0),
        ({"update": "c"}, {"updates": [{"q": {}, "u": {"a": "x" * 400}}] * 2}, 800),
    ],
)
def test_what_is_decoded_of_a_command_is_counted(
    client: Client, command: dict[str, Any], sequences: dict[str, Any], size: int
) -> None:
    assert size <= client.request(command, **sequences).statement_bytes <= size + 150


def test_they_run_in_the_order_in_which_they_came(client: Client, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small one that would fit waits behind a large one, which would never run if others passed it."""
    monkeypatch.setattr(statement_memory, "MOST_BYTES", 100 * COMPILED * 1_000)
    memory = StatementMemory()
    ends: dict[str, asyncio.Event] = {}
    running: list[str] = []
    works: dict[str, Work] = {}

    async def hold(name: str, size: int) -> None:
        ctx = client.dispatcher.context_of(client.request({"ping": 1}), client.dispatcher.commands["ping"], "ping")
        works[name], ends[name] = ctx.work, asyncio.Event()
        ctx.work.parts = None if name == "first" else 0
        async with memory.held(ctx, size):
            running.append(name)
            await ends[name].wait()
        running.remove(name)

    def now(*names: str) -> None:
        rig.turn()
        assert running == list(names)

    for name, size in (("first", 30_000), ("second", 60_000), ("third", 50_000), ("fourth", 10_000)):
        rig.begin(hold(name, size))
        now("first")  # which may become anything
    works["first"].note_parts(5)
    now("first", "second")
    ends["first"].set()
    now("second")
    ends["second"].set()
    now("third", "fourth")


def test_an_answered_error_keeps_nothing_of_what_was_under_way(client: Client) -> None:
    """A frame of an error that held the error kept a filter of 100 MB until the next full collection of garbage."""
    raised: list[BaseException] = []

    async def run(_: CommandContext) -> Reply:
        try:
            raise ValueError("the cause")
        except ValueError as cause:
            raised.append(cause)
            error = BadValueError("no")
            raised.append(error)
            raise error from cause

    commands = client.dispatcher.commands
    commands["ping"] = replace(commands["ping"], run=run)
    assert client.code({"ping": 1}) == ErrorCode.BAD_VALUE
    assert [error.__traceback__ for error in raised] == [None, None]


MARKED = {"$or": [{"marked": [number]} for number in range(50)] + [{"n": {"$gte": 0}}]}
MATCH = {"$match": MARKED}


@pytest.mark.parametrize(
    "command",
    [
        {"find": "c", "filter": MARKED},
        {"find": "c", "filter": MARKED, "sort": {"n": 1}},
        {"find": "c", "filter": MARKED, "projection": {"n": 1}, "limit": 1},
        {"find": "c", "filter": {"$or": [*MARKED["$or"], {"$bad": 1}]}},
        {"count": "c", "query": MARKED},
        {"distinct": "c", "key": "n", "query": MARKED},
        {"update": "c", "updates": [{"q": MARKED, "u": {"$set": {"a": 2}}, "multi": True}]},
        {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"a": MARKED["$or"]}}}]},
        {"delete": "c", "deletes": [{"q": MARKED, "limit": 1}]},
        {"findAndModify": "c", "query": MARKED, "update": {"$set": {"a": 3}}},
        {"aggregate": "c", "pipeline": [MATCH], "cursor": {}},
        {"aggregate": "c", "pipeline": [MATCH, {"$sort": {"a": 1}}, {"$group": {"_id": "$n"}}], "cursor": {}},
        {"aggregate": "c", "pipeline": [{"$facet": {"x": [MATCH]}}], "cursor": {}},
        {"aggregate": "c", "pipeline": [{"$lookup": {"from": "c", "pipeline": [MATCH], "as": "x"}}], "cursor": {}},
    ],
)
def test_nothing_decoded_stays_behind_a_command(client: Client, command: dict[str, Any]) -> None:
    """A find and its scan held each other. Of a filter of 11 MB 350 MB stayed until the next full collection."""
    client.run(command)  # what is made once
    request = client.request(command)
    gc.collect()
    gc.disable()
    try:
        before = marked()
        client.reply(request)
        assert marked() == before
    finally:
        gc.enable()


def marked() -> int:
    return sum(type(found) is dict and found.keys() == {"marked"} for found in gc.get_objects())
