"""Identifies processes. A pid alone is not enough, since the system uses it again."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

import psutil

from replset.storage import LOCK_FILE


def start_mark(pid: int) -> str:
    """Return a text that distinguishes the process from a later one of the same pid: the boot and its start time in it.

    Empty: no such process, or one that has ended and waits for its parent to look. The start time counts from the boot:
    as time of the day it would move with the machine's clock, and a running member would look like another process.

    A process whose first thread has ended shows as a zombie while its other threads end, and has its ports until then.
    """
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1:
            return ""
        since_boot_s = process.create_time() - psutil.boot_time()
    except (psutil.NoSuchProcess, ValueError):
        return ""
    boot = ""
    with contextlib.suppress(OSError):  # only Linux has it
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}:{round(since_boot_s * os.sysconf('SC_CLK_TCK'))}"


def lock_holder(dbpath: Path) -> int:
    """Return the pid of the process that holds the lock of a dbpath, as it wrote it there; 0: nobody holds it."""
    try:
        handle = os.open(dbpath / LOCK_FILE, os.O_RDONLY)
    except OSError:
        return 0
    try:
        with contextlib.suppress(ValueError):
            pid = int(os.read(handle, 32))
            # Asked only of a process that is there: between this lock and its release no member could start.
            return pid if start_mark(pid) and _is_locked(handle) else 0
        return 0
    finally:
        os.close(handle)


def _is_locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    return False
