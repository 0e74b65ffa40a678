"""Exports written by Spark's workers, and read back: by the reader of exported Parquet, by Spark, by pyarrow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from pyarrow.dataset import dataset

from replset.bson import decode
from replset.ejson import from_ejson, to_ejson
from replset.ids import OpTime, pack_ts
from replset.oplog_row import UnchainedRow
from spark.columns import COLUMNS
from spark.jobs import oplog_error
from spark.oplog import EVERYTHING, Oplog, OplogError
from spark.readers.parquet import ParquetOplog
from spark.readers.sqlite import SqliteOplog
from spark.reports.export import PARSED, export
from spark.reports.export_folder import ExportError, Mode, Target, day_of, folder_of
from spark.reports.replay.replay import replay
from tests.spark.history_kit import member, noop
from tests.spark.kit import T0, insert, write_oplog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIDNIGHT = 1_760_054_400


def past(count: int = 60, *, namespaces: int = 3) -> list[UnchainedRow]:
    """Inserts into some namespaces around a midnight in UTC, four a minute, with no-ops between."""
    found: list[UnchainedRow] = []
    for number in range(count):
        seconds = MIDNIGHT - 7 * count + 15 * number
        row = insert(number, ns=f"shop.n{number % namespaces}", term=1 + number // 40)
        optime = OpTime(row[1], pack_ts(seconds, 1))
        found.append((optime.ts, *row[1:5], seconds * 1000, row[6]))
        if number % 10 == 9:
            found.append(noop(seconds + 7 - T0, "periodic noop", term=row[1]))
    return found


def rows(oplog: Oplog) -> list[dict[str, Any]]:
    return [row for batch in oplog.read(EVERYTHING, COLUMNS) for row in batch.to_pylist()]


def parts(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.parquet"))


def test_what_is_exported_is_read_back(spark: SparkSession, tmp_path: Path) -> None:
    oplogs: Sequence[SqliteOplog] = [member(tmp_path, "a:1", past()), member(tmp_path, "b", past()[:30])]
    out = tmp_path / "out"
    files = export(spark, oplogs, out).collect()

    assert [str(path.relative_to(out)) for path in parts(out)] == sorted(row["file"] for row in files)
    folders = sorted({row["file"].rpartition("/")[0] for row in files})
    assert folders[:5] == [
        "member=a%3A1/day=2025-10-09/ns=__HIVE_DEFAULT_PARTITION__",
        "member=a%3A1/day=2025-10-09/ns=shop.n0",
        "member=a%3A1/day=2025-10-09/ns=shop.n1",
        "member=a%3A1/day=2025-10-09/ns=shop.n2",
        "member=a%3A1/day=2025-10-10/ns=__HIVE_DEFAULT_PARTITION__",
    ]
    assert len(folders) == len(files) == 12  # b ends before midnight
    for oplog in oplogs:
        assert rows(ParquetOplog(oplog.name, str(out), oplog.name)) == rows(oplog)
    for row in files:
        with pq.ParquetFile(out / row["file"]) as file:
            ts = file.read(["ts"]).column(0).to_pylist()
            group = file.metadata.row_group(0)
        assert (row["entries"], row["first_ts"], row["last_ts"]) == (len(ts), ts[0], ts[-1])
        assert ts == sorted(ts)
        assert row["bytes"] == (out / row["file"]).stat().st_size
        statistics = {group.column(n).path_in_schema: group.column(n) for n in range(group.num_columns)}
        assert (statistics["ts"].statistics.min, statistics["ts"].statistics.max) == (ts[0], ts[-1])
        assert {column.compression for column in statistics.values()} == {"ZSTD"}

    read = spark.read.parquet(str(out))
    assert read.where("member = 'a:1' and day = '2025-10-10' and ns = 'shop.n1'").count() == files[7]["entries"]
    table = dataset(out, format="parquet").to_table(["member", "ns"])  # by another reader, of the files alone
    found = sorted(Counter((row["member"], row["ns"]) for row in table.to_pylist()).items())
    assert found[:2] == [(("a:1", ""), 6), (("a:1", "shop.n0"), 20)]


def test_small_files_of_a_namespace_are_put_together(spark: SparkSession, tmp_path: Path) -> None:
    """As many tasks as make ten files of each namespace and day leave one; not where files are large."""
    oplog = member(tmp_path, "a", [insert(n, ns=f"shop.n{n % 2}", per_second=10) for n in range(2000)])
    out = tmp_path / "out"
    files = export(spark, [oplog], out, rows_per_task=100).collect()
    assert [(row["ns"], row["entries"]) for row in files] == [("shop.n0", 1000), ("shop.n1", 1000)]
    assert rows(ParquetOplog("a", str(out), "a")) == rows(oplog)
    assert [path.name for path in out.iterdir()].count("_SUCCESS") == 1
    assert not [path for path in out.iterdir() if path.name.startswith("_temporary")]


def test_many_namespaces_in_one_task(spark: SparkSession, tmp_path: Path) -> None:
    """More than are kept open at a time."""
    oplog = member(tmp_path, "a", past(400, namespaces=150))
    out = tmp_path / "out"
    files = export(spark, [oplog], out)
    assert files.where("ns <> ''").groupBy("ns").count().count() == 150
    assert rows(ParquetOplog("a", str(out), "a")) == rows(oplog)


def test_a_folder_is_not_written_over_unasked(spark: SparkSession, tmp_path: Path) -> None:
    oplog = member(tmp_path, "a", past(20))
    other = member(tmp_path, "b", past(10))
    out = tmp_path / "out"
    export(spark, [oplog], out)
    before = {path: path.read_bytes() for path in parts(out)}
    with pytest.raises(ExportError, match="is not empty"):
        export(spark, [oplog], out)
    assert {path: path.read_bytes() for path in parts(out)} == before
    export(spark, [other], out, mode=Mode.OVERWRITE)
    assert [path.name for path in sorted(out.iterdir())] == ["_SUCCESS", "member=b"]
    assert rows(ParquetOplog("b", str(out), "b")) == rows(other)


def test_appending(spark: SparkSession, tmp_path: Path) -> None:
    history = past(50)
    out = tmp_path / "out"
    export(spark, [member(tmp_path / "then", "a", history[:20])], out, mode=Mode.APPEND)
    now = [member(tmp_path / "now", "a", history), member(tmp_path / "now", "b", history[:5])]
    files = export(spark, now, out, mode=Mode.APPEND).collect()
    assert sum(row["entries"] for row in files if row["member"] == "a") == len(history) - 20
    assert min(row["first_ts"] for row in files if row["member"] == "a") == history[20][0]
    for oplog in now:
        assert rows(ParquetOplog(oplog.name, str(out), oplog.name)) == rows(oplog)
    assert export(spark, now, out, mode=Mode.APPEND).collect() == []


def test_a_member_that_fails_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    oplog = member(tmp_path, "a", past(20))
    broken = SqliteOplog("broken", str(tmp_path / "none.db"))
    out = tmp_path / "out"
    with pytest.raises(OplogError, match=r"^broken: "):
        export(spark, [oplog, broken], out)
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError):
        export(spark, [oplog], tmp_path / "file")
    assert not out.exists()


def test_a_worker_that_cannot_write(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the run goes away under the workers, as a full or lost disk would have it."""
    oplog = member(tmp_path, "a", past(20))
    monkeypatch.setattr(Target, "make", lambda self, run: None)
    with pytest.raises(Exception, match="writing to") as raised:
        export(spark, [oplog], tmp_path / "out")
    told = oplog_error(raised.value)
    assert told.name == "a"
    assert parts(tmp_path) == []


def test_a_relative_folder_is_one_of_the_driver(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers run in the folder in which Java was started, or in one of a cluster."""
    monkeypatch.chdir(tmp_path)
    oplog = member(tmp_path, "a", past(10))
    export(spark, [oplog], "out")
    assert rows(ParquetOplog("a", str(tmp_path / "out"), "a")) == rows(oplog)


def test_variant(spark: SparkSession, tmp_path: Path) -> None:
    oplog = member(tmp_path, "a", past(12))
    out = tmp_path / "out"
    files = export(spark, [oplog], out, variant=True).collect()
    assert rows(ParquetOplog("a", str(out), "a")) == rows(oplog)
    assert sum(row["entries"] for row in files) == len(rows(oplog))
    assert {row["file"].rpartition("/")[0] for row in files} == {
        folder_of("a", day_of(row["ts"]), row["ns"]) for row in rows(oplog)
    }
    read = spark.read.parquet(str(out)).where("op = 'i'").orderBy("ts")
    first = read.selectExpr(
        f"variant_get({PARSED}, '$.o._id', 'int') AS id", f"to_json({PARSED}) AS text", "entry"
    ).first()
    assert first["id"] == 0
    assert from_ejson(first["text"]) == from_ejson(to_ejson(decode(bytes(first["entry"]))))


def test_an_export_is_an_oplog_for_the_other_commands(spark: SparkSession, tmp_path: Path) -> None:
    write_oplog(tmp_path / "a", [insert(n) for n in range(5)])
    out = tmp_path / "out"
    export(spark, [SqliteOplog("a", str(tmp_path / "a/replset.db"))], out)
    with pytest.raises(OplogError, match=r"a: the oplog begins at .*, after shop\.orders was made: give a base"):
        replay(spark, ParquetOplog("a", str(out), "a"), "shop.orders")
