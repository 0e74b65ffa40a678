"""Whether this member has more to do than it can: its event loop comes late to its timers again and again."""

from __future__ import annotations

HIGH_S = 0.05
LOW_S = 0.02
MOST_S = 0.1
"""Of one beat that is late, no more counts: a single long stall is no overload."""
WEIGHT = 0.2


class Load:
    """Averages how late the beats of the event loop are, each of about 20 ms. Every request waits that long, too.

    is_high: the average passed 50 ms, and has not fallen below 20 ms since. It takes four beats in a row at least.
    """

    def __init__(self) -> None:
        self._late_s = 0.0
        self.is_high = False

    def on_beat(self, late_s: float) -> None:
        """Note that a beat came `late_s` after it was due."""
        self._late_s += WEIGHT * (min(late_s, MOST_S) - self._late_s)
        self.is_high = self._late_s > (LOW_S if self.is_high else HIGH_S)
