"""Many seeds over many processes: a progress line, sums of what happened, and each failure with its command."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from functools import partial

from tests.simulation.kit import cluster
from tests.simulation.kit.kinds import WHOLE, Kind
from tests.simulation.kit.runs import Outcome

PROCESS_RUNS_MAX = 200
REPORTS_MAX = 5
_LINE_EVERY_S = 30.0


@dataclass(frozen=True, slots=True)
class Timed:
    """A run and the seconds of processor that it took."""

    outcome: Outcome
    cpu_s: float


@dataclass(slots=True)
class Sums:
    """What came of all runs so far."""

    held: int = 0
    failed: list[Outcome] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    slowest_well_ms: int = 0
    cpu_s: float = 0.0

    def add(self, timed: Timed) -> None:
        outcome = timed.outcome
        self.cpu_s += timed.cpu_s
        self.counts.update(outcome.counts)
        self.slowest_well_ms = max(self.slowest_well_ms, outcome.counts["ms until well"])
        if outcome.error is None:
            self.held += 1
        else:
            self.failed.append(outcome)

    @property
    def done(self) -> int:
        return self.held + len(self.failed)


def run_many(seeds: Iterable[int], jobs: int, kind: Kind = WHOLE) -> Generator[Timed, None, None]:
    """Outcomes in the order in which they come. jobs: processes."""
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory(prefix="replset-sims-", dir=cluster.FASTEST_FOLDER) as folder,  # goes in any case
        context.Pool(jobs, _begin, (folder,), maxtasksperchild=PROCESS_RUNS_MAX) as pool,
    ):
        yield from pool.imap_unordered(partial(_timed, kind), seeds)


def _begin(folder: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it too, and ends this process
    cluster.FASTEST_FOLDER = folder
    gc.freeze()  # what was imported is there for good


def _timed(kind: Kind, seed: int) -> Timed:
    began = time.process_time()
    return Timed(kind.outcome(seed), time.process_time() - began)


def report_many(seeds: range, jobs: int, *, each: bool, trace: bool, kind: Kind = WHOLE) -> Sums:
    """Run and print. each: a line for every seed. trace: its whole trace too."""
    sums = Sums()
    began = said = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as `timeout` ends it: what ran so far is summed up
    try:
        for timed in run_many(seeds, jobs, kind=kind):
            sums.add(timed)
            outcome = timed.outcome
            if trace:
                print("\n".join(outcome.trace))
            if outcome.error is not None and len(sums.failed) <= REPORTS_MAX:
                print(outcome.report(), flush=True)
            elif outcome.error is not None:
                print(f"seed {outcome.seed}: {outcome.error.splitlines()[0]}", flush=True)
            elif each:
                print(
                    f"seed {outcome.seed}: held; {outcome.facts}; {timed.cpu_s:.1f} s; {outcome.digest[:12]}",
                    flush=True,
                )
            now = time.monotonic()
            if not each and (sys.stdout.isatty() or now - said > _LINE_EVERY_S):
                said = now
                left = (now - began) / sums.done * (len(seeds) - sums.done)
                line = f"{sums.done} of {len(seeds)}, {len(sums.failed)} failed, {left:.0f} s left"
                print(
                    f"\r{line}   " if sys.stdout.isatty() else line, end="" if sys.stdout.isatty() else "\n", flush=True
                )
    except KeyboardInterrupt:
        print(f"\nstopped after {sums.done} of {len(seeds)}", flush=True)
    _print_sums(sums, time.monotonic() - began)
    return sums


def _print_sums(sums: Sums, wall_s: float) -> None:
    counts = sums.counts
    runs = max(1, sums.done)
    simulated = counts["simulated seconds"]
    print(f"\n{sums.done} runs, {simulated} simulated seconds in {wall_s:.0f} s ({sums.cpu_s:.0f} of CPU)")
    print(
        f"well again after {counts['ms until well'] / runs / 1000:.1f} s, at most {sums.slowest_well_ms / 1000:.1f} s"
    )
    kinds = sorted(name for name in counts if name.startswith("fault "))
    print("faults: " + ", ".join(f"{counts[name]} {name.removeprefix('fault ')}" for name in kinds))
    rest = sorted(name for name in counts if name not in kinds and name not in ("simulated seconds", "ms until well"))
    print(", ".join(f"{counts[name]} {name}" for name in rest))
    print(f"{sums.held} of {sums.done} held")
    for outcome in sorted(sums.failed, key=lambda outcome: outcome.seed):
        assert outcome.error is not None
        print(f"  {outcome.again}   # {outcome.error.splitlines()[0]}")


def processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
