"""Lets a group wait a moment for the clients whose last writes were answered together.

The writes of one group that wait for a majority are answered in one turn of the loop, so the next writes of these
clients come together, too, but not in the same turn. If the first of them began a group, the others would make a second
one: twice as many commits, syncs, pages and positions for the same writes. So a group waits until as many writes are
there as were on their way when the last one began, but not longer than `MOST_MS` (`commit_delay` of PostgreSQL has the
same purpose).
"""

from __future__ import annotations

from typing import Final

from replset.ids import Millis
from replset.replication.ports import Clock

ENOUGH: Final = 64
"""A group of so many never waits: what it costs beside its writes is small for each of them."""
MOST_MS: Final = 8
MOST_GROUPS: Final = 64
"""How many groups do not wait, at most, after waits in vain."""


class GroupWait:
    """Says whether the next group waits. Clients that do not come back together make waits rare.

    After a wait in vain the next group does not wait, after another one the next two, then four; each good wait halves
    this. Good is a wait that found what was expected within half of the time since the last group. One of `MOST_MS`
    is in vain, and so is the second of two others.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._expected = 1
        self._since: Millis | None = None  # when the group that waits began to
        self._last = clock.now()
        self._was_long = False  # the last wait
        self._in_vain = self._without = 0

    def is_enough(self, writes: int) -> bool:
        """Whether a group may begin with so many; if not, it waits from now on."""
        if writes >= min(self._expected, ENOUGH) or self._without:
            return True
        if self._since is None:
            self._since = self._clock.now()
        return False

    def on_group(self, on_the_way: int) -> None:
        """Handle the beginning of a group.

        on_the_way: its writes, and those of earlier ones that are not answered yet.
        """
        since, now = self._since, self._clock.now()
        interval_ms = now - self._last
        self._expected, self._last, self._since = on_the_way, now, None
        if since is None:
            self._without = max(0, self._without - 1)
        elif (waited_ms := now - since) < MOST_MS and 2 * waited_ms <= interval_ms:
            self._in_vain //= 2
            self._was_long = False
        elif waited_ms >= MOST_MS or self._was_long:  # the writes do not come together
            self._in_vain = min(2 * self._in_vain, MOST_GROUPS) or 1
            self._without, self._was_long = self._in_vain, False
        else:
            self._was_long = True  # two groups may have become one
