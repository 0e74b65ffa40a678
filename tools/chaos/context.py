"""The set under attack, and what faults do with it: members drawn, stopped and started, absences and attacks noted."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from replset.errors import HostUnreachableError, ReplError
from replset.local_set import LocalMember, LocalSet, wait_until
from tools.chaos.clients import Clients
from tools.chaos.history import Absence, Attack, Breach, History, Loss

BALLAST = "ballast"
WELL_WITHIN_S = 90.0
SETTLED_WITHIN_S = 30.0


class CannotError(Exception):
    """The fault cannot be made now or here; the text says why."""


@dataclass
class FaultContext:
    """own_disks: each dbpath is a small file system of its own. keyed: members prove themselves by a key file.

    voters: how many members vote. delayed: one applies entries only when they are old enough.
    """

    local: LocalSet
    rng: random.Random
    history: History
    clients: Clients
    own_disks: bool = False
    keyed: bool = True
    voters: int = 3
    delayed: bool = False
    down: set[str] = field(default_factory=set)
    """Members that a fault keeps from answering."""
    hurt: set[str] = field(default_factory=set)
    """Members whose data was damaged or lost and was not seen to be whole again."""
    moved_rollbacks: list[Path] = field(default_factory=list)
    """Copies of dbpaths' rollback folders from before their disks were wiped."""

    # --- members -------------------------------------------------------------------------------------------------

    def up(self) -> list[LocalMember]:
        return [member for member in self.local.members if member.name not in self.down]

    def a_member(self) -> LocalMember:
        """Half of the time the primary."""
        chosen = self.up()
        if not chosen:
            raise CannotError("no member is left")
        primary = self.local.primary(among=chosen) if self.rng.random() < 0.5 else None
        return primary or self.rng.choice(chosen)

    def the_primary(self) -> LocalMember:
        primary = self.local.primary(among=self.up())
        if primary is None:
            raise CannotError("no primary")
        return primary

    def a_secondary(self) -> LocalMember:
        primary = self.the_primary()
        others = [member for member in self.up() if member is not primary]
        if not others:
            raise CannotError("no secondary is left")
        return self.rng.choice(others)

    def others(self, member: LocalMember) -> list[LocalMember]:
        return [other for other in self.local.members if other is not member]

    # --- their processes -----------------------------------------------------------------------------------------

    def take_down(self, member: LocalMember, how: signal.Signals = signal.SIGKILL) -> Absence:
        """End its process; who starts it again ends the absence (`bring_up`)."""
        self.local.stop(member, how=how)
        return self._absent(member)

    def bring_up(self, member: LocalMember, absence: Absence) -> None:
        with contextlib.suppress(OSError):  # a read-only disk: who mends that brings it up again
            (member.dbpath / BALLAST).unlink()  # a start needs some room
        self._present(member, absence)
        self.local.start(member)

    def freeze_process(self, member: LocalMember) -> Absence:
        """SIGSTOP, and wait until it stands."""
        os.kill(member.pid, signal.SIGSTOP)
        tasks = Path(f"/proc/{member.pid}/task")
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            states = {
                (task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks.iterdir() if task.is_dir()
            }
            if states <= {"T"}:
                break
            time.sleep(0.005)
        return self._absent(member)

    def thaw_process(self, member: LocalMember, absence: Absence) -> None:
        self._present(member, absence)
        os.kill(member.pid, signal.SIGCONT)

    def _absent(self, member: LocalMember) -> Absence:
        self.down.add(member.name)
        return self.history.begin(Absence(member.name, self.history.now()))

    def _present(self, member: LocalMember, absence: Absence) -> None:
        absence.ended = self.history.now()
        self.history.end(absence)
        self.down.discard(member.name)

    # --- what is noted for the checker ---------------------------------------------------------------------------

    def breach(self, what: str) -> None:
        self.history.note(Breach(self.history.now(), what))

    def lost(self, member: LocalMember, what: str) -> None:
        self.hurt.add(member.name)
        self.history.note(Loss(member.name, self.history.now(), what))

    @contextlib.contextmanager
    def attack(self, what: str, most_terms: int = 0) -> Iterator[Attack]:
        """Note the set's terms before and after the block; elections beyond `most_terms` are a breach."""
        row = self.history.begin(Attack(what, self.history.now(), most_terms=most_terms))
        before = self.term()
        row.terms = (before, before)
        with stalls() as stalled:
            yield row
            row.terms = (before, self.term())
        row.stalled_s, row.ended = round(stalled[0], 3), self.history.now()
        self.history.end(row)

    def term(self) -> int:
        """The newest term that a member knows."""
        terms = []
        for member in self.up():
            with contextlib.suppress(ReplError):
                terms.append(int(status_of(member)["term"]))
        if not terms:
            raise CannotError("nobody answers")
        return max(terms)

    # --- being well ----------------------------------------------------------------------------------------------

    def wait_until_well(self) -> None:
        """Every process runs, a primary takes majority writes, all are counted and have applied the newest entry."""

        def well() -> bool:
            primary = self.local.primary()
            return primary is not None and self._is_well(primary)

        for member in self.local.members:
            assert member.is_running(), f"{member.name} ended by itself: {member.last_log_line()}"
        wait_until(well, WELL_WITHIN_S, "the set to be well again")
        self.hurt.clear()

    def settles(self) -> bool:
        """Whether soon nobody of a higher priority is there to take over: one that did so often pauses for minutes."""
        until = time.monotonic() + SETTLED_WITHIN_S
        while time.monotonic() < until:
            with contextlib.suppress(ReplError):
                if (primary := self.local.primary()) is not None and self._is_settled(primary):
                    return True
            time.sleep(0.2)
        return False

    def _is_settled(self, primary: LocalMember) -> bool:
        reply: dict[str, Any] = primary.command({"replSetGetConfig": 1}, timeout_s=5)
        priority = {row["host"]: row["priority"] for row in reply["config"]["members"]}
        return bool(priority[primary.host] == max(priority.values()))

    def _is_well(self, primary: LocalMember) -> bool:
        note: dict[str, object] = {
            "appendOplogNote": 1,
            "data": {"msg": "well?"},
            "writeConcern": {"w": len(self.local.members), "wtimeout": 5_000},
        }
        try:
            reply = primary.command(note)
            rows = status_of(primary)["members"]
        except ReplError:
            return False
        states = {row["stateStr"] for row in rows}
        return (
            reply.get("ok") == 1.0
            and "writeConcernError" not in reply
            and all(row["counted"] for row in rows)
            and states <= {"PRIMARY", "SECONDARY"}
        )


Mend = Callable[[], None]
Fault = Callable[[FaultContext], tuple[str, Mend | None]]
"""Begins; returns what it did, and what mends it; None where it is over by itself."""


def send_command(member: LocalMember, command: dict[str, object]) -> dict[str, Any]:
    """The reply; CannotError where it cannot be asked or refuses."""
    try:
        reply = member.command(command, timeout_s=2)
    except ReplError as error:
        raise CannotError(str(error)) from error
    if reply.get("ok") != 1.0:
        raise CannotError(str(reply.get("errmsg")))
    return reply


def answers(member: LocalMember) -> bool:
    try:
        return member.command({"ping": 1}, timeout_s=3).get("ok") == 1.0
    except ReplError:
        return False


def status_of(member: LocalMember) -> dict[str, Any]:
    """replSetGetStatus; HostUnreachableError also where it is refused."""
    reply = member.command({"replSetGetStatus": 1}, timeout_s=10)
    if reply.get("ok") != 1.0:
        raise HostUnreachableError(str(reply.get("errmsg")))
    return reply


def state_of(member: LocalMember) -> str:
    return next(str(row["stateStr"]) for row in status_of(member)["members"] if row.get("self"))


@contextlib.contextmanager
def stalls() -> Iterator[list[float]]:
    """How late, at most, a thread of this process woke in the block."""
    worst, over = [0.0], threading.Event()

    def watch() -> None:
        while not over.is_set():
            began = time.monotonic()
            time.sleep(0.02)
            worst[0] = max(worst[0], time.monotonic() - began - 0.02)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield worst
    finally:
        over.set()
        thread.join()
