"""A real set whose cut-off primary wrote on alone: both engines name what a rollback will take, and what it took."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from replset.bson import RawDocument, to_ejson_value
from replset.cli.local_set import LocalMember, LocalSet, wait_until
from replset.replication.rollback_manifest import FileKind, Manifest, RollbackState, list_manifests
from replset.storage.file_names import DATABASE_FILE
from spark.cli import main
from spark.command_run import CommandRun
from spark.reports.replay.base import bson_documents
from tests.integration.conftest import FAST, next_ports
from tests.integration.forked import running_set
from tests.integration.talk import all_counted, cut, heal, insert, run, same_everywhere, state
from tests.spark.background import in_background
from tools.demo import copy_database

WITHIN_S = 60
WRITTEN_ALONE = [("i", 666), ("u", 1), ("d", 2)]
BEFORE, AFTER = {"_id": 1, "n": 1}, {"_id": 1, "n": 1, "lost": True}
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


@in_background
def parted(folder: Path) -> Iterator[Parted]:
    with running_set(folder) as local:
        for port in next_ports(3):
            local.add(port, flags=["--enable-test-commands"])
        local.initiate({**FAST, "electionTimeoutMillis": 5000})  # what is left to a primary that was cut off
        local.wait_for_primary()
        all_counted(local)
        yield cut_off(local)


def cut_off(local: LocalSet) -> Parted:
    old = local.wait_for_primary()
    rest = [member for member in local.members if member is not old]
    insert(old, *range(1, 6))
    cut(old, rest)
    insert(old, 666, w=1)
    write_alone(old, update="orders", updates=[{"q": {"_id": 1}, "u": {"$set": {"lost": True}}}])
    write_alone(old, delete="orders", deletes=[{"q": {"_id": 2}, "limit": 1}])
    insert(local.wait_for_primary(among=rest), 777)
    wait_until(lambda: state(old) == "SECONDARY", WITHIN_S, "the cut-off primary to step down")
    return Parted(local, old, rest)


def test_the_writes_that_a_rollback_takes_are_named_before_it_and_behind_it(parted: Parted, diff: Diff) -> None:
    local, old, rest = parted.local, parted.old, parted.rest
    beside = [f"{rest[0].name}={rest[0].http}", f"{rest[1].name}={rest[1].dbpath}"]
    named, *again = [diff(engine, 1, f"cut={old.http}", *beside) for engine in ("spark", "local")]
    candidates = losing_branch(named)
    assert [losing_branch(document) for document in again] == [candidates]
    assert [(row["op"], row["_id"]) for row in candidates if row["ns"] == "shop.orders"] == WRITTEN_ALONE
    copy = copy_database(old.dbpath / DATABASE_FILE, local.folder / "copy" / DATABASE_FILE)

    heal(old)
    (manifest,) = wait_until(lambda: finished(old), WITHIN_S, "the rollback to be finished")
    wait_until(lambda: state(old) == "SECONDARY", WITHIN_S, "the old primary to be SECONDARY again")
    assert [row["_id"] for row in same_everywhere(local)] == [1, 2, 3, 4, 5, 777]
    (taken,) = (file.name for file in manifest.files if file.kind is FileKind.OPLOG)
    with (old.dbpath / "rollback" / taken).open("rb") as file:
        entries = [to_ejson_value(RawDocument(entry).decode()) for entry in bson_documents(file, None)]
    assert [row["versions"][0]["entry"] for row in candidates] == entries

    live = [f"old={old.dbpath}", *beside]
    for engine in ("spark", "local"):
        wait_until(lambda by=engine: diff(by, None, *live)["same"], WITHIN_S, f"{engine} to find the members the same")
    running = [str(member.dbpath) for member in local.members]
    held = diff("local", None, "--bytes", "--documents", *running)["documentsAt"]
    assert (held["differing"], held["collections"]) == (0, [])
    local.stop_all()
    files = [f"{member.name}={member.dbpath}" for member in local.members]
    told, *again = [diff(engine, 1, f"cut={copy}", *files) for engine in ("spark", "local")]
    assert again == [told]
    held = diff("local", 1, "--documents", f"cut={copy}", *files)["documentsAt"]
    assert held["optime"] == str(manifest.common_point), "all are taken back to where their histories parted"
    assert (held["differing"], held["collections"]) == (0, [])
    lost = losing_branch(told)
    assert [row["versions"][0]["entry"] for row in lost] == entries
    assert {pair["common"] for pair in told["pairs"] if pair["a"] == "cut"} == {str(manifest.common_point)}
    assert {row["rollback"] for row in lost} == {f"{old.name}/{manifest.id}"}
    shown = {row["_id"]: (row["before"], row["after"]) for row in lost if row["ns"] == "shop.orders"}
    assert shown == {666: (None, {"_id": 666, "n": 666}), 1: (BEFORE, AFTER), 2: (None, None)}


def losing_branch(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The samples that are candidates, which must be all of them, and on the cut-off member alone."""
    rows = [row for row in document["samples"] if row["kind"] == "rolled-back"]
    assert len(rows) == document["differing"]["rolledBack"]
    assert document["differing"]["divergent"] == document["differing"]["duplicated"] == 0
    assert all(row["present"] == ["cut"] and "cut" not in row["absent"] for row in rows)
    return rows


def finished(member: LocalMember) -> list[Manifest]:
    return [manifest for manifest in list_manifests(member.dbpath) if manifest.state is RollbackState.FINISHED]


def write_alone(member: LocalMember, **command: object) -> None:
    assert run(member, {**command, "writeConcern": {"w": 1}})["n"] == 1
