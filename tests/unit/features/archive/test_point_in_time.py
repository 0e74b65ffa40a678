"""A restored database is brought back by its undo, or on by archived entries; both give the documents of that entry."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from replset.bson import encode
from replset.errors import BadValueError
from replset.features.archive import point_in_time
from replset.features.archive.archive import Archive
from replset.features.archive.files import FolderFiles
from replset.features.archive.jobs import WriteJob
from replset.features.archive.point_in_time import PointInTime, bring_to
from replset.features.archive.write_segment import write_segment
from replset.ids import OpTime, pack_ts
from replset.oplog_entry import update_entry
from replset.storage.disk import RealDisk
from replset.storage.store import Store, StoreOptions
from replset.storage.txn import Txn
from tests.unit.storage.conftest import WALL, Driver, State, doc_of, key_of

SECOND = WALL // 1000


class Source(Driver):
    """A store with a history of 60 seconds, a copy of it in the middle, and an archive of all."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "data", StoreOptions(min_free_bytes=0, snapshot_history_s=1000))
        self.copies = folder
        self.apply(("create", "db.c"))
        for second in range(30):
            self.write(second)
        self.store.copy_to(str(folder / "copy.db"))
        self.middle = self.store.last_applied
        for second in range(30, 60):
            self.write(second)
        self.store.set_commit_point(self.store.last_applied)
        self.archive = self._archive()

    def write(self, second: int) -> None:
        self.wall_ms = WALL + second * 1000
        self.apply(("put", "db.c", second % 7, f"at {second}" * 20), ("put", "db.c", 100 + second, "x"))
        if second % 5 == 0:
            self.apply(("delete", "db.c", second % 7), ("large", "db.c", second))

    def _large(self, txn: Txn, optime: OpTime, ns: str, second: int) -> None:
        """A diff of a document that is computed in a thread."""
        coll, key = self.coll(ns), key_of(500)
        before, text = txn.get(coll, key), str(second) * 20_000
        doc = doc_of(500, text)
        if before is None:
            self._put(txn, optime, ns, 500, text)
            return
        o = encode({"$v": 2, "diff": {"u": {"text": text}}})
        txn.put(coll, key, doc, ts=optime.ts, before=before)
        entry = update_entry(ns, coll.uuid, encode({"_id": 500}), o, optime, self.wall_ms)
        txn.append(entry, optime, op="u", ns=ns, key=key, wall_ms=self.wall_ms)
        self.state[ns][key] = doc

    def _archive(self, segment_bytes: int = 20_000) -> Archive:
        files, after, archive_id = FolderFiles(str(self.copies / "archive")), None, ""
        while True:
            most = self.store.commit_point, segment_bytes
            job = WriteJob("", "rs0", "f" * 24, archive_id, "a1", after, *most, "m:1", "")
            written = self.store.query(lambda connection, job=job: write_segment(files, connection, job))
            if written.segment is None:
                return Archive.open("it", files)
            after, archive_id = written.segment.end, written.archive_id

    def restored(self, point: str | None, *, archive: bool = True) -> tuple[State, OpTime]:
        folder = self.copies / f"restored{len(list(self.copies.iterdir()))}"
        folder.mkdir()
        (folder / "replset.db").write_bytes((self.copies / "copy.db").read_bytes())
        found = bring_to(
            *(RealDisk(), str(folder), self.archive if archive else None),
            *(None if point is None else PointInTime.parse(point), lambda _count: None),
        )
        with closing(Store.open(RealDisk(), folder, StoreOptions(min_free_bytes=0))) as store:
            assert store.last_applied == found.newest
            self.note = found.note
            assert store.saved_commit_point() <= store.last_applied
            with store.read() as snapshot:
                return {coll.ns: dict(snapshot.scan(coll)) for coll in store.collections()}, found.newest

    def at(self, is_in: Callable[[OpTime], bool]) -> tuple[State, OpTime]:
        """The state after the last entry that is in."""
        optime, state = [past for past in self.history if is_in(past[0])][-1]
        return state, optime


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return Source(tmp_path_factory.mktemp("source"))


@pytest.mark.parametrize("second", [3, 12, 29, 30, 45, 59])
def test_a_time_and_an_entry(source: Source, second: int) -> None:
    end = pack_ts(SECOND + second, 0)
    expected = source.at(lambda optime: optime.ts < end)
    assert source.restored(_iso(SECOND + second)) == expected
    assert source.restored(str(expected[1])) == expected
    if second < 30:  # back, which needs no archive
        assert source.restored(str(expected[1]), archive=False) == expected


def _iso(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


DAY = 86_400


class Jumps(Source):
    """One write a day for ten days; the clock of day 2 is wrong by so many days. The backup is of day 1 or of day 5."""

    def __init__(self, folder: Path, wrong_days: int, backup_day: int, segment_bytes: int = 1) -> None:
        """segment_bytes: 1 for each entry in a segment of its own."""
        Driver.__init__(self, folder / "data", StoreOptions(min_free_bytes=0, snapshot_history_s=1 << 40))
        self.copies = folder
        self.apply(("create", "db.c"))
        for day in range(10):
            self.wall_ms = WALL + (day + (wrong_days if day == 2 else 0)) * DAY * 1000
            self.apply(("put", "db.c", day, "x"))
            if day == backup_day:
                self.store.copy_to(str(folder / "copy.db"))
        self.store.set_commit_point(self.store.last_applied)
        self.archive = self._archive(segment_bytes)


@pytest.mark.parametrize("backup_day", [1, 5])
@pytest.mark.parametrize("wrong_days", [30, 3650, -30])
@pytest.mark.parametrize("at", [4, 5, 8])
def test_a_time_after_a_clock_was_wrong_once(tmp_path: Path, wrong_days: int, backup_day: int, at: int) -> None:
    jumps = Jumps(tmp_path, wrong_days, backup_day)
    state, newest = jumps.restored(_iso(SECOND + at * DAY - DAY // 2))
    assert (state, newest) == jumps.history[at + 1][::-1], "the writes of all days before"
    assert ("a clock was ahead" in jumps.note) is (wrong_days > 0), "it is said"


def test_what_was_written_later_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    rows = Archive.rows
    monkeypatch.setattr(Archive, "rows", lambda self, segment: read.append(segment.name.last_ts) or rows(self, segment))
    jumps = Jumps(tmp_path, 30, 1)
    jumps.restored(_iso(SECOND + 4 * DAY - DAY // 2))
    assert "1 of the restored entries have a later wall time" in jumps.note
    assert max(read) == jumps.history[6][0].ts, "the first one of those"


@pytest.mark.parametrize("segment_bytes", [1, 450, 20_000])
def test_a_time_before_a_clock_was_wrong_once(tmp_path: Path, segment_bytes: int) -> None:
    jumps = Jumps(tmp_path, -30, 1, segment_bytes)
    assert jumps.restored(_iso(SECOND + DAY))[1] == jumps.history[2][0]
    assert "a clock was behind" in jumps.note
    (tmp_path / "ahead").mkdir()
    ahead = Jumps(tmp_path / "ahead", 30, 1, segment_bytes)
    for half_days in (3, 5):
        assert ahead.restored(_iso(SECOND + half_days * DAY // 2))[1] == ahead.history[3][0]
        assert "may be older than their wall time says" in ahead.note
    with pytest.raises(BadValueError, match="does not reach"):  # only the wrong clock did
        ahead.restored(_iso(SECOND + 20 * DAY))


def test_all_that_is_archived(source: Source) -> None:
    assert source.restored(None) == source.at(lambda optime: True)
    assert source.restored(str(source.store.last_applied)) == source.at(lambda optime: True)


@pytest.mark.parametrize("archive", [False, True])
def test_the_backups_newest_entry_needs_no_archive(source: Source, archive: bool) -> None:
    """One that lags, or has nothing yet, is not asked."""
    lagging = Archive.of_set(FolderFiles(str(source.copies / "lagging")), source.archive.info, "")
    source.archive, whole = lagging, source.archive
    try:
        assert source.restored(str(source.middle), archive=archive) == source.at(lambda optime: optime <= source.middle)
    finally:
        source.archive = whole


@pytest.mark.parametrize(
    ("point", "archive", "reason"),
    [
        (f"1:{SECOND + 59}:9999", True, "does not reach"),
        (_iso(SECOND + 90), True, "does not reach"),
        (_iso(SECOND + 40), False, "give --archive"),
        (f"1:{SECOND + 40}:9999", True, "is no entry"),
        (f"1:{SECOND - 100}:1", True, "can be taken back to"),
        ("yesterday", True, "neither"),
    ],
)
def test_what_cannot_be_reached_is_refused(source: Source, point: str, archive: bool, reason: str) -> None:
    with pytest.raises(BadValueError, match=reason):
        source.restored(point, archive=archive)


@pytest.mark.parametrize(
    ("walls", "end", "notes"),
    [
        ("90", 100, ""),
        ("90 later:100 later:100", 100, ""),
        ("90 91 92", 102, ""),
        ("90 later:100 92", 102, "1 ahead from 100"),
        ("90 90 later:100 90", 103, "1 ahead from 101"),
        ("90 91 later:100 later:100x4 95 later:100 96", 106, "6 ahead from 101"),
        ("90 later:100 89 88 later:100", 100, "2 behind"),
        ("90 91 80 92 later:200 later:139", 103, "left out from 103, 1 behind"),
        ("90 later:200 later:140", 100, ""),
        ("90 later:200 95 later:200 later:139x2 89", 102, "1 ahead from 100, left out from 102, 1 behind"),
    ],
)
def test_entries_go_on_from_the_last_one_that_was_written_before(
    monkeypatch: pytest.MonkeyPatch, walls: str, end: int, notes: str
) -> None:
    """walls: in seconds, the first of the entry in front of 100, which is the time asked for as well; xN: N at once."""
    rows = []
    for ts, wall in enumerate(walls.split(), 99):
        seconds, _, count = wall.removeprefix("later:").partition("x")
        rows.append((ts, int(seconds) * 1_000, int(count or 1)))
    monkeypatch.setattr(point_in_time, "_walls_from", lambda *_: iter(rows))
    nothing: Any = None
    point, note = point_in_time._by_wall_time(nothing, None, PointInTime(100, None, "it", 100_000), 100_000)
    assert point.end_ts == end
    kinds = {
        r"^(\d+) of the restored entries have a later wall time, the first is 0:(\d+) ": "{} ahead from {}",
        r"^the entries from 0:(\d+) \(seconds, increment\) on are left out": "left out from {}",
        r"^(\d+) of the later entries have a wall time before it ": "{} behind",
    }
    found = [
        text.format(*match.groups())
        for line in note.splitlines()
        for pattern, text in kinds.items()
        if (match := re.match(pattern, line))
    ]
    assert (", ".join(found), len(found)) == (notes, len(note.splitlines()))
