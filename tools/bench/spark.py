"""Spark over the oplogs of three members, beside DuckDB and polars on the same entries: `./dev bench spark`.

One table has all rows of the issue's speed table; `spark-diff`, `spark-scan` and so on make a part of it alone. Every
figure stands beside the CPU seconds that it cost (this process and all below it) and the cores that others kept busy
meanwhile, so that a figure from a busy machine can be told from one of a quiet one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark.columns import schema_of
from spark.jobs import ROWS_PER_TASK, plan
from spark.oplog import EVERYTHING
from spark.readers.sqlite import SqliteOplog
from spark.runners import LocalRunner, SparkRunner
from tools.bench import growth as growing
from tools.bench.measure import Watch, best_of, watched
from tools.bench.oplogs import Shape, differing, planted, write_members
from tools.bench.report import RATE, TIMES, Report

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HEAP = "1g"
WRITES_PER_SECOND = 2000
WARM_UP_S = 10
STREAM_S = 20
SCANNED = ("ts", "term", "hash")
Found = set[tuple[str, int, int, int]]


@dataclass(frozen=True, slots=True)
class Members:
    """Three members' files and the (member, ts, term, hash) in which they differ."""

    shape: Shape
    places: list[SqliteOplog]
    differing: Found

    @property
    def rows(self) -> int:
        return self.shape.entries * len(self.places)


@dataclass(frozen=True, slots=True)
class Bench:
    """One run: a Spark session has a heap of 1 GiB. Members are made once, or found in `kept` from another run."""

    folder: Path
    entries: int
    report: Report
    kept: Path | None = None
    times: int = 3
    _made: dict[Shape, Members] = field(default_factory=dict)

    def members(self, shape: Shape | None = None) -> Members:
        shape = shape or Shape(self.entries)
        if shape not in self._made:
            plans = planted(shape)
            place = (self.kept or self.folder) / shape.name
            if not place.exists():
                with watched() as watch:
                    written = place.with_name(f"{place.name}.{os.getpid()}")
                    write_members(written, shape, plans)
                    written.rename(place)
                self.report.add(f"making 3 x {shape.entries:,} entries", watch.seconds, watch=watch)
            paths = [place / f"m{number}" for number in range(len(plans))]
            places = [SqliteOplog(path.name, str(path / "replset.db")) for path in paths]
            self._made[shape] = Members(shape, places, _named(differing(shape, plans), places))
        return self._made[shape]

    @contextmanager
    def session(self) -> Iterator[SparkSession]:
        from spark.session import spark_session

        spark = spark_session(master="local[2]", conf={"spark.driver.memory": HEAP})
        try:
            spark.range(2).mapInArrow(lambda batches: batches, "id bigint").count()
            yield spark
        finally:
            spark.stop()


def machine() -> str:
    return f"{os.cpu_count()} cores, Spark's heap {HEAP}"


def _named(found: set[tuple[int, int, int, int]], places: Sequence[SqliteOplog]) -> Found:
    return {(places[member].name, ts, term, hashed) for member, ts, term, hashed in found}


def millions(rows: int, watch: Watch) -> float:
    """Of rows in a second."""
    return rows / watch.seconds / 1e6


# --- scan ------------------------------------------------------------------------------------------------------


def scan(bench: Bench) -> int:
    report = bench.report
    report.part(f"scan of (ts, term, hash), 3 x {bench.entries:,} entries")
    members = bench.members()
    expected = sum(_count(place) for place in members.places)
    with bench.session() as spark:
        from spark import register

        register(spark)
        source = spark.read.format("oplog").option("columns", ",".join(SCANNED))
        paths = json.dumps([place.path for place in members.places])

        def through_the_source() -> int:
            frame = source.option("paths", paths).load()
            sums = frame.selectExpr("count(*) n", "sum(ts % 7) a", "sum(term) b", "sum(hash % 7) c").collect()
            return int(sums[0]["n"])

        watch, rows = best_of(bench.times, through_the_source)
        report.add('format("oplog"), sums in the JVM', millions(rows, watch), RATE, watch, least=0.9, aim=1.2)
        report.right('format("oplog")', rows, expected)

        def in_the_workers() -> int:
            counted = SparkRunner.of(spark).read(members.places, SCANNED, _counted, schema_of("n sum")).collect()
            return sum(row["n"] for row in counted)

        watch, rows = best_of(bench.times, in_the_workers)
        report.add("the same, sums in the workers", millions(rows, watch), RATE, watch)
        report.right("sums in the workers", rows, expected)
    watch, rows = best_of(bench.times, lambda: sum(map(_count, members.places)))
    report.add("the readers alone, one thread, no Spark", millions(rows, watch), RATE, watch)
    watch, _ = best_of(bench.times, lambda: plan(members.places, EVERYTHING, ROWS_PER_TASK))
    report.add("cutting the members into tasks", watch.seconds, watch=watch)
    return 0


def _count(place: SqliteOplog) -> int:
    return sum(batch.num_rows for batch in place.read(EVERYTHING, SCANNED))


def _counted(_member: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = total = 0
    for batch in batches:
        rows += batch.num_rows
        total ^= pc.sum(pc.bit_wise_and(batch.column(2), 0xFFFF)).as_py() or 0
    yield pa.RecordBatch.from_arrays([pa.array([rows]), pa.array([total])], names=["n", "sum"])


# --- diff ------------------------------------------------------------------------------------------------------


def diff(bench: Bench) -> int:
    """The entries in which three members differ, and the same question asked of others."""
    report = bench.report
    report.part(f"diff of 3 x {bench.entries:,} entries")
    members = bench.members()
    expected = {(ts, term) for _, ts, term, _ in members.differing}
    with bench.session() as spark:
        with watched() as first:
            spark_diff(spark, members.places)
        watch, found = best_of(bench.times, lambda: spark_diff(spark, members.places))
        report.add("diff --engine spark, warm session", watch.seconds, watch=watch, least=8, aim=5)
        report.right("diff --engine spark", found, expected)
        report.add("  the first of its session", first.seconds, watch=first)
        watch, found = best_of(bench.times, lambda: in_one_process(members.places))
        report.add("diff --engine local", watch.seconds, watch=watch, least=3, aim=1)
        report.right("diff --engine local", found, expected)
        beside(bench, members, spark)
    return 0


def spark_diff(spark: SparkSession, places: Sequence[SqliteOplog]) -> set[tuple[int, int]]:
    """(ts, term) of what differs."""
    from spark.reports.diff.compare import diff

    return {(row["ts"], row["term"]) for row in diff(spark, places).entries.collect()}


def in_one_process(places: Sequence[SqliteOplog]) -> set[tuple[int, int]]:
    from spark.reports.diff.compare import difference

    entries = difference(LocalRunner(), places).entries
    return set(zip(entries["ts"].to_pylist(), entries["term"].to_pylist(), strict=True))


def beside(bench: Bench, members: Members, spark: SparkSession) -> None:
    """The same question, which (member, ts, term, hash) not all have, asked of DuckDB and polars."""
    from spark.reports.export import export

    report, folder = bench.report, bench.folder / "parquet"
    with watched() as exported:
        files = export(spark, members.places, folder).collect()
    sizes = sum(file["bytes"] for file in files), sum(os.path.getsize(place.path) for place in members.places)
    entry = " and ".join(f"{size / members.rows:.0f} B" for size in sizes)
    notes = f"an entry takes {entry} in SQLite"
    report.add("export of all columns to Parquet, by Spark", exported.seconds, watch=exported, notes=notes)
    missing = [name for name in ("duckdb", "polars") if find_spec(name) is None]
    if missing:
        report.say(f"not installed: {', '.join(missing)}", "pip install -e '.[bench]'")
        return
    for name, ask in (("DuckDB", duckdb_differing), ("polars", polars_differing)):
        watch, found = best_of(bench.times, lambda ask=ask: ask(folder))  # type: ignore[misc]
        with_it = f"{watch.seconds + exported.seconds:.1f} s with the export"
        report.add(f"{name} on that Parquet", watch.seconds, watch=watch, notes=with_it)
        report.right(name, found, members.differing)
    watch, found = best_of(bench.times, lambda: polars_over_adbc(members.places))
    report.add("polars on what the readers read", watch.seconds, watch=watch, notes="no export, all in memory")
    report.right("polars on what the readers read", found, members.differing)


def duckdb_differing(folder: Path) -> Found:
    import duckdb

    with duckdb.connect() as connection:
        rows = connection.execute(
            "SELECT unnest(list(member)), ts, term, hash FROM read_parquet(?, hive_partitioning=false)"
            " GROUP BY ts, term, hash HAVING count(*) < 3",
            [f"{folder}/**/*.parquet"],
        ).fetchall()
    return {(str(member), ts, term, hashed) for member, ts, term, hashed in rows}


def polars_differing(folder: Path) -> Found:
    import polars

    table = polars.scan_parquet(f"{folder}/**/*.parquet", hive_partitioning=False)
    return _grouped(table.select("member", *SCANNED))


def polars_over_adbc(places: Sequence[SqliteOplog]) -> Found:
    import polars

    frames = []
    for place in places:
        read = polars.from_arrow(pa.Table.from_batches(place.read(EVERYTHING, SCANNED)))
        assert isinstance(read, polars.DataFrame)
        frames.append(read.lazy().with_columns(polars.lit(place.name).alias("member")))
    return _grouped(polars.concat(frames))


def _grouped(table: object) -> Found:
    import polars

    assert isinstance(table, polars.LazyFrame)
    few = table.group_by(*SCANNED).agg(polars.col("member")).filter(polars.col("member").list.len() < 3)
    rows = few.explode("member").select("member", *SCANNED).collect(engine="streaming").rows()
    return {(str(member), ts, term, hashed) for member, ts, term, hashed in rows}


# --- stream ----------------------------------------------------------------------------------------------------


def stream(bench: Bench) -> int:
    """How old an entry is when foreachBatch has it, while a store takes in WRITES_PER_SECOND."""
    report = bench.report
    report.part(f"streaming at {WRITES_PER_SECOND:,} writes/s")
    dbpath = bench.folder / "live"
    lasting = WARM_UP_S + STREAM_S
    with bench.session() as spark:
        from spark import register

        register(spark)
        command = [sys.executable, "-m", "tools.bench.appending", str(dbpath), str(WRITES_PER_SECOND), str(lasting)]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        while not (dbpath / "replset.db").exists():
            time.sleep(0.05)
        time.sleep(1)  # the collection's entry is there
        batches: list[tuple[float, npt.NDArray[np.float64]]] = []

        def seen(batch: DataFrame, _number: int) -> None:
            walls = batch.select("wall").toArrow().column("wall").to_numpy()
            now = time.time_ns() / 1e9
            batches.append((now, now * 1000 - walls))

        with watched() as watch:
            stream = spark.readStream.format("oplog").load(str(dbpath)).writeStream.foreachBatch(seen)
            query = stream.option("checkpointLocation", str(bench.folder / "checkpoint")).start()
            written = int(writer.communicate()[0])
            query.processAllAvailable()
            query.stop()
    first = batches[0][0] + WARM_UP_S
    ages = np.concatenate([ages for at, ages in batches if at > first])
    middle, late = np.percentile(ages, [50, 99])
    report.add("age of an entry in foreachBatch, p50", middle / 1000, watch=watch, least=1, aim=0.7)
    per_second = sum(at > first for at, _ in batches) / STREAM_S
    report.add("  p99", late / 1000, notes=f"{per_second:.1f} batches a second")
    report.right("every entry once", sum(len(ages) for _, ages in batches), written + 1)
    return 0


# --- growth and skew -------------------------------------------------------------------------------------------


def growth(bench: Bench) -> int:
    """A tenth of the entries, then all of them, with the same heap."""
    shapes = [Shape(bench.entries // 10), Shape(bench.entries)]
    report = bench.report
    report.part("ten times the entries")
    found: dict[str, list[growing.Run]] = {}
    with bench.session() as spark:
        warm_up(bench, spark)
        for shape in shapes:
            members = bench.members(shape)
            for name, job in growing.jobs(spark, members.places).items():
                found.setdefault(name, []).append(growing.run(spark, name, job, members.rows))
    for name, (small, large) in found.items():
        ratio, cpu = large.watch.seconds / small.watch.seconds, large.watch.cpu / small.watch.cpu
        report.add(f"{name} of 10 times the entries", ratio, TIMES, least=10, aim=10, notes=f"cpu: {cpu:.1f} times")
    rows = [
        large.row(small) if large is not small else large.row(None)
        for small, *more in found.values()
        for large in (small, *more)
    ]
    growing.show(f"from 3 x {shapes[0].entries:,} to 3 x {bench.entries:,} entries, {machine()}", rows)
    return 0


def skew(bench: Bench) -> int:
    """Half of the entries in one second, or about one document, beside an even history of as many."""
    report = bench.report
    report.part(f"half of 3 x {bench.entries:,} entries in one place")
    rows = []
    even: dict[str, growing.Run] = {}
    with bench.session() as spark:
        warm_up(bench, spark)
        for kind, shape in growing.skewed(bench.entries).items():
            members = bench.members(shape)
            report.say(kind, growing.tasks_of(members.places))
            for name, job in growing.jobs(spark, members.places).items():
                run = growing.run(spark, f"{name}, {kind}", job, members.rows)
                before = even.setdefault(name, run)
                rows.append(run.row(before if before is not run else None))
                if before is not run:
                    ratio = run.watch.seconds / before.watch.seconds
                    report.add(f"{name}, {kind}, against an even history", ratio, TIMES)
    growing.show(f"half of 3 x {bench.entries:,} entries in one place, {machine()}", rows)
    return 0


def warm_up(bench: Bench, spark: SparkSession) -> None:
    """Java has compiled what the jobs run, and the workers have imported it."""
    for job in growing.jobs(spark, bench.members(Shape(bench.entries // 50)).places).values():
        job()


# --- the suite -------------------------------------------------------------------------------------------------


def suite(bench: Bench) -> int:
    report = bench.report
    report.part("the tests of spark/")
    with watched() as watch:
        done = subprocess.run([sys.executable, "-m", "pytest", "-q", "tests/spark"], stdout=sys.stderr, check=False)
    report.add("whole Spark test suite", watch.seconds, watch=watch, least=120, aim=60)
    return done.returncode


ALL = "spark"
PARTS: dict[str, Callable[[Bench], int]] = {
    "spark-diff": diff,
    "spark-scan": scan,
    "spark-stream": stream,
    "spark-suite": suite,
    "spark-growth": growth,
    "spark-skew": skew,
}
BENCHES = (ALL, *PARTS)


def run(names: Sequence[str], entries: int, kept: Path | None = None) -> int:
    """The benchmarks of these names, of BENCHES, in one temporary folder. kept: where members of earlier runs are."""
    report = Report(machine())
    wanted = PARTS if ALL in names else names
    with tempfile.TemporaryDirectory(prefix="replset-bench-spark-") as folder:
        bench = Bench(Path(folder), entries, report, kept)
        failed = [PARTS[name](bench) != 0 for name in wanted]
    return max(report.show(), int(any(failed)))
