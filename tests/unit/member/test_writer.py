"""Group commit: what arrives in one turn of the loop is one transaction, and fails alone or together as it should."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from replset.bson import decode, encode, encode_key
from replset.core.member_state import MemberState
from replset.errors import (
    InvariantError,
    NotWritablePrimaryError,
    OutOfDiskSpaceError,
    ReplError,
    ShutdownInProgressError,
    StorageError,
    SyncFailedError,
)
from replset.ids import OPTIME_NULL, HostPort, Millis, OpTime
from replset.member.disk import writer
from replset.member.disk.group_wait import MOST_MS
from replset.member.disk.writer import Writer
from replset.operations.flow_control import FlowControl
from replset.replication.held_keys import HeldKeys
from replset.replication.write_ops import WriteGroup, do_create, do_insert
from replset.storage.disk import RealDisk
from replset.storage.store import Store, StoreOptions
from tests.simulation.kit.clock import SimClock
from tests.unit.member.kit import context_of, settle

NS = "shop.orders"


class FakeNode:
    """What a writer reads of the core. A whole member has one writer, which takes no group apart for a test."""

    primary_host = "b:27017"
    state = MemberState.PRIMARY
    term = 4
    self_id = 0


class Rig:
    """A writer in front of a real store that holds one empty collection."""

    def __init__(self, folder: Path, clock: SimClock) -> None:
        self.store = Store.open(RealDisk(), str(folder), StoreOptions(min_free_bytes=0))
        self.commits = 0
        self.unanswered = 0
        self.broken: list[BaseException] = []
        self.node = FakeNode()
        self.context = context_of(self.store, clock, on_broken=self.broken.append)
        self.write_queue = self.context.write_queue
        self.lag: tuple[int, tuple[HostPort, ...]] = (0, ())
        self.flow_control = FlowControl(clock, lambda: self.lag)
        self.writer = Writer(
            self.context,
            self.node,  # type: ignore[arg-type]
            random.Random(1),
            self._committed,
            HeldKeys(),
            self.flow_control,
            lambda: self.unanswered,
        )
        with self.store.group() as txn:
            do_create(WriteGroup(txn, 1, clock.wall_ms(), random.Random(2)), NS)
        self.writer.accept(1)

    def _committed(self, _operations: int) -> None:
        self.commits += 1

    def insert(self, number: int) -> Callable[[WriteGroup], OpTime | None]:
        """An operation that inserts {_id: number}."""

        def operation(group: WriteGroup) -> OpTime | None:
            coll = group.txn.collection(NS)
            assert coll is not None
            return do_insert(group, coll, encode_key(number), encode({"_id": number}))

        return operation

    def insert_then(self, number: int, error: Exception) -> Callable[[WriteGroup], None]:
        def operation(group: WriteGroup) -> None:
            self.insert(number)(group)
            raise error

        return operation

    def submit(self, *operations: Callable[[WriteGroup], Any]) -> list[asyncio.Task[Any]]:
        return [asyncio.ensure_future(self.writer.write(operation)) for operation in operations]

    def submit_patient(self, *numbers: int) -> list[asyncio.Future[Any]]:
        """Inserts that wait for other members after their commit."""
        futures: list[asyncio.Future[Any]] = [asyncio.get_running_loop().create_future() for _ in numbers]
        for number, future in zip(numbers, futures, strict=True):
            self.writer.submit(self.insert(number), future, waits=True)
        return futures

    def numbers(self) -> list[object]:
        coll = self.store.collection(NS)
        assert coll is not None
        with self.store.read() as snapshot:
            return [decode(doc)["_id"] for _key, doc in snapshot.scan(coll)]

    def logged(self) -> list[str]:
        return [row.op for row in self.store.oplog_after(OPTIME_NULL, limit=100, max_bytes=1 << 20)]


@pytest.fixture
def rig(tmp_path: Path, clock: SimClock) -> Iterator[Rig]:
    made = Rig(tmp_path / "data", clock)
    yield made
    made.store.close()


async def test_what_arrives_in_one_turn_is_one_group(rig: Rig) -> None:
    optimes = await asyncio.gather(*rig.submit(*(rig.insert(n) for n in range(5))))
    assert rig.commits == 1
    assert sorted(optimes) == optimes
    assert optimes[-1] == rig.store.last_applied
    assert rig.numbers() == [0, 1, 2, 3, 4]


async def test_what_arrives_later_is_another_group(rig: Rig) -> None:
    await asyncio.gather(*rig.submit(rig.insert(1)))
    await asyncio.gather(*rig.submit(rig.insert(2)))
    assert rig.commits == 2


async def test_a_group_waits_for_as_many_writes_as_were_on_their_way(rig: Rig) -> None:
    await asyncio.gather(*rig.submit_patient(1, 2, 3))
    first = rig.submit_patient(4, 5)
    await settle()
    assert not any(future.done() for future in first)
    await asyncio.gather(*first, *rig.submit_patient(6))
    assert rig.commits == 2


async def test_writes_that_are_not_answered_yet_are_waited_for(rig: Rig) -> None:
    rig.unanswered = 1
    await asyncio.gather(*rig.submit_patient(1))
    first = rig.submit_patient(2)
    await settle()
    assert rig.commits == 1
    await asyncio.gather(*first, *rig.submit_patient(3))
    assert rig.commits == 2


async def test_a_wait_has_an_end(rig: Rig, clock: SimClock) -> None:
    await asyncio.gather(*rig.submit_patient(1, 2, 3))
    began = clock.now()
    await asyncio.gather(*rig.submit_patient(4, 5))
    assert clock.now() - began == MOST_MS
    await asyncio.gather(*rig.submit_patient(6))  # the wait was in vain, so this group does not
    assert clock.now() - began == MOST_MS


async def test_a_wait_that_was_long_enough_does_not_shorten_the_next(rig: Rig, clock: SimClock) -> None:
    await asyncio.gather(*rig.submit_patient(1, 2))
    first = rig.submit_patient(3)
    await asyncio.sleep((MOST_MS - 2) / 1000)
    await asyncio.gather(*first, *rig.submit_patient(4))
    second, began = rig.submit_patient(5), clock.now()
    await asyncio.gather(*second)
    assert clock.now() - began == MOST_MS


async def test_a_write_that_waits_for_nobody_begins_the_group(rig: Rig, clock: SimClock) -> None:
    await asyncio.gather(*rig.submit_patient(1, 2, 3))
    began = clock.now()
    first = rig.submit_patient(4)
    await settle()
    await asyncio.gather(*first, *rig.submit(rig.insert(5)))
    assert rig.commits == 2
    assert clock.now() == began


@pytest.mark.parametrize("end", ["step down", "close"])
async def test_a_group_that_waits_is_refused_at_once(rig: Rig, clock: SimClock, end: str) -> None:
    await asyncio.gather(*rig.submit_patient(1, 2, 3))
    began = clock.now()
    [waiting] = rig.submit_patient(4)
    await settle()
    if end == "close":
        rig.writer.close()
    else:
        rig.writer.accept(None)
    with pytest.raises((NotWritablePrimaryError, ShutdownInProgressError)):
        await waiting
    assert clock.now() == began
    assert rig.numbers() == [1, 2, 3]


async def test_what_a_group_has_no_room_for_goes_on_at_once(
    rig: Rig, clock: SimClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "GROUP_OPERATIONS", 2)
    began = clock.now()
    await asyncio.gather(*rig.submit_patient(1, 2, 3))
    assert rig.commits == 2
    assert clock.now() == began


async def test_no_answer_comes_before_the_commit(rig: Rig) -> None:
    seen: list[list[object]] = []
    task = rig.submit(rig.insert(1))[0]
    task.add_done_callback(lambda _task: seen.append(rig.numbers()))
    await task
    await settle()
    assert seen == [[1]]


@pytest.mark.parametrize("error", [ReplError("no", code=2), KeyError("a bug in one command")])
async def test_an_operation_that_fails_is_undone_and_fails_alone(rig: Rig, error: Exception) -> None:
    first, bad, last = rig.submit(rig.insert(1), rig.insert_then(2, error), rig.insert(3))
    assert await first is not None
    with pytest.raises(type(error)):
        await bad
    assert await last is not None
    assert rig.numbers() == [1, 3]
    assert rig.logged() == ["c", "i", "i"]
    assert rig.commits == 1
    assert rig.broken == []


async def test_a_group_in_which_nothing_was_written_is_not_announced(rig: Rig) -> None:
    before = rig.store.last_applied
    assert await rig.writer.write(lambda group: group.term) == 1
    with pytest.raises(ReplError):
        await rig.writer.write(rig.insert_then(1, ReplError("no")))
    assert rig.commits == 0
    assert rig.store.last_applied == before


async def test_refused_when_it_does_not_accept_writes(rig: Rig) -> None:
    rig.writer.accept(None)
    with pytest.raises(NotWritablePrimaryError):
        await rig.writer.write(rig.insert(1))
    assert rig.numbers() == []


async def test_stepping_down_refuses_what_is_in_the_queue(rig: Rig) -> None:
    task = rig.submit(rig.insert(1))[0]
    rig.write_queue.pause()
    await settle()
    rig.writer.accept(None)
    rig.write_queue.resume()
    with pytest.raises(NotWritablePrimaryError):
        await task
    assert rig.numbers() == []


async def test_entries_carry_the_term_in_which_writes_are_accepted(rig: Rig) -> None:
    rig.writer.accept(7)
    optime = await rig.writer.write(rig.insert(1))
    assert optime is not None
    assert optime.term == 7


async def test_a_paused_queue_keeps_writes_waiting(rig: Rig) -> None:
    rig.write_queue.pause()
    tasks = rig.submit(rig.insert(1), rig.insert(2))
    await asyncio.sleep(1)
    assert not any(task.done() for task in tasks)
    assert rig.numbers() == []
    rig.write_queue.resume()
    await asyncio.gather(*tasks)
    assert rig.commits == 1


async def test_a_pause_comes_before_a_group_that_is_scheduled(rig: Rig) -> None:
    task = rig.submit(rig.insert(1))[0]  # the group runs in the next turn
    rig.write_queue.pause()
    await settle()
    assert not task.done()
    rig.write_queue.resume()
    await task


async def test_the_write_of_a_client_that_went_away_is_not_done(rig: Rig) -> None:
    rig.write_queue.pause()
    gone, stays = rig.submit(rig.insert(1), rig.insert(2))
    await settle()
    gone.cancel()
    await settle()
    rig.write_queue.resume()
    await stays
    assert rig.numbers() == [2]


class FailingCommit:
    """A connection whose COMMIT ends with an error."""

    def __init__(self, real: apsw.Connection, error: apsw.Error) -> None:
        self._real, self._error = real, error

    def execute(self, sql: str, *values: Any) -> object:
        if sql == "COMMIT":
            raise self._error
        return self._real.execute(sql, *values)

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)


async def test_a_commit_that_fails_fails_the_group_and_the_next_one_goes_on(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, before = rig.store._connection, rig.store.last_applied
    monkeypatch.setattr(rig.store, "_connection", FailingCommit(real, apsw.IOError("disk I/O error")))
    results = await asyncio.gather(*rig.submit(rig.insert(1), rig.insert(2)), return_exceptions=True)
    assert [type(result) for result in results] == [StorageError, StorageError]
    assert rig.commits == 0
    assert rig.store.last_applied == before
    monkeypatch.setattr(rig.store, "_connection", real)
    assert await rig.writer.write(rig.insert(3)) is not None
    assert rig.numbers() == [3]
    assert rig.logged() == ["c", "i"]


@pytest.mark.parametrize("code", [apsw.SQLITE_IOERR_FSYNC, apsw.SQLITE_IOERR_DIR_FSYNC])
async def test_a_commit_whose_sync_fails_ends_the_member(rig: Rig, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """SQLite syncs the header of a WAL that starts anew inside COMMIT. After EIO nobody knows what the disk holds."""
    error = apsw.IOError("disk I/O error")
    error.extendedresult = code
    monkeypatch.setattr(rig.store, "_connection", FailingCommit(rig.store._connection, error))
    results = await asyncio.gather(*rig.submit(rig.insert(1), rig.insert(2)), return_exceptions=True)
    assert [type(result) for result in results] == [SyncFailedError, SyncFailedError]
    assert rig.commits == 0
    assert [type(broken) for broken in rig.broken] == [SyncFailedError]


@pytest.mark.parametrize("error", [apsw.IOError("disk I/O error"), apsw.FullError("full"), MemoryError(), OSError(5)])
async def test_a_storage_error_in_an_operation_fails_the_whole_group(rig: Rig, error: Exception) -> None:
    """SQLite may have rolled the transaction back by itself: what comes after would be committed piece by piece."""

    def operation(group: WriteGroup) -> None:
        rig.insert(2)(group)
        group.txn.connection.execute("ROLLBACK")
        raise error

    results = await asyncio.gather(*rig.submit(rig.insert(1), operation, rig.insert(3)), return_exceptions=True)
    assert all(isinstance(result, ReplError | MemoryError) for result in results)
    assert rig.numbers() == []
    assert rig.logged() == ["c"]
    assert await rig.writer.write(rig.insert(4)) is not None
    assert rig.numbers() == [4]


async def test_a_full_disk_refuses_the_group(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.store, "has_disk_space", lambda: False)
    with pytest.raises(OutOfDiskSpaceError):
        await rig.writer.write(rig.insert(1))
    assert rig.broken == []


async def test_a_broken_invariant_inside_an_operation_stops_the_member(rig: Rig) -> None:
    results = await asyncio.gather(
        *rig.submit(rig.insert(1), rig.insert_then(2, InvariantError("impossible"))), return_exceptions=True
    )
    assert [type(result) for result in results] == [InvariantError, InvariantError]
    assert [str(error) for error in rig.broken] == ["impossible"]
    assert rig.numbers() == []


async def test_closing_refuses_what_waits_and_what_comes(rig: Rig) -> None:
    rig.write_queue.pause()
    waiting = rig.submit(rig.insert(1))[0]
    await settle()
    rig.writer.close()
    with pytest.raises(ShutdownInProgressError):
        await waiting
    with pytest.raises(ShutdownInProgressError):
        await rig.writer.write(rig.insert(2))
    assert rig.numbers() == []


async def test_a_noop_of_the_core_is_written_at_once(rig: Rig) -> None:
    rig.writer.accept(None)  # the first entry of a term is written before clients may write
    rig.writer.append_noop(4, "new primary")
    assert rig.commits == 1
    assert rig.store.last_applied.term == 4
    row = rig.store.newest_row()
    assert row is not None
    assert decode(row.entry)["o"] == {"msg": "new primary", "member": 0, "host": "a:27017"}


@pytest.mark.parametrize(("limit", "most", "commits"), [("GROUP_BYTES", 300, 7), ("GROUP_OPERATIONS", 7, 3)])
async def test_a_group_takes_no_more_once_it_is_large(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, limit: str, most: int, commits: int
) -> None:
    monkeypatch.setattr(writer, limit, most)
    tasks = rig.submit(*(rig.insert(number) for number in range(20)))
    await settle()
    optimes = [task.result() for task in tasks]
    assert optimes == sorted(optimes)
    assert rig.numbers() == list(range(20))
    assert rig.commits == commits


async def test_a_group_takes_no_more_once_it_takes_long(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, late = rig.context.clock, 0
    now = clock.now
    monkeypatch.setattr(clock, "now", lambda: Millis(now() + late))  # it goes on while the loop works

    def slow(number: int) -> Callable[[WriteGroup], OpTime | None]:
        def operation(group: WriteGroup) -> OpTime | None:
            nonlocal late
            late += writer.GROUP_MS // 2
            return rig.insert(number)(group)

        return operation

    rig.submit(*(slow(number) for number in range(6)))
    await settle()
    assert rig.numbers() == list(range(6))
    assert rig.commits == 3


async def test_a_lagging_majority_holds_writers_back_and_a_stepdown_ends_their_wait(rig: Rig) -> None:
    rig.lag = (60_000, (HostPort("b:27017"),))
    rig.flow_control.adjust(10_000)
    rig.flow_control.on_written(1 << 20)
    held = rig.submit(rig.insert(1))[0]
    await asyncio.sleep(1)
    assert not held.done()
    await asyncio.sleep(2)
    assert held.done()
    assert rig.flow_control.held_ms >= 1_000
    rig.flow_control.on_written(1 << 20)
    lost = rig.submit(rig.insert(2))[0]
    await settle()
    rig.writer.accept(None)
    await asyncio.sleep(0.2)
    with pytest.raises(NotWritablePrimaryError):
        lost.result()
    assert rig.numbers() == [1]


async def test_a_group_under_a_limit_is_small(rig: Rig) -> None:
    rig.lag = (60_000, (HostPort("b:27017"),))
    rig.flow_control.adjust(10_000)
    tasks = rig.submit(*(rig.insert(number) for number in range(200)))
    await asyncio.gather(*tasks)
    assert rig.commits > 3
