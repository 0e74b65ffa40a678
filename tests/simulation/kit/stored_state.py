"""What a member keeps beside its documents, compared with what its oplog says: rows, terms, counts, what it holds in
memory, and what reads at an earlier point find.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any

from xxhash import xxh3_64_intdigest

from replset.bson import decode, encode_key
from replset.errors import CatalogChangedError, SnapshotTooOldError
from replset.ids import OpTime
from replset.oplog_row import StoredRow
from replset.storage import oplog
from replset.storage.snapshot import Snapshot
from tests.simulation.kit.entries import Entry
from tests.simulation.kit.replay import SESSIONS_TABLE, first_difference, replay

if TYPE_CHECKING:
    import apsw

    from replset.storage.catalog import Collection
    from replset.storage.store import Store
    from tests.simulation.kit.disk import SimDisk

_WHOLE, _SIGN = 1 << 64, 1 << 63
_NEAR = 30
"""So many of the newest entries are points of reads more often than others."""

_COLLECTIONS = 2
"""So many are read at such a point."""


def stored_fault(
    store: Store, disk: SimDisk, entries: list[Entry], rng: random.Random, *, reads_back: bool
) -> str | None:
    """What is wrong; None when nothing is, or the member has no connection to spare just now. entries: of its oplog.
    reads_back: read at an earlier point too.
    """
    connection = disk.reader(os.path.join(disk.folder, "replset.db"))
    if connection is None or not entries or store.last_applied != entries[-1].optime:
        return None
    return (
        _fault_of_rows(connection, entries)
        or _fault_of_terms(connection, entries)
        or _fault_of_counts(connection)
        or _fault_in_memory(connection, store)
        or (None if store.oplog_only or not reads_back else _fault_in_the_past(connection, store, entries, rng))
    )


def _fault_of_rows(connection: apsw.Connection, entries: list[Entry]) -> str | None:
    """Each row says what its entry says, and the chain goes on from row to row."""
    known = {entry.optime.ts: entry for entry in entries}
    chain: int | None = None
    for ts, term, op, ns, key, wall, hashed, chained, raw in connection.execute("SELECT * FROM oplog ORDER BY ts"):
        body = known[ts].body
        id_of = {"i": body["o"], "d": body["o"], "u": body.get("o2", {})}.get(body["op"], {}).get("_id")
        expected = (body["t"], body["op"], body["ns"], None if id_of is None else encode_key(id_of))
        if (term, op, ns, key) != expected or wall != body["wall"].ms:
            return f"the row at {ts} says {(term, op, ns, key, wall)}, its entry {body}"
        if hashed % _WHOLE != xxh3_64_intdigest(raw):
            return f"the hash of the entry at {ts} is another one"
        link = (hashed % _WHOLE).to_bytes(8, "little")
        if chain is not None and chained % _WHOLE != xxh3_64_intdigest(chain.to_bytes(8, "little") + link):
            return f"the chain is broken at {ts}"
        chain = chained % _WHOLE
    return None


def _fault_of_terms(connection: apsw.Connection, entries: list[Entry]) -> str | None:
    expected: dict[int, list[int | None]] = {}
    for entry in entries:
        expected.setdefault(entry.optime.term, [entry.optime.ts, None])[1] = entry.optime.ts
    expected[entries[-1].optime.term][1] = None  # it is open
    found = {term: [first, last] for term, first, last in connection.execute("SELECT * FROM terms")}
    return None if found == expected else f"the oplog has the terms {expected}, and noted are {found}"


def _fault_of_counts(connection: apsw.Connection) -> str | None:
    """Of capped collections, and of undo whose entry is gone."""
    for coll, documents, size in connection.execute("SELECT * FROM capped").fetchall():
        held = connection.execute(f"SELECT count(*), total(length(doc)) FROM d_{coll.hex()}").fetchall()[0]
        if held != (documents, size):
            return f"a capped collection holds {held}, and counted are {(documents, size)}"
    sql = "SELECT ts FROM undo WHERE ts NOT IN (SELECT ts FROM oplog) AND ts > (SELECT max(ts) FROM oplog)"
    later = connection.execute(sql).fetchall()
    return f"there is undo of {later[:3]}, which are in no oplog" if later else None


def _fault_in_memory(connection: apsw.Connection, store: Store) -> str | None:
    """What the store holds in memory is what its file says."""
    rows = connection.execute("SELECT * FROM oplog ORDER BY ts").fetchall()
    if (store.oldest.ts, store.oldest.term) != rows[0][:2]:
        return f"the oldest entry is {rows[0][:2]}, and the store says {store.oldest}"
    size = sum(len(row[8]) for row in rows)
    if store.oplog_bytes != size:
        return f"the oplog has {size} bytes, and the store counts {store.oplog_bytes}"
    kept = [row for row in store.tail.rows if row[0] > store.trimmed_through]
    if kept and kept != rows[-len(kept) :]:
        return "the rows in memory are not the newest ones on the disk"
    wrong = _fault_of_tail(store.tail.rows, store.options.tail_bytes)
    if wrong:
        return wrong
    numbers = {"rollback_id": 1, "pruned_through": 0, "trimmed_through": 0}
    saved = dict(connection.execute("SELECT name, value FROM meta").fetchall())
    for name, default in numbers.items():
        if getattr(store, name) != saved.get(name, default):
            return f"{name} is {saved.get(name, default)}, and the store says {getattr(store, name)}"
    records = dict(connection.execute(f"SELECT key, doc FROM d_{SESSIONS_TABLE}").fetchall())
    if not store._sessions.items() <= records.items():
        return "a record of a session in memory is another one than in the file"
    sql = "SELECT uuid, ns, options, created_ts FROM catalog WHERE dropped_ts IS NULL ORDER BY ns"
    known = [(coll.uuid, coll.ns, coll.options.raw, coll.created_ts) for coll in store.collections()]
    if known != connection.execute(sql).fetchall():
        return f"there are other collections than in memory: {known}"
    return None


def _fault_of_tail(rows: list[StoredRow], max_bytes: int) -> str | None:
    """It holds as many rows as it may, and no more: those that are dropped at once are a small part."""
    if not rows:
        return None
    sizes = [len(row[8]) + oplog.ROW_BYTES for row in rows]
    if sum(sizes) > max_bytes + max_bytes // oplog.DROP_PARTS:
        return f"the rows in memory take {sum(sizes)} bytes of {max_bytes}"
    return None


def _fault_in_the_past(
    connection: apsw.Connection, store: Store, entries: list[Entry], rng: random.Random
) -> str | None:
    """Reads at an earlier point, from the oldest one that is kept on, find what the oplog makes up to there."""
    kept = [place for place, entry in enumerate(entries) if entry.optime.ts >= store.pruned_through]
    if not kept:
        return None
    place = rng.choice(kept[-_NEAR:] if rng.random() < 0.7 else kept)
    at = entries[place].optime
    state = replay(entries[: place + 1])
    expected = {ns: state[ns] for ns in rng.sample(sorted(state), min(_COLLECTIONS, len(state)))}
    found: dict[str, dict[str, Any]] = {}
    with Snapshot(connection, store.path, lambda _, __: None) as snapshot:
        for ns in expected:
            try:
                coll = snapshot.collection(ns, at)
                if coll is None:
                    return f"at {at} there was {ns}, and a read there finds none"
                found[ns] = _read(snapshot, coll, at, rng)
            except (CatalogChangedError, SnapshotTooOldError):
                found[ns] = expected[ns]
            except ValueError as error:
                return f"a read of {ns} at {at} {error}"
    return None if found == expected else f"a read at {at} finds otherwise: {first_difference(expected, found)}"


def _read(snapshot: Snapshot, coll: Collection, at: OpTime, rng: random.Random) -> dict[str, Any]:
    """All documents, in each of the ways in which they can be read. ValueError where these differ."""
    rows, backwards = rng.choice((1, 2, 7, 100)), rng.random() < 0.5
    scanned = list(snapshot.scan(coll, at, rows=rows, backwards=backwards))
    if [key for key, _ in scanned] != sorted((key for key, _ in scanned), reverse=backwards):
        raise ValueError("is not in the order of keys")
    natural = [row for row in snapshot.natural_scan(coll, at, rows=rows, backwards=backwards) if row[2]]
    if [place for place, _, _ in natural] != sorted((place for place, _, _ in natural), reverse=backwards):
        raise ValueError("is not in natural order")
    if {key: document for _, key, document in natural} != dict(scanned) or len(natural) != len(scanned):
        raise ValueError("in natural order finds other documents")
    if snapshot.count(coll, at) != len(scanned):
        raise ValueError(f"counts {snapshot.count(coll, at)} of {len(scanned)}")
    for key, document in rng.sample(scanned, min(3, len(scanned))):
        if snapshot.get(coll, key, at) != document:
            raise ValueError("by a key finds another document")
    changed, _, _ = snapshot.changed_documents(coll, at, None)
    if not dict(changed).items() <= dict(scanned).items() or len(dict(changed)) != len(changed):
        raise ValueError("among those that changed later finds other documents")
    return {repr(document["_id"]): document for document in (decode(raw) for _, raw in scanned)}
