"""A replica set as separate processes on this machine: for `cluster up`, the demo, the benchmark and the tests.

A set lives in one folder: `m1/`, `m2/` ... are the dbpaths, `m1.log` ... what the members print, `set.json` who they
are. A member is a process of its own session, so that it outlives the command that started it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

from replset.client import WireClient
from replset.errors import HostUnreachableError, ReplError

T = TypeVar("T")
HTTP_OFFSET = 1000


class LocalSetError(ReplError):
    """The local set cannot do that; the message says why and what to do."""


@dataclass(slots=True)
class LocalMember:
    """One member's process. `pid` 0: not running."""

    name: str
    port: int
    dbpath: Path
    log: Path
    pid: int = 0
    arbiter: bool = False
    flags: list[str] = field(default_factory=list)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self.port + HTTP_OFFSET}"

    def command(
        self, document: dict[str, object], database: str = "admin", timeout_s: float = 10.0
    ) -> dict[str, object]:
        """Run one command on this member; ReplError when it cannot be reached. The reply may say ok: 0."""
        with WireClient(self.host, timeout_s=timeout_s) as client:
            return client.command(database, document)

    def is_running(self) -> bool:
        return self.pid > 0 and _is_alive(self.pid)

    def last_words(self) -> str:
        """The last line that the member printed, for an error message."""
        with contextlib.suppress(OSError):
            lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            if lines:
                return lines[-1]
        return "(it printed nothing)"


class LocalSet:
    """The members of one set in `folder`."""

    def __init__(self, folder: Path, name: str = "rs0") -> None:
        self.folder = folder
        self.name = name
        self.members: list[LocalMember] = []
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    # --- the set's file ------------------------------------------------------------------------------------------

    @classmethod
    def load(cls, folder: Path) -> LocalSet:
        """Read the set that `cluster up` left in `folder`."""
        try:
            document = json.loads((folder / "set.json").read_text(encoding="utf-8"))
            loaded = cls(folder, document["name"])
            for row in document["members"]:
                loaded.members.append(LocalMember(**{**row, "dbpath": Path(row["dbpath"]), "log": Path(row["log"])}))
        except FileNotFoundError:
            raise LocalSetError(f"no local set in {folder} (make one with `replset cluster up`)") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LocalSetError(f"{folder / 'set.json'} is not what `cluster up` writes: {error!r}") from error
        return loaded

    def save(self) -> None:
        rows = [{**asdict(member), "dbpath": str(member.dbpath), "log": str(member.log)} for member in self.members]
        text = json.dumps({"name": self.name, "members": rows}, indent=2)
        temporary = self.folder / "set.json.tmp"
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(self.folder / "set.json")

    # --- processes -----------------------------------------------------------------------------------------------

    def add(self, port: int, *, flags: Sequence[str] = (), arbiter: bool = False) -> LocalMember:
        """Start one more member and wait until it answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"m{len(self.members) + 1}"
        member = LocalMember(
            name, port, self.folder / name, self.folder / f"{name}.log", arbiter=arbiter, flags=list(flags)
        )
        self.members.append(member)
        self.start(member)
        return member

    def start(self, member: LocalMember) -> None:
        """Start (again) the process of `member` and wait until its wire port answers."""
        command = [sys.executable, "-m", "replset.cli.main", "start", "--replSet", self.name]
        command += ["--dbpath", str(member.dbpath), "--port", str(member.port), *member.flags]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("REPLSET_")}
        with member.log.open("ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=environment
            )
        self._children[process.pid] = process
        member.pid = process.pid
        self.save()

        def answers() -> bool:
            if process.poll() is not None:
                raise LocalSetError(f"{member.name} did not start: {member.last_words()}")
            return member.command({"ping": 1}).get("ok") == 1.0

        wait_until(answers, 60, f"{member.name} to answer on {member.host}")

    def stop(self, member: LocalMember, *, how: signal.Signals = signal.SIGTERM, within_s: float = 40.0) -> None:
        """End the process of `member` and wait for its end; one that ignores SIGTERM is killed."""
        if member.is_running():
            os.kill(member.pid, how)
            deadline = time.monotonic() + within_s
            while self._alive(member.pid):
                if time.monotonic() > deadline:
                    os.kill(member.pid, signal.SIGKILL)
                    deadline = time.monotonic() + 10
                time.sleep(0.02)
        child = self._children.pop(member.pid, None)
        if child is not None:
            child.wait(timeout=10)
        member.pid = 0
        self.save()

    def kill(self, member: LocalMember) -> None:
        """kill -9."""
        self.stop(member, how=signal.SIGKILL)

    def stop_all(self) -> None:
        """SIGTERM to everybody; the members end side by side."""
        running = [member for member in self.members if member.is_running()]
        for member in running:
            os.kill(member.pid, signal.SIGTERM)
        for member in running:
            self.stop(member, how=signal.SIGTERM)

    def _alive(self, pid: int) -> bool:
        child = self._children.get(pid)
        if child is not None:
            return child.poll() is None
        return _is_alive(pid)

    # --- the set -------------------------------------------------------------------------------------------------

    def initiate(self, settings: dict[str, object] | None = None) -> None:
        """replSetInitiate over all members so far (none of them an arbiter's job yet), then wait for a primary."""
        rows: list[dict[str, object]] = []
        for number, member in enumerate(self.members):
            row: dict[str, object] = {"_id": number, "host": member.host}
            if member.arbiter:
                row["arbiterOnly"] = True
            rows.append(row)
        config: dict[str, object] = {"_id": self.name, "version": 1, "members": rows}
        if settings:
            config["settings"] = settings
        reply = self.members[0].command({"replSetInitiate": config}, timeout_s=60)
        if reply.get("ok") != 1.0:
            raise LocalSetError(f"replSetInitiate was refused: {reply.get('errmsg')}")

    def primary(self, *, among: Sequence[LocalMember] | None = None) -> LocalMember | None:
        """The member that says it is the writable primary, of the newest term if two say so; None: nobody does."""
        found: list[tuple[str, LocalMember]] = []
        for member in self.members if among is None else among:
            if not member.is_running():
                continue
            with contextlib.suppress(ReplError):
                hello = member.command({"hello": 1}, timeout_s=3)
                if hello.get("isWritablePrimary"):
                    found.append((str(hello.get("electionId", "")), member))
        return max(found, key=lambda pair: pair[0])[1] if found else None

    def wait_for_primary(self, *, among: Sequence[LocalMember] | None = None, within_s: float = 60) -> LocalMember:
        return wait_until(lambda: self.primary(among=among), within_s, "a primary")


@contextlib.contextmanager
def running_set(folder: Path, name: str = "rs0") -> Iterator[LocalSet]:
    """A LocalSet whose processes end with the block, whatever happens in it."""
    local = LocalSet(folder, name)
    try:
        yield local
    finally:
        for member in local.members:
            local.kill(member)


def wait_until(condition: Callable[[], T | None], within_s: float, what: str, every_s: float = 0.05) -> T:
    """Ask until the answer is true (not None, not False) and return it; a ReplError of the asking means "not yet"."""
    deadline = time.monotonic() + within_s
    why = ""
    while True:
        try:
            answer = condition()
        except LocalSetError:
            raise
        except HostUnreachableError as error:
            why = f": {error.message}"
        else:
            if answer:
                return answer
            why = ""
        if time.monotonic() > deadline:
            raise LocalSetError(f"waited {within_s:g} s for {what}{why}")
        time.sleep(every_s)


def free_ports(count: int, base: int = 27017) -> list[int]:
    """The first block of `count` neighbouring wire ports from `base` that are free, HTTP ports (+1000) included."""
    first = base
    while first + count + HTTP_OFFSET < 65536:
        block = range(first, first + count)
        if all(_is_free(port) and _is_free(port + HTTP_OFFSET) for port in block):
            return list(block)
        first += count
    raise LocalSetError(f"no {count} neighbouring free ports from {base}")


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _is_alive(pid: int) -> bool:
    """Whether the process runs (one that ended and waits for its parent to look does not)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return True
