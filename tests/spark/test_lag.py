"""Lag in Spark: over time from the oplogs, and at periodic no-ops."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from replset.ids import pack_ts
from spark.oplog import Span
from spark.reports.lag import lag
from tests.spark.history_kit import parted_set
from tests.spark.kit import T0

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_who_stopped_who_wrote_on_and_what_the_noops_say(spark: SparkSession, tmp_path: Path) -> None:
    oplogs = parted_set(tmp_path)
    rows = lag(spark, oplogs).collect()
    at = {(row["member"], row["source"], row["at"] // 1000 - T0): row["behind_ms"] for row in rows}
    assert at[(None, "commitPoint", 20)] == 4000  # the entry before is of second 9, committed was second 5
    assert {row["source"] for row in rows} == {"walls", "commitPoint"}
    assert (at["a", "walls", 6], at["b", "walls", 6], at["c", "walls", 6]) == (0, 0, 1000)
    assert (at["a", "walls", 60], at["b", "walls", 60], at["c", "walls", 60]) == (39_000, 0, 55_000)
    newest = {row["member"]: row["optime"] for row in rows if row["at"] == (T0 + 60) * 1000}
    assert newest == {"a": f"1:{T0 + 20}:1", "b": f"2:{T0 + 59}:10", "c": f"1:{T0 + 4}:8"}
    wide = lag(spark, oplogs, every_ms=10_000).where("source = 'walls' and member = 'c'").collect()
    assert [row["behind_ms"] for row in wide] == [0, 5000, 16_000, 16_000, 36_000, 55_000]
    part = lag(spark, oplogs, span=Span(pack_ts(T0, 0), pack_ts(T0 + 8, 0)), every_ms=4000).where("member = 'c'")
    assert [row["behind_ms"] for row in part.collect()] == [0, 3000]
    assert [(row["source"], row["at"], row["member"] or "") for row in rows] == sorted(
        (row["source"], row["at"], row["member"] or "") for row in rows
    )


def test_nothing_is_behind_nothing(spark: SparkSession) -> None:
    assert lag(spark, []).collect() == []
