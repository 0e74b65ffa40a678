"""What nobody waits for: pruning, trimming, checkpoints, checking old entries, noticing that a full disk has room."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from replset.errors import CorruptDataError, OutOfDiskSpaceError
from replset.ids import Millis
from replset.replication.ports import Clock, Workers
from replset.replication.write_queue import WriteQueue
from replset.storage.retention import remove_old_data
from replset.storage.store import Store

log = logging.getLogger("replset.housekeeping")

INTERVAL_S = 0.25
ROOM_EVERY = 8
READER_PAUSE_MS = 5_000
"""After a last pass that an old reader kept from its end: commits are not held again and again for nothing."""

RECHECK_EVERY_MS = 3_600_000
"""From the end of one pass over the oplog to the beginning of the next."""


class Housekeeper:
    """A task beside the rest; whatever it does on the loop takes a few milliseconds at a time."""

    def __init__(
        self,
        store: Callable[[], Store],
        clock: Clock,
        workers: Workers,
        write_queue: WriteQueue,
        on_room: Callable[[], None],
        on_damage: Callable[[str], None],
    ) -> None:
        """on_room: told now and then while the disk has room to write. on_damage: an oplog entry is not what was
        written. Who replaces the store takes `busy` first.
        """
        self._store = store
        self._clock = clock
        self._workers = workers
        self.busy = asyncio.Lock()
        self._write_queue = write_queue
        self._last_pass_due = Millis(0)
        self._on_room = on_room
        self._on_damage = on_damage
        self._waits = False
        self._rechecked: Store | None = None
        self._recheck_after = 0
        self._recheck_due = Millis(0)

    async def run(self) -> None:
        """For as long as the member runs. What finds no room on the disk is left as it was and tried again later; any
        other storage error is raised, the member must stop then.
        """
        rounds = 0
        while True:
            await asyncio.sleep(INTERVAL_S)
            rounds += 1
            looks_for_room = rounds % ROOM_EVERY == 0
            async with self.busy:
                store = self._store()
                if looks_for_room and store.has_disk_space():
                    self._on_room()
                self._recheck(store)
                if looks_for_room or not self._waits:
                    await self._round(store)

    async def _round(self, store: Store) -> None:
        """Each part by itself: a checkpoint may make the room in the WAL that pruning needs, and the other way."""
        self._waits = False
        with self._unless_full("pruning and trimming"):
            if await self._slice(store):
                await self._more_slices(store)
        with self._unless_full("the checkpoint"):
            if store.wal.needs_checkpoint:
                await self._workers.run(store.wal.checkpoint)
            if store.wal.needs_last_pass and self._clock.now() >= self._last_pass_due:
                await self._last_pass(store)

    def _recheck(self, store: Store) -> None:
        """The next slice of the oplog, so that what a disk changes is found while others still hold it whole: old
        entries are read by nobody until a member comes back and needs them, or a rollback meets them.
        """
        now = self._clock.now()
        if store is not self._rechecked:
            self._rechecked, self._recheck_after, self._recheck_due = store, 0, now
        if now < self._recheck_due:
            return
        try:
            self._recheck_after = store.recheck(self._recheck_after)
        except CorruptDataError as error:
            self._recheck_after = 0
            self._on_damage(error.message)
        if not self._recheck_after:
            self._recheck_due = Millis(now + RECHECK_EVERY_MS)

    @contextmanager
    def _unless_full(self, what: str) -> Iterator[None]:
        try:
            yield
        except OutOfDiskSpaceError as error:
            log.warning("%s: %s waits", error.message, what)
            self._waits = True

    async def _slice(self, store: Store) -> bool:
        return await self._write_queue.write(lambda: remove_old_data(store, self._clock.wall_ms()))

    async def _more_slices(self, store: Store) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
            if not await self._slice(store):
                return

    async def _last_pass(self, store: Store) -> None:
        """Passive checkpoints alone never start the WAL anew under load: hold commits for one pass to its end."""
        began = self._clock.now()
        self._write_queue.pause()
        try:
            cut = store.readers.cut()
            done = await self._workers.run(store.wal.last_pass)
        finally:
            self._write_queue.resume()
        now = self._clock.now()
        log.info("last pass: %s, %d ms, %d readers cut", "done" if done else "not done", now - began, cut)
        if not done:
            self._last_pass_due = Millis(now + READER_PAUSE_MS)
            log.warning(
                "the WAL of %s has %d MiB and cannot start anew: something else reads the database, or a disk is slow",
                store.path,
                store.wal.size >> 20,
            )
