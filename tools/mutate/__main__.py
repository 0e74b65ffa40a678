"""`./dev mutate [PATH...] [--sample N] [--since REV]`: small faults in the product, each to be noticed by a test.

Each mutation is judged by the tests that run its line, then by simulated runs. What nobody notices is listed with its
line, and makes the status 1. `equivalent.txt` names those that change no behaviour, each with its reason.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import multiprocessing
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from tools.importers import ROOT
from tools.mutate.judges import (
    Verdict,
    by_simulation,
    by_tests,
    chosen_tests,
    import_what_is_not_ours,
    seeds_of,
    trial,
)
from tools.mutate.mutations import Mutation, mutations_of
from tools.mutate.record import up_to_date
from tools.mutate.runs import Run, chosen_runs
from tools.mutate.runs import up_to_date as runs_up_to_date

T = TypeVar("T")
PATHS = (
    *("replset/core", "replset/replication", "replset/storage", "replset/auth", "api/guard.py"),
    *(
        "replset/operations/transactions.py",
        "replset/operations/session_request.py",
        "replset/operations/session_table.py",
    ),
    *(
        f"replset/features/{name}"
        for name in ("archive", "change_streams", "compared_copies", "consumers", "follower", "recovery")
    ),
    "replset/features/transactions",
)
"""What a fault would cost data, or let somebody in."""
BY_SIMULATION = ("replset/core", "replset/replication", "replset/storage")
"""Where the report says besides what the simulated runs notice by themselves."""
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
REPORT = ROOT / ".venv" / ".mutations.json"
START_S = 20.0
"""Seconds of processor that a trial may take besides what its tests took when they were recorded, twice."""
SIMULATION_S = 240.0
_sound: set[str] = set()
_unsound: set[str] = set()
"""Tests that this process has tried without a fault, once they had caught something."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev mutate", description=__doc__)
    parser.add_argument("paths", nargs="*", metavar="PATH", help=f"files or folders; without: {', '.join(PATHS)}")
    parser.add_argument("--sample", type=int, default=0, metavar="N", help="only N of them, drawn at random")
    parser.add_argument("--seed", type=int, default=1, help="of the draw (1)")
    parser.add_argument("--since", metavar="REV", help="only those in lines that changed since this revision")
    parser.add_argument("--jobs", type=int, default=2, help="trials at once (2)")
    parser.add_argument("--list", action="store_true", help="print the mutations and judge none")
    parser.add_argument("--simulation", action="store_true", help="say too what the simulated runs notice alone")
    parser.add_argument(
        "--simulation-only", action="store_true", help="judge by no tests, but by the simulated runs of the line"
    )
    options = parser.parse_args()
    try:
        chosen = choose(options.paths or PATHS, options.since, options.sample, options.seed)
    except (FileNotFoundError, SyntaxError, subprocess.CalledProcessError) as error:
        print(f"mutate: {error}", file=sys.stderr)
        return 2
    if options.list:
        for mutation in chosen:
            print(_line(mutation))
        return 0
    if options.simulation_only:
        return _by_simulation_only(chosen, options.jobs)
    record = up_to_date()
    import_what_is_not_ours()
    work = [(mutation, chosen_tests(record, mutation.path, mutation.line)) for mutation in chosen]
    first = next((list(tests)[:1] for _, tests in work if tests), [])
    if first and (noticed := trial(None, lambda: by_tests(first), START_S)):
        print(f"mutate: {noticed} fails without a fault", file=sys.stderr)
        return 2
    return report(*judge(work, options.jobs, functools.partial(_judge_one, simulation_too=options.simulation)))


def _by_simulation_only(chosen: list[Mutation], jobs: int) -> int:
    record = runs_up_to_date(jobs)
    import_what_is_not_ours()
    work = [(mutation, chosen_runs(record, mutation.path, mutation.line)) for mutation in chosen]
    return report(*judge(work, jobs, _judge_by_runs))


def choose(paths: Sequence[str], since: str | None, sample: int, seed: int) -> list[Mutation]:
    """Return the mutations to judge: all of the paths, or a sample, without those that are known as equivalent.

    The draw is by name, so that a change elsewhere or a line in `equivalent.txt` does not draw others.
    """
    lines = None if since is None else changed_lines(since)
    found = [
        mutation
        for path in files_of(paths)
        for mutation in mutations_of(path, ROOT)
        if lines is None or mutation.line in lines[mutation.path]
    ]
    if sample:
        drawn = set(sorted(found, key=functools.partial(_lot, seed))[:sample])
        found = [mutation for mutation in found if mutation in drawn]
    known = equivalent()
    return [mutation for mutation in found if mutation.name not in known]


def _lot(seed: int, mutation: Mutation) -> bytes:
    text = f"{seed} {mutation.same + 1} {replace(mutation, same=0).name}"
    return hashlib.sha256(text.encode()).digest()


def files_of(paths: Sequence[str]) -> Iterator[Path]:
    for text in paths:
        path = ROOT / text
        if not path.exists():
            raise FileNotFoundError(f"{text} is not there")
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def equivalent() -> set[str]:
    """Return the names of the mutations that change no behaviour. A line: the name, a tab, the reason."""
    rows = [line.split("\t") for line in EQUIVALENT.read_text("utf-8").splitlines() if line and line[0] != "#"]
    without = [row[0] for row in rows if len(row) != 2 or not row[1].strip()]
    if without:
        raise SyntaxError(f"{EQUIVALENT.name}: no reason for {without[0]}")
    return {row[0] for row in rows}


def changed_lines(revision: str) -> defaultdict[str, set[int]]:
    """Return the lines by file that differ from those of a revision."""
    command = ["git", "diff", "--unified=0", "--no-color", revision, "--", "*.py"]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines, path = defaultdict[str, set[int]](set), ""
    for line in text.splitlines():
        if line.startswith("+++ "):
            path = line[6:]
        elif line.startswith("@@"):
            first, _, count = line.split()[2].removeprefix("+").partition(",")
            lines[path] |= set(range(int(first), int(first) + int(count or 1)))
    return lines


def judge(
    work: Sequence[tuple[Mutation, T]],
    jobs: int,
    judge_one: Callable[[tuple[Mutation, T]], tuple[Verdict, str | None]],
) -> tuple[list[Verdict], dict[Mutation, str]]:
    """Try all, `jobs` at once; print each as soon as it is known.

    Returns the verdicts, and by mutation what the simulated runs noticed by themselves.
    """
    verdicts: list[Verdict] = []
    alone: dict[Mutation, str] = {}

    # Processes that fork have one thread each: a fork beside a thread could begin with a lock that nobody gives back.
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        for verdict, simulated in pool.imap_unordered(judge_one, work):
            verdicts.append(verdict)
            if simulated is not None:
                alone[verdict.mutation] = simulated
            mark = "caught  " if verdict.is_caught else "SURVIVED"
            why = verdict.by or verdict.why
            print(f"{len(verdicts):4} {mark} {_line(verdict.mutation)}  {why}", flush=True)
    return sorted(verdicts, key=lambda one: (one.mutation.path, one.mutation.number)), alone


def _judge_one(work: tuple[Mutation, dict[str, float]], *, simulation_too: bool) -> tuple[Verdict, str | None]:
    mutation, tests = work
    by = _by_sound_tests(mutation, tests)
    simulated = None
    if not by or (simulation_too and mutation.path.startswith(BY_SIMULATION)):
        simulated = trial(mutation, lambda: by_simulation(seeds_of(mutation.path)), SIMULATION_S)
    return Verdict(mutation, by or simulated or ""), simulated


def _by_sound_tests(mutation: Mutation, tests: Mapping[str, float]) -> str:
    """Return what fails, but for tests that fail in a trial without a fault too, as some do that start a process."""
    left = {name: seconds for name, seconds in tests.items() if name not in _unsound}
    while left:
        by = trial(mutation, lambda: by_tests(list(left)), START_S + 2 * sum(left.values()))
        name = by.partition("[")[0]
        if name not in left or name in _sound:
            return by
        if not trial(None, lambda: by_tests([name]), START_S + 2 * left[name]):  # noqa: B023
            _sound.add(name)
            return by
        _unsound.add(name)
        del left[name]
    return ""


def _judge_by_runs(work: tuple[Mutation, dict[Run, float]]) -> tuple[Verdict, None]:
    mutation, runs = work
    by = trial(mutation, lambda: by_simulation(runs), START_S + 2 * sum(runs.values())) if runs else ""
    return Verdict(mutation, by, f"{len(runs)} runs of it hold" if runs else "no run executes it"), None


def report(verdicts: Sequence[Verdict], alone: dict[Mutation, str]) -> int:
    """Print the score by folder and the survivors, keep all in `.venv/.mutations.json`, and return the status."""
    total, caught = Counter[str](), Counter[str]()
    for verdict in verdicts:
        folder = verdict.mutation.path.rpartition("/")[0]
        total[folder] += 1
        caught[folder] += verdict.is_caught
    print()
    for folder in sorted(total):
        print(f"{folder:32} {caught[folder]:4} of {total[folder]:4}  {caught[folder] / total[folder]:6.1%}")
    print(f"{'all':32} {caught.total():4} of {total.total():4}  {caught.total() / max(1, total.total()):6.1%}")
    if alone:
        noticed = sum(1 for by in alone.values() if by)
        print(f"simulated runs alone noticed {noticed} of the {len(alone)} that they were given")
    survivors = [verdict for verdict in verdicts if not verdict.is_caught]
    print(f"\n{len(survivors)} survived:")
    for verdict in survivors:
        print(f"  {_line(verdict.mutation)}  {verdict.why}".rstrip())
    rows = [
        {"name": v.mutation.name, "line": v.mutation.line, "kind": v.mutation.kind, "by": v.by}
        | ({"simulation": alone[v.mutation]} if v.mutation in alone else {})
        for v in verdicts
    ]
    REPORT.write_text(json.dumps(rows, indent=1))
    return 1 if survivors else 0


def _line(mutation: Mutation) -> str:
    return f"{mutation.path}:{mutation.line} {mutation.where}: {mutation.before} -> {mutation.after}"


if __name__ == "__main__":
    sys.exit(main())
