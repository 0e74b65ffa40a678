"""Where the CPU time of a write goes: py-spy looks at the primary and a secondary while 64 connections write.

A sample counts for the package of the innermost function of ours in its stack: time inside SQLite counts for `storage`,
what uvloop does by itself for `event loop`. py-spy does not stop
the members, so a few stacks are torn; the shares stand for all that.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from argparse import Namespace
from collections import Counter
from pathlib import Path

from tools.bench.subjects import running_replset
from tools.bench.throughput import Bench, Point, say

HERTZ = 500
SHOWN = 15
"""So many functions."""
BAR_US = 2.0
"""So many microseconds are one mark of a bar."""
WAITING = ("_worker ", "Condition.wait ", "RealDisk.sync_file ")
"""Innermost functions of threads that wait for work or for the disk, which takes no CPU."""
_FRAME = re.compile(r"^(\S+) \((?:\S*/)?((?:replset|api)/\S+?):\d+\)$")


def where(bench: Bench, folder: Path, options: Namespace) -> None:
    """Microseconds of a majority write at the primary and at a secondary, by package."""
    program = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if program is None:
        say("where: py-spy is not installed (pip install py-spy)")
        return
    with running_replset(folder) as subject:
        point = Point("majority", 64)
        figures = bench.measure(point, subject)
        if figures is None:
            return
        watched = {"primary": subject.primary, "secondary": subject.secondaries[0]}
        costs = {"primary": figures.primary_us, "secondary": figures.secondaries_us / len(subject.secondaries)}
        for pid in watched.values():
            _do_not_interrupt(pid)
        spies = {name: _spy(program, pid, folder / name, bench.seconds) for name, pid in watched.items()}
        bench.measure(Point("majority", 64, label="majority, observed"), subject)
        for name, spy in spies.items():
            spy.wait()
            _show(name, costs[name], (folder / name).read_text().splitlines())


def _do_not_interrupt(pid: int) -> None:
    """Give all threads of a member precedence: py-spy counts a thread that another program pushed aside as working."""
    with contextlib.suppress(PermissionError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.setpriority(os.PRIO_PROCESS, int(thread.name), -15)


def _spy(program: str, pid: int, file: Path, seconds: float) -> subprocess.Popen[bytes]:
    flags = (
        "--nonblocking",
        "--format",
        "raw",
        "--full-filenames",
        "--rate",
        str(HERTZ),
        "--duration",
        str(max(1, round(seconds))),
    )
    command = [program, "record", "--pid", str(pid), "--output", str(file), *flags]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _show(name: str, cost_us: float, stacks: list[str]) -> None:
    """Bars for packages, then the functions that take most."""
    packages, functions = Counter[str](), Counter[str]()
    for line in stacks:
        stack, _, samples = line.rpartition(" ")
        frames = stack.split(";")
        if frames[-1].startswith(WAITING):
            continue
        package, function = _place(frames)
        packages[package] += int(samples)
        functions[function] += int(samples)
    us = cost_us / max(packages.total(), 1)
    print(f"{name}: {cost_us:.0f} us a write, {packages.total()} samples")
    for package, count in packages.most_common():
        print(f"  {package:12} {count * us:5.1f} us  {'#' * round(count * us / BAR_US)}")
    for function, count in functions.most_common(SHOWN):
        print(f"    {count * us:5.1f} us  {function}")


def _place(stack: list[str]) -> tuple[str, str]:
    """Package and function of the innermost frame of ours."""
    for frame in reversed(stack):
        found = _FRAME.match(frame)
        if found:
            function, file = found.groups()
            parts = file.split("/")
            if parts[1] != "cli":
                package = parts[1] if parts[0] == "replset" else "api"
                return package.removesuffix(".py"), f"{file} {function}"
    return "event loop", stack[-1] if stack else ""
