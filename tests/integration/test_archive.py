"""The archive with real processes: its writer is killed, what the oplog gave up is read, a moment is restored."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from replset.archive.archive import Archive
from replset.archive.segments import Position
from replset.bson import Timestamp
from replset.cli.local_set import LocalMember, LocalSet, wait_until
from replset.client import WireClient
from replset.ids import OPTIME_NULL, OpTime
from tests.integration.conftest import FAST, leads_at_once, next_ports
from tests.integration.forked import run_program, running_set
from tests.integration.talk import all_counted, insert, run, status


def program(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run_program("replset.cli.main", *arguments)


def record(member: LocalMember) -> dict[str, Any]:
    batch = run(member, {"find": "archive", "$readPreference": {"mode": "nearest"}}, "config")["cursor"]["firstBatch"]
    return dict(batch[0]) if batch else {}


def archived_through(member: LocalMember) -> OpTime:
    through = record(member).get("through")
    return OPTIME_NULL if through is None else OpTime(through["t"], through["ts"].time << 31 | through["ts"].inc)


def newest(member: LocalMember) -> OpTime:
    optime = status(member)["optimes"]["appliedOpTime"]
    return OpTime(optime["t"], optime["ts"].time << 31 | optime["ts"].inc)


def wait_archived(local: LocalSet, at: OpTime) -> None:
    member = local.wait_for_primary()
    wait_until(lambda: archived_through(member) >= at, 60, f"{at} to be archived")


def padded(member: LocalMember, *numbers: int) -> None:
    documents = [{"_id": number, "pad": "x" * 500} for number in numbers]
    run(member, {"insert": "padded", "documents": documents, "writeConcern": {"w": "majority"}})


def test_the_archive_survives_its_writers_and_gives_back_a_moment(tmp_path: Path) -> None:
    address = tmp_path / "archive"
    flags = ["--enable-test-commands", "--archive", str(address), "--archive-secs", "0.5"]
    flags += ["--oplog-size-mb", "0.1", "--oplog-lagging-mb", "50"]
    with running_set(tmp_path / "set") as local:
        for port in next_ports(3):
            local.add(port, flags=flags)
        local.initiate(FAST)
        wait_until(lambda: leads_at_once(local.members[0]), 60, "the first election")
        all_counted(local)
        primary = local.members[0]
        insert(primary, *range(50))
        backup = tmp_path / "backup"
        done = program("backup", backup, "--host", local.members[1].host)
        assert done.returncode == 0, done.stderr
        padded(primary, *range(300))
        wait_archived(local, newest(primary))

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
        wait_archived(local, moment)
        wait_until(lambda: status(primary)["optimes"]["appliedOpTime"] and oldest(primary) > first(address), 60, "trim")

        assert inserted(primary, "padded", first(address)) == list(range(500)), "a stream reads on from the archive"
        assert not any("error" in status(member).get("archive", {}) for member in local.members)

        checked = program("archive", "check", address, "--json")
        assert (checked.returncode, json.loads(checked.stdout)["faults"]) == (0, []), checked.stdout
        rows = [row for page in Archive.open(str(address)).pages(Position(OPTIME_NULL, 0)) for row in page]
        assert len({row.ts for row in rows}) == len(rows), "each entry is read one time"

        restored = tmp_path / "restored"
        new_set = ("--new-set", f"127.0.0.1:{next_ports(1)[0]}", "--archive", address)
        done = program("restore", backup, restored, *new_set, "--at", str(moment))
        assert done.returncode == 0, done.stderr
        assert f"up to {moment}" in done.stdout
        assert f"shop {expected}" in done.stdout
        refused = program("restore", backup, tmp_path / "late", *new_set, "--at", "2050-01-01T00:00:00Z")
        assert (refused.returncode, "does not reach" in refused.stderr) == (2, True), refused.stderr
        assert not (tmp_path / "late").exists()
        assert program("restore", backup, tmp_path / "x", "--archive", address, "--at", str(moment)).returncode == 2

        listed = program("archive", "list", address)
        assert " 0 gaps" in listed.stdout
        removed = program("archive", "remove", address, "--before", str(moment))
        assert removed.returncode == 0, removed.stderr
        assert "segments removed" in removed.stdout
        left = program("archive", "list", address).stdout
        assert f"nothing before {first(address)}: it was removed" in left


def inserted(member: LocalMember, collection: str, since: OpTime) -> list[object]:
    """The `_id`s that a change stream tells of, from a moment that the member's oplog has trimmed."""
    assert oldest(member) > since
    stage = {"$changeStream": {"startAtOperationTime": Timestamp(since.seconds, since.increment)}}
    command = {"aggregate": collection, "pipeline": [stage], "cursor": {"batchSize": 0}}
    found: list[object] = []
    with WireClient(member.host) as client:  # the cursor ends with its connection
        cursor: Any = client.command("shop", command)["cursor"]
        more: dict[str, object] = {"getMore": cursor["id"], "collection": collection, "maxTimeMS": 500}
        reply: Any = client.command("shop", more)
        while reply["cursor"]["nextBatch"]:
            found += [event["documentKey"]["_id"] for event in reply["cursor"]["nextBatch"]]
            reply = client.command("shop", more)
    return found


def oldest(member: LocalMember) -> OpTime:
    entry = run(member, {"find": "oplog.rs", "limit": 1}, "local")["cursor"]["firstBatch"][0]
    return OpTime(entry["t"], entry["ts"].time << 31 | entry["ts"].inc)


def first(address: Path) -> OpTime:
    archive = Archive.open(str(address))
    return OpTime.parse(archive.segment(archive.names()[0]).first)
