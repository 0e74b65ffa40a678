"""verify: the rows of the local engine, whatever the parts."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from spark.oplog import Span
from spark.readers.sqlite import SqliteOplog
from spark.reports.verify import check as module
from spark.reports.verify.check import KINDS, Verification, verification, verify
from spark.runners import LocalRunner
from tests.spark.audit_kit import place_of
from tests.unit.spark.test_verify import LOST, PLANTED, SOUND, moves_then_sets


@pytest.fixture(scope="module")
def oplogs(tmp_path_factory: pytest.TempPathFactory) -> list[SqliteOplog]:
    """A fault of every kind, one a member; a sound member and an empty one."""
    root = tmp_path_factory.mktemp("verify")
    one_a_kind = {plant.kind: plant.rows for plant in PLANTED.values()} | {"idempotence": moves_then_sets(LOST["lost"])}
    assert set(one_a_kind) == set(KINDS)
    held = {**one_a_kind, "sound": SOUND, "empty": []}
    return [place_of(root, name, sorted(rows, key=lambda row: row.ts)) for name, rows in held.items()]


@pytest.fixture(scope="module")
def expected(oplogs: list[SqliteOplog]) -> Verification[pa.Table]:
    found = verification(LocalRunner(), oplogs)
    assert [(row["member"], row["kind"]) for row in found.faults.to_pylist()] == [
        (kind, kind) for kind in sorted(KINDS)
    ]
    return found


def assert_same(found: Verification[DataFrame], expected: Verification[pa.Table]) -> None:
    for name in Verification.__slots__:
        rows, table = getattr(found, name), getattr(expected, name)
        assert rows.toArrow().to_pylist() == table.to_pylist(), name
        assert rows.columns == table.column_names


def test_spark_gives_the_rows_of_the_local_engine(
    spark: SparkSession, oplogs: list[SqliteOplog], expected: Verification[pa.Table]
) -> None:
    assert_same(verify(spark, oplogs, rows_per_task=40), expected)


def test_also_where_there_are_too_many_documents_for_a_list_and_of_a_span(
    spark: SparkSession, oplogs: list[SqliteOplog], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All entries about documents go on to the second stage then."""
    span = Span(SOUND[10].ts, SOUND[-1].ts)
    expected = verification(LocalRunner(), oplogs, span=span)
    monkeypatch.setattr(module, "MOST_DOCUMENTS", 3)
    assert_same(verify(spark, oplogs, span=span), expected)
