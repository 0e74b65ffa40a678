"""hello, status, configuration, default concerns and the other commands about the set."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from replset.bson import DateTime, Document, Int64, ObjectId, RawDocument, Timestamp, decode, encode
from replset.config import MAX_GIVEN_VERSION
from replset.core.effects import StateChanged
from replset.core.election_metrics import CandidateMetrics, ElectionMetrics
from replset.core.member_state import MemberState
from replset.core.messages import (
    Done,
    FreezeRequest,
    HeartbeatRequest,
    MaintenanceRequest,
    Position,
    Refused,
    StepDownRequest,
    StepUpRequest,
    SyncFromRequest,
    VoteReply,
    VoteRequest,
)
from replset.core.quorum import WriteConcern
from replset.core.status import MemberStatus, Remark, Status
from replset.features.administration import replset_status
from replset.features.follower.followed import FollowProgress
from replset.ids import OPTIME_NULL, HostPort, MemberId, Millis, OpTime, pack_ts
from replset.member.disk.member_files import MemberFiles
from replset.member.member import RunningMember
from replset.member.peers.message_documents import request_document
from replset.operations.request import CommandRequest
from replset.operations.write_concern import WriteConcernFailure
from replset.optime import timestamp
from replset.replication.initial_sync_progress import InitialSyncProgress
from replset.replication.ports import SetMemberClient
from replset.replication.protocol import FetchRequest
from replset.storage.member_file import MemberFile
from tests.rig import Client, Rig, a_set, note_waits

NEW = OpTime(1, pack_ts(1_700_000_000, 3))
POSITION = Position(NEW, NEW, 1_700_000_000_500, 1_700_000_000_500)


def line(number: int, state: MemberState, **more: Any) -> MemberStatus:
    values: dict[str, Any] = {
        "id": MemberId(number),
        "host": HostPort(f"{'abc'[number]}:27017"),
        "is_self": number == 0,
        "state": state,
        "healthy": state is not MemberState.DOWN,
        "counted": True,
        "newly_added": False,
        "position": POSITION,
        "uptime_ms": 5_000,
        "sync_source": None,
        "sync_source_id": -1,
        "election_wall_ms": 1_700_000_000_000 if state is MemberState.PRIMARY else None,
        "config_version": 3,
        "config_term": 1,
        "last_heartbeat_wall_ms": 0 if number == 0 else 1_700_000_001_000,
        "last_heartbeat_recv_wall_ms": 0,
        "ping_ms": 2,
        "message": "",
    }
    return MemberStatus(**(values | more))


STATUS = Status(
    "rs0",
    MemberState.PRIMARY,
    1,
    None,
    -1,
    Millis(2000),
    2,
    2,
    3,
    3,
    NEW,
    POSITION,
    (
        line(0, MemberState.PRIMARY),
        line(1, MemberState.SECONDARY, sync_source=HostPort("a:27017"), sync_source_id=0),
        line(2, MemberState.DOWN, position=None, message="no answer", counted=False),
    ),
    "c:27017 (not reachable)",
    "electionTimeout",
    2,
)


def shows(member: RunningMember, status: Status) -> None:
    """The member's core gives this status from now on."""
    member.node.status = lambda now: status  # type: ignore[method-assign]


THREE = {"members": [{"_id": number, "host": f"{name}:27017"} for number, name in enumerate("abc")]}


@pytest.fixture
def three(rig: Rig, client: Client) -> Rig:
    """The member is one of three."""
    rig.use_config(THREE)
    return rig


# --- hello ------------------------------------------------------------------------------------------------------


def test_hello_of_a_primary(client: Client, rig: Rig) -> None:
    client.ok({"insert": "c", "documents": [{"_id": 1}]})
    rig.use_config(THREE)
    topology = client.member.topology
    reply = client.ok({"hello": 1, "helloOk": True, "client": {"application": {"name": "app"}}}, "admin")
    assert reply["hosts"] == ["a:27017", "b:27017", "c:27017"]
    assert (reply["setName"], reply["setVersion"], reply["me"]) == ("rs0", 3, "a:27017")
    assert (reply["isWritablePrimary"], reply["secondary"], reply["primary"]) == (True, False, "a:27017")
    assert reply["electionId"] == ObjectId(f"7fffffff{client.member.node.term:016x}")
    assert reply["topologyVersion"] == {"processId": topology.process_id, "counter": topology.counter}
    assert (reply["minWireVersion"], reply["maxWireVersion"], reply["helloOk"]) == (0, 21, True)
    assert (reply["maxBsonObjectSize"], reply["maxMessageSizeBytes"]) == (16_777_216, 48_000_000)
    assert reply["lastWrite"]["opTime"]["ts"] == client.entries()[-1]["ts"]
    assert isinstance(reply["lastWrite"]["lastWriteDate"], DateTime)
    assert reply["httpAddress"] == "a:28017"
    assert reply["logicalSessionTimeoutMinutes"] == 30
    assert client.connection.app_name == "app"


def test_drivers_get_a_version_that_fits_into_32_bits(client: Client, rig: Rig) -> None:
    rig.member().node._state.config = replace(rig.member().node.config, version=MAX_GIVEN_VERSION + 7)
    assert client.ok({"hello": 1})["setVersion"] == MAX_GIVEN_VERSION
    assert client.ok({"replSetGetConfig": 1}, "admin")["config"]["version"] == MAX_GIVEN_VERSION + 7


@pytest.mark.parametrize("name", ["isMaster", "ismaster"])
def test_the_old_names_have_the_old_field(client: Client, name: str) -> None:
    reply = client.ok({name: 1}, "admin")
    assert reply["ismaster"] is True
    assert "isWritablePrimary" not in reply


def test_a_secondary_says_so(client: Client) -> None:
    client.rig.step_down()
    reply = client.ok({"hello": 1})
    assert (reply["isWritablePrimary"], reply["secondary"]) == (False, True)
    assert "electionId" not in reply


def test_hidden_delayed_passive_and_arbiters(client: Client, rig: Rig) -> None:
    rows: list[dict[str, object]] = [
        {"host": "b:1"},
        {"host": "a:27017", "priority": 0, "tags": {"dc": "x"}},
        {"host": "c:1", "priority": 0, "hidden": True},
        {"host": "d:1", "arbiterOnly": True},
        {"host": "e:1", "priority": 0, "secondaryDelaySecs": 60},
        {"host": "f:1", "newlyAdded": True},
    ]
    rig.step_down()
    rig.use_config({"members": [{"_id": number, **row} for number, row in enumerate(rows)]})
    reply = client.ok({"hello": 1})
    assert (reply["hosts"], reply["passives"], reply["arbiters"]) == (["b:1"], ["a:27017", "f:1"], ["d:1"])
    assert (reply["passive"], reply["tags"]) == (True, {"dc": "x"})


def test_hello_without_a_place_in_a_set(client: Client, rig: Rig) -> None:
    rig.use_config({"members": [{"_id": 0, "host": "x:1"}]})
    with a_set(initiates=False) as other:
        for asked in (client, other.client()):
            reply = asked.ok({"hello": 1})
            assert reply["isreplicaset"] is True
            assert reply["secondary"] is False
            assert reply["info"]
            assert "setName" not in reply


def test_hello_waits_for_a_change_only_when_nothing_is_new(client: Client, member: RunningMember) -> None:
    client.rig.wait(1)
    began, counter = member.clock.now(), member.topology.counter
    known = {"processId": member.topology.process_id, "counter": Int64(counter)}
    client.ok({"hello": 1, "topologyVersion": known, "maxAwaitTimeMS": 500})
    assert member.clock.now() - began == 500
    client.ok({"hello": 1, "topologyVersion": {**known, "counter": Int64(counter - 1)}, "maxAwaitTimeMS": 500})
    client.ok({"hello": 1, "topologyVersion": {**known, "processId": ObjectId("0" * 24)}, "maxAwaitTimeMS": 500})
    assert member.clock.now() - began == 500


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"maxAwaitTimeMS": 5}, 31368),
        ({"topologyVersion": {"processId": ObjectId("0" * 24), "counter": Int64(1)}}, 31368),
        ({"topologyVersion": {"processId": ObjectId("0" * 24), "counter": Int64(-1)}, "maxAwaitTimeMS": 5}, 31372),
        ({"topologyVersion": {"processId": ObjectId("0" * 24), "counter": Int64(1)}, "maxAwaitTimeMS": -5}, 31373),
        ({"topologyVersion": {"counter": Int64(1)}, "maxAwaitTimeMS": 5}, 14),
    ],
)
def test_hello_refusals(client: Client, fields: dict[str, object], code: int) -> None:
    assert client.code({"hello": 1, **fields}) == code
    topology = client.member.topology
    ahead = {"processId": topology.process_id, "counter": Int64(topology.counter + 1)}
    assert client.code({"hello": 1, "topologyVersion": ahead, "maxAwaitTimeMS": 5}) == 31382


def test_a_stream_of_hellos_needs_something_to_wait_for(client: Client) -> None:
    request = CommandRequest("admin", RawDocument(encode({"hello": 1})), exhaust=True)
    reply = client.reply(request)
    assert isinstance(reply, dict)
    assert reply["code"] == 51756


def test_a_member_that_stops_sends_clients_elsewhere(client: Client, member: RunningMember) -> None:
    member.shutting_down = True
    assert client.code({"hello": 1}) == 91


# --- status and configuration -----------------------------------------------------------------------------------


def test_status(client: Client, member: RunningMember) -> None:
    member.node.http_address_of = lambda host: f"{host[0]}:28017"  # type: ignore[method-assign]
    shows(member, STATUS)
    reply = client.ok({"replSetGetStatus": 1}, "admin")
    assert (reply["set"], reply["myState"], reply["term"]) == ("rs0", 1, 1)
    assert (reply["majorityVoteCount"], reply["writeMajorityCount"]) == (2, 2)
    assert reply["optimes"]["lastCommittedOpTime"] == {"ts": Timestamp(1_700_000_000, 3), "t": 1}
    assert reply["electionCandidateMetrics"]["lastElectionReason"] == "electionTimeout"
    assert reply["blocking"] == "c:27017 (not reachable)"
    me, second, third = reply["members"]
    assert (me["self"], me["stateStr"], me["health"], me["uptime"]) == (True, "PRIMARY", 1.0, 5)
    assert me["electionDate"] == DateTime(1_700_000_000_000)
    assert "lastHeartbeat" not in me
    assert reply["lastStableRecoveryTimestamp"] == reply["optimes"]["lastCommittedOpTime"]["ts"]
    assert (second["syncSourceHost"], second["syncSourceId"], second["pingMs"]) == ("a:27017", 0, 2)
    assert second["optimeDurable"]["t"] == 1
    assert second["httpAddress"] == "b:28017"
    assert (third["stateStr"], third["health"]) == ("(not reachable/healthy)", 0.0)
    assert (third["lastHeartbeatMessage"], third["counted"]) == ("no answer", False)
    assert "optime" not in third


def test_status_counts_the_entries_that_a_member_lacks_and_since_when(client: Client, member: RunningMember) -> None:
    client.ok({"insert": "c", "documents": [{"_id": number} for number in range(3)]})
    rows = member.store.oplog_after(OPTIME_NULL, limit=10, max_bytes=1 << 20)
    early = POSITION._replace(last_applied=rows[0].optime, last_durable=rows[0].optime)
    newest = POSITION._replace(last_applied=rows[-1].optime, last_durable=rows[-1].optime)
    members = (
        line(0, MemberState.PRIMARY, position=newest),
        line(1, MemberState.SECONDARY, position=early),
        line(2, MemberState.ARBITER, position=None),
    )
    shows(member, replace(STATUS, members=members, commit_point=rows[0].optime))
    reply = client.ok({"replSetGetStatus": 1}, "admin")
    assert [row.get("entriesBehind") for row in reply["members"]] == [0, len(rows) - 1, None]
    assert reply["blockingSince"] == DateTime(rows[1].wall_ms)
    shows(member, replace(STATUS, members=members, commit_point=rows[-1].optime, blocking=""))
    assert "blockingSince" not in client.ok({"replSetGetStatus": 1}, "admin")


def test_status_says_what_is_wrong_and_what_is_next(
    client: Client, member: RunningMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is nearly full comes first: it is why this member is not elected, and no other remark says so."""
    monkeypatch.setattr(replset_status, "find_remarks", lambda *_: (Remark("why", "replset status"),))
    assert client.ok({"replSetGetStatus": 1}, "admin")["remarks"] == [{"why": "why", "next": "replset status"}]
    monkeypatch.setattr(member.store, "has_disk_space", lambda: False)
    first, second = client.ok({"replSetGetStatus": 1}, "admin")["remarks"]
    assert member.store.dbpath in first["why"]
    assert "--min-free-mb" in first["next"]
    assert second["why"] == "why"


def test_status_says_how_far_the_set_is_behind_the_one_it_follows(client: Client, member: RunningMember) -> None:
    shows(member, STATUS)
    assert "following" not in client.ok({"replSetGetStatus": 1}, "admin")
    newest_ms = member.clock.wall_ms() - 7_500
    progress = member[FollowProgress]
    progress.source, progress.error, progress.newest_wall_ms = "site1", "cut off", newest_ms
    reply = client.ok({"replSetGetStatus": 1}, "admin")
    assert reply["following"] == {"setName": "site1", "lagSecs": 7, "error": "cut off"}
    assert reply["remarks"][0]["why"] == "nothing comes from site1, which this set follows: cut off"


def test_status_forecasts_when_a_member_falls_off_the_oplog(
    client: Client, member: RunningMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "replset.features.administration.replset_status.falls_off_in_s", lambda _store, newest: 2 * 3600
    )
    rows = (line(0, MemberState.PRIMARY), line(1, MemberState.DOWN, lag_ms=10_000), line(2, MemberState.SECONDARY))
    shows(member, replace(STATUS, members=rows))
    reply = client.ok({"replSetGetStatus": 1}, "admin")
    assert [row.get("fallsOffOplogInSecs") for row in reply["members"]] == [None, 7_200, None]
    (remark,) = reply["remarks"]
    assert "b:27017 falls off the oplog" in remark["why"]
    assert "in about 120 min" in remark["why"]
    assert "replset resize-oplog" in remark["next"]


def test_what_a_new_primary_had_to_catch_up_is_in_the_status(client: Client, member: RunningMember) -> None:
    client.ok({"insert": "c", "documents": [{"_id": 1}]})
    seen = member.store.last_applied
    client.ok({"insert": "c", "documents": [{"_id": 2}, {"_id": 3}]})
    target = member.store.last_applied
    client.ok({"insert": "c", "documents": [{"_id": 4}]})
    candidate = CandidateMetrics("electionTimeout", 0, 1, seen, seen, 2, 1.0, Millis(10_000), None)
    candidate.catch_up_target = target
    shows(member, replace(STATUS, elections=ElectionMetrics(candidate)))
    metrics = client.ok({"replSetGetStatus": 1}, "admin")["electionCandidateMetrics"]
    assert (metrics["targetCatchupOpTime"]["ts"], metrics["numCatchUpOps"]) == (timestamp(target.ts), 2)


def test_a_doubtful_start_is_in_the_status(client: Client, member: RunningMember) -> None:
    shows(member, STATUS)
    assert "startupWarnings" not in client.ok({"replSetGetStatus": 1}, "admin")
    member.warnings = ["started carelessly"]
    assert client.ok({"replSetGetStatus": 1}, "admin")["startupWarnings"] == ["started carelessly"]


def test_status_of_an_initial_sync(client: Client, member: RunningMember) -> None:
    shows(member, STATUS)
    assert "initialSyncStatus" not in client.ok({"replSetGetStatus": 1, "initialSync": 1}, "admin")
    source = HostPort("b:27017")
    now = member.clock.now()
    member[InitialSyncProgress].begin(source, now, 1_000)
    member[InitialSyncProgress].on_unreachable(Millis(now + 2), 1_002)
    status = client.ok({"replSetGetStatus": 1}, "admin")["initialSyncStatus"]
    assert status["syncSourceUnreachableSince"] == DateTime(1_002)
    member[InitialSyncProgress].fail(source, now, Millis(now + 7), "it went away")
    member[InitialSyncProgress].begin(source, now, 1_000)
    member[InitialSyncProgress].begin_transfer(source, 300, 1_000, Millis(now - 100))
    member[InitialSyncProgress].copied = 400
    reply = client.ok({"replSetGetStatus": 1}, "admin")
    status = reply["initialSyncStatus"]
    assert (status["failedInitialSyncAttempts"], status["syncSourceHost"]) == (1, source)
    assert (status["approxTotalBytesCopied"], status["approxTotalDataSize"], status["resumedAtBytes"]) == (
        400,
        1000,
        300,
    )
    assert 600 <= status["remainingInitialSyncEstimatedMillis"] < 700
    failed = {"durationMillis": 7, "status": "it went away", "syncSource": source}
    assert status["initialSyncAttempts"] == [{**failed, "operationsRetried": 1, "totalTimeUnreachableMillis": 5}]
    assert (status["operationsRetried"], status["totalTimeUnreachableMillis"]) == (0, 0)
    assert "syncSourceUnreachableSince" not in status
    assert "initialSyncOplogStart" not in status
    assert reply["members"][0]["infoMessage"] == "initial sync from b:27017: 400 of 1000 bytes (40 %), about 1 s left"
    member[InitialSyncProgress].waiting_for = "disk space"
    status = client.ok({"replSetGetStatus": 1}, "admin")["initialSyncStatus"]
    assert status["waitingFor"] == "disk space"
    member[InitialSyncProgress].begins_at = OpTime(1, pack_ts(100, 1))
    member[InitialSyncProgress].succeed(Millis(now + 5), 1_005)
    assert "initialSyncStatus" not in client.ok({"replSetGetStatus": 1}, "admin")
    status = client.ok({"replSetGetStatus": 1, "initialSync": 1}, "admin")["initialSyncStatus"]
    assert (status["initialSyncEnd"], status["totalInitialSyncElapsedMillis"]) == (DateTime(1_005), 5)
    assert status["initialSyncOplogStart"] == Timestamp(100, 1)


def test_a_resync_that_was_given_up_is_not_shown(client: Client, member: RunningMember) -> None:
    """The member serves with the data that it had (seed 830039: it led, and its status told of an initial sync)."""
    shows(member, STATUS)
    member[InitialSyncProgress].begin(HostPort("b:27017"), member.clock.now(), 1_000)
    member._effects.handle_effect(StateChanged(MemberState.SECONDARY, 1, None))
    member._effects.handle_effect(StateChanged(MemberState.STARTUP2, 1, None))
    assert "initialSyncStatus" in client.ok({"replSetGetStatus": 1}, "admin"), "it waits for a source"
    member._effects.handle_effect(StateChanged(MemberState.SECONDARY, 1, None))
    reply = client.ok({"replSetGetStatus": 1, "initialSync": 1}, "admin")
    assert "initialSyncStatus" not in reply
    assert not reply["members"][0]["infoMessage"]


def test_before_initiate_there_is_nothing(client: Client) -> None:
    with a_set(initiates=False) as rig:
        fresh = rig.client()
        for command in ({"replSetGetStatus": 1}, {"replSetGetConfig": 1}, {"replSetAddMember": {"host": "x:1"}}):
            assert fresh.code(command, "admin") == 94
        assert fresh.code({"replSetResizeOplog": 1, "size": 990}, "admin") == 26


def test_config(client: Client, three: Rig, member: RunningMember) -> None:
    reply = client.ok({"replSetGetConfig": 1}, "admin")
    assert [row["host"] for row in reply["config"]["members"]] == ["a:27017", "b:27017", "c:27017"]
    assert "incarnation" not in reply["config"]["members"][0]
    shows(member, STATUS)
    assert client.ok({"replSetGetConfig": 1, "commitmentStatus": True}, "admin")["commitmentStatus"] is True
    behind = tuple(replace(row, config_version=2) if row.id else row for row in STATUS.members)
    shows(member, replace(STATUS, members=behind))
    assert client.ok({"replSetGetConfig": 1, "commitmentStatus": True}, "admin")["commitmentStatus"] is False


# --- what the core is asked -------------------------------------------------------------------------------------


def test_initiate_fills_in_what_is_left_out(client: Client, rig: Rig) -> None:
    asked = rig.answer_core(Done())
    assert client.ok({"replSetInitiate": {}}, "admin")["info2"]
    assert (asked[-1].config.set_name, asked[-1].config.version) == ("rs0", 1)
    assert [row.host for row in asked[-1].config.members] == ["a:27017"]
    client.ok({"replSetInitiate": {"members": [{"_id": 0, "host": "b"}]}}, "admin")
    assert [row.host for row in asked[-1].config.members] == ["b:27017"]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ({"replSetStepDown": 30, "secondaryCatchUpPeriodSecs": 5}, StepDownRequest(30_000, 5_000, False)),
        ({"replSetStepDown": 0}, StepDownRequest(60_000, 10_000, False)),
        ({"replSetStepDown": 5}, StepDownRequest(5_000, 5_000, False)),
        ({"replSetStepDown": 30, "force": True}, StepDownRequest(30_000, 0, True)),
        ({"replSetFreeze": 12}, FreezeRequest(12_000)),
        ({"replSetStepUp": 1, "skipDryRun": True}, StepUpRequest(True)),
        ({"replSetMaintenance": True}, MaintenanceRequest(True)),
        ({"replSetMaintenance": 0}, MaintenanceRequest(False)),
    ],
)
def test_requests_to_the_core(client: Client, rig: Rig, command: dict[str, object], expected: object) -> None:
    asked = rig.answer_core(Done("well"))
    assert client.ok(command, "admin")["info"] == "well"
    assert asked == [expected]


def test_sync_from_says_which_source_was_left_and_warns(client: Client, rig: Rig) -> None:
    rig.member().node._state.sync_source = HostPort("b:27017")
    asked = rig.answer_core(Done("it is behind"))
    reply = client.ok({"replSetSyncFrom": "c:27017"}, "admin")
    assert asked == [SyncFromRequest(HostPort("c:27017"))]
    assert reply["syncFromRequested"] == "c:27017"
    assert (reply["prevSyncTarget"], reply["warning"]) == ("b:27017", "it is behind")


@pytest.mark.parametrize(
    ("given", "limits"),
    [
        ({"size": 2_000.0}, (2_000.0, None)),
        ({"minRetentionHours": 0.5}, (None, 0.5)),
        ({"size": 990, "minRetentionHours": 0}, (990.0, 0.0)),
    ],
)
def test_the_oplog_is_resized(client: Client, member: RunningMember, given: dict[str, object], limits: object) -> None:
    client.ok({"replSetResizeOplog": 1, **given}, "admin")
    assert member._member_file.oplog_limits == limits


@pytest.mark.parametrize(("given", "code"), [({"size": 989}, 51024), ({}, 2)])
def test_an_oplog_size_that_cannot_be(
    client: Client, member: RunningMember, given: dict[str, object], code: int
) -> None:
    assert client.run({"replSetResizeOplog": 1, **given}, "admin")["code"] == code
    assert member._member_file.oplog_limits == (None, None)


def test_a_refusal_of_the_core_is_an_error(client: Client, rig: Rig) -> None:
    rig.answer_core(Refused(262, "nobody caught up"))
    reply = client.run({"replSetStepDown": 30}, "admin")
    assert (reply["ok"], reply["code"], reply["errmsg"]) == (0.0, 262, "nobody caught up")


def test_reconfig(client: Client, rig: Rig) -> None:
    asked = rig.answer_core(Done())
    client.ok({"replSetReconfig": {"_id": "rs0", **THREE, "version": 4}, "force": True, "maxTimeMS": 77}, "admin")
    assert (asked[-1].config.version, asked[-1].force, asked[-1].max_time_ms) == (4, True, 77)


def test_members_are_added_and_removed(client: Client, three: Rig) -> None:
    asked = three.answer_core(Done())
    client.ok({"replSetAddMember": {"host": "h:27017", "priority": 0, "votes": 0}}, "admin")
    added = asked[-1].config.members[-1]
    assert (added.id, added.host, added.priority, added.votes) == (3, "h:27017", 0, 0)
    assert asked[-1].config.version == 4
    for target in ("b:27017", {"host": "b:27017"}):
        client.ok({"replSetRemoveMember": target}, "admin")
        assert [row.id for row in asked[-1].config.members] == [0, 2]


def test_an_arbiter_that_would_change_the_default_write_concern_stores_majority_first() -> None:
    with a_set(2) as rig:
        client = rig.client()
        rig.answer_core(Done())
        reply = client.ok({"replSetAddMember": {"host": "h:27017", "arbiterOnly": True}}, "admin")
        assert "majority" in reply["info"]
        assert client.ok({"getDefaultRWConcern": 1}, "admin")["defaultWriteConcernSource"] == "global"
        reply = client.ok({"replSetAddMember": {"host": "h:27017", "arbiterOnly": True}}, "admin")
        assert "info" not in reply


def test_where_the_default_stays_nothing_is_stored(client: Client, rig: Rig) -> None:
    rig.answer_core(Done())
    client.ok({"replSetAddMember": {"host": "h:27017"}}, "admin")
    assert client.entries() == []


@pytest.mark.parametrize(
    ("command", "db", "code"),
    [
        ({"replSetGetStatus": 1}, "test", 13),
        ({"replSetGetStatus": 1, "nonsense": 1}, "admin", 40415),
        ({"replSetInitiate": "rs0"}, "admin", 14),
        ({"replSetInitiate": {"members": 1}}, "admin", 14),
        ({"replSetInitiate": {"nonsense": 1}}, "admin", 2),
        ({"replSetReconfig": 1}, "admin", 14),
        ({"replSetReconfig": {"_id": "rs0", "version": 0, "members": []}}, "admin", 2),
        ({"replSetAddMember": {"priority": 1}}, "admin", 14),
        ({"replSetAddMember": {"host": "a b"}}, "admin", 2),
        ({"replSetAddMember": {"host": "b:27017"}}, "admin", 2),
        ({"replSetAddMember": {"host": "h:27017", "nonsense": 1}}, "admin", 40415),
        ({"replSetRemoveMember": "localhost:1"}, "admin", 74),
        ({"replSetRemoveMember": 1}, "admin", 14),
        ({"replSetSyncFrom": "a b"}, "admin", 2),
        ({"replSetHeartbeat": "rs0"}, "admin", 9),
        ({"replSetRequestVotes": 1}, "admin", 9),
        ({"replSetUpdatePosition": 1}, "admin", 9),
        ({"replSetOplogFetch": 1}, "admin", 9),
        ({"replSetOplogProbe": 1}, "admin", 9),
        ({"replSetSnapshot": 1}, "admin", 9),
        ({"replSetTestCut": 1}, "admin", 40414),
        ({"replSetTestCut": 1, "hosts": [1]}, "admin", 14),
        ({"replSetTestCut": 1, "hosts": ["x:1"], "direction": "up"}, "admin", 2),
        ({"replSetTestCut": 1, "hosts": ["x:1"], "delayMillis": -1}, "admin", 2),
        ({"replSetTestCut": 1, "hosts": ["x:1"], "delayMillis": 60_001}, "admin", 2),
        ({"replSetTestClock": 1, "aheadMillis": "1"}, "admin", 14),
        ({"replSetTestClock": 1, "aheadMillis": -31 * 86_400_000}, "admin", 2),
        ({"appendOplogNote": 1}, "admin", 40414),
        ({"setDefaultRWConcern": 1}, "admin", 2),
        ({"setDefaultRWConcern": 1, "defaultWriteConcern": {}}, "admin", 20),
        ({"setDefaultRWConcern": 1, "defaultWriteConcern": {"w": 0}}, "admin", 2),
        ({"setDefaultRWConcern": 1, "defaultWriteConcern": {"w": 9}}, "admin", 100),
        ({"setDefaultRWConcern": 1, "defaultWriteConcern": {"w": "x"}}, "admin", 79),
        ({"setDefaultRWConcern": 1, "defaultReadConcern": {"level": "majority"}}, "admin", 238),
    ],
)
def test_refusals(client: Client, three: Rig, command: dict[str, object], db: str, code: int) -> None:
    assert client.code(command, db) == code


def test_members_are_not_changed_on_a_secondary(client: Client, member: RunningMember) -> None:
    client.rig.step_down()
    assert client.code({"replSetAddMember": {"host": "h:27017"}}, "admin") == 10107
    assert client.code({"replSetRemoveMember": "b:27017"}, "admin") == 10107


# --- between members --------------------------------------------------------------------------------------------


def test_requests_of_members_go_to_the_core(client: Client, rig: Rig) -> None:
    vote = VoteRequest("rs0", 2, MemberId(1), "inc", 3, 1, NEW, dry_run=False)
    asked = rig.answer_core(VoteReply(2, True, "", MemberId(0), "mine"))
    reply = client.ok(decode(encode(request_document(vote))), "admin")
    assert (reply["voteGranted"], reply["term"], asked) == (True, 2, [vote])
    asked = rig.answer_core(Refused(108, "another set"))
    heartbeat = HeartbeatRequest("rs1", HostPort("x:1"), None, 1, -2, -1, None, "i")
    assert client.code(decode(encode(request_document(heartbeat))), "admin") == 108
    assert asked == [heartbeat]


PROBE: dict[str, object] = {"replSetOplogProbe": 1, "optimes": []}
FETCH = decode(FetchRequest(OPTIME_NULL, 0, 1 << 20, 0, 1, OPTIME_NULL, -1).document().raw)


@pytest.mark.parametrize("command", [PROBE, FETCH, {"replSetSnapshot": 1, "step": "begin"}])
def test_another_set_of_the_same_name_gets_no_oplog(
    client: Client, member: RunningMember, command: dict[str, object]
) -> None:
    """Its members have this address in their configuration: they must not copy this set's data over their own."""
    own = member.node.set_id
    assert own is not None
    assert client.code({**command, "setId": ObjectId(b"b" * 12)}, "admin") == 108
    assert client.code({**command, "setId": "no id"}, "admin") == 9
    client.ok({**PROBE, "setId": own}, "admin")
    client.ok(PROBE, "admin")


def test_calls_within_a_set_carry_the_id_of_the_set() -> None:
    sent: list[dict[str, object]] = []

    class RecordingPeer:
        async def call(self, host: HostPort, command: Document, **_: object) -> RawDocument:
            sent.append(decode(encode(command)))
            return RawDocument(encode({"ok": 1.0}))

    known: list[ObjectId | None] = [None, ObjectId(b"a" * 12)]
    peer = SetMemberClient(RecordingPeer(), lambda: known[len(sent)])
    for _ in known:
        asyncio.run(peer.call(HostPort("x:1"), {"ping": 1}, timeout_ms=Millis(1)))
    assert sent == [{"ping": 1}, {"ping": 1, "setId": known[1]}]


def test_the_rollback_id(client: Client, member: RunningMember) -> None:
    assert client.ok({"replSetGetRBID": 1}, "admin")["rbid"] == member.store.rollback_id


def test_cuts_exist_only_for_tests(client: Client, member: RunningMember) -> None:
    cuts: list[tuple[Any, ...]] = []
    member.peer.cut = member.peer.delay = lambda *given: cuts.append(given)  # type: ignore[method-assign]
    client.ok({"replSetTestCut": 1, "hosts": ["x:1", "y"], "direction": "in"}, "admin")
    client.ok({"replSetTestCut": 1, "hosts": []}, "admin")
    assert cuts == [(["x:1", "y:27017"], "in"), ([], "both")]
    client.ok({"replSetTestCut": 1, "hosts": ["x:1"], "delayMillis": 300}, "admin")
    assert cuts[-1] == (["x:1"], 300)
    before = member.clock.wall_ms() - member.clock.now()
    client.ok({"replSetTestClock": 1, "aheadMillis": -5_000}, "admin")
    assert -5_001 <= member.clock.wall_ms() - member.clock.now() - before <= -4_999
    member.test_commands = False
    assert client.code({"replSetTestCut": 1, "hosts": []}, "admin") == 59
    assert client.code({"replSetTestClock": 1}, "admin") == 59


def test_a_stop_waits_for_what_is_being_saved(rig: Rig, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a thread would write the file after another process has opened it."""
    member, done = client.member, list[str]()
    close = MemberFiles.close

    def note_close(files: MemberFiles) -> None:
        done.append("closed")
        close(files)

    monkeypatch.setattr(MemberFile, "save_oplog_limits", lambda _self, _limits: done.append("saved"))
    monkeypatch.setattr(MemberFiles, "close", note_close)
    rig.cluster.machines["a"].slowness = 10_000
    client.begin({"replSetResizeOplog": 1, "size": 2_000}, "admin")
    rig.turn()
    rig.do(member.stop())
    assert done == ["saved", "closed"]


def test_a_note_in_the_oplog(client: Client) -> None:
    reply = client.ok({"appendOplogNote": 1, "data": {"msg": "hi"}, "writeConcern": {"w": 1}}, "admin")
    entry = client.entries()[-1]
    assert (entry["op"], entry["ns"], entry["o"]) == ("n", "", {"msg": "hi"})
    assert reply["operationTime"] == entry["ts"]


@pytest.mark.parametrize("more", [{}, {"maxClusterTime": Timestamp(1, 1)}])
def test_a_note_does_not_pass_for_the_primary_s_own(client: Client, more: dict[str, object]) -> None:
    """Secondaries would remove the records of these sessions, or could not apply the entry at all."""
    note = {"appendOplogNote": 1, "data": {"msg": "sessions expired", "sessions": [{"id": 1}]}, **more}
    before = client.entries()
    assert client.code(note, "admin") == 2
    assert client.entries() == before


# --- default write concern --------------------------------------------------------------------------------------


def test_the_default_write_concern_is_stored_replicated_and_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with a_set(2) as rig:
        check_default(rig.client(), note_waits(monkeypatch))


def check_default(client: Client, waited: list[tuple[OpTime, WriteConcern]]) -> None:
    reply = client.ok({"getDefaultRWConcern": 1}, "admin")
    assert (reply["defaultWriteConcern"]["w"], reply["defaultWriteConcernSource"]) == ("majority", "implicit")
    reply = client.ok({"setDefaultRWConcern": 1, "defaultWriteConcern": {"w": 2, "wtimeout": 9}}, "admin")
    assert reply["defaultWriteConcern"] == {"w": 2, "wtimeout": 9}
    assert reply["defaultWriteConcernSource"] == "global"
    entry = client.entries()[-1]
    assert (entry["op"], entry["ns"], entry["o"]["_id"]) == ("i", "config.settings", "ReadWriteConcernDefaults")
    assert reply["updateOpTime"]["ts"] == entry["ts"]
    assert waited[-1][1].w == "majority"
    client.ok({"insert": "c", "documents": [{"_id": 1}]})
    concern = waited[-1][1]
    assert (concern.w, concern.wtimeout_ms, concern.provenance) == (2, 9, "customDefault")
    client.ok({"setDefaultRWConcern": 1, "defaultWriteConcern": {"w": 1}}, "admin")
    assert client.entries()[-1]["op"] == "u"
    assert client.ok({"getDefaultRWConcern": 1}, "admin")["defaultWriteConcern"]["w"] == 1


def test_a_default_that_does_not_reach_a_majority_says_so(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    note_waits(monkeypatch, WriteConcernFailure(64, "waiting for replication timed out", True))
    reply = client.ok({"setDefaultRWConcern": 1, "defaultWriteConcern": {"w": 1}}, "admin")
    assert reply["writeConcernError"]["code"] == 64


def test_the_configuration_is_read_as_a_document(client: Client, member: RunningMember) -> None:
    def found(**query: object) -> list[dict[str, Any]]:
        reply = client.ok({"find": "system.replset", **query}, "local")
        batch: list[dict[str, Any]] = reply["cursor"]["firstBatch"]
        return batch

    (config,) = found()
    assert (config["_id"], len(config["members"])) == ("rs0", 1)
    assert found(filter={"_id": "rs0"}, projection={"version": 1}) == [{"_id": "rs0", "version": config["version"]}]
    assert found(filter={"_id": "other"}) == []
    member.node._state.config = None
    assert found() == []
