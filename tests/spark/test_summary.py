"""summary: the rows of the local engine, whatever the parts."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from replset.bson import encode
from replset.oplog_row import UnchainedRow
from spark.oplog import EntryFilter, Span
from spark.readers.sqlite import SqliteOplog
from spark.reports.summary import Summary, summary, summary_of
from spark.runners import LocalRunner
from tests.spark.kit import insert, write_oplog
from tests.unit.spark.test_summary import DIFF_O, WHOLE_O, entry

TABLES = Summary.__slots__


def history(count: int) -> list[UnchainedRow]:
    """Seconds apart: no-ops, commands, inserts, deletes, and updates of which document 7 gets half."""
    rows = []
    for n in range(count):
        kind = "ncidu"[min(4, n % 11)]
        of = 7 if n % 2 else n % 13
        if kind == "i":
            rows.append(insert(n, per_second=1, term=1 + n // 500, text="x" * (n % 300), ns=f"shop.c{n % 3}"))
        else:
            o = WHOLE_O if n % 7 == 0 else DIFF_O
            rows.append(entry(n, kind, o, of=of, term=1 + n // 500, ns=f"shop.c{n % 3}"))
    return rows


@pytest.fixture(scope="module")
def oplogs(tmp_path_factory: pytest.TempPathFactory) -> list[SqliteOplog]:
    root = tmp_path_factory.mktemp("summary")
    held = {"a": history(1200), "b": history(700), "empty": [], "odd": [(*entry(0, "u", encode({}))[:6], b"broken")]}
    return [SqliteOplog(name, str(write_oplog(root / name, rows) / "replset.db")) for name, rows in held.items()]


def test_spark_gives_the_rows_of_the_local_engine(spark: SparkSession, oplogs: list[SqliteOplog]) -> None:
    assert_same(summary(spark, oplogs, top=4, rows_per_task=350), summary_of(LocalRunner(), oplogs, top=4))


def test_also_of_a_span_and_an_operation_in_one_task(spark: SparkSession, oplogs: list[SqliteOplog]) -> None:
    span, only = Span(oplogs[0].bounds().oldest.ts + (300 << 31), 1 << 62), EntryFilter(op=("u", "i"))
    assert_same(
        summary(spark, oplogs, span=span, only=only, top=4),
        summary_of(LocalRunner(), oplogs, span=span, only=only, top=4, rows_per_task=70),
    )
    assert summary(spark, oplogs, top=0).hot.collect() == []


def assert_same(found: Summary[DataFrame], expected: Summary[pa.Table]) -> None:
    for name in TABLES:
        rows, table = getattr(found, name), getattr(expected, name)
        assert rows.toArrow().to_pylist() == table.to_pylist(), name
        assert rows.columns == table.column_names
    assert expected.members.num_rows
