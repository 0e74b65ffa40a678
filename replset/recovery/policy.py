"""What to do about a lost write: a document at the common point, as it was lost, as it is live now, and a policy.

Pure: versions in, a decision out. Reading and writing the set is the caller's. A decision is the same however often
it is made: what was put back is seen as there the next time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from replset.bson import decode, encode
from replset.ids import OpTime
from replset.query.order import identical
from replset.recovery.lost_writes import LostKind, LostWrites

Doc = Mapping[str, object]


class Policy(Enum):
    """What becomes of a lost write whose document was changed since. One whose document was not is always put back."""

    SKIP = "skip"
    OVERWRITE = "overwrite"
    KEEP_NEWER = "keep-newer"
    MERGE = "merge"
    TO_COLLECTION = "to-collection"


class ConflictStatus(Enum):
    """How the live document stands to the lost one."""

    THERE = "there"  # as it was lost, or with every field that was lost
    CLEAN = "clean"  # as it was at the common point: nobody wrote it since
    CONFLICT = "conflict"


class Action(Enum):
    NOTHING = "nothing"  # it is there
    PUT = "put"
    LEAVE = "leave"  # stays undone


class _Missing(Enum):
    MISSING = "missing"


MISSING: Final = _Missing.MISSING
"""A field that a document does not have."""


@dataclass(frozen=True, slots=True)
class Versions:
    """One document three times, as bytes; None where it was not there.

    before_known: whether `before` is on record (for a lost delete it is not). touched: whether the set wrote the
    document behind the common point; None when its oplog does not reach back so far, or nobody looked.
    lost_last, live_last: the document's last entry there; live_last None when that is not known.
    """

    kind: LostKind
    before: bytes | None
    before_known: bool
    lost: bytes | None
    live: bytes | None
    lost_last: OpTime
    touched: bool | None = None
    live_last: OpTime | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """target: the document to write, None to delete it (with PUT). conflicts: fields that both sides changed."""

    action: Action
    standing: ConflictStatus
    reason: str
    target: bytes | None = None
    conflicts: tuple[str, ...] = ()


def conflict_status(versions: Versions) -> ConflictStatus:
    if versions.lost == versions.live:
        return ConflictStatus.THERE
    if versions.before == versions.live if versions.before_known else versions.touched is False:
        return ConflictStatus.CLEAN
    return ConflictStatus.THERE if _has_all_changes(versions) else ConflictStatus.CONFLICT


def _has_all_changes(versions: Versions) -> bool:
    """Whether every field that the lost writes changed is in the live document as they left it: nothing is lost."""
    if versions.before is None or versions.lost is None or versions.live is None:
        return False
    return not any(row.side in (Side.LOST, Side.BOTH) for row in field_rows(versions))


def decide(policy: Policy, versions: Versions) -> Decision:
    """What `policy` makes of one lost write. TO_COLLECTION: `versions.live` is the document in that collection."""
    if policy is Policy.TO_COLLECTION:
        return _copy(versions)
    standing = conflict_status(versions)
    match standing:
        case ConflictStatus.THERE:
            is_same = versions.lost == versions.live
            return Decision(Action.NOTHING, standing, "as it was lost" if is_same else "every lost change is in it")
        case ConflictStatus.CLEAN:
            return Decision(Action.PUT, standing, "unchanged since the common point", versions.lost)
        case ConflictStatus.CONFLICT:
            return _in_conflict(policy, versions)


def _in_conflict(policy: Policy, versions: Versions) -> Decision:
    conflicts = tuple(path_text(row.path) for row in field_rows(versions) if row.side is Side.BOTH)
    what = _conflict_text(versions)

    def leave(reason: str) -> Decision:
        return Decision(Action.LEAVE, ConflictStatus.CONFLICT, reason, conflicts=conflicts)

    def put(reason: str, target: bytes | None) -> Decision:
        return Decision(Action.PUT, ConflictStatus.CONFLICT, f"{what}; {reason}", target, conflicts)

    match policy:
        case Policy.OVERWRITE:
            return put("overwritten", versions.lost)
        case Policy.KEEP_NEWER:
            newest = versions.live_last
            if newest is None:
                return leave(f"{what}; its last entry is not in the set's oplog any more")
            if newest > versions.lost_last:
                return leave(f"{what}; {newest} there is newer than {versions.lost_last}")
            return put(f"{versions.lost_last} is newer than {newest} there", versions.lost)
        case Policy.MERGE:
            before, lost, live = versions.before, versions.lost, versions.live
            if before is None or lost is None or live is None:
                return leave(f"{what}; there are no three versions to merge")
            if conflicts:
                return leave(f"{what}; both sides changed {', '.join(conflicts)}")
            return put("the fields merge", encode(merge(decode(before), decode(lost), decode(live))))
    return leave(what)


def _copy(versions: Versions) -> Decision:
    if versions.lost is None:
        return Decision(Action.LEAVE, ConflictStatus.CONFLICT, "a delete has no document to copy")
    if versions.live is None:
        return Decision(Action.PUT, ConflictStatus.CLEAN, "copied", versions.lost)
    if versions.live == versions.lost:
        return Decision(Action.NOTHING, ConflictStatus.THERE, "copied before")
    return Decision(Action.LEAVE, ConflictStatus.CONFLICT, "the collection has another document with this _id")


def _conflict_text(versions: Versions) -> str:
    if versions.live is None:
        return "the set deleted the document"
    if versions.kind is LostKind.INSERT:
        return "the set has another document with this _id"
    if not versions.before_known and versions.touched is None:
        return "whether the set changed the document is not known"
    return "the set changed the document"


# --- field by field ---------------------------------------------------------------------------------------------


class Side(Enum):
    """Who changed a field behind the common point."""

    LOST = "lost"
    LIVE = "live"
    SAME = "same"  # both, to the same value
    BOTH = "both"  # to different values: a conflict


@dataclass(frozen=True, slots=True)
class FieldRow:
    """A field that is not the same in all versions; MISSING where a version has none."""

    path: tuple[str, ...]
    before: object
    lost: object
    live: object
    side: Side


def field_rows(versions: Versions) -> list[FieldRow]:
    """Down to the fields of documents in documents; arrays are one value. Empty where less than two versions are."""
    documents = [None if raw is None else decode(raw) for raw in (versions.before, versions.lost, versions.live)]
    if sum(document is not None for document in documents) < 2:
        return []
    before, lost, live = ({} if document is None else document for document in documents)
    rows: list[FieldRow] = []
    _compare(before, lost, live, (), rows)
    return rows


def path_text(path: tuple[str, ...]) -> str:
    return ".".join(path)


def _compare(before: Doc, lost: Doc, live: Doc, prefix: tuple[str, ...], rows: list[FieldRow]) -> None:
    for name in dict.fromkeys((*before, *lost, *live)):
        values = before.get(name, MISSING), lost.get(name, MISSING), live.get(name, MISSING)
        path = (*prefix, name)
        if all(isinstance(value, Mapping) for value in values):
            _compare(*values, path, rows)  # type: ignore[arg-type]
        elif (side := side_of(*values)) is not None:
            rows.append(FieldRow(path, *values, side))


def side_of(before: object, lost: object, live: object) -> Side | None:
    """None when all three are the same."""
    if _same(lost, live):
        return None if _same(before, lost) else Side.SAME
    if _same(before, lost):
        return Side.LIVE
    return Side.LOST if _same(before, live) else Side.BOTH


def _same(a: object, b: object) -> bool:
    if a is MISSING or b is MISSING:
        return a is b
    return identical(a, b)


def merge(before: Doc, lost: Doc, live: Doc) -> dict[str, object]:
    """The live document with the lost changes in it; a field that both sides changed keeps its live value.

    Live fields keep their order; new ones follow in the order in which they were lost.
    """
    merged: dict[str, object] = {}
    for name in dict.fromkeys((*live, *lost)):
        values = before.get(name, MISSING), lost.get(name, MISSING), live.get(name, MISSING)
        if all(isinstance(value, Mapping) for value in values):
            merged[name] = merge(*values)  # type: ignore[arg-type]
            continue
        value = values[1] if side_of(*values) is Side.LOST else values[2]
        if value is not MISSING:
            merged[name] = value
    return merged


def operators(before: bytes, after: bytes) -> dict[str, object] | None:
    """The change as `$set` and `$unset` with dotted paths; None when it has no such form (a name with a dot, say).

    The order of fields is not told by it. The documents have the same `_id`.
    """
    changed: dict[str, object] = {}
    gone: dict[str, object] = {}
    if not _operators(decode(before), decode(after), "", changed, gone):
        return None
    return {name: fields for name, fields in (("$set", changed), ("$unset", gone)) if fields}


def _operators(before: Doc, after: Doc, prefix: str, changed: dict[str, object], gone: dict[str, object]) -> bool:
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name, MISSING), after.get(name, MISSING)
        if _same(old, new):
            continue
        if not name or "." in name or name.startswith("$"):
            return False
        if isinstance(old, Mapping) and isinstance(new, Mapping) and new:
            if not _operators(old, new, f"{prefix}{name}.", changed, gone):
                return False
        elif new is MISSING:
            gone[prefix + name] = ""
        else:
            changed[prefix + name] = new
    return True


# --- commands ---------------------------------------------------------------------------------------------------


class CommandKind(Enum):
    DROP = "drop"
    CREATE = "create"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class LostChange:
    """What is left of the lost commands on one collection once those that cancel each other are out."""

    kind: CommandKind
    ns: str
    uuid: bytes | None
    name: str
    options: Mapping[str, object]
    optime: OpTime


def lost_changes(lost: LostWrites) -> list[LostChange]:
    """Drops of collections that were there at the common point, creates of those that were there at the end, in the
    order of the entries.
    """
    created, dropped = lost.created_uuids, lost.dropped_uuids
    found: list[LostChange] = []
    for row in lost.commands:
        match row.name:
            case "drop" if row.uuid not in created:
                found.append(LostChange(CommandKind.DROP, row.ns, row.uuid, row.name, {}, row.optime))
            case "create" if row.uuid not in dropped:
                options = {name: value for name, value in row.body.items() if name not in ("create", "idIndex")}
                found.append(LostChange(CommandKind.CREATE, row.ns, row.uuid, row.name, options, row.optime))
            case "drop" | "create":
                pass
            case _:
                found.append(LostChange(CommandKind.OTHER, row.ns, row.uuid, row.name, row.body, row.optime))
    return found


def decide_change(policy: Policy, change: LostChange, live: Mapping[str, bytes]) -> Decision:
    """live: namespace -> UUID of the collections that the set has now."""
    match change.kind:
        case CommandKind.CREATE if change.ns in live:
            return Decision(Action.NOTHING, ConflictStatus.THERE, "the collection is there")
        case CommandKind.CREATE if policy is Policy.TO_COLLECTION:
            return Decision(Action.LEAVE, ConflictStatus.CLEAN, "only documents are copied")
        case CommandKind.CREATE:
            return Decision(Action.PUT, ConflictStatus.CLEAN, "the collection is not there")
        case CommandKind.DROP if live.get(change.ns) != change.uuid:
            return Decision(Action.NOTHING, ConflictStatus.THERE, "that collection is not there any more")
        case CommandKind.DROP if policy is Policy.OVERWRITE:
            return Decision(Action.PUT, ConflictStatus.CONFLICT, "dropped with all that it holds now")
        case CommandKind.DROP:
            return Decision(Action.LEAVE, ConflictStatus.CONFLICT, "a drop is put back by --policy overwrite only")
        case CommandKind.OTHER:
            return Decision(
                Action.LEAVE, ConflictStatus.CONFLICT, f"the command {change.name} is not put back by this tool"
            )
