"""A real set whose cut-off primary wrote on alone: both engines name what a rollback will take, and what it took.

docs/spark.md shows this set: its commands are run word for word.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from replset.bson import RawDocument
from replset.ejson import to_ejson_value
from replset.local_set import LocalMember, LocalSet, wait_until
from replset.replication.rollback_manifest import FileKind, Manifest, RollbackState, list_manifests
from replset.storage import DATABASE_FILE
from spark.cli import main
from spark.command_run import CommandRun
from spark.reports.replay.base import bson_documents
from tests.integration.conftest import FAST, leads_at_once, next_ports
from tests.integration.forked import running_set
from tests.integration.page import DOCS, Shell, differences, without_figures
from tests.integration.talk import all_counted, cut, heal, run, same_everywhere, state
from tests.spark.background import in_background
from tools.demo import copy_database

WITHIN_S = 60
WRITTEN_ALONE = [("u", 1), ("i", 666), ("d", 2)]
SALE = {"q": {"_id": "tea"}, "u": {"$inc": {"sold": 1}}, "upsert": True}
Diff = Callable[..., dict[str, Any]]


@pytest.fixture
def diff(spark: SparkSession, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Diff:
    """The command itself: diff(engine, status, MEMBER...) gives what it prints. status None: 0 or 1, as it says."""
    monkeypatch.setattr(CommandRun, "close", lambda run: None)  # the session is everybody's

    def by(engine: str, status: int | None, *members: str) -> dict[str, Any]:
        ended = main(["diff", "--engine", engine, "--json", "--samples", "50", *members])
        said = capsys.readouterr()
        assert ended in (0, 1), said.err
        found: dict[str, Any] = json.loads(said.out)
        assert found.pop("engine") == engine
        assert ended == (0 if found["same"] else 1)
        assert status in (None, ended)
        return found

    return by


@dataclass(frozen=True)
class Parted:
    """A set whose primary was cut off, wrote on alone and stepped down; the others have one of their own."""

    local: LocalSet
    old: LocalMember
    rest: list[LocalMember]

    @property
    def copy(self) -> Path:
        """A dbpath with the old primary's file from before its rollback; `roll_back` makes it."""
        return self.local.folder.parent / "copy-of-m1"


@in_background
def parted(folder: Path) -> Iterator[Parted]:
    with running_set(folder / "replset-data") as local:
        for port in next_ports(3):
            local.add(port, flags=["--enable-test-commands", "--snapshot-history-secs", "3600"])
        local.initiate({**FAST, "electionTimeoutMillis": 5000})  # what is left to a primary that was cut off
        wait_until(lambda: leads_at_once(local.members[0]), WITHIN_S, "m1 to be elected")
        all_counted(local)
        yield cut_off(local)


def cut_off(local: LocalSet) -> Parted:
    old, *rest = local.members
    write(old, insert="orders", documents=[order(number) for number in range(1, 6)])
    write(old, update="stock", updates=[SALE] * 20)
    cut(old, rest)
    write(old, w=1, update="orders", updates=[{"q": {"_id": 1}, "u": {"$set": {"qty": 99}}}])
    write(old, w=1, insert="orders", documents=[order(666)])
    write(old, w=1, delete="orders", deletes=[{"q": {"_id": 2}, "limit": 1}])
    wait_until(lambda: leads_at_once(rest[0]), WITHIN_S, "m2 to be elected")
    write(rest[0], insert="orders", documents=[order(777)])
    write(rest[0], update="stock", updates=[SALE] * 5)
    wait_until(lambda: state(old) == "SECONDARY", WITHIN_S, "the cut-off primary to step down")
    return Parted(local, old, rest)


def order(number: int) -> dict[str, object]:
    return {"_id": number, "item": "tea" if number % 2 else "coffee", "qty": number}


def write(member: LocalMember, w: object = "majority", database: str = "shop", **command: object) -> None:
    reply = run(member, {**command, "writeConcern": {"w": w, "wtimeout": 20_000}}, database)
    assert not reply.keys() & {"writeErrors", "writeConcernError"}, reply


def roll_back(parted: Parted) -> Manifest:
    """Let the old primary roll back, unless it has. Its file of before is in a folder beside the set's."""
    old, copy = parted.old, parted.copy / DATABASE_FILE
    if not copy.exists():
        copy_database(old.dbpath / DATABASE_FILE, copy)
        heal(old)
    (manifest,) = wait_until(lambda: finished(old), WITHIN_S, "the rollback to be finished")
    wait_until(lambda: state(old) == "SECONDARY", WITHIN_S, "the old primary to be SECONDARY again")
    return manifest


def undone(old: LocalMember, manifest: Manifest) -> list[Any]:
    """The entries in the rollback's file."""
    (taken,) = (file.name for file in manifest.files if file.kind is FileKind.OPLOG)
    with (old.dbpath / "rollback" / taken).open("rb") as file:
        return [to_ejson_value(RawDocument(entry).decode()) for entry in bson_documents(file, None)]


def test_the_writes_that_a_rollback_takes_are_named_before_it(parted: Parted, diff: Diff) -> None:
    local, old, rest = parted.local, parted.old, parted.rest
    beside = [f"{rest[0].name}={rest[0].http}", f"{rest[1].name}={rest[1].dbpath}"]
    named, *again = [diff(engine, 1, f"cut={old.http}", *beside) for engine in ("spark", "local")]
    candidates = losing_branch(named)
    assert [losing_branch(document) for document in again] == [candidates]
    assert [(row["op"], row["_id"]) for row in candidates if row["ns"] == "shop.orders"] == WRITTEN_ALONE

    manifest = roll_back(parted)
    assert [row["_id"] for row in same_everywhere(local)] == [1, 2, 3, 4, 5, 777]
    assert [row["versions"][0]["entry"] for row in candidates] == undone(old, manifest)
    live = [f"old={old.dbpath}", *beside]
    for engine in ("spark", "local"):
        wait_until(lambda by=engine: diff(by, None, *live)["same"], WITHIN_S, f"{engine} to find the members the same")
    running = [str(member.dbpath) for member in local.members]
    held = diff("local", None, "--bytes", "--documents", *running)["documentsAt"]
    assert (held["differing"], held["collections"]) == (0, [])


@pytest.mark.in_turns
def test_the_page_is_true(parted: Parted, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """All its commands, and its first three blocks of Python; test_consumer_stream.py reads what the fourth does."""
    monkeypatch.setattr(CommandRun, "close", lambda run: None)
    shell = InProcess(parted, str(roll_back(parted).common_point))
    names: dict[str, Any] = {"__name__": "__main__"}
    blocks = re.findall(r"^```python\n(.*?)^```$", (DOCS / "spark.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    with redirect_stdout(io.StringIO()) as out:
        for block in blocks[:3]:
            exec(shell.here(block).replace("from replset.spark", "from spark"), names)  # in the checkout (setup.py)
    found = {tuple(re.findall(r"[^|\s]+", line)) for line in out.getvalue().splitlines()}
    assert {("u", "shop.stock", "24"), ("coffee", "2")} <= found, out.getvalue()
    assert names["stream"].isStreaming
    wrong = differences("spark.md", shell, without_figures)
    assert wrong == [], "\n".join(wrong)


@pytest.mark.in_turns
def test_members_are_read_by_their_addresses_alone(
    parted: Parted, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of a mongod are: `elections`, `lag`, `replay` and `tail` over the wire find what the dbpaths have."""
    monkeypatch.setattr(CommandRun, "close", lambda run: None)
    shell = InProcess(parted, str(roll_back(parted).common_point))
    by_address = " ".join(f"mongodb://{member.host}" for member in parted.rest)
    by_file = " ".join(f"replset-data/{member.name}" for member in parted.rest)

    def told(command: str, members: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(shell.run(f"oplog-spark {command} --json {members}"))
        return found

    terms = [[row["term"] for row in told("elections", members)["terms"]] for members in (by_address, by_file)]
    assert terms[0] == terms[1] != []
    behind = {row["member"] for row in told("lag", by_address)["series"] if row["source"] == "walls"}
    assert len(behind) == 2
    one = parted.rest[0]
    replayed = [
        shell.run(f"oplog-spark replay --ns shop.orders --base empty {member}").splitlines()
        for member in (f"mongodb://{one.host}", f"replset-data/{one.name}")
    ]
    assert replayed[0] == replayed[1]
    assert len(replayed[0]) >= 6
    printed = shell.run(f"oplog-spark tail {by_address}")
    assert printed.count("shop.stock") >= 4


def test_the_writes_that_a_rollback_took_are_named_behind_it(parted: Parted, diff: Diff) -> None:
    local, old, manifest = parted.local, parted.old, roll_back(parted)
    same_everywhere(local)
    local.stop_all()
    files = [f"{member.name}={member.dbpath}" for member in local.members]
    told, *again = [diff(engine, 1, f"cut={parted.copy}", *files) for engine in ("spark", "local")]
    assert again == [told]
    held = diff("local", 1, "--documents", f"cut={parted.copy}", *files)["documentsAt"]
    assert held["optime"] == str(manifest.common_point), "all are taken back to where their histories parted"
    assert (held["differing"], held["collections"]) == (0, [])
    lost = losing_branch(told)
    assert [row["versions"][0]["entry"] for row in lost] == undone(old, manifest)
    assert {pair["common"] for pair in told["pairs"] if pair["a"] == "cut"} == {str(manifest.common_point)}
    assert {row["rollback"] for row in lost} == {f"{old.name}/{manifest.id}"}
    shown = {row["_id"]: (row["before"], row["after"]) for row in lost if row["ns"] == "shop.orders"}
    assert shown == {666: (None, order(666)), 1: (order(1), {**order(1), "qty": 99}), 2: (None, None)}


def losing_branch(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The samples that are candidates, which must be all of them, and on the cut-off member alone."""
    rows = [row for row in document["samples"] if row["kind"] == "rolled-back"]
    assert len(rows) == document["differing"]["rolledBack"]
    assert document["differing"]["divergent"] == document["differing"]["duplicated"] == 0
    assert all(row["present"] == ["cut"] and "cut" not in row["absent"] for row in rows)
    return rows


def finished(member: LocalMember) -> list[Manifest]:
    return [manifest for manifest in list_manifests(member.dbpath) if manifest.state is RollbackState.FINISHED]


class InProcess(Shell):
    """Runs `oplog-spark` with the Spark session of this process, on the set that the page shows."""

    def __init__(self, parted: Parted, common_point: str) -> None:
        super().__init__(parted.local.folder.parent, [member.port for member in parted.local.members], {})
        self._primary, self._common_point = parted.rest[0], common_point

    def here(self, text: str) -> str:
        found = re.sub(r"\b(replset-data|copy-of-m1|exported)\b", rf"{self.folder}/\1", super().here(text))
        return re.sub(r"(?<=--at )\S+", self._common_point, found)

    def as_on_the_page(self, text: str) -> str:
        return super().as_on_the_page(text).replace(f"{self.folder}/", "")

    def run(self, command: str) -> str:
        # All members have the same entries now, and an idle primary writes the next one in ten seconds.
        write(self._primary, 3, "admin", appendOplogNote=1, data={"page": "spark.md"})
        program, *words = shlex.split(self.here(command))
        assert program == "oplog-spark"
        with redirect_stdout(io.StringIO()) as out, ThreadPoolExecutor(1) as threads:
            ended = threading.Event()
            beside = threads.submit(self._sell, out, ended) if words[0] == "tail" else None
            try:
                main(words)
            finally:
                ended.set()
            if beside is not None:
                beside.result()
        return self.as_on_the_page(out.getvalue())

    def _sell(self, out: io.StringIO, ended: threading.Event) -> None:
        """Write until two seconds of both members are printed; then press Ctrl-C."""
        until = time.monotonic() + WITHIN_S
        for number in itertools.count(1000, 2):
            if ended.wait(0.05) or out.getvalue().count("shop.stock") >= 4 or time.monotonic() > until:
                break
            write(self._primary, insert="orders", documents=[order(number), order(number + 1)])
            write(self._primary, update="stock", updates=[SALE])
        if not ended.is_set():
            os.kill(os.getpid(), signal.SIGINT)
