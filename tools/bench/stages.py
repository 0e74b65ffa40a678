"""What Spark itself counted of the stages of a job: tasks, bytes shuffled, the slowest task beside the median one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Stage:
    """median_ms, slowest_ms: run times of its tasks. memory: the most that its tasks' operators held, in bytes.

    read_*: rows that they had from the stages before: all of them, the median task, the one with most.
    """

    tasks: int
    median_ms: float
    slowest_ms: float
    shuffled_bytes: int
    shuffled_rows: int
    spilled_bytes: int
    memory: int
    read_rows: int
    read_median: float
    read_most: float


def stages_of(spark: SparkSession, call: Callable[[], Answer]) -> tuple[list[Stage], Answer]:
    """The stages that ran while `call` ran, and its answer."""
    before = {number for number, _, _ in _listed(spark)}
    answer = call()
    store = _store(spark)
    java = _java(spark)
    quantiles = java.new_array(java.jvm.double, 2)
    quantiles[0], quantiles[1] = 0.5, 1.0
    found = []
    for number, attempt, data in _listed(spark):
        if number in before or data.numCompleteTasks() == 0:
            continue
        told = store.taskSummary(number, attempt, quantiles)
        times, read = (0.0, 0.0), (0.0, 0.0)
        if told.isDefined():
            times = _pair(told.get().executorRunTime())
            read = _pair(told.get().shuffleReadMetrics().readRecords())
        found.append(
            Stage(
                data.numCompleteTasks(),
                *times,
                data.shuffleWriteBytes(),
                data.shuffleWriteRecords(),
                data.memoryBytesSpilled() + data.diskBytesSpilled(),
                data.peakExecutionMemory(),
                data.shuffleReadRecords(),
                *read,
            )
        )
    return found, answer


def _pair(quantiles: Any) -> tuple[float, float]:
    return quantiles.apply(0), quantiles.apply(1)


def _java(spark: SparkSession) -> Any:
    return spark.sparkContext._gateway


def _store(spark: SparkSession) -> Any:
    context: Any = spark.sparkContext._jsc
    return context.sc().statusStore()


def _listed(spark: SparkSession) -> list[tuple[int, int, Any]]:
    """(number, attempt, data) of every stage that Spark remembers, oldest first."""
    java = _java(spark)
    none = java.jvm.java.util.ArrayList()
    quantiles = java.new_array(java.jvm.double, 0)
    context: Any = spark.sparkContext._jsc
    context.sc().listenerBus().waitUntilEmpty()
    found = _store(spark).stageList(none, False, False, quantiles, none)
    stages = [found.apply(number) for number in range(found.size())]
    return sorted(((data.stageId(), data.attemptId(), data) for data in stages), key=lambda one: one[:2])
