"""Spark's `diff` gives the rows of the local engine, however the work is cut. What those must be: tests/property."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from spark.oplog import EntryFilter, Span
from spark.reports.diff import compare
from spark.reports.diff.classify import Diff
from spark.reports.diff.compare import diff, difference
from spark.reports.diff.digests import BucketGrid
from spark.reports.diff.documents import document_diff
from spark.runners import LocalRunner, SparkRunner
from tests.spark import planted
from tests.spark.diff_rows import TABLES, all_rows, rows
from tests.spark.kit import ListOplog
from tests.spark.planted import Change, Plan, Tail, dense, in_files, plant
from tests.spark.stores import change_document, change_entry, entries_of, optime_of, write_member
from tests.spark.trimming import LaterTrimmed

IN_ONE_TASK, IN_TASKS = compare.DIGESTS_PER_TASK, 1
BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"


@pytest.fixture(autouse=True)
def forgotten(spark: SparkSession) -> Iterator[None]:
    """Workers do not find the tests' modules; what one test kept in Spark is nothing to the next."""
    cloudpickle.register_pickle_by_value(planted)
    yield
    cloudpickle.unregister_pickle_by_value(planted)
    spark.catalog.clearCache()


@pytest.mark.parametrize(
    ("plan", "how", "digests", "by_spark"),
    [
        pytest.param(dense(0.0, 1), {}, IN_ONE_TASK, False, id="nothing"),
        pytest.param(dense(0.0, 1), {}, IN_TASKS, True, id="nothing, by Spark alone", marks=pytest.mark.in_turns),
        pytest.param(dense(0.05, 2, tail=Tail.LOSING), {"grid": BucketGrid(16, 2)}, IN_ONE_TASK, False, id="some"),
        pytest.param(
            dense(0.05, 2, tail=Tail.LOSING),
            {"rows_per_task": 150, "grid": BucketGrid(16, 2)},
            IN_TASKS,
            True,
            id="some, by Spark alone",
        ),
        pytest.param(
            dense(1.0, 3, entries=90, trimmed=(0, 20, 3)), {"rows_per_task": 40}, IN_ONE_TASK, True, id="everything"
        ),
    ],
)
def test_what_was_planted_in_files_is_found(
    spark: SparkSession,
    plan: Plan,
    how: dict[str, Any],
    digests: int,
    by_spark: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Digests and entries of one task are compared in this process, more of them by Spark."""
    monkeypatch.setattr(compare, "DIGESTS_PER_TASK", digests)
    made = plant(plan)
    oplogs = in_files(tmp_path, made.members)
    found = difference(SparkRunner.of(spark), oplogs, **how)
    assert isinstance(found.entries, DataFrame) is by_spark
    expected = difference(LocalRunner(), oplogs, **how)
    _check(found, expected)
    assert expected.entries.to_pylist() == made.expected


def test_bytes_and_documents_as_the_local_engine(spark: SparkSession, tmp_path: Path) -> None:
    made = entries_of(40)
    oplogs = [write_member(tmp_path / name, made[:end]) for name, end in (("m1", 44), ("m2", 44), ("m3", 39))]
    change_entry(oplogs[1], optime_of(made[-1]))
    found = diff(spark, oplogs, by_bytes=True)
    assert [row["kind"] for row in rows(found.entries)].count("divergent") == 1
    _check(found, difference(LocalRunner(), oplogs, by_bytes=True))
    point = optime_of(made[38])
    assert document_diff(SparkRunner.of(spark), oplogs, point).same
    change_document(oplogs[2], 1, {"_id": 1, "n": "rot"})
    in_spark, alone = document_diff(SparkRunner.of(spark), oplogs, point), document_diff(LocalRunner(), oplogs, point)
    assert in_spark.document() == alone.document()
    assert in_spark.differing.num_rows == 1


@pytest.mark.in_turns
def test_groups_that_part_at_batches_and_copies_of_entries(spark: SparkSession) -> None:
    """Three entries a batch, everywhere."""
    kinds = sorted(Change)
    changes = {number: (number % 4, kinds[number % len(kinds)]) for number in range(0, 60, 2)}
    made = plant(Plan(60, 4, 7, changes, (0, 5), Tail.SAME_TERM))
    oplogs = [*made.oplogs(3), ListOplog("empty", ())]
    before = spark.conf.get(BATCH)
    assert before is not None
    spark.conf.set(BATCH, 3)
    try:
        _check(diff(spark, oplogs, rows_per_task=25), difference(LocalRunner(), oplogs))
    finally:
        spark.conf.set(BATCH, before)


def test_a_span_and_some_namespaces(spark: SparkSession) -> None:
    made = plant(dense(0.3, 5, entries=120, trimmed=(30,)))
    held = made.members["m1"]
    span, only = Span(held[20].ts, held[80].ts), EntryFilter(ns=("shop.items", "app.users"))
    found = diff(spark, made.oplogs(), span=span, only=only)
    assert found.chosen
    _check(found, difference(LocalRunner(), made.oplogs(), span=span, only=only))


@pytest.mark.parametrize("digests", [IN_ONE_TASK, IN_TASKS])
def test_a_head_that_moves_away_meanwhile(
    spark: SparkSession, digests: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "DIGESTS_PER_TASK", digests)
    made = plant(dense(0.5, 7, entries=100))
    gone = {name: [row for row in rows if name != "m0" or row.ts > rows[40].ts] for name, rows in made.members.items()}
    expected = difference(LocalRunner(), in_files(tmp_path / "gone", gone))
    first, *others = in_files(tmp_path, made.members)
    found = diff(spark, [LaterTrimmed(first, made.members["m0"][40].ts), *others], grid=BucketGrid())
    assert rows(found.entries) == expected.entries.to_pylist()
    assert found.verdicts == expected.verdicts
    assert found.trimmed == rows(found.members)[0]["trimmed"] > 30


def _check(found: Diff[Any], expected: Diff[pa.Table]) -> None:
    assert all_rows(found) == all_rows(expected)
    for name in TABLES:
        assert getattr(found, name).schema.names == getattr(expected, name).schema.names
