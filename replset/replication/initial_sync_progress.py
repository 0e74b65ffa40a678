"""The progress of an initial sync, for `replSetGetStatus` (map I5)."""

from __future__ import annotations

from dataclasses import dataclass, field

from replset.ids import OPTIME_NULL, HostPort, Millis, OpTime

NO_SOURCE, START = HostPort(""), Millis(0)
LINE_EVERY_MS = 10_000
_ATTEMPTS_SHOWN = 10


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """One attempt that failed, and why."""

    source: HostPort
    duration_ms: int
    reason: str
    retried: int = 0
    unreachable_ms: int = 0


@dataclass(slots=True)
class InitialSyncProgress:
    """Describes the initial sync that runs, or the last one of this process; `source` is empty before the first.

    running: from the first attempt to success, the pauses between attempts included. began, ended: on the member's
    clock. total, copied: bytes; total 0 while the source still makes its copy. resumed_at: bytes that were here already
    when this transfer went on. waiting_for: what it cannot go on without, empty while it goes on. retried,
    unreachable_ms: how often the source of this attempt did not answer, and for how long in all; unreachable_since:
    while it does not. begins_at: the newest entry of the copy, from where on entries are fetched; OPTIME_NULL before.
    """

    running: bool = False
    source: HostPort = NO_SOURCE
    began: Millis = START
    began_wall_ms: int = 0
    ended: Millis = START
    ended_wall_ms: int = 0
    transfer_began: Millis = START
    total: int = 0
    copied: int = 0
    resumed_at: int = 0
    compared: int = 0
    waiting_for: str = ""
    retried: int = 0
    unreachable_ms: int = 0
    unreachable_since: Millis | None = None
    unreachable_since_wall_ms: int = 0
    begins_at: OpTime = OPTIME_NULL
    failed: int = 0
    attempts: list[FailedAttempt] = field(default_factory=list)
    _line_at: Millis = START

    def begin(self, source: HostPort, now: Millis, wall_ms: int) -> None:
        """Note that an attempt begins."""
        if not self.running:
            self.running, self.began, self.began_wall_ms = True, now, wall_ms
            self.failed, self.total, self.copied, self.resumed_at, self.compared = 0, 0, 0, 0, 0
            self.attempts.clear()
            self._line_at = now
        self.source, self.waiting_for = source, ""
        self.retried, self.unreachable_ms, self.unreachable_since, self.begins_at = 0, 0, None, OPTIME_NULL

    def on_unreachable(self, now: Millis, wall_ms: int) -> None:
        """Note that the source did not answer; after the end of the initial sync nothing depends on that any more."""
        if not self.running:
            return
        self.retried += 1
        if self.unreachable_since is None:
            self.unreachable_since, self.unreachable_since_wall_ms = now, wall_ms

    def on_answer(self, now: Millis) -> None:
        self.unreachable_ms = self.unreachable_for(now)
        self.unreachable_since = None

    def unreachable_for(self, now: Millis) -> int:
        """How long in all the source of this attempt did not answer."""
        return self.unreachable_ms + (0 if self.unreachable_since is None else now - self.unreachable_since)

    def begin_transfer(self, source: HostPort, kept: int, total: int, now: Millis) -> None:
        """Note that `total` bytes come from `source`, of which `kept` are here already."""
        self.source, self.transfer_began, self.total = source, now, total
        self.copied = self.resumed_at = kept

    def on_compared(self, size: int) -> None:
        """Note an answer about documents."""
        self.compared += size

    def fail(self, source: HostPort, began: Millis, now: Millis, reason: str) -> None:
        """Note that the attempt that began then has failed."""
        self.failed += 1
        self.on_answer(now)
        attempt = FailedAttempt(source, now - began, reason, self.retried, self.unreachable_ms)
        self.attempts = [*self.attempts, attempt][-_ATTEMPTS_SHOWN:]
        self.waiting_for = ""

    def succeed(self, now: Millis, wall_ms: int) -> None:
        self.running, self.ended, self.ended_wall_ms, self.waiting_for = False, now, wall_ms, ""

    def give_up(self) -> None:
        """Note that the member serves with the data that it had: of a sync that did not come about nothing is shown."""
        if self.running:
            self.running, self.source, self.waiting_for = False, NO_SOURCE, ""

    def remaining_ms(self, now: Millis) -> int | None:
        """How long the rest takes at the rate so far; None while that is unknown."""
        done = self.copied - self.resumed_at
        if done <= 0:
            return None
        return (now - self.transfer_began) * (self.total - self.copied) // done

    def is_line_due(self, now: Millis) -> bool:
        """Whether the log gets a line of this progress now: every ten seconds."""
        if now - self._line_at < LINE_EVERY_MS:
            return False
        self._line_at = now
        return True

    def text(self, now: Millis) -> str:
        """One line for people."""
        if self.waiting_for:
            return f"initial sync waits for {self.waiting_for}"
        if self.compared:
            return f"initial sync from {self.source} compares documents: {self.compared} bytes came for that"
        if self.total:
            text = f"initial sync from {self.source}: {self.copied} of {self.total} bytes"
            text += f" ({100 * self.copied // self.total} %)"
            remaining_ms = self.remaining_ms(now)
            return text if remaining_ms is None else f"{text}, about {-(-remaining_ms // 1000)} s left"
        return f"initial sync from {self.source}"
