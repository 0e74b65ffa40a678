"""`./dev chaos [--minutes N] [--seed S] [--keep]`: a real set under faults, checked by its recorded history."""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import sys
import tempfile
from pathlib import Path

from replset.errors import ReplError
from tools.chaos import disks, faults
from tools.chaos.run import SHAPES, run

DESCRIPTORS = 1024
"""What many systems allow a process, and less than a crowd of connections needs."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev chaos", description="Break a real set, then check it.")
    parser.add_argument("--minutes", type=float, default=2.0, help="how long to break things (2)")
    parser.add_argument("--at-least", type=int, default=0, metavar="N", help="go on until there were N faults (0)")
    parser.add_argument("--seed", type=int, default=None, help="draw the same faults as an earlier run")
    parser.add_argument("--keep", action="store_true", help="leave history, logs and databases in their folder")
    parser.add_argument(
        "--faults",
        nargs="+",
        default=(),
        metavar="FAULT",
        help=f"draw these only, of {', '.join(faults.BY_NAME)} (all)",
    )
    parser.add_argument("--set", choices=SHAPES, default=None, help="which members the set has (drawn)")
    parser.add_argument("--key", choices=("yes", "no"), default=None, help="whether members have a key file (drawn)")
    options = parser.parse_args()
    unknown = set(options.faults) - set(faults.BY_NAME)
    if unknown:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    own_disks = disks.enter_own_mounts()
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    folder = Path(tempfile.mkdtemp(prefix="replset-chaos-"))
    drawn = random.Random(f"{seed} set")
    shape, keyed = drawn.choice(list(SHAPES)), drawn.random() < 0.75
    shape, keyed = options.set or shape, keyed if options.key is None else options.key == "yes"
    about = f"{shape}, {'with' if keyed else 'without'} a key file"
    print(f"seed {seed}, {options.minutes:g} minutes, set: {about}, files in {folder}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))  # the members inherit it
    if not own_disks:
        print("left out: full and read-only disks (this machine lets nobody mount a file system)")

    def on_line(line: str) -> None:
        print(line, flush=True)

    try:
        result = run(
            folder,
            seconds=options.minutes * 60,
            seed=seed,
            own_disks=own_disks,
            on_line=on_line,
            shape=shape,
            keyed=keyed,
            names=options.faults,
            at_least=options.at_least,
            base_port=27017 + os.getpid() % 50 * 10,  # so that runs at one time do not look at the same ports
        )
    except (AssertionError, ReplError) as error:
        print(f"BROKEN: {error}\nfiles are in {folder}")
        return 1
    finally:
        disks.unmount_disks(folder)
    print(result.line())
    for line in result.wrong:
        print(f"WRONG: {line}")
    if result.wrong or options.keep:
        print(f"files are in {folder}")
    else:
        shutil.rmtree(folder)
        print("every acknowledged write is in the set or in a rollback file")
    return 1 if result.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
