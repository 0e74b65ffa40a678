"""Elections in Spark: a cut-off primary, the one elected instead, and the rollback that recorded the loss."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from replset.ids import OpTime
from spark.readers.sqlite import SqliteOplog
from spark.reports.elections import elections
from tests.spark.history_kit import COMMON, LOST, NEXT, member, parted_set
from tests.spark.kit import T0
from tests.unit.spark.test_elections import MANIFEST

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_primary_that_wrote_on_alone(spark: SparkSession, tmp_path: Path) -> None:
    oplogs = parted_set(tmp_path)
    first, last = LOST[0], LOST[4]
    manifest = replace(MANIFEST, first=OpTime(1, first[0]), last=OpTime(1, last[0]), entries=5)
    (tmp_path / "b" / "rollback").mkdir()
    (tmp_path / "b" / "rollback" / "rollback-1.json").write_text(json.dumps(manifest.document()))

    found = elections(spark, oplogs)

    assert found.winner == "b"
    terms = [row.asDict() for row in found.terms.collect()]
    assert [row["term"] for row in terms] == [1, 2]
    one, two = terms
    assert (one["primary"], one["began"], one["gap_ms"]) == ("a:1", "initiating set", None)
    assert (one["first"], one["last"]) == (f"1:{T0 - 2}:1", f"1:{T0 + 20}:1")
    assert (one["entries"], one["members"]) == (len(COMMON), ["a", "b", "c"])
    assert (one["lost"], one["lost_by"], one["rolled_back"], one["rollbacks"]) == (20, ["a"], 5, ["b/rollback-1"])
    assert (two["primary"], two["began"], two["gap_ms"]) == ("b:1", "new primary", 20_000)
    assert (two["entries"], two["members"], two["lost"]) == (len(NEXT), ["b"], 0)

    lost = found.lost.orderBy("ts").collect()
    assert [(row["member"], row["ts"], row["optime"], bytes(row["entry"])) for row in lost] == [
        ("a", ts, str(OpTime(term, ts)), entry) for ts, term, _, _, _, _, entry in LOST
    ]
    assert [row["rollback"] for row in lost] == ["b/rollback-1"] * 5 + [None] * 15
    (rollback,) = found.rollbacks.collect()
    assert (rollback["member"], rollback["id"], rollback["state"]) == ("b", "rollback-1", "finished")


def test_members_that_agree_and_members_that_are_empty(spark: SparkSession, tmp_path: Path) -> None:
    same = [member(tmp_path, "a", [*COMMON, *NEXT]), member(tmp_path, "b", COMMON), member(tmp_path, "c", [])]
    found = elections(spark, same)
    assert found.winner == "a"
    assert [(row["term"], row["lost"]) for row in found.terms.collect()] == [(1, 0), (2, 0)]
    assert found.lost.collect() == found.rollbacks.collect() == []
    nothing: list[SqliteOplog] = same[2:]
    found = elections(spark, nothing)
    assert (found.winner, found.terms.collect(), found.lost.collect()) == (None, [], [])
