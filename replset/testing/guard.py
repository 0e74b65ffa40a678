"""The process that ends a test's set: it kills the members and removes their files once its standard input is closed.

That is so when the test says so, and also when its process has been killed. It reads a line for each member that was
started: its pid and its `start_mark`, by which a later process with the same pid is left alone.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from contextlib import suppress

from replset.processes import start_mark

WAIT_S = 10.0


def main(folder: str) -> None:
    """folder: of the set's files; empty: they stay."""
    lines = [line.strip().partition(" ") for line in sys.stdin]
    started = [(int(pid), mark) for pid, _, mark in lines if mark]  # without one it had ended before it was looked at
    for pid, mark in started:
        if start_mark(pid) == mark:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # of a process that is stopped too
    ends = time.monotonic() + WAIT_S
    while time.monotonic() < ends and any(start_mark(pid) == mark for pid, mark in started):
        time.sleep(0.01)
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])
