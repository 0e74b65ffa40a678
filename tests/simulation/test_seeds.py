"""Seeded runs: whole members under faults and load, then heal and judgement. docs/simulation.md."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.simulation.kit.follow import run_follow
from tests.simulation.kit.runs import (
    Outcome,
    classic_plan,
    draw_plan,
    rollback_plan,
    run_archive,
    run_changes,
    run_concerns,
    run_consumers,
    run_releases,
    run_seed,
    run_stale,
    run_streams,
)

RUNS: dict[str, tuple[Callable[[int], Outcome], tuple[int, ...]]] = {
    "usual": (
        run_seed,
        (
            *(0, 1, 2, 4, 8, 9, 12, 13, 14, 17, 18, 26, 28),  # each shape of a set, kind of fault and of slow disk
            510_004,  # wall clocks that are wrong by up to ten years
            462,  # a member that was asked to stop while its disk was full could not
            800_021,  # many clients write at one moment
            2200,  # one that votes alone led in a term before its vote was on disk, lost power, and led in it again
        ),
    ),
    "classic": (
        lambda seed: run_seed(seed, classic_plan(seed)),
        (
            559,  # a stale member could not resync: its undo ended between two entries; no state to export from
            20080,  # of two voters one was too stale and copied anew, which took its vote; then the primary died
        ),
    ),
    # witnesses, hot spares, spare machines, arbiters, force, a delayed member
    "operators change the set": (run_changes, (8, 9, 12, 13, 16, 17, 19)),
    "writes wait for all in sync": (run_concerns, (4, 5, 6)),  # a longer lag and unslowed writers; two at least
    "members are too stale": (run_stale, (0, 1, 2, 3)),
    "of two releases": (run_releases, (0, 1, 2, 3, 4, 6)),
    "an archive": (run_archive, (5, 2, 260030)),
    "change streams": (run_streams, (1,)),
    "named consumers": (run_consumers, (2,)),
    "a set follows": (run_follow, (14, 10)),  # the second: a planned switch-over
}
"""By kind: what runs, and its seeds."""
LEAST = {
    **{("an archive", seed): ("segments", 4) for seed in RUNS["an archive"][1]},
    **{("a set follows", seed): ("entries of a source", 31) for seed in RUNS["a set follows"][1]},
    ("change streams", 1): ("events of streams", 101),
    ("usual", 800_021): ("writes sent at once", 100),
    ("members are too stale", 0): ("stale members that compared", 1),
}
"""What has to happen in a run so often."""
ROLLBACKS = (16, 20, 4, 1, 2, 3, *range(5, 9))  # until each kind of operation was undone; so far by the first two
KINDS = {"insert", "update", "replace", "delete", "create", "drop", "renameCollection", "collMod"} | {
    *("createIndexes", "dropIndexes", "startIndexBuild", "commitIndexBuild"),
}
ROOT = Path(__file__).parents[2]


@pytest.mark.in_turns
@pytest.mark.parametrize(("kind", "seed"), [(kind, seed) for kind, (_, seeds) in RUNS.items() for seed in seeds])
def test_every_invariant_holds(kind: str, seed: int) -> None:
    outcome = RUNS[kind][0](seed)
    assert outcome.error is None, outcome.report()
    what, least = LEAST.get((kind, seed), ("", 0))
    assert outcome.counts[what] >= least


@pytest.mark.in_turns
def test_what_rollbacks_undo_is_in_their_files_whatever_its_kind() -> None:
    never_undone = set(KINDS)
    for seed in ROLLBACKS:
        outcome = run_seed(seed, rollback_plan(seed))
        assert outcome.error is None, outcome.report()
        never_undone -= {kind for kind in KINDS if outcome.counts[f"undone {kind}"]}
        if not never_undone:
            return
    pytest.fail(f"not tested: {never_undone}")


def a_short_run(seed: int) -> str:
    return run_seed(seed, replace(draw_plan(seed), faults_s=2)).digest


@pytest.mark.in_turns
def test_a_seed_gives_the_same_trace_whatever_the_hash_seed() -> None:
    """Here it is random; and another seed gives another trace."""
    code = "from tests.simulation.test_seeds import a_short_run; print(a_short_run(7))"
    other_process = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "4242", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert other_process.stdout.strip() == a_short_run(7) != a_short_run(8)
