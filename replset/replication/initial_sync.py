"""Initial sync: replaces this member's data by one consistent copy of another member's database file.

The marker in member.db is set first. While it is set the member neither votes nor acknowledges nor serves reads, and
after a crash the next start begins again. What the copy would replace is exported as a rollback before the first byte
is fetched (`copy_transfer.py`). A source that lacks what this member acknowledged or knows to be committed is refused,
unless an operator forces the copy. The storage swaps the files. A witness's copy is made and installed in the same way,
and has the oplog alone. A member whose own documents are sound, only too old, fetches those that differ
(`difference_copy.py`), once; if that fails for another reason than the network or a full disk, it copies everything.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from replset.core.messages import InitialSyncEnded, InitialSyncStarted
from replset.errors import InvalidSyncSourceError, RemoteProtocolError, ReplError, UnrecoverableRollbackError
from replset.ids import OPTIME_NULL, HostPort, OpTime, invariant
from replset.oplog_row import DamagedEntryError, OplogRow
from replset.replication.common_point import CommonPoint, NoCommonPointError
from replset.replication.context import MemberContext
from replset.replication.copy_transfer import CopyTransfer, InitialSyncOptions, is_temporary
from replset.replication.initial_sync_progress import InitialSyncProgress
from replset.replication.partial_copy import CopyRecord
from replset.replication.ports import MemberClient
from replset.replication.protocol import ProbeReply, ProbeRequest
from replset.replication.rollback import NotUndoneError, export_before_wipe, finish_rollbacks, leave_rollback
from replset.replication.rollback_manifest import Manifest, RollbackState, settle_manifest
from replset.storage.copies import OPLOG_ONLY, check_database, open_copy
from replset.storage.disk import Disk
from replset.storage.oplog import is_in_history, newest_row, oldest_row, row_at
from replset.storage.sqlite import transaction
from replset.storage.store import Store
from replset.storage.txn import read_meta, write_meta
from replset.storage.undo import rollback_in_progress

log = logging.getLogger("replset.initial_sync")

CHECKED_ENTRIES = 1 << 60
"""How many entries of a copy are checked: all. A damaged entry that is copied would be damaged on both."""
_COPY_FOR = "copy_for"  # meta of an installed copy: the id of the initial sync that it was fetched for


class InitialSyncMarker(NamedTuple):
    """What the marker in member.db says: the id of the initial sync, and this member's incarnation."""

    sync_id: str
    incarnation: str


class RequiredEntries(NamedTuple):
    """The entries that a copy must hold.

    newest: of the data that it replaces, which this member may have acknowledged. committed: the newest entry that this
    member knows to be committed.
    """

    newest: OpTime
    committed: OpTime


def newest_entry_to_keep(store: Store) -> OpTime:
    """The newest entry that stays: a rollback that is not at its end takes back what lies behind its common point."""
    mark = rollback_in_progress(store)
    return store.last_applied if mark is None else mark.common_point


class CopyContents(NamedTuple):
    """What an oplog holds: its newest and oldest entry, whether the commit point that was asked about is in it, and
    whether all that was exported is in its history. oplog_only: there are no documents beside it.
    """

    newest: OpTime
    oldest: OpTime
    has_committed: bool
    has_exported: bool = False
    oplog_only: bool = False


class FrameCopies(Protocol):
    """Makes whole copies of frames and of the documents that are here."""

    async def complete(self, record: CopyRecord) -> int:
        """Put a whole copy in the place of the frame that came. Return how many documents differed. ReplError."""
        ...


class InitialSync:
    """Replaces this member's data by a copy of another member's."""

    def __init__(
        self,
        context: MemberContext,
        *,
        peer: MemberClient,
        required: Callable[[], RequiredEntries],
        set_marker: Callable[[RequiredEntries], Awaitable[InitialSyncMarker]],
        claim: Callable[[OpTime], Awaitable[str]],
        install: Callable[[str], Awaitable[None]],
        options: InitialSyncOptions | None = None,
    ) -> None:
        """required: also what an earlier attempt saved with the marker. set_marker: `MemberFile.begin_initial_sync`,
        and claim: `MemberFile.claim_copy`, each in a worker; claim returns the incarnation. install: given the path of
        a copy that passed its checks, closes the store, installs the copy (`install_copy`), opens it again and clears
        the marker.
        """
        self._context = context
        self._peer = peer
        self._required = required
        self._set_marker = set_marker
        self._claim = claim
        self._install = install
        self.progress = InitialSyncProgress()
        self.exported = ""
        """The id of what the attempt under way has exported, until it is known whether the copy holds all of it."""
        options = options or InitialSyncOptions()
        self.transfer = CopyTransfer(context, peer, self.progress, options)
        self.frames: FrameCopies | None = None
        """Set by the feature that has them."""
        self._may_compare = True

    def clear_leftovers(self) -> None:
        """Remove what an earlier transfer left, at a start without a marker. OSError."""
        self.transfer.copy.discard()

    def discard_copy(self) -> None:
        """Remove what came of a copy that is not needed any more. For a worker."""
        try:
            self.transfer.copy.discard()
        except OSError as error:
            log.warning("%s", error)

    async def run(
        self, source: HostPort, reason: str, *, forced: bool = False, oplog_only: bool = False, is_stale: bool = False
    ) -> None:
        """One attempt; reports InitialSyncStarted once the marker is durable, and InitialSyncEnded.

        forced: the source may lack what this member acknowledged or knows to be committed. oplog_only: for a witness.
        is_stale: the documents here are sound, only too old.
        """
        context, clock = self._context, self._context.clock
        required = self._required()
        started_ms, differed = clock.now(), 0
        self.progress.begin(source, started_ms, clock.wall_ms())
        try:
            if not forced:
                await self._check_source(source, required)
            marker = await self._set_marker(required)
            context.on_report(InitialSyncStarted(marker.incarnation))
            exported = await self._export(source, reason, marker.sync_id, required.committed, forced)
            self.exported = "" if exported is None else exported.id
            may_compare = self._may_compare and self.frames is not None
            compare = is_stale and may_compare and not (oplog_only or context.store.oplog_only)
            record = await self.transfer.fetch(source, marker.sync_id, oplog_only=oplog_only, compare=compare)
            path = self.transfer.copy.path
            try:
                if record.compared and self.frames is not None:
                    differed = await self.frames.complete(record)
                newest = None if exported is None else context.store.oplog_row_at(exported.last)
                copy = await context.workers.run(
                    lambda: _checked_copy(context.disk, path, marker.sync_id, required.committed, newest)
                )
                # The core takes the copy for one of the kind that was asked for. If it had no documents, a member that
                # should have some would serve reads from none, and look up to date.
                if copy.oplog_only != oplog_only:
                    kind = "without documents" if copy.oplog_only else "with documents"
                    raise RemoteProtocolError(f"{record.source} sent a copy {kind}, which was not asked for")
                if not forced:
                    _refuse_unless_complete(record.source, copy, required)
            except ReplError as error:
                if isinstance(error, DamagedEntryError):
                    await self.transfer.report_damage(record.source, error.at)
                if record.compared:
                    await self.transfer.discard(record)
                else:
                    await self.transfer.discard_unless_temporary(record, error)
                raise
            if exported is not None and copy.has_exported:
                await self._abandon(exported)
            self.exported = ""
            self.progress.begins_at = copy.newest
            # The incarnation changes before the data does. If the member died between the two in the other order, its
            # shorter oplog would count as the one for which others counted this incarnation.
            incarnation = await self._claim(copy.newest)
            if incarnation != marker.incarnation:
                context.on_report(InitialSyncStarted(incarnation))
            # Others may count what this member has acknowledged. A shorter copy would take it from the set.
            invariant(forced or _is_complete(copy, required), "a copy holds what this member acknowledged")
            await self._install(path)
        except (ReplError, OSError) as error:
            self.exported = ""
            self._may_compare = self._may_compare and (not is_stale or is_temporary(error))
            detail = error.message if isinstance(error, ReplError) else str(error)
            log.warning("initial sync from %s failed: %s", source, detail)
            self.progress.fail(source, started_ms, clock.now(), detail)
            refused = isinstance(error, InvalidSyncSourceError)
            context.on_report(InitialSyncEnded(source, ok=False, detail=detail, refused=refused))
            return
        self.progress.succeed(clock.now(), clock.wall_ms())
        size = self.progress.copied + self.progress.compared
        detail = f"{size} bytes in {clock.now() - started_ms} ms"
        if record.compared:
            detail += f", {differed} documents differed"
        attributes = {"source": record.source, "bytes": size, "ms": clock.now() - started_ms}
        log.info("initial sync from %s done: %s", record.source, detail, extra={"attr": attributes})
        holds_committed = _is_complete(copy, required)
        context.on_report(
            InitialSyncEnded(source, ok=True, detail=detail, holds_committed=holds_committed, oplog_only=oplog_only)
        )
        await self.transfer.discard(record)

    async def _check_source(self, source: HostPort, required: RequiredEntries) -> None:
        """Raise InvalidSyncSourceError when the source lacks what a copy must hold. Nothing has been changed yet."""
        if required == (OPTIME_NULL, OPTIME_NULL):
            return
        reply = ProbeReply.parse(await self.transfer.call(source, ProbeRequest([required.committed]).document()))
        if len(reply.chains) != 1:
            raise RemoteProtocolError(f"{source} answered {len(reply.chains)} of 1 question")
        contents = CopyContents(reply.newest, reply.oldest, reply.chains[0] is not None)
        _refuse_unless_complete(source, contents, required)

    async def _export(
        self, source: HostPort, reason: str, sync_id: str, committed: OpTime, forced: bool
    ) -> Manifest | None:
        """Finish the rollbacks of this member and export what the copy would replace.

        That is what is not known to be committed, and before a forced copy all that the source does not have. Without
        it a write that only this member holds would be gone from the set and from the rollback files.
        """
        store = self._context.store
        try:
            await finish_rollbacks(self._context, self._context.on_undone)
        except NotUndoneError as error:
            log.warning("%s; the copy takes it away", error.message)
            await leave_rollback(self._context, error.stem)
        with store.read() as snapshot:
            if snapshot.meta(_COPY_FOR) == sync_id:
                return None  # this attempt's own copy, installed just before a crash: nothing of mine is in it
        common: OpTime | None = None
        if forced:
            try:
                common = await CommonPoint(self._peer, store, source).find(of_any_term=True)
            except (NoCommonPointError, UnrecoverableRollbackError):
                committed = OPTIME_NULL  # as far back as the undo reaches: what was committed here may not be there
        return await export_before_wipe(self._context, committed, reason, source, common=common)

    async def _abandon(self, exported: Manifest) -> None:
        """Mark the export as abandoned: the copy holds all of it. Until that was seen the files had to be there."""
        context, wall_ms = self._context, self._context.clock.wall_ms()
        await context.workers.run(
            lambda: settle_manifest(context.disk, context.dbpath, exported, RollbackState.ABANDONED, wall_ms)
        )


def _checked_copy(disk: Disk, path: str, sync_id: str, committed: OpTime, exported: OplogRow | None) -> CopyContents:
    """Check that the copy is a sound database, and return what its oplog holds."""
    contents = name_copy(disk, path, sync_id, committed, exported)
    check_database(disk, path, CHECKED_ENTRIES)
    return contents


def _is_complete(contents: CopyContents, required: RequiredEntries) -> bool:
    """Whether an oplog holds all that this member acknowledged or knows to be committed.

    A log whose newest entry is of a later term, or of the same one and not before, holds what was committed by the time
    of mine (Raft, 5.4.3), but for entries that only a later term committed: so the commit point itself must be there
    too, or lie before the oldest entry. The oplog is trimmed only before the commit point.
    """
    committed = required.committed
    return contents.newest >= max(required.newest, committed) and (
        contents.has_committed or committed == OPTIME_NULL or committed.ts < contents.oldest.ts
    )


def _refuse_unless_complete(source: HostPort, contents: CopyContents, required: RequiredEntries) -> None:
    if _is_complete(contents, required):
        return
    # Installed, such a copy would take back what this member acknowledged, and the commit point that it knows would
    # name an entry that may never have been committed: majority reads would show it.
    if contents.newest < required.newest:
        missing = f"{source} is at {contents.newest}, behind {required.newest}, the newest entry of this member"
    else:
        missing = f"{source} does not hold {required.committed}, which this member knows to be committed"
    raise InvalidSyncSourceError(f"{missing}; its data is not copied unless that is forced (replset resync --force)")


def name_copy(
    disk: Disk, path: str, sync_id: str, committed: OpTime = OPTIME_NULL, exported: OplogRow | None = None
) -> CopyContents:
    """Note in a fetched copy for which initial sync it is, so that a restart does not take it for data of its own.

    Returns what its oplog holds; OPTIME_NULL for the ends of an empty one. exported: the newest entry that was.
    """
    with open_copy(disk, path) as connection:
        connection.pragma("journal_mode", "delete")
        with transaction(connection):
            write_meta(connection, _COPY_FOR, sync_id)
        newest, oldest = newest_row(connection), oldest_row(connection)
        return CopyContents(
            OPTIME_NULL if newest is None else newest.optime,
            OPTIME_NULL if oldest is None else oldest.optime,
            row_at(connection, committed) is not None,
            exported is not None and is_in_history(connection, exported),
            bool(read_meta(connection, OPLOG_ONLY)),
        )
