"""Runs a set of real members for a test, in a folder of its own, and does to it what a test asks for.

Each member is a process. They end with the block, with the test's process, and when that is killed (guard.py).
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from replset.errors import ReplError
from replset.local_set import IN_SERVICE, LocalMember, LocalSet, LocalSetError, free_ports, wait_until
from replset.own_process import command_of

T = TypeVar("T")
SETTINGS: Final = {"heartbeatIntervalMillis": 200, "heartbeatTimeoutSecs": 1, "electionTimeoutMillis": 2_000}
"""Of a test's set, where it does not say others: an election that nobody calls for takes two seconds and not ten."""
PORTS: Final = range(31_000, 31_700)
"""Where members' ports are looked for. Those of HTTP are 1,000 above, all below the ports of outgoing connections."""
PORT_TRIES: Final = 5
PATIENCE_S: Final = 60.0
Writes = Mapping[str, Sequence[Mapping[str, object]]] | Callable[[str], object]


@dataclass(frozen=True, slots=True)
class RolledBack:
    """What a member has undone: its manifest, and the rollback files beside it (docs/rollback.md)."""

    member: LocalMember
    manifest: Path
    files: tuple[Path, ...]


class ReplicaSet:
    """Is a set of processes, for `with`. LocalSetError, with the reason, where something of it cannot be done.

    Its methods return once what they ask for has happened. `AsyncReplicaSet` has the same ones for `async with`.
    """

    def __init__(
        self,
        members: int = 1,
        *,
        arbiters: int = 0,
        settings: Mapping[str, object] | None = None,
        name: str = "rs0",
        folder: Path | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        """members: with data. settings: of the configuration, beside SETTINGS. folder: a new or empty one, which stays;
        None: a temporary one. flags: more options of `replset start`, for all members.
        """
        if members < 1 or arbiters < 0:
            raise ValueError("a set has at least one member with data")
        self._count, self._arbiters = members, arbiters
        self._settings = {**SETTINGS, **(settings or {})}
        self._name = name
        self._own_folder = folder
        many = ["--allow-multiple-arbiters"] if arbiters > 1 else []
        self._flags = ["--enable-test-commands", *many, *flags]
        self._set: LocalSet | None = None
        self._guard: subprocess.Popen[str] | None = None
        self._cuts: dict[str, set[str]] = {}
        self._paused: list[LocalMember] = []

    # --- life ----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it, and return when it has a primary and all members are in service."""
        if self._set is not None:
            raise LocalSetError("this set runs already")
        if self._own_folder is not None and self._own_folder.exists() and any(self._own_folder.iterdir()):
            raise LocalSetError(f"{self._own_folder} is not empty")
        with ExitStack() as undo:
            undo.callback(self.stop)
            for tries in range(PORT_TRIES):
                try:
                    self._launch_all()
                    break
                except LocalSetError as error:  # others look for ports too
                    self.stop()
                    if tries == PORT_TRIES - 1 or "in use" not in error.message:
                        raise
            local = self._local
            local.initiate(self._settings)
            self.wait_until(local.is_complete, "all members to be in service", every_s=0.02)
            undo.pop_all()

    def _launch_all(self) -> None:
        folder = self._own_folder or Path(tempfile.mkdtemp(prefix="replset-test-"))
        self._guard = subprocess.Popen(
            command_of("replset.testing.guard", "" if self._own_folder else str(folder)),
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the test
        )
        local = self._set = LocalSet(folder.resolve(), self._name)
        ports = free_ports(self._count + self._arbiters, secrets.choice(PORTS))
        for number, port in enumerate(ports):
            self._launch(local.plan(port, flags=self._flags, arbiter=number >= self._count))
        for member in local.members:
            local.wait_until_answers(member)

    def _launch(self, member: LocalMember) -> None:
        assert self._guard is not None
        assert self._guard.stdin is not None
        self._local.launch(member)
        self._guard.stdin.write(f"{member.pid} {member.started}\n")
        self._guard.stdin.flush()

    def stop(self) -> None:
        """End all processes, and remove the files of a temporary folder. Nothing if it does not run."""
        guard, local = self._guard, self._set
        self._guard = self._set = None
        self._cuts, self._paused = {}, []
        if guard is not None and guard.stdin is not None:
            guard.stdin.close()
            guard.wait()
            if local is not None:
                local.reap()

    @property
    def _local(self) -> LocalSet:
        if self._set is None:
            raise LocalSetError("this set does not run: use it in `with`, or call start()")
        return self._set

    # --- where it is ---------------------------------------------------------------------------------------------

    @property
    def members(self) -> tuple[LocalMember, ...]:
        """Its members in their order, arbiters last: each has a `name`, `host`, `http`, `dbpath`, `log` and `pid`."""
        return tuple(self._local.members)

    @property
    def uri(self) -> str:
        """What a driver connects with."""
        hosts = ",".join(member.host for member in self.members if not member.arbiter)
        return f"mongodb://{hosts}/?replicaSet={self._name}"

    @property
    def http(self) -> str:
        """The URL of the primary's HTTP API."""
        return self.primary.http

    @property
    def primary(self) -> LocalMember:
        """The member that leads; waits for one."""
        return self._wait_for_primary([member for member in self.members if member not in self._paused])

    @property
    def secondaries(self) -> tuple[LocalMember, ...]:
        """The members with data that run and do not lead."""
        primary = self.primary
        return tuple(one for one in self.members if one is not primary and not one.arbiter and one.is_running())

    def command(self, command: dict[str, object], database: str = "admin") -> dict[str, Any]:
        """Run a command on the primary and return its reply. LocalSetError: it has ok: 0."""
        reply = self.primary.command(command, database, timeout_s=PATIENCE_S)
        if reply.get("ok") != 1.0:
            raise LocalSetError(f"{next(iter(command))}: {reply.get('errmsg')}")
        return reply

    def wait_until(
        self, condition: Callable[[], T | None], what: str = "that", within_s: float = PATIENCE_S, every_s: float = 0.05
    ) -> T:
        """Call `condition` until what it returns is true, and return that. LocalSetError: it was not in time."""
        return wait_until(condition, within_s, what, every_s)

    # --- what a test does to it ----------------------------------------------------------------------------------

    def kill_primary(self) -> LocalMember:
        """kill -9. Returns the member that led; `restart` starts it again."""
        primary = self.primary
        self._local.kill(primary)
        return primary

    def restart(self, member: LocalMember) -> None:
        """Start a member that was killed, and wait until it is in service and the primary counts it."""
        if member.is_running():
            raise LocalSetError(f"{member.name} runs")
        self._launch(member)
        self._local.wait_until_answers(member)
        self.wait_until(lambda: self._is_counted(member), f"{member.name} to be in service")

    def step_down(self) -> LocalMember:
        """Let the primary hand over. Returns the new one; the old one may be elected again at once."""
        old = self.primary
        if not self.secondaries:  # the primary would wait for one
            raise LocalSetError(f"{old.name} did not step down: no other member can lead")
        reply = old.command({"replSetStepDown": 60}, timeout_s=PATIENCE_S)
        if reply.get("ok") != 1.0:
            raise LocalSetError(f"{old.name} did not step down: {reply.get('errmsg')}")
        primary = self._wait_for_primary([member for member in self.members if member is not old])
        old.command({"replSetFreeze": 0})
        return primary

    def pause(self, member: LocalMember) -> None:
        """Stop a member's process where it is (SIGSTOP), as a machine that hangs, until `heal`."""
        if not member.is_running():
            raise LocalSetError(f"{member.name} does not run")
        os.kill(member.pid, signal.SIGSTOP)
        self._paused.append(member)

    def cut(self, one: LocalMember, *others: LocalMember) -> None:
        """Let no message pass between a member and these others (none: all others), until `heal`. Clients reach it."""
        hosts = {other.host for other in others or self.members if other is not one}
        self._cuts.setdefault(one.host, set()).update(hosts)
        self._tell_cut(one)

    def heal(self) -> None:
        """End all cuts and pauses."""
        for member in self._paused:
            with suppress(ProcessLookupError):
                os.kill(member.pid, signal.SIGCONT)
        cut = [member for member in self.members if member.host in self._cuts and member.is_running()]
        self._paused, self._cuts = [], {}
        for member in cut:
            self._tell_cut(member)

    def _tell_cut(self, member: LocalMember) -> None:
        hosts = sorted(self._cuts.get(member.host, ()))
        reply = member.command({"replSetTestCut": 1, "hosts": hosts})
        if reply.get("ok") != 1.0:
            raise LocalSetError(f"{member.name} could not be cut off: {reply.get('errmsg')}")

    def roll_back(self, writes: Writes) -> RolledBack:
        """Let the set lose writes that the primary acknowledged with w: 1, as a failover does. Returns what is left.

        writes: documents to insert, by `database.collection`; or a function that is given the primary's own URI and
        writes there, with w: 1 and before an election timeout is over. All cuts and pauses end.
        """
        old = self.primary
        others = [member for member in self.members if member is not old]
        if 2 * len(others) <= len(self.members) or all(member.arbiter for member in others):
            raise LocalSetError(
                "the others must be able to elect a primary: roll_back needs three members, or two and an arbiter"
            )
        self.wait_until(self._local.is_complete, "all members to be in service")
        before = _manifests(old)
        self.cut(old)
        try:
            if callable(writes):
                writes(f"mongodb://{old.host}/?directConnection=true&w=1")
            else:
                _insert(old, writes)
            self._wait_for_primary(others)
        finally:
            self.heal()
        return self.wait_until(lambda: self._rolled_back(old, before), f"{old.name} to roll back")

    def _rolled_back(self, member: LocalMember, before: set[Path]) -> RolledBack | None:
        for manifest in _manifests(member) - before:
            found = json.loads(manifest.read_text(encoding="utf-8"))
            if found.get("state") == "finished" and self._is_in_service(member):
                return RolledBack(member, manifest, tuple(manifest.parent / row["name"] for row in found["files"]))
        return None

    def _wait_for_primary(self, among: Sequence[LocalMember]) -> LocalMember:
        """The one that leads among these. A test's set may have a second one for a moment, which is cut off."""
        return self.wait_until(lambda: self._local.primary(among=among), "a primary", every_s=0.02)

    def _is_counted(self, member: LocalMember) -> bool:
        rows: list[dict[str, Any]] = self.command({"replSetGetStatus": 1})["members"]
        row = next(row for row in rows if row["name"] == member.host)
        return row["counted"] and row["stateStr"] in IN_SERVICE and self._is_in_service(member)

    @staticmethod
    def _is_in_service(member: LocalMember) -> bool:
        with suppress(ReplError):
            hello = member.command({"hello": 1}, timeout_s=3)
            return any(hello.get(state) is True for state in ("isWritablePrimary", "secondary", "arbiterOnly"))
        return False


def _manifests(member: LocalMember) -> set[Path]:
    return set((member.dbpath / "rollback").glob("rollback-*.json"))


def _insert(member: LocalMember, writes: Mapping[str, Sequence[Mapping[str, object]]]) -> None:
    for namespace, documents in writes.items():
        database, _, collection = namespace.partition(".")
        rows = [dict(one) for one in documents]
        command: dict[str, object] = {"insert": collection, "documents": rows, "writeConcern": {"w": 1}}
        reply = member.command(command, database)
        errors = reply.get("writeErrors") or reply.get("errmsg")
        if errors or reply.get("n") != len(documents):
            raise LocalSetError(f"{namespace}: not written by {member.name}: {errors}")
