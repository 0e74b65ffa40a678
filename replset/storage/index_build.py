"""Fills one slice of the indexes under build. `index_builder.py` runs slice after slice.

Every document up to an index's position is in it. Documents are taken in the order of their keys, and each slice moves
the position on in the transaction that writes its entries. So a build goes on where it was after a crash.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import apsw

from replset.errors import DuplicateKeyError, ReplError
from replset.query.collation import icu_version
from replset.storage.catalog import Collection
from replset.storage.indexes import (
    ICU_VERSION,
    LARGE,
    REFUSALS,
    TO_THE_END,
    Index,
    check_number_of_values,
    duplicate_of,
    fill_index,
    keys_of,
    load_any_index,
    scan_index,
    set_index,
    write_entries,
)
from replset.storage.sqlite import first_row, page_of
from replset.storage.txn import Txn, key_sql, next_key, read_meta, write_meta

_CHECK_TIME_EVERY = 8
KEYS_IN_SLICE = 50_000
"""Keystrings that one slice of a check makes."""
CHECK_ROWS = 100
"""Documents of a slice that looks for those that cannot be in an index."""
VERIFY_ROWS = 2000
"""Entries of a slice that looks for duplicates: about two milliseconds."""


def fill_slice(
    txn: Txn,
    uuid: bytes,
    build: bytes,
    is_time_up: Callable[[], bool],
    *,
    limit: int | None = None,
    refuses: bool = False,
) -> bool:
    """Put some more documents of the collection, `limit` at most, into the indexes of a build. True: call again.

    refuses: as on a primary, raise DuplicateKeyError, and what `keys_of` raises, for a document that cannot be in an
    index. Without it the entry that commits or aborts the build decides.
    """
    coll = txn.catalog.by_uuid.get(uuid)
    indexes = [] if coll is None else [one for one in indexes_of_build(coll, build) if one.position is not None]
    if coll is None or not indexes:
        return False
    position = min(index.position or b"" for index in indexes)  # one for all, unless some came later than others
    as_if_whole = tuple(replace(index, position=None) for index in indexes)
    more = False
    for count, (key, doc) in enumerate(txn.scan(coll, low=next_key(position)), 1):
        if refuses:
            check_number_of_values(coll.indexes, doc, coll.ns)
        write_entries(txn.connection, as_if_whole, key, None, doc, unique_in=coll.ns if refuses else None)
        position = key
        is_look_due = count % _CHECK_TIME_EVERY == 0 or len(doc) > LARGE
        if count == limit or (is_look_due and is_time_up()):
            more = True
            break
    for index in indexes:
        set_index(txn.connection, index, "position", position if more else None)
    txn.catalog.reload_indexes(txn.connection, uuid)
    return more


def fill_at_once(txn: Txn, coll: Collection, index: Index) -> None:
    """Put all documents there are into an index that is ready."""
    for key, doc in txn.scan(coll):
        write_entries(txn.connection, (index,), key, None, doc)
    txn.catalog.reload_indexes(txn.connection, coll.uuid)


def refused_in(
    connection: apsw.Connection, coll: Collection, build: bytes, after: bytes
) -> tuple[ReplError | None, bytes | None]:
    """Look for a document that cannot be in an index of the build among the next ones behind the key `after`.

    Returns why it cannot, and the key behind which the next slice begins; None at the end.
    """
    page, more = page_of(connection, key_sql(coll, False), (next_key(after), TO_THE_END), CHECK_ROWS)
    made = 0
    for key, doc in page:
        try:
            check_number_of_values(coll.indexes, doc, coll.ns)
            made += sum(len(keys_of(index, doc)) for index in indexes_of_build(coll, build))
        except REFUSALS as error:
            return error, None
        if made > KEYS_IN_SLICE:
            return None, key
    return None, page[-1][0] if more else None


def indexes_of_build(coll: Collection, build: bytes) -> list[Index]:
    """The indexes of a build that is under way."""
    return [index for index in coll.indexes if index.build == build and not index.ready]


def duplicate_in(
    connection: apsw.Connection, coll: Collection, index: Index, after: tuple[bytes, bytes]
) -> tuple[DuplicateKeyError | None, tuple[bytes, bytes] | None]:
    """Look for two documents with one key in the next slice of a unique index.

    Returns the error for them, and where the next slice begins; None at the end.
    """
    rows = scan_index(connection, index, b"", None, after=after, limit=VERIFY_ROWS, backwards=False)
    previous = after[0]
    for keystring, key in rows:
        if keystring == previous:
            row = first_row(connection, coll.sql_get, (key,))
            return duplicate_of(index, coll.ns, b"" if row is None else row[0], keystring), None
        previous = keystring
    return None, rows[-1] if len(rows) == VERIFY_ROWS else None


# --- another ICU ------------------------------------------------------------------------------------------------


def rebuild_collated(connection: apsw.Connection) -> list[str]:
    """Make the entries of all indexes with a collation anew, if they are of another ICU: its sort keys are others.

    Returns the names of the indexes. A build begins anew. A dropped index is emptied: its entries were those of the
    documents when it was dropped, and only an undo of the drop needs them. Two documents of a unique index may have one
    key by this ICU; as on a secondary, both stay.
    """
    made_by = read_meta(connection, ICU_VERSION)
    if made_by is None or made_by == icu_version():
        return []
    write_meta(connection, ICU_VERSION, icu_version())
    rebuilt = [(index, is_dropped) for index, is_dropped in load_any_index(connection) if index.fold is not None]
    for index, is_dropped in rebuilt:
        connection.execute(f"DELETE FROM {index.table}")
        if index.position is None and not is_dropped:
            fill_index(connection, index)
        else:
            set_index(connection, index, "position", b"")
    return [index.name for index, _ in rebuilt]
