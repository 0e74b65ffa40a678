"""Finds out why an operation was slow: a row for who looks at the member, and a line in the log.

A command notes in its `Work` how long it waited for what, and how many documents it looked at.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from replset.ids import Millis

log = logging.getLogger("replset.operations")
SLOW_MS: Final = 100
LOG_EVERY_MS: Final = 1_000
MANY_DOCUMENTS: Final = 1_000
KEPT: Final = 50


class SlowReason(StrEnum):
    """What took most of the time. It is a label of a metric."""

    WRITE_CONCERN = "write concern"
    READ_CONCERN = "read concern"
    FLOW_CONTROL = "flow control"
    WRITE_QUEUE = "write queue"
    TRANSACTION = "transaction"
    MEMORY = "memory"
    SCAN = "scan"
    DOCUMENTS = "documents"
    BUSY = "busy"


TEXTS: Final = {
    SlowReason.WRITE_CONCERN: "it waited {ms} ms for its write concern",
    SlowReason.READ_CONCERN: "it waited {ms} ms for its read concern",
    SlowReason.WRITE_QUEUE: "it waited {ms} ms behind other writes",
    SlowReason.TRANSACTION: "it waited {ms} ms for a transaction that held the document",
    SlowReason.MEMORY: "it waited {ms} ms for memory that other large statements took",
    SlowReason.SCAN: "it looked at {documents} documents without an index",
    SlowReason.DOCUMENTS: "it looked at {documents} documents",
    SlowReason.BUSY: "it waited for nothing: the command is long, or the machine was busy",
}


@dataclass(slots=True)
class Work:
    """What one command did. keys, documents: that it looked at. is_scan: a plan of it reads the whole collection.

    parts: the most conditions, expressions and fields of its statements that were compiled at once; None: nothing yet.
    on_counted: called when `parts` may have changed.
    indexes: that its plans use, each with the collection's UUID. idle_ms: how long it waited for new entries, because
    its client asked for that; it is not slow then.
    """

    keys: int = 0
    documents: int = 0
    is_scan: bool = False
    idle_ms: int = 0
    parts: int | None = None
    waits: dict[SlowReason, int] = field(default_factory=dict)
    indexes: set[tuple[bytes, str]] = field(default_factory=set)
    on_counted: Callable[[], None] | None = None

    def note_parts(self, parts: int) -> None:
        """Note what was compiled at once. What a join compiles for one document is gone with the next."""
        self.parts = max(self.parts or 0, parts)
        if self.on_counted is not None:
            self.on_counted()

    def waited(self, reason: SlowReason, ms: int) -> None:
        if ms:
            self.waits[reason] = self.waits.get(reason, 0) + ms

    def reason(self, took_ms: int) -> SlowReason:
        """Return what took most of the time."""
        rest_ms = took_ms - sum(self.waits.values())
        longest = max(self.waits, key=lambda reason: self.waits[reason], default=None)
        if longest is not None and self.waits[longest] >= rest_ms:
            return longest
        if self.documents < MANY_DOCUMENTS:
            return SlowReason.BUSY
        return SlowReason.SCAN if self.is_scan else SlowReason.DOCUMENTS


WORK: Final[ContextVar[Work | None]] = ContextVar("work", default=None)
"""The work of the command that this task runs, for code that serves several commands, such as a cursor."""


@dataclass(frozen=True, slots=True)
class SlowOperation:
    """One operation that took over SLOW_MS. fields: that its filter names. why: the reason in words."""

    wall_ms: int
    command: str
    ns: str
    took_ms: int
    reason: SlowReason
    why: str
    client: str
    fields: tuple[str, ...]
    work: Work


class SlowOperations:
    """The newest slow operations, and how many there were by reason. Writes at most one line a second."""

    def __init__(self) -> None:
        self.rows: deque[SlowOperation] = deque(maxlen=KEPT)
        self.counts: Counter[SlowReason] = Counter()
        self._logged_at = Millis(-LOG_EVERY_MS)
        self._left_out = 0

    def add(self, row: SlowOperation, now: Millis) -> None:
        self.rows.append(row)
        self.counts[row.reason] += 1
        if now - self._logged_at < LOG_EVERY_MS:
            self._left_out += 1
            return
        more = f" ({self._left_out} more since the last line)" if self._left_out else ""
        self._logged_at, self._left_out = now, 0
        where = f"; its filter names {', '.join(row.fields)}" if row.fields and row.reason is SlowReason.SCAN else ""
        attributes = {
            "command": row.command,
            "ns": row.ns,
            "durationMillis": row.took_ms,
            "reason": row.reason,
            "keysExamined": row.work.keys,
            "docsExamined": row.work.documents,
            "planSummary": "COLLSCAN" if row.work.is_scan else "",
            "waits": dict(row.work.waits),
            "remote": row.client,
        }
        log.info(
            "slow operation: %s %s took %d ms; %s%s; client %s%s",
            *(row.command, row.ns, row.took_ms, row.why, where, row.client, more),
            extra={"attr": attributes},
        )
