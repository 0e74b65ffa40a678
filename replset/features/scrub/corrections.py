"""Puts right a document whose bytes are not those that were written, without an oplog entry and without undo."""

from __future__ import annotations

from contextlib import suppress

from replset.bson import InvalidBSONError
from replset.oplog_entry import COMMAND, OplogEntry
from replset.storage.catalog import Collection
from replset.storage.indexes import write_entries
from replset.storage.sqlite import first_row, rows_of
from replset.storage.txn import Txn


def correct(txn: Txn, coll: Collection, key: bytes, before: bytes | None, after: bytes | None) -> None:
    """Give a document other bytes, and its index entries. before: its bytes now; None: there is no document.

    A document that is put back comes last in natural order.
    """
    connection, indexes = txn.connection, txn.catalog.by_uuid[coll.uuid].indexes
    if indexes:
        with suppress(InvalidBSONError):  # damaged bytes: the entries in the index are those of `after` already
            write_entries(connection, indexes, key, before, None)
        if write_entries(connection, indexes, key, None, after):
            txn.catalog.reload_indexes(connection, coll.uuid)
    if after is None:
        list(rows_of(connection, coll.sql_delete, (key,)))
    elif before is None:
        # Not the place of a document whose delete may be undone: that rollback would find it taken.
        (last,) = first_row(connection, f"SELECT max(rowid) FROM {coll.table}")
        (kept,) = first_row(
            connection, "SELECT max(place) FROM undo WHERE coll = ? AND place IS NOT NULL", (coll.uuid,)
        )
        sql = f"INSERT INTO {coll.table} (rowid, key, doc) VALUES (?, ?, ?)"
        connection.execute(sql, (1 + max(last or 0, kept or 0), key, after))
    else:
        connection.execute(coll.sql_update, (after, key))


def written_after(txn: Txn, ns: str, ts: int) -> set[bytes] | None:
    """The keys of the documents of `ns` that entries after `ts` are about; None: that cannot be told."""
    keys: set[bytes] = set()
    sql = "SELECT op, CAST(key AS BLOB), CAST(entry AS BLOB) FROM oplog WHERE ts > ? AND (ns = ? OR op = ?)"
    for op, key, entry in rows_of(txn.connection, sql, (ts, ns, COMMAND)):
        if op != COMMAND:
            keys.add(key)
            continue
        for one in OplogEntry(entry).operations:
            if one.op == COMMAND:
                return None  # it may be about the collection
            if one.ns == ns:
                keys.add(one.key() or b"")
    return keys
