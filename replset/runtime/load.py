"""Whether this member has more to do than it can: its event loop comes late to its timers again and again."""

from __future__ import annotations

from typing import Final

HIGH_S: Final = 0.03
LOW_S: Final = 0.01
MOST_S: Final = 0.1
"""Of one beat that is late, no more counts: a single stall, however long, is no overload."""
WEIGHT: Final = 0.3


class Load:
    """Averages how late the beats of the event loop are, each of about 20 ms. A request waits so long several times.

    is_high: the average passed 30 ms, and has not fallen below 10 ms since.
    """

    def __init__(self) -> None:
        self._late_s = 0.0
        self.is_high = False

    def on_beat(self, late_s: float) -> None:
        """Note that a beat came `late_s` after it was due."""
        self._late_s += WEIGHT * (min(late_s, MOST_S) - self._late_s)
        self.is_high = self._late_s > (LOW_S if self.is_high else HIGH_S)
