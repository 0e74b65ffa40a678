"""Resume tokens: places in the history of the set, in order, the same on every member.

A token is 24 bytes in hexadecimal digits. It begins as MongoDB's do (0x82, then the seconds and the increment of the
cluster time), since tools read the time from there. Tokens sort in the order of what happened, also as text.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from replset.errors import ErrorCode, ReplError
from replset.ids import OPTIME_NULL, OpTime, pack_ts

_INC_MASK = (1 << 31) - 1
_FIRST_BYTE = 0x82
_layout = Struct(">BIIIBHQ")
_DIGITS = _layout.size * 2
_LAST_OPERATION = (1 << 32) - 1


class Kind(IntEnum):
    """What a token stands behind. BEFORE: it stands in front of its entry. END: behind all of its entry."""

    BEFORE = 0
    EVENT = 1
    INVALIDATE = 2
    END = 3


class Token(NamedTuple):
    """A place in the history. `operation` counts the operations of a transaction; 0 in every other entry.

    fragment: of an event that was split, the number of the part; 0 for a whole event. term: of the entry, 0 if only its
    timestamp is known.
    """

    ts: int
    operation: int
    kind: Kind
    fragment: int = 0
    term: int = 0

    @property
    def optime(self) -> OpTime:
        """The optime of the entry that the token names."""
        return OpTime(self.term, self.ts)

    @property
    def is_event(self) -> bool:
        """Whether it names an event, and no point of time only."""
        return self.kind in (Kind.EVENT, Kind.INVALIDATE)

    @property
    def read_after(self) -> OpTime:
        """The optime behind which a reader that resumes here must read: the rest of the token's entry comes first."""
        if self.kind is Kind.END:
            return self.optime
        return OpTime(self.term, self.ts - 1) if self.ts else OPTIME_NULL

    def document(self) -> dict[str, object]:
        """The token as clients see it."""
        return {"_data": str(self)}

    def __str__(self) -> str:
        seconds, increment = self.ts >> 31, self.ts & _INC_MASK
        packed = _layout.pack(_FIRST_BYTE, seconds, increment, self.operation, self.kind, self.fragment, self.term)
        return packed.hex().upper()

    @classmethod
    def parse(cls, text: object) -> Token:
        """Read a token; ReplError (260) when it is none."""
        try:
            if not isinstance(text, str) or len(text) != _DIGITS or not text.isalnum():
                raise ValueError("its length or its digits")
            first, seconds, increment, operation, kind, fragment, term = _layout.unpack(bytes.fromhex(text))
            if first != _FIRST_BYTE or increment > _INC_MASK or term >= 1 << 63:
                raise ValueError("its bytes")
            return cls(pack_ts(seconds, increment), operation, Kind(kind), fragment, term)
        except ValueError as error:
            raise ReplError(
                f"Bad resume token: {text!r:.100} is none of this product's ({error})",
                code=ErrorCode.INVALID_RESUME_TOKEN,
            ) from None


def behind(optime: OpTime) -> Token:
    """The place behind everything that this entry did."""
    return Token(optime.ts, _LAST_OPERATION, Kind.END, 0, optime.term)


def in_front_of(ts: int, term: int = 0) -> Token:
    """The place in front of the first entry with this timestamp or a later one."""
    return Token(ts, 0, Kind.BEFORE, 0, term)
