"""Makes versions of one document from its oplog entries, with what each changed field by field."""

from __future__ import annotations

from typing import Final

from replset.bson import Binary, DateTime, RawDocument, decode
from replset.features.recovery.lost_writes import SESSION_FIELDS
from replset.ids import OpTime
from replset.oplog_entry import COMMAND, DELETE, INSERT, NOOP, UPDATE, OplogEntry
from replset.query.change_events import update_description
from replset.query.diff import apply_update_bytes, compute_diff, is_diff
from replset.replication.rollback_manifest import Manifest
from replset.storage.snapshot import Snapshot

LARGE: Final = 256 << 10
"""Bytes of a document, or of an entry, that is not shown: only which fields changed."""


class Unknown:
    """What nothing that is left tells."""


UNKNOWN: Final = Unknown()
Known = bytes | Unknown | None
"""A document's bytes; None: there is none."""
Version = dict[str, object]


class Versions:
    """Goes through entries, oldest first. document: after the last one. size: bytes of what is shown so far."""

    def __init__(self, ns: str, key: bytes, document: Known = UNKNOWN) -> None:
        self.ns, self.key, self.document = ns, key, document
        self.size = 0

    def of(self, entry: OplogEntry, snapshot: Snapshot | None = None, *, lost: Manifest | None = None) -> list[Version]:
        """What the entry did to the document: more than one write where a transaction wrote it more than once.

        snapshot: its undo tells what the document was. lost: the rollback that took the entry away.
        """
        found: list[Version] = []
        written = 0
        for operation in entry.operations:
            if operation.op == COMMAND and self._removes_all(operation) and self.document is not None:
                found.append(self._version(operation, str(operation.o.first_key), {"document": None}))
                self.document = None
            elif operation.op not in (COMMAND, NOOP) and operation.ns == self.ns and operation.key() == self.key:
                found.append(self._written(operation, _undo(snapshot, operation, self.key, written)))
                written += 1
        for row in found:
            if entry.operation_places is not None:
                row["inTransaction"] = True
            if lost is not None:
                row["rolledBack"] = {"rollback": lost.id, "state": lost.state.value, "when": lost.when}
        return found

    def _removes_all(self, entry: OplogEntry) -> bool:
        name = entry.o.first_key
        database, _, collection = self.ns.partition(".")
        if name == "dropDatabase":
            return entry.database == database
        if name == "renameCollection":
            return self.ns in (entry.o.get(name), entry.o.get("to"))
        return name == "drop" and entry.database == database and entry.o.get(name) == collection

    def _written(self, entry: OplogEntry, versions: list[bytes | None]) -> Version:
        before: Known = versions[0] if len(versions) == 2 else self.document
        after: Known = versions[1] if len(versions) == 2 else _after(entry, before)
        operation = {INSERT: "insert", DELETE: "delete"}.get(entry.op, "update")
        more: Version = {}
        if entry.op == UPDATE:
            o = decode(entry.o.raw)
            diff: object = o["diff"] if is_diff(o) else None
            if diff is None:
                operation = "replace"
                known = isinstance(before, bytes)
                diff = compute_diff(decode(before), o) if isinstance(before, bytes) else {}
                more = {} if known else {"changesUnknown": True}
            is_large = len(entry.raw) > LARGE or (isinstance(before, bytes) and len(before) > LARGE)
            more["changes"] = _changes(diff, before, with_values=not is_large)
        if isinstance(after, bytes) and len(after) > LARGE:
            more["documentBytes"] = len(after)
        elif not isinstance(after, Unknown):
            more["document"] = None if after is None else RawDocument(after)
        self.document = after
        shown = len(entry.raw), len(after) if isinstance(after, bytes) else 0
        self.size += sum(size for size in shown if size <= LARGE)
        return self._version(entry, operation, more)

    def _version(self, entry: OplogEntry, operation: str, more: Version) -> Version:
        row: Version = {"optime": str(entry.optime), "wall": DateTime(entry.wall_ms), "operation": operation}
        if entry.ui is not None:
            row["collection"] = Binary(entry.ui, 4)
        row |= {name: value for name in SESSION_FIELDS if (value := entry.get(name)) is not None}
        return row | more


def _undo(snapshot: Snapshot | None, entry: OplogEntry, key: bytes, number: int) -> list[bytes | None]:
    """The document before and behind this write; empty where the undo does not reach back to it."""
    if snapshot is None or entry.ui is None or entry.optime.ts <= snapshot.pruned_through:
        return []
    coll = snapshot.collection_by_uuid(entry.ui)
    return [] if coll is None else snapshot.versions_at(coll, key, entry.optime.ts, number)


def _after(entry: OplogEntry, before: Known) -> Known:
    if entry.op == DELETE:
        return None
    if entry.op == INSERT or not is_diff(decode(entry.o.raw)):
        return entry.o.raw
    return apply_update_bytes(before, entry.o) if isinstance(before, bytes) else UNKNOWN


def _changes(diff: object, before: Known, *, with_values: bool) -> list[dict[str, object]]:
    """{field, from, to} of each field that changed. No `from`: there was no such field, or nobody knows it any more.
    `removed` and `newSize` say what else an update does.
    """
    told = update_description(diff)
    updated, removed, truncated = told["updatedFields"], told["removedFields"], told["truncatedArrays"]
    assert isinstance(updated, dict)
    assert isinstance(removed, list)
    assert isinstance(truncated, list)
    rows: list[dict[str, object]] = [{"field": name, "to": value} for name, value in updated.items()]
    rows += [{"field": name, "removed": True} for name in removed]
    rows += truncated
    if not with_values:
        return [{name: value for name, value in row.items() if name != "to"} for row in rows]
    old = decode(before) if isinstance(before, bytes) else {}
    return [{"field": row["field"], **_value_at(old, str(row["field"])), **row} for row in rows]


def _value_at(value: object, path: str) -> dict[str, object]:
    for name in path.split("."):
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return {}
    return {"from": value}


def concerns(version: Version, field: str) -> bool:
    """Whether the version may have changed this field: all but updates of others."""
    changes = version.get("changes")
    if not field or not isinstance(changes, list) or "changesUnknown" in version:
        return True
    names = (str(row["field"]) for row in changes)
    return any(f"{name}.".startswith(f"{field}.") or f"{field}.".startswith(f"{name}.") for name in names)


def place(version: Version) -> tuple[int, int]:
    """Sort key: by time, then by term."""
    at = OpTime.parse(str(version["optime"]))
    return at.ts, at.term
