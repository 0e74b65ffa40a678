"""The store and the member file on the recording disk: no crash takes back what was reported durable."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from replset.bson import encode
from replset.core.effects import LastVote
from replset.errors import OutOfDiskSpaceError
from replset.ids import OPTIME_NULL, MemberId, OpTime, pack_ts
from replset.oplog_entry import OplogEntry, command_entry, delete_entry, insert_entry
from replset.replication.applier import apply_entry
from replset.storage.copies import check_database, install_copy
from replset.storage.member_file import MemberFile
from replset.storage.retention import remove_old_data
from replset.storage.store import Store, StoreOptions
from replset.storage.undo import rollback_done_marks, rollback_in_progress, undo_step
from tests.simulation.kit.disk import SimDisk
from tests.simulation.kit.entries import read_entry
from tests.simulation.kit.replay import documents_of, replay

NewFolder = Callable[[], str]
UUID = bytes(range(16))
NS = "app.things"


@pytest.fixture
def new_folder(tmp_path: Path) -> NewFolder:
    numbers = iter(range(10_000))
    return lambda: str(tmp_path / f"life-{next(numbers)}")


class OpenStore:
    """A store that is written at random, and what was promised of it."""

    def __init__(self, disk: SimDisk, rng: random.Random, options: StoreOptions | None = None) -> None:
        self.disk = disk
        self.rng = rng
        self.store = Store.open(disk, disk.folder, options)
        self.durable = self.store.last_applied

    def write_group(self) -> None:
        with self.store.group() as txn:
            for _ in range(self.rng.randrange(1, 6)):
                optime = OpTime(1, max(txn.last.ts + 1, pack_ts(1_700_000_000, 1)))
                if NS not in txn.catalog.by_ns:
                    entry = command_entry("app", UUID, {"create": "things"}, optime, 1)
                elif self.rng.random() < 0.25:
                    entry = delete_entry(NS, UUID, encode({"_id": self.rng.randrange(30)}), optime, 1)
                else:
                    document = {
                        "_id": self.rng.randrange(30),
                        "n": optime.increment,
                        "filler": "x" * self.rng.randrange(900),
                    }
                    entry = insert_entry(NS, UUID, encode(document), optime, 1)
                apply_entry(txn, OplogEntry(entry))

    def write_and_sync(self) -> None:
        """Groups, syncs and checkpoints, in any order."""
        for _ in range(self.rng.randrange(30)):
            draw = self.rng.random()
            if draw < 0.7:
                self.write_group()
            elif draw < 0.85:
                target = self.store.last_applied
                self.store.wal.sync()
                self.durable = target
            else:
                self.rng.choice((self.store.wal.checkpoint, self.store.wal.last_pass))()

    def crash(self, folder: str, *, power_loss: bool) -> OpenStore:
        after = self.disk.crash(folder, self.rng, power_loss=power_loss)
        self.disk.close()
        return OpenStore(after, self.rng)

    def entries(self) -> list[tuple[int, int, int, bytes]]:
        rows = self.store.oplog_after(OPTIME_NULL, limit=100_000, max_bytes=1 << 40)
        return [(row.term, row.ts, row.hash, row.entry) for row in rows]


def undo_rows(opened: OpenStore) -> int:
    connection = opened.disk.connect(opened.store.path)
    try:
        return int(connection.execute("SELECT count(*) FROM undo").get)
    finally:
        connection.close()


@pytest.mark.parametrize("seed", range(10))
def test_a_store_closes_on_a_full_disk_and_keeps_what_was_committed(new_folder: NewFolder, seed: int) -> None:
    opened = OpenStore(SimDisk(new_folder()), random.Random(seed))
    opened.write_and_sync()
    opened.write_group()
    before = opened.entries()
    opened.disk.is_full = True
    opened.store.close()
    opened = opened.crash(new_folder(), power_loss=True)
    assert opened.entries() == before
    opened.store.close()
    opened.disk.close()


@pytest.mark.parametrize("seed", range(10))
def test_pruning_and_trimming_fail_on_a_full_disk_and_go_on_with_disk_space(new_folder: NewFolder, seed: int) -> None:
    options = StoreOptions(min_free_bytes=0, snapshot_history_s=0, oplog_max_bytes=2_000)
    opened = OpenStore(SimDisk(new_folder()), random.Random(seed), options)
    for _ in range(20):
        opened.write_group()
    opened.store.close()
    opened = OpenStore(opened.disk, opened.rng, options)  # with a WAL that has yet to grow
    store = opened.store
    store.set_commit_point(store.last_applied)
    before, documents, undo = opened.entries(), documents_of(opened.disk), undo_rows(opened)
    opened.disk.is_full = True
    with pytest.raises(OutOfDiskSpaceError):
        remove_old_data(store, 0)
    assert (opened.entries(), documents_of(opened.disk), undo_rows(opened)) == (before, documents, undo)
    assert (store.pruned_through, store.trimmed_through) == (0, 0)
    opened.disk.is_full = False
    while remove_old_data(store, 0):
        pass
    assert undo_rows(opened) < undo
    assert store.oplog_bytes <= options.oplog_max_bytes + 1_000
    said = store.pruned_through, store.trimmed_through, store.oldest, store.oplog_bytes
    opened.write_group()
    opened = OpenStore(opened.disk.crash(new_folder(), opened.rng, power_loss=False), opened.rng, options)
    store = opened.store
    assert (store.pruned_through, store.trimmed_through, store.oldest) == said[:3]
    store.close()
    check_database(opened.disk, store.path, 100_000)
    opened.disk.close()


@pytest.mark.parametrize("seed", range(10))
def test_durable_entries_survive_and_documents_fit_the_oplog(new_folder: NewFolder, seed: int) -> None:
    rng = random.Random(seed)
    opened = OpenStore(SimDisk(new_folder()), rng)
    for _ in range(8):
        opened.write_and_sync()
        before, durable, newest = opened.entries(), opened.durable, opened.store.last_applied
        power_loss = rng.random() < 0.7
        opened = opened.crash(new_folder(), power_loss=power_loss)
        found = opened.entries()
        assert found == before[: len(found)]
        assert opened.store.last_applied >= durable
        assert power_loss or opened.store.last_applied == newest
        assert documents_of(opened.disk) == replay([read_entry(*row) for row in found])
    opened.store.close()
    check_database(opened.disk, opened.store.path, 100_000)
    opened.disk.close()


@pytest.mark.parametrize("seed", range(10))
def test_a_rollback_is_finished_after_any_crash(new_folder: NewFolder, seed: int) -> None:
    rng = random.Random(seed)
    opened = OpenStore(SimDisk(new_folder()), rng)
    while len(opened.entries()) < 60:
        opened.write_group()
    opened.store.wal.sync()
    before, rollback_id = opened.entries(), opened.store.rollback_id
    term, ts, _, _ = before[rng.randrange(len(before))]
    common = OpTime(term, ts)
    more = True
    while more:
        more = undo_step(opened.store, common, stem="rollback-1", limit=rng.randrange(1, 20))
        if rng.random() < 0.5:
            opened = opened.crash(new_folder(), power_loss=rng.random() < 0.5)
            mark = rollback_in_progress(opened.store)
            assert mark is None or mark.common_point == common
            more = mark is not None or opened.store.last_applied > common
    assert opened.store.last_applied == common
    assert opened.store.rollback_id == rollback_id + 1
    assert [mark.stem for mark in rollback_done_marks(opened.store)] == ["rollback-1"]
    kept = [row for row in before if row[1] <= ts]
    assert opened.entries() == kept
    assert documents_of(opened.disk) == replay([read_entry(*row) for row in kept])
    opened.store.close()
    opened.disk.close()


@pytest.mark.parametrize("seed", range(30))
def test_a_copy_is_installed_whole_or_not_at_all(new_folder: NewFolder, seed: int) -> None:
    """Power goes at any moment of the swap: the next start finds the old database or the copy."""
    rng = random.Random(seed)
    opened = OpenStore(SimDisk(new_folder()), rng)
    for _ in range(5):
        opened.write_group()
    opened.store.wal.sync()
    old = opened.entries()
    copy = os.path.join(opened.disk.folder, "initial-sync.db")
    other = OpenStore(SimDisk(new_folder()), random.Random(seed + 1000))
    for _ in range(9):
        other.write_group()
    new = other.entries()
    sent = os.path.join(other.disk.folder, "copy.db")
    other.store.copy_to(sent)
    opened.disk.write_file(copy, [other.disk.read_file(sent)])
    opened.disk.sync_file(copy)
    opened.disk.sync_folder(opened.disk.folder)
    rollback_id = opened.store.rollback_id
    opened.store.close()

    class Stop(Exception):
        pass

    steps = iter(range(rng.randrange(9)))

    def until_it_stops(do: Callable[..., None]) -> Callable[..., None]:
        def step(*arguments: object) -> None:
            if next(steps, None) is None:
                raise Stop
            do(*arguments)

        return step

    for name in ("remove", "rename", "sync_file", "sync_folder"):
        setattr(opened.disk, name, until_it_stops(getattr(opened.disk, name)))
    try:
        install_copy(opened.disk, opened.disk.folder, copy, rollback_id_before=rollback_id)
    except Stop:
        installed = False
    else:
        installed = True
    opened = opened.crash(new_folder(), power_loss=True)
    assert opened.entries() in ([new] if installed else [old, new])
    check_database(opened.disk, opened.store.path, 1000)
    for one in (opened, other):
        one.store.close()
        one.disk.close()


@pytest.fixture
def member_disk(new_folder: NewFolder) -> Iterator[SimDisk]:
    disk = SimDisk(new_folder())
    yield disk
    disk.close()


def test_a_vote_is_durable_when_it_is_saved(member_disk: SimDisk, new_folder: NewFolder) -> None:
    member_file = MemberFile.open(member_disk, member_disk.folder, new_incarnation=lambda: "one")
    for term in range(1, 40):
        vote = LastVote(term, MemberId(term % 3))
        member_file.save_vote(vote)
        after = member_disk.crash(new_folder(), random.Random(term), power_loss=True)
        again = MemberFile.open(after, after.folder, new_incarnation=lambda: "two")
        assert (again.last_vote, again.incarnation) == (vote, "one")
        after.close()


def test_a_marker_is_durable_when_it_is_set(member_disk: SimDisk, new_folder: NewFolder) -> None:
    names = iter(("one", "two", "three"))
    member_file = MemberFile.open(member_disk, member_disk.folder, new_incarnation=lambda: next(names))
    member_file.end_initial_sync()
    assert member_file.begin_initial_sync(rollback_id=7) == "two"
    after = member_disk.crash(new_folder(), random.Random(1), power_loss=True)
    again = MemberFile.open(after, after.folder, new_incarnation=lambda: "never")
    assert (again.initial_sync_pending, again.incarnation, again.rollback_id_floor) == (True, "two", 7)
    after.close()
