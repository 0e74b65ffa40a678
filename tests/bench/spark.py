"""Spark over the oplogs of three members, beside DuckDB and polars on the same entries: `./dev bench spark-diff` ….

Every figure stands beside the CPU seconds that it cost (this process and all below it) and the cores that others kept
busy meanwhile, so that a figure from a busy machine can be told from one of a quiet one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table

from spark.jobs import map_spans, plan
from spark.places import EVERYTHING
from spark.readers.sqlite import SqlitePlace
from tests.bench.measure import Watch, best_of, peak_of_workers, watched
from tests.bench.oplogs import Shape, differing, planted, write_members
from tests.bench.stages import stages_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HEAP = "1g"
WRITES_PER_SECOND = 2000
WARM_UP_S = 10
STREAM_S = 20
SCANNED = ("ts", "term", "hash")
Found = set[tuple[str, int, int, int]]


@dataclass(slots=True)
class Report:
    """Rows of one table; `bad` once an answer was wrong."""

    title: str
    bad: bool = False
    _rows: list[tuple[str, ...]] = field(default_factory=list)

    def add(
        self, row: str, measured: str, watch: Watch | None = None, least: str = "", aim: str = "", notes: str = ""
    ) -> None:
        spent = ("", "") if watch is None else (f"{watch.cpu:.1f}", f"{watch.others:.1f}")
        self._rows.append((row, measured, least, aim, *spent, notes))
        print(f"{row}: {measured} {notes}", file=sys.stderr, flush=True)

    def right(self, row: str, found: object, expected: object) -> None:
        if found != expected:
            self.bad = True
            self.add(row, "WRONG ANSWER")

    def show(self) -> int:
        table = Table(title=self.title)
        for column in ("row", "measured", "at least", "aim", "cpu s", "others' cores", "notes"):
            table.add_column(column, justify="left" if column in ("row", "notes") else "right")
        for row in self._rows:
            table.add_row(*row)
        console = Console()
        if not console.is_terminal:
            console.width = 180
        console.print(table)
        return 1 if self.bad else 0


@dataclass(frozen=True, slots=True)
class Members:
    """Three members' files and the (member, ts, term, hash) in which they differ."""

    shape: Shape
    places: list[SqlitePlace]
    differing: Found

    @property
    def rows(self) -> int:
        return self.shape.entries * len(self.places)


@dataclass(frozen=True, slots=True)
class Bench:
    """One run: its members are made once, its Spark session has a heap of 1 GiB."""

    folder: Path
    entries: int
    times: int = 3
    _made: dict[Shape, Members] = field(default_factory=dict)

    def members(self, shape: Shape | None = None, report: Report | None = None) -> Members:
        shape = shape or Shape(self.entries)
        if shape not in self._made:
            plans = planted(shape)
            with watched() as watch:
                paths = write_members(self.folder / f"members-{len(self._made)}", shape, plans)
            places = [SqlitePlace(path.name, str(path / "replset.db")) for path in paths]
            self._made[shape] = Members(shape, places, _named(differing(shape, plans), places))
            if report:
                report.add(f"making three members of {shape.entries:,} entries", f"{watch.seconds:.1f} s", watch)
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


def _named(found: set[tuple[int, int, int, int]], places: Sequence[SqlitePlace]) -> Found:
    return {(places[member].name, ts, term, hashed) for member, ts, term, hashed in found}


def rate(rows: int, watch: Watch) -> str:
    return f"{rows / watch.seconds / 1e6:.2f} M rows/s"


def seconds(watch: Watch) -> str:
    return f"{watch.seconds:.2f} s"


# --- scan ------------------------------------------------------------------------------------------------------


def scan(bench: Bench) -> int:
    report = Report(f"scan of (ts, term, hash), three members of {bench.entries:,} entries, {machine()}")
    members = bench.members(report=report)
    first = members.places[0]
    watch, rows = best_of(bench.times, lambda: sum(b.num_rows for b in first.read(EVERYTHING, SCANNED)))
    report.add("ADBC alone, one thread, no Spark", rate(rows, watch), watch)
    watch, _ = best_of(bench.times, lambda: plan(members.places, EVERYTHING, 250_000))
    report.add("cutting the members into tasks", seconds(watch), watch)
    with bench.session() as spark:
        from spark import register

        register(spark)
        frame = spark.read.format("oplog").load([place.path for place in members.places])

        def through_the_source() -> int:
            sums = frame.selectExpr("count(*) n", "sum(ts % 7) a", "sum(term) b", "sum(hash % 7) c").collect()
            return int(sums[0]["n"])

        watch, rows = best_of(bench.times, through_the_source)
        report.add('format("oplog"), sums in the JVM', rate(rows, watch), watch, "0.9", "1.2")
        report.right('format("oplog")', rows, _entries(members))

        def in_the_workers() -> int:
            counted = map_spans(spark, members.places, SCANNED, _counted, "n bigint, sum bigint").collect()
            return sum(row["n"] for row in counted)

        watch, rows = best_of(bench.times, in_the_workers)
        report.add("map_spans, sums in the workers", rate(rows, watch), watch)
    return report.show()


def _entries(members: Members) -> int:
    return sum(place.bounds().rows for place in members.places)


def _counted(_member: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = total = 0
    for batch in batches:
        rows += batch.num_rows
        total ^= pc.sum(pc.bit_wise_and(batch.column(2), 0xFFFF)).as_py() or 0
    yield pa.RecordBatch.from_arrays([pa.array([rows]), pa.array([total])], names=["n", "sum"])


# --- diff ------------------------------------------------------------------------------------------------------


def diff(bench: Bench) -> int:
    """The entries in which three members differ, and the same question asked of others."""
    report = Report(f"diff of three members of {bench.entries:,} entries, {machine()}")
    members = bench.members(report=report)
    expected = {(ts, term) for _, ts, term, _ in members.differing}
    with bench.session() as spark:
        with watched() as watch:
            found = spark_diff(spark, members.places)
        report.add("diff --engine spark, first of its session", seconds(watch), watch)
        watch, found = best_of(bench.times, lambda: spark_diff(spark, members.places))
        report.add("diff --engine spark, warm session", seconds(watch), watch, "8", "5")
        report.right("diff --engine spark", found, expected)
        watch, found = best_of(bench.times, lambda: in_one_process(members.places))
        report.add("diff --engine local", seconds(watch), watch, "3", "1")
        report.right("diff --engine local", found, expected)
        beside(report, bench, members, spark)
    return report.show()


def spark_diff(spark: SparkSession, places: Sequence[SqlitePlace]) -> set[tuple[int, int]]:
    """(ts, term) of what differs."""
    from spark.diff import diff

    return {(row["ts"], row["term"]) for row in diff(spark, places).entries.collect()}


def in_one_process(places: Sequence[SqlitePlace]) -> set[tuple[int, int]]:
    from spark.local_diff import local_diff

    entries = local_diff(places).entries
    return set(zip(entries["ts"].to_pylist(), entries["term"].to_pylist(), strict=True))


def beside(report: Report, bench: Bench, members: Members, spark: SparkSession) -> None:
    """The same question, which (member, ts, term, hash) not all have, asked of DuckDB and polars."""
    from spark.export import export

    folder = bench.folder / "parquet"
    with watched() as watch:
        export(spark, members.places, folder)
    report.add("export of all columns to Parquet (Spark)", seconds(watch), watch)
    missing = [name for name in ("duckdb", "polars") if find_spec(name) is None]
    if missing:
        report.add(f"not installed: {', '.join(missing)}", "pip install -e '.[bench]'")
        return
    for name, ask in (("DuckDB", duckdb_differing), ("polars", polars_differing)):
        watch, found = best_of(bench.times, lambda ask=ask: ask(folder))  # type: ignore[misc]
        report.add(f"{name} on that Parquet, after the export", seconds(watch), watch)
        report.right(name, found, members.differing)
    watch, found = best_of(bench.times, lambda: polars_over_adbc(members.places))
    report.add("polars on what ADBC reads, all in memory", seconds(watch), watch)
    report.right("polars on ADBC", found, members.differing)


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


def polars_over_adbc(places: Sequence[SqlitePlace]) -> Found:
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
    report = Report(f"streaming at {WRITES_PER_SECOND:,} writes/s, {machine()}")
    dbpath = bench.folder / "live"
    lasting = WARM_UP_S + STREAM_S
    with bench.session() as spark:
        from spark import register

        register(spark)
        command = [sys.executable, "-m", "tests.bench.appending", str(dbpath), str(WRITES_PER_SECOND), str(lasting)]
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
    report.add("age of an entry in foreachBatch, p50", f"{middle / 1000:.2f} s", watch, "1", "0.7")
    report.add("p99", f"{late / 1000:.2f} s")
    report.add("batches a second", f"{sum(at > first for at, _ in batches) / STREAM_S:.1f}")
    report.right("every entry once", sum(len(ages) for _, ages in batches), written + 1)
    return report.show()


# --- growth and skew -------------------------------------------------------------------------------------------


def all_of(spark: SparkSession, places: Sequence[SqlitePlace]) -> dict[str, Callable[[], object]]:
    """The jobs over all the entries, each with everything that it finds brought home."""
    from spark.summary import summary
    from spark.verify import verify

    def summed() -> object:
        spark.catalog.clearCache()  # or the second of two equal jobs would find the first one's rows
        found = summary(spark, places)
        return [found.members.collect(), found.namespaces.collect(), found.hot.collect()]

    def verified() -> object:
        spark.catalog.clearCache()
        found = verify(spark, places)
        return [found.faults.collect(), found.checked.collect()]

    return {"diff": lambda: spark_diff(spark, places), "summary": summed, "verify": verified}


def growth(bench: Bench) -> int:
    """A tenth of twice the entries, then twice the entries, with the same heap."""
    small, large = Shape(bench.entries // 5), Shape(bench.entries * 2)
    report = Report(f"growth from {small.entries:,} to {large.entries:,} entries a member, {machine()}")
    spent: dict[str, list[Watch]] = {}
    with bench.session() as spark:
        warm = bench.members(Shape(bench.entries // 50)).places
        for job in all_of(spark, warm).values():
            job()
        for shape in (small, large):
            for name, job in all_of(spark, bench.members(shape).places).items():
                watch, notes = counted(spark, job, 3 * shape.entries)
                spent.setdefault(name, []).append(watch)
                report.add(f"{name}, {shape.entries:,}", seconds(watch), watch, notes=notes)
    for name, (before, after) in spent.items():
        ratio, cpu = after.seconds / before.seconds, after.cpu / before.cpu
        report.add(f"{name}, 10 times the entries", f"{ratio:.1f} times", None, "10", "10", f"cpu: {cpu:.1f} times")
    return report.show()


def skew(bench: Bench) -> int:
    """Half of the entries in one second, or about one document, beside an even history of as many."""
    even = Shape(bench.entries)
    shapes = {
        "even": even,
        "one second": replace(even, hot_second=0.5),
        "one document": replace(even, hot_document=0.5),
    }
    report = Report(f"half of {bench.entries:,} entries a member in one place, {machine()}")
    with bench.session() as spark:
        warm = bench.members(Shape(bench.entries // 50)).places
        for job in all_of(spark, warm).values():
            job()
        spent: dict[str, Watch] = {}
        for kind, shape in shapes.items():
            for name, job in all_of(spark, bench.members(shape).places).items():
                watch, notes = counted(spark, job, 3 * shape.entries)
                times = watch.cpu / spent.setdefault(name, watch).cpu
                report.add(f"{name}, {kind}", seconds(watch), watch, notes=f"cpu: {times:.2f} times even's; {notes}")
    return report.show()


def counted(spark: SparkSession, job: Callable[[], object], rows: int) -> tuple[Watch, str]:
    """How long, and what Spark says of its stages and /proc of its workers."""
    with watched() as watch, peak_of_workers() as peak:
        stages, _ = stages_of(spark, job)
    slow = max(stages, key=lambda stage: stage.slowest_ms)
    shuffled = sum(stage.shuffled_bytes for stage in stages)
    spilled = sum(stage.spilled_bytes for stage in stages)
    return watch, (
        f"{sum(stage.tasks for stage in stages)} tasks, slowest {slow.slowest_ms / 1000:.1f} s where the median was"
        f" {slow.median_ms / 1000:.1f} s; shuffled {shuffled / rows:.2f} B an entry, spilled {spilled >> 20} MiB;"
        f" a worker up to {peak.mib} MiB"
    )


# --- the suite -------------------------------------------------------------------------------------------------


def suite(_: Bench) -> int:
    report = Report(f"the tests of spark/, {os.cpu_count()} cores")
    with watched() as watch:
        done = subprocess.run([sys.executable, "-m", "pytest", "-q", "tests/spark"], check=False)
    report.add("whole Spark test suite", seconds(watch), watch, "120", "60")
    report.bad = done.returncode != 0
    return report.show()


BENCHES: dict[str, Callable[[Bench], int]] = {
    "spark-diff": diff,
    "spark-scan": scan,
    "spark-stream": stream,
    "spark-growth": growth,
    "spark-skew": skew,
    "spark-suite": suite,
}


def run(names: Sequence[str], entries: int) -> int:
    """The benchmarks of these names, of BENCHES, in one temporary folder."""
    with tempfile.TemporaryDirectory(prefix="replset-bench-spark-") as folder:
        bench = Bench(Path(folder), entries)
        return max(BENCHES[name](bench) for name in names)
