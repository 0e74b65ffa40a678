"""What open cursors hold is counted, bounded, and given back: at their end, with their client, by time."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from contextlib import ExitStack
from itertools import count
from typing import Any

import pytest

from replset.bson import Int64, RawDocument, encode
from replset.features.aggregation import pipeline_run
from replset.features.change_streams.change_stream import KEPT_BYTES
from replset.features.crud import oplog_cursor, scan, tailing
from replset.features.crud.scan import SLICE_BYTES, Scan
from replset.ids import Millis
from replset.member.member import RunningMember
from replset.operations import cursors
from replset.operations.admission import MAX_BYTES_IN_USE
from replset.operations.cursors import IDLE_MS, LEAST_BATCH_BYTES, MAX_BATCH_BYTES, RECENTLY_USED_MS, DocumentsCursor
from replset.operations.request import ConnectionContext
from replset.operations.turns import TIME_MS, Turns
from replset.storage import natural_order
from tests.rig import Client, Rig

SORTED = {"find": "c", "sort": {"n": 1}, "batchSize": 2}
EACH = 300 * 1_000


@pytest.fixture(autouse=True)
def _large_documents(client: Client) -> None:
    client.ok({"insert": "c"}, documents=[{"_id": i, "n": -i, "x": "x" * 1000} for i in range(300)])


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> int:
    """Room for two of these cursors."""
    monkeypatch.setattr(cursors, "MAX_MEMORY_BYTES", 3 * EACH)
    return 3 * EACH


def open_sorted(client: Client) -> int:
    return int(client.ok(SORTED)["cursor"]["id"])


def later(member: RunningMember, ms: int) -> None:
    """Only the clock goes on: no sweep ends a cursor."""
    now = member.clock.now
    member.clock.now = lambda: Millis(now() + ms)  # type: ignore[method-assign]


def test_a_sorted_cursor_counts_until_it_is_read_to_its_end(client: Client, member: RunningMember) -> None:
    cursor = open_sorted(client)
    begun = member.admission.in_use
    assert begun >= EACH * 0.9
    client.ok({"getMore": cursor, "collection": "c", "batchSize": 150})
    assert member.admission.in_use < begun * 0.6
    client.ok({"getMore": cursor, "collection": "c"})
    assert member.admission.in_use == 0
    client.ok({"find": "c", "sort": {"n": 1}, "batchSize": 2, "singleBatch": True})
    assert member.admission.in_use == 0


def test_a_sorted_cursor_counts_until_it_is_killed(client: Client, member: RunningMember) -> None:
    cursor = open_sorted(client)
    client.ok({"killCursors": "c", "cursors": [cursor]})
    assert member.admission.in_use == 0
    open_sorted(client)
    client.dispatcher.cursors.close_all()
    assert member.admission.in_use == 0


def test_cursors_that_are_not_read_from_make_room(client: Client, member: RunningMember, bound: int) -> None:
    first, second = open_sorted(client), open_sorted(client)
    later(member, RECENTLY_USED_MS // 2)
    client.ok({"getMore": first, "collection": "c", "batchSize": 1})
    later(member, RECENTLY_USED_MS // 2)
    for _ in range(5):
        third = open_sorted(client)
        assert member.admission.in_use <= bound
        later(member, RECENTLY_USED_MS)
    assert client.code({"getMore": second, "collection": "c"}) == 43
    assert client.ok({"getMore": third, "collection": "c"})["cursor"]["id"] == 0


def test_where_all_are_read_from_one_more_is_refused(client: Client, member: RunningMember, bound: int) -> None:
    opened = [open_sorted(client), open_sorted(client)]
    reply = client.run(SORTED)
    assert (reply["code"], "SystemOverloadedError" in reply["errorLabels"]) == (462, True)
    assert member.admission.in_use <= bound
    for cursor in opened:
        client.ok({"getMore": cursor, "collection": "c"})
    assert member.admission.in_use == 0, "what was refused holds nothing"
    assert open_sorted(client)


def test_one_alone_always_fits(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursors, "MAX_MEMORY_BYTES", 1000)
    assert open_sorted(client)


def test_cursors_end_with_their_client_and_with_time(client: Client, member: RunningMember) -> None:
    table = client.dispatcher.cursors
    driver = RawDocument(encode({"driver": {"name": "x"}}))
    client.connection = ConnectionContext(1, "10.0.0.1:5000", metadata=driver)
    mine = open_sorted(client)
    assert ConnectionContext(2, "10.0.0.1:5001", metadata=driver).owner == client.connection.owner
    client.connection = ConnectionContext(3, "10.0.0.2:5000", metadata=driver)
    others = open_sorted(client)
    table.client_left(client.connection.owner or ("", b""))
    assert client.code({"getMore": others, "collection": "c"}) == 43
    later(member, IDLE_MS + 1)
    table.sweep()
    assert (len(table), member.admission.in_use) == (0, 0)
    assert client.code({"getMore": mine, "collection": "c"}) == 43
    client.connection = ConnectionContext(0, "10.0.0.1:1")  # HTTP's: it has no connection that stays
    assert client.connection.owner is None
    assert open_sorted(client)


def test_open_cursors_are_bounded_in_number(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursors, "MAX_OPEN", 5)
    opened = [int(client.ok({"find": "c", "batchSize": 1})["cursor"]["id"]) for _ in range(6)]
    later(client.member, 1)
    assert len(client.dispatcher.cursors) == 5
    codes = [client.run({"getMore": cursor, "collection": "c", "batchSize": 1}).get("code", 0) for cursor in opened]
    assert sorted(codes) == [0, 0, 0, 0, 0, 43]


def test_what_a_change_stream_keeps_is_little_and_counts(client: Client, member: RunningMember) -> None:
    stream: dict[str, Any] = {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {"batchSize": 0}}
    more = {"getMore": client.ok(stream)["cursor"]["id"], "collection": "c", "batchSize": 1}

    def ids(number: int) -> list[int]:
        return [client.ok(more)["cursor"]["nextBatch"][0]["documentKey"]["_id"] for _ in range(number)]

    client.ok({"insert": "c"}, documents=[{"_id": i, "x": "x" * 1000} for i in range(1000, 1020)])
    assert ids(2) == [1000, 1001]
    assert 15_000 < member.admission.in_use < 40_000
    assert ids(18) == list(range(1002, 1020))
    assert member.admission.in_use < 2_000, "the last entry"
    large = 400_000
    client.ok({"insert": "c"}, documents=[{"_id": i, "x": "x" * large} for i in range(2000, 2006)])
    for number in range(2000, 2006):
        assert ids(1) == [number]
        assert member.admission.in_use <= KEPT_BYTES
    client.dispatcher.cursors.close_all()
    assert member.admission.in_use == 0


def test_batches_are_short_while_little_memory_is_left_and_nothing_is_left_out(
    client: Client, member: RunningMember
) -> None:
    member.admission.add(MAX_BYTES_IN_USE)
    find = {"find": "c", "batchSize": 300}
    reply = client.ok(find)["cursor"]
    found = reply["firstBatch"]
    assert sum(len(encode(row)) for row in found) <= LEAST_BATCH_BYTES
    while reply["id"]:
        reply = client.ok({"getMore": reply["id"], "collection": "c"})["cursor"]
        assert 0 < sum(len(encode(row)) for row in reply["nextBatch"]) <= LEAST_BATCH_BYTES
        found += reply["nextBatch"]
    assert [row["_id"] for row in found] == list(range(300))
    assert len(client.ok({**find, "singleBatch": True})["cursor"]["firstBatch"]) == 300, "no other one follows"


def test_batches_that_are_read_at_once_have_the_memory_that_is_left_together(
    client: Client, member: RunningMember
) -> None:
    table = client.dispatcher.cursors
    with ExitStack() as reading:
        sizes = []
        for _ in range(200):
            cursor = DocumentsCursor("test.c", [])
            reading.enter_context(table.space_for_batch(cursor, MAX_BATCH_BYTES))
            sizes.append(cursor.batch_bytes)
    assert sizes[0] == MAX_BATCH_BYTES
    assert sum(size for size in sizes if size > LEAST_BATCH_BYTES) <= member.admission.left
    with table.space_for_batch(cursor, MAX_BATCH_BYTES):
        assert cursor.batch_bytes == MAX_BATCH_BYTES, "the others have ended"


def test_slices_of_a_read_wait_for_their_part_of_the_turn(client: Client, member: RunningMember) -> None:
    waited: list[int] = []

    class Noted(Turns):
        async def wait(self, size: int) -> None:
            waited.append(size)
            await super().wait(size)

    member.slices = Noted(lambda: 0)
    reads: list[dict[str, Any]] = [
        {"find": "c", "filter": {"n": 7}},
        {"aggregate": "c", "pipeline": [{"$match": {"n": 7}}], "cursor": {}},
        {"count": "c", "query": {"n": 7}},
        {"distinct": "c", "key": "n", "query": {"n": 7}},
    ]
    for number, read in enumerate(reads, 1):
        client.ok(read)
        assert len(waited) >= number, "of 300 documents no more than 256 are one slice"


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many documents each slice of a scan has read."""
    found: list[int] = []
    fetch = Scan._fetch

    def counted(*arguments: Any) -> Any:
        documents, is_last = fetch(*arguments)
        found.append(len(documents))
        return documents, is_last

    monkeypatch.setattr(Scan, "_fetch", counted)
    return found


@pytest.mark.parametrize(
    "command",
    [
        {"find": "c", "filter": {"n": 7}},
        {"getMore": 0, "collection": "c"},
        {"getMore": 0, "collection": "c", "batchSize": 102},
    ],
)
def test_what_begins_to_read_much_at_once_shares_each_turn(
    rig: Rig, client: Client, member: RunningMember, fetched: list[int], command: dict[str, Any]
) -> None:
    """A ping waits for one command of each client before it: hundreds of first slices would take a second."""
    looks, commands = count(), [command] * 20
    if "getMore" in command:
        opened = [client.ok({"find": "c", "batchSize": 2})["cursor"]["id"] for _ in commands]
        commands = [command | {"getMore": Int64(cursor)} for cursor in opened]
        fetched.clear()
    member.slices = Turns(lambda: next(looks) * TIME_MS)

    async def most_in_a_turn() -> int:
        all_of_them = asyncio.gather(*(member.dispatcher.run(client.request(each)) for each in commands))
        most = before = 0
        while not all_of_them.done():
            await asyncio.sleep(0)
            most, before = max(most, len(fetched) - before), len(fetched)
        return most

    assert rig.do(most_in_a_turn()) == 1
    assert len(fetched) >= 20


@pytest.mark.parametrize(
    "command",
    [
        {"find": "c"},
        {"find": "c", "filter": {"_id": {"$gte": 0}}, "batchSize": 101},
        {"count": "c", "query": {"n": {"$lte": 0}, "x": 7}, "hint": "n_1"},
    ],
)
def test_what_may_be_little_begins_without_a_wait_and_with_a_small_slice(
    client: Client, member: RunningMember, fetched: list[int], command: dict[str, Any]
) -> None:
    class Full(Turns):
        async def take(self, size: int = 0) -> None:
            raise AssertionError("it waits for what others read")

    client.ok({"createIndexes": "c"}, indexes=[{"key": {"n": 1}, "name": "n_1"}])
    client.ok({"insert": "c"}, documents=[{"_id": -i, "n": -i, "x": "x" * 10_000} for i in range(1, 102)])
    member.slices = Full(lambda: 0)
    client.ok(command)
    assert fetched[0] <= 101
    fetched.clear()
    client.ok({"find": "c", "filter": {"_id": {"$lt": 0}}})
    assert len(fetched) == 2
    assert fetched[0] < 30, "256 KB of documents of 10 KB"
    cursor = client.ok({"find": "c", "batchSize": 2})["cursor"]["id"]
    for size in (1, 101):
        client.ok({"getMore": Int64(cursor), "collection": "c", "batchSize": size})


def test_a_slice_has_few_megabytes(client: Client, fetched: list[int]) -> None:
    client.ok({"insert": "large"}, documents=[{"_id": i, "x": "x" * 100_000} for i in range(50)])
    cursor = client.ok({"find": "large", "batchSize": 1})["cursor"]["id"]
    fetched.clear()
    assert len(client.ok({"getMore": Int64(cursor), "collection": "large"})["cursor"]["nextBatch"]) == 49
    assert fetched[0] <= SLICE_BYTES // 100_000 + 1


def test_the_time_of_a_cursor_goes_on_while_it_waits_to_read(client: Client, member: RunningMember) -> None:
    class Slow(Turns):
        async def take(self, size: int = 0) -> None:
            later(member, 60)

    member.slices = Slow(lambda: 0)
    cursor = client.ok({"find": "c", "batchSize": 2, "maxTimeMS": 50})["cursor"]["id"]
    assert client.code({"getMore": Int64(cursor), "collection": "c"}) == 50


def test_who_waits_for_events_does_not_wait_for_what_others_read(client: Client, member: RunningMember) -> None:
    class Full(Turns):
        async def take(self, size: int = 0) -> None:
            raise AssertionError("it waits for what others read")

    stream = client.ok({"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}})["cursor"]["id"]
    client.ok({"insert": "c"}, documents=[{"_id": 1_000}])
    member.slices = Full(lambda: 0)
    events = client.ok({"getMore": Int64(stream), "collection": "c"})["cursor"]["nextBatch"]
    assert [event["documentKey"] for event in events] == [{"_id": 1_000}]


@pytest.fixture
def rows_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each page of a scan in natural order has read."""
    rows: list[int] = []
    pages = natural_order.page_of

    def counted(*arguments: Any) -> Any:
        page, more = pages(*arguments)
        rows.append(len(page))
        return page, more

    monkeypatch.setattr(natural_order, "page_of", counted)
    return rows


def test_the_first_slice_reads_no_more_of_large_documents_than_it_keeps(
    client: Client, fetched: list[int], rows_read: list[int]
) -> None:
    client.ok({"insert": "large"}, documents=[{"_id": i, "x": "x" * 100_000} for i in range(20)])
    client.ok({"find": "large", "batchSize": 1_000})
    assert fetched[0] == rows_read[0] == 3


@pytest.fixture
def short(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch has at most 10,000 bytes."""
    table = client.dispatcher.cursors
    space = table.space_for_batch
    monkeypatch.setattr(table, "space_for_batch", lambda cursor, most: space(cursor, 10_000))
    monkeypatch.setattr(cursors, "LEAST_BATCH_BYTES", 10_000)


@pytest.mark.usefixtures("short")
def test_a_batch_of_few_bytes_reads_few_rows(client: Client, rows_read: list[int]) -> None:
    reply = client.ok({"find": "c", "batchSize": 1})["cursor"]
    client.ok({"getMore": reply["id"], "collection": "c"})
    rows_read.clear()
    seen = [row["_id"] for row in reply["firstBatch"]]
    for _ in range(10):
        found = client.ok({"getMore": reply["id"], "collection": "c"})["cursor"]["nextBatch"]
        seen += [row["_id"] for row in found]
        assert len(found) <= 9
    assert max(rows_read) <= 12
    assert len(seen) == len(set(seen))


LARGE = 50_000
CHANGING = [{"$limit": 5}, {"$set": {"r": {"$rand": {}}}}, {"$unset": "r"}]
DRAWN = {"from": "capped", "pipeline": CHANGING, "as": "found"}
OF_THE_OTHER = {"from": "large", "localField": "n", "foreignField": "n", "as": "found"}
DOUBLED = {
    "$reduce": {"input": {"$range": [0, 12]}, "initialValue": "x" * 12, "in": {"$concat": ["$$value", "$$value"]}}
}
MADE = {"$map": {"input": {"$range": [0, 40]}, "in": {"x": DOUBLED}}}


@pytest.fixture
def large(client: Client) -> None:
    """40 documents of 50 kB in a collection, and in a capped one."""
    client.ok({"create": "capped", "capped": True, "size": 10_000_000})
    for name in ("large", "capped"):
        client.ok({"insert": name}, documents=[{"_id": i, "n": i % 2, "x": "x" * LARGE} for i in range(40)])


def of_pipeline(*stages: dict[str, Any], source: object = "large", batch: int = 1) -> dict[str, Any]:
    return {"aggregate": source, "pipeline": list(stages), "cursor": {"batchSize": batch}}


PAGES = (
    *((oplog_cursor, "PAGE_ENTRIES"), (oplog_cursor, "PAGE_BACK"), (oplog_cursor, "PAGE_HEADS")),
    *((tailing, "PAGE_DOCUMENTS"), (scan, "SLICE_RAW"), (scan, "SLICE_DECODED"), (scan, "FIRST_BATCH")),
)
OPEN: dict[str, dict[str, Any]] = {
    "find": {"find": "large", "batchSize": 1},
    "filter": {"find": "large", "batchSize": 1, "filter": {"n": 0}},
    "by bytes": {"find": "large", "batchSize": 30},
    "filter, by bytes": {"find": "large", "batchSize": 30, "filter": {"n": 0}, "projection": {"n": 0}},
    "sort": {"find": "large", "batchSize": 1, "sort": {"n": 1}},
    "oplog": {"find": "oplog.rs", "batchSize": 1},
    "oplog, backwards": {"find": "oplog.rs", "batchSize": 1, "sort": {"$natural": -1}},
    "oplog by a filter": {"find": "oplog.rs", "batchSize": 1, "filter": {"ns": "test.large"}},
    "capped": {"find": "capped", "batchSize": 1, "tailable": True},
    "project": of_pipeline({"$project": {"y": "$x"}}),
    "unwind": of_pipeline({"$group": {"_id": "$n", "all": {"$push": "$x"}}}, {"$unwind": "$all"}),
    "lookup": of_pipeline({"$lookup": OF_THE_OTHER}),
    "lookup, by bytes": of_pipeline({"$lookup": OF_THE_OTHER}, batch=30),
    "unwound lookup": of_pipeline({"$lookup": OF_THE_OTHER}, {"$unwind": "$found"}),
    "unwound lookup of what changes": of_pipeline({"$lookup": DRAWN}, {"$unwind": "$found"}),
    "documents before a lookup": of_pipeline({"$documents": MADE}, {"$lookup": OF_THE_OTHER}, source=1, batch=0),
    "grown": of_pipeline({"$set": {"y": "$x"}}),
    "union": of_pipeline({"$match": {"n": 7}}, {"$unionWith": "capped"}),
    "documents": of_pipeline({"$documents": MADE}, source=1, batch=0),
    "documents behind stages": of_pipeline({"$documents": MADE}, {"$set": {"a": 1}}, source=1, batch=0),
    "facet": of_pipeline({"$facet": {"all": [{"$limit": 4}, {"$lookup": OF_THE_OTHER | {"from": "none"}}]}}, batch=0),
}


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("kind", OPEN)
def test_what_an_open_cursor_keeps_is_counted(
    client: Client, member: RunningMember, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """10,000 cursors can be open: what each keeps without being counted has no bound."""
    command, database = OPEN[kind], "local" if "oplog" in kind else "test"
    table = client.dispatcher.cursors
    space = table.space_for_batch
    monkeypatch.setattr(table, "space_for_batch", lambda cursor, most: space(cursor, 3 * LARGE))
    monkeypatch.setattr(cursors, "LEAST_BATCH_BYTES", 3 * LARGE)

    monkeypatch.setattr(pipeline_run, "SLICE_BYTES", 4 * LARGE)
    tracemalloc.start()
    try:
        for _ in range(8):
            cursor = client.ok(command, database)["cursor"]
            if cursor["firstBatch"]:
                size = {} if "by bytes" in kind else {"batchSize": 1}
                client.ok({"getMore": cursor["id"], "collection": cursor["ns"].partition(".")[2], **size}, database)
        assert len(table) == 8
        gc.collect()
        counted, before = member.admission.in_use, tracemalloc.get_traced_memory()[0]
        table.close_all()
        gc.collect()
        freed = before - tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    least = 2 * LARGE if kind == "grown" else 10_000  # the document under way, decoded
    assert freed - counted < 8 * least
    assert member.admission.in_use == 0


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("kind", OPEN)
@pytest.mark.parametrize(("most_bytes", "page"), [(LARGE // 2, 500), (3 * LARGE, 500), (3 * LARGE, 1)])
def test_batches_cut_by_bytes_give_each_document_once(
    client: Client, monkeypatch: pytest.MonkeyPatch, kind: str, most_bytes: int, page: int
) -> None:
    """page: documents that are read at once, so that the first of a page may be the one that does not fit."""
    command, database = OPEN[kind], "local" if "oplog" in kind else "test"
    if "find" in command and kind != "capped":
        command = command | {"skip": 3, "limit": 30}

    def documents() -> list[dict[str, Any]]:
        cursor = client.ok(command, database)["cursor"]
        found: list[dict[str, Any]] = cursor["firstBatch"]
        while cursor["id"]:
            more = {"getMore": cursor["id"], "collection": cursor["ns"].partition(".")[2]}
            cursor = client.ok(more, database)["cursor"]
            found += cursor["nextBatch"]
            if kind == "capped" and not cursor["nextBatch"]:
                break
        return found

    whole = documents()
    for module, name in PAGES:
        monkeypatch.setattr(module, name, min(page, getattr(module, name)))
    table = client.dispatcher.cursors
    space = table.space_for_batch
    monkeypatch.setattr(table, "space_for_batch", lambda cursor, most: space(cursor, most_bytes))
    monkeypatch.setattr(cursors, "LEAST_BATCH_BYTES", most_bytes)
    assert documents() == whole
    assert len(whole) >= (1 if kind == "facet" else 17)


NUMBERS = list(range(3_000))
MATCHED: dict[str, dict[str, Any]] = {
    "find": {"find": "c", "filter": {"_id": {"$in": NUMBERS}}, "batchSize": 1},
    "sort": {"find": "c", "filter": {"_id": {"$in": NUMBERS}}, "batchSize": 1, "sort": {"n": 1}},
    "oplog": {"find": "oplog.rs", "filter": {"o._id": {"$in": NUMBERS}}, "batchSize": 1},
    "stages": of_pipeline({"$match": {"_id": {"$in": NUMBERS}}}, {"$set": {"a": 1}}, source="c"),
    "change stream": of_pipeline({"$changeStream": {}}, {"$match": {"documentKey._id": {"$in": NUMBERS}}}, source="c"),
}


@pytest.mark.parametrize("kind", MATCHED)
def test_a_large_command_counts_while_its_cursor_is_open(client: Client, member: RunningMember, kind: str) -> None:
    """Compiled, a list of numbers takes 7 to 18 times its bytes."""
    command, database = MATCHED[kind], "local" if kind == "oplog" else "test"
    cursor = client.ok(command, database)["cursor"]
    least = 10 * len(encode(command))
    assert least <= member.admission.in_use < least + EACH * 2
    more = {"getMore": cursor["id"], "collection": cursor["ns"].partition(".")[2], "batchSize": 1}
    client.ok(more, database)
    assert member.admission.in_use >= least
    client.dispatcher.cursors.close_all()
    assert member.admission.in_use == 0


def test_large_commands_have_one_bound_with_what_is_sorted(
    client: Client, member: RunningMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = MATCHED["find"]
    monkeypatch.setattr(cursors, "MAX_MEMORY_BYTES", 25 * len(encode(command)))
    opened = [client.ok(command)["cursor"]["id"] for _ in range(2)]
    assert client.code(command) == 462
    assert client.ok({"find": "c", "batchSize": 1})["cursor"]["id"], "what is small always fits"
    later(member, RECENTLY_USED_MS)
    assert client.ok(command)["cursor"]["id"]
    assert client.code({"getMore": opened[0], "collection": "c"}) == 43
