"""format("oplog"): every kind of member as one table; what a query may do to it, and what goes wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import RDD
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

import spark as package
from spark.columns import COLUMNS, MEMBER, SPARK_SCHEMA, arrow_schema
from spark.jobs import oplog_error
from spark.members import open_members
from spark.oplog import EVERYTHING
from tests.spark.kit import T0, insert, trim, write_oplog

N = 2_000


@pytest.fixture(scope="module")
def dbpath(tmp_path_factory: pytest.TempPathFactory) -> Path:
    entries = (insert(n, ns=f"shop.c{n % 4}", per_second=100) for n in range(N))
    return write_oplog(tmp_path_factory.mktemp("source") / "m1", entries)


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    package.register(spark)
    return spark


def load(session: SparkSession, *members: object, **options: object) -> DataFrame:
    reader = session.read.format("oplog")
    for name, value in options.items():
        reader = reader.option(name.removesuffix("_"), str(value))
    return reader.load(list(map(str, members)) if len(members) > 1 else str(members[0]))


def test_every_column_of_every_kind_of_member(session: SparkSession, dbpath: Path, tmp_path: Path) -> None:
    oplogs = open_members([str(dbpath)])
    rows = [row for batch in oplogs[0].read(EVERYTHING, COLUMNS) for row in batch.to_pylist()]
    dump = tmp_path / "oplog.bson"
    dump.write_bytes(b"".join(row["entry"] for row in rows))
    file = tmp_path / "old.parquet"
    pq.write_table(pa.Table.from_pylist(rows, arrow_schema()), file)
    table = load(session, dbpath, f"dump={dump}", f"old={file}", rowsPerTask=1500)
    assert ", ".join(f"{name} {kind}" for name, kind in table.dtypes) == SPARK_SCHEMA
    found = sorted((row.asDict() for row in table.collect()), key=lambda row: (row[MEMBER], row["ts"]))
    assert found == [
        {MEMBER: name, **row, **({"chain": None} if name == "dump" else {})}
        for name in ("dump", "m1", "old")
        for row in rows
    ]


def test_options(session: SparkSession, dbpath: Path) -> None:
    ends = [insert(n, per_second=100)[0] for n in (100, 300)]
    begin, end = (f"1:{ts >> 31}:{ts & 0x7FFFFFFF}" for ts in ends)
    table = load(session, dbpath, from_=begin, to=end, ns="shop.c1,shop.c2", op="i", columns="ts,ns", rowsPerTask=50)
    assert table.columns == ["ts", "ns"]
    expected = [insert(n, per_second=100)[0] for n in range(100, 301) if n % 4 in (1, 2)]
    assert [row.ts for row in table.orderBy("ts").collect()] == expected


@pytest.mark.parametrize(("rows_per_task", "rows_per_batch"), [(10 * N, 10_000), (170, 1), (700, 300)])
def test_tasks_and_batches_change_no_result(
    session: SparkSession, dbpath: Path, rows_per_task: int, rows_per_batch: int
) -> None:
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = session.conf.get(name)
    session.conf.set(name, rows_per_batch)
    try:
        table = load(session, dbpath, columns="ns,entry,ts,key", rowsPerTask=rows_per_task)
        found = sorted(tuple(row) for row in table.filter("ns <> 'shop.c3'").collect())
    finally:
        session.conf.set(name, before)
    columns = ("ns", "entry", "ts", "key")
    batches = open_members([str(dbpath)])[0].read(EVERYTHING, columns)
    rows = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    assert found == sorted(row for row in rows if row[0] != "shop.c3")


def test_a_schema_reads_fewer_columns(session: SparkSession, dbpath: Path) -> None:
    table = session.read.format("oplog").schema("hash bigint, member string").load(str(dbpath))
    assert table.columns == ["hash", "member"]
    assert table.filter("member = 'm1' and hash is not null").count() == N
    with pytest.raises(Exception, match="format oplog has no column ts string"):
        session.read.format("oplog").schema("ts string").load(str(dbpath)).collect()


@pytest.mark.in_turns
def test_two_branches_with_different_filters_join_right(session: SparkSession, dbpath: Path) -> None:
    """What fails where the data source has `pushFilters`: each branch then sees the filters of both."""
    table = load(session, dbpath)
    even = table.filter(f.col("ns").isin("shop.c0", "shop.c2")).select("ts", f.col("hash").alias("left"))
    first = table.filter((f.col("ts") < insert(500, per_second=100)[0]) & (f.col("ns") != "shop.c0"))
    joined = even.join(first.select("ts", f.col("hash").alias("right")), "ts", "full_outer")
    counts = joined.agg(f.count("left"), f.count("right"), f.count(f.expr("left = right")), f.count("*")).first()
    assert counts is not None
    assert tuple(counts) == (N // 2, 375, 125, N // 2 + 250)
    assert table.filter("ns = 'shop.c1'").unionAll(table.filter("ns = 'shop.c2'")).count() == N // 2
    assert table.filter("op = 'i'").exceptAll(table.filter("ns <> 'shop.c3'")).count() == N // 4


def test_an_empty_oplog(session: SparkSession, tmp_path: Path) -> None:
    assert load(session, write_oplog(tmp_path / "none", [])).collect() == []


def error_text(frame: DataFrame | RDD[Row]) -> tuple[str, str]:
    with pytest.raises(Exception, match="oplog-error") as caught:
        frame.collect()
    error = oplog_error(caught.value)
    return error.name, error.reason


def test_errors_come_home_with_the_members_name(session: SparkSession, dbpath: Path, tmp_path: Path) -> None:
    damaged = write_oplog(tmp_path / "m2", map(insert, range(1000))) / "replset.db"
    content = damaged.read_bytes()
    damaged.write_bytes(content[: len(content) * 3 // 4] + bytes(len(content) // 4))
    name, reason = error_text(load(session, dbpath, damaged))
    assert (name, "is damaged" in reason) == ("m2", True)
    assert error_text(load(session, tmp_path / "none"))[1] == "there is no such file or folder"
    with pytest.raises(Exception, match="format oplog has no option colour"):
        load(session, dbpath, colour="red").collect()


@pytest.mark.parametrize("on_trimmed", ["fail", "skip"])
def test_a_head_that_moves_away_after_the_query_was_planned(
    session: SparkSession, tmp_path: Path, on_trimmed: str
) -> None:
    folder = write_oplog(tmp_path / "m1", map(insert, range(1000)))
    table = load(session, folder, onTrimmed=on_trimmed, rowsPerTask=300)
    assert table.rdd.getNumPartitions() == 4  # planned now
    trim(folder, insert(399)[0])
    if on_trimmed == "skip":
        assert sorted(row.ts for row in table.rdd.collect()) == [insert(n)[0] for n in range(400, 1000)]
    else:
        name, reason = error_text(table.rdd)
        assert name == "m1"
        assert f"entries up to {T0}:400 were trimmed away" in reason


def test_names_of_several_members(session: SparkSession, dbpath: Path, tmp_path: Path) -> None:
    other = write_oplog(tmp_path / "m1", map(insert, range(10)))
    members = json.dumps([str(dbpath), f"b={other}"])
    table = session.read.format("oplog").option("paths", members).option("member", "b").load()
    assert [tuple(row) for row in table.groupBy(MEMBER).count().collect()] == [("b", 10)]
