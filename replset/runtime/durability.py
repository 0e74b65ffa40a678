"""What is on disk for good: the continuous sync of the WAL, and checkpoints. Owns last_durable.

The covered optime is read on the loop before the sync is submitted, so last_durable never runs ahead of the disk.
A failed sync ends the process: after one, nobody knows which pages the kernel still holds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from replset.core.messages import Position
from replset.ids import OPTIME_NULL, Millis, OpTime
from replset.replication.ports import Clock, Workers
from replset.storage.store import Store

log = logging.getLogger("replset.durability")

LATE_MS: Final = 200
"""A look at the sync that comes so late says that the loop was held, and nothing of the disk."""


class Durability:
    """Syncs the WAL whenever something newer than last_durable is committed."""

    def __init__(
        self,
        store: Callable[[], Store],
        clock: Clock,
        workers: Workers,
        on_moved: Callable[[], None],
        on_stalled: Callable[[bool], None],
        stall_after_ms: Callable[[], Millis],
    ) -> None:
        """on_moved: told of each finished sync. on_stalled: told when none finished for `stall_after_ms` (True), and
        when the next one did (False). Who replaces the store takes `busy` first.
        """
        self._store = store
        self._clock = clock
        self._workers = workers
        self.busy = asyncio.Lock()
        self._on_moved = on_moved
        self._on_stalled = on_stalled
        self._stall_after_ms = stall_after_ms
        self._dirty = asyncio.Event()
        self._stalled = False
        self._epoch = 0
        self._timer: asyncio.TimerHandle | None = None
        self.last_durable: OpTime = OPTIME_NULL
        self.durable_wall_ms = 0

    def opened(self) -> None:
        """The store was opened, which ends with a full checkpoint: all that it holds is durable."""
        self._epoch += 1
        store = self._store()
        self.last_durable, self.durable_wall_ms = store.last_applied, store.last_wall_ms

    def undone(self) -> None:
        """A rollback took entries away: last_durable cannot be newer, and a sync under way says nothing of them."""
        self._epoch += 1
        store = self._store()
        if store.last_applied < self.last_durable:
            self.last_durable, self.durable_wall_ms = store.last_applied, store.last_wall_ms
        self._dirty.set()

    def position(self) -> Position:
        store = self._store()
        return Position(store.last_applied, self.last_durable, store.last_wall_ms, self.durable_wall_ms)

    def committed(self) -> None:
        """Something was committed: sync it."""
        self._dirty.set()

    async def run(self) -> None:
        """Sync for as long as the member runs. A sync error is raised; the member must stop then."""
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            async with self.busy:
                await self._sync()

    async def _sync(self) -> None:
        store, epoch = self._store(), self._epoch
        target, wall_ms = store.last_applied, store.last_wall_ms
        if target == self.last_durable:
            return
        self._watch()
        try:
            await self._workers.run(store.sync_wal)
        finally:
            if self._timer is not None:
                self._timer.cancel()
        if self._stalled:
            self._stalled = False
            self._on_stalled(False)
        if epoch == self._epoch:
            self.last_durable, self.durable_wall_ms = target, wall_ms
            self._on_moved()

    def _watch(self) -> None:
        """Look at the sync under way once it has taken too long."""
        wait_ms = self._stall_after_ms()
        due = Millis(self._clock.now() + wait_ms)
        self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._stall, due)

    def _stall(self, due: Millis) -> None:
        late_ms = self._clock.now() - due
        if late_ms > LATE_MS:
            # The loop was held, not the disk: the sync may have ended long ago, and the loop has not come to hear of
            # it. A primary that stepped down now would leave a disk that is well, and tell its operator the opposite.
            log.warning("the event loop was held for %d ms; the sync under way is given as long again", late_ms)
            self._watch()
            return
        self._stalled = True
        self._on_stalled(True)
