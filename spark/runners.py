"""Where a report's jobs run: in threads of this process, or in Spark. Each report is written once, for any runner.

Rows are Arrow tables here and DataFrames in Spark. A job reads oplogs in parts, with work behind each reader (`read`),
brings together the rows that belong together (`grouped`), and works on those (`run`).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark.columns import ddl_of
from spark.jobs import ROWS_PER_TASK, Work, freeze_modules, plan, span_reader
from spark.oplog import ALL, EVERYTHING, EntryFilter, Oplog, Span

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

Rows: TypeAlias = "DataFrame | pa.Table"
Groups: TypeAlias = Any
"""What `grouped` of the same runner gives."""
Result = TypeVar("Result")
THREADS = min(4, os.cpu_count() or 1)
OnPart = Callable[[int, int], None]
"""Called with how many parts are read, and how many there are."""
WorkOnNumber = Callable[[int], Iterator[pa.RecordBatch]]
WorkOnGroups = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Called with batches that together hold whole groups, in the order that was asked for."""
_BATCH_ROWS = 16_384


def no_progress(done: int, total: int) -> None:
    """Show nothing."""


class _Piece(NamedTuple):
    """Some whole groups. order: the numbers of their rows in the table, None for all of them as they come."""

    rows: pa.Table
    order: pa.Array | None

    def batches(self) -> Iterator[pa.RecordBatch]:
        if self.order is None:
            yield from self.rows.to_batches()
            return
        for at in range(0, len(self.order), _BATCH_ROWS):
            yield from self.rows.take(self.order.slice(at, _BATCH_ROWS)).to_batches()


class _Reading(ABC):
    """How a runner reads oplogs, for all of them."""

    def read(
        self,
        oplogs: Sequence[Oplog],
        columns: Sequence[str],
        work: Work,
        schema: pa.Schema,
        *,
        span: Span = EVERYTHING,
        only: EntryFilter = ALL,
        rows_per_task: int = ROWS_PER_TASK,
    ) -> Any:
        """Rows of this schema: what `work(member's name, batches of columns)` gives of every part, oldest first.

        It runs right behind the reader, once a part of about so many entries; of none it may give no batch.
        """
        tasks = plan(oplogs, span, rows_per_task)
        return self.numbers(len(tasks), span_reader(tasks, columns, work, only), schema)

    @abstractmethod
    def numbers(self, count: int, work: WorkOnNumber, schema: pa.Schema) -> Any:
        """What `work(number)` gives, one task for each number below `count`."""


@dataclass(frozen=True, slots=True)
class LocalRunner(_Reading):
    """Everything in threads of this process. context: but Spark's workers read, and send here what they make of it.

    on_part: called as parts are read.
    """

    on_part: OnPart = no_progress
    context: SparkContext | None = None

    def of_size(self, rows: int, most: int) -> LocalRunner:
        """The runner for so many rows: this one."""
        return self

    def tasks(self, rows: int, rows_per_task: int) -> int:
        """How many tasks should share so many rows: Python's own work takes turns here."""
        return 1

    @property
    def cores(self) -> int:
        return THREADS

    def numbers(self, count: int, work: WorkOnNumber, schema: pa.Schema) -> pa.Table:
        if self.context is not None:
            return pa.Table.from_batches(_from_workers(self.context, count, work), schema)
        batches = []
        with ThreadPoolExecutor(THREADS, thread_name_prefix="oplog") as threads:
            for done, found in enumerate(threads.map(lambda number: list(work(number)), range(count)), 1):
                batches += found
                self.on_part(done, count)
        return pa.Table.from_batches(batches, schema)

    def kept(self, rows: Any) -> Any:
        """The rows or groups, which are used more than once, until they are released."""
        return rows

    def release(self, rows: Any) -> None:
        """Keep them no longer."""

    def grouped(self, rows: pa.Table, by: Sequence[str], order: Sequence[str] = (), tasks: int = 1) -> Groups:
        """The rows, those that are equal in `by` together, for about so many tasks. order: by `by` first, or none."""
        if not order:
            return [_Piece(rows, None)]
        rows = rows.combine_chunks()
        numbers = pc.sort_indices(rows, [(name, "ascending") for name in order])
        if tasks == 1:
            return [_Piece(rows, numbers)]
        changes = np.zeros(max(0, len(numbers) - 1), np.bool_)
        for name in by:
            column = np.asarray(rows[name].take(numbers))
            changes |= column[1:] != column[:-1]
        starts = np.append(np.flatnonzero(changes) + 1, len(numbers))
        wanted = np.linspace(0, len(numbers), tasks + 1).astype(np.int64)[1:]
        ends = np.unique(starts[np.searchsorted(starts, wanted)])
        return [
            _Piece(rows, numbers[begin:end]) for begin, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)
        ]

    def run(self, groups: Groups, work: WorkOnGroups, schema: pa.Schema) -> Any:
        """What `work` gives of the groups, which are batches of this schema."""
        with ThreadPoolExecutor(THREADS, thread_name_prefix="groups") as threads:
            found = threads.map(lambda piece: list(work(piece.batches())), groups)
            return pa.Table.from_batches([batch for some in found for batch in some], schema)


@dataclass(frozen=True, slots=True)
class SparkRunner(_Reading):
    """Everything in Spark. session: asked for where SQL is needed, which takes seconds to load in a new JVM."""

    context: SparkContext
    session: Callable[[], SparkSession]

    @classmethod
    def of(cls, session: SparkSession) -> SparkRunner:
        return cls(session.sparkContext, lambda: session)

    def of_size(self, rows: int, most: int) -> LocalRunner | SparkRunner:
        """The runner for so many rows.

        Where there are but `most`, one task would hold them all, and no other would run beside it: then they are worked
        on in this process, and no query has to be loaded, planned and compiled.
        """
        return LocalRunner(context=self.context) if rows <= most else self

    def tasks(self, rows: int, rows_per_task: int) -> int:
        """How many tasks should share so many rows: some for each core, more where they are many."""
        return rows // rows_per_task + self.cores

    @property
    def cores(self) -> int:
        return self.context.defaultParallelism

    def kept(self, rows: Any) -> Any:
        return rows.persist()

    def release(self, rows: Any) -> None:
        rows.unpersist()

    def numbers(self, count: int, work: WorkOnNumber, schema: pa.Schema) -> DataFrame:
        def run(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            freeze_modules()
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    yield from work(number)

        # Range gives partition number i exactly the row i, so a task is a partition.
        return self.session().range(0, count, 1, max(1, count)).mapInArrow(run, ddl_of(schema))

    def grouped(self, rows: Rows, by: Sequence[str], order: Sequence[str] = (), tasks: int = 1) -> Groups:
        frame = self.session().createDataFrame(rows) if isinstance(rows, pa.Table) else rows
        together = frame.repartition(tasks, *by)
        return together.sortWithinPartitions(*order) if order else together

    def run(self, groups: Groups, work: WorkOnGroups, schema: pa.Schema) -> Any:
        return groups.mapInArrow(work, ddl_of(schema))


def _from_workers(context: SparkContext, count: int, work: WorkOnNumber) -> Iterator[pa.RecordBatch]:
    """What Spark's workers make, in the order of the numbers. It must fit into this process.

    The batches come as bytes of an RDD: to load Spark SQL and to plan a query takes longer than to read an oplog.
    """

    def run(number: int) -> Iterator[bytes]:
        freeze_modules()
        for batch in work(number):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as stream:
                stream.write_batch(batch)
            yield sink.getvalue().to_pybytes()

    for found in context.parallelize(range(count), max(1, count)).flatMap(run).collect():
        yield from pa.ipc.open_stream(found)


Runner: TypeAlias = "LocalRunner | SparkRunner"


def frames(session: SparkSession, found: Result) -> Result:
    """The result with its Arrow tables as DataFrames."""
    values = {item.name: getattr(found, item.name) for item in fields(found)}  # type: ignore[arg-type]
    tables = {name: table for name, table in values.items() if isinstance(table, pa.Table)}
    return replace(found, **{name: session.createDataFrame(table) for name, table in tables.items()})  # type: ignore[type-var]


# --- rows of either kind ---------------------------------------------------------------------------------------


def table_of_rows(rows: Rows, most: int | None = None) -> pa.Table:
    """The rows, or the first of them, in this process."""
    if isinstance(rows, pa.Table):
        return rows.slice(0, most)
    return (rows if most is None else rows.limit(most)).toArrow()


def ordered(rows: Rows, *names: str) -> Rows:
    """The rows, rising by these columns; falling by one with a minus in front."""
    keys = [(name.lstrip("-"), name.startswith("-")) for name in names]
    if isinstance(rows, pa.Table):
        return rows.sort_by([(name, "descending" if falls else "ascending") for name, falls in keys])
    return rows.orderBy([name for name, _ in keys], ascending=[not falls for _, falls in keys])


def where(rows: Rows, name: str, value: str) -> Rows:
    """The rows with this value in that column."""
    return rows.filter(pc.equal(rows[name], value)) if isinstance(rows, pa.Table) else rows.where(rows[name] == value)


def where_given(rows: Rows, name: str) -> Rows:
    """The rows with any value in that column."""
    return rows.filter(pc.is_valid(rows[name])) if isinstance(rows, pa.Table) else rows.where(rows[name].isNotNull())


def aggregated(rows: Rows, keys: Sequence[str], **how: tuple[str, str]) -> Rows:
    """One row for each key, in no order. how: by name of the new column what of which column.

    What is `count` (of rows, whatever the column), `count_distinct`, `min`, `max` or `set`: the texts, sorted.
    """
    if not isinstance(rows, pa.Table):
        from pyspark.sql import functions as F

        made: dict[str, Any] = {"count": F.count, "count_distinct": F.count_distinct, "min": F.min, "max": F.max}
        made["set"] = lambda name: F.sort_array(F.collect_set(name))
        return rows.groupBy(*keys).agg(*(made[what](column).alias(name) for name, (what, column) in how.items()))
    # In one go: two groupings of the same rows need not have their groups in the same order.
    wanted = [
        ([], "count_all") if what == "count" else (of, "distinct" if what == "set" else what)
        for what, of in how.values()
    ]
    found = rows.group_by(list(keys), use_threads=False).aggregate(wanted).rename_columns([*keys, *how])
    for name, (what, _) in how.items():
        if what == "set":
            texts = pa.array([sorted(some) for some in found[name].to_pylist()], pa.list_(pa.string()))
            found = found.set_column(found.column_names.index(name), name, texts)
    return found
