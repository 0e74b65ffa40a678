"""Rollback on rejoin: the common point, the files, the undo in bounded steps, and finishing after a crash.

The order prevents the loss of acknowledged writes. Files, folder and a planned manifest are durable before the first
undo. The transaction of the first step writes the mark (manifest id, common point) and raises the rollback id. The last
step turns it into the done mark, which is synced before the manifest is rewritten as finished. After a crash
`finish_rollbacks` does the rest. A full disk is waited for: what is done stays, and nothing is undone that is not in a
file. The core decides whether to roll back, and with which source.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from replset.core.messages import DamageFound, RollbackEnded
from replset.core.node import Node
from replset.errors import ReplError, UnrecoverableRollbackError
from replset.ids import OPTIME_NULL, HostPort, OpTime
from replset.oplog_row import DamagedEntryError
from replset.replication.common_point import ChainDiffersError, CommonPoint, NoCommonPointError
from replset.replication.context import MemberContext
from replset.replication.disk_space import retry_while_disk_full
from replset.replication.ports import MemberClient
from replset.replication.rollback_files import RollbackFiles
from replset.replication.rollback_manifest import Manifest, RollbackState, manifests_on, settle_manifest, sync_names
from replset.replication.rollback_progress import RollbackPhase, RollbackProgress
from replset.storage.sqlite import is_about_the_disk
from replset.storage.undo import (
    RollbackMark,
    clear_rollback_done,
    rollback_done_marks,
    rollback_in_progress,
    undo_step,
)

log = logging.getLogger("replset.rollback")
T = TypeVar("T")

UNDO_STEP_ENTRIES = 200
SPACE_MARGIN_BYTES = 1 << 20
REFUSED = "refused rollback"


class TooFarBackError(UnrecoverableRollbackError):
    """The common point lies before what must stay, or before what the undo reaches back to (127)."""

    def __init__(self, message: str, common_point: OpTime) -> None:
        super().__init__(message)
        self.common_point = common_point


class NotUndoneError(UnrecoverableRollbackError):
    """What is on this member's disk cannot be undone (127). Each further try would fail the same way."""

    def __init__(self, mark: RollbackMark, why: str) -> None:
        super().__init__(
            f"rollback {mark.stem} to {mark.common_point} cannot be undone on this member's disk: {why}; what it takes"
            " back is in its files"
        )
        self.stem = mark.stem


class Rollback:
    """Runs one rollback at a time. The member is in ROLLBACK, and nothing else writes meanwhile."""

    def __init__(
        self,
        context: MemberContext,
        *,
        peer: MemberClient,
        node: Node,
        on_undo_begins: Callable[[OpTime], Awaitable[None]],
    ) -> None:
        """on_undo_begins: awaited with the common point before the first undo step."""
        self._context = context
        self._peer = peer
        self._node = node
        self._on_undo_begins = on_undo_begins
        self.progress = RollbackProgress()

    async def run(self, source: HostPort) -> None:
        """Find the common point with `source`, write the files, undo, finish; reports RollbackEnded.

        Waits while the disk is full. Whatever else fails before the first undo is reported. What fails after it goes to
        `on_broken`: the member must stop, and its next start finishes the rollback.
        """
        await self._run(source, self._roll_back(source))

    async def finish(self) -> None:
        """Finish what a crash interrupted, for a start that found no disk space for it; reports RollbackEnded."""
        await self._run(None, self._finish())

    async def _run(self, source: HostPort | None, work: Awaitable[RollbackEnded]) -> None:
        self.progress.begin(source, self._context.clock.wall_ms())
        try:
            ended = await work
        except NotUndoneError as error:
            host = source or self._context.identity.member
            ended = RollbackEnded(host, False, False, False, error.message, not_undone=True)
        except (ReplError, OSError) as error:
            self._context.on_broken(error)
            return
        except Exception as error:
            log.exception("the rollback towards %s", source)
            host = source or self._context.identity.member
            why = f"the rollback does not fit what is on this member's disk: {type(error).__name__}: {error}"
            ended = RollbackEnded(host, False, False, False, why, not_undone=True)
        finally:
            self.progress.running = False
        log.warning("rollback towards %s %s: %s", source, "done" if ended.ok else "not done", ended.detail)
        self._context.on_report(ended)

    async def _roll_back(self, source: HostPort) -> RollbackEnded:
        # A crash may have left an earlier rollback half done: that one comes first.
        await self._finish_earlier()
        ended, manifest = await self._prepare(source)
        if manifest is not None:
            self.progress.undo(manifest.id)
            before = self._context.store.undone_entries
            common = manifest.common_point
            # The durability mark falls first: see `DurabilityMark.lower`.
            await self._when_disk_has_space(lambda: self._on_undo_begins(common))
            await self._when_disk_has_space(
                lambda: undo(self._context, manifest.common_point, manifest.id, self._on_undone(before))
            )
            await self._finish_earlier()
        return ended

    async def _finish(self) -> RollbackEnded:
        await self._finish_earlier()
        return RollbackEnded(self._context.identity.member, True, False, False, "finished what was interrupted")

    def _on_undone(self, before: int) -> Callable[[], None]:
        def on_undone() -> None:
            self.progress.undone = self._context.store.undone_entries - before
            self._context.on_undone()

        return on_undone

    async def _finish_earlier(self) -> None:
        self.progress.phase = RollbackPhase.SETTLING
        on_undone = self._on_undone(self._context.store.undone_entries)
        await self._when_disk_has_space(lambda: finish_rollbacks(self._context, on_undone))

    async def _prepare(self, source: HostPort) -> tuple[RollbackEnded, Manifest | None]:
        """Write the files. Return what to report, and the manifest of what is to be undone first, if anything is."""
        try:
            # After a full disk all is asked again: the source may have changed, and nothing is undone yet.
            common, manifest = await self._when_disk_has_space(lambda: self._find_and_record(source))
        except DamagedEntryError as error:
            self._context.on_report(DamageFound(error.message))
            return RollbackEnded(source, False, True, False, error.message), None
        except NoCommonPointError as error:
            return RollbackEnded(source, False, False, True, error.message), None
        except ChainDiffersError as error:
            return RollbackEnded(source, False, True, False, error.message, error.at), None
        except UnrecoverableRollbackError as error:
            return RollbackEnded(source, False, False, False, await self._export_refused(source, error)), None
        except (ReplError, OSError) as error:
            return RollbackEnded(source, False, True, False, str(error)), None
        if manifest is None:
            return RollbackEnded(source, True, False, False, f"nothing to undo: {source} holds {common}"), None
        detail = f"undid {manifest.entries} entries, {manifest.first} to {manifest.last}, to {common}: {manifest.id}"
        return RollbackEnded(source, True, False, False, detail), manifest

    async def _find_and_record(self, source: HostPort) -> tuple[OpTime, Manifest | None]:
        """Return the common point, and the manifest of all that lies behind it; None when nothing does."""
        self.progress.search()
        common = await self._common_point(source)
        if common == self._context.store.last_applied:
            return common, None
        return common, await self._write(common, RollbackState.PLANNED, "rollback", source)

    async def _common_point(self, source: HostPort) -> OpTime:
        store = self._context.store
        common = await CommonPoint(self._peer, store, source).find()
        # `undo_step` refuses this too. Found here, it is refused before files are written that name it as planned.
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
        """Whether this very rollback was refused before.

        After a restart the commit point that forbade it may be unknown. Without this look at the manifests the member
        would then undo entries that were committed.
        """
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

    async def _export_refused(self, source: HostPort, error: UnrecoverableRollbackError) -> str:
        """Export what a refused rollback would have undone, since this member may never come back; return the message.

        That is what is not known to be committed. Where the common point is known it is everything behind that, what
        was committed once too: it is not in the set any more.
        """
        common = error.common_point if isinstance(error, TooFarBackError) else None
        reason = f"{REFUSED}: {error.message}"
        try:
            manifest = await self._when_disk_has_space(lambda: self._export(common, reason, source))
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

    async def _when_disk_has_space(self, work: Callable[[], Awaitable[T]]) -> T:
        return await retry_while_disk_full(work, "rollback", progress=self.progress, has_space=self._has_space)

    async def _has_space(self) -> bool:
        """Whether the disk takes what the files had come to: else a large rollback would fill it every second."""
        if self.progress.phase is not RollbackPhase.WRITING:
            return True
        context = self._context
        free = await context.workers.run(lambda: context.disk.free_bytes(context.dbpath))
        return free >= self.progress.size + SPACE_MARGIN_BYTES


# --- undoing and finishing --------------------------------------------------------------------------------------


async def undo(context: MemberContext, common: OpTime, stem: str, on_undone: Callable[[], None]) -> None:
    """Undo everything behind `common` in bounded steps. The first writes the mark, the last the done mark.

    NotUndoneError: the documents here, or their undo, are not as they were written. Steps before are done.
    """

    def step() -> bool:
        more = undo_step(context.store, common, stem=stem, limit=UNDO_STEP_ENTRIES)
        on_undone()
        return more

    more = True
    while more:
        try:
            more = await context.write_queue.write(step)
        except Exception as error:
            if is_about_the_disk(error):
                raise
            log.exception("rollback %s", stem)
            why = error.message if isinstance(error, ReplError) else f"{type(error).__name__}: {error}"
            raise NotUndoneError(RollbackMark(stem, common), why) from error
        await asyncio.sleep(0)


async def finish_rollbacks(context: MemberContext, on_undone: Callable[[], None]) -> list[Manifest]:
    """Bring every rollback of this member to its end; returns the manifests that changed.

    At a start before anything else, and before a copy is installed: a rollback in progress is undone down to its
    recorded common point; one that is undone gets its manifest finished; a planned manifest without any committed
    step is abandoned (nothing of it happened). NotUndoneError; other ReplErrors and OSError: storage failed; call again
    at the next start.
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


async def leave_rollback(context: MemberContext, stem: str) -> None:
    """Note that a rollback which cannot be undone is exported: a copy is about to replace the data that it is about."""

    def settle() -> None:
        for manifest in manifests_on(context.disk, context.dbpath):
            if manifest.id == stem and manifest.state is RollbackState.PLANNED:
                settle_manifest(context.disk, context.dbpath, manifest, RollbackState.EXPORTED, context.clock.wall_ms())

    await context.workers.run(settle)


def _settle_manifests(context: MemberContext, done: frozenset[str]) -> list[Manifest]:
    disk, dbpath, wall_ms = context.disk, context.dbpath, context.clock.wall_ms()
    settled = []
    for manifest in manifests_on(disk, dbpath):
        if manifest.state is RollbackState.PLANNED:
            # Without a done mark no step of it was committed (one in progress is finished before this). Called
            # finished, its entries would pass for lost and be put back by a restore, while they are still here.
            state = RollbackState.FINISHED if manifest.id in done else RollbackState.ABANDONED
            settled.append(settle_manifest(disk, dbpath, manifest, state, wall_ms))
    if done:
        # One that reads as finished may be so by name only, when a crash came before its folder was synced. The done
        # mark is removed after this, and it is the only other sign that the rollback is finished.
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
    manifest = await context.workers.run(lambda: writing.write(snapshot, RollbackState.EXPORTED))
    if manifest.common_point > common or manifest.last < newest:
        # The caller replaces the data. A write that is in no file would be gone then.
        raise UnrecoverableRollbackError(
            f"{manifest.id} has {manifest.common_point} to {manifest.last}, and not all behind {common} up to {newest}"
        )
    return manifest
