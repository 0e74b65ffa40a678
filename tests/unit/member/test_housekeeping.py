"""Keeping house on a disk that fills up: it waits, part by part, and the member goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from replset.errors import CorruptDataError, DataMismatchError, OutOfDiskSpaceError, StorageError
from replset.ids import OPTIME_NULL, OpTime
from replset.member.disk.housekeeping import (
    BACKLOG_SLICES,
    INTERVAL_S,
    READER_PAUSE_MS,
    RECHECK_EVERY_MS,
    SLICES,
    SPACE_EVERY,
    Housekeeper,
)
from tests.simulation.kit.clock import SimClock
from tests.simulation.kit.loop import SimLoop
from tests.unit.member.kit import context_of

T = TypeVar("T")
NO_ROOM = OutOfDiskSpaceError("replset.db: no space left on the disk")


class FakeStore:
    """Notes what is asked of it; `errors` says what fails. A real one has no backlog of a size that a test chooses."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.errors: dict[str, Exception] = {}
        self.needs_checkpoint = True
        self.needs_last_pass = False
        self.free = True
        self.path, self.size = "replset.db", 1 << 30
        self.wal = self.readers = self
        self.is_read = False
        self.rechecked: list[int] = []
        self.last_applied = self.commit_point = OPTIME_NULL
        self.slices_left = 0
        self.on_checkpoint: Callable[[], None] = lambda: None

    def has_disk_space(self) -> bool:
        return self.free

    def do(self, what: str) -> bool:
        self.done.append(what)
        if what in self.errors:
            raise self.errors[what]
        return False

    def slice(self) -> bool:
        self.slices_left -= 1
        return self.do("slice") or self.slices_left >= 0

    def recheck(self, after_ts: int) -> int:
        self.rechecked.append(after_ts)
        if "recheck" in self.errors:
            raise self.errors["recheck"]
        return after_ts + 1 if after_ts < 3 else 0

    def checkpoint(self) -> bool:
        done = self.do("checkpoint")
        self.on_checkpoint()
        return done

    def cut(self) -> int:
        self.done.append("cut")
        return 0

    def last_pass(self) -> bool:
        self.do("last pass")
        return not self.is_read


class AtOnce:
    """The Workers port without threads."""

    async def run(self, work: Callable[[], T]) -> T:
        return work()


class Rig:
    def __init__(self, clock: SimClock) -> None:
        self.store = FakeStore()
        self.context = context_of(self.store, clock, AtOnce())
        self.write_queue = self.context.write_queue
        self.rooms = 0
        self.damage: list[str] = []
        self.keeper = Housekeeper(self.context, self.room, self.damage.append, self.before_checkpoint)
        self.task = asyncio.ensure_future(self.keeper.run())

    def room(self) -> None:
        self.rooms += 1

    async def before_checkpoint(self) -> None:
        """Nothing: tests/simulation/test_lost_wal.py looks at the mark."""

    async def rounds(self, number: int) -> list[str]:
        """What was done in so many rounds."""
        self.store.done.clear()
        await asyncio.sleep(number * INTERVAL_S)
        return list(self.store.done)


@pytest.fixture(autouse=True)
def slices_of_the_fake_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replset.member.disk.housekeeping.remove_old_data", lambda store, *_: store.slice())


@pytest.fixture
def rig(clock: SimClock, loop: SimLoop) -> Iterator[Rig]:
    async def begin() -> Rig:
        made = Rig(clock)
        await asyncio.sleep(INTERVAL_S / 2)  # the test looks between two rounds
        return made

    made = loop.run_until_complete(begin())
    yield made
    made.task.cancel()
    loop.run_until_complete(asyncio.wait([made.task]))


@pytest.mark.parametrize("part", ["slice", "checkpoint"])
async def test_a_part_without_disk_space_waits_and_the_other_goes_on(rig: Rig, part: str) -> None:
    rig.store.errors, rig.store.free = {part: NO_ROOM}, False
    assert await rig.rounds(1) == ["slice", "checkpoint"]
    assert await rig.rounds(SPACE_EVERY - 2) == []
    assert await rig.rounds(SPACE_EVERY + 1) == ["slice", "checkpoint"] * 2, "tried again every two seconds"
    assert rig.rooms == 0
    rig.store.errors, rig.store.free = {}, True
    await rig.rounds(SPACE_EVERY)
    assert rig.rooms == 1
    assert await rig.rounds(2) == ["slice", "checkpoint"] * 2
    assert not rig.task.done()


async def test_readers_are_not_cut_for_a_last_pass_without_disk_space(rig: Rig) -> None:
    rig.store.errors, rig.store.wal.needs_last_pass = {"checkpoint": NO_ROOM}, True
    assert await rig.rounds(1) == ["slice", "checkpoint"]


async def test_commits_go_on_after_a_last_pass_without_disk_space(rig: Rig) -> None:
    rig.store.wal.needs_checkpoint, rig.store.wal.needs_last_pass = False, True
    rig.store.errors = {"last pass": NO_ROOM}
    assert await rig.rounds(1) == ["slice", "checkpoint", "cut", "last pass"]
    passed: list[str] = []
    rig.write_queue.submit(lambda: passed.append("a write"))
    assert passed == ["a write"]
    assert not rig.task.done()


async def test_commits_go_on_while_all_but_the_end_of_the_wal_is_copied(rig: Rig) -> None:
    rig.store.wal.needs_checkpoint, rig.store.wal.needs_last_pass = False, True
    rig.store.on_checkpoint = lambda: rig.write_queue.submit(lambda: rig.store.done.append("a write"))
    assert await rig.rounds(1) == ["slice", "checkpoint", "a write", "cut", "last pass"]


async def test_commits_are_not_paused_again_and_again_for_a_reader_that_stays(rig: Rig) -> None:
    rig.store.wal.needs_checkpoint, rig.store.wal.needs_last_pass, rig.store.is_read = False, True, True
    rounds = int(READER_PAUSE_MS / 1000 / INTERVAL_S)
    assert (await rig.rounds(rounds)).count("last pass") == 1
    rig.store.is_read = False
    assert (await rig.rounds(3)).count("last pass") == 3


async def test_pruning_waits_in_the_queue_of_all_writers(rig: Rig) -> None:
    rig.write_queue.pause()
    assert await rig.rounds(3) == []
    rig.write_queue.resume()
    assert rig.store.done[:1] == ["slice"]


@pytest.mark.parametrize("part", ["slice", "checkpoint"])
async def test_any_other_error_of_the_storage_is_raised(rig: Rig, part: str) -> None:
    rig.store.errors = {part: StorageError("replset.db: disk I/O error")}
    await rig.rounds(1)
    assert rig.task.exception() is rig.store.errors[part]


async def test_the_oplog_is_checked_slice_by_slice_and_again_an_hour_later(rig: Rig) -> None:
    await rig.rounds(20)
    assert rig.store.rechecked == [0, 1, 2, 3]
    await asyncio.sleep(RECHECK_EVERY_MS / 1000)
    assert rig.store.rechecked == [0, 1, 2, 3] * 2
    rig.store = rig.context.store = FakeStore()  # type: ignore[assignment]
    await rig.rounds(2)
    assert rig.store.rechecked == [0, 1], "another copy is another disk's"


async def test_an_idle_member_does_a_round_in_eight_and_a_write_wakes_it(rig: Rig) -> None:
    rig.store.needs_checkpoint = False
    assert await rig.rounds(1 + 2 * SPACE_EVERY) == ["slice"] * 3
    rig.store.last_applied = OpTime(1, 1)
    assert await rig.rounds(2) == ["slice"]
    rig.store.commit_point = OpTime(1, 1)
    assert await rig.rounds(2) == ["slice"]
    rig.store.needs_checkpoint = True
    assert await rig.rounds(2) == ["slice", "checkpoint"] * 2


async def test_a_round_that_leaves_something_is_followed_by_longer_ones(rig: Rig) -> None:
    rig.store.needs_checkpoint = False
    rig.store.slices_left = 1 + SLICES + 1 + BACKLOG_SLICES + 10
    assert len(await rig.rounds(2)) == 1 + SLICES
    assert len(await rig.rounds(2)) == 1 + BACKLOG_SLICES
    assert len(await rig.rounds(2)) == 10 + 1 + 1
    rig.store.last_applied = OpTime(1, 1)
    rig.store.slices_left = 1_000
    assert len(await rig.rounds(2)) == 1 + SLICES


async def test_damage_is_reported_and_does_not_end_the_rest(rig: Rig) -> None:
    rig.store = rig.context.store = FakeStore()  # type: ignore[assignment]
    rig.store.errors = {"recheck": CorruptDataError("replset.db: another entry")}
    assert await rig.rounds(2) == ["slice", "checkpoint"] * 2
    assert rig.damage == ["replset.db: another entry"]
    await asyncio.sleep(RECHECK_EVERY_MS / 1000)
    assert len(rig.damage) == 2


async def test_what_does_not_fit_the_data_is_damage_and_ends_nothing(rig: Rig) -> None:
    """A table that the disk lost, say: it would come again at each start."""
    rig.store.errors["slice"] = DataMismatchError("replset.db: no such table: d_5")
    done = await rig.rounds(SPACE_EVERY + 2)
    assert {"slice", "checkpoint"} <= set(done), "the other parts go on"
    assert len(rig.damage) == 1, "said once"
    assert "no such table: d_5" in rig.damage[0]
    assert not rig.task.done()
