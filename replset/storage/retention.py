"""Removes what no reader, rollback or secondary needs any more, one bounded slice at a time.

That is old undo, the oldest oplog entries, and the documents of dropped collections.
"""

from __future__ import annotations

import json

from replset.errors import StorageError
from replset.ids import Millis, OpTime, invariant
from replset.storage.sqlite import first_row, rows_of
from replset.storage.store import Store
from replset.storage.txn import read_meta, write_meta
from replset.storage.undo import AGES, rollback_in_progress

_ROWS = 1000
_RESERVE = 2
"""How many times the least free space the disk must have, that entries stay for a member that lags behind."""


SAVE_AGES_EVERY_MS = 60_000


def remove_old_data(store: Store, now: Millis, needed: OpTime | None = None, copied: OpTime | None = None) -> bool:
    """Do one slice of the first of these that has something to do; True when one had.

    now: by the clock that only moves on. needed: the newest entry of the member that is farthest behind, or the newest
    that is archived, if that is older.
    copied: where the oldest copy begins that a member fetches, or has just fetched. None: there is none.
    """
    note_ages(store, now)
    if (
        _prune(store, now)
        or _trim(store, now, needed, copied)
        or _remove_dropped(store)
        or _remove_dropped_index(store)
        or store.save_oplog_bytes()
    ):
        return True
    store.save_commit_point()
    _save_ages(store, now)
    return False


def note_ages(store: Store, now: Millis) -> None:
    """Note the newest entry in `store.ages`; at first go on from what was saved before the restart."""
    if store.ages_saved_at is None:
        saved = store.query(lambda connection: read_meta(connection, AGES))
        rows = [] if saved is None else json.loads(str(saved))
        store.ages.load([(began, ended, OpTime(term, ts)) for began, ended, term, ts in rows], now)
        store.ages.cut(store.last_applied)
        store.ages_saved_at = now
    store.ages.note(store.last_applied, now)


def _save_ages(store: Store, now: Millis) -> None:
    """Save how old the entries are, where they stay by their age: else each restart would begin to count anew."""
    if not store.options.oplog_min_retention_s or now < (store.ages_saved_at or 0) + SAVE_AGES_EVERY_MS:
        return
    rows = [[began, ended, *newest] for began, ended, newest in store.ages.spans(now)]
    with store.maintenance() as txn:
        write_meta(txn.connection, AGES, json.dumps(rows))
    store.ages_saved_at = now


def _prune(store: Store, now: Millis) -> bool:
    """Remove undo rows in ts order, whole entries, together with meta.pruned_through.

    Undo behind the commit point stays, since a rollback may have to go back there. So does what an open cursor or the
    snapshot history reads by. While a rollback is in progress nothing is removed.
    """
    history = store.ages.older_than(store.options.snapshot_history_s * 1000, now)
    limits = [store.commit_point.ts, history.ts]
    pin = store.oldest_pin
    if pin is not None:
        limits.append(pin.ts)
    limit = min(limits)
    # What an interrupted rollback has still to undo needs its undo rows, wherever the commit point is said to be after
    # the restart. Without them the rollback could neither be finished nor left.
    if limit <= store.pruned_through or rollback_in_progress(store) is not None:
        return False
    first = store.query(lambda connection: first_row(connection, "SELECT ts FROM undo ORDER BY ts LIMIT 1"))
    if first is None or first[0] > limit:
        return False
    with store.maintenance() as txn:
        connection = txn.connection
        nth = first_row(connection, "SELECT ts FROM undo ORDER BY ts, seq LIMIT 1 OFFSET ?", (_ROWS,))
        # An entry's own ts, not the limit between two entries: the state at that entry can still be read.
        within = limit if nth is None else min(limit, nth[0])
        # Without its undo an entry behind the commit point cannot be rolled back, and a cursor that reads at its pin
        # would see documents as they are now.
        invariant(
            within <= store.commit_point.ts and (pin is None or within <= pin.ts), "undo that is needed is not pruned"
        )
        (through,) = first_row(connection, "SELECT max(ts) FROM undo WHERE ts <= ?", (within,))
        connection.execute("DELETE FROM undo WHERE ts <= ?", (through,))
        connection.execute("DELETE FROM name_changes WHERE ts <= ?", (through,))
        write_meta(connection, "pruned_through", through)
    store.pruned_through = through
    return True


def _trim(store: Store, now: Millis, needed: OpTime | None, copied: OpTime | None) -> bool:
    """Remove the oldest entries, while they take more than the limit and are old enough.

    The one at the commit point stays: every rollback ends there or above, and looks for it. While the disk has space to
    spare, so do those behind a copy: else a member whose copy takes longer than the oplog reaches would copy for ever.
    Up to a larger limit those stay that another member needs to catch up. The file does not shrink when they are
    removed, so they go before the disk has too little space for writes.
    """
    options = store.options
    excess = store.oplog_bytes - options.oplog_max_bytes
    if excess <= 0:
        return False
    bound = min(store.commit_point.ts, store.last_applied.ts) - 1
    keeps = (needed is not None or copied is not None) and store.has_disk_space(reserve=_RESERVE)
    if keeps:
        over = store.oplog_bytes - options.oplog_lagging_bytes
        if copied is not None:
            bound = min(bound, copied.ts - 1)
        if needed is not None and needed.ts <= bound:
            # Up to the larger limit a lagging member finds its next entry here, and catches up without a copy. Beyond
            # it the entries are given up: a member that never comes back would fill the disk, and on a full disk nobody
            # could write. Nothing committed is lost by that, since the documents are here and on a majority. The member
            # is too stale when it comes back, exports what only it has, and copies the data (`Follower._on_diverged`).
            # What no segment of the archive has then is a gap in it (`Archiver._look_for_gap`). (Map O11;
            # docs/replication.md.)
            if over > 0:
                excess = min(excess, over)
            else:
                bound = needed.ts - 1
    if bound < store.oldest.ts:
        return False
    if options.oplog_min_retention_s:
        bound = min(bound, store.ages.older_than(int(options.oplog_min_retention_s * 1000), now).ts)
    invariant(bound < store.commit_point.ts, "the entry at the commit point stays")
    invariant(not keeps or copied is None or bound < copied.ts, "what follows a copy stays")
    through, size = 0, 0
    lengths = "SELECT ts, length(entry) FROM oplog WHERE ts <= ? ORDER BY ts LIMIT ?"
    for ts, length in store.query(lambda connection: list(rows_of(connection, lengths, (bound, _ROWS)))):
        if size >= excess:
            break
        through, size = ts, size + length
    if not through:
        return False
    with store.maintenance() as txn:
        txn.connection.execute("DELETE FROM oplog WHERE ts <= ?", (through,))
        write_meta(txn.connection, "trimmed_through", through)
        write_meta(txn.connection, "oplog_bytes", store.oplog_bytes - size)
        write_meta(txn.connection, "oplog_counted_to", store.last_applied.ts)
    store.on_trimmed(through, size)
    return True


def falls_off_in_s(store: Store, newest: OpTime) -> int | None:
    """In how many seconds the entry that another member has as its newest is trimmed here, if writes go on as they did;
    None: that cannot be told yet, or it is gone already.
    """
    window_s = store.window_s()
    if newest < store.oldest or window_s <= 0 or not store.oplog_bytes:
        return None
    limit = max(store.options.oplog_max_bytes, store.options.oplog_lagging_bytes)
    until_full_s = max(0, limit - store.oplog_bytes) * window_s // store.oplog_bytes
    try:
        return store.seconds_above_oldest(newest) + until_full_s
    except StorageError:  # the data is being replaced
        return None


def _remove_dropped(store: Store) -> bool:
    """Remove the documents of a collection whose drop cannot be undone or read behind any more; at last its table."""
    dropped = store.dropped_collections()
    # The undo of a drop only makes the collection visible again (`txn.revert`), and its documents are in no rollback
    # file. If they were gone by then, acknowledged writes would be lost. A read at a point before the drop needs them
    # as well.
    if not dropped or (dropped[0].dropped_ts or 0) > min(store.pruned_through, store.commit_point.ts):
        return False
    table, uuid = dropped[0].table, dropped[0].uuid
    with store.maintenance() as txn:
        connection = txn.connection
        connection.execute(f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} LIMIT ?)", (_ROWS,))
        if connection.changes() < _ROWS:
            connection.execute(f"DROP TABLE {table}")
            connection.execute("DELETE FROM catalog WHERE uuid = ?", (uuid,))
            connection.execute("DELETE FROM capped WHERE coll = ?", (uuid,))
            connection.execute("UPDATE indexes SET dropped_ts = 0 WHERE coll = ?", (uuid,))
            txn.catalog.forget(uuid)
    return True


def _remove_dropped_index(store: Store) -> bool:
    """Remove the entries of an index that is dropped, whose creation was undone, or whose collection is gone.

    They stay for as long as the documents of a dropped collection do (`_remove_dropped`).
    """
    sql = "SELECT id FROM indexes WHERE dropped_ts <= ? LIMIT 1"
    until = min(store.pruned_through, store.commit_point.ts)
    dropped = store.query(lambda connection: first_row(connection, sql, (until,)))
    if dropped is None:
        return False
    table = f"i_{dropped[0]}"
    with store.maintenance() as txn:
        connection = txn.connection
        connection.execute(
            f"DELETE FROM {table} WHERE (keystring, key) IN (SELECT keystring, key FROM {table} LIMIT ?)", (_ROWS,)
        )
        if connection.changes() < _ROWS:
            connection.execute(f"DROP TABLE {table}")
            connection.execute("DELETE FROM indexes WHERE id = ?", dropped)
    return True
