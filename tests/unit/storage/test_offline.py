"""The offline readers on a dbpath, the member running or not, from another process."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import apsw
import psutil
import pytest

from replset.cli import offline
from replset.cli.offline import OplogInfo, database_path, open_oplog
from replset.errors import CappedPositionLostError, CorruptDataError, StorageError
from replset.ids import OPTIME_NULL
from replset.storage.disk import RealDisk
from replset.storage.store import Store, StoreOptions

from .conftest import WALL, Driver

READER = """
import sys
from replset.cli.offline import open_oplog
with open_oplog(sys.argv[1]) as oplog:
    print(oplog.newest(), len(list(oplog.rows())), sum(1 for row in oplog.rows(ns="db.c", op="i")))
"""


def read_from_another_process(place: Path) -> str:
    run = subprocess.run([sys.executable, "-c", READER, str(place)], capture_output=True, text=True, check=True)
    return run.stdout.strip()


def test_a_live_dbpath_is_read_from_another_process(driver: Driver) -> None:
    driver.apply(("create", "db.c"), ("put", "db.c", 1, "x"), ("put", "db.c", 1, "y"), ("put", "db.c", 2, "x"))
    assert read_from_another_process(driver.folder) == f"{driver.store.last_applied} 4 2"
    driver.apply(("put", "db.c", 3, "after the reader went"))
    assert read_from_another_process(driver.folder / "replset.db") == f"{driver.store.last_applied} 5 3"
    driver.reopen()
    assert driver.documents() == driver.state


@pytest.fixture
def closed(make_driver: Callable[..., Driver]) -> Driver:
    """Two terms, closed, so that this process may read it too."""
    driver = make_driver(options=StoreOptions(min_free_bytes=0, snapshot_history_s=0, oplog_max_bytes=2500))
    driver.apply(("create", "db.c"))
    for second in range(30):
        driver.wall_ms = WALL + second * 1000
        driver.term = 1 if second < 20 else 3
        driver.apply(("put", "db.c", second % 4, "x"))
    driver.store.close()
    return driver


def test_rows_go_by_pages_with_filters_and_a_limit(closed: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offline, "_PAGE", 4)
    optimes = [optime for optime, _ in closed.history[1:]]
    with open_oplog(closed.folder) as oplog:
        assert [row.optime for row in oplog.rows()] == optimes
        assert [row.optime for row in oplog.rows(optimes[9])] == optimes[10:]
        assert [row.optime for row in oplog.rows(optimes[9], limit=6)] == optimes[10:16]
        assert [row.optime for row in oplog.rows(limit=4)] == optimes[:4]
        assert [row.op for row in oplog.rows(op="c")] == ["c"]
        assert len(list(oplog.rows(ns="db.c", op="u"))) == 26
        assert list(oplog.rows(ns="db.none")) == []
        assert [row.optime for row in oplog.newest_rows(3)] == optimes[-3:]
        assert oplog.newest() == optimes[-1]


def test_info_shows_window_size_and_terms(closed: Driver) -> None:
    optimes = [optime for optime, _ in closed.history[1:]]
    with open_oplog(closed.folder) as oplog:
        rows = list(oplog.rows())
        info = oplog.info()
    assert info == OplogInfo(
        first=optimes[0],
        last=optimes[-1],
        first_wall_ms=WALL,
        last_wall_ms=WALL + 29_000,
        window_s=29,
        entries=31,
        bytes=sum(len(row.entry) for row in rows),
        file_bytes=(closed.folder / "replset.db").stat().st_size,
        trimmed_through=0,
        terms=((optimes[0], optimes[20]), (optimes[21], None)),
    )


def test_the_window_is_of_wall_times(make_driver: Callable[..., Driver]) -> None:
    """The optimes stay ahead by ten years after a clock that was ahead once."""
    driver = make_driver()
    for wall_ms in (0, 3650 * 86_400_000, 29_000):
        driver.wall_ms = WALL + wall_ms
        driver.apply(("create", f"db.c{wall_ms}"))
    assert driver.store.window_s() == 29
    driver.store.close()
    with open_oplog(driver.folder) as oplog:
        assert oplog.info().window_s == 29


def test_a_place_that_was_trimmed_away_is_lost(closed: Driver) -> None:
    store = closed.reopen()
    closed.commit()
    gone, kept = closed.history[1][0], store.oldest
    store.close()
    with open_oplog(closed.folder) as oplog:
        with pytest.raises(CappedPositionLostError):
            next(oplog.rows(gone))
        assert next(oplog.rows()).optime == kept
        assert oplog.info().trimmed_through < kept.ts


def test_an_empty_oplog(make_driver: Callable[..., Driver]) -> None:
    driver = make_driver()
    driver.store.close()
    with open_oplog(driver.folder) as oplog:
        assert (oplog.newest(), list(oplog.rows()), oplog.newest_rows(3)) == (OPTIME_NULL, [], [])
        assert (oplog.info().first, oplog.info().entries, oplog.info().window_s) == (OPTIME_NULL, 0, 0)


def test_places_without_a_members_data(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="does not exist"):
        database_path(tmp_path)
    with pytest.raises(StorageError, match="does not exist"):
        open_oplog(tmp_path / "none")
    other = tmp_path / "other.db"
    other.write_bytes(b"")
    with pytest.raises(CorruptDataError, match="no member's database"):
        open_oplog(other)
    other.write_bytes(b"no database" * 500)
    with pytest.raises(CorruptDataError, match="damaged"):
        open_oplog(other)


def test_a_database_that_only_a_start_can_repair_is_reported(tmp_path: Path) -> None:
    """The member died while its database was not in WAL mode yet: in its first start, or behind an initial sync."""
    alive, dead = tmp_path / "alive", tmp_path / "dead"
    disk = RealDisk()
    Store.open(disk, alive).close()
    disk.close()
    connection = apsw.Connection(str(alive / "replset.db"))
    connection.pragma("journal_mode", "delete")
    connection.pragma("cache_size", 1)
    for n in range(40):
        connection.execute("INSERT INTO meta (name, value) VALUES (?, zeroblob(1000))", (f"filler {n}",))
    connection.execute("BEGIN")
    connection.execute("UPDATE meta SET value = zeroblob(999)")  # more than the cache holds: written before the COMMIT
    shutil.copytree(alive, dead)
    connection.close(True)
    assert (dead / "replset.db-journal").stat().st_size > 0
    with pytest.raises(StorageError, match="died in the middle of a write; start it once"):
        open_oplog(dead)


@pytest.mark.parametrize("data", [b"", b"no database" * 500], ids=["empty", "damaged"])
def test_a_file_that_is_refused_is_not_kept_open(tmp_path: Path, data: bytes) -> None:
    other = tmp_path / "other.db"
    other.write_bytes(data)
    with pytest.raises(CorruptDataError) as refusal:  # its traceback keeps everything alive
        open_oplog(other)
    assert str(other) not in {file.path for file in psutil.Process().open_files()}
    del refusal
