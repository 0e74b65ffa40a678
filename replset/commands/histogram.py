"""Counts values by their size, for a histogram of the metrics."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)


class Histogram:
    """Values that were observed, by the first bound that is not below them. total: their sum."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Return each bound with how many values are not above it, the last one `+Inf` with all."""
        rows: list[tuple[str, float]] = []
        count = 0
        for bound, found in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            count += found
            rows.append((bound, float(count)))
        return rows
