"""Which simulated runs execute which lines, recorded by coverage.py, for `./dev mutate --simulation-only`.

The record is kept in `.venv` and renewed when the simulator changed, since its seeds then draw other runs.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import multiprocessing
import os
import sys
import time
from collections import defaultdict
from dataclasses import asdict
from itertools import accumulate
from pathlib import Path

import coverage

from tools.importers import ROOT
from tools.mutate.record import Record, names_of_lines

POOL: dict[str, range] = {
    "stories": range(15),
    "core": range(12),
    "core-changes": range(8),
    "": range(8),
    "rollbacks": range(16, 19),
    "changes": range(8, 11),
    "concerns": range(4, 6),
    "stale": range(2),
    "consumers": range(2, 4),
    "archive": range(2, 4),
    "streams": range(1, 3),
    "follow": range(10, 12),
    "scenarios": range(11),
    "wiring": range(9),
}
"""The seeds of each kind, or the checks, that judge, a mutation those of them that run its line."""
RUNS_S = 40
"""Seconds of processor for the runs of one mutation."""
PATH = ROOT / ".venv" / ".runs-by-line.json"
SIMULATOR = "tests/simulation"
Run = tuple[str, int]


def chosen_runs(record: Record, path: str, line: int) -> dict[Run, float]:
    """Return the runs that judge a mutation of this line with their seconds, those of each kind in turn.

    They are those that execute the line, as many as RUNS_S allows; none where no run does.
    """
    by_kind = defaultdict[str, list[tuple[float, Run]]](list)
    for name, seconds in record.tests_of(path, line, exactly=True).items():
        kind, seed = name.partition("::")[2].split()
        by_kind[kind].append((seconds, (kind.removeprefix("usual"), int(seed))))
    turns: list[tuple[float, float, Run]] = []
    for runs in by_kind.values():
        runs.sort()
        turns += [(sum_s, s, run) for (s, run), sum_s in zip(runs, accumulate(s for s, _ in runs), strict=True)]
    turns.sort()
    sums = accumulate(seconds for _, seconds, _ in turns)
    return {run: seconds for (_, seconds, run), sum_s in zip(turns, sums, strict=True) if sum_s <= RUNS_S}


def up_to_date(jobs: int) -> Record:
    """Return the record, after the runs have been recorded if it is not of the simulator as it is."""
    digest = _digest()
    record = Record(**json.loads(PATH.read_text())) if PATH.exists() else Record()
    if record.files.get(SIMULATOR) == digest:
        return record
    print(f"records which lines the simulated runs execute, in {PATH.relative_to(ROOT)}", flush=True)
    record = Record({SIMULATOR: digest})
    runs = [(kind, seed) for kind, seeds in POOL.items() for seed in seeds]
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=1) as pool:  # each imports all anew
        for run, seconds, lines in pool.imap(_lines_of_run, runs, chunksize=1):
            if lines:
                _add(record, run, seconds, lines)
    PATH.write_text(json.dumps(asdict(record)))
    return record


def outcome_of(run: Run) -> str:
    """Carry out a run; "": it held."""
    kinds, told = (importlib.import_module(f"tests.simulation.kit.{name}") for name in ("kinds", "told"))
    found = (kind for kind in (vars(kinds) | vars(told)).values() if isinstance(kind, kinds.Kind))
    by_option = {kind.option.removeprefix("--"): kind for kind in found}
    kind = by_option[run[0]]
    error = kind.outcome(run[1]).error
    return "" if error is None else f"simulation, {kind.run_name(run[1])}: {error.splitlines()[0]}"


def begin() -> None:
    """Prepare a process of its own for runs."""
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))


def _lines_of_run(run: Run) -> tuple[Run, float, dict[str, list[int]]]:
    """Return the seconds that a run takes and the lines by path, none if it does not hold."""
    begin()
    measured = coverage.Coverage(data_file=None, config_file=False, source=["replset"])
    measured.start()
    importlib.import_module("tests.simulation.kit.kinds")
    began = time.process_time()
    failed = outcome_of(run)
    seconds = time.process_time() - began
    measured.stop()
    data = measured.get_data()
    paths = () if failed else data.measured_files()
    return run, seconds, {Path(file).relative_to(ROOT).as_posix(): data.lines(file) or [] for file in paths}


def _add(record: Record, run: Run, seconds: float, lines: dict[str, list[int]]) -> None:
    number = len(record.tests)
    record.tests.append((f"{SIMULATOR}::{run[0] or 'usual'} {run[1]}", round(seconds, 3)))
    for path, numbers in lines.items():
        names, of_path = names_of_lines(ROOT / path), record.lines.setdefault(path, {})
        for key in {":".join(names[line - 1]) for line in numbers if names}:
            of_path.setdefault(key, []).append(number)


def _digest() -> str:
    files = sorted((ROOT / SIMULATOR).glob("*kit/*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files) + repr(POOL).encode()).hexdigest()
