"""What runners read: every entry once, whatever the parts; errors come home with the member's name."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from spark.columns import COLUMNS, MEMBER, arrow_schema, schema_of
from spark.jobs import oplog_error, plan, span_reader, with_member
from spark.oplog import EVERYTHING, EntryFilter, OplogError, Span
from spark.readers.sqlite import SqliteOplog
from spark.runners import LocalRunner, Runner, SparkRunner
from tests.spark.kit import insert, write_oplog

N = 3_000


@pytest.fixture(scope="module")
def oplogs(tmp_path_factory: pytest.TempPathFactory) -> list[SqliteOplog]:
    """`a` holds N entries of two namespaces, `b` the first half of them, `empty` none."""
    root = tmp_path_factory.mktemp("jobs")
    entries = [insert(n, ns="shop.even" if n % 2 == 0 else "shop.odd", per_second=100) for n in range(N)]
    held = {"a": entries, "b": entries[: N // 2], "empty": []}
    return [SqliteOplog(name, str(write_oplog(root / name, some) / "replset.db")) for name, some in held.items()]


def scan(runner: Runner, oplogs: list[SqliteOplog], columns: tuple[str, ...], **how: Any) -> Any:
    return runner.read(oplogs, columns, with_member, arrow_schema((MEMBER, *columns)), **how)


@pytest.mark.parametrize("rows_per_task", [400, 10_000])
def test_scan_gives_every_entry_once(spark: SparkSession, oplogs: list[SqliteOplog], rows_per_task: int) -> None:
    rows = scan(SparkRunner.of(spark), oplogs, COLUMNS, rows_per_task=rows_per_task).collect()
    for oplog in oplogs:
        expected = chain.from_iterable(batch.to_pylist() for batch in oplog.read(EVERYTHING, COLUMNS))
        found = sorted((row.asDict() for row in rows if row.member == oplog.name), key=lambda row: row["ts"])
        assert found == [{"member": oplog.name, **row} for row in expected]
    assert len(rows) == N + N // 2


def test_scan_of_a_span_and_a_namespace(spark: SparkSession, oplogs: list[SqliteOplog]) -> None:
    ts = [insert(n, per_second=100)[0] for n in (500, 900)]
    only = EntryFilter(ns=("shop.odd",))
    rows = scan(SparkRunner.of(spark), oplogs[:1], ("ts", "ns"), span=Span(*ts), only=only, rows_per_task=300).collect()
    assert sorted(row.ts for row in rows) == [insert(n, per_second=100)[0] for n in range(501, 900, 2)]
    assert {row.ns for row in rows} == {"shop.odd"}


def test_nothing_to_read_is_an_empty_table(spark: SparkSession, oplogs: list[SqliteOplog]) -> None:
    assert scan(SparkRunner.of(spark), [], ("ts",)).collect() == []
    assert scan(SparkRunner.of(spark), oplogs[2:], ("ts", "key")).collect() == []


def test_a_task_knows_the_others_in_few_bytes(oplogs: list[SqliteOplog]) -> None:
    """Or what tasks are sent grows with their number squared."""
    tasks = [(oplogs[number % 2], Span(number << 40, (number + 1) << 40)) for number in range(10_000)]
    assert len(cloudpickle.dumps(span_reader(tasks, COLUMNS, with_member))) < 24 * len(tasks)
    sent = cloudpickle.loads(cloudpickle.dumps(span_reader([(oplogs[0], EVERYTHING)], ("ts",), with_member)))
    assert sum(batch.num_rows for batch in sent(0)) == N


def test_work_runs_behind_the_reader_once_a_task(spark: SparkSession, oplogs: list[SqliteOplog]) -> None:
    def count(member: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = sum(batch.num_rows for batch in batches)
        yield pa.RecordBatch.from_pydict({"who": [member], "entries": pa.array([rows], pa.int64())})

    schema = schema_of("who entries", who=pa.string())
    found = SparkRunner.of(spark).read(oplogs, ("hash",), count, schema, rows_per_task=500).collect()
    assert {name: sum(row.entries for row in found if row.who == name) for name in "ab"} == {"a": N, "b": N // 2}
    assert len(found) == len(plan(oplogs, EVERYTHING, 500)) > 4


def test_collected_spans_are_those_of_threads_in_the_same_order(spark: SparkSession, oplogs: list[SqliteOplog]) -> None:
    ts = insert(500, per_second=100)[0]
    how = {"span": Span(ts, EVERYTHING.end_ts), "only": EntryFilter(ns=("shop.odd",)), "rows_per_task": 400}
    found = scan(LocalRunner(context=spark.sparkContext), oplogs, ("ts", "key"), **how)
    assert found == scan(LocalRunner(), oplogs, ("ts", "key"), **how)
    assert found.num_rows == 1250 + 500
    assert scan(LocalRunner(context=spark.sparkContext), oplogs[2:], ("ts",)).num_rows == 0


def test_a_worker_looks_for_garbage_among_what_its_tasks_made_alone(
    spark: SparkSession, oplogs: list[SqliteOplog]
) -> None:
    def count(member: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        left = len(gc.get_objects())
        yield pa.RecordBatch.from_pydict({"kept": pa.array([gc.get_freeze_count()]), "left": pa.array([left])})

    runner = SparkRunner.of(spark)
    for row in runner.read(oplogs[:1], (), count, schema_of("kept left"), rows_per_task=1000).collect():
        assert row.kept > 10 * row.left


def test_a_members_error_comes_home(spark: SparkSession, oplogs: list[SqliteOplog], tmp_path: Path) -> None:
    file = write_oplog(tmp_path, islice(map(insert, range(100)), 100)) / "replset.db"
    table = scan(SparkRunner.of(spark), [*oplogs, SqliteOplog("lost", str(file))], ("ts",))
    file.unlink()
    with pytest.raises(Exception, match="lost") as caught:
        table.collect()
    error = oplog_error(caught.value)
    assert error.name == "lost"
    assert "does not exist" in error.reason


def test_a_members_error_comes_home_from_workers_alone(spark: SparkSession, oplogs: list[SqliteOplog]) -> None:
    def fail(member: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise OplogError(member, "is lost")

    with pytest.raises(Exception, match="is lost") as caught:
        LocalRunner(context=spark.sparkContext).read(oplogs[:1], ("ts",), fail, arrow_schema(("ts",)))
    error = oplog_error(caught.value)
    assert (error.name, error.reason) == ("a", "is lost")
