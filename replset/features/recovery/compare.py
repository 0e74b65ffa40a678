"""Compares lost writes with what the set has now: three versions of each document, read batch by batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from replset.auth.users import USERS_NS
from replset.features.recovery.live_set import LiveSet
from replset.features.recovery.lost_writes import LostCommand, LostDocument, LostKind, LostWrites
from replset.features.recovery.oplog_history import DocumentKey
from replset.features.recovery.policy import (
    MISSING,
    ConflictStatus,
    Policy,
    RestoreAction,
    Side,
    Versions,
    conflict_status,
    decide_command,
    field_rows,
    operators,
)
from replset.features.recovery.report import document_json, summary, value_json
from replset.ids import OPTIME_NULL, OpTime
from replset.replication.rollback_manifest import RollbackState

BATCH_DOCUMENTS = 500
BATCH_BYTES = 8 << 20
_OF_USER = "users are put back by hand: createUser, updateUser or dropUser"
_UNNAMED = "the set has no collection with this UUID: it was dropped, or this is another set"


def by_hand(row: LostDocument) -> str:
    """Why a document is neither compared nor put back; empty when it is."""
    if row.ns == USERS_NS:
        return _OF_USER
    if row.kind is not LostKind.WRITE:
        return ""
    database, _, name = row.ns.partition(".")
    if not name:
        return _UNNAMED
    own = database in ("admin", "config", "local") or name.startswith("system.")
    return "mongod itself keeps this collection" if own else ""


class Comparison:
    """The lost writes of one rollback, and the versions of their documents in one set.

    An export before a wipe may hold entries that the set has. Everything up to the newest of these is not lost. For
    mongod's files the common point is null until somebody gives it: then nothing is known of what the set wrote since.
    """

    def __init__(self, lost: LostWrites, live: LiveSet, *, with_entries: bool = False) -> None:
        """with_entries: look up the last oplog entry of every document, not only where the files hold too little."""
        self._lost = lost
        self._live = live
        is_export = lost.manifest.state is RollbackState.EXPORTED
        self._common = self._newest_common_entry() if is_export else lost.manifest.common_point
        self.commands = [row for row in lost.commands if row.optime > self._common]
        self.documents = lost.documents
        if lost.manifest.from_mongod:
            lost.name_collections({uuid: ns for ns, uuid in live.collections(every=True).items()})
            live.check_common_point(self._common)
        else:
            self.documents = [row for row in self.documents if row.last > self._common]
        self._looked_up: set[DocumentKey] = set()
        self._at_common: dict[DocumentKey, bytes | None] = {}
        self._wanted = frozenset(
            (row.ns, row.key)
            for row in self.documents
            if self._common != OPTIME_NULL and (with_entries or not self._before_is_known(row))
        )

    @property
    def total(self) -> int:
        """How many lost writes there are to compare."""
        return len(self.commands) + len(self.documents)

    def batches(self) -> Iterator[list[LostDocument]]:
        """The documents in their order, in batches of one namespace that are read at once."""
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
        """rows: of one namespace. ns: read the live documents there instead. is_gone: as if it were dropped.

        What is put back by hand is never read: `live` is None, whatever the set has.
        """
        namespace = rows[0].ns if ns is None else ns
        there = {} if is_gone or by_hand(rows[0]) else self._live.documents(namespace, [row.id for row in rows])
        if any((row.ns, row.key) in self._wanted for row in rows):
            self._live.scan(self._common, self._wanted)
            self._look_back()
        return [self._versions(row, there.get(row.key)) for row in rows]

    def _versions(self, row: LostDocument, live: bytes | None) -> Versions:
        kind = row.kind
        assert kind is not None  # only those are in `documents`
        written_since: bool | None = None
        last: OpTime | None = None
        if (row.ns, row.key) in self._wanted:
            last = self._live.last_entry((row.ns, row.key))
            written_since = True if last is not None else False if self._live.oplog_is_complete else None
        known = self._before_is_known(row)
        before = self._lost.read(row.before) if known else live if written_since is False else None
        if written_since and (row.ns, row.key) in self._at_common:
            known, before = True, self._at_common[row.ns, row.key]
        return Versions(kind, before, known, self._lost.read(row.lost), live, row.last, written_since, last)

    def _look_back(self) -> None:
        """Find the versions at the common point of the documents of mongod's files that the set wrote since."""
        if self._lost.manifest.from_mongod and self._live.oplog_is_complete:
            written = frozenset(key for key in self._wanted - self._looked_up if self._live.last_entry(key) is not None)
            if written:
                self._looked_up |= written
                self._at_common.update(self._live.versions_at(self._common, written))

    def _before_is_known(self, row: LostDocument) -> bool:
        return row.before_is_known and row.first > self._common

    def _newest_common_entry(self) -> OpTime:
        """Find it by bisection: a set that has an entry has all entries before it."""
        optimes = [entry.optime for entry in self._lost.entries()]
        low, high = 0, len(optimes)  # the set has at least `low` and at most `high` of the first entries
        while low < high:
            middle = (low + high + 1) // 2
            if self._live.has_entry(optimes[middle - 1]):
                low = middle
            else:
                high = middle - 1
        return optimes[low - 1] if low else self._lost.manifest.common_point


@dataclass(frozen=True, slots=True)
class Difference:
    """One lost write and how it compares with the set. versions: None for a command."""

    lost: LostDocument | LostCommand
    versions: Versions | None
    status: ConflictStatus

    def row(self) -> dict[str, Any]:
        """The row of `--json`."""
        if isinstance(self.lost, LostCommand):
            return {
                "ns": self.lost.ns,
                "class": "command",
                "command": self.lost.name,
                "options": value_json(self.lost.options),
                "lastEntry": str(self.lost.optime),
                "standing": self.status.value,
            }
        assert self.versions is not None
        return _document_row(self.lost, self.versions, self.status)


class RollbackDiff:
    """The lost writes of one rollback beside what the set has now. counts: by status, of the rows so far."""

    def __init__(self, lost: LostWrites, live: LiveSet) -> None:
        self._lost = lost
        self._live = live
        self._comparison = Comparison(lost, live, with_entries=True)
        self.total = self._comparison.total
        self.counts: Counter[str] = Counter({status.value: 0 for status in ConflictStatus})

    def head(self) -> dict[str, Any]:
        manifest = self._lost.manifest
        return {
            "id": manifest.id,
            "set": manifest.set_name or None,
            "state": manifest.state.value,
            "commonPoint": None if manifest.common_point == OPTIME_NULL else str(manifest.common_point),
            "primary": self._live.primary,
        }

    def run(self) -> Iterator[Difference]:
        """Compare one lost write after the other, commands first."""
        for found in self._differences():
            self.counts[found.status.value] += 1
            yield found

    def _differences(self) -> Iterator[Difference]:
        collections = self._live.collections() if self._comparison.commands else {}
        for command in self._comparison.commands:
            decision = decide_command(Policy.OVERWRITE, command, collections)
            status = ConflictStatus.CLEAN if decision.action is RestoreAction.LEAVE else decision.status
            yield Difference(command, None, status)
        for batch in self._comparison.batches():
            for row, versions in zip(batch, self._comparison.versions(batch), strict=True):
                status = ConflictStatus.CONFLICT if by_hand(row) else conflict_status(versions)
                yield Difference(row, versions, status)


def _document_row(row: LostDocument, versions: Versions, status: ConflictStatus) -> dict[str, Any]:
    fields = field_rows(versions)
    return summary(row) | {
        "standing": status.value,
        "liveLastEntry": None if versions.live_last is None else str(versions.live_last),
        "beforeKnown": versions.before_known or versions.before is not None,
        "before": document_json(versions.before),
        "lost": document_json(versions.lost),
        "live": document_json(versions.live),
        "lostChange": _change_between(versions.before, versions.lost),
        "liveChange": _change_between(versions.before, versions.live),
        "fields": [
            {
                "path": list(field.path),
                **{
                    name: value_json(value)
                    for name, value in (("before", field.before), ("lost", field.lost), ("live", field.live))
                    if value is not MISSING
                },
                "changedBy": field.side.value,
            }
            for field in fields
        ],
        "conflicts": [field.name for field in fields if field.side is Side.BOTH],
    }


def _change_between(before: bytes | None, after: bytes | None) -> Any:
    """`$set` and `$unset`. None when a version is missing, both are equal, or operators cannot express the change."""
    if before is None or after is None or before == after:
        return None
    change = operators(before, after)
    return None if change is None else value_json(change)
