"""Each member sees virtual time through its own offset and drift."""

from __future__ import annotations

from replset.ids import Millis
from tests.simulation.kit.loop import SimLoop

EPOCH_MS = 1_700_000_000_000
"""The wall clock at virtual time 0, before offsets."""


class SimClock:
    """The Clock port of one machine. offset_ms: its wall clock's error. drift: by which part it runs too fast."""

    def __init__(self, loop: SimLoop, offset_ms: int = 0, drift: float = 0.0) -> None:
        self._loop = loop
        self._offset_ms = self._furthest_ms = offset_ms
        self._rate = 1.0 + drift

    def jump(self, by_ms: int) -> None:
        """Somebody sets the wall clock; the steady one does not notice."""
        self._offset_ms += by_ms
        self._furthest_ms = max(self._furthest_ms, self._offset_ms)

    def now(self) -> Millis:
        return Millis(int(self._loop.time() * 1000 * self._rate + 1e-6))

    def wall_ms(self) -> int:
        return EPOCH_MS + self._offset_ms + self.now()

    def furthest_wall_ms(self) -> int:
        """A time that this wall clock has not shown yet, by any of its errors."""
        return EPOCH_MS + self._furthest_ms + self.now()

    def set_wall_ahead(self, ahead_ms: int) -> None:
        self._offset_ms = ahead_ms
