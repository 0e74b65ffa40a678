"""replSetGetRollbacks, replSetResync, and what replSetGetStatus says of rollbacks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from replset.bson import encode
from replset.core.member_state import MemberState
from replset.core.messages import Done, Refused, ResyncRequest
from replset.features.recovery.rollbacks import FULL_BYTES, shorten
from replset.ids import HostPort, OpTime, pack_ts
from replset.member.member import RunningMember
from replset.replication.rollback_files import RollbackWriter
from replset.replication.rollback_manifest import acknowledge
from replset.replication.rollback_progress import RollbackPhase, RollbackProgress
from tests.rig import Client, Rig
from tests.unit.features.test_set import STATUS, line, shows
from tests.unit.replication.test_rollback_files import WALL_MS, manifest

ROLLBACKS = {"replSetGetRollbacks": 1}


def write(member: RunningMember, **fields: Any) -> str:
    return (
        RollbackWriter(member.store.disk, member.store.dbpath, WALL_MS).write_manifest(manifest(files=(), **fields)).id
    )


def test_the_rollbacks_of_one_member(client: Client, member: RunningMember) -> None:
    assert client.ok(ROLLBACKS, "admin")["rollbacks"] == []
    first, second = write(member), write(member)
    acknowledge(member.store.disk, f"{member.store.dbpath}/rollback", second, wall_ms=WALL_MS, by="anna")
    reply = client.ok(ROLLBACKS, "admin")
    assert "unreachable" not in reply
    assert [(row["id"], row["member"]) for row in reply["rollbacks"]] == [(first, member.host), (second, member.host)]
    assert [row["acknowledged"] is None for row in reply["rollbacks"]] == [True, False]
    assert reply["rollbacks"][0]["commonPoint"] == str(OpTime(1, pack_ts(10, 1)))


@pytest.fixture
def three(rig: Rig) -> Rig:
    """The member is one of three."""
    rig.use_config({"members": [{"_id": n, "host": f"{name}:27017"} for n, name in enumerate("abc")]})
    return rig


def test_the_rollbacks_of_all_members_and_who_could_not_be_asked(three: Rig, client: Client) -> None:
    own = write(three.member())
    asked = three.answer_peers({"b:27017": {"ok": 1.0, "rollbacks": [{"id": "rollback-2020-01-01T00-00-00.0"}]}})
    reply = client.ok({**ROLLBACKS, "all": True}, "admin")
    assert [(row["id"], row["member"]) for row in reply["rollbacks"]] == [
        ("rollback-2020-01-01T00-00-00.0", "b:27017"),
        (own, "a:27017"),
    ]
    assert reply["unreachable"] == {"c:27017": "c:27017 is away"}
    client.ok({**ROLLBACKS, "all": True, "maxTimeMS": 100}, "admin")
    timeouts = [timeout for _, command, timeout in asked if command == ROLLBACKS]
    assert timeouts[:2] == [5_000, 5_000]
    assert all(90 < timeout <= 100 for timeout in timeouts[2:])


def test_a_member_that_refuses_or_talks_nonsense_is_named(three: Rig, client: Client) -> None:
    nonsense = {"ok": 1.0, "rollbacks": 7}
    three.answer_peers({"b:27017": {"ok": 0.0, "errmsg": "no such command"}, "c:27017": nonsense})
    reply = client.ok({**ROLLBACKS, "all": True}, "admin")
    assert reply["unreachable"] == {"b:27017": "no such command", "c:27017": "it gave no list of rollbacks"}


def test_a_reply_leaves_lists_of_files_out_before_it_grows_too_large() -> None:
    row = {"id": "x", "files": [{"name": "n" * 1_000} for _ in range(1_000)]}
    rows = shorten([row] * 20)
    assert [("files" in row, row.get("filesLeftOut")) for row in rows] == [(True, None)] * 4 + [(False, 1_000)] * 16
    assert len(encode({"rollbacks": rows})) < FULL_BYTES


def test_a_resync_is_asked_of_the_core(rig: Rig, client: Client) -> None:
    asked = rig.answer_core(Done("it copies"))
    assert client.ok({"replSetResync": 1}, "admin")["info"] == "it copies"
    assert asked == [ResyncRequest()]
    rig.answer_core(Refused(95, "an arbiter holds no data"))
    assert client.code({"replSetResync": 1}, "admin") == 95
    assert client.code({"replSetResync": 1}, "test") == 13


def test_status_counts_rollbacks_and_names_the_quarantined(client: Client, member: RunningMember) -> None:
    rows = (
        line(0, MemberState.RECOVERING, unacknowledged_rollbacks=2, quarantine="it differs"),
        line(1, MemberState.PRIMARY),
        line(2, MemberState.SECONDARY, unacknowledged_rollbacks=1),
    )
    shows(member, replace(STATUS, members=rows))
    reply = client.ok({"replSetGetStatus": 1}, "admin")
    assert reply["unacknowledgedRollbacks"] == 3
    assert [row["unacknowledgedRollbacks"] for row in reply["members"]] == [2, 0, 1]
    assert [row.get("quarantine") for row in reply["members"]] == ["it differs", None, None]
    assert "rollbackStatus" not in reply


def test_status_shows_how_a_rollback_is_getting_on(client: Client, member: RunningMember) -> None:
    progress = member[RollbackProgress]
    shows(member, replace(STATUS, members=(line(0, MemberState.ROLLBACK), line(1, MemberState.PRIMARY))))
    progress.begin(HostPort("b:27017"), WALL_MS)
    progress.search()
    progress.write(OpTime(1, pack_ts(10, 1)))
    progress.entries, progress.written, progress.documents, progress.size = 100_000, 2_000, 0, 9_999
    status = client.ok({"replSetGetStatus": 1}, "admin")["rollbackStatus"]
    assert (status["phase"], status["source"], status["began"].ms) == ("writing", "b:27017", WALL_MS)
    assert (status["entries"], status["entriesWritten"], status["bytesWritten"]) == (100_000, 2_000, 9_999)
    assert status["text"] == "rollback towards b:27017: 2000 of 100000 entries and 0 documents written"
    progress.waiting_for = "disk space: full"
    status = client.ok({"replSetGetStatus": 1}, "admin")["rollbackStatus"]
    assert status["waitingFor"] == "disk space: full"
    assert status["text"] == "rollback towards b:27017 waits for disk space: full"
    progress.waiting_for = ""
    progress.undo("rollback-x")
    assert client.ok({"replSetGetStatus": 1}, "admin")["rollbackStatus"]["text"].endswith(
        ": 0 of 100000 entries undone"
    )
    progress.undone = 400
    status = client.ok({"replSetGetStatus": 1}, "admin")["rollbackStatus"]
    assert (status["phase"], status["manifest"], status["entriesUndone"]) == ("undoing", "rollback-x", 400)
    assert status["text"].endswith("400 of 100000 entries undone")
    progress.phase = RollbackPhase.SETTLING
    assert client.ok({"replSetGetStatus": 1}, "admin")["rollbackStatus"]["text"].endswith(": settling")
    progress.running = False
    assert "rollbackStatus" not in client.ok({"replSetGetStatus": 1}, "admin")
