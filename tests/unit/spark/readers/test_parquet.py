"""Exported oplogs: several members and namespaces, merged by time, pruned, whoever wrote the files."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from replset.ids import OpTime
from replset.oplog_row import chained_rows
from spark.columns import COLUMNS, MEMBER, arrow_schema
from spark.oplog import EVERYTHING, Bounds, EntryFilter, OplogError, Span
from spark.readers import parquet
from spark.readers.parquet import ParquetOplog, exported_members
from tests.spark.kit import insert
from tests.unit.spark.readers.conftest import rows_of, stamps

N = 6000
NAMES = [f"shop.c{number}" for number in range(3)]


def table_of(member: str, numbers: range, *, ns: str | None = None) -> pa.Table:
    rows = chained_rows((insert(n, ns=ns or NAMES[n % 3], per_second=100) for n in numbers), 0)
    columns = [pa.array([member] * len(rows)), *(pa.array(column) for column in zip(*rows, strict=True))]
    return pa.table(columns, names=[MEMBER, *COLUMNS]).cast(arrow_schema((MEMBER, *COLUMNS)))


def write(folder: Path, table: pa.Table, name: str = "part-0.parquet", **options: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / name, **options)


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """Members `a` (N entries) and `b:1` (half of them), a file for each namespace, some row groups in each."""
    for member, count in (("a", N), ("b:1", N // 2)):
        table = table_of(member, range(count))
        for ns in NAMES:
            folder = tmp_path / f"member={member.replace(':', '%3A')}" / "day=2025-10-09" / f"ns={ns}"
            write(folder, table.filter(pc.equal(table.column("ns"), ns)), row_group_size=150)
    (tmp_path / "_SUCCESS").touch()
    write(tmp_path / "_temporary-1", table_of("ghost", range(10)))
    return tmp_path


def test_members_and_what_they_hold(exported: Path) -> None:
    assert exported_members(str(exported)) == ["a", "b:1"]
    for member, count in (("a", N), ("b:1", N // 2)):
        oplog = ParquetOplog(member, str(exported), member)
        expected = table_of(member, range(count)).drop_columns([MEMBER]).to_pylist()
        assert rows_of(oplog) == expected
        ends = [OpTime(expected[at]["term"], expected[at]["ts"]) for at in (0, -1)]
        assert oplog.pin().bounds() == Bounds(ends[0], ends[1], count, chain=expected[-1]["chain"])
        parts = [stamps(oplog, span) for span in oplog.pin().split(EVERYTHING, 16)]
        assert (len(parts), oplog.pin().count(EVERYTHING)) == (16, count)
        assert [ts for part in parts for ts in part] == [row["ts"] for row in expected]
    assert len(stamps(ParquetOplog("all", str(exported)))) == N + N // 2


def test_a_span_and_a_choice_read_only_their_row_groups(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    oplog = ParquetOplog("a", str(exported), "a").pin()
    read: list[parquet.Group] = []
    original = parquet._Files.read

    def noted(self: parquet._Files, group: parquet.Group, columns: Any) -> pa.Table:
        read.append(group)
        return original(self, group, columns)

    monkeypatch.setattr(parquet._Files, "read", noted)
    span = Span(insert(3000, per_second=100)[0], insert(3200, per_second=100)[0])
    found = rows_of(oplog, span, EntryFilter(ns=(NAMES[1],), op=("i", "u")))
    assert [row["ts"] for row in found] == [insert(n, per_second=100)[0] for n in range(3001, 3200, 3)]
    assert {group.ns for group in read} == {(NAMES[1], NAMES[1])}
    assert len(read) <= 2
    assert rows_of(oplog, only=EntryFilter(op=("d",))) == []


def test_rows_in_any_order_and_members_mixed_in_a_file(tmp_path: Path) -> None:
    table = pa.concat_tables([table_of("a", range(1000)), table_of("b", range(500, 700))])
    numbers = list(range(len(table)))
    Random(3).shuffle(numbers)
    write(tmp_path, table.take(numbers), row_group_size=90, write_statistics=["hash"])
    assert exported_members(str(tmp_path)) == ["a", "b"]
    for member, expected in (("a", range(1000)), ("b", range(500, 700))):
        oplog = ParquetOplog(member, str(tmp_path), member).pin()
        assert rows_of(oplog) == table_of(member, expected).drop_columns([MEMBER]).to_pylist()
        assert oplog.bounds().rows == len(expected)
        assert oplog.bounds().oldest.ts == insert(expected[0], per_second=100)[0]


def test_files_without_the_member_column(tmp_path: Path) -> None:
    write(tmp_path / "member=a%2Fb", table_of("x", range(10)).drop_columns([MEMBER]))
    assert exported_members(str(tmp_path)) == ["a/b"]
    assert len(stamps(ParquetOplog("m", str(tmp_path), "a/b"))) == 10
    write(tmp_path / "plain", table_of("x", range(10)).drop_columns([MEMBER]))
    assert exported_members(str(tmp_path / "plain")) == []
    assert len(stamps(ParquetOplog("m", str(tmp_path / "plain")))) == 10
    assert len(stamps(ParquetOplog("m", str(tmp_path / "plain" / "part-0.parquet")))) == 10


def test_nothing_there(tmp_path: Path) -> None:
    oplog = ParquetOplog("m", str(tmp_path))
    assert (exported_members(str(tmp_path)), oplog.bounds(), rows_of(oplog)) == ([], Bounds(), [])
    assert oplog.pin().split(EVERYTHING, 4) == [EVERYTHING]


def test_an_address(exported: Path) -> None:
    with pytest.raises(OplogError, match=r"^m: .*nosuch"):
        rows_of(ParquetOplog("m", "nosuch://host/path"))
    uri = f"file://{exported}"
    assert exported_members(uri) == ["a", "b:1"]
    assert len(stamps(ParquetOplog("a", uri, "a"))) == N
