"""Sets whose members are of two releases: this tree, and the last release from its wheel (kit/releases.py)."""

from __future__ import annotations

from typing import Any

import pytest

from replset.errors import ErrorCode
from tests.simulation.kit.cluster import SPARE, SimCluster, quiet_logs
from tests.simulation.kit.scenarios import ScenarioRun, scenario_run

SWEDISH = {"locale": "sv", "strength": 2}
INDEX = {"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a_1", "collation": SWEDISH}]}


def move(scenario: ScenarioRun, name: str, *, back: bool) -> None:
    """Stop a member and start it with the other release."""
    cluster = scenario.cluster
    assert cluster.run(cluster.stop(name))
    cluster.machines[name].is_of_last_release = back
    scenario.restart(name)
    cluster.run_until(cluster.all_counted, 60, "everybody is counted")
    assert scenario.write(cluster.primary() or "").acknowledged


def change(scenario: ScenarioRun, version: str, **options: object) -> dict[str, Any]:
    command = {"setFeatureCompatibilityVersion": version, "confirm": True, **options}
    reply: dict[str, Any] = scenario.cluster.command(scenario.cluster.primary() or "", command, timeout_s=30)
    return reply


def shown(scenario: ScenarioRun) -> set[str]:
    """The version by each member that knows its own."""
    found = set()
    for name, machine in scenario.cluster.machines.items():
        if not machine.is_of_last_release:
            reply = scenario.cluster.command(name, {"getParameter": 1, "featureCompatibilityVersion": 1})
            found.add(reply["featureCompatibilityVersion"]["version"])
    return found


@pytest.mark.in_turns
def test_a_set_is_upgraded_uses_what_is_new_and_goes_back() -> None:
    with scenario_run(of_last_release=("a", "b", "c")) as scenario:
        cluster = scenario.cluster
        for name in ("a", "b", "c"):
            if name != "c":  # c is still of the last release, and may not lead
                move(scenario, name, back=False)
        if cluster.primary() == "c":
            scenario.step_up("a")
        cluster.run_until(
            lambda: cluster.primary() in ("a", "b") and cluster.all_counted(), 30, "an upgraded one leads"
        )
        assert shown(scenario) == {"1.0"}
        primary = cluster.primary() or ""
        assert cluster.command(primary, INDEX, "test")["code"] == ErrorCode.CANNOT_CREATE_INDEX
        refused = change(scenario, "1.1")
        assert (refused["code"], "c:27017 runs release 1.0" in refused["errmsg"]) == (103, True)

        move(scenario, "c", back=False)
        assert change(scenario, "1.1", confirm=False)["code"] == 7369100
        assert change(scenario, "1.1")["ok"] == change(scenario, "1.1")["ok"] == 1
        cluster.run_for(2)  # all hear of it
        assert shown(scenario) == {"1.1"}
        primary = cluster.primary() or ""
        assert cluster.command(primary, INDEX, "test", timeout_s=30)["ok"] == 1
        before = cluster.command(primary, {"replSetGetConfig": 1})["config"]
        refused = change(scenario, "1.0")
        assert (refused["code"], "index a_1 of test.c" in refused["errmsg"]) == (ErrorCode.CANNOT_DOWNGRADE, True)
        assert cluster.command(primary, {"replSetGetConfig": 1})["config"] == before

        assert cluster.command(primary, {"dropIndexes": "c", "index": "a_1"}, "test")["ok"] == 1
        assert change(scenario, "1.0")["ok"] == 1
        assert "featureCompatibilityVersion" not in cluster.command(primary, {"replSetGetConfig": 1})["config"]
        for name in ("a", "b", "c"):
            move(scenario, name, back=True)
        scenario.heal_all_and_judge()


@pytest.mark.in_turns
def test_a_set_that_begins_with_a_member_of_the_last_release_stays_at_that() -> None:
    with scenario_run(members=2, of_last_release=("b",)) as scenario:
        assert shown(scenario) == {"1.0"}


def test_only_its_command_changes_the_version() -> None:
    with scenario_run(members=2) as scenario:
        cluster = scenario.cluster
        assert shown(scenario) == {"1.1"}
        given = cluster.command(scenario.primary, {"replSetGetConfig": 1})["config"]
        without = {**given, "version": given["version"] + 1}
        del without["featureCompatibilityVersion"]
        assert cluster.command(scenario.primary, {"replSetReconfig": without}, timeout_s=30)["ok"] == 1
        assert shown(scenario) == {"1.1"}
        lower = {**without, "version": given["version"] + 2, "featureCompatibilityVersion": "1.0"}
        assert cluster.command(scenario.primary, {"replSetReconfig": lower})["code"] == ErrorCode.INVALID_CONFIG


def test_a_member_of_the_last_release_is_not_added_to_a_set_that_is_beyond_it() -> None:
    quiet_logs()
    with SimCluster(2, spare=True, of_last_release=[SPARE]) as cluster:
        cluster.initiate()
        cluster.start(SPARE)
        cluster.run_until(lambda: cluster.machines[SPARE].started, 10, "the new member is up")
        add = {"replSetAddMember": {"host": f"{SPARE}:27017"}}
        refused = cluster.command(cluster.primary() or "", add, timeout_s=30)
        assert (refused["code"], "runs release 1.0" in refused["errmsg"]) == (ErrorCode.NEW_CONFIG_INCOMPATIBLE, True)
