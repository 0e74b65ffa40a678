"""A real set: failovers, kill -9 of all, and write concerns while members are away."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from replset.local_set import LocalMember, wait_until
from tests.integration.conftest import MakeSet
from tests.integration.forked import ForkedSet
from tests.integration.talk import (
    a_secondary,
    all_counted,
    ids,
    insert,
    others_of,
    reconfigure,
    row_of,
    run,
    same_everywhere,
    status,
)

DEFAULT = {"electionTimeoutMillis": 10_000, "heartbeatIntervalMillis": 2_000, "heartbeatTimeoutSecs": 10}
"""MongoDB's."""


def insert_one(member: LocalMember, number: int, concern: dict[str, object]) -> dict[str, Any]:
    command = {"insert": "orders", "documents": [{"_id": number}], "writeConcern": concern}
    reply: dict[str, Any] = member.command(command, "shop", timeout_s=30)
    return reply


def test_a_killed_primary_is_replaced_before_the_election_timeout(local: ForkedSet) -> None:
    reconfigure(local, DEFAULT)
    old = local.wait_for_primary()
    insert(old, *range(100))
    local.kill(old)
    new = local.wait_for_primary()
    insert(new, *range(100, 110))
    assert status(new)["electionCandidateMetrics"]["lastElectionReason"] == "fastFailover"
    lines = new.log.read_text().splitlines()
    became = f" INFO replset.member this member is PRIMARY in term {status(new)['term']}, it was SECONDARY"
    assert any(line.endswith(became) for line in lines)
    assert any(" WARNING " in line and f"member: {old.host} is not reachable" in line for line in lines)
    local.start(old)
    all_counted(local)
    assert [row["_id"] for row in same_everywhere(local)] == list(range(110))


def test_a_paused_primary_is_left_to_the_election_timeout(local: ForkedSet) -> None:
    """It refuses no connect, and may go on at any moment."""
    reconfigure(local, {"electionTimeoutMillis": 600_000, "heartbeatTimeoutSecs": 1})
    primary = local.wait_for_primary()
    term = status(primary)["term"]
    others = others_of(local, primary)
    os.kill(primary.pid, signal.SIGSTOP)
    try:
        for member in others:
            wait_until(lambda m=member: row_of(primary, by=m)["health"] == 0.0, 60, "the pause to be noticed")
        assert local.primary(among=others) is None
    finally:
        os.kill(primary.pid, signal.SIGCONT)
    wait_until(lambda: local.primary() is primary, 10, "the primary to go on")
    assert status(primary)["term"] == term


def test_a_whole_set_survives_kill_minus_nine_of_all(local: ForkedSet) -> None:
    insert(local.wait_for_primary(), *range(50))
    for member in local.members:
        local.kill(member)
    for member in local.members:
        local.start(member)
    insert(local.wait_for_primary(), 50)
    assert len(same_everywhere(local)) == 51


# --- write concerns -----------------------------------------------------------------------------------------------


def test_in_sync_goes_on_without_a_frozen_member_and_waits_for_it_when_it_is_back(local: ForkedSet) -> None:
    reconfigure(local, {"inSyncLagSecs": 2, "minInSync": 2, "electionTimeoutMillis": 20_000})
    primary = local.wait_for_primary()
    frozen, other = others_of(local, primary)
    insert(primary, 1, w="inSync")
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        insert(primary, 2, w="inSync")  # once the frozen member has left those in sync
        assert frozen.host not in status(primary)["inSync"]
        local.kill(other)
        wait_until(lambda: insert_one(primary, 4, {"w": "inSync", "wtimeout": 100})["ok"] == 0, 20, "a refusal")
        count = run(primary, {"count": "orders"})["n"]
        for w in ("inSync", "majority", 2):
            refused = insert_one(primary, 5, {"w": w})
            assert (refused["code"], refused["errorLabels"]) == (9_900_001, ["NoWritesPerformed"])
            assert frozen.host in refused["errmsg"]
        assert run(primary, {"count": "orders"})["n"] == count
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
    primary = local.wait_for_primary()
    wait_until(lambda: insert_one(primary, 7, {"w": "inSync", "wtimeout": 5_000}).get("n") == 1, 30, "a write in sync")
    assert 7 in ids(frozen)


def test_a_write_concern_by_tags_names_the_frozen_member(local: ForkedSet) -> None:
    primary = local.wait_for_primary()
    config = run(primary, {"replSetGetConfig": 1}, "admin")["config"]
    frozen = a_secondary(local)
    tagged = [{**row, "tags": {"dc": "west" if row["host"] == frozen.host else "east"}} for row in config["members"]]
    reconfigure(local, {"getLastErrorModes": {"both": {"dc": 2}, "three": {"dc": 3}}}, tagged)
    insert(primary, 1, w="both")
    insert(primary, 2, w={"dc": 2})
    assert insert_one(primary, 3, {"w": "three"})["writeConcernError"]["code"] == 100
    run(primary, {"setDefaultRWConcern": 1, "defaultWriteConcern": {"w": {"dc": 2}}}, "admin")
    refused = primary.command({"replSetReconfig": {**config, "version": config["version"] + 2}}, timeout_s=30)
    assert (refused["code"], "setDefaultRWConcern first" in str(refused["errmsg"])) == (103, True)
    run(primary, {"setDefaultRWConcern": 1, "defaultWriteConcern": {"w": "majority"}}, "admin")
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        failure = insert_one(primary, 5, {"w": {"dc": 2}, "wtimeout": 300})["writeConcernError"]
        assert (failure["code"], [row["host"] for row in failure["errInfo"]["waitingFor"]]) == (64, [frozen.host])
        assert f"not yet on {frozen.host} (" in failure["errmsg"]
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
    insert(primary, 6, w={"dc": 2})


def test_writers_are_slowed_while_the_majority_is_too_far_behind(local: ForkedSet) -> None:
    """Map X1, D10: who is waited for is said in the status, in serverStatus and in the log."""
    reconfigure(local, {"flowControlTargetLagSecs": 1})
    primary = local.wait_for_primary()
    secondaries = others_of(local, primary)

    def write() -> dict[str, Any]:
        documents = [{"t": "x" * 4096} for _ in range(20)]
        run(primary, {"insert": "much", "documents": documents, "writeConcern": {"w": 1}})
        flow: dict[str, Any] = run(primary, {"serverStatus": 1}, "admin")["flowControl"]
        return flow

    def stop_fetching(mode: str) -> None:
        for member in secondaries:
            run(member, {"configureFailPoint": "stopReplProducer", "mode": mode}, "admin")

    assert not write()["isLagged"]
    stop_fetching("alwaysOn")
    wait_until(lambda: write()["timeAcquiringMicros"] > 500_000, 30, "writers to be slowed")
    flow = write()
    assert (flow["isLagged"], sorted(flow["waitsFor"])) == (True, sorted(member.host for member in secondaries))
    assert any("writers are slowed" in remark["why"] for remark in status(primary)["remarks"])
    log = primary.log.read_text()
    assert secondaries[0].host in log[log.index("slow operation: insert shop.much took") :]
    stop_fetching("off")
    wait_until(lambda: not write()["isLagged"], 60, "writers to be let go")


@pytest.mark.in_turns
def test_a_durability_level_falls_while_the_data_secondary_is_down_and_rises_again(make_set: MakeSet) -> None:
    level = {"level": 2, "atLeast": 1, "degradeLagSecs": 2, "restoreLagSecs": 1}
    local = make_set(members=2, arbiters=1, durabilityLevels={"shop.orders": level})
    primary, secondary = local.wait_for_primary(), a_secondary(local)

    def write(number: int) -> None:
        assert "writeConcernError" not in run(primary, {"insert": "orders", "documents": [{"_id": number}]})

    write(1)
    local.kill(secondary)
    write(2)  # once the level has fallen
    assert status(primary)["loweredDurabilityLevels"] == {"shop.orders": 1}
    assert insert_one(primary, 3, {"w": "majority", "wtimeout": 200})["writeConcernError"]["code"] == 64
    local.start(secondary)
    wait_until(lambda: "loweredDurabilityLevels" not in status(primary), 30, "the level to rise")
    write(4)
    assert ids(secondary) == [1, 2, 3, 4]
