"""What members' oplogs hold: by namespace, operation, term and minute, sizes, hot documents, what updates cost.

Two passes. The first makes of a worker's part the rows of all tables but one, and those of one key are summed up. The
second, for hot documents, makes one row of numbers of every document of a part, so that a document with a million
entries there is one row as well; rows of one document come to one worker, which passes on the hottest of its documents
alone. As many entries make as many such workers, so that each has its share whatever the oplogs' length. That pass is
left out with `top` 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_64_intdigest

from replset.bson import InvalidBSONError
from replset.oplog_entry import UPDATE
from spark.columns import repeated, sorted_by
from spark.entry_bytes import EntryPrefixes, diff_size, id_text
from spark.jobs import ROWS_PER_TASK, pinned
from spark.oplog import ALL, EVERYTHING, EntryFilter, Oplog, Span
from spark.runners import Runner, SparkRunner, frames, table_of_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Numbers = npt.NDArray[np.int64]
Table = TypeVar("Table")
TOP = 20
MINUTE_MS = 60_000
"""Namespaces that a chart shows by themselves."""
_TEXTS = ("table", "member", "ns", "op", "id")
_SUMS = ("entries", "bytes")
_LEAST = ("first_wall", "first_ts")
_MOST = ("last_wall", "last_ts")
_MEASURES = (*_SUMS, "first_wall", "last_wall", "first_ts", "last_ts")
_UPDATE_SUMS = (*_SUMS, "replacements", "diffs", "diff_entry_bytes", "diff_bytes")
_RATIOS = {
    "replaced_share": ("replacements", "updates"),
    "bytes_per_update": ("bytes", "updates"),
    "amplification": ("diff_entry_bytes", "diff_bytes"),
}
_KEYS = {
    "members": ("member",),
    "namespaces": ("member", "ns"),
    "operations": ("member", "op"),
    "terms": ("member", "term"),
    "minutes": ("member", "minute"),
    "sizes": ("member", "at_most"),
    "updates": ("member", "ns"),
}
"""Of each table that is a sum over entries."""
_GROUP_KEYS = ("member", "ns", "op", "term", "minute", "at_most")
_GROUP_COLUMNS = (*_GROUP_KEYS, *_UPDATE_SUMS, *_LEAST, *_MOST)
_SUM_KEYS = ("table", *_GROUP_KEYS)
"""Of a row of any of these tables; what is no key of its table is null."""
_SUM_COLUMNS = ("table", *_GROUP_COLUMNS)
_DOCUMENT_KEYS = ("member", "document")
_DOCUMENT_COLUMNS = (*_DOCUMENT_KEYS, *_MEASURES)
_RANKED_COLUMNS = ("member", "rank", "document", *_MEASURES)
_HOT_COLUMNS = ("member", "rank", "ns", "key", *_MEASURES, "id")
_HOTTEST_FIRST = tuple((name, "descending") for name in ("entries", "bytes", "last_ts", "document"))
_MERGE_ROWS = 100_000
ROWS_PER_FOLD = 1_000_000
"""Entries whose documents one worker folds; it takes some 200 MiB when each is about another document."""


@dataclass(frozen=True, slots=True)
class Summary(Generic[Table]):
    """The tables, each sorted by the columns in brackets. `Table`: a DataFrame, or a pyarrow Table (local engine).

    members (member), namespaces (member, ns), operations (member, op), terms (member, term), minutes (member, minute):
    entries, bytes of the entries, first_wall and last_wall in milliseconds, per_second: entries over the time between
    those two, at least a second; first_ts and last_ts. minute: its beginning, in milliseconds. An entry without a wall
    counts at the seconds of its ts. A member without entries has no row.
    sizes (member, at_most): entries and bytes of those of more than at_most / 2 and at most at_most bytes.
    hot (member, rank): the documents with most entries, of equal ones those with more bytes, of those again the ones
    changed last: ns, key, entries, bytes, first_wall, last_wall, first_ts, last_ts, and id: the `_id` in Extended JSON
    as the newest entry has it, null where that entry cannot be read. Documents are distinguished by 64 bits of a hash.
    updates (member, ns): what updates cost in the oplog: their number, entries' bytes and bytes_per_update; how many
    are replacements (whole documents; replaced_share) and how many diffs (`$v: 2`); of the diffs the bytes of their
    entries (diff_entry_bytes) and of the field `diff` in them (diff_bytes: what is set, its names, and BSON's own), and
    amplification: the first over the second. 3.0 means that two thirds of such entries are not what they change. How
    large the changed documents are, an oplog does not show. Ratios are null where there is nothing to divide by.
    """

    members: Table
    namespaces: Table
    operations: Table
    terms: Table
    minutes: Table
    sizes: Table
    hot: Table
    updates: Table


def summary(spark: SparkSession, oplogs: Sequence[Oplog], **how: Any) -> Summary[DataFrame]:
    """The tables as DataFrames. how: as in `summary_of`."""
    found: Summary[Any] = frames(spark, summary_of(SparkRunner.of(spark), oplogs, **how))
    return found


def summary_of(
    runner: Runner,
    oplogs: Sequence[Oplog],
    *,
    span: Span = EVERYTHING,
    only: EntryFilter = ALL,
    top: int = TOP,
    rows_per_task: int = ROWS_PER_TASK,
) -> Summary[pa.Table]:
    """The tables. top: hot documents a member."""
    oplogs = pinned(oplogs)
    entries = sum(oplog.count(span) for oplog in oplogs)
    runner = runner.of_size(entries, ROWS_PER_FOLD)
    read = partial(runner.read, span=span, only=only, rows_per_task=rows_per_task)
    tasks = runner.tasks(entries, ROWS_PER_FOLD)

    rows = read(oplogs, _READ_FOR_GROUPS, sums_in, arrow_types(_SUM_COLUMNS))
    together = runner.grouped(rows, _SUM_KEYS, tasks=tasks)
    sums = table_of_rows(runner.run(together, added_up, arrow_types(_SUM_COLUMNS)))
    found = {name: sorted_by(sums.filter(pc.field("table") == name), *keys) for name, keys in _KEYS.items()}
    updates = found.pop("updates").rename_columns({"entries": "updates"})
    for name, (above, below) in _RATIOS.items():
        divisor = pc.if_else(pc.greater(updates[below], 0), updates[below], None).cast(pa.float64())
        updates = updates.append_column(name, pc.divide(updates[above].cast(pa.float64()), divisor))
    sizes = found.pop("sizes").select([*_KEYS["sizes"], *_SUMS])

    rows = read(oplogs if top > 0 else [], _READ_FOR_DOCUMENTS, documents_in, arrow_types(_DOCUMENT_COLUMNS))
    together = runner.grouped(rows, ("document",), tasks=tasks)
    hottest = table_of_rows(runner.run(together, partial(hottest_in, top=top), arrow_types(_RANKED_COLUMNS)))
    return Summary(
        **{name: _with_rate(table, _KEYS[name]) for name, table in found.items()},
        sizes=sizes,
        hot=pa.Table.from_batches(shown_in(hottest.to_batches(), oplogs, top), arrow_types(_HOT_COLUMNS)),
        updates=updates.select([*_KEYS["updates"], "updates", *_UPDATE_SUMS[1:], *_RATIOS]),
    )


def _with_rate(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    seconds = pc.divide(pc.subtract(rows["last_wall"], rows["first_wall"]).cast(pa.float64()), 1000.0)
    rate = pc.divide(rows["entries"].cast(pa.float64()), pc.max_element_wise(seconds, 1.0))
    return rows.append_column("per_second", rate).select([*keys, *_MEASURES[:4], "per_second", *_MEASURES[4:]])


# --- in the worker ---------------------------------------------------------------------------------------------

_READ_FOR_GROUPS = ("ts", "term", "op", "ns", "wall", "entry")
_READ_FOR_DOCUMENTS = ("ts", "ns", "key", "wall", "entry")


def sums_in(member: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The first pass over one part: the rows of the tables of _KEYS."""
    heads = EntryPrefixes()
    rows = (_group_rows(member, batch, heads) for batch in batches if batch.num_rows)
    groups = _folded(rows, _GROUP_COLUMNS, _GROUP_KEYS, _UPDATE_SUMS)
    schema = arrow_types(_SUM_COLUMNS)
    for table, keys in _KEYS.items():
        some = groups.filter(pc.field("op") == UPDATE) if table == "updates" else groups
        measured = _measured(some, keys, _UPDATE_SUMS)
        given = {name: measured[name] for name in measured.column_names} | {"table": repeated(table, len(measured))}
        columns = [given.get(field.name, pa.nulls(len(measured), field.type)) for field in schema]
        yield from pa.table(columns, schema).to_batches()


def added_up(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One row of each key of each table, from all that parts have of some keys."""
    yield from _folded(batches, _SUM_COLUMNS, _SUM_KEYS, _UPDATE_SUMS).to_batches()


def documents_in(member: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The second pass over one part: a row of each document. Entries about no document are left out."""
    rows = (_document_rows(batch) for batch in batches if batch.num_rows)
    for batch in _folded(rows, _DOCUMENT_COLUMNS[1:], _DOCUMENT_KEYS[1:], _SUMS).to_batches():
        yield pa.RecordBatch.from_arrays(
            [repeated(member, batch.num_rows), *batch.columns], schema=arrow_types(_DOCUMENT_COLUMNS)
        )


def hottest_in(batches: Iterable[pa.RecordBatch], top: int) -> Iterator[pa.RecordBatch]:
    """The `top` hottest of each member, ranked, from all rows of some documents."""
    documents = _folded(batches, _DOCUMENT_COLUMNS, _DOCUMENT_KEYS, _SUMS)
    for name in sorted(documents["member"].unique().to_pylist()):
        of_member = documents.filter(pc.field("member") == name)
        hottest = of_member.take(pc.select_k_unstable(of_member, top, _HOTTEST_FIRST))
        ranks = pa.array(range(1, hottest.num_rows + 1), pa.int64())
        yield from hottest.append_column("rank", ranks).select(_RANKED_COLUMNS).combine_chunks().to_batches()


def shown_in(batches: Iterable[pa.RecordBatch], oplogs: Sequence[Oplog], top: int) -> Iterator[pa.RecordBatch]:
    """The hottest among all of those, with ns, key and id, from each one's newest entry."""
    by_name = {oplog.name: oplog for oplog in oplogs}
    for batch in hottest_in((batch.drop_columns("rank") for batch in batches), top):
        rows = zip(*(batch.column(name).to_pylist() for name in ("member", "document", "last_ts")), strict=True)
        named = [_named(by_name[member], document, ts) for member, document, ts in rows]
        columns = dict(zip(("ns", "key", "id"), zip(*named, strict=True), strict=True))
        yield pa.RecordBatch.from_pydict(
            {**dict(zip(batch.schema.names, batch.columns, strict=True)), **columns}, arrow_types(_HOT_COLUMNS)
        )


def _named(oplog: Oplog, document: int, ts: int) -> tuple[str | None, bytes | None, str | None]:
    for batch in oplog.read(Span(ts, ts + 1), ("ns", "key", "entry")):
        batch = _about_documents(batch)
        for of, row in zip(_documents_of(batch).tolist(), batch.to_pylist(), strict=True):
            if of == document:
                return row["ns"], row["key"], id_text(row["entry"])
    return None, None, None


def _about_documents(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pc.is_valid(batch.column("key")))


def _documents_of(batch: pa.RecordBatch) -> Numbers:
    """Of each row a hash of namespace and key. No key may be null."""
    namespaces = batch.column("ns").dictionary_encode()
    seeds = [xxh3_64_intdigest(ns.encode()) for ns in namespaces.dictionary.to_pylist()]
    taken = map(seeds.__getitem__, namespaces.indices.to_pylist())
    digests = map(xxh3_64_intdigest, batch.column("key").to_pylist(), taken)
    return np.fromiter(digests, np.uint64, batch.num_rows).view(np.int64)


def _diff_sizes(batch: pa.RecordBatch, heads: EntryPrefixes) -> Iterator[tuple[int, int | None]]:
    """Of each update that can be read its row, and the bytes of its difference, None of a replacement."""
    rows = pc.indices_nonzero(pc.equal(batch.column("op"), UPDATE))
    taken = [batch.column(name).take(rows).to_pylist() for name in ("ns", "entry")]
    for row, ns, entry in zip(rows.to_pylist(), *taken, strict=True):
        try:
            yield row, diff_size(entry, heads.start_of_o(entry, UPDATE, ns))
        except InvalidBSONError:
            continue


def _group_rows(member: str, batch: pa.RecordBatch, heads: EntryPrefixes) -> pa.Table:
    """A row of each entry."""
    size, wall = _sizes_and_walls(batch)
    replacements, diffs, entry_bytes, diff_bytes = (np.zeros(batch.num_rows, np.int64) for _ in range(4))
    for row, found in _diff_sizes(batch, heads):
        if found is None:
            replacements[row] = 1
        else:
            diffs[row], entry_bytes[row], diff_bytes[row] = 1, size[row], found
    columns = {
        "member": repeated(member, batch.num_rows),
        "ns": batch.column("ns"),
        "op": batch.column("op"),
        "term": batch.column("term"),
        "minute": wall // MINUTE_MS * MINUTE_MS,
        "at_most": 1 << np.ceil(np.log2(np.maximum(size, 1))).astype(np.int64),
        **_measures(batch, size, wall),
        "replacements": replacements,
        "diffs": diffs,
        "diff_entry_bytes": entry_bytes,
        "diff_bytes": diff_bytes,
    }
    return pa.table(columns)


def _document_rows(batch: pa.RecordBatch) -> pa.Table:
    """A row of each entry about a document."""
    batch = _about_documents(batch)
    return pa.table({"document": _documents_of(batch), **_measures(batch, *_sizes_and_walls(batch))})


def _sizes_and_walls(batch: pa.RecordBatch) -> tuple[Numbers, Numbers]:
    """Bytes of each entry, and when it was written."""
    size = np.asarray(pc.binary_length(batch.column("entry"))).astype(np.int64)
    ts, wall = np.asarray(batch.column("ts")), np.asarray(batch.column("wall"))
    return size, np.where(wall > 0, wall, (ts >> 31) * 1000)


def _measures(batch: pa.RecordBatch, size: Numbers, wall: Numbers) -> dict[str, Numbers | pa.Array]:
    ts = batch.column("ts")
    return {
        "entries": np.ones(batch.num_rows, np.int64),
        "bytes": size,
        "first_wall": wall,
        "first_ts": ts,
        "last_wall": wall,
        "last_ts": ts,
    }


# --- tables ----------------------------------------------------------------------------------------------------


def _measured(rows: pa.Table, keys: Sequence[str], sums: Sequence[str]) -> pa.Table:
    """One row a key."""
    how = [
        *((name, "sum") for name in sums),
        *((name, "min") for name in _LEAST),
        *((name, "max") for name in _MOST),
    ]
    return (
        rows.group_by(list(keys), use_threads=False).aggregate(how).rename_columns([*keys, *(name for name, _ in how)])
    )


def _folded(
    parts: Iterable[pa.Table | pa.RecordBatch],
    columns: Sequence[str],
    keys: Sequence[str],
    sums: Sequence[str],
) -> pa.Table:
    """The parts as one table with one row a key, folded whenever they have grown by as much as is kept."""
    schema = arrow_types(columns)
    kept = schema.empty_table()
    waiting: list[pa.Table] = []
    rows = 0
    for part in parts:
        table = part if isinstance(part, pa.Table) else pa.Table.from_batches([part])
        waiting.append(table.select(columns).cast(schema))
        rows += table.num_rows
        if rows >= max(_MERGE_ROWS, kept.num_rows):
            kept = _measured(pa.concat_tables([kept, *waiting]), keys, sums).select(columns)
            waiting, rows = [], 0
    return _measured(pa.concat_tables([kept, *waiting]), keys, sums).select(columns)


def arrow_types(columns: Sequence[str]) -> pa.Schema:
    """Of these columns of the passes: names are text, `key` is binary, the others are 64-bit numbers."""
    kinds = {**dict.fromkeys(_TEXTS, pa.string()), "key": pa.binary()}
    return pa.schema([(name, kinds.get(name, pa.int64())) for name in columns])
