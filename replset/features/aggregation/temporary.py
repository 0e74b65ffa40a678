"""The temporary collections of $out: the primary drops those that a primary of an earlier term left behind."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from functools import partial
from typing import Any, Final

from replset.errors import IllegalOperationError, NotWritablePrimaryError, OutOfDiskSpaceError, ShutdownInProgressError
from replset.member.feature import FeaturePart
from replset.operations.kernel import Kernel
from replset.replication.write_ops import WriteGroup, do_drop
from replset.storage.catalog import Collection
from replset.storage.store import Store

log = logging.getLogger("replset.commands")

TEMPORARY: Final = "temp"
"""The option of such a collection. No client can give it."""
INTERVAL_S = 60.0
_WAITS = (NotWritablePrimaryError, ShutdownInProgressError, OutOfDiskSpaceError, IllegalOperationError)
"""The last one: the set began to follow another one, or to hand over, meanwhile."""


class TemporaryCollections(FeaturePart):
    """Runs as a task of its own. What it could not drop, it drops in a minute."""

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
        """Drop what nobody uses any more."""
        try:
            for coll in abandoned(self._member.store):
                await self._member.write(partial(drop_abandoned, coll=coll))
        except _WAITS as error:
            log.info("temporary collections stay for now: %s", error.message)


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
