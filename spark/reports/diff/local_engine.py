"""`diff` in this process, by threads: the reader and numpy let go of the interpreter's lock."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from spark.jobs import ROWS_PER_TASK
from spark.local_jobs import THREADS, run_spans
from spark.oplog import ALL, EVERYTHING, EntryFilter, Oplog, Span
from spark.reports.diff.classify import (
    ENTRIES,
    MEMBERS,
    PAIRS,
    READ_FOR_ROWS,
    ROW_ORDER,
    ROWS,
    Diff,
    Facts,
    Verdict,
    added,
    chains_at,
    count_by_document,
    count_by_namespace,
    entries,
    member_rows,
    newest_common,
    newest_of,
    pair_rows,
    tallies,
)
from spark.reports.diff.digests import (
    READ_FOR_DIGESTS,
    SCHEMA,
    BucketGrid,
    ComparedMembers,
    Merged,
    Numbers,
    compared,
    digests_in,
    merged,
    numbered,
    whole_groups,
)

LocalDiff: TypeAlias = Diff[pa.Table]
_CLASSIFY_ROWS = 100_000


def local_diff(
    oplogs: Sequence[Oplog],
    *,
    span: Span = EVERYTHING,
    only: EntryFilter = ALL,
    rows_per_task: int = ROWS_PER_TASK,
    grid: BucketGrid | None = None,
    by_bytes: bool = False,
) -> LocalDiff:
    """Where the members differ. OplogError: one could not be read.

    span: only entries there are read; common points are told from them. only: of the entries that differ these are
    listed; common points and verdicts are those of all entries. grid: which buckets; any gives the same rows.
    by_bytes: hashes are computed of the entries, not taken as stored.
    """
    members = ComparedMembers.of(oplogs, by_bytes=by_bytes)
    grid = grid or BucketGrid.over(members.bounds)
    facts = Facts.of(members.names, members.bounds, span.first_ts)
    work = digests_in(grid, {name: at for at, name in enumerate(facts.names)})
    parts = run_spans(members.pinned, READ_FOR_DIGESTS, work, span=span, rows_per_task=rows_per_task)
    digests = merged(pa.Table.from_batches(parts, schema=SCHEMA))
    facts = replace(facts, heads=members.heads(facts.heads))
    found = compared(grid, digests, facts.heads)
    rows = _rows_of(members, grid, Merged(*(column[found.differing] for column in digests)), span, rows_per_task)
    facts = replace(facts, heads=members.heads(facts.heads))
    tables = list(whole_groups(rows.to_batches(max_chunksize=_CLASSIFY_ROWS), "ts", "term"))
    facts = replace(facts, common=newest_of([found.common, *(newest_common(facts, table) for table in tables)]))
    tally = added(tallies(facts, table) for table in tables)
    pairs = pair_rows(facts, tally, chains_at(members.pinned, facts), found.rows.tolist())
    differing = pa.concat_tables([ENTRIES.empty_table(), *(entries(facts, table, only) for table in tables)])
    return Diff(
        pa.Table.from_pylist(
            member_rows(facts, members.bounds, found.rows.tolist(), found.left_out.tolist()), schema=MEMBERS
        ),
        pa.Table.from_pylist(pairs, schema=PAIRS),
        differing,
        count_by_namespace(differing),
        count_by_document(differing),
        tuple(Verdict(pair["verdict"]) for pair in pairs),
        int(found.left_out.sum()),
        only != ALL,
    )


def _rows_of(members: ComparedMembers, grid: BucketGrid, digests: Merged, span: Span, rows_per_task: int) -> pa.Table:
    """All entries of the buckets of these digests, as ROWS by ROW_ORDER."""

    def read(task: tuple[int, Numbers]) -> list[pa.RecordBatch]:
        at, buckets = task
        batches = grid.read(members.pinned[at], buckets, READ_FOR_ROWS, span)
        return [numbered(at, batch, ROWS) for batch in batches]

    tasks = []
    for at in range(len(members.pinned)):
        of_member = digests.at == at
        buckets, parts = digests.bucket[of_member], np.cumsum(digests.rows[of_member]) // rows_per_task
        cuts = np.flatnonzero(parts[1:] != parts[:-1]) + 1
        tasks += [(at, some) for some in np.split(buckets, cuts) if len(some)]
    with ThreadPoolExecutor(THREADS, thread_name_prefix="oplog") as threads:
        batches = [batch for some in threads.map(read, tasks) for batch in some]
    rows = pa.Table.from_batches(batches, schema=ROWS)
    return rows.sort_by([(name, "ascending") for name in ROW_ORDER]).combine_chunks()
