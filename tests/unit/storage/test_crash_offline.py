"""Reading the files of a member that died, without starting it."""

from __future__ import annotations

import shutil
from pathlib import Path

import apsw
import pytest

from replset.errors import StorageError
from replset.storage.disk import RealDisk
from replset.storage.offline import open_oplog
from replset.storage.store import Store


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
