"""Keeps the open cursors of clients. A cursor keeps a position and, for a majority read, a pin on its read point.

A cursor ends when it is exhausted or killed, after ten minutes without a getMore, and a minute after the last
connection of its client. A rollback or an initial sync closes all cursors, because the documents that they would read
next may not exist any more. The memory for documents that cursors keep is limited for all of them together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

from replset.bson import MAX_BSON_SIZE, Int64, RawDocument
from replset.errors import CursorNotFoundError, ErrorCode, OverloadedError, ReplError
from replset.ids import Millis, OpTime
from replset.operations.admission import Admission
from replset.operations.request import Owner
from replset.operations.session_table import EndsSession
from replset.operations.stable_api import NO_API, ApiParameters
from replset.replication.ports import Clock

FIRST_BATCH = 101
MAX_BATCH_BYTES = MAX_BSON_SIZE
LEAST_BATCH_BYTES = 64 << 10
"""A batch may have so much whatever other memory is in use."""
IDLE_MS = 10 * 60_000
SWEEP_MS = 60_000
MAX_MEMORY_BYTES = 64 << 20
"""Limit on the documents that all cursors together keep. One cursor alone always fits."""
SMALL_COMMAND = 1 << 10
"""Bytes of a command for which nothing is counted, though an open cursor keeps what was compiled of it. MAX_OPEN bounds
what all of them take."""
MAX_OPEN = 10_000
"""Limit on the cursors of all clients. One more cursor ends the one that is idle longest."""
RECENTLY_USED_MS = 10_000
"""A cursor with a getMore within this time is not ended to free memory."""


Pause = Callable[[], Awaitable[None]]
"""Lets other clients run; raises MaxTimeMSExpiredError once the command's maxTimeMS is over."""


@dataclass(frozen=True, slots=True)
class Opener:
    """What the command that opened a cursor had, and each getMore of it must have.

    session: its key. transaction: its number. None: there was none. user: who opened it, empty without a login.
    """

    session: bytes | None = None
    transaction: int | None = None
    api: ApiParameters = NO_API
    user: str = ""

    def check_same(self, asks: Opener, cursor_id: int) -> None:
        """Raise ReplError (364, 50736 to 50741) if the getMore that `asks` had something else."""
        if self == asks:
            return
        if self.user != asks.user:
            raise ReplError(f"cursor id {cursor_id} was opened by another user", code=ErrorCode.UNAUTHORIZED)
        if self.api != asks.api:
            raise ReplError(
                f"API parameter mismatch: getMore used params {asks.api}, the cursor-creating command used {self.api}",
                code=ErrorCode.API_MISMATCH,
            )
        what, first = "session", ErrorCode.CURSOR_WITHOUT_SESSION
        mine, theirs = self.session, asks.session
        if mine == theirs:
            what, first = "transaction", ErrorCode.CURSOR_WITHOUT_TRANSACTION
            mine, theirs = self.transaction, asks.transaction  # type: ignore[assignment]
        if mine is None:
            code, text = int(first), f"which was not created in a {what}, in a {what}"
        elif theirs is None:
            code, text = first + 1, f"which was created in a {what}, without one"
        else:
            code, text = first + 2, f"which was created in another {what}"
        raise ReplError(f"Cannot run getMore on cursor {cursor_id}, {text}", code=code)


NOBODY = Opener()


class Batch:
    """The documents of one reply: at most the least of `limits` (None: no limit) and `most_bytes`, but at least one.

    space: how many more there may be. skip: how many are left out before the first.
    """

    __slots__ = ("_most_bytes", "_size", "_skipped", "documents", "skip", "space")

    def __init__(self, most_bytes: int, *limits: int | None, skip: int = 0) -> None:
        self.documents: list[bytes] = []
        self.space = min((limit for limit in limits if limit is not None), default=None)
        self.skip = skip
        self._skipped = 0
        self._most_bytes = most_bytes
        self._size = 0

    def fill(self, waiting: list[bytes]) -> bool:
        """Take documents from the end of `waiting`, the next one last. Return whether there is room for more."""
        end = len(waiting)
        count = end if self.space is None else min(end, self.space)
        taken = waiting[end - count :]
        taken.reverse()
        size = self._size + sum(map(len, taken)) + 16 * count
        while size > self._most_bytes and (count > 1 or (count and self.documents)):
            count -= 1
            size -= len(taken.pop()) + 16
            self.space = 0
        del waiting[end - count :]
        self.documents += taken
        self._size = size
        if self.space:
            self.space -= count
        return self.space != 0

    @property
    def want(self) -> int | None:
        """How many documents to look for, None for no limit."""
        return None if self.space is None else self.space + self.skip

    @property
    def left_bytes(self) -> int:
        """How many bytes of documents still fit."""
        return max(0, self._most_bytes - self._size)

    def fits(self, raw: bytes) -> bool:
        """Whether the next document fits. It is counted then, and `add` takes it; else the batch is full.

        For readers that begin again in front of it: an open cursor keeps nothing that its batch did not take.
        """
        if self.skip:
            self.skip -= 1
            self._skipped += 1
            return True
        size = self._size + len(raw) + 16
        if self._size and size > self._most_bytes:
            self.space = 0
            return False
        self._size = size
        return True

    def add(self, documents: list[bytes]) -> None:
        """Take documents that fit, without those to skip."""
        skipped, self._skipped = self._skipped, 0
        self.documents += documents[skipped:] if skipped else documents
        if self.space:
            self.space -= len(documents) - skipped


class Cursor(ABC):
    """An open cursor: documents still to come. `finished`: none are left. Subclasses know where they come from."""

    def __init__(self, ns: str, *, keep_forever: bool = False) -> None:
        self.ns = ns
        self.keep_forever = keep_forever
        self.finished = False
        self.killed = False
        self.busy = False
        self.batch_bytes = MAX_BATCH_BYTES
        """Limit of the next batch; `CursorTable.space_for_batch` sets it."""
        self.memory_bytes = 0
        """What it keeps between two batches; `CursorTable.set_memory` changes it."""
        self.command_bytes = 0
        """What of that its compiled command takes."""
        self.table: CursorTable | None = None
        """Where these bytes are counted."""
        self.owner: Owner | None = None
        self.used_at = Millis(0)
        self.opener = NOBODY
        self.command: RawDocument | None = None
        """What opened it, unless that is large: currentOp shows it, with its comment."""
        self.is_change_stream = False
        self.resume_token: dict[str, object] | None = None
        """Where a change stream is, behind its newest batch."""
        self.await_data = False
        """A getMore without documents waits for some."""
        self.linearizable = False
        """Each batch must be confirmed before it is answered (read_concern.confirm_linearizable)."""
        self.snapshot_at: OpTime | None = None
        """The point of a read concern snapshot outside of a transaction; each batch names it."""
        self.left_ms: int | None = None
        """What its batches have left of find's maxTimeMS; None: no limit."""

    @abstractmethod
    async def batch(self, pause: Pause, limit: int | None, await_ms: int | None) -> list[bytes]:
        """Return the next documents, at most `limit` (None: as many as fit) and `batch_bytes`, but at least one.

        pause: awaited between two slices of the work. await_ms: how long a tailing cursor waits when there is nothing
        yet (None: its default).
        """

    def count_kept(self, table: CursorTable) -> None:
        """Count what it keeps until the next batch: no document but where a subclass says so. OverloadedError (462)."""
        table.set_memory(self, 0)

    def check_alive(self) -> None:
        """Raise CursorNotFoundError (43) if the cursor was killed while a batch was being read."""
        if self.killed:
            raise CursorNotFoundError("the cursor was killed")

    def close(self) -> None:
        """Free the cursor's memory. Nothing happens the second time."""
        self.finished = True
        self.command_bytes = 0
        if self.table is not None:
            self.table.set_memory(self, 0)


class DocumentsCursor(Cursor):
    """Documents that are there already."""

    def __init__(self, ns: str, documents: list[bytes]) -> None:
        super().__init__(ns)
        self._left = documents[::-1]
        """The next document last."""
        self.finished = not documents

    async def batch(self, pause: Pause, limit: int | None, await_ms: int | None) -> list[bytes]:
        batch = Batch(self.batch_bytes, limit)
        batch.fill(self._left)
        self.finished = not self._left
        return batch.documents

    def count_kept(self, table: CursorTable) -> None:
        table.set_memory(self, sum(map(len, self._left)))


class CursorTable:
    """The cursors of one member, by id."""

    def __init__(self, clock: Clock, rng: Random, memory: Admission) -> None:
        """memory: the member's count of the memory that requests take."""
        self._memory = memory
        self._memory_bytes = 0
        self._batches_bytes = 0
        """Limits of the batches that are being read."""
        self._clock = clock
        self._rng = rng
        self._open: dict[int, Cursor] = {}
        self._swept_at = Millis(0)

    def __len__(self) -> int:
        return len(self._open)

    def set_memory(self, cursor: Cursor, size: int) -> None:
        """Count the command of the cursor, and `size` bytes of documents, from now on.

        OverloadedError (462) if all cursors would take too much.
        """
        total = size + cursor.command_bytes
        more = total - cursor.memory_bytes
        if not self.has_room(cursor, size):
            self._free_memory(cursor, more)
        cursor.table, cursor.memory_bytes = self, total
        self._memory_bytes += more
        self._memory.add(more)

    @contextmanager
    def space_for_batch(self, cursor: Cursor, most: int) -> Iterator[None]:
        """Limit the batch that is read meanwhile to `most` bytes, and to a quarter of the memory that is left.

        All batches that are read at once count as if they had their limit already: hundreds of clients that ask for
        large ones at once get small ones, and ask for the rest. Who counts the reply takes over behind it.
        """
        space = (self._memory.left - self._batches_bytes) // 4
        cursor.batch_bytes = size = max(LEAST_BATCH_BYTES, min(most, space))
        self._batches_bytes += size
        try:
            yield
        finally:
            self._batches_bytes -= size

    def has_room(self, cursor: Cursor, size: int) -> bool:
        """Whether the cursor may have so many bytes of documents without an end of others."""
        total, others = size + cursor.command_bytes, self._memory_bytes - cursor.memory_bytes
        return total <= cursor.memory_bytes or not others or others + total <= MAX_MEMORY_BYTES

    def _free_memory(self, cursor: Cursor, more: int) -> None:
        """End cursors that take memory and are idle, the longest idle first."""
        now = self._clock.now()
        for cursor_id, other in sorted(self._open.items(), key=lambda row: row[1].used_at):
            if self._memory_bytes + more <= MAX_MEMORY_BYTES or self._memory_bytes <= cursor.memory_bytes:
                return
            if (
                other is not cursor
                and other.memory_bytes
                and not other.busy
                and now - other.used_at >= RECENTLY_USED_MS
            ):
                self._forget(cursor_id, other)
        if self._memory_bytes > cursor.memory_bytes and self._memory_bytes + more > MAX_MEMORY_BYTES:
            raise OverloadedError(
                f"this member is overloaded: open cursors hold {self._memory_bytes >> 20} of"
                f" {MAX_MEMORY_BYTES >> 20} MiB of documents; try again"
            )

    def client_left(self, owner: Owner) -> None:
        """Close the cursors of a client that has no connection any more."""
        for cursor_id, cursor in list(self._open.items()):
            if cursor.owner == owner:
                cursor.killed = True
                self._forget(cursor_id, cursor)

    def end_sessions(self, ends: EndsSession) -> None:
        """Close the cursors of these sessions."""
        for cursor_id, cursor in list(self._open.items()):
            session = cursor.opener.session
            if session is not None and ends(session):
                cursor.killed = True
                self._forget(cursor_id, cursor)

    def sessions(self) -> list[bytes]:
        """The keys of the sessions that have a cursor open."""
        return [cursor.opener.session for cursor in self._open.values() if cursor.opener.session is not None]

    def idle(self, user: str | None) -> list[dict[str, object]]:
        """Rows of $currentOp about the cursors that no command uses. user: only those of this one."""
        return [
            {
                "type": "idleCursor",
                "ns": cursor.ns,
                "cursor": {
                    "cursorId": Int64(cursor_id),
                    "noCursorTimeout": cursor.keep_forever,
                    **({} if cursor.command is None else {"originatingCommand": cursor.command}),
                },
            }
            for cursor_id, cursor in self._open.items()
            if not cursor.busy and user in (None, cursor.opener.user)
        ]

    def has_of(self, owner: Owner) -> bool:
        return any(cursor.owner == owner for cursor in self._open.values())

    def add(self, cursor: Cursor, owner: Owner | None = None) -> int:
        """Keep the cursor for later getMores; return its id, positive, of 63 bits. owner None: only time ends it."""
        self.sweep()
        if len(self._open) >= MAX_OPEN:
            self._end_longest_idle()
        cursor.owner = owner
        cursor_id = 0
        while cursor_id == 0 or cursor_id in self._open:
            cursor_id = self._rng.getrandbits(63)
        cursor.used_at = self._clock.now()
        self._open[cursor_id] = cursor
        return cursor_id

    def is_change_stream(self, cursor_id: int) -> bool:
        """Whether there is a cursor of this id, and it is a change stream."""
        cursor = self._open.get(cursor_id)
        return cursor is not None and cursor.is_change_stream

    def take(self, cursor_id: int, ns: str) -> Cursor:
        """Begin a getMore; `give_back` ends it. Raises CursorNotFoundError (43), or 237 while another getMore runs."""
        self.sweep()
        cursor = self._open.get(cursor_id)
        if cursor is None:
            raise CursorNotFoundError(f"cursor id {cursor_id} not found")
        if cursor.ns != ns:
            raise ReplError(
                f"Requested getMore on namespace '{ns}', but cursor belongs to '{cursor.ns}'",
                code=ErrorCode.UNAUTHORIZED,
            )
        if cursor.busy:
            raise ReplError(f"cursor id {cursor_id} is already in use", code=ErrorCode.CURSOR_IN_USE)
        cursor.busy = True
        return cursor

    def give_back(self, cursor_id: int, cursor: Cursor) -> bool:
        """End a getMore. Return whether the cursor stays open."""
        cursor.busy = False
        cursor.used_at = self._clock.now()
        if cursor.finished:
            self._forget(cursor_id, cursor)
        return not cursor.finished

    def kill(self, cursor_ids: Iterable[int], ns: str, user: str = "") -> tuple[list[int], list[int]]:
        """Close cursors that `user` opened on `ns`. Return the ids that were closed, and those that are not known."""
        killed: list[int] = []
        missing: list[int] = []
        for cursor_id in cursor_ids:
            cursor = self._open.get(cursor_id)
            if cursor is None or cursor.ns != ns or cursor.opener.user != user:
                missing.append(cursor_id)
            else:
                cursor.killed = True
                self._forget(cursor_id, cursor)
                killed.append(cursor_id)
        return killed, missing

    def end(self, cursor_id: int, cursor: Cursor) -> None:
        """Close this cursor: its transaction has ended."""
        cursor.killed = True
        self._forget(cursor_id, cursor)

    def close_all(self) -> None:
        """Close all cursors, because the data is replaced or the member stops. Every later getMore answers 43."""
        for cursor_id, cursor in list(self._open.items()):
            cursor.killed = True
            self._forget(cursor_id, cursor)

    def _forget(self, cursor_id: int, cursor: Cursor) -> None:
        cursor.close()
        if self._open.get(cursor_id) is cursor:
            del self._open[cursor_id]

    def _end_longest_idle(self) -> None:
        idle = [(cursor.used_at, cursor_id) for cursor_id, cursor in self._open.items() if not cursor.busy]
        if idle:
            cursor_id = min(idle)[1]
            self._forget(cursor_id, self._open[cursor_id])

    def sweep(self) -> None:
        """End the cursors that have been idle for ten minutes; at most once a minute."""
        now = self._clock.now()
        if now - self._swept_at < SWEEP_MS:
            return
        self._swept_at = now
        for cursor_id, cursor in list(self._open.items()):
            if not cursor.busy and not cursor.keep_forever and now - cursor.used_at > IDLE_MS:
                self._forget(cursor_id, cursor)
