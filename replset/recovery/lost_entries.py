"""Which writes a rollback took, entry by entry, and whose they were: for applications that want to know of their own.

An entry that a session wrote holds `lsid`, and `txnNumber` and `stmtId` where the client numbered its writes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from replset.bson import DateTime
from replset.errors import CorruptDataError
from replset.oplog_entry import COMMAND, NOOP, UPDATE, OplogEntry
from replset.recovery.lost_writes import read_bson
from replset.replication.rollback_manifest import FileKind, Manifest

SESSION_FIELDS = ("lsid", "txnNumber", "stmtId")


class LostPage(NamedTuple):
    """rows: as `row_of` gives them. next: where the next page begins, None at the end."""

    rows: list[dict[str, object]]
    next: int | None


def lost_entries(
    folder: str | os.PathLike[str], manifest: Manifest, *, session: str = "", after: int = 0, limit: int
) -> LostPage:
    """Up to `limit` lost entries from the byte `after` of the oplog file on, no-ops left out, in the oplog's order.

    session: only those of the session with this id (a UUID, dashes or not). CorruptDataError when the file is damaged
    or `after` is no place where a page ended; OSError when it cannot be read.
    """
    wanted = session.replace("-", "").lower()
    rows: list[dict[str, object]] = []
    file = next((file for file in manifest.files if file.kind is FileKind.OPLOG), None)
    if file is None:
        raise CorruptDataError(f"{manifest.id} names no oplog file")
    with open(os.path.join(folder, file.name), "rb") as opened:
        opened.seek(after)
        for offset, raw in read_bson(opened, file.name):
            if len(rows) == limit:
                return LostPage(rows, offset)
            entry = OplogEntry(raw)
            if entry.op != NOOP and (not wanted or session_of(entry) == wanted):
                rows.append(row_of(entry))
    return LostPage(rows, None)


def session_of(entry: OplogEntry) -> str:
    """The id of the session that wrote it, 32 hex digits; empty where there was none."""
    lsid = entry.get("lsid")
    identifier = lsid.get("id") if isinstance(lsid, Mapping) else None
    return identifier.hex() if isinstance(identifier, bytes) else ""


def row_of(entry: OplogEntry) -> dict[str, object]:
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
