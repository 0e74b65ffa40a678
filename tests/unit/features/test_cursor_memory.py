"""What open cursors hold is counted, bounded, and given back: at their end, with their client, by time."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from itertools import count
from typing import Any

import pytest

from replset.bson import RawDocument, encode
from replset.features.change_streams.change_stream import KEPT_BYTES
from replset.features.crud.scan import Scan
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


def test_scans_that_begin_at_once_share_each_turn(
    rig: Rig, client: Client, member: RunningMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ping waits for one command of each client before it: hundreds of first slices would take a second."""
    looks, began, fetch = count(), [0], Scan._fetch
    member.slices = Turns(lambda: next(looks) * TIME_MS)

    def counted(*arguments: Any) -> Any:
        began[0] += 1
        return fetch(*arguments)

    monkeypatch.setattr(Scan, "_fetch", counted)

    async def most_in_a_turn() -> int:
        finds = (member.dispatcher.run(client.request({"find": "c", "filter": {"n": 7}})) for _ in range(20))
        all_of_them = asyncio.gather(*finds)
        most = before = 0
        while not all_of_them.done():
            await asyncio.sleep(0)
            most, before = max(most, began[0] - before), began[0]
        return most

    assert rig.do(most_in_a_turn()) == 1
    assert began[0] == 40


def test_a_batch_of_few_bytes_reads_few_rows_and_keeps_none(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    pages = natural_order.page_of

    def counted(*arguments: Any) -> Any:
        page, more = pages(*arguments)
        rows.append(len(page))
        return page, more

    monkeypatch.setattr(natural_order, "page_of", counted)
    table, take = client.dispatcher.cursors, 10_000
    reply = client.ok({"find": "c", "batchSize": 1})["cursor"]
    (cursor,) = table._open.values()
    seen = 1
    space = table.space_for_batch
    monkeypatch.setattr(table, "space_for_batch", lambda cursor, most: space(cursor, take))
    monkeypatch.setattr(cursors, "LEAST_BATCH_BYTES", take)
    client.ok({"getMore": reply["id"], "collection": "c"})
    rows.clear()
    while seen < 100:
        found = client.ok({"getMore": reply["id"], "collection": "c"})["cursor"]["nextBatch"]
        seen += len(found)
        assert len(found) <= 10
        assert len(cursor._waiting) <= 10  # type: ignore[attr-defined]
    assert max(rows) <= 12


def test_the_first_batch_of_few_bytes_keeps_none_either(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the size of a document is known a page may bring megabytes. Hundreds of cursors would keep them."""
    table = client.dispatcher.cursors
    space = table.space_for_batch
    monkeypatch.setattr(table, "space_for_batch", lambda cursor, most: space(cursor, 10_000))
    monkeypatch.setattr(cursors, "LEAST_BATCH_BYTES", 10_000)
    opened = client.ok({"find": "c"})["cursor"]
    (cursor,) = table._open.values()
    assert len(opened["firstBatch"]) <= 10
    assert len(cursor._waiting) <= 2  # type: ignore[attr-defined]
