"""Limits the memory of what is decoded and compiled of large filters, updates and pipelines, while commands run.

The limit on requests (admission.py) counts their bytes. Decoded, they take ten times as much, and each compiled part
takes up to a kilobyte more. So a few clients could take gigabytes, and the member would be killed for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from replset.errors import OverloadedError
from replset.operations.slow_operations import SlowReason, Work
from replset.operations.waiters import done_within
from replset.query.time_limit import MOST_PARTS

if TYPE_CHECKING:
    from replset.operations.command import CommandContext

LARGE: Final = 256 << 10
"""Bytes. Statements over this have a memory of their own, so that usual ones do not wait for them."""
MOST_BYTES: Final = 128 << 20
"""What the statements under way may take, estimated, for each of the two. One alone always fits."""
LONGEST_WAIT_MS: Final = 10_000
COMPILED: Final = 10
"""How many times its bytes a statement takes once it is decoded, about."""
PART_BYTES: Final = 768
"""What each condition, expression or field (`count_part`) takes beside that once it is compiled, about."""
LEAST_PART_BYTES: Final = 9
"""The fewest bytes of a statement that make one such part."""


def memory_of(size: int, work: Work) -> int:
    """Estimate what the statements of a command take, decoded and compiled: the most while nothing is compiled yet.

    size: of the command.
    """
    parts = min(MOST_PARTS, size // LEAST_PART_BYTES) if work.parts is None else work.parts
    return COMPILED * size + PART_BYTES * parts


@dataclass(eq=False, slots=True)
class _Holder:
    """A command with statements of `size` bytes. turn: done once it may run."""

    size: int
    work: Work
    turn: asyncio.Future[None]


class StatementMemory:
    """Lets the commands run whose statements fit; the others wait in turn."""

    def __init__(self) -> None:
        self._holders: list[_Holder] = []

    @asynccontextmanager
    async def held(self, ctx: CommandContext, size: int) -> AsyncIterator[None]:
        """Hold the memory of `size` bytes of statements in this block. 50, 462: it waited too long for it."""
        holder = _Holder(size, ctx.work, asyncio.get_running_loop().create_future())
        self._holders.append(holder)
        ctx.work.on_counted = self._let_next_run
        try:
            self._let_next_run()
            if not holder.turn.done():
                await _wait_for_turn(ctx, holder.turn)
            yield
        finally:
            ctx.work.on_counted = None
            self._holders.remove(holder)
            self._let_next_run()

    def _let_next_run(self) -> None:
        in_use = sum(memory_of(holder.size, holder.work) for holder in self._holders if holder.turn.done())
        for holder in self._holders:
            if holder.turn.done():
                continue
            size = memory_of(holder.size, holder.work)
            if in_use and in_use + size > MOST_BYTES:
                return
            in_use += size
            holder.turn.set_result(None)


async def _wait_for_turn(ctx: CommandContext, turn: asyncio.Future[None]) -> None:
    began, left_ms = ctx.member.clock.now(), ctx.left_ms
    wait_ms = LONGEST_WAIT_MS if left_ms is None else min(left_ms, LONGEST_WAIT_MS)
    has_turn = await done_within(turn, wait_ms)
    ctx.work.waited(SlowReason.MEMORY, ctx.member.clock.now() - began)
    if has_turn:
        return
    ctx.check_deadline()
    raise OverloadedError(
        "this member is overloaded: the large filters, updates and pipelines under way take all the memory that they"
        " may; nothing was applied, try again"
    )
