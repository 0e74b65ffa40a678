"""How every job reads: one task for each span of an oplog. `runners` says where the tasks run.

The driver has only bounds and spans. Reading, hashing and Arrow's own work let go of the interpreter's lock; Python's
part of the work takes turns.
"""

from __future__ import annotations

import gc
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import pyarrow as pa

from replset.ids import OPTIME_NULL
from spark.columns import MEMBER, arrow_schema, repeated
from spark.oplog import ALL, EntryFilter, Oplog, OplogError, OplogTrimmedError, Span

ROWS_PER_TASK = 250_000
Task = tuple[Oplog, Span]
Work = Callable[[str, Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def span_reader(
    tasks: Sequence[Task], columns: Sequence[str], work: Work, only: EntryFilter = ALL
) -> Callable[[int], Iterator[pa.RecordBatch]]:
    """What runs in threads or in Spark's workers: it takes a task's number and gives what `work` makes of that task.

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
