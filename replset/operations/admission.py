"""Limits the memory that requests and their answers use, from a request's first bytes until its answer is sent.

It works as MongoDB's ingress admission: a request that does not fit is refused at once, under the code and labels that
make drivers wait and try again. Small requests always pass, so that heartbeats and hellos never queue behind
large ones.
"""

from __future__ import annotations

from typing import Final

from replset.errors import OverloadedError
from replset.wire.framing import LARGE_BYTES

MAX_BYTES_IN_USE: Final = 128 << 20
"""How many bytes the large requests and answers of all clients have. One message of the largest size always fits."""
SMALL_BYTES: Final = LARGE_BYTES
"""A request or answer up to this size is not counted."""
STALLED_S: Final = 30.0
"""A client that reads no byte of its answer for so long loses its connection."""


class Admission:
    """Counts the bytes in use on the wire port and the HTTP port together. `refused`: requests refused so far."""

    __slots__ = ("_most", "in_use", "refused")

    def __init__(self, most: int = MAX_BYTES_IN_USE) -> None:
        self._most = most
        self.in_use = 0
        self.refused = 0

    @property
    def is_full(self) -> bool:
        return self.in_use >= self._most

    @property
    def left(self) -> int:
        """Bytes that may still be used; negative if more are, since what is in memory already is counted too."""
        return self._most - self.in_use

    def admit(self, size: int) -> bool:
        """Count a request of `size` bytes from now on; False, and one more refusal, when it does not fit."""
        if self.in_use and self.in_use + size > self._most:
            self.refused += 1
            return False
        self.in_use += size
        return True

    def add(self, size: int) -> None:
        """Count bytes that are in memory already, as those of an answer; fewer where `size` is negative."""
        self.in_use += size

    def release(self, size: int) -> None:
        self.in_use -= size

    def refusal(self) -> OverloadedError:
        """Make the error for a client whose request was refused."""
        return OverloadedError(
            f"this member is overloaded: requests and answers hold {self.in_use >> 20} of {self._most >> 20} MiB;"
            " nothing was applied, try again"
        )
