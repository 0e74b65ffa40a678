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
from spark.oplog import EVERYTHING, EntryFilter, OplogError, Span
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
