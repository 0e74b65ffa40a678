"""Open cursors of clients. A cursor keeps a position and, for a majority read, a pin on its point; never a transaction.

Cursors end when they are exhausted or killed, after ten minutes without a getMore, and all at once when the member's
history is replaced (rollback, initial sync): then what they would go on with does not exist any more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from random import Random

from replset.bson import MAX_BSON_SIZE
from replset.commands.command import CommandContext
from replset.errors import CursorNotFoundError, ReplError
from replset.ids import Millis
from replset.replication.ports import Clock

FIRST_BATCH = 101
MAX_BATCH_BYTES = MAX_BSON_SIZE
IDLE_MS = 10 * 60_000
SWEEP_MS = 60_000
CURSOR_IN_USE = 237


class Cursor(ABC):
    """Documents still to come. `finished`: there are none. Subclasses say where they come from."""

    def __init__(self, ns: str, *, keep_forever: bool = False) -> None:
        self.ns = ns
        self.keep_forever = keep_forever
        self.finished = False
        self.killed = False
        self.busy = False
        self.used_at = Millis(0)
        self.linearizable = False
        """Every batch has to be proven before it is answered (read_concern.prove)."""
        self.left_ms: int | None = None
        """Of a linearizable cursor: what its batches have left of maxTimeMS; None: for ever."""

    @abstractmethod
    async def batch(self, ctx: CommandContext, limit: int | None, await_ms: int | None) -> list[bytes]:
        """The next documents, at most `limit` (None: as many as fit) and MAX_BATCH_BYTES, but at least one.

        await_ms: how long a tailing cursor waits when there is nothing yet (None: its default).
        """

    def check_alive(self) -> None:
        """CursorNotFoundError (43) when the cursor was killed while a batch was on its way."""
        if self.killed:
            raise CursorNotFoundError("the cursor was killed")

    def close(self) -> None:
        """Let go of what the cursor holds. Nothing happens the second time."""
        self.finished = True


class CursorTable:
    """The cursors of one member, by id."""

    def __init__(self, clock: Clock, rng: Random) -> None:
        self._clock = clock
        self._rng = rng
        self._open: dict[int, Cursor] = {}
        self._swept_at = Millis(0)

    def __len__(self) -> int:
        return len(self._open)

    def add(self, cursor: Cursor) -> int:
        """Keep the cursor for later getMores; its id, a positive 63-bit number."""
        self._sweep()
        cursor_id = 0
        while cursor_id == 0 or cursor_id in self._open:
            cursor_id = self._rng.getrandbits(63)
        cursor.used_at = self._clock.now()
        self._open[cursor_id] = cursor
        return cursor_id

    def take(self, cursor_id: int, ns: str) -> Cursor:
        """Begin a getMore; end it with `give_back`. CursorNotFoundError (43); 237 while another getMore runs."""
        self._sweep()
        cursor = self._open.get(cursor_id)
        if cursor is None:
            raise CursorNotFoundError(f"cursor id {cursor_id} not found")
        if cursor.ns != ns:
            raise ReplError(f"Requested getMore on namespace '{ns}', but cursor belongs to '{cursor.ns}'", code=13)
        if cursor.busy:
            raise ReplError(f"cursor id {cursor_id} is already in use", code=CURSOR_IN_USE)
        cursor.busy = True
        return cursor

    def give_back(self, cursor_id: int, cursor: Cursor) -> bool:
        """End a getMore. True: the cursor stays open."""
        cursor.busy = False
        cursor.used_at = self._clock.now()
        if cursor.finished:
            self._forget(cursor_id, cursor)
        return not cursor.finished

    def kill(self, cursor_ids: Iterable[int], ns: str) -> tuple[list[int], list[int]]:
        """Close cursors on `ns`; those that were, and those that are not known."""
        killed: list[int] = []
        missing: list[int] = []
        for cursor_id in cursor_ids:
            cursor = self._open.get(cursor_id)
            if cursor is None or cursor.ns != ns:
                missing.append(cursor_id)
            else:
                cursor.killed = True
                self._forget(cursor_id, cursor)
                killed.append(cursor_id)
        return killed, missing

    def close_all(self) -> None:
        """The history they read from is replaced, or the member stops: every later getMore answers 43."""
        for cursor_id, cursor in list(self._open.items()):
            cursor.killed = True
            self._forget(cursor_id, cursor)

    def _forget(self, cursor_id: int, cursor: Cursor) -> None:
        cursor.close()
        if self._open.get(cursor_id) is cursor:
            del self._open[cursor_id]

    def _sweep(self) -> None:
        now = self._clock.now()
        if now - self._swept_at < SWEEP_MS:
            return
        self._swept_at = now
        for cursor_id, cursor in list(self._open.items()):
            if not cursor.busy and not cursor.keep_forever and now - cursor.used_at > IDLE_MS:
                self._forget(cursor_id, cursor)
