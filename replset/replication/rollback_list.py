"""Which rollbacks of this member nobody has acknowledged yet: its files, looked at now and then.

A tool in another process may acknowledge one at any time, so the count is as old as the last look.
"""

from __future__ import annotations

import logging
import os

from replset.errors import CorruptDataError, ReplError
from replset.replication.ports import Workers
from replset.replication.rollback_manifest import (
    ACK_SUFFIX,
    FOLDER,
    Manifest,
    RollbackState,
    acknowledge,
    acknowledged,
    is_manifest_name,
)
from replset.storage.disk import Disk
from replset.storage.sqlite import storage_error

log = logging.getLogger("replset.rollback")


class RollbackList:
    """`unacknowledged`: of rollbacks and exports, damaged manifests included; an abandoned one took nothing away."""

    def __init__(self, disk: Disk, dbpath: str, workers: Workers) -> None:
        self._disk = disk
        self._folder = os.path.join(dbpath, FOLDER)
        self._workers = workers
        self._abandoned: set[str] = set()
        self._settled: set[str] = set()
        self.unacknowledged = 0

    async def refresh(self) -> int:
        """Look at the folder; the count, the last one known where the folder cannot be read."""
        try:
            self.unacknowledged = await self._workers.run(self._count)
        except ReplError as error:
            log.warning("the rollbacks of this member cannot be counted: %s", error.message)
        return self.unacknowledged

    async def acknowledge(self, rollback_id: str, *, wall_ms: int, by: str) -> bool:
        """Note that a person knows of it; False when that was noted before. StorageError when it cannot be written."""
        is_new = await self._workers.run(lambda: self._note(rollback_id, wall_ms, by))
        await self.refresh()
        return is_new

    def _note(self, rollback_id: str, wall_ms: int, by: str) -> bool:
        try:
            return acknowledge(self._disk, self._folder, rollback_id, wall_ms=wall_ms, by=by)
        except OSError as error:
            raise storage_error(error, self._folder) from error

    def _count(self) -> int:
        names = self._names()
        noted = {name.removesuffix(ACK_SUFFIX) for name in names if name.endswith(ACK_SUFFIX)}
        open_ones = [name for name in names if is_manifest_name(name) and name.removesuffix(".json") not in noted]
        return sum(not self._is_abandoned(name) for name in open_ones)

    def _names(self) -> list[str]:
        try:
            return self._disk.list_folder(self._folder) if self._disk.exists(self._folder) else []
        except OSError as error:
            raise storage_error(error, self._folder) from error

    def _is_abandoned(self, name: str) -> bool:
        """Read once it is settled: nothing changes it any more."""
        if name not in self._settled:
            try:
                manifest = self._read(name)
            except (CorruptDataError, OSError):
                return False
            if manifest.state is not RollbackState.PLANNED:
                self._settled.add(name)
            if manifest.state is RollbackState.ABANDONED:
                self._abandoned.add(name)
        return name in self._abandoned

    def _read(self, name: str) -> Manifest:
        return Manifest.parse(self._disk.read_file(os.path.join(self._folder, name)), name)

    async def listed(self) -> list[dict[str, object]]:
        """Every manifest as a document, oldest first, with `acknowledged`: when, or None.

        One that cannot be read shows its `error` instead. StorageError when the folder cannot be.
        """
        return await self._workers.run(self._list)

    def _list(self) -> list[dict[str, object]]:
        found: list[dict[str, object]] = []
        for name in filter(is_manifest_name, self._names()):
            stem = name.removesuffix(".json")
            try:
                row = self._read(name).document()
            except (CorruptDataError, OSError) as error:
                row = {"id": stem, "error": str(error)}
            found.append({**row, "acknowledged": acknowledged(self._folder, stem)})
        return sorted(found, key=_age)


def _age(row: dict[str, object]) -> tuple[str, int]:
    """By time, and within one second by number."""
    head, _, number = str(row["id"]).rpartition(".")
    return head, int(number) if number.isascii() and number.isdigit() else 0
