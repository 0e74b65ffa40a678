"""Write concerns by tags and by who is in sync, and what a writer is told while members are away: real processes."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from typing import Any

from replset.cli.local_set import LocalMember, LocalSet, wait_until
from tests.integration.conftest import MakeSet
from tests.integration.talk import ids, insert, run, status


def reconfigure(primary: LocalMember, settings: dict[str, object], tags: list[dict[str, str]] | None = None) -> None:
    config = run(primary, {"replSetGetConfig": 1}, "admin")["config"]
    config["version"] += 1
    config["settings"] |= settings
    for row, own in zip(config["members"], tags or (), strict=False):
        row["tags"] = own
    run(primary, {"replSetReconfig": config}, "admin")


def insert_one(member: LocalMember, number: int, concern: dict[str, object]) -> dict[str, Any]:
    command = {"insert": "orders", "documents": [{"_id": number}], "writeConcern": concern}
    reply: dict[str, Any] = member.command(command, "shop", timeout_s=30)
    return reply


def insert_over_http(member: LocalMember, number: int, concern: dict[str, object]) -> tuple[int, dict[str, Any]]:
    body = {"database": "shop", "collection": "orders", "document": {"_id": number}, "writeConcern": concern}
    url = f"{member.http}/v1/action/insertOne"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def others(local: LocalSet, primary: LocalMember) -> list[LocalMember]:
    return [member for member in local.members if member is not primary]


def test_a_write_concern_by_tags_and_as_the_default(make_set: MakeSet) -> None:
    local = make_set()
    primary = local.wait_for_primary()
    places = [{"dc": "east"}, {"dc": "east"}, {"dc": "west"}]
    reconfigure(primary, {"getLastErrorModes": {"both": {"dc": 2}, "three": {"dc": 3}}}, places)
    insert(primary, 1, w="both")
    insert(primary, 2, w={"dc": 2})
    reply = insert_one(primary, 3, {"w": "three"})
    assert (reply["n"], reply["writeConcernError"]["code"]) == (1, 100)
    assert insert_one(primary, 4, {"w": "none"})["writeConcernError"]["code"] == 79
    run(primary, {"setDefaultRWConcern": 1, "defaultWriteConcern": {"w": {"dc": 2}}}, "admin")
    config = run(primary, {"replSetGetConfig": 1}, "admin")["config"]
    config["version"] += 1
    config["members"][2]["tags"] = {}
    refused = primary.command({"replSetReconfig": config}, "admin", timeout_s=30)
    assert (refused["code"], "setDefaultRWConcern first" in refused["errmsg"]) == (103, True)
    west = next(member for member in others(local, primary) if member is local.members[2])
    os.kill(west.pid, signal.SIGSTOP)
    try:
        reply = insert_one(primary, 5, {"wtimeout": 300})
        failure = reply["writeConcernError"]
        assert (failure["code"], failure["errInfo"]["writeConcern"]["w"]) == (64, {"dc": 2})
        assert west.host in [row["host"] for row in failure["errInfo"]["waitingFor"]]
        assert f"not yet on {west.host} (" in failure["errmsg"]
    finally:
        os.kill(west.pid, signal.SIGCONT)
    insert(primary, 6, w={"dc": 2})


def test_in_sync_goes_on_without_a_frozen_member_and_waits_for_it_when_it_is_back(make_set: MakeSet) -> None:
    local = make_set(inSyncLagSecs=2, minInSync=2, electionTimeoutMillis=20_000)
    primary = local.wait_for_primary()
    frozen, other = others(local, primary)
    insert(primary, 1, w="inSync")
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        insert(primary, 2, w="inSync")  # once the frozen member has left the set
        assert frozen.host not in status(primary)["inSync"]
        insert(primary, 3, w="inSync")
        local.kill(other)
        wait_until(lambda: insert_one(primary, 4, {"w": "inSync", "wtimeout": 100})["ok"] == 0, 20, "a refusal")
        count = run(primary, {"count": "orders"})["n"]
        for w in ("inSync", "majority", 2):
            refused = insert_one(primary, 5, {"w": w})
            assert (refused["code"], refused["codeName"]) == (9_900_001, "NotEnoughInSync")
            assert refused["errorLabels"] == ["NoWritesPerformed"]
            assert frozen.host in refused["errmsg"]
        assert run(primary, {"count": "orders"})["n"] == count
        code, body = insert_over_http(primary, 6, {"w": "inSync"})
        assert (code, body["code"]) == (503, 9_900_001)
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
    primary = local.wait_for_primary()
    wait_until(lambda: insert_one(primary, 7, {"w": "inSync", "wtimeout": 5_000}).get("n") == 1, 30, "a write in sync")
    assert 7 in ids(frozen)


def test_beside_an_arbiter_a_majority_write_says_who_is_missing(make_set: MakeSet) -> None:
    """Map D6: no wtimeout, and no endless wait."""
    local = make_set(members=2, arbiters=1)
    primary = local.wait_for_primary()
    secondary = next(member for member in others(local, primary) if not member.arbiter)
    insert(primary, 1)
    local.kill(secondary)
    reply = insert_one(primary, 2, {"w": "majority"})
    failure = reply["writeConcernError"]
    assert (reply["n"], failure["code"]) == (1, 100)
    assert f"it waits for {secondary.host} (not reachable" in failure["errmsg"]
    assert f"replset reconfig --demote {secondary.host}" in failure["errmsg"]
    assert insert_one(primary, 3, {"w": 2})["writeConcernError"]["code"] == 100
    assert any(secondary.host in remark["why"] for remark in status(primary)["remarks"])
    local.start(secondary)
    insert(primary, 4)


def test_writers_are_slowed_while_the_majority_is_too_far_behind(make_set: MakeSet) -> None:
    """Map X1, D10: who is waited for is said in the status, in serverStatus and in the log."""
    local = make_set(flowControlTargetLagSecs=1)
    primary = local.wait_for_primary()
    secondaries = others(local, primary)
    text = "x" * 4096

    def write() -> dict[str, Any]:
        documents = [{"t": text} for _ in range(20)]
        run(primary, {"insert": "much", "documents": documents, "writeConcern": {"w": 1}})
        flow: dict[str, Any] = run(primary, {"serverStatus": 1}, "admin")["flowControl"]
        return flow

    assert not write()["isLagged"]
    for member in secondaries:
        run(member, {"configureFailPoint": "stopReplProducer", "mode": "alwaysOn"}, "admin")
    wait_until(lambda: write()["timeAcquiringMicros"] > 500_000, 30, "writers to be slowed")
    flow = write()
    assert (flow["enabled"], flow["isLagged"], flow["isLaggedCount"]) == (True, True, 1)
    assert flow["targetRateLimit"] < 1_000_000
    assert sorted(flow["waitsFor"]) == sorted(member.host for member in secondaries)
    assert any("writers are slowed" in remark["why"] for remark in status(primary)["remarks"])
    log = primary.log.read_text()
    assert "slow operation: insert shop.much took" in log
    assert secondaries[0].host in log[log.index("slow operation:") :]
    for member in secondaries:
        run(member, {"configureFailPoint": "stopReplProducer", "mode": "off"}, "admin")
    wait_until(lambda: not write()["isLagged"], 60, "writers to be let go")


def test_a_durability_level_falls_while_the_data_secondary_is_down_and_rises_again(make_set: MakeSet) -> None:
    rules = {
        "shop.orders": {"level": 2, "atLeast": 1, "degradeLagSecs": 2, "restoreLagSecs": 1},
        "shop.log": {"level": 0},
    }
    local = make_set(members=2, arbiters=1, durabilityLevels=rules)
    primary = local.wait_for_primary()
    secondary = next(member for member in others(local, primary) if not member.arbiter)
    command = {"insert": "orders", "documents": [{"_id": 1}]}
    assert "writeConcernError" not in run(primary, command)
    local.kill(secondary)
    assert "writeConcernError" not in run(primary, {**command, "documents": [{"_id": 2}]}), "once the level has fallen"
    assert status(primary)["loweredDurabilityLevels"] == {"shop.orders": 1}
    assert "writeConcernError" not in run(primary, {"insert": "log", "documents": [{"_id": 1}]})
    assert insert_one(primary, 3, {"w": "majority", "wtimeout": 200})["writeConcernError"]["code"] == 64
    local.start(secondary)
    wait_until(lambda: "loweredDurabilityLevels" not in status(primary), 30, "the level to rise")
    assert "writeConcernError" not in run(primary, {**command, "documents": [{"_id": 4}]})
    assert ids(secondary) == [1, 2, 3, 4]
