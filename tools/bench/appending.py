"""`python -m tools.bench.appending DBPATH RATE SECONDS`: a member's store that takes in RATE inserts a second.

Written as a member writes: groups through the product's Store, each entry with the wall of its moment; what a member
does beside writing (checkpoints, pruning) is done here in the same rhythm, once a second.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from replset.bson import ObjectIds, encode, encode_key
from replset.oplog_entry import insert_entry
from replset.storage.disk import RealDisk
from replset.storage.store import Store, StoreOptions

NS = "bench.c"
UUID = b"u" * 16
_GROUP_S = 0.005


def append(dbpath: Path, rate: int, seconds: float) -> int:
    """How many entries it became; their pace is held to the clock, not to the last group."""
    store = Store.open(RealDisk(), str(dbpath), StoreOptions(min_free_bytes=0, snapshot_history_s=0))
    with store.group() as txn:
        wall_ms = time.time_ns() // 1_000_000
        optime = txn.next_optime(1, wall_ms)
        coll = txn.create_collection(NS, UUID, {}, ts=optime.ts)
        txn.append(insert_entry(NS, UUID, encode({}), optime, wall_ms), optime, op="c", ns=NS, wall_ms=wall_ms)
    ids = ObjectIds(random.Random(1))
    written, began, kept = 0, time.monotonic(), 0.0
    while (past := time.monotonic() - began) < seconds:
        due = int(past * rate)
        with store.group() as txn:
            for _ in range(due - written):
                wall_ms = time.time_ns() // 1_000_000
                oid = ids.make(wall_ms // 1000)
                key, doc = encode_key(oid), encode({"_id": oid, "text": "x" * 218})
                optime = txn.next_optime(1, wall_ms)
                txn.insert_new(coll, key, doc, optime.ts)
                entry = insert_entry(NS, UUID, doc, optime, wall_ms)
                txn.append(entry, optime, op="i", ns=NS, key=key, wall_ms=wall_ms)
        written = due
        if past - kept >= 1:
            kept = past
            store.wal.sync()
            store.wal.checkpoint()
        time.sleep(_GROUP_S)
    store.close()
    return written


if __name__ == "__main__":
    print(append(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
