"""Causal reads: `afterClusterTime` is waited for, and an idle set reaches it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from replset.bson import RawDocument, Timestamp, encode
from replset.core.member_state import MemberState
from replset.errors import HostUnreachableError
from replset.ids import HostPort, Millis, OpTime, pack_ts
from replset.optime import timestamp
from replset.replication.write_ops import WriteGroup, do_noop
from replset.runtime.member import RunningMember
from tests.rig import Client


def after(ts: int) -> dict[str, object]:
    return {"find": "c", "readConcern": {"afterClusterTime": timestamp(ts)}, "$readPreference": {"mode": "nearest"}}


@pytest.fixture
def ahead(client: Client) -> int:
    """A time ten seconds ahead of the newest entry, which the wall clock has reached."""
    client.ok({"insert": "c", "documents": [{"_id": 1}]})
    client.rig.wait(10)
    return client.member.store.last_applied.ts + pack_ts(10, 0)


def test_an_idle_primary_writes_the_entry(client: Client, ahead: int) -> None:
    client.ok(after(ahead))
    newest = client.entries()[-1]
    assert (newest["ts"], newest["o"]) == (timestamp(ahead), {"msg": "afterClusterTime"})
    client.ok(after(ahead))
    assert client.entries()[-1] == newest
    client.ok({"insert": "c", "documents": [{"_id": 2}]})
    assert client.entries()[-1]["ts"] > newest["ts"]


def test_a_secondary_asks_the_primary(client: Client, member: RunningMember, ahead: int) -> None:
    client.rig.step_down()
    member.node.primary_host = HostPort("b:27017")
    asked: list[Mapping[str, Any]] = []

    class Primary:
        """Fails the first time."""

        async def call(self, host: HostPort, command: Mapping[str, object], *, timeout_ms: Millis) -> RawDocument:
            assert host == "b:27017"
            asked.append(command)
            if len(asked) == 1:
                raise HostUnreachableError("no")
            with member.store.group() as txn:
                txn_group = WriteGroup(txn, 1, 0, member.rng)
                txn.last = OpTime(1, ahead - 1)
                do_noop(txn_group, {"msg": "replicated"})
            return RawDocument(encode({"ok": 1}))

    member.peer = Primary()  # type: ignore[assignment]
    began = member.clock.now()
    client.ok(after(ahead))
    assert [command["maxClusterTime"] for command in asked] == [timestamp(ahead)] * 2
    assert asked[0]["writeConcern"] == {"w": 1}, "else the primary refuses it while fewer than minInSync are in sync"
    assert member.clock.now() - began == 1_100


def test_the_time_of_a_note(client: Client, ahead: int) -> None:
    note = {"appendOplogNote": 1, "data": {"msg": "x"}}
    client.ok({**note, "maxClusterTime": timestamp(ahead)}, "admin")
    client.ok({**note, "maxClusterTime": timestamp(ahead)}, "admin")
    assert [entry["o"] for entry in client.entries() if entry["op"] == "n"] == [{"msg": "x"}]
    assert client.code({**note, "maxClusterTime": Timestamp(1 << 31, 1)}, "admin") == 72
    assert client.code({**note, "maxClusterTime": 1}, "admin") == 14


@pytest.mark.parametrize("level", ["local", "majority"])
def test_a_reader_moves_no_optime_ahead_of_the_clock(client: Client, ahead: int, level: str) -> None:
    """Beyond what the set has reached a read waits for clocks that differ a little, and is refused for more."""
    newest = client.entries()[-1]["ts"]
    concern = {"level": level, "afterClusterTime": timestamp(ahead + pack_ts(61, 0))}
    assert client.code({"find": "c", "readConcern": concern}) == 72
    assert client.code({"aggregate": "c", "pipeline": [], "cursor": {}, "readConcern": concern}) == 72
    at = {"level": "snapshot", "atClusterTime": concern["afterClusterTime"]}
    assert client.code({"find": "c", "readConcern": at}) == 72
    assert client.entries()[-1]["ts"] == newest
    began = client.member.clock.now()
    client.ok({"find": "c", "readConcern": {"afterClusterTime": timestamp(ahead + pack_ts(5, 0))}})
    assert 4_000 < client.member.clock.now() - began <= 6_000
    assert client.entries()[-1]["ts"].time <= client.member.clock.wall_ms() // 1000


def test_a_time_that_a_member_said_to_have_is_reached_at_once(
    client: Client, member: RunningMember, ahead: int
) -> None:
    """Its clock was ahead, and its entries are undone: a session that read them goes on."""
    member.node.newest_ts = ahead + pack_ts(3650 * 86_400, 0)
    concern = {"afterClusterTime": timestamp(member.node.newest_ts)}
    session = {"$clusterTime": {"clusterTime": concern["afterClusterTime"]}}
    began = member.clock.now()
    client.ok({"find": "c", "readConcern": concern} | session)
    assert member.clock.now() == began
    assert member.store.last_applied.ts == member.node.newest_ts


def test_a_secondary_of_a_set_whose_optimes_are_ahead_waits(client: Client, member: RunningMember, ahead: int) -> None:
    """A session names an entry that this member does not know of yet."""
    member.node.newest_ts = ahead + pack_ts(3650 * 86_400, 0)
    member.node.state, member.node.writable, member.node.primary_host = MemberState.SECONDARY, False, None
    assert client.code(after(member.node.newest_ts + 7) | {"maxTimeMS": 50}) == 50
    assert client.code(after(member.node.newest_ts + pack_ts(61, 0))) == 72


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"clusterTime": Timestamp(1, 1)}, None),
        ({"clusterTime": Timestamp(1_700_000_000 + 300 * 24 * 3600, 1), "signature": {}}, None),
        ({"clusterTime": Timestamp(1_700_000_000 + 366 * 24 * 3600, 1)}, 205),
        ({"clusterTime": 1}, 14),
        ({}, 14),
    ],
)
def test_the_cluster_time_that_a_client_passes_on_is_bounded(client: Client, given: Any, code: int | None) -> None:
    assert client.run({"ping": 1, "$clusterTime": given}).get("code") == code


def test_every_reply_has_the_times(client: Client, ahead: int) -> None:
    for command in ({"ping": 1}, {"find": "c"}, {"insert": "c", "documents": [{}]}, {"nonsense": 1}, {"count": 1}):
        reply = client.run(command)
        assert reply["operationTime"] == client.entries()[-1]["ts"]
        assert reply["$clusterTime"]["clusterTime"] == reply["operationTime"]
        assert reply["$clusterTime"]["signature"]["keyId"] == 0


@pytest.mark.parametrize("level", ["majority", "local"])
def test_a_reader_on_a_secondary_asks_for_the_commit_point_that_it_waits_for(
    client: Client, member: RunningMember, level: str
) -> None:
    """Else it would wait until the source has something to send."""
    client.ok({"insert": "c", "documents": [{"_id": 1}]})
    written = member.store.last_applied
    client.rig.step_down()
    member.node.commit_point = OpTime(written.term, written.ts - 1)

    def committed() -> None:
        member.node.commit_point = written

    member.on_change = committed
    concern = {"level": level, "afterClusterTime": timestamp(written.ts)}
    client.ok({"find": "c", "readConcern": concern, "$readPreference": {"mode": "nearest"}})
    assert member.waits == (["commit point"] if level == "majority" else [])
