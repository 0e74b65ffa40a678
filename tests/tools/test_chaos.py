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


def document(number: int) -> Document:
    return {"_id": number, "numbers": [number]}


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
            held += [document(1), document(3)]
        self.rolled_back += [{"op": "i", "o": document(4)}, {"op": "d", "o": {"_id": 1}}]
        self.read = Read("m2", 14, 20.0, 21.0, [1, 3], [1, 3])
        self.history.begin(self.read)

    def add(self, number: int, kind: str, key: int, concern: str, *, outcome: str = "ok", time: int = 0) -> None:
        self.history.begin(Write(number, kind, key, concern, "m1", number, number + 0.5, outcome, time))

    def write(self, number: int) -> Write:
        return self.history.writes[number - 1]

    def everywhere(self, change: Callable[[list[Document]], object]) -> None:
        for held in self.documents.values():
            change(held)

    def shows(self, *keys: int) -> None:
        self.read.found, self.read.keys = list(keys), list(keys)

    def no_reads(self) -> None:
        self.history.reads.clear()

    def had(self, what: Absence | Attack | Breach | Loss) -> None:
        self.history.begin(what)

    def judged(self) -> list[str]:
        return check_history(self.history, End(self.documents, RolledBack.of(self.rolled_back), self.oplogs))


def lost_majority_write(run: Run) -> None:
    run.write(3).concern = "majority"
    run.everywhere(lambda held: held.pop(1))
    run.shows(1)
    run.rolled_back.append({"op": "u", "o": {"$v": 2, "diff": {"snumbers": {"a": True, "u0": 3}}}})


def refused_delete_applied(run: Run) -> None:
    run.write(8).outcome = "refused"
    run.everywhere(lambda held: held.pop(0))
    run.no_reads()


def misses_a_write(run: Run) -> None:
    run.shows(3)
    run.write(8).began = 30.0


LOST = "neither in the set nor in a rollback file: Write(number=4"
LOST_BY_MAJORITY = "acknowledged by a majority, and lost: Write(number="
SPOILED: list[tuple[str, Callable[[Run], object]]] = [
    (f"{LOST_BY_MAJORITY}3", lost_majority_write),
    (f"{LOST_BY_MAJORITY}3", lambda run: (lost_majority_write(run), run.had(Loss("m1", 9.0, "empty")))),
    (f"{LOST_BY_MAJORITY}5", lambda run: (run.everywhere(lambda held: held.insert(1, document(2))), run.no_reads())),
    (f"{LOST_BY_MAJORITY}1", refused_delete_applied),
    (LOST, lambda run: run.rolled_back.pop(0)),
    (LOST, lambda run: (run.rolled_back.pop(0), run.had(Loss("m2", 9.0, "empty")))),  # another disk was lost
    (LOST, lambda run: (run.rolled_back.pop(0), run.had(Loss("m1", 3.5, "empty")))),  # it was lost before
    ("neither in the set nor in a rollback file: Write(number=8", lambda run: run.rolled_back.pop(1)),
    ("refused, and yet applied: Write(number=7", lambda run: run.everywhere(lambda held: held.append(document(7)))),
    ("m1 applied a write twice: [3]", lambda run: run.everywhere(lambda held: held[1]["numbers"].append(3))),
    ("m1 and m3 are not the same at the end: _id 3", lambda run: run.documents["m3"][1].update(numbers=[])),
    ("m1 and m2 are not the same at the end: _id 3", lambda run: run.documents["m2"].pop()),
    ("a majority read showed writes [4], which did not stay", lambda run: setattr(run.read, "found", [1, 3, 4])),
    ("a majority read misses Write(number=1", misses_a_write),
    ("a majority read shows what was deleted by Write(number=5", lambda run: run.shows(1, 2, 3)),
    (
        "m1 holds writes [-1], which no client of ours made",
        lambda run: run.everywhere(lambda h: h.append(document(-1))),
    ),
    (
        "acknowledged by two members while m1 ran alone: Write(number=1,",
        lambda run: (run.had(Absence("m2", 0.0, 3.0)), run.had(Absence("m3", 0.5, 2.0))),
    ),
    (
        "2 elections, at most 1 expected: Attack(what='a stranger'",
        lambda run: run.had(Attack("a stranger", 1.0, (4, 6), most_terms=1)),
    ),
    (
        "another client waited for 0.8 s of the member's CPU: Attack(what='a flood'",
        lambda run: run.had(Attack("a flood", 1.0, (4, 4), waited_s=0.8)),
    ),
    (
        "the member took 769 MB: Attack(what='a flood'",
        lambda run: run.had(Attack("a flood", 1.0, (4, 4), memory_mb=769)),
    ),
    ("m1 does not answer", lambda run: run.had(Breach(1.0, "m1 does not answer"))),
    (
        "m2 holds a damaged entry at",
        lambda run: run.oplogs["m2"].append(run.oplogs["m2"].pop()._replace(entry=b"rotten")),
    ),
    ("the oplog of m2 does not continue at", lambda run: run.oplogs["m2"].pop(1)),
    ("m1 and m3 hold different entries at", lambda run: run.oplogs.update(m3=oplog(b"one", b"deux", b"three"))),
]


@pytest.mark.parametrize(("reported", "spoil"), SPOILED)
def test_each_broken_promise_is_found(reported: str, spoil: Callable[[Run], object]) -> None:
    run = Run()
    spoil(run)
    assert any(reported in line for line in run.judged()), run.judged()


def test_what_breaks_no_promise() -> None:
    lost = Run()
    lost.rolled_back.pop(0)
    lost.had(Loss("m1", 9.0, "empty"))  # what only one member had may be lost with its disk
    absent = Run()
    absent.had(Absence("m2", 0.0, 3.0))
    absent.had(Absence("m3", 1.2, 2.4))  # no write of a majority is wholly within both
    stalled = Run()
    stalled.had(Attack("a stranger", 1.0, (4, 6), most_terms=1, stalled_s=0.6))  # a stalled machine elects too
    assert [run.judged() for run in (Run(), lost, absent, stalled)] == [[], [], [], []]


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
    how: dict[str, Any] = {"own_disks": False, "base_port": ports[0], "names": names}
    result = run(tmp_path, seconds=0, at_least=6, seed=7, on_line=reported.append, **how)
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
