"""Backups of members that are written to all the time; and with real processes an archive, whose writer is killed."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from replset.bson import Timestamp, decode
from replset.cli.backup import receive_backup
from replset.client import HttpClient, WireClient
from replset.features.archive.archive import Archive
from replset.features.archive.segments import Position
from replset.features.backup.backup_folder import NewSet, restore_backup
from replset.ids import OPTIME_NULL, HostPort, OpTime
from replset.local_set import LocalMember, wait_until
from replset.long_work import LongWork
from replset.storage.disk import RealDisk
from replset.storage.store import Store, StoreOptions
from tests.integration.conftest import next_ports, start_set
from tests.integration.forked import ForkedSet, run_program, running_set
from tests.integration.talk import a_secondary, all_counted, insert, run, status


def test_a_backup_under_writes_is_one_moment_and_holds_all_that_was_acknowledged(
    local: ForkedSet, tmp_path: Path
) -> None:
    """Each order is followed by its bill, so at any moment there are as many bills as orders, or one less."""
    primary, secondary = local.wait_for_primary(), a_secondary(local)
    with writing(primary) as acknowledged:
        for number, member in enumerate((primary, secondary, secondary)):
            wait_until(lambda least=20 * number + 20: len(acknowledged) >= least, 30, "orders to be written")
            before = len(acknowledged)
            folder = tmp_path / f"backup{number}"
            with HttpClient(member.http).stream("/v1/replset/backup", {}) as answer:
                receive_backup(answer, folder, LongWork("replset"))
            new_set = NewSet("other", HostPort("m:1"))
            restore_backup(RealDisk(), str(folder), str(folder / "data"), new_set, lambda _size: None)
            orders, bills = (ids_in(folder / "data", ns) for ns in ("shop.orders", "shop.bills"))
            assert orders == list(range(len(orders)))
            assert bills == list(range(len(bills)))
            assert len(bills) in (len(orders), len(orders) - 1)
            if member is primary:
                assert len(bills) >= before
    assert [os.listdir(member.dbpath / "snapshots") for member in (primary, secondary)] == [[], []]


@contextmanager
def writing(primary: LocalMember) -> Iterator[list[int]]:
    """Insert order after order, each with its bill, and list those that are acknowledged."""
    acknowledged: list[int] = []
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            number = len(acknowledged)
            insert(primary, number, w=1)
            run(primary, {"insert": "bills", "documents": [{"_id": number, "pad": "x" * 5_000}]})
            acknowledged.append(number)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield acknowledged
    finally:
        stop.set()
        thread.join()


def ids_in(dbpath: Path, ns: str) -> list[Any]:
    with closing(Store.open(RealDisk(), dbpath, StoreOptions(min_free_bytes=0))) as store, store.read() as snapshot:
        coll = store.collection(ns)
        return [] if coll is None else [decode(document)["_id"] for _, document in snapshot.scan(coll)]


# --- an archive ---------------------------------------------------------------------------------------------------


def replset(*arguments: object, status: int = 0) -> str:
    done = run_program("replset.cli.main", *arguments)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout if status == 0 else done.stderr


def optime_of(document: dict[str, Any]) -> OpTime:
    return OpTime(document["t"], document["ts"].time << 31 | document["ts"].inc)


def newest(member: LocalMember) -> OpTime:
    return optime_of(status(member)["optimes"]["appliedOpTime"])


def oldest(member: LocalMember) -> OpTime:
    return optime_of(run(member, {"find": "oplog.rs", "limit": 1}, "local")["cursor"]["firstBatch"][0])


def first(address: Path) -> OpTime:
    archive = Archive.open(str(address))
    return OpTime.parse(archive.segment(archive.names()[0]).first)


def record(member: LocalMember) -> dict[str, Any]:
    batch = run(member, {"find": "archive", "$readPreference": {"mode": "nearest"}}, "config")["cursor"]["firstBatch"]
    return dict(batch[0]) if batch else {}


def wait_archived(member: LocalMember, at: OpTime) -> None:
    def is_archived() -> bool:
        through = record(member).get("through")
        return through is not None and optime_of(through) >= at

    wait_until(is_archived, 60, f"{at} to be archived")


def padded(member: LocalMember, *numbers: int) -> None:
    documents = [{"_id": number, "pad": "x" * 500} for number in numbers]
    run(member, {"insert": "padded", "documents": documents, "writeConcern": {"w": "majority"}})


@pytest.mark.in_turns
def test_the_archive_survives_its_writers_and_gives_back_a_moment(tmp_path: Path) -> None:
    address, backup = tmp_path / "archive", tmp_path / "backup"
    flags = ["--archive", str(address), "--archive-secs", "0.5", "--oplog-size-mb", "0.1", "--oplog-lagging-mb", "50"]
    with running_set(tmp_path / "set") as local:
        start_set(local, flags=flags)
        primary = local.wait_for_primary()
        insert(primary, *range(50))
        replset("backup", backup, "--host", local.members[1].host)
        padded(primary, *range(300))
        wait_archived(primary, newest(primary))

        holder = next(member for member in local.members if member.host == record(primary)["holder"])
        local.kill(holder)
        primary = local.wait_for_primary()
        padded(primary, *range(300, 500))
        run(primary, {"delete": "orders", "deletes": [{"q": {"_id": {"$lt": 20}}, "limit": 0}]})
        moment = newest(primary)
        expected = run(primary, {"dbHash": 1})["md5"]
        insert(primary, *range(1000, 1020))
        local.start(holder)
        all_counted(local)
        wait_archived(primary, moment)
        wait_until(lambda: oldest(primary) > first(address), 60, "the oplog to be trimmed")

        assert inserted(primary, "padded", first(address)) == list(range(500)), "a stream reads on from the archive"
        assert not any("error" in status(member).get("archive", {}) for member in local.members)
        assert json.loads(replset("archive", "check", address, "--json"))["faults"] == []
        assert json.loads(replset("archive", "verify", address, "--json"))["broken"] is None
        rows = [row for page in Archive.open(str(address)).pages(Position(OPTIME_NULL, 0)) for row in page]
        assert len({row.ts for row in rows}) == len(rows), "each entry is read one time"

        new_set = ("--new-set", f"127.0.0.1:{next_ports(1)[0]}", "--archive", address)
        said = replset("restore", backup, tmp_path / "restored", *new_set, "--at", str(moment))
        assert (f"up to {moment}" in said, f"shop {expected}" in said) == (True, True), said
        assert [path for path in (tmp_path / "restored").rglob("*") if path.stat().st_mode & 0o077] == []
        late = replset("restore", backup, tmp_path / "late", *new_set, "--at", "2050-01-01T00:00:00Z", status=2)
        assert ("does not reach" in late, (tmp_path / "late").exists()) == (True, False), late

        assert " 0 gaps" in replset("archive", "list", address)
        assert "segments removed" in replset("archive", "remove", address, "--before", str(moment))
        assert f"nothing before {first(address)}: it was removed" in replset("archive", "list", address)


def inserted(member: LocalMember, collection: str, since: OpTime) -> list[object]:
    """The `_id`s that a change stream tells of, from a moment that the member's oplog has trimmed."""
    assert oldest(member) > since
    stage = {"$changeStream": {"startAtOperationTime": Timestamp(since.seconds, since.increment)}}
    command = {"aggregate": collection, "pipeline": [stage], "cursor": {"batchSize": 0}}
    found: list[object] = []
    with WireClient(member.host, timeout_s=60) as client:  # the cursor ends with its connection
        cursor: Any = client.command("shop", command)["cursor"]
        more: dict[str, object] = {"getMore": cursor["id"], "collection": collection, "maxTimeMS": 500}
        reply: Any = client.command("shop", more)
        while reply["cursor"]["nextBatch"]:
            found += [event["documentKey"]["_id"] for event in reply["cursor"]["nextBatch"]]
            reply = client.command("shop", more)
    return found
