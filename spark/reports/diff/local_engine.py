"""`diff` in this process, by threads: the reader and numpy let go of the interpreter's lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from spark.columns import sorted_by
from spark.jobs import ROWS_PER_TASK, THREADS, OnPart, no_progress, run_spans
from spark.oplog import ALL, EVERYTHING, EntryFilter, Oplog, Span
from spark.reports.diff import classify, digests

LocalDiff: TypeAlias = classify.Diff[pa.Table]
RunSpans: TypeAlias = Callable[..., Iterator[pa.RecordBatch]]
"""`jobs.run_spans`, or `jobs.collect_spans` in a session."""
_CLASSIFY_ROWS = 100_000


def local_diff(
    oplogs: Sequence[Oplog],
    *,
    span: Span = EVERYTHING,
    only: EntryFilter = ALL,
    rows_per_task: int = ROWS_PER_TASK,
    grid: digests.BucketGrid | None = None,
    by_bytes: bool = False,
    on_part: OnPart = no_progress,
) -> LocalDiff:
    """Where the members differ. OplogError: one could not be read.

    span: only entries there are read; common points are found among them. only: of the entries that differ these are
    listed; common points and verdicts are those of all entries. grid: which buckets; any gives the same rows.
    by_bytes: hashes are computed of the entries, not taken as stored.
    """
    members = digests.ComparedMembers.of(oplogs, by_bytes=by_bytes)
    grid = grid or digests.BucketGrid.over(members.bounds)
    run = partial(run_spans, on_part=on_part)
    facts, differing, compared = compare(members, grid, span, rows_per_task, run)
    return classified(members, grid, facts, differing, compared, span, only, rows_per_task)


def compare(
    members: digests.ComparedMembers, grid: digests.BucketGrid, span: Span, rows_per_task: int, run: RunSpans
) -> tuple[classify.Facts, digests.Merged, digests.Compared]:
    """Compare digests, which `run` makes of the members' entries. Returns those of the buckets that differ."""
    facts = classify.Facts.of(members.names, members.bounds, span.first_ts)
    work = digests.digests_in(grid, {name: at for at, name in enumerate(facts.names)})
    parts = run(members.pinned, digests.READ_FOR_DIGESTS, work, span=span, rows_per_task=rows_per_task)
    merged = digests.merged(pa.Table.from_batches(parts, schema=digests.SCHEMA))
    facts = replace(facts, heads=members.heads(facts.heads))
    found = digests.compared(grid, merged, facts.heads)
    return facts, digests.Merged(*(column[found.differing] for column in merged)), found


def classified(
    members: digests.ComparedMembers,
    grid: digests.BucketGrid,
    facts: classify.Facts,
    differing: digests.Merged,
    compared: digests.Compared,
    span: Span,
    only: EntryFilter,
    rows_per_task: int,
) -> LocalDiff:
    """Read the entries of the buckets that differ, and say what they mean."""
    rows = _rows_of(members, grid, differing, span, rows_per_task)
    facts = replace(facts, heads=members.heads(facts.heads))
    tables = list(digests.whole_groups(rows.to_batches(max_chunksize=_CLASSIFY_ROWS), "ts", "term"))
    facts = replace(
        facts, common=classify.newest_of([compared.common, *(classify.newest_common(facts, table) for table in tables)])
    )
    tally = classify.added(classify.tallies(facts, table) for table in tables)
    pairs = classify.pair_rows(facts, tally, classify.chains_at(members.pinned, facts), compared.rows.tolist())
    entries = pa.concat_tables(
        [classify.ENTRIES.empty_table(), *(classify.entries(facts, table, only) for table in tables)]
    )
    return classify.Diff(
        pa.Table.from_pylist(
            classify.member_rows(facts, members.bounds, compared.rows.tolist(), compared.left_out.tolist()),
            schema=classify.MEMBERS,
        ),
        pa.Table.from_pylist(pairs, schema=classify.PAIRS),
        entries,
        classify.count_by_namespace(entries),
        classify.count_by_document(entries),
        tuple(classify.Verdict(pair["verdict"]) for pair in pairs),
        int(compared.left_out.sum()),
        only != ALL,
    )


def _rows_of(
    members: digests.ComparedMembers, grid: digests.BucketGrid, merged: digests.Merged, span: Span, rows_per_task: int
) -> pa.Table:
    """All entries of the buckets of these digests, as ROWS by ROW_ORDER."""

    def read(task: tuple[int, digests.Numbers]) -> list[pa.RecordBatch]:
        at, buckets = task
        batches = grid.read(members.pinned[at], buckets, classify.READ_FOR_ROWS, span)
        return [digests.numbered(at, batch, classify.ROWS) for batch in batches]

    tasks = []
    for at in range(len(members.pinned)):
        of_member = merged.at == at
        buckets, parts = merged.bucket[of_member], np.cumsum(merged.rows[of_member]) // rows_per_task
        cuts = np.flatnonzero(parts[1:] != parts[:-1]) + 1
        tasks += [(at, some) for some in np.split(buckets, cuts) if len(some)]
    with ThreadPoolExecutor(THREADS, thread_name_prefix="oplog") as threads:
        batches = [batch for some in threads.map(read, tasks) for batch in some]
    rows = pa.Table.from_batches(batches, schema=classify.ROWS)
    return sorted_by(rows, *classify.ROW_ORDER).combine_chunks()
