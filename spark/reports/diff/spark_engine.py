"""`diff` by Spark: digests of buckets first, then the entries of the buckets that differ.

Digests are made in the workers behind the readers and are all that leaves them of what is alike. If one task would hold
all digests, the driver compares them, and reads the entries that differ if these are few as well. Else Spark shuffles
both, and the driver gets a few numbers a pair of members from each partition. What the entries mean is `classify`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from replset.ids import OpTime
from spark.columns import ddl_of, repeated
from spark.jobs import ROWS_PER_TASK, collect_spans, map_spans, table_of
from spark.oplog import ALL, EVERYTHING, EntryFilter, Oplog, Span
from spark.reports.diff import classify, digests, local_engine

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

    from spark.reports.diff.local_engine import LocalDiff

DIGESTS_PER_TASK = 100_000
_ROWS_OF_NUMBERS = 4
"""So many times as many entries to a task that reads but numbers: each task costs as much as 100,000 of them."""
_NUMBERS = tuple(f"n{number}" for number in range(len(classify.Tally._fields)))
_FINDINGS = pa.schema([("what", pa.string()), *((name, pa.int64()) for name in ("one", "other", *_NUMBERS))])
"""What workers find. `differs`: member, -, bucket, entries. `rows`: member, -, entries that count, entries left out.
`common`: pair, term and ts of the newest entry that both have. `tally`: pair, its counts."""


class _Finding(NamedTuple):
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
    grid: digests.BucketGrid | None = None,
    by_bytes: bool = False,
) -> classify.Diff[DataFrame]:
    """Where the members differ. OplogError: one could not be read; in a worker, `jobs.oplog_error` finds it again.

    Digests are compared and the entries of the buckets that differ are read here, once. Where many differ Spark keeps
    them; `entries` and what is counted of them is worked out when it is asked for. Parameters as in `local_diff`.
    """
    found: classify.Diff[Any] = diff_or_tables(
        session.sparkContext,
        lambda: session,
        oplogs,
        span=span,
        only=only,
        rows_per_task=rows_per_task,
        grid=grid,
        by_bytes=by_bytes,
    )
    if not isinstance(found.entries, pa.Table):
        return found
    names = ("members", "pairs", "entries", "by_namespace", "by_document")
    tables: dict[str, Any] = {name: session.createDataFrame(getattr(found, name)) for name in names}
    return replace(found, **tables)


def diff_or_tables(
    context: SparkContext,
    session_of: Callable[[], SparkSession],
    oplogs: Sequence[Oplog],
    *,
    span: Span = EVERYTHING,
    only: EntryFilter = ALL,
    rows_per_task: int = ROWS_PER_TASK,
    grid: digests.BucketGrid | None = None,
    by_bytes: bool = False,
) -> classify.Diff[DataFrame] | LocalDiff:
    """Give what `diff` gives, as Arrow tables where few entries differ.

    Digests that one task would compare are compared here, and so are the entries that differ: such a task would have
    no other beside it, and a query of Spark SQL takes seconds to load, plan and compile in a JVM that has just started.
    session_of: a session in this context, asked for where SQL is needed.
    """
    members = digests.ComparedMembers.of(oplogs, by_bytes=by_bytes)
    grid = grid or digests.BucketGrid.over(members.bounds)
    rows_of_numbers = _rows_of_numbers(context, members, rows_per_task)
    if members.rows // digests.ENTRIES_PER_SLOT < DIGESTS_PER_TASK:
        run = partial(collect_spans, context)
        facts, wanted, compared = local_engine.compare(members, grid, span, rows_of_numbers, run)
        if wanted.rows.sum() < rows_per_task:
            return local_engine.classified(members, grid, facts, wanted, compared, span, only, rows_per_task)
        session = session_of()
        batch = _batch("differs", wanted.at, wanted.at, wanted.bucket, wanted.rows)
        findings = session.createDataFrame(pa.Table.from_batches([batch]))
        facts, differing = replace(facts, common=compared.common), int(wanted.rows.sum())
        counted, left_out = compared.rows.tolist(), compared.left_out.tolist()
    else:
        session = session_of()
        facts = classify.Facts.of(members.names, members.bounds, span.first_ts)
        buckets = _digests(session, members, grid, span, rows_of_numbers).persist()
        findings, collected = _kept(_compared(buckets, grid, facts))
        moved = replace(facts, heads=members.heads(facts.heads))
        if moved != facts:
            facts = moved
            findings.unpersist()
            findings, collected = _kept(_compared(buckets, grid, facts))
        buckets.unpersist()
        counted, left_out = (_by_member(collected, number, len(facts.names)) for number in (0, 1))
        differing = sum(_by_member(collected, 2, len(facts.names)))
        facts = replace(facts, common=_common(collected))
    tally: dict[classify.Pair, classify.Tally] = {}
    if differing:
        rows = _rows(session, findings, members, grid, span, rows_per_task, differing).persist()
        while True:  # a second time only where the rows show more than was known
            checked, collected = facts, _collected(_examined(rows, facts))
            common = classify.newest_of([facts.common, _common(collected)])
            facts = replace(facts, common=common, heads=members.heads(facts.heads))
            if facts == checked:
                break
        tally = classify.added(
            {(one, other): classify.Tally(*values)} for what, one, other, values in collected if what == "tally"
        )
        found = rows.mapInArrow(_classified(facts, only), ddl_of(classify.ENTRIES)).persist()
    else:
        found = table_of(session, [], ddl_of(classify.ENTRIES))
    findings.unpersist()
    pairs = classify.pair_rows(facts, tally, classify.chains_at(members.pinned, facts), counted)
    of_members = classify.member_rows(facts, members.bounds, counted, left_out)
    return classify.Diff(
        table_of(session, [tuple(row.values()) for row in of_members], ddl_of(classify.MEMBERS)),
        table_of(session, [tuple(row.values()) for row in pairs], ddl_of(classify.PAIRS)),
        found.orderBy(*classify.ENTRY_ORDER),
        _by_namespace(found),
        _by_document(found),
        tuple(classify.Verdict(pair["verdict"]) for pair in pairs),
        sum(left_out),
        only != ALL,
    )


# --- digests ---------------------------------------------------------------------------------------------------


def _rows_of_numbers(context: SparkContext, members: digests.ComparedMembers, rows_per_task: int) -> int:
    """How many entries are a task that reads but numbers: enough tasks for every core, and not many small ones."""
    for_each_core = members.rows // (2 * context.defaultParallelism)
    return max(rows_per_task, min(_ROWS_OF_NUMBERS * rows_per_task, for_each_core))


def _digests(
    session: SparkSession, members: digests.ComparedMembers, grid: digests.BucketGrid, span: Span, rows_per_task: int
) -> DataFrame:
    """Every digest, those of a bucket side by side."""
    work = digests.digests_in(grid, {name: at for at, name in enumerate(members.names)})
    parts = map_spans(
        session,
        members.pinned,
        digests.READ_FOR_DIGESTS,
        work,
        ddl_of(digests.SCHEMA),
        span=span,
        rows_per_task=rows_per_task,
    )
    tasks = 1 + members.rows // digests.ENTRIES_PER_SLOT // DIGESTS_PER_TASK
    return parts.repartition(tasks, "bucket").sortWithinPartitions("bucket", "at")


def _compared(buckets: DataFrame, grid: digests.BucketGrid, facts: classify.Facts) -> DataFrame:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        commons = []
        for table in digests.whole_groups(batches, "bucket"):
            some = digests.merged(table)
            found = digests.compared(grid, some, facts.heads)
            at, bucket, rows = (column[found.differing] for column in (some.at, some.bucket, some.rows))
            yield _batch("differs", at, at, bucket, rows)
            differing = np.bincount(at, rows, len(facts.names)).astype(np.int64)
            everyone = np.arange(len(facts.names))
            yield _batch("rows", everyone, everyone, found.rows, found.left_out, differing)
            commons.append(found.common)
        yield _common_batch(classify.newest_of(commons))

    return buckets.mapInArrow(work, ddl_of(_FINDINGS))


# --- the entries of buckets that differ ------------------------------------------------------------------------


def _rows(
    session: SparkSession,
    findings: DataFrame,
    members: digests.ComparedMembers,
    grid: digests.BucketGrid,
    span: Span,
    rows_per_task: int,
    differing: int,
) -> DataFrame:
    """ROWS of the buckets that differ, those of an optime side by side by ROW_ORDER.

    A task reads buckets that are near each other in one member, so that what is between them is read once at most.
    """
    from pyspark.sql import functions as f

    oplogs = members.pinned

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for wanted in digests.whole_groups(batches, "one"):
            members_of, buckets = digests.numbers(wanted, "one"), digests.numbers(wanted, "n0")
            for at in np.unique(members_of).tolist():
                for batch in grid.read(oplogs[at], buckets[members_of == at], classify.READ_FOR_ROWS, span):
                    yield digests.numbered(at, batch, classify.ROWS)

    seconds, increments = grid.stretch(rows_per_task)
    bucket = f.col("n0")
    stretch = [
        f.col("one"),
        f.floor(f.shiftright(bucket, digests.INC_BITS) / seconds),
        f.floor(bucket.bitwiseAND((1 << digests.INC_BITS) - 1) / increments),
    ]
    tasks = 1 + differing // rows_per_task
    buckets = findings.where(f.col("what") == "differs").select("one", "n0")
    near = buckets.repartition(tasks, *stretch).sortWithinPartitions("one", "n0")
    return (
        near.mapInArrow(read, ddl_of(classify.ROWS)).repartition(tasks, "ts").sortWithinPartitions(*classify.ROW_ORDER)
    )


def _examined(rows: DataFrame, facts: classify.Facts) -> DataFrame:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        commons, counts = [], []
        for table in digests.whole_groups(batches, "ts", "term"):
            commons.append(classify.newest_common(facts, table))
            counts.append(classify.tallies(facts, table))
        yield _common_batch(classify.newest_of(commons))
        tally = classify.added(counts)
        pairs, values = _columns(tally.keys(), 2), _columns(tally.values(), len(_NUMBERS))
        yield _batch("tally", *pairs, *values)

    return rows.mapInArrow(work, ddl_of(_FINDINGS))


def _classified(
    facts: classify.Facts, only: EntryFilter
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in digests.whole_groups(batches, "ts", "term"):
            yield from classify.entries(facts, table, only).to_batches()

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


# --- what workers find ------------------------------------------------------------------------------------------


def _kept(findings: DataFrame) -> tuple[DataFrame, list[_Finding]]:
    """Keep the table in Spark; collect what of it the driver needs."""
    findings = findings.persist()
    return findings, _collected(findings.where("what != 'differs'"))


def _collected(findings: DataFrame) -> list[_Finding]:
    return [_Finding(row[0], row[1], row[2], tuple(row[3:])) for row in findings.collect()]


def _by_member(collected: Iterable[_Finding], number: int, members: int) -> list[int]:
    total = [0] * members
    for what, one, _, values in collected:
        if what == "rows":
            total[one] += values[number]
    return total


def _common(collected: Iterable[_Finding]) -> dict[classify.Pair, OpTime]:
    return classify.newest_of(
        {(one, other): OpTime(*values[:2])} for what, one, other, values in collected if what == "common"
    )


def _common_batch(common: Mapping[classify.Pair, OpTime]) -> pa.RecordBatch:
    return _batch("common", *_columns(common.keys(), 2), *_columns(common.values(), 2))


def _columns(rows: Collection[Sequence[int]], width: int) -> list[digests.Numbers]:
    return list(np.array([*rows], np.int64).reshape(len(rows), width).T)


def _batch(what: str, one: digests.Numbers, other: digests.Numbers, *columns: digests.Numbers) -> pa.RecordBatch:
    zeros = [np.zeros(len(one), np.int64)] * (len(_NUMBERS) - len(columns))
    arrays = map(pa.array, (one, other, *columns, *zeros))
    return pa.RecordBatch.from_arrays([repeated(what, len(one)), *arrays], schema=_FINDINGS)
