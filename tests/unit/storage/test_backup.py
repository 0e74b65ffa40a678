"""A restore makes a whole dbpath or none: whatever is damaged, missing or in the way, and wherever the power goes."""

from __future__ import annotations

import fcntl
import os
import random
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from replset.config.feature_version import LATEST
from replset.errors import BadValueError, CorruptDataError, DbPathLockedError, OutOfDiskSpaceError, StorageError
from replset.features.backup.backup_folder import MANIFEST_FILE, BackupManifest, NewSet, read_manifest, restore_backup
from replset.ids import HostPort
from replset.member.disk.member_files import open_files
from replset.member.options import MemberOptions
from replset.storage import DATABASE_FILE, LOCK_FILE, RESTORE_FILE
from replset.storage.disk import Disk, RealDisk
from replset.storage.member_file import MemberFile
from replset.storage.store import Store, StoreOptions, lock_dbpath
from tests.simulation.kit.disk import SimDisk

from .conftest import Driver
from .test_copies import append

NEW_SET = NewSet("copy", HostPort("m9:27017"))


def make_backup(store: Store, disk: Disk, folder: str) -> BackupManifest:
    disk.make_folder(folder)
    info = store.copy_to(os.path.join(folder, DATABASE_FILE))
    manifest = BackupManifest(
        "rs0", "0" * 24, "m0:27017", str(info.newest), info.size, info.sha256, "2026-01-01T00:00:00+00:00", {"a": 1}
    )
    write(disk, folder, manifest)
    return manifest


def write(disk: Disk, folder: str, manifest: BackupManifest) -> None:
    path = os.path.join(folder, MANIFEST_FILE)
    disk.write_file(path, [manifest.encode()])
    disk.sync_file(path)
    disk.sync_folder(folder)


def ignore(_size: int) -> None:
    pass


@pytest.fixture
def source(make_driver: Callable[..., Driver]) -> Driver:
    driver = make_driver("source")
    driver.term = 4
    driver.apply(("create", "db.c"), *(("put", "db.c", number, "x" * 300) for number in range(200)))
    return driver


@pytest.fixture
def folder(source: Driver, tmp_path: Path) -> Path:
    make_backup(source.store, RealDisk(), str(tmp_path / "backup"))
    return tmp_path / "backup"


@pytest.mark.parametrize("new_set", [None, NEW_SET])
def test_a_restored_member_has_the_data_and_another_incarnation(
    source: Driver, folder: Path, tmp_path: Path, new_set: NewSet | None
) -> None:
    done: list[int] = []
    target = tmp_path / "new" / "data"
    manifest = restore_backup(RealDisk(), str(folder), str(target), new_set, done.append)
    assert (sum(done), manifest) == (manifest.size, read_manifest(RealDisk(), str(folder)))
    assert sorted(os.listdir(target)) == ["member.db", "replset.db", "replset.lock"]
    restored = Driver(target)
    assert restored.documents() == source.documents()
    assert restored.store.last_applied == source.store.last_applied
    assert restored.store.rollback_id > source.store.rollback_id
    restored.store.close()
    file = MemberFile.open(RealDisk(), target)
    file.close()
    assert (file.initial_sync_pending, file.last_vote) == (False, None)
    if new_set is None:
        assert file.config is None
    else:
        (member,) = file.config.members
        assert (file.config.set_name, member.host) == (new_set.name, new_set.host)
        assert (member.incarnation, file.config.term) == (file.incarnation, 4)
        assert file.config.feature_version == LATEST, "the documents may need it"
        restore_backup(RealDisk(), str(folder), str(tmp_path / "again"), new_set, ignore)
        again = MemberFile.open(RealDisk(), tmp_path / "again")
        again.close()
        assert again.incarnation != file.incarnation
        of_both = {str(one.settings.replica_set_id) for one in (file.config, again.config)}
        assert len({*of_both, manifest.set_id}) == 3, "two restores are two sets"


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def other_newest(folder: Path) -> None:
    write(RealDisk(), str(folder), replace(read_manifest(RealDisk(), str(folder)), newest="9:9:9"))


@pytest.mark.parametrize(
    ("spoil", "error", "text"),
    [
        (lambda folder: flip(folder / DATABASE_FILE, 9000), CorruptDataError, "not what backup.json describes"),
        (lambda folder: flip(folder / MANIFEST_FILE, 40), CorruptDataError, "backup.json"),
        (lambda folder: (folder / MANIFEST_FILE).write_text("[]"), CorruptDataError, "describes no backup"),
        (lambda folder: (folder / MANIFEST_FILE).unlink(), BadValueError, "is no backup, or one that did not end"),
        (lambda folder: (folder / DATABASE_FILE).unlink(), OSError, "No such file"),
        (lambda folder: os.truncate(folder / DATABASE_FILE, 8192), CorruptDataError, "not what backup.json describes"),
        (other_newest, CorruptDataError, "not at 9:9:9"),
    ],
)
def test_a_damaged_backup_leaves_the_folder_empty(
    folder: Path, tmp_path: Path, spoil: Callable[[Path], object], error: type[Exception], text: str
) -> None:
    spoil(folder)
    target = tmp_path / "data"
    with pytest.raises(error, match=text):
        restore_backup(RealDisk(), str(folder), str(target), None, ignore)
    assert not target.exists() or os.listdir(target) == []


@pytest.mark.parametrize("new_set", [None, NEW_SET])
def test_a_point_that_cannot_be_reached_leaves_the_folder_as_it_was(
    folder: Path, tmp_path: Path, new_set: NewSet | None
) -> None:
    """The database is whole by then: a time in the future, or before the oplog begins."""
    target = tmp_path / "data"

    def bring_to_point() -> None:
        assert (target / DATABASE_FILE).exists()
        raise BadValueError("the oplog does not reach that time")

    for before in ([], ["lost+found"]):
        for name in before:
            (target / name).mkdir(parents=True)
        with pytest.raises(BadValueError, match="does not reach"):
            restore_backup(RealDisk(), str(folder), str(target), new_set, ignore, bring_to_point)
        assert os.listdir(target) == before


def test_a_lock_file_that_was_removed_meanwhile_locks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restore that is refused removes it. Who opened it before must not hold what nobody else can see."""
    flock, removed = fcntl.flock, []

    def remove_first(handle: int, how: int) -> None:
        flock(handle, how)
        if not removed:
            removed.append(handle)
            (tmp_path / LOCK_FILE).unlink()

    monkeypatch.setattr(fcntl, "flock", remove_first)
    lock = lock_dbpath(RealDisk(), tmp_path)
    with pytest.raises(DbPathLockedError):
        lock_dbpath(RealDisk(), tmp_path)
    lock.release()


def test_a_folder_that_holds_something_and_a_disk_without_room_are_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "data"
    (target / "lost+found").mkdir(parents=True)
    (target / "notes.txt").write_text("mine")
    with pytest.raises(BadValueError, match=r"not empty \(notes.txt is there\)"):
        restore_backup(RealDisk(), str(folder), str(target), None, ignore)
    assert (target / "notes.txt").read_text() == "mine"
    assert sorted(os.listdir(target)) == ["lost+found", "notes.txt"]
    (target / "notes.txt").unlink()
    lock = lock_dbpath(RealDisk(), target)
    with pytest.raises(DbPathLockedError):
        restore_backup(RealDisk(), str(folder), str(target), None, ignore)
    lock.release()
    with monkeypatch.context() as patch:
        patch.setattr(RealDisk, "free_bytes", lambda *_: 1 << 20)
        with pytest.raises(OutOfDiskSpaceError, match="1048576 are free"):
            restore_backup(RealDisk(), str(folder), str(target), None, ignore)
    restore_backup(RealDisk(), str(folder), str(target), None, ignore)


class PowerLossError(BaseException):
    """Ends the work in the middle, so to speak."""


STEPS = ("write_file", "remove", "rename", "sync_file", "sync_folder", "connect")


def test_power_that_goes_at_any_step_leaves_nothing_or_a_marker_or_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = {counted_restore(tmp_path / str(steps), monkeypatch, steps) for steps in range(26)}
    assert ends == {"nothing", "marker", "all"}


def test_power_that_goes_while_an_earlier_restore_is_cleared_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The marker goes last: without it a member would start on what is left."""
    ends = {counted_restore(tmp_path / str(steps), monkeypatch, 15, steps) for steps in range(10)}
    assert ends == {"nothing", "marker"}


def counted_restore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *breaks: int) -> str:
    """Restore until the process ends before that step; return what is there when the power goes at the last end."""
    disk = SimDisk(str(tmp_path / "disk"))
    driver = Store.open(disk, os.path.join(disk.folder, "source"), StoreOptions(min_free_bytes=0))
    append(driver, 3)
    backup, dbpath = os.path.join(disk.folder, "backup"), os.path.join(disk.folder, "data")
    manifest = make_backup(driver, disk, backup)
    disk.make_folder(dbpath)
    disk.sync_folder(disk.folder)
    left = 0

    def counted(work: Callable[..., object]) -> Callable[..., object]:
        def step(*arguments: object, **options: object) -> object:
            nonlocal left
            if not left:
                raise PowerLossError
            left -= 1
            return work(*arguments, **options)

        return step

    with monkeypatch.context() as patch:
        for name in STEPS:
            patch.setattr(disk, name, counted(getattr(disk, name)))
        for left in breaks:  # noqa: B007 - `step` counts it down
            with suppress(PowerLossError):
                restore_backup(disk, backup, dbpath, NEW_SET, ignore)
    ends = set()
    for seed in range(4):
        after = disk.crash(str(tmp_path / f"after {seed}"), random.Random(seed), power_loss=True)
        place = os.path.join(after.folder, "data")
        names = set(after.list_folder(place)) - {"replset.lock"}
        ends.add("marker" if RESTORE_FILE in names else "all" if names else "nothing")
        if RESTORE_FILE in names or not names:
            restore_backup(after, os.path.join(after.folder, "backup"), place, NEW_SET, ignore)
        store = Store.open(after, place, StoreOptions(min_free_bytes=0))
        assert str(store.last_applied) == manifest.newest
        store.close()
        file = MemberFile.open(after, place)
        file.close()
        assert file.config is not None
        assert not file.initial_sync_pending
        after.close()
    disk.close()
    return min(ends)


def test_no_member_starts_on_a_restore_that_broke_off(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "data"
    target.mkdir()
    (target / RESTORE_FILE).touch()
    options = MemberOptions("rs0", target)
    with ExitStack() as opened, pytest.raises(StorageError, match="did not end: run replset restore again"):
        open_files(opened, options, RealDisk(), random.Random(1), StoreOptions())
    restore_backup(RealDisk(), str(folder), str(target), None, ignore)
    with ExitStack() as opened:
        files, store = open_files(opened, options, RealDisk(), random.Random(1), StoreOptions())
        assert str(store.last_applied) == read_manifest(RealDisk(), str(folder)).newest
        assert not files.member_file.initial_sync_pending
