"""Where the CPU time of a write goes: the primary and a secondary count their own stacks while a set is loaded.

A sample (sampler/sitecustomize.py) counts for the package of the innermost function of ours: time inside SQLite for
`storage`, what uvloop and the kernel do between callbacks for `event loop`.
"""

from __future__ import annotations

import json
import os
import signal
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from replset.local_set import wait_until
from tools.bench.subjects import running_replset
from tools.bench.throughput import Bench, Point

SAMPLER = Path(__file__).parent / "sampler"
SHOWN = 15
"""So many functions."""
BAR = 50
"""Marks of the longest bar."""


def where(bench: Bench, folder: Path, options: Namespace) -> None:
    """Show the microseconds of a majority write at the primary and at a secondary, by package."""
    folder.mkdir()
    (connections,) = (options.connections or [64])[:1]
    with _environment(PYTHONPATH=str(SAMPLER), BENCH_SAMPLES=str(folder)), running_replset(folder / "set") as subject:
        watched = {"primary": subject.primary, "secondary": subject.secondaries[0]}
        for pid in watched.values():
            _counted(folder, pid)
        figures = bench.measure(Point("majority", connections), subject)
        if figures is None:
            return
        costs = {"primary": figures.primary_us, "secondary": figures.secondaries_us / len(subject.secondaries)}
        for name, pid in watched.items():
            _show(name, costs[name], _counted(folder, pid))


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Set variables of this process, which the members get as well, during the block."""
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]


def _counted(folder: Path, pid: int) -> Counter[str]:
    """Ask the process for its samples since the last time."""
    file = folder / str(pid)
    os.kill(pid, signal.SIGUSR2)
    wait_until(file.exists, 10, f"the samples of process {pid}")
    found = Counter[str](json.loads(file.read_text()))
    file.unlink()
    return found


def _show(name: str, cost_us: float, functions: Counter[str]) -> None:
    """Draw bars for packages, then list the functions that take most."""
    packages = Counter[str]()
    for function, count in functions.items():
        packages[_package(function)] += count
    us = cost_us / max(functions.total(), 1)
    most = max(packages.values(), default=1)
    print(f"{name}: {cost_us:.0f} us a write, {functions.total():,} samples")
    for package, count in packages.most_common():
        print(f"  {package:12} {count * us:5.1f} us  {'#' * round(count / most * BAR)}")
    for function, count in functions.most_common(SHOWN):
        print(f"    {count * us:5.1f} us  {function}")


def _package(function: str) -> str:
    """Return the package below replset, or the file that stands there alone."""
    parts = function.partition(" ")[0].split("/")
    return parts[1].removesuffix(".py") if parts[0] == "replset" else parts[0] if len(parts) > 1 else function
