"""Makes change events of oplog entries: what a change stream, a consumer or a follower tells of them (map X2).

Pure: an entry gives the same events on every member and at any time. Images of documents, which an entry does not hold,
are added by who reads the undo (features/change_streams/event_reader.py). Only committed entries may come here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from replset.bson import Binary, DateTime, RawDocument, encode
from replset.ids import OpTime
from replset.oplog_entry import COMMAND, NOOP, OplogEntry
from replset.oplog_row import OplogRow
from replset.optime import timestamp
from replset.query.change_tokens import Kind, Token
from replset.query.diff import is_diff

HIDDEN_DATABASES = frozenset({"admin", "config", "local"})
"""Their collections are the members' own, or hold users: nobody follows them."""
_TRANSACTION_NS = "admin.$cmd"
KEPT_BYTES, KEPT_OPERATIONS = 64 << 10, 1_000
"""Events up to this size, of entries with so many operations at most, are kept for the next stream that shows them."""


class Watched(NamedTuple):
    """What is followed: one collection, one database, or without names the whole deployment."""

    database: str = ""
    collection: str = ""

    @property
    def is_collection(self) -> bool:
        return bool(self.collection)

    @property
    def is_deployment(self) -> bool:
        return not self.database

    def covers(self, ns: str) -> bool:
        """Whether changes of this collection are told."""
        database, _, collection = ns.partition(".")
        if database in HIDDEN_DATABASES or collection.startswith("system.") or not collection:
            return False
        return (not self.database or database == self.database) and self.collection in ("", collection)

    def may_concern(self, row: OplogRow) -> bool:
        """Whether the row can give an event here; False is certain. It reads no entry."""
        if row.op == NOOP:
            return False
        if row.op != COMMAND:
            return self.covers(row.ns)
        return row.ns == _TRANSACTION_NS or not self.database or row.ns == f"{self.database}.$cmd"

    def tells(self, event: ChangeEvent, *, expanded: bool) -> bool:
        """Whether the event is told. expanded: `showExpandedEvents`."""
        if event.is_expanded and not expanded:
            return False
        if event.operation_type == "dropDatabase":
            is_mine = self.database in ("", event.ns) and not self.collection
            return is_mine and event.ns not in HIDDEN_DATABASES
        return self.covers(event.ns) or (event.to is not None and self.covers(event.to))

    def ends_with(self, event: ChangeEvent) -> bool:
        """Whether nothing can be told any more behind this event, which is told: an invalidate event follows."""
        match event.operation_type:
            case "drop" | "rename":
                return self.is_collection
            case "dropDatabase":
                return not self.is_deployment
            case _:
                return False


class ChangeEvent:
    """One change of one document, collection or database.

    ns: `database.collection`, of a dropped database its name alone. to: the new name of a renamed collection. key:
    encode_key of the document's `_id`, None where it is about no document. is_expanded: told with `showExpandedEvents`
    alone.
    """

    __slots__ = ("_plain", "entry", "is_expanded", "key", "ns", "operation_type", "to", "token")

    def __init__(
        self,
        entry: OplogEntry,
        token: Token,
        operation_type: str,
        ns: str,
        *,
        key: bytes | None = None,
        to: str | None = None,
        is_expanded: bool = False,
    ) -> None:
        self.entry = entry
        self.token = token
        self.operation_type = operation_type
        self.ns = ns
        self.to = to
        self.key = key
        self.is_expanded = is_expanded
        self._plain: bytes | None = None

    @property
    def optime(self) -> OpTime:
        return self.entry.optime

    @property
    def ui(self) -> bytes | None:
        """The collection's UUID."""
        return self.entry.ui

    @property
    def full_document(self) -> RawDocument | None:
        """The document as the entry itself holds it: of an insert or a replacement."""
        return self.entry.o if self.operation_type in ("insert", "replace") else None

    def raw(self) -> bytes:
        """The event without options and images, as bytes. Those of a small one are kept: many streams show it."""
        if self._plain is not None:
            return self._plain
        raw = encode(self.document())
        if len(raw) <= KEPT_BYTES:
            self._plain = raw
        return raw

    def document(
        self,
        *,
        expanded: bool = False,
        full_document: RawDocument | bool | None = False,
        before_change: RawDocument | bool | None = False,
    ) -> dict[str, object]:
        """The event as clients see it. full_document, before_change: images to add, False for none."""
        document: dict[str, object] = {"_id": self.token.document(), "operationType": self.operation_type}
        document["clusterTime"] = timestamp(self.optime.ts)
        if expanded and self.ui is not None:
            document["collectionUUID"] = Binary(self.ui, 4)
        document["wallTime"] = DateTime(self.entry.wall_ms)
        own = self.full_document
        if own is not None or full_document is not False:
            document["fullDocument"] = own if own is not None else full_document
        document["ns"] = _ns_document(self.ns)
        if self.to is not None:
            document["to"] = _ns_document(self.to)
        if self.key is not None:
            document["documentKey"] = {"_id": _about(self.entry).get("_id")}
        if self.operation_type == "update":
            document["updateDescription"] = _shown_description(self.entry, expanded)
        elif expanded and self.entry.op == COMMAND:
            document |= _description(self.entry, self.operation_type)
        if before_change is not False:
            document["fullDocumentBeforeChange"] = before_change
        if self.entry.is_in_transaction:
            document |= {name: value for name in ("lsid", "txnNumber") if (value := self.entry.get(name)) is not None}
        return document


class EntryEvents:
    """The events of one committed entry, whoever follows it, in order. A transaction gives one for each operation.

    They are made when they are asked for: a transaction may have 100,000.
    """

    __slots__ = ("_made", "_places", "_writes_before", "entry")

    def __init__(self, entry: OplogEntry) -> None:
        """Walks the operations of a transaction, which for a large one takes a while."""
        self.entry = entry
        self._places = entry.operation_places
        self._made: dict[int, ChangeEvent | None] = {}
        self._writes_before: list[int] | None = None

    @property
    def optime(self) -> OpTime:
        return self.entry.optime

    def __iter__(self) -> Iterator[ChangeEvent]:
        return self.from_operation(0)

    def from_operation(self, first: int) -> Iterator[ChangeEvent]:
        """The events of the operations from this number on."""
        places = self._places
        keeps = places is None or len(places) <= KEPT_OPERATIONS
        for number in range(first, 1 if places is None else len(places)):
            if number in self._made:
                event = self._made[number]
            else:
                operation = self.entry
                if places is not None:
                    start, end = places[number]
                    operation = self.entry.operation_at(start, end)
                event = _event_of(operation, Token(self.optime.ts, number, Kind.EVENT, 0, self.optime.term))
                if keeps:
                    self._made[number] = event
            if event is not None:
                yield event

    @property
    def must_count_writes(self) -> bool:
        """Whether `count_writes` has much to walk, which the event loop should not wait for."""
        return self._writes_before is None and self._places is not None and len(self._places) > KEPT_OPERATIONS

    def count_writes(self) -> list[int]:
        """For each operation, how many before it wrote the same document. The entry is walked once for all of them."""
        if self._writes_before is None:
            counts: dict[tuple[bytes | None, bytes | None], int] = {}
            found = [0] * (1 if self._places is None else len(self._places))
            for event in self:
                document = event.ui, event.key
                found[event.token.operation] = before = counts.get(document, 0)
                counts[document] = before + 1
            self._writes_before = found
        return self._writes_before

    def writes_before(self, event: ChangeEvent) -> int:
        """How often operations before this one in the same entry wrote the same document."""
        return self.count_writes()[event.token.operation]


def invalidate_document(event: ChangeEvent) -> tuple[Token, dict[str, object]]:
    """The invalidate event behind this one, and its token."""
    token = event.token._replace(kind=Kind.INVALIDATE)
    return token, {
        "_id": token.document(),
        "operationType": "invalidate",
        "clusterTime": timestamp(event.optime.ts),
        "wallTime": DateTime(event.entry.wall_ms),
    }


def _event_of(entry: OplogEntry, token: Token) -> ChangeEvent | None:
    match entry.op:
        case "i":
            return ChangeEvent(entry, token, "insert", entry.ns, key=entry.key())
        case "d":
            return ChangeEvent(entry, token, "delete", entry.ns, key=entry.key())
        case "u":
            o = entry.o
            is_update = "$v" in o and is_diff(o.decode())
            return ChangeEvent(entry, token, "update" if is_update else "replace", entry.ns, key=entry.key())
        case "c":
            return _command_event(entry, token)
        case _:
            return None


_EXPANDED = {
    "create": "create",
    "collMod": "modify",
    "createIndexes": "createIndexes",
    "commitIndexBuild": "createIndexes",
    "dropIndexes": "dropIndexes",
}
"""Commands that are told with `showExpandedEvents`, and what their events are called."""


def _command_event(entry: OplogEntry, token: Token) -> ChangeEvent | None:
    o, database = entry.o, entry.database
    name = o.first_key or ""
    ns = f"{database}.{o.get(name)}"
    match name:
        case "drop":
            return ChangeEvent(entry, token, "drop", ns)
        case "dropDatabase":
            return ChangeEvent(entry, token, "dropDatabase", database)
        case "renameCollection":
            return ChangeEvent(entry, token, "rename", str(o.get(name)), to=str(o.get("to")))
        case _ if name in _EXPANDED:
            return ChangeEvent(entry, token, _EXPANDED[name], ns, is_expanded=True)
        case _:
            return None


def _about(entry: OplogEntry) -> RawDocument:
    """The part of the entry that has the `_id`."""
    return (entry.o2 or entry.o) if entry.op == "u" else entry.o


def _description(entry: OplogEntry, operation_type: str) -> dict[str, object]:
    """`operationDescription`, and of a collMod the state before, of an event about a collection."""
    o, name = entry.o, entry.o.first_key or ""
    match operation_type:
        case "rename":
            dropped = o.get("dropTarget")
            description: dict[str, object] = {"to": _ns_document(str(o.get("to")))}
            if isinstance(dropped, Binary):
                description["dropTarget"] = dropped
        case "createIndexes":
            description = {"indexes": o.get("indexes") if name != operation_type else [_without(o.decode(), name)]}
        case "dropIndexes":
            description = {"indexes": [] if entry.o2 is None else [entry.o2]}
        case "modify":
            old = {} if entry.o2 is None else _state_before(entry.o2.decode())
            return {"operationDescription": _without(o.decode(), name), "stateBeforeChange": old}
        case "create":
            description = _without(o.decode(), name)
        case _:
            return {}
    return {"operationDescription": description}


def _state_before(old: dict[str, object]) -> dict[str, object]:
    names = {"collectionOptions_old": "collectionOptions", "indexOptions_old": "indexOptions"}
    return {names.get(name, name): value for name, value in old.items()}


def _without(document: dict[str, object], name: str) -> dict[str, object]:
    return {key: value for key, value in document.items() if key != name}


def _ns_document(ns: str) -> dict[str, object]:
    database, dot, collection = ns.partition(".")
    return {"db": database, "coll": collection} if dot else {"db": database}


# --- what an update changed -------------------------------------------------------------------------------------

Path = tuple[str | int, ...]


def _shown_description(entry: OplogEntry, expanded: bool) -> dict[str, object]:
    description = update_description(entry.o.decode()["diff"])
    return description if expanded else _without(description, "disambiguatedPaths")


def update_description(diff: object) -> dict[str, object]:
    """updatedFields, removedFields, truncatedArrays and disambiguatedPaths of the difference in an update entry."""
    updated: dict[str, object] = {}
    removed: list[str] = []
    truncated: list[dict[str, object]] = []
    unclear: dict[str, object] = {}
    for kind, path, value in _changes(diff, ()):
        text = ".".join(map(str, path))
        if kind == "u":
            updated[text] = value
        elif kind == "d":
            removed.append(text)
        else:
            truncated.append({"field": text, "newSize": value})
        if _is_unclear(path):
            unclear[text] = list(path)
    return {
        "updatedFields": updated,
        "removedFields": removed,
        "truncatedArrays": truncated,
        "disambiguatedPaths": unclear,
    }


def _changes(diff: object, path: Path) -> Iterator[tuple[str, Path, object]]:
    """(kind, path, value) of each change: u a new value, d a removed field, l the new length of an array."""
    if not isinstance(diff, dict):
        return
    is_array = diff.get("a") is True
    for section, body in diff.items():
        if is_array:
            if section == "l":
                yield "l", path, body
            elif section != "a":
                place = (*path, int(section[1:]))
                yield from _changes(body, place) if section[0] == "s" else (("u", place, body),)
        elif section in ("u", "i", "d"):
            for name, value in body.items():
                yield "d" if section == "d" else "u", (*path, name), value
        elif section[0] == "s":
            yield from _changes(body, (*path, section[1:]))


def _is_unclear(path: Path) -> bool:
    """Whether the path as text can be read in two ways: a name has a dot, or is a number and not the first."""
    return any(
        isinstance(name, str) and ("." in name or (place > 0 and name.isdecimal())) for place, name in enumerate(path)
    )
