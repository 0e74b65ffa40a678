"""Makes change events of oplog entries: what a change stream, a consumer or a follower tells of them (map X2).

Pure: an entry gives the same events on every member and at any time. Images of documents, which an entry does not hold,
are added by who reads the undo (commands/change_images.py). Only committed entries may come here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from replset.bson import Binary, DateTime, RawDocument, encode_key
from replset.ids import OpTime
from replset.oplog_entry import COMMAND, NOOP, OplogEntry
from replset.oplog_row import OplogRow
from replset.optime import timestamp
from replset.query.change_tokens import Kind, Token
from replset.query.diff import is_diff

HIDDEN_DATABASES = frozenset({"admin", "config", "local"})
"""Their collections are the members' own, or hold users: nobody follows them."""
_TRANSACTION_NS = "admin.$cmd"


class Scope(NamedTuple):
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

    ns: `database.collection`, of a dropped database its name alone. to: the new name of a renamed collection. ui: the
    collection's UUID. key: encode_key of the document's `_id`, None where it is about no document. write: which write
    of this document in its entry it is, from 0; only a transaction writes one twice. is_expanded: told with
    `showExpandedEvents` alone. `head` and `tail` are the fields of the event around its images.
    """

    __slots__ = ("entry", "head", "is_expanded", "key", "ns", "operation_type", "tail", "to", "token", "write")

    def __init__(self, entry: OplogEntry, token: Token, operation_type: str, ns: str) -> None:
        self.entry = entry
        self.token = token
        self.operation_type = operation_type
        self.ns = ns
        self.to: str | None = None
        self.key: bytes | None = None
        self.write = 0
        self.is_expanded = False
        self.head: dict[str, object] = {}
        self.tail: dict[str, object] = {}

    @property
    def optime(self) -> OpTime:
        return self.entry.optime

    @property
    def ui(self) -> bytes | None:
        return self.entry.ui

    @property
    def full_document(self) -> RawDocument | None:
        """The document as the entry itself holds it: of an insert or a replacement."""
        return self.entry.o if self.operation_type in ("insert", "replace") else None

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
        document |= {"ns": _ns_document(self.ns), **self.head}
        tail = self.tail
        if not expanded and "updateDescription" in tail:
            tail = {**tail, "updateDescription": _without(tail["updateDescription"], "disambiguatedPaths")}
        elif not expanded and self.operation_type == "rename":
            tail = _without(tail, "operationDescription")
        document |= tail
        if before_change is not False:
            document["fullDocumentBeforeChange"] = before_change
        if self.entry.is_in_transaction:
            document |= {name: value for name in ("lsid", "txnNumber") if (value := self.entry.get(name)) is not None}
        return document


def invalidate_document(event: ChangeEvent) -> tuple[Token, dict[str, object]]:
    """The invalidate event behind this one, and its token."""
    token = event.token._replace(kind=Kind.INVALIDATE)
    return token, {
        "_id": token.document(),
        "operationType": "invalidate",
        "clusterTime": timestamp(event.optime.ts),
        "wallTime": DateTime(event.entry.wall_ms),
    }


def events_of(entry: OplogEntry) -> list[ChangeEvent]:
    """All events of one committed entry, whoever follows it, in order. A transaction gives one for each operation."""
    if entry.op == NOOP:
        return []
    events: list[ChangeEvent] = []
    writes: dict[tuple[bytes | None, bytes], int] = {}
    for number, operation in enumerate(entry.operations):
        token = Token(entry.optime.ts, number, Kind.EVENT, 0, entry.optime.term)
        event = _event_of(operation, token)
        if event is None:
            continue
        if event.key is not None and operation.is_in_transaction:
            place = operation.ui, event.key
            event.write = writes.get(place, 0)
            writes[place] = event.write + 1
        events.append(event)
    return events


def _event_of(entry: OplogEntry, token: Token) -> ChangeEvent | None:
    match entry.op:
        case "i":
            event = ChangeEvent(entry, token, "insert", entry.ns)
            _set_key(event, entry.o)
        case "d":
            event = ChangeEvent(entry, token, "delete", entry.ns)
            _set_key(event, entry.o)
        case "u":
            event = _update_event(entry, token)
        case "c":
            return _command_event(entry, token)
        case _:
            return None
    return event


def _set_key(event: ChangeEvent, about: RawDocument) -> None:
    value = about.get("_id")
    event.key = encode_key(value)
    event.head["documentKey"] = {"_id": value}


def _update_event(entry: OplogEntry, token: Token) -> ChangeEvent:
    change = entry.o.decode() if "$v" in entry.o else {}
    is_update = is_diff(change)
    event = ChangeEvent(entry, token, "update" if is_update else "replace", entry.ns)
    _set_key(event, entry.o2 or entry.o)
    if is_update:
        event.tail["updateDescription"] = update_description(change["diff"])
    return event


def _command_event(entry: OplogEntry, token: Token) -> ChangeEvent | None:
    o = entry.o
    name = o.first_key or ""
    database = entry.database
    ns = f"{database}.{o.get(name)}"
    match name:
        case "drop":
            return ChangeEvent(entry, token, "drop", ns)
        case "dropDatabase":
            return ChangeEvent(entry, token, "dropDatabase", database)
        case "renameCollection":
            return _rename_event(entry, token)
        case "create":
            event = ChangeEvent(entry, token, "create", ns)
            event.tail["operationDescription"] = _without(o.decode(), "create")
        case "collMod":
            event = ChangeEvent(entry, token, "modify", ns)
            event.tail["operationDescription"] = _without(o.decode(), "collMod")
            event.tail["stateBeforeChange"] = {} if entry.o2 is None else _state_before(entry.o2.decode())
        case "createIndexes":
            event = ChangeEvent(entry, token, "createIndexes", ns)
            event.tail["operationDescription"] = {"indexes": [_without(o.decode(), "createIndexes")]}
        case "commitIndexBuild":
            event = ChangeEvent(entry, token, "createIndexes", ns)
            event.tail["operationDescription"] = {"indexes": o.get("indexes")}
        case "dropIndexes":
            event = ChangeEvent(entry, token, "dropIndexes", ns)
            event.tail["operationDescription"] = {"indexes": [] if entry.o2 is None else [entry.o2]}
        case _:
            return None
    event.is_expanded = True
    return event


def _rename_event(entry: OplogEntry, token: Token) -> ChangeEvent:
    o = entry.o
    event = ChangeEvent(entry, token, "rename", str(o.get("renameCollection")))
    event.to = str(o.get("to"))
    to = _ns_document(event.to)
    event.head["to"] = to
    dropped = o.get("dropTarget")
    event.tail["operationDescription"] = {"to": to} | ({"dropTarget": dropped} if isinstance(dropped, Binary) else {})
    return event


def _state_before(old: dict[str, object]) -> dict[str, object]:
    names = {"collectionOptions_old": "collectionOptions", "indexOptions_old": "indexOptions"}
    return {names.get(name, name): value for name, value in old.items()}


def _without(document: object, name: str) -> dict[str, object]:
    assert isinstance(document, dict)
    return {key: value for key, value in document.items() if key != name}


def _ns_document(ns: str) -> dict[str, object]:
    database, dot, collection = ns.partition(".")
    return {"db": database, "coll": collection} if dot else {"db": database}


# --- what an update changed -------------------------------------------------------------------------------------

Path = tuple[str | int, ...]


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
