"""replSetBackup: the copy is given once all of it is committed; no failure leaves a copy behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from replset.core.member_state import MemberState
from replset.member.member import RunningMember
from tests.rig import Client, Rig, a_set


def copies(member: RunningMember) -> list[str]:
    folder = Path(member.store.dbpath) / "snapshots"
    return os.listdir(folder) if folder.exists() else []


@pytest.fixture(autouse=True)
def written(client: Client) -> None:
    client.ok({"insert": "c", "documents": [{"_id": 1}]})


def test_it_describes_a_committed_copy(client: Client, member: RunningMember) -> None:
    reply = client.ok({"replSetBackup": 1}, "admin")
    assert reply["newest"] == str(member.store.last_applied)
    assert (reply["setName"], reply["member"], len(reply["sha256"])) == ("rs0", member.host, 64)
    assert copies(member) == [f"{reply['id']}.db"]
    client.rig.do(member.snapshots.end(reply["id"]))
    assert copies(member) == []


def not_committed(client: Client) -> None:
    client.rig.stop_disk()
    client.ok({"insert": "c", "documents": [{"_id": 2}], "writeConcern": {"w": 1}})


def test_it_waits_for_the_commit_point(client: Client, rig: Rig) -> None:
    not_committed(client)
    asked = client.begin({"replSetBackup": 1}, "admin")
    rig.wait(1)
    assert not asked.done()
    rig.start_disk()
    assert client.decoded(asked)["ok"] == 1.0


def test_what_is_never_committed_is_refused_after_a_minute(client: Client, member: RunningMember) -> None:
    not_committed(client)
    before = member.clock.now()
    reply = client.run({"replSetBackup": 1}, "admin")
    assert (reply["code"], copies(member)) == (64, [])
    assert "a majority did not have the newest entry of the backup" in reply["errmsg"]
    assert 60_000 <= member.clock.now() - before < 60_100
    assert client.code({"replSetBackup": 1, "maxTimeMS": 500}, "admin") == 50
    assert copies(member) == []


def test_a_rollback_meanwhile_voids_it(client: Client, member: RunningMember) -> None:
    not_committed(client)
    asked = client.begin({"replSetBackup": 1}, "admin")
    client.rig.wait(1)
    member.store.rollback_id = 9
    client.rig.start_disk()
    assert client.decoded(asked)["code"] == 43
    assert copies(member) == []


def test_a_copy_that_nobody_reads_is_removed_after_a_minute(client: Client, member: RunningMember) -> None:
    client.ok({"replSetBackup": 1}, "admin")
    client.rig.wait(59)
    assert len(copies(member)) == 1
    client.rig.wait(12)
    assert copies(member) == []


def test_who_has_nothing_to_back_up_refuses(client: Client) -> None:
    assert client.code({"replSetBackup": 1}, "test") == 13
    with a_set(1, initiates=False) as rig:
        assert rig.client().code({"replSetBackup": 1}, "admin") == 94
    with a_set(2) as rig:
        rig.client().ok({"insert": "c", "documents": [{"_id": 1}]})
        rig.cluster.kill("b", wipe=True)
        rig.cluster.machines["b"].slowness = 1_000.0
        rig.cluster.start("b")
        rig.until(lambda: rig.cluster.machines["b"].running is not None)
        rig.until(lambda: rig.member("b").node.state is MemberState.STARTUP2)
        assert rig.client("b").code({"replSetBackup": 1}, "admin") == 13436
        assert copies(rig.member("b")) == []


def test_a_full_disk_refuses(client: Client, member: RunningMember, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(member.store.disk), "free_bytes", lambda *_: 1000)
    reply = client.run({"replSetBackup": 1}, "admin")
    assert "the disk has 1000 left" in reply["errmsg"]
    assert copies(member) == []
