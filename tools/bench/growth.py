"""How the jobs over all entries grow, and what half of the entries in one second or about one document does to them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from spark.jobs import ROWS_PER_TASK, plan
from spark.oplog import EVERYTHING
from tools.bench.measure import Watch, peak_of_workers, watched
from tools.bench.oplogs import Shape
from tools.bench.stages import Stage, stages_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark.readers.sqlite import SqliteOplog

_HEAD = (
    "job",
    "entries in all",
    "wall s",
    "cpu s",
    "others' cores",
    "wall, times",
    "cpu, times",
    "tasks",
    "most/median rows",
    "shuffled B/entry",
    "spilled MiB",
    "JVM MiB",
    "worker MiB",
)


@dataclass(frozen=True, slots=True)
class Run:
    """One job over one set of members. unevenness: rows of the largest task over those of the median one, of the stage
    that was given most. worker_mib: the largest Python worker. jvm_mib: the most that the operators of a stage held.
    """

    job: str
    rows: int
    watch: Watch
    stages: Sequence[Stage]
    worker_mib: int

    @property
    def unevenness(self) -> float:
        largest = max(self.stages, key=lambda stage: stage.read_rows, default=None)
        return largest.read_most / max(1.0, largest.read_median) if largest and largest.read_rows else 1.0

    def row(self, before: Run | None) -> tuple[str, ...]:
        """before: what it is compared with."""
        watch = self.watch
        times = ("", "") if before is None else (watch.seconds / before.watch.seconds, watch.cpu / before.watch.cpu)
        shuffled, spilled = (
            sum(getattr(stage, name) for stage in self.stages) for name in ("shuffled_bytes", "spilled_bytes")
        )
        figures = (
            f"{watch.seconds:.1f}",
            f"{watch.cpu:.1f}",
            f"{watch.others:.1f}",
            *(f"{one:.2f}" if one else "" for one in times),
            f"{sum(stage.tasks for stage in self.stages)}",
            f"{self.unevenness:.2f}",
            f"{shuffled / self.rows:.2f}",
            f"{spilled >> 20:,}",
            f"{max(stage.memory for stage in self.stages) >> 20:,}",
            f"{self.worker_mib:,}",
        )
        return (self.job, f"{self.rows:,}", *figures)


def run(spark: SparkSession, job: str, call: Callable[[], object], rows: int) -> Run:
    with watched() as watch, peak_of_workers() as peak:
        stages, _ = stages_of(spark, call)
    found = Run(job, rows, watch, stages, peak.mib)
    print(dict(zip(_HEAD, found.row(None), strict=True)), file=sys.stderr, flush=True)
    return found


def jobs(spark: SparkSession, places: Sequence[SqliteOplog]) -> dict[str, Callable[[], object]]:
    """Those over all the entries, each with everything that it finds brought home."""
    from spark.reports.diff.compare import diff
    from spark.reports.summary import summary
    from spark.reports.verify.check import verify

    def differing() -> object:
        spark.catalog.clearCache()  # or the second of two equal jobs would find the first one's rows
        return diff(spark, places).entries.collect()

    def summed() -> object:
        spark.catalog.clearCache()
        found = summary(spark, places)
        return [found.members.collect(), found.namespaces.collect(), found.hot.collect()]

    def verified() -> object:
        spark.catalog.clearCache()
        found = verify(spark, places)
        return [found.faults.collect(), found.checked.collect()]

    return {"diff": differing, "summary": summed, "verify": verified}


def tasks_of(places: Sequence[SqliteOplog]) -> str:
    """How many tasks read these members, and how even they are, counted in the files."""
    rows = [
        sum(batch.num_rows for batch in place.read(part, ("ts",)))
        for place, part in plan(places, EVERYTHING, ROWS_PER_TASK)
    ]
    return f"{len(rows)} tasks read, the largest {max(rows):,} rows, the median one {median(rows):,.0f}"


def show(title: str, rows: Sequence[tuple[str, ...]]) -> None:
    table = Table(title=title, title_justify="left")
    for number, name in enumerate(_HEAD):
        table.add_column(name, justify="left" if not number else "right")
    for row in rows:
        table.add_row(*row)
    console = Console()
    if not console.is_terminal:
        console.width = 180
    console.print(table)


def skewed(entries: int) -> dict[str, Shape]:
    """Histories of as many entries: an even one, and such with half of them in one place."""
    even = Shape(entries)
    return {
        "even": even,
        "one second": replace(even, hot_second=0.5),
        "one document": replace(even, hot_document=0.5),
    }
