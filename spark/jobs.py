"""How every Spark job reads: one task for each span of an oplog, read in the worker.

The driver has only bounds and spans. In the local engine threads of this process work on the same tasks.
Reading, hashing and Arrow's own work let go of the interpreter's lock; Python's part of the work takes turns.
"""

from __future__ import annotations

import gc
import os
import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from replset.ids import OPTIME_NULL
from spark.columns import MEMBER, SPARK_TYPES, arrow_schema, repeated
from spark.oplog import ALL, EVERYTHING, EntryFilter, Oplog, OplogError, OplogTrimmedError, Span

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

ROWS_PER_TASK = 250_000
Task = tuple[Oplog, Span]
Work = Callable[[str, Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def scan(
    spark: SparkSession,
    oplogs: Sequence[Oplog],
    columns: Sequence[str],
    *,
    span: Span = EVERYTHING,
    only: EntryFilter = ALL,
    rows_per_task: int = ROWS_PER_TASK,
) -> DataFrame:
    """`member` and `columns` of every entry of `span` in every oplog."""
    schema = ", ".join(f"{name} {SPARK_TYPES[name]}" for name in (MEMBER, *columns))
    return map_spans(spark, oplogs, columns, with_member, schema, span=span, only=only, rows_per_task=rows_per_task)


def map_spans(
    spark: SparkSession,
    oplogs: Sequence[Oplog],
    columns: Sequence[str],
    work: Work,
    schema: str,
    *,
    span: Span = EVERYTHING,
    only: EntryFilter = ALL,
    rows_per_task: int = ROWS_PER_TASK,
) -> DataFrame:
    """`work(member's name, batches of columns)` run in the worker right behind the reader; its batches as a table.

    Called once a task: the batches of one part of `span`, oldest first. A part without entries may give no batch.
    """
    tasks = plan(oplogs, span, rows_per_task)
    return map_numbers(spark, len(tasks), span_reader(tasks, columns, work, only), schema)


def map_numbers(
    spark: SparkSession, count: int, work: Callable[[int], Iterator[pa.RecordBatch]], schema: str
) -> DataFrame:
    """Run `work(number)` in the workers, one task for each number below `count`; its batches as a table."""

    def run(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_modules()
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from work(number)

    # Range gives partition number i exactly the row i, so a task is a partition.
    return spark.range(0, count, 1, max(1, count)).mapInArrow(run, schema)


def collect_spans(
    context: SparkContext,
    oplogs: Sequence[Oplog],
    columns: Sequence[str],
    work: Work,
    *,
    span: Span = EVERYTHING,
    only: EntryFilter = ALL,
    rows_per_task: int = ROWS_PER_TASK,
) -> Iterator[pa.RecordBatch]:
    """What `work` gives of every part, as `run_spans` gives it, made by Spark's workers. It must fit into this process.

    The batches come as bytes of an RDD: to load Spark SQL and to plan a query takes longer than to read an oplog.
    """
    tasks = plan(oplogs, span, rows_per_task)
    read = span_reader(tasks, columns, work, only)

    def run(number: int) -> Iterator[bytes]:
        freeze_modules()
        for batch in read(number):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as stream:
                stream.write_batch(batch)
            yield sink.getvalue().to_pybytes()

    for found in context.parallelize(range(len(tasks)), max(1, len(tasks))).flatMap(run).collect():
        yield from pa.ipc.open_stream(found)


def span_reader(
    tasks: Sequence[Task], columns: Sequence[str], work: Work, only: EntryFilter = ALL
) -> Callable[[int], Iterator[pa.RecordBatch]]:
    """What runs in Spark's workers: it takes a task's number and gives what `work` makes of that task.

    Every task gets the list of all tasks, so it is made of plain numbers: as objects, those of a hundred thousand
    tasks would take a third of a second to read, a hundred thousand times.
    """
    wanted = tuple(columns)
    oplogs = list({id(oplog): oplog for oplog, _ in tasks}.values())
    numbers_of = {id(oplog): number for number, oplog in enumerate(oplogs)}
    owners = array("i", (numbers_of[id(oplog)] for oplog, _ in tasks))
    firsts, ends = array("q", (part.first_ts for _, part in tasks)), array("q", (part.end_ts for _, part in tasks))

    def read(number: int) -> Iterator[pa.RecordBatch]:
        oplog = oplogs[owners[number]]
        return work(oplog.name, oplog.read(Span(firsts[number], ends[number]), wanted, only))

    return read


def freeze_modules() -> None:
    """Exclude what the worker's tasks found there, above all modules, from the search for garbage.

    PySpark's workers look for garbage behind every task, which takes 40 ms with pyarrow's and numpy's modules: twice
    what a small task takes. It is done again when a task has imported more.
    """
    _freeze(len(sys.modules))


@cache
def _freeze(_modules: int) -> None:
    gc.collect()
    gc.freeze()


def table_of(spark: SparkSession, rows: Sequence[Sequence[Any]], ddl: str) -> DataFrame:
    """A small table of the driver's, which stays in its JVM: no worker is started for it, and no job to show it."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    schema = StructType.fromDDL(ddl)
    assert isinstance(schema, StructType)
    arrow = to_arrow_schema(schema)
    columns = zip(*rows, strict=True) if rows else [()] * len(arrow)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, arrow, strict=True)]
    return spark.createDataFrame(pa.Table.from_arrays(arrays, schema=arrow), schema)


def pinned(oplogs: Sequence[Oplog]) -> list[Oplog]:
    """The oplogs with the bounds of now. A command that reads more than once pins its oplogs first."""
    return [oplog.pin() for oplog in oplogs]


def plan(oplogs: Sequence[Oplog], span: Span, rows_per_task: int) -> list[Task]:
    """Cut the span of each oplog into parts of about `rows_per_task` entries; the oplogs' parts alternate."""
    parts = [[(oplog, part) for part in _parts(oplog, span, rows_per_task)] for oplog in pinned(oplogs)]
    longest = max(map(len, parts), default=0)
    return [tasks[number] for number in range(longest) for tasks in parts if number < len(tasks)]


def read_remaining(
    oplog: Oplog,
    span: Span,
    columns: Sequence[str],
    only: EntryFilter,
    on_trimmed: Callable[[Span], None] = lambda span: None,
) -> Iterator[pa.RecordBatch]:
    """Read as `oplog.read` does; where entries were trimmed away, those behind them. `on_trimmed` gets their span."""
    while True:
        try:
            yield from oplog.read(span, columns, only)
            return
        except OplogTrimmedError as error:
            if error.through < span.first_ts:
                raise
            bounds = oplog.bounds()
            left = Span(min(error.through + 1, span.end_ts), span.end_ts)
            on_trimmed(Span(max(span.first_ts, bounds.oldest.ts), min(left.first_ts, bounds.newest.ts + 1)))
            span = left


def with_member(member: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches with the column `member` in front."""
    for batch in batches:
        schema = arrow_schema((MEMBER, *batch.schema.names))
        yield pa.RecordBatch.from_arrays([repeated(member, batch.num_rows), *batch.columns], schema=schema)


def oplog_error(error: BaseException) -> OplogError | None:
    """The OplogError behind this error, be it raised here or in a worker, where PySpark keeps only its text."""
    seen: BaseException | None = error
    while seen is not None:
        found = seen if isinstance(seen, OplogError) else OplogError.found_in(str(seen))
        if found is not None:
            return found
        seen = seen.__cause__ or seen.__context__
    return None


def _parts(oplog: Oplog, span: Span, rows_per_task: int) -> list[Span]:
    """The parts of the entries that the pinned oplog has; none where it has none."""
    bounds = oplog.bounds()
    wanted = Span(max(span.first_ts, bounds.oldest.ts), min(span.end_ts, bounds.newest.ts + 1))
    if bounds.newest == OPTIME_NULL or wanted.first_ts >= wanted.end_ts:
        return []
    rows = (
        bounds.rows if wanted.first_ts == bounds.oldest.ts and wanted.end_ts > bounds.newest.ts else oplog.count(wanted)
    )
    return oplog.split(wanted, max(1, -(-rows // rows_per_task)))


THREADS = min(4, os.cpu_count() or 1)
OnPart = Callable[[int, int], None]
"""Called with how many parts are read, and how many there are."""


def no_progress(done: int, total: int) -> None:
    """Show nothing."""


def run_spans(
    oplogs: Sequence[Oplog],
    columns: Sequence[str],
    work: Work,
    *,
    span: Span = EVERYTHING,
    only: EntryFilter = ALL,
    rows_per_task: int = ROWS_PER_TASK,
    on_part: OnPart = no_progress,
) -> Iterator[pa.RecordBatch]:
    """What `work` gives of every part, in the order of `plan`. Some parts beyond the one wanted are worked on ahead."""
    wanted = tuple(columns)

    def run(task: Task) -> list[pa.RecordBatch]:
        oplog, part = task
        return list(work(oplog.name, oplog.read(part, wanted, only)))

    tasks = deque(plan(oplogs, span, rows_per_task))
    total = len(tasks)
    with ThreadPoolExecutor(THREADS, thread_name_prefix="oplog") as threads:
        ahead: deque[Future[list[pa.RecordBatch]]] = deque()
        try:
            while tasks or ahead:
                while tasks and len(ahead) < THREADS + 1:
                    ahead.append(threads.submit(run, tasks.popleft()))
                yield from ahead.popleft().result()
                on_part(total - len(tasks) - len(ahead), total)
        finally:
            threads.shutdown(cancel_futures=True)
