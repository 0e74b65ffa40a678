"""Deletes documents whose date in a TTL index has passed: on the primary, as ordinary deletes in the oplog."""

from __future__ import annotations

import asyncio
from functools import partial

from replset.bson import DateTime, encode_key
from replset.member.own_work import OwnWork
from replset.replication.write_ops import WriteGroup, do_delete
from replset.storage.catalog import Collection
from replset.storage.indexes import TO_THE_END, Index

SLICE_MS = 5
SLICE_ENTRIES = 200
_COMPLEMENT = bytes(range(255, -1, -1))
_EARLIEST = encode_key(DateTime(-(1 << 63)))


class TtlMonitor(OwnWork):
    """Deletes everything that has expired by now."""

    async def do(self) -> None:
        for coll in self._member.store.collections():
            for index in coll.indexes:
                if index.ready and index.expire_after_s is not None:
                    await self._expire(coll, index, index.expire_after_s)

    async def _expire(self, coll: Collection, index: Index, after_s: float) -> None:
        latest = encode_key(DateTime(self._member.clock.wall_ms() - int(after_s * 1000)))
        low, high = _EARLIEST, latest
        if index.fields[0][1] < 0:
            low, high = latest.translate(_COMPLEMENT), _EARLIEST.translate(_COMPLEMENT)
        delete = partial(self._delete_slice, uuid=coll.uuid, index=index, low=low, high=high + TO_THE_END)
        more = True
        while more:
            more = await self._member.write(delete)
            await asyncio.sleep(0)

    def _delete_slice(self, group: WriteGroup, uuid: bytes, index: Index, low: bytes, high: bytes) -> bool:
        """Delete the next documents in this range of the index. True: call again."""
        clock, txn = self._member.clock, group.txn
        until = clock.now() + SLICE_MS
        coll = txn.catalog.by_uuid.get(uuid)
        if coll is None or coll.dropped_ts is not None:
            return False
        if all((index.id, index.spec) != (known.id, known.spec) for known in coll.indexes):
            return False  # dropped or changed meanwhile
        rows, more = txn.index_scan(index, low, high, limit=SLICE_ENTRIES), False
        for key in dict.fromkeys(key for _, key in rows):
            before = txn.get(coll, key)
            if before is not None and not group.held.is_held((uuid, key)):  # what a transaction holds waits its turn
                do_delete(group, coll, key, before)
                more = True
            if clock.now() >= until:
                break
        return more
