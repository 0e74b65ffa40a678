"""Members and programs, forked from a process that has imported everything: a second of processor less each.

What runs in the new process is the same as from a shell, its standard output and its exit status too. That the
programs start from a shell is shown by `test_cluster_command.py`, `test_compose.py` and the tests of the demo.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import ClassVar

from replset.cli.start import main as start_member
from replset.local_set import LocalMember, LocalSet, LocalSetError, wait_until

_IMPORTED_BY_NEED = ("sqlite_utils", "prometheus_client")
"""What a member imports later in its start: half of the processor time that this takes."""
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([__name__, "replset.cli.administer", "rollback_tools.app", *_IMPORTED_BY_NEED])


class ForkedSet(LocalSet):
    """A LocalSet that starts real processes with less to import. What `replset start` does with them is the same.

    descriptors: `ulimit -n` of the processes; None: as it is here.
    """

    descriptors: ClassVar[int | None] = None

    def __init__(self, folder: Path, name: str = "rs0") -> None:
        super().__init__(folder, name)
        self._processes: dict[int, ForkServerProcess] = {}

    def begin(self, member: LocalMember) -> ForkServerProcess:
        """Start the process of `member`, and wait for nothing."""
        process = _FORKS.Process(target=_run, args=(self.options(member), str(member.log), self.descriptors))
        process.start()
        assert process.pid is not None
        self._processes[process.pid] = process
        self.note_started(member, process.pid)
        self.save()
        return process

    def launch(self, member: LocalMember) -> None:
        self.begin(member)

    def wait_until_answers(self, member: LocalMember) -> None:
        process = self._processes[member.pid]

        def answers() -> bool:
            if not process.is_alive():
                raise LocalSetError(f"{member.name} did not start: {member.last_log_line()}")
            return member.answering_pid() == process.pid

        wait_until(answers, 60, f"{member.name} to answer on {member.host}", every_s=0.02)

    def reap(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.join()
        self._processes.clear()


@contextlib.contextmanager
def running_set(folder: Path, name: str = "rs0") -> Iterator[ForkedSet]:
    """A set whose processes end with the block, whatever happens in it."""
    local = ForkedSet(folder, name)
    try:
        yield local
    finally:
        for member in local.members:
            local.kill(member)


def run_program(
    module: str, *arguments: object, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `python -m MODULE ARGUMENTS...` to its end, with more in its environment. It ends with the test."""
    command = [module, *map(str, arguments)]
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        process = _FORKS.Process(target=_run_program, args=(command, str(out), str(err), dict(environment or {})))
        process.start()
        try:
            process.join()
        finally:
            process.kill()
        return subprocess.CompletedProcess(command, process.exitcode, out.read_text(), err.read_text())


def _run(options: list[str], log: str, descriptors: int | None) -> None:
    """In a member's process: what a shell would do, then `replset start`."""
    _begin(log, log)
    if descriptors is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    sys.exit(start_member(options))


def _run_program(command: list[str], out: str, err: str, environment: dict[str, str]) -> None:
    _begin(out, err)
    os.environ.update(environment)
    sys.argv = command
    sys.exit(importlib.import_module(command[0]).main())


def _begin(out: str, err: str) -> None:
    os.setsid()
    for name in [name for name in os.environ if name.startswith("REPLSET_")]:
        del os.environ[name]
    for number, path, flags in ((0, os.devnull, os.O_RDONLY), (1, out, os.O_APPEND), (2, err, os.O_APPEND)):
        handle = os.open(path, flags | (os.O_WRONLY | os.O_CREAT if number else 0))
        os.dup2(handle, number)
        os.close(handle)
