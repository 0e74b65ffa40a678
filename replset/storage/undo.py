"""Undoes entries backwards to the common point of a rollback, in bounded steps, with marks that survive a crash.

Each step takes its documents back and deletes its oplog entries in one transaction. Meta holds the mark of the rollback
in progress, and those of rollbacks that are done but whose manifest may not say so yet.
"""

from __future__ import annotations

import json
from typing import NamedTuple

import apsw

from replset.errors import UnrecoverableRollbackError
from replset.ids import OPTIME_NULL, OpTime, invariant
from replset.storage.oplog import newest_row
from replset.storage.sqlite import first_row, rows_of
from replset.storage.store import Store
from replset.storage.txn import Txn, read_meta, revert, write_meta

_IN_PROGRESS = "rollback_in_progress"
_DONE = "rollbacks_done"
AGES = "oplog_ages"
"""How old the entries are; see `retention.note_ages`."""


class RollbackMark(NamedTuple):
    """stem: of the manifest. common_point: where this member's history is the set's."""

    stem: str
    common_point: OpTime


def rollback_in_progress(store: Store) -> RollbackMark | None:
    """What a start must finish before anything else: undo down to its common point."""
    return store.query(_in_progress)


def rollback_done_marks(store: Store) -> list[RollbackMark]:
    """Rollbacks that are undone but whose manifest may still say planned."""
    return store.query(_done_marks)


def clear_rollback_done(store: Store, stem: str) -> None:
    """Remove the done mark: the manifest says finished."""
    with store.maintenance() as txn:
        left = [mark for mark in _done_marks(txn.connection) if mark.stem != stem]
        write_meta(txn.connection, _DONE, _text(left) if left else None)


def undo_step(store: Store, common_point: OpTime, *, stem: str, limit: int = 500, max_bytes: int = 4 << 20) -> bool:
    """Undo backwards towards `common_point`, some `limit` entries in one transaction, fewer when they or the documents
    that they touched are large. True: call again.

    stem: of the rollback's manifest. The first step writes the mark (stem, common point) and raises the rollback id;
    the last one turns it into the done mark. UnrecoverableRollbackError when the point is not to be reached.
    """
    _check(store, common_point)
    mark = RollbackMark(stem, common_point)
    with store.maintenance() as txn:
        connection = txn.connection
        if _in_progress(connection) is None:
            write_meta(connection, _IN_PROGRESS, _text([mark])[1:-1])
            # Who searches a common point here, or copies the data, finds this number in each answer. It rises in the
            # transaction that takes the first entry away. So nobody joins what was here before with what is here
            # afterwards. (Map Ro2.)
            write_meta(connection, "rollback_id", store.rollback_id + 1)
        floor = _floor(connection, common_point.ts, limit, max_bytes)
        # The files of the rollback hold what lies behind the common point. What is undone below would be in no file.
        invariant(floor >= common_point.ts, "nothing at or before the common point is undone")
        _undo_above(txn, floor)
        more = floor > common_point.ts
        if not more:
            write_meta(connection, _IN_PROGRESS, None)
            write_meta(connection, _DONE, _text([*_done_marks(connection), mark]))
        (size,) = first_row(connection, "SELECT total(length(entry)) FROM oplog WHERE ts > ?", (floor,))
        connection.execute("DELETE FROM oplog WHERE ts > ?", (floor,))
        entries = connection.changes()
        if not more:
            newest = newest_row(connection)
            # The done mark says that all is undone. With an entry left, the member would follow the set behind it.
            invariant(
                common_point == (OPTIME_NULL if newest is None else newest.optime),
                "a rollback ends at its common point",
            )
        write_meta(connection, "oplog_bytes", store.oplog_bytes - int(size))
        write_meta(connection, "oplog_counted_to", floor)
        write_meta(connection, AGES, None)  # the same timestamps come again, with entries that are new
    store.undone_entries += entries
    store.reload()
    return more


def _in_progress(connection: apsw.Connection) -> RollbackMark | None:
    value = read_meta(connection, _IN_PROGRESS)
    return None if value is None else _marks(f"[{value!s}]")[0]


def _done_marks(connection: apsw.Connection) -> list[RollbackMark]:
    value = read_meta(connection, _DONE)
    return [] if value is None else _marks(str(value))


def _marks(text: str) -> list[RollbackMark]:
    return [RollbackMark(stem, OpTime(term, ts)) for stem, term, ts in json.loads(text)]


def _text(marks: list[RollbackMark]) -> str:
    return json.dumps([[mark.stem, *mark.common_point] for mark in marks])


def _check(store: Store, common_point: OpTime) -> None:
    """Refuse a common point before what must stay, or one that is not in this member's history.

    Entries up to the commit point were acknowledged as committed. Undo that was pruned cannot be applied any more, so
    documents would stay as they are while their entries go.
    """
    if common_point < store.commit_point:
        raise UnrecoverableRollbackError(
            f"the common point {common_point} is older than the commit point {store.commit_point}"
        )
    if common_point.ts < store.pruned_through:
        raise UnrecoverableRollbackError(f"the common point {common_point} is older than what the undo reaches back to")
    if common_point != OPTIME_NULL and store.oplog_row_at(common_point) is None:
        raise UnrecoverableRollbackError(f"the common point {common_point} is not in the oplog")
    if common_point == OPTIME_NULL and store.trimmed_through:
        raise UnrecoverableRollbackError("the oplog does not reach back to its beginning")
    running = rollback_in_progress(store)
    if running is not None and running.common_point != common_point:
        raise UnrecoverableRollbackError(f"a rollback to {running.common_point} is in progress; finish that first")


def _floor(connection: apsw.Connection, common_ts: int, limit: int, max_bytes: int) -> int:
    """The ts down to which this step undoes: about `limit` entries and changes, and so many bytes of each; whole
    entries, one at least.
    """
    floor = common_ts
    for sql in (
        "SELECT ts, length(entry) FROM oplog WHERE ts > ? ORDER BY ts DESC LIMIT ?",
        "SELECT ts, ifnull(length(before), 0) FROM undo WHERE ts > ? ORDER BY ts DESC, seq DESC LIMIT ?",
    ):
        size = 0
        for count, (ts, length) in enumerate(list(rows_of(connection, sql, (common_ts, limit + 1)))):
            size += length
            if count == limit or size > max_bytes:
                floor = max(floor, ts)
                break
    newest = first_row(connection, "SELECT ts FROM oplog ORDER BY ts DESC LIMIT 1")
    if newest is not None and floor >= newest[0] > common_ts:
        # One entry with more changes or bytes than the limits: it goes in one step all the same.
        below = first_row(connection, "SELECT ts FROM oplog WHERE ts < ? ORDER BY ts DESC LIMIT 1", newest)
        floor = common_ts if below is None else max(common_ts, below[0])
    return floor


def _undo_above(txn: Txn, floor: int) -> None:
    connection = txn.connection
    sql = (
        "SELECT CAST(kind AS TEXT), CAST(coll AS BLOB), CAST(key AS BLOB), CAST(before AS BLOB), CAST(place AS INTEGER)"
        " FROM undo WHERE ts > ? ORDER BY ts DESC, seq DESC"
    )
    rows = list(rows_of(connection, sql, (floor,)))
    for kind, coll, key, before, place in rows:
        revert(connection, txn.catalog, kind, coll, key, before, place)
    connection.execute("DELETE FROM undo WHERE ts > ?", (floor,))
    connection.execute("DELETE FROM terms WHERE first_ts > ?", (floor,))
    connection.execute("UPDATE terms SET last_ts = NULL WHERE last_ts > ?", (floor,))
    # The newest term that is left is the open one, wherever its last entry was.
    connection.execute("UPDATE terms SET last_ts = NULL WHERE term = (SELECT max(term) FROM terms)")
