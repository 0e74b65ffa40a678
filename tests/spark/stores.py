"""Members' files with documents, made by the store itself: one history, each member up to some entry of it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from replset.bson import encode, encode_key
from replset.ids import OpTime, pack_ts
from replset.oplog_entry import OplogEntry, command_entry, delete_entry, insert_entry, noop_entry, update_entry
from replset.query.diff import update_entry_object
from replset.replication.applier import apply_entry
from replset.storage.disk import RealDisk
from replset.storage.retention import remove_old_data
from replset.storage.store import Store, StoreOptions
from spark.readers.sqlite import SqliteOplog

T0 = 1_760_000_000
UUID, OTHER_UUID = b"1" * 16, b"2" * 16
NS = "shop.orders"


def entries_of(count: int) -> list[bytes]:
    """A second each: the set, two collections, then documents inserted, changed and some deleted."""
    made: list[bytes] = []

    def next_optime() -> tuple[OpTime, int]:
        return OpTime(1, pack_ts(T0 + len(made), 1)), (T0 + len(made)) * 1000

    made.append(noop_entry({"msg": "initiating set"}, *next_optime()))
    made.append(command_entry("shop", UUID, {"create": "orders"}, *next_optime()))
    made.append(command_entry("shop", OTHER_UUID, {"create": "users"}, *next_optime()))
    documents: dict[int, dict[str, object]] = {}
    for number in range(count):
        key = number % 7
        about = encode({"_id": key})
        new: dict[str, object] = {"_id": key, "n": number}
        if key not in documents:
            made.append(insert_entry(NS, UUID, encode(new), *next_optime()))
        elif number % 5 == 0:
            made.append(delete_entry(NS, UUID, about, *next_optime()))
            del documents[key]
            continue
        else:
            change = update_entry_object(documents[key], new)
            made.append(update_entry(NS, UUID, about, encode(change), *next_optime()))
        documents[key] = new
    made.append(insert_entry("shop.users", OTHER_UUID, encode({"_id": "u", "name": "Ada"}), *next_optime()))
    return made


def optime_of(entry: bytes) -> OpTime:
    return OplogEntry(entry).optime


def write_member(folder: Path, entries: list[bytes], *, keep_undo: bool = True) -> SqliteOplog:
    """A dbpath that has applied these; keep_undo False: its undo is pruned up to its newest entry."""
    store = Store.open(RealDisk(), folder, StoreOptions(min_free_bytes=0, snapshot_history_s=300 if keep_undo else 0))
    for raw in entries:
        with store.group() as txn:
            apply_entry(txn, OplogEntry(raw))
    if not keep_undo:
        store.set_commit_point(store.last_applied)
        while remove_old_data(store, 0):
            pass
    store.close()
    return SqliteOplog(folder.name, str(folder / "replset.db"))


def change_document(oplog: SqliteOplog, key: int, document: dict[str, object] | None) -> None:
    """Damage a data file behind the store's back; None: the document goes."""
    table = f"d_{UUID.hex()}"
    with closing(sqlite3.connect(oplog.path)) as connection:
        if document is None:
            connection.execute(f"DELETE FROM {table} WHERE key = ?", (encode_key(key),))
        else:
            sql = f"UPDATE {table} SET doc = ? WHERE key = ?"
            connection.execute(sql, (encode(document), encode_key(key)))
        assert connection.total_changes == 1
        connection.commit()


def change_entry(oplog: SqliteOplog, optime: OpTime) -> None:
    """Change one byte of an entry's text; the hash beside it stays."""
    with closing(sqlite3.connect(oplog.path)) as connection:
        (entry,) = connection.execute("SELECT entry FROM oplog WHERE ts = ?", (optime.ts,)).fetchone()
        changed = bytes(entry).replace(b"Ada", b"Eve")
        assert changed != entry
        connection.execute("UPDATE oplog SET entry = ? WHERE ts = ?", (changed, optime.ts))
        connection.commit()
