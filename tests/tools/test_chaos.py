"""The checker finds each kind of broken promise, and nothing in a history that kept them."""

from __future__ import annotations

import itertools
import random
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from replset.bson import Timestamp
from replset.oplog_row import CHAIN_START, OplogRow, chained_rows
from replset.replication.rollback_manifest import FileKind, list_manifests
from tests.integration.conftest import next_ports
from tests.programs import run_to_end
from tools.chaos.checker import End, RolledBack, check_history
from tools.chaos.disks import OWN_NAMESPACE, can_mount
from tools.chaos.faults import ALONE, FAULTS, NEEDS_DISKS, drawn, kill, resync
from tools.chaos.history import Absence, Attack, Breach, History, Loss, Read, Write, fill_in
from tools.chaos.run import run

Document = dict[str, Any]


def oplog(*entries: bytes) -> list[OplogRow]:
    pending = [(ts, 1, "n", "", None, 0, entry) for ts, entry in enumerate(entries, start=1)]
    return chained_rows(pending, CHAIN_START)


class Run:
    """A run in which everything went well, to be spoilt. Documents 1 and 3 stay, 2 was deleted, 4 was rolled back."""

    def __init__(self) -> None:
        self.history = History(members=("m1", "m2", "m3"))
        self.documents: dict[str, list[Document]] = {name: [] for name in ("m1", "m2", "m3")}
        self.rolled_back: list[Document] = []
        self.oplogs = {name: oplog(b"one", b"two", b"three") for name in ("m1", "m2", "m3")}
        self.add(1, "insert", 1, "majority", time=10)
        self.add(2, "insert", 2, "majority", time=11)
        self.add(3, "update", 3, "w1", time=12)
        self.add(4, "insert", 4, "w1", time=13)
        self.add(5, "delete", 2, "majority", time=14)
        self.add(6, "insert", 6, "majority", outcome="unknown")
        self.add(7, "insert", 7, "majority", outcome="refused")
        self.add(8, "delete", 1, "journaled", time=15)
        for held in self.documents.values():
            held += [{"_id": 1, "numbers": [1]}, {"_id": 3, "numbers": [3]}]
        self.rolled_back.append({"op": "i", "o": {"_id": 4, "numbers": [4]}})
        self.rolled_back.append({"op": "d", "o": {"_id": 1}})
        self.read = Read("m2", 14, 20.0, 21.0, [1, 3], [1, 3])
        self.history.begin(self.read)

    def add(self, number: int, kind: str, key: int, concern: str, *, outcome: str = "ok", time: int = 0) -> None:
        self.history.begin(Write(number, kind, key, concern, "m1", number, number + 0.5, outcome, time))

    def write(self, number: int) -> Write:
        return self.history.writes[number - 1]

    def everywhere(self, change: Callable[[list[Document]], object]) -> None:
        for held in self.documents.values():
            change(held)

    def judged(self) -> list[str]:
        return check_history(self.history, End(self.documents, RolledBack.of(self.rolled_back), self.oplogs))


def test_a_history_that_kept_the_promises_is_clean() -> None:
    assert Run().judged() == []


def lost_majority_write(run: Run) -> None:
    run.write(3).concern = "majority"
    run.everywhere(lambda held: held.pop(1))
    run.read.found, run.read.keys = [1], [1]
    run.rolled_back.append({"op": "u", "o": {"$v": 2, "diff": {"snumbers": {"a": True, "u0": 3}}}})


def lost_write(run: Run) -> None:
    run.rolled_back.pop(0)


def lost_delete(run: Run) -> None:
    run.rolled_back.pop(1)


def lost_majority_delete(run: Run) -> None:
    run.everywhere(lambda held: held.insert(1, {"_id": 2, "numbers": [2]}))
    run.history.reads.clear()


def refused_and_applied(run: Run) -> None:
    run.everywhere(lambda held: held.append({"_id": 7, "numbers": [7]}))


def refused_delete_applied(run: Run) -> None:
    run.write(8).outcome = "refused"
    run.everywhere(lambda held: held.pop(0))
    run.history.reads.clear()


def applied_twice(run: Run) -> None:
    run.everywhere(lambda held: held[1]["numbers"].append(3))


def members_differ(run: Run) -> None:
    run.documents["m3"][1]["numbers"] = []


def a_member_lacks_a_document(run: Run) -> None:
    run.documents["m2"].pop()


def read_of_what_did_not_stay(run: Run) -> None:
    run.read.found = [1, 3, 4]


def read_misses_a_write(run: Run) -> None:
    run.read.found, run.read.keys = [3], [3]
    run.write(8).began = 30.0


def read_shows_what_was_deleted(run: Run) -> None:
    run.read.found, run.read.keys = [1, 2, 3], [1, 2, 3]


def what_nobody_wrote(run: Run) -> None:
    run.everywhere(lambda held: held.append({"_id": -1, "numbers": [-1]}))


def acknowledged_by_one(run: Run) -> None:
    run.history.begin(Absence("m2", 0.0, 3.0))
    run.history.begin(Absence("m3", 0.5, 2.0))


def elections(run: Run) -> None:
    run.history.begin(Attack("a stranger", 1.0, (4, 6), most_terms=1))


def a_client_that_waited(run: Run) -> None:
    run.history.begin(Attack("a flood", 1.0, (4, 4), waited_s=0.8))


def much_memory(run: Run) -> None:
    run.history.begin(Attack("a flood", 1.0, (4, 4), memory_mb=513))


def a_breach(run: Run) -> None:
    run.history.begin(Breach(1.0, "m1 does not answer"))


def lost_though_only_another_disk_was(run: Run) -> None:
    lost_write(run)
    run.history.begin(Loss("m2", 9.0, "empty"))


def lost_though_the_disk_was_lost_before(run: Run) -> None:
    lost_write(run)
    run.history.begin(Loss("m1", 3.5, "empty"))


def lost_majority_write_with_a_disk(run: Run) -> None:
    lost_majority_write(run)
    run.history.begin(Loss("m1", 9.0, "empty"))


def damaged_entry(run: Run) -> None:
    run.oplogs["m2"][1] = run.oplogs["m2"][1]._replace(entry=b"rotten")


def broken_chain(run: Run) -> None:
    run.oplogs["m2"].pop(1)


def different_entries(run: Run) -> None:
    run.oplogs["m3"] = oplog(b"one", b"deux", b"three")


@pytest.mark.parametrize(
    ("spoil", "reported"),
    [
        (lost_majority_write, "acknowledged by a majority, and lost: Write(number=3"),
        (lost_write, "neither in the set nor in a rollback file: Write(number=4"),
        (lost_delete, "neither in the set nor in a rollback file: Write(number=8"),
        (lost_majority_delete, "acknowledged by a majority, and lost: Write(number=5"),
        (refused_and_applied, "refused, and yet applied: Write(number=7"),
        (refused_delete_applied, "acknowledged by a majority, and lost: Write(number=1"),
        (applied_twice, "m1 applied a write twice: [3]"),
        (members_differ, "m1 and m3 are not the same at the end: _id 3"),
        (a_member_lacks_a_document, "m1 and m2 are not the same at the end: _id 3"),
        (read_of_what_did_not_stay, "a majority read showed writes [4], which did not stay"),
        (read_misses_a_write, "a majority read misses Write(number=1"),
        (read_shows_what_was_deleted, "a majority read shows what was deleted by Write(number=5"),
        (what_nobody_wrote, "m1 holds writes [-1], which no client of ours made"),
        (acknowledged_by_one, "acknowledged by two members while m1 ran alone: Write(number=1,"),
        (elections, "2 elections, at most 1 expected: Attack(what='a stranger'"),
        (a_client_that_waited, "another client waited for 0.8 s of the member's CPU: Attack(what='a flood'"),
        (much_memory, "the member took 513 MB: Attack(what='a flood'"),
        (a_breach, "m1 does not answer"),
        (lost_though_only_another_disk_was, "neither in the set nor in a rollback file: Write(number=4"),
        (lost_though_the_disk_was_lost_before, "neither in the set nor in a rollback file: Write(number=4"),
        (lost_majority_write_with_a_disk, "acknowledged by a majority, and lost: Write(number=3"),
        (damaged_entry, "m2 holds a damaged entry at"),
        (broken_chain, "the oplog of m2 does not continue at"),
        (different_entries, "m1 and m3 hold different entries at"),
    ],
)
def test_each_broken_promise_is_found(spoil: Callable[[Run], None], reported: str) -> None:
    run = Run()
    spoil(run)
    assert any(reported in line for line in run.judged()), run.judged()


def test_what_only_one_member_had_may_be_lost_with_its_disk() -> None:
    run = Run()
    lost_write(run)
    run.history.begin(Loss("m1", 9.0, "empty"))
    assert run.judged() == []


def test_two_members_were_there_for_a_part_of_the_time() -> None:
    run = Run()
    run.history.begin(Absence("m2", 0.0, 3.0))
    run.history.begin(Absence("m3", 1.2, 2.4))  # no write of a majority is wholly within both
    assert run.judged() == []


def test_a_stalled_machine_elects_too() -> None:
    run = Run()
    run.history.begin(Attack("a stranger", 1.0, (4, 6), most_terms=1, stalled_s=0.6))
    assert run.judged() == []


def test_what_a_rollback_file_holds() -> None:
    difference = {"$v": 2, "diff": {"u": {"numbers": [1]}, "i": {"numbers": [2]}}}
    entries: list[Document] = [
        {"op": "u", "o": difference},
        {"op": "u", "o": {"_id": 1, "numbers": [3, 4]}},
        {"op": "u", "o": {"$v": 2, "diff": {"snumbers": {"a": True, "u2": 5, "l": 9}}}},
        {"op": "i", "o": {"_id": 6, "numbers": [6]}},
        {"op": "d", "o": {"_id": 7}},
    ]
    assert RolledBack.of(entries) == RolledBack(frozenset({1, 2, 3, 4, 5, 6}), frozenset({7}))


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        ({"ok": 1.0, "n": 1, "operationTime": Timestamp(3, 4)}, "ok"),
        ({"ok": 1.0, "n": 0, "operationTime": Timestamp(3, 4)}, "unknown"),
        ({"ok": 1.0, "n": 1, "writeConcernError": {"code": 64, "errmsg": "late"}}, "unknown"),
        ({"ok": 1.0, "n": 0, "writeErrors": [{"code": 11000, "errmsg": "twice"}]}, "unknown"),
        ({"ok": 0.0, "code": 10107, "errmsg": "not primary"}, "refused"),
        ({"ok": 0.0, "code": 50, "errmsg": "time"}, "unknown"),
    ],
)
def test_the_outcome_of_a_reply_to_a_write(reply: Document, outcome: str) -> None:
    write = Write(1, "insert", 1, "w1", "m1", 0.0)
    fill_in(write, reply)
    assert (write.outcome, write.operation_time) == (outcome, 3 << 31 | 4 if outcome == "ok" else 0)


@pytest.mark.night("faults on real processes for a while; the simulated runs draw the same faults")
def test_a_short_run_is_clean(tmp_path: Path) -> None:
    reported: list[str] = []
    ports = next_ports(3)
    names = [fault.__name__ for fault in FAULTS if fault not in ALONE | {resync}]  # the others take long
    result = run(
        tmp_path,
        seconds=0,
        at_least=6,
        seed=7,
        own_disks=False,
        on_line=reported.append,
        base_port=ports[0],
        names=names,
    )
    assert result.wrong == [], [*reported, *result.wrong]
    assert result.faults == 6, reported
    assert result.acknowledged > 9
    assert result.reads > 9
    for number in (1, 2, 3):
        for manifest in list_manifests(tmp_path / f"m{number}"):
            assert any(file.kind is FileKind.OPLOG for file in manifest.files)


@pytest.mark.night("faults on real processes for a while; the simulated runs draw the same faults")
def test_a_short_run_with_full_and_read_only_disks_is_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own, which enters a mount namespace; it says so where the machine allows nobody to mount."""
    monkeypatch.delenv(OWN_NAMESPACE, raising=False)
    options = ["--minutes=0", "--at-least=5", "--seed=7", "--set=three"]
    done = run_to_end([sys.executable, "-m", "tools.chaos", *options, "--faults", "full_disk", "read_only", "kill"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every acknowledged write is in the set or in a rollback file" in done.stdout
    if can_mount():
        assert re.search("the disk of m[123] is full", done.stdout), done.stdout
        assert re.search("the dbpath of m[123] is read-only: replset start: ", done.stdout), done.stdout
    else:
        assert "left out: full and read-only disks" in done.stdout


def test_each_kind_of_fault_is_drawn_before_any_comes_again() -> None:
    kinds = list(itertools.islice(drawn(random.Random(5), own_disks=True), 3 * len(FAULTS)))
    for number in range(3):
        assert Counter(kinds[number * len(FAULTS) :][: len(FAULTS)]) == Counter(FAULTS)
    assert not NEEDS_DISKS & set(itertools.islice(drawn(random.Random(5), own_disks=False), 50))
    assert set(itertools.islice(drawn(random.Random(5), own_disks=True, names=["kill"]), 9)) == {kill}
