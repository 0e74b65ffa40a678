"""Lists which writes a rollback undid, entry by entry and page by page, and which session wrote each of them.

An entry that a session wrote has `lsid`, and `txnNumber` and `stmtId` if the client numbered its writes.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from replset.bson import DateTime
from replset.errors import CorruptDataError
from replset.oplog_entry import COMMAND, NOOP, UPDATE, OplogEntry
from replset.recovery.lost_writes import read_bson, session_id
from replset.replication.rollback_manifest import FileKind, Manifest

SESSION_FIELDS = ("lsid", "txnNumber", "stmtId")


class LostPage(NamedTuple):
    """rows: as `entry_row` makes them. next: the byte at which the next page begins, None at the end."""

    rows: list[dict[str, object]]
    next: int | None


def lost_entries(folder: Path, manifest: Manifest, *, session: str = "", after: int = 0, limit: int) -> LostPage:
    """Up to `limit` lost entries from the byte `after` of the oplog file on, without no-ops, in the oplog's order.

    A transaction counts as many as it has operations, and is never cut: the last one may pass the limit.

    session: only those of the session with this id (a UUID, with or without dashes). CorruptDataError when the file is
    damaged or no page ended at `after`; OSError when the file cannot be read.
    """
    wanted = session.replace("-", "").lower()
    rows: list[dict[str, object]] = []
    file = next((file for file in manifest.files if file.kind is FileKind.OPLOG), None)
    if file is None:
        raise CorruptDataError(f"{manifest.id} names no oplog file")
    with (folder / file.name).open("rb") as opened:
        opened.seek(after)
        for offset, raw in read_bson(opened, file.name):
            if len(rows) >= limit:
                return LostPage(rows, offset)
            entry = OplogEntry(raw)
            if entry.op != NOOP and (not wanted or session_id(entry) == wanted):
                rows += map(entry_row, entry.operations)
    return LostPage(rows, None)


def entry_row(entry: OplogEntry) -> dict[str, object]:
    """Optime, wall clock, operation, namespace, the document's `_id` or the command, and the session's fields."""
    row: dict[str, object] = {
        "optime": str(entry.optime),
        "wall": DateTime(entry.wall_ms),
        "op": entry.op,
        "ns": entry.ns,
    }
    if entry.op == COMMAND:
        row["command"] = entry.o.first_key or ""
    else:
        about = entry.o2 if entry.op == UPDATE else entry.o
        row["_id"] = None if about is None else about.get("_id")
    return row | {name: value for name in SESSION_FIELDS if (value := entry.get(name)) is not None}
