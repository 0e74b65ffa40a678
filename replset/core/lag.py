"""How far other members are behind in time.

A primary notes when it wrote what. The wall times of entries would not do: after a pause, the first entry would make
every other member look behind by the whole pause.
"""

from __future__ import annotations

from bisect import bisect_right

from replset.ids import Millis, OpTime

SPAN_MS = 100
MOST_SPANS = 2048
PRECISION = 50
"""Old spans are joined as far as no lag is said to be more than two fiftieths longer than it is."""


class LagHistory:
    """When this primary wrote what: spans of time, each with its beginning and the newest entry written in it."""

    __slots__ = ("_spans",)

    def __init__(self) -> None:
        self._spans: list[tuple[Millis, OpTime]] = []

    def restart(self, optime: OpTime, now: Millis) -> None:
        """Begin anew, as a primary whose newest entry is at `optime`: who lacks entries is behind since now."""
        self._spans = [(now, optime)]

    def note(self, optime: OpTime, now: Millis) -> None:
        """Note that `optime` is this member's newest entry."""
        spans = self._spans
        if spans and optime <= spans[-1][1]:
            return
        if spans and now - spans[-1][0] < SPAN_MS:
            spans[-1] = (spans[-1][0], optime)
            return
        spans.append((now, optime))
        if len(spans) >= MOST_SPANS:
            self._join_old_spans(now)

    def _join_old_spans(self, now: Millis) -> None:
        joined: list[tuple[Millis, OpTime]] = []
        for began, newest in self._spans:
            if joined and began - joined[-1][0] < (now - began) // PRECISION:
                joined[-1] = (joined[-1][0], newest)
            else:
                joined.append((began, newest))
        self._spans = joined

    def lag_ms(self, optime: OpTime, now: Millis) -> int:
        """Return for how long a member whose newest entry is at `optime` has lacked an entry; 0: it has all."""
        first = bisect_right(self._spans, optime, key=lambda span: span[1])
        return 0 if first == len(self._spans) else max(0, now - self._spans[first][0])
