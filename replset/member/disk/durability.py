"""Syncs the WAL continuously and owns last_durable, the newest entry that is on disk for good.

The covered optime is read on the loop before the sync is submitted, so last_durable never runs ahead of the disk.
A failed sync ends the process: after one, nobody knows which pages the kernel still holds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from replset.core.messages import Position
from replset.ids import OPTIME_NULL, Millis, OpTime
from replset.operations.current_operations import SECONDS, Histogram
from replset.replication.context import MemberContext
from replset.replication.ports import SyncThread
from replset.storage.store import Store

log = logging.getLogger("replset.durability")

STALL_CHECKS: Final = 10
"""Checks that must find the same sync unfinished before its disk counts as stalled."""
LATE_MS: Final = 200
"""A check that comes later than this is not counted: this process did not run, so it proves nothing of the disk."""


class Sync:
    """Runs one sync in a thread. A slow disk is the cause of a delay only between `begun` and `ended`.

    target: the newest entry that it covers. epoch: of Durability; the sync counts only while that is the same.
    """

    def __init__(self, store: Store, epoch: int = 0) -> None:
        self._store = store
        self.target, self.wall_ms = store.last_applied, store.last_wall_ms
        self.epoch = epoch
        self.begun = False
        self.ended = False

    def __call__(self) -> None:
        self.begun = True
        try:
            self._store.wal.sync()
        finally:
            self.ended = True


class Durability:
    """Syncs the WAL whenever something newer than last_durable is committed, one sync at a time.

    No task stands between a commit and its sync: under load each turn of the loop takes milliseconds, and each task
    or future in between takes one more turn.
    """

    def __init__(
        self,
        context: MemberContext,
        thread: SyncThread,
        *,
        on_moved: Callable[[], None],
        on_synced: Callable[[float], None],
        on_stalled: Callable[[bool], None],
        stall_after_ms: Callable[[], Millis],
    ) -> None:
        """on_moved: called after each finished sync. on_synced: with how many seconds each one took.

        on_stalled: called with True when a sync has run for `stall_after_ms`, and with False when it has finished.
        A caller that replaces the store does so while it is `paused`.
        """
        self._context = context
        self._thread = thread
        self._on_moved = on_moved
        self._on_synced = on_synced
        self._on_stalled = on_stalled
        self._stall_after_ms = stall_after_ms
        self._sync: Sync | None = None  # under way
        self._sync_began = context.clock.now()
        self.sync_times = Histogram(SECONDS)
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._pauses = 0
        self._stalled = False
        self._epoch = 0
        self._timer: asyncio.TimerHandle | None = None  # of the next check, which is for whatever sync runs then
        self._checked: Sync | None = None  # the one that the last check saw, and
        self._checks = 0  # how many checks saw the disk at work on it
        self.last_durable: OpTime = OPTIME_NULL
        self.durable_wall_ms = 0
        self.on_store_opened()

    def on_store_opened(self) -> None:
        """Handle the opening of the store. It ends with a full checkpoint, so everything in the store is durable."""
        self._epoch += 1
        store = self._context.store
        self.last_durable, self.durable_wall_ms = store.last_applied, store.last_wall_ms

    def on_undone(self) -> None:
        """Handle a rollback: last_durable moves back with the removed entries, and a running sync does not count."""
        self._epoch += 1
        store = self._context.store
        if store.last_applied < self.last_durable:
            self.last_durable, self.durable_wall_ms = store.last_applied, store.last_wall_ms
        self.on_committed()

    def position(self) -> Position:
        store = self._context.store
        return Position(store.last_applied, self.last_durable, store.last_wall_ms, self.durable_wall_ms)

    def on_committed(self) -> None:
        """Something was committed: sync it, now or when the sync under way has ended."""
        store = self._context.store
        if self._sync is not None or self._pauses or store.last_applied == self.last_durable:
            return
        self._sync, self._sync_began = Sync(store, self._epoch), self._context.clock.now()
        self._is_idle.clear()
        if self._timer is None:
            self._checked, self._checks = self._sync, 0
            self._check_later()
        try:
            self._thread.start(self._sync, self._on_ended)
        except RuntimeError as error:  # the system gives no thread
            self._on_ended(error)

    def _on_ended(self, error: BaseException | None) -> None:
        """Handle the end of a sync. After one that failed, nothing counts as durable any more: the member must stop."""
        try:
            self._finish(error)
        except Exception as broken:  # on the loop nobody else would notice, and no further sync would begin
            self._context.on_broken(broken)

    def _finish(self, error: BaseException | None) -> None:
        sync, self._sync = self._sync, None
        took_s = (self._context.clock.now() - self._sync_began) / 1000
        self.sync_times.observe(took_s)
        self._on_synced(took_s)
        self._is_idle.set()
        if error is not None:
            self._pauses += 1
            self._context.on_broken(error)
            return
        if self._stalled:
            self._stalled = False
            self._on_stalled(False)
        # A sync that began before a rollback, or before the store was replaced, may cover entries that are gone. Others
        # would count them for a majority write.
        if sync is not None and sync.epoch == self._epoch:
            self.last_durable, self.durable_wall_ms = sync.target, sync.wall_ms
            self._on_moved()
        self.on_committed()

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Let no sync run inside: the sync under way is waited for, the next one begins at the end."""
        self._pauses += 1
        try:
            await self._is_idle.wait()
            yield
        finally:
            self._pauses -= 1
            self.on_committed()

    async def close(self) -> None:
        """Begin no sync any more. On return none is under way."""
        self._pauses += 1
        await self._is_idle.wait()
        if self._timer is not None:
            self._timer.cancel()

    def _check_later(self) -> None:
        wait_ms = self._stall_after_ms() / STALL_CHECKS
        due = Millis(self._context.clock.now() + int(wait_ms))
        self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._check_stall, due)

    def _check_stall(self, due: Millis) -> None:
        """Look whether the disk is still at work on the sync that the last check saw."""
        self._timer, sync = None, self._sync
        if sync is None:
            return
        late_ms = self._context.clock.now() - due
        # Only time in which the thread was inside the sync counts against the disk. A sync may also wait for its
        # thread, or the whole process may not have run. A primary that stepped down for that would give up its place
        # although its disk works, and its log would blame the disk. Meanwhile the entries of this sync do not count as
        # durable.
        if sync is not self._checked:
            self._checked, self._checks = sync, 0
        elif late_ms > LATE_MS:
            log.warning("the event loop was blocked for %d ms, which is not counted for the sync under way", late_ms)
        elif sync.begun and not sync.ended:
            self._checks += 1
        if self._checks < STALL_CHECKS:
            self._check_later()
            return
        self._stalled = True
        self._on_stalled(True)
