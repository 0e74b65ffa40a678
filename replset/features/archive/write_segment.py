"""Writes the next segment from a member's oplog, or finds that it is there already."""

from __future__ import annotations

import logging

import apsw

from replset.errors import CorruptDataError
from replset.features.archive.archive import Archive
from replset.features.archive.files import ArchiveError, Files
from replset.features.archive.jobs import WriteJob, Written
from replset.features.archive.segments import ArchiveInfo, Position, Segment, SegmentName
from replset.ids import OPTIME_NULL
from replset.oplog_row import CHAIN_START, OplogRow, next_chain
from replset.storage import oplog
from replset.storage.txn import read_meta

log = logging.getLogger("replset.archive")

_MOST_ROWS = 200_000


def write_segment(files: Files, connection: apsw.Connection, job: WriteJob) -> Written:
    """Carry out the job on this oplog. A segment that is there already and continues `after` is taken as written: so a
    member that takes over does not write what the one before it wrote and could not report.
    """
    wanted = ArchiveInfo(job.set_name, job.set_id, job.archive_id or job.new_id)
    archive = Archive.of_set(files, wanted, job.archive_id)
    archive_id = archive.info.archive_id
    found = _there_already(archive, connection, job.after)
    if found is not None:
        return Written(archive_id, found, is_gap=False)
    connection.execute("BEGIN")
    try:
        before, rows = _next_rows(files, connection, job)
    finally:
        connection.execute("ROLLBACK")
    is_gap = before is None and job.after is not None
    # Another member may have what is trimmed here. A segment behind the gap would move the set's record over it; then
    # the others trim these entries too, and they are in no archive. So the others are waited for first (`Archiver`).
    if not rows or (is_gap and not job.may_leave_gap):
        return Written(archive_id, None, is_gap=False)
    segment = archive.add(rows, before, member=job.member, written=job.written)
    return Written(archive_id, segment, is_gap)


def _there_already(archive: Archive, connection: apsw.Connection, after: Position | None) -> Segment | None:
    """The segment that continues `after`; the newest of all where that is not known, after the record was lost.

    ArchiveError: it ends with an entry that this oplog does not have, so its history is not the set's.
    """
    names = archive.names()
    newer = reversed(names) if after is None else (name for name in names if name.last_ts > after.optime.ts)
    segments = (_whole(archive, connection, name, after) for name in newer)
    found = next((segment for segment in segments if segment is not None), None)
    if found is None:
        return None
    row = oplog.row_at(connection, found.end.optime)
    if row is None and found.end.optime.ts < _oldest_ts(connection):
        return found  # it cannot be compared any more: the next segment begins behind a gap
    if row is None or row.chain != found.chain:
        raise _other_history(archive.files, found.last)
    return found


def _whole(archive: Archive, connection: apsw.Connection, name: SegmentName, after: Position | None) -> Segment | None:
    """The segment of this name; None if it does not continue `after`, or is damaged and this oplog has all of it.

    Such a one is not a segment any more: its write broke off, or a disk lost it, and it is written again.
    """
    try:
        segment = archive.segment(name)
        if after is not None and segment.before != after:
            return None
        archive.rows(segment)
    except CorruptDataError as error:
        # Without its manifest a segment is gone. Only if this oplog still has its entries, it can be written again.
        if not all(_has_ts(connection, ts) for ts in name):
            raise
        log.warning("%s; it is written again", error.message)
        archive.files.remove(name.manifest)
        return None
    return segment


def _other_history(files: Files, last: object) -> ArchiveError:
    return ArchiveError(
        f"{files.address} goes up to {last}, which is not in this member's history, after a forced reconfiguration or a"
        " restore say. Keep it, since it holds what was lost; run replSetForgetArchive on the primary, and start the"
        " members with --archive and another address"
    )


def _next_rows(files: Files, connection: apsw.Connection, job: WriteJob) -> tuple[Position | None, list[OplogRow]]:
    """The rows behind job.after, and the entry that the first of them follows; None where that is gone."""
    trimmed_through = read_meta(connection, "trimmed_through") or 0
    before = job.after
    if before is None:
        before = Position(OPTIME_NULL, CHAIN_START) if not trimmed_through else None
    elif before.optime.ts < int(str(trimmed_through)) and oplog.row_at(connection, before.optime) is None:
        before = None
    elif not _is_here(connection, before):
        raise _other_history(files, before.optime)
    after_ts = 0 if before is None else before.optime.ts
    rows = oplog.rows_after(connection, after_ts, limit=_MOST_ROWS, max_bytes=job.max_bytes)
    rows = [row for row in rows if row.ts <= job.through.ts]
    return before, oplog.undamaged(connection, job.dbpath, rows)


def _is_here(connection: apsw.Connection, position: Position) -> bool:
    """Whether the oplog has this entry, or begins right behind it."""
    row = oplog.row_at(connection, position.optime)
    if row is not None:
        return row.chain == position.chain
    oldest = oplog.oldest_row(connection)
    if oldest is None or oldest.ts < position.optime.ts:
        return False
    return next_chain(position.chain, oldest.hash) == oldest.chain


def _has_ts(connection: apsw.Connection, ts: int) -> bool:
    row = oplog.row_at_or_before(connection, ts)
    return row is not None and row.ts == ts


def _oldest_ts(connection: apsw.Connection) -> int:
    row = oplog.oldest_row(connection)
    return 0 if row is None else row.ts
