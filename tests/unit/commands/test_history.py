"""The committed history: what is read of it, and who is woken by a new entry."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from replset.archive.archive import Archive
from replset.archive.files import FolderFiles
from replset.archive.ports import ArchivePort
from replset.archive.segments import ArchiveInfo, Position, Segment
from replset.bson import encode, encode_key
from replset.commands.members.archive_lease import ArchiveRecord, ArchiveStart, ArchiveStatus
from replset.errors import ChangeStreamHistoryLostError
from replset.ids import OPTIME_NULL, OpTime
from replset.oplog_row import OplogRow
from replset.query.change_events import Scope
from replset.replication.write_ops import do_insert, do_noop
from replset.runtime.jobs.archiver import ArchivedEntries
from replset.storage.txn import write_meta
from tests.unit.commands.conftest import Client, FakeMember

LONG_MS = 60_000
ITEMS, OTHERS, DATABASE, DEPLOYMENT = Scope("test", "items"), Scope("test", "others"), Scope("test"), Scope()


def insert(client: Client, collection: str, *ids: int) -> None:
    client.ok({"insert": collection, "documents": [{"_id": number} for number in ids]})


def commit(member: FakeMember) -> OpTime:
    member.node.commit_point = member.store.last_applied
    return member.node.commit_point


def read(client: Client, after: OpTime = OPTIME_NULL) -> list[OplogRow]:
    return client.loop.run_until_complete(client.member.history.after(after))


def trim(member: FakeMember, through: OpTime) -> None:
    with member.store.maintenance() as txn:
        txn.connection.execute("DELETE FROM oplog WHERE ts <= ?", (through.ts,))
        write_meta(txn.connection, "trimmed_through", through.ts)
    member.store.reload()


def test_only_committed_entries_are_read(client: Client, member: FakeMember) -> None:
    insert(client, "items", 1)
    committed = commit(member)
    insert(client, "items", 2)
    rows = read(client)
    assert [row.op for row in rows] == ["c", "i"]
    assert rows[-1].optime == committed
    assert read(client, committed) == []
    commit(member)
    assert [row.op for row in read(client, committed)] == ["i"]


def test_an_older_place_than_the_oldest_entry_is_lost(client: Client, member: FakeMember) -> None:
    insert(client, "items", 1)
    first = member.store.last_applied
    insert(client, "items", 2, 3)
    commit(member)
    trim(member, first)
    assert [row.ts > first.ts for row in read(client, first)] == [True, True]
    with pytest.raises(ChangeStreamHistoryLostError) as lost:
        read(client, OpTime(first.term, first.ts - 1))
    assert str(member.history.oldest()) in lost.value.message
    assert "_data" in lost.value.details["oldestToken"]  # type: ignore[operator]


class OwnArchive:
    """The ArchivePort without a process."""

    def __init__(self, folder: Path) -> None:
        self.archive = Archive.of_set(FolderFiles(str(folder)), ArchiveInfo("rs0", "", "a1"), "")

    async def read(self, after: OpTime, limit: int, max_bytes: int) -> list[OplogRow]:
        return self.archive.rows_after(after, limit, max_bytes)

    async def oldest(self) -> Segment | None:
        return self.archive.oldest()


def test_an_archive_goes_on_behind_the_oldest_entry(client: Client, member: FakeMember, tmp_path: Path) -> None:
    """It has an entry in each segment, from the second one on. What is removed of it is named."""
    insert(client, "items", 1, 2, 3, 4, 5)
    commit(member)
    rows, port = read(client), OwnArchive(tmp_path)
    ends = [Position(row.optime, row.chain) for row in rows]
    for before, row in zip(ends, rows[1:5], strict=False):
        port.archive.add([row], before, member="", written="")
    trim(member, rows[4].optime)
    record = ArchiveRecord(through=ends[4], start=ArchiveStart(rows[1].optime, rows[0].optime))
    context: Any = member
    member.history.older = ArchivedEntries(cast(ArchivePort, port), context, ArchiveStatus(record))
    assert member.history.oldest() == rows[1].optime
    assert [read(client, row.optime) for row in rows[:5]] == [[row] for row in rows[1:6]]

    for behind, left, end_ts in ((rows[0], rows[3], rows[3].ts), (rows[2], rows[5], 1 << 62)):
        assert list(port.archive.remove_before(end_ts))
        port.archive._read = None  # the rows that it read last
        for position in behind.optime, OPTIME_NULL:
            with pytest.raises(ChangeStreamHistoryLostError, match=f"the oldest one is {re.escape(str(left.optime))}"):
                read(client, position)
        assert member.history.oldest() == left.optime
        assert read(client, OpTime(left.term, left.ts - 1)) == [left]


@pytest.fixture
def woken(client: Client, member: FakeMember) -> Callable[..., set[str]]:
    """Returns who wakes of those that wait when `change` happens."""

    async def waits(change: Callable[[], None], scopes: dict[str, Scope]) -> set[str]:
        at = member.history.committed
        tasks = {name: asyncio.create_task(member.history.wait(at, scope, LONG_MS)) for name, scope in scopes.items()}
        await asyncio.sleep(0)
        assert member.history.waiting == len(scopes)
        change()
        member.history.on_change()
        if member.history._timer is not None:  # others were woken a moment ago
            member.history._look()
        for _ in range(3):
            await asyncio.sleep(0)
        done = {name for name, task in tasks.items() if task.done()}
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        assert member.history.waiting == 0
        return done

    def run(change: Callable[[], Any]) -> set[str]:
        scopes = {"items": ITEMS, "others": OTHERS, "database": DATABASE, "deployment": DEPLOYMENT}
        return client.loop.run_until_complete(waits(change, scopes))

    return run


def test_a_commit_wakes_those_that_it_concerns(
    client: Client, member: FakeMember, woken: Callable[..., set[str]]
) -> None:
    insert(client, "items", 1)
    insert(client, "others", 1)
    commit(member)
    insert(client, "items", 2)
    assert woken(lambda: None) == set(), "nothing is committed"
    assert woken(lambda: commit(member)) == {"items", "database", "deployment"}
    insert(client, "others", 2)
    assert woken(lambda: commit(member)) == {"others", "database", "deployment"}


def test_who_waits_behind_others_is_woken_by_the_timer_which_is_set_anew(client: Client, member: FakeMember) -> None:
    """A timer that found nobody must not keep the next entry from being looked at."""
    insert(client, "items", 1)
    commit(member)
    history = member.history

    async def wait() -> asyncio.Task[OpTime]:
        task = asyncio.create_task(history.wait(history.committed, ITEMS, LONG_MS))
        await asyncio.sleep(0)
        return task

    async def write(number: int) -> None:
        coll, document = member.store.collections()[0], encode({"_id": number})
        await member.write(lambda group: do_insert(group, coll, encode_key(number), document))
        commit(member)
        history.on_change()
        await asyncio.sleep(0)

    async def run() -> None:
        first = await wait()
        await write(2)
        assert first.done()
        second = await wait()
        await write(3)
        assert not second.done(), "others were woken a moment ago"
        for _ in range(2):  # as the timer does; at the second time nobody waits
            history._look()
        await second
        third = await wait()
        await write(4)
        assert third.done()

    client.loop.run_until_complete(run())


def test_a_change_of_state_wakes_all(client: Client, member: FakeMember, woken: Callable[..., set[str]]) -> None:
    insert(client, "items", 1)
    commit(member)

    def roll_back() -> None:
        member.store.rollback_id += 1

    assert woken(roll_back) == {"items", "others", "database", "deployment"}


def test_who_waited_in_vain_learns_how_far_nothing_concerns_him(client: Client, member: FakeMember) -> None:
    insert(client, "items", 1)
    at = commit(member)

    async def wait() -> OpTime:
        waiting = asyncio.create_task(member.history.wait(at, OTHERS, 1))
        await asyncio.sleep(0)
        await client_insert()
        member.history.on_change()
        return await waiting

    async def client_insert() -> None:
        await member.write(lambda group: do_noop(group, {"msg": "nothing"}))
        commit(member)

    assert client.loop.run_until_complete(wait()) == member.history.committed


def test_the_events_of_an_entry_are_made_once(client: Client, member: FakeMember) -> None:
    insert(client, "items", 1)
    commit(member)
    row = read(client)[-1]
    first, again = (client.loop.run_until_complete(member.history.events_of(row)) for _ in range(2))
    assert first is again
