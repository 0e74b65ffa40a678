"""Sorts more documents than fit in memory: in runs, which are written to a temporary file and merged."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from operator import itemgetter
from struct import Struct
from typing import Final, Protocol, TypeAlias

from replset.errors import ErrorCode, ReplError
from replset.query.sort import sorted_pairs

MAX_BYTES: Final = 100 << 20
"""What a stage or a sort keeps in memory; beyond it writes to the disk, or fails without allowDiskUse."""
PAIR_BYTES: Final = 130
"""What Python adds to a document and its key."""
_FREED: Final = 64
_length = Struct("<I")
_key_of: Callable[[tuple[bytes, bytes]], bytes] = itemgetter(0)
Place: TypeAlias = tuple[int, int]


class SpillFile(Protocol):
    """A temporary file of records."""

    def append(self, records: Iterable[bytes]) -> Place:
        """Write a run of records. Return its place. OutOfDiskSpaceError."""
        ...

    def read(self, place: Place) -> Iterator[bytes]:
        """Yield the records of a run."""
        ...

    def close(self) -> None:
        """Remove the file."""
        ...


Spill: TypeAlias = Callable[[], SpillFile]
"""Opens a temporary file."""


def open_spill(spill: Spill | None, what: str) -> SpillFile:
    """Open a temporary file. 292 without one: allowDiskUse is false."""
    if spill is None:
        raise ReplError(
            f"{what} exceeded memory limit of {MAX_BYTES} bytes, but did not opt in to external sorting."
            " Pass allowDiskUse:true to opt in.",
            code=ErrorCode.SORT_EXCEEDED_MEMORY_LIMIT,
        )
    return spill()


class Sorter:
    """Keeps documents with the keys of a sort. The sort is stable.

    limit: how many documents are wanted, 0 for all. spill: None without allowDiskUse.
    """

    def __init__(self, spill: Spill | None, what: str, limit: int = 0) -> None:
        self._spill = spill
        self._what = what
        self._limit = limit
        self._pairs: list[tuple[bytes, bytes]] = []
        self._bound: bytes | None = None
        """The key of the last document within the limit, as of the last cut."""
        self._file: SpillFile | None = None
        self._runs: list[Place] = []
        self.memory_bytes = 0
        self.spilled_runs = 0

    def is_beyond(self, key: bytes) -> bool:
        """Whether a document with this key that comes now is behind the limit."""
        return self._bound is not None and key >= self._bound

    def add(self, key: bytes, raw: bytes) -> None:
        """Keep a document. 292 over the limit without allowDiskUse; OutOfDiskSpaceError."""
        self._pairs.append((key, raw))
        self.memory_bytes += len(key) + len(raw) + PAIR_BYTES
        self._free()

    def add_all(self, pairs: list[tuple[bytes, bytes]]) -> None:
        """Keep those documents that are not behind the limit, as `add`."""
        if self._limit and (self._bound is not None or len(self._pairs) + len(pairs) > self._limit):
            for key, raw in pairs:
                if not self.is_beyond(key):
                    self.add(key, raw)
            return
        self._pairs += pairs
        self.memory_bytes += _bytes_of(pairs)
        self._free()

    def is_long_work(self, pairs: list[tuple[bytes, bytes]]) -> bool:
        """Whether `add_all` sorts what is kept, or writes it to the disk."""
        is_cut = self._limit and len(self._pairs) + len(pairs) > 2 * self._limit + 1000
        return bool(is_cut) or self.memory_bytes + _bytes_of(pairs) > MAX_BYTES

    def _free(self) -> None:
        """Drop what is behind the limit now and then, and write to the disk what is too much for the memory."""
        if self._limit and len(self._pairs) > 2 * self._limit + 1000:
            self._cut()
        if self.memory_bytes > MAX_BYTES:
            if self._limit and len(self._pairs) > self._limit:
                self._cut()
            # A cut must free so much that the next one is far.
            if self.memory_bytes > MAX_BYTES * 3 // 4:
                self._write_run()

    def _cut(self) -> None:
        """Drop the documents behind the limit."""
        self._pairs = list(sorted_pairs(self._pairs))[: self._limit]
        last = self._pairs[-1][0]
        self._bound = last if self._bound is None else min(self._bound, last)
        self.memory_bytes = _bytes_of(self._pairs)

    def _write_run(self) -> None:
        file = self._file = self._file or open_spill(self._spill, self._what)
        pairs = sorted_pairs(self._pairs)
        self._runs.append(file.append(_length.pack(len(key)) + key + raw for key, raw in pairs))
        self._pairs, self.memory_bytes = [], 0
        self.spilled_runs += 1

    def rows(self) -> Iterator[bytes]:
        """Yield the documents in order, once."""
        return map(itemgetter(1), self.pairs())

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the keys and documents in order, once."""
        runs = [self._pairs_of(place) for place in self._runs]
        ordered = heapq.merge(*runs, self._kept_pairs(), key=_key_of) if runs else self._kept_pairs()
        yield from islice(ordered, self._limit or None)
        self.close()

    def _kept_pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the pairs in memory in order, and free some at a time."""
        self._pairs = list(sorted_pairs(self._pairs))
        self._pairs.reverse()
        while some := self._pairs[: -_FREED - 1 : -1]:
            del self._pairs[-_FREED:]
            yield from some
            self.memory_bytes -= _bytes_of(some)

    def _pairs_of(self, place: Place) -> Iterator[tuple[bytes, bytes]]:
        if self._file is not None:
            for record in self._file.read(place):
                end = 4 + _length.unpack_from(record)[0]
                yield record[4:end], record[end:]

    def close(self) -> None:
        """Free the memory, and remove the file."""
        self._pairs, self._runs, self.memory_bytes = [], [], 0
        if self._file is not None:
            self._file.close()
            self._file = None


def _bytes_of(pairs: list[tuple[bytes, bytes]]) -> int:
    return sum([len(key) + len(raw) for key, raw in pairs]) + PAIR_BYTES * len(pairs)
