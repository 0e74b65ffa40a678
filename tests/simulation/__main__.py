"""`./dev sim [--seeds N] [--start S] [--mutants]`: run seeds, or show that each mutant is caught."""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.kit.runs import run_seed


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev sim", description="Whole members on a virtual clock, with faults.")
    parser.add_argument("--seeds", type=int, default=20, help="how many seeds to run (20)")
    parser.add_argument("--start", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--mutants", action="store_true", help="break one rule at a time; each must be caught")
    parser.add_argument("--trace", action="store_true", help="print the whole trace of every run")
    options = parser.parse_args()
    if options.mutants:
        from tests.simulation.kit.mutants import run_mutants

        return run_mutants()
    failed = []
    for seed in range(options.start, options.start + options.seeds):
        began = time.perf_counter()
        outcome = run_seed(seed)
        if options.trace:
            print("\n".join(outcome.trace))
        if outcome.error is None:
            print(f"seed {seed}: held; {outcome.facts}; {time.perf_counter() - began:.1f} s; {outcome.digest[:12]}")
        else:
            failed.append(seed)
            print(outcome.report())
    print(f"{options.seeds - len(failed)} of {options.seeds} held" + (f"; failed: {failed}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
