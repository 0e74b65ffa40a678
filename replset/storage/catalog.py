"""Keeps the collections of the catalog table, with the SQL statements of each collection's table; what changes about a
collection as a whole, its name and its options, each with what undoes it; and what a capped collection holds.

SQLite triggers count the documents of a capped collection, so that whatever writes or undoes keeps the numbers right.
A rename notes both names in `name_changes`: a read at an earlier point then knows that they meant something else.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import apsw

from replset.bson import Int64, RawDocument, encode
from replset.errors import NamespaceExistsError
from replset.query.collation import Fold
from replset.storage.indexes import ID_INDEX, Index, fold_in, load_all_indexes, load_indexes
from replset.storage.schema import DOC, SESSIONS_UUID, collection_table
from replset.storage.sqlite import first_row, rows_of

_COLUMNS = (
    "CAST(ns AS TEXT), CAST(uuid AS BLOB), CAST(options AS BLOB), CAST(created_ts AS INTEGER),"
    " CAST(dropped_ts AS INTEGER)"
)


@dataclass(frozen=True, slots=True)
class Collection:
    """One collection. uuid: 16 bytes. created_ts: of the entry that created it. dropped_ts: None while it is there.

    indexes: those that are ready, and those under build; the one on `_id` only with a collation. Two
    are equal when they are the same collection (by UUID) in the same state, whatever their indexes.
    """

    ns: str
    uuid: bytes
    options: RawDocument = field(default_factory=lambda: RawDocument(encode({})))
    created_ts: int = 0
    dropped_ts: int | None = None
    indexes: tuple[Index, ...] = field(default=(), compare=False)
    capped: tuple[int, int] | None = field(init=False, compare=False, repr=False)
    """Of a capped collection: how many bytes and how many documents it holds at most; 0 documents: any number."""
    has_validator: bool = field(init=False, compare=False, repr=False)
    view_on: str | None = field(init=False, compare=False, repr=False)
    """Of a view: the collection or view of its database that its pipeline reads. The table of a view stays empty."""
    fold: Fold | None = field(init=False, compare=False, repr=False)
    """Of its collation, by which commands and new indexes without one of their own compare strings."""
    is_plain: bool = field(init=False, compare=False, repr=False)
    """Whether it is no view and has no collation: a document is found by the key of its `_id` as it is."""
    table: str = field(init=False, compare=False, repr=False)
    sql_get: str = field(init=False, compare=False, repr=False)
    sql_insert: str = field(init=False, compare=False, repr=False)
    sql_update: str = field(init=False, compare=False, repr=False)
    sql_delete: str = field(init=False, compare=False, repr=False)
    sql_in_undo: str = field(init=False, compare=False, repr=False)
    """The condition of its rows in the undo. Its parameter is the UUID."""

    def __post_init__(self) -> None:
        table = collection_table(self.uuid)
        put = object.__setattr__
        put(self, "capped", _limits(self.options))
        put(self, "has_validator", "validator" in self.options)
        source = self.options.get("viewOn")
        put(self, "view_on", source if isinstance(source, str) else None)
        put(self, "fold", fold_in(self.options))
        put(self, "is_plain", self.view_on is None and self.fold is None)
        put(self, "table", table)
        put(self, "sql_get", f"SELECT {DOC} FROM {table} WHERE key = ?")
        put(self, "sql_insert", f"INSERT INTO {table} (key, doc) VALUES (?, ?)")
        put(self, "sql_update", f"UPDATE {table} SET doc = ? WHERE key = ?")
        # NULL stands for the collection of sessions: see schema.py. No index finds these, so few are looked through.
        put(self, "sql_in_undo", "ifnull(coll, ?1) = ?1" if self.uuid == SESSIONS_UUID else "coll = ?1")
        put(self, "sql_delete", f"DELETE FROM {table} WHERE key = ? RETURNING rowid")

    @property
    def database(self) -> str:
        return self.ns.partition(".")[0]

    @property
    def pipeline(self) -> list[object]:
        """The stages of a view."""
        found = self.options.get("pipeline", [])
        return found if isinstance(found, list) else []

    @property
    def id_index(self) -> Index | None:
        """The index on `_id` of a collection with a collation. A member that makes no indexes has none."""
        return next((index for index in self.indexes if index.name == ID_INDEX), None)

    @property
    def more_indexes(self) -> tuple[Index, ...]:
        """All indexes but the one on `_id`."""
        return self.indexes if self.fold is None else tuple(one for one in self.indexes if one.name != ID_INDEX)

    @property
    def builds(self) -> list[bytes]:
        """The UUIDs of the index builds under way. A collection that is dropped has none."""
        unready = [] if self.dropped_ts is not None else [index for index in self.indexes if not index.ready]
        return list(dict.fromkeys(index.build or b"" for index in unready))

    @property
    def name(self) -> str:
        """The part of `ns` after the first dot."""
        return self.ns.partition(".")[2]


def _limits(options: RawDocument) -> tuple[int, int] | None:
    size, documents = options.get("size"), options.get("max")
    if options.get("capped") is not True or not isinstance(size, int):
        return None
    return size, documents if isinstance(documents, int) else 0


SESSIONS = Collection("config.transactions", SESSIONS_UUID)
"""The records of sessions. Every member has it from the start, and it is in no list of collections (sessions.py)."""


def is_same(now: Collection, before: Collection) -> bool:
    """Whether the collection is still there under its name and with its options."""
    return (now.ns, now.options.raw, now.dropped_ts) == (before.ns, before.options.raw, None)


def load_catalog(connection: apsw.Connection) -> list[Collection]:
    """Every collection, dropped ones that are still there included, in the order of their namespaces."""
    rows = rows_of(connection, f"SELECT {_COLUMNS} FROM catalog ORDER BY ns, created_ts")
    indexes = load_all_indexes(connection)
    return [
        Collection(ns, uuid, RawDocument(options), created, dropped, indexes.get(uuid, ()))
        for ns, uuid, options, created, dropped in list(rows)
    ]


def load_collection(connection: apsw.Connection, uuid: bytes) -> Collection | None:
    if uuid == SESSIONS_UUID:
        return SESSIONS
    row = first_row(connection, f"SELECT {_COLUMNS} FROM catalog WHERE uuid = ?", (uuid,))
    if row is None:
        return None
    return Collection(row[0], row[1], RawDocument(row[2]), row[3], row[4], load_indexes(connection, uuid))


class Catalog:
    """The collections in memory: by namespace those that are there, and those dropped but not yet removed."""

    def __init__(self, collections: list[Collection]) -> None:
        self.by_ns: dict[str, Collection] = {c.ns: c for c in collections if c.dropped_ts is None}
        self.by_uuid: dict[bytes, Collection] = {c.uuid: c for c in (SESSIONS, *collections)}
        self.building: set[bytes] = {c.uuid for c in collections if c.builds}
        """The UUIDs of collections with an index under build."""

    def put(self, collection: Collection) -> None:
        """Add or replace, by UUID."""
        self.forget(collection.uuid)
        self.by_uuid[collection.uuid] = collection
        if collection.builds:
            self.building.add(collection.uuid)
        if collection.dropped_ts is None:
            self.by_ns[collection.ns] = collection

    def forget(self, uuid: bytes) -> None:
        known = self.by_uuid.pop(uuid, None)
        self.building.discard(uuid)
        if known is not None and self.by_ns.get(known.ns) is known:
            del self.by_ns[known.ns]

    def reload_indexes(self, connection: apsw.Connection, uuid: bytes) -> None:
        """Take the indexes of one collection from the file."""
        known = self.by_uuid.get(uuid)
        if known is not None:
            self.put(replace(known, indexes=load_indexes(connection, uuid)))

    def dropped(self) -> list[Collection]:
        """Oldest drop first."""
        return sorted((c for c in self.by_uuid.values() if c.dropped_ts is not None), key=lambda c: c.dropped_ts or 0)


def rename_collection(connection: apsw.Connection, catalog: Catalog, uuid: bytes, ns: str, ts: int) -> bytes:
    """Give the collection the name `ns`; returns what undoes it. NamespaceExistsError when the name is taken."""
    coll = catalog.by_uuid[uuid]
    if ns in catalog.by_ns:
        raise NamespaceExistsError("target namespace exists")
    connection.execute("UPDATE catalog SET ns = ? WHERE uuid = ?", (ns, uuid))
    connection.executemany("INSERT OR REPLACE INTO name_changes (ns, ts) VALUES (?, ?)", [(coll.ns, ts), (ns, ts)])
    catalog.put(replace(coll, ns=ns))
    return encode({"ns": coll.ns, "ts": Int64(ts)})


def undo_rename(connection: apsw.Connection, catalog: Catalog, uuid: bytes, before: RawDocument) -> None:
    ns = str(before.get("ns"))
    connection.execute("UPDATE catalog SET ns = ? WHERE uuid = ?", (ns, uuid))
    connection.execute("DELETE FROM name_changes WHERE ts = ?", (before.get("ts"),))
    catalog.put(replace(catalog.by_uuid[uuid], ns=ns))


def set_options(connection: apsw.Connection, catalog: Catalog, uuid: bytes, options: RawDocument) -> bytes:
    """Give the collection other options; returns those that it had."""
    coll = catalog.by_uuid[uuid]
    connection.execute("UPDATE catalog SET options = ? WHERE uuid = ?", (options.raw, uuid))
    catalog.put(replace(coll, options=options))
    return coll.options.raw


# --- capped collections


def count_from_now_on(connection: apsw.Connection, coll: Collection) -> None:
    """Begin to count the documents of a new capped collection."""
    table, row = collection_table(coll.uuid), f"WHERE coll = x'{coll.uuid.hex()}'"
    connection.execute("INSERT INTO capped (coll, documents, bytes) VALUES (?, 0, 0)", (coll.uuid,))
    for event, change in (
        ("INSERT", "documents = documents + 1, bytes = bytes + length(new.doc)"),
        ("DELETE", "documents = documents - 1, bytes = bytes - length(old.doc)"),
        ("UPDATE", "bytes = bytes + length(new.doc) - length(old.doc)"),
    ):
        name = f"{table}_{event.lower()}"
        connection.execute(
            f"CREATE TRIGGER {name} AFTER {event} ON {table} BEGIN UPDATE capped SET {change} {row}; END"
        )


def capped_size(connection: apsw.Connection, coll: Collection) -> tuple[int, int]:
    """How many documents a capped collection holds, and their bytes."""
    documents, size = first_row(connection, "SELECT documents, bytes FROM capped WHERE coll = ?", (coll.uuid,))
    return documents, size
