"""kill -9 of real processes in the middle of a start, a shutdown, a rollback and an initial sync, each more than once.

When a process dies is chosen by what it left in its folder, not by what it says; what it was doing at that moment is up
to the machine, what holds afterwards is not.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

from replset.cli.local_set import LocalMember, LocalSet, wait_until
from replset.errors import ReplError
from replset.replication.rollback_manifest import RollbackState, list_manifests
from tests.integration.conftest import MakeSet
from tests.integration.forked import ForkedSet
from tests.integration.talk import all_counted, cut, heal, ids, insert, run, same_everywhere, state
from tests.integration.test_set import lost_entries

DOOMED = 20_000


def wait_for(condition: Callable[[], bool], within_s: float, what: str) -> None:
    """Look every millisecond."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {within_s:g} s for {what}"
        time.sleep(0.001)


def kill_when(local: LocalSet, member: LocalMember, condition: Callable[[], bool], what: str) -> None:
    """Stop the process in the moment in which the condition is true, then kill it: it does nothing in between."""
    wait_for(condition, 40, what)
    os.kill(member.pid, signal.SIGSTOP)
    local.kill(member)


@contextlib.contextmanager
def starting(local: ForkedSet, member: LocalMember) -> Iterator[None]:
    """The process is started; within the block it is on its way up, or up, or dead."""
    assert member.pid == 0
    process = local.begin(member)
    try:
        yield
    finally:
        local.kill(member)
        process.join()


def opens_its_files(member: LocalMember) -> bool:
    """Whether this very process holds the lock of its folder: from here on it opens its databases."""
    with contextlib.suppress(OSError):
        return (member.dbpath / "replset.lock").read_text().strip() == str(member.pid)
    return False


class Writer:
    """A client that inserts one document after the other at w:majority into whoever is primary."""

    def __init__(self, local: LocalSet) -> None:
        self._local = local
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acknowledged: set[int] = set()

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        primary: LocalMember | None = None
        for number in count():
            if self._stop.wait(0.03):
                return
            primary = primary or self._local.primary()
            if primary is None or not self._insert(primary, number):
                primary = None

    def _insert(self, primary: LocalMember, number: int) -> bool:
        concern = {"w": "majority", "wtimeout": 5_000}
        command = {"insert": "orders", "documents": [{"_id": number}], "writeConcern": concern}
        try:
            reply = primary.command(command, "shop", timeout_s=6)
        except ReplError:
            return False
        done = reply.get("ok") == 1.0 and reply.get("n") == 1 and "writeConcernError" not in reply
        if done:
            self.acknowledged.add(number)
        return done


def all_is_well(local: LocalSet, acknowledged: set[int]) -> None:
    """Everybody is back and counted, all copies are the same, and what a majority acknowledged is in them."""
    all_counted(local)
    wait_until(lambda: {state(member) for member in local.members} == {"PRIMARY", "SECONDARY"}, 40, "all to be well")
    found = {row["_id"] for row in same_everywhere(local)}
    assert acknowledged <= found, f"lost: {sorted(acknowledged - found)[:10]}"


def test_killed_in_a_rollback_of_twenty_thousand_operations(make_set: MakeSet) -> None:
    local = make_set(electionTimeoutMillis=30_000)  # the old primary does not step down before it took all of them
    old = local.wait_for_primary()
    insert(old, *range(100))
    rest = [member for member in local.members if member is not old]
    cut(old, rest)
    for first in range(1_000, 1_000 + DOOMED, 2_000):
        insert(old, *range(first, first + 2_000), w=1)
    wait_until(lambda: rest[0].command({"replSetStepUp": 1}).get("ok") == 1.0, 30, "one of the others to be elected")
    new = local.wait_for_primary(among=rest)
    insert(new, *range(100, 200))
    folder, wal = old.dbpath / "rollback", old.dbpath / "replset.db-wal"
    heal(old)
    kill_when(local, old, lambda: any(folder.glob("*.bson")), "the first rollback file")
    with starting(local, old):
        wait_for(lambda: any(folder.glob("rollback-*.json")), 40, "a manifest")
        kill_when(local, old, grows(wal), "undo steps")
    for _ in range(3):  # the start goes on with the undo, each time from where the last one was
        is_undoing = grows(wal)
        with starting(local, old):
            kill_when(local, old, is_undoing, "a start that goes on with it")
    local.start(old)
    all_is_well(local, {*range(200)})
    assert len(ids(new)) == 200
    manifests = list_manifests(old.dbpath)
    assert {manifest.state for manifest in manifests} <= {RollbackState.FINISHED, RollbackState.ABANDONED}
    lost = [entry["o"]["_id"] for entry in lost_entries(old) if entry["op"] == "i"]  # type: ignore[index]
    assert lost == list(range(1_000, 1_000 + DOOMED)), "each in one finished rollback's file"


def test_killed_in_an_initial_sync(make_set: MakeSet) -> None:
    local = make_set(electionTimeoutMillis=30_000)  # the primary stays, however slow the machine is
    primary = local.wait_for_primary()
    filler = "x" * 4_000
    for first in range(0, 4_000, 500):
        documents = [{"_id": number, "filler": filler + str(number)} for number in range(first, first + 500)]
        run(primary, {"insert": "orders", "documents": documents, "writeConcern": {"w": "majority"}})
    fresh = next(member for member in local.members if member is not primary)
    local.kill(fresh)
    for path in sorted(fresh.dbpath.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    copy, record = fresh.dbpath / "initial-sync.db", fresh.dbpath / "initial-sync.json"
    moments: list[tuple[str, Callable[[], bool]]] = [
        ("the record of a copy", record.exists),
        ("half of the copy", lambda: size_of(copy) > 8 << 20 or copied(fresh)),
        ("the copy in its place", lambda: copied(fresh)),
    ]
    for what, condition in moments:
        with starting(local, fresh):
            kill_when(local, fresh, condition, what)
        insert(primary, 10_000 + len(what))
    local.start(fresh)
    all_is_well(local, {*range(4_000)})
    assert state(fresh) == "SECONDARY"
    wait_until(lambda: not any(fresh.dbpath.glob("initial-sync*")), 10, "nothing to be left of the transfer")


def grows(wal: Path) -> Callable[[], bool]:
    """Whether undo steps were written to a WAL since now; a start that finds it folds it first and begins it anew.

    It stays true once nothing more is written, so whoever looks too late only finds the work done.
    """
    before, steps = size_of(wal), 256 << 10
    return lambda: steps / 2 < size_of(wal) < before or size_of(wal) > before + steps


def size_of(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def copied(member: LocalMember) -> bool:
    """Whether the database is as large as only the copy is."""
    return size_of(member.dbpath / "replset.db") > 8 << 20


def test_killed_in_twenty_starts(make_set: MakeSet) -> None:
    rng = random.Random(20)
    local = make_set()
    victim = next(member for member in local.members if member is not local.wait_for_primary())
    with Writer(local) as writer:
        for round_ in range(20):
            local.kill(victim)
            with starting(local, victim):
                wait_for(lambda: opens_its_files(victim), 20, f"start {round_}")
                time.sleep(rng.uniform(0, 0.08))
                local.kill(victim)
        local.start(victim)
    assert writer.acknowledged
    all_is_well(local, writer.acknowledged)


def test_killed_in_a_shutdown(make_set: MakeSet) -> None:
    rng = random.Random(4)
    local = make_set()
    with Writer(local) as writer:
        for _ in range(4):
            primary = local.wait_for_primary()
            wait_for_progress(writer)
            os.kill(primary.pid, signal.SIGTERM)
            time.sleep(rng.uniform(0, 0.3))
            local.kill(primary)
            wait_for_progress(writer)
            local.start(primary)
            all_counted(local)
    all_is_well(local, writer.acknowledged)


def wait_for_progress(writer: Writer) -> None:
    """The set takes majority writes."""
    before = len(writer.acknowledged)
    wait_for(lambda: len(writer.acknowledged) > before + 3, 30, "majority writes")
