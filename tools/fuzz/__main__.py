"""`./dev fuzz [--minutes N] [--start S] [TARGET...]`: new inputs for each place that takes input, one after another."""

from __future__ import annotations

import argparse
import random
import sys

from tools.fuzz.kit import run_long
from tools.fuzz.targets import TARGETS


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev fuzz", description="Inputs that are nearly right, until one breaks.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)} (all)")
    parser.add_argument("--minutes", type=float, default=1.0, help="how long for each target (1)")
    parser.add_argument("--start", type=int, default=None, help="the first round, of an earlier run")
    options = parser.parse_args()
    unknown = set(options.targets) - set(TARGETS)
    if unknown:
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    start = random.SystemRandom().randrange(1 << 32) if options.start is None else options.start
    print(f"from round {start} on, {options.minutes:g} minutes for each target", flush=True)
    whole = [
        run_long(TARGETS[name], options.minutes, start, lambda line: print(line, flush=True))
        for name in options.targets or TARGETS
    ]
    return 0 if all(whole) else 1


if __name__ == "__main__":
    sys.exit(main())
