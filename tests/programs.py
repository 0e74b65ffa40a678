"""Programs that tests run. Each ends with all that it started, also when the time of its test is up."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from replset.local_set import free_ports

MARK = "STARTED_BY_TEST"


def free_port() -> int:
    """A free port with a free HTTP port, from four of this process alone.

    They are below 32768: above it the system takes ports for outgoing connections, also between a look and a start.
    """
    return free_ports(1, 11_000 + os.getpid() % 1_000 * 4)[0]


@contextmanager
def all_ended() -> Iterator[dict[str, str]]:
    """Give the environment for programs. Whatever runs with it at the end of the block is killed, whoever started it.

    A group of processes would not do: each member is started in a session of its own, and outlives its parent.
    """
    mark = uuid.uuid4().hex
    try:
        yield {**os.environ, MARK: mark}
    finally:
        while found := _with(mark):
            for process in found:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(found, timeout=0.2)


def _with(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            if process.environ().get(MARK) == mark:
                found.append(process)
    return found


def run_to_end(
    command: Sequence[str | Path],
    *,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    bare: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a program with more in its environment. There is no limit but that of the test.

    bare: with this environment alone. What it starts and leaves ends with it.
    """
    with all_ended() as marked:
        inherited = {MARK: marked[MARK]} if bare else marked
        return subprocess.run(
            command, env={**inherited, **(environment or {})}, cwd=cwd, capture_output=True, text=True, check=False
        )
