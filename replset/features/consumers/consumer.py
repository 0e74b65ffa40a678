"""What the set keeps of a named consumer: one document of `config.consumers`, and how requests change it.

Tokens are those of change streams, as text; their order as text is the order of the events.

No clock of another member counts for a lease: a new primary gives the holder that it finds a whole one, from when it
first looks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from replset.bson import Int64
from replset.errors import BadValueError, ConsumerMovedError
from replset.features.consumers.operations import Mode
from replset.ids import Millis, OpTime
from replset.query.change_tokens import Token

CONSUMERS_NS: Final = "config.consumers"
REMOVED_ID: Final = ""
"""The `_id` of the document with the highest generation of the consumers that were removed; no consumer's name."""
MOST_CONSUMERS: Final = 100
MOST_OUTSTANDING: Final = 1_000
"""Events that a shared consumer's readers hold at once, and acknowledgements beyond its position that are kept."""


@dataclass(frozen=True, slots=True)
class Consumer:
    """One named consumer.

    database, collection: what it follows; collection "": the whole database, both "": every database. filter: of
    events, {}: all. position: all events up to this token are acknowledged, or none of this consumer's. acked: of a
    shared one, tokens beyond the position that are acknowledged too. holder: of the other modes, the reader that may
    acknowledge. generation: its fencing number. It grows when the holder or the position is set; an acknowledgement
    names the one that it read in. It begins with the time of its making (`first_generation`).
    ack_timeout_ms: a reader that is silent for so long is taken for gone. delay_ms: of an exclusive or failover one
    whose events were given back: so long nothing is given, counted by the primary from when it first looks.
    deliver_after, max_refusals: of a shared one, the path of the date from which on an event is given, and after how
    many refusals it is parked; "" and 0: never.
    """

    name: str
    database: str
    collection: str
    filter: Mapping[str, object]
    mode: Mode
    position: str
    acked: tuple[str, ...] = ()
    holder: str = ""
    generation: int = 1
    ack_timeout_ms: int = 30_000
    delay_ms: int = 0
    deliver_after: str = ""
    max_refusals: int = 0

    @property
    def at(self) -> OpTime:
        """The entry of the position. It is needed, and all behind it: a transaction may have events on both sides."""
        return Token.parse(self.position).optime

    @property
    def ns(self) -> str:
        return f"{self.database}.{self.collection}" if self.collection else self.database

    @property
    def keeps_events(self) -> bool:
        """Whether events of it may be held or parked. Release 1.0 knows of none."""
        return bool(self.deliver_after or self.max_refusals)

    def document(self) -> dict[str, object]:
        newer = {"deliverAfter": self.deliver_after, "maxRefusals": self.max_refusals}
        return {
            "_id": self.name,
            "ns": self.ns,
            "filter": dict(self.filter),
            "mode": self.mode.value,
            "ackTimeoutMS": self.ack_timeout_ms,
            "generation": Int64(self.generation),
            "holder": self.holder,
            "position": self.position,
            "optime": str(self.at),
            "acked": list(self.acked),
            "delayMS": self.delay_ms,
            **{name: value for name, value in newer.items() if value},
        }

    @classmethod
    def parse(cls, document: Mapping[str, object]) -> Consumer:
        """Read a document that `document` made."""
        database, _, collection = str(document["ns"]).partition(".")
        wanted, acked = document["filter"], document["acked"]
        return cls(
            name=str(document["_id"]),
            database=database,
            collection=collection,
            filter=wanted if isinstance(wanted, dict) else {},
            mode=Mode(document["mode"]),
            position=str(document["position"]),
            acked=tuple(map(str, acked)) if isinstance(acked, list) else (),
            holder=str(document["holder"]),
            generation=_whole(document["generation"]),
            ack_timeout_ms=_whole(document["ackTimeoutMS"]),
            delay_ms=_whole(document.get("delayMS")),
            deliver_after=str(document.get("deliverAfter", "")),
            max_refusals=_whole(document.get("maxRefusals")),
        )

    def has_same_options(self, other: Consumer) -> bool:
        """Whether a second request to create it asks for the same."""
        return all(
            getattr(self, name) == getattr(other, name)
            for name in ("ns", "filter", "mode", "ack_timeout_ms", "deliver_after", "max_refusals")
        )

    # --- changes

    def taken_by(self, reader: str) -> Consumer:
        """Return it with another holder: what the former one read before, it can acknowledge no more."""
        return replace(self, holder=reader, generation=self.generation + 1)

    def moved_to(self, position: str) -> Consumer:
        """Return it from another place on; what was read before counts no more."""
        return replace(self, position=position, acked=(), holder="", generation=self.generation + 1, delay_ms=0)

    def acknowledged_through(self, generation: int, token: str) -> Consumer:
        """Return it with all up to `token` acknowledged, never less: an acknowledgement may come twice, or late.

        ConsumerMovedError: of an earlier generation.
        """
        self.check_generation(generation)
        if token <= self.position:
            return self
        return replace(self, position=token, acked=tuple(one for one in self.acked if one > token))

    def given_back(self, generation: int, delay_ms: int) -> Consumer:
        """Return it with what was read given again after `delay_ms`. ConsumerMovedError: an earlier generation."""
        self.check_generation(generation)
        return replace(self, delay_ms=delay_ms)

    def acknowledged(self, generation: int, tokens: Iterable[str]) -> Consumer:
        """Return it with these single events of a shared one acknowledged. ConsumerMovedError; BadValueError: too many
        are ahead of the position.
        """
        self.check_generation(generation)
        acked = sorted({*self.acked, *(token for token in tokens if token > self.position)})
        if len(acked) > MOST_OUTSTANDING:
            raise BadValueError(
                f"consumer {self.name}: over {MOST_OUTSTANDING} events would be acknowledged ahead of one that is not"
            )
        return replace(self, acked=tuple(acked))

    def check_generation(self, generation: int) -> None:
        """Refuse what was read before the holder or the position changed."""
        if generation != self.generation:
            raise ConsumerMovedError(
                f"consumer {self.name} is in generation {self.generation}, and this is of {generation}: another reader"
                " has taken it, or somebody has set its position; read again"
            )


def first_generation(made: OpTime, removed: int) -> int:
    """The generation of a new consumer: greater than any that one of its name had.

    removed: the highest one of consumers that were removed. The optime alone would do, were there no clock that was
    ahead: until the time gets there, it leaves no room below 2**53, which every reader of JSON keeps.
    """
    return max((made.seconds << 20) + min(made.increment, (1 << 20) - 1), removed + 1)


def removed_document(document: Mapping[str, object], consumer: Consumer) -> dict[str, object]:
    """The document of REMOVED_ID as it is once this consumer is removed, too."""
    return {"_id": REMOVED_ID, "generation": Int64(max(removed_generation(document), consumer.generation))}


def removed_generation(document: Mapping[str, object]) -> int:
    """The highest generation that the document of REMOVED_ID names; of an empty one 0."""
    return _whole(document.get("generation"))


def _whole(value: object) -> int:
    return int(value) if isinstance(value, int) else 0


class Claim(Enum):
    """What a reader may do."""

    HOLDS = "it holds the consumer"
    MAY_TAKE = "nobody does, or its holder is gone"
    WAITS = "another one holds it"


class Leases:
    """How long readers of exclusive and failover consumers have been silent, in the primary's memory: until when the
    holder of each consumer is taken to be there.
    """

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
