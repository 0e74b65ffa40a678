"""An oplog to read: a member's files, a live member, a dump, a folder of Parquet. `readers/` has one reader for each.

It is sent to Spark's executors, so it is a small picklable value and opens what it reads anew in each call.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

from replset.errors import ErrorCode, ReplError
from replset.ids import OPTIME_NULL, OpTime

_NOTE = "oplog-error: "


class OplogError(ReplError, code=ErrorCode.OPERATION_FAILED):
    """An oplog could not be read; the text begins with the member's name."""

    def __init__(self, name: str, reason: object, *facts: int) -> None:
        super().__init__(f"{name}: {reason}")
        self.name = name
        self.reason = str(reason)
        self._facts = facts
        # Python prints notes below a traceback, which is all that Spark brings home of a worker's error.
        self.add_note(_NOTE + json.dumps([type(self).__name__, self.name, self.reason, *facts]))

    def __reduce__(self) -> tuple[type[OplogError], tuple[object, ...]]:
        return type(self), (self.name, self.reason, *self._facts)

    @staticmethod
    def found_in(text: str) -> OplogError | None:
        """The OplogError whose traceback is part of this text, the last one where one was raised from another."""
        at = text.rfind(_NOTE)
        if at < 0:
            return None
        try:
            kind, *values = json.JSONDecoder().raw_decode(text, at + len(_NOTE))[0]
            return _KINDS[kind](*values)
        except (ValueError, TypeError, LookupError):  # a text that only looks alike
            return None


class OplogTrimmedError(OplogError, code=ErrorCode.CAPPED_POSITION_LOST):
    """The oldest entries of the span were trimmed away (a capped oplog) before they were read.

    through: ts of the newest entry that is gone.
    """

    def __init__(self, name: str, reason: object, through: int) -> None:
        super().__init__(name, reason, through)
        self.through = through


class OplogRolledBackError(OplogError, code=ErrorCode.OPLOG_START_MISSING):
    """An entry that had been seen is no longer in the oplog, or in another history: the member rolled back."""


_KINDS = {kind.__name__: kind for kind in (OplogError, OplogTrimmedError, OplogRolledBackError)}


class Span(NamedTuple):
    """Entries with first_ts <= ts < end_ts."""

    first_ts: int
    end_ts: int


EVERYTHING = Span(0, (1 << 63) - 1)


@dataclass(frozen=True, slots=True)
class EntryFilter:
    """Which entries of a span: of these namespaces, of these operations; empty means of all."""

    ns: tuple[str, ...] = ()
    op: tuple[str, ...] = ()


ALL = EntryFilter()


@dataclass(frozen=True, slots=True)
class Bounds:
    """The oldest and newest optime there are now, OPTIME_NULL in an empty oplog. rows: an estimate.

    trimmed_through: ts of the newest entry that a capped oplog gave up, 0 for none.
    chain: the newest entry's, None where the oplog keeps none.
    """

    oldest: OpTime = OPTIME_NULL
    newest: OpTime = OPTIME_NULL
    rows: int = 0
    trimmed_through: int = 0
    chain: int | None = None

    def within(self, span: Span) -> Span:
        """The part of the span that is not outside of these bounds; it may be empty."""
        return Span(max(span.first_ts, self.oldest.ts), min(span.end_ts, self.newest.ts + 1))


class ReadPosition(NamedTuple):
    """An entry up to which something was read, and its chain, which distinguishes two histories.

    chain None: but a point in time, of which no entry is expected to be there.
    """

    optime: OpTime
    chain: int | None


START = ReadPosition(OPTIME_NULL, None)


class Oplog(Protocol):
    """One member's oplog. Every method raises OplogError with the member's name in it."""

    @property
    def name(self) -> str:
        """What tables call it."""

    def pin(self) -> Oplog:
        """The same with the bounds of now for ever, so that several passes see the same entries.

        Reading it fails when the member rolled entries of it back since (OplogRolledBackError) or trimmed some away
        (OplogTrimmedError). A pinned oplog is its own pin.
        """

    def bounds(self) -> Bounds: ...

    def count(self, span: Span) -> int:
        """About how many entries the span holds."""

    def split(self, span: Span, parts: int) -> list[Span]:
        """About `parts` spans of about equally many entries, rising, which together are `span`."""

    def read(self, span: Span, columns: Sequence[str], only: EntryFilter = ALL) -> Iterator[pa.RecordBatch]:
        """The entries, oldest first, in batches of `arrow_schema(columns)` (without `member`).

        OplogTrimmedError when entries of the span were trimmed away: those since it was pinned, or, in an oplog that is
        not, all below a `first_ts` over 0.
        """


@runtime_checkable
class GrowingOplog(Oplog, Protocol):
    """An oplog that grows and can be followed."""

    def follow(self, after: ReadPosition, limit: int) -> ReadPosition:
        """The newest entry, or the one `limit` behind `after`; `after` itself when there is none newer.

        OplogTrimmedError when entries behind `after` are gone, OplogRolledBackError when `after` itself is.
        """

    def between(self, after: ReadPosition, end: ReadPosition) -> Oplog:
        """Pinned to the entries newer than `after` up to `end`."""


def trimmed_error(name: str, through: int) -> OplogTrimmedError:
    reason = f"the oplog's entries up to {ts_text(through)} were trimmed away while it was read (it is capped)"
    return OplogTrimmedError(name, reason, through)


def rolled_back_error(name: str, optime: OpTime) -> OplogRolledBackError:
    return OplogRolledBackError(name, f"its entry {optime} is gone or in another history: the member rolled back")


def one_line(error: Exception) -> str:
    """The first line of an error's text, without damaged bytes that may be in it: no terminal should get those."""
    lines = str(error).splitlines() or [type(error).__name__]
    return "".join(letter if letter.isprintable() else "?" for letter in lines[0])


def ts_text(ts: int) -> str:
    """SECONDS:INC."""
    return f"{ts >> 31}:{ts & 0x7FFFFFFF}"
