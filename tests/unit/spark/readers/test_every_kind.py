"""What every kind of oplog gives: each entry once, in order, in balanced parts; and what a member does meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from replset.ids import OpTime
from replset.oplog_row import OplogRow
from spark.columns import COLUMNS, arrow_schema
from spark.members import open_members
from spark.oplog import (
    EVERYTHING,
    START,
    Bounds,
    EntryFilter,
    Oplog,
    OplogRolledBackError,
    OplogTrimmedError,
    ReadPosition,
    Span,
)
from spark.readers import live
from spark.readers.dump import DumpOplog
from spark.readers.parquet import ParquetOplog
from spark.readers.wire import WireOplog
from tests.spark.kit import T0
from tests.unit.spark.readers.conftest import (
    FileMember,
    StandIn,
    WireStandIn,
    archived,
    history,
    rows_of,
    stamps,
    stand_in,
    wire_stand_in,
)

GROWING = ["file", "live", "wire"]
WITHOUT_CHAIN = DumpOplog, WireOplog
KINDS = [*GROWING, "dump", "shuffled dump", "parquet", "archive"]
ROWS = history(100)


class Fixed:
    """A file that no member writes to."""

    def __init__(self, kind: str, folder: Path, rows: list[OplogRow]) -> None:
        self.rows, self.oplog = rows, self._written(kind, folder, rows)

    def _written(self, kind: str, folder: Path, rows: list[OplogRow]) -> Oplog:
        if kind == "archive":  # in segments that overlap
            return open_members([archived(folder / "m1", rows, (0, 20), (15, 33), (20, 30), (33, 100))])[0]
        if kind == "parquet":
            table = pa.Table.from_pylist([dict(zip(COLUMNS, row, strict=True)) for row in rows], arrow_schema())
            pq.write_table(table, folder / "m1.parquet", row_group_size=9)
            return ParquetOplog("m1", str(folder))
        entries = [row.entry for row in (Random(5).sample(rows, len(rows)) if kind == "shuffled dump" else rows)]
        (folder / "oplog.bson").write_bytes(b"".join(entries))
        return DumpOplog("m1", str(folder / "oplog.bson"))


@pytest.fixture(params=KINDS)
def member(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FileMember | StandIn | WireStandIn | Fixed]:
    monkeypatch.setattr(live, "_PAGE_ROWS", 15)
    monkeypatch.setattr("spark.readers.wire.BATCH_ENTRIES", 15)
    monkeypatch.setattr("spark.readers.dump._CHUNK_BYTES", 1000)
    if request.param == "live":
        with stand_in(ROWS) as made:
            yield made
    elif request.param == "wire":
        with wire_stand_in(ROWS) as made:
            yield made
    elif request.param == "file":
        yield FileMember(tmp_path, ROWS)
    else:
        yield Fixed(request.param, tmp_path, ROWS)


growing = pytest.mark.parametrize("member", GROWING, indirect=True)


def test_reading(member: Any) -> None:
    oplog, pinned = member.oplog, member.oplog.pin()
    expected = [dict(zip(COLUMNS, row, strict=True)) for row in ROWS]
    if isinstance(oplog, WITHOUT_CHAIN):
        expected = [row | {"chain": None} for row in expected]
    span, only = Span(ROWS[20].ts, ROWS[61].ts), EntryFilter(ns=("shop.c1", "shop.c' OR 1"), op=("i", "u"))
    assert pinned.pin() is pinned or pinned.pin() == pinned
    for read in (oplog, pinned):
        assert rows_of(read) == expected
        assert rows_of(read, span) == expected[20:61]
        assert rows_of(read, span, only) == expected[21:61:2]
        assert stamps(read, EVERYTHING, EntryFilter(op=("d",))) == stamps(read, Span(5, 5)) == []
        for columns in (("hash",), ("entry", "term"), ("key", "ts", "ns")):
            found = pa.Table.from_batches(read.read(EVERYTHING, columns))
            assert found.column_names == list(columns)
            assert found.to_pylist() == [{name: row[name] for name in columns} for row in expected]


def test_bounds(member: Any) -> None:
    bounds, chain = member.oplog.bounds(), None if isinstance(member.oplog, WITHOUT_CHAIN) else ROWS[-1].chain
    assert bounds == Bounds(ROWS[0].optime, ROWS[-1].optime, bounds.rows, chain=chain)
    assert bounds.rows == pytest.approx(100, rel=0.1)
    numbers = [number for end in (bounds.oldest, bounds.newest) for number in (end.ts, end.term)]
    assert {type(number) for number in numbers} == {int}, "Spark takes ints"
    assert member.oplog.pin().bounds() == bounds


@pytest.mark.parametrize("parts", [1, 4, 7])
def test_parts_hold_everything_once_and_in_order(member: Any, parts: int) -> None:
    pinned = member.oplog.pin()
    spans = pinned.split(EVERYTHING, parts)
    found = [stamps(pinned, span) for span in spans]
    assert [ts for part in found for ts in part] == [row.ts for row in ROWS]
    assert len(found) == parts
    assert max(map(len, found)) <= 2 * len(ROWS) / parts
    assert pinned.count(EVERYTHING) == pytest.approx(100, abs=6)


@pytest.mark.parametrize("kind", [*GROWING, "dump"])
def test_an_empty_oplog(kind: str, tmp_path: Path) -> None:
    def check(oplog: Oplog) -> None:
        assert (oplog.bounds(), rows_of(oplog), oplog.split(EVERYTHING, 3)) == (Bounds(), [], [EVERYTHING])

    if kind in ("live", "wire"):
        with stand_in([]) if kind == "live" else wire_stand_in([]) as made:
            check(made.oplog)
    else:
        check((FileMember(tmp_path, []) if kind == "file" else Fixed(kind, tmp_path, [])).oplog)


# --- members that go on


@growing
def test_a_pinned_place_gives_nothing_newer(member: Any) -> None:
    pinned = member.oplog.pin()
    member.rows = history(150)
    assert (len(stamps(pinned)), len(stamps(member.oplog))) == (100, 150)
    assert pinned.count(EVERYTHING) == pytest.approx(100, abs=6)


@growing
def test_entries_that_were_trimmed_in_between(member: Any) -> None:
    pinned = member.oplog.pin()
    member.trim(ROWS[29].ts)
    with pytest.raises(OplogTrimmedError, match=r"m1: .* up to \d+:\d+ were trimmed away"):
        stamps(pinned)
    assert len(stamps(pinned, Span(ROWS[30].ts, EVERYTHING.end_ts))) == 70
    with pytest.raises(OplogTrimmedError):
        stamps(member.oplog, Span(ROWS[29].ts, EVERYTHING.end_ts))
    assert len(stamps(member.oplog)) == 70  # what was trimmed before anybody asked is no loss
    assert len(stamps(member.oplog.pin(), Span(ROWS[3].ts, EVERYTHING.end_ts))) == 70
    if isinstance(member, FileMember):
        assert member.oplog.bounds().trimmed_through == ROWS[29].ts


@growing
@pytest.mark.parametrize("count", [110, 95], ids=["further than before", "not as far as before"])
def test_entries_that_were_rolled_back_in_between(member: Any, count: int) -> None:
    pinned = member.oplog.pin()
    member.rows = history(count, others_from=90)
    with pytest.raises(OplogRolledBackError, match=rf"m1: its entry 1:{T0 + 9}:10 .* rolled back"):
        stamps(pinned, Span(0, ROWS[50].ts))


@pytest.mark.parametrize("member", ["file", "live"], indirect=True)
def test_follow(member: Any) -> None:
    oplog, marks = member.oplog, [ReadPosition(row.optime, row.chain) for row in ROWS]
    assert oplog.follow(START, 1) == marks[0]
    assert oplog.follow(marks[0], 40) == marks[40]
    assert oplog.follow(marks[40], 1000) == marks[99] == oplog.follow(marks[99], 5)
    assert stamps(oplog.between(marks[10], marks[30])) == [row.ts for row in ROWS[11:31]]
    assert stamps(oplog.between(START, marks[2])) == [row.ts for row in ROWS[:3]]
    member.trim(ROWS[30].ts)
    assert oplog.follow(marks[30], 1) == oplog.follow(START, 1) == marks[31]
    with pytest.raises(OplogTrimmedError) as caught:
        oplog.follow(marks[29], 1)
    assert ROWS[30].ts <= caught.value.through < ROWS[31].ts
    with pytest.raises(OplogTrimmedError):
        stamps(oplog.between(marks[29], marks[40]))
    with pytest.raises(OplogRolledBackError, match=str(ROWS[50].optime)):
        oplog.follow(ReadPosition(ROWS[50].optime, 5), 1)
    with pytest.raises(OplogRolledBackError, match="2:"):
        oplog.follow(ReadPosition(OpTime(2, ROWS[50].ts), ROWS[50].chain), 1)
    member.rows = ROWS[31:60]
    with pytest.raises(OplogRolledBackError, match=str(ROWS[70].optime)):
        oplog.follow(marks[70], 1)
