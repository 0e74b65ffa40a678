"""The set's named consumers as one member knows them: documents of config.consumers, replicated as any other.

What a primary has beside them (leases, and what shared readers hold) is in its memory, and ends with its term.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from replset.bson import Int64, decode, encode_key
from replset.errors import ConsumerNotFoundError, ReplError
from replset.features.consumers import kept_events
from replset.features.consumers.consumer import CONSUMERS_NS, MOST_OUTSTANDING, REMOVED_ID, Consumer, Leases
from replset.features.consumers.shared_window import SharedWindow
from replset.ids import OPTIME_NULL, Millis, OpTime
from replset.member.feature import FeaturePart, Figure
from replset.operations.history import History
from replset.operations.lag import behind_ms
from replset.query.change_tokens import Token
from replset.replication.write_ops import ReplicatedDocument, WriteGroup
from replset.storage.retention import falls_off_in_s
from replset.storage.schema import DOC, KEY
from replset.storage.sqlite import rows_of
from replset.storage.store import Store
from replset.storage.txn import Txn

if TYPE_CHECKING:
    from replset.operations.kernel import Kernel

REMOVED_KEY = encode_key(REMOVED_ID)


class PrimaryState:
    """What the primary of one term remembers of its consumers' readers.

    leases: see there. windows: of shared consumers. delays: before when an exclusive or failover consumer gives
    nothing, by name. saved: when a position was last saved without an acknowledgement. passed: up to
    which token there is nothing to acknowledge, in which generation.
    """

    def __init__(self, term: int) -> None:
        self.term = term
        self.leases = Leases()
        self.windows: dict[str, SharedWindow] = {}
        self.locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.delays: dict[str, Millis] = {}
        self.saved: dict[str, Millis] = {}
        self.passed: dict[str, tuple[int, str]] = {}

    def window(self, consumer: Consumer) -> SharedWindow:
        """The window of the consumer's generation, made anew where there is none."""
        window = self.windows.get(consumer.name)
        if window is None or window.generation != consumer.generation:
            window = SharedWindow(
                consumer.position, consumer.acked, consumer.generation, MOST_OUTSTANDING, consumer.max_refusals
            )
            self.windows[consumer.name] = window
        return window

    def passed_of(self, consumer: Consumer) -> str:
        """Up to where a read has found nothing to acknowledge behind the position; "" for none."""
        generation, token = self.passed.get(consumer.name, (0, ""))
        return token if generation == consumer.generation else ""

    def delayed_until(self, consumer: Consumer, now: Millis) -> Millis:
        """Before when nothing is given. What another primary was told counts anew here, from now on."""
        if not consumer.delay_ms:
            self.delays.pop(consumer.name, None)
            return now
        return self.delays.setdefault(consumer.name, Millis(now + consumer.delay_ms))

    def forget(self, name: str) -> None:
        """Drop what is known of a consumer that is gone."""
        for known in (self.windows, self.locks, self.delays, self.saved, self.passed):
            known.pop(name, None)


class ConsumerDirectory(FeaturePart):
    """Reads the documents, and says which entries consumers need."""

    def __init__(self, member: Kernel) -> None:
        self._member = member
        self._state = PrimaryState(-1)
        self._parsed: dict[bytes, tuple[bytes, Consumer]] = {}
        self._floor = CommittedFloor()

    @property
    def state(self) -> PrimaryState:
        """The state of this primary's term; empty in a new one."""
        term = self._member.node.term
        if self._state.term != term:  # leases and windows of an earlier term count no more
            self._state = PrimaryState(term)
        return self._state

    def all(self) -> list[Consumer]:
        """Every consumer as this member has it now, in the order of their names."""
        store = self._member.store
        coll = store.collection(CONSUMERS_NS)
        if coll is None:
            return []
        sql = f"SELECT {KEY}, {DOC} FROM {coll.table} WHERE key != ? ORDER BY key"
        rows: list[tuple[bytes, bytes]] = store.query(lambda connection: list(rows_of(connection, sql, (REMOVED_KEY,))))
        before, self._parsed = self._parsed, {}
        for key, raw in rows:
            known = before.get(key)
            self._parsed[key] = known if known is not None and known[0] == raw else (raw, Consumer.parse(decode(raw)))
        return [consumer for _, consumer in self._parsed.values()]

    def find(self, name: str) -> Consumer:
        """ConsumerNotFoundError."""
        raw = document_of(name).read(self._member.store)
        if raw is None:
            raise not_found(name)
        return Consumer.parse(decode(raw))

    def summary(self) -> list[dict[str, object]]:
        """Each consumer in a few words, for the status; none while the data is being replaced."""
        try:
            return [
                {"name": one.name, "ns": one.ns, "mode": one.mode.value, "holder": one.holder}
                | lag_document(self._member, one)
                for one in self.all()
            ]
        except ReplError:
            return []

    def status(self) -> Mapping[str, object]:
        consumers = self.summary()
        return {"consumers": consumers} if consumers else {}

    def figures(self) -> Iterable[Figure]:
        rows = self.summary()
        lag_s = {str(row["name"]): float(str(row["lagSecs"])) for row in rows}
        is_lost = {str(row["name"]): float(bool(row.get("isLost"))) for row in rows}
        yield Figure("replset_consumer_lag_seconds", "behind what is committed", lag_s, "consumer")
        yield Figure("replset_consumer_lost", "1: the history that it needs is gone", is_lost, "consumer")
        for kind, what in (
            ("held", "events that wait for their time"),
            ("parked", "events that were refused too often"),
        ):
            values = {str(row["name"]): float(str(row[kind])) for row in rows if kind in row}
            yield Figure(f"replset_consumer_{kind}", what, values, "consumer")

    def newer_content(self, txn: Txn) -> str:
        coll = txn.catalog.by_ns.get(CONSUMERS_NS)
        sql = "" if coll is None else f"SELECT {DOC} FROM {coll.table} WHERE key != ?"
        for (raw,) in rows_of(txn.connection, sql, (REMOVED_KEY,)) if sql else ():
            if (consumer := Consumer.parse(decode(raw))).keeps_events:
                return f"consumer {consumer.name} has deliverAfter or maxRefusals"
        return ""

    def needed_in_copies(self) -> OpTime | None:
        return self.needed()

    def needed(self) -> OpTime | None:
        """The oldest entry that a consumer needs; None: there is no consumer. Housekeeping asks before it trims."""
        member = self._member
        try:
            least = min((consumer.at for consumer in self.all()), default=None, key=lambda at: at.ts)
        except ReplError:  # the data is being replaced
            return OPTIME_NULL
        if member.store.collection(CONSUMERS_NS) is None:
            return None
        return self._floor.advance(member.store, member.node.commit_point, least)


class CommittedFloor:
    """What consumers need, by documents that are committed.

    A position that is not committed may be taken back, and with it what may be trimmed. So the floor follows what was
    read once all that was there then is committed. Until that is so for the first time nothing is trimmed.
    """

    def __init__(self) -> None:
        self._life: tuple[Store, int] | None = None
        self._seen: tuple[OpTime, OpTime | None] | None = None
        self._committed: OpTime | None = OPTIME_NULL

    def advance(self, store: Store, commit_point: OpTime, least: OpTime | None) -> OpTime | None:
        """least: of the documents as they are now. Returns what is needed."""
        life = store, store.rollback_id
        if life != self._life:
            self._life, self._seen, self._committed = life, None, OPTIME_NULL
        if self._seen is None:
            self._seen = store.last_applied, least
        if commit_point >= self._seen[0]:
            self._committed, self._seen = self._seen[1], None
        found = [at for at in (self._committed, least) if at is not None]
        return min(found, key=lambda at: at.ts, default=None)


def lag_document(member: Kernel, consumer: Consumer) -> dict[str, object]:
    """How far the consumer is behind what is committed, and when what it needs is trimmed away, by this member."""
    document: dict[str, object] = {"lagSecs": lag_s(member, consumer)}
    position = Token.parse(consumer.position).read_after
    if not member[History].reaches(position):
        document["isLost"] = True
    elif (left_s := falls_off_in_s(member.store, position)) is not None:
        document["fallsOffInSecs"] = Int64(left_s)
    if member.node.writable and (window := member[ConsumerDirectory].state.windows.get(consumer.name)) is not None:
        document["outstanding"] = window.outstanding
    if consumer.keeps_events:
        for kind, ns in (("held", kept_events.HELD_NS), ("parked", kept_events.PARKED_NS)):
            document[kind] = kept_events.count(member.store, ns, consumer.name)
    return document


def lag_s(member: Kernel, consumer: Consumer) -> int:
    """For how many seconds something committed has waited behind the position.

    The primary knows of a reader that has read all and found nothing; other members go by the saved position.
    """
    position = consumer.position
    if member.node.writable:
        position = max(position, member[ConsumerDirectory].state.passed_of(consumer))
    at = Token.parse(position).optime
    return 0 if at >= member[History].committed else behind_ms(member, at) // 1000


def document_of(name: str) -> ReplicatedDocument:
    return ReplicatedDocument(CONSUMERS_NS, encode_key(name))


def removed_in(txn: Txn) -> dict[str, object]:
    """The document of REMOVED_ID inside of a write; empty before the first removal."""
    raw = document_of(REMOVED_ID).read_in(txn)
    return {} if raw is None else decode(raw)


def not_found(name: str) -> ReplError:
    return ConsumerNotFoundError(f"there is no consumer {name!r:.150}")


def change(group: WriteGroup, name: str, new: Callable[[Consumer], Consumer]) -> Consumer:
    """Change the document of a consumer inside of a write. ConsumerNotFoundError, and what `new` raises."""
    document = document_of(name)
    raw = document.read_in(group.txn)
    if raw is None:
        raise not_found(name)
    consumer = new(Consumer.parse(decode(raw)))
    document.revise(group, raw, consumer.document())
    return consumer
