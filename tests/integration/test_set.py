"""A real set: failover, rejoin with rollback, initial sync under writes, restarts. Processes, sockets, disks."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from replset.bson import decode
from replset.cli.local_set import LocalMember, wait_until
from replset.replication.rollback_manifest import FileKind, list_manifests
from tests.integration.conftest import MakeSet, next_ports
from tests.integration.forked import run_program
from tests.integration.talk import (
    all_counted,
    cut,
    find,
    heal,
    ids,
    insert,
    run,
    same_everywhere,
    state,
    status,
)


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


def test_every_acknowledged_write_is_in_the_set_or_in_a_rollback_file(make_set: MakeSet) -> None:
    local = make_set()
    old = local.wait_for_primary()
    insert(old, *range(10))
    rest = [member for member in local.members if member is not old]
    cut(old, rest)
    insert(old, *range(100, 120), w=1)  # acknowledged, and nobody else has it
    run(
        old,
        {"update": "orders", "updates": [{"q": {"_id": 1}, "u": {"$set": {"lost": True}}}], "writeConcern": {"w": 1}},
    )
    run(old, {"delete": "orders", "deletes": [{"q": {"_id": 2}, "limit": 1}], "writeConcern": {"w": 1}})
    new = local.wait_for_primary(among=rest)
    insert(new, *range(200, 210))
    heal(old)
    wait_until(lambda: lost_entries(old), 40, "the rollback to be finished")
    wait_until(lambda: state(old) == "SECONDARY", 40, "the old primary to be SECONDARY")
    kept = same_everywhere(local)
    assert [row["_id"] for row in kept] == [*range(10), *range(200, 210)]
    entries = [entry for entry in lost_entries(old) if entry["op"] in ("i", "u", "d")]
    assert [entry["o"]["_id"] for entry in entries if entry["op"] == "i"] == list(range(100, 120))  # type: ignore[index]
    assert [entry["op"] for entry in entries[20:]] == ["u", "d"]
    (manifest,) = list_manifests(old.dbpath)
    files = {file.kind: file for file in manifest.files}
    written = documents_in(old.dbpath / "rollback" / files[FileKind.DOCUMENTS].name)
    assert {row["_id"] for row in written} == {*range(100, 120), 1}
    before = documents_in(old.dbpath / "rollback" / files[FileKind.BEFORE].name)
    assert before == [{"_id": 1, "n": 1}], "the deleted document is back, so it is not lost"


def test_write_concern_errors(make_set: MakeSet) -> None:
    local = make_set()
    primary = local.wait_for_primary()
    documents: dict[str, object] = {"insert": "orders", "documents": [{"_id": 1}]}
    reply = run(primary, {**documents, "writeConcern": {"w": 5}})
    assert reply["writeConcernError"]["code"] == 100
    for member in local.members:
        if member is not primary:
            local.kill(member)
    reply = run(primary, {"insert": "orders", "documents": [{"_id": 2}], "writeConcern": {"w": 2, "wtimeout": 200}})
    assert reply["n"] == 1
    assert reply["writeConcernError"]["code"] == 64
    assert reply["writeConcernError"]["errInfo"]["wtimeout"] is True


def test_a_read_after_a_majority_write_sees_it_on_a_secondary(make_set: MakeSet) -> None:
    local = make_set()
    primary = local.wait_for_primary()
    secondary = next(member for member in local.members if member is not primary)
    for number in range(20):
        written = insert(primary, number)
        concern = {"level": "majority", "afterClusterTime": written["operationTime"]}
        assert find(secondary, {"_id": number}, readConcern=concern) == [{"_id": number, "n": number}]


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
