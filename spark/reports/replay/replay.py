"""The documents of a namespace as they were at a point in time: from a base and the oplog, applied in the workers.

What the entries do is what a secondary does with them: an insert of what is there replaces it, an update or delete of
what is not there is left alone, so a base may hold later changes already. Each document's entries meet in one task, in
order, as a stream: a hot document needs no more memory than a cold one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from replset.bson import InvalidBSONError, RawDocument, encode
from replset.ejson import to_ejson
from replset.errors import ReplError
from replset.ids import OPTIME_NULL, OpTime
from replset.oplog_entry import COMMAND, DELETE, INSERT, UPDATE, OplogEntry
from replset.query.diff import is_diff
from replset.query.repeated import decode_whole
from spark.columns import arrow_schema, batch_from, ddl_of, repeated, schema_of, tuples_of
from spark.entry_bytes import EntryPrefixes
from spark.jobs import ROWS_PER_TASK
from spark.mongod_entries import Place, Places, apply_change, is_modifiers, is_part, places_of, without_operations
from spark.oplog import Bounds, EntryFilter, Oplog, OplogError, Span
from spark.readers.sqlite import SqliteOplog
from spark.reports.replay.base import Base, DbpathBase, Start
from spark.runners import SparkRunner

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BASE = "b"
_STEPS = schema_of("key ts n op data", key=pa.binary(), op=pa.string(), data=pa.binary())
_DOCUMENTS = schema_of("key id document", key=pa.binary(), id=pa.string(), document=pa.binary())
_ADMIN = "admin.$cmd"
_KEEPS_DOCUMENTS = frozenset(
    {
        "collMod",
        "createIndexes",
        "dropIndexes",
        "deleteIndexes",
        "startIndexBuild",
        "commitIndexBuild",
        "abortIndexBuild",
    }
)
_OUT_ROWS = 4_096
_OUT_BYTES = 4 << 20


def replay(
    spark: SparkSession,
    oplog: Oplog,
    ns: str,
    *,
    at: OpTime | None = None,
    base: Base | None = None,
    rows_per_task: int = ROWS_PER_TASK,
) -> DataFrame:
    """Rows (key, id, document) of the documents of `ns` as of `at`, the newest entry when None; by key.

    id: the `_id` as Extended JSON. document: BSON. Without a base the oplog must reach back to the collection's
    creation, or be a member's file, whose own documents then are the base as far as its undo reaches. A collection that
    did not exist at `at` has no rows. OplogError: the oplog, or the base, does not reach so far.
    """
    oplog, runner = oplog.pin(), SparkRunner.of(spark)
    bounds = oplog.bounds()
    until = _checked_point(oplog, bounds, at)
    begin = base.find(ns, until) if base is not None else None
    if begin is not None and base is not None:
        _check_joins(oplog, bounds, base, begin)
    commands, places = _commands(runner, oplog, ns, Span(0 if begin is None else begin.at.ts + 1, until.ts + 1))
    life = collection_at(commands, ns, begin, oplog.name)
    if life is None and begin is None and not any(names(command, ns) for command in commands):
        if isinstance(oplog, SqliteOplog):
            base = DbpathBase(oplog.name, oplog.path)
            begin = base.find(ns, until)
            life = CollectionStart(begin.uuid, begin.at.ts, True) if begin.exists else None
        elif not _is_whole(oplog, bounds):
            raise OplogError(oplog.name, f"the oplog begins at {bounds.oldest}, after {ns} was made: give a base")
    if life is None:
        return spark.createDataFrame(_DOCUMENTS.empty_table())
    steps = _entries(runner, oplog, ns, Span(life.after_ts + 1, until.ts + 1), rows_per_task, places)
    if life.from_base and base is not None and begin is not None and begin.parts:
        steps = _base_steps(runner, base, begin, ns, until).unionByName(steps)
    # All steps of a key in one partition, in order; then the few that are left, by key over all partitions.
    ordered = steps.repartition("key").sortWithinPartitions("key", "ts", "n")
    documents: DataFrame = ordered.mapInArrow(_folder(oplog.name, ns), ddl_of(_DOCUMENTS)).orderBy("key")
    return documents


def ejson_lines(documents: DataFrame, *, canonical: bool = False) -> Iterator[str]:
    """The documents of a replay as Extended JSON, one a line, by key; not collected."""
    for row in documents.select("document").toLocalIterator():
        yield to_ejson(RawDocument(bytes(row[0])).decode(), canonical)


def write_bson(documents: DataFrame, path: str | Path) -> int:
    """The documents of a replay as one .bson file, like mongodump's; how many. FileExistsError: `path` is there."""
    count = 0
    with Path(path).open("xb") as file:
        for row in documents.select("document").toLocalIterator():
            file.write(bytes(row[0]))
            count += 1
    return count


# --- pure ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CollectionStart:
    """The collection with the namespace. after_ts: its entries have later ones. from_base: it begins in the base."""

    uuid: bytes | None
    after_ts: int
    from_base: bool


class Step(NamedTuple):
    """One change of one document. n: its place in a transaction. data: the entry; with op `b` the document itself."""

    key: bytes
    ts: int
    n: int
    op: str
    data: bytes


def collection_at(commands: Iterable[OplogEntry], ns: str, base: Start | None, oplog: str) -> CollectionStart | None:
    """The collection of the name `ns` after these commands, in order; None when there is none.

    OplogError, with the name `oplog`, for a command that changes its documents and is not known here.
    """
    database, _, collection = ns.partition(".")
    life = CollectionStart(base.uuid, base.at.ts, True) if base is not None and base.exists else None
    for entry in commands:
        o = entry.o
        name = o.first_key
        if name == "renameCollection":
            if ns in (o.get("renameCollection"), o.get("to")):
                raise OplogError(oplog, f"{entry.optime} renames {ns}, which is not replayed")
        elif entry.database != database:
            continue
        elif name == "create" and o.get("create") == f"system.buckets.{collection}":
            bucket = f"{database}.system.buckets.{collection}"
            raise OplogError(oplog, f"{entry.optime} makes {ns} a time series, whose documents are in {bucket}")
        elif name == "create" and o.get("create") == collection:
            if life is None:
                # What the same transaction writes has the optime of the creation.
                life = CollectionStart(entry.ui, entry.optime.ts - entry.is_in_transaction, False)
            elif life.uuid is None:
                life = CollectionStart(entry.ui, life.after_ts, life.from_base)
        elif name == "drop" and o.get("drop") == collection:
            if life is not None and (life.uuid is None or life.uuid == entry.ui):
                life = None
        elif name == "dropDatabase":
            life = None
        elif o.get(name or "") == collection and name not in _KEEPS_DOCUMENTS:
            raise OplogError(oplog, f"{entry.optime} has the command {name!r} on {ns}, which is not replayed")
    return life


def names(entry: OplogEntry, ns: str) -> bool:
    """Whether a command makes or drops this very collection, so that what was before it does not matter."""
    database, _, collection = ns.partition(".")
    o = entry.o
    return entry.database == database and (
        o.first_key == "dropDatabase" or (o.first_key in ("create", "drop") and o.get(o.first_key) == collection)
    )


class DocumentFold:
    """The steps of many documents of one namespace, in order of key and ts, folded to what is left of each.

    Holds one document at a time, as its last change left it: bytes, or decoded, for the next difference.
    """

    def __init__(self, ns: str) -> None:
        self._ns = ns
        self._heads = EntryPrefixes()
        self._key: bytes | None = None
        self._document: bytes | dict[str, object] | None = None

    def take(self, steps: Iterable[Step]) -> Iterator[tuple[bytes, bytes]]:
        """(key, document) of the documents that these steps finish."""
        for key, _, _, op, data in steps:
            if key != self._key:
                yield from self.end()
                self._key = key
            if op == BASE:
                self._document = data
            elif op == DELETE:
                self._document = None
            elif op == INSERT:
                self._document = self._o_of(op, data)
            elif self._document is not None:
                self._update(data)

    def end(self) -> Iterator[tuple[bytes, bytes]]:
        """The last document, when it is there."""
        if self._key is not None and self._document is not None:
            found = self._document
            yield self._key, found if isinstance(found, bytes) else encode(found)
        self._key = self._document = None

    def _update(self, data: bytes) -> None:
        o = RawDocument(self._o_of(UPDATE, data))
        if not is_modifiers(o) and (o.type_of("$v") is None or not is_diff(o.decode())):
            self._document = o.raw
            return
        before = self._document
        self._document = apply_change(decode_whole(before) if isinstance(before, bytes) else before or {}, o.decode())

    def _o_of(self, op: str, data: bytes) -> bytes:
        """The entry's `o`."""
        at = self._heads.start_of_o(data, op, self._ns)
        if at:
            return data[at : at + int.from_bytes(data[at : at + 4], "little")]
        o = RawDocument(data).get_raw("o")
        if o is None:
            raise InvalidBSONError("no oplog entry: it needs the document o")
        return o


def steps_of(
    ns: str, rows: Iterable[tuple[bytes | None, int, str, bytes]], places: Places = MappingProxyType({})
) -> Iterator[Step]:
    """The changes of documents of `ns` in these rows: key, ts, op, entry. A transaction's are taken apart.

    places: when those of entries of transactions count.
    """
    for key, ts, op, entry in rows:
        if op != COMMAND:
            yield Step(key or b"", ts, 0, op, entry)
            continue
        place = places.get(ts, Place(ts, 0))
        if place is None:
            continue
        for n, operation in enumerate(OplogEntry(entry).operations, place.first):
            if operation.ns == ns and operation.op != COMMAND:
                yield Step(operation.key() or b"", place.ts, n, operation.op, operation.raw)


# --- in Spark --------------------------------------------------------------------------------------------------


def _checked_point(oplog: Oplog, bounds: Bounds, at: OpTime | None) -> OpTime:
    if bounds.newest == OPTIME_NULL:
        raise OplogError(oplog.name, "the oplog is empty")
    if at is None:
        return bounds.newest
    if at.ts > bounds.newest.ts:
        raise OplogError(oplog.name, f"the oplog ends at {bounds.newest}, before {at}")
    found = _optime_at(oplog, at.ts) if at.ts >= bounds.oldest.ts else None
    if found is not None and found != at:
        raise OplogError(oplog.name, f"{at} is not in its history: {found} is there")
    return at


def _optime_at(oplog: Oplog, ts: int) -> OpTime | None:
    for batch in oplog.read(Span(ts, ts + 1), ("ts", "term")):
        if batch.num_rows:
            return OpTime(batch.column(1)[0].as_py(), batch.column(0)[0].as_py())
    return None


def _check_joins(oplog: Oplog, bounds: Bounds, base: Base, begin: Start) -> None:
    """The oplog must go on where the base ends, and in the same history."""
    if begin.undone or begin.at == OPTIME_NULL:
        return
    whole = isinstance(oplog, SqliteOplog) and bounds.trimmed_through <= begin.at.ts
    if bounds.oldest.ts > begin.at.ts and not whole:
        raise OplogError(oplog.name, f"the oplog begins at {bounds.oldest}, after the base {base.name} at {begin.at}")
    if bounds.oldest.ts <= begin.at.ts and isinstance(base, DbpathBase) and _optime_at(oplog, begin.at.ts) != begin.at:
        raise OplogError(oplog.name, f"{begin.at}, where the base {base.name} is, is not in its history")


def _is_whole(oplog: Oplog, bounds: Bounds) -> bool:
    """Whether the oplog's oldest entry is the first that the set ever wrote."""
    for batch in oplog.read(Span(bounds.oldest.ts, bounds.oldest.ts + 1), ("entry",)):
        for entry in batch.column(0).to_pylist():
            return bool(OplogEntry(entry).o.get("msg") == "initiating set")
    return False


def _commands(runner: SparkRunner, oplog: Oplog, ns: str, span: Span) -> tuple[list[OplogEntry], Places]:
    """The commands on the database, in order: creations and drops, few beside the writes; those in transactions too.

    And where transactions of several entries count.
    """
    wanted = EntryFilter(ns=tuple(sorted({f"{ns.partition('.')[0]}.$cmd", _ADMIN})), op=(COMMAND,))
    columns = ("ts", "entry")
    found = runner.of_size(0, 0).read([oplog], columns, _with_commands, arrow_schema(columns), span=span, only=wanted)
    entries = [OplogEntry(entry) for _, entry in tuples_of(found)]
    places = places_of(filter(is_part, entries), oplog.name)
    counted = [entry for entry in entries if places.get(entry.optime.ts, entry) is not None]
    return [operation for entry in counted for operation in entry.operations if operation.op == COMMAND], places


def _with_commands(_member: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Leave out the transactions that only write documents: they may be many and large."""
    for batch in batches:
        kept: list[tuple[int, bytes]] = []
        for entry in map(OplogEntry, batch.column(1).to_pylist()):
            if any(operation.op == COMMAND for operation in entry.operations):
                kept.append((entry.optime.ts, entry.raw))
            elif is_part(entry):
                kept.append((entry.optime.ts, without_operations(entry)))
        yield batch_from(kept, batch.schema)


def _entries(runner: SparkRunner, oplog: Oplog, ns: str, span: Span, rows_per_task: int, places: Places) -> Any:
    wanted = EntryFilter(ns=(ns, _ADMIN), op=(INSERT, UPDATE, DELETE, COMMAND))
    columns = ("key", "ts", "op", "entry")

    def steps(_member: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if COMMAND in batch.column(2).to_pylist():
                rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
                yield batch_from(list(steps_of(ns, rows, places)), _STEPS)
            else:
                key, ts, op, entry = batch.columns
                yield pa.RecordBatch.from_arrays([key, ts, repeated(0, batch.num_rows), op, entry], schema=_STEPS)

    return runner.read([oplog], columns, steps, _STEPS, span=span, only=wanted, rows_per_task=rows_per_task)


def _base_steps(runner: SparkRunner, base: Base, begin: Start, ns: str, until: OpTime) -> DataFrame:
    def read(number: int) -> Iterator[pa.RecordBatch]:
        for found in base.read(begin, begin.parts[number], ns, until):
            rows = found.num_rows
            columns = [found.column(0), repeated(-1, rows), repeated(0, rows), repeated(BASE, rows), found.column(1)]
            yield pa.RecordBatch.from_arrays(columns, schema=_STEPS)

    return runner.numbers(len(begin.parts), read, _STEPS)


def _folder(name: str, ns: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Folds batches of steps, in order of key and ts, to batches of documents; OplogError in the name of `name`."""

    def folded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows: list[tuple[bytes, bytes]] = []
        size = 0
        try:
            for row in _finished(batches, ns):
                rows.append(row)
                size += len(row[1])
                if len(rows) >= _OUT_ROWS or size >= _OUT_BYTES:
                    yield _document_batch(rows)
                    rows, size = [], 0
            yield _document_batch(rows)
        except ReplError as error:
            raise OplogError(name, f"an entry cannot be applied: {error.message}") from error

    return folded


def _finished(batches: Iterator[pa.RecordBatch], ns: str) -> Iterator[tuple[bytes, bytes]]:
    folding = DocumentFold(ns)
    for batch in batches:
        columns = [column.to_pylist() for column in batch.columns]
        yield from folding.take(map(Step._make, zip(*columns, strict=True)))
    yield from folding.end()


def _document_batch(rows: Sequence[tuple[bytes, bytes]]) -> pa.RecordBatch:
    return batch_from([(key, to_ejson(RawDocument(raw).get("_id")), raw) for key, raw in rows], _DOCUMENTS)
