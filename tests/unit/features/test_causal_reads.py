"""Causal reads: `afterClusterTime` is waited for, and an idle set reaches it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from replset.bson import RawDocument, Timestamp
from replset.errors import HostUnreachableError
from replset.ids import HostPort, pack_ts
from replset.member.member import RunningMember
from replset.optime import timestamp
from tests.rig import Client, Rig, a_set


def after(ts: int) -> dict[str, object]:
    return {"find": "c", "readConcern": {"afterClusterTime": timestamp(ts)}, "$readPreference": {"mode": "nearest"}}


@pytest.fixture
def ahead(client: Client) -> int:
    """A time ten seconds ahead of the newest entry, which the wall clock has reached."""
    client.ok({"insert": "c", "documents": [{"_id": 1}]})
    client.rig.wait(10)
    return client.member.store.last_applied.ts + pack_ts(10, 0)


@pytest.fixture
def two() -> Iterator[Rig]:
    """A set of two, which has been idle."""
    with a_set(2) as rig:
        rig.client().ok({"insert": "c", "documents": [{"_id": 1}], "writeConcern": {"w": 2}})
        rig.wait(12)
        yield rig


def test_an_idle_primary_writes_the_entry(client: Client, ahead: int) -> None:
    client.ok(after(ahead))
    newest = client.entries()[-1]
    assert (newest["ts"], newest["o"]) == (timestamp(ahead), {"msg": "afterClusterTime"})
    client.ok(after(ahead))
    assert client.entries()[-1] == newest
    client.ok({"insert": "c", "documents": [{"_id": 2}]})
    assert client.entries()[-1]["ts"] > newest["ts"]


def test_a_secondary_asks_the_primary(two: Rig) -> None:
    """Its first request gets lost."""
    ahead = pack_ts(two.member().clock.wall_ms() // 1000, 1)
    asked: list[Mapping[str, Any]] = []
    peer = two.member("b").peer
    call = peer.call

    async def call_again(host: HostPort, command: Mapping[str, object], **more: Any) -> RawDocument:
        if "maxClusterTime" in command:
            asked.append(command)
            if len(asked) == 1:
                raise HostUnreachableError("no")
        return await call(host, command, **more)

    peer.call = call_again  # type: ignore[method-assign]
    two.client("b").ok(after(ahead))
    assert [command["maxClusterTime"] for command in asked] == [timestamp(ahead)] * 2
    assert asked[0]["writeConcern"] == {"w": 1}, "else the primary refuses it while fewer than minInSync are in sync"
    assert two.client("b").member.store.last_applied.ts >= ahead


def test_the_time_of_a_note(client: Client, ahead: int) -> None:
    note = {"appendOplogNote": 1, "data": {"msg": "x"}}
    client.ok({**note, "maxClusterTime": timestamp(ahead)}, "admin")
    client.ok({**note, "maxClusterTime": timestamp(ahead)}, "admin")
    assert [entry["o"] for entry in client.entries() if entry["o"].get("msg") == "x"] == [{"msg": "x"}]
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
    newest = member.node._state.newest_ts = ahead + pack_ts(3650 * 86_400, 0)
    concern = {"afterClusterTime": timestamp(newest)}
    session = {"$clusterTime": {"clusterTime": concern["afterClusterTime"]}}
    began = member.clock.now()
    client.ok({"find": "c", "readConcern": concern} | session)
    assert member.clock.now() - began < 50
    assert member.store.last_applied.ts == newest


def test_a_secondary_of_a_set_whose_optimes_are_ahead_waits(client: Client, rig: Rig, ahead: int) -> None:
    """A session names an entry that this member does not know of yet."""
    rig.step_down()
    newest = rig.member().node._state.newest_ts = ahead + pack_ts(3650 * 86_400, 0)
    assert client.code(after(newest + 7) | {"maxTimeMS": 50}) == 50
    assert client.code(after(newest + pack_ts(61, 0))) == 72


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
def test_a_reader_on_a_secondary_asks_for_the_commit_point_that_it_waits_for(two: Rig, level: str) -> None:
    """Else it would wait until the source has something to send."""
    two.stop_disk()
    two.client().ok({"insert": "c", "documents": [{"_id": 2}], "writeConcern": {"w": 1}})
    written, member = two.newest(), two.member("b")
    two.until(lambda: member.store.last_applied == written)
    waits: list[str] = []
    on_awaited = member.on_awaited
    member.on_awaited = lambda what: waits.append(what) or on_awaited(what)  # type: ignore[method-assign, func-returns-value]
    concern = {"level": level, "afterClusterTime": timestamp(written.ts)}
    reading = two.client("b").begin({"find": "c", "readConcern": concern, "$readPreference": {"mode": "nearest"}})
    two.wait(0.1)
    two.start_disk()
    assert two.client("b").decoded(reading)["ok"] == 1.0
    assert waits == (["commit point"] if level == "majority" else [])
