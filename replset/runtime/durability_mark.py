"""The durability mark in member.db: the newest entry that this member is known to have had on disk.

A start whose oplog ends before the mark knows that its disk lost entries which it may have acknowledged.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from replset.core.node import Node
from replset.errors import OutOfDiskSpaceError
from replset.ids import OPTIME_NULL, OpTime
from replset.replication.context import MemberContext
from replset.runtime.durability import Durability
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
