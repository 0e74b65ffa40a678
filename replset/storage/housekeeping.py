"""What keeps the database small, one bounded slice at a time: undo, the oplog's head, dropped collections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replset.ids import OpTime, pack_ts
from replset.storage import oplog
from replset.storage.sqlite import first_row, rows_of
from replset.storage.txn import Txn, write_meta

if TYPE_CHECKING:
    from replset.storage.store import Store

_ROWS = 1000
_COUNT_EVERY = 64 << 20


def run_slice(store: Store, now_wall_ms: int) -> bool:
    """One slice of the first of these that has something to do; True when one had."""
    return _prune(store) or _trim(store, now_wall_ms) or _finish_drop(store) or _count(store) or _note(store)


def _prune(store: Store) -> bool:
    """Undo rows in ts order, whole entries, together with meta.pruned_through."""
    limits = [store.commit_point.ts, store.last_applied.ts - pack_ts(store.options.snapshot_history_s, 0)]
    pin = store.oldest_pin
    if pin is not None:
        limits.append(pin.ts)
    limit = min(limits)
    if limit <= store.pruned_through or store.rollback_in_progress() is not None:
        return False
    connection = store._connection
    first = first_row(connection, "SELECT ts FROM undo ORDER BY ts LIMIT 1")
    if first is None or first[0] > limit:
        return False
    nth = first_row(connection, "SELECT ts FROM undo ORDER BY ts, seq LIMIT 1 OFFSET ?", (_ROWS,))
    # An entry's own ts, not the limit between two entries: the state at that entry can still be read.
    within = (limit if nth is None else min(limit, nth[0]),)
    (through,) = first_row(connection, "SELECT ts FROM undo WHERE ts <= ? ORDER BY ts DESC LIMIT 1", within) or first

    def work(txn: Txn) -> None:
        txn.connection.execute("DELETE FROM undo WHERE ts <= ?", (through,))
        write_meta(txn.connection, "pruned_through", through)

    store._run(work)
    store.pruned_through = through
    return True


def _trim(store: Store, now_wall_ms: int) -> bool:
    """Oldest entries, while they take more than the limit and are old enough. The one at the commit point stays: every
    rollback ends there or above, and looks for it.
    """
    options = store.options
    excess = store.oplog_bytes - options.oplog_max_bytes
    if excess <= 0:
        return False
    bound = min(store.commit_point.ts, store.last_applied.ts) - 1
    if options.oplog_min_retention_s:
        bound = min(bound, pack_ts(max(0, int(now_wall_ms / 1000 - options.oplog_min_retention_s)), 0))
    through, size = 0, 0
    lengths = "SELECT ts, length(entry) FROM oplog WHERE ts <= ? ORDER BY ts LIMIT ?"
    for ts, length in list(rows_of(store._connection, lengths, (bound, _ROWS))):
        if size >= excess:
            break
        through, size = ts, size + length
    if not through:
        return False

    def work(txn: Txn) -> None:
        txn.connection.execute("DELETE FROM oplog WHERE ts <= ?", (through,))
        write_meta(txn.connection, "trimmed_through", through)
        write_meta(txn.connection, "oplog_bytes", store.oplog_bytes - size)
        write_meta(txn.connection, "oplog_counted_to", store.last_applied.ts)

    store._run(work)
    store.oplog_bytes -= size
    store.counted_bytes = store.oplog_bytes
    store.trimmed_through = through
    oldest = oplog.oldest_row(store._connection)
    if oldest is not None:
        store.oldest, store.oldest_wall_ms = oldest.optime, oldest.wall_ms
    return True


def _count(store: Store) -> bool:
    if store.oplog_bytes - store.counted_bytes < _COUNT_EVERY:
        return False
    store._run(lambda txn: note_oplog_bytes(store, txn))
    return True


def _note(store: Store) -> bool:
    if _commit_point(store) > store._noted_commit_point:
        store._run(lambda txn: note_commit_point(store, txn))
    return False


def _commit_point(store: Store) -> OpTime:
    return min(store.commit_point, store.last_applied)


def note_commit_point(store: Store, txn: Txn) -> None:
    """So that the next start knows what must not be taken for lost, and which source must not be copied."""
    point = _commit_point(store)
    if point > store._noted_commit_point:
        write_meta(txn.connection, "commit_point", str(point))
        store._noted_commit_point = point


def note_oplog_bytes(store: Store, txn: Txn) -> None:
    """So that the next start adds up only what came later."""
    write_meta(txn.connection, "oplog_bytes", store.oplog_bytes)
    write_meta(txn.connection, "oplog_counted_to", store.last_applied.ts)
    store.counted_bytes = store.oplog_bytes


def _finish_drop(store: Store) -> bool:
    """The documents of a collection whose drop nobody can undo or look behind any more, in slices; then the table."""
    for coll in store._catalog.dropped():
        if (coll.dropped_ts or 0) > min(store.pruned_through, store.commit_point.ts):
            break

        def work(txn: Txn, table: str = coll.table, uuid: bytes = coll.uuid) -> None:
            connection = txn.connection
            connection.execute(f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} LIMIT ?)", (_ROWS,))
            if connection.changes() < _ROWS:
                connection.execute(f"DROP TABLE {table}")
                connection.execute("DELETE FROM catalog WHERE uuid = ?", (uuid,))
                txn.catalog.forget(uuid)

        store._run(work)
        return True
    return False
