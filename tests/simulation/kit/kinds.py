"""The ways in which a run is drawn from a seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from tests.simulation.core_kit.runs import CORE, CORE_CHANGES, run_core, run_core_changes
from tests.simulation.kit.follow import FOLLOW, run_follow
from tests.simulation.kit.runs import (
    ARCHIVE,
    CHANGES,
    CONCERNS,
    CONSUMERS,
    RELEASES,
    ROLLBACKS,
    STALE,
    STREAMS,
    Outcome,
    run_archive,
    run_changes,
    run_concerns,
    run_consumers,
    run_releases,
    run_rollbacks,
    run_seed,
    run_stale,
    run_streams,
)


@dataclass(frozen=True, slots=True)
class Kind:
    """option: of `./dev sim`, "" for the usual way. run: a function of a module, since it goes to other processes."""

    option: str
    run: Callable[[int], Outcome]

    def outcome(self, seed: int) -> Outcome:
        """What became of it. A fault of the kit itself is one failed run, and not the end of all the others."""
        try:
            return self.run(seed)
        except Exception as broken:
            return Outcome(seed, f"the kit: {type(broken).__name__}: {broken}", "", (), "", Counter(), self.option)

    def run_name(self, seed: int) -> str:
        """`seed 7` or `core seed 7`."""
        return f"{self.option.removeprefix('--')} seed {seed}".strip()

    def first(self, number: int) -> range:
        """The first seeds to try."""
        return range(number)


WHOLE = Kind("", run_seed)
ROLLBACK_RUNS = Kind(ROLLBACKS, run_rollbacks)
CORE_ALONE = Kind(CORE, run_core)
CORE_CHANGE_RUNS = Kind(CORE_CHANGES, run_core_changes)
CHANGE_RUNS = Kind(CHANGES, run_changes)
CONCERN_RUNS = Kind(CONCERNS, run_concerns)
STALE_RUNS = Kind(STALE, run_stale)
ARCHIVE_RUNS = Kind(ARCHIVE, run_archive)
CONSUMER_RUNS = Kind(CONSUMERS, run_consumers)
STREAM_RUNS = Kind(STREAMS, run_streams)
RELEASE_RUNS = Kind(RELEASES, run_releases)
FOLLOW_RUNS = Kind(FOLLOW, run_follow)
