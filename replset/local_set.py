"""Runs a replica set as separate processes on this machine: for `cluster up`, the demo, the benchmark and the tests.

A set lives in one folder: `m1/`, `m2/` ... are the dbpaths, `m1.log` ... what the members print, `set.json` lists them,
`key` is their key file. A member is a process of its own session, so that it outlives the command that started it.

A process counts as a member only by proof, since the pid in `set.json` may belong to another program by now. It must
have the saved start time, hold the lock of the dbpath, and be the one that answers on the member's port. No other
process gets a signal.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from replset.client import WireClient
from replset.config import MAX_VOTERS
from replset.errors import ErrorCode, HostUnreachableError, ReplError
from replset.own_process import command_of
from replset.processes import lock_holder, start_mark

T = TypeVar("T")
HTTP_OFFSET = 1000
DEFAULT_FOLDER = Path("replset-data")
LOCK_WITHIN_S = TAKE_OVER_WITHIN_S = 10.0
KEY_FILE, KEY_BYTES = "key", 567
"""The key file's name, and the number of its random bytes, which is that of MongoDB's manual."""


IN_SERVICE = {"PRIMARY", "SECONDARY", "ARBITER"}


class LocalSetError(ReplError):
    """The local set cannot do that. The message has the reason and what to do."""


@dataclass(slots=True)
class LocalMember:
    """Describes one member's process. `pid` 0: not running. started: its `start_mark`; empty in an older release."""

    name: str
    port: int
    dbpath: Path
    log: Path
    pid: int = 0
    started: str = ""
    arbiter: bool = False
    witness: bool = False
    flags: list[str] = field(default_factory=list)

    @property
    def role_without_data(self) -> str:
        """What it is if it has no documents: arbiter or witness; empty: a data-bearing member."""
        return "arbiter" if self.arbiter else "witness" if self.witness else ""

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self.port + HTTP_OFFSET}"

    def command(
        self, document: dict[str, object], database: str = "admin", timeout_s: float = 10.0
    ) -> dict[str, object]:
        """Run one command on this member; ReplError when it cannot be reached. The reply may have ok: 0."""
        with WireClient(self.host, timeout_s=timeout_s) as client:
            return client.command(database, document)

    def is_running(self) -> bool:
        """Whether the process that was started for this member still runs, and not a later one with its pid."""
        mark = start_mark(self.pid)
        return bool(mark) and (mark == self.started if self.started else self.holds_lock())

    def holds_lock(self) -> bool:
        """Whether its process holds the lock of its dbpath."""
        return lock_holder(self.dbpath) == self.pid

    def answering_pid(self) -> int:
        """Return the pid that the process on this member's port reports; HostUnreachableError: none answers."""
        reply = self.command({"serverStatus": 1, "metrics": 0, "oplog": 0}, timeout_s=3)
        pid = reply.get("pid")
        if reply.get("code") == ErrorCode.UNAUTHORIZED:  # it asks for a login; only who holds the lock listens there
            return lock_holder(self.dbpath) or -1
        return pid if isinstance(pid, int) else -1

    def last_log_line(self) -> str:
        """Return the last line that the member printed, for an error message."""
        with contextlib.suppress(OSError):
            lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            if lines:
                return lines[-1]
        return "(it printed nothing)"


class LocalSet:
    """Has the members of one set in `folder`, and starts and stops them."""

    def __init__(self, folder: Path, name: str = "rs0") -> None:
        self.folder = folder
        self.name = name
        self.base_port = 0
        self.initiated = False
        self.settings: dict[str, object] = {}
        """The settings of the first configuration."""
        self.stores_default = False
        """Whether `cluster up` still has to store the default write concern, which arbiters would weaken."""
        self.members: list[LocalMember] = []
        self.program: Sequence[str] = command_of("replset.cli.main", "start")
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._own: set[int] = set()

    # --- the set's file ------------------------------------------------------------------------------------------

    @classmethod
    def load(cls, folder: Path) -> LocalSet:
        """Read the set that `cluster up` left in `folder`."""
        try:
            document = json.loads((folder / "set.json").read_text(encoding="utf-8"))
            loaded = cls(folder, document["name"])
            loaded.base_port = int(document.get("basePort", 0))
            loaded.initiated = bool(document.get("initiated", True))
            loaded.settings = dict(document.get("settings", {}))
            loaded.stores_default = bool(document.get("storesDefault", False))
            for row in document["members"]:
                loaded.members.append(LocalMember(**{**row, "dbpath": Path(row["dbpath"]), "log": Path(row["log"])}))
        except FileNotFoundError:
            raise LocalSetError(f"no local set in {folder} (make one with `replset cluster up`)") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LocalSetError(f"{folder / 'set.json'} is not what `cluster up` writes: {error!r}") from error
        return loaded

    def save(self) -> None:
        rows = [{**asdict(member), "dbpath": str(member.dbpath), "log": str(member.log)} for member in self.members]
        head = {"name": self.name, "basePort": self.base_port, "initiated": self.initiated, "settings": self.settings}
        text = json.dumps({**head, "storesDefault": self.stores_default, "members": rows}, indent=2)
        temporary = self.folder / "set.json.tmp"
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(self.folder / "set.json")

    @property
    def key_file(self) -> Path:
        return self.folder / KEY_FILE

    def _make_key_file(self) -> None:
        """Make a key for this set alone, which only its owner can read; an existing one stays."""
        with contextlib.suppress(FileExistsError):
            key = base64.b64encode(secrets.token_bytes(KEY_BYTES))
            with open(self.key_file, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                file.write(key + b"\n")

    # --- processes -----------------------------------------------------------------------------------------------

    def plan(
        self, port: int, *, flags: Sequence[str] = (), arbiter: bool = False, witness: bool = False
    ) -> LocalMember:
        """Add one more member to `set.json`; `start` starts it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.members:
            self._make_key_file()
        name = f"m{len(self.members) + 1}"
        member = LocalMember(
            name,
            port,
            self.folder / name,
            self.folder / f"{name}.log",
            arbiter=arbiter,
            witness=witness,
            flags=list(flags),
        )
        self.members.append(member)
        self.save()
        return member

    def add(self, port: int, *, flags: Sequence[str] = (), arbiter: bool = False, witness: bool = False) -> LocalMember:
        """Start one more member and wait until it answers."""
        member = self.plan(port, flags=flags, arbiter=arbiter, witness=witness)
        self.start(member)
        return member

    def options(self, member: LocalMember) -> list[str]:
        """Return the options of `replset start` for this member."""
        options = ["--replSet", self.name, "--dbpath", str(member.dbpath), "--port", str(member.port), *member.flags]
        return [*options, "--key-file", str(self.key_file)] if self.key_file.exists() else options

    def start(self, member: LocalMember) -> None:
        """Start (again) the process of `member` and wait until it, and no other process, answers on its wire port."""
        self.launch(member)
        self.wait_until_answers(member)

    def launch(self, member: LocalMember) -> None:
        """Start (again) the process of `member`, without waiting for it."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("REPLSET_")}
        with member.log.open("ab") as log:
            process = subprocess.Popen(
                [*self.program, *self.options(member)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=environment,
            )
        self._children[process.pid] = process
        self.note_started(member, process.pid)
        self.save()

    def wait_until_answers(self, member: LocalMember) -> None:
        """Wait until the launched process of `member`, and no other process, answers on its wire port."""
        process = self._children[member.pid]

        def answers() -> bool:
            if process.poll() is not None:
                raise LocalSetError(f"{member.name} did not start: {member.last_log_line()}")
            return member.answering_pid() == process.pid

        wait_until(answers, 60, f"{member.name} to answer on {member.host}")

    def note_started(self, member: LocalMember, pid: int) -> None:
        """Record `pid`, which this process has just started, as the process of `member`."""
        member.pid, member.started = pid, start_mark(pid)
        self._own.add(pid)

    def stop(self, member: LocalMember, *, how: signal.Signals = signal.SIGTERM, within_s: float = 40.0) -> None:
        """End the process of `member` and wait for its end; one that ignores SIGTERM is killed.

        LocalSetError, and no signal, where the process is not known to be this member's.
        """
        self._signal(member, how)
        self._wait_for_end(member, within_s)

    def _wait_for_end(self, member: LocalMember, within_s: float = 40.0) -> None:
        """Wait until the signalled process has ended; its start time distinguishes it from a later one."""
        deadline = time.monotonic() + within_s
        while member.is_running():
            if time.monotonic() > deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(member.pid, signal.SIGKILL)
                deadline = time.monotonic() + 10
            time.sleep(0.02)
        child = self._children.pop(member.pid, None)
        if child is not None:
            child.wait(timeout=10)
        self._own.discard(member.pid)
        member.pid, member.started = 0, ""
        self.save()

    def kill(self, member: LocalMember) -> None:
        """kill -9."""
        self.stop(member, how=signal.SIGKILL)

    def reap(self) -> None:
        """Wait for the processes that were started here and that somebody else has ended; kill what is left."""
        for child in self._children.values():
            child.kill()
            child.wait()
        self._children.clear()

    def stop_all(self) -> list[str]:
        """Send SIGTERM to all members and wait for all. Returns one reason for each process that was not stopped."""
        refused: list[str] = []
        signalled: list[LocalMember] = []
        for member in self.members:
            try:
                self._signal(member, signal.SIGTERM)
                signalled.append(member)
            except LocalSetError as error:
                refused.append(error.message)
        for member in signalled:
            self._wait_for_end(member)
        return refused

    def _signal(self, member: LocalMember, how: signal.Signals) -> None:
        """Send a signal to the process of `member` if it runs. LocalSetError: it is not proved to be it.

        A set.json outlives its processes: after a reboot, or once enough others were started, its pids are those of
        other programs. To signal one of them would end somebody else's work, so the proof is made right here.
        """
        if not member.is_running():
            other = lock_holder(member.dbpath)
            if other:
                raise LocalSetError(f"{member.name} runs as process {other}, which was not started here: not stopped")
            return
        if member.pid not in self._own:
            refusal = _not_proved(member)
            if refusal:
                raise LocalSetError(f"{member.name}: {refusal}: not stopped")
        with contextlib.suppress(ProcessLookupError):
            os.kill(member.pid, how)

    # --- the set -------------------------------------------------------------------------------------------------

    def initiate(self, settings: dict[str, object] | None = None) -> None:
        """Run replSetInitiate with all members so far (none of them an arbiter's job yet), then wait for a primary."""
        config = self.first_config()
        if settings:
            config["settings"] = settings
        reply = self.members[0].command({"replSetInitiate": config}, timeout_s=60)
        if reply.get("ok") != 1.0:
            raise LocalSetError(f"replSetInitiate was refused: {reply.get('errmsg')}")
        self.initiated = True
        self.save()

    def first_config(self) -> dict[str, object]:
        """Return the configuration of all members so far; data-bearing ones beyond the seventh voter have no vote."""
        rows: list[dict[str, object]] = []
        no_vote = self.without_vote()
        for number, member in enumerate(self.members):
            row: dict[str, object] = {"_id": number, "host": member.host}
            if member.arbiter:
                row["arbiterOnly"] = True
            if member.witness:
                row["witness"] = True
            if member in no_vote:
                row |= {"votes": 0, "priority": 0}
            rows.append(row)
        config: dict[str, object] = {"_id": self.name, "version": 1, "members": rows}
        return config | ({"settings": self.settings} if self.settings else {})

    def without_vote(self) -> list[LocalMember]:
        """Return the members for which no vote is left: arbiters and witnesses always vote, of the others the first."""
        bearing = [member for member in self.members if not member.role_without_data]
        return bearing[max(0, MAX_VOTERS - (len(self.members) - len(bearing))) :]

    def take_over(self, member: LocalMember) -> int:
        """Record the process that holds the lock of the member's dbpath as the member's; return its pid, 0: none does.

        Somebody started it by hand. LocalSetError: it does not answer on the member's port.
        """
        pid = lock_holder(member.dbpath)
        if pid:
            what = f"process {pid}, which uses {member.dbpath}, to answer on {member.host}; end it, or start it there"
            wait_until(lambda: member.answering_pid() == pid, TAKE_OVER_WITHIN_S, what)
            member.pid, member.started = pid, start_mark(pid)
            self.save()
        return pid

    def has_config(self) -> bool:
        """Whether some member has a configuration: the set was initiated."""
        return any(member.command({"replSetGetConfig": 1}).get("ok") == 1.0 for member in self.members)

    def leave_taken_ports(self) -> None:
        """Give members that do not run, of a set that was never initiated, other ports where theirs are taken."""
        for member in self.members:
            if not member.is_running() and not are_free(member.port):
                member.port = free_ports(1, max(each.port for each in self.members) + 1)[0]
        self.save()

    def primary(self, *, among: Sequence[LocalMember] | None = None) -> LocalMember | None:
        """Return the member that reports itself as writable primary, of the newest term if two do; None: none does."""
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

    def is_complete(self) -> bool:
        """Whether a primary counts every member of its configuration, and each of them is in service."""
        primary = self.primary()
        if primary is None:
            return False
        rows: list[dict[str, Any]] = primary.command({"replSetGetStatus": 1}).get("members", [])  # type: ignore[assignment]
        if not rows or not all(row["counted"] and row["stateStr"] in IN_SERVICE for row in rows):
            return False
        # A member that has just started again is known to the primary as it was before, so each says its own state.
        hosts = {row["name"] for row in rows}
        greetings = [member.command({"hello": 1}) for member in self.members if member.host in hosts]
        return all(hello["isWritablePrimary"] or hello["secondary"] or hello.get("arbiterOnly") for hello in greetings)


@contextlib.contextmanager
def running_set(folder: Path, name: str = "rs0") -> Iterator[LocalSet]:
    """Yield a LocalSet whose processes end with the block, whatever happens in it."""
    local = LocalSet(folder, name)
    try:
        yield local
    finally:
        for member in local.members:
            local.kill(member)


def wait_until(condition: Callable[[], T | None], within_s: float, what: str, every_s: float = 0.05) -> T:
    """Repeat `condition` until its result is true, and return that. HostUnreachableError counts as "not yet"."""
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
    """Return the first `count` neighbouring wire ports from `base` that are free, with their HTTP ports (+1000)."""
    first = base
    while first + count + HTTP_OFFSET < 65536:
        block = range(first, first + count)
        if all(map(are_free, block)):
            return list(block)
        first += count
    raise LocalSetError(f"no {count} neighbouring free ports from {base}")


def are_free(port: int) -> bool:
    """Whether a member's wire port and the HTTP port that goes with it are free."""
    return _is_free(port) and _is_free(port + HTTP_OFFSET)


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _not_proved(member: LocalMember) -> str:
    """Return why a process with the right start time is still not proved to be this member; empty: it is.

    A process that has just started has no lock yet. A process that hangs does not answer: lock and start time suffice.
    """
    deadline = time.monotonic() + LOCK_WITHIN_S
    while not member.holds_lock():
        if not member.is_running():
            return ""
        if time.monotonic() > deadline:
            return f"process {member.pid} does not hold the lock of {member.dbpath}"
        time.sleep(0.05)
    with contextlib.suppress(ReplError):
        pid = member.answering_pid()
        if pid != member.pid:
            return f"another process than {member.pid} answers on {member.host} (pid {pid})"
    return ""
