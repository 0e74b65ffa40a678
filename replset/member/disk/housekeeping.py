"""Work that nobody waits for: removing old data, checkpoints, checking old entries, noticing new disk space."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from replset.errors import CorruptDataError, InvariantError, OutOfDiskSpaceError, ReplError
from replset.ids import Millis, OpTime
from replset.replication.context import MemberContext
from replset.storage.retention import remove_old_data
from replset.storage.sqlite import is_about_the_disk
from replset.storage.store import Store

log = logging.getLogger("replset.housekeeping")

INTERVAL_S = 0.25
SPACE_EVERY = 8
SLICES = 25
"""How many slices of old data one round removes: up to 50,000 rows a second."""
BACKLOG_SLICES = 100
"""How many it removes after a round that left something. Inserts make 100,000 rows a second, half of them in the
oplog; without this it would grow over its size for as long as they come."""
READER_PAUSE_MS = 5_000
"""Pause after a last pass that an old reader kept from ending: another one would stop commits for nothing."""

RECHECK_EVERY_MS = 3_600_000
"""The pause from the end of one pass over the oplog to the beginning of the next."""


class Housekeeper:
    """Runs as a task of its own. Each of its steps on the event loop takes a few milliseconds."""

    def __init__(
        self,
        context: MemberContext,
        on_disk_space: Callable[[], None],
        on_damage: Callable[[str], None],
        before_checkpoint: Callable[[], Awaitable[None]],
        needed: Callable[[], OpTime | None] = lambda: None,
        copied: Callable[[], OpTime | None] = lambda: None,
    ) -> None:
        """on_disk_space: called now and then while the disk has space to write. on_damage: what is on the disk is not
        what was written. before_checkpoint: see `DurabilityMark.raise_for_checkpoint`. needed, copied: see
        `remove_old_data`. Who replaces the store takes `busy` first.
        """
        self._context = context
        self.busy = asyncio.Lock()
        self._last_pass_due = Millis(0)
        self._on_disk_space = on_disk_space
        self._on_damage = on_damage
        self._before_checkpoint = before_checkpoint
        self._needed, self._copied = needed, copied
        self._is_disk_full = False
        self._quiet_at: tuple[OpTime, OpTime] | None = None
        self._has_backlog = False
        self._found = ""
        self._rechecked: Store | None = None
        self._recheck_after = 0
        self._recheck_due = Millis(0)

    async def run(self) -> None:
        """Work until cancelled. What finds the disk full is left as it was and tried again later, and so is what does
        not fit the data, which counts as damage. Any other storage error is raised; the member must stop then.
        """
        rounds = 0
        while True:
            await asyncio.sleep(INTERVAL_S)
            rounds += 1
            looks_for_space = rounds % SPACE_EVERY == 0
            async with self.busy:
                store = self._context.store
                if looks_for_space and store.has_disk_space():
                    self._on_disk_space()
                self._recheck(store)
                if looks_for_space or not (self._is_disk_full or self._is_quiet(store)):
                    await self._round(store)

    def _is_quiet(self, store: Store) -> bool:
        """Whether nothing was written since a round that found nothing to do. An idle member does a round in eight."""
        unchanged = (store.last_applied, store.commit_point) == self._quiet_at
        return unchanged and not store.wal.needs_checkpoint and not store.wal.needs_last_pass

    async def _round(self, store: Store) -> None:
        """Do each part by itself: a checkpoint may free the space that removing old data needs, and the other way."""
        self._is_disk_full = False
        self._quiet_at = None
        with self._each_by_itself("pruning and trimming"):
            if await self._slice(store):
                await self._more_slices(store)
            else:
                self._has_backlog = False
                self._quiet_at = store.last_applied, store.commit_point
        with self._each_by_itself("the checkpoint"):
            # Also right before a last pass: what is copied here is not copied there, where commits wait for it.
            if store.wal.needs_checkpoint or self._is_last_pass_due(store):
                await self._before_checkpoint()
                await self._context.workers.run(store.wal.checkpoint)
            if self._is_last_pass_due(store):
                await self._last_pass(store)

    def _is_last_pass_due(self, store: Store) -> bool:
        return store.wal.needs_last_pass and self._context.clock.now() >= self._last_pass_due

    def _recheck(self, store: Store) -> None:
        """Check the next slice of the oplog against its hashes.

        Nobody reads old entries until a member comes back and needs them, or a rollback meets them. Checked only then,
        an entry that the disk changed long ago might be found when no other member has it any more.
        """
        now = self._context.clock.now()
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
    def _each_by_itself(self, what: str) -> Iterator[None]:
        try:
            yield
        except OutOfDiskSpaceError as error:
            log.warning("%s: %s waits", error.message, what)
            self._is_disk_full = True
        except InvariantError:
            raise
        except Exception as error:
            if is_about_the_disk(error):
                raise
            # It would come again at each start: a table that the disk lost, or a row that is none.
            why = error.message if isinstance(error, ReplError) else f"{type(error).__name__}: {error}"
            if why != self._found:
                self._found = why
                self._on_damage(f"{what} does not fit what is on this member's disk: {why}")

    async def _slice(self, store: Store) -> bool:
        now, needed, copied = self._context.clock.now(), self._needed(), self._copied()
        return await self._context.write_queue.write(lambda: remove_old_data(store, now, needed, copied))

    async def _more_slices(self, store: Store) -> None:
        """Do the rest, spread over the time to the next round: one after the other, they would all delay the same
        writes.
        """
        slices = BACKLOG_SLICES if self._has_backlog else SLICES
        for _ in range(slices):
            await asyncio.sleep(INTERVAL_S / slices)
            self._has_backlog = await self._slice(store)
            if not self._has_backlog:
                return

    async def _last_pass(self, store: Store) -> None:
        """Passive checkpoints alone never start the WAL anew under load: hold commits for one pass to its end."""
        began = self._context.clock.now()
        self._context.write_queue.pause()
        try:
            cut = store.readers.cut()
            await self._before_checkpoint()
            done = await self._context.workers.run(store.wal.last_pass)
        finally:
            self._context.write_queue.resume()
        now = self._context.clock.now()
        log.info("last pass: %s, %d ms, %d readers cut", "done" if done else "not done", now - began, cut)
        if not done:
            self._last_pass_due = Millis(now + READER_PAUSE_MS)
            log.warning(
                "the WAL of %s has %d MiB and cannot start anew: something else reads the database, or a disk is slow",
                store.path,
                store.wal.size >> 20,
            )
