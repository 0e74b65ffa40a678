"""Digests of buckets of an oplog: they show where members differ without comparing their entries.

A bucket is a fixed function of the timestamp alone, so members agree on it whatever their oldest entries are. A digest
is a sum over its entries, so neither order nor batches nor parts of the work change it. The stored hashes are compared;
that they are those of the entries is checked by `verify`, or computed by `ComparedOplog`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replset.ids import OPTIME_NULL, OpTime
from replset.oplog_row import entry_hash
from spark.columns import arrow_schema, repeated, schema_of
from spark.jobs import read_remaining
from spark.oplog import ALL, EVERYTHING, Bounds, EntryFilter, GrowingOplog, Oplog, Span

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
READ_FOR_DIGESTS = ("ts", "term", "hash")
ENTRIES_PER_SLOT = 256
INCREMENTS = 512
"""Increments of a bucket within one second."""
SCHEMA = schema_of("at bucket rows low high last_ts last_term")
"""A digest: `at` is the member's number, last_ts and last_term those of its newest entry. low, high: sums of the lower
and upper 32 bits of each entry's value, so that they do not overflow; `carried` makes them comparable."""
INC_BITS = 31
_INC_MASK = (1 << INC_BITS) - 1
_HALF = 32
_HALF_MASK = (1 << _HALF) - 1
_SLOT_SECONDS_MAX = 1 << 20
_GAP_ENTRIES = 8_192
_ODD = tuple(np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xD6E8FEB86659FD93))


@dataclass(frozen=True, slots=True)
class BucketGrid:
    """Which bucket an entry is in, known by the smallest ts that could be in it.

    The first INCREMENTS increments of slot_seconds (a power of two) make a bucket, and in each second every INCREMENTS
    further ones: an oplog with few entries a second gets few buckets, a hot second does not make a large one.
    gap_seconds: buckets that are so near each other are read at once.
    """

    slot_seconds: int = 1
    gap_seconds: int = 0

    def stretch(self, rows: int) -> tuple[int, int]:
        """Over how many seconds, and within one over how many increments, there are some `rows` entries."""
        return max(self.slot_seconds, self.gap_seconds * rows // _GAP_ENTRIES, 1), max(INCREMENTS, rows)

    @classmethod
    def over(cls, bounds: Iterable[Bounds]) -> BucketGrid:
        """So that a slot holds some ENTRIES_PER_SLOT entries of the member with most a second."""
        rates = [
            one.rows / (one.newest.seconds - one.oldest.seconds + 1)
            for one in bounds
            if one.newest != OPTIME_NULL and one.rows > 0
        ]
        rate = max(rates, default=float(ENTRIES_PER_SLOT))
        seconds = min(_SLOT_SECONDS_MAX, max(1, int(ENTRIES_PER_SLOT / rate)))
        return cls(1 << (seconds.bit_length() - 1), int(min(_GAP_ENTRIES / rate, 1 << INC_BITS)))

    def bucket_of(self, ts: Numbers) -> Numbers:
        fine = ts & ~(INCREMENTS - 1)
        if self.slot_seconds == 1:
            return fine
        slot = ts & ~((self.slot_seconds << INC_BITS) - 1)
        return np.where(ts & (_INC_MASK & ~(INCREMENTS - 1)), fine, slot)

    def end_of(self, bucket: Numbers) -> Numbers:
        """The first ts behind all that could be in the bucket."""
        if self.slot_seconds == 1:
            return bucket + INCREMENTS
        return bucket + np.where(bucket & _INC_MASK, INCREMENTS, self.slot_seconds << INC_BITS)

    def spans(self, buckets: Numbers) -> list[Span]:
        """What to read to have all entries of these buckets; others are in between. buckets: rising."""
        if not len(buckets):
            return []
        ends = np.maximum.accumulate(self.end_of(buckets))
        ahead, behind = buckets[1:], ends[:-1]
        seconds = (ahead >> INC_BITS) - (behind >> INC_BITS)
        near = np.where(seconds > 0, seconds <= self.gap_seconds, ahead - behind <= _GAP_ENTRIES)
        cuts = np.flatnonzero(~near)
        firsts = buckets[np.concatenate(([0], cuts + 1))]
        lasts = ends[np.concatenate((cuts, [len(ends) - 1]))]
        return [Span(*pair) for pair in zip(firsts.tolist(), lasts.tolist(), strict=True)]

    def read(
        self, oplog: Oplog, buckets: Numbers, columns: Sequence[str], within: Span = EVERYTHING
    ) -> Iterator[pa.RecordBatch]:
        """All entries of these buckets that are `within`. buckets: rising. columns: with `ts`."""
        for first, end in self.spans(buckets):
            for batch in oplog.read(Span(max(first, within.first_ts), min(end, within.end_ts)), columns):
                wanted = is_among(self.bucket_of(numbers(batch, "ts")), buckets)
                if wanted.all():
                    yield batch
                elif wanted.any():
                    yield batch.filter(pa.array(wanted))


@dataclass(frozen=True, slots=True)
class ComparedOplog:
    """A pinned oplog as `diff` reads it: what is left of it where its oldest entries were trimmed away meanwhile.

    by_bytes: hashes are computed of the entries' bytes, which costs the reading of every entry. A stored hash is a
    number beside the entry.
    """

    oplog: Oplog
    by_bytes: bool = False

    @property
    def name(self) -> str:
        return self.oplog.name

    def pin(self) -> ComparedOplog:
        return self

    def bounds(self) -> Bounds:
        return self.oplog.bounds()

    def count(self, span: Span) -> int:
        return self.oplog.count(span)

    def split(self, span: Span, parts: int) -> list[Span]:
        return self.oplog.split(span, parts)

    def read(self, span: Span, columns: Sequence[str], only: EntryFilter = ALL) -> Iterator[pa.RecordBatch]:
        computed = self.by_bytes and "hash" in columns
        stored = dict.fromkeys([*(name for name in columns if name != "hash"), "entry"] if computed else columns)
        for batch in read_remaining(self.oplog, span, tuple(stored), only):
            if computed:
                hashes = pa.array(map(entry_hash, batch.column("entry").to_pylist()), pa.int64())
                arrays = [hashes if name == "hash" else batch.column(name) for name in columns]
                batch = pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))
            yield batch


@dataclass(frozen=True, slots=True)
class ComparedMembers:
    """The members of one comparison, pinned, by name. given: as they were before, to see how they go on."""

    given: tuple[Oplog, ...]
    pinned: tuple[ComparedOplog, ...]
    bounds: tuple[Bounds, ...]

    @classmethod
    def of(cls, oplogs: Sequence[Oplog], *, by_bytes: bool = False) -> ComparedMembers:
        """by_bytes: with hashes that are computed of the entries, not the stored ones."""
        given = tuple(sorted(oplogs, key=lambda oplog: oplog.name))
        pinned = tuple(ComparedOplog(oplog.pin(), by_bytes) for oplog in given)
        return cls(given, pinned, tuple(oplog.bounds() for oplog in pinned))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(oplog.name for oplog in self.pinned)

    @property
    def rows(self) -> int:
        return sum(one.rows for one in self.bounds)

    def heads(self, since: Sequence[int]) -> tuple[int, ...]:
        """The ts from which on each member still has its entries, where they began at `since` before."""
        return tuple(
            max(head, oplog.bounds().oldest.ts) if isinstance(oplog, GrowingOplog) else head
            for head, oplog in zip(since, self.given, strict=True)
        )


def digests_in(
    grid: BucketGrid, numbers_of: dict[str, int]
) -> Callable[[str, Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Work behind a reader: batches of (ts, term, hash), rising, to digests, of one bucket perhaps several."""

    def work(member: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parts = [
            digests_of(grid, *(numbers(batch, name) for name in READ_FOR_DIGESTS))
            for batch in batches
            if batch.num_rows
        ]
        if parts:
            columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
            at = np.full(len(columns[0]), numbers_of[member])
            yield pa.RecordBatch.from_arrays([pa.array(column) for column in (at, *columns)], schema=SCHEMA)

    return work


def digests_of(grid: BucketGrid, ts: Numbers, term: Numbers, hashed: Numbers) -> tuple[Numbers, ...]:
    """The columns of SCHEMA behind `at`, of each run of entries of one bucket. ts: rising."""
    if (ts[1:] == ts[:-1]).any():  # no member's file has that, but a dump may
        order = np.lexsort((term, ts))
        ts, term, hashed = ts[order], term[order], hashed[order]
    bucket = grid.bucket_of(ts)
    starts = run_starts(bucket)
    lasts = np.append(starts[1:], len(ts)) - 1
    value = hashed.view(np.uint64) ^ (ts.view(np.uint64) * _ODD[0] + term.view(np.uint64) * _ODD[1])
    value = mixed(value)
    low = np.add.reduceat(value & np.uint64(_HALF_MASK), starts)
    high = np.add.reduceat(value >> np.uint64(_HALF), starts)
    rows = lasts - starts + 1
    return bucket[starts], rows, low.view(np.int64), high.view(np.int64), ts[lasts], term[lasts]


def mixed(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Mix the bits, one to one: each bit of the result depends on many, so that different sets have different sums."""
    value = value * _ODD[2]
    value ^= value >> np.uint64(_HALF)
    return value * _ODD[0]


# --- the digests of all members --------------------------------------------------------------------------------


class Merged(NamedTuple):
    """One digest a member and bucket, ordered by (bucket, at). value: comparable."""

    at: Numbers
    bucket: Numbers
    rows: Numbers
    value: Numbers
    last_ts: Numbers
    last_term: Numbers


def merged(batch: pa.RecordBatch | pa.Table) -> Merged:
    """From digests of SCHEMA in any order."""
    at, bucket, rows, low, high, last_ts, last_term = (numbers(batch, name) for name in SCHEMA.names)
    order = np.lexsort((last_term, last_ts, at, bucket))
    at, bucket, last_ts, last_term = at[order], bucket[order], last_ts[order], last_term[order]
    starts = run_starts(bucket, at)
    lasts = np.append(starts[1:], len(at)) - 1 if len(at) else starts
    rows, low, high = (np.add.reduceat(column[order], starts) if len(at) else column for column in (rows, low, high))
    value = (((high + (low >> _HALF)) & _HALF_MASK) << _HALF) | (low & _HALF_MASK)
    return Merged(at[starts], bucket[starts], rows, value, last_ts[lasts], last_term[lasts])


class Compared(NamedTuple):
    """differing: numbers of the digests in buckets that not all members have alike, of members that count there.

    common: by pair of members the newest entry of the buckets that both have alike. rows, left_out: by member, how
    many of its entries count, and how many are in buckets that end before its oldest entry, since that moved.
    """

    differing: Numbers
    common: dict[tuple[int, int], OpTime]
    rows: Numbers
    left_out: Numbers


def compared(grid: BucketGrid, digests: Merged, heads: Sequence[int]) -> Compared:
    """heads: the ts of each member's oldest entry; before it nothing is expected of it."""
    members = len(heads)
    ends = grid.end_of(digests.bucket)
    counts = np.asarray(heads)[digests.at] < ends
    left_out = np.bincount(digests.at[~counts], digests.rows[~counts], members).astype(np.int64)
    kept = Merged(*(column[counts] for column in digests))
    starts = run_starts(kept.bucket)
    group = groups(starts, len(kept.bucket))
    present = np.zeros((len(starts), members), bool)
    value, rows, last_ts, last_term = (np.zeros((len(starts), members), np.int64) for _ in range(4))
    present[group, kept.at] = True
    for into, column in ((value, kept.value), (rows, kept.rows), (last_ts, kept.last_ts), (last_term, kept.last_term)):
        into[group, kept.at] = column
    expected = np.asarray(heads)[None, :] < grid.end_of(kept.bucket[starts])[:, None]
    first = kept.at[starts]
    line = np.arange(len(starts))
    as_first = present & (value == value[line, first][:, None]) & (rows == rows[line, first][:, None])
    differs = (expected & ~as_first).any(axis=1)
    common = {}
    for one in range(members):
        for other in range(one + 1, members):
            alike = present[:, one] & present[:, other] & (value[:, one] == value[:, other])
            alike &= rows[:, one] == rows[:, other]
            if alike.any():
                at = int(np.argmax(np.where(alike, last_ts[:, one], -1)))
                common[one, other] = OpTime(int(last_term[at, one]), int(last_ts[at, one]))
    total = np.bincount(kept.at, kept.rows, members).astype(np.int64)
    return Compared(np.flatnonzero(counts)[differs[group]], common, total, left_out)


# --- arrays ----------------------------------------------------------------------------------------------------


def numbers(batch: pa.RecordBatch | pa.Table, name: str) -> Numbers:
    """A column of 64-bit numbers without nulls."""
    column = batch.column(name)
    return np.asarray(column.to_numpy() if isinstance(column, pa.ChunkedArray) else column).astype(np.int64, copy=False)


def numbered(at: int, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with the member's number in front."""
    return pa.RecordBatch.from_arrays([repeated(at, batch.num_rows), *batch.columns], schema=schema)


def run_starts(*columns: Numbers) -> Numbers:
    """Where a row differs from the one before in any column."""
    if not len(columns[0]):
        return np.zeros(0, np.int64)
    changes = columns[0][1:] != columns[0][:-1]
    for column in columns[1:]:
        changes = changes | (column[1:] != column[:-1])
    return np.concatenate(([0], np.flatnonzero(changes) + 1))


def groups(starts: Numbers, rows: int) -> Numbers:
    """Of each row the number of the run that it is in."""
    flags = np.zeros(rows, np.int64)
    flags[starts[1:]] = 1
    return np.cumsum(flags)


def is_among(values: Numbers, wanted: Numbers) -> Flags:
    """wanted: rising."""
    if not len(wanted):
        return np.zeros(len(values), bool)
    found: Flags = wanted[np.searchsorted(wanted, values).clip(max=len(wanted) - 1)] == values
    return found


def whole_groups(batches: Iterable[pa.RecordBatch], *names: str) -> Iterator[pa.Table]:
    """The rows in tables that part no group of equal values in these columns of numbers. The rows: ordered by them."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        if not batch.num_rows:
            continue
        keys = [numbers(batch, name) for name in names]
        if waiting and any(numbers(waiting[-1], name)[-1] != key[0] for name, key in zip(names, keys, strict=True)):
            yield pa.Table.from_batches(waiting)
            waiting = []
        cut = int(run_starts(*keys)[-1])
        if cut:
            yield pa.Table.from_batches([*waiting, batch.slice(0, cut)])
            waiting = []
        waiting.append(batch.slice(cut))
    if waiting:
        yield pa.Table.from_batches(waiting)
