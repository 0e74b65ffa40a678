"""Which process is which: a pid alone names nobody, the system gives it away again."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
from pathlib import Path

from replset.storage.file_names import LOCK_FILE


def start_mark(pid: int) -> str:
    """Return what tells the process `pid` from a later one of the same pid: the boot and its start time in it.

    Empty: no such process, or one that has ended and waits for its parent to look.
    """
    if pid <= 0:
        return ""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "" if Path("/proc/self/stat").exists() else _mark_by_ps(pid)
    return "" if fields[0] in "ZX" else f"{boot}:{fields[19]}"


def _mark_by_ps(pid: int) -> str:
    """The same where there is no /proc."""
    command = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    state, _, started = done.stdout.strip().partition(" ")
    return "" if state.startswith("Z") else " ".join(started.split())


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
