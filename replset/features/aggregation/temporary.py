"""The temporary collections of $out: the primary drops those that a primary of an earlier term left behind."""

from __future__ import annotations

from functools import partial
from typing import Final

from replset.member.own_work import OwnWork
from replset.replication.write_ops import WriteGroup, do_drop
from replset.storage.catalog import Collection
from replset.storage.store import Store

TEMPORARY: Final = "temp"
"""The option of such a collection. No client can give it."""


class TemporaryCollections(OwnWork):
    """Drops what nobody uses any more."""

    async def do(self) -> None:
        for coll in abandoned(self._member.store):
            await self._member.write(partial(drop_abandoned, coll=coll))


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
