"""An archive, with and without the oplog of a member behind it, is read as one oplog: each entry one time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from replset.archive.archive import Archive
from replset.archive.files import FolderFiles
from replset.archive.segments import ArchiveInfo, Position
from replset.ids import OPTIME_NULL
from replset.oplog_row import CHAIN_START, OplogRow
from replset.storage import oplog
from replset.storage.store import StoreOptions
from spark.columns import COLUMNS
from spark.members import open_members
from spark.oplog import (
    EVERYTHING,
    START,
    EntryFilter,
    OplogError,
    OplogRolledBackError,
    OplogTrimmedError,
    ReadPosition,
    Span,
)
from tests.unit.storage.conftest import Driver

INFO = ArchiveInfo("rs0", "f" * 24, "a1")


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    made = Driver(tmp_path / "m1", StoreOptions(min_free_bytes=0))
    made.apply(("create", "db.c"), *(("put", "db.c", number, "x") for number in range(60)))
    yield made
    made.store.close()


def rows_of(driver: Driver) -> list[OplogRow]:
    return driver.store.query(lambda connection: oplog.rows_after(connection, 0, limit=1000, max_bytes=1 << 30))


def archived(folder: Path, rows: list[OplogRow], *ranges: tuple[int, int]) -> str:
    files = FolderFiles(str(folder))
    archive = Archive.of_set(files, INFO, "")
    for first, end in ranges:
        before = (
            Position(rows[first - 1].optime, rows[first - 1].chain) if first else Position(OPTIME_NULL, CHAIN_START)
        )
        archive.add(rows[first:end], before, member="m:1", written="")
    return str(folder)


def read(text: str, span: Span = EVERYTHING, only: EntryFilter | None = None) -> list[tuple[object, ...]]:
    (found,) = open_members([text])
    found = found.pin()
    batches = found.read(span, COLUMNS, *([only] if only else []))
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def test_archive_and_member_are_one_oplog(driver: Driver, tmp_path: Path) -> None:
    rows = rows_of(driver)
    alone = archived(tmp_path / "a", rows, (0, 20), (15, 33), (20, 30), (33, 40))
    assert read(alone) == [tuple(row) for row in rows[:40]]
    joined = f"{alone}#{driver.folder}"
    assert read(joined) == [tuple(row) for row in rows]
    (found,) = open_members([joined])
    bounds = found.bounds()
    assert (bounds.oldest, bounds.newest, bounds.rows) == (rows[0].optime, rows[-1].optime, len(rows))
    parts = found.split(EVERYTHING, 5)
    assert [row for part in parts for row in read(joined, part)] == [tuple(row) for row in rows]
    assert read(joined, only=EntryFilter(op=("c",))) == [tuple(rows[0])]
    assert found.name == "a"


def test_behind_a_gap(driver: Driver, tmp_path: Path) -> None:
    rows = rows_of(driver)
    (found,) = open_members([archived(tmp_path / "a", rows, (0, 20), (30, 40))])
    assert found.bounds().oldest == rows[30].optime
    assert found.bounds().trimmed_through == rows[29].ts


def test_another_history_and_damage_are_refused(driver: Driver, tmp_path: Path) -> None:
    rows = rows_of(driver)
    wrong = [row._replace(chain=row.chain ^ 1) for row in rows]
    with pytest.raises(OplogError, match="does not continue the archive"):
        read(f"{archived(tmp_path / 'a', wrong, (0, 20))}#{driver.folder}")
    address = archived(tmp_path / "b", rows, (0, 20))
    (file,) = Path(address).rglob("*.parquet")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(OplogError, match="its hash differs"):
        read(address)


def test_a_stream_goes_on_from_the_archive_to_the_member(driver: Driver, tmp_path: Path) -> None:
    """In batches of segments, and behind them in batches of entries; each entry one time."""
    rows = rows_of(driver)
    address = archived(tmp_path / "a", rows, (0, 20), (15, 33), (33, 40))

    def follow(text: str, limit: int, at: ReadPosition = START) -> list[int]:
        (found,) = open_members([text])
        batches = []
        while (end := found.follow(at, limit)) != at:
            within = found.between(at, end)
            parts = within.split(EVERYTHING, 3)
            batches.append(
                [row for part in parts for batch in within.read(part, ["ts"]) for row in batch["ts"].to_pylist()]
            )
            assert abs(within.count(EVERYTHING) - len(batches[-1])) < 3
            at = end
        assert [ts for batch in batches for ts in batch] == [
            row.ts for row in rows if at.optime.ts >= row.ts > begin.ts
        ]
        return [len(batch) for batch in batches]

    begin = OPTIME_NULL
    assert follow(address, 10) == [20, 13, 7]
    assert follow(f"{address}#{driver.folder}", 10) == [20, 13, 7 + 3, 10, 8]
    begin = rows[25].optime
    assert follow(f"{address}#{driver.folder}", 100, ReadPosition(begin, rows[25].chain)) == [35]
    for at in (25, 32):
        with pytest.raises(OplogRolledBackError, match="in another history"):
            follow(address, 10, ReadPosition(rows[at].optime, 1))
    for name in Archive.open(address).names()[:1]:
        assert list(Archive.open(address).remove_before(name.last_ts + 1)) == [name]
    with pytest.raises(OplogTrimmedError) as lost:
        follow(address, 10, ReadPosition(rows[3].optime, None))
    assert lost.value.through == rows[14].ts
    dump = tmp_path / "d.bson"
    dump.write_bytes(rows[0].entry)
    with pytest.raises(OplogError, match="does not grow"):
        follow(f"{address}#{dump}", 100, ReadPosition(rows[20].optime, None))
