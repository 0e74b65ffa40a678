"""Events of shared consumers that the set keeps itself, as documents of its own: held until their time, or parked.

Such an event is acknowledged in the write that makes its document, so it needs no oplog and outlives a failover. A held
one has the `_id` CONSUMER/TOKEN/TIME, a parked one CONSUMER/TOKEN: no consumer's name has a slash. The event is kept as
bytes, since it may be nested as deep as a document can be.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import apsw

from replset.bson import Binary, DateTime, RawDocument, encode, encode_key
from replset.bson.limits import MAX_BSON_SIZE
from replset.features.consumers.shared_window import PendingEvent
from replset.ids import Millis
from replset.replication.write_ops import ReplicatedDocument, WriteGroup
from replset.storage.catalog import Collection
from replset.storage.sqlite import first_row, page_of, rows_of
from replset.storage.store import Store

HELD_NS: Final = "config.heldEvents"
PARKED_NS: Final = "config.parkedEvents"
MOST_KEPT: Final = 10_000
"""Events of one consumer that are held, and that are parked."""
AT_ONCE: Final = 500
"""Kept events that one write changes."""
LARGEST_KEPT: Final = MAX_BSON_SIZE - (64 << 10)
"""Bytes of an event that is kept; the rest is for the reasons."""
_TIME: Final = "substr(key, -20, 19)"
"""The time within the key of a held event's document; behind it is the byte that ends a string."""


def held_document(name: str, token: str, at_ms: int) -> ReplicatedDocument:
    """at_ms: from when on it is given to readers, by the wall clock; 0: at once."""
    return ReplicatedDocument(HELD_NS, encode_key(f"{name}/{token}/{at_ms:019d}"))


def parked_document(name: str, token: str) -> ReplicatedDocument:
    return ReplicatedDocument(PARKED_NS, encode_key(f"{name}/{token}"))


def id_of(key: bytes) -> str:
    """The `_id` of a document that is kept under this key."""
    return key[1:-1].decode()


def token_in(key: bytes) -> str:
    return id_of(key).split("/")[1]


def put_held(group: WriteGroup, name: str, token: str, at_ms: int, event: bytes) -> None:
    document = held_document(name, token, at_ms)
    document.put(group, encode({"_id": id_of(document.key), "event": Binary(event)}))


def put_parked(group: WriteGroup, name: str, event: PendingEvent, raw: bytes, now: Millis) -> None:
    """Park an event with the reasons, as they were at these moments before `now`; one that is too large without it."""
    document = parked_document(name, event.token)
    reasons = [
        {"at": DateTime(group.wall_ms - (now - one.at)), "reader": one.reader, "reason": one.reason}
        for one in event.refusals
    ]
    kept = {"event": Binary(raw)} if len(raw) <= LARGEST_KEPT else {}
    about = {"at": DateTime(group.wall_ms), "refusals": event.refused, "reasons": reasons}
    document.put(group, encode({"_id": id_of(document.key), **about, **kept}))


def event_in(document: bytes | None) -> bytes | None:
    """The event that a document keeps; None: there is no document, or it was too large."""
    event = None if document is None else RawDocument(document).get("event")
    return bytes(event) if isinstance(event, bytes) else None


def is_held(group: WriteGroup, key: bytes) -> bool:
    return ReplicatedDocument(HELD_NS, key).read_in(group.txn) is not None


def remove_kept(group: WriteGroup, name: str, tokens: Iterable[str]) -> None:
    """Remove what is held and parked of these events."""
    coll = group.txn.catalog.by_ns.get(HELD_NS)
    for token in tokens:
        parked_document(name, token).remove(group)
        for key, _ in page(group.txn.connection, coll, f"{name}/{token}")[0]:
            ReplicatedDocument(HELD_NS, key).remove(group)


def page(
    connection: apsw.Connection, coll: Collection | None, prefix: str, after: str = ""
) -> tuple[list[tuple[bytes, bytes]], bool]:
    """The first kept documents of this consumer, or of one token of it, behind `after`; and whether more may come."""
    if coll is None:
        return [], False
    sql = f"SELECT key, doc FROM {coll.table} WHERE key > ? AND key < ? ORDER BY key LIMIT ?"
    return page_of(connection, sql, (encode_key(f"{prefix}/{after}"), encode_key(f"{prefix}0")), AT_ONCE)


def count(store: Store, ns: str, name: str) -> int:
    """How many events of the consumer are kept there."""
    return store.query(lambda connection: count_in(connection, store.collection(ns), name))


def count_in(connection: apsw.Connection, coll: Collection | None, name: str) -> int:
    """Do as `count`, also within a group."""
    return int(_one(connection, coll, name, "count(*)") or 0)


def next_time(store: Store, name: str, after_ms: int) -> int | None:
    """When the next held event of the consumer is due, behind this time."""
    coll = store.collection(HELD_NS)
    more = f"AND {_TIME} > ?", _time(after_ms)
    found = store.query(lambda connection: _one(connection, coll, name, f"min({_TIME})", *more))
    return None if found is None else int(found)


def due(store: Store, name: str, now_ms: int, most: int) -> list[tuple[str, bytes]]:
    """Token and key of the held events whose time has come, the oldest ones first."""
    coll = store.collection(HELD_NS)
    if coll is None or most <= 0:
        return []
    sql = f"SELECT key FROM {coll.table} WHERE key > ? AND key < ? AND {_TIME} <= ? ORDER BY {_TIME}, key LIMIT ?"
    values = encode_key(f"{name}/"), encode_key(f"{name}0"), _time(now_ms), most
    return [(token_in(key), key) for (key,) in store.query(lambda connection: list(rows_of(connection, sql, values)))]


def _one(
    connection: apsw.Connection, coll: Collection | None, name: str, what: str, more: str = "", *values: bytes
) -> bytes | int | None:
    if coll is None:
        return None
    sql = f"SELECT {what} FROM {coll.table} WHERE key > ? AND key < ? {more}"
    found: bytes | int | None = first_row(connection, sql, (encode_key(f"{name}/"), encode_key(f"{name}0"), *values))[0]
    return found


def _time(at_ms: int) -> bytes:
    return f"{max(0, at_ms):019d}".encode()
