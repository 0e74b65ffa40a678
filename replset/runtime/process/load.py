"""Whether this member has more to do than it can: its event loop comes late to its timers again and again."""

from __future__ import annotations

from typing import Final

HIGH_S: Final = 0.03
LOW_S: Final = 0.01
MOST_S: Final = 0.1
"""Of one beat that is late, no more counts: a single stall, however long, is no overload."""
WEIGHT: Final = 0.3
STALL_S: Final = 0.05
"""A beat that is later than this is counted as a stall."""


class Load:
    """Averages how late the beats of the event loop are, each of about 20 ms. A request waits so long several times.

    late_s: that average. stalls: beats that were over 50 ms late. is_high: the average passed 30 ms, and has not fallen
    below 10 ms since.
    """

    def __init__(self) -> None:
        self.late_s = 0.0
        self.stalls = 0
        self.is_high = False

    def on_beat(self, late_s: float) -> None:
        """Note that a beat came `late_s` after it was due."""
        self.late_s += WEIGHT * (min(late_s, MOST_S) - self.late_s)
        self.stalls += late_s > STALL_S
        self.is_high = self.late_s > (LOW_S if self.is_high else HIGH_S)
