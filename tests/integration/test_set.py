"""A real set: failover, initial sync under writes, restarts. Processes, sockets, disks."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from replset.bson import decode
from replset.cli.local_set import LocalMember
from replset.replication.rollback_manifest import FileKind, list_manifests
from tests.integration.conftest import MakeSet, next_ports
from tests.integration.forked import run_program
from tests.integration.talk import (
    all_counted,
    ids,
    insert,
    run,
    same_everywhere,
    status,
)

pytestmark = pytest.mark.slow


def documents_in(path: Path) -> list[dict[str, object]]:
    """All documents of a BSON file."""
    data, found = path.read_bytes(), []
    while data:
        size = int.from_bytes(data[:4], "little")
        found.append(decode(data[:size]))
        data = data[size:]
    return found


def lost_entries(member: LocalMember) -> list[dict[str, object]]:
    """The oplog entries in the oplog files of all finished rollbacks of a member."""
    found: list[dict[str, object]] = []
    for manifest in list_manifests(member.dbpath):
        if manifest.state.value in ("finished", "exported"):
            for file in manifest.files:
                if file.kind is FileKind.OPLOG:
                    found += documents_in(member.dbpath / "rollback" / file.name)
    return found


def test_a_majority_write_survives_kill_minus_nine_of_the_primary(make_set: MakeSet) -> None:
    local = make_set()
    old = local.wait_for_primary()
    insert(old, *range(100))
    local.kill(old)
    new = local.wait_for_primary()
    assert new is not old
    assert ids(new) == list(range(100))
    insert(new, *range(100, 110))
    local.start(old)
    all_counted(local)
    assert len(same_everywhere(local)) == 110


def test_initial_sync_of_an_empty_member_while_writes_go_on(make_set: MakeSet) -> None:
    local = make_set()
    primary = local.wait_for_primary()
    insert(primary, *range(2_000))
    stop, written = threading.Event(), list[int]()

    def keep_writing() -> None:
        number = 10_000
        while not stop.is_set():
            insert(primary, number)
            written.append(number)
            number += 1

    writer = threading.Thread(target=keep_writing)
    writer.start()
    try:
        member = local.add(next_ports(1)[0], flags=["--enable-test-commands"])
        run(primary, {"replSetAddMember": {"host": member.host}}, "admin")
        all_counted(local)
    finally:
        stop.set()
        writer.join()
    assert written
    assert len(same_everywhere(local)) == 2_000 + len(written)


def test_a_whole_set_is_stopped_and_started_again(make_set: MakeSet) -> None:
    local = make_set()
    insert(local.wait_for_primary(), *range(50))
    term = status(local.wait_for_primary())["term"]
    local.stop_all()
    for member in local.members:
        local.start(member)
    primary = local.wait_for_primary()
    assert status(primary)["term"] > term
    insert(primary, 50)
    assert len(same_everywhere(local)) == 51


def test_a_whole_set_survives_kill_minus_nine_of_all(make_set: MakeSet) -> None:
    local = make_set()
    insert(local.wait_for_primary(), *range(50))
    for member in local.members:
        local.kill(member)
    for member in local.members:
        local.start(member)
    primary = local.wait_for_primary()
    insert(primary, 50)
    assert len(same_everywhere(local)) == 51


def test_sigterm_hands_the_primary_over(make_set: MakeSet) -> None:
    local = make_set(electionTimeoutMillis=20_000)  # nobody would stand so soon by itself
    old = local.wait_for_primary()
    insert(old, 1, w=1)
    local.stop(old)
    new = local.wait_for_primary(within_s=10)
    assert ids(new) == [1]


def test_a_second_process_on_the_same_dbpath_is_refused(make_set: MakeSet) -> None:
    local = make_set(members=1)
    member = local.members[0]
    port = next_ports(1)[0]
    done = run_program("replset.cli.main", "start", "--replSet", "rs0", "--dbpath", member.dbpath, "--port", port)
    assert done.returncode == 2
    assert str(member.dbpath) in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    insert(member, 1)


def test_an_arbiter_votes_holds_nothing_and_refuses_reads(make_set: MakeSet) -> None:
    local = make_set(members=2)
    primary = local.wait_for_primary()
    insert(primary, 1)
    arbiter = local.add(next_ports(1)[0], flags=["--enable-test-commands"], arbiter=True)
    reply = run(primary, {"replSetAddMember": {"host": arbiter.host, "arbiterOnly": True}}, "admin")
    assert "majority" in reply["info"], "the default write concern is stored in the same step, and said"
    all_counted(local)
    default = run(primary, {"getDefaultRWConcern": 1}, "admin")
    assert default["defaultWriteConcern"]["w"] == "majority"
    refused = arbiter.command({"find": "orders", "$readPreference": {"mode": "nearest"}}, "shop")
    assert refused["code"] in (13435, 13436)
    secondary = next(member for member in local.members if member not in (primary, arbiter))
    local.kill(primary)
    assert local.wait_for_primary() is secondary, "one data-bearing member and the arbiter's vote are a majority"


def test_a_member_whose_disk_was_emptied_is_not_counted_before_it_caught_up(make_set: MakeSet) -> None:
    local = make_set()
    primary = local.wait_for_primary()
    insert(primary, *range(100))
    victim = next(member for member in local.members if member is not primary)
    local.kill(victim)
    for path in sorted(victim.dbpath.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    local.start(victim)
    all_counted(local)
    assert len(same_everywhere(local)) == 100
    config = run(primary, {"replSetGetConfig": 1}, "admin")["config"]
    assert config["version"] > 1, "the primary took the vote away and gave it back"


def test_offline_tools_read_the_files(make_set: MakeSet) -> None:
    local = make_set(members=1)
    member = local.members[0]
    insert(member, 1, 2, 3)
    live = run_program("replset.cli.main", "oplog", "tail", "--json", member.dbpath)
    assert live.returncode == 0, live.stderr
    inserted = [json.loads(line)["o"]["_id"] for line in live.stdout.splitlines() if '"op":"i"' in line]
    assert inserted[-3:] == [1, 2, 3]
    local.stop(member)
    info = run_program("replset.cli.main", "oplog", "info", "--json", member.dbpath)
    assert info.returncode == 0, info.stderr
    assert json.loads(info.stdout)["entries"] >= 5
