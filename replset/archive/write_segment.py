"""Writes the next segment from a member's oplog, or finds that it is there already."""

from __future__ import annotations

import apsw

from replset.archive.archive import Archive
from replset.archive.files import ArchiveError, Files
from replset.archive.ports import WriteJob, Written
from replset.archive.segments import ArchiveInfo, Position, Segment
from replset.ids import OPTIME_NULL
from replset.oplog_row import CHAIN_START, OplogRow, next_chain
from replset.storage import oplog
from replset.storage.txn import read_meta

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
        before, rows = _next_rows(connection, job)
    finally:
        connection.execute("ROLLBACK")
    if not rows:
        return Written(archive_id, None, is_gap=False)
    segment = archive.add(rows, before, member=job.member, written=job.written)
    return Written(archive_id, segment, is_gap=before is None and job.after is not None)


def _there_already(archive: Archive, connection: apsw.Connection, after: Position | None) -> Segment | None:
    """The segment that continues `after`; the newest of all where that is not known, after the record was lost.

    ArchiveError: it ends with an entry that this oplog does not have, so its history is not the set's.
    """
    names = archive.names()
    if after is None:
        found = archive.segment(names[-1]) if names else None
    else:
        segments = (archive.segment(name) for name in names if name.last_ts > after.optime.ts)
        found = next((segment for segment in segments if segment.before == after), None)
    if found is None:
        return None
    row = oplog.row_at(connection, found.end.optime)
    if row is None and found.end.optime.ts < _oldest_ts(connection):
        return found  # it cannot be compared any more: the next segment begins behind a gap
    if row is None or row.chain != found.chain:
        raise ArchiveError(
            f"{archive.files.address} ends with {found.last}, which is not in this member's oplog: after a forced"
            " reconfiguration or a restore the set needs a new archive"
        )
    if archive.files.size(found.file) != found.size:
        raise ArchiveError(f"{archive.files.address}/{found.file} is missing or cut off: see replset archive check")
    return found


def _next_rows(connection: apsw.Connection, job: WriteJob) -> tuple[Position | None, list[OplogRow]]:
    """The rows behind job.after, and the entry that the first of them follows; None where that is gone."""
    trimmed_through = read_meta(connection, "trimmed_through") or 0
    before = job.after
    if before is None:
        before = Position(OPTIME_NULL, CHAIN_START) if not trimmed_through else None
    elif before.optime.ts < int(str(trimmed_through)) and oplog.row_at(connection, before.optime) is None:
        before = None
    elif not _is_here(connection, before):
        raise ArchiveError(f"the archive goes up to {before.optime}, which is not in this member's history")
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


def _oldest_ts(connection: apsw.Connection) -> int:
    row = oplog.oldest_row(connection)
    return 0 if row is None else row.ts
