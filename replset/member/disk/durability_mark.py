"""The durability mark in member.db: the newest entry that this member is known to have had on disk.

A start whose oplog ends before the mark knows that its disk lost entries which it may have acknowledged.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from replset.core.node import Node
from replset.errors import OutOfDiskSpaceError
from replset.ids import OPTIME_NULL, OpTime
from replset.member.disk.durability import Durability
from replset.replication.context import MemberContext
from replset.storage.member_file import MemberFile

RAISE_EVERY_S = 1


class DurabilityMark:
    """Raises and lowers the mark. `suspended`: the data is being replaced, so the mark must not move."""

    def __init__(self, context: MemberContext, node: Node, member_file: MemberFile, durability: Durability) -> None:
        self._context = context
        self._node = node
        self._file = member_file
        self._durability = durability
        self.suspended = False

    def durable(self) -> OpTime:
        """Return what member.db may say that this member holds: nothing that is being undone or replaced."""
        # While a rollback or a copy takes entries away, what is synced includes some that are about to go. A mark above
        # what the disk then holds would look like lost entries to the next start.
        if self.suspended or self._node.rolling_back or self._node.has_lost_data:
            return OPTIME_NULL
        return self._durability.last_durable

    async def run(self) -> None:
        """Raise the mark at most once a second, so that a start notices a WAL that was lost later."""
        while True:
            await asyncio.sleep(RAISE_EVERY_S)
            if self.durable() > self._file.durability_mark and not self._file.initial_sync_pending:
                with suppress(OutOfDiskSpaceError):  # the next second tries again
                    await self._context.workers.run(lambda: self._file.raise_mark(self.durable))

    async def raise_for_checkpoint(self) -> None:
        """Sync the WAL, raise the mark to the newest entry and note how long the WAL is, before a checkpoint copies it.

        Without this, a WAL that is cut behind the checkpoint leaves pages of the newest writes in the database beside
        older ones of the oplog. The member would serve documents of which its own oplog knows nothing, and the start
        would not notice, because the oplog still reaches the mark of a second ago. Where the oplog's newest pages are
        in the database and not in what is left of the WAL, the mark is reached too, and only the length tells. What is
        committed while the checkpoint runs is not covered.
        """
        store = self._context.store
        newest = store.last_applied

        def work() -> None:
            wal = store.wal.extent()
            store.wal.sync()
            self._file.raise_mark(lambda: OPTIME_NULL if self.durable() == OPTIME_NULL else newest, wal)

        with suppress(OutOfDiskSpaceError):  # the checkpoint may free space, and fails by itself if it cannot
            await self._context.workers.run(work)

    async def lower(self, to: OpTime) -> None:
        """Lower the mark before an undo.

        If the member crashed in the middle of the undo with the old mark, its next start would find an oplog that ends
        before the mark, and take the undone entries for entries that the disk has lost.
        """
        await self._context.workers.run(lambda: self._file.lower_mark(to))

    def raise_at_close(self) -> None:
        """Raise the mark to the newest entry: closing the store has synced all that it holds."""
        if self.durable() != OPTIME_NULL:
            newest = self._context.store.last_applied
            with suppress(OutOfDiskSpaceError):
                self._file.raise_mark(lambda: newest)
