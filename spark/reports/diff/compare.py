"""`diff`: digests of buckets first, then the entries of the buckets that differ.

Digests are made behind the readers and are all that leaves Spark's workers of what is alike. If one task would hold all
digests, this process compares them, and reads the entries that differ if these are few as well. Else Spark shuffles
both, and the driver gets a few numbers a pair of members from each partition. What the entries mean is `classify`'s.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from replset.ids import OpTime
from spark.columns import repeated, tuples_of
from spark.jobs import ROWS_PER_TASK
from spark.oplog import ALL, EVERYTHING, EntryFilter, Oplog, Span
from spark.reports.diff import classify, digests
from spark.runners import Rows, Runner, SparkRunner, WorkOnGroups, frames, ordered, table_of_rows, where

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DIGESTS_PER_TASK = 100_000
_ROWS_OF_NUMBERS = 4
"""So many times as many entries to a task that reads but numbers: each task costs as much as 100,000 of them."""
_NUMBERS = tuple(f"n{number}" for number in range(len(classify.Tally._fields)))
_FINDINGS = pa.schema([("what", pa.string()), *((name, pa.int64()) for name in ("one", "other", *_NUMBERS))])
"""What is found. `differs`: member, -, bucket, entries, and two numbers of the stretch that the bucket is in. `rows`:
member, -, entries that count, entries left out, entries in buckets that differ. `common`: pair, term and ts of the
newest entry that both have. `tally`: pair, its counts."""


class _Finding(NamedTuple):
    what: str
    one: int
    other: int
    values: tuple[int, ...]


def diff(spark: SparkSession, oplogs: Sequence[Oplog], **how: Any) -> classify.Diff[DataFrame]:
    """Where the members differ, as DataFrames. how: as in `difference`. In a worker an OplogError is PySpark's error,
    in which `jobs.oplog_error` finds it again.
    """
    found: classify.Diff[Any] = frames(spark, difference(SparkRunner.of(spark), oplogs, **how))
    return found


def difference(
    runner: Runner,
    oplogs: Sequence[Oplog],
    *,
    span: Span = EVERYTHING,
    only: EntryFilter = ALL,
    rows_per_task: int = ROWS_PER_TASK,
    grid: digests.BucketGrid | None = None,
    by_bytes: bool = False,
) -> classify.Diff[Any]:
    """Where the members differ. OplogError: one could not be read.

    Digests are compared and the entries of the buckets that differ are read here, once. Where many differ Spark keeps
    them; `entries` and what is counted of them is worked out when it is asked for.
    span: only entries there are read; common points are found among them. only: of the entries that differ these are
    listed; common points and verdicts are those of all entries. grid: which buckets; any gives the same rows.
    by_bytes: hashes are computed of the entries, not taken as stored.
    """
    members = digests.ComparedMembers.of(oplogs, by_bytes=by_bytes)
    grid = grid or digests.BucketGrid.over(members.bounds)
    facts = classify.Facts.of(members.names, members.bounds, span.first_ts)

    count = members.rows // digests.ENTRIES_PER_SLOT
    first = runner.of_size(count, DIGESTS_PER_TASK - 1)
    work = digests.digests_in(grid, {name: at for at, name in enumerate(members.names)})
    # Enough tasks for every core, and not many small ones.
    to_read = max(rows_per_task, min(_ROWS_OF_NUMBERS * rows_per_task, members.rows // (2 * runner.cores)))
    parts = first.read(members.pinned, digests.READ_FOR_DIGESTS, work, digests.SCHEMA, span=span, rows_per_task=to_read)
    buckets = first.kept(first.grouped(parts, ("bucket",), ("bucket", "at"), 1 + count // DIGESTS_PER_TASK))
    while True:  # a second time only where a capped oplog was trimmed meanwhile
        findings = first.kept(first.run(buckets, _compared(grid, facts, rows_per_task), _FINDINGS))
        found = [*_collected(where(findings, "what", "rows")), *_collected(where(findings, "what", "common"))]
        moved = replace(facts, heads=members.heads(facts.heads))
        if moved == facts:
            break
        facts = moved
        first.release(findings)
    counted, left_out, differing = (_by_member(found, number, len(facts.names)) for number in range(3))
    facts = replace(facts, common=_common(found))

    second = first if isinstance(first, SparkRunner) else runner.of_size(sum(differing), rows_per_task - 1)
    tasks = 1 + sum(differing) // rows_per_task
    # A task reads buckets that are near each other in one member, so that what is between them is read once at most.
    near = second.grouped(where(findings, "what", "differs"), ("one", "n2", "n3"), ("one", "n0"), tasks)
    rows = second.run(near, _reading(members, grid, span), classify.ROWS)
    together = second.kept(second.grouped(rows, ("ts",), classify.ROW_ORDER, tasks))
    while True:  # a second time only where the rows show more than was known
        checked, found = facts, _collected(second.run(together, _examined(facts), _FINDINGS))
        common = classify.newest_of([facts.common, _common(found)])
        facts = replace(facts, common=common, heads=members.heads(facts.heads))
        if facts == checked:
            break
    first.release(buckets)
    first.release(findings)
    tally = classify.added(
        {(one, other): classify.Tally(*values)} for what, one, other, values in found if what == "tally"
    )
    entries = second.kept(second.run(together, _classified(facts, only), classify.ENTRIES))
    pairs = classify.pair_rows(facts, tally, classify.chains_at(members.pinned, facts), counted)
    of_members = classify.member_rows(facts, members.bounds, counted, left_out)
    return classify.Diff(
        pa.Table.from_pylist(of_members, schema=classify.MEMBERS),
        pa.Table.from_pylist(pairs, schema=classify.PAIRS),
        ordered(entries, *classify.ENTRY_ORDER),
        classify.count_by_namespace(entries),
        classify.count_by_document(entries),
        tuple(classify.Verdict(pair["verdict"]) for pair in pairs),
        sum(left_out),
        only != ALL,
    )


# --- work on groups --------------------------------------------------------------------------------------------


def _compared(grid: digests.BucketGrid, facts: classify.Facts, rows_per_task: int) -> WorkOnGroups:
    """On digests, those of a bucket side by side: which buckets differ, and what is known of the others."""
    seconds, increments = grid.stretch(rows_per_task)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        commons = []
        for table in digests.whole_groups(batches, "bucket"):
            some = digests.merged(table)
            found = digests.compared(grid, some, facts.heads)
            at, bucket, rows = (column[found.differing] for column in (some.at, some.bucket, some.rows))
            second, increment = bucket >> digests.INC_BITS, bucket & ((1 << digests.INC_BITS) - 1)
            yield _batch("differs", at, at, bucket, rows, second // seconds, increment // increments)
            differing = np.bincount(at, rows, len(facts.names)).astype(np.int64)
            everyone = np.arange(len(facts.names))
            yield _batch("rows", everyone, everyone, found.rows, found.left_out, differing)
            commons.append(found.common)
        yield _common_batch(classify.newest_of(commons))

    return work


def _reading(members: digests.ComparedMembers, grid: digests.BucketGrid, span: Span) -> WorkOnGroups:
    """On buckets by member, rising: their entries."""
    oplogs = members.pinned

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for wanted in digests.whole_groups(batches, "one"):
            members_of, buckets = digests.numbers(wanted, "one"), digests.numbers(wanted, "n0")
            for at in np.unique(members_of).tolist():
                for batch in grid.read(oplogs[at], buckets[members_of == at], classify.READ_FOR_ROWS, span):
                    yield digests.numbered(at, batch, classify.ROWS)

    return work


def _examined(facts: classify.Facts) -> WorkOnGroups:
    """On rows, those of an optime side by side: the newest in common, and the counts of each pair."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        commons, counts = [], []
        for table in digests.whole_groups(batches, "ts", "term"):
            commons.append(classify.newest_common(facts, table))
            counts.append(classify.tallies(facts, table))
        yield _common_batch(classify.newest_of(commons))
        tally = classify.added(counts)
        pairs, values = _columns(tally.keys(), 2), _columns(tally.values(), len(_NUMBERS))
        yield _batch("tally", *pairs, *values)

    return work


def _classified(facts: classify.Facts, only: EntryFilter) -> WorkOnGroups:
    """On the same rows: those of `Diff.entries`."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in digests.whole_groups(batches, "ts", "term"):
            yield from classify.entries(facts, table, only).to_batches()

    return work


# --- what they find --------------------------------------------------------------------------------------------


def _collected(findings: Rows) -> list[_Finding]:
    return [_Finding(row[0], row[1], row[2], row[3:]) for row in tuples_of(table_of_rows(findings))]


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
