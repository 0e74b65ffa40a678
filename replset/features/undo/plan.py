"""Finds what a span of the oplog did to documents, and decides what takes it back. It reads; undo.py writes.

The restore engine decides (features/recovery/policy.py): an undo puts back the documents from before the span, as a
restore puts back lost ones, and what the span left is what both sides began with.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import merge
from itertools import groupby, islice
from typing import Final

from replset.bson import MAX_BSON_SIZE, RawDocument
from replset.errors import IllegalOperationError, NamespaceNotFoundError
from replset.features.recovery.lost_writes import LostKind, session_id
from replset.features.recovery.policy import ConflictStatus, Decision, Policy, RestoreAction, Versions, decide
from replset.ids import OPTIME_NULL, OpTime
from replset.oplog_entry import OplogEntry
from replset.query.match import Matcher
from replset.storage import oplog
from replset.storage.catalog import Collection, load_catalog
from replset.storage.snapshot import Snapshot
from replset.storage.sqlite import rows_of
from replset.storage.txn import COLL_MOD, CREATE, DROP, INDEX, next_key

SLICE_DOCUMENTS: Final = 100
SLICE_BYTES: Final = 1 << 20
MOST_WRITES: Final = 1_000
"""Writes of one document whose sessions are looked at."""
_FOREVER: Final = (1 << 63) - 1
_STAYS: Final = {
    CREATE: "was made, and stays, without the documents of then",
    DROP: "was dropped, and is made again with its options and indexes if it is not there",
    COLL_MOD: "has other options since, which stay",
    INDEX: "has other indexes since, which stay",
}


@dataclass(frozen=True, slots=True)
class Span:
    """What is to be taken back. since_ts: of the state before it. until_ts: of its last entry. names: of collections
    and databases. session: its id in hex; empty for all sessions and none.
    """

    since_ts: int
    until_ts: int
    names: tuple[str, ...]
    session: str
    matcher: Matcher | None
    policy: Policy

    def covers(self, ns: str) -> bool:
        database, _, name = ns.partition(".")
        return ns in self.names or (database in self.names and not name.startswith("system."))


@dataclass(frozen=True, slots=True)
class Place:
    """A namespace, and which collection had it before the span, which behind it, and which has it now.

    told: what happened to the collection itself, and what becomes of that.
    """

    ns: str
    before: Collection | None
    behind: Collection | None
    now: Collection | None
    told: tuple[str, ...]

    @property
    def is_kept(self) -> bool:
        """Whether it was one collection all through the span."""
        return self.before is not None and self.before is self.behind


@dataclass(frozen=True, slots=True)
class Row:
    """A document that the span changed: before it, as the span left it, and now. why_left: why it is left as it is."""

    key: bytes
    wanted: bytes | None
    left: bytes | None
    now: bytes | None
    why_left: str = ""

    @property
    def id(self) -> object:
        return RawDocument(self.wanted or self.left or b"").get("_id")


def find_places(snapshot: Snapshot, span: Span) -> list[Place]:
    """The namespaces in which the span changed something. Walks their undo: for a worker.

    IllegalOperationError names what cannot be undone, NamespaceNotFoundError a collection that there never was.
    """
    sql = "SELECT DISTINCT ns FROM name_changes WHERE ts > ?"
    for (ns,) in list(rows_of(snapshot.connection, sql, (span.since_ts,))):
        if span.covers(ns):
            raise IllegalOperationError(f"{ns} was renamed since then, and a rename is not undone: nothing is written")
    found = {name: list[Collection]() for name in span.names if "." in name}
    for coll in load_catalog(snapshot.connection):
        if span.covers(coll.ns):
            found.setdefault(coll.ns, []).append(coll)
    for ns, collections in found.items():
        if not collections:
            raise NamespaceNotFoundError(f"there is no collection {ns!r:.300}, and there was none")
    return [place for ns, each in found.items() if (place := _place(snapshot, span, ns, each)) is not None]


def _place(snapshot: Snapshot, span: Span, ns: str, collections: list[Collection]) -> Place | None:
    def at(ts: int) -> Collection | None:
        return next((c for c in collections if c.created_ts <= ts < (c.dropped_ts or _FOREVER + 1)), None)

    before, behind, now = at(span.since_ts), at(span.until_ts), at(_FOREVER)
    kinds: set[str] = set()
    sql = "SELECT DISTINCT kind FROM undo WHERE coll = ? AND ts > ? AND ts <= ?"
    for uuid in {coll.uuid for coll in (before, behind) if coll is not None}:
        kinds |= {kind for (kind,) in rows_of(snapshot.connection, sql, (uuid, span.since_ts, span.until_ts))}
    if not kinds:
        return None
    for coll in (before, behind, now):
        if coll is not None and (coll.capped or coll.view_on):
            what = "a view" if coll.view_on else "capped, and removes documents by itself"
            raise IllegalOperationError(f"{ns} is {what}: that is not undone, and nothing is written")
    place = Place(ns, before, behind, now, tuple(text for kind, text in _STAYS.items() if kind in kinds))
    if span.session and before is not None and not place.is_kept:
        raise IllegalOperationError(f"{ns} was dropped: that is not undone for one session, and nothing is written")
    return place


def read_slice(snapshot: Snapshot, place: Place, span: Span, after: bytes) -> tuple[list[Row], bytes | None]:
    """The next documents behind the key `after`, and the key behind which to go on; None: that was all."""
    rows: list[Row] = []
    size = 0
    keys = _keys(snapshot, place, span, after)
    for key in keys:
        row = _row(snapshot, place, span, key)
        if row is not None:
            rows.append(row)
            size += sum(len(raw) for raw in (row.wanted, row.left, row.now) if raw is not None)
        if size > SLICE_BYTES:
            return rows, key
    return rows, keys[-1] if len(keys) == SLICE_DOCUMENTS else None


def _keys(snapshot: Snapshot, place: Place, span: Span, after: bytes) -> list[bytes]:
    if place.behind is not None and (place.is_kept or span.session):
        sql = (
            "SELECT DISTINCT key FROM undo WHERE coll = ? AND key > ? AND ts > ? AND ts <= ? ORDER BY key"
            f" LIMIT {SLICE_DOCUMENTS}"
        )
        values = (place.behind.uuid, after, span.since_ts, span.until_ts)
        return [key for (key,) in list(rows_of(snapshot.connection, sql, values))]
    scans: list[Iterable[tuple[bytes, bytes]]] = [
        snapshot.scan(coll, OpTime(0, ts), low=next_key(after))
        for coll, ts in ((place.before, span.since_ts), (place.behind, span.until_ts))
        if coll is not None
    ]
    return [key for key, _ in islice(groupby(merge(*scans), key=lambda row: row[0]), SLICE_DOCUMENTS)]


def _row(snapshot: Snapshot, place: Place, span: Span, key: bytes) -> Row | None:
    before, since_ts, until_ts, why_left = place.before, span.since_ts, span.until_ts, ""
    if span.session and place.behind is not None:
        ours = _of_session(snapshot, place.behind, span, key)
        if ours is None:
            return None
        before, (since_ts, until_ts, why_left) = place.behind, ours
    wanted = None if before is None else snapshot.get(before, key, OpTime(0, since_ts))
    left = None if place.behind is None else snapshot.get(place.behind, key, OpTime(0, until_ts))
    now = None if place.now is None else snapshot.get(place.now, key)
    return None if wanted == left else Row(key, wanted, left, now, why_left)


def _of_session(snapshot: Snapshot, coll: Collection, span: Span, key: bytes) -> tuple[int, int, str] | None:
    """From before its first write of the document to its last one, and why these cannot be told from others'."""
    sql = f"SELECT DISTINCT ts FROM undo WHERE coll = ? AND key = ? AND ts > ? AND ts <= ? LIMIT {MOST_WRITES + 1}"
    connection, values = snapshot.connection, (coll.uuid, key, span.since_ts, span.until_ts)
    places = [ts for (ts,) in list(rows_of(connection, sql, values))]
    if len(places) > MOST_WRITES:
        return span.since_ts, span.until_ts, f"it was written more than {MOST_WRITES} times"
    ours: list[int] = []
    for number, ts in enumerate(places):
        (row,) = oplog.rows_at(connection, "the oplog", (ts,), 0)
        if session_id(OplogEntry(row.entry)) == span.session:
            ours.append(number)
    if not ours:
        return None
    is_mixed = len(ours) != ours[-1] - ours[0] + 1
    return places[ours[0]] - 1, places[ours[-1]], "writes of others lie between the session's" if is_mixed else ""


def judge(rows: Iterable[Row], span: Span) -> list[tuple[Row, Decision]]:
    """Decide about the documents that match. Decodes them: for a thread."""
    return [(row, _decide(row, span.policy)) for row in rows if _matches(row, span.matcher)]


def _matches(row: Row, matcher: Matcher | None) -> bool:
    return matcher is None or any(matcher.matches_raw(raw) for raw in (row.wanted, row.left) if raw is not None)


def _decide(row: Row, policy: Policy) -> Decision:
    if row.why_left and row.now != row.wanted and policy is not Policy.OVERWRITE:
        return Decision(RestoreAction.LEAVE, ConflictStatus.CONFLICT, row.why_left)
    kind = LostKind.INSERT if row.left is None else LostKind.DELETE if row.wanted is None else LostKind.UPDATE
    # What was written behind the span is newer than all of it.
    known = Policy.SKIP if policy is Policy.KEEP_NEWER else policy
    found = decide(known, Versions(kind, row.left, True, row.wanted, row.now, OPTIME_NULL))
    if found.target is not None and len(found.target) > MAX_BSON_SIZE:
        return Decision(RestoreAction.LEAVE, found.status, "merged, the document would be too large")
    return found
