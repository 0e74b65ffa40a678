"""Which events of a shared consumer go to which reader. It lives in the primary's memory and is made anew by the next.

An event is with one reader at a time, until that one acknowledges it, gives it back, or is silent for too long.
Events of one document come in order: while one of them is not acknowledged, the later ones go to nobody, unless they
go together in one answer. So an answer that is lost lets none overtake it. An event without a document (a drop, a
rename) waits for all before it, and all after it wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from replset.ids import Millis, invariant

NEVER = Millis(0)


@dataclass(slots=True)
class PendingEvent:
    """One event that is not acknowledged. before: all up to this token is acknowledged, or none of the consumer's,
    once the events before it are. key: of its document.

    reader: who has it, "": nobody. due: until when; without a reader, before which it goes to nobody. attempts: how
    often it was given out.
    """

    token: str
    before: str
    key: bytes
    reader: str = ""
    due: Millis = NEVER
    attempts: int = 0


class SharedWindow:
    """The events of one generation from the position on. through: up to this token history has been looked at."""

    def __init__(self, position: str, acked: Iterable[str], generation: int, most: int) -> None:
        self.generation = generation
        self.through = position
        self._position = position
        self._most = most
        self._acked = set(acked)
        self._pending: dict[str, PendingEvent] = {}

    @property
    def room(self) -> int:
        """How many more events may be added."""
        return self._most - len(self._pending)

    @property
    def outstanding(self) -> int:
        """How many events are with a reader."""
        return sum(1 for event in self._pending.values() if event.reader)

    def add(self, events: Iterable[tuple[str, bytes]], through: str) -> None:
        """Add what comes behind `through`, in order: (token, key of the document or b""). through: the new one."""
        before = self.through
        for token, key in events:
            if token not in self._acked:
                self._pending[token] = PendingEvent(token, before, key)
            before = token
        self.through = max(through, before)

    def take(self, reader: str, most: int, now: Millis, timeout_ms: int) -> list[PendingEvent]:
        """Give up to `most` events to the reader, in order."""
        found: list[PendingEvent] = []
        held: set[bytes] = set()
        """Documents with an earlier event that somebody has, or that waits."""
        for number, event in enumerate(self._pending.values()):
            is_barrier = not event.key
            if len(found) == most or (is_barrier and number):
                break
            self._expire(event, now)
            if event.reader or event.due > now or event.key in held:
                held.add(event.key)
            else:
                event.reader, event.due, event.attempts = reader, Millis(now + timeout_ms), event.attempts + 1
                found.append(event)
            if is_barrier:
                break
        return found

    def next_due(self, now: Millis) -> Millis | None:
        """When an event that cannot be given out now may be given out; None: only an acknowledgement can change it."""
        return min((event.due for event in self._pending.values() if event.due > now), default=None)

    def acknowledge(self, tokens: Iterable[str]) -> str:
        """Note that these are acknowledged; the position that follows."""
        for token in tokens:
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

    def give_back(self, tokens: Iterable[str], until: Millis) -> int:
        """Take these from whoever has them; nobody gets them before `until`. How many there were."""
        count = 0
        for token in tokens:
            event = self._pending.get(token)
            if event is not None and event.reader:
                event.reader, event.due, count = "", until, count + 1
        return count

    def held_by(self, reader: str) -> list[str]:
        return [event.token for event in self._pending.values() if event.reader == reader]

    def _expire(self, event: PendingEvent, now: Millis) -> None:
        if event.reader and event.due <= now:
            event.reader = ""
