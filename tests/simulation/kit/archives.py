"""An archive that fails, is slow, and loses answers; at the end it must hold the committed history, whole and once."""

from __future__ import annotations

import asyncio
import random

from replset.errors import ReplError
from replset.features.archive.archive import Archive
from replset.features.archive.archive_lease import read_record
from replset.features.archive.files import ArchiveError
from replset.features.archive.jobs import WriteJob, Written
from replset.features.archive.segments import Position, Segment
from replset.features.archive.verify import verify_archive
from replset.features.archive.write_segment import write_segment
from replset.ids import OPTIME_NULL, Millis, OpTime
from replset.oplog_row import CHAIN_START, OplogRow, first_damaged
from replset.storage import oplog
from tests.simulation.kit.machine import Machine

LEASE_MS = Millis(4_000)
"""Shorter than the longest delay of a segment, so that two members write at once."""


class MemoryFiles:
    """The files of an archive. Until `rest`, one call in fifteen fails, some after they were done."""

    address = "memory"

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.content: dict[str, bytes] = {}
        self.fails = True

    def _may_fail(self) -> None:
        if self.fails and self._rng.random() < 0.03:
            raise ArchiveError("the network of the archive is gone")

    def read(self, name: str) -> bytes | None:
        self._may_fail()
        return self.content.get(name)

    def write(self, name: str, data: bytes) -> None:
        self._may_fail()
        self.content[name] = data
        self._may_fail()

    def names(self, folder: str) -> list[str]:
        self._may_fail()
        return sorted(name.rpartition("/")[2] for name in self.content if name.startswith(f"{folder}/"))

    def remove(self, name: str) -> None:
        self.content.pop(name, None)


class SimArchive:
    """The archive of a run, which all machines see."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.files = MemoryFiles(rng)
        self.reads = 0
        self.broken = ""
        """The machine that does not reach it."""

    def port(self, machine: Machine) -> ArchiveOfMachine:
        return ArchiveOfMachine(self, machine)

    def rest(self) -> None:
        self.files.fails = False

    def rows(self) -> list[OplogRow]:
        """All entries in order. ReplError: they are damaged, or there is a gap."""
        archive = Archive.open("it", self.files)
        return [row for page in archive.pages(Position(OPTIME_NULL, 0)) for row in page]

    def reaches(self, optime: OpTime) -> bool:
        try:
            names = Archive.open("it", self.files).names()
        except ReplError:  # none yet
            return False
        return bool(names) and names[-1].last_ts >= optime.ts

    def violation(self, machines: list[Machine]) -> str:
        """What is wrong with it, beside the oplogs of the members; empty: nothing."""
        try:
            rows = self.rows()
        except ReplError as error:
            return error.message
        if first_damaged(rows, CHAIN_START) is not None:
            return "the archive does not hold the history from its first entry on"
        verified = verify_archive(Archive.open("it", self.files))
        if verified.broken or verified.not_covered:
            return f"the archive does not verify: {verified.broken or verified.not_covered}"
        archived = {row.ts: row for row in rows}
        for machine in machines:
            running = machine.running
            if running is None or not machine.bears_data:
                continue
            if read_record(running.store, str(running.node.set_id)).gaps:
                return f"{machine.name} knows of gaps, and no oplog had to be trimmed"
            theirs = running.store.query(lambda c: oplog.rows_after(c, 0, limit=1 << 20, max_bytes=1 << 30))
            for row in theirs:
                if row.ts in archived and archived[row.ts] != row:
                    return f"the archive has another entry at {row.optime} than {machine.name}"
            if theirs and running.store.trimmed_through > rows[-1].ts:
                return f"{machine.name} trimmed entries that are not archived"
        return ""


class ArchiveOfMachine:
    """The ArchivePort of one member. What its machine's death cuts off is not done."""

    def __init__(self, archive: SimArchive, machine: Machine) -> None:
        self._archive = archive
        self._machine = machine

    async def write(self, job: WriteJob) -> Written:
        rng = self._archive.rng
        slow = self._archive.files.fails and rng.random() < 0.1
        await asyncio.sleep(rng.uniform(2, 8) if slow else rng.uniform(0.01, 0.2))
        running = self._machine.running
        if running is None or self._machine.name == self._archive.broken:
            raise ArchiveError("it is starting, or does not reach the archive")
        files = self._archive.files
        written = running.store.query(lambda connection: write_segment(files, connection, job))
        await asyncio.sleep(rng.uniform(0.0, 0.2))
        if files.fails and rng.random() < 0.05:
            raise ArchiveError("the answer is lost")
        return written

    async def read(self, after: OpTime, limit: int, max_bytes: int) -> list[OplogRow]:
        await asyncio.sleep(self._archive.rng.uniform(0.01, 0.2))
        self._archive.reads += 1
        return Archive.open("it", self._archive.files).rows_after(after, limit, max_bytes)

    async def oldest(self) -> Segment | None:
        return Archive.open("it", self._archive.files).oldest()

    async def close(self) -> None:
        return
