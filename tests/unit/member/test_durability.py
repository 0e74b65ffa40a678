"""last_durable never runs ahead of the disk, never promises what a rollback took away, and a slow disk is noticed."""

from __future__ import annotations

import asyncio

import pytest

from replset.core.messages import Position
from replset.errors import StorageError
from replset.ids import Millis, OpTime
from replset.member.disk.durability import Durability, Sync
from tests.simulation.kit.clock import SimClock
from tests.unit.member.kit import HandWorkers, context_of, settle


def at(ts: int) -> OpTime:
    return OpTime(1, ts)


class FakeStore:
    """A store whose newest entry the test sets; `synced` notes what was applied when each sync ran."""

    def __init__(self) -> None:
        self.last_applied = at(3)
        self.last_wall_ms = 300
        self.synced: list[OpTime] = []
        self.sync_error: Exception | None = None
        self.wal = self

    def commit(self, ts: int) -> None:
        self.last_applied, self.last_wall_ms = at(ts), ts * 100

    def sync(self) -> None:
        if self.sync_error is not None:
            raise self.sync_error
        self.synced.append(self.last_applied)


class FrozenClock:
    """The virtual clock, and behind it the time for which a test says that the loop was held."""

    def __init__(self, clock: SimClock) -> None:
        self._clock = clock
        self.held_ms = 0

    def now(self) -> Millis:
        return Millis(self._clock.now() + self.held_ms)

    def wall_ms(self) -> int:
        return self._clock.wall_ms()

    def set_wall_ahead(self, ahead_ms: int) -> None:
        self._clock.set_wall_ahead(ahead_ms)


class Rig:
    def __init__(self, clock: SimClock) -> None:
        self.clock = FrozenClock(clock)
        self.store = FakeStore()
        self.workers = HandWorkers()
        self.moves: list[OpTime] = []
        self.stalls: list[bool] = []
        self.took_s: list[float] = []
        self.broken: list[BaseException] = []
        self.context = context_of(self.store, self.clock, on_broken=self.broken.append)
        self.durability = Durability(
            self.context,
            self.workers,
            on_moved=lambda: self.moves.append(self.durability.last_durable),
            on_synced=self.took_s.append,
            on_stalled=self.stalls.append,
            stall_after_ms=lambda: Millis(5000),
        )

    def commit(self, ts: int) -> None:
        self.store.commit(ts)
        self.durability.on_committed()

    async def begin(self) -> Sync:
        """The thread takes the sync that waits, and its disk does not answer."""
        await settle()
        (sync, _) = self.workers.jobs[0]
        assert isinstance(sync, Sync)
        sync.begun = True
        return sync


@pytest.fixture
def rig(clock: SimClock) -> Rig:
    made = Rig(clock)
    made.durability.on_store_opened()
    return made


async def test_nothing_counts_as_durable_before_the_store_reports_it(rig: Rig) -> None:
    assert rig.durability.position() == Position(at(3), at(3), 300, 300)


async def test_last_durable_moves_when_the_sync_is_done_not_when_it_begins(rig: Rig) -> None:
    rig.commit(5)
    await settle()
    assert rig.durability.position() == Position(at(5), at(3), 500, 300)
    assert rig.moves == []
    await rig.workers.finish()
    assert rig.durability.position() == Position(at(5), at(5), 500, 500)
    assert rig.moves == [at(5)]


async def test_what_is_committed_during_a_sync_is_not_covered_by_it(rig: Rig) -> None:
    """The thread may sync it or not; only what was read on the loop before the submission counts."""
    rig.durability.on_store_opened()
    rig.commit(5)
    await settle()
    rig.commit(9)
    await rig.workers.finish()
    assert rig.moves == [at(5)]
    assert rig.durability.position() == Position(at(9), at(5), 900, 500)
    await rig.workers.finish()  # the next sync follows by itself
    assert rig.moves == [at(5), at(9)]
    assert rig.workers.jobs == []


async def test_one_sync_at_a_time_covers_all_that_came_meanwhile(rig: Rig) -> None:
    for ts in range(4, 50):
        rig.commit(ts)
        await settle()
        assert len(rig.workers.jobs) == 1
    await rig.workers.finish()
    await rig.workers.finish()
    assert rig.moves == [at(4), at(49)]


async def test_nothing_new_is_not_synced(rig: Rig) -> None:
    rig.durability.on_committed()
    await settle()
    assert rig.workers.jobs == []
    assert rig.moves == []


async def test_a_rollback_takes_last_durable_back(rig: Rig) -> None:
    rig.commit(8)
    await rig.workers.finish()
    rig.store.commit(4)
    rig.durability.on_undone()
    assert rig.durability.position() == Position(at(4), at(4), 400, 400)


async def test_a_sync_from_before_a_rollback_does_not_cover_later_entries(rig: Rig) -> None:
    rig.commit(8)
    await settle()  # a sync that covers 8 is under way
    rig.store.commit(4)
    rig.durability.on_undone()
    rig.commit(6)
    await rig.workers.finish()
    assert rig.durability.last_durable == at(3), "8 is gone, and 6 was not covered"
    assert rig.moves == []
    await rig.workers.finish()
    assert rig.moves == [at(6)]


async def test_what_a_rollback_left_is_synced_though_nothing_new_is_written(rig: Rig) -> None:
    rig.commit(8)
    await settle()
    rig.store.commit(5)
    rig.durability.on_undone()
    await rig.workers.finish()  # began before the rollback: counts for nothing
    assert rig.durability.last_durable == at(3)
    await rig.workers.finish()
    assert rig.moves == [at(5)]


async def test_another_store_in_its_place_voids_a_sync_of_the_old_one(rig: Rig) -> None:
    rig.commit(8)
    await settle()
    rig.store.commit(2)
    rig.durability.on_store_opened()
    assert rig.durability.last_durable == at(2)
    await rig.workers.finish()
    assert rig.durability.last_durable == at(2)


async def test_a_disk_stall_and_its_end_are_noticed(rig: Rig) -> None:
    rig.commit(5)
    await rig.begin()
    await asyncio.sleep(4.9)
    assert rig.stalls == []
    await asyncio.sleep(0.2)
    assert rig.stalls == [True]
    await asyncio.sleep(60)
    assert rig.stalls == [True], "said once"
    await rig.workers.finish()
    assert rig.stalls == [True, False]
    assert rig.durability.last_durable == at(5)


async def test_the_time_of_a_sync_begins_anew_behind_another(rig: Rig) -> None:
    rig.commit(5)
    await rig.begin()
    await asyncio.sleep(4.2)
    rig.commit(6)
    await rig.workers.finish()
    await rig.begin()
    await asyncio.sleep(4.9)
    assert rig.stalls == []
    await asyncio.sleep(0.7)
    assert rig.stalls == [True], "one check late at most"


async def test_a_blocked_loop_is_no_disk_stall(rig: Rig) -> None:
    rig.commit(5)
    await rig.begin()
    rig.clock.held_ms = 3_000  # the loop comes back late, and the sync ended meanwhile
    await asyncio.sleep(5.1)
    assert rig.stalls == []
    await rig.workers.finish()
    await asyncio.sleep(20)
    assert rig.stalls == []
    rig.commit(6)
    await rig.begin()
    await asyncio.sleep(5.1)
    assert rig.stalls == [True], "the next one is the disk's"


async def test_a_disk_stall_is_noticed_although_the_loop_was_blocked_too(rig: Rig) -> None:
    rig.commit(5)
    await rig.begin()
    rig.clock.held_ms = 3_000
    await asyncio.sleep(5.1)
    assert rig.stalls == []
    await asyncio.sleep(5.1)
    assert rig.stalls == [True]


async def test_a_sync_that_waits_for_its_thread_is_no_disk_stall(rig: Rig) -> None:
    rig.commit(5)
    await asyncio.sleep(60)
    assert rig.stalls == []
    assert rig.durability.last_durable == at(3), "nor is anything durable"
    await rig.begin()
    await asyncio.sleep(4)
    assert rig.stalls == [], "its time begins with the sync"
    await asyncio.sleep(2)
    assert rig.stalls == [True]


async def test_a_sync_whose_end_the_loop_has_not_seen_yet_is_no_disk_stall(rig: Rig) -> None:
    rig.commit(5)
    sync = await rig.begin()
    await asyncio.sleep(3)
    sync.ended = True
    await asyncio.sleep(60)
    assert rig.stalls == []
    assert rig.durability.last_durable == at(3)


async def test_a_process_without_processor_time_reports_no_disk_stall(rig: Rig) -> None:
    """Held in many pieces, each shorter than the time after which a disk is said to stall."""
    rig.durability.on_store_opened()
    rig.commit(5)
    await rig.begin()
    for _ in range(40):
        rig.clock.held_ms += 400
        await asyncio.sleep(0.45)
    assert rig.stalls == []
    await asyncio.sleep(6)
    assert rig.stalls == [True]


def test_a_sync_knows_when_its_disk_has_it() -> None:
    seen: list[tuple[bool, bool]] = []

    class Looking(FakeStore):
        def sync(self) -> None:
            seen.append((sync.begun, sync.ended))
            super().sync()

    store = Looking()
    sync = Sync(store)  # type: ignore[arg-type]
    assert not sync.begun
    sync()
    assert seen == [(True, False)]
    assert sync.ended
    store.sync_error, sync = StorageError("Input/output error"), Sync(store)  # type: ignore[arg-type]
    with pytest.raises(StorageError):
        sync()
    assert sync.ended


async def test_a_sync_in_time_is_no_stall(rig: Rig) -> None:
    rig.commit(5)
    await rig.begin()
    await asyncio.sleep(4)
    await rig.workers.finish()
    await asyncio.sleep(10)
    assert rig.stalls == []


async def test_a_sync_error_stops_the_member_and_nothing_becomes_durable(rig: Rig) -> None:
    rig.store.sync_error = StorageError("replset.db-wal: Input/output error")
    rig.commit(5)
    await rig.workers.finish()
    assert rig.broken == [rig.store.sync_error]
    rig.store.sync_error = None
    rig.commit(6)
    assert rig.workers.jobs == []
    assert rig.durability.last_durable == at(3)
    assert rig.moves == []


async def test_a_thread_that_cannot_be_started_stops_the_member(rig: Rig) -> None:

    def start(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    rig.workers.start = start  # type: ignore[method-assign]
    rig.commit(5)
    assert [str(error) for error in rig.broken] == ["can't start new thread"]
    assert rig.durability.last_durable == at(3)
    await rig.durability.close()


async def test_what_breaks_behind_a_sync_stops_the_member(rig: Rig) -> None:
    broken = ValueError("what followed")

    def fail() -> None:
        raise broken

    rig.durability._on_moved = fail
    rig.commit(5)
    await rig.workers.finish()
    assert rig.broken == [broken]


async def test_no_sync_runs_while_the_store_is_replaced(rig: Rig) -> None:
    async with rig.durability.paused():
        rig.commit(5)
        await settle()
        assert rig.workers.jobs == []
    await rig.workers.finish()
    assert rig.moves == [at(5)]
