"""Sees to it that committed entries are archived before the oplog gives them up: on every member with an archive.

One member at a time writes, the one with the lease (`archive_lease`). Each reads the set's record to know
what must stay in its own oplog.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from replset.core.member_state import MemberState
from replset.core.node import Node
from replset.errors import CappedPositionLostError, ReplError
from replset.features.archive.archive_lease import (
    LEASE_MS,
    NAMESPACE,
    ArchiveLease,
    ArchiveRecord,
    ArchiveStart,
    ArchiveStatus,
    Claim,
    read_record,
)
from replset.features.archive.files import ArchiveError
from replset.features.archive.jobs import ArchivePort, WriteJob
from replset.features.archive.segments import Segment
from replset.ids import OPTIME_NULL, Millis, OpTime
from replset.message_fields import check_ok
from replset.oplog_row import OplogRow
from replset.replication.context import MemberContext
from replset.replication.ports import MemberClient
from replset.replication.write_ops import WriteGroup
from replset.storage.sqlite import rows_of
from replset.storage.store import Store

log = logging.getLogger("replset.archive")

LOOK_EVERY_S: Final = 1.0
CLAIM_WITHIN_MS: Final = Millis(5_000)
NOOPS_WAIT: Final = 12
"""How many times as long a stretch waits that holds nothing but no-ops."""
PRIMARY_WAITS: Final = 2
"""How many times as long the primary waits, so that a secondary does the work if there is one with the option."""
OTHERS_FIRST_MS: Final = 5_000
"""How long a member that cannot write waits after its lease, so that another one gets it."""
GAP_WAITS_MS: Final = 120_000
"""How long a member waits that cannot continue the archive, for one that can."""
NEVER_SEEN: Final = Millis(0)
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """What is to be archived behind after_ts, counted up to counted_ts. has_content: not only no-ops and the record's
    own entries. first_wall_ms: when the first entry was written. since: when this member first saw that
    something waits.
    """

    after_ts: int = 0
    counted_ts: int = 0
    size: int = 0
    first_wall_ms: int = 0
    has_content: bool = False
    since: Millis = NEVER_SEEN


class Archiver:
    """Runs as a task of its own on a member that has an archive."""

    def __init__(
        self,
        context: MemberContext,
        node: Node,
        archive: ArchivePort,
        peer: MemberClient,
        write: Callable[[Callable[[WriteGroup], ArchiveRecord]], Awaitable[ArchiveRecord]],
        lease: ArchiveLease,
        rng: random.Random,
        segment_bytes: int,
        age_ms: int,
    ) -> None:
        """write: see Kernel.write. segment_bytes: of entries that make a segment. age_ms: how old an entry becomes
        before it is archived, where fewer come.
        """
        self._rng = rng
        self._context = context
        self._node = node
        self._archive = archive
        self._peer = peer
        self._write = write
        self._lease = lease
        self._leased_until = Millis(0)
        self._segment_bytes, self._age_ms = segment_bytes, age_ms
        self.status = ArchiveStatus()
        self._gap_since: Millis | None = None
        self._known_gap = 0
        self._looked_behind = -1
        self._waiting = _Waiting()

    def needed(self) -> OpTime:
        """The newest entry that is archived: older ones need not stay. OPTIME_NULL: nothing is archived yet."""
        through = self.status.record.through
        return OPTIME_NULL if through is None else through.optime

    async def run(self) -> None:
        """Work until cancelled. Whatever fails is tried again."""
        try:
            while True:
                await asyncio.sleep(LOOK_EVERY_S)
                try:
                    if await self._round():
                        self.status.error = ""
                except ArchiveError as error:
                    if error.message != self.status.error:
                        log.error("the oplog cannot be archived now: %s", error.message)
                    self.status.error = error.message
                except ReplError as error:  # no primary now, or the read was cut off
                    log.debug("nothing is archived now: %s", error.message)
        finally:
            await self._archive.close()

    async def _round(self) -> bool:
        """Take the lease when something is to be archived, and write segments until nothing is.

        False: this member failed last, and leaves the next lease to another one that may reach the archive.
        """
        store = self._context.store
        if store.oplog_only or self._node.state not in (MemberState.PRIMARY, MemberState.SECONDARY):
            return True
        self.status.record = read_record(store, str(self._node.set_id))
        self._look_for_gap(store)
        if self._node.secondary_delay_ms() or not await self._is_due(store):
            return True
        record: ArchiveRecord | None = self.status.record
        if not self._has_lease:
            if self.status.error and self._context.clock.now() < self._leased_until + OTHERS_FIRST_MS:
                return False
            record = await self._claim(Claim(self._context.identity.member))
        while record is not None and await self._is_due(store):
            record = await self._write_segment(record)
        return True

    def _look_for_gap(self, store: Store) -> None:
        """Say loudly that this member gave up what is not archived. Another one may still have it."""
        through = self.needed()
        if not through.ts or store.trimmed_through <= through.ts or store.oplog_row_at(through) is not None:
            self._gap_since = None
            return
        if self._gap_since is None:
            self._gap_since = self._context.clock.now()
        if through.ts != self._known_gap:
            self._known_gap = through.ts
            log.error(
                "the archive ends at %s, and this member's oplog begins at %s: it had to be trimmed. If no other member"
                " has the entries between them, the archive will have a gap",
                *(through, store.oldest),
            )

    @staticmethod
    def _committed(store: Store) -> OpTime:
        return min(store.commit_point, store.last_applied)

    @property
    def _waits_for_others(self) -> bool:
        """Whether another member may have the entries that this one cannot give any more."""
        return self._gap_since is not None and self._context.clock.now() - self._gap_since < GAP_WAITS_MS

    async def _is_due(self, store: Store) -> bool:
        """Whether so much waits, or has waited so long, that this member should write a segment."""
        through = self.needed()
        if self._waits_for_others:
            # The holder before may have written a segment that it could not report: it died or was cut off. The archive
            # is asked once for it. Without that, this oplog is trimmed behind it meanwhile, and the gap becomes real.
            return self._looked_behind != through.ts
        until = self._committed(store).ts
        if until <= through.ts:
            return False
        waiting = self._waiting
        if waiting.after_ts != through.ts:
            waiting = _Waiting(through.ts, through.ts, since=self._context.clock.now())
        enough = PRIMARY_WAITS * self._segment_bytes
        self._waiting = waiting = await self._context.workers.run(lambda: _measure(store, waiting, until, enough))
        waits = PRIMARY_WAITS if self._node.writable and not self._has_lease else 1
        if waiting.size >= waits * self._segment_bytes:
            return True
        clock = self._context.clock
        age_ms = max(clock.wall_ms() - waiting.first_wall_ms, clock.now() - waiting.since)
        return waiting.size > 0 and age_ms >= waits * self._age_ms * (1 if waiting.has_content else NOOPS_WAIT)

    @property
    def _has_lease(self) -> bool:
        """Whether this member has it, and need not renew it yet."""
        is_holder = self.status.record.holder == self._context.identity.member
        return is_holder and self._leased_until > self._context.clock.now() + LEASE_MS // 2

    async def _claim(self, claim: Claim) -> ArchiveRecord | None:
        """Ask the primary for the lease, and note progress; None: another member has it. ReplError: no answer."""
        host, asked = self._node.primary_host, self._context.clock.now()
        if self._node.writable:
            record = await self._write(lambda group: self._lease.grant(group, claim, str(self._node.set_id)))
        elif host is None:
            return None
        else:
            reply = await self._peer.call(host, claim.document(), timeout_ms=CLAIM_WITHIN_MS)
            check_ok(reply)
            found = reply.get("record")
            record = ArchiveRecord.parse(found if isinstance(found, dict) else {})
        if record.holder != claim.holder:
            return None
        self._leased_until = Millis(asked + LEASE_MS)
        self.status.record = record
        return record

    async def _write_segment(self, record: ArchiveRecord) -> ArchiveRecord | None:
        """Write the next segment and note it; None: there is nothing more to do, or another member does it."""
        written = await self._archive.write(self._job(self._context.store, record))
        self._looked_behind = self.needed().ts
        segment = written.segment
        if segment is None:
            return None
        self.status.segments_written += 1
        log.info("archived %d entries up to %s", segment.rows, segment.last)
        if written.is_gap:
            log.error("the archive has a gap before %s: no member had what is missing", segment.first)
        start = _start_of(segment) if written.is_gap or record.through is None else None
        return await self._claim(Claim(self._context.identity.member, written.archive_id, segment.end, start))

    def _job(self, store: Store, record: ArchiveRecord) -> WriteJob:
        now = EPOCH + timedelta(milliseconds=self._context.clock.wall_ms())
        return WriteJob(
            dbpath=self._context.dbpath,
            set_name=self._context.identity.set_name,
            set_id=str(self._node.set_id),
            archive_id=record.archive_id,
            new_id="" if record.archive_id else f"{self._rng.getrandbits(64):016x}",
            after=record.through,
            through=self._committed(store),
            max_bytes=self._segment_bytes,
            member=self._context.identity.member,
            written=now.isoformat(timespec="seconds"),
            may_leave_gap=self._gap_since is not None and not self._waits_for_others,
        )


def _start_of(segment: Segment) -> ArchiveStart:
    first = OpTime.parse(segment.first)
    return ArchiveStart(first, OpTime(first.term, first.ts - 1) if segment.before is None else segment.before.optime)


class ArchivedEntries:
    """Is what History reads where the live oplog was trimmed."""

    def __init__(self, archive: ArchivePort, context: MemberContext, status: ArchiveStatus) -> None:
        self._archive = archive
        self._context = context
        self._status = status
        self._left = ArchiveStart(OPTIME_NULL, OPTIME_NULL)
        """Where the archive was found to begin, after more was removed than the record knows."""

    @property
    def _start(self) -> ArchiveStart:
        return max(self._status.record.start or self._left, self._left, key=lambda start: start.after.ts)

    @property
    def oldest(self) -> OpTime | None:
        """None as well while there is a gap between the archive and this member's oplog."""
        record, start = self._status.record, self._start
        if record.start is None or record.through is None:
            return None
        is_joined = record.through.optime.ts >= self._context.store.trimmed_through
        return start.oldest if is_joined and start.after.ts < record.through.optime.ts else None

    @property
    def missing_through(self) -> int:
        return self._start.after.ts

    async def after(self, position: OpTime, *, limit: int, max_bytes: int) -> list[OplogRow]:
        try:
            rows = await self._archive.read(position, limit, max_bytes)
        except CappedPositionLostError as error:
            log.info("%s", error.message)
            rows = []
        through = self._status.record.through
        if not rows and through is not None and position.ts < through.optime.ts:
            segment = await self._archive.oldest()
            self._left = ArchiveStart(through.optime, through.optime) if segment is None else _start_of(segment)
        return rows


def _measure(store: Store, known: _Waiting, until_ts: int, enough: int) -> _Waiting:
    """Count on from what is known, until there is enough."""
    size, first_wall_ms, has_content, counted_ts = known.size, known.first_wall_ms, known.has_content, known.counted_ts
    sql = "SELECT ts, length(entry), wall, op, ns FROM oplog WHERE ts > ? AND ts <= ? ORDER BY ts"
    with store.read() as snapshot:
        for ts, length, wall_ms, op, ns in rows_of(snapshot.connection, sql, (counted_ts, until_ts)):
            if size >= enough:
                break
            first_wall_ms = first_wall_ms or wall_ms
            has_content = has_content or (op != "n" and ns != NAMESPACE)
            size += length
            counted_ts = ts
    return _Waiting(known.after_ts, counted_ts, size, first_wall_ms, has_content, known.since)
