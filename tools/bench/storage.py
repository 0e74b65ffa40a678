"""How much the store takes in on one core: groups through a real folder, without a network or a command before it."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from time import perf_counter

from replset.bson import ObjectIds, encode, encode_key
from replset.ids import Millis
from replset.oplog_entry import OplogEntry, insert_entry, update_entry
from replset.storage.catalog import Collection
from replset.storage.disk import RealDisk
from replset.storage.retention import remove_old_data
from replset.storage.store import Store, StoreOptions
from replset.storage.undo import undo_step

WALL = 1_700_000_000_000
NS = "bench.c"
UUID = b"u" * 16
Pair = tuple[bytes, bytes]


def documents(count: int) -> list[Pair]:
    """Keys and documents of 256 bytes."""
    ids = ObjectIds(random.Random(1))
    made = []
    for number in range(count):
        oid = ids.make(WALL // 1000 + number // 10_000)
        made.append((encode_key(oid), encode({"_id": oid, "text": "x" * 218})))
    return made


def insert(store: Store, coll: Collection, pairs: list[Pair], group: int) -> float:
    """Inserts per second in groups of `group`."""
    began = perf_counter()
    for start in range(0, len(pairs), group):
        with store.group() as txn:
            for key, doc in pairs[start : start + group]:
                optime = txn.next_optime(1, WALL)
                txn.insert_new(coll, key, doc, optime.ts)
                entry = insert_entry(NS, UUID, doc, optime, WALL)
                txn.append(entry, optime, op="i", ns=NS, key=key, wall_ms=WALL)
    return len(pairs) / (perf_counter() - began)


def update(store: Store, coll: Collection, pairs: list[Pair], group: int) -> float:
    """Replacements per second: read, write, entry."""
    began = perf_counter()
    for start in range(0, len(pairs), group):
        with store.group() as txn:
            for key, doc in pairs[start : start + group]:
                optime = txn.next_optime(1, WALL)
                before = txn.get(coll, key)
                txn.put(coll, key, doc, ts=optime.ts, before=before)
                entry = update_entry(NS, UUID, doc[:22] + b"\0", doc, optime, WALL)
                txn.append(entry, optime, op="u", ns=NS, key=key, wall_ms=WALL)
    return len(pairs) / (perf_counter() - began)


def milliseconds(call: Callable[[], object]) -> float:
    began = perf_counter()
    call()
    return (perf_counter() - began) * 1000


def run() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(RealDisk(), folder, StoreOptions(min_free_bytes=0, snapshot_history_s=0))
        with store.group() as txn:
            optime = txn.next_optime(1, WALL)
            coll = txn.create_collection(NS, UUID, {}, ts=optime.ts)
            txn.append(insert_entry(NS, UUID, encode({}), optime, WALL), optime, op="c", ns=NS, wall_ms=WALL)
        pairs = documents(64_000)
        for name, rate in (
            ("inserts/s, groups of 64", insert(store, coll, pairs[:48_000], 64)),
            ("inserts/s, groups of 8", insert(store, coll, pairs[48_000:60_000], 8)),
            ("inserts/s, one a group", insert(store, coll, pairs[60_000:], 1)),
            ("replacements/s, groups of 64", update(store, coll, pairs[:32_000], 64)),
        ):
            print(f"{name:40} {rate:10.0f}")
        rows = store.oplog_after(store.oldest, limit=2000, max_bytes=1 << 30)
        for name, ms in (
            (f"passive checkpoint of {store.wal.size >> 20} MiB, ms", milliseconds(store.wal.checkpoint)),
            ("last pass, ms", milliseconds(store.wal.last_pass)),
            ("sync of the WAL after one group, ms", _sync(store, coll)),
            ("2000 rows of the oplog from disk, ms", milliseconds(lambda: _rows(store))),
            ("OplogEntry and key of 2000, ms", milliseconds(lambda: [OplogEntry(row.entry).key() for row in rows])),
            ("a slice of pruning, ms", _prune(store)),
            ("a step of undo (500 entries), ms", milliseconds(lambda: _undo(store))),
            ("copy of the database, ms", milliseconds(lambda: store.copy_to(f"{folder}/copy.db"))),
            ("close, ms", milliseconds(store.close)),
        ):
            print(f"{name:40} {ms:10.1f}")


def _sync(store: Store, coll: Collection) -> float:
    insert(store, coll, documents(64), 64)
    return milliseconds(store.wal.sync)


def _rows(store: Store) -> None:
    with store.read() as snapshot:
        snapshot.oplog_after(store.oldest, limit=2000, max_bytes=1 << 30)


def _prune(store: Store) -> float:
    row = store.row_at_or_before(store.oldest._replace(ts=store.oldest.ts + 50_000))
    store.set_commit_point(store.last_applied if row is None else row.optime)
    return milliseconds(lambda: remove_old_data(store, Millis(0)))


def _undo(store: Store) -> None:
    row = store.row_at_or_before(store.last_applied._replace(ts=store.last_applied.ts - 500))
    if row is not None:
        undo_step(store, row.optime, stem="bench", limit=500)


if __name__ == "__main__":
    run()
