"""Reads change events in order for a change stream, a consumer or a follower, with the images that it asks for.

A place is a token. Whoever keeps the token that `read` returned last goes on behind it, here or on another member.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from replset.bson import RawDocument, encode
from replset.errors import (
    CatalogChangedError,
    ErrorCode,
    NamespaceNotFoundError,
    NotPrimaryOrSecondaryError,
    ReplError,
    SnapshotCutError,
    SnapshotTooOldError,
)
from replset.ids import OpTime
from replset.operations.evaluation import TimeSlice, run_in_thread
from replset.operations.history import History
from replset.operations.kernel import Kernel
from replset.oplog_row import OplogRow
from replset.query.change_events import ChangeEvent, EntryEvents, Watched, invalidate_document
from replset.query.change_tokens import Kind, Token, behind
from replset.storage.snapshot import Snapshot

FullDocument = Literal["default", "updateLookup", "whenAvailable", "required"]
BeforeChange = Literal["off", "whenAvailable", "required"]
PAGE_EVENTS: Final = 128
PAGE_BYTES: Final = 4 << 20
TURN_MS: Final = 5
_TRIES: Final = 5
"""How often images are read again that the store cuts off."""
_CHANGES: Final = frozenset({"update", "replace", "delete"})
"""Events of documents that were there before."""


_Found = tuple[ChangeEvent, EntryEvents]
"""An event to tell, and all of its entry."""


@dataclass(frozen=True, slots=True)
class EventOptions:
    """What is told, and how: see the options of `$changeStream`."""

    scope: Watched
    full_document: FullDocument = "default"
    before_change: BeforeChange = "off"
    expanded: bool = False

    @property
    def is_plain(self) -> bool:
        return self.full_document == "default" and self.before_change == "off" and not self.expanded


class ToldEvent(NamedTuple):
    """One event as bytes. key: of its document (encode_key of the `_id`), None for what is about none.

    is_last: nothing follows it, for what was followed is gone.
    """

    token: Token
    raw: bytes
    key: bytes | None
    is_last: bool = False


class EventReader:
    """Reads events behind a token. Nothing is kept for it on the member but the rest of a page of entries."""

    def __init__(self, member: Kernel, options: EventOptions) -> None:
        self._member = member
        self._options = options
        self._rows: deque[OplogRow] = deque()
        self._reached: Token | None = None
        """Behind it the rows that are left of the page begin."""

    async def read(
        self, after: Token, *, limit: int = PAGE_EVENTS, max_bytes: int = PAGE_BYTES
    ) -> tuple[list[ToldEvent], Token]:
        """Return the next events behind `after`, and the token behind all that was looked at: the next read begins
        there. Without events and with `after` itself, there is nothing more yet.

        At least one event is returned, if the page has one; less than all while time runs out, or once their images
        take `max_bytes`. Raises
        ChangeStreamHistoryLostError (286), NotPrimaryOrSecondaryError (13436), and 47 for a required image that is
        gone.
        """
        state = self._member.node.state
        if not state.is_readable:
            raise NotPrimaryOrSecondaryError(f"changes are not read in state {state.name}")
        if after != self._reached:
            self._rows.clear()
        self._reached = None
        if not self._rows:
            self._rows.extend(await self._member[History].after(after.read_after))
        events, reached, last = await self._next_events(after, limit, max_bytes)
        told = await self._told(events, max_bytes)
        if len(told) < len(events):
            return told, told[-1].token  # the page is read again behind it
        if last is not None:
            reached, document = invalidate_document(last)
            told.append(ToldEvent(reached, encode(document), None, is_last=True))
        self._reached = reached
        return told, reached

    @property
    def kept_bytes(self) -> int:
        """How many bytes the entries have that are left of the page."""
        return sum(len(row.entry) for row in self._rows)

    def drop_page(self) -> None:
        """Free it. The next read reads it again."""
        self._rows.clear()

    def is_at_end(self, at: Token) -> bool:
        """Whether nothing behind `at` is committed yet."""
        return at.read_after.ts >= self._member[History].committed.ts

    async def _next_events(
        self, after: Token, limit: int, max_bytes: int
    ) -> tuple[list[_Found], Token, ChangeEvent | None]:
        """Return the events, how far they go, and the one behind which nothing can be told any more."""
        scope, expanded, rows = self._options.scope, self._options.expanded, self._rows
        time_slice = TimeSlice(self._member.clock, TURN_MS)
        found: list[_Found] = []
        reached, size = after, 0
        while rows and (reached == after or not time_slice.is_over()):
            row = rows[0]
            if scope.may_concern(row):
                events = await self._member[History].events_of(row)
                for event in events.from_operation(_next_operation(row, after)):
                    if event.token >= after and scope.tells(event, expanded=expanded):
                        if event.token > after:
                            found.append((event, events))
                            size += len(event.entry.raw)
                        if scope.ends_with(event):
                            return found, event.token, event
                        if len(found) == limit or size >= max_bytes:
                            return found, event.token, None
                    if event.token > after and time_slice.is_over():
                        return found, event.token, None
            rows.popleft()
            reached = behind(row.optime)
        return found, reached, None

    async def wait(self, at: Token, timeout_ms: int) -> Token:
        """Wait for an event behind `at`; see History.wait. Returns where to read on."""
        reached = await self._member[History].wait(at.read_after, self._options.scope, timeout_ms)
        return behind(reached) if reached.ts > at.read_after.ts else at

    async def knows(self, token: Token) -> bool:
        """Whether the event of the token is in the history, and one that is told here. 286: it is gone."""
        rows = await self._member[History].after(OpTime(token.term, token.ts - 1), limit=1)
        if not rows:
            return self._member[History].committed.ts < token.ts  # it may still come to this member
        row = rows[0]
        if row.optime != token.optime or not self._options.scope.may_concern(row):
            return False
        for event in (await self._member[History].events_of(row)).from_operation(token.operation):
            is_told = self._options.scope.tells(event, expanded=self._options.expanded)
            return is_told and event.token.operation == token.operation
        return False

    # --- images

    async def _told(self, events: list[_Found], max_bytes: int) -> list[ToldEvent]:
        """The events with their images. Those that `max_bytes` leaves no room for come with the next read."""
        if self._options.is_plain:
            return [ToldEvent(event.token, event.raw(), event.key) for event, _ in events]
        if self._reads_versions:
            for event, entry in events:
                if event.token.operation and entry.must_count_writes:
                    await run_in_thread(self._member, entry.count_writes)
        for left in reversed(range(_TRIES)):
            try:
                return self._with_images(events, max_bytes)
            except SnapshotCutError:
                if not left:
                    raise
        return []

    def _with_images(self, events: list[_Found], max_bytes: int) -> list[ToldEvent]:
        told: list[ToldEvent] = []
        size = 0
        with self._member.store.read() as snapshot:
            for event, entry in events:
                before = entry.writes_before(event) if self._reads_versions and event.token.operation else 0
                document = event.document(
                    expanded=self._options.expanded,
                    full_document=self._full_document(snapshot, event, before),
                    before_change=self._before_change(snapshot, event, before),
                )
                told.append(ToldEvent(event.token, encode(document), event.key))
                size += len(told[-1].raw)
                if size >= max_bytes:
                    break
        return told

    @property
    def _reads_versions(self) -> bool:
        options = self._options
        return options.before_change != "off" or options.full_document in ("whenAvailable", "required")

    def _full_document(self, snapshot: Snapshot, event: ChangeEvent, before: int) -> RawDocument | bool | None:
        wanted = self._options.full_document
        if wanted == "default" or event.operation_type != "update":
            return False
        if wanted == "updateLookup":
            found = self._document_now(snapshot, event)
        else:
            versions = _versions(snapshot, event, before)
            found = versions[1] if versions else None
            if found is None and wanted == "required":
                raise _missing("post-image", "update events", event)
        return None if found is None else RawDocument(found)

    def _before_change(self, snapshot: Snapshot, event: ChangeEvent, before: int) -> RawDocument | bool | None:
        wanted = self._options.before_change
        if wanted == "off" or event.operation_type not in _CHANGES:
            return False
        versions = _versions(snapshot, event, before)
        found = versions[0] if versions else None
        if found is None and wanted == "required":
            raise _missing("pre-image", "update, delete and replace events", event)
        return None if found is None else RawDocument(found)

    def _document_now(self, snapshot: Snapshot, event: ChangeEvent) -> bytes | None:
        """The document as it is committed now; None if it is gone."""
        coll = None if event.ui is None else snapshot.collection_by_uuid(event.ui)
        if coll is None or coll.dropped_ts is not None or event.key is None:
            return None
        try:
            return snapshot.get(coll, event.key, min(self._member[History].committed, snapshot.newest))
        except (SnapshotTooOldError, CatalogChangedError, NamespaceNotFoundError):
            return None


def _next_operation(row: OplogRow, after: Token) -> int:
    """The number of the first operation of this entry that can have an event behind the token."""
    return after.operation if row.ts == after.ts and after.kind is not Kind.END else 0


def _versions(snapshot: Snapshot, event: ChangeEvent, number: int) -> list[bytes | None]:
    """The document before and after its write of this number in the event's entry; nothing where the undo is gone."""
    coll = None if event.ui is None else snapshot.collection_by_uuid(event.ui)
    if coll is None or event.key is None:
        return []
    return snapshot.versions_at(coll, event.key, event.optime.ts, number)


def _missing(image: str, events: str, event: ChangeEvent) -> ReplError:
    return ReplError(
        f"Change stream was configured to require a {image} for all {events}, but the {image} was not found for event:"
        f" {event.operation_type} in {event.ns} at {event.optime}",
        code=ErrorCode.NO_MATCHING_DOCUMENT,
    )
