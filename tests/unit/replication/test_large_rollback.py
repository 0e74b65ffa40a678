"""A rollback of 100,000 operations: what it holds in memory, and how long each of its steps keeps the loop.

Neither is measured in seconds. The loop's share is counted in steps of SQLite's virtual machine, the memory by Python's
own allocator.
"""

from __future__ import annotations

import asyncio
import tracemalloc
from pathlib import Path

import apsw
import pytest

from replset.bson import encode
from replset.core.messages import RollbackEnded
from replset.ids import OpTime
from replset.oplog_entry import OplogEntry, delete_entry, insert_entry, update_entry
from replset.replication import rollback as rollback_module
from replset.replication.applier import apply_entry
from replset.replication.rollback_manifest import FileKind, list_manifests, verify_file
from replset.replication.rollback_progress import RollbackPhase
from replset.storage.store import Store
from replset.storage.undo import undo_step
from tests.unit.replication.kit import NS, SOURCE, Member, Pair, pair

ENTRIES = 100_000
GROUP = 2_000
MACHINE_STEPS = 100
"""How often SQLite's progress handler is called: after so many steps of its virtual machine."""


def members(tmp_path: Path) -> Pair:
    source, mine = pair(tmp_path, 100, shared=True)
    source.clock.ms += 9_000
    source.node.term = 2
    source.noop()
    return source, mine


def write_alone(mine: Member, entries: int, text: str) -> None:
    """Entries of my own: of every 10, seven inserts, two updates of these, a delete; in groups, as a primary would."""
    coll = mine.store.collection(NS)
    mine.clock.ms += 5_000
    for first in range(0, entries, GROUP):
        with mine.store.group() as txn:
            for number in range(first, min(first + GROUP, entries)):
                at, wall = txn.next_optime(1, mine.clock.wall_ms()), mine.clock.wall_ms()
                kind, key = number % 10, 1_000 + number
                if kind < 7:
                    raw = insert_entry(NS, coll.uuid, encode({"_id": key, "text": text}), at, wall)
                elif kind < 9:
                    key -= 7
                    raw = update_entry(NS, coll.uuid, encode({"_id": key}), encode({"_id": key, "n": 1}), at, wall)
                else:
                    raw = delete_entry(NS, coll.uuid, encode({"_id": key - 4}), at, wall)
                apply_entry(txn, OplogEntry(raw))


class Meter:
    """Counts what the store's connection does between two turns of the loop."""

    def __init__(self, connection: apsw.Connection) -> None:
        self.now = 0
        self.longest = 0
        connection.set_progress_handler(self._step, MACHINE_STEPS)

    def _step(self) -> bool:
        self.now += MACHINE_STEPS
        return False

    async def watch(self) -> None:
        """A heartbeat: whatever ran since its last turn kept it waiting."""
        while True:
            self.longest = max(self.longest, self.now)
            self.now = 0
            await asyncio.sleep(0)


def roll_back(mine: Member) -> tuple[RollbackEnded, Meter]:
    async def run() -> Meter:
        meter = Meter(mine.store._connection)
        watching = asyncio.get_running_loop().create_task(meter.watch())
        await mine.rollback.run(SOURCE)
        watching.cancel()
        return meter

    meter = asyncio.run(run())
    (ended,) = mine.reports
    assert isinstance(ended, RollbackEnded)
    return ended, meter


@pytest.mark.in_turns
def test_a_hundred_thousand_operations_are_undone_in_steps_that_stay_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, mine = members(tmp_path)
    before, log_before = mine.everything(), mine.oplog()
    write_alone(mine, ENTRIES, "lost")
    steps: list[tuple[RollbackPhase, int]] = []

    def counted(store: Store, common: OpTime, *, stem: str, limit: int = 0) -> bool:
        steps.append((mine.rollback.progress.phase, mine.rollback.progress.undone))
        return undo_step(store, common, stem=stem, limit=limit)

    monkeypatch.setattr(rollback_module, "undo_step", counted)
    ended, meter = roll_back(mine)
    assert ended.ok
    assert mine.everything() == before
    assert mine.oplog() == log_before
    (manifest,) = list_manifests(mine.dbpath)
    assert manifest.entries == ENTRIES
    assert manifest.operations == {"i": ENTRIES * 7 // 10, "u": ENTRIES // 5, "d": ENTRIES // 10}
    counts = {file.kind: file.count for file in manifest.files}
    assert counts == {FileKind.OPLOG: ENTRIES, FileKind.DOCUMENTS: ENTRIES * 6 // 10}
    assert all(verify_file(mine.folder / "rollback", file) is None for file in manifest.files)

    limit = rollback_module.UNDO_STEP_ENTRIES
    assert len(steps) == ENTRIES // limit
    assert steps == [(RollbackPhase.UNDOING, number * limit) for number in range(len(steps))], "what status shows"
    progress = mine.rollback.progress
    assert (progress.entries, progress.written, progress.undone) == (ENTRIES, ENTRIES, ENTRIES)
    assert progress.documents == counts[FileKind.DOCUMENTS]
    # The loop had a turn after each step; none took more than some hundred machine steps an entry.
    assert 0 < meter.longest < 300 * limit


def longest_on_the_loop(tmp_path: Path, entries: int) -> int:
    _, mine = members(tmp_path)
    write_alone(mine, entries, "lost")
    return roll_back(mine)[1].longest


def test_the_longest_time_on_the_loop_does_not_grow_with_the_rollback(tmp_path: Path) -> None:
    small, large = (longest_on_the_loop(tmp_path / str(entries), entries) for entries in (2_000, 20_000))
    assert large < 1.2 * small


def test_large_documents_make_the_steps_shorter(tmp_path: Path) -> None:
    _, mine = members(tmp_path)
    common = mine.store.last_applied
    large = "x" * (1 << 20)
    mine.insert(NS, *({"_id": f"large {number}", "text": large} for number in range(12)))
    for number in range(12):
        mine.replace(NS, {"_id": f"large {number}", "text": ""})
    taken = []
    more = True
    while more:
        undone = mine.store.undone_entries
        more = undo_step(mine.store, common, stem="s", limit=200, max_bytes=4 << 20)
        taken.append(mine.store.undone_entries - undone)
    assert sum(taken) == 24
    assert max(taken) <= 6, "three that are large themselves, three whose documents were"
    assert mine.store.last_applied == common


def test_one_entry_beyond_the_limit_is_undone_all_the_same(tmp_path: Path) -> None:
    _, mine = members(tmp_path)
    common = mine.store.last_applied
    mine.insert(NS, {"_id": "large", "text": "x" * 2_000})
    assert undo_step(mine.store, common, stem="s", limit=200, max_bytes=1_000) is False
    assert mine.store.last_applied == common


def test_the_files_are_written_in_bounded_memory(tmp_path: Path) -> None:
    _, mine = members(tmp_path)
    write_alone(mine, 5_000, "x" * 10_000)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        ended, _ = roll_back(mine)
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert ended.ok
    assert sum(file.size for file in list_manifests(mine.dbpath)[0].files) > 50 << 20
    assert peak < 20 << 20
