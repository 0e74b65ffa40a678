"""How long the reader of an exclusive or failover consumer has been silent. Which reader it is, is in its document.

No clock of another member counts: a new primary gives the holder that it finds a whole lease, from when it first looks.
"""

from __future__ import annotations

from enum import Enum

from replset.consumers.consumer import Consumer
from replset.ids import Millis


class Claim(Enum):
    """What a reader may do."""

    HOLDS = "it holds the consumer"
    MAY_TAKE = "nobody does, or its holder is gone"
    WAITS = "another one holds it"


class Leases:
    """In the primary's memory: until when the holder of each consumer is taken to be there."""

    def __init__(self) -> None:
        self._due: dict[tuple[str, int], Millis] = {}

    def claim(self, consumer: Consumer, reader: str, now: Millis) -> Claim:
        """Whether the reader holds the consumer; a holder that asks is there."""
        if consumer.holder == reader:
            self.renew(consumer, now)
            return Claim.HOLDS
        if not consumer.holder or self.due(consumer, now) <= now:
            return Claim.MAY_TAKE
        return Claim.WAITS

    def due(self, consumer: Consumer, now: Millis) -> Millis:
        """When the holder's lease ends."""
        key = consumer.name, consumer.generation
        if key not in self._due:
            self.renew(consumer, now)
        return self._due[key]

    def renew(self, consumer: Consumer, now: Millis) -> None:
        self._set(consumer, Millis(now + consumer.ack_timeout_ms))

    def end(self, consumer: Consumer, now: Millis) -> None:
        """The holder has left: the next one need not wait."""
        self._set(consumer, now)

    def _set(self, consumer: Consumer, due: Millis) -> None:
        for name, generation in list(self._due):
            if name == consumer.name and generation != consumer.generation:
                del self._due[name, generation]
        self._due[consumer.name, consumer.generation] = due
