"""Makes a copy of another member's database out of one's own: only the rows that differ come from there.

The documents of a collection are compared by spans of 16 places (rowids, which natural order goes by), each by one
digest, and those of a span that differs one by one. What is no document (catalog, oplog, undo) comes as a small
database, the frame. Until all is alike, the new database says of itself that it has no documents, so nothing takes it
for a whole one. Everything here blocks: it runs in a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from struct import Struct, pack
from typing import NamedTuple

import apsw

from replset.errors import CorruptDataError, ErrorCode, ReplError
from replset.ids import invariant
from replset.oplog_row import entry_hash
from replset.storage.catalog import SESSIONS, Collection, count_from_now_on, load_catalog, load_collection
from replset.storage.copies import OPLOG_ONLY, open_copy
from replset.storage.disk import Disk
from replset.storage.indexes import Index, index_table_sql, load_indexes, write_entries
from replset.storage.schema import DOC, IS_MISTYPED, KEY, collection_table, collection_table_sql
from replset.storage.sqlite import first_row, rows_of, transaction
from replset.storage.txn import write_meta

SPAN_BITS = 4
SPANS_MAX, SPANS_BYTES = 4096, 64 << 20
"""How much one answer has: spans, and bytes of their rows in hex."""
ROWS_BYTES = 8 << 20
"""How many bytes of rows one answer has, and one row more."""
FIRST_PLACE, LAST_PLACE = -(1 << 63), (1 << 63) - 1
_READ_ROWS, _READ_BYTES = 1024, 1 << 20
_pair = Struct("<qq")
_FRAME_TABLES = ("oplog", "undo", "terms", "name_changes", "catalog", "meta")


class Row(NamedTuple):
    """One document in its place."""

    place: int
    key: bytes
    doc: bytes


@dataclass(frozen=True, slots=True)
class Spans:
    """The digests of the spans that have rows, from one place on. next: the place where the rest begins; None: none."""

    digests: Mapping[int, int]
    next: int | None


@dataclass(frozen=True, slots=True)
class Differences:
    """What one database has otherwise than another. rows: to be put there. gone: places without a row here.
    next: the place from which on this is not answered yet; None: all is.
    """

    rows: Sequence[Row]
    gone: Sequence[int]
    next: int | None


def pack_pairs(pairs: Iterable[tuple[int, int]]) -> bytes:
    """Numbers of 64 bits, two and two."""
    return b"".join([_pair.pack(*pair) for pair in pairs])


def unpack_pairs(data: bytes) -> dict[int, int]:
    """ValueError: these are not pairs."""
    if len(data) % _pair.size:
        raise ValueError(f"{len(data)} bytes are no pairs of numbers")
    return dict(_pair.iter_unpack(data))


# --- comparing --------------------------------------------------------------------------------------------------


def read_spans(connection: apsw.Connection, uuid: bytes, low: int, high: int = LAST_PLACE) -> Spans:
    """Return the digests of the spans with low <= place <= high, up to the limits of one answer."""
    digests: dict[int, int] = {}
    span, hashes, size = low >> SPAN_BITS, list[int](), 0
    for place, hashed, length in _hashed_rows(connection, _table(connection, uuid), low, high):
        if place >> SPAN_BITS != span:
            if hashes:
                digests[span] = _digest(hashes)
            if len(digests) >= SPANS_MAX or size > SPANS_BYTES:
                rest = (place >> SPAN_BITS) << SPAN_BITS
                # This row has no digest yet. If the next answer began behind it, it would never be compared.
                invariant(rest <= place < rest + (1 << SPAN_BITS), "the rest begins with the first span not answered")
                return Spans(digests, rest)
            span, hashes = place >> SPAN_BITS, []
        hashes.append(hashed)
        size += length
    if hashes:
        digests[span] = _digest(hashes)
    return Spans(digests, None)


def read_hashes(connection: apsw.Connection, uuid: bytes, spans: Sequence[int]) -> dict[int, int]:
    """Return the hash of each row of these spans, by its place."""
    table = _table(connection, uuid)
    return {row.place: _row_hash(row) for span in spans for row in _rows_of_span(connection, table, span)}


def read_differences(
    connection: apsw.Connection, uuid: bytes, spans: Sequence[int], theirs: Mapping[int, int], low: int
) -> Differences:
    """Return the rows of these spans, from the place `low` on, that are not as `theirs`, the hashes by place, says."""
    rows: list[Row] = []
    gone: list[int] = []
    size, table = 0, _table(connection, uuid)
    for span in spans:
        left = {place for place in theirs if place >> SPAN_BITS == span and place >= low}
        for row in _rows_of_span(connection, table, span):
            if row.place < low:
                continue
            if size > ROWS_BYTES:
                return Differences(rows, gone + [place for place in left if place < row.place], row.place)
            left.discard(row.place)
            if theirs.get(row.place) != _row_hash(row):
                rows.append(row)
                size += len(row.key) + len(row.doc)
        gone += sorted(left)
    return Differences(rows, gone, None)


def _table(connection: apsw.Connection, uuid: bytes) -> str:
    table = collection_table(uuid)
    if first_row(connection, "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?", (table,)) is None:
        raise ReplError(f"this copy has no collection {uuid.hex()}", code=ErrorCode.NAMESPACE_NOT_FOUND)
    return table


def _hashed_rows(connection: apsw.Connection, table: str, low: int, high: int) -> Iterator[tuple[int, int, int]]:
    """The place, the hash and the length in hex of each row, in order.

    SQLite puts many rows together in one call: see digests.read_digest.
    """
    until = (
        "SELECT max(rowid) FROM (SELECT rowid, sum(size) OVER (ORDER BY rowid ROWS UNBOUNDED PRECEDING) - size AS"
        f" before FROM (SELECT rowid, length(doc) AS size FROM {table} WHERE rowid >= ? AND rowid <= ?"
        " ORDER BY rowid LIMIT ?)) WHERE before <= ?"
    )
    texts = (
        "SELECT group_concat(place || ':' || hex(key) || ':' || hex(doc)) FROM"
        f" (SELECT rowid AS place, key, doc FROM {table} WHERE rowid >= ? AND rowid <= ? ORDER BY rowid)"
    )
    while low <= high:
        (last,) = first_row(connection, until, (low, high, _READ_ROWS, _READ_BYTES))
        if last is None:
            return
        (text,) = first_row(connection, texts, (low, last))
        for row in text.split(","):
            yield int(row[: row.index(":")]), entry_hash(row.encode()), len(row)
        low = last + 1


def _rows_of_span(connection: apsw.Connection, table: str, span: int) -> Iterator[Row]:
    sql = f"SELECT rowid, {KEY}, {DOC} FROM {table} WHERE rowid >= ? AND rowid <= ? ORDER BY rowid"
    low = span << SPAN_BITS
    return (Row._make(row) for row in rows_of(connection, sql, (low, low + (1 << SPAN_BITS) - 1)))


def _row_hash(row: Row) -> int:
    return entry_hash(f"{row.place}:{row.key.hex()}:{row.doc.hex()}".upper().encode())


def _digest(hashes: Sequence[int]) -> int:
    return entry_hash(pack(f"<{len(hashes)}q", *hashes))


# --- building ---------------------------------------------------------------------------------------------------


def begin_build(disk: Disk, path: str, frame_path: str) -> list[bytes]:
    """Give the copy of one's own database at `path` everything of the frame; return the collections to compare.

    What undo there was is gone with the entries it belongs to. StorageError: the two are of different versions.
    """
    with open_copy(disk, frame_path) as frame, open_copy(disk, path) as connection:
        connection.pragma("journal_mode", "off")  # whoever dies in between begins anew
        connection.pragma("synchronous", "off")
        if frame.pragma("user_version") != connection.pragma("user_version"):
            raise CorruptDataError(f"{path} has another schema than the frame of the copy")
        with transaction(connection):
            had = {bytes(uuid) for (uuid,) in list(rows_of(connection, "SELECT uuid FROM catalog"))}
            for table in _FRAME_TABLES:
                connection.execute(f"DELETE FROM {table}")
                _copy_rows(frame, connection, table)
            collections = load_catalog(frame)
            for coll in collections:
                if coll.uuid not in had:
                    connection.execute(collection_table_sql(coll.uuid))
                    if coll.capped is not None:
                        count_from_now_on(connection, coll)
            for uuid in sorted(had - {coll.uuid for coll in collections}):
                connection.execute(f"DROP TABLE {collection_table(uuid)}")
            for uuid in (*(coll.uuid for coll in collections), SESSIONS.uuid):
                connection.execute(
                    f"UPDATE {collection_table(uuid)} SET key = {KEY}, doc = {DOC} WHERE {IS_MISTYPED}"
                )  # as the source's rows are read, or what is copied would not be what was compared
            _adopt_indexes(connection, frame)
        return [coll.uuid for coll in collections] + [SESSIONS.uuid]


def _copy_rows(source: apsw.Connection, target: apsw.Connection, table: str) -> None:
    rows = rows_of(source, f"SELECT * FROM {table}")
    while batch := list(islice(rows, _READ_ROWS)):
        target.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(batch[0]))})", batch)


def _adopt_indexes(connection: apsw.Connection, frame: apsw.Connection) -> None:
    """Keep the entries of indexes that are defined there as here; begin the others, and drop what is not there."""
    mine: dict[tuple[bytes, bytes], int] = {}
    sql = "SELECT id, coll, spec FROM indexes WHERE dropped_ts IS NULL AND position IS NULL"
    for id_, coll, spec in list(rows_of(connection, sql)):
        mine[coll, spec] = id_
    connection.execute("UPDATE indexes SET dropped_ts = 0")
    sql = "SELECT coll, spec, build, ready, multikey FROM indexes WHERE dropped_ts IS NULL ORDER BY id"
    for coll, spec, build, ready, multikey in list(rows_of(frame, sql)):
        (id_,) = first_row(connection, "SELECT ifnull(max(id), 0) + 1 FROM indexes")
        kept = mine.pop((coll, spec), None) if ready else None
        if kept is None:
            connection.execute(index_table_sql(f"i_{id_}"))
        else:
            connection.execute(f"ALTER TABLE i_{kept} RENAME TO i_{id_}")
            connection.execute("DELETE FROM indexes WHERE id = ?", (kept,))
        connection.execute(
            "INSERT INTO indexes (id, coll, spec, build, position, ready, multikey) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (id_, coll, spec, build, b"" if kept is None else None, ready, multikey),
        )


def put_rows(disk: Disk, path: str, uuid: bytes, found: Differences, expected: Mapping[int, int | None]) -> None:
    """Write what differs into the new database. expected: the digests that the changed spans have then; None: no row.

    CorruptDataError: they are not alike even now.
    """
    with open_copy(disk, path) as connection:
        connection.pragma("journal_mode", "off")
        connection.pragma("synchronous", "off")
        coll = _collection(connection, uuid)
        with transaction(connection):
            indexes = load_indexes(connection, uuid)
            for place in found.gone:
                _remove(connection, coll, indexes, place)
            for row in found.rows:
                _put(connection, coll, indexes, row)
        for span, digest in expected.items():
            low = span << SPAN_BITS
            if read_spans(connection, uuid, low, low + (1 << SPAN_BITS) - 1).digests.get(span) != digest:
                raise CorruptDataError(
                    f"{path}: documents of {coll.ns} differ from the source's after they were copied"
                )


def _collection(connection: apsw.Connection, uuid: bytes) -> Collection:
    coll = load_collection(connection, uuid)
    if coll is None:
        raise CorruptDataError(f"no collection {uuid.hex()}")
    return coll


def _remove(connection: apsw.Connection, coll: Collection, indexes: tuple[Index, ...], place: int) -> None:
    row = first_row(connection, f"SELECT {KEY}, {DOC} FROM {coll.table} WHERE rowid = ?", (place,))
    if row is not None:
        write_entries(connection, indexes, row[0], row[1], None)
        connection.execute(f"DELETE FROM {coll.table} WHERE rowid = ?", (place,))


def _put(connection: apsw.Connection, coll: Collection, indexes: tuple[Index, ...], row: Row) -> None:
    _remove(connection, coll, indexes, row.place)
    other = first_row(connection, f"SELECT rowid FROM {coll.table} WHERE key = ?", (row.key,))
    if other is not None:  # the document has another place here, whose span is still to come
        _remove(connection, coll, indexes, other[0])
    write_entries(connection, indexes, row.key, None, row.doc)
    connection.execute(f"INSERT INTO {coll.table} (rowid, key, doc) VALUES (?, ?, ?)", row)


def end_build(disk: Disk, path: str, frame_path: str, pause: Callable[[], None]) -> None:
    """Fill the indexes that were not here, check that each document is found by its key, and call the database whole.

    An index that the source still builds is built here too, from its beginning, once this is the member's database.
    """
    with open_copy(disk, frame_path) as frame, open_copy(disk, path) as connection:
        connection.pragma("journal_mode", "off")
        connection.pragma("synchronous", "off")
        for (uuid,) in list(rows_of(connection, "SELECT DISTINCT coll FROM indexes WHERE ready AND position = x''")):
            with transaction(connection):
                _fill(connection, uuid, pause)
        with transaction(connection):  # their triggers counted, too
            connection.execute("DELETE FROM capped")
            _copy_rows(frame, connection, "capped")
        (found,) = first_row(connection, "PRAGMA integrity_check(1)")
        if found != "ok":
            raise CorruptDataError(f"{path} is damaged: {found}")
        with transaction(connection):
            write_meta(connection, OPLOG_ONLY, None)


def _fill(connection: apsw.Connection, uuid: bytes, pause: Callable[[], None]) -> None:
    sql = "UPDATE indexes SET position = NULL WHERE coll = ? AND ready AND position = x'' RETURNING id"
    begun = {id_ for (id_,) in list(rows_of(connection, sql, (uuid,)))}
    indexes = tuple(index for index in load_indexes(connection, uuid) if index.id in begun)
    rows = rows_of(connection, f"SELECT {KEY}, {DOC} FROM {collection_table(uuid)}")
    while batch := list(islice(rows, _READ_ROWS)):
        for key, doc in batch:
            write_entries(connection, indexes, key, None, doc)
        pause()
