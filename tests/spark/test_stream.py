"""readStream.format("oplog"): each entry once over restarts and kills, and errors that reach whoever waits.

What a stream answers to each of Spark's questions is tested in tests/unit/spark/test_source.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import spark as package
from replset.oplog_row import UnchainedRow
from spark.jobs import oplog_error
from tests.spark.kit import T0, append, insert, trim, write_oplog


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    package.register(spark)
    return spark


class Tail:
    """One stream with its checkpoint, which takes what there is and ends.

    batches: (member, ts) of each by its number, as a table that is written by batch would have them. before, behind:
    called with a batch's number before and after its rows are read.
    """

    def __init__(self, session: SparkSession, checkpoint: Path, *members: object, **options: object) -> None:
        self._session, self.checkpoint = session, checkpoint
        self._members, self.options = members, options
        self.batches: dict[int, list[tuple[str, int]]] = {}
        self.taken: list[int] = []
        self.before: Callable[[int], None] = lambda _number: None
        self.behind: Callable[[int], None] = lambda _number: None

    def run(self) -> StreamingQuery:
        reader = self._session.readStream.format("oplog").option("paths", json.dumps(list(map(str, self._members))))
        for name, value in {"columns": "member,ts", **self.options}.items():
            reader = reader.option(name, str(value))
        writer = reader.load().writeStream.foreachBatch(self._take).option("checkpointLocation", str(self.checkpoint))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    def _take(self, frame: DataFrame, number: int) -> None:
        self.before(number)
        rows = sorted((row.member, row.ts) for row in frame.collect())
        assert self.batches.setdefault(number, rows) == rows
        self.taken.append(number)
        self.behind(number)

    @property
    def seen(self) -> list[tuple[str, int]]:
        return sorted(entry for batch in self.batches.values() for entry in batch)


def offset_of(query: StreamingQuery) -> dict[str, Any]:
    progress = query.lastProgress
    end: Any = progress["sources"][0]["endOffset"]
    return dict(end if isinstance(end, dict) else json.loads(end))


def entries(*numbers: int) -> list[UnchainedRow]:
    return [insert(n) for n in range(*numbers)]


def stamps(member: str, *numbers: int) -> list[tuple[str, int]]:
    return [(member, insert(n)[0]) for n in range(*numbers)]


def failure(tail: Tail) -> tuple[str, str]:
    with pytest.raises(Exception, match="oplog-error") as caught:
        tail.run()
    error = oplog_error(caught.value)
    return error.name, error.reason


@pytest.mark.in_turns
def test_each_entry_once_over_restarts_and_a_kill(session: SparkSession, tmp_path: Path) -> None:
    """The kill: between a batch that was taken and Spark's note of it. It comes again, and is the same."""
    one, two = write_oplog(tmp_path / "m1", entries(250)), write_oplog(tmp_path / "m2", [])
    tail = Tail(session, tmp_path / "checkpoint", one, two, maxEntriesPerBatch=100, rowsPerTask=60)
    tail.run()
    assert list(map(len, tail.batches.values())) == [100, 100, 50]
    for name in ("2", ".2.crc"):
        (tail.checkpoint / "commits" / name).unlink()
    append(one, entries(250, 300))
    append(two, entries(10))
    last = offset_of(tail.run())
    assert tail.taken == [0, 1, 2, 2, 3]
    assert tail.seen == [*stamps("m1", 300), *stamps("m2", 10)]
    assert {name: mark["optime"] for name, mark in last.items()} == {"m1": f"1:{T0}:300", "m2": f"1:{T0}:10"}


@pytest.mark.in_turns
def test_a_head_that_was_trimmed_while_the_stream_stood_still(session: SparkSession, tmp_path: Path) -> None:
    folder = write_oplog(tmp_path / "m1", entries(100))
    tail = Tail(session, tmp_path / "checkpoint", folder)
    tail.run()
    append(folder, entries(100, 5000))
    trim(folder, insert(4499)[0])
    name, reason = failure(tail)
    assert name == "m1"
    assert f"entries up to {T0 + 2}:500 were trimmed away" in reason
    tail.options["onTrimmed"] = "skip"
    last = offset_of(tail.run())
    assert tail.seen == [*stamps("m1", 100), *stamps("m1", 4500, 5000)]
    assert last["m1"]["skipped"]["lastThrough"] == f"0:{T0 + 2}:500"


@pytest.mark.parametrize("when", ["before", "behind"])
def test_a_member_that_rolls_back_under_the_stream(session: SparkSession, tmp_path: Path, when: str) -> None:
    """While its entries are read, or between two batches."""
    folder = write_oplog(tmp_path / "m1", entries(100))
    tail = Tail(session, tmp_path / "checkpoint", folder, maxEntriesPerBatch=60)
    setattr(tail, when, lambda _number: append(folder, [insert(n, term=2) for n in range(50, 120)], keep=50))
    name, reason = failure(tail)
    assert name == "m1"
    assert f"its entry 1:{T0}:60 is gone or in another history" in reason
    assert "new checkpointLocation" in reason
    assert tail.seen == ([] if when == "before" else stamps("m1", 60))
