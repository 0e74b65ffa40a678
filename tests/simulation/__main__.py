"""`./dev sim [--seeds N] [--start S] [--rollbacks | --core ...]`: runs seeds."""

from __future__ import annotations

import argparse
import sys

from tests.simulation.kit.kinds import (
    ARCHIVE_RUNS,
    CHANGE_RUNS,
    CONCERN_RUNS,
    CONSUMER_RUNS,
    CORE_ALONE,
    CORE_CHANGE_RUNS,
    FOLLOW_RUNS,
    RELEASE_RUNS,
    ROLLBACK_RUNS,
    STALE_RUNS,
    STREAM_RUNS,
    WHOLE,
    Kind,
)
from tests.simulation.kit.many import processors, report_many

A_LINE_EACH = 50


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev sim", description="Whole members on a virtual clock, with faults.")
    parser.add_argument("--seeds", type=int, default=20, help="how many seeds to run (20)")
    parser.add_argument("--start", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--jobs", type=int, default=processors(), help="processes at once (one for each core)")
    parser.add_argument(
        ROLLBACK_RUNS.option,
        action="store_true",
        help="seeds that roll back operations of every kind, again and again",
    )
    parser.add_argument(
        CHANGE_RUNS.option, action="store_true", help="seeds in which operators change the set all the time"
    )
    parser.add_argument(
        CONCERN_RUNS.option, action="store_true", help="seeds in which writes ask for all in sync, and are slowed"
    )
    parser.add_argument(
        STALE_RUNS.option, action="store_true", help="seeds in which members are too stale all the time"
    )
    parser.add_argument(
        CONSUMER_RUNS.option, action="store_true", help="readers of named consumers in each run, not in a quarter"
    )
    parser.add_argument(
        ARCHIVE_RUNS.option, action="store_true", help="an archive of the oplog in each run, not in a quarter"
    )
    parser.add_argument(
        STREAM_RUNS.option, action="store_true", help="readers of change streams in each run, not in a quarter"
    )
    parser.add_argument(
        RELEASE_RUNS.option, action="store_true", help="seeds in which members are of this tree and of the last release"
    )
    parser.add_argument(
        FOLLOW_RUNS.option, action="store_true", help="seeds of a set that follows another one, faults at both ends"
    )
    parser.add_argument(CORE_ALONE.option, action="store_true", help="seeds of the core alone, without bytes and disks")
    parser.add_argument(
        CORE_CHANGE_RUNS.option,
        action="store_true",
        help="seeds of the core alone in which operators change the set all the time",
    )
    parser.add_argument("--trace", action="store_true", help="print the whole trace of every run")
    options = parser.parse_args()
    seeds = range(options.start, options.start + options.seeds)
    jobs = max(1, min(options.jobs, options.seeds))
    each = options.seeds <= A_LINE_EACH and not options.trace
    kinds: tuple[Kind, ...] = (
        *(ROLLBACK_RUNS, CHANGE_RUNS, CONCERN_RUNS, STALE_RUNS, CONSUMER_RUNS, STREAM_RUNS),
        *(ARCHIVE_RUNS, FOLLOW_RUNS, RELEASE_RUNS, CORE_ALONE, CORE_CHANGE_RUNS),
    )
    chosen = [kind for kind in kinds if getattr(options, kind.option.removeprefix("--").replace("-", "_"))]
    kind = chosen[0] if chosen else WHOLE
    return 1 if report_many(seeds, jobs, each=each, trace=options.trace, kind=kind).failed else 0


if __name__ == "__main__":
    sys.exit(main())
