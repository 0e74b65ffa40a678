"""Has `replset test -- COMMAND`: a set for as long as the command runs."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
from typing import Annotated

import typer

from replset.local_set import LocalSetError

URI_VARIABLE = "MONGODB_URI"


def run_tests(
    command: Annotated[list[str], typer.Argument(help="what to run, with its arguments, behind --")],
    members: Annotated[int, typer.Option(min=1, max=7, help="members with data")] = 1,
    arbiters: Annotated[int, typer.Option(min=0, max=6, help="members that vote, without data")] = 0,
) -> int:
    """Start a set, run a command with its URI in MONGODB_URI, end the set. The exit status is the command's."""
    from replset.testing import ReplicaSet

    if shutil.which(command[0]) is None and not os.path.exists(command[0]):
        raise LocalSetError(f"{command[0]}: {os.strerror(errno.ENOENT)}")
    with ReplicaSet(members, arbiters=arbiters) as running:
        try:
            child = subprocess.Popen(command, env={**os.environ, URI_VARIABLE: running.uri})
        except OSError as error:
            raise LocalSetError(f"{command[0]}: {error.strerror}") from None
        usual = signal.signal(signal.SIGTERM, lambda *_: child.terminate())
        try:
            return _status_of(child)
        finally:
            signal.signal(signal.SIGTERM, usual)


def _status_of(child: subprocess.Popen[bytes]) -> int:
    """Wait for its end. Ctrl-C reaches the command by itself, which decides what becomes of it."""
    while True:
        try:
            status = child.wait()
        except KeyboardInterrupt:
            continue
        return 128 - status if status < 0 else status
