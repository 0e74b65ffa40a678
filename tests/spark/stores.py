"""Members' files with documents, made by the store itself: one history, each member up to some entry of it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from replset.bson import encode, encode_key
from replset.ids import OpTime
from replset.oplog_entry import OplogEntry
from replset.replication.applier import apply_entry
from replset.storage.disk import RealDisk
from replset.storage.retention import remove_old_data
from replset.storage.store import Store, StoreOptions
from spark.readers.sqlite import SqliteOplog
from tests.spark.audit_kit import Story
from tests.spark.kit import change

UUID, OTHER_UUID = b"1" * 16, b"2" * 16
NS = "shop.orders"


def entries_of(count: int) -> list[bytes]:
    """A second each: the set, two collections, then documents inserted, changed and some deleted."""
    story = Story(per_second=1).initiated()
    story.command({"create": "orders"}, UUID)
    story.command({"create": "users"}, OTHER_UUID)
    for number in range(count):
        key = number % 7
        if (UUID, encode_key(key)) not in story.documents:
            story.insert({"_id": key, "n": number}, UUID)
        elif number % 5 == 0:
            story.delete(key, UUID)
        else:
            story.update({"_id": key, "n": number}, UUID)
    story.insert({"_id": "u", "name": "Ada"}, OTHER_UUID, "shop.users")
    return [row[-1] for row in story.pending]


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
    if document is None:
        done = change(oplog.path, f"DELETE FROM d_{UUID.hex()} WHERE key = ?", encode_key(key))
    else:
        sql = f"UPDATE d_{UUID.hex()} SET doc = ? WHERE key = ?"
        done = change(oplog.path, sql, encode(document), encode_key(key))
    assert done == 1


def change_entry(oplog: SqliteOplog, optime: OpTime) -> None:
    """Change the bytes of an entry's text; the hash beside it stays."""
    with closing(sqlite3.connect(oplog.path)) as connection:
        ((entry,),) = connection.execute("SELECT entry FROM oplog WHERE ts = ?", (optime.ts,))
    assert b"Ada" in entry
    change(oplog.path, "UPDATE oplog SET entry = ? WHERE ts = ?", entry.replace(b"Ada", b"Eve"), optime.ts)
