"""readStream.format("oplog") with a named consumer: each entry once, and the consumer follows the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import spark as package
from replset.bson import RawDocument
from replset.client import HttpClient
from replset.errors import BadValueError
from replset.local_set import LocalMember
from spark.source import OplogStreamReader, Options
from tests.integration.conftest import start_set
from tests.integration.forked import running_set
from tests.integration.talk import insert


@pytest.fixture
def member(tmp_path: Path) -> Iterator[LocalMember]:
    with running_set(tmp_path / "set") as local:
        start_set(local, members=1)
        yield local.members[0]


def test_a_stream_reads_each_entry_once_and_moves_its_consumer_on(
    spark: SparkSession, member: LocalMember, tmp_path: Path
) -> None:
    package.register(spark)
    http = HttpClient(member.http)
    insert(member, *range(3))
    http.post("/v1/consumers", {"name": "lake"})
    http.post("/v1/consumers", {"name": "many", "mode": "shared"})
    seen: list[int] = []

    def take(frame: DataFrame, _number: int) -> None:
        entries = (RawDocument(bytes(row.entry)) for row in frame.collect())
        seen.extend(entry.decode()["o"]["_id"] for entry in entries)

    def run() -> None:
        options = {"consumer": "lake", "ns": "shop.orders", "columns": "ts,entry", "maxEntriesPerBatch": "8"}
        stream = spark.readStream.format("oplog").options(**options).load(member.http)
        writer = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    before = position(http)
    insert(member, *range(3, 10))
    run()
    assert seen == list(range(3, 10)), "it begins where the consumer stands"
    after = position(http)
    assert after > before
    http.post("/v1/consumers/lake/seek", {"to": "oldest"})
    insert(member, 10)
    run()
    assert seen == list(range(3, 11)), "the checkpoint decides, whatever the consumer says"
    assert position(http) > after
    with pytest.raises(BadValueError, match="is shared"):
        OplogStreamReader(Options.parse({"path": member.http, "consumer": "many"}), ("ts",)).initialOffset()
    with pytest.raises(BadValueError, match="for one member"):
        OplogStreamReader(Options.parse({"path": str(tmp_path), "consumer": "lake"}), ("ts",))


def position(http: HttpClient) -> str:
    found: dict[str, Any] = http.get("/v1/consumers/lake")["consumers"][0]
    return str(found["position"])
