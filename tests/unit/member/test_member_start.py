"""A member that cannot start leaves nothing open: the next one finds a folder that is free and whole.

Each start removes the temporary files of queries.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from replset.ids import HostPort
from replset.member.disk.member_files import find_torn_page
from replset.member.member import RunningMember
from replset.member.options import MemberOptions
from replset.member.outside import MemberPorts
from replset.member.process.machine import RealClock, RealSyncThread, RealWorkers
from replset.replication.ports import Listener
from replset.storage.disk import RealDisk
from replset.storage.store import Store, StoreOptions, lock_dbpath


class TakenPort:
    async def serve(self, address: HostPort, factory: Callable[[], asyncio.BaseProtocol]) -> Listener:
        raise OSError(98, "Address already in use")

    async def connect(self, address: HostPort, factory: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        raise ConnectionRefusedError


def test_a_start_that_fails_closes_what_it_opened(tmp_path: Path) -> None:
    workers = RealWorkers()
    (tmp_path / "spill-3").write_bytes(b"of a query that a crash ended")

    async def main() -> None:
        options = MemberOptions("rs0", tmp_path, min_free_mb=0)
        ports = MemberPorts(
            TakenPort(), RealDisk(), RealClock(), workers, random.Random(1), random.Random(2), RealSyncThread()
        )
        with pytest.raises(OSError, match="in use"):
            await RunningMember.start(options, ports)

    try:
        asyncio.run(main())
    finally:
        workers.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["member.db", "replset.db", "replset.lock"]
    lock_dbpath(RealDisk(), tmp_path).release()


def test_files_that_were_copied_while_a_member_wrote_are_found_torn(tmp_path: Path) -> None:
    disk = RealDisk()
    store = Store.open(disk, str(tmp_path), StoreOptions(min_free_bytes=0))
    store.close()
    assert find_torn_page(disk, store) == ""
    with open(store.path, "r+b") as file:
        file.seek(-4096, os.SEEK_END)
        file.write(b"of another moment")
    assert store.path in find_torn_page(disk, store)
