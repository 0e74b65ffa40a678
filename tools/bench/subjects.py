"""What the load generator loads: a set of ours, from this checkout or another one. `peers.py` has the others."""

from __future__ import annotations

import contextlib
import re
import socket
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from replset.features.all import PRIVATE
from replset.local_set import HTTP_OFFSET, LocalMember, free_ports, running_set, wait_until

ROWS = ("w1", "majority", "unsynced", "retryable", "bulk", "find", "http")
_COUNTED = re.compile(r'^replset_commands_total\{command="(\w+)"\} ([\d.e+]+)$', re.M)


class Subject(Protocol):
    """Servers that run and can be loaded."""

    name: str

    def target(self, row: str) -> tuple[str, int] | None:
        """Return the mode of the load generator and the port; None: it has no such row."""

    @property
    def primary(self) -> int:
        """Return the pid of the process that takes the load."""

    @property
    def secondaries(self) -> Sequence[int]: ...

    def member_messages(self) -> float | None:
        """Return how many requests of other members the primary answered so far, if it counts them."""

    def settle(self) -> None:
        """Return when the work that the last load left behind is done."""


class ReplSet:
    """A set of ours."""

    def __init__(self, name: str, members: list[LocalMember], primary: LocalMember) -> None:
        self.name = name
        self.members = members
        self.at_primary = primary

    def target(self, row: str) -> tuple[str, int] | None:
        if row not in ROWS:
            return None
        return row, self.at_primary.port + (HTTP_OFFSET if row == "http" else 0)

    @property
    def primary(self) -> int:
        return self.at_primary.pid

    @property
    def secondaries(self) -> list[int]:
        return [member.pid for member in self.members if member is not self.at_primary]

    def member_messages(self) -> float:
        with urllib.request.urlopen(f"{self.at_primary.http}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        return sum(float(count) for name, count in _COUNTED.findall(text) if name in PRIVATE)

    def settle(self) -> None:
        def all_have_it() -> bool:
            status: Any = self.at_primary.command({"replSetGetStatus": 1})
            return len({str(row["optime"]) for row in status["members"]}) == 1

        wait_until(all_have_it, 120, "the members to have every write")


@contextmanager
def running_replset(
    folder: Path, *, name: str = "replset", checkout: Path | None = None, members: int = 3, flags: Sequence[str] = ()
) -> Iterator[ReplSet]:
    """Yield a set whose processes run the code of `checkout` (None: of this one), by its own Python if it has one."""
    with running_set(folder) as local:
        if checkout is not None:  # -m looks into the working directory first
            own = checkout.resolve() / ".venv/bin/python"
            local.program = (str(own) if own.exists() else sys.executable, "-m", "replset.cli.main", "start")
        with contextlib.chdir(checkout or Path.cwd()):
            for port in free_ports(members, 24017):
                local.add(port, flags=flags)
        local.initiate()
        primary = local.wait_for_primary()
        wait_until(lambda: _all_counted(primary), 60, f"{members} counted members")
        yield ReplSet(name, local.members, primary)


def _all_counted(primary: LocalMember) -> bool:
    rows: Any = primary.command({"replSetGetStatus": 1}).get("members")
    return isinstance(rows, list) and all(row["counted"] and row["state"] in (1, 2) for row in rows)


def answers(port: int) -> bool:
    """Whether something takes connections on `port` of this machine."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
