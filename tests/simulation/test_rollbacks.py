"""Rollbacks that meet a full disk, and members whose history is too far off: whole members on virtual time."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from replset.bson import Timestamp
from replset.core.member_state import MemberState
from replset.errors import OutOfDiskSpaceError
from replset.member.disk import member_files
from tests.simulation.kit.checkers import Checkers
from tests.simulation.kit.cluster import SimCluster, quiet_logs
from tests.simulation.kit.environment import DEFAULT_ENVIRONMENT, Environment
from tests.simulation.kit.scenarios import ScenarioRun, scenario_run


def writes_to_roll_back(scenario: ScenarioRun) -> str:
    """The old primary goes on alone, the others elect another one; who it was."""
    old = scenario.primary
    for _ in range(3):
        scenario.write(old)
    kept = scenario.write(old).id
    scenario.cut(old)
    for _ in range(4):
        scenario.write(old, concern="journaled")
    scenario.write(old, "update", kept, "journaled")
    scenario.cluster.run_until(lambda: scenario.cluster.primary() not in (None, old), 20, "another primary")
    scenario.write(scenario.cluster.primary() or "")
    return old


def own_row(status: dict[str, Any]) -> dict[str, Any]:
    return next(row for row in status["members"] if row.get("self"))


@pytest.mark.in_turns
@pytest.mark.parametrize("steps", range(0, 32, 4))
def test_a_disk_that_fills_up_at_any_moment_of_a_rollback_is_waited_for(steps: int) -> None:
    with scenario_run(seed=steps, environment=Environment(undo_step=1)) as scenario:
        cluster = scenario.cluster
        old = writes_to_roll_back(scenario)
        machine = cluster.machines[old]
        left = steps

        def fill() -> None:
            nonlocal left
            member = machine.running
            if member is None or member.node.state is not MemberState.ROLLBACK:
                return
            left -= 1
            if left < 0:
                cluster.on_step.remove(fill)
                machine.disk.is_full = True

        cluster.on_step.append(fill)
        scenario.heal()
        cluster.run_until(lambda: machine.disk.is_full, 30, "the old primary rolls back and its disk fills up")
        cluster.run_for(20)
        cluster.check_unbroken()
        status = cluster.command(old, {"replSetGetStatus": 1})
        waiting = status.get("rollbackStatus")
        if waiting is not None:
            assert own_row(status)["stateStr"] == "ROLLBACK"
            assert "disk space" in waiting["waitingFor"]
        else:
            assert steps > 8, "it had not been over yet"
        machine.disk.is_full = False
        scenario.heal_all_and_judge()
        cluster.run_for(3)  # the next heartbeat tells it
        status = cluster.command(scenario.others[0], {"replSetGetStatus": 1})
        assert status["unacknowledgedRollbacks"] == 1
        assert {row["name"]: row["unacknowledgedRollbacks"] for row in status["members"]}[machine.host] == 1


def test_a_start_without_disk_space_shows_rollback_and_finishes_it_later(monkeypatch: pytest.MonkeyPatch) -> None:
    with scenario_run(seed=3, environment=Environment(undo_step=1)) as scenario:
        cluster = scenario.cluster
        old = writes_to_roll_back(scenario)
        machine = cluster.machines[old]
        interrupted = scenario.kill_after(old, MemberState.ROLLBACK, 8, power_loss=False)
        scenario.heal()
        cluster.run_until(lambda: machine.process is None, 30, "the old primary dies in its rollback")
        assert interrupted == [True]
        finish = member_files.finish_rollbacks
        tries = 0

        async def without_disk_space(*arguments: Any) -> Any:
            nonlocal tries
            tries += 1
            if tries == 1:
                raise OutOfDiskSpaceError("replset.db: no space left on the disk")
            return await finish(*arguments)

        monkeypatch.setattr(member_files, "finish_rollbacks", without_disk_space)
        states: list[MemberState] = []

        def watch() -> None:
            member = machine.running
            if member is not None and (not states or states[-1] is not member.node.state):
                states.append(member.node.state)

        cluster.on_step.append(watch)
        scenario.restart(old)
        scenario.heal_all_and_judge()
        assert tries == 1
        assert next(state for state in states if state is not MemberState.STARTUP) is MemberState.ROLLBACK
        assert states[-1] is MemberState.SECONDARY


def is_in(cluster: SimCluster, name: str, state: MemberState) -> bool:
    member = cluster.machines[name].running
    return member is not None and member.node.state is state


def orders(cluster: SimCluster, name: str) -> list[object]:
    reply = cluster.command(
        name, {"find": "orders", "sort": {"_id": 1}, "$readPreference": {"mode": "secondaryPreferred"}}, "shop"
    )
    return [document["_id"] for document in reply["cursor"]["firstBatch"]]


def insert(cluster: SimCluster, name: str, *ids: int, w: object = "majority") -> None:
    documents = [{"_id": number} for number in ids]
    concern = {"w": w, "wtimeout": 5_000}
    reply = cluster.command(name, {"insert": "orders", "documents": documents, "writeConcern": concern}, "shop")
    assert reply["n"] == len(ids)
    assert "writeConcernError" not in reply


def test_behind_the_commit_point_after_a_forced_reconfig_members_recover_by_one_command() -> None:
    quiet_logs()
    with SimCluster(3, seed=11) as cluster:
        cluster.initiate()
        old = cluster.primary() or ""
        alone, other = cluster.secondaries()
        insert(cluster, old, 1, 2)
        cluster.run_until(cluster.converged, 30, "everybody has both")
        # The two that are a majority commit what the third one does not get.
        cluster.cut([alone])
        insert(cluster, old, 3, 4)
        config = cluster.command(alone, {"replSetGetConfig": 1})["config"]
        for member in config["members"]:
            if member["host"] != cluster.host(alone):
                member["votes"], member["priority"] = 0, 0
        config["version"] += 1
        assert cluster.command(alone, {"replSetReconfig": config, "force": True})["ok"] == 1
        machine = cluster.machines[alone]
        cluster.run_until(
            lambda: machine.running is not None and machine.running.node.writable, 60, "the third one leads by itself"
        )
        insert(cluster, alone, 100)
        cluster.heal()

        def quarantined(name: str) -> bool:
            member = cluster.machines[name].running
            return member is not None and bool(member.node.quarantine)

        cluster.run_until(lambda: quarantined(old) and quarantined(other), 60, "both see that they are too far off")
        cluster.run_for(60)
        for name in (old, other):
            status = cluster.command(name, {"replSetGetStatus": 1})
            assert own_row(status)["stateStr"] == "RECOVERING"
            assert "which must stay" in own_row(status)["quarantine"]
        # Any member tells of both, and of what they hold.
        status = cluster.command(alone, {"replSetGetStatus": 1})
        assert status["unacknowledgedRollbacks"] == 2
        assert sorted(row["name"] for row in status["members"] if row.get("quarantine")) == sorted(
            [cluster.host(old), cluster.host(other)]
        )
        found = cluster.command(alone, {"replSetGetRollbacks": 1, "all": True})
        assert found["unreachable"] == {}
        assert {row["member"] for row in found["rollbacks"]} == {cluster.host(old), cluster.host(other)}
        for row in found["rollbacks"]:
            assert row["state"] == "exported"
            kinds = {(file["kind"], file["ns"]): file["count"] for file in row["files"]}
            assert kinds["documents", "shop.orders"] == 2, "the whole divergent slice, what was committed once too"
        for name in (old, other):
            (then,) = [line["next"] for line in status["remarks"] if line["why"].startswith(cluster.host(name))]
            assert f"replset resync --force --host {cluster.host(name)}" in then
            # What it knows as committed is not in the set any more: that is for a person to say.
            refused = cluster.command(name, {"replSetResync": 1})
            assert (refused["ok"], refused["code"]) == (0, 119)
            assert is_in(cluster, name, MemberState.RECOVERING)
            assert cluster.command(name, {"replSetResync": 1, "force": True})["ok"] == 1
            cluster.run_until(partial(is_in, cluster, name, MemberState.SECONDARY), 60, "resynced")
        cluster.run_until(cluster.converged, 60, "all the same")
        cluster.check_unbroken()
        for name in cluster.machines:
            assert orders(cluster, name) == [1, 2, 100]
        assert len(cluster.command(alone, {"replSetGetRollbacks": 1, "all": True})["rollbacks"]) == 2


def test_a_resync_of_a_member_that_is_well_loses_nothing() -> None:
    quiet_logs()
    with SimCluster(3, seed=5) as cluster:
        cluster.initiate()
        primary, (name, _) = cluster.primary() or "", cluster.secondaries()
        insert(cluster, primary, 1, 2)
        assert cluster.host(primary) in cluster.command(name, {"replSetResync": 1})["info"]
        insert(cluster, primary, 3)
        cluster.run_until(cluster.all_counted, 60, "its vote is back")
        cluster.run_until(cluster.converged, 60, "all the same")
        assert orders(cluster, name) == [1, 2, 3]
        assert cluster.command(primary, {"replSetResync": 1})["code"] == 95


@pytest.mark.parametrize("restarted", [False, True], ids=["", "restarted"])
def test_a_resync_whose_source_dies_never_copies_a_member_that_lacks_what_is_committed(restarted: bool) -> None:
    """b copies c, c dies, and a, cut off until then, holds a write of its own that looks newer than what b knows as
    committed. A majority read on b shows what was acknowledged and nothing else, and a primary is elected.
    """
    quiet_logs()
    slow = replace(DEFAULT_ENVIRONMENT, chunk_bytes=20_000, worker_ms=40.0, skew_ms=200)
    with SimCluster(3, seed=1, environment=slow) as cluster:
        Checkers(cluster)
        cluster.initiate(priorities={"a": 2})
        cluster.run_until(lambda: cluster.primary() == "a", 60)
        insert(cluster, "a", *range(10))
        cluster.run_for(1)
        cluster.cut(["a"])
        cluster.machines["a"].clock.jump(120_000)  # its entries look newer
        insert(cluster, "a", 666, w=1)
        cluster.run_until(lambda: cluster.primary() in ("b", "c"), 60)
        primary = cluster.primary() or ""
        other = "b" if primary == "c" else "c"
        insert(cluster, primary, 100)
        written = cluster.machines[primary].running.node.commit_point  # type: ignore[union-attr]
        cluster.run_for(1)
        assert cluster.command(other, {"replSetResync": 1})["ok"] == 1
        member = cluster.machines[other].running
        assert member is not None
        assert member.node.state is MemberState.STARTUP2
        assert member.node.commit_point == written
        cluster.kill(primary)
        if restarted:
            cluster.kill(other)
            cluster.restart(other)
            cluster.run_until(lambda: cluster.machines[other].running is not None, 30, "it has started again")
            member = cluster.machines[other].running
            assert member is not None
            assert member.node.state is MemberState.STARTUP2
        cluster.heal()
        cluster.run_until(lambda: member.node.state.is_readable, 120, "it goes on with the data that it has")
        reply = cluster.command(
            other,
            {
                "find": "orders",
                "filter": {"_id": {"$gte": 100}},
                "readConcern": {"level": "majority", "afterClusterTime": Timestamp(written.seconds, written.increment)},
                "$readPreference": {"mode": "secondaryPreferred"},
                "maxTimeMS": 5_000,
            },
            "shop",
        )
        assert [document["_id"] for document in reply["cursor"]["firstBatch"]] == [100]
        cluster.restart(primary)
        cluster.run_until(cluster.all_counted, 120, "well again")
        cluster.run_until(cluster.converged, 60, "all the same")
        assert not member.node.quarantine


def test_in_a_set_of_two_a_resync_is_refused_while_the_other_is_behind_and_a_primary_is_elected() -> None:
    quiet_logs()
    with SimCluster(2, seed=4, environment=replace(DEFAULT_ENVIRONMENT, skew_ms=200)) as cluster:
        Checkers(cluster)
        cluster.initiate(priorities={"a": 2})
        cluster.run_until(lambda: cluster.primary() == "a", 60)
        cluster.run_for(2)
        cluster.cut(["a"])
        insert(cluster, "a", 1, w=1)
        cluster.run_until(partial(is_in, cluster, "a", MemberState.SECONDARY), 30)
        cluster.heal()
        cluster.run_for(0.1)
        for force in (False, True):
            refused = cluster.command("a", {"replSetResync": 1, **({"force": True} if force else {})})
            assert refused["ok"] == 0
            assert refused["code"] in (74, 119)  # 74: it has not heard of the other one yet
        cluster.run_until(cluster.all_counted, 120, "a primary, and both vote")
        cluster.run_until(cluster.converged, 60, "all the same")
        assert orders(cluster, "b") == [1]


@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "killed"])
def test_a_member_that_was_too_stale_reports_nothing_that_the_set_has(stopped: bool) -> None:
    """It restarts in a later term, and its entries are trimmed away everywhere else."""
    quiet_logs()
    with SimCluster(3, seed=6, environment=replace(DEFAULT_ENVIRONMENT, oplog_bytes=2_000)) as cluster:
        cluster.initiate()
        name, _ = cluster.secondaries()
        insert(cluster, cluster.primary() or "", *range(20))
        cluster.run_until(cluster.converged, 30, "everybody has all")
        cluster.run_for(3)
        if stopped:
            cluster.run(cluster.stop(name))
        else:
            cluster.kill(name)
        assert cluster.command(cluster.primary() or "", {"replSetStepDown": 5})["ok"] == 1
        cluster.run_until(lambda: cluster.primary() is not None, 60, "another term")
        primary = cluster.primary() or ""
        for number in range(100, 160):
            insert(cluster, primary, number)
        cluster.run_for(5)
        cluster.restart(name)
        resyncs = cluster.resyncs
        cluster.run_until(cluster.all_counted, 60, "it is back")
        cluster.run_until(cluster.converged, 60, "all the same")
        assert cluster.resyncs > resyncs, "it was too stale"
        status = cluster.command(name, {"replSetGetStatus": 1})
        assert status["unacknowledgedRollbacks"] == 0
