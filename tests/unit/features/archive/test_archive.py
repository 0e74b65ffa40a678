"""Segments of an archive: written once, read back as they were, never half, and never another history's."""

from __future__ import annotations

import errno
import hashlib
import io
import itertools
import json
import os
import queue
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from replset.errors import BadValueError, CappedPositionLostError, CorruptDataError
from replset.features.archive import worker
from replset.features.archive.archive import ARCHIVE_FILE, Archive
from replset.features.archive.files import ArchiveError, Files, FolderFiles, open_files
from replset.features.archive.jobs import Failure, OldestJob, ReadJob, WriteJob, Written, pack
from replset.features.archive.segments import ArchiveInfo, Position, Segment, SegmentName
from replset.features.archive.verify import verify_archive
from replset.features.archive.write_segment import write_segment
from replset.ids import OPTIME_NULL, OpTime
from replset.oplog_row import CHAIN_START, OplogRow
from replset.storage import oplog
from replset.storage.retention import remove_old_data
from replset.storage.store import StoreOptions
from replset.storage.txn import write_meta
from replset.storage.undo import undo_step
from tests.unit.storage.conftest import WALL, Driver

SET = "0123456789abcdef01234567"


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    made = Driver(tmp_path / "data", StoreOptions(min_free_bytes=0, snapshot_history_s=0, oplog_max_bytes=1))
    made.apply(("create", "db.c"), *(("put", "db.c", number, "x" * 50) for number in range(40)))
    made.store.set_commit_point(made.store.last_applied)
    yield made
    made.store.close()


@pytest.fixture
def files(tmp_path: Path) -> FolderFiles:
    return FolderFiles(str(tmp_path / "archive"))


def job(driver: Driver, after: Position | None = None, archive_id: str = "", max_bytes: int = 1_500) -> WriteJob:
    through = driver.store.commit_point
    return WriteJob(str(driver.folder), "rs0", SET, archive_id, "a1", after, through, max_bytes, "m:1", "2026-01-01")


def write(driver: Driver, files: Files, asked: WriteJob) -> Written:
    return driver.store.query(lambda connection: write_segment(files, connection, asked))


def write_all(driver: Driver, files: Files, max_bytes: int = 1_500, after: Position | None = None) -> list[Segment]:
    """All segments of what is committed behind `after`, one after the other as a member does."""
    archive_id, segments = "", list[Segment]()
    while True:
        written = write(driver, files, job(driver, after, archive_id, max_bytes))
        if written.segment is None:
            return segments
        segments.append(written.segment)
        after, archive_id = written.segment.end, written.archive_id


def rows_of(driver: Driver) -> list[OplogRow]:
    return driver.store.query(lambda connection: oplog.rows_after(connection, 0, limit=10_000, max_bytes=1 << 30))


def trim(driver: Driver, through: OpTime) -> None:
    with driver.store.maintenance() as txn:
        txn.connection.execute("DELETE FROM oplog WHERE ts <= ?", (through.ts,))
        write_meta(txn.connection, "trimmed_through", through.ts)


def archived(files: Files) -> list[OplogRow]:
    return [row for page in Archive.open("it", files).pages(Position(OPTIME_NULL, 0)) for row in page]


def test_what_is_written_is_read_again(driver: Driver, files: FolderFiles) -> None:
    segments = write_all(driver, files)
    assert len(segments) > 3
    assert archived(files) == rows_of(driver)
    archive = Archive.open("it", files)
    assert [archive.segment(name) for name in archive.names()] == segments
    for after in range(0, 41, 7):
        rows = rows_of(driver)
        found = archive.rows_after(rows[after].optime, 3, 1 << 20)
        assert 1 <= len(found) <= 3 or after == 40
        assert found == rows[after + 1 : after + 1 + len(found)]
        for count in range(1, len(found) + 1):  # as many as fit, to the byte
            size = sum(len(row.entry) for row in found[:count])
            assert archive.rows_after(rows[after].optime, 3, size) == found[:count]
            assert archive.rows_after(rows[after].optime, 3, size - 1) == found[: max(1, count - 1)]
    assert segments[0].before == Position(OPTIME_NULL, CHAIN_START), "it begins where the set does"


def test_only_committed_entries_are_archived(driver: Driver, files: FolderFiles) -> None:
    asked = replace(job(driver, max_bytes=1 << 20), through=rows_of(driver)[20].optime)
    write(driver, files, asked)
    assert archived(files) == rows_of(driver)[:21]


class Crash(Exception):
    pass


class CrashingFiles(FolderFiles):
    """Dies before or after the write of that number, or leaves half of the file, as file systems without rename do."""

    def __init__(self, folder: str, at: int, when: str) -> None:
        super().__init__(folder)
        self._at, self._when = at, when

    def write(self, name: str, data: bytes) -> None:
        self._at -= 1
        if self._at == 0 and self._when != "before":
            super().write(name, data if self._when == "after" else data[: len(data) // 2])
        if self._at == 0:
            raise Crash
        super().write(name, data)


@pytest.mark.parametrize("when", ["before", "within", "after"])
@pytest.mark.parametrize("at", [1, 2, 3, 4, 5, 6, 7])
def test_a_crash_at_each_write_leaves_an_archive_that_goes_on(
    driver: Driver, files: FolderFiles, at: int, when: str
) -> None:
    """Writes are: archive.json, then of each segment the rows, the copy of the manifest and the manifest."""
    with pytest.raises(Crash):
        write_all(driver, CrashingFiles(files.address, at, when))
    if when != "within" and (at, when) != (1, "before"):
        seen = archived(files)
        assert seen == rows_of(driver)[: len(seen)]
    write_all(driver, files)  # another member, which knows nothing of it
    archive = Archive.open("it", files)
    assert archived(files) == rows_of(driver)
    assert verify_archive(archive).broken is None
    names = archive.names()
    assert all(first.last_ts < second.first_ts for first, second in itertools.pairwise(names))


def zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def change_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("is_known", [False, True], ids=["lost record", "not noted"])
@pytest.mark.parametrize("damage", [zeros, cut_off, Path.unlink])
@pytest.mark.parametrize("kind", ["rows", "manifest"])
def test_what_a_disk_lost_of_the_newest_segment_is_written_again(
    driver: Driver, files: FolderFiles, kind: str, damage: Callable[[Path], None], is_known: bool
) -> None:
    *_, before, last = write_all(driver, files)
    damage(Path(files.address) / (last.file if kind == "rows" else last.name.manifest))
    write_all(driver, files, after=before.end if is_known else None)
    assert archived(files) == rows_of(driver)


def test_a_segment_that_cannot_be_written_again_stays(driver: Driver, files: FolderFiles) -> None:
    last = write_all(driver, files)[-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("replset.manifest.FORMAT", 2)
        newer = last.encode()
    for data, error, reason in ((newer, BadValueError, "has format 2"), (b"{", CorruptDataError, "describes no")):
        files.write(last.name.manifest, data)
        with pytest.raises(error, match=reason):
            write_all(driver, files)
        assert files.read(last.name.manifest) == data
        trim(driver, OpTime.parse(last.first))


def test_a_field_that_a_newer_release_added_is_passed_over(driver: Driver, files: FolderFiles) -> None:
    last = write_all(driver, files)[-1]
    written = json.loads(last.encode())
    del written["checksum"]
    written["later"] = {"a": 1}
    checksum = hashlib.sha256(json.dumps(written, sort_keys=True).encode()).hexdigest()
    assert Segment.parse(json.dumps({**written, "checksum": checksum}).encode(), "it") == last


def test_segments_of_two_writers_may_overlap(driver: Driver, files: FolderFiles) -> None:
    first = write(driver, files, job(driver)).segment
    second = write(driver, files, job(driver, first.end)).segment
    files.remove(second.name.manifest)  # the other writer does not see it, and writes other borders
    longer = write(driver, files, job(driver, first.end, max_bytes=2_500)).segment
    files.write(second.name.manifest, second.encode())
    assert longer.name.last_ts > second.name.last_ts
    write(driver, files, job(driver, longer.end, max_bytes=1 << 20))
    assert archived(files) == rows_of(driver)


@pytest.mark.parametrize("kind", ["rows", "manifest"])
@pytest.mark.parametrize(("number", "goes_on_behind"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_a_damaged_segment_is_read_from_one_that_overlaps_it(
    driver: Driver, files: FolderFiles, number: int, goes_on_behind: int, kind: str
) -> None:
    written = [write(driver, files, job(driver)).segment]
    for max_bytes in (1_500, 2_500):
        assert written[0] is not None
        written.append(write(driver, files, job(driver, written[0].end, max_bytes=max_bytes)).segment)
        files.remove(written[1].name.manifest if written[1] else "")
    assert written[1] is not None
    files.write(written[1].name.manifest, written[1].encode())
    end, damaged = written[goes_on_behind], written[number]
    write(driver, files, job(driver, end.end, max_bytes=1 << 20))
    change_a_bit(Path(files.address) / (damaged.file if kind == "rows" else damaged.name.manifest))
    if number == 1 or goes_on_behind == 1:
        assert archived(files) == rows_of(driver)
    else:  # the shorter one holds the beginning of it only
        with pytest.raises(CorruptDataError, match=damaged.name.stem):
            archived(files)


def test_no_other_segment_takes_the_place_of_the_oldest_one(driver: Driver, files: FolderFiles) -> None:
    oldest = write_all(driver, files)[0]
    change_a_bit(Path(files.address) / oldest.file)
    with pytest.raises(CorruptDataError, match=oldest.name.stem):
        Archive.open("it", files).rows_after(OPTIME_NULL, 1, 1)


def test_a_gap_is_a_gap(driver: Driver, files: FolderFiles) -> None:
    first = write(driver, files, job(driver)).segment
    while remove_old_data(driver.store, WALL):
        pass
    assert driver.store.oldest > first.end.optime
    driver.apply(*(("put", "db.c", number, "y") for number in range(3)))
    driver.store.set_commit_point(driver.store.last_applied)
    assert write(driver, files, job(driver, first.end)).segment is None, "another member may have what is missing"
    second = write(driver, files, replace(job(driver, first.end), may_leave_gap=True))
    assert (second.is_gap, second.segment.previous) == (True, None)
    archive = Archive.open("it", files)
    with pytest.raises(CappedPositionLostError, match="no entries between"):
        archive.rows_after(first.end.optime, 10, 1 << 20)
    first_behind = OpTime.parse(second.segment.first)
    in_front = first_behind._replace(ts=first_behind.ts - 1)
    assert archive.rows_after(in_front, 10, 1 << 20)[0].optime == first_behind


def test_an_oplog_that_begins_right_behind_the_archive_continues_it(driver: Driver, files: FolderFiles) -> None:
    segments = write_all(driver, files)[:-1]
    for name in Archive.open("it", files).names()[len(segments) :]:
        files.remove(name.manifest)
    last = segments[-1].end
    trim(driver, last.optime)
    written = write(driver, files, job(driver, last))
    assert (written.is_gap, written.segment.before) == (False, last)
    files.remove(written.segment.name.manifest)
    with pytest.raises(ArchiveError, match="not in this member's"):
        write(driver, files, job(driver, last._replace(chain=1)))


def test_another_history_is_refused(driver: Driver, files: FolderFiles) -> None:
    """A set that lost committed entries, by a forced reconfiguration say, does not continue the archive."""
    last = write_all(driver, files)[-1]
    driver.store.commit_point = OPTIME_NULL
    undo_step(driver.store, rows_of(driver)[30].optime, stem="x")
    driver.term = 2
    driver.apply(("put", "db.c", 1, "other"))
    driver.store.set_commit_point(driver.store.last_applied)
    for after in (last.end, None):
        with pytest.raises(ArchiveError, match="not in this member's"):
            write(driver, files, job(driver, after))


def test_another_set_or_archive_is_refused(driver: Driver, files: FolderFiles) -> None:
    write(driver, files, job(driver))
    with pytest.raises(ArchiveError, match="is the archive of set rs0"):
        Archive.of_set(files, ArchiveInfo("rs0", "f" * 24, "x"), "")
    with pytest.raises(ArchiveError, match="and the set writes to ffff"):
        write(driver, files, job(driver, archive_id="ffff"))
    empty = FolderFiles(files.address + "2")
    with pytest.raises(ArchiveError, match="is empty"):
        write(driver, empty, job(driver, archive_id="ffff"))
    with pytest.raises(BadValueError, match="is no archive"):
        Archive.open("there", empty)
    files.remove(ARCHIVE_FILE)
    with pytest.raises(ArchiveError, match=f"has segments and no {ARCHIVE_FILE}"):
        Archive.of_set(files, ArchiveInfo("rs0", SET, "x"), "")


@pytest.mark.parametrize("damage", [cut_off, change_a_bit, Path.unlink])
def test_damaged_rows_are_refused(driver: Driver, files: FolderFiles, damage: Callable[[Path], None]) -> None:
    first = write(driver, files, job(driver)).segment
    damage(Path(files.address) / first.file)
    with pytest.raises(CorruptDataError, match=first.name.stem):
        Archive.open("it", files).rows_after(OPTIME_NULL, 10, 1 << 20)


def test_a_damaged_manifest_is_refused(driver: Driver, files: FolderFiles) -> None:
    first = write(driver, files, job(driver)).segment
    fields = json.loads(first.encode())
    for data in (b"", b"{}", b"[]", json.dumps({**fields, "rows": 1}).encode(), json.dumps({"format": 1}).encode()):
        files.write(first.name.manifest, data)
        with pytest.raises(CorruptDataError, match="segments/"):
            Archive.open("it", files).rows_after(OPTIME_NULL, 10, 1 << 20)


def test_a_manifest_of_another_segment_or_set_is_refused(driver: Driver, files: FolderFiles) -> None:
    """Somebody copied files about. What they hold would be taken for what was written at another time."""
    first, second = write_all(driver, files)[:2]
    for wrong in (second, replace(first, set_id="0" * 24)):
        files.write(first.name.manifest, wrong.encode())
        with pytest.raises(CorruptDataError, match="describes another segment"):
            Archive.open("it", files).segment(first.name)


def test_names_sort_by_time_and_others_are_no_segments() -> None:
    name = SegmentName(OpTime.parse("1:5:7").ts, OpTime.parse("1:70:2").ts)
    assert SegmentName.parse(f"{name.stem}.json") == name
    assert SegmentName.parse(f"{name.stem}.1234.parquet") is None
    assert SegmentName.parse(".part") is None


@pytest.mark.parametrize("kind", ["memory", "local"])
def test_an_address_of_fsspec(driver: Driver, tmp_path: Path, kind: str) -> None:
    """local: a folder by way of fsspec, which neither renames nor syncs."""
    pytest.importorskip("fsspec")
    address = f"{kind}://{tmp_path}/rs0"
    files = open_files(address)
    assert files.names("segments") == []
    segments = write_all(driver, files)
    assert archived(files) == rows_of(driver)
    assert files.read("nothing") is None
    files.remove("nothing")
    archive = Archive.open(address)
    assert list(archive.remove_before(segments[1].name.first_ts)) == [segments[0].name]
    assert archive.names() == [segment.name for segment in segments[1:]]
    assert files.read(segments[0].file) is None
    files.write(segments[-1].name.manifest, segments[-1].encode()[:100])
    write_all(driver, files, after=segments[-2].end)
    assert Archive.open(address).segment(segments[-1].name).last == segments[-1].last
    with pytest.raises(BadValueError, match="nosuch"):
        open_files("nosuch://x")


def test_a_reader_is_told_what_was_removed(driver: Driver, files: FolderFiles) -> None:
    """It knows the list of segments and their manifests from before."""
    segments = write_all(driver, files)
    reader, at = Archive.open("it", files), OpTime.parse(segments[0].first)
    assert reader.rows_after(at, 10, 1 << 20)
    other = Archive.open("it", files)
    orphan, late = (f"segments/{segments[number].name.stem}.ffff.parquet" for number in (0, -1))
    files.write(orphan, b"")
    files.write(late, b"")
    assert list(other.remove_before(segments[1].name.first_ts, dry_run=True)) == [segments[0].name]
    assert files.read(orphan) == b""
    assert list(other.remove_before(segments[1].name.first_ts)) == [segments[0].name]
    assert (files.read(orphan), files.read(late)) == (None, b"")
    reader._read = None
    with pytest.raises(CappedPositionLostError, match="was removed"):
        reader.rows_after(at, 10, 1 << 20)


def test_what_a_removal_leaves_when_it_breaks_off_is_whole(driver: Driver, files: FolderFiles) -> None:
    """Its manifest would vouch for rows that are gone."""
    segments = write_all(driver, files)
    real, removed = files.remove, list[str]()

    def remove(name: str) -> None:
        real(name)
        removed.append(name)
        left = Archive.open("it", files)
        assert [left.rows(left.segment(name)) for name in left.names()], f"behind {removed}"
        assert verify_archive(left).broken is None, f"behind {removed}"

    files.remove = remove  # type: ignore[method-assign]
    assert list(Archive.open("it", files).remove_before(segments[-1].name.first_ts))
    assert len(removed) == 3 * (len(segments) - 1)


def test_a_damaged_segment_can_be_removed(driver: Driver, files: FolderFiles) -> None:
    segments = write_all(driver, files)
    files.write(segments[0].name.manifest, b"{}")
    Path(files.address, "segments", "00").mkdir()
    assert list(Archive.open("it", files).remove_before(1 << 62)) == [segment.name for segment in segments]
    assert files.names("segments") == ["00"]


def test_a_folder_that_cannot_be_written_says_so(driver: Driver, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArchiveError, match="archive: "):
        write(driver, FolderFiles(str(tmp_path / "file")), job(driver))


def test_a_full_disk_leaves_nothing_and_the_archive_goes_on(
    driver: Driver, files: FolderFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write(driver, files, job(driver)).segment
    before = files.names("segments")

    def fsync(_handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(ArchiveError, match="No space left on device"):
            write(driver, files, job(driver, first.end))
    assert files.names("segments") == before
    write_all(driver, files, after=first.end)
    assert archived(files) == rows_of(driver)


def test_a_file_is_whole_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash at any time leaves the file as it was, or as it is now."""
    synced: list[tuple[str, int]] = []
    sync_now, name = os.fsync, tmp_path / "segments" / "one"

    def fsync(handle: int) -> None:
        found = os.fstat(handle)
        synced.append(("folder", name.exists()) if stat.S_ISDIR(found.st_mode) else ("file", found.st_size))
        sync_now(handle)

    files = FolderFiles(str(tmp_path))
    files.write("segments/one", b"before")
    monkeypatch.setattr(os, "fsync", fsync)
    files.write("segments/one", b"afterwards")
    assert synced == [("file", len(b"afterwards")), ("folder", True)]
    assert files.read("segments/one") == b"afterwards"


# --- the process ----------------------------------------------------------------------------------------------------


def test_a_worker_takes_requests_until_its_pipe_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: queue.Queue[object] = queue.Queue()
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    worker._read_jobs(io.BytesIO(b"".join(map(pack, ("one", "x" * 1_000, 3)))), jobs)
    assert ([jobs.get_nowait() for _ in range(jobs.qsize())], ended) == (["one", "x" * 1_000, 3], [0])


def test_a_worker_answers_with_what_it_did_or_why_not(driver: Driver, tmp_path: Path) -> None:
    own = worker.Worker(str(tmp_path / "archive"))
    written = own.answer(job(driver))
    assert isinstance(written, Written)
    rows = own.answer(ReadJob(OPTIME_NULL, 1_000, 1 << 20))
    assert isinstance(rows, list)
    live = driver.store.oplog_after(OPTIME_NULL, limit=1_000, max_bytes=1 << 20)
    assert rows == live[: len(rows)]
    assert len(own.answer(ReadJob(rows[0].optime, 2, 1 << 20))) == 2  # type: ignore[arg-type]
    oldest = own.answer(OldestJob())
    assert isinstance(oldest, Segment)
    failed = own.answer(replace(job(driver), dbpath=str(tmp_path / "nowhere")))
    assert isinstance(failed, Failure)
    assert (failed.code, failed.message.startswith("archive: ")) == (96, True)
