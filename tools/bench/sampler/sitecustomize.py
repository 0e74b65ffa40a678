"""Counts where a member spends its CPU time. Its interpreter loads this file if the folder is on PYTHONPATH.

SIGPROF comes after each two milliseconds of CPU time of the process, and counts for the innermost function of ours on
the main thread's stack. What has no such function, counts for the event loop.
SIGUSR2 writes the counts to the folder that BENCH_SAMPLES names, into a file named by the pid, and begins again.
"""

from __future__ import annotations

import json
import opcode
import os
import signal
from collections import Counter
from types import FrameType

EVERY_S = 0.002
RESUME = opcode.opmap.get("RESUME", -1)
_OURS = tuple(f"{os.getcwd()}/{package}/" for package in ("replset", "api"))
_counts: Counter[str] = Counter()


def _sample(_number: int, frame: FrameType | None) -> None:
    if frame is not None and frame.f_code.co_code[frame.f_lasti] == RESUME:
        frame = frame.f_back  # the time passed before this function began
    while frame is not None and not _is_ours(frame):
        frame = frame.f_back
    if frame is None:
        _counts["event loop"] += 1
        return
    code = frame.f_code
    _counts[f"{os.path.relpath(code.co_filename)} {getattr(code, 'co_qualname', code.co_name)}"] += 1


def _is_ours(frame: FrameType | None) -> bool:
    return frame is not None and frame.f_code.co_filename.startswith(_OURS) and "/cli/" not in frame.f_code.co_filename


def _write(_number: int, _frame: FrameType | None) -> None:
    place = f"{os.environ['BENCH_SAMPLES']}/{os.getpid()}"
    with open(f"{place}.new", "w") as file:
        json.dump(_counts, file)
    os.replace(f"{place}.new", place)
    _counts.clear()


if "BENCH_SAMPLES" in os.environ:
    signal.signal(signal.SIGPROF, _sample)
    signal.signal(signal.SIGUSR2, _write)
    signal.setitimer(signal.ITIMER_PROF, EVERY_S, EVERY_S)
