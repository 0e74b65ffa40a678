"""The sessions in use on one member: one command at a time writes in a session, and those concerned hear of its end.

A member keeps nothing for a session that no command uses: what a session has written is in its record.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

from replset.errors import ErrorCode, MaxTimeMSExpiredError, ReplError
from replset.ids import Millis
from replset.operations.waiters import done_within

MOST_RECENT: Final = 5_000
EndsSession: TypeAlias = Callable[[bytes], bool]
"""Says of the key of a session whether it is one that ends."""


class SessionTable:
    """Which sessions are checked out, by key. on_end: called with what says of a key whether it ends."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, deque[asyncio.Future[None]] | None] = {}
        """Who waits for each session that is checked out; None: nobody ever did."""
        self.on_end: list[Callable[[EndsSession], None]] = []
        self.recent: dict[bytes, Millis] = {}
        """When the newest sessions were used last, the longest ago first; for $listLocalSessions."""

    def note_use(self, key: bytes, now: Millis) -> None:
        """Note that a command uses the session."""
        recent = self.recent
        recent.pop(key, None)
        recent[key] = now
        if len(recent) > MOST_RECENT:
            del recent[next(iter(recent))]

    def is_checked_out(self, key: bytes) -> bool:
        return key in self._waiting

    def check_out_now(self, key: bytes) -> bool:
        """Check the session out if no other command writes in it; False: `check_out` waits for it."""
        if key in self._waiting:
            return False
        self._waiting[key] = None
        return True

    async def check_out(self, key: bytes, left_ms: int | None) -> None:
        """Wait until no other command writes in the session, for at most `left_ms`; end it with `check_in`.

        A retry that overtakes its first attempt waits here until that one is committed or has failed: it can never be
        applied beside it. Raises MaxTimeMSExpiredError, and 11601 when the session is killed meanwhile.
        """
        if self.check_out_now(key):
            return
        queue = self._waiting[key]
        if queue is None:
            queue = self._waiting[key] = deque()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            if await done_within(turn, left_ms):
                return
        except BaseException:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.check_in(key)  # it was this one's turn already
            raise
        raise MaxTimeMSExpiredError("operation exceeded time limit while another command used the session")

    def check_in(self, key: bytes) -> None:
        """Give the session to the command that has waited longest."""
        queue = self._waiting[key]
        while queue:
            turn = queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._waiting[key]

    def end(self, ends: EndsSession) -> None:
        """End these sessions: fail the commands that wait for them, and tell `on_end`."""
        for key in filter(ends, list(self._waiting)):
            for turn in self._waiting[key] or ():
                if not turn.done():
                    turn.set_exception(ReplError("the session was killed", code=ErrorCode.INTERRUPTED))
        for key in filter(ends, list(self.recent)):
            del self.recent[key]
        for on_end in self.on_end:
            on_end(ends)
