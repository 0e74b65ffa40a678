"""Shows how far Spark's jobs are: the tasks of the stages that run now, asked of Spark twice a second."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from replset.long_work import LongWork

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ASK_EVERY_S: Final = 0.5


class SparkTasks:
    """Asks in a thread of its own, until `close`."""

    def __init__(self, session: SparkSession, work: LongWork) -> None:
        self._tracker = session.sparkContext.statusTracker()
        self._work = work
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spark-progress", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Return when nothing is asked any more. Spark may be stopped then."""
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        with suppress(Exception):  # Spark has ended meanwhile, or its Java has; whoever uses it says so
            while not self._is_over.wait(ASK_EVERY_S):
                stages = [self._tracker.getStageInfo(stage) for stage in self._tracker.getActiveStageIds()]
                running = [stage for stage in stages if stage is not None]
                if running:
                    done = sum(stage.numCompletedTasks for stage in running)
                    self._work.update(done, sum(stage.numTasks for stage in running))
