"""The set's committed history as this member can show it: entries in order, and who waits for the next ones.

Change streams, named consumers and followers read entries through here alone. An entry that is not committed is never
shown, so no rollback takes back what was. Where the oplog was trimmed, an archive goes on behind it (`older`).

All who wait are one list: a new entry is looked at once, and wakes only those whose scope it may concern.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Protocol

from replset.errors import ChangeStreamHistoryLostError
from replset.ids import OPTIME_NULL, OpTime, invariant
from replset.operations.evaluation import run_in_thread
from replset.operations.kernel import Kernel
from replset.operations.waiters import done_within
from replset.oplog_entry import COMMAND, NOOP, OplogEntry
from replset.oplog_row import DamagedEntryError, OplogRow
from replset.query.change_events import EntryEvents, Watched
from replset.query.change_tokens import in_front_of

PAGE_ENTRIES = 512
PAGE_BYTES = 4 << 20
LOOK_ENTRIES, LOOK_BYTES = 2_000, 4 << 20
"""What is looked at for those who wait; with more, all of them are woken and read for themselves."""
SMALL_ENTRY = 256 << 10
"""Bytes of an entry whose operations are walked on the event loop."""
KEPT_EVENTS, KEPT_BYTES = 2_000, 8 << 20
WAKE_MS = 0.2
"""What one reader that is woken costs. So long after it others are woken, so that many readers leave writers time."""
_EVERYTHING = Watched()


class OlderEntries(Protocol):
    """Committed entries that the live oplog has trimmed away, up to the live oplog without a gap."""

    @property
    def oldest(self) -> OpTime | None:
        """The oldest entry; None: there is none."""
        ...

    @property
    def missing_through(self) -> int:
        """The ts of the newest entry that is missing here, before the oldest one; 0: nothing was ever removed."""
        ...

    async def after(self, position: OpTime, *, limit: int, max_bytes: int) -> list[OplogRow]:
        """Entries behind `position`, oldest first, one at least; none where only the live oplog goes on."""
        ...


class History:
    """See the module. older: set by the archive; None without one."""

    def __init__(self, member: Kernel) -> None:
        self.older: OlderEntries | None = None
        self._member = member
        self._waiting: dict[Watched, dict[asyncio.Future[OpTime], None]] = {}
        self._looked_at = OPTIME_NULL
        """Up to here entries were looked at for all who wait."""
        self._life: tuple[object, ...] = ()
        self._timer: asyncio.TimerHandle | None = None
        self._events: OrderedDict[int, EntryEvents] = OrderedDict()
        self._events_bytes = 0

    # --- entries

    @property
    def committed(self) -> OpTime:
        """The newest entry that may be shown."""
        return min(self._member.node.commit_point, self._member.store.last_applied)

    def oldest(self) -> OpTime:
        """The oldest entry that can be read here, the archive's included; OPTIME_NULL in an empty history."""
        live = self._member.store.oldest
        older = None if self.older is None else self.older.oldest
        return live if older is None else min(live, older, key=lambda at: at.ts)

    def reaches(self, position: OpTime) -> bool:
        """Whether the entries behind `position` can be read here."""
        older = self.older
        if position.ts >= self._member.store.trimmed_through:
            return True
        return older is not None and older.oldest is not None and position.ts >= older.missing_through

    async def after(
        self, position: OpTime, *, limit: int = PAGE_ENTRIES, max_bytes: int = PAGE_BYTES
    ) -> list[OplogRow]:
        """Committed entries with a greater timestamp than `position`, oldest first: up to `limit`, or `max_bytes`, but
        at least one; none at the end. OPTIME_NULL: from the first that there ever was.

        ChangeStreamHistoryLostError (286): entries behind `position` are gone. DamagedEntryError: the next one is not
        what was written; this member reports it and goes out of service.
        """
        member = self._member
        if position.ts >= member.store.trimmed_through:
            return self._live(position, limit, max_bytes)
        older = self.older
        if older is not None and older.oldest is not None and position.ts >= older.missing_through:
            rows = await older.after(position, limit=limit, max_bytes=max_bytes)
            if rows:
                return self._only_committed(rows)
        raise self._lost(position)

    def _live(self, position: OpTime, limit: int, max_bytes: int) -> list[OplogRow]:
        member = self._member
        if position.ts >= self.committed.ts:
            return []
        try:
            return self._only_committed(member.store.oplog_after(position, limit=limit, max_bytes=max_bytes))
        except DamagedEntryError as error:
            member.on_damage(error.message)
            raise

    def _only_committed(self, rows: list[OplogRow]) -> list[OplogRow]:
        committed = self.committed
        if rows and rows[-1].optime > committed:
            rows = [row for row in rows if row.optime <= committed]
        # A rollback could take back what was shown, and the reader would never learn of it.
        invariant(not rows or rows[-1].optime <= committed, "a stream shows committed entries only")
        return rows

    def _lost(self, position: OpTime) -> ChangeStreamHistoryLostError:
        oldest = self.oldest()
        return ChangeStreamHistoryLostError(
            "Resume of change stream was not possible, as the resume point may no longer be in the oplog:"
            f" the entries behind {position} are gone, the oldest one is {oldest}",
            details={"oldestToken": in_front_of(oldest.ts, oldest.term).document()},
        )

    async def events_of(self, row: OplogRow) -> EntryEvents:
        """The events of an entry, made once for all who follow it now."""
        events = self._events.get(row.ts)
        if events is not None and events.optime == row.optime:
            return events
        if len(row.entry) <= SMALL_ENTRY:
            events = EntryEvents(OplogEntry(row.entry))
        else:
            events = await run_in_thread(self._member, lambda: EntryEvents(OplogEntry(row.entry)))
        if row.ts not in self._events:
            self._events[row.ts] = events
            self._events_bytes += len(row.entry)
        while len(self._events) > KEPT_EVENTS or (self._events_bytes > KEPT_BYTES and len(self._events) > 1):
            _, dropped = self._events.popitem(last=False)
            self._events_bytes -= len(dropped.entry.raw)
        return events

    # --- waiting

    async def wait(self, position: OpTime, scope: Watched, timeout_ms: int) -> OpTime:
        """Wait for an entry behind `position` that may concern `scope`; who wakes then looks by `after`.

        Returns a position, `position` itself or a later one: nothing up to there concerns `scope`. It returns as well
        when the time is over, and when the member's state or its data changed: ask whether it is still readable.
        """
        if position.ts < self.committed.ts:
            return position
        future: asyncio.Future[OpTime] = asyncio.get_running_loop().create_future()
        if not self._waiting:
            self._looked_at, self._life = self.committed, self._life_now()
        self._waiting.setdefault(scope, {})[future] = None
        self._member.on_awaited("commit point")
        try:
            if await done_within(future, timeout_ms):
                return max(position, future.result(), key=_ts)
            return max(position, self._looked_at, key=_ts)
        finally:
            same = self._waiting.get(scope, {})
            same.pop(future, None)
            if not same:
                self._waiting.pop(scope, None)

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def on_change(self) -> None:
        """Called at every commit, move of the commit point, change of state, and rollback."""
        if not self._waiting:
            return
        if self._life_now() != self._life:
            self._wake(list(self._waiting), self._looked_at)
        elif self._timer is None and self.committed.ts > self._looked_at.ts:
            self._look()

    def _life_now(self) -> tuple[object, ...]:
        """Changes when what was read so far may not be what the store holds: a rollback, other data, another state."""
        member = self._member
        return member.store, member.store.rollback_id, member.node.state

    def _look(self) -> None:
        """Look at the new entries once, for all who wait."""
        self._timer = None
        before, committed = self._looked_at, self.committed
        if not self._waiting or committed.ts <= before.ts:
            return
        store = self._member.store
        rows = store.tail.after(before.ts, LOOK_ENTRIES, LOOK_BYTES)
        if rows is None or len(rows) == LOOK_ENTRIES or not rows or rows[-1][0] < committed.ts:
            concerned = list(self._waiting)
        else:
            concerned = self._concerned([OplogRow._make(row) for row in rows if row[0] <= committed.ts])
        self._looked_at = committed
        woken = self._wake(concerned, before)
        if woken:
            self._timer = asyncio.get_running_loop().call_later(woken * WAKE_MS / 1000, self._look)

    def _concerned(self, rows: list[OplogRow]) -> list[Watched]:
        found: dict[Watched, None] = {}
        seen: set[tuple[str, str]] = set()
        for row in rows:
            if row.op == NOOP or (row.op, row.ns) in seen:
                continue
            if row.op == COMMAND:
                found |= dict.fromkeys(scope for scope in self._waiting if _concerns(row, scope))
                continue
            seen.add((row.op, row.ns))
            database, _, collection = row.ns.partition(".")
            for scope in (Watched(database, collection), Watched(database), _EVERYTHING):
                if scope in self._waiting and scope.covers(row.ns):
                    found[scope] = None
        return list(found)

    def _wake(self, scopes: list[Watched], looked_at: OpTime) -> int:
        woken = 0
        for scope in scopes:
            for future in self._waiting.pop(scope, ()):
                if not future.done():
                    future.set_result(looked_at)
                    woken += 1
        return woken


def _ts(optime: OpTime) -> int:
    return optime.ts


def _concerns(row: OplogRow, scope: Watched) -> bool:
    if not scope.may_concern(row):
        return False
    return any(
        scope.covers(operation.ns) if operation.op != COMMAND else scope.may_concern(row)
        for operation in OplogEntry(row.entry).operations
    )
