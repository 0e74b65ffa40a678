"""Brings a restored database to a point in time: back by its own undo, or on by the entries of an archive."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from replset.errors import BadValueError, CorruptDataError
from replset.features.archive.archive import Archive
from replset.features.archive.segments import Position
from replset.features.backup.backup_folder import SPARE_BYTES
from replset.ids import Millis, OpTime, pack_ts
from replset.oplog_row import OplogRow
from replset.replication.applier import (
    EvaluatedUpdate,
    LargeUpdateError,
    UnfinishedBuildError,
    apply_batch,
    evaluate_large,
)
from replset.storage import oplog
from replset.storage.disk import Disk
from replset.storage.index_build import fill_slice
from replset.storage.retention import remove_old_data
from replset.storage.store import Store, StoreOptions
from replset.storage.txn import write_meta
from replset.storage.undo import clear_rollback_done, undo_step

SKEW_MS = 60_000
"""The clocks of two primaries may differ by so much without a word."""
_STEM = "restore"
"""The name under which the undo goes back; no manifest has it."""


@dataclass(frozen=True, slots=True)
class PointInTime:
    """All entries with a ts below end_ts. optime: the last of them, where it was named. text: as it was given.

    wall_ms: of a time. No entry's optime is behind its wall time, so what is below end_ts was written before; but after
    a clock that was ahead, more may have been: see `_by_wall_time`.
    """

    end_ts: int
    optime: OpTime | None
    text: str
    wall_ms: int | None = None

    @classmethod
    def parse(cls, text: str) -> PointInTime:
        """Read TERM:SECONDS:INC, that entry included, or a UTC time such as 2026-10-03T12:00:00Z, before which all is
        restored. BadValueError.
        """
        try:
            optime = OpTime.parse(text)
            return cls(optime.ts + 1, optime, text)
        except ValueError:
            pass
        try:
            moment = datetime.fromisoformat(text)
            seconds = int(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp())
            return cls(pack_ts(seconds, 0), None, text, seconds * 1000)
        except (ValueError, OverflowError) as error:
            raise BadValueError(
                f"{text!r} is neither TERM:SECONDS:INC nor a time such as 2026-10-03T12:00:00Z"
            ) from error


@dataclass(frozen=True, slots=True)
class Restored:
    """newest: the last entry. hashes: of the documents of each database, as dbHash gives them. note: what is to be said
    of the clocks by which the entries were written.
    """

    newest: OpTime
    documents: int
    hashes: dict[str, str]
    note: str = ""


def bring_to(
    disk: Disk, dbpath: str, archive: Archive | None, point: PointInTime | None, on_entries: Callable[[int], None]
) -> Restored:
    """Bring the database in `dbpath`, which no member has, to the point; None: to the archive's end.

    on_entries: called with each number of entries applied. BadValueError: neither the backup nor the archive has that
    point. CappedPositionLostError, CorruptDataError: of the archive.
    """
    options = StoreOptions(min_free_bytes=SPARE_BYTES, snapshot_history_s=0)
    note = ""
    with closing(Store.open(disk, dbpath, options)) as store:
        if point is not None and point.wall_ms is not None:
            point, note = _by_wall_time(store, archive, point, point.wall_ms)
        if point is not None and point.end_ts <= store.last_applied.ts:
            _go_back(store, point)
        elif point is not None and point.optime == store.last_applied:
            pass
        elif archive is not None:
            _go_on(store, archive, point, on_entries)
        elif point is not None:
            raise BadValueError(f"the backup ends at {store.last_applied}, before {point.text}: give --archive")
        _check_reached(store, point)
        return replace(_hashes(store), note=note)


@dataclass(slots=True)
class _Later:
    """Entries behind the end with a wall time that is not before the point: the first, and the lowest of the others."""

    count: int = 0
    first_ts: int = 0
    first_ms: int = 0
    lowest_ms: int | None = None

    def add(self, ts: int, written_ms: int, count: int) -> None:
        self.count += count
        if self.count == count:
            self.first_ts, self.first_ms = ts, written_ms
        else:
            self.lowest_ms = written_ms if self.lowest_ms is None else min(self.lowest_ms, written_ms)

    @property
    def is_of_a_clock_ahead(self) -> bool:
        return self.lowest_ms is not None and self.first_ms > self.lowest_ms + SKEW_MS


def _by_wall_time(store: Store, archive: Archive | None, point: PointInTime, wall_ms: int) -> tuple[PointInTime, str]:
    """Return the point with the end that the wall times of entries give, and what is to be said of it.

    A clock that was ahead leaves the optimes ahead of it until the time gets there, so entries beyond the point's
    optime may have been written before it. They are those whose wall time goes on from the last entry in front. An
    earlier one is of a clock that was behind.
    """
    newest_ms, end_ts, ahead, ahead_from, behind = 0, point.end_ts, 0, 0, 0
    later = _Later()
    for ts, written_ms, count in _walls_from(store, archive, point.end_ts, wall_ms):
        if ts < point.end_ts:
            newest_ms = written_ms
        elif written_ms >= wall_ms:
            later.add(ts, written_ms, count)
        elif written_ms >= newest_ms:
            newest_ms, end_ts = written_ms, ts + 1
            ahead, ahead_from = ahead + later.count, ahead_from or later.first_ts
            later = _Later()
        else:
            behind += 1
    notes = []
    if ahead:
        notes.append(
            f"{ahead} of the restored entries have a later wall time, the first is {_shown(ahead_from)}: a clock was"
            " ahead. To end before it, give --at an optime"
        )
    if later.is_of_a_clock_ahead:
        notes.append(
            f"the entries from {_shown(later.first_ts)} on are left out, and may be older than their wall time says: a"
            " clock was ahead. To restore them, give --at an optime"
        )
    if behind:
        notes.append(
            f"{behind} of the later entries have a wall time before {point.text} that does not go on from what is in"
            " front of them: a clock was behind. To restore them, give --at an optime"
        )
    return replace(point, end_ts=end_ts), "\n".join(notes)


def _walls_from(store: Store, archive: Archive | None, end_ts: int, wall_ms: int) -> Iterator[tuple[int, int, int]]:
    """The ts and the wall time of the last entry below end_ts and of all behind it, in the database and the archive,
    and how many entries that stands for.

    Segments whose entries were all written later stand together, behind one entry that was too, and are not read.
    """
    before = store.query(lambda connection: oplog.row_at_or_before(connection, end_ts - 1))
    if before is not None:
        yield before.ts, before.wall_ms, 1
    done, is_later = end_ts - 1, False
    while page := store.query(partial(oplog.walls_behind, ts=done)):
        for done, written_ms in page:
            is_later = written_ms >= wall_ms
            yield done, written_ms, 1
    if archive is None:
        return
    done = store.last_applied.ts
    names = [name for name in archive.names() if name.last_ts > done]
    first = max((number for number, name in enumerate(names) if name.first_ts < end_ts), default=0)
    for name in names[first:]:
        segment = archive.segment(name)
        lowest_ms = segment.lowest_wall_ms
        if is_later and name.first_ts > done and lowest_ms is not None and lowest_ms >= wall_ms:
            done = name.last_ts
            yield name.first_ts, lowest_ms, segment.rows
            continue
        for row in archive.rows(segment):
            if row.ts > done:
                done, is_later = row.ts, row.wall_ms >= wall_ms
                yield row.ts, row.wall_ms, 1


def _go_back(store: Store, point: PointInTime) -> None:
    target = store.query(lambda connection: oplog.row_at_or_before(connection, point.end_ts - 1))
    # As in `undo._check`: entries could go, and their documents would stay as they are.
    if target is None or target.ts < store.pruned_through:
        reach = _shown(max(store.pruned_through, store.oldest.ts))
        raise BadValueError(
            f"the backup can be taken back to {reach}, not to {point.text}: take an older one, and --archive"
        )
    while undo_step(store, target.optime, stem=_STEM):
        pass
    clear_rollback_done(store, _STEM)
    with store.maintenance() as txn:  # the backup's own commit point may be one of the entries that are gone
        write_meta(txn.connection, "commit_point", str(target.optime))
    store.reload()


def _go_on(store: Store, archive: Archive, point: PointInTime | None, on_entries: Callable[[int], None]) -> None:
    position = Position(store.last_applied, store.chain)
    if point is not None:
        newest = archive.newest_ts
        if newest < point.end_ts - (1 if point.optime is not None else 0):
            raise BadValueError(f"the archive does not reach {point.text}: its newest entry is {_shown(newest)}")
    for page in archive.pages(position):
        rows = [row for row in page if point is None or row.ts < point.end_ts]
        _apply(store, rows)
        on_entries(len(rows))
        if len(rows) < len(page):
            return


def _apply(store: Store, rows: list[OplogRow]) -> None:
    entries = [row.entry for row in rows]
    done = 0
    evaluated: list[EvaluatedUpdate] = []
    while done < len(entries):
        try:
            done += apply_batch(store, entries, done, len(entries), lambda: False, evaluated)
            evaluated = []
        except LargeUpdateError as large:
            evaluated += evaluate_large(store, large)
        except UnfinishedBuildError as unfinished:
            more = True
            while more:
                with store.group() as txn:
                    more = fill_slice(txn, unfinished.coll, unfinished.build, lambda: False)
    if not rows:
        return
    if store.chain != rows[-1].chain:
        raise CorruptDataError(f"the entries up to {rows[-1].optime} do not give the archive's hash chain")
    store.set_commit_point(store.last_applied)
    while remove_old_data(store, Millis(0)):  # there is nothing that stays by its age
        pass
    if store.wal.needs_checkpoint:
        store.wal.checkpoint()
    if store.wal.needs_last_pass:
        store.wal.last_pass()


def _check_reached(store: Store, point: PointInTime | None) -> None:
    if point is not None and point.optime is not None and store.last_applied != point.optime:
        raise BadValueError(f"{point.text} is no entry of this history; the one before it is {store.last_applied}")


def _shown(ts: int) -> str:
    return f"{OpTime(0, ts).seconds}:{OpTime(0, ts).increment} (seconds, increment)"


def _hashes(store: Store) -> Restored:
    """Return dbHash's hashes: MD5 of a collection's documents by `_id`, and of a database's hashes by their names."""
    whole: dict[str, hashlib._Hash] = {}
    documents = 0
    for coll in store.collections():
        if coll.view_on is not None:
            continue
        hashed = hashlib.md5(usedforsecurity=False)
        with store.read() as snapshot:
            for _, document in snapshot.scan(coll):
                hashed.update(document)
                documents += 1
        database = whole.setdefault(coll.database, hashlib.md5(usedforsecurity=False))
        database.update(hashed.hexdigest().encode())
    return Restored(store.last_applied, documents, {name: hashed.hexdigest() for name, hashed in whole.items()})
