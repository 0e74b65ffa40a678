"""Temporary files for what queries cannot keep in memory.

They lie in the dbpath, count against its free space, and are not synced. A member removes those of a crash when it
starts (`remove_spill_files`).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final

from replset.errors import OutOfDiskSpaceError, StorageError
from replset.storage import SPILL_PREFIX
from replset.storage.sqlite import storage_error
from replset.storage.store import Store

BLOCK_BYTES: Final = 256 << 10
_length = Struct("<I")
_numbers = itertools.count(1)


class SpillFile:
    """One temporary file of records: runs that are appended, and read again in any order."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._path = os.path.join(store.dbpath, f"{SPILL_PREFIX}{next(_numbers)}")
        self._size = 0
        self._is_made = self._is_closed = False

    def append(self, records: Iterable[bytes]) -> tuple[int, int]:
        """Write a run of records. Return its place. OutOfDiskSpaceError, StorageError."""
        start, block = self._size, bytearray()
        for record in records:
            block += _length.pack(len(record))
            block += record
            if len(block) >= BLOCK_BYTES:
                self._write(block)
        if block:
            self._write(block)
        return start, self._size

    def _write(self, block: bytearray) -> None:
        if not self._store.has_disk_space():
            raise OutOfDiskSpaceError(
                f"a query that does not fit in memory was refused: the disk of {self._store.dbpath} has less than"
                f" {self._store.options.min_free_bytes >> 20} MiB free"
            )
        self._is_made = True
        try:
            self._store.disk.write_file(self._path, (bytes(block),), append=True)
        except OSError as error:
            raise storage_error(error, self._path) from error
        if self._is_closed:
            # The cursor was closed while a thread went on writing.
            self._store.disk.remove(self._path)
            raise StorageError(f"{self._path}: the query has ended")
        self._size += len(block)
        block.clear()

    def read(self, place: tuple[int, int]) -> Iterator[bytes]:
        """Yield the records of a run."""
        position, end = place
        data, at = b"", 0
        while position < end or at < len(data):
            if len(data) - at < 4 or len(data) - at - 4 < _length.unpack_from(data, at)[0]:
                wanted = BLOCK_BYTES
                if len(data) - at >= 4:
                    wanted = max(wanted, 4 + _length.unpack_from(data, at)[0])
                more = self._read(position, min(wanted, end - position))
                data, at, position = data[at:] + more, 0, position + len(more)
                continue
            (length,) = _length.unpack_from(data, at)
            yield data[at + 4 : at + 4 + length]
            at += 4 + length

    def _read(self, position: int, length: int) -> bytes:
        try:
            found = self._store.disk.read_at(self._path, position, length)
        except OSError as error:
            raise storage_error(error, self._path) from error
        if not found:
            raise storage_error(OSError("a temporary file is too short"), self._path)
        return found

    def close(self) -> None:
        """Remove the file."""
        self._is_closed = True
        if self._is_made:
            self._store.disk.remove(self._path)
