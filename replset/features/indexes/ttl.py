"""Deletes documents whose date in a TTL index has passed: on the primary, as ordinary deletes in the oplog."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from functools import partial
from typing import Any

from replset.bson import DateTime, encode_key
from replset.errors import IllegalOperationError, NotWritablePrimaryError, OutOfDiskSpaceError, ShutdownInProgressError
from replset.member.feature import FeaturePart
from replset.operations.kernel import Kernel
from replset.replication.write_ops import WriteGroup, do_delete
from replset.storage.catalog import Collection
from replset.storage.indexes import TO_THE_END, Index

log = logging.getLogger("replset.ttl")

INTERVAL_S = 60.0
SLICE_MS = 5
SLICE_ENTRIES = 200
_WAITS = (NotWritablePrimaryError, ShutdownInProgressError, OutOfDiskSpaceError, IllegalOperationError)
"""The last one: the set began to follow another one, or to hand over, while the pass ran."""
_COMPLEMENT = bytes(range(255, -1, -1))
_EARLIEST = encode_key(DateTime(-(1 << 63)))


class TtlMonitor(FeaturePart):
    """Runs as a task of its own. A pass that ends early, by a stepdown or a full disk, is done again in a minute."""

    def __init__(self, member: Kernel) -> None:
        self._member = member

    def jobs(self) -> Iterable[Coroutine[Any, Any, None]]:
        return (self.run(),)

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            if self._member.own_work_term() is not None:
                await self.work()

    async def work(self) -> None:
        """Delete everything that has expired by now."""
        try:
            for coll in self._member.store.collections():
                for index in coll.indexes:
                    if index.ready and index.expire_after_s is not None:
                        await self._expire(coll, index, index.expire_after_s)
        except _WAITS as error:
            log.info("expired documents stay for now: %s", error.message)

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
