"""Seconds, CPU seconds and how much of the machine others used: a wall alone means little on a shared machine."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TypeVar

Answer = TypeVar("Answer")
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True)
class Watch:
    """seconds of wall; cpu: seconds of this process and all below it; others: cores that everybody else kept busy."""

    seconds: float = 0.0
    cpu: float = 0.0
    others: float = 0.0


@contextmanager
def watched() -> Iterator[Watch]:
    watch, began = Watch(), perf_counter()
    ours, all_of_it = tree_seconds(), machine_seconds()
    yield watch
    watch.seconds = perf_counter() - began
    watch.cpu = tree_seconds() - ours
    watch.others = max(0.0, (machine_seconds() - all_of_it - watch.cpu) / watch.seconds)


def best_of(times: int, call: Callable[[], Answer]) -> tuple[Watch, Answer]:
    """The fastest of `times` calls, and its answer."""
    found: list[tuple[float, Watch, Answer]] = []
    for _ in range(times):
        with watched() as watch:
            answer = call()
        found.append((watch.seconds, watch, answer))
    _, watch, answer = min(found, key=lambda one: one[0])
    return watch, answer


def tree_seconds(root: int | None = None) -> float:
    """CPU seconds of process `root`, of those below it, and of those that ended and were waited for; None: of this."""
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        fields = _stat(f"/proc/{pid}/stat")
        if fields:
            parents[pid] = int(fields[1])
            used[pid] = sum(map(int, fields[11:15]))
    return sum(used[pid] for pid in below(root or os.getpid(), parents) if pid in used) / _TICKS


def resident_mib(root: int) -> float:
    """Resident memory of process `root` in MiB."""
    fields = _stat(f"/proc/{root}/stat")
    return int(fields[21]) * _PAGE / (1 << 20) if fields else 0.0


def below(root: int, parents: dict[int, int]) -> set[int]:
    """`root` and all its descendants."""
    found, more = {root}, True
    while more:
        more = False
        for pid, parent in parents.items():
            if parent in found and pid not in found:
                found.add(pid)
                more = True
    return found


def machine_seconds() -> float:
    """CPU seconds that the machine spent on anything: user, nice, system, irq, softirq, steal."""
    fields = [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / _TICKS


@dataclass(slots=True)
class Peak:
    mib: int = 0


@contextmanager
def peak_of_workers(every_s: float = 0.5) -> Iterator[Peak]:
    """The most memory that one of Spark's Python workers of this process had of its own, looked at now and then."""
    peak, done = Peak(), threading.Event()

    def look() -> None:
        while not done.wait(every_s):
            peak.mib = max([peak.mib, *worker_sizes_mib()])

    thread = threading.Thread(target=look, name="sizes of workers")
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def worker_sizes_mib() -> list[int]:
    """Resident sizes of the Python workers below this process."""
    parents: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        fields = _stat(f"/proc/{pid}/stat")
        if not fields:
            continue
        parents[pid] = int(fields[1])
        try:
            if b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes():
                sizes[pid] = int(fields[21]) * _PAGE >> 20
        except OSError:
            continue
    return [size for pid, size in sizes.items() if pid in below(os.getpid(), parents)]


def _stat(path: str) -> list[str]:
    """Fields of a stat file from the state on; none when the process is gone."""
    try:
        return Path(path).read_text().rpartition(")")[2].split()
    except OSError:
        return []
