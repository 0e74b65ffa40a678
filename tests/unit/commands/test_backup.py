"""replSetBackup: the copy is given once all of it is committed; no failure leaves a copy behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from replset.core.member_state import MemberState
from replset.ids import OPTIME_NULL, Millis

from .conftest import Client, FakeMember


def copies(member: FakeMember) -> list[str]:
    folder = Path(member.store.dbpath) / "snapshots"
    return os.listdir(folder) if folder.exists() else []


@pytest.fixture(autouse=True)
def written(client: Client) -> None:
    client.ok({"insert": "c", "documents": [{"_id": 1}]})


def test_it_describes_a_committed_copy(client: Client, member: FakeMember) -> None:
    member.node.commit_point = member.store.last_applied
    reply = client.ok({"replSetBackup": 1}, "admin")
    assert reply["newest"] == str(member.store.last_applied)
    assert (reply["setName"], reply["member"], len(reply["sha256"])) == ("rs0", member.host, 64)
    assert copies(member) == [f"{reply['id']}.db"]
    client.loop.run_until_complete(member.snapshots.end(reply["id"]))
    assert copies(member) == []


def test_it_waits_for_the_commit_point(client: Client, member: FakeMember) -> None:
    def commit_later() -> None:
        if member.changes_waited_for == 3:
            member.node.commit_point = member.store.last_applied

    member.on_change = commit_later
    client.ok({"replSetBackup": 1}, "admin")
    assert member.changes_waited_for == 3


def test_what_is_never_committed_is_refused_after_a_minute(client: Client, member: FakeMember) -> None:
    before = member.clock.now()
    reply = client.run({"replSetBackup": 1}, "admin")
    assert (reply["code"], copies(member)) == (64, [])
    assert "a majority did not have the newest entry of the backup" in reply["errmsg"]
    assert member.clock.now() - before == 60_000
    assert client.code({"replSetBackup": 1, "maxTimeMS": 500}, "admin") == 50
    assert copies(member) == []


def test_a_rollback_meanwhile_voids_it(client: Client, member: FakeMember) -> None:
    def roll_back() -> None:
        member.store.rollback_id = 9
        member.node.commit_point = member.store.last_applied

    member.on_change = roll_back
    assert client.code({"replSetBackup": 1}, "admin") == 43
    assert copies(member) == []


def test_a_copy_that_nobody_reads_is_removed_after_a_minute(client: Client, member: FakeMember) -> None:
    member.node.commit_point = member.store.last_applied
    client.ok({"replSetBackup": 1}, "admin")
    member.clock.time = Millis(member.clock.time + 60_000)
    client.loop.run_until_complete(member.snapshots.expire())
    assert len(copies(member)) == 1
    member.clock.time = Millis(member.clock.time + 1)
    client.loop.run_until_complete(member.snapshots.expire())
    assert copies(member) == []


def test_who_has_nothing_to_back_up_refuses(client: Client, member: FakeMember) -> None:
    assert client.code({"replSetBackup": 1}, "test") == 13
    member.node.state = MemberState.STARTUP2
    assert client.code({"replSetBackup": 1}, "admin") == 13436
    member.node.config = None
    assert client.code({"replSetBackup": 1}, "admin") == 94
    assert copies(member) == []


def test_a_full_disk_refuses(client: Client, member: FakeMember, monkeypatch: pytest.MonkeyPatch) -> None:
    member.node.commit_point = OPTIME_NULL
    monkeypatch.setattr(type(member.store.disk), "free_bytes", lambda *_: 1000)
    reply = client.run({"replSetBackup": 1}, "admin")
    assert "the disk has 1000 left" in reply["errmsg"]
    assert copies(member) == []
