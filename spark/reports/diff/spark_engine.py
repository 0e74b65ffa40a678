"""`diff` by Spark: digests of buckets first, then the entries of the buckets that differ.

Digests are made in the workers behind the readers and are all that is shuffled of what is alike. The driver gets a few
numbers a pair of members from each partition. What the entries mean is `classify`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from replset.ids import OpTime
from spark.jobs import ROWS_PER_TASK, map_spans, table_of
from spark.oplog import ALL, EVERYTHING, EntryFilter, Oplog, Span
from spark.reports.diff.classify import (
    ENTRIES,
    ENTRY_ORDER,
    MEMBERS,
    PAIRS,
    READ_FOR_ROWS,
    ROW_ORDER,
    ROWS,
    Diff,
    Facts,
    Pair,
    Tally,
    Verdict,
    added,
    chains_at,
    entries,
    member_rows,
    newest_common,
    newest_of,
    pair_rows,
    tallies,
)
from spark.reports.diff.digests import (
    ENTRIES_PER_SLOT,
    INC_BITS,
    READ_FOR_DIGESTS,
    SCHEMA,
    BucketGrid,
    ComparedMembers,
    Numbers,
    compared,
    digests_in,
    merged,
    numbered,
    numbers,
    whole_groups,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DIGESTS_PER_TASK = 100_000
_ROWS_OF_NUMBERS = 4
"""So many times as many entries to a task that reads but numbers: each task costs as much as 100,000 of them."""
_NUMBERS = tuple(f"n{number}" for number in range(len(Tally._fields)))
_SAID = pa.schema([("what", pa.string()), *((name, pa.int64()) for name in ("one", "other", *_NUMBERS))])
"""What workers say of their part. `differs`: member, -, bucket, entries. `rows`: member, -, entries that count, entries
left out. `common`: pair, term and ts of the newest entry that both have. `tally`: pair, its counts."""
_DDL = {pa.string(): "string", pa.int64(): "bigint", pa.binary(): "binary", pa.bool_(): "boolean"}


class _Said(NamedTuple):
    what: str
    one: int
    other: int
    values: tuple[int, ...]


def diff(
    session: SparkSession,
    oplogs: Sequence[Oplog],
    *,
    span: Span = EVERYTHING,
    only: EntryFilter = ALL,
    rows_per_task: int = ROWS_PER_TASK,
    grid: BucketGrid | None = None,
    by_bytes: bool = False,
) -> Diff[DataFrame]:
    """Where the members differ. OplogError: one could not be read; in a worker, `jobs.oplog_error` finds it again.

    Digests are compared and the entries of the buckets that differ are read here, once, and kept by Spark; `entries`
    and what is counted of them is worked out when it is asked for. Parameters as in `local_diff.local_diff`.
    """
    members = ComparedMembers.of(oplogs, by_bytes=by_bytes)
    grid = grid or BucketGrid.over(members.bounds)
    facts = Facts.of(members.names, members.bounds, span.first_ts)
    digests = _digests(session, members, grid, span, rows_per_task).persist()
    told, said = _told(_compared(digests, grid, facts))
    moved = replace(facts, heads=members.heads(facts.heads))
    if moved != facts:
        facts = moved
        told.unpersist()
        told, said = _told(_compared(digests, grid, facts))
    counted, left_out = (_by_member(said, number, len(facts.names)) for number in (0, 1))
    differing = sum(_by_member(said, 2, len(facts.names)))
    facts = replace(facts, common=_common(said))
    tally: dict[Pair, Tally] = {}
    if differing:
        rows = _rows(session, told, members, grid, span, rows_per_task, differing).persist()
        while True:  # a second time only where the rows tell more than was known
            checked, said = facts, _collected(_examined(rows, facts))
            common = newest_of([facts.common, _common(said)])
            facts = replace(facts, common=common, heads=members.heads(facts.heads))
            if facts == checked:
                break
        tally = added({(one, other): Tally(*values)} for what, one, other, values in said if what == "tally")
        found = rows.mapInArrow(_classified(facts, only), ddl_of(ENTRIES)).persist()
    else:
        found = table_of(session, [], ddl_of(ENTRIES))
    told.unpersist()
    digests.unpersist()
    pairs = pair_rows(facts, tally, chains_at(members.pinned, facts), counted)
    of_members = member_rows(facts, members.bounds, counted, left_out)
    return Diff(
        table_of(session, [tuple(row.values()) for row in of_members], ddl_of(MEMBERS)),
        table_of(session, [tuple(row.values()) for row in pairs], ddl_of(PAIRS)),
        found.orderBy(*ENTRY_ORDER),
        _by_namespace(found),
        _by_document(found),
        tuple(Verdict(pair["verdict"]) for pair in pairs),
        sum(left_out),
        only != ALL,
    )


def ddl_of(schema: pa.Schema) -> str:
    """An Arrow schema as Spark writes it."""
    return ", ".join(f"{field.name} {_ddl(field.type)}" for field in schema)


def _ddl(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"array<{_ddl(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{field.name}: {_ddl(field.type)}' for field in kind)}>"
    return _DDL[kind]


# --- digests ---------------------------------------------------------------------------------------------------


def _digests(
    session: SparkSession, members: ComparedMembers, grid: BucketGrid, span: Span, rows_per_task: int
) -> DataFrame:
    """Every digest, those of a bucket side by side."""
    work = digests_in(grid, {name: at for at, name in enumerate(members.names)})
    total = sum(one.rows for one in members.bounds)
    for_each_core = total // (2 * session.sparkContext.defaultParallelism)
    several = max(rows_per_task, min(_ROWS_OF_NUMBERS * rows_per_task, for_each_core))
    parts = map_spans(session, members.pinned, READ_FOR_DIGESTS, work, ddl_of(SCHEMA), span=span, rows_per_task=several)
    tasks = 1 + total // ENTRIES_PER_SLOT // _DIGESTS_PER_TASK
    return parts.repartition(tasks, "bucket").sortWithinPartitions("bucket", "at")


def _compared(digests: DataFrame, grid: BucketGrid, facts: Facts) -> DataFrame:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        commons = []
        for table in whole_groups(batches, "bucket"):
            some = merged(table)
            found = compared(grid, some, facts.heads)
            at, bucket, rows = (column[found.differing] for column in (some.at, some.bucket, some.rows))
            yield _batch("differs", at, at, bucket, rows)
            differing = np.bincount(at, rows, len(facts.names)).astype(np.int64)
            everyone = np.arange(len(facts.names))
            yield _batch("rows", everyone, everyone, found.rows, found.left_out, differing)
            commons.append(found.common)
        yield _common_batch(newest_of(commons))

    return digests.mapInArrow(work, ddl_of(_SAID))


# --- the entries of buckets that differ ------------------------------------------------------------------------


def _rows(
    session: SparkSession,
    told: DataFrame,
    members: ComparedMembers,
    grid: BucketGrid,
    span: Span,
    rows_per_task: int,
    differing: int,
) -> DataFrame:
    """ROWS of the buckets that differ, those of an optime side by side by ROW_ORDER.

    A task reads buckets that lie near each other in one member, so that what is between them is read once at most.
    """
    from pyspark.sql import functions as f

    oplogs = members.pinned

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for wanted in whole_groups(batches, "one"):
            members_of, buckets = numbers(wanted, "one"), numbers(wanted, "n0")
            for at in np.unique(members_of).tolist():
                for batch in grid.read(oplogs[at], buckets[members_of == at], READ_FOR_ROWS, span):
                    yield numbered(at, batch, ROWS)

    seconds, increments = grid.stretch(rows_per_task)
    bucket = f.col("n0")
    stretch = [
        f.col("one"),
        f.floor(f.shiftright(bucket, INC_BITS) / seconds),
        f.floor(bucket.bitwiseAND((1 << INC_BITS) - 1) / increments),
    ]
    tasks = 1 + differing // rows_per_task
    buckets = told.where(f.col("what") == "differs").select("one", "n0")
    near = buckets.repartition(tasks, *stretch).sortWithinPartitions("one", "n0")
    return near.mapInArrow(read, ddl_of(ROWS)).repartition(tasks, "ts").sortWithinPartitions(*ROW_ORDER)


def _examined(rows: DataFrame, facts: Facts) -> DataFrame:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        commons, counts = [], []
        for table in whole_groups(batches, "ts", "term"):
            commons.append(newest_common(facts, table))
            counts.append(tallies(facts, table))
        yield _common_batch(newest_of(commons))
        tally = added(counts)
        pairs, values = _columns(tally.keys(), 2), _columns(tally.values(), len(_NUMBERS))
        yield _batch("tally", *pairs, *values)

    return rows.mapInArrow(work, ddl_of(_SAID))


def _classified(facts: Facts, only: EntryFilter) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in whole_groups(batches, "ts", "term"):
            yield from entries(facts, table, only).to_batches()

    return work


def _by_namespace(found: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    counts = [f.count("*").alias("entries"), f.count_distinct("key").alias("documents")]
    return found.groupBy("ns", "kind").agg(*counts).orderBy("ns", "kind")


def _by_document(found: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    counted = (
        found.where(f.col("key").isNotNull())
        .groupBy("ns", "key")
        .agg(
            f.count_distinct("ts", "term").alias("entries"),
            f.min("ts").alias("first_ts"),
            f.max("ts").alias("last_ts"),
            f.sort_array(f.collect_set("kind")).alias("kinds"),
        )
    )
    return counted.orderBy(f.desc("entries"), "ns", "key")


# --- what workers say ------------------------------------------------------------------------------------------


def _told(told: DataFrame) -> tuple[DataFrame, list[_Said]]:
    """The table, kept, and what of it the driver wants to know."""
    told = told.persist()
    return told, _collected(told.where("what != 'differs'"))


def _collected(told: DataFrame) -> list[_Said]:
    return [_Said(row[0], row[1], row[2], tuple(row[3:])) for row in told.collect()]


def _by_member(said: Iterable[_Said], number: int, members: int) -> list[int]:
    total = [0] * members
    for what, one, _, values in said:
        if what == "rows":
            total[one] += values[number]
    return total


def _common(said: Iterable[_Said]) -> dict[Pair, OpTime]:
    return newest_of({(one, other): OpTime(*values[:2])} for what, one, other, values in said if what == "common")


def _common_batch(common: Mapping[Pair, OpTime]) -> pa.RecordBatch:
    return _batch("common", *_columns(common.keys(), 2), *_columns(common.values(), 2))


def _columns(rows: Collection[Sequence[int]], width: int) -> list[Numbers]:
    return list(np.array([*rows], np.int64).reshape(len(rows), width).T)


def _batch(what: str, one: Numbers, other: Numbers, *columns: Numbers) -> pa.RecordBatch:
    zeros = [np.zeros(len(one), np.int64)] * (len(_NUMBERS) - len(columns))
    names = pa.repeat(pa.scalar(what, pa.string()), len(one))
    return pa.RecordBatch.from_arrays(
        [names, *(pa.array(column) for column in (one, other, *columns, *zeros))], schema=_SAID
    )
