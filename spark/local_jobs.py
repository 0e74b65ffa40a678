"""How the local engine reads: threads of this process work on the parts that `jobs` cuts for Spark's tasks.

Reading, hashing and Arrow's own work let go of the interpreter's lock; Python's part of the work takes turns.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa

from spark.jobs import ROWS_PER_TASK, Task, Work, plan
from spark.oplog import ALL, EVERYTHING, EntryFilter, Oplog, Span

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
