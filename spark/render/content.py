"""A result as answers, tables and samples, before a terminal or a page shows it; and how values become text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from json import dumps
from typing import Any

Document = Mapping[str, Any]
"""A report's result as `--json` prints it."""
ROWS_SHOWN = 30
HOT_SHOWN = 10
LONGEST = 2000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Tone(StrEnum):
    PLAIN = "plain"
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"
    SOFT = "soft"


@dataclass(frozen=True, slots=True)
class Phrase:
    """A text and its tone."""

    text: str
    tone: Tone = Tone.PLAIN


Cell = str | Phrase


@dataclass(frozen=True, slots=True)
class ContentTable:
    """A table. numbers: the columns to be set right; mono: those in a fixed width."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    numbers: Sequence[str] = ()
    mono: Sequence[str] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class ContentSample:
    """One entry or document, looked at closely: a heading and lines of (name, text)."""

    badge: Phrase
    heading: str
    lines: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class ContentSamples:
    title: str
    samples: Sequence[ContentSample]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Content:
    """answers: the first lines, in which a reader in a hurry finds what was asked."""

    title: str
    answers: Sequence[Phrase]
    parts: Sequence[ContentTable | ContentSamples] = field(default=())


def text_of(cell: Cell) -> str:
    return cell.text if isinstance(cell, Phrase) else cell


def tone_of(cell: Cell) -> Tone:
    return cell.tone if isinstance(cell, Phrase) else Tone.PLAIN


# --- numbers and times -----------------------------------------------------------------------------------------


def count_text(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def duration(ms: int | None) -> str:
    """A span of time, as short as is useful."""
    if ms is None:
        return "-"
    if ms < 60_000:
        return f"{ms / 1000:.3g} s"
    minutes, rest = divmod(ms // 1000, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def byte_size(count: float | None) -> str:
    if count is None:
        return "-"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def listed(names: Sequence[str]) -> str:
    """a, b and c"""
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def several(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


# --- documents, entries and times as text ----------------------------------------------------------------------

_OPERATIONS = {"i": "insert", "u": "update", "d": "delete", "c": "command", "n": "no-op"}


def operation(op: str | None) -> str:
    """An oplog entry's `op` as a word."""
    return _OPERATIONS.get(op or "", op or "?")


def ejson(value: Any) -> str:
    return dumps(value, ensure_ascii=False)


def shortened(text: str, most: int = LONGEST) -> str:
    """The beginning of a text that is too long, and how long it is."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"


def seconds_of(optime: str) -> int:
    """The seconds in TERM:SECONDS:INC."""
    return int(optime.split(":")[1])


def moment(at_ms: int, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """A wall clock as UTC; as a number where the calendar ends."""
    try:
        return (_EPOCH + timedelta(milliseconds=at_ms)).strftime(form)
    except OverflowError:
        return f"{at_ms} ms"


def more_rows(rows: int) -> str:
    """The note below a table that shows ROWS_SHOWN of so many rows."""
    return f"and {rows - ROWS_SHOWN} more, in --json and --parquet" if rows > ROWS_SHOWN else ""
