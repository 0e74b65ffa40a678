"""Limits what one other member gets in a second, while it copies data or is far behind in the oplog."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass


@dataclass(slots=True)
class ByteRate:
    """What was sent to one member. It uses up the rate until `sent_until`, in the loop's time."""

    sent_until: float = 0.0

    def spend(self, size: int, bytes_per_s: int) -> None:
        """Note that `size` bytes are sent."""
        self.sent_until = max(self.sent_until, asyncio.get_running_loop().time()) + size / bytes_per_s

    async def wait(self, most_s: float, *, spare_s: float = 0.0) -> bool:
        """Wait until what was sent before, but for `spare_s`, fits the rate. Return False if `most_s` was too short."""
        left = self.sent_until - asyncio.get_running_loop().time() - spare_s
        if left > 0:
            await asyncio.sleep(min(left, most_s))
        return left <= most_s
