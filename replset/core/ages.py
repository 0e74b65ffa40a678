"""How old the entries of the oplog are, by the clock of one process that only moves on.

The seconds of an optime are an order and no clock. A wall clock that was ahead once leaves them ahead until the time
gets there, and the wall times of entries then go back. So whatever waits for entries to become old, or asks how far a
member is behind, measures it: it notes what was the newest entry when.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple

from replset.ids import OPTIME_NULL, Millis, OpTime

SPAN_MS = 100
MOST_SPANS = 2048
PRECISION = 50
"""Old spans are joined as far as no lag is said to be more than two fiftieths longer than it is."""


class Span(NamedTuple):
    """began, ended: the first and the last time that something was noted in it. newest: what was noted last."""

    began: Millis
    ended: Millis
    newest: OpTime


_newest = attrgetter("newest")


class OptimeAges:
    """What was the newest entry when: spans of time, each with the newest entry noted in it."""

    __slots__ = ("_spans",)

    def __init__(self) -> None:
        self._spans: list[Span] = []

    def restart(self, optime: OpTime, now: Millis) -> None:
        """Begin anew, as a primary whose newest entry is at `optime`: who lacks entries is behind since now."""
        self._spans = [Span(now, now, optime)]

    def note(self, optime: OpTime, now: Millis) -> None:
        """Note that `optime` is the newest entry."""
        spans = self._spans
        if spans and optime <= spans[-1].newest:
            return
        if spans and optime.ts < spans[-1].newest.ts:
            self.cut(optime)  # a newer term began before that entry: it is in the set's history no more
        if spans and now - spans[-1].began < SPAN_MS:
            spans[-1] = Span(spans[-1].began, now, optime)
            return
        spans.append(Span(now, now, optime))
        if len(spans) >= MOST_SPANS:
            self._join_old_spans(now)

    def _join_old_spans(self, now: Millis) -> None:
        joined: list[Span] = []
        for span in self._spans:
            if joined and span.began - joined[-1].began < (now - span.began) // PRECISION:
                joined[-1] = Span(joined[-1].began, span.ended, span.newest)
            else:
                joined.append(span)
        self._spans = joined

    def cut(self, newest: OpTime) -> None:
        """Forget what is behind `newest`: a rollback undid it, and what is written there next is new."""
        while self._spans and self._spans[-1].newest.ts > newest.ts:
            self._spans.pop()

    def lag_ms(self, optime: OpTime, now: Millis) -> int:
        """Return for how long a member whose newest entry is at `optime` has lacked an entry; 0: it has all."""
        first = bisect_right(self._spans, optime, key=_newest)
        return 0 if first == len(self._spans) else max(0, now - self._spans[first].began)

    def covers(self, optime: OpTime) -> bool:
        """Whether the lag of a member at `optime` is measured: what it lacks first came after this history began."""
        return bool(self._spans) and optime >= self._spans[0].newest

    def age_ms(self, optime: OpTime, now: Millis) -> tuple[int, int | None]:
        """Return for how long the entry at `optime` has been there at least and at most.

        None: it was there when this history began, or at some time before.
        """
        at = bisect_left(self._spans, optime, key=_newest)
        if at == len(self._spans):
            return 0, 0 if self._spans else None
        span = self._spans[at]
        return max(0, now - span.ended), max(0, now - span.began) if at else None

    def older_than(self, age_ms: int, now: Millis) -> OpTime:
        """Return the newest entry that has been there for so long; OPTIME_NULL: none that is known."""
        behind = bisect_right(self._spans, now - age_ms, key=attrgetter("ended"))
        return self._spans[behind - 1].newest if behind else OPTIME_NULL

    # --- kept over a restart

    def spans(self, now: Millis) -> list[tuple[int, int, OpTime]]:
        """Return each span as (how long ago it began, and ended, its newest entry), the oldest first."""
        self._join_old_spans(now)
        return [(now - span.began, now - span.ended, span.newest) for span in self._spans]

    def load(self, spans: Iterable[tuple[int, int, OpTime]], now: Millis) -> None:
        """Go on from what `spans` gave another process. The time between the two is not counted: none is measured."""
        self._spans = [Span(Millis(now - began), Millis(now - ended), newest) for began, ended, newest in spans]
