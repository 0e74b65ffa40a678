"""Rollback on rejoin: the common point, the files, the undo in bounded steps, and finishing after a crash.

Order is everything here. Files, folder and a planned manifest are durable before the first undo; the first step's
transaction writes the mark (manifest id, common point) and raises the rollback id; the last step's turns it into the
done mark; that is synced before the manifest is rewritten as finished. After a crash `finish_rollbacks` does the rest.
A disk that is full is waited for, wherever it happens: what is done stays, nothing is undone unrecorded. Whether to
roll back at all, and with whom, is the core's decision.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from replset.core.messages import DamageFound, RollbackEnded
from replset.core.node import Node
from replset.errors import (
    DamagedEntryError,
    ReplError,
    UnrecoverableRollbackError,
)
from replset.ids import OPTIME_NULL, HostPort, OpTime
from replset.replication.common_point import ChainDiffersError, CommonPoint, NoCommonPointError
from replset.replication.context import MemberContext
from replset.replication.ports import Peer
from replset.replication.rollback_files import RollbackFiles
from replset.replication.rollback_manifest import Manifest, RollbackState, manifests_on, settle_manifest, sync_names
from replset.replication.rollback_progress import RollbackPhase, RollbackProgress
from replset.storage.sqlite import is_disk_full
from replset.storage.undo import clear_rollback_done, rollback_done_marks, rollback_in_progress, undo_step

log = logging.getLogger("replset.rollback")
T = TypeVar("T")

UNDO_STEP_ENTRIES = 200
ROOM_MARGIN_BYTES = 1 << 20
REFUSED = "refused rollback"


class TooFarBackError(UnrecoverableRollbackError):
    """The common point lies before what must stay, or before what the undo reaches back to (127)."""

    def __init__(self, message: str, common_point: OpTime) -> None:
        super().__init__(message)
        self.common_point = common_point


@dataclass(frozen=True, slots=True)
class RollbackOptions:
    """room_pause_ms: between two looks at a disk that is full."""

    room_pause_ms: int = 1_000


class Rollback:
    """Runs one rollback at a time towards a source; the member is in ROLLBACK and nothing else writes meanwhile."""

    def __init__(
        self,
        context: MemberContext,
        *,
        peer: Peer,
        node: Node,
        on_undo_begins: Callable[[OpTime], Awaitable[None]],
        options: RollbackOptions | None = None,
    ) -> None:
        """on_undo_begins: awaited with the common point before the first undo step."""
        self._context = context
        self._peer = peer
        self._node = node
        self._on_undo_begins = on_undo_begins
        self._options = options or RollbackOptions()
        self.progress = RollbackProgress()

    async def run(self, source: HostPort) -> None:
        """Find the common point with `source`, write the files, undo, finish; reports RollbackEnded.

        Waits while the disk is full. Whatever else fails before the first undo is reported. What fails after it goes to
        `on_broken`: the member must stop, and its next start finishes the rollback.
        """
        await self._running(source, self._rolled_back(source))

    async def finish(self) -> None:
        """End what a crash interrupted, for a start that found no room for it; reports RollbackEnded."""
        await self._running(None, self._finished())

    async def _running(self, source: HostPort | None, work: Awaitable[RollbackEnded]) -> None:
        self.progress.begin(source, self._context.clock.wall_ms())
        try:
            ended = await work
        except (ReplError, OSError) as error:
            self._context.on_broken(error)
            return
        finally:
            self.progress.running = False
        log.warning("rollback towards %s %s: %s", source, "done" if ended.ok else "not done", ended.detail)
        self._context.on_report(ended)

    async def _rolled_back(self, source: HostPort) -> RollbackEnded:
        # A crash may have left an earlier rollback half done: that one comes first.
        await self._settle()
        ended, manifest = await self._prepared(source)
        if manifest is not None:
            self.progress.undo(manifest.id)
            before = self._context.store.undone_entries
            common = manifest.common_point
            await self._when_room(lambda: self._on_undo_begins(common))
            await self._when_room(
                lambda: undo(self._context, manifest.common_point, manifest.id, self._on_undone(before))
            )
            await self._settle()
        return ended

    async def _finished(self) -> RollbackEnded:
        await self._settle()
        return RollbackEnded(self._context.identity.member, True, False, False, "finished what was interrupted")

    def _on_undone(self, before: int) -> Callable[[], None]:
        def told() -> None:
            self.progress.undone = self._context.store.undone_entries - before
            self._context.on_undone()

        return told

    async def _settle(self) -> None:
        self.progress.phase = RollbackPhase.SETTLING
        on_undone = self._on_undone(self._context.store.undone_entries)
        await self._when_room(lambda: finish_rollbacks(self._context, on_undone))

    async def _prepared(self, source: HostPort) -> tuple[RollbackEnded, Manifest | None]:
        """What to report, at once or once everything behind the manifest's common point is undone."""
        try:
            # After a full disk all is asked again: the source may have changed, and nothing is undone yet.
            common, manifest = await self._when_room(lambda: self._recorded(source))
        except DamagedEntryError as error:
            self._context.on_report(DamageFound(error.message))
            return RollbackEnded(source, False, True, False, error.message), None
        except NoCommonPointError as error:
            return RollbackEnded(source, False, False, True, error.message), None
        except ChainDiffersError as error:
            return RollbackEnded(source, False, True, False, error.message, error.at), None
        except UnrecoverableRollbackError as error:
            return RollbackEnded(source, False, False, False, await self._quarantined(source, error)), None
        except (ReplError, OSError) as error:
            return RollbackEnded(source, False, True, False, str(error)), None
        if manifest is None:
            return RollbackEnded(source, True, False, False, f"nothing to undo: {source} holds {common}"), None
        detail = f"undid {manifest.entries} entries, {manifest.first} to {manifest.last}, to {common}: {manifest.id}"
        return RollbackEnded(source, True, False, False, detail), manifest

    async def _recorded(self, source: HostPort) -> tuple[OpTime, Manifest | None]:
        """The common point, and the manifest of all that lies behind it; None when nothing does."""
        self.progress.search()
        common = await self._common_point(source)
        if common == self._context.store.last_applied:
            return common, None
        return common, await self._write(common, RollbackState.PLANNED, "rollback", source)

    async def _common_point(self, source: HostPort) -> OpTime:
        store = self._context.store
        common = await CommonPoint(self._peer, store, source).find()
        floor = max(self._node.commit_point.ts, store.pruned_through)
        if common.ts < floor:
            raise TooFarBackError(
                f"the common point {common} with {source} lies before {OpTime(common.term, floor)}, which must stay",
                common,
            )
        if await self._context.workers.run(lambda: self._was_refused(common, store.last_applied)):
            raise TooFarBackError(f"the rollback to {common} with {source} was refused before", common)
        return common

    def _was_refused(self, common: OpTime, newest: OpTime) -> bool:
        """Whether this very rollback was: after a restart the commit point that forbade it is not known any more."""
        return any(
            manifest.state is RollbackState.EXPORTED
            and manifest.reason.startswith(REFUSED)
            and (manifest.common_point, manifest.last) == (common, newest)
            for manifest in manifests_on(self._context.disk, self._context.dbpath)
        )

    async def _write(self, common: OpTime, state: RollbackState, reason: str, source: HostPort | None) -> Manifest:
        self.progress.write(common)
        writing = RollbackFiles(self._context, self._context.clock.wall_ms(), common, reason, source, self.progress)
        snapshot = self._context.store.read()
        return await self._context.workers.run(lambda: writing.write(snapshot, state))

    async def _quarantined(self, source: HostPort, error: UnrecoverableRollbackError) -> str:
        """Export what is not known to be committed: this member may never come back. What to tell the person.

        Where the common point is known it is everything behind that, what was committed once too: it is not in the set.
        """
        common = error.common_point if isinstance(error, TooFarBackError) else None
        reason = f"{REFUSED}: {error.message}"
        try:
            manifest = await self._when_room(lambda: self._export(common, reason, source))
        except (ReplError, OSError) as failure:
            return f"{error.message}; what may be lost could not be exported: {failure}"
        exported = f"exported: {manifest.id}" if manifest else "nothing to export"
        return f"{error.message}; {exported}"

    async def _export(self, common: OpTime | None, reason: str, source: HostPort) -> Manifest | None:
        self.progress.search()
        self.progress.phase = RollbackPhase.WRITING
        return await export_before_wipe(
            self._context,
            self._node.commit_point,
            reason,
            source,
            common=common,
            progress=self.progress,
        )

    # --- a full disk

    async def _when_room(self, work: Callable[[], Awaitable[T]]) -> T:
        """What `work` gives, done again while the disk is full; it leaves nothing half done, or goes on with it."""
        while True:
            try:
                result = await work()
            except (ReplError, OSError) as error:
                if not is_disk_full(error):
                    raise
                await self._pause_for_room(error)
            else:
                if self.progress.waiting_for:
                    log.warning("rollback goes on: there is room again")
                    self.progress.waiting_for = ""
                return result

    async def _pause_for_room(self, error: ReplError | OSError) -> None:
        """Until the disk takes what the files had come to, so that a large rollback does not fill it every second."""
        why = (
            str(error)
            if isinstance(error, ReplError) or error.filename
            else f"{self._context.dbpath}: {error.strerror}"
        )
        if not self.progress.waiting_for:
            log.warning("rollback waits, nothing is undone unrecorded: %s", why)
        self.progress.waiting_for = f"room on the disk: {why}"
        needed = self.progress.size + ROOM_MARGIN_BYTES if self.progress.phase is RollbackPhase.WRITING else 0
        while True:
            await asyncio.sleep(self._options.room_pause_ms / 1000)
            if await self._context.workers.run(self._free_bytes) >= needed:
                return

    def _free_bytes(self) -> int:
        return self._context.disk.free_bytes(self._context.dbpath)


# --- undoing and finishing --------------------------------------------------------------------------------------


async def undo(context: MemberContext, common: OpTime, stem: str, on_undone: Callable[[], None]) -> None:
    """Undo everything behind `common` in bounded steps; the first writes the mark, the last the done mark."""

    def step() -> bool:
        more = undo_step(context.store, common, stem=stem, limit=UNDO_STEP_ENTRIES)
        on_undone()
        return more

    more = True
    while more:
        more = await context.write_queue.write(step)
        await asyncio.sleep(0)


async def finish_rollbacks(context: MemberContext, on_undone: Callable[[], None]) -> list[Manifest]:
    """Bring every rollback of this member to its end; returns the manifests that changed.

    At a start before anything else, and before a copy is installed: a rollback in progress is undone down to its
    recorded common point; one that is undone gets its manifest finished; a planned manifest without any committed
    step is abandoned (nothing of it happened). ReplError and OSError: storage failed; call again at the next start.
    """
    store, workers = context.store, context.workers
    mark = rollback_in_progress(store)
    if mark is not None:
        log.warning("finishing rollback %s, down to %s", mark.stem, mark.common_point)
        await undo(context, mark.common_point, mark.stem, on_undone)
    done = [mark.stem for mark in rollback_done_marks(store)]
    if done:
        await workers.run(store.wal.sync)  # the undo is durable before anything says that it is finished
    settled = await workers.run(lambda: _settle_manifests(context, frozenset(done)))
    for stem in done:
        await context.write_queue.write(partial(clear_rollback_done, store, stem))
    return settled


def _settle_manifests(context: MemberContext, done: frozenset[str]) -> list[Manifest]:
    disk, dbpath, wall_ms = context.disk, context.dbpath, context.clock.wall_ms()
    settled = []
    for manifest in manifests_on(disk, dbpath):
        if manifest.state is RollbackState.PLANNED:
            state = RollbackState.FINISHED if manifest.id in done else RollbackState.ABANDONED
            settled.append(settle_manifest(disk, dbpath, manifest, state, wall_ms))
    if done:
        # One that reads as finished may be so by name only, when a crash came before its folder was synced. The done
        # mark goes after this, and with it what else would tell that it is finished.
        sync_names(disk, dbpath)
    return settled


async def export_before_wipe(
    context: MemberContext,
    commit_point: OpTime,
    reason: str,
    source: HostPort | None,
    *,
    common: OpTime | None = None,
    progress: RollbackProgress | None = None,
) -> Manifest | None:
    """Write everything that is not known to be committed as a rollback in state `exported`; undoes nothing.

    common: everything behind this entry of mine instead, committed or not. The manifest, of an earlier export when it
    holds all this; None when there is nothing such. ReplError and OSError: the data must not go.
    """
    store = context.store
    newest = store.last_applied
    if common is None:
        floor = max(commit_point.ts, store.pruned_through, store.trimmed_through)  # pruned or trimmed: was committed
        if newest.ts <= floor:
            return None
        row = store.row_at_or_before(OpTime(0, floor))
        common = row.optime if row is not None else OPTIME_NULL if floor == 0 else OpTime(store.oldest.term, floor)
    if newest <= common:
        return None
    for manifest in await context.workers.run(lambda: manifests_on(context.disk, context.dbpath)):
        if manifest.state is RollbackState.EXPORTED and manifest.last == newest and manifest.common_point <= common:
            await context.workers.run(
                lambda: sync_names(context.disk, context.dbpath)
            )  # a crash may have left it unsynced
            return manifest
    writing = RollbackFiles(context, context.clock.wall_ms(), common, reason, source, progress or RollbackProgress())
    snapshot = store.read()
    return await context.workers.run(lambda: writing.write(snapshot, RollbackState.EXPORTED))
