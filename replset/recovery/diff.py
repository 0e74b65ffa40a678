"""Each lost write at the common point, as lost, and as live now, field by field."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from replset.recovery.compare import Comparison
from replset.recovery.live_set import LiveSet
from replset.recovery.lost_writes import LostDocument, LostWrites
from replset.recovery.policy import (
    MISSING,
    Action,
    ConflictStatus,
    LostChange,
    Policy,
    Side,
    Versions,
    conflict_status,
    decide_change,
    field_rows,
    lost_changes,
    operators,
    path_text,
)
from replset.recovery.report import about, document, plain


@dataclass(frozen=True, slots=True)
class Difference:
    """One lost write, and how the set stands to it. versions: None of a command."""

    lost: LostDocument | LostChange
    versions: Versions | None
    standing: ConflictStatus

    def row(self) -> dict[str, Any]:
        """For scripts."""
        if isinstance(self.lost, LostChange):
            return _change_row(self.lost, self.standing)
        assert self.versions is not None
        return _document_row(self.lost, self.versions, self.standing)


class RollbackDiff:
    """The lost writes of one rollback beside what the set holds now. counts: by standing, of the rows so far."""

    def __init__(self, lost: LostWrites, live: LiveSet) -> None:
        self._lost = lost
        self._live = live
        self._comparing = Comparison(lost, live, with_entries=True)
        self.counts: Counter[str] = Counter({standing.value: 0 for standing in ConflictStatus})

    def head(self) -> dict[str, Any]:
        manifest = self._lost.manifest
        return {
            "id": manifest.id,
            "set": manifest.set_name,
            "state": manifest.state.value,
            "primary": self._live.primary,
        }

    def run(self) -> Iterator[Difference]:
        """Commands first."""
        for found in self._found():
            self.counts[found.standing.value] += 1
            yield found

    def _found(self) -> Iterator[Difference]:
        changes = [change for change in lost_changes(self._lost) if change.optime > self._comparing.shared]
        collections = self._live.collections() if changes else {}
        for change in changes:
            decision = decide_change(Policy.OVERWRITE, change, collections)
            standing = ConflictStatus.CLEAN if decision.action is Action.LEAVE else decision.standing
            yield Difference(change, None, standing)
        for batch in self._comparing.batches():
            for row, versions in zip(batch, self._comparing.versions(batch), strict=True):
                yield Difference(row, versions, conflict_status(versions))


def _document_row(row: LostDocument, versions: Versions, standing: ConflictStatus) -> dict[str, Any]:
    fields = field_rows(versions)
    return about(row) | {
        "standing": standing.value,
        "liveLastEntry": None if versions.live_last is None else str(versions.live_last),
        "beforeKnown": versions.before_known or versions.before is not None,
        "before": document(versions.before),
        "lost": document(versions.lost),
        "live": document(versions.live),
        "lostChange": _change_between(versions.before, versions.lost),
        "liveChange": _change_between(versions.before, versions.live),
        "fields": [
            {
                "path": list(field.path),
                **{
                    name: plain(value)
                    for name, value in (("before", field.before), ("lost", field.lost), ("live", field.live))
                    if value is not MISSING
                },
                "changedBy": field.side.value,
            }
            for field in fields
        ],
        "conflicts": [path_text(field.path) for field in fields if field.side is Side.BOTH],
    }


def _change_between(before: bytes | None, after: bytes | None) -> Any:
    """`$set` and `$unset`; None where there are no two versions, they are the same, or it has no such form."""
    if before is None or after is None or before == after:
        return None
    change = operators(before, after)
    return None if change is None else plain(change)


def _change_row(change: LostChange, standing: ConflictStatus) -> dict[str, Any]:
    return {
        "ns": change.ns,
        "class": "command",
        "command": change.name,
        "options": plain(dict(change.options)),
        "lastEntry": str(change.optime),
        "standing": standing.value,
    }
