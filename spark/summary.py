"""What members' oplogs hold: by namespace, operation, term and minute, sizes, hot documents, what updates cost.

Two passes. The first makes one row of every (namespace, operation, term, minute, size class) of a worker's part, and
all tables but one are sums over those. The second, for hot documents, makes one row of every document of a part, so
that a document with a million entries there is one row as well; it is left out with `top` 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from replset.bson import InvalidBSONError
from replset.oplog_entry import UPDATE
from spark.entries import Heads, diff_size, id_text
from spark.jobs import ROWS_PER_TASK, map_spans, pinned
from spark.local_jobs import run_spans
from spark.places import ALL, EVERYTHING, Only, Place, Span

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Numbers = npt.NDArray[np.int64]
Table = TypeVar("Table")
TOP = 20
MINUTE_MS = 60_000
_TEXTS = ("member", "ns", "op", "id")
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
_GROUP_KEYS = ("member", "ns", "op", "term", "minute", "at_most")
_GROUP_COLUMNS = (*_GROUP_KEYS, *_UPDATE_SUMS, *_LEAST, *_MOST)
_DOCUMENT_KEYS = ("member", "ns", "key")
_DOCUMENT_COLUMNS = (*_DOCUMENT_KEYS, *_MEASURES)
_HOT_COLUMNS = ("member", "rank", "ns", "key", *_MEASURES)
_MERGE_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class Summary(Generic[Table]):
    """The tables, each sorted by the columns in brackets. `Table`: a DataFrame, or a pyarrow Table (local engine).

    members (member), namespaces (member, ns), operations (member, op), terms (member, term), minutes (member, minute):
    entries, bytes of the entries, first_wall and last_wall in milliseconds, per_second: entries over the time between
    those two, at least a second; first_ts and last_ts. minute: its beginning, in milliseconds. An entry without a wall
    counts at the seconds of its ts. A member without entries has no row.
    sizes (member, at_most): entries and bytes of those of more than at_most / 2 and at most at_most bytes.
    hot (member, rank): the documents with most entries, of equal ones those with more bytes, then by ns and key: ns,
    key, entries, bytes, first_wall, last_wall, first_ts, last_ts, and id: the `_id` in Extended JSON as the newest
    entry has it, null where that entry cannot be read.
    updates (member, ns): what updates cost in the oplog: their number, entries' bytes and bytes_per_update; how many
    are replacements (whole documents; replaced_share) and how many diffs (`$v: 2`); of the diffs the bytes of their
    entries (diff_entry_bytes) and of the field `diff` in them (diff_bytes: what is set, its names, and BSON's own), and
    amplification: the first over the second. 3.0 says that two thirds of such entries are not what they change. How
    large the changed documents are, an oplog does not tell. Ratios are null where there is nothing to divide by.
    """

    members: Table
    namespaces: Table
    operations: Table
    terms: Table
    minutes: Table
    sizes: Table
    hot: Table
    updates: Table


def summary(
    spark: SparkSession,
    places: Sequence[Place],
    *,
    span: Span = EVERYTHING,
    only: Only = ALL,
    top: int = TOP,
    rows_per_task: int = ROWS_PER_TASK,
) -> Summary[DataFrame]:
    """The tables as DataFrames, computed when they are asked for, the first pass once. top: hot documents a member."""
    from pyspark.sql import functions as F
    from pyspark.sql.window import Window

    places = pinned(places)
    run = partial(map_spans, spark, span=span, only=only, rows_per_task=rows_per_task)

    def measured(rows: DataFrame, keys: Sequence[str], sums: Sequence[str] = _SUMS) -> DataFrame:
        return rows.groupBy(*keys).agg(
            *(F.sum(name).alias(name) for name in sums),
            *(F.min(name).alias(name) for name in _LEAST),
            *(F.max(name).alias(name) for name in _MOST),
        )

    def by(*names: str) -> DataFrame:
        keys = ("member", *names)
        seconds = (F.col("last_wall") - F.col("first_wall")) / 1000.0
        rate = (F.col("entries") / F.greatest(F.lit(1.0), seconds)).alias("per_second")
        return measured(groups, keys).select(*keys, *_MEASURES[:4], rate, *_MEASURES[4:]).orderBy(*keys)

    groups = run(places, _READ_FOR_GROUPS, groups_in, _ddl(_GROUP_COLUMNS)).persist()
    updates = measured(groups.where(F.col("op") == UPDATE), ("member", "ns"), _UPDATE_SUMS)
    updates = updates.withColumnRenamed("entries", "updates")
    ratios = [
        F.when(F.col(below) > 0, F.col(above) / F.col(below)).alias(name) for name, (above, below) in _RATIOS.items()
    ]
    sizes = measured(groups, ("member", "at_most")).select("member", "at_most", *_SUMS)
    documents = run(places if top > 0 else [], _READ_FOR_DOCUMENTS, documents_in, _ddl(_DOCUMENT_COLUMNS))
    hottest = Window.partitionBy("member").orderBy(F.desc("entries"), F.desc("bytes"), "ns", "key")
    ranked = measured(documents, _DOCUMENT_KEYS).withColumn("rank", F.row_number().over(hottest).cast("bigint"))
    hot = ranked.where(F.col("rank") <= top).select(*_HOT_COLUMNS)

    def shown(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return (with_ids(batch, places) for batch in batches)

    return Summary(
        by(),
        by("ns"),
        by("op"),
        by("term"),
        by("minute"),
        sizes.orderBy("member", "at_most"),
        hot.mapInArrow(shown, _ddl((*_HOT_COLUMNS, "id"))).orderBy("member", "rank"),
        updates.select("member", "ns", "updates", *_UPDATE_SUMS[1:], *ratios).orderBy("member", "ns"),
    )


def local_summary(
    places: Sequence[Place],
    *,
    span: Span = EVERYTHING,
    only: Only = ALL,
    top: int = TOP,
    rows_per_task: int = ROWS_PER_TASK,
) -> Summary[pa.Table]:
    """The same in this process."""
    places = pinned(places)
    run = partial(run_spans, span=span, only=only, rows_per_task=rows_per_task)

    def by(*names: str) -> pa.Table:
        keys = ("member", *names)
        rows = _sorted(_measured(groups, keys), keys)
        seconds = pc.divide(pc.subtract(rows["last_wall"], rows["first_wall"]).cast(pa.float64()), 1000.0)
        rate = pc.divide(rows["entries"].cast(pa.float64()), pc.max_element_wise(seconds, 1.0))
        return rows.append_column("per_second", rate).select([*keys, *_MEASURES[:4], "per_second", *_MEASURES[4:]])

    parts = run(places, _READ_FOR_GROUPS, groups_in)
    groups = _folded(parts, _GROUP_COLUMNS, _GROUP_KEYS, _UPDATE_SUMS)
    updates = _measured(groups.filter(pc.field("op") == UPDATE), ("member", "ns"), _UPDATE_SUMS)
    updates = updates.rename_columns({"entries": "updates"})
    for name, (above, below) in _RATIOS.items():
        divisor = pc.if_else(pc.greater(updates[below], 0), updates[below], None).cast(pa.float64())
        updates = updates.append_column(name, pc.divide(updates[above].cast(pa.float64()), divisor))
    sizes = _measured(groups, ("member", "at_most")).select(["member", "at_most", *_SUMS])
    parts = run(places if top > 0 else [], _READ_FOR_DOCUMENTS, documents_in)
    return Summary(
        by(),
        by("ns"),
        by("op"),
        by("term"),
        by("minute"),
        _sorted(sizes, ("member", "at_most")),
        _hottest(_folded(parts, _DOCUMENT_COLUMNS, _DOCUMENT_KEYS, _SUMS), places, top),
        _sorted(updates, ("member", "ns")).select(["member", "ns", "updates", *_UPDATE_SUMS[1:], *_RATIOS]),
    )


# --- in the worker ---------------------------------------------------------------------------------------------

_READ_FOR_GROUPS = ("ts", "term", "op", "ns", "wall", "entry")
_READ_FOR_DOCUMENTS = ("ts", "ns", "key", "wall", "entry")


def groups_in(member: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The first pass over one part: a row of each group, of one group several where there are very many."""
    heads = Heads()
    rows = (_group_rows(member, batch, heads) for batch in batches if batch.num_rows)
    yield from _folded(rows, _GROUP_COLUMNS, _GROUP_KEYS, _UPDATE_SUMS, limit=_MERGE_ROWS).to_batches()


def documents_in(member: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The second pass over one part: a row of each document. Entries about no document are left out."""
    rows = (_document_rows(member, batch) for batch in batches if batch.num_rows)
    yield from _folded(rows, _DOCUMENT_COLUMNS, _DOCUMENT_KEYS, _SUMS).to_batches()


def with_ids(batch: pa.RecordBatch, places: Sequence[Place]) -> pa.RecordBatch:
    """Rows of hot documents with the column `id`, from each one's newest entry."""
    by_name = {place.name: place for place in places}
    rows = zip(*(batch.column(name).to_pylist() for name in ("member", "key", "last_ts")), strict=True)
    ids = [_id_of(by_name[member], key, ts) for member, key, ts in rows]
    return batch.append_column("id", pa.array(ids, pa.string()))


def _id_of(place: Place, key: bytes, ts: int) -> str | None:
    for batch in place.read(Span(ts, ts + 1), ("key", "entry")):
        for of, entry in zip(batch.column("key").to_pylist(), batch.column("entry").to_pylist(), strict=True):
            if of == key:
                return id_text(entry)
    return None


def _diff_sizes(batch: pa.RecordBatch, heads: Heads) -> Iterator[tuple[int, int | None]]:
    """Of each update that can be read its row, and the bytes of its difference, None of a replacement."""
    rows = pc.indices_nonzero(pc.equal(batch.column("op"), UPDATE))
    taken = [batch.column(name).take(rows).to_pylist() for name in ("ns", "entry")]
    for row, ns, entry in zip(rows.to_pylist(), *taken, strict=True):
        try:
            yield row, diff_size(entry, heads.begin_of_o(entry, UPDATE, ns))
        except InvalidBSONError:
            continue


def _group_rows(member: str, batch: pa.RecordBatch, heads: Heads) -> pa.Table:
    """A row of each entry."""
    size, wall = _sizes_and_walls(batch)
    replacements, diffs, entry_bytes, diff_bytes = (np.zeros(batch.num_rows, np.int64) for _ in range(4))
    for row, found in _diff_sizes(batch, heads):
        if found is None:
            replacements[row] = 1
        else:
            diffs[row], entry_bytes[row], diff_bytes[row] = 1, size[row], found
    columns = {
        "member": _repeated(member, batch.num_rows),
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


def _document_rows(member: str, batch: pa.RecordBatch) -> pa.Table:
    """A row of each entry about a document."""
    size, wall = _sizes_and_walls(batch)
    columns = {
        "member": _repeated(member, batch.num_rows),
        "ns": batch.column("ns"),
        "key": batch.column("key"),
        **_measures(batch, size, wall),
    }
    return pa.table(columns).filter(pc.is_valid(batch.column("key")))


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


def _repeated(text: str, times: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), times)


# --- tables ----------------------------------------------------------------------------------------------------


def _measured(rows: pa.Table, keys: Sequence[str], sums: Sequence[str] = _SUMS) -> pa.Table:
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
    *,
    limit: int = _MERGE_ROWS,
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
        if rows >= max(limit, kept.num_rows):
            kept = _measured(pa.concat_tables([kept, *waiting]), keys, sums).select(columns)
            waiting, rows = [], 0
    return _measured(pa.concat_tables([kept, *waiting]), keys, sums).select(columns)


def _hottest(documents: pa.Table, places: Sequence[Place], top: int) -> pa.Table:
    """The first `top` documents of each member, with rank and id."""
    order = [("member", "ascending"), ("entries", "descending"), ("bytes", "descending")]
    ordered = documents.sort_by([*order, ("ns", "ascending"), ("key", "ascending")])
    found = []
    for name in sorted({place.name for place in places}):
        of_member = ordered.filter(pc.field("member") == name).slice(0, max(0, top))
        ranks = pa.array(range(1, of_member.num_rows + 1), pa.int64())
        found.append(of_member.append_column("rank", ranks).select(_HOT_COLUMNS))
    rows = pa.concat_tables([arrow_types(_HOT_COLUMNS).empty_table(), *found])
    parts = [with_ids(batch, places) for batch in rows.to_batches()]
    return pa.Table.from_batches(parts, schema=arrow_types((*_HOT_COLUMNS, "id")))


def _sorted(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    return rows.sort_by([(name, "ascending") for name in keys])


def arrow_types(columns: Sequence[str]) -> pa.Schema:
    """Of these columns of the passes: names are text, `key` is binary, the others are 64-bit numbers."""
    kinds = {**dict.fromkeys(_TEXTS, pa.string()), "key": pa.binary()}
    return pa.schema([(name, kinds.get(name, pa.int64())) for name in columns])


def _ddl(columns: Sequence[str]) -> str:
    names = {pa.string(): "string", pa.binary(): "binary", pa.int64(): "bigint"}
    return ", ".join(f"{field.name} {names[field.type]}" for field in arrow_types(columns))
