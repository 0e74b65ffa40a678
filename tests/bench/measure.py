"""Seconds, CPU seconds and how much of the machine others used: a wall alone means little on a shared machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TypeVar

Answer = TypeVar("Answer")
_TICKS = os.sysconf("SC_CLK_TCK")


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


def tree_seconds() -> float:
    """CPU seconds of this process, of those below it, and of those that ended and were waited for."""
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        fields = _stat(f"/proc/{pid}/stat")
        if fields:
            parents[pid] = int(fields[1])
            used[pid] = sum(map(int, fields[11:15]))
    return sum(used[pid] for pid in below(os.getpid(), parents) if pid in used) / _TICKS


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


def worker_peaks_mib() -> list[int]:
    """The largest resident size that each of Spark's Python workers ever had, this process's own workers only."""
    parents, peaks = {}, {}
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        fields = _stat(f"/proc/{pid}/stat")
        if not fields:
            continue
        parents[pid] = int(fields[1])
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        if b"pyspark.daemon" in command and "VmHWM:" in status:
            peaks[pid] = int(status.split("VmHWM:")[1].split()[0]) >> 10
    own = below(os.getpid(), parents)
    daemons = {parents[pid] for pid in peaks}
    return sorted(peak for pid, peak in peaks.items() if pid in own and pid not in daemons)


def _stat(path: str) -> list[str]:
    """Fields of a stat file from the state on; none when the process is gone."""
    try:
        return Path(path).read_text().rpartition(")")[2].split()
    except OSError:
        return []
