"""Values that import nothing of ours: ids, milliseconds, optimes and `invariant`."""

from __future__ import annotations

import re
from typing import NamedTuple, NewType

from replset.errors import InvariantError

MemberId = NewType("MemberId", int)
"""`_id` of a member in the configuration; never its index in the list."""
Millis = NewType("Millis", int)
"""A point or a span of time in milliseconds; points of the core's clock are monotonic, not wall time."""
HostPort = NewType("HostPort", str)
"""`host:port` of a member's wire port."""

INCREMENT_BITS = 31
_OPTIME_TEXT = re.compile(r"(\d{1,19}):(\d{1,10}):(\d{1,10})")


class OpTime(NamedTuple):
    """When an oplog entry was written: `term`, then `ts` = seconds * 2**31 + increment (one SQLite integer).

    Ordered by term first, as MongoDB orders them. As text: `TERM:SECONDS:INC`.
    """

    term: int
    ts: int

    @property
    def seconds(self) -> int:
        return self.ts >> INCREMENT_BITS

    @property
    def increment(self) -> int:
        return self.ts & ((1 << INCREMENT_BITS) - 1)

    def __str__(self) -> str:
        return f"{self.term}:{self.seconds}:{self.increment}"

    @classmethod
    def parse(cls, text: str) -> OpTime:
        """Read `TERM:SECONDS:INC`; ValueError names what is wrong."""
        match = _OPTIME_TEXT.fullmatch(text)
        if match is None:
            raise ValueError(f"not an optime (TERM:SECONDS:INC): {text!r}")
        term, seconds, increment = (int(part) for part in match.groups())
        if seconds >= 1 << 32 or increment >= 1 << INCREMENT_BITS:
            raise ValueError(f"seconds or increment out of range: {text!r}")
        return cls(term, pack_ts(seconds, increment))


def pack_ts(seconds: int, increment: int) -> int:
    """Return one integer for a BSON timestamp, ordered like it and positive beyond 2038."""
    return (seconds << INCREMENT_BITS) | increment


OPTIME_NULL = OpTime(0, 0)
"""The optime before every entry, of an empty oplog."""


def invariant(condition: object, why: str) -> None:
    """Stop the member when `condition` does not hold; unlike assert it survives `python -O`."""
    if not condition:
        raise InvariantError(why)
