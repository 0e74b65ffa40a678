"""Which events of a shared consumer go to which reader. It lives in the primary's memory and is made anew by the next.

An event is with one reader at a time, until that one acknowledges it, gives it back, or is silent for too long.
Events of one document come in order: while one of them is not acknowledged, the later ones go to nobody, unless they
go together in one answer. So an answer that is lost lets none overtake it. An event without a document (a drop, a
rename) waits for all before it, and all after it wait for it. An event that the set kept until its time
(kept_events.py) stands outside of that order: nothing waits for it, and it waits for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, NamedTuple

from replset.ids import Millis, invariant

NEVER = Millis(0)
REASONS_KEPT: Final = 10
"""Of an event that is refused; so its document has room for them."""


class Refusal(NamedTuple):
    """Somebody did not want an event, or was silent for too long."""

    at: Millis
    reader: str
    reason: str


@dataclass(slots=True)
class PendingEvent:
    """One event that is not acknowledged. before: all up to this token is acknowledged, or none of the consumer's,
    once the events before it are. key: of its document.

    reader: who has it, "": nobody. due: until when; without a reader, before which it goes to nobody. attempts: how
    often it was given out. kept: the key of the document that has it; b"": it is found in the history. refused: how
    often it was, and refusals: the last ones, where they are counted.
    """

    token: str
    before: str
    key: bytes
    reader: str = ""
    due: Millis = NEVER
    attempts: int = 0
    kept: bytes = b""
    refused: int = 0
    refusals: list[Refusal] = field(default_factory=list)

    def given_to(self, reader: str, until: Millis) -> PendingEvent:
        self.reader, self.due, self.attempts = reader, until, self.attempts + 1
        return self


class SharedWindow:
    """The events of one generation from the position on. through: up to this token history has been looked at.

    max_refusals: after so many an event is given to nobody; 0: they are not counted.
    """

    def __init__(self, position: str, acked: Iterable[str], generation: int, most: int, max_refusals: int = 0) -> None:
        self.max_refusals = max_refusals
        self.generation = generation
        self.through = position
        self._position = position
        self._most = most
        self._acked = set(acked)
        self._pending: dict[str, PendingEvent] = {}
        self._kept: dict[str, PendingEvent] = {}

    @property
    def room(self) -> int:
        """How many more events may be added: so many that not too many are ever acknowledged ahead of one."""
        return self._most - len(self._pending) - sum(1 for token in self._acked if token <= self.through)

    @property
    def kept_room(self) -> int:
        """How many more kept events may be added."""
        return self._most - len(self._kept)

    @property
    def outstanding(self) -> int:
        """How many events are with a reader."""
        return sum(1 for event in self._all() if event.reader)

    def add(self, events: Iterable[tuple[str, bytes]], through: str) -> None:
        """Add what comes behind `through`, in order: (token, key of the document or b""). through: the new one."""
        before = self.through
        for token, key in events:
            if token not in self._acked:
                self._pending[token] = PendingEvent(token, before, key)
            before = token
        self.through = max(through, before)

    def add_kept(self, events: Iterable[tuple[str, bytes]]) -> None:
        """Add kept events whose time has come: (token, key of the document that has it)."""
        for token, kept in events:
            self._kept.setdefault(token, PendingEvent(token, "", b"", kept=kept))

    def take(self, reader: str, most: int, now: Millis, timeout_ms: int) -> list[PendingEvent]:
        """Give up to `most` events to the reader, in order."""
        found: list[PendingEvent] = []
        for event in self._kept.values():
            if len(found) == most:
                return found
            if self._is_free(event, now):
                found.append(event.given_to(reader, Millis(now + timeout_ms)))
        held: set[bytes] = set()
        """Documents with an earlier event that somebody has, or that waits."""
        for number, event in enumerate(self._pending.values()):
            is_barrier = not event.key
            if len(found) == most or (is_barrier and number):
                break
            if not self._is_free(event, now) or event.key in held:
                held.add(event.key)
            else:
                found.append(event.given_to(reader, Millis(now + timeout_ms)))
            if is_barrier:
                break
        return found

    def next_due(self, now: Millis) -> Millis | None:
        """When an event that cannot be given out now may be given out; None: only an acknowledgement can change it."""
        return min((event.due for event in self._all() if event.due > now), default=None)

    def acknowledge(self, tokens: Iterable[str]) -> str:
        """Note that these are acknowledged; the position that follows."""
        for token in tokens:
            self._kept.pop(token, None)
            if self._pending.pop(token, None) is not None or token > self.through:
                self._acked.add(token)
        first = next(iter(self._pending.values()), None)
        position = self.through if first is None else first.before
        # What lies before the position is given to nobody any more.
        invariant(
            self._position <= position and (first is None or position < first.token),
            "a position only moves forward, and not over an event that is not acknowledged",
        )
        self._position = position
        self._acked = {token for token in self._acked if token > position}
        return position

    def give_back(self, tokens: Iterable[str], until: Millis, why: tuple[Millis, str] | None = None) -> int:
        """Take these from whoever has them; nobody gets them before `until`. How many there were.

        why: the moment and the reason of those that are refused; None: they are not.
        """
        count = 0
        for token in tokens:
            for event in (self._pending.get(token), self._kept.get(token)):
                if event is not None and event.reader:
                    if why is not None:
                        self._refuse(event, *why)
                    event.reader, event.due, count = "", until, count + 1
        return count

    def held_by(self, reader: str) -> list[str]:
        return [event.token for event in self._all() if event.reader == reader]

    def refused_too_often(self, now: Millis) -> list[PendingEvent]:
        """The events that are to be parked; nobody has them."""
        if not self.max_refusals:
            return []
        for event in self._all():
            self._expire(event, now)
        return [event for event in self._all() if not event.reader and event.refused >= self.max_refusals]

    def has(self, event: PendingEvent) -> bool:
        """Whether nobody has it, and it is not acknowledged."""
        return not event.reader and event is (self._kept if event.kept else self._pending).get(event.token)

    def is_pending(self, token: str) -> bool:
        """Whether this event of the history is not acknowledged."""
        return token in self._pending

    def drop_kept(self, token: str) -> None:
        """Forget a kept event whose document is gone."""
        self._kept.pop(token, None)

    def _all(self) -> Iterator[PendingEvent]:
        return chain(self._kept.values(), self._pending.values())

    def _is_free(self, event: PendingEvent, now: Millis) -> bool:
        self._expire(event, now)
        is_refused = self.max_refusals and event.refused >= self.max_refusals
        return not event.reader and event.due <= now and not is_refused

    def _expire(self, event: PendingEvent, now: Millis) -> None:
        if event.reader and event.due <= now:
            self._refuse(event, event.due, "the reader was silent")
            event.reader = ""

    def _refuse(self, event: PendingEvent, at: Millis, reason: str) -> None:
        if self.max_refusals:
            event.refused += 1
            event.refusals = [*event.refusals, Refusal(at, event.reader, reason)][-REASONS_KEPT:]
