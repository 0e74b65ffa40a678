"""Replacing a member's data by a copy, on the side of its own files; `replication/initial_sync.py` fetches the copy."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from replset.core.node import Node
from replset.errors import ReplError
from replset.ids import OPTIME_NULL, OpTime
from replset.member.disk.durability import Durability
from replset.member.disk.durability_mark import DurabilityMark
from replset.member.disk.member_files import MemberFiles
from replset.replication.context import MemberContext
from replset.replication.disk_space import retry_while_disk_full
from replset.replication.initial_sync import InitialSyncMarker, RequiredEntries, newest_entry_to_keep
from replset.replication.initial_sync_progress import InitialSyncProgress
from replset.storage.copies import install_copy


class DataReplacement:
    """Keeps the marker of an initial sync in member.db and puts a finished copy in the place of the data."""

    def __init__(
        self,
        context: MemberContext,
        files: MemberFiles,
        node: Node,
        mark: DurabilityMark,
        durability: Durability,
        *,
        busy: asyncio.Lock,
        close_readers: Callable[[], Awaitable[None]],
        on_installed: Callable[[], None],
    ) -> None:
        """busy: taken while the store is replaced, as by all that works on it in the background."""
        self._context = context
        self._files = files
        self._node = node
        self._mark = mark
        self._durability = durability
        self._busy = busy
        self._close_readers = close_readers
        self._on_installed = on_installed

    def required(self) -> RequiredEntries:
        """Return what a copy must hold, with what an earlier attempt saved in member.db."""
        file, store = self._files.member_file, self._context.store
        # What an earlier attempt saved counts too. After a crash in the swap the store may be empty or the copy, while
        # others still count what the old data was known to hold: a shorter copy would take acknowledged entries from
        # the set.
        lost = file.durability_mark if self._node.has_lost_data else OPTIME_NULL
        return RequiredEntries(
            max(newest_entry_to_keep(store), file.initial_sync_newest, lost),
            max(self._node.commit_point, file.initial_sync_committed, store.saved_commit_point()),
        )

    async def set_marker(self, required: RequiredEntries) -> InitialSyncMarker:
        """Note durably in member.db that an initial sync has begun; while that is there the data does not count."""
        file, rollback_id = self._files.member_file, self._context.store.rollback_id
        lost, requested = self._node.has_lost_data, self._node.is_resync_requested
        sync_id = await self._context.workers.run(
            lambda: file.begin_initial_sync(
                newest=required.newest,
                committed=required.committed,
                rollback_id=rollback_id,
                data_lost=lost,
                requested=requested,
            )
        )
        return InitialSyncMarker(sync_id, file.incarnation)

    async def claim(self, newest: OpTime) -> str:
        """Take the copy, which ends at `newest`, for this member's data; return the member's incarnation from now."""
        return await self._context.workers.run(lambda: self._files.member_file.claim_copy(newest))

    async def install(self, copy: str, progress: InitialSyncProgress) -> None:
        """Put a fetched copy in the place of the data, with nothing else at work on it.

        A full disk is waited for, since there is no way back once the store is closed. Any other failure stops the
        member.
        """
        # Nothing may work on the old files any more. A sync, the mark or a reader would otherwise report or show what
        # is being replaced, and housekeeping would use a store that is closed.
        self._mark.suspended = True
        async with self._durability.paused(), self._busy:
            await self._close_readers()
            try:
                await self._swap(copy, progress)
            except (ReplError, OSError) as error:
                self._context.on_broken(error)
                raise
            self._durability.on_store_opened()
            self._mark.suspended = False
        self._on_installed()

    async def _swap(self, copy: str, progress: InitialSyncProgress) -> None:
        """Close the store, put the copy in its place, clear the marker and open the store again, in this order.

        A crash between two steps leaves either the marker, and the next start begins a new initial sync, or a complete
        copy.
        """
        context, file = self._context, self._files.member_file
        rollback_id = max(context.store.rollback_id, file.rollback_id_floor)
        keep_indexes = self._node.builds_indexes()

        async def install() -> None:
            await context.workers.run(
                lambda: install_copy(
                    context.disk,
                    context.dbpath,
                    copy,
                    rollback_id_before=rollback_id,
                    check_entries=0,
                    keep_indexes=keep_indexes,
                )
            )

        async def clear_marker() -> None:
            await context.workers.run(file.end_initial_sync)

        async def open_again() -> None:
            context.store = self._files.open_store()

        context.store.close()
        for step in (install, clear_marker, open_again):
            await retry_while_disk_full(step, "installing the copy", progress=progress)
