"""What requests hold of a member's memory, from their first bytes until their answers are taken; bounded.

MongoDB's nearest relative is its ingress admission: a request too many is refused at once, under the code and labels
that make its drivers wait and try again. Small requests always pass, so that heartbeats and hellos never queue behind
large ones.
"""

from __future__ import annotations

from typing import Final

from replset.errors import OverloadedError
from replset.wire.framing import LARGE_BYTES

MAX_HELD_BYTES: Final = 128 << 20
"""Of large requests and answers, all clients together. One message of the largest size always fits alone."""
SMALL_BYTES: Final = LARGE_BYTES
"""A request or answer up to this size is not counted."""
STALLED_S: Final = 30.0
"""A client that takes not a byte of its answer for so long loses its connection."""


class Admission:
    """The count, shared by the wire port and the HTTP port. `refused`: requests so far."""

    __slots__ = ("_most", "held", "refused")

    def __init__(self, most: int = MAX_HELD_BYTES) -> None:
        self._most = most
        self.held = 0
        self.refused = 0

    @property
    def is_full(self) -> bool:
        return self.held >= self._most

    def admit(self, size: int) -> bool:
        """Count a request of `size` bytes from here on; False (and a refusal more) when it does not fit."""
        if self.held and self.held + size > self._most:
            self.refused += 1
            return False
        self.held += size
        return True

    def hold(self, size: int) -> None:
        """Count what is there already: an answer under way."""
        self.held += size

    def give_back(self, size: int) -> None:
        self.held -= size

    def refusal(self) -> OverloadedError:
        """What a refused client is told."""
        return OverloadedError(
            f"this member is overloaded: requests and answers hold {self.held >> 20} of {self._most >> 20} MiB;"
            " nothing was applied, try again"
        )
