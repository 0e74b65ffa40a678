"""Where an oplog lies: a member's files, a live member, a dump, a folder of Parquet. One reader a kind in `readers/`.

A place travels to Spark's executors, so it is a small picklable value and opens what it reads anew in each call.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa

from replset.errors import ReplError
from replset.ids import OPTIME_NULL, OpTime

_NOTE = "oplog-place-error: "


class PlaceError(ReplError):
    """An oplog could not be read; the text begins with the member's name."""

    code = 96
    code_name = "OperationFailed"

    def __init__(self, name: str, reason: object) -> None:
        super().__init__(f"{name}: {reason}")
        self.name = name
        self.reason = str(reason)
        # Python prints notes below a traceback, which is all that Spark brings home of a worker's error.
        self.add_note(_NOTE + json.dumps([type(self).__name__, self.name, self.reason]))

    def __reduce__(self) -> tuple[type[PlaceError], tuple[str, str]]:
        return type(self), (self.name, self.reason)

    @staticmethod
    def told_in(text: str) -> PlaceError | None:
        """The first PlaceError whose traceback is part of this text."""
        at = text.find(_NOTE)
        if at < 0:
            return None
        try:
            kind, name, reason = json.JSONDecoder().raw_decode(text, at + len(_NOTE))[0]
        except ValueError:  # a text that only looks alike
            return None
        return (PlaceTrimmedError if kind == PlaceTrimmedError.__name__ else PlaceError)(name, reason)


class PlaceTrimmedError(PlaceError):
    """The oldest entries of the span were trimmed away (a capped oplog) before they were read."""

    code = 136
    code_name = "CappedPositionLost"


class Span(NamedTuple):
    """Entries with first_ts <= ts < end_ts."""

    first_ts: int
    end_ts: int


EVERYTHING = Span(0, (1 << 63) - 1)


@dataclass(frozen=True, slots=True)
class Only:
    """Which entries of a span: of these namespaces, of these operations; empty means of all."""

    ns: tuple[str, ...] = ()
    op: tuple[str, ...] = ()


ALL = Only()


@dataclass(frozen=True, slots=True)
class Bounds:
    """The oldest and newest optime there are now, OPTIME_NULL in an empty oplog. rows: an estimate.

    trimmed_through: ts of the newest entry that a capped oplog gave up, 0 for none.
    """

    oldest: OpTime = OPTIME_NULL
    newest: OpTime = OPTIME_NULL
    rows: int = 0
    trimmed_through: int = 0


class Place(Protocol):
    """One member's oplog. Every method raises PlaceError with the member's name in it."""

    @property
    def name(self) -> str:
        """What tables call it."""

    def bounds(self) -> Bounds: ...

    def split(self, span: Span, parts: int) -> list[Span]:
        """About `parts` spans of about equally many entries, rising, which together are `span`."""

    def read(self, span: Span, columns: Sequence[str], only: Only = ALL) -> Iterator[pa.RecordBatch]:
        """The entries, oldest first, in batches of `arrow_schema(columns)` (without `member`).

        PlaceTrimmedError when entries at the beginning of the span were trimmed away since `bounds` was asked.
        """
