"""What changes about a collection as a whole: its name and its options, each with what undoes it; and what a capped
collection holds.

SQLite triggers count the documents of a capped collection, so that whatever writes or undoes keeps the numbers right.
A rename notes both names in `name_changes`: a read at an earlier point then knows that they meant something else.
"""

from __future__ import annotations

from dataclasses import replace

import apsw

from replset.bson import Int64, RawDocument, encode
from replset.errors import NamespaceExistsError
from replset.storage.catalog import Catalog, Collection
from replset.storage.schema import collection_table
from replset.storage.sqlite import first_row


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
