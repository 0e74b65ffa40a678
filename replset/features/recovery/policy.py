"""Decides what to do about a lost write, from three versions of its document and a policy.

The versions are: at the common point, as it was lost, and as the set has it now ("live"). This file is pure; the
caller reads and writes the set. The same versions always give the same decision, and a write that was put back
counts as there the next time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from replset.auth.users import USERS_NS
from replset.bson import decode, encode
from replset.errors import BadValueError
from replset.features.recovery.lost_writes import CommandKind, LostCommand, LostKind
from replset.ids import OpTime
from replset.query.order import identical

Doc = Mapping[str, object]
POLICIES = "skip, overwrite, keep-newer, merge, or to-collection NAME"


class Policy(Enum):
    """What to do about a conflict. A lost write without a conflict is put back under every policy."""

    SKIP = "skip"
    OVERWRITE = "overwrite"
    KEEP_NEWER = "keep-newer"
    MERGE = "merge"
    TO_COLLECTION = "to-collection"


def parse_policy(name: str, collection: str) -> Policy:
    """The policy of this name. BadValueError, also for a collection with a policy that takes none."""
    if name not in {policy.value for policy in Policy}:
        raise BadValueError(f"no policy {name!r}; there are {POLICIES}")
    policy = Policy(name)
    if (policy is Policy.TO_COLLECTION) != bool(collection):
        raise BadValueError(f"{name} takes {'the NAME of a collection' if not collection else 'no NAME'}")
    return policy


class ConflictStatus(Enum):
    """How the live document compares with the lost one."""

    THERE = "there"  # equal to the lost version, or it has every field that was lost
    CLEAN = "clean"  # still as it was at the common point
    CONFLICT = "conflict"


class RestoreAction(Enum):
    NOTHING = "nothing"  # the lost write is there already
    WRITE = "write"
    LEAVE = "leave"  # the lost write stays undone


MISSING: Final = object()
"""Represents a field that a document does not have."""


@dataclass(frozen=True, slots=True)
class Versions:
    """The bytes of one document in three versions; None where it did not exist.

    before_known: whether the rollback files hold `before` (for a delete they do not). written_since: whether the set
    wrote the document after the common point; None when its oplog does not reach back that far, or was not read.
    lost_last, live_last: the last entry about the document on each side; live_last is None when it is not known.
    """

    kind: LostKind
    before: bytes | None
    before_known: bool
    lost: bytes | None
    live: bytes | None
    lost_last: OpTime
    written_since: bool | None = None
    live_last: OpTime | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """target: with WRITE, the document to write, or None to delete it. conflicts: fields that both sides changed."""

    action: RestoreAction
    status: ConflictStatus
    reason: str
    target: bytes | None = None
    conflicts: tuple[str, ...] = ()


def conflict_status(versions: Versions) -> ConflictStatus:
    """Compare the live document with the lost one.

    Only a live document that is known to be unchanged counts as clean. A document counts as in conflict when the set's
    oplog is too short to decide. Otherwise a restore could overwrite a newer write that it does not know of.
    """
    if versions.lost == versions.live:
        return ConflictStatus.THERE
    unchanged = versions.before == versions.live if versions.before_known else versions.written_since is False
    if unchanged:
        return ConflictStatus.CLEAN
    return ConflictStatus.THERE if _has_all_changes(versions) else ConflictStatus.CONFLICT


def _has_all_changes(versions: Versions) -> bool:
    """Whether the live document has every field that the lost writes changed, with the lost value."""
    if versions.before is None or versions.lost is None or versions.live is None:
        return False
    return not any(row.side in (Side.LOST, Side.BOTH) for row in field_rows(versions))


def decide(policy: Policy, versions: Versions) -> Decision:
    """Decide about one lost write. With TO_COLLECTION, `versions.live` is the document in that collection."""
    if policy is Policy.TO_COLLECTION:
        return _copy(versions)
    status = conflict_status(versions)
    match status:
        case ConflictStatus.THERE:
            is_same = versions.lost == versions.live
            return Decision(
                RestoreAction.NOTHING, status, "as it was lost" if is_same else "every lost change is in it"
            )
        case ConflictStatus.CLEAN:
            return Decision(RestoreAction.WRITE, status, "unchanged since the common point", versions.lost)
        case ConflictStatus.CONFLICT:
            return _in_conflict(policy, versions)


def _in_conflict(policy: Policy, versions: Versions) -> Decision:
    conflicts = tuple(row.name for row in field_rows(versions) if row.side is Side.BOTH)
    what = _conflict_text(versions)

    def leave(reason: str) -> Decision:
        return Decision(RestoreAction.LEAVE, ConflictStatus.CONFLICT, reason, conflicts=conflicts)

    def write(reason: str, target: bytes | None) -> Decision:
        return Decision(RestoreAction.WRITE, ConflictStatus.CONFLICT, f"{what}; {reason}", target, conflicts)

    match policy:
        case Policy.OVERWRITE:
            return write("overwritten", versions.lost)
        case Policy.KEEP_NEWER:
            if versions.kind is LostKind.WRITE:
                return leave(f"{what}; mongod's files do not say when the lost write was made")
            newest = versions.live_last
            # The entry of the live version can be gone from the set's oplog. Then it is unknown which version is
            # newer. Writing the lost one could destroy a newer write, so it stays undone.
            if newest is None:
                return leave(f"{what}; its last entry is not in the set's oplog any more")
            if newest > versions.lost_last:
                return leave(f"{what}; {newest} there is newer than {versions.lost_last}")
            return write(f"{versions.lost_last} is newer than {newest} there", versions.lost)
        case Policy.MERGE:
            before, lost, live = versions.before, versions.lost, versions.live
            # A merge takes each field from the side that changed it. With a version missing, or a field that both sides
            # changed, any choice would lose one side's change. So the whole document stays as it is.
            if before is None or lost is None or live is None:
                return leave(f"{what}; there are no three versions to merge")
            if conflicts:
                return leave(f"{what}; both sides changed {', '.join(conflicts)}")
            return write("the fields merge", encode(merge(decode(before), decode(lost), decode(live))))
    return leave(what)


def _copy(versions: Versions) -> Decision:
    if versions.lost is None:
        return Decision(RestoreAction.LEAVE, ConflictStatus.CONFLICT, "a delete has no document to copy")
    if versions.live is None:
        return Decision(RestoreAction.WRITE, ConflictStatus.CLEAN, "copied", versions.lost)
    if versions.live == versions.lost:
        return Decision(RestoreAction.NOTHING, ConflictStatus.THERE, "copied before")
    return Decision(RestoreAction.LEAVE, ConflictStatus.CONFLICT, "the collection has another document with this _id")


def _conflict_text(versions: Versions) -> str:
    if versions.kind is LostKind.WRITE and versions.written_since is None:
        there = "has another version of it" if versions.live is not None else "has no such document"
        return f"the set {there}, and what it did since is not known"
    if versions.live is None:
        return "the set deleted the document"
    if versions.kind is LostKind.INSERT:
        return "the set has another document with this _id"
    if not versions.before_known and versions.written_since is None:
        return "whether the set changed the document is not known"
    return "the set changed the document"


# --- field by field ---------------------------------------------------------------------------------------------


class Side(Enum):
    """Which side changed a field after the common point."""

    LOST = "lost"
    LIVE = "live"
    SAME = "same"  # both sides, to the same value
    BOTH = "both"  # both sides, to different values: a conflict


@dataclass(frozen=True, slots=True)
class FieldRow:
    """A field that differs between the versions; MISSING where a version does not have it."""

    path: tuple[str, ...]
    before: object
    lost: object
    live: object
    side: Side

    @property
    def name(self) -> str:
        return ".".join(self.path)


def field_rows(versions: Versions) -> list[FieldRow]:
    """The fields that differ, also in nested documents. An array is one value. Empty with fewer than two versions."""
    documents = [None if raw is None else decode(raw) for raw in (versions.before, versions.lost, versions.live)]
    if sum(document is not None for document in documents) < 2:
        return []
    before, lost, live = ({} if document is None else document for document in documents)
    rows: list[FieldRow] = []
    _compare(before, lost, live, (), rows)
    return rows


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
    """Put the lost changes into the live document. A field that both sides changed keeps its live value.

    Live fields keep their order. New fields follow in the order of the lost document.
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
    """The change as `$set` and `$unset` with dotted paths. None when that cannot express it, as for a name with a dot.

    The order of fields is not kept. Both documents have the same `_id`.
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


def decide_command(policy: Policy, command: LostCommand, live: Mapping[str, bytes]) -> Decision:
    """Decide about one lost command. live: namespace -> UUID of the collections that the set has now.

    A drop is put back only under `overwrite`: it would delete every document that the collection has got since.
    """
    match command.kind:
        case CommandKind.CREATE if command.ns == USERS_NS:
            return Decision(RestoreAction.NOTHING, ConflictStatus.THERE, "createUser makes it")
        case CommandKind.CREATE if command.ns in live:
            return Decision(RestoreAction.NOTHING, ConflictStatus.THERE, "the collection is there")
        case CommandKind.CREATE if policy is Policy.TO_COLLECTION:
            return Decision(RestoreAction.LEAVE, ConflictStatus.CLEAN, "only documents are copied")
        case CommandKind.CREATE:
            return Decision(RestoreAction.WRITE, ConflictStatus.CLEAN, "the collection is not there")
        case CommandKind.DROP if live.get(command.ns) != command.uuid:
            return Decision(RestoreAction.NOTHING, ConflictStatus.THERE, "that collection is not there any more")
        case CommandKind.DROP if policy is Policy.OVERWRITE:
            return Decision(RestoreAction.WRITE, ConflictStatus.CONFLICT, "dropped with all that it holds now")
        case CommandKind.DROP:
            return Decision(
                RestoreAction.LEAVE, ConflictStatus.CONFLICT, "a drop is put back by --policy overwrite only"
            )
        case CommandKind.OTHER:
            return Decision(
                RestoreAction.LEAVE, ConflictStatus.CONFLICT, f"the command {command.name} is not put back by this tool"
            )
