"""An archive, with and without the oplog of a member behind it, is read as one oplog: each entry one time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from replset.features.archive.archive import Archive
from replset.ids import OPTIME_NULL
from replset.oplog_row import OplogRow
from replset.storage import oplog
from replset.storage.store import StoreOptions
from spark.members import open_members
from spark.oplog import EVERYTHING, START, OplogError, OplogRolledBackError, OplogTrimmedError, ReadPosition, Span
from tests.unit.spark.readers.conftest import archived, rows_of, stamps
from tests.unit.storage.conftest import Driver


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    made = Driver(tmp_path / "m1", StoreOptions(min_free_bytes=0))
    made.apply(("create", "db.c"), *(("put", "db.c", number, "x") for number in range(60)))
    yield made
    made.store.close()


def rows_in(driver: Driver) -> list[OplogRow]:
    return driver.store.query(lambda connection: oplog.rows_after(connection, 0, limit=1000, max_bytes=1 << 30))


def read(text: str, span: Span = EVERYTHING) -> list[tuple[object, ...]]:
    (found,) = open_members([text])
    return [tuple(row.values()) for row in rows_of(found.pin(), span)]


def test_archive_and_member_are_one_oplog(driver: Driver, tmp_path: Path) -> None:
    rows = rows_in(driver)
    joined = f"{archived(tmp_path / 'a', rows, (0, 20), (15, 33), (33, 40))}#{driver.folder}"
    assert read(joined) == [tuple(row) for row in rows]
    (found,) = open_members([joined])
    bounds = found.bounds()
    assert (bounds.oldest, bounds.newest, bounds.rows) == (rows[0].optime, rows[-1].optime, len(rows))
    parts = found.split(EVERYTHING, 5)
    assert [row for part in parts for row in read(joined, part)] == [tuple(row) for row in rows]
    assert found.name == "a"
    (behind_a_gap,) = open_members([archived(tmp_path / "gap" / "a", rows, (0, 20), (30, 40))])
    bounds = behind_a_gap.bounds()
    assert (bounds.oldest, bounds.trimmed_through) == (rows[30].optime, rows[29].ts)


def test_another_history_and_damage_are_refused(driver: Driver, tmp_path: Path) -> None:
    rows = rows_in(driver)
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
    rows = rows_in(driver)
    address = archived(tmp_path / "a", rows, (0, 20), (15, 33), (33, 40))

    def follow(text: str, limit: int, at: ReadPosition = START) -> list[int]:
        (found,) = open_members([text])
        batches = []
        while (end := found.follow(at, limit)) != at:
            within = found.between(at, end)
            batches.append([ts for part in within.split(EVERYTHING, 3) for ts in stamps(within, part)])
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
