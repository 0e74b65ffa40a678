"""Deletes documents whose date in a TTL index has passed: on the primary, as ordinary deletes in the oplog.

The primary also drops the temporary collections of $out that a primary of an earlier term left behind.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from replset.bson import DateTime, encode_key
from replset.errors import IllegalOperationError, NotWritablePrimaryError, OutOfDiskSpaceError, ShutdownInProgressError
from replset.replication.context import MemberContext
from replset.replication.write_ops import WriteGroup, do_delete, do_drop
from replset.storage.catalog import Collection
from replset.storage.indexes import TO_THE_END, Index
from replset.storage.store import Store

log = logging.getLogger("replset.ttl")

INTERVAL_S = 60.0
SLICE_MS = 5
SLICE_ENTRIES = 200
_WAITS = (NotWritablePrimaryError, ShutdownInProgressError, OutOfDiskSpaceError, IllegalOperationError)
"""The last one: the set began to follow another one, or to hand over, while the pass ran."""
_COMPLEMENT = bytes(range(255, -1, -1))
_EARLIEST = encode_key(DateTime(-(1 << 63)))


class TtlMonitor:
    """Runs as a task of its own. A pass that ends early, by a stepdown or a full disk, is done again in a minute."""

    def __init__(
        self,
        context: MemberContext,
        *,
        leads_in: Callable[[], int | None],
        write: Callable[[Callable[[WriteGroup], bool]], Awaitable[bool]],
    ) -> None:
        """leads_in: the term in which this member accepts writes. write: see Kernel.write."""
        self._context = context
        self._leads_in = leads_in
        self._write = write
        self.interval_s = INTERVAL_S
        self.passes = 0
        self.deleted = 0

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await asyncio.sleep(self.interval_s)
            if self._leads_in() is not None:
                await self.work()

    async def work(self) -> None:
        """Delete everything that has expired by now, and temporary collections that nobody uses any more."""
        try:
            for coll in abandoned(self._context.store):
                await self._write(partial(drop_abandoned, coll=coll))
            for coll in self._context.store.collections():
                for index in coll.indexes:
                    if index.ready and index.expire_after_s is not None:
                        await self._expire(coll, index, index.expire_after_s)
        except _WAITS as error:
            log.info("expired documents stay for now: %s", error.message)
        self.passes += 1

    async def _expire(self, coll: Collection, index: Index, after_s: float) -> None:
        latest = encode_key(DateTime(self._context.clock.wall_ms() - int(after_s * 1000)))
        low, high = _EARLIEST, latest
        if index.fields[0][1] < 0:
            low, high = latest.translate(_COMPLEMENT), _EARLIEST.translate(_COMPLEMENT)
        more = True
        while more:
            more = await self._write(lambda group: self._delete_slice(group, coll.uuid, index, low, high + TO_THE_END))
            await asyncio.sleep(0)

    def _delete_slice(self, group: WriteGroup, uuid: bytes, index: Index, low: bytes, high: bytes) -> bool:
        """Delete the next documents in this range of the index. True: call again."""
        clock, txn = self._context.clock, group.txn
        until = clock.now() + SLICE_MS
        coll = txn.catalog.by_uuid.get(uuid)
        if coll is None or coll.dropped_ts is not None:
            return False
        if all((index.id, index.spec) != (known.id, known.spec) for known in coll.indexes):
            return False  # dropped or changed meanwhile
        rows = txn.index_scan(index, low, high, limit=SLICE_ENTRIES)
        deleted = self.deleted
        for key in dict.fromkeys(key for _, key in rows):
            before = txn.get(coll, key)
            if before is not None and not group.held.is_held((uuid, key)):  # what a transaction holds waits its turn
                do_delete(group, coll, key, before)
                self.deleted += 1
            if clock.now() >= until:
                break
        return self.deleted > deleted


TEMPORARY: Final = "temp"
"""The option of such a collection. No client can give it."""


def abandoned(store: Store) -> list[Collection]:
    """Return the temporary collections that were made before the newest term began.

    A command that makes one does not go on in another term, so nobody uses them.
    """
    found = [coll for coll in store.collections() if coll.options.get(TEMPORARY) is True]
    if not found:
        return []
    begin = max(span.first.ts for span in store.terms())
    return [coll for coll in found if coll.created_ts < begin]


def drop_abandoned(group: WriteGroup, coll: Collection) -> bool:
    """Drop it, unless somebody else did."""
    known = group.txn.catalog.by_uuid.get(coll.uuid)
    if known is None or known.dropped_ts is not None or known.options.get(TEMPORARY) is not True:
        return False
    do_drop(group, known)
    return True
