"""Shares the turns of the event loop among all clients of both ports.

Each connection by itself takes only a little of a turn. Hundreds of them together would take seconds of it, and a
heartbeat, a vote or another client's ping would wait as long. So one turn runs so many commands, bytes and milliseconds
of all clients together; an HTTP request counts as a command. Who finds nothing left waits behind those that wait
already, one command each. Other members never wait here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

COMMANDS: Final = 256
BYTES: Final = 1 << 20
TIME_MS: Final = 10
"""Of all clients together in one turn. The command that passes a limit is the last one of its turn."""


class _Call(NamedTuple):
    """What is called in its turn, a command of `size` bytes."""

    size: int
    go_on: Callable[[], None]


class Turns:
    """Counts what clients use of the turn that runs, and keeps those that wait for the next one in their order."""

    def __init__(self, now: Callable[[], int]) -> None:
        """now: reads a clock that never jumps, in milliseconds."""
        self._now = now
        self._waiting: deque[asyncio.Future[None] | _Call] = deque()
        self._woken = 0  # connections that come first in this turn
        self._back = 0  # and those of them that found it used up
        self._is_counting = False
        self._commands = self._bytes = self._until = 0

    def has_room(self) -> bool:
        """Whether a command may run in this turn and be counted. False: `wait` first, for nobody may go before."""
        if not self._is_counting:
            self._begin()
        return not (self._waiting or self._woken or self._is_used_up())

    def count(self, size: int) -> None:
        """Count one command of `size` bytes. The time of a turn begins with its first one."""
        if not self._commands:
            self._until = self._now() + TIME_MS
        self._commands += 1
        self._bytes += size

    async def take(self, size: int = 0) -> None:
        """Count one command of `size` bytes, in this turn if it has room."""
        if self.has_room():
            self.count(size)
        else:
            await self.wait(size)

    def call(self, size: int, go_on: Callable[[], None]) -> None:
        """Call `go_on` in a turn with room, as `wait` without a task."""
        self._add(_Call(size, go_on))

    def _add(self, waiter: asyncio.Future[None] | _Call, *, is_back: bool = False) -> None:
        if is_back:
            self._waiting.insert(self._back, waiter)
            self._back += 1
        else:
            self._waiting.append(waiter)
        if not self._is_counting:
            self._begin()

    async def wait(self, size: int) -> None:
        """Wait for a turn with room behind those that wait already, and count one command of `size` bytes in it."""
        loop, is_back = asyncio.get_running_loop(), False
        while True:
            woken: asyncio.Future[None] = loop.create_future()
            self._add(woken, is_back=is_back)
            try:
                await woken
            finally:
                self._woken -= woken.done() and not woken.cancelled()
            if not self._is_used_up():
                break
            is_back = True
        self.count(size)

    def _is_used_up(self) -> bool:
        is_many = self._commands >= COMMANDS or self._bytes >= BYTES
        return is_many or (self._commands > 0 and self._now() >= self._until)

    def _begin(self) -> None:
        """Count anew, and let those that wait come first."""
        self._is_counting = True
        self._commands = self._bytes = self._back = 0
        loop = asyncio.get_running_loop()
        if self._waiting:
            loop.call_soon(self._give)
        loop.call_soon(self._end)

    def _give(self) -> None:
        """Call and wake those that wait, in their order. Who is woken comes first in the next turn."""
        waiting = self._waiting
        while waiting and self._woken < COMMANDS and not self._is_used_up():
            first = waiting.popleft()
            if isinstance(first, _Call):
                self.count(first.size)
                first.go_on()
            elif not first.done():
                first.set_result(None)
                self._woken += 1

    def _end(self) -> None:
        self._is_counting = False
        if self._waiting or self._woken:
            self._begin()
