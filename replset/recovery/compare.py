"""Lost documents beside what the set has now: three versions each, read batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from replset.ids import OpTime
from replset.recovery.live_set import Key
from replset.recovery.lost_writes import LostDocument, LostWrites
from replset.recovery.policy import Versions
from replset.replication.rollback_manifest import RollbackState

BATCH_DOCUMENTS = 500
BATCH_BYTES = 8 << 20


class LiveReading(Protocol):
    """What comparing needs of the set; `live.LiveSet` reads a real one."""

    def documents(self, ns: str, ids: Sequence[object]) -> dict[bytes, bytes]: ...

    def scan(self, since: OpTime, wanted: frozenset[Key]) -> None: ...

    def last_entry(self, key: Key) -> OpTime | None: ...

    @property
    def oplog_is_complete(self) -> bool: ...

    def has_entry(self, optime: OpTime) -> bool: ...


class Comparison:
    """The lost documents of one rollback against one set.

    An export before a wipe may hold entries that the set has: everything up to the newest of them is not lost.
    """

    def __init__(self, lost: LostWrites, live: LiveReading, *, with_entries: bool = False) -> None:
        """with_entries: look for the last entry of every document, not only where the files do not tell enough."""
        self.lost = lost
        self._live = live
        self.shared = self._shared() if lost.manifest.state is RollbackState.EXPORTED else lost.manifest.common_point
        """The newest entry that the set has in common with the member."""
        self.documents = [row for row in lost.documents if row.last > self.shared]
        self._wanted = frozenset(
            (row.ns, row.key) for row in self.documents if with_entries or not self._before_is_known(row)
        )

    def batches(self) -> Iterator[list[LostDocument]]:
        """The documents in their order, so many of one namespace as are read at a time."""
        batch: list[LostDocument] = []
        size = 0
        for row in self.documents:
            row_size = row.lost.size if row.lost is not None else 0
            full = len(batch) >= BATCH_DOCUMENTS or size + row_size > BATCH_BYTES
            if batch and (full or batch[0].ns != row.ns):
                yield batch
                batch, size = [], 0
            batch.append(row)
            size += row_size
        if batch:
            yield batch

    def versions(self, rows: Sequence[LostDocument], *, ns: str | None = None, is_gone: bool = False) -> list[Versions]:
        """rows: of one namespace. ns: look there instead. is_gone: as if the collection were not there."""
        place = rows[0].ns if ns is None else ns
        there = {} if is_gone else self._live.documents(place, [row.id for row in rows])
        if any((row.ns, row.key) in self._wanted for row in rows):
            self._live.scan(self.shared, self._wanted)
        return [self._versions(row, there.get(row.key)) for row in rows]

    def _versions(self, row: LostDocument, live: bytes | None) -> Versions:
        kind = row.kind
        assert kind is not None  # only those are in `documents`
        touched: bool | None = None
        last: OpTime | None = None
        if (row.ns, row.key) in self._wanted:
            last = self._live.last_entry((row.ns, row.key))
            touched = True if last is not None else False if self._live.oplog_is_complete else None
        known = self._before_is_known(row)
        before = self.lost.read(row.before) if known else live if touched is False else None
        return Versions(kind, before, known, self.lost.read(row.lost), live, row.last, touched, last)

    def _before_is_known(self, row: LostDocument) -> bool:
        return row.before_is_known and row.first > self.shared

    def _shared(self) -> OpTime:
        """By bisection: who has an entry has all before it."""
        optimes = [entry.optime for entry in self.lost.entries()]
        low, high = 0, len(optimes)  # so many of the first ones are there, at least and at most
        while low < high:
            middle = (low + high + 1) // 2
            if self._live.has_entry(optimes[middle - 1]):
                low = middle
            else:
                high = middle - 1
        return optimes[low - 1] if low else self.lost.manifest.common_point
