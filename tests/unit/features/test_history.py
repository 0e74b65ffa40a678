"""The committed history: what is read of it, and who is woken by a new entry."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from replset.errors import ChangeStreamHistoryLostError
from replset.features.archive.archive import Archive
from replset.features.archive.archive_lease import ArchiveRecord, ArchiveStart, ArchiveStatus
from replset.features.archive.archiver import ArchivedEntries
from replset.features.archive.files import FolderFiles
from replset.features.archive.jobs import ArchivePort
from replset.features.archive.segments import ArchiveInfo, Position, Segment
from replset.ids import OPTIME_NULL, OpTime
from replset.member.member import RunningMember
from replset.operations import history
from replset.oplog_row import OplogRow
from replset.query.change_events import EntryEvents, Watched
from replset.replication.write_ops import do_noop
from replset.storage.txn import write_meta
from tests.rig import Client, Rig
from tests.unit.features.test_event_reader import inserted, transaction

LONG_MS = 60_000
ITEMS, OTHERS, DATABASE, DEPLOYMENT = Watched("test", "items"), Watched("test", "others"), Watched("test"), Watched()


def insert(client: Client, collection: str, *ids: int, **more: Any) -> None:
    client.ok({"insert": collection, "documents": [{"_id": number} for number in ids], **more})


FAST = {"writeConcern": {"w": 1}}


def read(client: Client, after: OpTime) -> list[OplogRow]:
    return client.rig.do(client.member.history.after(after))


def trim(member: RunningMember, through: OpTime) -> None:
    with member.store.maintenance() as txn:
        txn.connection.execute("DELETE FROM oplog WHERE ts <= ?", (through.ts,))
        write_meta(txn.connection, "trimmed_through", through.ts)
    member.store.reload()


def test_only_committed_entries_are_read(client: Client, rig: Rig) -> None:
    start = rig.newest()
    insert(client, "items", 1)
    committed = rig.newest()
    rig.stop_disk()
    insert(client, "items", 2, **FAST)
    rows = read(client, start)
    assert [row.op for row in rows] == ["c", "i"]
    assert rows[-1].optime == committed
    assert read(client, committed) == []
    rig.start_disk()
    assert [row.op for row in read(client, committed)] == ["i"]


def test_an_older_place_than_the_oldest_entry_is_lost(client: Client, member: RunningMember) -> None:
    insert(client, "items", 1)
    first = member.store.last_applied
    insert(client, "items", 2, 3)
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


def test_an_archive_goes_on_behind_the_oldest_entry(client: Client, member: RunningMember, tmp_path: Path) -> None:
    """It has an entry in each segment, from the second one on. What is removed of it is named."""
    start = member.store.last_applied
    insert(client, "items", 1, 2, 3, 4, 5)
    rows, port = read(client, start), OwnArchive(tmp_path)
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
def woken(client: Client, rig: Rig) -> Callable[..., set[str]]:
    """Returns who wakes of those that wait when `change` happens."""
    scopes = {"items": ITEMS, "others": OTHERS, "database": DATABASE, "deployment": DEPLOYMENT}

    def run(change: Callable[[], Any]) -> set[str]:
        history = rig.member().history
        tasks = {name: rig.begin(history.wait(history.committed, scope, LONG_MS)) for name, scope in scopes.items()}
        rig.turn()
        assert history.waiting == len(scopes)
        change()
        rig.wait(0.2)
        done = {name for name, task in tasks.items() if task.done()}
        for task in tasks.values():
            task.cancel()
        rig.turn()
        assert history.waiting == 0
        return done

    return run


def test_a_commit_wakes_those_that_it_concerns(client: Client, rig: Rig, woken: Callable[..., set[str]]) -> None:
    insert(client, "items", 1)
    insert(client, "others", 1)
    assert woken(lambda: insert(client, "items", 2)) == {"items", "database", "deployment"}
    assert woken(lambda: insert(client, "others", 2)) == {"others", "database", "deployment"}
    rig.stop_disk()
    assert woken(lambda: insert(client, "items", 3, **FAST)) == set(), "it is not committed"
    assert woken(rig.start_disk) == {"items", "database", "deployment"}


def test_a_change_of_state_wakes_all(client: Client, member: RunningMember, woken: Callable[..., set[str]]) -> None:
    insert(client, "items", 1)

    def roll_back() -> None:
        member.store.rollback_id += 1
        member.history.on_change()

    assert woken(roll_back) == {"items", "others", "database", "deployment"}


def test_who_waits_behind_others_is_woken_by_the_timer_which_is_set_anew(client: Client, rig: Rig) -> None:
    """A timer that found nobody must not keep the next entry from being looked at."""
    history = rig.member().history
    insert(client, "items", 1)
    for number in (2, 4):
        many = [rig.begin(history.wait(history.committed, ITEMS, LONG_MS)) for _ in range(100)]
        rig.turn()
        insert(client, "items", number)
        assert all(task.done() for task in many)
        last = rig.begin(history.wait(history.committed, ITEMS, LONG_MS))
        insert(client, "items", number + 1)
        assert not last.done(), "others were woken a moment ago"
        rig.wait(1)  # the timer comes, and once more when nobody waits
        assert last.done()


def test_who_waited_in_vain_learns_how_far_nothing_concerns_him(client: Client, rig: Rig) -> None:
    insert(client, "items", 1)
    history = rig.member().history
    waiting = rig.begin(history.wait(history.committed, OTHERS, 100))
    rig.turn()
    rig.write(lambda group: do_noop(group, {"msg": "nothing"}))
    rig.wait(0.2)
    assert waiting.result() == history.committed == rig.newest()


@pytest.mark.parametrize(("entries", "expected"), [(4, {"others", "database", "deployment"}), (5, None)])
def test_with_many_new_entries_all_are_woken(
    client: Client,
    rig: Rig,
    woken: Callable[..., set[str]],
    monkeypatch: pytest.MonkeyPatch,
    entries: int,
    expected: Any,
) -> None:
    """Each reads for itself then. With fewer than the limit, those whom they concern."""
    monkeypatch.setattr(history, "LOOK_ENTRIES", 5)
    insert(client, "others", 0)
    rig.stop_disk()
    for number in range(entries):
        insert(client, "others", number + 1, **FAST)
    assert woken(rig.start_disk) == (expected or {"items", "others", "database", "deployment"})


def test_a_command_wakes_its_database_and_a_transaction_what_it_writes(
    client: Client, woken: Callable[..., set[str]]
) -> None:
    every = {"items", "others", "database", "deployment"}
    for command in ({"create": "items"}, {"create": "others"}, {"drop": "others"}):
        assert woken(partial(client.ok, command)) == every
    assert woken(lambda: client.ok({"create": "items"}, "second")) == {"deployment"}
    transaction(client, 1, inserted(1, coll="others"), inserted(2, coll="others"))
    assert woken(lambda: transaction(client, 2, inserted(3), inserted(4))) == {"items", "database", "deployment"}
    assert woken(lambda: transaction(client, 3, inserted(5, coll="others"), inserted(6))) == every


def test_a_wait_behind_which_something_is_ends_at_once(client: Client, rig: Rig) -> None:
    insert(client, "items", 1, 2)
    committed, before = rig.newest(), rig.cluster.loop.now_ms
    waits = rig.member().history
    for position in (OpTime(committed.term, committed.ts - 1), OPTIME_NULL):
        assert rig.do(waits.wait(position, ITEMS, LONG_MS)) == position
    assert rig.cluster.loop.now_ms == before
    assert rig.do(waits.wait(committed, ITEMS, 100)) == committed
    assert rig.cluster.loop.now_ms == before + 100


@pytest.mark.parametrize(("kept", "kept_bytes", "expected"), [(3, 1 << 20, 3), (100, 300, 2), (100, 1, 1)])
def test_the_events_of_an_entry_are_made_once_while_there_is_room(
    client: Client, member: RunningMember, monkeypatch: pytest.MonkeyPatch, kept: int, kept_bytes: int, expected: int
) -> None:
    """The newest of them stay; one entry does, however large. What another term wrote at that time is made anew."""
    monkeypatch.setattr(history, "KEPT_EVENTS", kept)
    monkeypatch.setattr(history, "KEPT_BYTES", kept_bytes)
    insert(client, "items", *range(9))
    rows = read(client, OPTIME_NULL)[-9:]
    assert 100 < min(len(row.entry) for row in rows) <= max(len(row.entry) for row in rows) <= 150

    def events_of(row: OplogRow) -> EntryEvents:
        return client.rig.do(member.history.events_of(row))

    for _ in range(3):
        made = [events_of(row) for row in rows]
        assert [row.optime for row in rows] == [one.optime for one in made]
        assert len(member.history._events) == expected
        assert all(events_of(row) is one for row, one in zip(rows[-expected:], made[-expected:], strict=True))
    other = rows[-1]._replace(term=rows[-1].term + 1)
    assert events_of(other) is not made[-1]
