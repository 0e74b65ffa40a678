"""How much this member sends to each other one: pages of its oplog, and copies of its data."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field

from replset.config import MAX_MEMBER_ID
from replset.ids import MemberId
from replset.operations.waiters import ByteRate

UNKNOWN = MemberId(-1)


@dataclass(slots=True)
class Flow:
    """What one member is sent. sent: bytes, since this process started. limit: bytes a second (`ByteRate`) of the last
    answer; 0: none. held_s: for how long answers to it waited for that. rate: of the oplog; each copy has its own.
    """

    sent: int = 0
    limit: int = 0
    held_s: float = 0.0
    rate: ByteRate = field(default_factory=ByteRate)
    _second: int = 0  # of the loop's clock
    _in_second: int = 0
    _before: int = 0  # in the second before that one

    def note(self, size: int, limit: int = 0) -> None:
        """Count an answer."""
        self.sent += size
        self.limit = limit
        self._move_on()
        self._in_second += size

    async def wait_for(self, rate: ByteRate, most_s: float, *, spare_s: float = 0.0) -> bool:
        """Do as `ByteRate.wait`, and count the time."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            return await rate.wait(most_s, spare_s=spare_s)
        finally:
            self.held_s += loop.time() - began

    def bytes_per_s(self) -> int:
        """Return how much was sent in the last whole second."""
        self._move_on()
        return self._before

    def _move_on(self) -> None:
        second = int(asyncio.get_running_loop().time())
        if second != self._second:
            self._before = self._in_second if second == self._second + 1 else 0
            self._second, self._in_second = second, 0


@dataclass(frozen=True, slots=True)
class Flows:
    """Those of all members, by their `_id`."""

    by_member: dict[MemberId, Flow] = field(default_factory=lambda: defaultdict(Flow))

    def of(self, member_id: MemberId | None) -> Flow:
        """Return that of a member. A client can name any `_id`, and all that cannot be one are counted together."""
        known = member_id is not None and 0 <= member_id <= MAX_MEMBER_ID
        return self.by_member[member_id if known and member_id is not None else UNKNOWN]
