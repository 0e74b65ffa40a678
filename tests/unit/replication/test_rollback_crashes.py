"""A rollback that dies or fails at any step is finished or forgotten."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from replset.ids import OpTime
from replset.replication import rollback as rollback_module
from replset.replication.common_point import CommonPoint
from replset.replication.rollback import NotUndoneError, finish_rollbacks
from replset.replication.rollback_manifest import (
    FileKind,
    Manifest,
    RollbackState,
    list_manifests,
    manifests_on,
    read_manifest,
)
from replset.storage.store import Store
from replset.storage.undo import rollback_done_marks, rollback_in_progress, undo_step
from tests.simulation.kit.disk import SimDisk
from tests.unit.replication.diverged import (
    DISK_OPERATIONS,
    OTHER,
    Crash,
    diverge,
    entries_in,
    run_rollback,
    two_members,
)
from tests.unit.replication.kit import MINE, NS, SOURCE, Member, synced

FILE_STEPS = ("write_file", "sync_file", "rename", "sync_folder", "make_folder")


class Story:
    """A member that has to take back entries of its own, over deaths."""

    def __init__(self, folder: Path) -> None:
        self.source, other = two_members(folder)
        self.folder, self.network, self.lives = folder, other.network, 0
        self.mine = self.member_on(SimDisk(str(folder / "life-0" / MINE)))
        for raw in other.oplog():
            self.mine.apply(raw)
        self.at_common = self.mine.everything(), self.mine.oplog()
        self.common = diverge(self.source, self.mine)
        self.at_newest = self.mine.everything(), self.mine.oplog()
        self.mine.store.wal.sync()

    def member_on(self, disk: SimDisk) -> Member:
        return Member(MINE, Path(disk.folder).parent, self.network, disk)

    def run(self, dies_at: int = 0) -> int:
        """Roll back, and die before this operation on files or behind this step of the undo. How many there were."""
        count = 0

        def take() -> None:
            nonlocal count
            count += 1
            if dies_at and count >= dies_at:
                raise Crash

        def counted(do: Callable[..., None]) -> Callable[..., None]:
            def step(*arguments: Any, **named: Any) -> None:
                take()
                do(*arguments, **named)

            return step

        self.mine.context.on_undone = take
        for name in FILE_STEPS:
            setattr(self.mine.disk, name, counted(getattr(self.mine.disk, name)))
        with suppress(Crash):
            asyncio.run(self.mine.rollback.run(SOURCE))
        return count

    def die(self, rng: random.Random, *, power_loss: bool) -> None:
        """The next process finishes what is left, or forgets it; no durable entry is nowhere."""
        self.lives += 1
        disk: Any = self.mine.disk
        after = disk.crash(str(self.folder / f"life-{self.lives}" / MINE), rng, power_loss=power_loss)
        disk.close()
        self.mine = mine = self.member_on(after)
        begun = rollback_in_progress(mine.store) is not None or rollback_done_marks(mine.store) != []
        asyncio.run(finish_rollbacks(mine.context, lambda: None))
        manifests = manifests_on(mine.disk, mine.dbpath)
        assert {manifest.state for manifest in manifests} <= {RollbackState.FINISHED, RollbackState.ABANDONED}
        finished = [manifest for manifest in manifests if manifest.state is RollbackState.FINISHED]
        saved = {entry for manifest in finished for entry in entries_in(mine, manifest)}
        assert set(self.at_newest[1]) <= set(mine.oplog()) | saved
        if mine.store.last_applied != self.common:
            assert not begun
            assert not finished
            assert (mine.everything(), mine.oplog()) == self.at_newest, "nothing was undone, so nothing may be missing"

    def end(self) -> None:
        self.run()
        mine = self.mine
        assert (mine.everything(), mine.oplog()) == self.at_common
        finished = [one for one in manifests_on(mine.disk, mine.dbpath) if one.state is RollbackState.FINISHED]
        (manifest,) = finished
        assert entries_in(mine, manifest) == set(self.at_newest[1][len(self.at_common[1]) :])
        assert {file.ns for file in manifest.files if file.kind is FileKind.DOCUMENTS} == {NS, OTHER, "app.new"}
        assert rollback_done_marks(mine.store) == []
        mine.store.close()
        last: Any = mine.disk
        last.close()


@pytest.fixture
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollback_module, "UNDO_STEP_ENTRIES", 4)


@pytest.mark.usefixtures("short_steps")
@pytest.mark.parametrize("power_loss", [False, True], ids=["killed", "power-lost"])
def test_a_death_at_any_step_is_finished_or_forgotten(tmp_path: Path, power_loss: bool) -> None:
    steps = Story(tmp_path / "whole").run()
    assert steps > DISK_OPERATIONS
    for dies_at in range(1, steps + 1):
        story = Story(tmp_path / str(dies_at))
        assert story.run(dies_at) == dies_at
        story.die(random.Random(dies_at), power_loss=power_loss)
        story.end()


@pytest.mark.in_turns
@pytest.mark.usefixtures("short_steps")
@pytest.mark.parametrize("seed", range(20))
def test_deaths_again_and_again_lose_nothing(tmp_path: Path, seed: int) -> None:
    rng, story = random.Random(seed), Story(tmp_path)
    for _ in range(4):
        story.run(rng.randrange(1, 30))
        story.die(rng, power_loss=rng.random() < 0.6)
    story.end()


def test_the_undo_is_on_the_disk_before_a_manifest_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a loss of power would bring back what a finished rollback undid."""
    story = Story(tmp_path)
    images: list[SimDisk] = []
    real = rollback_module.settle_manifest

    def settle(disk: SimDisk, *arguments: Any) -> Manifest:
        for number in range(5):
            folder = str(tmp_path / f"image-{number}" / MINE)
            images.append(disk.crash(folder, random.Random(number), power_loss=True))
        return real(disk, *arguments)

    monkeypatch.setattr(rollback_module, "settle_manifest", settle)
    story.run()
    assert len(images) == 5
    for image in images:
        after = story.member_on(image)
        assert after.store.last_applied == story.common
        after.store.close()
        image.close()
    story.end()


def test_a_planned_manifest_without_a_committed_step_is_abandoned(source: Member, mine: Member) -> None:
    diverge(source, mine)
    common = asyncio.run(CommonPoint(mine.network, mine.store, SOURCE).find())
    planned = asyncio.run(mine.rollback._write(common, RollbackState.PLANNED, "rollback", SOURCE))
    (settled,) = asyncio.run(finish_rollbacks(mine.context, lambda: None))
    assert settled.state is RollbackState.ABANDONED
    assert read_manifest(mine.folder / "rollback" / f"{planned.id}.json") == settled
    assert asyncio.run(finish_rollbacks(mine.context, lambda: None)) == []


def test_a_damaged_manifest_of_an_earlier_rollback_stops_nothing(
    source: Member, mine: Member, caplog: pytest.LogCaptureFixture
) -> None:
    at_common = mine.everything()
    diverge(source, mine)
    damaged = mine.folder / "rollback" / "rollback-2020-01-01T00-00-00.0.json"
    damaged.parent.mkdir()
    damaged.write_bytes(b"{")
    assert asyncio.run(finish_rollbacks(mine.context, lambda: None)) == []
    assert run_rollback(mine).ok
    assert mine.everything() == at_common
    assert mine.broken == []
    assert damaged.read_bytes() == b"{"
    assert damaged.name in caplog.text


def test_a_storage_failure_in_the_middle_stops_the_member(
    source: Member, mine: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    diverge(source, mine)
    monkeypatch.setattr(rollback_module, "UNDO_STEP_ENTRIES", 4)
    steps = iter([None, OSError(5, "Input/output error")])

    def failing(store: Store, common: OpTime, *, stem: str, limit: int = 0) -> bool:
        error = next(steps)
        if error is not None:
            raise error
        return undo_step(store, common, stem=stem, limit=limit)

    monkeypatch.setattr(rollback_module, "undo_step", failing)
    asyncio.run(mine.rollback.run(SOURCE))
    assert [type(error) for error in mine.broken] == [OSError]
    assert mine.reports == []


@pytest.mark.parametrize("when", ["at once", "after a step"])
def test_a_rollback_that_cannot_be_undone_ends_nothing_and_a_copy_takes_its_place(
    source: Member, mine: Member, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Its undo is not what was written. At each start it would fail the same way."""
    monkeypatch.setattr(rollback_module, "UNDO_STEP_ENTRIES", 4)
    common = diverge(source, mine)
    order = "DESC" if when == "at once" else "ASC"
    sql = f"SELECT ts, seq FROM undo WHERE ts > ? AND kind = 'doc' ORDER BY ts {order} LIMIT 1"
    with mine.store.maintenance() as txn:
        (row,) = txn.connection.execute(sql, (common.ts,)).fetchall()
        txn.connection.execute("UPDATE undo SET kind = 'dob' WHERE ts = ? AND seq = ?", row)
    ended = run_rollback(mine)
    assert (ended.ok, ended.retry, ended.not_undone) == (False, False, True)
    assert mine.broken == []
    again = mine.reborn(tmp_path / "left")
    if when == "after a step":
        with pytest.raises(NotUndoneError):
            asyncio.run(finish_rollbacks(again.context, lambda: None))
    assert synced(again, "a resync", forced=True).ok
    assert again.everything() == source.everything()
    assert RollbackState.PLANNED not in {manifest.state for manifest in list_manifests(again.dbpath)}
    assert asyncio.run(finish_rollbacks(again.context, lambda: None)) == []


def test_no_error_of_a_rollback_ends_the_member_at_each_start(
    source: Member, mine: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    diverge(source, mine)
    before = mine.everything()

    def fail(*_: object) -> None:
        raise TypeError("a row is none")

    monkeypatch.setattr(rollback_module.RollbackFiles, "write", fail)
    ended = run_rollback(mine)
    assert (ended.ok, ended.not_undone) == (False, True)
    assert "a row is none" in ended.detail
    assert mine.broken == []
    assert mine.everything() == before
