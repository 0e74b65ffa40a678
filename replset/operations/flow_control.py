"""Slows a primary's writers while the write majority is too far behind, and says whom they wait for (map X1, D10).

It works on bytes of oplog. What the majority applies in a second follows from its lag and from what was written when.
Once the lag passes `settings.flowControlTargetLagSecs`, writers get a little less than that, so that the lag shrinks.
Below the target they get more each second, until nothing is held back any more. Members that are down do not count
(core/waiting.majority_lag).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import Final

from replset.ids import HostPort
from replset.replication.ports import Clock

LEAST_PER_S: Final = 32 << 10
"""Bytes of oplog that writers always get in a second."""
SLOWER: Final = 0.85
FASTER: Final = ((10, 1.5), (2, 1.2), (1, 1.05))
"""By what the limit rises in a second while the lag is at most the target divided by the first number."""
SMOOTHING: Final = 0.3
FASTEST: Final = 4
"""How many times what it applied in a second before is counted as applied in one second at most."""
HISTORY_S: Final = 600
BURST_S: Final = 0.1
LONGEST_DEBT_S: Final = 2.0
"""A group is written whole. One that takes more than it should is paid for by waiting, but not longer than this."""
LONGEST_WAIT_S: Final = 0.1
"""Then the writer looks again: the limit may have been lifted, or the member may have stepped down."""


class FlowControl:
    """Limits what writers may write. per_second: bytes of oplog; None: no limit."""

    def __init__(self, clock: Clock, lag: Callable[[], tuple[int, tuple[HostPort, ...]]]) -> None:
        """lag: how far in ms the write majority is behind, and who would have to catch up."""
        self._clock = clock
        self._read_lag = lag
        self.per_second: float | None = None
        self.lag_ms = 0
        self.waits_for: tuple[HostPort, ...] = ()
        self.held_ms = 0
        self.times_lagged = 0
        self._unlimited = 0.0  # what was written in a second before the limit
        self._written = 0
        self._history = deque([(clock.now(), 0)], maxlen=HISTORY_S)  # what was written by when
        self._applied = 0.0
        self._applied_per_s = 0.0
        self._balance = 0.0
        self._balance_at = clock.now()
        self._adjusted_at = clock.now()

    @property
    def written(self) -> int:
        """Bytes of oplog that clients wrote since the start."""
        return self._written

    @property
    def is_lagged(self) -> bool:
        return self.per_second is not None

    def adjust(self, target_ms: int) -> None:
        """Set the limit for the next second. target_ms: 0 switches flow control off."""
        now = self._clock.now()
        elapsed_s = max(0.001, (now - self._adjusted_at) / 1000)
        wrote_per_s = (self._written - self._history[-1][1]) / elapsed_s
        self._adjusted_at = now
        self._history.append((now, self._written))
        self.lag_ms, self.waits_for = self._read_lag()
        self._note_applied(self._written_by(now - self.lag_ms), elapsed_s)
        is_behind = self.lag_ms > target_ms > 0
        if self.per_second is None:
            if is_behind:
                self._unlimited = max(wrote_per_s, LEAST_PER_S)
                self.times_lagged += 1
                self._balance, self._balance_at = 0.0, now
                self.per_second = max(LEAST_PER_S, self._applied_per_s * SLOWER)
        elif is_behind:
            self.per_second = max(LEAST_PER_S, self._applied_per_s * SLOWER)
        else:
            self.per_second *= next(factor for part, factor in FASTER if self.lag_ms <= target_ms // part or part == 1)
            if not target_ms or self.per_second > 2 * self._unlimited:
                self.per_second = None

    def _note_applied(self, applied: float, elapsed_s: float) -> None:
        """Note what the majority has applied in all, and so what it applies in a second.

        The total jumps when a member that was down counts again, or no longer has to. It falls then, and what the
        majority applies in a second stays as it was before; or it rises, and counts as a fast second at most.
        """
        if applied >= self._applied:
            fastest = FASTEST * max(LEAST_PER_S, self._applied_per_s)
            per_s = min(fastest, (applied - self._applied) / elapsed_s)
            self._applied_per_s += SMOOTHING * (per_s - self._applied_per_s)
        self._applied = applied

    def _written_by(self, time_ms: int) -> float:
        """Return how much was written by then, as far back as it is known."""
        rows = self._history
        after = bisect_right(rows, time_ms, key=lambda row: row[0])
        if after in (0, len(rows)):
            return rows[-1 if after else 0][1]
        (began, before), (ended, written) = rows[after - 1], rows[after]
        return before + (written - before) * (time_ms - began) / (ended - began)

    def on_written(self, size: int) -> None:
        """Count the bytes of oplog of a group that is committed."""
        self._written += size
        if self.per_second is not None:
            self._balance = max(self._balance - size, -LONGEST_DEBT_S * self.per_second)

    def wait_s(self) -> float:
        """For how long the next group has to wait; 0: it may be written now. A wait is counted as held."""
        if self.per_second is None:
            return 0.0
        now = self._clock.now()
        self._balance += self.per_second * (now - self._balance_at) / 1000
        self._balance = min(self._balance, BURST_S * self.per_second)
        self._balance_at = now
        if self._balance > 0:
            return 0.0
        wait_s = min(LONGEST_WAIT_S, -self._balance / self.per_second + 0.001)
        self.held_ms += round(wait_s * 1000)
        return wait_s

    def allowance(self, most: int) -> int:
        """Return the bytes of oplog after which a group should end, at most `most`."""
        return most if self.per_second is None else min(most, max(1, int(self._balance)))
