"""readStream.format("oplog"): each entry once over restarts, in bounded batches, and what goes wrong on the way."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import spark as package
from replset.oplog_row import CHAIN_START, COLUMNS, Pending, chained_rows
from spark.jobs import place_error
from tests.spark.kit import T0, insert, write_oplog


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    package.register(spark)
    return spark


class Tail:
    """One stream with its checkpoint, which takes what there is and ends; `batches` are the ts of each, by member."""

    def __init__(self, session: SparkSession, checkpoint: Path, *members: object, **options: object) -> None:
        self._session, self._checkpoint = session, checkpoint
        self._members, self._options = members, options
        self.batches: list[list[tuple[str, int]]] = []

    def run(self) -> StreamingQuery:
        reader = self._session.readStream.format("oplog").option("paths", json.dumps(list(map(str, self._members))))
        for name, value in {"columns": "member,ts", **self._options}.items():
            reader = reader.option(name.removesuffix("_"), str(value))
        writer = reader.load().writeStream.foreachBatch(self._take).option("checkpointLocation", str(self._checkpoint))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    def _take(self, frame: DataFrame, _number: int) -> None:
        self.batches.append([(row.member, row.ts) for row in frame.collect()])

    @property
    def seen(self) -> list[tuple[str, int]]:
        return sorted(entry for batch in self.batches for entry in batch)


def append(folder: Path, pending: Iterable[Pending], *, keep: int | None = None) -> None:
    """More entries behind the newest; with `keep` behind the first `keep` of them: the member rolled back."""
    with closing(sqlite3.connect(folder / "replset.db")) as connection:
        if keep is not None:
            nth = "SELECT ts FROM oplog ORDER BY ts LIMIT 1 OFFSET ?"
            connection.execute(f"DELETE FROM oplog WHERE ts >= ({nth})", [keep])
        newest = connection.execute("SELECT chain FROM oplog ORDER BY ts DESC LIMIT 1").fetchone()
        rows = chained_rows(pending, newest[0] if newest else CHAIN_START)
        connection.executemany(f"INSERT INTO oplog({COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?)", rows)
        connection.commit()


def trim(folder: Path, through: int) -> None:
    with closing(sqlite3.connect(folder / "replset.db")) as connection:
        connection.execute("DELETE FROM oplog WHERE ts <= ?", [through])
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('trimmed_through', ?)", [through])
        connection.commit()


def offset_of(query: StreamingQuery) -> dict[str, Any]:
    progress = query.lastProgress
    assert progress is not None
    end: Any = progress["sources"][0]["endOffset"]
    return dict(end if isinstance(end, dict) else json.loads(end))


def entries(*numbers: int) -> list[Pending]:
    return [insert(n) for n in range(*numbers)]


def test_each_entry_once_over_restarts_in_bounded_batches(session: SparkSession, tmp_path: Path) -> None:
    one, two = write_oplog(tmp_path / "m1", entries(250)), write_oplog(tmp_path / "m2", [])
    tail = Tail(session, tmp_path / "checkpoint", one, two, maxEntriesPerBatch=100, rowsPerTask=40)
    tail.run()
    assert [len(batch) for batch in tail.batches] == [100, 100, 50]
    append(one, entries(250, 300))
    append(two, entries(10))
    query = tail.run()
    assert tail.seen == sorted([("m1", insert(n)[0]) for n in range(300)] + [("m2", insert(n)[0]) for n in range(10)])
    last = offset_of(query)
    assert {name: mark["optime"] for name, mark in last.items()} == {"m1": f"1:{T0}:300", "m2": f"1:{T0}:10"}
    before = len(tail.batches)
    tail.run()
    assert len(tail.batches) == before


def test_from_now_and_a_choice(session: SparkSession, tmp_path: Path) -> None:
    folder = write_oplog(tmp_path / "m1", entries(50))
    tail = Tail(session, tmp_path / "checkpoint", folder, from_="now", ns="shop.a")
    tail.run()
    assert tail.seen == []  # Spark begins a stream with a batch, be it an empty one
    append(folder, (insert(n, ns="shop.a" if n % 2 else "shop.b") for n in range(50, 60)))
    tail.run()
    assert tail.seen == [("m1", insert(n)[0]) for n in range(51, 60, 2)]


def failure(tail: Tail) -> tuple[str, str]:
    with pytest.raises(Exception, match="oplog-place-error") as caught:
        tail.run()
    error = place_error(caught.value)
    assert error is not None
    return error.name, error.reason


@pytest.mark.parametrize("on_trimmed", ["fail", "skip"])
def test_a_head_that_was_trimmed_while_the_stream_stood_still(
    session: SparkSession, tmp_path: Path, on_trimmed: str
) -> None:
    folder = write_oplog(tmp_path / "m1", entries(100))
    tail = Tail(session, tmp_path / "checkpoint", folder, onTrimmed=on_trimmed)
    tail.run()
    append(folder, entries(100, 5000))
    trim(folder, insert(4499)[0])
    if on_trimmed == "fail":
        name, reason = failure(tail)
        assert name == "m1"
        assert f"entries up to {T0 + 2}:500 were trimmed away" in reason
    else:
        last = offset_of(tail.run())
        assert tail.seen == [("m1", insert(n)[0]) for n in [*range(100), *range(4500, 5000)]]
        skipped = {"times": 1, "seconds": 2, "lastFrom": f"0:{T0}:101", "lastThrough": f"0:{T0 + 2}:500"}
        assert last["m1"]["skipped"] == skipped


def test_a_member_that_rolled_back_under_the_stream(session: SparkSession, tmp_path: Path) -> None:
    folder = write_oplog(tmp_path / "m1", entries(100))
    tail = Tail(session, tmp_path / "checkpoint", folder)
    tail.run()
    append(folder, [insert(n, term=2) for n in range(90, 120)], keep=90)
    name, reason = failure(tail)
    assert name == "m1"
    assert f"its entry 1:{T0}:100 is gone or stands on another history" in reason
    assert "new checkpointLocation" in reason


def test_a_dump_does_not_grow(session: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "oplog.bson").write_bytes(insert(0)[6])
    name, reason = failure(Tail(session, tmp_path / "checkpoint", f"d={tmp_path}/oplog.bson"))
    assert (name, reason) == ("d", "it does not grow; read it with spark.read, not readStream")
