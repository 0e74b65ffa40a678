"""Rollbacks of real processes: seen from every member, in both layouts; a quarantine and the one command out of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx

from replset.cli.local_set import LocalMember, LocalSet, wait_until
from replset.replication.rollback_manifest import FileKind, Manifest, RollbackState, list_manifests
from tests.integration.conftest import MakeSet
from tests.integration.forked import run_program
from tests.integration.talk import all_counted, cut, find, heal, ids, insert, run, same_everywhere, state, status

LOST = range(1_000, 3_000)


def program(module: str, *arguments: object) -> str:
    """Run a program as a person would; what it printed."""
    done = run_program(module, *arguments)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def get(member: LocalMember, path: str) -> Any:
    response = httpx.get(f"{member.http}{path}", timeout=20)
    assert response.status_code == 200, response.text
    return response.json()


def others_of(local: LocalSet, member: LocalMember) -> list[LocalMember]:
    return [other for other in local.members if other is not member]


def roll_back(local: LocalSet, old: LocalMember) -> Manifest:
    """`old` was cut off and took writes; the set goes on without it, then it comes back."""
    insert(local.wait_for_primary(among=others_of(local, old)), 500)
    heal(old)

    def finished() -> Manifest | None:
        return next((m for m in list_manifests(old.dbpath) if m.state is RollbackState.FINISHED), None)

    manifest = wait_until(finished, 60, "the rollback to be finished")
    wait_until(lambda: state(old) == "SECONDARY", 60, "the old primary to be SECONDARY")
    return manifest


def test_a_rollback_is_seen_from_every_member_until_somebody_acknowledges_it(make_set: MakeSet) -> None:
    local = make_set()
    old, other = others_of(local, local.wait_for_primary())
    local.stop(old)
    old.flags += ["--rollback-layout", "mongodb"]
    local.start(old)
    all_counted(local)
    run(old, {"replSetStepUp": 1}, "admin")
    wait_until(lambda: local.primary() is old, 30, "the member with MongoDB's layout to lead")
    insert(old, 1, 2)
    cut(old, others_of(local, old))
    for first in range(LOST.start, LOST.stop, 500):
        insert(old, *range(first, first + 500), w=1)
    manifest = roll_back(local, old)
    assert manifest.entries >= len(LOST)
    folder = Path(old.dbpath) / "rollback"
    (documents,) = [file for file in manifest.files if file.kind is FileKind.DOCUMENTS]
    assert documents.count == len(LOST)
    (removed,) = manifest.mongodb_files
    assert removed.startswith(f"{documents.uuid}/removed.")
    assert (folder / removed).read_bytes() == (folder / documents.name).read_bytes()

    # Any member tells of it.
    wait_until(lambda: status(other)["unacknowledgedRollbacks"] == 1, 20, "the others to know of it")
    assert f"{old.host}: 1 rollback not acknowledged" in program("replset.cli.main", "status", "--host", other.host)
    listed = get(other, "/v1/replset/rollbacks")
    assert listed["unreachable"] == {}
    (row,) = listed["rollbacks"]
    assert (row["id"], row["member"], row["httpAddress"]) == (manifest.id, old.host, old.http.removeprefix("http://"))
    assert row["acknowledged"] is None
    assert get(other, "/v1/replset/rollbacks?local=true")["rollbacks"] == []
    assert "replset_rollbacks_unacknowledged 1.0" in httpx.get(f"{old.http}/metrics").text
    page = get(old, f"/v1/replset/rollbacks/{manifest.id}/writes?limit=3")
    assert [write["_id"] for write in page["writes"]] == [1_000, 1_001, 1_002]
    assert page["next"] > 0

    # A tool acknowledges it on the files alone, in a process of its own.
    program("rollback_tools.main", "ack", folder / f"{manifest.id}.json")
    wait_until(lambda: status(other)["unacknowledgedRollbacks"] == 0, 40, "the others to know of that too")
    assert "replset_rollbacks_unacknowledged 0.0" in httpx.get(f"{old.http}/metrics").text
    (row,) = get(other, "/v1/replset/rollbacks")["rollbacks"]
    assert row["acknowledged"]

    # A member that is well can be told to copy everything anew.
    assert "is SECONDARY again" in program("replset.cli.main", "resync", "--host", old.host, "--wait", 60)
    assert [document["_id"] for document in same_everywhere(local)] == [1, 2, 500]
    assert list_manifests(old.dbpath) == [manifest], "its rollback's files outlive the copy"


def test_one_command_ends_the_quarantine_after_a_forced_reconfig(make_set: MakeSet) -> None:
    local = make_set()
    old = local.wait_for_primary()
    alone, other = others_of(local, old)
    insert(old, 1)
    cut(alone, [old, other])
    insert(old, 2, 3)  # a majority has them, and will not be asked
    config = run(alone, {"replSetGetConfig": 1}, "admin")["config"]
    for member in config["members"]:
        if member["host"] != alone.host:
            member["votes"], member["priority"] = 0, 0
    config["version"] += 1
    run(alone, {"replSetReconfig": config, "force": True}, "admin")
    local.wait_for_primary(among=[alone])
    insert(alone, 100)
    heal(alone)
    for member in (old, other):
        wait_until(lambda member=member: own_row(member).get("quarantine"), 60, "it keeps out")
        (manifest,) = list_manifests(member.dbpath)
        assert manifest.state is RollbackState.EXPORTED
        assert [file.count for file in manifest.files if file.kind is FileKind.DOCUMENTS] == [2]
        assert state(member) == "RECOVERING"
    advice = f"replset resync --force --host {old.host}"
    status_of_alone = ("replset.cli.main", "status", "--host", alone.host)
    wait_until(lambda: advice in " ".join(program(*status_of_alone).split()), 60, "a heartbeat brings the quarantine")
    assert all(member.is_running() for member in local.members)
    # What a majority committed is not in the set any more: that is for a person to say.
    response = httpx.post(f"{other.http}/v1/replset/resync", json={}, timeout=20)
    assert response.json()["code"] == 119, response.text
    assert "replset resync --force" in response.json()["errmsg"]
    assert state(other) == "RECOVERING"
    response = httpx.post(f"{other.http}/v1/replset/resync", json={"force": True}, timeout=20)
    assert response.status_code == 200, response.text
    program("replset.cli.main", "resync", "--host", old.host, "--force", "--wait", 60)
    wait_until(lambda: state(other) == "SECONDARY", 60, "the other one is back too")
    assert [document["_id"] for document in same_everywhere(local)] == [1, 100]
    assert json.loads(program("replset.cli.main", "status", "--host", alone.host, "--json"))["members"]
    assert ids(old) == [document["_id"] for document in find(other)]


def own_row(member: LocalMember) -> dict[str, Any]:
    return next(row for row in status(member)["members"] if row.get("self"))
