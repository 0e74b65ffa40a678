"""Defines Python types for the BSON types that Python has no type for.

All are immutable and hashable. They equal values of their own type only: DateTime(5) is not 5, Code("x") is not "x".
There are two exceptions, where the BSON value is the same: an Int64 is an int, and a Binary of subtype 0 equals bytes.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import total_ordering
from itertools import count
from typing import NamedTuple

from replset.bson.errors import InvalidValueError

INT64_MIN = -(1 << 63)
INT64_MAX = (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class Int64(int):
    """An int that encodes as int64 however small it is. InvalidValueError beyond 64 bits."""

    __slots__ = ()

    def __new__(cls, value: int = 0) -> Int64:
        if not INT64_MIN <= value <= INT64_MAX:
            raise InvalidValueError(f"{value} does not fit into 64 bits")
        return int.__new__(cls, value)

    def __repr__(self) -> str:
        return f"Int64({int(self)})"

    __str__ = int.__repr__


@total_ordering
class ObjectId:
    """Twelve bytes: seconds (4, big-endian), random of the process (5), counter (3).

    value: the bytes, or 24 hex digits. InvalidValueError for anything else.
    """

    __slots__ = ("_bytes",)

    def __init__(self, value: str | bytes | ObjectId) -> None:
        if isinstance(value, ObjectId):
            self._bytes: bytes = value._bytes
            return
        if isinstance(value, str) and len(value) == 24:
            try:
                value = bytes.fromhex(value)
            except ValueError:
                raise InvalidValueError(f"an ObjectId takes 24 hex digits, not {value!r}") from None
        if not isinstance(value, bytes) or len(value) != 12:
            raise InvalidValueError(f"an ObjectId takes 12 bytes or 24 hex digits, not {value!r:.60}")
        self._bytes = bytes(value)

    @property
    def binary(self) -> bytes:
        return self._bytes

    @property
    def seconds(self) -> int:
        """Return the Unix time in the first four bytes."""
        return int.from_bytes(self._bytes[:4], "big")

    def __str__(self) -> str:
        return self._bytes.hex()

    def __repr__(self) -> str:
        return f"ObjectId('{self._bytes.hex()}')"

    def __eq__(self, other: object) -> bool:
        return self._bytes == other._bytes if isinstance(other, ObjectId) else NotImplemented

    def __lt__(self, other: ObjectId) -> bool:
        return self._bytes < other._bytes if isinstance(other, ObjectId) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._bytes)

    def __reduce__(self) -> tuple[type[ObjectId], tuple[bytes]]:
        return ObjectId, (self._bytes,)


class ObjectIds:
    """Makes the new ids of one process. Each sorts behind the one before, unless the clock goes back.

    As in MongoDB: seconds, five random bytes of the process, and a counter that rises by one from a random number.
    """

    def __init__(self, rng: random.Random) -> None:
        drawn = rng.randbytes(8)
        self._process = drawn[:5]
        self._counter = count(int.from_bytes(drawn[5:], "big"))

    def make(self, seconds: int) -> ObjectId:
        """Return a new id. seconds: Unix time. The counter begins again at zero behind its three bytes."""
        counter = next(self._counter) & 0xFFFFFF
        return ObjectId((seconds & 0xFFFFFFFF).to_bytes(4, "big") + self._process + counter.to_bytes(3, "big"))


class _TimestampFields(NamedTuple):
    time: int
    inc: int


class Timestamp(_TimestampFields):
    """A BSON timestamp: Unix seconds and a counter within the second, 32 bits unsigned each; ordered like a tuple."""

    __slots__ = ()

    def __new__(cls, time: int, inc: int) -> Timestamp:
        if not (0 <= time <= 0xFFFFFFFF and 0 <= inc <= 0xFFFFFFFF):
            raise InvalidValueError(f"a Timestamp takes two unsigned 32-bit integers, not {time}, {inc}")
        return tuple.__new__(cls, (time, inc))

    def __repr__(self) -> str:
        return f"Timestamp({self.time}, {self.inc})"


@total_ordering
class DateTime:
    """A BSON date: milliseconds since the Unix epoch, any 64-bit integer."""

    __slots__ = ("_ms",)

    def __init__(self, ms: int) -> None:
        if not INT64_MIN <= ms <= INT64_MAX:
            raise InvalidValueError(f"{ms} ms does not fit into 64 bits")
        self._ms = int(ms)

    @classmethod
    def from_datetime(cls, value: datetime) -> DateTime:
        """Convert a datetime with a time zone. Parts of a millisecond are cut off towards the past."""
        if value.tzinfo is None or value.utcoffset() is None:
            raise InvalidValueError("a datetime without a time zone names no moment")
        return cls((value - _EPOCH) // _MILLISECOND)

    def to_datetime(self) -> datetime:
        """Return the time in UTC. InvalidValueError outside the years 1 to 9999."""
        try:
            return _EPOCH + timedelta(milliseconds=self._ms)
        except OverflowError:
            raise InvalidValueError(f"{self._ms} ms is outside the years 1 to 9999") from None

    @property
    def ms(self) -> int:
        return self._ms

    def __repr__(self) -> str:
        return f"DateTime({self._ms})"

    def __eq__(self, other: object) -> bool:
        return self._ms == other._ms if isinstance(other, DateTime) else NotImplemented

    def __lt__(self, other: DateTime) -> bool:
        return self._ms < other._ms if isinstance(other, DateTime) else NotImplemented

    def __hash__(self) -> int:
        return hash((DateTime, self._ms))

    def __reduce__(self) -> tuple[type[DateTime], tuple[int]]:
        return DateTime, (self._ms,)


class Binary(bytes):
    """Bytes with a BSON subtype (0 to 255); subtype 0 equals plain bytes. Decoding always gives this class.

    For the old subtype 2 it has the payload only; the codec writes and checks the inner length.
    """

    subtype: int

    def __new__(cls, data: bytes = b"", subtype: int = 0) -> Binary:
        if not 0 <= subtype <= 255:
            raise InvalidValueError(f"a binary subtype is 0 to 255, not {subtype}")
        self = bytes.__new__(cls, data)
        self.subtype = subtype
        return self

    @classmethod
    def from_uuid(cls, value: uuid.UUID) -> Binary:
        return cls(value.bytes, 4)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Binary):
            return self.subtype == other.subtype and bytes.__eq__(self, other)
        return bytes.__eq__(self, other) if self.subtype == 0 else False

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return bytes.__hash__(self) if self.subtype == 0 else hash((self.subtype, bytes.__hash__(self)))

    def __repr__(self) -> str:
        return f"Binary({bytes(self)!r}, {self.subtype})"

    def __reduce__(self) -> tuple[type[Binary], tuple[bytes, int]]:
        return Binary, (bytes(self), self.subtype)


@dataclass(frozen=True, slots=True)
class Regex:
    """A regular expression as text. Decoding sorts the options, as MongoDB's drivers do."""

    pattern: str
    options: str = ""


@dataclass(frozen=True, slots=True)
class Code:
    """JavaScript without a scope."""

    code: str

    def __str__(self) -> str:
        return self.code


@dataclass(frozen=True, slots=True)
class CodeWithScope:
    """JavaScript with the values of its variables (deprecated in BSON)."""

    code: str
    scope: Mapping[str, object]

    def __hash__(self) -> int:
        return hash((CodeWithScope, self.code))


@dataclass(frozen=True, slots=True)
class DBPointer:
    """A namespace and an ObjectId in it (deprecated in BSON)."""

    ns: str
    oid: ObjectId


@dataclass(frozen=True, slots=True)
class Symbol:
    """A string of a type of its own (deprecated in BSON)."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Undefined:
    """JavaScript's undefined (deprecated in BSON)."""


@dataclass(frozen=True, slots=True)
class MinKey:
    """Sorts before every other value."""


@dataclass(frozen=True, slots=True)
class MaxKey:
    """Sorts after every other value."""
