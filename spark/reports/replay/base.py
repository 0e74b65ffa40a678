"""What a replay starts from: the documents of one namespace as they were at an earlier optime.

A base reads them in Spark's workers, in several parts; a part is (key, document) in batches.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import pyarrow as pa
from adbc_driver_sqlite import dbapi

from replset.bson import RawDocument, encode_key
from replset.errors import BadValueError, ReplError
from replset.ids import OPTIME_NULL, OpTime
from spark.columns import batch_from, schema_of
from spark.oplog import OplogError
from spark.readers.sqlite import database_file, open_database

ROWS_PER_PART = 250_000
BYTES_PER_PART = 64 << 20
_BATCH_ROWS = 4_096
_BATCH_BYTES = 4 << 20
_KEY = "CAST(key AS BLOB)"
_DOCUMENT = "CASE typeof(doc) WHEN 'blob' THEN doc ELSE CAST('no blob: ' || ifnull(doc, '') AS BLOB) END"
"""Of a row that says that its document is no bytes, others: a disk has changed it, whatever the bytes are."""
SCHEMA = schema_of("key document", key=pa.binary(), document=pa.binary())
Part = tuple[int, int]
_WHOLE: Part = (0, -1)


@dataclass(frozen=True, slots=True)
class Start:
    """The documents of a base, found. at: as of which entry they are, or of later ones up to the point asked for.

    exists: whether there is a collection at all. uuid: the collection's, None where the base does not know it.
    parts: what `read` takes, one a task. undone: the documents are those of `at` although the base is newer.
    """

    at: OpTime
    exists: bool
    uuid: bytes | None = None
    parts: tuple[Part, ...] = ()
    undone: bool = False


class Base(Protocol):
    """Small and picklable. Both methods raise OplogError with the base's name in it."""

    @property
    def name(self) -> str: ...

    def find(self, ns: str, at: OpTime) -> Start:
        """The documents of `ns` as of `at` or earlier; of `at` exactly where the base is newer and can go back."""

    def read(self, start: Start, part: Part, ns: str, at: OpTime) -> Iterator[pa.RecordBatch]: ...


@dataclass(frozen=True, slots=True)
class EmptyBase:
    """The collection was there without documents before the oplog began. The caller knows it; nothing checks it."""

    name: str = "empty"

    def find(self, ns: str, at: OpTime) -> Start:
        return Start(OPTIME_NULL, True)

    def read(self, start: Start, part: Part, ns: str, at: OpTime) -> Iterator[pa.RecordBatch]:
        return iter(())


@dataclass(frozen=True, slots=True)
class BsonBase:
    """A collection as mongodump writes it: concatenated documents, gzipped when the name ends with .gz.

    at: as of which entry they are; later changes in them do no harm. OPTIME_NULL: as of before the oplog's first entry,
    as `mongodump --oplog` makes both.
    """

    name: str
    path: str
    at: OpTime = OPTIME_NULL

    def find(self, ns: str, at: OpTime) -> Start:
        if self.at.ts > at.ts:
            raise OplogError(self.name, f"its documents are as of {self.at}, later than {at}")
        try:
            with self._open() as file:
                parts = ((0, -1),) if self._is_gzip else tuple(bson_parts(file, BYTES_PER_PART))
        except (OSError, ReplError) as error:
            raise OplogError(self.name, error) from error
        return Start(self.at, True, parts=parts)

    def read(self, start: Start, part: Part, ns: str, at: OpTime) -> Iterator[pa.RecordBatch]:
        begin, end = part
        try:
            with self._open() as file:
                file.seek(begin)
                yield from _batches(_keyed(bson_documents(file, None if end < 0 else end - begin)))
        except (OSError, EOFError, ReplError) as error:
            raise OplogError(self.name, error) from error

    @property
    def _is_gzip(self) -> bool:
        return self.path.endswith(".gz")

    def _open(self) -> BinaryIO:
        return gzip.open(self.path) if self._is_gzip else open(self.path, "rb")  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class DbpathBase:
    """A member's database file, best a copy of it: its documents as of its newest entry.

    One that is newer than the point asked for goes back by its undo, where that reaches. A member that runs may move on
    while it is read, but not past the point asked for.
    """

    name: str
    path: str

    def find(self, ns: str, at: OpTime) -> Start:
        with open_database(self.name, self.path) as connection:
            _refuse_witness(self.name, connection)
            newest = _newest(connection)
            undone = newest.ts > at.ts
            if undone and (pruned := _pruned(connection)) > at.ts:
                raise OplogError(
                    self.name,
                    f"its documents are as of {newest}, and what was before {OpTime(at.term, pruned)} cannot be undone",
                )
            point = at.ts if undone else newest.ts
            uuid = _catalog_at(connection, point).get(ns)
            if uuid is None:
                return Start(at if undone else newest, False, undone=undone)
            if undone:
                return Start(at, True, uuid, (_WHOLE,), True)
            ((first, last),) = _rows(connection, f"SELECT min(rowid), max(rowid) FROM {_table(uuid)}")
            parts = () if first is None else tuple(_cuts(first, last + 1, ROWS_PER_PART))
            return Start(newest, True, uuid, parts)

    def collections(self, at: OpTime) -> dict[str, bytes]:
        """The uuids of the collections as of `at`, by name. OplogError: the undo does not reach back so far."""
        with open_database(self.name, self.path) as connection:
            _refuse_witness(self.name, connection)
            if (pruned := _pruned(connection)) > at.ts:
                raise OplogError(
                    self.name,
                    f"its documents cannot be taken back to {at}: what was before {OpTime(at.term, pruned)} cannot be"
                    " undone any more (--snapshot-history-secs of that member)",
                )
            return _catalog_at(connection, at.ts)

    def as_of(self, ns: str, uuid: bytes, at: OpTime) -> Iterator[pa.RecordBatch]:
        """The documents of one of the `collections` as of `at`, wherever the file is by now."""
        return self.read(Start(at, True, uuid, (_WHOLE,), True), _WHOLE, ns, at)

    def document(self, ns: str, key: bytes, at: OpTime) -> bytes | None:
        """One document as of `at`; None where there is none."""
        uuid = self.collections(at).get(ns)
        if uuid is None:
            return None
        with open_database(self.name, self.path) as connection:
            undone = "SELECT CAST(before AS BLOB) FROM undo WHERE coll = ? AND key = ? AND ts > ? AND kind = 'doc'"
            rows = _rows(connection, f"{undone} ORDER BY ts, seq LIMIT 1", (uuid, key, at.ts)) or _rows(
                connection, f"SELECT {_DOCUMENT} FROM {_table(uuid)} WHERE key = ?", (key,)
            )
            return None if not rows or rows[0][0] is None else bytes(rows[0][0])

    def read(self, start: Start, part: Part, ns: str, at: OpTime) -> Iterator[pa.RecordBatch]:
        table = _table(start.uuid or b"")
        with open_database(self.name, self.path) as connection:
            if start.undone:
                # One statement sees one state of the file: a document changed since `at` is as it was before that.
                sql = (
                    "WITH later AS (SELECT key, CAST(before AS BLOB) AS before, min(ts) FROM undo "
                    "WHERE coll = ? AND ts > ? AND kind = 'doc' GROUP BY key) "
                    f"SELECT {_KEY} AS key, {_DOCUMENT} AS document FROM {table}"
                    " WHERE key NOT IN (SELECT key FROM later) "
                    "UNION ALL SELECT key, before FROM later WHERE before IS NOT NULL"
                )
                yield from _stream(connection, sql, (start.uuid, at.ts))
                if (pruned := _pruned(connection)) > at.ts:
                    raise OplogError(
                        self.name, f"its undo up to {OpTime(at.term, pruned)} was pruned while it was read"
                    )
                return
            sql = f"SELECT {_KEY} AS key, {_DOCUMENT} AS document FROM {table} WHERE rowid >= ? AND rowid < ?"
            yield from _stream(connection, sql, part)
            if (newest := _newest(connection)).ts > at.ts:
                raise OplogError(self.name, f"the member moved on to {newest}, past {at}: take a copy of it")


def open_base(text: str) -> Base:
    """`empty`, a dbpath, its database file, or FILE.bson[.gz][@OPTIME]. BadValueError: it is none of them."""
    if text == "empty":
        return EmptyBase()
    path, at_sign, optime = text.rpartition("@") if not Path(text).exists() else (text, "", "")
    if not at_sign:
        path = text
    try:
        at = OpTime.parse(optime) if at_sign else OPTIME_NULL
    except ValueError as error:
        raise BadValueError(f"base {text}: {error}") from None
    if path.endswith((".bson", ".bson.gz")):
        if not Path(path).is_file():
            raise BadValueError(f"base {path} does not exist")
        return BsonBase(path, str(Path(path).absolute()), at)
    file = database_file(path)
    if file is None:
        raise BadValueError(f"base {path} is neither a member's files nor a collection's .bson")
    if at_sign:
        raise BadValueError(f"base {path}: a member's files know their optime themselves")
    return DbpathBase(path, str(file.absolute()))


# --- pure ------------------------------------------------------------------------------------------------------


def bson_documents(file: BinaryIO, size: int | None) -> Iterator[bytes]:
    """The documents in the next `size` bytes of a file, None for all of them. BadValueError for one that is cut off."""
    left = size
    while left is None or left > 0:
        head = file.read(4)
        if not head and left is None:
            return
        length = int.from_bytes(head, "little", signed=True)
        body = file.read(length - 4) if length >= 5 and len(head) == 4 else b""
        if len(body) != length - 4:
            raise BadValueError(f"a document of {length} bytes is cut off")
        yield head + body
        if left is not None:
            left -= length


def bson_parts(file: BinaryIO, size: int) -> Iterator[Part]:
    """(begin, end) of parts of about `size` bytes that end where a document ends; only the lengths are read."""
    begin = at = 0
    while head := file.read(4):
        length = int.from_bytes(head, "little", signed=True)
        if length < 5 or len(head) < 4:
            raise BadValueError(f"no document at byte {at}")
        at += length
        file.seek(at)
        if at - begin >= size:
            yield begin, at
            begin = at
    if at > begin:
        yield begin, at


def _keyed(documents: Iterator[bytes]) -> Iterator[tuple[bytes, bytes]]:
    for document in documents:
        view = RawDocument(document)
        if "_id" not in view:
            raise BadValueError("a document without _id")
        yield encode_key(view.get("_id")), document


def _batches(rows: Iterator[tuple[bytes, bytes]]) -> Iterator[pa.RecordBatch]:
    some: list[tuple[bytes, bytes]] = []
    size = 0
    for row in rows:
        some.append(row)
        size += len(row[1])
        if len(some) >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield batch_from(some, SCHEMA)
            some, size = [], 0
    yield batch_from(some, SCHEMA)


def _cuts(first: int, end: int, step: int) -> Iterator[Part]:
    for begin in range(first, end, step):
        yield begin, min(begin + step, end)


def _stream(connection: dbapi.Connection, sql: str, values: tuple[object, ...]) -> Iterator[pa.RecordBatch]:
    with connection.cursor() as cursor:
        cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": _BATCH_ROWS})
        cursor.execute(sql, values)
        for batch in cursor.fetch_record_batch():
            if batch.num_rows:
                yield pa.RecordBatch.from_arrays([a.cast(pa.binary()) for a in batch.columns], schema=SCHEMA)


def _catalog_at(connection: dbapi.Connection, ts: int) -> dict[str, bytes]:
    """The uuids of the collections at `ts`, by the names that they had then."""
    names = {
        bytes(uuid): str(ns)
        for uuid, ns in _rows(
            connection,
            "SELECT uuid, ns FROM catalog WHERE created_ts <= ? AND (dropped_ts IS NULL OR dropped_ts > ?)",
            (ts, ts),
        )
    }
    renames = "SELECT coll, before FROM undo WHERE kind = 'rename' AND ts > ? ORDER BY ts DESC, seq DESC"
    for uuid, before in _rows(connection, renames, (ts,)):
        if bytes(uuid) in names:
            names[bytes(uuid)] = str(RawDocument(bytes(before)).get("ns"))
    return {ns: uuid for uuid, ns in names.items()}


def _rows(connection: dbapi.Connection, sql: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows


def _newest(connection: dbapi.Connection) -> OpTime:
    rows = _rows(connection, "SELECT term, ts FROM oplog ORDER BY ts DESC LIMIT 1")
    return OpTime(*rows[0]) if rows else OPTIME_NULL


def _refuse_witness(name: str, connection: dbapi.Connection) -> None:
    """Raise OplogError for the database of a witness: without documents it would look like a set that lost them all."""
    if _rows(connection, "SELECT 1 FROM meta WHERE name = 'oplog_only'"):
        raise OplogError(name, "it is a witness's: it has the oplog, and no documents")


def _pruned(connection: dbapi.Connection) -> int:
    """The ts up to which what was before can no longer be undone."""
    rows = _rows(connection, "SELECT CAST(value AS INTEGER) FROM meta WHERE name = 'pruned_through'")
    return int(rows[0][0] or 0) if rows else 0


def _table(uuid: bytes) -> str:
    return f"d_{uuid.hex()}"
