"""Digests of buckets: grids part all timestamps, spans hold their buckets, sums do not hang on order or batches."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from replset.ids import OpTime, pack_ts
from spark.oplog import EVERYTHING, Bounds, Span
from spark.reports.diff.digests import (
    ENTRIES_PER_SLOT,
    INCREMENTS,
    READ_FOR_DIGESTS,
    SCHEMA,
    BucketGrid,
    ComparedMembers,
    ComparedOplog,
    Numbers,
    compared,
    digests_in,
    merged,
    whole_groups,
)
from tests.spark.kit import ListOplog
from tests.spark.planted import Plan, plant

HOT = [pack_ts(100, inc) for inc in range(1, 3 * INCREMENTS)]
SPARSE = [pack_ts(second, inc) for second in range(90, 130) for inc in (0, 1, INCREMENTS - 1, 1 << 30)]
STAMPS = np.array(sorted({*HOT, *SPARSE}), np.int64)
GRIDS = [BucketGrid(), BucketGrid(1, 5), BucketGrid(8), BucketGrid(64, 3), BucketGrid(1 << 20)]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_a_bucket_is_known_by_the_least_ts_that_could_be_in_it(grid: BucketGrid) -> None:
    bucket = grid.bucket_of(STAMPS)
    assert (bucket <= STAMPS).all()
    assert (grid.bucket_of(bucket) == bucket).all()


def test_a_bucket_ends_before_the_next_second_of_a_slot_begins() -> None:
    grid = BucketGrid(8)
    slot = pack_ts(104, 0)
    in_slot = np.array([slot, slot + INCREMENTS - 1, pack_ts(111, 5)])
    assert grid.bucket_of(in_slot).tolist() == [slot] * 3
    assert grid.bucket_of(np.array([slot + INCREMENTS, pack_ts(111, INCREMENTS)])).tolist() == [
        slot + INCREMENTS,
        pack_ts(111, INCREMENTS),
    ]
    assert grid.end_of(np.array([slot, slot + INCREMENTS])).tolist() == [pack_ts(112, 0), slot + 2 * INCREMENTS]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("step", [1, 3, 7])
def test_spans_hold_all_of_their_buckets_and_do_not_overlap(grid: BucketGrid, step: int) -> None:
    wanted = np.unique(grid.bucket_of(STAMPS))[::step]
    spans = grid.spans(wanted)
    assert all(first < end for first, end in spans)
    assert all(one.end_ts <= other.first_ts for one, other in pairwise(spans))
    for ts in STAMPS[np.isin(grid.bucket_of(STAMPS), wanted)].tolist():
        assert sum(first <= ts < end for first, end in spans) == 1


def test_no_buckets_no_spans() -> None:
    assert BucketGrid().spans(np.zeros(0, np.int64)) == []


def test_near_buckets_are_read_at_once_and_far_ones_are_not() -> None:
    buckets = np.array([pack_ts(second, 0) for second in (10, 12, 40)])
    assert len(BucketGrid(1, 5).spans(buckets)) == 2
    assert len(BucketGrid(1, 0).spans(buckets)) == 3


def test_reading_gives_the_entries_of_the_buckets_alone() -> None:
    planted = plant(Plan(30, per_second=2))
    oplog, grid = planted.oplogs()[0], BucketGrid(1, 100)
    wanted = np.unique(grid.bucket_of(np.array([row.ts for row in oplog.rows])))[::2]
    found = [ts for batch in grid.read(oplog, wanted, ("ts",)) for ts in batch.column("ts").to_pylist()]
    assert found == [row.ts for row in oplog.rows if row.ts & ~(INCREMENTS - 1) in wanted.tolist()]
    within = Span(oplog.rows[5].ts, oplog.rows[20].ts)
    inside = [ts for batch in grid.read(oplog, wanted, ("ts",), within) for ts in batch.column("ts").to_pylist()]
    assert inside == [ts for ts in found if within.first_ts <= ts < within.end_ts]


@pytest.mark.parametrize(
    ("rows", "lasting", "slot"),
    [
        pytest.param(2_000 * 100, 100, 1, id="many-a-second"),
        pytest.param(100, 100, ENTRIES_PER_SLOT, id="one-a-second"),
        pytest.param(10, 1_000_000, 1 << 20, id="one-a-day"),
    ],
)
def test_slots_are_as_long_as_some_entries_take(rows: int, lasting: int, slot: int) -> None:
    bounds = Bounds(OpTime(1, pack_ts(1000, 1)), OpTime(1, pack_ts(1000 + lasting - 1, 1)), rows)
    assert BucketGrid.over([bounds, Bounds()]).slot_seconds == slot


def test_members_without_entries_have_a_grid() -> None:
    assert BucketGrid.over([Bounds(), Bounds()]).slot_seconds == 1


def test_digests_do_not_hang_on_batches_or_their_order() -> None:
    rows = plant(Plan(60, per_second=9)).members["m0"]
    found = []
    for batch_rows in (1, 7, 1000):
        oplog, grid = ListOplog("a", tuple(rows), batch_rows), BucketGrid(4)
        parts = [
            part
            for span in oplog.split(EVERYTHING, batch_rows)
            for part in digests_in(grid, {"a": 0})("a", oplog.read(span, READ_FOR_DIGESTS))
        ]
        random.Random(batch_rows).shuffle(parts)
        found.append([column.tolist() for column in merged(pa.Table.from_batches(parts, schema=SCHEMA))])
    assert found[0] == found[1] == found[2]
    assert sum(found[0][2]) == 60


@pytest.mark.parametrize("field", ["ts", "term", "hash"])
def test_a_digest_tells_every_column_and_swapped_values(field: str) -> None:
    plain = np.array([[10, 20, 30], [1, 1, 2], [5, 6, -7]])
    changed = plain.copy()
    changed[READ_FOR_DIGESTS.index(field), 1] += 1
    swapped = plain.copy()
    swapped[2] = [6, 5, -7]
    assert len({_value(plain), _value(changed), _value(swapped)}) == 3


def test_a_copy_of_an_entry_counts() -> None:
    once = np.array([[10, 20], [1, 1], [5, 6]])
    twice = np.array([[10, 20, 20], [1, 1, 1], [5, 6, 6]])
    assert _value(once) != _value(twice)


def test_the_newest_entry_of_a_bucket_is_that_of_the_highest_term() -> None:
    """Entries of one ts may come in any order from a dump."""
    for order in ([0, 1], [1, 0]):
        columns = np.array([[10, 10], [1, 2], [5, 6]])[:, order]
        assert int(merged(_digests(columns)).last_term[0]) == 2
        one_by_one = [_digests(columns[:, at : at + 1]) for at in (0, 1)]
        assert int(merged(pa.Table.from_batches(one_by_one)).last_term[0]) == 2


def test_entries_before_a_head_that_moved_are_left_out_and_counted() -> None:
    ts = np.array([pack_ts(second, 1) for second in (10, 20, 30)])
    columns = np.array([ts, np.ones(3, np.int64), [5, 6, 7]])
    table = pa.Table.from_batches([_digests(columns, at=at) for at in (0, 1)])
    digests = merged(table)
    whole = compared(BucketGrid(), digests, [0, 0])
    assert (whole.rows.tolist(), whole.left_out.tolist(), whole.differing.tolist()) == ([3, 3], [0, 0], [])
    moved = compared(BucketGrid(), digests, [int(ts[1]), 0])
    assert (moved.rows.tolist(), moved.left_out.tolist()) == ([2, 3], [1, 0])
    assert moved.common == {(0, 1): OpTime(1, int(ts[2]))}


def test_groups_are_never_parted() -> None:
    batches = [pa.record_batch({"a": part, "b": [1] * len(part)}) for part in ([1, 1], [], [1, 2, 3], [3], [4])]
    tables = [table["a"].to_pylist() for table in whole_groups(batches, "a", "b")]
    assert [value for table in tables for value in table] == [1, 1, 1, 2, 3, 3, 4]
    for one, other in pairwise(tables):
        assert not set(one) & set(other)


def test_members_of_a_comparison_are_ordered_by_name() -> None:
    oplogs = plant(Plan(5, members=3)).oplogs()
    members = ComparedMembers.of(oplogs[::-1])
    assert members.names == ("m0", "m1", "m2")
    assert members.heads([1, 2, 3]) == (1, 2, 3)
    assert members.pinned[0] == ComparedOplog(oplogs[0])


def _digests(columns: Numbers, at: int = 0, grid: BucketGrid = GRIDS[0]) -> pa.RecordBatch:
    batch = pa.record_batch(dict(zip(READ_FOR_DIGESTS, columns, strict=True)))
    return next(digests_in(grid, {"a": at})("a", iter([batch])))


def _value(columns: Numbers) -> tuple[int, ...]:
    return tuple(merged(_digests(columns)).value.tolist())
