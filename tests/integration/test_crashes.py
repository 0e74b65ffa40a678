"""kill -9 of real processes in the middle of a shutdown, a rollback and an initial sync, each more than once.

When a process dies is chosen by what it left in its folder, not by what it says; what it was doing at that moment is up
to the machine, what holds afterwards is not. `tests/simulation/test_crash_points.py` has each step of the disk.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from replset.features.recovery.lost_writes import lost_entries
from replset.local_set import LocalMember, LocalSet, wait_until
from replset.replication.rollback_manifest import RollbackState, list_manifests
from tests.integration.forked import ForkedSet
from tests.integration.talk import (
    Writer,
    a_secondary,
    all_counted,
    cut,
    heal,
    ids,
    insert,
    others_of,
    reconfigure,
    run,
    same_everywhere,
    state,
)

pytestmark = pytest.mark.in_turns

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


def all_is_well(local: LocalSet, acknowledged: Iterable[int]) -> None:
    """Everybody is back and counted, all copies are the same, and what a majority acknowledged is in them."""
    all_counted(local)
    wait_until(lambda: {state(member) for member in local.members} == {"PRIMARY", "SECONDARY"}, 40, "all to be well")
    found = {row["_id"] for row in same_everywhere(local)}
    assert not (lost := set(acknowledged) - found), f"lost: {sorted(lost)[:10]}"


def test_killed_in_a_rollback_of_twenty_thousand_operations(local: ForkedSet) -> None:
    reconfigure(local, {"electionTimeoutMillis": 30_000})  # the old primary takes all of them before it steps down
    old = local.wait_for_primary()
    insert(old, *range(100))
    rest = others_of(local, old)
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
    all_is_well(local, range(200))
    assert len(ids(new)) == 200
    manifests = list_manifests(old.dbpath)
    assert {manifest.state for manifest in manifests} <= {RollbackState.FINISHED, RollbackState.ABANDONED}
    finished = [manifest for manifest in manifests if manifest.state is RollbackState.FINISHED]
    pages = [lost_entries(folder, manifest, limit=DOOMED + 100).rows for manifest in finished]
    lost = [row["_id"] for rows in pages for row in rows if row["op"] == "i"]
    assert lost == list(range(1_000, 1_000 + DOOMED)), "each in one finished rollback's file"


def test_killed_in_an_initial_sync(local: ForkedSet) -> None:
    reconfigure(local, {"electionTimeoutMillis": 30_000})  # the primary stays, however slow the machine is
    primary = local.wait_for_primary()
    filler = "x" * 4_000
    for first in range(0, 4_000, 500):
        documents = [{"_id": number, "filler": filler + str(number)} for number in range(first, first + 500)]
        run(primary, {"insert": "orders", "documents": documents, "writeConcern": {"w": "majority"}})
    fresh = a_secondary(local)
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
    all_is_well(local, range(4_000))
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


def test_killed_in_a_shutdown(local: ForkedSet) -> None:
    rng = random.Random(4)
    with Writer(local) as writer:
        for _ in range(4):
            primary = local.wait_for_primary()
            writer.wait_for_more()
            os.kill(primary.pid, signal.SIGTERM)
            time.sleep(rng.uniform(0, 0.3))
            local.kill(primary)
            writer.wait_for_more()
            local.start(primary)
            all_counted(local)
    all_is_well(local, writer.acknowledged)
